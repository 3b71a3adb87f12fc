"""Dual points, curvatures and slopes of the losses, smoothed where they need it.

For Newton's method the hinge is replaced by its proximal smoothing around a dual centre c, of
weight s: its dual point at the score z is β = clip(c + s(1 - yz), 0, 1), its curvature s where
0 < β < 1 and 0 elsewhere. So is the quantile loss, with α = clip(c + s(y - z), τ - 1, τ). The other
losses stay as they are: α = -l'(z), curvature l''(z).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from intarsia.core.block import Array
from intarsia.maths.jit import compiled, inlined, inlined_early
from intarsia.maths.linear.losses import (
    FEWEST,
    GAMMA,
    HINGE,
    HUBER,
    LOGISTIC,
    POISSON,
    QUANTILE,
    SQUARED_HINGE,
)

_EXPONENT = 300.0  # of a factor, at most: the product of two has a place among 64-bit numbers
_ROUNDINGS = 16  # of exponentials in a product, at most
_EDGE = 1e-6  # of the box, within which a dual counts as at its bound: it may carry noise


@inlined
def dual_point(
    loss: int, z: float, y: float, centre: float, weight: float, shape: float = 0.0
) -> tuple[float, float]:
    """Return the dual point α and the curvature at a score."""
    if loss == HINGE:
        beta = centre + weight * (1.0 - y * z)
        if beta <= 0.0:
            return 0.0, 0.0
        if beta >= 1.0:
            return y, 0.0
        return y * beta, weight
    if loss == SQUARED_HINGE:
        slack = 1.0 - y * z
        return (2.0 * y * slack, 2.0) if slack > 0.0 else (0.0, 0.0)
    if loss == LOGISTIC:
        margin = y * z
        if margin > 0.0:
            small = math.exp(-margin)
            beta = small / (1.0 + small)
        else:
            beta = 1.0 / (1.0 + math.exp(margin))
        return y * beta, beta * (1.0 - beta)
    if loss == HUBER:
        alpha = min(max(y - z, -shape), shape)
        return alpha, 1.0 if abs(alpha) < shape else 0.0
    if loss == QUANTILE:
        alpha = min(max(centre + weight * (y - z), shape - 1.0), shape)
        return alpha, weight if shape - 1.0 < alpha < shape else 0.0
    if loss == POISSON:
        mean = math.exp(z)
        return y - mean, mean
    if loss == GAMMA:
        ratio = y * math.exp(-z)
        return ratio - 1.0, ratio
    return y - z, 1.0


@inlined_early
def _value(loss: int, z: float, y: float, shape: float) -> float:
    """Return l(z, y)."""
    slack = 1.0 - y * z
    if loss == HINGE:
        return max(slack, 0.0)
    if loss == SQUARED_HINGE:
        return max(slack, 0.0) ** 2
    if loss == LOGISTIC:
        margin = y * z
        return math.log1p(math.exp(-abs(margin))) + max(-margin, 0.0)
    if loss == HUBER:
        size = abs(y - z)
        return 0.5 * size * size if size <= shape else shape * (size - 0.5 * shape)
    if loss == QUANTILE:
        return max(shape * (y - z), (shape - 1.0) * (y - z))
    if loss == POISSON:
        distance = z - math.log(max(y, FEWEST))
        if distance > 1.0:
            return math.exp(z) - y * (1.0 + distance)
        return y * (math.expm1(distance) - distance)
    if loss == GAMMA:
        t = math.log(y) - z
        return math.expm1(t) - t
    return 0.5 * (z - y) ** 2


@inlined_early
def _minus_conjugate(loss: int, alpha: float, y: float) -> float:
    """Return -l*(-α) for an α in its box."""
    beta = y * alpha
    if loss == HINGE:
        return beta
    if loss == SQUARED_HINGE:
        return beta - 0.25 * beta * beta
    if loss == LOGISTIC:
        total = 0.0
        if beta > 0.0:
            total -= beta * math.log(beta)
        if beta < 1.0:
            total -= (1.0 - beta) * math.log1p(-beta)
        return total
    if loss == QUANTILE:
        return alpha * y
    if loss == POISSON:
        mean = y - alpha
        if y < FEWEST:
            return -alpha - (mean * math.log(mean) if mean > 0.0 else 0.0)
        total = alpha * (math.log(y) - 1.0)
        if mean > 0.0:
            total -= mean * math.log1p(-alpha / y)
        return total
    if loss == GAMMA:
        ratio = 1.0 + alpha
        total = alpha * (1.0 + math.log(y))
        if ratio > 0.0:
            total -= ratio * math.log(ratio)
        return total
    return alpha * y - 0.5 * alpha * alpha


def dual_points(
    loss: int,
    y: Array,
    z: Array,
    centre: Array,
    weight: Array,
    rows: NDArray[np.int64],
    alpha: Array,
    curvature: Array,
    weights: Array | None = None,
    shape: float = 0.0,
) -> Array:
    """Fill the dual points and curvatures of some rows; return sums over them, (outputs, 4).

    The sums are Σ l(z), Σ -l*(-α), Σ (β - centre)² of the hinge and the quantile loss, Σ α² of the
    Gamma loss (Pearson's χ²) and else 0, and the number of rows with curvature.

    Parameters
    ----------
    y, z, centre : (outputs, samples)
    weight : (outputs,), of the smoothing; or (outputs, samples), of each sample's
    rows : positions of the samples to look at
    alpha, curvature : (outputs, samples), overwritten at `rows`
    weights : (samples,), multiply the losses, their duals and curvatures; None: 1
    """
    sums = np.zeros((y.shape[0], 4))
    _fill_points(loss, y, z, centre, weight, rows, alpha, curvature, weights, shape, sums)
    return sums


@compiled
def _fill_points(
    loss: int,
    y: Array,
    z: Array,
    centre: Array,
    weight: Array,
    rows: NDArray[np.int64],
    alpha: Array,
    curvature: Array,
    weights: Array | None,
    shape: float,
    sums: Array,
) -> None:
    for c in range(y.shape[0]):
        for i in rows:
            s = weight[c] if weight.ndim == 1 else weight[c, i]
            a, h = dual_point(loss, z[c, i], y[c, i], centre[c, i], s, shape)
            factor = 1.0
            if weights is not None:
                factor = weights[i]
            alpha[c, i] = factor * a
            curvature[c, i] = factor * h
            sums[c, 0] += factor * _value(loss, z[c, i], y[c, i], shape)
            sums[c, 1] += factor * _minus_conjugate(loss, a, y[c, i])
            if loss == HINGE:
                sums[c, 2] += factor * (y[c, i] * a - centre[c, i]) ** 2
            elif loss in (QUANTILE, GAMMA):  # whose centre is 0
                sums[c, 2] += factor * (a - centre[c, i]) ** 2
            if h > 0.0:
                sums[c, 3] += 1.0


def curvatures(loss: int, alpha: Array, weight: Array, *, shape: float = 0.0) -> Array:
    """Return the curvatures at dual points (outputs, samples); 0 at samples without a label.

    Those have the dual 0. A dual of exactly 0 has no curvature in return, which matters at a score
    that is exactly the target. That of the Poisson loss, eᶻ, does not follow from its dual y - eᶻ.
    `weight` (outputs,) is the smoothing's.
    """
    size, smoothing = np.abs(alpha), weight[:, None]
    if loss == LOGISTIC:
        return np.asarray(np.maximum(size * (1.0 - size), 0.0), np.float64)
    if loss == HINGE:
        return np.where((size > _EDGE) & (size < 1.0 - _EDGE), smoothing, 0.0)
    if loss == QUANTILE:
        inside = (alpha > shape - 1.0 + _EDGE) & (alpha < shape - _EDGE)
        return np.where((size > 0.0) & inside, smoothing, 0.0)
    if loss == GAMMA:
        return np.where(size > 0.0, np.maximum(1.0 + alpha, 0.0), 0.0)
    if loss == POISSON:
        return np.full(alpha.shape, math.nan)
    curved = size > 0.0
    if loss == HUBER:
        curved &= size < shape * (1.0 - _EDGE)
    return np.where(curved, 2.0 if loss == SQUARED_HINGE else 1.0, 0.0)


def mean_curvatures(before: Array, after: Array) -> Array:
    """Return the mean second derivative of the logistic loss between scores of two dual points.

    A dual point's size is 1/(1 + eᵐ) at a margin m, so it tells the margin. Each array is (outputs,
    samples); where the two are nearly the same the mean is not known and 0.
    """
    sizes = np.abs(before), np.abs(after)
    # a size near 1 is known to 1e-16
    first, last = (
        np.log(np.maximum(a, 1e-300)) - np.log(np.maximum(1.0 - a, 1e-16)) for a in sizes
    )
    far = np.abs(last - first) > 1e-6
    change = sizes[1] - sizes[0]
    return np.asarray(np.divide(change, last - first, out=np.zeros_like(change), where=far))


def curved_samples(
    curvature: Array,
    start: int,
    stop: int,
    order: NDArray[np.int64],
    most: int,
) -> tuple[NDArray[np.int64], Array]:
    """Return the samples of a cell with curvature, ascending, and their curvatures.

    Where there are more than `most`, those that come first in `order` stand for all: their
    curvatures are scaled up.

    Parameters
    ----------
    curvature : (outputs, samples)
    start, stop : the cell
    order : (stop - start,), places in the cell
    """
    outputs, size = len(curvature), stop - start
    selected, found = np.zeros(size, np.int64), np.empty(outputs * size)
    count = _choose(curvature, start, order, most, selected, found)
    return selected[:count], found[: outputs * count].reshape(outputs, count)


@compiled
def _choose(
    curvature: Array,
    start: int,
    order: NDArray[np.int64],
    most: int,
    selected: NDArray[np.int64],
    found: Array,
) -> int:
    """Fill the samples that `curved_samples` returns, from zeros, and return how many they are.

    Making arrays here, or NumPy's line for a product, would take long to compile.
    """
    outputs, size, count = len(curvature), len(selected), 0
    for c in range(outputs):
        for i in range(size):
            if curvature[c, start + i] > 0.0 and selected[i] == 0:
                selected[i] = 1
                count += 1
    wanted, scaled = 1, count > most
    if scaled:
        wanted, count = 2, 0
        for i in order:
            if count == most:
                break
            if selected[i] == 1:
                selected[i] = wanted
                count += 1
    k = 0
    for i in range(size):
        if selected[i] == wanted:  # marks before k are not read any more
            selected[k] = start + i
            k += 1
    for c in range(outputs):
        taken = 0.0
        for k in range(count):
            found[c * count + k] = curvature[c, selected[k]]
            taken += found[c * count + k]
        if scaled and taken > 0.0:
            total = 0.0
            for i in range(size):
                total += curvature[c, start + i]
            for k in range(count):
                found[c * count + k] *= total / taken
    return count


@compiled
def telling_samples(
    curvature: Array,
    start: int,
    stop: int,
    order: NDArray[np.int64],
    most: int,
    norms: Array,
) -> tuple[NDArray[np.int64], Array]:
    """Return about `most` samples of a cell with curvature, ascending, and their curvatures.

    A sample is taken with a probability in proportion to its curvature times its squared norm, at
    most 1, so that rare columns are not missed; its curvature is divided by that. Those taken lie
    evenly in `order`.

    Parameters
    ----------
    curvature, start, stop, order
        As for `curved_samples`.
    norms : (samples,)
        Squared norms, the same at all owners of a sample.
    """
    outputs, size = len(curvature), stop - start
    tells = np.zeros(size)
    for c in range(outputs):
        for i in range(size):
            tells[i] = max(tells[i], curvature[c, start + i] * max(norms[start + i], 1e-300))
    level = 0.0  # above it all are taken
    curved = tells[tells > 0.0]
    if len(curved) > most:
        curved.sort()
        rest = curved.sum()
        for k in range(most):
            level = rest / (most - k)
            largest = curved[len(curved) - 1 - k]
            if largest <= level:
                break
            rest -= largest
    chosen, share = np.zeros(size, np.bool_), np.ones(size)
    passed = 0.5
    for i in order:
        if tells[i] >= level:
            chosen[i] = tells[i] > 0.0
            continue
        share[i] = tells[i] / level
        passed += share[i]
        if passed >= 1.0:
            passed -= 1.0
            chosen[i] = True
    selected = np.flatnonzero(chosen)
    found = np.empty((outputs, len(selected)))
    for k in range(len(selected)):
        i = selected[k]
        for c in range(outputs):
            found[c, k] = curvature[c, start + i] / share[i]
    return selected + start, found


@compiled
def move_points(
    loss: int,
    y: Array,
    z: Array,
    centre: Array,
    step: Array,
    direction: Array,
    recentre: Array,
    rows: NDArray[np.int64],
    shape: float = 0.0,
) -> None:
    """Move some rows along a direction, and then the centre to the dual point of the loss there.

    z and centre, (outputs, samples), are overwritten at `rows`; a `recentre` of 0 keeps the centre
    of that output, else it is the weight of the smoothing.
    """
    for c in range(y.shape[0]):
        for i in rows:
            z[c, i] += step[c] * direction[c, i]
            if recentre[c] > 0.0:
                a, _ = dual_point(loss, z[c, i], y[c, i], centre[c, i], recentre[c], shape)
                centre[c, i] = y[c, i] * a if loss == HINGE else a


def slopes(
    loss: int,
    y: Array,
    z: Array,
    direction: Array,
    centre: Array,
    weight: Array,
    rows: NDArray[np.int64],
    steps: Array,
    weights: Array | None = None,
    shape: float = 0.0,
) -> Array:
    """Return Σ α(z + t·direction)·direction over some rows for each step t, (outputs, steps).

    It is minus the derivative of the smoothed losses along the direction; `steps` (outputs, steps),
    ascending from 0 on. `weights`, (samples,), multiply the losses.
    """
    given = loss, y, z, direction, centre, weight, rows, steps
    sums = np.stack([_sums_of_two(one.tolist()) for one in steps])
    return _slopes(*given, sums, np.empty_like(steps, np.float64), weights, shape)


def _sums_of_two(steps: list[float]) -> NDArray[np.int64]:
    """Return for each step the places of two before it that add up to it, (steps, 2); 0: of none.

    An exponential at a step is the product of those at both, which takes a tenth of the time, and
    takes over their rounding.
    """
    found = np.zeros((len(steps), 2), np.int64)
    place, rounding = {steps[at]: at for at in range(1, len(steps))}, [1] * len(steps)
    for k, step in enumerate(steps):
        for low in range(1, k):
            high = place.get(step - steps[low], k)
            both = rounding[low] + rounding[min(high, k)]
            if low <= high < k and steps[low] + steps[high] == step and both <= _ROUNDINGS:
                found[k], rounding[k] = (low, high), both
                break
    return found


@compiled
def _slopes(
    loss: int,
    y: Array,
    z: Array,
    direction: Array,
    centre: Array,
    weight: Array,
    rows: NDArray[np.int64],
    steps: Array,
    sums: NDArray[np.int64],
    powers: Array,
    weights: Array | None,
    shape: float,
) -> Array:
    """Return `slopes`; `sums` as `_sums_of_two`, (outputs, steps, 2), and room for `powers`."""
    total = np.zeros(steps.shape)
    for c in range(y.shape[0]):
        for i in rows:
            q = direction[c, i]
            factor = q
            if weights is not None:
                factor = weights[i] * q
            if loss == LOGISTIC:
                margin, turn = y[c, i] * z[c, i], y[c, i] * q
                # a product may be too large where the sum is not
                far = abs(margin) > _EXPONENT or abs(turn) * steps[c, -1] > _EXPONENT
                start = 1.0 if far else math.exp(margin)
                for k in range(steps.shape[1]):
                    if sums[c, k, 0] > 0 and not far:
                        powers[c, k] = powers[c, sums[c, k, 0]] * powers[c, sums[c, k, 1]]
                    else:
                        there = turn * steps[c, k] + (margin if far else 0.0)
                        powers[c, k] = math.exp(min(there, 2.0 * _EXPONENT))
                    total[c, k] += y[c, i] * factor / (1.0 + start * powers[c, k])
                continue
            if loss == HINGE:  # a loop of its own: it has no branches
                for k in range(steps.shape[1]):
                    at = z[c, i] + steps[c, k] * q
                    a, _ = dual_point(HINGE, at, y[c, i], centre[c, i], weight[c], shape)
                    total[c, k] += a * factor
                continue
            for k in range(steps.shape[1]):
                at = z[c, i] + steps[c, k] * q
                a, _ = dual_point(loss, at, y[c, i], centre[c, i], weight[c], shape)
                total[c, k] += a * factor
    return total
