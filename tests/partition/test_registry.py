from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array, random_array

from intarsia.data.dataset import Dataset
from intarsia.errors import ExperimentError
from intarsia.partition.registry import (
    KINDS,
    grid,
    horizontal,
    natural,
    overlap,
    partition,
    vertical,
)


def small(samples=10, features=6, sparse=False, seed=0, **changes) -> Dataset:
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 256, (samples, features)).astype(np.uint8)
    if sparse:
        x = csr_array(random_array((samples, features), density=0.3, rng=rng))
    settings = {
        "name": "small",
        "samples": np.arange(100, 100 + samples),
        "features": tuple(f"f{number}" for number in range(features)),
        "x": x,
        "y": rng.choice([-1.0, 1.0], samples),
        "scale": 1.0 if sparse else 1 / 255,
    }
    return Dataset(**{**settings, **changes})


def whole(dataset, blocks):
    """Put the blocks together, NaN where nobody holds; shared copies must agree."""
    values = np.full(dataset.shape, np.nan)
    for block in blocks.values():
        rows = np.searchsorted(dataset.samples, block.samples)
        columns = [dataset.features.index(feature) for feature in block.features]
        x = block.x.toarray() if block.sparse else block.x
        before = values[np.ix_(rows, columns)]
        assert np.array_equal(np.where(np.isnan(before), x, before), x)
        values[np.ix_(rows, columns)] = x
        if block.y is not None:
            np.testing.assert_array_equal(block.y, dataset.y[rows])
    return values


@given(
    rows=st.integers(1, 10),
    columns=st.integers(1, 6),
    seed=st.integers(0, 99),
    sparse=st.booleans(),
    shuffle_columns=st.booleans(),
)
def test_a_grid_deals_every_entry_to_one_client(rows, columns, seed, sparse, shuffle_columns):
    dataset = small(sparse=sparse)
    blocks = grid(dataset, rows=rows, columns=columns, seed=seed, shuffle_columns=shuffle_columns)
    assert list(blocks) == [f"r{r}c{c}" for r in range(rows) for c in range(columns)]
    truth = dataset.x.toarray() if sparse else dataset.x / 255
    np.testing.assert_allclose(whole(dataset, blocks), truth, rtol=1e-15)
    assert sum(block.x.shape[0] * block.x.shape[1] for block in blocks.values()) == 60
    sizes = {block.shape for block in blocks.values()}
    assert max(s[0] for s in sizes) - min(s[0] for s in sizes) <= 1
    assert max(s[1] for s in sizes) - min(s[1] for s in sizes) <= 1


@given(
    rows=st.integers(1, 5),
    columns=st.integers(1, 3),
    shared_rows=st.floats(0, 1),
    shared_columns=st.floats(0, 1),
)
def test_an_overlap_leaves_no_entry_out_and_its_copies_agree(
    rows, columns, shared_rows, shared_columns
):
    dataset = small()
    blocks = overlap(
        dataset,
        rows=rows,
        columns=columns,
        shared_rows=shared_rows,
        shared_columns=shared_columns,
        shuffle_columns=True,
    )
    np.testing.assert_allclose(whole(dataset, blocks), dataset.x / 255, rtol=1e-15)


def test_neighbours_share_the_entries_that_the_docstring_says():
    # 4 row groups of 5 and 3 column groups of 4; a fifth of 5 is 1 row, a half of 4 is 2 columns
    blocks = overlap(small(20, 12), rows=4, columns=3, shared_rows=0.2, shared_columns=0.5, seed=3)
    assert {block.shape for block in blocks.values()} == {(6, 6)}

    def common(one, other):
        rows = set(blocks[one].samples) & set(blocks[other].samples)
        columns = set(blocks[one].features) & set(blocks[other].features)
        return len(rows), len(columns)

    assert common("r0c0", "r0c1") == (6, 2)  # beside each other
    assert common("r0c0", "r1c0") == (1, 6)  # below each other
    assert common("r0c0", "r1c1") == (1, 2)  # diagonal
    assert common("r0c0", "r3c0") == (1, 6)  # the last one's next group is the first
    assert common("r0c0", "r2c0")[0] == 0
    assert blocks["r0c0"].features == ("f0", "f1", "f2", "f3", "f4", "f5")
    assert blocks["r0c2"].features == ("f0", "f1", "f8", "f9", "f10", "f11")


def test_sharing_all_rows_gives_each_row_to_two_groups():
    blocks = overlap(small(), rows=5, columns=1, shared_rows=1.0, shared_columns=0.0)
    ids, counts = np.unique(
        np.concatenate([b.samples for b in blocks.values()]), return_counts=True
    )
    assert len(ids) == 10
    assert set(counts) == {2}


def test_horizontal_and_vertical_are_one_column_and_one_row_of_the_grid():
    dataset = small()
    for split, same in (
        (horizontal(dataset, clients=3, seed=5), grid(dataset, rows=3, columns=1, seed=5)),
        (vertical(dataset, clients=3, seed=5), grid(dataset, rows=1, columns=3, seed=5)),
    ):
        assert list(split) == list(same)
        for name, block in split.items():
            np.testing.assert_array_equal(block.x, same[name].x)
            np.testing.assert_array_equal(block.samples, same[name].samples)


def test_the_seed_alone_decides_who_gets_which_rows():
    dataset = small()
    first, again, other = (grid(dataset, rows=2, columns=1, seed=seed) for seed in (1, 1, 2))
    assert first["r0c0"].samples.tolist() == again["r0c0"].samples.tolist()
    assert first["r0c0"].samples.tolist() != other["r0c0"].samples.tolist()


def test_a_train_and_a_test_part_get_the_same_columns():
    keys = {"rows": 2, "columns": 3, "seed": 4, "shuffle_columns": True}
    train, test = grid(small(20), **keys), grid(small(8), **keys)
    assert {name: block.features for name, block in train.items()} == {
        name: block.features for name, block in test.items()
    }


def test_labels_first_leaves_them_with_the_first_column_group():
    blocks = grid(small(), rows=2, columns=2, labels="first")
    assert {name for name, block in blocks.items() if block.y is not None} == {"r0c0", "r1c0"}


def test_feature_groups_follow_their_columns():
    groups = {"left": ("f0", "f1", "f2", "f3"), "right": ("f4", "f5")}
    blocks = vertical(small(groups=groups), clients=2)
    assert blocks["r0c0"].groups == {"left": ("f0", "f1", "f2")}
    assert blocks["r0c1"].groups == {"left": ("f3",), "right": ("f4", "f5")}


@pytest.mark.parametrize(("rows", "columns"), [(1, 2), (4, 4)])
def test_blocks_are_made_without_a_second_copy_of_the_whole(rows, columns):
    dataset = small(20000, 300)
    floats = 20000 * 300 * 8
    tracemalloc.start()
    try:
        blocks = grid(dataset, rows=rows, columns=columns)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum(block.x.nbytes for block in blocks.values()) == floats
    # the compact table itself is an eighth; a block's own check of its values takes an eighth of it
    assert peak + dataset.x.nbytes <= 1.15 * floats + blocks["r0c0"].x.nbytes / 8


def test_sparse_stays_sparse_with_narrowed_columns():
    blocks = grid(small(50, 20, sparse=True), rows=2, columns=4)
    assert all(block.sparse and block.x.shape == (25, 5) for block in blocks.values())


def test_the_registry_lists_the_keys_of_each_kind():
    assert {kind: sorted(keys) for kind, (_, keys) in KINDS.items()} == {
        "blocks": [
            "blocks",
            "classes",
            "client",
            "clients",
            "common",
            "pattern",
            "samples",
            "seed",
        ],
        "clusters": [
            *("alpha", "classes", "clients", "clusters", "minimum", "relabel", "samples", "seed")
        ],
        "dirichlet": ["alpha", "clients", "minimum", "samples", "seed"],
        "flower": ["arguments", "partitioner", "seed"],
        "grid": ["columns", "labels", "rows", "seed", "shuffle_columns"],
        "horizontal": ["clients", "seed"],
        "iid": ["clients", "samples", "seed"],
        "levels": ["alpha", "classes", "clients", "groups", "minimum", "samples", "seed"],
        "natural": ["clients", "seed"],
        "overlap": [
            "columns",
            "labels",
            "rows",
            "seed",
            "shared_columns",
            "shared_rows",
            "shuffle_columns",
        ],
        "prior_shift": ["classes", "clients", "keep", "mapping", "noise", "seed"],
        "vertical": ["clients", "labels", "seed", "shuffle_columns"],
    }


@pytest.mark.parametrize(
    ("kind", "keys", "sentence"),
    [
        ("gird", {}, "kind = 'gird'; use 'grid'"),
        ("grid", {"rows": 2, "colums": 2}, "no key 'colums'; use 'columns'"),
        ("grid", {"rows": 2}, "lacks the key 'columns'"),
        ("grid", {"rows": 0, "columns": 1}, "rows = 0; expected a whole number from 1 to 10"),
        ("grid", {"rows": 2.5, "columns": 1}, "rows = 2.5"),
        ("grid", {"rows": 1, "columns": 7}, "columns = 7; expected a whole number from 1 to 6"),
        ("horizontal", {"clients": True}, "clients = True"),
        ("vertical", {"clients": 2, "labels": "none"}, "labels = 'none'; use one of"),
        (
            "overlap",
            {"rows": 2, "columns": 2, "shared_rows": 1.5, "shared_columns": 0.1},
            "shared_rows = 1.5; expected a fraction from 0 to 1",
        ),
    ],
)
def test_a_wrong_key_or_value_is_one_clear_sentence(kind, keys, sentence):
    with pytest.raises(ExperimentError, match=sentence):
        partition(kind, small(), **keys)


def test_labels_that_are_text_must_be_encoded_first():
    with pytest.raises(ExperimentError, match="are text"):
        partition("horizontal", small(y=np.array(["a"] * 10)), clients=2)


@pytest.mark.parametrize("sparse", [False, True])
def test_by_nature_every_client_gets_its_own_rows_whole(sparse):
    names = np.array(["b", "a", "b", "c", "a", "b", "a", "a", "c", "b"])
    dataset = small(sparse=sparse, clients=names)
    blocks = natural(dataset, seed=3)
    assert list(blocks) == ["a", "b", "c"]
    for name, block in blocks.items():
        assert block.features == dataset.features
        np.testing.assert_array_equal(block.samples, dataset.samples[names == name])
    x = dataset.x.toarray() if sparse else dataset.x * dataset.scale
    np.testing.assert_allclose(whole(dataset, blocks), x)
    part = dataset.take(np.array([1, 3]))
    assert part.clients.tolist() == ["a", "c"]


def test_by_nature_some_of_the_clients_can_be_drawn():
    names = np.array(list("bcabcabcab"))
    dataset = small(clients=names)
    drawn = {seed: list(natural(dataset, clients=2, seed=seed)) for seed in range(9)}
    assert {len(some) for some in drawn.values()} == {2}
    assert len({tuple(some) for some in drawn.values()}) > 1
    assert drawn[1] == list(natural(dataset.take(np.arange(3)), clients=2, seed=1))
    with pytest.raises(ExperimentError, match="clients = 4; expected a whole number from 1 to 3"):
        natural(dataset, clients=4)


def test_by_nature_needs_a_set_that_says_whose_samples_are():
    with pytest.raises(ExperimentError, match="horizontal"):
        partition("natural", small())
