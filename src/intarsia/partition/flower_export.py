"""The partitions as partitioners of flwr-datasets: rows, columns, and rows × columns.

`flower` is the other direction. This module needs flwr-datasets to be imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from datasets import Dataset as Table
from flwr_datasets.partitioner import Partitioner
from numpy.typing import NDArray

from intarsia.core.block import Block, ClientId
from intarsia.data.dataset import Dataset
from intarsia.errors import ExperimentError, listed, nearest
from intarsia.partition.client_clusters import Structure
from intarsia.partition.registry import KINDS, Deal, deal

_OTHER = frozenset({"blocks", "flower", "natural", "prior_shift"})


class IntarsiaPartitioner(Partitioner):  # type: ignore[misc]  # the library has no types
    """Deals a table of flwr-datasets as a partition here does.

    Every column but the label and those that all share is a feature. With `kind="grid"` or
    "overlap" a partition has some of the rows and some of the columns.

    Parameters
    ----------
    kind
        One of `partition.KINDS` but "blocks", "flower", "natural" and "prior_shift".
    label
        The column with the labels; None: there is none, and none is needed.
    shared
        Columns that every partition has beside those that are dealt, such as the ids of the rows.
    like
        The partitioner of the training split: a test split gets the same share of each class.
    keys
        Those of the partition.

    Raises
    ------
    ExperimentError
        If the kind or a key is unknown.
    """

    def __init__(
        self,
        kind: str,
        *,
        label: str | None = "label",
        shared: Sequence[str] = (),
        like: IntarsiaPartitioner | None = None,
        **keys: Any,
    ) -> None:
        super().__init__()
        if kind not in KINDS or kind in _OTHER:
            known = sorted(set(KINDS) - _OTHER)
            raise ExperimentError(
                f"There is no partitioner of kind {kind!r} for a table; {nearest(kind, known)}."
            )
        self._kind, self._label, self._like, self._keys = kind, label, like, keys
        self._shared = tuple(shared)
        self._blocks: dict[ClientId, Block] | None = None
        self._deal: Deal | None = None

    @property
    def num_partitions(self) -> int:
        """Return the number of clients."""
        return len(self._dealt())

    @property
    def structure(self) -> Structure | None:
        """Return who is dealt alike; None where the kind says nothing of it."""
        return self._how().structure

    def load_partition(self, partition_id: int) -> Table:
        """Return the rows and columns of a client, by its number from 0.

        Raises
        ------
        ExperimentError
            If there is no such client, or the table cannot be dealt so.
        """
        blocks = list(self._dealt().values())
        if not 0 <= partition_id < len(blocks):
            raise ExperimentError(
                f"There is no partition {partition_id!r}; there are {len(blocks)}, from 0."
            )
        block = blocks[partition_id]
        held = {*block.features, *self._shared}
        if block.y is not None and self._label is not None:
            held.add(self._label)
        table = self.dataset.select(block.samples.tolist())
        table = table.select_columns([name for name in table.column_names if name in held])
        if self._label is None or block.y is None:
            return table
        values, codes = self._labels()
        if (codes[block.samples] == block.y).all():
            return table
        # a cluster has its own names for the classes
        order = table.column_names
        named = values[block.y.astype(np.intp)].tolist()
        feature = self.dataset.features[self._label]
        table = table.remove_columns(self._label).add_column(self._label, named, feature=feature)
        return table.select_columns(order)

    def _labels(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the values of the labels, and for each row the number of its value."""
        if self._label is None:
            return np.zeros(1), np.zeros(self.dataset.num_rows, np.intp)
        if self._label not in self.dataset.column_names:
            raise ExperimentError(
                f"The table has no column {self._label!r} with labels but "
                f"{listed(self.dataset.column_names)}; name it by label, or set label=None."
            )
        return np.unique(np.array(self.dataset[self._label]), return_inverse=True)

    def _rows(self) -> Dataset:
        """Return the table as a data set without values."""
        values, codes = self._labels()
        apart = {self._label, *self._shared}
        features = tuple(name for name in self.dataset.column_names if name not in apart)
        size = self.dataset.num_rows
        return Dataset(
            "table",
            np.arange(size),
            features,
            np.broadcast_to(np.zeros(1, np.uint8), (size, len(features))),
            codes.astype(np.float64),
            test=None if self._like is None else np.ones(size, bool),
            classes=tuple(range(len(values))),
        )

    def _how(self) -> Deal:
        if self._like is not None:
            return self._like._how()
        if self._deal is None:
            self._deal = deal(self._kind, self._rows(), **self._keys)
        return self._deal

    def _dealt(self) -> dict[ClientId, Block]:
        if self._blocks is None:
            self._blocks = self._how().to_clients(self._rows())
        return self._blocks
