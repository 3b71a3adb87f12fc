"""Proximal dual ascent: the phase of HyFDCA for rounds with clients away.

With some clients away the weights w(α) = 1/(λN) Σ_i α_i x_i cannot be brought up to the duals: what
is missing is divided by λN, and steps of any fixed length stall or diverge. Here the server keeps
the model u apart from the counted weights w, and a round is one step of the proximal point method
(Rockafellar 1976) on the saddle function

    L(u, α) = λ/2 ‖u‖² - 1/N Σ_k α_kᵀX_k u_k - 1/N Σ_i l*(-α_i)

in u, over the clients k that are there; the products X_k u_k and X_kᵀα_k of those that are away
stay in the totals z and w as they were counted last. At its solution nothing moves, whoever is
there: u = w(α) and each α_i maximises its term. One round:

1. clients that return count the duals they missed into w
2. draw: the clients move u_j of their features to (ρ_j u_j + λw_j)/(λ + ρ_j) and count it into z
3. up to `ascents` times, while it gains enough: local dual ascent with λ + ρ_j in place of λ, of
   each sample at the one client that reads its score, of those that are there; what w and z change
   by; line search along the change; u_j moves by λ/(λ + ρ_j) times what w_j does
4. settling: the clients keep what the last search took; the server averages u and α over the
   rounds, late ones weighing more

ρ_j is a multiple of r_j^1.5, where r_j is the part that feature j has in the mean ‖x_i‖²: the
curvature along u_j that the clients that are away would add grows with it, so that rare words may
move further than common ones. The mean of the ρ_j, weighted by r_j, is ρ, a share of the mean
‖x_i‖². A diagonal metric as in Pock and Chambolle, "Diagonal preconditioning for first order
primal-dual algorithms", ICCV 2011; the power 1.5 is by experiment (1 is slower on text, none is
better on standardised tables).

The certificate takes the best of the last, the average and the models certified before as P, and of
their duals, scaled to the best length, as D. The server sees scalars only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia import core as fl
from intarsia.algorithms.hyfdca.minibatch_ascent import find_read
from intarsia.core.block import Array, Block, ClientId, targets
from intarsia.errors import ConvergenceError
from intarsia.maths.linear import losses
from intarsia.maths.linear.local_sdca import ascend_weighted, weighted_norms
from intarsia.maths.linear.products import gather, scores

PHASE = "proximal ascent"
_WORTHWHILE = 0.05  # a dual ascent that gains less than this share of the round's gain is its last
_RECENT = 4.0  # the average over n rounds gives the last one the weight 4/(n + 3)
_STEPS = np.array([0.0, 0.5, 1.0])  # where a search knows the conjugates: they are quadratic
_CURVED_STEPS = np.concatenate([[0.0], 2.0 ** np.arange(-10, 1)])


@dataclass(frozen=True)
class Partial:
    """The server's state of the phase."""

    loss: int
    regularisation: float  # λ
    metric: float  # ρ_j = metric · r_j^1.5
    ascents: int  # at most
    samples: int  # N
    alpha: Any  # sealed (outputs, samples)
    w: Any  # sealed (outputs, features), what the clients have counted of w(α)
    z: Any  # sealed (outputs, samples), what they have counted of Xu
    u: Any  # sealed (outputs, features), the model
    alpha_mean: Any  # sealed, averages over the rounds
    u_mean: Any
    labellers: tuple[tuple[ClientId, tuple[ClientId, ...]], ...]
    # for each client, the clients with labels among the owners of its samples
    best: Any = None  # sealed (outputs, features), the model of the lowest certified P
    lowest: float = math.inf  # that P
    rounds: int = 0
    entered: tuple[ClientId, ...] = ()  # clients with a Place
    present: tuple[ClientId, ...] = ()  # in the round before


@dataclass(frozen=True)
class Place:
    """A client's state of the phase, in the order of its aligned block."""

    before: Any  # the client's state of dual ascent
    alpha: Array  # (outputs, samples) duals that its part of w counts
    u: Array  # (outputs, features) model that its part of z counts
    alpha_trial: Array  # the same after the current trial
    u_trial: Array
    model: Array  # (outputs, features) weights to predict with
    pull: Array  # (features,) λ/(λ + ρ_j)
    norms: Array  # (samples,) Σ_j x_{k,ij}²/(λ + ρ_j)

    @property
    def w(self) -> Array:
        """Return the weights to predict with."""
        return self.model


@dataclass(frozen=True)
class Missed:
    """The duals as they are now."""

    alpha: fl.PerSample


@fl.describe("model weights or their changes")
class Counted:
    """What a client's part of w changed by."""

    w: fl.PerFeature


@dataclass(frozen=True)
class Draw:
    """The model, and the counted weights that it is drawn to."""

    u: fl.PerFeature
    w: fl.PerFeature
    present: tuple[ClientId, ...]


@fl.describe(u="model weights or their changes", z="each row's model score")
class Drawn:
    """What the model moved by, each feature once; what a client's part of z changed by."""

    u: fl.PerFeature
    z: fl.PerScore


@dataclass(frozen=True)
class AscendThere:
    """Duals and scores to step from."""

    alpha: fl.PerSample
    z: fl.PerScore
    taken: float  # the share of the last trial that the search took
    present: tuple[ClientId, ...]


@fl.describe(alpha="each row's dual variable", along="terms of the training objective")
class StepsThere:
    """A client's dual steps."""

    alpha: fl.PerSample
    along: Array  # (points,) Σ -l*(-α_i) - Δα_i z_i on the way, the samples stepped on


@dataclass(frozen=True)
class Trial:
    """Duals to count into the weights."""

    alpha: fl.PerSample


@fl.describe("model weights or their changes")
class Pulled:
    """What a client's part of w changes by on trial, and the model with it."""

    w: fl.PerFeature
    u: fl.PerFeature


@dataclass(frozen=True)
class Model:
    """A model to count into the scores."""

    u: fl.PerFeature
    present: tuple[ClientId, ...]


@fl.describe(z="each row's model score", square="terms of the training objective")
class TrialScores:
    """What a client's part of z changes by on trial."""

    z: fl.PerScore
    square: Array  # (1,) Σ_j (λ + ρ_j) Δu_j², each feature once


@dataclass(frozen=True)
class KeepTrial:
    """The share of the last trial that the search took; the scores after it."""

    taken: float
    z: fl.PerScore
    present: tuple[ClientId, ...]


@fl.describe("counts and summed losses of training rows")
class LossThere:
    """A client's part of the loss of the samples that are there."""

    at: Array  # (2,) Σ l(z_i) and the number of these samples, each once


@dataclass(frozen=True)
class Candidate:
    """A model and duals to evaluate."""

    u: fl.PerFeature
    alpha: fl.PerSample


@fl.describe(
    w="model weights or their changes",
    z="each row's model score",
    conjugates="terms of the training objective",
)
class Evaluated:
    """A client's part of w(α), of Xu, and of the dual's data term."""

    w: fl.PerFeature
    z: fl.PerScore
    conjugates: Array  # (points,) Σ -l*(-sα_i) for s from 0 to 1


@dataclass(frozen=True)
class ModelTotals:
    """A model, its scores, and the weights of the duals."""

    u: fl.PerFeature
    w: fl.PerFeature
    z: fl.PerScore


@fl.describe("terms of the training objective")
class ModelObjectives:
    """A client's part of the objectives, each sample and each feature once."""

    at: Array  # (4,) Σ l(z_i), Σ l(0), ‖u‖², ‖w(α)‖²


@dataclass(frozen=True)
class Keep:
    """The model to predict with."""

    u: fl.PerFeature


def search_points(loss: int) -> Array:
    """Return the steps at which a search knows the dual."""
    return _CURVED_STEPS if loss in losses.CURVED else _STEPS


def enter(before: Any, block: Block, shares: Array, metric: float) -> Place:
    """Return the state of a client that enters.

    Parameters
    ----------
    before : the client's state of dual ascent, settled
    shares : (features,), r_j; sealed sums are as exact as their mode, so they may be below 0
    metric : ρ_j = metric · r_j^1.5
    """
    ridge = before.options.regularisation + metric * np.maximum(shares, 0.0) ** 1.5
    return Place(
        before=before,
        alpha=before.alpha,
        u=before.w,
        alpha_trial=before.alpha,
        u_trial=before.w,
        model=before.w,
        pull=before.options.regularisation / ridge,
        norms=weighted_norms(block.x, 1 / ridge),
    )


@fl.client_function
def count_missed(place: Place, block: Block, message: Missed) -> tuple[Place, Counted]:
    """Count the duals that the client missed into its part of w."""
    change = message.alpha - place.alpha
    place = replace(place, alpha=message.alpha, alpha_trial=message.alpha)
    return place, Counted(gather(block.x, change) / _regularised(place))


def _regularised(place: Place) -> float:
    return float(place.before.options.regularisation * place.before.samples)


@fl.client_function
def draw_model(place: Place, block: Block, message: Draw) -> tuple[Place, Drawn]:
    """Move the model towards the counted weights; count it into this client's part of z."""
    move = place.pull * (message.w - message.u)
    u = message.u + move
    change = scores(block.x, u - place.u)
    share = _feature_share(place, message.present)
    return replace(place, u=u, u_trial=u), Drawn(move * share, change)


def present_share(
    cell: NDArray[np.int64],
    owners: tuple[tuple[ClientId, ...], ...],
    present: tuple[ClientId, ...],
) -> NDArray[np.float64]:
    """Return 1 / owners that are there for each entry, 0 where `cell` is -1."""
    there = set(present)
    shares = [1 / max(len(there.intersection(names)), 1) for names in owners]
    return np.array([*shares, 0.0])[cell]


def _feature_share(place: Place, present: tuple[ClientId, ...]) -> Array:
    before = place.before
    return present_share(before.feature_cell, before.feature_owners, present)


@fl.client_function
def ascend_locally(
    place: Place, block: Block, message: AscendThere, rng: fl.RandomKey
) -> tuple[Place, StepsThere]:
    """Take dual steps on the samples that this client is to step on (Algorithm 5)."""
    place, before = _settle_trial(place, message.taken), place.before
    mine = find_read(before, message.present)
    order = mine[rng.generator().permutation(len(mine))]
    order = order[: math.ceil(before.options.local_samples * len(order))]
    y, loss = targets(block, len(message.alpha)), losses.loss_code(before.options.loss)
    shape = losses.shape_of(before.options)
    steps = ascend_weighted(
        block.x,
        y,
        message.alpha,
        message.z,
        place.norms,
        _row_scale(place, message.present),
        order,
        weights=place.pull / before.options.regularisation,
        sigma=before.options.sigma,
        samples=before.samples,
        loss=loss,
        shape=shape,
        sample_weights=block.weights,
    )
    # every sample is stepped on by one of its owners, so that these sums count each step once
    change = steps[:, order]
    weights = block.weights_of(order)
    along = _conjugates(loss, shape, message.alpha[:, order], change, y[:, order], weights)
    return place, StepsThere(steps, along - search_points(loss) * np.vdot(steps, message.z))


def _row_scale(place: Place, present: tuple[ClientId, ...]) -> Array:
    """Return what the rows stand for beside themselves: the parts of co-owners that are there.

    These are not known; they are taken as their share in number of ‖x_i‖². A client alone with a
    sample accounts for its own part only, since nothing else of z can move.
    """
    before, there = place.before, set(present)
    left = [there.intersection(names) for names in before.label_owners]
    share = [
        len(some) / len(names) if len(some) > 1 else 0.0
        for some, names in zip(left, before.label_owners, strict=True)
    ]
    known = np.array([*share, 0.0])[before.label_cell]
    return np.asarray(np.sqrt(np.maximum(known * before.row_scale**2, before.row_scale > 0)))


def _conjugates(
    loss: int,
    shape: float,
    start: Array,
    change: Array,
    y: Array,
    weights: Array | None,
    share: Any = 1.0,
) -> Array:
    """Return Σ -l*(-α_i) along a line of duals, (points,)."""
    duals = [start + step * change for step in search_points(loss)]
    known: dict[str, Any] = {"weights": weights, "shape": shape, "slack": losses.EDGE}
    terms = [losses.minus_conjugate(loss, one, y, **known) for one in duals]
    return np.array([float((term * share).sum()) for term in terms])


def _settle_trial(place: Place, taken: float) -> Place:
    """Count what the server took of the last trial."""
    alpha = place.alpha + taken * (place.alpha_trial - place.alpha)
    u = place.u + taken * (place.u_trial - place.u)
    return replace(place, alpha=alpha, u=u, alpha_trial=alpha, u_trial=u)


@fl.client_function
def count_trial(place: Place, block: Block, message: Trial) -> tuple[Place, Pulled]:
    """Send what this client's part of w changes by, and the model with it."""
    w = gather(block.x, message.alpha - place.alpha) / _regularised(place)
    return replace(place, alpha_trial=message.alpha), Pulled(w, w * place.pull)


@fl.client_function
def multiply_trial(place: Place, block: Block, message: Model) -> tuple[Place, TrialScores]:
    """Send what this client's part of z changes by."""
    change = message.u - place.u
    weight = _feature_share(place, message.present) / place.pull
    square = float((change**2 @ weight).sum()) * place.before.options.regularisation
    reply = TrialScores(scores(block.x, change), np.array([square]))
    return replace(place, u_trial=message.u), reply


@fl.client_function
def keep_trial(place: Place, block: Block, message: KeepTrial) -> tuple[Place, LossThere]:
    """Keep what the search took; send the loss of this client's samples."""
    place, before = _settle_trial(place, message.taken), place.before
    mine = find_read(before, message.present)
    return place, LossThere(np.array([_loss(place, block, message.z, mine), float(len(mine))]))


def _loss(place: Place, block: Block, z: Array, mine: NDArray[np.int64]) -> float:
    options, y = place.before.options, targets(block, len(z))[:, mine]
    code, shape = losses.loss_code(options.loss), losses.shape_of(options)
    return float(losses.value(code, z[:, mine], y, block.weights_of(mine), shape=shape).sum())


@fl.client_function
def part_of_dual(place: Place, block: Block, message: Candidate) -> tuple[Place, Evaluated]:
    """Send this client's part of w(α), of Xu, and of the dual's data term."""
    alpha, before = message.alpha, place.before
    held = before.label_share > 0
    y, loss = targets(block, len(alpha))[:, held], losses.loss_code(before.options.loss)
    weights, share = block.weights_of(held), before.label_share[held]
    shape = losses.shape_of(before.options)
    conjugates = _conjugates(loss, shape, 0.0 * y, alpha[:, held], y, weights, share)
    w = gather(block.x, alpha) / _regularised(place)
    return place, Evaluated(w, scores(block.x, message.u), conjugates)


@fl.client_function
def part_of_objectives(
    place: Place, block: Block, message: ModelTotals
) -> tuple[Place, ModelObjectives]:
    """Send this client's part of the objectives."""
    before, mine = place.before, find_read(place.before)
    at = (
        _loss(place, block, message.z, mine),
        _loss(place, block, np.zeros_like(message.z), mine),
        float((message.u**2 @ before.feature_share).sum()),
        float((message.w**2 @ before.feature_share).sum()),
    )
    return place, ModelObjectives(np.array(at))


@fl.client_function
def keep_model(place: Place, block: Block, message: Keep) -> tuple[Place, fl.Ready]:
    """Keep the weights to predict with."""
    return replace(place, model=message.u), fl.Ready()


def step(partial: Partial, clients: fl.Clients) -> tuple[Partial, fl.RoundMetrics]:
    """Take a proximal step among the clients that are there; all of them have a Place.

    A client counts as away if no owner of its samples is there with labels: their duals stand
    still, so that its features would follow them unchecked.
    """
    labellers, ids = dict(partial.labellers), set(clients.ids)
    there = tuple(name for name in clients.ids if ids.intersection(labellers[name]))
    if not there:
        return partial, fl.RoundMetrics(phase=PHASE)
    alpha, w, z, u = partial.alpha, partial.w, partial.z, partial.u
    # step 1: catching up
    returning = [name for name in there if name not in partial.present]
    if returning:
        w = w + clients.sum(count_missed, dict.fromkeys(returning, Missed(alpha))).w
    # step 2: drawing
    drawn = clients.sum(draw_model, dict.fromkeys(there, Draw(u, w, there)))
    u, z = u + drawn.u, z + drawn.z
    # step 3: dual ascent
    taken, gained = 1.0, 0.0
    for _ in range(partial.ascents):
        message = AscendThere(alpha, z, taken, there)
        steps = clients.sum(ascend_locally, dict.fromkeys(there, message))
        trial = Trial(alpha + steps.alpha)
        change = clients.sum(count_trial, dict.fromkeys(there, trial))
        model = Model(u + change.u, there)
        products = clients.sum(multiply_trial, dict.fromkeys(there, model))
        # discloses the dual's linear and data term at a few points of the line, and ‖Δu‖²
        along = clients.reveal(steps.along) / partial.samples
        square = float(clients.reveal(products.square)[0])
        taken, gain = _best_step(along, square, partial.loss)
        alpha, w = alpha + steps.alpha * taken, w + change.w * taken
        u, z = u + change.u * taken, z + products.z * taken
        gained += gain
        if gain <= _WORTHWHILE * gained:
            break
    # step 4: settling
    settled = clients.sum(keep_trial, dict.fromkeys(there, KeepTrial(taken, z, there)))
    # discloses the data loss of the samples that are there, and their number
    loss = float(clients.reveal(settled.at)[0])
    if not math.isfinite(loss):
        raise ConvergenceError(
            f"The loss is {loss} after {partial.rounds + 1} rounds with clients away: the steps "
            "overshoot. Raise algorithm.proximal or algorithm.regularisation."
        )
    weight = _RECENT / (partial.rounds + _RECENT)
    partial = replace(
        partial,
        alpha=alpha,
        w=w,
        z=z,
        u=u,
        alpha_mean=partial.alpha_mean + (alpha - partial.alpha_mean) * weight,
        u_mean=partial.u_mean + (u - partial.u_mean) * weight,
        rounds=partial.rounds + 1,
        present=there,
    )
    # no objective: the loss is that of the samples that are there only
    return partial, fl.RoundMetrics(phase=PHASE)


def metric(proximal: float, sizes: Array, features: int) -> float:
    """Return ρ_j/r_j^1.5 from ρ, and from Σ_j r_j and F^¾ Σ_j r_j^2.5 over the F features.

    It makes ρ the mean of the ρ_j, weighted by r_j.
    """
    total, power = sizes.tolist()
    return float(proximal * total * features**0.75 / power) if power > 0 else proximal


def _best_step(along: Array, square: float, loss: int) -> tuple[float, float]:
    """Return the step s in [0, 1] that maximises along(s) - s²/2·square, and what it gains."""
    points = search_points(loss)
    return losses.best_step(loss, points, along - 0.5 * points**2 * square)


def certify(partial: Partial, clients: fl.Clients) -> tuple[Partial, fl.RoundMetrics, Any, Any]:
    """Return the objectives of the best of the last, the average and the models before.

    The last two items are sealed totals: of its weights, and of the duals of the highest D.

    Raises
    ------
    ConvergenceError
        If that model is worse than a model of zeros.
    """
    start, primal, dual = 0.0, partial.lowest, -math.inf
    weights = partial.u if partial.best is None else partial.best
    duals = partial.alpha
    for u, alpha in ((partial.u, partial.alpha), (partial.u_mean, partial.alpha_mean)):
        start, above, below, scale = _objectives(partial, clients, u, alpha)
        if below > dual:
            dual, duals = below, alpha * scale
        if above < primal:
            primal, weights = above, u
    if not primal <= start * (1 + 1e-9):
        raise ConvergenceError(
            f"The primal objective is {primal:.3g} after {partial.rounds} rounds with clients "
            f"away, above the {start:.3g} of a model of zeros: run more rounds, or raise "
            "algorithm.proximal."
        )
    clients.ask(keep_model, Keep(weights))
    info = fl.RoundMetrics.certified(primal, dual, PHASE)
    return replace(partial, best=weights, lowest=primal), info, weights, duals


def _objectives(
    partial: Partial, clients: fl.Clients, u: Any, alpha: Any
) -> tuple[float, float, float, float]:
    """Return P(0), P(u), the highest D(sα) for s from 0 to 1, and that s."""
    ridge = partial.regularisation
    parts = clients.sum(part_of_dual, Candidate(u, alpha))
    totals = ModelTotals(u=u, w=parts.w, z=parts.z)
    sums = clients.sum(part_of_objectives, totals)
    # discloses the dual's data term at a few points, Σ l(z_i), Σ l(0), ‖u‖², ‖w(α)‖²
    conjugates = clients.reveal(parts.conjugates) / partial.samples
    loss, zero, square, square_dual = clients.reveal(sums.at).tolist()
    scale, _ = _best_step(conjugates, ridge * square_dual, partial.loss)
    # the data term is concave along the line: between two points it is at least their chord
    data = float(np.interp(scale, search_points(partial.loss), conjugates))
    primal = loss / partial.samples + 0.5 * ridge * square
    dual = data - 0.5 * ridge * scale**2 * square_dual
    return zero / partial.samples, primal, dual, scale


STATES = (Partial, Place)
SENDS = (
    *fl.asks(keep_model),
    *fl.sums(count_missed),
    *fl.each(fl.sums(count_trial, reveals=("u",), opens=("u", "w")), model=("u",), trains=True),
    *fl.each(fl.sums(draw_model, reveals=("u",), opens=("u", "z")), model=("u",), trains=True),
    *fl.sums(ascend_locally, reveals=("along",)),
    *fl.sums(multiply_trial, reveals=("square",)),
    *fl.sums(keep_trial, part_of_objectives, reveals=("at",)),
    *fl.sums(part_of_dual, reveals=("conjugates",)),
)
