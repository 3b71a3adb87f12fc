"""How many threads the libraries compute with during a run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import ThreadpoolController, threadpool_limits

__all__ = ["Limit", "limited"]


class Limit:
    """A number of threads that is for good, and not for as long as something lasts.

    Sites in one process compute at the same time: whoever put back what was before would put it
    back under the others. Torch counts threads for each that calls it: set it in the one that
    computes.

    Parameters
    ----------
    threads
        The number, for linear algebra and torch where they were imported by now.
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
