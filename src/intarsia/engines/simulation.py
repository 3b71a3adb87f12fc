"""Simulation engine: run every client on this machine, one after the other or on several cores.

Totals are sealed here too (reading one raises), bytes are counted as the codec would write them,
and client state lives with the engine's clients, never with the server. Clients with large tables
compute in threads; else, with several processes (`workers`), each computes for some of them. What
comes out is the same to the bit: this process seals and adds up, in the order of the clients.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any, Literal, TypeVar

from intarsia import core as fl
from intarsia.core.block import Block, ClientId
from intarsia.core.client_functions import (
    ClientFunction,
    Messages,
    NoiseKey,
    RandomKey,
    Rounding,
    SecretKey,
)
from intarsia.core.memory import keep_freed
from intarsia.core.schema import Schema
from intarsia.core.side_by_side import Threads, is_large, side_by_side
from intarsia.engines import codec
from intarsia.engines.client_host import Host, Moment, Release, groups_of, until_failure
from intarsia.engines.client_states import Needs, States
from intarsia.engines.communication_log import CommunicationLog, Exchange, Split, addressed
from intarsia.engines.release_ledger import ReleaseLedger
from intarsia.engines.sums.plain import Geometry, PlainTotals, Totals
from intarsia.engines.sums.sealed import SealedTotal
from intarsia.engines.sums.secure import SecureTotals
from intarsia.engines.transcript import Recorder
from intarsia.engines.workers import Cluster, Everywhere, Staff, Workers
from intarsia.errors import AbsentError, WorkerError
from intarsia.privacy.secure_aggregation.protocol import Sealing

R = TypeVar("R")


class Simulation:
    """The in-process engine over aligned blocks.

    Parameters
    ----------
    parts
        For each part ("train", "test"): its schema and each client's block, in any row order.
    seed
        The root of every random stream.
    sealing
        How contributions are sealed; None = not at all, for simulation and tests.
    recorder
        Takes down all that the server could read.
    states
        Where the clients' states lie; None = in memory.
    secrets
        Each client's own; None = drawn from the system, so that what rests on them comes to other
        bits in every engine.
    ledger
        What the clients released with noise; None = nothing so far.
    aligned
        Whether the blocks are in the order of the schemas, as `Schema.align` brings them.
    workers
        How many processes compute for the clients, this one among them, once an algorithm has
        begun; None: those that the machine has cores for, where that saves time.
    cluster
        Machines that compute for all clients once an algorithm has begun; None: this one does.
    accelerated
        Whether clients' networks train on an accelerator: more of them at once.
    """

    def __init__(
        self,
        parts: Mapping[str, tuple[Schema, Mapping[ClientId, Block]]],
        seed: int,
        sealing: Sealing | None = None,
        recorder: Recorder | None = None,
        states: States | None = None,
        secrets: Mapping[ClientId, SecretKey] | None = None,
        ledger: ReleaseLedger | None = None,
        aligned: bool = False,
        workers: int | None = 1,
        cluster: Cluster | None = None,
        accelerated: bool = False,
    ) -> None:
        keep_freed()
        self._seed, self._accelerated = seed, accelerated
        self._schemas = {part: schema for part, (schema, _) in parts.items()}
        names = tuple(parts["train"][0].clients)
        self._present: tuple[ClientId, ...] = names
        if secrets is None:
            secrets = {name: SecretKey.draw() for name in names}
        # not among the states: these go back to a checkpoint
        self._ledger = ReleaseLedger() if ledger is None else ledger
        self._blocks: dict[ClientId, dict[str, Block]] = {
            name: {
                part: blocks[name] if aligned else schema.align(name, blocks[name])
                for part, (schema, blocks) in parts.items()
                if name in blocks
            }
            for name in names
        }
        self._whole: dict[ClientId, Block] = {}  # training blocks with undivided values
        self._host = Host(seed, self._blocks, States() if states is None else states, secrets)
        self._host.states.begin(dict.fromkeys(names).items())
        self._staff = Staff(workers, cluster, sealed=sealing is not None)
        self._staff.look(self._blocks)
        self._threads: Threads | None = None  # in which clients with large tables compute
        # of each function, the bytes that its clients last read and sent for one of their rows'
        self._moved: dict[str, float] = {}
        self._workers: Workers | None = None  # beside this process; None: it does all
        geometry = Geometry(self._schemas)
        self._totals: Totals = (
            PlainTotals(geometry) if sealing is None else SecureTotals(geometry, sealing)
        )
        self.books = CommunicationLog(names, self._totals, recorder)

    def __getattr__(self, name: str) -> Any:
        raise fl.no_such_view(name)

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

    @property
    def spreads(self) -> bool:
        """Return whether other processes than this one may compute."""
        return self._staff.may_grow

    def ask(self, fn: ClientFunction, messages: Messages) -> dict[ClientId, Any]:
        """Run `fn` at each client that has a message; the server reads each reply."""
        return self._run("ask", fn, messages).replies

    def sum(self, fn: ClientFunction, messages: Messages) -> SealedTotal:
        """Run `fn` at each client that has a message; the server gets the sealed total."""
        return self._run("sum", fn, messages).total()

    def reveal(self, total: Any) -> Any:
        """Open a sealed total (or one field of it) to the server."""
        return self.books.reveal(total)

    def begin_round(self, number: int, present: Sequence[ClientId] | None = None) -> None:
        """Start a round with the clients that are there (None: all)."""
        self.books.begin_round(number)
        self._present = tuple(self._blocks) if present is None else tuple(present)

    def key(self, *words: int | str) -> RandomKey:
        """Return the server's random key for this round."""
        return RandomKey((self._seed, self.books.round, "server", *words))

    def client_key(self, client: ClientId) -> RandomKey:
        """Return the random key that a client's state is made with."""
        return RandomKey((self._seed, "init", client))

    def block(self, client: ClientId, part: str = "train") -> Block:
        """Return a client's block of one part (simulation and tests only)."""
        return self._blocks[client][part]

    def count_once(self, threads: int = 1) -> None:
        """Let each training value count once: divide it by its number of holders."""
        before = {client: own["train"] for client, own in self._blocks.items()}
        self.transform(_counted_once, threads)
        for client, block in before.items():
            if self._blocks[client]["train"] is not block:
                self._whole[client] = block

    def transform(self, change: Callable[[ClientId, str, Block], Block], threads: int = 1) -> None:
        """Replace every block by what `change(client, part, block)` makes of it, at its client.

        Several threads do so for several clients side by side.
        """
        self._go_on_alone()

        def replace(name: ClientId) -> None:
            own = self._blocks[name]
            for part in own:
                own[part] = change(name, part, own[part])

        side_by_side(
            *(replace, list(self._blocks), threads),
            lambda name: is_large(self._blocks[name]["train"].x),
        )
        self._staff.look(self._blocks)

    def whole_block(self, client: ClientId, part: str) -> Block:
        """Return a client's block with undivided values (simulation and tests only)."""
        own = self._blocks[client][part]
        return self._whole.get(client, own) if part == "train" else own

    def schema(self, part: str = "train") -> Schema:
        """Return the public schema of a part."""
        return self._schemas[part]

    @property
    def schemas(self) -> Mapping[str, Schema]:
        """Return the public schema of each part that there is."""
        return self._schemas

    @property
    def states(self) -> Mapping[ClientId, Any]:
        """Return every client's state of now, for the checkpoint that the client writes.

        Those at workers are written already.
        """
        held = self._host.states
        if self._workers is None:
            return held
        return Everywhere(tuple(self._blocks), held, self._workers)

    @property
    def states_size(self) -> int:
        """Return how many bytes the clients' states take, of a few clients that are all here.

        0: nobody knows without asking for them.
        """
        held = self._host.states
        known = self._workers is None and len(held) <= _MEASURED
        return sum(codec.size(held[name]) for name in held) if known else 0

    def get_states(self) -> dict[ClientId, Any]:
        """Return every client's state as it is now, to look at it or to put it back later."""
        held = dict(self._host.states)
        if self._workers is None:
            return held
        held |= self._workers.fetched(self._blocks)
        return {client: held[client] for client in self._blocks}

    def last_states(self) -> States:
        """Return every client's state when training is over, where it lies; other processes end."""
        self._go_on_alone()
        return self._host.states.snapshot()

    def set_states(self, states: Mapping[ClientId, Any]) -> None:
        """Put back every client's state."""
        self._go_on_alone(kept=[one for one in self._blocks if one not in states])
        self._staff.expect_nothing()
        self._host.states.begin(states.items())

    def make_states(self, make: Callable[[ClientId], Any]) -> None:
        """Give each client the state that is made for it, one after the other or in threads."""
        self._go_on_alone(kept=())
        self._staff.expect_nothing()
        with closing(self._in_turn(partial(make, name) for name in self._blocks)) as made:
            self._host.states.begin(zip(self._blocks, made, strict=True))

    def expect(self, algorithm: fl.Algorithm) -> None:
        """Take note of the algorithm that trains from now on: workers may compute for it."""
        self._staff.expect(algorithm)

    def saved(self) -> None:
        """Take note of a checkpoint: there is nothing to do."""

    def without(self, absent: AbsentError) -> bool:
        """Return whether the round may begin again without some clients: here all are there."""
        return False

    @property
    def away(self) -> bool:
        """Return whether a client did not answer and has not come back."""
        return False

    def return_of(self, *, wait: bool) -> None:
        """Let clients that were away take part again: here none is ever away."""

    def begin(self, algorithm: fl.Algorithm, options: Any) -> None:
        """Give each client the state that it starts an algorithm with."""
        schema = self._schemas["train"]

        def make(name: ClientId) -> Any:
            return algorithm.init_client(
                options, schema, name, self.block(name), self.client_key(name)
            )

        self._go_on_alone(kept=())
        self.expect(algorithm)
        try:
            self._workers = self._staff.workers(self._host, make)
        except WorkerError:
            raise
        except Exception:
            self.make_states(make)  # the error is that of the first that fails, as in one process
            raise
        if self._workers is None:
            self.make_states(make)
            self.expect(algorithm)

    def _run(self, kind: Literal["ask", "sum"], fn: ClientFunction, messages: Messages) -> Exchange:
        exchange = Exchange(self.books, kind, fn, addressed(self, fn, messages))
        if self._workers is None:
            self._workers = self._staff.workers(self._host)
        if self._workers is None:
            self._compute(fn, exchange)
        elif self._workers.knows(fn):
            self._compute_together(fn, exchange, self._workers)
        else:
            self._compute_for(fn, exchange, self._workers)
        moved, rows = exchange.down + exchange.up, self._rows_of(fn, exchange.messages)
        self._staff.moved(moved)
        self._moved[fn.name] = moved / max(rows, 1)
        return exchange.end()

    def _rows_of(self, fn: ClientFunction, clients: Iterable[ClientId]) -> int:
        """Return the bytes of the rows of some clients that a function reads."""
        return sum(int(self._blocks[client][fn.part].x.data.nbytes) for client in clients)

    @property
    def _now(self) -> Moment:
        return Moment(self.books.round, self.books.exchange)

    def _compute(self, fn: ClientFunction, exchange: Exchange) -> None:
        """Let clients open their messages, compute, and seal replies, some after others."""
        if self._staff.threads(fn) > 1 and len(exchange.messages) > 1:
            with closing(self._in_turn(self._jobs(fn, exchange))) as made:
                for client, (size, state, reply) in zip(exchange.messages, made, strict=True):
                    exchange.down += size
                    self._host.states.replace(client, state)
                    exchange.take(client, reply)
            return
        groups = self._groups(fn, list(exchange.messages))
        alone = len(groups) == 1
        if fn.together is None and self._totals.mode != "plain":
            groups = [[one for group in some for one in group] for some in _parts(groups, _SOME)]
        for group in groups:
            opened = {client: self._opened(client, exchange) for client in group}
            with self._staff.watch(fn, group, alone=alone):
                replies, failed = until_failure(self._replies(fn, opened))
            for client, reply in zip(group, replies, strict=failed is None):
                exchange.take(client, reply)
            if failed is not None:
                raise failed

    def _in_turn(self, jobs: Iterable[Callable[[], R]]) -> Generator[R]:
        """Yield what jobs for clients return, in order, in threads where tables are large."""
        count = self._staff.threads()
        if count < 2:
            return (job() for job in jobs)
        self._threads = self._threads or Threads(count)
        return self._threads.in_turn(jobs)

    def _jobs(self, fn: ClientFunction, exchange: Exchange) -> Iterator[Callable[[], Any]]:
        """Yield for each client what opens its message and computes, for a thread."""
        for client in exchange.messages:
            opening = partial(self._open, client, exchange, exchange.split(client))
            noise: Mapping[ClientId, NoiseKey] = {}
            if fn.releases:
                opened = opening()
                opening = partial(tuple, opened)
                noise = self._drawn(self._host.releases(fn, {client: opened[0]}, self._now))
            yield partial(self._answered, fn, client, opening, noise)

    def _answered(
        self,
        fn: ClientFunction,
        client: ClientId,
        opening: Callable[[], tuple[Any, int]],
        noise: Mapping[ClientId, NoiseKey],
    ) -> tuple[int, Any, Any]:
        """Return the bytes that a client was sent, its new state and its reply."""
        message, size = opening()
        return size, *self._host.answer(fn, client, message, self._now, noise)

    def _replies(self, fn: ClientFunction, opened: Mapping[ClientId, Any]) -> Iterator[Any]:
        noise: Mapping[ClientId, NoiseKey] = {}
        if fn.releases:
            noise = self._drawn(self._host.releases(fn, opened, self._now))
        return self._host.replies(fn, opened, self._now, noise)

    def _groups(self, fn: ClientFunction, clients: Sequence[ClientId]) -> list[list[ClientId]]:
        return groups_of(fn, clients, self._needs(fn), accelerated=self._accelerated)

    def _needs(self, fn: ClientFunction) -> Callable[[ClientId], Needs]:
        """Return what says what a client's state and rows take."""
        states, workers = self._host.states, self._workers

        def needs(client: ClientId) -> Needs:
            away = workers is not None and workers.has(client)
            own = workers.needs(client) if workers is not None and away else states.needs(client)
            return Needs(own.size + self._rows_of(fn, [client]), own.cost)

        return needs

    def _drawn(self, releases: Sequence[Release]) -> dict[ClientId, NoiseKey]:
        """Return what releases draw from, once all of them are counted for good."""
        found = {
            one.client: self._ledger.key(
                one.client, self._host.secrets[one.client], one.key, one.parts
            )
            for one in releases
        }
        self._ledger.settle()
        return found

    def _compute_together(self, fn: ClientFunction, exchange: Exchange, workers: Workers) -> None:
        """Let all processes compute, each for its clients; replies are taken in their order."""
        groups = self._groups(fn, list(exchange.messages))
        batch = _BATCH if fn.together is None else _BATCH_OF_MANY
        try:
            for some in _parts(groups, batch * workers.processes):
                places = workers.places(fn, some)
                workers.bring(self._host.states, some, places)
                found: dict[ClientId, Any] = {}
                failed: dict[int, Exception] = {}  # by the number of the group
                waiting = deque(client for group in some for client in group)
                for now in self._turns(fn, some, places):
                    # the error is that of the first group that fails, as in one process
                    now = [at for at in now if all(at < one for one in failed)]
                    given = [some[at] for at in now]
                    opened = {one: self._opened(one, exchange) for group in given for one in group}
                    there = [places[at] for at in now]
                    replies, errors = self._found(fn, given, there, opened, workers)
                    found |= replies
                    clients = ((at, one) for at in now for one in some[at])
                    failed |= {at: errors[one] for at, one in clients if one in errors}
                    del opened, replies
                    while waiting and waiting[0] in found:
                        client = waiting.popleft()
                        exchange.take(client, found.pop(client), own=workers.has(client))
                if failed:
                    raise failed[min(failed)]
        except BaseException as error:
            if not isinstance(error, Exception) or isinstance(error, WorkerError):
                self._go_on_alone(kept=())  # nobody knows what the others were at
            raise

    def _turns(
        self, fn: ClientFunction, groups: Sequence[Sequence[ClientId]], places: Sequence[Any]
    ) -> list[list[int]]:
        """Return the numbers of groups that are computed at once, some after others.

        At each place there are messages and replies of few large clients at a time: as many bytes
        as for their rows at the last call, at the first one half as many as those of the rows.
        """
        room, turn = dict.fromkeys(places, 0.0), dict.fromkeys(places, -1)
        turns: list[list[int]] = []
        for number, (group, place) in enumerate(zip(groups, places, strict=True)):
            needed = self._rows_of(fn, group) * self._moved.get(fn.name, _FIRST)
            if turn[place] < 0 or (needed > room[place] and not fn.releases):
                turn[place], room[place] = turn[place] + 1, _AT_ONCE
            if turn[place] == len(turns):
                turns.append([])
            turns[turn[place]].append(number)
            room[place] -= needed
        return turns

    def _found(
        self,
        fn: ClientFunction,
        groups: Sequence[Sequence[ClientId]],
        places: Sequence[Any],
        opened: Mapping[ClientId, Any],
        workers: Workers,
    ) -> tuple[dict[ClientId, Any], dict[ClientId, Exception]]:
        """Return what clients reply, computed where their groups have their places.

        Of a group that fails there is the error, under a client of it.
        """
        asked = workers.send(fn, groups, places, opened, self._now)
        own = [group for group, place in zip(groups, places, strict=True) if place is None]
        noise: dict[ClientId, NoiseKey] = {}
        if fn.releases:
            mine = {client: opened[client] for group in own for client in group}
            noise = self._drawn([*asked.releases(), *self._host.releases(fn, mine, self._now)])
            asked.draw(noise)
        found: dict[ClientId, Any] = {}
        failed: dict[ClientId, Exception] = {}
        try:
            for group in own:
                given = {client: opened[client] for client in group}
                replies, error = until_failure(self._host.replies(fn, given, self._now, noise))
                if error is not None:
                    failed[group[0]] = error
                    break
                found.update(zip(group, replies, strict=True))
        finally:  # after Ctrl-C, too
            others, errors = asked.replies()
        return found | others, failed | errors

    def _compute_for(self, fn: ClientFunction, exchange: Exchange, workers: Workers) -> None:
        """Compute for workers' clients what these cannot: they do not have the function."""
        states, names = self._host.states, [one for one in exchange.messages if workers.has(one)]
        states.begin(workers.fetched(names))
        before = {name: states[name] for name in names}
        try:
            self._compute(fn, exchange)
        finally:
            new = {name: states[name] for name in names}
            workers.put({name: one for name, one in new.items() if one is not before[name]})
            states.forget(names)

    def _go_on_alone(self, kept: Sequence[ClientId] | None = None) -> None:
        """End the other processes; this one takes over the states of some clients (None: all)."""
        workers, self._workers = self._workers, None
        if workers is not None:
            self._host.states.begin(workers.fetched(self._blocks if kept is None else kept))
            self._host.states.arrange(self._blocks)
            workers.close()

    def _opened(self, client: ClientId, exchange: Exchange) -> Any:
        """Return a client's message with its totals opened by the client."""
        opened, size = self._open(client, exchange, exchange.split(client))
        exchange.down += size
        return opened

    def _open(self, client: ClientId, exchange: Exchange, apart: Split) -> tuple[Any, int]:
        """Return a client's message, opened, and the bytes that it had on the way."""
        size = apart.size
        if not apart.sealed:
            return exchange.messages[client], size
        own = dict(apart.plain)
        for field, total in apart.sealed.items():
            own[field], extra = self._totals.own(client, total, exchange.asked)
            size += extra + codec.size_within(own[field]) - codec.NOTHING
        opened: Any = object.__new__(apart.kind)
        opened.__dict__.update(own)
        return opened, size


def _counted_once(client: ClientId, part: str, block: Block) -> Block:
    return block.counted_once() if part == "train" else block


# Clients that open, then compute, then seal: one after the other, each would find the processor's
# caches filled with the data of a computation.
_SOME = 16
# Groups of each process whose replies are there at once: of a client each, and of several.
_BATCH, _BATCH_OF_MANY = 64, 4
_AT_ONCE = 1 << 27  # bytes of what such clients of a process read and send, or those of one
_FIRST = 0.5  # of the bytes of rows, as many as are thought to be read and sent for them at first
_MEASURED = 64  # clients, at most, whose states are measured: of more that takes long


def _parts(groups: list[list[ClientId]], size: int) -> list[list[list[ClientId]]]:
    return [groups[first : first + size] for first in range(0, len(groups), size)]
