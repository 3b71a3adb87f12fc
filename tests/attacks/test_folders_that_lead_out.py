"""A run's folder with links had a command overwrite, empty or remove files outside of it.

`report` wrote its page into the file that report.html led to. `resume` emptied what history.jsonl
led to, and removed files in a folder that checkpoints led to. A named pipe held commands for ever.
"""

from __future__ import annotations

import os
import shutil
import socket

import numpy as np
import pandas as pd
import pytest

import intarsia
from intarsia.cli.main import main
from intarsia.core.files import contained
from intarsia.core.files.contained import check_contained
from intarsia.errors import CheckpointError
from intarsia.models.serialization import read_model

COMMANDS = ["report", "resume", "rounds", "audit", "coefficients", "export", "compare"]


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
def prepared(finished, tmp_path):
    """Return a copy of the run's folder, and a file of the user's beside it."""
    shutil.copytree(finished, tmp_path / "run")
    own = tmp_path / "own"
    own.write_text("mine")
    return tmp_path / "run", own


def given(command, folder):
    more = {"export": ["--format", "safetensors"]}.get(command, [])
    return main([command, str(folder), *more])


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", ["report.html", "history.jsonl", "model.safetensors", "run.lock"])
def test_a_link_out_of_the_folder_is_refused_and_nothing_written(prepared, capfd, command, name):
    folder, own = prepared
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(own)
    assert given(command, folder) == 2
    said = capfd.readouterr().err
    assert f"{folder / name} is a link that leads out of it, to {own}" in said
    assert "Traceback" not in said
    assert own.read_text() == "mine"


def test_without_the_check_the_page_goes_into_another_file(prepared, monkeypatch):
    folder, own = prepared
    (folder / "report.html").symlink_to(own)
    monkeypatch.setattr(contained.os, "walk", lambda folder: [])
    assert given("report", folder) == 0
    assert own.read_text() != "mine"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_pipe_holds_no_command(prepared, capfd, command):
    folder, _ = prepared
    (folder / "history.jsonl").unlink()
    os.mkfifo(folder / "history.jsonl")
    assert given(command, folder) == 2
    assert "history.jsonl is neither a file nor a folder" in capfd.readouterr().err


def test_checkpoints_that_lead_elsewhere_take_nothing_with_them(prepared, tmp_path):
    folder, _ = prepared
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "notes.tmp").write_text("mine")
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    (folder / "checkpoints").symlink_to(victim)
    (folder / "result.json").unlink()
    assert main(["resume", str(folder)]) == 2
    assert (victim / "notes.tmp").read_text() == "mine"


def test_all_that_is_in_a_folder_is_looked_at(prepared, tmp_path):
    folder, own = prepared
    check_contained(folder)
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "deep" / "er" / "one").symlink_to(own)
    with pytest.raises(CheckpointError, match="deep/er/one is a link that leads out"):
        check_contained(folder)
    (folder / "deep" / "er" / "one").unlink()
    (folder / "round").symlink_to("round")
    with pytest.raises(CheckpointError, match="is a link that leads in a circle"):
        check_contained(folder)
    (folder / "round").unlink()
    (folder / "model" / "there").symlink_to("../history.jsonl")  # in the run's folder
    check_contained(folder)
    with pytest.raises(CheckpointError, match="there is a link that leads out of it"):
        read_model(folder / "model")


def test_sockets_are_no_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("s")  # a socket's path is short
    with pytest.raises(CheckpointError, match="neither a file nor a folder"):
        check_contained(tmp_path)


def test_a_folder_that_is_itself_a_link_is_the_users_own(prepared, tmp_path):
    folder, _ = prepared
    (tmp_path / "other").symlink_to(folder)
    assert given("report", tmp_path / "other") == 0
    assert (folder / "report.html").is_file()


def test_links_of_weights_and_biases_are_its_own(prepared, tmp_path):
    folder, own = prepared
    (folder / "wandb").mkdir()
    (folder / "wandb" / "debug.log").symlink_to(own)
    check_contained(folder)
    assert given("report", folder) == 0
    (folder / "model" / "wandb").mkdir()
    (folder / "model" / "wandb" / "debug.log").symlink_to(own)  # not where it has its folder
    with pytest.raises(CheckpointError, match="leads out"):
        check_contained(folder)
    shutil.rmtree(folder / "model" / "wandb")
    shutil.rmtree(folder / "wandb")
    (folder / "wandb").symlink_to(tmp_path)
    with pytest.raises(CheckpointError, match="leads out"):
        check_contained(folder)


@pytest.mark.parametrize("name", ["round-²", "round-x", "round-1.tmp"])
def test_checkpoints_of_other_names_are_none(prepared, capfd, name):
    folder, _ = prepared
    (folder / "checkpoints" / name).mkdir(parents=True)
    assert given("resume", folder) == 0
    assert "Traceback" not in capfd.readouterr().err
