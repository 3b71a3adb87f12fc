"""The elastic net in HyFDCA: optimum, zeros and certificate, against solvers of other libraries."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize
from scipy.sparse import csr_array
from scipy.special import expit
from sklearn.linear_model import ElasticNet, LogisticRegression

import intarsia
from federations import BINARY, ON_SIGNS, in_order, rectangles, secrets_of, started, table, train
from intarsia.algorithms.hyfdca.algorithm import HYFDCA
from intarsia.algorithms.hyfdca.state import HyFDCA
from intarsia.core.block import Labels
from intarsia.core.schema import Schema
from intarsia.core.settings import hyperparameters
from intarsia.engines import codec
from intarsia.engines.simulation import Simulation
from intarsia.errors import ExperimentError
from intarsia.maths.linear import elastic_net, losses
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.settings import Privacy

EVERY_LOSS = pytest.mark.parametrize("loss", ON_SIGNS)
CLASSES = Labels("multiclass", ("a", "b", "c"))


def sparse_truth(samples, features, seed=0):
    """Return a table of which few columns tell the label."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(samples, features)) + 0.5 * rng.normal(size=(samples, 1))
    w = rng.normal(size=features) * (np.arange(features) % 4 == 0)
    return x, np.where(x @ w + 0.5 * rng.normal(size=samples) > 0, 1.0, -1.0)


def each_loss(loss, z, y):
    """Return losses and their derivatives, written out."""
    slack = np.maximum(0, 1 - y * z)
    if loss == "hinge":
        return slack, -y * (slack > 0)
    if loss == "squared_hinge":
        return slack**2, -2 * y * slack
    if loss == "logistic":
        return np.logaddexp(0, -y * z), -y * expit(-y * z)
    return 0.5 * (z - y) ** 2, z - y


def objective(x, y, w, loss, weight, ratio, weights=1.0):
    data = (weights * each_loss(loss, x @ w, y)[0]).mean()
    return data + weight * ((1 - ratio) / 2 * w @ w + ratio * np.abs(w).sum())


def least(x, y, loss, weight, ratio, weights=1.0):
    """Return a lower bound of the optimum that it all but meets, and weights near it.

    Smooth losses by FISTA in the primal; the hinge by L-BFGS-B in its dual.
    """
    samples, features = x.shape
    weights = np.broadcast_to(np.asarray(weights, float), (samples,))
    options = {"maxiter": 100_000, "maxfun": 1_000_000, "ftol": 1e-16, "gtol": 1e-11, "maxcor": 50}
    ridge, pull = weight * (1 - ratio), weight * ratio
    if loss == "hinge":

        def dual(beta):
            u = x.T @ (weights * y * beta) / samples
            kept = np.sign(u) * np.maximum(np.abs(u) - pull, 0)
            slope = weights * y * (x @ kept) / (ridge * samples) - weights / samples
            return kept @ kept / (2 * ridge) - (weights * beta).mean(), slope

        found = minimize(
            dual, np.full(samples, 0.5), jac=True, method="L-BFGS-B",
            bounds=[(0, 1)] * samples, options=options,
        )  # fmt: skip
        u = x.T @ (weights * y * found.x) / samples
        return -found.fun, np.sign(u) * np.maximum(np.abs(u) - pull, 0) / ridge

    curved = {"squared_hinge": 2.0, "logistic": 0.25, "squared": 1.0}[loss]
    step = 1 / (curved * np.linalg.norm(x * np.sqrt(weights)[:, None], 2) ** 2 / samples + ridge)
    w = ahead = np.zeros(features)
    momentum = 1.0
    for _ in range(30_000):
        slope = x.T @ (weights * each_loss(loss, x @ ahead, y)[1]) / samples + ridge * ahead
        moved = ahead - step * slope
        new = np.sign(moved) * np.maximum(np.abs(moved) - step * pull, 0)
        if (ahead - new) @ (new - w) > 0:  # restart (O'Donoghue and Candès 2015)
            momentum = 1.0
        next_momentum = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        ahead = new + (momentum - 1) / next_momentum * (new - w)
        if np.abs(new - w).max() <= 1e-14:
            break
        w, momentum = new, next_momentum
    return objective(x, y, w, loss, weight, ratio, weights) * (1 - 1e-9), w


def fitted(x, y, options, blocks, labels=BINARY, *, mode="plain", tolerance=1e-7, rounds=150):
    """Return the conclusion, the weights in the order of the columns, and the rounds taken."""
    schema = Schema.of(blocks, labels)
    sealing = None
    if mode != "plain":
        settings = Privacy(mode=mode)
        sealing = modes.sealing(
            settings, list(blocks), modes.keys(settings, list(blocks), None, "test")
        )
    engine = Simulation({"train": (schema, blocks)}, 3, sealing, secrets=secrets_of(blocks))
    engine.count_once()
    engine.begin(HYFDCA, options)
    key = engine.key("init")
    server = HYFDCA.setup(HYFDCA.init_server(options, schema, key), engine, key)
    conclusion = train(HYFDCA, engine, server, rounds, tolerance=tolerance)
    return conclusion, in_order(schema, conclusion.weights), engine.books.round


def check(x, y, w, info, loss, weight, ratio, *, weights=1.0, close=1e-6):
    """Check the certificate against the truth: it bounds the error, and is the model's own."""
    bound, best = least(x, y, loss, weight, ratio, weights)
    primal = objective(x, y, w, loss, weight, ratio, weights)
    assert info.primal == pytest.approx(primal, rel=1e-9)
    assert info.gap_relative <= close
    assert info.primal >= bound * (1 - 1e-7)
    assert info.dual <= objective(x, y, best, loss, weight, ratio, weights) * (1 + 1e-9)
    assert (info.primal - bound) / info.primal <= close + 1e-7
    return best


# as weak as the other solvers go: the hinge's dual is too steep for L-BFGS-B below 0.01
STRENGTHS = [(0.1, 0.95), (0.01, 0.5), (0.01, 0.1), (1e-4, 0.5)]
PROBLEMS = [(loss, *one) for loss in ON_SIGNS for one in STRENGTHS[: 3 + (loss != "hinge")]]


@pytest.mark.parametrize(("loss", "weight", "ratio"), PROBLEMS)
def test_the_optimum_is_certified(loss, weight, ratio):
    x, y = sparse_truth(120, 17)
    options = HyFDCA(loss=loss, regularisation=weight, l1_ratio=ratio)
    blocks = rectangles(x, y, 2, 2, shared_rows=7, shared_columns=3)
    conclusion, w, rounds = fitted(x, y, options, blocks, tolerance=1e-6)
    check(x, y, w[0], conclusion.info, loss, weight, ratio)
    assert rounds <= 60


@pytest.mark.parametrize("loss", ["huber", "quantile", "poisson", "gamma"])
@pytest.mark.parametrize("mode", [pytest.param("plain", marks=pytest.mark.slow), "masked"])
def test_losses_of_numbers_have_it_too(loss, mode):
    x, _ = sparse_truth(120, 12)
    rng = np.random.default_rng(2)
    level = np.exp(np.clip(x[:, 0] - 0.5 * x[:, 4], -2, 2))
    y = {
        "poisson": lambda: rng.poisson(level) * 1.0,
        "gamma": lambda: level * rng.gamma(3.0, 1 / 3, 120),
    }.get(loss, lambda: x[:, 0] - 0.5 * x[:, 4] + rng.standard_t(2, 120))()
    weight, ratio = 0.05, 0.6
    options = HyFDCA(loss=loss, regularisation=weight, l1_ratio=ratio, quantile=0.7)
    given = rectangles(x, y, 2, 2, shared_rows=7, shared_columns=3)
    labels = Labels("regression", ())
    conclusion, w, _ = fitted(x, y, options, given, labels, mode=mode, tolerance=1e-6)
    code, shape = losses.loss_code(loss), losses.shape_of(options)
    ridge, pull = weight * (1 - ratio), weight * ratio

    def whole(parts):  # w = p - q, neither below 0
        w = parts[:12] - parts[12:]
        slope = x.T @ losses.derivative(code, x @ w, y, shape=shape) / 120 + ridge * w
        value = losses.value(code, x @ w, y, shape=shape).mean() + ridge / 2 * w @ w
        return value + pull * parts.sum(), np.concatenate([slope + pull, pull - slope])

    def dual(alpha):
        u = x.T @ alpha / 120
        kept = np.sign(u) * np.maximum(np.abs(u) - pull, 0)
        return kept @ kept / (2 * ridge) - (alpha * y).mean(), (x @ kept / ridge - y) / 120

    goal = {"ftol": 1e-15, "gtol": 1e-10, "maxiter": 10**5, "maxfun": 10**6}
    if loss == "quantile":
        how = {"bounds": [(-0.3, 0.7)] * 120, "options": goal}
        best = -minimize(dual, np.zeros(120), jac=True, method="L-BFGS-B", **how).fun
    else:
        how = {"bounds": [(0, None)] * 24, "options": goal}
        best = minimize(whole, np.zeros(24), jac=True, method="L-BFGS-B", **how).fun
    found = whole(np.concatenate([np.maximum(w[0], 0), np.maximum(-w[0], 0)]))[0]
    assert conclusion.info.primal == pytest.approx(found, rel=1e-9)
    assert found == pytest.approx(best, rel=2e-6)
    assert conclusion.info.gap_relative <= 1e-6
    assert 0 < (w[0] == 0).sum() < 12


def test_a_small_penalty_that_the_rounding_of_shares_hides_is_solved():
    """The levels' columns are linearly dependent: along that, the ridge of 2.6e-8 alone bends."""
    rng = np.random.default_rng(42)
    x = rng.standard_normal((33, 8))
    chance = np.arange(1, 41) ** -1.3
    x = np.hstack([x, np.eye(40)[rng.choice(40, 33, p=chance / chance.sum())]])
    score = x @ rng.standard_normal(48)
    rng.random(48)
    deviation = x.std(axis=0)
    x = (x - x.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
    score = score / np.abs(score).mean() + rng.logistic(size=33)
    y = np.where(score > np.quantile(score, rng.uniform(0.3, 0.9)), 1.0, -1.0)
    options = HyFDCA(loss="logistic", regularisation=2.558102339127879e-6, l1_ratio=0.99)
    engine, server = started(HYFDCA, options, rectangles(x, y, 1, 2))
    end = train(HYFDCA, engine, server, 80, tolerance=1e-6)
    assert end.info.gap_relative <= 1e-6
    w = in_order(engine.schema("train"), end.weights)[0]
    primal = objective(x, y, w, "logistic", 2.558102339127879e-6, 0.99)
    assert end.info.primal == pytest.approx(primal, rel=1e-9)
    theirs = least_of_halves(x, y, 2.558102339127879e-6, 0.99)
    assert end.info.dual <= theirs * (1 + 1e-9)
    assert primal <= theirs * (1 + 1.1e-6)


@pytest.mark.parametrize("mode", ["plain", "masked"])
@pytest.mark.parametrize("ratio", [0.0, 0.99])
def test_a_run_that_is_cut_off_ends_with_no_worse_weights_than_zeros(mode, ratio):
    rng = np.random.default_rng(3)
    x = np.hstack([rng.standard_t(1.5, (80, 6)), np.eye(30)[rng.integers(30, size=80)]])
    x = (x - x.mean(axis=0)) / np.maximum(x.std(axis=0), 0.1)
    y = np.where(rng.standard_normal(80) > 0, 1.0, -1.0)
    options = HyFDCA(loss="hinge", regularisation=1e-7, l1_ratio=ratio)
    for rounds in range(1, 6):
        found, w, _ = fitted(x, y, options, rectangles(x, y, 2, 2), mode=mode, rounds=rounds)
        primal = objective(x, y, w[0], "hinge", 1e-7, ratio)
        assert found.info.primal == pytest.approx(primal, rel=1e-5)
        assert primal <= 1.0  # the loss of zeros
        assert any("All weights of the model are 0" in note for note in found.notes) != w.any()


def test_a_run_that_is_cut_off_at_worse_weights_than_zeros_ends_with_zeros():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((120, 3)) * [300.0, 1.0, 1e-2] + [2.5e5, 0.0, 0.0]
    y = (x[:, 0] - 2.5e5) / 300 + x[:, 1] + rng.standard_t(2, 120)
    given = {"loss": "huber", "huber_delta": 0.01, "regularisation": 0.07, "l1_ratio": 0.5}
    blocks, labels = rectangles(x, y, 4, 2, shared_rows=3), Labels("regression", ())
    found, w, _ = fitted(x, y, HyFDCA(**given), blocks, labels, rounds=3)
    zeros = losses.value(losses.HUBER, np.zeros((1, 120)), y[None], shape=0.01).mean()
    assert not w.any()
    assert found.info.primal == pytest.approx(zeros, rel=1e-12)
    assert any("All weights of the model are 0" in note for note in found.notes)
    found, w, _ = fitted(x, y, HyFDCA(**given), blocks, labels, tolerance=1e-6)
    assert found.info.gap_relative <= 1e-6
    assert found.info.primal < zeros


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_sealed_sums_end_with_zeros_too_where_weights_are_worse(rounds):
    rng = np.random.default_rng(6)
    sizes, offsets = 10.0 ** rng.uniform(-2, 2.5, 5), 10.0 ** rng.uniform(0, 3, 5)
    x = rng.standard_normal((60, 5)) * sizes + offsets
    y = x @ rng.standard_normal(5) / np.abs(x).mean() + rng.standard_t(2, 60)
    options = HyFDCA(loss="huber", huber_delta=0.01, regularisation=5e-5, l1_ratio=0.5)
    given = rectangles(x, y, 2, 2, shared_rows=3), Labels("regression", ())
    found, w, _ = fitted(x, y, options, *given, mode="masked", rounds=rounds)
    zeros = losses.value(losses.HUBER, np.zeros((1, 60)), y[None], shape=0.01).mean()
    assert not w.any()
    assert found.info.primal == pytest.approx(zeros, rel=1e-5)
    assert any("All weights of the model are 0" in note for note in found.notes)


def test_large_weights_are_not_taken_for_zeros_where_the_penalty_is_little_of_the_objective():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((100, 30)) * 10 ** rng.uniform(-1, 1, 30)
    y = 1e12 * (x @ rng.standard_normal(30) / np.abs(x).mean() + rng.standard_t(1.5, 100))
    given = {"loss": "huber", "huber_delta": 1e11, "regularisation": 4e-3, "l1_ratio": 0.1}
    blocks = rectangles(x, y, 2, 2)
    found, w, _ = fitted(x, y, HyFDCA(**given), blocks, Labels("regression", ()), tolerance=1e-6)
    assert found.info.phase == "interior point"
    assert found.info.gap_relative <= 1e-6
    losses_of = losses.value(losses.HUBER, (x @ w[0])[None], y[None], shape=1e11)
    penalty = 4e-3 * (0.45 * w[0] @ w[0] + 0.1 * np.abs(w[0]).sum())
    assert found.info.primal == pytest.approx(losses_of.mean() + penalty, rel=1e-9)


@pytest.mark.parametrize("seed", [1, 8])
def test_small_weights_of_columns_of_large_values_are_no_zeros(seed):
    """Newton's weights are far away where its model's are 0, and a small one counts as much."""
    rng = np.random.default_rng(seed)
    sizes = np.array([300.0, 75.0])
    deviations = rng.standard_normal((120, 2))
    y = deviations @ rng.standard_normal(2) + rng.standard_t(2, 120)
    x = deviations * sizes + [2.5e5, 0.0]
    given = {"loss": "huber", "huber_delta": 0.01, "regularisation": 0.07, "l1_ratio": 0.5}
    blocks = rectangles(x, y, 2, 2, shared_rows=3)
    found, w, _ = fitted(x, y, HyFDCA(**given), blocks, Labels("regression", ()), tolerance=1e-6)

    def value(w):
        loss = losses.value(losses.HUBER, x @ w, y, shape=0.01).mean()
        return loss + 0.0175 * w @ w + 0.035 * np.abs(w).sum()

    def turned(both):  # the second column's size, and the first where it bends as little
        return value(w[0] + [both[0] * 1e-6, both[1] * 1e-2])

    goal = {"xatol": 1e-9, "fatol": 1e-16, "maxiter": 10**4}
    best = minimize(turned, np.zeros(2), method="Nelder-Mead", options=goal).fun
    own = value(w[0])
    assert w.all()
    assert found.info.primal == pytest.approx(own, rel=1e-9)
    assert found.info.gap_relative <= 1e-6
    assert found.info.dual <= best * (1 + 1e-9)
    assert own <= best * (1 + 1e-6)


def least_of_halves(x, y, weight, ratio):
    """Return the logistic optimum by L-BFGS-B in u and v of w = u - v, neither below 0."""

    def value(both):
        u, v = np.split(both, 2)
        w, z = u - v, x @ (u - v)
        slope = x.T @ each_loss("logistic", z, y)[1] / len(y) + weight * (1 - ratio) * w
        penalty = weight * ((1 - ratio) / 2 * w @ w + ratio * both.sum())
        loss = each_loss("logistic", z, y)[0].mean()
        return loss + penalty, np.concatenate([slope, -slope]) + weight * ratio

    both = np.zeros(2 * x.shape[1])
    options = {"maxiter": 100_000, "maxfun": 1_000_000, "ftol": 1e-16, "gtol": 1e-12, "maxcor": 50}
    bounds = [(0, None)] * len(both)
    return minimize(value, both, jac=True, method="L-BFGS-B", bounds=bounds, options=options).fun


@pytest.mark.parametrize("grid", [(1, 1), (1, 3), (3, 1), (2, 3)])
@pytest.mark.parametrize("ratio", [0.3, 0.9])
def test_weights_and_zeros_are_those_of_scikit_learn(grid, ratio):
    x, y = sparse_truth(150, 20)
    y = y + 0.1 * x[:, 3]
    theirs = ElasticNet(alpha=0.1, l1_ratio=ratio, fit_intercept=False, tol=1e-12, max_iter=10**6)
    truth = theirs.fit(x, y).coef_
    options = HyFDCA(loss="squared", regularisation=0.1, l1_ratio=ratio)
    blocks = rectangles(x, y, *grid)
    _, w, _ = fitted(x, y, options, blocks, Labels("regression", ()), tolerance=1e-9)
    assert w[0] == pytest.approx(truth, abs=1e-4)
    assert 0 < (truth == 0).sum() < 20
    assert np.array_equal(w[0] == 0, truth == 0)


@pytest.mark.parametrize("mode", ["plain", "masked", "ckks"])
def test_the_logistic_loss_has_the_zeros_of_saga_in_every_mode(mode):
    x, y = sparse_truth(150, 12)
    theirs = LogisticRegression(
        solver="saga", l1_ratio=0.5, C=1 / (0.05 * 150), fit_intercept=False,
        tol=1e-12, max_iter=100_000,
    )  # fmt: skip
    truth = theirs.fit(x, y).coef_[0]
    options = HyFDCA(loss="logistic", regularisation=0.05, l1_ratio=0.5)
    blocks = rectangles(x, y, 2, 2, shared_rows=9, shared_columns=2)
    _, w, _ = fitted(x, y, options, blocks, mode=mode, tolerance=1e-9)
    assert w[0] == pytest.approx(truth, abs=2e-4)
    assert (truth == 0).any()
    assert np.array_equal(w[0] == 0, truth == 0)


@pytest.mark.parametrize(
    ("loss", "features"),
    [("hinge", 40), ("squared", 40), ("squared_hinge", 600), ("logistic", 600)],
)
def test_conjugate_gradients_certify_sparse_tables(loss, features):
    rng = np.random.default_rng(2)
    x = (rng.random((200, features)) < 0.05) * 1.0
    y = np.where(x[:, : features // 4] @ rng.normal(size=features // 4) > 0, 1.0, -1.0)
    options = HyFDCA(loss=loss, regularisation=0.02, l1_ratio=0.6, frame=False)
    blocks = rectangles(csr_array(x), y, 2, 2, shared_rows=9, shared_columns=3)
    conclusion, w, rounds = fitted(x, y, options, blocks, tolerance=1e-6)
    check(x, y, w[0], conclusion.info, loss, 0.02, 0.6)
    assert (w == 0).any()
    assert rounds <= 100


@EVERY_LOSS
def test_weights_of_rows_count(loss):
    x, y = sparse_truth(90, 9)
    weights = np.random.default_rng(1).uniform(0.2, 3.0, 90)
    weights /= weights.mean()
    blocks = rectangles(x, y, 2, 2, shared_rows=5)
    blocks = {name: replace(one, weights=weights[one.samples]) for name, one in blocks.items()}
    options = HyFDCA(loss=loss, regularisation=0.05, l1_ratio=0.5)
    labels = replace(BINARY, weighted=True)
    conclusion, w, _ = fitted(x, y, options, blocks, labels, tolerance=1e-6)
    check(x, y, w[0], conclusion.info, loss, 0.05, 0.5, weights=weights)


def test_correlated_columns_are_certified_in_few_rounds():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 12)) @ rng.normal(size=(12, 60)) + 0.1 * rng.normal(size=(300, 60))
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    y = np.where(x[:, :5] @ [1, -1, 1, -1, 0.5] + rng.normal(size=300) > 0, 1.0, -1.0)
    options = HyFDCA(loss="squared_hinge", regularisation=1e-3, l1_ratio=0.95)
    conclusion, w, rounds = fitted(x, y, options, rectangles(x, y, 2, 2), tolerance=1e-6)
    check(x, y, w[0], conclusion.info, "squared_hinge", 1e-3, 0.95)
    assert rounds <= 60


def test_every_class_has_zeros_of_its_own():
    x, _ = sparse_truth(150, 10)
    classes = np.argmax(np.stack([x[:, 0], x[:, 4], x[:, 7]]), axis=0) + 0.0
    options = HyFDCA(loss="logistic", regularisation=0.05, l1_ratio=0.7)
    blocks = rectangles(x, classes, 2, 2)
    _, w, _ = fitted(x, classes, options, blocks, CLASSES, tolerance=1e-9)
    for c in range(3):
        y = np.where(classes == c, 1.0, -1.0)
        _, best = least(x, y, "logistic", 0.05, 0.7)
        assert w[c] == pytest.approx(best, abs=2e-4)
    assert len({tuple(row == 0) for row in w}) > 1


def test_a_penalty_above_the_largest_gradient_leaves_only_zeros():
    x, y = sparse_truth(80, 6)
    largest = np.abs(x.T @ y / 80 / 2).max()  # of the logistic loss at zero weights
    blocks = rectangles(x, y, 2, 2)
    for weight, zeros in ((1.01 * largest / 0.9, 6), (0.99 * largest / 0.9, 5)):
        options = HyFDCA(loss="logistic", regularisation=weight, l1_ratio=0.9)
        found, w, _ = fitted(x, y, options, blocks, tolerance=1e-10)
        assert (w == 0).sum() == zeros
        assert any("no other model has a smaller" in note for note in found.notes) == (zeros == 6)


def test_without_it_no_bit_changes():
    x, y = table(60, 6)
    found = []
    for options in (HyFDCA(loss="hinge"), HyFDCA(loss="hinge", l1_ratio=0.0)):
        engine, server = started(HYFDCA, options, rectangles(x, y, 2, 2))
        found.append(train(HYFDCA, engine, server, 20, tolerance=1e-6).weights)
    assert np.array_equal(*found)
    assert HyFDCA(regularisation=0.3).ridge == 0.3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"l1_ratio": 1.0}, "set l1_ratio below 1, e.g. 0.99"),
        ({"l1_ratio": 1.5}, "is 1.5, and it is the share of absolute weights"),
        ({"l1_ratio": 1e-320}, "which float64 does not tell from 0; set it to 0, or to 1e-12"),
        ({"lambda": 1.0}, "use 'regularisation', as it is called here"),
        ({"l1_ratio": -0.1}, "algorithm.l1_ratio is -0.1"),
        ({"l1_ratio": 0.5, "errors": True, "loss": "logistic"}, "standard errors"),
        ({"l1_ratio": 0.5, "method": "ascent"}, "algorithm.method"),
        ({"l1_ratio": 0.5, "system": "rows"}, "algorithm.system"),
    ],
)
def test_what_cannot_be_is_refused(options, said):
    with pytest.raises(ExperimentError, match=said):
        hyperparameters(HyFDCA, options)


def test_rounds_without_some_clients_are_refused():
    x, y = table(60, 6)
    options = HyFDCA(loss="logistic", l1_ratio=0.5)
    engine, server = started(HYFDCA, options, rectangles(x, y, 2, 2))
    engine.begin_round(1, engine.schema("train").clients[1:])
    with pytest.raises(ExperimentError, match="all clients"):
        HYFDCA.round(server, engine, engine.key())


def test_the_smoothed_slope_is_that_of_its_largest_value():
    w, centre, stiff, limit = np.array([[-2.0, 0.1, 3.0]]), np.array([[0.2, -0.1, 0.3]]), 0.5, 0.4
    slopes = elastic_net.slopes_along(
        w, np.ones((1, 3)), centre, np.array([stiff]), limit, np.zeros((1, 1))
    )[0, :, 0]
    grid = np.linspace(-limit, limit, 100_001)
    for j in range(3):
        best = grid[np.argmax(grid * w[0, j] - (grid - centre[0, j]) ** 2 / (2 * stiff))]
        assert slopes[j] == pytest.approx(w[0, j] + best, abs=1e-5)


def test_soft_thresholding_is_the_conjugates_slope():
    v = np.array([-3.0, -0.5, 0.0, 0.5, 2.0])
    assert np.array_equal(elastic_net.soft_threshold(v, 0.5), [-2.5, 0.0, 0.0, 0.0, 1.5])


def two_tables(samples=160, features=10):
    """Return a table's columns at two parties, the first with the labels; and the pooled table."""
    x, y = sparse_truth(samples, features)
    labels = np.where(y > 0, "yes", "no")
    names = [f"c{j}" for j in range(features)]
    whole = pd.DataFrame(x, columns=names).assign(id=range(samples))
    first = whole[["id", *names[:4]]].assign(label=labels)
    return {"first": first, "second": whole[["id", *names[4:]]]}, x, y


def test_a_run_lists_the_zeros_and_is_compared_with_models_of_the_same_penalty():
    tables, x, y = two_tables()
    known = {"id": "id", "label": "label", "loss": "logistic", "test": 0, "tolerance": 1e-8}
    result = intarsia.run(tables=tables, regularisation=0.05, l1_ratio=0.8, **known)
    z = (x - x.mean(axis=0)) / x.std(axis=0)
    _, best = least(np.column_stack([z, np.ones(len(z))]), y, "logistic", 0.05, 0.8)
    assert result.model.coef_[0] == pytest.approx(best[:-1] / x.std(axis=0), abs=1e-3)
    zeros = int((best[:-1] == 0).sum())
    assert 0 < zeros < 10
    assert f"note: {10 - zeros} of 10 coefficients are not 0." in str(result.model.summary())
    pooled, own = result.metrics.centralised, result.metrics.server
    assert pooled.loss == pytest.approx(own.loss, rel=1e-3)
    ridge = intarsia.run(tables=tables, regularisation=0.05, **known)
    assert abs(ridge.metrics.centralised.loss - own.loss) > 0.005


def test_noise_is_refused():
    tables, _, _ = two_tables()
    with pytest.raises(ExperimentError, match="noise would move every weight that is 0"):
        intarsia.run(
            tables=tables, id="id", label="label", loss="logistic", l1_ratio=0.5,
            privacy={"mode": "masked", "epsilon": 1.0, "clip": 1.0}, standardise=False,
            tolerance=1e-8,
        )  # fmt: skip


def test_a_resumed_run_takes_the_same_steps():
    x, y = sparse_truth(90, 9)
    options = HyFDCA(loss="hinge", regularisation=0.05, l1_ratio=0.5)

    def rounds(engine, server, numbers):
        found = []
        for number in numbers:
            engine.begin_round(number)
            server, info = HYFDCA.round(server, engine, engine.key())
            found.append((info.primal, info.dual))
        return server, found

    engine, server = started(HYFDCA, options, rectangles(x, y, 2, 2, shared_rows=5))
    _, whole = rounds(engine, server, range(1, 9))
    engine, server = started(HYFDCA, options, rectangles(x, y, 2, 2, shared_rows=5))
    server, _ = rounds(engine, server, range(1, 4))

    def written(state):
        kinds = (*HYFDCA.states, type(engine.books.seal(server).alpha))
        return codec.decode(codec.encode(state), *kinds)

    server = engine.books.unseal(written(engine.books.seal(server)))
    engine.set_states({name: written(state) for name, state in engine.get_states().items()})
    _, rest = rounds(engine, server, range(4, 9))
    assert rest == whole[3:]
