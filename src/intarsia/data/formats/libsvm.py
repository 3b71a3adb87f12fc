"""Read the libsvm text format: one sample a line, `label index:value …`, indices ascending.

A feature is named by its index as written: "1" to "M", or "0" to "M" in a file that counts from 0.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from intarsia.errors import TableError

_INDICES = 2**31  # the kernels have column numbers of 32 bits
# Every index up to the largest is a feature, with a name of 60 bytes: a mistaken index would take
# all memory. The widest public sets have 55 million, and far more entries.
_ALWAYS = 20_000_000
_PER_ENTRY = 100
_FORM = "`label index:value …`"


def parse_libsvm(
    content: bytes, where: str
) -> tuple[csr_array, NDArray[np.float64], tuple[str, ...]]:
    """Return values (samples, features), labels (samples,) and names; `#` starts a comment."""
    numbers: list[bytes] = []
    sizes: list[int] = []
    for at, line in enumerate(content.splitlines(), 1):
        body = line.partition(b"#")[0]
        parts = body.replace(b":", b" ").split()
        if not parts:
            continue
        indices = b"".join(parts[1::2])  # in figures: numpy would read 1e3 too
        if len(parts) != 2 * body.count(b":") + 1 or (indices and not indices.isdigit()):
            raise _broken(body, at, where)
        numbers += parts
        sizes.append(len(parts))
    if not sizes:
        raise TableError("the file has 0 samples", "check that it was written", where=where)
    try:
        flat = np.array(numbers).astype(np.float64)
    except ValueError:
        raise _first_broken(content, where) from None
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    entries = np.ones(len(flat), bool)
    entries[starts] = False
    pairs = flat[entries].reshape(-1, 2)
    index, values = pairs[:, 0], pairs[:, 1]
    indptr = np.concatenate([[0], np.cumsum((np.array(sizes) - 1) // 2)])
    ascending = np.diff(index, prepend=-1) > 0
    ascending[indptr[:-1][np.diff(indptr) > 0]] = True
    sound = ascending & (index >= 0) & (index == np.floor(index)) & (index < _INDICES)
    labels = flat[starts]
    if not (sound.all() and np.isfinite(values).all() and np.isfinite(labels).all()):
        raise _first_broken(content, where)
    first = 0 if (index == 0).any() else 1
    last = int(index.max(initial=0))
    most = max(_ALWAYS, _PER_ENTRY * len(index))
    if last > most:
        at = int(np.searchsorted(indptr, int(index.argmax()), side="right"))
        raise TableError(
            f"the index {last:,} in sample {at} would make as many features, in a file of "
            f"{len(index):,} entries, which may have {most:,}",
            "correct it, or number the features from 1 on",
            where=where,
        )
    names = tuple(map(str, range(first, last + 1)))
    columns = index.astype(np.int32) - np.int32(first)
    return csr_array((values, columns, indptr), shape=(len(sizes), len(names))), labels, names


def _first_broken(content: bytes, where: str) -> TableError:
    for at, line in enumerate(content.splitlines(), 1):
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
