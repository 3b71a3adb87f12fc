"""The losses of the linear models, their conjugates, and the exact step on one dual variable.

A loss l(z, y) takes the score z = wᵀx of a sample and its label y: -1 or +1 for the losses of
classification, a real number for the others. The dual variable of a sample is α, and
β = yα for classification. Losses are integer codes, so that compiled kernels branch on them.
A sample's weight s multiplies its loss: its dual is sα with α in the box, and -(sl)*(-sα) is
-s l*(-α).

=============  ==============  ====================================  =========
loss           l(z, y)         -l*(-α)                               box
=============  ==============  ====================================  =========
hinge          (1 - yz)₊       β                                     0 ≤ β ≤ 1
squared hinge  (1 - yz)₊²      β - β²/4                              0 ≤ β
logistic       log(1 + e⁻ʸᶻ)   -β log β - (1 - β) log(1 - β)         0 ≤ β ≤ 1
squared        ½(z - y)²       αy - ½α²                              none
=============  ==============  ====================================  =========
"""

from __future__ import annotations

import math
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray
from scipy.special import entr, expit

from intarsia.errors import ExperimentError, nearest
from intarsia.maths.jit import compiled, inlined

Array = NDArray[np.float64]

EDGE: Final = 1e-6  # how far outside its box a dual may be that came through a sealed sum
HINGE: Final = 0
SQUARED_HINGE: Final = 1
LOGISTIC: Final = 2
SQUARED: Final = 3
LOSSES: Final = {
    "hinge": HINGE,
    "squared_hinge": SQUARED_HINGE,
    "logistic": LOGISTIC,
    "squared": SQUARED,
}
CLASSIFICATION: Final = (HINGE, SQUARED_HINGE, LOGISTIC)  # labels -1 and +1


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


def _unknown(loss: int) -> ExperimentError:
    return ExperimentError(f"The loss code is {loss}; it must be one of {LOSSES}.")


def value(loss: int, z: Array, y: Array, weights: Array | None = None) -> Array:
    """Return l(z, y), elementwise, times the samples' weights, (samples,)."""
    found = _value(loss, z, y)
    return found if weights is None else found * weights


def _value(loss: int, z: Array, y: Array) -> Array:
    if loss == HINGE:
        return np.maximum(1.0 - y * z, 0.0)
    if loss == SQUARED_HINGE:
        return np.maximum(1.0 - y * z, 0.0) ** 2
    if loss == LOGISTIC:
        return np.logaddexp(0.0, -y * z)
    if loss == SQUARED:
        return 0.5 * (z - y) ** 2
    raise _unknown(loss)


def derivative(loss: int, z: Array, y: Array) -> Array:
    """Return the derivative of l in z, elementwise; of the hinge at yz = 1 the subgradient 0."""
    if loss == HINGE:
        return np.where(y * z < 1.0, -y, 0.0)
    if loss == SQUARED_HINGE:
        return -2.0 * y * np.maximum(1.0 - y * z, 0.0)
    if loss == LOGISTIC:
        return cast(Array, -y * expit(-y * z))
    if loss == SQUARED:
        return z - y
    raise _unknown(loss)


def curvature(loss: int, z: Array, y: Array) -> Array:
    """Return the second derivative of l in z, elementwise; 0 at the kink of the squared hinge."""
    if loss == HINGE:
        return np.zeros_like(y * z)
    if loss == SQUARED_HINGE:
        return np.where(y * z < 1.0, 2.0, 0.0)
    if loss == LOGISTIC:
        return cast(Array, expit(z) * expit(-z))
    if loss == SQUARED:
        return np.ones_like(z * y)
    raise _unknown(loss)


def minus_conjugate(
    loss: int, alpha: Array, y: Array, weights: Array | None = None, *, slack: float = 0.0
) -> Array:
    """Return -l*(-α), a sample's term of N·D(α), elementwise; -inf outside the box.

    Duals that are at most `slack` outside count as those at the edge: sealed sums are as exact as
    their mode. `weights`, (samples,), multiply the losses.
    """
    if weights is None:
        return _minus_conjugate(loss, alpha, y, slack)
    # steps of a weighted dual are rounded: its edge is met to a few bits
    return weights * _minus_conjugate(loss, alpha / weights, y, slack / weights + 1e-12)


def _minus_conjugate(loss: int, alpha: Array, y: Array, slack: float | Array) -> Array:
    if loss == SQUARED:
        return alpha * y - 0.5 * alpha**2
    beta = y * alpha
    if np.any(slack > 0.0):
        edge = project(loss, alpha, y) * y
        beta = np.where(np.abs(beta - edge) <= slack, edge, beta)
    if loss == HINGE:
        return np.where((beta >= 0.0) & (beta <= 1.0), beta, -np.inf)
    if loss == SQUARED_HINGE:
        return np.where(beta >= 0.0, beta - 0.25 * beta**2, -np.inf)
    if loss == LOGISTIC:
        return cast(Array, entr(beta) + entr(1.0 - beta))
    raise _unknown(loss)


def best_step(loss: int, steps: Array, dual: Array) -> tuple[float, float]:
    """Return the step in [0, 1] that maximises the dual along a line, and what it gains.

    The dual is a quadratic of the step for all losses but the logistic, where the best of the
    points is taken. `dual` is known at `steps`: the first is 0, the last two are 1/2 and 1.
    """
    if loss == LOGISTIC:
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


def project(loss: int, alpha: Array, y: Array) -> Array:
    """Return the dual variables moved to the nearest point of their box, elementwise."""
    if loss == SQUARED:
        return np.array(alpha, np.float64)
    if loss == SQUARED_HINGE:
        return y * np.maximum(y * alpha, 0.0)
    if loss in (HINGE, LOGISTIC):
        return y * np.clip(y * alpha, 0.0, 1.0)
    raise _unknown(loss)


def dual_from_scores(loss: int, z: Array, y: Array, weights: Array | None = None) -> Array:
    """Return α = -l'(z), the duals that belong to the scores, elementwise.

    At the optimum of a smooth loss they are the optimal duals; for the hinge they are one choice
    among the subgradients. They are in the box for any score. `weights`, (samples,), multiply.
    """
    found = -derivative(loss, z, y)
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


@inlined
def dual_step(loss: int, alpha: float, y: float, z: float, q: float) -> float:
    """Return the Δα that maximises -l*(-(α + Δα)) - zΔα - ½qΔα².

    z is the score at the present α and q = σ‖x‖²/(λN) ≥ 0 the curvature of the quadratic part.
    The result keeps α + Δα in its box. With q = 0 (a row of zeros) it is the optimum that does
    not depend on w. An unknown loss gives NaN.
    """
    if loss == SQUARED:
        return (y - alpha - z) / (1.0 + q)
    beta = y * alpha
    slack = 1.0 - y * z
    if loss == HINGE:
        if q > 0.0:
            new = min(max(beta + slack / q, 0.0), 1.0)
        elif slack == 0.0:
            new = beta
        else:
            new = 1.0 if slack > 0.0 else 0.0
        return y * (new - beta)
    if loss == SQUARED_HINGE:
        return y * max(-beta, (slack - 0.5 * beta) / (q + 0.5))
    if loss == LOGISTIC:
        return y * (_logistic_root(y * z, q, beta) - beta)
    return math.nan


@inlined
def weighted_step(loss: int, alpha: float, y: float, z: float, q: float, weight: float) -> float:
    """Return `dual_step` for a loss that is multiplied by a weight above 0."""
    return weight * dual_step(loss, alpha / weight, y, z, q * weight)
