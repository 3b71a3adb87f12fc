"""Rows with a level of a category that training did not have: they count as "other", or lack one.

New tables of `predict` are read so, and test rows are evaluated so: what a model has of a level
that no training row had is what it began with, for networks random weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from intarsia.core.block import RARE, Array, Block
from intarsia.core.memory import made_like, slices

Positions = NDArray[np.intp]


def levels_without_rows(block: Block) -> Positions:
    """Return the positions of levels of categories that no row has; values may be standardised."""
    found = [columns for _, columns in _categories(block)]
    if not found:
        return np.zeros(0, np.intp)
    every = np.concatenate(found)
    own = block.x[:, every]
    there = own > 0  # absent levels are 0, or below it less the mean; a missing one is NaN, or 0
    has = there.sum(axis=0) if block.sparse else there.any(axis=0)
    lacking: Positions = every[~np.asarray(has, bool).ravel()]
    return lacking


def _categories(block: Block) -> list[tuple[str, Positions]]:
    """Return each category of a block with the positions of its levels, in their order."""
    place = {name: at for at, name in enumerate(block.features)}
    return [
        (column, np.array([place[f"{column}={level}"] for level in own], np.intp))
        for column, own in block.levels.items()
    ]


def rows_of_untrained(
    block: Block, trained: NDArray[np.bool_]
) -> Iterator[tuple[str, Positions, int, Positions]]:
    """Yield each category some of whose levels training had, and the rows that have another.

    With the positions of its levels, and that of the level which these rows count as: `RARE` where
    training had it, or -1, as they then lack one.
    """
    for column, levels in _categories(block):
        known = trained[levels]
        if known.all() or not known.any():
            continue
        own = block.x[:, levels[~known]] > 0
        rows = np.flatnonzero(np.asarray(own.sum(axis=1)).ravel() > 0)
        if len(rows):
            names = block.levels[column]
            rare = int(levels[names.index(RARE)]) if RARE in names else -1
            yield column, levels, rare if rare >= 0 and trained[rare] else -1, rows


def without_untrained(
    block: Block, trained: NDArray[np.bool_], *, missing: float = np.nan, rare: Array | None = None
) -> Block:
    """Return a block whose rows have no level of a category that training did not have.

    They have `RARE`, where training had it, or lack one, as new tables of `predict` do. `trained`
    is (features,), `missing` a missing value of levels that are centred, and `rare` (features,) the
    value of a level that a row has; None: 1.
    """
    x = block.x
    for _, levels, target, rows in rows_of_untrained(block, trained):
        x = x.copy() if x is block.x else x
        some = np.isin(np.arange(block.shape[0]), rows)
        unknown, wide = levels[~trained[levels]], bool(block.scaled_only[levels[0]])
        value = 1.0 if rare is None else float(rare[target])
        if target < 0:
            put(x, some, levels, 0.0 if wide else missing)
        elif wide and block.sparse:  # which stores the one level of a row
            own = np.repeat(some, np.diff(x.indptr)) & np.isin(x.indices, unknown)
            x.data[own], x.indices[own] = value, target
            x.has_sorted_indices = False
            x.sort_indices()
        else:
            put(x, some, unknown, 0.0)
            put(x, some, np.array([target]), value)
    return block if x is block.x else replace(block, x=x, checked=(x, block.samples))


def put(x: Any, rows: NDArray[np.bool_], columns: Positions, value: float = 0.0) -> None:
    """Write a value over those of some rows, (samples,), and columns, by position, in place."""
    if isinstance(x, csr_array):
        own = np.repeat(rows, np.diff(x.indptr)) & np.isin(x.indices, columns)
        x.data[own] = value
    else:
        x[np.ix_(rows, columns)] = value


def as_learnt_alone(train: Block, block: Block) -> Block:
    """Return a client's prepared block for a network that learns from its own training rows alone.

    What the others' rows say of a level that none of these has is no longer in it.
    """
    lacking = levels_without_rows(train)
    if not len(lacking):
        return block
    trained = np.ones(block.shape[1], bool)
    trained[lacking] = False
    highest = train.x.max(axis=0)
    rare = np.asarray(highest.toarray() if train.sparse else highest).ravel()
    found = without_untrained(block, trained, missing=0.0, rare=rare)
    x = found.x.copy()
    put(x, np.ones(block.shape[0], bool), lacking, 0.0)
    found = replace(found, x=x, checked=(x, block.samples))
    means, without = np.asarray(train.x.mean(axis=0)).ravel(), train.without_level()
    before, after = block.without_level(), found.without_level()
    for (levels, had), (_, has), (_, lacked) in zip(before, after, without, strict=True):
        own = np.flatnonzero(has & ~had)
        if len(own) and lacked.mean() < _FEW:
            found = with_levels(found, own, levels, means[levels] * trained[levels])
    return found


_FEW = 1e-3  # of the training rows that lack a category of many levels: none but errors


def with_levels(
    block: Block, rows: Positions, levels: Positions, means: Array, share: Array | None = None
) -> Block:
    """Return a block with values where rows, ascending, have no level of a category.

    They are `means` (levels,) times each row's `share` (rows,), by default 1. An array that is not
    sparse is written over.
    """
    share = np.ones(len(rows)) if share is None else share
    if not block.sparse:
        block.x[np.ix_(rows, levels)] = np.outer(share, means)
        return block
    order = np.argsort(levels)
    order = order[means[order] != 0]
    levels, means = levels[order], means[order]
    x, own = block.x, block.x[rows]
    kept = ~np.isin(own.indices, levels)  # an entry of a level was set to 0 where a row has none
    at = np.repeat(np.arange(len(rows)), np.diff(own.indptr))[kept]
    values, where = own.data[kept], own.indices[kept]
    few = np.bincount(at, minlength=len(rows))
    sizes = np.diff(x.indptr).astype(np.int64)
    sizes[rows] = few + len(levels)
    ends = np.concatenate([[0], np.cumsum(sizes)])
    # such rows have many times what others have: they are written once, where they are to lie
    data, columns = (made_like(x, (ends[-1],), one.dtype) for one in (x.data, x.indices))
    for first, stop in zip([0, *(rows + 1).tolist()], [*rows.tolist(), len(sizes)], strict=True):
        old, new = slice(x.indptr[first], x.indptr[stop]), slice(ends[first], ends[stop])
        data[new], columns[new] = x.data[old], x.indices[old]
    starts = np.cumsum(few) - few
    for some in slices(len(rows), int(sizes[rows].sum())):
        here = slice(*np.searchsorted(at, (some.start, some.stop)).tolist())
        row, size = at[here] - some.start, sizes[rows[some]]
        begin = np.cumsum(size) - size
        # a row's other entries stand between its levels, in the order of their columns
        place = begin[row] + np.arange(here.start, here.stop) - starts[at[here]]
        place += np.searchsorted(levels, where[here])
        found = np.empty(int(size.sum())), np.empty(int(size.sum()), columns.dtype)
        of_levels = np.ones(len(found[0]), bool)
        of_levels[place] = False
        found[0][place], found[1][place] = values[here], where[here]
        found[0][of_levels] = np.outer(share[some], means).ravel()
        found[1][of_levels] = np.tile(levels, len(size))
        target = np.repeat(ends[rows[some]] - begin, size) + np.arange(len(found[0]))
        data[target], columns[target] = found
    kind = x.indptr.dtype if ends[-1] <= np.iinfo(x.indptr.dtype).max else np.int64
    whole = csr_array((data, columns, ends.astype(kind)), block.shape)
    return replace(block, x=whole, checked=(whole, block.samples))
