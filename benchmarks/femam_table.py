"""FeMAM beside its baselines on the planted problems of experiments/femam-mnist-*.toml.

    python benchmarks/femam_table.py [--problem NAME...] [--method NAME...] [--seeds N...]
                                     [--tune] [--show] [--write]

Each cell (problem, method, seed) is one run; what it came to is kept in runs/femam_table.json
beside this file and not run again, so that a later call adds to the table (remove the file where
the library has changed since). With `--tune` a method that has several settings below is first run
with each on 90 % of the training samples of seed 0 and graded on the rest; the best of what has
been tried is used, the first where nothing was. `--show` and `--write` show what there is.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from tables import show, write
from threadpoolctl import threadpool_limits

import intarsia
from intarsia import experiment
from intarsia.experiment import Experiment
from intarsia.maths.tensors import torch

_CELLS = Path(__file__).parent / "runs" / "femam_table.json"
_EXPERIMENTS = Path(__file__).parent.parent / "experiments"
PROBLEMS = ("pair", "permutation", "classes", "dirichlet", "levels", "iid")
_PLANTED = ("pair", "permutation", "classes", "levels")  # groups of several clients
_TRAINING = {"optimiser": "sgd", "rate": 0.05, "batch": 32, "local_epochs": 2}
_FASTER = {"rate": 0.1}
_LATER = {"first_clustering": 20}
_ROUNDS = 180  # those of FeMAM's level 1
# name → algorithm and its settings, the first where nothing was tuned
METHODS: dict[str, tuple[str, tuple[dict[str, Any], ...]]] = {
    "femam": ("femam", ({},)),  # as the experiment has it
    "local": ("local", ({},)),
    "fedavg": ("fedavg-ft", ({"final_epochs": 0},)),
    "fedavg-ft": (
        "fedavg-ft",
        tuple({"final_epochs": n, **more} for more in ({}, _FASTER) for n in (20, 60)),
    ),
    "fedprox": ("fedprox", ({"proximal": 0.01},)),
    "ditto": (
        "ditto",
        tuple({"own_epochs": 2, "pull": pull, **m} for m in ({}, _FASTER) for pull in (0.1, 0.5)),
    ),
    "pfedme": ("pfedme", ({"pull": 1.0, "local_rounds": 6, "steps": 2, "step_size": 0.5},)),
    "fesem": ("fesem", ({}, _LATER)),
    "fesem+": (
        "fesem",
        tuple({"final_epochs": n, **more} for more in ({}, _LATER, _FASTER) for n in (20, 60)),
    ),
    "ifca": ("ifca", ({},)),
    "fedrep": (
        "fedrep",
        tuple({"shared_epochs": 2, "final_epochs": n} for n in (20, 60)),
    ),
}


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(1)
    cells: dict[str, Any] = json.loads(_CELLS.read_text()) if _CELLS.is_file() else {}
    if not arguments.show:
        with threadpool_limits(limits=1):
            _fill(cells, arguments)
    rows, columns = _table(cells)
    title = "FeMAM and its baselines, planted problems"
    show(title, columns, rows)
    structure, of_structure = _structure(cells)
    title_of_structure = "FeMAM, the structure it finds"
    show(title_of_structure, of_structure, structure)
    if arguments.write:
        write(title, columns, rows, seed=0, notes=_NOTES + _tuned(cells))
        write(title_of_structure, of_structure, structure, seed=0, notes=_STRUCTURE_NOTES)


_NOTES = (
    "MNIST, 20 clients of at most 100 training samples, the experiments' perceptron. Accuracy in "
    "per cent as the mean over clients, and macro-F1; the mean ± the deviation over seeds, of "
    "which [n] were run. FeMAM as the experiments have it; the others with SGD, rate 0.05, batches "
    f"of 32, two local epochs, {_ROUNDS} rounds; five clusters. "
)
_STRUCTURE_NOTES = (
    "Adjusted Rand index of the true groups with the learned level that is most like them "
    "(clients that drop a level are in a group of their own), and how many of the 20 clients keep "
    "each level from the second on, seed by seed."
)


def _fill(cells: dict[str, Any], arguments: argparse.Namespace) -> None:
    for seed in arguments.seeds:
        for method in arguments.method:
            for problem in arguments.problem:
                if arguments.tune and seed == arguments.seeds[0]:
                    for place in range(len(METHODS[method][1])):
                        _cell(cells, problem, method, 0, place, tune=True)
                place = _chosen(cells, problem, method)
                _cell(cells, problem, method, seed, place, tune=False)


def _chosen(cells: dict[str, Any], problem: str, method: str) -> int:
    """Return the place of the setting that is best on validation rows, of those that were tried."""
    tried = {
        place: cells[key]["accuracy"]
        for place in range(len(METHODS[method][1]))
        if (key := _key(problem, method, 0, place, tune=True)) in cells
    }
    return max(tried, key=lambda place: tried[place]) if tried else 0


def _key(problem: str, method: str, seed: int, place: int, *, tune: bool) -> str:
    words = json.dumps(METHODS[method][1][place], sort_keys=True)
    return f"{problem} {method} {seed} {words}{' validation' if tune else ''}"


def _cell(
    cells: dict[str, Any], problem: str, method: str, seed: int, place: int, *, tune: bool
) -> None:
    key = _key(problem, method, seed, place, tune=tune)
    if key in cells:
        return
    started = time.process_time()
    result = intarsia.run(_description(problem, method, seed, place, tune=tune), out=None)
    mean = result.metrics.clients_mean
    kept = [
        sum(group is not None for group in groups)
        for groups in (result.structure.learned.levels if result.structure.learned else {}).values()
    ]
    cells[key] = {
        "accuracy": mean.accuracy,
        "macro_f1": mean.macro_f1,
        "worst": result.metrics.clients_worst.accuracy,
        "kept": kept,
        "agreement": result.structure.agreement,
        "rounds": result.rounds,
        "notes": list(result.notes),
        "seconds": time.process_time() - started,
    }
    _CELLS.parent.mkdir(exist_ok=True)
    new = _CELLS.with_suffix(".new")
    new.write_text(json.dumps(cells, indent=1))
    new.replace(_CELLS)
    print(f"{key}: {100 * mean.accuracy:.1f} {kept}", flush=True)


def _description(problem: str, method: str, seed: int, place: int, *, tune: bool) -> Experiment:
    found = experiment.load(_EXPERIMENTS / f"femam-mnist-{problem}.toml")
    found = replace(found, seed=seed, evaluate_every=0, yardsticks=False)
    if tune:
        found = replace(found, split=replace(found.split, validation=0.1))
    if method == "femam":
        return found
    name, settings = METHODS[method]
    training: dict[str, Any] = dict(_TRAINING)
    if name == "pfedme":
        del training["local_epochs"]
    return replace(
        found, algorithm=name, hyperparameters={**training, **settings[place]}, rounds=_ROUNDS
    )


def _of_seeds(cells: dict[str, Any], problem: str, method: str) -> list[dict[str, Any]]:
    place = _chosen(cells, problem, method)
    keys = (_key(problem, method, seed, place, tune=False) for seed in range(100))
    return [cells[key] for key in keys if key in cells]


def _table(cells: dict[str, Any]) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
    rows = [
        (method, *(_said(_of_seeds(cells, problem, method)) for problem in PROBLEMS))
        for method in METHODS
    ]
    return rows, ("accuracy; macro-F1 [seeds]", *PROBLEMS)


def _said(runs: list[dict[str, Any]]) -> str:
    if not runs:
        return "–"
    accuracy, f1 = _spread(runs, "accuracy"), _spread(runs, "macro_f1")
    return f"{accuracy}; {f1} [{len(runs)}]"


def _spread(runs: Iterable[dict[str, Any]], name: str) -> str:
    each = 100 * np.array([run[name] for run in runs])
    deviation = f" ± {each.std(ddof=1):.1f}" if len(each) > 1 else ""
    return f"{each.mean():.1f}{deviation}"


def _structure(cells: dict[str, Any]) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
    rows = []
    for problem in PROBLEMS:
        runs = _of_seeds(cells, problem, "femam")
        agreements = [
            "; ".join(
                f"{true}: {max(found.values()):.2f} ({max(found, key=lambda one: found[one])})"
                for true, found in run["agreement"].items()
                if problem in _PLANTED
            )
            for run in runs
        ]
        kept = ["/".join(map(str, run["kept"][1:])) for run in runs]
        rows.append((problem, " · ".join(filter(None, agreements)) or "–", ", ".join(kept) or "–"))
    return rows, ("problem", "index (level)", "kept by")


def _tuned(cells: dict[str, Any]) -> str:
    """Return which settings were chosen on validation rows."""
    said = []
    for method, (_, settings) in METHODS.items():
        for problem in PROBLEMS:
            tried = [
                place
                for place in range(len(settings))
                if _key(problem, method, 0, place, tune=True) in cells
            ]
            if len(tried) > 1:
                chosen = settings[_chosen(cells, problem, method)]
                words = ", ".join(f"{name} {value}" for name, value in chosen.items())
                said.append(f"{method} on {problem}: {words} (of {len(tried)})")
    return f"Chosen on validation rows: {'; '.join(said)}." if said else "Nothing was tuned."


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problem", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    parser.add_argument("--method", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--tune", action="store_true", help="try several settings first")
    parser.add_argument("--show", action="store_true", help="run nothing")
    parser.add_argument("--write", action="store_true", help="write the tables into RESULTS.md")
    return parser.parse_args()


if __name__ == "__main__":
    main()
