"""A client's table as a `Block`, and what is public about all clients as a `Schema`.

A `Block` never leaves its client. A `Schema` holds index sets only: who holds which samples and
features, and which samples have a label. Samples with the same owners form a cell, and so do
features; every sum over clients is laid out cell by cell, so that nobody pads to the whole.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse

from intarsia.core.memory import made_like, pieces, slices
from intarsia.errors import TableError

Array = NDArray[np.float64]
ClientId = str
INTERCEPT = "(intercept)"  # a constant feature 1 that clients may add
RARE = "other"  # the level of rows whose own level others may not know
# Array (samples, features), NaN where missing; or csr_array, 0 where absent; or before blocks are
# in the order of a schema `Unwritten` rows of the latter
Values = Any
Task = Literal["binary", "multiclass", "regression"]
LEAST_WEIGHT, MOST_WEIGHT = 1e-100, 1e100  # of a row or a class: sums of products are finite


@dataclass(frozen=True)
class Labels:
    """What the labels of a federation mean; public.

    Binary labels are stored as -1 and +1 in the order of `classes`, multi-class labels as
    0, 1, …, regression targets as they are. NaN marks a sample without a label.
    """

    task: Task
    classes: tuple[str, ...] = ()  # empty for regression
    name: str = "label"
    weighted: bool = False  # whether rows have weights, of their own or of their classes
    # of the classes, in their order, or by their numbers of rows; None: all alike
    class_weights: tuple[float, ...] | Literal["balanced"] | None = None

    @property
    def outputs(self) -> int:
        """Return the number of linear functions that a one-vs-rest model has."""
        return len(self.classes) if self.task == "multiclass" else 1


@dataclass(frozen=True, eq=False)
class Copies:
    """How many clients hold each value of a block, from the public index sets."""

    rows: NDArray[np.intp]  # (samples,) row kind
    columns: NDArray[np.intp]  # (features,) column kind
    counts: Array  # (row kinds, column kinds)
    # where some holders lack values: how many have each, (samples, features that may lack some)
    observed: Array | None = None
    places: NDArray[np.intp] | None = None  # (features,) in `observed`, -1: lacks none; None: all

    @classmethod
    def alone(cls, rows: int, columns: int) -> Copies:
        """Return the counts where one client holds every value."""
        return cls(np.zeros(rows, np.intp), np.zeros(columns, np.intp), np.ones((1, 1)))

    def take(self, rows: NDArray[Any] | slice | None, columns: NDArray[Any] | None) -> Copies:
        """Return the counts of the given row and column positions."""
        observed, places = self.observed, self._places
        return Copies(
            self.rows if rows is None else self.rows[rows],
            self.columns if columns is None else self.columns[columns],
            self.counts,
            observed if observed is None or rows is None else observed[rows],
            places if columns is None else places[columns],
        )

    @property
    def _places(self) -> NDArray[np.intp]:
        return np.arange(len(self.columns)) if self.places is None else self.places

    @property
    def of_columns(self) -> Array | None:
        """Return how many hold each column, (features,); None: not as many in every row."""
        if self.observed is not None or len(self.counts) != 1:
            return None
        found: Array = self.counts[0, self.columns]
        return found

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """Return all arrays, as compiled functions take them: places are -1 where none lacks."""
        if self.observed is None:
            none = np.full(len(self.columns), -1)
            return self.rows, self.columns, self.counts, none, np.zeros((0, 0))
        return self.rows, self.columns, self.counts, self._places, self.observed

    def dense(self) -> Array:
        """Return the counts entry by entry, (samples, features), at least 1."""
        found = self.counts[self.rows][:, self.columns]
        if self.observed is not None:
            lacking = self._places >= 0
            found[:, lacking] = np.maximum(self.observed[:, self._places[lacking]], 1.0)
        return found

    def of_entries(self, x: Values) -> Array:
        """Return the counts of a dense array's entries, or of those that a sparse one stores.

        Of a dense array those of its columns, where they are the same in every row.
        """
        alike, dense = self.of_columns, isinstance(x, np.ndarray)
        if alike is not None:
            return alike if dense else alike[x.indices]
        if dense:
            return self.dense()
        rows = np.repeat(np.arange(len(self.rows)), np.diff(x.indptr))
        found: Array = self.counts[self.rows[rows], self.columns[x.indices]]
        if self.observed is not None:
            place = self._places[x.indices]
            lacking = place >= 0
            found[lacking] = np.maximum(self.observed[rows[lacking], place[lacking]], 1.0)
        return found

    def divide(self, x: Values, *, in_place: bool = False) -> Values:
        """Return each value divided by its number of holders."""
        found = x if in_place else with_data(x, made_like(x, stored(x).shape))
        for (rows, own), (_, part) in zip(pieces(x), pieces(found), strict=True):
            np.divide(stored(own), self.take(rows, None).of_entries(own), out=stored(part))
        return found


@dataclass(frozen=True, eq=False)
class Block:
    """One client's rectangle: its samples, its features, their values, its labels.

    Raises
    ------
    TableError
        If shapes disagree, an id or a feature repeats, or a value is infinite.
    """

    samples: NDArray[Any]  # (samples,) int64 or str, unique
    features: tuple[str, ...]  # (features,) unique
    x: Values  # (samples, features)
    y: Array | None = None  # (samples,) encoded as in Labels, NaN = no label; None = no labels
    # named feature blocks, each with its features in its own order
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    copies: Copies | None = None  # None: every value is at this client alone
    # of a sample's values in some of the groups, such as (channels, height, width); else a vector
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    # (samples,) where they stand among the samples of the schema; None: it was not aligned
    places: NDArray[np.intp] | None = None
    weights: Array | None = None  # (samples,) of their losses, above 0; None: 1 each
    # (features,) which category of many levels each is one of, from 1, and 0 for all others, which
    # alone can be missing and a CSR array stores in every row; None: there is no such category
    indicators: NDArray[np.intp] | None = None
    # (features,) what stands here for 0 of the table, less the mean and divided by the scale; None:
    # 0, as nothing was taken off
    zero: Array | None = None
    # categorical column -> its levels here, of each of which the feature "column=level" is made
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    # (features,) how many training rows must have a level, or another number than most have, so
    # that it trains (`rare_values`); None: any
    least_rows: NDArray[np.intp] | None = None
    # values and ids that were checked, which are not checked again
    checked: tuple[Any, Any] = field(default=(None, None), repr=False)
    divided: Copies | None = None  # by what its values were divided, so that each counts once

    def __post_init__(self) -> None:
        rows, columns = self.x.shape
        if len(self.samples) != rows:
            raise TableError(
                f"Block has {rows} rows in x but {len(self.samples)} sample ids; "
                "every row needs one id."
            )
        if len(self.features) != columns:
            raise TableError(
                f"Block has {columns} columns in x but {len(self.features)} feature names; "
                "every column needs one name."
            )
        if self.y is not None and len(self.y) != rows:
            raise TableError(
                f"Block has {rows} rows in x but {len(self.y)} entries in y; every sample needs "
                "one label (or pass y=None for a client without labels)."
            )
        values_before, ids_before = self.checked
        if self.samples is not ids_before and have_repeats(self.samples):
            ids, counts = np.unique(self.samples, return_counts=True)
            twice = ids[counts > 1]
            raise TableError(
                f"{len(twice)} sample ids appear more than once (first: {twice[0].item()!r}, "
                f"{counts[counts > 1][0]} times); every sample needs one row: "
                "aggregate or drop the repeated rows."
            )
        if len(set(self.features)) < columns:
            repeated = next(f for f in self.features if self.features.count(f) > 1)
            raise TableError(
                f"The feature {repeated!r} appears more than once; rename one of them."
            )
        if self.x is not values_before:
            self._check_values()
        object.__setattr__(self, "checked", (self.x, self.samples))
        named = {name for names in self.groups.values() for name in names}
        if named - set(self.features):
            raise TableError(
                f"The feature blocks name {sorted(named - set(self.features))[0]!r}, "
                "which is not a feature of this table."
            )
        for name, shape in self.shapes.items():
            if math.prod(shape) != len(self.groups.get(name, ())):
                raise TableError(
                    f"The feature block {name!r} has the shape {shape} but "
                    f"{len(self.groups.get(name, ()))} features; expected {math.prod(shape)}."
                )

    def _check_values(self) -> None:
        infinite = sum(int(np.isinf(stored(own)).sum()) for _, own in pieces(self.x))
        if infinite:
            raise TableError(
                f"{infinite} values are infinite; "
                "replace them by a number or by an empty cell (missing)."
            )
        if issparse(self.x) and self.indicators is None and np.isnan(self.x.data).any():
            raise TableError(
                "A sparse block holds NaN; a sparse block cannot mark missing values: "
                "leave the entry out (zero) or pass a dense array."
            )

    @property
    def sparse(self) -> bool:
        """Return whether the values are stored as CSR, or will be."""
        return not isinstance(self.x, np.ndarray)

    @property
    def scaled_only(self) -> NDArray[np.bool_]:
        """Return the features whose absent entries are 0, so that they are not centred."""
        if self.indicators is None:
            return np.full(len(self.features), self.sparse)
        return self.indicators > 0

    def kinds_of_levels(self) -> list[NDArray[np.intp]]:
        """Return of each category of many levels the positions of its features, (levels,)."""
        kinds = np.zeros(0, np.intp) if self.indicators is None else self.indicators
        return [np.flatnonzero(kinds == kind) for kind in np.unique(kinds[kinds > 0])]

    def without_level(self) -> list[tuple[NDArray[np.intp], NDArray[np.bool_]]]:
        """Return of each category of many levels its features, and the rows that have none.

        They are positions, (levels,), and truth values, (samples,).
        """
        kinds = np.zeros(0, np.intp) if self.indicators is None else self.indicators
        if not kinds.any():
            return []
        held = np.zeros((len(self.samples), int(kinds.max()) + 1), bool)
        for some, x in pieces(self.x):
            if self.sparse:
                there = (x.data != 0) & (kinds[x.indices] > 0)
                rows = np.repeat(np.arange(len(x.indptr) - 1), np.diff(x.indptr))[there]
                held[some][rows, kinds[x.indices[there]]] = True
            else:
                for kind in range(1, held.shape[1]):
                    held[some, kind] = (x[:, kinds == kind] != 0).any(axis=1)
        return [(levels, ~held[:, kinds[levels[0]]]) for levels in self.kinds_of_levels()]

    def observed(self, columns: NDArray[Any] | slice = slice(None)) -> NDArray[np.bool_]:
        """Return which values of some features are there, (samples, features)."""
        own: Any = self.x[:, columns]  # what a sparse table does not write out is 0
        found: NDArray[np.bool_] = ~np.isnan(own.toarray() if self.sparse else own)
        at = np.arange(self.shape[1])[columns]
        for levels, rows in self.without_level():
            found[np.ix_(rows, np.isin(at, levels))] = False
        return found

    def rows_that_lack(self) -> NDArray[np.bool_]:
        """Return in which rows a value is missing, (samples,)."""
        rows = np.zeros(len(self.samples), bool)
        if self.sparse:
            rows[np.repeat(np.arange(len(rows)), np.diff(self.x.indptr))[np.isnan(self.x.data)]] = 1
        else:
            for some, own in pieces(self.x):
                rows[some] = np.isnan(own).any(axis=1)
        for _, lacking in self.without_level():
            rows |= lacking
        return rows

    def missing(self) -> NDArray[np.int64]:
        """Return how many values each feature lacks, (features,).

        A row without a level of a category lacks all of its levels.
        """
        if not isinstance(self.x, np.ndarray) and not issparse(self.x):
            return np.asarray(self.x.missing())
        rows, columns = self.shape
        levels = None if self.indicators is None else self.indicators > 0
        lacking, held = np.zeros(columns, np.int64), np.zeros(columns, np.int64)
        for _, x in pieces(self.x):
            if self.sparse:
                lacking += np.bincount(x.indices[np.isnan(x.data)], minlength=columns)
            else:
                lacking += np.isnan(x).sum(axis=0)
            if levels is not None and self.sparse:
                known = levels[x.indices]
                known &= x.data != 0
                held += np.bincount(x.indices[known], minlength=columns)
            elif levels is not None:
                held += np.count_nonzero(x, axis=0)
        if levels is not None and self.indicators is not None:
            with_one = np.bincount(self.indicators, held)  # at most one of a category in a row
            lacking[levels] = rows - with_one[self.indicators[levels]]
        return lacking

    @property
    def shape(self) -> tuple[int, int]:
        """Return (samples, features)."""
        return len(self.samples), len(self.features)

    def take(
        self,
        rows: NDArray[Any] | None,
        columns: NDArray[Any] | None = None,
        *,
        intercept: bool = False,
    ) -> Block:
        """Return the block of the given row and column positions, in their order (None: all).

        `intercept` adds a last column, a constant 1, before columns are chosen.
        """
        x, samples, y, features = self.x, self.samples, self.y, self.features
        if rows is not None or columns is not None or intercept:
            x = taken(x, rows, columns, ones=intercept)
        kinds, zero, least = self.indicators, self.zero, self.least_rows
        if intercept:
            features = (*features, INTERCEPT)
            kinds = kinds if kinds is None else np.append(kinds, 0)
            least = least if least is None else np.append(least, 0)
            zero = zero if zero is None else np.append(zero, 0.0)
        if rows is not None:
            samples = samples[rows]
            y = None if y is None else y[rows]
        if columns is not None:
            features = tuple(features[c] for c in columns)
        groups, shapes = held_groups(features, self.groups, self.shapes)
        copies, divided = (
            one if one is None or (rows is None and columns is None) else one.take(rows, columns)
            for one in (self.copies, self.divided)
        )
        places = self.places if self.places is None or rows is None else self.places[rows]
        weights = self.weights if self.weights is None or rows is None else self.weights[rows]
        kinds = kinds if kinds is None or columns is None else kinds[columns]
        least = least if least is None or columns is None else least[columns]
        zero = zero if zero is None or columns is None else zero[columns]
        levels = self.levels if columns is None else held_levels(features, self.levels)
        return Block(
            *(samples, features, x, y, groups, copies, shapes, places, weights, kinds, zero),
            # what was checked has no value that is wrong
            *(levels, least, (x, self.samples), divided),
        )

    def written(self) -> Block:
        """Return the block with its values as an array, dense or CSR."""
        if isinstance(self.x, np.ndarray) or issparse(self.x):
            return self
        x = self.x.written()
        return replace(self, x=x, checked=(x, self.samples))

    def weights_of(self, rows: NDArray[Any]) -> Array | None:
        """Return the weights of some rows, (rows,); None: 1 each."""
        return None if self.weights is None else self.weights[rows]

    def counted_once(self, *, in_place: bool = False) -> Block:
        """Return the block with each value divided by its number of holders.

        Sums over clients of such blocks count every (sample, feature) exactly once. `in_place`
        divides them where they lie: this block is then of no use.
        """
        if self.copies is None:
            return self
        x = self.copies.divide(self.x, in_place=in_place)
        return replace(self, x=x, copies=None, divided=self.copies, checked=(x, self.samples))


def stored(x: Values) -> Array:
    """Return a dense array, or the entries that a sparse one stores."""
    found: Array = x if isinstance(x, np.ndarray) else x.data
    return found


def with_data(x: Values, data: Array) -> Values:
    """Return other values in the place of `stored` ones."""
    return csr_array((data, x.indices, x.indptr), shape=x.shape) if issparse(x) else data


def taken(
    x: Values, rows: NDArray[Any] | None, columns: NDArray[Any] | None, *, ones: bool = False
) -> Values:
    """Return rows and columns of a table, by position (None: all); they lie where the table does.

    With `ones` the table has a last column of ones. Rows are copied some at a time, so that there
    is nothing of a table's size but what is read and what is written.
    """
    if not isinstance(x, np.ndarray) and not issparse(x):
        own = x if rows is None else x.take(np.arange(x.shape[0])[rows])
        return own if columns is None and not ones else own.written(columns, ones=ones)
    every = np.arange(x.shape[1] + ones)
    kept = every if columns is None else every[columns]
    rows = rows if rows is None else np.arange(x.shape[0])[rows]
    if issparse(x):
        return _taken_entries(x, rows, kept, ones=ones)
    found = made_like(x, (x.shape[0] if rows is None else len(rows), len(kept)), x.dtype)
    for some in slices(len(found), found.size):
        own = x[some] if rows is None else x[rows[some]]
        own = np.hstack([own, np.ones((len(own), 1))]) if ones else own
        found[some] = own if columns is None else own[:, kept]
    return found


def _taken_entries(
    x: csr_array, rows: NDArray[np.intp] | None, kept: NDArray[np.intp], *, ones: bool
) -> csr_array:
    """Return rows and columns of a CSR array as `taken` does; a column is kept once at most."""
    width = x.shape[1] + ones
    sizes = np.diff(x.indptr) + ones
    sizes = sizes if rows is None else sizes[rows]
    stops = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    place = np.full(width, -1, x.indices.dtype)
    place[kept] = np.arange(len(kept))
    ordered = bool((kept[1:] > kept[:-1]).all())
    # columns that are left out leave room at the end
    data, indices = made_like(x, (stops[-1],), x.dtype), made_like(x, (stops[-1],), x.indices.dtype)
    end = 0
    for some in slices(len(stops) - 1, int(stops[-1])):
        if rows is None:
            first, last = x.indptr[some.start], x.indptr[some.stop]
            values, where = x.data[first:last], x.indices[first:last]
            starts = x.indptr[some.start : some.stop + 1] - first
        else:
            own = x[rows[some]]
            values, where, starts = own.data, own.indices, own.indptr
        if ones:
            values = np.insert(values, starts[1:], 1.0)
            where = np.insert(where, starts[1:], width - 1)
            starts = starts + np.arange(len(starts))
        where = place[where]
        if len(kept) < width:
            there = where >= 0
            values, where = values[there], where[there]
            starts = np.concatenate([[0], np.cumsum(there)])[starts]
        if not ordered:  # as the kernels read them, and so that nobody sorts them in place later
            own = csr_array((values.copy(), where, starts), (len(starts) - 1, len(kept)))
            own.sort_indices()
            values, where = own.data, own.indices
        data[end : end + len(values)], indices[end : end + len(values)] = values, where
        stops[some.start : some.stop + 1] = end + starts
        end += len(values)
    kind = x.indptr.dtype if end <= np.iinfo(x.indptr.dtype).max else np.int64
    return csr_array((data[:end], indices[:end], stops.astype(kind)), (len(stops) - 1, len(kept)))


def have_repeats(ids: NDArray[Any]) -> bool:
    """Return whether an id is there more than once."""
    keys = sort_keys(ids)
    if (keys[1:] > keys[:-1]).all():
        return False
    if keys.dtype.kind in "iu":
        keys = np.sort(keys)
        return bool((keys[1:] == keys[:-1]).any())
    return len(set(ids.tolist())) < len(ids)  # a third of the time of sorting


def sort_keys(ids: NDArray[Any]) -> NDArray[Any]:
    """Return whole numbers of 64 bits that are equal, and in order, where ids are: (ids,).

    They are found in a tenth of the time. Ids stay as they are where they are no text, or have more
    than eight letters behind those with which all begin, or letters beyond Latin-1.
    """
    if ids.dtype.kind != "U" or not ids.size or not ids.dtype.itemsize:
        return ids
    letters = np.ascontiguousarray(ids).view(np.uint32).reshape(len(ids), -1)
    alike = (letters == letters[0]).all(axis=0)
    rest = letters[:, len(alike) if alike.all() else int(alike.argmin()) :]
    if rest.shape[1] > 8 or (rest > 255).any():
        return ids
    keys = np.zeros((len(ids), 8), np.uint8)
    keys[:, : rest.shape[1]] = rest
    return keys.view(">u8")[:, 0].astype(np.uint64)


def distinct(ids: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.intp]]:
    """Return the different ids, ascending, and which of them each is, (ids,)."""
    found, (which,) = distinct_of([ids])
    return found, which


def distinct_of(parts: Sequence[NDArray[Any]]) -> tuple[NDArray[Any], list[NDArray[np.intp]]]:
    """Return the different ids of several arrays, ascending, and which of them each is, by array.

    An order of all numbers at once would take twice the memory and time of one for each array.
    Arrays that are the same, as those of clients with the same samples are, get the same object.
    """
    number = same_arrays(parts)
    some = [part for at, part in enumerate(parts) if number[at] == at]
    together = np.concatenate(some)
    keys = sort_keys(together)
    ends = np.cumsum([len(part) for part in some])[:-1]
    if keys.dtype.kind in "iu":
        each = np.split(keys, ends)
        # arrays in order are merged, in a third of the time of sorting
        found = np.sort(keys, kind="stable" if all(map(ascending, each)) else None)
        found = found[np.concatenate([np.ones(len(found[:1]), bool), found[1:] != found[:-1]])]
        which = [_places_in(found, own) for own in each]
    else:
        found, inverse = np.unique(keys, return_inverse=True)
        which = np.split(inverse, ends)
    ids = found
    if keys is not together:
        ids = np.empty(len(found), together.dtype)
        for part, own in zip(some, which, strict=True):
            ids[own] = part
    place = dict(zip(sorted({*number}), which, strict=True))
    return ids, [place[at] for at in number]


def same_arrays(parts: Sequence[NDArray[Any]]) -> list[int]:
    """Return of each array the number of the first that is the same: its own, or one before."""
    alike: dict[Any, list[int]] = {}
    found: list[int] = []
    for at, part in enumerate(parts):
        # most that are not the same differ at an end
        ends = (part.item(0), part.item(-1)) if len(part) else ()
        others = alike.setdefault((len(part), part.dtype, *ends), [])
        same = next((one for one in others if np.array_equal(parts[one], part)), at)
        if same == at:
            others.append(at)
        found.append(same)
    return found


def ascending(keys: NDArray[Any]) -> bool:
    """Return whether numbers are in order; comparing takes a fortieth of the time of sorting."""
    return bool((keys[1:] >= keys[:-1]).all())


def _places_in(held: NDArray[Any], keys: NDArray[Any]) -> NDArray[np.intp]:
    """Return where keys are among ascending ones that hold them; in order they are found faster."""
    if ascending(keys):
        return np.searchsorted(held, keys)
    order = np.argsort(keys)
    found = np.empty(len(keys), np.intp)
    found[order] = np.searchsorted(held, keys[order])
    return found


def places_of(wanted: NDArray[Any], ids: NDArray[Any]) -> NDArray[np.intp]:
    """Return where in some ids each of the wanted ones is, all of which are there, (wanted,)."""
    if np.array_equal(wanted, ids):
        return np.arange(len(ids))
    keys = sort_keys(np.concatenate([ids, wanted]))
    have, sought = keys[: len(ids)], keys[len(ids) :]
    if ascending(have):
        return np.searchsorted(have, sought)
    order = np.argsort(have, kind="stable")
    found: NDArray[np.intp] = order[np.searchsorted(have[order], sought)]
    return found


def held_groups(
    features: Sequence[str],
    groups: Mapping[str, tuple[str, ...]],
    shapes: Mapping[str, tuple[int, ...]],
) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[int, ...]]]:
    """Return what some features leave of the groups, and the shapes of those that are whole."""
    kept = set(features)
    found = {
        name: tuple(f for f in names if f in kept)
        for name, names in groups.items()
        if any(f in kept for f in names)
    }
    return found, {name: shape for name, shape in shapes.items() if found.get(name) == groups[name]}


def held_levels(
    features: Sequence[str], levels: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """Return what some features leave of the levels of categorical columns."""
    kept = set(features)
    found = {
        column: tuple(level for level in own if f"{column}={level}" in kept)
        for column, own in levels.items()
    }
    return {column: own for column, own in found.items() if own}


def row_weights(block: Block) -> Array:
    """Return the weight of each sample's loss, (samples,)."""
    return np.ones(block.shape[0]) if block.weights is None else block.weights


def targets(block: Block, outputs: int) -> Array:
    """Return the labels as -1 and +1 for each output (or as they are), (outputs, samples).

    With several outputs, output c tells class c from the others. NaN without a label.
    """
    if block.y is None:
        return np.full((outputs, block.shape[0]), np.nan)
    if outputs == 1:
        return block.y[None, :]
    signs = np.where(block.y == np.arange(outputs)[:, None], 1.0, -1.0)
    return np.where(np.isnan(block.y), np.nan, signs)
