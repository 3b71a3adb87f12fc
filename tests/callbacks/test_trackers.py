"""A run is in a real, local store of each tracker as it is in its folder.

In an environment without a tracker its tests are skipped; `make test-outputs` has one with all.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import intarsia
from intarsia.models.serialization import read_model

from .test_callbacks import GIVEN, tables

CREDIT = Path(__file__).parents[2] / "experiments/credit.toml"
# what libraries of others warn of is theirs
pytestmark = pytest.mark.filterwarnings("ignore")


def history(folder):
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


@pytest.fixture
def store(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="intarsia[mlflow] is not installed")
    monkeypatch.chdir(tmp_path)  # artifacts go to mlruns beside
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'own.db'}")
    return mlflow.MlflowClient()


def only_run(store):
    found = store.search_runs([store.get_experiment_by_name("intarsia").experiment_id])
    assert len(found) == 1
    return found[0]


def test_mlflow_shows_the_run_of_credit(store, tmp_path):
    out = tmp_path / "credit"
    result = intarsia.run(CREDIT, out=out, trackers=["mlflow"], evaluate_every=1)
    run = only_run(store)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "credit"
    assert run.data.params["algorithm.regularisation"] == "0.001"
    assert run.data.params["clients"] == "bank, telecom, retailer"
    assert not [one for one in run.data.params.values() if "csv" in one]  # no path
    for name in ("loss", "gap_relative", "accuracy"):
        told = {one.step: one.value for one in store.get_metric_history(run.info.run_id, name)}
        kept = {one["round"]: one[name] for one in history(out) if one[name] is not None}
        assert {step: told[step] for step in kept} == pytest.approx(kept)
    server = result.metrics.server
    assert run.data.metrics["federated.auc"] == pytest.approx(server.figures.auc)
    assert run.data.metrics["centralised.accuracy"] == pytest.approx(
        result.metrics.centralised.accuracy
    )
    files = {one.path for one in store.list_artifacts(run.info.run_id)}
    assert {"report.html", "result.json", "figures.png", "model"} <= files
    place = Path(store.download_artifacts(run.info.run_id, "", str(tmp_path)))
    assert "<!doctype html>" in (place / "report.html").read_text()[:200].lower()
    model = read_model(place / "model")
    assert model.coef_.tolist() == result.model.coef_.tolist()


def test_a_run_that_goes_on_is_the_same_in_mlflow(store, tmp_path):
    def stop(now):
        if now.round == 3:
            raise KeyboardInterrupt

    given = {**GIVEN, "trackers": ["mlflow"], "yardsticks": False, "checkpoint_seconds": 0}
    with pytest.raises(KeyboardInterrupt):
        intarsia.run(tables=tables(), out=tmp_path / "run", progress=stop, **given)
    assert only_run(store).info.status == "KILLED"
    intarsia.resume(tmp_path / "run", tables=tables())
    run = only_run(store)
    assert run.info.status == "FINISHED"
    told = store.get_metric_history(run.info.run_id, "loss")
    assert sorted(one.step for one in told) == [1, 2, 3, 4, 5, 6]
    # another run in the folder is another run there
    intarsia.run(tables=tables(), out=tmp_path / "run", overwrite=True, **given)
    assert len(store.search_runs([run.info.experiment_id])) == 2


def test_a_run_without_a_folder_has_report_and_model_in_mlflow(store):
    intarsia.run(
        tables=tables(), callbacks=[intarsia.callbacks.MLflow()], **GIVEN, yardsticks=False
    )
    files = {one.path for one in store.list_artifacts(only_run(store).info.run_id)}
    assert {"report.html", "result.json", "model"} <= files


def test_tensorboard_has_the_rounds(tmp_path):
    pytest.importorskip("tensorboard", reason="intarsia[tensorboard] is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out = tmp_path / "run"
    result = intarsia.run(
        tables=tables(), out=out, trackers=["tensorboard"], yardsticks=False, **GIVEN
    )
    read = EventAccumulator(str(out / "tensorboard"))
    read.Reload()

    def values(tag):
        found = read.Tensors(tag)
        return {one.step: one.tensor_proto.float_val[0] for one in found}

    kept = {one["round"]: one["loss"] for one in history(out)}
    assert values("round/loss") == pytest.approx(kept, rel=1e-6)
    wanted = {6: result.metrics.server.accuracy}
    assert values("federated/accuracy") == pytest.approx(wanted, rel=1e-6)


def test_weights_and_biases_has_a_run_and_goes_on_with_it(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="intarsia[wandb] is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "run"
    intarsia.run(tables=tables(), out=out, trackers=["wandb"], yardsticks=False, **GIVEN)
    own = json.loads((out / "trackers.json").read_text())["wandb"]
    (written,) = (out / "wandb").glob(f"offline-run-*/run-{own}.wandb")
    data = written.read_bytes()
    for private in (sys.argv[0], str(tmp_path), sys.executable):
        assert private.encode() not in data, private
    assert b"gap_relative" in data
    assert b"federated.accuracy" in data
