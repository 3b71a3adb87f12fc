"""Another party's names in files that are handed on: formulas, links, and what tells rows apart.

Classes are the federation's, and a spreadsheet computed one that begins like a formula. A page of
Markdown made a link of a name with a url. Trackers were sent the salt by which rows are held out.
"""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest

from intarsia.callbacks.contents import settings_of
from intarsia.experiment import config
from intarsia.inference.predict import Predictions
from intarsia.reports import model_card

EVIL = "=cmd|' /C calc'!A0"


def test_an_end_of_line_in_a_cell_begins_no_row():
    """A carriage return was left as it was, and readers that end lines at one had other rows."""
    found = io.StringIO(newline="")
    labels = np.array(["a\rb,9,c,1", "d\r\ne", "f\ng"])
    Predictions(["1\r2", 2, 3], np.zeros(3), labels, np.ones(3), (), ["all"] * 3).write(found)
    rows = list(csv.DictReader(io.StringIO(found.getvalue(), newline="")))
    assert [row["label"] for row in rows] == labels.tolist()
    assert [row["id"] for row in rows] == ["1\r2", "2", "3"]
    assert found.getvalue().count('"') == 2 * 4  # each such cell is in quotes
    assert found.getvalue().startswith("id,score,label,probability,basis\n")


def test_a_spreadsheet_takes_no_class_or_client_for_a_formula():
    labels = np.array([EVIL, "@SUM(1+1)", "-1", "+A1", "yes"])
    basis = ["all", "=1+1", "means", "＝1+1", "\tall"]
    ids = ["=1", 2, 3, "-x", 5]
    found = io.StringIO(newline="")
    Predictions(ids, np.linspace(-1, 1, 5), labels, np.ones(5), (), basis).write(found)
    rows = list(csv.DictReader(io.StringIO(found.getvalue(), newline="")))
    assert [row["label"] for row in rows] == [f"'{EVIL}", "'@SUM(1+1)", "-1", "'+A1", "yes"]
    assert [row["basis"] for row in rows] == ["all", "'=1+1", "means", "'＝1+1", "'\tall"]
    assert [row["id"] for row in rows] == ["=1", "2", "3", "-x", "5"]
    assert rows[0]["score"] == "-1.0"


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("https://sample.org/x", "https\\://sample.org/x"),
        ("www.sample.org", "www\\.sample.org"),
        ("$x$ at 10:30", "\\$x\\$ at 10:30"),
    ],
)
def test_a_model_card_makes_no_link_and_no_mathematics_of_a_name(name, written):
    assert model_card._safe(name) == written


def test_trackers_are_not_told_which_rows_are_held_out():
    client = {"name": "bank", "path": "bank.csv"}
    split = {"test": 0.3, "salt": "a word of ours"}
    given = {"algorithm": {"name": "hyfdca"}, "split": split, "client": [client]}
    told = settings_of(config.from_dict(given))
    assert told["split.test"] == 0.3
    assert "a word of ours" not in str(told)
