"""Simulation on a cluster of Ray: its processes compute for clients, each for some of them.

A process is an actor. It is sent its clients' blocks through Ray's object store, then their states
and secrets, and from there on what a fork is sent (`engines.workers`). All of it is bytes that the
codec writes, one `bytes` object a call, which Ray carries as they are. The class of the actors is
the one thing that Ray pickles, beside what it does for itself: a cluster runs what it is sent, and
belongs to one owner. No organisation may send its rows there but the one that it belongs to.
"""

from __future__ import annotations

import importlib
import os
import platform
import signal
import socket
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from typing import Any

import ray
from ray._private import worker
from ray.exceptions import GetTimeoutError, RayError
from scipy.sparse import csr_array, issparse

from intarsia import __version__
from intarsia.core.algorithm import Algorithm
from intarsia.core.block import Block, ClientId, Copies
from intarsia.core.client_functions import SecretKey
from intarsia.engines import codec
from intarsia.engines.client_host import Host
from intarsia.engines.client_states import States
from intarsia.engines.forks import failure_of, framed, unframed, unless_failed
from intarsia.engines.workers import Desk, some_of
from intarsia.errors import ExperimentError, WorkerError, first_line

_SECONDS = 300.0  # in which all processes must have begun
_KNOCKING = 10.0  # seconds in which a cluster must take a connection, and answer there
# What a client of HTTP/2, by which Ray speaks, says first. Servers send their settings: a frame
# that begins with three bytes of its length and this one of its kind.
_HELLO, _SETTINGS = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)), 4
_CHUNK = 1 << 27  # bytes of blocks that an object of the store has, where there are several


@dataclass(frozen=True)
class _Begin:
    """Says what a process is to be."""

    algorithm: str  # "module:function" that returns the algorithm
    made_of: bytes  # that the function is given
    seed: int
    budget: int | None  # bytes of states in memory


class Node:
    """A process that computes for some clients, as an actor: what it is told are values, framed."""

    def __init__(self) -> None:
        self._blocks: dict[ClientId, dict[str, Block]] = {}
        self._secrets: dict[ClientId, SecretKey] = {}

    def told(self) -> bytes:
        """Return which machine and which versions these are."""
        return codec.encode((ray.util.get_node_ip_address(), _versions()))

    def begin(self, data: bytes) -> bytes:
        """Find the algorithm, for no client yet."""
        return _answered(self._begin, data)

    def take(self, data: bytes) -> bytes:
        """Take the blocks and secrets of some clients."""
        return _answered(self._take, data)

    def answer(self, data: bytes) -> bytes:
        """Return the answer to a call."""
        return b"".join(framed(self._desk.answer(unframed(memoryview(data)))))

    def _begin(self, given: Sequence[memoryview]) -> None:
        begin: _Begin = codec.decode_unchecked(given[0], _Begin)
        module, _, name = begin.algorithm.partition(":")
        algorithm: Algorithm = getattr(importlib.import_module(module), name)(begin.made_of)
        states = States(begin.budget)
        host = Host(begin.seed, self._blocks, states, self._secrets, own_blocks=True)
        functions = {fn.name: fn for fn in algorithm.disclosure.functions}
        self._desk = Desk(host, functions, tuple(algorithm.states))

    def _take(self, given: Sequence[memoryview]) -> None:
        for value in given:
            client, secret, parts = codec.decode_unchecked(value, Copies)
            self._secrets[client] = SecretKey(secret)
            self._blocks[client] = {part: _block(content) for part, content in parts.items()}


def _answered(does: Callable[[Sequence[memoryview]], None], data: bytes) -> bytes:
    """Do something with what was framed, and say that nothing, or what, failed."""
    try:
        does(unframed(memoryview(data)))
    except Exception as error:
        return b"".join(framed([failure_of(error)]))
    return b"".join(framed([None]))


def _versions() -> str:
    found = sys.modules["numpy"].__version__
    return f"intarsia {__version__}, Python {platform.python_version()}, numpy {found}"


def _content(block: Block) -> dict[str, Any]:
    """Return a block's fields as the codec writes them."""
    found = {one.name: getattr(block, one.name) for one in fields(block)}
    if issparse(x := block.x):
        found["x"] = x.data, x.indices, x.indptr, x.shape
    return found


def _block(content: Mapping[str, Any]) -> Block:
    x = content["x"]
    if isinstance(x, tuple):
        x = csr_array(x[:3], shape=x[3])
    return Block(**{**content, "x": x})


class RayCluster:
    """The processes of a cluster that compute for simulated clients; an `engines.workers.Cluster`.

    Parameters
    ----------
    address
        As Ray has it: "HOST:PORT", "auto" for that of this machine, "local" for a new one here.
    processes
        How many are to compute; 0: as many as the cluster has processors.
    algorithm
        "module:function" that returns the algorithm at a node.
    made_of
        Bytes that the function is given.
    """

    def __init__(self, address: str, processes: int, algorithm: str, made_of: bytes) -> None:
        self._address, self._asked = address, processes
        self._algorithm, self._made_of = algorithm, made_of

    @property
    def processes(self) -> int:
        """Return how many there are to be."""
        return self._asked or _processors()

    @contextmanager
    def connected(self) -> Iterator[RayCluster]:
        """Connect to the cluster, unless this process is; ExperimentError if that is not possible.

        Ray of this process sends nobody figures of its use. A cluster's own does, unless
        RAY_USAGE_STATS_ENABLED is 0 where it is started.
        """
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        own = not ray.is_initialized()
        if own:
            self._connect()
        try:
            if not 0 < self.processes <= _processors():
                raise ExperimentError(
                    f"[experiment] workers is {self._asked}, and the Ray cluster has "
                    f"{_processors()} processors; add nodes, or set workers to at most as many."
                )
            yield self
        finally:
            if own:
                ray.shutdown()

    def _connect(self) -> None:
        # what a cluster says of itself would stand among the results that this process prints
        worker.print_to_stdstream = lambda *_, **__: None
        before = signal.getsignal(signal.SIGTERM)
        how: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
        host, _, port = self._address.rpartition(":")
        try:
            if host:
                _knock(host, int(port))
            ray.init(self._address, include_dashboard=False, **how)
        except Exception as problem:  # of which Ray raises bare ones, where a node begins too late
            with suppress(Exception):  # what is half there
                ray.shutdown()
            raise ExperimentError(
                f"[experiment] ray is {self._address!r}, and no cluster could be used there "
                f'({first_line(problem)}); start one by ray start --head, or set ray = "" to '
                "compute on this machine."
            ) from problem
        finally:
            with suppress(ValueError):  # not in the main thread, which Ray leaves alone
                signal.signal(signal.SIGTERM, before)

    def workers(self, host: Host, shares: Sequence[Sequence[ClientId]]) -> list[_Line]:
        """Return a worker for each share of the clients, with their blocks and secrets."""
        kind = ray.remote(num_cpus=1, max_restarts=0, scheduling_strategy="SPREAD")(Node)
        lines = [_Line(kind.remote(), host, share) for share in shares]
        budget = None if host.states.budget is None else host.states.budget // len(lines)
        begin = _Begin(self._algorithm, self._made_of, host.seed, budget)
        for line in lines:
            line.begin(begin)
        return lines


def _knock(host: str, port: int) -> None:
    """Raise OSError if no cluster is there, for which Ray would look for minutes."""
    with socket.create_connection((host, port), _KNOCKING) as line:
        if os.environ.get("RAY_USE_TLS", "0") != "0":
            return
        line.sendall(_HELLO)
        with line.makefile("rb") as answer:
            first = answer.read(4)
    if len(first) < 4 or first[3] != _SETTINGS:
        raise ConnectionError("what answers there is no cluster of Ray")


def _processors() -> int:
    return int(ray.cluster_resources().get("CPU", 0))


class _Line:
    """An actor, on the side of the process that asks."""

    def __init__(self, actor: Any, host: Host, clients: Sequence[ClientId]) -> None:
        self._actor, self._host, self._first = actor, host, some_of(clients)
        self._node = "a node"
        self._asked: Any = None
        self._closing = weakref.finalize(self, _end, actor)

    def begin(self, begin: _Begin) -> None:
        """Wait until it is there, and let it begin; WorkerError if it is not in time or ends."""
        try:
            told = ray.get(self._actor.told.remote(), timeout=_SECONDS)
        except GetTimeoutError:
            raise WorkerError(
                f"The Ray cluster gave no process for {self._first} within {_SECONDS:g} seconds; "
                "wait until others leave its processors, or set workers to fewer, then resume the "
                "run."
            ) from None
        except RayError as problem:
            raise self._gone(problem) from None
        node, versions = codec.decode(told)
        self._node = f"node {node}"
        if versions != _versions():
            raise WorkerError(
                f"{self._node} has {versions}, where this machine has {_versions()}; install the "
                "same on all machines, then resume the run."
            )
        self._asked = self._actor.begin.remote(b"".join(framed([begin])))

    def take(self, clients: Sequence[ClientId]) -> None:
        """Let it have the blocks and secrets of clients."""
        chunk, size = list[Any](), 0
        for number, client in enumerate(clients, 1):
            secret = self._host.secrets[client].to_file()
            parts = {part: _content(one) for part, one in self._host.blocks[client].items()}
            chunk.append((client, secret, parts))
            size += codec.size(chunk[-1])
            if size > _CHUNK or number == len(clients):
                self._asked = self._actor.take.remote(b"".join(framed(chunk)))
                self.receive()
                chunk, size = [], 0

    def send(self, *values: Any) -> None:
        """Send some values."""
        self._asked = self._actor.answer.remote(b"".join(framed(values)))

    def receive(self) -> list[memoryview]:
        """Return the values that it sends; errors are those of `engines.workers.Worker`."""
        try:
            data = ray.get(self._asked)
        except RayError as problem:
            raise self._gone(problem) from None
        return unless_failed(unframed(memoryview(data)))

    def close(self) -> None:
        """End the process."""
        self._closing()

    def _gone(self, problem: RayError) -> WorkerError:
        lines = str(problem).strip().splitlines() or [type(problem).__name__]
        why = lines[-1].strip().rstrip(".")[:160]
        return WorkerError(
            f"The process at {self._node} of the Ray cluster that computed for "
            f"{self._first} is gone ({why}), perhaps with its node; resume the run with "
            "-c experiment.ray= and its address (and -c experiment.workers=0 where fewer "
            "processors are left), or with an empty -c experiment.ray= on this machine."
        )


def _end(actor: Any) -> None:
    if ray.is_initialized():
        ray.kill(actor)
