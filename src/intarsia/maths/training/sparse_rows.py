"""The rows of a sparse table, which become a full matrix batch by batch."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from scipy.sparse import csr_array

from intarsia.maths.training.torch_import import Tensor, torch


class SparseRows:
    """Rows that are stored sparse, (samples, features); those that are picked are a tensor.

    In a learner they stand in the place of a tensor: a table of thousands of indicators would take
    hundreds of times the memory as a full matrix.
    """

    device = torch.device("cpu")

    def __init__(self, table: csr_array) -> None:
        self._table = table
        self.shape = torch.Size(table.shape)
        self.dtype = torch.from_numpy(np.zeros(0, table.dtype)).dtype
        self.nbytes = self.shape.numel() * self.dtype.itemsize  # of the full matrix

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, picked: Any) -> Tensor:
        rows = self._table[picked.numpy() if isinstance(picked, Tensor) else picked]
        return torch.from_numpy(rows.toarray())

    def to(self, device: Any) -> Tensor:
        """Return all rows as a tensor on a device."""
        return self[:].to(device)


Rows: TypeAlias = Tensor | SparseRows  # each (samples, ...)


def in_full(rows: Rows) -> Tensor:
    """Return all rows as a tensor."""
    return rows[:] if isinstance(rows, SparseRows) else rows
