"""Forks of this process that compute beside it, and how both talk.

What crosses are values that the codec writes, piece by piece through a little memory that both
processes share; a socket says where there is one. Nothing is pickled.

A fork that is gone leaves a `WorkerError`; one whose own parent is gone ends by itself.
"""

from __future__ import annotations

import builtins
import contextlib
import itertools
import math
import mmap
import multiprocessing
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

import numpy as np

from intarsia import errors
from intarsia.engines import codec
from intarsia.errors import IntarsiaError, WorkerError

K = TypeVar("K")
_LENGTH = struct.Struct("<Q")
_SIZES = struct.Struct("<QQ")  # bytes of a value, and where its largest array begins
_EVEN = 64  # bytes, as libraries lay out arrays
_FOLLOWING = 0.2  # seconds between two looks whether the parent is there
_TELLING = 0.2  # seconds between two words of an errand
# A channel's memory in each direction: pieces, and the bytes of each. It stays in the caches.
_PIECES, _PIECE = 16, 1 << 20
_MORE, _LAST, _BESIDE = b"+", b".", b"b"  # what the socket says of a piece


@dataclass(frozen=True)
class Failure:
    """Says what went wrong in a fork."""

    kind: str  # class of the error
    sentence: str
    notes: tuple[str, ...]
    trace: str  # "" of an error of our own
    number: int = 0  # of what the system refused, whose reason is the sentence; 0: nothing
    path: str = ""  # of the file


def can_fork(*, asked: bool) -> bool:
    """Return whether this process can be forked, and what it uses goes on in the copy.

    Libraries of macOS end in forks, so that it is done there only where it was `asked` for; an
    accelerator's never go on.
    """
    if "fork" not in multiprocessing.get_all_start_methods():
        return False
    if multiprocessing.current_process().daemon or (sys.platform == "darwin" and not asked):
        return False
    torch = sys.modules.get("torch")
    return torch is None or not torch.cuda.is_available()


class Fork:
    """A fork, on the side of the process that asks.

    Parameters
    ----------
    does
        What it does, for an error: "computed for 'a'".
    work
        What it calls with its end of the channel, until that is closed.
    others
        Ends of other forks' channels, which it closes.
    """

    def __init__(
        self, does: str, work: Callable[[Channel], object], others: Sequence[Channel] = ()
    ) -> None:
        self._does = does
        ours, theirs = socket.socketpair()
        here, there = (mmap.mmap(-1, _PIECES * _PIECE) for _ in range(2))
        self.channel = Channel(ours, here, there)
        given = work, Channel(theirs, there, here), (*others, self.channel), os.getpid()
        self._process: BaseProcess = multiprocessing.get_context("fork").Process(
            target=_begin, args=given, daemon=True
        )
        with warnings.catch_warnings():
            # what other threads hold is left alone: a fork computes, and talks to its parent
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        theirs.close()
        self._closing = weakref.finalize(self, _close, self._process, self.channel)

    def send(self, *values: Any, beside: bool = False) -> None:
        """Send some values, `beside`: as a channel does; WorkerError if the process is gone."""
        try:
            self.channel.send(values, beside=beside)
        except (OSError, EOFError):
            raise self._gone() from None

    def receive(self) -> list[memoryview]:
        """Return the values that it sends, written.

        Raises
        ------
        WorkerError
            If the process is gone.
        Exception
            What went wrong in it, as it was raised there.
        """
        try:
            values = self.channel.receive()
        except (OSError, EOFError):
            raise self._gone() from None
        return unless_failed(values)

    def close(self, *, now: bool = False) -> None:
        """End the process, when it has read that nothing more comes, or `now`."""
        if now:
            self._process.kill()
        self._closing()

    def _gone(self) -> WorkerError:
        self._process.join(5)
        code = self._process.exitcode
        how = f"with exit status {code}"
        if code is None:
            how = "its connection"
        elif code < 0:
            how = f"by {signal.Signals(-code).name}"
        return WorkerError(
            f"The process that {self._does} ended ({how}), perhaps for want of memory; resume the "
            "run (a contribution: by the same command), with -c experiment.workers=1 if it happens "
            "again."
        )


def _close(process: BaseProcess, channel: Channel) -> None:
    channel.close()  # on which the process ends
    process.join(1)
    if process.exitcode is None:
        process.kill()
        process.join()


def _begin(
    work: Callable[[Channel], object], channel: Channel, others: Sequence[Channel], parent: int
) -> None:
    for one in others:
        one.close()  # or those that they lead to would not notice that it is closed
    # Ctrl-C is for the process that asks, and so is SIGTERM, which batch systems and services send
    # to all processes of a run: it stops at the end of a round, for which these must be there
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)
    threading.Thread(target=_follow, args=(parent,), daemon=True).start()
    with contextlib.suppress(OSError, EOFError):  # the other side is gone
        work(channel)


def _follow(parent: int) -> None:
    """End this process soon after its parent, whatever it computes: it holds the folder's lock."""
    while os.getppid() == parent:
        time.sleep(_FOLLOWING)
    os._exit(1)


class Channel:
    """One end of a connection of two processes: what is sent comes whole, and in order."""

    def __init__(self, line: socket.socket, out: mmap.mmap, back: mmap.mmap) -> None:
        self._line, self._out, self._back = line, out, back

    def send(self, values: Iterable[Any], *, beside: bool = False) -> None:
        """Send values as the codec writes them; the other side has read what was sent before.

        Unless it takes the way `beside` the memory, where it waits in line.
        """
        written = [codec.unchecked_pieces(value) for value in values]
        head = _LENGTH.pack(len(written)) + b"".join(_SIZES.pack(*_sizes(one)) for one in written)
        pieces = [head, *itertools.chain(*written)]
        total = sum(map(len, pieces))
        if beside:
            self._line.sendall(b"".join((_BESIDE, _LENGTH.pack(total), *pieces)))
            return
        last = (total - 1) // _PIECE
        number = at = 0  # of the piece of memory, and how much of it is written
        for one in pieces:
            piece, done = memoryview(one), 0
            while done < len(piece):
                if at == 0 and number >= _PIECES:
                    self._read(1)  # that the other side has read what lies there
                count = min(len(piece) - done, _PIECE - at)
                here = number % _PIECES * _PIECE + at
                self._out[here : here + count] = piece[done : done + count]
                done, at = done + count, at + count
                if at == _PIECE and number < last:
                    self._line.sendall(_MORE if number + _PIECES <= last else _LAST)
                    number, at = number + 1, 0
        self._line.sendall(_LAST)

    def receive(self) -> list[memoryview]:
        """Return the values that were sent, each as it was written; EOFError at the end.

        Each is memory of its own, with the largest array at an even place: the codec may keep it.
        """
        incoming = _Incoming(self._line, self._back, self._read)
        count = _LENGTH.unpack(incoming.read(_LENGTH.size))[0]
        sizes = incoming.read(count * _SIZES.size)
        return [incoming.read(size, largest) for size, largest in _SIZES.iter_unpack(sizes)]

    def fileno(self) -> int:
        """Return the line's number, to wait for it."""
        return self._line.fileno()

    @property
    def free(self) -> bool:
        """Return whether a few words can be sent at once."""
        return bool(select.select([], [self._line], [], 0)[1])

    def close(self) -> None:
        """Close the line; the memory goes when nobody looks at it."""
        self._line.close()

    def _read(self, size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while len(view):
            count = self._line.recv_into(view)
            if not count:
                raise EOFError
            view = view[count:]
        return data


class _Incoming:
    """What comes over a channel, read in the order in which it was sent."""

    def __init__(
        self, line: socket.socket, memory: mmap.mmap, read: Callable[[int], bytearray]
    ) -> None:
        self._line, self._memory, self._read = line, memoryview(memory), read
        self._number, self._said = 0, b""
        self._piece = memoryview(b"")

    def read(self, size: int, largest: int = 0) -> memoryview:
        """Return so many bytes in new memory, in which the place `largest` is even."""
        held = np.empty(size + _EVEN, np.uint8)
        start = -(held.ctypes.data + largest) % _EVEN
        found = held.data[start : start + size]
        done = 0
        while done < size:
            if not len(self._piece):
                self._next()
            count = min(size - done, len(self._piece))
            found[done : done + count] = self._piece[:count]
            done, self._piece = done + count, self._piece[count:]
        return found

    def _next(self) -> None:
        if self._said == _MORE:
            self._line.sendall(_MORE)  # the piece that was read may be written again
        self._said = bytes(self._read(1))
        if self._said == _BESIDE:
            size = _LENGTH.unpack(self._read(_LENGTH.size))[0]
            self._piece = memoryview(self._read(size))
            return
        here = self._number % _PIECES * _PIECE
        self._piece = self._memory[here : here + _PIECE]
        self._number += 1


def _sizes(pieces: Sequence[bytes | memoryview]) -> tuple[int, int]:
    """Return the bytes of a value in pieces, and where its largest piece begins."""
    starts = [0, *itertools.accumulate(map(len, pieces))]
    return starts[-1], starts[max(range(len(pieces)), key=lambda at: len(pieces[at]))]


def framed(values: Iterable[Any]) -> list[bytes | memoryview]:
    """Return values as the codec writes them, in pieces, each value behind its length."""
    pieces: list[bytes | memoryview] = []
    for value in values:
        own = codec.unchecked_pieces(value)
        pieces += (_LENGTH.pack(sum(len(one) for one in own)), *own)
    return pieces


def unframed(data: memoryview) -> list[memoryview]:
    """Return the values that were framed, each as it was written."""
    found: list[memoryview] = []
    at = 0
    while at < len(data):
        size = _LENGTH.unpack_from(data, at)[0]
        at += _LENGTH.size
        found.append(data[at : at + size])
        at += size
    return found


def unless_failed(values: Sequence[memoryview]) -> list[memoryview]:
    """Return what an answer holds behind its first value; raise what that says that failed."""
    head, *rest = values
    if (error := error_in(head)) is not None:
        raise error
    return rest


def error_in(written: memoryview) -> Exception | None:
    """Return the error that a failure tells of; None: nothing failed."""
    failure = codec.decode_unchecked(written, Failure)
    return None if failure is None else _raised(failure)


def failure_of(error: Exception) -> Failure:
    """Return what is said of an error where it is raised again."""
    ours = isinstance(error, IntarsiaError)
    sentence = Exception.__str__(error) if ours else str(error)
    trace = "" if ours else "".join(traceback.format_exception(error))
    refused: tuple[int, str] | tuple[()] = ()
    if isinstance(error, OSError) and error.errno:
        path = error.filename
        refused = error.errno, path if isinstance(path, str) else ""
        sentence = error.strerror or os.strerror(error.errno)
    notes = tuple(getattr(error, "__notes__", ()))
    return Failure(type(error).__name__, sentence, notes, trace, *refused)


def _raised(failure: Failure) -> Exception:
    """Return an error as it was raised in a fork, of its own class if that is known here."""
    kind = getattr(errors, failure.kind, None) or getattr(builtins, failure.kind, None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        kind = OSError if failure.number else RuntimeError
    told: tuple[Any, ...] = (failure.sentence,)
    if failure.number:
        told = failure.number, failure.sentence, *([failure.path] if failure.path else [])
    try:
        found: Exception = kind(*told)
    except TypeError:  # it is made of something else than a sentence
        found = RuntimeError(f"{failure.kind}: {failure.sentence}")
    for note in failure.notes:
        found.add_note(note)
    if failure.trace:
        found.add_note(f"In another process:\n{failure.trace}")
    return found


Task = Callable[[Callable[..., None]], Any]  # tells how far it is; returns a value for the codec


class Errand:
    """A task that a fork does, while this process goes on.

    Parameters
    ----------
    does
        What it does, for an error.
    task
        What it calls.
    classes
        The dataclasses that what it tells and returns may hold.
    others
        Errands that are not done.
    """

    def __init__(
        self, does: str, task: Task, classes: Sequence[type] = (), others: Iterable[Errand] = ()
    ) -> None:
        self._classes = tuple(classes)
        self._fork: Fork = Fork(does, partial(_run, task), [one._fork.channel for one in others])

    def result(self, told: Callable[..., None]) -> Any:
        """Wait for the end, and say what is told until then.

        Raises
        ------
        WorkerError
            If the process is gone.
        Exception
            What the task raises.
        """
        while True:
            found = self.step(told)
            if found:
                return found[0]

    def step(self, told: Callable[..., None]) -> tuple[Any, ...]:
        """Wait for what is said next; return the result alone, where that is it, else nothing."""
        said, *result = self._fork.receive()
        if not result:
            told(*codec.decode_unchecked(said, *self._classes))
            return ()
        found = codec.decode_unchecked(result[0], *self._classes)
        self.close()
        return (found,)

    def fileno(self) -> int:
        """Return what can be waited for by `select`: that something is said."""
        return self._fork.channel.fileno()

    def close(self) -> None:
        """End it, wherever it is."""
        self._fork.close()


def errands(
    does: str,
    tasks: Mapping[K, Task],
    most: int,
    told: Callable[..., None],
    classes: Sequence[type],
) -> Iterator[tuple[K, Any]]:
    """Yield what tasks return, as they are done, up to so many at a time.

    `told` gets the key of a task and what it tells; errors are those of `Errand.result`.
    """
    waiting, under_way = deque(tasks.items()), dict[K, Errand]()
    try:
        while waiting or under_way:
            while waiting and len(under_way) < most:
                key, task = waiting.popleft()
                under_way[key] = Errand(does, task, classes, under_way.values())
            heard, _, _ = select.select([*under_way.values()], [], [])
            for key in [key for key, one in under_way.items() if one in heard]:
                found = under_way[key].step(partial(told, key))
                if found:
                    del under_way[key]
                    yield key, found[0]
    finally:
        for one in under_way.values():
            one.close()


def _run(task: Task, channel: Channel) -> None:
    last = -math.inf

    def tell(*values: Any) -> None:
        nonlocal last
        # what waits in line while nobody listens must not hold the task up
        if time.monotonic() - last > _TELLING and channel.free:
            last = time.monotonic()
            channel.send((None, values), beside=True)

    try:
        answer: list[Any] = [None, (), task(tell)]
    except (OSError, EOFError):
        raise
    except Exception as error:
        answer = [failure_of(error)]
    channel.send(answer)
