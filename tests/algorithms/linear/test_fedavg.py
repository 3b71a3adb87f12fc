"""Hybrid FedAvg against the same rounds written out in NumPy."""

import math

import numpy as np
import pytest
from scipy.sparse import csr_array

import federations
from intarsia.algorithms.linear import fedavg
from intarsia.algorithms.linear.fedavg import FEDAVG, FedAvg
from intarsia.core.block import Block, Labels
from intarsia.core.client_functions import RandomKey
from intarsia.core.schema import Schema
from intarsia.engines.simulation import Simulation
from intarsia.errors import ConvergenceError, ExperimentError, FederationError
from intarsia.maths.linear import losses, sdca
from intarsia.protocols import preprocessing

SEED = 7
LABELS = Labels("binary", ("no", "yes"))
LAYOUTS = pytest.mark.parametrize("layout", [np.ascontiguousarray, csr_array], ids=["dense", "csr"])


def table(samples=60, features=6, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(samples, features))
    return x, np.sign(x @ rng.normal(size=features) + 0.3 * rng.normal(size=samples))


def block(x, y, rows, columns, layout=np.ascontiguousarray, labels=True):
    names = tuple(f"f{c}" for c in columns)
    own = layout(x[np.ix_(rows, columns)])
    return Block(np.array(rows), names, own, y[rows] if labels else None)


def overlapping(x, y, layout=np.ascontiguousarray):
    """Return three clients: a and b share samples 20-29, b and c feature 3, a and c feature 0."""
    held = {
        "a": (range(30), [0, 1, 2]),
        "b": (range(20, 60), [2, 3]),
        "c": (range(30, 60), [0, 3, 4, 5]),
    }
    return {name: block(x, y, list(r), c, layout) for name, (r, c) in held.items()}


def started(options, blocks, labels=LABELS):
    engine, server = federations.started(FEDAVG, options, blocks, labels, SEED)
    return engine.schema("train"), engine, server


def train(engine, server, rounds, present=None):
    for number in range(1, rounds + 1):
        engine.begin_round(number, present(number) if present else None)
        server, _ = FEDAVG.round(server, engine, engine.key())
    engine.begin_round(rounds + 1)
    return server, FEDAVG.conclude(server, engine, engine.key())


def by_hand(options, x, y, blocks, rounds, present):
    """Return the pooled weights after rounds of descent and averaging, without a federation."""
    w, loss = np.zeros(x.shape[1]), losses.loss_code(options.loss)
    for number in range(1, rounds + 1):
        total, count = np.zeros_like(w), np.zeros_like(w)
        rate = options.a / (options.b + math.sqrt(number))
        for name in present(number):
            rows = blocks[name].samples
            columns = [int(feature[1:]) for feature in blocks[name].features]
            own, labels = x[np.ix_(rows, columns)], y[rows]
            key = RandomKey((SEED, number, 1, name, "local_descent")).generator()
            order, local = key.permutation(len(rows)), w[columns].copy()
            for i in order[: options.local_steps]:
                slope = losses.derivative(loss, own[i] @ local, labels[i])
                local -= rate * (options.regularisation * local + slope * own[i])
            total[columns] += local
            count[columns] += 1
        w = np.where(count > 0, total / np.maximum(count, 1), w)
    return w


@LAYOUTS
def test_overlapping_weights_are_averaged_over_the_clients_that_are_there(layout):
    x, y = table()
    blocks = overlapping(x, y, layout)
    options = FedAvg(local_steps=20, a=0.5, regularisation=0.1, loss="logistic")

    def present(number):
        return [("a", "b", "c"), ("a", "b"), ("c",), ("b", "c")][number % 4]

    _, engine, server = started(options, blocks)
    _, conclusion = train(engine, server, 6, present)
    expected = by_hand(options, x, y, blocks, 6, present)
    schema = Schema.of(blocks, LABELS)
    order = [int(name[1:]) for name in schema.features.ids]
    np.testing.assert_allclose(conclusion.weights[0], expected[order], atol=1e-12)


def test_the_certificate_is_the_objective_of_the_pooled_table():
    x, y = table()
    held = {"a": (range(40), [0, 1, 2, 3]), "b": (range(20, 60), [0, 1, 2, 3])}
    held |= {"c": (range(60), [3, 4, 5])}  # b and c both hold feature 3 of samples 20-59
    blocks = {name: block(x, y, list(r), c) for name, (r, c) in held.items()}
    options = FedAvg(local_steps=30, regularisation=0.1)
    schema, engine, server = started(options, blocks)
    _, conclusion = train(engine, server, 3)
    w = conclusion.weights[0][np.argsort([int(name[1:]) for name in schema.features.ids])]
    loss = np.maximum(0, 1 - y * (x @ w)).mean()
    assert conclusion.info.loss == pytest.approx(loss, abs=1e-12)
    assert conclusion.info.primal == pytest.approx(loss + 0.05 * w @ w, abs=1e-12)
    assert conclusion.info.dual is None


def test_client_scores_add_up_to_the_models():
    x, y = table()
    blocks = overlapping(x, y)
    schema, engine, server = started(FedAvg(local_steps=30), blocks)
    _, conclusion = train(engine, server, 2)
    w = conclusion.weights[0][np.argsort([int(name[1:]) for name in schema.features.ids])]
    total = np.zeros(60)
    seen = np.zeros((60, 6), bool)
    for name, state in engine.get_states().items():
        own = engine.block(name)
        total[own.samples] += FEDAVG.model.predict(state, own)[0]
        seen[np.ix_(own.samples, [int(feature[1:]) for feature in own.features])] = True
    np.testing.assert_allclose(total, (x * seen) @ w, atol=1e-12)


def test_clients_without_labels_neither_train_nor_count():
    x, y = table()
    rows = list(range(60))
    blocks = {
        "a": block(x, y, rows, range(6)),
        "b": block(x, y, rows, range(3), labels=False),
    }
    options = FedAvg(local_steps=60)
    schema, engine, server = started(options, blocks)
    _, conclusion = train(engine, server, 1)
    expected = by_hand(options, x, y, {"a": blocks["a"]}, 1, lambda _: ["a"])
    order = [int(name[1:]) for name in schema.features.ids]
    np.testing.assert_allclose(conclusion.weights[0], expected[order], atol=1e-12)


def test_clients_train_on_the_values_that_they_hold_where_another_lacks_one():
    """Such a value is not divided by its number of owners, and is not multiplied by it again."""
    x, y = table(12, 3)
    other = x.copy()
    other[3, 0] = np.nan
    every = range(12)
    blocks = {"a": block(x, y, every, [0, 1]), "b": block(other, y, every, [0, 2])}
    schema = Schema.of(blocks, LABELS)
    engine = Simulation({"train": (schema, blocks)}, 0)
    states = {name: preprocessing.initial(name, engine.block(name)) for name in engine.ids}
    engine.set_states(states)
    preprocessing.prepare(engine, {"train": schema}, standardise=False)
    state, own = engine.get_states()["a"], engine.block("a")
    once = preprocessing.prepared(state, "train", own).counted_once()
    shared, row = own.features.index("f0"), own.samples == 3
    np.testing.assert_allclose(once.x[:, shared] / own.x[:, shared], np.where(row, 1.0, 0.5))
    client = fedavg.init_client(FedAvg(), schema, "a", once)
    np.testing.assert_allclose(fedavg._restore_values(client, once), own.x, atol=1e-14)


def test_one_client_reaches_the_centralised_optimum():
    x, y = table(samples=200)
    options = FedAvg(loss="logistic", regularisation=0.1, local_steps=200, a=0.2)
    _, engine, server = started(options, {"a": block(x, y, list(range(200)), range(6))})
    _, conclusion = train(engine, server, 400)
    best = sdca.fit(x, y, loss=losses.LOGISTIC, regularisation=0.1, rng=np.random.default_rng(0))
    assert conclusion.info.primal == pytest.approx(best.primal, rel=1e-2)


def test_more_classes_are_trained_one_against_the_rest():
    x, _ = table(samples=120)
    classes = (x[:, 0] > 0) * 1.0 + (x[:, 1] > 0)
    labels = Labels("multiclass", ("low", "middle", "high"))
    blocks = {
        "a": block(x, classes, list(range(120)), range(3)),
        "b": block(x, classes, list(range(120)), range(3, 6)),
    }
    _, engine, server = started(FedAvg(local_steps=120), blocks, labels)
    _, conclusion = train(engine, server, 20)
    assert conclusion.weights.shape == (3, 6)
    predicted = (x @ conclusion.weights.T).argmax(axis=1)
    assert (predicted == classes).mean() > 0.6


def test_a_rerun_is_identical():
    x, y = table()
    results = []
    for _ in range(2):
        _, engine, server = started(FedAvg(batch=4), overlapping(x, y))
        results.append(train(engine, server, 5)[1].weights)
    np.testing.assert_array_equal(*results)


def test_overlong_steps_end_in_an_error_that_names_the_cause():
    x, y = table()
    options = FedAvg(loss="squared", a=1e6)
    _, engine, server = started(options, overlapping(1e6 * x, y))
    with (
        np.errstate(over="ignore", invalid="ignore"),
        pytest.raises(ConvergenceError, match=r"Lower algorithm\.a"),
    ):
        train(engine, server, 60)


@pytest.mark.parametrize(
    ("key", "value"),
    [("regularisation", 0.0), ("a", -1.0), ("b", -0.1), ("local_steps", 0), ("batch", 0)],
)
def test_impossible_settings_are_refused(key, value):
    with pytest.raises(ExperimentError, match=rf"algorithm\.{key} is {value}"):
        FedAvg(**{key: value})


def test_a_round_is_one_exchange():
    x, y = table()
    _, engine, server = started(FedAvg(), overlapping(x, y))
    before = engine.books.traffic.exchanges
    engine.begin_round(1)
    FEDAVG.round(server, engine, engine.key())
    assert engine.books.traffic.exchanges == before + 1


def test_labels_without_a_column_beside_them_are_refused():
    x, y = table()
    rows = np.arange(60)
    blocks = {
        "bank": block(x, y, rows, []),
        "shop": block(x, y, rows, range(6), labels=False),
    }
    with pytest.raises(FederationError, match=r"No client with labels has a feature .*'bank'"):
        started(FedAvg(), blocks)
    started(FedAvg(), {**blocks, "bank": block(x, y, rows, [0])})
