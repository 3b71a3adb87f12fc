"""How good predictions are: accuracy, ranking and loss for classes, errors for numbers.

All are pure functions of arrays over samples. A metric that is undefined for its arguments (no
sample, one class only where two are compared) is NaN.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from intarsia.errors import TableError
from intarsia.maths.losses import value

__all__ = [
    "accuracy",
    "balanced_accuracy",
    "log_loss",
    "mean_loss",
    "mean_squared_error",
    "r2",
    "roc_auc",
]

Array = NDArray[np.float64]
Labels = NDArray[Any]  # classes of any type


def accuracy(y: Labels, predicted: Labels) -> float:
    """Return the fraction of samples whose class is predicted."""
    _check_lengths(y, predicted)
    return float(np.mean(y == predicted)) if len(y) else math.nan


def balanced_accuracy(y: Labels, predicted: Labels) -> float:
    """Return the mean over the classes in `y` of the fraction of each that is predicted."""
    _check_lengths(y, predicted)
    recalls = [float(np.mean(predicted[y == one] == one)) for one in np.unique(y)]
    return float(np.mean(recalls)) if recalls else math.nan


def mean_loss(loss: int, scores: Array, y: Array) -> float:
    """Return the mean of l(z, y) over the samples, summed over the outputs.

    `scores` and `y` are (samples,) or (outputs, samples); the regulariser is not in it.
    """
    if scores.shape != y.shape:
        raise TableError(
            f"The scores have shape {scores.shape} but the labels {y.shape}; "
            "both must be (outputs, samples)."
        )
    samples = y.shape[-1]
    return float(value(loss, scores, y).sum()) / samples if samples else math.nan


def log_loss(y: NDArray[np.integer[Any]], probabilities: Array) -> float:
    """Return the mean of -log of the probability given to each sample's class.

    `y` are class numbers 0, 1, …; `probabilities` (samples, classes). A probability below the
    machine epsilon counts as that, so that one sure mistake does not make the mean infinite.
    """
    _check_lengths(y, probabilities)
    if not len(y):
        return math.nan
    given = probabilities[np.arange(len(y)), y]
    return float(-np.log(np.maximum(given, np.finfo(float).eps)).mean())


def roc_auc(y: Array, scores: Array) -> float:
    """Return the probability that a positive sample (y > 0) scores above a negative one.

    Equal scores count one half. NaN if there is no positive or no negative sample.
    """
    _check_lengths(y, scores)
    positive = y > 0
    count, others = int(positive.sum()), int((~positive).sum())
    if not count or not others:
        return math.nan
    # the ranks of the positives, less those that they have among themselves (Mann-Whitney)
    wins = float(rankdata(scores)[positive].sum()) - count * (count + 1) / 2
    return wins / (count * others)


def mean_squared_error(y: Array, predicted: Array) -> float:
    """Return the mean of the squared differences."""
    _check_lengths(y, predicted)
    return float(np.mean((y - predicted) ** 2)) if len(y) else math.nan


def r2(y: Array, predicted: Array) -> float:
    """Return the share of the variance of `y` that is explained, 1 at best.

    If `y` is constant it is 1 for exact predictions and 0 for others. NaN below two samples.
    """
    _check_lengths(y, predicted)
    if len(y) < 2:
        return math.nan
    residual = float(((y - predicted) ** 2).sum())
    total = float(((y - y.mean()) ** 2).sum())
    if total == 0.0:
        return 1.0 if residual == 0.0 else 0.0
    return 1.0 - residual / total


def _check_lengths(y: Labels, given: Labels) -> None:
    if len(y) != len(given):
        raise TableError(
            f"There are {len(y)} labels but {len(given)} predictions; "
            "every sample needs one of each."
        )
