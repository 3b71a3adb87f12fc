"""A new table beside those of a finished run: its columns, and how the run's tables were read."""

from __future__ import annotations

import csv
import gzip
import json
from dataclasses import dataclass
from pathlib import Path

from intarsia.errors import TableError
from intarsia.sources import Source, read
from intarsia.spelling import listed
from intarsia.tables import Table

__all__ = ["TableSettings", "check_table", "column_names", "read_table", "table_settings"]

_ENDINGS = (".csv", ".tsv", ".txt", ".parquet", ".pq")


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
        return read(source)
    except TableError as problem:
        sentence = str(problem).replace(source.where, str(source.path))
        raise TableError(sentence.replace("Client 'table'", "The table")) from problem


@dataclass(frozen=True)
class TableSettings:
    """How the parties' tables were read, as far as they agree."""

    ids: tuple[str, ...]
    labels: tuple[str, ...]
    missing: tuple[str, ...]
    separator: str | None


def table_settings(folder: Path) -> TableSettings:
    """Return how the tables of a run in a folder were read; nothing where it does not say."""
    path = folder / "experiment.json"
    tree = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    tables = [*tree.get("client", []), tree.get("dataset", {})]
    separators = {table.get("separator") for table in tables if "separator" in table}

    def every(key: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(table[key] for table in tables if table.get(key)))

    missing = [text for table in tables for text in table.get("missing", ())]
    return TableSettings(
        every("id"),
        every("label"),
        tuple(dict.fromkeys(missing or ("?", ""))),
        separators.pop() if len(separators) == 1 else None,
    )


def column_names(path: Path, settings: TableSettings) -> list[str]:
    """Return the names of a table's columns; reading it whole says what is wrong with it."""
    bare = path.name.lower().removesuffix(".gz")
    try:
        if bare.endswith((".parquet", ".pq")):
            from pyarrow import ArrowException, parquet

            try:
                return list(parquet.read_schema(path).names)
            except ArrowException:
                return list(read_table(Source(name="table", path=str(path))).columns)
        separator = settings.separator or ("\t" if bare.endswith(".tsv") else ",")
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
            header = next((row for row in csv.reader(file, delimiter=separator) if row), [])
        if len(header) > 1:
            return header
    except (OSError, EOFError, UnicodeDecodeError, csv.Error):
        header = []
    whole = read_table(Source(name="table", path=str(path), separator=settings.separator))
    return header or list(whole.columns)
