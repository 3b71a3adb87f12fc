"""Parse numbers and dates, and spell categories and classes alike that files write differently."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import cache

from intarsia.data.texts import Texts

_MINUS = "\u2212"  # the sign of mathematics, which stands for "-" too
# what stands between groups of three digits -> the characters that look like it
_ALIKE = {" ": " \u00a0\u2009\u202f", "'": "'\u2019"}
# how numbers may be written: decimal, thousands
_SPELLINGS = (
    *((".", None), (",", None), (".", ","), (",", "."), (".", " "), (",", " ")),
    *((".", "'"), (",", "'"), (".", "_")),
)
_WORD = re.compile(r"[^\W\d_][^\W\d]{0,11}[23]?(/[^\W\d]{1,12}[23]?)?|°\w")  # of a unit
_WORDS = re.compile(r"[^\W\d_]{1,12}( [^\W\d_]{1,12}){1,2}")  # as in "12 days ago"
_AND_UNIT = re.compile(
    rf"(\D*?)\s*[+-]?\d([\d.,{''.join(_ALIKE.values())}]*\d)?([eE][+-]?\d+)?\s*(|\D.*)"
)
_LIMIT = re.compile(r"[<>≤≥]=?\s*(.+)")  # as "<5", of a laboratory
# in front of an amount, beside the signs of currencies
_CURRENCIES = {
    *("EUR", "USD", "GBP", "CHF", "JPY", "CNY", "SEK", "NOK", "DKK", "PLN", "CZK", "HUF", "RON"),
    *("INR", "AUD", "CAD", "NZD", "BRL", "MXN", "ZAR", "TRY", "KRW", "Rs.", "Fr.", "kr"),
}
# how else a unit is written, in small letters -> how it is compared
_SAME_UNIT = {
    **dict.fromkeys(("€", "eur", "euro"), "EUR"),
    **{"$": "USD", "usd": "USD", "£": "GBP", "gbp": "GBP", "percent": "%", "per cent": "%"},
}
_SPACED = re.compile(r"\s*([/*·^])\s*")  # as in "mg / dl"
_LITRE = re.compile(r"(?<![^\W\d_])([cdmnµμ]?)L(?![^\W\d_])")  # as in "mg/dL"
_YEAR_FIRST = re.compile(r"(\d{4})[-/.](\d\d?)[-/.](\d\d?)(.*)")
_YEAR_LAST = re.compile(r"(\d\d?)[-/.](\d\d?)[-/.](\d{4})(| .*|T.*)")
_NUMBERED = re.compile(r"(.*?)(0|[1-9][0-9]*)")
_LEADING_ZERO = re.compile(r"[+-]?0\d")


def number(text: str, decimal: str = ".", thousands: str | None = None) -> float | None:
    """Return the number that a text says, or None; "nan" and "inf" are numbers.

    `thousands` may stand between groups of three digits.
    """
    if _numbers(decimal, thousands).fullmatch(text):
        plain = _between(thousands).sub("", text) if thousands else text
        return float(plain.replace(decimal, ".").replace(_MINUS, "-"))
    bare = text.lower().lstrip("+-")
    return float(text) if bare in ("nan", "inf", "infinity") else None


@cache
def _numbers(decimal: str, thousands: str | None) -> re.Pattern[str]:
    """Return the pattern of numbers."""
    grouped = rf"\d{{1,3}}({_between(thousands).pattern}\d{{3}})+|" if thousands else ""
    point = re.escape(decimal)
    return re.compile(rf"[+{_MINUS}-]?(({grouped}\d+)({point}\d*)?|{point}\d+)([eE][+-]?\d+)?")


@cache
def _between(thousands: str) -> re.Pattern[str]:
    """Return the pattern of what stands between groups of three digits."""
    return re.compile(f"[{re.escape(_ALIKE.get(thousands, thousands))}]")


def spellings_of(texts: Sequence[str]) -> list[tuple[str, str | None]]:
    """Return how texts may be written that are numbers, all of them: decimal and thousands.

    A mark between thousands that none of them needs is not among them.
    """
    found: list[tuple[str, str | None]] = []
    for decimal, mark in _SPELLINGS:  # those without a mark come first
        if (decimal, None) not in found and are_numbers(texts, decimal, mark):
            found.append((decimal, mark))
    return found


def are_numbers(texts: Iterable[str], decimal: str = ".", thousands: str | None = None) -> bool:
    """Return whether all of some texts are numbers in a spelling."""
    point = decimal == "."
    if isinstance(texts, Texts):
        if (point or thousands is None) and texts.plain:
            return point or not texts.any_like(r"\.")
        if not point and thousands is None and texts.with_point.plain:
            return True
    return all(number(text, decimal, thousands) is not None for text in texts)


def mixed_marks_of(texts: Iterable[str]) -> tuple[str, str] | None:
    """Return a number with a decimal point and one with a decimal comma, where texts are both.

    None: not so, or some text is no number in any spelling.
    """
    found: dict[str, str] = {}
    for text in texts:
        marks = {decimal for decimal, mark in _SPELLINGS if number(text, decimal, mark) is not None}
        if not marks:
            return None
        if len(marks) == 1:
            found.setdefault(marks.pop(), text)
    return (found["."], found[","]) if len(found) == 2 else None


def unit_of(texts: Sequence[str], many: int) -> str:
    """Return the sign or code of a currency, or "%", that all texts have beside a number; "": none.

    Of more than so `many` texts also a word behind it, as in "71 days" and "5 mg/l", and of
    several texts up to three, as in "12 days ago".
    """
    parts = [_AND_UNIT.fullmatch(text) for text in texts]
    units = {"" if one is None else (one[1].lstrip("+-\u2212") + one[4]).strip() for one in parts}
    unit = units.pop() if len(units) == 1 else ""
    signs = all(one in "%\u2030~≈" or unicodedata.category(one) == "Sc" for one in unit)
    behind = len(texts) > many and all(one is not None and not one[1] for one in parts)
    known = signs or unit in _CURRENCIES
    worded = _WORD.fullmatch(unit) or (len(texts) > 1 and _WORDS.fullmatch(unit))
    return unit if known or (behind and worded) else ""


def without_unit(text: str, unit: str) -> str:
    """Return a text without the unit behind or before its number, as it is where it has none."""
    if not unit:
        return text
    if text.endswith(unit):
        return text.removesuffix(unit).rstrip()
    sign = text[:1] if text[:1] in ("+", "-", _MINUS) else ""
    rest = text.removeprefix(sign).lstrip()
    return sign + rest.removeprefix(unit).lstrip() if rest.startswith(unit) else text


def same_unit(unit: str) -> str:
    """Return a unit as it is compared with others: € is EUR, percent is %, mg/dL is mg/dl."""
    plain = _SPACED.sub(r"\1", unicodedata.normalize("NFKC", unit.strip()))
    return _SAME_UNIT.get(plain.casefold(), _LITRE.sub(r"\1l", plain))


def limit_of(text: str) -> str:
    """Return what a text names as a limit, as in "<5" and ">= 200"; "": it names none."""
    found = _LIMIT.fullmatch(text)
    return found[1] if found else ""


def negative_of(text: str) -> str:
    """Return with a minus what spreadsheets write as (1,200) or 1,200-; "": it is not so."""
    found = re.fullmatch(r"\((.+)\)|(.+)-", text)
    return f"-{found[1] or found[2]}" if found else ""


def day(text: str, order: str = "days") -> float | None:
    """Return a date, with a time or without, as days since 1970-01-01 in UTC.

    None: it is no date that begins with the year, or as `dates` of a source says (`order`).
    """
    parts, last = _YEAR_FIRST.fullmatch(text), _YEAR_LAST.fullmatch(text)
    if parts is not None:
        year, month, of_month, time = parts.groups()
    elif last is not None and order == "day first":
        of_month, month, year, time = last.groups()
    elif last is not None and order == "month first":
        month, of_month, year, time = last.groups()
    else:
        return None
    try:
        moment = datetime.fromisoformat(f"{year}-{int(month):02}-{int(of_month):02}{time}")
    except ValueError:
        return None
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (aware - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() / 86_400


def is_date(text: str, order: str = "days") -> bool:
    """Return whether a text is written as `day` reads dates, be there such a day or no."""
    last = order != "days" and _YEAR_LAST.fullmatch(text) is not None
    return last or _YEAR_FIRST.fullmatch(text) is not None


def date_orders(*columns: Iterable[str]) -> list[str]:
    """Return by which of a source's `dates` all texts of some columns are dates that exist."""
    given = [texts if isinstance(texts, Texts) else list(texts) for texts in columns]
    orders = ("days", "day first", "month first")
    found = [one for one in orders if all(all_dates(texts, one) for texts in given)]
    return ["days"] if "days" in found else found


def all_dates(texts: Iterable[str], order: str) -> bool:
    """Return whether `day` reads all of some texts."""
    return all(day(text, order) is not None for text in texts)


def canonical(text: str, value: float | None = None) -> str:
    """Return a category or class as text that does not depend on the file's number format.

    "1.0", "+1" and "1" are "1"; "True" is "true"; "01" stays, since it may be a code, and so does
    a code of more digits than a number keeps. `value` is the number that the text is where the
    file has a decimal comma or thousands.
    """
    text = text.strip()
    if text.lower() in ("true", "false"):
        return text.lower()
    value = number(text) if value is None else value
    if value is None or not math.isfinite(value) or _LEADING_ZERO.match(text):
        return text
    if value == int(value) and abs(value) < 2**53:
        return str(int(value))
    return text if text.isdecimal() and text.isascii() else repr(value)


def ascending(texts: Iterable[str]) -> tuple[str, ...]:
    """Return texts in ascending order, by number where all are numbers."""
    values = {text: number(text) for text in texts}
    if all(value is not None for value in values.values()):
        return tuple(sorted(values, key=lambda text: (values[text] or 0.0, text)))
    return tuple(sorted(values))


def numbered(names: Iterable[str]) -> dict[str, int] | None:
    """Return the number that each name is, or ends in after the same letters; None: not all do.

    Such are the names that columns get which have none of their own: 1, 2, … or x0, x1, …
    """
    found = {name: _NUMBERED.fullmatch(name) for name in names}
    if None in found.values() or len({one[1] for one in found.values() if one}) > 1:
        return None
    return {name: int(one[2]) for name, one in found.items() if one}
