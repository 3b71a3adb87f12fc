"""A number far from all others of its column is told by what is added up, as no row is near it.

The model has the column's mean, and the result the mean loss of each client. Sums are masked. Both
are said where an owner looks (docs/explanations/privacy/few-rows.md).
"""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

import intarsia

INCOME, SPREAD, FAR = 50_000.0, 10_000.0, 4_987_654.0
SETTINGS = {"name": "hyfdca", "loss": "logistic", "regularisation": 0.01}


def trained(out, row):
    """Train on incomes of which one is far out; return the result and the column in the model."""
    rng = np.random.default_rng(0)
    income = rng.normal(INCOME, SPREAD, 160)
    sick = (income - INCOME) / SPREAD + rng.normal(size=160) > 0
    income[row], sick[row] = FAR, False  # which other incomes speak against
    table = pd.DataFrame({"age": rng.normal(size=160), "income": income, "sick": sick.astype(int)})
    found = intarsia.run(
        tables={"bank": table[:80], "shop": table[80:]},
        label="sick",
        out=out,
        rounds=20,
        yardsticks=False,
        privacy="masked",
        algorithm=SETTINGS,
    )
    model = json.loads((out / "model" / "linear.json").read_text())
    place = model["features"].index("income")
    return found, model["means"][place], np.ravel(model["coef"])[place]


def test_it_is_told_by_the_mean_in_the_model_or_by_its_client_s_mean_loss(tmp_path):
    told = {}
    for row in range(80):
        found, mean, slope = trained(tmp_path / str(row), row)
        rows = 160 - found.metrics.server.samples
        if mean > 1.5 * INCOME:
            told.setdefault("training", rows * mean - (rows - 1) * INCOME)
        else:
            bank = found.metrics.clients["bank"]
            told.setdefault("test", bank.samples * bank.loss / abs(slope) + INCOME)
        if len(told) == 2:
            break
    assert told["training"] == pytest.approx(FAR, rel=0.05)
    assert told["test"] == pytest.approx(FAR, rel=0.05)
