"""A server that asks one client alone, and reads its total: the gradient of that one's rows.

Where what is added up is over the owners of columns, least_clients does not count, and a server
used to be free to ask whom it liked. Where all clients take part in each round, the default, a site
now refuses a sum that is not asked of all. Where they do not, docs/explanations/privacy says so.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from departing_server import begin
from departures import Departing, unguarded
from federations import names
from intarsia.core.block import Block, Labels
from intarsia.engines import codec
from intarsia.engines.communication_log import RECORDS
from intarsia.engines.remote import wire
from intarsia.engines.remote.wire import Answer
from intarsia.protocols.evaluation import Sums, Totals
from intarsia.training.registry import ALGORITHMS, algorithm_named

FEDAVG = ALGORITHMS["fedavg"]
OPTIONS = FEDAVG.hyperparameters(
    loss="logistic", regularisation=1e-9, local_steps=1, batch=1, a=1.0, b=0.0
)
VICTIM = "a"


def blocks():
    """Return three clients with the same columns, of which the first has one row."""
    rng = np.random.default_rng(0)
    rows = {"a": [7], "b": range(10, 15), "c": range(20, 25)}
    return {
        name: Block(np.array([*own]), names(range(4)), x, np.sign(rng.normal(size=len(own))))
        for name, own in rows.items()
        for x in [rng.normal(size=(len(own), 4))]
    }


@pytest.mark.parametrize("case", ["all take part", "some take part", "not held against anything"])
def test_one_client_s_update_is_not_read(case, monkeypatch):
    if case == "not held against anything":
        unguarded(monkeypatch)
    own = blocks()
    made = Departing(FEDAVG, OPTIONS, VICTIM, blocks=own, complete=case == "all take part")
    made.rounds(1)
    call = made.of("fedavg.local_descent")[-1]
    message = dataclasses.replace(made.message(call), present=(VICTIM,))
    answer = made.ask(call, body=codec.encode(message), asked=(VICTIM,))
    if case == "all take part":
        assert answer.error == "RefusedError"
        return
    made.made.caller.sequence += 1
    made.made.caller.versions[VICTIM] = made.made.caller.sequence
    record = codec.decode(answer.body, wire.SealedReply, *RECORDS).fields["w"].value
    cells = tuple(piece.numbers[2] for piece in record.cells[0])
    opened = made.open(record, cells)
    assert isinstance(opened, Answer)
    assert opened.error == ""
    (change,) = codec.decode(opened.body, wire.Opened).values
    # the step of a logistic loss on one row is a multiple of that row: columns are in order
    x, found = own[VICTIM].x[0], np.asarray(change)[0]
    assert abs(np.corrcoef(x, found)[0, 1]) > 0.999999
    np.testing.assert_allclose(found / found[0], x / x[0], rtol=1e-6)


@pytest.mark.parametrize("works", [False, True])
def test_the_mean_of_one_client_s_labels_is_not_read(works, monkeypatch):
    """Who takes part in each round does not matter: all are there before the first."""
    pytest.importorskip("torch")
    if works:
        unguarded(monkeypatch)
    rng, hetfedrep = np.random.default_rng(0), algorithm_named("hetfedrep")
    own = {
        name: Block(np.arange(9) + 9 * at, (f"{name}0", f"{name}1"), x, rng.normal(size=9))
        for at, name in enumerate("abc")
        for x in [rng.normal(size=(9, 2))]
    }
    options = hetfedrep.hyperparameters(hidden=4, latent=2, engine="loop")
    numbers = Labels("regression", ())
    made = Departing(hetfedrep, options, VICTIM, blocks=own, labels=numbers, complete=False)
    made.rounds(1)
    answer = made.ask(made.of("hetfedrep.count_labels")[-1], asked=(VICTIM,))
    if not works:
        assert answer.error == "RefusedError"
        return
    made.made.caller.sequence += 1
    made.made.caller.versions[VICTIM] = made.made.caller.sequence
    record = codec.decode(answer.body, wire.SealedReply, *RECORDS).fields["at"].value
    opened = made.open(record, tuple(piece.numbers[2] for piece in record.cells[0]))
    (found,) = codec.decode(opened.body, wire.Opened).values
    np.testing.assert_allclose(found, [9, own[VICTIM].y.sum()], atol=1e-9)


@pytest.mark.parametrize("works", [False, True])
def test_the_classes_of_one_client_s_test_rows_are_not_counted(works, monkeypatch, tmp_path):
    pytest.importorskip("torch")
    if works:
        unguarded(monkeypatch)
    made = begin(
        *(tmp_path / "run", "femam", "femam.send_part"),
        algorithm={"levels": ["global", "personal"]},
    )
    answer = made.ask("bank", "evaluation.count_classes_own", Totals(None), part="test")
    assert answer.error == ("" if works else "RefusedError")
    if works:
        held = made.opened("bank", answer, "counts").sum(axis=1)
        count = codec.decode(
            made.ask(
                "bank", "evaluation.send_metrics_own", Totals(None), kind="ask", part="test"
            ).body,
            Sums,
        ).count[0]
        assert held.sum() == count
        assert held.max() < count


def test_sites_in_folders_refuse_to_be_asked_alone(tmp_path):
    pytest.importorskip("torch")
    made = begin(tmp_path / "run", "hyfdca", "hyfdca.slope_along")
    _, call, _ = made.of("hyfdca.measure_norms", "bank")[-1]
    assert made.ask("bank", call.function, call.body).error == "RefusedError"
