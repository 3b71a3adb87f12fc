"""What an algorithm's record derives where its author leaves something out."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from federations import BINARY, rectangles, table
from intarsia import core as fl
from intarsia.algorithms.flic.linear import FLIC_LINEAR
from intarsia.algorithms.linear.cocoa import COCOA
from intarsia.core.schema import Schema
from intarsia.engines.simulation import Simulation
from intarsia.errors import AlgorithmError, FederationError, SealedError

KEY = fl.RandomKey((0,))


@fl.describe("sums")
class Vector:
    v: fl.PerFeature


@dataclass(frozen=True)
class Options:
    loss: str = "squared"


@dataclass(frozen=True)
class Server:
    w: np.ndarray


@fl.client_function
def double(own: fl.LinearClient, block, told: Vector) -> tuple[fl.LinearClient, Vector]:
    return replace(own, w=told.v), Vector(2 * told.v)


def setup(options: Options, clients: fl.Clients) -> Server:
    return Server(np.arange(float(len(clients.schema().features))))


MINE = fl.Algorithm(
    name="mine",
    hyperparameters=Options,
    setup=setup,
    round=lambda server, clients: (server, fl.RoundMetrics()),
    certify=lambda server, clients: (server, fl.RoundMetrics(loss=7.0)),
    model=fl.Model(additive=True, kind="linear"),
    disclosure=fl.Disclosure(sends=fl.sums(double, reveals=["v"])),
)


@pytest.fixture
def engine():
    x, y = table(24, 6)
    blocks = rectangles(x, y, 2, 2, shared_rows=2, shared_columns=1)
    made = Simulation({"train": (Schema.of(blocks, BINARY), blocks)}, 0)
    made.begin(MINE, Options())
    return made


def test_a_message_for_all_tells_each_client_its_own_entries_and_is_as_one_for_each(engine):
    features = engine.schema().features
    whole = np.arange(float(len(features)))
    by_client = {name: Vector(whole[features.own(name)]) for name in engine.ids}
    expected = engine.reveal(engine.sum(double, by_client)).v
    np.testing.assert_array_equal(engine.reveal(engine.sum(double, Vector(whole))).v, expected)
    np.testing.assert_array_equal(expected, 2 * whole * features.holders)
    for name, state in engine.get_states().items():
        np.testing.assert_array_equal(state.w, whole[features.own(name)])
    with pytest.raises(AlgorithmError, match=r"Vector\.v has the shape \(5,\), and all clients"):
        engine.sum(double, Vector(whole[:5]))


def test_what_a_linear_algorithm_leaves_out_is_derived(engine):
    assert set(MINE.states) == {Options, Server, fl.LinearClient}
    server = MINE.setup(MINE.begin(Options(), engine.schema(), KEY), engine, KEY)
    for name, state in engine.get_states().items():
        block = engine.block(name)
        assert state.w.shape == (1, block.shape[1])
        found = MINE.model.predict(replace(state, w=np.ones(block.shape[1])), block)
        np.testing.assert_allclose(found, [np.asarray(block.x.sum(axis=1))])
    total = np.zeros(len(engine.schema().samples))
    for name, state in engine.get_states().items():
        total[engine.schema().samples.own(name)] += state.labels
    assert set(total) == {-1.0, 1.0}  # each label once, whoever has it
    found = MINE.conclude(server, engine, KEY)
    assert found.info.loss == 7.0
    np.testing.assert_array_equal(found.weights, [server.w])
    other = replace(MINE, certify=lambda server, clients: (server, fl.RoundMetrics(loss=8.0)))
    assert other.conclude(server, engine, KEY).info.loss == 8.0


def test_labels_and_rounds_that_an_algorithm_is_not_for_are_refused_in_a_sentence(engine):
    with pytest.raises(FederationError, match="'binary', 2 classes, and flic-linear learns reg"):
        FLIC_LINEAR.begin(None, engine.schema(), KEY)
    with pytest.raises(FederationError, match="3 of 4 clients take part in a round, and mine"):
        MINE.check_present(3, 4)
    MINE.check_present(4, 4)
    COCOA.check_present(3, 4)


def test_other_models_say_how_they_begin_and_predict():
    with pytest.raises(AlgorithmError, match="needs its own `predict`"):
        fl.Model()
    model = fl.Model(predict=lambda state, block: block)
    with pytest.raises(AlgorithmError, match="mine trains no linear model"):
        replace(MINE, model=model)


def test_what_hides_something_takes_a_key():
    def hiding(own: fl.LinearClient, block, told: Vector) -> tuple[fl.LinearClient, Vector]:
        return own, told

    with pytest.raises(AlgorithmError, match="hiding is a secret_function and takes no key"):
        fl.secret_function(hiding)
    with pytest.raises(AlgorithmError, match="double is a noise_function and takes no key"):
        fl.noise_function(double)


def plain(own, block, told):
    return own, told


def unsaid(own: fl.LinearClient, block, told: Vector):
    return own, told


class Undescribed:
    v: fl.PerFeature


def undescribed(own: fl.LinearClient, block, told: Vector) -> tuple[fl.LinearClient, Undescribed]:
    return own, Undescribed()


@dataclass
@fl.describe("sums")
class Twice:
    v: fl.PerFeature


def twice(own: fl.LinearClient, block, told: Vector) -> tuple[fl.LinearClient, Twice]:
    return own, Twice(told.v)


SUMS = fl.sums(double)
DECLARATIONS = {
    "plain is to run at clients and is no client function; write @fl.client": lambda: fl.sums(
        plain
    ),
    "a lambda is to run at clients": lambda: fl.asks(lambda own, block, told: (own, told)),
    "unsaid does not say what it replies; annotate": lambda: fl.sums(fl.client_function(unsaid)),
    r"replies with Undescribed, .* no frozen dataclass; write @fl.describe": lambda: fl.asks(
        fl.client_function(undescribed)
    ),
    "replies with Twice, .*; take its @dataclass away": lambda: fl.sums(fl.client_function(twice)),
    "is given 'Vector.w', .*; use 'Vector.v'": lambda: fl.opening({"Vector.w": "Vector.v"}, SUMS),
    "what Vector.v holds totals of: 'vw' .*; use 'v'": lambda: fl.Disclosure(
        sends=fl.opening({"Vector.v": "Vector.vw"}, SUMS)
    ),
    "reveals of double: 'vv' is given, .*; use 'v'": lambda: fl.Disclosure(
        sends=fl.sums(double, reveals=["vv"])
    ),
}


@pytest.mark.parametrize(("said", "declare"), DECLARATIONS.items(), ids=[*DECLARATIONS])
def test_a_declaration_that_does_not_hold_together_is_refused_in_a_sentence(said, declare):
    with pytest.raises(AlgorithmError, match=said):
        declare()


def test_what_is_no_sum_or_factor_of_totals_is_refused_in_a_sentence(engine):
    total = engine.sum(double, Vector(np.zeros(len(engine.schema().features))))
    for wrong in (
        lambda: total.v + 1,
        lambda: 1.0 - total.v,
        lambda: total.v / 2,
        lambda: total.v * np.ones(6),
        lambda: np.ones(6) @ total.v,
        lambda: -total.v,
        lambda: total + total.v,
    ):
        with pytest.raises(SealedError, match=r"A sealed total was read .* clients.reveal"):
            wrong()
    with pytest.raises(AlgorithmError, match="double is given a SealedTotal, and its message is a"):
        engine.sum(double, total)
    with pytest.raises(AttributeError, match="clients have no 'blocks'"):
        _ = engine.blocks
