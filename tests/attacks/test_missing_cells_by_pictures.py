"""Who is handed holdings.png reads off it which columns the only row that all clients have lacks.

The picture has rows with the same holders as one part, and says by how pale it is which fraction
of them lacks a column. Of a part of one row that is one cell of another client's table, and all
who hold that row know which it is. A run's picture says nothing of parts of fewer than five rows.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import intarsia
from intarsia.plots.sides import missing_fractions
from intarsia.training import run as running

ROWS = 40
COMMON = 7  # the only row of the bank that the clinic has


def tables(lacking):
    """Return two tables with one row in common, which lacks these columns of the bank's."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2 * ROWS, 2))
    bank = pd.DataFrame({"id": np.arange(ROWS), "income": x[:ROWS, 0], "debt": x[:ROWS, 1]})
    bank["label"] = (x[:ROWS].sum(axis=1) + rng.normal(size=ROWS) > 0).astype(int)
    bank.loc[[COMMON], [*lacking]] = np.nan
    bank.loc[10:14, "debt"] = np.nan  # of a part of many rows
    ids = np.r_[COMMON, np.arange(100, 99 + ROWS)]
    clinic = pd.DataFrame({"id": ids, "pulse": x[ROWS:, 0], "age": x[ROWS:, 1]})
    return {"bank": bank, "clinic": clinic}


def drawn(lacking, tmp_path, monkeypatch):
    """Run, and return what the picture says of the bank's missing values, (parts, columns)."""
    found = []

    def kept(*given, **named):
        found.append(missing_fractions(*given, **named))
        return found[-1]

    monkeypatch.setattr(running, "missing_fractions", kept)
    given = {"id": "id", "label": "label", "loss": "logistic", "rounds": 2, "yardsticks": False}
    intarsia.run(tables=tables(lacking), out=tmp_path / "-".join(["run", *lacking]), **given)
    return found[0]["bank"]


@pytest.mark.parametrize("lacking", [("income",), ("debt",), ("income", "debt")])
def test_a_run_s_picture_is_the_same_whatever_a_single_row_lacks(lacking, tmp_path, monkeypatch):
    whole = drawn((), tmp_path, monkeypatch)
    assert whole.any()  # what many rows have is drawn
    np.testing.assert_array_equal(drawn(lacking, tmp_path, monkeypatch), whole)
