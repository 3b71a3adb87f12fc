"""What clients tell of how good their samples' scores are, and what the server makes of it.

`ClientFigures`: figures of one client's own samples, each one number with its interval. Those that
rest on both sides of a class are told where the client has enough rows on each; class counts never.

Over all samples the server reads totals of all graded clients:

`ScoreSums` says where the scores lie and how the probabilities come true, and `ScoreCounts` how
many samples of each class have a score in each of many bins. Bins have equal shares of Student's t
distribution with two degrees of freedom and the scores' mean and deviation, so that they are
narrow where samples are. Of a bin that has one sample of each class `ScoreCounts` says too which
comes first. Figures of bins are as exact as `maths.figures.bounds_of_bins` says: exact where no bin
has more of one class beside some of the other.

Where one client alone has labels, a total is its own: it sends no counts by score, joins bins of
calibration with few rows, and counts no classes where it has few rows of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from intarsia.core import algorithm as fl
from intarsia.core.block import Array, Labels
from intarsia.maths import figures
from intarsia.maths.figures import Figures, Ranked
from intarsia.maths.linear.losses import mean_of

COUNTS: Final = 65_536  # of scores that a client sends, over classes and outputs
_PLACES: Final = 4_096  # within a bin
MEASURES: Final = (
    *("auc", "gini", "average_precision", "ks", "brier", "calibration_error"),
    *("calibration_slope", "calibration_intercept", "mae", "rmse", "accuracy", "macro_f1", "r2"),
)
_SCORED: Final = ("accuracy", "macro_f1", "r2")  # which grades tell: here with their intervals


@dataclass(frozen=True, eq=False)
class Graded:
    """A client's samples that are graded."""

    scores: Array  # (outputs, samples)
    truth: Array  # (samples,) labels as a block codes them
    weights: Array  # (samples,) 1 / holders of the label
    labels: Labels
    loss: int
    least: int  # rows of each class that are to be there
    alone: bool  # whether no other client is graded

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
        """Return `held` by output, (outputs, samples): of two classes that of the second."""
        return self.held if self.labels.task == "multiclass" else self.held[1:]

    @property
    def said(self) -> Array:
        """Return what the model takes the samples for, as a block codes it, (samples,)."""
        if self.labels.task == "multiclass":
            return np.asarray(self.scores.argmax(axis=0), np.float64)
        return np.asarray(np.where(self.scores[0] > figures.THRESHOLD, 1.0, -1.0))

    @property
    def confusion(self) -> Array:
        """Return the counts of the samples by true and by predicted class."""
        taken = (self.codes[:, None] == self.said) * 1.0
        found: Array = (self.held * self.weights) @ taken.T
        return found

    @property
    def ranked(self) -> Array:
        """Return what the samples are put in order by, (outputs, samples)."""
        return figures.ranked_scores(self.scores, self.loss)

    @property
    def few(self) -> bool:
        """Return whether of some class that is there, or of the one other, there are few rows."""
        count = self.held.sum(axis=1)
        there = count[count > 0]
        return len(there) < 2 or int(there.min()) < self.least

    def calibration(self) -> tuple[Array, float]:
        """Return the sums of the calibration bins, (3, bins), and that of the Brier score.

        All are 0 where scores are no log-odds.
        """
        chance = figures.probabilities(self.scores, self.loss)
        if chance is None or self.labels.task == "regression":
            return np.zeros((3, figures.CALIBRATION_BINS)), 0.0
        brier = figures.brier_sum(chance, self.sides, self.weights)
        if len(chance) == 1:
            return figures.calibration_sums(chance[0], self.truth > 0, self.weights), brier
        right = self.said == self.truth
        return figures.calibration_sums(chance.max(axis=0), right, self.weights), brier


@fl.describe("figures of evaluated rows and their intervals")
@dataclass(frozen=True)
class ClientFigures:
    """Figures of a client's own samples."""

    values: Array  # (MEASURES, 3) figure and ends of its interval; NaN: not told


@fl.describe("sums of scores of evaluated rows and of their probabilities")
@dataclass(frozen=True)
class ScoreSums:
    """Where the scores of all samples lie, and how their probabilities come true."""

    count: Array  # (1,)
    score: Array  # (outputs,) Σ score
    square: Array  # (outputs,) Σ score²
    brier: Array  # (1,)
    calibration: Array  # (3, bins) samples, Σ probability, samples that it is right of


@fl.describe("numbers of evaluated rows by class and score range")
@dataclass(frozen=True)
class ScoreCounts:
    """How many samples on each side of a class have a score in each bin, shared ones once."""

    counts: Array  # (outputs, 2, bins) of other classes, and of the class
    places: (
        Array  # (outputs, 2, bins) where in the bin the sample is, of a client that has one there
    )


@dataclass(frozen=True)
class Binned:
    """The scores over all owners, and where bins of them lie."""

    z: fl.PerSample | None  # None: the client's own
    centre: Array  # (outputs,)
    scale: Array  # (outputs,)


def measured(graded: Graded) -> ClientFigures:
    """Return what a client tells of its own samples."""
    found = own_figures(graded, counts=False)
    values = np.full((len(MEASURES), 3), np.nan)
    for place, name in enumerate(MEASURES):
        value = None if name in _SCORED else getattr(found, name)
        if value is not None:
            values[place, 0] = value
        if name in found.intervals:
            values[place, 1:] = found.intervals[name]
    return ClientFigures(values)


def own_figures(graded: Graded, *, counts: bool = True) -> Figures:
    """Return the exact figures of samples that are in one place; each counts once.

    `counts`: with class counts and the table of calibration.
    """
    graded = replace(graded, weights=np.ones(len(graded.truth)))
    if graded.labels.task == "regression":
        said = mean_of(graded.loss, graded.scores[0])
        error = graded.truth - said
        return Figures(
            mae=float(np.abs(error).mean()),
            rmse=float(np.sqrt((error**2).mean())),
            intervals=figures.error_intervals(graded.truth, said),
        )
    sides, order = graded.sides > 0, graded.ranked
    tables = [
        Ranked.of(z, side, graded.weights)
        for z, side in zip(order, sides, strict=True)
        if graded.least <= side.sum() <= len(side) - graded.least
    ]
    found: dict[str, Any] = {} if not tables else figures.ranking(tables)
    if len(order) > 1:
        found.pop("ks", None)  # of one class of several
    sums, brier = graded.calibration()
    confusion = graded.confusion
    chances = bool(sums.any())
    found |= _calibrated(sums, brier, len(graded.truth))
    told = _with_intervals(found, confusion, tables if len(order) == 1 else [], chances)
    if not counts:
        told["intervals"].pop("sensitivity", None)
        told["intervals"].pop("specificity", None)
        return Figures(**{**told, "calibration": None})
    return Figures(**{**figures.of_confusion(confusion), **told})


def _calibrated(sums: Array, brier: float, count: float) -> dict[str, Any]:
    if not sums[0].sum() > 0:
        return {}
    bins, error = figures.calibration_table(sums)
    return {"brier": brier / count, "calibration": bins, "calibration_error": error}


def _with_intervals(
    found: Mapping[str, Any], confusion: Array | None, tables: list[Ranked], chances: bool
) -> dict[str, Any]:
    """Return the figures with intervals, and of two classes with the line of calibration."""
    told, known = dict(found), {}
    if confusion is not None and confusion.sum() > 0:
        known = figures.confusion_intervals(confusion)
    for ranked in tables:  # of two classes
        exact = dict(found) if confusion is None else {**found, **figures.of_confusion(confusion)}
        known |= figures.intervals(ranked, exact, chances=chances)
        line = figures.calibration_line(ranked) if chances else None
        if line is not None:
            told["calibration_slope"], told["calibration_intercept"] = line
    return {**told, "intervals": known}


def summed(graded: Graded) -> ScoreSums:
    """Return a client's part of the sums over all samples."""
    order, weights = graded.ranked, graded.weights
    sums, brier = graded.calibration()
    if graded.alone:
        few = graded.few
        sums = np.zeros_like(sums) if few else figures.merged_bins(sums, graded.least)
    return ScoreSums(
        *(np.array([weights.sum()]), order @ weights, order**2 @ weights),
        *(np.array([brier]), sums),
    )


def bins_of(total: ScoreSums) -> tuple[Array, Array]:
    """Return where the scores lie by their sums: mean and deviation, each (outputs,)."""
    count = max(float(total.count[0]), 1e-9)
    centre = np.asarray(total.score) / count
    spread = np.sqrt(np.maximum(np.asarray(total.square) / count - centre**2, 0.0))
    return centre, np.where(spread > 1e-9, spread, 1.0)


def counted(graded: Graded, centre: Array, scale: Array) -> ScoreCounts:
    """Return a client's part of the counts by score."""
    order, sides = graded.ranked, graded.sides > 0
    outputs = len(order)
    bins = number_of_bins(outputs)
    found, places = np.zeros((2, outputs, 2, bins))
    if graded.alone:
        return ScoreCounts(found, places)
    for k, (z, side) in enumerate(zip(order, sides, strict=True)):
        far = (z - centre[k]) / scale[k]
        at = np.clip((1 + far / np.sqrt(2 + far**2)) / 2 * bins, 0, bins - 1e-9)
        place = at.astype(np.intp)
        within = np.floor((at - place) * _PLACES)
        for which in (0, 1):
            weights = graded.weights * (side == bool(which))
            found[k, which] = np.bincount(place, weights, bins)
            single = np.bincount(place, side == bool(which), bins) == 1
            places[k, which] = np.bincount(place, weights * within, bins) * single
    return ScoreCounts(found, places)


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


def figures_of_one(told: ClientFigures) -> Figures:
    """Return the figures that a client told."""
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
    return Figures(**values, intervals=ranges)  # type: ignore[arg-type]


def figures_of_all(confusion: Array, sums: ScoreSums, counts: ScoreCounts) -> Figures:
    """Return the figures over all samples of several clients, from totals in whole counts."""
    centre, scale = bins_of(sums)
    found = zip(np.asarray(counts.counts), np.asarray(counts.places), centre, scale, strict=True)
    tables = [_ranked_bins(*one) for one in found]
    told: dict[str, Any] = figures.ranking(tables)
    told |= _calibrated(np.asarray(sums.calibration), float(sums.brier[0]), float(sums.count[0]))
    single = [one for one in tables if len(tables) == 1 and one.there]
    chances = "brier" in told
    whole = _with_intervals(told, confusion, single, chances)
    limits = [figures.bounds_of_bins(one) for one in tables if one.there]
    if len(tables) > 1:
        for one in limits:
            one.pop("ks")
    bounds = {
        name: tuple(float(np.mean([one[name][end] for one in limits])) for end in (0, 1))
        for name in (limits[0] if limits else ())
    }
    return Figures(**{**figures.of_confusion(confusion), **whole, "bounds": bounds})


def figures_of_the_one(own: Figures, confusion: Array, sums: ScoreSums) -> Figures:
    """Return the figures over all samples where one client has them: its own, and its counts."""
    if not confusion.sum() > 0.5:
        return own
    told = figures.of_confusion(confusion)
    if np.asarray(sums.calibration)[0].sum() > 0.5:
        told["calibration"] = figures.calibration_table(np.asarray(sums.calibration))[0]
    ranges = {**figures.confusion_intervals(confusion), **own.intervals}
    return replace(own, **told, intervals=ranges)
