"""What runs at clients, and how a server calls it: asks that it reads, sums that stay sealed.

A client function is pure: (state, block, message, rng) -> (state, reply). A server may `ask` (it
reads each reply), `sum` (it gets a total that it cannot read, but may add, scale and forward) and
`reveal` (it reads a total: explicit, and easy to find). Which machine the clients run on is the
engine's business. What each function draws from, and what its arrays run over, is here too.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import secrets
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import wraps
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from intarsia.core.block import Array, Block, ClientId
from intarsia.core.schema import Schema
from intarsia.errors import AlgorithmError, KeyMaterialError

T = TypeVar("T")
Part = Literal["train", "validation", "test"]  # of a client's rows


class Layout(Enum):
    """What a summed array runs over: its last axis, but for blocks."""

    SAMPLES = "samples"
    FEATURES = "features"
    SELECTED = "selected"  # some samples of each of the client's cells
    COUNTS = "counts"  # how many of each of the client's sample cells
    BLOCKS = "blocks"  # an array for each of the client's feature blocks, whatever its axes
    # as samples and selected samples; of each sample one client alone opens the total: of those
    # with its label that are asked, the first by `Schema.score_cells`
    SCORES = "scores"
    SELECTED_SCORES = "selected scores"
    LABELLED = "labelled scores"  # as samples; all that hold a sample's label open the total

    def __init__(self, value: str) -> None:
        self.is_selected = value.startswith("selected")  # it is of some samples only
        self.is_scores = value.endswith("scores")  # only holders of a sample's label open it
        self.is_whole_scores = self.is_scores and not self.is_selected

    __hash__ = object.__hash__  # each is there once; Enum's own, of the name, runs in Python


PerSample = Annotated[Array, Layout.SAMPLES]  # (..., the client's samples)
PerFeature = Annotated[Array, Layout.FEATURES]  # (..., the client's features)
# Some samples only: all owners of a cell pick the same ones, in the same order. The reply says in a
# field of counts how many of each of its cells; a sum is laid out cell by cell.
PerSelected = Annotated[Array, Layout.SELECTED]  # (..., the client's selected samples)
Counts = Annotated[NDArray[np.int64], Layout.COUNTS]  # (the client's sample cells, or of scores,)
# What tells a sample's score: added up over all its owners, and opened by one holder of its label.
# To any other client it is 0, or left out of selected ones, which have the cells of scores.
PerScore = Annotated[Array, Layout.SCORES]  # (..., the client's samples)
PerSelectedScore = Annotated[Array, Layout.SELECTED_SCORES]  # (..., its selected samples)
# The same, opened by all that hold the sample's label.
PerLabelledScore = Annotated[Array, Layout.LABELLED]  # (..., the client's samples)
# Selected entries may be unsigned 64-bit words in place of numbers, where one client alone sends
# those of a cell: they arrive bit by bit in every mode.
Words = NDArray[np.uint64]
# Fields may be unsigned 32-bit words: a sum has them as numbers, added up exactly in every mode.
Halves = NDArray[np.uint32]
# By the names of feature blocks that the client holds (see `feature_blocks`); a sum is laid out
# block by block, each over the clients that hold it.
PerBlock = Annotated[Mapping[str, Array], Layout.BLOCKS]
# Fields that are annotated with none are summed entry by entry: every client's has one shape.


@dataclass(frozen=True)
class RandomKey:
    """Names one stream of random numbers; equal keys give equal numbers on every engine.

    It is public: whoever knows the seed has the numbers. What hides something comes from a
    `SecretKey`.
    """

    words: tuple[int | str, ...]

    def fold_in(self, *words: int | str) -> RandomKey:
        """Return the key of a stream of its own below this one."""
        return RandomKey((*self.words, *words))

    def integer(self) -> int:
        """Return a 63-bit number that stands for the stream."""
        digest = hashlib.blake2b(repr(self.words).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 1

    def generator(self) -> np.random.Generator:
        """Return a fresh generator at the start of the stream."""
        return np.random.Generator(np.random.Philox(key=self.integer()))


class SecretKey:
    """Random numbers that hide something: nobody but the owner of the key can tell them.

    A client draws its key from the system, keeps it with its private state, and sends it to
    nobody; no seed of an experiment says anything about it. It is no dataclass, so that no message
    can hold it.
    """

    __slots__ = ("_secret",)
    SIZE: ClassVar[int] = 32  # bytes

    def __init__(self, secret: bytes) -> None:
        if len(secret) != SecretKey.SIZE:
            raise KeyMaterialError(
                f"A secret of {len(secret)} bytes was given where {SecretKey.SIZE} were expected; "
                "let SecretKey.draw() draw one."
            )
        self._secret = secret

    @classmethod
    def draw(cls) -> SecretKey:
        """Return a key that is drawn from the system."""
        return cls(secrets.token_bytes(cls.SIZE))

    def __repr__(self) -> str:
        return "SecretKey(...)"

    def fold_in(self, *words: int | str) -> SecretKey:
        """Return the key of a stream of its own below this one; it does not tell this one."""
        secret = self._secret
        for word in words:
            below = hashlib.blake2b(repr(word).encode(), key=secret, digest_size=SecretKey.SIZE)
            secret = below.digest()
        return SecretKey(secret)

    def stream(self, size: int) -> bytes:
        """Return the first bytes of the stream; some of them tell nothing of the others.

        (The generators of numpy do not promise that: they are for what is public.)
        """
        return hashlib.shake_256(b"stream" + self._secret).digest(size)

    def words(self, count: int) -> Words:
        """Return words of another stream, AES-256 in counter mode: for many of them."""
        # here: it takes a while to import, and few runs need so many
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        key = hashlib.blake2b(b"words", key=self._secret, digest_size=32).digest()
        clear, stream = np.zeros(8 * count, np.uint8), np.empty(8 * count + 16, np.uint8)
        encryptor: Any = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
        encryptor.update_into(clear, stream)
        return stream[: 8 * count].view(np.uint64)

    def to_file(self) -> bytes:
        """Return what a private file of the owner keeps; SecretKey(bytes) reads it."""
        return self._secret


@dataclass(frozen=True)
class NoiseKey:
    """What a client function draws from that releases something with noise.

    An engine gives another one to each call: no attempt at a round, no call with another message or
    another state has the noise of one before. The same call, done again by a run that goes on,
    has the same.
    """

    public: RandomKey  # of the function, for what hides nothing
    secret: SecretKey  # of this release alone
    number: int  # how many the client has begun in the run, this one too: it never goes back


class Sealed(Protocol):
    """A total that the server holds without being able to read it.

    It may be added, scaled and put into a message; a client that opens the message finds its own
    entries of the total there. A total over a reply with several fields has each field as an
    attribute, sealed as well. Reading it in any other way raises SealedError.
    """

    def __add__(self, other: Sealed) -> Sealed: ...
    def __mul__(self, factor: float) -> Sealed: ...
    def __getattr__(self, name: str) -> Any: ...


M = TypeVar("M")
# What clients are told: messages by client, or one for all that are there. A total in it opens as
# each one's own entries; so do entries over all features or samples that the server has itself.
Messages = Mapping[ClientId, Any] | Any
# state, block, message, rng (a SecretKey for a function that is secret, a NoiseKey for one that
# releases): what a call is given
ClientCall = tuple[Any, Block, M, Any]


@dataclass(frozen=True)
class ClientFunction:
    """A named pure function that runs at a client.

    `call(state, block, message, rng) -> (state, reply)` reads its arguments and nothing else.

    `together`, where there is one, runs it for several clients at once: an engine that has them
    all in one process may use it. Each answer depends on its own visit alone, and is that of
    `call` up to rounding.
    """

    name: str  # one of its algorithm, or of its protocol, has it
    call: Callable[[Any, Block, Any, Any], tuple[Any, Any]]
    part: Part = "train"  # which of the client's blocks it reads
    secret: bool = False  # whether it gets a SecretKey of the client's own for a RandomKey
    releases: bool = False  # whether what it sends has noise: it gets a NoiseKey
    together: Callable[[Sequence[ClientCall[Any]]], Sequence[tuple[Any, Any]]] | None = None
    message: type = object  # the class of what `call` is given; object: not declared
    reply: type = object
    protocol: str = ""  # which every run shares; "": the function is its algorithm's own
    stream: str = ""  # whose random numbers it draws; "": those of its own name
    # fields of the reply that one client alone sends for each cell, and the others leave out; what
    # else may be left out is left out by all that are called, or by none
    alone: tuple[str, ...] = ()
    # how many selected entries a cell may have beside one for each feature and output of a sample
    beside: int = 0
    # whether all clients are told the same, in the clear and of totals: what they seal adds up only
    # then. A server that tells one of them something else would tell its part from the others'
    alike: bool = False
    apart: tuple[str, ...] = ()  # fields of the message that may differ in the clear all the same
    # (state after the call, block) -> what the client was told before: what clients seal adds up
    # only where that is the same for all of them
    told_before: Callable[[Any, Block], Any] | None = None

    def answer(self, state: Any, block: Block, message: Any, rng: Any) -> tuple[Any, Any]:
        """Return what `call` returns: the new state, and the reply.

        Raises
        ------
        AlgorithmError
            If it returns something else, or a reply of another class than it declares.
        """
        found: Any = self.call(state, block, message, rng)
        pair: bool = type(found) is tuple and len(found) == 2
        if pair and type(found[0]) is type(state) and type(found[1]) is self.reply:
            return found[0], found[1]  # as nearly always: what follows takes a while
        if not isinstance(found, tuple) or len(found) != 2:
            many = f" of {len(found)} values" if isinstance(found, tuple) else ""
            said = f"returns a {type(found).__name__}{many}"
        elif dataclasses.is_dataclass(state) and not dataclasses.is_dataclass(found[0]):
            said = f"returns a {type(found[0]).__name__} in the place of a {type(state).__name__}"
        elif isinstance(found[1], self.reply) and dataclasses.is_dataclass(found[1]):
            return found
        else:
            said = f"replies with a {type(found[1]).__name__}"
        reply = "its reply, a dataclass" if self.reply is object else f"a {self.reply.__name__}"
        raise AlgorithmError(
            f"{self.name} {said}, and a client function returns two values: the client's new state "
            f"and {reply}; let it return these."
        )


def not_declared(fn: Any) -> AlgorithmError:
    """Return the error about something that clients cannot be called by: no client function."""
    name = getattr(fn, "__name__", "")
    what = "a lambda" if name == "<lambda>" else name or f"a {type(fn).__name__}"
    return AlgorithmError(
        f"{what} is to run at clients and is no client function; write @fl.client_function above "
        "its def."
    )


def client_function(
    call: Callable[..., tuple[Any, Any]],
    *,
    name: str = "",
    part: Part = "train",
    protocol: str = "",
) -> ClientFunction:
    """Return the client function that a Python function defines.

    It takes state, block and message, and a `RandomKey` if it draws random numbers. It has its
    name, unless another is given, and the classes of message and reply that it is annotated with.
    """
    message, answer = annotations_of(call, 2)
    return ClientFunction(
        name or call.__name__,
        with_key(call, 4),
        part,
        message=_class(message),
        reply=_class(*typing.get_args(answer)[1:]),
        protocol=protocol,
    )


def with_key(function: Callable[..., T], arguments: int) -> Callable[..., T]:
    """Return a function of so many arguments, of which the last is random numbers.

    The function that is given may leave out the last, if it draws none.
    """
    own = inspect.signature(function, follow_wrapped=False).parameters.values()
    kinds = [one.kind for one in own if one.kind is not inspect.Parameter.KEYWORD_ONLY]
    if len(kinds) >= arguments or inspect.Parameter.VAR_POSITIONAL in kinds:
        return function

    @wraps(function)
    def keyless(*given: Any, **named: Any) -> T:
        return function(*given[:-1], **named)

    return keyless


def secret_function(
    call: Callable[[Any, Block, Any, SecretKey], tuple[Any, Any]],
) -> ClientFunction:
    """Return the client function whose random numbers hide something: it gets a `SecretKey`."""
    return replace(_drawing(client_function(call), "secret_function"), secret=True)


def noise_function(fn: ClientFunction) -> ClientFunction:
    """Return the client function as one that adds noise to what it sends: it gets a `NoiseKey`."""
    return replace(_drawing(fn, "noise_function"), releases=True)


def _drawing(fn: ClientFunction, kind: str) -> ClientFunction:
    """Return a client function that takes a key; AlgorithmError where it leaves that out."""
    own = inspect.signature(fn.call).parameters.values()
    kinds = [one.kind for one in own if one.kind is not inspect.Parameter.KEYWORD_ONLY]
    if len(kinds) < 4 and inspect.Parameter.VAR_POSITIONAL not in kinds:
        raise AlgorithmError(
            f"{fn.name} is a {kind} and takes no key, of which it would draw what hides its reply; "
            "let it take one after the message."
        )
    return fn


def told_the_same(fn: ClientFunction, *apart: str) -> ClientFunction:
    """Return the client function as one that all clients are told the same for.

    That is what a message holds in the clear, but for the fields `apart`, and which totals.
    """
    return replace(fn, alike=True, apart=apart)


def told_before(fn: ClientFunction, told: Callable[[Any, Block], Any]) -> ClientFunction:
    """Return the client function as one whose parts add up only of clients that were told alike.

    `told` gives what a client was told before, from its state after the call and its block.
    """
    return replace(fn, told_before=told)


def one_sender(fn: ClientFunction, *fields: str, beside: int = 0) -> ClientFunction:
    """Return the client function as one of whose fields one client alone sends those of a cell.

    A cell may have some entries `beside` those of its samples.
    """
    return replace(fn, alone=fields, beside=beside)


def vectorised_function(
    together: Callable[[Sequence[ClientCall[Any]]], Sequence[tuple[Any, Any]]],
) -> ClientFunction:
    """Return the client function that a Python function defines for several clients at once."""

    def call(state: Any, block: Block, message: Any, rng: RandomKey) -> tuple[Any, Any]:
        return together([(state, block, message, rng)])[0]

    visits, answers = (typing.get_args(hint)[:1] for hint in annotations_of(together, 0))
    return ClientFunction(
        together.__name__,
        call,
        together=together,
        message=_class(*(typing.get_args(one)[2] for one in visits)),
        reply=_class(*(typing.get_args(one)[1] for one in answers)),
    )


def annotations_of(function: Callable[..., Any], place: int) -> tuple[Any, Any]:
    """Return what a function says of an argument and of its result, None where it says nothing."""
    hints = typing.get_type_hints(function)
    (name,) = list(inspect.signature(function).parameters)[place : place + 1] or [""]
    return hints.get(name), hints.get("return")


def _class(hint: Any = None) -> type:
    return hint if isinstance(hint, type) else object


def evolve(state: T, **changes: Any) -> T:
    """Return a frozen dataclass with some fields replaced.

    It is dataclasses.replace without the checks of `__init__`: these took more time than the
    arithmetic of a short exchange.
    """
    new = object.__new__(type(state))
    new.__dict__.update(state.__dict__)
    new.__dict__.update(changes)
    return new


class Rounding(NamedTuple):
    """How exact the entries of a sum are, beside float64; both are 0 where none is rounded."""

    step: float  # contributions become multiples of it: such numbers are added up exactly
    error: float  # how far a total may be from the sum of all contributions


class Clients(Protocol):
    """The server's view of the clients; every engine provides one."""

    @property
    def ids(self) -> Sequence[ClientId]:
        """Return the clients that are there in this round."""
        ...

    @property
    def sealed(self) -> bool:
        """Return whether contributions are hidden from the server."""
        ...

    def rounding(self, entries: int) -> Rounding:
        """Return how exact a sum of so many entries is."""
        ...

    def schema(self, part: str = "train") -> Schema:
        """Return what is public of the clients' rows and columns, those that are away too."""
        ...

    def ask(self, fn: ClientFunction, messages: Messages) -> Mapping[ClientId, Any]:
        """Run `fn` at each client that has a message; the server reads each reply."""
        ...

    def sum(self, fn: ClientFunction, messages: Messages) -> Any:
        """Run `fn` at each client that has a message; the server gets the sealed total."""
        ...

    def reveal(self, total: Any) -> Any:
        """Open a sealed total to the server. Comment what it discloses where you call it."""
        ...


def no_such_view(name: str) -> AttributeError:
    """Return the error about an attribute of clients that none has, such as their rows."""
    return AttributeError(
        f"clients have no {name!r}: a server sees ids, sealed and schema(), may ask, sum and "
        "reveal, and reads no rows; let a client function send what it needs"
    )


class ClientsInPart:
    """The clients as an algorithm sees them that knows a part of each one's state alone."""

    def __init__(self, clients: Clients, whole: Callable[[ClientFunction], ClientFunction]) -> None:
        self._clients = clients
        self._whole = whole  # the algorithm's functions -> those of whole states, see `on_part`

    @property
    def ids(self) -> Sequence[ClientId]:
        """Return the clients that are there in this round."""
        return self._clients.ids

    @property
    def sealed(self) -> bool:
        """Return whether contributions are hidden from the server."""
        return self._clients.sealed

    def rounding(self, entries: int) -> Rounding:
        """Return how exact a sum of so many entries is."""
        return self._clients.rounding(entries)

    def schema(self, part: str = "train") -> Schema:
        """Return what is public of the clients' rows and columns."""
        return self._clients.schema(part)

    def ask(self, fn: ClientFunction, messages: Messages) -> Mapping[ClientId, Any]:
        """Run the function of whole states; the server reads each reply."""
        return self._clients.ask(self._whole(fn), messages)

    def sum(self, fn: ClientFunction, messages: Messages) -> Any:
        """Run the function of whole states; the server gets the sealed total."""
        return self._clients.sum(self._whole(fn), messages)

    def reveal(self, total: Any) -> Any:
        """Open a sealed total to the server."""
        # discloses what the algorithm of this part says where it asks for it
        return self._clients.reveal(total)


def on_part(
    fn: ClientFunction,
    part: Callable[[Any, Block], tuple[Any, Block]],
    whole: Callable[[Any, Any], Any],
    name: str = "",
) -> ClientFunction:
    """Return a client function of whole states from one that sees a part of each.

    Parameters
    ----------
    part
        State and block -> what `fn` gets of them.
    whole
        State and the part that `fn` returned -> the new state.
    name
        Another than its own, with which it draws other random numbers.
    """

    def call(state: Any, block: Block, message: Any, rng: Any) -> tuple[Any, Any]:
        own, reply = fn.call(*part(state, block), message, rng)
        return whole(state, own), reply

    def together(calls: Sequence[ClientCall[Any]]) -> list[tuple[Any, Any]]:
        assert fn.together is not None
        given = [(*part(state, block), message, rng) for state, block, message, rng in calls]
        found = zip(calls, fn.together(given), strict=True)
        return [(whole(one[0], own), reply) for one, (own, reply) in found]

    def told(state: Any, block: Block) -> Any:
        assert fn.told_before is not None
        return fn.told_before(*part(state, block))

    return dataclasses.replace(
        fn,
        name=name or fn.name,
        call=call,
        together=None if fn.together is None else together,
        told_before=None if fn.told_before is None else told,
    )
