"""Memory: how much is free, arrays that lie on disk instead, and giving back what was freed.

An array on disk is an ordinary array over a file without a name. The system keeps as much of it in
memory as there is room for, and removes the file when the array goes, or the process, however it
ends. What is made of such an array lies on disk, too, in the same folder (`made_like`).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from intarsia.errors import ExperimentError

_PIECE = 2**17  # values that are worked on at once: they stay in the processor's cache


class _Mapped(mmap.mmap):
    """A file's content in memory; `folder` is where the file lies."""

    folder: Path


def new_array(shape: tuple[int, ...], folder: Path | None, kind: Any = np.float64) -> NDArray[Any]:
    """Return an array of zeros in memory or, with a folder, on its disk.

    Raises
    ------
    ExperimentError
        If the disk has no room for it, or the folder takes no files.
    """
    size = int(np.prod(shape)) * np.dtype(kind).itemsize
    if folder is None or not size:
        return np.zeros(shape, kind)
    try:
        with tempfile.TemporaryFile(dir=folder, prefix="intarsia-") as file:
            reserve(file.fileno(), 0, size)
            mapped = _Mapped(file.fileno(), size)
    except OSError as error:
        raise ExperimentError(
            f"{size / 1e9:.3g} GB of a table do not fit into memory as [experiment] memory says, "
            f"and cannot be kept in {folder} ({error.strerror}); free disk space there, choose "
            "another output folder with --out, or set memory higher."
        ) from error
    mapped.folder = folder
    return np.ndarray(shape, kind, mapped)


def reserve(file: int, begin: int, size: int) -> None:
    """Reserve room in a file: writing to mapped memory that has none ends a process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, begin, size)
        return
    for start in range(begin, begin + size, 1 << 20):
        os.pwrite(file, bytes(min(1 << 20, begin + size - start)), start)


def folder_of(array: Any) -> Path | None:
    """Return the folder on whose disk an array lies, or the values of a sparse one; None: none."""
    base = array.data if isinstance(array, csr_array) else getattr(array, "values", array)
    while isinstance(base, np.ndarray):
        base = base.base
    return base.folder if isinstance(base, _Mapped) else None


def made_like(array: Any, shape: tuple[int, ...], kind: Any = np.float64) -> NDArray[Any]:
    """Return an array of zeros that lies where another does."""
    return new_array(shape, folder_of(array), kind)


def kept(x: Any, folder: Path) -> Any:
    """Return an array, or a CSR array, on the disk of a folder."""
    if isinstance(x, csr_array):
        return csr_array((kept(x.data, folder), kept(x.indices, folder), x.indptr), shape=x.shape)
    found = new_array(x.shape, folder, x.dtype)
    for rows in slices(len(x), x.size):
        found[rows] = x[rows]
    return found


def slices(rows: int, values: int) -> Iterator[slice]:
    """Return slices of rows, of a table of so many values, that are worked on at once."""
    step = max(1, _PIECE * rows // max(values, 1))
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


@dataclass(frozen=True, eq=False)
class Entries:
    """Some rows of a CSR array, in its own arrays: scipy would copy what is much smaller."""

    data: NDArray[Any]
    indices: NDArray[Any]
    indptr: NDArray[Any]  # (rows + 1,) from 0


class Unwritten(Protocol):
    """The rows of a sparse table that are made of less when they are asked for."""

    values: NDArray[np.float64]  # that they are made of, beside what is small
    indptr: NDArray[Any]  # (rows + 1,) where the entries of each row begin and end

    @property
    def shape(self) -> tuple[int, int]:
        """Return (rows, features)."""
        ...

    def take(self, rows: NDArray[np.intp]) -> Unwritten:
        """Return some rows, by position, which are not written either."""
        ...

    def pieces(self) -> Iterator[tuple[slice, Entries]]:
        """Return all rows some at a time, each where the ones before were."""
        ...

    def missing(self) -> NDArray[np.intp]:
        """Return how many rows lack a value of each feature, (features,)."""
        ...

    def written(self, columns: NDArray[np.intp] | None = None, *, ones: bool = False) -> csr_array:
        """Return all rows, with the features of some positions in their order (None: all).

        With `ones` there is a last feature, a constant 1, before they are chosen.
        """
        ...


def pieces(x: Any) -> Iterator[tuple[slice, Any]]:
    """Return a table's rows some at a time, without a copy of them: which, and their values.

    Those of a CSR array are `Entries`, and so are those of `Unwritten` rows, which are written one
    over the other. What is computed by pieces comes to the same bits wherever the table lies.
    """
    sparse = isinstance(x, csr_array)
    if not sparse and not isinstance(x, np.ndarray):
        yield from x.pieces()
        return
    for rows in slices(x.shape[0], x.nnz if sparse else x.size):
        if not sparse:
            yield rows, x[rows]
            continue
        start, stop = x.indptr[rows.start], x.indptr[rows.stop]
        stops = x.indptr[rows.start : rows.stop + 1] - start
        yield rows, Entries(x.data[start:stop], x.indices[start:stop], stops)


def give_back() -> None:
    """Give back what Arrow and the C library hold of freed memory; it takes milliseconds.

    For the ends of large steps: what a reader left there would stand beside what training takes.
    """
    if (arrow := sys.modules.get("pyarrow")) is not None:
        arrow.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc alone
    if trim is not None:
        trim(0)


def keep_freed() -> None:
    """Let the C library keep some of what is freed, for what comes next.

    Left to itself it gives arrays of a few megabytes back at once, and to take each anew costs more
    than most of what is computed with it: the system clears every page. What is kept lies in one
    heap, for all threads: in one for each, as by default, what one frees would be of no use to
    another. Where the system limits what a process maps, holes in the heap count, too, and little
    is kept.
    """
    choose = getattr(ctypes.CDLL(None), "mallopt", None)  # of glibc alone
    if choose is not None:
        limits = (resource.getrlimit(one)[0] for one in (resource.RLIMIT_DATA, resource.RLIMIT_AS))
        limited = any(one != resource.RLIM_INFINITY for one in limits)
        choose(_MMAP_THRESHOLD, _KEPT_ARRAY // 32 if limited else _KEPT_ARRAY)
        choose(_TRIM_THRESHOLD, _KEPT_AT_MOST // 32 if limited else _KEPT_AT_MOST)
        choose(_ARENA_MAX, 1)


_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # as malloc.h numbers them
_KEPT_ARRAY = 1 << 25  # bytes of an array that is kept: more than this the library does not take
_KEPT_AT_MOST = 1 << 27  # bytes at the end of what it holds


def free_memory() -> int | None:
    """Return how many bytes this process may still take, of the machine and of its group's limit.

    None: the system does not tell (it is not Linux).
    """
    told = Path("/proc/meminfo")
    if not told.is_file():
        return None
    lines = (line.split() for line in told.read_text().splitlines())
    free = next((int(words[1]) * 1024 for words in lines if words[0] == "MemAvailable:"), None)
    found = [] if free is None else [free]
    for limit, used, counted, key in _GROUPS:
        try:
            lines = (line.split() for line in counted.read_text().splitlines())
            files = next((int(words[1]) for words in lines if words[0] == key), 0)
            found.append(int(limit.read_text()) - int(used.read_text()) + files)
        except (OSError, ValueError):  # there is none, or no limit ("max")
            continue
    return max(0, min(found)) if found else None


def disk_for(size: float, place: Path, memory: int | None = None) -> Path | None:
    """Return a folder for what takes more than there is memory, beside the libraries; None: less.

    It is the one in which a place is, or will be made; `memory` is what may be taken, or None: what
    is free.
    """
    memory = free_memory() if memory is None else memory
    if memory is None or LIBRARIES + size <= memory:
        return None
    return next((one for one in (place, *place.parents) if one.is_dir()), None)


LIBRARIES = 400e6  # bytes that a process takes with none of its tables

_CGROUP = Path("/sys/fs/cgroup")
_FIRST = _CGROUP / "memory"
# of a container, in either version of control groups: its limit, what counts towards it, and where
# it stands under which name what of that the system drops when memory is short
_GROUPS = (
    (
        *(_CGROUP / "memory.max", _CGROUP / "memory.current", _CGROUP / "memory.stat"),
        "inactive_file",
    ),
    (
        *(_FIRST / "memory.limit_in_bytes", _FIRST / "memory.usage_in_bytes"),
        *(_FIRST / "memory.stat", "total_inactive_file"),
    ),
)
