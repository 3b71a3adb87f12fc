"""Measure the seconds of a run by part, and limit its threads."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from threadpoolctl import ThreadpoolController, threadpool_limits


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


class Limit:
    """A number of threads of linear algebra and torch, where they were imported, that is for good.

    Sites in one process compute at the same time: whoever put back what was before would put it
    back under the others. Torch counts threads for each that calls it: set it in the one that
    computes.
    """

    def __init__(self, threads: int) -> None:
        self._threads, self._libraries = threads, ThreadpoolController()  # finding them takes 5 ms

    def set(self) -> None:
        """Compute with so many threads from here on."""
        if (torch := sys.modules.get("torch")) is not None:
            torch.set_num_threads(self._threads)
        self._libraries.limit(limits=self._threads, user_api="blas")


@contextmanager
def limited(threads: int) -> Iterator[None]:
    """Let linear algebra, and torch where it was imported, compute with so many threads.

    Several make products of a client's size slower, and their number shows in the bits.
    """
    torch = sys.modules.get("torch")
    before = None if torch is None else torch.get_num_threads()
    try:
        if torch is not None:
            torch.set_num_threads(threads)
        with threadpool_limits(limits=threads, user_api="blas"):
            yield
    finally:
        if torch is not None:
            torch.set_num_threads(before)
