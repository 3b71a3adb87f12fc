"""All rounds against early stopping, for networks of clients with small tables.

    python benchmarks/early_stopping.py [--tables NAME...] [--algorithms flic hyfem] [--seeds N]

Each table's rows are dealt to three clients, and its columns to three blocks, of which each client
has two. So any two clients have a block in common, and no row. Prints for each way to train the
mean over seeds and clients of accuracy and loss on a fifth of the rows, the rounds and the seconds.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn import datasets

import intarsia

DATA = Path(os.environ.get("INTARSIA_DATA", Path(__file__).parents[2] / "shared" / "data"))
WAYS: dict[str, dict[str, Any]] = {
    "all rounds": {},
    "stopping 20": {"early_stopping": 20, "evaluate_every": 5, "stopping": 0.15},
    "stopping 10": {"early_stopping": 10, "evaluate_every": 2, "stopping": 0.15},
}
Parts = tuple[pd.DataFrame, pd.Series]


def covtype() -> Parts:
    whole = pd.read_csv(DATA / "covtype15k" / "covtype15k.csv.gz").sample(900, random_state=1)
    whole = whole.reset_index(drop=True)
    x = whole.iloc[:, :-1]
    return x.loc[:, x.std() > 0.05], whole.iloc[:, -1]


def a9a() -> Parts:
    x, y = datasets.load_svmlight_file(str(DATA / "a9a" / "a9a.libsvm.gz"))
    rows = np.random.default_rng(2).choice(x.shape[0], 900, replace=False)
    found = pd.DataFrame(x[rows].toarray())
    return found.loc[:, found.mean().between(0.05, 0.95)], pd.Series(y[rows]).astype(int)


def diabetes() -> Parts:
    found = datasets.load_diabetes(as_frame=True)
    return found.data, (found.target > 140).astype(int)


def of_library(load: Callable[..., Any]) -> Parts:
    found = load(as_frame=True)
    return found.data, found.target


def made(seed: int, rows: int, columns: int, classes: int) -> Parts:
    """Return classes by scores that are linear but for a product of two columns, with noise."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, columns))
    scores = x @ (rng.normal(size=(columns, classes)) / np.sqrt(columns) * 2)
    scores += (x[:, :1] * x[:, 1:2]) @ rng.normal(size=(1, classes))
    return pd.DataFrame(x), pd.Series((scores + rng.gumbel(size=scores.shape)).argmax(axis=1))


TABLES: dict[str, Callable[[], Parts]] = {
    "wine": lambda: of_library(datasets.load_wine),
    "diabetes": diabetes,
    "made2": lambda: made(5, 600, 12, 2),
    "covtype": covtype,
    "a9a": a9a,
    "made3": lambda: made(6, 450, 15, 3),
    "breast": lambda: of_library(datasets.load_breast_cancer),
}


def dealt(x: pd.DataFrame, y: pd.Series, seed: int) -> dict[str, pd.DataFrame]:
    """Return the tables of three clients."""
    rng = np.random.default_rng(seed)
    rows = np.array_split(rng.permutation(len(y)), 3)
    blocks = np.array_split(rng.permutation(x.shape[1]), 3)
    tables = {}
    for client in range(3):
        columns = sorted([*blocks[client], *blocks[(client + 1) % 3]])
        own = x.iloc[rows[client], columns]
        own = own.set_axis([f"v{column}" for column in columns], axis=1).reset_index(drop=True)
        labels = y.iloc[rows[client]].to_numpy()
        tables[f"client{client}"] = own.assign(target=[f"c{label}" for label in labels])
    return tables


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", nargs="+", default=[*TABLES], choices=TABLES)
    parser.add_argument("--algorithms", nargs="+", default=["flic", "hyfem"])
    parser.add_argument("--seeds", type=int, default=2)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    print("| table | algorithm | way | accuracy | loss | rounds | s |")
    print("|---|---|---|---:|---:|---:|---:|")
    for name in given.tables:
        for algorithm in given.algorithms:
            for way, keys in WAYS.items():
                print(
                    f"| {name} | {algorithm} | {way} |", *scored(name, algorithm, given.seeds, keys)
                )


def scored(name: str, algorithm: str, seeds: int, keys: dict[str, Any]) -> list[str]:
    """Return the means over seeds, as cells of a table."""
    runs = []
    for seed in range(seeds):
        start = time.perf_counter()
        how: dict[str, Any] = {"label": "target", "yardsticks": False, "seed": seed, **keys}
        tables = dealt(*TABLES[name](), seed)
        found = intarsia.run(tables=tables, algorithm=algorithm, salt=str(seed), **how)
        own = found.metrics.clients.values()
        accuracy, loss = (
            np.mean([getattr(one, key) for one in own]) for key in ("accuracy", "loss")
        )
        runs.append((100 * accuracy, loss, found.rounds, time.perf_counter() - start))
    return [
        f"{value:.{digits}f} |"
        for value, digits in zip(np.mean(runs, 0), (1, 2, 0, 1), strict=True)
    ]


if __name__ == "__main__":
    main()
