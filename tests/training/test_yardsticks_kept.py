"""A run is finished before its reference models: stopping these loses nothing, at any place."""

from __future__ import annotations

import errno
import gc
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import weakref

import numpy as np
import pytest

import four_sites
import intarsia
from command_line import one_error, said
from intarsia.cli import main as cli
from intarsia.engines.simulation import Simulation
from intarsia.errors import ExperimentError, WorkerError
from intarsia.results import result as results
from intarsia.training import run as running
from intarsia.training import yardsticks

LINEAR = ("hyfdca", "plain"), ("hyfdca", "masked"), ("hyfdca", "ckks"), ("centralised", "plain")
NETWORKS = {"femam": "plain", "flic": "masked", "hyfem": "masked"}
EVERY = (*LINEAR, ("standalone", "plain"), *NETWORKS.items())
QUICK = ("hyfdca", "plain"), ("femam", "plain")  # the others take long


class StoppedError(Exception):
    """Stops a run from inside."""


def described(folder, algorithm="hyfdca", mode="plain", **settings):
    """Return an experiment over four tables."""
    kind = algorithm if algorithm in NETWORKS else "hyfdca"
    given = {"rounds": 3, "yardsticks": True, **settings}
    tree = four_sites.tree(kind, four_sites.write_tables(kind, folder), folder, mode=mode, **given)
    if algorithm != kind:
        tree["algorithm"] = {"name": algorithm, "loss": "logistic", "regularisation": 0.01}
    return running.experiment.from_dict(tree, folder)


def stop_at(name, step=""):
    """Return what stops a run when a reference model comes to a step."""

    def watch(progress):
        if (progress.name, progress.step) == (name, step):
            raise StoppedError

    return watch


def content(folder):
    """Return a result without what it took, and where and when it was made."""
    found = json.loads((folder / "result.json").read_text())
    return {key: found[key] for key in found if key not in ("seconds", "environment")}


def model(folder):
    """Return the files of a run's model."""
    files = (one for one in (folder / "model").rglob("*") if one.is_file())
    return {str(one): one.read_bytes() for one in files}


@pytest.mark.parametrize(
    ("algorithm", "mode"),
    [pytest.param(*one, marks=[pytest.mark.slow] * (one not in QUICK)) for one in EVERY],
)
def test_reference_models_that_were_stopped_go_on_to_the_same_result(tmp_path, algorithm, mode):
    experiment = described(tmp_path / "tables", algorithm, mode)
    told = []
    whole = running.run(experiment, out=tmp_path / "whole", yardstick_progress=told.append)
    names = [one.name for one in told if not one.step]
    beside = ("standalone",) if algorithm in ("femam", "flic") else ("centralised", "standalone")
    assert names == [one for one in beside if one != algorithm]
    assert whole.yardsticks_left == ()
    assert {one.name for one in told if one.step} == set(names)
    out, kept = tmp_path / "out", {}

    def begin(number, **watch):
        if number:
            running.resume(out, **watch)
        else:
            running.run(experiment, out=out, **watch)

    for number, name in enumerate(names):
        with pytest.raises(StoppedError):
            begin(number, yardstick_progress=stop_at(name))
        found = content(out)
        assert found["yardsticks_left"] == names[number:]
        assert all(found["metrics"][one] for one in names[:number])
        assert not any(found["metrics"][one] for one in names[number:])
        kept = kept or model(out)
    running.resume(out)
    if mode != "ckks":  # its noise is drawn anew, and shows in the last digits
        assert content(out) == content(tmp_path / "whole")
    assert content(out)["yardsticks_left"] == []
    assert model(out) == kept
    before = (out / "result.json").read_bytes()
    running.resume(out)
    assert (out / "result.json").read_bytes() == before


@pytest.mark.parametrize("algorithm", ["hyfdca", pytest.param("hyfem", marks=pytest.mark.slow)])
def test_both_at_once_come_to_the_same_result(tmp_path, monkeypatch, algorithm):
    made = []
    for workers in (1, 2):
        experiment = described(tmp_path / "tables", algorithm, workers=workers)
        made.append(running.run(experiment, out=tmp_path / str(workers)))
        monkeypatch.setattr(yardsticks, "_LONG", -1.0)
    one, other = (results.load(tmp_path / name) for name in "12")
    assert one.metrics.centralised is not None
    for name in ("metrics", "notes", "yardsticks_left"):
        assert getattr(one, name) == getattr(other, name)
    assert made[1].metrics == other.metrics


def test_a_client_of_the_opposite_effect_is_told_that_it_loses(tmp_path, capfd):
    rng, tables = np.random.default_rng(0), {}
    for name, rows, sign in (("north", 200, 1), ("south", 200, 1), ("odd", 60, -1)):
        x = rng.normal(size=(rows, 2))
        tables[name] = x, sign * x[:, 0] > 0
    given = {"rounds": 8, "hidden": 8, "latent": 4, "engine": "loop", "evaluate_every": 0}
    given |= {"levels": ["global"], "rate": 1e-2, "test": 0.4}
    out = tmp_path / "out"
    made = intarsia.run(tables=tables, algorithm="femam", out=out, **given)
    alone, joined = (one["odd"] for one in (made.metrics.standalone, made.metrics.clients))
    assert joined.figures.auc < 0.1 < 0.9 < alone.figures.auc
    (note,) = (one for one in made.notes if "worse than the own model" in one)
    assert "1 of 3 clients on their rows, by more than chance: odd (accuracy" in note
    assert note in results.load(out).notes
    assert cli.main(["report", str(out), "--out", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "loses, by more than chance" in page
    capfd.readouterr()


def test_one_of_two_that_is_killed_loses_nothing_of_the_other(tmp_path, monkeypatch):
    monkeypatch.setattr(yardsticks, "_LONG", -1.0)

    before = {*multiprocessing.active_children()}

    def kill(progress):
        if (progress.name, progress.step) == ("standalone", ""):
            [child] = {*multiprocessing.active_children()} - before
            os.kill(child.pid, signal.SIGKILL)

    experiment = described(tmp_path / "tables", "hyfem", workers=2)
    with pytest.raises(WorkerError, match=r"trained a reference model.*SIGKILL.*resume the run"):
        running.run(experiment, out=tmp_path / "out", yardstick_progress=kill)
    found = content(tmp_path / "out")
    assert found["yardsticks_left"] == ["centralised"]
    assert running.resume(tmp_path / "out").yardsticks_left == ()


KILLED = """
import os, signal, sys
from intarsia.cli.main import main
from intarsia.training import yardsticks
yardsticks.complete = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
main(sys.argv[1:])
"""


def test_a_run_that_is_killed_when_training_ends_predicts(tmp_path, capfd):
    out = tmp_path / "out"
    (tmp_path / "four.toml").write_text(toml(tmp_path / "tables"))
    command = ["run", str(tmp_path / "four.toml"), "--quiet", "--out", str(out)]
    found = subprocess.run([sys.executable, "-c", KILLED, *command], check=False)
    assert found.returncode == -signal.SIGKILL
    known = results.load(out)
    assert known.yardsticks_left == ("centralised", "standalone")
    assert known.certificate is not None
    assert known.metrics.server is not None
    table = str(tmp_path / "tables/bank.csv")
    assert cli.main(["predict", str(out), table]) == 0
    first = said(capfd)[0]
    assert cli.main(["resume", str(out), "--quiet"]) == 0
    said(capfd)
    assert results.load(out).yardsticks_left == ()
    assert cli.main(["predict", str(out), table]) == 0
    assert said(capfd)[0] == first


def toml(folder):
    """Return the experiment over the four tables as a file has it."""
    described = four_sites.write_tables("hyfdca", folder)
    clients = "".join(f'[[client]]\nname = "{name}"\n{one}' for name, one in described.items())
    settings = '[algorithm]\nname = "hyfdca"\nloss = "logistic"\n'
    return f"[experiment]\nrounds = 3\ntolerance = 0.0\n{settings}{clients}"


@pytest.fixture
def file(tmp_path):
    made = tmp_path / "four.toml"
    made.write_text(toml(tmp_path / "tables"))
    return made


def test_ctrl_c_in_a_reference_model_says_that_the_result_is_there(file, monkeypatch, capfd):
    whole, out = file.parent / "whole", file.parent / "out"
    assert cli.main(["run", str(file), "--out", str(whole)]) == 0
    err = said(capfd)[1]
    assert "the model is written; now a reference model, all tables pooled" in err
    assert "now a reference model, each client alone" in err
    monkeypatch.setattr(yardsticks.baselines, "alone", lambda *_, **__: press())
    assert cli.main(["run", str(file), "--quiet", "--out", str(out)]) == 130
    assert said(capfd)[1] == (
        f"stopped; the model and its result are in {out}, and this goes on with the reference "
        f"models: intarsia resume {out}\n"
    )
    assert cli.main(["run", str(file), "--quiet", "--out", str(out)]) == 2
    assert "already holds a result" in one_error(said(capfd)[1])
    monkeypatch.undo()
    assert cli.main(["resume", str(out), "--quiet"]) == 0
    assert content(out) == content(whole)


def press():
    raise KeyboardInterrupt


def test_a_full_disk_in_a_reference_model_leaves_the_result_as_it_was(file, monkeypatch, capfd):
    out, write = file.parent / "out", results.Result.write

    def full(found, folder):
        if not found.yardsticks_left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder / "result.json"))
        write(found, folder)

    monkeypatch.setattr(results.Result, "write", full)
    assert cli.main(["run", str(file), "--quiet", "--out", str(out)]) == 2
    sentence = one_error(said(capfd)[1])
    assert "No space left on device; make room there: nothing that was written" in sentence
    assert sentence.endswith(f"this goes on with the reference models: intarsia resume {out}")
    assert content(out)["yardsticks_left"] == ["standalone"]
    monkeypatch.undo()
    assert cli.main(["resume", str(out), "--quiet"]) == 0
    assert content(out)["yardsticks_left"] == []


LEFT_OUT = (["--no-yardsticks"], ["-c", "experiment.yardsticks=false"])
ADDED = (["--yardsticks"], ["-c", "experiment.yardsticks=true"], ["-c", "yardsticks=true"])


@pytest.fixture(scope="module")
def left_out(tmp_path_factory):
    """The folders of a run with its reference models, and of those that left them out."""
    folder = tmp_path_factory.mktemp("left-out")
    (folder / "four.toml").write_text(toml(folder / "tables"))
    ways = {"whole": [], **{one[0]: one for one in LEFT_OUT}}
    for name, words in ways.items():
        command = ["run", str(folder / "four.toml"), "--quiet", "--out", str(folder / name), *words]
        assert cli.main(command) == 0
    return folder


@pytest.mark.parametrize("added", ADDED)
def test_reference_models_that_were_left_out_can_be_added(left_out, tmp_path, added):
    whole, out = left_out / "whole", tmp_path / "out"
    shutil.copytree(left_out / LEFT_OUT[added[0] == "-c"][0], out)
    found = content(out)
    assert found["yardsticks_left"] == []
    assert found["metrics"]["centralised"] is None
    assert found["metrics"]["standalone"] == {}
    assert cli.main(["resume", str(out), "--quiet"]) == 0
    assert content(out) == found
    assert cli.main(["resume", str(out), "--quiet", *added]) == 0
    assert content(out) == content(whole)


def test_reference_models_that_are_left_can_be_left_out(tmp_path):
    out = tmp_path / "out"
    with pytest.raises(StoppedError):
        running.run(
            described(tmp_path / "tables"), out=out, yardstick_progress=stop_at("standalone")
        )
    found = intarsia.resume(out, yardsticks=False, yardstick_progress=stop_at("standalone"))
    assert found.yardsticks_left == ()
    assert found.metrics.centralised is not None
    assert intarsia.resume(out, yardstick_progress=stop_at("standalone")).metrics == found.metrics


def test_a_noisy_run_says_of_reference_models_that_are_added_what_one_with_them_says(tmp_path):
    given = {"algorithm": "fedavg", "mode": "masked"}
    experiment = described(tmp_path / "tables", **given)
    private = running.replace(experiment.privacy, epsilon=5.0, delta=1e-3)
    plain = running.replace(experiment.preprocessing, standardise=False)
    experiment = running.replace(experiment, privacy=private, preprocessing=plain)
    running.run(experiment, out=tmp_path / "whole")
    bare = running.replace(experiment, yardsticks=False)
    running.run(bare, out=tmp_path / "out")
    running.resume(tmp_path / "out", wanted=True)
    whole, found = content(tmp_path / "whole"), content(tmp_path / "out")
    assert found["privacy"] == whole["privacy"]
    for name in ("centralised", "standalone"):
        assert found["metrics"][name] == whole["metrics"][name]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("experiment.rounds=3", "of [experiment] alone: yardsticks, workers, ray and memory; for"),
        ("yardsticks=1", "[experiment] yardsticks is 1; expected true or false"),
        (
            "algorithm.loss=hinge",
            "-c 'algorithm.loss=hinge' changes what the run was begun with. intarsia resume sets "
            "keys of [experiment] alone: yardsticks, workers, ray and memory; for another value "
            "begin a new run: intarsia run FILE -c algorithm.loss=hinge --out DIR",
        ),
        ("experiment.memory=4", "memory is 4; expected a size above 0 with its unit, MB, GB or TB"),
    ],
)
def test_another_key_of_a_run_that_goes_on_is_refused(tmp_path, capfd, override, expected):
    assert cli.main(["resume", str(tmp_path), "-c", override]) == 2
    assert expected in one_error(said(capfd)[1])


def test_a_run_over_sites_has_no_reference_models(tmp_path):
    for name in ("run.id", "experiment.json"):
        (tmp_path / name).write_text("{}")
    tree = running.experiment.to_dict(described(tmp_path / "tables"))
    (tmp_path / "experiment.json").write_text(json.dumps(tree))
    with pytest.raises(ExperimentError, match="over sites, whose tables nobody pools"):
        running.resume(tmp_path, wanted=True)


COMPILES = """
import dataclasses, json, pathlib, sys
from numba.core import event
from intarsia.experiment.config import from_dict
from intarsia.training.run import run
found = event.RecordingListener()
event.register("numba:compile", found)
result = run(from_dict(json.loads(sys.argv[1]), pathlib.Path.cwd()))
names = {one.data["dispatcher"].__name__ for _, one in found.buffer if one.is_start}
found = json.dumps(dataclasses.asdict(result.metrics.centralised))
print("_ascend" in names, len(names) > 3, found)
"""


@pytest.mark.slow
def test_another_process_compiles_what_reference_models_run(tmp_path):
    """At a first run; a second one finds it on disk, and comes to the same."""
    tree = four_sites.tree("hyfdca", four_sites.write_tables("hyfdca", tmp_path), tmp_path)
    settings = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "kernels")}

    def ran(name, workers):
        own = {"out": str(tmp_path / name), "yardsticks": True, "workers": workers}
        given = json.dumps({**tree, "experiment": {**tree["experiment"], **own}})
        command = [sys.executable, "-c", COMPILES, given]
        done = subprocess.run(command, env=settings, capture_output=True, text=True, check=True)
        return done.stdout.split(maxsplit=2)

    first, second = ran("first", 2), ran("second", 2)
    assert first[:2] == ["False", "True"]
    assert second == ["False", "False", first[2]]
    shutil.rmtree(tmp_path / "kernels")
    assert ran("third", 1) == ["True", "True", first[2]]


def test_a_run_goes_on_where_the_process_that_compiles_is_gone(tmp_path, monkeypatch):
    monkeypatch.setattr(yardsticks.sdca, "lacks_kernels", lambda: True)
    monkeypatch.setattr(yardsticks, "_compile", lambda *_, **__: os.kill(os.getpid(), 9))
    found = running.run(described(tmp_path, workers=2))
    assert found.metrics.centralised is not None
    assert not found.yardsticks_left


def test_tables_are_gone_when_the_model_is_made_without_reference_models(tmp_path, monkeypatch):
    engines, alive = [], []
    begin, make = Simulation.__init__, running.InThisProcess.model

    def begun(self, *given, **how):
        engines.append(weakref.ref(self))
        begin(self, *given, **how)

    def made(self, *given):
        gc.collect()
        alive.append([one() is not None for one in engines])
        return make(self, *given)

    monkeypatch.setattr(Simulation, "__init__", begun)
    monkeypatch.setattr(running.InThisProcess, "model", made)
    running.run(described(tmp_path, workers=2, yardsticks=False))
    assert alive == [[False]]
