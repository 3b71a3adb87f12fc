"""Proximal dual ascent with clients away: states, messages and client functions.

`partial_participation` has the phase as a whole.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from intarsia.algorithms.hyfdca.owner_sampling import chosen, present_share
from intarsia.core.algorithm import (
    PerFeature,
    PerSample,
    RandomKey,
    Ready,
    asks,
    client_function,
    sums,
)
from intarsia.core.block import Array, Block, ClientId, targets
from intarsia.maths.linear import losses
from intarsia.maths.linear.local_sdca import ascend_weighted, weighted_norms
from intarsia.maths.linear.products import gather, scores


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
class Pulled:
    """What a client's part of w changes by on trial, and the model with it."""

    w: PerFeature
    u: PerFeature


@dataclass(frozen=True)
class Model:
    """A model to count into the scores."""

    u: PerFeature
    present: tuple[ClientId, ...]


@dataclass(frozen=True)
class TrialScores:
    """What a client's part of z changes by on trial."""

    z: PerSample
    square: Array  # (1,) Σ_j (λ + ρ_j) Δu_j², each feature once


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
    """A model and duals to evaluate."""

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


_STEPS = np.array([0.0, 0.5, 1.0])  # where a search knows the conjugates: they are quadratic
_LOGISTIC_STEPS = np.concatenate([[0.0], 2.0 ** np.arange(-10, 1)])


def search_points(loss: int) -> Array:
    """Return the steps at which a search knows the dual."""
    return _LOGISTIC_STEPS if loss == losses.LOGISTIC else _STEPS


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
    move = place.pull * (message.w - message.u)
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
    order = mine[rng.generator().permutation(len(mine))]
    order = order[: math.ceil(before.options.local_samples * len(order))]
    y, loss = targets(block, len(message.alpha)), losses.loss_code(before.options.loss)
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
    )
    # every sample is stepped on by one of its owners, so that these sums count each step once
    change = steps[:, order]
    along = _conjugates(loss, message.alpha[:, order], change, y[:, order])
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


def _conjugates(loss: int, start: Array, change: Array, y: Array, share: Any = 1.0) -> Array:
    """Return Σ -l*(-α_i) along a line of duals, (points,)."""
    duals = [start + step * change for step in search_points(loss)]
    terms = [losses.minus_conjugate(loss, alpha, y, slack=losses.EDGE) * share for alpha in duals]
    return np.array([float(term.sum()) for term in terms])


def _after(place: Place, taken: float) -> Place:
    """Count what the server took of the last trial."""
    alpha = place.alpha + taken * (place.alpha_trial - place.alpha)
    u = place.u + taken * (place.u_trial - place.u)
    return replace(place, alpha=alpha, u=u, alpha_trial=alpha, u_trial=u)


@client_function
def count_trial(place: Place, block: Block, message: Trial, rng: RandomKey) -> tuple[Place, Pulled]:
    """Send what this client's part of w changes by, and the model with it."""
    w = gather(block.x, message.alpha - place.alpha) / _regularised(place)
    return replace(place, alpha_trial=message.alpha), Pulled(w, w * place.pull)


@client_function
def multiply_trial(
    place: Place, block: Block, message: Model, rng: RandomKey
) -> tuple[Place, TrialScores]:
    """Send what this client's part of z changes by."""
    change = message.u - place.u
    weight = _feature_share(place, message.present) / place.pull
    square = float((change**2 @ weight).sum()) * place.before.options.regularisation
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


SENDS = (
    *asks(keep_model),
    *sums(count_missed),
    *sums(count_trial, reveals=("u",), opens=("u", "w")),
    *sums(draw_model, reveals=("u",), opens=("u", "z")),
    *sums(ascend_locally, reveals=("along",)),
    *sums(multiply_trial, reveals=("square",)),
    *sums(keep_trial, part_of_objectives, reveals=("at",)),
    *sums(part_of_dual, reveals=("conjugates",)),
)
