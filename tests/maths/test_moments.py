from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from intarsia.core.block import Copies
from intarsia.maths.moments import entry_sums, standardise_entries


def _table() -> tuple[csr_array, Copies, NDArray[Any]]:
    """Return a sparse table with entries that are missing, and how many hold each of its values."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 5)) * (rng.random((60, 5)) < 0.7)
    found = csr_array(x)
    found.data[rng.random(found.nnz) < 0.1] = np.nan
    counts = np.array([[1.0, 3.0], [2.0, 4.0]])
    observed = rng.integers(0, 3, (60, 1)).astype(np.float64)  # 0 counts as 1
    places = np.array([-1, -1, 0, -1, -1])
    copies = Copies(rng.integers(0, 2, 60), np.array([0, 1, 0, 1, 1]), counts, observed, places)
    return found, copies, copies.dense()


def test_sums_over_entries_are_those_of_each_value_divided_by_its_holders() -> None:
    x, copies, holders = _table()
    mean = np.array([0.5, -0.25, 0.0, 1.0, 0.125])
    for power in (1, 2):
        count, total = entry_sums((x.data, x.indices, x.indptr), copies.arrays, mean, power)
        for column in range(5):
            rows = x.indices == column
            at = np.repeat(np.arange(60), np.diff(x.indptr))[rows]
            own, held = x.data[rows], holders[at, column]
            there = ~np.isnan(own)
            assert 0 < there.sum() < len(there)
            apart = (own[there] - mean[column]) ** power / held[there]
            assert math.isclose(count[column], math.fsum(1 / held[there]), rel_tol=1e-14)
            assert math.isclose(total[column], math.fsum(apart), rel_tol=1e-12)


def test_sums_over_entries_have_the_bits_of_numpys() -> None:
    x, copies, _ = _table()
    mean = np.array([0.5, -0.25, 0.0, 1.0, 0.125])
    count, total = entry_sums((x.data, x.indices, x.indptr), copies.arrays, mean, 2)
    there = ~np.isnan(x.data)
    share = there / copies.of_entries(x)
    squares = share * np.where(there, x.data - mean[x.indices], 0.0) ** 2
    assert np.array_equal(count, np.bincount(x.indices, share, 5))
    assert np.array_equal(total, np.bincount(x.indices, squares, 5))


def test_standardised_entries_are_finite() -> None:
    data = np.array([3.0, np.nan, 1e300, -1e300])
    found = np.full(4, 7.0)
    mean, factor = np.array([1.0, 0.0]), np.array([0.5, 1e200])
    standardise_entries(data, np.array([0, 0, 1, 1], np.int32), mean, factor, found)
    largest = np.finfo(np.float64).max
    assert found.tolist() == [1.0, 0.0, largest, -largest]
