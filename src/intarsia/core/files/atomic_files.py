"""Write files as a whole: what fails leaves nothing of it, and the error names the file.

What is being written has another name, and is locked by whoever writes it. A process that is killed
leaves it there without its lock, by which `remove_unfinished` knows it: processes in containers
that share a folder have the same numbers, and a number comes again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import os
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import IO, Final

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # no room for what is written
UNFINISHED = ".tmp"  # ends the name of what is being written
# what to do where no file may grow further, though its disk has room
LONGER: Final = "let files be longer (ulimit -f, or LimitFSIZE= of its service)"
_OF_A_PROCESS = re.compile(r"\..+\.([0-9]+|[0-9a-f]{16})\.tmp")


def write_atomically(path: Path, data: bytes, *, private: bool = False) -> None:
    """Replace a file by `data`; whoever reads it meanwhile sees all of the old or of the new.

    Of a link the file that it leads to is replaced. A private file is its owner's alone from the
    moment when it is made.
    """
    path = path.resolve() if path.is_symlink() else path
    temporary = path.with_name(f".{path.name}.{os.getpid()}{UNFINISHED}")
    try:
        temporary.unlink(missing_ok=True)  # what another process of this number left
        with unfinished(temporary, mode=0o600 if private else 0o666):
            write(temporary, [data])
            temporary.replace(path)
    except OSError as problem:
        problem.filename, problem.filename2 = str(path), None  # the file that was asked for
        raise
    finally:
        with contextlib.suppress(OSError):  # on a disk that is read-only it would tell another name
            temporary.unlink(missing_ok=True)
    sync(path.parent)


@contextlib.contextmanager
def unfinished(path: Path, *, mode: int) -> Iterator[IO[bytes]]:
    """Make a file that is locked until it has its name; FileExistsError where there is one."""
    while True:
        made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(made, "wb") as file:
            with contextlib.suppress(OSError):  # the file system may have no locks
                fcntl.flock(file, fcntl.LOCK_EX)
            if is_still(file, path):  # else it was removed before it was locked
                yield file
                return


def remove_unfinished(folder: Path, *below: str, of: str = "") -> None:
    """Remove what killed processes left half written in a folder, and below some in it.

    With `of`, of a file of that name alone.

    What somebody writes at the moment is locked and stays, and so does all where the file system
    has no locks.
    """
    name = f".{glob.escape(of) or '*'}.*{UNFINISHED}"
    for path in chain(folder.glob(name), *((folder / one).rglob(name) for one in below)):
        if not _OF_A_PROCESS.fullmatch(path.name):
            continue
        with contextlib.suppress(OSError):  # it has its name by now, or is another user's
            file = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if is_still(file, path):
                    path.unlink()
            finally:
                os.close(file)


def is_still(file: IO[bytes] | int, path: Path) -> bool:
    """Return whether an open file is the one that lies at a path: it may have gone."""
    try:
        return os.path.samestat(
            os.fstat(file if isinstance(file, int) else file.fileno()), path.stat()
        )
    except FileNotFoundError:
        return False


def write_over(path: Path, data: bytes) -> None:
    """Replace a file as `write_atomically` does, or write into a device or a pipe in its place.

    What killed processes left half written of it goes.
    """
    if not path.exists() or path.is_file():
        write_atomically(path, data)
        remove_unfinished(path.parent, of=path.name)
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
