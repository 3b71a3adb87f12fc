"""Stochastic gradient descent on L2-regularised linear models.

One step takes the mean gradient of λ/2 ‖w‖² + l(wᵀx_i, y_i) over a batch of rows. One-vs-rest
models carry a class axis first: weights (outputs, features), labels (outputs, samples).

Symbols: x rows, y labels, w weights, λ `regularisation`, η `rate`.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from intarsia.maths.jit import ask_for_row, compiled
from intarsia.maths.linear.losses import HINGE, LOGISTIC, SQUARED_HINGE
from intarsia.maths.linear.products import add_row, row_product
from intarsia.maths.linear.sdca import Rows

Array = NDArray[np.float64]
Order = NDArray[np.int64]

_SMALL = 1e-100  # below this the common factor of sparse weights is multiplied out


def descend(
    x: Rows,
    y: Array,
    w: Array,
    order: Order,
    *,
    rate: float,
    regularisation: float,
    loss: int,
    batch: int = 1,
) -> Array:
    """Return the weights after one step w ← (1 - ηλ)w - η/b Σ l'(wᵀx_i, y_i) x_i per batch.

    `order` are row numbers; every `batch` of them make one step, the last may be smaller. y is
    (outputs, samples), w is (outputs, features) and stays as it is.
    """
    w = np.array(w, np.float64, order="C")
    slopes = np.empty((len(w), batch))
    shrink = max(1.0 - rate * regularisation, 0.0)  # a step past 0 would change the sign of w
    if issparse(x):
        _descend_csr(
            x.data, x.indices, x.indptr, y, w, order, rate, shrink, loss, batch, slopes, _SMALL
        )
    else:
        _descend_dense(x, y, w, order, rate, shrink, loss, batch, slopes)
    return w


def _slope(loss: int, z: float, y: float) -> float:
    """Return l'(z) as `losses.derivative` does."""
    if loss == HINGE:
        return -y if y * z < 1.0 else 0.0
    if loss == SQUARED_HINGE:
        return -2.0 * y * max(1.0 - y * z, 0.0)
    if loss == LOGISTIC:
        score = y * z
        if score >= 0.0:
            tail = math.exp(-score)
            return -y * tail / (1.0 + tail)
        return -y / (1.0 + math.exp(score))
    return z - y


_slope = compiled(_slope)


def _descend_dense(
    x: Array,
    y: Array,
    w: Array,
    order: Order,
    rate: float,
    shrink: float,
    loss: int,
    batch: int,
    slopes: Array,
) -> None:
    features = x.shape[1]
    for start in range(0, len(order), batch):
        rows = order[start : start + batch]
        for b in range(len(rows)):
            for c in range(len(w)):
                z = 0.0
                for j in range(features):
                    z += x[rows[b], j] * w[c, j]
                slopes[c, b] = _slope(loss, z, y[c, rows[b]])
        for c in range(len(w)):
            for j in range(features):
                w[c, j] *= shrink
            for b in range(len(rows)):
                move = rate * slopes[c, b] / len(rows)
                if move != 0.0:
                    for j in range(features):
                        w[c, j] -= move * x[rows[b], j]


_descend_dense = compiled(_descend_dense, reassociate=True)


def _descend_csr(
    data: Array,
    indices: NDArray[np.int32],
    indptr: NDArray[np.int32],
    y: Array,
    w: Array,
    order: Order,
    rate: float,
    shrink: float,
    loss: int,
    batch: int,
    slopes: Array,
    small: float,
) -> None:
    factor = 1.0  # the weights are factor · w, so that a step touches the entries of its rows only
    for start in range(0, len(order), batch):
        rows = order[start : start + batch]
        for b in range(len(rows)):
            ask_for_row(data, indices, indptr, order, start + b)
            for c in range(len(w)):
                z = row_product(data, indices, indptr[rows[b]], indptr[rows[b] + 1], w[c])
                slopes[c, b] = _slope(loss, factor * z, y[c, rows[b]])
        factor *= shrink
        if factor < small:
            w *= factor
            factor = 1.0
        for c in range(len(w)):
            for b in range(len(rows)):
                move = rate * slopes[c, b] / len(rows) / factor
                if move != 0.0:
                    add_row(data, indices, indptr[rows[b]], indptr[rows[b] + 1], -move, w[c])
    w *= factor


_descend_csr = compiled(_descend_csr, reassociate=True)
