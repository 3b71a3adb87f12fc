from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pandas as pd
import pytest

import intarsia
from intarsia.algorithms.linear.cocoa import CoCoA
from intarsia.core.algorithm import FinalResult, RoundMetrics
from intarsia.core.block import Labels
from intarsia.data.reader import table_from
from intarsia.data.source import Source
from intarsia.data.table import split
from intarsia.experiment.config import Experiment
from intarsia.training.outcome import Cost, Outcome, result_of

EXPERIMENT = Experiment(
    name="e", algorithm="cocoa", clients=(Source(name="a", path="a.csv"),), tolerance=1e-6
)


@pytest.mark.parametrize(
    ("finished", "gap", "note"),
    [
        ("tolerance", 9e-7, None),
        (
            "tolerance",
            1.04e-6,
            "within the tolerance 1e-06 after round 7; measured once more it is",
        ),
        ("rounds", 1e-3, "Stopped after 7 rounds at a relative gap of 1.0e-03, above the"),
        ("rounds", 9e-7, None),
        ("algorithm", 1e-3, None),
    ],
)
def test_a_certificate_above_the_tolerance_is_explained(finished, gap, note):
    info = RoundMetrics(primal=1.0, dual=1.0 - gap, gap_relative=gap)
    found = result_of(
        EXPERIMENT,
        CoCoA(),
        Outcome(7, finished, FinalResult(info), None, {}),
        Cost(datetime.now(UTC), seconds={}),
        Labels("binary", ("no", "yes")),
    )
    assert found.positive_class == "yes"
    assert (note in found.notes[0]) if note else not found.notes


def test_a_client_that_is_not_evaluated_is_named():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(70, 3))
    tables = {"long": (x[:60], np.sign(x[:60, 0])), "short": (x[60:], np.sign(x[60:, 0]))}
    found = intarsia.run(tables=tables, rounds=1, tolerance=0, yardsticks=False)
    (note,) = [one for one in found.notes if one.startswith("Not evaluated")]
    assert note.startswith("Not evaluated: 'short' with fewer than 5 labelled test samples")
    assert list(found.metrics.clients) == ["long"]
    both = {"long": tables["long"], "also": tables["long"]}
    found = intarsia.run(tables=both, rounds=1, tolerance=0, yardsticks=False)
    assert not [one for one in found.notes if one.startswith("Not evaluated")]


def test_a_test_part_without_a_label_is_said_to_have_no_scores():
    rows = np.arange(60)
    everyone = pd.DataFrame({"id": rows, "a": rows % 7.0})
    ids, _ = split(table_from(everyone, client="all", id="id"))
    few = pd.DataFrame({"id": ids.samples, "b": ids.samples % 5.0, "y": ids.samples % 2})
    how = {"id": "id", "label": "y", "loss": "logistic", "rounds": 1, "yardsticks": False}
    found = intarsia.run(tables={"few": few, "all": everyone}, **how)
    assert found.metrics.server is None
    (note,) = [one for one in found.notes if one.startswith("There are no scores")]
    assert f"none of the {60 - len(ids.samples)} test samples has a label" in note
