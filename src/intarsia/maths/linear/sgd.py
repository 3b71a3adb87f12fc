"""Stochastic gradient descent on L2-regularised linear models.

One step takes the mean gradient of λ/2 ‖w‖² + l(wᵀx_i, y_i) over a batch of rows. One-vs-rest
models carry a class axis first: weights (outputs, features), labels (outputs, samples).

Symbols: x rows, y labels, w weights, λ `regularisation`, η `rate`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from intarsia.maths.jit import ask_for_row, compiled, reassociated
from intarsia.maths.linear.losses import HINGE, QUANTILE
from intarsia.maths.linear.products import Arrays, add_row, arrays, multiply_row
from intarsia.maths.linear.sdca import Rows
from intarsia.maths.linear.smoothed_losses import dual_point

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
    shape: float = 0.0,
    batch: int = 1,
) -> Array:
    """Return the weights after one step w ← (1 - ηλ)w - η/b Σ l'(wᵀx_i, y_i) x_i per batch.

    `order` are row numbers; every `batch` of them make one step, the last may be smaller. y is
    (outputs, samples), w is (outputs, features) and stays as it is.
    """
    w = np.array(w, np.float64, order="C")
    shrink = max(1.0 - rate * regularisation, 0.0)  # a step past 0 would change the sign of w
    _descend(arrays(x), y, w, order, rate, shrink, loss, shape, np.empty((len(w), batch)))
    return w


@compiled
def _slope(loss: int, z: float, y: float, shape: float) -> float:
    """Return l'(z) as `losses.derivative` does."""
    if loss == HINGE:
        return -y if y * z < 1.0 else 0.0
    if loss == QUANTILE:
        return -shape if z < y else 1.0 - shape if z > y else 0.0
    return -dual_point(loss, z, y, 0.0, 0.0, shape)[0]


@reassociated
def _descend(
    x: Arrays,
    y: Array,
    w: Array,
    order: Order,
    rate: float,
    shrink: float,
    loss: int,
    shape: float,
    slopes: Array,
) -> None:
    batch = slopes.shape[1]
    # the weights are factor · w, so that a step touches the entries of its sparse rows only
    factor = 1.0
    for start in range(0, len(order), batch):
        rows = order[start : start + batch]
        for b in range(len(rows)):
            ask_for_row(x, order, start + b)
            for c in range(len(w)):
                z = factor * multiply_row(x, rows[b], w[c])
                slopes[c, b] = _slope(loss, z, y[c, rows[b]], shape)
        if isinstance(x, tuple):
            factor *= shrink
            if factor < _SMALL:
                w *= factor
                factor = 1.0
        else:
            w *= shrink
        for c in range(len(w)):
            for b in range(len(rows)):
                move = rate * slopes[c, b] / len(rows) / factor
                if move != 0.0:
                    add_row(x, rows[b], -move, w[c])
    w *= factor
