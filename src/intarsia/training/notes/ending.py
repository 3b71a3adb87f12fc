"""Notes on how training ended: what kept it from the tolerance, and which round the model is of."""

from __future__ import annotations

from intarsia.core.algorithm import FinalResult, RoundMetrics
from intarsia.experiment.config import Experiment
from intarsia.protocols import evaluation_rows
from intarsia.results.figure_text import percent
from intarsia.training import loop
from intarsia.training.loop import Task, TrainingState

_WIDE = 1e-6  # a relative gap that a note names where the tolerance is 0
_SMALL = 1e-9  # share of the objective by which sums are rounded where labels are small numbers
_SLOW = 10  # rounds, at least, of which it is said that they did not halve the gap
_FALLEN = 1e-3  # of accuracy, from which on it is said that the finished model has less


def notes_on_training(
    task: Task, state: TrainingState, conclusion: FinalResult, ended: str, accuracy: float | None
) -> tuple[str, ...]:
    """Return notes on how training ended; `accuracy` is the finished model's, if it has one."""
    description, info = task.description, conclusion.info
    notes: tuple[str, ...] = ()
    gap = info.gap_relative
    if ended == "algorithm" and gap is not None and gap > (description.tolerance or _WIDE):
        notes += (limited(description, info),)
    if description.early_stopping:
        notes += (stopped(description, state),)
    if state.finished == "rounds" and state.round < description.rounds:
        assert task.release is not None
        notes += (
            f"Training ended after {state.round} of {description.rounds} rounds: some "
            f"began again, and each attempt counts among the {task.release.releases} releases "
            "that the noise was measured for.",
        )
    if loop.is_false(info):
        notes += (false_bound(description, info),)
    elif ended == "stalled":
        notes += (stall(description, state),)
    return notes + _fallen(task, state, accuracy) + _scored_seldom(task, state)


def false_bound(description: Experiment, info: RoundMetrics) -> str:
    """Return a sentence that says why a certificate's dual is above its primal, and what helps."""
    assert info.gap_relative is not None
    helps = "predict the difference from a number near their mean, and add it to predictions"
    if not description.preprocessing.standardise:
        helps += "; set preprocessing.standardise = true"
    return (
        "The certificate bounds nothing: its dual is above its primal, by "
        f"{-info.gap_relative:.1e} of it. Sums of large terms that cancel are rounded in float64, "
        f"as of labels or columns far from 0 whose spread is small. If labels are: {helps}."
    )


def limited(description: Experiment, info: RoundMetrics) -> str:
    """Return a sentence that says what keeps the gap above the tolerance, and what helps."""
    gap, sealed = info.gap_relative, description.privacy.mode != "plain"
    assert gap is not None
    tolerance = description.tolerance
    below = f"the tolerance {f'{tolerance:.0e}' if tolerance else '0'} is below it"
    if sealed and (gap < 1.0 or info.rounding > 0.1 * gap):
        by = f" (they are rounded by {info.rounding:.1e} of the objective)" if info.rounding else ""
        helps = "lower privacy.range, which makes their steps finer"
        if info.rounding > _SMALL:
            helps += ", or multiply small numbers to predict by a power of ten"
        return (
            f"The relative gap {gap:.1e} is as far as sealed sums go here, which are in fixed point"
            f"{by}; {below}: {helps}, or raise experiment.tolerance."
        )
    if gap < 1.0:
        return f"The relative gap {gap:.1e} is as far as float64 goes here; {below}."
    return (
        f"The relative gap {gap:.1e} says that training did not come near the optimum; "
        "take smaller steps, or more regularisation."
    )


def stall(description: Experiment, state: TrainingState) -> str:
    """Return a sentence that says where training stalled, and what helps."""
    if description.participation < 1:
        helps = (
            "with clients away it may not close, above all where a client is never there together "
            "with one that has its samples' labels; raise experiment.participation or "
            "experiment.tolerance"
        )
    elif description.privacy.mode == "plain":
        helps = (
            "the problem is too badly conditioned for this method, or the tolerance is below what "
            f"float64 can show; {remedies(description)}, or raise experiment.tolerance"
        )
    else:
        helps = (
            "sealed sums are in fixed point, which has too few digits for a problem as badly "
            f"conditioned as this; {remedies(description)}, or raise experiment.tolerance"
        )
    still = state.round - state.best_round
    since = f"for {still} rounds" if still >= loop.PATIENCE else "and no step lowers the objective"
    return (
        f"The relative duality gap has not come below {state.best:.1e} {since}, "
        f"above the tolerance {description.tolerance:.0e}; the model is that of round "
        f"{state.round}, with the certificate's gap: {helps}."
    )


def barely_moved(state: TrainingState) -> bool:
    """Return whether the last rounds, a quarter of all and ten at least, did not halve the gap."""
    return state.round - state.halved_round >= max(_SLOW, state.round // 4)


def remedies(description: Experiment) -> str:
    """Return what makes a badly conditioned problem easier, by the keys that the file has now."""
    found = ["raise algorithm.regularisation"]
    if not description.preprocessing.standardise:
        found.insert(0, "set preprocessing.standardise = true")
    if description.hyperparameters.get("l1_ratio"):
        found.append("lower algorithm.l1_ratio")
    return ", ".join(found)


def stopped(description: Experiment, state: TrainingState) -> str:
    """Return a sentence that says which round the model is of, and by what it was chosen."""
    if state.chosen_by is None:
        return (
            "The model is that of the start: no round was evaluated on the rows for early "
            f"stopping, in {state.round} rounds."
        )
    ended = f" of {state.round}" if state.round > state.chosen else ", the last"
    figure = {"loss": "the loss", "accuracy": "the accuracy (R² of numbers)"}[description.stop_by]
    return (
        f"The model is that of round {state.chosen}{ended}: {figure} on the rows held out for "
        f"early stopping, {state.chosen_by:.4g}, was best there; no score here is of these rows."
    )


def _fallen(task: Task, state: TrainingState, accuracy: float | None) -> tuple[str, ...]:
    """Return a sentence if a finished model is less accurate than progress showed it last.

    Early stopping has one of its own (`stopped`).
    """
    before = state.scores.get("accuracy")
    if before is None or accuracy is None or not state.scored or task.description.early_stopping:
        return ()
    if accuracy > before - _FALLEN:
        return ()
    since = f"the rounds up to {state.round} and " if state.round > state.scored else ""
    return (
        f"The finished model has an accuracy of {percent(accuracy)}, and progress showed "
        f"{percent(before)} at round {state.scored}: {since}what {task.algorithm.name} does at "
        "the clients after the last round changed it since. Rows for the test choose nothing.",
    )


def _scored_seldom(task: Task, state: TrainingState) -> tuple[str, ...]:
    """Return a sentence that says which rounds have scores, if some were left out for few rows."""
    every = task.description.evaluate_every
    # of numbers to predict progress has no score
    scores = every and task.engine.schema("train").labels.task != "regression"
    turns = range(1, (state.round - 1) // every + 1) if scores else ()  # the last is the result's
    most = loop.times_evaluated(task) if turns else 0
    evaluated = [turn * every for turn in turns if evaluation_rows.is_due(turn, most)]
    if len(evaluated) == len(turns):
        return ()
    shown = ", ".join(map(str, evaluated[:8])) + (
        f", … and {evaluated[-1]}" if evaluated[8:] else ""
    )
    told = f"after the rounds {shown} alone" if evaluated else "of no round"
    rows = "held out for early stopping" if task.description.early_stopping else "for the test"
    return (
        f"Progress has scores {told}, though evaluate_every is {every}: few rows {rows} have a "
        f"label, and of these the server may read the metrics of {most} models at most; hold out "
        "more rows ([split]), or raise experiment.evaluate_every.",
    )
