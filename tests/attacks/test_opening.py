"""A server that asks a site to open what the algorithm does not: any piece used to be opened."""

from __future__ import annotations

import dataclasses

import pytest

from departures import Departing, unguarded
from intarsia.engines import codec
from intarsia.engines.remote.wire import ToSeal
from intarsia.engines.sums.plain import EVERYONE
from intarsia.training.registry import ALGORITHMS

FEDAVG = ALGORITHMS["fedavg"]
OPTIONS = FEDAVG.hyperparameters(loss="logistic", regularisation=0.1)
VICTIM, OTHER = "r0c0", "r1c1"


@pytest.fixture(params=["declared", "not held against anything"])
def works(request, monkeypatch):
    """Let sites hold totals against the declaration, or not; return whether attacks work."""
    if request.param == "declared":
        return False
    unguarded(monkeypatch)
    return True


@pytest.fixture
def made():
    found = Departing(FEDAVG, OPTIONS, VICTIM)
    server, engine = found.rounds(1), found.made.engine
    engine.begin_round(2)
    FEDAVG.certify(server, engine, engine.key("certify"))
    return found


def total(made, function, field, client):
    return made.sealed(function, client).fields[field].value


def single(made):
    """Return another site's own terms of the objective: it alone contributed."""
    return total(made, "fedavg.part_of_objective", "at", OTHER), [EVERYONE]


def scores(made):
    """Return the scores of the site's rows, which the server never reads."""
    record = made.message(made.of("fedavg.part_of_objective")[-1]).z.value
    return record, [record.cells[0][0].numbers[2]]


def cells_of_others(made):
    """Return weights that the server reads, of columns that the site has not."""
    record = total(made, "fedavg.local_descent", "w", OTHER)
    own = made.made.engine.schema("train").features.cells_of[VICTIM]
    return record, [next(p.numbers[2] for p in record.cells[0] if p.numbers[2] not in own)]


def whole_cells_of_others(made):
    """Return the same with all contributors: the total is what the algorithm declares."""
    totals, columns = made.made.engine._locked, made.made.engine.schema("train").features
    record, (cell,) = cells_of_others(made)
    sealed = [
        piece
        for name in columns.cells[cell].owners
        for piece in total(made, "fedavg.local_descent", "w", name).cells[0]
        if piece.numbers[2] == cell
    ]
    whole = totals.adder.add(*(totals.piece(one) for one in sealed))
    return dataclasses.replace(record, cells=((totals.piece_record(whole),),)), [cell]


@pytest.mark.parametrize("attack", [single, scores, cells_of_others, whole_cells_of_others])
def test_a_site_opens_to_the_server_what_is_declared_and_its_own_alone(works, made, attack):
    found = made.open(*attack(made))
    assert found.error == ("" if works else "RefusedError")


@pytest.mark.parametrize("attack", [single, scores, cells_of_others])
@pytest.mark.parametrize("name", ["Change.w and Weights.w", "Scores.z", "Objective.at", "x"])
def test_a_site_seals_anew_what_is_declared_and_its_own_alone(made, attack, name):
    record, cells = attack(made)
    call = made.of("fedavg.part_of_objective")[-1]
    sent = codec.encode(ToSeal(record, tuple(cells), name))
    found = made.ask(call, kind="seal", function="seal", body=sent)
    assert found.error == "RefusedError"


def test_what_is_declared_is_opened(made):
    (call,) = [c for _, c, _ in made.calls if c.kind == "open"]
    assert made.ask(call).error == ""


def test_an_opening_needs_a_cell_of_its_total(made):
    (call,) = [c for _, c, _ in made.calls if c.kind == "open"]
    record, _ = single(made)
    for cells in ((-99,), (5,)):
        assert made.open(dataclasses.replace(record), cells).error == "RefusedError"
    assert made.ask(call, function="x").error == ""
