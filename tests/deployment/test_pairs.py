"""Runs over sites where each two have a key: who agrees on keys with whom, and what is refused."""

from __future__ import annotations

import dataclasses
import threading
import time

import pytest

import four_sites
import sites
from departures import Departing, with_total
from intarsia.core.block import Labels
from intarsia.core.schema import Holding, Schema
from intarsia.deployment import run as remote_running
from intarsia.deployment.client_setup import MEET, SETTLE, Settled, site_in
from intarsia.engines import codec
from intarsia.engines.communication_log import RECORDS
from intarsia.engines.remote.caller import RetryPolicy
from intarsia.engines.remote.wire import Answer, Call, SealedReply
from intarsia.errors import (
    AbsentError,
    IntarsiaError,
    KeyMaterialError,
    PolicyError,
    SiteError,
    StaleError,
    TamperedError,
)
from intarsia.experiment import config as experiment
from intarsia.privacy.keys.keyring import KeyFolder
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.training import run as running
from intarsia.training.registry import ALGORITHMS
from tests.deployment.test_run import HASTY, NAMES, described, history, set_up

FEDAVG = ALGORITHMS["fedavg"]
OPTIONS = FEDAVG.hyperparameters(loss="logistic", regularisation=0.1)


def over(tmp_path, found, line=None, out="out", **privacy):
    settings = described(tmp_path, "masked")
    settings = dataclasses.replace(
        settings, privacy=dataclasses.replace(settings.privacy, **privacy)
    )
    return remote_running.run_over(
        settings, sites.Lines(found, line), NAMES, tmp_path / out, patience=HASTY
    )


def changed(function, client, change):
    """Return a line on which the body of a step of one client's is changed."""

    def line(name, number, data, deliver):
        call = codec.decode(data, Call) if data else None
        if call is not None and name == client and call.function == function:
            data = codec.encode(dataclasses.replace(call, body=change(call.body)))
        return deliver(data)

    return line


@pytest.mark.parametrize(
    ("algorithm", "mode"),
    [
        ("hyfdca", "masked"),
        pytest.param("hyfem", "masked", marks=pytest.mark.slow),
        pytest.param("hyfdca", "ckks", marks=pytest.mark.slow),
        pytest.param("flic", "masked", marks=pytest.mark.slow),
        pytest.param("femam", "masked", marks=pytest.mark.slow),
    ],
)
def test_keys_of_pairs_and_one_key_come_to_the_same_bits(tmp_path, monkeypatch, algorithm, mode):
    if algorithm != "hyfdca":
        pytest.importorskip("torch")
    if mode == "ckks":
        pytest.importorskip("tenseal")
        monkeypatch.setattr(modes, "_LONG", 4)
    found = []
    described = four_sites.write_tables(algorithm, tmp_path)
    for given in ({"trust": "pairs"}, {"trust": "clients"}, {"colluders": 1}):
        tree = four_sites.tree(algorithm, described, tmp_path, mode=mode)
        tree["privacy"] |= given
        tree["experiment"] |= {"out": str(tmp_path / str(len(found)))}
        running.run(experiment.from_dict(tree, tmp_path))
        found.append(history(tmp_path / str(len(found))))
    # what crosses is as long, but for ciphertexts, whose bytes vary
    for lines in found if mode == "ckks" else ():
        for line in lines:
            del line["bytes"]
    assert found[0] == found[1] == found[2]


def test_sites_with_ids_and_one_without_meet_under_pseudonyms(tmp_path):
    """Its rows are its own, and it has nothing to show of others'."""
    set_up(tmp_path, plain=False)
    path = tmp_path / "retailer" / "site.toml"
    path.write_text(path.read_text().replace('id = "id"', 'exclude = ["id"]'))
    found = {name: site_in(tmp_path / name) for name in NAMES}
    settings = described(tmp_path, "masked", rounds=1)
    alignment = dataclasses.replace(settings.alignment, ids="pseudonyms")
    settings = dataclasses.replace(settings, alignment=alignment)
    result = remote_running.run_over(
        settings, sites.Lines(found), NAMES, tmp_path / "out", patience=HASTY
    )
    assert result.rounds == 1


def test_a_site_refuses_one_key_of_all_unless_its_owner_allows_it(tmp_path):
    with pytest.raises(PolicyError, match=r"one key of all clients \(\[site\] trust"):
        over(tmp_path, set_up(tmp_path, plain=False), trust="clients")
    said = (tmp_path / "bank" / "errors.log").read_text()
    assert 'set privacy.trust = "pairs" in the experiment, or trust = "clients" at the site' in said


def test_a_site_without_the_cards_of_all_says_what_to_do(tmp_path):
    found = set_up(tmp_path, plain=False)
    KeyFolder(tmp_path / "keys" / "post").cards_file.unlink()
    with pytest.raises(KeyMaterialError, match="At client 'post'"):
        over(tmp_path, found)
    said = (tmp_path / "post" / "errors.log").read_text()
    assert "intarsia keys rotate" in said
    assert len(said.strip().splitlines()) == 1


def test_a_site_with_another_s_identity_is_refused(tmp_path):
    set_up(tmp_path, plain=False)
    path = tmp_path / "post" / "site.toml"
    path.write_text(path.read_text().replace("keys/post", "keys/bank"))
    found = {name: site_in(tmp_path / name) for name in NAMES}
    with pytest.raises(KeyMaterialError, match="At client 'post'"):
        over(tmp_path, found)


def fewer_owners(body):
    """Return the schemas as if another site had lost half its rows: cells have fewer owners."""
    settled = codec.decode(body, Settled, Schema, Holding, Labels)
    train = settled.schemas["train"]
    held = dict(train.holdings)
    one = held["telecom"]
    count = len(one.samples) // 2
    held["telecom"] = dataclasses.replace(
        one, samples=one.samples[:count], labelled=one.labelled[:count]
    )
    schemas = {**settled.schemas, "train": Schema(held, train.labels)}
    return codec.encode(dataclasses.replace(settled, schemas=schemas))


def test_a_server_that_tells_one_site_of_other_owners_is_refused(tmp_path):
    """It would choose with whom the site's parts are added up."""
    found = set_up(tmp_path, plain=False)
    with pytest.raises(TamperedError, match="At client '"):
        over(tmp_path, found, changed(SETTLE, "bank", fewer_owners))
    assert "told of other samples" in (tmp_path / "bank" / "errors.log").read_text()


@pytest.mark.parametrize("harm", ["left out", "of another", "replayed"])
def test_greetings_that_the_server_changes_are_refused(tmp_path, harm):
    found, kept = set_up(tmp_path, plain=False), {}

    def change(body):
        received = dict(codec.decode(body))
        if harm == "left out":
            del received["telecom"]
        elif harm == "of another":
            received["telecom"] = received["retailer"]
        else:  # of the run before, whose table was another
            kept.setdefault("before", received["telecom"])
            received["telecom"] = kept["before"]
        return codec.encode(received)

    line = changed(MEET, "bank", change)
    if harm == "replayed":
        over(tmp_path, found, line, out="before")
        text = (tmp_path / "post.csv").read_text().splitlines(keepends=True)
        (tmp_path / "post.csv").write_text("".join(text[:-9]))
        found = {name: site_in(tmp_path / name) for name in NAMES}
    with pytest.raises(KeyMaterialError if harm == "left out" else TamperedError, match="'bank'"):
        over(tmp_path, found, line)


def test_a_site_that_sends_no_greeting_is_named(tmp_path):
    def line(name, number, data, deliver):
        answer = deliver(data)
        if data and name == "retailer" and codec.decode(data, Call).function == SETTLE:
            found = codec.decode(answer, Answer)
            answer = codec.encode(dataclasses.replace(found, body=codec.encode(None)))
        return answer

    with pytest.raises(SiteError, match="'retailer' sent no greeting"):
        over(tmp_path, set_up(tmp_path, plain=False), line)


def test_before_the_greetings_a_site_takes_no_call_of_a_client_function(tmp_path):
    """Its sums would not be sealed."""
    said = []

    def line(name, number, data, deliver):
        call = codec.decode(data, Call) if data else None
        if call is not None and call.function == MEET and name == "bank":
            asked = dataclasses.replace(
                call, kind="sum", function="preparation.send_column_sums", body=codec.encode(None)
            )
            said.append(codec.decode(deliver(codec.encode(asked)), Answer))
            raise StaleError("enough")
        return deliver(data)

    with pytest.raises((StaleError, IntarsiaError)):
        over(tmp_path, set_up(tmp_path, plain=False), line)
    assert [one.error for one in said] == ["StaleError"]


def test_a_total_for_other_owners_is_refused():
    """Who is named an owner would have the key: a total under it could be made by others."""
    victim = "r0c0"
    made = Departing(FEDAVG, OPTIONS, victim, trust="pairs")
    made.rounds(2)
    call = made.of("fedavg.local_descent")[-1]
    message = made.message(call)
    terms = message.w.value.cells
    everyone = tuple(sorted(made.blocks))
    changed = tuple(
        tuple(dataclasses.replace(one, owners=everyone) for one in some) for some in terms
    )
    assert made.ask(call, body=codec.encode(with_total(message, "w", cells=changed))).error == (
        "RefusedError"
    )
    assert made.ask(call, body=codec.encode(message)).error == ""


# ---- an attempt that was given up


def pieces(answer, field="w"):
    """Return the record of the pieces in a site's answer."""
    reply = codec.decode(codec.decode(answer, Answer).body, SealedReply, *RECORDS)
    return reply.fields[field]


def test_an_attempt_that_was_given_up_stays_given_up():
    """One site answers too late; the round begins again without it, to the bits of one key."""
    patience = RetryPolicy(
        seconds=60.0, deadline=2.0, pause=0.001, probe=0.05, absent="continue", quorum=2
    )
    late, states = "r1c1", {}
    for trust in ("pairs", "clients"):
        hold, heard = threading.Event(), {}
        made = Departing(*(FEDAVG, OPTIONS, "r0c0"), trust=trust, patience=patience)
        engine, victim = made.made.engine, "r0c0"
        usual = made._line

        def line(client, number, data, deliver, *, usual=usual, hold=hold, heard=heard):
            call = codec.decode(data, Call) if data else None
            away = call is not None and client == late and call.function == "fedavg.local_descent"
            if away and not hold.is_set():
                heard.setdefault("call", data)
                time.sleep(0.01)
                raise TimeoutError
            if not data and client == late and not hold.is_set():
                raise TimeoutError
            return usual(client, number, data, deliver)

        made.made.lines.fault = line
        server = sites.begun(made.made, FEDAVG, OPTIONS)
        engine.begin_round(1)
        with pytest.raises(AbsentError) as absent:
            FEDAVG.round(server, engine, engine.key())
        assert engine.without(absent.value)
        server, _ = FEDAVG.round(server, engine, engine.key())
        states[trust] = engine.reveal(server.w)
        if trust == "clients":
            continue
        given_up, again = made.of("fedavg.local_descent", victim)
        assert late in given_up.asked
        assert late not in again.asked
        # the late part comes after all: it leaves the site, which has heard of nothing else
        hold.set()
        answer = made.made.lines.sites[late].handle(heard["call"])
        assert codec.decode(answer, Answer).error == ""
        # but nobody who was in the attempt opens its total, to the server or to itself
        answers = {
            client: one
            for client, call, one in made.calls
            if call.sequence == given_up.sequence and call.function == given_up.function
        }
        answers[late] = answer
        totals = engine._locked
        collector = [totals.restored(pieces(one).value) for one in answers.values()]
        cells = collector[0].terms[0][1].pieces
        for cell in list(cells)[:2]:
            parts = [
                one.terms[0][1].pieces[cell] for one in collector if cell in one.terms[0][1].pieces
            ]
            total = totals.adder.add(*parts)
            whole = dataclasses.replace(collector[0].terms[0][1], pieces={cell: total})
            record = totals.record(type(collector[0])(((1.0, whole),)))
            found = made.open(record, [cell])
            assert found.error == "RefusedError"
    for one, other in zip(*(states[trust] for trust in ("pairs", "clients")), strict=True):
        assert (one == other).all()
