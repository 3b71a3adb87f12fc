"""Columns that have another unit at one client are told where all tables are in one place."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import intarsia

RNG = np.random.default_rng(0)


def clients(first, second, label=None):
    """Return two clients with a column, and a label that is a class or a number."""
    tables = {}
    for name, values in (("here", first), ("there", second)):
        y = np.where(RNG.random(len(values)) < 0.5, "yes", "no") if label is None else label[name]
        tables[name] = pd.DataFrame({"size": values, "x": RNG.normal(size=len(values)), "y": y})
    return tables


def told(tables, **how):
    """Return the notes on units of a run and of an inspection, which are the same."""
    found = intarsia.run(tables=tables, label="y", rounds=1, yardsticks=False, test=0.0, **how)
    notes = [one for one in found.notes if "times as large" in one]
    shown = " ".join(str(intarsia.inspect(tables=tables, label="y", test=0.0, **how)).split())
    assert all(one in shown for one in notes)
    assert bool(notes) == ("times as large" in shown)
    return notes


@pytest.mark.parametrize(
    ("first", "second", "times"),
    [
        (RNG.normal(170, 8, 80), RNG.normal(1.7, 0.08, 60), "100 times as large at here as at"),
        (RNG.normal(37, 0.6, 80), RNG.normal(98.6, 1.0, 60), "2.7 times as large at there as at"),
        (RNG.gamma(9, 12, 80), RNG.gamma(9, 12, 60) / 18.02, "times as large at here as at there"),
        (-RNG.normal(170, 8, 80), -RNG.normal(1.7, 0.08, 60), "times as large at here as at there"),
    ],
)
def test_a_column_in_another_unit_is_told(first, second, times):
    (note,) = told(clients(first, second))
    assert "'size' is about" in note
    assert times in note


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (RNG.normal(170, 8, 80), RNG.normal(176, 8, 60)),
        (RNG.integers(2, 17, 80), RNG.integers(18, 90, 60)),  # children's ages and others'
        (RNG.lognormal(9, 1, 80), RNG.lognormal(11, 1, 60)),  # incomes that overlap
        (RNG.integers(2010, 2015, 80), RNG.integers(2019, 2024, 60)),
        (RNG.normal(-1, 0.1, 80), RNG.normal(1, 0.1, 60)),
        (np.linspace(-3, 3.01, 80), np.linspace(-3.2, 4, 60)),  # about 0, where medians are small
        (RNG.normal(170, 8, 80), RNG.normal(1.7, 0.08, 9)),  # few rows
        (RNG.integers(0, 2, 80) * 100, RNG.integers(0, 2, 60)),
    ],
)
def test_other_people_are_no_other_unit(first, second):
    assert not told(clients(first, second))


def test_labels_in_another_unit_are_told():
    labels = {"here": RNG.gamma(9, 12, 80), "there": RNG.gamma(9, 12000, 60)}
    sizes = RNG.normal(size=80), RNG.normal(size=60)
    (note,) = told(clients(*sizes, labels), loss="squared")
    assert note.startswith("'label y' is about ")


def test_numbers_beside_a_category_of_many_levels_are_looked_at_too():
    tables = clients(RNG.normal(170, 8, 300), RNG.normal(1.7, 0.08, 300))
    for table in tables.values():
        table["ward"] = [f"ward {at % 40}" for at in range(300)]  # its 40 columns are sparse
        table["age"] = np.where(np.arange(300) % 10, RNG.integers(18, 90, 300), 999)
    (note,) = told(tables)
    assert "'size' is about 100 times as large at here as at there" in note
    found = intarsia.inspect(tables=tables, label="y", test=0.0).advice.remarks
    assert any(
        "999 in 'age' of here (30 rows), 999 in 'age' of there (30 rows)" in one for one in found
    )
