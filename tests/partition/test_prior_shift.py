"""Samples dealt out by classes, with feature spaces of the clients' own."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intarsia.datasets.registry import apart, encoded, encoded_alike, load
from intarsia.errors import ExperimentError
from intarsia.partition.prior_shift import prior_shift
from intarsia.partition.registry import partition


def gaussians(seed=0, **options):
    settings = {"classes": 6, "features": 4, "train_samples": 60, "test_samples": 30, **options}
    return encoded(load("gaussians", seed=seed, **settings))[0]


@given(clients=st.integers(1, 30), classes=st.integers(1, 6), seed=st.integers(0, 50))
def test_each_client_has_its_number_of_classes_and_each_class_its_share_of_holders(
    clients, classes, seed
):
    dataset, _ = gaussians(seed).split()
    blocks = prior_shift(dataset, clients=clients, classes=classes, seed=seed)
    assert len(blocks) == clients
    held = {name: set(block.y.tolist()) for name, block in blocks.items()}
    assert {len(some) for some in held.values()} == {classes}
    holders = Counter(value for some in held.values() for value in some)
    counts = [holders[value] for value in range(6)]
    assert max(counts) - min(counts) <= 1
    for value in holders:
        shares = [int((b.y == value).sum()) for b in blocks.values() if value in b.y]
        assert max(shares) - min(shares) <= 1
        assert sum(shares) == 60
    ids = np.concatenate([block.samples for block in blocks.values()])
    assert len(np.unique(ids)) == len(ids)


def test_train_and_test_part_have_the_same_classes_columns_and_mapping():
    train, test = gaussians(deviation=0.0, test_samples=40).split()
    keys = {"clients": 8, "classes": 2, "mapping": [3, 9], "noise": [1, 5], "keep": [0.2, 0.6]}
    one = prior_shift(train, seed=4, **keys)
    other = prior_shift(test, seed=4, **keys)
    for name, block in one.items():
        assert set(block.y.tolist()) <= set(other[name].y.tolist())
        assert block.features == other[name].features
    assert len({block.shape[1] for block in one.values()}) > 1
    features = [feature for block in one.values() for feature in block.features]
    assert len(set(features)) == len(features)  # nobody shares a column
    assert sum(block.shape[0] for block in other.values()) == 240  # the test part is kept whole
    shares = [block.shape[0] / 90 for block in one.values()]
    assert 0.1 < min(shares) < max(shares) < 0.7


def test_a_mapping_is_one_matrix_for_all_of_a_clients_samples():
    train, test = gaussians().split()
    keys = {"clients": 3, "classes": 6, "seed": 1}
    plain = [prior_shift(part, **keys) for part in (train, test)]
    mapped = [prior_shift(part, mapping=[7, 7], **keys) for part in (train, test)]
    for name in mapped[0]:
        matrix = np.linalg.lstsq(plain[0][name].x, mapped[0][name].x, rcond=None)[0]
        np.testing.assert_allclose(plain[1][name].x @ matrix, mapped[1][name].x, atol=1e-9)
    matrices = [block.x[:1] for block in mapped[0].values()]
    assert not np.allclose(matrices[0], matrices[1])


def test_noise_is_appended_and_differs_between_train_and_test_part():
    train, test = gaussians().split()
    keys = {"clients": 3, "classes": 6, "seed": 1, "noise": [2, 2]}
    blocks = [prior_shift(part, **keys) for part in (train, test)]
    plain = prior_shift(train, clients=3, classes=6, seed=1)
    for name, block in blocks[0].items():
        np.testing.assert_array_equal(block.x[:, :4], plain[name].x)
        assert abs(block.x[:, 4:].std() - 1) < 0.15
        assert not np.isin(block.x[:, 4:], blocks[1][name].x[:, 4:]).any()


def test_of_several_ranges_to_keep_each_client_draws_one():
    dataset, _ = gaussians(train_samples=1000).split()
    blocks = prior_shift(dataset, clients=40, classes=6, keep=[[0.1, 0.1], [0.5, 0.5]])
    assert Counter(block.shape[0] for block in blocks.values()).keys() == {15, 75}


def test_several_sets_are_dealt_to_clients_of_their_own():
    sets, labels = encoded_alike(
        apart([gaussians(), load("digits", only=list(range(6))).split()[0]]),
    )
    assert labels.classes == tuple("012345")
    blocks = partition("prior_shift", sets, clients=5, classes=3)
    assert list(blocks) == ["gaussians0", "gaussians1", "gaussians2", "digits0", "digits1"]
    assert blocks["gaussians0"].features[0] == "gaussians:x0"
    assert blocks["digits1"].features[-1] == "digits:pixel07_07"
    assert {type(one) for b in blocks.values() for one in b.samples.tolist()} == {str}
    with pytest.raises(ExperimentError, match=r"gaussians, digits.*prior_shift"):
        partition("horizontal", sets, clients=2)


def test_sets_with_the_same_columns_share_them():
    half = load("digits", side=4)
    one, other = apart([half, load("digits", side=4)])
    assert one.features == other.features == half.features


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"clients": 5}, "lacks the key 'classes'"),
        ({"clients": 0, "classes": 2}, "clients = 0"),
        ({"clients": 5, "classes": 7}, "classes = 7; expected a whole number from 1 to 6"),
        ({"clients": 5, "classes": 2, "keep": 0.5}, "keep = 0.5; expected the smallest"),
        ({"clients": 5, "classes": 2, "keep": [0.5, 1.5]}, "keep = [0.5, 1.5]"),
        ({"clients": 5, "classes": 2, "keep": []}, "keep = []; expected the smallest"),
        ({"clients": 5, "classes": 2, "noise": [3, 1]}, "noise = [3, 1]; expected the smallest"),
        ({"clients": 5, "classes": 2, "mapping": [0, 1]}, "mapping = [0, 1]"),
        ({"clients": 5, "classes": 2, "mapping": [2.5, 3]}, "mapping = [2.5, 3]"),
        ({"clients": 300, "classes": 2}, "100 of 300 clients"),
    ],
)
def test_a_wrong_key_is_said_with_its_value(keys, sentence):
    with pytest.raises(ExperimentError) as found:
        partition("prior_shift", gaussians().split()[0], **keys)
    assert sentence in str(found.value)
