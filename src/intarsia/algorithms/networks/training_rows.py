"""A block's values as a full matrix, and its labelled rows: what learners by gradients train on."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from intarsia.core.block import INTERCEPT, Array, Block, stored
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


def check_whole(block: Block) -> None:
    """Refuse a block in which a value is missing.

    Raises
    ------
    TableError
        If one is.
    """
    missing = int(np.isnan(stored(block.x)).sum())
    if missing:
        raise TableError(
            f"{several(missing, 'value is', 'values are')} missing, and the model "
            "takes none: set preprocessing.standardise = true, which puts the mean in their place."
        )


def dense(block: Block, kind: DTypeLike = np.float64) -> NDArray[Any]:
    """Return a block's values, (rows, features); of a sparse block a copy of this type.

    Raises
    ------
    TableError
        If a value is missing.
    """
    check_whole(block)
    # entries take their type first: a table of 8 bytes for each would be larger than all else
    return np.asarray(block.x.astype(kind).toarray() if block.sparse else block.x, kind)


def blocks_of_rows(block: Block) -> Iterator[Block]:
    """Return all rows of a block, some at a time if their values are very many."""
    rows, columns = block.shape
    if rows * columns <= _AT_ONCE:
        yield block
        return
    step = max(1, _AT_ONCE // columns)
    for start in range(0, rows, step):
        yield block.take(np.arange(start, min(start + step, rows)))


_AT_ONCE = 1 << 24  # values


def is_labelled(block: Block) -> NDArray[np.bool_]:
    """Return which rows have a label, (rows,)."""
    return np.zeros(block.shape[0], bool) if block.y is None else ~np.isnan(block.y)


def labelled_rows(block: Block, kind: DTypeLike = np.float64) -> tuple[NDArray[Any], Array]:
    """Return the values, (labelled rows, features), and the labels, (labelled rows,); to read."""
    held = is_labelled(block)
    x = dense(block, kind)
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
