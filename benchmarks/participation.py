"""Compare HyFDCA with tuned hybrid FedAvg over clients × participation: one thread, one process.

    python benchmarks/participation.py --data mnist --pattern random --write

The cells are declared in experiments/hyfdca-participation.toml. Cells that a results file has
already are not measured again; `--again` measures these, with the setting of FedAvg that was the
best in its search.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
import tomllib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from intarsia.training.participation import present
from matrix import DECLARED, Cell, Pooled, cells, described, pooled, settings
from tables import number, show, write
from threadpoolctl import threadpool_limits

from intarsia.algorithms.hyfdca.algorithm import HYFDCA
from intarsia.algorithms.linear.fedavg import FEDAVG
from intarsia.core.algorithm import Algorithm
from intarsia.core.block import Array, ClientId
from intarsia.core.schema import Schema
from intarsia.engines.simulation import Simulation
from intarsia.errors import ConvergenceError, ExperimentError
from intarsia.experiment.config import Experiment
from intarsia.maths.linear import losses, sdca
from intarsia.maths.linear.products import scores
from intarsia.partition.registry import partition

REPEATS = 3  # of each time that stands in the table
OPTIMUM_ROUNDS = 1500
OPTIMUM_GAP = 1e-8
EXTENSIONS = 3  # of FedAvg's rates, where the best is at an end


# ---- a run


@dataclass
class Run:
    """What a run came to."""

    seconds: float = 0.0  # CPU time of set-up and rounds, not of the evaluations
    rounds: int = 0
    gap: float = math.inf  # relative, certified
    dual: float = -math.inf
    primal: float = math.inf
    accuracy: float = 0.0
    path: dict[int, tuple[float, float, float]] = field(default_factory=dict)
    # by round: seconds, P, test accuracy of a run that ends there


class Bench:
    """One data set dealt to one grid of clients."""

    def __init__(self, data: Pooled, description: Experiment) -> None:
        assert description.partition is not None
        self.data = data
        dealt = partition(
            description.partition.kind,
            data.train,
            **{"seed": description.seed, **description.partition.options},
        )
        self.schema = Schema.of(dealt, data.labels)
        self.blocks = {name: self.schema.align(name, block) for name, block in dealt.items()}
        place = {str(name): n for n, name in enumerate(self.schema.features.ids)}
        self.order = np.array([place[name] for name in data.train.features])

    def run(
        self,
        algorithm: Algorithm,
        description: Experiment,
        looks: Sequence[int] = (),
        limit: int | None = None,
    ) -> Run:
        """Train as `intarsia run` does; at the rounds `looks`, evaluate a run that ends there."""
        options = algorithm.hyperparameters(**description.hyperparameters)
        engine = Simulation({"train": (self.schema, self.blocks)}, description.seed)
        engine.count_once()
        clients: tuple[ClientId, ...] = tuple(engine.ids)
        last, found = limit or description.rounds, Run()
        start = time.process_time()
        key = engine.key("init")
        server = algorithm.init_server(options, self.schema, key)
        engine.set_states(
            {
                name: algorithm.init_client(
                    options, self.schema, name, engine.block(name), engine.client_key(name)
                )
                for name in clients
            }
        )
        server = algorithm.setup(server, engine, key)
        found.seconds = time.process_time() - start
        while found.rounds < last:
            found.rounds += 1
            there = present(description, clients, found.rounds)
            start = time.process_time()
            engine.begin_round(found.rounds, there)
            server, info = algorithm.round(server, engine, engine.key())
            found.seconds += time.process_time() - start
            gap = info.gap_relative if there is None else None
            done = info.finished or (gap is not None and gap <= description.tolerance)
            if found.rounds in looks or done or found.rounds == last:
                self._look(algorithm, description, engine, server, found)
            if done:
                break
        return found

    def _look(
        self,
        algorithm: Algorithm,
        description: Experiment,
        engine: Simulation,
        server: Any,
        found: Run,
    ) -> None:
        states = engine.get_states()
        engine.begin_round(found.rounds + 1)
        try:
            with engine.books.unmetered():
                end = algorithm.conclude(server, engine, engine.key("conclude"))
        except ConvergenceError:  # what a user would see of a run that ends here
            found.primal, found.accuracy = math.inf, 0.0
        else:
            assert end.weights is not None
            w = np.ascontiguousarray(end.weights[:, self.order])
            found.primal = self._primal(description, w)
            right = (scores(self.data.test.x, w)[0] >= 0) == (self.data.test.y > 0)
            found.accuracy = float(np.mean(right))
            if end.info.gap_relative is not None and end.info.dual is not None:
                found.gap, found.dual = end.info.gap_relative, end.info.dual
        found.path[found.rounds] = (found.seconds, found.primal, found.accuracy)
        engine.set_states(states)

    def _primal(self, description: Experiment, w: Array) -> float:
        keys = description.hyperparameters
        return sdca.primal_objective(
            scores(self.data.train.x, w),
            self.data.y,
            w,
            regularisation=keys["regularisation"],
            loss=losses.loss_code(keys["loss"]),
        )


def optimum(tree: Mapping[str, Any], place: int, data: Pooled) -> dict[str, float]:
    """Return P*, its relative gap and its accuracy, by HyFDCA with one client that has it all.

    Raises
    ------
    ConvergenceError
        If the gap stays above what the table needs.
    """
    description = described(tree, Cell(place, (1, 1), 1.0, "random"), {})
    one = Bench(data, description).run(HYFDCA, description, limit=OPTIMUM_ROUNDS)
    if not one.gap <= OPTIMUM_GAP:
        raise ConvergenceError(
            f"P* of {data.train.name} has a relative gap of {one.gap:.1e} after {one.rounds} "
            f"rounds, above {OPTIMUM_GAP:.0e}; raise OPTIMUM_ROUNDS."
        )
    return {"primal": one.primal, "gap": one.gap, "accuracy": one.accuracy, "rounds": one.rounds}


# ---- a cell


@dataclass(frozen=True)
class Outcome:
    """What a cell came to; losses are relative to P*: (P - P*)/P*."""

    loss: float  # HyFDCA's after its last round
    accuracy: float
    seconds: float
    rounds: int
    fedavg_loss: float
    fedavg_accuracy: float
    fedavg_seconds: float  # the tuned fit alone
    fedavg_best_accuracy: float  # of any setting, chosen on the test rows
    local_steps: int
    a: float
    b: float
    edge: bool  # the chosen rate is the smallest or the largest of the grid
    pass_round: int | None  # the first look below FedAvg's final loss
    pass_seconds: float | None
    path: dict[int, tuple[float, float, float]]
    settings: int


def tune(
    tree: Mapping[str, Any], cell: Cell, data: Pooled, bench: Bench
) -> list[tuple[float, Run, dict[str, Any]]]:
    """Return the first rate, the run and the hyperparameters of every setting of FedAvg.

    Runs that diverge are among them, with an infinite loss. Where the best rate is at an end of
    the declared ones, the grid goes on by factors of ten at that end.
    """
    fits: list[tuple[float, Run, dict[str, Any]]] = []
    rates: list[float] = sorted(tree["matrix"]["data"][cell.data]["first_rate"])
    new = list(rates)
    for _ in range(EXTENSIONS + 1):
        for rate, choice in settings(tree, cell, len(data.train.samples), new):
            with np.errstate(all="ignore"):
                fits.append((rate, bench.run(FEDAVG, described(tree, cell, choice)), choice))
        best = min(fits, key=lambda fit: fit[1].primal)[0]
        if best == rates[0]:
            new = [best / 10]
        elif best == rates[-1]:
            new = [best * 10]
        else:
            break
        rates = sorted([*rates, *new])
    return fits


@dataclass(frozen=True)
class Tuned:
    """The setting of FedAvg with the least final loss, and what its search came to."""

    choice: dict[str, Any]
    best_accuracy: float
    edge: bool
    settings: int


def search(tree: Mapping[str, Any], cell: Cell, data: Pooled, bench: Bench) -> Tuned:
    """Return the best setting of FedAvg in a cell."""
    fits = tune(tree, cell, data, bench)
    choice = min(fits, key=lambda fit: fit[1].primal)[2]
    rates = sorted({fit[0] for fit in fits})
    rate = choice["a"] / (1 + choice["b"])
    return Tuned(
        choice=choice,
        best_accuracy=max(run.accuracy for _, run, _ in fits),
        edge=bool(np.isclose(rate, rates[0]) or np.isclose(rate, rates[-1])),
        settings=len(fits),
    )


def found_before(earlier: Mapping[str, Any]) -> Tuned:
    """Return what the search in a cell came to that a results file has."""
    return Tuned(
        choice={"name": "fedavg", **{key: earlier[key] for key in ("local_steps", "a", "b")}},
        best_accuracy=earlier["fedavg_best_accuracy"],
        edge=earlier["edge"],
        settings=earlier["settings"],
    )


def measure(
    tree: Mapping[str, Any],
    cell: Cell,
    data: Pooled,
    best: float,
    earlier: Mapping[str, Any] | None = None,
) -> Outcome:
    """Tune FedAvg (or take its setting of `earlier`), run HyFDCA, and find where it passes."""
    mine = described(tree, cell, {})
    bench = Bench(data, mine)
    tuned = search(tree, cell, data, bench) if earlier is None else found_before(earlier)
    choice = tuned.choice
    theirs = described(tree, cell, choice)
    fedavg = bench.run(FEDAVG, theirs)
    target = fedavg.primal
    times = [bench.run(FEDAVG, theirs).seconds for _ in range(REPEATS)]
    last = mine.rounds
    looks = sorted({*range(1, min(last, 20) + 1), *range(25, last + 1, 5)})
    run = bench.run(HYFDCA, mine, looks)
    first = next((n for n, (_, primal, _) in run.path.items() if primal < target), None)
    spent = None
    if first is not None:
        again = [bench.run(HYFDCA, mine, limit=first).seconds for _ in range(REPEATS)]
        spent = statistics.median(again)
    return Outcome(
        loss=run.primal / best - 1,
        accuracy=run.accuracy,
        seconds=run.seconds,
        rounds=run.rounds,
        fedavg_loss=target / best - 1,
        fedavg_accuracy=fedavg.accuracy,
        fedavg_seconds=statistics.median(times),
        fedavg_best_accuracy=tuned.best_accuracy,
        local_steps=choice["local_steps"],
        a=choice["a"],
        b=choice["b"],
        edge=tuned.edge,
        pass_round=first,
        pass_seconds=spent,
        path={n: (s, p / best - 1, accuracy) for n, (s, p, accuracy) in run.path.items()},
        settings=tuned.settings,
    )


# ---- the table

# fmt: off
_COLUMNS = (
    "data", "grid", "there", "HyFDCA loss", "FedAvg loss", "HyFDCA accuracy", "FedAvg accuracy",
    "FedAvg accuracy, any setting", "passes in round", "after s", "FedAvg s", "HyFDCA s",
    "FedAvg's steps, a, b", "loss", "accuracy", "by rounds", "by time",
)
# fmt: on


def row(name: str, cell: Cell, found: Mapping[str, Any]) -> list[str]:
    """Return a line of the table."""
    rows, columns = cell.grid
    mark = " ‡" if found["edge"] else ""
    passed = found["pass_round"]
    return [
        name,
        f"{rows}x{columns}",
        f"{cell.participation:.0%}",
        number(found["loss"]) if found["loss"] > OPTIMUM_GAP else "< 1e-8",
        number(found["fedavg_loss"]),
        f"{found['accuracy']:.4f}",
        f"{found['fedavg_accuracy']:.4f}",
        f"{found['fedavg_best_accuracy']:.4f}",
        "never" if passed is None else str(passed),
        number(found["pass_seconds"]),
        number(found["fedavg_seconds"]),
        number(found["seconds"]),
        f"{found['local_steps']}, {found['a']:g}, {found['b']:g}{mark}",
        *(("yes" if good else "**no**") for good in verdicts(found)),
    ]


def verdicts(found: Mapping[str, Any]) -> tuple[bool, bool, bool, bool]:
    """Return whether HyFDCA is better in loss, in accuracy, by rounds, by time."""
    spent = found["pass_seconds"]
    return (
        found["loss"] < found["fedavg_loss"],
        found["accuracy"] > found["fedavg_accuracy"],
        found["pass_round"] is not None,
        spent is not None and spent < found["fedavg_seconds"],
    )


_NOTES = (
    "Hinge; cells and FedAvg's grid: experiments/hyfdca-participation.toml. Loss: (P − P\\*)/P\\* "
    "of the final training objective, P\\* by HyFDCA with all rows at one client (gap ≤ 1e-8). "
    "FedAvg: the setting with the least final loss in that cell; rates go on by factors of ten "
    "where the best is at an end (‡: still at an end). `any setting`: the best accuracy of the "
    "whole grid, picked on the test rows. A HyFDCA run ends at a gap of 1e-8, with all "
    "clients, or after all rounds. `passes in round`: the first evaluated round (1 to 20, then "
    "every fifth) at which a HyFDCA run that ends there is below FedAvg's final loss; `after s`: "
    "its CPU seconds. Seconds are of set-up and rounds, "
    "without evaluation, medians of three (HyFDCA s: one run); FedAvg's are of the tuned fit "
    "alone, without the search. The last four columns: whether HyFDCA is lower in loss, strictly "
    "higher in accuracy than the loss-tuned FedAvg, passes it within the rounds, and passes it in "
    "less time than FedAvg's whole fit takes."
)


def summary(table: Sequence[tuple[str, Cell, Mapping[str, Any]]]) -> str:
    """Return in how many cells HyFDCA is better, and where it is not."""
    lines = []
    for place, what in enumerate(("loss", "accuracy", "by rounds", "by time")):
        missed = [
            f"{name} {cell.grid[0]}x{cell.grid[1]} {cell.participation:.0%}"
            for name, cell, found in table
            if not verdicts(found)[place]
        ]
        text = f"{what} {len(table) - len(missed)} of {len(table)} cells"
        lines.append(text + (f" (not: {', '.join(missed)})" if missed else ""))
    any_setting = [
        f"{name} {cell.grid[0]}x{cell.grid[1]} {cell.participation:.0%}"
        for name, cell, found in table
        if found["accuracy"] <= found["fedavg_best_accuracy"]
    ]
    lines.append(
        "some setting of FedAvg reaches HyFDCA's accuracy in "
        + (f"{len(any_setting)} cells ({', '.join(any_setting)})" if any_setting else "no cell")
    )
    return "Better: " + "; ".join(lines) + "."


def main() -> None:
    tree = tomllib.loads(DECLARED.read_text(encoding="utf-8"))
    arguments = _arguments(tree["matrix"])
    stamp = zlib.crc32(json.dumps(tree, sort_keys=True).encode())
    kept: dict[str, Any] = {"declared": stamp, "optima": {}, "cells": {}}
    if arguments.results.is_file():
        earlier = json.loads(arguments.results.read_text(encoding="utf-8"))
        kept = earlier if earlier["declared"] == stamp else kept
    chosen = cells(tree["matrix"], arguments.data, arguments.pattern)
    names = [data["dataset"]["name"] for data in tree["matrix"]["data"]]
    with threadpool_limits(1):
        for place in sorted({cell.data for cell in chosen}):
            todo = [
                cell
                for cell in chosen
                if cell.data == place
                and (cell.key(names[place]) in kept["cells"]) == arguments.again
            ]
            if todo and not arguments.table:
                measure_all(tree, names[place], place, todo, kept, arguments.results)
    for pattern in arguments.pattern:
        table = [
            (names[cell.data], cell, kept["cells"][cell.key(names[cell.data])])
            for cell in chosen
            if cell.pattern == pattern and cell.key(names[cell.data]) in kept["cells"]
        ]
        if not table:
            continue
        rows = [row(*line) for line in table]
        title = "Participation" if pattern == "random" else f"Participation, {pattern}"
        show(title, _COLUMNS, rows)
        print(summary(table))
        if arguments.write:
            seed = tree["base"]["experiment"]["seed"]
            bounds = ", ".join(
                f"{name} {found['primal']:.6g} (gap {found['gap']:.0e}, accuracy "
                f"{found['accuracy']:.4f})"
                for name, found in kept["optima"].items()
            )
            notes = f"{_NOTES}\n\n{summary(table)}\n\nP\\*: {bounds}."
            write(title, _COLUMNS, rows, seed=seed, notes=notes)


def measure_all(
    tree: Mapping[str, Any],
    name: str,
    place: int,
    todo: Sequence[Cell],
    kept: dict[str, Any],
    results: Path,
) -> None:
    """Measure the cells of one data set; write each down when it is done."""
    data = pooled(tree, place)
    warm_up(tree, todo[0], data)
    if name not in kept["optima"]:
        kept["optima"][name] = optimum(tree, place, data)
        print(name, data.train.shape, kept["optima"][name], flush=True)
    best = kept["optima"][name]["primal"]
    for cell in todo:
        earlier = kept["cells"].get(cell.key(name))
        found = asdict(measure(tree, cell, data, best, earlier))
        kept["cells"][cell.key(name)] = found
        results.write_text(json.dumps(kept), encoding="utf-8")
        print(cell.key(name), {k: v for k, v in found.items() if k != "path"}, flush=True)


def warm_up(tree: Mapping[str, Any], cell: Cell, data: Pooled) -> None:
    """Compile the kernels."""
    rows = np.arange(0, len(data.train.samples), 20)
    few = replace(data, train=data.train.take(rows))
    for share in (1.0, 0.5):
        this = replace(cell, grid=(2, 2), participation=share)
        mine = described(tree, this, {})
        bench = Bench(few, mine)
        bench.run(HYFDCA, mine, limit=30)
        _, choice = next(settings(tree, this, len(rows), [1e-3]))
        bench.run(FEDAVG, described(tree, this, choice), limit=2)


def _arguments(matrix: Mapping[str, Any]) -> argparse.Namespace:
    names = [data["dataset"]["name"] for data in matrix["data"]]
    patterns = matrix["participation_pattern"]
    default = Path(tempfile.gettempdir()) / "intarsia-participation.json"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default=",".join(names), help="names, separated by commas")
    parser.add_argument("--pattern", default=",".join(patterns), help="random, cyclic")
    parser.add_argument("--results", type=Path, default=default, help="keeps what is measured")
    parser.add_argument("--again", action="store_true", help="measure the cells that are kept")
    parser.add_argument("--table", action="store_true", help="measure nothing, show what is kept")
    parser.add_argument("--write", action="store_true", help="write into RESULTS.md")
    found = parser.parse_args()
    for key, known in (("data", names), ("pattern", patterns)):
        chosen = getattr(found, key).split(",")
        for one in chosen:
            if one not in known:
                raise ExperimentError(f"--{key} has {one!r}; choose from {', '.join(known)}.")
        setattr(found, key, chosen)
    return found


if __name__ == "__main__":
    main()
