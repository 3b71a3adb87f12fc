"""Run every client in this process, one after the other: the engine for simulation and tests.

Totals are sealed here too (reading one raises), bytes are counted as the codec would write them,
and client state lives with the engine's parties, never with the server.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.algorithm import ClientFunction, Layout, RandomKey
from intarsia.data import Array, Block, ClientId, Index, Schema
from intarsia.engines import codec
from intarsia.errors import IntarsiaError, SealedError

__all__ = ["InProcess", "SealedField", "SealedTotal", "Traffic"]


@dataclass
class Traffic:
    """Bytes by message type, and exchanges: what a network would have carried."""

    up: dict[str, int] = dataclasses.field(default_factory=dict[str, int])
    down: dict[str, int] = dataclasses.field(default_factory=dict[str, int])
    exchanges: int = 0

    def summary(self) -> dict[str, Any]:
        """Return the totals as they stand in result.json."""
        names = sorted({*self.up, *self.down})
        return {
            "up": sum(self.up.values()),
            "down": sum(self.down.values()),
            "by_message": {
                name: {"up": self.up.get(name, 0), "down": self.down.get(name, 0)} for name in names
            },
        }


def _unreadable(action: str) -> SealedError:
    return SealedError(
        f"A sealed total was read ({action}); the server may add, scale and forward it, or open "
        "it to itself with clients.reveal(total), which says what it discloses."
    )


class _Unreadable:
    """Refuses every way of looking at a total."""

    __slots__ = ()

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise _unreadable("as an array")

    def __float__(self) -> float:
        raise _unreadable("as a number")

    def __bool__(self) -> bool:
        raise _unreadable("as a truth value")

    def __len__(self) -> int:
        raise _unreadable("its length")

    def __iter__(self) -> Any:
        raise _unreadable("entry by entry")

    def __getitem__(self, _: Any) -> Any:
        raise _unreadable("an entry")

    def __eq__(self, _: object) -> bool:
        raise _unreadable("compared")

    def __lt__(self, _: object) -> bool:
        raise _unreadable("compared")

    __gt__ = __le__ = __ge__ = __lt__
    __hash__ = None  # type: ignore[assignment]  # a total is no key: hashing would compare it

    def __repr__(self) -> str:
        return "<sealed total>"


class SealedField(_Unreadable):
    """One field of a total: an array laid out by an index, or summed entry by entry."""

    __slots__ = ("_layout", "_part", "_value")

    def __init__(self, value: Any, layout: Layout | None, part: str) -> None:
        self._value = value
        self._layout = layout
        self._part = part

    def __add__(self, other: SealedField) -> SealedField:
        return SealedField(self._value + other._value, self._layout, self._part)

    def __sub__(self, other: SealedField) -> SealedField:
        return SealedField(self._value - other._value, self._layout, self._part)

    def __mul__(self, factor: float) -> SealedField:
        return SealedField(self._value * factor, self._layout, self._part)

    __rmul__ = __mul__


class SealedTotal(_Unreadable):
    """A total over replies of one type: each field is sealed too."""

    __slots__ = ("_fields", "_kind")

    def __init__(self, kind: type, fields: dict[str, SealedField]) -> None:
        self._kind = kind
        self._fields = fields

    def __getattr__(self, name: str) -> SealedField:
        try:
            return self._fields[name]
        except KeyError:
            raise AttributeError(
                f"a total of {self._kind.__name__} has the fields {sorted(self._fields)}, "
                f"not {name!r}"
            ) from None

    def __add__(self, other: SealedTotal) -> SealedTotal:
        return SealedTotal(
            self._kind, {name: one + other._fields[name] for name, one in self._fields.items()}
        )

    def __mul__(self, factor: float) -> SealedTotal:
        return SealedTotal(self._kind, {name: one * factor for name, one in self._fields.items()})

    __rmul__ = __mul__


@dataclass(frozen=True)
class SealedRecord:
    """How a sealed field is written into a server checkpoint: still not for the server's eyes."""

    value: Array
    layout: str
    part: str


@cache
def _counts_of(kind: type) -> str:
    """Return the field of a reply that counts the selected samples by cell."""
    return next(name for name, layout in _layouts(kind) if layout is Layout.COUNTS)


def _add_cells(
    totals: dict[int, Array], cells: Sequence[int], counts: NDArray[np.int64], value: Array
) -> None:
    start = 0
    for cell, count in zip(cells, counts.tolist(), strict=True):
        piece = value[..., start : start + count]
        totals[cell] = totals[cell] + piece if cell in totals else piece
        start += count


def _own_cells(totals: Mapping[int, Array], cells: Sequence[int]) -> Array:
    if len(cells) == 1:
        return totals[cells[0]]
    return np.concatenate([totals[cell] for cell in cells], axis=-1)


@cache
def _layouts(kind: type) -> tuple[tuple[str, Layout | None], ...]:
    """Return each field of a reply type with the index that its last axis runs over."""
    hints = typing.get_type_hints(kind, include_extras=True)
    result: list[tuple[str, Layout | None]] = []
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        found = [
            extra
            for part in (hint, *typing.get_args(hint))
            for extra in getattr(part, "__metadata__", ())
            if isinstance(extra, Layout)
        ]
        result.append((field.name, found[0] if found else None))
    return tuple(result)


class _Party:
    """A client in this process: its blocks and its state."""

    __slots__ = ("blocks", "cells", "places", "state", "whole")

    def __init__(
        self, blocks: Mapping[str, Block], places: Mapping[tuple[str, Layout], Any], state: Any
    ) -> None:
        self.blocks, self.places, self.state = dict(blocks), dict(places), state
        self.whole: dict[str, Block] = {}
        self.cells: dict[str, tuple[int, ...]] = {}  # numbers of the sample cells, by part


class InProcess:
    """The in-process engine over aligned blocks.

    Parameters
    ----------
    parts
        For each part ("train", "test"): its schema and each client's block, in any row order.
    seed
        The root of every random stream.
    """

    def __init__(
        self, parts: Mapping[str, tuple[Schema, Mapping[ClientId, Block]]], seed: int
    ) -> None:
        self.traffic = Traffic()
        self.seconds: dict[str, float] = {}
        self._seed = seed
        self._round = 0
        self._exchange = 0
        self._indices: dict[tuple[str, Layout], Index] = {}
        names = tuple(parts["train"][0].clients)
        self._schemas = {part: schema for part, (schema, _) in parts.items()}
        self._present: tuple[ClientId, ...] = names
        for part, (schema, _) in parts.items():
            self._indices[part, Layout.SAMPLES] = schema.samples
            self._indices[part, Layout.FEATURES] = schema.features
        self._parties = {
            name: _Party(
                {
                    part: schema.align(name, blocks[name])
                    for part, (schema, blocks) in parts.items()
                    if name in blocks
                },
                {
                    key: index.positions[name]
                    for key, index in self._indices.items()
                    if name in index.positions
                },
                None,
            )
            for name in names
        }

        for (part, layout), index in self._indices.items():
            if layout is Layout.SAMPLES:
                for name in names:
                    found = tuple(n for n, cell in enumerate(index.cells) if name in cell.owners)
                    self._parties[name].cells[part] = found

    # -- what the algorithm sees

    @property
    def ids(self) -> Sequence[ClientId]:
        """Return the clients that are there in this round."""
        return self._present

    def ask(self, fn: ClientFunction, messages: Mapping[ClientId, Any]) -> dict[ClientId, Any]:
        """Run `fn` at each client that has a message; the server reads each reply."""
        replies: dict[ClientId, Any] = {}
        self._run(fn, messages, lambda client, _, reply: replies.__setitem__(client, reply))
        return replies

    def sum(self, fn: ClientFunction, messages: Mapping[ClientId, Any]) -> SealedTotal:
        """Run `fn` at each client that has a message; the server gets the sealed total."""
        totals: dict[str, Any] = {}
        plan: tuple[tuple[str, Layout | None], ...] = ()
        kind: Any = type(None)

        def add(client: ClientId, party: _Party, reply: Any) -> None:
            nonlocal plan, kind
            first = not totals
            if first:
                kind = type(reply)
                plan = _layouts(kind)
            for name, layout in plan:
                value = getattr(reply, name)
                if layout is None:
                    if first:
                        totals[name] = value.copy() if isinstance(value, np.ndarray) else value
                    else:
                        totals[name] += value
                    continue
                if layout is Layout.COUNTS:
                    totals[name] = None
                    continue
                if layout is Layout.SELECTED:
                    own = totals.setdefault(name, {})
                    _add_cells(own, party.cells[fn.part], getattr(reply, _counts_of(kind)), value)
                    continue
                if first:
                    shape = (*value.shape[:-1], len(self._indices[fn.part, layout]))
                    totals[name] = np.zeros(shape)
                totals[name][..., party.places[fn.part, layout]] += value

        self._run(fn, messages, add)
        return SealedTotal(
            kind,
            {name: SealedField(totals[name], layout, fn.part) for name, layout in plan},
        )

    def reveal(self, total: Any) -> Any:
        """Open a sealed total (or one field of it) to the server."""
        if isinstance(total, SealedField):
            return total._value
        return total._kind(**{name: field._value for name, field in total._fields.items()})

    # -- what the run sees

    def begin_round(self, number: int, present: Sequence[ClientId] | None = None) -> None:
        """Start a round with the clients that are there (None: all)."""
        self._round = number
        self._exchange = 0
        self._present = tuple(self._parties) if present is None else tuple(present)

    def key(self, *words: int | str) -> RandomKey:
        """Return the server's random key for this round."""
        return RandomKey((self._seed, self._round, "server", *words))

    def client_key(self, client: ClientId) -> RandomKey:
        """Return the random key that a client's state is made with."""
        return RandomKey((self._seed, "init", client))

    def block(self, client: ClientId, part: str = "train") -> Block:
        """Return a client's block of one part (simulation and tests only)."""
        return self._parties[client].blocks[part]

    def count_once(self) -> None:
        """Let each training value count once: divide it by its number of holders."""
        for party in self._parties.values():
            block = party.blocks["train"]
            once = block.counted_once()
            if once is not block:
                party.whole["train"] = block
                party.blocks["train"] = once

    def transform(self, change: Callable[[ClientId, str, Block], Block]) -> None:
        """Replace every block by what `change(client, part, block)` makes of it, at its client."""
        for name, party in self._parties.items():
            for part in party.blocks:
                party.blocks[part] = change(name, part, party.blocks[part])

    def whole_block(self, client: ClientId, part: str) -> Block:
        """Return a client's block with undivided values (simulation and tests only)."""
        return self._parties[client].whole.get(part, self._parties[client].blocks[part])

    def schema(self, part: str) -> Schema:
        """Return the public schema of a part."""
        return self._schemas[part]

    @property
    def round(self) -> int:
        """Return the number of the round that was begun last."""
        return self._round

    @contextmanager
    def unmetered(self) -> Iterator[None]:
        """Leave the exchanges inside out of the traffic."""
        kept, self.traffic = self.traffic, Traffic()
        try:
            yield
        finally:
            self.traffic = kept

    def restore_traffic(self, traffic: Mapping[str, Any]) -> None:
        """Put back the traffic of a checkpoint."""
        self.traffic = Traffic(**traffic)

    def seal(self, server: Any) -> Any:
        """Return a server state with its sealed totals as records that the codec writes."""
        return _exchange_fields(
            server,
            SealedField,
            lambda total: SealedRecord(
                total._value, "" if total._layout is None else total._layout.value, total._part
            ),
        )

    def unseal(self, server: Any) -> Any:
        """Return the server state that `seal` was given."""
        return _exchange_fields(
            server,
            SealedRecord,
            lambda record: SealedField(
                record.value, Layout(record.layout) if record.layout else None, record.part
            ),
        )

    def get_states(self) -> dict[ClientId, Any]:
        """Return every client's state, for the checkpoint that the client writes."""
        return {name: party.state for name, party in self._parties.items()}

    def set_states(self, states: Mapping[ClientId, Any]) -> None:
        """Put back every client's state."""
        for name, state in states.items():
            self._parties[name].state = state

    # -- the loop

    def _run(
        self,
        fn: ClientFunction,
        messages: Mapping[ClientId, Any],
        collect: Callable[[ClientId, _Party, Any], None],
    ) -> None:
        self.traffic.exchanges += 1
        self._exchange += 1
        down = up = 0
        name = reply_name = ""
        previous: Any = _NOTHING
        sealed: list[tuple[str, SealedField]] = []
        plain: dict[str, Any] = {}
        kind: type = type(None)
        for client, message in messages.items():
            party = self._parties[client]
            if message is not previous:
                previous = message
                kind = type(message)
                name = kind.__name__
                sealed, plain = _split(message)
            opened = message
            if sealed:
                opened = object.__new__(kind)
                own: dict[str, Any] = opened.__dict__
                own.update(plain)
                for field, total in sealed:
                    layout = total._layout
                    value = total._value
                    if layout is Layout.SELECTED:
                        value = _own_cells(value, party.cells[total._part])
                    elif layout is not None:
                        value = value[..., party.places[total._part, layout]]
                    # as it would come from a wire: the order in memory decides how sums round
                    own[field] = value if layout is None else np.ascontiguousarray(value)
            key = RandomKey((self._seed, self._round, self._exchange, client, fn.name))
            try:
                state, reply = fn.call(party.state, party.blocks[fn.part], opened, key)
            except IntarsiaError as error:
                error.add_note(f"at client {client!r} in {fn.name}, round {self._round}")
                raise
            party.state = state
            down += codec.size(opened)
            up += codec.size(reply)
            reply_name = type(reply).__name__
            collect(client, party, reply)
        traffic = self.traffic
        traffic.down[name] = traffic.down.get(name, 0) + down
        traffic.up[reply_name] = traffic.up.get(reply_name, 0) + up


_NOTHING = object()


def _exchange_fields(state: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """Return a dataclass with each field of a kind replaced."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(state):
        value = getattr(state, field.name)
        if isinstance(value, kind):
            found[field.name] = change(value)
        elif dataclasses.is_dataclass(value) and not isinstance(value, SealedRecord):
            found[field.name] = _exchange_fields(value, kind, change)
    return dataclasses.replace(state, **found)


def _split(message: Any) -> tuple[list[tuple[str, SealedField]], dict[str, Any]]:
    """Return the sealed fields of a message, and the others."""
    sealed: list[tuple[str, SealedField]] = []
    plain: dict[str, Any] = {}
    for field, value in getattr(message, "__dict__", {}).items():
        if isinstance(value, SealedField):
            sealed.append((field, value))
        else:
            plain[field] = value
    return sealed, plain
