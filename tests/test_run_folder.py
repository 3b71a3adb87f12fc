from __future__ import annotations

import json
import signal
import subprocess
import sys

import numpy as np
import pytest

import intarsia
import sites
import test_remote_running as remote
from command_line import one_error, said
from intarsia import alone, federation_server, remote_running, run_folder, running
from intarsia.cli import main
from intarsia.engines.calling import Patience
from intarsia.errors import BusyError, CheckpointError

HOLDER = """
import pathlib, sys, time
from intarsia.run_folder import alone_in
with alone_in(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
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

    def slowly(*given):
        if not begun:
            begun.append(True)
            intarsia.run(tables=tables(), out=out, **SETTINGS)
        return build(*given)

    monkeypatch.setattr(running, "build", slowly)
    with pytest.raises(CheckpointError, match="already holds a result"):
        intarsia.run(tables=tables(), out=out, **SETTINGS)
    assert begun
    assert rounds(out) == [1, 2, 3, 4]


def test_a_process_that_is_killed_gives_its_folder_back(tmp_path):
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(BusyError), run_folder.alone_in(tmp_path):
            pass
        holder.send_signal(signal.SIGKILL)
    with run_folder.alone_in(tmp_path):
        pass
    with run_folder.alone_in(tmp_path):  # the file that is left says nothing
        pass


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
    own = federation_server.request(tmp_path, description, remote.NAMES, Patience())
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

    monkeypatch.setattr(run_folder, "_describe", killed)
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
