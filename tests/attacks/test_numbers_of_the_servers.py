"""A server that tells clients of FeMAM numbers of its own in the place of what sums came to.

By the shares of the classes that it told, clients' differences were divided before they were
rounded: a share of 1e-9 undoes the rounding, and each client's rows of each class follow. By other
factors of the scores, one after the other, metrics of one client tell how sure it is of each row.
"""

from __future__ import annotations

import numpy as np
import pytest

from departing_server import begin
from departures import unguarded, with_total
from intarsia.engines import codec
from intarsia.engines.communication_log import RECORDS
from intarsia.engines.remote import wire
from intarsia.engines.sums.sealed import SealedRecord

pytest.importorskip("torch")

from intarsia.algorithms.femam import state
from intarsia.algorithms.femam.class_priors import differences, shares_of
from intarsia.algorithms.flic.own_network import OwnCompared

LEVELS = {"levels": ["global", "shares", "personal"], "level_rounds": 1, "validation": 0.3}


def fits(told, shares, sizes, of_the_first):
    """Return which numbers of rows of the first class give what clients' differences come to."""
    every = np.stack(np.meshgrid(*(np.arange(size + 1.0) for size in sizes)), -1)
    every = every.reshape(-1, len(sizes))
    every = every[every.sum(axis=1) == of_the_first]
    squares = np.stack([every**2, (sizes - every) ** 2]) / sizes  # of class, federation and client
    by_shares = np.round(np.einsum("kfc,k->fc", squares, 1 / shares)).sum(axis=1)
    return every[by_shares == told]


def test_by_a_share_of_its_own_the_server_has_each_client_s_rows_of_a_class():
    sizes = np.array([61.0, 53.0, 47.0])
    tables = np.stack([first := np.array([40.0, 11.0, 29.0]), sizes - first], axis=1)
    found = []
    for shares in (shares_of(tables.sum(axis=0)), np.array([1e-9, 1.0])):
        told = sum(differences(rows, shares) for rows in tables)[3]
        found.append(fits(told, shares, sizes, first.sum()))
    assert len(found[0]) > 1
    np.testing.assert_array_equal(found[1], [first])


@pytest.mark.parametrize("works", [False, True])
def test_clients_take_the_classes_shares_of_a_sealed_sum(works, tmp_path, monkeypatch):
    made = begin(tmp_path / "run", "femam", "femam.try_offsets", algorithm=LEVELS)
    _, call, answer = made.of("femam.compare_shares", "bank")[-1]
    message = wire.decode_as(state.Common, call.body, *RECORDS)
    assert answer.error == ""
    assert isinstance(message.counts, SealedRecord)
    if works:
        unguarded(monkeypatch)
    counts = np.array([1e-9, 1.0, 1.0])
    twice = with_total(message, "counts", weights=(2.0,))
    for wrong in (state.Common(counts), twice):
        answers = made.ask_all("femam.compare_shares", wrong)
        assert {one.error for one in answers.values()} == ({""} if works else {"RefusedError"})
    for function, kind in (("try_offsets", state.Prior), ("take_offset", state.Weighed)):
        weight = (1.0,) if kind is state.Weighed else ()
        asked = {"kind": "ask"} if weight else {}
        for told in (counts, message.counts):
            wrong = kind(told, np.array([90.0, 4.0, 30.0, 90.0]), *weight)
            answers = made.ask_all(f"femam.{function}", wrong, **asked)
            assert {one.error for one in answers.values()} == ({""} if works else {"RefusedError"})


@pytest.mark.parametrize("works", [False, True])
def test_what_own_networks_are_worth_to_all_is_the_sum_as_it_is(works, tmp_path, monkeypatch):
    """Times a factor, the sum has a client of flic keep its own network where it would not."""
    own = {"keep_own": True, "validation": 0.3}
    made = begin(tmp_path / "run", "flic", "evaluation.measure_own", algorithm=own)
    _, call, answer = made.of("flic.keep_better", "branch")[0]
    message = wire.decode_as(OwnCompared, call.body, *RECORDS)
    assert answer.error == ""
    if works:
        unguarded(monkeypatch)
    times = with_total(message, "at", weights=(8.0,))
    answers = made.ask_all("flic.keep_better", times, kind="ask")
    # where it is opened, the rows for validation are gone since the first answer
    assert ("RefusedError" in {one.error for one in answers.values()}) != works


def test_scores_are_multiplied_once_after_a_level_by_a_factor_that_was_tried(tmp_path):
    made = begin(tmp_path / "run", "femam", "femam.scale_levels", count=2, algorithm=LEVELS)
    how = {"kind": "ask", "asked": tuple(made.sites)}
    for factor, error in ((0.123, True), (1e-9, True), (0.5, False), (2.0, True), (0.5, True)):
        answer = made.ask("bank", "femam.scale_levels", state.Scale(factor), **how)
        assert answer.error == ("RefusedError" if error else ""), factor
    assert codec.decode(made.of("femam.scale_levels", "bank")[0][1].body, state.Scale).factor > 0
