"""Write files as a whole: what fails leaves nothing of it, and the error names the file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

UNFINISHED = ".tmp"  # ends the name of what is being written


def write_atomically(path: Path, data: bytes, *, private: bool = False) -> None:
    """Replace a file by `data`; whoever reads it meanwhile sees all of the old or of the new.

    Of a link the file that it leads to is replaced. A private file is its owner's alone from the
    moment when it is made.
    """
    path = path.resolve() if path.is_symlink() else path
    temporary = path.with_name(f".{path.name}.{os.getpid()}{UNFINISHED}")
    try:
        temporary.unlink(missing_ok=True)  # what another process of this number left
        write(temporary, [data], mode=0o600 if private else 0o666)
        temporary.replace(path)
    except OSError as problem:
        problem.filename, problem.filename2 = str(path), None  # the file that was asked for
        raise
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)


def write_over(path: Path, data: bytes) -> None:
    """Replace a file as `write_atomically` does, or write into a device or a pipe in its place."""
    if not path.exists() or path.is_file():
        write_atomically(path, data)
        return
    try:
        with path.open("wb") as there:
            there.write(data)
    except OSError as problem:
        problem.filename = str(path)
        raise


def write_durably(files: Iterable[tuple[Path, bytes]]) -> None:
    """Write files, and come back when all are on the disk; a file that is written last may say so.

    All are written before the first is waited for: of thousands, each would wait for the disk.
    """
    paths: list[Path] = []
    for path, data in files:
        try:
            path.write_bytes(data)
        except OSError as problem:
            problem.filename = str(path)
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)  # half of it is of no use, and takes room
            raise
        paths.append(path)
    for path in [*paths, *{path.parent for path in paths}]:
        sync(path)


def write(
    path: Path, pieces: Iterable[bytes | memoryview], *, mode: int = 0o666, durable: bool = True
) -> None:
    """Write a file, by default durably; one that is new has at most this mode."""
    made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(made, "wb") as file:
        file.writelines(pieces)
        file.flush()
        if durable:
            os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Make a file durable, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
