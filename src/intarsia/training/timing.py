"""Seconds by part of a run; a part inside another is not counted in it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

__all__ = ["Clock"]


class Clock:
    """Adds up seconds by part: those of the innermost part that is open.

    Parameters
    ----------
    seconds
        What was spent before, by part.
    """

    def __init__(self, seconds: Mapping[str, float] | None = None) -> None:
        self._seconds = dict(seconds or {})
        self._open: list[str] = []
        self._since = 0.0

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the time inside towards a part, and not towards the part around it."""
        self._settle()
        self._open.append(name)
        try:
            yield
        finally:
            self._settle()
            self._open.pop()

    def add(self, seconds: Mapping[str, float]) -> None:
        """Add what was spent before, by part."""
        for name, spent in seconds.items():
            self._seconds[name] = self._seconds.get(name, 0.0) + spent

    @property
    def seconds(self) -> dict[str, float]:
        """Return the seconds so far, by part in the order of first use."""
        self._settle()
        return dict(self._seconds)

    def _settle(self) -> None:
        now = time.perf_counter()
        if self._open:
            self.add({self._open[-1]: now - self._since})
        self._since = now
