"""The clients in Newton's method in the dual: states, messages and client functions.

First what a client does at a point: scores, dual points and w(α). Then the direction by conjugate
gradients and the step along it, with the server's side of both. `dual_newton` has the phase as a
whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.core.algorithm import (
    Clients,
    Counts,
    PerFeature,
    PerSample,
    PerSelected,
    RandomKey,
    client_function,
    evolve,
    sums,
)
from intarsia.core.block import Array, Block, ClientId, targets
from intarsia.maths.linear import losses
from intarsia.maths.linear.dual_newton_system import (
    advance_residual,
    hinge_points,
    hinge_slopes,
    image_of_solution,
    move_centre,
)
from intarsia.maths.linear.minibatch_sdca import advanced, span_products
from intarsia.maths.linear.products import scores
from intarsia.maths.linear.row_products import (
    PackedRows,
    gather_packed,
    gather_rows,
    pack_rows,
    score_packed,
    score_rows,
)
from intarsia.maths.linear.smoothed_losses import dual_points, slopes

_SPARE = 1.2  # samples that are kept packed, as a multiple of those with curvature


@dataclass(frozen=True)
class Anchor:
    """A client's state in this phase, in the order of its aligned block."""

    before: Any  # the client's state of dual ascent, to return to
    w: Array  # (outputs, features) primal point
    away: Array  # (outputs, features) w(α) - w
    direction: Array  # (outputs, features)
    alpha: Array  # (outputs, samples) dual point that this client's part of w(α) counts
    z: Array  # (outputs, samples) scores at w
    q: Array  # (outputs, samples) scores of the direction
    centre: Array  # (outputs, samples) c
    last: Array  # (outputs, samples) dual point β that the last centre came from
    reach: Array  # (outputs, samples) s of each sample
    slack: Array  # (outputs, samples) 1 - yz when the centre moved last
    selected: NDArray[np.int64]  # samples with curvature, now or lately
    curvature: Array  # (outputs, selected) h
    rows: PackedRows | None = None  # of the selected samples

    @property
    def options(self) -> Any:
        """Return the hyperparameters."""
        return self.before.options


@dataclass(frozen=True)
class Settlement:
    """Duals and w(α) to start from."""

    alpha: PerSample
    w: PerFeature


@dataclass(frozen=True)
class FirstScores:
    """A client's part of the scores; Σ ‖x_i‖² of the samples that it counts."""

    z: PerSample
    norms: Array  # (1,)


@dataclass(frozen=True)
class MoveCentre:
    """How far to go, and how to move the centre of the hinge there; arrays are (outputs,)."""

    z: PerSample | None  # scores computed afresh; None: along the direction
    step: Array
    weight: Array  # s
    momentum: Array  # θ; below 0 the centre stays


@dataclass(frozen=True)
class CentredDuals:
    """Dual points and curvatures of the samples whose label counts at the client."""

    alpha: PerSample
    curvature: PerSample
    sums: Array  # (outputs, 4) as in dual_points


@dataclass(frozen=True)
class CountDuals:
    """The dual point to count into w(α); the step that led there."""

    alpha: PerSample
    curvature: PerSample
    step: Array  # (outputs,)


@dataclass(frozen=True)
class DualChange:
    """What the client's part of w(α) changed by."""

    w: PerFeature


@dataclass(frozen=True)
class DualWeights:
    """w(α)."""

    w: PerFeature


@dataclass(frozen=True)
class DualNorms:
    """Norms for the certificate, each feature once."""

    norms: Array  # (outputs, 2) ‖w‖², ‖w(α)‖²


@dataclass(frozen=True)
class Report:
    """Ask for the scores or the weights."""


@dataclass(frozen=True)
class ShareOfScores:
    """A client's part of the scores."""

    z: PerSample


@dataclass(frozen=True)
class ShareOfWeights:
    """A client's share of the weights."""

    w: PerFeature


def dual_scale(anchor: Anchor) -> float:
    """Return 1/(λN)."""
    scale: float = 1 / (anchor.before.options.regularisation * anchor.before.samples)
    return scale


@client_function
def settle_down(
    state: Any, block: Block, message: Settlement, rng: RandomKey
) -> tuple[Anchor, FirstScores]:
    """Leave dual ascent; send this client's part of the scores."""
    before = getattr(state, "before", state)
    alpha, w = message.alpha, np.ascontiguousarray(message.w)
    centre = np.zeros(alpha.shape)
    if losses.loss_code(before.options.loss) == losses.HINGE:
        mine = before.counted
        centre[:, mine] = targets(block, len(alpha))[:, mine] * alpha[:, mine]
    anchor = Anchor(
        before=before,
        w=w,
        away=np.zeros_like(w),
        direction=np.zeros_like(w),
        alpha=alpha,
        z=np.zeros(alpha.shape),
        q=np.zeros(alpha.shape),
        centre=centre,
        last=centre,
        reach=np.zeros(alpha.shape),
        slack=np.zeros(alpha.shape),
        selected=np.zeros(0, np.int64),
        curvature=np.zeros((len(alpha), 0)),
    )
    norms = np.array([before.norms[before.counted].sum()])
    return anchor, FirstScores(scores(block.x, w), norms)


@client_function
def centre_duals(
    anchor: Anchor, block: Block, message: MoveCentre, rng: RandomKey
) -> tuple[Anchor, CentredDuals]:
    """Go to the new scores and the new centre; find the dual point there."""
    before, z = anchor.before, anchor.z
    if message.z is not None:
        z = message.z.copy()
    if message.step.any():
        z = z + message.step[:, None] * anchor.q
    y, loss = targets(block, len(z)), losses.loss_code(before.options.loss)
    centre, last, reach, slack = anchor.centre, anchor.last, anchor.reach, anchor.slack
    if not reach.any():
        reach = reach + message.weight[:, None]
    if (message.momentum >= 0).any():
        given = (message.weight, message.momentum, before.counted)
        centre, last, reach, slack = move_centre(y, z, centre, last, reach, slack, *given)
    alpha, curvature = np.zeros_like(z), np.zeros_like(z)
    if loss == losses.HINGE:
        sums = hinge_points(y, z, centre, reach, before.counted, alpha, curvature)
    else:
        sums = dual_points(loss, y, z, centre, message.weight, before.counted, alpha, curvature)
    anchor = evolve(anchor, z=z, centre=centre, last=last, reach=reach, slack=slack)
    return anchor, CentredDuals(alpha, curvature, sums)


def _selection(anchor: Anchor, curved: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the samples to keep packed: those with curvature, and in a cell a few that had it.

    All owners of a cell keep the same ones: it depends on what they know of the cell alone.
    """
    kept = curved.copy()
    kept[anchor.selected] = True
    for start, stop, *_ in anchor.before.sample_cells:
        now = curved[start:stop]
        if kept[start:stop].sum() > _SPARE * now.sum():
            kept[start:stop] = now
    return np.flatnonzero(kept)


@client_function
def count_duals(
    anchor: Anchor, block: Block, message: CountDuals, rng: RandomKey
) -> tuple[Anchor, DualChange]:
    """Count the dual point into w(α); go to the new weights."""
    h = message.curvature
    selected = _selection(anchor, np.asarray((h > 0).any(axis=0)))
    rows = anchor.rows
    if rows is None or not np.array_equal(selected, anchor.selected):
        rows = pack_rows(block.x, selected)
    steps = (message.alpha - anchor.alpha) * dual_scale(anchor)
    change = gather_packed(rows, steps[:, selected])
    steps[:, selected] = 0.0
    others = np.flatnonzero(steps.any(axis=0))
    if len(others):
        change += gather_rows(block.x, others, steps[:, others])
    w = anchor.w
    if message.step.any():
        w = advanced(w, anchor.direction, message.step)
    chosen = {"selected": selected, "curvature": h[:, selected], "rows": rows}
    return evolve(anchor, w=w, alpha=message.alpha, **chosen), DualChange(change)


@client_function
def measure_duals(
    anchor: Anchor, block: Block, message: DualWeights, rng: RandomKey
) -> tuple[Anchor, DualNorms]:
    """Send norms for the certificate."""
    given, spans = np.ascontiguousarray(message.w), anchor.before.feature_turn
    norms = [span_products(anchor.w, anchor.w, spans), span_products(given, given, spans)]
    return evolve(anchor, away=given - anchor.w), DualNorms(np.stack(norms, axis=1))


@client_function
def report_scores(
    anchor: Anchor, block: Block, message: Report, rng: RandomKey
) -> tuple[Anchor, ShareOfScores]:
    """Send this client's part of the scores at the primal point."""
    return anchor, ShareOfScores(scores(block.x, anchor.w))


@client_function
def report_weights(
    anchor: Anchor, block: Block, message: Report, rng: RandomKey
) -> tuple[Anchor, ShareOfWeights]:
    """Send this client's share of the weights."""
    return anchor, ShareOfWeights(anchor.w * anchor.before.feature_share)


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


SENDS = (
    *sums(settle_down, reveals=("norms",)),
    *sums(centre_duals, reveals=("sums",)),
    *sums(count_duals, report_scores, gather_solution),
    *sums(measure_duals, reveals=("norms",)),
    *sums(report_weights, reveals=("w",)),
    *sums(start_residual, sweep, multiply_sum, reveals=("square",)),
    *sums(multiply_direction, reveals=("line",)),
    *sums(slope_of_steps, reveals=("slopes",)),
)
