"""FeMAM beside its baselines: planted problems on MNIST, and CIFAR-100 reduced for two cores.

The problems are those of experiments/femam-mnist-*.toml, and of experiments/femam-cifar100-*.toml
with the keys below.

    python benchmarks/femam_table.py [--problem NAME...] [--method NAME...] [--seeds N...]
                                     [--tune] [--show] [--write]

Each cell (problem, method, seed) is one run; what it came to is kept in runs/femam_table.json
beside this file and not run again while its experiment says the same, so that a later call adds to
the table (remove the file where the library has changed since). With `--tune` a method that has
several settings below is first run with each on 90 % of the training samples of seed 0 and
evaluated on the rest; the best of what has been tried is used, the first where nothing was.
`--show` and `--write` show what there is.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from femam_runs import runs
from tables import show, write
from threadpoolctl import threadpool_limits

from intarsia.experiment import config as experiment
from intarsia.experiment.config import Experiment
from intarsia.maths.training.torch_import import torch

_CELLS = Path(__file__).parent / "runs" / "femam_table.json"
_EXPERIMENTS = Path(__file__).parent.parent / "experiments"


@dataclass(frozen=True)
class Problem:
    """An experiment file, keys of it, and how many clusters FeSEM and IFCA have."""

    file: str
    keys: tuple[str, ...] = ()
    clusters: int = 5
    planted: bool = True  # groups of several clients
    rates: tuple[float, ...] = (0.1, 0.2)  # that are tried


def _reduced(name: str, levels: str, first_rounds: int, clusters: int = 5) -> Problem:
    """Return a problem of CIFAR-100 at 20 clients, small images, a perceptron and 180 rounds."""
    keys = (
        *("partition.clients=20", "partition.samples=225", "dataset.side=16"),
        *("algorithm.embedding=perceptron", "algorithm.rate=0.1", "algorithm.first_clustering=12"),
        *(f"algorithm.first_rounds={first_rounds}", "algorithm.level_rounds=20"),
        f'algorithm.levels=["global", {levels}, "personal", "shares"]',
    )
    rates = (0.02, 0.05, 0.1)
    return Problem(f"femam-cifar100-{name}", keys, clusters, name != "dirichlet", rates)


_MNIST = {
    **{
        name: Problem(f"femam-mnist-{name}")
        for name in ("pair", "permutation", "classes", "dirichlet", "levels", "iid")
    },
    "dirichlet": Problem("femam-mnist-dirichlet", planted=False),
    "levels": Problem("femam-mnist-levels", clusters=6),
    "iid": Problem("femam-mnist-iid", planted=False),
}
_CIFAR = {
    "cifar-cluster": _reduced("cluster", "5", 139),
    "cifar-dirichlet": _reduced("dirichlet", "5", 139),
    "cifar-multilevel": _reduced("multilevel", "3, 6, 11", 99, clusters=11),
}
PROBLEMS = {**_MNIST, **_CIFAR}
_TRAINING = {"optimiser": "sgd", "batch": 32, "local_epochs": 2}
_ROUNDS = 180  # those of all of FeMAM's levels
# algorithm → numbers of last epochs that are tried after one training
_FINALS = {"fedavg-ft": (0, 20, 60), "fesem": (0, 20, 60), "ifca": (0,), "fedrep": (20, 60)}
_TUNED = (20, 60)
_CLUSTERED = ({}, {"first_clustering": 20})
_PFEDME = {"local_rounds": 6, "steps": 2, "step_size": 0.5}
_AS_IT_IS = "femam as it is"  # in the experiments' files, or with the keys above
# name → algorithm, its settings, each tried with each rate, and numbers of last epochs; the first
# of all are taken where nothing was tuned
METHODS: dict[str, tuple[str, tuple[dict[str, Any], ...], tuple[int | None, ...]]] = {
    # with as many rounds as the others
    "femam": ("femam", ({}, {"validation": 0.05}), (None,)),
    _AS_IT_IS: ("femam", ({},), (None,)),
    "local": ("local", ({},), (None,)),
    "fedavg": ("fedavg-ft", ({},), (0,)),
    "fedavg-ft": ("fedavg-ft", ({},), _TUNED),
    "fedprox": ("fedprox", ({"proximal": 0.01},), (None,)),
    "ditto": ("ditto", ({"own_epochs": 2, "pull": 0.1},), (None,)),
    "pfedme": ("pfedme", tuple({"pull": pull, **_PFEDME} for pull in (1, 5)), (None,)),
    "fesem": ("fesem", _CLUSTERED, (0,)),
    "fesem+": ("fesem", _CLUSTERED, _TUNED),
    "ifca": ("ifca", ({},), (0,)),
    "fedrep": ("fedrep", ({"shared_epochs": 2},), _TUNED),
}
Setting = tuple[dict[str, Any], int | None]  # of the training, and how many last epochs


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(1)
    cells: dict[str, Any] = json.loads(_CELLS.read_text()) if _CELLS.is_file() else {}
    if not arguments.show:
        with threadpool_limits(limits=1):
            _fill(cells, arguments)
    for family, of_what, data in (
        (_MNIST, "planted problems", "MNIST, 20 clients of at most 100 training samples, "),
        (_CIFAR, "reduced CIFAR-100", "16 × 16 pixels, 20 clients of 225 training images, "),
    ):
        if not any(_of_seeds(cells, problem, method) for problem in family for method in METHODS):
            continue
        rows, columns = _table(cells, family)
        title = f"FeMAM and its baselines, {of_what}"
        show(title, columns, rows)
        structure, of_structure = _structure(cells, family)
        title_of_structure = f"FeMAM, the structure it finds, {of_what}"
        show(title_of_structure, of_structure, structure)
        if arguments.write:
            write(title, columns, rows, seed=0, notes=data + _NOTES + _tuned(cells, family))
            write(title_of_structure, of_structure, structure, seed=0, notes=_STRUCTURE_NOTES)


_NOTES = (
    "and a perceptron. Accuracy in per cent as the mean over clients, and macro-F1; the mean ± the "
    "deviation over seeds, of which [n] were run. FeMAM's levels are its experiments'; all by SGD, "
    f"batches of 32, two local epochs, {_ROUNDS} rounds; as many clusters as the finest level has. "
    "A setting with which a run diverged is out. "
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
                settings = _settings(problem, method)
                if arguments.tune and seed == arguments.seeds[0] and len(settings) > 1:
                    for setting in settings:
                        _cell(cells, problem, method, 0, setting, tune=True)
                chosen = _chosen(cells, problem, method)
                _cell(cells, problem, method, seed, chosen, tune=False)


def _settings(problem: str, method: str) -> list[Setting]:
    _, settings, finals = METHODS[method]
    rates = [{}] if method == _AS_IT_IS else [{"rate": rate} for rate in PROBLEMS[problem].rates]
    return [({**one, **rate}, final) for one, rate, final in product(settings, rates, finals)]


def _chosen(cells: dict[str, Any], problem: str, method: str) -> Setting:
    """Return the setting that is best on validation rows, of those that were tried."""
    settings = _settings(problem, method)
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
    return max(tried, key=lambda one: _metric(cells[_key(problem, method, 0, one, tune=True)]))


def _trains(cell: dict[str, Any]) -> bool:
    """Return whether a run did not diverge."""
    return bool(cell["accuracy"] > 0)


def _metric(cell: dict[str, Any]) -> tuple[float, float]:
    return cell["accuracy"], -cell["loss"]


def _words(setting: Setting) -> dict[str, Any]:
    chosen, final = setting
    return chosen if final is None else {**chosen, "final_epochs": final}


def _key(problem: str, method: str, seed: int, setting: Setting, *, tune: bool) -> str:
    words = json.dumps(_words(setting), sort_keys=True)
    said = f"{problem} {METHODS[method][0]} {seed} {words}{' validation' if tune else ''}"
    return f"{said} {_digest(problem, method, json.dumps(setting[0], sort_keys=True), tune)}"


@cache
def _digest(problem: str, method: str, chosen: str, tune: bool) -> str:
    """Return what changes where an experiment does, whatever its seed and its folder."""
    found = _description(problem, method, 0, json.loads(chosen), tune=tune)
    found = replace(found, out="", published=())
    return hashlib.blake2b(repr(found).encode(), digest_size=4).hexdigest()


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
    posed = PROBLEMS[problem]
    found = experiment.load(_EXPERIMENTS / f"{posed.file}.toml", list(posed.keys))
    found = replace(found, seed=seed, evaluate_every=0, yardsticks=False)
    if tune:
        found = replace(found, split=replace(found.split, validation=0.1))
    name = METHODS[method][0]
    if name == "femam":
        return replace(found, hyperparameters={**found.hyperparameters, **chosen})
    # what the file says of the network is for all
    network = {
        key: found.hyperparameters[key] for key in ("embedding",) if key in found.hyperparameters
    }
    known: dict[str, Any] = {**_TRAINING, **network}
    if name == "pfedme":
        del known["local_epochs"]
    if name in ("fesem", "ifca"):
        known["clusters"] = posed.clusters
    return replace(found, algorithm=name, hyperparameters={**known, **chosen}, rounds=_ROUNDS)


def _of_seeds(cells: dict[str, Any], problem: str, method: str) -> list[dict[str, Any]]:
    chosen = _chosen(cells, problem, method)
    keys = (_key(problem, method, seed, chosen, tune=False) for seed in range(100))
    return [cells[key] for key in keys if key in cells]


def _table(
    cells: dict[str, Any], problems: Iterable[str]
) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
    rows = [
        (method, *(_said(_of_seeds(cells, problem, method)) for problem in problems))
        for method in METHODS
    ]
    return rows, ("accuracy; macro-F1 [seeds]", *problems)


def _said(cells: list[dict[str, Any]]) -> str:
    if not cells:
        return "–"
    accuracy, f1 = _spread(cells, "accuracy"), _spread(cells, "macro_f1")
    return f"{accuracy}; {f1} [{len(cells)}]"


def _spread(cells: Iterable[dict[str, Any]], name: str) -> str:
    each = 100 * np.array([run[name] for run in cells])
    deviation = f" ± {each.std(ddof=1):.1f}" if len(each) > 1 else ""
    return f"{each.mean():.1f}{deviation}"


def _structure(
    cells: dict[str, Any], problems: Iterable[str]
) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
    rows = []
    for problem in problems:
        found = _of_seeds(cells, problem, _AS_IT_IS)
        agreements = [
            "; ".join(_most_alike(*one) for one in cell["agreement"].items())
            for cell in found
            if PROBLEMS[problem].planted
        ]
        kept = ["/".join(map(str, cell["kept"][1:])) for cell in found]
        rows.append((problem, " · ".join(filter(None, agreements)) or "–", ", ".join(kept) or "–"))
    return rows, ("problem", "index (level)", "kept by")


def _most_alike(true: str, found: dict[str, float]) -> str:
    level = max(found, key=lambda one: found[one])
    return f"{true}: {found[level]:.2f} ({level})"


def _tuned(cells: dict[str, Any], problems: Iterable[str]) -> str:
    """Return which settings were chosen on validation rows."""
    said = []
    for method in METHODS:
        for problem in problems:
            settings = _settings(problem, method)
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
