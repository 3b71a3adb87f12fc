"""Keep what is read some at a time: in memory or, with a folder, in a file on its disk.

Such a file has no name. The system removes it when nothing needs it any more, or when the process
ends, however that comes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from intarsia.errors import ExperimentError

Opened = Callable[[], Any]  # opens a file of Arrow at its beginning, to be read once

PIECE = 2**20  # bytes of a file that are looked at together


def stored(pieces: Iterable[bytes], folder: Path | None) -> Opened:
    """Return what opens the bytes that were given in pieces.

    In memory they are Arrow's own: a thread of its pool may let go of what it read only while the
    interpreter ends, and there it cannot let go of what is Python's: the process would abort.

    Raises
    ------
    ExperimentError
        If the folder's disk has no room for them.
    """
    if folder is None:
        sink = pa.BufferOutputStream()
        for piece in pieces:
            sink.write(piece)
        return partial(pa.BufferReader, sink.getvalue())
    with _new_file(folder) as file:
        for piece in pieces:
            with _told(folder):
                file.write(piece)
        with _told(folder):
            return partial(pa.BufferReader, _mapped(file))


def parts_of(opened: Opened) -> Iterator[bytes]:
    """Return the bytes of a file, some at a time."""
    with opened() as file:
        while some := file.read(PIECE):
            yield some


def gathered(schema: pa.Schema, batches: Iterable[pa.RecordBatch], folder: Path | None) -> pa.Table:
    """Return rows that are given some at a time as one table.

    Raises
    ------
    ExperimentError
        If the folder's disk has no room for them.
    """
    if folder is None:
        return pa.Table.from_batches(batches, schema)
    with _new_file(folder) as file:
        sink = pa.PythonFile(file, "w")
        with _told(folder):
            kept = pa.ipc.new_file(sink, schema)
        for batch in batches:
            with _told(folder):
                kept.write_batch(batch)
        with _told(folder):
            kept.close()
            return pa.ipc.open_file(_mapped(file)).read_all()


def _new_file(folder: Path) -> Any:
    with _told(folder):
        return tempfile.TemporaryFile(dir=folder, prefix="intarsia-")


def _mapped(file: Any) -> pa.Buffer:
    """Return what was written to a file; it stays when the file is closed."""
    file.flush()
    if not file.tell():
        return pa.allocate_buffer(0)
    with pa.memory_map(f"/dev/fd/{file.fileno()}") as mapped:
        return mapped.read_buffer()


@contextmanager
def _told(folder: Path) -> Iterator[None]:
    """Say in a sentence that a folder's disk takes no more."""
    try:
        yield
    except OSError as error:
        raise ExperimentError(
            "A table that may not fit into memory is read by way of a file, which cannot be kept "
            f"in {folder} ({error.strerror}); free disk space there, choose another output folder "
            "with --out, or set [experiment] memory higher."
        ) from error
