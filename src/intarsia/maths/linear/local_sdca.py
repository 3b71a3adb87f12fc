"""Dual ascent on one client's slices of the rows, in a metric with one weight for each feature.

The proximal step in u with the term ½ Σ_j ρ_j (u_j - u⁰_j)² moves u_j by 1/(λ + ρ_j) times what
1/N Σ_i α_i x_ij changes by. So a dual step on a sample sees rows whose inner products weigh feature
j by v_j = 1/(λ + ρ_j); with v_j = 1/λ for all it is `sdca.ascend_slice`.

Symbols: x rows, α `alpha`, z scores, v `weights`, N samples.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from intarsia.core.block import Array, Values
from intarsia.maths.jit import ask_for_row, compiled, reassociated
from intarsia.maths.linear.losses import dual_step, weighted_step
from intarsia.maths.linear.products import Arrays, add_row, arrays, inlined_sum, multiply_row


def feature_squares(x: Values) -> Array:
    """Return Σ_i x_ij² of each feature, (features,)."""
    if isinstance(x, csr_array):
        return _sparse_squares(x.data, x.indices, x.shape[1])
    return np.asarray(np.einsum("ij,ij->j", x, x), np.float64)


@compiled
def _sparse_squares(data: Array, indices: NDArray[Any], columns: int) -> Array:
    found = np.zeros(columns)
    for j in range(len(data)):
        found[np.uint32(indices[j])] += data[j] * data[j]
    return found


def weighted_norms(x: Values, weights: Array) -> Array:
    """Return Σ_j v_j x_ij² of each row, (samples,); `weights` is (features,)."""
    return _weighted_norms(arrays(x), x.shape[0], weights)


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
    shape: float = 0.0,
    sample_weights: Array | None = None,
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
    sample_weights : (samples,), multiply the losses; None: 1
    """
    coupling = sigma / samples
    curvature = coupling * norms * row_scale**2
    given = (y, alpha, z, curvature, row_scale, order, coupling, loss, shape)
    return ascend_on_rows(arrays(x), *given, weights, x.shape[1], sample_weights)


@reassociated
def _weighted_norms(x: Arrays, samples: int, weights: Array) -> Array:
    norms = np.zeros(samples)
    for i in range(samples):
        total = 0.0  # as in `products.row_norms`: the same order wherever the arrays lie
        if isinstance(x, tuple):
            data, indices, indptr = x
            for k in range(indptr[i], indptr[i + 1]):
                total += weights[indices[k]] * data[k] * data[k]
        else:
            for j in range(x.shape[1]):
                total += weights[j] * x[i, j] * x[i, j]
        norms[i] = total
    return norms


@inlined_sum
def _add_weighted(x: Arrays, i: int, factor: float, weights: Array, w: Array) -> None:
    if isinstance(x, tuple):
        data, indices, indptr = x
        for k in range(np.uint64(indptr[i]), np.uint64(indptr[i + 1])):
            j = np.uint32(indices[k])
            w[j] += factor * weights[j] * data[k]
    else:
        for column in range(x.shape[1]):
            w[column] += factor * weights[column] * x[i, column]


@reassociated
def ascend_on_rows(
    x: Arrays,
    y: Array,
    alpha: Array,
    z: Array,
    curvature: Array,
    row_scale: Array,
    order: NDArray[np.int64],
    coupling: float,
    loss: int,
    shape: float,
    weights: Array | None,
    features: int,
    sample_weights: Array | None,
) -> Array:
    """Return the steps of `sdca.ascend_slice`, or with weights of `ascend_weighted`.

    `curvature`, (samples,), is q of `losses.dual_step`.
    """
    steps, move = np.zeros(alpha.shape), np.zeros((alpha.shape[0], features))
    for turn in range(len(order)):
        ask_for_row(x, order, turn)
        i = order[turn]
        for c in range(y.shape[0]):
            own = multiply_row(x, i, move[c])
            score = z[c, i] + coupling * row_scale[i] * own
            now = alpha[c, i] + steps[c, i]
            if sample_weights is None:
                step = dual_step(loss, now, y[c, i], score, curvature[i], shape)
            else:
                weight = sample_weights[i]
                step = weighted_step(loss, now, y[c, i], score, curvature[i], weight, shape)
            if step != 0.0:
                steps[c, i] += step
                if weights is None:
                    add_row(x, i, step * row_scale[i], move[c])
                else:
                    _add_weighted(x, i, step * row_scale[i], weights, move[c])
    return steps
