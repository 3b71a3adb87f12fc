from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from intarsia.maths.linear.products import gather, row_norms, row_product, scores

LAYOUTS = pytest.mark.parametrize("layout", [np.ascontiguousarray, csr_array])


def drawn(samples, features, outputs, seed):
    """Return a table with rows and columns of zeros, and vectors over both."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(samples, features)) * (rng.random((samples, features)) < 0.4)
    return x, rng.normal(size=(outputs, features)), rng.normal(size=(outputs, samples))


shapes = st.tuples(*(st.integers(0, 6),) * 2, st.integers(1, 3), st.integers(0, 99))


@LAYOUTS
@given(shape=shapes)
def test_scores_and_gather_are_matrix_products(layout, shape):
    x, w, a = drawn(*shape)
    values = layout(x)
    np.testing.assert_allclose(scores(values, w), w @ x.T, rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(gather(values, a), a @ x, rtol=1e-13, atol=1e-14)
    assert scores(values, w).flags.c_contiguous


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("outputs", [1, 3, 6])
@pytest.mark.parametrize(("values", "weights"), ["ff", "fd", "dd"])
def test_scores_have_the_precision_of_what_they_are_products_of(values, weights, outputs, order):
    x, w, _ = drawn(50, 37, outputs, 0)
    x, w = np.asarray(x, values, order=order), w.astype(weights)
    found = scores(x, w)
    assert found.dtype == np.dtype(max(values, weights, key="fd".index))
    rounded = 1e-5 if found.dtype == np.float32 else 1e-13
    np.testing.assert_allclose(found, w.astype(float) @ x.T.astype(float), rounded, rounded)


@pytest.mark.parametrize("outputs", [1, 6])
def test_a_flag_of_the_processor_ends_no_product(outputs):
    # 0 · inf raises the flag that OpenBLAS raises by mistake
    x = np.float32([[1.0, np.inf], [2.0, 3.0]])
    found = scores(x, np.float32([[2.0, 0.0]] * outputs))
    np.testing.assert_array_equal(found, [[np.nan, 4.0]] * outputs)


@pytest.mark.parametrize("places", [np.uint16, np.int32])
@pytest.mark.parametrize("entries", range(10))
def test_a_row_product_counts_each_entry_between_its_bounds_once(places, entries):
    w, data = np.random.default_rng(0).normal(size=(2, 14))
    chosen = np.arange(14)[::-1].astype(places)
    expected = data[2 : 2 + entries] @ w[chosen[2 : 2 + entries]]
    assert row_product(data, chosen, 2, 2 + entries, w) == pytest.approx(expected, rel=1e-13)


@LAYOUTS
def test_gather_is_the_transpose_of_scores(layout):
    x, w, a = drawn(40, 30, 2, 0)
    values = layout(x)
    left, right = np.vdot(scores(values, w), a), np.vdot(w, gather(values, a))
    assert left == pytest.approx(right, rel=1e-13)


@LAYOUTS
def test_row_norms_are_squared(layout):
    x = layout(np.array([[3.0, 4.0, 0.0], [0.0, 0.0, 0.0], [0.0, -1.0, 0.0]]))
    np.testing.assert_array_equal(row_norms(x), [25.0, 0.0, 1.0])


def test_views_and_wide_indices_are_read_as_they_are():
    x, w, a = drawn(20, 12, 2, 1)
    part = np.asfortranarray(x)[::2, 3:]
    np.testing.assert_allclose(scores(part, w[:, 3:]), w[:, 3:] @ part.T, rtol=1e-13)
    wide = csr_array(x)
    wide.indices, wide.indptr = wide.indices.astype(np.int64), wide.indptr.astype(np.int64)
    np.testing.assert_allclose(gather(wide, a), a @ x, rtol=1e-13, atol=1e-14)
