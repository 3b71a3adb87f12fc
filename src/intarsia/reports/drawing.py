"""Scalable drawings (SVG) inside a page: escaped text, axes with ticks, colours of light and dark.

Text takes the page's colour. Every drawing says in words what it shows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from typing import Any

from matplotlib.colors import to_hex
from matplotlib.ticker import LogLocator, MaxNLocator

from intarsia.errors import printable
from intarsia.plots.style import COLOURS, Colour, distinct_colours, tick_text

WIDTH = 760  # pixels of a drawing, before it is fitted to the page
_LEAST = 0.75  # of it, on a narrow screen: there it scrolls, and letters can be read
_GRID = {"stroke": "currentColor", "stroke_opacity": 0.15}


def colour(number: int, of: int = 0) -> str:
    """Return a colour for what has this number; they repeat after eight, or of more as many."""
    if of <= len(COLOURS):
        return COLOURS[number % len(COLOURS)]
    return to_hex(_colours(of)[number % of])


@cache
def _colours(many: int) -> list[Colour]:
    return distinct_colours(many)


def drawing(height: float, title: str, parts: Sequence[str], width: float = WIDTH) -> str:
    """Return a drawing of some parts; its title says what it shows."""
    said = text_of(title)
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" width="{width:g}" role="img" '
        f'aria-label="{said}" style="width:100%;min-width:{_LEAST * width:g}px;'
        f'max-width:{1.15 * width:g}px;height:auto;font:12px system-ui,sans-serif">'
        f"<title>{said}</title>{''.join(parts)}</svg>"
    )


def text_of(text: object) -> str:
    """Return text as it may stand in a page."""
    return escape(printable(str(text)))


def short(name: str, most: int) -> str:
    """Return a name, cut where it is longer than so many letters."""
    return name if len(name) <= most else f"{name[: most - 1]}…"


def element(name: str, inside: str = "", /, **attributes: Any) -> str:
    """Return one element; `_` in the name of an attribute stands for `-`."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_attribute(value)}"'
        for key, value in attributes.items()
    )
    return f"<{name}{given}>{inside}</{name}>" if inside else f"<{name}{given}/>"


def label(x: float, y: float, text: object, anchor: str = "start", **attributes: Any) -> str:
    """Return text at a place, in the page's colour."""
    settings = {"fill": "currentColor", "text_anchor": anchor} | attributes
    return element("text", text_of(text), x=x, y=y, **settings)


def _attribute(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else text_of(value)


@dataclass(frozen=True)
class Axis:
    """Numbers from `low` to `high` along pixels from `start` to `stop`."""

    low: float
    high: float
    start: float
    stop: float
    logarithmic: bool = False
    whole: bool = False  # whether ticks are whole numbers

    @classmethod
    def around(
        cls, values: Sequence[float], start: float, stop: float, *, logarithmic: bool = False
    ) -> Axis:
        """Return an axis that holds some values with a little room."""
        if logarithmic:
            low, high = (math.log10(end(values)) for end in (min, max))
            room = 0.05 * (high - low) or 0.5
            return cls(10 ** (low - room), 10 ** (high + room), start, stop, True)
        low, high = min(values), max(values)
        room = 0.05 * (high - low) or abs(low) * 0.05 or 1.0
        return cls(low - room, high + room, start, stop)

    def at(self, value: float) -> float:
        """Return the pixel of a value."""
        if self.logarithmic:
            low, high, value = math.log10(self.low), math.log10(self.high), math.log10(value)
        else:
            low, high = self.low, self.high
        return self.start + (value - low) / (high - low) * (self.stop - self.start)

    def ticks(self) -> Iterator[float]:
        """Yield round values on the axis."""
        locator = (
            LogLocator(numticks=7)
            if self.logarithmic
            else MaxNLocator(6, steps=[1, 2, 2.5, 5, 10], integer=self.whole)
        )
        for value in locator.tick_values(self.low, self.high):
            if self.low <= value <= self.high:
                yield float(value)


def across_axis(x: Axis, top: float, bottom: float, name: str, percent: bool) -> list[str]:
    """Return grid lines, ticks and the name of an axis that goes across."""
    parts = []
    for value in x.ticks():
        at = x.at(value)
        parts.append(element("line", x1=at, x2=at, y1=top, y2=bottom, **_GRID))
        parts.append(label(at, bottom + 16, tick(value, percent), "middle"))
    return [*parts, label((x.start + x.stop) / 2, bottom + 34, name, "middle")]


def up_axis(y: Axis, left: float, right: float, name: str, percent: bool) -> list[str]:
    """Return grid lines, ticks and the name of an axis that goes up."""
    parts = []
    for value in y.ticks():
        at = y.at(value)
        parts.append(element("line", x1=left, x2=right, y1=at, y2=at, **_GRID))
        parts.append(label(left - 6, at + 4, tick(value, percent), "end"))
    return [*parts, label(left, y.stop - 10, name)]


def tick(value: float, percent: bool = False) -> str:
    """Return a value as an axis has it."""
    return f"{100 * value:.4g} %" if percent else tick_text(value)
