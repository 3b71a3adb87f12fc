"""A partitioner of flwr-datasets as a partition: its rows and columns become the clients' blocks.

`flower_export` is the other direction.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray

from intarsia.core.block import Array, Block, ClientId
from intarsia.data.dataset import Dataset
from intarsia.errors import ExperimentError, first_line, nearest
from intarsia.partition.checks import Positions, block_of, client_names, draw_rows, is_test, numbers

ROW = "row"  # the column by which rows are known again
_LABEL, _CLIENT = "label", "client"


@dataclass(frozen=True, eq=False)
class FlowerDeal:
    """Which rows and columns of a training part each client has, and how a test part follows.

    The test part is dealt so that each client has the same share of each class: rows that the same
    clients hold in the training part are dealt as one.
    """

    training: NDArray[Any]  # (training samples,) their classes
    rows: Mapping[ClientId, Positions]
    columns: Mapping[ClientId, tuple[int, ...]]
    labelled: frozenset[ClientId]
    seed: int
    structure: None = None  # it says nothing of who is dealt alike

    def deal(self, dataset: Dataset) -> dict[ClientId, Block]:
        """Deal the training part itself, or a test part in the same shares.

        Raises
        ------
        ExperimentError
            If the labels are text, or the test part has classes that the training part has not.
        """
        rows = self._shared(dataset) if is_test(dataset) else self.rows
        return {name: self._block(dataset, name, np.sort(rows[name])) for name in self.rows}

    def _shared(self, dataset: Dataset) -> dict[ClientId, Positions]:
        owners = np.zeros((len(self.training), len(self.rows)), bool)
        for at, own in enumerate(self.rows.values()):
            owners[own, at] = True
        cells, cell = np.unique(owners, axis=0, return_inverse=True)
        test = _classes(dataset)
        codes, train = np.unique(self.training, return_inverse=True)
        if not np.isin(test, codes).all():
            raise ExperimentError(
                f"The test part of {dataset.name!r} has classes of which the training part has no "
                "sample; give both parts the same classes."
            )
        test = np.searchsorted(codes, test)
        held = np.zeros((len(cells), len(codes)))
        np.add.at(held, (cell.reshape(-1), train), 1)
        shuffle = np.random.default_rng([self.seed, 11])
        rows = draw_rows(held / held.sum(axis=0), test, shuffle)
        return {
            name: np.concatenate([rows[at] for at in np.flatnonzero(members)])
            for name, members in zip(self.rows, cells.T, strict=True)
        }

    def _block(self, dataset: Dataset, name: ClientId, rows: Positions) -> Block:
        y = numbers(dataset)[rows] if name in self.labelled else None
        return block_of(dataset, rows, y, np.array(self.columns[name], np.intp))


def flower(
    dataset: Dataset,
    *,
    partitioner: Any,
    arguments: Mapping[str, Any] = MappingProxyType({}),
    seed: int = 0,
) -> FlowerDeal:
    """Deal a data set by a partitioner of flwr-datasets.

    It sees the columns `label` (what the labels mean, as text, or numbers to predict), `client`
    (where the data set says whose each sample is), `row`, and the features that its arguments name;
    one that deals columns, or is made in Python, sees all of them by their names, of a sparse table
    none. Where it does not see them all, each client has them all. A partition without `row` has
    all rows, one without `label` no labels; those that deal columns share `row` (where the class
    takes `shared_columns`, this is done here).

    Parameters
    ----------
    partitioner
        The name of a class in `flwr_datasets.partitioner`; from Python also a partitioner.
    arguments
        What the class is made with; its `seed` is this one's unless given, where it has one.

    Raises
    ------
    ExperimentError
        If the library is not installed, there is no such class, or it refuses its arguments or the
        data set.
    """
    classes = _library("flwr_datasets.partitioner")
    hugging = _library("datasets")
    made = partitioner
    if isinstance(partitioner, str):
        known = [name for name in dir(classes) if name.endswith("Partitioner")]
        known.remove("Partitioner")
        if partitioner not in known:
            raise ExperimentError(
                f"The partition has partitioner = {partitioner!r}; {nearest(partitioner, known)}."
            )
        kind = getattr(classes, partitioner)
        made = _made(kind, partitioner, dict(arguments), seed)
    shown = _shown(dataset, made, arguments)
    table = hugging.Dataset(_table(dataset, shown))
    try:
        made.dataset = table
        parts = [made.load_partition(at) for at in range(made.num_partitions)]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as problem:
        raise ExperimentError(
            f"The partitioner {type(made).__name__} does not deal {dataset.name!r}: "
            f"{first_line(problem)}; change its arguments."
        ) from problem
    place = {feature: at for at, feature in enumerate(dataset.features)}
    names = client_names(len(parts))
    every = np.arange(dataset.shape[0])
    rows = {
        # alone first: else all columns of each row are read
        name: np.array(part.select_columns([ROW])[ROW], np.intp)
        if ROW in part.column_names
        else every
        for name, part in zip(names, parts, strict=True)
    }
    whole = None if shown == dataset.features else tuple(range(dataset.shape[1]))
    columns = {
        name: whole or tuple(place[one] for one in part.column_names if one in place)
        for name, part in zip(names, parts, strict=True)
    }
    labelled = [n for n, part in zip(names, parts, strict=True) if _LABEL in part.column_names]
    for name in names:
        if not len(rows[name]):
            raise ExperimentError(
                f"The partitioner {type(made).__name__} gives {name} no sample of "
                f"{dataset.name!r}; change its arguments."
            )
    return FlowerDeal(_classes(dataset), rows, columns, frozenset(labelled), seed)


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ExperimentError(
            "A partition of kind 'flower' needs the library flwr-datasets, which is not installed; "
            'run pip install "intarsia[flower]".'
        ) from error


def _made(kind: Any, name: str, arguments: dict[str, Any], seed: int) -> Any:
    known = inspect.signature(kind).parameters
    for key in arguments:
        if key not in known:
            raise ExperimentError(
                f"The partitioner {name} has no argument {key!r}; {nearest(key, known)}."
            )
    if "seed" in known:
        arguments.setdefault("seed", seed)
    if "shared_columns" in known:  # it deals columns: all of its partitions have all rows
        shared = arguments.get("shared_columns") or []
        arguments["shared_columns"] = [ROW, *([shared] if isinstance(shared, str) else shared)]
    try:
        return kind(**arguments)
    except (ValueError, TypeError) as problem:
        raise ExperimentError(
            f"The partitioner {name} does not take its arguments: {first_line(problem)}; change "
            "partition.arguments."
        ) from problem


def _shown(dataset: Dataset, made: Any, arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the features that a partitioner sees.

    Tables of that library cost the square of their columns: 784 of them take half a minute.
    """
    if dataset.sparse:
        return ()
    if not arguments or "shared_columns" in inspect.signature(type(made)).parameters:
        return dataset.features
    named = {str(one) for value in arguments.values() for one in _each(value)}
    return tuple(name for name in dataset.features if name in named)


def _each(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _table(dataset: Dataset, features: tuple[str, ...]) -> pyarrow.Table:
    """Return what a partitioner sees of a data set."""
    for name in (ROW, _LABEL, _CLIENT):
        if name in features:
            raise ExperimentError(
                f"{dataset.name!r} has a feature {name!r}, which is the name of a column that a "
                "partitioner of flwr-datasets is shown; rename the feature."
            )
    y = numbers(dataset)
    columns: dict[str, Any] = {ROW: np.arange(len(y)), _LABEL: y}
    if dataset.classes and dataset.class_names:
        place = np.searchsorted(np.array(dataset.classes), y)
        columns[_LABEL] = np.array(dataset.class_names)[place]
    if dataset.clients is not None:
        columns[_CLIENT] = dataset.clients
    number = {name: at for at, name in enumerate(dataset.features)}
    for name in features:
        columns[name] = np.ascontiguousarray(dataset.x[:, number[name]])
    return pyarrow.table(columns)


def _classes(dataset: Dataset) -> NDArray[Any]:
    """Return the labels, and one class for numbers to predict, (samples,)."""
    y: Array = numbers(dataset)
    if dataset.class_names and not dataset.classes:
        return np.zeros(len(y))
    return np.zeros(len(y)) if not dataset.classes and (y % 1 != 0).any() else y
