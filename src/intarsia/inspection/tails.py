"""Columns with a few values far above the rest, which a linear model follows badly as they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from scipy.sparse import issparse

from intarsia.core.block import Array, Block, ClientId
from intarsia.errors import listed

_FAR: Final = 8.0  # a normal column has 1.7, an exponential one 3.6, one whose logarithm is normal
# with a deviation of 1, such as many amounts, 6.4
_LEAST_ROWS: Final = 50
_MOST_ROWS: Final = 20_000  # that are looked at
_MOST_COLUMNS: Final = 500  # of a table of measurements; pixels and words are not looked at


def has_long_tail(values: Array) -> bool:
    """Return whether amounts, (rows,), have a few values far above the rest; NaN counts for none.

    The way from the median to the 99th hundredth is then more than eight times that between the
    quartiles, and no value is below 0, so that log(1 + value) exists.
    """
    known = values[~np.isnan(values)]
    if len(known) < _LEAST_ROWS or known.min() < 0:
        return False
    low, middle, high, far = np.quantile(known, (0.25, 0.5, 0.75, 0.99))
    return bool(high > low and far - middle > _FAR * (high - low))


def notes_on_tails(blocks: Mapping[ClientId, Block]) -> tuple[str, ...]:
    """Return a note that names the columns of clients' tables with a long tail."""
    found: dict[str, None] = {}
    for block in blocks.values():
        if issparse(block.x) or len(block.features) > _MOST_COLUMNS:
            continue
        rows = np.asarray(block.x[:_MOST_ROWS], np.float64)
        some = (name for at, name in enumerate(block.features) if has_long_tail(rows[:, at]))
        found |= dict.fromkeys(some)
    if not found:
        return ()
    have = "has" if len(found) == 1 else "have"
    return (
        f"{listed(found, 5)} {have} a few values far above the rest. A linear model may follow "
        "the logarithm better: write log(1 + value) into the table, and compare the test scores.",
    )
