from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import re
import socket
import threading
import time
from datetime import UTC, datetime
from functools import partial

import pytest

import sites
from command_line import one_error, said
from intarsia.cli import federation
from intarsia.cli.main import main
from intarsia.deployment import federation_file
from intarsia.deployment import server as federation_server
from intarsia.deployment.client_setup import site_in
from intarsia.engines.remote.caller import RetryPolicy
from intarsia.errors import AbsentError, ExperimentError
from intarsia.results import checkpoint
from intarsia.results.lock import alone
from tests.deployment import test_run as remote

GOOD = federation_file.EXAMPLE
IN_QUEUE = "in the queue: it begins within seconds, or when a run before it ends"
WRONG = {
    "no TOML": ("[federation", "not valid TOML"),
    "an unknown table": (
        GOOD + "[sites]\n",
        r"\[sites\] is not a table of the federation's file; use 'site'",
    ),
    "an unknown key": (GOOD.replace("port", "ports", 1), "ports"),
    "no site": ('[federation]\nname = "a"\n', "needs one at least"),
    "a site twice": (GOOD + '[[site]]\nname = "bank"\n', "a name of its own"),
    "a path as a name": (GOOD + '[[site]]\nname = "../x"\n', "cannot be that of a folder"),
    "an address of IPv6": (GOOD.replace("localhost", "::1"), "'::1', and certificates"),
    "the server's name": (GOOD + '[[site]]\nname = "server"\n', "cannot be that of a folder"),
    "a name with an umlaut": (GOOD.replace("credit", "müller", 1), "take at most 64 unaccented"),
    "a site with a long name": (GOOD + f'[[site]]\nname = "{65 * "x"}"\n', "take at most 64"),
    "a path at a site": (GOOD + '[[site]]\nname = "x"\npath = "y"\n', "a name and nothing else"),
    "no patience": (GOOD.replace("deadline = 600", "deadline = 0"), "above 0 seconds"),
    "no table": ("federation = 3", r"federation is 3; expected a table \[federation\]"),
    "no table of patience": (
        "patience = 3\n[federation]\n",
        r"patience is 3; expected a table \[patience\]",
    ),
    "sites in the first table": (
        GOOD.replace("port", "sites = []\nport", 1),
        r"sites is no key of \[federation\]; write a table \[\[site\]\] for each site",
    ),
    "patience in the first table": (
        GOOD.replace("port", "patience = 3\nport", 1),
        r"patience is no key of \[federation\]; write a table \[patience\]",
    ),
    "sites that differ in case": (GOOD + '[[site]]\nname = "Bank"\n', "more than case"),
    "a quorum of more than all": (GOOD.replace("quorum = 1", "quorum = 9"), "quorum is 9 of 3"),
    "more than 100 sites": (
        '[federation]\nname = "a"\n' + "".join(f'[[site]]\nname = "s{n}"\n' for n in range(101)),
        "has 101 sites; one has 100 at most",
    ),
    "no such port": (GOOD.replace("8702", "70000"), "between 1 and 65534"),
}


@pytest.mark.parametrize(("text", "said"), WRONG.values(), ids=WRONG)
def test_a_federation_that_is_wrong_is_refused_in_a_sentence(tmp_path, text, said):
    path = tmp_path / "federation.toml"
    path.write_text(text)
    with pytest.raises(ExperimentError, match=said):
        federation_file.load(path)


class Jobs:
    """A server of jobs whose answers are given; jobs begin at once, or never."""

    begin = True

    def __init__(self):
        self.submitted, self.aborted, self.known, self.there = [], [], {}, True
        self.done = []  # "submit" and "abort", in order
        self.answering, self.working = set(remote.NAMES), {}  # jobs by sites that work on others

    def submit(self, job):
        self._check()
        self.submitted.append(job)
        self.done.append("submit")
        if self.begin:
            (job.parent / "queued").unlink(missing_ok=True)
        name = f"job-{len(self.submitted)}"
        self.known[name] = "RUNNING"
        return name

    def status(self, job):
        self._check()
        return self.known.get(job, "")

    def sites(self):
        self._check()
        newest = f"job-{len(self.submitted)}"
        return {name: self.working.get(name, {newest}) for name in self.answering}

    def abort(self, job):
        self._check()
        self.aborted.append(job)
        self.done.append("abort")
        raise ConnectionError("the job is not running")

    def _check(self):
        if not self.there:
            raise ConnectionError("the server does not answer")


def turns(folder, jobs, number=1):
    """Let the supervisor look so many times."""
    left = number

    def stopped():
        nonlocal left
        left -= 1
        return left < 0

    federation_server.supervise(
        folder, jobs, lambda own, run, sites, least: own, stopped=stopped, pause=0.0, between=0.0
    )


def asked(folder, absent="wait"):
    remote.write_tables(folder)
    description, patience = remote.described(folder), RetryPolicy(absent=absent)
    return federation_server.request(folder, description, remote.NAMES, patience)


def test_what_ended_a_job_is_not_said_of_the_one_after_it(tmp_path):
    own, jobs, told = asked(tmp_path), Jobs(), []
    problem = {"error": "AbsentError", "sentence": "bank did not answer", "again": True}

    def stands():
        (status,) = federation_server.list_statuses(tmp_path)
        return status.state, status.problem

    def said():
        (own / "failure.json").write_text(json.dumps(problem))
        # the server's clock was an hour ahead then
        os.utime(own / "failure.json", times=(time.time() + 3600,) * 2)
        told.append(stands())

    def over():
        told.append(stands())
        jobs.known = dict.fromkeys(jobs.known, "FINISHED:ABNORMAL")
        jobs.working = dict.fromkeys(remote.NAMES, ())

    def back():
        told.append(stands())
        jobs.working = {"bank": set()}

    done = looks(tmp_path, jobs, nothing, said, over, back)
    assert told == [("running", "bank did not answer")] * 2 + [("running", "")]
    assert done == [(1, 0), (1, 0), (2, 0), (3, 1)]  # which ends when a site is back without it


def test_a_run_that_is_being_stopped_is_not_to_be_stopped_once_more(tmp_path):
    own = asked(tmp_path)
    given = tmp_path, remote.described(tmp_path), remote.NAMES, RetryPolicy()
    (own / "job.id").write_text("job-1")
    with pytest.raises(ExperimentError, match="is running; stop it with"):
        federation_server.request(*given, overwrite=True, alive=True)
    federation_server.stop_run(tmp_path, "four")
    with pytest.raises(ExperimentError, match="is being stopped; give the command again in some"):
        federation_server.request(*given, overwrite=True, alive=True)
    (own / "job.id").unlink()  # as the supervisor does
    federation_server.request(*given, overwrite=True, alive=True)


def test_a_job_that_ends_before_its_run_is_submitted_again(tmp_path):
    own, jobs = asked(tmp_path), Jobs()
    turns(tmp_path, jobs, 3)
    assert len(jobs.submitted) == 1
    jobs.known["job-1"] = "FINISHED:EXECUTION_EXCEPTION"
    turns(tmp_path, jobs)
    assert len(jobs.submitted) == 2
    jobs.known.clear()  # the server lost its jobs
    turns(tmp_path, jobs)
    assert len(jobs.submitted) == 3
    assert json.loads((own / "request.json").read_text())["sites"] == list(remote.NAMES)


def test_a_job_that_begins_between_two_questions_is_not_ended(tmp_path):
    asked(tmp_path)
    jobs, noted = Jobs(), []

    def begin():
        jobs.working = dict.fromkeys(remote.NAMES, ())  # the sites do not have it yet
        jobs.status = lambda job: jobs.working.clear() or "RUNNING"  # and have when this is said

    looks(tmp_path, jobs, begin, nothing, note=noted.append)
    assert len(noted) == len(jobs.submitted) == 1
    assert not jobs.aborted


def test_a_job_that_is_listed_as_running_when_the_server_starts_is_ended_first(tmp_path):
    asked(tmp_path)
    jobs = Jobs()
    turns(tmp_path, jobs)
    jobs.there = False
    turns_late = iter([False, True])
    ask = jobs._check
    jobs._check = lambda: setattr(jobs, "there", next(turns_late, True)) or ask()
    turns(tmp_path, jobs, 2)  # another process of the server, which is not there at once
    assert jobs.aborted == ["job-1"]
    assert len(jobs.submitted) == 2


@pytest.mark.parametrize(("again", "state"), [(True, "running"), (False, "failed")])
def test_a_run_goes_on_after_an_absence_and_not_after_what_must_be_mended(tmp_path, again, state):
    own, jobs = asked(tmp_path), Jobs()
    turns(tmp_path, jobs)
    jobs.known["job-1"] = "FINISHED:EXECUTION_EXCEPTION"
    (own / "failure.json").write_text(
        json.dumps({"error": "AbsentError", "sentence": "bank did not answer", "again": again})
    )
    (status,) = federation_server.list_statuses(tmp_path)
    assert (status.state, status.problem) == (state, "bank did not answer")
    turns(tmp_path, jobs)
    assert len(jobs.submitted) == 1 + again


def looks(folder, jobs, *steps, note=lambda _: None):
    """Let a supervisor look after each step; return how many jobs are submitted and ended then."""
    found, left = [], list(steps)

    def stopped():
        found.append((len(jobs.submitted), len(jobs.aborted)))
        if not left:
            return True
        left.pop(0)()
        return False

    federation_server.supervise(
        folder,
        jobs,
        lambda own, run, sites, least: own,
        stopped=stopped,
        note=note,
        pause=0.0,
        between=0.0,
    )
    return found[1:]


def nothing():
    """Change nothing."""


@pytest.mark.parametrize("absent", ["wait", "continue"])
def test_a_job_is_ended_once_for_each_return_of_a_site(tmp_path, absent):
    asked(tmp_path, absent)
    jobs = Jobs()

    def gone():
        jobs.answering.discard("bank")

    def back():
        jobs.answering.add("bank")
        jobs.working["bank"] = set()  # a new process, which has no job

    begun, said = jobs.working.clear, []
    steps = nothing, gone, nothing, back, begun, nothing, gone, back, begun
    found = looks(tmp_path, jobs, *steps, note=said.append)
    assert found == [(1, 0)] * 3 + [(2, 1)] * 4 + [(3, 2)] * 2
    ended = [one for one in said if "ended" in one]
    assert ended == ["four: the job is ended, since 'bank' is back without it"] * 2
    # ending one takes seconds in which the next one begins
    assert jobs.done == ["submit", "submit", "abort", "submit", "abort"]


def test_a_new_run_and_a_site_that_connects_are_not_waited_for(tmp_path):
    """Nobody waits for the hour after which the supervisor looks of itself."""
    jobs = Jobs()
    jobs.working["bank"] = set()  # its process is a new one whenever it is asked
    # at the start, in a look, while it is waited for the next one, and so on
    moments = iter([0, 0, partial(asked, tmp_path), 0, 1, 1, 2])

    def arrived():
        moment = next(moments)
        if callable(moment):
            moment()
            return 0
        return moment

    federation_server.supervise(
        tmp_path,
        jobs,
        lambda own, run, sites, least: own,
        stopped=lambda: jobs.done == ["submit", "submit", "abort"],
        arrived=arrived,
        pause=3600.0,
        between=3600.0,
    )
    assert list(moments) == []


def test_what_ends_a_job_that_another_one_has_followed_is_not_said_of_the_run(tmp_path):
    own = asked(tmp_path)
    for newer in ("job-1", "job-2"):
        (own / "job.id").write_text("job-1")

        class Silent:
            def send(self, client, data, seconds, newer=newer):
                staged = own / f"{threading.get_ident()}.id"  # several write, and the run reads
                staged.write_text(newer)
                staged.replace(own / "job.id")
                raise ConnectionError("nobody is there")

        patience = {"seconds": 0.01, "deadline": 0.01, "pause": 0.01}
        request = json.loads((own / "request.json").read_text())
        request["patience"].update(patience)
        (own / "request.json").write_text(json.dumps(request))
        with pytest.raises(AbsentError):
            federation_server.run_in_job(tmp_path, "four", Silent())
        said = own / "failure.json"
        assert said.is_file() == (newer == "job-1")
        said.unlink(missing_ok=True)


def test_a_job_that_begins_or_said_what_ended_it_is_not_ended(tmp_path):
    own, jobs = asked(tmp_path), Jobs()
    jobs.working["bank"] = set()

    def submitted():
        jobs.known["job-1"] = "DISPATCHED"

    def said():
        jobs.known["job-1"] = "RUNNING"
        absent = {"error": "AbsentError", "sentence": "bank is away", "again": True}
        (own / "failure.json").write_text(json.dumps(absent))

    assert looks(tmp_path, jobs, nothing, submitted, said, nothing) == [(1, 0)] * 4


def test_a_job_that_has_not_begun_is_ended_when_a_site_is_gone(tmp_path):
    """The framework looks for the sites of such a job after 10, 20, 40 … 600 seconds."""
    own, jobs = asked(tmp_path), Jobs()

    def gone():
        jobs.known["job-1"] = "SUBMITTED"
        jobs.working = dict.fromkeys(remote.NAMES, ())
        jobs.answering.discard("bank")

    def back():
        jobs.answering.add("bank")

    assert looks(tmp_path, jobs, nothing, gone, nothing, back) == [(1, 0), (1, 1), (1, 1), (2, 1)]
    assert (own / "job.id").read_text() == "job-2"


@pytest.mark.parametrize("absent", ["wait", "continue"])
def test_a_site_whose_process_dies_in_every_job_does_not_end_jobs_for_ever(tmp_path, absent):
    asked(tmp_path, absent)
    jobs = Jobs()
    jobs.working["bank"] = set()

    def gone():
        jobs.answering.discard("bank")

    def back():
        jobs.answering.add("bank")

    found = looks(tmp_path, jobs, *[nothing] * 7, gone, back)
    assert found[:5] == [(1, 0), (2, 1), (3, 2), (4, 3), (5, 4)]
    (status,) = federation_server.list_statuses(tmp_path)
    if absent == "wait":
        assert found[5:] == [(5, 5)] * 4
        assert "5 jobs in a row ended without a word" in status.problem
    else:  # the run goes on without it, until it was away
        assert found[5:] == [(5, 4)] * 3 + [(6, 5)]
        assert status.state == "running"


@pytest.mark.parametrize(("absent", "count"), [("wait", 0), ("continue", 1)])
def test_a_job_is_submitted_when_so_many_sites_answer_as_it_needs(tmp_path, absent, count):
    asked(tmp_path, absent)
    jobs = Jobs()
    jobs.answering -= {"bank", "post"}
    assert looks(tmp_path, jobs, nothing, nothing)[-1] == (count, 0)
    (status,) = federation_server.list_statuses(tmp_path)
    if not count:
        assert status.state == "waiting"
        assert status.problem == "waits for sites that do not answer: 'bank', 'post'"
    jobs.answering |= {"bank", "post"}
    looks(tmp_path, jobs, nothing)
    (status,) = federation_server.list_statuses(tmp_path)
    assert (status.state, status.problem) == ("running", "")


def test_a_run_waits_until_its_job_begins(tmp_path):
    own, jobs = asked(tmp_path), Jobs()
    jobs.begin = False
    turns(tmp_path, jobs)

    def stands():
        (status,) = federation_server.list_statuses(tmp_path)
        return status.state, status.problem

    assert stands() == ("waiting", IN_QUEUE)
    given = tmp_path, remote.described(tmp_path), remote.NAMES, RetryPolicy()
    with pytest.raises(ExperimentError, match="is waiting; stop it with"):
        federation_server.request(*given, overwrite=True, alive=True)

    class Silent:
        def send(self, client, data, seconds):
            assert stands() == ("running", "")
            raise ConnectionError("nobody is there")

    request = json.loads((own / "request.json").read_text())
    request["patience"].update(seconds=0.01, deadline=0.01, pause=0.01)
    (own / "request.json").write_text(json.dumps(request))
    with pytest.raises(AbsentError):
        federation_server.run_in_job(tmp_path, "four", Silent())
    jobs.known["job-1"] = "FINISHED:EXECUTION_EXCEPTION"
    turns(tmp_path, jobs)
    assert len(jobs.submitted) == 2
    assert stands() == ("waiting", IN_QUEUE)


def test_jobs_are_submitted_in_the_order_in_which_runs_were_asked_for(tmp_path):
    """Also where one is asked for between two questions to sites that were away until then."""
    jobs, noted = Jobs(), []
    jobs.answering.clear()
    remote.write_tables(tmp_path)

    def ask(name, moment):
        description = dataclasses.replace(remote.described(tmp_path), name=name)
        own = federation_server.request(tmp_path, description, remote.NAMES, RetryPolicy())
        os.utime(own / "request.json", (moment, moment))

    ask("zeta", 1000)
    ask("mu", 2000)
    steps = [nothing, lambda: ask("alpha", 3000) or jobs.answering.update(remote.NAMES)]
    federation_server.supervise(
        tmp_path,
        jobs,
        lambda own, run, sites, least: own,
        stopped=lambda: not steps or steps.pop(0)(),
        note=noted.append,
        pause=0.0,
        between=3600.0,
    )
    assert [job.parent.name for job in jobs.submitted] == ["zeta", "mu", "alpha"]


def test_a_run_says_that_a_site_it_waits_for_is_revoked(tmp_path):
    folder, jobs, noted = tmp_path / "server" / "local", Jobs(), []
    folder.mkdir(parents=True)
    asked(folder)
    (folder / "revoked.json").write_text('{"bank": "2026-11-28T20:08:01+00:00"}')
    jobs.answering -= {"bank", "post"}
    looks(folder, jobs, nothing, note=noted.append)
    (status,) = federation_server.list_statuses(folder)
    assert status.problem == (
        "waits for sites that do not answer: 'bank', 'post'; revoked are the certificates of "
        "'bank' of before 2026-11-28 20:08:01 UTC, and with them nobody answers: the run goes on "
        "when there are new ones; for one that has left stop it, and submit another"
    )
    assert noted == [f"four: {status.problem}"]
    # it has come back with another certificate since, and starts its process anew
    (folder / "certificates.json").write_text('{"bank": "2027-11-28T20:08:01+00:00"}')
    (status,) = federation_server.list_statuses(folder)
    assert status.problem == "waits for sites that do not answer: 'bank', 'post'"
    (folder / "certificates.json").unlink()
    (folder / "revoked.json").write_text("{")  # which ends no run
    looks(folder, jobs, nothing)
    (status,) = federation_server.list_statuses(folder)
    assert status.problem == "waits for sites that do not answer: 'bank', 'post'"


def test_a_site_that_is_away_for_two_hours_costs_one_job_and_one_line(tmp_path):
    own, jobs, noted = asked(tmp_path), Jobs(), []
    turns(tmp_path, jobs)
    jobs.answering.discard("bank")
    jobs.known["job-1"] = "FINISHED:EXECUTION_EXCEPTION"  # at its deadline
    absent = {"error": "AbsentError", "sentence": "bank did not answer", "again": True}
    (own / "failure.json").write_text(json.dumps(absent))
    looks(tmp_path, jobs, *[nothing] * 120, note=noted.append)  # one a minute stands for all
    assert len(jobs.submitted) == 1
    assert noted[0].endswith("the job is over (FINISHED:EXECUTION_EXCEPTION): bank did not answer")
    assert noted[1:] == ["four: waits for sites that do not answer: 'bank'"]
    (status,) = federation_server.list_statuses(tmp_path)
    assert (status.state, status.problem) == ("waiting", noted[1].removeprefix("four: "))
    jobs.answering.add("bank")
    turns(tmp_path, jobs, 3)
    assert len(jobs.submitted) == 2


def test_a_run_whose_jobs_end_without_a_word_fails_after_the_fifth(tmp_path):
    own, jobs = asked(tmp_path), Jobs()
    journal = own / "out" / "journal" / "000000000000.journal"
    journal.parent.mkdir(parents=True)
    for count in range(1, 8):
        turns(tmp_path, jobs)
        assert len(jobs.submitted) == count
        jobs.known[f"job-{count}"] = "FINISHED:EXECUTION_EXCEPTION"
        if count == 2:
            journal.write_bytes(b"further")
        if count == 4:  # it says what ended it
            absent = {"error": "AbsentError", "sentence": "bank is away", "again": True}
            (own / "failure.json").write_text(json.dumps(absent))
    for count in (8, 9):
        turns(tmp_path, jobs)
        jobs.known[f"job-{count}"] = "FINISHED:EXECUTION_EXCEPTION"
    turns(tmp_path, jobs, 3)
    (status,) = federation_server.list_statuses(tmp_path)
    assert status.state == "failed"
    assert (
        "5 jobs in a row ended without a word (the last: FINISHED:EXECUTION_EXCEPTION);"
        in status.problem
    )
    submitted = len(jobs.submitted)
    federation_server.resume_run(tmp_path, "four")
    turns(tmp_path, jobs, 2)
    assert len(jobs.submitted) == submitted + 1


def test_a_run_that_was_stopped_is_ended_and_goes_on_when_it_is_resumed(tmp_path):
    own, jobs = asked(tmp_path), Jobs()
    turns(tmp_path, jobs)
    federation_server.stop_run(tmp_path, "four")
    turns(tmp_path, jobs, 2)
    assert jobs.aborted == ["job-1"]
    assert not (own / "job.id").exists()
    assert federation_server.list_statuses(tmp_path)[0].state == "stopped"
    with pytest.raises(ExperimentError, match="'four' is stopped; it must be waiting or running"):
        federation_server.stop_run(tmp_path, "four")
    federation_server.resume_run(tmp_path, "four")
    turns(tmp_path, jobs, 2)
    assert len(jobs.submitted) == 2


def test_a_run_that_failed_goes_on_when_it_is_resumed(tmp_path):
    own, jobs = asked(tmp_path), Jobs()
    turns(tmp_path, jobs)
    jobs.known["job-1"] = "FINISHED:EXECUTION_EXCEPTION"
    failure = {"error": "TableError", "sentence": "no column", "again": False}
    (own / "failure.json").write_text(json.dumps(failure))
    turns(tmp_path, jobs)
    assert len(jobs.submitted) == 1
    federation_server.resume_run(tmp_path, "four")
    turns(tmp_path, jobs)
    assert len(jobs.submitted) == 2
    with pytest.raises(ExperimentError, match=r"no run 'fore'.*'four'"):
        federation_server.resume_run(tmp_path, "fore")


ENDS = {
    "four: finished, round 5, loss 0.25, gap 1.0e-07, 1,024 bytes": "finished",
    "four: failed, round 5, loss 0.25, gap 1.0e-07, 1,024 bytes (bank's owner denied it)": "failed",
    "four: stopped, round 5, loss 0.25, gap 1.0e-07, 1,024 bytes, by "
    "`intarsia federation stop --run`": "stopped",
}


@pytest.mark.parametrize("meanwhile", [False, True], ids=["watched", "while no server runs"])
@pytest.mark.parametrize(("sentence", "state"), ENDS.items(), ids=ENDS.values())
def test_the_end_of_a_run_is_told_once(tmp_path, capfd, sentence, state, meanwhile):
    own, jobs, noted = asked(tmp_path), Jobs(), []

    def end():
        (own / "out").mkdir()
        line = {"round": 5, "loss": 0.25, "gap_relative": 1e-7, "bytes": 1024}
        (own / "out" / "history.jsonl").write_text(json.dumps(line) + "\n")
        if state == "finished":
            (own / "out" / "result.json").write_text("{}")
        elif state == "failed":
            denied = {"error": "PolicyError", "sentence": "bank's owner denied it", "again": False}
            (own / "failure.json").write_text(json.dumps(denied))
        else:
            federation_server.stop_run(tmp_path, "four")

    looks(tmp_path, jobs, nothing, *([] if meanwhile else [end, nothing]), note=noted.append)
    if meanwhile:
        end()
    before = len(noted)
    looks(tmp_path, jobs, nothing, nothing, note=noted.append)
    looks(tmp_path, jobs, nothing, note=noted.append)
    assert noted[0].startswith("four: job job-1 is submitted")
    assert noted[1:] == [sentence]
    assert before == 1 + (not meanwhile)
    last = {"finished": "out/result.json", "failed": "failure.json"}.get(state, "stopped")
    os.utime(own / last, (1_800_000_000, 1_800_000_000))
    (status,) = federation_server.list_statuses(tmp_path)
    assert status.ended == "2027-01-15T08:00:00+00:00"
    federation._show(
        tmp_path, {"running": True, "certificates": (), "runs": [dataclasses.asdict(status)]}
    )
    assert f"  {status}, ended 2027-01-15 08:00:00 UTC\n" in capfd.readouterr().err
    if state != "finished":
        federation_server.resume_run(tmp_path, "four")
        assert not federation_server.list_statuses(tmp_path)[0].ended


def test_how_a_run_stands_takes_as_long_after_thousands_of_rounds(tmp_path, monkeypatch):
    own, read = asked(tmp_path), []
    (own / "out").mkdir()
    (own / "out" / "result.json").write_text("{}")
    whole = checkpoint.parse_json
    monkeypatch.setattr(checkpoint, "parse_json", lambda text: read.append(text) or whole(text))
    for rounds in (1, 5000):
        text = "".join(f'{{"round": {number}, "loss": 0.5}}\n' for number in range(1, rounds + 1))
        (own / "out" / "history.jsonl").write_text(text)
        [found] = federation_server.list_statuses(tmp_path)
        assert found.round == rounds
        # the server looks every two seconds, at all runs of months
        assert len(read) <= 2
        read.clear()


def test_a_run_that_ended_before_this_was_written_down_is_not_told_anew(tmp_path):
    own, noted = asked(tmp_path), []
    (own / "out").mkdir()
    (own / "out" / "result.json").write_text("{}")
    looks(tmp_path, Jobs(), nothing, note=noted.append)
    assert noted == []


def test_a_run_at_work_is_not_replaced_until_it_is_stopped(tmp_path):
    _, jobs = asked(tmp_path), Jobs()
    description = remote.described(tmp_path)
    again = {"overwrite": True, "alive": True}
    turns(tmp_path, jobs)
    with pytest.raises(ExperimentError, match="is running; stop it"):
        federation_server.request(tmp_path, description, remote.NAMES, RetryPolicy(), **again)
    federation_server.stop_run(tmp_path, "four")
    turns(tmp_path, jobs)
    federation_server.request(tmp_path, description, remote.NAMES, RetryPolicy(), **again)
    assert federation_server.list_statuses(tmp_path)[0].state == "waiting"


def test_the_supervisor_waits_for_a_server_that_does_not_answer(tmp_path):
    asked(tmp_path)
    jobs = Jobs()
    jobs.there = False
    turns(tmp_path, jobs, 3)
    jobs.there = True
    turns(tmp_path, jobs)
    assert len(jobs.submitted) == 1


@pytest.mark.parametrize("name", ["..", "../evil", "/evil", ".hidden", "a/b", "ping", "a b", ""])
def test_a_name_that_is_no_folder_of_a_run_is_refused(tmp_path, name):
    remote.write_tables(tmp_path)
    description = dataclasses.replace(remote.described(tmp_path), name=name)
    kept = tmp_path / "runs" / "other"
    kept.mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ExperimentError, match=r"experiment\.name"):
        federation_server.request(
            tmp_path, description, remote.NAMES, RetryPolicy(), overwrite=True
        )
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_of_the_same_name_is_not_replaced_unasked(tmp_path):
    asked(tmp_path)
    with pytest.raises(ExperimentError, match="There is a run 'four'"):
        asked(tmp_path)


def test_the_commands_submit_an_experiment_and_show_how_it_stands(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert main(["federation", "init"]) == 0
    description = federation_file.load(tmp_path / "federation.toml")
    kits = {name: tmp_path / name for name in ("server", *description.sites)}
    for kit in kits.values():
        (kit / "local").mkdir(parents=True)
    federation_file.finish_kits(description, kits)
    (tmp_path / "e.toml").write_text(
        '[experiment]\nname = "e"\n[algorithm]\nname = "hyfdca"\n'
        + "".join(f'[[client]]\nname = "{name}"\npath = "x.csv"\n' for name in description.sites)
    )
    assert main(["federation", "submit", "server", "e.toml"]) == 0
    said(capfd)
    ping = tmp_path / "server" / "local" / "runs" / "ping" / "out"  # which trained nothing
    ping.mkdir(parents=True)
    (ping / "result.json").write_text("{}")
    assert main(["federation", "status", "server", "--json"]) == 3
    found = json.loads(said(capfd)[0])
    assert not found["running"]
    assert [(one["name"], one["state"]) for one in found["runs"]] == [("e", "waiting")]
    for name, why in (("nosuch", "name is 'nosuch'; use one of"), ("liblinear", "pools the data")):
        wrong = (tmp_path / "e.toml").read_text().replace("hyfdca", name)
        (tmp_path / "wrong.toml").write_text(wrong)
        for command in ("submit", "schedule"):  # not in the night of the first run
            assert main(["federation", command, "server", "wrong.toml"]) == 2
            assert why in one_error(said(capfd)[1])
    for number in range(10):
        own = tmp_path / "server" / "local" / "runs" / f"night-{number}"
        own.mkdir()
        problem = {"error": "SiteError", "sentence": "it failed", "again": False}
        (own / "failure.json").write_text(json.dumps(problem))
        assert main(["federation", "status", "server"]) == 3
        counted = "11 runs: 1 waiting, 10 failed" in said(capfd)[1]
        assert counted == (number == 9)  # fewer are counted at a glance
    assert main(["federation", "submit", "bank", "e.toml"]) == 2
    assert "no kit of a server" in one_error(said(capfd)[1])
    assert main(["federation", "status", "bank"]) == 3
    assert "bank is not running" in said(capfd)[1]


@pytest.mark.parametrize("command", ["status", "stop"])
def test_a_folder_that_is_no_kit_is_refused(command, tmp_path, capfd):
    for folder, problem in ((tmp_path / "nosuch", "does not exist"), (tmp_path, "is no kit")):
        assert main(["federation", command, str(folder)]) == 2
        assert f"{folder} {problem}; give a folder that" in one_error(said(capfd)[1])


@pytest.mark.parametrize(
    "text", ["", '{"sites": ["bank"', "[1]", '{"sites": "bank", "patience": {}}', '{"sites": [1]}']
)
def test_a_list_of_sites_that_was_cut_as_it_was_copied_is_said(text, tmp_path, capfd):
    description = described(tmp_path)
    (tmp_path / "server" / "local").mkdir(parents=True)
    federation_file.finish_kits(description, {"server": tmp_path / "server"})
    path = tmp_path / "server" / "local" / "federation.json"
    path.write_text(text)
    for command in ("status", "ping", "server"):
        assert main(["federation", command, str(tmp_path / "server")]) == 2
        assert f"{path} is damaged" in one_error(said(capfd)[1])


def test_provision_says_which_kits_it_wrote_and_which_were_there(tmp_path, monkeypatch, capfd):
    from types import SimpleNamespace

    from intarsia.cli import kits as kit_commands

    def provisioned(name, host, ports, sites, folder, *, keys):
        kits = {one: folder / one for one in ("server", *(sites if keys else ()))}
        for kit in kits.values():
            (kit / "local").mkdir(parents=True, exist_ok=True)
        return kits

    module = SimpleNamespace(provisioned=provisioned)
    monkeypatch.setattr(kit_commands, "over_nvflare", lambda name: module)
    described(tmp_path)
    words = ["federation", "provision", str(tmp_path / "federation.toml"), "-o", str(tmp_path)]
    (tmp_path / "bank" / "local").mkdir(parents=True)
    for first, known in (
        ("wrote 3 kits", "bank"),
        ("wrote 0 kits", "server, bank, telecom, retailer"),
    ):
        assert main(words) == 0
        lines = said(capfd)[1].splitlines()
        assert lines[0].startswith(first)
        assert lines[1].endswith(f"the keys that they had: {known}")
        new = [line.strip().partition(":")[0] for line in lines[2:]]
        at_all = [str(tmp_path / one) for one in ("telecom", "retailer")] + ["for trials"]
        assert new == (at_all if known == "bank" else [])
    with alone(tmp_path / ".kits.lock", "in the test"):  # as by somebody else's command
        assert main(words) == 2
    assert "Another command writes kits to" in one_error(said(capfd)[1])
    (tmp_path / "other").mkdir()
    assert main([*words[:-1], str(tmp_path / "other"), "--keys-at-sites"]) == 0
    lines = said(capfd)[1].splitlines()
    assert lines[0].startswith("wrote 1 kit to")
    assert lines[1] == "  bank: run intarsia federation join bank there, and sign bank.request here"
    assert len(lines) == 4


def test_renew_says_what_is_to_be_done_with_what_it_wrote(tmp_path, monkeypatch, capfd):
    from types import SimpleNamespace

    from intarsia.cli import kits as kit_commands

    def renewed(name, host, folder, which, known):
        assert (name, folder, known[0]) == ("credit", tmp_path, "server")
        return folder / "renewed", datetime(2031, 5, 1, tzinfo=UTC)

    module = SimpleNamespace(renewed=renewed)
    monkeypatch.setattr(kit_commands, "over_nvflare", lambda name: module)
    described(tmp_path)
    words = ["federation", "renew", str(tmp_path / "federation.toml"), "-o", str(tmp_path)]
    for name in ("bank", "telecom"):
        (tmp_path / name / "startup").mkdir(parents=True)
    assert main([*words, "bank"]) == 0
    first, *others = said(capfd)[1].splitlines()
    assert first.endswith("renewed, valid until 2031-05-01")
    assert [line.split(":")[0].strip() for line in others] == [str(tmp_path / "renewed" / "bank")]
    assert main(words) == 0
    assert len(said(capfd)[1].splitlines()) == 4  # the server and the sites whose kits are here
    assert main([*words, "retailer"]) == 2
    assert "so that its key is the site's alone" in one_error(said(capfd)[1])
    assert main([*words, "bnak"]) == 2
    assert "The federation has no 'bnak'; use 'bank'" in one_error(said(capfd)[1])


def test_a_ping_measures_calls_of_both_sizes_to_sites_that_write_no_error(tmp_path):
    (tmp_path / "site.toml").write_text('[site]\nname = "one"\n')
    lines = sites.Lines({"one": site_in(tmp_path)})
    path = federation_server.ping(tmp_path, ("one",), RetryPolicy())
    federation_server.run_in_job(tmp_path, federation_server.PING, lines)
    found = json.loads(path.read_text())["seconds"]
    assert {name: len(one) for name, one in found.items()} == {"small": 30, "8 MB": 30}
    assert all(one > 0 for one in found["small"])
    assert not (tmp_path / "errors.log").exists()
    assert not (tmp_path / "log").exists()
    assert [one.state for one in federation_server.list_statuses(tmp_path)] == ["finished"]


@pytest.mark.skipif(importlib.util.find_spec("nvflare") is not None, reason="nvflare is there")
def test_without_the_library_the_commands_say_what_to_install(tmp_path, capfd):
    (tmp_path / "federation.toml").write_text(GOOD)
    assert main(["federation", "provision", str(tmp_path / "federation.toml")]) == 2
    assert 'run pip install "intarsia[nvflare]".' in one_error(said(capfd)[1])


def test_a_server_whose_port_is_in_use_says_so(tmp_path, capfd):
    pytest.importorskip("nvflare")
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        kit = tmp_path / "server"
        (kit / "startup").mkdir(parents=True)
        service = {"service": {"target": f"localhost:{port}"}, "admin_port": port}
        (kit / "startup" / "fed_server.json").write_text(json.dumps({"servers": [service]}))
        (kit / "local").mkdir()
        known = {"sites": ["bank"], "patience": {}}
        (kit / "local" / "federation.json").write_text(json.dumps(known))
        assert main(["federation", "server", str(kit)]) == 2
    assert f"Port {port} of this machine cannot be used" in said(capfd)[1]


@pytest.mark.parametrize("size", [20_000_000, 20_000_001])
def test_a_log_that_has_grown_long_is_begun_anew(tmp_path, size):
    pytest.importorskip("psutil")
    from intarsia.deployment import process as kit_process

    log = tmp_path / "audit.log"
    log.write_bytes(bytes(size))
    with log.open("ab", buffering=0) as file:  # as the library has it open
        kit_process._put_by(log)
        file.write(b"next")
    put_by, kept = tmp_path / "audit.log.1", size == 20_000_000
    assert log.stat().st_size == (size + 4 if kept else 4)
    assert put_by.is_file() == (not kept)
    assert kept or put_by.stat().st_size == size
    kit_process._put_by(tmp_path / "none.log")


def test_the_folders_of_the_newest_jobs_stay(tmp_path):
    pytest.importorskip("psutil")
    from intarsia.deployment import process as kit_process

    jobs = [tmp_path / f"cd46f980-21d4-4605-a065-203a415aaf{number:02d}" for number in range(23)]
    others = [tmp_path / "local", tmp_path / "cd46f980", tmp_path / "storage"]
    for path in (*jobs, *others):
        (path / "app").mkdir(parents=True)
    for at, path in enumerate(reversed(jobs)):  # the first is the newest
        os.utime(path, (1000 + at, 1000 + at))
    kit_process._clear_jobs(tmp_path, ())
    assert [path for path in jobs if path.exists()] == jobs[:20]
    assert all(path.exists() for path in others)
    kit_process._clear_jobs(tmp_path / "nowhere", ())


@pytest.mark.parametrize("words", [[], ["--json", "--sites"]], ids=["text", "json"])
def test_status_names_the_sites_that_are_connected_and_those_that_are_not(
    tmp_path, monkeypatch, capsys, words
):
    from types import SimpleNamespace

    from intarsia.cli import federation as federation_commands
    from intarsia.deployment import process as kit_process

    kit = tmp_path / "server"
    (kit / "admin").mkdir(parents=True)
    (kit / "local").mkdir()
    federation_file.finish_kits(
        described(tmp_path), dict.fromkeys(("server", "bank", "telecom", "retailer"), kit)
    )
    jobs = Jobs()
    jobs.answering, jobs.close = ("bank", "telecom"), lambda: None
    monkeypatch.setattr(kit_process, "is_running", lambda kit: True)
    module = SimpleNamespace(Jobs=lambda kit: jobs)
    monkeypatch.setattr(federation_commands, "over_nvflare", lambda name: module)
    assert main(["federation", "status", str(kit), *words]) == 0
    shown = capsys.readouterr()
    if words:
        assert json.loads(shown.out)["sites"] == {"bank": True, "telecom": True, "retailer": False}
    else:
        assert shown.err.splitlines() == [
            "server is running",
            "  connected: bank, telecom",
            "  not connected: retailer",
        ]


def test_status_is_shown_again_when_it_changes(tmp_path, monkeypatch, capfd):
    from intarsia.cli import federation as federation_commands

    kit = tmp_path / "server"
    (kit / "local").mkdir(parents=True)
    federation_file.finish_kits(
        described(tmp_path), dict.fromkeys(("server", "bank", "telecom", "retailer"), kit)
    )
    looked = []

    def pause(seconds):
        looked.append(seconds)
        if len(looked) == 2:
            own = asked(kit / "local")
            (own / "silent.json").write_text('["post"]')
        if len(looked) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(federation_commands.time, "sleep", pause)
    assert main(["federation", "status", str(kit), "--watch", "--no-sites"]) == 0
    assert said(capfd)[1].splitlines() == [
        "server is not running",
        "server is not running",
        "  four: waiting, round 0, 0 bytes (waits for sites that do not answer: 'post')",
    ]


def test_no_run_of_a_server_that_is_stopped_is_shown_as_running(tmp_path, monkeypatch, capfd):
    kit = tmp_path / "server"
    (kit / "local").mkdir(parents=True)
    federation_file.finish_kits(
        described(tmp_path), dict.fromkeys(("server", "bank", "telecom", "retailer"), kit)
    )
    asked(kit / "local")
    turns(kit / "local", Jobs())
    words = ["federation", "status", str(kit), "--no-sites"]
    assert main(words) == 3
    assert said(capfd)[1].splitlines() == [
        "server is not running",
        "  four: waiting, round 0, 0 bytes (goes on when the server is started)",
    ]
    assert main([*words, "--json"]) == 3
    assert json.loads(said(capfd)[0])["runs"][0]["state"] == "waiting"
    monkeypatch.setattr("intarsia.deployment.process.is_running", lambda _: True)
    assert main(words) == 0
    assert said(capfd)[1].splitlines() == ["server is running", "  four: running, round 0, 0 bytes"]


def test_logs_say_what_happened_and_which_log_is_empty(tmp_path, capfd, monkeypatch):
    pytest.importorskip("psutil")
    from intarsia.deployment.process import KitProcess

    kit = tmp_path / "bank"
    (kit / "local").mkdir(parents=True)
    (kit / "local" / "site.toml").write_text('[site]\nname = "bank"\n')
    words = ["federation", "logs", str(kit), "-n", "1"]
    assert main(words) == 2
    assert "bank has no log; nothing was started in it" in one_error(said(capfd)[1])
    with monkeypatch.context() as patched:  # logrotate moved them
        patched.setattr("intarsia.deployment.process.is_running", lambda _: True)
        assert main(words) == 2
    assert "bank has no log; it runs, and nothing happened since" in one_error(said(capfd)[1])
    process = KitProcess(kit, list)
    process.note("started")
    process.note("stopped\x1b[2J")
    (kit / "log.txt").touch()
    assert main(words) == 0
    out, err = said(capfd)
    (line,) = out.splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d stopped\S*\[2J", line)
    assert "\x1b" not in line
    assert err.splitlines() == [str(kit / "events.log"), f"{kit / 'log.txt'}: empty"]


def described(folder):
    path = folder / "federation.toml"
    path.write_text(GOOD)
    return federation_file.load(path)
