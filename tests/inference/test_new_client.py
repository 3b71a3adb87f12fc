"""`intarsia join`: a new client with columns of its own learns from what a federation shares."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

torch = pytest.importorskip("torch")

import intarsia  # noqa: E402  after the skip where torch is missing
from command_line import one_error, said  # noqa: E402
from intarsia.algorithms.personalised import fedrep  # noqa: E402
from intarsia.cli.main import main  # noqa: E402
from intarsia.errors import CheckpointError, ExperimentError  # noqa: E402
from intarsia.inference.new_client import described  # noqa: E402

SETTINGS = {
    "algorithm": "flic",
    "variant": "hl",
    "anchor_scale": 1.0,
    "weight_decay": 0.0,
    "embedding_decay": 0.0,
    "hidden": 8,
    "latent": 4,
    "rate": 0.01,
    "local_epochs": 2,
    "pretraining_epochs": 3,
    "final_epochs": 5,
    "engine": "loop",
    "rounds": 2,
    "participation": 0.5,
    "yardsticks": False,
}
CENTRES = 2 * np.random.default_rng(0).normal(size=(3, 4))


def table(name, width, rows=60, seed=0):
    """Return a client's DataFrame: its own linear map of what tells the three classes apart."""
    rng = np.random.default_rng([seed, width])
    y = np.arange(rows) % 3
    x = (CENTRES[y] + rng.normal(size=(rows, 4))) @ rng.normal(size=(4, width))
    made = pd.DataFrame(x, columns=[f"{name}{j}" for j in range(width)])
    made["kind"] = np.array(["p", "q", "r"])[y]
    made["row"] = [f"{name}-{i}" for i in range(rows)]
    return made


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return the folder of a finished run of two clients."""
    folder = tmp_path_factory.mktemp("join") / "run"
    tables = {"north": table("north", 3), "south": table("south", 5)}
    intarsia.run(tables=tables, id="row", label="kind", out=folder, **SETTINGS)
    return folder


@pytest.fixture
def folder(run, tmp_path):
    """Return a copy of the run's folder, and beside it the new client's table."""
    shutil.copytree(run, tmp_path / "run")
    table("new", 7).to_csv(tmp_path / "new.csv", index=False)
    return tmp_path / "run"


def files(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.*")}


def test_the_new_client_gets_a_model_and_nothing_of_the_run_changes(folder, capfd):
    before = files(folder)
    assert main(["join", str(folder), str(folder.parent / "new.csv"), "--json"]) == 0
    out, err = said(capfd)
    content = json.loads(out)
    assert list(content["metrics"]["clients"]) == list(content["metrics"]["standalone"]) == ["new"]
    # 2 rounds with half of the clients, of 2 epochs each, and 5 at the end
    assert content["hyperparameters"]["final_epochs"] == 7
    assert "stand-alone" in err
    own = folder / "joined" / "new"
    assert {key: data for key, data in files(folder).items() if key.parts[0] != "joined"} == before
    assert main(["predict", str(own), str(folder.parent / "new.csv")]) == 0
    out, err = said(capfd)
    # id and label are known: the one note is of the rows that it was trained on
    assert err.count("note:") == 1
    assert "new.csv is the table of 'new' in this run" in err
    assert "\nfigures on 60 rows with a label" in err
    assert out.splitlines()[0] == "id,score,label,probability"
    assert len(out.splitlines()) == 61
    assert intarsia.resume(own).metrics == intarsia.load(own).metrics


def test_a_new_clients_columns_are_those_of_the_runs_dictionary(folder, capfd):
    """The dictionary of the run has a section of the new client's: names, units, and case."""
    dictionary = folder.parent / "columns.toml"
    dictionary.write_text(
        '[feature.wide]\nunit = "m"\nfactors = { cm = 0.01 }\n[feature.side]\nignore_case = true\n'
        '[client.north]\nnorth0 = "n"\n'
        '[client.new]\nnew0 = { feature = "wide", unit = "cm" }\nnew1 = "side"\n'
    )
    told = json.loads((folder / "experiment.json").read_text())
    told["alignment"]["dictionary"] = str(dictionary)
    (folder / "experiment.json").write_text(json.dumps(told))
    made = table("new", 7)
    made["new1"] = ["Left", "left", "right"] * 20
    made.to_csv(folder.parent / "new.csv", index=False)
    assert main(["join", str(folder), str(folder.parent / "new.csv"), "--id", "row"]) == 0
    network = intarsia.load(folder / "joined" / "new").model["new"]
    names = list(map(str, network.feature_names_in_))
    assert {"wide", "side=left", "side=right"} <= {*names}
    assert not {"new0", "new1=Left"} & {*names}
    centre = network.means[names.index("wide")]
    assert abs(centre - made["new0"].mean() / 100) < 0.02  # of the rows that train


def test_what_all_share_stays_as_it_is(folder):
    shared = intarsia.load(folder).model.shared
    assert sorted(shared) == ["anchors.means", "shared.0.bias", "shared.0.weight"]
    found = intarsia.join(folder, table("new", 7), name="new", epochs=3)
    for name, values in shared.items():
        np.testing.assert_array_equal(found.model["new"].parameters[name], values)
    assert found.model["new"].features == tuple(f"new{j}" for j in range(7))


def test_rows_of_one_person_stay_together_at_a_new_client_as_in_the_run(tmp_path):
    tables = {"north": table("north", 3), "south": table("south", 5), "new": table("new", 7)}
    for one in tables.values():
        one["person"] = np.arange(len(one)) // 4
    new = tables.pop("new")
    how = {"id": "row", "label": "kind", "split_by": "person", **SETTINGS}
    intarsia.run(tables=tables, out=tmp_path / "run", **how)
    joined = intarsia.join(tmp_path / "run", new, out=None)
    assert any("15 in 60 rows at 'new' (up to 4 rows)" in one for one in joined.notes)
    assert "person" not in joined.model["new"].feature_names_in_


def test_joining_again_comes_to_the_same_and_another_seed_to_something_else(folder):
    first, again, other = (
        intarsia.join(folder, table("new", 7), seed=seed, out=None) for seed in (None, 0, 1)
    )
    assert first.folder is None
    assert first.metrics == again.metrics
    assert first.metrics != other.metrics


def test_the_stand_alone_model_has_nothing_of_the_federation(folder, tmp_path):
    one = intarsia.join(folder, table("new", 7), out=None)
    shared = np.load(folder / "model" / "shared.npz", allow_pickle=False)
    arrays = {name: 2 * shared[name] for name in shared.files}
    np.savez(folder / "model" / "shared.npz", **arrays)
    two = intarsia.join(folder, table("new", 7), out=None)
    assert one.metrics.standalone == two.metrics.standalone
    assert one.metrics.clients != two.metrics.clients


def test_the_stand_alone_network_is_of_the_layers_of_the_joined_one(tmp_path, monkeypatch):
    def images(seed):
        y = np.arange(12) % 3
        return np.random.default_rng(seed).normal(size=(12, 256)) + y[:, None], y

    settings = {**SETTINGS, "embedding": "convolutional", "intercept": False, "rounds": 1}
    tables = {"north": images(0), "south": images(1)}
    intarsia.run(tables=tables, out=tmp_path, classes=["0", "1", "2"], test=0.0, **settings)
    alone, init_client = {}, fedrep.LOCAL.init_client

    def watched(options, schema, client, block, rng):
        made = init_client(options, schema, client, block, rng)
        alone.update({name: values.shape for name, values in made.parameters.items()})
        return made

    monkeypatch.setattr(fedrep, "LOCAL", replace(fedrep.LOCAL, init_client=watched))
    joined = intarsia.join(tmp_path, images(2), epochs=1, out=None).model["new"].parameters
    own = {name: one.shape for name, one in joined.items() if not name.startswith("anchors.")}
    assert alone == own
    assert any(len(shape) == 4 for shape in alone.values())


def test_the_epochs_that_only_the_joined_network_had_are_counted(folder, capfd):
    new = str(folder.parent / "new.csv")
    assert main(["join", str(folder), new, "--epochs", "4"]) == 0
    shown = " ".join(said(capfd)[1].split())
    assert "note: Before its 4 epochs the new client's embedding had 3 of alignment" in shown
    assert "epochs = 7" in shown
    found = intarsia.load(folder / "joined" / "new")
    assert any("3 of alignment" in note for note in found.notes)


def test_what_a_new_table_lacks_is_said_beside_what_was_missing_in_training(folder, tmp_path):
    content = json.loads((folder / "experiment.json").read_text())
    for at, client in enumerate(content["client"]):
        client["missing"] = ["?", f"none {at}"]
    (folder / "experiment.json").write_text(json.dumps(content))
    (tmp_path / "new.csv").write_text("a;b\n1;2\n")
    source, _ = described(folder, tmp_path / "new.csv", None, {"missing": ["n/a"]})
    first = ("?", *(f"none {at}" for at in range(len(content["client"]))))
    assert source.missing == (*first, "n/a")
    assert described(folder, tmp_path / "new.csv", None, {})[0].missing == first


def test_a_client_may_lack_classes_but_not_have_others(folder):
    some = table("new", 7)
    found = intarsia.join(folder, some[some["kind"] != "q"], out=None)
    assert found.model["new"].classes_.tolist() == ["p", "q", "r"]
    other = some.replace({"kind": {"q": "z"}})
    with pytest.raises(intarsia.TableError, match=r"'z'.*which is not a class"):
        intarsia.join(folder, other, out=None)


def test_a_client_may_have_rows_of_one_class_only(folder):
    some = table("new", 7)
    found = intarsia.join(folder, some[some["kind"] == "q"], epochs=1, out=None)
    assert found.model["new"].classes_.tolist() == ["p", "q", "r"]


def test_the_federations_classes_are_not_too_many_for_a_new_clients_rows(tmp_path):
    def of_26(name, width, rows):
        return table(name, width, rows).assign(kind=[f"c{i % 26:02}" for i in range(rows)])

    settings = SETTINGS | {"final_epochs": 1, "test": 0.0}
    tables = {"north": of_26("north", 3, 60), "south": of_26("south", 5, 60)}
    intarsia.run(tables=tables, id="row", label="kind", out=tmp_path, **settings)
    found = intarsia.join(tmp_path, of_26("new", 7, 40), out=None)
    assert len(found.model["new"].classes_) == 26
    assert not [note for note in found.notes if "26 classes" in note]


@pytest.mark.parametrize("only", ["p", pytest.param("r", marks=pytest.mark.slow)])
@pytest.mark.parametrize("classes", [None, ["p", "q", "r"]])
def test_a_client_of_one_class_joins_where_one_is_against_the_rest(tmp_path, only, classes):
    tables = {"north": table("north", 3), "south": table("south", 5)}
    if classes is None:
        tables = {name: one[one["kind"] != "q"] for name, one in tables.items()}
    given = {"positive": "r"} if classes is None else {"positive": "r", "classes": classes}
    settings = {**SETTINGS, **given, "rounds": 1}
    intarsia.run(tables=tables, id="row", label="kind", out=tmp_path, **settings)
    new = table("new", 7)
    found = intarsia.join(tmp_path, new[new["kind"] == only], epochs=1, out=None)
    assert found.model["new"].classes_.tolist() == ["p" if classes is None else "other", "r"]


def test_a_pair_of_arrays_joins_and_text_columns_are_encoded(folder):
    rng = np.random.default_rng(0)
    y = np.arange(40) % 3
    x = rng.normal(size=(40, 2)) + y[:, None]
    found = intarsia.join(folder, (x, np.array(["p", "q", "r"])[y]), out=None)
    assert found.model["new"].features == ("x0", "x1")
    levels = pd.DataFrame({"a": y + rng.normal(size=40), "town": np.array(["x", "y"])[y % 2]})
    levels["kind"] = np.array(["p", "q", "r"])[y]
    found = intarsia.join(folder, levels, out=None)
    assert found.model["new"].features == ("a", "town=x", "town=y")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["run", "new.csv", "--name", "north"], "has a client 'north' already"),
        (["run", "none.csv"], "There is no file none.csv"),
        (["run", "new.csv", "--label", "kid"], "which the table does not have; use 'kind'"),
        (["run", "new.csv", "--epochs", "0"], "epochs is 0"),
        (["run", "new.csv", "--name", "a/b"], "without a slash"),
        (["run", "bare.csv"], "No client has a label column"),
        (["nowhere", "new.csv"], "'nowhere' is not a folder"),
        (["run", "new.csv", "--out", "run"], "is the folder of the run that the new client joins"),
        (["run", "new.csv", "--out", "run", "--overwrite"], "choose another one with --out"),
        (["run", "new.csv", "--out", "old"], "choose another folder with --out or --name, or"),
        (["run", "bare.csv", "--out", "old"], "No client has a label column"),
    ],
)
def test_what_cannot_join_is_one_sentence(folder, arguments, expected, capfd, monkeypatch):
    monkeypatch.chdir(folder.parent)
    table("new", 7).drop(columns="kind").to_csv("bare.csv", index=False)
    shutil.copytree("run", "old")
    before = files(folder)
    assert main(["join", *arguments]) == 2
    assert expected in one_error(said(capfd)[1])
    assert files(folder) == before


def test_a_second_join_replaces_the_first_only_if_asked(folder):
    intarsia.join(folder, table("new", 7), epochs=1)
    with pytest.raises(intarsia.CheckpointError, match="already holds a result"):
        intarsia.join(folder, table("new", 7), epochs=1)
    intarsia.join(folder, table("new", 7), epochs=1, overwrite=True)


def test_a_run_that_replaces_another_leaves_none_that_joined_it(folder):
    intarsia.join(folder, table("new", 7), epochs=1)
    (folder / "notes.txt").write_text("the user's own")
    tables = {"north": table("north", 3), "south": table("south", 5)}
    settings = {**SETTINGS, "rounds": 1}
    intarsia.run(tables=tables, id="row", label="kind", out=folder, overwrite=True, **settings)
    assert not (folder / "joined").exists()
    assert (folder / "notes.txt").exists()


def test_a_run_without_anchors_cannot_be_joined(tmp_path):
    tables = {"north": table("north", 3)}
    settings = {key: SETTINGS[key] for key in ("hidden", "latent", "engine", "rounds")}
    intarsia.run(
        tables=tables, id="row", label="kind", out=tmp_path, algorithm="local", yardsticks=False,
        **settings,
    )  # fmt: skip
    with pytest.raises(ExperimentError, match="is of local, and a new client joins by layers"):
        intarsia.join(tmp_path, table("new", 7))


HEAD = ["classifier.bias", "classifier.weight", "shared.0.bias", "shared.0.weight"]


@pytest.mark.parametrize(
    ("scheme", "final_epochs", "taken"),
    [
        ("fedrep", 5, ["shared.0.bias", "shared.0.weight"]),
        pytest.param("fedavg-ft", 0, HEAD, marks=pytest.mark.slow),
        ("fedavg-ft", 5, None),
        pytest.param("l2gd", 5, [f"common.{name}" for name in HEAD], marks=pytest.mark.slow),
    ],
)
def test_what_clients_tuned_for_themselves_is_not_taken(tmp_path, scheme, final_epochs, taken):
    tables = {"north": table("north", 3), "south": table("south", 5)}
    settings = {**SETTINGS, "scheme": scheme, "final_epochs": final_epochs}
    intarsia.run(tables=tables, id="row", label="kind", out=tmp_path, **settings)
    if taken is None:
        with pytest.raises(ExperimentError, match=r"shared\.npz lacks 'classifier\.weight'"):
            intarsia.join(tmp_path, table("new", 7))
        assert not (tmp_path / "joined").exists()
        return
    found = intarsia.join(tmp_path, table("new", 7), epochs=1, out=None).model["new"]
    with np.load(tmp_path / "model" / "shared.npz", allow_pickle=False) as shared:
        assert sorted(shared.files) == sorted(["anchors.means", *taken])
        for name in shared.files:
            if scheme != "fedavg-ft" or name == "anchors.means":  # there the rest is tuned
                np.testing.assert_array_equal(found.parameters[name], shared[name])


@pytest.mark.parametrize("scheme", ["l2gd", "fedavg-ft"])
def test_a_model_that_lacks_what_all_share_is_not_joined(tmp_path, scheme):
    tables = {"north": table("north", 3), "south": table("south", 5)}
    settings = {**SETTINGS, "scheme": scheme, "final_epochs": 0, "rounds": 1}
    intarsia.run(tables=tables, id="row", label="kind", out=tmp_path, **settings)
    model = tmp_path / "model"
    with np.load(model / "shared.npz", allow_pickle=False) as file:
        kept = {name: file[name] for name in file.files if not name.endswith("classifier.bias")}
    np.savez(model / "shared.npz", **kept)
    content = json.loads((model / "networks.json").read_text())
    (model / "networks.json").write_text(json.dumps({**content, "shared": sorted(kept)}))
    # the folder is refused when it is read, for any command
    with pytest.raises(CheckpointError, match=r"'(common\.)?classifier\.bias' is missing"):
        intarsia.join(tmp_path, table("new", 7), out=None)


def test_the_network_of_a_single_client_is_not_taken(tmp_path):
    settings = {**SETTINGS, "rounds": 1, "participation": 1.0}
    intarsia.run(
        tables={"north": table("north", 3)}, label="kind", id="row", out=tmp_path, **settings
    )
    with pytest.raises(ExperimentError, match="has one client, 'north', and all of its network"):
        intarsia.join(tmp_path, table("new", 7), out=None)


@pytest.mark.slow
def test_a_joined_client_learns_sooner_than_alone(tmp_path):
    """Four clients of unseen widths, on a toy like FLIC's linear mapping."""
    rng = np.random.default_rng(1)
    centres = 1.6 * rng.normal(size=(10, 5))

    def party(rows, width):
        y = rng.permutation(np.arange(rows) % 10)
        x = (centres[y] + rng.normal(size=(rows, 5))) @ rng.normal(size=(5, width))
        return x / x.std(0), y

    tables = {f"c{width}": party(660, width) for width in (6, 18, 40)}
    intarsia.run(
        tables=tables, out=tmp_path, algorithm="flic", pretraining_epochs=100, local_epochs=5,
        rounds=4, evaluate_every=0, yardsticks=False, intercept=False, test=0.7,
    )  # fmt: skip
    joined, alone = [], []
    for width in (7, 15, 25, 48):
        new = party(270, width)
        found = intarsia.join(tmp_path, new, name=f"n{width}", epochs=20, out=None).metrics
        joined.append(found.clients_mean.accuracy)
        alone.append(found.standalone_mean.accuracy)
    assert np.mean(joined) > np.mean(alone) + 0.1


def test_a_client_joins_hetfedrep_by_the_layer_that_all_share(tmp_path):
    tables = {"north": table("north", 3), "south": table("south", 5)}
    of_flic = ("variant", "anchor_scale", "pretraining_epochs")
    settings = {key: one for key, one in SETTINGS.items() if key not in of_flic}
    settings["algorithm"] = "hetfedrep"
    intarsia.run(tables=tables, id="row", label="kind", out=tmp_path, **settings)
    found = intarsia.join(tmp_path, table("new", 7, rows=200), epochs=100, out=None)
    assert found.algorithm == "hetfedrep"
    own, other = found.model["new"].parameters, intarsia.load(tmp_path).model["north"].parameters
    for name in ("shared.0.weight", "shared.0.bias"):
        np.testing.assert_array_equal(own[name], other[name])
    assert found.metrics.clients["new"].accuracy > 0.6
    assert set(found.metrics.standalone) == {"new"}
    # equal in accuracy, it is compared by AUC
    assert all("new is better off alone on these rows: AUC" in note for note in found.notes)
