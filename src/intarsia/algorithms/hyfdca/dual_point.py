"""What clients do at a point of Newton's method in the dual: scores, dual points and w(α).

The phase as a whole is in `intarsia.algorithms.hyfdca.dual_newton`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.core.algorithm import PerFeature, PerSample, RandomKey, client_function, evolve
from intarsia.core.block import Array, Block, targets
from intarsia.maths.linear import losses
from intarsia.maths.linear.dual_newton_system import hinge_points, move_centre
from intarsia.maths.linear.minibatch_sdca import advanced, span_products
from intarsia.maths.linear.products import scores
from intarsia.maths.linear.row_products import PackedRows, gather_packed, gather_rows, pack_rows
from intarsia.maths.linear.smoothed_losses import dual_points

__all__ = [
    "FUNCTIONS",
    "Anchor",
    "CentredDuals",
    "CountDuals",
    "DualChange",
    "DualNorms",
    "DualWeights",
    "FirstScores",
    "MoveCentre",
    "Report",
    "Settlement",
    "ShareOfScores",
    "ShareOfWeights",
    "centre_duals",
    "count_duals",
    "dual_scale",
    "measure_duals",
    "report_scores",
    "report_weights",
    "settle_down",
]

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


FUNCTIONS = (
    settle_down,
    centre_duals,
    count_duals,
    measure_duals,
    report_scores,
    report_weights,
)
