"""Client states of a simulation, in memory or, beyond a budget, in a memory-mapped file.

Each state in the file is one row: its arrays lie one behind the other, and the record that the
client gets back has them as views of the mapped row. A new state takes a row of its own, and a row
is taken again only when nobody holds a view of it any more, so that no state ever changes. The
file has no name: it is gone with the process, whatever ends it, and a checkpoint is what a run
goes on from. What comes out is the same, to the bit, wherever a state lies.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.core.block import ClientId
from intarsia.core.memory import give_back, reserve
from intarsia.engines.codec import replace_within

_SEGMENT = 1 << 26  # bytes by which the file grows
_PAGE = mmap.PAGESIZE
_ALIGNED = 64  # bytes, as libraries lay out arrays
_AROUND = 1 << 19  # bytes that the system maps beside those that are touched, if it has them
_RESIDENT = 1 << 28  # bytes that may be touched, or left, before their pages are given back


@dataclass(frozen=True)
class Needs:
    """What a client's state takes."""

    size: int  # bytes
    # in a function for several at once: what the client costs, in units of what it costs for any
    # number of them, as its state may say of itself; infinite where it gains nothing from others
    cost: float


class States(Mapping[ClientId, Any]):
    """Every client's state.

    States of `budget` bytes stay in memory (None: all); the file of the others lies in `folder`
    (None: among the system's temporary files).
    """

    def __init__(self, budget: int | None = None, folder: Path | None = None) -> None:
        self.budget, self._folder = budget, folder
        self._held: dict[ClientId, Any] = {}
        self._sizes: dict[ClientId, int] = {}
        self._rows: _Rows | None = None
        self._mapped: set[ClientId] = set()
        self._inside = 0  # bytes of those in memory
        self._replaced = 0  # bytes of those in memory that new ones took the place of

    def __getitem__(self, client: ClientId) -> Any:
        if self._rows is not None and client in self._mapped:
            self._rows.touch(self._sizes[client])
        return self._held[client]

    def __iter__(self) -> Iterator[ClientId]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

    def replace(self, client: ClientId, state: Any) -> None:
        """Take a client's new state; it lies where the one before lay."""
        if self._rows is not None and client in self._mapped:
            state = self._rows.kept(state)
        self._held[client] = state
        if self._rows is not None and client not in self._mapped:
            self._replaced += self._sizes[client]
            if self._replaced > _RESIDENT:
                self._replaced = 0
                give_back()  # holes between states, which others often do not fit into

    def begin(self, states: Iterable[tuple[ClientId, Any]]) -> None:
        """Take the states of some clients, one by one, and decide which stay in memory."""
        if self.budget is None:
            self._held.update(states)
            return
        for client, state in states:
            if client in self._mapped:
                self._mapped.discard(client)
            else:
                self._inside -= self._sizes.get(client, 0)
            self._sizes[client] = size = _size(state)
            if self._inside + size > self.budget:
                self._rows = self._rows or _Rows(self._folder)
                self._mapped.add(client)
                state = self._rows.kept(state)
            else:
                self._inside += size
            self._held[client] = state

    def apart(
        self,
        clients: Sequence[ClientId],
        processes: int,
        make: Callable[[ClientId], Any] | None = None,
    ) -> States:
        """Return the states of some clients, which share no file with these; or `make` them.

        They may take as much memory as one of so many processes has of these.
        """
        found = States(None if self.budget is None else self.budget // processes, self._folder)
        found.begin((one, self._own(one) if make is None else make(one)) for one in clients)
        return found

    def _own(self, client: ClientId) -> Any:
        state = self._held[client]
        return _exchanged(state, _copied) if client in self._mapped else state

    def forget(self, clients: Iterable[ClientId]) -> None:
        """Leave some clients' states to whoever has them now."""
        for client in clients:
            self._held.pop(client, None)
            size = self._sizes.pop(client, 0)
            if client in self._mapped:
                self._mapped.discard(client)
            else:
                self._inside -= size

    def arrange(self, order: Iterable[ClientId]) -> None:
        """Let states stand in an order: in which they came back from elsewhere is chance."""
        self._held = {one: self._held[one] for one in order if one in self._held}

    def snapshot(self) -> States:
        """Return the states as they are now; those in the file stay there, and are read from it."""
        found = States(self.budget, self._folder)
        found._held, found._sizes = dict(self._held), dict(self._sizes)
        found._mapped, found._rows, found._inside = set(self._mapped), self._rows, self._inside
        return found

    def needs(self, client: ClientId) -> Needs:
        """Return what a client's state takes."""
        state = self._held[client]
        return Needs(_size(state), float(getattr(state, "own_cost", 0.0)))

    @property
    def mapped(self) -> int:
        """Return how many states lie in the file."""
        return len(self._mapped)


class _Rows:
    """Rows of bytes in a file without a name that is mapped into memory."""

    def __init__(self, folder: Path | None) -> None:
        with tempfile.TemporaryFile(dir=folder) as file:
            self._file = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._file)
        self._segments: list[mmap.mmap] = []
        self._room = 0  # bytes left at the end of the last segment
        self._free: dict[int, list[tuple[int, int]]] = {}  # size → segment and place
        self._touched = 0

    def kept(self, state: Any) -> Any:
        """Return the same state with its arrays in a row."""
        size = _size(state)
        if not size:
            return state
        row = self._row(size)
        at = 0

        def moved(values: NDArray[Any]) -> NDArray[Any]:
            nonlocal at
            # the order in memory decides how a library sums
            by_column = values.flags.f_contiguous and not values.flags.c_contiguous
            place: NDArray[Any] = np.ndarray(
                values.shape, values.dtype, row, at, order="F" if by_column else "C"
            )
            place[...] = values
            at += _room(values)
            return place

        found = _exchanged(state, moved)
        self.touch(size)
        return found

    def touch(self, size: int) -> None:
        """Count bytes that came into memory; give the pages back when they are many."""
        self._touched += size + _AROUND
        if self._touched > _RESIDENT:
            self._touched = 0
            for segment in self._segments:
                # what was written stays in the file, and comes back when it is read
                segment.madvise(mmap.MADV_DONTNEED)

    def _row(self, size: int) -> NDArray[np.uint8]:
        size = -(-size // _PAGE) * _PAGE
        free = self._free.setdefault(size, [])
        segment, start = free.pop() if free else self._new(size)
        row = np.frombuffer(self._segments[segment], np.uint8, size, start)
        # views of the row keep it alive
        weakref.finalize(row, free.append, (segment, start)).atexit = False
        return row

    def _new(self, size: int) -> tuple[int, int]:
        if size > self._room:
            self._room = max(size, _SEGMENT)
            begin = sum(len(segment) for segment in self._segments)
            reserve(self._file, begin, self._room)
            self._segments.append(mmap.mmap(self._file, self._room, offset=begin))
        start = len(self._segments[-1]) - self._room
        self._room -= size
        return len(self._segments) - 1, start


def _copied(values: NDArray[Any]) -> NDArray[Any]:
    return values.copy("K")


def _room(values: NDArray[Any]) -> int:
    return -(-values.nbytes // _ALIGNED) * _ALIGNED


def _size(state: Any) -> int:
    """Return the bytes that a state's arrays take in a row."""
    size, waiting = 0, [state]
    while waiting:  # `_exchanged` would do, and takes several times as long
        one = waiting.pop()
        if isinstance(one, np.ndarray):
            size += 0 if one.dtype.hasobject else _room(one)
        elif isinstance(one, Mapping):
            waiting += one.values()
        elif isinstance(one, tuple):
            waiting += one
        elif hasattr(one, "__dataclass_fields__") and not isinstance(one, type):
            waiting += [getattr(one, name) for name in one.__dataclass_fields__]
    return size


def _exchanged(state: Any, change: Callable[[NDArray[Any]], NDArray[Any]]) -> Any:
    """Return a state with each of its arrays changed that has values of its own."""
    return replace_within(
        state, np.ndarray, lambda one: one if one.dtype.hasobject or not one.nbytes else change(one)
    )
