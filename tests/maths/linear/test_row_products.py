"""Products with some rows of a block, against the same products written out."""

import numpy as np
import pytest
from scipy.sparse import csr_array

from intarsia.maths.linear.row_products import (
    gather_packed,
    gather_rows,
    pack_rows,
    score_packed,
    score_pairs,
    score_rows,
)

LAYOUTS = pytest.mark.parametrize("layout", [np.ascontiguousarray, csr_array])
SELECTIONS = pytest.mark.parametrize("rows", [[], [3], [7, 0, 2, 11]])


def table():
    rng = np.random.default_rng(0)
    return rng.normal(size=(12, 9)) * (rng.random((12, 9)) < 0.4), rng


@LAYOUTS
@SELECTIONS
def test_products_with_rows_in_place(layout, rows):
    x, rng = table()
    rows, v, w = np.array(rows, np.int64), rng.normal(size=(2, 9)), rng.normal(size=(2, 9))
    a = rng.normal(size=(2, len(rows)))
    np.testing.assert_allclose(score_rows(layout(x), rows, w), w @ x[rows].T, atol=1e-14)
    pairs = score_pairs(layout(x), rows, v, w)
    np.testing.assert_allclose(pairs, [v @ x[rows].T, w @ x[rows].T], atol=1e-14)
    np.testing.assert_allclose(gather_rows(layout(x), rows, a), a @ x[rows], atol=1e-14)


@LAYOUTS
@SELECTIONS
def test_products_with_packed_rows(layout, rows):
    x, rng = table()
    rows, w = np.array(rows, np.int64), rng.normal(size=(2, 9))
    a = rng.normal(size=(2, len(rows)))
    packed = pack_rows(layout(x), rows)
    np.testing.assert_allclose(score_packed(packed, w), w @ x[rows].T, atol=1e-14)
    np.testing.assert_allclose(gather_packed(packed, a), a @ x[rows], atol=1e-14)


def test_packed_rows_keep_only_the_columns_in_use():
    x = csr_array(np.array([[0, 2.0, 0, 0], [1.0, 0, 0, 3.0], [0, 5.0, 0, 0]]))
    packed = pack_rows(x, np.array([2, 0]))
    assert packed.columns.tolist() == [1]
    assert packed.values.tolist() == [5.0, 2.0]


def test_tables_of_more_columns_than_sixteen_bits_count():
    x = csr_array(([1.0, 2.0], ([0, 1], [70_000, 5])), shape=(2, 70_001))
    packed = pack_rows(x, np.array([0, 1]))
    w = np.arange(70_001.0)[None]
    np.testing.assert_array_equal(score_packed(packed, w), [[70_000.0, 10.0]])
