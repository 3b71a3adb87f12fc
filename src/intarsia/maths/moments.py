"""Moments of the columns of a sparse table, and its standardised entries, compiled."""

from __future__ import annotations

from typing import Any

import numpy as np

from intarsia.maths.jit import compiled

_LARGEST = np.finfo(np.float64).max


@compiled
def entry_sums(x: Any, held: Any, mean: Any, power: int) -> Any:
    """Return Σ 1/holders and Σ (x - mean)^power / holders over entries, each (columns,).

    Entries count in their order, and those that are NaN do not.

    Parameters
    ----------
    x
        Data, indices and indptr of a table in CSR.
    held
        (rows,) and (columns,) the kinds of each, how many hold (row kinds, column kinds), and where
        a column is not -1 in `places`, (columns,), how many hold it in each row, (rows, places).
    mean
        (columns,)
    power
        1 or 2.
    """
    data, indices, indptr = x
    rows, columns, counts, places, observed = held
    shares, count, total = 1.0 / counts, np.zeros(len(mean)), np.zeros(len(mean))
    some_lack = observed.shape[1] > 0
    for row in range(len(indptr) - 1):
        kind = rows[row]
        for at in range(indptr[row], indptr[row + 1]):
            value, column = data[at], np.uint32(indices[at])  # no sign: none is from the end
            if np.isnan(value):
                continue
            share, apart = shares[kind, columns[column]], value - mean[column]
            if some_lack and places[column] >= 0:
                share = 1.0 / max(observed[row, places[column]], 1.0)
            count[column] += share
            total[column] += share * (apart * apart if power == 2 else apart)
    return count, total


@compiled
def standardise_entries(data: Any, indices: Any, mean: Any, factor: Any, found: Any) -> None:
    """Write (x - mean) · factor of each entry's column; 0 for NaN, and the largest for infinity."""
    for at in range(len(data)):
        column = np.uint32(indices[at])
        value = (data[at] - mean[column]) * factor[column]
        found[at] = 0.0 if np.isnan(value) else min(max(value, -_LARGEST), _LARGEST)
