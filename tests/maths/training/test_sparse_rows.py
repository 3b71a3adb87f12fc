"""Rows that are stored sparse: what is picked of them, and what linear layers make of that."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from scipy.sparse import csr_array  # noqa: E402

from intarsia.maths.training.layers import StackedLinear  # noqa: E402
from intarsia.maths.training.local_training import (  # noqa: E402
    Learner,
    LocalTraining,
    initial_parameters,
    train_alone,
)
from intarsia.maths.training.optimisers import SGD, Adam  # noqa: E402
from intarsia.maths.training.sparse_rows import (  # noqa: E402
    SparseBatch,
    SparseRows,
    in_full,
    parts_of_rows,
)


def table(rows=300, features=200, *, held=3, kind=np.float64):
    """Return rows with a few numbers each; some have none."""
    rng = np.random.default_rng(0)
    full = np.zeros((rows, features), kind)
    for row in full[::2]:
        row[rng.choice(features, held, replace=False)] = rng.normal(size=held)
    return full


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_a_batch_has_the_columns_of_its_rows_alone(kind):
    full = table(kind=kind)
    picked = torch.tensor([4, 1, 298, 4])
    batch = SparseRows(csr_array(full)).batch(picked)
    assert isinstance(batch, SparseBatch)
    own = full[picked.numpy()]
    there = np.flatnonzero(own.any(axis=0))
    assert np.array_equal(batch.columns.numpy(), there)
    assert np.array_equal(batch.values.numpy(), own[:, there])
    assert batch.values.numpy().dtype == kind
    assert np.array_equal(batch.in_full().numpy(), own)


def test_rows_of_most_columns_come_in_full():
    full = table(features=20, held=8)
    picked = torch.arange(40)
    batch = SparseRows(csr_array(full)).batch(picked)
    assert isinstance(batch, torch.Tensor)
    assert np.array_equal(batch.numpy(), full[:40])


def test_numbers_of_one_place_add_up():
    twice = csr_array((np.array([1.0, 2.0, 5.0]), [7, 7, 3], [0, 3]), shape=(1, 50))
    rows = SparseRows(twice)
    assert np.array_equal(in_full(rows.batch(torch.tensor([0]))).numpy(), twice.toarray())
    assert twice.nnz == 3  # whoever holds the table has it as it was


@pytest.mark.parametrize("rows", [0, 1, 255, 256, 257, 600])
def test_all_rows_come_in_their_order_some_at_a_time(rows):
    full = table(max(rows, 1))[:rows]
    tensor = torch.from_numpy(full)
    parts = [*parts_of_rows([SparseRows(csr_array(full)), tensor], 2000)]
    for own in zip(*parts, strict=True):
        assert np.array_equal(torch.cat([in_full(one) for one in own]).numpy(), full)
    assert len(parts) == -(-rows // 256)
    assert len([*parts_of_rows([tensor], 2000)]) == min(rows, 1)
    assert len([*parts_of_rows([tensor], 100)]) == -(-rows // 100)


def test_a_linear_layer_gives_and_learns_the_same_of_a_batch():
    full, layer = table(), StackedLinear(200, 5).double()
    batch = SparseRows(csr_array(full)).batch(torch.arange(30))
    upward = torch.from_numpy(np.random.default_rng(1).normal(size=(30, 5)))
    slopes = []
    for x in (batch, torch.from_numpy(full[:30])):
        layer.zero_grad()
        found = layer(x)
        found.backward(upward)
        slopes.append([found.detach(), *(one.grad.clone() for one in layer.parameters())])
    for one, other in zip(*slopes, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-13)


def squares(model, batch):
    """Return the squared errors of a batch."""
    return (model(batch["x"])[..., 0] - batch["y"]).square()


@pytest.mark.parametrize(
    "how",
    [
        {"optimiser": SGD(rate=0.1)},
        {"optimiser": SGD(rate=0.1, momentum=0.9)},
        {"optimiser": Adam(rate=0.01)},
        {"optimiser": Adam(rate=0.01), "decay": {"weight": 0.1}},
        {"optimiser": SGD(rate=0.1), "proximal": {"*": 0.3}},
        {"optimiser": SGD(rate=0.1), "proximal": {"weight": 0.3}, "squared": False},
        {"optimiser": SGD(rate=0.1), "gradient_clip": 0.01},
    ],
    ids=str,
)
def test_sparse_and_full_rows_train_alike(how):
    full = table()
    training = LocalTraining(
        model=StackedLinear(200, 1).double(),
        loss=squares,
        epochs=3,
        batch_size=32,
        stacked=True,
        **how,
    )
    given = {"parameters": initial_parameters(training.model), "key": 5}
    y = torch.from_numpy(np.random.default_rng(2).normal(size=300))
    sparse, dense = (
        train_alone(training, Learner(rows={"x": rows, "y": y}, **given))
        for rows in (SparseRows(csr_array(full)), torch.from_numpy(full))
    )
    for name, values in dense.parameters.items():
        assert not torch.equal(values, given["parameters"][name])
        torch.testing.assert_close(sparse.parameters[name], values, rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(sparse.losses, dense.losses, rtol=1e-10, atol=0)
