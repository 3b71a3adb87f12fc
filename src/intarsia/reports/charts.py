"""Charts of a report: scores with their intervals, curves of rounds, ROC and calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from intarsia.maths.figures import Figures, classes_of_curves, share_interval
from intarsia.reports.drawing import (
    WIDTH,
    Axis,
    across_axis,
    colour,
    drawing,
    element,
    label,
    short,
    text_of,
    tick,
    up_axis,
)
from intarsia.results import figure_text

Points = Sequence[tuple[float, float]]

_ROW = 20.0  # pixels of a mark of a chart of intervals
_MOST_CURVES = 8
_HALF = WIDTH / 2 - 10


@dataclass(frozen=True)
class Mark:
    """A figure and its interval."""

    series: int  # which kind of model it is of: its number gives the colour
    value: float
    interval: tuple[float, float] | None
    said: str  # in words


def intervals_chart(
    rows: Mapping[str, Sequence[Mark]], series: Sequence[str], measure: str, lines: str
) -> str:
    """Return a chart with a line for each mark: a point, and its interval where there is one.

    `lines` says what the intervals are.
    """
    values = [
        end
        for marks in rows.values()
        for one in marks
        for end in (one.value, *(one.interval or ()))
    ]
    count = sum(map(len, rows.values()))
    bottom = 34 + count * _ROW + 8 * len(rows)
    top, x = 34.0, Axis.around(values, 190, WIDTH - 20)
    parts = across_axis(x, top, bottom, measure, measure == "accuracy")
    at = top + 4
    for name, marks in rows.items():
        middle = at + len(marks) * _ROW / 2
        parts.append(label(180, middle + 4, short(name, 26), "end"))
        for one in marks:
            parts.append(_mark(one, x, at + _ROW / 2))
            at += _ROW
        at += 8
        edge = at - 4
        parts.append(
            element("line", x1=20, x2=WIDTH - 20, y1=edge, y2=edge, stroke="currentColor",
                    stroke_opacity=0.12)
        )  # fmt: skip
    there = {one.series for marks in rows.values() for one in marks}
    named = {number: name for number, name in enumerate(series) if number in there}
    said = f"{measure} of {', '.join(named.values())}; {lines}"
    return drawing(bottom + 44, said, [*_legend(named), *parts])


def _mark(one: Mark, x: Axis, at: float) -> str:
    ink = {"stroke": colour(one.series), "stroke_width": 2.5}
    line = ""
    if one.interval is not None:
        low, high = map(x.at, one.interval)
        line = element("line", x1=low, x2=high, y1=at, y2=at, stroke_opacity=0.55, **ink)
    place = x.at(one.value)
    if one.series == 0:
        point = element("circle", cx=place, cy=at, r=5, fill=colour(0))
    elif one.series == 1:
        point = element("circle", cx=place, cy=at, r=4.2, fill="none", **ink)
    else:
        point = element("path", d=f"M{place - 6:g} {at:g}l6 -6l6 6l-6 6z", fill=colour(one.series))
    return element("g", f"<title>{text_of(one.said)}</title>{line}{point}")


def _legend(series: Mapping[int, str]) -> list[str]:
    parts, x = [], 190.0
    for number, name in series.items():
        mark = Mark(number, 0.0, None, name)
        parts.append(_mark(mark, Axis(0, 1, x, x + 1), 12))
        parts.append(label(x + 12, 16, name))
        x += 40 + 7 * len(name)
    return parts


@dataclass(frozen=True)
class Line:
    """A curve and its name."""

    name: str
    points: Points
    interval: Sequence[tuple[float, float]] = ()  # of each point
    marked: bool = False  # whether the points are drawn


def lines_chart(
    lines: Sequence[Line],
    *,
    across: str,
    up: str,
    said: str,
    percent: tuple[bool, bool] = (False, False),
    unit: bool = False,
    logarithmic: bool = False,
    diagonal: bool = False,
    phases: Mapping[str, float] | None = None,
) -> str:
    """Return a chart of curves, half as wide as a page; `unit`: both axes go from 0 to 1."""
    named = lines if len(lines) > 1 else []
    bottom = 270.0
    xs = [a for one in lines for a, _ in one.points]
    ys = [b for one in lines for _, b in one.points]
    ys += [end for one in lines for ends in one.interval for end in ends]
    if unit:
        x, y = Axis(-0.02, 1.02, 56, _HALF - 10), Axis(-0.02, 1.02, bottom, 30)
    else:
        x = replace(Axis.around(xs, 62, _HALF - 10), whole=across == "round")
        y = Axis.around(ys, bottom, 30, logarithmic=logarithmic)
    parts = [
        *across_axis(x, y.stop, y.start, across, percent[0]),
        *up_axis(y, x.start, x.stop, up, percent[1]),
    ]
    if diagonal:
        low, high = (0.0, 1.0) if unit else (min([*xs, *ys]), max([*xs, *ys]))
        low, high = max(low, x.low, y.low), min(high, x.high, y.high)
        parts.append(
            element("line", x1=x.at(low), y1=y.at(low), x2=x.at(high), y2=y.at(high),
                    stroke="currentColor", stroke_opacity=0.45, stroke_dasharray="5 4")
        )  # fmt: skip
    begun = {name: first for name, first in (phases or {}).items() if x.low <= first <= x.high}
    for number, (name, first) in enumerate(begun.items()):
        at = x.at(first)
        ink = {"stroke": "currentColor", "stroke_opacity": 0.45, "stroke_dasharray": "3 4"}
        parts.append(element("line", x1=at, x2=at, y1=y.start, y2=y.stop, **ink))
        right = at > (x.start + x.stop) / 2
        place = at - 4 if right else at + 4, y.stop + 12 + 13 * (number % 4)
        parts.append(label(*place, short(name, 22), "end" if right else "start", font_size=10))
    for number, one in enumerate(lines):
        parts += _curve(one, colour(number), x, y)
    for number, one in enumerate(named):
        at = bottom + 52 + 16 * number
        left = 62
        parts.append(
            element("line", x1=left, x2=left + 18, y1=at, y2=at, stroke=colour(number),
                    stroke_width=3)
        )  # fmt: skip
        parts.append(label(left + 24, at + 4, short(one.name, 44)))
    below = 16 * len(named) + (8 if named else 0)
    return drawing(bottom + 42 + below, said, parts, _HALF)


def _curve(one: Line, ink: str, x: Axis, y: Axis) -> list[str]:
    at = [(x.at(a), y.at(b)) for a, b in one.points]
    parts = []
    for (left, _), ends in zip(at, one.interval, strict=False):
        low, high = map(y.at, ends)
        parts.append(
            element("line", x1=left, x2=left, y1=low, y2=high, stroke=ink, stroke_opacity=0.5,
                    stroke_width=2)
        )  # fmt: skip
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in at)
    parts.append(element("polyline", points=path, fill="none", stroke=ink, stroke_width=2))
    if one.marked or len(at) == 1:
        parts += [element("circle", cx=a, cy=b, r=3, fill=ink) for a, b in at]
    return parts


def points_chart(
    pairs: Mapping[str, tuple[float, float]], across: str, up: str, measure: str, said: str
) -> str:
    """Return a chart with a point for each client: above the dashed line `up` has more."""
    bottom, percent = 270.0, measure == "accuracy"
    values = [one for pair in pairs.values() for one in pair]
    x, y = Axis.around(values, 62, _HALF - 10), Axis.around(values, bottom, 30)
    low, high = min(values), max(values)
    parts = [
        *across_axis(x, y.stop, y.start, short(across, 44), percent),
        *up_axis(y, x.start, x.stop, short(up, 44), percent),
        element("line", x1=x.at(low), y1=y.at(low), x2=x.at(high), y2=y.at(high),
                stroke="currentColor", stroke_opacity=0.45, stroke_dasharray="5 4"),
    ]  # fmt: skip
    for name, (a, b) in pairs.items():
        told = f"{name}: {tick(b, percent)} against {tick(a, percent)}"
        ink = {"fill": colour(0), "fill_opacity": 0.75}
        parts.append(
            element("circle", element("title", text_of(told)), cx=x.at(a), cy=y.at(b), r=4, **ink)
        )
    return drawing(bottom + 42, said, parts, _HALF)


def figure_charts(
    figures: Figures, classes: Sequence[str], positive: str = ""
) -> list[tuple[str, str]]:
    """Return headings and charts of what the figures of a score have to draw.

    `positive` is the class that two classes' curves are of; "": it is not known.
    """
    found = []
    of = f" of “{positive}”" if positive else ""
    if figures.curves:
        names = classes_of_curves(figures, classes)
        lines = [
            Line(names[number] if names else f"curve {number + 1}", _roc(curve))
            for number, curve in enumerate(figures.curves[:_MOST_CURVES])
        ]
        heading = f"ROC{of}{_value(figures, 'auc', 'AUC')}"
        more = len(figures.curves) - len(lines)
        heading += f"; the first {len(lines)} of {len(figures.curves)} classes" if more else ""
        axes = {"across": "false positive rate", "up": "true positive rate", "unit": True}
        found.append((heading, lines_chart(lines, said=heading, diagonal=True, **axes)))  # type: ignore[arg-type]  # of two kinds
    if figures.calibration:
        bins = figures.calibration
        ends = [share_interval(one.share, one.samples) for one in bins]
        points = [(one.probability, one.share) for one in bins]
        heading = f"Calibration{of}{_value(figures, 'calibration_error', 'mean error')}"
        chart = lines_chart(
            [Line("calibration", points, ends, marked=True)],
            across="what the model says (mean probability)",
            up=f"share that is “{short(positive, 20)}”" if positive else "share that comes true",
            said=heading,
            unit=True,
            diagonal=True,
        )
        found.append((heading, chart))
    if figures.predictions:
        points = [(one.predicted, one.actual) for one in figures.predictions]
        heading = f"Predicted and actual{_value(figures, 'rmse', 'RMSE')}"
        chart = lines_chart(
            [Line("predicted", points, marked=True)],
            across="predicted, mean of a range",
            up="actual, mean of the same rows",
            said=heading,
            diagonal=True,
        )
        found.append((heading, chart))
    return found


def _roc(curve: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    above = np.concatenate([np.zeros((1, 2)), np.cumsum(np.array(curve), axis=0)])
    positives, negatives = np.maximum(above[-1], 1e-9)
    return list(
        zip((above[:, 1] / negatives).tolist(), (above[:, 0] / positives).tolist(), strict=True)
    )


def _value(figures: Figures, key: str, name: str) -> str:
    value, ends = getattr(figures, key), figures.intervals.get(key)
    written = figure_text.number
    reach = "" if ends is None else f", 95 % interval {written(ends[0])} to {written(ends[1])}"
    return "" if value is None else f": {name} {written(value)}{reach}"
