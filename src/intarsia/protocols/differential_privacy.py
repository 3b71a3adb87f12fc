"""Scale down the rows of samples whose norm is above a bound, the same at all their owners.

The squared norm of a row is summed over the owners of its sample, each value counted once; only
they open it. Where copies of a value differ, the mean of their squares is counted, which is at
least the square of the mean that training uses. A sum may be off by the rounding of its mode, so
that rows are brought to a little less than the bound. The intercept is a value of the row like any
other: scaling the whole row leaves the sign of its score as it is.

The noise of a release comes from the client's `NoiseKey`: a secret of the client that neither the
server nor the run's seed tells, and that no other release has. A run that was stopped and goes on
releases the same again, not a second sample around the same model. Normal numbers come from
SHAKE-256 by the inverse of their distribution: 52 bits each, so that none is beyond 8.2 deviations
(a tail of 2e-16).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from scipy.sparse import csr_array
from scipy.special import ndtri

from intarsia import core as fl
from intarsia.core.block import Array, Block
from intarsia.errors import RefusedError, SealedError
from intarsia.protocols.preprocessing.preparation import Preparation

_function = partial(fl.client_function, protocol="differential_privacy")

SLACK = 2.0**-17  # how far off a squared norm may be, over the squared bound


@dataclass(frozen=True)
class MeasureRows:
    """Ask for the squared norms of the client's parts of its rows."""


@fl.describe("each row's squared length")
class RowSquares:
    """Squared norms of the client's parts of its rows, each value counted once."""

    squares: fl.PerSample  # (1, samples)


@dataclass(frozen=True)
class RowTotals:
    """The squared norms of whole rows, for the owners, and the bound of the norm."""

    squares: fl.PerSample
    clip: float


def clip_rows(clients: fl.Clients, clip: float) -> None:
    """Tell every client how far to scale its rows; `clipped` does it."""
    squares = clients.sum(measure_rows, MeasureRows())
    clients.ask(settle_rows, RowTotals(squares.squares, clip))


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
    state: Preparation, block: Block, message: MeasureRows, rng: fl.RandomKey
) -> tuple[Preparation, RowSquares]:
    """Send the squared norms of this client's parts of its rows."""
    once, x = block.counted_once().x, block.x
    products = once.multiply(x) if isinstance(once, csr_array) else once * x
    return state, RowSquares(np.asarray(products.sum(axis=1), np.float64)[None, :])


@_function
def settle_rows(
    state: Preparation, block: Block, message: RowTotals, rng: fl.RandomKey
) -> tuple[Preparation, fl.Ready]:
    """Keep by what each row is scaled."""
    most = message.clip**2
    total: Array = message.squares[0] + SLACK * most
    scale = np.sqrt(np.minimum(1.0, most / np.maximum(total, most)))
    return replace(state, row_scale=scale, clip=message.clip), fl.Ready()


SENDS = fl.opening(
    {"RowTotals.squares": "RowSquares.squares"}, (*fl.sums(measure_rows), *fl.asks(settle_rows))
)


def draw_noise(release: fl.Release, key: fl.NoiseKey, shape: tuple[int, ...]) -> Array:
    """Return standard normal numbers for a release.

    Raises
    ------
    SealedError
        If the client has released as often as its noise was measured for.
    """
    if key.number > release.releases:
        raise SealedError(
            f"A release with noise was asked for after the {release.releases} that epsilon and "
            "delta were measured for; one more would tell more than they promise: start a new run."
        )
    return normal_numbers(key.secret.stream(8 * int(np.prod(shape)))).reshape(shape)


def noise_of(release: fl.Release | None) -> fl.Release:
    """Return with what noise a client releases; RefusedError in a run without noise."""
    if release is None:
        raise RefusedError(
            "The site was asked for a share with noise in a run that has none; run the algorithm "
            "as it is at the server."
        )
    return release


def clip_change(change: Array, clip: float) -> Array:
    """Return a change, scaled down to a norm of at most `clip`; zeros for one that is not finite.

    Such a one cannot be clipped or added up, and that it is one would be told without noise.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        norm = float(np.linalg.norm(change))
    if not math.isfinite(norm):
        return np.zeros_like(change)
    return change * min(1.0, clip / max(norm, 1e-300))


def normal_numbers(stream: bytes) -> Array:
    """Return a standard normal number for every 8 random bytes."""
    words = np.frombuffer(stream, "<u8")
    # in the middle of the 2^52 steps between 0 and 1: neither end, which would be infinite
    normal: Array = ndtri(((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52)
    return normal


def add_to_weights(w: Array, feature_share: Array, release: fl.Release, key: fl.NoiseKey) -> Array:
    """Return a client's share of the weights with its share of the noise, (outputs, features).

    Parameters
    ----------
    w
        (outputs, features) the weights, equal at all owners.
    feature_share
        (features,) 1 / owners.
    """
    normal = draw_noise(release, key, w.shape)
    return w * feature_share + release.deviation * np.sqrt(feature_share) * normal
