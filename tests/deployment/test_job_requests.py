"""A job waits until the owner of a site decides; a decision is for what the job asked for."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import sites
from command_line import one_error, said
from intarsia.cli.main import main
from intarsia.data.labels import LabelSettings
from intarsia.deployment import run as remote_running
from intarsia.deployment.client_setup import READ, site_in, site_of_kit
from intarsia.deployment.job_requests import Requests, asked_of, digest_of
from intarsia.deployment.policy import Policy
from intarsia.deployment.site_log import load, sentences
from intarsia.engines import codec
from intarsia.engines.remote.caller import RetryPolicy
from intarsia.engines.remote.wire import Answer, Call
from intarsia.errors import CheckpointError, ExperimentError, PendingError, PolicyError
from intarsia.experiment import config as experiment
from intarsia.results import run_folder
from intarsia.training import run as running
from intarsia.training.registry import choose
from tests.deployment.test_policy import job
from tests.deployment.test_run import HASTY, NAMES, described, history, set_up

SOON = RetryPolicy(seconds=60.0, deadline=6.0, pause=0.02, probe=0.2)
BANK = "bank/local"


class Stopped(Exception):  # noqa: N818 - not an error of anybody
    """The end of the server's process."""


def with_owner(folder, text='approve = "each"'):
    """Return sites, of which the bank lies in a kit and has an owner who decides."""
    found = set_up(folder, plain=False)
    (folder / "kits" / "bank").mkdir(parents=True)
    kit = folder / "kits" / BANK
    (folder / "bank").rename(kit)
    path = kit / "site.toml"
    text = f"{path.read_text()}\n[policy]\n{text}\n"
    path.write_text(text.replace('"../', f'"{folder}/'))
    return {**found, "bank": site_in(kit)}, kit


def over(found, description, out, patience=HASTY, line=None, resume=False):
    lines = sites.Lines(found, line)
    if resume:
        return remote_running.resume_over(out, lines, patience=patience)
    return remote_running.run_over(description, lines, NAMES, out, patience=patience)


def ask(found, description, out, resume=False):
    """Run until the bank has said that its owner is to decide."""
    asked = threading.Event()

    def line(client, number, data, deliver):
        if client == "bank" and asked.is_set():
            raise Stopped
        answer = deliver(data)
        if client == "bank" and data:
            assert codec.decode(answer, Answer).error == "PendingError"
            asked.set()
        return answer

    with pytest.raises(Stopped):
        over(found, description, out, line=line, resume=resume)


def decide(kit, *words):
    assert main(["federation", words[0], str(kit.parent), *words[1:]]) == 0


def waiting(kit):
    return [one for one in Requests(kit).all() if one.state == "waiting"]


def test_a_job_waits_shows_what_it_asks_for_and_goes_on_once_it_is_approved(tmp_path, capfd):
    found, kit = with_owner(tmp_path)
    description = dataclasses.replace(job(tmp_path, rounds=2), labels=LabelSettings(task="binary"))
    with pytest.raises(PendingError, match=r"Site 'bank': the owner has not decided .*'four'"):
        over(found, description, tmp_path / "out", SOON)
    log = load(kit)
    assert [one["event"] for one in log.chain.entries] == ["asked"]  # however often it was asked
    assert not (kit / "errors.log").exists()
    waits = json.loads((tmp_path / "out" / run_folder.PENDING).read_text())
    assert waits.keys() == {"bank"}
    (one,) = waiting(kit)
    capfd.readouterr()
    assert main(["federation", "requests", str(kit.parent)]) == 0
    shown = said(capfd)[1]
    for text in (
        "hyfdca, 2 rounds at most",
        "masked, least_clients 3",
        'safe from the server with 16 clients (trust = "pairs")',
        "clients in a round: all",
        "clients that are away: are waited for",
        "each row's dual variable;",
        "labels: task binary",
        "counts for networks; totals of linear models",
        "no noise",
        "bank, post, retailer, telecom",
        "columns: x0, x1",
        f"digest: {one.digest}",
        f"intarsia federation approve {kit.parent} {one.short}",
    ):
        assert text in shown, text
    assert len(shown) < 2500
    assert not re.search(r"[a-z][A-Z]", shown.replace(str(tmp_path), ""))  # names of classes
    assert main(["federation", "requests", str(kit.parent), "--details"]) == 0
    detailed = said(capfd)[1]
    for text in ("each row's dual variable (DualPoint.alpha)", "SystemShare.system"):
        assert text in detailed, text
    for text in (*one.asked.server_reads, *one.asked.clients_open):
        assert text in detailed
        assert text.partition(" (")[0] in shown
    decide(kit, "approve", one.short)
    files = [path.stat().st_mode & 0o777 for path in (kit / "requests").iterdir()]
    assert files == [0o600, 0o600]
    result = over(found, None, tmp_path / "out", resume=True)
    assert not (tmp_path / "out" / run_folder.PENDING).exists()
    folders = {name: tmp_path / name for name in NAMES} | {"bank": kit}
    secrets = sites.in_run_of(tmp_path / "out", folders)
    expected = running.run(description, out=tmp_path / "one", secrets=secrets)
    assert result.certificate == expected.certificate
    assert history(tmp_path / "out") == history(tmp_path / "one")
    capfd.readouterr()
    assert main(["federation", "requests", str(kit.parent), "--json"]) == 0
    (content,) = json.loads(said(capfd)[0])
    assert (content["state"], content["why"]) == ("let in", "the owner approved it")


def test_the_job_goes_on_within_the_call_where_the_owner_decides_in_time(tmp_path):
    found, kit = with_owner(tmp_path)

    def line(client, number, data, deliver):
        answer = deliver(data)
        if client == "bank" and number == 4:
            decide(kit, "approve")
        return answer

    assert over(found, job(tmp_path, rounds=1), tmp_path / "out", line=line).rounds == 1


def test_a_denial_ends_the_job_with_its_reason_and_an_approval_takes_it_back(tmp_path):
    found, kit = with_owner(tmp_path)
    ask(found, job(tmp_path, rounds=1), tmp_path / "out")
    decide(kit, "deny", "--reason", "ask the\nethics board\x1b[2J")
    denied = load(kit).of("denied")  # at once, whatever the server does then
    assert [(one["job"], one["reason"]) for one in denied] == [
        ("four", "ask the ethics board\\x1b[2J")
    ]
    assert sentences(load(kit))[1].endswith("0 jobs began: none; the owner denied four.")
    with pytest.raises(PolicyError) as caught:
        over(found, None, tmp_path / "out", resume=True)
    assert "denied the job" in str(caught.value)
    assert str(caught.value).endswith("ask the ethics board\\x1b[2J.")
    assert "ethics board" in (kit / "errors.log").read_text()
    decide(kit, "approve", waiting(kit)[0].short if waiting(kit) else "four")
    assert over(found, None, tmp_path / "out", resume=True).rounds == 1


def test_a_denial_ends_a_job_that_runs(tmp_path):
    found, kit = with_owner(tmp_path, 'approve = "all"')

    def line(client, number, data, deliver):
        if client == "bank" and number == 20:
            decide(kit, "deny", "four", "--reason", "enough")
        return deliver(data)

    with pytest.raises(PolicyError, match=r"denied the job .*: enough"):
        over(found, job(tmp_path), tmp_path / "out", line=line)
    kept = len([one for one in load(kit).of("answered") if one["kind"] != "stage"])
    with pytest.raises(PolicyError, match="denied the job"):
        over(
            {n: site_in(tmp_path / n) for n in NAMES if n != "bank"} | {"bank": site_in(kit)},
            None,
            tmp_path / "out",
            resume=True,
        )
    assert len([one for one in load(kit).of("answered") if one["kind"] != "stage"]) == kept


def changed(data, **experiment):
    """Return a call with another job in it."""
    call = codec.decode(data, Call)
    tree = json.loads(call.body)
    tree["experiment"] |= experiment
    return dataclasses.replace(call, body=json.dumps(tree).encode())


def test_a_changed_job_asks_again(tmp_path):
    """A server that has one job approved and then sends another in the same run."""
    found, kit = with_owner(tmp_path)
    ask(found, job(tmp_path, rounds=1), tmp_path / "out")
    decide(kit, "approve")

    def line(client, number, data, deliver):
        if client == "bank" and data:
            found = deliver(codec.encode(changed(data, rounds=900)))
            assert codec.decode(found, Answer).error == "PendingError"
            raise Stopped
        return deliver(data)

    with pytest.raises(Stopped):
        over(found, None, tmp_path / "out", line=line, resume=True)
    (again,) = waiting(kit)
    assert again.asked.rounds == 900


def test_a_second_set_up_in_a_run_that_was_let_in_is_refused(tmp_path):
    found, kit = with_owner(tmp_path)
    ask(found, job(tmp_path, rounds=1), tmp_path / "out")
    decide(kit, "approve")
    first, refused = [], []

    def line(client, number, data, deliver):
        if client != "bank" or not data:
            return deliver(data)
        call = codec.decode(data, Call)
        if call.function == READ:
            first.append(data)
        if call.sequence == 3 and not refused:
            other = changed(first[0], rounds=900)
            again = dataclasses.replace(call, function=READ, body=other.body, base=2)
            refused.append(codec.decode(deliver(codec.encode(again)), Answer))
        return deliver(data)  # the job that was let in goes on

    over(found, None, tmp_path / "out", line=line, resume=True)
    (answer,) = refused
    assert answer.error == "RefusedError"
    assert "a run is set up once" in (kit / "errors.log").read_text()
    assert list(waiting(kit)) == []


@pytest.mark.parametrize("absent", ["wait", "continue"])
def test_a_refusal_is_told_while_another_owner_has_not_decided(tmp_path, absent):
    found, kit = with_owner(tmp_path)
    path = tmp_path / "telecom" / "site.toml"
    path.write_text(f'{path.read_text()}\n[policy]\nalgorithms = ["fedavg"]\n')
    found["telecom"] = site_in(tmp_path / "telecom")
    asked, refused, after = threading.Event(), threading.Event(), []

    def line(client, number, data, deliver):
        if client == "bank" and refused.is_set():
            after.append(number)
            assert len(after) < 5, "the server waits on"
        if client == "telecom":
            asked.wait(60)
        answer = deliver(data)
        {"bank": asked, "telecom": refused}.get(client, threading.Event()).set()
        return answer

    patience = dataclasses.replace(SOON, deadline=60.0, pause=0.2, absent=absent, quorum=4)
    with pytest.raises(PolicyError, match=r"^Site 'telecom': the owner allows fedavg"):
        over(found, job(tmp_path), tmp_path / "out", patience, line)
    assert waiting(kit)


def test_each_run_asks_for_itself_and_listed_ones_do_not(tmp_path):
    found, kit = with_owner(tmp_path)
    for out in ("one", "two"):
        ask(found, job(tmp_path, rounds=1), tmp_path / out)
        decide(kit, "approve")
    first, second = Requests(kit).all()
    assert first.digest == second.digest
    toml = kit / "site.toml"
    toml.write_text(toml.read_text().replace('"each"', '"listed"'))
    found["bank"] = site_in(kit)
    over(found, job(tmp_path, rounds=1), tmp_path / "three")  # as one that was approved before
    ask(found, job(tmp_path, rounds=2), tmp_path / "four")
    text = toml.read_text()
    for number, listed in enumerate(("hyfdca", waiting(kit)[0].digest)):
        toml.write_text(text.replace('"listed"', f'"listed"\nlisted = ["{listed}"]'))
        found["bank"] = site_in(kit)
        over(found, job(tmp_path, rounds=2), tmp_path / f"listed {number}")
    whys = [one.why for one in Requests(kit).all() if one.why]
    assert "the owner approved the same job before" in whys
    assert "hyfdca is listed" in whys


def test_the_owner_sees_that_a_job_which_waits_would_be_refused_all_the_same(tmp_path, capfd):
    """`jobs_total` is used up by the first; a job like it waits as ever."""
    found, kit = with_owner(tmp_path, 'approve = "each"\njobs_total = 1')
    ask(found, job(tmp_path, rounds=1), tmp_path / "first")
    decide(kit, "approve")
    over(found, job(tmp_path, rounds=1), tmp_path / "first", resume=True)
    ask(found, job(tmp_path, rounds=1), tmp_path / "again")
    capfd.readouterr()
    assert main(["federation", "requests", str(kit.parent)]) == 0
    assert "refused" not in said(capfd)[1]
    ask(found, job(tmp_path, rounds=2), tmp_path / "other")
    (other,) = [one for one in waiting(kit) if one.asked.rounds == 2]
    why = "it is refused even where it is approved: the owner allows no more than 1 that differ"
    for words in (["requests", str(kit.parent)], ["approve", str(kit.parent), other.digest]):
        assert main(["federation", *words]) == 0
        assert said(capfd)[1].count(why) == 1
    with pytest.raises(PolicyError, match=r"jobs_total"):
        over(found, job(tmp_path, rounds=2), tmp_path / "other", resume=True)
    toml = kit / "site.toml"
    toml.write_text(toml.read_text().replace("jobs_total = 1", "jobs_total = 2"))
    assert main(["federation", "requests", str(kit.parent)]) == 0
    shown = said(capfd)[1]
    assert why not in shown
    assert "jobs that differ, of those that began: 1 of 2" in shown


def test_a_denial_of_one_run_says_nothing_of_others_and_no_approval_of_another_job_counts(tmp_path):
    known = Requests(tmp_path)
    described = job_asked(tmp_path)
    for run, approved in (("aa", True), ("bb", False)):
        with pytest.raises(PendingError):
            known.admit(run, described, Policy(approve="each"))
        known.decide(known.find(""), approved=approved)
    listed = Policy(approve="listed")
    assert known.admit("aa", described, listed).why == "the owner approved it"
    assert known.admit("cc", described, listed).why == "the owner approved the same job before"
    with pytest.raises(PolicyError):
        known.admit("bb", described, listed)
    other = dataclasses.replace(described, clients=("bank", "mallory"))
    with pytest.raises(PendingError):
        known.admit("dd", other, listed)


def test_only_what_the_options_need_is_asked_for(tmp_path):
    pytest.importorskip("torch")
    set_up(tmp_path)
    asked = {}
    for start in ("common", "matched"):
        description = job(tmp_path, algorithm={"name": "hyfem", "start": start})
        algorithm, options = choose(description)
        asked[start] = asked_of(description, algorithm, options, {}, NAMES, ())
        needed = algorithm.disclosure.needed(options)
        kinds = {one.reply.__name__ for one in needed if one.call == "ask"}
        found = {
            one.rpartition("(")[2][:-1] for one in asked[start].server_reads if "of each" in one
        }
        assert found == kinds
    assert {*asked["common"].server_reads} < {*asked["matched"].server_reads}


def test_in_the_mode_plain_the_server_reads_each_clients_part_of_what_is_added_up(tmp_path):
    set_up(tmp_path)
    read = {}
    for mode in ("plain", "masked"):
        description = job(tmp_path, mode)
        algorithm, options = choose(description)
        read[mode] = asked_of(description, algorithm, options, {}, NAMES, ()).server_reads
    for one in algorithm.disclosure.needed(options):
        words = f"of each client ({one.reply.__name__})"
        assert any(line.endswith(words) for line in read["plain"])
        assert any(line.endswith(words) for line in read["masked"]) == (one.call == "ask")
        for field in one.reveals:
            assert any(f"({one.reply.__name__}.{field})" in line for line in read["masked"])


def job_asked(folder, **changes):
    set_up(folder)
    description = job(folder)
    algorithm, options = choose(description)
    tree = experiment.to_dict(description)
    found = asked_of(description, algorithm, options, tree, NAMES, ("x0", "x1"))
    return dataclasses.replace(found, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"experiment": {"other": 1}},
        {"columns": ("x0",)},
        {"clients": ("bank", "telecom", "mallory")},
        {"server_reads": ("Model.w (of each client)",)},
        {"epsilon": 0.5},
    ],
)
def test_all_that_a_job_asks_for_is_in_its_digest(tmp_path, changes):
    asked = job_asked(tmp_path)
    assert digest_of(asked) != digest_of(dataclasses.replace(asked, **changes))
    assert digest_of(asked) == digest_of(job_asked_again(asked))


def job_asked_again(asked):
    return type(asked)(**json.loads(json.dumps(dataclasses.asdict(asked))))


def test_a_request_or_a_decision_that_was_altered_is_refused(tmp_path):
    known, asked = Requests(tmp_path), job_asked(tmp_path)
    with pytest.raises(PendingError):
        known.admit("aa", asked, Policy(approve="each"))
    (path,) = (tmp_path / "requests").glob("*.json")
    text = path.read_text()
    path.write_text(text.replace('"hyfdca"', '"fedavg"', 1))
    with pytest.raises(CheckpointError, match="its digest is another"):
        known.admit("aa", asked, Policy(approve="each"))
    path.write_text(text)
    known.decide(known.find(""), approved=True)
    decision = path.with_suffix(".decision")
    for wrong in ("{", '{"approved": 1}', decision.read_text().replace(digest_of(asked), "0" * 64)):
        decision.write_text(wrong)
        with pytest.raises(CheckpointError, match="decide again"):
            known.admit("aa", asked, Policy(approve="each"))


def test_which_request_is_meant_is_told_by_digest_or_name_or_is_the_only_one(tmp_path, capfd):
    found, kit = with_owner(tmp_path)
    assert main(["federation", "approve", str(kit.parent)]) == 2
    assert "No job waits for the owner's decision" in one_error(said(capfd)[1])
    for rounds in (1, 2):
        ask(found, job(tmp_path, rounds=rounds), tmp_path / f"out{rounds}")
    for words in ((), ("four",), ("no such",)):
        capfd.readouterr()
        assert main(["federation", "deny", str(kit.parent), *words]) == 2
        assert "requests, and one is needed" in one_error(said(capfd)[1])
    decide(kit, "deny", waiting(kit)[0].digest[:16])
    decide(kit, "approve", "four")
    assert sorted(one.state for one in Requests(kit).all()) == ["approved", "denied"]


def test_the_commands_want_the_kit_of_a_site(tmp_path, capfd):
    for command in ("requests", "approve", "deny"):
        assert main(["federation", command, str(tmp_path)]) == 2
        assert "holds no site.toml" in one_error(said(capfd)[1])


WAITS = """
import sys
sys.path[:0] = {paths!r}
from pathlib import Path
from intarsia.deployment.client_setup import site_in
site = site_in(Path({kit!r}))
data = Path({call!r}).read_bytes()
while True:
    Path({answer!r} + ".new").write_bytes(site.handle(data))
    Path({answer!r} + ".new").rename({answer!r})
"""


def test_waiting_outlives_a_site_that_is_killed(tmp_path):
    """Asked in a process that is killed with -9; approved while none runs; let in by the next."""
    found, kit = with_owner(tmp_path)
    calls = []

    def line(client, number, data, deliver):
        if client == "bank" and data:
            calls.append(data)
            raise Stopped
        return deliver(data)

    with pytest.raises(Stopped):
        over(found, job(tmp_path, rounds=1), tmp_path / "out", line=line)
    (tmp_path / "call").write_bytes(calls[0])
    paths = [str(Path(remote_running.__file__).parents[2])]
    places = {"kit": str(kit), "call": str(tmp_path / "call"), "answer": str(tmp_path / "answer")}
    process = subprocess.Popen([sys.executable, "-c", WAITS.format(paths=paths, **places)])
    seen = threading.Event()
    while not (tmp_path / "answer").exists():
        assert process.poll() is None
        seen.wait(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert len(waiting(kit)) == 1
    decide(kit, "approve")
    lines = {**found, "bank": site_in(kit)}
    assert over(lines, None, tmp_path / "out", resume=True).rounds == 1
    assert load(kit).whole
    assert [one["event"] for one in load(kit).chain.entries][:3] == ["asked", "let in", "answered"]


def test_a_run_of_the_supervisor_shows_who_waits_and_is_tried_again(tmp_path):
    from intarsia.deployment import server as federation_server

    found, kit = with_owner(tmp_path)
    folder = tmp_path / "server"
    description = job(tmp_path, rounds=1)
    federation_server.request(folder, description, NAMES, SOON)
    own = folder / "runs" / "four"
    (own / "job.id").write_text("job-1")
    seen = []

    def line(client, number, data, deliver):
        if client == "bank" and number == 5:
            seen.append(federation_server.list_statuses(folder)[0])
        return deliver(data)

    with pytest.raises(PendingError):
        federation_server.run_in_job(folder, "four", sites.Lines(found, line))
    assert seen[0].state == "running"
    assert "Site 'bank': the owner has not decided" in seen[0].problem
    failure = json.loads((own / "failure.json").read_text())
    assert (failure["error"], failure["again"]) == ("PendingError", True)
    asked = json.loads((own / "request.json").read_text())
    asked["patience"] = vars(HASTY)
    (own / "request.json").write_text(json.dumps(asked))
    decide(kit, "deny")
    with pytest.raises(PolicyError):
        federation_server.run_in_job(folder, "four", sites.Lines(found))
    status = federation_server.list_statuses(folder)[0]
    assert status.state == "failed"
    assert status.problem.startswith("Site 'bank': the owner denied the job")
    decide(kit, "approve", "four")
    federation_server.resume_run(folder, "four")
    federation_server.run_in_job(folder, "four", sites.Lines(found))
    assert federation_server.list_statuses(folder)[0].state == "finished"


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("[policy]", "[polcy]", "[polcy] is not a table"),
        ("[site]", "[site", "not valid TOML"),
        ('name = "bank"', 'name = "bnak"', "is bank's but its site.toml has the name 'bnak'"),
    ],
)
def test_a_site_whose_settings_are_wrong_since_its_start_ends_the_run_and_says_why(
    tmp_path, old, new, why
):
    """It answered nothing, and the server asked again and again for ever."""
    found, kit = with_owner(tmp_path, 'approve = "all"')
    right = (kit / "site.toml").read_text()
    (kit / "site.toml").write_text(right.replace(old, new))
    found["bank"] = site_of_kit(kit)
    with pytest.raises(ExperimentError, match=r"At client 'bank'.*the site's settings are wrong"):
        over(found, described(tmp_path, "masked"), tmp_path / "out")
    assert why in (kit / "errors.log").read_text()
    (kit / "site.toml").write_text(right)
    found["bank"] = site_of_kit(kit)
    over(found, described(tmp_path, "masked"), tmp_path / "out", resume=True)
    assert (tmp_path / "out" / "result.json").is_file()
