"""Delimited text (CSV, TSV) as columns.

The separator is the one that the source states, else "," (tab where the name ends in .tsv); a
header that this leaves whole, but that another of ; tab | and , divides, has that one.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.csv as arrow_csv

from intarsia.description import Source
from intarsia.errors import TableError
from intarsia.spelling import first_line

__all__ = ["delimited_text", "header_of"]

_MARKS = ";\t|,"  # what separates values where the usual separator does not


def delimited_text(content: bytes, source: Source) -> pa.Table:
    """Return the columns of a CSV file; ids, labels and listed categories stay text.

    Raises
    ------
    TableError
        If it is not UTF-8 text with a header and equally long lines; names the line.
    """
    _check_text(content, source)
    header, separator = _header(content, source)
    as_text = {name for name in (source.id, source.label, *source.categorical) if name}
    missing = {*source.missing, "", "NaN", "nan", "null", "NULL"}
    try:
        return arrow_csv.read_csv(
            pa.BufferReader(_arrow_s_own(content)),
            parse_options=arrow_csv.ParseOptions(delimiter=separator, newlines_in_values=True),
            convert_options=arrow_csv.ConvertOptions(
                column_types={name: pa.string() for name in header if name in as_text},
                null_values=sorted(missing),
                strings_can_be_null=True,
            ),
        )
    except pa.ArrowInvalid as error:
        raise TableError(
            f"{source.where}: {_ragged(content, separator, len(header)) or first_line(error)}; "
            f"give every line {len(header)} values, and put a value with a separator in quotes."
        ) from error


def _arrow_s_own(content: bytes) -> pa.Buffer:
    """Return a copy that Arrow owns.

    A thread of its pool may let go of what it read only while the interpreter ends, and there it
    cannot let go of what is Python's: the process would abort.
    """
    copied = pa.BufferOutputStream()
    copied.write(content)
    return copied.getvalue()


def _check_text(content: bytes, source: Source) -> None:
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise TableError(
            f"{source.where}: the file starts with {content[:2]!r}, which is UTF-16; save it as "
            "UTF-8."
        )
    if b"\0" in content[:4096]:
        raise TableError(
            f"{source.where}: the file starts with {content[:12]!r}, which is not text; set format "
            "to what it is, or save it as UTF-8 text."
        )
    try:
        content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        around = content[max(0, error.start - 5) : error.start + 5]
        raise TableError(
            f"{source.where}: line {line} has the bytes {around!r}, which are not UTF-8; save the "
            "file as UTF-8."
        ) from None


def header_of(rows: Callable[[str], Iterator[list[str]]], source: Source) -> tuple[list[str], str]:
    """Return the names in the first line of a file, and what separates them.

    `rows` reads the file with a separator.
    """
    tabs = (source.path or "").lower().removesuffix(".gz").endswith(".tsv")
    usual = source.separator or ("\t" if tabs else ",")
    header = _first(rows(usual))
    if source.separator is None and len(header) == 1:
        other = _other(header[0], usual)
        if other is not None:
            return _first(rows(other)), other
    return header, usual


def _first(rows: Iterator[list[str]]) -> list[str]:
    return next((row for row in rows if row), [])


def _other(name: str, separator: str) -> str | None:
    return next((mark for mark in _MARKS if mark != separator and mark in name), None)


def _rows(content: bytes, separator: str) -> Any:  # csv.reader has no public type
    return csv.reader(io.TextIOWrapper(io.BytesIO(content), "utf-8-sig"), delimiter=separator)


def _header(content: bytes, source: Source) -> tuple[list[str], str]:
    try:
        header, separator = header_of(lambda mark: _rows(content, mark), source)
    except csv.Error as error:
        raise TableError(
            f"{source.where}: the header line cannot be read ({error}); check quotes and separator."
        ) from None
    if not header:
        raise TableError(
            f"{source.where}: the file has 0 column names; write them in the first line."
        )
    if len(header) == 1:
        other = _other(header[0], separator)
        if other is not None:
            raise TableError(
                f"{source.where}: the header {header[0][:60]!r} has no {separator!r} but "
                f"{other!r}; set separator to {other!r}, or leave it out."
            )
    if all(_measured(name) for name in header):
        raise TableError(
            f"{source.where}: the first line ({', '.join(header)[:60]!r}) has numbers only; the "
            "first line must have the names of the columns: add it."
        )
    return header, separator


def _measured(name: str) -> bool:
    """Return whether a name is a number with a decimal point, which no column is called."""
    try:
        float(name)
    except ValueError:
        return False
    return True


def _ragged(content: bytes, separator: str, width: int) -> str | None:
    """Return where a CSV file has a line with another number of values."""
    rows = _rows(content, separator)
    try:
        for row in rows:
            if row and len(row) != width:
                return (
                    f"line {rows.line_num} has {len(row)} values "
                    f"({separator.join(row)[:40]!r}) but the header has {width}"
                )
    except csv.Error as error:
        return f"line {rows.line_num} cannot be read ({error})"
    return None
