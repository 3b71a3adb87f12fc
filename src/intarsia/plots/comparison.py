"""Accuracy of compared runs against a number in which they differ, as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from intarsia.errors import ExperimentError
from intarsia.plots.picture_file import write_picture
from intarsia.results.comparison import Group, Spread

_DPI = 140
_SIZE = (8.5, 5.6)  # inches
_INK = "#222222"
_COLOURS = ("#3b6fb6", "#e08a2b", "#4b9e5f", "#b8487a", "#7a5ea8", "#3fa3ad", "#c9b037", "#8c5a3c")
_MARKERS = "osD^vP*X"


def curves_picture(groups: Sequence[Group], path: str | Path, *, title: str | None = None) -> Path:
    """Draw the score of groups of runs against the number in which they differ; return the path.

    The score is the mean over clients, or that of the whole model where there is none. There is a
    line for each algorithm and each other setting that differs, with the standard deviation over
    seeds as bars.

    Raises
    ------
    ExperimentError
        If the groups differ in no number, or in several.
    """
    across = _axis(groups)
    lines: dict[str, dict[float, Spread]] = {}
    for group in groups:
        score = group.clients or group.federated
        if score is None or across not in group.settings:
            continue
        others = [f"{key}={value}" for key, value in group.settings.items() if key != across]
        name = f"{group.algorithm} ({', '.join(others)})" if others else group.algorithm
        lines.setdefault(name, {})[float(group.settings[across])] = score
    measure = groups[0].measure
    figure = Figure(figsize=_SIZE, dpi=_DPI, facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.1, 0.13, 0.86, 0.76))
    for number, (name, points) in enumerate(lines.items()):
        at = sorted(points)
        scale = 100 if measure == "accuracy" else 1
        axes.errorbar(
            at,
            [scale * points[one].mean for one in at],
            [scale * (points[one].deviation or 0.0) for one in at],
            label=name,
            color=_COLOURS[number % len(_COLOURS)],
            marker=_MARKERS[number % len(_MARKERS)],
            markersize=6,
            linewidth=1.8,
            capsize=3,
        )
    axes.set_xlabel(across.rpartition(".")[2], fontsize=11, color=_INK, parse_math=False)
    unit = ", %" if measure == "accuracy" else ""
    axes.set_ylabel(f"{measure}{unit}, mean over clients", fontsize=11, color=_INK)
    axes.set_xticks(sorted({at for points in lines.values() for at in points}))
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    legend = axes.legend(frameon=False, fontsize=9.5, labelcolor=_INK)
    for text in legend.get_texts():
        text.set_parse_math(False)
    heading = title or ", ".join(dict.fromkeys(group.experiment for group in groups))
    figure.text(0.1, 0.93, heading, size=14, weight="bold", color=_INK, parse_math=False)
    return write_picture(figure, path)


def _axis(groups: Sequence[Group]) -> str:
    """Return the setting in which the groups differ, and which is a number."""
    values: dict[str, set[float]] = {}
    for group in groups:
        for key, value in _numbers(group.settings).items():
            values.setdefault(key, set()).add(value)
    found = [key for key, some in values.items() if len(some) > 1]
    if not found:
        raise ExperimentError(
            "The runs differ in no setting that is a number, and a picture draws their score "
            "against one; give runs that differ in one, for example of the same experiment with "
            "-c partition.clients=5, 10 and 20, or leave out --picture."
        )
    preferred = [key for key in found if key == "partition.clients"] or found
    if len(preferred) != 1:
        raise ExperimentError(
            f"The runs differ in {len(found)} numbers ({', '.join(found)}), and there is "
            "one axis for them; give runs that differ in one, for example partition.clients."
        )
    return preferred[0]


def _numbers(settings: Mapping[str, Any]) -> dict[str, float]:
    return {
        key: float(value)
        for key, value in settings.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
