"""The same for several clients side by side, in threads, to the same bits.

NumPy, Arrow and compiled kernels let other threads compute while they go over large arrays. What is
made of small ones would only hold the others up, and is made by the thread that asks.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import islice
from typing import Any, TypeVar

from intarsia.core.memory import folder_of

A = TypeVar("A")
B = TypeVar("B")
_LARGE = 1 << 22  # bytes of a table
_LOOKS = 0.2  # seconds between two looks whether a call is still waited for
_HERE = threading.local()  # `unwanted`: an event, in a thread of `side_by_side`


def cores() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def in_fork() -> bool:
    """Return whether this process is one of several that compute beside each other."""
    return multiprocessing.current_process().daemon


def is_large(x: Any) -> bool:
    """Return whether a thread pays for what is made of a table's values.

    It does not for a table on disk: there is no room in memory for several at once.
    """
    held = getattr(x, "values", x)  # of unwritten rows
    return held.data.nbytes >= _LARGE and folder_of(x) is None


class Threads:
    """Threads that are there for many short calls: to begin one takes half a millisecond."""

    def __init__(self, count: int) -> None:
        self._count, self._pool = count, ThreadPoolExecutor(count)

    def in_turn(self, jobs: Iterable[Callable[[], B]]) -> Generator[B]:
        """Yield what jobs return, in order, while the next ones are at work.

        One more than there are threads is begun and not yet taken, so that few results are there at
        once. The error is that of the first that fails, in this order; after it, as after Ctrl-C,
        nothing more is begun.
        """
        waiting, coming = deque[Future[B]](), iter(jobs)
        try:
            while True:
                for job in islice(coming, self._count + 1 - len(waiting)):
                    waiting.append(self._pool.submit(job))
                if not waiting:
                    return
                yield waiting.popleft().result()
        finally:
            for one in waiting:
                one.cancel()
            wait(waiting)  # for those that are at work


def side_by_side(
    do: Callable[[A], B], given: Sequence[A], threads: int, large: Callable[[A], bool]
) -> list[B]:
    """Return what is made of each, in order, those that are large by so many threads.

    The error is that of the first that fails, in this order; after it, as after Ctrl-C, nothing
    more is begun. A fork takes no threads.
    """
    marks = [large(one) for one in given]
    if threads < 2 or sum(marks) < 2 or in_fork():
        return [do(one) for one in given]
    unwanted = threading.Event()
    pool = ThreadPoolExecutor(threads, initializer=setattr, initargs=(_HERE, "unwanted", unwanted))
    try:
        waiting = pool.map(do, [one for one, mark in zip(given, marks, strict=True) if mark])
        return [next(waiting) if mark else do(one) for one, mark in zip(given, marks, strict=True)]
    finally:
        unwanted.set()
        pool.shutdown(cancel_futures=True)


def interruptible(do: Callable[[], B], interrupt: Callable[[], None]) -> B:
    """Return what a call of a library gives that does not end by Ctrl-C, but by `interrupt`.

    Another thread makes it. It is interrupted where the error of a signal comes, and in a thread of
    `side_by_side` when that ends.
    """
    unwanted: threading.Event | None = getattr(_HERE, "unwanted", None)
    begin: Future[bool] = Future()
    made: Future[B | None] | None = None
    with ThreadPoolExecutor(1) as pool:
        try:
            made = pool.submit(lambda: do() if begin.result() else None)
            begin.set_result(True)
            while not wait([made], _LOOKS).done and not (unwanted and unwanted.is_set()):
                pass
        finally:
            if not begin.done():  # the error came before the thread was there
                begin.set_result(False)
            while made is not None and not made.done():  # before it begins nothing is interrupted
                interrupt()
                wait([made], _LOOKS)
        found: Any = made.result()
        return found  # type: ignore[no-any-return]
