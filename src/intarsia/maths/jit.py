"""Rows of a sparse table asked for before their turn.

Kernels that go over rows in a random order would wait for memory at the start of each row: the
processor foresees what follows within a row, but not which row is next. Asking for the row that is
a few turns ahead makes dual ascent on rows of text two to three times as fast.

How kernels are compiled: by numba, when they are first called, and kept on disk.

numba compiles a kernel anew where its own file has changed, but not where a kernel that it calls
has. What is kept here counts for the sources of all kernels as they are now, so that no version of
the package runs what another one compiled. Where no folder can be written to keep it, neither the
package's nor the user's, every process compiles anew, and a warning says so once.
"""

from __future__ import annotations

import os
import warnings
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar, cast

from llvmlite import ir
from numba import njit, types
from numba.core import caching, cgutils, event
from numba.extending import intrinsic

_AHEAD = 3  # rows
_LINE = 64  # bytes
_WORD, _NUMBER = ir.IntType(64), ir.IntType(32)
_POINTER = ir.IntType(8).as_pointer()


def _ask(_: Any, x: Any, rows: Any, turn: Any) -> Any:
    """Ask for the row whose turn is soon; for use in compiled functions.

    Its code is put in place: as a function, which counts references to its arguments, it would
    take longer than the product with a short row.

    Parameters
    ----------
    x
        The data, indices and indptr of a table in CSR; of a dense one there is nothing to ask for.
    rows
        Row numbers in the order in which they are read.
    turn
        The place in `rows` of the row that is read now.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if isinstance(x, types.Array):
            return context.get_dummy_value()
        kinds = (*x.types, rows)
        given = [builder.extract_value(arguments[0], at) for at in range(3)] + [arguments[1]]
        arrays = [
            context.make_array(kind)(context, builder, argument)
            for kind, argument in zip(kinds, given, strict=True)
        ]
        insert: Any = cgutils.get_or_insert_function
        shape = ir.FunctionType(ir.VoidType(), [_POINTER, _NUMBER, _NUMBER, _NUMBER])
        ask = insert(builder.module, shape, "llvm.prefetch.p0")
        entry_of: Any = cgutils.get_item_pointer

        def entry(which: int, place: Any) -> Any:
            found = (kinds[which], arrays[which], [place])
            return entry_of(context, builder, *found, wraparound=False)

        def number(which: int, place: Any) -> Any:
            return builder.sext(builder.load(entry(which, place)), _WORD)

        def ask_for(which: int, place: Any) -> None:
            # to read; to keep as near as can be; data
            way = [_NUMBER(0), _NUMBER(3), _NUMBER(1)]
            builder.call(ask, [builder.bitcast(entry(which, place), _POINTER), *way])

        now = context.cast(builder, arguments[2], turn, types.intp)
        there = builder.add(now, _WORD(_AHEAD))
        with builder.if_then(builder.icmp_signed("<", there, arrays[3].nitems)):
            row = number(3, there)
            start, stop = number(2, row), number(2, builder.add(row, _WORD(1)))
            for which in (0, 1):
                ask_for(which, start)
            # loops of one turn would cost more than they save
            long = builder.icmp_signed(">", builder.sub(stop, start), _WORD(_LINE // 4))
            with builder.if_then(long):
                for which in (0, 1):
                    step = _WORD(_LINE // (kinds[which].dtype.bitwidth // 8))
                    first = builder.add(start, step)
                    with cgutils.for_range_slice(builder, first, stop, step, _WORD) as (place, _):
                        ask_for(which, place)
        return context.get_dummy_value()

    return types.void(x, rows, turn), generate


ask_for_row: Any = intrinsic(_ask)


F = TypeVar("F", bound=Callable[..., Any])


def _absolute(own: Any) -> str:
    """Return where numba would keep a user's kernels; OSError where the user has no home.

    It would be a folder "~" where the process happens to work, such as in a kit, and what anybody
    had put there would be run.
    """
    found = str(own._cache_path)
    if not Path(found).is_absolute():
        raise OSError(f"{found} is no place in a home")
    return found


try:
    _user_wide: Any = caching.UserWideCacheLocator
except AttributeError:  # numba before 0.62
    _user_wide = caching._UserWideCacheLocator  # type: ignore[attr-defined]
_user_wide.get_cache_path = _absolute


def compiled(
    function: F, *, reassociate: bool = False, inline: bool = False, early: bool = False
) -> F:
    """Return a function compiled when it is first called, kept on disk, run without the GIL.

    `reassociate` lets sums be taken in another order, so that dot products use vector
    instructions; NaN and infinity keep their meaning. `inline` puts the code in place where a
    compiled function calls it: a call with arrays takes as long as a product with a short row.
    `early` does so before types are known, and so compiles it in its callers alone: a first run
    waits less. Loops over entries come out slower that way.

    What may reassociate is always put in place. A callee of its own would exist twice, by itself
    and in its caller, with other orders of sums, and which of the two a process runs would hang on
    what it loads first: the bits of a first run, which compiles, would not be those of a second.
    """
    flags = {"reassoc", "contract", "nsz", "arcp"} if reassociate else False
    way = {"inline": "always"} if early else {"forceinline": inline or reassociate}
    compiler = partial(njit, nogil=True, fastmath=flags, **way)
    made: Any
    try:
        made = compiler(cache=True)(function)
    except RuntimeError as problem:
        if "no locator available" not in str(problem):  # numba's words where it finds no folder
            raise
        _warn_uncached()
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


def inlined_early(function: F) -> F:
    """Return a compiled function whose code is put in place before types are known."""
    return compiled(function, early=True)


def is_missing(kernel: Callable[..., Any]) -> bool:
    """Return whether no code of a kernel is kept on disk, and what is compiled would be."""
    kept = getattr(getattr(kernel, "_cache", None), "_cache_file", None)
    return kept is not None and not kept._load_index()


def compiling_told(told: Callable[[], object]) -> AbstractContextManager[object]:
    """Return what calls `told` once, when this process compiles a kernel while it lasts."""
    return event.install_listener("numba:compile", _OnCompiling(told))


class _OnCompiling(event.Listener):
    """Calls a function when the first kernel is compiled; one that was kept is only loaded."""

    def __init__(self, told: Callable[[], object]) -> None:
        self._told: Callable[[], object] | None = told
        self._process = os.getpid()  # and no fork of it, which would say the same once more

    def on_start(self, _: object) -> None:
        told, self._told = self._told, None
        if told is not None and os.getpid() == self._process:
            told()

    def on_end(self, _: object) -> None:
        """Do nothing."""


def cache_folder() -> str | None:
    """Return the folder in which this module's kernels would be kept; None: nowhere."""
    try:
        probe: Any = njit(cache=True)(_ahead)
    except RuntimeError:
        return None
    return str(probe.stats.cache_path)


def _ahead() -> int:
    return _AHEAD


@cache
def _warn_uncached() -> None:
    """Say once that nothing is kept."""
    warnings.warn(
        "No folder can be written that keeps compiled kernels, so that every process compiles them "
        "anew, which takes seconds; set NUMBA_CACHE_DIR to a folder that you may write.",
        stacklevel=2,
    )


@cache
def _sources() -> int:
    """Return a checksum of the modules beside this one, which hold all kernels."""
    found = 0
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        found = zlib.crc32(path.read_bytes(), found)
    return found
