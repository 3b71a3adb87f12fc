"""Peak memory of a whole federation in one process, against the data that it holds."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from problems import PROBLEMS, deal, value_bytes
from tables import number, show, write

__all__ = ["measure_all"]

_COLUMNS = (
    "problem",
    "data MB",
    "limit MB",
    "training MB",
    "whole MB",
    "imports MB",
    "gap",
    "within",
)
_NOTES = (
    "Peak resident memory of a fresh process with all clients: while training to a relative gap of "
    "1e-6 (blocks included), over the whole process (reading and dealing the data set included), "
    "and after the imports alone. Limit: 1.3 × the clients' values + 200 MB."
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
        peaks = [found[key] / 1e6 for key in ("training", "whole", "imports")]
        rows.append(
            [
                name,
                number(found["data"] / 1e6),
                number(limit / 1e6, 4),
                *(number(peak, 4) for peak in peaks),
                f"{found['gap']:.0e}",
                "yes" if found["training"] <= limit else "no",
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
    import gc

    from intarsia.algorithm import RandomKey
    from intarsia.algorithms.hyfdca import HYFDCA, HyFDCA
    from intarsia.data import Schema
    from intarsia.engines.in_process import InProcess

    imports = _peak()
    recipe = PROBLEMS[name]
    dataset, labels, blocks = deal(name, recipe.grid, seed)
    data = sum(value_bytes(block.x) for block in blocks.values())
    schema = Schema.of(blocks, labels)
    engine = InProcess({"train": (schema, blocks)}, seed)
    del dataset, blocks
    engine.count_once()
    gc.collect()
    whole = _peak()
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    options = HyFDCA(loss=loss, regularisation=recipe.regularisation)
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
    for number_ in range(1, 3000):
        engine.begin_round(number_)
        server, info = HYFDCA.round(server, engine, engine.key())
        if info.finished or (info.gap_relative is not None and info.gap_relative <= 1e-6):
            break
    training = _peak()
    print(
        json.dumps(
            {
                "data": data,
                "imports": imports,
                "whole": max(whole, training),
                "training": training,
                "gap": info.gap_relative,
            }
        )
    )


if __name__ == "__main__":
    _one(sys.argv[1], sys.argv[2], int(sys.argv[3]))
