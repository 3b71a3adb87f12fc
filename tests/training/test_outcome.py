from __future__ import annotations

from datetime import UTC, datetime

import pytest

from intarsia.algorithms.linear.cocoa import CoCoA
from intarsia.core.algorithm import FinalResult, RoundMetrics
from intarsia.data.source import Source
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
    )
    assert (note in found.notes[0]) if note else not found.notes
