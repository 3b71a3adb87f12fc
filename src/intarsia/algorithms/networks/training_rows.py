"""A block's values as a full matrix, and its labelled rows: what learners by gradients train on."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from intarsia.core.block import INTERCEPT, Array, Block
from intarsia.core.client_functions import RandomKey
from intarsia.core.feature_blocks import split_numbers
from intarsia.errors import TableError, several


@lru_cache(maxsize=1024)
def columns(features: tuple[str, ...]) -> NDArray[np.intp]:
    """Return the columns of a block in the order of their names, without the constant one.

    Numbers in a name go by their size, "x2" before "x10", so that rows may be pictures.
    """
    keys = {place: split_numbers(name) for place, name in enumerate(features) if name != INTERCEPT}
    return np.array(sorted(keys, key=keys.__getitem__), np.intp)


def dense(block: Block) -> Array:
    """Return a block's values, (rows, features); of a sparse block a copy, 8 bytes an entry.

    Raises
    ------
    TableError
        If a value is missing.
    """
    x: Array = np.asarray(block.x.toarray() if block.sparse else block.x, np.float64)
    if np.isnan(x).any():
        raise TableError(
            f"{several(int(np.isnan(x).sum()), 'value is', 'values are')} missing, and the model "
            "takes none: set preprocessing.standardise = true, which puts the mean in their place."
        )
    return x


def is_labelled(block: Block) -> NDArray[np.bool_]:
    """Return which rows have a label, (rows,)."""
    return np.zeros(block.shape[0], bool) if block.y is None else ~np.isnan(block.y)


def labelled_rows(block: Block) -> tuple[Array, Array]:
    """Return the values, (labelled rows, features), and the labels, (labelled rows,); to read."""
    held = is_labelled(block)
    x = dense(block)
    x = x if held.all() else x[held]
    return x, np.zeros(0) if block.y is None else block.y[held]


def held_out_rows(
    block: Block, share: float, rng: RandomKey, *, least: int = 1
) -> NDArray[np.bool_]:
    """Return which labelled rows are for validation, (labelled rows,).

    A share of them, drawn at random; one at least, and one stays, where there are two. Of four
    times as many rows as `least`, or more, there are at least as many.
    """
    rows = int(is_labelled(block).sum())
    found = np.zeros(rows, bool)
    if share and rows > 1:
        least = least if rows >= 4 * least else 1
        count = min(max(round(share * rows), least), rows - 1)
        found[rng.fold_in("validation").generator().permutation(rows)[:count]] = True
    return found
