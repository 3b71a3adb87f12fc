"""The Newton system of the dual, against a dense solve."""

import numpy as np
import pytest

from intarsia.maths.linear import losses
from intarsia.maths.linear.dual_newton_system import (
    advance_residual,
    hinge_slopes,
    image_of_solution,
    move_centre,
)
from intarsia.maths.linear.smoothed_losses import dual_points, slopes


def solved(curvature, gram, right, iterations):
    """Return solution and residual after conjugate gradients, one output."""
    zeros = np.zeros_like(right)
    everyone = np.ones(right.shape[1], bool)
    none = np.zeros(1)
    state = advance_residual(curvature, right, zeros, zeros, zeros, zeros, none, none, everyone)
    last, step = 0.0, 0.0
    for _ in range(iterations):
        residual, direction, image, solution, preconditioned, square = state
        products = preconditioned @ gram
        bend = square[0] + float(preconditioned[0] @ products[0])
        keep = square[0] / last if last > 0 else 0.0
        step = square[0] / (bend - (keep * square[0] / step if step > 0 else 0.0))
        last = square[0]
        state = advance_residual(
            curvature, residual, direction, image, solution, products,
            np.array([step]), np.array([keep]), everyone,
        )  # fmt: skip
    return state[3], state[0]


def test_conjugate_gradients_solve_the_system_of_the_samples_with_curvature():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 20))
    gram, right = x @ x.T / 10, rng.normal(size=(1, 8))
    curvature = np.array([[0.5, 2.0, 0.0, 1.0, 0.3, 0.0, 4.0, 1.5]])
    solution, residual = solved(curvature, gram, right, 6)
    held = np.flatnonzero(curvature[0])
    system = gram[np.ix_(held, held)] + np.diag(1 / curvature[0, held])
    expected = np.zeros(8)
    expected[held] = np.linalg.solve(system, right[0, held])
    np.testing.assert_allclose(solution[0], expected, atol=1e-10)
    # and what the solution leaves of the right-hand side is known everywhere
    image = image_of_solution(curvature, residual, solution)
    np.testing.assert_allclose(image[0], right[0] - gram @ expected, atol=1e-9)


def test_the_centre_moves_past_the_dual_point_and_stays_in_its_box():
    y = np.array([[1.0, -1.0, 1.0], [1.0, 1.0, 1.0]])
    z = np.array([[0.5, 0.5, 3.0], [0.0, 0.0, 0.0]])
    centre, last = np.full((2, 3), 0.25), np.full((2, 3), 0.2)
    weight, momentum = np.array([0.5, 0.5]), np.array([0.5, -1.0])
    reach, slack, rows = np.full((2, 3), 0.5), np.zeros((2, 3)), np.array([0, 1, 2])
    new, point, _, now = move_centre(y, z, centre, last, reach, slack, weight, momentum, rows)
    # β = clip(0.25 + 0.5 (1 - yz), 0, 1) = 0.5, 1, 0; c = clip(β + 0.5 (β - 0.2), 0, 1)
    assert point[0].tolist() == [0.5, 1.0, 0.0]
    assert new[0].tolist() == pytest.approx([0.65, 1.0, 0.0])
    assert now[0].tolist() == [0.5, 1.5, -2.0]
    assert (new[1] == centre[1]).all()
    assert (point[1] == last[1]).all()
    assert (now[1] == slack[1]).all()
    assert centre[0, 0] == 0.25


def test_the_smoothing_fades_where_a_dual_keeps_moving_one_way():
    y, z = np.ones((1, 4)), np.array([[0.9, 0.9, 1.1, -5.0]])
    slack = np.array([[0.2, -0.2, -0.1, 6.0]])  # the same side, the other, the same; at a bound
    centre, weight, none = np.full((1, 4), 0.5), np.array([0.5]), np.zeros(1)
    reach, rows = np.full((1, 4), 2.0), np.arange(4)
    _, _, far, _ = move_centre(y, z, centre, centre, reach, slack, weight, none, rows)
    assert far[0].tolist() == [2.6, 1.0, 2.6, 1.0]
    for _ in range(30):
        *_, far, slack = move_centre(y, z, centre, centre, far, slack, weight, none, rows)
    # as long as it takes: up to 64 times the least; one that leaves the box falls to the least
    assert far[0, 3] == 0.5
    assert (far[0, :3] <= 32.0).all()
    assert (far[0, :3] >= 0.5).all()


def test_points_and_slopes_of_equal_smoothing_are_those_of_the_smoothed_hinge():
    rng = np.random.default_rng(0)
    y, z = np.sign(rng.normal(size=(2, 30))), rng.normal(size=(2, 30))
    centre, direction = rng.random((2, 30)), rng.normal(size=(2, 30))
    weight, rows = np.array([0.3, 0.8]), np.arange(2, 30)
    reach = np.broadcast_to(weight[:, None], (2, 30)).copy()
    found, expected = np.zeros((2, 2, 30)), np.zeros((2, 2, 30))
    sums = dual_points(losses.HINGE, y, z, centre, reach, rows, *found)
    others = dual_points(losses.HINGE, y, z, centre, weight, rows, *expected)
    np.testing.assert_allclose(sums, others, rtol=1e-12)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    steps = np.tile([0.0, 0.5, 2.0], (2, 1))
    tried = hinge_slopes(y, z, direction, centre, reach, rows, steps)
    like = slopes(losses.HINGE, y, z, direction, centre, weight, rows, steps)
    np.testing.assert_allclose(tried, like, rtol=1e-10)


def test_each_sample_has_its_own_smoothing():
    y, z, centre = np.ones((1, 2)), np.full((1, 2), 0.9), np.full((1, 2), 0.2)
    reach, rows = np.array([[1.0, 4.0]]), np.arange(2)
    alpha, curvature = np.zeros((1, 2)), np.zeros((1, 2))
    dual_points(losses.HINGE, y, z, centre, reach, rows, alpha, curvature)
    # β = 0.2 + s 0.1
    assert alpha[0].tolist() == pytest.approx([0.3, 0.6])
    assert curvature[0].tolist() == [1.0, 4.0]
    slope = hinge_slopes(y, z, np.ones((1, 2)), centre, reach, rows, np.array([[0.0, 0.1]]))
    assert slope[0].tolist() == pytest.approx([0.9, 0.2 + 0.2])
