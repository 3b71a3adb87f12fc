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

from intarsia.errors import TableError

Array = NDArray[np.float64]
ClientId = str
INTERCEPT = "(intercept)"  # a constant feature 1 that clients may add
Values = Any  # Array (samples, features), NaN where missing; or csr_array, 0 where absent
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

    def take(self, rows: NDArray[Any] | None, columns: NDArray[Any] | None) -> Copies:
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

    def dense(self) -> Array:
        """Return the counts entry by entry, (samples, features), at least 1."""
        found = self.counts[self.rows][:, self.columns]
        if self.observed is not None:
            lacking = self._places >= 0
            found[:, lacking] = np.maximum(self.observed[:, self._places[lacking]], 1.0)
        return found

    def of_entries(self, x: Values) -> Array:
        """Return the counts of a dense array's entries, or of those that a sparse one stores."""
        if not issparse(x):
            return self.dense()
        rows = np.repeat(np.arange(len(self.rows)), np.diff(x.indptr))
        found: Array = self.counts[self.rows[rows], self.columns[x.indices]]
        if self.observed is not None:
            place = self._places[x.indices]
            lacking = place >= 0
            found[lacking] = np.maximum(self.observed[rows[lacking], place[lacking]], 1.0)
        return found

    def divide(self, x: Values) -> Values:
        """Return each value divided by its number of holders."""
        if issparse(x):
            data = x.data / self.of_entries(x)
            return csr_array((data, x.indices, x.indptr), shape=x.shape)
        return x / self.dense()


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
        if have_repeats(self.samples):
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
        values = self.x.data if issparse(self.x) else self.x
        if np.isinf(values).any():
            raise TableError(
                f"{int(np.isinf(values).sum())} values are infinite; "
                "replace them by a number or by an empty cell (missing)."
            )
        if issparse(self.x) and self.indicators is None and np.isnan(values).any():
            raise TableError(
                "A sparse block holds NaN; a sparse block cannot mark missing values: "
                "leave the entry out (zero) or pass a dense array."
            )
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

    @property
    def sparse(self) -> bool:
        """Return whether the values are stored as CSR."""
        return bool(issparse(self.x))

    @property
    def scaled_only(self) -> NDArray[np.bool_]:
        """Return the features whose absent entries are 0, so that they are not centred."""
        if self.indicators is None:
            return np.full(len(self.features), self.sparse)
        return self.indicators > 0

    def rows_that_lack(self) -> int:
        """Return the number of rows in which a value is missing."""
        rows = np.zeros(len(self.samples), bool)
        if self.sparse:
            rows[np.repeat(np.arange(len(rows)), np.diff(self.x.indptr))[np.isnan(self.x.data)]] = 1
        else:
            rows = np.isnan(self.x).any(axis=1)
        kinds = np.zeros(0, np.intp) if self.indicators is None else self.indicators
        for kind in range(1, kinds.max(initial=0) + 1):
            rows |= np.asarray((self.x[:, np.flatnonzero(kinds == kind)] != 0).sum(axis=1)) == 0
        return int(rows.sum())

    def missing(self) -> NDArray[np.int64]:
        """Return how many values each feature lacks, (features,).

        A row without a level of a category lacks all of its levels.
        """
        rows, columns = self.shape
        if not self.sparse:
            lacking = np.isnan(self.x).sum(axis=0)
        else:
            lacking = np.bincount(self.x.indices[np.isnan(self.x.data)], minlength=columns)
        if self.indicators is not None:
            levels = self.indicators > 0
            if self.sparse:
                known = levels[self.x.indices]
                known &= self.x.data != 0
                held = np.bincount(self.x.indices[known], minlength=columns)
            else:
                held = np.count_nonzero(self.x, axis=0)
            with_one = np.bincount(self.indicators, held)  # at most one of a category in a row
            lacking[levels] = rows - with_one[self.indicators[levels]]
        return np.asarray(lacking, np.int64)

    @property
    def shape(self) -> tuple[int, int]:
        """Return (samples, features)."""
        return len(self.samples), len(self.features)

    def take(self, rows: NDArray[Any] | None, columns: NDArray[Any] | None = None) -> Block:
        """Return the block of the given row and column positions, in their order (None: all)."""
        x, samples, y, features = self.x, self.samples, self.y, self.features
        if rows is not None:
            x, samples = x[rows], samples[rows]
            y = None if y is None else y[rows]
        if columns is not None:
            x = x[:, columns]
            x = x if issparse(x) else np.ascontiguousarray(x)
            features = tuple(self.features[c] for c in columns)
        groups, shapes = held_groups(features, self.groups, self.shapes)
        copies = None if self.copies is None else self.copies.take(rows, columns)
        places = self.places if self.places is None or rows is None else self.places[rows]
        weights = self.weights if self.weights is None or rows is None else self.weights[rows]
        kinds = self.indicators
        kinds = kinds if kinds is None or columns is None else kinds[columns]
        zero = self.zero
        zero = zero if zero is None or columns is None else zero[columns]
        levels = self.levels if columns is None else held_levels(features, self.levels)
        return Block(
            *(samples, features, x, y, groups, copies, shapes, places, weights, kinds, zero),
            levels,
        )

    def weights_of(self, rows: NDArray[Any]) -> Array | None:
        """Return the weights of some rows, (rows,); None: 1 each."""
        return None if self.weights is None else self.weights[rows]

    def counted_once(self) -> Block:
        """Return the block with each value divided by its number of holders.

        Sums over clients of such blocks count every (sample, feature) exactly once.
        """
        if self.copies is None:
            return self
        return replace(self, x=self.copies.divide(self.x), copies=None)


def have_repeats(ids: NDArray[Any]) -> bool:
    """Return whether an id is there more than once."""
    # ids in order are different ones: comparing takes a fortieth of the time of sorting
    if (ids[1:] > ids[:-1]).all():
        return False
    return len(set(ids.tolist())) < len(ids)  # a third of the time of sorting


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
