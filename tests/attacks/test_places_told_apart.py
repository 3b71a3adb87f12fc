"""A server that tells the owners of samples different things about the system that they share.

The server knows the words that hide rows. Where each client adds its share at the places that the
server named, shares of a pair do not cancel, and one of them is known words times the rows of the
other. Where the others add their part in units so large that its words are 0, the total is the part
of one client. So a client takes both of what is its own: its places of its index sets, and the
system's size of a total that it opens itself.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from departures import Departing, unguarded
from federations import block, table
from intarsia import core as fl
from intarsia.algorithms.hyfdca.algorithm import HYFDCA
from intarsia.algorithms.hyfdca.newton import server as newton
from intarsia.algorithms.hyfdca.newton import shares as newton_shares
from intarsia.algorithms.hyfdca.newton.client import enter
from intarsia.algorithms.hyfdca.newton.frame import OwnFrame
from intarsia.algorithms.hyfdca.newton.shares import Factors, Mask
from intarsia.core.client_functions import SecretKey
from intarsia.engines import codec
from intarsia.errors import RefusedError

OPTIONS = HYFDCA.hyperparameters(loss="logistic", regularisation=0.1, method="newton")
ALONE = "branch"  # shares columns with the bank and no sample with anybody


def departing(rounds=1):
    x, y = table(30, 6)
    blocks = {
        "bank": block(x, y, range(20), range(3)),
        "shop": block(x, y, range(20), range(2, 6), labels=False),
        ALONE: block(x, y, range(20, 30), range(3)),
    }
    made = Departing(HYFDCA, OPTIONS, ALONE, blocks=blocks, complete=True, trust="pairs")
    made.rounds(rounds)
    return made


@pytest.fixture(scope="module")
def trained():
    return departing()


def test_no_message_names_a_place_a_step_or_a_size():
    told = {
        OwnFrame: {"frame", "squares"},
        Mask: {"seed", "bounds", "part"},
        Factors: {"part", "bounds", "blind", "shares", *newton_shares.TURNS},
    }
    for message, names in told.items():
        assert {one.name for one in dataclasses.fields(message)} == names


@pytest.mark.parametrize("budget", [-1, 1, 29])
def test_no_system_is_of_few_samples(monkeypatch, budget):
    monkeypatch.setattr(newton, "_first_budget", lambda *_, **__: budget)
    with pytest.raises(RefusedError, match="gather_point: The site refused"):
        departing()


def test_where_a_client_stands_follows_from_its_own_index_sets(trained):
    dealer = newton_shares.deal_overlaps(trained.made.engine.schema("train"))
    for name, state in trained.made.states().items():
        assert codec.encode(state.overlap) == codec.encode(dealer.overlaps[name])


def asked_for_its_part(made, **changes):
    """Ask a client for its part of the system again, by a message that the server altered."""
    call = made.of("hyfdca.multiply_rows")[-1]
    altered = dataclasses.replace(made.message(call), **changes)
    return made.ask(call, body=codec.encode(altered))


@pytest.mark.parametrize("works", [False, True])
def test_a_size_in_the_clear_is_refused(works, monkeypatch):
    """Of a client that is told a huge size the words are 0, so that it adds nothing."""
    if works:
        unguarded(monkeypatch)
    made = departing()
    seen = watched(made, monkeypatch)
    answer = asked_for_its_part(made, bounds=np.full((1, 2), 2.0**400))
    assert (answer.error == "RefusedError") is not works
    assert [not words.any() for words in seen] == ([True] if works else [])


def watched(made, monkeypatch):
    """Take down what clients add of their own."""
    seen, real = [], newton_shares._own_part
    monkeypatch.setattr(
        newton_shares, "_own_part", lambda *given: seen.append(real(*given)) or seen[-1]
    )
    return seen


@pytest.mark.parametrize("works", [False, True])
@pytest.mark.parametrize("case", ["times 2^400", "of an earlier point"])
def test_a_size_of_another_total_is_refused(case, works, monkeypatch):
    if works:
        unguarded(monkeypatch)
    made = departing(rounds=2)
    (old, *_), new = made.of("hyfdca.multiply_rows"), made.of("hyfdca.multiply_rows")[-1]
    record = made.message(new).bounds
    if case == "of an earlier point":
        record = made.message(old).bounds
    else:
        value = dataclasses.replace(record.value, weights=(2.0**400,))
        record = dataclasses.replace(record, value=value)
    answer = asked_for_its_part(made, bounds=record)
    assert (answer.error == "RefusedError") is not works


@pytest.mark.parametrize("change", ["more", "none", "other columns"])
def test_words_for_others_than_its_partners_are_refused(trained, change):
    """At the client that is told, words decide whose products it adds, and where."""
    state = trained.made.states()["shop"]
    words = {"bank": np.zeros((1, 3, 4), np.uint64)}
    if change == "more":
        words[ALONE] = words["bank"]
    elif change == "none":
        words = {}
    else:
        words = {"bank": np.zeros((1, 2, 4), np.uint64)}
    sharing = newton_shares.Sharing(
        *(state, np.zeros((0, 4)), np.zeros(0, np.uint64), np.zeros(0, np.uint64), bytes(16))
    )
    message = Factors(0, np.ones((1, 2)), None, words)
    with pytest.raises(RefusedError, match="own index sets ask for"):
        newton_shares.multiply_rows.call(
            sharing, trained.blocks["shop"], message, SecretKey(bytes(32))
        )


def test_a_basis_of_another_size_is_refused(trained):
    call = trained.of("hyfdca.enter")[-1]
    start = dataclasses.replace(trained.message(call), frame=7)
    state = trained.made.states()[ALONE].before
    start = dataclasses.replace(start, alpha=state.alpha, w=state.w)
    with pytest.raises(RefusedError, match="7 rows"):
        enter.call(state, trained.blocks[ALONE], start, SecretKey(bytes(32)))


def test_a_client_of_a_version_that_took_its_places_of_the_server_is_refused(trained):
    state = trained.made.states()["shop"]
    for old in (
        fl.evolve(state, shared=False),
        fl.evolve(state, before=fl.evolve(state.before, overlap=None)),
    ):
        with pytest.raises(RefusedError, match="begin the run again"):
            newton_shares.mask_rows.call(
                *(old, trained.blocks["shop"], Mask(bytes(32), np.ones((1, 2)))),
                SecretKey(bytes(32)),
            )
