"""A client that claims rows by pseudonyms of an earlier run: it read their labels.

All clients see the public index sets, and pseudonyms under one key are the same in each run. So a
client may say that it has rows whose ids it does not know, with columns of its own making. It owns
these rows then like any other owner, and HyFDCA's owners of a row open its dual, whose sign is the
label. Over sites each two show each other that they have the ids of their common rows.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import sites
from federations import BINARY, started, table
from intarsia.algorithms.hyfdca.newton import client
from intarsia.core.block import Block
from intarsia.core.schema import Schema
from intarsia.deployment import client_setup
from intarsia.deployment import run as remote_running
from intarsia.deployment.client_setup import site_in
from intarsia.engines.remote import site
from intarsia.errors import RefusedError, TamperedError
from intarsia.experiment import config as experiment
from intarsia.experiment import entity_alignment
from intarsia.experiment.entity_alignment import Names
from intarsia.privacy.entity_matching.pseudonyms import drawn_key, pseudonyms, shown, subkey
from intarsia.training.registry import ALGORITHMS
from key_folders import exchanged

HYFDCA = ALGORITHMS["hyfdca"]
KEY = drawn_key()  # of both clients, for their ids


ROWS = {"bank": 60, "shop": 20}


@pytest.fixture
def run(tmp_path):
    """Return what runs an experiment over two sites; the shop has a third of the bank's rows."""
    rng = np.random.default_rng(0)
    exchanged(tmp_path, tuple(ROWS), "two")
    for name, count in ROWS.items():
        rows = [f"person {place},{rng.normal():.4f}" for place in range(count)]
        header, more = "id,age", ""
        if name == "bank":
            header, more = "id,income,label", 'label = "label"'
            rows = [f"{row},{'yes' if rng.random() < 0.5 else 'no'}" for row in rows]
        (tmp_path / f"{name}.csv").write_text("\n".join([header, *rows]))
        (tmp_path / name).mkdir()
        (tmp_path / name / "site.toml").write_text(
            f'[site]\nname = "{name}"\nkey = "../keys/{name}/shared.key"\n'
            f'[table]\npath = "../{name}.csv"\nid = "id"\n{more}\n'
            "[policy]\nleast_changed = 0\n"  # which a site that departs sets
        )
    tree = {
        "experiment": {"rounds": 1, "yardsticks": False},
        "algorithm": {"name": "hyfdca", "loss": "logistic", "regularisation": 0.1},
        "alignment": {"ids": "pseudonyms"},
        "privacy": {"mode": "masked", "key": "shared.key"},
        "client": [{"name": name, "path": f"{name}.csv"} for name in ROWS],
    }
    described = experiment.from_dict(tree, tmp_path)

    def over(out):
        found = {name: site_in(tmp_path / name) for name in ROWS}
        given = described, sites.Lines(found), tuple(ROWS), tmp_path / out
        return remote_running.run_over(*given, patience=sites.HASTY)

    return over


def test_over_sites_a_client_that_claims_rows_by_pseudonyms_is_refused(run, monkeypatch):
    seen, settle, table_of = {}, client_setup.Work._settle, client_setup.table_of

    def looked(work, *given):
        found = settle(work, *given)
        if work._settings.name == "shop":
            held = [schema.holdings["bank"].samples for schema in work.schemas.values()]
            seen["bank"] = np.concatenate(held)
        return found

    def claiming(job):
        own, names, written = table_of(job)
        if own.client != "shop" or "bank" not in seen:
            return own, names, written
        rows, known = np.resize(np.arange(ROWS["shop"]), ROWS["bank"]), names.ids["shop"]
        own = replace(own.take(rows), samples=seen["bank"])
        return own, Names({"shop": seen["bank"]}, {"shop": known[rows]}), known[rows]

    monkeypatch.setattr(client_setup.Work, "_settle", looked)
    monkeypatch.setattr(client_setup, "table_of", claiming)
    run("earlier")
    assert len(seen["bank"]) == ROWS["bank"]
    with pytest.raises(TamperedError, match="At client 'bank' in meet: The greeting of 'shop'"):
        run("claiming")


@pytest.mark.parametrize("works", [False, True])
def test_rows_without_ids_are_nobody_else_s(run, tmp_path, works, monkeypatch):
    """Names of these are made under the shared key: whoever has it makes those of all clients."""
    settings = tmp_path / "bank" / "site.toml"
    settings.write_text(settings.read_text().replace('id = "id"', 'exclude = ["id"]'))
    table_of, made_up = client_setup.table_of, []

    def claiming(job):
        own, names, written = table_of(job)
        if own.client != "shop":
            return own, names, written
        key = entity_alignment.key_in_file(job.alignment, "rows")
        made = np.array([f"bank:{row}" for row in range(ROWS["bank"])])
        guessed = pseudonyms(made, subkey(key, "rows of bank"))
        made_up[:] = guessed.tolist()
        rows = np.resize(np.arange(ROWS["shop"]), ROWS["bank"])
        own = replace(own.take(rows), samples=guessed, generated=True)
        return own, Names({"shop": guessed}, {"shop": made}), made

    monkeypatch.setattr(client_setup, "table_of", claiming)
    if not works:
        with pytest.raises(RefusedError, match="At client 'bank' in settle"):
            run("claiming")
        (said,) = tmp_path.glob("bank/**/errors.log")
        words = "rows of this site, whose table has no ids, are said to be rows of 'shop' too"
        assert words in said.read_text()
        return
    monkeypatch.setattr(client_setup, "_check_alone", lambda *_: None)
    read, message_of = {}, site._Run._message

    def looked(run, call, sent, message, place, state):
        opened, extra = message_of(run, call, sent, message, place, state)
        if run._client == "shop" and sent.function.name == "gather_point":
            names = place.block("train").samples.tolist()
            read.update(zip(names, np.sign(opened.alpha[0]).tolist(), strict=True))
        return opened, extra

    monkeypatch.setattr(site._Run, "_message", looked)
    run("claiming")
    rows = [line.split(",") for line in (tmp_path / "bank.csv").read_text().splitlines()[1:]]
    labels = {name: 2.0 * (row[-1] == "yes") - 1 for name, row in zip(made_up, rows, strict=True)}
    assert len(read) > 40
    assert all(read[name] == labels[name] for name in read)


def test_two_sites_show_the_ids_of_their_common_rows_once(run, monkeypatch):
    seen = []

    def looked(ids, key):
        seen.append(sorted(ids.tolist()))
        return shown(ids, key)

    monkeypatch.setattr(client_setup, "shown", looked)
    run("out")
    both = sorted(f"person {place}" for place in range(ROWS["shop"]))
    assert seen == [both, both]


@pytest.mark.parametrize(
    "others", [["ab", "c"], ["abc", ""], ["a", "bd"], ["bc", "a"], ["a", "bc", "d"], ["a"]]
)
def test_what_shows_ids_is_the_same_for_the_same_ids_in_their_order_alone(others):
    own = shown(np.array(["a", "bc"]), KEY)
    assert own == shown(np.array(["a", "bc"], "U7"), KEY)
    assert own != shown(np.array(others), KEY)
    assert own != shown(np.array(["a", "bc"]), drawn_key())
    assert shown(np.array([1, 23]), KEY) == shown(np.array([1, 23], np.uint8), KEY)
    assert shown(np.array([1, 23]), KEY) != shown(np.array([12, 3]), KEY)
    assert shown(np.zeros(0, "U4"), KEY) == b""


def test_without_keys_of_pairs_a_client_reads_labels_of_rows_that_it_claims(monkeypatch):
    x, y = table(60, 4)
    ids = pseudonyms(np.array([f"person {place}" for place in range(60)]), KEY)
    bank = Block(ids, ("a", "b", "c", "d"), x, y)
    other = pseudonyms(np.array([f"customer {place}" for place in range(20)]), KEY)
    shop = Block(other, ("e",), np.random.default_rng(1).normal(size=(20, 1)))
    # an earlier run, in which they have no row in common, and what each client is told
    seen = Schema.of({"bank": bank, "shop": shop}, BINARY).holdings["bank"].samples
    claimed = Block(seen, ("e",), np.random.default_rng(2).normal(size=(60, 1)))
    opened, gather = {}, client.gather_point.call

    def gathered(point, block, message, key):
        if block.features == claimed.features:
            opened.update(zip(block.samples.tolist(), message.alpha[0].tolist(), strict=True))
        return gather(point, block, message, key)

    fn = replace(client.gather_point, call=gathered)
    monkeypatch.setattr("intarsia.algorithms.hyfdca.newton.server.gather_point", fn)
    options = HYFDCA.hyperparameters(loss="logistic", regularisation=0.1)
    engine, server = started(HYFDCA, options, {"bank": bank, "shop": claimed})
    engine.begin_round(1)
    HYFDCA.round(server, engine, engine.key())
    told = np.array([np.sign(opened[one]) for one in ids.tolist()])
    np.testing.assert_array_equal(told, y)
