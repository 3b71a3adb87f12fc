"""Steps of the interior point method for losses with a kink."""

from __future__ import annotations

import numpy as np
import pytest

from intarsia.maths.linear import interior_point as inside
from intarsia.maths.linear import losses

R = np.array([[-1e8, -3.0, -1e-9, 0.0, 1e-9, 0.5, 1e8]])
NONE = np.zeros(1)
HINGE = inside.box_of(losses.HINGE, 0.0)


@pytest.mark.parametrize("barrier", [1e-9, 1e-3, 10.0])
def test_the_central_point_solves_its_equations(barrier):
    point = inside.central(R, np.array([barrier]), NONE, HINGE)
    np.testing.assert_allclose(point.below * point.under, barrier)
    np.testing.assert_allclose(point.above * point.over, barrier)
    np.testing.assert_allclose(point.below + point.above, 1.0, rtol=1e-9)
    np.testing.assert_allclose(point.over - point.under, R, rtol=1e-12, atol=1e-12)
    assert all((one > 0).all() for one in (point.below, point.above, point.under, point.over))


def test_without_an_upper_edge_the_central_point_has_half_its_dual_in_place_of_v():
    point = inside.central(
        R[:, 1:], np.array([1e-3]), NONE, inside.box_of(losses.SQUARED_HINGE, 0.0)
    )
    np.testing.assert_allclose(point.below * point.under, 1e-3)
    slack = 0.5 * point.below - point.under
    np.testing.assert_allclose(slack, R[:, 1:], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(
        inside.aim(inside.corrected(point, (NONE[:, None],) * 3, np.array([1e-3])), R[:, 1:]),
        0.0,
        atol=1e-6,
    )


@pytest.mark.parametrize("barrier", [1e-9, 1e-3, 10.0])
def test_the_central_point_of_hubers_loss_has_its_curvature(barrier):
    point = inside.central(R, np.array([barrier]), NONE, inside.box_of(losses.HUBER, 1.5))
    np.testing.assert_allclose(point.below * point.under, barrier)
    np.testing.assert_allclose(point.above * point.over, barrier)
    np.testing.assert_allclose(point.below + point.above, 3.0, rtol=1e-9)
    slack = point.over - point.under + inside.dual_of(point)
    np.testing.assert_allclose(slack, R, rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("barrier", [1e-9, 1e-3, 10.0])
def test_a_point_near_given_duals_keeps_them_where_the_barrier_lets_it(barrier):
    beta = np.array([[0.0, 0.0, 0.3, 0.7, 0.5, 1.0, 1.0]])
    point = inside.near(R, beta, np.array([barrier]), NONE, HINGE)
    products = np.stack([point.below * point.under, point.above * point.over])
    assert (products >= barrier * (1 - 1e-9)).all()
    np.testing.assert_allclose(point.over - point.under, R, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(point.below + point.above, 1.0)
    assert (np.abs(point.below - beta) <= 0.1 + 1e-12).all()
    # what complementary slackness leaves of these duals, and the barrier's part
    left = beta * np.maximum(-R, 0) + (1 - beta) * np.maximum(R, 0)
    assert (products.min(axis=0) <= barrier * (1 + 1e-9)).all()
    assert (products.max(axis=0) <= 10 * barrier + 1.2 * left + 1e-9).all()


def test_a_step_solves_the_equations_to_first_order():
    r, change = R[:, 1:-1], np.array([[0.3, -0.2, 0.1, 0.7, -1.0]])
    point = inside.corrected(
        inside.central(r, np.array([0.5]), NONE, HINGE), (NONE[:, None],) * 3, np.array([0.2])
    )
    dual, under, over = steps = inside.changes(point, r, change)
    moved = inside.advanced(point, steps, np.ones(1))
    np.testing.assert_allclose(moved.over - moved.under, r + change, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(moved.below * moved.under - dual * under, 0.2)
    np.testing.assert_allclose(moved.above * moved.over + dual * over, 0.2)
    constant, first, second = inside.products_along(point, steps, None)[0]
    after = (moved.below * moved.under + moved.above * moved.over).sum()
    assert constant + first + second == pytest.approx(after)


def test_targets_bring_back_products_that_are_far_from_the_barrier_after_a_step():
    start = inside.central(np.zeros((1, 4)), np.array([0.5]), NONE, HINGE)
    np.testing.assert_allclose([start.below, start.above], 0.5)
    products = np.array([[0.05, 0.01, 2.0, -0.2]])  # after half of a step that leaves the duals
    under, over = 4 * products - 2 * start.under, 4 * 0.1 - 2 * start.over
    steps = np.zeros((1, 4)), under, over
    found = inside.centred(start, steps, np.array([0.1]), np.array([0.5]))
    # from a third of the barrier to three times it they stay; three times is the most to take off
    wanted = [[0.0, 0.1 / 3 - 0.01, -0.3, 0.1 / 3 + 0.2]]
    np.testing.assert_allclose(found.under_target, wanted, atol=1e-12)
    np.testing.assert_allclose(found.over_target, 0.0, atol=1e-12)
    none = inside.centred(start, steps, np.array([0.1]), np.zeros(1))
    np.testing.assert_array_equal(none.under_target, start.under_target)


def test_the_longest_step_stays_off_the_boundary():
    point = inside.central(np.array([[1.0, -2.0]]), np.array([1e-3]), NONE, HINGE)
    for change in (5.0, -5.0):
        steps = inside.changes(point, np.array([[1.0, -2.0]]), np.full((1, 2), change))
        length = inside.furthest(point, steps)
        moved = inside.advanced(point, steps, length)
        least = [one.min() for one in (moved.below, moved.above, moved.under, moved.over)]
        assert min(least) > 0
        assert length[0] <= 1


def test_damping_bounds_the_curvature():
    point = inside.central(np.zeros((1, 1)), np.array([1e-12]), np.array([1e-4]), HINGE)
    assert inside.curvature(point)[0, 0] == pytest.approx(1e4)


def test_residuals_are_those_of_the_losses():
    z, y = np.array([[0.25, -2.0]]), np.array([[1.0, -1.0]])
    np.testing.assert_array_equal(inside.residuals(losses.HINGE, z, y)[0], [[0.75, -1.0]])
    np.testing.assert_array_equal(inside.residuals(losses.QUANTILE, z, y)[0], [[0.75, 1.0]])
