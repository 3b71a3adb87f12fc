"""What an exchange costs with 4 to 100 sites, and a model of it, carried to 1,000.

    python benchmarks/many_sites.py [--sites 4,8,16,32,64,100] [--write]

Each site is a process of its own with a folder, keys, a policy and a log, and does all that a
site of a federation does for a call. Sockets of this machine carry the calls; NVIDIA FLARE is not
there, so that what is measured is ours alone. Each two sites have the same rows and columns of
their own; pairs of sites have rows of their own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from tables import number, show, write

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from intarsia.deployment.run import run_over
from intarsia.engines.remote.caller import RetryPolicy
from intarsia.experiment import config as experiment
from key_folders import exchanged
from site_processes import PORT, Sockets, serve

MODES = ("plain", "masked, one key", "masked, keys of pairs")
ROWS, WIDTH, ROUNDS, FAR = 200, 24, 40, 1000
COLUMNS = (
    *("sums", "sites", "exchanges", "ms an exchange", "CPU ms, server", "CPU ms, a site"),
    *(
        "of the model, server",
        "of the model, a site",
        "set-up CPU s, server",
        "set-up CPU s, a site",
    ),
    "kB an exchange",
)
NOTES = (
    "HyFDCA by dual ascent, logistic loss, {rounds} rounds; {rows} rows and {half} columns at "
    "each site. By the clock from one exchange to the next, with all sites on one machine of "
    "{cores} cores at load {load:.0f}, so that it says little; CPU of the server's process, and "
    "of all sites over their number, without the set-up. The model: CPU = a + b x sites + c x "
    "sites squared, the least squares of the relative errors over all sizes but the largest, "
    "which it has not seen; none of the three below zero. The line of {far:,} sites is the "
    "model's, not measured: it assumes that costs go on as they do up to {largest}, tables of "
    "this size at each site, and a server that keeps one connection and one thread for each site."
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sites", default="4,8,16,32,64,100")
    parser.add_argument("--sums", choices=MODES, nargs="+", default=[*MODES])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="write into RESULTS.md")
    parser.add_argument("--serve", nargs="+", help=argparse.SUPPRESS)  # folders of sites
    parser.add_argument("--one", help=argparse.SUPPRESS)  # the server of one case
    arguments = parser.parse_args()
    if arguments.serve:
        serve_all([Path(one) for one in arguments.serve])
        return
    if arguments.one:
        print(json.dumps(served(json.loads(arguments.one))))
        return
    sizes = [int(one) for one in arguments.sites.split(",")]
    rows: list[list[str]] = []
    for mode in arguments.sums:
        found = [measured(mode, size, arguments.seed) for size in sizes]
        server = fitted(sizes, [one["server"] for one in found])
        site = fitted(sizes, [one["site"] for one in found])
        for size, one in zip(sizes, found, strict=True):
            rows.append(
                [
                    *(mode, str(size), str(one["exchanges"])),
                    *(number(one[key]) for key in ("wall", "server", "site")),
                    *(number(model(size)) for model in (server, site)),
                    *(number(one[key]) for key in ("set-up", "site set-up", "kB")),
                ]
            )
        far = [number(model(FAR)) for model in (server, site)]
        rows.append([mode, f"{FAR:,} (model)", "–", "–", "–", "–", *far, "–", "–", "–"])
    title = "An exchange with many sites"
    show(title, COLUMNS, rows)
    if arguments.write:
        given = {"rounds": ROUNDS, "rows": ROWS, "half": WIDTH // 2, "cores": os.cpu_count()}
        given |= {"load": os.getloadavg()[0], "far": FAR, "largest": max(sizes)}
        write(title, COLUMNS, rows, seed=arguments.seed, notes=NOTES.format(**given))


def fitted(sizes: list[int], costs: list[float]) -> Any:
    """Return a + b sites + c sites², fitted to relative errors of all sizes but the largest."""
    from scipy.optimize import nnls

    x, y = np.array(sizes[:-1], float), np.array(costs[:-1])
    terms = np.stack([np.ones_like(x), x, x**2], axis=1)
    found, _ = nnls(terms / y[:, None], np.ones_like(y))
    return lambda size: float(found @ [1.0, size, size**2])


def measured(mode: str, count: int, seed: int) -> dict[str, float]:
    """Return what a run over so many sites took."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        names = write_sites(folder, count, mode, seed)
        with running(folder, names) as sites:
            case = {"folder": str(folder), "names": names, "mode": mode}
            command = [sys.executable, __file__, "--one", json.dumps(case), "--sites", str(sites)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(done.stderr)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    print(mode, count, found, file=sys.stderr, flush=True)
    return found


def write_sites(folder: Path, count: int, mode: str, seed: int) -> list[str]:
    """Write a folder for each site; return their names."""
    rng = np.random.default_rng(seed)
    names = [f"site{number:03d}" for number in range(count)]
    truth = rng.normal(size=WIDTH)
    exchanged(folder, names, "many")
    for place, name in enumerate(names):
        if place % 2 == 0:
            ids = np.arange(place * ROWS, (place + 1) * ROWS)
            x = rng.normal(size=(ROWS, WIDTH))
            label = x @ truth + 3 * rng.normal(size=ROWS) > 0
        own = slice(0, WIDTH // 2) if place % 2 == 0 else slice(WIDTH // 2, WIDTH)
        header = ",".join(["id", *(f"n{at}" for at in range(WIDTH)[own]), "label"])
        lines = [
            ",".join([str(one), *map("{:.6f}".format, row[own]), "yes" if is_so else "no"])
            for one, row, is_so in zip(ids, x, label, strict=True)
        ]
        own_folder = folder / name
        own_folder.mkdir()
        (own_folder / "table.csv").write_text("\n".join([header, *lines]) + "\n")
        sealed = f'trust = "{"clients" if mode == MODES[1] else "pairs"}"'
        how = "plain = true" if mode == MODES[0] else sealed
        (own_folder / "site.toml").write_text(
            f'[site]\nname = "{name}"\nids = true\n{how}\n'
            f'key = "{folder}/keys/{name}/shared.key"\n[table]\n'
            f'path = "{own_folder}/table.csv"\nid = "id"\nlabel = "label"\n'
        )
    return names


@contextlib.contextmanager
def running(folder: Path, names: list[str]) -> Iterator[int]:
    """Run the sites' processes; yield the process that began them."""
    command = [sys.executable, __file__, "--serve", *(str(folder / name) for name in names)]
    with subprocess.Popen(command) as process:
        try:
            while not all((folder / name / PORT).exists() for name in names):
                if process.poll() is not None:
                    raise SystemExit("the sites' processes ended")
                time.sleep(0.05)
            yield process.pid
        finally:
            for child in psutil.Process(process.pid).children():
                child.kill()
            process.kill()


def serve_all(folders: list[Path]) -> None:
    """Fork a process for each site, which have the libraries' memory in common."""
    for folder in folders:
        if os.fork() == 0:
            serve(folder)
    for _ in folders:
        os.wait()


def served(case: dict[str, Any]) -> dict[str, float]:
    """Run the server of one case, in this process; return what an exchange took."""
    folder, names, mode = Path(case["folder"]), case["names"], case["mode"]
    sites = psutil.Process(int(sys.argv[sys.argv.index("--sites") + 1]))
    privacy: dict[str, Any] = {"mode": "plain"}
    if mode != MODES[0]:
        privacy = {"mode": "masked", "trust": "clients" if mode == MODES[1] else "pairs"}
    description = experiment.from_dict(
        {
            "experiment": {"rounds": ROUNDS, "tolerance": 0.0, "yardsticks": False},
            "algorithm": {
                "name": "hyfdca",
                "loss": "logistic",
                "regularisation": 1e-4,
                "method": "ascent",
            },
            "split": {"test": 0.0},
            "privacy": privacy,
            "client": [{"name": name, "id": "id", "label": "label"} for name in names],
        },
        folder,
    )
    spent: list[tuple[float, float, float]] = []

    def watch(*_: object) -> None:
        times = [one.cpu_times() for one in sites.children()]
        at_sites = sum(one.user + one.system for one in times)
        spent.append((time.perf_counter(), time.process_time(), at_sites))

    watch()
    out = folder / "out"
    found = run_over(
        *(description, Sockets(folder), names, out),
        patience=RetryPolicy(seconds=300.0, deadline=1200.0),
        progress=watch,
    )
    lines = [json.loads(one) for one in (out / "history.jsonl").read_text().splitlines()]
    (begin, mid), count = (spent[1], spent[-2]), len(names)
    exchanges = lines[-1]["exchanges"] - lines[0]["exchanges"]
    return {
        "exchanges": found.exchanges,
        **{
            key: 1e3 * (mid[at] - begin[at]) / exchanges / parts
            for at, (key, parts) in enumerate({"wall": 1, "server": 1, "site": count}.items())
        },
        "set-up": begin[1] - spent[0][1],
        "site set-up": (begin[2] - spent[0][2]) / count,
        "kB": (lines[-1]["bytes"] - lines[0]["bytes"]) / exchanges / 1e3,
    }


if __name__ == "__main__":
    main()
