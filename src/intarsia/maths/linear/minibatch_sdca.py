"""Dual steps on many samples at a time that are coupled through the mean row alone.

Rows of text are nearly orthogonal but for what each has of the mean row: with a unit vector u
along it and t_i = x_iᵀu, the Gram matrix is close to ‖x_i‖² on the diagonal and t_i t_j off it.
So a walk over some samples needs no row: one running scalar couples its steps. Walks that are
taken elsewhere at the same time are taken to move alike.

Symbols: z scores, α `alpha`, q curvature of the dual along one sample, t `along`.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from intarsia.core.block import Array
from intarsia.maths.jit import compiled, reassociated
from intarsia.maths.linear.losses import HINGE, LOGISTIC, SQUARED_HINGE, dual_step, weighted_step


@compiled
def _rise(loss: int, alpha: float, y: float, step: float) -> tuple[float, float]:
    """Return slope and bend of -l*(-α) along a step: γ·slope - ½γ²·bend on top of its value.

    It is exact but for the logistic loss, whose bend is that of the secant.
    """
    if loss == HINGE:
        return y * step, 0.0
    if loss == SQUARED_HINGE:
        return y * step - 0.5 * alpha * step, 0.5 * step * step
    if loss == LOGISTIC:
        old = min(max(y * alpha, 1e-12), 1.0 - 1e-12)
        new = min(max(y * (alpha + step), 1e-12), 1.0 - 1e-12)
        start, end = math.log(old / (1.0 - old)), math.log(new / (1.0 - new))
        return -y * step * start, y * step * (end - start)
    return step * (y - alpha), step * step


@compiled
def coupled_steps(
    loss: int,
    labels: Array,
    alpha: Array,
    z: Array,
    norms: Array,
    along: Array,
    rows: NDArray[np.int64],
    edges: NDArray[np.int64],
    peers: Array,
    scale: float,
    active: NDArray[np.bool_],
    counted: NDArray[np.bool_],
    weights: Array | None = None,
    shape: float = 0.0,
) -> tuple[Array, Array]:
    """Return the steps Δα, (outputs, rows), and Σ slope and Σ bend of the dual, (outputs, 2).

    Parameters
    ----------
    labels : (samples,), as a block holds them; with several outputs the number of the class
    alpha : (outputs, samples)
    z : (outputs, rows), scores
    norms, along : (samples,), ‖x_i‖² and t_i
    rows : samples to step on
    edges : (walks + 1,), where the walks begin in `rows`
    peers : (walks,), how many walks like this one are taken at the same time
    scale : 1/(λN)
    active : (samples,), whether to step on a sample
    counted : (samples,), whether a sample counts in the sums
    weights : (samples,), multiply the losses; None: 1
    """
    outputs = alpha.shape[0]
    steps = np.zeros((outputs, len(rows)))
    sums = np.zeros((outputs, 2))
    for c in range(outputs):
        for walk in range(len(peers)):
            others = peers[walk]
            run = 0.0
            for k in range(edges[walk], edges[walk + 1]):
                i = rows[k]
                if not active[i]:
                    continue
                y = labels[i]
                if outputs > 1:
                    y = 1.0 if y == c else -1.0
                t = along[i]
                q = (norms[i] + (others - 1.0) * t * t) * scale
                score = z[c, k] + others * run * t
                weight = 1.0
                if weights is None:
                    step = dual_step(loss, alpha[c, i], y, score, q, shape)
                else:
                    weight = weights[i]
                    step = weighted_step(loss, alpha[c, i], y, score, q, weight, shape)
                steps[c, k] = step
                run += step * scale * t
                if counted[i] and step != 0.0:
                    slope, bend = _rise(loss, alpha[c, i] / weight, y, step / weight)
                    sums[c, 0] += slope * weight
                    sums[c, 1] += bend * weight
    return steps, sums


@compiled
def add_at(values: Array, rows: NDArray[np.int64], steps: Array, share: Array) -> Array:
    """Return values with share · steps added at some samples, (outputs, samples)."""
    new = values.copy()
    for c in range(values.shape[0]):
        for k in range(len(rows)):
            new[c, rows[k]] += share[c] * steps[c, k]
    return new


@compiled
def advanced(w: Array, change: Array, share: Array) -> Array:
    """Return w + share · change for each output, (outputs, features)."""
    new = np.empty(w.shape)
    for c in range(w.shape[0]):
        for j in range(w.shape[1]):
            new[c, j] = w[c, j] + share[c] * change[c, j]
    return new


@reassociated
def span_products(a: Array, b: Array, spans: NDArray[np.int64]) -> Array:
    """Return aᵀb for each output over the features in some spans, (outputs,)."""
    total = np.zeros(a.shape[0])
    for c in range(a.shape[0]):
        for k in range(len(spans)):
            part = 0.0
            for j in range(spans[k, 0], spans[k, 1]):
                part += a[c, j] * b[c, j]
            total[c] += part
    return total


@reassociated
def line_products(w: Array, change: Array, spans: NDArray[np.int64]) -> Array:
    """Return wᵀΔ and ‖Δ‖² of a change Δ over the features in some spans, (outputs, 2)."""
    total = np.zeros((w.shape[0], 2))
    for c in range(w.shape[0]):
        for k in range(len(spans)):
            along, square = 0.0, 0.0
            for j in range(spans[k, 0], spans[k, 1]):
                along += w[c, j] * change[c, j]
                square += change[c, j] * change[c, j]
            total[c, 0] += along
            total[c, 1] += square
    return total
