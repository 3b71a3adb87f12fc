"""Huber, quantile, Poisson and Gamma losses against their definitions and scikit-learn's."""

import decimal
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize_scalar
from scipy.special import huber
from sklearn.linear_model import PoissonRegressor
from sklearn.metrics import mean_gamma_deviance, mean_pinball_loss, mean_poisson_deviance

from intarsia.errors import TableError
from intarsia.maths.linear import losses, sdca
from intarsia.maths.linear.losses import GAMMA, HUBER, POISSON, QUANTILE
from intarsia.maths.linear.smoothed_losses import curvatures, dual_points, move_points, slopes

SHAPED = [(HUBER, 1.35), (HUBER, 0.2), (QUANTILE, 0.5), (QUANTILE, 0.9), (POISSON, 0), (GAMMA, 0)]
ALL = pytest.mark.parametrize(("loss", "shape"), SHAPED)
SCORES = np.array([-3.0, -1.3, -0.4, 0.15, 0.6, 1.7, 3.1])
TARGETS = {HUBER: [-2.0, 0.0, 1.1], QUANTILE: [-2.0, 0.0, 1.1], POISSON: [0.0, 1.0, 7.5]}


def targets(loss):
    return np.array(TARGETS.get(loss, [0.01, 1.0, 7.5]))


def duals(loss, shape, y):
    """Return duals within the box."""
    low, high = {
        HUBER: (-shape, shape),
        QUANTILE: (shape - 1, shape),
        POISSON: (y - 9.0, y),
        GAMMA: (-1.0, 8.0),
    }[loss]
    return low + (high - low) * np.array([0.05, 0.4, 0.8, 0.97])


def test_the_values_are_those_of_scipy_and_scikit_learn():
    y, z = np.array([0.5, 2.0, 3.0, 9.0]), np.array([0.2, -1.0, 3.3, 1.0])
    assert losses.value(HUBER, z, y, shape=1.35) == pytest.approx(huber(1.35, y - z))
    pinball = losses.value(QUANTILE, z, y, shape=0.9).mean()
    assert pinball == pytest.approx(mean_pinball_loss(y, z, alpha=0.9))
    half = losses.value(POISSON, z, y).mean()
    assert half == pytest.approx(mean_poisson_deviance(y, np.exp(z)) / 2)
    assert losses.value(GAMMA, z, y).mean() == pytest.approx(mean_gamma_deviance(y, np.exp(z)) / 2)
    assert losses.value(POISSON, np.array([-50.0]), np.array([0.0])) == pytest.approx(0, abs=1e-20)


@pytest.mark.parametrize("amount", [1e-9, 1.0, 1e6, 1e12])
def test_gamma_of_nearly_fitted_rows_is_as_exact_as_decimals_of_sixty_digits(amount):
    away = np.array([-3.0, -1e-3, -1e-7, 2e-9, 1e-5, 0.4, 1.5])
    z, y = math.log(amount) + away, np.full(len(away), amount)
    with decimal.localcontext(prec=60):
        exact = decimal.Decimal(amount)
        ts = [exact.ln() - one for one in map(decimal.Decimal, z.tolist())]
        value = np.array([float(t.exp() - 1 - t) for t in ts])
    off = 4e-16 * (1 + np.abs(z))  # z and log y are rounded
    allowed = off * (np.abs(np.expm1(-away)) + np.exp(-away) * off) + 4e-16 * value
    assert np.all(np.abs(losses.value(GAMMA, z, y) - value) <= allowed)
    for score, label in zip(z, y, strict=True):  # kernels have their own
        one, label, at = np.array([[score]]), np.array([[label]]), np.zeros((1, 1))
        rows = np.zeros(1, np.int64)
        sums = dual_points(GAMMA, label, one, 0 * one, np.ones(1), rows, at, 0 * one)
        assert sums[0, 0] == pytest.approx(losses.value(GAMMA, one, label)[0, 0], rel=1e-7)


@pytest.mark.parametrize("count", [0.0, 0.3, 1.0, 1e3, 1e6, 1e9, 1e12, 1e14])
def test_poisson_of_any_count_is_as_exact_as_decimals_of_sixty_digits(count):
    away = np.array([-3.0, -1e-3, -1e-7, 0.0, 2e-9, 1e-5, 0.4, 1.5])
    z = (math.log(count) if count else 0.0) + away
    y = np.full(len(z), count)
    alpha = count * np.append(away[:7] / 2, 1.0) if count else -np.exp(away)
    with decimal.localcontext(prec=60):
        exact, log = decimal.Decimal(count), decimal.Decimal(count).ln() if count else 0
        value, bound = [], []
        for one in map(decimal.Decimal, z.tolist()):
            value.append(float(one.exp() - exact * one - exact + exact * log))
        for one in map(decimal.Decimal, alpha.tolist()):
            mean = exact - one
            bound.append(float(exact * log - one - (mean * mean.ln() if mean else 0)))
    off = 4e-16 * (1 + np.abs(z))  # z and log y are rounded
    allowed = off * (np.abs(np.exp(z) - y) + np.exp(z) * off) + 4e-16 * np.array(value)
    assert np.all(np.abs(losses.value(POISSON, z, y) - value) <= allowed)
    allowed = 4e-16 * np.abs(alpha) * (2 + abs(float(log)))
    found = losses.minus_conjugate(POISSON, alpha, np.full(len(alpha), count))
    assert np.all(np.abs(found - bound) <= allowed)
    # kernels have both of their own
    for score, label in zip(z, y, strict=True):
        one, label, at = np.array([[score]]), np.array([[label]]), np.zeros((1, 1))
        rows = np.zeros(1, np.int64)
        sums = dual_points(POISSON, label, one, 0 * one, np.ones(1), rows, at, 0 * one)
        rounded = 1e-15 * abs(at[0, 0]) * (2 + abs(score))
        told = losses.value(POISSON, one, label)[0, 0]
        assert sums[0, 0] == pytest.approx(told, rel=1e-15, abs=rounded)
        told = losses.minus_conjugate(POISSON, at, label)[0, 0]
        assert sums[0, 1] == pytest.approx(told, rel=1e-15, abs=rounded)


@ALL
def test_derivative_and_curvature_are_slopes(loss, shape):
    h = 1e-6
    for y in targets(loss):
        away = np.abs(np.abs(y - SCORES) - shape) > 1e-3  # from the kinks
        up, down = (losses.value(loss, SCORES + d, y, shape=shape) for d in (h, -h))
        known = losses.derivative(loss, SCORES, y, shape=shape)
        assert known == pytest.approx((up - down) / (2 * h), rel=1e-6, abs=1e-8)
        up, down = (losses.derivative(loss, SCORES + d, y, shape=shape) for d in (h, -h))
        known = losses.curvature(loss, SCORES, y, shape=shape)
        assert known[away] == pytest.approx(((up - down) / (2 * h))[away], rel=1e-5, abs=1e-8)


@ALL
def test_the_conjugate_is_the_numeric_supremum_and_meets_fenchel_and_young(loss, shape):
    # -l*(-α) = min over z of l(z) + αz
    for y in targets(loss):
        for alpha in duals(loss, shape, y):
            one, label = np.array([alpha]), np.array([y])

            def lagrangian(z, y=label, alpha=alpha):
                return float(losses.value(loss, np.array([z]), y, shape=shape)[0] + alpha * z)

            grid = np.linspace(-12, 12, 241)
            best = grid[np.argmin([lagrangian(z) for z in grid])]
            found = minimize_scalar(
                lagrangian, bounds=(best - 0.2, best + 0.2), method="bounded", options={"xatol": 0}
            )
            stated = losses.minus_conjugate(loss, one, label, shape=shape)[0]
            assert stated == pytest.approx(min(found.fun, lagrangian(best)), abs=1e-7)
        alpha = losses.dual_from_scores(loss, SCORES, y, shape=shape)
        gap = losses.value(loss, SCORES, y, shape=shape) + alpha * SCORES
        gap = gap - losses.minus_conjugate(loss, alpha, y, shape=shape)
        assert gap == pytest.approx(np.zeros(len(SCORES)), abs=1e-12)


@ALL
def test_a_dual_outside_its_box_has_no_dual_value_until_it_is_projected(loss, shape):
    y = targets(loss)
    out = {
        HUBER: [shape + 0.01, -shape - 0.01],
        QUANTILE: [shape + 0.01, shape - 1.01],
        POISSON: [0.01 + y],
        GAMMA: [-1.01],
    }[loss]
    for one in out:
        alpha = one + 0 * y
        assert np.all(losses.minus_conjugate(loss, alpha, y, shape=shape) == -np.inf)
        moved = losses.project(loss, alpha, y, shape=shape)
        assert abs(moved - alpha) == pytest.approx(0.01 + 0 * y)
        edge = losses.minus_conjugate(loss, moved, y, shape=shape)
        assert np.all(np.isfinite(edge))
        near = losses.minus_conjugate(loss, moved + 1e-3 * (alpha - moved), y, shape=shape)
        assert np.all(near == -np.inf)
        known = {"shape": shape, "slack": 2e-5}
        assert losses.minus_conjugate(loss, moved + 1e-3 * (alpha - moved), y, **known) == (
            pytest.approx(edge)
        )


@ALL
@settings(max_examples=80, deadline=None)
@given(
    label=st.integers(0, 2),
    place=st.floats(0.0, 1.0),
    z=st.floats(-15.0, 15.0),
    q=st.one_of(st.just(0.0), st.floats(1e-5, 1e4)),
    weight=st.sampled_from([1.0, 0.3]),
)
def test_the_dual_step_maximises_the_one_dimensional_dual(loss, shape, label, place, z, q, weight):
    y = targets(loss)[label]
    box = duals(loss, shape, y)
    alpha = weight * (box[0] + place * (box[-1] - box[0]))
    new = alpha + losses.weighted_step(loss, alpha, y, z, q, weight, shape)

    def dual(at):
        own = np.array([at])
        conjugate = losses.minus_conjugate(
            loss, own, np.array([y]), np.array([weight]), shape=shape
        )
        return float(conjugate[0]) - z * (at - alpha) - 0.5 * q * (at - alpha) ** 2

    size = max(abs(new), abs(alpha), 1.0)
    tolerance = 1e-9 * max(1.0, abs(dual(new)), q, abs(z))
    for away in (1e-1, 1e-2, 1e-4, 1e-6):
        assert dual(new) >= max(dual(new - away * size), dual(new + away * size)) - tolerance


@settings(max_examples=200, deadline=None)
@given(z=st.floats(-300, 300), q=st.floats(1e-8, 1e8), rate=st.floats(1e-6, 1e6))
def test_the_step_of_poisson_is_the_root_to_1e_13(z, q, rate):
    y = 3.0
    new = y - rate + losses.dual_step(POISSON, y - rate, y, z, q)
    target = z + q * rate  # log v + qv
    root = brentq(lambda u: u + q * math.exp(min(u, 700)) - target, -2000, 1 + abs(target))
    wanted = math.exp(root)
    assert y - new == pytest.approx(wanted, rel=1e-9, abs=1e-15 * max(rate, wanted, y) * 4)


@ALL
def test_points_of_newtons_method_are_those_of_the_loss(loss, shape):
    rng = np.random.default_rng(0)
    y = np.tile(targets(loss), (1, 4))
    z, q = rng.normal(size=(2, 1, 12))
    centre, rows, weight = np.zeros((1, 12)), np.arange(12), np.array([1e9])
    weights = rng.uniform(0.5, 2, 12)
    alpha, h = np.zeros((2, 1, 12))
    sums = dual_points(loss, y, z, centre, weight, rows, alpha, h, weights, shape)
    assert alpha / weights == pytest.approx(losses.dual_from_scores(loss, z, y, shape=shape))
    assert sums[0, 0] == pytest.approx(losses.value(loss, z, y, weights, shape=shape).sum())
    conjugate = losses.minus_conjugate(loss, alpha, y, weights, shape=shape)
    assert sums[0, 1] == pytest.approx(conjugate.sum(), rel=1e-9)
    if loss != QUANTILE:
        assert h / weights == pytest.approx(losses.curvature(loss, z, y, shape=shape))
    if loss not in (QUANTILE, POISSON):
        found = curvatures(loss, alpha / weights, np.ones(1), shape=shape)
        assert found == pytest.approx(h / weights)
    if loss == GAMMA:
        pearson = (y / np.exp(z) - 1) ** 2 * weights
        assert sums[0, 2] == pytest.approx(pearson.sum())
    steps = np.array([[0.0, 0.5]])
    found = slopes(loss, y, z, q, centre, weight, rows, steps, weights, shape)
    for k, step in enumerate(steps[0]):
        at = losses.dual_from_scores(loss, z + step * q, y, weights, shape=shape)
        assert found[0, k] == pytest.approx((at * q).sum())


def test_the_quantile_loss_is_smoothed_around_its_centre_within_its_box():
    y, z = np.array([[2.0, 1.0, -5.0, 9.0]]), np.array([[1.5, 1.0, 0.0, 0.0]])
    centre = np.array([[0.1, -0.05, 0.0, 0.3]])
    alpha, h = np.zeros((2, 1, 4))
    given = (np.array([0.4]), np.arange(4), alpha, h, None, 0.9)
    sums = dual_points(QUANTILE, y, z, centre, *given)
    assert alpha.tolist() == [[pytest.approx(0.3), -0.05, pytest.approx(-0.1), 0.9]]
    assert h.tolist() == [[0.4, 0.4, 0, 0]]
    assert sums[0, 2] == pytest.approx(0.2**2 + 0 + 0.1**2 + 0.6**2)
    assert sums[0, 3] == 2
    assert curvatures(QUANTILE, alpha, np.array([0.4]), shape=0.9).tolist() == h.tolist()
    move_points(QUANTILE, y, z, centre, np.zeros(1), 0 * z, np.array([0.4]), np.arange(4), 0.9)
    assert centre.tolist() == alpha.tolist()


def test_dual_coordinate_ascent_reaches_scikit_learns_poisson_regression():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(80, 4))
    y = rng.poisson(np.exp(x @ rng.normal(size=4) * 0.5)).astype(float)
    known = {"loss": POISSON, "regularisation": 0.01, "tolerance": 1e-10, "epochs": 5000}
    found = sdca.fit(x, y, **known, rng=rng)
    theirs = PoissonRegressor(alpha=0.01, fit_intercept=False, tol=1e-10, max_iter=10_000).fit(x, y)
    assert found.converged
    assert found.w[0] == pytest.approx(theirs.coef_, abs=1e-5)


def test_labels_that_have_no_logarithm_of_a_mean_are_refused():
    with pytest.raises(TableError, match=r"2 of 3 labels of north are below 0, and the Poisson"):
        losses.check_labels(POISSON, np.array([-1.0, 2.5, -0.5, np.nan]), "north")
    with pytest.raises(TableError, match=r"1 of 2 labels of north is 0 or below, and the Gamma"):
        losses.check_labels(GAMMA, np.array([0.0, 2.5]), "north")
    for loss, y in ((POISSON, np.array([0.0, 2.5, np.nan])), (GAMMA, np.array([0.1, np.nan]))):
        losses.check_labels(loss, y, "north")
    losses.check_labels(HUBER, np.array([-1.0]), "north")
    with pytest.raises(TableError, match=r"below 0 \(the first: -3 in row 2\), and the Poisson"):
        losses.check_labels(POISSON, np.array([1.0, -3.0]), "north", rows=True)
