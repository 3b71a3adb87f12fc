"""Look at one table: how its numbers and missing values are written, and what its columns hold."""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from intarsia.data.column_roles import check_names
from intarsia.data.column_types import coded_texts
from intarsia.data.formats.csv import MARKS
from intarsia.data.formats.parquet import ParquetColumns
from intarsia.data.parsing import are_numbers, limit_of, number, spellings_of, unit_of, without_unit
from intarsia.data.reader import columns_of, read
from intarsia.data.source import Source
from intarsia.data.texts import Texts
from intarsia.errors import TableError, listed
from intarsia.inspection.proposals.codes_or_amounts import MOST_CODES, counted
from intarsia.inspection.proposals.column_names import is_amount, is_code, is_id
from intarsia.inspection.proposals.missing_words import missing_words
from intarsia.inspection.proposals.table_proposal import Column, TableProposal
from intarsia.inspection.proposals.unfit_columns import what_is_wrong

_ENCODINGS = ("utf-16", "cp1252", "latin-1")  # tried where a file is not UTF-8
_LINES_OF_TITLES = 100  # by which a title above the names of columns is told
_FEW_AMOUNTS = 2  # texts; more that end in one word are amounts with a unit
_FIRST = 100  # texts of a column that are looked at before all of them
_LEAST_AMOUNTS = 10  # different numbers beside limits; of fewer, "<1" may be a category


def looked_at(source: Source, folder: Path | None) -> TableProposal:
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
    if len(names) == 1 and isinstance(frame, pa.Table):
        _check_title(names[0], frame.column(names[0]), source)
    texts: dict[str, tuple[NDArray[np.int32], Texts]] = {}
    left_out: dict[str, str] = {}
    for name in names:
        try:
            texts[name] = coded_texts(frame.column(name), name, source)
        except TableError as problem:
            left_out[name] = what_is_wrong(problem, name)
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
            # as text: a number may be an id whose zeros matter
            return one, columns_of(one, folder, as_text=True)
        except TableError as problem:
            first = first or problem
            if "which are not UTF-8" not in str(first) and "which is UTF-16" not in str(first):
                break
            if encoding == "cp1252" and "values (" in str(problem):  # it is, and has another fault
                raise
    assert first is not None
    raise first


def _check_title(name: str, lines: pa.ChunkedArray, source: Source) -> None:
    """Raise where the only name of a file seems to be a title, and a later line has the names.

    So it is where a mark that the name has not is as often in most of the first lines.
    """
    some = [str(one) for one in lines.slice(0, _LINES_OF_TITLES).to_pylist()]
    for mark in MARKS:
        often = [one.count(mark) for one in some]
        usual = max(set(often), key=often.count)
        if usual and mark not in name and often.count(usual) >= max(2, len(some) / 2):
            first = some[often.index(usual)]
            raise source.error(
                f"the first line ({name[:60]!r}) has one name, and others have {usual + 1} values "
                f"each, with {mark!r} between them (first: {first[:60]!r})",
                "if it is a title, remove the lines above the names of the columns",
            )


def _of_matrix(source: Source) -> TableProposal:
    """Return what is proposed for a file that holds a matrix, whose labels are its own."""
    reasons, ids = {}, None
    try:
        named = replace(source, id="samples")
        table = read(named)
        source, reasons["id"] = named, "the ids in the file"
        own = pa.chunked_array([pa.array(table.samples)])
        ids = _column("samples", *coded_texts(own, "samples", named), named)
    except TableError:
        table = read(source)
    if table.labels is not None:
        reasons["label"] = "the labels in the file"
    sizes = len(table.samples), len(table.columns)
    return TableProposal(source, {}, *sizes, {}, reasons, ids_beside=ids)


def _column(name: str, codes: NDArray[np.int32], texts: Texts, source: Source) -> Column:
    codes, texts = texts.without([one.strip() for one in source.missing], codes)
    if not len(texts):
        return Column(name, codes, texts, None)
    plain = texts.with_point if source.decimal == "," else texts
    if plain.plain:
        return Column(name, codes, texts, array("d", (plain.figures + 0.0).tobytes()))
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
        given = own.like(r"\p{Nd}")
        # where some of the texts are no amounts, all of them are none
        if not given or is_id(name) or is_code(name) or not _are_amounts(given[:_FIRST])[0]:
            continue
        amounts, unit, beyond = _are_amounts(given)
        if not amounts or (beyond and len(given) - beyond < _LEAST_AMOUNTS):
            continue
        if unit:
            units[name] = unit
        if beyond:
            limits.append(name)
    return replace(source, units=units, limits=tuple(limits))


def _are_amounts(given: Sequence[str]) -> tuple[bool, str, int]:
    """Return whether all texts are numbers, which unit they all have, and how many are limits."""
    limits = [limit_of(one) for one in given]
    bare = [limit or one for limit, one in zip(limits, given, strict=True)]
    unit = unit_of(bare, _FEW_AMOUNTS)
    plain = [without_unit(one, unit) for one in bare]
    amounts = spellings_of(plain) and not any(re.match(r"0\d", one) for one in plain)
    return bool(amounts), unit, sum(map(bool, limits))


def with_units_of_amounts(one: TableProposal) -> TableProposal:
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
    with_signs = {*source.units, *source.limits}
    bare = {
        name: (codes, Texts.of([_bare(one, name, source) for one in own]))
        if name in with_signs
        else (codes, own)
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
        few = own.whole and len(own.texts) <= MOST_CODES
        if few and own.stand_ins and (is_amount(own.name) or counted([own])):
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
