"""Draw the accuracy of compared runs against a number in which they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from intarsia.errors import ExperimentError
from intarsia.plots.style import COLOURS, INK, add_legend, new_figure, save, tidy, write_heading
from intarsia.results.comparison import Group, Spread

_SIZE = (8.5, 5.6)  # inches
_MARKERS = "osD^vP*X"


def curves_figure(groups: Sequence[Group], *, title: str | None = None) -> Figure:
    """Return a figure of the score of groups of runs against the number in which they differ.

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
    figure = new_figure(_SIZE)
    axes = figure.add_axes((0.1, 0.13, 0.86, 0.76))
    for number, (name, points) in enumerate(lines.items()):
        at = sorted(points)
        scale = 100 if measure == "accuracy" else 1
        axes.errorbar(
            at,
            [scale * points[one].mean for one in at],
            [scale * (points[one].deviation or 0.0) for one in at],
            label=name,
            color=COLOURS[number % len(COLOURS)],
            marker=_MARKERS[number % len(_MARKERS)],
            markersize=6,
            linewidth=1.8,
            capsize=3,
        )
    axes.set_xlabel(across.rpartition(".")[2], fontsize=11, color=INK, parse_math=False)
    unit = ", %" if measure == "accuracy" else ""
    axes.set_ylabel(f"{measure}{unit}, mean over clients", fontsize=11, color=INK)
    axes.set_xticks(sorted({at for points in lines.values() for at in points}))
    tidy(axes, "#dddddd")
    add_legend(axes, fontsize=9.5)
    heading = title or ", ".join(dict.fromkeys(group.experiment for group in groups))
    write_heading(figure, 0.1, 0.93, heading, 14)
    return figure


def curves_picture(groups: Sequence[Group], path: str | Path, *, title: str | None = None) -> Path:
    """Draw the scores of groups (`curves_figure`) as a PNG; return its path."""
    return save(curves_figure(groups, title=title), path)


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
