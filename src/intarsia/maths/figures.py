"""The figures that people judge a model's scores by: ranking, calibration, errors, intervals.

Everything here is a function of counts: how many samples of each class have each score, in the
order of the scores. Where a count is of one score each figure is exact, and that of scikit-learn;
where it is of a bin of scores, samples of a bin count as tied, and `bounds_of_bins` says between
which values the exact figure lies.

A sample is taken for the second of two classes where its score is above `THRESHOLD`, for which the
probability is 1/2, and for the class with the largest score where there are more than two.

Intervals are of 95 %. Those of shares (accuracy, sensitivity, specificity) are Wilson's (1927),
which have a width where the share is 0 or 1 too. Others of two classes, and of macro-F1, are
percentiles of a Poisson bootstrap over samples (Hanley and MacGibbon 2006, "Creating non-parametric
bootstrap samples using Poisson frequencies") with a fixed public seed, so that a run that is
repeated has the same. Of more than `GROUPS` scores neighbours are taken together for it, and the
interval is moved to the exact figure.

Where a sample counts in several sums, of one class against each of the others or of numbers, they
are normal with the standard error of the infinitesimal jackknife, √Σ ψ² over the samples with ψ
what a figure changes by for one more of that sample (Jaeckel 1972; of AUC the method of DeLong,
DeLong and Clarke-Pearson 1988). Those of the line of calibration are of its Fisher information.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from intarsia.maths import loss_codes

Array = NDArray[np.float64]
Range = tuple[float, float]

THRESHOLD: Final = 0.0  # of the score; a probability of 1/2
CALIBRATION_BINS: Final = 10  # of equal width in the probability
CURVE_POINTS: Final = 50  # of thresholds of a curve, at most
PREDICTION_BINS: Final = 10  # of numbers, at most
GROUPS: Final = 1000  # of scores, for intervals
REPLICATES: Final = 500
# of networks, whose scores are log-odds of the classes
CROSS_ENTROPY: Final = len(loss_codes.LOSSES)
_ROUNDING = 1e-13  # of scores, as a share of their size
_MOST_ROUNDED = 100  # times that, between scores that are equal up to rounding
_NONE = 1e-9  # samples, where shared ones are counted in parts
_SEED = 20060101
_TAIL = (0.025, 0.975)
_NORMAL = 1.959963984540054  # of the normal distribution, at the upper tail

# which way is better; of the others neither
BETTER: Final[Mapping[str, int]] = {
    "auc": 1,
    "gini": 1,
    "average_precision": 1,
    "ks": 1,
    "brier": -1,
    "calibration_error": -1,
    "sensitivity": 1,
    "specificity": 1,
    "mae": -1,
    "rmse": -1,
    "deviance": -1,
    "d2": 1,
    "trained_classes": 1,
    "untrained_classes": 1,
}


@dataclass(frozen=True)
class CalibrationBin:
    """The samples whose probability lies in one bin."""

    samples: float
    probability: float  # mean of what the model says
    share: float  # of them that are of the class, or that it says right


@dataclass(frozen=True)
class PredictionBin:
    """The samples for which the model says numbers in one range, in the labels' unit."""

    samples: float
    predicted: float  # mean of what the model says
    actual: float  # mean of their labels
    deviation: float  # of their labels


# samples of the class, and of the others, with a score in each range, the largest scores first
Curve = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Figures:
    """How good a model's scores of some samples are (docs/reference/figures.md).

    None: it is a figure of another task, or is not told.
    """

    auc: float | None = None  # of several classes the mean of one against the rest
    gini: float | None = None  # 2 AUC - 1
    average_precision: float | None = None  # of several classes the mean of one against the rest
    ks: float | None = None  # largest distance of both classes' distributions; of two classes
    brier: float | None = None  # mean squared error of the probabilities; of several, their sum
    calibration_error: float | None = None  # mean |share - probability| over the bins
    calibration_slope: float | None = None  # of the labels' log-odds on the model's; best is 1
    calibration_intercept: float | None = None  # best is 0
    sensitivity: float | None = None  # of the second of two classes, at the threshold
    specificity: float | None = None
    threshold: float | None = None  # of the score
    base_rate: float | None = None  # share of the second of two classes
    majority: float | None = None  # share of the class with most samples: what always saying it has
    mae: float | None = None  # mean absolute error, in the labels' unit
    rmse: float | None = None  # root of the mean squared error, in the labels' unit
    deviance: float | None = None  # mean unit deviance, of the Poisson and the Gamma loss
    d2: float | None = None  # 1 - deviance / that of the mean label
    coverage: float | None = None  # share of labels up to the score; best is τ of the quantile loss
    # accuracy on samples of the classes that the client has in training, and on those of others
    trained_classes: float | None = None
    untrained_classes: float | None = None
    confusion: tuple[tuple[float, ...], ...] | None = None  # by true (rows) and predicted class
    calibration: tuple[CalibrationBin, ...] | None = None  # of several classes of the one it says
    curves: tuple[Curve, ...] | None = None  # of each class against the rest; of two, the second
    predictions: tuple[PredictionBin, ...] | None = None  # of numbers, by what is predicted
    intervals: Mapping[str, Range] = field(default_factory=dict[str, Range])  # of 95 %, by name
    bounds: Mapping[str, Range] = field(default_factory=dict[str, Range])  # where scores have bins

    @property
    def only_class(self) -> int | None:
        """Return which class the model says of all samples, where these have several; else None."""
        if self.confusion is None:
            return None
        held, said = (np.array(self.confusion).sum(axis=axis) > 0 for axis in (1, 0))
        return int(said.argmax()) if held.sum() > 1 and said.sum() == 1 else None


def figures_from(found: Mapping[str, Any]) -> Figures:
    """Return the figures that were written as plain types; names that are not known are left out.

    Raises
    ------
    KeyError, TypeError, ValueError
        If they are no figures.
    """
    known = {one.name for one in fields(Figures)}
    given = {key: value for key, value in found.items() if key in known}
    for name in ("intervals", "bounds"):
        ranges = {key: (low, high) for key, (low, high) in given.get(name, {}).items()}
        given[name] = {key: one for key, one in ranges.items() if None not in one}
    if given.get("confusion") is not None:
        given["confusion"] = tuple(tuple(row) for row in given["confusion"])
    if given.get("curves") is not None:
        given["curves"] = tuple(tuple((p, n) for p, n in one) for one in given["curves"])
        if not all(given["curves"]):
            raise ValueError("a curve has no points")
    if given.get("predictions") is not None:
        given["predictions"] = tuple(PredictionBin(**one) for one in given["predictions"])
    if given.get("calibration") is not None:
        given["calibration"] = tuple(CalibrationBin(**one) for one in given["calibration"])
    return Figures(**given)


def has_curves(found: Figures) -> bool:
    """Return whether the figures have something to draw."""
    return bool(found.curves or found.calibration or found.predictions)


def classes_of_curves(found: Figures, classes: Sequence[str]) -> Sequence[str]:
    """Return the class of each curve; (): it is not known.

    A class of which no sample is, or every one, has no curve.
    """
    if found.curves is None or found.confusion is None or len(found.confusion) == 2:
        return classes if found.curves is not None and len(classes) == len(found.curves) else ()
    rows = np.array(found.confusion).sum(axis=1)
    there = [
        name for name, held in zip(classes, rows, strict=False) if _NONE < held < rows.sum() - _NONE
    ]
    return there if len(there) == len(found.curves) else ()


def reduced(
    some: Sequence[Figures | None], reduce: Callable[[Sequence[float], int], float]
) -> Figures | None:
    """Return one number for each figure of which more is better, or less (a sign of -1)."""
    there = [one for one in some if one is not None]
    found: dict[str, float] = {}
    for name, sign in BETTER.items():
        known = [value for one in there if (value := getattr(one, name)) is not None]
        if known:
            found[name] = reduce(known, sign)
    return Figures(**found) if found else None  # type: ignore[arg-type]  # names of fields that are numbers


def probabilities(z: Array, loss: int) -> Array | None:
    """Return the probability of each class, (outputs, samples): of two, of the second.

    None for a loss whose scores are no log-odds.
    """
    if loss == CROSS_ENTROPY:
        return np.asarray(expit(z))
    if loss != loss_codes.LOGISTIC:
        return None
    if len(z) == 1:
        return np.asarray(expit(z))
    each = np.maximum(expit(z), np.finfo(float).tiny)
    return np.asarray(each / each.sum(axis=0))


def ranked_scores(z: Array, loss: int) -> Array:
    """Return what samples are put in order by, (outputs, samples): log-odds where there are any.

    Of one against the rest they are those of probabilities that add up to 1. Scores that are equal
    up to rounding are equal.
    """
    if loss == loss_codes.LOGISTIC and len(z) > 1:
        each = np.maximum(expit(z), np.finfo(float).tiny)
        others = np.zeros_like(each)
        others[1:] += np.cumsum(each[:-1], axis=0)
        others[:-1] += np.cumsum(each[:0:-1], axis=0)[::-1]
        z = np.log(each) - np.log(others)  # 1 less a probability near 1 has no digits
    return np.stack([tied(one) for one in z])


def tied(scores: Array) -> Array:
    """Return scores, (samples,), of which those that are equal up to rounding are equal.

    Neighbours are where they differ by no more than that. So many that they lie further apart all
    the same are of a model with scores that are close together, and stay as they are.
    """
    order = np.argsort(scores, kind="stable")
    own = scores[order]
    # of each its own: one far out says nothing of the others
    least = _ROUNDING * np.maximum(1.0, np.where(np.isfinite(own), np.abs(own), 0.0))
    with np.errstate(invalid="ignore"):  # what is infinite
        apart = ~(np.diff(own, prepend=-np.inf) <= least)
    if apart.all():
        return scores
    starts = np.flatnonzero(apart)
    ends = np.append(starts[1:], len(own)) - 1
    group = np.cumsum(apart) - 1
    with np.errstate(invalid="ignore"):
        alike = own[ends] - own[starts] <= _MOST_ROUNDED * least[ends]
    found = np.empty_like(own)
    found[order] = np.where(alike[group], own[starts][group], own)
    return found


@dataclass(frozen=True)
class Ranked:
    """How many samples of each of two classes have each score, the largest score first."""

    scores: Array  # (scores,) descending
    positive: Array  # (..., scores) of the second class
    negative: Array  # (..., scores)

    @classmethod
    def of(cls, scores: Array, positive: NDArray[np.bool_], weights: Array) -> Ranked:
        """Return the counts of samples, each array (samples,)."""
        distinct, place = np.unique(-scores, return_inverse=True)
        count = len(distinct)
        return cls(
            -distinct,
            _added(place, weights * positive, count),
            _added(place, weights * ~positive, count),
        )

    @property
    def there(self) -> bool:
        """Return whether both classes are there."""
        return bool(self.positive.sum() > 0 and self.negative.sum() > 0)

    def grouped(self, most: int = GROUPS) -> Ranked:
        """Return the counts with neighbours taken together, none across the threshold."""
        held = (self.positive + self.negative) > 0
        scores, positive, negative = self.scores[held], self.positive[held], self.negative[held]
        if len(scores) <= most:
            return Ranked(scores, positive, negative)
        weight = positive + negative
        at = np.cumsum(weight) - weight / 2
        group = np.floor(at / weight.sum() * (most - 1)) + (scores <= THRESHOLD)
        _, group = np.unique(group, return_inverse=True)
        count = int(group.max()) + 1
        return Ranked(
            _added(group, weight * scores, count) / _added(group, weight, count),
            _added(group, positive, count),
            _added(group, negative, count),
        )


def _added(place: NDArray[np.intp], values: Array, count: int) -> Array:
    """Return the sums of the values of each place, (count,)."""
    return np.bincount(place, values, count).astype(np.float64)


def auc(ranked: Ranked) -> Array:
    """Return the area under the ROC curve, (...,): how often a positive is above a negative."""
    p, n = ranked.positive, ranked.negative
    total = n.sum(axis=-1, keepdims=True)
    below = total - np.cumsum(n, axis=-1) + n / 2
    found: Array = (p * below).sum(axis=-1) / (p.sum(axis=-1) * total[..., 0])
    return found


def average_precision(ranked: Ranked) -> Array:
    """Return Σ (recall - recall before) · precision over the scores, (...,)."""
    p = ranked.positive
    above = np.cumsum(p, axis=-1)
    every = above + np.cumsum(ranked.negative, axis=-1)
    precision = np.divide(above, every, out=np.zeros_like(above), where=every > 0)
    found: Array = (p * precision).sum(axis=-1) / p.sum(axis=-1)
    return found


def kolmogorov_smirnov(ranked: Ranked) -> Array:
    """Return the largest distance of the two classes' distributions of scores, (...,)."""
    rates = _rates(ranked)
    found: Array = np.abs(rates).max(axis=-1)
    return found


def _rates(ranked: Ranked) -> Array:
    """Return the true less the false positive rate at each threshold, (..., scores)."""
    p, n = ranked.positive, ranked.negative
    rate = np.cumsum(p, axis=-1) / p.sum(axis=-1, keepdims=True)
    found: Array = rate - np.cumsum(n, axis=-1) / n.sum(axis=-1, keepdims=True)
    return found


def bounds_of_bins(ranked: Ranked) -> dict[str, Range]:
    """Return between which values the figures lie whose counts are of bins of scores.

    AUC: pairs of a bin count 1/2 and may count 0 or 1. Average precision: a bin's positives come
    last or first in it. Kolmogorov-Smirnov: the distance may grow within a bin by its share of one
    class.
    """
    held = (ranked.positive + ranked.negative) > 0
    ranked = Ranked(ranked.scores[held], ranked.positive[held], ranked.negative[held])
    p, n = ranked.positive, ranked.negative
    every, others = p.sum(), n.sum()
    tied = float(p @ n) / float(every * others) / 2
    area = float(auc(ranked))
    before, wrong = np.cumsum(p) - p, np.cumsum(n) - n
    first = np.divide(before + p, before + p + wrong, out=np.ones_like(p), where=p > 0)
    late = wrong + n
    # a sum of an increasing function is at least its integral; 1 - late/(late + t) has a logarithm
    ratio = np.divide(before + p + late, before + late, out=np.ones_like(p), where=late > 0)
    last = p - late * np.log(ratio)
    own = np.divide(before + p, before + p + late, out=np.zeros_like(p), where=p > 0)
    single = (p == 1) & (n <= 0)  # one sample has no order
    least = float(np.where(single, p * own, np.minimum(last, p * own)).sum() / every)
    precise = float((p * first).sum() / every)
    distance = np.abs(_rates(ranked))
    start = np.concatenate([[0.0], distance[:-1]])
    inside = np.where((p > 0) & (n > 0), start + np.maximum(p / every, n / others), distance)
    return {
        "auc": (max(area - tied, 0.0), min(area + tied, 1.0)),
        "gini": (max(2 * area - 2 * tied - 1, -1.0), min(2 * area + 2 * tied - 1, 1.0)),
        "average_precision": (least, min(precise, 1.0)),
        "ks": (float(distance.max()), min(float(max(inside.max(), distance.max())), 1.0)),
    }


def calibration_line(ranked: Ranked) -> tuple[Array, Array] | None:
    """Return the logistic regression of the labels on the scores, and its standard errors.

    Slope and intercept, (2,) each. None where there is none: the scores separate the classes, or
    are all the same.
    """
    held = (ranked.positive + ranked.negative) > 0
    z, p, n = ranked.scores[held], ranked.positive[held], ranked.negative[held]
    if not ranked.there or len(z) < 2:
        return None
    high, low = z[p > 0], z[n > 0]
    if high.min() >= low.max() or high.max() <= low.min():
        return None
    middle, scale = float(np.average(z, weights=p + n)), float(np.std(z)) or 1.0
    rows = np.stack([(z - middle) / scale, np.ones_like(z)])
    theta = np.zeros(2)

    def loss(at: Array) -> float:
        line = at @ rows
        return float(p @ np.logaddexp(0.0, -line) + n @ np.logaddexp(0.0, line))

    for _ in range(100):
        chance = expit(theta @ rows)
        gradient = rows @ (n * chance - p * (1 - chance))
        curvature = (rows * ((p + n) * chance * (1 - chance))) @ rows.T
        if not np.linalg.det(curvature) > 0:
            return None
        step, now, share = np.linalg.solve(curvature, gradient), loss(theta), 1.0
        while loss(theta - share * step) > now + 1e-12 * abs(now) and share > 1e-6:
            share /= 2
        theta = theta - share * step
        if np.abs(step).max() < 1e-12 * (1 + np.abs(theta).max()):
            break
    chance = expit(theta @ rows)
    curvature = (rows * ((p + n) * chance * (1 - chance))) @ rows.T
    if not np.linalg.det(curvature) > 0:
        return None
    own = np.array([[1 / scale, 0.0], [-middle / scale, 1.0]])  # of the scores as they are
    return own @ theta, np.sqrt(np.diag(own @ np.linalg.inv(curvature) @ own.T))


def calibration_sums(chance: Array, right: NDArray[np.bool_], weights: Array) -> Array:
    """Return for each bin of the probability Σ weight, Σ probability, Σ of those that are right.

    (3, bins), as `sklearn.calibration.calibration_curve` cuts them.
    """
    edges = np.linspace(0.0, 1.0, CALIBRATION_BINS + 1)[1:-1]
    place = np.searchsorted(edges, chance)
    terms = (weights, weights * chance, weights * right)
    return np.stack([_added(place, one, CALIBRATION_BINS) for one in terms])


def merged_bins(sums: Array, least: float) -> Array:
    """Return the sums with bins of fewer than `least` samples taken together with the next."""
    found, at = np.zeros_like(sums), 0
    last: int | None = None
    for number in range(sums.shape[1]):
        found[:, at] += sums[:, number]
        if found[0, at] > least - 1e-6:  # counts are sums of shares, or of rounded numbers
            last, at = at, number + 1
    if at < sums.shape[1] and last is not None:  # what is left is of too few
        found[:, last] += found[:, at]
        found[:, at] = 0.0
    return found


def merged_calibration(sums: Array, least: float, classes: int) -> Array:
    """Return the sums of calibration bins of `least` samples or more.

    Of two classes no bin has samples on both sides of the threshold, of which the confusion counts
    those on either side; but a side with too few goes together with the next bin.
    """
    if classes == 2:
        sums = np.hstack([merged_bins(side, least) for side in np.hsplit(sums, 2)])
    return merged_bins(sums, least)


def cuts_of(confusion: Array, calibration: Array) -> Array:
    """Return how many samples are above what the confusion and the calibration cut, ascending.

    Of several classes these cut no class's scores.
    """
    if len(confusion) != 2:
        return np.zeros(0)
    above = np.round([confusion[:, 1].sum(), *np.cumsum(calibration[0, ::-1])], 6)
    return np.unique(above[(above > 0) & (above < confusion.sum())])


def calibration_table(sums: Array) -> tuple[tuple[CalibrationBin, ...], float]:
    """Return the bins that have samples, and the expected calibration error over them."""
    count = sums[0]
    bins = tuple(
        CalibrationBin(float(k), float(p / k), float(r / k)) for k, p, r in sums.T if k > 1e-9
    )
    error = np.abs(sums[2] - sums[1]).sum() / count.sum()
    return bins, float(error)


def calibration_interval(sums: Array) -> Range:
    """Return the interval of the calibration error, from the sums of its bins.

    The mean probability of a bin stands for that of each of its samples.
    """
    rng = np.random.Generator(np.random.Philox(key=_SEED))
    count, chance, right = sums
    shape = (REPLICATES, len(count))
    drawn, others = _poisson(rng, right, shape), _poisson(rng, count - right, shape)
    every = drawn + others
    mean = np.divide(chance, count, out=np.zeros_like(chance), where=count > 0)
    total = every.sum(axis=1)
    return _range((np.abs(drawn - every * mean).sum(axis=1) / np.maximum(total, 1))[total > 0])


def prediction_table(
    sums: Array, centre: float = 0.0, scale: float = 1.0
) -> tuple[PredictionBin, ...]:
    """Return the ranges of predictions that have samples.

    Of Σ 1, Σ prediction, Σ label and Σ label² by range, (4, ranges), less a centre and in a scale.
    """
    found = []
    for count, said, truth, square in sums.T:
        if count > 1e-9:
            mean = truth / count
            spread = float(np.sqrt(max(square / count - mean**2, 0.0)))
            where = (float(centre + scale * said / count), float(centre + scale * mean))
            found.append(PredictionBin(float(count), *where, scale * spread))
    return tuple(found)


def brier_sums(chance: Array, classes: Array, weights: Array) -> Array:
    """Return Σ weight b and Σ weight b², (2,), of each sample's b = Σ (p - y)² over the outputs.

    `classes`, (outputs, samples), is 0 or 1.
    """
    each = ((chance - classes) ** 2).sum(axis=0)
    return np.array([each @ weights, each**2 @ weights])


def of_confusion(counts: Array) -> dict[str, Any]:
    """Return the figures of a confusion matrix, (classes, classes) by true and predicted class."""
    total, held = counts.sum(), counts.sum(axis=1)
    found: dict[str, Any] = {
        "confusion": tuple(tuple(float(one) for one in row) for row in counts),
        "majority": float(held.max() / total),
    }
    if len(counts) != 2:
        return found
    rates = [float(counts[k, k] / held[k]) if held[k] > 0 else None for k in (0, 1)]
    return {
        **found,
        "base_rate": float(held[1] / total),
        "specificity": rates[0],
        "sensitivity": rates[1],
        "threshold": THRESHOLD,
    }


def macro_f1(counts: Array) -> Array:
    """Return the mean F1 score over the classes that are there or are said, (...,)."""
    both = counts.sum(axis=-1) + counts.sum(axis=-2)  # (..., classes)
    there = both > 1e-9
    right = np.diagonal(counts, axis1=-2, axis2=-1)
    each = np.divide(2 * right, both, out=np.zeros_like(both), where=there)
    found: Array = each.sum(axis=-1) / np.maximum(there.sum(axis=-1), 1)
    return found


def ranking(tables: Sequence[Ranked]) -> dict[str, float]:
    """Return AUC, Gini, average precision and Kolmogorov-Smirnov of the outputs' counts.

    Of several they are means, without Kolmogorov-Smirnov; {} without one that has both classes.
    """
    known = [one for one in tables if one.there]
    if not known:
        return {}
    area = float(np.mean([auc(one) for one in known]))
    precise = float(np.mean([average_precision(one) for one in known]))
    found = {"auc": area, "gini": 2 * area - 1, "average_precision": precise}
    if len(tables) == 1:
        found["ks"] = float(kolmogorov_smirnov(known[0]))
    return found


def normal_interval(
    value: float, error: float, least: float = -np.inf, most: float = np.inf
) -> Range:
    """Return the interval of a figure between `least` and `most` by its standard error."""
    return max(value - _NORMAL * error, least), min(value + _NORMAL * error, most)


def share_interval(share: float, count: float) -> Range:
    """Return the interval of a share of so many samples (Wilson 1927); (0, 1) of none."""
    if not count > 0:
        return 0.0, 1.0
    square = _NORMAL**2 / count
    middle = (share + square / 2) / (1 + square)
    reach = np.sqrt(square * max(share * (1 - share), 0.0) + square**2 / 4) / (1 + square)
    return max(float(middle - reach), 0.0), min(float(middle + reach), 1.0)


def difference_interval(one: float, other: float, ranges: tuple[Range, Range]) -> Range:
    """Return the interval of `one` - `other` by the intervals of both (Zou and Donner 2008).

    Both count as independent. Of two models of the same samples that is too wide, as they err on
    much of the same.
    """
    (low, high), (least, most) = ranges
    return (
        one - other - float(np.hypot(one - low, most - other)),
        one - other + float(np.hypot(high - one, other - least)),
    )


def curve(ranked: Ranked, least: float, cuts: Array | tuple[()] = ()) -> Curve:
    """Return the counts above thresholds, with `least` samples or more between two of them.

    There are thresholds at `cuts`, which others tell: or few samples would lie between the two.
    """
    held = (ranked.positive + ranked.negative) > 0
    p, n = ranked.positive[held], ranked.negative[held]
    above = np.cumsum(p + n)
    size = max(least, (p + n).sum() / (CURVE_POINTS - len(cuts)))
    places = np.searchsorted(above, np.asarray(cuts) - 1e-5) + 1
    parts = np.split(np.stack([p + n, p, n]), places, axis=1)
    each = merged_bins(np.hstack([merged_bins(one, size) for one in parts]), least)
    return tuple((float(true), float(false)) for k, true, false in each.T if k > 0)


def mean_interval(count: float, total: float, square: float) -> Range:
    """Return the interval of a mean by Σ 1, Σ b and Σ b² over the samples."""
    mean = total / count
    return normal_interval(mean, float(np.sqrt(max(square / count - mean**2, 0.0) / count)))


def influence(ranked: Ranked) -> dict[str, tuple[Array, Array]]:
    """Return what AUC and average precision change by for one more sample of each score.

    Of the class and of the others, (scores,) each. Over the samples they add up to 0.
    """
    p, n = ranked.positive, ranked.negative
    every, others = p.sum(), n.sum()
    area, precise = float(auc(ranked)), float(average_precision(ranked))
    below = (others - np.cumsum(n) + n / 2) / others  # of the others
    above = (np.cumsum(p) - p / 2) / every  # of the class
    true = np.cumsum(p)
    all_above = np.maximum(true + np.cumsum(n), 1e-300)
    precision = true / all_above
    # a sample counts in the precision at its own score and at each that is lower
    gained = np.cumsum((p / all_above)[::-1])[::-1]
    lost = np.cumsum((p * precision / all_above)[::-1])[::-1]
    return {
        "auc": ((below - area) / every, (above - area) / others),
        "average_precision": ((precision + gained - lost - precise) / every, -lost / every),
    }


def errors_of_samples(scores: Array, sides: NDArray[np.bool_]) -> dict[str, float]:
    """Return the standard errors of the means over the classes of one against the rest.

    Of the samples' scores and whether they are of the class, each (classes, samples).
    """
    changes = {"auc": 0.0 * scores[0], "average_precision": 0.0 * scores[0]}
    for z, side in zip(scores, sides, strict=True):
        ranked = Ranked.of(z, side, np.ones(len(z)))
        place = np.searchsorted(-ranked.scores, -z)
        for name, (own, other) in influence(ranked).items():
            changes[name] += np.where(side, own[place], other[place]) / len(scores)
    return {name: float(np.sqrt((each**2).sum())) for name, each in changes.items()}


def errors_of_counts(tables: Sequence[Ranked]) -> dict[str, float]:
    """Return the largest standard errors of those means that counts by class allow.

    Which of the counts are of one sample they do not tell. The deviation of a sum is at most the
    sum of deviations: of those of the classes, or of what the samples of each class come to, which
    are independent as a sample is of one class, and what all others do.
    """
    squares: dict[str, list[tuple[float, float]]] = {}
    for one in tables:
        for name, (own, other) in influence(one).items():
            parts = (float(one.positive @ own**2), float(one.negative @ other**2))
            squares.setdefault(name, []).append(parts)
    found = {}
    for name, some in squares.items():
        each = np.array(some)  # (classes, 2)
        by_class = np.sqrt(each.sum(axis=1)).sum()
        by_side = np.sqrt(each[:, 0].sum()) + np.sqrt(each[:, 1]).sum()
        found[name] = float(min(by_class, by_side)) / len(tables)
    return found


def intervals(ranked: Ranked, figures: Mapping[str, Any], *, chances: bool) -> dict[str, Range]:
    """Return the intervals of two classes' figures, around those that are given.

    `chances`: whether the scores are log-odds.
    """
    own = ranked.grouped()
    if not own.there:
        return {}
    rng = np.random.Generator(np.random.Philox(key=_SEED))
    shape = (REPLICATES, len(own.scores))
    drawn = Ranked(
        own.scores, _poisson(rng, own.positive, shape), _poisson(rng, own.negative, shape)
    )
    p, n = drawn.positive.sum(axis=-1), drawn.negative.sum(axis=-1)
    both = (p > 0) & (n > 0)
    drawn = Ranked(own.scores, drawn.positive[both], drawn.negative[both])
    found = {}
    for name, value in _pair_figures(drawn, chances).items():
        exact = figures.get(name)
        if exact is None or not len(value):
            continue
        whole = float(_pair_figures(own, chances)[name])
        found[name] = _range(value + (exact - whole))
    return found


def _pair_figures(ranked: Ranked, chances: bool) -> dict[str, Array]:
    p, n = ranked.positive, ranked.negative
    area = auc(ranked)
    found = {
        "auc": area,
        "gini": 2 * area - 1,
        "average_precision": average_precision(ranked),
        "ks": kolmogorov_smirnov(ranked),
    }
    if chances:
        chance = expit(ranked.scores)
        squares = p @ (1 - chance) ** 2 + n @ chance**2
        found["brier"] = squares / (p + n).sum(axis=-1)
    return found


def confusion_intervals(counts: Array) -> dict[str, Range]:
    """Return the intervals of accuracy and macro-F1, and of two classes of their rates."""
    rng = np.random.Generator(np.random.Philox(key=_SEED))
    drawn = _poisson(rng, counts, (REPLICATES, *counts.shape))
    drawn = drawn[drawn.sum(axis=(-1, -2)) > 0]
    total = float(counts.sum())
    found = {
        "accuracy": share_interval(float(np.trace(counts)) / total, total),
        "macro_f1": _range(macro_f1(drawn)),
    }
    for place, name in enumerate(("specificity", "sensitivity") if len(counts) == 2 else ()):
        held = float(counts[place].sum())
        if held > 0:
            found[name] = share_interval(float(counts[place, place]) / held, held)
    return found


def error_products(truth: Array, said: Array, weights: Array) -> Array:
    """Return Σ weight t tᵀ, (5, 5), that errors of predicted numbers and their intervals are of.

    t = (1, e², |e|, y, y²) of each sample, with the error e of what is said and the label y.
    """
    error = truth - said
    terms = np.stack([np.ones(len(truth)), error**2, np.abs(error), truth, truth**2])
    found: Array = (terms * weights) @ terms.T
    return found


def error_intervals(products: Array) -> dict[str, Range]:
    """Return the intervals of R², MAE and RMSE from `error_products`, in the unit of these.

    They are functions g of the sums T = Σ weight t, and what a sample changes them by is ∇g(T)ᵀ t.
    """
    weight, squares, absolute, label, square = products[0]
    mae, rmse = absolute / weight, np.sqrt(squares / weight)
    slopes = {"mae": (mae, [-mae, 0.0, 1.0, 0.0, 0.0])}
    if rmse > 0:
        slopes["rmse"] = (rmse, [-rmse / 2, 1 / (2 * rmse), 0.0, 0.0, 0.0])
    mean, spread = label / weight, (square - label**2 / weight) / weight
    if spread > 1e-12 * square / weight:
        ratio = squares / weight / spread
        by_label = np.array([mean**2, 0.0, 0.0, -2 * mean, 1.0]) * ratio / spread
        slopes["r2"] = (1 - ratio, by_label - np.array([0.0, 1.0, 0.0, 0.0, 0.0]) / spread)
    found = {}
    for name, (value, own) in slopes.items():
        slope = np.asarray(own) / weight
        error = float(np.sqrt(max(slope @ products @ slope, 0.0)))
        least, most = (-np.inf, 1.0) if name == "r2" else (0.0, np.inf)
        found[name] = normal_interval(float(value), error, least, most)
    return found


def _poisson(rng: np.random.Generator, counts: Array, shape: tuple[int, ...]) -> Array:
    """Return how often samples are drawn; a count below 1, of shared samples, is drawn as one."""
    return rng.poisson(np.maximum(counts, 0.0), shape).astype(np.float64)


def _range(values: Array) -> Range:
    low, high = np.quantile(values, _TAIL)
    return float(low), float(high)
