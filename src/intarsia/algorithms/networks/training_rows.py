"""A block's values as a full matrix, and its labelled rows: what learners by gradients train on."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import DTypeLike, NDArray

from intarsia.core.block import INTERCEPT, Array, Block, Values, stored
from intarsia.core.client_functions import RandomKey
from intarsia.core.feature_blocks import split_numbers
from intarsia.errors import TableError, several
from intarsia.maths.training.sparse_rows import Rows, SparseRows
from intarsia.maths.training.torch_import import torch


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


def dense(block: Block) -> Array:
    """Return a block's values, (rows, features).

    Raises
    ------
    TableError
        If a value is missing.
    """
    check_whole(block)
    return np.asarray(block.x.toarray() if block.sparse else block.x)


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


def labels_of(block: Block) -> Array:
    """Return the labels of the rows that have one, (labelled rows,)."""
    return np.zeros(0) if block.y is None else block.y[is_labelled(block)]


def labelled_rows(
    block: Block, kind: DTypeLike, order: NDArray[np.intp] | None = None
) -> tuple[Rows, Array]:
    """Return the rows that have a label, (labelled rows, features), and their labels; to read.

    `order` are the columns, None: all as they are. Rows of a sparse block stay sparse.
    """
    check_whole(block)
    held = is_labelled(block)
    x = block.x if held.all() else block.x[held]
    return rows_of(x, kind, order), labels_of(block)


def rows_of(x: Values, kind: DTypeLike, order: NDArray[np.intp] | None = None) -> Rows:
    """Return values, (rows, features), as learners take them: in this type and order."""
    if order is not None and not np.array_equal(order, np.arange(x.shape[1])):
        x = x[:, _as_slice(order)]
    if not isinstance(x, np.ndarray):
        return SparseRows(x.astype(kind))
    return torch.from_numpy(np.ascontiguousarray(x, kind))


def _as_slice(places: NDArray[np.intp]) -> NDArray[np.intp] | slice:
    """Return consecutive places as a slice, which copies nothing."""
    alike = len(places) and (np.diff(places) == 1).all()
    return slice(int(places[0]), int(places[-1]) + 1) if alike else places


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
