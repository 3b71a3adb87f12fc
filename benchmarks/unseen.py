"""Methods on networks, with their defaults, on problems that nobody chose.

    python benchmarks/unseen.py [--problems 1-39] [--half odd] [--seeds N...] [--method NAME...]
                                [--rounds N] [--file FILE] [--show] [--write]

A problem's number draws everything about it: the data, how many clients, how many rows each, and by
what clients differ. Settings may be chosen on even numbers alone; odd ones are only reported, and
`--half odd` is the default. Kinds come in turn in either half:

iid        rows are dealt at random
dirichlet  each client has shares of the classes of its own
classes    groups of clients with a few of the classes each
labels     groups that name the classes differently
features   groups with the columns in another order each
shifted    groups whose columns are scaled and shifted differently
levels     groups that name the classes differently, and in each groups with a few of the classes
writers    FEMNIST's clients as they are

A run is a line of the file (runs/unseen.jsonl beside this one) as soon as it is over; a call that
was killed goes on where it was. The line says by which settings: where defaults change, only what
they are of is run again. Remove lines where the library has changed otherwise.

To be cheap, networks are small perceptrons (`NETWORK`), and rounds are few. All methods have as
many of them, where trainings after the last round count too, but for one. Those with Adam have a
rate five times their default (`RATE`), to come as far with
them. Everything else is each method's default. Rows for testing are drawn as a client's training
rows are, from others.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tables import show, write
from threadpoolctl import threadpool_limits

from intarsia.core.algorithm import Algorithm, FinalResult
from intarsia.core.block import Block, Labels
from intarsia.core.schema import Schema
from intarsia.core.settings import hyperparameters
from intarsia.datasets import registry as datasets
from intarsia.engines.simulation import Simulation
from intarsia.errors import ConvergenceError
from intarsia.maths.training.torch_import import torch
from intarsia.partition.client_clusters import Structure, agreement, of_models
from intarsia.training.registry import algorithm_named

FAMILY = 20261124  # seed of all problems
RUNS = Path(__file__).parent / "runs" / "unseen.jsonl"
KINDS = ("iid", "dirichlet", "classes", "labels", "features", "shifted", "levels", "writers")
DATA = ("digits", "mnist", "usps", "mfeat", "femnist", "mixture")
NETWORK: dict[str, Any] = {"hidden": 16, "latent": 16}
RATE = 5e-3  # of Adam
TESTS = 200  # rows for testing of a client
MOST_ROWS = 1500  # for training at all clients together
# name → algorithm, what is not its default, and of which rivals it is one: regret is to those on
# the same features where any of them is run, else to those with features of their own
METHODS: dict[str, tuple[str, dict[str, Any], str]] = {
    "local": ("local", {}, "own"),
    "fedavg": ("fedavg-ft", {"final_epochs": 0}, ""),
    "fedavg+": ("fedavg-ft", {}, "same"),
    "ditto": ("ditto", {}, "same"),
    "fedrep": ("fedrep", {}, "same"),
    "fesem": ("fesem", {}, "same"),
    "ifca": ("ifca", {}, "same"),
    "femam": ("femam", {}, ""),
    "femam-paper": ("femam", {"level_schedule": "paper"}, ""),
    "pfedme": ("pfedme", {}, "same"),
    "fedprox": ("fedprox", {}, ""),
    # with embeddings of each client's own; not in a call that names no methods
    "flic": ("flic", {}, ""),
    "flic-own": ("flic", {"keep_own": True}, ""),
    "hetfedrep": ("hetfedrep", {}, "own"),
    "fedhenn": ("fedhenn", {}, "own"),
}
USUAL = tuple(METHODS)[:-4]
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Problem:
    """What a problem's number draws."""

    number: int
    kind: str
    data: str
    clients: int
    rows: tuple[int, ...]  # for training, of each client
    groups: int
    alpha: float  # of the Dirichlet distribution
    classes: int  # of a group, at most
    strength: float  # of a shift, in deviations of a column
    pairs: bool  # whether groups swap two names alone
    mixture: tuple[int, int, int, float]  # columns, classes, modes of a class, their spread

    @property
    def planted(self) -> bool:
        """Return whether there are groups of clients to find."""
        return self.kind in ("classes", "labels", "features", "shifted", "levels")


def drawn(number: int) -> Problem:
    """Return a problem by its number."""
    rng = np.random.default_rng([FAMILY, number])
    kind = KINDS[number // 2 % len(KINDS)]
    data = "femnist" if kind == "writers" else DATA[rng.integers(len(DATA))]
    while True:
        clients = round(np.exp(rng.uniform(np.log(5), np.log(100))))
        rows = np.exp(rng.uniform(np.log(20), np.log(2000)))
        each = np.maximum(rows * np.exp(rng.choice([0.0, 0.5]) * rng.normal(size=clients)), 20)
        if each.sum() <= MOST_ROWS:
            break
    return Problem(
        number=number,
        kind=kind,
        data=data,
        clients=clients,
        rows=tuple(int(one) for one in each),
        groups=int(min(rng.integers(2, 7), clients // 2)),
        alpha=float(rng.choice([0.1, 0.3, 1.0])),
        classes=int(rng.integers(2, 6)),
        strength=float(rng.choice([0.5, 1.0, 2.0])),
        pairs=bool(rng.integers(2)),
        mixture=(
            *(int(rng.integers(8, 41)), int(rng.integers(3, 11)), int(rng.integers(1, 4))),
            float(rng.uniform(0.6, 1.4)),
        ),
    )


@cache
def pool(data: str) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return a named data set's rows, their classes, whether for testing, and whose they are."""
    options: dict[str, Any] = {"mnist": {"train_per_class": 500}, "usps": {}, "femnist": {}}
    asked = options.get(data)
    side = {} if asked is None else {"side": 8, **asked}
    found = datasets.load(data, **side)
    x = np.asarray(found.x, np.float64)
    if data == "mfeat":  # of the six views the two of least width but for the morphology
        names = [*found.groups["zer"], *found.groups["kar"]]
        x = x[:, [found.features.index(one) for one in names]]
    y = np.asarray(found.y).astype(np.int64)
    tests = found.test
    if tests is None:
        tests = np.random.default_rng(FAMILY).random(len(y)) < 0.3
    clients = np.full(len(y), "") if found.clients is None else found.clients
    return x, y, np.asarray(tests), clients


def _source(
    problem: Problem, rng: np.random.Generator
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return the rows that a problem deals: of ten classes at most, unless they are writers'."""
    if problem.data == "mixture":
        columns, classes, modes, spread = problem.mixture
        own = np.random.default_rng([FAMILY, problem.number, 1])
        centres = own.normal(size=(classes, modes, columns)) * 2 / np.sqrt(columns) * 2
        y = np.arange(8000) % classes
        x = centres[y, rng.integers(modes, size=len(y))]
        x = x + spread * rng.normal(size=x.shape)
        return x, y, np.arange(len(y)) >= 5000, np.full(len(y), "")
    x, y, tests, clients = pool(problem.data)
    if problem.data == "femnist" and problem.kind != "writers":
        own = np.random.default_rng([FAMILY, problem.number, 1])
        chosen = np.sort(own.permutation(np.unique(y))[:10])
        keep = np.isin(y, chosen)
        x, y, tests, clients = x[keep], np.searchsorted(chosen, y[keep]), tests[keep], clients[keep]
    return x, y, tests, clients


def _of_shares(y: NDArray[Any], shares: NDArray[Any], count: int, rng: np.random.Generator) -> Rows:
    """Return rows with these shares of the classes; none twice unless a class has too few."""
    found: list[NDArray[Any]] = []
    for label, wanted in enumerate(rng.multinomial(count, shares)):
        if not wanted:
            continue
        own = np.flatnonzero(y == label)
        again = -(-wanted // len(own))
        found.append(np.concatenate([rng.permutation(own) for _ in range(again)])[:wanted])
    return np.concatenate(found)


Parts = dict[str, dict[str, Block]]


def posed(problem: Problem, seed: int) -> tuple[Parts, Labels, Structure | None]:
    """Return the clients' blocks for training and testing, the classes, and who is alike."""
    rng = np.random.default_rng([FAMILY, problem.number, 2, seed])
    x, y, tests, writers = _source(problem, rng)
    names = [f"c{number:03d}" for number in range(problem.clients)]
    classes = int(y.max()) + 1
    if problem.kind == "writers":
        whose = rng.permutation(np.unique(writers))[: len(names)]
        names = names[: len(whose)]
        rows = {
            name: [
                rng.permutation(np.flatnonzero((writers == own) & (tests == part)))[:most]
                for part, most in ((False, 2000), (True, TESTS))
            ]
            for name, own in zip(names, whose, strict=True)
        }
        structure = None
        dealt = {n: [(x[one], y[one]) for one in both] for n, both in rows.items()}
    else:
        dealt, structure = _dealt(problem, names, (x, y, tests), classes, rng)
    together = np.concatenate([both[0][0] for both in dealt.values()])
    centre, spread = together.mean(0), together.std(0)
    spread[spread == 0] = 1.0
    features = tuple(f"f{place:03d}" for place in range(x.shape[1]))
    parts: Parts = {"train": {}, "test": {}}
    for client, (name, both) in enumerate(dealt.items()):
        for place, (part, (values, labels)) in enumerate(zip(parts, both, strict=True)):
            ids = (2 * client + place) * 100_000 + np.arange(len(labels))
            scaled = (values - centre) / spread
            parts[part][name] = Block(ids, features, scaled, labels.astype(np.float64))
    words = tuple(f"k{label:02d}" for label in range(classes))
    return parts, Labels("multiclass", words), structure


def _dealt(
    problem: Problem,
    names: Sequence[str],
    data: tuple[NDArray[Any], NDArray[Any], NDArray[Any]],
    classes: int,
    rng: np.random.Generator,
) -> tuple[dict[str, list[tuple[NDArray[Any], NDArray[Any]]]], Structure | None]:
    """Return each client's rows and labels, for training and testing, and the groups."""
    x, y, tests = data
    kind, groups = problem.kind, problem.groups
    of = rng.permutation(np.arange(len(names)) % groups)  # each client's group
    # in each group every other one
    fine = 2 * of + np.array([np.sum(of[:client] == group) % 2 for client, group in enumerate(of)])
    sets = [
        rng.permutation(classes)[: min(problem.classes, classes - 1)] for _ in range(2 * groups)
    ]
    names_of = [np.arange(classes)] + [_renamed(classes, problem.pairs, rng) for _ in range(groups)]
    orders = [np.arange(x.shape[1])] + [rng.permutation(x.shape[1]) for _ in range(groups)]
    spread = x.std(0)
    moves = rng.normal(size=(2, groups, x.shape[1])) * problem.strength
    found: dict[str, list[tuple[NDArray[Any], NDArray[Any]]]] = {}
    drawn_by: list[tuple[Any, ...]] = []  # what a client's rows are drawn by
    for client, name in enumerate(names):
        group = int(of[client])
        shares = np.full(classes, 1 / classes)
        if kind == "dirichlet":
            shares = rng.dirichlet(np.full(classes, problem.alpha))
        elif kind in ("classes", "levels"):
            own = sets[group if kind == "classes" else int(fine[client])]
            shares = np.zeros(classes)
            shares[own] = 1 / len(own)
        both = []
        for part, count in ((False, problem.rows[client]), (True, TESTS)):
            there = np.flatnonzero(tests == part)
            rows = there[_of_shares(y[there], shares, count, rng)]
            values, labels = x[rows], y[rows]
            if kind in ("labels", "levels"):
                labels = names_of[group][labels]
            if kind == "features":
                values = values[:, orders[group]]
            if kind == "shifted":
                values = values * np.exp(moves[0, group] / 2) + moves[1, group] * spread
            both.append((values, labels))
        found[name] = both
        held = np.flatnonzero(shares)
        called = names_of[group] if kind in ("labels", "levels") else names_of[0]
        columns = group if kind in ("features", "shifted") else 0
        drawn_by.append((*held.tolist(), *called[held].tolist(), columns))
    if not problem.planted:
        return found, None
    # clients whose rows are drawn alike are of one group, though two groups have them: of few
    # classes the same ones may be drawn twice
    levels = {"classes" if kind == "levels" else "groups": _numbered(drawn_by)}
    if kind == "levels":
        levels["groups"] = _numbered([names_of[int(group)].tobytes() for group in of])
    levels = {word: each for word, each in levels.items() if len(set(each)) > 1}
    return found, Structure(tuple(names), levels) if levels else None


def _numbered(each: Sequence[Hashable]) -> tuple[int, ...]:
    """Return a number for each thing, the same for those that are equal."""
    first: dict[Hashable, int] = {}
    return tuple(first.setdefault(one, len(first)) for one in each)


def _renamed(classes: int, pairs: bool, rng: np.random.Generator) -> NDArray[Any]:
    """Return other names of the classes: all permuted, or two swapped."""
    found = np.arange(classes)
    if not pairs:
        return rng.permutation(classes)
    swapped = rng.permutation(classes)[:2]
    found[swapped] = swapped[::-1]
    return found


def _options(method: str) -> tuple[Algorithm, Any]:
    name, given, _ = METHODS[method]
    algorithm = algorithm_named(name)
    assert isinstance(algorithm, Algorithm)
    known = {**NETWORK, **given}
    made = hyperparameters(algorithm.hyperparameters, known, name)
    if getattr(made, "optimiser", "adam") == "adam":
        made = hyperparameters(algorithm.hyperparameters, {**known, "rate": RATE}, name)
    return algorithm, made


def _key(number: int, method: str, seed: int, rounds: int) -> str:
    said = repr(_options(method)[1])
    settings = hashlib.blake2b(said.encode(), digest_size=4).hexdigest()
    return f"{number} {method} {seed} {rounds} {settings}"


def trained(
    algorithm: Algorithm, options: Any, parts: Parts, labels: Labels, rounds: int, seed: int
) -> tuple[Simulation, FinalResult, int]:
    """Return the clients after the last round, what the algorithm concludes, and the rounds."""
    known = {part: (Schema.of(blocks, labels), blocks) for part, blocks in parts.items()}
    engine = Simulation(known, seed)
    key = engine.key("init")
    server = algorithm.init_server(options, engine.schema("train"), key)
    engine.begin(algorithm, options)
    server = algorithm.setup(server, engine, key)
    # what trains after the last round counts as rounds, but for one, which other methods have too
    rounds -= max(getattr(options, "final_rounds", 1) - 1, 0)
    number = 0
    while number < rounds:
        number += 1
        engine.begin_round(number)
        server, info = algorithm.round(server, engine, engine.key())
        if info.finished:
            break
    engine.begin_round(number + 1)
    return engine, algorithm.conclude(server, engine, engine.key("conclude")), number


def run(problem: Problem, method: str, seed: int, rounds: int) -> dict[str, Any]:
    """Return what a method comes to on a problem."""
    algorithm, options = _options(method)
    parts, labels, truth = posed(problem, seed)
    started = time.process_time()
    try:
        engine, conclusion, done = trained(algorithm, options, parts, labels, rounds, seed)
    except ConvergenceError as error:
        return {"accuracy": 0.0, "worst": 0.0, "notes": [str(error)]}
    seconds = time.process_time() - started
    right = []
    for name, state in engine.get_states().items():
        block = parts["test"][name]
        odds = algorithm.model.predict(state, block)
        right.append(float((odds.argmax(0) == block.y).mean()))
    came: dict[str, Any] = {
        "accuracy": float(np.mean(right)),
        "worst": min(right),
        "rounds": done,
        "seconds": round(seconds, 2),
        "notes": list(conclusion.notes),
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
    rows, columns, notes = _table(cells, numbers, arguments)
    of, by = "Methods on networks with their defaults", "The same"
    if not any(METHODS[one][2] == "same" for one in arguments.method):
        of = by = "Methods with embeddings of each client's own"
    title = f"{of}, unseen problems, {arguments.half} numbers"
    show(title, columns, rows)
    print(notes)
    by_kind, of_kinds = _by_kind(cells, numbers, arguments)
    title_of_kinds = f"{by} by kind, {arguments.half} numbers"
    show(title_of_kinds, of_kinds, by_kind)
    if arguments.write:
        write(title, columns, rows, seed=FAMILY, notes=notes)
        write(title_of_kinds, of_kinds, by_kind, seed=FAMILY, notes=_BY_KIND)


def read_runs(file: Path) -> dict[str, dict[str, Any]]:
    """Return the runs so far by their keys; a line that was cut off by a kill is left out."""
    cells: dict[str, dict[str, Any]] = {}
    for line in file.read_text().splitlines() if file.is_file() else []:
        try:
            one = json.loads(line)
        except ValueError:
            continue
        cells[one.pop("key")] = one
    return cells


def store_run(path: Path, key: str, cell: Mapping[str, Any]) -> None:
    """Add a run to those so far."""
    path.parent.mkdir(exist_ok=True)
    with path.open("a+b") as file:
        # a line that a kill has cut off ends before the next begins
        if file.tell() and (file.seek(-1, 2), file.read(1))[1] != b"\n":
            file.write(b"\n")
        file.write(json.dumps({"key": key, **cell}).encode() + b"\n")


def _fill(
    cells: dict[str, dict[str, Any]], number: int, seed: int, arguments: argparse.Namespace
) -> None:
    problem = drawn(number)
    for method in arguments.method:
        key = _key(number, method, seed, arguments.rounds)
        if key in cells:
            continue
        cells[key] = run(problem, method, seed, arguments.rounds)
        store_run(arguments.file, key, cells[key])
        said = " ".join(f"{name} {cells[key].get(name)}" for name in ("seconds", "kept", "index"))
        print(f"{key}: {problem.kind} {100 * cells[key]['accuracy']:.1f} {said}", flush=True)


def _metrics(
    cells: Mapping[str, dict[str, Any]], number: int, arguments: argparse.Namespace
) -> dict[str, float]:
    """Return each method's accuracy on a problem in percent, over the seeds that all were run with.

    A problem on which a method was not run has none.
    """
    seeds = [
        seed
        for seed in arguments.seeds
        if all(_key(number, one, seed, arguments.rounds) in cells for one in arguments.method)
    ]
    if not seeds:
        return {}
    return {
        method: 100
        * float(
            np.mean(
                [cells[_key(number, method, seed, arguments.rounds)]["accuracy"] for seed in seeds]
            )
        )
        for method in arguments.method
    }


def _rivals(methods: Iterable[str]) -> list[str]:
    """Return those of some methods that regret is to."""
    of = {kind: [one for one in methods if METHODS[one][2] == kind] for kind in ("same", "own")}
    return of["same"] or of["own"] or list(methods)


def _regrets(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return by how much each method is below the best of those that regret is to."""
    best = max(metrics[name] for name in _rivals(metrics))
    return {name: max(best - metric, 0.0) for name, metric in metrics.items()}


def _table(
    cells: Mapping[str, dict[str, Any]], numbers: Iterable[int], arguments: argparse.Namespace
) -> tuple[list[list[str]], list[str], str]:
    found = {number: _metrics(cells, number, arguments) for number in numbers}
    found = {number: metrics for number, metrics in found.items() if metrics}
    rows = []
    for method in arguments.method:
        if not found:
            break
        ranks = [
            1 + sum(g > metrics[method] + 1e-9 for g in metrics.values())
            for metrics in found.values()
        ]
        regrets = {number: _regrets(metrics)[method] for number, metrics in found.items()}
        worst = max(regrets, key=regrets.__getitem__)
        seconds = [
            cell["seconds"] for key, cell in cells.items()
            if "seconds" in cell and key.split()[1] == method and int(key.split()[0]) in found
        ]  # fmt: skip
        rows.append(
            [
                method,
                f"{np.mean([metrics[method] for metrics in found.values()]):.1f}",
                f"{np.mean(ranks):.1f}",
                f"{np.mean(list(regrets.values())):.2f}",
                f"{np.mean([one <= 1 for one in regrets.values()]):.0%}",
                f"{regrets[worst]:.1f} ({worst}, {drawn(worst).kind})",
                f"{np.mean(seconds):.1f}" if seconds else "–",
            ]
        )
    seeds = {
        number: sum(
            all(_key(number, one, seed, arguments.rounds) in cells for one in arguments.method)
            for seed in arguments.seeds
        )
        for number in found
    }
    columns = [
        *("method", "accuracy", "rank", "regret", "of at most 1"),
        *("worst regret (problem)", "CPU seconds"),
    ]
    notes = (
        f"{len(found)} problems, {sum(seeds.values())} draws of them, {arguments.rounds} rounds; "
        "accuracy in per cent as the mean over clients. Regret: points below the best of "
        f"{', '.join(_rivals(arguments.method))} on the mean of a problem's draws. "
        f"{_below_local(found)}{_indices(cells, found, arguments)}"
    )
    return rows, columns, notes


def _below_local(found: Mapping[int, Mapping[str, float]]) -> str:
    """Return how far methods are below each client alone at worst."""
    said = []
    for method in ("flic", "flic-own"):
        below = {
            n: one["local"] - one[method] for n, one in found.items() if {"local", method} <= {*one}
        }
        if below:
            worst = max(below, key=below.__getitem__)
            said.append(f"{method} {max(below[worst], 0.0):.1f} (problem {worst})")
    return f"Below local at most: {', '.join(said)}. " if said else ""


def _indices(
    cells: Mapping[str, dict[str, Any]], found: Iterable[int], arguments: argparse.Namespace
) -> str:
    """Return how often methods that look for groups find those that are there."""
    said = []
    for method in ("femam", "fesem", "ifca"):
        each = []
        for number in found:
            problem = drawn(number)
            if not problem.planted or not _enough(problem):
                continue
            for seed in arguments.seeds:
                cell = cells.get(_key(number, method, seed, arguments.rounds), {})
                if "index" in cell:
                    each.append(cell["index"])
        if each:
            share = np.mean(np.array(each) >= 0.9)
            said.append(f"{method} {share:.0%} of {len(each)}, mean {np.mean(each):.2f}")
    if not said:
        return ""
    return (
        "Planted groups of 20 rows or more per class and client found with an adjusted Rand index "
        f"of 0.9: {'; '.join(said)}."
    )


def _enough(problem: Problem) -> bool:
    """Return whether clients of a problem with groups have 20 rows of each of their classes."""
    classes = problem.mixture[1] if problem.data == "mixture" else 10
    if problem.kind in ("classes", "levels"):
        classes = min(problem.classes, classes - 1)
    return float(np.median(problem.rows)) / classes >= 20


_BY_KIND = "Mean accuracy of each method over the problems of each kind; [n] problems."


def _by_kind(
    cells: Mapping[str, dict[str, Any]], numbers: Sequence[int], arguments: argparse.Namespace
) -> tuple[list[list[str]], list[str]]:
    found = {number: _metrics(cells, number, arguments) for number in numbers}
    of_kind = {
        kind: [found[n] for n in numbers if found[n] and drawn(n).kind == kind] for kind in KINDS
    }
    there = {kind: metrics for kind, metrics in of_kind.items() if metrics}
    rows = [
        [
            method,
            *(f"{np.mean([one[method] for one in metrics]):.1f}" for metrics in there.values()),
        ]
        for method in arguments.method
    ]
    return rows, ["method", *(f"{kind} [{len(metrics)}]" for kind, metrics in there.items())]


def numbers_of(said: str, half: str) -> list[int]:
    """Return the numbers from-to of a half."""
    first, _, last = said.partition("-")
    every = range(int(first), int(last or first) + 1)
    wanted = {"odd": (1,), "even": (0,), "both": (0, 1)}[half]
    return [number for number in every if number % 2 in wanted]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", default="0-63", help="numbers from-to")
    parser.add_argument("--half", choices=["odd", "even", "both"], default="odd")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--method", nargs="+", choices=list(METHODS), default=list(USUAL))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--file", type=Path, default=RUNS)
    parser.add_argument("--show", action="store_true", help="run nothing")
    parser.add_argument("--write", action="store_true", help="write the tables into RESULTS.md")
    return parser.parse_args()


if __name__ == "__main__":
    main()
