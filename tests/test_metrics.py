"""Metrics against scikit-learn's and against numbers that can be checked by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as reference

from intarsia.errors import TableError
from intarsia.maths import metrics
from intarsia.maths.losses import HINGE, SQUARED

few = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(-3, 3)), min_size=2, max_size=30
)
numbers = st.lists(
    st.tuples(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3)), min_size=2, max_size=30
).map(np.array)


def test_accuracies_of_four_samples_by_hand():
    y, predicted = np.array(["a", "a", "a", "b"]), np.array(["a", "a", "b", "b"])
    assert metrics.accuracy(y, predicted) == 0.75
    assert metrics.balanced_accuracy(y, predicted) == pytest.approx((2 / 3 + 1) / 2)


@given(few)
def test_accuracies_are_scikit_learns(rows):
    y, predicted, _ = np.array(rows).T
    assert metrics.accuracy(y, predicted) == pytest.approx(reference.accuracy_score(y, predicted))
    recalls = reference.recall_score(y, predicted, average=None, labels=np.unique(y))
    assert metrics.balanced_accuracy(y, predicted) == pytest.approx(np.mean(recalls))


@given(few)
def test_roc_auc_is_scikit_learns_with_ties(rows):
    classes, _, scores = np.array(rows).T
    y = np.where(classes > 0, 1.0, -1.0)
    if len(np.unique(y)) < 2:
        assert math.isnan(metrics.roc_auc(y, scores))
    else:
        expected = reference.roc_auc_score(y, scores)
        assert metrics.roc_auc(y, scores) == pytest.approx(expected, abs=1e-12)


@given(numbers)
def test_errors_of_numbers_are_scikit_learns(pairs):
    y, predicted = pairs.T
    expected = reference.mean_squared_error(y, predicted)
    assert metrics.mean_squared_error(y, predicted) == pytest.approx(expected)
    if np.ptp(y) > 1e-3:
        assert metrics.r2(y, predicted) == pytest.approx(reference.r2_score(y, predicted))


def test_r2_of_a_constant_target_is_one_or_zero():
    y = np.full(3, 2.0)
    assert metrics.r2(y, y) == 1.0
    assert metrics.r2(y, y + 1) == 0.0
    assert math.isnan(metrics.r2(y[:1], y[:1]))


def test_log_loss_is_scikit_learns_and_finite_for_a_sure_mistake():
    y = np.array([0, 2, 1, 1])
    probabilities = np.array([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8], [0.3, 0.4, 0.3], [1.0, 0.0, 0.0]])
    found = metrics.log_loss(y, probabilities)
    assert found == pytest.approx(reference.log_loss(y, probabilities))
    assert math.isfinite(found)


def test_mean_loss_sums_over_outputs():
    scores, y = np.array([[0.5, 2.0], [-1.0, 0.0]]), np.array([[1.0, 1.0], [-1.0, -1.0]])
    assert metrics.mean_loss(HINGE, scores, y) == pytest.approx((0.5 + 0 + 0 + 1) / 2)
    assert metrics.mean_loss(SQUARED, scores[0], y[0]) == pytest.approx((0.125 + 0.5) / 2)


def test_no_sample_gives_no_number():
    none = np.zeros(0)
    for metric in [metrics.accuracy, metrics.balanced_accuracy, metrics.roc_auc, metrics.r2]:
        assert math.isnan(metric(none, none))
    assert math.isnan(metrics.mean_squared_error(none, none))
    assert math.isnan(metrics.mean_loss(HINGE, none, none))
    assert math.isnan(metrics.log_loss(np.zeros(0, int), np.zeros((0, 2))))


def test_predictions_of_another_length_are_an_error():
    with pytest.raises(TableError, match="3 labels but 2 predictions"):
        metrics.accuracy(np.zeros(3), np.zeros(2))
    with pytest.raises(TableError, match="outputs, samples"):
        metrics.mean_loss(HINGE, np.zeros((1, 3)), np.zeros(3))
