"""Wire protocol between the server and a site: calls, answers, and the classes within them.

Both are records that the codec writes, with its checksum; what the call is about lies in them as
bytes, so that a call can be checked before anything of it is read. No code is ever sent: a call
names a function that the site has.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, Literal

from intarsia import __version__, errors
from intarsia.core.client_functions import ClientFunction
from intarsia.engines import codec
from intarsia.engines.sums.sealed import SealedRecord
from intarsia.engines.sums.secure import CombinationRecord
from intarsia.errors import AbsentError, CodecError, GreetingError, IntarsiaError, SiteError

# ask, sum: a client function; open, seal: a cell of a total; stage: a step of the set-up
Kind = Literal["ask", "sum", "open", "seal", "stage"]

# What calls and answers mean: a run is of one version, at the server and at all sites. 1 named
# functions by their modules; 2 had sealed pieces without nonces; in 3 messages said which labels
# and columns are compared, and what clients count for; 4 had sealed pieces without owners; in 5
# sites agreed on schemas alone, not on the experiment; in 7 none held out rows for early stopping;
# in 8 the server added up what the weights of duals changed by, and none said which columns are
# categorical; in 9 sites added noise to a model whose gap they did not see, and what clients sealed
# was not bound to the totals that they were told; in 11 what clients of FeMAM sealed was not bound
# to the models that they were told in calls before; in 12 clients told their own metrics, as often
# as they were asked; in 13 metrics over all were of some, where not all take part in each round; in
# 14 what clients sealed was not bound to where they went back to, nor to all that they were asked;
# in 15 no site proved which levels it sent; in 16 certificates did not count what sums are rounded
# by; in 17 HyFDCA told curvatures as they are, and not as logarithms; in 18 FeMAM's clients had
# other digests of the models that they were told; in 19 a row that lacked its level of a category
# of many levels at one client counted as having none there; in 20 owners opened projections of
# copies, and one client combinations of labels; in 21 labels were compared to the last bit;
# in 22 no site said by which column its rows are held out, nor showed that it has an id; in 23 it
# showed ids of rows by a hash of each; in 24 the rounded duals of a certificate were not bound to
# what clients were told, steps of sums of columns were as the server said, no site said the units
# of its columns, and rare levels of a category of many were scaled each by its own deviation;
# in 25 the functions that evaluate a model had other names; in 26 a certificate of HyFDCA brought
# Newton's system for a further step with it; in 28 no site was told that ids of whole numbers are
# text beside ids that were generated, and none said whose greeting did not fit.
PROTOCOL = 29

BEGIN = "begin"  # the step of the set-up that makes the state which an algorithm starts with
# the step that ends a run: what it came to → the site's own model; the server calls no more
KEEP = "keep"


@dataclass(frozen=True)
class Call:
    """One call of the server."""

    run: str  # hex digits
    sequence: int  # of the exchange, in the run: never given twice
    base: int  # exchange that made the client's state which this call goes on from; 0: none
    anchor: int  # that of the state which the round began with, to which it may go back
    round: int
    exchange: int  # in the round
    kind: str
    function: str
    part: str
    asked: tuple[str, ...]  # all clients that are asked
    body: bytes


@dataclass(frozen=True)
class Answer:
    """What a site answers to one call."""

    run: str
    client: str
    sequence: int
    error: str  # class of what went wrong; "": nothing
    sentence: str  # ours, without a value
    down: int  # bytes of the message and of the reply, as the codec writes them
    up: int
    body: bytes


@dataclass(frozen=True)
class Version:
    """What runs somewhere: a site says it in answer to bytes that are no call."""

    package: str = __version__  # of intarsia; "": one that does not say it
    protocol: int = PROTOCOL

    def fits(self, other: Version) -> bool:
        """Return whether both may work on one run: what differs is the package's third number."""
        mine, theirs = (one.package.split(".")[:2] for one in (self, other))
        return self.protocol == other.protocol and mine == theirs

    def __str__(self) -> str:
        if not self.package:
            return "an intarsia that is too old to say its version"
        return f"intarsia {shown(self.package)} (calls of version {self.protocol})"


@dataclass(frozen=True)
class SealedReply:
    """A reply to a sum, sealed field by field; what the client had nothing for is left out."""

    fields: Mapping[str, SealedRecord]
    counts: Mapping[str, Any]


@dataclass(frozen=True)
class ToOpen:
    """Cells of a total that a contributor is to open to the server."""

    total: CombinationRecord
    cells: tuple[int, ...]


@dataclass(frozen=True)
class ToSeal:
    """Cells of a total that an owner is to seal under another name: that of a field."""

    total: CombinationRecord
    cells: tuple[int, ...]
    name: str


@dataclass(frozen=True)
class Opened:
    """What a client opened or sealed, cell by cell, and the bytes beside the values."""

    values: tuple[Any, ...]
    extra: tuple[int, ...]


# What may be said of an error outside the site: never a value of its table.
_SENTENCES: Mapping[str, str] = MappingProxyType(
    {
        "CodecError": "The call was cut or altered on its way.",
        "ReplayError": "The call came again or out of its order, and the site has gone on since; "
        "where the server's folder was put back, begin the run anew.",
        "StaleError": "The call goes on from a state that the site does not have; where a folder "
        "of the server or the site was put back, begin the run anew.",
        "BusyError": "Another process works in the site's folder.",
        "TamperedError": "A total, or a level's proof, was altered or sealed with another key.",
        "SealedError": "The site has made all releases with noise that epsilon and delta allow; "
        "start a new run.",
        "RefusedError": "The site refused what the algorithm of the run does not declare; its own "
        "log says what.",
        "RangeError": "A value of the site is too large to be sealed, or no number.",
        "TableError": "The site's table cannot be read, or is not what the experiment needs; its "
        "own log says why.",
        "FederationError": "The site's table does not fit those of the others.",
        "ExperimentError": "The experiment does not fit the site, or the site's settings are "
        "wrong; its own log says why.",
        "KeyMaterialError": "A key of the site is missing, or is not that of the others.",
        "CheckpointError": "The site's folder of this run cannot be read, or its table changed.",
        "ConvergenceError": "Training diverged at the site.",
        "VersionError": "The site and the server have versions of intarsia whose calls differ; "
        "install the same version at both, and begin the run anew.",
    }
)
# What a site says in words of its own, for the server's people: what its owner allows.
_OWN_WORDS = ("PolicyError", "PendingError")
# What the server's people are told where a site says another's name, and which of the two is wrong
# nobody else can tell.
_GREETING = (
    "The greeting of {sender} is none for this client: one of the two altered it, has another card "
    "of the other, or was told something else; see what the log of each says, and who runs it."
)
_MOST_WORDS = 400  # letters of these
_LONGEST = 4_000  # letters of a name in a call, all of which a site writes into its log
_MOST_NAMES = 1_000_000  # letters of all clients that are asked
_UNFORESEEN = "The site could not do what it was asked; its own log says why."


@cache
def _kinds(record: type) -> tuple[tuple[str, type], ...]:
    """Return the fields of a record of the protocol and their classes."""
    hints = typing.get_type_hints(record)
    return tuple((name, typing.get_origin(hint) or hint) for name, hint in hints.items())


def odd_field(found: object, record: type) -> str:
    """Return what of something is not as a record of the protocol has it, "" if it is all so.

    Every call and answer is held against this, with as many names as there are clients.
    A name that is too long is none: a log would grow by it.
    """
    kinds = _kinds(record)
    if type(found) is not record:
        return f"a {type(found).__name__} is in its place"
    for name, kind in kinds:
        value: Any = getattr(found, name)
        named = value if isinstance(value, tuple) else ()
        if type(value) is not kind or {type(one) for one in named} - {str}:
            return f"{name} is {shown(repr(value))[:80]}"
        long = len(value) if type(value) is str else max(map(len, named), default=0)
        if long > _LONGEST or sum(map(len, named)) > _MOST_NAMES:
            return f"{name} has more letters than a log takes"
    return ""


def sentence_of(error: Exception) -> tuple[str, str]:
    """Return the class of an error and a sentence about it, both without a value of the site."""
    name = type(error).__name__
    if isinstance(error, IntarsiaError) and name in _SENTENCES:
        return name, _SENTENCES[name]
    if name in _OWN_WORDS:
        return name, shown(str(error))
    if isinstance(error, GreetingError):
        return name, shown(error.sender)
    if isinstance(error, OSError):
        return "SiteError", "The site could not read or write a file; its own log says which."
    return "SiteError", _UNFORESEEN


def raised(answer: Answer, function: str) -> IntarsiaError:
    """Return the error that a site answered with, as the server raises it."""
    if answer.error in _OWN_WORDS:
        own: type[AbsentError] = getattr(errors, answer.error)
        return own(f"Site {answer.client!r}: {shown(answer.sentence)}", (answer.client,))
    if answer.error == GreetingError.__name__:
        said = _GREETING.format(sender=repr(shown(answer.sentence)[:80]))
        return GreetingError(f"At client {answer.client!r} in {function}: {said}", answer.sentence)
    known = getattr(errors, answer.error, SiteError) if answer.error in _SENTENCES else SiteError
    said = _SENTENCES.get(answer.error, shown(answer.sentence)[:200])
    found: IntarsiaError = known(f"At client {answer.client!r} in {function}: {said}")
    return found


def shown(text: str) -> str:
    """Return a text of somebody else as it may be shown: short, on one line, printable."""
    return errors.printable(" ".join(text.split()))[:_MOST_WORDS]


def function_name(fn: ClientFunction, algorithm: str) -> str:
    """Return what a call names a client function by: its protocol, or algorithm, and its name."""
    return f"{fn.protocol or algorithm}.{fn.name}"


def decode_as(kind: type, data: bytes, *others: type) -> Any:
    """Return a message or a reply of a class, in which the classes of its fields may be.

    Raises
    ------
    CodecError
        If the bytes are of another class, or were altered.
    """
    found = codec.decode(data, *codec.classes_in(kind), *others)
    if not isinstance(found, kind):
        raise CodecError(
            f"A {type(found).__name__} came where a {kind.__name__} was expected; run the same "
            "version of intarsia at all sites and the server."
        )
    return found
