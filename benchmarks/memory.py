"""Peak memory of a whole federation in one process, against the data that it holds."""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from problems import PROBLEMS, deal, synthetic, value_bytes
from tables import number, show, write
from threadpoolctl import threadpool_limits

from intarsia.algorithm import RandomKey
from intarsia.algorithms.hyfdca import HYFDCA, HyFDCA
from intarsia.data import Block, ClientId, Schema
from intarsia.engines.in_process import InProcess

__all__ = ["measure_all"]

_COLUMNS = (
    "problem",
    "data MB",
    "limit MB",
    "training MB",
    "whole MB",
    "libraries MB",
    "gap",
    "within",
    "within, over libraries",
)
_NOTES = (
    "Peak resident memory of a fresh process with all clients: while training to a relative gap of "
    "1e-6 (blocks included), over the whole process (reading and dealing the data set included), "
    "and of the libraries alone (imported, kernels loaded). Limit: 1.3 × the clients' values + "
    "200 MB, held against training, and against training less the libraries."
)


def measure_all(arguments: argparse.Namespace) -> None:
    loss = arguments.loss[0]
    rows: list[list[str]] = []
    for name in arguments.data:
        command = [sys.executable, __file__, name, loss, str(arguments.seed)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
        found = json.loads(done.stdout)
        limit = 1.3 * found["data"] + 200e6
        peaks = [found[key] / 1e6 for key in ("training", "whole", "libraries")]
        rows.append(
            [
                name,
                number(found["data"] / 1e6),
                number(limit / 1e6, 4),
                *(number(peak, 4) for peak in peaks),
                f"{found['gap']:.0e}",
                "yes" if found["training"] <= limit else "no",
                "yes" if found["training"] - found["libraries"] <= limit else "no",
            ]
        )
    title = f"HyFDCA, peak memory, {loss}"
    show(title, _COLUMNS, rows)
    if arguments.write:
        write(title, _COLUMNS, rows, seed=arguments.seed, notes=_NOTES)


def _peak() -> int:
    """Return the peak resident memory since the last reset, in bytes (Linux)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("this system does not tell the peak memory in /proc/self/status")


def _one(name: str, loss: str, seed: int) -> None:
    tiny = synthetic(200, 12, loss=loss, regularisation=1e-2, grid=(2, 2), seed=0)
    _train(tiny.schema(), dict(tiny.blocks), loss, 1e-2, seed)
    del tiny
    libraries = _peak()
    recipe = PROBLEMS[name]
    dataset, labels, blocks = deal(name, recipe.grid, seed)
    data = sum(value_bytes(block.x) for block in blocks.values())
    schema = Schema.of(blocks, labels)
    del dataset
    dealt = _peak()
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    gap = _train(schema, blocks, loss, recipe.regularisation, seed)
    training = _peak()
    found = {"data": data, "libraries": libraries, "training": training, "gap": gap}
    print(json.dumps({**found, "whole": max(dealt, training)}))


def _train(
    schema: Schema, blocks: dict[ClientId, Block], loss: str, rate: float, seed: int
) -> float:
    """Train to a gap of 1e-6, take the blocks, and return the gap."""
    engine = InProcess({"train": (schema, blocks)}, seed)
    blocks.clear()
    engine.count_once()
    options = HyFDCA(loss=loss, regularisation=rate)
    states = {
        client: HYFDCA.init_client(
            options, schema, client, engine.block(client), engine.client_key(client)
        )
        for client in engine.ids
    }
    engine.set_states(states)
    del states
    server = HYFDCA.init_server(options, schema, RandomKey((seed,)))
    server = HYFDCA.setup(server, engine, engine.key("setup"))
    gap = np.inf
    for turn in range(1, 3000):
        engine.begin_round(turn)
        server, info = HYFDCA.round(server, engine, engine.key())
        gap = np.inf if info.gap_relative is None else info.gap_relative
        if info.finished or gap <= 1e-6:
            break
    return float(gap)


if __name__ == "__main__":
    with threadpool_limits(1):
        _one(sys.argv[1], sys.argv[2], int(sys.argv[3]))
