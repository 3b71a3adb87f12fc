"""Steps of the primal-dual interior point method for losses that a box of duals makes.

Such a loss is the maximum of βr - κβ²/2 over a box a ≤ β ≤ a + t:

=============  =======  =====  ===  ===
loss           r        a      t    κ
=============  =======  =====  ===  ===
hinge          1 - yz   0      1    0
squared hinge  1 - yz   0      ∞    1/2
huber          y - z    -δ     2δ   1
quantile       y - z    τ - 1  1    0
τ|w|           w        -τ     2τ   0
=============  =======  =====  ===  ===

With r - κβ = v - u, β is optimal where pu = 0 and mv = 0, for its distances p = β - a and
m = a + t - β from the edges; without an upper edge m, v and c are not there. The method keeps
p, m, u, v > 0 and solves

    λw = 1/N Σ_i α_i x_i,   v_i - u_i = r_i(w) - κβ_i,   p_i u_i = m_i v_i = μ

by Newton's method while the barrier μ falls to 0. A step d of w changes r by -sq, q = x_iᵀd and s
the sign (y of the hinges, -1 of |w|, 1 of the others), and with the targets b of pu and c of mv

    Δβ = h (r - κβ - sq + b/p - c/m),   h = 1/(v/m + u/p + κ + δ)
    Δu = (b - pu - uΔβ)/p,   Δv = (c - mv + vΔβ)/m

so that (λI + 1/N Σ_i h_i x_i x_iᵀ) d = 1/N Σ_i (α_i + s_i h_i (r - κβ + b/p - c/m)) x_i - λw.
A row's weight s multiplies α and h, and its barrier is μ/s, its δ sδ: α, not β, is what the system
has, and a light row is then as far from its edges as a heavy one.
Where the step solves this, 1/N Σ (pu + mv) and λ/2 ‖w - w(α)‖² are the gap of P and D. A small δ
bounds h, and so the condition of the system: the step is then one of the proximal point method in
the dual, too, which leaves v - u - r + κβ a little apart for the next (Friedlander and Orban, "A
Primal-Dual Regularized Interior-Point Method for Convex Quadratic Programs", Math. Prog.
Computation 4, 2012).

Mehrotra, "On the Implementation of a Primal-Dual Interior Point Method", SIAM J. Optimization 2
(1992): a first direction to μ = 0 says how far the barrier can fall, and what the products of the
steps add; a second direction has both in its targets. Gondzio, "Multiple Centrality Corrections in
a Primal-Dual Method for Linear Programming", Computational Optimization and Applications 6 (1996):
more directions bring back the products that would lie far from μ after a longer step, of the rows
that keep the step short. Ferris and Munson, "Interior-Point Methods for Massive Support Vector
Machines", SIAM J. Optimization 13 (2003).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from intarsia.core.block import Array
from intarsia.maths.linear.losses import HUBER, NUMBERS, QUANTILE, SQUARED_HINGE

_REACH = 0.99  # of the way to the boundary
_HALVINGS = 70  # of an interval for the central point of a loss that is curved
_OUTLYING = 3.0  # times the barrier, or a fraction of it, beyond which a product is brought back
_INSIDE = 0.1  # of the box: first duals are so far from an edge that does not pull
# steps that are told to be too far or not, few so that they tell little: fine towards 1
STEPS = np.concatenate(
    [
        [0.001, 0.01, 0.04, 0.08, 0.14, 0.2, 0.26, 0.32, 0.38, 0.44],
        [0.5, 0.57, 0.64, 0.71, 0.78, 0.85, 0.91, 0.96, 0.985, 1.0],
    ]
)


@dataclass(frozen=True)
class Box:
    """The duals β of a loss."""

    lower: float  # a
    width: float  # t
    bend: float  # κ

    @property
    def capped(self) -> bool:
        """Return whether there is an upper edge."""
        return self.width < np.inf

    @property
    def unit(self) -> float:
        """Return what duals are measured in: Huber's δ, of the other losses 1."""
        return -self.lower if self.bend == 1.0 else 1.0


def box_of(loss: int, shape: float) -> Box:
    """Return the box of a loss of a shape."""
    if loss == SQUARED_HINGE:
        return Box(0.0, np.inf, 0.5)
    if loss == HUBER:
        return Box(-shape, 2 * shape, 1.0)
    return Box(shape - 1.0 if loss == QUANTILE else 0.0, 1.0, 0.0)


@dataclass(frozen=True)
class Interior:
    """Where the duals are inside their box; each (outputs, rows)."""

    below: Array  # p = β - a
    above: Array  # m = a + t - β
    under: Array  # u
    over: Array  # v
    under_target: Array  # b
    over_target: Array  # c
    damping: Array  # δ, (outputs, 1) or (outputs, rows)
    box: Box


def residuals(loss: int, z: Array, y: Array) -> tuple[Array, Array]:
    """Return r and s of scores and labels, (outputs, rows)."""
    return (y - z, np.ones_like(y)) if loss in NUMBERS else (1.0 - y * z, y)


def central(
    r: Array, barrier: Array, damping: Array, box: Box, weights: Array | None = None
) -> Interior:
    """Return the point where spu = smv = μ and v - u = r - κβ.

    μ and δ are (outputs,); s are the rows' weights, (rows,).
    """
    mu, zeros = _of_rows(barrier, weights), np.zeros_like(r)
    if not box.capped:
        root = np.sqrt(r * r + 4 * box.bend * mu) + np.abs(r)
        beta = np.where(r > 0, root / (2 * box.bend), 2 * mu / root)
        none = zeros, zeros, zeros
        pull = mu / beta
        return Interior(beta, zeros + 1.0, pull, *none, _damping(damping, weights), box)
    low, high = r - box.bend * (box.lower + box.width), r - box.bend * box.lower
    for _ in range(_HALVINGS if box.bend else 0):  # r - κβ rises by less than r
        middle = 0.5 * (low + high)
        far = middle + box.bend * (box.lower + mu / _pulls(middle, mu / box.width)[0]) > r
        low, high = np.where(far, low, middle), np.where(far, middle, high)
    under, over = _pulls(0.5 * (low + high), mu / box.width)
    pulls = mu / under, mu / over, under, over
    return Interior(*pulls, zeros, zeros, _damping(damping, weights), box)


def begun(
    r: Array,
    beta: Array,
    barrier: Array,
    damping: Array,
    box: Box,
    keep: Array,
    weights: Array | None = None,
) -> Interior:
    """Return `near` where `keep`, (outputs,), is above 0, and `central` elsewhere."""
    kept, given = keep[:, None] > 0, (barrier, damping, box, weights)
    found, inner = near(r, beta, *given), central(r, *given)
    pairs = {
        name: np.where(kept, getattr(found, name), getattr(inner, name))
        for name in ("below", "above", "under", "over")
    }
    return replace(inner, **pairs)


def _of_rows(barrier: Array, weights: Array | None) -> Array:
    """Return what pu is where spu is the barrier, (outputs, rows)."""
    each: Array = barrier[:, None]
    return each if weights is None else each / weights


def _damping(damping: Array, weights: Array | None) -> Array:
    """Return δ of each row, (outputs, rows): sh is at most 1/δ."""
    each: Array = damping[:, None]
    return each if weights is None else each * weights


def near(
    r: Array, beta: Array, barrier: Array, damping: Array, box: Box, weights: Array | None = None
) -> Interior:
    """Return a point near duals β of a loss with κ = 0, where v - u = r, and spu and smv ≥ μ.

    μ, δ and s as in `central`. Where the duals solve the problem, the products are μ and its like.
    """
    mu, zeros = _of_rows(barrier, weights), np.zeros_like(r)
    # where pu = mv = μ the nearer edge is so far; a part of the box where r is small beside μ
    least = np.minimum(mu / (np.abs(r) + 2 * mu / box.width), _INSIDE * box.width)
    below = np.clip(beta - box.lower, least, box.width - least)
    above = np.clip(box.lower + box.width - beta, least, box.width - least)
    under = np.maximum(mu / below, mu / above - r)
    over = np.maximum(mu / above, mu / below + r)
    return Interior(below, above, under, over, zeros, zeros, _damping(damping, weights), box)


def _pulls(slack: Array, ratio: Array) -> tuple[Array, Array]:
    """Return u and v with v - u = `slack` and 1/u + 1/v = 1/`ratio`."""
    root = np.hypot(slack, 2 * ratio)
    small = 2 * ratio * (ratio / (root + np.abs(slack))) + ratio
    large = 0.5 * (root + np.abs(slack)) + ratio
    return np.where(slack > 0, small, large), np.where(slack > 0, large, small)


def curvature(inner: Interior) -> Array:
    """Return h."""
    stiff = inner.over / inner.above + inner.under / inner.below + inner.box.bend
    return np.asarray(1.0 / (stiff + inner.damping))


def aim(inner: Interior, r: Array) -> Array:
    """Return Δβ of a step that leaves the scores as they are."""
    pull = r + inner.under_target / inner.below - inner.over_target / inner.above
    return np.asarray(curvature(inner) * (pull - inner.box.bend * dual_of(inner)))


def dual_of(inner: Interior) -> Array:
    """Return β, in its box where p + m is t but for its rounding."""
    return np.minimum(inner.below, inner.box.width) + inner.box.lower


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
    if inner.box.capped:
        pairs += [(inner.above, -dual), (inner.over, over)]
    for value, change in pairs:
        if value.size:
            fall = np.max(-change / value, axis=1)
            longest = np.minimum(longest, _REACH / np.maximum(fall, _REACH))
    return longest


def too_far(inner: Interior, steps: tuple[Array, Array, Array]) -> Array:
    """Return 1 where one of `STEPS` is beyond the boundary, (outputs, steps)."""
    return np.asarray(furthest(inner, steps)[:, None] < STEPS, np.float64)


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


def of_columns(inner: Interior, some: NDArray[np.int64]) -> Interior:
    """Return some rows' part of the point."""
    names = ("below", "above", "under", "over", "under_target", "over_target")
    return replace(inner, **{name: getattr(inner, name)[:, some] for name in names})


def advanced(inner: Interior, steps: tuple[Array, Array, Array], length: Array) -> Interior:
    """Return the point after a step of each output's length, (outputs,)."""
    t, (dual, under, over) = length[:, None], steps
    return replace(
        inner,
        below=inner.below + t * dual,
        above=inner.above - t * dual if inner.box.capped else inner.above,
        under=inner.under + t * under,
        over=inner.over + t * over,
    )


def aimed_at_zero(inner: Interior, damping: Array, weights: Array | None = None) -> Interior:
    """Return the point with targets of 0 and another δ, (outputs,)."""
    zeros, each = np.zeros_like(inner.below), _damping(damping, weights)
    return replace(inner, under_target=zeros, over_target=zeros, damping=each)


def corrected(
    inner: Interior,
    steps: tuple[Array, Array, Array],
    barrier: Array,
    weights: Array | None = None,
) -> Interior:
    """Return the point with targets of μ less the products of the first direction's steps."""
    dual, under, over = steps
    mu = _of_rows(barrier, weights)
    upper = mu + dual * over if inner.box.capped else inner.over_target
    return replace(inner, under_target=mu - dual * under, over_target=upper)


def centred(
    inner: Interior,
    steps: tuple[Array, Array, Array],
    barrier: Array,
    length: Array,
    weights: Array | None = None,
) -> Interior:
    """Return the point whose targets bring back products that are far from μ after a step.

    Its length is (outputs,); those with a length of 0 keep their targets.
    """
    ahead, mu = advanced(inner, steps, length), _of_rows(barrier, weights)

    def brought(target: Array, product: Array) -> Array:
        change = np.clip(product, mu / _OUTLYING, _OUTLYING * mu) - product
        # a product that is far too large would steer all of the direction
        return np.where(length[:, None] > 0, target + np.maximum(change, -_OUTLYING * mu), target)

    under = brought(inner.under_target, ahead.below * ahead.under)
    if not inner.box.capped:
        return replace(inner, under_target=under)
    over = brought(inner.over_target, ahead.above * ahead.over)
    return replace(inner, under_target=under, over_target=over)
