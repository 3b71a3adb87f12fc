"""Callbacks hear of a run what happens, in order, and none of their errors ends it."""

from __future__ import annotations

import logging
import sys

import numpy as np
import pandas as pd
import pytest

import intarsia
from intarsia.callbacks import Callback
from intarsia.cli.main import main
from intarsia.errors import ExperimentError


def tables(rows=120):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 4))
    label = (x.sum(axis=1) + rng.normal(size=rows) > 0).astype(int)
    left = pd.DataFrame(x[:, :2], columns=["a", "b"]).assign(id=range(rows), label=label)
    right = pd.DataFrame(x[:, 2:], columns=["c", "d"]).assign(id=range(rows))
    return {"left": left, "right": right}


GIVEN = {"id": "id", "label": "label", "loss": "hinge", "method": "ascent", "rounds": 6}
GIVEN |= {"evaluate_every": 2, "tolerance": 0.0}


class Heard(Callback):
    def __init__(self):
        self.calls = []

    def on_start(self, description):
        self.calls.append(("start", description.name, description.out))

    def on_round(self, now):
        self.calls.append(("round", now.round, now.loss))

    def on_end(self, result):
        self.calls.append(("end", result))

    def on_stop(self, error):
        self.calls.append(("stop", type(error)))


def test_a_callback_hears_start_rounds_and_end(tmp_path, caplog):
    heard, rounds = Heard(), []

    class RoundsAlone:
        def on_round(self, now):
            rounds.append(now.round)

    with caplog.at_level(logging.DEBUG, logger="intarsia"):
        result = intarsia.run(
            tables=tables(), out=tmp_path / "run", callbacks=[heard, RoundsAlone()], **GIVEN
        )
    names = [one[0] for one in heard.calls]
    assert names == ["start", *["round"] * 6, "end"]
    assert heard.calls[0] == ("start", "tables", str(tmp_path / "run"))
    assert rounds == [1, 2, 3, 4, 5, 6]
    assert heard.calls[-1][1] is result
    assert result.metrics.centralised is not None  # the reference models are there too
    said = [one.getMessage() for one in caplog.records if one.name == "intarsia"]
    assert said[0] == "tables: hyfdca over 2 clients, 6 rounds at most"
    assert said[-1] == "tables: 6 rounds, ended by rounds"
    nothing = Heard()
    intarsia.run(tables=tables(), callbacks=[nothing], **GIVEN)
    assert nothing.calls[0] == ("start", "tables", "")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["mlflow"], "has 'mlflow', which hears nothing"),
        ([Heard], "which hears nothing"),
        ([object()], "which hears nothing"),
        ("mlflow", "callbacks is 'mlflow'; give a list"),
        (None, "callbacks is None; give a list"),
    ],
)
def test_what_hears_nothing_of_a_run_is_refused(given, said):
    with pytest.raises(ExperimentError, match=said):
        intarsia.run(tables=tables(), callbacks=given, **GIVEN)


def test_an_error_in_a_callback_is_told_and_training_goes_on():
    class Broken:
        def on_start(self, description):
            raise OSError("no route there")

        def on_round(self, now):
            raise ValueError("NaN")

        def on_end(self, result):
            raise RuntimeError("full")

    given = {**GIVEN, "yardsticks": False}
    plain = intarsia.run(tables=tables(), **given)
    with pytest.warns(RuntimeWarning, match="failed in") as told:
        found = intarsia.run(tables=tables(), callbacks=[Broken()], **given)
    assert str(told[0].message) == (
        "The callback Broken failed in on_start (OSError: no route there); training goes on."
    )
    assert len(told) == 8
    assert found.metrics == plain.metrics


def test_a_run_that_goes_on_tells_the_rounds_that_are_left(tmp_path):
    heard = Heard()

    def stop(now):
        if now.round == 3:
            raise KeyboardInterrupt

    how = {"out": tmp_path / "run", "checkpoint_seconds": 0, "yardsticks": False}
    with pytest.raises(KeyboardInterrupt):
        intarsia.run(tables=tables(), progress=stop, callbacks=[heard], **how, **GIVEN)
    assert heard.calls[-1] == ("stop", KeyboardInterrupt)
    again, same = Heard(), tables()
    intarsia.resume(tmp_path / "run", tables=same, callbacks=[again])
    assert [one[:2] for one in again.calls[:-1]] == [
        ("start", "tables"),
        *(("round", number) for number in (4, 5, 6)),
    ]
    done = Heard()
    intarsia.resume(tmp_path / "run", tables=same, callbacks=[done])
    assert done.calls == []  # it is finished
    # reference models alone
    intarsia.resume(tmp_path / "run", tables=same, callbacks=[done], yardsticks=True)
    assert [one[0] for one in done.calls] == ["start", "end"]


def test_a_tracker_that_is_missing_or_unknown_is_one_sentence(tmp_path, monkeypatch, capfd):
    for name in ("mlflow", "tensorboard.summary", "wandb"):
        monkeypatch.setitem(sys.modules, name, None)
    for name, frame in tables().items():
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    clients = "".join(
        f'[[client]]\nname = "{name}"\npath = "{name}.csv"\nid = "id"\n'
        for name in ("left", "right")
    )
    text = '[experiment]\ntrackers = ["{}"]\n[algorithm]\nname = "hyfdca"\n' + clients.replace(
        "\n[[client]]", '\nlabel = "label"\n[[client]]'
    )
    file = tmp_path / "mine.toml"
    for name in ("mlflow", "tensorboard", "wandb"):
        file.write_text(text.format(name))
        assert main(["run", str(file)]) == 2
        assert capfd.readouterr().err == (
            f"error: The tracker '{name}' needs the library {name}, which is not installed; run "
            f'pip install "intarsia[{name}]", or leave it out of experiment.trackers.\n'
        )
    assert not (tmp_path / "runs").exists()
    file.write_text(text.format("mlfow"))
    with pytest.raises(ExperimentError, match="trackers"):
        intarsia.run(file)
    file.write_text(text.format("mlflow"))
    with pytest.raises(ExperimentError) as caught:
        intarsia.run(file, trackers="mlfow")
    assert str(caught.value) == (
        "[experiment] trackers is \"mlfow\"; use 'mlflow' (the nearest of 'mlflow', "
        "'tensorboard', 'wandb')."
    )
    with pytest.raises(ExperimentError, match="The tracker 'mlflow' needs the library mlflow"):
        intarsia.run(file, trackers="mlflow")  # one of them needs no list
    # -c leaves them out
    assert main(["run", str(file), "-c", "experiment.trackers=[]", "--no-yardsticks", "-q"]) == 0
