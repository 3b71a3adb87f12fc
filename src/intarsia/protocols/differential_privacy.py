"""Scale down the rows of samples whose norm is above a bound, the same at all their owners.

The squared norm of a row is summed over the owners of its sample, each value counted once; only
they open it. Where copies of a value differ, the mean of their squares is counted, which is at
least the square of the mean that training uses. A sum may be off by the rounding of its mode, so
that rows are brought to a little less than the bound. The intercept is a value of the row like any
other: scaling the whole row leaves the sign of its score as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.sparse import csr_array

from intarsia.core.algorithm import Clients, PerSample, RandomKey, Ready, client_function
from intarsia.core.block import Array, Block
from intarsia.protocols.preprocessing import Preparation

__all__ = ["FUNCTIONS", "SLACK", "clip_rows", "clipped"]

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


@client_function
def measure_rows(
    state: Preparation, block: Block, message: MeasureRows, rng: RandomKey
) -> tuple[Preparation, RowSquares]:
    """Send the squared norms of this client's parts of its rows."""
    once, x = block.counted_once().x, block.x
    products = once.multiply(x) if isinstance(once, csr_array) else once * x
    return state, RowSquares(np.asarray(products.sum(axis=1), np.float64)[None, :])


@client_function
def settle_rows(
    state: Preparation, block: Block, message: RowTotals, rng: RandomKey
) -> tuple[Preparation, Ready]:
    """Keep by what each row is scaled."""
    most = message.clip**2
    total: Array = message.squares[0] + SLACK * most
    scale = np.sqrt(np.minimum(1.0, most / np.maximum(total, most)))
    return replace(state, row_scale=scale), Ready()


FUNCTIONS = (measure_rows, settle_rows)
