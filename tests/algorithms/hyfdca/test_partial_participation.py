"""The proximal rounds of HyFDCA, with clients away, against the centralised optimum."""

import numpy as np
import pytest
from scipy.sparse import csr_array

import federations
from federations import ON_SIGNS
from intarsia.algorithms.hyfdca.algorithm import HYFDCA
from intarsia.algorithms.hyfdca.state import HyFDCA
from intarsia.core.block import Block, Labels
from intarsia.errors import ConvergenceError, ExperimentError
from intarsia.maths.linear import losses, sdca

SEED = 11
RIDGE = 0.02
LABELS = Labels("binary", ("no", "yes"))


def table(samples=80, features=8, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(samples, features)) + 0.5
    return x, np.sign(x @ rng.normal(size=features) + rng.normal(size=samples))


def split(x, y, rows, columns, layout=np.ascontiguousarray, shared=0):
    """Return a grid of clients; neighbours share `shared` samples and features."""
    blocks = {}
    for r, held in enumerate(np.array_split(np.arange(len(x)), rows)):
        for c, names in enumerate(np.array_split(np.arange(x.shape[1]), columns)):
            own = np.arange(held[0], min(held[-1] + 1 + shared, len(x)))
            seen = np.arange(names[0], min(names[-1] + 1 + min(shared, 1), x.shape[1]))
            features = tuple(f"f{j}" for j in seen)
            blocks[f"r{r}c{c}"] = Block(own, features, layout(x[np.ix_(own, seen)]), y[own])
    return blocks


def started(options, blocks, labels=LABELS):
    engine, server = federations.started(HYFDCA, options, blocks, labels, SEED)
    return engine.schema("train"), engine, server


def train(options, blocks, rounds, present, labels=LABELS):
    schema, engine, server = started(options, blocks, labels)
    for number in range(1, rounds + 1):
        engine.begin_round(number, present(number, list(blocks)))
        server, _ = HYFDCA.round(server, engine, engine.key())
    engine.begin_round(rounds + 1)
    conclusion = HYFDCA.conclude(server, engine, engine.key())
    order = np.argsort(schema.features.ids)
    return conclusion.info, conclusion.weights[:, order], engine


def half(number, names):
    return list(np.random.default_rng(number).permutation(names)[: len(names) // 2])


def one(number, names):
    return [names[number % len(names)]]


def optimum(x, y, loss):
    return sdca.fit(
        x,
        y,
        loss=losses.loss_code(loss),
        regularisation=RIDGE,
        tolerance=1e-8,
        epochs=5000,
        rng=np.random.default_rng(0),
    )


@pytest.mark.parametrize(
    ("loss", "layout"),
    [
        pytest.param(loss, np.ascontiguousarray, marks=[pytest.mark.slow] * (loss != "logistic"))
        for loss in ON_SIGNS
    ]
    + [("hinge", csr_array)],
    ids=[*ON_SIGNS, "csr"],
)
def test_half_of_the_clients_at_a_time_reach_the_centralised_optimum(loss, layout):
    x, y = table()
    options = HyFDCA(loss=loss, regularisation=RIDGE)
    info, weights, _ = train(options, split(x, y, 2, 2, layout), 80, half)
    best = optimum(x, y, loss)
    assert info.primal == pytest.approx(best.primal, rel=1e-2)
    assert info.primal >= best.primal * (1 - 1e-6)
    assert info.dual <= best.primal * (1 + 1e-6)
    z = weights @ x.T
    pooled = losses.value(losses.loss_code(loss), z, y).mean() + RIDGE / 2 * np.sum(weights**2)
    assert info.primal == pytest.approx(pooled, abs=1e-12)


@pytest.mark.parametrize(
    "grid",
    [
        pytest.param((4, 1), marks=pytest.mark.slow),
        pytest.param((1, 4), marks=pytest.mark.slow),
        (2, 2),
    ],
    ids=["rows", "columns", "grid"],
)
def test_one_client_at_a_time_reaches_the_optimum(grid):
    x, y = table()
    info, _, _ = train(HyFDCA(regularisation=RIDGE), split(x, y, *grid), 150, one)
    assert info.primal == pytest.approx(optimum(x, y, "hinge").primal, rel=2e-2)


def test_shared_samples_and_features_count_once():
    x, y = table()
    info, _, _ = train(HyFDCA(regularisation=RIDGE), split(x, y, 2, 2, shared=10), 80, half)
    assert info.primal == pytest.approx(optimum(x, y, "hinge").primal, rel=1e-2)


def test_the_certificate_falls():
    x, y = table()
    options, blocks = HyFDCA(loss="logistic", regularisation=RIDGE), split(x, y, 2, 2)
    gaps = [train(options, blocks, rounds, half)[0].gap_relative for rounds in (10, 40, 120)]
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[2] < 1e-2


@pytest.mark.parametrize("method", ["auto", "ascent"])
def test_clients_may_go_away_in_the_middle(method):
    x, y = table()

    def present(number, names):
        return None if number <= 3 else half(number, names)

    options = HyFDCA(regularisation=RIDGE, method=method)
    info, _, _ = train(options, split(x, y, 2, 2), 60, present)
    assert info.primal == pytest.approx(optimum(x, y, "hinge").primal, rel=1e-2)


def test_clients_without_labels_help():
    x, y = table()
    blocks = split(x, y, 2, 2)
    for name in ("r0c1", "r1c1"):
        own = blocks[name]
        blocks[name] = Block(own.samples, own.features, own.x)
    info, _, _ = train(HyFDCA(regularisation=RIDGE), blocks, 120, half)
    assert info.primal == pytest.approx(optimum(x, y, "hinge").primal, rel=2e-2)


def test_more_classes_are_trained_one_against_the_rest():
    x, _ = table(samples=150)
    classes = (x[:, 0] > 0.5) * 1.0 + (x[:, 1] > 0.5)
    labels = Labels("multiclass", ("low", "middle", "high"))
    options = HyFDCA(loss="logistic", regularisation=RIDGE)
    info, weights, _ = train(options, split(x, classes, 2, 2), 80, half, labels)
    signs = np.where(classes == np.arange(3)[:, None], 1.0, -1.0)
    assert weights.shape == (3, 8)
    assert info.primal == pytest.approx(optimum(x, signs, "logistic").primal, rel=1e-2)


def test_client_scores_add_up_to_the_models():
    x, y = table()
    _, weights, engine = train(HyFDCA(regularisation=RIDGE), split(x, y, 2, 2), 5, half)
    total = np.zeros(len(x))
    for name, state in engine.get_states().items():
        own = engine.block(name)
        total[own.samples] += HYFDCA.model.predict(state, own)[0]
    np.testing.assert_allclose(total, x @ weights[0], atol=1e-12)


def test_a_rerun_is_identical():
    x, y = table()
    blocks = split(x, y, 2, 2)
    first, second = (train(HyFDCA(regularisation=RIDGE), blocks, 6, half)[1] for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_the_server_reads_few_numbers_before_the_end(monkeypatch):
    x, y = table()
    _, engine, server = started(HyFDCA(regularisation=RIDGE), split(x, y, 2, 2))
    seen = []
    reveal = engine.reveal

    def watched(total):
        value = reveal(total)
        seen.append(np.size(value))
        return value

    monkeypatch.setattr(engine, "reveal", watched)
    engine.begin_round(1, ["r0c0", "r1c1"])
    HYFDCA.round(server, engine, engine.key())
    assert seen
    assert max(seen) <= 3


def test_steps_that_overshoot_end_in_an_error_that_names_the_remedy():
    x, y = table()
    options = HyFDCA(loss="squared", regularisation=1e-6, proximal=1e-9)
    with (
        np.errstate(over="ignore", invalid="ignore"),
        pytest.raises(ConvergenceError, match=r"raise algorithm\.proximal|Raise algorithm"),
    ):
        train(options, split(x, y, 4, 4), 25, half)


@pytest.mark.parametrize(("key", "value"), [("proximal", 0.0), ("ascents", 0)])
def test_impossible_settings_are_refused(key, value):
    with pytest.raises(ExperimentError, match=rf"algorithm\.{key} is {value}"):
        HyFDCA(**{key: value})
