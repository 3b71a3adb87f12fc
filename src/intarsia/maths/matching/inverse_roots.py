"""(MMᵀ + ε)^-½ M of many small matrices M, and what alignment takes from it, compiled.

MMᵀ = V Λ Vᵀ by Householder reflections to a tridiagonal matrix and implicit QL steps on that one
(Golub and Van Loan, "Matrix Computations", sections 8.3.1 and 8.3.3; Wilkinson's shift). LAPACK's
functions do the same for one large matrix; of some ten to a hundred rows half of their time goes
into calls, and what stands around them, in Python, takes as long again.

What is orthogonal is kept transposed, so that reflections and rotations go along rows.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.maths.jit import reassociated

Matrix = NDArray[Any]  # of float32 or float64
_MOST = 60  # QL steps for one eigenvalue; it takes two


@reassociated
def inverse_roots_of_classes(
    rows: Matrix, others: Matrix, y: NDArray[np.int64], classes: int, smoothing: float
) -> tuple[Matrix, Matrix, bool]:
    """Return each learner's sum of traces, (learners,), and its slopes; see `root_trace`.

    Parameters
    ----------
    rows, others : (learners, rows, k), X and Y; `others` without columns where YᵀY is the identity
    y : (learners, rows), the class of each row; `classes` for rows that do not count

    Returns
    -------
    The traces, the slopes, (learners, rows, k), and whether all eigenvalues were found.
    """
    learners, length, width = rows.shape
    traces, slopes = np.zeros(learners, rows.dtype), np.zeros_like(rows)
    mine = np.empty(length, np.int64)
    for learner in range(learners):
        total = 0.0
        for number in range(classes):
            count = 0
            for row in range(length):
                if y[learner, row] == number:
                    mine[count] = row
                    count += 1
            if count == 0:
                continue
            product = np.empty((count, width), rows.dtype)
            for place in range(count):
                product[place] = rows[learner, mine[place]]
            theirs = np.empty((count, others.shape[2]), rows.dtype)
            if others.shape[2] > 0:
                for place in range(count):
                    theirs[place] = others[learner, mine[place]]
                product = np.dot(product, theirs.T)
            trace, found = inverse_root(product, smoothing)
            if not trace >= 0.0:
                return traces, slopes, False
            total += trace
            if others.shape[2] > 0:
                found = np.dot(found, theirs)
            for place in range(count):
                slopes[learner, mine[place]] = found[place]
        traces[learner] = total
    return traces, slopes, True


@reassociated
def distances_of_classes(
    points: Matrix, y: NDArray[np.int64], means: Matrix, deviation: float, smoothing: float
) -> tuple[Matrix, Matrix, Matrix, bool]:
    """Return each learner's Σ_c W₂² to N(v_c, e I), and its slopes; see `distribution_distances`.

    Parameters
    ----------
    points : (learners, rows, k)
    y : (learners, rows), the class of each row; the number of classes for rows that do not count
    means : (learners, classes, k), v_c
    deviation : √e

    Returns
    -------
    The distances, their slopes along the points and along the means, and whether all eigenvalues
    were found.
    """
    learners, length, width = points.shape
    kind = points.dtype.type
    distances, slopes = np.zeros(learners, points.dtype), np.zeros_like(points)
    shifts = np.zeros_like(means)
    mine = np.empty(length, np.int64)
    for learner in range(learners):
        total = 0.0
        for number in range(means.shape[1]):
            count = 0
            for row in range(length):
                if y[learner, row] == number:
                    mine[count] = row
                    count += 1
            if count == 0:
                continue
            anchor, centre = means[learner, number], np.zeros(width, points.dtype)
            for place in range(count):
                point = points[learner, mine[place]]
                for k in range(width):
                    centre[k] += point[k]
            share, scale = kind(1.0 / count), kind(deviation / math.sqrt(count))
            for k in range(width):
                centre[k] *= share
            matrix, away = np.empty((count, width), points.dtype), kind(0.0)
            for place in range(count):
                point = points[learner, mine[place]]
                for k in range(width):
                    matrix[place, k] = scale * (point[k] - centre[k])
                    away += (point[k] - anchor[k]) * (point[k] - anchor[k])
            trace, found = inverse_root(matrix, smoothing)
            if not trace >= 0.0:
                return distances, slopes, shifts, False
            total += away * share + deviation * deviation * width - 2.0 * trace
            for place in range(count):
                point, slope = points[learner, mine[place]], slopes[learner, mine[place]]
                for k in range(width):
                    slope[k] = kind(2.0) * (
                        share * (point[k] - anchor[k]) - scale * found[place, k]
                    )
            for k in range(width):
                shifts[learner, number, k] = kind(2.0) * (anchor[k] - centre[k])
        distances[learner] = total
    return distances, slopes, shifts, True


@reassociated
def inverse_root(given: Matrix, smoothing: float) -> tuple[float, Matrix]:
    """Return Σ √(λ + ε) - √ε over the eigenvalues λ of MMᵀ, and (MMᵀ + ε)^-½ M.

    The trace is -1 where the eigenvalues cannot be found, as of numbers that are not finite.
    """
    # MᵀM has the same eigenvalues but for zeros
    tall = given.shape[0] > given.shape[1]
    matrix = given.T.copy() if tall else given
    values, vectors, found = _decomposed(np.dot(matrix, matrix.T))
    if not found:
        return -1.0, given
    turned = np.dot(vectors, matrix)
    root, trace = math.sqrt(smoothing), 0.0
    for number in range(len(values)):
        value = max(values[number], 0.0)
        trace += value / (math.sqrt(value + smoothing) + root)
        turned[number] *= values.dtype.type(1.0 / math.sqrt(value + smoothing))
    slopes = np.dot(vectors.T, turned)
    return trace, slopes.T.copy() if tall else slopes


@reassociated
def _decomposed(matrix: Matrix) -> tuple[Matrix, Matrix, bool]:
    """Return the eigenvalues of a matrix MMᵀ and the eigenvectors, one in each row.

    The matrix is overwritten. False: they were not found.
    """
    unit = _unit_of(matrix)
    matrix /= unit
    diagonal, beside, inverses = _tridiagonal(matrix)
    vectors = _reflected(matrix, inverses)
    found = _rotate(diagonal, beside, vectors)
    diagonal *= unit
    return diagonal, vectors, found


@reassociated
def _unit_of(matrix: Matrix) -> Any:
    """Return the power of two by which the largest entry of a positive matrix is about 1.

    Squares of its entries are then numbers, and no digit changes by it. Where no entry is above 0,
    or one is not finite, it is 1.
    """
    most = matrix.dtype.type(0.0)
    for i in range(len(matrix)):
        most = max(most, matrix[i, i])
    if not (most > 0.0 and math.isfinite(most)):
        return matrix.dtype.type(1.0)
    return matrix.dtype.type(math.ldexp(1.0, math.frexp(most)[1] - 1))


@reassociated
def _tridiagonal(matrix: Matrix) -> tuple[Matrix, Matrix, Matrix]:
    """Return T of A = Q T Qᵀ: its diagonal and what stands beside it; and 2/‖v‖² of reflections.

    Row i of the matrix then holds v of the reflection H_i, of which Q = H_{n-1} … H_1 is made.
    """
    count = len(matrix)
    none, half = matrix.dtype.type(0.0), matrix.dtype.type(0.5)
    # of the largest entry, which is about 1; what is below its rounding's square is no direction,
    # as where rows are alike, and has no inverse
    small = matrix.dtype.type(np.finfo(matrix.dtype).eps ** 4)
    diagonal, beside = np.empty(count, matrix.dtype), np.zeros(count, matrix.dtype)
    inverses, image = np.zeros(count, matrix.dtype), np.empty(count, matrix.dtype)
    for i in range(count - 1, 0, -1):
        v = matrix[i]
        diagonal[i] = v[i]
        square = none
        for k in range(i - 1):
            square += v[k] * v[k]
        last = v[i - 1]
        if not square > small:
            beside[i - 1] = last
            continue
        length = math.sqrt(square + last * last)
        beside[i - 1] = -length if last > none else length
        v[i - 1] = last - beside[i - 1]
        inverse = matrix.dtype.type(1.0) / (length * length - last * beside[i - 1])
        inverses[i] = inverse
        image[:i] = none
        for j in range(i):
            row, factor = matrix[j], v[j]
            for k in range(i):
                image[k] += factor * row[k]
        product = none
        for k in range(i):
            image[k] *= inverse
            product += image[k] * v[k]
        product *= half * inverse
        for k in range(i):
            image[k] -= product * v[k]
        for j in range(i):
            row, factor, other = matrix[j], v[j], image[j]
            for k in range(i):
                row[k] -= factor * image[k] + other * v[k]
    diagonal[0] = matrix[0, 0]
    return diagonal, beside, inverses


@reassociated
def _reflected(reflections: Matrix, inverses: Matrix) -> Matrix:
    """Return Qᵀ = H_1 … H_{n-1}."""
    count = len(reflections)
    found = np.zeros((count, count), reflections.dtype)
    for i in range(count):
        found[i, i] = 1.0
        v, inverse = reflections[i], inverses[i]
        if inverse == 0.0:
            continue
        for j in range(i):
            row, product = found[j], reflections.dtype.type(0.0)
            for k in range(i):
                product += row[k] * v[k]
            product *= inverse
            for k in range(i):
                row[k] -= product * v[k]
    return found


@reassociated
def _rotate(diagonal: Matrix, beside: Matrix, vectors: Matrix) -> bool:
    """Turn a tridiagonal matrix into a diagonal one, and the rows of `vectors` with it.

    What is beside the diagonal counts as zero below the rounding of the largest entry.
    """
    count, width = vectors.shape
    none, one, two = diagonal.dtype.type(0.0), diagonal.dtype.type(1.0), diagonal.dtype.type(2.0)
    most, total = none, none
    for i in range(count):
        size = abs(diagonal[i]) + abs(beside[i])
        most, total = max(most, size), total + size
    if not math.isfinite(total):
        return False
    small = np.finfo(diagonal.dtype).eps * most
    for first in range(count):
        for step in range(_MOST + 1):
            end = first
            while end < count - 1 and abs(beside[end]) > small:
                end += 1
            if end == first:
                break
            if step == _MOST:
                return False
            ahead = (diagonal[first + 1] - diagonal[first]) / (two * beside[first])
            far = math.sqrt(ahead * ahead + one)
            shift = ahead - far if ahead < none else ahead + far
            ahead = diagonal[end] - diagonal[first] + beside[first] / shift
            sine, cosine, moved, split = one, one, none, False
            for i in range(end - 1, first - 1, -1):
                bulge, kept = sine * beside[i], cosine * beside[i]
                length = math.sqrt(bulge * bulge + ahead * ahead)
                beside[i + 1] = length
                if length == none:
                    diagonal[i + 1] -= moved
                    split = True
                    break
                inverse = one / length
                sine, cosine = bulge * inverse, ahead * inverse
                ahead = diagonal[i + 1] - moved
                change = (diagonal[i] - ahead) * sine + two * cosine * kept
                moved = sine * change
                diagonal[i + 1] = ahead + moved
                ahead = cosine * change - kept
                lower, upper = vectors[i], vectors[i + 1]
                for k in range(width):
                    value = upper[k]
                    upper[k] = sine * lower[k] + cosine * value
                    lower[k] = cosine * lower[k] - sine * value
            if not split:
                diagonal[first] -= moved
                beside[first] = ahead
            beside[end] = none
    return True
