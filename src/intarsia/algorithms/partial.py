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
2. draw: the clients move u of their features to (ρu + λw)/(λ + ρ) and count it into z
3. `ascents` times: local dual ascent with λ + ρ in place of λ, what w and z change by, line search
   along the change among the clients that are there; u moves by λ/(λ + ρ) times what w does
4. settling: the clients keep what the last search took; the server averages u and α over the
   rounds, late ones weighing more

ρ is a share of the mean ‖x_i‖². The certificate takes the best of the last, the average and the
models certified before as P, and of their duals, scaled to the best length, as D. The server sees
scalars only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from intarsia.algorithm import (
    Clients,
    Info,
    PerFeature,
    PerSample,
    RandomKey,
    client_function,
)
from intarsia.algorithms.turns import chosen, present_share
from intarsia.data import Array, Block, ClientId, targets
from intarsia.errors import ConvergenceError
from intarsia.maths import losses
from intarsia.maths.products import gather, scores
from intarsia.maths.sdca import ascend_slice

__all__ = ["FUNCTIONS", "STATES", "Partial", "Place", "certify", "step"]

_STEPS = np.array([0.0, 0.5, 1.0])  # where a search knows the conjugates: they are quadratic
_LOGISTIC_STEPS = np.concatenate([[0.0], 2.0 ** np.arange(-10, 1)])
_RECENT = 4.0  # the average over n rounds gives the last one the weight 4/(n + 3)


# ---- states


@dataclass(frozen=True)
class Partial:
    """The server's state of the phase."""

    loss: int
    regularisation: float  # λ
    proximal: float  # ρ
    ascents: int
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

    @property
    def w(self) -> Array:
        """Return the weights to predict with."""
        return self.model


def place(before: Any) -> Place:
    """Return the state of a client that enters; `before` is settled."""
    return Place(before, before.alpha, before.w, before.alpha, before.w, before.w)


# ---- messages


@dataclass(frozen=True)
class Ready:
    """The client has what it needs."""


@dataclass(frozen=True)
class Missed:
    """The duals as they are now."""

    alpha: PerSample


@dataclass(frozen=True)
class Counted:
    """What a client's part of w changed by."""

    w: PerFeature


@dataclass(frozen=True)
class Draw:
    """The model, and the counted weights that it is drawn to."""

    u: PerFeature
    w: PerFeature
    pull: float  # λ/(λ + ρ)
    present: tuple[ClientId, ...]


@dataclass(frozen=True)
class Drawn:
    """What the model moved by, each feature once; what a client's part of z changed by."""

    u: PerFeature
    z: PerSample


@dataclass(frozen=True)
class AscendThere:
    """Duals and scores to step from."""

    alpha: PerSample
    z: PerSample
    taken: float  # the share of the last trial that the search took
    ridge: float  # λ + ρ
    draw: int  # decides which owner steps on a shared sample
    present: tuple[ClientId, ...]


@dataclass(frozen=True)
class StepsThere:
    """A client's dual steps."""

    alpha: PerSample
    along: Array  # (points,) Σ -l*(-α_i) - Δα_i z_i on the way, the samples stepped on


@dataclass(frozen=True)
class Trial:
    """Duals to count into the weights."""

    alpha: PerSample


@dataclass(frozen=True)
class Model:
    """A model to count into the scores."""

    u: PerFeature
    present: tuple[ClientId, ...]


@dataclass(frozen=True)
class TrialScores:
    """What a client's part of z changes by on trial."""

    z: PerSample
    square: Array  # (1,) ‖Δu‖², each feature once


@dataclass(frozen=True)
class KeepTrial:
    """The share of the last trial that the search took; the scores after it."""

    taken: float
    z: PerSample
    present: tuple[ClientId, ...]


@dataclass(frozen=True)
class LossThere:
    """A client's part of the loss of the samples that are there."""

    at: Array  # (2,) Σ l(z_i) and the number of these samples, each once


@dataclass(frozen=True)
class Candidate:
    """A model and duals to part_of_dual."""

    u: PerFeature
    alpha: PerSample


@dataclass(frozen=True)
class Evaluated:
    """A client's part of w(α), of Xu, and of the dual's data term."""

    w: PerFeature
    z: PerSample
    conjugates: Array  # (points,) Σ -l*(-sα_i) for s from 0 to 1


@dataclass(frozen=True)
class ModelTotals:
    """A model, its scores, and the weights of the duals."""

    u: PerFeature
    w: PerFeature
    z: PerSample


@dataclass(frozen=True)
class ModelObjectives:
    """A client's part of the objectives, each sample and each feature once."""

    at: Array  # (4,) Σ l(z_i), Σ l(0), ‖u‖², ‖w(α)‖²


@dataclass(frozen=True)
class Keep:
    """The model to predict with."""

    u: PerFeature


# ---- at the server


def step(partial: Partial, clients: Clients, rng: RandomKey) -> tuple[Partial, Info]:
    """Take a proximal step among the clients that are there; all of them have a Place.

    A client counts as away if no owner of its samples is there with labels: their duals stand
    still, so that its features would follow them unchecked.
    """
    labellers, ids = dict(partial.labellers), set(clients.ids)
    there = tuple(name for name in clients.ids if ids.intersection(labellers[name]))
    if not there:
        return partial, Info(phase="proximal ascent")
    ridge = partial.regularisation + partial.proximal
    pull = partial.regularisation / ridge
    alpha, w, z, u = partial.alpha, partial.w, partial.z, partial.u
    # step 1: catching up
    returning = [name for name in there if name not in partial.present]
    if returning:
        w = w + clients.sum(count_missed, dict.fromkeys(returning, Missed(alpha))).w
    # step 2: drawing
    drawn = clients.sum(draw_model, dict.fromkeys(there, Draw(u, w, pull, there)))
    u, z = u + drawn.u, z + drawn.z
    # step 3: dual ascent
    taken = 1.0
    for number in range(partial.ascents):
        message = AscendThere(
            alpha=alpha,
            z=z,
            taken=taken,
            ridge=ridge,
            draw=rng.fold_in("owners", number).integer(),
            present=there,
        )
        steps = clients.sum(ascend_locally, dict.fromkeys(there, message))
        trial = Trial(alpha + steps.alpha)
        change = clients.sum(count_trial, dict.fromkeys(there, trial))
        model = Model(u + change.w * pull, there)
        products = clients.sum(multiply_trial, dict.fromkeys(there, model))
        # discloses the dual's linear and data term at a few points of the line, and ‖Δu‖²
        along = clients.reveal(steps.along) / partial.samples
        taken = _best_step(along, ridge * float(clients.reveal(products.square)[0]), partial.loss)
        alpha, w = alpha + steps.alpha * taken, w + change.w * taken
        u, z = u + change.w * (pull * taken), z + products.z * taken
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
    return partial, Info(phase="proximal ascent")


def _points(loss: int) -> Array:
    """Return the steps at which a search knows the dual."""
    return _LOGISTIC_STEPS if loss == losses.LOGISTIC else _STEPS


def _best_step(along: Array, square: float, loss: int) -> float:
    """Return the step s in [0, 1] that maximises along(s) - s²/2·square.

    `along` is a quadratic of the step for all losses but the logistic, where the best of twelve
    points is taken.
    """
    points = _points(loss)
    dual = along - 0.5 * points**2 * square
    if loss == losses.LOGISTIC:
        return float(points[int(np.argmax(dual))])
    start, middle, end = dual
    curvature = 4 * (start - 2 * middle + end)  # second derivative
    slope = 4 * middle - 3 * start - end
    if curvature >= 0:
        return 1.0 if end > start else 0.0
    return float(np.clip(-slope / curvature, 0.0, 1.0))


def certify(partial: Partial, clients: Clients) -> tuple[Partial, Info, Any]:
    """Return the objectives of the best of the last, the average and the models before.

    The third item is the sealed total of its weights.

    Raises
    ------
    ConvergenceError
        If that model is worse than a model of zeros.
    """
    start, primal, dual = 0.0, partial.lowest, -math.inf
    weights = partial.u if partial.best is None else partial.best
    for u, alpha in ((partial.u, partial.alpha), (partial.u_mean, partial.alpha_mean)):
        start, above, below = _objectives(partial, clients, u, alpha)
        dual = max(dual, below)
        if above < primal:
            primal, weights = above, u
    if not primal <= start * (1 + 1e-9):
        raise ConvergenceError(
            f"The primal objective is {primal:.3g} after {partial.rounds} rounds with clients "
            f"away, above the {start:.3g} of a model of zeros: run more rounds, or raise "
            "algorithm.proximal."
        )
    clients.ask(keep_model, dict.fromkeys(clients.ids, Keep(weights)))
    gap = (primal - dual) / max(primal, 1e-300)
    info = Info(primal=primal, dual=dual, gap_relative=gap, phase="proximal ascent")
    return replace(partial, best=weights, lowest=primal), info, weights


def _objectives(
    partial: Partial, clients: Clients, u: Any, alpha: Any
) -> tuple[float, float, float]:
    """Return P(0), P(u) and the highest D(sα) for s from 0 to 1."""
    ridge = partial.regularisation
    parts = clients.sum(part_of_dual, dict.fromkeys(clients.ids, Candidate(u, alpha)))
    totals = ModelTotals(u=u, w=parts.w, z=parts.z)
    sums = clients.sum(part_of_objectives, dict.fromkeys(clients.ids, totals))
    # discloses the dual's data term at a few points, Σ l(z_i), Σ l(0), ‖u‖², ‖w(α)‖²
    conjugates = clients.reveal(parts.conjugates) / partial.samples
    loss, zero, square, square_dual = clients.reveal(sums.at).tolist()
    scale = _best_step(conjugates, ridge * square_dual, partial.loss)
    # the data term is concave along the line: between two points it is at least their chord
    data = float(np.interp(scale, _points(partial.loss), conjugates))
    primal = loss / partial.samples + 0.5 * ridge * square
    return zero / partial.samples, primal, data - 0.5 * ridge * scale**2 * square_dual


# ---- at the clients


@client_function
def count_missed(
    place: Place, block: Block, message: Missed, rng: RandomKey
) -> tuple[Place, Counted]:
    """Count the duals that the client missed into its part of w."""
    change = message.alpha - place.alpha
    place = replace(place, alpha=message.alpha, alpha_trial=message.alpha)
    return place, Counted(gather(block.x, change) / _regularised(place))


def _regularised(place: Place) -> float:
    return float(place.before.options.regularisation * place.before.samples)


@client_function
def draw_model(place: Place, block: Block, message: Draw, rng: RandomKey) -> tuple[Place, Drawn]:
    """Move the model towards the counted weights; count it into this client's part of z."""
    move = message.pull * (message.w - message.u)
    u = message.u + move
    change = scores(block.x, u - place.u)
    share = _feature_share(place, message.present)
    return replace(place, u=u, u_trial=u), Drawn(move * share, change)


def _feature_share(place: Place, present: tuple[ClientId, ...]) -> Array:
    before = place.before
    return present_share(before.feature_cell, before.feature_owners, present)


def _label_share(place: Place, present: tuple[ClientId, ...]) -> Array:
    before = place.before
    return present_share(before.label_cell, before.label_owners, present)


@client_function
def ascend_locally(
    place: Place, block: Block, message: AscendThere, rng: RandomKey
) -> tuple[Place, StepsThere]:
    """Take dual steps on the samples that this client is to step on (Algorithm 5)."""
    place, before = _after(place, message.taken), place.before
    mine = chosen(
        before.label_key,
        before.label_cell,
        before.label_owners,
        before.name,
        message.present,
        message.draw,
    )
    regularised = message.ridge * before.samples
    order = mine[rng.generator().permutation(len(mine))]
    order = order[: math.ceil(before.options.local_samples * len(order))]
    y, loss = targets(block, len(message.alpha)), losses.loss_code(before.options.loss)
    steps = ascend_slice(
        block.x,
        y,
        message.alpha,
        message.z,
        before.norms / regularised,
        before.row_scale,
        order,
        sigma=before.options.sigma,
        regularised_samples=regularised,
        loss=loss,
    )
    # every sample is stepped on by one of its owners, so that these sums count each step once
    change = steps[:, order]
    along = _conjugates(loss, message.alpha[:, order], change, y[:, order])
    return place, StepsThere(steps, along - _points(loss) * np.vdot(steps, message.z))


def _conjugates(loss: int, start: Array, change: Array, y: Array, share: Any = 1.0) -> Array:
    """Return Σ -l*(-α_i) along a line of duals, (points,)."""
    terms = [losses.minus_conjugate(loss, start + s * change, y) * share for s in _points(loss)]
    return np.array([float(term.sum()) for term in terms])


def _after(place: Place, taken: float) -> Place:
    """Count what the server took of the last trial."""
    alpha = place.alpha + taken * (place.alpha_trial - place.alpha)
    u = place.u + taken * (place.u_trial - place.u)
    return replace(place, alpha=alpha, u=u, alpha_trial=alpha, u_trial=u)


@client_function
def count_trial(
    place: Place, block: Block, message: Trial, rng: RandomKey
) -> tuple[Place, Counted]:
    """Send what this client's part of w changes by."""
    w = gather(block.x, message.alpha - place.alpha) / _regularised(place)
    return replace(place, alpha_trial=message.alpha), Counted(w)


@client_function
def multiply_trial(
    place: Place, block: Block, message: Model, rng: RandomKey
) -> tuple[Place, TrialScores]:
    """Send what this client's part of z changes by."""
    change = message.u - place.u
    square = float((change**2 @ _feature_share(place, message.present)).sum())
    reply = TrialScores(scores(block.x, change), np.array([square]))
    return replace(place, u_trial=message.u), reply


@client_function
def keep_trial(
    place: Place, block: Block, message: KeepTrial, rng: RandomKey
) -> tuple[Place, LossThere]:
    """Keep what the search took; send the loss of this client's samples."""
    place, share = _after(place, message.taken), _label_share(place, message.present)
    return place, LossThere(np.array([_loss(place, block, message.z, share), share.sum()]))


def _loss(place: Place, block: Block, z: Array, share: Array) -> float:
    held = share > 0
    y = targets(block, len(z))[:, held]
    code = losses.loss_code(place.before.options.loss)
    return float((losses.value(code, z[:, held], y) @ share[held]).sum())


@client_function
def part_of_dual(
    place: Place, block: Block, message: Candidate, rng: RandomKey
) -> tuple[Place, Evaluated]:
    """Send this client's part of w(α), of Xu, and of the dual's data term."""
    alpha, before = message.alpha, place.before
    held = before.label_share > 0
    y, loss = targets(block, len(alpha))[:, held], losses.loss_code(before.options.loss)
    conjugates = _conjugates(loss, 0.0 * y, alpha[:, held], y, before.label_share[held])
    w = gather(block.x, alpha) / _regularised(place)
    return place, Evaluated(w, scores(block.x, message.u), conjugates)


@client_function
def part_of_objectives(
    place: Place, block: Block, message: ModelTotals, rng: RandomKey
) -> tuple[Place, ModelObjectives]:
    """Send this client's part of the objectives."""
    before = place.before
    at = (
        _loss(place, block, message.z, before.label_share),
        _loss(place, block, np.zeros_like(message.z), before.label_share),
        float((message.u**2 @ before.feature_share).sum()),
        float((message.w**2 @ before.feature_share).sum()),
    )
    return place, ModelObjectives(np.array(at))


@client_function
def keep_model(place: Place, block: Block, message: Keep, rng: RandomKey) -> tuple[Place, Ready]:
    """Keep the weights to predict with."""
    return replace(place, model=message.u), Ready()


FUNCTIONS = (
    count_missed,
    draw_model,
    ascend_locally,
    count_trial,
    multiply_trial,
    keep_trial,
    part_of_dual,
    part_of_objectives,
    keep_model,
)
STATES = (Partial, Place)
