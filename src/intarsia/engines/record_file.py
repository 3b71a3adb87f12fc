"""Append-only files of records behind their lengths; a process that ends may cut the last."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_LENGTH = struct.Struct("<Q")


def framed(data: bytes) -> bytes:
    """Return a record as it stands in a file: its length, then its bytes."""
    return _LENGTH.pack(len(data)) + data


def whole_records(file: BinaryIO) -> Iterator[bytes]:
    """Yield the records from where a file is, and leave it behind each; stop at one that was cut.

    What is appended behind a cut record is lost with it: truncate the file before.
    """
    end = os.fstat(file.fileno()).st_size
    while len(head := file.read(_LENGTH.size)) == _LENGTH.size:
        (size,) = _LENGTH.unpack(head)
        if size > end - file.tell():
            return
        yield file.read(size)


def append(path: Path, file: int, data: bytes) -> None:
    """Write at the end of an open file; where that fails, nothing of the data is left in it.

    Raises
    ------
    OSError
        If the disk is full; it names the path.
    """
    left, size = memoryview(data), os.fstat(file).st_size
    try:
        while left:
            left = left[os.write(file, left) :]
    except OSError as problem:
        os.ftruncate(file, size)  # what came after half a record could not be read
        problem.filename = str(path)
        raise
