"""What is written for use elsewhere predicts as the model does, in libraries of its own.

In an environment without these libraries the tests are skipped; `make test-outputs` has one.
"""

from __future__ import annotations

import json
import shutil
import sys

import numpy as np
import pandas as pd
import pytest

import intarsia
from intarsia.cli.main import main
from intarsia.errors import ConvergenceError, ExperimentError
from intarsia.inference import export as exporting
from intarsia.inference.export import export
from intarsia.models.linear import LinearClassifier, LinearRegressor
from intarsia.models.onnx_model import linear_onnx
from intarsia.models.scikit_model import scikit_pipeline
from intarsia.models.serialization import read_model

COLOURS = ["red", "green = dark", "blå"]


def frame(rows=400, seed=0):
    rng = np.random.default_rng(seed)
    made = pd.DataFrame(
        rng.normal(size=(rows, 3)) * [1, 1e4, 1e-3] + [0, 5e4, 1], columns=list("abc")
    )
    made["colour"] = np.array(COLOURS, object)[rng.integers(3, size=rows)]
    made["code"] = rng.integers(3, size=rows).astype(str)
    return made


def labelled(kind, rows=400):
    made, rng = frame(rows), np.random.default_rng(1)
    z = made["a"] + 1e3 * (made["c"] - 1) + (made["colour"] == "red") + rng.normal(size=rows) / 2
    if kind == "binary":
        return made.assign(y=np.where(z > 0, "yes", "no"))
    if kind == "multiclass":
        return made.assign(y=np.digitize(z, [-0.5, 0.8]))
    return made.assign(y=np.exp(z / 4) if kind == "positive" else z)


def train(folder, kind, loss, **settings):
    made = labelled(kind)
    apart = {"left": made[["a", "b", "y"]], "right": made[["c", "colour", "code"]]}
    apart = {name: own.rename_axis("id").reset_index() for name, own in apart.items()}
    given = {"id": "id", "label": "y", "loss": loss, "rounds": 40, "yardsticks": False, **settings}
    intarsia.run(tables=apart, categorical=["code"], out=folder, **given)
    return folder


LINEAR = [
    *(("binary", loss) for loss in ("logistic", "hinge", "squared_hinge", "squared")),
    *(("multiclass", loss) for loss in ("logistic", "hinge")),
    *(("numbers", loss) for loss in ("squared", "huber", "quantile")),
    *(("positive", loss) for loss in ("poisson", "gamma")),
]


class Trained(dict):
    """A folder for each kind of linear model, trained when it is first asked for."""

    def __init__(self, place):
        super().__init__()
        self.place = place

    def __missing__(self, kind_and_loss):
        folder = self.place / "-".join(kind_and_loss)
        return self.setdefault(kind_and_loss, train(folder, *kind_and_loss))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return Trained(tmp_path_factory.mktemp("linear"))


def raw_rows():
    """Rows as a user has them: numbers that are missing, levels that training did not see."""
    made = frame(80, seed=3)
    made.loc[:9, "a"] = np.nan
    made.loc[5:14, "colour"] = "purple"
    made.loc[12:20, "code"] = ""
    return made


def agrees(model, found, rows):
    regression = isinstance(model, LinearRegressor)
    if regression:
        np.testing.assert_allclose(found["prediction"], model.predict(rows), rtol=1e-6, atol=1e-6)
        return
    scores = model.decision_function(rows)
    np.testing.assert_allclose(found["scores"], scores, rtol=1e-6, atol=1e-6)
    assert found["label"].tolist() == model.predict(rows).tolist()
    assert ("probabilities" in found) == hasattr(model, "predict_proba")
    if "probabilities" in found:
        wanted = model.predict_proba(rows)
        np.testing.assert_allclose(found["probabilities"], wanted, atol=1e-6)


@pytest.mark.parametrize(("kind", "loss"), LINEAR)
def test_an_onnx_graph_predicts_raw_columns_as_the_model(trained, kind, loss):
    onnxruntime = pytest.importorskip("onnxruntime", reason="intarsia[export] is not installed")
    pytest.importorskip("onnx")
    folder, rows = trained[kind, loss], raw_rows()
    found = export(folder, "onnx")
    assert found.path == folder / "model.onnx"
    assert found.difference < 1e-9
    session = onnxruntime.InferenceSession(found.path)
    told = session.get_modelmeta().custom_metadata_map
    numbers, categories = (json.loads(told[name]) for name in ("numbers", "categories"))
    assert sorted(categories) == ["code", "colour"]
    given = {"numbers": rows[numbers].to_numpy(np.float64)}
    given |= {name: rows[[name]].to_numpy() for name in categories}
    names = [one.name for one in session.get_outputs()]
    said = dict(zip(names, session.run(names, given), strict=True))
    agrees(read_model(folder / "model"), said, rows)


@pytest.mark.parametrize(("kind", "loss"), LINEAR)
def test_a_pipeline_of_scikit_learn_predicts_raw_columns_as_the_model(trained, kind, loss):
    io = pytest.importorskip("skops.io", reason="intarsia[export] is not installed")
    folder, rows = trained[kind, loss], raw_rows()
    found = export(folder, "skops")
    assert found.difference < 1e-9
    untrusted = io.get_untrusted_types(file=found.path)
    assert not [one for one in untrusted if "intarsia" in one]
    pipeline = io.load(found.path, trusted=untrusted)
    model = read_model(folder / "model")
    if isinstance(model, LinearClassifier):
        said = {"label": pipeline.predict(rows), "scores": pipeline.decision_function(rows)}
        if hasattr(pipeline, "predict_proba"):
            said["probabilities"] = pipeline.predict_proba(rows)
    else:
        said = {"prediction": pipeline.predict(rows)}
    agrees(model, said, rows)
    whole = rows.assign(code=np.arange(len(rows)) % 3)  # numbers, where training had text
    with pytest.raises(TypeError):
        pipeline.predict(whole)


def test_arrays_and_their_names_are_those_of_the_model(trained, tmp_path):
    arrays = pytest.importorskip("safetensors.numpy", reason="intarsia[export] is not installed")
    folder = trained["multiclass", "logistic"]
    found = export(folder, "safetensors", out=tmp_path / "own.safetensors")
    held, model = arrays.load_file(found.path), read_model(folder / "model")
    np.testing.assert_array_equal(held["coef"], model.coef_)
    np.testing.assert_array_equal(held["intercept"], model.intercept_)
    told = json.loads((tmp_path / "own.safetensors.json").read_text())
    assert told["features"] == model.feature_names_in_.tolist()
    assert told["classes"] == [0, 1, 2]
    assert told["loss"] == "logistic"
    assert "a new level is 'other' where that is a level, and else missing" in told["says"]
    assert told["arrays"]["coef"] == ["float64", [3, 9]]


NETWORKS = [
    ("flic", "multiclass", {"rounds": 2}),
    ("flic", "numbers", {"rounds": 2}),
    ("fedavg-ft", "numbers", {"rounds": 2, "embedding": "linear"}),
    ("femam", "binary", {"rounds": 4}),
]


@pytest.mark.parametrize(("algorithm", "kind", "settings"), NETWORKS)
def test_a_network_is_a_graph_with_its_predictions(tmp_path, algorithm, kind, settings):
    for name in ("torch", "onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(name, reason="intarsia[export,torch] is not installed")
    made = labelled(kind)
    halves = {"one": made[:200], "two": made[200:]}
    how = {"algorithm": algorithm, "yardsticks": False, "categorical": ["code"], **settings}
    intarsia.run(tables=halves, label="y", out=tmp_path / "run", **how)
    with pytest.raises(ExperimentError, match="has a model for each client; name whose with"):
        export(tmp_path / "run", "onnx")
    found = export(tmp_path / "run", "onnx", client="two")
    assert found.difference < 1e-4  # float32
    model = read_model(tmp_path / "run" / "model")["two"]
    rows = exporting._trial_rows(model)
    said = exporting._said_by_onnx(found.path.read_bytes(), rows)
    if kind == "numbers":
        np.testing.assert_allclose(said["prediction"], model.predict(rows.block), atol=1e-5)
    else:
        wanted = model.predict_proba(rows.block)
        np.testing.assert_allclose(said["probabilities"], wanted, atol=1e-6)
        assert said["label"].astype(str).tolist() == model.predict(rows.block).astype(str).tolist()
    if (algorithm, kind) != ("flic", "multiclass"):
        return
    with pytest.raises(ExperimentError, match="is a network, which scikit-learn has no estimator"):
        export(tmp_path / "run", "skops", client="one")
    arrays = export(tmp_path / "run", "safetensors", client="one")
    assert json.loads(arrays.names.read_text())["architecture"]["latent"] > 0
    with pytest.raises(ExperimentError, match="client is 'too', which has no model; use 'two'"):
        export(tmp_path / "run", "onnx", client="too")


def test_a_graph_that_predicts_something_else_is_not_written(trained, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime", reason="intarsia[export] is not installed")
    made = exporting._trial_rows

    def other(model):
        rows = made(model)
        model.coef_ = model.coef_ * (1 + 1e-6)
        return rows

    monkeypatch.setattr(exporting, "_trial_rows", other)
    with pytest.raises(ConvergenceError, match=r"differs from the model by .*; nothing was"):
        export(trained["binary", "logistic"], "onnx", out=tmp_path / "x.onnx")
    assert not (tmp_path / "x.onnx").exists()


@pytest.mark.parametrize("name", ["label", "numbers", "scores", "probabilities", "intarsia/x"])
def test_a_category_with_a_name_of_the_graph_s_own_is_refused(trained, name, tmp_path, capfd):
    pytest.importorskip("onnx")
    folder = tmp_path / "run"
    shutil.copytree(trained["binary", "logistic"], folder)
    path = folder / "model" / "linear.json"
    path.write_text(path.read_text(encoding="utf-8").replace("colour", name), encoding="utf-8")
    out = tmp_path / "new.onnx"
    assert main(["export", str(folder), "--format", "onnx", "--out", str(out)]) == 2
    said = capfd.readouterr().err
    assert f"The column of categories {name!r} cannot be an input of an ONNX file" in said
    assert not out.exists()


def test_what_cannot_be_exported_is_one_sentence(trained, tmp_path, monkeypatch, capfd):
    folder = trained["binary", "hinge"]
    command = ["export", str(folder), "--format"]
    assert main([*command, "onxx"]) == 2
    assert "error: format is 'onxx'; use 'onnx' (the nearest of" in capfd.readouterr().err
    assert main(["export", str(tmp_path), "-f", "onnx"]) == 2
    assert "holds no result.json" in capfd.readouterr().err
    monkeypatch.setitem(sys.modules, "skops", None)
    monkeypatch.setitem(sys.modules, "onnx", None)
    for name in ("onnx", "skops"):
        assert main([*command, name]) == 2
        assert f"needs the library {name}, which is not installed; run" in capfd.readouterr().err
    with pytest.raises(ExperimentError, match="is no file in a folder that is there"):
        export(folder, "onnx", out=tmp_path / "none" / "x.onnx")


def rare_and_own():
    """Two tables with a category: each has levels of its own, and one few of some."""
    made = labelled("binary").drop(columns="code").assign(id=np.arange(400))
    made["colour"] = np.where(np.arange(400) < 200, made["colour"], "pale")
    made.loc[[3, 5, 7], "colour"] = "seldom"
    made.loc[[2, 4, 6], "colour"] = "scarce"  # six rows of "other": fewer than five count as none
    return {"one": made[:200], "two": made[200:]}


GAPS = ["red", "pale", "seldom", "a new one", "", "?"]


def test_a_new_level_is_other_and_a_missing_one_the_mean_in_a_pipeline():
    how = {"label": "y", "id": "id", "loss": "logistic", "yardsticks": False, "test": 0.0}
    model = intarsia.run(tables=rare_and_own(), **how).model
    assert "colour=other" in model.feature_names_in_
    rows = pd.concat([frame(1)] * 8).assign(colour=[*GAPS, None, np.nan])
    wanted = model.decision_function(rows)
    # the rows of few are those of "seldom" and "scarce": what they say counts for a new level, too
    assert wanted[2] == wanted[3] != wanted[4] == wanted[5] == wanted[6] == wanted[7]
    np.testing.assert_allclose(scikit_pipeline(model).decision_function(rows), wanted, atol=1e-9)
    onnxruntime = pytest.importorskip("onnxruntime", reason="intarsia[export] is not installed")
    session = onnxruntime.InferenceSession(linear_onnx(model))
    given = {"numbers": rows[["a", "b", "c"]].to_numpy()[:6]}
    given |= {name: rows[[name]].to_numpy()[:6] for name in model.levels_}
    [said] = session.run(["scores"], given)
    np.testing.assert_allclose(said, wanted[:6], atol=1e-9)


@pytest.mark.parametrize("client", ["one", "two"])
def test_a_graph_takes_a_level_that_the_network_was_not_trained_on_as_it_does(client, tmp_path):
    for name in ("torch", "onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(name, reason="intarsia[export,torch] is not installed")
    how = {"algorithm": "flic", "label": "y", "id": "id", "yardsticks": False, "test": 0.0}
    out = tmp_path / "run"
    intarsia.run(tables=rare_and_own(), out=out, rounds=2, **how)
    model = read_model(out / "model")[client]
    found = export(out, "onnx", client=client)
    assert found.difference < 1e-4
    session = exporting._library("onnxruntime", "onnx").InferenceSession(found.path)
    rows = pd.concat([frame(1)] * 6).assign(colour=GAPS)
    given = {"numbers": rows[["a", "b", "c"]].to_numpy()}
    given |= {name: rows[[name]].to_numpy() for name in model.levels_}
    [said] = session.run(["scores"], given)
    wanted = model.decision_function(rows)
    np.testing.assert_allclose(said, wanted, atol=1e-5)
    # rows with the same features, whose scores are numbers of 32 bits; and two that differ
    same, unlike = ([1, 2, 3], [1, 4]) if client == "one" else ([0, 2, 3, 4, 5], [0, 1])
    np.testing.assert_allclose(wanted[same], wanted[same[0]], atol=1e-6)
    np.testing.assert_allclose(wanted[4], wanted[5], atol=1e-6)
    assert abs(np.subtract(*wanted[unlike])) > 1e-3
