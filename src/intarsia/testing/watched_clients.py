"""Clients that stand between an algorithm's server and an engine, and note what passes."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from scipy.sparse import issparse

from intarsia.core.block import Block, ClientId
from intarsia.core.client_functions import (
    ClientFunction,
    Clients,
    Layout,
    Messages,
    NoiseKey,
    Rounding,
    no_such_view,
)
from intarsia.core.disclosure import PUBLIC, Sends
from intarsia.core.schema import Schema
from intarsia.engines import codec
from intarsia.engines.communication_log import Split, addressed
from intarsia.engines.sums.sealed import SealedField, layouts
from intarsia.testing.toy_federations import secret_of

MOST: Final = 2000  # exchanges of a round: more, and it does not end
_NOBODYS: Final = 271_828  # a seed that nobody else takes
_ROWS: Final = (Layout.SAMPLES, Layout.FEATURES, Layout.SELECTED)


class EndlessError(BaseException):
    """A round does not end; no handler of the algorithm's own is to take it."""


class Between:
    """The clients of an engine, each function and message of which may be looked at on the way."""

    def __init__(self, engine: Clients) -> None:
        self.engine = engine
        self.calls = 0  # of client functions in this round

    @property
    def ids(self) -> Sequence[ClientId]:
        """Return the clients that are there in this round."""
        return self.engine.ids

    @property
    def sealed(self) -> bool:
        """Return whether contributions are hidden from the server."""
        return self.engine.sealed

    def rounding(self, entries: int) -> Rounding:
        """Return how exact a sum of so many entries is."""
        return self.engine.rounding(entries)

    def schema(self, part: str = "train") -> Schema:
        """Return what is public of the clients' rows and columns."""
        return self.engine.schema(part)

    def __getattr__(self, name: str) -> Any:
        raise no_such_view(name)

    def ask(self, fn: ClientFunction, messages: Messages) -> Mapping[ClientId, Any]:
        """Run `fn` at each client that has a message; the server reads each reply."""
        told = addressed(self.engine, fn, messages)
        return self.engine.ask(self._through(self._next(fn, told)), told)

    def sum(self, fn: ClientFunction, messages: Messages) -> Any:
        """Run `fn` at each client that has a message; the server gets the sealed total."""
        told = addressed(self.engine, fn, messages)
        return self.engine.sum(self._through(self._next(fn, told)), told)

    def reveal(self, total: Any) -> Any:
        """Open a sealed total to the server."""
        # discloses what the algorithm asks for: these clients only look on
        return self.engine.reveal(total)

    def begin_round(self) -> None:
        """Begin to count the calls of a round."""
        self.calls = 0

    def _next(self, fn: ClientFunction, messages: Mapping[ClientId, Any]) -> ClientFunction:
        self.calls += 1
        if self.calls > MOST:
            raise EndlessError(f"calls client functions more than {MOST} times, the last {fn.name}")
        self._hear(fn, messages)
        return fn

    def _hear(self, fn: ClientFunction, messages: Mapping[ClientId, Any]) -> None:
        """Take note of a call."""

    def _through(self, fn: ClientFunction) -> ClientFunction:
        """Return what runs at the clients in place of a function: one at a time, as at sites."""
        return replace(fn, together=None)


class Together(Between):
    """The clients of an engine, which may run functions for several of them at once."""

    def _through(self, fn: ClientFunction) -> ClientFunction:
        return fn


class Listening(Between):
    """Clients that note what they are asked, which totals they open and what the server is told."""

    def __init__(self, engine: Clients) -> None:
        super().__init__(engine)
        self.rounds: list[list[str]] = [[]]  # functions by name, of the set-up and each round
        self.opened: set[str] = set()  # totals, "Reply.field"
        self.taken: dict[tuple[str, str], str] = {}  # function, "Message.field" -> "Reply.field"
        self.clear: set[tuple[str, str]] = set()  # function and "Message.field" with numbers
        self.answers: list[Any] = []  # what the server was given, in order

    def begin_round(self) -> None:
        """Begin to count the calls of a round."""
        super().begin_round()
        self.rounds.append([])

    def ask(self, fn: ClientFunction, messages: Messages) -> Mapping[ClientId, Any]:
        """Run `fn` at each client that has a message; keep what they reply."""
        found = super().ask(fn, messages)
        self.answers.append((fn.name, found))
        return found

    def sum(self, fn: ClientFunction, messages: Messages) -> Any:
        """Run `fn` at each client that has a message; keep the sealed total."""
        found = super().sum(fn, messages)
        self.answers.append((fn.name, found))
        return found

    def reveal(self, total: Any) -> Any:
        """Open a sealed total to the server; keep what it is."""
        # discloses what the algorithm asks for: these clients only listen
        found = super().reveal(total)
        self.answers.append(("", found))
        return found

    def _hear(self, fn: ClientFunction, messages: Mapping[ClientId, Any]) -> None:
        self.rounds[-1].append(fn.name)
        for message in messages.values():
            for name, origins in Split(message).names:
                self.opened |= {*origins.split(" and ")}
                self.taken[fn.name, f"{type(message).__name__}.{name}"] = origins
            if not dataclasses.is_dataclass(message):
                continue
            kind: Any = type(message)
            for name, layout in layouts(kind):
                value = getattr(message, name)
                if layout in _ROWS and value is not None and not isinstance(value, SealedField):
                    self.clear.add((fn.name, f"{type(message).__name__}.{name}"))


class Replayed:
    """Clients that give the server what it was given before, and run nothing."""

    def __init__(self, heard: Listening, ids: Sequence[ClientId]) -> None:
        self.ids, self.sealed, self.schema = ids, heard.sealed, heard.schema
        self.rounding = heard.rounding
        self._left = iter(heard.answers)

    def ask(self, fn: ClientFunction, messages: Messages) -> Any:
        """Return what was replied before."""
        return self._again(fn.name)

    def sum(self, fn: ClientFunction, messages: Messages) -> Any:
        """Return the total of before."""
        return self._again(fn.name)

    def reveal(self, total: Any) -> Any:
        """Return what was revealed before."""
        # discloses nothing: there are no clients
        return self._again("")

    def _again(self, name: str) -> Any:
        known, found = next(self._left, ("nothing", None))
        if known != name:
            raise LookupError(f"{name or 'reveal'} is called where {known or 'reveal'} was before")
        return found


class Written(Between):
    """Clients that write every message, reply and state, and read them back, on the way."""

    def __init__(self, engine: Clients, states: tuple[type, ...]) -> None:
        super().__init__(engine)
        self._states = states  # the classes that a state may hold
        self.down = self.up = 0  # bytes

    def _through(self, fn: ClientFunction) -> ClientFunction:
        def call(state: Any, block: Block, message: Any, rng: Any) -> tuple[Any, Any]:
            written = codec.encode(message)
            self.down += len(written)
            message = codec.decode(written, *classes_in(message))
            state = codec.decode(codec.encode(state), *self._states)
            state, reply = fn.answer(state, block, message, rng)
            written = codec.encode(reply)
            self.up += len(written)
            return state, codec.decode(written, *classes_in(reply))

        return replace(fn, call=call, together=None)


@dataclass
class Visit:
    """A call of a client function, and what came of it."""

    fn: ClientFunction
    block: Block
    given: tuple[Any, Any]  # state and message
    rng: Any
    answer: bytes


@dataclass
class Watching(Between):
    """Clients that look at what their functions do beside answering."""

    engine: Clients
    calls: int = 0
    visits: list[Visit] = field(default_factory=list[Visit])
    # functions that change their arguments, and which
    changed: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    # functions that use the generators which all of a process share
    shared: set[str] = field(default_factory=set[str])
    beside: dict[str, set[str]] = field(default_factory=dict[str, set[str]])  # kept in no field
    # secret functions -> whether what they come to is another with another secret
    hidden: dict[str, bool] = field(default_factory=dict[str, bool])

    def _through(self, fn: ClientFunction) -> ClientFunction:
        def call(state: Any, block: Block, message: Any, rng: Any) -> tuple[Any, Any]:
            written, held = codec.encode((state, message)), _arguments(state, block, message)
            before = shared_generators()
            given = codec.decode(written, *classes_in((state, message)))
            found = fn.answer(state, block, message, rng)
            after = _arguments(state, block, message)
            if differing := {name for name, one in held.items() if after[name] != one}:
                self.changed.setdefault(fn.name, set()).update(differing)
            if dataclasses.is_dataclass(found[0]):
                known = {one.name for one in dataclasses.fields(found[0])}
                self.beside.setdefault(fn.name, set()).update(vars(found[0]).keys() - known)
            if shared_generators() != before:
                self.shared.add(fn.name)
            answer = codec.encode(found)
            if fn.secret or fn.releases:
                other = fn.answer(state, block, message, _other(rng))
                differs = codec.encode(other) != answer
                self.hidden[fn.name] = self.hidden.get(fn.name, False) or differs
            self.visits.append(Visit(fn, block, given, rng, answer))
            return found

        return replace(fn, call=call, together=None)

    def impure(self) -> set[str]:
        """Return functions that answer otherwise when they are called again, in another order."""
        found: set[str] = set()
        for one in reversed(self.visits):
            state, message = one.given
            if codec.encode(one.fn.call(state, one.block, message, one.rng)) != one.answer:
                found.add(one.fn.name)
        return found


def _other(rng: Any) -> Any:
    """Return the key of another client: it tells another secret."""
    other = secret_of("another")
    return replace(rng, secret=other) if isinstance(rng, NoiseKey) else other


def shared_generators() -> tuple[str, str]:
    """Return what tells where the generators are that all of a process share."""
    numpy: Any = np.random.get_state()  # noqa: NPY002  # whether somebody else uses it
    return repr((numpy[1].tobytes(), *numpy[2:])), repr(random.getstate())


@contextlib.contextmanager
def shared_generators_apart() -> Iterator[Callable[[], bool]]:
    """Yield what says whether the generators of a process were drawn from or seeded meanwhile.

    They begin where nobody would seed them, and are put back at the end.
    """
    numpy, python = np.random.get_state(), random.getstate()  # noqa: NPY002
    np.random.seed(_NOBODYS)  # noqa: NPY002
    random.seed(_NOBODYS)
    before = shared_generators()
    after: list[tuple[str, str]] = []
    try:
        yield lambda: after[0] != before
    finally:
        after.append(shared_generators())
        np.random.set_state(numpy)  # noqa: NPY002
        random.setstate(python)


def _arguments(state: Any, block: Block, message: Any) -> dict[str, bytes]:
    """Return the bytes of what a client function is given, by what it is."""
    parts = {f"{name} of its block": one for name, one in contents_of(block).items()}
    return {"its state": codec.encode(state), "its message": codec.encode(message), **parts}


def contents_of(block: Block) -> dict[str, bytes]:
    """Return the bytes of a block's arrays by their names.

    A sparse one is what it holds: in which order a row's entries are stored is no part of that.
    """
    parts = {one.name: getattr(block, one.name) for one in dataclasses.fields(block)}
    return {
        name: _bytes_of(one)
        for name, one in parts.items()
        if isinstance(one, np.ndarray) or issparse(one)
    }


def _bytes_of(values: Any) -> bytes:
    if isinstance(values, np.ndarray):
        found = values.tolist() if values.dtype.kind == "O" else values.tobytes()
        return repr((values.shape, values.dtype.str, found)).encode()
    canonical = values.copy()
    # whoever edits entries leaves what SciPy noted of them
    canonical.has_sorted_indices = canonical.has_canonical_format = False
    canonical.sum_duplicates()
    arrays = canonical.indptr, canonical.indices, canonical.data
    return repr((canonical.shape, *map(_bytes_of, arrays))).encode()


def classes_in(value: Any) -> list[type]:
    """Return the dataclasses in a message or a state."""
    if isinstance(value, Mapping | tuple):
        inner = value.values() if isinstance(value, Mapping) else value
        return [kind for one in inner for kind in classes_in(one)]
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return []
    own = [getattr(value, one.name) for one in dataclasses.fields(value)]
    return [type(value), *(kind for one in own for kind in classes_in(one))]


def told_in_the_clear(heard: Listening, sends: Sequence[Sends]) -> set[str]:
    """Return fields of messages with numbers of rows or columns that are declared to be sealed."""
    public = {
        (one.function.name, f"{one.function.message.__name__}.{field}")
        for one in sends
        for field, origin in one.takes
        if PUBLIC in ((origin,) if isinstance(origin, str) else origin)
    }
    return {field for function, field in heard.clear - public}
