"""Journal of the sites' answers since a checkpoint, to resume a round that was interrupted.

A round is a function of the server's state and of what sites answer. To go on within one, the
server runs it again from the checkpoint and takes from the journal what was answered already, so
that no site is asked twice, and none has to go back. An answer counts for the call that it was
given to, and for no other: a round that is run again makes the same calls.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from intarsia.core.block import ClientId
from intarsia.engines import codec
from intarsia.engines.record_file import append, framed, whole_records
from intarsia.errors import CheckpointError, CodecError

_AWAY = ""  # no client: who was left out from a call on
_KEPT = 3  # checkpoints that a run may go on from: two are kept, and one may be in the making


@dataclass(frozen=True)
class Noted:
    """What came of one call."""

    sequence: int
    client: str
    call: bytes  # what tells the call from others
    answer: bytes  # b"": the site did not answer, and the run went on without it


class Journal:
    """What came of the calls since a checkpoint.

    The folder has one file for each checkpoint, named by the exchange that it comes after.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._entries: dict[tuple[int, ClientId], Noted] = {}
        self._last: dict[Path, int] = {}  # sequence of the last entry of a file
        self._marks: list[int] = []  # checkpoints of this process
        for path in self._files():
            found = _whole(path)
            self._entries.update(found)
            self._last[path] = max((one for one, _ in found), default=0)
        self._file = -1
        self._open(max((one for one, _ in self._entries), default=0))

    def answer(self, sequence: int, client: ClientId, call: bytes) -> bytes | None:
        """Return what a site answered to a call, b"" if it was left out, None if nothing is known.

        Raises
        ------
        CheckpointError
            If it answered another call of this number.
        """
        known = self._entries.get((sequence, client))
        if known is None:
            return None
        if known.call != call:
            raise CheckpointError(
                f"The journal in {self._folder} has what {client} answered to another call "
                f"{sequence} than the one that is made now: the run did not go as it had gone. Go "
                "on with it where it began, with the same version and number of threads, or begin "
                "it anew with --overwrite."
            )
        return known.answer

    def add(self, sequence: int, client: ClientId, call: bytes, answer: bytes) -> None:
        """Write down what a site answered to a call; b"" says that the run goes on without it.

        Raises
        ------
        OSError
            If the disk is full; nothing is left of what was written then.
        """
        if (sequence, client) in self._entries and client != _AWAY:
            return
        noted = Noted(sequence, client, call, answer)
        data = codec.encode(noted)
        append(self._path, self._file, framed(data))
        self._entries[sequence, client] = noted
        self._last[self._path] = max(sequence, self._last.get(self._path, 0))

    def away(self, sequence: int) -> set[ClientId] | None:
        """Return who was left out from a call on, None if that was not written down."""
        known = self._entries.get((sequence, _AWAY))
        return None if known is None else set(codec.decode(known.answer))

    def leave_out(self, sequence: int, clients: Collection[ClientId]) -> None:
        """Write down who is left out from a call on; what was written of it last counts."""
        self.add(sequence, _AWAY, b"", codec.encode(tuple(sorted(clients))))

    def settle(self) -> None:
        """Come back when all is durable."""
        os.fsync(self._file)

    def checkpoint(self, sequence: int) -> None:
        """Begin a new file: a checkpoint is made after an exchange; drop what none goes back to."""
        self._open(sequence)
        self._marks = [*self._marks, sequence][-_KEPT:]
        if len(self._marks) < _KEPT:
            return  # the run may go on from a checkpoint of a process before
        first = self._marks[0]
        for path in self._files():
            if path != self._path and self._last.get(path, 0) <= first:
                path.unlink()
                self._last.pop(path, None)
        self._entries = {key: one for key, one in self._entries.items() if key[0] > first}

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def remove(self) -> None:
        """Remove all: the run has its result, and goes back to no checkpoint any more."""
        self.close()
        shutil.rmtree(self._folder)

    def _open(self, sequence: int) -> None:
        self.close()
        self._path = self._folder / f"{sequence:012d}.journal"
        self._file = os.open(self._path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("*.journal"))


def _whole(path: Path) -> dict[tuple[int, ClientId], Noted]:
    """Return the entries of a file; take away one that was cut short, where the process ended."""
    entries: dict[tuple[int, ClientId], Noted] = {}
    with path.open("rb+") as file:
        end = 0
        for data in whole_records(file):
            try:
                found = codec.decode(data, Noted)
            except CodecError:
                break
            entries[found.sequence, found.client] = found
            end = file.tell()
        file.truncate(end)
    return entries
