"""Notes on scores: which samples have some, and scores that say little, or that a setting mends."""

from __future__ import annotations

import math
from typing import Any

from intarsia.core.algorithm import FinalResult
from intarsia.core.block import Labels
from intarsia.errors import listed
from intarsia.experiment.config import LARGEST_CONSTANT, Experiment
from intarsia.protocols import evaluation, evaluation_rows
from intarsia.protocols.evaluation import Evaluation
from intarsia.training.checks import steps_along_gradients
from intarsia.training.loop import Task

_FEW = 20  # rows of a class, below which its figures are mostly chance
_WORSE_THAN_MEAN = -0.05  # an R² from which on the mean of the labels clearly errs less
_CHANCE = 0.5
_EXTREME = 0.8  # the calibration slope that the whole interval is below; 1 is right
_DRAWN = 0.25  # of the rarer share of rows, by which a mean probability is told as off
_UNSURE = 0.1  # the like of the classes that a model of several says
_OFF = 0.03  # least distance of a coverage from its quantile that a note tells


def notes_on_scores(
    task: Task, conclusion: FinalResult, every: Evaluation | None, ended: str
) -> tuple[str, ...]:
    """Return notes on which samples are evaluated, and on scores that say little."""
    schema, model = task.engine.schema(task.part), task.algorithm.model
    part = "test" if task.part == "test" else "training"
    blocks = evaluation.server_blocks(model, task.options, task.engine.schema("train"))
    wanted = evaluation_rows.rows_to_evaluate(schema, blocks)
    labelled, left = int(wanted.sum()), int((schema.label_holders > 0).sum() - wanted.sum())
    few = evaluation_rows.too_few(schema, wanted)
    has_network = conclusion.network is not None
    notes: tuple[str, ...] = ()
    if every is None and has_network and model.server_model is not None:
        notes += (
            "The server's network has no score: at no test sample do the clients together hold all "
            "blocks; score a table that has all of them by intarsia predict --client server.",
        )
    if left:
        notes += (
            f"In no metric: {left:,} labelled {part} samples of which clients' metrics, less each "
            f"other, would tell sums over fewer than {evaluation_rows.LEAST_ROWS}.",
        )
    if few:
        notes += (
            f"Not evaluated: {listed(few)} with fewer than {evaluation_rows.LEAST_ROWS} labelled "
            f"{part} samples, whose metrics would tell their labels; split.test holds more samples "
            "out.",
        )
    if not (schema.label_holders > 0).any():
        notes += (
            f"There are no scores: none of the {len(schema.samples):,} {part} samples has a label "
            "at any client; split.test holds more samples out, split.salt others.",
        )
    if has_network and every is not None and every.samples < labelled and not few:
        notes += (
            f'"All samples" are {every.samples:,} of the {labelled:,} {part} samples with a label: '
            "those of which the clients together hold all blocks of the server's network. A "
            "client's scores are of all its own.",
        )
    notes += _one_class(every, schema.labels, part)
    notes += _few_of_a_class(every, schema.labels, part)
    if part == "test":
        chance = _no_better_than_chance(every, schema.labels, task.description, task.options)
        notes += chance or _extreme_scores(every, task.description, task.options)
        notes += _drawn_probabilities(every, schema.labels, task)
        notes += _off_quantile(every, task, ended)
    return notes


def _one_class(every: Evaluation | None, labels: Labels, part: str) -> tuple[str, ...]:
    """Return a note where a model says one class of all samples, of which there are several."""
    only = None if every is None or every.figures is None else every.figures.only_class
    if every is None or only is None:
        return ()
    name = labels.classes[only]
    return (
        f"The model says {name!r} of all {every.samples:,} {part} samples: its accuracy is the "
        "share of that class. See the AUC for whether its scores tell the classes apart; with "
        "classes of very different size, another threshold of the score may serve.",
    )


def _few_of_a_class(every: Evaluation | None, labels: Labels, part: str) -> tuple[str, ...]:
    """Return a note where few of the evaluated samples are of one of two classes."""
    counts = None if every is None or every.figures is None else every.figures.confusion
    if every is None or counts is None or len(counts) != 2:
        return ()
    few, name = min(zip(map(sum, counts), labels.classes, strict=True))
    if few >= _FEW:
        return ()
    return (
        f"{few:,.6g} of the {every.samples:,} {part} samples are {name!r}: the intervals of scores "
        "are wide. Hold more rows out (split.test), or others (-c split.salt=2), and see how far "
        "the scores move; more rows help most.",
    )


def _no_better_than_chance(
    every: Evaluation | None, labels: Labels, description: Experiment, options: Any
) -> tuple[str, ...]:
    """Return a note where a model says no more of the labels than their shares, or their mean."""
    if every is not None and every.r2 is not None and every.r2 < _WORSE_THAN_MEAN:
        remedy = _against_overfitting(description, options)
        loss = getattr(options, "loss", None)
        if loss in ("huber", "quantile"):
            remedy += (
                f" Or nothing is wrong: where labels have a long tail on one side, {loss} does not "
                "follow their mean, by which R² judges; compare the mean absolute error with that "
                "of other losses."
            )
        if loss == "squared":
            remedy = (
                "Where a few labels are far from the rest, squares follow these alone: compare "
                f"another algorithm.loss, such as huber, or labels in logarithms. {remedy}"
            )
        return (
            f"R² is {every.r2:.3g}: the mean of the labels would err less than the model. {remedy}",
        )
    found = None if every is None else every.figures
    interval = None if found is None else found.intervals.get("auc")
    if found is None or found.auc is None or interval is None or interval[0] > _CHANCE:
        return ()
    return (
        f"The scores may be no better than chance: the AUC is {found.auc:.3g}, 95 % interval "
        f"{interval[0]:.3g} to {interval[1]:.3g}, and chance is {_CHANCE}. See whether "
        f"{labels.name!r} is the column to predict, and whether the others can tell it; of few "
        "rows, more that are held out (split.test) make the interval narrower.",
    )


def _extreme_scores(
    every: Evaluation | None, description: Experiment, options: Any
) -> tuple[str, ...]:
    """Return a note where probabilities are nearer to 0 and 1 than they should be, beyond chance.

    So it is where a model overfits its training rows: many rare levels, few rows.
    """
    found = None if every is None else every.figures
    interval = None if found is None else found.intervals.get("calibration_slope")
    if found is None or interval is None or interval[1] >= _EXTREME:
        return ()
    return (
        f"Probabilities are too near to 0 and 1: the calibration slope is "
        f"{found.calibration_slope:.3g}, 95 % interval {interval[0]:.3g} to {interval[1]:.3g}, "
        f"where 1 is right. {_against_overfitting(description, options)}",
    )


def _drawn_probabilities(every: Evaluation | None, labels: Labels, task: Task) -> tuple[str, ...]:
    """Return a note where the penalty on the intercept draws probabilities together beyond chance.

    In training the mean probability of a class is its share less λb/c², where the intercept b is
    the weight of a constant c, which is penalised: of a rare class it is too high. One of several
    classes is rare, too.
    """
    found = None if every is None else every.figures
    penalty = getattr(task.options, "regularisation", 0.0)
    constant = task.description.preprocessing.constant
    slow = constant > 1 and steps_along_gradients(task.description, task.options)
    drawn = constant > 0 and penalty > 0 and not slow
    if found is None or not found.calibration or not drawn:
        return ()
    rows = sum(one.samples for one in found.calibration)
    mean = sum(one.samples * one.probability for one in found.calibration) / rows
    share = sum(one.samples * one.share for one in found.calibration) / rows
    two = len(labels.classes) == 2
    least = _DRAWN * min(share, 1 - share) if two else _UNSURE
    beyond = abs(mean - share) > max(least, 3 * math.sqrt(share * (1 - share) / rows))
    if not beyond or (abs(mean - 0.5) > abs(share - 0.5) if two else mean > share):
        return ()
    of = repr(labels.classes[1]) if two else "the classes that the model says"
    come = "of the rows have it" if two else "come true"
    return (
        f"Probabilities of {of} are {mean:.3g} on the average, and {share:.3g} {come}: the penalty "
        "holds for the intercept, too, which matters where a class has few rows. "
        f"{_against_drawing(task, penalty)}",
    )


def _against_drawing(task: Task, penalty: float) -> str:
    """Return what to set so that the penalty holds less for the intercept."""
    description, constant = task.description, task.description.preprocessing.constant
    slow = steps_along_gradients(description, task.options)
    if slow or description.privacy.epsilon or constant * 10 > LARGEST_CONSTANT:
        return (
            f"A lower algorithm.regularisation than {penalty:.4g} may help; intarsia tune looks "
            "for it."
        )
    return (
        f"Set preprocessing.intercept = {10 * constant:g}, of which it holds for a hundredth, or "
        f"algorithm.regularisation lower than {penalty:.4g}."
    )


def _against_overfitting(description: Experiment, options: Any) -> str:
    """Return what to set where a model follows its training rows too closely."""
    penalty = getattr(options, "regularisation", None)
    if penalty is not None:
        return (
            f"A higher algorithm.regularisation than {penalty:.4g} mostly helps; intarsia tune "
            "looks for it."
        )
    if description.early_stopping:
        return "intarsia tune looks for better hyperparameters."
    return "early_stopping in [experiment], with stopping in [split], mostly helps."


def _off_quantile(every: Evaluation | None, task: Task, finished: str | None) -> tuple[str, ...]:
    """Return a note where other than a share τ of the labels lies up to a quantile, beyond chance.

    In training the share is τ - λb/c² with the intercept b, the weight of a constant c, which is
    penalised: there the derivative is 0. A mean of predictions is about b, where features have the
    mean 0.
    """
    found = None if every is None else every.figures
    interval = None if found is None else found.intervals.get("coverage")
    if found is None or found.coverage is None or interval is None:
        return ()
    share, (low, high), right = found.coverage, interval, task.options.quantile
    if low <= right <= high or abs(share - right) < _OFF:
        return ()
    penalty, bins = task.options.regularisation, found.predictions or ()
    rows = max(sum(one.samples for one in bins), 1)
    constant = task.description.preprocessing.constant
    lost = penalty * sum(one.samples * one.predicted for one in bins) / rows
    lost /= max(constant, 1.0) ** 2
    if not constant:
        cause = "Without an intercept it is right by accident alone: set preprocessing.intercept."
    elif lost / (right - share) > 0.5:
        cause = (
            f"The penalty on the intercept accounts for {100 * abs(lost):.2g} points. "
            f"{_against_drawing(task, penalty)} Labels less a usual one help, too."
        )
    elif finished == "rounds":
        cause = "Training ended at its limit of rounds: more of them may help."
    else:
        cause = (
            f"Where columns are many for the rows, a higher algorithm.regularisation than "
            f"{penalty:.4g} mostly helps; with many equal labels no prediction has another share."
        )
    return (
        f"{100 * share:.3g} % of the test labels are up to the prediction, 95 % interval "
        f"{100 * low:.3g} to {100 * high:.3g} %, where {100 * right:.4g} % are right "
        f"(algorithm.quantile). {cause}",
    )
