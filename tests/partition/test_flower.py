from __future__ import annotations

import importlib.util
from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_array

from intarsia.data.dataset import Dataset
from intarsia.errors import ExperimentError
from intarsia.experiment.config import from_dict, to_dict
from intarsia.experiment.federation import build
from intarsia.partition.registry import deal, partition

INSTALLED = importlib.util.find_spec("flwr_datasets") is not None
needs_library = pytest.mark.skipif(not INSTALLED, reason="flwr-datasets is not installed")


def labelled(classes=4, each=30, features=5, **changes) -> Dataset:
    rng = np.random.default_rng(0)
    size = classes * each
    settings = {
        "name": "labelled",
        "samples": np.arange(100, 100 + size),
        "features": tuple(f"f{at}" for at in range(features)),
        "x": rng.integers(0, 256, (size, features)).astype(np.uint8),
        "y": rng.permutation(np.repeat(np.arange(classes), each)).astype(float),
        "scale": 1 / 255,
        "classes": tuple(map(float, range(classes))),
        "class_names": tuple("abcdefgh"[:classes]),
    }
    return Dataset(**{**settings, **changes})


def split(dataset):
    test = np.zeros(len(dataset.y), bool)
    for one in np.unique(dataset.y):
        test[np.flatnonzero(dataset.y == one)[:10]] = True
    return replace(dataset, test=test).split()


@pytest.mark.skipif(INSTALLED, reason="flwr-datasets is installed")
def test_without_the_library_it_is_said_what_to_install():
    with pytest.raises(ExperimentError, match=r'pip install "intarsia\[flower\]"'):
        partition("flower", labelled(), partitioner="IidPartitioner")


@needs_library
@pytest.mark.parametrize("sparse", [False, True])
def test_a_partitioner_of_rows_deals_what_it_deals_there(sparse):
    from datasets import Dataset as Table
    from flwr_datasets.partitioner import DirichletPartitioner

    arguments = {
        "num_partitions": 3,
        "partition_by": "label",
        "alpha": 0.7,
        "min_partition_size": 5,
        "seed": 4,
    }
    dataset = labelled()
    if sparse:
        dataset = replace(dataset, x=csr_array(dataset.x.astype(float)), scale=1.0)
    own = partition("flower", dataset, partitioner="DirichletPartitioner", arguments=arguments)
    theirs = DirichletPartitioner(**arguments)
    names = np.array(dataset.class_names)[dataset.y.astype(int)]
    theirs.dataset = Table.from_dict({"row": np.arange(120), "label": names})
    assert list(own) == ["client0", "client1", "client2"]
    for at, block in enumerate(own.values()):
        rows = np.sort(theirs.load_partition(at)["row"])
        np.testing.assert_array_equal(block.samples, 100 + rows)
        np.testing.assert_array_equal(block.y, dataset.y[rows])
        x = block.x.toarray() if sparse else block.x * 255
        truth = dataset.x.toarray() if sparse else dataset.x
        np.testing.assert_allclose(x, truth[rows])


@needs_library
def test_the_test_part_has_the_distribution_of_the_training_part():
    train, test = split(labelled())
    keys = {"num_partitions": 3, "partition_by": "label", "alpha": 1.0, "min_partition_size": 1}
    dealt = deal("flower", train, partitioner="DirichletPartitioner", arguments=keys, seed=2)
    parts = [dealt.to_clients(part) for part in (train, test)]
    assert sum(len(block.y) for block in parts[1].values()) == 40
    for name in parts[0]:
        shares = [np.bincount(part[name].y.astype(int), minlength=4) for part in parts]
        assert np.abs(shares[0] / 20 - shares[1] / 10).max() < 0.1


@needs_library
def test_a_partitioner_of_columns_deals_columns():
    train, test = split(labelled())
    keys = {
        "num_partitions": 2,
        "active_party_columns": "label",
        "active_party_columns_mode": "add_to_first",
    }
    dealt = deal("flower", train, partitioner="VerticalEvenPartitioner", arguments=keys)
    for part in (train, test):
        blocks = dealt.to_clients(part)
        assert [len(block.samples) for block in blocks.values()] == [len(part.y)] * 2
        every = sorted(feature for block in blocks.values() for feature in block.features)
        assert every == list(part.features)
        assert [block.y is None for block in blocks.values()] == [False, True]
        for block in blocks.values():
            columns = [part.features.index(feature) for feature in block.features]
            np.testing.assert_allclose(block.x * 255, part.x[:, columns])


@needs_library
def test_a_partition_of_rows_and_columns_goes_there_and_back():
    from intarsia.partition.flower_export import IntarsiaPartitioner

    train, test = split(labelled())
    keys = {"rows": 2, "columns": 2, "shared_rows": 0.5, "shared_columns": 0.0, "labels": "first"}
    there = IntarsiaPartitioner("overlap", shared=["row"], **keys)
    dealt = deal("flower", train, partitioner=there)
    own = partition("overlap", train, **keys)
    for mine, theirs in zip(own.values(), dealt.to_clients(train).values(), strict=True):
        np.testing.assert_array_equal(mine.samples, theirs.samples)
        np.testing.assert_array_equal(mine.x, theirs.x)
        assert mine.features == theirs.features
        assert (mine.y is None) == (theirs.y is None)
    held = list(dealt.to_clients(test).values())
    # neighbours share the samples of the test part as they do those of the training part
    assert list(held[0].samples) == list(held[1].samples)
    assert len(set(held[0].samples) & set(held[2].samples)) == pytest.approx(20, abs=2)
    assert len(set(held[0].samples) | set(held[2].samples)) == 40


@needs_library
def test_an_experiment_file_names_a_partitioner(tmp_path):
    tree = {
        "algorithm": {"name": "standalone"},
        "dataset": {"name": "digits", "train_per_class": 12},
        "partition": {
            "kind": "flower",
            "partitioner": "SizePartitioner",
            "arguments": {"partition_sizes": [20, 51]},
        },
        "split": {"test": 0.4},
    }
    described = from_dict(to_dict(from_dict(tree, tmp_path)), tmp_path)
    found = build(described)
    assert [len(block.samples) for block in found.train.values()] == [20, 51]
    assert min(len(block.samples) for block in found.test.values()) > 5


@needs_library
def test_a_partitioner_by_a_feature_sees_its_values():
    dataset = labelled()
    arguments = {"num_partitions": 3, "partition_by": "f2", "strictness": 1.0}
    blocks = partition("flower", dataset, partitioner="ContinuousPartitioner", arguments=arguments)
    values = [block.x[:, 2] for block in blocks.values()]
    assert values[0].max() <= values[1].min() <= values[1].max() <= values[2].min()
    assert all(block.features == dataset.features for block in blocks.values())


@needs_library
def test_people_by_nature_are_a_column():
    names = np.array(["anna", "bert", "carl"] * 40)
    dataset = labelled(clients=names)
    blocks = partition(
        "flower", dataset, partitioner="NaturalIdPartitioner", arguments={"partition_by": "client"}
    )
    whose = {frozenset(names[block.samples - 100]) for block in blocks.values()}
    assert whose == {frozenset({"anna"}), frozenset({"bert"}), frozenset({"carl"})}


@needs_library
@pytest.mark.parametrize(
    ("partitioner", "arguments", "sentence"),
    [
        ("IidPartitoner", {}, "use 'IidPartitioner'"),
        ("IidPartitioner", {"partitions": 2}, "no argument 'partitions'; use 'num_partitions'"),
        ("IidPartitioner", {"num_partitions": 0}, "does not take its arguments"),
        ("IidPartitioner", {}, "does not take its arguments: .*num_partitions"),
        (
            "DirichletPartitioner",
            {"num_partitions": 2, "partition_by": "colour", "alpha": 1.0},
            "DirichletPartitioner does not deal 'labelled'",
        ),
    ],
)
def test_what_cannot_be_dealt_is_one_clear_sentence(partitioner, arguments, sentence):
    with pytest.raises(ExperimentError, match=sentence):
        partition("flower", labelled(), partitioner=partitioner, arguments=arguments)


# ours there


def table(dataset):
    from datasets import ClassLabel, Features, Value
    from datasets import Dataset as Table

    features = Features(
        {
            **{name: Value("float64") for name in dataset.features},
            "label": ClassLabel(names=list(dataset.class_names)),
        }
    )
    columns = {name: dataset.x[:, at].astype(float) for at, name in enumerate(dataset.features)}
    return Table.from_dict({**columns, "label": dataset.y.astype(int)}, features=features)


@needs_library
def test_a_grid_deals_rows_and_columns_there():
    from intarsia.partition.flower_export import IntarsiaPartitioner

    dataset = labelled()
    found = IntarsiaPartitioner("grid", rows=2, columns=2, labels="first", seed=3)
    found.dataset = table(dataset)
    own = partition("grid", dataset, rows=2, columns=2, labels="first", seed=3)
    assert found.num_partitions == 4
    for at, block in enumerate(own.values()):
        part = found.load_partition(at)
        labels = ["label"] if block.y is not None else []
        assert part.column_names == [*block.features, *labels]
        for column, name in enumerate(block.features):
            np.testing.assert_allclose(np.array(part[name]) / 255, block.x[:, column])
        if block.y is not None:
            np.testing.assert_array_equal(part["label"], block.y)
    with pytest.raises(ExperimentError, match="no partition 4; there are 4"):
        found.load_partition(4)


@needs_library
def test_clusters_have_their_names_for_the_classes_there_and_both_splits_are_alike():
    from intarsia.partition.flower_export import IntarsiaPartitioner

    train, test = split(labelled())
    keys = {"clients": 4, "clusters": 2, "relabel": "all", "seed": 1}
    first = IntarsiaPartitioner("clusters", **keys)
    second = IntarsiaPartitioner("clusters", like=first, **keys)
    first.dataset, second.dataset = table(train), table(test)
    assert first.structure.levels == second.structure.levels == {"clusters": (0, 0, 1, 1)}
    own = deal("clusters", train, **keys)
    for part, found in ((train, first), (test, second)):
        for at, block in enumerate(own.to_clients(part).values()):
            loaded = found.load_partition(at)
            np.testing.assert_array_equal(loaded["label"], block.y)
            np.testing.assert_allclose(np.array(loaded["f1"]) / 255, block.x[:, 1])
            assert loaded.features["label"].names == ["a", "b", "c", "d"]


@needs_library
def test_it_works_in_a_federated_data_set(tmp_path):
    from flwr_datasets import FederatedDataset

    from intarsia.partition.flower_export import IntarsiaPartitioner

    table(labelled()).to_parquet(str(tmp_path / "train.parquet"))
    found = FederatedDataset(
        dataset="parquet",
        data_files={"train": str(tmp_path / "train.parquet")},
        partitioners={"train": IntarsiaPartitioner("levels", clients=4, groups=[2], classes=[2])},
        cache_dir=str(tmp_path / "cache"),
    )
    sizes = [len(found.load_partition(at)) for at in range(4)]
    assert sum(sizes) == 120
    assert len(set(found.load_partition(0)["label"])) == 2


@needs_library
def test_kinds_that_need_more_than_a_table_are_refused():
    from intarsia.partition.flower_export import IntarsiaPartitioner

    with pytest.raises(ExperimentError, match="no partitioner of kind 'natural'"):
        IntarsiaPartitioner("natural")
    found = IntarsiaPartitioner("iid", clients=2, label="species")
    found.dataset = table(labelled())
    with pytest.raises(ExperimentError, match="no column 'species' with labels but 'f0'"):
        found.load_partition(0)
    unlabelled = IntarsiaPartitioner("horizontal", clients=2, label=None)
    unlabelled.dataset = table(labelled())
    assert unlabelled.load_partition(0).column_names[-1] == "label"
