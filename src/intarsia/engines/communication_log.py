"""The server's side of every engine: sealed totals as it holds them, and what crossed.

Which machine a client runs on makes no difference here: `InProcess` and `Remote` both have one
under the name `books`, and a run asks it for what both would say alike.

How much crossed between the server and the clients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from intarsia.core.algorithm import ClientFunction, Layout, evolve
from intarsia.core.block import ClientId
from intarsia.engines.sums.linear_combination import CombinationRecord, PieceRecord
from intarsia.engines.sums.plain import Totals
from intarsia.engines.sums.sealed import SealedField, SealedRecord, exchange_fields
from intarsia.engines.transcript import Crossed, Crossings, Recorder


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


@dataclass(frozen=True, eq=False)
class Split:
    """A message, apart into what is sealed and what is not."""

    sealed: tuple[tuple[str, SealedField], ...]
    plain: dict[str, Any]
    kind: type

    @property
    def names(self) -> tuple[tuple[str, str], ...]:
        """Return the sealed fields, and the fields of replies that they are totals of."""
        return tuple((field, total._name) for field, total in self.sealed)


def split(message: Any) -> Split:
    """Return a message apart into what is sealed and what is not."""
    sealed: list[tuple[str, SealedField]] = []
    plain: dict[str, Any] = {}
    for name, value in getattr(message, "__dict__", {}).items():
        if isinstance(value, SealedField):
            sealed.append((name, value))
        else:
            plain[name] = value
    return Split(tuple(sealed), plain, type(message))


def restored(totals: Totals, record: SealedRecord) -> SealedField:
    """Return the sealed field that a record was made of."""
    return SealedField(
        totals.restored(record.value),
        Layout(record.layout) if record.layout else None,
        record.part,
        record.name,
    )


class Bookkeeping:
    """What the server holds, and what crossed.

    Parameters
    ----------
    clients
        All clients of the federation.
    totals
        How contributions are added up.
    recorder
        Takes down all that the server could read.
    """

    def __init__(
        self, clients: Sequence[ClientId], totals: Totals, recorder: Recorder | None
    ) -> None:
        self.traffic = Traffic()
        self.crossings = Crossings(clients)
        self.totals = totals
        self.round = self.exchange = 0  # which was begun last
        self._recorder = recorder

    @property
    def records(self) -> bool:
        """Return whether what the server could read is taken down."""
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

    def begin_exchange(self) -> None:
        """Take note of an exchange that begins."""
        self.exchange += 1
        self.traffic.exchanges += 1

    @contextmanager
    def unmetered(self) -> Iterator[None]:
        """Leave the exchanges inside out of the traffic."""
        kept, self.traffic = self.traffic, Traffic()
        try:
            yield
        finally:
            self.traffic = kept

    def record(
        self, kind: str, function: str, client: ClientId, name: str, fields: dict[str, Any]
    ) -> None:
        """Take down one thing that the server could read, if anybody wants it."""
        if self._recorder is not None:
            self._recorder.record(Crossed(self.round, kind, function, client, name, fields))

    def record_message(self, fn: ClientFunction, message: Split) -> None:
        """Take down a message as the server holds it."""
        if self._recorder is not None:
            held = {name: self.totals.held(total) for name, total in message.sealed}
            fields = {**message.plain, **held}
            self.record("message", fn.name, "", message.kind.__name__, fields)

    def exchanged(
        self,
        kind: str,
        fn: ClientFunction,
        message: Split,
        reply: type,
        clients: Mapping[ClientId, Any],
        unsent: set[str] | None,
        *,
        down: int,
        up: int,
    ) -> None:
        """Count the bytes of an exchange, and who could read which field."""
        name, reply_name = message.kind.__name__, reply.__name__
        traffic = self.traffic
        traffic.down[name] = traffic.down.get(name, 0) + down
        traffic.up[reply_name] = traffic.up.get(reply_name, 0) + up
        self.crossings.exchange(
            kind, fn.name, message.kind, message.names, reply, clients, unsent or ()
        )

    def reveal(self, total: Any) -> Any:
        """Open a sealed total (or one field of it) to the server."""
        if isinstance(total, SealedField):
            return self._revealed(total)
        fields = {name: self._revealed(one) for name, one in total._fields.items()}
        return total._kind(**fields)

    def _revealed(self, field: SealedField) -> Any:
        value, size = self.totals.reveal(field)
        self.crossings.reveal(field._name, value)
        if size:  # a client opened it
            self.traffic.exchanges += 1
            self.traffic.up["Reveal"] = self.traffic.up.get("Reveal", 0) + size
        self.record("reveal", "", "", field._name, {"value": value})
        return value

    def refreshed(self, messages: Mapping[ClientId, Any]) -> Mapping[ClientId, Any]:
        """Return the messages with totals that clients sealed anew where opening was costly."""
        if self.totals.mode == "plain":
            return messages
        again: dict[int, Any] = {}
        for message in messages.values():
            if id(message) not in again:
                sealed = split(message).sealed
                fields = {name: self._sealed_anew(total) for name, total in sealed}
                same = all(fields[name] is total for name, total in sealed)
                again[id(message)] = message if same else evolve(message, **fields)
        return {client: again[id(message)] for client, message in messages.items()}

    def _sealed_anew(self, total: SealedField) -> SealedField:
        found, size = self.totals.refreshed(total, self.round)
        if size:
            self.crossings.refresh(total._name)
            self.traffic.exchanges += 1
            self.traffic.up["Refresh"] = self.traffic.up.get("Refresh", 0) + size
        return found

    def settle(self, server: Any) -> Any:
        """Return a server state with totals of many terms sealed anew: they would grow for ever."""
        if self.totals.mode == "plain":
            return server
        return exchange_fields(server, SealedField, self._sealed_anew)

    def seal(self, server: Any) -> Any:
        """Return a server state with its sealed totals as records that the codec writes."""
        return exchange_fields(server, SealedField, self.recorded)

    def unseal(self, server: Any) -> Any:
        """Return the server state that `seal` was given."""
        return exchange_fields(server, SealedRecord, lambda one: restored(self.totals, one))

    def recorded(self, total: SealedField) -> SealedRecord:
        """Return a sealed field as a record that the codec writes."""
        return SealedRecord(
            self.totals.record(total._value),
            "" if total._layout is None else total._layout.value,
            total._part,
            total._name,
        )
