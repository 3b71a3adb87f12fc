"""An append-only log whose entries are chained by hashes, so that edits and gaps are found.

Each entry is a line of JSON with its number, the time, and the SHA-256 of the line before it. The
number and the hash of the last line stand in a second file, the head. What `read_chain` finds:

* an entry that was edited, taken out, put in or moved, with its number;
* entries that were cut off at the end, as the head says how many there were.

What it cannot find by itself: a log whose end was cut off, or that was written anew, together with
the head. A head that was noted elsewhere shows that, and so do the logs of other sites.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final

from intarsia.core.files.json_text import parse_json
from intarsia.engines.record_file import append
from intarsia.errors import CheckpointError

START: Final = "0" * 64  # stands for the hash of the line before the first
_BLOCK: Final = 1 << 16  # bytes that are read at a time from the end


@dataclass(frozen=True)
class Head:
    """The last entry of a log: its number, from 1, and the hash of its line."""

    number: int = 0
    digest: str = START

    def __str__(self) -> str:
        return f"{self.number}:{self.digest}"

    @classmethod
    def of(cls, text: str) -> Head:
        """Return the head that a text was made of; ValueError if it is none."""
        number, _, digest = text.strip().partition(":")
        if len(digest) != len(START) or set(digest) - set("0123456789abcdef"):
            raise ValueError(f"{text[:80]!r} is no head of a log")
        return cls(int(number), digest)


@dataclass(frozen=True)
class Chain:
    """A log as it was read."""

    entries: Collection[Mapping[str, Any]]
    faults: tuple[str, ...]  # in sentences; none: it is whole
    head: Head  # of what was read


@dataclass(frozen=True)
class _Entries:
    """The entries of a log, read anew each time: they take ten times the memory of the file."""

    path: Path
    size: int  # of the file when it was read first
    count: int

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        with self.path.open("rb") as file:
            found = (_entry(line) for line in _lines(file, self.size) if line.endswith(b"\n"))
            yield from (one for one in found if one is not None)

    def __contains__(self, entry: object) -> bool:
        return any(one == entry for one in self)


class ChainedLog:
    """Appends entries to a log; several processes may have it open.

    Parameters
    ----------
    path, head
        The two files; both are the owner's alone (mode 600).
    """

    def __init__(self, path: Path, head: Path) -> None:
        self._path, self._head = path, head
        self._size = -1  # of the log as this left it
        self._last = Head()

    def append(self, entry: Mapping[str, Any]) -> None:
        """Append an entry, and come back when it is durable.

        Raises
        ------
        OSError
            If it cannot be written.
        """
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            with contextlib.suppress(OSError):  # a file system without locks: see `lock.alone`
                fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file).st_size != self._size:
                self._catch_up(file)
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            numbered = {"n": self._last.number + 1, "at": now, "before": self._last.digest}
            line = json.dumps({**numbered, **entry}, separators=(",", ":")).encode()
            append(self._path, file, line + b"\n")
            os.fdatasync(file)
            self._last = Head(self._last.number + 1, _digest(line))
            self._size = os.fstat(file).st_size
            self._write_head()
        finally:
            os.close(file)

    def _write_head(self) -> None:
        """Write the head; not waited for: one that is behind the log says the truth."""
        file = os.open(self._head, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            text = f"{self._last}\n".encode()
            os.pwrite(file, text, 0)
            os.ftruncate(file, len(text))
        finally:
            os.close(file)

    def _catch_up(self, file: int) -> None:
        """Go on behind the last whole line, or behind what the head says that there was."""
        end = os.fstat(file).st_size
        tail, start = b"", end
        while start and tail.count(b"\n", 0, -1) < 1:
            start = max(0, start - _BLOCK)
            tail = os.pread(file, end - start, start)
        if tail and not tail.endswith(b"\n"):  # a process was killed in it: nothing left by it
            os.ftruncate(file, start + tail.rfind(b"\n") + 1)
            self._catch_up(file)
            return
        line = tail[:-1].rpartition(b"\n")[2]
        known = read_head(self._head) or Head()
        try:
            found = Head(int(json.loads(line)["n"]), _digest(line)) if line else Head()
        except (ValueError, TypeError, KeyError):
            found = Head()  # it was altered, which stays to be found
        # where the head is ahead the end was cut off: the gap shows in the numbers for ever
        self._last = found if found.number >= known.number else known


def read_head(path: Path) -> Head | None:
    """Return the head of a log; None if there is none, or it is damaged."""
    try:
        return Head.of(path.read_text(encoding="ascii"))
    except (FileNotFoundError, ValueError):
        return None


def read_chain(path: Path, head: Path | None = None, noted: Head | None = None) -> Chain:
    """Return the entries of a log, and what is wrong with it.

    Parameters
    ----------
    path, head
        The two files; without a head what was cut off at the end is not noticed.
    noted
        A head that somebody noted before.

    Raises
    ------
    CheckpointError
        If there is no log.
    """
    faults: list[str] = []
    digests: dict[int, str] = {}
    last, cut, count = Head(), False, 0
    try:
        file = path.open("rb")
    except FileNotFoundError:
        if head is not None and (known := read_head(head)) is not None:
            raise CheckpointError(
                f"{path} does not exist, and {head} says that it had {known.number:,} entries: it "
                "was removed or moved; put it back, and ask who could do that."
            ) from None
        raise CheckpointError(
            f"{path} does not exist; give the folder of a site that answered calls, or its log."
        ) from None
    with file:
        known, size = _standing(file, head)
        wanted = {one.number for one in (known, noted) if one is not None}
        for number, line in enumerate(_lines(file, size), 1):
            cut = not line.endswith(b"\n")
            if cut:
                break
            entry, digest = _entry(line), _digest(line[:-1])
            if entry is None:
                faults.append(f"Line {number} is no entry: it was altered.")
                last = Head(last.number + 1, digest)
                continue
            faults += _faults_between(last, entry)
            last = Head(entry["n"], digest)
            if last.number in wanted:
                digests[last.number] = digest
            count += 1
    if cut:
        faults.insert(0, "The last line was cut in the middle.")
    faults += _faults_at_the_end(last, known, digests, missing=head is not None)
    if noted is not None and digests.get(noted.number, START) != noted.digest:
        faults.append(
            f"Entry {noted.number} is not the one that was noted: it, or what stands before it, "
            "was altered since, or the log was cut off."
        )
    return Chain(_Entries(path, size, count), tuple(faults), last)


def _standing(file: IO[bytes], head: Path | None) -> tuple[Head | None, int]:
    """Return the head of an open log, and the size that goes with it: the log may grow since."""
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_SH)
        return None if head is None else read_head(head), os.fstat(file.fileno()).st_size
    finally:
        with contextlib.suppress(OSError):  # who appends waits for it, and a log may be long
            fcntl.flock(file, fcntl.LOCK_UN)


def _lines(file: IO[bytes], size: int) -> Iterator[bytes]:
    while size > 0 and (line := file.readline(size)):
        size -= len(line)
        yield line


def _entry(line: bytes) -> dict[str, Any] | None:
    try:
        found = parse_json(line)
    except ValueError:
        return None
    right = isinstance(found, dict) and type(found.get("n")) is int
    return found if right and isinstance(found.get("at"), str) else None


def _faults_between(last: Head, entry: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong between a line and the next."""
    number = entry["n"]
    if number > last.number + 1:
        several = number > last.number + 2
        span = f"Entries {last.number + 1} to {number - 1} are" if several else None
        yield f"{span or f'Entry {last.number + 1} is'} missing (before {entry['at'][:19]})."
    elif number <= last.number:
        yield f"Entry {number} stands behind entry {last.number}: it was moved, or put in."
    elif entry.get("before") != last.digest:
        yield (
            f"Entry {last.number} was altered after it was written, or what entry {number} says "
            "of it."
            if last.number
            else "Entry 1 says that something stood before it; it was altered."
        )


def _faults_at_the_end(
    last: Head, known: Head | None, digests: Mapping[int, str], *, missing: bool
) -> Iterator[str]:
    """Yield what the head has against a log; `missing`: there ought to be one."""
    if known is None:
        if missing:
            yield "The head, which is kept apart from the log, is missing or damaged."
    elif known.number > last.number:
        yield (
            f"The log ends with entry {last.number}, and its head says that there were "
            f"{known.number}: the last {known.number - last.number} are missing."
        )
    elif digests.get(known.number, START) != known.digest:
        yield f"Entry {known.number} is not the one that the head knows: it was altered."


def _digest(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()
