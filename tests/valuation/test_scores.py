from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import mean_absolute_error, r2_score, roc_auc_score

from intarsia.valuation.scores import baseline, draws, judged


@pytest.mark.parametrize("measure", ["auc", "accuracy", "r2", "mae"])
def test_weights_count_rows_as_if_they_were_repeated(measure):
    rng = np.random.default_rng(1)
    said = np.round(rng.normal(size=40), 1)  # some are tied
    truth = {"auc": np.sign(said + rng.normal(size=40)), "accuracy": np.round(said)}.get(
        measure, said + rng.normal(size=40) + 1e3
    )
    said = np.round(said + 0.3 * rng.normal(size=40)) if measure == "accuracy" else said
    of = {
        "auc": lambda y, z: roc_auc_score(y > 0, z),
        "accuracy": lambda y, z: np.mean(y == z),
        "r2": r2_score,
        "mae": mean_absolute_error,
    }[measure]
    weights = np.stack([np.ones(40), *rng.poisson(1.0, (3, 40))])
    wanted = [of(np.repeat(truth, own), np.repeat(said, own)) for own in weights.astype(int)]
    np.testing.assert_allclose(judged(said, truth, weights, measure), wanted, rtol=1e-9)


def test_a_measure_that_does_not_exist_is_no_number():
    assert np.isnan(judged(np.arange(3.0), np.ones(3), np.ones((1, 3)), "auc")).all()
    assert np.isnan(judged(np.arange(3.0), np.full(3, 7.0), np.ones((1, 3)), "r2")).all()


def test_without_a_model_the_commonest_class_or_the_mean_is_said():
    assert baseline(np.array([1.0, 2.0, 2.0, np.nan]), "accuracy") == 2.0
    assert baseline(np.array([1.0, 2.0, np.nan]), "mae") == 1.5


def test_the_first_weighting_is_of_the_rows_as_they_are():
    parts = list(draws(10_000))
    assert (parts[0] == 1).all()
    assert sum(len(one) for one in parts) == 501
    assert len(parts) == 3  # not all at once


def test_scores_that_differ_by_rounding_are_ties():
    truth = np.array([1.0, -1.0])
    for said in ([1.0, 1.0 - 1e-16], [1.0 - 2e-16, 1.0]):
        assert judged(np.array(said), truth, np.ones((1, 2)), "auc").tolist() == [0.5]
