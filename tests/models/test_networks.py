"""The networks of clients: what they say of a table, in the folder of a run and read again."""

from __future__ import annotations

import csv
import io
import json
import pickle
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array

torch = pytest.importorskip("torch")

import intarsia  # noqa: E402  after the skip where torch is missing
from command_line import one_error, said  # noqa: E402
from intarsia.algorithms.networks.architecture import (  # noqa: E402
    Architecture,
    Network,
    as_level,
    without_constant,
)
from intarsia.cli.main import main  # noqa: E402
from intarsia.core.block import Block, Labels  # noqa: E402
from intarsia.data.table import split  # noqa: E402
from intarsia.errors import CheckpointError, ExperimentError, TableError  # noqa: E402
from intarsia.models.networks import ClientNetwork, Networks  # noqa: E402
from intarsia.models.serialization import read_model, write_model  # noqa: E402

SETTINGS = {
    "algorithm": "flic",
    "variant": "hl",
    "anchor_scale": 1.0,
    "weight_decay": 0.0,
    "embedding_decay": 0.0,
    "hidden": 8,
    "latent": 4,
    "rate": 0.02,
    "local_epochs": 2,
    "pretraining_epochs": 2,
    "final_epochs": 20,
    "engine": "loop",
    "rounds": 2,
    "yardsticks": False,
}
WIDTHS = {"north": 2, "south": 5, "west": 3}


def frames(kinds=("p", "q", "r")):
    """Return three clients' DataFrames with columns of their own."""
    rng = np.random.default_rng(0)
    made = {}
    for name, width in WIDTHS.items():
        y = rng.integers(0, len(kinds), 80)
        x = (4 * np.eye(3)[y] + rng.normal(size=(80, 3))) @ rng.normal(size=(3, width)) + 7
        made[name] = pd.DataFrame(x, columns=[f"{name}{j}" for j in range(width)])
        made[name]["kind"] = np.array(kinds)[y]
        made[name]["row"] = [f"{name}-{i}" for i in range(80)]
    return made


def trained(out=None, tables=None, **settings):
    tables = frames() if tables is None else tables
    return intarsia.run(tables=tables, id="row", label="kind", out=out, **{**SETTINGS, **settings})


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return the folder of a run, and its result."""
    folder = tmp_path_factory.mktemp("networks") / "run"
    return folder, trained(folder)


def drawn(features=3, classes=3):
    """Return a network as torch draws it, and the module it is of."""
    torch.manual_seed(0)
    made_of = Architecture(hidden=8, latent=4, layer=True, anchors=True)
    module = Network(features, classes, made_of).double()
    parameters = {name: values.detach().numpy() for name, values in module.named_parameters()}
    labels = Labels("multiclass", tuple("abc")) if classes == 3 else Labels("binary", ("0", "1"))
    names = tuple(f"f{j}" for j in range(features))
    known = {"means": np.array([1.0, -2.0, 0.5]), "scales": np.array([2.0, 0.0, 1.0])}
    return ClientNetwork(
        labels=labels, features=names, architecture=made_of, parameters=parameters, **known
    ), module


@pytest.mark.parametrize("classes", [2, 3])
def test_the_probabilities_are_those_of_the_module(classes):
    network, module = drawn(classes=classes)
    x = np.random.default_rng(0).normal(size=(6, 3))
    inner = np.stack([(x[:, 0] - 1) / 2, np.zeros(6), x[:, 2] - 0.5], axis=1)  # scale 0: constant
    with torch.no_grad():
        expected = module.scores(module.embedding(torch.from_numpy(inner))).softmax(1).numpy()
    np.testing.assert_allclose(network.predict_proba(x), expected, atol=1e-12)
    assert network.predict(x).tolist() == network.classes_[expected.argmax(1)].tolist()
    assert network.n_features_in_ == len(network.feature_names_in_) == 3


def test_texts_where_training_had_numbers_are_named_without_a_word_of_other_clients():
    network, _ = drawn()
    frame = pd.DataFrame({"f0": [f"{at},5" for at in range(40)] + ["n.a."], "f1": 1.0})
    with pytest.raises(TableError) as problem:
        network.predict(frame)
    assert str(problem.value) == (
        "The table: column 'f0' has 41 different texts in 41 rows; correct it, or replace it by "
        "NaN, which counts as missing."
    )


@pytest.mark.parametrize("anchors", [1, 2, 5])
def test_a_module_of_torch_needs_no_anchor_for_each_output(anchors):
    # numbers have two, the ends of a line; classes may share one
    network, module = drawn()
    parameters = network.parameters | {"anchors.means": np.zeros((anchors, 4))}
    x = torch.randn((5, 3), dtype=torch.float64)
    with torch.no_grad():
        found = network.architecture.as_module(parameters, network.features, 3).double()(x)
        torch.testing.assert_close(found, module(x)[1])


def test_what_is_missing_counts_as_the_mean_and_columns_are_found_by_name():
    network, _ = drawn()
    whole = np.array([[5.0, -2.0, 0.5], [1.0, -2.0, 3.0]])
    expected = network.decision_function(whole)
    frame = pd.DataFrame({"shoe": [1, 2], "f2": [np.nan, 3.0], "f0": [5.0, np.nan]})
    np.testing.assert_array_equal(network.decision_function(frame), expected)
    np.testing.assert_array_equal(network.decision_function(csr_array(whole)), expected)
    block = Block(np.arange(2), ("f0", "f2"), whole[:, [0, 2]])
    np.testing.assert_array_equal(network.decision_function(block), expected)
    with pytest.raises(TableError, match="none of the model's 3 features"):
        network.predict(frame[["shoe"]])
    with pytest.raises(TableError, match=r"shape \(2, 2\)"):
        network.predict(whole[:, :2])


@pytest.mark.parametrize("kind", ["perceptron", "linear"])
def test_levels_without_an_embedding_read_the_points_of_level_1(kind):
    """With a layer, and a feature that is always 1; the linear kind has no embedding at all."""
    torch.manual_seed(0)
    made_of = Architecture(embedding=kind, hidden=8, latent=4, layer=True, additive="sum")
    modules = {level: Network(3, 3, made_of).double() for level in (1, 3)}
    parameters = {}
    for level, module in modules.items():
        own = {name: values.detach().numpy() for name, values in module.named_parameters()}
        heads = {name: w for name, w in own.items() if not name.startswith("embedding")}
        parameters |= as_level(level, own if level == 1 else heads)
    network = ClientNetwork(
        labels=Labels("multiclass", ("p", "q", "r")),
        features=("f0", "f2"),
        means=np.zeros(2),
        scales=np.ones(2),
        architecture=made_of,
        parameters=without_constant(parameters, np.array([False, True, False])),
    )
    x = np.random.default_rng(1).normal(size=(5, 2))
    with torch.no_grad():
        points = modules[1].embedding(torch.from_numpy(np.insert(x, 1, 1.0, axis=1)))
        scores = sum(module.scores(points) for module in modules.values())
    if kind == "perceptron":
        np.testing.assert_allclose(network.transform(x), points.numpy(), atol=1e-12)
    np.testing.assert_allclose(network.predict_proba(x), scores.softmax(1).numpy(), atol=1e-12)


@pytest.mark.parametrize("embedding", ["linear", "perceptron"])
def test_a_feature_that_is_always_1_goes_into_the_bias_of_each_level(embedding):
    made_of = Architecture(hidden=5, latent=4, embedding=embedding, additive="sum")
    modules = {level: Network(3, 3, made_of).double() for level in (1, 4)}
    parameters = {}
    for level, module in modules.items():
        own = {name: values.detach().numpy() for name, values in module.named_parameters()}
        parameters |= as_level(level, own)
    network = ClientNetwork(
        labels=Labels("multiclass", ("p", "q", "r")),
        features=("f0", "f2"),
        means=np.zeros(2),
        scales=np.ones(2),
        architecture=made_of,
        parameters=without_constant(parameters, np.array([False, True, False])),
    )
    x = np.random.default_rng(1).normal(size=(5, 2))
    with torch.no_grad():
        inner = torch.from_numpy(np.insert(x, 1, 1.0, axis=1))
        scores = sum(module(inner)[1] for module in modules.values())
    np.testing.assert_allclose(network.predict_proba(x), scores.softmax(1).numpy(), atol=1e-12)


def test_a_feature_that_is_always_1_goes_into_the_bias():
    network, module = drawn()
    parameters = without_constant(network.parameters, np.array([False, True, False]))
    x = np.random.default_rng(1).normal(size=(5, 2))
    other = ClientNetwork(
        labels=network.labels,
        features=("f0", "f2"),
        means=np.zeros(2),
        scales=np.ones(2),
        architecture=network.architecture,
        parameters=parameters,
    )
    inner = torch.from_numpy(np.insert(x, 1, 1.0, axis=1))
    with torch.no_grad():
        expected = module.scores(module.embedding(inner)).softmax(1).numpy()
    np.testing.assert_allclose(other.predict_proba(x), expected, atol=1e-12)


@pytest.mark.parametrize("standardise", [True, False])
def test_the_model_of_a_run_is_what_the_run_evaluated(standardise):
    tables = frames()
    found = trained(tables=tables, standardise=standardise, intercept=True, final_epochs=60)
    for name, table in tables.items():
        rows = Block(table["row"].to_numpy(str), (), np.zeros((80, 0)))
        tested = table[table["row"].isin(split(rows, 0.2)[1].samples)]
        right = found.model[name].predict(tested) == tested["kind"]
        assert right.mean() == pytest.approx(found.metrics.clients[name].accuracy, abs=1e-12)
    assert found.metrics.clients_mean.accuracy > 0.6


def test_a_network_scores_as_estimators_of_scikit_learn_do(finished):
    model, north = finished[1].model["north"], frames()["north"]
    right = model.predict(north) == north["kind"]
    weights = np.arange(80.0)
    assert model.score(north, north["kind"]) == pytest.approx(right.mean(), abs=1e-12)
    weighted = float(np.average(right, weights=weights))
    assert model.score(north, north["kind"], weights) == pytest.approx(weighted, abs=1e-12)
    numbers = replace(model, labels=Labels("regression"))
    said, y = numbers.predict(north), np.arange(80.0)
    share = 1 - np.sum((y - said) ** 2) / np.sum((y - y.mean()) ** 2)
    assert numbers.score(north, y) == pytest.approx(share, abs=1e-12)


def test_who_asks_all_networks_for_a_prediction_is_told_to_take_one(finished):
    networks = finished[1].model
    with pytest.raises(AttributeError) as found:
        networks.predict(frames()["north"])
    assert "a network of its own" in str(found.value)
    assert f"model[{next(iter(networks))!r}].predict" in str(found.value)
    assert not hasattr(networks, "coef_")
    assert not hasattr(networks, "nothing")
    assert [*pickle.loads(pickle.dumps(networks))] == [*networks]


def test_a_dataframe_in_place_of_a_file_is_one_sentence(finished):
    with pytest.raises(TableError, match=r"kind DataFrame; .*model\[client\]\.predict\(table\)"):
        intarsia.predict(finished[0], frames()["north"])


def test_labels_that_are_numbers_come_back_as_numbers():
    found = trained(tables=frames(kinds=(2, 7)))
    assert found.model.labels.task == "binary"
    assert set(found.model["north"].predict(frames()["north"]).tolist()) <= {2, 7}


def test_a_run_leaves_a_file_for_each_network_and_what_all_share(finished):
    folder, result = finished
    files = sorted(path.name for path in (folder / "model").rglob("*.*"))
    assert files == ["00000.npz", "00001.npz", "00002.npz", "networks.json", "shared.npz"]
    shared = np.load(folder / "model" / "shared.npz", allow_pickle=False)
    assert sorted(shared.files) == ["anchors.means", "shared.0.bias", "shared.0.weight"]
    own = np.load(folder / "model" / "clients" / "00001.npz", allow_pickle=False)
    assert own["features"].tolist() == [f"south{j}" for j in range(5)]
    assert not set(own.files) & set(shared.files)
    assert (folder / "model" / "clients").stat().st_mode & 0o077 == 0
    again = intarsia.load(folder).model
    assert again.algorithm == "flic"
    assert list(again) == list(result.model) == list(WIDTHS)
    for name, network in again.items():
        assert list(network.features) == list(result.model[name].features)
        for key, values in result.model[name].parameters.items():
            np.testing.assert_array_equal(network.parameters[key], values, strict=True)
    with pytest.raises(KeyError, match="'south'"):
        again["soth"]


class StopError(Exception):
    pass


def test_a_run_that_was_stopped_leaves_the_same_files(finished, tmp_path):
    def stop(progress):
        if progress.round == 1:
            raise StopError

    with pytest.raises(StopError):
        trained(tmp_path, progress=stop, checkpoint_seconds=0)
    intarsia.resume(tmp_path, tables=frames())
    for path in (finished[0] / "model").rglob("*.*"):
        other = tmp_path / "model" / path.relative_to(finished[0] / "model")
        assert other.read_bytes() == path.read_bytes()


def test_local_networks_share_nothing(tmp_path):
    settings = {key: SETTINGS[key] for key in ("hidden", "latent", "rate", "engine", "rounds")}
    tables = frames()
    intarsia.run(
        tables=tables, id="row", label="kind", out=tmp_path, algorithm="local", yardsticks=False,
        **settings,
    )  # fmt: skip
    assert not (tmp_path / "model" / "shared.npz").exists()
    found = intarsia.load(tmp_path).model
    assert found.shared == {}
    assert found["west"].predict(tables["west"]).shape == (80,)


@pytest.mark.parametrize("harm", ["cut", "gone", "features", "json", "shared"])
def test_a_damaged_file_is_named(finished, tmp_path, harm):
    folder = tmp_path / "model"
    shutil.copytree(finished[0] / "model", folder)
    own = folder / "clients" / "00000.npz"
    if harm == "cut":
        own.write_bytes(own.read_bytes()[:-100])
    elif harm == "gone":
        own.unlink()
    elif harm == "features":
        shutil.copy(folder / "shared.npz", own)
    elif harm == "json":
        (folder / "networks.json").write_text('{"algorithm": "flic"}')
    else:
        shutil.copy(own, folder / "shared.npz")
    with pytest.raises(CheckpointError, match="is not a model that this version wrote"):
        read_model(folder)


def test_a_network_without_others_is_all_its_own(tmp_path):
    network, _ = drawn()
    network = replace(network, features=("town=oslo ✓", "town=rome", "a=b"))
    network = replace(network, levels_={"town": ("oslo ✓", "rome")})
    write_model(Networks("flic", {"only ✓": network}), tmp_path)
    assert not (tmp_path / "shared.npz").exists()
    found = read_model(tmp_path)
    assert found["only ✓"].levels_ == network.levels_
    table = {"a=b": [1.0, np.nan], "town": ["rome", "oslo ✓"]}
    coded = Block(np.arange(2), network.features, np.array([[0, 1, 1.0], [1, 0, np.nan]]))
    for one in (network, found["only ✓"]):
        assert one.predict_proba(pd.DataFrame(table)).tolist() == (
            network.predict_proba(coded).tolist()
        )


# ---- intarsia predict


def predicted(folder, table, *options):
    file = folder.parent / "table.csv"
    table.to_csv(file, index=False)
    return main(["predict", str(folder), str(file), *options])


def test_predict_takes_the_network_of_the_client_whose_columns_the_table_has(finished, capfd):
    folder, result = finished
    table = frames()["south"]
    assert predicted(folder, table) == 0
    out, err = said(capfd)
    assert "taken for one of 'south'" in err
    rows = list(csv.DictReader(io.StringIO(out)))
    network = result.model["south"]
    assert [row["id"] for row in rows] == table["row"].tolist()
    assert [row["label"] for row in rows] == network.predict(table).tolist()
    chances = [float(row["probability"]) for row in rows]
    np.testing.assert_allclose(chances, network.predict_proba(table).max(1), atol=1e-12)


def test_predict_takes_means_for_what_a_named_clients_table_lacks(finished, capfd):
    folder, result = finished
    table = frames()["south"].drop(columns="south3")
    assert predicted(folder, table, "--client", "south") == 0
    out, err = said(capfd)
    assert "lacks 1 of the model's 5 columns; each counts as its mean: south3" in err
    labels = [row["label"] for row in csv.DictReader(io.StringIO(out))]
    assert labels == result.model["south"].predict(table).tolist()


@pytest.mark.parametrize(
    ("columns", "options", "expected"),
    [
        (["south0", "south1"], [], "has the columns of no client (nearest is 'south'"),
        (["south0"], ["--client", "soth"], "has no client 'soth'; use 'south'"),
        (["shoe"], ["--client", "south"], "the model knows 'south0'"),
    ],
)
def test_a_table_of_nobody_is_one_sentence(finished, capfd, columns, options, expected):
    table = pd.DataFrame({name: [1.0, 2.0] for name in columns})
    assert predicted(finished[0], table, *options) == 2
    assert expected in one_error(said(capfd)[1])


def test_a_column_with_an_equals_sign_in_its_name_is_one_of_its_client(tmp_path):
    rng = np.random.default_rng(0)
    columns = {"a": ("bmi>=30", "age"), "b": ("x=1", "x=2", "age")}
    tables = {
        name: (pd.DataFrame(rng.normal(size=(40, len(own))), columns=own), rng.integers(0, 2, 40))
        for name, own in columns.items()
    }
    intarsia.run(tables=tables, out=tmp_path / "run", **SETTINGS)
    for name, (table, _) in tables.items():
        table.to_csv(tmp_path / "t.csv", index=False)
        found = intarsia.predict(tmp_path / "run", tmp_path / "t.csv")
        assert f"taken for one of '{name}'" in found.notes[0]
    table = tables["a"][0].drop(columns="age")
    table.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(ExperimentError, match=r"nearest is 'a', and it lacks 'age'\)"):
        intarsia.predict(tmp_path / "run", tmp_path / "t.csv")


def test_a_table_that_may_be_of_several_clients_needs_a_name(tmp_path, capfd):
    rng = np.random.default_rng(0)
    tables = {name: (rng.normal(size=(40, 2)), rng.integers(0, 2, 40)) for name in "ab"}
    intarsia.run(tables=tables, out=tmp_path / "run", **SETTINGS)
    table = pd.DataFrame({"x0": [1.0], "x1": [2.0]})
    assert predicted(tmp_path / "run", table) == 2
    assert "has the columns of 2 clients ('a', 'b')" in one_error(said(capfd)[1])
    table.to_csv(tmp_path / "t.csv", index=False)
    assert len(intarsia.predict(tmp_path / "run", tmp_path / "t.csv", client="b").scores) == 1


def test_of_a_linear_model_a_client_says_how_the_table_is_read(tmp_path):
    tables = {"a": (np.arange(8.0)[:, None] % 3, np.arange(8) % 2)}
    intarsia.run(tables=tables, out=tmp_path / "run", test=0.0, yardsticks=False)
    pd.DataFrame({"x0": [1.0]}).to_csv(tmp_path / "t.csv", index=False)
    (alike,) = intarsia.predict(tmp_path / "run", tmp_path / "t.csv").rows
    assert list(intarsia.predict(tmp_path / "run", tmp_path / "t.csv", client="a").rows) == [alike]
    with pytest.raises(ExperimentError, match="no client 'b'; use one of 'a'"):
        intarsia.predict(tmp_path / "run", tmp_path / "t.csv", client="b")


def test_an_experiment_changes_to_flic_without_the_settings_of_a_linear_model(tmp_path):
    for name, table in frames().items():
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    clients = "".join(
        f'[[client]]\nname = "{name}"\npath = "{name}.csv"\nid = "row"\nlabel = "kind"\n'
        for name in WIDTHS
    )
    file = tmp_path / "mine.toml"
    file.write_text(
        f'algorithm = {{name = "hyfdca", loss = "hinge", regularisation = 0.1}}\n{clients}'
    )
    found = intarsia.run(file, out=None, **SETTINGS)
    assert (found.algorithm, len(found.model)) == ("flic", 3)
    linear = intarsia.run(file, out=None, algorithm="fedavg", rounds=1, yardsticks=False)
    assert linear.hyperparameters["loss"] == "hinge"


def test_the_command_line_says_which_algorithm_fits(tmp_path, capfd):
    for name, table in frames().items():
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    clients = "".join(
        f'[[client]]\nname = "{name}"\npath = "{name}.csv"\nid = "row"\nlabel = "kind"\n'
        for name in WIDTHS
    )
    (tmp_path / "mine.toml").write_text(f'algorithm = {{name = "flic"}}\n{clients}')
    assert main(["inspect", str(tmp_path / "mine.toml"), "--json"]) == 0
    assert json.loads(said(capfd)[0])["algorithm"] == "flic"


@pytest.mark.parametrize("algorithm", ["local", "flic-linear"])
def test_an_array_is_read_in_the_order_of_the_one_that_trained(algorithm):
    rng = np.random.default_rng(0)
    y, held = rng.integers(0, 2, 60), {}
    widths = {"narrow": 2, "middle": 12, "wide": 21}  # x0 and x1 are at all, others at two or one
    for name, width in widths.items():
        x = rng.normal(size=(60, width)) * np.arange(1, width + 1)
        x[:, -1] += 5 * y
        held[name] = (x, y + 0.0)
    given = {"algorithm": "local", "engine": "loop", "rounds": 1, "final_epochs": 5, "hidden": 8}
    if algorithm == "flic-linear":
        given = {"algorithm": algorithm, "latent": 2, "rank": 1, "rounds": 2, "task": "regression"}
    found = intarsia.run(tables=held, test=0.0, yardsticks=False, intercept=True, **given)
    for name, (x, labels) in held.items():
        model = found.model[name]
        assert list(model.feature_names_in_) == [f"x{j}" for j in range(x.shape[1])]
        named = pd.DataFrame(x, columns=[f"x{j}" for j in range(x.shape[1])])
        np.testing.assert_allclose(model.predict(x), model.predict(named), rtol=1e-9)
        score = found.metrics.clients[name]
        if algorithm == "flic-linear":
            loss = ((model.predict(x) - labels) ** 2).mean() / 2
            assert loss == pytest.approx(score.loss, rel=1e-6)
        else:
            chance = model.predict_proba(x)[np.arange(60), labels.astype(int)]
            assert -np.log(chance).mean() == pytest.approx(score.loss, rel=1e-4)


def test_pixels_are_read_by_their_names_whatever_their_order():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 40)
    x = rng.normal(size=(40, 256)) + y[:, None] * np.tile([1.0, 0.0], 128)
    given = {"algorithm": "local", "embedding": "convolutional", "latent": 4, "engine": "loop"}
    given |= {"rounds": 1, "local_epochs": 2, "final_epochs": 0, "yardsticks": False, "test": 0.0}
    losses = []
    for letters in ("pixel{:03d}", "x{}"):  # "x10" comes before "x2" where words are sorted
        names = [letters.format(number) for number in range(256)]
        made = pd.DataFrame(x, columns=names).assign(y=y)
        tables = {"a": made[:20], "b": made[20:]}
        found = intarsia.run(tables=tables, label="y", intercept=False, **given)
        losses.append(found.metrics.server.loss)
        mixed = made[:20][names[::-1]]
        own = found.model["a"]
        np.testing.assert_allclose(own.predict_proba(mixed), own.predict_proba(made[:20]))
        chance = own.predict_proba(mixed)[np.arange(20), y[:20]]
        assert -np.log(chance).mean() == pytest.approx(found.metrics.clients["a"].loss, rel=1e-4)
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)
