"""Who is away: what a server goes on with that was killed while a site came and went."""

from __future__ import annotations

import dataclasses
import threading

import numpy as np
import pytest

import sites
from federations import BINARY, rectangles, table
from intarsia.algorithms.linear.fedavg import FEDAVG
from intarsia.engines.remote import caller as calling
from intarsia.engines.remote.caller import Caller, RetryPolicy
from intarsia.engines.remote.server_journal import Journal
from intarsia.errors import AbsentError

OPTIONS = FEDAVG.hyperparameters(loss="logistic", regularisation=0.1, local_steps=5)
GONE = "r0c0"


class Server:
    """A server's process, over sites that outlive it; `GONE` is away while `away` says so."""

    def __init__(self, folder, shelves, quorum):
        self.away = False
        patience = dataclasses.replace(
            sites.HASTY, deadline=2.0, absent="continue", quorum=quorum, probe=0.05
        )
        x, y = table(40, 6)
        self.made = sites.federation(
            *(FEDAVG, OPTIONS, rectangles(x, y, 2, 2, shared_rows=2, shared_columns=1), BINARY),
            fault=self._line,
            patience=patience,
            journal=Journal(folder),
            run="ab",
            shelves=shelves,
        )
        self.server = sites.begun(self.made, FEDAVG, OPTIONS)

    def _line(self, client, number, data, deliver):
        if client == GONE and self.away:
            raise TimeoutError
        return deliver(data)

    def round(self, number, *, away):
        """Run a round; return who took part."""
        engine, self.away = self.made.engine, away
        engine.return_of(wait=False)
        engine.begin_round(number)
        while True:
            try:
                self.server, _ = FEDAVG.round(self.server, engine, engine.key())
                return tuple(engine.ids)
            except AbsentError as absent:
                if not engine.without(absent):
                    raise

    def ended(self):
        """End the process; return the weights."""
        self.made.caller.journal.close()
        return self.made.engine.reveal(self.server.w)


def test_a_round_that_is_run_again_has_the_sites_that_it_had(tmp_path):
    """It came back in the second round; that it is away when that is run again changes nothing."""
    shelves = {}
    first = Server(tmp_path, shelves, quorum=2)
    assert GONE not in first.round(1, away=True)
    assert GONE in first.round(2, away=False)
    expected = first.ended()
    again = Server(tmp_path, shelves, quorum=2)
    assert GONE not in again.round(1, away=False)
    assert GONE in again.round(2, away=True)
    np.testing.assert_array_equal(again.ended(), expected)


def test_a_run_that_ended_for_want_of_a_site_goes_on_when_it_is_back(tmp_path):
    shelves = {}
    first = Server(tmp_path, shelves, quorum=4)
    with pytest.raises(AbsentError, match="r0c0 did not answer"):
        first.round(1, away=True)
    first.made.caller.journal.close()
    again = Server(tmp_path, shelves, quorum=4)
    assert GONE in again.round(1, away=False)
    again.ended()


class Broken:
    """A transport that breaks down for one site, and finds no other."""

    def send(self, client, data, seconds):
        if client == "a":
            raise RuntimeError("the transport broke down")
        raise TimeoutError


def test_where_a_transport_breaks_down_no_site_is_called_any_more():
    caller = Caller("ab", ("a", "b", "c"), Broken(), RetryPolicy(deadline=120.0, pause=60.0))
    with pytest.raises(RuntimeError, match="broke down"):
        caller.call("stage", "begin", dict.fromkeys(caller.clients, b""))
    for thread in threading.enumerate():
        if thread.name.startswith("call 1 to "):
            thread.join(10)
            assert not thread.is_alive(), thread.name


class Between(calling._Attempts):
    """Attempts that end between two looks of who waits for them."""

    _looked = False

    @property
    def done(self):
        if self._looked:
            return self._done.wait(60)
        self._looked = True
        return False


def test_the_last_site_may_answer_while_it_is_looked_who_is_left(monkeypatch):
    monkeypatch.setattr(calling, "_Attempts", Between)
    x, y = table(40, 6)
    blocks = rectangles(x, y, 2, 2, shared_rows=2, shared_columns=1)
    made = sites.federation(FEDAVG, OPTIONS, blocks, BINARY)
    assert sites.begun(made, FEDAVG, OPTIONS).samples == 40
