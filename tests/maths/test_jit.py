"""Kernels that ask for rows before their turn, against products with a dense table."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array

from intarsia.maths.linear import losses, sdca, sgd
from intarsia.maths.linear.products import row_norms
from intarsia.maths.linear.row_products import gather_rows, pack_rows, score_pairs, score_rows

RATE, SAMPLES = 0.1, 40


def table(widest: int) -> csr_array:
    """Return rows of 0 to `widest` entries, the last of them empty."""
    rng = np.random.default_rng(widest)
    dense = np.zeros((SAMPLES, 300))
    for i in range(SAMPLES - 1):
        columns = rng.choice(300, rng.integers(0, widest + 1), replace=False)
        dense[i, columns] = rng.normal(size=len(columns))
    return sdca.as_rows(csr_array(dense))


@pytest.mark.parametrize("widest", [0, 3, 15, 16, 17, 200])
@pytest.mark.parametrize("count", [0, 1, 3, 4, SAMPLES])
def test_products_of_rows_in_any_order(widest, count):
    x, rng = table(widest), np.random.default_rng(count)
    rows, dense = rng.permutation(SAMPLES)[:count], x.toarray()
    v, w, a = rng.normal(size=(2, 300)), rng.normal(size=(2, 300)), rng.normal(size=(2, count))
    np.testing.assert_allclose(score_rows(x, rows, w), w @ dense[rows].T, atol=1e-12)
    both = score_pairs(x, rows, v, w)
    np.testing.assert_allclose(np.stack(both), np.stack([v, w]) @ dense[rows].T, atol=1e-12)
    np.testing.assert_allclose(gather_rows(x, rows, a), a @ dense[rows], atol=1e-12)
    packed = pack_rows(x, rows)
    np.testing.assert_array_equal(packed.values, np.concatenate([x.data[:0], *entries(x, rows)]))


def entries(x: csr_array, rows: np.ndarray) -> list[np.ndarray]:
    return [x.data[x.indptr[i] : x.indptr[i + 1]] for i in rows]


@pytest.mark.parametrize("widest", [3, 16, 200])
@pytest.mark.parametrize("kind", [np.int64, np.int32])
def test_ascent_and_descent_on_sparse_rows_go_as_on_dense_ones(widest, kind):
    x, rng = table(widest), np.random.default_rng(0)
    x.indices, x.indptr = x.indices.astype(kind), x.indptr.astype(kind)
    dense, y = x.toarray(), np.where(rng.random((2, SAMPLES)) < 0.5, 1.0, -1.0)
    order = np.concatenate([rng.permutation(SAMPLES) for _ in range(3)]).astype(kind)
    found = []
    for rows in (x, dense):
        alpha, w = np.zeros((2, SAMPLES)), np.zeros((2, 300))
        given = {"regularisation": RATE, "loss": losses.HINGE}
        sdca.ascend(rows, y, row_norms(x), alpha, w, order, **given)
        steps = sdca.ascend_slice(
            rows,
            y,
            np.zeros((2, SAMPLES)),
            np.zeros((2, SAMPLES)),
            row_norms(x) / (RATE * SAMPLES),
            np.ones(SAMPLES),
            order,
            sigma=2.0,
            regularised_samples=RATE * SAMPLES,
            loss=losses.HINGE,
        )
        down = sgd.descend(rows, y, np.zeros((2, 300)), order, rate=0.1, batch=3, **given)
        found.append((alpha, w, steps, down))
    for sparse, full in zip(*found, strict=True):
        assert np.abs(full).max() > 0
        np.testing.assert_allclose(sparse, full, atol=1e-12)
