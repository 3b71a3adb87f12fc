"""Processes that compute for clients of a simulation, beside the one that has the server.

A worker is a fork: it has the clients' blocks and states of the moment as its own, without a copy,
and keeps the states of its clients from there on. Or it is a process of a `Cluster`, which is sent
them.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from intarsia.core.algorithm import Algorithm
from intarsia.core.block import Block, ClientId
from intarsia.core.client_functions import ClientFunction, NoiseKey, RandomKey, SecretKey
from intarsia.core.memory import give_back
from intarsia.core.side_by_side import cores, in_fork, is_large
from intarsia.engines import codec
from intarsia.engines.client_host import Host, Moment, Release, until_failure
from intarsia.engines.client_states import Needs, States
from intarsia.engines.forks import Channel, Fork, can_fork, error_in, failure_of
from intarsia.errors import WorkerError

# states that are brought over at a time, and their bytes if they are several
_CHUNK, _CHUNK_BYTES = 64, 1 << 26


@dataclass(frozen=True)
class _Call:
    """Asks a worker to run a function for some of its clients, whose messages follow."""

    function: str
    round: int
    exchange: int
    clients: tuple[ClientId, ...]
    groups: tuple[int, ...]  # how many of them each call of the function has

    @property
    def moment(self) -> Moment:
        """Return where in the run it is."""
        return Moment(self.round, self.exchange)


@dataclass(frozen=True)
class _Fetch:
    """Asks for the states of some clients."""

    clients: tuple[ClientId, ...]
    leave: bool  # whether others have them from here on


@dataclass(frozen=True)
class _Put:
    """Says that the states of some clients follow."""

    clients: tuple[ClientId, ...]


@dataclass(frozen=True)
class _Noise:
    """What a release draws from."""

    secret: bytes
    number: int


class Worker(Protocol):
    """A worker, on the side of the process that asks."""

    def take(self, clients: Sequence[ClientId]) -> None:
        """Let it have the blocks and secrets of clients, whose states follow."""
        ...

    def send(self, *values: Any) -> None:
        """Send some values; WorkerError if the process is gone."""
        ...

    def receive(self) -> Sequence[memoryview]:
        """Return the values that it sends, written.

        Raises
        ------
        WorkerError
            If the process is gone.
        Exception
            What went wrong in it, as it was raised there.
        """
        ...

    def close(self) -> None:
        """End the process."""
        ...


class Cluster(Protocol):
    """Machines whose processes compute for all clients of a simulation."""

    @property
    def processes(self) -> int:
        """Return how many there are to be."""
        ...

    def workers(self, host: Host, shares: Sequence[Sequence[ClientId]]) -> Sequence[Worker]:
        """Return a worker for each share of the clients, which has none of them yet.

        Each first says that it is there.
        """
        ...


class Workers:
    """Processes with some of a simulation's clients each.

    Parameters
    ----------
    host
        All clients, as they are now.
    members
        Each worker with its clients; it is about to say that it has them, and what the states
        take that it has of them.
    functions
        What may be asked.
    states
        The dataclasses that states may hold.
    here
        Whether the process that asks computes for the clients of no worker.
    """

    def __init__(
        self,
        host: Host,
        members: Sequence[tuple[Worker, Sequence[ClientId]]],
        functions: Mapping[str, ClientFunction],
        states: Sequence[type],
        *,
        here: bool,
    ) -> None:
        self._functions, self._classes = functions, tuple(states)
        self._members = [member for member, _ in members]
        self._own: tuple[None, ...] = (None,) if here else ()
        self._where = {client: member for member, share in members for client in share}
        self._needs: dict[ClientId, Needs] = {}  # of the states of clients at workers
        for member, share in members:
            for told in member.receive():
                self._needs.update(_needs(share, told))
        if not here:  # no fork, which has its clients' states
            for member, share in members:
                self._put(member, {client: host.states[client] for client in share}, new=True)

    @property
    def processes(self) -> int:
        """Return how many compute."""
        return len(self._members) + len(self._own)

    def has(self, client: ClientId) -> bool:
        """Return whether a worker has a client."""
        return client in self._where

    def knows(self, fn: ClientFunction) -> bool:
        """Return whether the workers can be asked for a function."""
        return self._functions.get(fn.name) is fn

    def needs(self, client: ClientId) -> Needs:
        """Return what the state takes of a client that a worker has."""
        return self._needs[client]

    def places(
        self, fn: ClientFunction, groups: Sequence[Sequence[ClientId]]
    ) -> list[Worker | None]:
        """Return which worker is to run a function for each group; None: the process that asks.

        Of clients that compute alone it is the one that has them. Of groups each process gets as
        many, those of which it has most if it can be.
        """
        if fn.together is None:
            return [self._where.get(client) for client, *_ in groups]
        every: list[Worker | None] = [*self._own, *self._members]
        room = dict.fromkeys(every, -(-len(groups) // len(every)))
        found: list[Worker | None] = []
        for group in groups:
            held = Counter(self._where.get(client) for client in group)
            open_ = [one for one in every if room[one]]
            best = max(open_, key=lambda one: held[one])
            room[best] -= 1
            found.append(best)
        return found

    def bring(
        self, states: States, groups: Sequence[Sequence[ClientId]], places: Sequence[Worker | None]
    ) -> None:
        """Let the states of groups be where they are to be; `states` are those of this process."""
        moved: dict[Worker | None, list[ClientId]] = {}
        for group, place in zip(groups, places, strict=True):
            away = [client for client in group if self._where.get(client) is not place]
            moved.setdefault(place, []).extend(away)
        for place, clients in moved.items():
            for first in range(0, len(clients), _CHUNK):
                some = clients[first : first + _CHUNK]
                found = dict(self.fetched(some, leave=True))
                here = [client for client in some if client not in found]
                found |= {client: states[client] for client in here}
                if place is None:
                    states.begin(found.items())
                else:
                    states.forget(here)
                    self._put(place, found, new=True)
                for client in some:
                    self._where.pop(client, None)
                    if place is not None:
                        self._where[client] = place

    def send(
        self,
        fn: ClientFunction,
        groups: Sequence[Sequence[ClientId]],
        places: Sequence[Worker | None],
        opened: Mapping[ClientId, Any],
        now: Moment,
    ) -> _Asked:
        """Let workers run a function for their groups; `_Asked` has what they say."""
        asked: dict[Worker, tuple[ClientId, ...]] = {}
        for member in self._members:
            own = [one for one, place in zip(groups, places, strict=True) if place is member]
            clients = tuple(client for group in own for client in group)
            if clients:
                asked[member] = clients
                head = _Call(fn.name, now.round, now.exchange, clients, tuple(map(len, own)))
                member.send(head, *(opened[client] for client in clients))
        return _Asked(fn, asked, self._needs)

    def fetched(
        self, clients: Iterable[ClientId], *, leave: bool = False
    ) -> Iterator[tuple[ClientId, Any]]:
        """Yield the states of clients that workers have, some of each one's at a time."""
        for name, value in self.written(clients, leave=leave):
            yield name, codec.decode_unchecked(value, *self._classes, keep=True)

    def written(
        self, clients: Iterable[ClientId], *, leave: bool = False
    ) -> Iterator[tuple[ClientId, memoryview]]:
        """Yield the same states as the codec writes them."""
        wanted = [client for client in clients if client in self._where]
        for member in self._members:
            own = [client for client in wanted if self._where[client] is member]
            while own:
                names = self.first_of(own)
                del own[: len(names)]
                member.send(_Fetch(names, leave))
                yield from zip(names, member.receive(), strict=True)

    def first_of(self, clients: Sequence[ClientId]) -> tuple[ClientId, ...]:
        """Return the first of some clients, of whose states as many are brought over at a time."""
        found = (self._needs.get(client) for client in clients)
        sizes = itertools.accumulate(0 if needs is None else needs.size for needs in found)
        count = sum(size <= _CHUNK_BYTES for size in itertools.islice(sizes, _CHUNK))
        return tuple(clients[: max(count, 1)])

    def put(self, states: Mapping[ClientId, Any]) -> None:
        """Replace the states of clients that workers have."""
        for member in self._members:
            self._put(member, {k: one for k, one in states.items() if self._where[k] is member})

    def _put(self, member: Worker, states: Mapping[ClientId, Any], *, new: bool = False) -> None:
        names = tuple(states)
        for first in range(0, len(names), _CHUNK):
            some = names[first : first + _CHUNK]
            if new:
                member.take(some)
            member.send(_Put(some), *(states[client] for client in some))
            [told] = member.receive()
            self._needs.update(_needs(some, told))

    def close(self) -> None:
        """End the processes; what they have is gone."""
        for member in self._members:
            member.close()


class _Asked:
    """What workers were asked together, and have not all answered yet."""

    def __init__(
        self,
        fn: ClientFunction,
        asked: Mapping[Worker, tuple[ClientId, ...]],
        needs: dict[ClientId, Needs],
    ) -> None:
        self._fn, self._asked, self._needs = fn, asked, needs

    def releases(self) -> list[Release]:
        """Return what the noise of the releases is drawn by: the first thing that workers say."""
        found: list[Release] = []
        for member, clients in self._asked.items():
            for client, value in zip(clients, member.receive(), strict=True):
                words, parts = codec.decode_unchecked(value)
                found.append(Release(client, RandomKey(words), parts))
        return found

    def draw(self, noise: Mapping[ClientId, NoiseKey]) -> None:
        """Tell workers what their clients' releases draw from."""
        for member, clients in self._asked.items():
            keys = (noise[client] for client in clients)
            member.send(*(_Noise(key.secret.to_file(), key.number) for key in keys))

    def replies(self) -> tuple[dict[ClientId, Any], dict[ClientId, Exception]]:
        """Return what clients reply, and of each worker the first client that failed and its error.

        Raises
        ------
        WorkerError
            If a process is gone.
        Exception
            What a worker could not begin with, once all are done.
        """
        found: dict[ClientId, Any] = {}
        failed: dict[ClientId, Exception] = {}
        broken: Exception | None = None
        for member, clients in self._asked.items():
            try:
                failure, told, *values = member.receive()
            except WorkerError:
                raise
            except Exception as error:
                broken = broken or error
                continue
            if (problem := error_in(failure)) is not None:
                failed[clients[len(values)]] = problem
            self._needs.update(_needs(clients, told))
            classes = codec.classes_in(self._fn.reply)
            for client, value in zip(clients, values, strict=problem is None):
                found[client] = codec.decode_unchecked(value, *classes, keep=True)
        if broken is not None:
            raise broken
        return found, failed


def _needs(clients: Sequence[ClientId], told: memoryview) -> Iterator[tuple[ClientId, Needs]]:
    """Return what the states of clients take, as a worker says it."""
    return zip(clients, codec.decode_unchecked(told, Needs), strict=True)


class Everywhere(Mapping[ClientId, Any]):
    """The states of all clients, to be written: those at workers as `codec.Written`.

    They are read as they are asked for, in order at best.
    """

    def __init__(
        self, clients: Sequence[ClientId], held: Mapping[ClientId, Any], workers: Workers
    ) -> None:
        self._clients, self._held, self._workers = clients, held, workers
        self._places = {client: at for at, client in enumerate(clients)}
        # the next ones, read with the one that was asked for
        self._near: dict[ClientId, codec.Written] = {}

    def __getitem__(self, client: ClientId) -> Any:
        if not self._workers.has(client):
            return self._held[client]
        if client not in self._near:
            self._near.clear()
            at = self._places[client]
            some = self._workers.first_of(self._clients[at : at + _CHUNK])
            found = self._workers.written(some)
            self._near = {name: codec.Written(value) for name, value in found}
        return self._near[client]

    def __iter__(self) -> Iterator[ClientId]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)


class Staff:
    """Decides how many processes compute for the clients of a simulation, and when.

    By itself it takes more than one where they save time: once the clients have computed for a
    while, and much longer than it takes to bring messages from one process to another. Where they
    have many values, it does so at once.

    Parameters
    ----------
    most
        How many, where an algorithm is expected; None: as many as there are cores, if it pays.
    cluster
        Has them all, where an algorithm is expected; None: they are forks.
    sealed
        Whether sums are sealed: threads that open totals and seal replies would share much.
    """

    def __init__(
        self, most: int | None, cluster: Cluster | None = None, *, sealed: bool = False
    ) -> None:
        self._asked, self._most = most is not None, cores() if most is None else most
        self._cluster, self._sealed = cluster, sealed
        self._large = False
        self.expect_nothing()

    def look(self, blocks: Mapping[ClientId, Mapping[str, Block]]) -> None:
        """Take note of the clients' tables, which may be so large that threads pay."""
        sizes = sizes_of(blocks)
        large = [size for name, size in sizes.items() if is_large(blocks[name]["train"].x)]
        self._large = len(large) > 1 and sum(large) > _MOST_LARGE * sum(sizes.values())

    def threads(self, fn: ClientFunction | None = None) -> int:
        """Return in how many threads of this process clients compute (None: what they begin with).

        Kernels that go over large tables let others compute, and nothing crosses between
        processes. What Python does for small clients, or for several at once, would hold all up.
        """
        alone = fn is None or fn.together is None
        here = self._cluster is None and not self._sealed and not in_fork()
        return self._most if self._large and alone and here else 1

    def expect(self, algorithm: Algorithm) -> None:
        """Take note of the algorithm whose functions clients run from now on."""
        functions = {fn.name: fn for fn in algorithm.disclosure.functions}
        self._note(functions, tuple(algorithm.states))

    def expect_nothing(self) -> None:
        """Let this process compute, as nobody knows what for."""
        self._note({}, ())

    def _note(self, functions: Mapping[str, ClientFunction], classes: tuple[type, ...]) -> None:
        self._functions, self._classes = functions, classes
        self._seen: set[str] = set()
        self._uncounted = dict[str, tuple[ClientId, ...]]()  # of first calls
        self._seconds = dict[ClientId, float]()
        self._cost = 0.0

    @contextlib.contextmanager
    def watch(
        self, fn: ClientFunction, clients: Collection[ClientId], *, alone: bool
    ) -> Iterator[None]:
        """Take note of what clients compute, if others could do a part of it: it is not `alone`.

        A function's first call may compile something: what that may take does not count, and its
        clients are taken to compute as long as the next.
        """
        began = time.perf_counter()
        yield
        spent, first = time.perf_counter() - began, fn.name not in self._seen
        self._seen.add(fn.name)
        if alone:
            return
        if first:
            spent = max(0.0, spent - _COMPILING)
        each = spent / len(clients)
        uncounted = self._uncounted.pop(fn.name, ())
        for client in (*clients, *uncounted):
            self._seconds[client] = self._seconds.get(client, 0.0) + each
        if first and not spent:
            self._uncounted[fn.name] = tuple(clients)

    def moved(self, size: int) -> None:
        """Take note of an exchange that is over, with the bytes of its messages and replies."""
        self._cost += _CALL + _BYTE * size

    @property
    def may_grow(self) -> bool:
        """Return whether there may be forks."""
        return self._cluster is None and self._most > 1 and can_fork(asked=self._asked)

    def workers(self, host: Host, make: Callable[[ClientId], Any] | None = None) -> Workers | None:
        """Return processes for some of the clients; None: this one is to go on with all.

        Where there are forks, each begins with its clients' states, or with those that it is to
        `make`: the host's are replaced.
        """
        if self._cluster is not None:
            return self._at(self._cluster, host) if self._functions and make is None else None
        if self._most < 2 or not self._functions or (not self._asked and not self._pays(host)):
            return None
        if all(self.threads(fn) > 1 for fn in self._functions.values()):
            return None
        give_back()  # or what was freed would be copied, page by page, where it is used again
        work = self._seconds if self._seconds and not self._asked else sizes_of(host.blocks)
        *shares, own = shares_of({name: work.get(name, 0.0) for name in host.blocks}, self._most)
        if not shares or not self.may_grow:
            self.expect_nothing()
            return None
        forked: list[tuple[_Fork, Sequence[ClientId]]] = []
        for share in shares:
            given = len(shares) + 1, make, self._functions, self._classes
            others = [one.channel for one, _ in forked]
            forked.append((_Fork(host, share, *given, others), share))
        host.states = host.states.apart(own, len(shares) + 1, make)
        return Workers(host, forked, self._functions, self._classes, here=True)

    def _at(self, cluster: Cluster, host: Host) -> Workers:
        shares = shares_of(sizes_of(host.blocks), cluster.processes)
        members = list(zip(cluster.workers(host, shares), shares, strict=True))
        found = Workers(host, members, self._functions, self._classes, here=False)
        host.states = host.states.apart((), len(shares))
        return found

    def _pays(self, host: Host) -> bool:
        """Return whether others are to help: at once where clients have many values."""
        seconds = sum(self._seconds.values())
        if seconds > _LONG and seconds > _TIMES * self._cost:
            return True
        begins = not self._seen and all(fn.together is None for fn in self._functions.values())
        return begins and sum(sizes_of(host.blocks).values()) > _LARGE


_MOST_LARGE = 0.9  # of the bytes of all values: what large tables have of them, so that threads pay
_COMPILING = 3.0  # seconds that compiling may take
_LONG = 0.5  # seconds that clients compute before others are to help: a fork takes up to 0.05
_LARGE = 1 << 28  # bytes of values: to read them as often as any training does takes as long
_TIMES = 4.0  # that they compute longer than messages would take
_CALL, _BYTE = 5e-4, 1e-10  # seconds of a call to another process, and of each byte


def sizes_of(blocks: Mapping[ClientId, Mapping[str, Block]]) -> dict[ClientId, float]:
    """Return about how much there is to compute for each client: the bytes of its values."""
    return {
        name: 1.0 + sum(one.x.data.nbytes for one in own.values()) for name, own in blocks.items()
    }


def shares_of(work: Mapping[ClientId, float], processes: int) -> list[list[ClientId]]:
    """Return the clients in shares of about equal work, the last the smallest; none is empty."""
    loads = [0.0] * min(processes, len(work))
    shares: list[list[ClientId]] = [[] for _ in loads]
    for name in sorted(work, key=lambda name: -work[name]):
        least = loads.index(min(loads))
        shares[least].append(name)
        loads[least] += max(work[name], 1e-9)
    order = {name: at for at, name in enumerate(work)}
    return [
        sorted(shares[at], key=order.__getitem__)
        for at in sorted(range(len(loads)), key=lambda at: -loads[at])
    ]


class _Fork(Fork):
    """A worker that is a fork, on the side of the process that asks."""

    def __init__(
        self,
        host: Host,
        clients: Sequence[ClientId],
        processes: int,
        make: Callable[[ClientId], Any] | None,
        functions: Mapping[str, ClientFunction],
        classes: tuple[type, ...],
        others: Sequence[Channel],
    ) -> None:
        given = host, clients, processes, make, functions, classes
        super().__init__(f"computed for {some_of(clients)}", partial(_serve, *given), others)

    def take(self, clients: Sequence[ClientId]) -> None:
        """Do nothing: a fork has all blocks and secrets."""


def some_of(clients: Sequence[ClientId]) -> str:
    """Return the first of some clients, as an error names them."""
    return ", ".join(map(repr, clients[:3])) + (", …" if len(clients) > 3 else "")


def _serve(
    host: Host,
    clients: Sequence[ClientId],
    processes: int,
    make: Callable[[ClientId], Any] | None,
    functions: Mapping[str, ClientFunction],
    classes: tuple[type, ...],
    channel: Channel,
) -> None:
    """Answer calls until the other side closes: what a worker's process does."""
    try:
        states = host.states.apart(clients, processes, make)
    except Exception as error:
        channel.send([failure_of(error)])
        return
    desk = Desk(Host(host.seed, host.blocks, states, host.secrets), functions, classes)
    channel.send((None, tuple(map(states.needs, clients))))
    while True:
        channel.send(desk.answer(channel.receive()))


class Desk:
    """Answers what a worker is asked.

    Parameters
    ----------
    host
        The worker's clients.
    functions
        What may be asked.
    classes
        The dataclasses that states may hold.
    """

    def __init__(
        self, host: Host, functions: Mapping[str, ClientFunction], classes: tuple[type, ...]
    ) -> None:
        self._host, self._functions, self._classes = host, functions, classes
        # a call that waits for what its releases draw from
        self._waiting: tuple[_Call, dict[ClientId, Any], Sequence[Release]] | None = None

    def answer(self, given: Sequence[memoryview]) -> list[Any]:
        """Return the answer: that nothing failed, and values; or what failed."""
        try:
            return [None, *self._answer(given)]
        except Exception as error:
            return [failure_of(error)]

    def _answer(self, given: Sequence[memoryview]) -> Iterable[Any]:
        head = codec.decode_unchecked(given[0], _Call, _Fetch, _Put, _Noise)
        states = self._host.states
        if isinstance(head, _Fetch):
            found = [states[client] for client in head.clients]
            if head.leave:
                self._host.forget(head.clients)
            return found
        if isinstance(head, _Put):
            kinds = self._classes
            values = [codec.decode_unchecked(one, *kinds, keep=True) for one in given[1:]]
            states.begin(zip(head.clients, values, strict=True))
            return [tuple(map(states.needs, head.clients))]
        if isinstance(head, _Call):
            fn = self._functions[head.function]
            kinds = codec.classes_in(fn.message)
            messages = [codec.decode_unchecked(one, *kinds, keep=True) for one in given[1:]]
            opened = dict(zip(head.clients, messages, strict=True))
            if not fn.releases:
                return self._replies(head, opened, {})
            releases = self._host.releases(fn, opened, head.moment)
            self._waiting = head, opened, releases
            return [(one.key.words, one.parts) for one in releases]
        assert self._waiting is not None
        call, opened, waiting = self._waiting
        self._waiting = None
        drawn = [codec.decode_unchecked(value, _Noise) for value in given]
        noise = {
            one.client: NoiseKey(one.key, SecretKey(own.secret), own.number)
            for one, own in zip(waiting, drawn, strict=True)
        }
        return self._replies(call, opened, noise)

    def _replies(
        self, call: _Call, opened: Mapping[ClientId, Any], noise: Mapping[ClientId, NoiseKey]
    ) -> list[Any]:
        fn, clients = self._functions[call.function], iter(call.clients)
        groups = (
            {client: opened[client] for client in itertools.islice(clients, size)}
            for size in call.groups
        )
        each = (self._host.replies(fn, group, call.moment, noise) for group in groups)
        replies, failed = until_failure(itertools.chain.from_iterable(each))
        failure = None if failed is None else failure_of(failed)
        return [failure, tuple(map(self._host.states.needs, call.clients)), *replies]
