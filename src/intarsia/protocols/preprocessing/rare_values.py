"""Have what few training rows of a client have train as what most have, or as a missing value.

λ w = Σ_i α_i x_i for a linear model: the weight of a column that differs in one row is that row's
α, whose sign is its label. So where fewer training rows than `Block.least_rows`

- have a level of a category, that counts as missing;
- lack a level then, and nothing stands for the mean there, they count as having the commonest
  one: the constant's weight less those of the levels is Σ α over the rows that lack one;
- have another number than all others, it counts as the others' number;
- have a number at all, of a column that nobody else has, it counts as missing.

Where another client has a row's value, too, it counts as missing here, and as the other's there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack

from intarsia.core.block import Array, Block, ClientId, taken
from intarsia.core.memory import pieces
from intarsia.core.schema import Schema
from intarsia.protocols.preprocessing import few_values
from intarsia.protocols.preprocessing.preparation import FEWEST, Positions
from intarsia.protocols.untrained_levels import put, with_levels

Rows = NDArray[np.bool_]
_TURNS = 10  # after which columns that still change are left out
_SAMPLE = 64  # rows that tell of most columns that their numbers are many


def without_rare(block: Block, client: ClientId, schema: Schema, *, standardise: bool) -> Block:
    """Return a client's block to train on, without copies that are few and values that are rare.

    Leaving the ones out may make others rare, and the other way round.
    """
    turn = 0
    while True:
        told = few_values.without_few(block, client, schema)
        block = _without_rare(told, client, schema, standardise=standardise, settled=turn >= _TURNS)
        if block is told:
            return told
        turn += 1


def with_one_number(block: Block, trained: Block) -> tuple[str, ...]:
    """Return the columns of several numbers in a block, and of one or none in what trains of it."""
    if trained.x is block.x:
        return ()
    levels = {f"{column}={level}" for column, own in block.levels.items() for level in own}
    changed = np.flatnonzero((_sizes(block) != _sizes(trained)).any(axis=0))

    def several(one: Block, column: int) -> bool:
        known = _column(one, column)
        known = known[~np.isnan(known)]
        return bool(len(known) and (known != known[0]).any())

    return tuple(
        name
        for column in changed.tolist()
        if (name := block.features[column]) not in levels
        if several(block, column) and not several(trained, column)
    )


def _sizes(block: Block) -> Array:
    """Return the count of numbers other than 0, and their sum, (2, features)."""
    found = np.zeros((2, block.shape[1]))
    for _, x in pieces(block.x):
        if block.sparse:
            known = np.nan_to_num(x.data, nan=0.0)
            found[0] += np.bincount(x.indices[known != 0], minlength=block.shape[1])
            found[1] += np.bincount(x.indices, known, minlength=block.shape[1])
        else:
            known = np.nan_to_num(np.asarray(x, np.float64), nan=0.0)
            found += [(known != 0).sum(axis=0), known.sum(axis=0)]
    return found


def _without_rare(
    block: Block, client: ClientId, schema: Schema, *, standardise: bool, settled: bool
) -> Block:
    """Return a block without what is rare, over all rows and over those that another client lacks.

    Others with a column open sums over it, and take off what they know: their own rows. `settled`:
    columns that still change have no values more, as what most rows have differs by who lacks them.
    """
    least = block.least_rows
    if least is None or not (least > 1).any() or block.shape[0] < FEWEST:
        return block
    copied = _Copied(client, schema)
    block = _of_all_rows(block, least, copied, standardise=standardise)
    for lacked, columns in few_values.lacked_by_others(client, schema):
        rows, told = np.flatnonzero(lacked), np.where(columns, least, 0)
        if len(rows) < FEWEST or not (told > 1).any():
            continue
        some = block.take(rows)
        found = _of_all_rows(some, told, copied.among(rows), standardise=standardise)
        if found is not some:
            block = _emptied(block, some, found) if settled else _put_back(block, rows, found.x)
    return block


def _emptied(block: Block, some: Block, found: Block) -> Block:
    """Return a block without the values of columns in which some rows differ from others."""
    every = np.arange(block.shape[1])
    own, other = (_dense(one, one.x, slice(0, None), every, zeros=False) for one in (some, found))
    columns = np.flatnonzero(((own != other) & ~(np.isnan(own) & np.isnan(other))).any(axis=0))
    if block.sparse and block.indicators is None:
        x = taken(block.x, None, None)
        x.data[np.isin(x.indices, columns)] = 0.0
        return replace(block, x=x, checked=(x, block.samples))
    rows = np.ones(block.shape[0], bool)
    return few_values.without_values(block, {"": columns.tolist()}, {"": rows})


def _of_all_rows(block: Block, least: Positions, copied: _Copied, *, standardise: bool) -> Block:
    """Return a block without what is rare over all of its rows."""
    place = {name: at for at, name in enumerate(block.features)}
    levels = {
        column: np.array([place[f"{column}={level}"] for level in own], np.intp)
        for column, own in block.levels.items()
    }
    block = _without_rare_levels(block, levels, least, copied, standardise=standardise)
    is_level = np.zeros(block.shape[1], bool)
    for own in levels.values():
        is_level[own] = True
    numbers = np.flatnonzero(~is_level & (least > 1))
    return _without_rare_numbers(block, numbers, least[numbers], copied, standardise=standardise)


def _put_back(block: Block, rows: Positions, x: Any) -> Block:
    """Return a block with other values in some rows, by position."""
    if not block.sparse:
        whole = taken(block.x, None, None)
        whole[rows] = x
    else:
        order = np.arange(block.shape[0])
        order[rows] = block.shape[0] + np.arange(len(rows))
        whole = taken(csr_array(vstack([block.x, x], format="csr")), order, None)
    return replace(block, x=whole, checked=(whole, block.samples))


class _Copied:
    """Which rows of a client's columns others have, too; looked up where values are rare."""

    def __init__(self, client: ClientId, schema: Schema) -> None:
        self._client, self._schema = client, schema
        self._known: dict[int, Rows] = {}  # feature cell -> rows
        self._some: Positions | None = None

    def among(self, rows: Positions) -> _Copied:
        """Return the same of some of the client's rows."""
        found = _Copied(self._client, self._schema)
        found._known, found._some = self._known, rows
        return found

    def rows(self, column: int) -> Rows:
        """Return in which of the client's rows another one has a column, by position."""
        features = self._schema.features
        cell = int(features.cell_of[features.own(self._client)[column]])
        if cell not in self._known:
            self._known[cell] = few_values.copied_rows(self._client, self._schema, cell)
        known = self._known[cell]
        return known if self._some is None else known[self._some]

    def shared(self, column: int) -> bool:
        """Return whether another client has a column, by position, in whatever rows."""
        features = self._schema.features
        return bool(features.holders[features.own(self._client)[column]] > 1)


def _without_rare_levels(
    block: Block,
    levels: Mapping[str, Positions],
    least: Positions,
    copied: _Copied,
    *,
    standardise: bool,
) -> Block:
    """Return a block without levels of few rows, nor few rows that lack one."""
    levels = {column: own for column, own in levels.items() if least[own[0]] > 1}
    if not levels:
        return block
    counts = np.zeros(block.shape[1], np.intp)
    for _, x in pieces(block.x):
        if block.sparse:
            counts += np.bincount(x.indices[x.data > 0], minlength=len(counts))
        else:
            counts += (x > 0).sum(axis=0)
    rare = (counts > 0) & (counts < least)
    places = {column: own.tolist() for column, own in levels.items()}
    few = {column: own[rare[own]] for column, own in levels.items() if rare[own].any()}
    if few:
        out = {column: _rows_with(block, own) for column, own in few.items()}
        block = few_values.without_values(block, places, out)
    centred = ~block.scaled_only if standardise else np.zeros(len(counts), bool)
    kept = np.where(rare, 0, counts)
    lacked = {column: block.shape[0] - kept[own].sum() for column, own in levels.items()}
    asked = {
        column: one
        for column, one in places.items()
        if 0 < lacked[column] < least[one[0]] and not (centred[one[0]] or rare[one].all())
    }
    for column, there in few_values.observed(block, asked).items() if asked else ():
        own = levels[column]
        lacking = ~there & ~copied.rows(int(own[0]))
        if lacking.any():
            commonest = own[np.argmax(kept[own])]
            block = _with_level(block, lacking, own, commonest)
    return block


def _rows_with(block: Block, features: Positions) -> Rows:
    """Return which rows have one of some levels, (samples,)."""
    if not block.sparse:
        return np.asarray((block.x[:, features] > 0).any(axis=1))
    entries = np.isin(block.x.indices, features) & (block.x.data > 0)
    found = np.zeros(block.shape[0], bool)
    found[np.repeat(np.arange(block.shape[0]), np.diff(block.x.indptr))[entries]] = True
    return found


def _with_level(block: Block, rows: Rows, levels: Positions, level: np.intp) -> Block:
    """Return a block in which some rows, that have no level of a category, have this one."""
    block = replace(block, x=taken(block.x, None, None))
    if block.sparse and block.scaled_only[level]:
        return with_levels(block, np.flatnonzero(rows), np.array([level]), np.ones(1))
    put(block.x, rows, levels)
    put(block.x, rows, np.array([level]), 1.0)
    return block


def _without_rare_numbers(
    block: Block, numbers: Positions, least: Positions, copied: _Copied, *, standardise: bool
) -> Block:
    """Return a block in which numbers of few rows are those of all others, or are missing.

    Where columns are not centred a missing number is 0, and counts as that.
    """
    x, bare = block.x, block.sparse and block.indicators is None
    if bare:  # most columns have 0 in most rows, and there may be very many
        count = np.zeros(block.shape[1], np.intp)
        for _, own in pieces(x):
            count += np.bincount(own.indices[own.data != 0], minlength=len(count))
        count = count[numbers]
        some = (count > 0) & (count < least) & (2 * count < block.shape[0])
        if some.any():
            x = taken(x, None, None)
            x.data[np.isin(x.indices, numbers[some])] = 0.0
        kept = ~some & (count > block.shape[0] - least)
        numbers, least = numbers[kept], least[kept]
    usual, other, known = _most(block, numbers, least, zeros=not standardise)
    few = known < least
    few |= (other > 0) & (other < least) & (2 * other < known)
    for at in np.flatnonzero(few):
        column, value = int(numbers[at]), usual[at]
        untold = known[at] < least[at] and not copied.shared(column)
        if not untold and 2 * other[at] >= known[at]:
            continue
        own = _column(block, column)
        missing = np.isnan(own)
        own = own if standardise else np.nan_to_num(own, nan=0.0)
        rows = ~np.isnan(own) if untold else ~np.isnan(own) & (own != value)
        lost = rows if untold else rows & copied.rows(column)
        kept, lost = rows & ~lost, lost & ~missing
        if not (kept | lost).any():
            continue
        x = taken(x, None, None) if x is block.x else x
        for these, number in (kept, value), (lost, value if bare else np.nan):
            x = _with_number(x, these, column, float(number))
    return block if x is block.x else replace(block, x=x, checked=(x, block.samples))


def _most(
    block: Block, numbers: Positions, least: Positions, *, zeros: bool
) -> tuple[Array, Positions, Positions]:
    """Return what most rows have, if most have one, how many have others, and how many any.

    Each is (numbers,). If all but `least` rows have one number, it is the median of any twice as
    many. Of a column where more have others it is not told how many. `zeros`: missing ones are 0.
    """
    size = 2 * int(least.max(initial=1)) - 1
    sample, held = np.full((size, len(numbers)), np.nan), np.zeros(len(numbers), np.intp)
    for x, rows in _some_rows(block):
        want = np.flatnonzero(held < size)
        if not len(want):
            break
        some = _dense(block, x, rows, numbers[want], zeros=zeros)
        there = ~np.isnan(some)
        at = np.cumsum(there, axis=0) - 1 + held[want]
        rows_of, columns = np.nonzero(there & (at < size))
        sample[at[rows_of, columns], want[columns]] = some[rows_of, columns]
        held[want] += there.sum(axis=0)
    middle = np.maximum(np.minimum(held, size) - 1, 0) // 2
    usual = np.sort(sample, axis=0)[middle, np.arange(len(numbers))]  # NaN is last
    other, known = np.zeros((2, len(numbers)), np.intp)
    for x, rows in _some_rows(block):
        want = np.flatnonzero((other < least) | (known < least))
        if not len(want):
            break
        some = _dense(block, x, rows, numbers[want], zeros=zeros)
        there = ~np.isnan(some)
        known[want] += there.sum(axis=0)
        other[want] += (there & (some != usual[want])).sum(axis=0)
    return usual, other, known


def _some_rows(block: Block) -> Iterator[tuple[Any, slice]]:
    """Yield the pieces of a block's values, and rows of them: of the first piece few at first."""
    for rows, x in pieces(block.x):
        if rows.start:
            yield x, slice(0, None)
            continue
        yield x, slice(0, _SAMPLE)
        if rows.stop > _SAMPLE:
            yield x, slice(_SAMPLE, None)


def _dense(block: Block, x: Any, rows: slice, columns: Positions, *, zeros: bool) -> Array:
    """Return some rows of some columns of a piece of a block, as an array."""
    if not block.sparse:
        own = np.asarray(x[rows][:, columns], np.float64)
        return np.nan_to_num(own, nan=0.0) if zeros else own
    ends = x.indptr[rows.start : None if rows.stop is None else rows.stop + 1]
    data, where = x.data[ends[0] : ends[-1]], x.indices[ends[0] : ends[-1]]
    place = np.full(block.shape[1], -1, np.intp)
    place[columns] = np.arange(len(columns))
    of = np.repeat(np.arange(len(ends) - 1), np.diff(ends))
    kept = place[where] >= 0
    found = np.zeros((len(ends) - 1, len(columns)))
    found[of[kept], place[where[kept]]] = data[kept]
    return np.nan_to_num(found, nan=0.0) if zeros else found


def _column(block: Block, column: int) -> Array:
    """Return the values of one column, (samples,)."""
    own = block.x[:, [column]]
    return np.asarray(own.toarray() if block.sparse else own, np.float64)[:, 0]


def _with_number(x: Any, rows: Rows, column: int, value: float) -> Any:
    """Return values with a number in some rows of a column; what is stored changes in place."""
    if not rows.any():
        return x
    if isinstance(x, np.ndarray):
        x[rows, column] = value
        return x
    put(x, rows, np.array([column]), value)
    absent = np.flatnonzero(rows & (x[:, [column]].toarray()[:, 0] != value) & ~np.isnan(value))
    if not len(absent):
        return x
    at = absent, np.full(len(absent), column)
    return type(x)(x + type(x)((np.full(len(absent), value), at), shape=x.shape))
