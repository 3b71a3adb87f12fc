"""Server of the remote engine: clients are sites on other machines, over any transport of bytes.

The server sees what it sees in `Simulation`, with the same keys of random numbers and sums in the
same order, so that a run comes to the same bits. Contributions are sealed at the sites; the server
has no key.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np

from intarsia.core.algorithm import Algorithm
from intarsia.core.block import ClientId
from intarsia.core.client_functions import ClientFunction, Messages, RandomKey, Rounding, evolve
from intarsia.core.schema import Schema
from intarsia.engines import codec
from intarsia.engines.communication_log import (
    RECORDS,
    CommunicationLog,
    Exchange,
    Version,
    addressed,
)
from intarsia.engines.remote import wire
from intarsia.engines.remote.caller import Caller
from intarsia.engines.remote.replies import Replies, check_piece, malformed, shape_of
from intarsia.engines.remote.wire import ToOpen, ToSeal
from intarsia.engines.sums import secure
from intarsia.engines.sums.plain import Geometry, PlainTotals, Totals, to_record
from intarsia.engines.sums.sealed import SealedField, SealedTotal
from intarsia.engines.sums.secure import Combination, SecureTotals
from intarsia.engines.transcript import Recorder
from intarsia.errors import (
    AbsentError,
    CodecError,
    ConvergenceError,
    IntarsiaError,
    TamperedError,
)
from intarsia.privacy.secure_aggregation.protocol import Piece, Sealing, Stream


class Remote:
    """The engine over sites whose set-up is done.

    `apart` says whether no total is to tell one client's part: then a round does not begin again
    without a client once anybody opened a total of it, from which the next would differ by that
    part. `bounds` says whether the model has a dual objective, of which a term may be -inf.
    """

    def __init__(
        self,
        caller: Caller,
        schemas: Mapping[str, Schema],  # the public one of each part
        seed: int,  # the root of every random stream
        sealing: Sealing | None = None,  # without a key; None: contributions are not sealed
        recorder: Recorder | None = None,  # takes down all that the server could read
        *,
        algorithm: str,  # by whose name calls name its functions
        apart: bool = False,
        bounds: bool = True,
    ) -> None:
        self._caller, self._seed, self._schemas = caller, seed, dict(schemas)
        self._algorithm = algorithm
        self._clients = tuple(schemas["train"].clients)
        self._present = self._clients
        self._apart, self._opened, self._began = apart, False, 0
        geometry = Geometry(self._schemas)
        owners = None if sealing is None else _Owners(caller, geometry, sealing, self._opening)
        self._locked = None if owners is None else owners.totals
        self._replies = Replies(geometry, bounds=bounds)
        self._totals: Totals = PlainTotals(geometry) if self._locked is None else self._locked
        self.books = CommunicationLog(self._clients, self._totals, recorder)

    @property
    def ids(self) -> Sequence[ClientId]:
        """Return the clients that are there in this round."""
        return self._present

    @property
    def sealed(self) -> bool:
        """Return whether contributions are hidden from the server."""
        return self.books.mode != "plain"

    def rounding(self, entries: int) -> Rounding:
        """Return how exact a sum of so many entries is."""
        return self._totals.rounding(entries)

    def ask(self, fn: ClientFunction, messages: Messages) -> dict[ClientId, Any]:
        """Run `fn` at each client that has a message; the server reads each reply."""
        return self._run("ask", fn, messages).replies

    def sum(self, fn: ClientFunction, messages: Messages) -> SealedTotal:
        """Run `fn` at each client that has a message; the server gets the sealed total."""
        return self._run("sum", fn, messages).total()

    def reveal(self, total: Any) -> Any:
        """Open a sealed total (or one field of it) to the server."""
        return self.books.reveal(total)

    def _opening(self, total: Combination) -> None:
        """Take note if a total that somebody opens is of the present round."""
        names = (cells.name for _, cells in total.terms)
        self._opened |= any(sequence > self._began for _, sequence, *_ in names)

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
                "privacy.least_clients or privacy.epsilon asks that no client's part be told.",
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

    def schema(self, part: str = "train") -> Schema:
        """Return the public schema of a part."""
        return self._schemas[part]

    @property
    def schemas(self) -> Mapping[str, Schema]:
        """Return the public schema of each part that there is."""
        return self._schemas

    @property
    def states(self) -> Mapping[ClientId, Version]:
        """Return which state each site has, for a checkpoint: the states are the sites' own."""
        caller = self._caller
        return {name: Version(one, caller.sequence) for name, one in caller.versions.items()}

    def set_states(self, states: Mapping[ClientId, Version]) -> None:
        """Let every site go on from the state that it had at a checkpoint."""
        self._caller.versions = {name: states[name].exchange for name in self._clients}
        self._caller.sequence = max(one.sequence for one in states.values())

    def expect(self, algorithm: Algorithm) -> None:
        """Take note of the algorithm that trains from now on: sites know it."""

    def saved(self) -> None:
        """Take note of a checkpoint: the journal need not reach back to the one before the last."""
        if self._caller.journal is not None:
            self._caller.journal.checkpoint(self._caller.sequence)

    def begin(self, algorithm: Algorithm, options: Any) -> None:
        """Let each site make the state that it starts the experiment's algorithm with."""
        self._caller.call("stage", wire.BEGIN, dict.fromkeys(self._clients, b""))

    def _run(self, kind: Literal["ask", "sum"], fn: ClientFunction, messages: Messages) -> Exchange:
        exchange = Exchange(self.books, kind, fn, addressed(self, fn, messages))
        bodies: dict[ClientId, bytes] = {}
        written: dict[int, bytes] = {}  # of messages with nothing sealed: the same for all
        for client, message in exchange.messages.items():
            sealed = exchange.split(client).sealed
            if sealed:
                for total in sealed.values() if self._locked is not None else ():
                    self._opening(total.content)
                asked = exchange.asked
                own = {name: self._share(client, total, asked) for name, total in sealed.items()}
                bodies[client] = codec.encode(evolve(message, **own))
                continue
            if id(message) not in written:
                written[id(message)] = codec.encode(message)
            bodies[client] = written[id(message)]
        if not bodies:
            return exchange.end()
        try:
            answers = self._caller.call(
                kind,
                wire.function_name(fn, self._algorithm),
                bodies,
                part=fn.part,
                round=self.books.round,
                exchange=self.books.exchange,
            )
        except ConvergenceError as problem:
            raise self._replies.diverged(problem) from None
        found: dict[ClientId, Any] = {}
        for client, answer in answers.items():
            exchange.down += answer.down
            if kind == "sum" and self._locked is not None:
                sealed = _decoded(client, fn.name, wire.SealedReply, answer.body, *RECORDS)
                found[client] = self._replies.restored(client, fn, sealed, self._locked)
            else:
                found[client] = _decoded(client, fn.name, fn.reply, answer.body)
                self._replies.check(client, fn, found[client], summed=kind == "sum")
        if kind == "sum":
            fields = {k: one if isinstance(one, dict) else vars(one) for k, one in found.items()}
            self._replies.check_alike(fn, fields)
        for client, one in found.items():
            if isinstance(one, dict):
                exchange.take_sealed(client, one, answers[client].up)
            else:
                exchange.take(client, one)
        return exchange.end()

    def _share(self, client: ClientId, total: SealedField, asked: Collection[ClientId]) -> Any:
        """Return a client's own entries of a total, as they are sent to it."""
        if self._locked is None:
            return self._totals.own(client, total, asked)[0]
        return to_record(self._totals, self._locked.share(client, total, asked))


def _decoded(client: ClientId, function: str, kind: type, body: bytes, *others: type) -> Any:
    """Return what a site answers; SiteError where it is of another class."""
    try:
        return wire.decode_as(kind, body, *others)
    except CodecError as problem:
        raise malformed(client, function, "reply", problem) from None


class _Owners:
    """Asks sites to open cells of totals, and to seal them under another name."""

    def __init__(
        self,
        caller: Caller,
        geometry: Geometry,
        sealing: Sealing,
        opening: Callable[[Combination], None],
    ) -> None:
        self._caller, self._opening = caller, opening
        self.totals = SecureTotals(geometry, sealing, caller.run, self, lambda: caller.sequence + 1)

    def is_there(self, client: ClientId) -> bool:
        """Return whether a client can be asked: one that is away cannot."""
        return client not in self._caller.away

    def opened_cells(
        self, openers: Mapping[int, ClientId], total: Combination
    ) -> dict[int, tuple[Any, int]]:
        """Return each cell as its opener opens it, and its bytes beside it."""
        return self._asked("open", openers, total, ToOpen)

    def sealed_anew(
        self, owners: Mapping[int, ClientId], total: Combination, streams: Mapping[int, Stream]
    ) -> dict[int, tuple[Piece, int]]:
        """Return each cell as its owner seals it under another name, and the bytes of it."""
        first = next(iter(streams.values()))  # all are of one field and round
        asked = partial(ToSeal, name=first.field)
        found: dict[int, tuple[Piece, int]] = {}
        for cell, (record, extra) in self._asked("seal", owners, total, asked, first.round).items():
            try:
                check_piece(record)
                piece = self.totals.piece(record)
                self.totals.adder.add(piece)
            except (TypeError, ValueError, IntarsiaError) as problem:
                raise malformed(owners[cell], "seal", f"cell {cell}", problem) from None
            if piece.stream != streams[cell] or piece.contributors != (owners[cell],):
                raise TamperedError(
                    f"{owners[cell]!r} sealed {piece.stream} where {streams[cell]} was asked for; "
                    "resume the run."
                )
            found[cell] = piece, extra
        return found

    def _asked(
        self,
        kind: wire.Kind,
        owners: Mapping[int, ClientId],
        total: Combination,
        asked: Callable[[secure.CombinationRecord, tuple[int, ...]], ToOpen | ToSeal],
        round: int = 0,
    ) -> dict[int, tuple[Any, int]]:
        self._opening(total)  # who seals a total anew opens it as well
        cells: dict[ClientId, tuple[int, ...]] = {}
        for cell, client in owners.items():
            cells[client] = (*cells.get(client, ()), cell)
        bodies = {
            client: codec.encode(asked(self.totals.record(total.restricted(mine)), mine))
            for client, mine in cells.items()
        }
        found: dict[int, tuple[Any, int]] = {}
        for client, answer in self._caller.call(kind, kind, bodies, round=round).items():
            opened = _decoded(client, kind, wire.Opened, answer.body, secure.PieceRecord)
            for name, given in (("values", opened.values), ("extra", opened.extra)):
                if type(given) is not tuple or len(given) != len(cells[client]):
                    raise malformed(client, kind, name, f"not one for each of {cells[client]}")
            for cell, value, extra in zip(cells[client], opened.values, opened.extra, strict=True):
                if type(extra) is not int or extra < 0:
                    raise malformed(client, kind, "extra", f"{str(extra)[:40]} for {cell}")
                if kind == "open":
                    wanted = shape_of(total.pieces(cell)[0][1])
                    right = type(value) is float or (
                        isinstance(value, np.ndarray) and value.dtype.kind == "f"
                    )
                    if not right or np.shape(value) != wanted:
                        what = f"{type(value).__name__} of shape {np.shape(value)}, not {wanted}"
                        raise malformed(client, kind, f"cell {cell}", what)
                    if not np.isfinite(value).all():  # sites seal none
                        raise malformed(client, kind, f"cell {cell}", "what is no number")
                found[cell] = value, extra
        return found
