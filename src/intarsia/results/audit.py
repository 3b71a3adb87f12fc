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

from intarsia.core.block import ClientId
from intarsia.core.disclosure import Sends
from intarsia.core.files.atomic_files import write_atomically
from intarsia.core.files.contained import check_contained
from intarsia.core.files.json_text import check_kind, parse_json
from intarsia.errors import CheckpointError, lacks, several
from intarsia.results.checkpoint import Checkpoints

_OF = {
    "samples": "a client's samples",
    "features": "a client's features",
    "selected": "a client's selected samples",
    "scores": "a client's samples, each opened by one holder of its label",
    "selected scores": "a client's selected samples, each opened by one holder of its label",
    "labelled scores": "a client's samples, each opened by all holders of its label",
    "counts": "numbers of a client's samples",
    "blocks": "a client's feature blocks",
    "entry": "entry by entry",
}
# what the values of a layout are, where the version of a run kept no words for its fields
_UNDESCRIBED = {
    "samples": "numbers of single rows",
    "selected": "numbers of single rows",
    "scores": "scores of single rows",
    "selected scores": "scores of single rows",
    "labelled scores": "scores of single rows",
    "features": "numbers of single columns",
    "counts": "counts of rows",
    "blocks": "parameters of feature blocks",
    "entry": "other numbers, such as sums over rows and parameters of models",
}
_PROTECTION = {
    "plain": "none: the mode is plain",
    "masked": "additive masks modulo 2^64",
    "ckks": "CKKS; under 4,096 values, or of one client alone, additive masks",
}
_OWN_ENTRIES = "none: the total is for the owners of its entries"
MODEL = "the model's parameters, readable by the server"
MASKS = "random masks that only keys of clients take off"
_TRUST = {
    "pairs": "; masks of pairs of clients cancel only in the sum",
    "clients": "; with the one key of all, a client that saw another's part could read it",
}
IDS = {"plain": "as they are", "pseudonyms": "as pseudonyms", "psi": "as pseudonyms"}
# layouts of fields with numbers of single rows
BY_ROW = ("samples", "selected", "scores", "selected scores", "labelled scores")
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
    contents: str = ""  # the field in plain words; "": of a message that the server wrote


@dataclass(frozen=True)
class Audit:
    """All that crossed in a run."""

    mode: str
    clients: tuple[ClientId, ...]
    lines: tuple[AuditLine, ...]
    checkpoint: int | None = None  # the round up to which a run is covered that was stopped
    undeclared: tuple[str, ...] = ()  # what crossed and the algorithm does not declare
    answers: Mapping[ClientId, int] = field(default_factory=dict[ClientId, int])  # that each sent
    trust: str = ""  # privacy.trust: whom masks protect from whom; "": it is not known
    ids: str = ""  # alignment.ids: how rows are named; "": it is not known
    epsilon: float | None = None  # of differential privacy, 0: no noise; None: it is not known
    described: bool = True  # whether the run kept words for what its fields hold

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
            "answers": dict(self.answers),
            "sentences": list(sentences(self)),
        }


def sentences(audit: Audit) -> tuple[str, ...]:
    """Return ten sentences about what left the clients of a run, for who answers for their data.

    They are in the words that replies are described with (`core.disclosure.describe`).
    """
    server, clients = [one for one in audit.lines if one.reader == "server"], audit.read_by_clients
    sent = [one for one in server if one.how != "revealed"]
    alone = [one for one in sent if one.readable]
    revealed = [one for one in server if one.how == "revealed"]
    opened = [one for one in clients if one.how != "message"]
    told = [one for one in clients if one.how == "message" and one.contents]
    among = f", among them {_listed(told)}" if told else ""
    messages = {one.what.split(".")[0] for one in clients if one.how == "message"}
    kinds = {one.contents or one.what for one in sent}
    of_rows = {one.what for one in sent if one.values in {_OF[layout] for layout in BY_ROW}}
    rows = [one for one in (*alone, *revealed) if of_rows & {*one.what.split(" and ")}]
    least, most = min(audit.answers.values(), default=0), max(audit.answers.values(), default=0)
    often = several(most, "answer") if least == most else f"{least:,} to {most:,} answers"
    until = "" if audit.checkpoint is None else f" up to its checkpoint of round {audit.checkpoint}"
    noise = "the run does not say whether clients added noise" if audit.epsilon is None else ""
    noise = noise or "clients added no noise to what they sent"
    if audit.epsilon:
        noise = f"clients added noise, by differential privacy with epsilon {audit.epsilon:g}"
    beyond = "Nothing crossed"
    if audit.undeclared:
        beyond = f"{several(len(audit.undeclared), 'thing')} crossed, listed below,"
    older = "; the run kept no words for some of what crossed, which is told by kind of number"
    return (
        f"The run{until} had {several(len(audit.clients), 'client')}: {named(audit.clients)}"
        f"{'' if audit.described else older}.",
        f"{several(len(kinds), 'kind')} of values left the clients, all to the server; no client "
        "sent anything to another.",
        f"The server sent {several(len(messages), 'kind')} of messages without sums, with what it "
        f"asked for and numbers that it could read{among}; "
        f"each client sent it {often}, with one or a few kinds of values in each.",
        f"From single clients the server could read: {_listed(alone)}.",
        f"Of sums over clients the server read: {_listed(revealed)}.",
        "From single clients the server held and could not read: "
        f"{_listed(audit.sealed_at_server)}.",
        f"{_protection(audit)}.",
        f"Clients read sums of rows, columns and models that are theirs too: {_listed(opened)}.",
        f"Of single rows the server could read: {_listed(rows)}; {noise}.",
        f"{beyond} that the algorithm does not declare; names of columns, levels of text columns, "
        f"if any, and ids of rows {IDS.get(audit.ids, 'or pseudonyms')} were known to all from the "
        "start.",
    )


def _protection(audit: Audit) -> str:
    """Return how what the server could not read was kept from it."""
    if audit.mode == "plain":
        return "Nothing was hidden from the server: in the mode plain it reads all that it adds up"
    if not audit.sealed_at_server:
        return f"Nothing was added up, and so nothing hidden from the server (mode {audit.mode})"
    masks, trust = f"hidden by {MASKS}", _TRUST.get(audit.trust, "")
    if all(one.protection == _PROTECTION["masked"] for one in audit.sealed_at_server):
        return f"These were {masks} (mode {audit.mode}){trust}"
    return (
        "These were encrypted, so that the server adds them up without reading them (mode ckks); "
        f"those under 4,096 values, and those of one client alone, were {masks}{trust}"
    )


def _listed(lines: Iterable[AuditLine]) -> str:
    """Return what some lines are of, and how often it crossed."""
    return list_contents(
        (line.contents, f"{line.function} {message_of(line.what)}", line.times) for line in lines
    )


def message_of(field: str) -> str:
    """Return the class of a field "Message.field"; the classes of a combination of totals."""
    return " and ".join(sorted({one.split(".")[0] for one in field.split(" and ")}))


def words_of(total: str, words: Mapping[str, str]) -> str:
    """Return what a total is of in words, or a combination; `words` are those of fields."""
    known = dict.fromkeys(words.get(one, "") for one in total.split(" and "))
    return in_words([one for one in known if one])


def list_contents(found: Iterable[tuple[str, str, int]], most: int = 4) -> str:
    """Return in a sentence what crossed, the most frequent first: the gist only of a long list.

    Parameters
    ----------
    found
        What it is in words, in which message, and how often. Fields of one message with the same
        words are one thing.
    """
    by_message: dict[tuple[str, str], int] = {}
    for words, message, times in found:
        key = words or "values that its version kept no words for", message
        by_message[key] = max(times, by_message.get(key, 0))
    counts: Counter[str] = Counter()
    for (words, _), times in by_message.items():
        counts[words] += times
    listed = [f"{words} ({counted(times)})" for words, times in counts.most_common()]
    if len(listed) <= most:
        return in_words(listed) or "nothing"
    return f"{len(listed)} kinds, listed below, most often {in_words(listed[:3])}"


def in_words(some: Sequence[str]) -> str:
    """Return a list in words, "a, b and c"; "" of none."""
    return f"{', '.join(some[:-1])} and {some[-1]}" if len(some) > 1 else "".join(some)


def counted(times: int) -> str:
    """Return how often something was, in words."""
    return {0: "never", 1: "once", 2: "twice"}.get(times, f"{times:,} times")


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


def notes_on_undeclared(crossings: Mapping[str, Any], declared: Iterable[Sends]) -> tuple[str, ...]:
    """Return a note of what crossed in a run and its algorithm does not declare."""
    odd = sorted(list_crossings(crossings) - list_declared(declared))
    if not odd:
        return ()
    shown = f"{', '.join(odd[:5])}{f' and {len(odd) - 5} more' if len(odd) > 5 else ''}"
    return (
        f"The algorithm does not declare what crossed: {shown}. Sites refuse that: add it to the "
        "sends of its Disclosure, and see what intarsia.testing.check_algorithm says.",
    )


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
    check_contained(folder)
    path = folder / "audit.json"
    try:
        if path.is_file():
            found = parse_json(path.read_text(encoding="utf-8"))
            whole = replace(_audit(found["mode"], found["crossings"]), **_privacy(folder))
            whole = replace(whole, undeclared=tuple(found.get("undeclared", ())))
            check_kind(whole, Audit, "the audit")
            return whole
        path = folder / "checkpoints"
        extra = Checkpoints(folder).latest_extra() if folder.is_dir() else None
        if extra is not None and "crossings" in extra:
            found = replace(_audit(extra["mode"], extra["crossings"]), **_privacy(folder))
            found = replace(found, checkpoint=int(extra["standing"]["round"]))
            check_kind(found, Audit, "the audit")
            return found
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as problem:
        raise CheckpointError(
            f"{path} cannot be read as an audit ({type(problem).__name__}: {problem}); run the "
            "experiment again with --overwrite."
        ) from None
    said = lacks(folder, "holds neither audit.json nor a checkpoint with what crossed")
    raise CheckpointError(f"{said}; give the output folder of a run.")


def _privacy(folder: Path) -> dict[str, Any]:
    """Return ε, whom masks protect and how rows are named in a run; {} without its experiment."""
    path = folder / "experiment.json"
    tree = parse_json(path.read_text(encoding="utf-8")) if path.is_file() else {}
    privacy = tree.get("privacy") if isinstance(tree, dict) else None
    if not isinstance(privacy, dict):
        return {}
    names = tree.get("alignment")
    ids = str(names.get("ids", "plain")) if isinstance(names, dict) else ""
    found = {"epsilon": float(privacy.get("epsilon", 0.0)), "trust": str(privacy.get("trust", ""))}
    return {**found, "ids": ids}


def _audit(mode: str, crossings: Mapping[str, Any]) -> Audit:
    clients = tuple(crossings["clients"])
    lines: list[AuditLine] = []
    answers = dict.fromkeys(clients, 0)
    words = {
        f"{one['reply']}.{name}": one.get("contents", {}).get(name) or _UNDESCRIBED[layout]
        for one in crossings["exchanges"].values()
        for name, layout in one["fields"].items()
    }
    described = all(
        name in one.get("contents", {})
        for one in crossings["exchanges"].values()
        for name in one["fields"]
    )
    for one in crossings["exchanges"].values():
        counts = {name: one["with_all"] + one["with"].get(name, 0) for name in clients}
        took_part = {name: count for name, count in counts.items() if count}
        lines += _exchange(mode, one, took_part, words)
        if one["reply"] != "NoneType":  # somebody had a message
            answers = {name: count + counts[name] for name, count in answers.items()}
    for what, count in crossings["reveals"].items():
        values = f"{count['values']:,} number{'' if count['values'] == 1 else 's'} of the total"
        protection = "none: the algorithm reveals the total"
        of = ("server", "revealed", "", what, values, True, protection, count["times"])
        lines.append(AuditLine(*of, contents=words_of(what, words)))
    for what, times in crossings["refreshes"].items():
        values = "an owner's entries of it, which that client seals anew"
        of = ("client", "refresh", "", what, values, True, _OWN_ENTRIES, times)
        lines.append(AuditLine(*of, contents=words_of(what, words)))
    return Audit(mode, clients, tuple(_merge(lines)), answers=answers, described=described)


def _exchange(
    mode: str,
    one: Mapping[str, Any],
    clients: Mapping[ClientId, int],
    words: Mapping[str, str],
) -> Iterator[AuditLine]:
    """Return the lines of a client function in which some clients took part so often.

    `words` says what the fields of replies hold.
    """
    asked, function, times = one["kind"] == "ask", one["function"], one["exchanges"]
    for name, layout in one["fields"].items():
        open_ = asked or mode == "plain" or layout == "counts"
        protection = "none: the server asked for it" if asked else _PROTECTION[mode]
        if mode == "ckks" and layout in ("entry", "blocks") and not asked:
            protection = _PROTECTION["masked"]
        if layout == "counts" and not asked:
            protection = "none: the server needs them to add"
        of = ("server", "reply" if asked else "contribution", function, f"{one['reply']}.{name}")
        said = words[f"{one['reply']}.{name}"]
        yield AuditLine(*of, _OF[layout], open_, protection, times, clients, said)
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
        said = MODEL if name in one.get("models", ()) else ""
        yield AuditLine(*of, "what the server sends", True, protection, times, got, said)
    for name, origin in one["opened"].items():
        of = ("client", "total", function, f"{one['message']}.{name}")
        values, got = (
            f"its own entries of {origin or 'an earlier total'}",
            partly.get(name, clients),
        )
        said = words_of(origin, words)
        yield AuditLine(*of, values, True, _OWN_ENTRIES, times, got, said)


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
