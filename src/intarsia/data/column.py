"""A column of a table on its way to values: its kind, its texts, and the numbers that they say."""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as arrow
from numpy.typing import NDArray
from pyarrow import types

from intarsia.core.block import Array
from intarsia.data.parsing import canonical, limit_of, number, without_unit
from intarsia.data.source import LEAST_ROWS, Source
from intarsia.data.table import Category
from intarsia.data.texts import Texts, array_of
from intarsia.errors import TableError

_EXACT_ROLES = (
    "id ",
    "label ",
    "split_by ",
)  # of columns where a number never stands for a missing value
_ALWAYS_MISSING = frozenset({"", "nan", "null"})
MANY = 500  # rows, of which calls of Arrow for each column take less time than loops of Python
EXACT = 2**53  # up to here a float64 holds every whole number
# what pyarrow raises for values that have no common type
_NO_COLUMN = (
    pa.ArrowInvalid,
    pa.ArrowNotImplementedError,
    OverflowError,
    TypeError,  # such as for an infinite decimal
    UnicodeDecodeError,
)

# what a column has -> the Arrow types
_KINDS: dict[str, tuple[Callable[[pa.DataType], bool], ...]] = {
    "nothing": (types.is_null,),
    "truth": (types.is_boolean,),
    "whole": (types.is_integer,),
    "decimal": (types.is_floating, types.is_decimal),
    "text": (types.is_string, types.is_large_string, types.is_string_view),
    "time": (types.is_temporal,),
    "bytes": (types.is_binary, types.is_large_binary),
}
FINITE = "expected a finite number: replace it by a number or by an empty cell (missing)"
LARGEST = 1e70  # of a number: figures add up fourth powers, and 64-bit numbers end at 1e308
SMALLER = (
    f"expected a number of at most {LARGEST:g} in size: correct it, or divide the column by a "
    "power of ten at every client"
)


def column_of(values: Sequence[Any] | NDArray[Any] | pa.Array) -> pa.ChunkedArray:
    """Return values as a column; Python values of different or unusual types become text."""
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([values])
    if isinstance(values, np.ndarray) and values.dtype.kind in "OSU":
        text = np.char.decode(values, "utf-8", "replace") if values.dtype.kind == "S" else values
        values = text.tolist()
    try:
        own = pa.array(values, from_pandas=True)
        usual = not isinstance(own.type, pa.BaseExtensionType)  # such as a UUID
    except _NO_COLUMN:
        usual = False
    return pa.chunked_array([own if usual else as_text(values)])


def as_text(values: Sequence[Any] | NDArray[Any], kind: pa.DataType | None = None) -> pa.Array:
    """Return values as texts, or as bytes where some are such or `kind` is: bytes are no text."""
    if any(isinstance(one, bytes) for one in values):
        kind = pa.binary()
    texts = [
        None if _absent(one) else one if isinstance(one, bytes) else str(one) for one in values
    ]
    return pa.array(texts, kind or pa.string())


def _may_have_nul(column: pa.ChunkedArray) -> bool:
    """Return whether a NUL is among the letters that a column's texts, and maybe others, are in."""
    if not types.is_string(column.type) and not types.is_large_string(column.type):
        return True  # a view's letters are elsewhere, too
    letters = (np.frombuffer(one.buffers()[2] or b"", np.uint8) for one in column.chunks)
    return any(len(one) and not one.min() for one in letters)


def check_text(text: str, place: str, source: Source) -> None:
    """Raise if a text has a NUL, which arrays of text lose at its end, or is no valid Unicode."""
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise source.error(
            f"{place} is {text[:40]!r}, with half a surrogate pair, which is not valid Unicode",
            "correct it where the table is written",
        )
    if "\0" in text:
        raise source.error(
            f"{place} is {text[:40]!r}, with a NUL character, which is not text",
            "remove the character where the table is written",
        )


def _absent(value: Any) -> bool:
    return value is None or (isinstance(value, float) and value != value)


@dataclass(frozen=True, eq=False)
class Column:
    """A column whose type is known, on its way to values."""

    values: pa.ChunkedArray  # without dictionary encoding
    kind: str  # of _KINDS
    category: bool  # it had dictionary encoding
    name: str  # as errors name it, such as "id column 'patient'"
    source: Source
    listed: bool = False  # in `categorical`
    before: int = 0  # rows of the table before these
    setting: str = ""  # its name in an experiment file
    unit: str = ""  # beside its numbers, where they are texts
    limits: bool = False  # "<5" counts as 5

    @classmethod
    def of(
        cls, values: pa.ChunkedArray, name: str, source: Source, role: str = "", before: int = 0
    ) -> Column:
        """Return a column; refuse bytes, lists and the like."""
        category = types.is_dictionary(values.type)
        if category:
            values = values.cast(values.type.value_type)
        if types.is_timestamp(values.type):  # the same moment in every zone, as `dates` counts it
            values = values.cast(pa.timestamp(values.type.unit))
        kind, told = _kind(values.type), f"{role}column {name!r}"
        listed = not role and name in source.categorical
        if role in _EXACT_ROLES:  # an id or a label is what the table says
            source = replace(source, missing=source.missing_words)
        own = cls(values, kind, category, told, source, listed, before)
        if role in ("", "label ") and not listed:
            unit, limits = source.units.get(name, ""), name in source.limits
            own = replace(
                own, setting=json.dumps(name, ensure_ascii=False), unit=unit, limits=limits
            )
        if kind == "text" and _may_have_nul(values):
            odd = arrow.match_substring_regex(values.cast(pa.string()), "\\x00")
            if arrow.any(odd).as_py():
                row = odd.to_pylist().index(True)
                check_text(values[row].as_py(), f"{told}, row {row + 1},", source)
        if kind == "bytes":
            raise source.error(
                f"column {name!r} has bytes (such as {(own.first or b'')[:20]!r}), which are no "
                "text",
                "save the column as text in UTF-8, or list it in exclude",
                "save the column as text in UTF-8, or leave it out of the table",
            )
        if not kind:
            advice = "a cell holds one number or text: convert the column, or "
            raise source.error(
                f"column {name!r} has values of type {str(values.type)[:40]} "
                f"(first: {str(own.first)[:40]!r})",
                advice + "list it in exclude",
                advice + "leave it out of the table",
            )
        return own

    @property
    def first(self) -> Any:
        """Return the first value that is not null."""
        return next((one for one in self.values.to_pylist() if one is not None), None)

    @property
    def _as_text(self) -> pa.ChunkedArray:
        """Return values as text: moments without zeros behind their seconds, in any unit."""
        if types.is_interval(self.values.type):  # which Arrow has no text of
            return pa.chunked_array([as_text(self.values.to_pylist())])
        texts = self.values.cast(pa.string())
        if not types.is_timestamp(self.values.type):
            return texts
        return arrow.replace_substring_regex(texts, r"(\.\d*[1-9])0+$|\.0+$", r"\1")

    @property
    def trimmed(self) -> pa.ChunkedArray:
        """Return the text of each row without the blanks around it, null where missing."""
        texts = arrow.utf8_trim_whitespace(self._as_text)
        own = (re.escape(text.strip()) for text in self.source.missing)
        missing = arrow.match_substring_regex(texts, f"^({'|'.join(['(?i:nan|null)?', *own])})$")
        if not arrow.any(missing).as_py():
            return texts
        return arrow.if_else(missing, pa.nulls(len(texts), pa.string()), texts)

    @cached_property
    def _written(self) -> tuple[NDArray[np.intp], list[str]]:
        """Return codes (samples,), and the text of each, "" where there is none."""
        values = self._as_text.combine_chunks()
        encoded = values.dictionary_encode(null_encoding="encode")
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        codes = array_of(encoded.indices).astype(np.intp)
        return codes, ["" if raw is None else raw.strip() for raw in encoded.dictionary.to_pylist()]

    @property
    def texts_of_many(self) -> tuple[NDArray[np.int32], Texts]:
        """Return the codes (samples,) of a column of many rows, -1 where missing, and the texts."""
        codes, texts = self._encoded(self._as_text)
        codes, texts = texts.trimmed(codes)
        missing = {text.strip() for text in self.source.missing}
        return texts.without({*missing, *texts.like(r"^(?i:nan|null)?$")}, codes)

    def _encoded(self, values: pa.ChunkedArray) -> tuple[NDArray[np.int32], Texts]:
        encoded = values.cast(pa.string()).combine_chunks().dictionary_encode()
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        missing = {*(text.strip() for text in self.source.missing), *_ALWAYS_MISSING}
        codes = array_of(encoded.indices, -1).astype(np.int32, copy=False)
        return Texts(encoded.dictionary).without(missing, codes)

    @cached_property
    def texts(self) -> tuple[NDArray[np.intp], list[str | None]]:
        """Return codes (samples,), and the text of each; None: it is missing."""
        codes, written = self._written
        missing = {*(text.strip() for text in self.source.missing), *_ALWAYS_MISSING}
        absent = (text in missing or text.lower() in _ALWAYS_MISSING for text in written)
        return codes, [None if gone else text for gone, text in zip(absent, written, strict=True)]

    def rows_of(self, chosen: Sequence[bool]) -> int:
        """Return how many rows have one of the texts that are chosen, of all by their codes."""
        return int(np.array([*chosen, False])[self._written[0]].sum())

    @property
    def marked(self) -> int:
        """Return how many rows have a text that stands for a missing value as the source says."""
        pairs = zip(self._written[1], self.texts[1], strict=True)
        return self.rows_of(
            [text is None and raw.lower() not in _ALWAYS_MISSING for raw, text in pairs]
        )

    def bare(self, text: str) -> str:
        """Return a text without the column's unit, and the sign of a limit."""
        return without_unit((self.limits and limit_of(text)) or text, self.unit)

    def number(self, text: str) -> float | None:
        """Return the number that a text says as the source writes numbers, or None."""
        return number(self.bare(text), self.source.decimal, self.source.thousands)

    def canonical(self, text: str) -> str:
        """Return a category or class as text that is the same however the source writes numbers."""
        return canonical(text, self.number(text))

    def _check_exact(self, text: str, figure: float | None) -> None:
        """Raise if a text is a whole number that is another one as a float64."""
        bare = self.bare(text)
        whole = re.sub(r"\D", "", bare).lstrip("0") or "0"
        fraction = self.source.decimal in bare or "e" in bare.lower()
        if not fraction and figure is not None and int(whole) != abs(figure):
            raise self._inexact(text, self.row(text))

    def _check_whole(self) -> None:
        """Raise if one of 64-bit whole numbers is another one as a float64."""
        span = arrow.min_max(self.values).as_py()
        if max(abs(span["min"] or 0), abs(span["max"] or 0)) <= EXACT:
            return
        back = self.values.cast(pa.float64(), safe=False).cast(self.values.type, safe=False)
        changed = arrow.fill_null(arrow.not_equal(back, self.values), False)
        row = arrow.index(changed, True).as_py()
        if row >= 0:
            raise self._inexact(str(self.values[row].as_py()), self.before + row + 1)

    def _inexact(self, text: str, row: int) -> TableError:
        advice = "a feature of so many digits is mostly a code: list the column in "
        return self.source.error(
            f"{self.name} has {text} in row {row}, beyond the whole numbers that a float64 holds "
            f"exactly (up to 2^53 = {EXACT})",
            advice + "exclude or in categorical, or divide it by a power of ten",
            "divide it by a power of ten, or leave the column out of the table",
        )

    def row(self, text: str) -> int:
        """Return the first row, from 1, that has a text."""
        codes, texts = self.texts
        return int(np.flatnonzero(codes == texts.index(text))[0]) + 1

    def numbers(
        self, by_text: Sequence[str], advice: str, most: float | None = None
    ) -> Array | None:
        """Return float64 (samples,) with NaN where missing; None: some are no numbers.

        Columns of the kinds `by_text` are read as text. An infinite value is refused with `advice`,
        and one beyond `most`, by default `LARGEST`.
        """
        if self.kind == "nothing":
            return np.full(len(self.values), np.nan)
        if (values := self._plain_numbers(by_text)) is not None:
            pass
        elif self.kind in by_text:
            codes, texts = self.texts
            figures = [np.nan if text is None else self.number(text) for text in texts]
            if None in figures:
                return None
            for text, figure in zip(texts, figures, strict=True):
                if text is not None and EXACT <= abs(figure or 0.0) < np.inf:
                    self._check_exact(text, figure)
            values = np.array([*figures, np.nan], np.float64)[codes]
        else:
            if self.kind == "whole":
                self._check_whole()
            values = array_of(self.values.cast(pa.float64(), safe=False))
            if marks := missing_numbers(self.source):
                values[np.isin(values, marks)] = np.nan
        beyond = np.abs(values) > (LARGEST if most is None else most)  # infinite ones, too
        if beyond.any():
            raise self._too_large(values, beyond, by_text, advice)
        return values

    def _too_large(
        self, values: Array, beyond: NDArray[np.bool_], by_text: Sequence[str], advice: str
    ) -> TableError:
        """Return the error of a column with infinite or too large numbers, (samples,)."""
        row, others = int(beyond.argmax()), int(beyond.sum()) - 1
        infinite = bool(np.isinf(values[row]))
        advice = advice if infinite else SMALLER
        given = str(values[row])
        if self.kind in by_text:
            given = str(self.texts[1][self.texts[0][row]])
        said = f"{self.name} is {given} in row {self.before + row + 1}"
        if others and not self.before:
            said += f", and {'infinite' if infinite else 'as large'} in {others} more"
        settings = advice
        # one number for all is mostly one that stands for none
        if advice == FINITE or (advice == SMALLER and len(np.unique(values[beyond])) == 1):
            settings += f', or add "{given}" to missing'
        return self.source.error(said, settings, advice)

    def _plain_numbers(self, by_text: Sequence[str]) -> Array | None:
        """Return what `numbers` does, where a column read as text has plain numbers alone.

        None, too: it has few rows. To look at each of many texts as one of Python's takes 20 times
        as long.
        """
        if self.kind != "text" or "text" not in by_text or len(self.values) < MANY:
            return None
        found = None
        # the first rows tell of most columns of other texts, which would be encoded for nothing
        for rows in (self.values.slice(0, MANY), self.values):
            codes, texts = self._encoded(rows)
            figures = plain_figures(texts, self.source, self.unit)
            if figures is None:
                return None
            found = np.append(figures, np.nan)[codes]
        return found

    def levels(self) -> Category:
        """Return the column as a category."""
        codes, texts = self.texts
        names = [None if text is None else self.canonical(text) for text in texts]
        levels = tuple(sorted({name for name in names if name is not None}))
        place = {level: position for position, level in enumerate(levels)}
        target = np.array([-1 if name is None else place[name] for name in names] + [-1], np.int32)
        least = self.source.least_rows
        if least is None:
            least = 1 if self.listed else LEAST_ROWS
        return Category(target[codes], levels, least)


def plain_figures(
    texts: Texts, source: Source, unit: str = "", known: array[float] | None = None
) -> Array | None:
    """Return the numbers, (texts,), that a column's different texts are read as, as they are.

    None: each text is to be looked at, as not all are numbers with a decimal point and nothing
    beside it, or one is not exact as a float64. `known` has the numbers, where they are known.
    """
    if source.decimal != "." or unit or not texts.plain:
        return None
    figures = texts.figures if known is None else np.asarray(known)
    return None if (np.abs(figures) >= EXACT).any() else figures


def missing_numbers(source: Source) -> list[float]:
    """Return the numbers that stand for a missing value."""
    read = (number(text, source.decimal, source.thousands) for text in source.missing)
    return [value for value in read if value is not None]


def is_number(kind: pa.DataType, name: str, source: Source) -> bool:
    """Return whether a feature column of a type has numbers, whatever is in it."""
    return _kind(kind) in ("truth", "whole", "decimal") and name not in source.categorical


def _kind(given: pa.DataType) -> str:
    """Return which of `_KINDS` a type is; "": none."""
    kinds = (kind for kind, tests in _KINDS.items() if any(is_(given) for is_ in tests))
    return next(kinds, "")
