"""Dual ascent on one client's slices of the rows, in a metric with one weight for each feature.

The proximal step in u with the term ½ Σ_j ρ_j (u_j - u⁰_j)² moves u_j by 1/(λ + ρ_j) times what
1/N Σ_i α_i x_ij changes by. So a dual step on a sample sees rows whose inner products weigh feature
j by v_j = 1/(λ + ρ_j); with v_j = 1/λ for all it is `sdca.ascend_slice`.

Symbols: x rows, α `alpha`, z scores, v `weights`, N samples.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from intarsia.core.block import Array, Values
from intarsia.maths.jit import ask_for_row, reassociated
from intarsia.maths.linear.losses import dual_step
from intarsia.maths.linear.products import row_product


def feature_squares(x: Values) -> Array:
    """Return Σ_i x_ij² of each feature, (features,)."""
    if isinstance(x, csr_array):
        return np.bincount(x.indices, x.data**2, x.shape[1]).astype(np.float64, copy=False)
    return np.asarray(np.einsum("ij,ij->j", x, x), np.float64)


def weighted_norms(x: Values, weights: Array) -> Array:
    """Return Σ_j v_j x_ij² of each row, (samples,); `weights` is (features,)."""
    if isinstance(x, csr_array):
        return _sparse_norms(x.data, x.indices, x.indptr, weights)
    return _dense_norms(x, weights)


def ascend_weighted(
    x: Values,
    y: Array,
    alpha: Array,
    z: Array,
    norms: Array,
    row_scale: Array,
    order: NDArray[np.intp],
    *,
    weights: Array,
    sigma: float,
    samples: int,
    loss: int,
) -> Array:
    """Return the steps Δα, (outputs, samples), that one client takes on its slices of the rows.

    Parameters
    ----------
    x : the client's slices, (samples, features)
    y, alpha, z : (outputs, samples), labels, duals and full scores at the start
    norms : (samples,), of the client's slices in the metric
    row_scale : (samples,), what the rows are multiplied by to stand for the co-owners' parts too
    order : row numbers to step on, in this order
    weights : (features,), v
    sigma : σ, multiplies coupling and curvature
    samples : N, of all clients
    """
    steps = np.zeros(alpha.shape)
    move = np.zeros((alpha.shape[0], x.shape[1]))
    coupling = sigma / samples
    given = (y, alpha, z, norms, row_scale, order, weights, coupling, loss, steps, move)
    if isinstance(x, csr_array):
        _ascend_sparse(x.data, x.indices, x.indptr, *given)
    else:
        _ascend_dense(x, *given)
    return steps


@reassociated
def _dense_norms(x: Array, weights: Array) -> Array:
    norms = np.zeros(x.shape[0])
    for i in range(x.shape[0]):
        total = 0.0  # as in `products.row_norms`: the same order wherever the arrays lie
        for j in range(x.shape[1]):
            total += weights[j] * x[i, j] * x[i, j]
        norms[i] = total
    return norms


@reassociated
def _sparse_norms(
    data: Array, indices: NDArray[np.int32], indptr: NDArray[np.int32], weights: Array
) -> Array:
    norms = np.zeros(len(indptr) - 1)
    for i in range(len(norms)):
        total = 0.0
        for k in range(indptr[i], indptr[i + 1]):
            total += weights[indices[k]] * data[k] * data[k]
        norms[i] = total
    return norms


@reassociated
def _ascend_dense(
    x: Array,
    y: Array,
    alpha: Array,
    z: Array,
    norms: Array,
    row_scale: Array,
    order: NDArray[np.intp],
    weights: Array,
    coupling: float,
    loss: int,
    steps: Array,
    move: Array,
) -> None:
    features = x.shape[1]
    for i in order:
        q = coupling * norms[i] * row_scale[i] ** 2
        for c in range(y.shape[0]):
            own = 0.0
            for j in range(features):
                own += x[i, j] * move[c, j]
            score = z[c, i] + coupling * row_scale[i] * own
            step = dual_step(loss, alpha[c, i] + steps[c, i], y[c, i], score, q)
            if step != 0.0:
                steps[c, i] += step
                length = step * row_scale[i]
                for j in range(features):
                    move[c, j] += length * weights[j] * x[i, j]


@reassociated
def _ascend_sparse(
    data: Array,
    indices: NDArray[np.int32],
    indptr: NDArray[np.int32],
    y: Array,
    alpha: Array,
    z: Array,
    norms: Array,
    row_scale: Array,
    order: NDArray[np.intp],
    weights: Array,
    coupling: float,
    loss: int,
    steps: Array,
    move: Array,
) -> None:
    for turn in range(len(order)):
        ask_for_row(data, indices, indptr, order, turn)
        i = order[turn]
        start, stop = indptr[i], indptr[i + 1]
        q = coupling * norms[i] * row_scale[i] ** 2
        for c in range(y.shape[0]):
            own = row_product(data, indices, start, stop, move[c])
            score = z[c, i] + coupling * row_scale[i] * own
            step = dual_step(loss, alpha[c, i] + steps[c, i], y[c, i], score, q)
            if step != 0.0:
                steps[c, i] += step
                length = step * row_scale[i]
                for k in range(np.uint64(start), np.uint64(stop)):
                    j = np.uint32(indices[k])
                    move[c, j] += length * weights[j] * data[k]
