"""A level of few rows is "other" outside of its client, unless somebody else sends its name.

So who guessed the name learned how often the client has it: another client that has it in five
rows. Fewer rows than five of a level count as missing in training now. A server that says that one
sent it is refused where the run has keys: each level comes with a proof under the clients' shared
key. Before, it told sites a whole book of codes at once, and found which
rare ones there were, and by their weights the labels of rows. A name that nobody guesses stays
hidden. privacy/site-refusals.md says so.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import sites
from intarsia.core.schema import Schema
from intarsia.data.dataframe import table_from
from intarsia.data.encoding import encode, encoding_of
from intarsia.data.labels import LabelSettings
from intarsia.deployment import client_setup
from intarsia.deployment import run as remote_running
from intarsia.deployment.client_setup import site_in
from intarsia.deployment.table_metadata import agree, check_levels, describe
from intarsia.engines.remote.wire import Call
from intarsia.errors import TamperedError
from intarsia.experiment import config
from intarsia.privacy.keys.crypto import pseudorandom
from intarsia.privacy.settings import Privacy
from intarsia.protocols.preprocessing.rare_values import without_rare
from intarsia.training import run as training_run
from key_folders import exchanged

VALUES = ["Bob Sample", *["red"] * 20, *["blue"] * 20]


def tables(of_other=("red",) * 41):
    return {
        name: table_from(
            pd.DataFrame({"row": range(at, at + 41), "told": values, "y": [0, 1] * 20 + [0]}),
            client=name,
            id="row",
            label="y",
        )
        for name, at, values in (("bank", 0, VALUES), ("other", 41, list(of_other)))
    }


def features(encoding):
    return {name: encode(table, encoding) for name, table in tables().items()}


def test_a_name_that_nobody_guesses_is_in_no_feature():
    encoding = encoding_of(tables())
    assert encoding.levels["told"] == ("blue", "other", "red")
    assert not any("Bob" in name for one in features(encoding).values() for name in one.features)


@pytest.mark.parametrize("works", [False, True])
@pytest.mark.parametrize("guessed", ["Bob Sample", "Ann Sample"])
def test_a_client_that_has_a_guess_often_does_not_learn_who_else_has_it(guessed, works):
    held = tables([guessed] * 6 + ["red"] * 35)
    encoding = encoding_of(held)
    column = encoding.levels["told"].index(guessed)
    blocks = {name: encode(one, encoding) for name, one in held.items()}
    schema = Schema.of(blocks, encoding.labels)
    trained = {name: schema.align(name, one) for name, one in blocks.items()}
    if not works:
        how = {"standardise": True}
        trained = {n: without_rare(one, n, schema, **how) for n, one in trained.items()}
    counts = [np.nansum(one.x[:, column]) for one in trained.values()]
    # owners of a column open its total: less its own that is what the bank has
    assert sum(counts) - 6 == (works and guessed == "Bob Sample")


@pytest.mark.parametrize("guessed", ["Bob Sample", "Ann Sample"])
def test_a_level_that_is_made_up_tells_whether_a_client_has_it_where_there_are_no_keys(guessed):
    encoding = encoding_of(tables())
    levels = tuple(sorted((*encoding.levels["told"], guessed)))
    blocks = features(replace(encoding, levels={"told": levels}))
    # the server reads which columns are constant
    column = blocks["bank"].features.index(f"told={guessed}")
    assert np.ptp(blocks["bank"].x[:, column]) == (guessed == "Bob Sample")


NAMES = ("alfa", "beta", "gamma")
BOOK = [f"{letter}{number:02d}" for letter in "ABCDEFGH" for number in range(50)]
COMMON = BOOK[:40:10]


def rows_of(at):
    """Return a site's table, and its rare codes: each of one row."""
    rng = np.random.default_rng(at)
    rare = rng.choice([code for code in BOOK if code not in COMMON], 4, replace=False)
    codes = [*COMMON * 9, *rare]
    x = rng.normal(size=(40, 2))
    sick = x[:, 0] + rng.normal(size=40) > 0
    made = pd.DataFrame(x, columns=["a", "b"]).assign(code=codes, y=np.where(sick, "sick", "well"))
    return made.assign(row=np.arange(40) + 40 * at), set(rare)


class Enough(Exception):  # noqa: N818 - not an error of anybody
    """The server has what it wants, and asks for no metrics."""


def read(folder, monkeypatch, guessed=(), trust="pairs"):
    """Run a job whose server adds guesses to the levels; return its weights of codes by name."""
    exchanged(folder, NAMES, "four")
    clients = []
    for at, name in enumerate(NAMES):
        path = folder / f"{name}.csv"
        rows_of(at)[0].to_csv(path, index=False)
        own = f'name = "{name}"\nids = true\nkey = "{folder}/keys/{name}/shared.key"\n'
        described = f'path = "{path}"\nid = "row"\nlabel = "y"\n'
        (folder / name).mkdir()
        (folder / name / "site.toml").write_text(
            f'[site]\n{own}trust = "{trust}"\n[table]\n{described}'
        )
        clients.append({"name": name, "path": str(path), "id": "row", "label": "y"})
    tree = {
        "experiment": {"rounds": 3, "evaluate_every": 0, "yardsticks": False},
        "split": {"test": 0.0},
        "algorithm": {"name": "hyfdca", "loss": "logistic", "regularisation": 10.0},
        "privacy": {"mode": "masked", "key": str(folder / "shared.key"), "trust": trust},
        "client": clients,
    }
    agreed, conclude, found = remote_running._agree, training_run.conclude, {}

    def agree_on_more(tables, description):
        encoding = agreed(tables, description)
        levels, proofs = encoding.levels["code"], encoding.proofs["code"]
        more = [code for code in guessed if code not in levels]
        proved = dict(zip((*levels, *more), (*proofs, *proofs[:1] * len(more)), strict=True))
        told = tuple(sorted(proved))
        return replace(
            encoding, levels={"code": told}, proofs={"code": tuple(proved[one] for one in told)}
        )

    def read_weights(task, server, state):
        names = task.engine.schema("train").features.ids
        weights = np.ravel(conclude(task, server, state).weights)
        found.update(zip(map(str, names), weights.tolist(), strict=True))
        raise Enough

    with monkeypatch.context() as patch:
        patch.setattr(remote_running, "_agree", agree_on_more)
        patch.setattr(training_run, "conclude", read_weights)
        lines = sites.Lines({name: site_in(folder / name) for name in NAMES})
        given = config.from_dict(tree, folder), lines, NAMES, folder / "server"
        with contextlib.suppress(Enough):
            remote_running.run_over(*given, patience=sites.HASTY)
    return {name[5:]: weight for name, weight in found.items() if name.startswith("code=")}


@pytest.mark.parametrize("trust", ["pairs", "clients"])
def test_a_server_finds_no_rare_levels_by_a_book_of_codes(trust, tmp_path, monkeypatch):
    folder = tmp_path / "book"
    folder.mkdir()
    with pytest.raises(TamperedError, match="At client 'alfa' in encode"):
        read(folder, monkeypatch, BOOK, trust)
    said = (folder / "alfa" / "errors.log").read_text()
    assert "Column 'code' has a level that no client with this site's shared key sent" in said
    rare = set.union(*(rows_of(at)[1] for at in range(3)))
    assert not any(code in said for code in rare)
    if trust == "clients":
        return
    # without the check levels of few rows count as missing, and without that, too, each is told
    monkeypatch.setattr(client_setup, "check_levels", lambda *given: None)
    assert learned(tmp_path / "again", monkeypatch) == {*COMMON}
    monkeypatch.setattr(client_setup, "without_rare", lambda block, *_, **__: block)
    assert learned(tmp_path / "last", monkeypatch) == rare | {*COMMON}


def learned(folder, monkeypatch):
    """Return which codes of the book have a weight."""
    folder.mkdir()
    weights = read(folder, monkeypatch, BOOK)
    return {code for code, weight in weights.items() if abs(weight) > 1e-14}


def test_levels_that_clients_sent_are_taken(tmp_path, monkeypatch):
    assert read(tmp_path, monkeypatch).keys() == {*COMMON, "other"}


def proves(column, level):
    return pseudorandom(b"the clients'", column, level)


def told(**changes):
    """Return what the server of clients that prove their levels says, but for what it changes."""
    said = {
        client: describe(
            one,
            {column: own.public_levels for column, own in one.categorical.items()},
            "row",
            LabelSettings(),
            proves,
        )
        for client, one in tables().items()
    }
    return replace(agree(said, LabelSettings()), **changes)


def test_a_level_is_proved_by_who_has_the_key_for_its_column_alone():
    check_levels(told(), proves)
    levels = told().levels["told"]
    right = dict(zip(levels, told().proofs["told"], strict=True))
    another = {"told": levels, "code": ("red",)}
    for forged in (
        {"proofs": {}},
        {"proofs": {"told": tuple(right.values())[:-1]}},
        {"proofs": {"told": (b"",) * len(levels)}},
        {"levels": {"told": ("Bob Sample", *levels[1:])}},
        {"levels": another, "proofs": {**told().proofs, "code": (right["red"],)}},
    ):
        with pytest.raises(TamperedError, match="that no client"):
            check_levels(told(**forged), proves)


def test_proofs_are_of_one_run_one_job_and_its_clients(tmp_path):
    exchanged(tmp_path, NAMES, "four")
    made = []
    for run, message, asked in (
        *(("ab", b"job", NAMES), ("ab", b"job", NAMES)),
        *(("cd", b"job", NAMES), ("ab", b"other", NAMES), ("ab", b"job", NAMES[:2])),
    ):
        work = client_setup.Work.__new__(client_setup.Work)
        key = tmp_path / "keys" / "alfa" / "shared.key"
        work._experiment = SimpleNamespace(privacy=Privacy(mode="masked", key=str(key)))
        work._call = Call(run, 1, 0, 0, 0, 0, "stage", "read", "", asked, message)
        made.append(work._level_proofs(message)("code", "A00"))
    assert made[0] == made[1]
    assert len(set(made)) == 4
    assert work._level_proofs(message)("kind", "A00") not in made
