"""Draw what each party of a federation is worth to each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from intarsia.plots.style import COLOURS, INK, add_legend, new_figure, save, tidy, write_heading

_MOST = 9  # panels; of more parties the averages alone are drawn
_ACROSS = 3
_LETTERS = 24  # of a name
_LONGEST = 3.0  # times what all values span that is drawn of an interval beyond them
_WORDS = {"auc": "AUC", "accuracy": "accuracy", "r2": "R²", "mae": "less absolute error"}


class _Worth(Protocol):
    @property
    def value(self) -> float: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...


class _Found(Protocol):
    @property
    def experiment(self) -> str: ...
    @property
    def measure(self) -> str: ...
    @property
    def parties(self) -> Sequence[str]: ...
    @property
    def left_out(self) -> Mapping[str, Mapping[str, Any]]: ...
    @property
    def shapley(self) -> Mapping[str, Mapping[str, Any]] | None: ...


def contribution_picture(found: _Found, path: str | Path) -> Path:
    """Draw a panel for whom the parties are worth something; return the path.

    Each party is a line: its Shapley value where there is one, and what is lost without it, each
    with its interval of 95 %.
    """
    panels = list(found.left_out)
    if len(panels) == 3:  # one party has test rows, and the mean over the parties is its own
        del panels[1]
    panels = panels if len(panels) <= _MOST else panels[-2:]
    across = min(len(panels), _ACROSS)
    down = -(-len(panels) // across)
    height = 0.75 + 0.34 * len(found.parties)
    figure = new_figure((max(4.2 * across, 6.5), height * down + 1.0))
    axes = figure.subplots(down, across, squeeze=False, sharex="row").ravel()
    for unused in axes[len(panels) :]:
        unused.set_visible(False)
    for place, to in zip(axes, panels, strict=False):
        _panel(place, found, to)
    for row in range(0, len(panels), across):
        _keep_values_apart(axes[row], [_worths(found, to) for to in panels[row : row + across]])
    handles, labels = axes[0].get_legend_handles_labels()
    top = 1 - 0.55 / (height * down + 1.0)
    title = f"{found.experiment}: what parties are worth, in {_WORDS[found.measure]}"
    write_heading(figure, 0.02, 1 - 0.36 / (height * down + 1.0), title, 13)
    add_legend(figure, handles=handles, labels=labels, loc="lower right", ncols=2, fontsize=9.5)
    figure.tight_layout(rect=(0, 0.32 / (height * down + 1.0), 1, top))
    return save(figure, path)


def _panel(axes: Any, found: _Found, to: str) -> None:
    lines = np.arange(len(found.parties))[::-1]
    shown = [("left out", found.left_out[to], COLOURS[1], "o", -0.14)]
    if found.shapley is not None:
        shown.insert(0, ("Shapley value", found.shapley[to], COLOURS[0], "D", 0.14))
    for label, worth, colour, marker, offset in shown:
        known = [
            (at, worth[name])
            for at, name in zip(lines, found.parties, strict=True)
            if name in worth
        ]
        values = np.array([one.value for _, one in known])
        ends = np.array([[one.low, one.high] for _, one in known]).reshape(-1, 2).T
        # a percentile interval of few rows need not hold the value itself
        error = np.maximum([values - ends[0], ends[1] - values], 0.0)
        style = {"fmt": marker, "color": colour, "markersize": 5, "elinewidth": 1.4, "capsize": 2}
        at = np.array([at for at, _ in known]) + offset
        axes.errorbar(values, at, xerr=error, label=label, **style)
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.set_yticks(lines, [_short(name) for name in found.parties], fontsize=9.5, parse_math=False)
    axes.set_ylim(-0.6, len(found.parties) - 0.4)
    axes.set_title(f"to {_short(to)}", loc="left", fontsize=10.5, color=INK, parse_math=False)
    tidy(axes, "#dddddd")


def _worths(found: _Found, to: str) -> list[_Worth]:
    """Return what is drawn in a panel."""
    kinds = (found.left_out, *(() if found.shapley is None else (found.shapley,)))
    return [one for kind in kinds for one in kind[to].values()]


def _keep_values_apart(axes: Any, panels: Sequence[Sequence[_Worth]]) -> None:
    """End the axis where intervals are much longer than values are apart, as of few rows.

    Beside an interval up to 20 all values would be one line at 0.
    """
    every = [one for panel in panels for one in panel]
    values = np.array([0.0, *(one.value for one in every)])
    span = max(np.ptp(values), 1e-12)
    least, most = values.min() - _LONGEST * span, values.max() + _LONGEST * span
    low, high = min(one.low for one in every), max(one.high for one in every)
    if low < least or high > most:
        beside = 0.05 * (min(high, most) - max(low, least))
        axes.set_xlim(max(low - beside, least), min(high + beside, most))
        axes.set_xlabel("an interval that reaches the edge goes on", fontsize=9.5, loc="left")


def _short(name: str) -> str:
    return name if len(name) <= _LETTERS else f"{name[: _LETTERS - 1]}…"
