"""A server that lets all clients but one count for nothing, so that the total is that one's.

The server used to say by how much a client's change counts (`hyfem`, `femam`), and how long its
steps are (`fedavg`, `cocoa`): to each client another number. With steps of length 0 at all others
the opened total of a round was one client's gradient, whoever took part. A client now tells both
from the schema, from its hyperparameters, and from the round and the clients that the call names.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from departing_server import NAMES, begin
from departures import Departing, unguarded
from intarsia.core.block import Block, Labels
from intarsia.core.disclosure import Release
from intarsia.engines import codec
from intarsia.protocols import preprocessing
from intarsia.protocols.preprocessing.standardisation import (
    MeasureFeatures,
    _of_units,
    measure_features,
)
from intarsia.training.registry import ALGORITHMS, algorithm_named

FEDAVG, COCOA = ALGORITHMS["fedavg"], ALGORITHMS["cocoa"]
OPTIONS = FEDAVG.hyperparameters(loss="logistic", regularisation=0.1)
VICTIM = "r0c0"


@pytest.fixture(params=["declared", "not held against anything"])
def works(request, monkeypatch):
    """Let sites hold calls against the declaration, or not; return whether attacks work."""
    if request.param != "declared":
        unguarded(monkeypatch)
    return request.param != "declared"


def begun(algorithm=FEDAVG, function="local_descent"):
    made = Departing(algorithm, OPTIONS, VICTIM)
    made.rounds(2)
    return made, made.of(f"fedavg.{function}")[-1]


def altered(made, call, **changes):
    message = dataclasses.replace(made.message(call), **changes)
    return made.ask(call, body=codec.encode(message)).error


def test_a_client_takes_the_steps_of_the_round_that_it_is_in(works):
    made, call = begun()
    error = "" if works else "RefusedError"
    assert altered(made, call, number=10**15) == error  # steps of a length of next to nothing


def test_a_change_is_shared_among_those_that_are_asked(works):
    made, call = begun()
    assert altered(made, call, present=(VICTIM,)) == ("" if works else "RefusedError")


def test_what_is_asked_as_it_is_declared_is_answered():
    made, call = begun()
    assert altered(made, call) == ""


def test_noise_is_split_among_those_that_are_asked_and_no_more(works):
    """A server that told of 1,000 others had each add next to no noise."""
    private = FEDAVG.private(Release(deviation=1.0, clip=1.0, releases=9))
    made, call = begun(private, "noisy_descent")
    found = altered(made, call, present=tuple(f"c{n}" for n in range(10**3)))
    assert found == ("" if works else "RefusedError")


def test_sums_of_columns_are_rounded_to_the_steps_of_the_run(works, tmp_path):
    """A server that told all but one of huge steps had a co-owner of columns open one's sums."""
    pytest.importorskip("torch")
    made = begin(tmp_path / "run", "hyfdca", "preprocessing.centre")
    (_, call, _), *_ = made.of("preprocessing.measure_features", "branch")
    honest = codec.decode(call.body, MeasureFeatures)
    answer = made.ask("branch", call.function, call.body, asked=NAMES)
    assert not answer.error
    for step in (1e300, 2 * honest.step, 0.0):
        answer = made.ask("branch", call.function, MeasureFeatures(step), asked=NAMES)
        assert answer.error == ("" if works else "RefusedError")
    x = np.random.default_rng(0).normal(size=(40, 3))
    own = Block(np.arange(40), ("a", "b", "c"), x, np.ones(40))
    for step, told in (honest.step, x.sum(axis=0)), (1e300, np.zeros(3)):
        state = preprocessing.initial("a", own)
        _, sent = measure_features.call(state, own, MeasureFeatures(step), None)
        np.testing.assert_allclose(_of_units(sent.total), told, atol=1e-9)


def test_no_message_says_what_a_client_counts_for():
    ascend = next(f for f in COCOA.disclosure.functions if f.name == "local_dual_ascent").message
    assert [one.name for one in dataclasses.fields(ascend)] == ["w"]
    pytest.importorskip("torch")
    from intarsia.algorithms.femam.state import Share
    from intarsia.algorithms.hyfem.client import Told, Weight

    assert not dataclasses.fields(Weight)
    assert [one.name for one in dataclasses.fields(Share)] == ["members"]
    told = {one.name for one in dataclasses.fields(Told)}
    assert told == {
        *("extractors", "columns", "rest", "classes", "by_block"),
        *("present", "number", "hidden"),
    }


def test_a_client_of_flic_linear_counts_for_as_much_as_each_of_those_that_are_asked(works):
    """Told of parts of 0, all others would leave one client's moment to who decomposes it."""
    pytest.importorskip("torch")
    rng, names = np.random.default_rng(0), ("a", "b", "c")
    blocks = {
        name: Block(
            np.arange(20) + 20 * at,
            tuple(f"{name}{column}" for column in range(3)),
            rng.normal(size=(20, 3)),
            rng.normal(size=20),
        )
        for at, name in enumerate(names)
    }
    algorithm = algorithm_named("flic-linear")
    options = algorithm.hyperparameters(latent=2, rank=1)
    made = Departing(algorithm, options, "b", blocks=blocks, labels=Labels("regression", ()))
    made.rounds(1)
    call = made.of("flic-linear.part_of_moment")[-1]
    assert altered(made, call, clients=10**15) == ("" if works else "RefusedError")
    moment = next(
        one for one in algorithm.disclosure.sends if one.function.name == "part_of_moment"
    )
    assert moment.pooled(options)  # least_clients holds
    assert moment.function.alike


@pytest.mark.parametrize("name", ["hyfem", "femam", "flic", "fedavg-ft", "fedprox", "pfedme"])
def test_who_is_there_is_held_against_the_call(name):
    """Where messages say who is there, or how many, the declaration names that field."""
    pytest.importorskip("torch")
    fields = {"present", "members", "clients"}
    for one in algorithm_named(name).disclosure.sends:
        own = fields & {f.name for f in dataclasses.fields(one.function.message)}
        if one.call == "sum" and own and "training" in one.function.name:
            assert {one.present} == own, one.function.name


def test_a_client_of_hyfem_weighs_its_change_by_the_labels_of_all():
    pytest.importorskip("torch")
    from intarsia.algorithms.hyfem.client import Client, _share

    client = Client(None, None, {}, np.zeros(0, bool), "a", {"a": 0.5, "b": 0.3, "c": 0.2})
    assert _share(client, {"a", "b", "c"}) == 0.5
    assert _share(client, {"a", "b"}) == 0.625
