"""Client of the remote engine: a site that answers the server's calls and keeps its own state.

`Site.handle` takes the bytes of a call and gives those of an answer. It runs no code that was sent:
functions are looked up by name among those of the run's algorithm. One call at a time, in order:

* Every call has a sequence number and names the state that it goes on from (by the exchange that
  made it): the one after the last call, or the one with which the round began, where it begins
  again. A server that could go back to any would mix totals of states that never were together.
* The last call, when it comes again, gets the same answer again, which is never made anew: what is
  sealed under one name is sealed once. An older one is refused.
* What a call asks must be declared by the run's algorithm (`declared`), in the site's own count of
  exchanges, which goes back with its state.
* States and the answer lie on the site's own shelf before the answer leaves, so that a site that
  was killed goes on where it was. The set-up is then done again, and must come to what it read
  before.
* Of a run that is over the last call and its answer stay, so that nothing of it is taken again.
* Every call is written down before its answer leaves: `site_entries` says what.
* What was released with noise is counted in a ledger apart from the shelf. It goes back with no
  state and no folder of a run: a call that would release more than was accounted for is refused.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Protocol

from intarsia.core.block import Block, ClientId
from intarsia.core.client_functions import Layout, RandomKey, SecretKey, evolve
from intarsia.core.disclosure import Sends
from intarsia.core.schema import Schema
from intarsia.engines import codec
from intarsia.engines.communication_log import RECORDS
from intarsia.engines.release_ledger import ReleaseLedger
from intarsia.engines.remote import site_entries, wire
from intarsia.engines.remote.declared import NO_SUMS, Declared, Summed, Sums
from intarsia.engines.remote.site_entries import Entry
from intarsia.engines.remote.wire import Answer, Call
from intarsia.engines.sums.plain import from_record, to_record
from intarsia.engines.sums.sealed import SealedRecord, layouts
from intarsia.engines.sums.secure import REFRESH, CombinationRecord, SecureTotals, told_alike
from intarsia.errors import (
    CheckpointError,
    CodecError,
    IntarsiaError,
    RefusedError,
    ReplayError,
    StaleError,
    VersionError,
)
from intarsia.privacy.secure_aggregation.protocol import Sealing, Stream

_INDEX, _DESCRIBED = "index", "table"
# errors after which what the site has of the run in memory is as it was before the call
_HARMLESS = ("ReplayError", "StaleError", "CodecError", "BusyError", "PendingError")


_BUSY: Final = 60.0  # seconds of a call during which another job's process may work, unsaid


class StateStore(Protocol):
    """Where a site keeps what it has of one run; what is written is replaced as a whole."""

    def read(self, name: str) -> bytes | None:
        """Return what lies under a name, None if nothing does."""

    def write(self, name: str, data: bytes) -> None:
        """Put something under a name, and come back when it is durable."""

    def remove(self, name: str) -> None:
        """Take away what lies under a name, if anything does."""


class Workplace(Protocol):
    """What a client has of one run: its blocks, and the functions that may be called on them."""

    seed: int
    schemas: Mapping[str, Schema]
    sealing: Sealing | None
    states: tuple[type, ...]  # the dataclasses that its states may hold
    fingerprint: bytes  # of what the set-up has read so far; b"": nothing
    described: bytes  # of the table that it read, by which `changes` tells; b"": nothing
    told: tuple[str, ...]  # what the last step of the set-up told the server, in words

    def declared(self) -> Declared:
        """Return what the server may ask; StaleError before the set-up has come to that."""

    def block(self, part: str) -> Block:
        """Return the client's block of a part."""

    def enter(self, call: Call) -> None:
        """Make ready for a call, in the thread that does it, with as many threads as the run says.

        Raises
        ------
        PolicyError
            If the owner does not allow it.
        """

    def stage(self, name: str, state: Any, message: bytes) -> tuple[Any, bytes]:
        """Do a step of the set-up, which may change the blocks; return the state and a reply."""

    def changes(self, described: bytes) -> str:
        """Return what the table has otherwise than one described so, in words; "": not known."""


@dataclass(frozen=True)
class Index:
    """What is on a shelf."""

    sequence: int = 0  # of the last call
    base: int = 0  # of the state that it went on from
    digest: bytes = b""  # of its bytes
    versions: tuple[int, ...] = (0,)  # exchanges that made the states that are kept; 0: none
    places: tuple[int, ...] = (0,)  # under which numbers they lie: an unchanged one lies once
    stages: tuple[int, ...] = ()  # exchanges that were steps of the set-up
    bases: tuple[int, ...] = ()  # of the states that these went on from
    answer: bytes = b""  # to the last call
    fingerprint: bytes = b""  # of what the set-up has read
    sums: str = ""  # that the client was in
    anchor: int = 0  # of the state which the round began with


class Site:
    """A client of runs, over calls and answers as bytes.

    Each run has another secret below the site's own: the server chooses the seed, and may choose
    one twice.
    """

    def __init__(
        self,
        client: ClientId,
        shelf: Callable[[str], StateStore],  # of a run by its id, which is hex digits
        workplace: Callable[[], Workplace],  # makes a new one, whose set-up has not begun
        secret: Callable[[], SecretKey],  # the site's own, the same whenever it is asked
        ledger: Callable[[str], ReleaseLedger],  # of what it released with noise in a run
        report: Callable[[Exception], None] = lambda _: None,  # gets errors in full, for its log
        # keeps other processes from the shelves meanwhile; BusyError where one works there
        alone: Callable[[], AbstractContextManager[None]] = nullcontext,
        # writes down every call that is answered or refused, before the answer leaves
        record: Callable[[Entry], None] = lambda _: None,
    ) -> None:
        self._alone, self._record = alone, record
        self._client, self._shelf, self._workplace, self._report = client, shelf, workplace, report
        self._secret, self._ledger = secret, ledger
        self._lock = threading.Lock()
        self._run: _Run | None = None
        self._busy = b"", 0.0  # the last call that another process kept from here, and since when

    @property
    def client(self) -> ClientId:
        """Return the client's name."""
        return self._client

    def handle(self, data: bytes) -> bytes:
        """Return the bytes of the answer to a call; what goes wrong is in the answer."""
        with self._lock:
            call = Call("", 0, 0, 0, 0, 0, "", "", "", (), b"")
            try:
                found = codec.decode(data, Call, wire.Version)
                if isinstance(found, wire.Version) and not wire.odd_field(found, wire.Version):
                    raise VersionError(
                        f"The server has {found}, and this site {wire.Version()}, which do not go "
                        f"together; install intarsia {wire.shown(found.package)} of the server's "
                        "people here, and start the site again."
                    )
                if odd := wire.odd_field(found, Call):
                    raise CodecError(f"No call of this version came ({odd}).")
                call = found
                with self._alone():
                    return self._of(call.run).answer(call, data)
            except Exception as error:  # whatever it is, only its class and our sentence leave
                name, sentence = wire.sentence_of(error)
                # zeros, or no bytes, ask whether the site is there, and for its version; what is
                # pending is asked every second
                asks = data == bytes(len(data))
                waits = name == "PendingError" or (name == "BusyError" and not self._late(data))
                if not asks and not waits:
                    self._report(error)
                    self._refuse(call, data, error)
                if name not in _HARMLESS:
                    self._run = None  # a call that was broken off may have changed it in part
                body = codec.encode(wire.Version()) if asks else b""
                return codec.encode(
                    Answer(call.run, self._client, call.sequence, name, sentence, 0, 0, body)
                )

    def _late(self, data: bytes) -> bool:
        """Return, once, that another process has kept a call from here for long.

        It comes again and again; of two jobs at once each waits while the other one computes.
        """
        own, now = _digest(data), time.monotonic()
        if self._busy[0] != own:
            self._busy = own, now
        late = now - self._busy[1] >= _BUSY
        if late:
            self._busy = own, math.inf
        return late

    def _refuse(self, call: Call, data: bytes, error: Exception) -> None:
        """Write down that a call is refused; a disk that is full is told of as the error was."""
        try:
            self._record(site_entries.of_refusal(call, data, error))
        except OSError as problem:
            self._report(problem)

    def _of(self, run: str) -> _Run:
        if not run or len(run) > 64 or set(run) - set("0123456789abcdef"):
            raise StaleError(f"The run {run[:80]!r} is no name of a run; hex digits were expected.")
        if self._run is None or self._run.name != run or not self._run.current:
            secret = self._secret().fold_in("run", run)
            kept = self._shelf(run), self._ledger(run)
            self._run = _Run(self._client, run, *kept, self._workplace, secret, self._record)
        return self._run


class _Run:
    """What a site has of one run."""

    def __init__(
        self,
        client: ClientId,
        name: str,
        shelf: StateStore,
        ledger: ReleaseLedger,
        make: Callable[[], Workplace],
        secret: SecretKey,
        record: Callable[[Entry], None],
    ) -> None:
        self.name, self._record = name, record
        self._entry: Entry = {}  # of the present call
        self._secret, self._ledger = secret, ledger
        self._client, self._shelf, self._make = client, shelf, make
        written = shelf.read(_INDEX)
        self._written = _digest(written)
        self._index = Index() if written is None else self._read(written, Index)
        kept = self._index.sums
        self._sums = Sums.of(kept) if kept else NO_SUMS
        self._states: dict[int, Any] = {}
        self._place: Workplace | None = None
        self._totals: SecureTotals | None = None
        self._number = 0  # of the present call

    @property
    def current(self) -> bool:
        """Return whether the shelf is as this left it: another process may have gone on since."""
        return _digest(self._shelf.read(_INDEX)) == self._written

    def answer(self, call: Call, data: bytes) -> bytes:
        """Return the answer to a call: the one given before, where the call comes again.

        Raises
        ------
        ReplayError
            If the site has gone on since, or the call of this number was another one.
        StaleError
            If the site has not the state that the call goes on from.
        CheckpointError
            If the set-up, done again, does not come to what it came to before.
        """
        index = self._index
        digest = _digest(data)
        again = call.sequence == index.sequence
        if call.sequence < index.sequence or (again and digest != index.digest):
            raise ReplayError(
                f"Call {call.sequence} came after call {index.sequence} of run {self.name}; the "
                "site has gone on: resume the run, or start a new one."
            )
        if again:
            self._record({"event": "repeated", **site_entries.of_call(call, data)})
            return index.answer
        if call.base not in (index.sequence, index.anchor) or call.base not in index.versions:
            raise StaleError(
                f"Call {call.sequence} goes on from exchange {call.base}, but the site is at "
                f"exchange {index.sequence}, and goes back to {index.anchor} alone: its folder was "
                "lost, or the run is over; start a new one."
            )
        if call.anchor not in (index.anchor, call.base):
            raise StaleError(
                f"Call {call.sequence} says that its round began with exchange {call.anchor}, and "
                f"the site knows {index.anchor}; run the algorithm as it is at the server."
            )
        if self._sums.failed not in ("", _asked(call)):
            raise RefusedError(
                f"An answer to call {index.sequence + 1} of run {self.name} could not be made, and "
                "whether another one can would tell values; start a new run."
            )
        place, back = self._ready(), call.base != index.sequence
        if back and call.kind == "stage" and call.function != wire.KEEP:
            raise RefusedError(
                f"Call {call.sequence} goes back to exchange {call.base} by the step "
                f"{call.function[:80]!r} of the set-up, which comes before every round; resume the "
                "run as it is at the server."
            )
        if back and place.declared().complete:
            raise RefusedError(
                f"Call {call.sequence} goes back to exchange {call.base}, and a round in which all "
                "clients take part does not begin again; resume the run as it is at the server."
            )
        before = self._state(call.base, place)
        self._sums = self._sums.back_to(call.base)
        self._entry = {"event": "answered", **site_entries.of_call(call, data)}
        after, body, down, up = self._done(call, data, place, before)
        made = Answer(self.name, self._client, call.sequence, "", "", down, up, body)
        self._record({**self._entry, "bytes": len(body)})
        if call.kind == "stage" and call.function == wire.KEEP:
            self._end(call, data, codec.encode(made))
        else:
            self._keep(call, data, before, after, place, codec.encode(made))
        return self._index.answer

    def _read(self, written: bytes, *classes: type) -> Any:
        """Return what lies on the shelf; CheckpointError where it was altered there."""
        try:
            return codec.decode(written, *classes)
        except CodecError as problem:
            raise CheckpointError(
                f"What the site's folder has of run {self.name} is damaged ({problem}); put back a "
                "copy, or start a new run."
            ) from None

    def _state(self, version: int, place: Workplace) -> Any:
        if version not in self._states:
            number = self._index.places[self._index.versions.index(version)]
            if not number:
                return None
            written = self._shelf.read(f"state-{number}")
            if written is None:
                raise CheckpointError(
                    f"The state of exchange {version} is gone from the site's folder of run "
                    f"{self.name}; put the folder back, or start a new run."
                )
            self._states[version] = self._read(written, *place.states, *RECORDS)
        return self._states[version]

    def _keep(
        self, call: Call, data: bytes, before: Any, after: Any, place: Workplace, answer: bytes
    ) -> None:
        """Put what a call came to on the shelf, and take away what no call can go back to."""
        index = self._index
        places = dict(zip(index.versions, index.places, strict=True))
        steps = list(zip(index.stages, index.bases, strict=True))
        if call.kind == "stage":
            self._shelf.write(f"stage-{call.sequence}", data)
            if place.described and not steps:
                self._shelf.write(_DESCRIBED, place.described)
            steps.append((call.sequence, call.base))
        if after is before:
            places[call.sequence] = places[call.base]
        else:
            self._shelf.write(f"state-{call.sequence}", codec.encode(after))
            places[call.sequence] = call.sequence
        bases = tuple(base for _, base in steps)
        recent = {call.anchor, call.base, call.sequence}
        versions = tuple(sorted({*recent, *bases} & places.keys()))
        new = Index(
            call.sequence,
            call.base,
            _digest(data),
            versions,
            tuple(places[one] for one in versions),
            tuple(number for number, _ in steps),
            bases,
            answer,
            place.fingerprint,
            "" if self._sums is NO_SUMS else self._sums.to_text(),
            call.anchor,
        )
        self._put(new)
        self._states[call.sequence] = after
        self._states = {one: state for one, state in self._states.items() if one in recent}

    def _end(self, call: Call, data: bytes, answer: bytes) -> None:
        """Keep the last call of a run and its answer, and nothing else."""
        self._put(Index(call.sequence, call.base, _digest(data), (), (), answer=answer))
        self._shelf.remove(_DESCRIBED)
        self._states, self._place, self._totals = {}, None, None

    def _put(self, new: Index) -> None:
        before, written = self._index, codec.encode(new)
        self._shelf.write(_INDEX, written)
        self._written, self._index = _digest(written), new
        for number in {*before.places} - {*new.places}:
            self._shelf.remove(f"state-{number}")
        for number in {*before.stages} - {*new.stages}:
            self._shelf.remove(f"stage-{number}")

    def _ready(self) -> Workplace:
        """Return the workplace as the last call left it: its set-up is done again if need be."""
        if self._place is not None:
            return self._place
        place = self._make()
        for number in self._index.stages:
            written = self._shelf.read(f"stage-{number}")
            if written is None:
                raise CheckpointError(
                    f"Step {number} of the set-up is gone from the site's folder of run "
                    f"{self.name}; put the folder back, or start a new run."
                )
            call = self._read(written, Call)
            place.enter(call)
            try:
                place.stage(call.function, self._state(call.base, place), call.body)
            except RefusedError as problem:  # of a step that was not refused before
                raise self._other_table(place) from problem
        if place.fingerprint != self._index.fingerprint:
            raise self._other_table(place)
        self._place = place
        return place

    def _other_table(self, place: Workplace) -> CheckpointError:
        """Return that the table is another one, and how: the site alone reads that sentence."""
        described, changes = self._shelf.read(_DESCRIBED), ""
        if described is not None and place.described:
            with suppress(CodecError):  # it is damaged, and tells nothing
                changes = place.changes(described)
        return CheckpointError(
            f"The site's table is not the one that run {self.name} was set up with"
            f"{changes and f' ({changes})'}; put that back and resume the run, or start a new run."
        )

    def _done(
        self, call: Call, data: bytes, place: Workplace, state: Any
    ) -> tuple[Any, bytes, int, int]:
        """Return the state after a call, the body of the answer, and the bytes both ways."""
        place.enter(call)
        if call.kind == "stage":
            after, reply = place.stage(call.function, state, call.body)
            self._totals = None  # the schemas may be new
            self._entry["told"] = list(place.told)
            return after, reply, len(call.body), len(reply)
        if call.kind in ("open", "seal"):
            return state, self._opened(call, place), 0, 0
        if call.kind not in ("ask", "sum"):
            raise StaleError(f"A call of kind {call.kind!r} is not known to this version.")
        one = place.declared().sends(call)
        fn = one.function
        message = wire.decode_as(fn.message, call.body, *RECORDS)
        opened, extra = self._message(call, one, message, place, state)
        words = (place.seed, call.round, call.exchange, self._client, fn.stream or fn.name)
        key: Any = self._secret.fold_in(*words) if fn.secret else RandomKey(words)
        if fn.releases:
            parts = codec.encode(state), data
            key = self._ledger.key(self._client, self._secret, RandomKey(words), parts)
            self._ledger.settle()
        if one.once or one.once_for:  # that it fails may tell as much as an answer
            self._put(replace(self._index, sums=self._sums.to_text()))
        try:
            after, body, up = self._replied(call, one, message, opened, place, state, key)
        except Exception as error:
            if isinstance(error, IntarsiaError):
                error.add_note(f"at client {self._client!r} in {fn.name}, round {call.round}")
            if place.sealing is not None and not isinstance(error, OSError | MemoryError):
                self._sums = replace(self._sums, failed=_asked(call))
                self._put(replace(self._index, sums=self._sums.to_text()))
            raise
        return after, body, extra + codec.size(opened), up

    def _replied(
        self,
        call: Call,
        one: Sends,
        message: Any,
        opened: Any,
        place: Workplace,
        state: Any,
        key: Any,
    ) -> tuple[Any, bytes, int]:
        """Return the state after a client function, the body of the answer, and its bytes."""
        fn = one.function
        after, reply = fn.answer(state, place.block(fn.part), opened, key)
        if place.sealing is not None:
            model = state, *(getattr(opened, name) for name, _ in one.takes)
            self._sums = place.declared().check_number(one, reply, model, call, self._sums)
            self._sums = place.declared().with_told(one, message, call, self._sums)
        if call.kind == "ask" or place.sealing is None:
            body = codec.encode(reply)
            protection = "none: asked for" if call.kind == "ask" else "none: the mode is plain"
            self._entry["left"] = site_entries.of_reply(one, reply, protection)
            return after, body, len(body)
        before: Any = None
        if fn.told_before is not None:
            before = fn.told_before(after, place.block(fn.part))
        if told := place.declared().told_before(fn, call, self._sums):
            before = (before, told)
        sealed, up = self._sealed(call, one, message, reply, place, before)
        return after, codec.encode(sealed), up

    def _message(
        self, call: Call, one: Sends, message: Any, place: Workplace, state: Any
    ) -> tuple[Any, int]:
        """Return a message with the site's own entries of its totals, and the bytes beside them.

        Raises
        ------
        RefusedError
            If the algorithm does not declare them.
        """
        if place.sealing is not None:
            # one without a number is no other round, as the owner's count of a day has it
            said = replace(call, round=max(call.round, 1))
            rounds = self._sums.rounds.after(said, repeats=one.repeats)
            known, written = replace(self._sums, rounds=rounds), partial(codec.encode, state)
            self._sums = place.declared().check_ended(one, message, call, known, written)
            place.declared().check_asked(one, message, call)
            place.declared().check_clear(message)
            place.declared().check_readable(one, message)
        own = getattr(message, "__dict__", {})
        sealed = {name: one for name, one in own.items() if isinstance(one, SealedRecord)}
        if not sealed:
            return message, 0
        totals, found, size = self._locked(place), {}, 0
        for name, record in sealed.items():
            total = from_record(totals, record)
            place.declared().check_message(one, name, total, self._sums, call)
            found[name], extra = totals.own(self._client, total, call.asked)
            self._note_opened(
                f"{type(message).__name__}.{name}", self._client, record.value, place.declared()
            )
            size += extra
        return evolve(message, **found), size

    def _note_opened(
        self, field: str, reader: str, record: CombinationRecord, declared: Declared
    ) -> None:
        """Note for the log that a total is opened: of what, and to whom."""
        opened = {"field": field, "to": reader, "of": site_entries.of_total(record, declared)}
        self._entry.setdefault("opened", []).append(opened)

    def _sealed(
        self, call: Call, one: Sends, message: Any, reply: Any, place: Workplace, before: Any
    ) -> tuple[wire.SealedReply, int]:
        """Return a reply with each field sealed, and its bytes.

        `before` is what clients are to have been told alike in calls before; None: nothing.
        """
        totals, fn = self._locked(place), one.function
        self._number = call.sequence
        # the server tells all the same, or nothing adds up with what this site seals
        told = told_alike(fn, vars(message), before)
        collector = totals.collector(fn, call.round, call.asked, told)
        up = collector.add(self._client, reply)
        total, sent = collector.total(), reply.__dict__
        kept = [(name, layout) for name, layout in layouts(fn.reply) if sent[name] is not None]
        own = Summed(
            *(call.sequence, call.round, fn.part, call.asked), frozenset(name for name, _ in kept)
        )
        self._sums = self._sums.add(fn.name, own)
        self._entry["left"] = site_entries.of_sealed(one, reply, total, totals.mode)
        return wire.SealedReply(
            {k: to_record(totals, total.by_field[k]) for k, it in kept if it is not Layout.COUNTS},
            {k: sent[k] for k, it in kept if it is Layout.COUNTS},
        ), up

    def _opened(self, call: Call, place: Workplace) -> bytes:
        """Open a cell of a total to the server, or seal it under another name."""
        totals = self._locked(place)
        self._number = call.sequence
        asked = codec.decode(call.body, wire.ToOpen, wire.ToSeal, *RECORDS)
        total = totals.restored(asked.total)
        name = asked.name if isinstance(asked, wire.ToSeal) else ""
        place.declared().check_opening(total, asked.cells, self._sums, call, name)
        if not name and place.declared().ends(total):
            self._sums = replace(self._sums, ended=True)
        mine = dict.fromkeys(asked.cells, self._client)
        reader = self._client if name else "server"
        self._note_opened(name, reader, asked.total, place.declared())
        if isinstance(asked, wire.ToOpen):
            opened = totals.opened_cells(mine, total)
            values, extra = zip(*(opened[cell] for cell in asked.cells), strict=True)
            return codec.encode(wire.Opened(values, extra))
        names = {
            cell: Stream(self.name, call.sequence, call.round, REFRESH, asked.name, cell)
            for cell in asked.cells
        }
        found = totals.sealed_anew(mine, total, names)
        pieces, extra = zip(*(found[cell] for cell in asked.cells), strict=True)
        return codec.encode(wire.Opened(tuple(totals.piece_record(one) for one in pieces), extra))

    def _locked(self, place: Workplace) -> SecureTotals:
        if place.sealing is None:
            raise StaleError("A sealed total came in a run whose sums are not sealed.")
        if self._totals is None:
            self._totals = SecureTotals(
                *(place.declared().geometry, place.sealing, self.name),
                number=lambda: self._number,
            )
        return self._totals


def _asked(call: Call) -> str:
    """Return what tells what a call asks, and of which state, from others."""
    asked = call.base, call.round, call.function, call.part, call.kind, call.asked, call.body
    return _digest(codec.encode(asked)).hex()


def _digest(data: bytes | None) -> bytes:
    """Return what tells bytes from others; b"" of nothing."""
    return b"" if data is None else hashlib.blake2b(data, digest_size=16).digest()
