"""Rows as networks take them: of one type, all at once or some at a time."""

from __future__ import annotations

import tracemalloc
from contextlib import contextmanager
from dataclasses import fields, replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from scipy.sparse import csr_array  # noqa: E402
from torch import nn  # noqa: E402

import federations  # noqa: E402
from intarsia.algorithms.hyfem import network as nets  # noqa: E402
from intarsia.algorithms.hyfem.extractors import Extractor  # noqa: E402
from intarsia.algorithms.hyfem.network import Composition  # noqa: E402
from intarsia.algorithms.networks import training_rows  # noqa: E402
from intarsia.algorithms.networks.architecture import Architecture, Network, outputs_of  # noqa: E402
from intarsia.algorithms.networks.training_rows import check_whole, dense, labelled_rows  # noqa: E402
from intarsia.core.block import Block  # noqa: E402
from intarsia.core.client_functions import RandomKey  # noqa: E402
from intarsia.errors import TableError  # noqa: E402
from intarsia.maths.training.local_training import Learner, LocalTraining, initial_parameters  # noqa: E402
from intarsia.maths.training.sparse_rows import SparseRows, in_full  # noqa: E402
from intarsia.maths.training.vectorised import train  # noqa: E402
from intarsia.training.registry import algorithm_named  # noqa: E402


def block(rows=300, columns=40, *, sparse=True):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, columns)) * (rng.random((rows, columns)) < 0.1)
    y = np.where(rng.random(rows) < 0.8, rng.integers(0, 2, rows).astype(float), np.nan)
    names = tuple(f"f{number:02}" for number in range(columns))
    return Block(np.arange(rows), names, csr_array(x) if sparse else x, y), x


@pytest.mark.parametrize("sparse", [True, False])
def test_rows_of_single_precision_are_those_of_double_rounded(sparse):
    one, x = block(sparse=sparse)
    assert np.array_equal(dense(one), x)
    held = ~np.isnan(one.y)
    for order in (None, np.arange(40), np.arange(3, 9), np.array([7, 0, 39, 12])):
        rows, labels = labelled_rows(one, np.float32, order)
        assert rows.dtype is torch.float32
        wanted = x[held].astype(np.float32)[:, slice(None) if order is None else order]
        assert rows.shape == wanted.shape
        assert np.array_equal(in_full(rows).numpy(), wanted)
        assert np.array_equal(rows[torch.tensor([5, 2, 5])].numpy(), wanted[[5, 2, 5]])
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


def wide_block():
    """Return rows of one level of 1,000 each, as a category of many levels gives them."""
    rng, rows, levels = np.random.default_rng(1), 16000, 1000
    names = tuple(f"place={number:03}" for number in range(levels))
    level = rng.integers(0, levels, rows)
    x = csr_array((np.ones(rows), level, np.arange(rows + 1)), shape=(rows, levels))
    y = np.where(level % 2, 1.0, -1.0)
    return Block(np.arange(rows), names, x, y, groups={"table": names})


@contextmanager
def less_than(most):
    """Refuse what takes more bytes at once."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


FULL = 4 * 16000 * 1000  # bytes of the wide block in single precision


def squares(model, batch):
    """Return the squared errors of a batch."""
    return (model(batch["x"])[:, 0] - batch["y"]).square()


def test_a_sparse_table_trains_without_a_full_matrix():
    one = wide_block()
    training = LocalTraining(model=nn.Linear(1000, 1), loss=squares)
    with less_than(FULL / 4):
        x, y = labelled_rows(one, np.float32)
        learner = Learner(
            parameters=initial_parameters(training.model),
            rows={"x": x, "y": torch.from_numpy(y).float()},
            key=3,
        )
        (found,) = train(training, [learner])
    assert float(found.losses[-1]) < float(found.losses[0])


def test_a_sparse_table_is_scored_over_feature_blocks_without_a_full_matrix():
    one = wide_block()
    made_of = Composition(
        ("table",), (one.features,), (Extractor("linear", (1000,), 4),), (8,), outputs=2
    )
    parameters = nets.drawn(made_of, np.float32, RandomKey((0,)))
    with less_than(FULL / 2):
        found = nets.scores(made_of, parameters, one)
    full = replace(one, x=one.x.toarray())
    assert np.array_equal(found, nets.scores(made_of, parameters, full))


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_sparse_rows_train_to_the_same_bits(engine):
    x = csr_array(np.random.default_rng(2).normal(size=(60, 9)).round().astype(np.float32))
    training = LocalTraining(
        model=nn.Linear(9, 1),
        loss=squares,
        epochs=3,
        batch_size=16,
        ragged={"x": 1, "weight": 1},
    )
    y = torch.arange(60.0)
    given = {"parameters": initial_parameters(training.model), "key": 5}
    sparse, full = (
        [Learner(rows={"x": rows, "y": y}, **given)] * 2
        for rows in (SparseRows(x), torch.from_numpy(x.toarray()))
    )
    for one, other in zip(
        *(train(training, some, engine=engine) for some in (sparse, full)), strict=True
    ):
        assert torch.equal(one.parameters["weight"], other.parameters["weight"])
        assert torch.equal(one.losses, other.losses)


def one_hot_clients():
    """Return four clients of a category of 60 levels and two columns of numbers."""
    rng = np.random.default_rng(3)
    names = (*(f"place={number:02}" for number in range(60)), "rate", "size")
    made = {}
    for number in range(4):
        rows = 40 + 3 * number
        levels = rng.integers(0, 60, rows)
        x = np.zeros((rows, 62))
        x[np.arange(rows), levels] = 1.0
        x[:, 60:] = rng.normal(size=(rows, 2))
        y = np.where(x[:, 60] + levels % 2 > 0.5, 1.0, -1.0)
        blocks = {"places": names[:60], "numbers": names[60:]}
        made[f"c{number}"] = Block(1000 * number + np.arange(rows), names, x, y, groups=blocks)
    return made


SMALL = {"hidden": 8, "latent": 4, "batch": 8, "local_epochs": 2}
OF_ALGORITHMS = {
    **dict.fromkeys(
        ["fedavg-ft", "fedhenn", "fedprox", "fedrep", "hetfedrep", "ifca", "l2gd", "local"], SMALL
    ),
    "ditto": {**SMALL, "own_epochs": 2},
    "femam": {**SMALL, "weight_decay": 0.0, "embedding_decay": 0.0},
    "femam linear": {**SMALL, "embedding": "linear"},
    "fesem": {**SMALL, "levels": ("global", 2)},
    "flic": {**SMALL, "anchor_epochs": 1},
    "hyfem": {"hidden": (8,), "batch": 8, "steps": 10},
    "hyfem identity": {"hidden": (8,), "batch": 8, "steps": 10, "extractor": "identity"},
    "pfedme": {key: SMALL[key] for key in ("hidden", "latent", "batch")},
}


@pytest.mark.parametrize("case", OF_ALGORITHMS)
def test_an_algorithm_comes_to_one_model_by_sparse_and_full_rows(case):
    algorithm = algorithm_named(case.split()[0])
    known = {one.name for one in fields(algorithm.hyperparameters)}
    given = {name: own for name, own in OF_ALGORITHMS[case].items() if name in known}
    options = algorithm.hyperparameters(**given, precision="double", engine="loop")
    full = one_hot_clients()
    found = []
    for blocks in (full, {n: replace(one, x=csr_array(one.x)) for n, one in full.items()}):
        engine, server = federations.started(algorithm, options, blocks)
        federations.train(algorithm, engine, server, 2)
        found.append(
            {
                name: algorithm.model.predict(own, block)
                for (name, own), block in zip(
                    engine.get_states().items(), full.values(), strict=True
                )
            }
        )
    for name, scores in found[0].items():
        assert np.ptp(scores) > 0
        np.testing.assert_allclose(found[1][name], scores, rtol=1e-5, atol=1e-9)


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
