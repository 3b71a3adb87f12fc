"""What goes over the wire between the server and a site: one call, and one answer.

Both are records that the codec writes, with its checksum; what the call is about lies in them as
bytes, so that a call can be checked before anything of it is read. No code is ever sent: a call
names a function that the site has.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import typing
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from intarsia import errors
from intarsia.core.algorithm import ClientFunction
from intarsia.engines.communication_log import RECORDS
from intarsia.engines.sums.linear_combination import CombinationRecord
from intarsia.engines.sums.sealed import SealedRecord
from intarsia.errors import IntarsiaError, SiteError

# ask, sum: a client function; open, seal: a cell of a total; stage: a step of the set-up
Kind = Literal["ask", "sum", "open", "seal", "stage"]

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
class SealedReply:
    """A reply to a sum, sealed field by field; what the client had nothing for is left out."""

    kind: str
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
        "ReplayError": "The call came again or out of its order; the site has gone on since.",
        "StaleError": "The call goes on from a state that the site does not have.",
        "BusyError": "Another process works in the site's folder.",
        "TamperedError": "A sealed total was altered, or was sealed with another key.",
        "RangeError": "A value of the site is too large to be sealed, or no number.",
        "TableError": "The site's table is not what the experiment needs.",
        "FederationError": "The site's table does not fit those of the others.",
        "ExperimentError": "The experiment does not fit the site.",
        "KeyMaterialError": "A key of the site is missing, or is not that of the others.",
        "CheckpointError": "The site's folder of this run cannot be read, or its table changed.",
        "ConvergenceError": "Training diverged at the site.",
    }
)
_OURS = "intarsia.algorithms"  # where messages are defined
_UNFORESEEN = "The site could not do what it was asked; its own log says why."


def sentence_of(error: Exception) -> tuple[str, str]:
    """Return the class of an error and a sentence about it, both without a value of the site."""
    name = type(error).__name__
    if isinstance(error, IntarsiaError) and name in _SENTENCES:
        return name, _SENTENCES[name]
    if isinstance(error, OSError):
        return "SiteError", "The site could not read or write a file; its own log says which."
    return "SiteError", _UNFORESEEN


def raised(answer: Answer, function: str) -> IntarsiaError:
    """Return the error that a site answered with, as the server raises it."""
    known = getattr(errors, answer.error, SiteError) if answer.error in _SENTENCES else SiteError
    said = _SENTENCES.get(answer.error, answer.sentence[:200])
    found: IntarsiaError = known(f"At client {answer.client!r} in {function}: {said}")
    return found


def identity(fn: ClientFunction) -> str:
    """Return what a call names a function by: its name, and the Python function that it is.

    Two of one algorithm may have one name, which their random numbers come from.
    """
    code = _code(fn)
    return f"{fn.name}:{code.__module__}.{code.__qualname__}"


def _code(fn: ClientFunction) -> Any:
    code: Any = fn.call if fn.together is None else fn.together
    while isinstance(code, functools.partial):
        code = code.func
    return code


def classes_of(fn: ClientFunction) -> tuple[type, ...]:
    """Return the dataclasses that a client function's message and reply may hold.

    They are those that the module which defines the function knows, those of the modules that it
    has something from, and those within them; of one name, the nearest.
    """
    return _classes_in(_code(fn).__module__)


@functools.cache
def _classes_in(module: str) -> tuple[type, ...]:
    found: dict[str, type] = {}
    known, waiting = {module}, deque([module])
    while waiting:
        for one in list(vars(sys.modules[waiting.popleft()]).values()):
            if isinstance(one, type) and dataclasses.is_dataclass(one):
                _add_with_fields(one, found)
            source = getattr(one, "__module__", None) or getattr(one, "__name__", "")
            if isinstance(source, str) and source not in known and source in sys.modules:
                known.add(source)
                if source.startswith(_OURS):
                    waiting.append(source)
    return tuple({**found, **{kind.__name__: kind for kind in RECORDS}}.values())


def _add_with_fields(kind: type, found: dict[str, type]) -> None:
    """Add a dataclass, and those that its fields may hold."""
    if kind.__name__ in found:
        return
    found[kind.__name__] = kind
    if kind.__module__.startswith("intarsia."):
        for hint in _hints(kind):
            for part in _parts(hint):
                if isinstance(part, type) and dataclasses.is_dataclass(part):
                    _add_with_fields(part, found)


def _hints(kind: type) -> Collection[Any]:
    try:
        return typing.get_type_hints(kind).values()
    except NameError:  # of what is imported for the type checker alone
        return ()


def _parts(hint: Any) -> list[Any]:
    return [hint, *(part for one in typing.get_args(hint) for part in _parts(one))]
