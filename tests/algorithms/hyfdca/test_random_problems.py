"""Random problems of HyFDCA: none stands still, and each certificate is true."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize
from scipy.sparse import csr_array
from sklearn.svm import LinearSVC

from federations import BINARY, in_order, rectangles, started, train
from intarsia.algorithms.hyfdca.algorithm import HYFDCA
from intarsia.algorithms.hyfdca.state import HyFDCA
from intarsia.core.block import Labels
from intarsia.maths.linear import losses, sdca
from intarsia.maths.linear.elastic_net import soft_threshold

LOSSES = ("hinge", "squared_hinge", "logistic", "quantile", "squared", "huber")
ROUNDS = 150


@dataclass(frozen=True)
class Drawn:
    """A table and how it is trained on."""

    seed: int
    loss: str
    samples: int
    numeric: int
    levels: int  # of a categorical column, most of them rare; 0: none
    spread: float  # columns have sizes of 10 to the power of at most this
    tails: bool  # whether numeric columns have heavy ones
    standardise: bool
    regularisation: float
    grid: tuple[int, int]
    frame: bool
    l1_ratio: float = 0.0


DRAWN = st.builds(
    Drawn,
    seed=st.integers(0, 10**6),
    loss=st.sampled_from(LOSSES),
    samples=st.integers(30, 400),
    numeric=st.integers(1, 8),
    levels=st.sampled_from([0, 5, 40]),
    spread=st.sampled_from([0.0, 1.0, 2.0]),
    tails=st.booleans(),
    standardise=st.booleans(),
    regularisation=st.floats(-7, -1).map(lambda power: 10**power),
    grid=st.sampled_from([(1, 2), (2, 2), (3, 1), (2, 3)]),
    frame=st.booleans(),
)


def made(one: Drawn):
    """Return the table and its labels."""
    rng = np.random.default_rng(one.seed)
    shape = one.samples, one.numeric
    x = rng.standard_t(1.5, shape) if one.tails else rng.standard_normal(shape)
    if one.levels:
        chance = np.arange(1, one.levels + 1) ** -1.3
        level = rng.choice(one.levels, one.samples, p=chance / chance.sum())
        x = np.hstack([x, np.eye(one.levels)[level]])
    score = x @ rng.standard_normal(x.shape[1])
    x = x * 10 ** rng.uniform(-one.spread, one.spread, x.shape[1])
    if one.standardise:
        deviation = x.std(axis=0)
        x = (x - x.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
    score = score / np.abs(score).mean() + rng.logistic(size=one.samples)
    if losses.loss_code(one.loss) in losses.CLASSIFICATION:
        return x, np.where(score > np.quantile(score, rng.uniform(0.3, 0.9)), 1.0, -1.0)
    return x, score


def solver_of_others(x, y, one: Drawn, value):
    """Return a primal value by liblinear or L-BFGS, which may not have come to the end."""
    if one.l1_ratio:
        return value(solver_in_halves(x, y, one)[None])
    if one.loss in ("hinge", "squared_hinge"):
        penalty = 1 / (one.regularisation * len(y))
        machine = LinearSVC(
            loss=one.loss, C=penalty, fit_intercept=False, tol=1e-8, max_iter=20_000, random_state=0
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return value(machine.fit(x, y).coef_)
    start = np.zeros(x.shape[1])
    code, shape = losses.loss_code(one.loss), losses.shape_of(HyFDCA(loss=one.loss))

    def slope(w):
        change = losses.derivative(code, x @ w, y, shape=shape)
        return value(w[None]), x.T @ change / len(y) + one.regularisation * w

    options = {"maxiter": 5000, "ftol": 1e-15, "gtol": 1e-10}
    return value(minimize(slope, start, jac=True, method="L-BFGS-B", options=options).x[None])


def solver_in_halves(x, y, one: Drawn):
    """Return weights u - v, u and v ≥ 0: by L-BFGS-B, or a linear programme without ‖w‖²."""
    samples, features = x.shape
    ridge, pull = one.regularisation * (1 - one.l1_ratio), one.regularisation * one.l1_ratio
    code, shape = losses.loss_code(one.loss), losses.shape_of(HyFDCA(loss=one.loss))
    if one.loss in ("hinge", "quantile"):
        # z + e - f = y with e and f what the errors cost, of the hinge yz + e ≥ 1
        cost = np.full(2 * features, pull), np.full(samples, shape if shape else 1.0) / samples
        eye, halves = np.eye(samples), np.hstack([x, -x])
        if one.loss == "hinge":
            given = {"A_ub": -np.hstack([y[:, None] * halves, eye]), "b_ub": -np.ones(samples)}
        else:
            cost = (*cost, np.full(samples, 1 - shape) / samples)
            given = {"A_eq": np.hstack([halves, eye, -eye]), "b_eq": y}
        both = linprog(samples * np.concatenate(cost), **given).x
        return both[:features] - both[features : 2 * features]

    def slope(both):
        w = both[:features] - both[features:]
        found = x.T @ losses.derivative(code, x @ w, y, shape=shape) / samples + ridge * w
        loss = losses.value(code, x @ w, y, shape=shape).mean()
        return loss + ridge / 2 * w @ w + pull * both.sum(), np.append(found, -found) + pull

    options = {"maxiter": 5000, "maxfun": 50_000, "ftol": 1e-15, "gtol": 1e-10}
    given = {"jac": True, "method": "L-BFGS-B", "bounds": [(0, None)] * (2 * features)}
    both = minimize(slope, np.zeros(2 * features), **given, options=options).x
    return both[:features] - both[features:]


def check(one: Drawn):
    """Train to a gap of 1e-6, and hold the certificate against formulas and a solver of others."""
    x, y = made(one)
    options = HyFDCA(loss=one.loss, regularisation=one.regularisation, frame=one.frame)
    options = replace(options, l1_ratio=one.l1_ratio)
    signs = losses.loss_code(one.loss) in losses.CLASSIFICATION
    pull, ridge = one.regularisation * one.l1_ratio, options.ridge
    given = {
        "regularisation": ridge,
        "loss": losses.loss_code(one.loss),
        "shape": losses.shape_of(options),
    }
    sparse = bool(one.levels) and not one.standardise
    blocks = rectangles(csr_array(x) if sparse else x, y, *one.grid)
    engine, server = started(HYFDCA, options, blocks, BINARY if signs else Labels("regression"))
    info = train(HYFDCA, engine, server, ROUNDS, tolerance=1e-6)
    schema = engine.schema("train")
    w = in_order(schema, info.weights)
    alpha = np.zeros((1, len(schema.samples)))
    for name, state in engine.get_states().items():
        alpha[:, schema.samples.own(name)] = state.alpha
    alpha = alpha[:, np.argsort(schema.samples.ids)]

    def value(w):
        return sdca.primal_objective(w @ x.T, y[None], w, **given) + pull * np.abs(w).sum()

    primal = value(w)
    implied = soft_threshold(sdca.weights_from_duals(x, alpha, ridge), options.threshold)
    dual = sdca.dual_objective(alpha, y[None], implied, **given)
    assert info.info.gap_relative <= 1.01e-6, "stands still"
    assert info.info.primal == pytest.approx(primal, rel=1e-8)
    # D is a difference of terms that are larger than it by far where λ is small
    assert info.info.dual == pytest.approx(dual, abs=1e-7 * primal)
    theirs = solver_of_others(x, y, one, value)
    assert theirs >= info.info.dual - 1e-8 * primal
    assert primal <= theirs * (1 + 1.1e-6)


@settings(max_examples=4, deadline=None, derandomize=True)
@given(DRAWN)
def test_random_problems_are_solved_and_certified(one):
    check(one)


@pytest.mark.parametrize(
    ("loss", "seed", "samples"),
    [("squared", 476459, 42), ("squared_hinge", 371271, 45)],
)
def test_wide_tables_that_newtons_method_in_the_dual_does_not_solve(loss, seed, samples):
    """Heavy tails make its system ill-conditioned: the method in the primal goes on from zeros."""
    given = {"numeric": 6, "levels": 40, "spread": 2.0, "tails": True, "standardise": False}
    one = Drawn(seed, loss, samples, **given, regularisation=2.1e-3, grid=(3, 1), frame=True)
    check(one)


@pytest.mark.slow
@settings(max_examples=200, deadline=None, derandomize=True)
@given(DRAWN)
def test_many_random_problems_are_solved_and_certified(one):
    check(one)


ELASTIC = st.builds(replace, DRAWN, l1_ratio=st.sampled_from([0.1, 0.5, 0.9, 0.99]))


@settings(max_examples=4, deadline=None, derandomize=True)
@given(ELASTIC)
def test_random_problems_of_the_elastic_net_are_solved_and_certified(one):
    check(one)


@pytest.mark.parametrize(
    ("loss", "samples", "regularisation", "seed", "frame"),
    [
        ("hinge", 120, 1e-6, 0, True),
        ("hinge", 33, 2.6e-6, 1, False),
        ("quantile", 60, 1e-7, 2, True),
        ("quantile", 60, 1e-7, 3, False),
        ("squared_hinge", 33, 2.6e-6, 3, True),
        ("squared_hinge", 33, 2.6e-6, 3, False),
    ],
)
def test_kinks_of_the_losses_and_of_the_elastic_net(loss, samples, regularisation, seed, frame):
    """Many of 40 levels are rare, and their columns depend on each other."""
    given = {"numeric": 8, "levels": 40, "spread": 0.0, "tails": False, "standardise": True}
    given |= {"regularisation": regularisation, "grid": (2, 2), "frame": frame}
    check(Drawn(seed, loss, samples, **given, l1_ratio=0.99))


@pytest.mark.slow
@settings(max_examples=200, deadline=None, derandomize=True)
@given(ELASTIC)
def test_many_random_problems_of_the_elastic_net_are_solved_and_certified(one):
    check(one)


@pytest.mark.parametrize(("loss", "seed"), [("poisson", 2), ("logistic", 1), ("logistic", 3)])
def test_columns_of_sizes_far_apart_are_solved_where_a_frame_has_no_digits(loss, seed):
    """Rows that are nearly fitted bend F by 1e-13 of what others do: conjugate gradients see it."""
    rng = np.random.default_rng(seed)
    x = np.hstack([rng.normal(size=(100, 8)), np.eye(30)[rng.integers(0, 30, 100)]])
    sizes = 10 ** rng.uniform(-8, 8, 38)
    z = np.clip(rng.normal(size=100) * 2, -5, 5)
    y = rng.poisson(np.exp(z)).astype(float) if loss == "poisson" else np.sign(z)
    ridge, code = 3e-5, losses.loss_code(loss)
    labels = Labels("regression") if loss == "poisson" else BINARY
    options = HyFDCA(loss=loss, regularisation=ridge)
    engine, server = started(HYFDCA, options, rectangles(x * sizes, y, 3, 3), labels)
    info = train(HYFDCA, engine, server, 60, tolerance=1e-6).info
    assert info.gap_relative <= 1e-6

    def parts(u):  # of weights in units of their columns
        score = x @ u
        change = x.T @ losses.derivative(code, score, y) / 100 + ridge * u / sizes**2
        bend = (x.T * losses.curvature(code, score, y)) @ x / 100 + ridge * np.diag(sizes**-2.0)
        primal = losses.value(code, score, y).mean() + ridge / 2 * ((u / sizes) ** 2).sum()
        return primal, change, bend

    theirs = minimize(
        lambda u: parts(u)[0],
        np.zeros(38),
        jac=lambda u: parts(u)[1],
        hess=lambda u: parts(u)[2],
        method="trust-exact",
        options={"gtol": 1e-10, "maxiter": 500},
    ).fun
    assert info.dual <= theirs * (1 + 1e-9)
    assert info.primal <= theirs * (1 + 1e-6)


@pytest.mark.parametrize("seed", [1, 3, 7])
def test_the_interior_point_goes_on_without_a_frame_that_has_no_digits_left(seed):
    """Duals in their box and a model with P - D of 1e-6 of P prove each other, by long doubles."""
    rng = np.random.default_rng(seed)
    x = np.hstack([rng.normal(size=(100, 8)), np.eye(30)[rng.integers(0, 30, 100)]])
    x *= 10 ** rng.uniform(-8, 8, 38)
    y = np.sign(np.clip(rng.normal(size=100) * 2, -5, 5))
    ridge = 3e-5
    options = HyFDCA(loss="hinge", regularisation=ridge)
    engine, server = started(HYFDCA, options, rectangles(x, y, 3, 3))
    found = train(HYFDCA, engine, server, 60, tolerance=1e-6)
    schema = engine.schema("train")
    w, alpha = in_order(schema, found.weights)[0].astype(np.longdouble), np.zeros(100)
    for name, state in engine.get_states().items():
        alpha[schema.samples.own(name)] = state.alpha[0]
    beta = y * alpha[np.argsort(schema.samples.ids)]
    assert ((beta >= 0) & (beta <= 1)).all()
    slack = np.maximum(0, 1 - y * (x * w).sum(axis=1))
    implied = (x * (y * beta).astype(np.longdouble)[:, None]).sum(axis=0) / (ridge * 100)
    primal = slack.mean() + ridge / 2 * (w * w).sum()
    dual = beta.mean() - ridge / 2 * (implied * implied).sum()
    assert -1e-9 <= float((primal - dual) / primal) <= 1.1e-6
    assert found.info.primal == pytest.approx(float(primal), rel=1e-8)
    assert found.info.dual == pytest.approx(float(dual), rel=1e-7)
