"""HyFEM with its defaults, on problems of views and classes that nobody chose.

    python benchmarks/unseen_views.py [--problems 0-31] [--half odd] [--rounds N] [--file FILE]
                                      [--show] [--write]
    python benchmarks/unseen_views.py --assignments 0-19 [--rounds N] [--file FILE] ...

A problem's number draws the data, its views (feature blocks), and which client has which views of
which classes. Settings may be chosen on even numbers alone; odd ones are only reported. Kinds come
in turn in either half:

whole      each pair of a view and a class is with somebody
missing    a tenth of the pairs are with nobody

Beside HyFEM's server and its clients there is the network of all tables pooled (centralised). A
sample is at one client, with the client's views of it, or at all clients that
have its class (`shared`). All are evaluated on the same rows of all classes: the server and the
centralised network with all views, clients with theirs. A run is a line of the file, as in
`unseen.py`; networks are small (`NETWORK`), everything else is the default.

With `--assignments` the data is mfeat, dealt as in experiments/hyfem-mfeat.toml: six clients have
three of six views and five or six of ten digits each, as a number draws. Beside the defaults stands
the paper's own scheme (`PAPER`).
"""

from __future__ import annotations

import argparse
import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tables import show, write
from threadpoolctl import threadpool_limits
from unseen import FAMILY, numbers_of, pool, read_runs, store_run

from intarsia.algorithms.hyfem.algorithm import HYFEM
from intarsia.algorithms.hyfem.hyperparameters import HyFEM
from intarsia.core.block import Block, Labels
from intarsia.datasets import registry as datasets
from intarsia.maths.training.torch_import import torch
from intarsia.training import baselines
from intarsia.training.loop import evaluate_clients, simulate

RUNS = Path(__file__).parent / "runs" / "unseen-views.jsonl"
KINDS = ("whole", "missing")
DATA = ("digits", "mnist", "usps", "mfeat", "mixture")
NETWORK: dict[str, Any] = {
    **{"features": 16, "extractor_hidden": (32,), "hidden": (64,)},
    "engine": "vmap",  # the same as "auto", in less time for networks of this size
}
# the paper's scheme from a common start, where its matching changes nothing
PAPER: dict[str, Any] = {
    **{"block_dropout": 0.0, "scaling": False, "decay": 1.0},
    **{"unseen_rows": "averaged", "softmax": "all"},
}
# the paper's scheme from a common start, where its matching changes nothing
PAPER: dict[str, Any] = {
    **{"block_dropout": 0.0, "scaling": False, "decay": 1.0},
    **{"unseen_rows": "averaged", "softmax": "all"},
}
ROUNDS = 20
TESTS = 400
Values = NDArray[np.float64]
Codes = NDArray[np.int64]


@dataclass(frozen=True)
class Problem:
    """What a problem's number draws."""

    number: int
    kind: str
    data: str
    clients: int
    rows: int  # for training, of all clients together
    shared: bool
    mixture: tuple[int, int, int, float]  # views, classes, columns of a view, spread


def drawn(number: int) -> Problem:
    """Return a problem by its number."""
    rng = np.random.default_rng([FAMILY, number, 7])
    return Problem(
        number=number,
        kind=KINDS[number // 2 % len(KINDS)],
        data=DATA[rng.integers(len(DATA))],
        clients=int(rng.integers(4, 13)),
        rows=round(np.exp(rng.uniform(np.log(400), np.log(1500)))),
        shared=bool(rng.integers(2)),
        mixture=(
            *(int(rng.integers(3, 6)), int(rng.integers(4, 11)), int(rng.integers(3, 9))),
            float(rng.uniform(0.8, 1.6)),
        ),
    )


def _source(problem: Problem, rng: np.random.Generator) -> tuple[Values, Codes, Codes, list[Codes]]:
    """Return values, classes, whether rows are for testing, and the columns of each view."""
    if problem.data == "mixture":
        views, classes, columns, spread = problem.mixture
        own = np.random.default_rng([FAMILY, problem.number, 8])
        centres = own.normal(size=(classes, views * columns)) / np.sqrt(columns) * 2
        y = np.arange(4000) % classes
        x = centres[y] + spread * rng.normal(size=(len(y), views * columns))
        return x, y, np.arange(len(y)) >= 2500, np.split(np.arange(views * columns), views)
    if problem.data == "mfeat":
        found = datasets.load("mfeat")
        x, y = np.asarray(found.x, np.float64), np.asarray(found.y).astype(np.int64)
        place = {name: column for column, name in enumerate(found.features)}
        groups = [np.array([place[one] for one in names]) for names in found.groups.values()]
        return x, y, np.random.default_rng(FAMILY).random(len(y)) < 0.3, groups
    x, y, tests, _ = pool(problem.data)
    side = round(np.sqrt(x.shape[1]))
    pixels, half = np.arange(side * side).reshape(side, side), side // 2
    quadrants = [pixels[a, b].ravel() for a in (slice(half), slice(half, side))
                 for b in (slice(half), slice(half, side))]  # fmt: skip
    return x, y, tests, quadrants


def assigned(number: int) -> Problem:
    """Return mfeat with views and digits as a number draws them."""
    return Problem(number, "assigned", "mfeat", 6, 2000, shared=True, mixture=(0, 0, 0, 0.0))


def _three_of_six(views: int, classes: int, rng: np.random.Generator) -> list[Any]:
    """Return six clients with half of the views, and half of the classes or one more."""
    while True:
        found = [
            [
                np.isin(np.arange(views), rng.permutation(views)[: views // 2]),
                np.isin(np.arange(classes), rng.permutation(classes)[: classes // 2 + more]),
            ]
            for more in rng.integers(2, size=6)
        ]
        if all(np.any(side, axis=0).all() for side in zip(*found, strict=True)):
            return found


def held(problem: Problem, views: int, classes: int, rng: np.random.Generator) -> list[Any]:
    """Return which views and which classes each client has, as two boolean arrays each."""
    if problem.kind == "assigned":
        return _three_of_six(views, classes, rng)
    nobody = np.zeros((views, classes), bool)
    if problem.kind == "missing":
        while nobody.sum() < round(0.1 * nobody.size):
            view, label = rng.integers(views), rng.integers(classes)
            # of each class some view stays
            if nobody[:, label].sum() < views - 1 and nobody[view].sum() < classes - 2:
                nobody[view, label] = True
    found: list[Any] = []
    while len(found) < problem.clients:
        own = np.isin(np.arange(views), rng.permutation(views)[: rng.integers(1, views)])
        may = np.flatnonzero(~nobody[own].any(axis=0))
        if len(may) >= 2:
            some = rng.permutation(may)[: rng.integers(2, max(3, classes * 2 // 3 + 1))]
            found.append([own, np.isin(np.arange(classes), some)])
    for view, label in rng.permutation(np.argwhere(~nobody)):
        if any(own[view] and some[label] for own, some in found):
            continue
        able = [
            place for place, (own, _) in enumerate(found)
            if own[view] and not nobody[own, label].any()
        ]  # fmt: skip
        if able:
            found[rng.choice(able)][1][label] = True
        else:  # a client with this view alone
            alone = next((one for one in found if one[0].sum() == 1 and one[0][view]), None)
            if alone is None:
                others = np.flatnonzero(~nobody[view] & (np.arange(classes) != label))
                alone = [np.arange(views) == view, np.arange(classes) == rng.choice(others)]
                found.append(alone)
            alone[1][label] = True
    return found


def posed(problem: Problem, seed: int) -> tuple[dict[str, dict[str, Block]], Labels, Block]:
    """Return the clients' blocks for training and testing, the classes, and the whole test rows."""
    rng = np.random.default_rng([FAMILY, problem.number, 9, seed])
    x, y, tests, columns = _source(problem, rng)
    classes = int(y.max()) + 1
    has = held(problem, len(columns), classes, rng)
    rows = rng.permutation(np.flatnonzero(~tests))[: problem.rows]
    evaluated = rng.permutation(np.flatnonzero(tests))[:TESTS]
    centre, spread = x[rows].mean(0), x[rows].std(0)
    x = (x - centre) / np.where(spread > 0, spread, 1.0)
    groups = {f"v{k}": tuple(f"v{k}_{at:03d}" for at in range(len(own)))
              for k, own in enumerate(columns)}  # fmt: skip

    def block(views: Sequence[int], some: Codes) -> Block:
        own = {f"v{k}": groups[f"v{k}"] for k in views}
        places = np.concatenate([columns[k] for k in views])
        names = tuple(name for one in own.values() for name in one)
        return Block(some, names, x[np.ix_(some, places)], y[some] + 0.0, own)

    holders = [[c for c, (_, some) in enumerate(has) if some[label]] for label in range(classes)]
    whose = np.array([rng.choice(holders[y[row]]) for row in rows])
    parts: dict[str, dict[str, Block]] = {"train": {}, "test": {}}
    for client, (own, some) in enumerate(has):
        taken = some[y[rows]] if problem.shared else whose == client
        views = np.flatnonzero(own)
        if not taken.any():
            continue
        name = f"c{client:02d}"
        parts["train"][name] = block(views, np.sort(rows[taken]))
        parts["test"][name] = block(views, np.sort(evaluated))
    words = tuple(f"k{label:02d}" for label in range(classes))
    every = block(range(len(columns)), np.sort(evaluated))
    return parts, Labels("multiclass", words), every


def run(problem: Problem, options: HyFEM, rounds: int, *, references: bool) -> dict[str, Any]:
    """Return the accuracies of the server and of the clients, and of those to compare with."""
    parts, labels, every = posed(problem, 0)
    started = time.process_time()
    done = simulate(HYFEM, options, parts, labels, rounds=rounds, seed=0)
    seconds = time.process_time() - started
    assert every.y is not None
    made_of = HYFEM.model.architecture(options, done.engine.schema("train"), None)
    network = done.conclusion.network
    assert network is not None
    said = made_of.predict(network, every, labels).argmax(axis=0)
    own = evaluate_clients(done.engine, HYFEM, options, "test")
    came = {
        "server": float((said == every.y).mean()),
        "clients": float(np.mean([one.accuracy for one in own.values()])),
        "worst": min(float(one.accuracy or 0.0) for one in own.values()),
        "seconds": round(seconds, 2),
    }
    if references:
        given: dict[str, Any] = {"rounds": rounds, "seed": 0}
        alone = replace(options, shares="nothing")
        found = baselines.network_of_all(
            *(done.engine, HYFEM, alone, "test"), blocks=made_of.blocks, **given
        )
        assert found is not None
        came["centralised"] = float(found.accuracy or 0.0)
    return came


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(1)
    options = HyFEM(**NETWORK)
    settings = hashlib.blake2b(repr(options).encode(), digest_size=4).hexdigest()
    if arguments.assignments:
        _assignments(arguments, settings)
        return
    numbers = numbers_of(arguments.problems, arguments.half)
    cells = read_runs(arguments.file)
    keys = {number: f"{number} {arguments.rounds} {settings}" for number in numbers}
    with threadpool_limits(limits=1):
        for number, key in () if arguments.show else keys.items():
            if key not in cells:
                cells[key] = run(drawn(number), options, arguments.rounds, references=True)
                store_run(arguments.file, key, cells[key])
                print(key, drawn(number).kind, cells[key], flush=True)
    found = {number: cells[key] for number, key in keys.items() if key in cells}
    title = f"HyFEM on unseen problems of views and classes, {arguments.half} numbers"
    rows = _rows(found)
    show(title, COLUMNS, rows)
    if arguments.write:
        write(title, COLUMNS, rows, seed=FAMILY, notes=_NOTES.format(rounds=arguments.rounds))


def _assignments(arguments: argparse.Namespace, settings: str) -> None:
    """Run the assignments of mfeat that are not in the file; show and write their table."""
    cells = read_runs(arguments.file)
    numbers = numbers_of(arguments.assignments, "both")
    keys = {number: f"mfeat {number} {arguments.rounds} {settings}" for number in numbers}
    with threadpool_limits(limits=1):
        for number, key in () if arguments.show else keys.items():
            if key in cells:
                continue
            problem = assigned(number)
            known: Any = {"rounds": arguments.rounds}
            cell = run(problem, HyFEM(**NETWORK), references=True, **known)
            paper = run(problem, HyFEM(**NETWORK, **PAPER), references=False, **known)
            cell |= {f"paper_{name}": value for name, value in paper.items()}
            cell["nobody"] = _with_nobody(problem)
            cells[key] = cell
            store_run(arguments.file, key, cell)
            print(key, cell, flush=True)
    found = {number: cells[key] for number, key in keys.items() if key in cells}
    figures = (
        *("server", "centralised", "clients", "worst"),
        *("paper_server", "paper_clients", "paper_worst"),
    )
    rows = [
        [str(n), str(one["nobody"]), *(f"{100 * one[name]:.1f}" for name in figures)]
        for n, one in found.items()
    ]
    for name, of in (("mean", np.mean), ("lowest", np.min)):
        each = [f"{100 * of([one[figure] for one in found.values()]):.1f}" for figure in figures]
        rows.append([name, "", *each])
    title = f"HyFEM on {len(found)} assignments of mfeat's views and digits"
    columns = (
        *("assignment", "pairs with nobody", "server", "centralised", "clients' mean"),
        *("worst client", "paper: server", "paper: clients' mean", "paper: worst client"),
    )
    show(title, columns, rows)
    most = max(100 * (one["centralised"] - one["server"]) for one in found.values())
    note = (
        f"Accuracy in per cent on 400 rows of all digits, {arguments.rounds} rounds. At most "
        f"{most:.1f} points below centralised. Paper: the paper's own scheme (`PAPER`)."
    )
    if arguments.write:
        write(title, columns, rows, seed=FAMILY, notes=note)


def _with_nobody(problem: Problem) -> int:
    """Return how many pairs of a view and a class no client has in training."""
    parts, labels, every = posed(problem, 0)
    pairs = {
        (view, label)
        for block in parts["train"].values()
        for view in block.groups
        for label in np.unique(block.y)
    }
    return len(every.groups) * len(labels.classes) - len(pairs)


COLUMNS = (
    *("problem", "data", "clients", "server", "centralised", "short by"),
    *("clients' mean", "worst client", "CPU seconds"),
)
_NOTES = (
    "Accuracy in per cent on rows of all classes, {rounds} rounds, one draw of each problem. Short "
    "by: points that the server is below centralised. Goals: at most 2 where each pair of a view "
    "and a class is with somebody (whole), at most 5 where a tenth is with nobody (missing), and "
    "the server not below its clients' mean."
)


def _rows(found: Mapping[int, Mapping[str, Any]]) -> list[list[str]]:
    rows = []
    for kind in KINDS:
        some = {number: one for number, one in found.items() if drawn(number).kind == kind}
        for number, one in some.items():
            problem = drawn(number)
            rows.append([f"{number}, {kind}", problem.data, str(problem.clients), *_figures([one])])
        if some:
            most = max(100 * (one["centralised"] - one["server"]) for one in some.values())
            under = sum(one["server"] < one["clients"] for one in some.values())
            said = f"mean; worst {most:.1f}, {under} below clients"
            rows.append([f"{kind} [{len(some)}]", said, "", *_figures(list(some.values()))])
    return rows


def _figures(some: Sequence[Mapping[str, Any]]) -> list[str]:
    mean = {key: float(np.mean([one[key] for one in some])) for key in some[0]}
    percent = {key: f"{100 * value:.1f}" for key, value in mean.items()}
    short = f"{100 * (mean['centralised'] - mean['server']):.1f}"
    return [
        *(percent["server"], percent["centralised"], short),
        *(percent["clients"], percent["worst"], f"{mean['seconds']:.1f}"),
    ]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", default="0-31", help="numbers from-to")
    parser.add_argument("--half", choices=["odd", "even", "both"], default="odd")
    parser.add_argument("--assignments", default="", help="numbers from-to, of mfeat, instead")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--file", type=Path, default=RUNS)
    parser.add_argument("--show", action="store_true", help="run nothing")
    parser.add_argument("--write", action="store_true", help="write the table into RESULTS.md")
    return parser.parse_args()


if __name__ == "__main__":
    main()
