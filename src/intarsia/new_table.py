"""A new table beside those of a finished run: its columns, and how the run's tables were read."""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from intarsia.data import ClientId
from intarsia.delimited import header_of
from intarsia.errors import FederationError, TableError
from intarsia.sources import Source, read
from intarsia.spelling import listed
from intarsia.tables import Table

__all__ = [
    "TableSettings",
    "advice_for_new_tables",
    "check_table",
    "column_names",
    "read_table",
    "separator_of",
    "table_settings",
]

_ENDINGS = (".csv", ".tsv", ".txt", ".parquet", ".pq")

# what errors advise to set in an experiment file, and what can be done about a new table
_ADVICE = (
    (
        r"correct it, add (.+) to missing, or list the column in categorical\.",
        r"correct it, or let it count as missing: --missing \1.",
    ),
    (
        r"list (it|the column) in exclude(, or in categorical to have one feature for each)?\.",
        r"leave \1 out of the table.",
    ),
    (r"set format to what it is, or save it as UTF-8 text\.", "save it as UTF-8 text."),
    (r", or set format to what it is\.", "."),
    (
        r"ids must have one type: .+",
        "ids must have one type: write them alike in all tables.",
    ),
    (r" or set id_type = \"text\"\.", "."),
    (r", or set separator if it is not .+\.", "."),
)


def check_table(path: Path) -> None:
    """Refuse what is no file, or not of a kind that can be read."""
    if path.is_dir():
        raise TableError(f"{path} is a folder; name a CSV or Parquet file in it.")
    if not path.exists():
        raise TableError(f"There is no file {path}; give the path of a CSV or Parquet file.")
    if not path.name.lower().removesuffix(".gz").endswith(_ENDINGS):
        raise TableError(
            f"{path} ends in {path.suffix!r}, which is neither CSV nor Parquet; give the file one "
            f"of the endings {listed(_ENDINGS)}."
        )


def read_table(source: Source) -> Table:
    """Return a table; an error names the file alone, as there is no client here."""
    try:
        with advice_for_new_tables():
            return read(source)
    except TableError as problem:
        sentence = str(problem).replace(source.where, str(source.path))
        raise TableError(sentence.replace("Client 'table'", "The table")) from problem


@contextmanager
def advice_for_new_tables() -> Iterator[None]:
    """Let the errors of reading a table advise what a command that is given one can do."""
    try:
        yield
    except (TableError, FederationError) as problem:
        sentence = str(problem)
        for told, doable in _ADVICE:
            sentence = re.sub(told, doable, sentence)
        raise type(problem)(sentence) from problem


@dataclass(frozen=True)
class TableSettings:
    """How the parties' tables were read, or that of one of them."""

    ids: tuple[str, ...]
    labels: tuple[str, ...]
    missing: tuple[str, ...]
    separators: tuple[str, ...]  # that any of them states


def table_settings(folder: Path, client: ClientId | None = None) -> TableSettings:
    """Return how the tables of a run in a folder were read; nothing where it does not say.

    With a client, how that client's was; without, or where the run knows none of this name, all.
    """
    path = folder / "experiment.json"
    tree = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    tables = [*tree.get("client", []), tree.get("dataset", {})]
    tables = [table for table in tables if client and table.get("name") == client] or tables

    def every(key: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(table[key] for table in tables if table.get(key)))

    missing = [text for table in tables for text in table.get("missing", ())]
    return TableSettings(
        every("id"),
        every("label"),
        tuple(dict.fromkeys(missing or ("?", ""))),
        every("separator"),
    )


def separator_of(path: Path, settings: TableSettings) -> str | None:
    """Return which of the parties' separators divides a table's header; None: the usual one."""
    return _header(path, settings)[1]


def column_names(path: Path, settings: TableSettings) -> list[str]:
    """Return the names of a table's columns; reading it whole says what is wrong with it."""
    header, separator = _header(path, settings)
    if len(header) > 1:
        return header
    whole = read_table(Source(name="table", path=str(path), separator=separator))
    return header or list(whole.columns)


def _header(path: Path, settings: TableSettings) -> tuple[list[str], str | None]:
    """Return the names of a table's columns, none where they cannot be read, and the separator.

    A new table may have another separator than those of training: it is the one of the parties'
    that gives the most names, if it gives more than the usual one.
    """
    if path.name.lower().removesuffix(".gz").endswith((".parquet", ".pq")):
        from pyarrow import ArrowException, parquet

        try:
            return list(parquet.read_schema(path).names), None
        except ArrowException:
            return [], None
    opened = gzip.open if path.suffix == ".gz" else open

    def names(separator: str | None) -> list[str]:
        def rows(mark: str) -> Iterator[list[str]]:
            with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
                yield from csv.reader(file, delimiter=mark)

        source = Source(name="table", path=str(path), separator=separator)
        return header_of(rows, source)[0]

    try:
        best, found = None, names(None)
        for separator in settings.separators:
            by_it = names(separator)
            if len(by_it) > len(found):
                best, found = separator, by_it
    except (OSError, EOFError, UnicodeDecodeError, csv.Error):
        return [], None
    return found, best
