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

from intarsia.data import Array
from intarsia.maths.losses import compiled

__all__ = ["advance_residual", "image_of_solution", "move_centre"]


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
    weight: Array,
    momentum: Array,
    rows: NDArray[np.int64],
) -> tuple[Array, Array]:
    """Return the new centre of the hinge and its dual point β around the old one.

    β = clip(c + s(1 - yz), 0, 1), c⁺ = clip(β + θ(β - β⁻), 0, 1): the accelerated proximal point
    method (Güler 1992). All are (outputs, samples) and change at `rows`, in outputs with θ ≥ 0.

    Parameters
    ----------
    centre, last : c, β⁻
    weight, momentum : (outputs,), s and θ; θ < 0 leaves an output as it is
    """
    new, point = centre.copy(), last.copy()
    for c in range(y.shape[0]):
        if momentum[c] < 0.0:
            continue
        for i in rows:
            beta = centre[c, i] + weight[c] * (1.0 - y[c, i] * z[c, i])
            beta = min(max(beta, 0.0), 1.0)
            moved = beta + momentum[c] * (beta - last[c, i])
            new[c, i] = min(max(moved, 0.0), 1.0)
            point[c, i] = beta
    return new, point
