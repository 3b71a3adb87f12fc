"""What an algorithm declares of all that crosses: what is sent, who reads it, how often.

Sites hold every call against it, and the audit is made of its words.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, cast

from intarsia.core.block import ClientId
from intarsia.core.client_functions import ClientFunction, Counts, T, not_declared
from intarsia.core.schema import Schema
from intarsia.errors import AlgorithmError, nearest

_WORDS: Final = "__contents__"  # of a reply's class: what its fields hold
_MODELS: Final = "__models__"  # of a class of messages: which fields hold one


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
    # metrics of all add up of clients that have the same model since, where some may be away, too
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
