"""Read the log of a site: whether it is whole, what left by it, and whether sites' logs agree.

A site's log says of each call what was asked, what left and what was opened, without a value of the
table, so that its owner may show it. Of what several sites opened, each log has the same digests.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from operator import eq
from pathlib import Path
from typing import Any

from intarsia.deployment.client_folder import HEAD, LOG
from intarsia.engines.remote.wire import shown
from intarsia.errors import ExperimentError, nearest, several
from intarsia.results.audit import (
    BY_ROW,
    IDS,
    MASKS,
    counted,
    in_words,
    list_contents,
    message_of,
)
from intarsia.results.chained_log import Chain, Head, read_chain

Entry = Mapping[str, Any]
_DECISIONS = ("asked", "let in", "began", "denied")  # events of jobs, not of calls
_MOST_REFUSED = 10  # calls that are told
_MOST = 5  # differences between two sites that are told
_MOST_NAMED = 10  # jobs that a sentence names, the newest
# What leaves in the steps of the set-up, and at the end, where the log of an older version does not
# say it.
_STEPS = {
    "read": "names of columns, and units, levels and classes if the table has any",
    "deal": "what a simulated client was dealt",
    "encode": "which rows and columns the site holds",
    "keep": "means and scales of columns if the site allows it",
}


def site_of(folder: Path) -> Path | None:
    """Return the folder of a site where a path leads: to its kit, or the folder; None: to none.

    A folder with a copy of the log and its head, one beside the other, is one too.
    """
    for one in (folder, folder / "local"):
        if (one / "site.toml").is_file() or _log_in(one).is_file():
            return one
    return None


def _log_in(folder: Path) -> Path:
    """Return the log in a site's folder, or in a folder with a copy of it."""
    flat = folder / Path(LOG).name
    return flat if flat.is_file() and not (folder / LOG).is_file() else folder / LOG


def each_once(logs: Sequence[SiteLog]) -> list[SiteLog]:
    """Return the logs without copies: of two of one site the one that goes on longer.

    Raises
    ------
    ExperimentError
        If two of one site are not the same as far as both go.
    """
    found: dict[str, SiteLog] = {}
    for log in logs:
        known = found.setdefault(log.name, log)
        short, long = sorted((known, log), key=lambda one: len(one.chain.entries))
        if not all(map(eq, short.chain.entries, long.chain.entries)):
            raise ExperimentError(
                f"Two logs of {log.name!r} are given that differ, and a site has one; give the "
                "site's own, or name the folder of a copy as its site."
            )
        # of two that are equal the one with a fault: a head that does not fit stays to be seen
        same = len(short.chain.entries) == len(long.chain.entries)
        found[log.name] = known if same and not known.whole else long
    return list(found.values())


class _Tally:
    """What the entries of a log come to, in one pass over them: a log may be long."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.count = 0
        self.span: tuple[str, str] | None = None  # days of the first entry and the last
        self.events: Counter[str] = Counter()
        self.decisions: dict[str, list[Entry]] = {one: [] for one in _DECISIONS}
        self.refused: deque[Entry] = deque(maxlen=_MOST_REFUSED)  # the last ones
        self.steps = 0  # answers that are of a set-up
        self.told: Counter[str] = Counter()  # what these told the server
        self.left: Counter[tuple[str, str, str, str, str]] = Counter()
        self.opened: Counter[tuple[str, str, str]] = Counter()
        self.by: set[int] = set()  # of how many clients totals were that were opened
        self.contents: dict[tuple[str, str], str] = {}
        for entry in entries:
            self.count += 1
            day = entry["at"][:10]
            self.span = (self.span[0] if self.span else day, day)
            event = entry.get("event", "")
            self.events[event] += 1
            if event in self.decisions:
                self.decisions[event].append(entry)
            elif event == "refused":
                self.refused.append(entry)
            elif event == "answered":
                self._add(entry)

    def _add(self, entry: Entry) -> None:
        """Take note of a call that was answered."""
        function = entry["function"]
        if entry["kind"] == "stage":
            self.steps += 1
            self.told.update(entry.get("told", filter(None, [_STEPS.get(function, "")])))
        for one in entry.get("left", ()):
            by = one.get("total opened by", "") + (", with noise" if one.get("noise") else "")
            self.left[one["field"], function, one["layout"], one["protection"], by] += 1
            self.contents[function, one["field"]] = one.get("contents", "")
        for one in entry.get("opened", ()):
            total = _total(one)
            to = "server" if one["to"] == "server" else "this site"
            self.opened[one["field"], total, to] += 1
            words = dict.fromkeys(term.get("contents", "") for term in one["of"])
            self.contents["", total] = in_words([word for word in words if word])
            self.by |= {len(cell["by"]) for term in one["of"] for cell in term["cells"].values()}


@dataclass(frozen=True)
class SiteLog:
    """What a site's log says."""

    name: str
    chain: Chain
    job: str = ""  # what its entries come to is of this job alone; "": of all

    @property
    def whole(self) -> bool:
        """Return whether nothing is wrong with it."""
        return not self.chain.faults

    def of(self, event: str) -> list[Entry]:
        """Return the entries of an event."""
        return [one for one in self.chain.entries if one.get("event") == event]

    @cached_property
    def tally(self) -> _Tally:
        """Return what its entries come to."""
        if not self.job:
            return _Tally(self.chain.entries)
        runs = {one["run"] for one in self.chain.entries if one.get("job") == self.job}
        return _Tally(one for one in self.chain.entries if one.get("run") in runs)

    @cached_property
    def put_back(self) -> list[Entry]:
        """Return when its folder was put back from a backup, and of when that was."""
        return self.of("put back")

    @cached_property
    def jobs(self) -> list[Entry]:
        """Return the jobs that began, the oldest first: when, what, and how many rows took part.

        Logs of older versions do not say how many.
        """
        decisions = self.tally.decisions
        let_in = {(one["run"], one["digest"]): one for one in decisions["let in"]}
        found: list[Entry] = []
        for one in decisions["began"]:
            asked = let_in.get((one["run"], one["digest"]), {})
            sums = _sealing(asked) if "mode" in asked else "not known"
            known = {"algorithm": asked.get("algorithm", "not known"), "sums": sums}
            own = {key: one[key] for key in ("at", "job", "run")}
            found.append({**own, **known, "rows": one.get("rows", {})})
        return found

    @property
    def left(self) -> Counter[tuple[str, str, str, str, str]]:
        """Return what left how often: field, function, layout, protection, who opens the total."""
        return self.tally.left

    @property
    def opened(self) -> Counter[tuple[str, str, str]]:
        """Return what was opened how often: in which field, of which totals, and to whom."""
        return self.tally.opened

    @property
    def contents(self) -> dict[tuple[str, str], str]:
        """Return in plain words what fields hold by function and field, and totals by ("", total).

        Logs of older versions do not say it.
        """
        return self.tally.contents

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        keys = ("field", "function", "layout", "protection", "total opened by")
        return {
            "site": self.name,
            "entries": len(self.chain.entries),
            "faults": list(self.chain.faults),
            "head": str(self.chain.head),
            "sentences": list(sentences(self)),
            "jobs": self.jobs,
            "left": [dict(zip(keys, k, strict=True), times=n) for k, n in self.left.items()],
            "opened": [
                {"field": field, "total": total, "to": to, "times": n}
                for (field, total, to), n in self.opened.items()
            ],
        }


def _total(opened: Entry) -> str:
    """Return of what a total is that was opened: names in the order of the alphabet."""
    return " and ".join(sorted({term["total"] for term in opened["of"]}))


def load(folder: Path, noted: str = "", job: str = "") -> SiteLog:
    """Return the log of a site in its folder.

    Parameters
    ----------
    noted
        A head that was noted before.
    job
        The name of a job, if what it says is to be of this one alone.

    Raises
    ------
    CheckpointError
        If there is none.
    ExperimentError
        If `noted` is no head, or the log has no job of that name.
    """
    try:
        head = Head.of(noted) if noted else None
    except ValueError:
        raise ExperimentError(
            f"--noted {noted[:80]!r} is no head of a log; give what `intarsia audit` said, the "
            "number of an entry, a colon and 64 hex digits."
        ) from None
    name = folder.parent.name if folder.name == "local" else folder.name
    found = SiteLog(name, read_chain(_log_in(folder), folder / HEAD, head), job)
    known = {str(one["job"]) for one in found.chain.entries if "job" in one} if job else {job}
    if job not in known:
        raise ExperimentError(
            f"--job {job[:80]!r} asked nothing of {name!r}; {nearest(job, sorted(known))}."
        )
    return found


def sentences(log: SiteLog) -> tuple[str, ...]:
    """Return ten sentences about what left a site, for whoever answers for its data."""
    found = log.tally
    let_in, asked, denied = (found.decisions[one] for one in ("let in", "asked", "denied"))
    entries, refused = len(log.chain.entries), found.events["refused"]
    span = f"from {found.span[0]} to {found.span[1]}" if found.span else "empty"
    state = (
        "no entry was altered and none is missing"
        if log.whole
        else " ".join(log.chain.faults).rstrip(".")
    )
    jobs = [f"{shown(one['job'])} ({one['algorithm']}, {one['sums']})" for one in log.jobs]
    idle = len({one["run"] for one in let_in} - {one["run"] for one in log.jobs})
    calls, steps = found.events["answered"] - found.steps, found.steps
    set_ups = [f"{words} ({counted(times)})" for words, times in found.told.items()]
    ids = {IDS.get(one["ids"], str(one["ids"])) for one in let_in}
    left: dict[str, list[tuple[str, str, int]]] = {"sealed": [], "clear": [], "rows": []}
    protections: set[str] = set()
    for (field, function, layout, protection, _), times in log.left.items():
        clear = protection.startswith("none")
        words = log.contents[function, field]
        one = words, f"{function} {message_of(field)}", times
        left["clear" if clear else "sealed"].append(one)
        left["rows"] += [one] if clear and layout in BY_ROW else []
        protections |= set() if clear else {protection}
    known = {"masked": MASKS, "ckks": "CKKS encryption"}
    sealed_by = in_words(sorted(known.get(one, one) for one in protections))
    noise = sum(times for key, times in log.left.items() if "noise" in key[4])
    here: list[tuple[str, str, int]] = []
    server: list[tuple[str, str, int]] = []
    for (field, total, to), times in log.opened.items():
        one = log.contents["", total], f"{message_of(field)} {message_of(total)}", times
        (server if to == "server" else here).append(one)
    own = f", of which {found.count:,} are of the job {shown(log.job)}" * bool(log.job)
    put_back = [
        f"; on {one['at'][:10]} it was put back as of {one['written'][:16]}, and what left between "
        "the two is not in it"
        for one in log.put_back
    ]
    return (
        f"The log of {log.name!r} has {entries:,} entries{own}, {span}: {state}"
        f"{''.join(put_back)}.",
        f"{several(len(asked), 'job')} waited for the owner's decision, and "
        f"{several(len(jobs), 'job')} began: {_newest(jobs)}"
        + f"; {several(idle, 'job')} more came no further than to the table" * bool(idle)
        + (
            f"; the owner denied {_newest([shown(one['job']) for one in denied])}." * bool(denied)
            or "."
        ),
        f"All that left went to the server, in answers to {several(calls, 'call')} of jobs "
        f"and {several(steps, 'step')} of their set-up; nothing went to another site "
        "directly.",
        f"Set-ups told the server: {in_words(set_ups) or 'nothing'}; ids of rows stood there "
        f"{in_words(sorted(ids)) or 'in no job'}.",
        f"Under {sealed_by or 'no protection'} left, unreadable for the server: "
        f"{list_contents(left['sealed'])}.",
        f"In the clear left: {list_contents(left['clear'])}.",
        f"Of the fields that left, {noise:,} had noise of differential privacy.",
        f"This site opened its own entries of totals: {list_contents(here)}; "
        + (
            f"each was by {min(found.by)} to {max(found.by)} clients."
            if found.by
            else "none was by anybody."
        ),
        f"It opened totals to the server: {list_contents(server)}; it refused "
        f"{several(refused, 'call')}{', listed below' if refused else ''}.",
        f"Values of single rows that left in the clear: {list_contents(left['rows'])}; what left "
        "protected nobody reads without the clients' keys.",
    )


def _newest(jobs: Sequence[str]) -> str:
    """Return some jobs in words; of many those that came first are counted."""
    before = len(jobs) - _MOST_NAMED
    earlier = [several(before, "earlier one")] if before > 0 else []
    return in_words([*earlier, *jobs[-_MOST_NAMED:]]) or "none"


def _sealing(job: Entry) -> str:
    """Return how a job's sums are sealed, and with whose keys; older logs do not say that."""
    keys = {"pairs": " with keys of pairs", "clients": " with one key of all clients"}
    mode = str(job["mode"])
    return mode if mode == "plain" else mode + keys.get(job.get("trust", ""), "")


def differences(logs: Sequence[SiteLog]) -> list[str]:
    """Return in what the logs of several sites do not agree, in sentences.

    Of one job and of one exchange all were told the same; a total that two opened is the same, by
    the same contributors; and each contributor's own log has the sum to which it contributed.
    """
    found: list[str] = []
    for one, other in combinations(logs, 2):
        between = list(_between(one, other))
        found += between[:_MOST]
        if len(between) > _MOST:
            found.append(f"{one.name} and {other.name}: {len(between) - _MOST} more differences.")
    return found


def _between(one: SiteLog, other: SiteLog) -> Iterator[str]:
    jobs, others = ({it["run"]: it["agreed"] for it in log.of("began")} for log in (one, other))
    for run in sorted(jobs.keys() & others.keys()):
        if jobs[run] != others[run]:
            yield (
                f"{one.name} and {other.name} were told different things in the set-up of run "
                f"{run[:8]}: another experiment, encoding or schema."
            )
    calls, theirs = _calls(one), _calls(other)
    for key, told in calls.items():
        place = f"exchange {key[1]} of run {key[0][:8]}"
        same = theirs.get(key)
        if same is not None and same != told:
            yield (
                f"{one.name} and {other.name} were told different things in {place}: {told} and "
                f"{same}."
            )
    totals, others = dict(_totals(one)), dict(_totals(other))
    for run, exchange, total, cell in sorted(totals.keys() & others.keys()):
        if totals[run, exchange, total, cell] != others[run, exchange, total, cell]:
            yield (
                f"{one.name} and {other.name} opened different totals {total} (cell {cell}) of "
                f"exchange {exchange} of run {run[:8]}."
            )
    yield from _lacking(one, totals, other, theirs)
    yield from _lacking(other, others, one, calls)


def _lacking(
    one: SiteLog,
    totals: Mapping[tuple[str, int, str, str], tuple[str, tuple[str, ...]]],
    other: SiteLog,
    calls: Collection[tuple[str, int]],
) -> Iterator[str]:
    """Yield sums to which a site contributed, as another opened them, and its log lacks."""
    lacking = {
        (run, exchange)
        for (run, exchange, _, _), (_, by) in totals.items()
        if other.name in by and (run, exchange) not in calls
    }
    for run, exchange in sorted(lacking):
        yield (
            f"{one.name} opened a total of exchange {exchange} of run {run[:8]} with a part of "
            f"{other.name}, whose log lacks that exchange."
        )


def _calls(log: SiteLog) -> dict[tuple[str, int], tuple[Any, ...]]:
    """Return what all clients of each exchange were told alike."""
    return {
        (one["run"], one["exchange"]): _told(one)
        for one in log.chain.entries
        if one.get("event") == "answered" and one["kind"] in ("ask", "sum", "seal")
    }


def _told(entry: Entry) -> tuple[Any, ...]:
    """Return what all clients of an exchange are told alike."""
    if entry["kind"] == "seal":
        return (entry["kind"], entry["round"])  # each is asked for its own cells
    return (*(entry[key] for key in ("kind", "function", "part", "round")), tuple(entry["asked"]))


def _totals(
    log: SiteLog,
) -> Iterable[tuple[tuple[str, int, str, str], tuple[str, tuple[str, ...]]]]:
    """Yield the totals that a site opened, cell by cell: digest and contributors."""
    for entry in log.chain.entries:  # only answers have opened something
        for one in entry.get("opened", ()):
            for term in one["of"]:
                for cell, piece in term["cells"].items():
                    key = (entry["run"], term["exchange"], term["total"], cell)
                    yield key, (piece["digest"], tuple(piece["by"]))
