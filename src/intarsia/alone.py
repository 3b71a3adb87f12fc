"""One process at a time in a folder, by a lock that the system ends where its holder dies."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from intarsia.errors import BusyError

__all__ = ["alone"]

_LONGEST: Final = 2.0  # seconds in which whoever works there may come to an end


@contextmanager
def alone(lock: Path, sentence: str) -> Iterator[None]:
    """Hold a lock, which is a file that stays when it is given back and says nothing by itself.

    Raises
    ------
    BusyError
        With the sentence, if another process holds it and does not come to an end.
    """
    end = time.monotonic() + _LONGEST
    with lock.open("wb") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise BusyError(sentence) from None
            time.sleep(0.02)
        yield
