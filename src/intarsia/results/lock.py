"""Lock a folder for one process, until it gives the lock back or dies."""

from __future__ import annotations

import fcntl
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from intarsia.core.files.atomic_files import is_still
from intarsia.errors import BusyError

_LONGEST: Final = 2.0  # seconds in which whoever works there may come to an end


@contextmanager
def alone(lock: Path, sentence: str) -> Iterator[None]:
    """Hold a lock, which is a file that stays when it is given back and says nothing by itself.

    Where the file system has no locks a warning says so, and nothing is held.

    Raises
    ------
    BusyError
        With the sentence, if another process holds it and does not come to an end.
    """
    end = time.monotonic() + _LONGEST
    while True:
        with _open(lock) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > end:
                    raise BusyError(sentence) from None
            except OSError as problem:
                warnings.warn(
                    f"{lock}: the file system has no locks ({problem.strerror}); see to it that "
                    "one process at a time works there.",
                    stacklevel=3,
                )
                yield
                return
            else:
                try:
                    if is_still(file, lock):
                        yield
                        return
                finally:
                    # forks of this process have the file open too, and may be there for longer
                    fcntl.flock(file, fcntl.LOCK_UN)
        time.sleep(0.02)


def _open(lock: Path) -> IO[bytes]:
    """Return the file to lock; one of another user's can be locked without writing."""
    try:
        return lock.open("ab")
    except PermissionError:
        if not lock.exists():  # the folder is another user's
            raise
        return lock.open("rb")
