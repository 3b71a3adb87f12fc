"""What clients tell of how good their samples' scores are, and what the server makes of it.

`ClientFigures`: figures of one client's own samples, each one number with its interval. Those that
rest on both sides of a class are told where the client has enough rows on each, and so is macro-F1
of two classes. Class counts are not told as such: figures at full precision tell about them.

Over all samples the server reads totals of all evaluated clients:

`ScoreSums` says where the scores lie and how the probabilities come true, and `ScoreCounts` how
many samples of each class have a score in each of many bins. Bins have equal shares of Student's t
distribution with two degrees of freedom and the scores' mean and deviation, so that they are
narrow where samples are. Of a bin that has one sample of each class `ScoreCounts` says too which
comes first. Figures of bins are as exact as `maths.figures.bounds_of_bins` says: exact where no bin
has more of one class beside some of the other. A client opens totals for the server, and is not to
read these: less its own part, they are the scores of others' samples with their labels. So another
client draws numbers, tells the server which, and adds them to its part.

Where one client alone has labels, a total is its own: it sends no counts by score, joins bins of
calibration with few rows, and counts no classes where it has few rows of one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from intarsia import core as fl
from intarsia.core.block import Array, ClientId, Labels
from intarsia.errors import SiteError, TableError
from intarsia.maths import figures
from intarsia.maths.figures import Figures, Ranked
from intarsia.maths.linear.losses import mean_of

# sums for intervals, 12 numbers that differ, would tell the labels of few samples that the server,
# and a client that works with it, do not know
_LEAST_OTHERS: Final = 50
COUNTS: Final = 65_536  # of scores that a client sends, over classes and outputs
_PLACES: Final = 4_096  # within a bin
_INSIDE: Final = 1e-4  # of a bin
_EQUAL: Final = 1e-7  # of the mean, a deviation that may be of rounding alone
_HIDING: Final = 20  # bits of the numbers that hide counts and places
_UNIT: Final = 256.0  # by which these are divided, so that they are within any privacy.range
MEASURES: Final = (
    *("auc", "gini", "average_precision", "ks", "brier", "calibration_error"),
    *("calibration_slope", "calibration_intercept", "mae", "rmse", "accuracy", "macro_f1", "r2"),
    *("trained_classes", "untrained_classes"),
)
_LINE: Final = ("calibration_slope", "calibration_intercept")
_OF_COUNTS: Final = ("sensitivity", "specificity", "threshold", "base_rate", "majority")
_SCORED: Final = ("accuracy", "macro_f1", "r2")  # which metrics tell: here with their intervals


@dataclass(frozen=True, eq=False)
class ScoredRows:
    """A client's samples that are scored."""

    scores: Array  # (outputs, samples)
    truth: Array  # (samples,) labels as a block codes them
    weights: Array  # (samples,) 1 / holders of the label
    labels: Labels
    loss: int
    least: int  # rows of each class that are to be there
    alone: bool  # whether no other client is evaluated
    trained: NDArray[np.bool_] | None = None  # (classes,) that the client has in training

    @property
    def codes(self) -> Array:
        """Return the labels of the classes, (classes,)."""
        count = len(self.labels.classes)
        several = self.labels.task == "multiclass"
        return np.arange(count, dtype=np.float64) if several else np.array([-1.0, 1.0])

    @property
    def held(self) -> Array:
        """Return which class each sample is of, (classes, samples), 0 or 1."""
        found: Array = (self.codes[:, None] == self.truth) * 1.0
        return found

    @property
    def sides(self) -> Array:
        """Return `held` by output, (outputs, samples): of two classes that of the second.

        Numbers are of no class.
        """
        if self.labels.task == "regression":
            return np.zeros_like(self.scores)
        return self.held if self.labels.task == "multiclass" else self.held[1:]

    @property
    def said(self) -> Array:
        """Return what the model takes the samples for, as a block codes it, (samples,)."""
        if self.labels.task == "multiclass":
            return np.asarray(self.scores.argmax(axis=0), np.float64)
        return np.asarray(np.where(self.scores[0] > figures.THRESHOLD, 1.0, -1.0))

    @property
    def numbers(self) -> Array:
        """Return the numbers that the model predicts, (samples,)."""
        return mean_of(self.loss, self.scores[0])

    @property
    def confusion(self) -> Array:
        """Return the counts of the samples by true and by predicted class."""
        taken = (self.codes[:, None] == self.said) * 1.0
        found: Array = (self.held * self.weights) @ taken.T
        return found

    @property
    def ranked(self) -> Array:
        """Return what the samples are put in order by, (outputs, samples)."""
        if self.labels.task == "regression":
            return self.numbers[None]
        return figures.ranked_scores(self.scores, self.loss)

    @property
    def few(self) -> bool:
        """Return whether of some class that is there, or of the one other, there are few rows."""
        count = self.held.sum(axis=1)
        there = count[count > 0]
        return len(there) < 2 or int(there.min()) < self.least

    @property
    def withheld(self) -> bool:
        """Return whether macro-F1 would tell a count of few rows: beside accuracy, of two classes.

        With the number of rows it leaves one confusion matrix.
        """
        return self.labels.task == "binary" and self.few

    def calibration(self) -> tuple[Array, Array]:
        """Return the sums of the calibration bins, (3, bins), and those of the Brier score, (2,).

        All are 0 where scores are no log-odds.
        """
        chance = figures.probabilities(self.scores, self.loss)
        if chance is None or self.labels.task == "regression":
            return np.zeros((3, figures.CALIBRATION_BINS)), np.zeros(2)
        brier = figures.brier_sums(chance, self.sides, self.weights)
        if len(chance) == 1:
            return figures.calibration_sums(chance[0], self.truth > 0, self.weights), brier
        right = self.said == self.truth
        return figures.calibration_sums(chance.max(axis=0), right, self.weights), brier


@fl.describe("figures of evaluated rows and their intervals")
class ClientFigures:
    """Figures of a client's own samples."""

    values: Array  # (MEASURES, 3) figure and ends of its interval; NaN: not told


@fl.describe("sums of scores of evaluated rows and of their probabilities")
class ScoreSums:
    """Where the scores of all samples lie, and how their probabilities come true."""

    count: Array  # (1,)
    score: Array  # (outputs,) Σ score
    square: Array  # (outputs,) Σ score²
    brier: Array  # (2,) Σ of each sample's, and of its square
    calibration: Array  # (3, bins) samples, Σ probability, samples that it is right of


@fl.describe("numbers of evaluated rows by class and score range")
class ScoreCounts:
    """How many samples on each side of a class have a score in each bin, shared ones once.

    Where they are hidden, those of one client with numbers that do so, and all over `_UNIT`.
    """

    counts: Array  # (outputs, 2, bins) of other classes, and of the class
    places: (
        Array  # (outputs, 2, bins) where in the bin the sample is, of a client that has one there
    )


@fl.describe("sums of predicted and true labels by ranges of prediction")
class ErrorSums:
    """How predicted numbers of all samples come true, in units of the labels' deviation."""

    products: Array  # (5, 5) Σ t tᵀ over the number of samples, `maths.figures.error_products`
    bins: Array  # (4, PREDICTION_BINS) Σ 1, Σ prediction, Σ label, Σ label² over that number


@dataclass(frozen=True)
class Ranges:
    """The scores over all owners, where labels lie, and ranges of predictions."""

    z: fl.PerLabelledScore | None  # None: the client's own
    centre: Array  # (1,)
    scale: Array  # (1,)
    count: float  # of all samples
    edges: Array  # (ranges - 1,) in bins of ScoreCounts


@dataclass(frozen=True)
class AskKey:
    """Ask for what numbers that hide counts come of."""


@fl.describe("random numbers")
class HidingKey:
    """What the numbers come of, by which a client hides counts from the one that opens them."""

    words: NDArray[np.uint64]  # (4,)


@dataclass(frozen=True)
class Binned:
    """The scores over all owners, and where bins of them lie."""

    z: fl.PerLabelledScore | None  # None: the client's own
    centre: Array  # (outputs,)
    scale: Array  # (outputs,)
    hidden: bool = False  # whether counts are
    key: bytes = b""  # of the numbers that hide them, for the one client that adds these


def measured(scored: ScoredRows) -> ClientFigures:
    """Return what a client tells of its own samples."""
    found = own_figures(scored, counts=False)
    values = np.full((len(MEASURES), 3), np.nan)
    for place, name in enumerate(MEASURES):
        value = None if name in _SCORED else getattr(found, name)
        if value is not None:
            values[place, 0] = value
        if name in found.intervals:
            values[place, 1:] = found.intervals[name]
    return ClientFigures(values)


def own_figures(scored: ScoredRows, *, counts: bool = True) -> Figures:
    """Return the exact figures of samples that are in one place; each counts once.

    `counts`: with class counts, curves and the tables of calibration and of predictions.
    """
    scored = replace(scored, weights=np.ones(len(scored.truth)))
    if scored.labels.task == "regression":
        return _own_errors(scored, counts=counts)
    sides, order = scored.sides > 0, scored.ranked
    held = sides.sum(axis=1)
    known = (held >= scored.least) & (held <= sides.shape[1] - scored.least)
    sides, order = sides[known], order[known]
    tables = [Ranked.of(*one, scored.weights) for one in zip(order, sides, strict=True)]
    several = len(scored.scores) > 1
    found = figures.ranking(tables)
    if several:
        found.pop("ks", None)  # of one class of several
    errors = figures.errors_of_samples(order, sides) if several and tables else {}
    sums, brier = scored.calibration()
    confusion = scored.confusion
    sums = figures.merged_calibration(sums, scored.least, len(confusion))
    told = _judged(found, tables, confusion, sums, brier, errors)
    for name, (share, rows) in _by_training(scored).items():
        told[name] = share
        told["intervals"][name] = figures.share_interval(share, rows)
    if not counts:
        told["intervals"].pop("sensitivity", None)
        told["intervals"].pop("specificity", None)
        if scored.withheld:
            told["intervals"].pop("macro_f1", None)
        names = ("confusion", *_OF_COUNTS, "calibration")
        return Figures(**{name: one for name, one in told.items() if name not in names})
    cuts = figures.cuts_of(confusion, sums)
    curves = tuple(figures.curve(one, scored.least, cuts) for one in tables) or None
    return Figures(**told, curves=curves)


def _by_training(scored: ScoredRows) -> dict[str, tuple[float, int]]:
    """Return accuracy and samples of the classes that the client has in training, and of others.

    Where there are few samples of either, neither is told: accuracy over all has the other.
    """
    if scored.trained is None:
        return {}
    right = scored.said == scored.truth
    own = (scored.held[scored.trained] > 0).any(axis=0)
    sides = {"trained_classes": right[own], "untrained_classes": right[~own]}
    if min(map(len, sides.values())) < scored.least:
        return {}
    return {name: (float(some.mean()), len(some)) for name, some in sides.items()}


def means_over_clients(every: Figures, each: Iterable[Figures]) -> Figures:
    """Return figures over all samples with those that are means over clients.

    Which classes a client has in training differs, and a total over clients would be told of few.
    """
    some = list(each)
    found = {}
    for name in ("trained_classes", "untrained_classes"):
        known = [value for one in some if (value := getattr(one, name)) is not None]
        if known:
            found[name] = float(np.mean(known))
    return replace(every, **found)  # type: ignore[arg-type]  # names of fields that are numbers


def _own_errors(scored: ScoredRows, *, counts: bool) -> Figures:
    truth, said = scored.truth, scored.numbers
    middle, error = truth.mean(), truth - said
    products = figures.error_products(truth - middle, said - middle, scored.weights)
    bins = None
    if counts:
        edges = _quantiles(np.sort(said), scored.least)
        bins = figures.prediction_table(_by_prediction(truth, said, scored.weights, edges))
    return Figures(
        mae=float(np.abs(error).mean()),
        rmse=float(np.sqrt((error**2).mean())),
        intervals=figures.error_intervals(products),
        predictions=bins,
    )


def _judged(
    found: Mapping[str, Any],
    tables: list[Ranked],
    confusion: Array,
    sums: Array,
    brier: Array,
    errors: Mapping[str, float],
) -> dict[str, Any]:
    """Return the figures of classes with their intervals.

    `found` are those of the ranking; `errors` the standard errors where there are several classes.
    """
    told, known = {**figures.of_confusion(confusion), **found}, {}
    if confusion.sum() > 0:
        known = figures.confusion_intervals(confusion)
    count, chances = float(sums[0].sum()), bool(sums[0].sum() > 0)
    if chances:
        told["brier"] = float(brier[0]) / count
        told["calibration"], told["calibration_error"] = figures.calibration_table(sums)
    if chances and tables:
        known["calibration_error"] = figures.calibration_interval(sums)
        known["brier"] = figures.mean_interval(count, *brier)
    if errors:
        known |= {
            name: figures.normal_interval(told[name], own, 0.0, 1.0) for name, own in errors.items()
        }
        low, high = known["auc"]
        known["gini"] = (2 * low - 1, 2 * high - 1)
        return {**told, "intervals": known}
    for ranked in tables:  # of two classes
        known |= figures.intervals(ranked, told, chances=chances)
        line = figures.calibration_line(ranked) if chances else None
        for name, value, error in () if line is None else zip(_LINE, *line, strict=True):
            told[name] = float(value)
            known[name] = figures.normal_interval(told[name], float(error))
    return {**told, "intervals": known}


def _by_prediction(
    truth: Array, said: Array, weights: Array, edges: Array, at: Array | None = None
) -> Array:
    """Return Σ weight, Σ said, Σ label and Σ label² of each range, (4, PREDICTION_BINS).

    Edges are of `at`, by default of what is said.
    """
    place = np.searchsorted(edges, said if at is None else at, side="right")
    terms = np.stack([np.ones(len(said)), said, truth, truth**2]) * weights
    return np.stack([np.bincount(place, one, figures.PREDICTION_BINS) for one in terms])


def _quantiles(ordered: Array, least: float) -> Array:
    """Return edges between which so many ascending values lie, and about as many in each range."""
    size = max(least, len(ordered) / figures.PREDICTION_BINS)
    places = np.arange(size, len(ordered) - size + 1e-9, size).astype(np.intp)
    found: Array = np.unique(ordered[places])
    return found


def summed(scored: ScoredRows) -> ScoreSums:
    """Return a client's part of the sums over all samples."""
    order, weights = scored.ranked, scored.weights
    sums, brier = scored.calibration()
    if scored.alone:
        merged = figures.merged_calibration(sums, scored.least, len(scored.labels.classes))
        sums = np.zeros_like(sums) if scored.few else merged
    return ScoreSums(
        *(np.array([weights.sum()]), order @ weights, order**2 @ weights),
        *(brier, sums),
    )


def bins_of(total: ScoreSums) -> tuple[Array, Array]:
    """Return where the scores lie by their sums: mean and deviation, each (outputs,)."""
    count = max(float(total.count[0]), 1e-9)
    centre = np.asarray(total.score) / count
    spread = np.sqrt(np.maximum(np.asarray(total.square) / count - centre**2, 0.0))
    # of scores that are all equal the sums of squares have left their rounding alone
    return centre, np.where(spread > np.maximum(1e-9, _EQUAL * np.abs(centre)), spread, 1.0)


def counted(scored: ScoredRows, message: Binned) -> ScoreCounts:
    """Return a client's part of the counts by score."""
    centre, scale = message.centre, message.scale
    order, sides = scored.ranked, scored.sides > 0
    outputs = len(order)
    bins = number_of_bins(outputs)
    found, places = np.zeros((2, outputs, 2, bins))
    if scored.alone:
        return ScoreCounts(found, places)
    for k, (z, side) in enumerate(zip(order, sides, strict=True)):
        # not at the edge of a bin or place, where the clients' scores are all the mean
        at = np.clip(_unit((z - centre[k]) / scale[k]) * bins + _INSIDE, 0, bins - 1e-9)
        place = at.astype(np.intp)
        within = np.floor((at - place) * _PLACES)
        for which in (0, 1):
            weights = scored.weights * (side == bool(which))
            found[k, which] = np.bincount(place, weights, bins)
            single = np.bincount(place, side == bool(which), bins) == 1
            places[k, which] = np.bincount(place, weights * within, bins) * single
    if not message.hidden:
        return ScoreCounts(found, places)
    more = _hiding(message.key, found.shape)
    return ScoreCounts((found + more[0]) / _UNIT, (places + more[1]) / _UNIT)


def _hiding(key: bytes, shape: tuple[int, ...]) -> Array:
    """Return whole numbers from 0 that hide counts and places, (2, ...)."""
    if not key:
        return np.zeros((2, *shape))
    words = fl.SecretKey(key).words(2 * math.prod(shape)) >> np.uint64(64 - _HIDING)
    return words.astype(np.float64).reshape(2, *shape)


def count_by_score(
    clients: fl.Clients,
    draw_key: fl.ClientFunction,
    count_scores: fl.ClientFunction,
    asked: Mapping[ClientId, Binned],
) -> ScoreCounts:
    """Return the counts of all clients that are asked; none of them reads the total.

    Raises
    ------
    SiteError
        If what a client is to hide them by is no key.
    """
    hidden, key = len(asked) > 1, b""
    last = max(asked)  # the first by name opens the total
    if hidden:
        words = clients.ask(draw_key, {last: AskKey()})[last].words
        key = words.tobytes()
        if len(key) != fl.SecretKey.SIZE:
            raise SiteError(
                f"{last!r} is to hide counts by a key of {len(key)} bytes; install the same "
                "version of intarsia there, or see who runs the site."
            )
    told = {name: replace(one, hidden=hidden) for name, one in asked.items()}
    total = clients.sum(count_scores, {**told, last: replace(told[last], key=key)})
    # discloses how many samples of all clients together have a score in each bin, by class
    found = clients.reveal(total)
    if not hidden:
        return ScoreCounts(np.asarray(found.counts), np.asarray(found.places))
    counts, places = (np.asarray(one) * _UNIT for one in (found.counts, found.places))
    more = _hiding(key, counts.shape)
    return ScoreCounts(counts - more[0], places - more[1])


def _unit(far: Array) -> Array:
    """Return Student's t distribution with two degrees of freedom at deviations from the mean."""
    found: Array = (1 + far / np.sqrt(2 + far**2)) / 2
    return found


def number_of_bins(outputs: int) -> int:
    """Return how many bins the scores of each output have."""
    return max(2, COUNTS // (2 * outputs))


def _ranked_bins(counts: Array, places: Array, centre: float, scale: float) -> Ranked:
    """Return the counts of one output, (2, bins), in order of the scores.

    Where a bin has at most one sample of each class, they have scores of their own.
    """
    bins = counts.shape[1]
    single = (counts <= 1 + 1e-9).all(axis=0)
    middle = np.arange(bins) + 0.5
    apart = np.floor(middle) + (places / np.maximum(counts, 1e-9) + 0.5) / _PLACES
    at = np.concatenate([np.where(single, apart[1], middle), apart[0, single]])
    positive = np.concatenate([counts[1], np.zeros(single.sum())])
    negative = np.concatenate([np.where(single, 0.0, counts[0]), counts[0, single]])
    held = (positive + negative) > 0
    at, which = np.unique(at[held], return_inverse=True)
    unit = 2 * np.clip(at / bins, 1e-9, 1 - 1e-9) - 1
    scores = centre + scale * unit * np.sqrt(2 / (1 - unit**2))
    added = [
        np.bincount(which, one[held], len(at)).astype(np.float64) for one in (positive, negative)
    ]
    return Ranked(scores[::-1], added[0][::-1], added[1][::-1])


def figures_of_one(client: ClientId, told: ClientFigures) -> Figures:
    """Return the figures that a client told; SiteError where they are others, or too few."""
    if np.shape(told.values) != (len(MEASURES), 3):
        raise SiteError(
            f"{client!r} tells figures in the shape {np.shape(told.values)}, where "
            f"{(len(MEASURES), 3)} was expected; install the same version of intarsia there, or "
            "see who runs the site."
        )
    known = dict(zip(MEASURES, np.asarray(told.values), strict=True))
    values = {
        name: float(row[0])
        for name, row in known.items()
        if name not in _SCORED and np.isfinite(row[0])
    }
    ranges = {
        name: (float(row[1]), float(row[2]))
        for name, row in known.items()
        if np.isfinite(row[1:]).all()
    }
    return Figures(**values, intervals=ranges)  # type: ignore[arg-type]  # values of other fields


def figures_of_all(confusion: Array, sums: ScoreSums, counts: ScoreCounts, least: int) -> Figures:
    """Return the figures over all samples of several clients, from totals in whole counts.

    Curves between two thresholds, and bins of calibration, have `least` samples or more.
    """
    centre, scale = bins_of(sums)
    found = zip(np.asarray(counts.counts), np.asarray(counts.places), centre, scale, strict=True)
    tables = [_ranked_bins(*one) for one in found]
    known = [one for one in tables if one.there]
    several = len(tables) > 1
    errors = figures.errors_of_counts(known) if several else {}
    # a bin of one sample is its score and its label, to who gets the result
    bins = figures.merged_calibration(np.asarray(sums.calibration), least, len(confusion))
    brier = np.asarray(sums.brier)
    told = _judged(figures.ranking(tables), known, confusion, bins, brier, errors)
    limits = [figures.bounds_of_bins(one) for one in known]
    for one in limits if several else ():
        one.pop("ks")
    bounds: dict[str, figures.Range] = {}
    for name in limits[0] if limits else ():
        low, high = np.mean([one[name] for one in limits], axis=0)
        bounds[name] = float(low), float(high)
    cuts = figures.cuts_of(confusion, bins)
    curves = tuple(figures.curve(one, least, cuts) for one in known) or None
    return Figures(**told, bounds=bounds, curves=curves)


def figures_of_the_one(own: Figures, confusion: Array, sums: ScoreSums) -> Figures:
    """Return the figures over all samples where one client has them: its own, and its counts."""
    if not confusion.sum() > 0.5:
        return own
    told = figures.of_confusion(confusion)
    bins = np.asarray(sums.calibration)
    if bins[0].sum() > 0.5:
        told["calibration"] = figures.calibration_table(bins)[0]
    if bins[0].sum() > 0.5 and len(confusion) == 2:  # by ranges of the probability
        count, _, right = bins[:, ::-1]
        ranked = Ranked(-np.arange(len(count), dtype=float), right, count - right)
        told["curves"] = (figures.curve(ranked, 0.0),)
    ranges = {**figures.confusion_intervals(confusion), **own.intervals}
    return replace(own, **told, intervals=ranges)


def where_numbers_lie(
    count: float, label: float, square: float, error: float
) -> tuple[Array, Array]:
    """Return the labels' mean and what they and the errors are as large as, (1,) each.

    By Σ 1, Σ y, Σ y² and Σ e² over the samples.
    """
    mean = label / count
    size = np.sqrt(max(square / count - mean**2, error / count))
    return np.array([mean]), np.array([size if size > 0 else 1.0])


def ranges_of_predictions(counts: ScoreCounts, least: int) -> Array:
    """Return the edges of ranges of numbers with `least` predictions or more in each, as bins.

    A bin lies in one range; edges are numbers of bins.
    """
    each = np.asarray(counts.counts)[0].sum(axis=0)
    size = max(least, each.sum() / figures.PREDICTION_BINS)
    above = np.cumsum(each)
    edges: list[int] = []
    taken = 0.0
    while above[-1] - taken >= 2 * size:
        edge = int(np.searchsorted(above, taken + size - 1e-6)) + 1
        if edge >= len(each) or above[-1] - above[edge - 1] < size - 1e-6:
            break
        edges.append(edge)
        taken = above[edge - 1]
    return np.array(edges, np.float64)


def errors_summed(scored: ScoredRows, message: Ranges, every: int, others: int) -> ErrorSums:
    """Return a client's part of the sums over all samples of predicted numbers.

    Of few samples the sums for intervals would tell the labels: they are 0.

    Parameters
    ----------
    scored, message
        What is scored, and what is asked for.
    every, others
        How many samples are scored, and of how many the client with the most has no label.

    Raises
    ------
    TableError
        If there are more ranges than figures have, which would tell single rows, or numbers that
        no run comes to: whether sums can be made of them would tell the largest label.
    """
    numbers = np.concatenate([message.centre, message.scale, message.edges, [message.count]])
    proper = np.isfinite(numbers).all() and message.scale[0] > 0
    if not (proper and 0 < message.count <= every * (1 + 1e-9)):
        raise TableError(
            f"Errors were asked for with the count {message.count:g} of {every} samples, centre "
            f"{message.centre[0]:g} and scale {message.scale[0]:g}, which no run comes to; run the "
            "algorithm as it is at the server."
        )
    if len(message.edges) >= figures.PREDICTION_BINS:
        raise TableError(
            f"Errors in {len(message.edges) + 1} ranges of predictions were asked for, and "
            f"{figures.PREDICTION_BINS} are told at most; run the algorithm as it is at the server."
        )
    centre, scale = message.centre[0], message.scale[0]
    truth, said = (scored.truth - centre) / scale, (scored.numbers - centre) / scale
    share = scored.weights / message.count
    products = (others >= _LEAST_OTHERS) * figures.error_products(truth, said, share)
    edges, at = message.edges, _unit(said) * number_of_bins(1)
    if scored.alone:  # its own ranges; its intervals are told with its figures
        edges, at = _quantiles(np.sort(said), scored.least), said
    # a range of few of its rows goes with a neighbouring one: it would tell their labels
    rows, bins = (
        _by_prediction(truth, said, one, edges, at) for one in (np.ones_like(share), share)
    )
    merged = figures.merged_bins(np.vstack([rows[:1], bins]), scored.least)
    return ErrorSums(products, merged[1:])


def errors_of_all(figures_known: Figures, message: Ranges, sums: ErrorSums) -> Figures:
    """Return the figures of predicted numbers over all samples, with intervals and table."""
    centre, scale = float(message.centre[0]), float(message.scale[0])
    products, bins = np.asarray(sums.products), np.asarray(sums.bins) * message.count
    ranges = dict(figures_known.intervals)
    if products[0, 0] > 0:
        found = figures.error_intervals(products * message.count)
        ranges |= {
            name: ends if name == "r2" else (ends[0] * scale, ends[1] * scale)
            for name, ends in found.items()
        }
    table = figures.prediction_table(bins, centre, scale)
    return replace(figures_known, intervals=ranges, predictions=table)
