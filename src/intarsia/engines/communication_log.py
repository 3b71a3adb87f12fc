"""Communication of one run: bytes by message, exchanges with clients, and the totals' records.

It is the server's side of every engine: `Simulation` and `Remote` make each ask and each sum an
`Exchange`, and have their `CommunicationLog` under the name `books`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from intarsia.core.block import Array, ClientId
from intarsia.core.client_functions import (
    ClientFunction,
    Clients,
    Layout,
    Messages,
    evolve,
    not_declared,
)
from intarsia.core.disclosure import models_in
from intarsia.core.schema import Index
from intarsia.engines import codec
from intarsia.engines.sums.plain import Totals, from_record, to_record
from intarsia.engines.sums.sealed import SealedField, SealedRecord, SealedTotal, both, layouts
from intarsia.engines.sums.secure import (
    CombinationRecord,
    PieceRecord,
    SecureCollector,
    told_alike,
)
from intarsia.engines.transcript import Crossed, Crossings, Recorder
from intarsia.errors import AlgorithmError, CodecError, listed

_NONE: Mapping[str, Sequence[ClientId]] = MappingProxyType({})


@dataclass
class Traffic:
    """Bytes by message type, and exchanges: what a network would have carried."""

    up: dict[str, int] = field(default_factory=dict[str, int])
    down: dict[str, int] = field(default_factory=dict[str, int])
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


@dataclass(frozen=True)
class Version:
    """Stands in the server's checkpoint for a state, which the site itself keeps."""

    exchange: int  # that made the state
    sequence: int  # the last exchange of the run


# what `seal` makes of sealed totals, and what stands for the states of sites
RECORDS = (CombinationRecord, PieceRecord, SealedRecord, Version)


class Split:
    """A message, apart into what is sealed and what is not."""

    __slots__ = ("kind", "names", "plain", "sealed", "size")

    def __init__(self, message: Any) -> None:
        sealed: dict[str, SealedField] = {}
        plain: dict[str, Any] = {}
        for name, one in getattr(message, "__dict__", {}).items():
            (sealed if isinstance(one, SealedField) else plain)[name] = one
        self.kind: type = type(message)
        self.sealed, self.plain = sealed, plain
        # the sealed fields, and the fields of replies that they are totals of
        self.names = tuple([(name, one.name) for name, one in sealed.items()])
        # bytes of the message with nothing in the place of what is sealed
        self.size = codec.size(message, SealedField)

    def reads(self, name: str) -> bool:
        """Return whether the server reads a field, which holds something."""
        value = self.plain.get(name)
        every = value.values() if isinstance(value, Mapping) else (value,)
        return any(one is not None and not isinstance(one, SealedField) for one in every)


class CommunicationLog:
    """What the server holds, and what crossed; the recorder takes down all that it could read."""

    def __init__(
        self, clients: Sequence[ClientId], totals: Totals, recorder: Recorder | None
    ) -> None:
        self.traffic = Traffic()
        self.crossings = Crossings(clients)
        self.totals = totals
        self.round = self.exchange = 0  # which was begun last
        # how often each client was asked to release with noise, in rounds begun again too
        self.releases = dict.fromkeys(clients, 0)
        self._recorder = recorder
        self._asked: frozenset[ClientId] = frozenset()

    def set_of(self, clients: Mapping[ClientId, Any]) -> frozenset[ClientId]:
        """Return some clients as a set: the same one again while they are the same."""
        if self._asked != clients.keys():
            self._asked = frozenset(clients)
        return self._asked

    @property
    def recorded(self) -> bool:
        """Return whether anybody takes down what the server could read."""
        return self._recorder is not None

    @property
    def mode(self) -> str:
        """Return how sums are kept from the server: "plain", "masked" or "ckks"."""
        return self.totals.mode

    def restore_traffic(self, traffic: Mapping[str, Any]) -> None:
        """Put back the traffic of a checkpoint."""
        self.traffic = Traffic(**traffic)

    def begin_round(self, number: int) -> None:
        """Take note of a round that begins."""
        self.round, self.exchange = number, 0

    @contextmanager
    def unmetered(self) -> Iterator[None]:
        """Leave the exchanges inside out of the traffic."""
        kept, self.traffic = self.traffic, Traffic()
        try:
            yield
        finally:
            self.traffic = kept

    def record(
        self,
        kind: str,
        function: str,
        client: ClientId,
        name: str,
        fields: Callable[[], dict[str, Any]],
    ) -> None:
        """Take down one thing that the server could read, if anybody wants it."""
        if self._recorder is not None:
            self._recorder.record(Crossed(self.round, kind, function, client, name, fields()))

    def reveal(self, total: Any) -> Any:
        """Open a sealed total (or one field of it) to the server."""
        if isinstance(total, SealedField):
            return self._revealed(total)
        fields = {name: self._revealed(one) for name, one in total.by_field.items()}
        return total.reply_class(**fields)

    def _revealed(self, field: SealedField) -> Any:
        value, size = self.totals.reveal(field)
        self.crossings.reveal(field.name, value)
        if size:  # a client opened it
            self.traffic.exchanges += 1
            self.traffic.up["Reveal"] = self.traffic.up.get("Reveal", 0) + size
        self.record("reveal", "", "", field.name, lambda: {"value": value})
        return value

    def refreshed(self, messages: Mapping[ClientId, Any]) -> Mapping[ClientId, Any]:
        """Return the messages with totals that clients sealed anew where opening was costly."""
        if self.totals.mode == "plain":
            return messages
        again: dict[int, Any] = {}
        for message in messages.values():
            if id(message) not in again:
                own = getattr(message, "__dict__", {}).items()
                sealed = {name: one for name, one in own if isinstance(one, SealedField)}
                fields = {name: self._sealed_anew(one, messages) for name, one in sealed.items()}
                same = all(fields[name] is one for name, one in sealed.items())
                again[id(message)] = message if same else evolve(message, **fields)
        return {client: again[id(message)] for client, message in messages.items()}

    def _sealed_anew(
        self, total: SealedField, asked: Collection[ClientId] | None = None
    ) -> SealedField:
        found, size = self.totals.refreshed(total, self.round, asked)
        if size:
            self.crossings.refresh(total.name)
            self.traffic.exchanges += 1
            self.traffic.up["Refresh"] = self.traffic.up.get("Refresh", 0) + size
        return found

    def settle(self, server: Any) -> Any:
        """Return a server state with totals of many terms sealed anew: they would grow for ever."""
        if self.totals.mode == "plain":
            return server
        return codec.replace_within(server, SealedField, self._sealed_anew)

    def seal(self, server: Any) -> Any:
        """Return a server state with its sealed totals as records that the codec writes."""
        return codec.replace_within(server, SealedField, lambda one: to_record(self.totals, one))

    def unseal(self, server: Any) -> Any:
        """Return the server state that `seal` was given."""
        return codec.replace_within(server, SealedRecord, lambda one: from_record(self.totals, one))


def addressed(clients: Clients, fn: ClientFunction, messages: Messages) -> Mapping[ClientId, Any]:
    """Return messages by client: one that is for all goes to each, with its own entries.

    Raises
    ------
    AlgorithmError
        If `fn` is no client function, the message is of another class than its own, or an array
        over samples or features in it has not one entry for each of all.
    """
    if not isinstance(fn, ClientFunction):
        raise not_declared(fn)
    if isinstance(messages, Mapping):
        known = {*clients.schema(fn.part).clients}
        if odd := [str(key) for key in messages if key not in known]:
            wanted = "" if fn.message is object else f", each a {fn.message.__name__}"
            raise AlgorithmError(
                f"{fn.name} is given a dict with {listed(odd, 5)}, which are no clients; a dict "
                f"has messages by client{wanted}: give one message for all, or one for each."
            )
        return messages
    if not (dataclasses.is_dataclass(messages) and isinstance(messages, fn.message)):
        wanted = "a dataclass" if fn.message is object else f"a {fn.message.__name__}"
        raise AlgorithmError(
            f"{fn.name} is given a {type(messages).__name__}, and its message is {wanted}; make "
            "one of it, with totals as they are in its fields."
        )
    whole: dict[str, tuple[Index, Array]] = {}
    kind: Any = type(messages)
    for name, layout in layouts(kind):
        value = getattr(messages, name)
        if layout not in (Layout.SAMPLES, Layout.FEATURES) or not isinstance(value, np.ndarray):
            continue
        schema = clients.schema(fn.part)
        index = schema.samples if layout is Layout.SAMPLES else schema.features
        if value.shape[-1:] != (len(index),):
            raise AlgorithmError(
                f"{type(messages).__name__}.{name} has the shape {value.shape}, and all clients "
                f"have {len(index)} {layout.value}; give an entry for each, or messages by client."
            )
        whole[name] = index, value
    if not whole:
        return dict.fromkeys(clients.ids, messages)
    own = {
        one: {name: value[..., index.own(one)] for name, (index, value) in whole.items()}
        for one in clients.ids
    }
    return {one: evolve(messages, **entries) for one, entries in own.items()}


class Exchange:
    """One exchange on the server's side: messages go out, replies come in, all is written down.

    `fn` is called at each client that has a message. "ask": the server reads each reply; "sum": it
    gets the sealed total.
    """

    def __init__(
        self,
        books: CommunicationLog,
        kind: Literal["ask", "sum"],
        fn: ClientFunction,
        messages: Mapping[ClientId, Any],
    ) -> None:
        self.messages = books.refreshed(messages)
        self.asked = books.set_of(self.messages)
        self.down = self.up = 0  # bytes
        self._books, self._kind, self._fn = books, kind, fn
        self._recorded = books.recorded
        self.replies: dict[ClientId, Any] = {}  # of an ask
        self._splits: dict[int, Split] = {}  # each message apart, by its identity
        self._reply: type = type(None)
        self._unsent: set[str] | None = None  # fields that no client so far had anything for
        self._collector = None
        if kind == "sum":
            told = ""
            if fn.alike and books.mode != "plain":  # what is in the clear adds up whatever is told
                told = told_alike(fn, vars(next(iter(self.messages.values()))))
            self._collector = books.totals.collector(fn, books.round, self.messages, told)
        for client in messages if fn.releases else ():
            books.releases[client] += 1
        books.exchange += 1
        books.traffic.exchanges += 1

    def split(self, client: ClientId) -> Split:
        """Return a client's message apart into what is sealed and what is not; record it.

        Raises
        ------
        CodecError
            If it is of another class than the client function's.
        """
        message = self.messages[client]
        apart = self._splits.get(id(message))
        if apart is None:
            fn = self._fn
            if not isinstance(message, fn.message):
                raise CodecError(
                    f"{fn.name} was given a {type(message).__name__}, but its message is a "
                    f"{fn.message.__name__}; send what it is annotated with."
                )
            apart = self._splits[id(message)] = Split(message)
            if self._recorded:
                held = {name: self._books.totals.held(one) for name, one in apart.sealed.items()}
                fields = {**apart.plain, **held}
                self._books.record("message", fn.name, "", apart.kind.__name__, lambda: fields)
        return apart

    def take(self, client: ClientId, reply: Any, *, own: bool = False) -> None:
        """Take a client's reply, of which nobody else has an array if it is one's `own`."""
        sent = reply.__dict__
        if self._unsent is None:
            self._unsent = {name for name, value in sent.items() if value is None}
        for name in self._unsent:
            if sent.get(name) is not None:
                self._unsent = {name for name in self._unsent if sent.get(name) is None}
                break
        if self._collector is None:
            self.replies[client] = reply
            self.up += codec.size(reply)
        else:
            # what is taken down is what came
            self.up += self._collector.add(client, reply, own=own and not self._recorded)
        self._reply = type(reply)
        if self._recorded:
            there = {name: one for name, one in sent.items() if one is not None}
            seen = self._collector.seen if self._collector is not None else lambda: there
            self._books.record(self._kind, self._fn.name, client, self._reply.__name__, seen)

    def take_sealed(self, client: ClientId, fields: Mapping[str, Any], size: int) -> None:
        """Take what a client sealed of its reply, and the bytes of that."""
        collector, kind = self._collector, self._fn.reply
        assert isinstance(collector, SecureCollector)
        collector.take(client, kind, fields)
        self.up += size
        absent = {name for name, _ in layouts(kind)} - fields.keys()
        self._unsent = absent if self._unsent is None else self._unsent & absent
        self._reply = kind
        if self._recorded:
            self._books.record(self._kind, self._fn.name, client, kind.__name__, collector.seen)

    def end(self) -> Exchange:
        """Count what the exchange took; return it."""
        traffic, reply, partly = self._books.traffic, self._reply, _NONE
        apart = [*self._splits.values()] or [Split(None)]
        message, opened = apart[-1].kind, apart[-1].names
        traffic.down[message.__name__] = traffic.down.get(message.__name__, 0) + self.down
        traffic.up[reply.__name__] = traffic.up.get(reply.__name__, 0) + self.up
        if len(apart) > 1 and len({one.names for one in apart}) > 1:
            found = self._opened()
            opened = tuple((field, origin) for field, (origin, _) in found.items())
            asked = len(self.messages)
            partly = {field: some for field, (_, some) in found.items() if len(some) < asked}
        self._books.crossings.exchange(
            *(self._kind, self._fn.name, message, opened, reply),
            *(self.messages, self._unsent or (), partly),
            {name for name in models_in(message) if any(one.reads(name) for one in apart)},
        )
        return self

    def _opened(self) -> dict[str, tuple[str, list[ClientId]]]:
        """Return the fields that were sealed for any client: totals of what, and for whom.

        A field may be None in the messages of others.
        """
        found: dict[str, tuple[str, list[ClientId]]] = {}
        for client in self.messages:
            for name, origin in self.split(client).names:
                before, some = found.setdefault(name, (origin, []))
                some.append(client)
                found[name] = both(before, origin), some
        return found

    def total(self) -> SealedTotal:
        """Return the sealed total of the replies to a sum."""
        assert self._collector is not None
        return self._collector.total()
