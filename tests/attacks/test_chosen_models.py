"""A server that trains and evaluates a model of its own choice: what it gains is what models tell.

The server used to tell the initial network in the clear, and networks of `femam` and `hyfem` at any
time. A network whose weights are made for it carries single rows into the sum of the gradients, and
one that says one class for every row has its accuracy tell how many test rows of that class a
client has. What is told in the clear is held against what the seed draws.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import four_sites
from departing_server import NAMES, begin
from departures import unguarded
from intarsia.engines import codec
from intarsia.engines.communication_log import RECORDS
from intarsia.engines.remote import wire
from intarsia.protocols.evaluation import Sums, Totals

pytest.importorskip("torch")


@pytest.fixture(params=["declared", "not held against anything"])
def works(request, monkeypatch):
    """Let sites hold calls against the declaration, or not; return whether attacks work."""
    if request.param != "declared":
        unguarded(monkeypatch)
    return request.param != "declared"


def says_one_class(parameters, place, outputs=3):
    """Return a network, as one vector, whose last layer says one class whatever the row."""
    made = np.zeros(parameters)
    made[:outputs] = -9.0  # the first entries are the biases of the classes
    made[place] = 9.0
    return made


def test_accuracy_of_a_constant_network_does_not_tell_how_many_are_of_a_class(works, tmp_path):
    from intarsia.algorithms.femam.state import Latest

    levels = {"levels": ["global", "personal"], "first_rounds": 3}
    made = begin(tmp_path / "run", "femam", "femam.train_level", algorithm=levels)
    _, call, _ = made.of("femam.open_level", "bank")[-1]
    drawn = wire.decode_as(Latest, call.body, *RECORDS).model
    assert made.ask_all(call.function, Latest(drawn))["bank"].error == ""  # as it was drawn
    counts = []
    for place in range(3):
        chosen = Latest(says_one_class(len(drawn), place).astype(drawn.dtype))
        answer = made.ask_all(call.function, chosen)["bank"]
        assert answer.error == ("" if works else "RefusedError")
        metrics = made.ask(
            "bank", "evaluation.send_metrics_own", Totals(None), kind="ask", part="test"
        )
        counts.append(codec.decode(metrics.body, Sums).correct[0])
    if works:  # all test rows, class by class: the table has as many of each
        rows = four_sites.tables("femam")["bank"]
        assert sum(counts) == codec.decode(metrics.body, Sums).count[0]
        assert sum(counts) <= len(rows)
        assert min(counts) < sum(counts)
    else:
        assert len(set(counts)) == 1  # the same network three times


@pytest.mark.parametrize("algorithm", ["flic", "hyfem"])
def test_a_network_starts_as_the_seed_says(works, algorithm, tmp_path):
    function = f"{algorithm}.send_start"
    made = begin(tmp_path / "run", algorithm, f"{algorithm}.local_training")
    error = "" if works else "RefusedError"
    _, call, _ = next(one for one in made.of(function) if one[0] == NAMES[0])
    kind = _kind(algorithm, "send_start")
    message = wire.decode_as(kind, call.body, *RECORDS)
    assert made.ask_all(function, message)[NAMES[0]].error == ""
    field = "shared" if algorithm == "flic" else "rest"
    trap = dataclasses.replace(message, **{field: 1e3 * np.ones_like(getattr(message, field))})
    assert made.ask_all(function, trap)[NAMES[0]].error == error


def test_a_network_of_hyfem_is_told_as_a_total_alone(works, tmp_path):
    made = begin(tmp_path / "run", "hyfem", "hyfem.part_of_loss")
    _, call, _ = made.of("hyfem.local_training", "bank")[-1]
    message = wire.decode_as(_kind("hyfem", "local_training"), call.body, *RECORDS)
    assert message.rest is not None
    # how long the server's network is, which it knows: of 12 units and three classes
    own = dataclasses.replace(message, rest=np.zeros(12 + 3 + 36))
    answers = made.ask_all(call.function, own)
    if not works:
        assert {one.error for one in answers.values()} == {"RefusedError"}
    else:
        assert "RefusedError" not in {one.error for one in answers.values()}


def _kind(algorithm, function):
    from intarsia.training.registry import algorithm_named

    found = algorithm_named(algorithm).disclosure.functions
    return next(one.message for one in found if one.name == function)
