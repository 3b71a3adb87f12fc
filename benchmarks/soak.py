"""How memory and logs grow over thousands of exchanges over NVIDIA FLARE.

    python benchmarks/soak.py [--exchanges N] [--write]

Four sites and a server on this machine, over mutual TLS, train hybrid federated averaging on small
tables, in which nothing converges early. Ten times on the way, and once at the start, the memory
(resident, of the worker and the parent of each kit), the threads of the server's worker and the
size of the kits' logs and of their folders of runs are taken. Needs intarsia[nvflare].
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from tables import show, write

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

import four_sites
from federation_of_four import Federation, history

COLUMNS = (
    *("exchanges", "seconds", "server worker", "server parent", "site worker", "site parent"),
    *("logs", "server's run", "a site's run", "threads"),
)
MOST_THREADS = 50 + 4 * len(four_sites.NAMES)  # of the server's worker
LOG_CAP = 3 * 2_000_000  # bytes: what a kit's log.txt may come to


def main() -> None:
    arguments = _arguments()
    with tempfile.TemporaryDirectory() as name:
        four = Federation(Path(name))
        four.start_all()
        try:
            rows = soaked(four, arguments.exchanges)
        finally:
            four.stop_all()
    title = "A federation over NVIDIA FLARE for thousands of exchanges"
    shown = [_row(one) for one in rows]
    first, last = rows[1], rows[-1]
    notes = (
        "Memory in MB, resident; of the sites the largest. Logs: the largest log of a kit, in kB; "
        f"its cap is {LOG_CAP / 1e6:g} MB. Runs: what lies in the folders of the run, in kB. From "
        f"{first['exchanges']:,} to {last['exchanges']:,} exchanges: the server's worker "
        f"{_change(first, last, 'server worker')}, the sites' {_change(first, last, 'site worker')}"
        f", logs {(last['logs'] - first['logs']) / 1e3:+.1f} kB. Threads: of the server's worker, "
        f"{max(one['threads'] for one in rows)} at most; {MOST_THREADS} are allowed. {_rate(rows)} "
        f"exchanges a second. Load {os.getloadavg()[0]:.1f} on "
        f"{os.cpu_count()} cores, so that times say little."
    )
    show(title, COLUMNS, shown)
    print(notes)
    if arguments.write:
        write(title, COLUMNS, shown, seed=0, notes=notes)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--exchanges", type=int, default=5000)
    parser.add_argument("--write", action="store_true", help="write a section of RESULTS.md")
    return parser.parse_args()


def soaked(four: Federation, exchanges: int) -> list[dict[str, Any]]:
    """Return what was taken on the way to so many exchanges."""
    described = four.describe("hyfdca")
    tree = four_sites.tree("hyfdca", described, four.tables, name="soak")
    tree["experiment"].update(rounds=exchanges, evaluate_every=0, checkpoint_seconds=1.0)
    tree["algorithm"] = {"name": "fedavg", "loss": "logistic"}
    four.submit(tree)
    begin, found = time.monotonic(), []
    for part in range(11):
        due = max(1, part * exchanges // 10)
        while (done := _done(four)) < due:
            standing = four.standing("soak")
            if standing.state == "failed":
                raise SystemExit(f"the run failed: {standing.problem}")
            time.sleep(0.5)
        found.append({"exchanges": done, "seconds": time.monotonic() - begin, **taken(four)})
        print(_row(found[-1]), flush=True)
    return found


def _done(four: Federation) -> int:
    with contextlib.suppress(FileNotFoundError, IndexError, ValueError):
        return int(history(four.out("soak"))[-1]["exchanges"])
    return 0


def taken(four: Federation) -> dict[str, float]:
    """Return the memory of the processes, and the bytes of logs and runs."""
    found: dict[str, float] = {"server worker": 0, "server parent": 0, "site worker": 0}
    found |= {"site parent": 0, "threads": 0}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            kit = next((name for name in four.processes if str(four.kits / name) in words), None)
            if kit is None or "nvflare.private" not in " ".join(words):
                continue
            who = "server" if kit == "server" else "site"
            kind = f"{who} {'worker' if four._is_worker(process) else 'parent'}"
            found[kind] = max(found[kind], process.memory_info().rss)
            if kind == "server worker":
                found["threads"] = process.num_threads()
    logs = [
        sum(_size(path) for path in (four.kits / name).rglob("log*.txt*"))
        for name in four.processes
    ]
    runs = {
        name: sum(_size(path) for path in (four.kits / name / "local" / "runs").rglob("*"))
        for name in four.processes
    }
    server = runs.pop("server")
    return {**found, "logs": max(logs), "server's run": server, "a site's run": max(runs.values())}


def _size(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):  # replaced by the next
        return path.stat().st_size if path.is_file() else 0
    return 0


def _row(one: dict[str, Any]) -> list[str]:
    memory = [f"{one[key] / 1e6:.1f}" for key in COLUMNS[2:6]]
    sizes = [f"{one[key] / 1e3:.1f}" for key in COLUMNS[6:9]]
    counts = f"{one['threads']:.0f}"
    return [f"{one['exchanges']:,}", f"{one['seconds']:.0f}", *memory, *sizes, counts]


def _rate(rows: list[dict[str, Any]]) -> str:
    seconds = rows[-1]["seconds"] - rows[0]["seconds"]
    return f"{(rows[-1]['exchanges'] - rows[0]['exchanges']) / seconds:.1f}"


def _change(first: dict[str, Any], last: dict[str, Any], key: str) -> str:
    return f"{(last[key] - first[key]) / 1e6:+.1f} MB ({100 * (last[key] / first[key] - 1):+.1f} %)"


if __name__ == "__main__":
    main()
