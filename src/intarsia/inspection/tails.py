"""Columns with a few values far from the rest, which a linear model follows badly as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import numpy as np
from scipy.sparse import issparse

from intarsia.core.block import Array, Block, ClientId
from intarsia.errors import listed

_FAR: Final = 8.0  # a normal column has 1.7, an exponential one 3.6, one whose logarithm is normal
# with a deviation of 1, such as many amounts, 6.4
_LEAST_ROWS: Final = 50
_MOST_ROWS: Final = 20_000  # that are looked at
_MOST_COLUMNS: Final = 500  # of a table of measurements; pixels and words are not looked at


Tail = Literal["", "above", "away"]


def tail_of(values: Array) -> Tail:
    """Return where numbers, (rows,), have a few values far from the rest; NaN counts for none.

    The way from the median to the 99th hundredth, or to the first, is then more than eight times
    that between the quartiles: "above" where no value is below 0, so that log(1 + value) exists,
    else "away".
    """
    known = values[~np.isnan(values)]
    if len(known) < _LEAST_ROWS:
        return ""
    near, low, middle, high, far = np.quantile(known, (0.01, 0.25, 0.5, 0.75, 0.99))
    if not (high > low and max(far - middle, middle - near) > _FAR * (high - low)):
        return ""
    if known.min() < 0:
        return "away"
    return "above" if far - middle > _FAR * (high - low) else ""


def notes_on_tails(blocks: Mapping[ClientId, Block]) -> tuple[str, ...]:
    """Return a note that names the columns of clients' tables with a long tail."""
    found: dict[str, Tail] = {}
    for block in blocks.values():
        if issparse(block.x) or len(block.features) > _MOST_COLUMNS:
            continue
        rows = np.asarray(block.x[:_MOST_ROWS], np.float64)
        tails = {name: tail_of(rows[:, at]) for at, name in enumerate(block.features)}
        found |= {name: tail for name, tail in tails.items() if tail}
    above, away = ([name for name in found if found[name] == one] for one in ("above", "away"))
    notes = []
    if above:
        notes.append(
            f"{listed(above, 5)} {_have(above)} a few values far above the rest. A linear model "
            "may follow the logarithm better: write log(1 + value) into the table, and compare the "
            "test scores."
        )
    if away:
        notes.append(
            f"{listed(away, 5)} {_have(away)} a few values far from the rest, some of them "
            "negative. A linear model may follow them better if the table has them cut at a least "
            "and a most value, or sign(value) · log(1 + |value|) instead; compare the test scores."
        )
    return tuple(notes)


def _have(names: Sequence[str]) -> str:
    return "has" if len(names) == 1 else "have"
