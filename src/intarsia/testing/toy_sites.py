"""Sites in this process, and lines to them that may lose, repeat, delay and alter what they carry.

A site has a block that is given, and the client functions that an algorithm declares. It holds what
it is asked against that declaration, as the sites of a federation do.
"""

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from intarsia.core.algorithm import Algorithm
from intarsia.core.block import Block, ClientId, Labels
from intarsia.core.client_functions import RandomKey
from intarsia.core.disclosure import Sends
from intarsia.core.schema import Schema
from intarsia.engines.release_ledger import ReleaseLedger
from intarsia.engines.remote.caller import Caller, RetryPolicy
from intarsia.engines.remote.declared import Declared
from intarsia.engines.remote.server import Remote
from intarsia.engines.remote.server_journal import Journal
from intarsia.engines.remote.site import Site
from intarsia.engines.remote.wire import Call
from intarsia.engines.sums.plain import Geometry
from intarsia.privacy.secure_aggregation.protocol import Sealing
from intarsia.testing.toy_federations import secret_of
from intarsia.training.setup import first_key

HASTY: Final = RetryPolicy(seconds=60.0, deadline=120.0, pause=0.001, probe=0.2)
RUN: Final = "5e" * 8

Sealer = Callable[[], Sealing]
# (client, number of the attempt, data, deliver) -> answer
Fault = Callable[[ClientId, int, bytes, Callable[[bytes], bytes]], bytes]


class Memory:
    """A shelf that outlives the site."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.full = False

    def read(self, name: str) -> bytes | None:
        """Return what lies under a name, None if nothing does."""
        return self.files.get(name)

    def write(self, name: str, data: bytes) -> None:
        """Put something under a name; OSError where the shelf is full."""
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device", "/home/site/secret")
        self.files[name] = bytes(data)

    def remove(self, name: str) -> None:
        """Take away what lies under a name, if anything does."""
        self.files.pop(name, None)


class Desk:
    """What a site has of one run: a block that is given, and the functions of an algorithm."""

    told: tuple[str, ...] = ()
    described = b""  # a block that is given stays as it is

    def __init__(
        self,
        algorithm: Algorithm,
        options: Any,
        client: ClientId,
        schemas: Mapping[str, Schema],
        blocks: Mapping[str, Block],
        seed: int,
        sealing: Sealing | None,
        least: int = 1,
        more: Sequence[Sends] = (),
        complete: bool = False,
        rounds: int = 0,
    ) -> None:
        self.seed, self.schemas, self.sealing = seed, schemas, sealing
        self.fingerprint = b""
        self.states = algorithm.states
        self._algorithm, self._options, self._client = algorithm, options, client
        server = algorithm.begin(options, schemas["train"], first_key(seed))
        self._declared = Declared(
            client,
            Geometry(schemas),
            schemas["train"].clients,
            (*algorithm.disclosure.needed(options), *more),
            *(algorithm.name, options, least),
            complete=complete,
            rounds=rounds,
            allowed=algorithm.disclosure.allowed(server, client),
        )
        self._blocks = {part: schemas[part].align(client, one) for part, one in blocks.items()}
        if algorithm.model.additive:
            self._blocks["train"] = self._blocks["train"].counted_once()

    def declared(self) -> Declared:
        """Return what the server may ask."""
        return self._declared

    def block(self, part: str) -> Block:
        """Return the client's block of a part."""
        return self._blocks[part]

    def enter(self, call: Call) -> None:
        """Make ready for a call: nothing is to be done."""

    def stage(self, name: str, state: Any, message: bytes) -> tuple[Any, bytes]:
        """Return the state that the algorithm begins with."""
        key = RandomKey((self.seed, "init", self._client))
        made = self._algorithm.init_client(
            self._options, self.schemas["train"], self._client, self._blocks["train"], key
        )
        return made, b""

    def changes(self, described: bytes) -> str:
        """Return "": the block is the same."""
        return ""


@dataclass
class Lines:
    """Carries bytes to sites in this process."""

    sites: dict[ClientId, Site]
    fault: Fault | None = None
    attempts: dict[ClientId, int] = field(default_factory=dict)

    def send(self, client: ClientId, data: bytes, seconds: float) -> bytes:
        """Return a site's answer."""
        number = self.attempts[client] = self.attempts.get(client, 0) + 1
        deliver = self.sites[client].handle
        return deliver(data) if self.fault is None else self.fault(client, number, data, deliver)


@dataclass
class Federation:
    """A server's engine over sites that can be started again."""

    engine: Remote
    caller: Caller
    lines: Lines
    shelves: dict[ClientId, dict[str, Memory]]
    desks: dict[ClientId, Callable[[], Desk]]
    ledgers: dict[tuple[ClientId, str], ReleaseLedger] = field(default_factory=dict)
    errors: list[Exception] = field(default_factory=list[Exception])  # of sites, in full

    def restart(self, client: ClientId) -> None:
        """Start a site again, with nothing but what is on its shelf."""
        self.lines.sites[client] = self.site(client)

    def site(self, client: ClientId) -> Site:
        """Return a site."""
        shelves = self.shelves.setdefault(client, {})
        return Site(
            client,
            lambda run: shelves.setdefault(run, Memory()),
            self.desks[client],
            lambda: secret_of(client),
            lambda run: self.ledgers.setdefault((client, run), ReleaseLedger()),
            self.errors.append,
        )

    def states(self) -> dict[ClientId, Any]:
        """Return the states that the sites have."""
        found = {}
        for client, version in self.caller.versions.items():
            run = self.lines.sites[client]._of(self.caller.run)
            place = run._ready()
            found[client] = run._state(version, place)
        return found


def federation(
    algorithm: Algorithm,
    options: Any,
    blocks: Mapping[ClientId, Block],
    labels: Labels,
    *,
    seed: int = 0,
    sealing: Sealer | None = None,
    fault: Fault | None = None,
    patience: RetryPolicy = HASTY,
    journal: Journal | None = None,
    run: str = RUN,
    tested: Mapping[ClientId, Block] | None = None,
    shelves: dict[ClientId, dict[str, Memory]] | None = None,
    apart: bool = False,
    least: int = 1,
    more: Sequence[Sends] | Callable[[Mapping[str, Schema]], Sequence[Sends]] = (),
    complete: bool = False,
    rounds: int = 0,
) -> Federation:
    """Return an engine over a site for each block; `sealing` makes one with all keys.

    `more` is declared beside what the algorithm does: parts of the shared protocols, by schemas.
    `complete` says that all clients take part in each round, of which there are `rounds` at most;
    0: sites do not count objectives.
    """
    parts = {"train": blocks} if tested is None else {"train": blocks, "test": tested}
    schemas = {part: Schema.of(own, labels) for part, own in parts.items()}
    lines = Lines({}, fault)

    def desk(name: ClientId) -> Desk:
        return Desk(
            *(algorithm, options, name, schemas),
            {part: own[name] for part, own in parts.items()},
            *(seed, None if sealing is None else sealing(), least),
            *(more(schemas) if callable(more) else more, complete, rounds),
        )

    caller = Caller(run, tuple(blocks), lines, patience, journal)
    adding = None if sealing is None else without_keys(sealing())
    known: Any = {"algorithm": algorithm.name, "bounds": algorithm.model.additive}
    engine = Remote(caller, schemas, seed, adding, apart=apart, **known)
    desks: dict[ClientId, Callable[[], Desk]] = {
        name: lambda name=name: desk(name)  # type: ignore[misc]  # its own name each
        for name in blocks
    }
    made = Federation(engine, caller, lines, {} if shelves is None else shelves, desks)
    for name in blocks:
        made.restart(name)
    return made


def without_keys(sealing: Sealing) -> Sealing:
    """Return what the server has of a sealing."""
    return dataclasses.replace(sealing, exact={}, bulk={})


def begun(made: Federation, algorithm: Algorithm, options: Any) -> Any:
    """Return the server's state after the set-up."""
    engine = made.engine
    engine.begin(algorithm, options)
    server = algorithm.begin(options, engine.schema("train"), engine.key("init"))
    return algorithm.prepare(server, engine, engine.key("init"))
