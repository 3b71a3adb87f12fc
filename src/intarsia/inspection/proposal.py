"""Propose what an experiment file says of tables: ids, labels, categories, and what to leave out.

`propose` looks at the tables of all clients together. Each choice has a reason in plain words, so
that who knows the data can correct it. What a column may be as a feature is decided by the reader
itself (`data.column_types`): what it would refuse is left out, for the reason that it gives.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from intarsia.data.column_roles import check_names
from intarsia.data.column_types import LEAST_ROWS, coded_texts, features_of, ids_of
from intarsia.data.labels import MOST_NUMBER_CLASSES, positive_last
from intarsia.data.parsing import ascending, canonical, number, spellings_of
from intarsia.data.reader import columns_of, read
from intarsia.data.source import Source
from intarsia.errors import ExperimentError, TableError, listed, nearest
from intarsia.inspection.column_names import (
    LABELS,
    is_amount,
    is_id,
    is_plain_label,
    is_trait,
    label_rank,
    words,
)
from intarsia.inspection.missing_words import missing_words
from intarsia.inspection.tails import Tail, tail_of
from intarsia.privacy.entity_matching.normalisation import Rule, look, normalised

_TRUTHS = {
    **dict.fromkeys(("0", "no", "n", "false", "f", "off"), False),
    **dict.fromkeys(("1", "yes", "y", "true", "t", "on"), True),
}
_ENCODINGS = ("utf-16", "cp1252", "latin-1")  # tried where a file is not UTF-8
_MOST_CODES = 12  # whole numbers of so many different values may be codes
_LEAST_COUNTS = 5  # different whole numbers that may be seen to be counts of events
_THIN_TAIL = 0.02  # share of the rows that the largest of counts has less than
_MOST_LEVELS = 50  # of a column that is text at one client and numbers at another
_MOST_CLASSES = 10  # of text, of a label that only its name tells from a feature
_MOST_MISSING = 0.9  # share of a column that is left out
_MOST_TOLD = 4  # columns that may be the label too
_LEAST_SHARED = 20  # rows by which two columns are compared
_RULES: tuple[tuple[Rule, ...], ...] = ((), ("zeros",), ("case",), ("spaces",), ("width",))


@dataclass(frozen=True, eq=False)
class Column:
    """A column as it looks before anything is made of it."""

    name: str
    codes: NDArray[np.intp]  # (rows,) position in texts, -1 where missing
    texts: tuple[str, ...]  # without repeats
    figures: tuple[float, ...] | None  # the number that each text is; None: some are none
    values: pa.ChunkedArray  # (rows,) as the reader gives them

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
        return self.figures is not None and all(one == round(one) for one in self.figures)

    @property
    def distinct(self) -> bool:
        """Return whether every row has a value of its own."""
        return len(self.texts) == self.rows > 1 and not self.missing

    @property
    def coded(self) -> bool:
        """Return whether numbers have zeros in front, as codes do."""
        return self.whole and any(re.fullmatch(r"0\d+", one) for one in self.texts)

    @property
    def numbered(self) -> bool:
        """Return whether the values are consecutive whole numbers."""
        span = self.figures or (0.0,)
        return self.whole and self.distinct and max(span) - min(span) == self.rows - 1

    @property
    def tail(self) -> Tail:
        """Return where a few of the numbers are far from the rest."""
        known = np.array([*(self.figures or ()), np.nan])
        return "" if self.figures is None else tail_of(known[self.codes])

    @cached_property
    def canonical(self) -> NDArray[Any]:
        """Return the value of each row as text that is written alike everywhere, (rows,)."""
        return np.array([*self._written, ""], np.str_)[self.codes]

    @cached_property
    def values_there(self) -> frozenset[str]:
        """Return the different values, written as in `canonical`."""
        return frozenset(self._written)

    @cached_property
    def _written(self) -> list[str]:
        """Return the different values as text that is written alike everywhere."""
        values = self.figures or (None,) * len(self.texts)
        return [canonical(text, value) for text, value in zip(self.texts, values, strict=True)]

    @property
    def kinds(self) -> str:
        """Return what the values are, as labels: "two", "few", "numbers" or "" for none."""
        many = len({one.casefold() for one in self.texts})
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

    @property
    def features(self) -> list[Column]:
        """Return the columns that are learned from."""
        apart = {self.source.id, self.source.label, *self.left_out}
        return [one for name, one in self.columns.items() if name not in apart]

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


@dataclass(frozen=True, eq=False)
class Proposal:
    """What is proposed for all tables, in the order in which they were given."""

    tables: tuple[TableProposal, ...]
    normalise: tuple[Rule, ...]  # of [alignment]
    notes: tuple[str, ...]  # sentences that whoever knows the data is to check
    ignore_case: tuple[str, ...] = ()  # features whose values differ in case alone

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Return the different labels of all tables; None: numbers to predict, or of a matrix."""
        rows = self._rows_of_classes
        return None if rows is None else ascending(rows)

    @property
    def positive(self) -> str | None:
        """Return that of two classes which a run takes for +1; None: there are not two."""
        classes = self.classes
        return positive_last(classes)[-1] if classes is not None and len(classes) == 2 else None

    @property
    def usual(self) -> tuple[str, ...]:
        """Return the classes that enough rows have for their words to stand in a file."""
        rows = self._rows_of_classes or Counter[str]()
        return tuple(one for one in self.classes or () if rows[one] >= LEAST_ROWS)

    @property
    def rarer(self) -> str | None:
        """Return the class other than the positive one, if fewer rows have it."""
        rows, positive = self._rows_of_classes, self.positive
        if rows is None or positive is None:
            return None
        return next((one for one in rows if rows[one] < rows[positive]), None)

    @cached_property
    def _rows_of_classes(self) -> Counter[str] | None:
        found = [one for one in self.tables if _labelled(one)]
        labels = [one.columns[str(one.source.label)] for one in found]
        if not found or any(one.kinds == "numbers" for one in labels):
            return None
        return _rows_by_class(self.tables)


def propose(paths: Sequence[Path], ids: Sequence[str] = (), labels: Sequence[str] = ()) -> Proposal:
    """Return what an experiment file may say of tables.

    Parameters
    ----------
    ids, labels
        Columns that tell rows apart, and columns to predict: of each table the first that it has.
        None: they are looked for.

    Raises
    ------
    UserError
        If a table cannot be read, a named column is in no table, or no label can be told.
    """
    names = client_names(paths)
    tables = [_look(Source(name=name, path=str(path))) for name, path in names.items()]
    for key, wanted in (("id", ids), ("label", labels)):
        _check_named(key, wanted, tables)
    tables, rules, notes = _with_ids(tables, ids)
    matched = _Matched(tables, rules)
    tables = _with_labels(tables, labels, matched)
    tables = [_without_unfit(one) for one in _without_copies(tables, matched)]
    tables = _as_one_kind(_without_constants(_named_alike(tables, matched, notes)))
    for one in tables:
        if one.left_out and not one.features and one.source.label is None:
            raise one.source.error(
                "no column is left to learn from: "
                + "; ".join(f"{name!r} {why}" for name, why in one.left_out.items()),
                "mend one of them, or leave the table out",
            )
    ignore_case = _alike_but_for_case(tables, notes)
    return Proposal(tuple(tables), rules, tuple(notes), ignore_case)


def client_names(paths: Sequence[Path]) -> dict[str, Path]:
    """Return a client's name for each file: the file's own, with its folder's where two are alike.

    ExperimentError if a file is named twice, or none is.
    """
    if not paths:
        raise ExperimentError(
            "No table is named; name one file for each client, as in intarsia init bank.csv "
            "shop.csv, or see an example: intarsia init --example credit."
        )
    places = [path.resolve() for path in paths]
    for place in places:
        if places.count(place) > 1:
            raise ExperimentError(
                f"{place.name} is named {places.count(place)} times; name each client's table once."
            )
    bare = [re.sub(r"(\.\w{1,7})?(\.gz)?$", "", place.name) or place.name for place in places]
    unique = len(set(bare)) == len(bare)
    named = [
        one if unique or bare.count(one) == 1 else f"{place.parent.name}-{one}"
        for one, place in zip(bare, places, strict=True)
    ]
    if len(set(named)) < len(named):
        named = [f"{one}-{number}" for number, one in enumerate(named, 1)]
    return dict(zip(named, places, strict=True))


def _look(source: Source) -> TableProposal:
    """Return a table as it looks, with the keys that reading it needs."""
    try:
        source, frame = _read(source)
    except TableError as problem:
        raise problem.retold(where=problem.where, advice=problem.without_settings) from problem
    if frame is None:
        return _of_matrix(source)
    check_names(frame.column_names, source)
    if not frame.num_rows:
        raise source.error(f"the table has {frame.num_columns} columns but 0 rows", "fill it")
    texts: dict[str, tuple[NDArray[np.intp], list[str | None]]] = {}
    left_out: dict[str, str] = {}
    for name, values in zip(frame.column_names, frame.columns, strict=True):
        try:
            texts[name] = coded_texts(values, name, source)
        except TableError as problem:
            left_out[name] = _said(problem, name)
    source, reasons = _spelled(source, texts)
    columns = {
        name: _column(name, codes, own, frame.column(name), source)
        for name, (codes, own) in texts.items()
    }
    return TableProposal(source, columns, frame.num_rows, frame.num_columns, left_out, reasons)


def _read(source: Source) -> tuple[Source, pa.Table | None]:
    """Return the columns of a file, all text ones as text, and the encoding that it is read by."""
    first: TableError | None = None
    for encoding in (None, *_ENCODINGS):
        one = replace(source, encoding=encoding)
        try:
            found = columns_of(one)
            if found is None or one.path is None:
                return one, found
            # as text: a number may be an id whose zeros matter
            return one, columns_of(replace(one, categorical=tuple(found.column_names)))
        except TableError as problem:
            first = first or problem
            if "which are not UTF-8" not in str(first) and "which is UTF-16" not in str(first):
                break
            if encoding == "cp1252" and "values (" in str(problem):  # it is, and has another fault
                raise
    assert first is not None
    raise first


def _of_matrix(source: Source) -> TableProposal:
    """Return what is proposed for a file that holds a matrix, whose labels are its own."""
    reasons = {}
    try:
        named = replace(source, id="samples")
        table = read(named)
        source, reasons["id"] = named, "the ids in the file"
    except TableError:
        table = read(source)
    return TableProposal(source, {}, len(table.samples), len(table.columns), {}, reasons)


def _column(
    name: str,
    codes: NDArray[np.intp],
    texts: Sequence[str | None],
    values: pa.ChunkedArray,
    source: Source,
) -> Column:
    missing = {*(one.strip() for one in source.missing)}
    places: dict[str, int] = {}
    target = [
        -1 if one is None or one in missing else places.setdefault(one, len(places))
        for one in texts
    ]
    figures = [number(one, source.decimal, source.thousands) for one in places]
    known = None if None in figures or not figures else tuple(one or 0.0 for one in figures)
    return Column(name, np.array([*target, -1], np.intp)[codes], tuple(places), known, values)


def _spelled(
    source: Source, texts: Mapping[str, tuple[NDArray[np.intp], Sequence[str | None]]]
) -> tuple[Source, dict[str, str]]:
    """Return a source with the way in which its numbers and missing values are written."""
    reasons: dict[str, str] = {}
    if source.encoding is not None:
        reasons["encoding"] = "the file is not UTF-8"
    words = missing_words(texts)
    if more := [one for one in words if one not in source.missing]:
        seem = "seem" if len(more) > 1 else "seems"
        reasons["missing"] = f"{listed(more)} {seem} to mean a missing value too"
        source = replace(source, missing=(*source.missing, *more))
    bare = {
        name: [one for one in own if one is not None and one not in words]
        for name, (_, own) in texts.items()
    }
    fits = {name: spellings_of(own) for name, own in bare.items() if own}
    odd = {name: own for name, own in fits.items() if own and (".", None) not in own}
    if not odd:
        return source, reasons
    first = next(iter(odd))
    ways = dict.fromkeys(one for own in odd.values() for one in own)
    # the way by which most columns are numbers; of several, grouped digits only if all are such
    grouped = all(
        re.fullmatch(r"[+-]?[1-9]\d{0,2}(,\d{3})+", one) or number(one) is not None
        for one in bare[first]
    )

    def rank(way: tuple[str, str | None]) -> tuple[int, bool]:
        read = sum(
            all(number(one, *way) is not None for one in own) for own in bare.values() if own
        )
        return read, (way == (".", ",")) is grouped

    decimal, thousands = max(ways, key=rank)
    if decimal == ",":
        reasons["decimal"] = f"as in column {first!r}"
    if thousands is not None:
        reasons["thousands"] = f"as in column {first!r}"
    return replace(source, decimal="," if decimal == "," else ".", thousands=thousands), reasons


def _check_named(key: str, wanted: Sequence[str], tables: Sequence[TableProposal]) -> None:
    """Raise if a column that was named is in no table."""
    every = list(dict.fromkeys(name for one in tables for name in one.columns))
    for name in wanted:
        if name not in every:
            raise ExperimentError(
                f"--{key} {name!r} is a column of no table; {nearest(name, every)}."
            )


# -- ids


def _with_ids(
    tables: Sequence[TableProposal], wanted: Sequence[str]
) -> tuple[list[TableProposal], tuple[Rule, ...], list[str]]:
    """Return the tables with the columns of their ids, the rules of alignment, and notes."""
    notes: list[str] = []
    if wanted:
        chosen = {
            one.source.name: next(name for name in wanted if name in one.columns)
            for one in tables
            if any(name in one.columns for name in wanted)
        }
    else:
        chosen = _matching(tables, notes)
    tables = [
        one.with_keys({}, id=chosen[one.source.name]) if one.source.name in chosen else one
        for one in tables
    ]
    for one in tables:
        if one.source.id is not None and one.columns:
            own = one.columns[one.source.id]
            try:
                ids_of(own.values, one.rows, one.source)
            except TableError as problem:
                raise problem.retold(where=problem.where, advice=problem.without_settings) from None
    rules = _rules(tables)
    matched = _Matched(tables, rules)
    if not wanted:
        tables = _apart_where_values_differ(tables, matched, notes)
        matched = _Matched(tables, rules)
    return [_told_ids(one, tables, matched, wanted) for one in _alike(tables, rules)], rules, notes


def _matching(tables: Sequence[TableProposal], notes: list[str]) -> dict[str, str]:
    """Return the column by which each table's rows are most likely known to the others."""
    candidates = {
        one.source.name: {
            name: own
            for name, own in one.columns.items()
            if own.distinct and (own.figures is None or own.whole)
        }
        for one in tables
    }
    found: list[tuple[float, str, str, str, str]] = []
    for a, b in combinations(candidates, 2):
        for first in candidates[a].values():
            for second in candidates[b].values():
                score = _likeness(first, second)
                if score > 0:
                    found.append((score, a, first.name, b, second.name))
    found.sort(key=lambda one: -one[0])
    chosen: dict[str, str] = {}
    for _, a, first_name, b, second_name in found:
        if chosen.get(a, first_name) == first_name and chosen.get(b, second_name) == second_name:
            chosen.update({a: first_name, b: second_name})
    for one in tables:
        if one.source.name in chosen or not one.columns:
            continue
        # without a row in common, ids still keep the rows' own numbers out of the features
        own = [name for name in candidates[one.source.name] if is_id(name)]
        known = [name for name in own if name in chosen.values()]
        if own:
            chosen[one.source.name] = (known or own)[0]
    for one in tables:
        if one.source.name not in chosen:
            _refuse_repeats(one, tables, chosen, candidates)
    return chosen


def _likeness(first: Column, second: Column) -> float:
    """Return how likely two columns tell the same rows apart; 0: not at all."""
    same = first.name.casefold() == second.name.casefold()
    named = same or (is_id(first.name) and is_id(second.name))
    most = min(first.rows, second.rows)
    shared = len(first.values_there & second.values_there)
    if named and 2 * shared < most:
        shared = max(_shared([first, second], rules) for rules in _RULES)
    share = shared / most
    if not shared or (not named and (share < 0.2 or shared < 10)):
        return 0.0
    if not named and first.numbered and second.numbered:  # the rows' numbers, by chance
        return 0.0
    return share + same + (is_id(first.name) and is_id(second.name))


def _shared(columns: Sequence[Column], rules: Sequence[Rule]) -> int:
    """Return how many values the pairs of columns have in common after rules."""
    own = [{*_tried(one.canonical, rules)} if rules else one.values_there for one in columns]
    return sum(len(one & other) for one, other in combinations(own, 2))


def _tried(ids: NDArray[Any], rules: Sequence[Rule]) -> list[Any]:
    """Return ids after rules; none where two of them would become one."""
    if not rules:
        return list(ids.tolist())
    try:
        return list(normalised(ids, rules, "").tolist())
    except (TableError, ValueError):
        return []


def _refuse_repeats(
    one: TableProposal,
    tables: Sequence[TableProposal],
    chosen: Mapping[str, str],
    candidates: Mapping[str, Mapping[str, Column]],
) -> None:
    """Raise if a table has the ids of another in rows that repeat."""
    for other in tables:
        if other is one or not other.columns:
            continue
        known = chosen.get(other.source.name)
        for name, ids in candidates[other.source.name].items():
            if known not in (None, name):
                continue
            for own in one.columns.values():
                if own.distinct or own.missing > 0.5:
                    continue
                telling = own.figures is None or own.coded or is_id(own.name)
                mostly = telling and 2 * len(own.texts) >= own.rows
                if own.name != name and not mostly:
                    continue  # few values, or plain numbers, may be the same by chance
                if known is None and not (telling and own.name == name):
                    continue  # of another table's columns with a value for each row it may be any
                shared = len(own.values_there & ids.values_there)
                if 2 * shared > len(own.texts):
                    raise _repeated(one, own, other.source.name)


def _repeated(one: TableProposal, own: Column, other: str) -> TableError:
    """Return the error that a table has the ids of another in rows that repeat."""
    if own.missing and len(own.texts) == int((own.codes >= 0).sum()):
        empty = np.flatnonzero(own.codes < 0)
        return one.source.error(
            f"the column {own.name!r} has the ids of {other!r}, but none in {len(empty):,} rows "
            f"(first: row {empty[0] + 1})",
            "fill them in, drop these rows, or name another column that tells the rows apart: --id "
            "COLUMN",
        )
    rows = np.bincount(own.codes[own.codes >= 0], minlength=len(own.texts))
    most = int(rows.argmax())
    where = (np.flatnonzero(own.codes == most) + 1).tolist()
    copies = all(
        len(np.unique(column.codes[own.codes == most])) == 1 for column in one.columns.values()
    )
    count = int((rows > 1).sum())
    many = f"{own.texts[most]!r} is"
    if count > 1:
        many = f"{count:,} ids repeat, most often {own.texts[most]!r}"
    told = " and ".join(map(str, where)) if len(where) < 3 else f"{where[0]}, {where[1]}, …"
    alike = ", which are copies of each other" if copies else ""
    advice = "drop the rows that repeat" if copies else "write one row for each, of sums or means"
    return one.source.error(
        f"the column {own.name!r} has the ids of {other!r}, but {many} in {len(where)} rows "
        f"({told}{alike}), and every id needs one row",
        f"{advice}, or name another column that tells the rows apart: --id COLUMN",
    )


def _rules(tables: Sequence[TableProposal]) -> tuple[Rule, ...]:
    """Return the rules by which most ids of different tables are the same."""
    columns = [one.columns[one.source.id] for one in tables if one.source.id and one.columns]
    most = sum(min(one.rows, other.rows) for one, other in combinations(columns, 2))
    if _shared(columns, ()) == most:
        return ()
    return max(_RULES, key=lambda rules: _shared(columns, rules))  # the first of equal ones: none


def _alike(tables: Sequence[TableProposal], rules: Sequence[Rule]) -> list[TableProposal]:
    """Return the tables with ids of one type: text, where one of them has text."""
    known = [one for one in tables if one.source.id and one.columns]
    kinds = {one.source.name: _whole_ids(one.columns[str(one.source.id)]) for one in known}
    if len(set(kinds.values())) < 2 or "zeros" in rules:
        return list(tables)
    texts = next(name for name, whole in kinds.items() if not whole)
    return [
        one.with_keys({"id_type": f"{texts} has text"}, id_type="text")
        if kinds.get(one.source.name)
        else one
        for one in tables
    ]


def _whole_ids(column: Column) -> bool:
    return column.whole and not column.coded


class _Matched:
    """Which rows of two tables have the same id."""

    def __init__(self, tables: Sequence[TableProposal], rules: Sequence[Rule]) -> None:
        self.ids = {
            one.source.name: np.array(_tried(one.columns[one.source.id].canonical, rules), np.str_)
            for one in tables
            if one.source.id is not None and one.columns
        }

    def rows(self, one: str, other: str) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return the rows of each table that have an id of the other's, in the same order."""
        if one not in self.ids or other not in self.ids:
            return np.zeros(0, np.intp), np.zeros(0, np.intp)
        _, first, second = np.intersect1d(self.ids[one], self.ids[other], return_indices=True)
        return first, second


def _apart_where_values_differ(
    tables: Sequence[TableProposal], matched: _Matched, notes: list[str]
) -> list[TableProposal]:
    """Take the ids from tables whose rows of the same id have nothing alike: they are others."""
    apart: dict[tuple[str, ...], dict[str, None]] = {}  # by the columns whose values differ
    for one, other in combinations(tables, 2):
        first, second = matched.rows(one.source.name, other.source.name)
        alike = chance = 0.0
        compared = []
        for name in _comparable(one, other) if len(first) >= _LEAST_SHARED else ():
            a, b = one.columns[name].canonical[first], other.columns[name].canonical[second]
            known = (a != "") & (b != "")
            if known.any() and (by_chance := _by_chance(a[known], b[known])) < 0.9:
                alike += float((a == b)[known].mean())
                chance += by_chance
                compared.append(name)
        if compared and alike - chance < 0.2 * (len(compared) - chance):
            some = apart.setdefault(tuple(compared), {})
            some.update(dict.fromkeys((one.source.name, other.source.name)))
    notes += [
        f"{_and(list(some))} have ids in common, but the rows of one id have other values of "
        f"{listed(list(columns), 3)}: they are other samples, and the ids are left out."
        for columns, some in apart.items()
    ]
    every = {name for some in apart.values() for name in some}
    why = "numbers the rows of this table alone: the same number is another sample elsewhere"
    return [
        one.without(str(one.source.id), why).with_keys({}, id=None)
        if one.source.name in every
        else one
        for one in tables
    ]


def _and(names: Sequence[str]) -> str:
    """Return names in words; of many the first and a count."""
    if len(names) == 1:
        return names[0]
    if len(names) > 7:
        return f"{', '.join(names[:6])} and {len(names) - 6} more"
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _comparable(one: TableProposal, other: TableProposal) -> list[str]:
    """Return the columns, no ids, that two tables have in common with values written alike."""
    return [
        name
        for name, own in one.columns.items()
        if name in other.columns
        and name not in (one.source.id, other.source.id)
        and (own.figures is None) == (other.columns[name].figures is None)
    ]


def _by_chance(first: NDArray[Any], second: NDArray[Any]) -> float:
    """Return which share of rows would have the same values if rows had nothing in common."""
    levels, counts = np.unique(first, return_counts=True)
    others = dict(
        zip(*(part.tolist() for part in np.unique(second, return_counts=True)), strict=True)
    )
    same = sum(
        count * others.get(level, 0)
        for level, count in zip(levels.tolist(), counts.tolist(), strict=True)
    )
    return float(same / len(first) ** 2)


def _told_ids(
    one: TableProposal,
    tables: Sequence[TableProposal],
    matched: _Matched,
    wanted: Sequence[str],
) -> TableProposal:
    """Return a table with why its ids are its ids."""
    name = one.source.name
    if one.source.id is None or not one.columns:
        stated = {str(other.source.id) for other in tables if other.source.id} & set(one.columns)
        for column in stated:
            one = one.without(column, "the id of other tables, which does not tell its rows apart")
        if one.source.id is None and not one.left_out:
            why = "no column tells its rows apart, so that they belong to this client alone"
            return one.with_keys({"id": why})
        return one
    shared = [
        f"{len(matched.rows(name, other.source.name)[0]):,} are at {other.source.name} too"
        for other in tables
        if other is not one and other.source.name != name and other.source.name in matched.ids
    ]
    why = "as asked for" if wanted else "another value in every row"
    if len(tables) > 1 and all(said.startswith("0 ") for said in shared):
        shared = ["none of them is in another table"]
    return one.with_keys({"id": "; ".join([why, *shared])})


# -- labels


def _labelled(one: TableProposal) -> bool:
    return one.source.label is not None and bool(one.columns)


def _with_labels(
    tables: Sequence[TableProposal], wanted: Sequence[str], matched: _Matched
) -> list[TableProposal]:
    """Return the tables with the columns to predict, and why they are these."""
    names, why = (list(wanted), "as asked for") if wanted else _label_name(tables)
    found = []
    for one in tables:
        own = [name for name in names if name in one.columns and name != one.source.id]
        if not own and not wanted:  # one that is written otherwise here
            own = [name for name in one.columns if look(name) in {*map(look, names)}]
        own = [name for name in own if one.columns[name].texts]
        if not own:
            found.append(one)
            continue
        one = one.with_keys({}, label=own[0])
        for name in [*own[1:], *(_other_labels(one) if not wanted else ())]:
            one = one.without(name, f"may be a label too: --label {name} takes it instead")
        others = [] if wanted else _alternatives(one)
        more = f"; {listed(others, _MOST_TOLD)} may be it too" if others else ""
        found.append(one.with_keys({"label": why + more}))
    return _without_other_labels(_with_one_spelling(found), matched)


def _with_one_spelling(tables: Sequence[TableProposal]) -> list[TableProposal]:
    """Return the tables with labels mapped to one spelling: of no and yes, and of words by case.

    It is the first table's for no and yes, and what most rows have of words that differ in case.
    """
    rows = _rows_by_class(tables)
    usual: dict[str, str] = {}  # class in small letters -> how most rows write it
    for text in sorted(rows, key=lambda text: -rows[text]):
        usual.setdefault(text.casefold(), text)
    found: list[TableProposal] = []
    first: dict[bool, str] = {}
    for one in tables:
        own = one.columns[str(one.source.label)].texts if _labelled(one) else ()
        written = [canonical(text) for text in own]
        said = {text: _TRUTHS.get(text.casefold()) for text in written}
        named = {text: usual[text.casefold()] for text in written}
        why = "the same class, whatever the case"
        if {*said.values()} == {False, True}:
            first = first or {
                bool(said[text]): usual[text.casefold()] for text in reversed(written)
            }
            named, why = (
                {text: first[bool(said[text])] for text in written},
                "as the others write it",
            )
        if named := {text: to for text, to in named.items() if to != text}:
            one = one.with_keys({"label_map": why}, label_map=named)
        found.append(one)
    return found


def _rows_by_class(tables: Sequence[TableProposal]) -> Counter[str]:
    """Return how many rows have each label, as the tables write them."""
    rows: Counter[str] = Counter()
    for one in tables:
        if _labelled(one):
            own = one.columns[str(one.source.label)]
            counts = np.bincount(own.codes[own.codes >= 0], minlength=len(own.texts))
            for text, count in zip(own.texts, counts, strict=True):
                rows[str(one.source.label_map.get(canonical(text), canonical(text)))] += int(count)
    return rows


def _label_name(tables: Sequence[TableProposal]) -> tuple[list[str], str]:
    """Return the columns to predict, and why; ExperimentError if none can be told.

    A name that is a label's goes first, then the only column of two values, then the one of them
    that stands last in its table, then numbers called y.
    """
    ranked: list[tuple[int, int, int, int, str]] = []
    twos: list[str] = []
    last: dict[str, None] = {}
    weak: list[str] = []
    alike: list[tuple[str, str]] = []
    for one in tables:
        own = [
            column
            for name, column in one.columns.items()
            if name not in (one.source.id, *one.left_out) and column.kinds
        ]
        alike += [
            (name, column.texts[0])
            for name, column in one.columns.items()
            if len(column.texts) == 1 and label_rank(name, two=True) is not None
        ]
        for place, column in enumerate(own):
            kind = ("two", "few", "numbers").index(column.kinds)
            twos += [column.name] * (kind == 0)
            rank = _label_rank(column)
            if rank is not None and kind == 2 and words(column.name) == ["y"]:
                weak.append(column.name)  # as coordinates are too
            elif rank is not None:
                ranked.append((_doubt(column), rank, kind, -place, column.name))
        if own and own[-1].kinds == "two" and own[-1].name == list(one.columns)[-1]:
            last[own[-1].name] = None
    best = min(ranked, default=None)
    if best is not None and best[0] < _DOUBTFUL:
        return [best[-1]], "by its name"
    if any(not one.columns for one in tables):  # files with labels of their own
        return [], ""
    if alike and best is None:
        raise ExperimentError(
            f"The column {alike[0][0]!r} is named like a label and has {alike[0][1]!r} in every "
            "row that has one, so that there is nothing to tell apart; give tables with rows of "
            "both classes, or say which other column is to be predicted: --label COLUMN."
        )
    found = list(dict.fromkeys(twos))
    if len(found) == 1 and not is_trait(found[0]):
        return found, "the only column of two values"
    if len(last) == 1 and not is_trait(*last):
        return list(last), "the last column, of two values"
    if best is not None:
        return [best[-1]], "by its name"
    if weak:
        return [weak[0]], "by its name"
    every = list(dict.fromkeys(name for one in tables for name in one.columns))
    shown = f"those of two values: {listed(found)}" if found else f"there are {listed(every)}"
    raise ExperimentError(
        f"No column is named like a label ({listed(LABELS[:5])}, …), and {shown}; say which "
        "column is to be predicted: --label COLUMN."
    )


_DOUBTFUL = 2


def _doubt(column: Column) -> int:
    """Return how doubtful a column is that is named like a label: 0, 1, or 2 the most.

    `diagnosis` and `class` are names of features as well, mostly of many values.
    """
    if is_plain_label(column.name) or column.kinds == "two":
        return 0
    text = column.figures is None
    return _DOUBTFUL if text and len(column.texts) > _MOST_CLASSES else 1


def _label_rank(column: Column) -> int | None:
    """Return how much a column's name is that of a label, 0 the most; None: not at all."""
    rank = label_rank(column.name, two=column.kinds == "two")
    # what has classes and is called y is a label as much as an outcome is
    y = column.kinds in ("two", "few") and words(column.name) == ["y"]
    return LABELS.index("outcome") if y else rank


def _other_labels(one: TableProposal) -> Iterator[str]:
    """Yield the columns beside the label that are named like one and have few values."""
    for own in one.columns.values():
        named = _label_rank(own)
        weak = own.name.casefold() in ("class", "event", "response", "klasse", "classe", "clase")
        if own.name != one.source.label and named is not None and own.kinds == "two" and not weak:
            yield own.name


def _alternatives(one: TableProposal) -> list[str]:
    """Return the columns beside the label that may be it: named like one, or of two values."""
    others = [own for own in one.columns.values() if own.kinds and own.name != one.source.label]
    others = [own for own in others if own.name != one.source.id and not is_trait(own.name)]
    named = [own.name for own in others if _label_rank(own) is not None]
    return list(dict.fromkeys((*named, *(own.name for own in others if own.kinds == "two"))))


def _other_words(own: NDArray[Any], others: NDArray[Any]) -> dict[str, str]:
    """Return what labels are called elsewhere, {} where they are not the same in other words."""
    pairs = [(a, b) for a, b in zip(own.tolist(), others.tolist(), strict=True) if a and b]
    named = dict(pairs)
    alike = len(set(pairs)) == len(named) == len(set(named.values())) > 1
    return named if alike and len(pairs) >= _LEAST_SHARED else {}


def _without_other_labels(
    tables: Sequence[TableProposal], matched: _Matched
) -> list[TableProposal]:
    """Take the label from tables that say something else of rows that they share."""
    found: list[TableProposal] = []
    for one in tables:
        for other in found:
            if not (_labelled(one) and _labelled(other)):
                continue
            first, second = matched.rows(one.source.name, other.source.name)
            spelled = one.source.label_map
            a = one.columns[str(one.source.label)].canonical[first]
            a = np.array([spelled.get(text, text) for text in a.tolist()], np.str_)
            b = other.columns[str(other.source.label)].canonical[second]
            wrong = int(((a != b) & (a != "") & (b != "")).sum())
            same = {} if spelled else _other_words(a, b)
            if wrong and same.keys() >= {*one.columns[str(one.source.label)].canonical} - {""}:
                why = f"as {other.source.name} writes it in all {len(a):,} shared rows"
                one = one.with_keys({"label_map": why}, label_map=same)
            elif wrong:
                label = str(one.source.label)
                why = f"says something else than {other.source.name} of {wrong:,} shared rows"
                one = one.with_keys({}, label=None, label_map={}).without(label, why)
        found.append(one)
    return found


# -- features


def _without_copies(tables: Sequence[TableProposal], matched: _Matched) -> list[TableProposal]:
    """Leave out the columns that say what the label says, here or of shared rows elsewhere."""
    found = []
    for one in tables:
        for other in tables:
            if not _labelled(other):
                continue
            label = other.columns[str(other.source.label)]
            if other.source.name == one.source.name:
                first = second = np.arange(one.rows)
            else:
                first, second = matched.rows(one.source.name, other.source.name)
            for own in one.features:
                if _says_the_same(own, first, label, second):
                    where = "" if one is other else f" of {other.source.name}"
                    one = one.without(own.name, f"a copy of the label {label.name!r}{where}")
        found.append(one)
    return found


def _says_the_same(
    own: Column, rows: NDArray[np.intp], label: Column, labels: NDArray[np.intp]
) -> bool:
    """Return whether each value of a column goes with one label, and each label with one value."""
    a, b = own.codes[rows], label.codes[labels]
    known = (a >= 0) & (b >= 0)
    a, b = a[known], b[known]
    if len(a) < _LEAST_SHARED or len(np.unique(b)) < 2:
        return False
    if label.kinds == "numbers":
        if own.figures is None or label.figures is None:
            return False
        x, y = np.array(own.figures)[a], np.array(label.figures)[b]
        return bool(np.ptp(x) > 0 and abs(np.corrcoef(x, y)[0, 1]) > 1 - 1e-9)
    pairs = len(np.unique(a * (b.max() + 1) + b))
    return pairs == len(np.unique(a)) == len(np.unique(b))


def _without_unfit(one: TableProposal) -> TableProposal:
    """Leave out the columns that are no features, and list those that are codes."""
    codes = []
    for own in one.features:
        why = _unfit(own, one.source)
        if why:
            one = one.without(own.name, why)
        elif own.coded:
            codes.append(own.name)
    return one.with_keys({}, categorical=tuple(codes)) if codes else one


def _unfit(own: Column, source: Source) -> str:
    """Return why a column is no feature; "": it is one."""
    if not own.texts:
        return "empty in every row"
    if own.missing > _MOST_MISSING:
        return f"missing in {100 * own.missing:.0f} % of the rows"
    if own.distinct and own.rows >= _LEAST_SHARED:
        if own.figures is None:
            return "another text in every row"
        if own.numbered or (own.whole and is_id(own.name)):
            return "another whole number in every row, as an id has"
    if own.coded and len(own.texts) > _MOST_LEVELS:
        return f"codes with zeros in front, {len(own.texts):,} different ones"
    # as the reader would read it, whose reasons these are
    as_listed = replace(source, categorical=(own.name,)) if own.coded else source
    try:
        features_of([(own.name, own.values)], as_listed)
    except TableError as problem:
        return _said(problem, own.name)
    return ""


def _said(problem: TableError, name: str) -> str:
    """Return what is wrong with a column, without its name."""
    said = problem.problem.removeprefix(f"column {name!r} ").partition(", and all clients")[0]
    if said.startswith("mixes numbers and text"):
        said += "; correct it, or add it to missing, and take the column out of exclude"
    return said


def _named_alike(
    tables: Sequence[TableProposal], matched: _Matched, notes: list[str]
) -> list[TableProposal]:
    """Give one name to columns whose names look alike and are not: `Age` here, `age` there.

    It is the one that the most tables have. Where rows that are shared have other values they are
    two columns, of which one is learned from. A table that has both tells them apart on purpose.
    """
    holders: dict[str, dict[str, list[str]]] = {}  # by what a name looks like: name -> tables
    for one in tables:
        for own in one.features:
            holders.setdefault(look(own.name), {}).setdefault(own.name, []).append(one.source.name)
    by_name = {one.source.name: one for one in tables}
    several: list[str] = []  # what nobody can tell, in words
    same: dict[str, str] = {}  # what is written otherwise
    other: dict[str, str] = {}
    for some in holders.values():
        held = [name for names in some.values() for name in names]
        kept = max(some, key=lambda name: len(some[name]))
        if len(some) == 1:
            continue
        if len(set(held)) < len(held):  # a table tells them apart
            by_table = [{name for name in some if of in some[name]} for of in dict.fromkeys(held)]
            if any(one.isdisjoint(two) for one, two in combinations(by_table, 2)):
                several.append(" and ".join(f"{name!r} at {_and(some[name])}" for name in some))
            continue
        for name, client in ((name, of) for name, its in some.items() for of in its):
            if name == kept:
                continue
            one, said = by_name[client], f"{name!r} of {client} for {kept!r}"
            if any(_says_other(one, name, by_name[of], kept, matched) for of in some[kept]):
                other[said] = ""
                why = f"looks like {kept!r} elsewhere, with other values in shared rows"
                by_name[client] = one.without(name, why)
            else:
                same[said] = ""
                by_name[client] = replace(one, renamed={**one.renamed, name: kept})
    if same:
        notes.append(
            "names that differ in case, blanks or alphabet alone are taken for one column, by the "
            f"dictionary of [alignment]: {_and([*same])}; where two are different, rename one in "
            "its table."
        )
    if other:
        notes.append(
            f"names look alike and shared rows have other values, so that one is left out: "
            f"{_and([*other])}; rename what is a column of its own in its table."
        )
    if several:
        notes.append(
            "names look alike, and one table has several of them, so that each is a column of its "
            f"own: {'; '.join(several)}; give columns that are one the same name, or say so in a "
            "dictionary of [alignment]."
        )
    return [*by_name.values()]


def _says_other(
    one: TableProposal, name: str, other: TableProposal, kept: str, matched: _Matched
) -> bool:
    """Return whether most rows that two tables share have other values in a column of each."""
    first, second = matched.rows(one.source.name, other.source.name)
    a, b = one.columns[name].canonical[first], other.columns[kept].canonical[second]
    known = (a != "") & (b != "")
    same = np.char.lower(a) == np.char.lower(b)
    return int(known.sum()) >= _LEAST_SHARED and bool(same[known].mean() < 0.5)


def _without_constants(tables: Sequence[TableProposal]) -> list[TableProposal]:
    """Leave out the columns that have one and the same value wherever they are."""
    levels: dict[str, set[str]] = {}
    for one in tables:
        for own in one.features:
            written = (canonical(text).casefold() for text in own.texts)
            levels.setdefault(one.feature(own), set()).update(written)
    found = []
    for one in tables:
        for own in one.features:
            if len(levels[one.feature(own)]) == 1:
                one = one.without(own.name, f"{own.texts[0]!r} in every row that has it")
        found.append(one)
    return found


def _alike_but_for_case(tables: Sequence[TableProposal], notes: list[str]) -> tuple[str, ...]:
    """Return the features of text with values that differ in case alone, as "m" and "M" do."""
    levels: dict[str, set[str]] = {}
    for one in tables:
        for own in one.features:
            if own.figures is None or own.name in one.source.categorical:
                levels.setdefault(one.feature(own), set()).update(map(canonical, own.texts))
    found = tuple(
        name for name, some in levels.items() if len({one.casefold() for one in some}) < len(some)
    )
    if found:
        notes.append(
            f"values of {_and([*map(repr, found)])} differ in case alone, and are taken for one: "
            "ignore_case in the dictionary of [alignment]; take it out there where case tells "
            "them apart."
        )
    return found


def _as_one_kind(tables: Sequence[TableProposal]) -> list[TableProposal]:
    """Return the tables with the columns listed as categories that are codes or text somewhere."""
    held: dict[str, list[Column]] = {}
    for one in tables:
        for own in one.features:
            held.setdefault(one.feature(own), []).append(own)
    categories: dict[str, str] = {}
    unlike: dict[str, str] = {}
    coded = {one.renamed.get(name, name) for one in tables for name in one.source.categorical}
    for name, some in held.items():
        levels = {canonical(text) for own in some for text in own.texts}
        mixed = len({own.figures is None for own in some}) > 1
        if (mixed or name in coded) and len(levels) > _MOST_LEVELS:
            unlike[name] = f"numbers here and text elsewhere, {len(levels):,} different ones"
        elif mixed or name in coded or _codes(name, some, levels):
            categories[name] = ""
    found = []
    for one in tables:
        for own in one.features:
            if one.feature(own) in unlike:
                one = one.without(own.name, unlike[one.feature(own)])
        own_codes = tuple(own.name for own in one.features if one.feature(own) in categories)
        why = "few different whole numbers, or text elsewhere: taken for codes, not for amounts"
        found.append(
            one.with_keys({"categorical": why}, categorical=own_codes) if own_codes else one
        )
    return found


def _codes(name: str, some: Sequence[Column], levels: set[str]) -> bool:
    """Return whether a column's whole numbers are few enough to be codes, and no amounts."""
    rows = sum(own.rows for own in some)
    few = 3 <= len(levels) <= _MOST_CODES and rows >= 5 * len(levels)
    if not few or not all(own.whole for own in some) or is_amount(name):
        return False
    return not _counted(some)


def _counted(some: Sequence[Column]) -> bool:
    """Return whether whole numbers are spread as counts of events are.

    They begin at 0, and the rows of five values or more rise to one peak and fall to a thin tail.
    Codes whose numbers say nothing of an order do so rarely.
    """
    rows: Counter[float] = Counter()
    for own in some:
        counts = np.bincount(own.codes[own.codes >= 0], minlength=len(own.texts))
        for figure, count in zip(own.figures or (), counts, strict=True):
            rows[figure] += int(count)
    values = sorted(rows)
    if len(values) < _LEAST_COUNTS or values[0] != 0:
        return False
    height = [rows[one] for one in values if rows[one] >= 5]  # of fewer, the order is chance
    peak = height.index(max(height))
    rises = all(one <= two for one, two in pairwise(height[: peak + 1]))
    falls = all(one >= two for one, two in pairwise(height[peak:]))
    return rises and falls and rows[values[-1]] < _THIN_TAIL * rows.total()
