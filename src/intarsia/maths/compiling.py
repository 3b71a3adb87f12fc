"""How kernels are compiled: by numba, when they are first called, and kept on disk.

numba compiles a kernel anew where its own file has changed, but not where a kernel that it calls
has. What is kept here counts for the sources of all kernels as they are now, so that no version of
the package runs what another one compiled. Where no folder can be written to keep it, neither the
package's nor the user's, every process compiles anew.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import njit

__all__ = ["compiled", "inlined", "reassociated"]

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F, *, reassociate: bool = False, inline: bool = False) -> F:
    """Return a function compiled when it is first called, kept on disk, run without the GIL.

    `reassociate` lets sums be taken in another order, so that dot products use vector
    instructions; NaN and infinity keep their meaning. `inline` puts the code in place where a
    compiled function calls it: a call with arrays takes as long as a product with a short row.
    """
    flags = {"reassoc", "contract", "nsz", "arcp"} if reassociate else False
    compiler = partial(njit, nogil=True, fastmath=flags, forceinline=inline)
    made: Any
    try:
        made = compiler(cache=True)(function)
    except RuntimeError as problem:
        if "no locator available" not in str(problem):  # numba's words where it finds no folder
            raise
        made = compiler()(function)
    kept = getattr(getattr(made, "_cache", None), "_cache_file", None)
    if kept is not None:
        kept._source_stamp = (kept._source_stamp, _sources())
    return cast(F, made)


def reassociated(function: F) -> F:
    """Return a compiled function whose sums may be taken in another order."""
    return compiled(function, reassociate=True)


def inlined(function: F) -> F:
    """Return a compiled function whose code is put in place where it is called."""
    return compiled(function, inline=True)


@cache
def _sources() -> int:
    """Return a checksum of the modules beside this one, which hold all kernels."""
    found = 0
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        found = zlib.crc32(path.read_bytes(), found)
    return found
