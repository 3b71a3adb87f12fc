"""Rows as networks take them: of one type, all at once or some at a time."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

pytest.importorskip("torch")

from scipy.sparse import csr_array

from intarsia.algorithms.networks import training_rows
from intarsia.algorithms.networks.architecture import Architecture, Network, outputs_of
from intarsia.algorithms.networks.training_rows import check_whole, dense, labelled_rows
from intarsia.core.block import Block
from intarsia.errors import TableError
from intarsia.maths.training.local_training import initial_parameters


def block(rows=300, columns=40, *, sparse=True):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, columns)) * (rng.random((rows, columns)) < 0.1)
    y = np.where(rng.random(rows) < 0.8, rng.integers(0, 2, rows).astype(float), np.nan)
    names = tuple(f"f{number:02}" for number in range(columns))
    return Block(np.arange(rows), names, csr_array(x) if sparse else x, y), x


@pytest.mark.parametrize("sparse", [True, False])
def test_rows_of_single_precision_are_those_of_double_rounded(sparse):
    one, x = block(sparse=sparse)
    found = dense(one, np.float32)
    assert found.dtype == np.float32
    assert np.array_equal(found, x.astype(np.float32))
    rows, labels = labelled_rows(one, np.float32)
    held = ~np.isnan(one.y)
    assert np.array_equal(rows, x[held].astype(np.float32))
    assert np.array_equal(labels, one.y[held])


@pytest.mark.parametrize("sparse", [True, False])
def test_a_missing_value_is_refused(sparse):
    one, x = block(sparse=sparse)
    place = tuple(np.argwhere(x)[0])
    x[place] = np.nan
    # a sparse table may lack numbers where some of its columns are levels
    kinds = np.repeat([0, 1], 20) if sparse else None
    x = csr_array(x) if sparse else x
    one = Block(one.samples, one.features, x, one.y, indicators=kinds)
    with pytest.raises(TableError, match="1 value is missing"):
        check_whole(one)


def test_a_sparse_table_is_never_full_in_double_precision():
    one, _ = block(4000, 400)
    full = 8 * 4000 * 400
    tracemalloc.start()
    try:
        check_whole(one)
        assert tracemalloc.get_traced_memory()[1] < full / 10
        tracemalloc.reset_peak()
        dense(one, np.float32)
        assert tracemalloc.get_traced_memory()[1] < 0.75 * full
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("sparse", [True, False])
def test_scores_of_rows_some_at_a_time_are_those_of_all_at_once(sparse, monkeypatch):
    one, _ = block(sparse=sparse)
    made_of = Architecture(hidden=8, latent=4)
    network = initial_parameters(Network(40, 2, made_of))
    parameters = {name: values.numpy().astype(np.float64) for name, values in network.items()}
    whole = outputs_of(parameters, made_of, one)
    monkeypatch.setattr(training_rows, "_AT_ONCE", 40 * 7)  # 43 times
    for all_at_once, some in zip(whole, outputs_of(parameters, made_of, one), strict=True):
        assert some.shape == all_at_once.shape
        np.testing.assert_allclose(some, all_at_once, rtol=1e-12, atol=1e-14)
