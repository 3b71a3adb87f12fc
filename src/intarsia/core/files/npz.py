"""Refuse npz files that would take far more memory than their size tells."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from tokenize import TokenError

import numpy as np
from numpy.lib import format as npy

_LARGE = 2**30  # bytes that any file may unpack to
_TIMES = 100  # and beyond, of its own size
# what NumPy raises for the text of a header that it did not write, beside ValueError
_NO_HEADER = (KeyError, MemoryError, RecursionError, SyntaxError, TokenError)


def check_npz(path: Path, *, packed: bool) -> None:
    """Raise unless the arrays of an npz file have the sizes that the file can hold.

    A file that is not `packed` holds its arrays as they are.

    Raises
    ------
    ValueError
        If it unpacks to far more than its size, or an array's shape is not that of its bytes.
    zipfile.BadZipFile
        If it is no zip archive, or is damaged.
    """
    try:
        _check(path, packed=packed)
    except (NotImplementedError, RuntimeError) as problem:  # for a kind that no archive has
        raise zipfile.BadZipFile(str(problem)) from problem


def _check(path: Path, *, packed: bool) -> None:
    size = path.stat().st_size
    with zipfile.ZipFile(path) as file:
        members = file.infolist()
        unpacked = sum(one.file_size for one in members)
        if unpacked > unpacked_limit(size, packed=packed):
            raise ValueError(f"it has {size:,} bytes and would unpack to {unpacked:,}")
        for one in members:
            with file.open(one) as stream:
                try:
                    version = npy.read_magic(stream)
                    read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
                    shape, _, dtype = read[version](stream)
                except _NO_HEADER as problem:
                    raise ValueError(f"{one.filename} is no array of numbers or text") from problem
                announced = math.prod(shape) * np.dtype(dtype).itemsize
                if not dtype.hasobject and announced != one.file_size - stream.tell():
                    raise ValueError(f"{one.filename} has not the {announced:,} bytes of its shape")


def unpacked_limit(size: int, *, packed: bool = True) -> int:
    """Return the bytes that a file of a size may unpack to."""
    return max(_LARGE, _TIMES * size) if packed else size
