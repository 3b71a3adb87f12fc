"""Tell numbers and categories apart, and read ids, labels and weights, by each column's type.

Rules: a column is numeric if all its values are numbers, categorical if none is (a mixture is an
error, unless the column is listed as categorical); booleans are 0 and 1; dates are an error unless
`dates` says what they are; blanks around a text do not count; an empty text, "nan", "null" and NaN
are missing everywhere; ids that are whole numbers are such however they are written (7, 7.0, -0);
what a float64 does not hold exactly is refused.

The levels of a categorical column become known to the others. So a text column that says something
of single rows (names, notes, addresses, codes, dates) is refused unless it is listed as
categorical, and a level that few rows have is known as "other".
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as arrow
from numpy.typing import NDArray
from pyarrow import types

from intarsia.core.block import LEAST_WEIGHT, MOST_WEIGHT, Array, have_repeats
from intarsia.data.labels import LabelColumn
from intarsia.data.parsing import (
    canonical,
    date_orders,
    day,
    is_date,
    limit_of,
    mixed_marks_of,
    negative_of,
    number,
    spellings_of,
    unit_of,
    without_unit,
)
from intarsia.data.source import LEAST_ROWS, Source
from intarsia.data.table import Category
from intarsia.data.texts import Texts, array_of
from intarsia.errors import TableError, several

# A text column is refused, unless it is listed as categorical, if it has more levels than this,
MOST_LEVELS = 200
# or more than these and fewer rows of each than these on the average: names, codes, notes,
FEW_LEVELS = 10
# or a text of more characters or words than these, or an address.
LONGEST_LEVEL = 60
MOST_WORDS = 8

_EXACT_ROLES = (
    "id ",
    "label ",
    "split_by ",
)  # of columns where a number never stands for a missing value
_ALWAYS_MISSING = frozenset({"", "nan", "null"})
_MANY = 500  # rows, of which calls of Arrow for each column take less time than loops of Python
EXACT = 2**53  # up to here a float64 holds every whole number
# of ids, as Arrow matches them
_WHOLE = r"^-?(0|[1-9][0-9]*)(\.0+)?$"
_WITH_ZEROS = r"^[+-]?[0-9]+(\.0+)?$"
_AROUND_DIGITS = r"^\+?(-?)0*([0-9]+)(\.0+)?$"
_SHORTENED = r"^[0-9](\.[0-9]+)?[eE][+-]?[0-9]+$"  # as spreadsheets show long numbers
_MONTH = r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_DATE = re.compile(
    r"\d{4,5}[-/.]\d\d?[-/.]\d\d?([T ].*)?|\d\d?[-./]\d\d?[-./]\d{2}(\d{2}.*)?"
    rf"|\d\d?[-. ]*{_MONTH}[-, ]*\d{{2,4}}.*|{_MONTH}[- ]*\d\d?,? +\d{{4}}.*",
    re.IGNORECASE,
)
_ADDRESS = re.compile(r"\S+@\S+\.\w+|\w+://\S+|www\.\S+")  # of mail, or of a page

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
class _Column:
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
    ) -> _Column:
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

    @cached_property
    def plain(self) -> tuple[NDArray[np.int32], Texts] | None:
        """Return codes (samples,), -1 where missing, and the texts of a column of plain numbers.

        None: it is no such column, or one of few rows. To look at each of many texts as one of
        Python's takes 20 times as long.
        """
        if self.kind != "text" or len(self.values) < _MANY:
            return None
        # the first rows tell of most columns of other texts, which would be encoded for nothing
        first = self._encoded(self.values.slice(0, _MANY))
        found = self._encoded(self.values) if first[1].plain else first
        return found if found[1].plain else None

    def _encoded(self, values: pa.ChunkedArray) -> tuple[NDArray[np.int32], Texts]:
        encoded = values.cast(pa.string()).combine_chunks().dictionary_encode()
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        missing = {*(text.strip() for text in self.source.missing), *_ALWAYS_MISSING}
        codes = array_of(encoded.indices, -1).astype(np.int32, copy=False)
        return Texts(encoded.dictionary).without(missing, codes)

    @property
    def texts_of_many(self) -> tuple[NDArray[np.int32], Texts]:
        """Return the codes (samples,) of a column of many rows, -1 where missing, and the texts."""
        codes, texts = self._encoded(self._as_text)
        codes, texts = texts.trimmed(codes)
        missing = {text.strip() for text in self.source.missing}
        return texts.without({*missing, *texts.like(r"^(?i:nan|null)?$")}, codes)

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
            if self.source.missing:
                values[np.isin(values, missing_numbers(self.source))] = np.nan
        beyond = np.isinf(values) | (np.abs(values) > (LARGEST if most is None else most))
        if beyond.any():
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
            raise self.source.error(said, settings, advice)
        return values

    def _plain_numbers(self, by_text: Sequence[str]) -> Array | None:
        """Return what `numbers` does, where a column read as text has plain numbers alone."""
        as_they_are = self.source.decimal == "." and not self.unit
        if self.kind not in by_text or not as_they_are or self.plain is None:
            return None
        codes, texts = self.plain
        figures = texts.figures
        return None if (np.abs(figures) >= EXACT).any() else np.append(figures, np.nan)[codes]

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


FINITE = "expected a finite number: replace it by a number or by an empty cell (missing)"
LARGEST = 1e70  # of a number: figures add up fourth powers, and 64-bit numbers end at 1e308
SMALLER = (
    f"expected a number of at most {LARGEST:g} in size: correct it, or divide the column by a "
    "power of ten at every client"
)


def missing_numbers(source: Source) -> list[float]:
    """Return the numbers that stand for a missing value."""
    read = (number(text, source.decimal, source.thousands) for text in source.missing)
    return [value for value in read if value is not None]


@dataclass(frozen=True)
class _Reason:
    """Why columns are no features, and what to do: of one, of several, without settings."""

    several: str
    advice: str
    advice_for_several: str
    without_settings: str


class _UnfitError(Exception):
    """A column is no feature; those of a table for one reason are told together."""

    def __init__(self, own: _Column, said: str, reason: _Reason, detail: str = "") -> None:
        super().__init__(said)
        self.own, self.said, self.reason, self.detail = own, said, reason, detail


def is_number(kind: pa.DataType, name: str, source: Source) -> bool:
    """Return whether a feature column of a type has numbers, whatever is in it."""
    return _kind(kind) in ("truth", "whole", "decimal") and name not in source.categorical


def _kind(given: pa.DataType) -> str:
    """Return which of `_KINDS` a type is; "": none."""
    kinds = (kind for kind, tests in _KINDS.items() if any(is_(given) for is_ in tests))
    return next(kinds, "")


def numbers_of(column: pa.Array, name: str, source: Source, before: int) -> Array:
    """Return some rows of a column of numbers as float64 with NaN; `before` are those before."""
    found = _Column.of(column_of(column), name, source, before=before).numbers((), FINITE)
    assert found is not None
    return found


def features_of(
    columns: Iterable[tuple[str, pa.ChunkedArray]], source: Source
) -> dict[str, Array | Category]:
    """Return columns as features; TableError names all that are none for the reason of the first.

    A column is float64 (samples,) with NaN, or a category.
    """
    found: dict[str, Array | Category] = {}
    refused: list[_UnfitError] = []
    for name, column in columns:
        try:
            found[name] = _feature_values(column, name, source)
        except _UnfitError as one:
            refused.append(one.with_traceback(None))  # which would keep the whole table
    if not refused:
        return found
    first = refused[0]
    same = [one for one in refused if one.reason.several == first.reason.several]
    if len(same) == 1:
        problem, advice = f"{first.own.name} {first.said}", first.reason.advice
    else:
        told = [one.own.name.removeprefix("column ") + one.detail for one in same[:_MOST_TOLD]]
        more = f" and {len(same) - _MOST_TOLD} more" if len(same) > _MOST_TOLD else ""
        problem = f"{len(same)} columns {first.reason.several}: {', '.join(told)}{more}"
        advice = first.reason.advice_for_several
    raise source.error(problem, advice, first.reason.without_settings)


_MOST_UNITS = 5  # of one quantity
_MOST_TOLD = 12  # columns of which an error says what is wrong
_TRUTHS = {"true": 1.0, "false": 0.0, "1": 1.0, "0": 0.0}
_TIME_OF_DAY = re.compile(r"([01]?\d|2[0-4]):[0-5]\d(:[0-5]\d)?")
_DURATION = re.compile(r"\d{1,3}:[0-5]\d(:[0-5]\d)?")  # of which times of day are some


def _feature_values(column: pa.ChunkedArray, name: str, source: Source) -> Array | Category:
    """Return a feature column as float64 (samples,) with NaN, or as a category."""
    own = _Column.of(column, name, source)
    amounts = bool(own.unit or own.limits)  # which no category has
    if (own.listed or (own.category and not amounts)) and own.kind != "nothing":
        given = [text for text in own.texts[1] if text is not None]
        if not own.listed and source.dates is not None and _are_dates(given):
            return _days(own)
        if not own.listed:
            _check_unit(own, given)
            _check_public(own, given)
        encoded = own.levels()
        # without levels the other clients say what kind it is
        return encoded if encoded.levels else np.full(len(column), np.nan)
    if own.kind == "time" and source.dates is None:
        raise _unfit_dates(own)
    if own.kind == "time":
        return _days(own)
    values = own.numbers(("text",), FINITE)
    if values is not None:
        return values + 0.0 if own.kind == "text" else values  # "-0" is 0
    codes, texts = own.texts
    given = [text for text in texts if text is not None]
    if all(text.lower() in _TRUTHS for text in given):
        lookup = [np.nan if t is None else _TRUTHS[t.lower()] for t in texts]
        return np.array([*lookup, np.nan])[codes]
    if source.dates is not None and _are_dates(given):
        return _days(own)
    _check_category(own, given)
    return own.levels()


def _days(own: _Column) -> Array:
    """Return dates as days since 1970-01-01 (samples,), NaN where missing; times count in UTC."""
    if own.kind == "time" and not _dated(own):
        raise _unfit_dates(own)
    if own.kind == "time":
        microseconds = own.values.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
        return array_of(microseconds.cast(pa.float64(), safe=False)) / 86_400e6
    codes, texts = own.texts
    order = own.source.dates or "days"
    days = [np.nan if text is None else day(text, order) for text in texts]
    if None in days:
        text = texts[days.index(None)] or ""
        said = f"{own.name} has {text!r} in row {own.row(text)}"
        if is_date(text, order):
            advice = "correct it, or leave the cell empty (missing)"
            if date_orders(one for one in texts if one is not None):
                advice = f"{_how_to_date(texts)}, or {advice}"
            raise own.source.error(f"{said}, a day or a time that does not exist", advice)
        raise own.source.error(
            f"{said}, which is no date with the year first: day and month could be taken for each "
            "other",
            f"{_how_to_date(texts)}, or list the column in exclude",
            "write dates as 2026-01-31",
        )
    return np.array([*days, np.nan], np.float64)[codes]


def _dated(own: _Column) -> bool:
    return bool(types.is_date(own.values.type) or types.is_timestamp(own.values.type))


def _how_to_date(texts: Sequence[str | None]) -> str:
    """Return what lets the texts of a column be read as dates."""
    fits = date_orders(text for text in texts if text is not None)
    if not fits:
        return 'write dates as 2026-01-31 and set dates = "days" (since 1970-01-01)'
    setting = " or ".join(f'"{one}"' for one in fits)
    if fits == ["days"]:
        return f"set dates = {setting} (since 1970-01-01)"
    which = ", whichever it is," if len(fits) > 1 else ""
    return f"set dates = {setting}{which} (days since 1970-01-01)"


def _are_dates(given: Sequence[str]) -> bool:
    return 2 * sum(bool(_DATE.fullmatch(one)) for one in given) > len(given)


def _unfit_dates(own: _Column) -> _UnfitError:
    start = "a feature is a number or a category: "
    if own.kind == "time" and not _dated(own):
        start += "convert it to a number, or "
    else:
        texts = () if own.kind == "time" else own.texts[1]
        start += f"{_how_to_date(texts)}, or "
    reason = _Reason(
        "have dates or times",
        start + "list it in exclude",
        start + "list them in exclude",
        "a feature is a number or a category: convert it to a number such as days since "
        "1970-01-01, or leave it out of the table",
    )
    return _UnfitError(own, "has dates or times", reason)


def _check_spelling(own: _Column, given: Sequence[str]) -> None:
    """Raise if texts are numbers, all of them, that another country or a spreadsheet wrote."""
    point, between = own.source.decimal, own.source.thousands
    bare = [own.bare(one) for one in given]
    every = [one for one in spellings_of(bare) if one != (point, between)]
    fits = [one for one in every if one[0] == point or (point, one[1]) not in every]
    if not fits:
        return
    words, keys = [], []
    for decimal, mark in fits:
        word = f"a decimal {'comma' if decimal == ',' else 'point'}"
        apart = [] if mark is None else [f"{mark!r} between thousands"]
        alone = decimal == point or len(fits) > 1
        words.append(" and ".join(apart if apart and alone else [word, *apart]))
        setting = [] if decimal == point else [f'decimal = "{decimal}"']
        setting += [] if mark is None else [f'thousands = "{mark}"']
        keys.append(" and ".join(setting))
    example = next(one for one in given if own.number(one) is None)
    advice = f"set {' or '.join(keys)}" + (", whichever it is" if len(keys) > 1 else "")
    usual = f"a decimal {'comma' if point == ',' else 'point'}"
    grouped = "nothing" if between is None else repr(between)
    plain = f"write them with {usual}, and {grouped} between thousands"
    if (point, between) != (".", None):  # it was set, or is that of a run's tables
        plain += ", as the other tables have them"
    said = f"numbers with {' or with '.join(words)}"
    reason = _Reason(f"have {said}", advice, advice, plain)
    raise _UnfitError(own, f"has {said} (such as {example!r})", reason, f" ({example!r})")


def _check_marks(own: _Column, given: Sequence[str]) -> None:
    """Raise if texts are numbers, some with a decimal point and some with a decimal comma."""
    written = {own.bare(one): one for one in given}
    both = mixed_marks_of(written)
    if both is None:
        return
    said = "has numbers with a decimal point and with a decimal comma"
    point, comma = (f"{written[one]!r} in row {own.row(written[one])}" for one in both)
    advice = "no setting reads both: write all of them with the same mark in the table"
    reason = _Reason(said.replace("has", "have", 1), advice, advice, advice)
    raise _UnfitError(own, f"{said} ({point}, {comma})", reason, f" ({point}, {comma})")


def _check_unit(own: _Column, given: Sequence[str]) -> None:
    """Raise if every text is a number with the same sign of a currency, or unit."""
    unit = unit_of([limit_of(one) or one for one in given], FEW_LEVELS)
    if not unit or unit == own.unit:
        return
    reason = _Reason(
        f"have numbers with {unit!r}, which are text",
        f"set {_as_unit(own, unit)}, or list the column in exclude or in categorical",
        f"set units = {{ ... }} with a unit for each, such as {_as_unit(own, unit)}, or list the "
        "columns in exclude or in categorical",
        f"write the numbers without {unit!r}",
    )
    said = f"has numbers with {unit!r} (such as {given[0]!r}), which are text"
    raise _UnfitError(own, said, reason, f" ({given[0]!r})")


def _as_unit(own: _Column, unit: str) -> str:
    """Return the setting by which numbers are read without a unit."""
    return f'units = {{ {own.setting} = "{unit}" }}'


def _check_category(own: _Column, given: list[str]) -> None:
    """Raise if a text column that is not listed as categorical is not plainly a category."""
    _check_spelling(own, given)
    _check_marks(own, given)
    _check_negatives(own, given)
    _check_unit(own, given)
    figures = [one for one in given if own.number(one) is not None]
    if figures:
        codes, texts = own.texts
        words = [one for one in given if own.number(one) is None]
        often = dict(zip(texts, np.bincount(codes[codes >= 0], minlength=len(texts)), strict=True))
        rare, usual = words, figures
        if sum(often[one] for one in figures) < sum(often[one] for one in words):
            rare, usual = figures, words
        where = f"{rare[0]!r} in row {own.row(rare[0])}"
        _check_among_numbers(own, given, words)
        reason = _Reason(
            "mix numbers and text",
            f"correct it, add {rare[0]!r} to missing, or list the column in categorical",
            "correct these values, add them to missing, or list the columns in categorical",
            f"correct it, or let it count as missing: --missing {rare[0]!r}",
        )
        said = f"mixes numbers and text: {where} beside values such as {usual[0]!r}"
        raise _UnfitError(own, said, reason, f" ({where})")
    units = {unit_of([one], 0): one for one in given}
    if 1 < len(units) <= _MOST_UNITS and "" not in units and _telling(own, given):
        shown = " and ".join(f"{one!r} in row {own.row(one)}" for one in [*units.values()][:2])
        advice = "write all numbers of the column in one unit, and set units"
        reason = _Reason("have numbers in several units", advice, advice, "write all in one unit")
        raise _UnfitError(own, f"has numbers in several units: {shown}", reason, f" ({shown})")
    _check_public(own, given)


def _check_negatives(own: _Column, given: Sequence[str]) -> None:
    """Raise if texts are numbers, some with a minus as spreadsheets write it, as in (1,200)."""
    negative = [one for one in given if negative_of(one)]
    if not 0 < len(negative) < len(given):
        return
    signed = [negative_of(one) or limit_of(one) or one for one in given]
    unit = own.unit or unit_of(signed, FEW_LEVELS)
    if not spellings_of([without_unit(one, unit) for one in signed]):
        return
    where = f"{negative[0]!r} in row {own.row(negative[0])}"
    minus = f"write them with a minus in front, as in {negative_of(negative[0])!r}"
    reason = _Reason("have negative numbers without a minus in front", minus, minus, minus)
    said = f"has negative numbers without a minus in front: {where}"
    raise _UnfitError(own, said, reason, f" ({where})")


def _check_among_numbers(own: _Column, given: Sequence[str], words: Sequence[str]) -> None:
    """Raise if the texts beside numbers are limits, such as "<5", or numbers with a unit."""
    where = f"{words[0]!r} in row {own.row(words[0])}"
    if all(own.number(limit_of(one)) is not None for one in words):
        plain = "write a number for what lies beyond a limit, such as the limit itself"
        advice = f"set limits = [{own.setting}], so that the limit itself counts, or {plain}"
        several = f"list them in limits, so that the limit itself counts, or {plain}"
        reason = _Reason("have limits beside numbers", advice, several, plain)
        raise _UnfitError(own, f"has limits beside numbers: {where}", reason, f" ({where})")
    unit = "" if own.unit else unit_of(words, 0)
    if not unit:
        return
    plain = next(one for one in given if own.number(one) is not None)
    said = f"numbers with {unit!r} and without"
    reason = _Reason(
        f"have {said}",
        f"if all are in {unit!r}, set {_as_unit(own, unit)}; else write all in one unit",
        "set units for those that are in one unit, and write the others in one",
        f"write all of them in one unit, without {unit!r}",
    )
    said = f"has {said}: {where} beside values such as {plain!r}"
    raise _UnfitError(own, said, reason, f" ({where})")


def _check_public(own: _Column, given: list[str]) -> None:
    """Raise if a text column that is not listed as categorical may tell single rows."""
    problem = _telling(own, given)
    if problem == _DATES:
        raise _unfit_dates(own)
    if problem and all(_DURATION.fullmatch(one) for one in given):
        of_day = all(_TIME_OF_DAY.fullmatch(one) for one in given)
        what = "times of day" if of_day else "durations"
        plain = "write minutes since midnight" if of_day else "write minutes"
        reason = _Reason(
            f"have {what}",
            f"{plain}, or list it in exclude",
            f"{plain}, or list them in exclude",
            f"{plain}, or leave it out of the table",
        )
        raise _UnfitError(own, f"has {what} (such as {given[0]!r})", reason)
    if problem:
        advice = (
            "all clients come to know the texts of a category: list {0} in exclude, or in "
            "categorical if {1} texts say nothing of single rows"
        )
        reason = _Reason(
            "have texts that may tell single rows",
            advice.format("it", "its"),
            advice.format("them", "their"),
            "leave it out of the table",
        )
        raise _UnfitError(own, problem, reason)


_DATES = "has dates or times"


def _telling(own: _Column, given: list[str]) -> str:
    """Return why the texts of a column may tell single rows, without one of them; "": no reason."""
    codes, texts = own.texts
    present = np.array([*(text is not None for text in texts), False])[codes]
    rows, levels = int(present.sum()), len({canonical(text) for text in given})
    if _are_dates(given):
        return _DATES
    if levels > MOST_LEVELS or (levels > FEW_LEVELS and levels * LEAST_ROWS > rows):
        return f"has {levels} different texts in {rows} rows"
    if any(len(one) > LONGEST_LEVEL or len(one.split()) > MOST_WORDS for one in given):
        return f"has texts of more than {LONGEST_LEVEL} characters or {MOST_WORDS} words"
    if any(_ADDRESS.search(one) for one in given):
        return "has addresses of mail or of pages"
    return ""


def ids_of(column: pa.ChunkedArray | None, rows: int, source: Source) -> NDArray[Any]:
    """Return a column's ids as int64 if every one is a whole number, else as text.

    Without a column the rows belong to one client alone, and are called "<client>:<row>" from 0.
    """
    if column is None:
        if source.id_type is not None:
            raise source.error(
                f"id_type is {source.id_type!r} but there is no id", "set id or remove id_type"
            )
        return np.array([f"{source.name}:{row}" for row in range(rows)], np.str_)
    own = _Column.of(column, source.id or "samples", source, "id ")
    if own.kind == "truth":
        advice = "an id tells all rows apart: name the column that does"
        raise source.error(f"{own.name} has true and false", advice)
    plain = own.kind == "whole" and own.values.type != pa.uint64() and not own.values.null_count
    if plain and source.id_type != "text":
        return _unique(array_of(own.values).astype(np.int64, copy=False), own)
    ids = own.trimmed
    absent = np.flatnonzero(array_of(ids.is_null()))
    if len(absent):
        written = str(own.values[absent[0]].as_py() or "").strip()
        counts = f", where {written!r} counts as missing" if written else ""
        raise source.error(
            f"{own.name} has no id in {several(len(absent), 'row')} (first: row {absent[0] + 1})"
            f"{counts}",
            "every row needs an id: fill it in or drop the row",
        )
    if types.is_floating(own.values.type):
        ids = column_of([canonical(text) for text in ids.to_pylist()])
    _check_whole_ids(own, ids)
    if source.id_type != "text":
        whole, wrong = _whole_numbers(ids, strict=source.id_type is None)
        if whole is not None:
            return _unique(whole, own)
        if source.id_type == "integer":
            raise source.error(
                f"{own.name} has {ids[wrong].as_py()!r} in row {wrong + 1}, which is not a whole "
                "number of 64 bits",
                'correct it or set id_type = "text"',
                "correct it",
            )
    return _unique(_texts_of(ids), own)


def _texts_of(column: pa.ChunkedArray) -> NDArray[np.str_]:
    """Return text, of which none is null, as an array of NumPy, (values,)."""
    texts = column.combine_chunks()
    if isinstance(texts, pa.ChunkedArray) or not len(texts):
        return np.array(column.to_pylist(), np.str_)
    _, starts, letters = texts.buffers()
    kind = np.int32 if types.is_string(texts.type) else np.int64
    ends = np.frombuffer(starts, kind)[texts.offset : texts.offset + len(texts) + 1]
    written = np.frombuffer(letters, np.uint8)[ends[0] : ends[-1]]
    sizes = np.diff(ends)
    if not sizes.any() or not written.min() or written.max() > 127:  # 0 ends a text of NumPy
        return np.array(column.to_pylist(), np.str_)
    found = np.zeros((len(texts), sizes.max()), np.uint32)
    found[np.arange(found.shape[1]) < sizes[:, None]] = written
    return found.view(f"U{found.shape[1]}")[:, 0]


def _check_whole_ids(own: _Column, ids: pa.ChunkedArray) -> None:
    """Raise if ids lost digits before they were read."""
    if own.source.id_type == "text":
        return
    short = next(iter(ids.filter(arrow.match_substring_regex(ids, _SHORTENED)).to_pylist()), None)
    if short is None and types.is_floating(own.values.type):
        texts: list[str] = ids.to_pylist()
        short = next((text for text in texts if abs(number(text) or 0.0) > EXACT), None)
    if short is not None:
        raise own.source.error(
            f"{own.name} has {short!r}, a number of which digits may be lost, so that two ids "
            f"can be one (decimal numbers are exact up to 2^53 = {EXACT})",
            "write ids in full, as whole numbers or as text",
        )


def _whole_numbers(ids: pa.ChunkedArray, *, strict: bool) -> tuple[NDArray[np.int64] | None, int]:
    """Return ids as whole numbers of 64 bits, or None and the position of the first that is none.

    Strictly, "007" is none since its zeros may matter.
    """
    matched = array_of(arrow.match_substring_regex(ids, _WHOLE if strict else _WITH_ZEROS))
    if not matched.all():
        return None, int(matched.argmin())
    digits = arrow.replace_substring_regex(ids, _AROUND_DIGITS, r"\1\2")
    try:
        return array_of(digits.cast(pa.int64())), -1
    except pa.ArrowInvalid:  # beyond 64 bits
        texts: list[str] = digits.to_pylist()
        beyond = (len(text) > 20 or not -(2**63) <= int(text) < 2**63 for text in texts)
        return None, list(beyond).index(True)


def _unique(samples: NDArray[Any], own: _Column) -> NDArray[Any]:
    if have_repeats(samples):
        ids, counts = np.unique(samples, return_counts=True)
        repeated = counts > 1
        twice = ids[repeated][0]
        rows = np.flatnonzero(samples == twice)[:2] + 1
        plain = advice = "every sample needs one row: aggregate or drop the repeated rows"
        if repeated.sum() > _VISITS * len(ids):
            visits = "if they are samples of their own, such as visits of a patient"
            named = f"split_by = {own.source.id!r} and, as id, what tells them apart, or none"
            advice, plain = f"{plain}; {visits}, set {named}", f"{plain}, or name another column"
        raise own.source.error(
            f"{own.name} has {twice.item()!r} in {counts[repeated][0]} rows (first: rows "
            f"{rows[0]} and {rows[1]}; {several(int(repeated.sum()), 'id repeats', 'ids repeat')})",
            *(advice, plain),
        )
    return samples


_VISITS = 0.1  # share of the ids of several rows from which on these are samples of their own


def labels_of(column: pa.ChunkedArray, source: Source) -> LabelColumn:
    """Return labels: float64 with NaN if all are numbers, else canonical text."""
    name = source.label or "label"
    own = _Column.of(column, name, source, "label ")
    marked = own.marked if own.kind == "text" else 0
    used: dict[str, bool] = {}
    if source.label_map:
        codes, texts = own.texts
        named = {canonical(key): canonical(str(to)) for key, to in source.label_map.items()}
        there = [None if one is None else own.canonical(one) for one in texts]
        known = {*there, *map(canonical, own.source.missing)}
        used = {key: canonical(key) in known for key in source.label_map}
        pairs = zip(there, texts, strict=True)
        mapped = [None if label is None else named.get(label, one) for label, one in pairs]
        marked += own.rows_of([one == "" for one in mapped])
        column = column_of(pa.array(np.array([*mapped, None], object)[codes], pa.string()))
        own = _Column.of(column, name, source, "label ")
    if own.kind == "time":
        raise source.error(
            f"{own.name} has dates or times (first: {str(own.first)!r})",
            "a label is a number or a class: convert it, or name another column",
        )
    values = own.numbers(
        ("text", "truth"),
        "expected a finite number or a class: correct it or leave the cell empty (no label)",
    )
    if values is None:
        codes, texts = own.texts
        given = [text for text in texts if text is not None]
        try:
            _check_spelling(own, given)
        except _UnfitError as one:
            said = f"{own.name} {one.said}"
            raise source.error(said, one.reason.advice, one.reason.without_settings) from None
        if len(given) > FEW_LEVELS and not own.unit and (unit := unit_of(given, FEW_LEVELS)):
            raise source.error(
                f"{own.name} has numbers with {unit!r} (such as {given[0]!r}), which are text",
                f"set {_as_unit(own, unit)}",
                f"write the numbers without {unit!r}",
            )
        problem = _telling(own, given)
        names = ["" if text is None else own.canonical(text) for text in texts]
        return LabelColumn(
            name, np.array([*names, ""], np.str_)[codes], problem, marked, used, own.unit
        )
    return LabelColumn(name, values, marked=marked, used=used, unit=own.unit)


def weights_of(column: pa.ChunkedArray, labels: LabelColumn | None, source: Source) -> Array:
    """Return the weight of each row's loss, (samples,); 1 where there is no label."""
    own = _Column.of(column, str(source.weights), source, "weights ")
    if labels is None:
        raise source.error(
            f"{own.name} is set but no label", "weights are of labelled rows: set label too"
        )
    advice = (
        f"a weight is a number above 0, from {LEAST_WEIGHT:g} to {MOST_WEIGHT:g}: correct it, or "
        "leave the row out"
    )
    values = own.numbers(("text",), advice, np.inf)  # see below
    if values is None:
        text = next(one for one in own.texts[1] if one is not None and own.number(one) is None)
        raise source.error(f"{own.name} is {text!r} in row {own.row(text)}", advice)
    given = labels.values
    known = ~np.isnan(given) if given.dtype.kind == "f" else given != ""
    wrong = np.flatnonzero(known & ~((values >= LEAST_WEIGHT) & (values <= MOST_WEIGHT)))
    if len(wrong):
        row = wrong[0]
        said = "empty" if np.isnan(values[row]) else f"{values[row]:g}"
        raise source.error(f"{own.name} is {said} in row {row + 1}", advice)
    return np.where(known, values, 1.0)


def split_keys_of(column: pa.ChunkedArray, source: Source) -> NDArray[np.str_]:
    """Return as text which group each row belongs to, (samples,): a value, or the part that counts.

    Numbers are text too, so that 7 here and "7" or 7.0 there are one group.
    """
    own = _Column.of(column, str(source.split_by), source, "split_by ")
    codes, texts = own.texts
    absent = own.rows_of([one is None for one in texts])
    if absent:
        rows = np.array([one is None for one in [*texts, None]])[codes]
        raise source.error(
            f"{own.name} has no value in {several(absent, 'row')} (first: row {rows.argmax() + 1})",
            "which rows belong together must be known of each: fill it in, such as by the row's "
            "id, or drop the row",
        )
    keys = [own.canonical(one or "") for one in texts]
    if source.split_by_pattern is not None:
        found = [re.search(source.split_by_pattern, one) for one in keys]
        if None in found:
            text = texts[found.index(None)] or ""
            raise source.error(
                f"{own.name} has a value in row {own.row(text)} in which split_by_pattern, "
                f"{source.split_by_pattern!r}, is nowhere found",
                "correct the pattern, or the value",
            )
        parts = [one for one in found if one is not None]
        keys = [next(filter(None, one.groups()), one[0]) for one in parts]
    return np.array([*keys, ""], np.str_)[codes]


def coded_texts(
    column: pa.ChunkedArray, name: str, source: Source
) -> tuple[NDArray[np.int32], Texts]:
    """Return which text each row of a column has (samples,), -1 where it is missing; and the texts.

    Numbers, dates and truth values are written as text. TableError for bytes, lists and the like.
    """
    own = _Column.of(column, name, source)
    if len(own.values) >= _MANY:
        return own.texts_of_many
    codes, texts = own.texts
    places: dict[str, int] = {}  # blanks around a text may have told two apart
    target = [-1 if one is None else places.setdefault(one, len(places)) for one in texts]
    return np.array([*target, -1], np.int32)[codes], Texts.of(places)
