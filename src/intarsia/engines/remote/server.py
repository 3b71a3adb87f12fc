"""The engine whose clients are sites on other machines, over any transport that carries bytes.

The server sees what it sees in `InProcess`, with the same keys of random numbers and sums in the
same order, so that a run comes to the same bits. Contributions are sealed at the sites; the server
has no key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from intarsia.core.algorithm import Algorithm, ClientFunction, RandomKey, evolve
from intarsia.core.block import ClientId
from intarsia.core.schema import Schema
from intarsia.engines import codec
from intarsia.engines.communication_log import RECORDS, Bookkeeping, Split, Version, restored, split
from intarsia.engines.remote.caller import Caller
from intarsia.engines.remote.wire import (
    BEGIN,
    Answer,
    Kind,
    Opened,
    SealedReply,
    ToOpen,
    ToSeal,
    classes_of,
    identity,
)
from intarsia.engines.sums.linear_combination import Combination, CombinationRecord, PieceRecord
from intarsia.engines.sums.plain import Geometry, PlainTotals, Totals
from intarsia.engines.sums.sealed import SealedField, SealedTotal, layouts
from intarsia.engines.sums.secure import LockedCollector, LockedTotals
from intarsia.engines.transcript import Recorder
from intarsia.errors import AbsentError, CodecError, TamperedError
from intarsia.privacy.secure_aggregation.protocol import Piece, Sealing, Stream


class Remote:
    """The engine over sites whose set-up is done.

    Parameters
    ----------
    caller
        Calls the sites.
    schemas
        The public schema of each part.
    seed
        The root of every random stream.
    sealing
        How the server adds sealed contributions, without a key; None = they are not sealed.
    recorder
        Takes down all that the server could read.
    apart
        Whether no total is to tell one client's part: then a round does not begin again without a
        client once a total of it was opened, from which the next would differ by that part.
    """

    def __init__(
        self,
        caller: Caller,
        schemas: Mapping[str, Schema],
        seed: int,
        sealing: Sealing | None = None,
        recorder: Recorder | None = None,
        *,
        apart: bool = False,
    ) -> None:
        self._caller, self._seed, self._schemas = caller, seed, dict(schemas)
        self._clients = tuple(schemas["train"].clients)
        self._present = self._clients
        self._apart, self._opened, self._began = apart, False, 0
        geometry = Geometry(self._schemas)
        self._locked: LockedTotals | None = None
        if sealing is not None:
            owners = _Owners(self)
            self._locked = LockedTotals(
                geometry, sealing, caller.run, owners, lambda: caller.sequence + 1
            )
        self._totals: Totals = PlainTotals(geometry) if self._locked is None else self._locked
        self.books = Bookkeeping(self._clients, self._totals, recorder)

    # -- what the algorithm sees

    @property
    def ids(self) -> Sequence[ClientId]:
        """Return the clients that are there in this round."""
        return self._present

    def ask(self, fn: ClientFunction, messages: Mapping[ClientId, Any]) -> dict[ClientId, Any]:
        """Run `fn` at each client that has a message; the server reads each reply."""
        messages = self.books.refreshed(messages)
        found = self._run("ask", fn, messages)
        classes = classes_of(fn)
        replies = {client: codec.decode(one.body, *classes) for client, one in found.items()}
        kinds = [type(reply) for reply in replies.values()]
        unsent: set[str] | None = None
        for client, reply in replies.items():
            unsent = _unsent(unsent, {k for k, one in reply.__dict__.items() if one is None})
            if self.books.records:
                name, fields = type(reply).__name__, dict(reply.__dict__)
                self.books.record("ask", fn.name, client, name, fields)
        self._counted("ask", fn, messages, found, kinds[-1] if kinds else type(None), unsent)
        return replies

    def sum(self, fn: ClientFunction, messages: Mapping[ClientId, Any]) -> SealedTotal:
        """Run `fn` at each client that has a message; the server gets the sealed total."""
        messages = self.books.refreshed(messages)
        collector = self._totals.collector(fn, self.books.round, messages)
        found = self._run("sum", fn, messages)
        classes = classes_of(fn)
        kind: type = type(None)
        unsent: set[str] | None = None
        for client, answer in found.items():
            if isinstance(collector, LockedCollector):
                kind, absent = self._take(collector, client, answer, classes)
            else:
                reply = codec.decode(answer.body, *classes)
                collector.add(client, reply)
                kind = type(reply)
                absent = {name for name, one in reply.__dict__.items() if one is None}
            unsent = _unsent(unsent, absent)
            if self.books.records:
                name, fields = kind.__name__, collector.seen()
                self.books.record("sum", fn.name, client, name, fields)
        self._counted("sum", fn, messages, found, kind, unsent)
        return collector.total()

    def reveal(self, total: Any) -> Any:
        """Open a sealed total (or one field of it) to the server."""
        fields = [total] if isinstance(total, SealedField) else total._fields.values()
        self._opening(fields)
        return self.books.reveal(total)

    def _opening(self, totals: Iterable[SealedField]) -> None:
        """Take note if some of these totals are of the present round."""
        if self._locked is None or self._opened:
            return
        names = (cells.name for total in totals for _, cells in total._value.terms)
        self._opened = any(sequence > self._began for _, sequence, *_ in names)

    # -- what the run sees

    def begin_round(self, number: int, present: Sequence[ClientId] | None = None) -> None:
        """Start a round with the clients that are there (None: all), but for those away.

        Raises
        ------
        AbsentError
            If so many are away that fewer are left than the quorum (or than were to be there), and
            they do not come back within the deadline.
        """
        caller = self._caller
        caller.anchor()
        self._opened, self._began = False, caller.sequence
        drawn = self._clients if present is None else present
        least = min(caller.patience.quorum, len(drawn))
        if sum(client not in caller.away for client in drawn) < least:
            caller.wait_for(drawn, least)
        self._begin(number, drawn)

    def without(self, absent: AbsentError) -> bool:
        """Start the round again without the clients that did not answer; False: it must not be.

        Every site goes back to where it was when the round began.

        Raises
        ------
        AbsentError
            If totals of the round were opened, and the next ones would tell the part of a client
            that they leave out.
        """
        patience = self._caller.patience
        left = [client for client in self._present if client not in absent.clients]
        if patience.absent != "continue" or len(left) < patience.quorum:
            return False
        if self._caller.away.issuperset(absent.clients):
            return False  # it cannot do without them: it would begin again for ever
        if self._apart and self._opened:
            raise AbsentError(
                f"{absent} The round does not begin again without them, since totals of it were "
                "opened: from those the next would differ by what they sent, and "
                "privacy.least_clients is above 1.",
                absent.clients,
            )
        self._caller.go_on_without(absent.clients)
        self._begin(self.books.round, left)
        return True

    def _begin(self, number: int, present: Sequence[ClientId]) -> None:
        caller = self._caller
        self.books.begin_round(number)
        self._present = tuple(client for client in present if client not in caller.away)

    @property
    def away(self) -> bool:
        """Return whether a client did not answer and has not come back."""
        return bool(self._caller.away)

    def return_of(self, *, wait: bool) -> None:
        """Let sites that were away take part again, those that answer; wait: until all do.

        Raises
        ------
        AbsentError
            If one does not, within the deadline.
        """
        self._caller.probe(wait=wait)

    def key(self, *words: int | str) -> RandomKey:
        """Return the server's random key for this round."""
        return RandomKey((self._seed, self.books.round, "server", *words))

    def schema(self, part: str) -> Schema:
        """Return the public schema of a part."""
        return self._schemas[part]

    @property
    def states(self) -> Mapping[ClientId, Version]:
        """Return which state each site has, for a checkpoint: the states are the sites' own."""
        caller = self._caller
        return {name: Version(one, caller.sequence) for name, one in caller.versions.items()}

    def set_states(self, states: Mapping[ClientId, Version]) -> None:
        """Let every site go on from the state that it had at a checkpoint."""
        self._caller.versions = {name: states[name].exchange for name in self._clients}
        self._caller.sequence = max(one.sequence for one in states.values())

    def saved(self) -> None:
        """Take note of a checkpoint: the journal need not reach back to the one before the last."""
        if self._caller.journal is not None:
            self._caller.journal.checkpoint(self._caller.sequence)

    def begin(self, algorithm: Algorithm, options: Any) -> None:
        """Let each site make the state that it starts the experiment's algorithm with."""
        self._caller.call("stage", BEGIN, dict.fromkeys(self._clients, b""))

    # -- the loop

    def _run(
        self, kind: Kind, fn: ClientFunction, messages: Mapping[ClientId, Any]
    ) -> dict[ClientId, Answer]:
        """Call the clients that have a message."""
        self.books.begin_exchange()
        bodies: dict[ClientId, bytes] = {}
        written: dict[int, bytes] = {}  # of messages with nothing sealed: the same for all
        previous: Any = None
        for client, message in messages.items():
            apart = split(message)
            if message is not previous:
                previous = message
                self.books.record_message(fn, apart)
                self._opening(total for _, total in apart.sealed)
            if apart.sealed:
                bodies[client] = codec.encode(self._shared(client, message, apart))
                continue
            if id(message) not in written:
                written[id(message)] = codec.encode(message)
            bodies[client] = written[id(message)]
        if not bodies:
            return {}
        return self._caller.call(
            kind,
            identity(fn),
            bodies,
            part=fn.part,
            round=self.books.round,
            exchange=self.books.exchange,
        )

    def _shared(self, client: ClientId, message: Any, apart: Split) -> Any:
        """Return a message with a client's own entries of its totals, as they are sent to it."""
        found: dict[str, Any] = {}
        for name, total in apart.sealed:
            if self._locked is None:
                found[name], _ = self._totals.own(client, total)
            else:
                found[name] = self.books.recorded(self._locked.share(client, total))
        return evolve(message, **found)

    def _take(
        self,
        collector: LockedCollector,
        client: ClientId,
        answer: Answer,
        classes: tuple[type, ...],
    ) -> tuple[type, set[str]]:
        """Take a sealed reply; return its class, and the fields that it has nothing for."""
        reply = codec.decode(answer.body, SealedReply, *RECORDS)
        kinds = [one for one in classes if one.__name__ == getattr(reply, "kind", None)]
        if not isinstance(reply, SealedReply) or not kinds:
            raise CodecError(f"Client {client!r} sent no sealed reply; its version is another one.")
        fields = {name: restored(self._totals, one)._value for name, one in reply.fields.items()}
        collector.take(client, kinds[0], {**fields, **reply.counts})
        every = {name for name, _ in layouts(kinds[0])}
        return kinds[0], every - fields.keys() - reply.counts.keys()

    def _counted(
        self,
        kind: str,
        fn: ClientFunction,
        messages: Mapping[ClientId, Any],
        answers: Mapping[ClientId, Answer],
        reply: type,
        unsent: set[str] | None,
    ) -> None:
        apart = Split((), {}, type(None))
        for message in messages.values():
            apart = split(message)
        down = sum(one.down for one in answers.values())
        up = sum(one.up for one in answers.values())
        self.books.exchanged(kind, fn, apart, reply, messages, unsent, down=down, up=up)


def _unsent(before: set[str] | None, absent: set[str]) -> set[str]:
    return absent if before is None else before & absent


class _Owners:
    """Asks sites to open cells of totals, and to seal them under another name."""

    def __init__(self, engine: Remote) -> None:
        self._engine = engine

    def is_there(self, client: ClientId) -> bool:
        """Return whether a client can be asked: one that is away cannot."""
        return client not in self._engine._caller.away

    def opened_cells(
        self, openers: Mapping[int, ClientId], total: Combination
    ) -> dict[int, tuple[Any, int]]:
        """Return each cell as its opener opens it, and its bytes beside it."""

        def asked(record: CombinationRecord, cells: tuple[int, ...]) -> ToOpen:
            return ToOpen(record, cells)

        return self._asked("open", openers, total, asked)

    def sealed_anew(
        self, owners: Mapping[int, ClientId], total: Combination, streams: Mapping[int, Stream]
    ) -> dict[int, tuple[Piece, int]]:
        """Return each cell as its owner seals it under another name, and the bytes of it."""
        (field,) = {one.field for one in streams.values()}

        def asked(record: CombinationRecord, cells: tuple[int, ...]) -> ToSeal:
            return ToSeal(record, cells, field)

        totals = self._engine._locked
        assert totals is not None
        found: dict[int, tuple[Piece, int]] = {}
        for cell, (record, extra) in self._asked("seal", owners, total, asked).items():
            piece = totals.piece(record)
            if piece.stream != streams[cell] or piece.contributors != (owners[cell],):
                raise TamperedError(
                    f"{owners[cell]!r} sealed {piece.stream} where {streams[cell]} was asked for; "
                    "resume the run."
                )
            found[cell] = piece, extra
        return found

    def _asked(
        self,
        kind: Kind,
        owners: Mapping[int, ClientId],
        total: Combination,
        asked: Callable[[CombinationRecord, tuple[int, ...]], ToOpen | ToSeal],
    ) -> dict[int, tuple[Any, int]]:
        engine = self._engine
        totals = engine._locked
        assert totals is not None
        cells: dict[ClientId, tuple[int, ...]] = {}
        for cell, client in owners.items():
            cells[client] = (*cells.get(client, ()), cell)
        bodies = {
            client: codec.encode(asked(totals.record(total.restricted(mine)), mine))
            for client, mine in cells.items()
        }
        answers = engine._caller.call(kind, kind, bodies, round=engine.books.round)
        found: dict[int, tuple[Any, int]] = {}
        for client, answer in answers.items():
            opened = codec.decode(answer.body, Opened, PieceRecord)
            for cell, value, extra in zip(cells[client], opened.values, opened.extra, strict=True):
                found[cell] = value, extra
        return found
