"""The direction of Newton's method in the dual, and the step along it.

The phase as a whole is in `intarsia.algorithms.hyfdca.dual_newton`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.algorithms.hyfdca.dual_point import Anchor, DualChange, dual_scale
from intarsia.core.algorithm import (
    Clients,
    Counts,
    PerFeature,
    PerSample,
    PerSelected,
    RandomKey,
    client_function,
    evolve,
)
from intarsia.core.block import Array, Block, ClientId, targets
from intarsia.maths.linear import losses
from intarsia.maths.linear.dual_newton_system import (
    advance_residual,
    hinge_slopes,
    image_of_solution,
)
from intarsia.maths.linear.minibatch_sdca import advanced, span_products
from intarsia.maths.linear.row_products import PackedRows, gather_packed, score_packed, score_rows
from intarsia.maths.linear.smoothed_losses import slopes

__all__ = [
    "FUNCTIONS",
    "AdvanceResidual",
    "DirectionProducts",
    "FeatureSum",
    "GatherSolution",
    "GatheredRows",
    "Residual",
    "SelectedScores",
    "StartResidual",
    "TriedSlopes",
    "TrySteps",
    "gather_solution",
    "multiply_direction",
    "multiply_sum",
    "search",
    "slope_of_steps",
    "solve",
    "start_residual",
    "sweep",
]

_ITERATIONS = 40  # of conjugate gradients
_STEPS = np.array(
    [0, 0.06, 0.12, 0.25, 0.4, 0.55, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.35, 1.5, 1.75, 2, 2.5, 3, 4]
)


@dataclass(frozen=True)
class Residual:
    """A client's state while u is sought; arrays are (outputs, selected)."""

    anchor: Anchor
    rows: PackedRows
    counts: NDArray[np.int64]  # (cells,)
    counted: NDArray[np.bool_]  # (selected,)
    residual: Array
    direction: Array
    image: Array
    solution: Array

    @property
    def w(self) -> Array:
        """Return the weights."""
        return self.anchor.w


@dataclass(frozen=True)
class StartResidual:
    """Ask for the right-hand side."""


@dataclass(frozen=True)
class SelectedScores:
    """A client's part of the scores of the samples with curvature."""

    z: PerSelected  # (outputs, selected)
    counts: Counts
    square: Array  # (outputs,) of the vector that was multiplied, each feature once


@dataclass(frozen=True)
class AdvanceResidual:
    """The scores of the preconditioned residual (at first: the right-hand side), and the step."""

    z: PerSelected
    first: bool
    step: Array  # (outputs,)
    keep: Array  # (outputs,)


@dataclass(frozen=True)
class GatheredRows:
    """A client's part of X_Fᵀp."""

    w: PerFeature
    square: Array  # (outputs,) Σ residual · preconditioned, each sample once


@dataclass(frozen=True)
class FeatureSum:
    """X_Fᵀ of the preconditioned residual, or of the solution."""

    w: PerFeature


@dataclass(frozen=True)
class GatherSolution:
    """Ask for X_Fᵀu."""


@dataclass(frozen=True)
class DirectionProducts:
    """Scores of the direction at samples without curvature; scalars for the line search."""

    z: PerSample
    line: Array  # (outputs, 2) d·w, ‖d‖²


@dataclass(frozen=True)
class TrySteps:
    """Scores of the direction at samples without curvature, and the smoothing."""

    z: PerSample
    weight: Array


@dataclass(frozen=True)
class TriedSlopes:
    """Σ α_i q_i at each step."""

    slopes: Array  # (outputs, steps)


def solve(clients: Clients, *, regularised_samples: float, residual: float, outputs: int) -> Any:
    """Let the clients find u; return X_Fᵀu, sealed. Two exchanges an iteration.

    `residual` is where conjugate gradients stop, as a share of the right-hand side.
    """
    everyone = clients.ids
    found = clients.sum(start_residual, dict.fromkeys(everyone, StartResidual()))
    none = np.zeros(outputs)
    message = AdvanceResidual(z=found.z, first=True, step=none, keep=none)
    swept = clients.sum(sweep, dict.fromkeys(everyone, message))
    # discloses Σ h r² here and below, and ‖X_Fᵀ(h r)‖²
    square = clients.reveal(swept.square)
    target = residual**2 * square
    last, step = none, none
    for _ in range(_ITERATIONS):
        going = (square > target) & (square > 0)
        if not going.any():
            break
        found = clients.sum(multiply_sum, dict.fromkeys(everyone, FeatureSum(w=swept.w)))
        bend = square + clients.reveal(found.square) / regularised_samples
        keep = np.divide(square, last, out=np.zeros_like(square), where=going & (last > 0))
        bend = bend - np.divide(keep * square, step, out=np.zeros_like(bend), where=step > 0)
        going &= bend > 0
        step = np.divide(square, bend, out=np.zeros_like(square), where=going)
        message = AdvanceResidual(z=found.z, first=False, step=step, keep=keep)
        swept = clients.sum(sweep, dict.fromkeys(everyone, message))
        last, square = square, np.where(going, clients.reveal(swept.square), 0.0)
    return clients.sum(gather_solution, dict.fromkeys(everyone, GatherSolution())).w


def search(
    clients: Clients,
    labelled: tuple[ClientId, ...],
    solved: Any,
    *,
    weight: Array,
    regularisation: float,
    samples: int,
) -> Array:
    """Let the clients find the direction; return the step along it, (outputs,); 0: no descent."""
    found = clients.sum(multiply_direction, dict.fromkeys(clients.ids, FeatureSum(w=solved)))
    trial = TrySteps(z=found.z, weight=weight)
    tried = clients.sum(slope_of_steps, dict.fromkeys(labelled, trial))
    # discloses d·w, ‖d‖², and the slope of the smoothed losses along d at some steps
    line, data = clients.reveal(found.line), clients.reveal(tried.slopes)
    return _root(regularisation * (line[:, :1] + _STEPS * line[:, 1:]) - data / samples)


def _root(slope: Array) -> Array:
    """Return the step where each output's slope, increasing, crosses 0; 0: no descent."""
    length = np.zeros(len(slope))
    for c in range(len(slope)):
        above = np.flatnonzero(slope[c] >= 0)
        if not len(above):
            length[c] = _STEPS[-1]
        elif above[0] > 0:
            k = above[0]
            low, high, below, over = _STEPS[k - 1], _STEPS[k], slope[c, k - 1], slope[c, k]
            length[c] = low - (high - low) * below / (over - below)
    return length


@client_function
def start_residual(
    anchor: Anchor, block: Block, message: StartResidual, rng: RandomKey
) -> tuple[Residual, SelectedScores]:
    """Send this client's part of the right-hand side."""
    rows = anchor.rows
    assert rows is not None
    stops = [cell[1] for cell in anchor.before.sample_cells]
    counted = np.zeros(block.shape[0], bool)
    counted[anchor.before.counted] = True
    zeros = np.zeros_like(anchor.curvature)
    residual = Residual(
        anchor=anchor,
        rows=rows,
        counts=np.diff(np.searchsorted(anchor.selected, stops), prepend=0),
        counted=counted[anchor.selected],
        residual=zeros,
        direction=zeros,
        image=zeros,
        solution=zeros,
    )
    z = score_packed(rows, anchor.away)
    return residual, SelectedScores(z, residual.counts, np.zeros(len(z)))


@client_function
def sweep(
    state: Residual, block: Block, message: AdvanceResidual, rng: RandomKey
) -> tuple[Residual, GatheredRows]:
    """Step towards u; send X_Fᵀ of the preconditioned residual."""
    anchor = state.anchor
    residual, products = state.residual, np.ascontiguousarray(message.z)
    if message.first:
        residual, products = products, residual
    else:
        products = products * dual_scale(anchor)
    residual, direction, image, solution, preconditioned, square = advance_residual(
        anchor.curvature,
        residual,
        state.direction,
        state.image,
        state.solution,
        products,
        message.step,
        message.keep,
        state.counted,
    )
    state = evolve(state, residual=residual, direction=direction, image=image, solution=solution)
    return state, GatheredRows(gather_packed(state.rows, preconditioned), square)


@client_function
def multiply_sum(
    state: Residual, block: Block, message: FeatureSum, rng: RandomKey
) -> tuple[Residual, SelectedScores]:
    """Send this client's part of X_F times the sum over features."""
    w = np.ascontiguousarray(message.w)
    square = span_products(w, w, state.anchor.before.feature_turn)
    return state, SelectedScores(score_packed(state.rows, w), state.counts, square)


@client_function
def gather_solution(
    state: Residual, block: Block, message: GatherSolution, rng: RandomKey
) -> tuple[Residual, DualChange]:
    """Send this client's part of X_Fᵀu."""
    return state, DualChange(gather_packed(state.rows, state.solution))


@client_function
def multiply_direction(
    state: Residual, block: Block, message: FeatureSum, rng: RandomKey
) -> tuple[Anchor, DirectionProducts]:
    """Find the direction; send its scores where they are not known from u."""
    anchor = state.anchor
    direction = advanced(
        anchor.away,
        np.ascontiguousarray(message.w),
        np.full(len(anchor.w), -dual_scale(anchor)),
    )
    spans = anchor.before.feature_turn
    line = [span_products(direction, v, spans) for v in (anchor.w, direction)]
    flat = np.ones(block.shape[0], bool)
    flat[anchor.selected] = False
    rest = np.flatnonzero(flat)
    z, q = np.zeros(anchor.z.shape), np.zeros(anchor.z.shape)
    z[:, rest] = score_rows(block.x, rest, direction)
    q[:, anchor.selected] = image_of_solution(anchor.curvature, state.residual, state.solution)
    anchor = evolve(anchor, direction=direction, q=q)
    return anchor, DirectionProducts(z, np.stack(line, axis=1))


@client_function
def slope_of_steps(
    anchor: Anchor, block: Block, message: TrySteps, rng: RandomKey
) -> tuple[Anchor, TriedSlopes]:
    """Send the slopes of the losses along the direction."""
    before = anchor.before
    anchor = evolve(anchor, q=anchor.q + message.z)
    z, q, centre = anchor.z, anchor.q, anchor.centre
    y, steps = targets(block, len(z)), np.tile(_STEPS, (len(z), 1))
    loss = losses.loss_code(before.options.loss)
    if loss == losses.HINGE:
        found = hinge_slopes(y, z, q, centre, anchor.reach, before.counted, steps)
    else:
        found = slopes(loss, y, z, q, centre, message.weight, before.counted, steps)
    return anchor, TriedSlopes(found)


FUNCTIONS = (
    start_residual,
    sweep,
    multiply_sum,
    gather_solution,
    multiply_direction,
    slope_of_steps,
)
