"""Judge what models say of rows by one measure, for many weightings of the rows at once.

With rows drawn again and again (a Poisson bootstrap) all models are judged on the same draws, so
that the interval of a difference is that of the difference: rows that are hard for one model are
hard for the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from intarsia.maths import figures
from intarsia.maths.figures import REPLICATES, Ranked

Array = NDArray[np.float64]

# by their names in [tune] objective and in `figures`; whether more is better
MEASURES: Final = {"auc": True, "accuracy": True, "r2": True, "mae": False}
BY_TASK: Final = {
    "binary": ("auc", "accuracy"),
    "multiclass": ("accuracy",),
    "regression": ("r2", "mae"),
}
_SEED = 20261126  # public: what is judged again has the same intervals
_VALUES = 4_000_000  # that are computed at once


def judged(said: Array, truth: Array, weights: Array, measure: str) -> Array:
    """Return the measure for each weighting, (weightings,); NaN where it does not exist.

    Parameters
    ----------
    said
        What a model says, (rows,): for "auc" a score, for "accuracy" a class as `truth` codes it,
        else a number.
    truth
        The labels, (rows,): for "auc" -1 and +1.
    weights
        How often each row counts, (weightings, rows).
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        total = weights.sum(axis=1)
        if measure == "accuracy":
            return np.asarray(weights @ (said == truth) / total)
        if measure == "auc":
            scores = figures.tied(said)
            order = np.argsort(-scores, kind="stable")
            ranked = scores[order]
            starts = np.flatnonzero(np.r_[True, ranked[1:] != ranked[:-1]])
            positive, counted = truth[order] > 0, weights[:, order]
            held = (np.add.reduceat(counted * one, starts, axis=1) for one in (positive, ~positive))
            return figures.auc(Ranked(ranked[starts], *held))
        error = truth - said
        if measure == "mae":
            return np.asarray(weights @ np.abs(error) / total)
        label = weights @ truth / total
        around = truth - truth.mean()  # of large numbers squares would lose their digits
        spread = weights @ around**2 - total * (label - truth.mean()) ** 2
        found = 1 - weights @ error**2 / spread
        return np.asarray(np.where(spread > 1e-12 * total * (around**2).mean(), found, np.nan))


def baseline(own: Array, measure: str) -> float:
    """Return what is said without any feature, from the labels of a party's training rows.

    It is their commonest class, or their mean; for "auc" the same score of all rows.
    """
    known = own[~np.isnan(own)]
    if measure == "auc" or not len(known):
        return 0.0
    if measure == "accuracy":
        classes, counts = np.unique(known, return_counts=True)
        return float(classes[counts.argmax()])
    return float(known.mean())


def draws(samples: int) -> Iterator[Array]:
    """Yield how often each sample counts: first once each, then in `REPLICATES` draws, in parts.

    Each part is (weightings, samples).
    """
    rng = np.random.Generator(np.random.Philox(key=_SEED))
    step = max(1, _VALUES // max(samples, 1))
    yield np.ones((1, samples))
    for start in range(0, REPLICATES, step):
        shape = (min(step, REPLICATES - start), samples)
        yield rng.poisson(1.0, shape).astype(np.float64)
