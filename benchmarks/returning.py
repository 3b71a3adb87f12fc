"""How long a federation over NVIDIA FLARE stands still after a site was killed and is back.

    python benchmarks/returning.py [--absent wait|continue] [--kills N] [--sites N] [--write]

A server and sites on this machine, over mutual TLS, train federated averaging with a deadline of
ten minutes, as a user has it. Of one site all processes are killed with -9: while the job is set
up, while the server waits for its answer, while no exchange is going on, and while the job of a
second run is set up, so that two must go on. The site is started again half a minute later. How
long a first run takes to its first exchange is measured, too. Needs intarsia[nvflare].

Nobody asks the sites but the server: a question that comes while a site starts is answered to
nobody, and the server waits for it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import psutil
from tables import show, write

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

import four_sites
from federation_of_four import Federation, works_on
from intarsia.engines.remote.caller import RetryPolicy

AWAY: Final = 30.0  # seconds
SET_UP: Final = "in the set-up"
ANOTHER: Final = "in the set-up, another run going on"
MOMENTS: Final = SET_UP, "in an exchange", "between exchanges", ANOTHER
COLUMNS: Final = (
    *("moment", "site connected", "job submitted", "its processes", "first answer", "goes on"),
    *("CPU of the job", "CPU of the machine", "load"),
)


def main() -> None:
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # what is installed is compiled once
    arguments = _arguments()
    four_sites.NAMES = four_sites.NAMES[: arguments.sites]
    with tempfile.TemporaryDirectory() as name:
        four = Federation(Path(name))
        four.start_all()
        arrivals = four.kits / "server" / "local" / "arrivals"
        _seconds(lambda: arrivals.is_file() and time.time() - arrivals.stat().st_mtime > 5.0)
        try:
            rows = measured(Measured(four, arguments.absent), arguments.kills)
        finally:
            four.stop_all()
    title = f'A site that was killed and is back, {arguments.sites} sites, "{arguments.absent}"'
    notes = (
        "Seconds from the start of the site, or from the request for a run: until the site has "
        "connected, another job is submitted, all its processes have begun (a minus: they waited "
        "for it), a site has answered its first call, and another round or the whole set-up is "
        "done. "
        "CPU: seconds of the "
        f"job's processes until then, and of all that ran on the machine of {os.cpu_count()} cores "
        "meanwhile. Load: of the last minute."
    )
    show(title, COLUMNS, rows)
    print(notes)
    if arguments.write:
        write(title, COLUMNS, rows, seed=0, notes=notes)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--absent", choices=["wait", "continue"], default="wait")
    parser.add_argument("--kills", type=int, default=2, help="at each moment")
    parser.add_argument("--sites", type=int, choices=[3, 4], default=4)
    parser.add_argument("--write", action="store_true", help="write a section of RESULTS.md")
    return parser.parse_args()


def measured(found: Measured, kills: int) -> list[list[str]]:
    """Return what each kill came to, and before them each request for a run."""
    rows = [["a new run", *found.submitted(f"run-{one}")] for one in range(kills)]
    for moment in MOMENTS:
        for kill in range(kills):
            # without an end, and the same for all kills but those in a set-up
            run = f"{moment}-{kill}".replace(", ", "-").replace(" ", "-")
            run = run if moment in (SET_UP, ANOTHER) else "endless"
            rows.append([moment, *found.killed(moment, run)])
            print(rows[-1], flush=True)
    return rows


class Measured:
    """A federation whose jobs are watched from outside."""

    def __init__(self, four: Federation, absent: Any) -> None:
        self._four, self._site = four, four_sites.NAMES[-1]
        self._described = four.describe("hyfdca")
        self._patience = RetryPolicy(
            deadline=600.0, absent=absent, quorum=len(four_sites.NAMES) - 1
        )

    def submitted(self, run: str) -> list[str]:
        """Return how long a run takes to its first exchange; let it come to its end."""
        found = self._until_it_goes_on(run, "", lambda: self._submit(run, rounds=2))
        self._four.finished(run)
        return found

    def killed(self, moment: str, run: str) -> list[str]:
        """Return how long a run, which may be new, stands still after a kill of a site."""
        four = self._four
        set_up = moment in (SET_UP, ANOTHER)
        if set_up:
            self._submit(run, rounds=1)
        elif not (four.kits / "server" / "local" / "runs" / run).exists():
            self._submit(run, rounds=10**6)
        if not set_up:
            _seconds(lambda: four.standing(run).round >= 1)
        worker, before = four.worker(self._site, run), self._job(run)
        others = [] if set_up else [worker]
        if moment == "between exchanges":
            others = [four.worker("server", run)]
        for process in others:
            process.suspend()
        time.sleep(1.0)
        four.kill(self._site)
        worker.kill()
        for process in others:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()
        time.sleep(AWAY)
        found = self._until_it_goes_on(run, before, lambda: four.start(self._site))
        if set_up:
            four.finished(run)
        return found

    def _submit(self, run: str, rounds: int) -> None:
        tree = four_sites.tree("hyfdca", self._described, self._four.tables, name=run)
        tree["experiment"].update(rounds=rounds, evaluate_every=0, checkpoint_seconds=1.0)
        tree["algorithm"] = {"name": "fedavg", "loss": "logistic"}
        self._four.submit(tree, self._patience)

    def _until_it_goes_on(self, run: str, before: str, act: Callable[[], None]) -> list[str]:
        arrivals = self._four.kits / "server" / "local" / "arrivals"
        connected, reached = arrivals.stat().st_mtime, self._reached(run, new=not before)
        begin, busy = time.time(), _busy()
        act()
        _seconds(lambda: self._job(run) not in ("", before))
        submitted, arrived = time.time() - begin, arrivals.stat().st_mtime
        there = arrived - begin if arrived != connected else None
        _seconds(lambda: self._answered(run) > begin + submitted)
        answered = time.time() - begin
        _seconds(lambda: self._reached(run, new=not before) > reached)
        on, job = time.time() - begin, self._job(run)
        processes = _processes(job)
        begun = [one.create_time() - begin for one in processes]
        cpu = sum(sum(one.cpu_times()[:2]) for one in processes)
        numbers = submitted, max(begun), answered, on, cpu, _busy() - busy, os.getloadavg()[0]
        return ["–" if there is None else f"{there:.1f}", *(f"{one:.1f}" for one in numbers)]

    def _job(self, run: str) -> str:
        path = self._four.kits / "server" / "local" / "runs" / run / "job.id"
        return path.read_text() if path.is_file() else ""

    def _reached(self, run: str, *, new: bool) -> int:
        """Return how far a run is: of a new one, whether a site has answered; else the rounds."""
        out = self._four.out(run)
        if not new:
            return self._four.standing(run).round + (out / "set-up.state").is_file()
        return int(any(one.stat().st_size for one in (out / "journal").glob("*.journal")))

    def _answered(self, run: str) -> float:
        """Return when a site's answer was kept last, in seconds since 1970; 0: never."""
        kept = (self._four.out(run) / "journal").glob("*.journal")
        return max((one.stat().st_mtime for one in kept if one.stat().st_size), default=0.0)


def _processes(job: str) -> list[psutil.Process]:
    """Return the processes that work on a job."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if works_on(process, job):
                found.append(process)
    return found


def _busy() -> float:
    """Return the seconds for which the cores of this machine were at work."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system)


def _seconds(condition: Callable[[], bool]) -> float:
    """Return how long it takes until a condition holds."""
    begin = time.monotonic()
    while not condition():
        time.sleep(0.05)
    return time.monotonic() - begin


if __name__ == "__main__":
    main()
