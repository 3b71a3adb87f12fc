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

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as arrow
from numpy.typing import NDArray
from pyarrow import types

from intarsia.core.block import LEAST_WEIGHT, MOST_WEIGHT, Array, have_repeats
from intarsia.data.column import EXACT, FINITE, MANY, Column, column_of
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


@dataclass(frozen=True)
class _Reason:
    """Why columns are no features, and what to do: of one, of several, without settings."""

    several: str
    advice: str
    advice_for_several: str
    without_settings: str


class _UnfitError(Exception):
    """A column is no feature; those of a table for one reason are told together."""

    def __init__(self, own: Column, said: str, reason: _Reason, detail: str = "") -> None:
        super().__init__(said)
        self.own, self.said, self.reason, self.detail = own, said, reason, detail


def numbers_of(column: pa.Array, name: str, source: Source, before: int) -> Array:
    """Return some rows of a column of numbers as float64 with NaN; `before` are those before."""
    found = Column.of(column_of(column), name, source, before=before).numbers((), FINITE)
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
    own = Column.of(column, name, source)
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


def _days(own: Column) -> Array:
    """Return dates as days since 1970-01-01 (samples,), NaN where missing; times count in UTC."""
    if own.kind == "time" and not _dated(own):
        raise _unfit_dates(own)
    if own.kind == "time":
        infinite = _infinite(own)
        microseconds = own.values.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
        found = array_of(microseconds.cast(pa.float64(), safe=False)) / 86_400e6
        return np.where(infinite, np.nan, found) if infinite.any() else found
    codes, texts = own.texts
    order = own.source.dates or "days"
    days = [np.nan if text is None else day(text, order) for text in texts]
    if None in days:
        text = texts[days.index(None)] or ""
        said = f"{own.name} has {text!r} in row {own.row(text)}"
        if text.lower().lstrip("+-") in ("infinity", "inf"):
            raise _infinite_day(own, said, text)
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


def _infinite(own: Column) -> NDArray[np.bool_]:
    """Return which days or moments are infinite, (samples,): databases write the largest numbers.

    TableError if one does not stand for a missing value.
    """
    bits = 32 if types.is_date32(own.values.type) else 64
    moments = own.values.cast(pa.int32() if bits == 32 else pa.int64())
    numbers: Array = array_of(moments.cast(pa.float64(), safe=False))
    largest = 2.0 ** (bits - 1) - 1
    for infinite, text in ((numbers >= largest, "infinity"), (numbers <= -largest, "-infinity")):
        if infinite.any() and text not in own.source.missing_words:
            row = own.before + int(infinite.argmax()) + 1
            raise _infinite_day(own, f"{own.name} has {text!r} in row {row}", text)
    odd: NDArray[np.bool_] = np.abs(numbers) >= largest
    return odd


def _infinite_day(own: Column, said: str, text: str) -> TableError:
    return own.source.error(
        f"{said}, which is no day",
        f'replace it by a day or by an empty cell, add "{text}" to missing, or list the column in '
        "exclude",
        "replace it by a day or by an empty cell (missing)",
    )


def _dated(own: Column) -> bool:
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


def _unfit_dates(own: Column) -> _UnfitError:
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


def _check_spelling(own: Column, given: Sequence[str]) -> None:
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


def _check_marks(own: Column, given: Sequence[str]) -> None:
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


def _check_unit(own: Column, given: Sequence[str]) -> None:
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


def _as_unit(own: Column, unit: str) -> str:
    """Return the setting by which numbers are read without a unit."""
    return f'units = {{ {own.setting} = "{unit}" }}'


def _check_category(own: Column, given: list[str]) -> None:
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


def _check_negatives(own: Column, given: Sequence[str]) -> None:
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


def _check_among_numbers(own: Column, given: Sequence[str], words: Sequence[str]) -> None:
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


def _check_public(own: Column, given: list[str]) -> None:
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
            "categorical if {1} texts say nothing of single rows (with least_rows = 5 nobody "
            "learns those that fewer rows have)"
        )
        reason = _Reason(
            "have texts that may tell single rows",
            advice.format("it", "its"),
            advice.format("them", "their"),
            "leave it out of the table",
        )
        raise _UnfitError(own, problem, reason)


_DATES = "has dates or times"


def _telling(own: Column, given: list[str]) -> str:
    """Return why the texts of a column may tell single rows, without one of them; "": no reason."""
    codes, texts = own.texts
    present = np.array([*(text is not None for text in texts), False])[codes]
    rows, levels = int(present.sum()), len({canonical(text) for text in given})
    if _are_dates(given):
        return _DATES
    if any(len(one) > LONGEST_LEVEL or len(one.split()) > MOST_WORDS for one in given):
        return f"has texts of more than {LONGEST_LEVEL} characters or {MOST_WORDS} words"
    if any(_ADDRESS.search(one) for one in given):
        return "has addresses of mail or of pages"
    if levels > MOST_LEVELS or (levels > FEW_LEVELS and levels * LEAST_ROWS > rows):
        return f"has {levels} different texts in {rows} rows"
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
    own = Column.of(column, source.id or "samples", source, "id ")
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


def _check_whole_ids(own: Column, ids: pa.ChunkedArray) -> None:
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


def _unique(samples: NDArray[Any], own: Column) -> NDArray[Any]:
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
    own = Column.of(column, name, source, "label ")
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
        own = Column.of(column, name, source, "label ")
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
    own = Column.of(column, str(source.weights), source, "weights ")
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
    own = Column.of(column, str(source.split_by), source, "split_by ")
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
    own = Column.of(column, name, source)
    if len(own.values) >= MANY:
        return own.texts_of_many
    codes, texts = own.texts
    places: dict[str, int] = {}  # blanks around a text may have told two apart
    target = [-1 if one is None else places.setdefault(one, len(places)) for one in texts]
    return np.array([*target, -1], np.int32)[codes], Texts.of(places)
