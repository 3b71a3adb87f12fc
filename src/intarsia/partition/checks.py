"""Checks of a partition's keys, and what all partitions do with values, labels and clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.core.block import Array, Block, ClientId, held_groups, held_levels
from intarsia.data.dataset import Dataset
from intarsia.errors import ExperimentError, nearest

Counts = NDArray[np.int64]
Positions = NDArray[np.intp]
_CHUNK = 1024  # rows converted to float64 at a time


def floats(
    x: NDArray[Any], rows: Positions, run: slice | Positions, width: int, scale: float
) -> Array:
    """Return the values at rows and at a run of columns, (rows, width)."""
    values = np.empty((len(rows), width))
    for start in range(0, len(rows), _CHUNK):
        chunk = rows[start : start + _CHUNK]
        part = x[chunk, run] if isinstance(run, slice) else x[np.ix_(chunk, run)]
        np.multiply(part, scale, out=values[start : start + _CHUNK], dtype=np.float64)
    return values


def block_of(
    dataset: Dataset,
    rows: Positions,
    y: Array | None,
    columns: Positions | None = None,
    samples: NDArray[Any] | None = None,
) -> Block:
    """Return a client's block: the values at rows and columns (None: all), and the labels given.

    `samples` are the ids of the rows, where several blocks share them.
    """
    features = dataset.features
    run: slice | Positions = slice(None)
    if columns is not None:
        features = tuple(features[at] for at in columns.tolist())
        run = _run(columns)
    if dataset.sparse:
        x: Any = dataset.x[rows][:, run].astype(np.float64)
    else:
        x = floats(dataset.x, rows, run, len(features), dataset.scale)
    groups, shapes = held_groups(features, dataset.groups, dataset.shapes)
    samples = dataset.samples[rows] if samples is None else samples
    kinds = dataset.indicators
    kinds = kinds if kinds is None or columns is None else kinds[columns]
    levels = dataset.levels if columns is None else held_levels(features, dataset.levels)
    return Block(samples, features, x, y, groups, shapes=shapes, indicators=kinds, levels=levels)


def _run(columns: Positions) -> slice | Positions:
    """Return contiguous columns as a slice, which is read without a copy."""
    first = int(columns[0]) if len(columns) else 0
    run = slice(first, first + len(columns))
    return run if np.array_equal(columns, np.arange(run.start, run.stop)) else columns


def numbers(dataset: Dataset) -> Array:
    """Return the labels as a block holds them, (samples,); raise if they are text."""
    if dataset.y.dtype.kind not in "biuf":
        raise ExperimentError(
            f"The labels of {dataset.name!r} are text (first: {str(dataset.y[0])!r}) and a block "
            "holds numbers; encode them first with `encoded`."
        )
    return dataset.y.astype(np.float64)


def classes_of(dataset: Dataset) -> tuple[Array, Array, tuple[str, ...]]:
    """Return the labels, the values of the classes, ascending, and what these mean.

    It raises if the labels are text, or numbers to predict.
    """
    y = numbers(dataset)
    if dataset.classes:
        known = np.array(dataset.classes)
        return y, known, dataset.class_names or _text(known)
    if dataset.class_names or (dataset.y.dtype.kind == "f" and (y % 1 != 0).any()):
        raise ExperimentError(
            f"The labels of {dataset.name!r} are numbers to predict (regression) and the partition "
            "deals classes; set labels.task (from Python task=) for classes."
        )
    known = np.unique(y)
    return y, known, _text(known)


def _text(values: Array) -> tuple[str, ...]:
    return tuple(f"{value:g}" for value in values.tolist())


def check_count(key: str, value: Any, available: int, what: str) -> None:
    """Raise unless a value is a whole number from 1 to what there is."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or not 1 <= value <= available:
        raise ExperimentError(
            f"The partition has {key} = {value!r}; expected a whole number from 1 to {available}, "
            f"the number of {what}."
        )


def check_word(key: str, value: Any, words: Sequence[str]) -> None:
    """Raise unless a value is one of some words; advise the nearest."""
    if value not in words:
        raise ExperimentError(f"The partition has {key} = {value!r}; {nearest(str(value), words)}.")


def check_fraction(key: str, value: Any) -> None:
    """Raise unless a value is a fraction."""
    number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    if not number or not 0 <= value <= 1:
        raise ExperimentError(
            f"The partition has {key} = {value!r}; expected a fraction from 0 to 1."
        )


def check_range(key: str, value: Any, least: float, most: float, *, whole: bool = True) -> None:
    """Raise unless a value is a smallest and a largest number."""
    kinds = (int,) if whole else (int, float)
    sound = isinstance(value, Sequence) and len(value) == 2 and not isinstance(value, str)
    if sound:
        sound = all(isinstance(one, kinds) and not isinstance(one, bool) for one in value)
    if not sound or not least <= value[0] <= value[1] <= most:
        raise ExperimentError(
            f"The partition has {key} = {value!r}; expected the smallest and the largest "
            f"{'whole number' if whole else 'fraction'}, from {least:g} to {most:g}."
        )


def apportioned(shares: Array, sizes: Counts) -> Counts:
    """Return how many samples of each class each client gets, (clients, classes).

    All samples of a class are dealt. A client's number of a class differs by less than 1 from its
    share, and what rounding owes it of one class it gets of another.
    """
    found = np.zeros(shares.shape, np.int64)
    owed = np.zeros(len(shares))
    for at, size in enumerate(sizes.tolist()):
        exact = shares[:, at] * size
        found[:, at] = np.floor(exact + 1e-9)
        left = size - int(found[:, at].sum())
        owed += exact - found[:, at]
        some = np.flatnonzero(exact - found[:, at] > 1e-9)
        chosen = some[np.argsort(-owed[some], kind="stable")[:left]]
        found[chosen, at] += 1
        owed[chosen] -= 1
    return found


def draw_rows(shares: Array, classes: Positions, rng: np.random.Generator) -> list[Positions]:
    """Return the samples of each group, drawn class by class; shares are (groups, classes)."""
    counts = apportioned(shares, np.bincount(classes, minlength=shares.shape[1]))
    parts = [
        np.split(rng.permutation(np.flatnonzero(classes == at)), np.cumsum(column)[:-1])
        for at, column in enumerate(counts.T)
    ]
    return [np.concatenate(some) for some in zip(*parts, strict=True)]


def draw_classes(
    groups: int, classes: int, each: int, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Return which classes each group has, (groups, classes): each class as often as any other."""
    held = np.zeros((groups, classes), bool)
    for own in held:
        own[fewest_first(held.sum(axis=0), rng)[:each]] = True
    return held


def fewest_first(counts: NDArray[Any], rng: np.random.Generator) -> Positions:
    """Return the order of classes or blocks by their numbers of holders, else a random one."""
    return np.lexsort((rng.random(len(counts)), counts))


def client_names(number: int, prefix: str = "client") -> list[ClientId]:
    """Return names with numbers of one width: client00 to client11."""
    return [f"{prefix}{at:0{len(str(number - 1))}}" for at in range(number)]


def is_test(dataset: Dataset) -> bool:
    """Return whether a data set is a test part."""
    return dataset.test is not None and bool(dataset.test.all())


def runs(members: int, groups: int) -> NDArray[np.intp]:
    """Return the group of each member, in runs of one size up to one.

    The longer runs are spread among the others, so that runs of runs are nearly of one size too.
    """
    return (2 * np.arange(members) + 1) * groups // (2 * members)
