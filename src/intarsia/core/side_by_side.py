"""The same for several clients side by side, in threads, to the same bits.

NumPy, Arrow and compiled kernels let other threads compute while they go over large arrays. What is
made of small ones would only hold the others up, and is made by the thread that asks.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from intarsia.core.memory import folder_of

A = TypeVar("A")
B = TypeVar("B")
_LARGE = 1 << 22  # bytes of a table


def cores() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def is_large(x: Any) -> bool:
    """Return whether a thread pays for what is made of a table's values.

    It does not for a table on disk: there is no room in memory for several at once.
    """
    held = getattr(x, "values", x)  # of unwritten rows
    return held.data.nbytes >= _LARGE and folder_of(x) is None


def side_by_side(
    do: Callable[[A], B], given: Sequence[A], threads: int, large: Callable[[A], bool]
) -> list[B]:
    """Return what is made of each, in order, those that are large by so many threads.

    The error is that of the first that fails, in this order; after it, as after Ctrl-C, nothing
    more is begun. A fork computes beside others, and takes no threads.
    """
    marks = [large(one) for one in given]
    if threads < 2 or sum(marks) < 2 or multiprocessing.current_process().daemon:
        return [do(one) for one in given]
    pool = ThreadPoolExecutor(threads)
    try:
        waiting = pool.map(do, [one for one, mark in zip(given, marks, strict=True) if mark])
        return [next(waiting) if mark else do(one) for one, mark in zip(given, marks, strict=True)]
    finally:
        pool.shutdown(cancel_futures=True)
