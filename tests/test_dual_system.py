"""The Newton system of the dual, against a dense solve."""

import numpy as np
import pytest

from intarsia.maths.dual_system import advance_residual, image_of_solution, move_centre


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
    new, point = move_centre(y, z, centre, last, weight, momentum, np.array([0, 1, 2]))
    # β = clip(0.25 + 0.5 (1 - yz), 0, 1) = 0.5, 1, 0; c = clip(β + 0.5 (β - 0.2), 0, 1)
    assert point[0].tolist() == [0.5, 1.0, 0.0]
    assert new[0].tolist() == pytest.approx([0.65, 1.0, 0.0])
    assert (new[1] == centre[1]).all()
    assert (point[1] == last[1]).all()
    assert centre[0, 0] == 0.25
