"""Who is away: what a server goes on with that was killed while a site came and went."""

from __future__ import annotations

import dataclasses
import threading

import numpy as np
import pytest

import sites
from federations import BINARY, rectangles, table
from intarsia.algorithms.linear.fedavg import FEDAVG
from intarsia.engines import codec
from intarsia.engines.remote import caller as calling
from intarsia.engines.remote.caller import Caller, RetryPolicy
from intarsia.engines.remote.server_journal import Journal
from intarsia.engines.remote.wire import Answer
from intarsia.errors import AbsentError
from intarsia.protocols import early_stopping
from intarsia.training.loop import simulate

OPTIONS = FEDAVG.hyperparameters(loss="logistic", regularisation=0.1, local_steps=5)
GONE = "r0c0"


def blocks():
    return rectangles(*table(40, 6), 2, 2, shared_rows=2, shared_columns=1)


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    """Compile the kernels first: no site is to be slow for them."""
    simulate(FEDAVG, OPTIONS, {"train": blocks()}, BINARY, rounds=1, seed=0)


class Server:
    """A server's process, over sites that outlive it; `GONE` is away while `gone` says so."""

    def __init__(self, folder, shelves, quorum, algorithm=FEDAVG):
        self.gone, self.algorithm = False, algorithm
        patience = dataclasses.replace(
            sites.HASTY, deadline=60.0, absent="continue", quorum=quorum, probe=0.05
        )
        self.made = sites.federation(
            *(algorithm, OPTIONS, blocks(), BINARY),
            fault=self._line,
            patience=patience,
            journal=Journal(folder),
            run="ab",
            shelves=shelves,
        )
        self.server = sites.begun(self.made, algorithm, OPTIONS)

    def _line(self, client, number, data, deliver):
        if client == GONE and self.gone:
            raise TimeoutError
        return deliver(data)

    def leave(self, gone):
        """Let the site be away, or come back; nobody waits long for one that is away."""
        self.gone, caller = gone, self.made.caller
        caller.patience = dataclasses.replace(caller.patience, deadline=2.0 if gone else 60.0)

    def round(self, number, *, away):
        """Run a round; return who took part."""
        engine = self.made.engine
        self.leave(away)
        engine.return_of(wait=False)
        engine.begin_round(number)
        while True:
            try:
                self.server, _ = self.algorithm.round(self.server, engine, engine.key())
                return tuple(engine.ids)
            except AbsentError as absent:
                if not engine.without(absent):
                    raise

    def ended(self):
        """End the process; return the weights."""
        self.made.caller.journal.close()
        server = getattr(self.server, "now", self.server)
        return self.made.engine.reveal(server.w)

    def stopped_early(self, away=""):
        """Keep the first of two rounds as the best, and go back to it; return the weights."""
        assert GONE in self.round(1, away=False)
        engine = self.made.engine
        for step, change in (("keep", early_stopping.keep), ("return", early_stopping.go_back)):
            self.leave(step == away)
            self.server = change(self.server, engine)
            if step == "keep":
                assert GONE in self.round(2, away=False)
        return self.ended()


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


@pytest.mark.parametrize("step", ["keep", "return"])
def test_a_site_that_is_away_at_the_best_round_ends_the_run_which_goes_on_when_it_is_back(
    step, tmp_path
):
    """Of the best round no site may have another state than the others, so none is left out."""
    algorithm = early_stopping.keeping_best(FEDAVG)
    whole = Server(tmp_path / "whole", {}, quorum=2, algorithm=algorithm).stopped_early()
    shelves = {}
    first = Server(tmp_path / "run", shelves, quorum=2, algorithm=algorithm)
    with pytest.raises(
        AbsentError, match=rf"^r0c0 did not answer to \S+{step}\w+ .* resume the run"
    ):
        first.stopped_early(away=step)
    first.made.caller.journal.close()
    again = Server(tmp_path / "run", shelves, quorum=2, algorithm=algorithm)
    np.testing.assert_array_equal(again.stopped_early(), whole)


class Broken:
    """A transport that breaks down for one site, and finds no other."""

    def send(self, client, data, seconds):
        if client == "a":
            raise RuntimeError("the transport broke down")
        raise TimeoutError


@pytest.mark.parametrize("late", [False, True])
def test_a_site_that_says_that_its_owner_is_to_decide_holds_up_no_round_of_the_others(
    tmp_path, late
):
    """The run ended: each call after it raised that the owner had not decided."""
    made = Server(tmp_path, {}, quorum=2)
    caller, waits = made.made.caller, threading.Event()
    caller.patience = dataclasses.replace(caller.patience, deadline=2.0)
    heard: list[dict[str, str]] = []
    caller._pending = heard.append

    def line(client, number, data, deliver):
        answer = deliver(data)
        if client != GONE or not data:
            return answer
        if late:
            waits.wait(60)
        own = dataclasses.replace(codec.decode(answer, Answer), error="PendingError", body=b"")
        return codec.encode(dataclasses.replace(own, sentence="The owner is to decide."))

    made.made.lines.fault = line
    engine = made.made.engine
    for number in (1, 2):
        engine.begin_round(number)
        while GONE in engine.ids:
            with pytest.raises(AbsentError) as absent:
                made.algorithm.round(made.server, engine, engine.key())
            assert engine.without(absent.value)
            waits.set()
            for thread in threading.enumerate():
                if thread.name.endswith(f" to {GONE}"):
                    thread.join(60)
        made.server, _ = made.algorithm.round(made.server, engine, engine.key())
        assert GONE not in engine.ids
    assert heard[-1:] == ([] if late else [{}])


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
    made = sites.federation(FEDAVG, OPTIONS, blocks(), BINARY)
    assert sites.begun(made, FEDAVG, OPTIONS).samples == 40


class Dripping:
    """A transport that waits as long as bytes come, and a site that sends one now and then."""

    def __init__(self):
        self.over = threading.Event()

    def send(self, client, data, seconds):
        assert self.over.wait(60)
        raise ConnectionResetError


def test_no_site_holds_up_the_server_that_asks_whether_it_is_there():
    """The run stood still as long as a site dripped: calls have a deadline, and this had none."""
    line, ended = Dripping(), threading.Event()
    caller = Caller("ab", ("a",), line, RetryPolicy(seconds=0.01))

    def compare():
        assert caller.compare_versions() == ()
        ended.set()

    thread = threading.Thread(target=compare, daemon=True)
    thread.start()
    try:
        assert ended.wait(30)
    finally:
        line.over.set()
        thread.join(60)
