"""Draw learning curves: the accuracy of runs round by round, or their loss without one.

A finished run ends with its result: the model after what an algorithm does when its rounds are
over. The one of FeMAM (2024), Figure 3: a run that adds levels of models climbs in stairs, and a
line stands where a level was added.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from intarsia.errors import ExperimentError
from intarsia.plots.style import (
    COLOURS,
    INK,
    add_legend,
    new_figure,
    save,
    tidy,
    write,
    write_heading,
)
from intarsia.results.history import Course

_SIZE = (9.5, 5.4)  # inches, above the legend
_WIDTH = 0.885  # of the axes, as a share
_LETTER = 0.08  # inches, of a phase's name
_MOST_PHASES = 100  # whose lines can be told apart
_LINE = 0.21  # inches of a line of the legend


def rounds_figure(courses: Sequence[Course], *, title: str | None = None) -> Figure:
    """Return a figure of the accuracy of runs against their rounds.

    A result is a point of its own after the last round. The loss is drawn where a run has no
    accuracy. Lines in its colour stand where the first run with several phases began one.

    Raises
    ------
    ExperimentError
        If there is no run, or they have neither accuracies nor losses in common.
    """
    if not courses:
        raise ExperimentError("There are 0 runs to draw; give the course of one at least.")
    accurate = all(one.accuracy for one in courses)
    if not accurate and not all(one.loss for one in courses):
        raise ExperimentError(
            "Some of the runs have no accuracy, and others no loss; draw the two kinds apart."
        )
    ended = accurate and any(one.result for one in courses)
    below = _LINE * (len(courses) + ended)
    whole = _SIZE[1] + below
    figure = new_figure((_SIZE[0], whole))
    axes = figure.add_axes((0.085, (below + 0.75) / whole, _WIDTH, (_SIZE[1] - 1.5) / whole))
    phased = next((one for one in courses if len(one.begun) > 1), None)
    for number, one in enumerate(courses):
        _draw(axes, one, COLOURS[number % len(COLOURS)], accurate, one is phased)
    if phased is not None:
        _mark(axes, phased, COLOURS[courses.index(phased) % len(COLOURS)])
    axes.set_xlabel("round", fontsize=11, color=INK)
    shown = "accuracy, %, of all evaluated samples" if accurate else "loss of the training samples"
    axes.set_ylabel(shown, fontsize=11, color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    tidy(axes, "#e4e4e4")
    handles = axes.get_legend_handles_labels()[0]
    if ended:
        said = "the result: after the last round and what follows it"
        handles.append(Line2D([], [], color="#8f8f8f", linestyle=":", marker="D", label=said))
    add_legend(figure, handles=handles, fontsize=9.5, loc="lower left", bbox_to_anchor=(0.07, 0.0))
    heading = title or f"{'Accuracy' if accurate else 'Loss'} round by round"
    write_heading(figure, 0.085, 1 - 0.3 / whole, heading, 14)
    return figure


def rounds_picture(
    courses: Sequence[Course], path: str | Path, *, title: str | None = None
) -> Path:
    """Draw the rounds of runs (`rounds_figure`) as a PNG; return its path."""
    return save(rounds_figure(courses, title=title), path)


def _draw(axes: Axes, one: Course, colour: str, accurate: bool, in_front: bool) -> None:
    """Draw a run's evaluated rounds, and its result as a point of its own."""
    figures, scale = (one.accuracy, 100) if accurate else (one.loss, 1)
    at = sorted(figures)
    label = one.name
    if accurate and one.result is not None:
        label = f"{one.name}: result {100 * one.result[1]:.2f} %"
        axes.plot(
            [at[-1], one.result[0]],
            [100 * figures[at[-1]], 100 * one.result[1]],
            color=colour,
            linestyle=":",
            linewidth=1.5,
            marker="D",
            markevery=[1],
            markersize=7,
            markeredgecolor="white",
            zorder=4,
        )
    axes.plot(
        at,
        [scale * figures[round_] for round_ in at],
        label=label,
        color=colour,
        linewidth=2.4 if in_front else 1.5,
        zorder=3 if in_front else 2,
        marker="o" if len(at) < 25 else "",
        markersize=4,
    )


def _mark(axes: Axes, course: Course, colour: str) -> None:
    """Draw a line where each phase began, and write its name above; of too many, say how many.

    Names of phases that are short beside the picture follow each other, as far as there is room.
    """
    ends, earliest = [*course.begun.values(), course.last], min(course.begun.values())
    if len(course.begun) > _MOST_PHASES:
        said = f"{len(course.begun):,} phases, too many to be drawn"
        write(axes, 1.0, 1.015, said, 8.5, transform=axes.transAxes, va="baseline", ha="right")
        return
    for start in course.begun.values():
        if start > earliest:
            axes.axvline(start, color=colour, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)
    free, end = axes.get_xlim()  # between which names may still be written
    letter = _LETTER / (_WIDTH * _SIZE[0]) * (end - free)
    for name, (first, last) in zip(course.begun, pairwise(ends), strict=True):
        half = len(name) * letter / 2
        middle = max((first + last) / 2, free + half)
        if middle + half <= end:
            free = middle + half + letter
            across = axes.get_xaxis_transform()
            write(axes, middle, 1.015, name, 8.5, transform=across, va="baseline")
