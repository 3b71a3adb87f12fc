from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import expit

from intarsia.algorithms.hyfdca.newton.direction import _FINE, _STEPS
from intarsia.maths.linear import losses
from intarsia.maths.linear.smoothed_losses import (
    _sums_of_two,
    curvatures,
    curved_samples,
    dual_points,
    mean_curvatures,
    slopes,
    telling_samples,
)

SMOOTH = [losses.SQUARED_HINGE, losses.LOGISTIC, losses.SQUARED]
CASES = pytest.mark.parametrize("loss", [losses.HINGE, *SMOOTH])
SAMPLES = 40


def drawn(outputs=2, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.choice([-1.0, 1.0], (outputs, SAMPLES))
    z, q = 2 * rng.normal(size=(2, outputs, SAMPLES))
    centre = rng.random((outputs, SAMPLES))
    return y, z, q, centre, np.linspace(0.3, 4.0, outputs)


def points(loss, y, z, centre, weight, rows=None):
    alpha, curvature = np.zeros(z.shape), np.zeros(z.shape)
    rows = np.arange(z.shape[1]) if rows is None else rows
    sums = dual_points(loss, y, z, centre, weight, rows, alpha, curvature)
    return alpha, curvature, sums


@pytest.mark.parametrize("loss", SMOOTH)
def test_a_smooth_loss_has_its_own_dual_point_and_curvature(loss):
    y, z, _, centre, weight = drawn()
    alpha, curvature, _ = points(loss, y, z, centre, weight)
    np.testing.assert_allclose(alpha, -losses.derivative(loss, z, y), rtol=1e-13)
    np.testing.assert_allclose(curvature, losses.curvature(loss, z, y), rtol=1e-12)


def test_the_hinge_is_smoothed_by_a_proximal_term_in_the_dual():
    # β maximises β(1 - yz) - (β - c)²/(2s) over [0, 1]: the Moreau envelope's dual point
    y, z, _, centre, weight = drawn(outputs=1)
    alpha, curvature, _ = points(losses.HINGE, y, z, centre, weight)
    for i in range(SAMPLES):
        slack = 1 - y[0, i] * z[0, i]
        best = minimize_scalar(
            lambda beta, slack=slack, i=i: (
                -beta * slack + (beta - centre[0, i]) ** 2 / (2 * weight[0])
            ),
            bounds=(0, 1),
            method="bounded",
            options={"xatol": 1e-9},
        )
        assert y[0, i] * alpha[0, i] == pytest.approx(best.x, abs=1e-6)
    inside = (y * alpha > 0) & (y * alpha < 1)
    np.testing.assert_array_equal(curvature, np.where(inside, weight[0], 0.0))
    assert inside.any()
    assert not inside.all()


@CASES
def test_dual_points_stay_in_their_box(loss):
    y, z, _, centre, weight = drawn()
    alpha, _, _ = points(loss, y, 50 * z, centre, weight)
    np.testing.assert_allclose(losses.project(loss, alpha, y), alpha, rtol=1e-15)
    assert np.isfinite(losses.minus_conjugate(loss, alpha, y)).all()


@CASES
def test_the_sums_are_those_of_the_losses_and_their_conjugates(loss):
    y, z, _, centre, weight = drawn()
    alpha, curvature, sums = points(loss, y, z, centre, weight)
    np.testing.assert_allclose(sums[:, 0], losses.value(loss, z, y).sum(axis=1), rtol=1e-13)
    conjugate = losses.minus_conjugate(loss, alpha, y).sum(axis=1)
    np.testing.assert_allclose(sums[:, 1], conjugate, rtol=1e-12)
    moved = ((y * alpha - centre) ** 2).sum(axis=1) if loss == losses.HINGE else [0, 0]
    np.testing.assert_allclose(sums[:, 2], moved, rtol=1e-13)
    np.testing.assert_array_equal(sums[:, 3], (curvature > 0).sum(axis=1))


@CASES
def test_rows_that_are_not_named_stay_out(loss):
    y, z, q, centre, weight = drawn()
    rows = np.array([3, 7, 8])
    y[:, 0] = np.nan  # a sample without a label is never named
    alpha, curvature, sums = points(loss, y, z, centre, weight, rows)
    other = np.setdiff1d(np.arange(SAMPLES), rows)
    assert not alpha[:, other].any()
    assert not curvature[:, other].any()
    part = points(loss, *(v[:, rows] for v in (y, z, centre)), weight)[2]
    np.testing.assert_allclose(sums, part, rtol=1e-13)
    steps = np.array([[0.0, 0.5], [1.0, 2.0]])
    found = slopes(loss, y, z, q, centre, weight, rows, steps)
    own = slopes(loss, *(v[:, rows] for v in (y, z, q, centre)), weight, np.arange(3), steps)
    np.testing.assert_allclose(found, own, rtol=1e-13)


@pytest.mark.parametrize("steps", [_STEPS, 0.003 * _FINE, np.array([0.0, 4.0, 0.5, 1.0, 1.0])])
@pytest.mark.parametrize("size", [1e-9, 1.0, 300.0])  # of which the last is far for products
@pytest.mark.parametrize("weighted", [False, True])
def test_slopes_of_the_logistic_loss_are_sums_of_its_dual_points(steps, size, weighted):
    rng = np.random.default_rng(5)
    count = 1000
    y = np.sign(rng.normal(size=(2, count)))
    z, q = rng.normal(size=(2, 2, count)) * [[[3.0]], [[size]]]
    z[1, 500:503] = -700.0, 700.0, 5000.0  # within one piece of rows
    q[1, 500:503] = 175.0, -175.0, 1.0
    rows = np.flatnonzero(rng.random(count) < 0.9)
    weights = rng.exponential(size=count) if weighted else None
    given = (np.zeros_like(z), np.ones(2), rows, np.stack([steps, 0.5 * steps]), weights, 0.0)
    found = slopes(losses.LOGISTIC, y, z, q, *given)
    times = np.ones(count) if weights is None else weights
    for output, factor in enumerate((1.0, 0.5)):
        at = z[output] + np.outer(factor * steps, q[output])
        each = y[output] * expit(-y[output] * at) * q[output] * times
        expected, sizes = each[:, rows].sum(axis=1), np.abs(each[:, rows]).sum(axis=1)
        assert (np.abs(found[output] - expected) <= 1e-14 * sizes).all()


@CASES
def test_slopes_are_derivatives_of_the_smoothed_losses(loss):
    y, z, q, centre, weight = drawn()
    rows, h = np.arange(SAMPLES), 1e-6

    def smoothed(t):
        at = z + t * q
        if loss != losses.HINGE:
            return losses.value(loss, at, y).sum(axis=1)
        beta = np.clip(centre + weight[:, None] * (1 - y * at), 0, 1)
        term = beta * (1 - y * at) - (beta - centre) ** 2 / (2 * weight[:, None])
        return term.sum(axis=1)

    steps = np.array([[0.0, 0.3, 1.0], [0.1, 0.5, 2.0]])
    found = slopes(loss, y, z, q, centre, weight, rows, steps)
    for output in range(2):
        for k, t in enumerate(steps[output]):
            difference = (smoothed(t + h)[output] - smoothed(t - h)[output]) / (2 * h)
            assert -found[output, k] == pytest.approx(difference, rel=1e-5, abs=1e-5)


@CASES
def test_extreme_scores_give_finite_numbers(loss):
    y = np.array([[1.0, -1.0, 1.0, -1.0]])
    z = np.array([[1e3, 1e3, -1e3, -1e3]])
    alpha, curvature, sums = points(loss, y, z, np.full((1, 4), 0.5), np.ones(1))
    assert np.isfinite(alpha).all()
    assert np.isfinite(curvature).all()
    assert np.isfinite(sums).all()


@CASES
def test_a_dual_point_says_what_the_curvature_is(loss):
    y, z, _, centre, weight = drawn()
    alpha, curvature, _ = points(loss, y, z, centre, weight)
    np.testing.assert_allclose(curvatures(loss, alpha, weight), curvature, rtol=1e-9)


def test_noise_at_the_bounds_of_the_hinge_is_no_curvature():
    alpha, weight = np.array([[1e-8, -1e-8, 1 - 1e-8, -1 - 1e-8, 0.5]]), np.array([2.0])
    np.testing.assert_array_equal(curvatures(losses.HINGE, alpha, weight), [[0, 0, 0, 0, 2.0]])


@CASES
@pytest.mark.parametrize("most", [0, 1, 7, 40, 1000])
@pytest.mark.parametrize("outputs", [1, 3])
def test_samples_of_a_cell_with_curvature_are_those_that_come_first(loss, most, outputs):
    rng = np.random.default_rng(most)
    alpha = np.where(rng.random((outputs, 90)) < 0.5, rng.random((outputs, 90)), 0.0)
    weight, order = rng.random(outputs) + 0.5, rng.permutation(60)
    curvature = curvatures(loss, alpha, weight)
    samples, found = curved_samples(curvature, 20, 80, order, most)

    every = curvature[:, 20:80]
    curved = (every > 0).any(axis=0)
    expected = np.sort([i for i in order if curved[i]][:most]).astype(int)
    np.testing.assert_array_equal(samples, expected + 20)
    total, taken = every.sum(axis=1), every[:, expected].sum(axis=1)
    factor = np.divide(total, taken, out=np.ones(outputs), where=taken > 0)
    np.testing.assert_allclose(found, every[:, expected] * factor[:, None], rtol=1e-12)


def told(most, norms, seed=0, size=4000):
    rng = np.random.default_rng(seed)
    alpha, order = rng.random((1, size)), rng.permutation(size)
    every = curvatures(losses.LOGISTIC, alpha, np.ones(1))
    return every[0], *telling_samples(every, 0, size, order, most, norms)


def test_as_many_samples_are_taken_as_tell_most_and_stand_for_all():
    rng = np.random.default_rng(0)
    norms = rng.exponential(size=4000)
    norms[:9] = 1e4  # of a rare column
    every, samples, found = told(500, norms)
    assert abs(len(samples) - 500) <= 1
    assert np.isin(np.arange(9), samples).all()
    np.testing.assert_allclose(found[0, :9], every[:9], rtol=1e-12)
    # those that are taken stand for the whole in the sum that they are drawn for
    assert found[0] @ norms[samples] == pytest.approx(every @ norms, rel=5e-3)
    assert (np.diff(samples) > 0).all()


def test_all_samples_with_curvature_are_taken_where_there_are_few():
    every, samples, found = told(5000, np.ones(4000))
    np.testing.assert_array_equal(samples, np.flatnonzero(every > 0))
    np.testing.assert_allclose(found[0], every[samples], rtol=1e-12)


def test_the_mean_curvature_on_a_step_is_that_between_its_ends():
    before, after = (
        np.array([[-30.0, 70.0, 1.0, -2.0, 3.0]]),
        np.array([[30.0, -30.0, 3.0, 5.0, 3.0]]),
    )
    signs = np.array([[1.0, -1.0, 1.0, -1.0, 1.0]])

    def size(margins):  # minus the loss's slope, 1 / (1 + exp(m))
        return 1 / (1 + np.exp(margins))

    found = mean_curvatures(signs * size(before), signs * size(after))
    expected = (size(before) - size(after))[0, :4] / (after - before)[0, :4]
    np.testing.assert_allclose(found[0, :4], expected, rtol=2e-3)
    assert found[0, 4] == 0
    # a step past all curvature: the ends have next to none
    assert found[0, 0] > 1e10 * size(before)[0, 0] * size(after)[0, 0]
    # a sample without a label, whose dual is 0
    assert mean_curvatures(np.zeros((1, 1)), np.zeros((1, 1))) == 0


@pytest.mark.parametrize("steps", [_STEPS, 0.3 * _STEPS, _FINE, np.array([0.0, 0.0, 1.0, 1.0])])
def test_steps_are_sums_of_two_before_them_with_few_roundings(steps):
    sums, roundings = _sums_of_two(steps.tolist()), []
    for k, (low, high) in enumerate(sums):
        found = low > 0
        assert not found or (high < k and steps[low] + steps[high] == steps[k])
        roundings.append(roundings[low] + roundings[high] if found else 1)
    assert max(roundings) <= 16
    if steps is _STEPS:
        assert (sums[:, 0] > 0).sum() == 8
