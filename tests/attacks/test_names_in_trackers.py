"""A client's name lost MLflow all scores and files, and a link had it keep a file of the user's."""

from __future__ import annotations

import types

import numpy as np
import pandas as pd
import pytest

import intarsia
from intarsia.callbacks import mlflow_tracker
from intarsia.callbacks.contents import files_of
from intarsia.callbacks.mlflow_tracker import MLflow, _keys
from intarsia.errors import CheckpointError


class RefusedError(Exception):
    pass


class Store:
    """A store that refuses one metric and one file."""

    def __init__(self):
        self.metrics, self.files, self.status = [], [], "RUNNING"

    def log_batch(self, run, metrics):
        if any(one == "federated.loss" for one, *_ in metrics):
            raise RefusedError("no such metric")
        self.metrics += [name for name, *_ in metrics]

    def log_artifact(self, run, path, inside):
        if path.endswith("history.jsonl"):
            raise RefusedError("no such file")
        self.files.append(path.rpartition("/")[2])

    def set_tag(self, run, key, value):
        pass

    def set_terminated(self, run, status):
        self.status = status


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    x = np.random.default_rng(0).normal(size=(80, 2))
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1]}).assign(kind=np.where(x[:, 0] > 0, "p", "q"))
    tables = {"../../x": frame[:40], "south": frame[40:]}
    how = {"algorithm": "fedavg", "rounds": 2, "yardsticks": False, "label": "kind"}
    return intarsia.run(tables=tables, out=tmp_path_factory.mktemp("linear") / "run", **how)


@pytest.fixture
def tracker(monkeypatch):
    mlflow = types.SimpleNamespace(
        exceptions=types.SimpleNamespace(MlflowException=RefusedError),
        entities=types.SimpleNamespace(Metric=lambda *given: given),
    )
    monkeypatch.setattr(mlflow_tracker, "library", lambda *_: mlflow)
    own = MLflow()
    own._client, own._run = Store(), "7"
    return own


def test_one_figure_or_file_that_is_refused_loses_no_other(result, tracker):
    with pytest.raises(RefusedError):
        tracker.on_end(result)
    store = tracker._client
    assert store.status == "FINISHED"
    assert "federated.accuracy" in store.metrics
    assert "client..._.._x.accuracy" in store.metrics
    assert {"report.html", "result.json", "linear.json"} <= set(store.files)


def test_a_run_that_stops_ends_though_nothing_can_be_sent(tracker):
    tracker._waiting = [("federated.loss",)]
    with pytest.raises(RefusedError):
        tracker.on_stop(KeyboardInterrupt())
    assert tracker._client.status == "KILLED"


def test_names_of_clients_fit_and_stay_apart():
    clients = ["a:b", "a;b", "a_b", "../../x", "x" * 300, "x" * 299, "A_B"]
    found = _keys(["loss", *(f"client.{one}.loss" for one in clients)])
    assert found["loss"] == "loss"
    assert found["client.a_b.loss"] == "client.a_b.loss"  # what fits stays
    assert len({one.casefold() for one in found.values()}) == 8
    assert all(len(one) <= 250 and not set(one) & set("/:;") for one in found.values())
    assert _keys(["client.a:b.loss", "client.a;b.loss", "client.a;b.auc"]) == {
        "client.a:b.loss": "client.a_b.loss",
        "client.a;b.loss": "client.a_b_2.loss",
        "client.a;b.auc": "client.a_b_2.auc",
    }


def test_a_tracker_is_sent_no_file_that_a_link_leads_to(result, tmp_path):
    (tmp_path / "own").write_text("mine")
    (result.folder / "structure.png").symlink_to(tmp_path / "own")
    with pytest.raises(CheckpointError, match="leads out of it"), files_of(result) as folder:
        names = {one.name for one in folder.iterdir()}
    assert "structure.png" not in names
    assert {"result.json", "model"} <= names
