"""The sentences about a site's log say in plain words what its answers held."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest

import sites
from intarsia.core.disclosure import contents
from intarsia.deployment import run as remote_running
from intarsia.deployment import site_log
from intarsia.engines import codec
from intarsia.engines.remote.wire import Answer, Call, SealedReply
from intarsia.engines.sums.sealed import SealedRecord
from intarsia.engines.sums.secure import CombinationRecord, PieceRecord
from intarsia.training.registry import algorithm_named
from plain_words import check_kinds, check_plain
from tests.algorithms.test_disclosure import shared_sends
from tests.deployment.test_policy import job
from tests.deployment.test_run import HASTY, NAMES, set_up

RECORDS = (SealedRecord, CombinationRecord, PieceRecord)


@pytest.fixture(scope="module", params=["masked", pytest.param("plain", marks=pytest.mark.slow)])
def made(request, tmp_path_factory):
    """A run over four sites, and what the bank was asked and answered."""
    folder, calls = tmp_path_factory.mktemp(request.param), []

    def line(client, number, data, deliver):
        answer = deliver(data)
        if data and client == "bank":
            calls.append((codec.decode(data, Call), answer))
        return answer

    lines = sites.Lines(set_up(folder, plain=request.param == "plain"), line)
    description = job(folder, request.param, rounds=2)
    remote_running.run_over(description, lines, NAMES, folder / "out", patience=HASTY)
    return folder / "bank", request.param, calls


def answered(calls):
    """Return how often each kind left by function and reply: sealed, and in the clear."""
    sends = (*shared_sends(), *algorithm_named("hyfdca").disclosure.sends)
    replies = {one.function.name: one.reply for one in sends}
    found = {"sealed": Counter(), "clear": Counter()}
    for call, answer in calls:
        if call.kind not in ("ask", "sum"):
            continue
        reply = replies[call.function.rsplit(".", 1)[-1]]
        body = codec.decode(answer, Answer).body
        value = codec.decode(body, SealedReply, reply, *RECORDS)
        kinds = set()
        if isinstance(value, SealedReply):
            kinds |= {("sealed", contents(reply)[name]) for name in value.fields}
            kinds |= {("clear", contents(reply)[name]) for name in value.counts}
        else:
            sent = [name for name, one in vars(value).items() if one is not None]
            kinds |= {("clear", contents(reply)[name]) for name in sent}
        for how, words in kinds:
            found[how][words] += 1
    return found


def test_the_sentences_say_what_the_answers_held(made):
    folder, mode, calls = made
    said_ = site_log.sentences(site_log.load(folder))
    check_plain(said_)
    found = answered(calls)
    assert bool(found["sealed"]) == (mode == "masked")
    check_kinds(said_[4], {words: (times, times) for words, times in found["sealed"].items()})
    check_kinds(said_[5], {words: (times, times) for words, times in found["clear"].items()})
    assert ("random masks that only keys of clients take off" in said_[4]) == (mode == "masked")
    rows = "each row's dual variable" in said_[9]
    assert rows == (mode == "plain")
    assert not any("kept no words" in one for one in said_)


def test_the_set_up_is_told_as_this_table_and_these_settings_have_it(made):
    folder, mode, _ = made
    said_ = site_log.sentences(site_log.load(folder))[3]
    assert "names of columns (once)" in said_
    assert "classes of labels (once)" in said_
    assert "levels of text columns" not in said_  # the table has numbers alone
    assert ("means and scales of columns" in said_) == (mode == "plain")  # site.toml allows none
    assert "ids of rows stood there as they are" in said_


def test_what_is_wrong_with_a_log_ends_in_one_dot(made):
    folder, _, _ = made
    log = site_log.load(folder)
    faults = ("Entry 3 is missing.", "The last line was cut in the middle.")
    altered = replace(log, chain=replace(log.chain, faults=faults))
    first = site_log.sentences(altered)[0]
    assert first.endswith("Entry 3 is missing. The last line was cut in the middle.")


def test_what_was_opened_is_told_in_the_words_of_what_left(made):
    folder, mode, _ = made
    log = site_log.load(folder)
    assert bool(log.opened) == (mode == "masked")
    assert all(log.contents["", total] for _, total, _ in log.opened)


def test_the_log_of_an_older_version_says_that_it_has_no_words(made):
    folder, _, _ = made
    log = site_log.load(folder)
    entries = json.loads(json.dumps([*log.chain.entries]))
    for entry in entries:
        for one in entry.get("left", ()):
            del one["contents"]
        for one in entry.get("opened", ()):
            for term in one["of"]:
                del term["contents"]
    older = site_log.SiteLog(log.name, replace(log.chain, entries=tuple(entries)))
    found = site_log.sentences(older)
    check_plain(found)
    assert "values that its version kept no words for" in found[5]
