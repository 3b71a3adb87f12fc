"""Calls of the server to sites, in parallel, with retries and a deadline.

A `Transport` carries bytes and promises nothing: it may lose, delay, repeat and alter them. What a
call came to is the same in spite of it, since a site executes each call once.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, Protocol

from intarsia.core.block import ClientId
from intarsia.engines import codec
from intarsia.engines.remote.given_up import within
from intarsia.engines.remote.replies import checked, checked_answer
from intarsia.engines.remote.server_journal import Journal
from intarsia.engines.remote.wire import Answer, Call, Kind, Version, raised
from intarsia.errors import (
    AbsentError,
    CodecError,
    ExperimentError,
    PendingError,
    VersionError,
    listed,
)


class Transport(Protocol):
    """Carries bytes to a site and back."""

    def send(self, client: ClientId, data: bytes, seconds: float) -> bytes:
        """Return what a site answers; OSError (TimeoutError too) if nothing came in time."""


@dataclass(frozen=True)
class RetryPolicy:
    """How long the server waits for a site, and what it does without it."""

    seconds: float = 60.0  # for the answer to one attempt
    deadline: float = 600.0  # for an exchange, all attempts together
    absent: Literal["wait", "continue"] = "wait"  # wait: the run stops at the deadline
    quorum: int = 1  # sites without which a round is not run
    probe: float = 2.0  # seconds in which a site that was away must answer to come back
    pause: float = 0.05  # before the first new attempt; doubles up to a second

    def __post_init__(self) -> None:
        for name in ("seconds", "deadline", "probe", "pause"):
            if not getattr(self, name) > 0:
                raise ExperimentError(
                    f"{name} is {getattr(self, name)}; it must be above 0 seconds."
                )
        if self.quorum < 1:
            raise ExperimentError(f"quorum is {self.quorum}; a round needs at least one site.")
        if self.absent not in ("wait", "continue"):
            raise ExperimentError(
                f'absent is {self.absent!r}; it must be "wait" or "continue" (without the site).'
            )


class Caller:
    """Calls sites, and knows which state each of them is in."""

    def __init__(
        self,
        run: str,  # its id, hex digits: sites keep their states under it
        clients: Sequence[ClientId],
        transport: Transport,
        patience: RetryPolicy,
        journal: Journal | None = None,  # what was answered before; None: nothing is written
        # told which sites wait for their owners to decide, and of nobody when none does any more
        pending: Callable[[Mapping[ClientId, str]], None] = lambda _: None,
    ) -> None:
        self._pending, self._waiting = pending, dict[ClientId, str]()
        self._waiting_lock = threading.Lock()
        self.run, self.clients, self.patience = run, tuple(clients), patience
        self.journal = journal
        self.refused: list[str] = []  # in sentences: owners refused the run, which goes on
        self.sequence = 0
        self.versions: dict[ClientId, int] = dict.fromkeys(self.clients, 0)
        self.away: set[ClientId] = set()
        self._anchors = dict(self.versions)
        self._asked: dict[ClientId, bytes] = {}  # what tells the calls of the last exchange
        self._transport = transport

    def anchor(self) -> None:
        """Mark where every site is: a round begins."""
        self._anchors = dict(self.versions)

    def go_back(self) -> None:
        """Let every site go on from where it was when the round began."""
        self.versions = dict(self._anchors)

    def go_on_without(self, absent: Collection[ClientId]) -> None:
        """Leave out sites that did not answer the last call, until they are back.

        Every other goes back to where it was when the round began.
        """
        self.away.update(absent)
        for client in absent:
            self._note_pending(client, "")
        self.go_back()
        if self.journal is not None:
            for client in absent:
                self.journal.add(self.sequence, client, self._asked[client], b"")
            self.journal.settle()

    def call(
        self,
        kind: Kind,
        function: str,
        bodies: Mapping[ClientId, bytes],
        *,
        part: str = "train",
        round: int = 0,
        exchange: int = 0,
        refusable: bool = False,
    ) -> dict[ClientId, Answer]:
        """Return the answers of the sites that are called, in their order.

        `refusable`: the run goes on without sites whose owners refuse it, if its quorum is left and
        it goes on without sites at all.

        Raises
        ------
        PolicyError
            If a site's owner refuses, and the run does not go on without it.
        PendingError
            If owners do not decide before the deadline.
        AbsentError
            If some do not answer before the deadline.
        CheckpointError
            If the journal has answers to other calls.
        IntarsiaError
            What a site answers with.
        """
        self.sequence += 1
        self._asked = {}
        asked = tuple(bodies)
        calls: dict[ClientId, Call] = {}
        for client, body in bodies.items():
            base, anchor = self.versions[client], self._anchors[client]
            calls[client] = Call(
                *(self.run, self.sequence, base, anchor, round, exchange),
                *(kind, function, part, asked, body),
            )
        found = self._replay(calls)
        refused = {client for client, one in found.items() if one is None} if refusable else set()
        self.refused += [
            f"Site {client!r}: its owner refused the run before." for client in refused
        ]
        left = {client: one for client, one in calls.items() if client not in found}
        found |= self._send(left, len(asked) - len(refused) if refusable else 0)
        if refusable:
            refused |= self._refusing(found)
            asked = tuple(client for client in asked if client not in refused)
            self.clients = tuple(client for client in self.clients if client not in refused)
        answers = {client: one for client in asked if (one := found[client]) is not None}
        for answer in answers.values():
            if answer.error:
                raise raised(answer, function)
        if self._waiting:
            raise PendingError(" ".join(self._waiting.values()), tuple(self._waiting))
        if len(answers) < len(asked):
            raise _absent(
                asked - answers.keys(),
                f"answer to {function} (exchange {self.sequence}) within",
                self.patience,
            )
        for client in asked:
            self.versions[client] = self.sequence
        return answers

    def _refusing(self, found: Mapping[ClientId, Answer | None]) -> set[ClientId]:
        """Return whose owners refuse, where the run goes on without them; write that down."""
        said = {
            client: one
            for client, one in found.items()
            if one is not None and one.error == "PolicyError"
        }
        left = sum(one is not None for one in found.values()) - len(said)
        if self.patience.absent != "continue" or left < self.patience.quorum:
            return set()
        for client, answer in said.items():
            self.refused.append(str(raised(answer, "")))
            if self.journal is not None:
                self.journal.add(self.sequence, client, self._asked[client], b"")
        if said and self.journal is not None:
            self.journal.settle()
        return set(said)

    def _note_pending(self, client: ClientId, sentence: str) -> None:
        """Take note that a site waits for its owner; "": it does no longer."""
        with self._waiting_lock:
            if self._waiting.get(client, "") == sentence:
                return
            self._waiting.pop(client, None)
            if sentence:
                self._waiting[client] = sentence
            self._pending(dict(self._waiting))

    def _replay(self, calls: Mapping[ClientId, Call]) -> dict[ClientId, Answer | None]:
        """Return the answers that the journal has; None where the run went on without a site."""
        found: dict[ClientId, Answer | None] = {}
        for client, call in calls.items() if self.journal is not None else ():
            assert self.journal is not None
            self._asked[client] = _content(call)
            known = self.journal.answer(call.sequence, client, self._asked[client])
            if known is not None:
                found[client] = codec.decode(known, Answer) if known else None
        return found

    def _send(
        self, calls: Mapping[ClientId, Call], refusable: int
    ) -> dict[ClientId, Answer | None]:
        """Call sites, all at once; return their answers, None where there is none in time.

        A refusal with which the run ends is told once each site was tried: it waits neither for
        owners to decide nor for sites that are away. `refusable`: how many are asked where some may
        refuse; 0: none may.
        """
        end = time.monotonic() + self.patience.deadline
        progress = threading.Event()
        waiting = {
            client: _Attempts(
                *(self._transport, client, call, self.patience, self._note_pending, progress)
            )
            for client, call in calls.items()
        }
        may_go = refusable - self.patience.quorum if self.patience.absent == "continue" else 0
        for attempts in waiting.values():
            attempts.start(end)
        found: dict[ClientId, Answer | None] = {}
        try:
            while not all(one.done for one in waiting.values()):
                refusals = sum(one.refused for one in waiting.values())
                tried = all(one.tried for one in waiting.values())
                first = next((one for one in waiting.values() if one.failed or not one.done), None)
                if first is None:
                    break  # the last one has answered since
                if first.failed or (tried and refusals > max(0, may_go)):
                    break
                if not progress.wait(max(0.0, end - time.monotonic())):
                    break
                progress.clear()
            for client, attempts in waiting.items():
                found[client] = self._record(client, attempts.result())
        finally:
            for attempts in waiting.values():
                attempts.give_up()  # where one raises, nobody waits for the others
        if self.journal is not None:
            self.journal.settle()
        return found

    def _record(self, client: ClientId, found: tuple[Answer, bytes] | None) -> Answer | None:
        """Return an answer; write it down, if it is no error."""
        if found is None:
            return None
        if self.journal is not None and not found[0].error:
            self.journal.add(self.sequence, client, self._asked[client], found[1])
        return found[0]

    def wait_for(self, wanted: Collection[ClientId], count: int) -> None:
        """Wait until so many of some sites are there, others being away or not.

        Raises
        ------
        AbsentError
            If they are not, within the deadline.
        """
        self._wait_for_return(lambda: sum(client not in self.away for client in wanted) >= count)
        if self.journal is not None:
            self.journal.leave_out(self.sequence + 1, self.away)
            self.journal.settle()

    def probe(self, *, wait: bool) -> None:
        """Ask the sites that were away whether they are there again; wait: until all are.

        Who was left out from here on before the process ended, as the journal says, is so again.

        Raises
        ------
        AbsentError
            If one does not answer within the deadline.
        """
        journal, following = self.journal, self.sequence + 1
        known = None if journal is None else journal.away(following)
        if known is not None and not wait:
            self.away = known  # what is done again goes as it went
            return
        asked = bool(self.away)
        self._wait_for_return(lambda: not wait)
        if asked and journal is not None and not wait:
            journal.leave_out(following, self.away)  # nobody: all came back
            journal.settle()

    def _wait_for_return(self, enough: Callable[[], bool]) -> None:
        """Ask those that are away until nobody is, or enough are there."""
        end = time.monotonic() + self.patience.deadline
        pause = threading.Event()
        while self.away:
            self.away = {client for client in sorted(self.away) if not self._answers(client)}
            if not self.away or enough():
                return
            if time.monotonic() > end:
                raise _absent(self.away, "come back within", self.patience)
            pause.wait(min(1.0, self.patience.deadline / 10))

    def _answers(self, client: ClientId) -> bool:
        found = _version(self._transport, client, self.patience.probe)
        if found is not None:
            self._check_versions({client: found})
        return found is not None

    def compare_versions(self) -> tuple[str, ...]:
        """Return in sentences whose version differs from the server's, and goes together with it.

        Sites that do not answer are passed over: they are asked when they are back.

        Raises
        ------
        VersionError
            If a site's version does not go together with the server's.
        """
        with ThreadPoolExecutor(max(1, len(self.clients))) as pool:
            ask = partial(_version, self._transport, seconds=self.patience.seconds)
            found = dict(zip(self.clients, pool.map(ask, self.clients), strict=True))
        known = {client: one for client, one in found.items() if one is not None}
        self._check_versions(known)
        own = Version()
        return tuple(
            f"Site {client!r} has {one}, and the server {own}, which go together."
            for client, one in known.items()
            if one != own
        )

    def _check_versions(self, found: Mapping[ClientId, Version]) -> None:
        own = Version()
        others = {client: one for client, one in found.items() if not one.fits(own)}
        for client in others:  # so that its own log says what differs
            with contextlib.suppress(OSError):
                _asked(self._transport, client, codec.encode(own), self.patience.seconds)
        if others:
            have = ", ".join(f"site {client!r} has {one}" for client, one in others.items())
            # of a checkout the package's number may be the same, and the calls others
            raise VersionError(
                f"The server has {own}, and {have}; install the server's intarsia {own.package} at "
                f"{listed(others)}, then let the run go on with `intarsia federation resume`."
            )


def _version(transport: Transport, client: ClientId, seconds: float) -> Version | None:
    """Return the version of a site, None if it does not answer."""
    try:
        # no call: the site refuses it, and has said that it is there
        said = codec.decode(_asked(transport, client, b"", seconds), Answer)
        body = checked_answer(client, "version", said).body
        found = codec.decode(body, Version) if body else Version("", 0)
    except (OSError, CodecError):
        return None
    return checked(Version, client, "version", found)


def _asked(transport: Transport, client: ClientId, data: bytes, seconds: float) -> bytes:
    """Return what a site answers in time, also where a transport waits as long as bytes come.

    Nobody else looks at the clock where a site is asked whether it is there.
    """
    found: bytes = within(seconds, partial(transport.send, client, data, seconds))
    return found


def _absent(clients: Collection[ClientId], what: str, patience: RetryPolicy) -> AbsentError:
    names = tuple(sorted(clients))
    return AbsentError(
        f"{', '.join(names)} did not {what} {patience.deadline:g} seconds; see to these sites, "
        "then resume the run.",
        names,
    )


def _content(call: Call) -> bytes:
    """Return what tells a call from others: all of it but how far back the site may have to go."""
    return hashlib.blake2b(codec.encode(replace(call, anchor=0)), digest_size=16).digest()


class _Attempts:
    """Calls one site until it answers, in a thread of its own."""

    def __init__(
        self,
        transport: Transport,
        client: ClientId,
        call: Call,
        patience: RetryPolicy,
        pending: Callable[[ClientId, str], None],
        progress: threading.Event,  # set when it is done
    ) -> None:
        self._pending, self._progress = pending, progress
        self._transport, self._client, self._call = transport, client, call
        self._patience = patience
        self._found: tuple[Answer, bytes] | None = None
        self._problem: Exception | None = None
        self._done, self._given_up = threading.Event(), threading.Event()
        self.tried = False  # whether an attempt has come to its end

    def start(self, end: float) -> None:
        # a transport that hangs must not keep the process from ending
        name = f"call {self._call.sequence} to {self._client}"
        threading.Thread(target=self._run, args=(end,), name=name, daemon=True).start()

    @property
    def done(self) -> bool:
        """Return whether the site has answered, or no more attempt is made."""
        return self._done.is_set()

    @property
    def refused(self) -> bool:
        """Return whether the site's owner refuses."""
        return self.done and self._found is not None and self._found[0].error == "PolicyError"

    @property
    def failed(self) -> bool:
        """Return whether no answer can come of it."""
        return self._problem is not None

    def result(self) -> tuple[Answer, bytes] | None:
        """Return the answer and its bytes, None if there is none so far; make no more attempts."""
        self.give_up()
        if self._problem is not None:
            raise self._problem
        return self._found

    def give_up(self) -> None:
        """Make no more attempts."""
        self._given_up.set()

    def _run(self, end: float) -> None:
        try:
            data = codec.encode(self._call)
            pause = self._patience.pause
            while (left := end - time.monotonic()) > 0 and not self._given_up.is_set():
                found = self._attempt(data, min(left, self._patience.seconds))
                self.tried = True
                if found is not None:
                    self._found = found
                    break
                self._progress.set()
                self._given_up.wait(min(pause, left))
                pause = min(2 * pause, 1.0)
        except Exception as problem:  # it is raised where the answer is waited for
            self._problem, self.tried = problem, True
        self._done.set()
        self._progress.set()

    def _attempt(self, data: bytes, seconds: float) -> tuple[Answer, bytes] | None:
        """Return an answer to this call, or None where there was none that is whole."""
        try:
            raw = self._transport.send(self._client, data, seconds)
            said = codec.decode(raw, Answer)
        except (OSError, CodecError):
            return None
        call = self._call
        found = checked_answer(self._client, call.function, said)
        if (found.run, found.client, found.sequence) != (call.run, self._client, call.sequence):
            return None  # the answer to another call, or to one that was altered on its way
        if found.error == "BusyError":
            return None  # whoever works there comes to an end
        waits = found.error == "PendingError"
        if self._given_up.is_set():
            return None  # it is late, and nobody's any more
        self._pending(self._client, str(raised(found, call.function)) if waits else "")
        if waits:
            return None  # until its owner has decided
        return None if found.error == "CodecError" and not found.sequence else (found, raw)
