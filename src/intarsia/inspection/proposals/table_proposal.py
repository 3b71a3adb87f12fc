"""A client's table as it looks, and what is proposed for it.

`Column` has a column's different values, before anything is made of them. `TableProposal` has what
is proposed for one table, and `Matched` the rows that two tables have in common.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import repeat
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from intarsia.data.formats.parquet import ParquetColumns
from intarsia.data.labels import MOST_NUMBER_CLASSES
from intarsia.data.parsing import canonical, day
from intarsia.data.source import LEAST_ROWS, Source
from intarsia.data.texts import Texts
from intarsia.errors import TableError
from intarsia.inspection.proposals.column_names import is_id
from intarsia.inspection.tails import (
    LABELS_FAR,
    Tail,
    advice_on_label,
    amounts_among,
    stand_ins_among,
    tail_of,
)
from intarsia.privacy.entity_matching.normalisation import RULES_TRIED, Rule, by_rules, normalised

MOST_ROWS = 20_000  # by which columns are compared in pairs
LEAST_SHARED = 20  # rows by which two columns are compared
LEAST_OF_EACH = 5  # such rows for each value, by which two columns have the same in other words
_LEAST_ANSWERS = 4  # columns of one scale
_FIGURES = re.compile(r"\d+")
_WHOLE = r"^(0|-?[1-9][0-9]{0,14})$"  # as numbers are written everywhere
# as NACE and other lists of classes number them
_WORDS = r"^[A-Za-z]([ -~]*[!-~])?$"  # that no number is, nor has blanks at its end
_SPOKEN = r"^(?i:true|false|nan|inf|infinity)$"  # a truth value or a number all the same
_PLAIN_ID = r"^[A-Za-z1-9][A-Za-z0-9]*$"
_GROUPED, _ZEROS = r"^[0-9]{2}(\.[0-9]{1,2})+$", r"^0[0-9]+(\.[0-9]+)*$"
_SCALE = (4, 12)  # steps that it has, at least and at most
_MOST_FORM_CODES = 7  # from 0 to 6, say; where 8 is one, 9 is the next


@dataclass(frozen=True, eq=False)
class Column:
    """A column as it looks before anything is made of it."""

    name: str
    codes: NDArray[np.int32]  # (rows,) position in texts, -1 where missing
    texts: Texts
    figures: array[float] | None  # the number that each text is; None: some are none

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return len(self.codes)

    @cached_property
    def missing(self) -> float:
        """Return the share of rows without a value."""
        return float((self.codes < 0).mean()) if self.rows else 0.0

    @cached_property
    def whole(self) -> bool:
        """Return whether all values are whole numbers."""
        if self.figures is None:
            return False
        found = np.frombuffer(self.figures) if self.figures else np.zeros(0)
        return bool((np.isfinite(found) & (found == np.trunc(found))).all())

    @property
    def exact(self) -> bool:
        """Return whether all values are whole numbers that no other is, as floats hold them."""
        return self.whole and max(map(abs, self.figures or (0.0,))) < 2**53

    @cached_property
    def steps(self) -> frozenset[float]:
        """Return the different numbers, but for what may stand for a missing value."""
        return frozenset(self.figures or ()) - {*self.stand_ins, self.doubtful_code}

    @property
    def distinct(self) -> bool:
        """Return whether every row has a value of its own."""
        return len(self.texts) == self.rows > 1 and not self.missing

    @cached_property
    def truths(self) -> bool:
        """Return whether all values are true, false, 1 or 0, which are read as 1 and 0."""
        return self.figures is None and different(self.texts, 5) <= {"true", "false", "1", "0"}

    @cached_property
    def coded(self) -> bool:
        """Return whether numbers, or groups of figures as in 01.11, have zeros in front."""
        if not self.texts.any_like(_ZEROS) or not (self.whole or self.texts.all_like(_GROUPED)):
            return False
        return len(self.texts) < _LEAST_DATES or not all(map(_is_short_date, self.texts))

    @property
    def numbered(self) -> bool:
        """Return whether the values are consecutive whole numbers."""
        span = self.figures or (0.0,)
        return self.whole and self.distinct and max(span) - min(span) == self.rows - 1

    @property
    def tail(self) -> Tail:
        """Return where a few of the numbers are far from the rest."""
        return self._seen[0]

    @cached_property
    def advice_on_label(self) -> str:
        """Return what to compare where a few of the numbers, as labels, are far from the rest."""
        amounts = np.zeros(0) if self.figures is None else self._amounts
        tail = tail_of(amounts, LABELS_FAR)
        if not tail:
            return ""
        delta = "the way between the label's quartiles"  # others get the file
        return advice_on_label(tail, delta, positive=amounts.min() > 0)

    @property
    def stand_ins(self) -> tuple[int, ...]:
        """Return the numbers, each of several rows, that may stand for a missing value."""
        return self._seen[1]

    @property
    def doubtful_code(self) -> int | None:
        """Return 9, 99 or 999 among a few codes from 0 or 1 on, each the next number; None: not so.

        It is often how forms write that something is not known, as in 0, 1, 9 and 1, 2, 3, 4, 9.
        """
        if len(self.texts) > _MOST_FORM_CODES + 1:
            return None
        *codes, last = sorted(self.figures or (0.0,))
        begins = 2 <= len(codes) <= _MOST_FORM_CODES and codes[0] in (0, 1)
        consecutive = begins and codes == [codes[0] + at for at in range(len(codes))]
        if not consecutive or last not in (9, 99, 999):
            return None
        often = int((self.codes == (self.figures or ()).index(last)).sum()) >= LEAST_ROWS
        return int(last) if often else None

    @property
    def span(self) -> NDArray[np.float64] | None:
        """Return tenth, middle and nine tenths of more than a few different numbers; None: none."""
        if self.figures is None or len(self.texts) <= MOST_NUMBER_CLASSES:
            return None
        return np.quantile(self._amounts, (0.1, 0.5, 0.9))

    @cached_property
    def _seen(self) -> tuple[Tail, tuple[int, ...]]:
        """Return where numbers are far from the rest, and which stand for none; not the numbers."""
        if self.figures is None:
            return "", ()
        return tail_of(self._amounts), self._stand_ins

    @property
    def _amounts(self) -> NDArray[np.float64]:
        """Return the numbers of the rows that have one, but for what may stand for none."""
        return amounts_among(self.numbers, self._stand_ins)

    @cached_property
    def _stand_ins(self) -> tuple[int, ...]:
        figures = np.frombuffer(self.figures) if self.figures else np.zeros(0)
        rows = np.bincount(self.codes[self.codes >= 0], minlength=len(figures))
        numbers, place = np.unique(figures, return_inverse=True)
        counts = np.bincount(place, rows, len(numbers)).astype(np.intp)
        there = np.isfinite(numbers)
        return stand_ins_among(numbers[there], counts[there])

    @property
    def numbers(self) -> NDArray[np.float64]:
        """Return the number of each row, NaN where there is none, (rows,)."""
        return np.append(self.figures or (), np.nan)[self.codes]

    def canonical(self, rows: NDArray[np.intp] | slice = slice(None)) -> NDArray[np.str_]:
        """Return the values of some rows as text that is written alike everywhere, (rows,)."""
        codes, place = np.unique(self.codes[rows], return_inverse=True)
        here = codes[codes >= 0]  # if a row has none, its code is the first
        texts: Iterable[str] = self.texts.at(here)
        if not self._written_alike:
            figures = repeat(None) if self.figures is None else map(self.figures.__getitem__, here)
            texts = map(canonical, texts, figures)
        return np.array([*[""] * (len(codes) - len(here)), *texts], np.str_)[place]

    @cached_property
    def values_there(self) -> Texts:
        """Return the different values, written as in `canonical`."""
        return self.texts if self._written_alike else Texts.of({*self.written})

    @cached_property
    def under_all_rules(self) -> Texts:
        """Return the values after all rules that are tried, by which some may become one."""
        if self.whole and not self.coded:  # which no rule changes
            return self.values_there
        if self.texts.all_like(_PLAIN_ID):  # of which the rules change the case alone
            return self.values_there.in_small_letters()
        ruled = by_rules(np.array([*self.values_there], np.str_), RULES_TRIED[-1])
        return Texts.of({*ruled.tolist()})

    @property
    def written(self) -> Iterable[str]:
        """Return the different values as text that is written alike everywhere."""
        if self._written_alike:
            return self.texts
        return map(canonical, self.texts, self.figures or repeat(None))

    @cached_property
    def _written_alike(self) -> bool:
        """Return whether all values are written alike everywhere, as whole numbers and words."""
        if self.texts.all_like(_WHOLE):
            return True
        words = self.figures is None and self.texts.all_like(_WORDS)
        return words and not self.texts.any_like(_SPOKEN)

    @cached_property
    def kinds(self) -> str:
        """Return what the values are, as labels: "two", "few", "numbers" or "" for none."""
        many = len(different(self.texts, MOST_NUMBER_CLASSES + 1))
        if many == 2:
            return "two"
        few = many <= MOST_NUMBER_CLASSES and many * 2 <= self.rows
        if many > 2 and few and (self.figures is None or self.whole):
            return "few"
        return "numbers" if self.figures is not None and many > 2 else ""


@dataclass(frozen=True, eq=False)
class TableProposal:
    """What is proposed for one client's table, and why."""

    source: Source  # with an absolute path
    columns: Mapping[str, Column]  # none of a file that holds a matrix
    rows: int
    width: int  # columns of the file
    left_out: Mapping[str, str] = field(default_factory=dict[str, str])  # column -> why
    reasons: Mapping[str, str] = field(default_factory=dict[str, str])  # key of the source -> why
    renamed: Mapping[str, str] = field(default_factory=dict[str, str])  # column -> the feature
    ids_beside: Column | None = None  # of a file that holds a matrix
    # the columns as the reader gives them, while they are looked at
    read: pa.Table | ParquetColumns | None = None

    @property
    def features(self) -> list[Column]:
        """Return the columns that are learned from."""
        apart = {self.source.id, self.source.label, self.source.split_by, *self.left_out}
        return [one for name, one in self.columns.items() if name not in apart]

    @property
    def ids(self) -> Column | None:
        """Return the column that tells rows apart; None: there is none."""
        return self.ids_beside or self.columns.get(self.source.id or "")

    @cached_property
    def answers(self) -> frozenset[str]:
        """Return the columns that look like answers on one scale, such as from 1 to 5.

        Four or more have the same consecutive numbers from 0 or 1 on. So has a column with a name
        that differs in figures alone, but for one number that nobody answered.
        """
        whole = [one for one in self.features if one.whole]
        often = Counter(one.steps for one in whole)
        scales = {
            steps
            for steps, count in often.items()
            if count >= _LEAST_ANSWERS
            and _SCALE[0] <= len(steps) <= _SCALE[1]
            and min(steps) in (0, 1)
            and max(steps) - min(steps) == len(steps) - 1
        }
        asked = {(_FIGURES.sub("", one.name), one.steps) for one in whole if one.steps in scales}
        return frozenset(
            one.name
            for one in whole
            if one.steps in scales
            or any(
                stem == _FIGURES.sub("", one.name)
                and one.steps < scale
                and len(scale - one.steps) == 1
                for stem, scale in asked
            )
        )

    @cached_property
    def keys_of_two(self) -> list[tuple[str, str]]:
        """Return pairs of columns that tell rows apart together: an id that repeats, and a second.

        Such as a patient's and the number of the visit. Nothing of very large tables.
        """
        if self.rows > MOST_ROWS:
            return []
        whole = [one for one in self.columns.values() if one.texts and not one.missing]
        few = [one for one in whole if not one.distinct and (one.figures is None or one.whole)]
        return [
            (first.name, second.name)
            for first in few
            if is_id(first.name)
            for second in few
            if second is not first and len(first.texts) * len(second.texts) >= self.rows
            if len(np.unique(first.codes * len(second.texts) + second.codes)) == self.rows
        ]

    def values(self, name: str) -> pa.ChunkedArray:
        """Return a column as the reader gives it, (rows,)."""
        assert self.read is not None
        return self.read.column(name)

    def feature(self, column: Column) -> str:
        """Return which feature a column is, by the name that it has in all tables."""
        return self.renamed.get(column.name, column.name)

    def with_keys(self, reasons: Mapping[str, str], **keys: Any) -> TableProposal:
        """Return the proposal with keys of its source set, and why."""
        source = replace(self.source, **keys)
        return replace(self, source=source, reasons={**self.reasons, **reasons})

    def without(self, column: str, why: str) -> TableProposal:
        """Return the proposal without a column; what was said before stays."""
        return replace(self, left_out={column: why, **self.left_out})


class Matched:
    """Which rows of two tables have the same id."""

    def __init__(self, tables: Sequence[TableProposal], rules: Sequence[Rule]) -> None:
        columns = {one.source.name: own for one in tables if (own := one.ids) is not None}
        self.ids: dict[str, NDArray[Any]]  # numbers that are equal where ids are, (rows,)
        if all(own.exact and not own.coded for own in columns.values()):  # which no rule changes
            self.ids = {name: own.numbers for name, own in columns.items()}
        else:
            texts = [_by_code(own, rules) for own in columns.values()]
            pairs = zip(columns.items(), Texts.numbered(texts), strict=True)
            self.ids = {
                name: np.append(numbers, np.nan)[own.codes] if len(numbers) else numbers
                for (name, own), numbers in pairs
            }
        self._rows: dict[tuple[str, str], tuple[NDArray[np.intp], NDArray[np.intp]]] = {}

    def keep(self, tables: Collection[str]) -> None:
        """Forget the ids of all other tables."""
        self.ids = {name: own for name, own in self.ids.items() if name in tables}

    def rows(self, one: str, other: str) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return the rows of each table that have an id of the other's, in the same order."""
        if one not in self.ids or other not in self.ids:
            return np.zeros(0, np.intp), np.zeros(0, np.intp)
        if (one, other) not in self._rows:
            _, first, second = np.intersect1d(self.ids[one], self.ids[other], return_indices=True)
            self._rows |= {(one, other): (first, second), (other, one): (second, first)}
        return self._rows[one, other]


def different(texts: Iterable[str], most: int) -> set[str]:
    """Return the different texts, whatever their case, until so many are found."""
    found: set[str] = set()
    for text in texts:
        if len(found) == most:
            break
        found.add(text.casefold())
    return found


def _is_short_date(text: str) -> bool:
    """Return whether a text may be a day of a year of two digits, as 31.01.26 is."""
    short = re.fullmatch(r"(\d\d\.\d\d\.)(\d\d)", text)
    return short is not None and day(f"{short[1]}20{short[2]}", "day first") is not None


_LEAST_DATES: Final = 20  # different ones, of which codes such as 01.11.10 have others too


def _by_code(own: Column, rules: Sequence[Rule]) -> Texts:
    """Return the ids of a column, after some rules, by their codes.

    None where two of them would become one, or rules are to change a column whose ids repeat.
    """
    if rules and not own.distinct:
        return Texts.of([])
    if rules:
        return Texts.of(tried(np.array([*own.written], np.str_), rules))
    written = own.written
    return written if isinstance(written, Texts) else Texts.of([*written])


def tried(ids: NDArray[Any], rules: Sequence[Rule]) -> list[Any]:
    """Return ids after some rules; none where two of them would become one."""
    try:
        return list(normalised(ids, rules, "").tolist())
    except (TableError, ValueError):
        return []


def other_words(own: NDArray[Any], others: NDArray[Any]) -> dict[str, str]:
    """Return what values are called elsewhere, {} where they are not the same in other words."""
    pairs = [(a, b) for a, b in zip(own.tolist(), others.tolist(), strict=True) if a and b]
    named = dict(pairs)
    alike = len(set(pairs)) == len(named) == len(set(named.values())) > 1
    # values that differ in every row always go with one another
    often = len(pairs) >= max(LEAST_SHARED, LEAST_OF_EACH * len(named))
    return named if alike and often else {}


def in_words(names: Sequence[str]) -> str:
    """Return names in words; of many the first and a count."""
    if len(names) == 1:
        return names[0]
    if len(names) > 7:
        return f"{', '.join(names[:6])} and {len(names) - 6} more"
    return f"{', '.join(names[:-1])} and {names[-1]}"
