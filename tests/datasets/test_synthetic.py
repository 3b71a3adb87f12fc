from __future__ import annotations

import numpy as np
import pytest

from intarsia.datasets.registry import load
from intarsia.datasets.synthetic import Gaussians
from intarsia.errors import ExperimentError


def test_the_toy_of_the_paper_has_its_counts_and_moments():
    found = Gaussians(seed=3, deviation=0.8).draw()
    assert found.x.shape == (60000, 5)
    assert np.bincount(found.y[~found.test]).tolist() == [2000] * 20
    assert np.bincount(found.y[found.test]).tolist() == [1000] * 20
    for y in (0, 19):
        train, test = (found.x[(found.y == y) & (found.test == part)] for part in (False, True))
        np.testing.assert_allclose(np.cov(train.T), np.eye(5), atol=0.12)
        np.testing.assert_allclose(train.mean(0), test.mean(0), atol=0.15)  # one mean for both
    means = np.array([found.x[found.y == y].mean(0) for y in range(20)])
    assert 0.6 < means.std() < 1.0


def test_a_seed_draws_the_same_again_and_another_seed_something_else():
    one, again, other = Gaussians(seed=1).draw(), Gaussians(seed=1).draw(), Gaussians(seed=2).draw()
    np.testing.assert_array_equal(one.x, again.x)
    assert not np.isclose(one.x, other.x).any(axis=1).any()
    shorter = Gaussians(seed=1, test_samples=10).draw()
    np.testing.assert_array_equal(shorter.x[~shorter.test], one.x[~one.test])


def test_a_data_set_is_drawn_from_its_own_seed_or_the_experiments():
    small = {"train_samples": 5, "test_samples": 0}
    same = load("gaussians", drawn_from=7, **small), load("gaussians", seed=7, **small)
    np.testing.assert_array_equal(same[0].x, same[1].x)
    assert same[0].test is None


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"classes": 1}, "classes is 1; it must be a whole number of at least 2: set e.g. 20."),
        ({"deviation": -1.0}, "deviation is -1.0; it must be finite and at least 0"),
        ({"train_samples": True}, "train_samples is true; expected a whole number."),
        ({"side": 3}, "no option 'side'"),
    ],
)
def test_a_wrong_option_is_said(options, sentence):
    with pytest.raises(ExperimentError) as found:
        load("gaussians", **options)
    assert sentence in str(found.value)
