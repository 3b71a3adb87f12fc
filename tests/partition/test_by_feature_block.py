from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intarsia.core.block import Labels
from intarsia.data.dataset import Dataset
from intarsia.datasets.registry import encoded, load
from intarsia.errors import ExperimentError
from intarsia.inspection.overlap import block_classes
from intarsia.partition.by_feature_block import PATTERNS, drawn
from intarsia.partition.registry import partition

VIEWS = ("front", "side", "top", "sound")


def views(classes=10, each=4, names=VIEWS, width=3, **changes) -> Dataset:
    """Samples of each class; the value in column c of sample s is 100 s + c."""
    samples, columns = classes * each, len(names) * width
    features = tuple(f"f{number:02d}" for number in range(columns))
    groups = {name: features[at * width : (at + 1) * width][::-1] for at, name in enumerate(names)}
    settings = {
        "name": "views",
        "samples": np.arange(samples),
        "features": features,
        "x": 100.0 * np.arange(samples)[:, None] + np.arange(columns),
        "y": np.tile(np.arange(classes), each).astype(float),
        "groups": groups,
        "shapes": dict.fromkeys(names, (1, width)),
    }
    return Dataset(**{**settings, **changes})


def pairs(pattern):
    """Count the holders of each pair of a block and a class."""
    counts = np.zeros((pattern.blocks, pattern.classes), int)
    for held in pattern.clients:
        counts[np.ix_(held.blocks, held.classes)] += 1
    return counts


# blocks, classes, clients, blocks each, classes each, pairs with nobody: as the papers say
PUBLISHED = {
    "c3-herigraph": (4, 9, 6, {2}, {6}, 0),
    "table2-cifar10": (12, 10, 9, {6, 7, 8}, {5}, 0),
    "table2-modelnet40-1": (4, 40, 4, {3}, {20}, 0),
    "table2-modelnet40-2": (12, 40, 8, {6}, {15}, 58),  # 12.08 %
    "table3": (4, 40, 6, {2, 3}, {25}, 11),  # 6.88 %
    "table4": (4, 10, 6, {2, 3}, {5}, 0),
    "workshop-4": (4, 40, 4, {3}, {30}, 0),
    "workshop-8": (12, 40, 8, {6}, {15}, 58),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_has_the_numbers_that_the_papers_give(name):
    blocks, classes, clients, blocks_each, classes_each, nobody = PUBLISHED[name]
    pattern = PATTERNS[name]
    assert (pattern.blocks, pattern.classes, len(pattern.clients)) == (blocks, classes, clients)
    assert {len(held.blocks) for held in pattern.clients} == blocks_each
    assert {len(held.classes) for held in pattern.clients} == classes_each
    counts = pairs(pattern)
    assert (counts == 0).sum() == nobody
    assert (counts.sum(axis=0) > 0).all()  # every class is somewhere
    common = [b for b in range(blocks) if all(b in held.blocks for held in pattern.clients)]
    assert common == ([0, 2] if name in ("table3", "table4") else [])
    assert not set.intersection(*(set(held.classes) for held in pattern.clients))


def test_table_4_is_the_papers_line_by_line():
    held = [(one.blocks, one.classes) for one in PATTERNS["table4"].clients]
    low, high = tuple(range(5)), tuple(range(5, 10))
    assert held == [
        ((0, 1, 2), low),
        ((0, 1, 2), high),
        ((0, 2, 3), low),
        ((0, 2, 3), high),
        ((0, 2), low),
        ((0, 2), high),
    ]


def test_clients_of_a_pattern_have_all_samples_of_their_classes_with_their_blocks():
    dataset = views()
    found = partition("blocks", dataset, pattern="table4")
    assert list(found) == [f"client{number}" for number in range(6)]
    block = found["client1"]
    assert set(block.groups) == {"front", "side", "top"}
    assert set(block.y) == {5.0, 6.0, 7.0, 8.0, 9.0}
    assert len(block.samples) == 20
    assert block.groups["side"] == ("f05", "f04", "f03")  # in its own order
    assert block.shapes == dict.fromkeys(("front", "side", "top"), (1, 3))
    truth = 100.0 * block.samples[:, None] + [int(name[1:]) for name in block.features]
    np.testing.assert_array_equal(block.x, truth)
    assert found["client0"].samples.tolist() == found["client4"].samples.tolist()


def test_one_client_has_all_to_compare_with():
    (only,) = partition("blocks", views(), pattern="centralised").values()
    assert only.shape == (40, 12)
    assert set(only.groups) == set(VIEWS)


def test_disjoint_clients_share_the_samples_of_a_class_equally():
    found = partition("blocks", views(each=6), pattern="table4", samples="disjoint", seed=3)
    ids = np.concatenate([block.samples for block in found.values()])
    assert sorted(ids) == list(range(60))
    for block in found.values():
        assert np.unique(block.y, return_counts=True)[1].tolist() == [2] * 5


def test_a_test_part_goes_to_all_clients_with_all_its_classes():
    dataset = views(test=np.ones(40, bool))
    found = partition("blocks", dataset, pattern="table4", samples="disjoint")
    for name, block in found.items():
        assert block.samples.tolist() == list(range(40))
        assert len(block.groups) == (2 if name in ("client4", "client5") else 3)
    held = {feature for block in found.values() for feature in block.features}
    assert held == set(dataset.features)  # together they have the full table


def test_clients_are_listed_with_names_of_blocks_and_classes():
    found = partition(
        "blocks",
        encoded(views(classes=3, y=np.tile(["cat", "dog", "owl"], 4)))[0],
        client=[
            {"name": "clinic", "blocks": ["sound", "front"], "classes": ["owl", "cat"]},
            {"blocks": "top", "classes": "dog"},
        ],
    )
    assert list(found) == ["clinic", "client1"]
    assert set(found["clinic"].groups) == {"front", "sound"}
    assert set(found["clinic"].y) == {0.0, 2.0}
    assert set(found["client1"].y) == {1.0}


@given(
    clients=st.integers(1, 12),
    blocks=st.integers(1, 12),
    classes=st.integers(1, 10),
    common=st.integers(0, 3),
    seed=st.integers(0, 99),
)
def test_a_drawn_assignment_is_balanced(clients, blocks, classes, common, seed):
    each = max(blocks // 2, common, 1) if common <= blocks else blocks
    fixed = tuple(range(min(common, blocks)))
    pattern = drawn(
        blocks,
        classes,
        clients=clients,
        blocks_each=(each, each),
        classes_each=(1, classes),
        common=fixed,
        seed=seed,
    )
    counts = np.zeros((2, 12), int)
    for held in pattern.clients:
        assert set(fixed) <= set(held.blocks)
        assert len(held.blocks) == each
        assert 1 <= len(held.classes) <= classes
        counts[0, list(held.blocks)] += 1
        counts[1, list(held.classes)] += 1
    rest = counts[0, len(fixed) : blocks]
    assert not len(rest) or np.ptp(rest) <= 1
    assert np.ptp(counts[1, :classes]) <= 1


def test_drawn_clients_depend_on_the_seed_alone():
    keys = {"clients": 5, "blocks": [2, 3], "classes": 4, "common": ["top"]}
    one = partition("blocks", views(), **keys, seed=1)
    same = partition("blocks", views(), **keys, seed=1)
    other = partition("blocks", views(), **keys, seed=2)
    groups = [[set(b.groups) for b in found.values()] for found in (one, same, other)]
    assert groups[0] == groups[1] != groups[2]
    assert all("top" in some and 2 <= len(some) <= 3 for some in groups[0])


def test_a_sample_without_a_block_is_not_at_a_client_that_holds_the_block():
    x = views().x.copy()
    x[7, 9:] = np.nan  # sample 7 has no sound
    x[8, 9] = np.nan  # sample 8 lacks a part of it
    found = partition(
        "blocks",
        views(x=x),
        client=[
            {"blocks": ["front", "sound"], "classes": list(range(10))},
            {"blocks": ["front"], "classes": list(range(10))},
        ],
    )
    assert 7 not in found["client0"].samples
    assert 8 in found["client0"].samples
    assert len(found["client1"].samples) == 40


def test_the_holders_of_each_block_and_class_are_counted():
    found = partition("blocks", views(), pattern="table4")
    labels = Labels("multiclass", tuple("0123456789"))
    counted = block_classes(found, labels)
    assert counted.blocks == ("front", "side", "top", "sound")
    np.testing.assert_array_equal(counted.clients, np.repeat([[3], [1], [3], [1]], 10, axis=1))
    assert counted.unused == 0
    some = {name: found[name] for name in ("client0", "client4", "client5")}
    counted = block_classes(some, labels)
    assert counted.clients[1].tolist() == [1] * 5 + [0] * 5
    assert counted.unused == 5 / 30
    assert block_classes(found, Labels("regression")) is None
    assert counted.counts["side"]["9"] == 0


def test_blocks_come_in_an_order_that_all_clients_agree_on():
    lists = [("front", "top"), ("sound",), ("top", "sound"), ("front", "side", "top")]
    clients = [{"blocks": some, "classes": list(range(10))} for some in lists]
    found = partition("blocks", views(), client=clients)
    counted = block_classes(found, Labels("multiclass", tuple("0123456789")))
    assert counted.blocks == VIEWS


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"pattern": {"name": "table4"}}, "use one of"),
        ({"clients": 2, "blocks": 2, "classes": 5, "common": 5}, "common = 5; expected names"),
        ({"client": {"blocks": "top", "classes": 1}}, r"expected tables \[\[partition.client\]\]"),
        ({"pattern": "table5"}, "pattern = 'table5'; use 'table"),
        ({"pattern": "table3"}, "deals 4 blocks of 40 classes, and 'views' has 4 blocks"),
        ({}, "expected exactly one of the three"),
        ({"pattern": "table4", "clients": 3}, "expected exactly one of the three"),
        ({"pattern": "table4", "blocks": 3}, "which are for clients that are drawn"),
        ({"clients": 2, "blocks": 2, "classes": 4}, r"Nobody of 2 clients holds the class '\d'"),
        ({"clients": 2, "blocks": 5, "classes": 5}, "blocks = 5; expected a whole number from 1"),
        ({"clients": 0, "blocks": 2, "classes": 5}, "clients = 0"),
        ({"clients": 2, "classes": 5}, "has clients but no blocks"),
        ({"clients": 2, "blocks": [3, 2], "classes": 5}, r"blocks = \[3, 2\]"),
        ({"clients": 2, "blocks": 1, "classes": 5, "common": ["top", "side"]}, "at least 2"),
        ({"clients": 2, "blocks": 2, "classes": 5, "common": ["tpo"]}, "'tpo'.*use 'top'"),
        ({"pattern": "table4", "samples": "share"}, "samples = 'share'; use 'shared'"),
        ({"client": [{"blocks": ["tpo"], "classes": [1]}]}, "names the block 'tpo'.*use 'top'"),
        ({"client": [{"blocks": ["top"], "classes": [11]}]}, "names the class '11'"),
        ({"client": [{"blocks": ["top"]}]}, "has no classes, so that it would hold nothing"),
        ({"client": [{"blocks": [], "classes": [1]}]}, "has no blocks"),
        ({"client": [{"block": ["top"], "classes": [1]}]}, "no key 'block'; use 'blocks'"),
        (
            {"client": [{"name": "a", "blocks": ["top"], "classes": [1]}] * 2},
            "Two .* have the name 'a'",
        ),
        (
            {"client": [{"blocks": ["top"], "classes": list(range(9))}]},
            "Nobody of 1 clients holds the class '9'",
        ),
    ],
)
def test_a_wrong_assignment_is_refused_in_a_sentence(keys, sentence):
    with pytest.raises(ExperimentError, match=sentence):
        partition("blocks", views(), **keys)


def test_a_client_without_any_sample_is_refused():
    x = views().x.copy()
    x[:, 9:] = np.nan
    with pytest.raises(ExperimentError, match="'client0' would have no training sample"):
        partition("blocks", views(x=x), client=[{"blocks": ["sound"], "classes": list(range(10))}])


def test_too_few_samples_to_share_and_sets_without_blocks_are_refused():
    with pytest.raises(ExperimentError, match="2 training samples and 3 clients"):
        partition("blocks", views(each=2), pattern="table4", samples="disjoint")
    with pytest.raises(ExperimentError, match="no named feature blocks; set groups"):
        partition("blocks", views(groups={}, shapes={}), pattern="table4")
    with pytest.raises(ExperimentError, match="regression"):
        partition("blocks", views(y=np.arange(40) + 0.5), clients=2, blocks=2, classes=2)


def test_mfeat_has_six_views_as_blocks(data_folder):
    dataset = encoded(load("mfeat", folder=data_folder))[0]
    found = partition("blocks", dataset, clients=6, blocks=3, classes=[5, 6], seed=0)
    widths = {"fac": 216, "fou": 76, "kar": 64, "mor": 6, "pix": 240, "zer": 47}
    for block in found.values():
        assert len(block.groups) == 3
        assert block.shape[1] == sum(widths[name] for name in block.groups)
        assert len(block.samples) == 200 * len(np.unique(block.y))
