"""A site's log says what left and what was opened, is checked, and held against others' logs."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import shutil
import tracemalloc
from collections import Counter

import pytest

import four_sites
import sites
from command_line import one_error, said
from intarsia.cli.main import main
from intarsia.core.block import Labels
from intarsia.core.schema import Holding, Schema
from intarsia.deployment import client_setup, site_log
from intarsia.deployment import run as remote_running
from intarsia.deployment.client_folder import (
    HEAD,
    LOG,
    check_log,
    log_of,
    note_put_back,
    refusals_in,
)
from intarsia.deployment.client_setup import READ, site_in
from intarsia.engines import codec
from intarsia.engines.remote.wire import Answer, Call, SealedReply
from intarsia.engines.sums.sealed import SealedRecord
from intarsia.engines.sums.secure import CombinationRecord, PieceRecord
from intarsia.errors import IntarsiaError, SiteError
from intarsia.results.chained_log import START, ChainedLog, read_chain
from tests.deployment.test_policy import job
from tests.deployment.test_run import HASTY, NAMES, set_up
from tests.results.test_chained_log import chain_of

RECORDS = (SealedRecord, CombinationRecord, PieceRecord)


class Recording:
    """Keeps all that a site was sent and what it answered."""

    def __init__(self):
        self.calls = []

    def __call__(self, client, number, data, deliver):
        answer = deliver(data)
        if data:
            self.calls.append((client, codec.decode(data, Call), answer))
        return answer


@pytest.fixture(scope="module", params=["masked", pytest.param("plain", marks=pytest.mark.slow)])
def made(request, tmp_path_factory):
    """A run over four sites, with all that crossed."""
    folder = tmp_path_factory.mktemp(request.param)
    found, line = set_up(folder, plain=request.param == "plain"), Recording()
    lines = sites.Lines(found, line)
    description = job(folder, request.param, rounds=3)
    remote_running.run_over(description, lines, NAMES, folder / "out", patience=HASTY)
    return folder, request.param, line.calls


@pytest.fixture
def copies(made, tmp_path):
    """The sites' folders of a masked run, to be altered."""
    folder, mode, _ = made
    if mode == "plain":
        pytest.skip("nothing was opened")
    for name in NAMES:
        shutil.copytree(folder / name, tmp_path / name)
    return tmp_path


def logs(folder):
    return [site_log.load(folder / name) for name in NAMES]


# -- what it says


def test_every_call_stands_in_the_log_in_its_order(made):
    folder, _, calls = made
    for log in logs(folder):
        mine = [call for client, call, _ in calls if client == log.name]
        told = [(one["exchange"], one["kind"], one["function"]) for one in log.of("answered")]
        assert told == [(call.sequence, call.kind, call.function) for call in mine]
        assert [tuple(one["asked"]) for one in log.of("answered")] == [
            tuple(sorted(call.asked)) for call in mine
        ]
        assert log.whole
        assert [one["job"] for one in log.of("let in")] == ["four"]
        assert not log.of("refused")


def test_what_left_is_what_the_answers_hold(made):
    folder, mode, calls = made
    by_call = {
        (log.name, one["exchange"]): one for log in logs(folder) for one in log.of("answered")
    }
    checked = Counter()
    for client, call, answer in calls:
        entry = by_call[client, call.sequence]
        body = codec.decode(answer, Answer).body
        assert entry["bytes"] == len(body)
        if call.kind == "sum" and mode == "masked":
            reply = codec.decode(body, SealedReply, *RECORDS)
            left = {one["field"].split(".")[1]: one for one in entry["left"]}
            assert left.keys() == {*reply.fields, *reply.counts}
            assert all(left[name]["protection"] == "masked" for name in reply.fields)
            assert all(left[name]["protection"].startswith("none") for name in reply.counts)
            checked["sealed"] += len(reply.fields)
        elif call.kind in ("ask", "sum"):
            assert {one["protection"].partition(":")[0] for one in entry["left"]} <= {"none"}
            checked["clear"] += 1
    assert checked["clear"]
    assert (checked["sealed"] > 30) == (mode == "masked")


def test_what_was_opened_is_what_the_calls_held(made):
    folder, mode, calls = made
    opened = 0
    for log in logs(folder):
        for one in log.of("answered"):
            opened += len(one.get("opened", ()))
            if one["kind"] == "open":
                assert [field["to"] for field in one["opened"]] == ["server"]
    assert (opened > 20) == (mode == "masked")
    if mode == "masked":
        asked = sum(call.kind == "open" for _, call, _ in calls)
        assert asked == sum(
            one["kind"] == "open" for log in logs(folder) for one in log.of("answered")
        )


def test_no_value_of_the_table_stands_in_the_log(made):
    folder, _, _ = made
    for name in NAMES:
        log = (folder / name / LOG).read_text()
        rows = (folder / f"{name}.csv").read_text().splitlines()[1:]
        values = {value for row in rows for value in row.split(",")[1:3] if len(value) > 6}
        assert len(values) > 30
        assert not [value for value in values if value in log]


def test_a_call_that_comes_again_and_one_that_is_refused_are_in_the_log(tmp_path):
    found = set_up(tmp_path, plain=False)

    def line(client, number, data, deliver):
        if client == "bank" and number == 6:
            deliver(data[:-1] + bytes([data[-1] ^ 1]))
            deliver(data)
        return deliver(data)

    lines = sites.Lines(found, line)
    remote_running.run_over(job(tmp_path, rounds=1), lines, NAMES, tmp_path / "out", patience=HASTY)
    log = site_log.load(tmp_path / "bank")
    assert [one["error"] for one in log.of("refused")] == ["CodecError"]
    (again,) = log.of("repeated")
    first = [one for one in log.of("answered") if one["exchange"] == again["exchange"]]
    assert [one["digest"] for one in first] == [again["digest"]]


def test_who_calls_a_site_and_is_not_the_server_stands_in_its_log(tmp_path):
    refusals_in(tmp_path)(SiteError("'shop' called this site, which answers only the server."))
    (entry,) = read_chain(tmp_path / LOG, tmp_path / HEAD).entries
    assert entry["sentence"].startswith("'shop' called this site")
    assert "'shop' called" in (tmp_path / "errors.log").read_text()


def test_an_answer_leaves_only_when_it_is_in_the_log(tmp_path, monkeypatch):
    found = set_up(tmp_path, plain=False)

    def full(self, entry):
        raise OSError("no room")

    monkeypatch.setattr(ChainedLog, "append", full)
    with pytest.raises(SiteError, match="could not read or write a file"):
        remote_running.run_over(
            *(job(tmp_path, rounds=1), sites.Lines({n: site_in(tmp_path / n) for n in found})),
            *(NAMES, tmp_path / "out"),
            patience=HASTY,
        )


# -- sentences


def test_ten_sentences_say_what_left_a_site(made):
    folder, mode, _ = made
    for log in logs(folder):
        said_ = site_log.sentences(log)
        assert len(said_) == 10
        assert "no entry was altered and none is missing" in said_[0]
        assert f"four (hyfdca, {mode}" in said_[1]
        assert ("with keys of pairs" in said_[1]) == (mode == "masked")
        assert [one["trust"] for one in log.of("let in")] == ["pairs"]
        if mode == "masked":
            assert "Under random masks" in said_[4]
        else:
            assert "Under no protection left" in said_[4]
        rows = [key for key in log.left if key[2] in ("samples", "selected")]
        clear = [key for key in rows if key[3].startswith("none")]
        assert (": nothing;" in said_[9]) == (not clear)
        assert bool(clear) == (mode == "plain")


def test_the_log_says_which_jobs_began_when_and_on_how_many_rows(made, capfd):
    folder, mode, calls = made
    for log in logs(folder):
        (job,) = log.jobs
        began = log.of("began")[0]
        assert (job["job"], job["algorithm"], job["at"]) == ("four", "hyfdca", began["at"])
        assert job["sums"].startswith(mode)
        own = [call for client, call, _ in calls if client == log.name]
        body = next(call.body for call in own if call.function == client_setup.SETTLE)
        schemas = codec.decode(body, client_setup.Settled, Schema, Holding, Labels).schemas
        rows = {part: len(one.holdings[log.name].samples) for part, one in schemas.items()}
        assert job["rows"] == rows
    assert main(["audit", str(folder / NAMES[-1])]) == 0
    table = said(capfd)[0].partition(f"Jobs that began at {NAMES[-1]}")[2]
    (line,) = [one for one in table.splitlines() if job["at"][:10] in one]
    assert [word for word in line.split() if word.isdigit()] == [
        str(rows[part]) for part in ("train", "test")
    ]


def test_a_job_that_was_let_in_and_did_not_begin_is_not_counted_as_begun(tmp_path):
    """Another site refused it; older logs do not say how many rows took part."""
    (tmp_path / "bank").mkdir()
    own = log_of(tmp_path / "bank")
    for run in ("one", "two", "one"):
        told = {"job": "old", "algorithm": "cocoa", "mode": "plain", "digest": "d", "ids": "plain"}
        own.append({"event": "let in", "run": run, **told})
    own.append({"event": "began", "run": "one", "job": "old", "digest": "d"})
    log = site_log.load(tmp_path / "bank")
    assert [(one["run"], one["sums"], one["rows"]) for one in log.jobs] == [("one", "plain", {})]
    assert site_log.sentences(log)[1] == (
        "0 jobs waited for the owner's decision, and 1 job began: old (cocoa, plain); 1 job more "
        "came no further than to the table."
    )


def test_of_the_jobs_of_a_year_a_sentence_names_the_newest(tmp_path):
    (tmp_path / "bank").mkdir()
    own = log_of(tmp_path / "bank")
    for night in range(12):
        told = {"run": f"{night}", "job": f"n{night}", "digest": "d"}
        own.append({"event": "let in", "algorithm": "cocoa", "mode": "plain", "ids": "no", **told})
        own.append({"event": "began", **told})
    log = site_log.load(tmp_path / "bank")
    named = [f"n{night} (cocoa, plain)" for night in range(2, 12)]
    assert site_log.sentences(log)[1] == (
        "0 jobs waited for the owner's decision, and 12 jobs began: 2 earlier ones, "
        f"{', '.join(named[:-1])} and {named[-1]}."
    )
    assert len(log.jobs) == 12  # the table and `--json` have all


def test_the_command_begins_with_ten_sentences_and_then_tables(made, capfd):
    folder, _, _ = made
    assert main(["audit", str(folder / "bank")]) == 0
    out, err = said(capfd)
    assert err == ""
    places = [out.index(f"{number}. ") for number in range(1, 11)]
    assert places == sorted(places)
    assert out.index("What left bank") > places[-1]
    assert main(["audit", str(folder / "bank"), "--json"]) == 0
    content = json.loads(said(capfd)[0])["sites"][0]
    assert len(content["sentences"]) == 10
    assert content["faults"] == []
    assert main(["audit", str(folder / "out")]) == 0
    out = said(capfd)[0]
    assert out.index("10. ") < out.index("What the server could read")


def test_what_left_by_one_job_is_told_apart_from_the_others(copies, capfd):
    alone = site_log.load(copies / "bank")
    later = log_of(copies / "bank")
    told = {"run": "feed", "digest": "d"}
    about = {"algorithm": "cocoa", "mode": "plain", "ids": "plain", "rows": {"train": 7}}
    for event in ("let in", "began"):
        later.append({"event": event, "job": "another", **told, **about})
    whole, four, other = (
        site_log.load(copies / "bank", job=name) for name in ("", "four", "another")
    )
    assert (four.left, four.opened) == (alone.left, alone.opened)
    assert [[one["job"] for one in log.jobs] for log in (whole, four, other)] == [
        ["four", "another"],
        ["four"],
        ["another"],
    ]
    assert (other.left, other.opened) == (Counter(), Counter())
    count = len(whole.chain.entries)
    words = f"has {count:,} entries, of which 2 are of the job another, from "
    assert words in site_log.sentences(other)[0]
    assert main(["audit", str(copies / "bank"), "--job", "another"]) == 0
    out = " ".join(said(capfd)[0].split())
    assert words in out
    assert "hyfdca" not in out
    assert main(["audit", str(copies / "bank"), "--job", "for"]) == 2
    assert "--job 'for' asked nothing of 'bank'; use 'four'" in one_error(said(capfd)[1])
    assert main(["audit", str(copies / "out"), "--job", "four"]) == 2
    assert "--job with kits" in one_error(said(capfd)[1])


def test_a_folder_that_was_put_back_says_that_something_may_be_missing(copies, capfd):
    note_put_back(copies / "bank", 0.0, "2026-11-23T04:54:58+00:00", ())
    assert main(["audit", str(copies / "bank")]) == 0
    out = " ".join(said(capfd)[0].split())
    assert "it was put back as of 2026-11-23T04:54, and what left between the two is not in" in out


# -- altered, cut, and compared


def test_the_command_checks_a_log(copies, capfd):
    path = copies / "bank" / LOG
    text = path.read_text()
    for changed, words in (
        (text.replace('"function":"hyfdca.enter"', '"function":"hyfdca.other"'), "was altered"),
        ("".join(text.splitlines(keepends=True)[:-3]), "the last 3 are missing"),
        ("".join(text.splitlines(keepends=True)[3:]), "Entries 1 to 3 are missing"),
    ):
        assert changed != text
        path.write_text(changed)
        assert main(["audit", str(copies / "bank")]) == 1
        assert words in " ".join(said(capfd)[0].split())


def test_a_head_that_was_noted_proves_what_stood_before_it(copies, capfd):
    noted = str(site_log.load(copies / "bank").chain.head)
    assert main(["audit", str(copies / "bank"), "--noted", noted]) == 0
    capfd.readouterr()
    assert main(["audit", str(copies / "bank"), "--noted", f"3:{START}"]) == 1
    assert "Entry 3 is not the one that was noted" in " ".join(said(capfd)[0].split())
    assert main(["audit", str(copies / "bank"), "--noted", "x"]) == 2
    assert "is no head of a log" in one_error(said(capfd)[1])


def test_logs_of_sites_agree(copies, capfd):
    totals = [dict(site_log._totals(one)) for one in logs(copies)]
    shared = [one.keys() & other.keys() for one in totals for other in totals if one is not other]
    assert sum(map(len, shared)) > 40
    assert site_log.differences(logs(copies)) == []
    assert main(["audit", *(str(copies / name) for name in NAMES)]) == 0
    assert "The logs of bank, telecom, retailer, post agree." in said(capfd)[0]


def test_a_copy_of_two_files_beside_each_other_is_a_log_and_none_counts_twice(copies, capfd):
    for name in NAMES[1:]:
        (copies / name / LOG).rename(copies / name / "site.log")
        (copies / name / "site.toml").unlink()
    given = [str(copies / name) for name in (*NAMES, NAMES[0], NAMES[1])]
    assert main(["audit", "--json", *given]) == 0
    out, err = said(capfd)
    assert [one["site"] for one in json.loads(out)["sites"]] == [*NAMES]
    assert "The logs of bank, telecom, retailer, post agree." in err
    path = copies / "telecom" / "site.log"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-3]))
    assert main(["audit", *given]) == 1
    assert "the last 3 are missing" in " ".join(said(capfd)[0].split())


def test_two_logs_of_one_site_that_differ_are_told(copies, tmp_path, capfd):
    other = tmp_path / "copy" / "telecom"
    shutil.copytree(copies / "telecom", other)
    rewritten(other, lambda one: one if one.get("exchange", 0) < 20 else None)
    given = [str(copies / "telecom"), str(other)]
    assert main(["audit", *given]) == 2
    assert "Two logs of 'telecom'" in one_error(said(capfd)[1])
    shutil.rmtree(other)
    shutil.copytree(copies / "telecom", other)  # as it was before more calls came
    log_of(copies / "telecom").append({"event": "refused", "error": "CodecError", "sentence": ""})
    assert main(["audit", "--json", *given]) == 0
    (one,) = json.loads(said(capfd)[0])["sites"]
    assert one["entries"] == len(read_chain(copies / "telecom" / LOG).entries)


def test_logs_of_months_are_checked_and_compared_in_little_memory(tmp_path):
    entry = {"event": "answered", "run": "r", "round": 1, "kind": "sum", "part": "train"}
    field = {"field": "Change.weights", "layout": "entry", "protection": "masked", "contents": "x"}
    more = {"function": "cocoa.ascent", "asked": ["bank"], "left": [field] * 50}
    lines = [*chain_of([{**entry, **more, "exchange": number} for number in range(1000)])]
    for name in ("bank", "post"):
        (tmp_path / name / LOG).parent.mkdir(parents=True)
        (tmp_path / name / LOG).write_bytes(b"".join(lines))
        head = f"1000:{hashlib.sha256(lines[-1][:-1]).hexdigest()}"
        (tmp_path / name / HEAD).write_text(head)
    tracemalloc.start()
    try:
        found = [site_log.load(tmp_path / name) for name in ("bank", "post")]
        apart = site_log.differences(site_log.each_once([*found, found[0]]))
        said_ = [site_log.sentences(one) for one in found]
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (apart, [one.whole for one in found]) == ([], [True, True])
    assert "has 1,000 entries" in said_[1][0]
    assert found[0].left.total() == 50_000
    assert most < len(b"".join(lines)) / 4


def rewritten(folder, change):
    """Write a site's log anew, right in itself, with each entry changed or (None) left out."""
    entries = read_chain(folder / LOG).entries
    kept = [found for one in entries if (found := change(dict(one))) is not None]
    for one in kept:
        for key in ("n", "before"):
            del one[key]
    (folder / LOG).write_bytes(b"".join(chain_of(kept)))
    (folder / HEAD).unlink()
    log = ChainedLog(folder / LOG, folder / HEAD)
    log.append({"event": "refused", "error": "CodecError", "sentence": ""})
    assert site_log.load(folder).whole


def test_a_total_that_two_sites_opened_and_is_not_the_same_is_found(copies, capfd):
    def change(entry):
        text = json.dumps(entry)
        for one in entry.get("opened", ()):
            for cell in (cell for term in one["of"] for cell in term["cells"].values()):
                text = text.replace(cell["digest"], "0" * 32)
        return json.loads(text)

    rewritten(copies / "telecom", change)
    found = site_log.differences(logs(copies))
    assert any("telecom opened different totals" in one for one in found)
    assert main(["audit", *(str(copies / name) for name in NAMES)]) == 1
    assert "opened different totals" in said(capfd)[0]


def test_sites_that_were_told_of_other_clients_are_found(copies):
    def change(entry):
        if entry.get("function") == "hyfdca.send_zeros":
            entry["asked"] = entry["asked"][:-1]
        return entry

    rewritten(copies / "telecom", change)
    assert any("were told different things" in one for one in site_log.differences(logs(copies)))


def told_of_another_experiment(tmp_path, mode):
    """Begin a run in which the bank is told of another number of rounds than the others."""
    found = set_up(tmp_path, plain=mode == "plain")

    def line(client, number, data, deliver):
        call = codec.decode(data, Call)
        if client == "bank" and call.function == READ:
            tree = json.loads(call.body)
            tree["experiment"]["rounds"] = 900
            data = codec.encode(dataclasses.replace(call, body=json.dumps(tree).encode()))
        return deliver(data)

    given = job(tmp_path, mode, rounds=1), sites.Lines(found, line), NAMES, tmp_path / "out"
    with contextlib.nullcontext() if mode == "plain" else pytest.raises(IntarsiaError):
        remote_running.run_over(*given, patience=HASTY)


@pytest.mark.parametrize("mode", ["plain", "masked"])
def test_sites_that_were_told_of_another_experiment_are_found(tmp_path, mode, monkeypatch):
    """In the mode plain no key keeps their sums apart, and so it is of tables without text."""
    monkeypatch.setattr(client_setup, "check_levels", lambda encoding, prove: None)
    told_of_another_experiment(tmp_path, mode)
    said = [one for one in site_log.differences(logs(tmp_path)) if "another experiment" in one]
    assert len(said) == 3
    assert all(one.startswith("bank and ") for one in said)


def test_a_site_that_was_told_of_another_experiment_begins_no_job(tmp_path):
    """The proofs of levels are of the experiment, too."""
    told_of_another_experiment(tmp_path, "masked")
    assert [
        entry for log in logs(tmp_path) for entry in log.of("began") if log.name == "bank"
    ] == []
    assert "has a level that no client" in (tmp_path / "bank" / "errors.log").read_text()


def test_a_log_whose_end_was_cut_off_with_its_head_is_missed_by_the_others(copies):
    rewritten(copies / "telecom", lambda one: one if one.get("exchange", 0) < 20 else None)
    found = site_log.differences(logs(copies))
    assert any("a part of telecom, whose log lacks that exchange" in one for one in found)


def test_folders_of_a_run_and_of_a_site_are_not_mixed(made, capfd):
    folder, _, _ = made
    assert main(["audit", str(folder / "bank"), str(folder / "out")]) == 2
    assert "are no sites' kits" in one_error(said(capfd)[1])
    assert main(["audit", str(folder / "bank"), "--client", "bank"]) == 2
    assert "--client is for a run's folder, and --noted for one site's kit; leave" in one_error(
        said(capfd)[1]
    )
    assert main(["audit", str(folder / "out"), "--noted", f"1:{START}"]) == 2
    one_error(said(capfd)[1])


def test_a_site_that_answered_nothing_has_no_log(tmp_path, capfd):
    (tmp_path / "site.toml").write_text('[site]\nname = "bank"\nplain = true\n')
    assert main(["audit", str(tmp_path)]) == 2
    assert "does not exist; give" in one_error(said(capfd)[1])
    (tmp_path / HEAD).write_text(f"1284:{START}\n")
    assert main(["audit", str(tmp_path)]) == 2
    assert "says that it had 1,284 entries: it was removed or moved" in one_error(said(capfd)[1])


def test_the_kit_of_a_site_is_its_folder_too(copies):
    kit = copies / "kits" / "bank"
    kit.mkdir(parents=True)
    (copies / "bank").rename(kit / "local")
    for path in (kit, kit / "local"):
        assert site_log.load(site_log.site_of(path)).name == "bank"
    assert site_log.site_of(copies) is None


@pytest.mark.slow
def test_networks_leave_the_same_kind_of_log(tmp_path):
    pytest.importorskip("torch")
    described = four_sites.write_tables("flic", tmp_path)
    found = {}
    for name, text in described.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "site.toml").write_text(four_sites.site_toml(name, text, tmp_path))
        found[name] = site_in(tmp_path / name)
    description = four_sites.experiment_of("flic", described, tmp_path, rounds=1)
    over = description, sites.Lines(found), four_sites.NAMES, tmp_path / "out"
    remote_running.run_over(*over, patience=HASTY)
    kept = [site_log.load(tmp_path / name) for name in four_sites.NAMES]
    assert site_log.differences(kept) == []
    assert all(one.whole and one.left for one in kept)


def test_a_site_whose_log_does_not_verify_says_so_when_it_starts(tmp_path):
    assert check_log(tmp_path) == ""
    kept = log_of(tmp_path)
    for number in range(3):
        kept.append({"event": "answered", "exchange": number})
    assert check_log(tmp_path) == ""
    assert not (tmp_path / "errors.log").exists()
    path = tmp_path / LOG
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0] + lines[2])
    for fault in ("Entry 2 is missing", "and the log is not"):
        sentence = check_log(tmp_path)
        assert f"does not verify ({'site.head is there, ' * (fault[0] == 'a')}{fault}" in sentence
        assert sentence in (tmp_path / "errors.log").read_text()
        path.unlink(missing_ok=True)
