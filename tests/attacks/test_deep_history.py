"""A history of somebody else, with a line whose values lie deep in each other, ended the command.

Python gave up in the parser. Such a line, and one that is no mapping with a round, counts as one
that was cut short.
"""

from __future__ import annotations

import json

import pytest

from intarsia.errors import ExperimentError
from intarsia.results.checkpoint import Checkpoints
from intarsia.results.history import course_of

ODD = {
    "lists": "[" * 200_000,
    "tables": '{"round":' * 200_000,
    "no mapping": "[1, 2]",
    "no round": '{"accuracy": 1.0}',
    "a round of text": '{"round": "1", "accuracy": 1.0}',
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_a_line_that_is_no_round_is_left_out(odd, tmp_path):
    line = json.dumps({"round": 1, "accuracy": 0.5, "loss": 0.7})
    (tmp_path / "history.jsonl").write_text(f"{odd}\n{line}\n")
    assert course_of(tmp_path).accuracy == {1: 0.5}
    (tmp_path / "history.jsonl").write_text(f"{odd}\n")
    with pytest.raises(ExperimentError, match="no round with an accuracy"):
        course_of(tmp_path)


@pytest.mark.parametrize("odd", ["lists", "tables"])
def test_a_run_that_goes_on_takes_it_for_the_end_of_the_history(odd, tmp_path):
    store = Checkpoints(tmp_path)
    (tmp_path / "history.jsonl").write_text(f'{{"round": 1}}\n{ODD[odd]}\n')
    store.truncate_history(5)
    assert (tmp_path / "history.jsonl").read_text() == '{"round": 1}\n'
