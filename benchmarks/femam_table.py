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
from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from femam_runs import runs
from tables import show, write
from threadpoolctl import threadpool_limits

from intarsia import experiment
from intarsia.experiment import Experiment
from intarsia.maths.tensors import torch

_CELLS = Path(__file__).parent / "runs" / "femam_table.json"
_EXPERIMENTS = Path(__file__).parent.parent / "experiments"
PROBLEMS = ("pair", "permutation", "classes", "dirichlet", "levels", "iid")
_PLANTED = ("pair", "permutation", "classes", "levels")  # groups of several clients
_TRAINING = {"optimiser": "sgd", "batch": 32, "local_epochs": 2}
_SLOWER, _FASTER = {"rate": 0.1}, {"rate": 0.2}
_RATES = (_SLOWER, _FASTER)
_ROUNDS = 180  # those of all of FeMAM's levels
# algorithm → numbers of last epochs that are tried after one training
_FINALS = {"fedavg-ft": (0, 20, 60), "fesem": (0, 20, 60), "ifca": (0,), "fedrep": (20, 60)}
_TUNED = (20, 60)
_LATER = {"first_clustering": 20}
_CLUSTERED = (_SLOWER, {**_LATER, **_SLOWER}, {**_LATER, **_FASTER})
_PFEDME = {"local_rounds": 6, "steps": 2, "step_size": 0.5}
# name → algorithm, its settings, the first where nothing was tuned, and numbers of last epochs
METHODS: dict[str, tuple[str, tuple[dict[str, Any], ...], tuple[int | None, ...]]] = {
    # with as many rounds as the others
    "femam": ("femam", ({}, {"validation": 0.05}), (None,)),
    "femam as it is": ("femam", ({},), (None,)),  # in the experiments' files
    "local": ("local", _RATES, (None,)),
    "fedavg": ("fedavg-ft", _RATES, (0,)),
    "fedavg-ft": ("fedavg-ft", _RATES, _TUNED),
    "fedprox": ("fedprox", tuple({"proximal": 0.01, **rate} for rate in _RATES), (None,)),
    "ditto": ("ditto", tuple({"own_epochs": 2, "pull": 0.1, **rate} for rate in _RATES), (None,)),
    "pfedme": ("pfedme", tuple({"pull": pull, **_PFEDME, **_SLOWER} for pull in (1, 5)), (None,)),
    "fesem": ("fesem", _CLUSTERED, (0,)),
    "fesem+": ("fesem", _CLUSTERED, _TUNED),
    "ifca": ("ifca", _RATES, (0,)),
    "fedrep": ("fedrep", tuple({"shared_epochs": 2, **rate} for rate in _RATES), _TUNED),
}
Setting = tuple[dict[str, Any], int | None]  # of the training, and how many last epochs


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
    title_of_structure = "FeMAM as its experiments have it, the structure it finds"
    show(title_of_structure, of_structure, structure)
    if arguments.write:
        write(title, columns, rows, seed=0, notes=_NOTES + _tuned(cells))
        write(title_of_structure, of_structure, structure, seed=0, notes=_STRUCTURE_NOTES)


_NOTES = (
    "MNIST, 20 clients of at most 100 training samples, the experiments' perceptron. Accuracy in "
    "per cent as the mean over clients, and macro-F1; the mean ± the deviation over seeds, of "
    "which [n] were run. FeMAM's rate and rounds are its experiments'; all by SGD, "
    f"batches of 32, two local epochs, {_ROUNDS} rounds; five clusters. A setting with which a run "
    "diverged is out. "
)
_STRUCTURE_NOTES = (
    "Adjusted Rand index of the true groups with the learned level that is most like them "
    "(clients that drop a level are in a group of their own), and how many of the 20 clients keep "
    "each level from the second on, seed by seed."
)


def _fill(cells: dict[str, Any], arguments: argparse.Namespace) -> None:
    for seed in arguments.seeds:
        for problem in arguments.problem:
            for method in arguments.method:
                settings = _settings(method)
                if arguments.tune and seed == arguments.seeds[0] and len(settings) > 1:
                    for setting in settings:
                        _cell(cells, problem, method, 0, setting, tune=True)
                chosen = _chosen(cells, problem, method)
                _cell(cells, problem, method, seed, chosen, tune=False)


def _settings(method: str) -> list[Setting]:
    _, settings, finals = METHODS[method]
    return list(product(settings, finals))


def _chosen(cells: dict[str, Any], problem: str, method: str) -> Setting:
    """Return the setting that is best on validation rows, of those that were tried."""
    settings = _settings(method)
    tried = [
        one
        for one in settings
        if (tuned := cells.get(_key(problem, method, 0, one, tune=True))) and _trains(tuned)
        # on all training rows it may diverge where it did not on fewer
        if all(
            _trains(cells[key])
            for seed in range(100)
            if (key := _key(problem, method, seed, one, tune=False)) in cells
        )
    ]
    if not tried:
        return settings[0]
    return max(tried, key=lambda one: _grade(cells[_key(problem, method, 0, one, tune=True)]))


def _trains(cell: dict[str, Any]) -> bool:
    """Return whether a run did not diverge."""
    return bool(cell["accuracy"] > 0)


def _grade(cell: dict[str, Any]) -> tuple[float, float]:
    return cell["accuracy"], -cell["loss"]


def _words(setting: Setting) -> dict[str, Any]:
    chosen, final = setting
    return chosen if final is None else {**chosen, "final_epochs": final}


def _key(problem: str, method: str, seed: int, setting: Setting, *, tune: bool) -> str:
    words = json.dumps(_words(setting), sort_keys=True)
    return f"{problem} {METHODS[method][0]} {seed} {words}{' validation' if tune else ''}"


def _cell(
    cells: dict[str, Any], problem: str, method: str, seed: int, setting: Setting, *, tune: bool
) -> None:
    if _key(problem, method, seed, setting, tune=tune) in cells:
        return
    chosen, _ = setting
    finals = _FINALS.get(METHODS[method][0], ())
    for final, came in runs(_description(problem, method, seed, chosen, tune=tune), finals).items():
        key = _key(problem, method, seed, (chosen, final), tune=tune)
        cells[key] = came
        print(f"{key}: {100 * came['accuracy']:.1f} {came['kept']}", flush=True)
    _CELLS.parent.mkdir(exist_ok=True)
    new = _CELLS.with_suffix(".new")
    new.write_text(json.dumps(cells, indent=1))
    new.replace(_CELLS)


def _description(
    problem: str, method: str, seed: int, chosen: dict[str, Any], *, tune: bool
) -> Experiment:
    found = experiment.load(_EXPERIMENTS / f"femam-mnist-{problem}.toml")
    found = replace(found, seed=seed, evaluate_every=0, yardsticks=False)
    if tune:
        found = replace(found, split=replace(found.split, validation=0.1))
    name = METHODS[method][0]
    if name == "femam":
        return replace(found, hyperparameters={**found.hyperparameters, **chosen})
    known: dict[str, Any] = dict(_TRAINING)
    if name == "pfedme":
        del known["local_epochs"]
    return replace(found, algorithm=name, hyperparameters={**known, **chosen}, rounds=_ROUNDS)


def _of_seeds(cells: dict[str, Any], problem: str, method: str) -> list[dict[str, Any]]:
    chosen = _chosen(cells, problem, method)
    keys = (_key(problem, method, seed, chosen, tune=False) for seed in range(100))
    return [cells[key] for key in keys if key in cells]


def _table(cells: dict[str, Any]) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
    rows = [
        (method, *(_said(_of_seeds(cells, problem, method)) for problem in PROBLEMS))
        for method in METHODS
    ]
    return rows, ("accuracy; macro-F1 [seeds]", *PROBLEMS)


def _said(cells: list[dict[str, Any]]) -> str:
    if not cells:
        return "–"
    accuracy, f1 = _spread(cells, "accuracy"), _spread(cells, "macro_f1")
    return f"{accuracy}; {f1} [{len(cells)}]"


def _spread(cells: Iterable[dict[str, Any]], name: str) -> str:
    each = 100 * np.array([run[name] for run in cells])
    deviation = f" ± {each.std(ddof=1):.1f}" if len(each) > 1 else ""
    return f"{each.mean():.1f}{deviation}"


def _structure(cells: dict[str, Any]) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
    rows = []
    for problem in PROBLEMS:
        found = _of_seeds(cells, problem, "femam as it is")
        agreements = [
            "; ".join(_most_alike(*one) for one in cell["agreement"].items())
            for cell in found
            if problem in _PLANTED
        ]
        kept = ["/".join(map(str, cell["kept"][1:])) for cell in found]
        rows.append((problem, " · ".join(filter(None, agreements)) or "–", ", ".join(kept) or "–"))
    return rows, ("problem", "index (level)", "kept by")


def _most_alike(true: str, found: dict[str, float]) -> str:
    level = max(found, key=lambda one: found[one])
    return f"{true}: {found[level]:.2f} ({level})"


def _tuned(cells: dict[str, Any]) -> str:
    """Return which settings were chosen on validation rows."""
    said = []
    for method in METHODS:
        settings = _settings(method)
        for problem in PROBLEMS:
            count = sum(_key(problem, method, 0, one, tune=True) in cells for one in settings)
            if count > 1:
                chosen = _words(_chosen(cells, problem, method))
                words = ", ".join(f"{name} {value}" for name, value in chosen.items())
                said.append(f"{method} on {problem}: {words or 'as it is'} (of {count})")
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
