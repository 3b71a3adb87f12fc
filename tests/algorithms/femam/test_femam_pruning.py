"""What keeps a level of FeMAM at a client: its own rows for validation, and those of all."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chi2

pytest.importorskip("torch")

from intarsia.algorithms.femam.clustering import fewest
from intarsia.algorithms.femam.hyperparameters import FeMAM
from intarsia.algorithms.femam.validation import helps
from intarsia.maths.shrinkage import pooled, summary

POOLED = FeMAM(level_schedule="paper")


def clients(means, rows=10, seed=0):
    """Return falls of clients that are worth what they are worth, with deviation 0.4."""
    rng = np.random.default_rng(seed)
    return [mean + 0.4 * rng.normal(size=rows) for mean in means]


def kept(each, options=POOLED):
    level = pooled(sum(map(summary, each)))
    return [helps(options, one, level) for one in each]


def test_what_a_level_is_worth_is_estimated_from_sums():
    """Against the formulas, on rows of unlike numbers."""
    rng = np.random.default_rng(1)
    each = [rng.normal(mean, 0.3, size=n) for mean, n in ((0.0, 4), (2.0, 9), (1.0, 6))]
    found = pooled(sum(map(summary, each)))
    n, own, rows = np.array([4, 9, 6]), np.array([one.mean() for one in each]), np.concatenate(each)
    within = sum(((one - one.mean()) ** 2).sum() for one in each) / (19 - 3)
    among = (n * (own - rows.mean()) ** 2).sum()
    between = (among - chi2.ppf(0.99, 2) * within) / (19 - (n**2).sum() / 19)
    assert found.mean == pytest.approx(rows.mean())
    assert found.within == pytest.approx(within)
    assert found.between == pytest.approx(between) != 0
    assert found.uncertainty == pytest.approx(within / 19 + between * (n**2).sum() / 19**2)


@pytest.mark.parametrize(
    ("means", "wanted"),
    [
        ([0.1] * 20, [True] * 20),  # each alone would be 0.1 ± 0.13
        ([-0.05] * 20, [False] * 20),
        ([1.0] * 10 + [-0.5] * 10, [True] * 10 + [False] * 10),  # they differ: each by its own rows
        ([0.5], [True]),
    ],
)
def test_clients_go_by_all_rows_unless_they_differ(means, wanted):
    assert kept(clients(means)) == wanted


@pytest.mark.parametrize("rows", [5, 10, 40])
def test_what_is_worth_nothing_is_dropped(rows):
    """By chance one level of six is taken for worth something, by 1 standard error."""
    runs = [kept(clients([0.0] * 20, rows, seed)) for seed in range(200)]
    share = np.mean(runs)
    assert 0.1 < share < 0.22
    assert np.mean([len(set(run)) == 1 for run in runs]) > 0.95  # all or nobody
    strict = [
        kept(clients([0.0] * 20, rows, seed), FeMAM(level_schedule="paper", evidence=2.33))
        for seed in range(200)
    ]
    assert np.mean(strict) < 0.03


def test_a_client_without_rows_for_validation_goes_by_the_others():
    each = [*clients([0.3] * 5), np.zeros(0)]
    assert kept(each)[-1]
    assert kept([-one for one in each])[-1] is False
    assert kept([np.zeros(0)]) == [False]
    assert kept([np.ones(1), np.ones(1)]) == [True, True]
    assert kept([np.zeros(9), np.zeros(9)]) == [False, False]  # no change


@pytest.mark.parametrize(
    ("means", "noise", "wanted"),
    [
        ((0.5, 0.3, 0.29), 0.0, 2),
        ((0.5, 0.3, 0.29), 0.5, 1),  # the last is better by 0.01 ± 0.07
        ((0.3, 0.4, 0.5), 0.0, 0),
        ((0.5, 0.3, 0.3), 0.0, 1),
    ],
)
def test_the_fewest_clusters_that_are_as_good_are_chosen(means, noise, wanted):
    rng = np.random.default_rng(0)
    common = 5 * rng.normal(size=200)  # rows differ by more than the trials
    drawn = rng.normal(size=(3, 200))
    drawn -= drawn.mean(axis=1, keepdims=True)
    losses = np.array(means)[:, None] + common - common.mean() + noise * drawn
    total = np.concatenate([[200], losses.sum(axis=1), (losses @ losses.T).ravel()])
    place, mean = fewest(total, 3, 1.0)
    assert place == wanted
    np.testing.assert_allclose(mean, means)
