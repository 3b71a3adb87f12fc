from __future__ import annotations

import json

import numpy as np
import pytest

from intarsia.engines.transcript import Crossed, Crossings, Transcript, read_transcript
from intarsia.protocols.evaluation import MetricTotals, Sums


def crossed(round):
    return Crossed(round, "ask", "ascend", "bank", "Scores", {"x": np.arange(5.0) + round})


@pytest.mark.parametrize("left", [1, 7, 8, 9, 100])  # bytes of the second record and its length
def test_a_run_that_was_killed_in_mid_write_records_on_behind_the_last_whole_record(tmp_path, left):
    path = tmp_path / "transcript.bin"
    begun = Transcript(path)
    begun.record(crossed(1))
    size = path.stat().st_size
    begun.record(crossed(2))
    assert path.stat().st_size > size + 100
    with path.open("r+b") as file:
        file.truncate(size + left)
    assert [one.round for one in read_transcript(path)] == [1]
    resumed = Transcript(path)
    resumed.record(crossed(2))
    resumed.record(crossed(3))
    found = list(read_transcript(path))
    assert [one.round for one in found] == [1, 2, 3]
    for one in found:
        np.testing.assert_array_equal(one.fields["x"], np.arange(5.0) + one.round)


def test_a_transcript_that_is_whole_stays_so_when_a_run_goes_on(tmp_path):
    path = tmp_path / "transcript.bin"
    Transcript(path).record(crossed(1))
    before = path.read_bytes()
    Transcript(path)
    assert path.read_bytes() == before


def test_crossings_of_an_older_checkpoint_have_the_names_that_exchanges_have_now():
    kept = Crossings(["one"])
    kept.exchange("sum", "sum_metrics_own", Sums, (), MetricTotals, ["one"])
    kept.reveal("MetricTotals.counts", 1.0)
    kept.exchange("ask", "mean_grades", Sums, (), MetricTotals, ["one"])  # somebody's own
    summary = json.dumps(kept.summary())
    for now, then in (("sum_metrics", "sum_grades"), ("MetricTotals", "GradeTotals")):
        summary = summary.replace(now, then)
    assert "sum_grades_own" in summary
    found = Crossings(["one"])
    found.restore(json.loads(summary))
    assert found.summary() == json.loads(json.dumps(kept.summary()))
    found.exchange("sum", "sum_metrics_own", Sums, (), MetricTotals, ["one"])
    assert [one["exchanges"] for one in found.exchanges.values()] == [2, 1]
