"""Columns that tell rows apart, and are learned as features."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import intarsia

ROWS = 60


def tables(column: str, *, ids: bool = True) -> dict[str, pd.DataFrame]:
    rng = np.random.default_rng(0)
    numbers = np.arange(ROWS) + 500 if ids else rng.integers(0, 40, ROWS)
    frame = pd.DataFrame({column: numbers, "a": rng.normal(size=ROWS), "b": rng.normal(size=ROWS)})
    frame["y"] = np.where(frame.a > 0, "yes", "no")
    return {"bank": frame[:40], "shop": frame[20:]}


def said(notes) -> list[str]:
    return [one for one in notes if "another whole number in every row" in one]


@pytest.mark.parametrize("column", ["id", "customer_id", "KundenNr", "Unnamed: 0"])
def test_an_id_that_nobody_named_is_noted_as_a_feature(column):
    how = {"tables": tables(column), "label": "y"}
    found = intarsia.run(**how, loss="logistic", yardsticks=False, out=None)
    (note,) = said(found.notes)
    assert f"{column!r} of 'bank', 'shop'" in note
    assert "Name it as id" in note
    assert len(said(intarsia.inspect(**how).advice.remarks)) == 1


@pytest.mark.parametrize(
    ("column", "ids"), [("id", False), ("income", True), ("number_of_days", True)]
)
def test_other_columns_are_not(column, ids):
    found = intarsia.inspect(tables=tables(column, ids=ids), label="y")
    assert not said(found.advice.remarks)


def test_an_id_that_is_named_is_not():
    found = intarsia.inspect(tables=tables("id"), id="id", label="y")
    assert not said(found.advice.remarks)


def test_an_id_beside_a_category_of_many_levels_is_noted():
    given = {
        name: pd.concat([frame] * 10).assign(
            id=np.arange(10 * len(frame)), ward=np.arange(10 * len(frame)) % 40
        )
        for name, frame in tables("id").items()
    }
    found = intarsia.inspect(tables=given, label="y", categorical=["ward"])
    assert len(said(found.advice.remarks)) == 1
