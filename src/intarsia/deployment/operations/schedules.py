"""Runs that a server asks for by itself, every day at a time: an experiment on the tables of then.

A schedule is a file in `schedules` of the server's folder. Its runs are called NAME-DATE.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import Any, Final

from intarsia.core.block import ClientId
from intarsia.core.files.atomic_files import write_atomically
from intarsia.core.files.json_text import check_kind, parse_json
from intarsia.deployment.federation_file import sites_of
from intarsia.deployment.server import (
    FAILURE,
    RunStatus,
    is_submitted,
    list_statuses,
    remove_run,
    request,
    resume_run,
    sites_of_run,
    stop_run,
)
from intarsia.errors import BusyError, ExperimentError, UserError, listed, nearest
from intarsia.experiment import config as experiments
from intarsia.experiment.config import Experiment
from intarsia.inspection.holdings import NAME as HOLDINGS
from intarsia.inspection.holdings import Holdings
from intarsia.results import run_folder

_FOLDER: Final = "local/schedules"
_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,88}")  # a run's has a date behind it
_AT_WORK: Final = ("waiting", "running")
_TRIES: Final = "tries.json"  # of a run: how often it was tried again, and since when it is failed
_MOST_TRIES: Final = 4  # of a run that failed
_BETWEEN: Final = timedelta(minutes=15)  # tries
_OTHER: Final = 2.0  # times as many rows as the night before, or as few, are told of
_MAY_PASS: Final = ("TableError", "SiteError")  # such as of a database that is started again


@dataclass(frozen=True)
class Schedule:
    """What is run every day."""

    name: str  # the experiment's
    at: str  # hours and minutes of the server's clock, such as "02:00"
    keep: int  # so many finished runs of it; older ones are removed. 0: all
    since: str  # the day of the first run, or before it

    def run_of(self, day: date) -> str:
        """Return the name of the run of a day."""
        return f"{self.name}-{day.isoformat()}"


def add(kit: Path, description: Experiment, at: str, keep: int, now: datetime) -> Schedule:
    """Let the server of a kit run an experiment every day; one of the same name is replaced.

    Raises
    ------
    ExperimentError
        If the time is none, or the name cannot be that of a run's folder.
    """
    try:
        moment = _moment(at)
    except ValueError:
        raise ExperimentError(f"--at is {at!r}; give hours and minutes, such as 02:00.") from None
    if not _NAME.fullmatch(description.name):
        raise ExperimentError(
            f"The experiment's name is {description.name[:100]!r}, and runs have it with a date "
            'behind it; take at most 89 letters, digits, ".", "-" and "_", a letter or a digit '
            "first (experiment.name)."
        )
    # what is over today begins tomorrow
    first = now.date() if now.time() <= moment else date.fromordinal(now.date().toordinal() + 1)
    made = Schedule(description.name, at, keep, first.isoformat())
    tree = experiments.to_dict(description)
    tree["experiment"].pop("out", None)
    content = {"schedule": asdict(made), "experiment": tree}
    path = kit / _FOLDER / f"{description.name}.json"
    path.parent.mkdir(mode=0o700, exist_ok=True)
    write_atomically(path, json.dumps(content, indent=1).encode(), private=True)
    return made


def remove(kit: Path, name: str) -> None:
    """End a schedule; its runs stay. ExperimentError if there is none of this name."""
    known = [path.stem for path in _files(kit)]
    if not known:
        raise ExperimentError(
            f"{kit} has no schedule {name!r}, nor any other; there is nothing to end."
        )
    if name not in known:
        raise ExperimentError(f"{kit} has no schedule {name!r}; {nearest(name, known)}.")
    (kit / _FOLDER / f"{name}.json").unlink()


def schedules(kit: Path) -> tuple[list[Schedule], list[str]]:
    """Return what the server of a kit runs every day, by name, and what is wrong with the rest."""
    found, wrong = list[Schedule](), list[str]()
    for path in _files(kit):
        try:
            found.append(_read(path)[0])
        except ExperimentError as problem:
            wrong.append(str(problem))
    return found, wrong


def _files(kit: Path) -> list[Path]:
    return sorted((kit / _FOLDER).glob("*.json"))


def _read(path: Path) -> tuple[Schedule, dict[str, Any]]:
    """Return a schedule and the experiment of its runs; ExperimentError if the file is damaged."""
    try:
        found = parse_json(path.read_bytes())
        one, tree = Schedule(**found["schedule"]), found["experiment"]
        check_kind(one, Schedule)
        check_kind(tree, dict[str, Any])
        _moment(one.at)
        tree["experiment"]["name"] = one.name
    except (ValueError, LookupError, TypeError, AttributeError) as problem:
        raise ExperimentError(
            f"The schedule in {path} is damaged ({type(problem).__name__}: {str(problem)[:200]}), "
            "and nothing is run by it; end it with `intarsia federation unschedule "
            f"{path.parents[2]} {path.stem}`, and set it anew."
        ) from None
    return one, tree


def _moment(at: str) -> time:
    """Return a time of the day; ValueError if it is not hours and minutes."""
    moment = time.fromisoformat(at)
    if at != f"{moment:%H:%M}":
        raise ValueError(f"{at!r} is not hours and minutes, such as 02:00")
    return moment


class Daily:
    """Asks for the runs whose time has come, and removes those that are not to be kept.

    A day on which the server was away is made up for until midnight. Where the run of the day
    before is at work still, as when it waits for an owner, none is asked for, and that is noted.
    One that waits for sites and did not begin so far gives way, as it would come to what the new
    one does; so does one that waits for a site which has left. One that failed of what may pass is
    tried again, until another is due. Of one that finished it is noted which columns sites have no
    more, or anew, since the one before, and whose rows are other than twice as many.

    Parameters
    ----------
    kit
        The server's.
    note
        Told in a sentence what was done.
    now
        The server's clock.
    """

    def __init__(
        self, kit: Path, note: Callable[[str], None], now: Callable[[], datetime] = datetime.now
    ) -> None:
        self._kit, self._note, self._now = kit, note, now
        self._looked = ""  # the minute
        self._told: set[str] = set()  # what is wrong with schedules
        self._compared: set[str] = set()  # runs, with those before them
        self._put_off: set[tuple[str, str]] = set()  # runs, and those at work that they wait for

    def look(self) -> None:
        """Do what is due, once a minute; OSError as of a full disk, and it is tried again."""
        now = self._now()
        if self._looked == (minute := f"{now:%Y-%m-%d %H:%M}"):
            return
        wrong = set[str]()
        for path in _files(self._kit):
            try:
                self._submit_due(path, now)
            except ExperimentError as problem:
                wrong.add(str(problem))
        for sentence in sorted(wrong - self._told):
            self._note(sentence)
        self._looked, self._told = minute, wrong

    def _submit_due(self, path: Path, now: datetime) -> None:
        one, tree = _read(path)
        runs, run = _runs_of(self._kit, one, now), one.run_of(now.date())
        finished = [known.name for known in runs if known.state == "finished"]
        if len(finished) > 1 and finished[-1] not in self._compared:
            self._compared.add(finished[-1])
            for sentence in _changes(self._kit, *finished[-2:]):
                self._note(sentence)
        for old in finished[: -one.keep] if one.keep else ():
            self._remove(old, one.keep)
        if not _is_due(one, runs, now):
            if runs and runs[-1].state == "failed":
                self._try_again(runs[-1].name, now)
            return
        sites, patience = sites_of(self._kit)
        for known in runs:
            if known.state not in _AT_WORK or (
                known.state == "waiting" and self._gives_way(known.name, run, sites)
            ):
                continue
            if (run, known.name) not in self._put_off:
                self._put_off.add((run, known.name))
                self._note(_held_up(run, known))
            return
        tree["experiment"]["name"] = run
        try:
            description = experiments.from_dict(tree, self._kit / "local")
            # sums are in the order of the experiment's clients, as of one that is submitted
            named = [one.name for one in description.clients if one.name in sites]
            ordered = (*named, *(site for site in sites if site not in named))
            request(self._kit / "local", description, ordered, patience)
        except UserError as problem:
            self._note(f"the schedule {one.name} is at an end, as its run is refused: {problem}")
            path.unlink()
        else:
            self._note(f"{run} is asked for by its schedule")

    def _try_again(self, run: str, now: datetime) -> None:
        """Let a run that failed go on, if that may help and it is time."""
        own = self._kit / "local" / "runs" / run
        if (tries := _tries(own)) is None:
            return
        count, since = tries
        if since is None or now < since:  # it failed just now, or the clock was put back
            _write_tries(own, count, now)
        elif now - since >= _BETWEEN:
            _write_tries(own, count + 1, None)
            resume_run(self._kit / "local", run)
            self._note(f"{run} failed and is tried again, {count + 1} of {_MOST_TRIES} times")

    def _gives_way(self, run: str, other: str, sites: tuple[ClientId, ...]) -> bool:
        """Return whether a run that waits for sites does so no more, as another one is due."""
        local = self._kit / "local"
        if is_submitted(local, run):  # it is in the queue
            return False
        if not (local / "runs" / run / "out").exists():
            remove_run(local / "runs" / run)
            self._note(f"{run} is removed, as it did not begin before {other} was due")
        elif gone := [site for site in sites_of_run(local, run) if site not in sites]:
            stop_run(local, run)
            self._note(f"{run} is stopped, as it needs {listed(gone)}, which left the federation")
        else:
            return False
        return True

    def _remove(self, run: str, kept: int) -> None:
        own = self._kit / "local" / "runs" / run
        # one that somebody reads is removed later
        with contextlib.suppress(BusyError), run_folder.alone_in(own / "out"):
            remove_run(own)
            self._note(f"{run} is removed, as {kept} finished runs are kept")


def held_up(kit: Path, one: Schedule, now: datetime) -> str:
    """Return in a sentence what a schedule waits for; "": for nothing but its time."""
    runs = _runs_of(kit, one, now)
    at_work = [run for run in runs if run.state in _AT_WORK]
    if _is_due(one, runs, now):
        return _held_up(one.run_of(now.date()), at_work[0]) if at_work else ""
    newest = runs[-1] if runs else None
    if newest is None or newest.state != "failed":
        return ""
    tries = _tries(kit / "local" / "runs" / newest.name)
    if tries is None:
        return ""
    at = (tries[1] or now) + _BETWEEN
    return f"{newest.name} failed and is tried again at {at:%H:%M}"


def _changes(kit: Path, before: str, run: str) -> list[str]:
    """Return in sentences what sites hold in a run that is another matter than in one before."""
    try:
        was, now = (_held(kit / "local" / "runs" / one / "out") for one in (before, run))
    except (OSError, ValueError, LookupError, TypeError):
        return []  # of an older version, or damaged, which `status` says
    said: list[str] = []
    for site in was.keys() & now.keys():
        (rows, columns), (later, others) = was[site], now[site]
        what = [f"lacks {listed(gone)}"] if (gone := sorted(columns - others)) else []
        what += [f"has {listed(new)} anew"] if (new := sorted(others - columns)) else []
        if max(rows, later) >= _OTHER * min(rows, later):
            what.append(f"has {later:,} rows to train, for {rows:,}")
        if what:
            said.append(f"{run}: the table of {site!r} {', '.join(what)}, unlike in {before}")
    return sorted(said)


def _held(out: Path) -> dict[ClientId, tuple[int, set[str]]]:
    """Return how many rows each site trained on in a run, and columns of which table."""
    found = Holdings.from_dict(parse_json((out / HOLDINGS).read_bytes()))
    columns: dict[ClientId, set[str]] = {site: set() for site in found.clients}
    for part in found.features:
        for site in part.holders:
            # levels of a column come and go
            columns[site] |= {one.partition("=")[0] for one in part.features}
    return {site: (rows, columns[site]) for site, rows, _, _ in found.counts()}


def _tries(own: Path) -> tuple[int, datetime | None] | None:
    """Return how often a run that failed was tried again, and since when it waits for the next try.

    None: it is not tried again.
    """
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        if parse_json((own / FAILURE).read_bytes())["error"] not in _MAY_PASS:
            return None
        found: dict[str, Any] = {"count": 0, "since": None}
        with contextlib.suppress(FileNotFoundError):
            found = parse_json((own / _TRIES).read_bytes())
        count, since = int(found["count"]), found["since"]
        if count < _MOST_TRIES:
            return count, None if since is None else datetime.fromisoformat(since)
    return None


def _write_tries(own: Path, count: int, since: datetime | None) -> None:
    content = {"count": count, "since": None if since is None else since.isoformat()}
    write_atomically(own / _TRIES, json.dumps(content).encode(), private=True)


def _held_up(run: str, before: RunStatus) -> str:
    why = f" ({before.problem})" if before.problem else ""
    return f"{run} is not asked for while {before.name} is at work{why}"


def _is_due(one: Schedule, runs: Sequence[RunStatus], now: datetime) -> bool:
    """Return whether the time of today's run has come, and it is not there."""
    begun = any(run.name == one.run_of(now.date()) for run in runs)
    return not begun and now.date().isoformat() >= one.since and f"{now:%H:%M}" >= one.at


def _runs_of(kit: Path, one: Schedule, now: datetime) -> list[RunStatus]:
    """Return how the runs of a schedule stand, the oldest first.

    Those of days to come, which a clock that was ahead asked for, are older than today's.
    """
    dated = re.compile(rf"{re.escape(one.name)}-\d{{4}}-\d\d-\d\d")
    found = [run for run in list_statuses(kit / "local") if dated.fullmatch(run.name)]
    return sorted(found, key=lambda run: (run.name <= one.run_of(now.date()), run.name))
