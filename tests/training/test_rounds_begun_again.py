"""Rounds that begin again without a site: what the totals before and after would tell of it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import sites
from intarsia.engines import codec
from intarsia.engines.remote.wire import Call
from intarsia.errors import AbsentError
from intarsia.privacy.keys.shared_key import SharedKey
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.settings import Privacy

pytest.importorskip("torch")

from intarsia.algorithms.femam.algorithm import FEMAM
from intarsia.algorithms.femam.hyperparameters import FeMAM
from tests.algorithms.femam.test_femam import DOUBLE, LABELS, NETWORK, clients

GONE = "c3"
PATIENCE = dataclasses.replace(
    sites.HASTY, deadline=2.0, absent="continue", quorum=3, probe=0.05, pause=0.01
)


class Run:
    """A masked run of FeMAM over sites, of which one goes away at a function in a round."""

    def __init__(self, function, round, apart=True, level_rounds=1):
        blocks = clients(4)
        keys = modes.in_one_process(SharedKey(bytes(range(32)), "x"))
        self.options = FeMAM(
            level_schedule="paper",
            levels=("global", "global", "global"),
            first_rounds=1,
            level_rounds=level_rounds,
            window=5,
            validation=0.3,
            local_epochs=1,
            batch=16,
            **DOUBLE,
            **NETWORK,
        )
        self._fault, self.round = (function, round), 0
        self.made = sites.federation(
            *(FEMAM, self.options, blocks, LABELS),
            fault=self._line,
            patience=PATIENCE,
            sealing=lambda: modes.sealing(Privacy(mode="masked"), list(blocks), keys),
            apart=apart,
        )
        self.server = sites.begun(self.made, FEMAM, self.options)
        self.read: list[tuple[int, str, np.ndarray]] = []  # by the server, in each round
        opened = self.made.engine.books.reveal

        def reveal(total):
            value = opened(total)
            self.read.append((self.round, total.name, np.asarray(value)))
            return value

        self.made.engine.books.reveal = reveal

    def _line(self, client, number, data, deliver):
        if data and client == GONE:
            called = codec.decode(data, Call).function.partition(".")[2]
            if (called, self.round) == self._fault:
                raise TimeoutError
        return deliver(data)

    def take(self, rounds):
        engine = self.made.engine
        for self.round in range(1, rounds + 1):
            engine.return_of(wait=False)
            engine.begin_round(self.round)
            while True:
                try:
                    after, _ = FEMAM.round(self.server, engine, engine.key())
                    break
                except AbsentError as absent:
                    if not engine.without(absent):
                        raise
            self.server = engine.books.settle(after)


def test_a_site_that_goes_away_while_it_trains_is_told_by_no_difference():
    run = Run("train_level", 3, level_rounds=3)
    run.take(3)
    assert run.made.engine.ids == ("c0", "c1", "c2")
    (found,) = [value for number, _, value in run.read if number == 3]
    states = run.made.states()
    rows = {name: int(state.held_out.sum()) for name, state in states.items()}
    assert rows[GONE] > 0
    assert found[1] == sum(rows.values()) - rows[GONE]  # of those that are left, once


def test_a_round_does_not_begin_again_when_the_difference_would_tell_a_part():
    run = Run("close_level", 3)
    with pytest.raises(AbsentError, match=r"c3 did not answer.*totals of it were opened") as absent:
        run.take(3)
    assert absent.value.clients == (GONE,)
    # what was read of the round was read of all four, and nothing of three
    assert len([value for number, _, value in run.read if number == 3]) == 1


def test_it_does_where_one_client_s_part_may_be_told():
    run = Run("close_level", 3, apart=False)
    run.take(3)
    assert run.made.engine.ids == ("c0", "c1", "c2")
    first, second, *_ = [(name, value) for number, name, value in run.read if number == 3]
    assert first[0] == second[0]  # the same total, of four and of three
    assert first[1][0] > second[1][0]  # of their rows for validation
