"""A server that puts something else in the place of a total, and names what it put there.

A site used to hold a piece against a name that the server wrote beside it. Each attack is seen to
succeed where a site holds nothing against the declaration of the algorithm.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from departures import Departing, unguarded, with_field, with_total
from intarsia.engines import codec
from intarsia.engines.remote.declared import NO_SUMS, Summed, Sums
from intarsia.training.registry import ALGORITHMS

FEDAVG = ALGORITHMS["fedavg"]
OPTIONS = FEDAVG.hyperparameters(loss="logistic", regularisation=0.1)
VICTIM, OTHER = "r0c0", "r1c0"
EXACT, MOVED = "fedavg.part_of_objective", "fedavg.local_descent"


@pytest.fixture(params=["declared", "not held against anything"])
def works(request, monkeypatch):
    """Let sites hold totals against the declaration, or not; return whether attacks work."""
    if request.param == "declared":
        return False
    unguarded(monkeypatch)
    return True


def begun():
    """Return a server after two rounds, each with a certificate: the scores are summed twice."""
    made = Departing(FEDAVG, OPTIONS, VICTIM)
    server = made.rounds(2)
    engine = made.made.engine
    for number in (3, 4):
        engine.begin_round(number)
        server, _ = FEDAVG.certify(server, engine, engine.key("certify"))
    return made


def message_of(made, function, at=-1):
    call = made.of(function)[at]
    return call, made.message(call)


def earlier(made):
    call, message = message_of(made, EXACT)
    return call, dataclasses.replace(message, z=message_of(made, EXACT, 0)[1].z)


def own_numbers(made):
    call, message = message_of(made, EXACT)
    rows = made.blocks[VICTIM].shape[0]
    return call, dataclasses.replace(message, z=np.ones((1, rows)))


def own_weights(made):
    call, message = message_of(made, MOVED)
    return call, dataclasses.replace(message, w=np.ones((1, made.blocks[VICTIM].shape[1])))


def scaled(made):
    call, message = message_of(made, EXACT)
    return call, with_total(message, "z", weights=(2.0,))


def scaled_beyond(made):
    call, message = message_of(made, MOVED)
    first = message.w.value
    return call, with_total(message, "w", weights=(1e6,) * len(first.weights))


def twice(made):
    call, message = message_of(made, EXACT)
    old, new = message_of(made, EXACT, 0)[1].z.value, message.z.value
    both = {
        name: (*getattr(new, name), *getattr(old, name))
        for name in ("weights", "names", "numbers", "leads", "cells")
    }
    return call, with_total(message, "z", **both)


def the_same_twice(made):
    call, message = message_of(made, EXACT)
    both = {
        name: getattr(message.z.value, name) * 2
        for name in ("weights", "names", "numbers", "leads", "cells")
    }
    return call, with_total(message, "z", **both)


def of_itself_alone(made):
    """Give the site what it sealed itself: it is among the contributors, and nobody else is."""
    call, message = message_of(made, EXACT)
    own = made.sealed("fedavg.part_of_scores", VICTIM).fields["z"].value
    assert own.cells != message.z.value.cells
    return call, with_total(message, "z", cells=own.cells)


def without_cells(made):
    call, message = message_of(made, EXACT)
    (cells,) = message.z.value.cells
    return call, with_total(message, "z", cells=(cells[:1],))


def without_all_cells(made):
    call, message = message_of(made, EXACT)
    return call, with_total(message, "z", cells=((),))


def of_one_client(made):
    call, message = message_of(made, EXACT)
    theirs = made.sealed("fedavg.part_of_scores", OTHER).fields["z"]
    mine = {one.numbers[2]: one for one in message.z.value.cells[0]}
    single = {one.numbers[2]: one for one in theirs.value.cells[0]}
    shared = set(mine) & set(single)
    assert shared
    cells = tuple({**mine, **{cell: single[cell] for cell in shared}}.values())
    return call, with_total(message, "z", cells=(cells,))


def of_another_field(made):
    call, message = message_of(made, EXACT)
    weights = message_of(made, "fedavg.part_of_scores")[1].w
    return call, dataclasses.replace(message, z=weights)


def laid_out_otherwise(made):
    call, message = message_of(made, EXACT)
    return call, with_field(message, "z", layout="selected")


def of_another_part(made):
    call, message = message_of(made, EXACT)
    return call, with_field(message, "z", part="test")


def of_another_run(made):
    other = Departing(FEDAVG, OPTIONS, VICTIM, run="ab" * 8)
    server = other.rounds(2)
    engine = other.made.engine
    for number in (3, 4):
        engine.begin_round(number)
        server, _ = FEDAVG.certify(server, engine, engine.key("certify"))
    call, message = message_of(made, EXACT)
    return call, dataclasses.replace(message, z=message_of(other, EXACT)[1].z)


def of_cells_of_others(made):
    call, message = message_of(made, EXACT)
    theirs = made.message(made.of(EXACT, OTHER)[-1]).z.value.cells[0]
    mine = {one.numbers[2]: one for one in message.z.value.cells[0]}
    more = {one.numbers[2]: one for one in theirs}
    assert set(more) - set(mine)
    return call, with_total(message, "z", cells=(tuple({**more, **mine}.values()),))


def nothing(made):
    call, message = message_of(made, MOVED)
    return call, dataclasses.replace(message, w=None)


def a_total_where_none_is_declared(made):
    call, message = message_of(made, MOVED)
    first = next(f.name for f in dataclasses.fields(message) if f.name != "w")
    return call, dataclasses.replace(message, **{first: message.w})


ATTACKS = [
    *(earlier, own_numbers, own_weights, scaled, scaled_beyond, twice, without_cells),
    *(
        the_same_twice,
        of_itself_alone,
        without_all_cells,
        of_one_client,
        of_another_run,
        of_cells_of_others,
    ),
]
# the site broke down at these before, without saying that it refused
ODD = [
    *(of_another_field, laid_out_otherwise, of_another_part, nothing),
    a_total_where_none_is_declared,
]


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_total_that_is_not_declared_is_refused(works, attack):
    made = begun()
    call, message = attack(made)
    found = made.ask(call, body=codec.encode(message))
    assert found.error == ("" if works else "RefusedError"), found.sentence


@pytest.mark.parametrize("attack", ODD)
def test_what_no_total_can_be_is_refused_by_name(attack):
    made = begun()
    call, message = attack(made)
    assert made.ask(call, body=codec.encode(message)).error == "RefusedError"


def test_no_total_is_opened_in_a_field_that_is_to_hold_plain_numbers():
    hyfdca = ALGORITHMS["hyfdca"]
    options = hyfdca.hyperparameters(loss="logistic", regularisation=0.1)
    made = Departing(hyfdca, options, VICTIM)
    made.rounds(1)
    call, message = message_of(made, "hyfdca.gather_point")
    odd = dataclasses.replace(message, step=message.alpha)
    assert made.ask(call, body=codec.encode(odd)).error == "RefusedError"


def test_a_refusal_changes_nothing_and_a_call_as_declared_is_answered_after_it():
    made = begun()
    shelf = made.made.shelves[VICTIM][made.made.caller.run]
    before = dict(shelf.files)
    for attack in (earlier, own_numbers, without_cells):
        call, message = attack(made)
        assert made.ask(call, body=codec.encode(message)).error == "RefusedError"
    assert shelf.files == before
    call, message = message_of(made, EXACT)
    assert made.ask(call, body=codec.encode(message)).error == ""


def test_the_count_of_exchanges_goes_back_with_the_state_and_survives_a_new_start():
    sums = NO_SUMS
    for number in range(1, 13):
        sums = sums.add("f", Summed(number, 1, "train", ("a", "b"), frozenset({"z"})))
    sums = sums.add("g", Summed(13, 2, "test", ("a",), frozenset()))
    kept = Sums.of(sums.to_text())
    assert kept == sums
    assert kept.last(["f", "g"]) == 13
    assert kept.find("f", 12).asked == ("a", "b")
    assert kept.find("f", 3) is None
    assert kept.is_forgotten("f", 3)
    assert not kept.is_forgotten("f", 12)
    back = kept.back_to(10)
    assert (back.last(["f"]), back.last(["g"])) == (10, 0)
    assert kept.back_to(13) is kept


@pytest.mark.parametrize("kind", ["ask", "sum"])
def test_a_function_is_called_as_it_is_declared_and_no_other_is(works, kind):
    """What is added up sends nothing in the clear."""
    made = begun()
    call = made.of("fedavg.part_of_scores")[-1]
    for name in (
        "fedavg.enter",
        "hyfdca.local_dual_ascent",
        "evaluation.send_metrics",
        "os.system",
    ):
        if not works:
            assert made.ask(call, kind=kind, function=name).error == "StaleError"
    found = made.ask(call, kind=kind)
    assert found.error == ("" if works or kind == "sum" else "RefusedError")
    if works and kind == "ask":  # each score of the site
        assert _plain(found).z.shape == (1, made.blocks[VICTIM].shape[0])


def _plain(answer):
    fn = next(s for s in FEDAVG.disclosure.sends if s.function.name == "part_of_scores")
    return codec.decode(answer.body, fn.reply)
