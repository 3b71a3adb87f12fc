"""The vocabulary that every algorithm is written in: clients that are asked, sums that stay sealed.

An `Algorithm` is a server's `round` over `Clients`. The server may `ask` (it reads each reply),
`sum` (it gets a total that it cannot read, but may add, scale and forward) and `reveal` (it reads
a total: explicit, and easy to find). Which machine the clients run on is the engine's business.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import math
import secrets
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial, wraps
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final, Literal, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from intarsia.core.block import Array, Block, ClientId
from intarsia.core.schema import Schema
from intarsia.errors import AlgorithmError, FederationError, KeyMaterialError, nearest

T = TypeVar("T")
Part = Literal["train", "validation", "test"]  # of a client's rows
_WORDS: Final = "__contents__"  # of a reply's class: what its fields hold
_MODELS: Final = "__models__"  # of a class of messages: which fields hold one


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
    message, answer = _annotations(call, 2)
    return ClientFunction(
        name or call.__name__,
        _with_key(call, 4),
        part,
        message=_class(message),
        reply=_class(*typing.get_args(answer)[1:]),
        protocol=protocol,
    )


def _with_key(function: Callable[..., T], arguments: int) -> Callable[..., T]:
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

    visits, answers = (typing.get_args(hint)[:1] for hint in _annotations(together, 0))
    return ClientFunction(
        together.__name__,
        call,
        together=together,
        message=_class(*(typing.get_args(one)[2] for one in visits)),
        reply=_class(*(typing.get_args(one)[1] for one in answers)),
    )


def _annotations(function: Callable[..., Any], place: int) -> tuple[Any, Any]:
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


@typing.dataclass_transform(frozen_default=True)
def describe(whole: str = "", /, **fields: str) -> Callable[[type[T]], type[T]]:
    """Make a class a reply, a frozen dataclass, and say in plain words what its fields hold.

    An audit's sentences are made of these words.

    The words stand for one client's part and for the total of all: say what the values are, and not
    whose. Fields that are one thing to a reader have the same words.

    Parameters
    ----------
    whole
        Of each field that has no words of its own.

    Raises
    ------
    AlgorithmError
        If a field has no words, or there is none of a name; or if the class is a dataclass already.
    """

    def described(kind: type[T]) -> type[T]:
        if "__dataclass_fields__" in vars(kind):
            raise AlgorithmError(
                f"{kind.__name__} is a dataclass already, and `describe` makes it one; take its "
                "@dataclass away."
            )
        reply = dataclass(frozen=True)(kind)
        names = [one.name for one in dataclasses.fields(cast(Any, reply))]
        words = {name: fields.get(name, whole) for name in names}
        if wrong := sorted({*fields} - {*names} | {name for name in names if not words[name]}):
            raise AlgorithmError(
                f"{reply.__name__} has the fields {names}; describe each of them, and no other: "
                f"{wrong}."
            )
        setattr(reply, _WORDS, words)
        return reply

    return described


def contents(reply: type) -> Mapping[str, str]:
    """Return in words what the fields of a reply hold; {} where it was not described."""
    words: Mapping[str, str] = getattr(reply, _WORDS, {})
    return words


def holds_model(*fields: str) -> Callable[[type[T]], type[T]]:
    """Say of which fields of a message that they hold a model, sealed or in the clear."""

    def marked(kind: type[T]) -> type[T]:
        setattr(kind, _MODELS, fields)
        return kind

    return marked


def models_in(message: type) -> tuple[str, ...]:
    """Return which fields of a message hold a model."""
    fields: tuple[str, ...] = getattr(message, _MODELS, ())
    return fields


@dataclass(frozen=True)
class Ready:
    """What a client answers that has nothing to send: it has what it needs, or is done."""


@dataclass(frozen=True)
class RoundMetrics:
    """What the server knows after a round; goes to the history as it is."""

    finished: bool = False  # the algorithm has nothing left to do
    primal: float | None = None
    dual: float | None = None
    gap_relative: float | None = None  # (primal - dual) / |primal|
    loss: float | None = None  # for algorithms without a certificate
    phase: str = ""

    @classmethod
    def certified(cls, primal: float, dual: float, phase: str) -> RoundMetrics:
        """Return the metrics of a model whose objective is at most primal - dual too large."""
        gap = (primal - dual) / max(primal, 1e-300)
        return cls(primal=primal, dual=dual, gap_relative=gap, phase=phase)


@dataclass(frozen=True)
class FinalResult:
    """What a run ends with: the last RoundMetrics and what the server may keep of the model."""

    info: RoundMetrics
    weights: Array | None = None  # (outputs, features) of a linear model, in the schema's order
    errors: Array | None = None  # (outputs, features) standard errors of the weights
    degrees_of_freedom: Array | None = None  # (outputs,) that are left, beside errors
    # (outputs,) standard errors of the score where all columns of the tables are 0
    zero_errors: Array | None = None
    # of models at several levels: for each level the number of the model that a client has there,
    # by client; those without one are left out
    structure: tuple[Mapping[ClientId, int], ...] = ()
    level_words: tuple[str, ...] = ()  # what each of the levels is, in a word or two
    network: Mapping[str, NDArray[Any]] | None = None  # the server's, its parameters by name
    notes: tuple[str, ...] = ()  # what the algorithm chose for itself, in sentences


@dataclass(frozen=True)
class ServerModel:
    """How clients score samples by a network that the server has, on the blocks of all of them.

    Its first layer is a sum over feature blocks: `part(state, block)` gives each block's term of
    it, (units, samples) by block, and `scores(state, total)` the scores, (outputs, samples), of the
    sum over all blocks, (units, samples).
    """

    part: Callable[[Any, Block], Mapping[str, Array]]
    scores: Callable[[Any, Array], Array]


@dataclass(frozen=True)
class Release:
    """What makes that which an algorithm releases differentially private, in plain numbers."""

    deviation: float  # of the noise on every value of a release
    clip: float  # largest norm of a sample's row, or of a client's update
    releases: int = 1  # how many times a client adds noise, at most
    gap: float = math.inf  # largest P - D of a model that may be released


# Which totals a field of a message may hold, by "Reply.field". One name: the last such total as it
# is. Several, or one in a tuple: a combination with public factors, of earlier totals too, and with
# PUBLIC among them also numbers that the server has in the clear. With AS_IT_IS it is one total, as
# it is, of those since the client last began anew (`begins`).
Origin = str | tuple[str, ...]
PUBLIC = "public"
AS_IT_IS = "as it is"


@dataclass(frozen=True)
class Sends:
    """What a client function sends, and who reads it: declared once, read by all that ask.

    Of an `ask` the server reads every field of each client's reply. Of a `sum` it holds the total
    of each field sealed: it reads those that it `reveals`; clients open those that messages hold,
    each its own entries. An entry that runs over samples, features or blocks is added up over the
    clients that hold these (its owners), any other over all clients that are called.
    """

    function: ClientFunction
    call: Literal["ask", "sum"]
    reply: type
    reveals: tuple[str, ...] = ()  # fields of the total that the server reads
    opens: tuple[str, ...] = ()  # fields of the total that clients open, their own entries of each
    # options -> whether it is what clients came to alone, every entry of which is added up over all
    # that are there, who open it: of two each can tell the other's part, so that at least
    # privacy.least_clients contribute
    pooled: Callable[[Any], bool] = lambda options: False
    # options -> whether clients choose with whom it is added up: one may be alone in a total
    chosen: Callable[[Any], bool] = lambda options: False
    # options -> what an `ask` tells the server of each client beside scalars, in words; "": nothing
    tells: Callable[[Any], str] = lambda options: ""
    takes: tuple[tuple[str, Origin], ...] = ()  # fields of the message that hold totals: of what
    # options -> whether the algorithm makes this call at all
    needed: Callable[[Any], bool] = lambda options: True
    # Of a sum, who is asked together: "all" clients of the federation, whoever is away; "present",
    # all of them where all take part in each round; "some". A server that asked fewer would get the
    # total of these.
    together: Literal["all", "present", "some"] = "present"
    # (schema of the training part, message) -> those that "all" and "present" stand for, where
    # they are not all clients
    parties: Callable[[Schema, Any], Collection[ClientId]] | None = None
    present: str = ""  # the field of the message that says who is asked, by names or as a number
    number: str = ""  # the field that says which round it is
    # whether one round calls it several times: a site counts the rounds by what is called once
    repeats: bool = False
    # fields that tell the model: once the server has opened one, clients train no more. A server
    # that read the model between steps of its own choice would read what these steps hide
    model: tuple[str, ...] = ()
    trains: bool = False  # whether clients train by it, though it tells the model
    # whether a run asks for it with one message alone: what the server reads by it is a function of
    # what it sends
    once: bool = False
    # the field of the message for each of whose values it is asked for with one message alone
    once_for: str = ""
    # whether clients go back by it to what they kept, once: from there what is asked for once for a
    # value is asked for once more
    restores: bool = False
    keeps: bool = False  # whether clients keep by it what they go back to
    # whether a client begins anew by it: totals of before are not told any more (see AS_IT_IS)
    begins: bool = False
    # whether clients score by what they are told with it alone, whatever they were told before:
    # grades of all add up of clients that have the same model since, where some may be away, too
    renews: bool = False
    # how many different replies a run may have of one client; 0: any number. What tells sums over
    # a client's rows tells the rows, if it is asked for often enough by other models
    most: int = 0
    # how many times in a round it tells the objective on training rows, at most, 0: any number. A
    # run has no more different replies of one client than that, and two at its end
    each_round: int = 0
    each_round_times: str = ""  # the hyperparameter that this number is for each of
    # of how many models at most a run has such replies, those of all functions of the part together
    # that say so: of a state, and of totals that the message holds; 0: any number
    models: int = 0

    def origin(self, field: str) -> Origin | None:
        """Return of what a field of the message holds a total; None: it holds none."""
        return next((origin for name, origin in self.takes if name == field), None)


def asks(
    *functions: ClientFunction, tells: Callable[[Any], str] = lambda options: ""
) -> tuple[Sends, ...]:
    """Declare client functions whose replies the server reads one by one; errors as of `sums`."""
    return tuple(Sends(fn, "ask", _reply_of(fn), tells=tells) for fn in functions)


def sums(
    *functions: ClientFunction,
    reveals: Sequence[str] = (),
    opens: Sequence[str] | None = None,
    pooled: Callable[[Any], bool] = lambda options: False,
    chosen: Callable[[Any], bool] = lambda options: False,
) -> tuple[Sends, ...]:
    """Declare client functions of whose replies the server gets sealed totals.

    `opens` None: clients open each field that the server does not read; counts of samples it needs
    to add.

    Raises
    ------
    AlgorithmError
        If one is no client function, or is not annotated with a reply that `describe` made.
    """
    found: list[Sends] = []
    for fn in functions:
        reply: Any = _reply_of(fn)
        rest = opens
        if rest is None:
            hints = typing.get_type_hints(reply, include_extras=True)
            rest = [
                one.name
                for one in dataclasses.fields(reply)
                if one.name not in reveals
                and Counts not in (hints[one.name], *typing.get_args(hints[one.name]))
            ]
        found.append(Sends(fn, "sum", reply, tuple(reveals), tuple(rest), pooled, chosen))
    return tuple(found)


def _reply_of(fn: ClientFunction) -> type:
    """Return the class of a client function's replies, a frozen dataclass."""
    if not isinstance(fn, ClientFunction):
        raise not_declared(fn)
    reply = fn.reply
    if reply is object:
        raise AlgorithmError(
            f"{fn.name} does not say what it replies; annotate what it takes and returns, as in "
            f"def {fn.name}(own: State, block: fl.Block, told: Message) -> tuple[State, Reply]."
        )
    made = getattr(reply, "__dataclass_params__", None)
    if made is None or not made.frozen:
        remedy = 'write @fl.describe("what its fields hold, in words") above it'
        if made is not None:
            remedy = "take its @dataclass away: fl.describe makes it one"
        raise AlgorithmError(
            f"{fn.name} replies with {reply.__name__}, which is no frozen dataclass; {remedy}."
        )
    return reply


def each(sends: Iterable[Sends], **terms: Any) -> tuple[Sends, ...]:
    """Declare the same terms of several calls."""
    return tuple(replace(one, **terms) for one in sends)


def opening(takes: Mapping[str, Origin], sends: Iterable[Sends]) -> tuple[Sends, ...]:
    """Declare which totals the messages of client functions hold, by "Message.field".

    A client opens no others.

    What is said of messages that these functions do not have says nothing.

    Raises
    ------
    AlgorithmError
        If one of their messages has no such field.
    """
    found: list[Sends] = []
    sends = tuple(sends)
    for place in takes:
        kind = place.partition(".")[0]
        messages = [one.function.message for one in sends]
        own = [its for one in messages if one.__name__ == kind for its in _places(one)]
        if own and place not in own:
            raise AlgorithmError(
                f"opening() is given {place!r}, which is no field of {kind}; {nearest(place, own)}."
            )
    for one in sends:
        message = one.function.message.__name__
        known = dict(one.takes)
        for place, origin in takes.items():
            kind, field = place.split(".")
            if kind == message:
                known[field] = origin
        found.append(replace(one, takes=tuple(known.items())))
    return tuple(found)


def _places(kind: Any) -> list[str]:
    """Return the fields of a message or a reply, each as "Message.field"."""
    known = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    return [f"{kind.__name__}.{one.name}" for one in known]


def _check_field(what: str, names: Sequence[str], reply: type) -> None:
    """Refuse names that are no fields of a reply."""
    known = [place.partition(".")[2] for place in _places(reply)]
    for name in names:
        if name not in known:
            raise AlgorithmError(
                f"{what}: {name!r} is given, which is no field of {reply.__name__}; "
                f"{nearest(name, known)}."
            )


@dataclass(frozen=True, kw_only=True)
class Disclosure:
    """All that crosses in a run of an algorithm, beside what the shared protocols declare.

    Raises
    ------
    AlgorithmError
        If a reply has no field of a name that is revealed or opened, or that messages hold.
    """

    sends: tuple[Sends, ...] = ()  # none: nothing crosses, the data is in one place
    # (options, schema) -> parts of the model that only some clients add to and open, by their names
    # in a sentence, with these clients
    groups: Callable[[Any, Schema], Mapping[str, Sequence[ClientId]]] = lambda options, schema: {}
    # options -> how many rows at most a client's change in a round is of; None: all of them
    rows: Callable[[Any], int | None] = lambda options: None
    dp_unit: Literal["sample", "client"] = "sample"  # whose data the noise of `private` hides
    # (server before the set-up, client) -> what fields of messages ("Message.field") may
    # hold in the clear: what the server draws from the seed, say. Other fields may hold anything.
    allowed: Callable[[Any, ClientId], Mapping[str, Sequence[Any]]] = lambda server, client: {}

    def __post_init__(self) -> None:
        totals = [one for one in self.sends if one.call == "sum"]
        for one in self.sends:
            given = [("reveals", one.reveals), ("opens", one.opens), ("model", one.model)]
            for word, names in given:
                _check_field(f"{word} of {one.function.name}", names, one.reply)
            for name, origin in one.takes:
                for of in (origin,) if isinstance(origin, str) else origin:
                    kind, _, field = of.partition(".")
                    of_kind = [total.reply for total in totals if total.reply.__name__ == kind]
                    message = one.function.message.__name__
                    for reply in of_kind[:1]:
                        _check_field(f"what {message}.{name} holds totals of", (field,), reply)

    def needed(self, options: Any) -> tuple[Sends, ...]:
        """Return what crosses with some hyperparameters."""
        return tuple(one for one in self.sends if one.needed(options))

    @property
    def functions(self) -> tuple[ClientFunction, ...]:
        """Return the client functions that may be called: each once."""
        return tuple(dict.fromkeys(one.function for one in self.sends))

    def aggregates_all(self, options: Any) -> bool:
        """Return whether clients open totals of what each came to alone, over all of them."""
        return any(one.pooled(options) for one in self.sends)

    def clients_choose_cluster(self, options: Any) -> bool:
        """Return whether clients choose with whom what they came to is added up."""
        return any(one.chosen(options) for one in self.sends)

    def server_reads(self, options: Any) -> str:
        """Return what the server reads of single clients in every mode; "": only scalars."""
        return " and ".join(dict.fromkeys(filter(None, (one.tells(options) for one in self.sends))))


@dataclass(frozen=True)
class LocalBaseline:
    """How each client learns the same alone, for the comparison with what it has of the others.

    By another algorithm, or by the same one without an exchange. It has the hyperparameters of the
    run that both know, but for those that are changed.
    """

    algorithm: str
    changed: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)

    def options(self, hyperparameters: type, of_run: Any) -> Any:
        """Return the hyperparameters of the algorithm that learns alone."""
        names = [one.name for one in dataclasses.fields(hyperparameters) if one.init]
        known = {name: getattr(of_run, name) for name in names if hasattr(of_run, name)}
        return hyperparameters(**{**known, **self.changed})


@dataclass(frozen=True)
class LinearClient:
    """What a client of a linear model starts with, where its algorithm makes no other state."""

    w: Array  # (outputs, features) or (features,) the weights as it was told them last
    labels: Array  # (samples,) its part of the labels: they add up to those of all samples


def _linear_client(options: Any, schema: Schema, client: ClientId, block: Block) -> LinearClient:
    """Return weights of zero, and the client's part of the labels."""
    zeros = np.zeros((schema.labels.outputs, block.shape[1]))
    return LinearClient(zeros, schema.part_of_labels(client, block))


def _linear_scores(state: Any, block: Block) -> Array:
    """Return the scores by the weights in a client's state, (outputs, samples)."""
    if not hasattr(state, "w"):
        raise AlgorithmError(
            f"A client's state, a {type(state).__name__}, has no 'w', by which a linear model "
            "predicts; call its weights w, or give the model a `predict` of its own."
        )
    return np.stack([block.x @ w for w in np.atleast_2d(state.w)])


def _architecture(options: Any, schema: Schema, client: ClientId | None) -> Any:
    return options.architecture


_TASKS: Final = ("binary", "multiclass", "regression")


@dataclass(frozen=True, kw_only=True)
class Model:
    """What an algorithm trains.

    `predict` gives a client's scores of the samples of a block, (outputs, samples); where it is
    `additive` the clients' scores of a sample add up to the model's, and training blocks hold each
    value divided by its number of holders. Of linear models it may be left out: the scores are then
    those by the weights `w` of a client's state.

    Raises
    ------
    AlgorithmError
        If `predict` is left out and the model is not linear, or a task is none.
    """

    predict: Callable[[Any, Block], Array] = _linear_scores
    additive: bool = False
    # one linear model of all columns, linear models or networks of each client
    kind: Literal["linear", "client_linear", "networks"] = "networks"
    tasks: tuple[str, ...] = _TASKS  # of the labels it learns
    own_feature_space: bool = False  # whether each client may have columns of its own alone
    row_weights: bool = False  # whether the weights of rows multiply their losses
    # state -> the parameters of the client's own network by name
    network: Callable[[Any], Mapping[str, NDArray[Any]]] = lambda state: {}
    # state -> weights, (features,), and intercept of the client's own linear model
    own_weights: Callable[[Any], tuple[Array, float]] = lambda state: (state.w[0], 0.0)
    # (options, schema, client) -> what its network is made of; for the server (client = None) None
    # if it has none
    architecture: Callable[[Any, Schema, ClientId | None], Any] = _architecture
    server_model: ServerModel | None = None  # None: the server has no network
    # state -> which classes the client has in training, (classes,): its scores are told apart by
    # them; None: they are not
    trained_classes: Callable[[Any], NDArray[np.bool_]] | None = None
    local_baseline: LocalBaseline | None = None  # None: the comparison is with linear models
    # (clients, options, what all share) -> None: new clients learn from it; None: by other means
    join: Callable[[Clients, Any, Array], None] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.tasks, str):
            raise AlgorithmError(
                f"tasks is the text {self.tasks!r}; write a tuple: tasks=({self.tasks!r},)."
            )
        for task in self.tasks:
            if task not in _TASKS:
                raise AlgorithmError(f"tasks names {task!r}; {nearest(task, _TASKS)}.")
        if self.kind != "linear" and self.predict is _linear_scores:
            raise AlgorithmError(f"A model of kind {self.kind!r} needs its own `predict`; give it.")


def _only_options(options: Any, schema: Schema) -> Any:
    """Return the hyperparameters: the set-up makes the server's state of them."""
    return options


def _as_it_is(server: Any, clients: Clients) -> Any:
    """Return the server's state as it is."""
    return server


def _uncertified(server: Any, clients: Clients) -> tuple[Any, RoundMetrics]:
    """Return the server's state, of which nothing is known."""
    return server, RoundMetrics()


def _concluded(server: Any, clients: Clients, rng: RandomKey) -> FinalResult:
    """Return what a run ends with whose models are the clients' own."""
    return FinalResult(RoundMetrics())


def _linear_concluded(
    server: Any,
    clients: Clients,
    rng: RandomKey,
    *,
    certify: Callable[..., tuple[Any, RoundMetrics]],
) -> FinalResult:
    """Certify the final model and reveal it: the weights `w` of the server's state."""
    server, info = certify(server, clients, rng)
    if not hasattr(server, "w"):
        raise AlgorithmError(
            f"The server's state, a {type(server).__name__}, has no 'w', with which a linear model "
            "ends; call its weights w, or give the algorithm a `conclude` of its own."
        )
    # discloses the model: the server may predict with it
    w = server.w if isinstance(server.w, np.ndarray) else clients.reveal(server.w)
    return FinalResult(info, np.atleast_2d(w))


_ARGUMENTS: Final = MappingProxyType(  # of an algorithm's functions; the last is random numbers
    {"init_server": 3, "init_client": 5, "setup": 3, "round": 3, "certify": 3, "conclude": 3}
)


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """A federated algorithm as pure functions; `hyperparameters` is its own frozen dataclass.

    `setup` runs once with all clients, `round` with those that are there, `certify` and
    `conclude` with all clients again. A function that draws no random numbers need not take a key.

    `private` gives the same algorithm with noise in what it releases, which hides the data of one
    of the disclosure's units; where these are samples, rows are clipped before training.

    What is left out: `init_server` returns the hyperparameters, of which `setup` then makes the
    server's state; without `setup` nothing changes. `certify` knows nothing. Of linear models
    `init_client` returns a `LinearClient`, and `conclude` certifies and reveals the weights `w` of
    the server's state: totals that these come from are declared as `reveals` and `model`. Of other
    models it knows nothing. `states` are the hyperparameters, and what
    `init_server`, `setup` and `init_client` are annotated to return.

    Raises
    ------
    AlgorithmError
        If `init_client` is left out and the model is not linear.
    """

    name: str
    hyperparameters: type
    round: Callable[..., tuple[Any, RoundMetrics]]  # (server, clients, key)
    model: Model
    disclosure: Disclosure
    init_server: Callable[..., Any] = _only_options  # (options, schema, key)
    # (options, schema, name of the client, its training block, key)
    init_client: Callable[..., Any] = _linear_client
    # (server, clients, key), each
    setup: Callable[..., Any] = _as_it_is
    certify: Callable[..., tuple[Any, RoundMetrics]] = _uncertified
    conclude: Callable[..., FinalResult] = _concluded
    absences: bool = False  # whether a round may go on without some of the clients
    # the dataclasses that a checkpoint of this algorithm may hold
    states: tuple[type, ...] = ()
    private: Callable[[Release], Algorithm] | None = None
    federated: ClassVar[Literal[True]] = True  # a baseline has the data in one place

    def __post_init__(self) -> None:
        linear = self.model.kind == "linear"
        if not linear and inspect.unwrap(self.init_client) is _linear_client:
            raise AlgorithmError(f"{self.name} trains no linear model: give its own `init_client`.")
        for name, arguments in _ARGUMENTS.items():
            object.__setattr__(self, name, _with_key(getattr(self, name), arguments))
        if linear and getattr(self.conclude, "func", self.conclude) in (
            _concluded,
            _linear_concluded,  # of an algorithm that this one differs from by `certify`
        ):
            conclude = partial(_linear_concluded, certify=self.certify)
            object.__setattr__(self, "conclude", conclude)
        if not self.states:
            steps = (self.init_server, self.setup, self.init_client)
            whole = (getattr(inspect.unwrap(one), "func", one) for one in steps)  # of a partial
            made = (_annotations(one, 0)[1] for one in whole)
            known = (*made, self.hyperparameters)
            found = dict.fromkeys(one for one in known if dataclasses.is_dataclass(one))
            object.__setattr__(self, "states", tuple(found))

    def begin(self, options: Any, schema: Schema, rng: RandomKey) -> Any:
        """Return the server's state before the set-up.

        Raises
        ------
        FederationError
            If the algorithm does not learn labels as they are, or what it raises itself.
        """
        labels, tasks = schema.labels, self.model.tasks
        if labels.task not in tasks:
            of = f", {len(labels.classes)} classes" if labels.classes else ""
            raise FederationError(
                f"The task of the labels is {labels.task!r}{of}, and {self.name} learns "
                f"{' or '.join(tasks)}; set labels.task, or use another algorithm."
            )
        return self.init_server(options, schema, rng)

    def prepare(self, server: Any, clients: Clients, rng: RandomKey) -> Any:
        """Return the server's state after the set-up.

        Raises
        ------
        AlgorithmError
            If the set-up returns none.
        """
        found = self.setup(server, clients, rng)
        if found is None:
            raise AlgorithmError(
                f"setup of {self.name} returns nothing; return the server's state, with which the "
                "first round begins."
            )
        return found

    def check_present(self, present: int, clients: int) -> None:
        """Refuse a round with some of the clients, if the algorithm needs all.

        Raises
        ------
        FederationError
            If it does.
        """
        if present < clients and not self.absences:
            raise FederationError(
                f"{present} of {clients} clients take part in a round, and {self.name} needs all; "
                'set experiment.participation = 1, and absent = "wait" where it is set otherwise.'
            )
