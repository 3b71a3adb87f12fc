"""The penalty that init proposes, against 0.001: log loss of linear models of few rows.

    python benchmarks/penalties.py

Scikit-learn's logistic regression of each table in one place, by five folds, which is what HyFDCA
comes to. Its C is 1 / (λ n). Columns: rows, features, the loss with λ = 0.001, that which init
proposes, the loss with it, and the best of seven from 0.0001 to 0.3.
"""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
from early_stopping import TABLES, Parts
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from intarsia.inspection.proposals.experiment_text import penalty

GRID = (1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3)


def panel(rows: int, columns: int) -> Parts:
    """Return columns that six factors make, of which two say the class."""
    rng = np.random.default_rng(rows + columns)
    factors = rng.normal(size=(rows, 6))
    x = factors @ rng.normal(size=(6, columns)) + rng.normal(size=(rows, columns))
    return pd.DataFrame(x), pd.Series(
        factors[:, 0] + factors[:, 1] + 0.7 * rng.normal(size=rows) > 0
    )


def apart(rows: int, columns: int, telling: int) -> Parts:
    """Return columns that say nothing of each other, of which some say the class."""
    rng = np.random.default_rng(rows + columns + telling)
    x = rng.normal(size=(rows, columns))
    scores = 2 * x[:, :telling].sum(axis=1) / np.sqrt(telling) + rng.logistic(size=rows)
    return pd.DataFrame(x), pd.Series(scores > 0)


def some(name: str, rows: int) -> Parts:
    """Return a table of two classes, or some rows of it."""
    x, y = TABLES[name]()
    if name == "covtype":
        x, y = x[y.isin([1, 2])], y[y.isin([1, 2])]
    chosen = np.random.default_rng(0).permutation(len(y))[:rows]
    return x.iloc[chosen], y.iloc[chosen]


PROBLEMS = {
    **{f"panel {n}x{p}": panel(n, p) for n, p in ((160, 300), (100, 100), (200, 60), (400, 40))},
    **{f"apart {n}x{p}, {k}": apart(n, p, k) for n, p, k in ((200, 100, 5), (200, 50, 50))},
    **{f"apart {n}x{p}, {k}": apart(n, p, k) for n, p, k in ((500, 100, 100), (150, 30, 3))},
    **{f"{name} {n}": some(name, n) for name in ("diabetes", "a9a", "breast") for n in (120, 440)},
    "covtype 1, 2": some("covtype", 300),
}


def main() -> None:
    warnings.simplefilter("ignore")
    print("| table | rows | features | λ = 0.001 | proposed λ | with it | best |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name, (x, y) in PROBLEMS.items():
        rows, columns = x.shape

        def loss(strength: float, x: pd.DataFrame = x, y: pd.Series = y) -> float:
            model = LogisticRegression(C=1 / (strength * 0.8 * len(y)), max_iter=2000)
            learner, values = make_pipeline(StandardScaler(), model), x.to_numpy(float)
            return -cross_val_score(learner, values, y, cv=5, scoring="neg_log_loss").mean()

        own = penalty(columns, rows)
        cells = f"{loss(1e-3):.3f} | {own:g} | {loss(own):.3f} | {min(map(loss, GRID)):.3f}"
        print(f"| {name} | {rows} | {columns} | {cells} |")


if __name__ == "__main__":
    main()
