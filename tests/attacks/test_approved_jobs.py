"""A server that has one job let in and runs another: with fewer clients, or for longer."""

from __future__ import annotations

from dataclasses import replace

import pytest

import four_sites
import sites
from departing_server import begin
from intarsia.deployment import policy as site_policy
from intarsia.deployment import run as remote_running
from intarsia.deployment.client_setup import READ, site_in
from intarsia.deployment.policy import RoundCount
from intarsia.engines import codec
from intarsia.engines.remote.caller import Caller
from intarsia.engines.remote.server import Remote
from intarsia.engines.remote.wire import Call
from intarsia.errors import PolicyError, RefusedError


@pytest.fixture(autouse=True)
def one_day(monkeypatch):
    """Let a test that begins before midnight end on the same day, as rounds are counted by days."""
    monkeypatch.setattr(site_policy, "today", lambda: "2026-01-31")


def run(folder, names=four_sites.NAMES, policy="", line=None, jobs=(4,)):
    """Run HyFDCA over some of the sites, for four rounds, or several jobs of so many rounds."""
    described = four_sites.write_tables("hyfdca", folder)
    described = {name: described[name] for name in names}
    for name, text in described.items():
        (folder / name).mkdir()
        toml = four_sites.site_toml(name, text, folder).replace("[policy]\n", f"[policy]\n{policy}")
        (folder / name / "site.toml").write_text(toml)
    found = {name: site_in(folder / name) for name in names}
    description = four_sites.experiment_of("hyfdca", described, folder)
    for number, rounds in enumerate(jobs):
        job, lines = replace(description, rounds=rounds), sites.Lines(found, line)
        given = job, lines, tuple(names), folder / f"server{number}"
        result = remote_running.run_over(*given, patience=sites.HASTY)
    return result


def test_a_job_of_four_clients_is_not_run_with_two(tmp_path):
    def line(client, number, data, deliver):
        call = codec.decode(data, Call)
        if call.function == READ:  # what the owner reads
            data = codec.encode(replace(call, asked=four_sites.NAMES))
        return deliver(data)

    with pytest.raises(RefusedError, match=r"At client '(bank|retailer)' in settle"):
        run(tmp_path, ("bank", "retailer"), line=line)
    said = (tmp_path / "bank" / "errors.log").read_text()
    assert "let in with the clients bank, branch, retailer, telecom" in said


def test_no_call_is_of_a_later_round_than_the_job_was_let_in_with(tmp_path):
    made = begin(tmp_path, "hyfdca", "hyfdca.mask_rows")
    last = made.last("bank")
    some = next(call for name, call, _ in made.calls if name == "bank" and call.kind == "sum")
    log = made.folder / "bank" / "errors.log"
    for number, error in ((6, True), (-1, True), (10**6, True), (5, False)):
        made.sequence += 1
        at = {"sequence": made.sequence, "base": last.sequence, "anchor": last.anchor}
        log.write_text("")
        made.sites["bank"].handle(codec.encode(replace(some, **at, round=number)))
        assert ("was let in with 4 rounds" in log.read_text()) == error, number


def test_rounds_that_the_server_gives_one_number_are_counted_each(tmp_path, monkeypatch):
    begin_round = Remote.begin_round
    monkeypatch.setattr(Remote, "begin_round", lambda self, _, *given: begin_round(self, 1, *given))
    with pytest.raises(PolicyError, match="rounds_a_day"):
        run(tmp_path, policy="rounds_a_day = 2\n")


def test_a_round_without_a_number_does_not_begin_after_the_set_up(tmp_path, monkeypatch):
    begin_round = Remote.begin_round
    monkeypatch.setattr(Remote, "begin_round", lambda self, _, *given: begin_round(self, 0, *given))
    with pytest.raises(RefusedError, match="At client"):
        run(tmp_path, policy="rounds_a_day = 2\n")
    assert "a round that has no number" in (tmp_path / "bank" / "errors.log").read_text()


def test_rounds_without_a_number_count_where_their_anchor_is_that_of_the_set_up(
    tmp_path, monkeypatch
):
    begin_round, anchor = Remote.begin_round, Caller.anchor

    def begin_without_number(self, _, *given):
        with monkeypatch.context() as patch:
            patch.setattr(Caller, "anchor", lambda self: None)
            begin_round(self, 0, *given)

    monkeypatch.setattr(Remote, "begin_round", begin_without_number)
    with pytest.raises(PolicyError, match="rounds_a_day"):
        run(tmp_path, policy="rounds_a_day = 2\n", jobs=(1, 1, 1))
    assert Caller.anchor is anchor


def test_what_began_a_round_counts_as_one_more_when_it_is_called_again(tmp_path):
    def called(sequence, function, anchor=3):
        call = Call("ab", sequence, 3, anchor, 1, 1, "sum", function, "train", (), b"")
        RoundCount(tmp_path, 2).begin(call)

    called(4, "descend")
    called(4, "descend")  # the site was started again
    called(5, "scores")
    called(6, "scores", anchor=5)  # an evaluation of the same round
    called(7, "descend", anchor=6)
    with pytest.raises(PolicyError, match="rounds_a_day"):
        called(8, "descend", anchor=6)


@pytest.mark.parametrize("marked", [False, True])
def test_rounds_are_counted_where_what_began_the_first_does_not_come_again(tmp_path, marked):
    """A server that begins one round by another function, and trains in it for ever."""

    def called(sequence, function, repeats=False):
        at = sequence if marked else 3
        call = Call("ab", sequence, 3, at, 1, 1, "sum", function, "train", (), b"")
        RoundCount(tmp_path, 2).begin(call, repeats=repeats)

    called(4, "scores")
    for number in (5, 6) if not marked else (5, 6, 7, 8, 9):
        if not marked:
            called(10 * number, "search", repeats=True)
        called(10 * number + 1, "descend" if not marked else f"descend {number}")
    with pytest.raises(PolicyError, match="rounds_a_day"):
        called(101, "descend")


def test_an_honest_run_uses_up_its_rounds_and_the_end(tmp_path):
    assert run(tmp_path, policy="rounds_a_day = 5\n").rounds == 4
