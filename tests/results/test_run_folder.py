from __future__ import annotations

import errno
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

import intarsia
import sites
from command_line import one_error, said
from intarsia.cli.main import main
from intarsia.core.files.atomic_files import write_over
from intarsia.deployment import run as remote_running
from intarsia.deployment import server as federation_server
from intarsia.engines.remote.caller import RetryPolicy
from intarsia.errors import BusyError, CheckpointError
from intarsia.inference.export import export
from intarsia.results import lock as alone
from intarsia.results import run_folder
from intarsia.training import run as running
from tests.deployment import test_run as remote

HOLDER = """
import pathlib, sys
from intarsia.results.run_folder import alone_in
with alone_in(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""

WRITER = """
import os, pathlib, sys
from intarsia.core.files import atomic_files
from intarsia.privacy.keys import secret_file
folder = pathlib.Path(sys.argv[1])
def slowly(descriptor):
    print("writing", flush=True)
    sys.stdin.read()
os.fsync = slowly
if sys.argv[2] == "file":
    atomic_files.write_atomically(folder / "result.json", b"new")
else:
    secret_file.write_private(folder / "keys" / "a.key", "key", {}, bytes(32))
"""


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    """Let nobody wait for whoever works in a folder."""
    monkeypatch.setattr(alone, "_LONGEST", 0.0)


def tables():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 3))
    y = np.where(x.sum(1) > 0, "a", "b")
    return {"p": (x[:40], y[:40]), "q": (x[40:], y[40:])}


SETTINGS = {
    "algorithm": "hyfdca",
    "loss": "logistic",
    "regularisation": 0.01,
    "rounds": 4,
    "tolerance": 0.0,
    "yardsticks": False,
    "checkpoint_seconds": 0.0,
}


def rounds(folder):
    return [
        json.loads(line)["round"] for line in (folder / "history.jsonl").read_text().splitlines()
    ]


def test_a_run_that_goes_on_is_neither_resumed_nor_replaced_beside_it(tmp_path):
    out, refused = tmp_path / "out", []

    def another(found):
        if found.round != 2:
            return
        for begin in (
            lambda: intarsia.resume(out, tables=tables()),
            lambda: intarsia.run(tables=tables(), out=out, overwrite=True, **SETTINGS),
        ):
            with pytest.raises(BusyError, match=r"works on the run in .*out; wait until"):
                begin()
            refused.append(found.round)

    expected = intarsia.run(tables=tables(), out=tmp_path / "alone", **SETTINGS)
    found = intarsia.run(tables=tables(), out=out, progress=another, **SETTINGS)
    assert refused == [2, 2]
    assert rounds(out) == [1, 2, 3, 4]
    assert found.metrics == expected.metrics
    assert intarsia.resume(out).rounds == 4  # what is finished is returned as it is


def test_the_command_line_says_so_in_a_sentence_with_status_2(tmp_path, capfd):
    (tmp_path / "e.toml").write_text(
        '[experiment]\nname = "x"\nrounds = 2\nout = "out"\n[algorithm]\nname = "hyfdca"\n'
        '[dataset]\nname = "digits"\n[partition]\nkind = "grid"\nrows = 1\ncolumns = 2\n'
    )
    with run_folder.alone_in(tmp_path / "out"):
        assert main(["run", str(tmp_path / "e.toml")]) == 2
    assert "Another process works on the run" in one_error(said(capfd)[1])
    assert not (tmp_path / "out" / "experiment.json").exists()


def test_a_run_that_another_process_made_meanwhile_is_not_replaced(tmp_path, monkeypatch):
    out, begun, build = tmp_path / "out", [], running.build

    def slowly(*given, **how):
        if not begun:
            begun.append(True)
            intarsia.run(tables=tables(), out=out, **SETTINGS)
        return build(*given, **how)

    monkeypatch.setattr(running, "build", slowly)
    with pytest.raises(CheckpointError, match="already holds a result"):
        intarsia.run(tables=tables(), out=out, **SETTINGS)
    assert begun
    assert rounds(out) == [1, 2, 3, 4]


def test_a_process_that_is_killed_gives_its_folder_back(tmp_path):
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(BusyError), run_folder.alone_in(tmp_path):
            pass
        holder.send_signal(signal.SIGKILL)
    with run_folder.alone_in(tmp_path):
        pass
    with run_folder.alone_in(tmp_path):  # the file that is left says nothing
        pass


@pytest.mark.parametrize(("kind", "name"), [("file", "result.json"), ("key", "keys/a.key")])
def test_half_written_files_of_killed_processes_go_and_those_of_others_stay(tmp_path, kind, name):
    (tmp_path / "keys").mkdir()
    command = [sys.executable, "-c", WRITER, str(tmp_path), kind]

    def half_written():
        return [one.relative_to(tmp_path) for one in tmp_path.rglob(".*.tmp")]

    def begun():
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout.readline() == "writing\n"
        return process

    with begun() as alive:
        with run_folder.alone_in(tmp_path):
            pass
        assert len(half_written()) == 1
        alive.communicate("")
    assert alive.returncode == 0
    assert half_written() == []
    assert (tmp_path / name).is_file()
    with begun() as killed:
        killed.kill()
    [left] = half_written()
    if kind == "file":  # its number may be another process's by now, such as this one's
        (tmp_path / left).rename(tmp_path / f".{name}.{os.getpid()}.tmp")
    (tmp_path / ".notes.tmp").touch()  # the user's
    with run_folder.alone_in(tmp_path):
        assert [str(one) for one in half_written()] == [".notes.tmp"]


def test_a_file_that_is_written_again_leaves_no_half_of_one_before(tmp_path):
    for name in ("c[1].csv", "c1.csv"):
        (tmp_path / f".{name}.999999.tmp").touch()  # of processes that were killed
    write_over(tmp_path / "c[1].csv", b"whole")
    assert sorted(one.name for one in tmp_path.iterdir()) == [".c1.csv.999999.tmp", "c[1].csv"]


def test_a_run_in_the_place_of_one_removes_what_was_exported_of_it(tmp_path):
    out = tmp_path / "out"
    intarsia.run(tables=tables(), out=out, **SETTINGS)
    before = {one.name for one in out.iterdir()}
    export(out, "safetensors")
    assert {one.name for one in out.iterdir()} > before
    intarsia.run(tables=tables(), out=out, overwrite=True, **SETTINGS)
    assert {one.name for one in out.iterdir()} == before


def test_a_run_over_sites_is_worked_on_by_one_server(tmp_path):
    found, refused = remote.set_up(tmp_path), []
    out, description = tmp_path / "sites", remote.described(tmp_path)

    def line(client, number, data, deliver):
        if client == "bank" and number == 20:
            with pytest.raises(BusyError):
                remote_running.resume_over(out, sites.Lines(found))
            refused.append(number)
        return deliver(data)

    result = remote_running.run_over(description, sites.Lines(found, line), remote.NAMES, out)
    assert refused == [20]
    assert rounds(out) == list(range(1, result.rounds + 1))


def test_a_job_that_comes_while_another_works_on_its_run_is_to_come_again(tmp_path):
    description = remote.described(tmp_path)
    own = federation_server.request(tmp_path, description, remote.NAMES, RetryPolicy())
    with run_folder.alone_in(own / "out"), pytest.raises(BusyError):
        federation_server.run_in_job(tmp_path, description.name, sites.Lines({}))
    assert json.loads((own / "failure.json").read_text())["again"]


def test_a_new_run_over_sites_leaves_nothing_of_the_one_before(tmp_path, monkeypatch):
    found, out = remote.set_up(tmp_path), tmp_path / "sites"
    remote_running.run_over(remote.described(tmp_path), sites.Lines(found), remote.NAMES, out)
    before = json.loads((out / "run.id").read_text())
    (out / "notes.txt").write_text("of its owner")
    assert (out / "result.json").is_file()
    seen = []

    def killed(folder, *_):
        seen.extend(path.name for path in folder.iterdir())
        raise KeyboardInterrupt

    monkeypatch.setattr(run_folder, "keep_description", killed)
    with pytest.raises(KeyboardInterrupt):
        remote_running.run_over(
            remote.described(tmp_path, seed=1),
            sites.Lines(found),
            remote.NAMES,
            out,
            overwrite=True,
        )
    assert sorted(seen) == ["notes.txt", "run.id", "run.lock"]
    assert json.loads((out / "run.id").read_text())["run"] != before["run"]
    with pytest.raises(CheckpointError, match=r"holds no experiment\.json"):
        remote_running.resume_over(out, sites.Lines(found))


def test_a_run_that_was_stopped_holds_nobody_back_though_its_workers_are_there(tmp_path):
    out = tmp_path / "out"

    def stop(found):
        if found.round == 2:
            raise KeyboardInterrupt

    given = {"tables": tables(), "label": "label", "out": out, "workers": 2, **SETTINGS}
    with pytest.raises(KeyboardInterrupt) as kept:  # as a notebook keeps what a cell ended by
        intarsia.run(progress=stop, **given)
    assert multiprocessing.active_children()
    found = intarsia.run(overwrite=True, **given)
    assert found.rounds == 4
    assert kept.value.__traceback__ is not None


def test_a_lock_that_went_with_its_folder_holds_nobody_back_and_nothing_is_mixed(tmp_path):
    out, told = tmp_path / "out", []

    def replaced(found):
        if found.round == 2 and not told:
            told.append(found.round)
            shutil.rmtree(out)
            intarsia.run(tables=tables(), label="label", out=out, **SETTINGS)

    with pytest.raises(CheckpointError, match="removed or replaced while the run went on"):
        intarsia.run(tables=tables(), label="label", out=out, progress=replaced, **SETTINGS)
    # what the second run wrote is all its own
    assert rounds(out) == [1, 2, 3, 4]
    assert intarsia.load(out).rounds == 4


def test_where_the_file_system_has_no_locks_a_run_goes_on_with_a_warning(tmp_path, monkeypatch):
    def refused(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(alone.fcntl, "flock", refused)
    with pytest.warns(UserWarning, match=r"run\.lock: the file system has no locks \(No locks"):
        intarsia.run(tables=tables(), label="label", out=tmp_path / "out", **SETTINGS)
    assert rounds(tmp_path / "out") == [1, 2, 3, 4]


def test_a_lock_that_cannot_be_made_is_not_told_as_missing(tmp_path, monkeypatch):
    opened = type(tmp_path).open

    def refused(path, mode="r"):
        if "a" in mode:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, mode)

    monkeypatch.setattr(type(tmp_path), "open", refused)
    lock = tmp_path / "run.lock"
    with pytest.raises(PermissionError), alone.alone(lock, "busy"):
        pass
    lock.touch()
    with alone.alone(lock, "busy"):  # another user's is held without writing
        pass


@pytest.mark.parametrize("name", ["keys", "model", "journal"])
def test_folders_that_no_run_made_are_left_alone(tmp_path, name):
    out = tmp_path / "out"
    (out / name).mkdir(parents=True)
    (out / name / "mine.txt").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(CheckpointError, match=f"has '{name}' and holds no run"):
            intarsia.run(tables=tables(), label="label", out=out, overwrite=overwrite, **SETTINGS)
    assert (out / name / "mine.txt").read_text() == "mine"


def test_a_clearing_that_was_cut_short_is_done_to_the_end(tmp_path, monkeypatch):
    out = tmp_path / "out"
    intarsia.run(tables=tables(), label="label", out=out, **SETTINGS)

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(run_folder.shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            intarsia.run(tables=tables(), label="label", out=out, overwrite=True, **SETTINGS)
    assert not (out / "result.json").exists()
    assert (out / "checkpoints").is_dir()
    intarsia.run(tables=tables(), label="label", out=out, **SETTINGS)
    assert rounds(out) == [1, 2, 3, 4]


def test_rows_in_another_order_are_the_same_table(tmp_path):
    out, order = tmp_path / "out", np.random.default_rng(1).permutation(40)
    ids = {"p": np.arange(40), "q": np.arange(40, 80)}
    frames = {
        name: pd.DataFrame({"id": ids[name], "x": x[:, 0], "z": x[:, 1], "label": y})
        for name, (x, y) in tables().items()
    }
    given = {"id": "id", "label": "label", "out": out, **SETTINGS}

    def stop(found):
        if found.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        intarsia.run(tables=frames, progress=stop, **given)
    shuffled = {name: one.iloc[order] for name, one in frames.items()}
    resumed = intarsia.resume(out, tables=shuffled)
    whole = intarsia.run(tables=frames, **{**given, "out": tmp_path / "whole"})
    assert resumed.certificate == whole.certificate
    changed = {**shuffled, "p": shuffled["p"].assign(x=0.0)}
    (out / "result.json").unlink()
    with pytest.raises(CheckpointError, match="not those the run was started with"):
        intarsia.resume(out, tables=changed)


@pytest.mark.parametrize("missing", [run_folder.RUN, "experiment.json"])
def test_a_run_over_sites_whose_start_was_cut_short_is_begun_anew(tmp_path, missing):
    remote.set_up(tmp_path)
    description = remote.described(tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    whole = {"run": "ab", "clients": list(remote.NAMES)}
    run_folder.start(out, description, "sites", overwrite=True, sites=whole)
    assert run_folder.is_over_sites(out)
    (out / missing).unlink()
    assert not run_folder.is_over_sites(out)
