"""A run of hyfem from an experiment to its model: the server's network beside the clients'."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from command_line import said

torch = pytest.importorskip("torch")

import intarsia  # noqa: E402  after the skip where torch is missing
from four_sites import VIEWS, whole  # noqa: E402
from intarsia.algorithms.hyfem import network as block_network  # noqa: E402
from intarsia.algorithms.networks import user_modules  # noqa: E402
from intarsia.cli.main import main  # noqa: E402
from intarsia.core.block import Block  # noqa: E402
from intarsia.core.client_functions import RandomKey  # noqa: E402
from intarsia.data.table import split  # noqa: E402
from intarsia.errors import ExperimentError, FederationError  # noqa: E402
from intarsia.inference.predict import predict  # noqa: E402
from intarsia.training import run as running  # noqa: E402

DOCUMENT = Path(__file__).parents[3] / "docs/explanations/hyfem.md"
HELD = {"north": ("left", "middle"), "south": ("middle", "right"), "east": ("left", "right")}
SETTINGS = {
    "features": 4,
    "extractor_hidden": [8],
    "hidden": [12],
    "steps": 8,
    "batch": 16,
    "rate": 0.2,
    "engine": "loop",
}


def tables():
    """Return the clients' tables: all have the rows, so that together they hold every view."""
    table = whole(150)
    return {
        client: table[[*(c for view in views for c in VIEWS[view]), "kind", "row"]]
        for client, views in HELD.items()
    }


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    home = tmp_path_factory.mktemp("hyfem")
    lines = ["[experiment]", "rounds = 15", "[algorithm]", 'name = "hyfem"']
    lines += [f"{key} = {value!r}".replace("'", '"') for key, value in SETTINGS.items()]
    for client, table in tables().items():
        table.to_csv(home / f"{client}.csv", index=False)
        groups = ", ".join(f"{view} = {list(VIEWS[view])}" for view in HELD[client])
        lines += ["[[client]]", f'name = "{client}"', f'path = "{client}.csv"']
        lines += ['id = "row"', 'label = "kind"', f"groups = {{ {groups} }}".replace("'", '"')]
    (home / "run.toml").write_text("\n".join(lines))
    return home / "run", running.run(home / "run.toml", out=home / "run")


def test_a_run_metrics_the_server_the_clients_and_both_yardsticks(run):
    metrics = run[1].metrics
    assert metrics.server.accuracy > 0.9
    assert metrics.centralised.accuracy > 0.9
    assert list(metrics.clients) == list(metrics.standalone) == list(HELD)
    assert metrics.clients_mean.accuracy > 0.8


@pytest.mark.parametrize("test", [0.3, 0.0])  # 0.0: evaluated on the training samples
def test_the_centralised_network_is_evaluated_on_the_samples_that_the_servers_is(test):
    given = tables()
    for client in ("south", "east"):  # whose rows alone have the view "right"
        given[client] = given[client][given[client]["row"] < 100]
    found = intarsia.run(
        tables=given, id="row", label="kind", algorithm="hyfem", test=test, rounds=1, **SETTINGS
    )
    metrics = found.metrics
    every, whole = metrics.clients["north"].samples, metrics.clients["south"].samples
    if not test:
        assert (every, whole) == (150, 100)
    assert metrics.server.samples == metrics.centralised.samples == whole < every
    right = metrics.centralised.accuracy * whole
    assert right == pytest.approx(round(right))
    assert metrics.clients_mean.samples is None
    part = "test" if test else "training"
    assert any(f"are {whole} of the {every} {part} samples" in note for note in found.notes)


def test_a_server_without_a_whole_sample_leaves_the_centralised_network_all():
    given = {
        client: table.assign(row=table["row"] + 1000 * number)
        for number, (client, table) in enumerate(tables().items())
    }
    found = intarsia.run(
        tables=given, id="row", label="kind", algorithm="hyfem", rounds=1, **SETTINGS
    ).metrics
    assert found.server is None
    assert found.centralised.samples == sum(one.samples for one in found.clients.values())


def test_the_model_is_the_same_when_it_is_read_and_predicts_with_what_there_is(run):
    folder, result = run
    read = running.load(folder).model
    table = whole(150)
    assert read.server.architecture.blocks == ("left", "middle", "right")
    np.testing.assert_array_equal(
        read.server.decision_function(table), result.model.server.decision_function(table)
    )
    for client in HELD:
        np.testing.assert_array_equal(
            read[client].decision_function(table), result.model[client].decision_function(table)
        )
    assert (read.server.predict(table) == table["kind"]).mean() > 0.9
    # a client's network is the server's, as far as it has the blocks
    own, every = read["south"].parameters, read.server.parameters
    np.testing.assert_array_equal(
        own["extractors.right.0.weight"], every["extractors.right.0.weight"]
    )
    width = own["classifier.0.weight"].shape[1] // 2
    np.testing.assert_array_equal(
        own["classifier.0.weight"][:, :width], every["classifier.0.weight"][:, width : 2 * width]
    )
    with pytest.raises(ExperimentError, match="a space each"):
        read["south"].transform(table)


def test_a_table_is_predicted_by_the_network_whose_columns_it_has(run, tmp_path):
    folder, result = run
    table = whole(150)
    table.drop(columns="kind").to_csv(tmp_path / "all.csv", index=False)
    tables()["south"].drop(columns="kind").to_csv(tmp_path / "south.csv", index=False)
    for name, model in (("all", result.model.server), ("south", result.model["south"])):
        found = predict(folder, tmp_path / f"{name}.csv")
        np.testing.assert_array_equal(found.labels, model.predict(table))
    assert "server" in predict(folder, tmp_path / "all.csv").notes[0]
    with pytest.raises(ExperimentError, match="no client 'nort'; use 'north'"):
        predict(folder, tmp_path / "all.csv", client="nort")
    by_name = predict(folder, tmp_path / "all.csv", client="server")
    np.testing.assert_array_equal(by_name.labels, result.model.server.predict(table))
    own = predict(folder, tmp_path / "all.csv", client="north")
    np.testing.assert_array_equal(own.labels, result.model["north"].predict(table))


def test_a_client_that_joins_gets_the_servers_network_of_its_blocks(run, tmp_path):
    folder, result = run
    # as north's own rows and blocks, with a column that the run does not know
    north = tables()["north"]
    north.assign(extra=1.5, row=north["row"] + 1000).to_csv(tmp_path / "new.csv", index=False)
    found = intarsia.join(
        folder, tmp_path / "new.csv", label="kind", id="row", out=tmp_path / "out"
    )
    own = found.model["new"]
    assert own.architecture.blocks == ("left", "middle")
    assert any("'extra'" in note for note in found.notes)
    np.testing.assert_allclose(
        own.decision_function(north), result.model["north"].decision_function(north), atol=1e-5
    )
    assert found.metrics.clients["new"].accuracy > 0.6
    assert list(found.metrics.standalone) == ["new"]
    further = intarsia.join(
        folder, tmp_path / "new.csv", label="kind", id="row", epochs=5, out=tmp_path / "on"
    )
    assert not np.array_equal(
        further.model["new"].decision_function(north), own.decision_function(north)
    )
    read = running.load(tmp_path / "out").model["new"]
    np.testing.assert_array_equal(read.decision_function(north), own.decision_function(north))
    north[["l1", "m1", "kind", "row"]].to_csv(tmp_path / "odd.csv", index=False)
    with pytest.raises(FederationError, match="no block of the run whole"):
        intarsia.join(folder, tmp_path / "odd.csv", label="kind", id="row", out=tmp_path / "no")


def test_a_client_that_joins_is_scaled_as_the_run_was(run, tmp_path):
    from intarsia.experiment import config as experiment

    options = ["algorithm.scaling=false", "experiment.rounds=2", "experiment.yardsticks=false"]
    file = experiment.load(run[0].parent / "run.toml", options)
    result = running.run(file, out=tmp_path / "run")
    north = tables()["north"]
    gaps = north.assign(row=north["row"] + 1000)
    gaps.to_csv(tmp_path / "new.csv", index=False)
    found = intarsia.join(
        tmp_path / "run", tmp_path / "new.csv", label="kind", id="row", out=tmp_path / "out"
    )
    assert not any("missing" in note for note in found.notes)
    np.testing.assert_allclose(
        found.model["new"].decision_function(north),
        result.model["north"].decision_function(north),
        atol=1e-5,
    )
    gaps.loc[gaps.index[:3], "l1"] = np.nan
    gaps.to_csv(tmp_path / "gaps.csv", index=False)
    found = intarsia.join(
        tmp_path / "run", tmp_path / "gaps.csv", label="kind", id="row", out=tmp_path / "gaps"
    )
    assert any(note.startswith("3 values of its blocks are missing") for note in found.notes)


def test_a_client_that_joins_scales_each_column_by_its_own_mean_and_deviation(tmp_path):
    # in another order than that of their names, and in units of their own
    named = {"l1": "z", "l2": "b", "m1": "y", "m2": "a"}
    renamed = {
        client: table.rename(columns=named).assign(
            **({"z": 500 + 1000 * table["l1"]} if "l1" in table else {})
        )
        for client, table in tables().items()
    }
    groups = {
        client: {view: [named.get(one, one) for one in VIEWS[view]] for view in HELD[client]}
        for client in HELD
    }
    how = {"id": "row", "label": "kind"}
    result = intarsia.run(
        tables=renamed,
        algorithm={"name": "hyfem", **SETTINGS},
        table_settings={client: {"groups": own} for client, own in groups.items()},
        **{**how, "rounds": 2, "yardsticks": False, "out": tmp_path / "run"},
    )
    north = renamed["north"]
    later = north.assign(row=north["row"] + 1000)
    found = intarsia.join(tmp_path / "run", later, name="new", out=None, **how)
    np.testing.assert_allclose(
        found.model["new"].decision_function(north),
        result.model["north"].decision_function(north),
        atol=1e-5,
    )


def test_a_client_that_joins_has_the_levels_of_the_run(tmp_path):
    levels = np.array(["red", "green", "blue"])
    made = {
        client: table.assign(colour=levels[table["row"] % 3]) if "left" in HELD[client] else table
        for client, table in tables().items()
    }
    columns = {**VIEWS, "left": ["colour", *VIEWS["left"]]}
    how = {"id": "row", "label": "kind"}
    intarsia.run(
        tables=made,
        algorithm={"name": "hyfem", **SETTINGS},
        table_settings={
            client: {"groups": {view: list(columns[view]) for view in views}}
            for client, views in HELD.items()
        },
        **{**how, "rounds": 2, "yardsticks": False, "out": tmp_path / "run"},
    )
    north = made["north"].assign(row=made["north"]["row"] + 1000)
    few = north[north["colour"] != "blue"]  # by chance none of its rows is
    few.to_csv(tmp_path / "few.csv", index=False)
    new = north.assign(colour=north["colour"].where(north["row"] % 10 > 0, "pink"))
    new.to_csv(tmp_path / "new.csv", index=False)
    for name in ("few", "new"):
        found = intarsia.join(tmp_path / "run", tmp_path / f"{name}.csv", **how)
        assert found.model[name].architecture.blocks == ("left", "middle")
        missing = [note for note in found.notes if "levels that the run had not" in note]
        assert [note.split()[0] for note in missing] == (["15"] if name == "new" else [])
        table = {"few": few, "new": new}[name]
        rows = Block(table["row"].to_numpy(), (), np.zeros((len(table), 0)))
        held = np.isin(rows.samples, split(rows)[1].samples)
        table[held].to_csv(tmp_path / "held.csv", index=False)
        told = predict(tmp_path / "run", tmp_path / "held.csv", client=name).score
        assert told.samples == found.metrics.clients[name].samples
        assert told.loss == pytest.approx(found.metrics.clients[name].loss, rel=1e-6)


@pytest.mark.usefixtures("sparse_tables")
def test_a_block_may_hold_a_category_of_many_levels(tmp_path):
    rng = np.random.default_rng(0)

    def made(name: str, levels: int) -> pd.DataFrame:
        table = pd.DataFrame({"a": rng.normal(size=120), "b": rng.normal(size=120)})
        table["k"] = [f"L{number:02d}" for number in rng.integers(0, levels, 120)]
        table.loc[::9, "k"] = None
        table["kind"] = np.array(["p", "q"])[(table["a"] > 0) * 1]
        return table.assign(row=[f"{name}{number}" for number in range(120)])

    known = {"one": made("one", 25), "two": made("two", 25).drop(columns="b")}
    groups = {"one": {"g": ["k", "a"], "h": ["b"]}, "two": {"g": ["k", "a"]}}
    how = {"id": "row", "label": "kind", "categorical": ["k"]}
    settings = {client: {"groups": own} for client, own in groups.items()}
    assert intarsia.inspect(tables=known, table_settings=settings, **how).blocks is not None
    intarsia.run(
        tables=known,
        algorithm={"name": "hyfem", **SETTINGS},
        table_settings=settings,
        **{**how, "rounds": 2, "yardsticks": False, "out": tmp_path / "run"},
    )
    later = made("later", 28)  # three levels that the run had not
    found = intarsia.join(tmp_path / "run", later, name="new", **how)
    rows = Block(later["row"].to_numpy(str), (), np.zeros((120, 0)))
    held = np.isin(rows.samples, split(rows)[1].samples)
    later[held].to_csv(tmp_path / "held.csv", index=False)
    told = predict(tmp_path / "run", tmp_path / "held.csv", client="new").score
    assert told.loss == pytest.approx(found.metrics.clients["new"].loss, rel=1e-6)


def test_the_command_line_says_what_a_client_that_joins_took(run, tmp_path, capfd):
    folder, _ = run
    north = tables()["north"]
    north.assign(row=north["row"] + 1000).to_csv(tmp_path / "new.csv", index=False)
    given = ["join", str(folder), str(tmp_path / "new.csv"), "--label", "kind", "--id", "row"]
    assert main([*given, "--out", str(tmp_path / "out")]) == 0
    _, err = said(capfd)
    assert "the server's extractors of its blocks 'left', 'middle'" in " ".join(err.split())


def test_a_client_that_joined_later_predicts_by_its_name_and_hears_if_it_is_worse(run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(run[0], folder)
    north = tables()["north"]
    # labels of its own meaning, which a network alone learns better
    turned = {"p": "q", "q": "r", "r": "p"}
    odd = north.assign(row=north["row"] + 1000, kind=north["kind"].map(turned))
    odd.to_csv(tmp_path / "new.csv", index=False)
    found = intarsia.join(folder, tmp_path / "new.csv", label="kind", id="row")
    own, alone = found.metrics.clients["new"].accuracy, found.metrics.standalone["new"].accuracy
    assert own < alone
    [said_so] = [note for note in found.notes if "better off alone" in note]
    assert f"accuracy {alone:.4g} alone and {own:.4g} by joining" in said_so
    later = predict(folder, tmp_path / "new.csv", client="new")
    np.testing.assert_array_equal(later.labels, found.model["new"].predict(north))
    with pytest.raises(ExperimentError, match="no client 'neww'; use 'new'"):
        predict(folder, tmp_path / "new.csv", client="neww")


def test_a_module_of_the_users_own_that_is_elsewhere_is_named(tmp_path, monkeypatch):
    lines = ["from torch import nn", "def Own(shape, width):"]
    lines += ["    return nn.Sequential(nn.Linear(shape[0], width), nn.ReLU())"]
    (tmp_path / "blocknets14.py").write_text("\n".join(lines))
    tables()["north"].to_csv(tmp_path / "north.csv", index=False)
    monkeypatch.syspath_prepend(tmp_path)
    given = {"rounds": 1, "yardsticks": False, "extractor": "blocknets14:Own", **SETTINGS}
    found = intarsia.run(
        tables=tables(), id="row", label="kind", algorithm="hyfem", out=tmp_path / "run", **given
    )
    allowed = {"allow_modules": ["blocknets14"]}
    here = predict(tmp_path / "run", tmp_path / "north.csv", client="north", **allowed)
    np.testing.assert_array_equal(here.labels, found.model["north"].predict(tables()["north"]))
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one != str(tmp_path)])
    monkeypatch.chdir(tmp_path)  # where nothing is looked for
    monkeypatch.delitem(sys.modules, "blocknets14")
    for cached in (user_modules.named, block_network.structure, block_network._judging):
        cached.cache_clear()
    with pytest.raises(ExperimentError, match=r"^There is no module 'blocknets14'.*set PYTHON"):
        predict(tmp_path / "run", tmp_path / "north.csv", client="north", **allowed)


def test_the_example_of_the_document_trains_as_it_stands(tmp_path, capfd):
    document = DOCUMENT.read_text(encoding="utf-8")
    lines = document.split("## Which client has what")[1].split("```toml\n")[1].split("```")[0]
    assert 10 <= len(lines.splitlines()) <= 12
    rng = np.random.default_rng(0)
    for client, columns in (
        ("clinic", ("lab_hb", "lab_na", "scan_1", "scan_2")),
        ("practice", ("lab_hb", "lab_na", "age", "smoker")),
    ):
        made = pd.DataFrame(rng.normal(size=(60, 4)), columns=columns)
        made.assign(outcome=np.where(made["lab_hb"] > 0, "ill", "well")).to_csv(
            tmp_path / f"{client}.csv", index=False
        )
    (tmp_path / "mine.toml").write_text(lines)
    assert main(["inspect", str(tmp_path / "mine.toml")]) == 0
    assert "fits: hyfem" in " ".join(said(capfd)[0].split())
    assert main(["run", str(tmp_path / "mine.toml"), "--quiet", "-c", "experiment.rounds=1"]) == 0
    held = {name: one.architecture.blocks for name, one in
            running.load(tmp_path / "runs" / "mine").model.items()}  # fmt: skip
    assert held == {"clinic": ("lab", "scan"), "practice": ("history", "lab")}


@pytest.mark.slow
def test_rates_are_chosen_as_the_document_says(run, tmp_path, monkeypatch, capfd):
    document = DOCUMENT.read_text(encoding="utf-8")
    lines = [one.strip() for one in document.split("```sh\n")[1].split("```")[0].splitlines()]
    loop = re.fullmatch(r"for rate in (.+); do", lines[0])
    assert lines[2] == "done"
    folder = tmp_path / "here"
    shutil.copytree(run[0].parent, folder, ignore=lambda *_: ["run"])
    (folder / "run.toml").rename(folder / "mine.toml")
    monkeypatch.chdir(folder)
    rates = loop[1].split()[:2]
    for rate in rates:
        assert (
            main([*lines[1].replace("$rate", rate).split()[1:], "-c", "experiment.rounds=1"]) == 0
        )
    said(capfd)
    assert main(["compare", *sorted(map(str, folder.glob("runs/rate-*"))), "--json"]) == 0
    shown = json.loads(said(capfd)[0])
    assert [one["settings"]["rate"] for one in shown] == [float(rate) for rate in rates]
    assert lines[4].split()[:3] == ["intarsia", "run", "mine.toml"]


def test_a_run_says_which_columns_two_clients_name_otherwise():
    given = {
        client: {"groups": {view: list(VIEWS[view]) for view in views}}
        for client, views in HELD.items()
    }
    given["south"]["groups"] = {"centre": ["m*"], "right": ["r*"]}
    found = intarsia.run(
        tables=tables(), table_settings=given, id="row", label="kind", algorithm="hyfem",
        rounds=1, yardsticks=False, **SETTINGS,
    )  # fmt: skip
    assert any("'m1', 'm2', 'm3' are of the feature block 'middle'" in note for note in found.notes)


@pytest.mark.parametrize(
    ("own", "read"),
    [({}, False), ({"start": "matched"}, True), ({"matching": "rounds"}, True)],
)
def test_a_sealed_run_says_what_the_server_reads_all_the_same(own, read):
    found = intarsia.run(
        tables=tables(),
        id="row",
        label="kind",
        algorithm="hyfem",
        privacy={"mode": "masked", "least_clients": 2},  # each view is at two
        rounds=1,
        yardsticks=False,
        **SETTINGS,
        **own,
    )
    assert any("each client's classifier" in note for note in found.notes) is read


@pytest.mark.parametrize("apart", [False, True])
def test_a_server_without_a_score_says_why(apart):
    # apart: each client has rows of its own, and so no test sample has all blocks
    given = {
        client: table.assign(row=table["row"] + 1000 * number * apart)
        for number, (client, table) in enumerate(tables().items())
    }
    found = intarsia.run(
        tables=given,
        id="row",
        label="kind",
        algorithm="hyfem",
        rounds=1,
        yardsticks=False,
        **SETTINGS,
    )
    assert (found.metrics.server is None) is apart
    assert any("has no score" in note for note in found.notes) is apart


def test_parameters_are_named_by_blocks_whatever_their_names():
    made_of = block_network.Composition(
        blocks=("a.b", "c*"),
        columns=(("x",), ("y", "z")),
        extractors=tuple(block_network.Extractor("linear", (size,), 2) for size in (1, 2)),
        hidden=(3,),
        outputs=2,
        scale=1.5,
    )
    drawn = block_network.drawn(made_of, np.float32, RandomKey((0,)))
    named = block_network.named_by_block(made_of, drawn)
    assert {name: values.shape for name, values in named.items()} == made_of.shapes
    assert "extractors.a%2Eb.0.weight" in named
    assert block_network.numbered(made_of, named).keys() == drawn.keys()
    content = json.loads(json.dumps(dataclasses.asdict(made_of)))
    assert block_network.composition_of(content) == made_of
