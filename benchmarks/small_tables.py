"""Methods on networks, with their defaults, on small tables: what a user has who has one table.

    python benchmarks/small_tables.py [--problems 0-31] [--half odd] [--seeds N...]
                                      [--method NAME...] [--rounds N] [--file FILE] [--show]
                                      [--write]

A problem's number draws everything: 3 to 12 clients of 60 to 500 rows (half of the problems with
unequal clients), 5 to 30 columns, two classes (a third of the problems three), and which model
names the classes rightly in 80 to 90 % of the rows. The log-odds are linear in the columns, with
some products of two columns in half of the problems. Kinds come in turn:

none          all clients are alike
coefficients  groups with coefficients of their own
labels        groups with the classes' names in another order
shifted       groups whose columns are scaled and shifted differently, with labels by the columns
              as they were before

Settings may be chosen on even numbers alone. Nothing is smaller or faster than a user has it:
networks and rates are the methods' defaults. `linear` is a logistic regression of each client
alone, scikit-learn's with its defaults. A client has 500 rows for testing.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from tables import show, write
from threadpoolctl import threadpool_limits
from unseen import Parts, numbers_of, read_runs, store_run, trained

from intarsia.core.algorithm import Algorithm
from intarsia.core.block import Block, Labels
from intarsia.core.settings import hyperparameters
from intarsia.maths.training.torch_import import torch
from intarsia.partition.client_clusters import Structure, agreement, of_models
from intarsia.training.registry import algorithm_named

FAMILY = 20261128  # seed of all problems
RUNS = Path(__file__).parent / "runs" / "small_tables.jsonl"
KINDS = ("none", "coefficients", "labels", "shifted")
TESTS = 500
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "linear": ("", {}),
    "local": ("local", {}),
    "fedavg": ("fedavg-ft", {"final_epochs": 0}),
    "fesem": ("fesem", {}),
    "ifca": ("ifca", {}),
    "femam": ("femam", {}),
}
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Problem:
    """What a problem's number draws."""

    number: int
    kind: str
    rows: tuple[int, ...]  # for training, of each client
    columns: int
    classes: int
    groups: int
    products: int  # pairs of columns whose products count
    best: float  # share of rows that the true model names rightly


def drawn(number: int) -> Problem:
    """Return a problem by its number."""
    rng = np.random.default_rng([FAMILY, number])
    clients = int(rng.integers(3, 13))
    uneven = rng.choice([0.0, 0.6])
    mean = np.exp(rng.uniform(np.log(80), np.log(400)))
    rows = np.clip(mean * np.exp(uneven * rng.normal(size=clients)), 60, 500)
    return Problem(
        number=number,
        kind=KINDS[number // 2 % len(KINDS)],
        rows=tuple(int(one) for one in rows),
        columns=int(rng.integers(5, 31)),
        classes=3 if rng.random() < 1 / 3 else 2,
        groups=int(min(rng.integers(2, 5), clients // 2)) if clients > 3 else 2,
        products=int(rng.choice([0, 3])),
        best=float(rng.uniform(0.8, 0.9)),
    )


def posed(problem: Problem, seed: int) -> tuple[Parts, Labels, Structure | None]:
    """Return the clients' blocks for training and testing, the classes, and who is alike."""
    rng = np.random.default_rng([FAMILY, problem.number, 1, seed])
    names = tuple(f"c{place:03d}" for place in range(len(problem.rows)))
    of = rng.permutation(np.arange(len(names)) % problem.groups)
    models = [_model(problem, rng) for _ in range(problem.groups)]
    if problem.kind != "coefficients":
        models = models[:1] * problem.groups
    steep = _steepness(problem, models[0], rng)
    orders = [np.arange(problem.classes)]
    while len(orders) < problem.groups:
        order = rng.permutation(problem.classes)
        if problem.classes == 2:
            order = (np.arange(2) + len(orders)) % 2
        orders.append(order)
    moves = 0.8 * rng.normal(size=(2, problem.groups, problem.columns))
    features = tuple(f"f{place:02d}" for place in range(problem.columns))
    drawn_rows: dict[str, dict[str, tuple[Numbers, Numbers]]] = {"train": {}, "test": {}}
    alike = []
    for client, name in enumerate(names):
        group = int(of[client])
        for part, count in zip(drawn_rows, (problem.rows[client], TESTS), strict=True):
            x = rng.normal(size=(count, problem.columns))
            odds = steep * _scores(x, models[group]) + rng.gumbel(size=(count, problem.classes))
            y = odds.argmax(axis=1)
            if problem.kind == "labels":
                y = orders[group][y]
            if problem.kind == "shifted":
                x = x * np.exp(moves[0, group]) + moves[1, group]
            drawn_rows[part][name] = x, 2.0 * y - 1 if problem.classes == 2 else y + 0.0
        alike.append(tuple(orders[group]) if problem.kind == "labels" else group)
    together = np.concatenate([x for x, _ in drawn_rows["train"].values()])
    centre, spread = together.mean(0), together.std(0)
    parts: Parts = {"train": {}, "test": {}}
    for place, (part, blocks) in enumerate(drawn_rows.items()):
        for client, (name, (x, y)) in enumerate(blocks.items()):
            ids = (2 * client + place) * 100_000 + np.arange(len(y))
            parts[part][name] = Block(ids, features, (x - centre) / spread, y)
    words = tuple(f"k{label}" for label in range(problem.classes))
    numbers = tuple(sorted(set(alike)).index(one) for one in alike)
    planted = problem.kind != "none" and len(set(numbers)) > 1
    truth = Structure(names, {"groups": numbers}) if planted else None
    return parts, Labels("binary" if len(words) == 2 else "multiclass", words), truth


def _model(problem: Problem, rng: np.random.Generator) -> tuple[Numbers, Numbers, Numbers]:
    """Return coefficients, pairs of columns, and their coefficients."""
    weights = rng.normal(size=(problem.columns, problem.classes))
    weights *= rng.random(problem.columns)[:, None] < 0.7  # some columns say nothing
    pairs = np.array([rng.permutation(problem.columns)[:2] for _ in range(problem.products)])
    return weights, pairs, rng.normal(size=(problem.products, problem.classes))


def _scores(x: Numbers, model: tuple[Numbers, Numbers, Numbers]) -> Numbers:
    weights, pairs, of_pairs = model
    found: Numbers = x @ weights
    return found + (x[:, pairs[:, 0]] * x[:, pairs[:, 1]]) @ of_pairs if len(pairs) else found


def _steepness(
    problem: Problem, model: tuple[Numbers, Numbers, Numbers], rng: np.random.Generator
) -> float:
    """Return the factor of scores with which the true model has its share of hits."""
    scores = _scores(rng.normal(size=(4000, problem.columns)), model)
    least, most = 0.01, 100.0
    for _ in range(40):
        middle = (least * most) ** 0.5
        odds = np.exp(middle * (scores - scores.max(axis=1, keepdims=True)))
        best = float((odds.max(axis=1) / odds.sum(axis=1)).mean())
        least, most = (middle, most) if best < problem.best else (least, middle)
    return least


def _options(method: str) -> tuple[Algorithm, Any]:
    name, given = METHODS[method]
    algorithm = algorithm_named(name)
    assert isinstance(algorithm, Algorithm)
    return algorithm, hyperparameters(algorithm.hyperparameters, given, name)


def _key(number: int, method: str, seed: int, rounds: int) -> str:
    said = repr(_options(method)[1]) if METHODS[method][0] else ""
    settings = hashlib.blake2b(said.encode(), digest_size=4).hexdigest()
    return f"{number} {method} {seed} {rounds} {settings}"


def _linear(parts: Parts) -> list[float]:
    """Return the accuracy of a logistic regression of each client alone."""
    right = []
    for name, block in parts["train"].items():
        test = parts["test"][name]
        if len(np.unique(block.y)) < 2:
            right.append(float((test.y == block.y[0]).mean()))
            continue
        model = LogisticRegression(max_iter=1000).fit(block.x, block.y)
        right.append(float(model.score(test.x, test.y)))
    return right


def run(problem: Problem, method: str, seed: int, rounds: int) -> dict[str, Any]:
    """Return what a method comes to on a problem."""
    parts, labels, truth = posed(problem, seed)
    started = time.process_time()
    if not METHODS[method][0]:
        return {"accuracy": float(np.mean(_linear(parts)))}
    algorithm, options = _options(method)
    engine, conclusion, done = trained(algorithm, options, parts, labels, rounds, seed)
    right = []
    for name, state in engine.get_states().items():
        block = parts["test"][name]
        odds = algorithm.model.predict(state, block)
        named = odds.argmax(0) if len(odds) > 1 else np.where(odds[0] > 0, 1.0, -1.0)
        right.append(float((named == block.y).mean()))
    came: dict[str, Any] = {
        "accuracy": float(np.mean(right)),
        "rounds": done,
        "seconds": round(time.process_time() - started, 2),
        "kept": [len(level) for level in conclusion.structure],
    }
    learned = of_models(tuple(parts["train"]), conclusion.structure)
    if truth is not None and learned is not None:
        found = agreement(truth, learned)
        came["index"] = max(value for levels in found.values() for value in levels.values())
    return came


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(1)
    cells = read_runs(arguments.file)
    numbers = numbers_of(arguments.problems, arguments.half)
    if not arguments.show:
        with threadpool_limits(limits=1):
            for seed in arguments.seeds:
                for number in numbers:
                    _fill(cells, number, seed, arguments)
    found = {number: _metrics(cells, number, arguments) for number in numbers}
    found = {number: metrics for number, metrics in found.items() if metrics}
    if found:
        columns, rows, notes = _table(cells, found, arguments)
        title = f"Methods on networks with their defaults, small tables, {arguments.half} numbers"
        show(title, columns, rows)
        print(notes)
        if arguments.write:
            write(title, columns, rows, seed=FAMILY, notes=notes)


def _fill(
    cells: dict[str, dict[str, Any]], number: int, seed: int, arguments: argparse.Namespace
) -> None:
    problem = drawn(number)
    for method in arguments.method:
        key = _key(number, method, seed, arguments.rounds)
        if key not in cells:
            cells[key] = run(problem, method, seed, arguments.rounds)
            store_run(arguments.file, key, cells[key])
            said = " ".join(f"{name} {value}" for name, value in cells[key].items())
            print(f"{key}: {problem.kind} {said}", flush=True)


def _metrics(
    cells: Mapping[str, dict[str, Any]], number: int, arguments: argparse.Namespace
) -> dict[str, float]:
    """Return each method's mean accuracy on a problem in percent; none where a run is missing."""
    each = {
        method: [
            cells.get(_key(number, method, seed, arguments.rounds), {}).get("accuracy")
            for seed in arguments.seeds
        ]
        for method in arguments.method
    }
    if any(one is None for found in each.values() for one in found):
        return {}
    return {method: 100 * float(np.mean(found)) for method, found in each.items()}


def _table(
    cells: Mapping[str, dict[str, Any]],
    found: Mapping[int, Mapping[str, float]],
    arguments: argparse.Namespace,
) -> tuple[list[str], list[list[str]], str]:
    rivals = [one for one in arguments.method if one != "femam"] or arguments.method
    kinds = [kind for kind in KINDS if any(drawn(number).kind == kind for number in found)]
    of_kind = {kind: [g for n, g in found.items() if drawn(n).kind == kind] for kind in kinds}
    rows = []
    for method in arguments.method:
        regrets = {
            number: max(max(metrics[one] for one in rivals) - metrics[method], 0.0)
            for number, metrics in found.items()
        }
        worst = max(regrets, key=regrets.__getitem__)
        rows.append(
            [
                method,
                f"{np.mean([metrics[method] for metrics in found.values()]):.1f}",
                *(f"{np.mean([one[method] for one in each]):.1f}" for each in of_kind.values()),
                f"{np.mean(list(regrets.values())):.2f}",
                f"{regrets[worst]:.1f} ({worst}, {drawn(worst).kind})",
            ]
        )
    columns = [
        *("method", "accuracy", *(f"{kind} [{len(each)}]" for kind, each in of_kind.items())),
        *("regret", "worst regret (problem)"),
    ]
    indices = []
    for number in found:
        for seed in arguments.seeds:
            cell = cells.get(_key(number, "femam", seed, arguments.rounds), {})
            if "index" in cell:
                indices.append(cell["index"])
    told = (
        f" femam finds the planted groups with an adjusted Rand index of 0.9 in "
        f"{np.mean(np.array(indices) >= 0.9):.0%} of {len(indices)} draws."
        if indices
        else ""
    )
    notes = (
        f"{len(found)} problems, {len(arguments.seeds)} draws of each, {arguments.rounds} rounds; "
        "accuracy in per cent as the mean over clients. Regret: points below the best of "
        f"{', '.join(rivals)} on the mean of a problem's draws.{told}"
    )
    return columns, rows, notes


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", default="0-31", help="numbers from-to")
    parser.add_argument("--half", choices=["odd", "even", "both"], default="odd")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--method", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--file", type=Path, default=RUNS)
    parser.add_argument("--show", action="store_true", help="run nothing")
    parser.add_argument("--write", action="store_true", help="write the table into RESULTS.md")
    return parser.parse_args()


if __name__ == "__main__":
    main()
