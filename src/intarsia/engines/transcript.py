"""Transcript of what the server could read, and counts of what clients and server exchanged.

`Crossings` counts, for each client function, who could read which field. `Transcript` writes down
every byte that the server could read, for attacks that must fail and for auditors.
"""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from intarsia.core.block import ClientId
from intarsia.core.disclosure import contents
from intarsia.engines import codec
from intarsia.engines.record_file import append, framed, whole_records
from intarsia.engines.sums.sealed import layouts
from intarsia.errors import CodecError


class Crossings:
    """Counts what crossed, by client function and types, between the server and all clients."""

    def __init__(self, clients: Sequence[ClientId]) -> None:
        self.exchanges: dict[str, dict[str, Any]] = {}
        self.reveals: dict[str, dict[str, int]] = {}
        self.refreshes: dict[str, int] = {}
        self._clients = tuple(clients)
        self._found: dict[tuple[Any, ...], dict[str, Any]] = {}  # those of `exchanges`

    def exchange(
        self,
        kind: str,
        function: str,
        message: type,
        opened: tuple[tuple[str, str], ...],
        reply: type,
        clients: Collection[ClientId],
        unsent: Collection[str] = (),
        partly: Mapping[str, Collection[ClientId]] = MappingProxyType({}),
        models: Collection[str] = (),
    ) -> None:
        """Count an exchange with some clients.

        `opened` names the fields that they open, `partly` who does where it is not all of them,
        `unsent` the fields of the reply that none of them had anything for; a field that some sent
        is counted for all. `models` are the fields of the message with a model in the clear.
        """
        mark = kind, function, opened, frozenset(unsent), frozenset(partly), frozenset(models)
        found = self._found.get(mark)
        if found is None:
            key = f"{kind} {function} {opened}" + (f" without {sorted(unsent)}" if unsent else "")
            key += f" partly {sorted(partly)}" if partly else ""
            key += f" with the models {sorted(models)}" if models else ""
            found = self._found[mark] = self.exchanges.setdefault(key, {})
        if not found:
            fields = {
                name: "entry" if layout is None else layout.value
                for name, layout in (layouts(reply) if reply is not type(None) else ())
                if name not in unsent
            }
            sealed, words = dict(opened), contents(reply)
            found |= {
                "kind": kind,
                "function": function,
                "message": message.__name__,
                "opened": sealed,
                "plain": [
                    one.name
                    for one in (dataclasses.fields(message) if clients else ())
                    if one.name not in sealed
                ],
                "reply": reply.__name__,
                "fields": fields,
                "contents": {name: words[name] for name in fields if name in words},
                "exchanges": 0,
                "with_all": 0,  # exchanges with every client
                "with": {},  # the others, by client
            }
            if models:
                found["models"] = sorted(models)
            if partly:
                found["partly"] = {name: {} for name in partly}  # who opened it, how often
        found["exchanges"] += 1
        for name, few in partly.items():
            times: dict[str, int] = found["partly"][name]
            for client in few:
                times[client] = times.get(client, 0) + 1
        if len(clients) == len(self._clients):
            found["with_all"] += 1
            return
        some: dict[str, int] = found["with"]
        for client in clients:
            some[client] = some.get(client, 0) + 1

    def reveal(self, field: str, value: Any) -> None:
        """Count a total, or a field of one, that was opened to the server."""
        found = self.reveals.setdefault(field, {"times": 0, "values": 0})
        found["times"] += 1
        if isinstance(value, np.ndarray):
            size = value.size
        else:
            parts = value.values() if isinstance(value, dict) else (value,)
            size = sum(int(np.size(part)) for part in parts)
        found["values"] = max(found["values"], size)

    def refresh(self, field: str) -> None:
        """Count a total that owners of its entries opened, to seal it anew."""
        self.refreshes[field] = self.refreshes.get(field, 0) + 1

    def summary(self) -> dict[str, Any]:
        """Return the counts as JSON holds them."""
        return {
            "clients": list(self._clients),
            "exchanges": self.exchanges,
            "reveals": self.reveals,
            "refreshes": self.refreshes,
        }

    def restore(self, summary: dict[str, Any]) -> None:
        """Put back the counts of a checkpoint."""
        kept = copy.deepcopy(summary)
        self.exchanges = {_named_today(key): one for key, one in kept["exchanges"].items()}
        for one in self.exchanges.values():
            one |= {key: _named_today(one[key]) for key in ("function", "message", "reply")}
        self.reveals = {_named_today(key): one for key, one in kept["reveals"].items()}
        self.refreshes, self._found = kept["refreshes"], {}


def _named_today(text: str) -> str:
    """Return a text with the names that exchanges have now: a checkpoint may be an older one."""
    return text.replace("GradeTotals", "MetricTotals").replace("sum_grades", "sum_metrics")


@dataclass(frozen=True)
class Crossed:
    """One thing that the server had: a message, a reply, a contribution, or what was revealed."""

    round: int
    kind: str  # "message", "ask", "sum", "reveal"
    function: str
    client: str  # "" for what went to all, or was revealed
    type: str  # of the message or reply; "Reply.field" for what was revealed
    fields: dict[str, Any]  # name → array or number; where sealed: bytes by cell


class Recorder(Protocol):
    """Takes down what the server could read."""

    def record(self, crossed: Crossed) -> None:
        """Take down one thing."""


class Transcript:
    """A file of all that the server could read, one length and one record after the other.

    What an end of the process cut short in it is taken away, so that the records of a run that goes
    on can be read behind those before.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        if path.is_file():
            with path.open("rb+") as file:
                end = 0
                for _ in whole_records(file):
                    end = file.tell()
                file.truncate(end)

    def record(self, crossed: Crossed) -> None:
        """Append one record."""
        # its owner's alone: in the mode plain it holds what clients sent
        with open(self._path, "ab", buffering=0, opener=_for_the_owner) as file:
            readable = replace(
                crossed, fields={n: _plain(one) for n, one in crossed.fields.items()}
            )
            append(self._path, file.fileno(), framed(codec.encode(readable)))


def _plain(value: Any) -> Any:
    """Return a value with records as names and values, readable without their classes."""
    if dataclasses.is_dataclass(value):
        return {one.name: _plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    return tuple(map(_plain, value)) if isinstance(value, tuple) else value


def _for_the_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def read_transcript(path: Path) -> Iterator[Crossed]:
    """Return the records of a transcript, without one that an end of the process cut short.

    Raises
    ------
    CodecError
        If a record that is whole was altered.
    """
    with path.open("rb") as file:
        for data in whole_records(file):
            found = codec.decode(data, Crossed)
            if not isinstance(found, Crossed):
                raise CodecError(f"{path}: a {type(found).__name__} stands where a record should.")
            yield found
