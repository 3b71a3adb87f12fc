"""Read the columns of a Parquet file: one by one, or rows of many some at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as arrow_parquet

from intarsia.data.source import Source
from intarsia.errors import first_line

_STARTS = (b"PAR1", b"PARE")  # how such files begin, as they are and encrypted
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
            self.schema: pa.Schema = self._file.schema_arrow
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

    def whole(self) -> pa.Table:
        """Return all columns."""
        with self._told():
            return self._file.read()

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


def values_size(path: Path) -> int:
    """Return how many bytes a file's values take as numbers of 64 bits; 0 if it has no say."""
    try:
        found = arrow_parquet.read_metadata(path)
    except (pa.ArrowException, OSError):
        return 0
    return int(found.num_rows) * int(found.num_columns) * 8
