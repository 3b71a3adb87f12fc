"""Audit a run: what the server and the clients could read, by type of message.

The figures are counted by the engine as things cross (`intarsia.engines.transcript.Crossings`); a
transcript byte by byte is written on request (`transcript = true` in [privacy]).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from intarsia.core.algorithm import Sends
from intarsia.core.atomic_files import write_atomically
from intarsia.core.block import ClientId
from intarsia.core.json_text import parse_json
from intarsia.errors import CheckpointError
from intarsia.results.checkpoint import Checkpoints

_OF = {
    "samples": "a client's samples",
    "features": "a client's features",
    "selected": "a client's selected samples",
    "scores": "a client's samples, each opened by one holder of its label",
    "selected scores": "a client's selected samples, each opened by one holder of its label",
    "counts": "numbers of a client's samples",
    "blocks": "a client's feature blocks",
    "entry": "entry by entry",
}
_PROTECTION = {
    "plain": "none: the mode is plain",
    "masked": "additive masks modulo 2^64",
    "ckks": "CKKS; under 4,096 values, or of one client alone, additive masks",
}
_OWN_ENTRIES = "none: the total is for the owners of its entries"
BY_ROW = ("samples", "selected")  # layouts of fields with numbers of single rows
_ORDER = {"reply": 0, "revealed": 1, "contribution": 2, "message": 3, "total": 4, "refresh": 5}


@dataclass(frozen=True)
class AuditLine:
    """Something that one side could read, or held sealed, and how often."""

    reader: str  # "server" or "client"
    # of the server: "reply", "revealed", "contribution"; of clients: "message", "total", "refresh"
    how: str
    function: str  # what ran at the clients; "" for what was revealed or refreshed
    what: str  # Type.field
    values: str  # what the values are of
    readable: bool
    protection: str
    times: int  # exchanges
    # how often each client was in it: as the one that sent, or the one that opened; none for what
    # was revealed or refreshed, which any owner of the entries opens
    clients: Mapping[ClientId, int] = field(default_factory=dict[ClientId, int])


@dataclass(frozen=True)
class Audit:
    """All that crossed in a run."""

    mode: str
    clients: tuple[ClientId, ...]
    lines: tuple[AuditLine, ...]
    checkpoint: int | None = None  # the round up to which a run is covered that was stopped
    undeclared: tuple[str, ...] = ()  # what crossed and the algorithm does not declare
    epsilon: float | None = None  # of differential privacy, 0: no noise; None: it is not known

    @property
    def read_by_server(self) -> tuple[AuditLine, ...]:
        """Return what the server could read: replies, revealed totals, contributions if plain."""
        return tuple(one for one in self.lines if one.reader == "server" and one.readable)

    @property
    def sealed_at_server(self) -> tuple[AuditLine, ...]:
        """Return what the server held and could not read."""
        return tuple(one for one in self.lines if one.reader == "server" and not one.readable)

    def read_by(self, client: ClientId) -> tuple[AuditLine, ...]:
        """Return what a client could read, with how often it did."""
        return tuple(
            replace(one, times=one.clients.get(client, 0) if one.clients else one.times)
            for one in self.read_by_clients
            if client in one.clients or not one.clients
        )

    @property
    def read_by_clients(self) -> tuple[AuditLine, ...]:
        """Return what clients could read: messages, and their own entries of totals."""
        return tuple(one for one in self.lines if one.reader == "client")

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {
            "mode": self.mode,
            "clients": list(self.clients),
            "checkpoint": self.checkpoint,
            "lines": [asdict(line) for line in self.lines],
            "undeclared": list(self.undeclared),
            "sentences": list(sentences(self)),
        }


def sentences(audit: Audit) -> tuple[str, ...]:
    """Return ten sentences about what left the clients of a run, for who answers for their data."""
    server, clients = [one for one in audit.lines if one.reader == "server"], audit.read_by_clients
    sent = [one for one in server if one.how != "revealed"]
    alone = [one for one in sent if one.readable]
    revealed = [one for one in server if one.how == "revealed"]
    sealed, totals = audit.sealed_at_server, [one for one in clients if one.how == "total"]
    messages = [one for one in clients if one.how == "message"]
    rows = [one for one in alone if one.values in {_OF[layout] for layout in BY_ROW}]
    protections = sorted({one.protection for one in sealed})
    calls = {
        name: max((one.clients.get(name, 0) for one in sent), default=0) for name in audit.clients
    }
    least, most = min(calls.values(), default=0), max(calls.values(), default=0)
    often = counted(most) if least == most else f"{least:,} to {most:,} times"
    until = (
        "" if audit.checkpoint is None else f", up to its checkpoint of round {audit.checkpoint}"
    )
    noise = "is not known" if audit.epsilon is None else "is none"
    noise = f"is that of epsilon {audit.epsilon:g}" if audit.epsilon else noise
    return (
        f"The run had {several(len(audit.clients), 'client')}: {in_words(audit.clients[:8])}"
        f"{' and others' if len(audit.clients) > 8 else ''}; its sums were in the mode "
        f"{audit.mode}{until}.",
        f"What left the clients are {several(len({one.what for one in sent}), 'field')} of "
        f"replies, all to the server; no client sent anything to another.",
        f"The reply that each client sent most often it sent {often}.",
        f"Of single clients the server could read: {_listed(alone)}.",
        f"Of totals over clients the server read: {_listed(revealed)}.",
        f"The server held and could not read: {_listed(sealed)}.",
        f"These were protected by {in_words(protections) or 'nothing'}.",
        f"Clients opened totals, each its own entries: {_listed(totals)}; and they read what the "
        f"server wrote in {several(len({one.what for one in messages}), 'field')}.",
        f"Fields with numbers of single rows that the server could read: {_listed(rows)}; the "
        f"clients' noise {noise}.",
        f"Beyond what the algorithm declares there crossed: {named(audit.undeclared)}; names of "
        "columns, levels of text columns and ids of rows, or pseudonyms, were public from the "
        "set-up on.",
    )


def in_words(some: Sequence[str]) -> str:
    """Return a list in words, "a, b and c"; "" of none."""
    return f"{', '.join(some[:-1])} and {some[-1]}" if len(some) > 1 else "".join(some)


def counted(times: int) -> str:
    """Return how often something was, in words."""
    return {0: "never", 1: "once", 2: "twice"}.get(times, f"{times:,} times")


def several(number: int, noun: str) -> str:
    """Return a number of things, "1 call" or "2 calls"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _listed(lines: Iterable[AuditLine], most: int = 6) -> str:
    """Return the fields of some lines, how often each crossed, the most frequent first."""
    times: Counter[str] = Counter()
    for line in lines:
        times[line.what] += line.times
    return named([f"{name} ({counted(number)})" for name, number in times.most_common()], most)


def named(some: Sequence[str], most: int = 6) -> str:
    """Return the first of some names in words, and how many others there are."""
    more = [several(len(some) - most, "other")] if len(some) > most else []
    return in_words([*some[:most], *more]) or "none"


def list_declared(sends: Iterable[Sends]) -> set[str]:
    """Return what may cross: calls, fields that the server reads, and fields that clients open."""
    found: set[str] = set()
    for one in sends:
        reply = one.reply.__name__
        found.add(f"{one.call} {one.function.name} -> {reply}")
        found.update(f"reveal {reply}.{name}" for name in one.reveals)
        found.update(f"open {reply}.{name}" for name in one.opens)
    return found


def list_crossings(crossings: Mapping[str, Any]) -> set[str]:
    """Return what crossed in a run, in the words of `list_declared`."""
    found: set[str] = set()
    opened = [*crossings["refreshes"]]
    for one in crossings["exchanges"].values():
        if one["reply"] != "NoneType":  # nobody had a message
            found.add(f"{one['kind']} {one['function']} -> {one['reply']}")
        opened += one["opened"].values()
    # of a combination of totals the name says all, "A.x and B.x"
    found.update(f"open {name}" for names in opened for name in names.split(" and ") if name)
    found.update(f"reveal {one}" for names in crossings["reveals"] for one in names.split(" and "))
    return found


def write(folder: Path, mode: str, crossings: Mapping[str, Any], declared: Iterable[Sends]) -> None:
    """Write what crossed in a finished run, and what of it is not declared."""
    undeclared = sorted(list_crossings(crossings) - list_declared(declared))
    content = {"mode": mode, "crossings": crossings, "undeclared": undeclared}
    text = json.dumps(content, ensure_ascii=False, indent=1)
    write_atomically(folder / "audit.json", f"{text}\n".encode())


def load(folder: Path) -> Audit:
    """Return what crossed in the run in a folder; one that was stopped, up to its checkpoint.

    Raises
    ------
    CheckpointError
        If the folder holds no run, or one from before audits were kept.
    """
    path = folder / "audit.json"
    try:
        if path.is_file():
            found = parse_json(path.read_text(encoding="utf-8"))
            whole = replace(_audit(found["mode"], found["crossings"]), epsilon=_epsilon(folder))
            return replace(whole, undeclared=tuple(found.get("undeclared", ())))
        path = folder / "checkpoints"
        extra = Checkpoints(folder).latest_extra() if folder.is_dir() else None
        if extra is not None and "crossings" in extra:
            found = replace(_audit(extra["mode"], extra["crossings"]), epsilon=_epsilon(folder))
            return replace(found, checkpoint=int(extra["standing"]["round"]))
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise CheckpointError(
            f"{path} cannot be read as an audit ({type(problem).__name__}: {problem}); run the "
            "experiment again with --overwrite."
        ) from None
    raise CheckpointError(
        f"{folder} holds neither audit.json nor a checkpoint with what crossed; give the output "
        "folder of a run."
    )


def _epsilon(folder: Path) -> float | None:
    """Return ε of the run in a folder, None if its experiment is not there."""
    path = folder / "experiment.json"
    tree = parse_json(path.read_text(encoding="utf-8")) if path.is_file() else {}
    privacy = tree.get("privacy") if isinstance(tree, dict) else None
    return float(privacy.get("epsilon", 0.0)) if isinstance(privacy, dict) else None


def _audit(mode: str, crossings: Mapping[str, Any]) -> Audit:
    clients = tuple(crossings["clients"])
    lines: list[AuditLine] = []
    for one in crossings["exchanges"].values():
        counts = {name: one["with_all"] + one["with"].get(name, 0) for name in clients}
        took_part = {name: count for name, count in counts.items() if count}
        lines += _exchange(mode, one, took_part)
    for what, count in crossings["reveals"].items():
        values = f"{count['values']:,} number{'' if count['values'] == 1 else 's'} of the total"
        protection = "none: the algorithm reveals the total"
        line = AuditLine("server", "revealed", "", what, values, True, protection, count["times"])
        lines.append(line)
    for what, times in crossings["refreshes"].items():
        values = "an owner's entries of it, which that client seals anew"
        lines.append(AuditLine("client", "refresh", "", what, values, True, _OWN_ENTRIES, times))
    return Audit(mode, clients, tuple(_merge(lines)))


def _exchange(
    mode: str, one: Mapping[str, Any], clients: Mapping[ClientId, int]
) -> Iterator[AuditLine]:
    """Return the lines of a client function in which some clients took part so often."""
    asked, function, times = one["kind"] == "ask", one["function"], one["exchanges"]
    for name, layout in one["fields"].items():
        open_ = asked or mode == "plain" or layout == "counts"
        protection = "none: the server asked for it" if asked else _PROTECTION[mode]
        if mode == "ckks" and layout in ("entry", "blocks") and not asked:
            protection = _PROTECTION["masked"]
        if layout == "counts" and not asked:
            protection = "none: the server needs them to add"
        of = ("server", "reply" if asked else "contribution", function, f"{one['reply']}.{name}")
        yield AuditLine(*of, _OF[layout], open_, protection, times, clients)
    partly: Mapping[str, Mapping[ClientId, int]] = one.get("partly", {})
    rest = {
        field: {
            name: left for name, count in clients.items() if (left := count - some.get(name, 0))
        }
        for field, some in partly.items()
    }
    for name in (*one["plain"], *rest):
        what, protection = f"{one['message']}.{name}", "none: the server wrote it"
        of = ("client", "message", function, what)
        got = rest.get(name, clients)
        yield AuditLine(*of, "what the server sends", True, protection, times, got)
    for name, origin in one["opened"].items():
        of = ("client", "total", function, f"{one['message']}.{name}")
        values, got = (
            f"its own entries of {origin or 'an earlier total'}",
            partly.get(name, clients),
        )
        yield AuditLine(*of, values, True, _OWN_ENTRIES, times, got)


def _merge(lines: list[AuditLine]) -> list[AuditLine]:
    """Return lines that differ in their counts only as one, the readable ones first."""
    found: dict[tuple[Any, ...], AuditLine] = {}
    for line in lines:
        key = (line.reader, line.how, line.function, line.what, line.values, line.readable)
        before = found.get(key)
        if before is not None:
            clients = Counter(before.clients)
            clients.update(line.clients)
            line = replace(line, times=before.times + line.times, clients=dict(clients))
        found[key] = line
    return sorted(
        found.values(), key=lambda one: (one.reader != "server", not one.readable, _ORDER[one.how])
    )
