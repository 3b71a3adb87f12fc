"""Leave out the columns that are no features, with the reason that the reader itself gives."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
from pyarrow import types

from intarsia.data.column import plain_figures
from intarsia.data.column_types import FEW_LEVELS, coded_texts, features_of
from intarsia.data.column_types import MOST_LEVELS as MOST_LEVELS_READ
from intarsia.data.source import LEAST_ROWS
from intarsia.errors import TableError, listed
from intarsia.inspection.proposals.codes_or_amounts import MOST_CODES, MOST_LEVELS, counted
from intarsia.inspection.proposals.column_names import (
    is_code,
    is_id,
    names_persons,
    tells_persons,
    words,
)
from intarsia.inspection.proposals.table_proposal import (
    LEAST_SHARED,
    Column,
    TableProposal,
    different,
)

_MOST_MISSING = 0.9  # share of a column that is left out
_DAY = re.compile(r"(19|20)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])")  # as 20260131


def with_no_label(one: TableProposal) -> TableProposal:
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


def without_unfit(tables: Sequence[TableProposal]) -> list[TableProposal]:
    """Leave out the columns that are no features, and list those that are categories or codes."""
    persons = {words(own.name) for one in tables for own in one.features if _of_persons(own)}
    why = [
        {
            own.name: _unfit(own, one)
            if words(own.name) not in persons
            else _of_persons(own) or _NAMED
            for own in one.features
        }
        for one in tables
    ]
    many = _of_many_levels(tables, why)
    found = []
    for one, reasons in zip(tables, why, strict=True):
        codes, some_many = [], False
        for own in one.features:
            if words(own.name) in many and _is_category(own, reasons[own.name]):
                codes.append(own.name)
                some_many = True
            elif reasons[own.name]:
                one = one.without(own.name, reasons[own.name])
            elif own.coded:
                codes.append(own.name)
        one = one.with_keys({}, categorical=tuple(codes)) if codes else one
        found.append(one.with_keys({}, least_rows=LEAST_ROWS) if some_many else one)
    return found


def _of_many_levels(
    tables: Sequence[TableProposal], why: Sequence[Mapping[str, str]]
) -> set[tuple[str, ...]]:
    """Return the columns, by the words of their names, that are categories of many levels.

    Products, shops, diseases or postcodes: texts, or codes, of which half of the rows have one that
    five rows or more of their table have. Nobody else learns of the others, nor are they learned
    from. None are the names and ids of persons, however often each occurs.
    """
    rows: dict[tuple[str, ...], int] = {}
    often: dict[tuple[str, ...], int] = {}
    levels: dict[tuple[str, ...], int] = {}
    many: set[tuple[str, ...]] = set()
    for one, reasons in zip(tables, why, strict=True):
        for own in one.features:
            name, reason = words(own.name), reasons[own.name]
            if tells_persons(own.name) or not _is_category(own, reason):
                continue
            counts = np.bincount(own.codes[own.codes >= 0], minlength=len(own.texts))
            frequent = counts >= LEAST_ROWS
            rows[name] = rows.get(name, 0) + int(counts.sum())
            often[name] = often.get(name, 0) + int(counts[frequent].sum())
            levels[name] = max(levels.get(name, 0), int(frequent.sum()))
            if (reason and not reason.startswith(_IN_EVERY_ROW)) or _is_code_as_number(own):
                many.add(name)
    return {
        name
        for name in many
        if often[name] >= _LEAST_OFTEN * rows[name] and 2 <= levels[name] <= _MOST_OFTEN
    }


_LEAST_OFTEN = 0.5  # share of the rows whose level five rows or more have
_MOST_OFTEN = 20_000  # such levels of a table; with more of them a run takes long


def _of_persons(own: Column) -> str:
    """Return why a column tells of persons, by its values or its name; "": it does not."""
    some = [*islice(own.texts, _MOST_SEEN)]
    for kind, pattern in _OF_PERSONS.items() if own.figures is None or _has_plus(some) else ():
        if all(2 * sum(map(bool, map(pattern.fullmatch, a))) > len(a) for a in (some[:20], some)):
            return f"has {kind}, which may tell persons"
    text = own.figures is None and len(own.texts) > FEW_LEVELS
    numbered = own.whole and min(own.figures or (0.0,)) >= _LEAST_OF_IDS
    if not (text or numbered) or not names_persons(own.name):
        return ""
    return _NAMED + (AS_CATEGORY if text and own.rows >= LEAST_ROWS * len(own.texts) else "")


_NAMED = "is named as persons, or their addresses and ids, are"


def _has_plus(some: Sequence[str]) -> bool:
    return bool(some) and some[0].startswith("+")


_MOST_SEEN = 1000  # texts of a column, by which it is told what they are
_LEAST_OF_IDS = 10_000_000  # smaller numbers may be amounts, whatever their name
_OF_PERSONS = {
    "addresses of devices": re.compile(
        r"(\d{1,3}\.){3}\d{1,3}|([0-9a-fA-F]{2}[:-]){5}[0-9a-fA-F]{2}|([0-9a-fA-F]{0,4}:){4,7}\S*"
    ),
    "telephone numbers": re.compile(r"(\+|00)[1-9]([ ()/.-]?\d){7,14}"),
    "numbers of bank accounts": re.compile(r"[A-Z]{2}\d{2}( ?[A-Z0-9]{4}){2,7}( ?[A-Z0-9]{1,3})?"),
    "places on a map": re.compile(r"\(?-?\d{1,3}\.\d{2,},? *-?\d{1,3}\.\d{2,}\)?"),
    "numbers of vehicles": re.compile(r"(?=.*\d)(?=.*[A-Z])[A-HJ-NPR-Z0-9]{17}"),
    "persons with their titles": re.compile(r"(Dr|Prof|Mr|Mrs|Herr|Frau|Mme)(\.|\b) *\S.*"),
}


def _is_category(own: Column, why: str) -> bool:
    """Return whether a column can be a category, where `why` is the reason to leave it out."""
    if not why:
        return own.figures is None or _is_code_as_number(own)
    if why.startswith("mixes numbers and text"):
        named = is_code(own.name) or "code" in words(own.name)
        return named or all(map(_CODE.fullmatch, own.texts))
    if why.startswith(_IN_EVERY_ROW):  # of a small table, where those of others are frequent
        return own.figures is None or is_code(own.name)
    if why.startswith("has numbers with "):  # as 940xx is a postcode
        return is_code(own.name)
    return _MANY_TEXTS in why or why.startswith(_WITH_ZEROS)


def _is_code_as_number(own: Column) -> bool:
    """Return whether whole numbers are named like codes, and are too many for `as_one_kind`."""
    return own.whole and is_code(own.name) and len(own.texts) > MOST_CODES and not counted([own])


def _unfit(own: Column, one: TableProposal) -> str:
    """Return why a column is no feature; "": it is one."""
    if not own.texts:
        return "empty in every row"
    if own.missing > _MOST_MISSING:
        return f"missing in {100 * own.missing:.0f} % of the rows"
    distinct = own.distinct and own.rows >= LEAST_SHARED
    if distinct and (own.numbered or (own.whole and is_id(own.name))):
        return f"{_IN_EVERY_ROW[1]} in every row, as an id has"
    if own.whole and len(own.texts) > 1 and all(map(_DAY.fullmatch, own.texts)):
        return "has dates without marks; to learn from it, write them as 2026-01-31 in the table"
    if own.coded and len(own.texts) > MOST_LEVELS:
        said = f"{_WITH_ZEROS}, {len(own.texts):,} different ones"
        return said + (AS_CATEGORY if own.rows >= LEAST_ROWS * len(own.texts) else "")
    # as the reader would read it, whose reasons these are
    as_listed = replace(one.source, categorical=(own.name,)) if own.coded else one.source
    said = ""
    try:
        if not _is_plain(own, one):
            features_of([(own.name, one.values(own.name))], as_listed)
    except TableError as problem:
        said = what_is_wrong(problem, own.name)
    if said.startswith("mixes numbers and text") and len(own.texts) <= MOST_CODES:
        said += "; or, if its numbers are answers or codes, list it in categorical"
    if distinct and own.figures is None and not said.startswith(_AS_NUMBERS):
        return f"{_IN_EVERY_ROW[0]} in every row"
    if _MANY_TEXTS in said:
        often = own.rows >= LEAST_ROWS * len(own.texts)
        said += AS_CATEGORY if often else _by_beginnings(own)
    return said


def _by_beginnings(own: Column) -> str:
    """Return how to learn from codes that begin alike where they are of one kind, as I21.0, I21.4.

    "": they are no such codes, or their beginnings are as rare.
    """
    if is_id(own.name) or not own.texts.all_like(_CLASSED):
        return ""
    rows = (own.codes >= 0).sum()
    beginnings = {size: len({text[:size] for text in own.texts}) for size in (3, 1)}
    for size, many in beginnings.items() if beginnings[1] >= _LEAST_LETTERS else ():
        if many <= MOST_LEVELS_READ and rows >= LEAST_ROWS * many:
            characters = "character" if size == 1 else f"{size} characters"
            return (
                f"; to learn from it, write the first {characters} of each, {many} different ones, "
                "into a column of the table"
            )
    return ""


# a letter and two figures begin them, as in ICD-10, ATC and other lists of classes
_CLASSED = r"^[A-Z][0-9]{2}[.]?[0-9A-Z]{0,5}$"
_LEAST_LETTERS = 5  # different ones; of fewer, a letter may stand before each number


def _is_plain(own: Column, one: TableProposal) -> bool:
    """Return whether a column of text has numbers alone, which the reader takes as they are."""
    assert one.read is not None
    if own.coded or not types.is_string(one.read.schema.field(own.name).type):
        return False
    unit = one.source.units.get(own.name, "")
    return plain_figures(own.texts, one.source, unit, own.figures) is not None


AS_CATEGORY = (
    "; to learn from it, if its texts tell nothing of single rows, list it in categorical, "
    f"set least_rows = {LEAST_ROWS}, and take it out of exclude"
)  # as a reason ends where five rows or more have each of many texts
_IN_EVERY_ROW = ("another text", "another whole number")  # how a reason begins
_MANY_TEXTS = " different texts in "
_WITH_ZEROS = "codes with zeros in front"
_CODE = re.compile(r"[A-Z]{0,3}[0-9][0-9A-Z.]*")  # such as 428, 250.83 and V27


_AS_NUMBERS = (
    "has numbers",
    "has dates",
    "has times of day",
    "has durations",
    "has limits",
    "has negative numbers",
)  # how a reason begins of what could be a number


def what_is_wrong(problem: TableError, name: str) -> str:
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


def without_constants(tables: Sequence[TableProposal]) -> list[TableProposal]:
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
