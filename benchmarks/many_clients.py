"""Memory and time of a federation of many clients, each with a network of its own.

    python benchmarks/many_clients.py --clients 10000 --participation 0.1
    python benchmarks/many_clients.py --algorithm fedavg,flic --samples 20 --first 1000 \
        --clients 10000,100000 --participation 0.01

A whole run, as `intarsia run` does it, in a fresh process: clients of 100 samples with 3 to 100
features of their own and 3 of 20 classes, some rounds with a part of the clients, evaluation and
checkpoints of all. Under fedavg, which has one linear model of all, each has the same 20 features
and two classes; under hyfdca half of its rows are the next client's too, which has 20 other
features of them. The first line has so few clients that all take part, or those of `--first`.
`--write` puts the table into RESULTS.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tables import number, show, write

CLASSES = 20
_COLUMNS = (
    "algorithm",
    "clients",
    "in a round",
    "ms a client",
    "ratio",
    "round s",
    "set-up s",
    "evaluation s",
    "checkpoint s",
    "run s",
    "data MB",
    "states MB",
    "peak MB",
    "of it file-backed MB",
)
_NOTES = (
    "CPU time, but by the clock for evaluation and checkpoint. ms a client: of a round (messages, "
    "batched training, sums) over the clients that take part, median of the rounds after the "
    "first; ratio: to the first line of the same algorithm. Set-up: tables, schema, engine, first "
    "states. Evaluation: certificate and test part of all clients. Checkpoint: the states of all "
    "clients, written once. Peak: resident memory of the whole run, libraries, data and pages of "
    "mapped files included."
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", default="10000")
    parser.add_argument("--algorithm", default="hetfedrep,flic")
    parser.add_argument("--participation", type=float, default=0.1)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--first", type=int, default=None)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--state-megabytes", type=int, default=None)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="write into RESULTS.md")
    parser.add_argument("--one", help=argparse.SUPPRESS)  # one case, in this process
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(_measured(json.loads(arguments.one))))
        return
    rows: list[list[str]] = []
    for algorithm in arguments.algorithm.split(","):
        cases = [
            (100, 1.0) if arguments.first is None else (arguments.first, arguments.participation),
            *((int(count), arguments.participation) for count in arguments.clients.split(",")),
        ]
        first: float | None = None
        for clients, participation in cases:
            found = _apart(
                {
                    "algorithm": algorithm,
                    "clients": clients,
                    "participation": participation,
                    # as many turns of a client in all
                    "rounds": max(arguments.rounds, min(40, int(4000 / (clients * participation)))),
                    "samples": arguments.samples,
                    "seed": arguments.seed,
                    "state_megabytes": arguments.state_megabytes,
                }
            )
            first = first or found["client"]
            rows.append(
                [
                    algorithm,
                    str(clients),
                    str(found["present"]),
                    number(1e3 * found["client"]),
                    number(found["client"] / first),
                    number(found["round"]),
                    number(found["setup"]),
                    number(found["evaluation"]),
                    number(found["checkpoint"]),
                    number(found["run"]),
                    number(found["data"] / 1e6),
                    number(found["states"] / 1e6),
                    number(found["peak"] / 1e6, 4),
                    number(found["mapped"] / 1e6, 4),
                ]
            )
    title = "Many clients, each with a network of its own"
    show(title, _COLUMNS, rows)
    if arguments.write:
        write(title, _COLUMNS, rows, seed=arguments.seed, notes=_NOTES)


def _apart(case: dict[str, Any]) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", json.dumps(case)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(case, found, file=sys.stderr)
    return found


def tables(clients: int, samples: int, seed: int) -> dict[str, Any]:
    """Return each client's rows and classes."""
    rng = np.random.default_rng(seed)
    means = rng.normal(scale=np.sqrt(0.5), size=(CLASSES, 5))
    made = {}
    for client in range(clients):
        y = rng.choice(rng.choice(CLASSES, 3, replace=False), samples)
        features = int(rng.integers(3, 101))
        x = (means[y] + rng.normal(size=(samples, 5))) @ rng.normal(size=(5, features))
        made[f"client {client}"] = (x, y)
    return made


def shared(clients: int, samples: int, seed: int) -> dict[str, Any]:
    """Return each client's rows of the same features, and which of two classes they are in."""
    rng = np.random.default_rng(seed)
    slope = rng.normal(size=20)
    made = {}
    for client in range(clients):
        x = rng.normal(size=(samples, 20))
        y = x @ slope + 2 * rng.normal(size=samples) > 0
        made[f"client {client}"] = (x, y.astype(int))
    return made


def overlapping(clients: int, samples: int, seed: int) -> dict[str, Any]:
    """Return each client's rows with ids, half of which the next client has, by other features."""
    rng = np.random.default_rng(seed)
    slopes, step = rng.normal(size=(2, 20)), samples // 2
    columns = [[f"v{20 * kind + at}" for at in range(20)] for kind in range(2)]
    x = rng.normal(size=(2, step * (clients + 1), 20))
    y = (x * slopes[:, None, :]).sum(axis=(0, 2)) + 2 * rng.normal(size=x.shape[1]) > 0
    made = {}
    for client in range(clients):
        own = np.arange(client * step, client * step + samples)
        table = pd.DataFrame(x[client % 2, own], columns=columns[client % 2])
        made[f"client {client}"] = table.assign(id=own, outcome=y[own].astype(int))
    return made


_DEALT = {"fedavg": shared, "hyfdca": overlapping}


def _measured(case: dict[str, Any]) -> dict[str, Any]:
    import torch

    import intarsia

    torch.set_num_threads(1)
    made = _DEALT.get(case["algorithm"], tables)(case["clients"], case["samples"], case["seed"])
    data = sum(
        one.to_numpy().nbytes if isinstance(one, pd.DataFrame) else one[0].nbytes
        for one in made.values()
    )
    settings: dict[str, Any] = {} if case["algorithm"] in _DEALT else {"final_epochs": 0}
    if case["algorithm"] == "hyfdca":
        settings |= {"id": "id", "label": "outcome", "tolerance": 0.0}
    if case["algorithm"] == "flic":
        settings["pretraining_epochs"] = 1
    if case["state_megabytes"] is not None:
        settings["state_megabytes"] = case["state_megabytes"]
    times: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        begin = time.process_time()
        result = intarsia.run(
            tables=made,
            algorithm=case["algorithm"],
            rounds=case["rounds"],
            participation=case["participation"],
            evaluate_every=0,
            checkpoint_seconds=1e9,
            yardsticks=False,
            workers=1,  # the time of others is not counted
            seed=case["seed"],
            out=Path(folder) / "run",
            progress=lambda _: times.append(time.process_time()),
            **settings,
        )
        states = sum(
            path.stat().st_size
            for path in (Path(folder) / "run" / "checkpoints").rglob("*")
            if path.is_file() and path.name != "extra.json"
        )
    whole = time.process_time() - begin
    print(result.seconds, file=sys.stderr)
    rounds = np.diff(times)
    present = max(1, round(case["participation"] * case["clients"]))
    spent = float(np.median(rounds))
    return {
        "present": present,
        "client": spent / present,
        "round": spent,
        "setup": times[0] - begin - spent,
        "evaluation": result.seconds.get("evaluation", 0.0),
        "checkpoint": result.seconds.get("checkpoints", 0.0) / 2,
        "run": whole,
        "data": data,
        "states": states / 2,
        "peak": _status("VmHWM"),
        "mapped": _status("RssFile"),
        "seconds": result.seconds,
        "loss": result.metrics.server.loss,
    }


def _status(key: str) -> int:
    """Return a line of /proc/self/status in bytes (Linux)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"this system does not tell {key} in /proc/self/status")


if __name__ == "__main__":
    main()
