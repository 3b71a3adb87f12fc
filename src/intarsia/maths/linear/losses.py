"""The losses of the linear models, their conjugates, and the exact step on one dual variable.

A loss l(z, y) takes the score z = wᵀx of a sample and its label y: -1 or +1 for the losses of
classification, a real number for the others. The dual variable of a sample is α, and
β = yα for classification. Losses are integer codes, so that compiled kernels branch on them.
A sample's weight s multiplies its loss: its dual is sα with α in the box, and -(sl)*(-sα) is
-s l*(-α).

=============  =====================  ====================================  =============
loss           l(z, y)                -l*(-α)                               box
=============  =====================  ====================================  =============
hinge          (1 - yz)₊              β                                     0 ≤ β ≤ 1
squared hinge  (1 - yz)₊²             β - β²/4                              0 ≤ β
logistic       log(1 + e⁻ʸᶻ)          -β log β - (1 - β) log(1 - β)         0 ≤ β ≤ 1
squared        ½(z - y)²              αy - ½α²                              none
huber          ½r² or δ|r| - ½δ²      αy - ½α²                              -δ ≤ α ≤ δ
quantile       τr₊ + (1 - τ)(-r)₊     αy                                    τ - 1 ≤ α ≤ τ
poisson        eᶻ - yz - y + y log y  -v log v + y log y - α with v = y - α  0 ≤ v
gamma          ye⁻ᶻ + z - 1 - log y   -v log v + α(1 + log y) with v = 1 + α  0 ≤ v
=============  =====================  ====================================  =============

For numbers r = y - z. Huber's loss is ½r² up to |r| = δ. Poisson and Gamma have the log link: the
mean is eᶻ, and the loss half the unit deviance, which is 0 at best. The dual point -l'(z) is
clip(r, -δ, δ); τ or τ - 1; y - eᶻ; ye⁻ᶻ - 1. `shape` is δ or τ, and 0 for the other losses.

The exact step of Huber and quantile is that of a quadratic, clipped to the box. That of Poisson and
Gamma has log v + q(v - v₀) = z (and log y - z): v is a Wright omega function.

Sources: Huber, "Robust Estimation of a Location Parameter", 1964; Koenker and Bassett, "Regression
Quantiles", 1978; McCullagh and Nelder, "Generalized Linear Models", 1989, section 2.3.
"""

from __future__ import annotations

import math
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray
from scipy.special import entr, expit, xlog1py

from intarsia.errors import ExperimentError, TableError, nearest
from intarsia.maths.jit import compiled, inlined_early
from intarsia.maths.loss_codes import (
    GAMMA as GAMMA,
)
from intarsia.maths.loss_codes import (
    HINGE as HINGE,
)
from intarsia.maths.loss_codes import (
    HUBER as HUBER,
)
from intarsia.maths.loss_codes import (
    LOGISTIC as LOGISTIC,
)
from intarsia.maths.loss_codes import (
    LOSSES as LOSSES,
)
from intarsia.maths.loss_codes import (
    POISSON as POISSON,
)
from intarsia.maths.loss_codes import (
    QUANTILE as QUANTILE,
)
from intarsia.maths.loss_codes import (
    SQUARED as SQUARED,
)
from intarsia.maths.loss_codes import (
    SQUARED_HINGE as SQUARED_HINGE,
)

Array = NDArray[np.float64]

EDGE: Final = 1e-6  # how far outside its box a dual may be that came through a sealed sum
SHAPES: Final = {"huber": "huber_delta", "quantile": "quantile"}  # by loss: the option of its shape
CLASSIFICATION: Final = (HINGE, SQUARED_HINGE, LOGISTIC)  # labels -1 and +1
NUMBERS: Final = (HUBER, QUANTILE, POISSON, GAMMA)  # labels are numbers and nothing else
LOG_LINK: Final = (POISSON, GAMMA)  # scores are logarithms of means
CURVED: Final = (LOGISTIC, POISSON, GAMMA)  # whose dual is no quadratic within its box
BENT: Final = (SQUARED_HINGE, HUBER)  # whose second derivative jumps
SMOOTHED: Final = (HINGE, QUANTILE)  # have a kink: Newton's method smooths them
FEWEST: Final = 1e-250  # the count whose logarithm is taken where a count is 0
_ROUNDED = 1e-12  # how far outside its box a dual may be by rounding, relative to the box


def loss_code(name: str) -> int:
    """Return the code of a loss.

    Raises
    ------
    ExperimentError
        If no loss has that name.
    """
    if name not in LOSSES:
        raise ExperimentError(f"There is no loss {name!r}; {nearest(str(name), LOSSES)}.")
    return LOSSES[name]


def shape_of(options: Any) -> float:
    """Return the shape of the loss in an algorithm's hyperparameters: Huber's δ, or the level τ."""
    name = SHAPES.get(options.loss)
    return 0.0 if name is None else float(getattr(options, name))


def check_labels(loss: int, y: Array | None, owner: str, *, rows: bool = False) -> None:
    """Refuse labels, (samples,), that the loss has no mean for; NaN is no label.

    Counts need not be whole numbers: rates are the counts of units of exposure, the weights.

    Parameters
    ----------
    owner : who has the labels, as the error says it
    rows : whether they are in the order of a table, and the error may name a value and its row

    Raises
    ------
    TableError
        If a label is below 0 (Poisson), or 0 or below (Gamma).
    """
    if y is None or loss not in LOG_LINK:
        return
    wrong = np.flatnonzero(y < 0 if loss == POISSON else y <= 0)
    if not len(wrong):
        return
    what, meant, other = "below 0", "the Poisson loss is for counts, of 0 or more", "squared"
    if loss == GAMMA:
        what, meant = "0 or below", "the Gamma loss is for amounts above 0"
        other = "squared" if np.nanmin(y) < 0 else "poisson"  # which takes 0 and any amount
    first = f" (the first: {y[wrong[0]]:g} in row {wrong[0] + 1})" if rows else ""
    raise TableError(
        f"{len(wrong)} of {np.count_nonzero(~np.isnan(y))} labels of {owner} "
        f"{'is' if len(wrong) == 1 else 'are'} {what}{first}, "
        f'and {meant}: correct or leave out these rows, or set algorithm.loss = "{other}".'
    )


def mean_of(loss: int, z: Array) -> Array:
    """Return what scores predict, in their shape: the mean eᶻ under the log link, else z."""
    return np.exp(z) if loss in LOG_LINK else z


def _unknown(loss: int) -> ExperimentError:
    return ExperimentError(f"The loss code is {loss}; it must be one of {LOSSES}.")


def value(
    loss: int,
    z: Array,
    y: Array,
    weights: Array | None = None,
    *,
    shape: float = 0.0,
    off: float | Array = 0.0,
) -> Array:
    """Return l(z, y), elementwise, times the samples' weights, (samples,).

    Of scores that may be `off` by so much it is the most that it may be: l is convex.
    """
    found = _value(loss, z, y, shape)
    if np.any(off):
        ends = [_value(loss, z + way, y, shape) for way in (-off, off)]
        found = np.maximum(*ends)
    return found if weights is None else found * weights


def _value(loss: int, z: Array, y: Array, shape: float) -> Array:
    if loss == HINGE:
        return np.maximum(1.0 - y * z, 0.0)
    if loss == SQUARED_HINGE:
        return np.maximum(1.0 - y * z, 0.0) ** 2
    if loss == LOGISTIC:
        return np.logaddexp(0.0, -y * z)
    if loss == SQUARED:
        return 0.5 * (z - y) ** 2
    if loss == HUBER:
        size = np.abs(y - z)
        return np.where(size <= shape, 0.5 * size**2, shape * size - 0.5 * shape**2)
    if loss == QUANTILE:
        return np.maximum(shape * (y - z), (shape - 1.0) * (y - z))
    with np.errstate(over="ignore"):  # scores of a trial may be of any size
        if loss == POISSON:
            # at a large count its terms cancel, up to the square of the distance from log y
            t = z - np.log(np.maximum(y, FEWEST))
            near = y * (np.expm1(np.minimum(t, 1.0)) - t)
            return np.where(t > 1.0, np.exp(z) - y * (1.0 + t), near)
        if loss == GAMMA:
            t = np.log(y) - z  # nearly 0 where a row is fitted: its terms cancel, too
            return np.expm1(t) - t
    raise _unknown(loss)


def derivative(loss: int, z: Array, y: Array, *, shape: float = 0.0) -> Array:
    """Return the derivative of l in z, elementwise; the subgradient 0 at a kink."""
    if loss == HINGE:
        return np.where(y * z < 1.0, -y, 0.0)
    if loss == SQUARED_HINGE:
        return -2.0 * y * np.maximum(1.0 - y * z, 0.0)
    if loss == LOGISTIC:
        return cast(Array, -y * expit(-y * z))
    if loss == SQUARED:
        return z - y
    if loss == HUBER:
        return np.clip(z - y, -shape, shape)
    if loss == QUANTILE:
        return np.where(z < y, -shape, np.where(z > y, 1.0 - shape, 0.0))
    if loss == POISSON:
        return np.exp(z) - y
    if loss == GAMMA:
        return 1.0 - y * np.exp(-z)
    raise _unknown(loss)


def curvature(loss: int, z: Array, y: Array, *, shape: float = 0.0) -> Array:
    """Return the second derivative of l in z, elementwise; 0 where the first has a kink."""
    if loss in SMOOTHED:
        return np.zeros_like(y * z)
    if loss == SQUARED_HINGE:
        return np.where(y * z < 1.0, 2.0, 0.0)
    if loss == LOGISTIC:
        return cast(Array, expit(z) * expit(-z))
    if loss == SQUARED:
        return np.ones_like(z * y)
    if loss == HUBER:
        return np.where(np.abs(y - z) < shape, 1.0, 0.0)
    if loss == POISSON:
        return np.exp(z) + 0.0 * y
    if loss == GAMMA:
        return y * np.exp(-z)
    raise _unknown(loss)


def minus_conjugate(
    loss: int,
    alpha: Array,
    y: Array,
    weights: Array | None = None,
    *,
    shape: float = 0.0,
    slack: float = 0.0,
) -> Array:
    """Return -l*(-α), a sample's term of N·D(α), elementwise; -inf outside the box.

    Duals that are at most `slack` outside count as those at the edge: sealed sums are as exact as
    their mode. `weights`, (samples,), multiply the losses.
    """
    if weights is None:
        return _minus_conjugate(loss, alpha, y, slack, shape)
    # steps of a weighted dual are rounded: its edge is met to a few bits
    return weights * _minus_conjugate(loss, alpha / weights, y, slack / weights + 1e-12, shape)


def conjugate_size(loss: int, alpha: Array, y: Array) -> Array:
    """Return about the size of the terms that `minus_conjugate` adds up, elementwise.

    Weights of samples are in α.
    """
    if loss in LOG_LINK:
        return np.asarray(np.abs(alpha) * (1.0 + np.abs(np.log(np.maximum(y, FEWEST)))))
    return np.asarray(np.abs(alpha) * (1.0 + np.abs(y)))


def _minus_conjugate(
    loss: int, alpha: Array, y: Array, slack: float | Array, shape: float
) -> Array:
    if loss == SQUARED:
        return alpha * y - 0.5 * alpha**2
    if loss in NUMBERS:  # whose edges are no small whole numbers: sums meet them to a few bits
        size = shape if loss == HUBER else 1.0 + np.abs(y)
        slack = slack + _ROUNDED * size
    if np.any(slack > 0.0):
        edge = project(loss, alpha, y, shape=shape)
        alpha = np.where(np.abs(alpha - edge) <= slack, edge, alpha)
    if loss == HUBER:
        return np.where(np.abs(alpha) <= shape, alpha * y - 0.5 * alpha**2, -np.inf)
    if loss == QUANTILE:
        return np.where((alpha >= shape - 1.0) & (alpha <= shape), alpha * y, -np.inf)
    if loss == POISSON:
        few = np.maximum(y, FEWEST)
        # as of the loss, what large counts have in common is left out
        rest = xlog1py(y - alpha, np.maximum(-alpha / few, -1.0))
        found = np.where(y > 0.0, alpha * (np.log(few) - 1.0) - rest, entr(-alpha) - alpha)
        return np.where(alpha <= y, found, -np.inf)
    if loss == GAMMA:
        return cast(Array, entr(1.0 + alpha) + alpha * (1.0 + np.log(y)))
    beta = y * alpha
    if loss == HINGE:
        return np.where((beta >= 0.0) & (beta <= 1.0), beta, -np.inf)
    if loss == SQUARED_HINGE:
        return np.where(beta >= 0.0, beta - 0.25 * beta**2, -np.inf)
    if loss == LOGISTIC:
        # 1 - β has few digits of a small β, and on separable rows the whole objective is small
        rest = xlog1py(1.0 - beta, np.maximum(-beta, -1.0))
        return np.where(beta <= 1.0, entr(beta) - rest, -np.inf)
    raise _unknown(loss)


def best_step(loss: int, steps: Array, dual: Array) -> tuple[float, float]:
    """Return the step in [0, 1] that maximises the dual along a line, and what it gains.

    The dual is a quadratic of the step but for the losses of `CURVED`, where the best of the points
    is taken. `dual` is known at `steps`: the first is 0, the last two are 1/2 and 1.
    """
    if loss in CURVED:
        best = int(np.argmax(dual))
        return float(steps[best]), float(dual[best] - dual[0])
    start, middle, end = dual[0], dual[-2], dual[-1]
    curvature = 4 * (start - 2 * middle + end)  # second derivative
    slope = 4 * middle - 3 * start - end
    if curvature >= 0:
        step = 1.0 if end > start else 0.0
    else:
        step = float(np.clip(-slope / curvature, 0.0, 1.0))
    return step, float(slope * step + 0.5 * curvature * step**2)


def project(loss: int, alpha: Array, y: Array, *, shape: float = 0.0) -> Array:
    """Return the dual variables moved to the nearest point of their box, elementwise."""
    if loss == HUBER:
        return np.clip(alpha, -shape, shape)
    if loss == QUANTILE:
        return np.clip(alpha, shape - 1.0, shape)
    if loss == POISSON:
        return np.minimum(alpha, y)
    if loss == GAMMA:
        return np.maximum(alpha, -1.0)
    if loss == SQUARED:
        return np.array(alpha, np.float64)
    if loss == SQUARED_HINGE:
        return y * np.maximum(y * alpha, 0.0)
    if loss in (HINGE, LOGISTIC):
        return y * np.clip(y * alpha, 0.0, 1.0)
    raise _unknown(loss)


def dual_from_scores(
    loss: int, z: Array, y: Array, weights: Array | None = None, *, shape: float = 0.0
) -> Array:
    """Return α = -l'(z), the duals that belong to the scores, elementwise.

    At the optimum of a smooth loss they are the optimal duals; at a kink they are one choice
    among the subgradients. They are in the box for any score. `weights`, (samples,), multiply.
    """
    found = -derivative(loss, z, y, shape=shape)
    return found if weights is None else found * weights


def _logistic_root(score: float, q: float, beta: float) -> float:
    """Return the c in [0, 1] with log(c/(1-c)) + score + q(c-β) = 0, to 1e-14.

    Halley's iteration in u = logit(c), guarded by bisection.
    """
    # f(u) = u + score + q(c(u) - β) rises with a slope of at least 1: the root is bracketed
    low = -score - q * (1.0 - beta)
    high = -score + q * beta
    u = math.log(beta / (1.0 - beta)) if 0.0 < beta < 1.0 else -score
    u = min(max(u, low), high)
    last = high - low
    c = 0.0
    for _ in range(100):
        if u >= 0.0:
            c = 1.0 / (1.0 + math.exp(-u))
        else:
            c = math.exp(u)
            c /= 1.0 + c
        f = u + score + q * (c - beta)
        if f > 0.0:
            high = u
        else:
            low = u
        bend = c * (1.0 - c)
        slope = 1.0 + q * bend
        step = f / slope
        step /= max(1.0 - 0.5 * step * q * bend * (1.0 - 2.0 * c) / slope, 0.5)
        # f'' and f''' are at most f' in size: what is left after a step s is below s³/2
        if abs(step) < 2e-5:
            return c - step * bend * (1.0 - 0.5 * step * (1.0 - 2.0 * c))
        if not low <= u - step <= high or abs(step) > 0.5 * abs(last):
            step = u - 0.5 * (low + high)  # unguarded steps can cycle between the flat ends of c
        last = step
        u -= step
    return c


_logistic_root = compiled(_logistic_root)


def _exponential_root(q: float, target: float) -> float:
    """Return the v ≥ 0 with log v + qv = target, to a few bits; at most e⁷⁰⁰.

    Newton's iteration on s + eˢ = a, where s is log qv: its function rises and is convex, so that
    from the right of the root it falls to it.
    """
    if q <= 0.0:
        return math.exp(min(target, 700.0))
    shift = math.log(q)
    a = target + shift
    s = min(a, 0.0) if a <= 1.0 else math.log(a)
    for _ in range(50):
        power = math.exp(s)
        step = (s + power - a) / (1.0 + power)
        s -= step
        if abs(step) < 1e-9 * max(abs(s), 1.0):  # the next one is below the square of it
            break
    return math.exp(min(s - shift, 700.0))


_exponential_root = compiled(_exponential_root)


@inlined_early
def dual_step(loss: int, alpha: float, y: float, z: float, q: float, shape: float = 0.0) -> float:
    """Return the Δα that maximises -l*(-(α + Δα)) - zΔα - ½qΔα².

    z is the score at the present α and q = σ‖x‖²/(λN) ≥ 0 the curvature of the quadratic part.
    The result keeps α + Δα in its box. With q = 0 (a row of zeros) it is the optimum that does
    not depend on w. An unknown loss gives NaN.
    """
    if loss == SQUARED:
        return (y - alpha - z) / (1.0 + q)
    if loss == HUBER:
        return min(max(alpha + (y - alpha - z) / (1.0 + q), -shape), shape) - alpha
    if loss == POISSON:
        last = y - alpha
        return last - _exponential_root(q, z + q * last)
    if loss == GAMMA:
        last = 1.0 + alpha
        return _exponential_root(q, math.log(y) - z + q * last) - last
    beta, slack, sign, low, high = y * alpha, 1.0 - y * z, y, 0.0, 1.0
    if loss == QUANTILE:
        beta, slack, sign, low, high = alpha, y - z, 1.0, shape - 1.0, shape
    if loss in (HINGE, QUANTILE):
        if q > 0.0:
            new = min(max(beta + slack / q, low), high)
        elif slack == 0.0:
            new = beta
        else:
            new = high if slack > 0.0 else low
        return sign * (new - beta)
    if loss == SQUARED_HINGE:
        return y * max(-beta, (slack - 0.5 * beta) / (q + 0.5))
    if loss == LOGISTIC:
        return y * (_logistic_root(y * z, q, beta) - beta)
    return math.nan


@inlined_early
def weighted_step(
    loss: int, alpha: float, y: float, z: float, q: float, weight: float, shape: float = 0.0
) -> float:
    """Return `dual_step` for a loss that is multiplied by a weight above 0."""
    return weight * dual_step(loss, alpha / weight, y, z, q * weight, shape)
