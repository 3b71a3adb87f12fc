"""Read the libsvm text format: one sample a line, `label index:value …`, indices ascending.

A feature is named by its index as written: "1" to "M", or "0" to "M" in a file that counts from 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as arrow
from numpy.typing import NDArray
from scipy.sparse import csr_array

from intarsia.core.memory import new_array
from intarsia.data.formats.pieces import Opened, gathered, parts_of
from intarsia.errors import TableError

_INDICES = 2**31  # the kernels have column numbers of 32 bits
# Every index up to the largest is a feature, with a name of 60 bytes: a mistaken index would take
# all memory. The widest public sets have 55 million, and far more entries.
_ALWAYS = 20_000_000
_PER_ENTRY = 100
_FORM = "`label index:value …`"


_ENTRIES = pa.schema([("column", pa.int32()), ("value", pa.float64())])


def parse_libsvm(
    opened: Opened, where: str, folder: Path | None = None
) -> tuple[csr_array, NDArray[np.float64], tuple[str, ...]]:
    """Return values (samples, features), labels (samples,) and names; `#` starts a comment.

    With a folder the values lie on its disk.
    """
    labels: list[NDArray[np.float64]] = []
    sizes: list[NDArray[np.intp]] = []

    def batches() -> Iterator[pa.RecordBatch]:
        line = 1
        for some in _whole_lines(opened):
            lines = some.splitlines()
            columns, values, y, size = _parsed(lines, line, where)
            line += len(lines)
            labels.append(y)
            sizes.append(size)
            yield pa.RecordBatch.from_arrays([columns, values], schema=_ENTRIES)

    entries = gathered(_ENTRIES, batches(), folder)
    y = np.concatenate(labels) if labels else np.zeros(0)
    if not len(y):
        raise TableError("the file has 0 samples", "check that it was written", where=where)
    indptr = np.concatenate([[0], np.cumsum(np.concatenate(sizes))])
    span = arrow.min_max(entries["column"]).as_py()
    first = 0 if span["min"] == 0 else 1
    last = span["max"] or 0
    most = max(_ALWAYS, _PER_ENTRY * len(entries))
    if last > most:
        at = int(
            np.searchsorted(indptr, arrow.index(entries["column"], last).as_py(), side="right")
        )
        raise TableError(
            f"the index {last:,} in sample {at} would make as many features, in a file of "
            f"{len(entries):,} entries, which may have {most:,}",
            "correct it, or number the features from 1 on",
            where=where,
        )
    names = tuple(map(str, range(first, last + 1)))
    columns = new_array((len(entries),), folder, np.int32)
    values = new_array((len(entries),), folder)
    start = 0
    for batch in entries.to_batches():
        own = slice(start, start := start + len(batch))
        columns[own], values[own] = batch["column"].to_numpy() - np.int32(first), batch["value"]
    return csr_array((values, columns, indptr), shape=(len(y), len(names))), y, names


def _whole_lines(opened: Opened) -> Iterator[bytes]:
    """Yield some whole lines of a file at a time."""
    rest = b""
    for some in parts_of(opened):
        whole, end, rest = (rest + some).rpartition(b"\n")
        if end:
            yield whole + end  # without it an empty last line would not count
    yield rest


def _parsed(
    lines: Sequence[bytes], first: int, where: str
) -> tuple[NDArray[np.int32], NDArray[np.float64], NDArray[np.float64], NDArray[np.intp]]:
    """Return the indices and values of entries, and the label and number of entries of samples."""
    numbers: list[bytes] = []
    counts: list[int] = []
    for at, line in enumerate(lines, first):
        body = line.partition(b"#")[0]
        parts = body.replace(b":", b" ").split()
        if not parts:
            continue
        indices = b"".join(parts[1::2])  # in figures: numpy would read 1e3 too
        if len(parts) != 2 * body.count(b":") + 1 or (indices and not indices.isdigit()):
            raise _broken(body, at, where)
        numbers += parts
        counts.append(len(parts))
    try:
        flat = np.array(numbers, bytes).astype(np.float64)
    except ValueError:
        raise _first_broken(lines, first, where) from None
    starts = np.cumsum([0, *counts])[:-1]
    entries = np.ones(len(flat), bool)
    entries[starts] = False
    pairs = flat[entries].reshape(-1, 2)
    index, values = pairs[:, 0], pairs[:, 1]
    sizes = (np.array(counts, np.intp) - 1) // 2
    begins = (np.cumsum(sizes) - sizes)[sizes > 0]
    ascending = np.diff(index, prepend=-1) > 0
    ascending[begins] = True
    sound = ascending & (index >= 0) & (index == np.floor(index)) & (index < _INDICES)
    labels = flat[starts]
    if not (sound.all() and np.isfinite(values).all() and np.isfinite(labels).all()):
        raise _first_broken(lines, first, where)
    return index.astype(np.int32), values, labels, sizes


def _first_broken(lines: Sequence[bytes], first: int, where: str) -> TableError:
    for at, line in enumerate(lines, first):
        body = line.partition(b"#")[0]
        if body.split() and _fault(body):
            return _broken(body, at, where)
    return TableError("the numbers cannot be read", f"write {_FORM}", where=where)


def _broken(body: bytes, at: int, where: str) -> TableError:
    shown = body.decode(errors="replace").strip()[:40]
    return TableError(
        f"line {at} ({shown!r}): {_fault(body)}",
        f"write {_FORM} with whole ascending indices",
        where=where,
    )


def _fault(body: bytes) -> str | None:
    """Return what is wrong with a line."""
    label, *entries = body.decode(errors="replace").split()
    if not _finite(label):
        return f"the label {label!r} is not a finite number"
    before = -1
    for entry in entries:
        index, colon, value = entry.partition(":")
        if not colon:
            return f"{entry!r} has no colon"
        if not index.isascii() or not index.isdigit():
            return f"the index {index!r} is not a whole number of at least 0"
        if int(index) >= _INDICES:
            return f"the index {index} is above {_INDICES - 1}, the largest that is read"
        if int(index) <= before:
            return f"the index {index} follows {before}"
        if not _finite(value):
            return f"the value {value!r} of index {index} is not a finite number"
        before = int(index)
    return None


def _finite(text: str) -> bool:
    try:
        return math.isfinite(float(text)) and "_" not in text
    except ValueError:
        return False
