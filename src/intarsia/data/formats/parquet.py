"""Read the columns of a Parquet file: one by one, or rows of many some at a time."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as arrow_parquet

from intarsia.data.source import Source
from intarsia.errors import first_line

_STARTS = (b"PAR1", b"PARE")  # how such files begin, as they are and encrypted
_UNNAMED = re.compile(r"__index_level_\d+__")  # an index without a name, as pandas writes it
_BUFFER = 2**16  # bytes of each column that are read at once


class ParquetColumns:
    """The columns of a file, of which nothing is in memory but what was just read.

    Raises
    ------
    TableError
        If the file cannot be read: when it is opened, or as columns are asked for.
    """

    def __init__(self, path: Path, source: Source) -> None:
        self._source = source
        with self._told():
            with path.open("rb") as file:
                start = file.read(4)
            if start and start not in _STARTS:
                raise source.error(
                    "this is no Parquet file",
                    "rename it to what it is, such as .csv, or set format to what it is",
                    "rename it to what it is, such as .csv",
                )
            # else whole columns of the file's row groups would be there
            self._file = arrow_parquet.ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False)
            self.schema: pa.Schema = _without_row_numbers(self._file.schema_arrow, source)
            self.num_rows: int = self._file.metadata.num_rows

    def column(self, name: str) -> pa.ChunkedArray:
        """Return one column."""
        with self._told():
            return self._file.read(columns=[name]).column(name)

    def batches(self, names: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """Return so many rows of some columns at a time; a batch may have others, too."""
        with self._told():
            if names:
                yield from self._file.iter_batches(rows, columns=list(names))

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise self._source.error(
                f"not a parquet file that can be read ({first_line(error)})",
                "write it again, or set format to what it is",
                "write it again",
            ) from error


def _without_row_numbers(schema: pa.Schema, source: Source) -> pa.Schema:
    """Return a file's columns without an index of pandas that has no name, unless one is named.

    It is no column of the DataFrame, and numbers rows where some were left out.
    """
    index = _index_of(schema)
    for name in _row_numbers(schema):
        if name == source.id:
            raise source.error(
                f"id names {name!r}, which is the index of the DataFrame that was written and no "
                "column of the file: of an index of consecutive numbers pandas keeps the first and "
                "the last alone",
                "write it again by frame.reset_index().to_parquet(...)",
            )
    named = {source.id, source.label, source.weights, source.split_by, *(source.features or ())}
    named |= {*source.exclude, *source.categorical, *source.units, *source.limits}
    named.update(*source.groups.values())
    for one in schema.names:
        if one in index and _UNNAMED.fullmatch(one) and one not in named:
            schema = schema.remove(schema.get_field_index(one))
    return schema


def row_numbers(path: Path) -> list[str]:
    """Return the names of an index of consecutive numbers that pandas wrote no column of."""
    try:
        return _row_numbers(arrow_parquet.read_schema(path))
    except (pa.ArrowException, OSError):
        return []


def _row_numbers(schema: pa.Schema) -> list[str]:
    names = [one.get("name") for one in _index_of(schema) if isinstance(one, dict)]
    return [one for one in names if isinstance(one, str) and one not in schema.names]


def _index_of(schema: pa.Schema) -> list[Any]:
    """Return what pandas wrote of a DataFrame's index; nothing where that cannot be read."""
    try:
        told = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))
    except (ValueError, RecursionError):
        return []
    index = told.get("index_columns") if isinstance(told, dict) else None
    return index if isinstance(index, list) else []


def values_size(path: Path) -> int:
    """Return how many bytes a file's values take as numbers of 64 bits; 0 if it has no say."""
    try:
        found = arrow_parquet.read_metadata(path)
    except (pa.ArrowException, OSError):
        return 0
    return int(found.num_rows) * int(found.num_columns) * 8
