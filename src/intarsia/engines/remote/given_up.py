"""Give up what an engine's library does for ever, such as asking a server that is not there."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any


def within(seconds: float, act: Callable[[], Any]) -> Any:
    """Return what something comes to; TimeoutError: it takes longer, and is left to itself."""
    found: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def run() -> None:
        try:
            found.put((act(), None))
        except BaseException as problem:
            found.put((None, problem))

    threading.Thread(target=run, name="asks a library", daemon=True).start()
    try:
        answer, problem = found.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no answer after {seconds:g} seconds") from None
    if problem is not None:
        raise problem
    return answer
