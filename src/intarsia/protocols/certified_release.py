"""Release a trained model with noise, of which every client knows that it is near the optimum.

How private runs of HyFDCA and CoCoA end. The noise is measured for models whose duality gap is at
most that of the tolerance. So the clients find the gap of the very model that is released, whatever
the server says of it, and add noise to no other:

1. proposal: each client sends its share of the weights; of each sample the one client that reads
   its score sends the dual, in its box
2. scores: the owners open both totals, the weights w and the duals α; they send their parts of the
   scores Xw, and of w(α)
3. gap: each client sends its part of N(P(w) - D(α)). It is 0 or more for any w and any α in its
   box, and w is near the optimum where it is small, wherever both come from
4. noise: all open the total, and refuse a gap above what the noise was measured for. Each adds its
   share of the noise to its share of the weights of step 2: owners of a feature split the variance.
   The server gets the sealed total, and no total without the noise
5. the clients keep the weights with the noise, so that every later score is that of the released
   model; the server reads the same weights

All clients are asked in each step, each total is the last of its kind as it is, and a client goes
on in this order alone: what is done between two steps makes it begin again. A run proposes one
model: gaps at many points would tell how the scores are distributed.

The owners of a feature know its weight without the noise, from training. With the server they could
take the noise of their own features away; the weights of other features stay hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia import core as fl
from intarsia.core.block import Array, Block, targets
from intarsia.errors import ConvergenceError, RefusedError
from intarsia.maths.linear import losses
from intarsia.maths.linear.products import gather, scores
from intarsia.protocols.differential_privacy import add_to_weights, noise_of

_PROPOSED, _SCORED, _MEASURED = range(3)  # how far a client has come


@dataclass(frozen=True)
class Certifying:
    """A client's state while the model is certified, in the order of its aligned block.

    No state of training has a field of these names: what a function of training may do to a state
    that it takes for its own leaves them as they are.
    """

    training: Any  # its state in training, with options, samples, and the noise
    final: Array  # (outputs, features) the model
    duals: Array  # (outputs, samples)
    reads: NDArray[np.int64]  # samples whose scores it reads
    owned: Array  # (features,) 1 / owners
    progress: int = _PROPOSED

    @property
    def before(self) -> Any:
        """Return the state in training."""
        return self.training

    @property
    def w(self) -> Array:
        """Return the weights to predict with."""
        return self.final

    @property
    def alpha(self) -> Array:
        """Return the duals."""
        return self.duals


@dataclass(frozen=True)
class Propose:
    """The model that is to be released, and duals to certify it by; None: as the client has it."""

    w: fl.PerFeature | None = None
    alpha: fl.PerSample | None = None


@fl.describe(w="model weights or their changes", alpha="each row's dual variable")
class Proposed:
    """A client's share of the weights, and the duals of the samples whose scores it reads."""

    w: fl.PerFeature
    alpha: fl.PerSample


@dataclass(frozen=True)
class FinalModel:
    """The totals of `Proposed`: the model, and its duals."""

    w: fl.PerFeature
    alpha: fl.PerSample


@fl.describe(z="each row's model score", w="model weights or their changes")
class FinalScores:
    """A client's part of the scores Xw, and of w(α)."""

    z: fl.PerScore
    w: fl.PerFeature


@dataclass(frozen=True)
class FinalTotals:
    """The totals of `FinalScores`."""

    z: fl.PerScore
    w: fl.PerFeature


@fl.describe("terms of the training objective")
class FinalGap:
    """A client's part of N(P(w) - D(α)), summed over the outputs."""

    gap: float


@dataclass(frozen=True)
class ShareOut:
    """Ask for the client's share of the weights, with noise; the total of `FinalGap`."""

    gap: float


@fl.describe("model weights with noise")
class NoisyWeights:
    """A client's share of the weights with its share of the noise, or their total: the model."""

    w: fl.PerFeature


# -- clients


def propose(
    message: Propose,
    block: Block,
    *,
    training: Any,
    w: Array,
    alpha: Array,
    reads: NDArray[np.int64],
    shares: Array,
) -> tuple[Certifying, Proposed]:
    """Begin to certify the model that is told, or the client's own `w`, by the duals of either."""
    w = w if message.w is None else message.w
    alpha = alpha if message.alpha is None else message.alpha
    state = Certifying(training, w, alpha, reads, shares)
    loss, y, weights, shape = _problem(state, block)
    read, factor = state.reads, 1.0 if weights is None else weights
    # outside its box a dual would certify more than there is: sums take a little for rounding
    inside = np.zeros_like(alpha)
    inside[:, read] = factor * losses.project(loss, alpha[:, read] / factor, y, shape=shape)
    return state, Proposed(w * shares, inside)


def _problem(state: Certifying, block: Block) -> tuple[int, Array, Array | None, float]:
    """Return loss, labels, weights of the samples that the client reads, and shape of the loss."""
    options = state.training.options
    y = targets(block, len(state.final))[:, state.reads]
    shape = losses.shape_of(options)
    return losses.loss_code(options.loss), y, block.weights_of(state.reads), shape


def _check_progress(state: Any, progress: int) -> None:
    if not isinstance(state, Certifying) or state.progress != progress:
        raise RefusedError(
            "A step towards the release of the model was asked for out of its order, after other "
            "calls: the gap that is told may be that of another model; run the algorithm as it is "
            "at the server."
        )


@fl.told_the_same
@fl.client_function
def score_model(
    state: Certifying, block: Block, message: FinalModel
) -> tuple[Certifying, FinalScores]:
    """Keep the model and its duals; send this client's part of Xw and of w(α).

    Raises
    ------
    RefusedError
        If the client has not proposed a model just before.
    """
    _check_progress(state, _PROPOSED)
    ridge = state.training.options.regularisation * state.training.samples
    state = replace(state, final=message.w, duals=message.alpha, progress=_SCORED)
    return state, FinalScores(scores(block.x, message.w), gather(block.x, message.alpha) / ridge)


@fl.told_the_same
@fl.client_function
def measure_gap(
    state: Certifying, block: Block, message: FinalTotals
) -> tuple[Certifying, FinalGap]:
    """Send this client's part of the gap: each sample and each feature counts once.

    Raises
    ------
    RefusedError
        If the client has not scored this model just before.
    """
    _check_progress(state, _SCORED)
    loss, y, weights, shape = _problem(state, block)
    z, alpha = message.z[:, state.reads], state.duals[:, state.reads]
    known: dict[str, Any] = {"weights": weights, "shape": shape}
    dual = losses.minus_conjugate(loss, alpha, y, **known, slack=losses.EDGE)
    ridge = 0.5 * state.training.options.regularisation * state.training.samples
    squares = (state.final**2 + message.w**2) @ state.owned
    gap = (losses.value(loss, z, y, **known) - dual).sum() + ridge * squares.sum()
    return replace(state, progress=_MEASURED), FinalGap(float(gap))


@fl.told_the_same
@fl.noise_function
@fl.client_function
def add_noise(
    state: Certifying, block: Block, message: ShareOut, key: fl.NoiseKey
) -> tuple[Certifying, NoisyWeights]:
    """Send this client's share of the weights with its share of the noise.

    Raises
    ------
    RefusedError
        If the gap of this model is not the last that was measured, or above what the noise was
        measured for.
    """
    _check_progress(state, _MEASURED)
    noise, gap = noise_of(state.training.noise), message.gap / state.training.samples
    if not gap <= noise.gap:  # nor for nan
        raise RefusedError(
            f"A model with a duality gap of {gap:.2e} was to be released, and the noise was "
            f"measured for {noise.gap:.2e} at most; run the algorithm as it is at the server."
        )
    return state, NoisyWeights(add_to_weights(state.final, state.owned, noise, key))


@fl.told_the_same
@fl.client_function
def keep_noisy(state: Certifying, block: Block, message: NoisyWeights) -> tuple[Any, fl.Ready]:
    """Keep the released weights in place of the client's own."""
    return fl.evolve(state.training, w=message.w), fl.Ready()


# -- server


def private(
    algorithm: fl.Algorithm,
    release: fl.Release,
    proposal: Callable[[Any, fl.Clients], tuple[Propose, str]],
    propose: fl.ClientFunction,
    origins: Mapping[str, fl.Origin],
    weights: Sequence[str] = ("w",),
) -> fl.Algorithm:
    """Return an algorithm with noise in the model that it releases.

    Parameters
    ----------
    proposal
        (server, clients) -> what is to be released, and the phase that it is of.
    propose
        The client function that `propose` is called in.
    origins
        Which totals `Propose` may hold, by "Propose.field".
    weights
        Fields by which the server reads the model where it has no noise: here it reads none.
    """
    init_client: Callable[..., Any] = algorithm.init_client
    steps = (
        *fl.each(fl.sums(propose), once=True),  # gaps along a line would tell how scores lie
        *fl.sums(score_model),
        *fl.sums(measure_gap, reveals=("gap",), opens=("gap",)),
        *fl.sums(add_noise, reveals=("w",), opens=("w",)),
    )
    sends = (
        *_without_weights(algorithm.disclosure.sends, weights),
        *fl.each(steps, together="all"),
        *fl.each(fl.asks(keep_noisy), renews=any(one.renews for one in algorithm.disclosure.sends)),
    )
    totals: dict[str, fl.Origin] = {
        **origins,
        "FinalModel.w": "Proposed.w",
        "FinalModel.alpha": "Proposed.alpha",
        "FinalTotals.z": "FinalScores.z",
        "FinalTotals.w": "FinalScores.w",
        "ShareOut.gap": "FinalGap.gap",
        "NoisyWeights.w": "NoisyWeights.w",
    }
    return replace(
        algorithm,
        init_client=partial(init_client, release=release),
        conclude=partial(conclude, release=release, proposal=proposal, propose=propose),
        states=(*algorithm.states, Certifying),
        disclosure=replace(algorithm.disclosure, sends=fl.opening(totals, sends)),
    )


def _without_weights(sends: Sequence[fl.Sends], weights: Sequence[str]) -> Iterator[fl.Sends]:
    """Yield what is sent but for weights that the server reads; what sends no more is left out."""
    for one in sends:
        reveals = tuple(name for name in one.reveals if name not in weights)
        if reveals or one.opens or not one.reveals:
            yield replace(one, reveals=reveals)


def find_gap(clients: fl.Clients, message: Propose, propose: fl.ClientFunction) -> Any:
    """Let the clients measure the gap of a model, N times; return the sealed total."""

    def of_all(fn: fl.ClientFunction, told: Any) -> Any:
        return clients.sum(fn, told)

    model = of_all(propose, message)
    found = of_all(score_model, FinalModel(model.w, model.alpha))
    return of_all(measure_gap, FinalTotals(found.z, found.w)).gap


def conclude(
    server: Any,
    clients: fl.Clients,
    rng: fl.RandomKey,
    *,
    release: fl.Release,
    proposal: Callable[[Any, fl.Clients], tuple[Propose, str]],
    propose: fl.ClientFunction,
) -> fl.FinalResult:
    """Certify the final model and reveal it with noise.

    Its certificate does not hold for the model with noise and is left out.

    Raises
    ------
    ConvergenceError
        If the model is too far from the optimum.
    """
    message, phase = proposal(server, clients)
    total = find_gap(clients, message, propose)
    # discloses the duality gap of the model, which clients open, too
    gap = float(clients.reveal(total)) / server.samples
    if not gap <= release.gap:
        raise ConvergenceError(
            f"The model is not released: its duality gap is {gap:.2e} and the noise was measured "
            f"for {release.gap:.2e} at most; raise experiment.rounds, or experiment.tolerance "
            "(which adds noise)."
        )
    noisy = clients.sum(add_noise, ShareOut(total))
    clients.ask(keep_noisy, NoisyWeights(noisy.w))
    # discloses the model with noise: the server may predict with it
    return fl.FinalResult(fl.RoundMetrics(phase=phase), clients.reveal(noisy.w))
