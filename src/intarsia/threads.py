"""How many threads the libraries compute with during a run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import threadpool_limits

__all__ = ["limited"]


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
