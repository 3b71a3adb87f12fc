"""The matrix of clients × participation: its cells, their experiments, and their rows.

Declared in experiments/hyfdca-participation.toml: `[base]` holds the tables of an experiment,
`[matrix]` what changes from cell to cell.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from intarsia.core.block import Array, Block, Labels
from intarsia.data import table as tables
from intarsia.data.dataset import Dataset
from intarsia.datasets import registry as datasets
from intarsia.experiment import config as experiment
from intarsia.experiment.config import Experiment
from intarsia.maths.linear import sdca

__all__ = ["DECLARED", "Cell", "Pooled", "cells", "described", "pooled", "settings"]

DECLARED = Path(__file__).parents[1] / "experiments" / "hyfdca-participation.toml"


@dataclass(frozen=True)
class Cell:
    """One cell of the matrix."""

    data: int  # position among the declared data sets
    grid: tuple[int, int]
    participation: float
    pattern: str

    def key(self, name: str) -> str:
        """Return the cell's name in a results file."""
        rows, columns = self.grid
        return f"{name} {rows}x{columns} {self.participation:g} {self.pattern}"


def cells(matrix: Mapping[str, Any], data: Sequence[str], patterns: Sequence[str]) -> list[Cell]:
    """Return the cells for the named data sets; with all clients there is one pattern only."""
    found = []
    for pattern, place in itertools.product(
        matrix["participation_pattern"], range(len(matrix["data"]))
    ):
        if pattern not in patterns or matrix["data"][place]["dataset"]["name"] not in data:
            continue
        for grid, share in itertools.product(matrix["grids"], matrix["participation"]):
            if share < 1 or pattern == matrix["participation_pattern"][0]:
                found.append(Cell(place, (grid[0], grid[1]), share, pattern))
    return found


def described(tree: Mapping[str, Any], cell: Cell, algorithm: Mapping[str, Any]) -> Experiment:
    """Return the validated experiment of one run of a cell."""
    base, data = tree["base"], tree["matrix"]["data"][cell.data]
    changed = {
        **base,
        "experiment": {
            **base["experiment"],
            "participation": cell.participation,
            "participation_pattern": cell.pattern,
        },
        "dataset": data["dataset"],
        "partition": {**base["partition"], "rows": cell.grid[0], "columns": cell.grid[1]},
        "preprocessing": {
            **base["preprocessing"],
            "standardise": data.get("standardise", base["preprocessing"]["standardise"]),
        },
        "algorithm": {
            **base["algorithm"],
            "regularisation": data["regularisation"],
            **algorithm,
        },
    }
    return experiment.from_dict(changed, DECLARED.parent)


def settings(
    tree: Mapping[str, Any], cell: Cell, samples: int, first_rates: Sequence[float]
) -> Iterator[tuple[float, dict[str, Any]]]:
    """Yield FedAvg's first rates and hyperparameters, every combination of the declared grid."""
    declared, held = tree["matrix"]["fedavg"], samples // cell.grid[0]
    for rate, share, b in itertools.product(first_rates, declared["local_steps"], declared["b"]):
        steps = max(1, round(share * held))
        yield rate, {"name": "fedavg", "local_steps": steps, "a": rate * (1 + b), "b": b}


# ---- data


@dataclass(frozen=True, eq=False)
class Pooled:
    """The rows of a data set that the matrix uses."""

    train: Dataset
    test: Dataset
    labels: Labels

    @property
    def y(self) -> Array:
        """Return the training labels, (1, samples)."""
        return self.train.y.astype(np.float64)[None]


def pooled(tree: Mapping[str, Any], place: int) -> Pooled:
    """Return the declared rows of a data set, standardised by the training rows if so declared."""
    data, split = tree["matrix"]["data"][place], tree["base"]["split"]
    seed = tree["base"]["experiment"]["seed"]
    options = dict(data["dataset"])
    whole, labels = datasets.encoded(datasets.load(options.pop("name"), **options))
    train, test = whole.split()
    if test is None:
        ids = Block(whole.samples, (), np.zeros((len(whole.samples), 0)))
        chosen = np.isin(whole.samples, tables.split(ids, split["test"])[1].samples)
        train, test = whole.take(~chosen), whole.take(chosen)
    rng = np.random.default_rng(seed)
    train = _drawn(train, data.get("train"), rng)
    test = _drawn(test, data.get("test"), rng)
    if train.sparse:
        # a word that no training row has does not change any model
        keep = np.flatnonzero(np.asarray(abs(train.x).sum(axis=0)).ravel() > 0)
        names = tuple(train.features[j] for j in keep)
        train, test = (
            replace(part, x=sdca.as_rows(csr_array(part.x)[:, keep]), features=names)
            for part in (train, test)
        )
    else:
        values = [np.asarray(part.x, np.float64) * part.scale for part in (train, test)]
        if data.get("standardise", tree["base"]["preprocessing"]["standardise"]):
            mean, deviation = values[0].mean(axis=0), values[0].std(axis=0)
            deviation = np.where(deviation > 0, deviation, np.inf)
            values = [(x - mean) / deviation for x in values]
        train, test = (
            replace(part, x=x, scale=1.0) for part, x in zip((train, test), values, strict=True)
        )
    return Pooled(train, test, labels)


def _drawn(part: Dataset, rows: int | None, rng: np.random.Generator) -> Dataset:
    if rows is None or rows >= len(part.samples):
        return part
    return part.take(np.sort(rng.permutation(len(part.samples))[:rows]))
