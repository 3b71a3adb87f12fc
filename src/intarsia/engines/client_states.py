"""Client states of a simulation, in memory or, beyond a budget, in a memory-mapped file.

A large array of a state is one row of the file, and all small ones of it are another. The record
that the client gets back has them as views of the mapped rows. A new state takes rows of its own,
but for large arrays that it has from the one before. A row is taken again only when nobody holds a
view of it any more, so that no state ever changes. The file has no name: it is gone with the
process, whatever ends it, and a checkpoint is what a run goes on from. What comes out is the same,
to the bit, wherever a state lies.
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
_LARGE = 1 << 16  # bytes of an array from which on it has a row of its own


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
        """Take a client's new state; it lies where the one before lay, unless it grew too large."""
        if self.budget is not None:
            before, self._sizes[client] = self._sizes.get(client, 0), _size(state)
            if client not in self._mapped:
                self._inside += self._sizes[client] - before
                if self._inside > self.budget and self._sizes[client] > before:
                    self._inside -= self._sizes[client]
                    self._mapped.add(client)
            if client in self._mapped:
                self._rows = self._rows or _Rows(self._folder)
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


class _Row(np.ndarray[Any, Any]):
    """Bytes of a file, which its views keep from being taken again."""

    file: _Rows


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
        """Return the same state with its arrays in rows; large ones that are in one stay there."""
        small = sum(_room(one) for one in _arrays(state) if one.nbytes < _LARGE)
        row = self._row(small) if small else None
        at, written = 0, small

        def moved(values: NDArray[Any]) -> NDArray[Any]:
            nonlocal at, written
            if values.nbytes < _LARGE:
                place = _placed(values, row, at)
                at += _room(values)
                return place
            if isinstance(values.base, _Row) and values.base.file is self:
                return values
            written += values.nbytes
            return _placed(values, self._row(_room(values)), 0)

        found = _exchanged(state, moved)
        if written:
            self.touch(written)
        return found

    def touch(self, size: int) -> None:
        """Count bytes that came into memory; give the pages back when they are many."""
        self._touched += size + _AROUND
        if self._touched > _RESIDENT:
            self._touched = 0
            for segment in self._segments:
                # what was written stays in the file, and comes back when it is read
                segment.madvise(mmap.MADV_DONTNEED)

    def _row(self, size: int) -> _Row:
        # of few sizes, or rows of arrays that grow would never be taken again
        step = max(_PAGE, 1 << max(size.bit_length() - 4, 0))
        size = -(-size // step) * step
        free = self._free.setdefault(size, [])
        segment, start = free.pop() if free else self._new(size)
        row = _Row((size,), np.uint8, self._segments[segment], start)
        row.file = self
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


def _placed(values: NDArray[Any], row: _Row | None, at: int) -> NDArray[Any]:
    """Return a copy of an array in a row, from some byte on."""
    # the order in memory decides how a library sums
    by_column = values.flags.f_contiguous and not values.flags.c_contiguous
    place: NDArray[Any] = np.ndarray(
        values.shape, values.dtype, row, at, order="F" if by_column else "C"
    )
    place[...] = values
    return place


def _copied(values: NDArray[Any]) -> NDArray[Any]:
    return values.copy("K")


def _room(values: NDArray[Any]) -> int:
    return -(-values.nbytes // _ALIGNED) * _ALIGNED


def _size(state: Any) -> int:
    """Return the bytes that a state's arrays take in rows."""
    return sum(map(_room, _arrays(state)))


def _arrays(state: Any) -> Iterator[NDArray[Any]]:
    """Yield a state's arrays that have values of their own."""
    waiting = [state]
    while waiting:  # `_exchanged` would do, and takes several times as long
        one = waiting.pop()
        if isinstance(one, np.ndarray):
            if not one.dtype.hasobject:
                yield one
        elif isinstance(one, Mapping):
            waiting += one.values()
        elif isinstance(one, tuple):
            waiting += one
        elif hasattr(one, "__dataclass_fields__") and not isinstance(one, type):
            waiting += [getattr(one, name) for name in one.__dataclass_fields__]


def _exchanged(state: Any, change: Callable[[NDArray[Any]], NDArray[Any]]) -> Any:
    """Return a state with each of its arrays changed that has values of its own."""
    return replace_within(
        state, np.ndarray, lambda one: one if one.dtype.hasobject or not one.nbytes else change(one)
    )
