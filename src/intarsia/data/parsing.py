"""Parse numbers, and spell categories and classes alike that files write differently."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_NUMBERED = re.compile(r"(.*?)(0|[1-9][0-9]*)")
_LEADING_ZERO = re.compile(r"[+-]?0\d")


def number(text: str) -> float | None:
    """Return the number that a text says, or None; "nan" and "inf" are numbers."""
    if _NUMBER.fullmatch(text):
        return float(text)
    bare = text.lower().lstrip("+-")
    return float(text) if bare in ("nan", "inf", "infinity") else None


def canonical(text: str) -> str:
    """Return a category or class as text that does not depend on the file's number format.

    "1.0", "+1" and "1" are "1"; "True" is "true"; "01" stays, since it may be a code.
    """
    text = text.strip()
    if text.lower() in ("true", "false"):
        return text.lower()
    value = number(text)
    if value is None or not math.isfinite(value) or _LEADING_ZERO.match(text):
        return text
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(value)


def ascending(texts: Iterable[str]) -> tuple[str, ...]:
    """Return texts in ascending order, by number where all are numbers."""
    values = {text: number(text) for text in texts}
    if all(value is not None for value in values.values()):
        return tuple(sorted(values, key=lambda text: (values[text] or 0.0, text)))
    return tuple(sorted(values))


def numbered(names: Iterable[str]) -> dict[str, int] | None:
    """Return the number that each name is, or ends in after the same letters; None: not all do.

    Such are the names that columns get which have none of their own: 1, 2, … or x0, x1, …
    """
    found = {name: _NUMBERED.fullmatch(name) for name in names}
    if None in found.values() or len({one[1] for one in found.values() if one}) > 1:
        return None
    return {name: int(one[2]) for name, one in found.items() if one}
