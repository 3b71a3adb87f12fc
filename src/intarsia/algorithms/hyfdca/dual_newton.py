"""Federated Newton's method in the dual: the phase of HyFDCA that certifies where N < M.

    F(w) = λ/2 ‖w‖² + 1/N Σ_i φ_i(x_iᵀw)

φ is the loss; the hinge is smoothed around a dual centre c with weight s, so that its dual point
β = clip(c + s(1 - yz), 0, 1) stays in its box. With h = φ″ and the samples F where h > 0, Newton's
direction for w is d = w(α) - w - X_Fᵀu/(λN), where

    (1/h + X_F X_Fᵀ/(λN)) u = X_F (w(α) - w)

is as large as F has samples, and well conditioned where rows are nearly orthogonal. The centre of
the hinge moves at each step, with extrapolation: the accelerated proximal point method in the
dual (Güler 1992). The point w and the dual point α give the certificate P(w) - D(α).

The server sees scalars only; every vector is a sealed total for the owners of its entries. A
round is one step:

1. u by conjugate gradients: each iteration is one sum over features (X_Fᵀp), one over samples
   (X_F of that), and two scalars; then X_Fᵀu
2. scores of the direction, and the slopes of F along it for the line search
3. new scores, centre, dual points and curvatures at one holder of each label
4. w(α), and the norms that make the certificate

Each output of a one-vs-rest model has its own point and step; the exchanges carry them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia import core as fl
from intarsia.core.block import Array, Block, ClientId, row_weights, targets
from intarsia.maths.linear import dual_newton_system as system
from intarsia.maths.linear import losses
from intarsia.maths.linear import row_products as packed
from intarsia.maths.linear.minibatch_sdca import advanced, span_products
from intarsia.maths.linear.products import scores
from intarsia.maths.linear.smoothed_losses import dual_points, slopes

PHASE = "dual newton"
_WEIGHT = 2.0  # s at first as a multiple of λN over the mean ‖x_i‖²
_RESIDUAL_HINGE, _RESIDUAL_SMOOTH = 0.005, 0.03  # where conjugate gradients stop
_MOST, _DELAY = 0.4, 6.0  # θ at most, and the steps after which it would be a half
_FAR, _PATIENCE = 0.1, (12, 150)  # relative gap; steps within which it must halve: above, below
_SPARE = 1.2  # samples that are kept packed, as a multiple of those with curvature
_ITERATIONS = 40  # of conjugate gradients
_STEPS = np.array(
    [0, 0.06, 0.12, 0.25, 0.4, 0.55, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.35, 1.5, 1.75, 2, 2.5, 3, 4]
)


@dataclass(frozen=True)
class DualNewton:
    """The server's state; arrays are (outputs,)."""

    loss: int
    regularisation: float
    samples: int  # N
    labelled: tuple[ClientId, ...]  # clients that read scores
    weight: Array  # s
    pulled: Array  # steps since the extrapolation started
    previous: Array  # D at the last point
    best: Array  # largest D so far
    primal: Array
    dual: Array
    mark: tuple[float, int] = (np.inf, 0)  # gap and step where progress was last checked
    steps: int = 0
    still: int = 0  # steps without descent
    stalled: bool = False
    alpha: Any = None  # sealed (outputs, samples)
    dual_weights: Any = None  # sealed (outputs, features) w(α)


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
    rows: packed.PackedRows | None = None  # of the selected samples


@dataclass(frozen=True)
class Settlement:
    """Duals and w(α) to start from."""

    alpha: fl.PerSample
    w: fl.PerFeature


@fl.describe(z="each row's model score", norms="the sum of rows' squared lengths")
class FirstScores:
    """A client's part of the scores; Σ ‖x_i‖² of the samples that it counts."""

    z: fl.PerScore
    norms: Array  # (1,)


@dataclass(frozen=True)
class MoveCentre:
    """How far to go, and how to move the centre of the hinge there; arrays are (outputs,)."""

    z: fl.PerScore | None  # scores computed afresh; None: along the direction
    step: Array
    weight: Array  # s
    momentum: Array  # θ; below 0 the centre stays


@fl.describe(
    alpha="each row's dual variable",
    curvature="each row's curvature of the loss",
    sums="terms of the training objective",
)
class CentredDuals:
    """Dual points and curvatures of the samples whose label counts at the client."""

    alpha: fl.PerSample
    curvature: fl.PerSample
    sums: Array  # (outputs, 4) as in dual_points


@dataclass(frozen=True)
class CountDuals:
    """The dual point to count into w(α); the step that led there."""

    alpha: fl.PerSample
    curvature: fl.PerSample
    step: Array  # (outputs,)


@fl.describe("model weights or their changes")
class DualChange:
    """What the client's part of w(α) changed by."""

    w: fl.PerFeature


@dataclass(frozen=True)
class DualWeights:
    """w(α)."""

    w: fl.PerFeature


@fl.describe("terms of the training objective")
class DualNorms:
    """Norms for the certificate, each feature once."""

    norms: Array  # (outputs, 2) ‖w‖², ‖w(α)‖²


@dataclass(frozen=True)
class Report:
    """Ask for the scores or the weights."""


@fl.describe("each row's model score")
class ShareOfScores:
    """A client's part of the scores."""

    z: fl.PerScore


@fl.describe("model weights or their changes")
class ShareOfWeights:
    """A client's share of the weights."""

    w: fl.PerFeature


def dual_scale(anchor: Anchor) -> float:
    """Return 1/(λN)."""
    scale: float = 1 / (anchor.before.options.regularisation * anchor.before.samples)
    return scale


@fl.client_function
def settle_down(state: Any, block: Block, message: Settlement) -> tuple[Anchor, FirstScores]:
    """Leave dual ascent; send this client's part of the scores."""
    before = getattr(state, "before", state)
    alpha, w = message.alpha, np.ascontiguousarray(message.w)
    zeros = np.zeros(alpha.shape)
    centre = zeros.copy()
    if losses.loss_code(before.options.loss) == losses.HINGE:
        mine = before.counted
        signs = targets(block, len(alpha))[:, mine]
        centre[:, mine] = signs * alpha[:, mine] / row_weights(block)[mine]
    anchor = Anchor(
        before=before,
        w=w,
        away=np.zeros_like(w),
        direction=np.zeros_like(w),
        alpha=alpha,
        z=zeros,
        q=zeros,
        centre=centre,
        last=centre,
        reach=zeros,
        slack=zeros,
        selected=np.zeros(0, np.int64),
        curvature=np.zeros((len(alpha), 0)),
    )
    norms = np.array([before.norms[before.counted].sum()])
    return anchor, FirstScores(scores(block.x, w), norms)


@fl.client_function
def centre_duals(anchor: Anchor, block: Block, message: MoveCentre) -> tuple[Anchor, CentredDuals]:
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
        centre, last, reach, slack = system.move_centre(y, z, centre, last, reach, slack, *given)
    alpha, curvature = np.zeros_like(z), np.zeros_like(z)
    weight = reach if loss == losses.HINGE else message.weight
    shape = losses.shape_of(before.options)
    placed = (weight, before.counted, alpha, curvature, block.weights, shape)
    sums = dual_points(loss, y, z, centre, *placed)
    anchor = fl.evolve(anchor, z=z, centre=centre, last=last, reach=reach, slack=slack)
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


@fl.client_function
def count_duals(anchor: Anchor, block: Block, message: CountDuals) -> tuple[Anchor, DualChange]:
    """Count the dual point into w(α); go to the new weights."""
    h = message.curvature
    selected = _selection(anchor, np.asarray((h > 0).any(axis=0)))
    rows = anchor.rows
    if rows is None or not np.array_equal(selected, anchor.selected):
        rows = packed.pack_rows(block.x, selected)
    steps = (message.alpha - anchor.alpha) * dual_scale(anchor)
    change = packed.gather_packed(rows, steps[:, selected])
    steps[:, selected] = 0.0
    others = np.flatnonzero(steps.any(axis=0))
    if len(others):
        change += packed.gather_rows(block.x, others, steps[:, others])
    w = anchor.w
    if message.step.any():
        w = advanced(w, anchor.direction, message.step)
    chosen = {"selected": selected, "curvature": h[:, selected], "rows": rows}
    return fl.evolve(anchor, w=w, alpha=message.alpha, **chosen), DualChange(change)


@fl.client_function
def measure_duals(anchor: Anchor, block: Block, message: DualWeights) -> tuple[Anchor, DualNorms]:
    """Send norms for the certificate."""
    given, spans = np.ascontiguousarray(message.w), anchor.before.feature_turn
    norms = [span_products(anchor.w, anchor.w, spans), span_products(given, given, spans)]
    return fl.evolve(anchor, away=given - anchor.w), DualNorms(np.stack(norms, axis=1))


@fl.client_function
def report_scores(anchor: Anchor, block: Block, message: Report) -> tuple[Anchor, ShareOfScores]:
    """Send this client's part of the scores at the primal point."""
    return anchor, ShareOfScores(scores(block.x, anchor.w))


@fl.client_function
def report_weights(anchor: Anchor, block: Block, message: Report) -> tuple[Anchor, ShareOfWeights]:
    """Send this client's share of the weights."""
    return anchor, ShareOfWeights(anchor.w * anchor.before.feature_share)


@dataclass(frozen=True)
class Residual:
    """A client's state while u is sought; arrays are (outputs, selected)."""

    anchor: Anchor
    rows: packed.PackedRows
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


@fl.describe(
    z="each row's product with a step's direction",
    counts="numbers of chosen rows",
    square="terms of the training objective",
)
class SelectedScores:
    """A client's part of the scores of the samples with curvature."""

    z: fl.PerSelected  # (outputs, selected)
    counts: fl.Counts
    square: Array  # (outputs,) of the vector that was multiplied, each feature once


@dataclass(frozen=True)
class AdvanceResidual:
    """The scores of the preconditioned residual (at first: the right-hand side), and the step."""

    z: fl.PerSelected
    first: bool
    step: Array  # (outputs,)
    keep: Array  # (outputs,)


@fl.describe(w="weighted sums of columns", square="terms of the training objective")
class GatheredRows:
    """A client's part of X_Fᵀp."""

    w: fl.PerFeature
    square: Array  # (outputs,) Σ residual · preconditioned, each sample once


@dataclass(frozen=True)
class FeatureSum:
    """X_Fᵀ of the preconditioned residual, or of the solution."""

    w: fl.PerFeature


@dataclass(frozen=True)
class GatherSolution:
    """Ask for X_Fᵀu."""


@fl.describe(z="each row's product with a step's direction", line="terms of the training objective")
class DirectionProducts:
    """Scores of the direction at samples without curvature; scalars for the line search."""

    z: fl.PerScore
    line: Array  # (outputs, 2) d·w, ‖d‖²


@dataclass(frozen=True)
class TrySteps:
    """Scores of the direction at samples without curvature, and the smoothing."""

    z: fl.PerScore
    weight: Array


@fl.describe("terms of the training objective")
class TriedSlopes:
    """Σ α_i q_i at each step."""

    slopes: Array  # (outputs, steps)


@fl.client_function
def start_residual(
    anchor: Anchor, block: Block, message: StartResidual
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
    z = packed.score_packed(rows, anchor.away)
    return residual, SelectedScores(z, residual.counts, np.zeros(len(z)))


@fl.client_function
def sweep(state: Residual, block: Block, message: AdvanceResidual) -> tuple[Residual, GatheredRows]:
    """Step towards u; send X_Fᵀ of the preconditioned residual."""
    anchor = state.anchor
    residual, products = state.residual, np.ascontiguousarray(message.z)
    if message.first:
        residual, products = products, residual
    else:
        products = products * dual_scale(anchor)
    residual, direction, image, solution, preconditioned, square = system.advance_residual(
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
    state = fl.evolve(state, residual=residual, direction=direction, image=image, solution=solution)
    return state, GatheredRows(packed.gather_packed(state.rows, preconditioned), square)


@fl.client_function
def multiply_sum(
    state: Residual, block: Block, message: FeatureSum
) -> tuple[Residual, SelectedScores]:
    """Send this client's part of X_F times the sum over features."""
    w = np.ascontiguousarray(message.w)
    square = span_products(w, w, state.anchor.before.feature_turn)
    return state, SelectedScores(packed.score_packed(state.rows, w), state.counts, square)


@fl.client_function
def gather_solution(
    state: Residual, block: Block, message: GatherSolution
) -> tuple[Residual, DualChange]:
    """Send this client's part of X_Fᵀu."""
    return state, DualChange(packed.gather_packed(state.rows, state.solution))


@fl.client_function
def multiply_direction(
    state: Residual, block: Block, message: FeatureSum
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
    z[:, rest] = packed.score_rows(block.x, rest, direction)
    q[:, anchor.selected] = system.image_of_solution(
        anchor.curvature, state.residual, state.solution
    )
    anchor = fl.evolve(anchor, direction=direction, q=q)
    return anchor, DirectionProducts(z, np.stack(line, axis=1))


@fl.client_function
def slope_of_steps(anchor: Anchor, block: Block, message: TrySteps) -> tuple[Anchor, TriedSlopes]:
    """Send the slopes of the losses along the direction."""
    before = anchor.before
    anchor = fl.evolve(anchor, q=anchor.q + message.z)
    z, q, centre = anchor.z, anchor.q, anchor.centre
    y, steps = targets(block, len(z)), np.tile(_STEPS, (len(z), 1))
    loss = losses.loss_code(before.options.loss)
    if loss == losses.HINGE:
        found = system.hinge_slopes(
            y, z, q, centre, anchor.reach, before.counted, steps, block.weights
        )
    else:
        shape = losses.shape_of(before.options)
        given = (message.weight, before.counted, steps, block.weights, shape)
        found = slopes(loss, y, z, q, centre, *given)
    return anchor, TriedSlopes(found)


def begin(
    clients: fl.Clients, problem: Mapping[str, Any], alpha: Any, w: Any, outputs: int
) -> DualNewton:
    """Start the phase from duals and w(α); return the state at that point.

    `problem` has the first fields of the state.
    """
    found = clients.sum(settle_down, Settlement(alpha, w))
    # discloses the mean of ‖x_i‖²
    square = float(clients.reveal(found.norms)[0]) / problem["samples"]
    weight = 1.0
    if square > 0:
        weight = _WEIGHT * problem["regularisation"] * problem["samples"] / square
    low = np.full(outputs, -np.inf)
    newton = DualNewton(
        **problem,
        weight=np.full(outputs, weight),
        pulled=np.zeros(outputs),
        previous=low,
        best=low,
        primal=-low,
        dual=low,
        alpha=alpha,
        dual_weights=w,
    )
    return _at(newton, clients, np.zeros(outputs), np.full(outputs, -1.0), z=found.z)


def step(
    newton: DualNewton, clients: fl.Clients, rng: fl.RandomKey
) -> tuple[DualNewton, fl.RoundMetrics]:
    """Take one step; return the state and the certificate at the new point."""
    # step 1: u
    solved = _solve(newton, clients)
    # step 2: line search
    length = _search(newton, clients, solved)
    hinge = newton.loss == losses.HINGE
    # steps 3 and 4
    momentum = np.full(len(length), -1.0)
    if hinge:
        # the extrapolation starts again where it made the dual fall
        pulled = np.where(newton.dual < newton.previous, 0.0, newton.pulled)
        momentum = np.minimum(pulled / (pulled + _DELAY), _MOST)
        newton = fl.evolve(newton, pulled=pulled + 1, previous=newton.dual)
    newton = _at(newton, clients, length, momentum)
    still = 0 if length.any() else newton.still + 1
    newton = _check_progress(fl.evolve(newton, steps=newton.steps + 1, still=still))
    return newton, info(newton)


def _solve(newton: DualNewton, clients: fl.Clients) -> Any:
    """Let the clients find u; return X_Fᵀu, sealed. Two exchanges an iteration."""
    everyone = clients.ids
    residual = _RESIDUAL_HINGE if newton.loss == losses.HINGE else _RESIDUAL_SMOOTH
    regularised_samples = newton.regularisation * newton.samples
    found = clients.sum(start_residual, dict.fromkeys(everyone, StartResidual()))
    none = np.zeros(len(newton.weight))
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


def _search(newton: DualNewton, clients: fl.Clients, solved: Any) -> Array:
    """Let the clients find the direction; return the step along it, (outputs,); 0: no descent."""
    found = clients.sum(multiply_direction, FeatureSum(w=solved))
    trial = TrySteps(z=found.z, weight=newton.weight)
    tried = clients.sum(slope_of_steps, dict.fromkeys(newton.labelled, trial))
    # discloses d·w, ‖d‖², and the slope of the smoothed losses along d at some steps
    line, data = clients.reveal(found.line), clients.reveal(tried.slopes)
    slope = newton.regularisation * (line[:, :1] + _STEPS * line[:, 1:])
    return _root(slope - data / newton.samples)


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


def info(newton: DualNewton) -> fl.RoundMetrics:
    """Return the certificate at the present point, summed over the outputs."""
    primal, dual = float(newton.primal.sum()), float(newton.dual.sum())
    return fl.RoundMetrics.certified(primal, dual, PHASE)


def certify(newton: DualNewton, clients: fl.Clients) -> tuple[DualNewton, fl.RoundMetrics]:
    """Compute the scores afresh at the primal point, then the certificate."""
    found = clients.sum(report_scores, Report())
    none = np.zeros(len(newton.weight))
    newton = _at(newton, clients, none, none - 1, z=found.z)
    return newton, info(newton)


def share_model(clients: fl.Clients) -> Any:
    """Return the sealed total of the primal point."""
    return clients.sum(report_weights, Report()).w


def _at(
    newton: DualNewton, clients: fl.Clients, length: Array, momentum: Array, z: Any = None
) -> DualNewton:
    """Move by a step, move the centre, and measure the point."""
    move = MoveCentre(z=z, step=length, weight=newton.weight, momentum=momentum)
    point = clients.sum(centre_duals, dict.fromkeys(newton.labelled, move))
    count = CountDuals(alpha=point.alpha, curvature=point.curvature, step=length)
    changed = clients.sum(count_duals, count)
    dual_weights = newton.dual_weights + changed.w
    measured = clients.sum(measure_duals, DualWeights(w=dual_weights))
    # discloses for each output: losses, dual terms, the proximal term, the number of samples with
    # curvature, ‖w‖² and ‖w(α)‖²
    sums, norms = clients.reveal(point.sums), clients.reveal(measured.norms)
    ridge = 0.5 * newton.regularisation
    dual = sums[:, 1] / newton.samples - ridge * norms[:, 1]
    return fl.evolve(
        newton,
        primal=ridge * norms[:, 0] + sums[:, 0] / newton.samples,
        dual=dual,
        best=np.maximum(newton.best, dual),
        alpha=point.alpha,
        dual_weights=dual_weights,
    )


def _check_progress(newton: DualNewton) -> DualNewton:
    """Give up where the gap did not halve for long, or no step descends."""
    gap = float((newton.primal - newton.best).sum())
    stalled = newton.still > 3 or not np.isfinite(gap)
    mark = newton.mark
    near = gap <= _FAR * float(newton.primal.sum())
    if newton.steps - mark[1] >= _PATIENCE[near]:
        stalled = stalled or gap > 0.5 * mark[0]
        mark = (gap, newton.steps)
    elif newton.steps == 1:
        mark = (gap, 1)
    return fl.evolve(newton, mark=mark, stalled=stalled)


STATES = (DualNewton, Anchor, Residual, packed.PackedRows)
SENDS = (
    *fl.sums(settle_down, reveals=("norms",)),
    *fl.sums(centre_duals, reveals=("sums",)),
    *fl.sums(count_duals, report_scores, gather_solution),
    *fl.sums(measure_duals, reveals=("norms",)),
    *fl.each(fl.sums(report_weights, reveals=("w",), opens=("w",)), model=("w",)),
    *fl.sums(start_residual, sweep, multiply_sum, reveals=("square",)),
    *fl.sums(multiply_direction, reveals=("line",)),
    *fl.sums(slope_of_steps, reveals=("slopes",)),
)
