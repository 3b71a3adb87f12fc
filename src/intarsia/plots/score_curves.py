"""Draw how good scores are: ROC, precision-recall and reliability curves, or predicted numbers.

All points are counts of ranges of samples, never one sample: `Figures.curves`, `calibration` and
`predictions`. Bands and bars are 95 % intervals of each point by itself (Wilson), and of a mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from intarsia.maths.figures import (
    CalibrationBin,
    Curve,
    Figures,
    PredictionBin,
    classes_of_curves,
    share_interval,
)
from intarsia.plots.style import (
    COLOURS,
    INK,
    add_legend,
    distinct_colours,
    new_figure,
    save,
    tick_text,
    tidy,
    write_heading,
)
from intarsia.results.figure_text import number

_PANEL = 4.4  # inches
_LEAST = 8.5  # inches of the whole, across
_MOST = 10  # classes with a curve
_NORMAL = 1.96  # standard errors of a mean that an interval reaches


def scores_figure(
    figures: Figures, *, title: str, whose: str, classes: Sequence[str] = ()
) -> Figure:
    """Return a figure with a panel for each kind of curve that the figures of a score have.

    Parameters
    ----------
    whose
        Which samples these are, in a few words.
    classes
        Their names, in order; () where they are not known.
    """
    panels: list[tuple[Any, Any]] = []
    if figures.curves is not None:
        panels += [(_draw_roc, figures.curves), (_draw_precision, figures.curves)]
    if figures.calibration:
        panels.append((_draw_reliability, figures.calibration))
    if figures.predictions:
        panels.append((_draw_predictions, figures.predictions))
    each = max(_PANEL, _LEAST / len(panels))
    margin = 1.2 if figures.predictions else 0.75  # numbers to predict may be long
    width, high = each * len(panels), _PANEL + 0.8
    figure = new_figure((width, high))
    for place, (draw, content) in enumerate(panels):
        left = (place * each + margin) / width
        box = (left, 0.62 / high, (each - margin - 0.2) / width, (_PANEL - 0.95) / high)
        axes = figure.add_axes(box)
        draw(axes, content, figures, classes_of_curves(figures, classes))
        axes.xaxis.set_major_locator(MaxNLocator(6))
        tidy(axes, "#e4e4e4")
    write_heading(figure, 0.55 / width, 1 - 0.36 / high, title)
    if figures.curves is not None and len(figures.curves) == 1 and len(classes) == 2:
        whose += f"; curves of “{classes[1]}”"
    elif figures.curves is not None and len(figures.curves) > _MOST:
        whose += f"; curves of the first {_MOST} of {len(figures.curves)} classes"
    said = f"{whose}; bands and bars: 95 % intervals of each point"
    figure.text(0.55 / width, 1 - 0.62 / high, said, size=9.5, color=INK, parse_math=False)
    return figure


def scores_picture(
    figures: Figures, path: str | Path, *, title: str, whose: str, classes: Sequence[str] = ()
) -> Path:
    """Draw the curves of a score (`scores_figure`) as a PNG; return its path."""
    return save(scores_figure(figures, title=title, whose=whose, classes=classes), path)


def _draw_roc(axes: Any, curves: Sequence[Curve], figures: Figures, classes: Sequence[str]) -> None:
    axes.plot([0, 1], [0, 1], color="#8f8f8f", linewidth=1, linestyle=(0, (4, 3)))
    for curve, colour, name in _shown(curves, classes):
        above = _above(curve)
        positives, negatives = np.maximum(above[-1], 1e-9)
        share, false = above[:, 0] / positives, above[:, 1] / negatives
        axes.plot(false, share, color=colour, linewidth=1.8, label=name)
        if len(curves) == 1:
            _band(axes, false, share, np.full(len(share), positives), colour)
    _label(axes, "false positive rate", "true positive rate", _said("AUC", "auc", figures))
    if len(curves) > 1:
        add_legend(axes, fontsize=8, loc="lower right")


def _draw_precision(
    axes: Any, curves: Sequence[Curve], figures: Figures, classes: Sequence[str]
) -> None:
    for curve, colour, name in _shown(curves, classes):
        above = _above(curve)[1:]
        positives, negatives = np.maximum(above[-1], 1e-9)
        count = above.sum(axis=1)
        share, precision = above[:, 0] / positives, above[:, 0] / count
        axes.plot(share, precision, color=colour, linewidth=1.8, label=name)
        if len(curves) == 1:
            _band(axes, share, precision, count, colour)
            base = positives / (positives + negatives)
            axes.axhline(base, color="#8f8f8f", linewidth=1, linestyle=(0, (4, 3)))
    title = _said("average precision", "average_precision", figures)
    _label(axes, "recall", "precision", title)


def _draw_reliability(
    axes: Any, bins: Sequence[CalibrationBin], figures: Figures, classes: Sequence[str]
) -> None:
    axes.plot([0, 1], [0, 1], color="#8f8f8f", linewidth=1, linestyle=(0, (4, 3)))
    at, share = [one.probability for one in bins], np.array([one.share for one in bins])
    ends = np.array([share_interval(one.share, one.samples) for one in bins])
    reach = np.maximum(np.abs(ends.T - share), 0.0)
    axes.errorbar(at, share, reach, color=COLOURS[0], marker="o", capsize=3, linewidth=1.6)
    _label(
        axes,
        "mean probability" if len(figures.curves or ((),)) == 1 else "probability of what is said",
        "share that comes true",
        _said("calibration error", "calibration_error", figures),
    )


def _draw_predictions(
    axes: Any, bins: Sequence[PredictionBin], figures: Figures, classes: Sequence[str]
) -> None:
    at, actual = [one.predicted for one in bins], [one.actual for one in bins]
    ends = [*at, *actual]
    axes.plot(
        [min(ends), max(ends)],
        [min(ends), max(ends)],
        color="#8f8f8f",
        linewidth=1,
        linestyle=(0, (4, 3)),
    )
    spread = np.array([one.deviation for one in bins])
    error = _NORMAL * spread / np.sqrt([max(one.samples, 1.0) for one in bins])
    axes.errorbar(
        at, actual, spread, color=COLOURS[1], linewidth=0, elinewidth=5, alpha=0.35,
        label="standard deviation of the labels",
    )  # fmt: skip
    axes.errorbar(
        at, actual, error, color=COLOURS[0], marker="o", capsize=3, linewidth=1.6,
        label="their mean, and its interval",
    )  # fmt: skip
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(tick_text)
    title = _said("root mean squared error", "rmse", figures)
    _label(axes, "predicted, mean of a range", "actual", title, unit=False)
    add_legend(axes, fontsize=8, loc="upper left")


def _shown(curves: Sequence[Curve], classes: Sequence[str]) -> list[tuple[Curve, Any, str]]:
    """Return the curves that are drawn, with colours and names."""
    names = classes or [f"curve {number + 1}" for number in range(len(curves))]
    some = list(zip(curves, names, strict=True))[:_MOST]
    colours = distinct_colours(len(some))
    return [(one, colour, name) for (one, name), colour in zip(some, colours, strict=True)]


def _above(curve: Curve) -> Any:
    """Return the counts above each threshold from none on, (thresholds, 2)."""
    return np.concatenate([np.zeros((1, 2)), np.cumsum(np.array(curve), axis=0)])


def _band(axes: Any, at: Any, share: Any, count: Any, colour: Any) -> None:
    ends = np.array([share_interval(*one) for one in zip(share, count, strict=True)])
    axes.fill_between(at, ends[:, 0], ends[:, 1], color=colour, alpha=0.18, linewidth=0)


def _said(name: str, key: str, figures: Figures) -> str:
    value, ends = getattr(figures, key), figures.intervals.get(key)
    if value is None:
        return ""
    reach = "" if ends is None else f" ({number(ends[0])} to {number(ends[1])})"
    return f"{name} {number(value)}{reach}"


def _label(axes: Any, across: str, up: str, title: str, *, unit: bool = True) -> None:
    axes.set_xlabel(across, fontsize=10.5, color=INK)
    axes.set_ylabel(up, fontsize=10.5, color=INK)
    axes.set_title(title, fontsize=9.5, color=INK, loc="left")
    if unit:
        axes.set_xlim(-0.02, 1.02)
        axes.set_ylim(-0.02, 1.02)
