"""The libsvm text format: one sample a line, `label index:value …`, indices ascending.

A feature is named by its index as written: "1" to "M", or "0" to "M" in a file that counts from 0.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from intarsia.errors import TableError

__all__ = ["parse_libsvm"]


def parse_libsvm(
    content: bytes, where: str
) -> tuple[csr_array, NDArray[np.float64], tuple[str, ...]]:
    """Return values (samples, features), labels (samples,) and names; `#` starts a comment.

    Raises
    ------
    TableError
        If a line is not of the form; names the line, its content and what is wrong.
    """
    numbers: list[bytes] = []
    sizes: list[int] = []
    for at, line in enumerate(content.splitlines(), 1):
        body = line.partition(b"#")[0]
        parts = body.replace(b":", b" ").split()
        if not parts:
            continue
        if len(parts) != 2 * body.count(b":") + 1:
            raise _broken(body, at, where)
        numbers += parts
        sizes.append(len(parts))
    if not sizes:
        raise TableError(f"{where}: the file has 0 samples; check that it was written.")
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
    sound = ascending & (index >= 0) & (index == np.floor(index)) & (index < 2**31)
    labels = flat[starts]
    if not (sound.all() and np.isfinite(values).all() and np.isfinite(labels).all()):
        raise _first_broken(content, where)
    first = 0 if (index == 0).any() else 1
    names = tuple(str(name) for name in range(first, int(index.max(initial=0)) + 1))
    columns = index.astype(np.int64) - first
    return csr_array((values, columns, indptr), shape=(len(sizes), len(names))), labels, names


def _first_broken(content: bytes, where: str) -> TableError:
    for at, line in enumerate(content.splitlines(), 1):
        body = line.partition(b"#")[0]
        if body.split() and _fault(body):
            return _broken(body, at, where)
    return TableError(f"{where}: the numbers cannot be read; write `label index:value …`.")


def _broken(body: bytes, at: int, where: str) -> TableError:
    shown = body.decode(errors="replace").strip()[:40]
    return TableError(
        f"{where}: line {at} ({shown!r}): {_fault(body)}; write `label index:value …` with whole "
        "ascending indices."
    )


def _fault(body: bytes) -> str | None:
    """Return what is wrong with a line."""
    label, *entries = body.decode(errors="replace").split()
    if _float(label) is None:
        return f"the label {label!r} is not a finite number"
    before = -1
    for entry in entries:
        index, colon, value = entry.partition(":")
        if not colon:
            return f"{entry!r} has no colon"
        if not index.isascii() or not index.isdigit() or int(index) >= 2**31:
            return f"the index {index!r} is not a whole number of at least 0"
        if int(index) <= before:
            return f"the index {index} follows {before}"
        if _float(value) is None:
            return f"the value {value!r} of index {index} is not a finite number"
        before = int(index)
    return None


def _float(text: str) -> float | None:
    try:
        value: Any = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and "_" not in text else None
