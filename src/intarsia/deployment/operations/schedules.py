"""Runs that a server asks for by itself, every day at a time: an experiment on the tables of then.

A schedule is a file in `schedules` of the server's folder. Its runs are called NAME-DATE.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import date, datetime, time
from pathlib import Path
from typing import Any, Final

from intarsia.core.files.atomic_files import write_atomically
from intarsia.deployment.federation_file import sites_of
from intarsia.deployment.server import list_statuses, request
from intarsia.errors import BusyError, ExperimentError, UserError, nearest
from intarsia.experiment import config as experiments
from intarsia.experiment.config import Experiment
from intarsia.results import run_folder

_FOLDER: Final = "local/schedules"
_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,88}")  # a run's has a date behind it
_AT_WORK: Final = ("waiting", "running")


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
        moment = time.fromisoformat(at)
        if at != f"{moment:%H:%M}":
            raise ValueError
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
    known = [one.name for one in schedules(kit)]
    if not known:
        raise ExperimentError(
            f"{kit} has no schedule {name!r}, nor any other; there is nothing to end."
        )
    if name not in known:
        raise ExperimentError(f"{kit} has no schedule {name!r}; {nearest(name, known)}.")
    (kit / _FOLDER / f"{name}.json").unlink()


def schedules(kit: Path) -> list[Schedule]:
    """Return what the server of a kit runs every day, by name."""
    return [Schedule(**_read(path)["schedule"]) for path in _files(kit)]


def _files(kit: Path) -> list[Path]:
    return sorted((kit / _FOLDER).glob("*.json"))


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


class Daily:
    """Asks for the runs whose time has come, and removes those that are not to be kept.

    A day on which the server was away is made up for until midnight. Where the run of the day
    before is at work still, none is asked for.

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

    def look(self) -> None:
        """Do what is due, once a minute; OSError as of a full disk, and it is tried again."""
        now = self._now()
        if self._looked == (minute := f"{now:%Y-%m-%d %H:%M}"):
            return
        for path in _files(self._kit):
            self._submit_due(path, now)
        self._looked = minute

    def _submit_due(self, path: Path, now: datetime) -> None:
        found = _read(path)
        one, tree = Schedule(**found["schedule"]), found["experiment"]
        runs, run = _runs_of(self._kit, one), one.run_of(now.date())
        finished = [name for name, state in runs if state == "finished"]
        for old in finished[: -one.keep] if one.keep else ():
            self._remove(old, one.keep)
        due = now.date().isoformat() >= one.since and f"{now:%H:%M}" >= one.at
        if not due or any(name == run or state in _AT_WORK for name, state in runs):
            return
        tree["experiment"]["name"] = run
        sites, patience = sites_of(self._kit)
        try:
            description = experiments.from_dict(tree, self._kit / "local")
            request(self._kit / "local", description, sites, patience)
        except UserError as problem:
            self._note(f"the schedule {one.name} is at an end, as its run is refused: {problem}")
            path.unlink()
        else:
            self._note(f"{run} is asked for by its schedule")

    def _remove(self, run: str, kept: int) -> None:
        own = self._kit / "local" / "runs" / run
        # one that somebody reads is removed later
        with contextlib.suppress(BusyError), run_folder.alone_in(own / "out"):
            shutil.rmtree(own)
            self._note(f"{run} is removed, as {kept} finished runs are kept")


def _runs_of(kit: Path, one: Schedule) -> list[tuple[str, str]]:
    """Return the runs of a schedule with their states, the oldest first."""
    dated = re.compile(rf"{re.escape(one.name)}-\d{{4}}-\d\d-\d\d")
    statuses = list_statuses(kit / "local")
    return [(run.name, run.state) for run in statuses if dated.fullmatch(run.name)]
