"""A server that counts values through the comparison of copies.

Of samples that two clients hold, random projections of the shared values are compared, and the
server reads how many samples differ. It used to say which columns are projected, and on what. With
projections of zero in the first step and others in the second every sample counted whose value was
beyond a threshold of the server's choice: the distribution of any column of a client, one threshold
a call, and with rare values the values themselves. Columns and directions are the schema's now, and
all owners of the columns are asked together.
"""

from __future__ import annotations

import dataclasses

import pytest

from departing_server import begin
from departures import unguarded
from intarsia.engines.communication_log import RECORDS
from intarsia.engines.remote import wire
from intarsia.protocols.preprocessing import agreement

pytest.importorskip("torch")


@pytest.fixture(params=["declared", "not held against anything"])
def works(request, monkeypatch):
    """Let sites hold calls against the declaration, or not; return whether attacks work."""
    if request.param != "declared":
        unguarded(monkeypatch)
    return request.param != "declared"


def message_of(made, function, kind, client="bank"):
    """Return the last honest message of a function to a client."""
    _, call, _ = made.of(f"preprocessing.{function}", client)[-1]
    return call, wire.decode_as(kind, call.body, *RECORDS)


@pytest.mark.parametrize(("function", "kind"), [("count_copies", "sum"), ("compare_copies", "ask")])
def test_copies_of_one_client_are_not_compared_with_nobody_s(works, function, kind, tmp_path):
    made = begin(tmp_path / "run", "hyfdca", "preprocessing.measure_features")
    kinds = {"count_copies": agreement.SharedFeatures}
    call, message = message_of(made, function, kinds.get(function, agreement.CopiedTotals))
    answer = made.ask("bank", call.function, message, part=call.part, kind=kind)
    assert answer.error == ("" if works else "RefusedError")


def test_the_server_says_neither_columns_nor_directions():
    assert [one.name for one in dataclasses.fields(agreement.SharedFeatures)] == [
        *("cell", "lacking")
    ]
    assert [one.name for one in dataclasses.fields(agreement.CopiedTotals)] == [
        *("cell", "columns", "lacking", "words")
    ]


@pytest.mark.parametrize("alone", [False, True])
def test_columns_that_a_client_shares_with_nobody_are_not_compared(alone, tmp_path, monkeypatch):
    if alone:  # by the client function itself
        unguarded(monkeypatch)
    made = begin(tmp_path / "run", "hyfdca", "preprocessing.measure_features")

    def cells(client):
        calls = made.of("preprocessing.count_copies", client)
        kinds = [wire.decode_as(agreement.SharedFeatures, c.body, *RECORDS) for _, c, _ in calls]
        return {one.cell: one for one in kinds}

    function, honest = "preprocessing.count_copies", cells("telecom")
    others = honest.keys() - cells("bank").keys()
    assert others  # of columns that the bank has not
    lacking = next(iter(honest.values())).lacking
    for cell in (*others, -1, 99):
        answers = made.ask_all(function, agreement.SharedFeatures(cell, lacking))
        assert answers["bank"].error == "RefusedError"
