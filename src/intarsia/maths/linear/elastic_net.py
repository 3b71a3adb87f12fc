"""The elastic net penalty: its conjugate, and its smoothing for Newton's method.

    λ((1-ρ)/2 ‖w‖² + ρ ‖w‖₁) = κ (½‖w‖² + τ‖w‖₁),   κ = λ(1-ρ), τ = ρ/(1-ρ)

With v = 1/(κN) Σ_i α_i x_i its conjugate is κ/2 ‖S(v)‖² and w(α) = S(v), where S moves each entry
by τ towards 0, and to 0 what is nearer to it:

    P(w) = κ(½‖w‖² + τ‖w‖₁) + 1/N Σ_i l(x_iᵀw),   D(α) = -κ/2 ‖S(v)‖² - 1/N Σ_i l*(-α_i)

τ|w| has no second derivative. It is the maximum of ξw over |ξ| ≤ τ; with -(ξ - c)²/(2s) beside it,
around a centre c, it is smooth: its slope is ξ = clip(c + sw, -τ, τ), its curvature s where ξ is
inside. When the centre moves to ξ again and again, that is the proximal point method in ξ
(Rockafellar 1976), as for the hinge in its dual. At the end weights are 0 where ξ is inside.

Source of the dual: Shalev-Shwartz and Zhang, "Accelerated Proximal Stochastic Dual Coordinate
Ascent for Regularized Loss Minimization", Math. Programming 155 (2016).
"""

from __future__ import annotations

import numpy as np

from intarsia.core.block import Array

_STIFF = 3.0  # s over τ at a weight of the smoothing of one
_STIFFEST = 1e4  # s over τ at most: a system with more of it loses digits


def soft_threshold(v: Array, threshold: float) -> Array:
    """Return S(v): each entry moved by the threshold towards 0, and not beyond."""
    return np.asarray(v - np.clip(v, -threshold, threshold))


def stiffness(threshold: float, weight: Array) -> Array:
    """Return s of each output, (outputs,), from the weight of the smoothing."""
    return np.asarray(threshold * np.minimum(_STIFF * weight, _STIFFEST))


def slopes_along(
    w: Array, direction: Array, centre: Array, stiff: Array, threshold: float, steps: Array
) -> Array:
    """Return the slope of ½w² + τ|w|, smoothed, along a direction, over κ, at each step.

    (outputs, features, steps); `stiff` is s, (outputs,), and `steps` (outputs, steps).
    """
    moved = w[:, :, None] + direction[:, :, None] * steps[:, None, :]
    slope = np.clip(centre[:, :, None] + stiff[:, None, None] * moved, -threshold, threshold)
    return np.asarray(direction[:, :, None] * (moved + slope))
