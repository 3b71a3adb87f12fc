"""How much faster simulations are in several processes, and that these come to the same bits.

    python benchmarks/workers.py [--workers 2] [--repeats 3] [--cases NAMES] [--rows N] [--write]

covtype15k is repeated to N rows (default: a million) for four clients. Of the others, experiments
of the repository, flic-toy-linear has 200 clients that all take part, and hyfem-mfeat is there with
large hidden layers, too. Seconds are those of training
by the clock, medians; one process and several take turns. "by itself" is without the setting: it
begins in one process. A run's bits are those of all clients' states when training ends.

A virtual machine may give freed memory back to its host within seconds: to take it again then costs
seconds a gigabyte, in whichever run that happens. So memory is taken and freed before each run.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from problems import PROBLEMS, deal
from tables import show, write
from threadpoolctl import threadpool_limits

from intarsia.algorithms.hyfdca.algorithm import HYFDCA
from intarsia.algorithms.hyfdca.state import HyFDCA
from intarsia.core.client_functions import SecretKey
from intarsia.core.schema import Schema
from intarsia.engines import codec
from intarsia.engines.simulation import Simulation
from intarsia.experiment.config import load
from intarsia.partition import partition
from intarsia.training import run as running

EXPERIMENTS = Path(__file__).parent.parent / "experiments"
_GAP = 1e-6
_MEMORY, _PART = 3 << 30, 1 << 27  # bytes: more than covtype15k takes
_COLUMNS = ("case", "clients", "1 process, s", "{} processes", "by itself", "same bits")
_CASES = {
    "covtype15k": (),
    "flic-toy-linear": (
        "partition.clients=200",
        "experiment.participation=1.0",
        "experiment.rounds=1",
    ),
    "hyfem-mfeat": ("experiment.rounds=100", "experiment.yardsticks=false"),
    "hyfem-mfeat:large": (
        "experiment.rounds=10",
        "experiment.yardsticks=false",
        "algorithm.hidden=[512, 512]",
    ),
    "heart": (),
    "credit": (),
}

Timed = tuple[float, str, int]  # seconds, a checksum of the states, clients


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cases", default=",".join(_CASES))
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    rows = []
    for name in given.cases.split(","):
        timed = _covtype(given.rows) if name == "covtype15k" else _experiment(name)
        ways: dict[int, list[Timed]] = {1: [], given.workers: [], 0: []}
        for _ in range(given.repeats):
            for workers, found in ways.items():
                _take_memory()
                found.append(timed(workers))
                print(name, workers, *found[-1], flush=True)
        seconds = {workers: statistics.median(s for s, *_ in own) for workers, own in ways.items()}
        one, bits = seconds[1], {bits for own in ways.values() for _, bits, _ in own}
        ratios = (f"{one / seconds[workers]:.2f} x" for workers in (given.workers, 0))
        clients = str(ways[1][0][2])
        rows.append([name, clients, f"{one:.2f}", *ratios, "yes" if len(bits) == 1 else "NO"])
    columns = tuple(one.format(given.workers) for one in _COLUMNS)
    title = f"Simulations in {given.workers} processes"
    show(title, columns, rows)
    if given.write:
        write(title, columns, rows, seed=0)


def _take_memory() -> None:
    for part in [np.empty(_PART, np.uint8) for _ in range(_MEMORY // _PART)]:
        part[::4096] = 1  # a page


def _checksum(engine: Simulation) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for name, state in engine.states.items():
        digest.update(name.encode() + codec.encode(state))
    return digest.hexdigest()


def _covtype(rows: int) -> Callable[[int], Timed]:
    """Return what trains HyFDCA on the table repeated, to a relative gap of 1e-6."""
    dataset, labels, _ = deal("covtype15k", (2, 2), 0)
    times = -(-rows // len(dataset.y))
    x, y = np.tile(dataset.x, (times, 1)), np.tile(dataset.y, times)
    whole = replace(dataset, samples=np.arange(len(y)), x=x, y=y)
    blocks = partition("grid", whole, rows=2, columns=2, seed=0)
    schema = Schema.of(blocks, labels)
    secrets = {name: SecretKey(name.encode().ljust(32)) for name in blocks}
    options = HyFDCA(loss="logistic", regularisation=PROBLEMS["covtype15k"].regularisation)

    def timed(workers: int) -> Timed:
        parts = {"train": (schema, blocks)}
        engine = Simulation(parts, 0, secrets=secrets, workers=workers or None)
        engine.count_once()
        with threadpool_limits(1):
            began = time.perf_counter()
            key = engine.key("init")
            server = HYFDCA.init_server(options, schema, key)
            engine.begin(HYFDCA, options)
            server = HYFDCA.setup(server, engine, key)
            number, gap = 0, np.inf
            while gap > _GAP:
                number += 1
                engine.begin_round(number)
                server, info = HYFDCA.round(server, engine, engine.key())
                gap = np.inf if info.gap_relative is None else info.gap_relative
            seconds = time.perf_counter() - began
        return seconds, _checksum(engine), len(blocks)

    return timed


def _experiment(name: str) -> Callable[[int], Timed]:
    """Return what runs an experiment without a folder."""

    def timed(workers: int) -> Timed:
        overrides = [*_CASES[name], f"experiment.workers={workers}"]
        description = load(EXPERIMENTS / f"{name.partition(':')[0]}.toml", overrides)
        found: list[tuple[str, int]] = []

        class Place(running.InThisProcess):
            def keep(self, plan, engine):  # the states are those of the end of training here
                found.append((_checksum(engine), len(engine.schema("train").clients)))
                super().keep(plan, engine)

        kept, running.InThisProcess = running.InThisProcess, Place
        try:
            result = running.run(description, out=None)
        finally:
            running.InThisProcess = kept
        [(bits, clients)] = found
        return result.seconds["training"], bits, clients

    return timed


if __name__ == "__main__":
    main()
