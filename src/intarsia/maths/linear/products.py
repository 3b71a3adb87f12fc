"""Products of a block of values with vectors over its features and over its samples.

Values are dense and C-contiguous or CSR; vectors carry a leading axis of outputs (one row per
one-vs-rest model), so scores are (outputs, samples) and weights are (outputs, features).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse

from intarsia.core.block import Array, Values
from intarsia.maths.jit import compiled, inlined, reassociated

# A table as kernels read it: data, indices and indptr of one in CSR, or a dense array.
Csr = tuple[Array, NDArray[Any], NDArray[np.int32]]
Arrays = Csr | Array

_FEW = 4  # outputs up to which one pass over the rows for each beats a matrix product
_PROJECTED_AT_ONCE = 8192  # rows of a dense table: a copy of them lies beside the products


def arrays(x: Any) -> Any:
    """Return the `Arrays` of a table."""
    return (x.data, x.indices, x.indptr) if issparse(x) else x


def scores(x: Values, w: NDArray[Any]) -> NDArray[Any]:
    """Return X w for each output, (outputs, samples), in the precision of the values."""
    if isinstance(x, csr_array):
        return _sparse_scores(arrays(x), w)
    if len(w) <= _FEW and x.flags.c_contiguous:
        z = np.empty((len(w), len(x)), np.result_type(x, w))
        _dense_scores(x, w, z)
        return z
    # OpenBLAS (0.3.31) calls a product of five columns in single precision invalid for what happens
    # to lie beside them in its registers; the product is right.
    with np.errstate(invalid="ignore"):
        return np.ascontiguousarray((x @ w.T).T)


def gather(x: Values, a: Array) -> Array:
    """Return Xᵀ a for each output, (outputs, features); rows of weight 0 are not read."""
    if isinstance(x, csr_array) or len(a) <= _FEW:
        w = np.zeros((len(a), x.shape[1]))
        _gather(arrays(x), a, w)
        return w
    return np.asarray(a @ x)


def row_norms(x: Values) -> Array:
    """Return the squared Euclidean norm of each row, (samples,)."""
    if isinstance(x, csr_array):
        return _sparse_norms(x.data, x.indptr)
    norms = np.empty(len(x))
    _dense_norms(x, norms)
    return norms


def project_rows(x: Values, rows: NDArray[np.int64], frame: Array) -> Array:
    """Return the products of some rows with the rows of a frame, (frame, rows).

    `frame` is (frame, features), as a transposed C-contiguous array for sparse values.
    """
    if isinstance(x, csr_array):
        return _sparse_project(arrays(x), rows, frame.T).T
    found = np.empty((len(frame), len(rows)))
    for start in range(0, len(rows), _PROJECTED_AT_ONCE):
        some = slice(start, start + _PROJECTED_AT_ONCE)
        found[:, some] = frame @ x[rows[some]].T
    return found


@inlined
def row_product(data: Array, places: NDArray[Any], start: int, stop: int, w: Array) -> float:
    """Return the sum of data[j] · w[places[j]] over start <= j < stop.

    Four sums at a time hide the latency of an addition; places without a sign need no check for
    negative ones. Left to itself the compiler loads entries of w with vector instructions, which
    takes twice as long.
    """
    j, end = np.uint64(start), np.uint64(stop)
    one, two, three, four = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)
    first, second, third, fourth = 0.0, 0.0, 0.0, 0.0
    while j + three < end:
        first += data[j] * w[np.uint32(places[j])]
        second += data[j + one] * w[np.uint32(places[j + one])]
        third += data[j + two] * w[np.uint32(places[j + two])]
        fourth += data[j + three] * w[np.uint32(places[j + three])]
        j += four
    while j < end:
        first += data[j] * w[np.uint32(places[j])]
        j += one
    return (first + second) + (third + fourth)


@inlined
def _add_sparse(
    data: Array, places: NDArray[Any], start: int, stop: int, factor: float, w: Array
) -> None:
    for j in range(np.uint64(start), np.uint64(stop)):
        w[np.uint32(places[j])] += factor * data[j]


# Sums over dense rows may be taken in another order; those over sparse ones say theirs.
inlined_sum = partial(compiled, reassociate=True, inline=True)


@inlined_sum
def multiply_row(x: Arrays, i: int, w: Array) -> float:
    """Return the product of a row with w, (features,)."""
    if isinstance(x, tuple):
        return row_product(x[0], x[1], x[2][i], x[2][i + 1], w)
    total = 0.0
    for j in range(x.shape[1]):
        total += x[i, j] * w[j]
    return total


@inlined_sum
def add_row(x: Arrays, i: int, factor: float, w: Array) -> None:
    """Add factor times a row to w, (features,)."""
    if isinstance(x, tuple):
        _add_sparse(x[0], x[1], x[2][i], x[2][i + 1], factor, w)
    else:
        for j in range(x.shape[1]):
            w[j] += factor * x[i, j]


@reassociated
def _sparse_norms(data: Array, indptr: NDArray[np.int32]) -> Array:
    norms = np.zeros(len(indptr) - 1)
    for i in range(len(norms)):
        total = 0.0  # summed into the array, the order would depend on where it lies in memory
        for j in range(indptr[i], indptr[i + 1]):
            total += data[j] * data[j]
        norms[i] = total
    return norms


@reassociated
def _gather(x: Arrays, a: Array, w: Array) -> None:
    outputs, samples = a.shape
    for c in range(outputs):
        for i in range(samples):
            if a[c, i] != 0.0:
                add_row(x, i, a[c, i], w[c])


@compiled
def _sparse_scores(x: Csr, w: Array) -> Array:
    outputs, samples = w.shape[0], len(x[2]) - 1
    z = np.empty((outputs, samples))
    for c in range(outputs):
        for i in range(samples):
            z[c, i] = multiply_row(x, i, w[c])
    return z


@reassociated
def _dense_scores(x: NDArray[Any], w: NDArray[Any], z: NDArray[Any]) -> None:
    for i in range(x.shape[0]):
        for c in range(w.shape[0]):
            total = z.dtype.type(0)
            for j in range(x.shape[1]):
                total += x[i, j] * w[c, j]
            z[c, i] = total


@reassociated
def _dense_norms(x: NDArray[Any], norms: Array) -> None:
    for i in range(x.shape[0]):
        total = 0.0
        for j in range(x.shape[1]):
            total += x[i, j] * x[i, j]
        norms[i] = total


@reassociated
def _sparse_project(x: Csr, rows: NDArray[np.int64], frame: Array) -> Array:
    data, indices, indptr = x
    size = frame.shape[1]
    found = np.zeros((len(rows), size))
    for k in range(len(rows)):
        for j in range(indptr[rows[k]], indptr[rows[k] + 1]):
            value, feature = data[j], indices[j]
            for m in range(size):
                found[k, m] += value * frame[feature, m]
    return found
