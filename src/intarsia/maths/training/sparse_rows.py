"""The rows of a sparse table, which are read batch by batch: by the columns that a batch has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from scipy.sparse import csr_array

from intarsia.maths.training.torch_import import Tensor, torch

_PART = 256  # rows that are scored at a time


@dataclass(frozen=True)
class SparseBatch:
    """Rows by those of their columns that are not all zero; a linear layer reads no others."""

    columns: Tensor  # (columns,) in order
    values: Tensor  # (rows, columns)
    features: int  # of the table

    def in_full(self) -> Tensor:
        """Return the rows with all columns, (rows, features)."""
        full = self.values.new_zeros(len(self.values), self.features)
        full[:, self.columns] = self.values
        return full


Picked: TypeAlias = Tensor | SparseBatch  # each of the rows that are picked


class SparseRows:
    """Rows that are stored sparse, (samples, features); those that are picked are a tensor.

    In a learner they stand in the place of a tensor: a table of thousands of indicators would take
    hundreds of times the memory as a full matrix.
    """

    device = torch.device("cpu")

    def __init__(self, table: csr_array) -> None:
        if not table.has_canonical_format:
            table = table.copy()
            table.sum_duplicates()
        self._table = table
        self.shape = torch.Size(table.shape)
        self.dtype = torch.from_numpy(np.zeros(0, table.dtype)).dtype
        self.nbytes = self.shape.numel() * self.dtype.itemsize  # of the full matrix

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, picked: Any) -> Tensor:
        rows = self._table[picked.numpy() if isinstance(picked, Tensor) else picked]
        return torch.from_numpy(rows.toarray())

    def batch(self, picked: Tensor) -> Picked:
        """Return rows, by their columns where most of the table's are not among these."""
        table, features = self._table, int(self.shape[1])
        places = picked.numpy()
        starts = table.indptr[places]
        counts = table.indptr[places + 1] - starts
        ends = np.cumsum(counts)
        entries = np.arange(counts.sum()) + np.repeat(starts - ends + counts, counts)
        rows, held = np.repeat(np.arange(len(places)), counts), table.indices[entries]
        there = np.zeros(features, bool)
        there[held] = True
        columns = np.flatnonzero(there)
        few = 2 * len(columns) <= features
        if few:
            place = np.zeros(features, np.intp)
            place[columns] = np.arange(len(columns))
            held = place[held]
        values = np.zeros((len(places), len(columns) if few else features), table.dtype)
        values[rows, held] = table.data[entries]
        found = torch.from_numpy(values)
        return SparseBatch(torch.from_numpy(columns), found, features) if few else found

    def to(self, device: Any) -> Tensor:
        """Return all rows as a tensor on a device."""
        return self[:].to(device)


Rows: TypeAlias = Tensor | SparseRows  # each (samples, ...)


def in_full(rows: Rows | SparseBatch) -> Tensor:
    """Return all rows as a tensor."""
    if isinstance(rows, SparseBatch):
        return rows.in_full()
    return rows[:] if isinstance(rows, SparseRows) else rows


def parts_of_rows(values: Sequence[Rows], most: int) -> Iterator[list[Picked]]:
    """Return all rows of several values in their order, so many at a time at most.

    Where some are sparse, fewer, so that these come by their columns.
    """
    rows = len(values[0])
    if any(isinstance(one, SparseRows) for one in values):
        most = min(most, _PART)
    for start in range(0, rows, most):
        places = slice(start, min(start + most, rows))
        yield [
            one.batch(torch.arange(places.start, places.stop))
            if isinstance(one, SparseRows)
            else one[places]
            for one in values
        ]
