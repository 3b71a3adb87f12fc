"""The different texts of a column, in memory as Arrow has them, and Arrow's columns as arrays."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from typing import Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as arrow
from numpy.typing import NDArray
from pyarrow import types

_PIECE = 1 << 12  # texts that are Python's at once
# a number as programs write it, which Arrow reads as Python does
_PLAIN = r"^-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,2})?$"


class Texts(Sequence[str]):
    """Texts, none of them null: Python's own would take seven times the memory."""

    def __init__(self, values: pa.StringArray) -> None:
        self._values = values
        self._shared: dict[Texts, int] = {}

    @classmethod
    def of(cls, values: Collection[str]) -> Texts:
        """Return texts that are Python's."""
        return cls(_of_arrow(values))

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), _PIECE):
            yield from self._values.slice(start, _PIECE).to_pylist()

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[str]: ...
    def __getitem__(self, place: int | slice) -> str | Sequence[str]:
        if isinstance(place, slice):
            return self.at(np.arange(len(self))[place])
        return str(self._values[range(len(self))[place]].as_py())

    def at(self, places: NDArray[np.integer[Any]]) -> Texts:
        """Return the texts at some places, in a way that does not import pandas."""
        letters = pa.py_buffer(np.ascontiguousarray(places, np.int64))
        chosen = pa.Array.from_buffers(pa.int64(), len(places), [None, letters])
        return Texts(self._values.take(chosen))

    @cached_property
    def plain(self) -> bool:
        """Return whether all are numbers as programs write them, with a decimal point."""
        return self.all_like(_PLAIN)

    @property
    def with_point(self) -> Texts:
        """Return the texts with a point for each comma; what had a point is then no number."""
        others = arrow.replace_substring(self._values, ".", "-.")
        return Texts(arrow.replace_substring(others, ",", "."))

    def all_like(self, pattern: str) -> bool:
        """Return whether all have a pattern, of RE2, in them; of no text, too."""
        return bool(arrow.all(self._like(pattern), min_count=0).as_py())

    def any_like(self, pattern: str) -> bool:
        """Return whether one has a pattern, of RE2, in it."""
        return bool(arrow.any(self._like(pattern), min_count=0).as_py())

    def like(self, pattern: str) -> Texts:
        """Return the texts that have a pattern, of RE2, in them, in their order."""
        return Texts(self._values.filter(self._like(pattern)))

    def unlike(self, pattern: str) -> Texts:
        """Return the texts that do not have a pattern, of RE2, in them, in their order."""
        return Texts(self._values.filter(arrow.invert(self._like(pattern))))

    def _like(self, pattern: str) -> pa.BooleanArray:
        return arrow.match_substring_regex(self._values, pattern)

    def shared(self, others: Texts) -> int:
        """Return how many of these texts, each once, are among others, each once."""
        if others not in self._shared:
            found = arrow.sum(arrow.is_in(self._values, others._values)).as_py() or 0
            self._shared[others] = others._shared[self] = int(found)
        return self._shared[others]

    def in_small_letters(self) -> Texts:
        """Return texts of ASCII in small letters, each once."""
        return Texts(arrow.ascii_lower(self._values).unique())

    @property
    def figures(self) -> NDArray[np.float64]:
        """Return the numbers that plain texts are, (texts,)."""
        return np.asarray(array_of(self._values.cast(pa.float64())))

    @classmethod
    def numbered(cls, columns: Sequence[Texts]) -> list[NDArray[np.int64]]:
        """Return numbers that are equal where texts of several columns are, (texts,) of each."""
        every = pa.chunked_array([own._values for own in columns], pa.string())
        codes = every.dictionary_encode().combine_chunks()
        ends = np.cumsum([len(own) for own in columns])[:-1]
        return np.split(array_of(codes.indices).astype(np.int64), ends)

    def trimmed(self, codes: NDArray[np.int32]) -> tuple[NDArray[np.int32], Texts]:
        """Return codes and texts, each once, without the blanks around them."""
        values = arrow.utf8_trim_whitespace(self._values)
        if values.equals(self._values):
            return codes, self
        found = values.dictionary_encode()
        places = array_of(found.indices).astype(np.int32)
        return np.append(places, np.int32(-1))[codes], Texts(found.dictionary)

    def without(
        self, some: Collection[str], codes: NDArray[np.int32]
    ) -> tuple[NDArray[np.int32], Texts]:
        """Return codes and texts without some of these; codes of such become -1."""
        kept = arrow.invert(arrow.is_in(self._values, _of_arrow(some)))
        flags = array_of(kept)
        if flags.all():
            return codes, self
        places = np.where(flags, np.cumsum(flags) - 1, -1)
        return np.append(places, -1).astype(np.int32)[codes], Texts(self._values.filter(kept))


def _of_arrow(texts: Collection[str]) -> pa.StringArray:
    """Return texts as Arrow has them, in a way that does not import pandas, as `array_of`."""
    letters = [one.encode() for one in texts]
    ends = np.cumsum([0, *map(len, letters)]).astype(np.int32)
    return pa.StringArray.from_buffers(
        len(letters), pa.py_buffer(ends), pa.py_buffer(b"".join(letters))
    )


def array_of(column: pa.Array | pa.ChunkedArray, null: float = np.nan) -> NDArray[Any]:
    """Return numbers or truth values as an array of its own, (values,), with a number for null.

    Of truth values none may be null, nor of whole numbers without such a number. Arrow's own way
    would import pandas where it is installed, which takes 0.7 s and 30 MB.
    """
    kind, truth = column.type, types.is_boolean(column.type)
    letter = "f" if types.is_floating(kind) else "u" if types.is_unsigned_integer(kind) else "i"
    found = np.empty(len(column), bool if truth else f"{letter}{kind.bit_width // 8}")
    start = 0
    for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
        own, here = (
            found[start : start + len(chunk)],
            slice(chunk.offset, chunk.offset + len(chunk)),
        )
        start += len(chunk)
        valid, values = chunk.buffers()
        if values is None:  # there is no value
            own[...] = null if len(own) else own
            continue
        own[...] = _bits(values)[here] if truth else np.frombuffer(values, found.dtype)[here]
        if chunk.null_count:
            own[~_bits(valid)[here]] = null
    return found


def _bits(buffer: pa.Buffer) -> NDArray[np.bool_]:
    return np.unpackbits(np.frombuffer(buffer, np.uint8), bitorder="little").astype(bool)
