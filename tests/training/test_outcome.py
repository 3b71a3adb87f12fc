from __future__ import annotations

import errno
import itertools
import os
import signal
from contextlib import closing, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import intarsia
from intarsia.algorithms.linear.cocoa import CoCoA
from intarsia.core.algorithm import FinalResult, RoundMetrics
from intarsia.core.block import Block, Labels
from intarsia.core.schema import Schema
from intarsia.data.reader import table_from
from intarsia.data.source import Source
from intarsia.data.table import split
from intarsia.engines.simulation import Simulation
from intarsia.experiment.config import Experiment
from intarsia.training import outcome
from intarsia.training.outcome import Artist, Cost, Outcome, finish_run, result_of

EXPERIMENT = Experiment(
    name="e", algorithm="cocoa", clients=(Source(name="a", path="a.csv"),), tolerance=1e-6
)


@pytest.mark.parametrize(
    ("finished", "gap", "note"),
    [
        ("tolerance", 9e-7, None),
        (
            "tolerance",
            1.04e-6,
            "within the tolerance 1e-06 after round 7; measured once more it is",
        ),
        ("rounds", 1e-3, "Stopped after 7 rounds at a relative gap of 1.0e-03, above the"),
        ("rounds", 9e-7, None),
        ("algorithm", 1e-3, None),
    ],
)
def test_a_certificate_above_the_tolerance_is_explained(finished, gap, note):
    info = RoundMetrics(primal=1.0, dual=1.0 - gap, gap_relative=gap)
    found = result_of(
        EXPERIMENT,
        CoCoA(),
        Outcome(7, finished, FinalResult(info), None, {}),
        Cost(datetime.now(UTC), seconds={}),
        Labels("binary", ("no", "yes")),
    )
    assert found.positive_class == "yes"
    assert (note in found.notes[0]) if note else not found.notes


def test_a_client_that_is_not_evaluated_is_named():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(70, 3))
    tables = {"long": (x[:60], np.sign(x[:60, 0])), "short": (x[60:], np.sign(x[60:, 0]))}
    found = intarsia.run(tables=tables, rounds=1, tolerance=0, yardsticks=False)
    (note,) = [one for one in found.notes if one.startswith("Not evaluated")]
    assert note.startswith("Not evaluated: 'short' with fewer than 5 labelled test samples")
    assert list(found.metrics.clients) == ["long"]
    both = {"long": tables["long"], "also": tables["long"]}
    found = intarsia.run(tables=both, rounds=1, tolerance=0, yardsticks=False)
    assert not [one for one in found.notes if one.startswith("Not evaluated")]


def test_a_test_part_without_a_label_is_said_to_have_no_scores():
    rows = np.arange(60)
    everyone = pd.DataFrame({"id": rows, "a": rows % 7.0})
    ids, _ = split(table_from(everyone, client="all", id="id"))
    few = pd.DataFrame({"id": ids.samples, "b": ids.samples % 5.0, "y": ids.samples % 2})
    how = {"id": "id", "label": "y", "loss": "logistic", "rounds": 1, "yardsticks": False}
    found = intarsia.run(tables={"few": few, "all": everyone}, **how)
    assert found.metrics.server is None
    (note,) = [one for one in found.notes if one.startswith("There are no scores")]
    assert f"none of the {60 - len(ids.samples)} test samples has a label" in note


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    """Return a result with curves, and who held what."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(300, 4))
    y = np.sign(x[:, 0] + rng.normal(size=300))
    folder = tmp_path_factory.mktemp("finished") / "run"
    tables = {"a": (x[:200, :3], y[:200]), "b": (x[200:], y[200:])}
    found = intarsia.run(tables=tables, rounds=2, yardsticks=False, out=folder)
    trained = SimpleNamespace(classes=["no", "yes"])
    blocks = {"a": Block(np.arange(3), ("f", "g"), np.ones((3, 2)))}
    return replace(found, trained=trained), Schema.of(blocks, Labels("binary"))


def drawn(folder, result, schema, artist):
    folder.mkdir()
    finish_run(replace(result, folder=folder, trained=None), holdings=schema, artist=artist)
    return {path.name: path.read_bytes() for path in folder.glob("*.png")}


def test_pictures_drawn_beside_the_training_are_those_drawn_after_it(finished_run, tmp_path):
    result, schema = finished_run
    here = drawn(tmp_path / "here", result, schema, None)
    with closing(Artist(tmp_path / "beside", schema)) as artist:
        beside = drawn(tmp_path / "beside", result, schema, artist)
    assert sorted(here) == ["figures.png", "holdings.png"]
    assert beside == here


def test_pictures_have_the_classes_of_the_model_wherever_they_are_drawn(finished_run, tmp_path):
    result, _ = finished_run
    for name in ("here", "beside"):
        (tmp_path / name).mkdir()
    outcome.draw(tmp_path / "here", result, ("no", "yes"))
    with closing(Artist(tmp_path / "beside", None)) as artist:
        assert artist.draws(replace(result, folder=tmp_path / "beside"))
    names = [path.read_bytes() for path in sorted(tmp_path.glob("*/figures.png"))]
    assert names[0] == names[1]
    assert names[0] != drawn(tmp_path / "unnamed", result, None, None)["figures.png"]


def test_pictures_of_networks_have_their_classes(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    named = []
    draw = "intarsia.plots.score_curves.scores_picture"
    monkeypatch.setattr(draw, lambda *_, classes, **settings: named.append(classes))
    monkeypatch.setattr(Artist, "draws", lambda *_: False)
    x = np.random.default_rng(1).normal(size=(150, 2))
    y = np.array(["high", "low", "mid"])[np.argsort(np.argsort(x[:, 0])) // 50]
    tables = {"a": (x[:75], y[:75]), "b": (x[75:], y[75:])}
    how = {"algorithm": "local", "rounds": 1, "yardsticks": False}
    intarsia.run(tables=tables, out=tmp_path / "run", **how)
    assert named == [("high", "low", "mid")]


def test_pictures_are_drawn_where_the_process_that_draws_was_killed(finished_run, tmp_path):
    result, schema = finished_run
    with closing(Artist(tmp_path / "killed", schema)) as artist:
        os.kill(artist._fork._process.pid, signal.SIGKILL)
        found = drawn(tmp_path / "killed", result, schema, artist)
    assert sorted(found) == ["figures.png", "holdings.png"]
    assert (tmp_path / "killed/result.json").is_file()


def test_what_goes_wrong_in_drawing_is_raised(finished_run, tmp_path):
    result, schema = finished_run
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "figures.png").mkdir()
    with closing(Artist(folder, schema)) as artist, pytest.raises(IsADirectoryError):
        finish_run(replace(result, folder=folder, trained=None), artist=artist)
    assert not (folder / "result.json").exists()


@pytest.mark.parametrize(
    ("rows", "workers", "run", "beside"),
    [(10, 2, 0, True), (10, 1, 0, False), (10, 2, 1, False), (1 << 21, 2, 0, False)],
)
def test_pictures_of_small_tables_are_drawn_beside_the_first_run(
    monkeypatch, tmp_path, rows, workers, run, beside
):
    blocks = {"a": Block(np.arange(10), ("f", "g"), np.ones((10, 2)), np.ones(10))}
    schema = Schema.of(blocks, Labels("binary"))
    engine = Simulation({"train": (schema, blocks)}, 0, workers=workers)
    many = SimpleNamespace(samples=range(rows), features=range(2))
    monkeypatch.setattr(outcome, "_RUNS", itertools.count(run))
    monkeypatch.setattr(outcome, "Artist", lambda folder, holdings: nullcontext())
    monkeypatch.setattr(outcome, "closing", lambda artist: "beside")
    found = outcome.artist_beside(tmp_path, engine, many, drawn=False)
    assert (found == "beside") == beside
    assert outcome.artist_beside(None, engine, many, drawn=False) != "beside"


def test_a_run_draws_itself_where_the_system_gives_no_process(monkeypatch, tmp_path):
    def refuse(*_):
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    blocks = {"a": Block(np.arange(10), ("f", "g"), np.ones((10, 2)), np.ones(10))}
    schema = Schema.of(blocks, Labels("binary"))
    engine = Simulation({"train": (schema, blocks)}, 0, workers=2)
    monkeypatch.setattr(outcome, "_RUNS", itertools.count())
    monkeypatch.setattr(outcome, "Artist", refuse)
    with outcome.artist_beside(tmp_path, engine, schema, drawn=False) as artist:
        assert artist is None
