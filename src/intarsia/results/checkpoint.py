"""Keep the state of a run on disk so that a killed run goes on to the same bits.

A checkpoint is a folder `checkpoints/round-00000012`: server.state, clients.state with a record for
each client (its length, then its name and its state), and extra.json. It is filled under another
name and renamed when it is whole, so that a run that dies while writing leaves the checkpoint
before it in force.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import struct
import time
import warnings
import weakref
import zlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from intarsia.core.block import ClientId
from intarsia.core.files.atomic_files import UNFINISHED, sync, write, write_atomically
from intarsia.core.files.json_text import check_kind, parse_json
from intarsia.engines import codec
from intarsia.engines.record_file import append
from intarsia.errors import CheckpointError, CodecError, UserError

# what files that a run did not write are found out by
DAMAGE: Final = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError)
_KEPT = 2  # the newest, and one to fall back to
_LENGTH = struct.Struct("<Q")
_BLOCK = 1 << 14  # bytes of the history that are read at a time from its end


@dataclass(frozen=True)
class Checkpoint:
    """The state after a round."""

    round: int
    server: Any
    clients: Mapping[ClientId, Any]
    extra: Mapping[str, Any]


class Checkpoints:
    """The checkpoints and the history in a run's output folder, each made when it is needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "checkpoints"
        self._history = folder / "history.jsonl"
        self._place: int | None = None  # the output folder, held open from the first writing on
        self._goes_on = False  # whether this wrote a line of the history
        self._disk = ThreadPoolExecutor(1)  # waits for the disk
        self._pending: Future[float] | None = None  # a checkpoint that is not in force yet
        self._seconds = 0.0  # that the last one took

    @property
    def folder(self) -> Path:
        """Return the output folder."""
        return self._history.parent

    @property
    def seconds(self) -> float:
        """Return what the last checkpoint took; infinite while the disk takes it."""
        if self._pending is not None and self._pending.done():
            self.settle()
        return self._seconds if self._pending is None else math.inf

    @property
    def rounds(self) -> tuple[int, ...]:
        """Return the rounds with a checkpoint, in ascending order."""
        names = [path.name for path in self._folder.glob("round-*") if path.is_dir()]
        return tuple(sorted(int(one[6:]) for one in names if re.fullmatch("round-[0-9]+", one)))

    def save(
        self,
        round: int,
        server: Any,
        clients: Mapping[ClientId, Any],
        extra: Mapping[str, Any],
        *,
        wait: bool = True,
        ahead: bool = False,
    ) -> None:
        """Write a checkpoint after a round, and remove all older ones but the one before it.

        `extra` is what else the run needs to go on, as JSON types. With `wait` the checkpoint is in
        force on return. Without, the disk takes it while training goes on: it is in force, or what
        went wrong is raised, by the next `save` or `settle`. `ahead`: a thread makes the next
        client's record while one is written.

        Raises
        ------
        CheckpointError
            If the folder was removed, or another took its place.
        """
        self.settle()
        began = time.perf_counter()
        self.check_place()
        final = self._path(round)
        filling = final.with_name(final.name + UNFINISHED)
        self._clean()
        content = {"round": round, "clients": len(clients), "extra": dict(extra)}
        with _cleared(filling, final):
            self._fill(filling, server, clients, content, ahead=ahead)
        self._pending = self._disk.submit(self._put_in_force, filling, final, began)
        if wait:
            self.settle()

    def settle(self) -> None:
        """Wait until the last checkpoint is in force; OSError if the disk could not take it.

        CheckpointError as for `save`.
        """
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            self._seconds = pending.result()
        except FileNotFoundError:
            self.check_place()
            raise

    def _fill(
        self,
        filling: Path,
        server: Any,
        clients: Mapping[ClientId, Any],
        content: dict[str, Any],
        *,
        ahead: bool,
    ) -> None:
        filling.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # states of the clients
        filling.mkdir()
        write(filling / "server.state", codec.pieces(server), durable=False)
        # one file: for thousands of clients, making a file durable takes longer than all the rest
        with contextlib.closing(_records(clients, ahead=ahead)) as records:
            write(filling / "clients.state", records, durable=False)
        text = json.dumps(content, ensure_ascii=False, indent=1)
        checksum = zlib.crc32(text.encode())
        write(filling / "extra.json", [f"{checksum:08x}\n{text}\n".encode()], durable=False)

    def _put_in_force(self, filling: Path, final: Path, began: float) -> float:
        """Make a checkpoint durable, and name it so; return the seconds since it began."""
        with _cleared(filling, final):
            for path in (*filling.iterdir(), filling):
                sync(path)
            if self._history.exists():
                # The lines up to this round must not be newer than the checkpoint after them.
                with self._history.open("rb") as history:
                    os.fsync(history.fileno())
            if final.exists():
                _discard(final)
            filling.rename(final)
            sync(self._folder)
        for old in self.rounds[:-_KEPT]:
            _discard(self._path(old))
        return time.perf_counter() - began

    def latest(self, classes: Sequence[type]) -> Checkpoint | None:
        """Return the newest whole checkpoint, or None where none was ever finished.

        `classes` are the dataclasses that the states may hold.

        Raises
        ------
        CheckpointError
            If there are checkpoints, but every one is damaged.
        """
        self.settle()
        self._clean()
        problems: list[str] = []
        for round in reversed(self.rounds):
            try:
                found = self._read(round, classes)
            except DAMAGE as problem:
                problems.append(f"round {round}: {problem}")
                continue
            if problems:
                warnings.warn(
                    f"A checkpoint in {self._folder} is damaged ({problems[0]}); going on from "
                    f"round {round} instead.",
                    stacklevel=2,
                )
            return found
        if problems:
            raise CheckpointError(
                f"All {len(problems)} checkpoints in {self._folder} are damaged "
                f"({'; '.join(problems)}); run the experiment again with --overwrite."
            )
        return None

    def latest_extra(self) -> dict[str, Any] | None:
        """Return what the newest sound checkpoint holds beside the states; None without one."""
        for round in reversed(self.rounds):
            with contextlib.suppress(*DAMAGE):
                found: dict[str, Any] = _check((self._path(round) / "extra.json").read_bytes())
                return dict(found["extra"])
        return None

    def history(self) -> list[dict[str, Any]]:
        """Return the lines of the history; a line that was cut short is left out."""
        return [line for line, _ in self._lines()]

    def newest_line(self) -> dict[str, Any]:
        """Return the last whole line of the history, read from its end; {}: there is none."""
        if not self._history.is_file():
            return {}
        with self._history.open("rb") as history:
            start, end = history.seek(0, os.SEEK_END), b""
            while start:
                read = min(_BLOCK, start)
                start = history.seek(start - read)
                first, *lines = (history.read(read) + end).split(b"\n")
                for line in reversed(lines if start else [first, *lines]):
                    with contextlib.suppress(ValueError):
                        return _line(line)
                end = first
        return {}

    def append_history(self, line: Mapping[str, Any]) -> None:
        """Add one line to the history; CheckpointError as for `save`.

        Numbers that JSON lacks (NaN, infinity) are null, as in result.json.
        """
        self.check_place()
        lacking = {key: None for key, one in line.items() if _is_lacking(one)}
        text = json.dumps({**line, **lacking}, ensure_ascii=False, allow_nan=False) + "\n"
        with self._history.open("ab", buffering=0) as history:
            append(self._history, history.fileno(), text.encode())
        self._goes_on = True

    def truncate_history(self, round: int) -> None:
        """Drop the lines after a round, as if the run had stopped there."""
        kept = [text for line, text in self._lines() if line["round"] <= round]
        write_atomically(self._history, b"".join(kept))

    def _lines(self) -> Iterator[tuple[dict[str, Any], bytes]]:
        if not self._history.exists():
            return
        with self._history.open("rb") as history:
            for text in history:
                try:
                    line = _line(text)
                except ValueError:
                    return  # cut short: nothing whole can follow
                yield line, text

    def _path(self, round: int) -> Path:
        return self._folder / f"round-{round:08d}"

    def _read(self, round: int, classes: Sequence[type]) -> Checkpoint:
        path = self._path(round)
        content = _check((path / "extra.json").read_bytes())
        server = codec.decode((path / "server.state").read_bytes(), *classes)
        clients = _Clients(path / "clients.state", classes)
        if len(clients) != content["clients"]:
            raise CodecError(
                f"clients.state holds {len(clients)} clients where {content['clients']} were saved"
            )
        return Checkpoint(content["round"], server, clients, content["extra"])

    def check_place(self) -> None:
        """Raise CheckpointError where the folder is not the one that was written into before.

        One that is being removed keeps what is written meanwhile, and has no history.
        """
        folder = self.folder
        if self._place is None:
            folder.mkdir(parents=True, exist_ok=True)
            self._place = os.open(folder, os.O_RDONLY)
            weakref.finalize(self, os.close, self._place)
        try:
            same = os.path.samestat(os.fstat(self._place), folder.stat())
            same = same and (not self._goes_on or self._history.exists())
        except FileNotFoundError:
            same = False
        if not same:
            raise CheckpointError(
                f"{folder} was moved, removed or replaced while the run went on, so that nothing "
                "more of it is written there; resume the run where it lies now, or start it again."
            )

    def _clean(self) -> None:
        """Remove what a run that died while writing left behind."""
        for path in self._folder.glob(f"*{UNFINISHED}"):
            shutil.rmtree(path)


def _line(text: bytes) -> dict[str, Any]:
    """Return a line of the history; ValueError if it is none."""
    found: dict[str, Any] = parse_json(text)
    check_kind(found, dict[str, Any])
    check_kind(found.get("round"), int)
    return found


class _Clients(Mapping[ClientId, Any]):
    """The clients' states in a file: all are checked at first, and read when they are asked for."""

    def __init__(self, path: Path, classes: Sequence[type]) -> None:
        self._path, self._classes = path, classes
        self._places: dict[ClientId, tuple[int, int]] = {}
        end = path.stat().st_size
        with path.open("rb") as file:
            while (start := file.tell() + _LENGTH.size) <= end:
                (size,) = _LENGTH.unpack(file.read(_LENGTH.size))
                client, _ = codec.decode(file.read(min(size, end)), *classes)
                self._places[client] = start, size
        if start != end + _LENGTH.size:
            raise CodecError(f"clients.state was cut in its last {_LENGTH.size} bytes")

    def __getitem__(self, client: ClientId) -> Any:
        start, size = self._places[client]
        with self._path.open("rb") as file:
            file.seek(start)
            return codec.decode(file.read(size), *self._classes)[1]

    def __iter__(self) -> Iterator[ClientId]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def damage(problem: Exception) -> str:
    """Return in words what was found out of a file that a run did not write."""
    if isinstance(problem, OSError | UserError):
        return str(problem).removesuffix(".")
    said = str(problem)[:200]
    return f"a file of it is damaged ({type(problem).__name__}: {said}); put it back"


@contextlib.contextmanager
def _cleared(filling: Path, final: Path) -> Iterator[None]:
    """Remove a checkpoint that cannot be written, and name it in the error."""
    try:
        yield
    except OSError as problem:
        shutil.rmtree(filling, ignore_errors=True)  # it takes room, which may be what lacks
        problem.filename, problem.filename2 = str(final), None
        raise


def _records(clients: Mapping[ClientId, Any], *, ahead: bool) -> Generator[bytes | memoryview]:
    """Yield what is written of each client, in pieces; `ahead`: while the ones before are written.

    A thread brings the next states here, and makes their checksums; it is done when this is closed.
    """
    some = _some_records(clients)
    if not ahead:
        for pieces in some:
            yield from pieces
        return
    with ThreadPoolExecutor(1) as thread:
        found: list[bytes | memoryview] | None = next(some)
        while found is not None:
            coming = thread.submit(next, some, None)
            yield from found
            found = coming.result()


def _some_records(clients: Mapping[ClientId, Any]) -> Iterator[list[bytes | memoryview]]:
    """Yield the records of clients, in pieces, those of several small ones at once."""
    found: list[bytes | memoryview] = []
    waiting = 0
    for client in clients:
        record = codec.pieces((client, clients[client]))
        size = sum(map(len, record))
        own = _LENGTH.pack(size), *record
        found += own if size > _SMALL else (b"".join(own),)
        waiting += size
        if waiting >= _AT_ONCE:
            yield found
            found, waiting = [], 0
    yield found


_AT_ONCE = 1 << 22  # bytes of the records that are handed on at a time
_SMALL = 1 << 14  # of a record that is faster to write in one piece


def _discard(path: Path) -> None:
    # Renamed first: a folder that is half removed must not pass for a damaged checkpoint.
    doomed = path.with_name(f"{path.name}.old{UNFINISHED}")
    path.rename(doomed)
    shutil.rmtree(doomed)


def _check(data: bytes) -> dict[str, Any]:
    checksum, _, text = data.partition(b"\n")
    text = text.removesuffix(b"\n")
    if f"{zlib.crc32(text):08x}".encode() != checksum:
        raise CodecError(f"the checksum of extra.json ({len(data)} bytes) does not match")
    content: dict[str, Any] = parse_json(text)
    _check_content(content)
    return content


def _check_content(content: Any) -> None:
    """Raise ValueError where what stands beside the states is of other kinds than a run writes."""
    check_kind(content, dict[str, Any])
    check_kind(content["round"], int, "round")
    extra = content["extra"]
    check_kind(extra, dict[str, Any], "extra")
    crossings, standing = extra.get("crossings", {}), extra.get("standing", {})
    traffic = extra.get("traffic", {})
    for place, found in (("crossings", crossings), ("standing", standing), ("traffic", traffic)):
        check_kind(found, dict[str, Any], place)
    # a gap that was never measured is infinite
    known = {key: None if one == math.inf else one for key, one in standing.items()}
    for place, found, hints in (
        ("extra", extra, _EXTRA),
        ("traffic", traffic, _TRAFFIC),
        ("standing", known, _STANDING),
        ("crossings", crossings, _CROSSINGS),
        *((k[:40], one, _EXCHANGE) for k, one in crossings.get("exchanges", {}).items()),
    ):
        for key, one in found.items():
            if key in hints:
                check_kind(one, hints[key], f"{place}.{key}")
        if hints is _EXCHANGE and (left := hints.keys() - found.keys() - {"partly", "contents"}):
            raise ValueError(f"{place} lacks {', '.join(sorted(left))}")


_COUNTS = dict[str, int]
_EXTRA: Mapping[str, Any] = {"mode": str, "releases": _COUNTS, "seconds": dict[str, float]}
_TRAFFIC: Mapping[str, Any] = {"up": _COUNTS, "down": _COUNTS, "exchanges": int}
_STANDING: Mapping[str, Any] = {
    **{"round": int, "finished": str | None, "scores": dict[str, float]},
    **dict.fromkeys(("best_round", "halved_round", "chosen"), int),
    **dict.fromkeys(("best", "halved", "first", "chosen_by"), float | None),
}
_CROSSINGS: Mapping[str, Any] = {
    "clients": list[str],
    "exchanges": dict[str, dict[str, Any]],
    "reveals": dict[str, _COUNTS],
    "refreshes": _COUNTS,
}
_EXCHANGE: Mapping[str, Any] = {
    **dict.fromkeys(("kind", "function", "message", "reply"), str),
    **dict.fromkeys(("opened", "fields", "contents"), dict[str, str]),
    **dict.fromkeys(("exchanges", "with_all"), int),
    **{"plain": list[str], "with": _COUNTS, "partly": dict[str, _COUNTS]},
}


def _is_lacking(value: Any) -> bool:
    """Return whether JSON lacks a number."""
    return isinstance(value, float) and not math.isfinite(value)
