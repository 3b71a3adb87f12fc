"""Parts of an error sentence: the nearest valid name, names in a list, a library's own words."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["first_line", "listed", "nearest", "shortened"]


def first_line(error: BaseException) -> str:
    """Return the first line of a library's message, without the period at its end."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__).strip().rstrip(".")[:160]


def listed(names: Iterable[str], most: int = 12) -> str:
    """Return names in quotes with commas; beyond `most` names, the first of them and a count."""
    known = list(names)
    shown = ", ".join(repr(name) for name in known[:most])
    return f"{shown} and {len(known) - most} more" if len(known) > most else shown


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return the advice that ends an error about `name`: the nearest valid name, or all of them.

    All are up to 16, as many as a table of the experiment file has keys.
    """
    known = [str(one) for one in valid]
    shown = listed(known, 16)
    if not known:
        return "remove it"
    lowered = {one.lower(): one for one in reversed(known)}
    close = difflib.get_close_matches(name.lower(), list(lowered), n=1, cutoff=0.55)
    if close:
        return f"use {lowered[close[0]]!r} (the nearest of {shown})"
    return f"use one of {shown}"


def shortened(text: str | None, most: int = 80) -> str:
    """Return the start of a text in quotes, on one line."""
    return repr(" ".join((text or "").split())[:most])
