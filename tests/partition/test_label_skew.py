from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from intarsia.data.dataset import Dataset
from intarsia.errors import ExperimentError
from intarsia.partition.checks import apportioned
from intarsia.partition.label_skew import levels
from intarsia.partition.registry import deal, partition


def labelled(classes=10, each=40, seed=0, **changes) -> Dataset:
    """Samples of each class in random order; the only feature is the sample's number."""
    y = np.random.default_rng(seed).permutation(np.repeat(np.arange(classes), each))
    settings = {
        "name": "labelled",
        "samples": np.arange(len(y)),
        "features": ("number",),
        "x": np.arange(len(y))[:, None].astype(float),
        "y": y.astype(float),
        "classes": tuple(float(one) for one in range(classes)),
    }
    return Dataset(**{**settings, **changes})


def parts(classes=10, train=40, test=20):
    """A training and a test part, as a federation deals them."""
    whole = labelled(classes, train + test)
    held = np.zeros(len(whole.y), bool)
    for one in range(classes):
        held[np.flatnonzero(whole.y == one)[:test]] = True
    return replace(whole, test=held).split()


def counts(blocks, classes=10):
    """How many samples of each class each client has, (clients, classes)."""
    return np.array([np.bincount(b.y.astype(int), minlength=classes) for b in blocks.values()])


EVERY = [
    ("iid", {"clients": 6}),
    ("dirichlet", {"clients": 6, "alpha": 0.3}),
    ("clusters", {"clients": 6, "clusters": 3, "classes": 5}),
    ("clusters", {"clients": 6, "clusters": 3, "relabel": "all"}),
    ("levels", {"clients": 6, "groups": [1, 2, 3], "classes": [2, 1, 2]}),
]


@pytest.mark.parametrize(("kind", "keys"), EVERY)
@pytest.mark.parametrize("sparse", [False, True])
def test_every_sample_goes_whole_to_one_client(kind, keys, sparse):
    dataset = labelled()
    if sparse:
        dataset = replace(dataset, x=csr_array(dataset.x + 1))
    blocks = partition(kind, dataset, **keys)
    assert list(blocks) == [f"client{number}" for number in range(6)]
    every = np.concatenate([block.samples for block in blocks.values()])
    assert sorted(every) == list(range(400))
    for block in blocks.values():
        assert block.features == ("number",)
        x = block.x.toarray() - 1 if block.sparse else block.x
        np.testing.assert_array_equal(x[:, 0], block.samples)


@pytest.mark.parametrize(("kind", "keys"), EVERY)
def test_the_seed_decides_who_gets_what(kind, keys):
    first, again, other = (partition(kind, labelled(), **keys, seed=seed) for seed in (1, 1, 2))
    for name in first:
        np.testing.assert_array_equal(first[name].samples, again[name].samples)
    assert any(list(first[name].samples) != list(other[name].samples) for name in first)


@pytest.mark.parametrize(("kind", "keys"), EVERY)
def test_both_parts_of_a_client_have_one_distribution(kind, keys):
    train, test = parts(train=80, test=40)
    dealt = deal(kind, train, **keys)
    found = [dealt.to_clients(part) for part in (train, test)]
    assert sum(len(block.y) for block in found[1].values()) == 400
    # the same shares of each class, up to the rounding of either part to whole samples
    assert np.abs(counts(found[0]) / 80 - counts(found[1]) / 40).max() < 1 / 80 + 1 / 40
    for name in found[0]:  # and the same name for each
        own = [
            {(part.y[s == part.samples][0], y) for s, y in zip(b.samples, b.y, strict=True)}
            for part, b in ((train, found[0][name]), (test, found[1][name]))
        ]
        assert {*own[0], *own[1]} == max(own, key=len)


@given(
    clients=st.integers(1, 9),
    sizes=st.lists(st.integers(0, 50), min_size=1, max_size=8),
    alpha=st.sampled_from([0.05, 1.0, math.inf]),
    seed=st.integers(0, 99),
)
def test_shares_are_rounded_so_that_classes_and_clients_add_up(clients, sizes, alpha, seed):
    rng = np.random.default_rng(seed)
    shares = np.full((clients, len(sizes)), 1 / clients)
    if alpha < math.inf:
        shares = rng.dirichlet(np.full(clients, alpha), len(sizes)).T
    found = apportioned(shares, np.array(sizes))
    assert found.sum(axis=0).tolist() == sizes
    assert np.abs(found - shares * sizes).max() < 1
    assert (found[shares == 0] == 0).all()
    if alpha == math.inf:  # what all share equally comes out equally, whatever the classes
        assert np.ptp(found.sum(axis=1)) <= 1


def test_iid_clients_are_alike():
    dealt = deal("iid", labelled(), clients=8)
    assert (counts(dealt.to_clients(labelled())) == 5).all()
    assert dealt.structure.levels == {"all": (0,) * 8}


def test_dirichlet_shares_have_the_moments_of_their_distribution():
    each, clients, alpha = 10_000, 4, 0.5
    dataset = labelled(60, each)
    dealt = deal("dirichlet", dataset, clients=clients, alpha=alpha, seed=3)
    shares = counts(dealt.to_clients(dataset), 60) / each
    # Dirichlet(α, …, α) of m parts: mean 1/m, variance (1/m)(1 - 1/m)/(mα + 1)
    assert shares.mean(axis=1) == pytest.approx(1 / clients, abs=4 * 0.25 / math.sqrt(60))
    variance = (1 / clients) * (1 - 1 / clients) / (clients * alpha + 1)
    assert shares.var() == pytest.approx(variance, rel=0.3)
    assert dealt.structure.levels == {"personal": (0, 1, 2, 3)}


def test_dirichlet_shares_are_drawn_until_every_client_has_its_minimum():
    sizes = {
        minimum: min(
            len(block.y)
            for seed in range(20)
            for block in partition(
                "dirichlet", labelled(), clients=8, alpha=0.1, minimum=minimum, seed=seed
            ).values()
        )
        for minimum in (1, 20)
    }
    assert sizes[1] < 20 <= sizes[20]
    with pytest.raises(ExperimentError, match=r"some client gets \d+ training samples at best"):
        partition("dirichlet", labelled(), clients=8, alpha=0.01, minimum=50)


def test_clusters_share_their_classes_and_nothing_else():
    dealt = deal("clusters", labelled(), clients=7, clusters=3, classes=4, alpha=math.inf)
    group = np.array(dealt.structure.levels["clusters"])
    assert group.tolist() == [0, 0, 1, 1, 1, 2, 2]
    found = counts(dealt.to_clients(labelled())) > 0
    for one in range(3):
        own = found[group == one]
        assert (own == own[0]).all()
        assert own[0].sum() == 4
    holders = np.array([found[group == one][0] for one in range(3)]).sum(axis=0)
    assert sorted(holders.tolist()) == [1] * 8 + [2] * 2  # 12 places for 10 classes


def test_clusters_may_confuse_a_pair_of_classes_or_all():
    dataset = labelled()
    for relabel, moved in (("none", {0}), ("pair", {2}), ("all", {7, 8, 9, 10})):
        dealt = deal("clusters", dataset, clients=8, clusters=4, relabel=relabel, seed=1)
        names = {}
        for (name, block), group in zip(
            dealt.to_clients(dataset).items(), dealt.structure.levels["clusters"], strict=True
        ):
            assert len(block.y) > 20, name
            for true, called in zip(dataset.y[block.samples], block.y, strict=True):
                names.setdefault(group, {}).setdefault(true, set()).add(called)
        ways = []
        for called in names.values():
            assert all(len(some) == 1 for some in called.values())  # one name in a cluster
            way = tuple(min(called[true]) for true in sorted(called))
            assert sorted(way) == list(range(10))
            assert sum(a != b for a, b in zip(way, range(10), strict=True)) in moved
            ways.append(way)
        assert len(set(ways)) == (1 if relabel == "none" else 4)


def test_binary_labels_are_confused_by_their_codes():
    dataset = labelled(2, 20)
    dataset = replace(dataset, y=2 * dataset.y - 1, classes=(-1.0, 1.0))
    blocks = partition("clusters", dataset, clients=4, clusters=2, relabel="all")
    same = [(dataset.y[b.samples] == b.y).mean() for b in blocks.values()]
    assert sorted(same) == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("classes", "groups", "each"),
    [
        (100, [2, 5, 9], (19, 7, 3)),
        (100, [3, 6, 11], (14, 6, 2)),
        (200, [4, 13, 21], (20, 6, 2)),
        (200, [9, 15, 22], (9, 5, 2)),
    ],
)
def test_levels_have_the_class_counts_of_table_c1(classes, groups, each):
    shares = levels(labelled(classes, 20), clients=50, groups=groups, seed=2)
    expected = Counter()
    for group, number, own in zip(shares.structure.levels.values(), groups, each, strict=True):
        assert sorted(set(group)) == list(range(number))
        for one in range(number):
            expected[tuple(np.flatnonzero(np.array(group) == one).tolist())] += own
    found = Counter(tuple(np.flatnonzero(column).tolist()) for column in shares.shares.T)
    assert found == expected  # how many classes each group of clients shares
    assert ((shares.shares > 0).sum(axis=1) == sum(each)).all()


def test_a_group_of_a_coarse_level_is_a_run_of_finer_groups():
    dealt = deal("levels", labelled(100, 20), clients=20, groups=[9, 2, 5], classes=[3, 19, 7])
    fine, coarse, middle = dealt.structure.levels.values()
    assert len(set(zip(fine, middle, strict=True))) == len(set(fine)) == 9
    assert len(set(zip(middle, coarse, strict=True))) == len(set(middle)) == 5


def test_training_samples_of_a_client_can_be_limited():
    train, test = parts()
    keys = {"clients": 4, "clusters": 2, "classes": 5, "seed": 5}
    full, some = deal("clusters", train, **keys), deal("clusters", train, **keys, samples=30)
    assert min(len(block.y) for block in full.to_clients(train).values()) > 30
    assert [len(block.y) for block in some.to_clients(train).values()] == [30] * 4
    every, held = full.to_clients(test), some.to_clients(test)
    assert [len(block.y) for block in held.values()] == [len(block.y) for block in every.values()]
    drawn = deal("iid", train, clients=10, samples=[5, 35]).to_clients(train)
    sizes = [len(block.y) for block in drawn.values()]
    assert 5 <= min(sizes) < max(sizes) <= 35


@pytest.mark.parametrize(
    ("kind", "keys", "sentence"),
    [
        ("iid", {"clients": 0}, "clients = 0; expected a whole number from 1 to 400"),
        ("iid", {"clients": 2, "samples": 0}, "samples = 0; expected"),
        ("iid", {"clients": 2, "samples": [9, 3]}, "samples = .9, 3.; expected"),
        ("dirichlet", {"clients": 2, "alpha": 0}, "alpha = 0; expected a number above 0"),
        ("dirichlet", {"clients": 2, "alpha": "wide"}, "alpha = 'wide'; expected a number"),
        ("dirichlet", {"clients": 8, "alpha": 1.0, "minimum": 51}, "minimum = 51; .* 1 to 50"),
        ("dirichlet", {"clients": 2}, "lacks the key 'alpha'"),
        ("clusters", {"clients": 2, "clusters": 3}, "clusters = 3; .* from 1 to 2"),
        ("clusters", {"clients": 4, "clusters": 2, "classes": 11}, "classes = 11; .* 1 to 10"),
        ("clusters", {"clients": 4, "clusters": 2, "classes": 4}, "some would be with nobody"),
        ("clusters", {"clients": 4, "clusters": 2, "relabel": "pairs"}, "use 'pair'"),
        (
            "clusters",
            {"clients": 4, "clusters": 2, "classes": 5, "relabel": "all"},
            "remove one of the two",
        ),
        ("clusters", {"clients": 6, "clusters": 6, "relabel": "pair"}, "have 5 different pairs"),
        ("levels", {"clients": 9, "groups": []}, r"groups = \[\]; expected how many groups"),
        ("levels", {"clients": 9, "groups": [2, 10]}, "groups = 10; .* from 1 to 9"),
        ("levels", {"clients": 9, "groups": [2, 4]}, "the paper does not say for 10; set classes"),
        ("levels", {"clients": 9, "groups": [2], "classes": [5.0]}, "expected a whole number of"),
        ("levels", {"clients": 9, "groups": [2, 4], "classes": [5]}, "for each level"),
        (
            "levels",
            {"clients": 9, "groups": [2, 4], "classes": [2, 2]},
            "which are 12 classes, and 'labelled' has 10",
        ),
    ],
)
def test_what_cannot_be_dealt_is_one_clear_sentence(kind, keys, sentence):
    with pytest.raises(ExperimentError, match=sentence):
        partition(kind, labelled(), **keys)


def test_numbers_to_predict_and_unknown_classes_are_refused():
    with pytest.raises(ExperimentError, match="regression"):
        partition("iid", replace(labelled(), y=np.arange(400) + 0.5, classes=()), clients=2)
    y = np.where(np.arange(400) < 3, np.nan, labelled().y)
    with pytest.raises(ExperimentError, match="3 samples of 'labelled' have no label"):
        partition("iid", replace(labelled(), y=y), clients=2)
    three, four = (replace(labelled(classes), classes=()) for classes in (3, 4))
    dealt = deal("iid", three, clients=2)
    assert sum(len(block.y) for block in dealt.to_clients(three).values()) == 120
    with pytest.raises(ExperimentError, match="samples of class 3, of which there were none"):
        dealt.to_clients(four)
