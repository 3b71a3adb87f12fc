"""A damaged file, a name of the system's or a pipe ended commands in a traceback, or never."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pandas as pd
import pytest

import intarsia
from intarsia.cli.main import main
from intarsia.core.settings import absolute_path
from intarsia.inspection.named_tables import sources_named
from intarsia.plots.learning_curves import rounds_figure
from intarsia.results.history import Course


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return the folder of a finished run."""
    x = np.random.default_rng(0).normal(size=(80, 2))
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1]}).assign(kind=np.where(x[:, 0] > 0, "p", "q"))
    tables = {"north": frame[:40], "south": frame[40:]}
    folder = tmp_path_factory.mktemp("linear") / "run"
    how = {"algorithm": "fedavg", "rounds": 2, "yardsticks": False, "label": "kind"}
    intarsia.run(tables=tables, out=folder, **how)
    return folder


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def changed(path, change):
    """Write a JSON file again with a change."""
    found = json.loads(path.read_text())
    change(found)
    path.write_text(json.dumps(found))


def no_points(result):
    result["metrics"]["server"]["figures"]["curves"] = [[]]


def half_a_pair(model):
    model["features"][0] = "\ud800"


DAMAGES = {
    "history.jsonl": (["rounds"], lambda path: path.write_bytes(b"\xff\n\xfe")),
    "result.json": (["coefficients"], lambda path: path.write_bytes(b"\xff")),
    "holdings.json": (
        ["report"],
        lambda path: path.write_text(
            '{"clients": ["a"], "samples": [[[0], 1e400, []]], "features": []}'
        ),
    ),
    "result.json ": (["report"], lambda path: changed(path, no_points)),
    "model/linear.json": (
        ["export", "--format", "safetensors"],
        lambda path: changed(path, half_a_pair),
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_of_a_run_is_told_in_a_sentence(run, capfd, name, monkeypatch):
    monkeypatch.chdir(run.parent)
    (command, *more), damage = DAMAGES[name]
    damage(run / name.strip())
    assert main([command, str(run), *more]) == 2
    said = capfd.readouterr().err
    assert said.startswith("error: ")
    assert "Traceback" not in said


def test_a_damaged_checksum_of_tables_is_told_in_a_sentence(run, capfd):
    (run / "tables.crc").write_bytes(b"\xff\xfe")
    (run / "result.json").unlink()
    assert main(["resume", str(run)]) == 2
    assert "Traceback" not in capfd.readouterr().err


def test_a_history_with_gaps_that_no_axis_has_gives_a_page(run):
    lines = [{"round": n, "gap_relative": gap} for n, gap in ((1, 1e99), (2, 1e-320), (3, 0.1))]
    lines.append({"round": 4, "gap_relative": 0.01})
    (run / "history.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert main(["report", str(run)]) == 0


def test_an_export_has_the_ending_of_its_format(run, capfd):
    before = (run / "result.json").read_bytes()
    given = ["export", str(run), "--format", "safetensors", "--out", str(run / "result.json")]
    assert main(given) == 2
    assert "does not end in .safetensors" in capfd.readouterr().err
    assert (run / "result.json").read_bytes() == before


def test_a_pipe_is_no_table_to_predict(run, tmp_path, capfd):
    os.mkfifo(tmp_path / "new.csv")
    assert main(["predict", str(run), str(tmp_path / "new.csv")]) == 2
    assert "a device or a pipe" in capfd.readouterr().err


def test_a_file_in_a_folder_named_tilde_is_that_file(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert absolute_path("./~/bank.csv", tmp_path) == str(tmp_path / "~" / "bank.csv")
    assert absolute_path("~$bank.csv", tmp_path) == str(tmp_path / "~$bank.csv")
    assert absolute_path("~/bank.csv", tmp_path) == str(tmp_path / "home" / "bank.csv")


def test_init_reads_the_tables_that_were_named_and_writes_them_down(tmp_path, monkeypatch, capfd):
    home, here = tmp_path / "home", tmp_path / "here"
    (here / "~").mkdir(parents=True)
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    x = np.random.default_rng(0).normal(size=(80, 3))
    mine = pd.DataFrame({"id": range(80), "a": x[:, 0], "b": x[:, 1]})
    mine.assign(y=np.where(x[:, 0] > 0, "p", "q")).to_csv(here / "~" / "bank.csv", index=False)
    mine.drop(columns="b").to_csv(home / "bank.csv", index=False)
    pd.DataFrame({"id": range(80), "c": x[:, 2]}).to_csv(here / "~$shop.csv", index=False)
    assert main(["init", "./~/bank.csv", "~$shop.csv"]) == 0
    written = (here / "mine.toml").read_text()
    assert 'path = "./~/bank.csv"' in written
    assert 'path = "./~$shop.csv"' in written


def test_a_file_name_that_is_not_utf_8_is_refused(tmp_path):
    path = tmp_path / os.fsdecode(b"ba\xffnk.csv")
    with pytest.raises(intarsia.errors.ExperimentError, match="not UTF-8"):
        sources_named([path])


def test_very_many_phases_are_counted_and_not_drawn():
    every = 200_000
    begun = {f"level {number}": number for number in range(every)}
    course = Course("femam", {0: 0.5, every: 0.7}, begun)
    (axes,) = rounds_figure([course]).axes
    assert [one.get_text() for one in axes.texts] == ["200,000 phases, too many to be drawn"]
    assert len(axes.lines) == 1
