"""Find values of a client's table in what the server reads of it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
from scipy.sparse import issparse

from intarsia.core.block import Array, Block

_DECIMALS: Final = re.compile(r"-?\d+\.\d+(?:[eE][-+]?\d+)?")
_TEXT: Final = 100_000  # bytes of a field that are read as text


def values_of(block: Block) -> tuple[Array, Array]:
    """Return the numbers of a client's table that hardly occur by chance; as singles, too."""
    x: Any = block.x
    parts = [np.ravel(x.data if issparse(x) else x)]
    parts += [] if block.y is None else [np.ravel(block.y)]
    found = np.concatenate(parts).astype(float)
    long = found * 1e4
    found = found[abs(long - np.rint(long)) > 1e-3]  # more than four decimals
    return found, found.astype(np.float32).astype(float)


def tells_values(value: Any, block: Block, *held: Array) -> bool:
    """Return whether a field of a reply has a value of a table, or is all its labels."""
    known = np.concatenate(held)
    for numbers in _numbers_in(value):
        if np.isin(numbers, known).any():
            return True
        if block.y is not None and numbers.size > 1 and np.array_equal(numbers, np.ravel(block.y)):
            return True
    return False


def _numbers_in(value: Any) -> Iterator[Array]:
    """Yield the numbers of a field, as they stand in a row; of bytes from each place on."""
    if isinstance(value, str):
        yield np.array([float(one) for one in _DECIMALS.findall(value)])
    elif isinstance(value, bytes):
        yield from _numbers_in(value[:_TEXT].decode("latin-1"))
        for first in range(8):
            yield np.frombuffer(value[first : first + (len(value) - first) // 8 * 8], "<f8")
    elif isinstance(value, int | float | np.ndarray | np.generic):
        yield np.ravel(np.asarray(value, float))
    elif isinstance(value, Mapping):
        yield from _numbers_in((*value.keys(), *value.values()))
    elif isinstance(value, tuple):
        plain = [one for one in value if isinstance(one, int | float | np.generic)]
        yield np.array(plain, float)
        for one in value:
            if not isinstance(one, int | float | np.generic):
                yield from _numbers_in(one)
    elif dataclasses.is_dataclass(value):
        yield from _numbers_in(tuple(vars(value).values()))
