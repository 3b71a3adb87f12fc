"""How long a federation over NVIDIA FLARE stands still after a site was killed and is back.

    python benchmarks/returning.py [--absent wait|continue] [--kills N] [--write]

Four sites and a server on this machine, over mutual TLS, train federated averaging with a deadline
of ten minutes, as a user has it. Of one site all processes are killed with -9. It is started again
half a minute later. Needs intarsia[nvflare].
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
from typing import Any

import psutil
from tables import show, write

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

import four_sites
from federation_of_four import Federation
from intarsia.engines.remote.caller import RetryPolicy
from intarsia.engines.transports.nvflare import Jobs

RUN, SITE = "returning", "retailer"
AWAY = 30.0  # seconds
COLUMNS = ("kill", "not connected", "started, connected", "connected, new job", "goes on", "CPU")


def main() -> None:
    arguments = _arguments()
    with tempfile.TemporaryDirectory() as name:
        four = Federation(Path(name))
        four.start_all()
        jobs = Jobs(four.kits / "server" / "admin")
        try:
            rows = killed(four, jobs, arguments.absent, arguments.kills)
        finally:
            jobs.close()
            four.stop_all()
    title = f'A site that was killed and is back, absent = "{arguments.absent}"'
    notes = (
        "Seconds: from the kill until the status says that the site is not connected; from its "
        "start until it is connected; from then until another job is submitted, and until a round "
        "more is done. CPU: seconds of all processes of the new job until then. All run on one "
        f"machine of {os.cpu_count()} cores, at load {os.getloadavg()[0]:.1f}."
    )
    show(title, COLUMNS, rows)
    print(notes)
    if arguments.write:
        write(title, COLUMNS, rows, seed=0, notes=notes)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--absent", choices=["wait", "continue"], default="wait")
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="write a section of RESULTS.md")
    return parser.parse_args()


def killed(four: Federation, jobs: Jobs, absent: Any, kills: int) -> list[list[str]]:
    """Return what each kill of a site came to."""
    described = four.describe("hyfdca")
    tree = four_sites.tree("hyfdca", described, four.tables, name=RUN)
    tree["experiment"].update(rounds=10**6, evaluate_every=0, checkpoint_seconds=1.0)
    tree["algorithm"] = {"name": "fedavg", "loss": "logistic"}
    four.submit(tree, RetryPolicy(deadline=600.0, absent=absent, quorum=3))
    path, found = four.kits / "server" / "local" / "runs" / RUN / "job.id", []
    for kill in range(1, kills + 1):
        reached = four.standing(RUN).round
        _seconds(lambda reached=reached: four.standing(RUN).round > reached + 5)
        worker, before = four.worker(SITE, RUN), path.read_text()
        four.kill(SITE)
        worker.kill()
        gone = _seconds(lambda: not _connected(jobs))
        time.sleep(AWAY)
        reached = four.standing(RUN).round
        four.start(SITE)
        back = _seconds(lambda: _connected(jobs))
        submitted = _seconds(lambda before=before: path.is_file() and path.read_text() != before)
        on = submitted + _seconds(lambda reached=reached: four.standing(RUN).round > reached)
        cpu = _cpu(path.read_text())
        found.append([str(kill), *(f"{one:.1f}" for one in (gone, back, submitted, on, cpu))])
        print(found[-1], flush=True)
    return found


def _connected(jobs: Jobs) -> bool:
    with contextlib.suppress(OSError):
        return SITE in jobs.sites()
    return False


def _seconds(condition: Callable[[], bool]) -> float:
    """Return how long it takes until a condition holds."""
    begin = time.monotonic()
    while not condition():
        time.sleep(0.1)
    return time.monotonic() - begin


def _cpu(job: str) -> float:
    """Return the seconds of the processes that work on a job."""
    found = 0.0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any(job in word for word in process.cmdline()):
                times = process.cpu_times()
                found += times.user + times.system
    return found


if __name__ == "__main__":
    main()
