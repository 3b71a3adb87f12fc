"""A server that asks for the check of shared labels, with words, rows and clients that it chose.

The check used to add up labels times factors that everybody knows, and the server said which rows
each sum takes and whom it asked: a sum of one row was its label, times a known number, so that one
call told all labels of a site. Then sites took rows and factors from the schema, and answered only
where all are asked. One client opened the sums, though: one that made up labels of up to sixteen
rows had the other's, by a combination of these (`test_label_agreement.py` has what clients open).
Labels are now hidden by words of all that hold them, which are a sealed total.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import four_sites
from departing_server import NAMES, begin
from departures import unguarded
from intarsia.engines import codec
from intarsia.protocols.preprocessing import agreement

pytest.importorskip("torch")
DRAW, COMPARE = "preprocessing.draw_words", "preprocessing.compare_labels"


@pytest.fixture(params=["declared", "not held against anything"])
def works(request, monkeypatch):
    """Let sites hold calls against the declaration, or not; return whether attacks work."""
    if request.param != "declared":
        unguarded(monkeypatch)
    return request.param != "declared"


def numbers_of(answer):
    return codec.decode(answer.body, agreement.HiddenLabels).numbers


def hidden(labels, words):
    """Return what the bank would send of labels that are hidden by words that are known."""
    key = agreement._secret_of(words).fold_in("bank", "branch")
    return agreement._hidden(agreement._whole_numbers(labels), key, 0, 2)


def test_no_client_hides_labels_by_words_of_the_servers(works, tmp_path):
    made = begin(tmp_path / "run", "hyfdca", "preprocessing.count_copies")
    (_, _, honest), *_ = made.of(COMPARE, "bank")
    width = numbers_of(honest).shape[1]
    words = np.zeros((1, width))
    given = {"kind": "ask", "asked": NAMES}
    answer = made.ask("bank", COMPARE, agreement.LabelWords(words), **given)
    if not works:
        assert answer.error == "RefusedError"
        return
    # it can tell each label that it guesses: here the rows of each class, one class at a time
    found = numbers_of(answer)
    guesses = [hidden(np.full(width, code), words) == found for code in (0.0, 1.0, 2.0)]
    told = np.stack([one.all(axis=0) for one in guesses])
    np.testing.assert_array_equal(told.sum(axis=0), 1)
    assert told.any(axis=1).all()


def test_one_client_less_is_refused_too(tmp_path):
    # all clients are there for the preparation, whoever takes part in a round
    some = {"participation": 0.75}
    made = begin(tmp_path / "run", "hyfdca", "preprocessing.count_copies", experiment=some)
    (_, call, _), *_ = made.of(COMPARE, "bank")
    for asked in (("bank",), NAMES[:2], NAMES[:3]):
        answer = made.ask("bank", DRAW, agreement.AskWords(), asked=asked)
        assert answer.error == "RefusedError"
        answer = made.ask("bank", COMPARE, call.body, kind="ask", asked=asked)
        assert answer.error == "RefusedError"


def test_the_server_says_neither_rows_nor_factors():
    assert not dataclasses.fields(agreement.AskWords)
    assert [one.name for one in dataclasses.fields(agreement.LabelWords)] == ["words"]


def test_labels_are_hidden_alike_however_often_they_are_asked_for(tmp_path):
    """What all send adds up to 0, and what one sends is the same: nothing hides two things."""
    made = begin(tmp_path / "run", "hyfdca", "preprocessing.count_copies")
    part = made.of(COMPARE)[-1][1].part  # words of an earlier one are taken no more
    last = [one for one in made.of(COMPARE) if one[1].part == part]
    bodies = {name: call.body for name, call, _ in last}
    first = {name: numbers_of(answer) for name, _, answer in last}
    for _ in range(2):
        made.sequence += 1
        given = {"kind": "ask", "asked": NAMES, "sequence": made.sequence, "part": part}
        for name in NAMES:
            answer = made.ask(name, COMPARE, bodies[name], **given)
            assert not answer.error
            np.testing.assert_array_equal(numbers_of(answer), first[name])
    labels = four_sites.tables("hyfdca")["bank"]["kind"]
    assert labels.nunique() == 3  # there is something to tell
    rows = first["bank"].shape[1]
    one, other = (first[name][:, :rows].astype(np.uint64) for name in ("bank", "branch"))
    assert not ((one + other) % (2**31 - 1)).any()
