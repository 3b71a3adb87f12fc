"""Give memory back to the system that was freed, and that allocators keep for what comes next."""

from __future__ import annotations

import ctypes
import sys


def give_back() -> None:
    """Give back what Arrow and the C library hold of freed memory; it takes milliseconds.

    For the ends of large steps: what a reader left there would stand beside what training takes.
    """
    if (arrow := sys.modules.get("pyarrow")) is not None:
        arrow.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc alone
    if trim is not None:
        trim(0)
