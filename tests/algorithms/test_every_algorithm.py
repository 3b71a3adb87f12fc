"""What every algorithm passes."""

from __future__ import annotations

import dataclasses
import inspect

import numpy as np
import pytest
from scipy.sparse import csr_array

from federations import BINARY, block, initialise, rectangles, secrets_of, table, train
from intarsia.core.algorithm import Algorithm, ClientFunction, Layout
from intarsia.core.block import Labels
from intarsia.core.schema import Schema
from intarsia.engines import codec
from intarsia.engines.communication_log import RECORDS
from intarsia.engines.simulation import Simulation
from intarsia.engines.sums.sealed import SealedField, SealedTotal, layouts
from intarsia.errors import SealedError
from intarsia.training.registry import ALGORITHMS

# the hyperparameters that lead an algorithm through each of its phases
VARIANTS = {
    "hyfdca": [
        {},
        {"system": "shares"},
        {"system": "encrypted"},
        {"method": "ascent"},
        {"method": "ascent", "step": "fixed", "gamma": 0.3},
    ],
    "fedavg": [{}, {"batch": 4}],
    "cocoa": [{}],
}
CASES = [
    pytest.param(algorithm, {"regularisation": 0.1, **options}, id=f"{name} {options or ''}")
    for name, algorithm in ALGORITHMS.items()
    for options in VARIANTS.get(name, [{}])
]
EVERY = pytest.mark.parametrize(("algorithm", "options"), CASES)
ROUNDS = 4
THREE = Labels("multiclass", ("a", "b", "c"))


def horizontal_only(algorithm: Algorithm) -> bool:
    return algorithm.name == "cocoa"


def federation(algorithm: Algorithm, kind: str):
    """Return small clients that an algorithm can train on: dense or sparse, wide or narrow."""
    columns = 1 if horizontal_only(algorithm) else 2
    x, y = table(60, {"wide": 140, "text": 90}.get(kind, 8))
    labels = BINARY
    if kind == "classes":
        y, labels = np.arange(60) % 3 + 0.0, THREE
    if kind in ("sparse", "text"):
        x = csr_array(x * (abs(x) > 0.8))
    shared = 0 if horizontal_only(algorithm) else 3
    more = 0 if columns == 1 else 1
    return rectangles(x, y, 2, columns, shared_rows=shared, shared_columns=more), labels


# text: sparse, with more features than samples
KINDS = pytest.mark.parametrize("kind", ["dense", "sparse", "wide", "text", "classes"])


def some_there(number, clients):
    """Let a client be away in rounds 2 and 3."""
    return clients[1:] if number in (2, 3) else None


class Watched:
    """Clients that write every message, reply and state, and read them back, on the way."""

    def __init__(self, engine: Simulation, algorithm: Algorithm):
        self.engine = engine
        self.states = algorithm.states
        self.seen: set[str] = set()
        self.down = self.up = 0

    @property
    def ids(self):
        return self.engine.ids

    @property
    def sealed(self):
        return self.engine.sealed

    def ask(self, fn, messages):
        return self.engine.ask(self._through(fn), messages)

    def sum(self, fn, messages):
        return self.engine.sum(self._through(fn), messages)

    def reveal(self, total):
        return self.engine.reveal(total)

    def _through(self, fn: ClientFunction) -> ClientFunction:
        self.seen.add(fn.name)

        def call(state, block, message, rng):
            written = codec.encode(message)
            self.down += len(written)
            message = codec.decode(written, *_classes(message))
            state = codec.decode(codec.encode(state), *self.states, *_classes(state))
            state, reply = fn.call(state, block, message, rng)
            written = codec.encode(reply)
            self.up += len(written)
            return state, codec.decode(written, *_classes(reply))

        return dataclasses.replace(fn, call=call)


def _classes(value):
    """Return the dataclasses in a message or a state."""
    if isinstance(value, dict | tuple):
        inner = value.values() if isinstance(value, dict) else value
        return [kind for one in inner for kind in _classes(one)]
    if not dataclasses.is_dataclass(value):
        return []
    own = [getattr(value, field.name) for field in dataclasses.fields(value)]
    return [type(value), *(kind for one in own for kind in _classes(one))]


def trained(algorithm, options, kind, *, through=None, seed=0, cut=None):
    """Return the conclusion, the clients' states and the traffic of a short training.

    `cut` writes everything to bytes after that round and goes on with a new engine.
    """
    blocks, labels = federation(algorithm, kind)
    schema = Schema.of(blocks, labels)
    made = algorithm.hyperparameters(**options)

    def engine_over():
        return Simulation({"train": (schema, blocks)}, seed, secrets=secrets_of(blocks))

    engine = engine_over()
    clients = through(engine, algorithm) if through else engine
    server = initialise(algorithm, made, engine, clients)
    infos = []
    for number in range(1, ROUNDS + 1):
        engine.begin_round(number, some_there(number, schema.clients))
        server, info = algorithm.round(server, clients, engine.key())
        infos.append(info)
        if number == cut:
            written = codec.encode((engine.books.seal(server), engine.get_states()))
            traffic = dataclasses.asdict(engine.books.traffic)
            engine = clients = engine_over()
            if algorithm.model.additive:
                engine.count_once()
            sealed, states = codec.decode(written, *algorithm.states, *RECORDS)
            engine.set_states(states)
            engine.books.restore_traffic(traffic)
            server = engine.books.unseal(sealed)
    engine.begin_round(ROUNDS + 1)
    conclusion = algorithm.conclude(server, clients, engine.key("conclude"))
    return conclusion, infos, engine, clients


_PLAIN = {}


def plain(algorithm, options, kind):
    """Return the training with nothing between the clients and the engine, computed once."""
    key = algorithm.name, str(options), kind
    if key not in _PLAIN:
        _PLAIN[key] = trained(algorithm, options, kind)
    return _PLAIN[key]


def identical(one, two):
    """Check that two trainings are equal to the bit."""
    np.testing.assert_array_equal(one[0].weights, two[0].weights)
    assert one[0].info == two[0].info
    assert one[1] == two[1]
    assert one[2].books.traffic == two[2].books.traffic
    for name, state in one[2].get_states().items():
        assert codec.encode(state) == codec.encode(two[2].get_states()[name])


def test_every_algorithm_has_its_name():
    assert all(name == algorithm.name for name, algorithm in ALGORITHMS.items())
    assert "hyfdca" in ALGORITHMS


@EVERY
@KINDS
def test_a_rerun_is_identical(algorithm, options, kind):
    identical(plain(algorithm, options, kind), trained(algorithm, options, kind))


@EVERY
@KINDS
def test_messages_and_states_survive_the_codec_and_are_counted_in_bytes(algorithm, options, kind):
    written = trained(algorithm, options, kind, through=Watched)
    identical(plain(algorithm, options, kind), written)
    # the bytes that the engine counted are those that were written
    _, _, engine, watched = written
    summary = engine.books.traffic.summary()
    assert summary["down"] == watched.down
    assert summary["up"] == watched.up


@EVERY
@KINDS
@pytest.mark.parametrize("cut", [1, 2, 3])
def test_going_on_from_bytes_is_the_uninterrupted_training(algorithm, options, kind, cut):
    identical(plain(algorithm, options, kind), trained(algorithm, options, kind, cut=cut))


class Peeking(Watched):
    """Clients that read every total before the server has it."""

    def sum(self, fn, messages):
        total = self.engine.sum(fn, messages)
        assert isinstance(total, SealedTotal)
        for field in dataclasses.fields(total.reply_class):
            with pytest.raises(SealedError):
                np.asarray(getattr(total, field.name))
        return total


@EVERY
def test_no_total_can_be_read_without_reveal(algorithm, options):
    trained(algorithm, options, "dense", through=Peeking)


@EVERY
def test_only_named_client_functions_run(algorithm, options):
    _, _, _, watched = trained(algorithm, options, "wide", through=Watched)
    assert watched.seen <= {fn.name for fn in algorithm.disclosure.functions}
    assert len({fn.name for fn in algorithm.disclosure.functions}) == len(
        algorithm.disclosure.functions
    )


class Mutated(Watched):
    """Clients whose functions must leave alone what they are given."""

    def _through(self, fn):
        def call(state, block, message, rng):
            before = codec.encode((state, message)), block.x.copy()
            found = fn.call(state, block, message, rng)
            assert codec.encode((state, message)) == before[0], f"{fn.name} changed its arguments"
            left = block.x != before[1]
            assert not (left.nnz if hasattr(left, "nnz") else left.any())
            return found

        return dataclasses.replace(fn, call=call)


@EVERY
@KINDS
def test_client_functions_leave_their_arguments_alone(algorithm, options, kind):
    trained(algorithm, options, kind, through=Mutated)


@EVERY
def test_vectors_reach_clients_sealed(algorithm, options):
    """What a message lays out by samples or features was never in the server's hands."""

    class Sealing(Watched):
        def _check(self, messages):
            for message in messages.values():
                for name, layout in layouts(type(message)):
                    value = getattr(message, name)
                    if layout in (Layout.SAMPLES, Layout.FEATURES, Layout.SELECTED):
                        assert value is None or isinstance(value, SealedField), name

        def ask(self, fn, messages):
            self._check(messages)
            return self.engine.ask(fn, messages)

        def sum(self, fn, messages):
            self._check(messages)
            return self.engine.sum(fn, messages)

    trained(algorithm, options, "wide", through=Sealing)


@EVERY
@pytest.mark.parametrize("kind", ["dense", "sparse", "classes"])
def test_the_loss_falls(algorithm, options, kind):
    blocks, labels = federation(algorithm, kind)
    made = algorithm.hyperparameters(**options)
    engine = Simulation({"train": (Schema.of(blocks, labels), blocks)}, 0)
    conclusion = train(algorithm, engine, initialise(algorithm, made, engine), 30)
    assert conclusion.info.primal is not None
    assert conclusion.info.primal < len(conclusion.weights)  # the hinge at w = 0 is 1


@EVERY
def test_the_models_objective_is_the_one_that_is_reported(algorithm, options):
    blocks, labels = federation(algorithm, "dense")
    made = algorithm.hyperparameters(**options)
    schema = Schema.of(blocks, labels)
    engine = Simulation({"train": (schema, blocks)}, 0)
    conclusion = train(algorithm, engine, initialise(algorithm, made, engine), ROUNDS)
    x, y = table(60, 8)
    w = np.empty(8)
    w[[int(str(name)[1:]) for name in schema.features.ids]] = conclusion.weights[0]
    loss = np.maximum(0, 1 - y * (x @ w)).mean()
    primal = loss + 0.5 * made.regularisation * w @ w
    assert made.loss == "hinge"
    assert conclusion.info.primal == pytest.approx(primal, rel=1e-10)


@EVERY
def test_client_scores_add_up_to_the_models(algorithm, options):
    blocks, labels = federation(algorithm, "dense")
    schema = Schema.of(blocks, labels)
    engine = Simulation({"train": (schema, blocks)}, 0)
    server = initialise(algorithm, algorithm.hyperparameters(**options), engine)
    conclusion = train(algorithm, engine, server, 3)
    total = np.zeros((1, len(schema.samples)))
    for name, state in engine.get_states().items():
        one = engine.block(name)
        once = one if algorithm.model.additive else one.counted_once()
        total[:, schema.samples.own(name)] += algorithm.model.predict(state, once)
    x, _ = table(60, 8)
    rows = schema.samples.ids
    columns = [int(str(name)[1:]) for name in schema.features.ids]
    expected = conclusion.weights @ x[np.ix_(rows, columns)].T
    np.testing.assert_allclose(total, expected, rtol=1e-9, atol=1e-11)


@EVERY
def test_hyperparameters_are_frozen_and_by_keyword(algorithm, options):
    kind = algorithm.hyperparameters
    with pytest.raises(dataclasses.FrozenInstanceError):
        kind().regularisation = 1.0
    parameters = inspect.signature(kind).parameters.values()
    assert all(one.kind is inspect.Parameter.KEYWORD_ONLY for one in parameters)
    assert all(one.default is not inspect.Parameter.empty for one in parameters)


@EVERY
def test_a_single_client_can_train(algorithm, options):
    x, y = table(40, 5)
    schema = Schema.of({"only": block(x, y, range(40), range(5))}, BINARY)
    engine = Simulation({"train": (schema, {"only": block(x, y, range(40), range(5))})}, 0)
    server = initialise(algorithm, algorithm.hyperparameters(**options), engine)
    conclusion = train(algorithm, engine, server, ROUNDS)
    assert conclusion.weights.shape == (1, 5)
    assert conclusion.info.primal < 1.0  # that of w = 0
