"""Supervise the runs of a federation's server: submit their jobs, and again where one ends.

A run is a folder `runs/NAME` in the server's own: `request.json` says what was asked for, and the
output folder `out` is that of any run. NVIDIA FLARE takes no site back into a job; the supervisor
then submits another, which goes on where that one was.

NVIDIA FLARE lists a site for ten minutes after its last word. So the supervisor asks every site
itself, each few seconds: one that answers, and does not work on a job that is running, has lost its
process and is back. A job is submitted when so many sites answer as the run needs.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from intarsia.core.block import ClientId
from intarsia.core.files.atomic_files import write_atomically
from intarsia.core.files.json_text import check_kind, parse_json
from intarsia.core.settings import hyperparameters
from intarsia.deployment import run as remote_running
from intarsia.engines.remote.caller import RetryPolicy, Transport
from intarsia.engines.transports.revocation import left_out
from intarsia.errors import (
    AbsentError,
    BusyError,
    ExperimentError,
    IntarsiaError,
    PolicyError,
    listed,
    nearest,
)
from intarsia.experiment import config as experiment
from intarsia.experiment.config import Experiment
from intarsia.results import run_folder
from intarsia.results.checkpoint import DAMAGE, Checkpoints, damage

PING: Final = "ping"  # name of the run that measures how long calls take

_REQUEST: Final = "request.json"
_PINGS: Final = 30  # calls of each size
_SIZES: Final = {"small": 0, "8 MB": 8 << 20}
FAILURE: Final = "failure.json"  # of a run: what ended its job
_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,99}")
_JOB: Final = "job.id"
_QUEUED: Final = "queued"  # there until the run's job begins at the server
_IN_QUEUE: Final = "in the queue: it begins within seconds, or when a run before it ends"
_STOPPED: Final = "stopped"
_OPEN: Final = "open"  # there until a run's end is told
_ENDS: Final = "ends.json"
_MOST_ENDS: Final = 5  # jobs that end without a word and without getting further
_SILENT: Final = "silent.json"  # sites whose answer a run waits for before its job is submitted
_TICK: Final = 0.2  # seconds between looks whether there is something to look at
_DONE: Final = "FINISHED"
_RUNNING: Final = "RUNNING"  # status of a job of which every site has started its part
ENTRY_POINTS: Final = {"job": f"{__name__}.run_in_job"}  # what a job runs at the server


class Jobs(Protocol):
    """What submits jobs and knows how they stand; every method may raise OSError."""

    def submit(self, job: Path) -> str:
        """Submit a job; return its id."""
        ...

    def status(self, job: str) -> str:
        """Return the status of a job, "" if there is none of this id."""
        ...

    def abort(self, job: str) -> None:
        """End a job."""
        ...

    def sites(self) -> Mapping[ClientId, Collection[str]]:
        """Return the sites that answer now, each with the ids of the jobs that it works on."""
        ...


WriteJob = Callable[[Path, str, tuple[ClientId, ...], int], Path]
State = Literal["waiting", "running", "stopped", "finished", "failed"]
_AT_WORK: Final[tuple[State, ...]] = ("waiting", "running")


@dataclass(frozen=True)
class RunStatus:
    """How far a run is."""

    name: str
    state: State
    round: int
    loss: float | None
    gap: float | None
    bytes: int
    problem: str  # what ended it, or why it waits
    away: tuple[ClientId, ...] = ()  # sites that it goes on without
    ended: str = ""  # when, of one that goes on no longer by itself, as 2026-01-31T12:00:00+00:00

    def __str__(self) -> str:
        """Return it on one line."""
        numbers = [f"round {self.round}"]
        numbers += [] if self.loss is None else [f"loss {self.loss:.6g}"]
        numbers += [] if self.gap is None else [f"gap {self.gap:.1e}"]
        numbers += [f"{self.bytes:,} bytes"]
        numbers += [f"without {', '.join(self.away)}"] if self.away else []
        problem = f" ({self.problem})" if self.problem else ""
        return f"{self.name}: {self.state}, {', '.join(numbers)}{problem}"


def request(
    folder: Path,
    description: Experiment,
    sites: tuple[ClientId, ...],
    patience: RetryPolicy,
    *,
    overwrite: bool = False,
    alive: bool = False,
) -> Path:
    """Ask for a run over sites; return its folder. `alive`: the server is running.

    Raises
    ------
    ExperimentError
        If there is a run of this name, or one that is to be replaced is running.
    """
    if not _NAME.fullmatch(description.name) or description.name == PING:
        raise ExperimentError(
            f"The experiment's name is {description.name[:80]!r}, and a run's folder has it; take "
            f'letters, digits, ".", "-" and "_", a letter or a digit first, and not {PING!r} '
            "(experiment.name)."
        )
    own = folder / "runs" / description.name
    if own.exists():
        state = _read_status(own).state if (own / _JOB).is_file() else "waiting"
        if overwrite and alive and state == "stopped":
            raise ExperimentError(
                f"The run {description.name!r} is being stopped; give the command again in some "
                "seconds."
            )
        if overwrite and alive and is_submitted(folder, description.name):
            raise ExperimentError(
                f"The run {description.name!r} is {state}; stop it with `intarsia federation stop "
                f"{folder.parent} --run {description.name}` before it is replaced."
            )
        if not overwrite:
            raise ExperimentError(
                f"There is a run {description.name!r} in {own}; give the experiment another name, "
                "or replace the run with --overwrite."
            )
        with run_folder.alone_in(own / "out"):  # a job may not have come to its end
            remove_run(own)
    tree = experiment.to_dict(description)
    tree["experiment"].pop("out", None)
    asked = {"experiment": tree, "sites": list(sites), "patience": vars(patience)}
    return _put(own, asked)


def remove_run(own: Path) -> None:
    """Remove a run's folder; one that is half removed would be a run that waits."""
    gone = own.parents[1] / f".removed-{own.name}"
    shutil.rmtree(gone, ignore_errors=True)  # of a process that was killed in it
    shutil.rmtree(own.rename(gone))


def _put(own: Path, asked: Mapping[str, Any]) -> Path:
    """Write the folder of a run as a whole: the supervisor looks at once."""
    own.parent.mkdir(parents=True, exist_ok=True)
    filling = Path(tempfile.mkdtemp(prefix=".asked-", dir=own.parents[1]))
    try:
        _write_json(filling / _REQUEST, asked)
        return filling.rename(own)
    except OSError:
        shutil.rmtree(filling)
        raise


def ping(folder: Path, sites: tuple[ClientId, ...], patience: RetryPolicy) -> Path:
    """Ask for a measurement of how long calls to all sites take; return where it will be."""
    own = folder / "runs" / PING
    shutil.rmtree(own, ignore_errors=True)
    asked = {"sites": list(sites), "patience": vars(patience)}
    return _put(own, asked) / "out" / "result.json"


def _measure(transport: Transport, sites: tuple[ClientId, ...], patience: RetryPolicy) -> Any:
    """Return the seconds of calls to all sites at once, by size, in the order that they were made.

    A site answers zeros, of any number, as soon as it has read them.
    """
    found: dict[str, list[float]] = {name: [] for name in _SIZES}
    with ThreadPoolExecutor(len(sites)) as pool:
        for name in [*_SIZES] * _PINGS:
            data = bytes(_SIZES[name])
            begin = time.perf_counter()
            calls = [pool.submit(transport.send, one, data, patience.seconds) for one in sites]
            for call in calls:
                call.result()
            found[name].append(time.perf_counter() - begin)
    return {"seconds": found, "sites": list(sites)}


def run_in_job(folder: Path, name: str, transport: Transport) -> None:
    """Run what was asked for, or go on with it: the main function of a job's process.

    What ends it is written down for the supervisor, unless that has submitted another job since.
    """
    own = folder / "runs" / name
    job = _present_job(own)
    (own / _QUEUED).unlink(missing_ok=True)
    asked = json.loads((own / _REQUEST).read_text(encoding="utf-8"))
    patience: RetryPolicy = hyperparameters(RetryPolicy, asked["patience"], "[patience]")
    out = own / "out"
    try:
        if "experiment" not in asked:
            measured = _measure(transport, tuple(asked["sites"]), patience)
            out.mkdir(exist_ok=True)
            _write_json(out / "result.json", measured)
        elif run_folder.is_over_sites(out):
            remote_running.resume_over(out, transport, patience=patience)
        else:
            asked_for = experiment.from_dict(asked["experiment"], own), transport, asked["sites"]
            remote_running.run_over(*asked_for, out, patience=patience, overwrite=True)
    except IntarsiaError as problem:
        # a site that is away may come back and a job before this one comes to an end; whatever
        # else there is must be mended
        again = isinstance(problem, AbsentError | BusyError)
        again = again and not isinstance(problem, PolicyError)
        found = {"error": type(problem).__name__, "sentence": str(problem), "again": again}
        if job in ("", _present_job(own)):
            _write_json(own / FAILURE, found)
        raise


def _present_job(own: Path) -> str:
    """Return the id of the newest job of a run; "": it is being submitted."""
    with contextlib.suppress(FileNotFoundError):
        return (own / _JOB).read_text(encoding="utf-8")
    return ""


def list_statuses(folder: Path) -> list[RunStatus]:
    """Return how far every run is; of one whose folder is damaged, what is wrong with it."""
    found = (own for own in sorted((folder / "runs").glob("*")) if own.is_dir())
    return [_read_status(own) for own in found]


def _read_status(own: Path) -> RunStatus:
    try:
        led = led_out(own, (own, *own.iterdir(), *(own / "out").glob("*")))
        if led is None:
            found = _status_in(own)
            check_kind(found, RunStatus)
            return found
        said = f"{led.name} leads out of the run's folder; put there what it leads to"
    except DAMAGE as problem:
        said = damage(problem)
    return RunStatus(own.name, "failed", 0, None, None, 0, f"Its folder cannot be read: {said}.")


def led_out(own: Path, those: Iterable[Path]) -> Path | None:
    """Return the first of the paths in a run's folder that is a link out of it; None: none is."""
    place = Path(os.path.realpath(own.parent), own.name)
    links = ((one, Path(os.path.realpath(one))) for one in those if one.is_symlink())
    return next((one for one, end in links if not end.is_relative_to(place)), None)


def list_waiting(folder: Path) -> dict[str, dict[ClientId, str]]:
    """Return for every run that waits for owners of sites what these sites say."""
    names = [one.name for one in list_statuses(folder) if one.state in _AT_WORK]
    found = {name: _pending(folder / "runs" / name) for name in names}
    return {name: waiting for name, waiting in found.items() if waiting}


def _status_in(own: Path) -> RunStatus:
    out = own / "out"
    last = Checkpoints(out).newest_line() if out.is_dir() else {}
    failure = _read_json(own / FAILURE, None)
    state: State = "waiting"
    queued = False
    if (out / "result.json").is_file():
        state = "finished"
    elif failure is not None and not failure["again"]:
        state = "failed"
    elif (own / _STOPPED).is_file():
        state = "stopped"
    elif queued := (own / _JOB).is_file() and (own / _QUEUED).is_file():
        state = "waiting"
    elif (own / _JOB).is_file():
        state = "running"
    if state in _AT_WORK and (own / _REQUEST).is_file():
        _asked_for(own)  # or the supervisor would end by it, and all runs with it
    pending = _pending(own) if state == "running" or queued else {}
    problem = failure["sentence"] if failure is not None and state != "finished" else ""
    if state == "running" and (failure is None or failure["error"] == "PendingError"):
        problem = " ".join(pending.values())
    if queued:
        problem = " ".join(pending.values()) or _IN_QUEUE
    elif state == "waiting" and (silent := _read_json(own / _SILENT, ())):
        problem = _said_of(silent, own)
    return RunStatus(
        own.name,
        state,
        last.get("round", 0),
        last.get("loss"),
        last.get("gap_relative"),
        last.get("bytes", 0),
        problem,
        _away(own) if state == "running" else (),
        _ended(own, state),
    )


def _ended(own: Path, state: State) -> str:
    """Return when what ended a run was written; "": it goes on."""
    by = {"finished": own / "out" / "result.json", "failed": own / FAILURE}
    written = {**by, "stopped": own / _STOPPED}.get(state)
    if written is None:
        return ""
    moment = datetime.fromtimestamp(written.stat().st_mtime, UTC)
    return moment.isoformat(timespec="seconds")


def is_submitted(folder: Path, name: str) -> bool:
    """Return whether a run that goes on has a job, which may be in the queue."""
    own = folder / "runs" / name
    return (own / _JOB).is_file() and _read_status(own).state in _AT_WORK


def sites_of_run(folder: Path, name: str) -> tuple[ClientId, ...]:
    """Return the sites that a run was asked for with."""
    return _asked_for(folder / "runs" / name).sites


def stop_run(folder: Path, name: str) -> None:
    """Let a run stop where it is; ExperimentError if it is not there, or does not run."""
    own = _in_state(folder, name, *_AT_WORK)
    write_atomically(own / _STOPPED, b"")


def resume_run(folder: Path, name: str) -> None:
    """Let a run that was stopped, or failed, go on from its last checkpoint.

    Raises
    ------
    ExperimentError
        If it is not there, or needs no going on.
    """
    own = _in_state(folder, name, "stopped", "failed")
    (own / FAILURE).unlink(missing_ok=True)
    (own / _STOPPED).unlink(missing_ok=True)


def _in_state(folder: Path, name: str, *wanted: State) -> Path:
    found = {one.name: one for one in list_statuses(folder)}
    if name not in found:
        raise ExperimentError(
            f"There is no run {name!r} in {folder / 'runs'}; {nearest(name, found)}."
        )
    if found[name].state not in wanted:
        raise ExperimentError(
            f"The run {name!r} is {found[name].state}; it must be {' or '.join(wanted)}."
        )
    return folder / "runs" / name


def _away(own: Path) -> tuple[ClientId, ...]:
    return tuple(_read_json(own / "out" / run_folder.AWAY, ()))


def _pending(own: Path) -> dict[ClientId, str]:
    found: dict[ClientId, str] = _read_json(own / "out" / run_folder.PENDING, {})
    check_kind(found, dict[str, str], run_folder.PENDING)
    return found


def _write_json(path: Path, content: Any) -> None:
    # what is asked for is an experiment
    write_atomically(path, json.dumps(content, indent=1).encode(), private=True)


def _read_json(path: Path, absent: Any) -> Any:
    return parse_json(path.read_bytes()) if path.is_file() else absent


def supervise(
    folder: Path,
    jobs: Jobs,
    write_job: WriteJob,
    *,
    stopped: Callable[[], bool],
    note: Callable[[str], None] = lambda _: None,
    each: Callable[[], None] = lambda: None,
    arrived: Callable[[], int] = lambda: 0,
    pause: float = 2.0,
    between: float = 5.0,
) -> None:
    """Keep every run going until it is finished, or cannot go on.

    Parameters
    ----------
    folder
        The server's own.
    jobs
        Submits them.
    write_job
        Writes a job for a run and its sites into a folder, and how many of them must be there.
    stopped
        Says whether to stop.
    note
        Told in a sentence when a job is submitted or ended, and when a run ends.
    each
        Called before each look at the folder, such as to ask for runs.
    arrived
        Returns when a site connected last: the sites are asked as soon as it is another time.
    pause, between
        Seconds between looks at the folder, and between questions to the sites, each of which is a
        line of the library's audit.log. A run is looked at as soon as it is asked for.
    """
    looked: dict[str, float] = {}
    # By run, for those whose job this process submitted: one that ran when a process before this
    # one ended may be listed as running for ever. Sites are those that its jobs lost again and
    # again, and that no job is ended for until they were away.
    known: dict[str, set[ClientId]] = {}
    newest = arrived()
    while not stopped():
        with contextlib.suppress(OSError):
            each()
        begun = _changed(folder)
        if (latest := arrived()) != newest:
            newest = latest
            looked.clear()
        answers = cache(jobs.sites)  # asked once for all runs
        statuses = sorted(list_statuses(folder), key=lambda one: _asked_at(folder, one.name))
        # all at once: by turns, one that was asked for later might be submitted first
        now, at_work = time.monotonic(), [one.name for one in statuses if one.state in _AT_WORK]
        if any(now - looked.get(name, -between) >= between for name in at_work):
            looked, due = dict.fromkeys(at_work, now), {*at_work}
        else:
            due = set()
        for one in statuses:
            name = one.name
            with contextlib.suppress(OSError):
                own = folder / "runs" / name
                _tell_end(own, one, note)
                if one.state == "stopped":
                    _end_job(own, jobs)
                if name in due:
                    lost = known.get(name)
                    # NVIDIA FLARE takes some seconds to end a job, and to begin another, which
                    # waits for the run's folder
                    with contextlib.ExitStack() as afterwards:
                        if _job_is_over(own, jobs, answers, lost, afterwards, note):
                            _submit(own, jobs, write_job, answers(), note)
                    known[name] = set() if lost is None else lost
        end = time.monotonic() + pause
        while time.monotonic() < end and arrived() == newest and _changed(folder) == begun:
            time.sleep(_TICK)


def _asked_at(folder: Path, name: str) -> int:
    """Return when a run was asked for: in this order their jobs are submitted."""
    with contextlib.suppress(OSError):  # of a folder that is damaged
        return (folder / "runs" / name / _REQUEST).stat().st_mtime_ns
    return 0


def _changed(folder: Path) -> int:
    """Return when a run was asked for last, or removed."""
    with contextlib.suppress(FileNotFoundError):
        return (folder / "runs").stat().st_mtime_ns
    return 0


def _tell_end(own: Path, status: RunStatus, note: Callable[[str], None]) -> None:
    """Tell once that a run is at its end, in another process too than the one in which it began."""
    mark = own / _OPEN
    told = not mark.is_file()
    if status.state in _AT_WORK:
        if told:
            mark.touch()
    elif not told:
        by = ", by `intarsia federation stop --run`" if status.state == "stopped" else ""
        note(f"{status}{by}")
        mark.unlink()


def _job_is_over(
    own: Path,
    jobs: Jobs,
    answers: Callable[[], Mapping[ClientId, Collection[str]]],
    lost: set[ClientId] | None,  # see supervise; None: its job is of a process before this one
    afterwards: contextlib.ExitStack,  # when the next job is submitted
    note: Callable[[str], None],
) -> bool:
    """Return whether a run needs another job; end the one that it has if a site fell out of it."""
    path = own / _JOB
    if not path.is_file():
        return True
    job, there = path.read_text(encoding="utf-8"), answers()
    if lost is not None:
        lost.intersection_update(there)
        if all(job in there.get(site, ()) for site in _asked_for(own).sites):
            return False
    status = jobs.status(job)
    if not status or status.startswith(_DONE):
        failure = _read_json(own / FAILURE, None)
        said = "" if failure is None else f": {failure['sentence']}"
        note(f"{own.name}: the job is over ({status or 'not known any more'}){said}")
        if said:
            (own / _ENDS).unlink(missing_ok=True)
        elif _ends_again(own):
            _fail(own, status)
    elif lost is None or _falls_short(own, job, status, there, jobs.sites, lost, note):
        afterwards.callback(_abort, jobs, job)
    else:
        return False
    path.unlink()
    return _read_status(own).state != "failed"


def _falls_short(
    own: Path,
    job: str,
    status: str,
    there: Mapping[ClientId, Collection[str]],
    ask: Callable[[], Mapping[ClientId, Collection[str]]],
    lost: set[ClientId],
    note: Callable[[str], None],
) -> bool:
    """Return whether a job is to be ended: it cannot begin, or a site is back without it."""

    def without_it(there: Mapping[ClientId, Collection[str]]) -> set[ClientId]:
        return {site for site in asked.sites if site in there and job not in there[site]} - lost

    asked = _asked_for(own)
    if status != _RUNNING:
        short = sum(site in there for site in asked.sites) < asked.least
        if short:  # the library would look for its sites less and less often
            note(f"{own.name}: the job is ended before it began, since sites do not answer")
        return short
    # the answers are older than the status: the job may have begun at the sites since
    back = without_it(there) and without_it(ask())
    if not back or (own / FAILURE).is_file():  # what ended it is said: it comes to its end
        return False
    names = listed(sorted(back))
    if not _ends_again(own):
        are = "is" if len(back) == 1 else "are"
        note(f"{own.name}: the job is ended, since {names} {are} back without it")
        return True
    note(f"{own.name}: jobs end again and again at {names}; see the logs there")
    lost |= back
    if asked.absent == "wait":
        _fail(own)
    return asked.absent == "wait"


def _said_of(silent: Sequence[ClientId], own: Path) -> str:
    """Return that a run waits for sites, and which of them may be away for good."""
    known: Mapping[ClientId, datetime] = {}
    with contextlib.suppress(ExperimentError):  # `status` says by itself that the list is damaged
        known = left_out(own.parents[2])
    gone = [
        f"{site!r} of before {known[site]:%Y-%m-%d %H:%M:%S} UTC"
        for site in silent
        if site in known
    ]
    more = (
        f"; revoked are the certificates of {', '.join(gone)}, and with them nobody answers: the "
        "run goes on when there are new ones; for one that has left stop it, and submit another"
    )
    return f"waits for sites that do not answer: {listed(silent)}{more if gone else ''}"


def _submit(
    own: Path,
    jobs: Jobs,
    write_job: WriteJob,
    there: Collection[ClientId],
    note: Callable[[str], None],
) -> None:
    """Submit a job for a run, if so many of its sites answer as it needs."""
    asked = _asked_for(own)
    silent = [site for site in asked.sites if site not in there]
    if len(asked.sites) - len(silent) < asked.least:
        if silent != _read_json(own / _SILENT, None):
            note(f"{own.name}: {_said_of(silent, own)}")
        _write_json(own / _SILENT, silent)
        return
    (own / _SILENT).unlink(missing_ok=True)
    written = write_job(own / "job", own.name, asked.sites, asked.least)
    (own / "out" / run_folder.AWAY).unlink(missing_ok=True)
    (own / FAILURE).unlink(missing_ok=True)  # it is of the job before this one
    (own / _QUEUED).touch()
    job = jobs.submit(written)
    write_atomically(own / _JOB, job.encode())
    note(f"{own.name}: job {job} is submitted to {listed(asked.sites)}")


@dataclass(frozen=True)
class _Asked:
    """What a run was asked for with."""

    sites: tuple[ClientId, ...]
    absent: str
    least: int  # sites without which its job does not begin


def _asked_for(own: Path) -> _Asked:
    asked = json.loads((own / _REQUEST).read_text(encoding="utf-8"))
    sites, patience = tuple(asked["sites"]), asked["patience"]
    absent = patience["absent"]
    return _Asked(sites, absent, patience["quorum"] if absent == "continue" else len(sites))


def _ends_again(own: Path) -> bool:
    """Return whether so many jobs of a run ended in a row, none of which got further."""
    journals = sorted((own / "out" / run_folder.JOURNAL).glob("*.journal"))
    newest = [[one.name, one.stat().st_size] for one in journals[-1:]]
    reached = [_read_status(own).round, newest]
    ends = own / _ENDS
    before = _read_json(ends, {"reached": None})
    count = int(before["count"]) + 1 if before["reached"] == reached else 1
    if count < _MOST_ENDS:
        _write_json(ends, {"reached": reached, "count": count})
        return False
    ends.unlink()
    return True


def _fail(own: Path, last: str = "") -> None:
    """Write down that a run fails, since its jobs end without a word; `last`: the last's status."""
    sentence = (
        f"{_MOST_ENDS} jobs in a row ended without a word{f' (the last: {last})' if last else ''}; "
        "see the logs of the kits, and let the run go on with `intarsia federation resume`."
    )
    _write_json(own / FAILURE, {"error": "SiteError", "sentence": sentence, "again": False})


def _abort(jobs: Jobs, job: str) -> None:
    with contextlib.suppress(OSError):  # it may run in no process any more
        jobs.abort(job)


def _end_job(own: Path, jobs: Jobs) -> None:
    """End the job of a run, if it has one."""
    path = own / _JOB
    if path.is_file():
        job = path.read_text(encoding="utf-8")
        status = jobs.status(job)
        if status and not status.startswith(_DONE):
            _abort(jobs, job)
        path.unlink()
