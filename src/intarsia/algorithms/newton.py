"""Federated Newton's method: the phase of HyFDCA that finishes with a certificate.

    F(w) = λ/2 ‖w‖² + 1/N Σ_i φ_i(x_iᵀw)

φ is the loss; the hinge is smoothed around a dual centre that moves (proximal point in the dual,
Rockafellar 1976), so that its dual point β = clip(c + s(1 - yz), 0, 1) stays in its box. Each dual
point α with the primal point w gives the certificate P(w) - D(α). The two sums that Newton's
method needs, Xv over the owners of a sample and Xᵀ(h∘Xv) over the owners of a feature, are those
that the federation has; the split of the data changes nothing in its convergence.

The server sees scalars only; every vector is a sealed total for the owners of its entries. A
round is one Newton step:

1. direction: solve (λI + 1/N X_Fᵀ h X_F) d = λ(w(α) - w) over the samples F with curvature
   - up to 128 features: exactly, in a frame P that only the owners of each feature know;
     one client solves the small system
   - more: by conjugate gradients on a sample of F, preconditioned by each feature cell's own Gram
     matrix (its diagonal in cells of over 512 features)
2. scores of the direction, q = Xd, and the slopes of F along it for an exact line search
3. step: new scores, dual points and curvatures at one holder of each label; the hinge moves its
   centre to the dual point when the inner problem is solved well enough
4. w(α), and the norms that make the certificate

Each output of a one-vs-rest model has its own point, step and smoothing; the exchanges carry them
all. Several numbers below were chosen on public data sets; they steer speed, not the result.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack
from scipy.sparse import csr_array

from intarsia.algorithm import (
    Clients,
    Counts,
    Info,
    PerFeature,
    PerSample,
    PerSelected,
    RandomKey,
    client_function,
)
from intarsia.data import Array, Block, ClientId, Values, targets
from intarsia.maths import losses
from intarsia.maths.products import gather, project_rows, scores
from intarsia.maths.proximal import dual_points, move_points, slopes

__all__ = ["FUNCTIONS", "STATES", "Newton", "Point", "Refresh", "Start", "begin", "step"]

_FRAME = 128  # most features for the exact solve
_BLOCK = 512  # most features of a cell for a full Gram matrix in the preconditioner
_SAMPLE = 2000  # least samples in the Hessian of conjugate gradients, and 3 for each feature
_GRAM = 8  # samples in a Gram matrix for each of its features
_ITERATIONS, _RESIDUAL = 60, 0.1  # of conjugate gradients
_COLD, _WARM, _HIGHEST = 0.3, 3.0, 1e5  # weight of the smoothing: first, after dual ascent, last
_INNER = 30.0  # how much larger than the proximal term an inner error may be
_STEPS = np.array(
    [0.0, 1 / 256, 1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 0.5, 0.75, 1.0, 1.25, 2.0, 4.0]
)
_FINE = np.concatenate([[0.0], np.geomspace(1 / 256, 1, 12)])


# ---- states


@dataclass(frozen=True)
class Newton:
    """The server's state: sealed totals, scalars, and what steers the outer loop.

    Arrays of scalars are (outputs,).
    """

    loss: int
    regularisation: float
    samples: int  # N
    labelled: tuple[ClientId, ...]  # clients that hold labels
    framed: bool  # solve exactly in a frame
    budget: int  # samples in the Hessian
    weight: Array  # s
    centred_at: Array  # the number of Newton steps since the centre moved
    inner: Array  # tolerance of the inner problem
    eager: NDArray[np.bool_]  # whether to move the centre with the step
    best: Array  # largest dual so far
    error: Array  # ‖w - w(α)‖² at the last point
    gap: Array  # relative, at the last point
    mark: Array  # (2, outputs) gap and step where progress was last checked
    moved: Array  # Σ (β - c)² at the last point
    curved: float  # samples with curvature
    steps: int = 0
    still: int = 0  # steps without descent
    refresh: bool = True  # whether to renew the preconditioner
    iterations: int = 0  # of conjugate gradients after the last renewal
    alpha: Any = None  # sealed (outputs, samples)
    dual_weights: Any = None  # sealed (outputs, features) w(α)
    gradient: Any = None  # sealed, in the frame
    hessian: Any = None  # sealed, in the frame
    gram: Any = None  # sealed
    primal: Array = field(default_factory=lambda: np.zeros(1))
    dual: Array = field(default_factory=lambda: np.zeros(1))


@dataclass(frozen=True)
class Point:
    """A client's state in the Newton phase, in the order of its aligned block."""

    before: Any  # the client's state of dual ascent, to return to
    regularisation: float
    samples: int  # N
    loss: int
    mine: NDArray[np.int64]  # samples whose label counts at this client
    sample_cells: tuple[tuple[int, int, int, int], ...]  # start, stop, holders, own rank
    feature_cells: tuple[tuple[int, int], ...]  # start, stop
    feature_share: Array  # (features,) 1 / holders
    w: Array  # (outputs, features) primal point
    direction: Array  # (outputs, features)
    alpha: Array  # (outputs, samples) dual point that this client's part of w(α) counts
    z: Array  # (outputs, samples) scores at w
    q: Array  # (outputs, samples) scores of the direction
    centre: Array  # (outputs, samples) c
    residual: Array  # (outputs, features) λ (w(α) - w)
    selected: NDArray[np.int64]  # samples in the Hessian
    curvature: Array  # (outputs, selected) h, scaled up to all samples with curvature
    frame: Array  # (frame, features) P
    preconditioner: Array  # (outputs, width, features) inverse Gram matrices, cell by cell

    @property
    def options(self) -> Any:
        """Return the hyperparameters."""
        return self.before.options


@dataclass(frozen=True)
class Search:
    """A client's state while the direction is sought by conjugate gradients."""

    point: Point
    values: Values  # the selected rows, single precision where dense
    counts: NDArray[np.int64]  # of selected samples by cell
    turn: NDArray[np.int64]  # selected samples that this client adds up for their owners
    residual: Array  # (outputs, features)
    preconditioned: Array
    conjugate: Array
    direction: Array
    products: Array  # (outputs, selected) X p

    @property
    def options(self) -> Any:
        """Return the hyperparameters."""
        return self.point.options


# ---- messages


@dataclass(frozen=True)
class Start:
    """Duals, weights and scores to start from."""

    alpha: PerSample
    w: PerFeature
    z: PerSample
    warm: bool  # after dual ascent
    frame: int  # features of the frame, 0 = none


@dataclass(frozen=True)
class Frame:
    """A client's random part of the frame, or the total for the owners of the features."""

    frame: PerFeature  # (frame, features)


@dataclass(frozen=True)
class Ready:
    """The client has what it needs."""


@dataclass(frozen=True)
class Move:
    """How far to go, and how to smooth the hinge there; each (outputs,)."""

    step: Array
    weight: Array
    recentre: Array  # weight of the smoothing whose dual point becomes the centre; 0 = keep


@dataclass(frozen=True)
class DualPoint:
    """Dual points and curvatures of the samples whose label counts at the client."""

    alpha: PerSample
    curvature: PerSample
    sums: Array  # (outputs, 4) as in dual_points


@dataclass(frozen=True)
class Gather:
    """The dual point to count into w(α); the step that led there."""

    alpha: PerSample
    curvature: PerSample
    step: Array  # (outputs,)
    budget: int  # samples in the Hessian
    framed: bool
    gram: bool  # whether to renew the preconditioner


@dataclass(frozen=True)
class Gathered:
    """What the client's part of w(α) changed by; its part of the Hessian."""

    w: PerFeature  # (outputs, features)
    gram: PerFeature  # (outputs, width, features)
    rows: PerSelected  # (frame, selected) X P
    counts: Counts


@dataclass(frozen=True)
class Measure:
    """w(α), and the selected samples in the frame."""

    w: PerFeature
    rows: PerSelected | None


@dataclass(frozen=True)
class Measured:
    """Norms for the certificate; gradient and Hessian in the frame."""

    norms: Array  # (outputs, 3) ‖w - w(α)‖², ‖w‖², ‖w(α)‖²
    gradient: Array  # (outputs, frame)
    hessian: Array  # (outputs, frame, frame)


@dataclass(frozen=True)
class SmallSystem:
    """The Newton system in the frame."""

    gradient: Array
    hessian: Array


@dataclass(frozen=True)
class Coefficients:
    """The direction in the frame; none where conjugate gradients found it."""

    y: Array | None  # (outputs, frame)


@dataclass(frozen=True)
class Products:
    """Scores of the direction; scalars for the line search."""

    z: PerSample
    line: Array  # (outputs, 2) d·w, ‖d‖²


@dataclass(frozen=True)
class Line:
    """Scores of the direction, and steps to try."""

    z: PerSample | None  # None: as before
    steps: Array  # (outputs, steps)
    weight: Array  # (outputs,) of the smoothing


@dataclass(frozen=True)
class Slopes:
    """Σ α_i q_i at each step."""

    slopes: Array  # (outputs, steps)


@dataclass(frozen=True)
class Precondition:
    """The Gram matrices of the client's feature cells, where they are renewed."""

    gram: PerFeature | None


@dataclass(frozen=True)
class Applied:
    """Products of the selected samples with the preconditioned residual."""

    products: PerSelected  # (outputs, selected)
    counts: Counts
    squares: Array  # (outputs, 2) residual · preconditioned, ‖residual‖²


@dataclass(frozen=True)
class Conjugate:
    """The products, and how much of the last direction to keep."""

    products: PerSelected
    keep: Array  # (outputs,)


@dataclass(frozen=True)
class Curved:
    """The Hessian's data part along the conjugate direction."""

    product: PerFeature  # (outputs, features) X_Fᵀ h X_F p
    squares: Array  # (outputs, 2) Σ h (Xp)², ‖p‖²


@dataclass(frozen=True)
class Advance:
    """The step along the conjugate direction, and the Hessian's product with it."""

    product: PerFeature
    step: Array  # (outputs,)


@dataclass(frozen=True)
class Refresh:
    """Scores computed afresh at the primal point; None: send this client's part of them."""

    z: PerSample | None


@dataclass(frozen=True)
class OwnScores:
    """A client's part of the scores."""

    z: PerSample


@dataclass(frozen=True)
class OwnWeights:
    """A client's share of the weights."""

    w: PerFeature


# ---- the server


def begin(
    clients: Clients,
    *,
    alpha: Any,
    w: Any,
    z: Any,
    warm: bool,
    loss: int,
    regularisation: float,
    samples: int,
    features: int,
    outputs: int,
    labelled: tuple[ClientId, ...],
    sparse: bool,
) -> Newton:
    """Start the phase from duals, w(α) and their scores; return the state at that point."""
    framed = features <= _FRAME
    start = Start(alpha=alpha, w=w, z=z, warm=warm, frame=features if framed else 0)
    frame = clients.sum(enter, dict.fromkeys(clients.ids, start))
    if framed:
        clients.ask(keep_frame, dict.fromkeys(clients.ids, Frame(frame=frame.frame)))
    ones = np.ones(outputs)
    newton = Newton(
        loss=loss,
        regularisation=regularisation,
        samples=samples,
        labelled=labelled,
        framed=framed,
        # a sample misses the rare columns of a dense table
        budget=samples if framed and not sparse else max(_SAMPLE, 3 * features),
        weight=ones * (_WARM if warm else _COLD),
        centred_at=np.zeros(outputs),
        inner=ones * _INNER,
        eager=np.ones(outputs, bool),
        best=-np.inf * ones,
        error=np.inf * ones,
        gap=np.inf * ones,
        mark=np.stack([np.inf * ones, 0 * ones]),
        moved=np.zeros(outputs),
        curved=0.0,
        alpha=alpha,
        dual_weights=w,
    )
    return _at(newton, clients, np.zeros(outputs), np.zeros(outputs))


def step(newton: Newton, clients: Clients) -> tuple[Newton, Info]:
    """Take one Newton step; return the state and the certificate at the new point."""
    # step 1: direction
    if newton.framed:
        system = SmallSystem(gradient=newton.gradient, hessian=newton.hessian)
        solved = clients.sum(solve, {newton.labelled[0]: system})
        direction = Coefficients(y=solved.y)
    else:
        newton = _conjugate_gradients(newton, clients)
        direction = Coefficients(y=None)
    # step 2: line search
    products = clients.sum(multiply, dict.fromkeys(clients.ids, direction))
    # discloses d·w and ‖d‖²
    length = _line_search(newton, clients, products.z, clients.reveal(products.line))
    newton = replace(
        newton,
        steps=newton.steps + 1,
        centred_at=newton.centred_at + 1,
        still=newton.still + 1 if not length.any() else 0,
    )
    # steps 3 and 4: the new point, with a new centre at once where the step was a full one
    hinge = newton.loss == losses.HINGE
    full = newton.eager & (newton.gap > 1e-2) & (length >= 0.8) & (length <= 1.2)
    eager = (full | (length == 0)) & hinge
    previous = newton.error
    newton = _at(newton, clients, length, np.where(eager, newton.weight, 0.0))
    slow = (length > 0) & ~eager & (newton.error > 0.1 * previous)
    if slow.any() and newton.curved > 1.01 * newton.budget:
        # the samples left out of the Hessian limit the progress
        newton = replace(newton, budget=2 * newton.budget, refresh=True)
    newton = _check_progress(newton)
    allowed = newton.inner * newton.moved / (2 * newton.weight * newton.samples)
    good = 0.5 * newton.regularisation * newton.error <= allowed
    settled = hinge & ~eager & (newton.centred_at >= 1) & good
    if settled.any():
        newton = _at(newton, clients, np.zeros_like(length), np.where(settled, newton.weight, 0.0))
    return newton, info(newton)


def info(newton: Newton) -> Info:
    """Return the certificate at the present point, summed over the outputs."""
    primal, dual = float(newton.primal.sum()), float(newton.dual.sum())
    return Info(
        finished=newton.still > 3,
        primal=primal,
        dual=dual,
        gap_relative=(primal - dual) / max(primal, 1e-300),
        phase="newton",
    )


def _at(newton: Newton, clients: Clients, length: Array, recentre: Array) -> Newton:
    """Move by a step, move the centre (where `recentre` is not 0), and measure the point."""
    weight, centred_at = newton.weight, newton.centred_at
    moves = recentre > 0
    # the smoothing fades while the inner problems are easy
    grown = np.minimum(2 * weight, _HIGHEST)
    fallen = np.maximum(weight / 2, _COLD)
    weight = np.where(moves & (centred_at <= 2), grown, weight)
    weight = np.where(moves & (centred_at >= 6), fallen, weight)
    centred_at = np.where(moves, 0, centred_at)
    move = Move(length, weight, recentre)
    point = clients.sum(move_duals, dict.fromkeys(newton.labelled, move))
    renew = newton.refresh and not newton.framed
    message = Gather(
        alpha=point.alpha,
        curvature=point.curvature,
        step=length,
        budget=newton.budget,
        framed=newton.framed,
        gram=renew,
    )
    gathered = clients.sum(gather_point, dict.fromkeys(clients.ids, message))
    dual_weights = newton.dual_weights + gathered.w
    rows = gathered.rows if newton.framed else None
    measured = clients.sum(measure, dict.fromkeys(clients.ids, Measure(w=dual_weights, rows=rows)))
    # discloses for each output: losses, dual terms, the proximal term, the number of samples with
    # curvature, ‖w - w(α)‖², ‖w‖² and ‖w(α)‖²
    sums, norms = clients.reveal(point.sums), clients.reveal(measured.norms)
    ridge = 0.5 * newton.regularisation
    primal = ridge * norms[:, 1] + sums[:, 0] / newton.samples
    dual = sums[:, 1] / newton.samples - ridge * norms[:, 2]
    best = np.maximum(newton.best, dual)
    return replace(
        newton,
        weight=weight,
        centred_at=centred_at,
        best=best,
        error=norms[:, 0],
        gap=(primal - best) / np.maximum(primal, 1e-300),
        moved=sums[:, 2],
        curved=float(sums[:, 3].max()),
        alpha=point.alpha,
        dual_weights=dual_weights,
        gradient=measured.gradient,
        hessian=measured.hessian,
        gram=gathered.gram if renew else newton.gram,
        primal=primal,
        dual=dual,
    )


def _check_progress(newton: Newton) -> Newton:
    """Solve the inner problems more strictly where twelve steps did not halve the gap."""
    due = newton.steps - newton.mark[1] >= 12
    if newton.loss != losses.HINGE or not due.any():
        return newton
    slow = due & (newton.gap > 0.5 * newton.mark[0])
    mark = np.where(due, np.stack([newton.gap, newton.steps + 0 * newton.gap]), newton.mark)
    return replace(
        newton,
        mark=mark,
        inner=np.where(slow, np.maximum(newton.inner / 10, 0.1), newton.inner),
        eager=newton.eager & ~slow,
        budget=2 * newton.budget if slow.any() else newton.budget,
    )


def _conjugate_gradients(newton: Newton, clients: Clients) -> Newton:
    """Let the clients hold the direction; two exchanges an iteration."""
    gram = newton.gram if newton.refresh else None
    found = clients.sum(start_search, dict.fromkeys(clients.ids, Precondition(gram=gram)))
    # discloses rᵀM⁻¹r and ‖r‖², here and below; pᵀHp's two parts
    squares = clients.reveal(found.squares)
    first, weighted = squares[:, 1], squares[:, 0]
    keep = np.zeros(len(first))
    count = 0
    while count < _ITERATIONS:
        count += 1
        conjugate = Conjugate(products=found.products, keep=keep)
        curved = clients.sum(curve, dict.fromkeys(clients.ids, conjugate))
        parts = clients.reveal(curved.squares)
        bend = parts[:, 0] / newton.samples + newton.regularisation * parts[:, 1]
        going = (squares[:, 1] > _RESIDUAL**2 * first) & (bend > 0)
        length = np.divide(weighted, bend, out=np.zeros_like(bend), where=going)
        advance = Advance(product=curved.product, step=length)
        found = clients.sum(advance_search, dict.fromkeys(clients.ids, advance))
        squares = clients.reveal(found.squares)
        if not (going & (squares[:, 1] > _RESIDUAL**2 * first)).any():
            break
        keep = np.divide(squares[:, 0], weighted, out=np.zeros_like(keep), where=weighted > 0)
        weighted = squares[:, 0]
    if newton.refresh:
        return replace(newton, iterations=count, refresh=False)
    return replace(newton, refresh=count > 1.3 * newton.iterations + 3)


def _line_search(newton: Newton, clients: Clients, z: Any, line: Array) -> Array:
    """Return the step that minimises F along the direction for each output; 0: no descent."""
    along, square = line[:, :1], line[:, 1:]

    def slope(z: Any, steps: Array) -> Array:
        message = Line(z=z, steps=steps, weight=newton.weight)
        found = clients.sum(slope_along, dict.fromkeys(newton.labelled, message))
        # discloses the slope of the smoothed losses along the direction at a few steps
        data = clients.reveal(found.slopes)
        return newton.regularisation * (along + steps * square) - data / newton.samples

    steps = np.tile(_STEPS, (len(line), 1))
    length, coarse = _root(steps, slope(z, steps))
    if coarse.any():
        steps = np.where(coarse[:, None], coarse[:, None] * _FINE, steps)
        finer, _ = _root(steps, slope(None, steps))
        length = np.where(coarse > 0, finer, length)
    return length


def _root(steps: Array, slope: Array) -> tuple[Array, Array]:
    """Return where an increasing slope crosses 0, and the end of a bracket that is too wide (or 0).

    Rows of `steps` and `slope` are outputs.
    """
    length, coarse = np.zeros(len(steps)), np.zeros(len(steps))
    for c in range(len(steps)):
        above = np.flatnonzero(slope[c] > 0)
        if not len(above):
            length[c] = steps[c, -1]
        elif above[0] > 0:
            k = above[0]
            low, high, below, over = steps[c, k - 1], steps[c, k], slope[c, k - 1], slope[c, k]
            length[c] = low - (high - low) * below / (over - below)
            coarse[c] = high if high > 2 * low else 0.0
    return length, coarse


def certify(newton: Newton, clients: Clients) -> tuple[Newton, Info]:
    """Compute the scores afresh at the primal point, then the certificate."""
    own = clients.sum(own_scores, dict.fromkeys(clients.ids, Refresh(z=None)))
    clients.ask(keep_scores, dict.fromkeys(newton.labelled, Refresh(z=own.z)))
    outputs = len(newton.weight)
    newton = _at(newton, clients, np.zeros(outputs), np.zeros(outputs))
    return newton, info(newton)


# ---- at the clients


@client_function
def enter(before: Any, block: Block, message: Start, rng: RandomKey) -> tuple[Point, Frame]:
    """Leave dual ascent for Newton's method; draw a part of the frame."""
    samples, features = block.shape
    outputs = len(message.alpha)
    y = targets(block, outputs)
    if before.options.loss == "hinge":
        held = ~np.isnan(y)
        centre = np.where(held, y, 0.0) * message.alpha if message.warm else np.full(y.shape, 0.5)
    else:
        centre = np.zeros((outputs, samples))
    frame = np.zeros((message.frame, features))
    if message.frame:
        frame = rng.generator().standard_normal(frame.shape)
        frame *= np.sqrt(before.feature_share / message.frame)
    zeros = np.zeros((outputs, features))
    point = Point(
        before=before,
        regularisation=before.options.regularisation,
        samples=before.samples,
        loss=losses.loss_code(before.options.loss),
        mine=before.counted,
        sample_cells=before.sample_cells,
        feature_cells=before.feature_cells,
        feature_share=before.feature_share,
        w=message.w,
        direction=zeros,
        alpha=message.alpha,
        z=message.z,
        q=np.zeros((outputs, samples)),
        centre=centre,
        residual=zeros,
        selected=np.zeros(0, np.int64),
        curvature=np.zeros((outputs, 0)),
        frame=np.zeros((0, features)),
        preconditioner=np.zeros((outputs, 0, features)),
    )
    return point, Frame(frame)


@client_function
def keep_frame(point: Point, block: Block, message: Frame, rng: RandomKey) -> tuple[Point, Ready]:
    """Keep the frame of the client's own features."""
    return replace(point, frame=np.ascontiguousarray(message.frame.T).T), Ready()


@client_function
def move_duals(
    point: Point, block: Block, message: Move, rng: RandomKey
) -> tuple[Point, DualPoint]:
    """Go to the new scores; find the dual point there."""
    z, centre, y = point.z, point.centre, targets(block, len(point.z))
    if message.step.any() or message.recentre.any():
        z, centre = z.copy(), centre.copy()
        move_points(y, z, centre, message.step, point.q, message.recentre, point.mine)
    alpha, curvature = np.zeros_like(z), np.zeros_like(z)
    sums = dual_points(point.loss, y, z, centre, message.weight, point.mine, alpha, curvature)
    return replace(point, z=z, centre=centre), DualPoint(alpha, curvature, sums)


@client_function
def gather_point(
    point: Point, block: Block, message: Gather, rng: RandomKey
) -> tuple[Point, Gathered]:
    """Count the dual point into w(α); select the samples of the Hessian."""
    change = gather(block.x, message.alpha - point.alpha) / (point.regularisation * point.samples)
    selected, curvature, counts = _select(point, message)
    rows, gram = np.zeros((0, len(selected))), np.zeros((len(change), 0, block.shape[1]))
    if message.framed:
        rows = project_rows(block.x, selected, point.frame)
    elif message.gram:
        gram = _gram(point, block.x, selected, curvature)
    w = point.w + message.step[:, None] * point.direction if message.step.any() else point.w
    point = replace(point, w=w, alpha=message.alpha, selected=selected, curvature=curvature)
    return point, Gathered(change, gram, rows, counts)


def _select(point: Point, message: Gather) -> tuple[NDArray[np.int64], Array, NDArray[np.int64]]:
    """Return samples with curvature (evenly spread, up to the budget), h, and counts by cell.

    The owners of a cell see the same curvatures, so they select the same samples.
    """
    found: list[NDArray[np.int64]] = []
    scaled: list[Array] = []
    for start, stop, _, _ in point.sample_cells:
        h = message.curvature[:, start:stop]
        curved = np.flatnonzero(h.any(axis=0))
        most = -(-message.budget * (stop - start) // point.samples)
        if len(curved) > most:
            total = h.sum(axis=1)
            curved = curved[(np.arange(most) * len(curved)) // most]
            h = h[:, curved]
            taken = h.sum(axis=1)
            h = h * np.divide(total, taken, out=np.ones_like(total), where=taken > 0)[:, None]
        else:
            h = h[:, curved]
        found.append(curved + start)
        scaled.append(h)
    counts = np.array([len(one) for one in found], np.int64)
    if len(found) == 1:
        return found[0], scaled[0], counts
    return np.concatenate(found), np.concatenate(scaled, axis=1), counts


def _gram(point: Point, x: Values, selected: NDArray[np.int64], curvature: Array) -> Array:
    """Return Xᵀ h X of the client's samples within each feature cell, (outputs, width, features).

    Row j of a cell's columns is that of its feature j; wide cells have their diagonal in row 0.
    """
    widest = max(stop - start for start, stop in point.feature_cells)
    gram = np.zeros((len(curvature), min(widest, _BLOCK), x.shape[1]))
    for start, stop in point.feature_cells:
        size = stop - start
        if size > _BLOCK:
            rows = x[selected][:, start:stop]
            squares = rows.multiply(rows) if isinstance(rows, csr_array) else rows * rows
            gram[:, 0, start:stop] = (squares.T @ curvature.T).T
            continue
        most = -(-_GRAM * size * x.shape[0] // point.samples)
        taken = np.arange(0, len(selected), max(1, len(selected) // most))
        rows = x[selected[taken]][:, start:stop]
        rows = rows.toarray() if isinstance(rows, csr_array) else rows
        for c, h in enumerate(curvature):
            part = h[taken]
            factor = h.sum() / part.sum() if part.sum() > 0 else 0.0
            weighted = rows * np.sqrt(part * factor)[:, None]
            gram[c, :size, start:stop] = weighted.T @ weighted
    return gram


@client_function
def measure(point: Point, block: Block, message: Measure, rng: RandomKey) -> tuple[Point, Measured]:
    """Send norms; in the frame also this client's part of the gradient and the Hessian."""
    away = message.w - point.w
    share = point.feature_share
    norms = np.stack([away**2 @ share, point.w**2 @ share, message.w**2 @ share], axis=1)
    residual = point.regularisation * away
    point = replace(point, residual=residual)
    size, outputs = len(point.frame), len(away)
    if message.rows is None:
        return point, Measured(norms, np.zeros((outputs, 0)), np.zeros((outputs, 0, 0)))
    weighted = point.frame * share
    gradient = residual @ weighted.T
    hessian = np.empty((outputs, size, size))
    turn = _turn(point)
    rows = message.rows[:, turn]
    ridge = point.regularisation * (weighted @ point.frame.T)
    for c in range(outputs):
        scaled = rows * np.sqrt(point.curvature[c, turn] / point.samples)
        hessian[c] = scaled @ scaled.T + ridge
    return point, Measured(norms, gradient, hessian)


def _turn(point: Point) -> NDArray[np.int64]:
    """Return the places of the selected samples that this client adds up for their owners."""
    places: list[NDArray[np.int64]] = []
    begin = 0
    for _, stop, holders, rank in point.sample_cells:
        end = int(np.searchsorted(point.selected, stop))
        places.append(np.arange(begin + rank, end, holders))
        begin = end
    return np.concatenate(places)


@client_function
def solve(
    point: Point, block: Block, message: SmallSystem, rng: RandomKey
) -> tuple[Point, Coefficients]:
    """Solve the Newton system in the frame."""
    y = np.empty_like(message.gradient)
    for c, hessian in enumerate(message.hessian):
        hessian = hessian.copy()
        hessian.flat[:: len(hessian) + 1] += 1e-14 * np.trace(hessian)
        y[c] = np.linalg.solve(hessian, message.gradient[c])
    return point, Coefficients(y)


@client_function
def multiply(
    state: Point | Search, block: Block, message: Coefficients, rng: RandomKey
) -> tuple[Point, Products]:
    """Send this client's part of the direction's scores."""
    if isinstance(state, Search):
        point, direction = state.point, state.direction
    else:
        assert message.y is not None
        point, direction = state, message.y @ state.frame
    share = point.feature_share
    line = np.stack([(direction * point.w) @ share, direction**2 @ share], axis=1)
    return replace(point, direction=direction), Products(scores(block.x, direction), line)


@client_function
def slope_along(point: Point, block: Block, message: Line, rng: RandomKey) -> tuple[Point, Slopes]:
    """Send the slopes of the losses along the direction."""
    if message.z is not None:
        point = replace(point, q=message.z)
    y = targets(block, len(point.z))
    return point, Slopes(
        slopes(
            point.loss, y, point.z, point.q, point.centre, message.weight, point.mine, message.steps
        )
    )


@client_function
def start_search(
    point: Point, block: Block, message: Precondition, rng: RandomKey
) -> tuple[Search, Applied]:
    """Start conjugate gradients from the gradient."""
    if message.gram is not None:
        point = replace(point, preconditioner=_inverse(point, message.gram))
    values = block.x[point.selected]
    if not isinstance(values, csr_array):
        values = values.astype(np.float32)
    edges = np.searchsorted(point.selected, [cell[1] for cell in point.sample_cells])
    zeros = np.zeros_like(point.w)
    search = Search(
        point=point,
        values=values,
        counts=np.diff(edges, prepend=0),
        turn=_turn(point),
        residual=point.residual,
        preconditioned=zeros,
        conjugate=zeros,
        direction=zeros,
        products=np.zeros_like(point.curvature),
    )
    return _applied(search, search.direction, search.residual)


def _inverse(point: Point, gram: Array) -> Array:
    """Return (λI + Gram/N)⁻¹ of each feature cell, laid out as the Gram matrices are."""
    inverse = gram / point.samples
    for start, stop in point.feature_cells:
        size = stop - start
        for c in range(len(inverse)):
            if size > _BLOCK:
                inverse[c, 0, start:stop] = 1 / (point.regularisation + inverse[c, 0, start:stop])
                continue
            block = inverse[c, :size, start:stop].copy()
            block.flat[:: size + 1] += point.regularisation
            factor, _ = lapack.dpotrf(block, lower=1)
            found, _ = lapack.dpotri(factor, lower=1)
            found = np.tril(found)
            inverse[c, :size, start:stop] = found + np.tril(found, -1).T
    return np.asarray(inverse)


def _applied(search: Search, direction: Array, residual: Array) -> tuple[Search, Applied]:
    point = search.point
    preconditioned = np.empty_like(residual)
    for start, stop in point.feature_cells:
        for c in range(len(residual)):
            inverse, part = point.preconditioner[c], residual[c, start:stop]
            if stop - start > _BLOCK:
                preconditioned[c, start:stop] = inverse[0, start:stop] * part
            else:
                np.dot(inverse[: stop - start, start:stop], part, out=preconditioned[c, start:stop])
    shared = residual * point.feature_share
    squares = np.empty((len(residual), 2))
    for c in range(len(residual)):
        squares[c] = shared[c] @ preconditioned[c], shared[c] @ residual[c]
    if isinstance(search.values, csr_array):
        products = scores(search.values, preconditioned)
    else:
        single = preconditioned.astype(np.float32)
        products = scores(search.values, single).astype(np.float64)
    search = Search(
        point,
        search.values,
        search.counts,
        search.turn,
        residual,
        preconditioned,
        search.conjugate,
        direction,
        search.products,
    )
    return search, Applied(products, search.counts, squares)


@client_function
def curve(
    search: Search, block: Block, message: Conjugate, rng: RandomKey
) -> tuple[Search, Curved]:
    """Go on to the next conjugate direction; send the Hessian's product with it."""
    point, keep = search.point, message.keep[:, None]
    conjugate = search.preconditioned + keep * search.conjugate
    products = message.products + keep * search.products
    weighted = point.curvature * products
    squares = np.empty((len(keep), 2))
    for c in range(len(keep)):
        squares[c, 0] = weighted[c, search.turn] @ products[c, search.turn]
        squares[c, 1] = (conjugate[c] * point.feature_share) @ conjugate[c]
    if isinstance(search.values, csr_array):
        product = gather(search.values, weighted)
    else:
        product = (weighted.astype(np.float32) @ search.values).astype(np.float64)
    search = Search(
        point,
        search.values,
        search.counts,
        search.turn,
        search.residual,
        search.preconditioned,
        conjugate,
        search.direction,
        products,
    )
    return search, Curved(product, squares)


@client_function
def advance_search(
    search: Search, block: Block, message: Advance, rng: RandomKey
) -> tuple[Search, Applied]:
    """Step along the conjugate direction; precondition the new residual."""
    step, point = message.step[:, None], search.point
    direction = search.direction + step * search.conjugate
    product = message.product / point.samples
    product += point.regularisation * search.conjugate
    return _applied(search, direction, search.residual - step * product)


@client_function
def own_scores(
    point: Point, block: Block, message: Refresh, rng: RandomKey
) -> tuple[Point, OwnScores]:
    """Send this client's part of the scores at the primal point."""
    return point, OwnScores(scores(block.x, point.w))


@client_function
def keep_scores(
    point: Point, block: Block, message: Refresh, rng: RandomKey
) -> tuple[Point, Ready]:
    """Keep the scores computed afresh."""
    assert message.z is not None
    return replace(point, z=message.z.copy()), Ready()


@client_function
def share_weights(
    point: Point, block: Block, message: Refresh, rng: RandomKey
) -> tuple[Point, OwnWeights]:
    """Send this client's share of the weights."""
    return point, OwnWeights(point.w * point.feature_share)


FUNCTIONS = (
    enter,
    keep_frame,
    move_duals,
    gather_point,
    measure,
    solve,
    multiply,
    slope_along,
    start_search,
    curve,
    advance_search,
    own_scores,
    keep_scores,
    share_weights,
)
STATES = (Newton, Point, Search)
