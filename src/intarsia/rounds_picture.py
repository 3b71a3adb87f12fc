"""The accuracy of runs round by round, as a picture.

The one of FeMAM (2024), Figure 3: a run that adds levels of models climbs in stairs, and a line
stands where a level was added.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from intarsia.errors import CheckpointError, ExperimentError

__all__ = ["Course", "course_of", "rounds_picture"]

_DPI = 140
_SIZE = (9.5, 5.6)  # inches
_INK = "#222222"
_COLOURS = ("#3b6fb6", "#e08a2b", "#4b9e5f", "#b8487a", "#7a5ea8", "#3fa3ad", "#c9b037", "#8c5a3c")


@dataclass(frozen=True)
class Course:
    """How a run went."""

    name: str
    accuracy: Mapping[int, float]  # of the rounds after which the model was evaluated
    begun: Mapping[str, int]  # the first round of each phase, such as "level 2", in their order


def course_of(folder: Path | str, name: str = "") -> Course:
    """Return how the run in an output folder went; the name is by default the algorithm's.

    Raises
    ------
    CheckpointError
        If the folder holds no history.
    ExperimentError
        If no round of it was evaluated.
    """
    from intarsia.run_folder import described

    folder = Path(folder)
    path = folder / "history.jsonl"
    if not path.is_file():
        raise CheckpointError(f"{folder} holds no history.jsonl; give the output folder of a run.")
    accuracy: dict[int, float] = {}
    begun: dict[str, int] = {}
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            line = json.loads(text)
        except ValueError:  # cut short: the run may be going on
            continue
        if line.get("accuracy") is not None:
            accuracy[line["round"]] = line["accuracy"]
        if line.get("phase"):
            begun.setdefault(line["phase"], line["round"])
    if not accuracy:
        raise ExperimentError(
            f"The run in {folder} has no round with an accuracy; set experiment.evaluate_every to "
            "1 or a few rounds."
        )
    described_as = described(folder)
    return Course(
        name or (folder.name if described_as is None else described_as.algorithm), accuracy, begun
    )


def rounds_picture(
    courses: Sequence[Course], path: str | Path, *, title: str | None = None
) -> Path:
    """Draw the accuracy of runs against their rounds as a PNG; return its path.

    Lines stand where the first run with several phases began one.

    Raises
    ------
    ExperimentError
        If there is no run.
    """
    if not courses:
        raise ExperimentError("There are 0 runs to draw; give the course of one at least.")
    figure = Figure(figsize=_SIZE, dpi=_DPI, facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.085, 0.12, 0.885, 0.74))
    phased = next((one for one in courses if len(one.begun) > 1), None)
    for number, one in enumerate(courses):
        at = sorted(one.accuracy)
        axes.plot(
            at,
            [100 * one.accuracy[round_] for round_ in at],
            label=one.name,
            color=_COLOURS[number % len(_COLOURS)],
            linewidth=2.4 if one is phased else 1.5,
            zorder=3 if one is phased else 2,
            marker="o" if len(at) < 25 else "",
            markersize=4,
        )
    if phased is not None:
        _mark(axes, phased)
    axes.set_xlabel("round", fontsize=11, color=_INK)
    axes.set_ylabel("accuracy, %, of all samples", fontsize=11, color=_INK)
    axes.grid(color="#e4e4e4", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    legend = axes.legend(frameon=False, fontsize=9.5, labelcolor=_INK, loc="lower right")
    for text in legend.get_texts():
        text.set_parse_math(False)
    heading = title or "Accuracy round by round"
    figure.text(0.085, 0.945, heading, size=14, weight="bold", color=_INK, parse_math=False)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        # a name in a script that the font lacks is drawn as boxes
        warnings.filterwarnings("ignore", "Glyph", UserWarning)
        figure.savefig(target, format="png")
    return target


def _mark(axes: Axes, course: Course) -> None:
    """Draw a line where each phase began, and write its name above."""
    ends = [*course.begun.values(), max(course.accuracy)]
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
