"""Products of a block of values with vectors over its features and over its samples.

Values are dense and C-contiguous or CSR; vectors carry a leading axis of outputs (one row per
one-vs-rest model), so scores are (outputs, samples) and weights are (outputs, features).
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.sparse import csr_array

from intarsia.data import Array, Values

__all__ = ["gather", "row_norms", "scores", "weigh_rows"]

_FAST = {"reassoc", "contract", "arcp", "nsz"}  # sums may be reordered so that they vectorise


def scores(x: Values, w: Array) -> Array:
    """Return X w for each output, (outputs, samples)."""
    if not isinstance(x, csr_array):
        return np.ascontiguousarray((x @ w.T).T)
    return _sparse_scores(x.data, x.indices, x.indptr, w)


def gather(x: Values, a: Array) -> Array:
    """Return Xᵀ a for each output, (outputs, features)."""
    if not isinstance(x, csr_array):
        return np.asarray(a @ x)
    return _sparse_gather(x.data, x.indices, x.indptr, a, x.shape[1])


def row_norms(x: Values) -> Array:
    """Return the squared Euclidean norm of each row, (samples,)."""
    if isinstance(x, csr_array):
        squares = csr_array((x.data**2, x.indices, x.indptr), shape=x.shape)
        return np.asarray(squares.sum(axis=1), np.float64)
    return np.asarray(np.einsum("ij,ij->i", x, x), np.float64)


def weigh_rows(x: Values, factor: Array) -> Values:
    """Return the values with each row multiplied by a factor, (samples, features)."""
    if isinstance(x, csr_array):
        data = x.data * np.repeat(factor, np.diff(x.indptr))
        return csr_array((data, x.indices, x.indptr), shape=x.shape)
    return x * factor[:, None]


@njit(cache=True, nogil=True, fastmath=_FAST)  # type: ignore[untyped-decorator]
def _sparse_scores(
    data: Array, indices: NDArray[np.int32], indptr: NDArray[np.int32], w: Array
) -> Array:
    outputs, samples = w.shape[0], len(indptr) - 1
    z = np.empty((outputs, samples))
    for c in range(outputs):
        for i in range(samples):
            total = 0.0
            for j in range(indptr[i], indptr[i + 1]):
                total += data[j] * w[c, indices[j]]
            z[c, i] = total
    return z


@njit(cache=True, nogil=True, fastmath=_FAST)  # type: ignore[untyped-decorator]
def _sparse_gather(
    data: Array, indices: NDArray[np.int32], indptr: NDArray[np.int32], a: Array, features: int
) -> Array:
    outputs, samples = a.shape[0], len(indptr) - 1
    w = np.zeros((outputs, features))
    for c in range(outputs):
        for i in range(samples):
            weight = a[c, i]
            if weight != 0.0:
                for j in range(indptr[i], indptr[i + 1]):
                    w[c, indices[j]] += weight * data[j]
    return w
