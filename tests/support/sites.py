"""Sites in this process, and lines to them that lose, repeat, delay and alter what they carry."""

from __future__ import annotations

import dataclasses
import errno
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from federations import secret_of
from intarsia.core.algorithm import RandomKey
from intarsia.core.schema import Schema
from intarsia.deployment import client_folder
from intarsia.engines import codec
from intarsia.engines.release_ledger import ReleaseLedger
from intarsia.engines.remote.caller import Caller, RetryPolicy
from intarsia.engines.remote.declared import Declared
from intarsia.engines.remote.server import Remote
from intarsia.engines.remote.site import Site
from intarsia.engines.sums.plain import Geometry
from intarsia.training.setup import first_key

HASTY = RetryPolicy(seconds=60.0, deadline=120.0, pause=0.001, probe=0.2)


RUN = "5e" * 8


def in_run(names, run=RUN, secret_of=secret_of):
    """Return what the sites have of their secrets in a run, for the same run in one process."""
    return {name: secret_of(name).fold_in("run", run) for name in names}


def in_run_of(out, folders):
    """Return the same for sites in folders, and the run over them in an output folder."""
    run = json.loads((out / "run.id").read_text())["run"]
    return in_run(folders, run, lambda name: client_folder.secret_of(folders[name]))


class Memory:
    """A shelf that outlives the site."""

    def __init__(self):
        self.files: dict[str, bytes] = {}
        self.full = False

    def read(self, name):
        return self.files.get(name)

    def write(self, name, data):
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device", "/home/site/secret")
        self.files[name] = bytes(data)

    def remove(self, name):
        self.files.pop(name, None)


class Desk:
    """What a site has of one run: a block that is given, and the functions of an algorithm."""

    def __init__(
        self,
        algorithm,
        options,
        client,
        schemas,
        blocks,
        seed,
        sealing,
        least=1,
        more=(),
        complete=False,
    ):
        self.seed, self.schemas, self.sealing = seed, schemas, sealing
        self.fingerprint = b""
        self.states = algorithm.states
        self._algorithm, self._options, self._client = algorithm, options, client
        server = algorithm.init_server(options, schemas["train"], first_key(seed))
        self._declared = Declared(
            *(client, Geometry(schemas), schemas["train"].clients),
            *((*algorithm.disclosure.needed(options), *more), algorithm.name, options, least),
            complete=complete,
            allowed=algorithm.disclosure.allowed(server, client),
        )
        self._blocks = {part: schemas[part].align(client, one) for part, one in blocks.items()}
        if algorithm.model.additive:
            self._blocks["train"] = self._blocks["train"].counted_once()

    def declared(self):
        return self._declared

    def block(self, part):
        return self._blocks[part]

    def enter(self, call):
        pass

    told = ()

    def stage(self, name, state, message):
        key = RandomKey((self.seed, "init", self._client))
        made = self._algorithm.init_client(
            self._options, self.schemas["train"], self._client, self._blocks["train"], key
        )
        return made, b""


@dataclass
class Lines:
    """Carries bytes to sites in this process."""

    sites: dict[str, Site]
    # (client, number of the attempt, data, deliver) -> answer
    fault: Callable | None = None
    attempts: dict[str, int] = field(default_factory=dict)

    def send(self, client, data, seconds):
        number = self.attempts[client] = self.attempts.get(client, 0) + 1
        deliver = self.sites[client].handle
        return deliver(data) if self.fault is None else self.fault(client, number, data, deliver)


class Unreliable:
    """Each of several faults, one after the other."""

    def __init__(self, every=3):
        self.every, self.before, self.seen = every, {}, set()
        self._lock = threading.Lock()

    def __call__(self, client, number, data, deliver):
        turn, kind = divmod(number, self.every)
        if kind or not data:
            return deliver(data)
        with self._lock:
            self.seen.add(turn % 6)
        match turn % 6:
            case 0:  # lost on the way there
                raise TimeoutError
            case 1:  # lost on the way back
                deliver(data)
                raise ConnectionResetError
            case 2:  # twice
                assert deliver(data) == deliver(data)
                return deliver(data)
            case 3:  # altered on the way there
                return deliver(data[:-1] + bytes([data[-1] ^ 1]))
            case 4:  # altered on the way back
                answer = deliver(data)
                return answer[:20] + bytes([answer[20] ^ 1]) + answer[21:]
            case _:  # an old call comes again, and its answer instead of the new one
                answer = deliver(self.before.get(client, data))
                self.before[client] = data
                return answer


@dataclass
class Federation:
    """A server's engine over sites that can be started again."""

    engine: Remote
    caller: Caller
    lines: Lines
    shelves: dict[str, dict[str, Memory]]
    desks: dict[str, Callable]
    ledgers: dict[tuple[str, str], ReleaseLedger] = field(default_factory=dict)

    def restart(self, client):
        """Start a site again, with nothing but what is on its shelf."""
        self.lines.sites[client] = self.site(client)

    def site(self, client):
        shelves = self.shelves.setdefault(client, {})
        return Site(
            client,
            lambda run: shelves.setdefault(run, Memory()),
            self.desks[client],
            lambda: secret_of(client),
            lambda run: self.ledgers.setdefault((client, run), ReleaseLedger()),
        )

    def states(self):
        """Return the states that the sites have."""
        found = {}
        for client, version in self.caller.versions.items():
            run = self.lines.sites[client]._of(self.caller.run)
            place = run._ready()
            found[client] = run._state(version, place)
        return found


def federation(
    algorithm,
    options,
    blocks,
    labels,
    *,
    seed=0,
    sealing=None,
    fault=None,
    patience=HASTY,
    journal=None,
    run=RUN,
    tested=None,
    shelves=None,
    apart=False,
    least=1,
    more=(),
    complete=False,
):
    """Return an engine over a site for each block; `sealing` makes one with all keys.

    `more` is declared beside what the algorithm does: parts of the shared protocols, by schemas.
    `complete` says that all clients take part in each round.
    """
    parts = {"train": blocks} if tested is None else {"train": blocks, "test": tested}
    schemas = {part: Schema.of(own, labels) for part, own in parts.items()}
    lines = Lines({}, fault)
    desks = {
        name: lambda name=name: Desk(
            algorithm,
            options,
            name,
            schemas,
            {part: own[name] for part, own in parts.items()},
            seed,
            None if sealing is None else sealing(),
            least,
            more(schemas) if callable(more) else more,
            complete,
        )
        for name in blocks
    }
    caller = Caller(run, tuple(blocks), lines, patience, journal)
    adding = None if sealing is None else without_keys(sealing())
    engine = Remote(caller, schemas, seed, adding, algorithm=algorithm.name, apart=apart)
    made = Federation(engine, caller, lines, {} if shelves is None else shelves, desks)
    for name in blocks:
        made.restart(name)
    return made


def without_keys(sealing):
    """Return what the server has of a sealing."""
    return dataclasses.replace(sealing, exact={}, bulk={})


def begun(made, algorithm, options):
    """Return the server's state after the set-up."""
    engine = made.engine
    engine.begin(algorithm, options)
    server = algorithm.init_server(options, engine.schema("train"), engine.key("init"))
    return algorithm.setup(server, engine, engine.key("init"))


def same_states(one, two):
    """Check that two clients' states are equal to the bit."""
    assert one.keys() == two.keys()
    for name in one:
        assert codec.encode(one[name]) == codec.encode(two[name]), name
