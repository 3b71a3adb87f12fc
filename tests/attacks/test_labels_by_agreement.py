"""A server that asks for the check of shared labels, with rows and clients of its own choice.

The check adds up labels times factors that everybody knows, and the server reads the sums. It used
to say which rows each sum takes, and to ask whom it liked: a sum of one row was its label, times a
known number, so that one call told all labels of a site. A site now takes rows and factors from the
schema, and answers only where all clients are asked: the sum of a pair is then 0.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import four_sites
from departing_server import NAMES, begin
from departures import unguarded
from intarsia.engines.remote.wire import Answer
from intarsia.protocols import preprocessing

pytest.importorskip("torch")
FUNCTION = "preprocessing.add_labels"


@pytest.fixture(params=["declared", "not held against anything"])
def works(request, monkeypatch):
    """Let sites hold calls against the declaration, or not; return whether attacks work."""
    if request.param != "declared":
        unguarded(monkeypatch)
    return request.param != "declared"


@pytest.mark.parametrize("algorithm", ["hyfdca"])
def test_no_client_adds_up_its_labels_for_the_server_alone(works, algorithm, tmp_path):
    # all clients are there for the preparation, whoever takes part in a round
    some = {"participation": 0.75}
    made = begin(tmp_path / "run", algorithm, "preprocessing.count_copies", experiment=some)
    answer = made.ask("bank", FUNCTION, preprocessing.CompareLabels())
    if not works:
        assert answer.error == "RefusedError"
        return
    found = made.opened("bank", answer, "totals")
    assert not isinstance(found, Answer)
    assert np.abs(found).max() > 0  # a combination of the bank's labels, with known factors


def test_one_client_less_is_refused_too(tmp_path):
    made = begin(tmp_path / "run", "hyfdca", "preprocessing.count_copies")
    for asked in (NAMES[:2], NAMES[:3]):
        answer = made.ask("bank", FUNCTION, preprocessing.CompareLabels(), asked=asked)
        assert answer.error == "RefusedError"


def test_the_server_says_neither_rows_nor_factors():
    assert not dataclasses.fields(preprocessing.CompareLabels)


def test_sums_over_all_clients_are_zero_however_often_they_are_asked_for(tmp_path):
    made = begin(tmp_path / "run", "hyfdca", "preprocessing.count_copies")
    (_, _, first), *_ = made.of("open", "bank")
    assert not first.error
    for _ in range(2):
        answers = made.ask_all(FUNCTION, preprocessing.CompareLabels())
        assert {one.error for one in answers.values()} == {""}
    labels = four_sites.tables("hyfdca")["bank"]["kind"]
    assert labels.nunique() == 3  # there is something to tell
