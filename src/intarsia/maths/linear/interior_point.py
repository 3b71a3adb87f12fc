"""Steps of the primal-dual interior point method for losses that a box of duals makes.

Such a loss is the maximum of βr over a box a ≤ β ≤ a + 1: of the hinge r = 1 - yz and a = 0, of the
quantile loss r = y - z and a = τ - 1. The squared hinge is that of βr - β²/4 over β ≥ 0: below β/2
is then in the place of v, and m and c are not there. With r = v - u, the loss is v times the upper
edge less u times the lower; β is optimal where pu = 0 and mv = 0, for its distances p = β - a and
m = a + 1 - β from the edges. The method keeps p, m, u, v > 0 and solves

    λw = 1/N Σ_i α_i x_i,   v_i - u_i = r_i(w),   p_i u_i = m_i v_i = μ

by Newton's method while the barrier μ falls to 0. A step d of w changes r by -sq, q = x_iᵀd and s
the sign (y of the hinge, 1 of the quantile loss), and with the targets b of pu and c of mv

    Δβ = h (r - sq + b/p - c/m),   h = 1/(v/m + u/p + δ)
    Δu = (b - pu - uΔβ)/p,   Δv = (c - mv + vΔβ)/m

so that (λI + 1/N Σ_i h_i x_i x_iᵀ) d = 1/N Σ_i (α_i + s_i h_i (r + b/p - c/m)) x_i - λw. Where the
step solves this, 1/N Σ (pu + mv) and λ/2 ‖w - w(α)‖² are the gap of P and D. A small δ bounds h,
and so the condition of the system: the step is then one of the proximal point method in the dual,
too, which leaves v - u - r a little apart for the next (Friedlander and Orban, "A Primal-Dual
Regularized Interior-Point Method for Convex Quadratic Programs", Math. Prog. Computation 4, 2012).

Mehrotra, "On the Implementation of a Primal-Dual Interior Point Method", SIAM J. Optimization 2
(1992): a first direction to μ = 0 says how far the barrier can fall, and what the products of the
steps add; a second direction has both in its targets. Ferris and Munson, "Interior-Point Methods
for Massive Support Vector Machines", SIAM J. Optimization 13 (2003).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from intarsia.core.block import Array
from intarsia.maths.linear.losses import QUANTILE

_REACH = 0.99  # of the way to the boundary


@dataclass(frozen=True)
class Interior:
    """Where the duals are inside their box; each (outputs, rows)."""

    below: Array  # p = β - a
    above: Array  # m = a + 1 - β
    under: Array  # u
    over: Array  # v
    under_target: Array  # b
    over_target: Array  # c
    damping: Array  # δ, (outputs, 1)
    capped: bool = True  # whether there is an upper edge


def residuals(loss: int, z: Array, y: Array) -> tuple[Array, Array]:
    """Return r and s of scores and labels, (outputs, rows)."""
    return (y - z, np.ones_like(y)) if loss == QUANTILE else (1.0 - y * z, y)


def central(r: Array, barrier: Array, damping: Array, *, capped: bool = True) -> Interior:
    """Return the point where pu = mv = μ and v - u = r; μ and δ are (outputs,)."""
    mu, zeros = barrier[:, None], np.zeros_like(r)
    if not capped:
        root = np.sqrt(r * r + 2 * mu) + np.abs(r)
        beta = np.where(r > 0, root, 2 * mu / root)
        nothing = (zeros + 1.0, mu / beta, zeros, zeros, zeros, damping[:, None])
        return Interior(beta, *nothing, capped=False)
    root = np.hypot(r, 2 * mu)
    small = 2 * mu * (mu / (root + np.abs(r))) + mu
    large = 0.5 * (root + np.abs(r)) + mu
    under, over = np.where(r > 0, small, large), np.where(r > 0, large, small)
    return Interior(mu / under, mu / over, under, over, zeros, zeros, damping[:, None])


def curvature(inner: Interior) -> Array:
    """Return h."""
    stiff = inner.over / inner.above + inner.under / inner.below
    if not inner.capped:
        stiff = stiff + 0.5
    return np.asarray(1.0 / (stiff + inner.damping))


def aim(inner: Interior, r: Array) -> Array:
    """Return Δβ of a step that leaves the scores as they are."""
    pull = r + inner.under_target / inner.below - inner.over_target / inner.above
    if not inner.capped:
        pull = pull - 0.5 * inner.below
    return np.asarray(curvature(inner) * pull)


def changes(inner: Interior, r: Array, change: Array) -> tuple[Array, Array, Array]:
    """Return Δβ, Δu and Δv of a step that changes r by `change`, (outputs, rows)."""
    dual = aim(inner, r) + curvature(inner) * change
    under = (inner.under_target - inner.under * dual) / inner.below - inner.under
    over = (inner.over_target + inner.over * dual) / inner.above - inner.over
    return dual, under, over


def furthest(inner: Interior, steps: tuple[Array, Array, Array]) -> Array:
    """Return the longest step, (outputs,), at most 1, that stays off the boundary."""
    dual, under, over = steps
    longest = np.ones(len(dual))
    pairs = [(inner.below, dual), (inner.under, under)]
    if inner.capped:
        pairs += [(inner.above, -dual), (inner.over, over)]
    for value, change in pairs:
        if value.size:
            fall = np.max(-change / value, axis=1)
            longest = np.minimum(longest, _REACH / np.maximum(fall, _REACH))
    return longest


def products_along(
    inner: Interior, steps: tuple[Array, Array, Array], weights: Array | None
) -> Array:
    """Return c of c₀ + c₁t + c₂t² = Σ (pu + mv) after a step of length t, (outputs, 3)."""
    dual, under, over = steps
    factor = 1.0 if weights is None else weights
    parts = (
        inner.below * inner.under + inner.above * inner.over,
        inner.below * under + dual * inner.under + inner.above * over - dual * inner.over,
        dual * (under - over),
    )
    return np.stack([(factor * part).sum(axis=1) for part in parts], axis=1)


def advanced(inner: Interior, steps: tuple[Array, Array, Array], length: Array) -> Interior:
    """Return the point after a step of each output's length, (outputs,)."""
    t, (dual, under, over) = length[:, None], steps
    return replace(
        inner,
        below=inner.below + t * dual,
        above=inner.above - t * dual if inner.capped else inner.above,
        under=inner.under + t * under,
        over=inner.over + t * over,
    )


def aimed_at_zero(inner: Interior, damping: Array) -> Interior:
    """Return the point with targets of 0 and another δ, (outputs,)."""
    zeros = np.zeros_like(inner.below)
    return replace(inner, under_target=zeros, over_target=zeros, damping=damping[:, None])


def corrected(inner: Interior, steps: tuple[Array, Array, Array], barrier: Array) -> Interior:
    """Return the point with targets of μ less the products of the first direction's steps."""
    dual, under, over = steps
    mu = barrier[:, None]
    upper = mu + dual * over if inner.capped else inner.over_target
    return replace(inner, under_target=mu - dual * under, over_target=upper)
