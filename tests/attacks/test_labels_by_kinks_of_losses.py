"""A data scientist who follows the protocol: a few runs of Huber's loss tell the largest label.

Under a penalty so large that all predictions are 0 the loss of a client's rows is a sum over their
labels alone. Huber's is ½y² up to δ, and less by ½(|y| - δ)² beyond it. The evaluated error tells
Σ½y². So one run whose δ lies between the two largest labels tells the largest one, and two runs
tell that of the training rows by the objective. A few runs find such a δ. Masked sums change
nothing, as these figures are what a run says. Nothing in a site refuses it; site-refusals.md says
so.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

import intarsia

RUNS = 4


@pytest.fixture(scope="module")
def tables():
    rng = np.random.default_rng(5)
    x = rng.normal(size=(300, 2))
    salary = np.round(np.exp(10 + 0.5 * rng.normal(size=300) + 0.2 * x[:, 0]), 2)
    ids = [f"p{row}" for row in range(300)]
    bank = pd.DataFrame({"id": ids, "a": x[:, 0], "salary": salary})
    return {"bank": bank, "shop": pd.DataFrame({"id": ids, "b": x[:, 1]})}


def run(tables, **how):
    return intarsia.run(
        tables=tables,
        id="id",
        label="salary",
        algorithm="hyfdca",
        regularisation=1e12,
        privacy="masked",
        yardsticks=False,
        **how,
    )


def evaluated(tables):
    """Return what a run tells of the bank's evaluated rows."""
    return run(tables, loss="squared").metrics.clients["bank"]


def told(tables, **how):
    """Return what a run tells: evaluated rows, sums over them of ½e² and losses, its objective."""
    found = run(tables, **how)
    own = found.metrics.clients["bank"]
    rows = own.samples
    return rows, rows * own.figures.rmse**2 / 2, rows * own.loss, found.certificate.primal


def test_few_runs_tell_the_largest_label_of_rows_that_are_evaluated(tables):
    _, squares, _, _ = told(tables, loss="squared")
    delta, found = 50_000.0, math.inf
    for _ in range(RUNS):
        _, _, loss, _ = told(tables, loss="huber", huber_delta=delta)
        found = delta + math.sqrt(2 * (squares - loss))  # right where one label alone is beyond
        delta = found - 0.2 * (found - delta)
    salaries = tables["bank"].salary.to_numpy()
    assert np.abs(salaries - found).min() < 0.005  # to the cent
    assert (salaries > found + 1).mean() < 0.05  # of 300; larger ones train


def test_two_runs_tell_the_largest_label_of_rows_that_train(tables):
    delta = 120_000.0
    rows, _, _, squares = told(tables, loss="squared")
    *_, objective = told(tables, loss="huber", huber_delta=delta)
    trained = len(tables["bank"]) - rows
    found = delta + math.sqrt(2 * trained * (squares - objective))
    assert found == pytest.approx(tables["bank"].salary.max(), abs=0.005)


def test_absolute_errors_tell_a_single_label_below_0(tables):
    bank = tables["bank"].copy()
    for row in range(7, 300):  # the first one that is evaluated
        debts = bank.index[row : row + 1]
        bank.loc[debts, "salary"] = -1234.56
        own = evaluated({**tables, "bank": bank})
        squares, spread = own.figures.rmse**2, own.figures.rmse**2 / (1 - own.r2)
        found = own.samples * (math.sqrt(squares - spread) - own.figures.mae) / 2
        if found < -1:
            assert found == pytest.approx(-1234.56, abs=0.01)
            return
        bank.loc[debts, "salary"] = tables["bank"].salary[debts]
    raise AssertionError("no row is evaluated")
