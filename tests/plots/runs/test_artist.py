from __future__ import annotations

import errno
import itertools
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import intarsia
from intarsia.core.block import Block, Labels
from intarsia.core.schema import Schema
from intarsia.plots.runs import artist as module
from intarsia.plots.runs import pictures
from intarsia.plots.runs.artist import Artist, artist_ahead, artist_beside
from intarsia.plots.runs.pictures import Held, Shown
from intarsia.plots.sides import missing_fractions
from intarsia.training.outcome import finish_run


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
    blocks = {"a": Block(np.arange(3), ("f", "g"), np.array([[1.0, np.nan], [1.0, 1.0], [1, 1]]))}
    held = Held(Schema.of(blocks, Labels("binary")), missing_fractions(blocks))
    assert held.missing
    return replace(found, trained=trained), held


@pytest.fixture
def first_run(monkeypatch):
    monkeypatch.setattr(module, "_RUNS", itertools.count())
    monkeypatch.setattr(module, "cores", lambda: 2)


def drawn(folder, result, held, artist=None):
    folder.mkdir()
    finish_run(replace(result, folder=folder, trained=None), held=held, artist=artist)
    return {path.name: path.read_bytes() for path in folder.glob("*.png")}


def test_pictures_drawn_beside_the_training_are_those_drawn_after_it(
    finished_run, tmp_path, first_run
):
    result, held = finished_run
    here = drawn(tmp_path / "here", result, held)
    with artist_beside(held, 2) as artist:
        assert artist is not None
        beside = drawn(tmp_path / "beside", result, held, artist)
    assert sorted(here) == ["figures.png", "holdings.png"]
    assert beside == here
    unknown = drawn(tmp_path / "unknown", result, replace(held, missing={}))
    assert unknown["holdings.png"] != here["holdings.png"]


def test_pictures_have_the_classes_of_the_model_wherever_they_are_drawn(
    finished_run, tmp_path, first_run
):
    result, held = finished_run
    shown = Shown.of(result)
    assert shown.classes == ("no", "yes")
    for name in ("here", "beside", "unnamed"):
        (tmp_path / name).mkdir()

    pictures.draw(tmp_path / "here", shown)
    pictures.draw(tmp_path / "unnamed", replace(shown, classes=()))
    with artist_beside(held, 2) as artist:
        assert artist.draws(tmp_path / "beside", shown)
    here, beside, unnamed = (
        (tmp_path / name / "figures.png").read_bytes() for name in ("here", "beside", "unnamed")
    )
    assert here == beside != unnamed


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


def test_pictures_are_drawn_where_the_process_that_draws_was_killed(
    finished_run, tmp_path, first_run
):
    result, held = finished_run
    with artist_beside(held, 2) as artist:
        os.kill(artist._fork._process.pid, signal.SIGKILL)
        found = drawn(tmp_path / "killed", result, held, artist)
    assert sorted(found) == ["figures.png", "holdings.png"]
    assert (tmp_path / "killed/result.json").is_file()


def test_what_goes_wrong_in_drawing_is_raised(finished_run, tmp_path, first_run):
    result, held = finished_run
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "figures.png").mkdir()
    with artist_beside(held, 2) as artist, pytest.raises(IsADirectoryError) as raised:
        finish_run(replace(result, folder=folder, trained=None), held=held, artist=artist)
    assert not (folder / "result.json").exists()
    assert raised.value.errno == errno.EISDIR  # by which the command line says a sentence
    assert raised.value.filename == str(folder / "figures.png")


@pytest.mark.parametrize(
    ("rows", "workers", "run", "beside"),
    [
        *((10, None, 0, True), (10, 2, 0, True)),
        *((10, 1, 0, False), (10, 2, 1, False), (1 << 21, 2, 0, False)),
    ],
)
def test_pictures_of_small_tables_are_drawn_beside_the_first_run(
    monkeypatch, rows, workers, run, beside
):
    began = []
    made = SimpleNamespace(begin=began.append, close=lambda: None)
    monkeypatch.setattr(module, "_RUNS", itertools.count(run))
    monkeypatch.setattr(module, "cores", lambda: 2)
    monkeypatch.setattr(module, "Artist", lambda: made)
    held = SimpleNamespace(schema=SimpleNamespace(samples=range(rows), features=range(2)))
    with artist_beside(held, workers) as found:
        assert (found is made) == beside
    assert began == [held] * beside


def test_a_run_draws_itself_where_the_system_gives_no_process(monkeypatch, finished_run, first_run):
    def refuse():
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(module, "Artist", refuse)
    with artist_ahead(), artist_beside(finished_run[1], 2) as artist:
        assert artist is None


def is_gone(artist):
    return not artist._fork._process.is_alive()


def test_a_run_takes_what_began_ahead_of_it(finished_run, tmp_path, first_run):
    result, held = finished_run
    with artist_ahead():
        (ahead,) = module._AHEAD
        with artist_beside(held, None) as artist:
            assert artist is ahead
            assert not module._AHEAD
            found = drawn(tmp_path / "ahead", result, held, artist)
    assert sorted(found) == ["figures.png", "holdings.png"]
    assert is_gone(ahead)


@pytest.mark.parametrize("ends", ["the run", "who began it", "an error"])
def test_what_began_ahead_ends_where_no_run_takes_it(finished_run, first_run, ends):
    _, held = finished_run
    began = []

    def end_it():
        with artist_ahead() as draw_here:
            (ahead,) = module._AHEAD
            began.append(ahead)
            if ends == "who began it":
                draw_here()
                assert is_gone(ahead)
            elif ends == "the run":
                with artist_beside(held, 1) as artist:
                    assert artist is None
                assert is_gone(ahead)
            raise KeyError

    with pytest.raises(KeyError):
        end_it()
    assert is_gone(*began)
    assert not module._AHEAD


def test_what_began_ahead_does_not_outlive_its_process(tmp_path):
    said = subprocess.run(
        [
            *(sys.executable, "-c"),
            "import os, signal\n"
            "from intarsia.plots.runs import artist\n"
            "artist.cores = lambda: 2\n"
            "with artist.artist_ahead():\n"
            "    print(artist._AHEAD[0]._fork._process.pid, flush=True)\n"
            "    os.kill(os.getpid(), signal.SIGKILL)\n",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == -signal.SIGKILL
    number = int(said.stdout)
    for _ in range(100):
        try:
            os.kill(number, 0)
        except ProcessLookupError:
            return
        if Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.1)
    raise AssertionError(f"{number} is there after 10 s")


def test_little_is_imported_before_what_draws_begins():
    found = subprocess.run(
        [
            *(sys.executable, "-c"),
            "import sys; from intarsia.plots.runs import artist\n"
            "print(*sorted({'numba', 'matplotlib', 'pydantic', 'pyarrow'} & {*sys.modules}))",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert not found.strip()
