"""The clients in Newton's method: what each does when its point moves.

The samples with curvature make the Hessian; where there are more than the budget, some stand for
all. The Gram matrices of a client's samples within each feature cell precondition it; they are
packed for a sum over clients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from intarsia import core as fl
from intarsia.algorithms.hyfdca.newton.frame import (
    LARGEST,
    Frame,
    hessian_in_frame,
    keep_frame,
    project_new,
    remember,
)
from intarsia.algorithms.hyfdca.newton.point import Point
from intarsia.core.block import Array, Block, Values, row_weights, targets
from intarsia.core.schema import Cell
from intarsia.errors import RefusedError
from intarsia.maths.linear import interior_point, losses
from intarsia.maths.linear.elastic_net import soft_threshold, stiffness
from intarsia.maths.linear.local_sdca import feature_squares
from intarsia.maths.linear.products import gather, scores
from intarsia.maths.linear.smoothed_losses import (
    curvatures,
    curved_samples,
    dual_points,
    mean_curvatures,
    move_points,
    telling_samples,
)
from intarsia.protocols.differential_privacy import normal_numbers

BLOCK = 2048  # most features of a cell for a full Gram matrix in the preconditioner
SAMPLES = 2000  # least samples in the Hessian of conjugate gradients, and 6 for each feature
SHARED_SAMPLES = 6000  # least samples in a Hessian that is shared, and 12 for each feature
LIFT = 8.0**5  # what the regularisation is multiplied by, once, to come down from there
LOWER = 8.0  # what it is divided by then, where the gap is small
_SEALABLE = 2.0**60  # what a sealed number may reach
SHORT = 0.25  # step below which many samples change sides
_FADING = 0.1  # what is left of a curvature after a step without it
_PASSED = 0.5  # the part of the mean curvature on a step that counts
_FEW = 5  # rows of an overlap group, of fewer of which the number with curvature would tell each
_SHIFT = 100.0  # added to log h where it is sent, so that 0 says that a sample has none


def height(cells: Sequence[Cell]) -> int:
    """Return the rows that half of the widest full Gram matrix needs; diagonals need one."""
    sizes = [cell.stop - cell.start for cell in cells]
    return max((size // 2 + 1 for size in sizes if size <= BLOCK), default=1)


def halves(size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where the entries of half of a symmetric matrix stand: row and column, each 2-D.

    Row k of the half holds the entries (j, j + k modulo the size): all are there by symmetry.
    """
    shift, column = np.arange(size // 2 + 1)[:, None], np.arange(size)
    return np.broadcast_to(column, (len(shift), size)), (shift + column) % size


def cell_grams(
    x: Values,
    selected: NDArray[np.int64],
    curvature: Array,
    cells: Sequence[tuple[int, int]],
    *,
    height: int,
    samples: int,
) -> Array:
    """Return Xᵀ h X / N of the client's samples within each feature cell.

    Columns are features, (outputs, height, features), and rows those of `halves`, so that no entry
    is sent twice; wide cells have their diagonal in row 0, and with a `height` of 1 all cells do.

    Parameters
    ----------
    selected, curvature
        Some of the client's samples, and h of each, (outputs, selected).
    cells
        Where the client's features of a cell start and stop.
    height
        Rows that the cells of the whole federation need.
    samples
        N.
    """
    gram = np.zeros((len(curvature), height, x.shape[1]))
    chosen = x[selected]
    for start, stop in cells:
        size = stop - start
        rows = chosen[:, start:stop]
        if size > BLOCK or height == 1:
            squares = rows.multiply(rows) if isinstance(rows, csr_array) else rows * rows
            gram[:, 0, start:stop] = (squares.T @ curvature.T).T / samples
            continue
        for c, h in enumerate(curvature):
            root = np.sqrt(h / samples)[:, None]
            if isinstance(rows, csr_array):
                weighted = csr_array(rows.multiply(root))
                product = (weighted.T @ weighted).toarray()
            else:
                weighted = rows * root
                product = weighted.T @ weighted
            gram[c, : size // 2 + 1, start:stop] = product[halves(size)]
    return gram


@dataclass(frozen=True)
class Start:
    """Duals and weights to start from."""

    alpha: fl.PerSample
    w: fl.PerFeature | None  # None: as they stand
    warm: bool  # after dual ascent
    frame: int  # features of the frame, 0 = none
    shared: bool = (
        False  # whether Newton's system is shared, in a secret basis of each feature cell
    )


@dataclass(frozen=True)
class Move:
    """How far to go, and how to smooth the hinge there; each (outputs,)."""

    step: Array
    weight: Array
    recentre: Array  # weight of the smoothing whose dual point becomes the centre; 0 = keep
    curvature: bool = False  # whether curvatures are sent, as they do not follow from the duals


@fl.describe(
    alpha="each row's dual variable",
    sums="terms of the training objective",
    curvature="each row's curvature of the loss",
)
class DualPoint:
    """Dual points of the samples whose label counts at the client."""

    alpha: fl.PerSample
    sums: Array  # (outputs, 4) as in dual_points
    curvature: fl.PerSample | None = None  # see `logarithm`


@dataclass(frozen=True)
class Gather:
    """The dual point to count into w(α); the step that led there."""

    alpha: fl.PerSample
    weight: Array  # (outputs,) of the smoothing, that the curvatures follow from
    step: Array  # (outputs,)
    budget: int  # samples in the Hessian
    framed: bool
    gram: bool  # whether to renew the preconditioner
    whole: bool = True  # whether it has more than the diagonals of the Gram matrices
    faded: bool = False  # whether samples count that had curvature some steps ago, or on the step
    curvature: fl.PerSample | None = None  # None: it follows from the dual point
    recentre: Array | None = None  # elastic net: as in Move
    lift: float = 1.0  # λ now, of the elastic net κ, over the model's
    keep: bool = False  # whether the point before is the best, whose weights are to be kept
    ends: bool = False  # whether no step follows: nothing is selected


@fl.describe(
    w="model weights or their changes",
    gram="products of columns",
    rows="random projections of chosen rows",
    counts="numbers of chosen rows",
)
class Gathered:
    """The client's part of w(α) and of the Hessian."""

    w: fl.PerFeature  # (outputs, features)
    gram: fl.PerFeature | None  # (outputs, height, features), see `cell_grams`
    rows: fl.PerSelected | None  # (frame, selected) X P, of samples that were not selected before
    counts: fl.Counts | None


@dataclass(frozen=True)
class MeasurePoint:
    """w(α), and the newly selected samples in the frame."""

    w: fl.PerFeature
    rows: fl.PerSelected | None


@fl.describe(
    norms="terms of the training objective",
    gradient="gradient and curvature of the loss",
    hessian="gradient and curvature of the loss",
    bounds="powers of two above sizes of first and second derivatives",
    z="each row's model score",
)
class Measured:
    """Norms for the certificate; gradient and Hessian in the frame."""

    # (outputs, 3) ‖w - w(α)‖², ‖w‖², ‖w(α)‖²; of the elastic net (outputs, 5), see `_measure_l1`;
    # where the system is shared -inf says that one with w(α) is too large to be sealed; in the
    # interior point phase (outputs, 2) ‖w‖², ‖w(α)‖², and see its `_measure_l1`
    norms: Array | None
    gradient: Array | None  # (outputs, frame)
    hessian: Array | None  # (outputs, frame, frame)
    bounds: Array | None = None  # (outputs, 2) where the system is shared, see `_bounds`
    z: fl.PerScore | None = None  # elastic net: scores of the model


@dataclass(frozen=True)
class Refresh:
    """The scores at the primal point; None: send this client's part of them, or of the weights."""

    z: fl.PerScore | None
    best: bool = False  # whether weights are to be those that the client kept
    zeros: bool = False  # whether they are to be 0


@fl.describe("each row's model score")
class OwnScores:
    """A client's part of the scores."""

    z: fl.PerScore


@dataclass(frozen=True)
class ModelScores:
    """The scores of the model."""

    z: fl.PerScore


@fl.describe("terms of the training objective")
class ModelLoss:
    """The losses of the model at the samples whose label counts at the client."""

    sums: Array  # (outputs,)


@fl.describe(w="model weights or their changes", nonzero="which model weights are zero")
class OwnWeights:
    """A client's share of the weights."""

    w: fl.PerFeature
    nonzero: fl.PerFeature | None = None  # elastic net: a share of 1 where the weight is not 0


@fl.secret_function
def enter(before: Any, block: Block, message: Start, rng: fl.SecretKey) -> tuple[Point, Frame]:
    """Leave dual ascent for Newton's method; draw a part of the frame.

    Rows in a frame that others know are rows: it comes from what this client alone has.

    Raises
    ------
    RefusedError
        If the frame of a shared system has another size than the client's index sets give, or the
        elastic net begins elsewhere than at zeros.
    """
    inner = None
    if message.w is None:  # for a frame in the interior point phase, from its duals where it began
        before = getattr(before, "point", before)  # a search for a direction is given up
        before, w, inner = before.before, before.w, before.inner
    else:
        w = message.w
    samples, features = block.shape
    outputs, threshold = len(message.alpha), before.options.threshold
    if threshold and (message.warm or w.any() or message.alpha.any()):
        raise RefusedError(
            "Newton's method with the elastic net was begun at weights or duals other than zeros, "
            "and the algorithm begins it there; run it as it is at the server."
        )
    y = targets(block, outputs)
    loss = losses.loss_code(before.options.loss)
    centre = np.full(y.shape, 0.5 if loss == losses.HINGE else 0.0)
    if message.warm and loss in losses.SMOOTHED:
        held = ~np.isnan(y)
        signs = y if loss == losses.HINGE else 1.0
        centre = np.where(held, signs, 0.0) * message.alpha / row_weights(block)
    if message.shared and (before.overlap is None or message.frame != before.overlap.widest):
        raise RefusedError(
            f"A secret basis of {message.frame} rows was asked for where this client's own index "
            f"sets give {before.overlap.widest if before.overlap else 'no shared system'}; run the "
            "algorithm as it is at the server, and begin a run of an earlier version again."
        )
    frame = np.zeros((message.frame, features))
    if message.frame:
        frame = normal_numbers(rng.stream(8 * frame.size)).reshape(frame.shape)
        frame *= np.sqrt(before.feature_share / message.frame)
    zeros = np.zeros((outputs, features))
    point = Point(
        before=before,
        regularisation=before.options.ridge,
        samples=before.samples,
        loss=loss,
        mine=before.counted,
        sample_cells=before.sample_cells,
        feature_cells=before.feature_cells,
        feature_share=before.feature_share,
        kept_features=before.kept_features,
        kept_samples=before.kept_samples,
        w=w,
        direction=zeros,
        alpha=message.alpha,
        z=np.zeros((outputs, samples)),
        q=np.zeros((outputs, samples)),
        centre=centre,
        residual=zeros,
        selected=np.zeros(0, np.int64),
        curvature=np.zeros((outputs, 0)),
        order=before.order,
        frame=np.zeros((0, features)),
        ridge=np.zeros((0, 0)),
        known=np.zeros(samples, bool),
        slot=np.full(samples, -1),
        framed=np.zeros((0, message.frame)),
        preconditioner=np.zeros((outputs, 0, features)),
        shared=message.shared,
        threshold=threshold,
        inner=inner,
    )
    squares = None
    if message.frame:
        told = before.feature_squares
        squares = (told if len(told) else feature_squares(block.x)) / before.samples
    return point, Frame(frame, squares)


@fl.told_the_same
@fl.client_function
def move_duals(point: Point, block: Block, message: Move) -> tuple[Point, DualPoint]:
    """Go to the new scores; find the dual point there."""
    z, centre, y = point.z, point.centre, targets(block, len(point.z))
    shape = losses.shape_of(point.options)
    if message.step.any() or message.recentre.any():
        z, centre = z.copy(), centre.copy()
        moves = (message.step, point.q, message.recentre, point.mine, shape)
        move_points(point.loss, y, z, centre, *moves)
    alpha, curvature = np.zeros_like(z), np.zeros_like(z)
    given = (message.weight, point.mine, alpha, curvature, block.weights, shape)
    sums = dual_points(point.loss, y, z, centre, *given)
    point = fl.evolve(point, z=z, centre=centre)
    return point, DualPoint(alpha, sums, logarithm(curvature) if message.curvature else None)


def logarithm(curvature: Array) -> Array:
    """Return log h and a constant, 0 for an h of 0: sealed sums round small and large h alike."""
    least = math.exp(1 - _SHIFT)
    return np.where(curvature > 0, _SHIFT + np.log(np.maximum(curvature, least)), 0.0)


def from_logarithm(told: Array) -> Array:
    """Return the h that `logarithm` was made of, after a sealed sum."""
    return np.where(told > 0.5, np.exp(told - _SHIFT), 0.0)


@fl.told_the_same
@fl.client_function
def gather_point(point: Point, block: Block, message: Gather) -> tuple[Point, Gathered]:
    """Count the dual point into w(α); select the samples of the Hessian.

    Raises
    ------
    RefusedError
        If the Hessian is to be of so few samples that it would tell of each, or the regularisation
        is below the model's, or above what it is raised to.
    """
    least = min(SHARED_SAMPLES if point.shared else SAMPLES, point.samples)
    if message.budget < least:
        raise RefusedError(
            f"A budget of {message.budget} samples was told for the Hessian, and the algorithm "
            f"takes {least} or more of these {point.samples}; run it as it is at the server."
        )
    ridge = point.options.ridge
    taken = {LIFT / LOWER**step for step in range(round(math.log(LIFT, LOWER)) + 1)}
    # raised once, and then lowered: few values, each of which tells w(α) of another penalty
    if message.lift not in taken or (message.lift > point.lift and point.lifted):
        raise RefusedError(
            f"A regularisation of {message.lift:g} times the model's was told after one of "
            f"{point.lift:g} times it, and the algorithm raises it once, to {LIFT:g} times, and "
            f"divides it by {LOWER:g} from there; run it as it is at the server."
        )
    if message.lift != point.lift:
        lifted = point.lifted or message.lift > point.lift
        now = message.lift * ridge
        point = fl.evolve(point, lift=message.lift, lifted=lifted, regularisation=now)
    if message.keep:
        point = fl.evolve(point, kept=point.w)
    # all of it: sealed sums round each change, and at weights of zero w(α) may be so large that the
    # rounding there would stay in it
    implied = gather(block.x, message.alpha) / (ridge * point.samples)
    if message.ends:
        nothing = {"selected": point.selected[:0], "curvature": point.curvature[:, :0]}
        point = fl.evolve(point, alpha=message.alpha, gathered=True, ended=True, **nothing)
        return point, Gathered(implied, None, None, None)
    if message.curvature is None:
        shape = losses.shape_of(point.options)
        present = curvatures(point.loss, message.alpha, message.weight, shape=shape)
    else:  # it came through a sealed sum
        present = from_logarithm(message.curvature)
    faded, counted = point.faded, present
    if not len(point.frame):  # a step with a frame never goes there and back
        faded = np.maximum(present, _FADING * faded)
        if message.faded and point.loss == losses.LOGISTIC and message.curvature is None:
            # a step may take a sample past all of its curvature, which neither end then shows
            passed = mean_curvatures(point.alpha, message.alpha)
            faded = np.maximum(faded, _PASSED * passed)
        counted = faded if message.faded else present
    selected, curvature = _select(point, message, counted)
    rows = counts = None
    if message.framed:
        rows, counts = project_new(point, block, selected)
    gram = None
    if message.gram:
        gram = cell_grams(
            block.x,
            selected,
            curvature,
            point.feature_cells,
            height=point.before.gram_height if message.whole else 1,
            samples=point.samples,
        )
    w = point.w + message.step[:, None] * point.direction if message.step.any() else point.w
    if point.threshold and message.step.any():
        point = fl.evolve(point, passed=_passed_penalty(point, message.step))
    point = fl.evolve(point, w=w, alpha=message.alpha, faded=faded, gathered=True)
    point = fl.evolve(point, selected=selected, curvature=curvature, ended=False)
    if point.threshold:
        point = _smooth_l1(point, message)
    return point, Gathered(implied, gram, rows, counts)


def _passed_penalty(point: Point, step: Array) -> Array:
    """Return the curvature of τ|w|, over κ, that counts after a step, (outputs, features).

    Along a short step's direction weights pass 0 beyond the step, and gain curvature there.
    """
    ends = [
        np.clip(point.pull + point.stiff[:, None] * w, -point.threshold, point.threshold)
        for w in (point.w, point.w + point.direction)
    ]
    mean = np.divide(
        ends[1] - ends[0],
        point.direction,
        out=np.zeros_like(point.w),
        where=point.direction != 0,
    )
    before = point.passed if point.passed.size else np.zeros_like(point.w)
    short = (np.abs(step) < SHORT)[:, None]
    return np.maximum(_FADING * before, np.where(short, _PASSED * mean, 0.0))


def _smooth_l1(point: Point, message: Gather) -> Point:
    """Return the state with τ|w| smoothed around its new centre."""
    pull, limit = point.pull, point.threshold
    if message.recentre is not None and pull.size:
        stiff = stiffness(limit, message.recentre)
        moved = np.clip(pull + stiff[:, None] * point.w, -limit, limit)
        pull = np.where(message.recentre[:, None] > 0, moved, pull)
    return fl.evolve(point, pull=pull, stiff=stiffness(limit, message.weight))


def _select(point: Point, message: Gather, counted: Array) -> tuple[NDArray[np.int64], Array]:
    """Return samples with curvature (up to the budget, ascending), and their curvatures.

    The owners of a cell see the same curvatures and take them in the same order, so they select
    the same samples. In the frame the order stays, so that most were selected before; elsewhere
    those that tell most come first. The curvatures stand for all samples of the cell with
    curvature. Elsewhere a cell of few samples has all of them selected, with curvature or not: the
    server reads how many are.
    """
    found: list[NDArray[np.int64]] = []
    scaled: list[Array] = []
    before = point.before
    norms = before.sizes if len(before.sizes) else before.norms  # the same at all owners
    for start, stop, _, _ in point.sample_cells:
        most = -(-message.budget * (stop - start) // point.samples)
        given = (start, stop, point.order[start:stop], most)
        if message.framed:
            samples, curvature = curved_samples(counted, *given)
        elif stop - start < _FEW:
            samples, curvature = np.arange(start, stop), counted[:, start:stop]
        else:
            samples, curvature = telling_samples(counted, *given, norms)
        found.append(samples)
        scaled.append(curvature)
    if len(found) == 1:
        return found[0], scaled[0]
    return np.concatenate(found), np.concatenate(scaled, axis=1)


@fl.client_function
def measure_point(point: Point, block: Block, message: MeasurePoint) -> tuple[Point, Measured]:
    """Send norms; in the frame also this client's part of the gradient and the Hessian.

    Each w(α) is measured once. Norms of other multiples of it, or of some of its parts, would tell
    the server what they are made of.

    Raises
    ------
    RefusedError
        If w(α) comes twice.
    """
    if not point.gathered:
        raise RefusedError(
            "A point was to be measured that no dual point was counted for since the last one, and "
            "the algorithm measures each once; run it as it is at the server."
        )
    z = None
    if point.threshold:
        point, away, norms = _measure_l1(point, message.w)
        z = scores(block.x, point.model)
    else:
        implied = message.w / point.lift
        away = implied - point.w
        norms = np.zeros((len(away), 3))
        if (kept := point.kept_features).any():
            for place, one in enumerate((away, point.w, implied)):
                norms[:, place] = one**2 @ kept
    residual = point.regularisation * away
    point = fl.evolve(point, residual=residual, measured=point.measured + 1, gathered=False)
    if message.rows is None:
        bounds = None
        if point.shared:
            bounds = _bounds(point)
            # where w(α) has too large a norm to be sealed, its dual point bounds nothing
            found = norms[:, ::2]
            norms[:, ::2] = np.where(found < _SEALABLE, found, -np.inf)
        return point, Measured(norms, None, None, bounds, z)
    point = remember(point, message.rows)
    gradient = residual @ (point.frame * point.feature_share).T
    return point, Measured(norms, gradient, hessian_in_frame(point))


def _measure_l1(point: Point, total: Array) -> tuple[Point, Array, Array]:
    """Return the state, minus the gradient over κ, and the norms, (outputs, 5).

    With u the model, w with its zeros, the norms are those of this gradient, of u with 2τ‖u‖₁ added
    (so that κ/2 times it is the penalty of u), of w(α) = S(v), of how far the slope of τ|w| is
    from its centre, and of w(α) with the model's κ, of which the v is that comes in.
    """
    v = total / point.lift
    if not point.pull.size:
        point = fl.evolve(point, pull=np.clip(v, -point.threshold, point.threshold))
    # a weight of large values may be so small that its slope stays inside: its dual tells it from 0
    point = fl.evolve(point, at_zero=point.inside & (np.abs(v) <= point.threshold))
    limit, kept, model = point.threshold, point.kept_features, point.model
    slope = np.clip(point.pull + point.stiff[:, None] * point.w, -limit, limit)
    away = v - point.w - slope
    penalty = model**2 + 2 * limit * np.abs(model)
    squares = (
        *(away**2, penalty, soft_threshold(v, limit) ** 2, (slope - point.pull) ** 2),
        soft_threshold(total, limit) ** 2,
    )
    return point, away, np.stack([one @ kept for one in squares], axis=1)


def penalty_curvature(point: Point) -> Array:
    """Return the second derivative of the penalty, (outputs, features), κ where |w| is smooth."""
    if point.inner_l1 is not None:
        return np.asarray(point.regularisation * (1 + interior_point.curvature(point.inner_l1)))
    stiff = point.stiff[:, None] * point.inside
    if point.passed.size:
        stiff = np.maximum(stiff, point.passed)
    return np.asarray(point.regularisation * (1 + stiff))


@fl.client_function
def evaluate_model(point: Point, block: Block, message: ModelScores) -> tuple[Point, ModelLoss]:
    """Send the losses of the model at the samples whose scores this client reads."""
    y, mine = targets(block, len(message.z)), point.mine
    shape, weights = losses.shape_of(point.options), block.weights_of(mine)
    found = losses.value(point.loss, message.z[:, mine], y[:, mine], weights, shape=shape)
    return point, ModelLoss(found.sum(axis=1))


def _bounds(point: Point) -> Array:
    """Return this client's part of what bounds gradient and Hessian in the secret basis.

    (outputs, 2): the gradient's square with columns of size one, the Hessian's trace. Others open
    the total: each part is a power of 2.
    """
    slope = (point.residual / point.scale) ** 2 @ point.kept_features
    trace = point.curvature @ point.reach[point.selected] / point.samples
    if point.threshold:
        ridge = (penalty_curvature(point) * point.feature_share) @ point.scale**-2.0 * LARGEST**2
    else:
        ridge = point.regularisation * LARGEST**2 * (point.feature_share @ point.scale**-2.0)
    parts = np.stack([slope, trace + ridge], axis=1)
    return np.where(parts > 0, power_above(parts), 0.0)


def power_above(bound: Array) -> Array:
    """Return the least power of 2 that is not below each bound; 1 for a bound of 0."""
    return np.asarray(np.exp2(np.ceil(np.log2(np.where(bound > 0, bound, 1.0)))))


@fl.client_function
def own_scores(point: Point, block: Block, message: Refresh) -> tuple[Point, OwnScores]:
    """Send this client's part of the scores at the primal point."""
    return point, OwnScores(scores(block.x, point.w))


@fl.client_function
def keep_scores(point: Point, block: Block, message: Refresh) -> tuple[Point, fl.Ready]:
    """Keep the scores of the samples that this client reads."""
    assert message.z is not None
    return fl.evolve(point, z=message.z.copy()), fl.Ready()


@fl.client_function
def share_weights(point: Point, block: Block, message: Refresh) -> tuple[Point, OwnWeights]:
    """Send this client's share of the weights."""
    if message.best:
        point = fl.evolve(point, w=point.kept)
    if message.zeros:
        point = fl.evolve(point, w=np.zeros_like(point.w))
    model, nonzero = point.model, None
    if point.threshold:
        nonzero = (model != 0) * point.feature_share
    return point, OwnWeights(model * point.feature_share, nonzero)


SENDS = (
    *fl.asks(keep_frame, keep_scores),
    *fl.sums(enter, gather_point, own_scores),
    *fl.sums(move_duals, reveals=("sums",)),
    *fl.sums(measure_point, reveals=("norms",)),
    *fl.each(
        fl.sums(evaluate_model, reveals=("sums",)), needed=lambda options: options.l1_ratio > 0
    ),
    *fl.each(
        fl.sums(share_weights, reveals=("w", "nonzero"), opens=("w",)), model=("w", "nonzero")
    ),
)
