"""Write figures as text: with four digits, in per cent, in bytes, as a length of time."""

from __future__ import annotations

import math


def number(value: float | None) -> str:
    """Return a figure with four significant digits."""
    if value is None or math.isnan(value):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def percent(fraction: float) -> str:
    """Return a fraction in per cent, with two digits."""
    return f"{100 * fraction:.2f} %"


def gap(value: float | None) -> str:
    """Return a relative gap with two digits; rounding may take one below 0, where it is 0."""
    return "–" if value is None else f"{value:.1e}" if value > 0 else "0"


def size(count: float) -> str:
    """Return a number of bytes in a unit that suits it (1 kB = 1000 bytes)."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def duration(seconds: float | None) -> str:
    """Return a length of time: "0.42 s", "12 s", "3:05 min", "2:10 h"."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    if seconds < 10:
        return f"{seconds:.2g} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02} h"
