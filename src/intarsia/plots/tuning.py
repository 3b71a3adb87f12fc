"""Draw the trials of a search for hyperparameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from matplotlib.ticker import MaxNLocator

from intarsia.plots.style import COLOURS, INK, add_legend, new_figure, save, tidy, write_heading

_PANEL = (4.4, 3.6)  # inches
_ACROSS = 3  # panels in a row


class _Trial(Protocol):
    @property
    def number(self) -> int: ...
    @property
    def values(self) -> Mapping[str, Any]: ...
    @property
    def scores(self) -> Mapping[str, float]: ...
    def error(self, objective: str) -> float | None: ...


class _Tuned(Protocol):
    @property
    def experiment(self) -> str: ...
    @property
    def objectives(self) -> Sequence[str]: ...
    @property
    def trials(self) -> Sequence[Any]: ...
    @property
    def best(self) -> int: ...
    @property
    def front(self) -> Sequence[int]: ...
    @property
    def path(self) -> bool: ...


def tuning_picture(tuned: _Tuned, path: str | Path) -> Path:
    """Draw what each trial came to; return the path.

    The first panel has the first objective over the trials, or the first two against each other
    where there are several; then there is a panel for each key that varies. The chosen trial is
    marked, and with several objectives those that no other is better than. The points of a path are
    joined, with one standard error over the folds.
    """
    done: list[_Trial] = [one for one in tuned.trials if one.scores]
    keys = list(dict.fromkeys(key for one in done for key in one.values))
    panels = 1 + len(keys)
    across = min(panels, _ACROSS)
    down = -(-panels // across)
    figure = new_figure((max(_PANEL[0] * across, 6.5), _PANEL[1] * down + 0.5))
    top = 1 - 0.5 / (_PANEL[1] * down + 0.5)
    axes = figure.subplots(down, across, squeeze=False).ravel()
    for unused in axes[panels:]:
        unused.set_visible(False)
    first, *others = tuned.objectives
    if others:
        across_name, up = others[0], first
        points = [(one.scores[across_name], one.scores[up], one.number) for one in done]
    else:
        across_name, up = "trial", first
        points = [(one.number + 1, one.scores[up], one.number) for one in done]
        axes[0].xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    _points(axes[0], points, tuned)
    _label(axes[0], across_name, up)
    for place, key in zip(axes[1:panels], keys, strict=True):
        known = [one for one in done if key in one.values]
        values = [one.values[key] for one in known]
        numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
        if numbers:
            at: list[Any] = values
            if min(values) > 0 and max(values) > 50 * min(values):
                place.set_xscale("log")
        else:
            names = sorted({str(v) for v in values})
            at = [names.index(str(v)) for v in values]
            place.set_xticks(range(len(names)), names)
        shown = [(x, one.scores[up], one.number) for x, one in zip(at, known, strict=True)]
        if tuned.path:
            _path(place, at, known, up)
        _points(place, shown, tuned)
        _label(place, key, up)
    handles, labels = axes[0].get_legend_handles_labels()
    write_heading(figure, 0.02, 1 - 0.33 / (_PANEL[1] * down + 0.5), tuned.experiment, 14)
    add_legend(figure, handles=handles, labels=labels, loc="upper right", ncols=4, fontsize=9.5)
    figure.tight_layout(rect=(0, 0, 1, top))
    return save(figure, path)


def _path(axes: Any, at: Sequence[Any], trials: Sequence[_Trial], objective: str) -> None:
    """Join the trials in the order of their values, each with one standard error over its folds."""
    order = np.argsort(at)
    means = np.array([one.scores[objective] for one in trials])[order]
    axes.plot(np.array(at)[order], means, color=COLOURS[0], linewidth=1.0, alpha=0.6)
    if trials[0].error(objective) is not None:
        errors = np.array([one.error(objective) for one in trials], np.float64)[order]
        style = {"fmt": "none", "ecolor": COLOURS[0], "elinewidth": 0.8, "capsize": 2.0}
        axes.errorbar(np.array(at)[order], means, yerr=errors, alpha=0.6, **style)


def _points(axes: Any, points: Sequence[tuple[float, float, int]], tuned: _Tuned) -> None:
    """Draw trials; the one of the file, the front and the chosen one stand out."""

    def put(which: Sequence[int] | None, label: str, **style: Any) -> None:
        chosen = [one for one in points if which is None or one[2] in which]
        if chosen:
            x, y, _ = (np.array(part) for part in zip(*chosen, strict=True))
            axes.scatter(x, y, label=label, **style)

    put(None, "trials", color=COLOURS[0], s=26, alpha=0.75, linewidths=0)
    if len(tuned.objectives) > 1:
        put(tuned.front, "Pareto front", facecolors="none", edgecolors=INK, s=60)
    put([0], "as in the file", color=COLOURS[2], marker="s", s=46)
    put([tuned.best], "chosen", color=COLOURS[1], marker="*", s=190, edgecolors=INK, linewidths=0.6)


def _label(axes: Any, across: str, up: str) -> None:
    axes.set_xlabel(across, fontsize=10.5, color=INK, parse_math=False)
    axes.set_ylabel(f"{up}, held out", fontsize=10.5, color=INK, parse_math=False)
    tidy(axes, "#dddddd")
