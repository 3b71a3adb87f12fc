"""Propose what an experiment file says of tables: ids, labels, categories, and what to leave out.

`propose` looks at the tables of all clients together: `id_choice` and `label_choice` for ids and
labels, and this file for what is learned from. Each choice has a reason in plain words, so that who
knows the data can correct it. What a column may be as a feature is decided by the reader itself
(`data.column_types`): what it would refuse is left out, for the reason that it gives.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import tempfile
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from intarsia.core.memory import disk_for
from intarsia.data.column_roles import check_names
from intarsia.data.column_types import coded_texts, features_of
from intarsia.data.formats.parquet import ParquetColumns
from intarsia.data.labels import are_no_and_yes, positive_last, spelled_apart
from intarsia.data.parsing import (
    are_numbers,
    ascending,
    limit_of,
    number,
    spellings_of,
    unit_of,
    without_unit,
)
from intarsia.data.reader import ENDINGS, columns_of, ending_of, read, values_size
from intarsia.data.source import LEAST_ROWS, Source
from intarsia.data.texts import Texts
from intarsia.errors import ExperimentError, TableError, listed, nearest_column
from intarsia.inspection.column_names import (
    is_amount,
    is_code,
    is_id,
    is_time_until,
    is_weight,
    words,
)
from intarsia.inspection.id_choice import refuse_row_numbers, with_groups, with_ids
from intarsia.inspection.label_choice import labelled, rows_by_class, with_labels, without_copies
from intarsia.inspection.missing_words import missing_words
from intarsia.inspection.table_proposal import (
    LEAST_SHARED,
    Column,
    Matched,
    TableProposal,
    different,
    in_words,
    other_words,
)
from intarsia.inspection.tails import LEAST_COUNTS
from intarsia.privacy.entity_matching.normalisation import Rule, look

_ENCODINGS = ("utf-16", "cp1252", "latin-1")  # tried where a file is not UTF-8
_FEW_AMOUNTS = 2  # texts; more that end in one word are amounts with a unit
_LEAST_AMOUNTS = 10  # different numbers beside limits; of fewer, "<1" may be a category
_MOST_CODES = 12  # whole numbers of so many different values may be codes
_THIN_TAIL = 0.02  # share of the rows that the largest of counts has less than
_MOST_LEVELS = 50  # of a column that is text at one client and numbers at another
_MOST_MISSING = 0.9  # share of a column that is left out
_NEAR = 0.5  # of the way from a column's first tenth to its last
_MOST_NAMED = 5  # tables of a folder
_MOST_SHARED = 200  # rows by which all columns of two tables are compared
_SAME = 0.95  # of the rows that two columns share
_TWO_NUMBERS = re.compile(
    r"\d{1,3} ?/ ?\d{1,3}|\d{1,4} ?[^\W\d]{1,9},? \d{1,4} ?[^\W\d]{1,9}"  # 120/80, 3 h 20 min
)
_BRACKETED = re.compile(r"\[.*\]|\{.*\}", re.DOTALL)  # as JSON and Python write lists and fields
_DAY = re.compile(r"(19|20)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])")  # as 20260131


@dataclass(frozen=True, eq=False)
class Proposal:
    """What is proposed for all tables, in the order in which they were given."""

    tables: tuple[TableProposal, ...]
    normalise: tuple[Rule, ...]  # of [alignment]
    notes: tuple[str, ...]  # sentences that whoever knows the data is to check
    ignore_case: tuple[str, ...] = ()  # features whose values differ in case alone
    no_and_yes: tuple[str, ...] = ()  # features whose values are no and yes in other words

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Return the different labels of all tables; None: numbers to predict, or of a matrix."""
        rows = self._rows_of_classes
        return None if rows is None else ascending(rows)

    @property
    def positive(self) -> str | None:
        """Return that of two classes which is +1; None: there are not two.

        It is the one that the label is named for, as "Canceled" is of `is_canceled`, or that a run
        takes for +1.
        """
        classes = self.classes
        if classes is None or len(classes) != 2:
            return None
        name = {one for table in self.tables for one in words(table.source.label or "")}
        named = [one for one in classes if name & {*words(one)}]
        return named[0] if len(named) == 1 else positive_last(classes)[-1]

    @property
    def counts(self) -> bool:
        """Return whether the labels are spread as counts of events are, at all tables together."""
        return _counted(self._whole_labels)

    @property
    def grades(self) -> bool:
        """Return whether the labels are more whole numbers than codes, around one peak."""
        rows = [many for _, many in sorted(_rows_of(self._whole_labels).items())]
        return (
            len(rows) > _MOST_CODES
            and 2 * max(rows[0], rows[-1]) < max(rows)  # classes are about as many, or in no order
            and _has_one_peak(rows, 2.0)
        )

    @property
    def _whole_labels(self) -> list[Column]:
        """Return the labels of all tables, none where some are no whole numbers."""
        found = [one.columns[str(one.source.label)] for one in self.tables if labelled(one)]
        plain = all(to == "" for one in self.tables for to in one.source.label_map.values())
        return found if plain and all(one.whole for one in found) else []

    @property
    def numbers(self) -> bool:
        """Return whether the labels of all tables are numbers that are more than a few."""
        found = [one.columns[str(one.source.label)] for one in self.tables if labelled(one)]
        return bool(found) and all(one.kinds == "numbers" for one in found)

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
        found = [one for one in self.tables if labelled(one)]
        labels = [one.columns[str(one.source.label)] for one in found]
        if not found or any(one.kinds == "numbers" for one in labels):
            return None
        return rows_by_class(self.tables)


def propose(
    paths: Sequence[Path],
    ids: Sequence[str] = (),
    labels: Sequence[str] = (),
    place: Path | None = None,
) -> Proposal:
    """Return what an experiment file may say of tables.

    Parameters
    ----------
    ids, labels
        Columns that tell rows apart, and columns to predict: of each table the first that it has.
        None: they are looked for.
    place
        On whose disk the tables lie meanwhile, if they are large for the memory that is free.

    Raises
    ------
    UserError
        If a table cannot be read, a named column is in no table, or no label can be told.
    """
    names = client_names(paths)
    sources = [Source(name=name, path=str(path)) for name, path in names.items()]
    size = _COPIES * sum(map(values_size, sources))
    folder = disk_for(size, (place or Path(tempfile.gettempdir())).absolute())
    tables = [_look(source, folder) for source in sources]
    refuse_row_numbers(tables, ids)
    for key, wanted in (("id", ids), ("label", labels)):
        _check_named(key, wanted, tables)
    tables, rules, notes = with_ids(tables, ids)
    matched = Matched(tables, rules)
    try:
        tables = with_labels(tables, labels, matched)
    except ExperimentError as problem:  # it may be that no rows are known to be the same
        raise ExperimentError(
            " ".join([str(problem), *(f"Check: {one}" for one in notes)])
        ) from None
    tables = [_with_no_label(one) for one in tables]
    tables = with_groups(tables, matched, notes)
    tables = [_without_unfit(one) for one in without_copies(tables, matched)]
    tables = _named_alike(tables, matched, notes)
    no_and_yes = _in_other_languages(tables, notes)
    notes += [*_in_other_words(tables, matched, no_and_yes), *_no_class_in_common(tables)]
    notes += [
        *_times_until_label(tables),
        *_weights_of_rows(tables),
        *_several_in_one(tables),
        *_under_other_names(tables, matched),
        *_same_in_shared_rows(tables, matched),
    ]
    tables = _as_one_kind(_without_constants(tables))
    notes += _codes_as_amounts(tables)
    for one in tables:
        if one.left_out and not one.features and one.source.label is None:
            raise one.source.error(
                "no column is left to learn from: "
                + "; ".join(f"{name!r} {why}" for name, why in one.left_out.items()),
                "mend one of them, or leave the table out",
            )
    ignore_case = _alike_but_for_case(tables, no_and_yes, notes)
    tables = [replace(_with_units_of_amounts(one), read=None) for one in tables]
    return Proposal(tuple(tables), rules, tuple(notes), ignore_case, no_and_yes)


_COPIES = 4  # times the tables' values that a proposal takes, where they are in memory


def client_names(paths: Sequence[Path]) -> dict[str, Path]:
    """Return a client's name for each file: the file's own, with its folder's where two are alike.

    ExperimentError if a file is named twice, or none is.
    """
    if not paths:
        raise ExperimentError(
            "No table is named; name one file for each client, as in intarsia init bank.csv "
            "shop.csv, or see an example: intarsia init --example credit."
        )
    for path in paths:
        if path.is_dir():
            raise _folder_named(path)
        if any("\udc80" <= letter <= "\udcff" for letter in str(path)):
            raise ExperimentError(
                f"The name of the file {str(path)!a} is not UTF-8, and an experiment file "
                "cannot have it; rename the file."
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


def _folder_named(folder: Path) -> ExperimentError:
    """Return the error that a folder is named where a table is to be."""
    tables = sorted(str(one) for one in folder.iterdir() if ending_of(one) in ENDINGS)
    more = "" if len(tables) <= _MOST_NAMED else " ..."
    said = f"name the tables in it, one for each client: {shlex.join(tables[:_MOST_NAMED])}{more}"
    if not tables:
        said = "it has no table (CSV, Parquet, libsvm or npz); name one file for each client"
    return ExperimentError(f"{folder} is a folder; {said}.")


def _look(source: Source, folder: Path | None) -> TableProposal:
    """Return a table as it looks, with the keys that reading it needs."""
    try:
        source, frame = _read(source, folder)
    except TableError as problem:
        raise problem.retold(where=problem.where, advice=problem.without_settings) from problem
    if frame is None:
        return _of_matrix(source)
    names: list[str] = frame.schema.names
    check_names(names, source)
    if not frame.num_rows:
        raise source.error(f"the table has {len(names)} columns but 0 rows", "fill it")
    texts: dict[str, tuple[NDArray[np.int32], Texts]] = {}
    left_out: dict[str, str] = {}
    for name in names:
        try:
            texts[name] = coded_texts(frame.column(name), name, source)
        except TableError as problem:
            left_out[name] = _said(problem, name)
    source = _with_units(source, texts)
    source, reasons = _spelled(source, texts)

    def columns_read(source: Source) -> dict[str, Column]:
        return {name: _column(name, codes, own, source) for name, (codes, own) in texts.items()}

    columns = columns_read(source)
    if codes := _stand_ins_of_counts(columns):
        source = replace(source, missing=(*source.missing, *codes))
        reasons["missing"] = _seem_missing(source.missing)
        columns = columns_read(source)
    sizes = frame.num_rows, len(names)
    return TableProposal(source, columns, *sizes, left_out, reasons, read=frame)


def _read(source: Source, folder: Path | None) -> tuple[Source, pa.Table | ParquetColumns | None]:
    """Return the columns of a file, all text ones as text, and the encoding that it is read by."""
    first: TableError | None = None
    for encoding in (None, *_ENCODINGS):
        one = replace(source, encoding=encoding)
        try:
            found = columns_of(one, folder)
            if not isinstance(found, pa.Table) or one.path is None:
                return one, found
            names = tuple(found.column_names)
            del found  # which takes as much memory as what is read now
            # as text: a number may be an id whose zeros matter
            return one, columns_of(replace(one, categorical=names), folder)
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


def _column(name: str, codes: NDArray[np.int32], texts: Texts, source: Source) -> Column:
    codes, texts = texts.without([one.strip() for one in source.missing], codes)
    if not len(texts):
        return Column(name, codes, texts, None)
    if texts.plain and source.decimal == ".":
        return Column(name, codes, texts, array("d", (texts.figures + 0.0).tobytes()))
    figures = array("d")
    for one in texts:
        figure = number(_bare(one, name, source), source.decimal, source.thousands)
        if figure is None:
            return Column(name, codes, texts, None)
        figures.append(figure or 0.0)
    return Column(name, codes, texts, figures)


def _with_units(source: Source, texts: Mapping[str, tuple[NDArray[np.int32], Texts]]) -> Source:
    """Return a source with the units that stand beside numbers, and the columns with limits."""
    units: dict[str, str] = {}
    limits: list[str] = []
    for name, (_, own) in texts.items():
        if own.plain:
            continue
        given = [one for one in own if re.search(r"\d", one)]
        beyond = [one for one in given if limit_of(one)]
        bare = [limit_of(one) or one for one in given]
        unit = unit_of(bare, _FEW_AMOUNTS)
        plain = [without_unit(one, unit) for one in bare]
        amounts = spellings_of(plain) and not any(re.match(r"0\d", one) for one in plain)
        few = len(given) - len(beyond) < _LEAST_AMOUNTS
        if not given or not amounts or (beyond and few) or is_id(name):
            continue
        if unit:
            units[name] = unit
        if beyond:
            limits.append(name)
    return replace(source, units=units, limits=tuple(limits))


def _with_units_of_amounts(one: TableProposal) -> TableProposal:
    """Keep the units and limits of columns that are learned from, or are labels, and say why."""
    named = {*(own.name for own in one.features), one.source.label} - {*one.source.categorical}
    units = {name: unit for name, unit in one.source.units.items() if name in named}
    limits = tuple(name for name in one.source.limits if name in named)
    reasons = {
        "units": "the numbers are read without it",
        "limits": "of values such as <5 the limit itself counts",
    }
    return one.with_keys(reasons, units=units, limits=limits)


def _bare(text: str, name: str, source: Source) -> str:
    """Return a text without the unit of its column, and the sign of a limit."""
    limit = limit_of(text) if name in source.limits else ""
    return without_unit(limit or text, source.units.get(name, ""))


def _spelled(
    source: Source, texts: Mapping[str, tuple[NDArray[np.int32], Texts]]
) -> tuple[Source, dict[str, str]]:
    """Return a source with the way in which its numbers and missing values are written."""
    reasons: dict[str, str] = {}
    if source.encoding is not None:
        reasons["encoding"] = "the file is not UTF-8"
    bare = {
        name: (codes, own if own.plain else Texts.of([_bare(one, name, source) for one in own]))
        for name, (codes, own) in texts.items()
    }
    words = missing_words(bare)
    if more := [one for one in words if one not in source.missing]:
        source = replace(source, missing=(*source.missing, *more))
        reasons["missing"] = _seem_missing(source.missing)
    given = {name: own.without(words, codes)[1] for name, (codes, own) in bare.items()}
    fits = {name: spellings_of(own) for name, own in given.items() if own}
    odd = {name: own for name, own in fits.items() if own and (".", None) not in own}
    if not odd:
        return source, reasons
    first = next(iter(odd))
    ways = dict.fromkeys(one for own in (*odd.values(), *fits.values()) for one in own)
    # the way by which most columns are numbers; of several, grouped digits only if all are such
    grouped = all(
        re.fullmatch(r"[+-]?[1-9]\d{0,2}(,\d{3})+", one) or number(one) is not None
        for one in given[first]
    )

    def read(way: tuple[str, str | None]) -> list[str]:
        return [name for name, own in given.items() if own and are_numbers(own, *way)]

    def rank(way: tuple[str, str | None]) -> tuple[int, bool]:
        return len(read(way)), (way == (".", ",")) is grouped

    decimal, thousands = max(ways, key=rank)
    if decimal == ",":
        reasons["decimal"] = f"as in column {first!r}"
    if thousands is not None:
        plain = read((decimal, None))
        marked = next(name for name in read((decimal, thousands)) if name not in plain)
        reasons["thousands"] = f"as in column {marked!r}"
    return replace(source, decimal="," if decimal == "," else ".", thousands=thousands), reasons


def _seem_missing(marks: Sequence[str]) -> str:
    more = [one for one in marks if one not in Source.missing]
    seem = "seem" if len(more) > 1 else "seems"
    return f"{listed(more)} {seem} to mean a missing value too; NaN and NULL do everywhere"


def _stand_ins_of_counts(columns: Mapping[str, Column]) -> list[str]:
    """Return the numbers, as texts, that stand for a missing value among few counts, as -1 does.

    None that another column has as a value: a mark holds for all columns of a table.
    """
    found: dict[str, float] = {}
    for own in columns.values():
        few = own.whole and len(own.texts) <= _MOST_CODES
        if few and own.stand_ins and (is_amount(own.name) or _counted([own])):
            pairs = zip(own.texts, own.figures or (), strict=True)
            found |= {text: one for text, one in pairs if one in own.stand_ins}
    return [
        text
        for text, one in found.items()
        if not any(
            text in own.texts if own.figures is None else one in {*own.figures} - {*own.stand_ins}
            for own in columns.values()
        )
    ]


def _with_no_label(one: TableProposal) -> TableProposal:
    """Say of numbers that seem to mean a missing value what they are as labels.

    As marks in `missing` they hold for features alone.
    """
    source = one.source
    if source.label is None or not one.columns:
        return one
    values = one.values(source.label)
    _, texts = coded_texts(values, source.label, replace(source, missing=source.missing_words))
    marks = [text for text in source.missing if text in texts]
    if not marks:
        return one
    why = f"{listed(marks)} {'seem' if len(marks) > 1 else 'seems'} to mean no label"
    return one.with_keys(
        {"label_map": why}, label_map={**source.label_map, **dict.fromkeys(marks, "")}
    )


def _check_named(key: str, wanted: Sequence[str], tables: Sequence[TableProposal]) -> None:
    """Raise if a column that was named is in no table."""
    every = list(dict.fromkeys(name for one in tables for name in one.columns))
    for name in wanted:
        if name not in every:
            raise ExperimentError(
                f"--{key} {name!r} is a column of no table; {nearest_column(name, every)}."
            )


def _without_unfit(one: TableProposal) -> TableProposal:
    """Leave out the columns that are no features, and list those that are codes."""
    codes = []
    for own in one.features:
        why = _unfit(own, one)
        if why:
            one = one.without(own.name, why)
        elif own.coded:
            codes.append(own.name)
    return one.with_keys({}, categorical=tuple(codes)) if codes else one


def _unfit(own: Column, one: TableProposal) -> str:
    """Return why a column is no feature; "": it is one."""
    if not own.texts:
        return "empty in every row"
    if own.missing > _MOST_MISSING:
        return f"missing in {100 * own.missing:.0f} % of the rows"
    distinct = own.distinct and own.rows >= LEAST_SHARED
    if distinct and (own.numbered or (own.whole and is_id(own.name))):
        return "another whole number in every row, as an id has"
    if own.whole and len(own.texts) > 1 and all(map(_DAY.fullmatch, own.texts)):
        return "has dates without marks; to learn from it, write them as 2026-01-31 in the table"
    if own.coded and len(own.texts) > _MOST_LEVELS:
        return f"codes with zeros in front, {len(own.texts):,} different ones"
    # as the reader would read it, whose reasons these are
    as_listed = replace(one.source, categorical=(own.name,)) if own.coded else one.source
    said = ""
    try:
        features_of([(own.name, one.values(own.name))], as_listed)
    except TableError as problem:
        said = _said(problem, own.name)
    if said.startswith("mixes numbers and text") and len(own.texts) <= _MOST_CODES:
        said += "; or, if its numbers are answers or codes, list it in categorical"
    if distinct and own.figures is None and not said.startswith(_AS_NUMBERS):
        return "another text in every row"
    if _MANY_TEXTS in said and own.rows >= LEAST_ROWS * len(own.texts):
        said += (
            "; to learn from it, if its texts tell nothing of single rows, list it in categorical, "
            "and take it out of exclude"
        )
    return said


_MANY_TEXTS = " different texts in "
_AS_NUMBERS = (
    "has numbers",
    "has dates",
    "has times of day",
    "has durations",
    "has limits",
    "has negative numbers",
)  # how a reason begins of what could be a number


def _said(problem: TableError, name: str) -> str:
    """Return what is wrong with a column, without its name."""
    said = problem.problem.removeprefix(f"column {name!r} ")
    if said == "has dates or times":
        advice = problem.advice.partition(": ")[2].removesuffix(", or list it in exclude")
        said += f"; to learn from it, {advice}, and take it out of exclude"
    if said.startswith(_AS_NUMBERS) and not said.startswith("has dates"):
        setting = " and without" in said or said.startswith("has limits")
        advice = problem.advice if setting else problem.without_settings
        advice = advice.removesuffix(", or leave it out of the table")
        said += f"; to learn from it, {advice}, and take it out of exclude"
    if said.startswith("mixes numbers and text"):
        said += "; correct it, or add it to missing, and take the column out of exclude"
    return said


def _named_alike(
    tables: Sequence[TableProposal], matched: Matched, notes: list[str]
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
                several.append(" and ".join(f"{name!r} at {in_words(some[name])}" for name in some))
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
            f"dictionary of [alignment]: {in_words([*same])}; where two are different, rename one "
            "in its table."
        )
    if other:
        notes.append(
            f"names look alike and shared rows have other values, so that one is left out: "
            f"{in_words([*other])}; rename what is a column of its own in its table."
        )
    if several:
        notes.append(
            "names look alike, and one table has several of them, so that each is a column of its "
            f"own: {'; '.join(several)}; give columns that are one the same name, or say so in a "
            "dictionary of [alignment]."
        )
    return [*by_name.values()]


def _says_other(
    one: TableProposal, name: str, other: TableProposal, kept: str, matched: Matched
) -> bool:
    """Return whether most rows that two tables share have other values in a column of each."""
    first, second = matched.rows(one.source.name, other.source.name)
    a, b = one.columns[name].canonical[first], other.columns[kept].canonical[second]
    known = (a != "") & (b != "")
    same = np.char.lower(a) == np.char.lower(b)
    return int(known.sum()) >= LEAST_SHARED and bool(same[known].mean() < 0.5)


def _in_other_words(
    tables: Sequence[TableProposal], matched: Matched, known: Sequence[str]
) -> list[str]:
    """Return a note of features that have the same values in other words in rows that are shared.

    Those of a label are mapped (`label_map`), and those that differ in case alone, or are `known`
    as no and yes, by a dictionary.
    """
    found: dict[str, list[str]] = {}
    for one, other in combinations(tables, 2):
        first, second = matched.rows(one.source.name, other.source.name)
        theirs = {other.feature(own): own for own in other.features if own.figures is None}
        for own in one.features if len(first) >= LEAST_SHARED else ():
            name = one.feature(own)
            if own.figures is not None or name not in theirs or name in known:
                continue
            words = other_words(own.canonical[first], theirs[name].canonical[second])
            if any(text.casefold() != to.casefold() for text, to in words.items()):
                found.setdefault(name, []).extend((one.source.name, other.source.name))
    if not found:
        return []
    told = [f"{name!r} of {in_words([*dict.fromkeys(some)])}" for name, some in found.items()]
    return [
        "rows of one id have the same values in other words, which count as different: "
        f"{'; '.join(told)}; write them alike in these tables."
    ]


def _no_class_in_common(tables: Sequence[TableProposal]) -> list[str]:
    """Return a note of two tables whose labels have no class in common, where a run takes both."""
    found: dict[str, set[str]] = {}
    for one in tables:
        if labelled(one):
            own = one.columns[str(one.source.label)]
            if own.kinds == "numbers":
                return []
            mapped = one.source.label_map
            found[one.source.name] = {str(mapped.get(text, text)) for text in own.values_there}
    if any(spelled_apart(found)):
        return []
    for first, second in combinations([name for name in found if len(found[name]) > 1], 2):
        if found[first].isdisjoint(found[second]):
            return [
                f"the labels of {first} and {second} have no class in common, and count as "
                f"{len(found[first] | found[second])} different classes. If they mean the same, "
                f"say so by label_map at {second}; if not, list all in [labels] classes."
            ]
    return []


def _times_until_label(tables: Sequence[TableProposal]) -> list[str]:
    """Return a note of columns that seem to be the time until an event, which the label is."""
    labels = {str(one.source.label): one for one in tables if labelled(one)}
    found = {
        own.name: ""
        for one in tables
        for own in one.features
        if own.figures is not None and is_time_until(own.name)
    }
    if not found or not any(one.columns[name].kinds == "two" for name, one in labels.items()):
        return []
    return [
        f"{in_words([*map(repr, found)])} may be the time until {in_words([*map(repr, labels)])} "
        "was seen, or a row was no longer followed, which is known only once the label is. If so, "
        "list it in exclude: scores would be too good, and no new row has it."
    ]


def _codes_as_amounts(tables: Sequence[TableProposal]) -> list[str]:
    """Return a note of whole numbers that are named like codes and are learned from as amounts."""
    found = {
        f"{own.name!r} of {one.source.name}": ""
        for one in tables
        for own in one.features
        if own.whole and is_code(own.name) and len(own.texts) > _MOST_CODES
        if own.name not in one.source.categorical
    }
    if not found:
        return []
    return [
        f"{in_words([*found])} {'is' if len(found) == 1 else 'are'} named like codes and learned "
        "from as amounts. Of codes a larger number means nothing: list them in categorical, if "
        "their values tell nothing of single rows, or in exclude."
    ]


def _weights_of_rows(tables: Sequence[TableProposal]) -> list[str]:
    """Return a note of columns that seem to say how much each row counts, as of a survey.

    They are named a weight, above 0, and about 1 on the average, which no body's weight is.
    """
    found = {
        own.name: one
        for one in tables
        for own in one.features
        if is_weight(own.name) and own.figures is not None and not own.missing and not own.whole
        if min(own.figures) > 0 and 0.5 < np.array(own.figures)[own.codes].mean() < 2
    }
    said = "may say how much each row counts, as its numbers are about 1 on the average"
    apart = "list it in exclude there: weights are of the table that has the labels."
    return [
        f"{name!r} of {one.source.name} {said}: it is learned from as it is. If so, "
        + (f"set weights = {_quoted(name)} there." if labelled(one) else apart)
        for name, one in found.items()
    ]


def _several_in_one(tables: Sequence[TableProposal]) -> list[str]:
    """Return notes of columns of text of which each text is more than one word of a category."""
    found: dict[str, dict[str, str]] = {}  # what their texts have -> columns
    for one in tables:
        apart = (one.source.id, one.source.label, one.source.split_by)
        for own in one.columns.values():
            if own.figures is None and own.name not in apart:
                left_out = own.name in one.left_out  # why, says which units it has
                said = _parts_of(own.texts) or ("" if left_out else _units_of(own.texts))
                found.setdefault(said, {})[repr(own.name)] = ""
    found.pop("", None)
    return [
        f"{in_words([*names])} {'has' if len(names) == 1 else 'have'} {said}"
        for said, names in found.items()
    ]


def _parts_of(texts: Texts) -> str:
    """Return what texts of several parts have in each, and what to do; "": they are none."""
    if len(texts) < _LEAST_AMOUNTS:
        return ""
    if all(map(_TWO_NUMBERS.fullmatch, texts)):
        return (
            "two numbers in each text, as 120/80 is, or 3 h 20 min, which are not read as numbers: "
            "write them into two columns of the table, or as one number in one unit."
        )
    as_list = "a list in each text, and each list is a level of its own: write a column of 0 and 1 "
    as_list += "for each thing that lists have, or a libsvm file, and leave the lists out."
    if all(map(_BRACKETED.fullmatch, texts)):
        fields = "several fields in each text, and each text is a level of its own: write each "
        fields += "field into a column, and leave the texts out."
        return fields if texts[0].startswith("{") else as_list
    for mark in ";|,":
        parts = [[part.strip() for part in one.split(mark)] for one in texts]
        several = sum(len(own) > 1 for own in parts)
        different_parts = {part for own in parts for part in own}
        if 2 * several >= len(texts) >= 2 * len(different_parts):
            return as_list
    return ""


def _units_of(texts: Texts) -> str:
    """Return in which units texts have numbers, and what to do; "": in none, or in one."""
    if len(texts) > _MOST_LEVELS:
        return ""
    units = {unit_of([one], 0) for one in texts}
    # letters alone are as those of 1a, 1b and 2a, which are no units
    if "" in units or len(units) < 2 or max(map(len, units)) < 2 or units & {"st", "nd", "rd"}:
        return ""
    return (
        f"numbers with {in_words([*map(repr, sorted(units))])}, and each text is a level of its "
        "own: if they are amounts, write all in one unit; init then reads them as numbers."
    )


def _quoted(name: str) -> str:
    """Return a name as an experiment file writes it."""
    return json.dumps(name, ensure_ascii=False)


def _under_other_names(tables: Sequence[TableProposal], matched: Matched) -> list[str]:
    """Return a note of columns that may be one under two names, of tables that share no row.

    One table alone has the one, and all others the other one, with numbers that lie alike.
    """
    if len(tables) < 2 or any(
        len(matched.rows(one.source.name, other.source.name)[0])
        for one, other in combinations(tables, 2)
    ):
        return []
    spans = {
        one.source.name: {one.feature(own): own.span for own in one.features} for one in tables
    }
    found: list[str] = []
    for client, own in spans.items():
        others = [theirs for name, theirs in spans.items() if name != client]
        alone = [name for name in own if not any(name in theirs for theirs in others)]
        lacking = [name for name in others[0] if name not in own]
        lacking = [name for name in lacking if all(name in theirs for theirs in others)]
        for name in alone if len(tables) > 2 or len(own) > len(alone) else ():
            near = [one for one in lacking if _alike(own[name], [its[one] for its in others])]
            if len(near) == 1:
                found.append(f"{name!r} of {client}, elsewhere {near[0]!r}")
    if not found:
        return []
    return [
        "columns have numbers alike under two names, and no table has both: "
        f"{'; '.join(found[:6])}. Where two are one, give them one name in the tables, or by the "
        "dictionary of [alignment]; as it is, each is learned for itself."
    ]


def _same_in_shared_rows(tables: Sequence[TableProposal], matched: Matched) -> list[str]:
    """Return a note of columns that say the same under two names, in the rows two tables share."""
    found: list[str] = []
    for one, other in combinations(tables, 2):
        places = matched.rows(one.source.name, other.source.name)
        if len(places[0]) < LEAST_SHARED:
            continue
        known = [{table.feature(own) for own in table.columns.values()} for table in (one, other)]
        mine, theirs = (
            [
                (own.name, own.canonical[rows[:_MOST_SHARED]])
                for own in table.features
                if len(own.texts) > 2 and table.feature(own) not in there
            ]
            for table, there, rows in zip((one, other), reversed(known), places, strict=True)
        )
        if not mine or not theirs:
            continue
        every = np.stack([values for _, values in (*mine, *theirs)])
        codes = np.unique(every, return_inverse=True)[1].reshape(every.shape)
        codes[every == ""] = -1
        for (name, _), own in zip(mine, codes, strict=False):
            rest = codes[len(mine) :]
            levels, counts = np.unique(own[own >= 0], return_counts=True)
            if len(levels) <= 2:
                continue
            # rare events have in common that most rows have none of either
            usual = (own == rest) & (own == levels[counts.argmax()])
            there = (own >= 0) & (rest >= 0) & ~usual
            same = ((own == rest) & there).sum(axis=1)
            often = (there.sum(axis=1) >= LEAST_SHARED) & (same >= _SAME * there.sum(axis=1))
            found += [
                f"{name!r} of {one.source.name} and {theirs[at][0]!r} of {other.source.name}"
                for at in np.flatnonzero(often)
            ]
    if not found:
        return []
    more = f" and {len(found) - 6} more" if len(found) > 6 else ""
    return [
        f"columns say the same under two names in rows that tables share: {'; '.join(found[:6])}"
        f"{more}. Give them one name in the tables, or by the dictionary of [alignment]; as it is, "
        "each is learned for itself, and rows that only one table has count one of them alone."
    ]


def _alike(own: NDArray[np.float64] | None, others: Sequence[NDArray[np.float64] | None]) -> bool:
    """Return whether tenths, middle and nine tenths of columns' numbers are near each other's."""
    if own is None or own[2] == own[0]:
        return False
    return all(
        one is not None and np.abs(one - own).max() < _NEAR * (own[2] - own[0]) for one in others
    )


def _without_constants(tables: Sequence[TableProposal]) -> list[TableProposal]:
    """Leave out the columns that have one and the same value wherever they are."""
    levels: dict[str, set[str]] = {}
    for one in tables:
        for own in one.features:
            found = levels.setdefault(one.feature(own), set())
            found |= different(own.written, 2)
    kept = []
    for one in tables:
        for own in one.features:
            if len(levels[one.feature(own)]) == 1:
                why = f"{own.texts[0]!r} in every row that has it"
                if own.missing:  # as a tick is
                    why += "; where no value means no, write that into the table"
                one = one.without(own.name, why)
        kept.append(one)
    return kept


def _in_other_languages(tables: Sequence[TableProposal], notes: list[str]) -> tuple[str, ...]:
    """Return the features of text with no and yes in other words, as "ja" here and "1" there."""
    held: dict[str, dict[str, Column]] = {}
    for one in tables:
        for own in one.features:
            held.setdefault(one.feature(own), {})[one.source.name] = own
    found = []
    for name, some in held.items():
        if all(own.figures is not None or own.truths for own in some.values()):
            continue
        # of many values, three are enough to tell
        levels = {client: different(own.written, 3) for client, own in some.items()}
        if all(map(are_no_and_yes, levels.values())) and any(spelled_apart(levels)):
            found.append(name)
    if found:
        notes.append(
            f"{in_words([*map(repr, found)])} {'has' if len(found) == 1 else 'have'} no and yes in "
            "other words, which are taken for the same: no_and_yes in the dictionary of "
            "[alignment]; take it out there if they mean something else."
        )
    return tuple(found)


def _alike_but_for_case(
    tables: Sequence[TableProposal], apart: Sequence[str], notes: list[str]
) -> tuple[str, ...]:
    """Return the features of text with values that differ in case alone, as "m" and "M" do."""
    levels: dict[str, set[str]] = {}
    for one in tables:
        for own in one.features:
            if own.figures is None or own.name in one.source.categorical:
                levels.setdefault(one.feature(own), set()).update(own.written)
    found = tuple(
        name
        for name, some in levels.items()
        if name not in apart and len({one.casefold() for one in some}) < len(some)
    )
    if found:
        notes.append(
            f"values of {in_words([*map(repr, found)])} differ in case alone, and are taken for "
            "one: ignore_case in the dictionary of [alignment]; take it out there where case tells "
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
    amounts = {
        one.renamed.get(name, name)
        for one in tables
        for name in (*one.answers, *one.source.units, *one.source.limits)
    }
    for name, some in held.items():
        mixed = len({own.figures is None and not own.truths for own in some}) > 1
        if not (mixed or name in coded or all(own.whole for own in some)):
            continue
        levels = {text for own in some for text in own.written}
        if (mixed or name in coded) and len(levels) > _MOST_LEVELS:
            unlike[name] = f"numbers here and text elsewhere, {len(levels):,} different ones"
        elif mixed or name in coded or (name not in amounts and _codes(name, some, levels)):
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
    Codes whose numbers say nothing of an order do so rarely. What may stand for a missing value is
    left aside.
    """
    rows = _rows_of(some)
    values = sorted(rows)
    if len(values) < LEAST_COUNTS or values[0] != 0:
        return False
    peaked = _has_one_peak([rows[one] for one in values])
    return peaked and rows[values[-1]] < _THIN_TAIL * rows.total()


def _rows_of(some: Sequence[Column]) -> Counter[float]:
    """Return how many rows of columns have each number, but for what may stand for none."""
    rows: Counter[float] = Counter()
    for own in some:
        counts = np.bincount(own.codes[own.codes >= 0], minlength=len(own.texts))
        for figure, count in zip(own.figures or (), counts, strict=True):
            if figure not in own.stand_ins:
                rows[figure] += int(count)
    return rows


def _has_one_peak(rows: Sequence[int], deviations: float = 1.0) -> bool:
    """Return whether rows of ascending values rise to one peak and fall, but for chance.

    Chance is what so many standard deviations of the difference of two counts may be.
    """
    height = [one for one in rows if one >= 5]  # of fewer, the order is chance
    if not height:
        return False
    peak = height.index(max(height))
    up, down = height[: peak + 1], height[peak:]
    steps = [*pairwise(up), *((two, one) for one, two in pairwise(down))]
    return all(low - high <= deviations * math.sqrt(low + high) for low, high in steps)
