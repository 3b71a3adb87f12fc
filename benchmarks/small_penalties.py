"""Count which tables HyFDCA solves at small penalties with sealed sums.

    python benchmarks/small_penalties.py [--kind heavy_tailed] [--tables 0-35] [--loss NAMES]
        [--weights 1e-5,1e-6,1e-7] [--elastic] [--mode masked] [--file FILE] [--write]

A table's number draws its shape and its values. Those of kind ill_conditioned have 200 to 600 rows
and 6 to 150 columns, and every other one is not standardised. Those of kind heavy_tailed have 60 to
500 rows and 41 to 60 columns, of sizes that differ by up to 10², 10⁴ or 10⁸. Losses of numbers have
labels with outliers. `--elastic` has l1_ratio from 0.1 to 0.9. Each run is a line of FILE, and is
not made again where that has it.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from problems import Problem, heavy_tailed, ill_conditioned
from solvers import federated, sealing
from tables import number, show, write
from threadpoolctl import threadpool_limits

from intarsia.algorithms.hyfdca.state import HyFDCA
from intarsia.core.client_functions import SecretKey
from intarsia.errors import IntarsiaError
from intarsia.privacy.settings import Privacy

LEVEL = 1e-6
ROUNDS = 150
LOSSES = ("hinge", "squared_hinge", "huber", "quantile", "logistic")
KINDS = {
    "ill_conditioned": "ill-conditioned tables",
    "heavy_tailed": "heavy-tailed tables with rare levels",
}
_COLUMNS = ("loss", "λ", "tables", "solved", "largest gap", "rounds", "exchanges", "s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kind", choices=KINDS, default="ill_conditioned")
    parser.add_argument("--tables", default="0-35", help="numbers, first-last")
    parser.add_argument("--loss", default=",".join(LOSSES))
    parser.add_argument("--weights", default="1e-5,1e-6,1e-7", help="λ, separated by commas")
    parser.add_argument("--elastic", action="store_true", help="with the elastic net")
    parser.add_argument("--mode", choices=("plain", "masked", "ckks"), default="masked")
    parser.add_argument("--file", type=Path)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    first, last = (int(one) for one in given.tables.split("-"))
    known = _read(given.file)
    rows: list[list[str]] = []
    with threadpool_limits(1):
        for loss in given.loss.split(","):
            for weight in (float(one) for one in given.weights.split(",")):
                found: list[dict[str, Any]] = []
                for table in range(first, last + 1):
                    key = f"{given.kind} {table} {loss} {weight:g} {given.mode} {given.elastic}"
                    if key not in known:
                        one = drawn(given.kind, table, loss, weight)
                        ratio = 0.1 + 0.8 * table % 1 if given.elastic else 0.0
                        known[key] = {"key": key, **_measured(one, ratio, given.mode)}
                        _add(given.file, known[key])
                    found.append(known[key])
                rows.append(_row(loss, weight, found))
                print(*rows[-1], flush=True)
    title = f"Small penalties on {KINDS[given.kind]}, mode {given.mode}"
    title += ", elastic net" if given.elastic else ""
    show(title, _COLUMNS, rows)
    if given.write:
        notes = f"Solved is a certified gap of {LEVEL:g} within {ROUNDS} rounds; rounds, exchanges"
        notes += " and CPU seconds are medians of those solved."
        write(title, _COLUMNS, rows, seed=first, notes=notes)


def drawn(kind: str, table: int, loss: str, weight: float) -> Problem:
    """Return a table by its number, with a loss and λ."""
    rng = np.random.default_rng([20261126, table])
    samples, features = int(rng.integers(200, 601)), int(6 * 25 ** rng.random())
    given: dict[str, Any] = {"loss": loss, "regularisation": weight, "seed": table, "grid": (2, 2)}
    given["numbers"] = loss in ("huber", "quantile")
    if kind == "ill_conditioned":
        return ill_conditioned(samples, features, standardise=table % 2 == 0, **given)
    samples, numeric, spread = int(rng.integers(60, 501)), int(rng.integers(1, 21)), table % 3
    return heavy_tailed(samples, numeric, spread=(1.0, 2.0, 4.0)[spread], **given)


def _measured(one: Problem, ratio: float, mode: Any) -> dict[str, Any]:
    """Return what a run came to; an error counts as unsolved."""
    options = HyFDCA(loss=one.loss, regularisation=one.regularisation, l1_ratio=ratio)
    seal = None if mode == "plain" else sealing(one, Privacy(mode=mode))
    begin = time.process_time()
    try:
        run = federated(
            *(one, options),
            levels=(LEVEL,),
            best=None,
            limit=120.0,
            rounds=ROUNDS,
            sealed=seal,
            # the same in each run, which then comes to the same bits
            secrets={name: SecretKey(name.encode().ljust(SecretKey.SIZE)) for name in one.blocks},
        )
    except IntarsiaError as error:
        return {"gap": None, "error": str(error), "rounds": 0, "exchanges": 0, "s": 0.0}
    spent = time.process_time() - begin
    return {"gap": run.gap, "rounds": run.rounds, "exchanges": run.exchanges, "s": spent}


def _row(loss: str, weight: float, found: list[dict[str, Any]]) -> list[str]:
    solved = [one for one in found if one["gap"] is not None and one["gap"] <= LEVEL]
    gaps = [np.inf if one["gap"] is None else one["gap"] for one in found]
    medians = (
        number(float(np.median([one[name] for one in solved]))) if solved else "–"
        for name in ("rounds", "exchanges", "s")
    )
    sizes = [str(len(found)), str(len(solved)), f"{max(gaps):.0e}"]
    return [loss, f"{weight:g}", *sizes, *medians]


def _read(file: Path | None) -> dict[str, dict[str, Any]]:
    if file is None or not file.is_file():
        return {}
    lines = (json.loads(line) for line in file.read_text().splitlines())
    return {line["key"]: line for line in lines}


def _add(file: Path | None, line: dict[str, Any]) -> None:
    if file is not None:
        with file.open("a") as out:
            out.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
