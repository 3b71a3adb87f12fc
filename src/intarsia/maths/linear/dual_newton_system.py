"""The Newton system of the dual, (D + K) u = b, and the centre that the hinge is smoothed around.

K = X Xᵀ/(λN) over the samples with curvature h, D = 1/h. Conjugate gradients, preconditioned by D,
in the form that needs one product with K and two scalars an iteration (Chronopoulos and Gear
1989): all its vectors are over samples, and K's product is a sum over features, then one over
samples. Entries without curvature stand aside: their residual is followed, and nothing else.

Symbols: residual r, preconditioned p = h r, direction d, image (D + K) d, solution u.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from intarsia.core.block import Array
from intarsia.maths.jit import compiled

# How s of a sample changes when the centre moves, and its most as a multiple of the least.
_LONGER, _SHORTER, _LONGEST = 1.3, 0.5, 64.0


@compiled
def advance_residual(
    curvature: Array,
    residual: Array,
    direction: Array,
    image: Array,
    solution: Array,
    products: Array,
    step: Array,
    keep: Array,
    counted: NDArray[np.bool_],
) -> tuple[Array, Array, Array, Array, Array, Array]:
    """Take one step of conjugate gradients.

    Parameters
    ----------
    curvature, residual, direction, image, solution : (outputs, samples)
    products : (outputs, samples), K p for the preconditioned residual p
    step, keep : (outputs,), along the new direction; how much of the last one it keeps
    counted : (samples,), whether a sample counts in the sum

    Returns
    -------
    The new residual, direction, image and solution; the preconditioned residual;
    Σ r p, (outputs,).
    """
    shape = residual.shape
    new_residual, new_direction = np.empty(shape), np.empty(shape)
    new_image, new_solution, preconditioned = np.empty(shape), np.empty(shape), np.empty(shape)
    square = np.zeros(shape[0])
    for c in range(shape[0]):
        for i in range(shape[1]):
            h, r = curvature[c, i], residual[c, i]
            d = h * r + keep[c] * direction[c, i]
            s = products[c, i] + keep[c] * image[c, i]
            if h > 0.0:
                s += r
            new_direction[c, i] = d
            new_image[c, i] = s
            new_solution[c, i] = solution[c, i] + step[c] * d
            r -= step[c] * s
            new_residual[c, i] = r
            preconditioned[c, i] = h * r
            if counted[i]:
                square[c] += h * r * r
    return new_residual, new_direction, new_image, new_solution, preconditioned, square


@compiled
def image_of_solution(curvature: Array, residual: Array, solution: Array) -> Array:
    """Return b - K u from the residual r = b - (D + K) u, (outputs, samples)."""
    image = residual.copy()
    for c in range(image.shape[0]):
        for i in range(image.shape[1]):
            if curvature[c, i] > 0.0:
                image[c, i] += solution[c, i] / curvature[c, i]
    return image


@compiled
def move_centre(
    y: Array,
    z: Array,
    centre: Array,
    last: Array,
    reach: Array,
    slack: Array,
    weight: Array,
    momentum: Array,
    rows: NDArray[np.int64],
) -> tuple[Array, Array, Array, Array]:
    """Return the new centre of the hinge, its dual point β around the old one, s and 1 - yz.

    β = clip(c + s(1 - yz), 0, 1), c⁺ = clip(β + θ(β - β⁻), 0, 1): the accelerated proximal point
    method (Güler 1992). Two rows that are nearly equal share a dual that moves slowly from one to
    the other, at s times a slack that stays as it is. So s grows where the slack keeps its sign
    and β is inside its box, and falls elsewhere.

    All are (outputs, samples) and change at `rows`, in outputs with θ ≥ 0.

    Parameters
    ----------
    centre, last : c, β⁻
    reach : s of each sample
    slack : 1 - yz when the centre moved last
    weight, momentum : (outputs,), the least s, and θ; θ < 0 leaves an output as it is
    """
    new, point, far, now = centre.copy(), last.copy(), reach.copy(), slack.copy()
    for c in range(y.shape[0]):
        if momentum[c] < 0.0:
            continue
        for i in rows:
            rest = 1.0 - y[c, i] * z[c, i]
            beta = centre[c, i] + reach[c, i] * rest
            if 0.0 < beta < 1.0 and rest * slack[c, i] > 0.0:
                far[c, i] = min(reach[c, i] * _LONGER, weight[c] * _LONGEST)
            else:
                far[c, i] = max(reach[c, i] * _SHORTER, weight[c])
            beta = min(max(beta, 0.0), 1.0)
            moved = beta + momentum[c] * (beta - last[c, i])
            new[c, i] = min(max(moved, 0.0), 1.0)
            point[c, i] = beta
            now[c, i] = rest
    return new, point, far, now


@compiled
def hinge_slopes(
    y: Array,
    z: Array,
    direction: Array,
    centre: Array,
    reach: Array,
    rows: NDArray[np.int64],
    steps: Array,
    weights: Array | None = None,
) -> Array:
    """Do as `smoothed_losses.slopes` for the hinge, with an s (`reach`) of each sample."""
    total = np.zeros(steps.shape)
    for c in range(y.shape[0]):
        for i in rows:
            q = y[c, i] * direction[c, i]
            factor = q
            if weights is not None:
                factor = weights[i] * q
            beta = centre[c, i] + reach[c, i] * (1.0 - y[c, i] * z[c, i])
            for k in range(steps.shape[1]):
                tried = beta - steps[c, k] * reach[c, i] * q
                total[c, k] += min(max(tried, 0.0), 1.0) * factor
    return total
