"""Gram matrices of a client's samples within each feature cell, packed for a sum over clients.

They are what the Hessian of Newton's method is on the features of one cell, from some samples.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from intarsia.core.block import Array, Values
from intarsia.core.schema import Cell

__all__ = ["BLOCK", "cell_grams", "halves", "height"]

BLOCK = 512  # most features of a cell for a full Gram matrix in the preconditioner
_GRAM = 8  # samples in a Gram matrix for each of its features


def height(cells: Sequence[Cell]) -> int:
    """Return the rows that half of the widest full Gram matrix needs; diagonals need one."""
    sizes = [cell.stop - cell.start for cell in cells]
    return max((size // 2 + 1 for size in sizes if size <= BLOCK), default=1)


def halves(size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where the entries of half of a symmetric matrix stand: row and column, each 2-D.

    Row k of the half holds the entries (j, j + k modulo the size): all are there by symmetry.
    """
    shift, column = np.arange(size // 2 + 1)[:, None], np.arange(size)
    return np.broadcast_to(column, (len(shift), size)), (shift + column) % size


def cell_grams(
    x: Values,
    selected: NDArray[np.int64],
    curvature: Array,
    cells: Sequence[tuple[int, int]],
    *,
    height: int,
    samples: int,
) -> Array:
    """Return Xᵀ h X / N of the client's samples within each feature cell.

    Columns are features, (outputs, height, features), and rows those of `halves`, so that no entry
    is sent twice; wide cells have their diagonal in row 0.

    Parameters
    ----------
    selected, curvature
        Some of the client's samples, and h of each, (outputs, selected).
    cells
        Where the client's features of a cell start and stop.
    height
        Rows that the cells of the whole federation need.
    samples
        N.
    """
    gram = np.zeros((len(curvature), height, x.shape[1]))
    for start, stop in cells:
        size = stop - start
        if size > BLOCK:
            rows = x[selected][:, start:stop]
            squares = rows.multiply(rows) if isinstance(rows, csr_array) else rows * rows
            gram[:, 0, start:stop] = (squares.T @ curvature.T).T / samples
            continue
        most = -(-_GRAM * size * x.shape[0] // samples)
        taken = np.arange(0, len(selected), max(1, len(selected) // most))
        rows = x[selected[taken]][:, start:stop]
        rows = rows.toarray() if isinstance(rows, csr_array) else rows
        for c, h in enumerate(curvature):
            part = h[taken]
            factor = h.sum() / (part.sum() * samples) if part.sum() > 0 else 0.0
            weighted = rows * np.sqrt(part * factor)[:, None]
            gram[c, : size // 2 + 1, start:stop] = (weighted.T @ weighted)[halves(size)]
    return gram
