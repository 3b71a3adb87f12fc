"""Categories of many levels, as `init` proposes them: left out, with levels of five rows, with all.

    python benchmarks/many_levels.py

Three clients with four columns of numbers and a category, whose levels' effects have the standard
deviation `effect` (0: the category says nothing). Levels are as frequent (`equal`) or as 1, 1/2,
1/3, ... (`Zipf`). HyFDCA, logistic loss, with the penalty and the constant column that `init`
proposes; means of five tables of each kind. Columns: the share of the rows whose level five rows
of their client have (often), then AUC and log loss of the test rows.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

import intarsia
from intarsia.inspection.proposals.experiment_text import penalty

CLIENTS, SEEDS, LEAST = 3, 5, 5
KINDS = [
    (rows, levels, zipf, effect)
    for rows, levels in ((300, 150), (1500, 300), (1500, 1500), (6000, 1500))
    for zipf in (False, True)
    for effect in (0.0, 0.5, 1.0)
]


def tables(rows: int, levels: int, effect: float, seed: int, *, zipf: bool) -> list[pd.DataFrame]:
    """Return each client's table."""
    rng = np.random.default_rng([rows, levels, zipf, int(10 * effect), seed])
    share = 1 / np.arange(1, levels + 1) ** zipf
    effects = effect * rng.normal(size=levels)
    found = []
    for _ in range(CLIENTS):
        level, x = rng.choice(levels, rows, p=share / share.sum()), rng.normal(size=(rows, 4))
        label = effects[level] + x @ [1, -0.7, 0.4, 0] + rng.logistic(size=rows) > 0
        columns = dict(zip("abcd", x.T, strict=True))
        found.append(pd.DataFrame({"shop": [f"s{one}" for one in level], **columns, "y": label}))
    return found


def scores(some: list[pd.DataFrame], least: int | None) -> tuple[float, float]:
    """Return AUC and log loss, with levels of so many rows; None: without the category."""
    seen = [one.shop.value_counts() for one in some]
    levels = {level for one in seen for level in one.index[one >= (least or len(some[0]))]}
    result = intarsia.run(
        tables={f"client {at}": one for at, one in enumerate(some)},
        label="y",
        loss="logistic",
        regularisation=penalty(4 + len(levels), sum(map(len, some))),
        intercept=10,
        test=0.2,
        yardsticks=False,
        **({"exclude": ["shop"]} if least is None else {"categorical": ["shop"]}),
        **({} if least is None else {"least_rows": least}),
    )
    server = result.metrics.server
    return server.figures.auc, server.loss


def main() -> None:
    print("| rows of a client | levels | | effect | often | left out | five rows | all levels |")
    print("|---:|---:|---|---:|---:|---:|---:|---:|")
    for rows, levels, zipf, effect in KINDS:
        made = [tables(rows, levels, effect, seed, zipf=zipf) for seed in range(SEEDS)]
        often = np.mean(
            [(one.shop.map(one.shop.value_counts()) >= LEAST).mean() for own in made for one in own]
        )
        cells = [
            "{:.3f}, {:.3f}".format(*np.mean([scores(own, least) for own in made], axis=0))
            for least in (None, LEAST, 1)
        ]
        kind = "Zipf" if zipf else "equal"
        told = " | ".join(cells)
        print(f"| {rows} | {levels} | {kind} | {effect} | {often:.2f} | {told} |", flush=True)


if __name__ == "__main__":
    main()
