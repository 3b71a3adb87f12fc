"""Checksums of blocks and tables, which tell whether clients hold what they held before."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from intarsia.core.block import Block, Values, sort_keys
from intarsia.core.memory import pieces
from intarsia.core.side_by_side import is_large, side_by_side
from intarsia.data.table import Table
from intarsia.errors import listed

_SUMMED_AT_ONCE: Final = 1 << 18  # values that checksums of columns take at once


def checksum(blocks: Mapping[str, Block], total: int = 0, threads: int = 1) -> int:
    """Return a CRC-32 of blocks and their names, which goes on from `total`.

    Rows count in the order of their ids, as a database may give them in any. With several threads
    those of large blocks are made side by side, and joined.
    """
    large = [name for name, block in blocks.items() if threads > 1 and is_large(block.x)]
    own = side_by_side(lambda one: _own_checksum(one, blocks[one]), large, threads, lambda _: True)
    known = dict(zip(large, own, strict=True))
    for name, block in blocks.items():
        if name in known:
            total = joined_checksum(total, *known[name])
        else:
            total = _own_checksum(name, block, total)[0]
    return total


@dataclass(frozen=True)
class TableSums:
    """What tells which columns of a table changed, without its values.

    A checksum is over all rows, in any order: the sum of each value times its row's key.
    """

    rows: int
    keys: int  # the sum of the rows' keys
    columns: Mapping[str, int]  # name -> checksum; the label and weights are columns, too

    @classmethod
    def of(cls, table: Table, hashes: NDArray[np.uint64]) -> TableSums:
        """Return those of a table whose ids have these hashes, (samples,)."""
        keys = hashes.view(np.int64) | 1  # times an odd number, no two values are one
        found = dict(zip(table.numeric, _column_sums(table.values, keys).tolist(), strict=True))
        for name, one in table.categorical.items():
            found[name] = _text_sum(one.levels, one.codes, keys)
        if table.labels is not None:
            labels = table.labels.values
            if labels.dtype.kind == "f":
                found[table.labels.name] = int(_column_sums(labels[:, None], keys)[0])
            else:
                texts, codes = np.unique(labels, return_inverse=True)
                found[table.labels.name] = _text_sum(texts.tolist(), codes, keys)
        if table.weights is not None:
            found["(weights)"] = int(_column_sums(table.weights[:, None], keys)[0])
        return cls(len(keys), int(keys.sum()), found)

    def changes(self, now: TableSums) -> tuple[str, ...]:
        """Return what a later table has otherwise, in words; of other rows no column is named."""
        said = list[str]()
        if now.rows != self.rows:
            said.append(f"it has {now.rows:,} rows and had {self.rows:,}")
        elif now.keys != self.keys:
            said.append("some of its rows have other ids")
        elif other := [name for name, one in now.columns.items() if self._other(name, one)]:
            said.append(f"other values are in {_named(other)}")
        if gone := [name for name in self.columns if name not in now.columns]:
            said.append(f"{_named(gone)} went away")
        if new := [name for name in now.columns if name not in self.columns]:
            said.append(f"{_named(new)} came anew")
        if not said and tuple(now.columns) != tuple(self.columns):
            said.append("its columns are in another order")
        return tuple(said)

    def _other(self, name: str, checksum: int) -> bool:
        return self.columns.get(name, checksum) != checksum


def _named(columns: Sequence[str]) -> str:
    return f"column{'' if len(columns) == 1 else 's'} {listed(columns)}"


def _column_sums(values: Values, keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the checksum of each column of numbers, (columns,)."""
    found = np.zeros(values.shape[1], np.int64)
    if issparse(values):
        own = np.repeat(keys, np.diff(values.indptr))
        np.add.at(found, values.indices, own * _bits(values.data))
        return found
    some = max(1, _SUMMED_AT_ONCE // max(1, values.shape[1]))
    for start in range(0, len(values), some):
        part = _bits(values[start : start + some])
        found += (part * keys[start : start + some, None]).sum(axis=0)
    return found


def _bits(values: NDArray[Any]) -> NDArray[np.int64]:
    return np.ascontiguousarray(values, np.float64).view(np.int64)


def _text_sum(
    levels: Sequence[str], codes: NDArray[np.integer[Any]], keys: NDArray[np.int64]
) -> int:
    """Return the checksum of a column of texts; where none is the code is -1."""
    words = np.array([*(zlib.crc32(one.encode()) for one in levels), 0], np.int64)
    return int((words[codes] * keys).sum())


def _own_checksum(name: str, held: Block, total: int = 0) -> tuple[int, int]:
    """Return the CRC-32 of a block and its name, which goes on from `total`, and their bytes."""
    keys = sort_keys(held.samples)
    ascending = bool((keys[1:] >= keys[:-1]).all())
    block = held if ascending else held.take(np.argsort(keys, kind="stable"))
    found = zlib.crc32(names := f"{name} {block.features}".encode(), total), len(names)
    found, x = _with_array(*found, block.samples), block.x
    if isinstance(x, np.ndarray) or issparse(x):
        for array in [x] if isinstance(x, np.ndarray) else [x.data[: x.nnz], x.indices[: x.nnz]]:
            found = _with_array(*found, array)
    else:  # rows are written once, for all data and then all indices
        indices = 0, 0
        for _, own in pieces(x):
            found, indices = _with_array(*found, own.data), _with_array(*indices, own.indices)
        found = joined_checksum(found[0], *indices), found[1] + indices[1]
    if block.sparse:
        found = _with_array(*found, x.indptr)
    for array in (block.y, block.weights, block.indicators):
        found = found if array is None else _with_array(*found, array)
    return found


def _with_array(total: int, size: int, array: NDArray[Any]) -> tuple[int, int]:
    """Return a CRC-32 that goes on with an array, and of how many bytes it is."""
    data = np.ascontiguousarray(array).view(np.uint8).data
    return zlib.crc32(data, total), size + array.nbytes


def joined_checksum(first: int, second: int, size: int) -> int:
    """Return the CRC-32 of two texts, one behind the other, from those of both.

    `size` is of the second in bytes, each of which multiplies the first's polynomial by x^8.
    """
    for bit in range(size.bit_length()):
        if size >> bit & 1:
            first = _product(_power(bit), first)
    return first ^ second


@cache
def _power(bit: int) -> int:
    """Return x^(8 · 2^bit) modulo the polynomial of CRC-32; the highest bit is that of 1."""
    return _product(_power(bit - 1), _power(bit - 1)) if bit else 1 << 23


def _product(one: int, other: int) -> int:
    """Return the product of two polynomials modulo that of CRC-32, whose highest bit is 1's."""
    found = 0
    while one:
        found ^= other if one >> 31 else 0
        one, other = one << 1 & 0xFFFFFFFF, other >> 1 ^ (0xEDB88320 if other & 1 else 0)
    return found
