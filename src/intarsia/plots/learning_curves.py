"""The accuracy of runs round by round, or their loss where they have none, as a picture.

A finished run ends with its result: the model after what an algorithm does when its rounds are
over. The one of FeMAM (2024), Figure 3: a run that adds levels of models climbs in stairs, and a
line stands where a level was added.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from intarsia.errors import CheckpointError, ExperimentError
from intarsia.plots.picture_file import write_picture

__all__ = ["Course", "course_of", "rounds_picture"]

_DPI = 140
_SIZE = (9.5, 5.4)  # inches, above the legend
_LINE = 0.21  # inches of a line of the legend
_INK = "#222222"
_COLOURS = ("#3b6fb6", "#e08a2b", "#4b9e5f", "#b8487a", "#7a5ea8", "#3fa3ad", "#c9b037", "#8c5a3c")


@dataclass(frozen=True)
class Course:
    """How a run went."""

    name: str
    accuracy: Mapping[int, float]  # of the rounds after which the model was evaluated
    begun: Mapping[str, int]  # the first round of each phase, such as "level 2", in their order
    loss: Mapping[int, float] = field(default_factory=dict[int, float])  # of the training samples
    result: tuple[int, float] | None = None  # the last round, and the accuracy after all is done

    @property
    def last(self) -> int:
        """Return the last round that is drawn."""
        return max([*self.accuracy, *([self.result[0]] if self.result else [])] or self.loss)


def course_of(folder: Path | str, name: str = "") -> Course:
    """Return how the run in an output folder went; the name is by default the algorithm's.

    Raises
    ------
    CheckpointError
        If the folder holds no history.
    ExperimentError
        If no round of it was evaluated.
    """
    from intarsia.results.result import load
    from intarsia.results.run_folder import described

    folder = Path(folder)
    path = folder / "history.jsonl"
    if not path.is_file():
        raise CheckpointError(f"{folder} holds no history.jsonl; give the output folder of a run.")
    accuracy: dict[int, float] = {}
    loss: dict[int, float] = {}
    begun: dict[str, int] = {}
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            line = json.loads(text)
        except ValueError:  # cut short: the run may be going on
            continue
        if line.get("accuracy") is not None:
            accuracy[line["round"]] = line["accuracy"]
        if line.get("loss") is not None:
            loss[line["round"]] = line["loss"]
        if line.get("phase"):
            begun.setdefault(line["phase"], line["round"])
    described_as = described(folder)
    every = 0 if described_as is None else described_as.evaluate_every
    # of numbers to predict, or where all clients' networks are their own, no round has an accuracy
    if not accuracy and not (every and any(number % every == 0 for number in loss)):
        raise ExperimentError(
            f"The run in {folder} has no round with an accuracy; set experiment.evaluate_every to "
            "1 or a few rounds."
        )
    result = None
    if accuracy and (folder / "result.json").is_file():
        done = load(folder)
        if done.metrics.server is not None and done.metrics.server.accuracy is not None:
            result = done.rounds, done.metrics.server.accuracy
    name = name or (folder.name if described_as is None else described_as.algorithm)
    return Course(name, accuracy, begun, loss, result)


def rounds_picture(
    courses: Sequence[Course], path: str | Path, *, title: str | None = None
) -> Path:
    """Draw the accuracy of runs against their rounds as a PNG; return its path.

    A result is a point of its own after the last round. The loss is drawn where a run has no
    accuracy. Lines stand where the first run with several phases began one.

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
    figure = Figure(figsize=(_SIZE[0], whole), dpi=_DPI, facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.085, (below + 0.75) / whole, 0.885, (_SIZE[1] - 1.5) / whole))
    phased = next((one for one in courses if len(one.begun) > 1), None)
    for number, one in enumerate(courses):
        figures, scale = (one.accuracy, 100) if accurate else (one.loss, 1)
        at = sorted(figures)
        colour = _COLOURS[number % len(_COLOURS)]
        label = one.name
        if accurate and one.result is not None:
            label = f"{one.name}: result {100 * one.result[1]:.2f} %"
            ends = [(at[-1], figures[at[-1]]), one.result]
            axes.plot(
                [round_ for round_, _ in ends],
                [100 * figure for _, figure in ends],
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
            linewidth=2.4 if one is phased else 1.5,
            zorder=3 if one is phased else 2,
            marker="o" if len(at) < 25 else "",
            markersize=4,
        )
    if phased is not None:
        _mark(axes, phased)
    axes.set_xlabel("round", fontsize=11, color=_INK)
    shown = "accuracy, %, of all graded samples" if accurate else "loss of the training samples"
    axes.set_ylabel(shown, fontsize=11, color=_INK)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.grid(color="#e4e4e4", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    handles = axes.get_legend_handles_labels()[0]
    if ended:
        said = "the result: after the last round and what follows it"
        handles.append(Line2D([], [], color="#8f8f8f", linestyle=":", marker="D", label=said))
    legend = figure.legend(
        handles=handles, frameon=False, fontsize=9.5, labelcolor=_INK, loc="lower left",
        bbox_to_anchor=(0.07, 0.0),
    )  # fmt: skip
    for text in legend.get_texts():
        text.set_parse_math(False)
    heading = title or f"{'Accuracy' if accurate else 'Loss'} round by round"
    figure.text(
        0.085, 1 - 0.3 / whole, heading, size=14, weight="bold", color=_INK, parse_math=False
    )
    return write_picture(figure, path)


def _mark(axes: Axes, course: Course) -> None:
    """Draw a line where each phase began, and write its name above."""
    ends = [*course.begun.values(), course.last]
    for (name, start), (first, last) in zip(course.begun.items(), pairwise(ends), strict=True):
        if start > min(course.begun.values()):
            axes.axvline(start, color="#3b6fb6", linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)
        axes.text(
            (first + last) / 2,
            1.015,
            name,
            transform=axes.get_xaxis_transform(),
            ha="center",
            fontsize=8.5,
            color=_INK,
            parse_math=False,
        )
