"""Scale down the rows of samples whose norm is above a bound, the same at all their owners.

The squared norm of a row is summed over the owners of its sample, each value counted once; only
they open it. Where copies of a value differ, the mean of their squares is counted, which is at
least the square of the mean that training uses. A sum may be off by the rounding of its mode, so
that rows are brought to a little less than the bound. The intercept is a value of the row like any
other: scaling the whole row leaves the sign of its score as it is.

Release a trained model with noise: how private runs of HyFDCA and CoCoA end.

1. the model is certified; one that is farther from the optimum than the noise was measured for is
   not released
2. each client adds its share of the noise to its share of the weights: owners of a feature split
   the variance; the server gets the sealed total, and no total without the noise
3. the clients keep the weights with the noise, so that every later score is that of the released
   model; the server reads the same weights

The owners of a feature know its weight without the noise, from training. With the server they could
take the noise of their own features away; the weights of other features stay hidden.

A client's share of the noise that makes a release differentially private.

Each client draws a secret from the operating system's random numbers when its state is made, and
keeps it with that state. The noise of its n-th release is a function of the secret and n: a run
that was stopped and goes on releases the same again, not a second sample around the same model. The
server does not know the secret, and the run's seed says nothing about it; two runs with one seed
differ. Normal numbers come from SHAKE-256 by the inverse of their distribution: 52 bits each, so
that none is beyond 8.2 deviations (a tail of 2e-16).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from scipy.sparse import csr_array
from scipy.special import ndtri

from intarsia.core.algorithm import (
    ClientFunction,
    Clients,
    FinalResult,
    PerFeature,
    PerSample,
    RandomKey,
    Ready,
    Release,
    RoundMetrics,
    asks,
    client_function,
    sums,
)
from intarsia.core.block import Array, Block
from intarsia.errors import ConvergenceError, SealedError
from intarsia.protocols.preprocessing import Preparation

_function = partial(client_function, protocol="differential_privacy")

SLACK = 2.0**-17  # how far off a squared norm may be, over the squared bound


@dataclass(frozen=True)
class MeasureRows:
    """Ask for the squared norms of the client's parts of its rows."""


@dataclass(frozen=True)
class RowSquares:
    """Squared norms of the client's parts of its rows, each value counted once."""

    squares: PerSample  # (1, samples)


@dataclass(frozen=True)
class RowTotals:
    """The squared norms of whole rows, for the owners, and the bound of the norm."""

    squares: PerSample
    clip: float


def clip_rows(clients: Clients, clip: float) -> None:
    """Tell every client how far to scale its rows; `clipped` does it."""
    squares = clients.sum(measure_rows, dict.fromkeys(clients.ids, MeasureRows()))
    clients.ask(settle_rows, dict.fromkeys(clients.ids, RowTotals(squares.squares, clip)))


def clipped(state: Preparation, part: str, block: Block) -> Block:
    """Return a client's block of prepared values, its training rows scaled down."""
    if part != "train" or state.row_scale is None or (state.row_scale == 1).all():
        return block
    if isinstance(block.x, csr_array):
        x = block.x.copy()
        x.data = x.data * np.repeat(state.row_scale, np.diff(x.indptr))
        return replace(block, x=x)
    return replace(block, x=block.x * state.row_scale[:, None])


@_function
def measure_rows(
    state: Preparation, block: Block, message: MeasureRows, rng: RandomKey
) -> tuple[Preparation, RowSquares]:
    """Send the squared norms of this client's parts of its rows."""
    once, x = block.counted_once().x, block.x
    products = once.multiply(x) if isinstance(once, csr_array) else once * x
    return state, RowSquares(np.asarray(products.sum(axis=1), np.float64)[None, :])


@_function
def settle_rows(
    state: Preparation, block: Block, message: RowTotals, rng: RandomKey
) -> tuple[Preparation, Ready]:
    """Keep by what each row is scaled."""
    most = message.clip**2
    total: Array = message.squares[0] + SLACK * most
    scale = np.sqrt(np.minimum(1.0, most / np.maximum(total, most)))
    return replace(state, row_scale=scale), Ready()


SENDS = (*sums(measure_rows), *asks(settle_rows))


_BYTES = 32  # of a secret


@dataclass(frozen=True)
class NoiseShare:
    """What a client adds noise by; it never leaves the client."""

    secret: bytes
    deviation: float  # of the noise of all owners of a value together
    releases: int  # how many times this client may add noise
    spent: int = 0  # how many times it has


def draw_share(
    deviation: float, releases: int, source: Callable[[int], bytes] = os.urandom
) -> NoiseShare:
    """Return a share with a fresh secret; `source` gives so many random bytes."""
    return NoiseShare(source(_BYTES), deviation, releases)


def spend(share: NoiseShare, shape: tuple[int, ...]) -> tuple[NoiseShare, Array]:
    """Return standard normal numbers for one release, and the share with that release counted.

    Raises
    ------
    SealedError
        If the client has released as often as its noise was measured for.
    """
    if share.spent >= share.releases:
        raise SealedError(
            f"A release with noise was asked for after the {share.releases} that epsilon and delta "
            "were measured for; one more would tell more than they promise: start a new run."
        )
    count = int(np.prod(shape))
    label = share.secret + share.spent.to_bytes(8, "little")
    normal = normal_numbers(hashlib.shake_256(label).digest(8 * count))
    return replace(share, spent=share.spent + 1), normal.reshape(shape)


def normal_numbers(stream: bytes) -> Array:
    """Return a standard normal number for every 8 random bytes."""
    words = np.frombuffer(stream, "<u8")
    # in the middle of the 2^52 steps between 0 and 1: neither end, which would be infinite
    normal: Array = ndtri(((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52)
    return normal


@dataclass(frozen=True)
class ShareOut:
    """Ask for the client's share of the weights, with noise."""


@dataclass(frozen=True)
class NoisyWeights:
    """A client's share of the weights with its share of the noise, or their total: the model."""

    w: PerFeature


def conclude(
    info: RoundMetrics,
    clients: Clients,
    release: Release,
    *,
    add_noise: ClientFunction,
    keep_noisy: ClientFunction,
) -> FinalResult:
    """Reveal the certified model with noise; its certificate does not hold for it and is left out.

    Raises
    ------
    ConvergenceError
        If the model is too far from the optimum.
    """
    assert info.primal is not None
    assert info.dual is not None
    gap = info.primal - info.dual
    if not gap <= release.gap:
        raise ConvergenceError(
            f"The model is not released: its duality gap is {gap:.2e} and the noise was measured "
            f"for {release.gap:.2e} at most; raise experiment.rounds, or experiment.tolerance "
            "(which adds noise)."
        )
    noisy = clients.sum(add_noise, dict.fromkeys(clients.ids, ShareOut()))
    clients.ask(keep_noisy, dict.fromkeys(clients.ids, NoisyWeights(noisy.w)))
    # discloses the model with noise: the server may predict with it
    return FinalResult(RoundMetrics(phase=info.phase), clients.reveal(noisy.w))


def with_noise(w: Array, feature_share: Array, noise: NoiseShare) -> tuple[NoiseShare, Array]:
    """Return a client's share of weights and noise, (outputs, features), and the spent share.

    Parameters
    ----------
    w
        (outputs, features) the weights, equal at all owners.
    feature_share
        (features,) 1 / owners.
    noise
        The client's share.
    """
    spent, normal = spend(noise, w.shape)
    return spent, w * feature_share + noise.deviation * np.sqrt(feature_share) * normal
