"""The interior point phase of HyFDCA: where Newton's method comes to a stand at the losses' kinks.

    F(w) = λ/2 ‖w‖² + 1/N Σ_i max {β r_i(w) - κβ²/2 : a ≤ β ≤ a + t}

The hinge, the squared hinge, Huber's loss and the quantile loss with a small λ: the samples on one
side of a kink, or of a jump of the curvature, change with every step, and steps get short. The
primal-dual interior point method (`maths.linear.interior_point`, with the symbols) keeps all
samples off the kink by a barrier μ that falls to 0. It needs the two sums of Newton's method, and
takes all samples into the Hessian. P(w) - D(α) at its points is certified as elsewhere: α is inside
its box.

The server sees scalars only. A round is one step of Mehrotra's method:

1. first direction, to μ = 0: solve (λI + 1/N Xᵀ h X) d = λ(w(α) - w) + 1/N Xᵀ a, with the aim
   a = s h (r - κβ + b/p - c/m), exactly in the frame of `newton` or by conjugate gradients. They
   end where the gap that is left for their residual ρ, ‖ρ‖²/(2λ), is less than the barrier leaves.
   Wide sparse tables, whose rows in a frame are dense, begin with these, preconditioned by
   diagonals, and go to a frame after a round with many iterations. Where a frame's rounding hides
   the residual, conjugate gradients go on
2. how far it is from the boundary, and Σ (pu + mv) on the way: the new barrier
3. second direction, with the barrier and what the products of the first steps add in the targets
4. how far that is from the boundary. In the frame, where the step is short, up to three more
   directions (Gondzio's correctors) bring back the few samples that keep it short, by the same
   Hessian; one that makes the step no longer is left out
5. new scores and duals at the one client that reads a sample's score; its owners get dual, aim and
   curvature h
6. w(α), and the norms that make the certificate

It begins near the point that smoothing came to, or at zeros where that is far away. The squared
hinge comes from Newton's method with small errors, and begins with a small barrier. Where sums are
sealed the phase is not entered: in fixed point its Hessian is lost.

With the elastic net a weight under τ|w| is like a sample of one feature: r is w, and its products
count κN times as much. The owners of the feature keep its dual, and add its curvature to λ; what is
told of samples in 2 and 4 is told of weights with the direction's products. Directions are by
conjugate gradients. The model has its zeros, and is evaluated by itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from intarsia import core as fl
from intarsia.algorithms.hyfdca.newton.client import (
    Measured,
    ModelScores,
    Refresh,
    Start,
    cell_grams,
    enter,
    evaluate_model,
    from_logarithm,
    keep_scores,
    logarithm,
    own_scores,
)
from intarsia.algorithms.hyfdca.newton.direction import (
    MOST,
    Coefficients,
    Products,
    Search,
    multiply,
    multiply_conjugate,
    multiply_exact,
    products_of,
)
from intarsia.algorithms.hyfdca.newton.frame import (
    OwnFrame,
    hessian_in_frame,
    keep_frame,
    project_new,
    remember,
)
from intarsia.algorithms.hyfdca.newton.point import Point
from intarsia.core.block import Array, Block, ClientId, targets
from intarsia.maths.linear import interior_point as inside
from intarsia.maths.linear import losses
from intarsia.maths.linear.elastic_net import soft_threshold
from intarsia.maths.linear.products import gather, scores

PHASE = "interior point"
MOST_FEATURES = 2500  # most features for the exact solve
_FRAME = 1.25  # rows of the frame for each feature: a square one is badly conditioned
_DAMPING = 1e-4  # δ over P; of Huber's loss over P / δ², in units of its own δ
_MOST_VALUES = 2 * 10**8  # rows in a frame are dense: most values of all
_FIRST, _SECOND = 1.0, 0.5  # gap that the residual of a direction may leave, over what μ leaves
_LEAST, _LEAST_RESIDUAL = 1e-3, 0.1  # σ, at least, and in the residual of the second direction
_BEHIND = 0.1  # of the gap that residuals leave: the barrier's part stays above
CORRECTORS, _LONG = 3, 0.7  # more directions, at most, and a step that needs none
_AHEAD = 0.3  # how much longer a step they are to allow
_LEFT, _HIDES = 0.25, 3  # of the gap beside the products that so many steps leave for rounding
_CLOSE = 1e-3  # of P: a gap that is no reason to leave a frame
_MANY = 24  # iterations of a round beyond which exact solves take far fewer exchanges
_NEAR = 0.01  # first barrier of the squared hinge over P: Newton's steps left little of the way
_WEIGHTED = 10.0  # first barrier at zeros over P where rows have weights
_LOST = 1e4  # relative gap above which zeros are a better point to begin from
_FELL = 1e-4  # of the largest P: scores are counted afresh where it fell so far
_SMALL = 0.1  # of a weight's mean size: what is smaller than its dual's distance says is 0
_DEAR = 0.01  # what is left of it where the zeros cost half of the gap: of a column of large values
_SOLVED = 1e-15  # Σ (pu + mv) / N over P where float64 shows no smaller gap


@dataclass(frozen=True)
class InteriorPoint:
    """The server's state; arrays are (outputs,)."""

    loss: int
    regularisation: float
    samples: int  # N
    labelled: tuple[ClientId, ...]  # clients that read scores
    framed: bool  # solve exactly in a frame
    most: int  # iterations of conjugate gradients
    products: Array  # Σ (pu + mv) / N, 2μ where all are equal
    primal: Array
    dual: Array
    curved: float = np.inf  # samples with curvature where the phase began; inf: not known
    steps: int = 0
    still: int = 0  # short steps, one after another
    hidden: int = 0  # steps, one after another, that a frame's rounding hid the rest from
    diagonal: bool = False  # whether diagonals of Gram matrices do
    waits: bool = False  # whether rows go in a frame once there are many iterations
    features: int = 0
    peak: float = 0.0  # largest P since scores were counted afresh
    alpha: Any = None  # sealed (outputs, samples)
    dual_weights: Any = None  # sealed (outputs, features) w(α)
    gradient: Any = None  # sealed, in the frame
    hessian: Any = None  # sealed, in the frame
    gram: Any = None  # sealed
    threshold: float = 0.0  # τ of the elastic net
    # (outputs,) of the elastic net's model, whose weights have their zeros
    model_primal: Array = field(default_factory=lambda: np.zeros(1))
    level: Array = field(default_factory=lambda: np.zeros(1))  # (outputs,) see MeasureInside
    small: Array = field(default_factory=lambda: np.full(1, _SMALL))  # (outputs,) its part of sizes

    @property
    def part(self) -> float:
        """Return the part of the products that samples have where all are equal."""
        weights = self.features if self.threshold else 0
        return self.samples / (self.samples + weights)


@dataclass(frozen=True)
class StepInside:
    """How far to go along the directions; each (outputs,)."""

    step: Array
    barrier: Array  # μ to start from at the present scores, 0 = go on
    damping: Array  # δ, of Huber's loss times the square of its own δ
    keep: Array | None = None  # 1 to start from the present weights and duals, 0 from zeros
    last: Array | None = None  # 1 with the last direction, 0 without it


@fl.describe(
    alpha="each row's dual variable",
    aim="each row's dual variable",
    curvature="each row's curvature of the loss",
    sums="terms of the training objective",
)
class DualInside:
    """Duals of the samples whose scores the client reads, what they go to, log h."""

    alpha: fl.PerSample
    aim: fl.PerSample  # change of α where the scores stay
    curvature: fl.PerSample  # see `logarithm`
    sums: Array  # (outputs, 3) Σ l, Σ -l*(-α), Σ (pu + mv)


@dataclass(frozen=True)
class CountInside:
    """The duals to count into w(α), and the aim into the gradient."""

    aim: fl.PerSample
    alpha: fl.PerSample | None = None  # None: the aim of the second direction alone
    curvature: fl.PerSample | None = None
    step: Array | None = None  # (outputs,) that led there
    keep: Array | None = None  # as in StepInside
    last: Array | None = None  # as in StepInside
    more: bool = False  # whether the direction before is to be added to the ones before it
    # elastic net: μ and δ as in StepInside, or μ as in Correct
    barrier: Array | None = None
    damping: Array | None = None
    framed: bool = False
    gram: bool = False
    whole: bool = True  # whether Gram matrices have more than diagonals


@fl.describe(
    pull="weighted sums of columns",
    w="model weights or their changes",
    gram="products of columns",
    rows="random projections of chosen rows",
    counts="numbers of chosen rows",
)
class CountedInside:
    """Parts of Xᵀ aim / N and of the Hessian; the client's part of w(α)."""

    pull: fl.PerFeature
    w: fl.PerFeature | None
    gram: fl.PerFeature | None
    rows: fl.PerSelected | None
    counts: fl.Counts | None


@dataclass(frozen=True)
class MeasureInside:
    """Totals of CountedInside, for the gradient."""

    pull: fl.PerFeature
    w: fl.PerFeature | None = None  # w(α); None: the second direction
    rows: fl.PerSelected | None = None
    level: Array | None = None  # elastic net: (outputs,) a part of weights' mean size, over τ
    exact: bool = False  # whether nothing is left of the first direction's residual


@dataclass(frozen=True)
class Reach:
    """Scores of a direction."""

    z: fl.PerScore
    second: bool  # to be added to the first


@fl.describe("terms of the training objective")
class Reached:
    """Whether steps are too far, and the products along the first direction."""

    far: Array  # (outputs, steps) 1 where a step is too far for the client
    products: Array  # (outputs, 3) c of c₀ + c₁t + c₂t²; zeros of further directions


@dataclass(frozen=True)
class Correct:
    """The barrier of the second direction, and the step that a further one is to allow.

    Each is (outputs,); a step of 0 asks for no change.
    """

    barrier: Array
    ahead: Array | None = None  # None: it is the second


@fl.describe("each row's dual variable")
class Correction:
    """What the second direction adds to the aim."""

    aim: fl.PerSample


# -- clients


def _seen(point: Point, block: Block) -> tuple[Array, Array, Array, Array | None]:
    """Return r, sign and scores of the samples that the client reads, and their weights."""
    mine, y = point.mine, targets(block, len(point.z))[:, point.mine]
    z = point.z[:, mine]
    return *inside.residuals(point.loss, z, y), z, block.weights_of(mine)


def _spread(point: Point, values: Array) -> Array:
    """Return values of the samples that the client reads among zeros, (outputs, samples)."""
    found = np.zeros_like(point.z)
    found[:, point.mine] = values
    return found


@fl.told_the_same
@fl.client_function
def step_inside(point: Point, block: Block, message: StepInside) -> tuple[Point, DualInside]:
    """Go to the new scores and duals; send them with their aim at μ = 0."""
    if message.keep is not None:
        point = fl.evolve(point, z=point.z * message.keep[:, None])
    r, sign, _, weights = _seen(point, block)
    shape = losses.shape_of(point.options)
    box = inside.box_of(point.loss, shape)
    message = replace(message, damping=message.damping / box.unit**2)
    if message.barrier.any():
        inner = _first(point, message, r, sign, weights, box)
    else:
        inner = point.inner
        if message.step.any():
            inner, q = _chosen(point, message)
            steps = inside.changes(inner, r, -sign * q[:, point.mine])
            inner = inside.advanced(inner, steps, message.step)
            z = point.z + message.step[:, None] * q
            point = fl.evolve(point, z=z, inner_before=None, q_before=np.zeros((1, 0)))
            r, sign, _, _ = _seen(point, block)
        inner = inside.aimed_at_zero(inner, message.damping, weights)
    mine, beta = point.mine, inside.dual_of(inner)
    factor = 1.0 if weights is None else weights
    y = targets(block, len(point.z))[:, mine]
    alpha, aim = factor * sign * beta, factor * sign * inside.aim(inner, r)
    h = logarithm(factor * inside.curvature(inner))
    sums = np.stack(
        [
            losses.value(point.loss, point.z[:, mine], y, weights, shape=shape).sum(axis=1),
            (factor * losses.minus_conjugate(point.loss, sign * beta, y, shape=shape)).sum(axis=1),
            (factor * (inner.below * inner.under + inner.above * inner.over)).sum(axis=1),
        ],
        axis=1,
    )
    point = fl.evolve(point, inner=inner)
    alpha, aim, h = (_spread(point, one) for one in (alpha, aim, h))
    return point, DualInside(alpha, aim, h, sums)


def _chosen(point: Point, message: StepInside) -> tuple[inside.Interior, Array]:
    """Return the targets and the direction's scores, without the last where that is left out."""
    if message.last is None or message.last.all():
        return point.inner, point.q
    last, before = message.last[:, None] > 0, point.inner_before
    targets = {
        name: np.where(last, getattr(point.inner, name), getattr(before, name))
        for name in ("under_target", "over_target")
    }
    return replace(point.inner, **targets), np.where(last, point.q, point.q_before)


def _first(
    point: Point,
    message: StepInside,
    r: Array,
    sign: Array,
    weights: Array | None,
    box: inside.Box,
) -> inside.Interior:
    """Return where the phase begins: near the present duals, or where all products are μ."""
    given = message.barrier, message.damping, box
    if message.keep is None or box.bend:
        return inside.central(r, *given, weights)
    beta = sign * point.alpha[:, point.mine] / (1.0 if weights is None else weights)
    return inside.begun(r, beta, *given, message.keep, weights)


@fl.told_the_same
@fl.client_function
def reach_boundary(point: Point, block: Block, message: Reach) -> tuple[Point, Reached]:
    """Send which steps along a direction are too far, and the products along it."""
    q = point.q + message.z if message.second else message.z
    r, sign, _, weights = _seen(point, block)
    steps = inside.changes(point.inner, r, -sign * q[:, point.mine])
    far = inside.too_far(point.inner, steps)
    # along further directions nobody needs them
    products = np.zeros((len(far), 3))
    if not message.second:
        products = inside.products_along(point.inner, steps, weights)
    return fl.evolve(point, q=q), Reached(far, products)


@fl.told_the_same
@fl.client_function
def correct_aim(point: Point, block: Block, message: Correct) -> tuple[Point, Correction]:
    """Set the targets of the next direction; send what they add to the aim."""
    r, sign, _, weights = _seen(point, block)
    steps = inside.changes(point.inner, r, -sign * point.q[:, point.mine])
    if message.ahead is None:
        inner = inside.corrected(point.inner, steps, message.barrier, weights)
    else:
        barriers = message.barrier, message.ahead
        inner = inside.centred(point.inner, steps, *barriers, weights)
    change = inside.aim(inner, r) - inside.aim(point.inner, r)
    factor = 1.0 if weights is None else weights
    point = fl.evolve(point, inner=inner, inner_before=point.inner, q_before=point.q)
    return point, Correction(_spread(point, factor * sign * change))


@fl.client_function
def multiply_second(
    state: Point | Search, block: Block, message: Coefficients
) -> tuple[Point, Products]:
    """Do as `multiply` for the directions after the first: a site counts rounds by that one."""
    return products_of(state, block, message)


@fl.told_the_same
@fl.client_function
def count_inside(point: Point, block: Block, message: CountInside) -> tuple[Point, CountedInside]:
    """Count duals into w(α) and the aim into the gradient; take all samples into the Hessian."""
    pull = gather(block.x, message.aim) / point.samples
    if message.alpha is None:
        first = point.first + point.direction if message.more else point.direction
        point = fl.evolve(point, first=first)
        if message.barrier is not None:
            point = _correct_l1(point, message.barrier)
        return point, CountedInside(pull, None, None, None, None)
    assert message.curvature is not None
    assert message.step is not None
    # from zero: of changes from duals where w(α) was large its rounding would stay
    implied = gather(block.x, message.alpha) / (point.regularisation * point.samples)
    curvature = from_logarithm(message.curvature)
    selected = np.flatnonzero((curvature > 0).any(axis=0))
    w = point.w if message.keep is None else point.w * message.keep[:, None]
    if message.step.any():
        last = 1.0 if message.last is None else message.last[:, None]
        taken = point.first + last * point.direction
        if point.threshold:
            steps = inside.changes(point.inner_l1, point.w, taken)
            point = fl.evolve(point, inner_l1=inside.advanced(point.inner_l1, steps, message.step))
        w = w + message.step[:, None] * taken
    point = fl.evolve(point, w=w, first=np.zeros_like(w))
    if point.threshold:
        point = _aim_l1(point, message)
    given = {"alpha": message.alpha, "selected": selected, "curvature": curvature[:, selected]}
    point = fl.evolve(point, **given)
    gram = rows = counts = None
    if message.framed:
        rows, counts = project_new(point, block, selected)
    if message.gram:
        height = point.before.gram_height if message.whole else 1
        cells = {"height": height, "samples": point.samples}
        gram = cell_grams(block.x, selected, point.curvature, point.feature_cells, **cells)
    return point, CountedInside(pull, implied, gram, rows, counts)


@fl.client_function
def measure_inside(point: Point, block: Block, message: MeasureInside) -> tuple[Point, Measured]:
    """Send norms; in the frame also this client's part of the gradient and the Hessian."""
    norms = gradient = hessian = z = None
    if message.w is not None and point.threshold:
        point, norms, residual = _measure_l1(point, message)
        z = scores(block.x, point.model)
    elif message.w is not None:
        kept, away = point.kept_features, message.w - point.w
        norms = np.stack([point.w**2 @ kept, message.w**2 @ kept], axis=1)
        residual = point.regularisation * away + message.pull
    else:
        residual = message.pull if message.exact else point.residual + message.pull
    point = fl.evolve(point, residual=residual)
    if message.rows is not None:
        point = remember(point, message.rows)
        hessian = hessian_in_frame(point)
    if message.rows is not None or message.exact:
        gradient = residual @ (point.frame * point.feature_share).T
    return point, Measured(norms, gradient, hessian, z=z)


def _correct_l1(point: Point, barrier: Array) -> Point:
    """Set the targets of the second direction for the weights; change minus the gradient by it."""
    inner, kappa = point.inner_l1, point.regularisation
    steps = inside.changes(inner, point.w, point.first)
    found = inside.corrected(inner, steps, barrier / (kappa * point.samples))
    change = inside.aim(found, point.w) - inside.aim(inner, point.w)
    return fl.evolve(point, inner_l1=found, residual=point.residual - kappa * change)


def _aim_l1(point: Point, message: CountInside) -> Point:
    """Let the weights' duals aim at μ = 0, or begin near those of the smoothed |w|."""
    assert message.damping is not None
    assert message.barrier is not None
    unit, limit = inside.box_of(point.loss, losses.shape_of(point.options)).unit, point.threshold
    damping = point.regularisation * message.damping / unit**2
    if not message.barrier.any():
        return fl.evolve(point, inner_l1=inside.aimed_at_zero(point.inner_l1, damping))
    box = inside.Box(-limit, 2 * limit, 0.0)
    dual = np.clip(point.pull + point.stiff[:, None] * point.w, -limit, limit)
    mu = message.barrier / (point.regularisation * point.samples)
    keep = np.ones(len(mu)) if message.keep is None else message.keep
    inner = inside.begun(point.w, dual, mu, damping, box, keep)
    return fl.evolve(point, inner_l1=inner)


def _measure_l1(point: Point, message: MeasureInside) -> tuple[Point, Array, Array]:
    """Return the state at w(α), norms for the certificate, (outputs, 4), and minus the gradient.

    κ/2 times the norms are the penalty of w, that of the dual, w(α), and the penalty of the model;
    the last is Σ (pu + mv) of the weights.
    """
    assert message.level is not None
    assert message.w is not None
    inner, limit, kept = point.inner_l1, point.threshold, point.kept_features
    # small beside how far its dual is inside: that says little where P hardly has the penalty in it
    small = np.abs(point.w) < message.level[:, None] * np.minimum(inner.below, inner.above)
    zero = small & (np.abs(message.w) <= limit)
    point = fl.evolve(point, at_zero=zero, measured=point.measured + 1)
    model = point.model
    norms = (
        point.w**2 + 2 * limit * np.abs(point.w),
        soft_threshold(message.w, limit) ** 2,
        model**2 + 2 * limit * np.abs(model),
        inner.below * inner.under + inner.above * inner.over,
    )
    away = message.w - point.w - inside.dual_of(inner) - inside.aim(inner, point.w)
    residual = point.regularisation * away + message.pull
    return point, np.stack([one @ kept for one in norms], axis=1), residual


# -- server


def begin(newton: Any, clients: fl.Clients, *, frame: bool, at_zeros: float) -> InteriorPoint:
    """Start the phase from a point of Newton's method.

    `frame` says whether rows may be sent in a frame: it is drawn now where there is none.
    `at_zeros` is P at weights of zero, inf where it is not known.
    """
    # rows in one frame, beside systems that differ by a feature's stiffness, would tell the column
    frame = frame and not newton.threshold
    fits = frame and fits_frame(newton.samples, newton.features)
    framed = frame and (newton.framed or (fits and not newton.diagonal))
    if framed:
        _draw_frame(newton, clients)
    zeros = np.zeros_like(newton.primal)
    state = InteriorPoint(
        loss=newton.loss,
        regularisation=newton.regularisation,
        samples=newton.samples,
        labelled=newton.labelled,
        framed=framed,
        most=max(MOST, newton.features),
        products=zeros,
        primal=newton.primal,
        dual=newton.dual,
        curved=newton.curved,
        diagonal=newton.diagonal,
        waits=fits and not framed,
        features=newton.features,
        alpha=newton.alpha,
        dual_weights=newton.dual_weights,
        threshold=newton.threshold,
        level=zeros,
        small=zeros + _SMALL,
    )
    keep, barrier = zeros + (newton.model_primal.sum() <= at_zeros), newton.primal
    if newton.loss == losses.SQUARED_HINGE:
        barrier = _NEAR * newton.primal
    if newton.loss in losses.SMOOTHED:
        keep = (newton.gap <= _LOST).astype(np.float64)
        barrier = np.minimum(newton.primal, newton.primal - newton.dual)
    barrier = state.part * barrier
    state = _at(state, clients, zeros, barrier, keep)
    if newton.threshold and state.primal.sum() > at_zeros:
        keep = zeros  # the model's zeros hid how far the weights are away
    if not keep.all():  # now P is known at zeros
        state = fl.evolve(state, peak=0.0)
        # of heavy rows products are a small part of their losses
        first = _WEIGHTED if newton.told else 1.0
        barrier = np.where(keep > 0, barrier, first * state.part * state.primal)
        state = _at(state, clients, zeros, barrier, keep)
    return state


def fits_frame(samples: int, features: int) -> bool:
    """Return whether tables are small enough for rows in a frame."""
    return features <= MOST_FEATURES and features * samples <= _MOST_VALUES


def lost_digits(state: Any) -> bool:
    """Return whether scores, carried on by what steps change, have lost their digits on the way.

    Where the losses were far larger than they are now, so were scores: their rounding stays.
    """
    return float(state.primal.sum()) < _FELL * float(state.peak)


def _draw_frame(state: Any, clients: fl.Clients) -> None:
    """Let the clients go to a frame that the owners of each feature know, at the present point."""
    size = math.ceil(_FRAME * state.features)
    start = Start(alpha=state.alpha, w=None, warm=True, frame=size)
    drawn = clients.sum(enter, start)
    own = OwnFrame(drawn.frame, drawn.squares)
    clients.ask(keep_frame, own)
    scores = clients.sum(own_scores, Refresh(z=None))
    clients.ask(keep_scores, dict.fromkeys(state.labelled, Refresh(z=scores.z)))


def step(
    state: InteriorPoint, clients: fl.Clients, rng: fl.RandomKey
) -> tuple[InteriorPoint, fl.RoundMetrics]:
    """Take one step; return the state and the certificate at the new point."""
    # step 1: first direction
    most = _MANY if state.waits else None
    found, used = _solve(state, clients, state.gradient, _FIRST * state.products, multiply, most)
    if found is None:
        state = _go_to_frame(state, clients)
        found, used = _solve(state, clients, state.gradient, _FIRST * state.products, multiply)
    # step 2: the barrier that it can get to
    reached, products = _reach(state, clients, found, second=False)
    after = products[:, 0] + reached * (products[:, 1] + reached * products[:, 2])
    share = np.clip(after / np.maximum(products[:, 0], 1e-300), 0, 1) ** 3
    # not ahead of the equations that the directions before left unsolved
    unsolved = state.primal - state.dual - state.products
    share = np.maximum(share, np.clip(_BEHIND * unsolved / state.products, _LEAST, 1))
    correct = Correct(0.5 * state.part * share * state.products)
    # step 3: second direction
    state = fl.evolve(state, gram=None)
    enough = _SECOND * state.products * np.maximum(share, _LEAST_RESIDUAL)
    length, more = _correct(state, clients, correct, enough)
    # step 4: more of them
    last = np.ones_like(length)
    for _ in range(CORRECTORS if state.framed else 0):
        short = length < _LONG
        if not short.any() or not last.all():
            break
        ahead = np.where(short, length + _AHEAD, 0.0)
        further, _ = _correct(state, clients, replace(correct, ahead=ahead), enough)
        last = np.where(short & (further <= length), 0.0, 1.0)
        length = np.maximum(length, further)
    # steps 5 and 6
    before = state.primal - state.dual - state.products
    state = _at(state, clients, length, np.zeros_like(length), last=last)
    still = state.still + 1 if length.max() < inside.STEPS[1] else 0
    state = fl.evolve(state, steps=state.steps + 1, still=still)
    if state.framed:
        # where the frame has the digits, a step leaves (1 - t)² of it
        left = state.primal - state.dual - state.products
        lost = (left > np.maximum(_LEFT, 4 * (1 - length) ** 2) * before) & (left > state.products)
        state = fl.evolve(state, hidden=state.hidden + 1 if lost.any() else 0)
    if state.hidden >= _HIDES and (left > _CLOSE * state.primal).any():
        state = fl.evolve(state, framed=False, hidden=0)
        state = _at(state, clients, np.zeros_like(length), np.zeros_like(length))
    elif state.waits and used + more > _MANY:
        state = _go_to_frame(state, clients)
    elif lost_digits(state) or state.hidden == _HIDES:  # scores that steps changed hide it, too
        state, _ = certify(state, clients)
    return state, info(state)


def _correct(
    state: InteriorPoint, clients: fl.Clients, correct: Correct, enough: Array
) -> tuple[Array, int]:
    """Find another direction to go along as well; return how far, and iterations."""
    aimed = clients.sum(correct_aim, dict.fromkeys(state.labelled, correct))
    more = correct.ahead is not None
    count = CountInside(aim=aimed.aim, more=more)
    if state.threshold:
        count = replace(count, barrier=correct.barrier)
    counted = clients.sum(count_inside, count)
    measure = MeasureInside(pull=counted.pull, exact=state.framed)
    measured = clients.sum(measure_inside, measure)
    found, used = _solve(state, clients, measured.gradient, enough, multiply_second)
    return _reach(state, clients, found, second=True)[0], used


def _go_to_frame(state: InteriorPoint, clients: fl.Clients) -> InteriorPoint:
    """Draw a frame and measure the present point in it."""
    _draw_frame(state, clients)
    none = np.zeros_like(state.primal)
    return _at(fl.evolve(state, waits=False, framed=True), clients, none, none)


def _solve(
    state: InteriorPoint,
    clients: fl.Clients,
    gradient: Any,
    enough: Array,
    by: fl.ClientFunction,
    most: int | None = None,
) -> tuple[Any, int]:
    """Find a direction; return its Products, sealed, and iterations.

    `enough` is the gap that may be left. After `most` iterations it is given up: None.
    """
    if state.framed:
        return multiply_exact(clients, state.labelled[0], gradient, state.hessian, by), 0
    return multiply_conjugate(
        clients,
        state.gram,
        samples=state.samples,
        regularisation=state.regularisation,
        enough=2 * state.regularisation * enough,
        single=False,
        most=state.most if most is None else most,
        give_up=most is not None,
        by=by,
    )


def _reach(
    state: InteriorPoint, clients: fl.Clients, along: Any, *, second: bool
) -> tuple[Array, Array]:
    """Return the longest step, (outputs,), and c of c₀ + c₁t + c₂t², (outputs, 3)."""
    message = Reach(z=along.z, second=second)
    found = clients.sum(reach_boundary, dict.fromkeys(state.labelled, message))
    # discloses for how many clients some steps are too far, and Σ (pu + mv) along the direction
    far, products = clients.reveal(found.far), clients.reveal(found.products)
    if state.threshold:
        # discloses the same of the weights
        line, count = clients.reveal(along.line), len(inside.STEPS)
        scale = state.regularisation * state.samples
        far, products = far + line[:, :count], products + scale * line[:, count:]
    allowed = (far < 0.5).sum(axis=1)
    steps = np.concatenate([np.zeros(1), inside.STEPS])
    return np.asarray(steps[allowed]), np.asarray(products)


def _at(
    state: InteriorPoint,
    clients: fl.Clients,
    length: Array,
    barrier: Array,
    keep: Array | None = None,
    last: Array | None = None,
) -> InteriorPoint:
    """Move by a step, or begin with a barrier at what is kept, and measure the point."""
    elastic = state.threshold > 0
    message = StepInside(length, barrier, _DAMPING * state.primal, keep, last)
    point = clients.sum(step_inside, dict.fromkeys(state.labelled, message))
    # discloses for each output: losses, dual terms, Σ (pu + mv)
    sums = clients.reveal(point.sums)
    count = CountInside(
        aim=point.aim,
        alpha=point.alpha,
        curvature=point.curvature,
        step=length,
        keep=keep,
        last=last,
        framed=state.framed,
        gram=not state.framed,
        whole=not state.diagonal,
        barrier=barrier if elastic else None,
        damping=message.damping if elastic else None,
    )
    counted = clients.sum(count_inside, count)
    rows = counted.rows if state.framed else None
    level = state.level if elastic else None
    measure = MeasureInside(pull=counted.pull, w=counted.w, rows=rows, level=level)
    measured = clients.sum(measure_inside, measure)
    # discloses for each output ‖w‖² and ‖w(α)‖²; of the elastic net as `_measure_l1`
    norms, ridge = clients.reveal(measured.norms), 0.5 * state.regularisation
    primal = ridge * norms[:, 0] + sums[:, 0] / state.samples
    products, model = sums[:, 2] / state.samples, state.model_primal
    dual = sums[:, 1] / state.samples - ridge * norms[:, 1]
    level, small = state.level, state.small
    if elastic:
        products = products + state.regularisation * norms[:, 3]
        evaluated = dict.fromkeys(state.labelled, ModelScores(z=measured.z))
        # discloses for each output the losses of the model, whose weights have their zeros
        loss = clients.reveal(clients.sum(evaluate_model, evaluated).sums)
        model = ridge * norms[:, 2] + loss / state.samples
        mean = norms[:, 0] / state.features  # of w² + 2τ|w|
        usual = np.minimum(mean / (2 * state.threshold), np.sqrt(mean))
        dear = model - primal > 0.5 * np.abs(primal - dual)
        small = np.where(dear, _DEAR * small, small)
        level = small * usual / state.threshold
    return fl.evolve(
        state,
        model_primal=model,
        level=level,
        small=small,
        products=products,
        primal=primal,
        peak=max(state.peak, float(primal.sum())),
        dual=dual,
        alpha=point.alpha,
        dual_weights=counted.w,
        gradient=measured.gradient,
        hessian=measured.hessian,
        gram=counted.gram,
    )


def info(state: InteriorPoint) -> fl.RoundMetrics:
    """Return the certificate at the present point, summed over the outputs."""
    model = state.model_primal if state.threshold else state.primal
    primal, dual = float(model.sum()), float(state.dual.sum())
    return fl.RoundMetrics(
        finished=state.still > 3
        or state.hidden > 2 * _HIDES
        or bool((state.products <= _SOLVED * state.primal).all()),
        primal=primal,
        dual=dual,
        gap_relative=(primal - dual) / max(primal, 1e-300),
        phase=PHASE,
    )


def certify(state: InteriorPoint, clients: fl.Clients) -> tuple[InteriorPoint, fl.RoundMetrics]:
    """Compute the scores afresh at the primal point, then the certificate."""
    own = clients.sum(own_scores, Refresh(z=None))
    clients.ask(keep_scores, dict.fromkeys(state.labelled, Refresh(z=own.z)))
    none = np.zeros_like(state.primal)
    state = _at(fl.evolve(state, peak=0.0), clients, none, none)
    return state, info(state)


STATES = (InteriorPoint, inside.Interior, inside.Box)
SENDS = (
    *fl.sums(step_inside, reveals=("sums",)),
    *fl.sums(count_inside, correct_aim),
    *fl.sums(multiply_second, reveals=("line",), opens=("z",)),
    *fl.sums(measure_inside, reveals=("norms",)),
    *fl.sums(reach_boundary, reveals=("far", "products")),
)
