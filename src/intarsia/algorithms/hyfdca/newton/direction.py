"""The direction of a Newton step, and how far to go along it, over a federation.

The system (λI + 1/N X_Fᵀ h X_F) d = λ(w(α) - w) is solved either exactly in a secret frame (one
client solves the small system) or by preconditioned conjugate gradients, two exchanges an
iteration. The step length is where the slope of F along d crosses 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack
from scipy.sparse import csr_array

from intarsia import core as fl
from intarsia.algorithms.hyfdca.newton.client import BLOCK, halves, penalty_curvature
from intarsia.algorithms.hyfdca.newton.frame import counts_by_cell
from intarsia.algorithms.hyfdca.newton.point import Point
from intarsia.algorithms.hyfdca.newton.shares import Sharing
from intarsia.core.block import Array, Block, ClientId, Values, targets
from intarsia.errors import RefusedError
from intarsia.maths.linear import interior_point, losses
from intarsia.maths.linear.elastic_net import slopes_along
from intarsia.maths.linear.products import gather, scores
from intarsia.maths.linear.smoothed_losses import slopes

MOST = 300  # of conjugate gradients, at most
FEW, _CLOSE = 16, 0.02  # iterations that go on to this residual: where they are cheap, they pay
_STEPS = np.array(
    [0.0, 1 / 256, 1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 0.5, 0.75, 1.0, 1.25, 2.0, 4.0]
)
_FINE = np.concatenate([[0.0], np.geomspace(1 / 256, 1, 12)])
SEARCHES = 8  # finer searches with the log link, at most: each finds a step 256 times as short
_FAR = 30.0  # how many times its slope at 0 a client's slope may fall below 0


@dataclass(frozen=True)
class Search:
    """A client's state while the direction is sought by conjugate gradients."""

    point: Point
    values: Values  # the selected rows, single precision where dense
    counts: NDArray[np.int64]  # of selected samples by cell
    kept: NDArray[np.int64]  # selected samples that count at this client
    keeps_features: bool  # whether features count at it
    residual: Array  # (outputs, features)
    preconditioned: Array
    conjugate: Array
    direction: Array
    products: Array  # (outputs, selected) X p

    @property
    def options(self) -> Any:
        """Return the hyperparameters."""
        return self.point.options


@dataclass(frozen=True)
class SmallSystem:
    """The Newton system in the frame."""

    gradient: Array
    hessian: Array


@fl.describe("model weights or their changes")
class Coefficients:
    """The direction in the frame; none where conjugate gradients found it."""

    y: Array | None  # (outputs, frame); shared: of its own features, in units of the system's size


@fl.describe(z="each row's product with a step's direction", line="terms of the training objective")
class Products:
    """Scores of the direction; scalars for the line search."""

    z: fl.PerScore
    # (outputs, 2) d·w, ‖d‖²; of the elastic net its slopes over κ at the first steps to try, and in
    # the interior point method the fields of Reached, for the weights
    line: Array


@dataclass(frozen=True)
class Line:
    """Scores of the direction, and steps to try."""

    z: fl.PerScore | None  # None: as before
    steps: Array  # (outputs, steps)
    weight: Array  # (outputs,) of the smoothing


@fl.describe("terms of the training objective")
class Slopes:
    """Σ α_i q_i at each step; with the log link also how many clients it is too far for."""

    slopes: Array  # (outputs, steps), or twice as many


@dataclass(frozen=True)
class TrialSteps:
    """Steps to try."""

    steps: Array  # (outputs, steps)


@fl.describe("terms of the training objective")
class PenaltySlopes:
    """The slopes of the elastic net over κ at each step."""

    slopes: Array  # (outputs, steps)


@dataclass(frozen=True)
class Precondition:
    """The Gram matrices of the client's feature cells, where they are renewed."""

    gram: fl.PerFeature | None
    single: bool  # whether single precision will do for products of dense rows


@fl.describe(
    products="each row's product with a step's direction",
    counts="numbers of chosen rows",
    squares="terms of the training objective",
)
class Applied:
    """Products of the selected samples with the preconditioned residual."""

    products: fl.PerSelected  # (outputs, selected)
    counts: fl.Counts
    squares: Array  # (outputs, 2) residual · preconditioned, ‖residual‖²


@dataclass(frozen=True)
class Conjugate:
    """The products, and how much of the last direction to keep."""

    products: fl.PerSelected
    keep: Array  # (outputs,)


@fl.describe(product="weighted sums of columns", squares="terms of the training objective")
class Curved:
    """The Hessian's data part along the conjugate direction."""

    product: fl.PerFeature  # (outputs, features) X_Fᵀ h X_F p
    squares: Array  # (outputs, 2) Σ h (Xp)², ‖p‖²


@dataclass(frozen=True)
class Advance:
    """The step along the conjugate direction, and the Hessian's product with it."""

    product: fl.PerFeature
    step: Array  # (outputs,)


def multiply_exact(
    clients: fl.Clients, solver: ClientId, gradient: Any, hessian: Any, by: Any = None
) -> Any:
    """Solve in the frame at one client; return the sealed total of Products.

    `by` is the client function that the clients multiply by; None: `multiply`.
    """
    system = SmallSystem(gradient=gradient, hessian=hessian)
    solved = clients.sum(solve, {solver: system})
    return clients.sum(by or multiply, Coefficients(y=solved.y))


def multiply_conjugate(
    clients: fl.Clients,
    gram: Any,
    *,
    samples: int,
    regularisation: float,
    residual: float = 0.0,
    single: bool,
    enough: Array | None = None,
    most: int = MOST,
    by: Any = None,
    give_up: bool = False,
) -> tuple[Any, int]:
    """Solve by conjugate gradients; return the sealed total of Products, and the iterations.

    `gram` renews the preconditioner, None keeps it; the search ends where the norm of the residual
    is `residual` of the first (less within `FEW` iterations) or its square `enough`, (outputs,),
    or after `most`, where `give_up` returns None and no direction is told. `single` is the
    precision of the products of dense rows; `by` as in `multiply_exact`.
    """
    found = clients.sum(start_search, Precondition(gram, single))
    # discloses rᵀM⁻¹r and ‖r‖², here and below; pᵀHp's two parts
    squares = clients.reveal(found.squares)
    first, weighted = squares[:, 1], squares[:, 0]
    keep = np.zeros(len(first))
    count = 0
    while count < most:
        count += 1
        conjugate = Conjugate(products=found.products, keep=keep)
        curved = clients.sum(curve, conjugate)
        parts = clients.reveal(curved.squares)
        bend = parts[:, 0] / samples + regularisation * parts[:, 1]
        least = (_CLOSE if count < FEW else residual) ** 2 * first if enough is None else enough
        going = (squares[:, 1] > least) & (bend > 0)
        length = np.divide(weighted, bend, out=np.zeros_like(bend), where=going)
        advance = Advance(product=curved.product, step=length)
        found = clients.sum(advance_search, advance)
        squares = clients.reveal(found.squares)
        if not (going & (squares[:, 1] > least)).any():
            break
        if give_up and count == most:
            return None, count
        keep = np.divide(squares[:, 0], weighted, out=np.zeros_like(keep), where=weighted > 0)
        weighted = squares[:, 0]
    products = clients.sum(by or multiply, Coefficients(y=None))
    return products, count


def line_search(
    clients: fl.Clients,
    labelled: tuple[ClientId, ...],
    products: Any,
    weight: Array,
    *,
    samples: int,
    regularisation: float,
    steep: bool = False,
    elastic: bool = False,
) -> tuple[Array, Array]:
    """Return the step that minimises F along the direction for each output; 0: no descent.

    With the log link F is `steep`: steps are looked for that may be short by any factor.

    Return also how many times what the system says F bends along the direction, by the shortest
    step that is tried.
    """
    # discloses d·w and ‖d‖²; of the elastic net its slopes along the direction at a few steps
    line = clients.reveal(products.line)

    def penalty(steps: Array) -> Array:
        if not elastic:
            return np.asarray(line[:, :1] + steps * line[:, 1:])
        if steps is first:
            return np.asarray(line)
        # discloses the same at the steps between
        return np.asarray(clients.reveal(clients.sum(slope_of_penalty, TrialSteps(steps)).slopes))

    def slope(z: Any, steps: Array) -> Array:
        message = Line(z=z, steps=steps, weight=weight)
        found = clients.sum(slope_along, dict.fromkeys(labelled, message))
        # discloses the slope of the smoothed losses along the direction at a few steps, and with
        # the log link how many clients each is too far for
        data: Array = clients.reveal(found.slopes)
        tried = steps.shape[1]
        found_slope = regularisation * penalty(steps) - data[:, :tried] / samples
        if steep:
            found_slope[data[:, tried:] > 0.5] = np.inf
        return np.asarray(found_slope)

    steps = first = np.tile(_STEPS, (len(line), 1))
    slopes = slope(products.z, steps)
    length, coarse = _root(steps, slopes)
    for _ in range(SEARCHES if steep else 1):
        if not coarse.any():
            break
        steps = np.where(coarse[:, None], coarse[:, None] * _FINE, steps)
        slopes = slope(None, steps)
        finer, again = _root(steps, slopes)
        length, coarse = np.where(coarse > 0, finer, length), np.where(coarse > 0, again, 0.0)
    # a solution of the system has as much of it as slope
    bend = (slopes[:, 1] - slopes[:, 0]) / steps[:, 1]
    bend = np.where(np.isfinite(bend), bend, 0.0)
    return length, np.divide(bend, -slopes[:, 0], out=np.zeros_like(bend), where=slopes[:, 0] < 0)


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


@fl.client_function
def solve(point: Point, block: Block, message: SmallSystem) -> tuple[Point, Coefficients]:
    """Solve the Newton system in the frame."""
    y = np.empty_like(message.gradient)
    for c, hessian in enumerate(message.hessian):
        hessian = hessian.copy()
        hessian.flat[:: len(hessian) + 1] += 1e-14 * np.trace(hessian)
        y[c] = np.linalg.solve(hessian, message.gradient[c])
    return point, Coefficients(y)


@fl.client_function
def multiply(
    state: Point | Search | Sharing, block: Block, message: Coefficients
) -> tuple[Point, Products]:
    """Send this client's part of the direction's scores."""
    return products_of(state, block, message)


def products_of(
    state: Point | Search | Sharing, block: Block, message: Coefficients
) -> tuple[Point, Products]:
    """Return the state with the direction, and this client's part of its scores."""
    point = state if isinstance(state, Point) else state.point
    one = point.shared or point.threshold > 0
    if one and point.inner_l1 is None and point.directed == point.measured:
        raise RefusedError(
            "A second direction was told at one point, and the algorithm goes along one; run it as "
            "it is at the server."
        )
    if isinstance(state, Search):
        point, direction = fl.evolve(state.point, residual=state.residual), state.direction
    else:
        assert message.y is not None
        y = message.y
        if point.shared:
            y = y * (point.system_slope / point.system_scale)[:, None]
        direction = y @ point.frame
    kept, line = point.kept_features, np.zeros((len(direction), 2))
    if point.inner_l1 is not None:
        line = _reach(point, direction)
    elif point.threshold:
        line = _penalty_slopes(point, direction, np.tile(_STEPS, (len(direction), 1)))
    elif kept.any():
        line[:, 0], line[:, 1] = (direction * point.w) @ kept, direction**2 @ kept
    point = fl.evolve(point, directed=point.measured, looks=0, penalty_looks=0)
    return fl.evolve(point, direction=direction), Products(scores(block.x, direction), line)


def _reach(point: Point, direction: Array) -> Array:
    """Return which steps are too far for the weights' duals, and products along, for `Reached`."""
    kept = np.flatnonzero(point.kept_features)
    inner = interior_point.of_columns(point.inner_l1, kept)
    change = direction + point.first
    steps = interior_point.changes(inner, point.w[:, kept], change[:, kept])
    far = interior_point.too_far(inner, steps)
    return np.concatenate([far, interior_point.products_along(inner, steps, None)], axis=1)


def _looked(point: Point, steps: Array, before: int, most: int) -> int:
    """Return how often steps were tried, this time too; RefusedError for more than there are.

    Slopes at many steps tell where each sample, or each weight, bends the objective.
    """
    finer = SEARCHES if point.loss in losses.LOG_LINK else 1
    if steps.shape[1] > len(_STEPS) or before >= most + finer:
        raise RefusedError(
            f"{steps.shape[1]} steps were told to be tried along a direction after {before} times, "
            f"and the algorithm tries {len(_STEPS)} at most {most + finer} times; run it as it is "
            "at the server."
        )
    return before + 1


def _penalty_slopes(point: Point, direction: Array, steps: Array) -> Array:
    """Return this client's part of the slopes of the elastic net over κ, (outputs, steps)."""
    chosen = np.flatnonzero(point.kept_features)
    w, d, pull = point.w[:, chosen], direction[:, chosen], point.pull[:, chosen]
    return np.asarray(slopes_along(w, d, pull, point.stiff, point.threshold, steps).sum(axis=1))


@fl.told_the_same
@fl.client_function
def slope_of_penalty(
    point: Point, block: Block, message: TrialSteps
) -> tuple[Point, PenaltySlopes]:
    """Send the slopes of the elastic net along the direction."""
    point = fl.evolve(point, penalty_looks=_looked(point, message.steps, point.penalty_looks, 0))
    return point, PenaltySlopes(_penalty_slopes(point, point.direction, message.steps))


@fl.told_the_same
@fl.client_function
def slope_along(point: Point, block: Block, message: Line) -> tuple[Point, Slopes]:
    """Send the slopes of the losses along the direction."""
    point = fl.evolve(point, looks=_looked(point, message.steps, point.looks, 1))
    if message.z is not None:
        point = fl.evolve(point, q=message.z)
    y, shape = targets(block, len(point.z)), losses.shape_of(point.options)
    found = slopes(
        *(point.loss, y, point.z, point.q, point.centre),
        *(message.weight, point.mine, message.steps, block.weights, shape),
    )
    if point.loss in losses.LOG_LINK:
        # an exponential of a step that is too far has no place in a sum
        far = found < -_FAR * _size_of_slope(point, y, block.weights_of(point.mine))[:, None]
        found = np.concatenate([np.where(far, 0.0, found), far], axis=1)
    return point, Slopes(found)


def _size_of_slope(point: Point, y: Array, weights: Array | None) -> Array:
    """Return Σ (1 + |l'| + l'')|q| of the samples that a client reads, (outputs,)."""
    y, z, q = y[:, point.mine], point.z[:, point.mine], np.abs(point.q[:, point.mine])
    size = 1 + np.abs(losses.derivative(point.loss, z, y)) + losses.curvature(point.loss, z, y)
    return np.asarray((q * size * (1.0 if weights is None else weights)).sum(axis=1))


@fl.told_the_same
@fl.client_function
def start_search(point: Point, block: Block, message: Precondition) -> tuple[Search, Applied]:
    """Start conjugate gradients from the gradient."""
    if message.gram is not None:
        gram = message.gram
        if point.inner_l1 is not None:  # row 0 has the diagonals
            gram = gram.copy()
            gram[:, 0] += penalty_curvature(point) - point.regularisation
        point = fl.evolve(point, preconditioner=_inverse(point, gram))
    values = block.x if len(point.selected) == block.shape[0] else block.x[point.selected]
    if message.single and not isinstance(values, csr_array):
        values = values.astype(np.float32)
    zeros = np.zeros_like(point.w)
    search = Search(
        point=point,
        values=values,
        counts=counts_by_cell(point, point.selected),
        kept=_kept(point),
        keeps_features=bool(point.kept_features.any()),
        residual=point.residual,
        preconditioned=zeros,
        conjugate=zeros,
        direction=zeros,
        products=np.zeros_like(point.curvature),
    )
    return _applied(search, search.direction, search.residual)


def _kept(point: Point) -> NDArray[np.int64]:
    """Return the places of the selected samples of the cells that count at this client."""
    stops = np.cumsum(counts_by_cell(point, point.selected))
    starts = [0, *stops[:-1]]
    return np.concatenate(
        [
            np.arange(start, stop if keep else start)
            for start, stop, keep in zip(starts, stops, point.kept_samples, strict=True)
        ]
    )


def _inverse(point: Point, gram: Array) -> Array:
    """Return (λI + Gram/N)⁻¹ of each feature cell.

    Row j of a cell's columns is that of its feature j; wide cells have their diagonal in row 0, and
    all do where nothing else was sent.
    """
    sizes = [stop - start for start, stop in point.feature_cells]
    rows = max((size for size in sizes if size <= BLOCK), default=1) if gram.shape[1] > 1 else 1
    inverse = np.zeros((len(gram), rows, gram.shape[2]))
    for start, stop in point.feature_cells:
        size = stop - start
        for c in range(len(inverse)):
            if size > BLOCK or rows == 1:
                inverse[c, 0, start:stop] = 1 / (point.regularisation + gram[c, 0, start:stop])
                continue
            half, (row, column) = gram[c, : size // 2 + 1, start:stop], halves(size)
            block = np.empty((size, size))
            block[row, column] = half
            block[column, row] = half
            block.flat[:: size + 1] += point.regularisation
            # in place: a matrix of 2,000 features takes 32 MB; its transpose is the same matrix
            factor, _ = lapack.dpotrf(block.T, lower=1, clean=0, overwrite_a=1)
            found, _ = lapack.dpotri(factor, lower=1, overwrite_c=1)
            whole = inverse[c, :size, start:stop]
            for at in range(size):  # only the lower half was computed
                whole[at:, at] = whole[at, at:] = found[at:, at]
    return inverse


def _applied(search: Search, direction: Array, residual: Array) -> tuple[Search, Applied]:
    point = search.point
    none = point.preconditioner.shape[1] == 0  # where nothing has curvature the Hessian is λI
    smoothed = point.threshold > 0 and point.inner_l1 is None
    free = np.where(point.inside, 0.0, residual) if smoothed else residual
    preconditioned = free / point.regularisation if none else np.empty_like(residual)
    for start, stop in () if none else point.feature_cells:
        for c in range(len(residual)):
            inverse, part = point.preconditioner[c], free[c, start:stop]
            if stop - start > BLOCK or len(inverse) == 1:
                preconditioned[c, start:stop] = inverse[0, start:stop] * part
            else:
                np.dot(inverse[: stop - start, start:stop], part, out=preconditioned[c, start:stop])
    if smoothed:
        preconditioned = _apart(point, preconditioned, residual)
    squares = np.zeros((len(residual), 2))
    if search.keeps_features:
        shared = residual * point.kept_features
        for c in range(len(residual)):
            squares[c] = shared[c] @ preconditioned[c], shared[c] @ residual[c]
    products = scores(search.values, preconditioned.astype(search.values.dtype, copy=False))
    products = products.astype(np.float64, copy=False)
    changes = {"residual": residual, "preconditioned": preconditioned, "direction": direction}
    return fl.evolve(search, **changes), Applied(products, search.counts, squares)


def _apart(point: Point, preconditioned: Array, residual: Array) -> Array:
    """Return the preconditioned residual with the weights at 0 on their own.

    The inverse Gram matrices know nothing of their stiffness, which changes with every step.
    """
    inside, bend = point.inside, penalty_curvature(point)
    apart = residual / np.where(inside, bend, 1.0)
    return np.where(inside, apart, preconditioned)


@fl.told_the_same
@fl.client_function
def curve(search: Search, block: Block, message: Conjugate) -> tuple[Search, Curved]:
    """Go on to the next conjugate direction; send the Hessian's product with it."""
    point, keep = search.point, message.keep[:, None]
    conjugate = search.preconditioned + keep * search.conjugate
    products = message.products + keep * search.products
    weighted = point.curvature * products
    squares = np.zeros((len(keep), 2))
    if search.keeps_features or len(search.kept):
        for c in range(len(keep)):
            squares[c, 0] = weighted[c, search.kept] @ products[c, search.kept]
            squares[c, 1] = (conjugate[c] * point.kept_features) @ conjugate[c]
        if point.threshold:
            bend = penalty_curvature(point) / point.regularisation
            squares[:, 1] = (conjugate**2 * bend) @ point.kept_features
    if isinstance(search.values, csr_array):
        product = gather(search.values, weighted)
    else:
        product = weighted.astype(search.values.dtype, copy=False) @ search.values
        product = product.astype(np.float64, copy=False)
    return fl.evolve(search, conjugate=conjugate, products=products), Curved(product, squares)


@fl.told_the_same
@fl.client_function
def advance_search(search: Search, block: Block, message: Advance) -> tuple[Search, Applied]:
    """Step along the conjugate direction; precondition the new residual."""
    step, point = message.step[:, None], search.point
    direction = search.direction + step * search.conjugate
    product = message.product / point.samples
    if point.threshold:
        product += penalty_curvature(point) * search.conjugate
    else:
        product += point.regularisation * search.conjugate
    return _applied(search, direction, search.residual - step * product)


SENDS = (
    *fl.sums(solve),
    *fl.sums(multiply, reveals=("line",)),
    *fl.sums(slope_along, reveals=("slopes",)),
    *fl.each(
        fl.sums(slope_of_penalty, reveals=("slopes",)), needed=lambda options: options.l1_ratio > 0
    ),
    *fl.sums(start_search, curve, advance_search, reveals=("squares",)),
)
