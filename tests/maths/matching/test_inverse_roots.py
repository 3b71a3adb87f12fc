"""(MMᵀ + ε)^-½ M of small matrices, against LAPACK and by hand."""

from __future__ import annotations

import numpy as np
import pytest

from intarsia.maths.matching.inverse_roots import inverse_root, inverse_roots_of_classes

EPSILON = 1e-3


def by_lapack(matrix, smoothing):
    left, values, right = np.linalg.svd(matrix.astype(float), full_matrices=False)
    roots = np.sqrt(values**2 + smoothing)
    return (roots - smoothing**0.5).sum(), (left * (values / roots)) @ right


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(1, 1), (1, 6), (2, 9), (7, 64), (48, 64), (64, 64), (90, 20)])
def test_roots_and_slopes_are_those_of_the_singular_values(kind, shape):
    generator = np.random.default_rng(shape[0])
    matrix = generator.normal(size=shape) @ np.diag(np.geomspace(1, 30, shape[1]))
    matrix = (matrix / shape[0] ** 0.5).astype(kind)
    trace, slopes = inverse_root(matrix, EPSILON)
    expected, expected_slopes = by_lapack(matrix, EPSILON)
    rounding = 200 * float(np.finfo(kind).eps)
    assert slopes.dtype == kind
    assert trace == pytest.approx(expected, rel=rounding)
    # a small singular value is known up to the rounding of the largest, which the root divides by
    loss = np.abs(matrix).max() ** 2 * shape[0] / EPSILON
    np.testing.assert_allclose(slopes, expected_slopes, rtol=0, atol=rounding * max(loss, 1))


def test_a_matrix_with_equal_rows_has_one_root():
    trace, slopes = inverse_root(np.full((3, 4), 2.0), 1.0)
    assert trace == pytest.approx(7.0 - 1.0)  # λ = 3·4·2² = 48, √(48 + 1) - 1
    np.testing.assert_allclose(slopes, np.full((3, 4), 2.0 / 7.0))


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_eigenvalues_that_agree_are_found(kind):
    for matrix in (np.eye(40), np.zeros((5, 8)), np.tile(np.eye(10), (1, 2))):
        trace, slopes = inverse_root(matrix.astype(kind), EPSILON)
        expected, expected_slopes = by_lapack(matrix, EPSILON)
        assert trace == pytest.approx(expected, rel=1e-5, abs=1e-12)
        np.testing.assert_allclose(slopes, expected_slopes, atol=1e-5)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("kinds", [1, 2, 3])
@pytest.mark.parametrize("size", [1.0, 1e-12, 1e-18])
def test_rows_of_few_kinds_have_roots(kind, kinds, size):
    # what is left of a direction is rounding, and rounding of rounding, down to what has no inverse
    generator = np.random.default_rng(kinds)
    for rows in (3, 30, 80):
        points = (size * generator.normal(size=(kinds, 64))).astype(kind)
        points = points[generator.integers(0, kinds, rows)]
        matrix = ((points - points.mean(axis=0)) / kind(rows**0.5)).astype(kind)
        trace, slopes = inverse_root(matrix, EPSILON)
        expected, expected_slopes = by_lapack(matrix, EPSILON)
        assert trace == pytest.approx(expected, rel=1e-4, abs=1e-10)
        np.testing.assert_allclose(slopes, expected_slopes, atol=1e-4)


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf, 1e30])
def test_numbers_that_are_not_finite_have_no_roots(odd):
    matrix = np.ones((3, 4), np.float32)
    matrix[1, 2] = odd  # the square of 1e30 is beyond float32
    assert inverse_root(matrix, EPSILON)[0] == -1.0
    rows, y = matrix[None], np.zeros((1, 3), np.int64)
    assert not inverse_roots_of_classes(rows, rows[..., :0], y, 1, EPSILON)[2]


def test_classes_of_learners_are_each_decomposed_alone():
    generator = np.random.default_rng(0)
    rows, others = generator.normal(size=(2, 2, 12, 5))
    y = generator.integers(0, 4, (2, 12))  # 3 stands for rows that do not count
    for theirs in (others, others[..., :0]):
        traces, slopes, found = inverse_roots_of_classes(rows, theirs, y, 3, EPSILON)
        assert found
        assert not slopes[y == 3].any()
        for learner in range(2):
            total = 0.0
            for number in range(3):
                own = y[learner] == number
                right = others[learner, own] if theirs.size else np.eye(5)
                trace, slope = by_lapack(rows[learner, own] @ right.T, EPSILON)
                total += trace
                np.testing.assert_allclose(slopes[learner, own], slope @ right, atol=1e-10)
            assert traces[learner] == pytest.approx(total, rel=1e-12)
