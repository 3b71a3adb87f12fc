"""The constant column that init proposes: log loss of linear models whose intercept is penalised.

    python benchmarks/intercept.py

Liblinear's logistic regression of each table in one place, one class against the rest, by five
folds, which is what HyFDCA comes to: `intercept_scaling` is the constant, whose weight is
penalised, too. The penalty is that which init proposes. Columns: the smallest share of a class, the
loss with a constant of 1, 10 and 30, and with an intercept that is not penalised (lbfgs).
"""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
from early_stopping import Parts
from penalties import PROBLEMS
from sklearn.datasets import load_digits, load_iris, load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from intarsia.inspection.proposals.experiment_text import penalty

CONSTANTS = (1.0, 10.0, 30.0)


def rare(rows: int, columns: int, share: float) -> Parts:
    """Return a table of which a share of the rows has the second class."""
    rng = np.random.default_rng(rows + columns)
    x = rng.normal(size=(rows, columns))
    scores = x @ rng.normal(size=columns) * 1.5 / np.sqrt(columns) + rng.logistic(size=rows)
    return pd.DataFrame(x), pd.Series(scores > np.quantile(scores, 1 - share))


def known(load: object, rows: int | None = None) -> Parts:
    """Return a table of scikit-learn's, or some rows of it."""
    x, y = load(return_X_y=True)  # type: ignore[operator]
    chosen = np.random.default_rng(0).permutation(len(y))[:rows]
    return pd.DataFrame(x[chosen]), pd.Series(y[chosen])


TABLES = {
    "digits 300": known(load_digits, 300),
    "digits": known(load_digits),
    "wine": known(load_wine),
    "iris": known(load_iris),
    **{f"rare {n}x{p}": rare(n, p, 0.05) for n, p in ((400, 20), (1500, 80), (4000, 40))},
    **PROBLEMS,
}


def main() -> None:
    warnings.simplefilter("ignore")
    print("| table | rows | features | rarest | λ | constant 1 | 10 | 30 | not penalised |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for name, (x, y) in TABLES.items():
        rows, columns = x.shape
        own = penalty(columns, rows)

        def loss(model: LogisticRegression, x: pd.DataFrame = x, y: pd.Series = y) -> float:
            learner = make_pipeline(StandardScaler(), OneVsRestClassifier(model))
            folds = cross_val_score(learner, x.to_numpy(float), y, cv=5, scoring="neg_log_loss")
            return -folds.mean()

        how = {"C": 1 / (own * 0.8 * len(y)), "max_iter": 5000, "tol": 1e-6}
        cells = [
            *(
                loss(LogisticRegression(solver="liblinear", intercept_scaling=one, **how))
                for one in CONSTANTS
            ),
            loss(LogisticRegression(**how)),
        ]
        least = y.value_counts(normalize=True).min()
        told = " | ".join(f"{cell:.3f}" for cell in cells)
        print(f"| {name} | {rows} | {columns} | {least:.2f} | {own:g} | {told} |", flush=True)


if __name__ == "__main__":
    main()
