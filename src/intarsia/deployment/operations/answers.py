"""Which sites of a server answer, asked now and again: a site that is cut off takes seconds."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator
from typing import Final

from intarsia.core.block import ClientId

_PAUSE: Final = 15.0  # seconds between questions to all sites


class Answers:
    """Knows which sites answered when they were asked last.

    Parameters
    ----------
    ask
        Returns the sites that answer now; OSError where the server is not there.
    """

    def __init__(self, ask: Callable[[], Collection[ClientId]]) -> None:
        self._ask = ask
        self._there: Collection[ClientId] | None = None

    def known(self) -> Collection[ClientId] | None:
        """Return the sites that answered when they were asked last; None: it is not known."""
        return self._there

    def look(self) -> None:
        """Ask which sites are there."""
        try:
            self._there = self._ask()
        except OSError:
            self._there = None

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """Ask again and again, in a thread of its own, while something else is done."""
        stop = threading.Event()
        thread = threading.Thread(target=self._keep_asking, args=(stop,), name="asks sites")
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _keep_asking(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self.look()
            stop.wait(_PAUSE)
