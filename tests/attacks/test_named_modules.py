"""A folder of a run named a module, and `intarsia predict` imported it, also from where it ran.

Whoever hands over a model, or writes into the folder where the command is given, ran code.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("torch")

import intarsia
from intarsia.algorithms.networks import named_modules
from intarsia.cli.main import main
from intarsia.core.plugins import functions_in
from intarsia.errors import CheckpointError, ExperimentError
from intarsia.models import serialization

EVIL = """
import pathlib
pathlib.Path({mark!r}).touch()
from torch import nn
def Network(features, classes):
    return nn.Linear(features, classes)
"""
EMBEDDING = {"embedding": "evil:Network"}
HYFEM = {
    "features": 4,
    "extractor_hidden": [8],
    "hidden": [12],
    "steps": 2,
    "batch": 16,
}


def party(seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(40, 3))
    frame = pd.DataFrame({f"x{at}": x[:, at] for at in range(3)})
    return frame.assign(kind=np.where(x[:, 0] > 0, "p", "q"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Return the folders of finished runs of networks, by algorithm."""
    found = {}
    for name, own in {"hyfem": HYFEM, "flic": {}}.items():
        folder = found[name] = tmp_path_factory.mktemp(name) / "run"
        tables = {"a": party(0), "b": party(1), "c": party(2)}
        how = {"algorithm": name, "rounds": 1, "yardsticks": False, **own}
        intarsia.run(tables=tables, label="kind", out=folder, **how)
    return found


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Return the current folder, with a module that leaves a mark where it is imported."""
    mark = tmp_path / "imported"
    (tmp_path / "evil.py").write_text(EVIL.format(mark=str(mark)))
    party(5).to_csv(tmp_path / "new.csv", index=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "evil", None)
    monkeypatch.delitem(sys.modules, "evil")
    return tmp_path


def copied(folder, to, change):
    """Copy a run whose networks are changed; what they share is in each."""
    shutil.copytree(folder, to / "run")
    known = to / "run" / "model" / "networks.json"
    if change is not dict:
        known.write_text(json.dumps({**json.loads(known.read_text()), "shared": []}))
    for path in [*(to / "run/model/clients").glob("*.npz"), to / "run/model/server.npz"]:
        if path.is_file():
            arrays = serialization._read_arrays(path)
            path.write_bytes(serialization._arrays(change(arrays)))
    return to / "run"


def as_module(arrays):
    """Return a network that is a module."""
    kept = {name: arrays[name] for name in ("features", "means", "scales")}
    weight, bias = np.zeros((2, 3), np.float32), np.zeros(2, np.float32)
    return {**kept, "weight": weight, "bias": bias, "module": np.array("evil:Network")}


def as_extractor(arrays):
    content = json.loads(str(arrays["composition"]))
    for one in content["extractors"]:
        one["kind"] = "evil:Network"
    return {**arrays, "composition": np.array(json.dumps(content))}


def as_embedding(folder):
    """Let the networks of a run be made of an embedding by name."""
    known = folder / "model" / "networks.json"
    tree = json.loads(known.read_text())
    known.write_text(json.dumps({**tree, "architecture": tree["architecture"] | EMBEDDING}))


COMMANDS = {
    "predict": ["predict", "run", "new.csv", "--client", "a"],
    "predict --federated": ["predict", "run", "a=new.csv", "--federated"],
    "join": ["join", "run", "new.csv", "--label", "kind"],
    "embeddings": ["embeddings", "run"],
    "resume": ["resume", "run"],
    "audit": ["audit", "run"],
    "rounds": ["rounds", "run"],
    "compare": ["compare", "run"],
}


@pytest.mark.parametrize("on_path", [False, True])
@pytest.mark.parametrize("form", ["module", "extractor", "embedding"])
@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_imports_what_a_model_names(
    folders, place, capfd, monkeypatch, command, form, on_path
):
    if on_path:
        monkeypatch.syspath_prepend(place)
    if form == "module":
        copied(folders["flic"], place, as_module)
    elif form == "embedding":
        as_embedding(copied(folders["flic"], place, dict))
    else:
        copied(folders["hyfem"], place, as_extractor)
    status, err = main(COMMANDS[command]), capfd.readouterr().err
    assert not (place / "imported").exists()
    if command in ("predict", "predict --federated", "join", "embeddings", "resume"):
        assert status == 2
        assert "names 'evil:Network" in err
        assert "add --allow-module evil " in err
        assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "key"), [("hyfem", "extractor"), ("flic", "embedding")], ids=["hyfem", "flic"]
)
@pytest.mark.parametrize("command", ["resume", "join", "embeddings"])
def test_no_command_imports_what_the_settings_of_a_run_name(
    folders, place, capfd, monkeypatch, command, name, key
):
    monkeypatch.syspath_prepend(place)
    folder = copied(folders[name], place, dict)
    for file in ("experiment.json", "result.json"):
        tree = json.loads((folder / file).read_text())
        own = tree["algorithm"] if file == "experiment.json" else tree["hyperparameters"]
        own[key] = "evil:Network"
        (folder / file).write_text(json.dumps(tree))
    if command == "resume":
        (folder / "result.json").unlink()
    assert main(COMMANDS[command]) == 2
    assert "add --allow-module evil " in capfd.readouterr().err
    assert not (place / "imported").exists()


def test_the_result_of_a_run_names_no_module_either(folders, place, capfd, monkeypatch):
    """A new client is made by what result.json says, and not by the experiment alone."""
    monkeypatch.syspath_prepend(place)
    folder = copied(folders["hyfem"], place, dict)
    tree = json.loads((folder / "result.json").read_text())
    tree["hyperparameters"]["extractors"] = {"x": "evil:Network"}
    (folder / "result.json").write_text(json.dumps(tree))
    assert main(COMMANDS["join"]) == 2
    assert "add --allow-module evil " in capfd.readouterr().err
    assert not (place / "imported").exists()


def test_what_the_system_brings_is_refused_as_any_other(folders, place):
    """os.kill takes two numbers, as a function of features and classes does."""
    made = {"module": np.array("os:kill")}
    folder = copied(folders["flic"], place, lambda arrays: {**as_module(arrays), **made})
    with pytest.raises(CheckpointError, match="names 'os:kill"):
        intarsia.load(folder)
    with pytest.raises(CheckpointError, match="names 'os:kill"):
        intarsia.load(folder, allow_modules=["evil", "os.path"])


def test_an_allowed_module_is_not_taken_from_the_current_folder(folders, place, capfd):
    copied(folders["flic"], place, as_module)
    assert main([*COMMANDS["predict"], "--allow-module", "evil"]) == 2
    assert "There is no module 'evil'" in capfd.readouterr().err
    assert not (place / "imported").exists()


def test_python_s_own_way_looks_into_no_current_folder(folders, place):
    """`python -m` puts the current folder first: its rich.py would be taken for the library."""
    copied(folders["flic"], place, as_module)
    (place / "rich.py").write_text((place / "evil.py").read_text())
    command = [sys.executable, "-m", "intarsia", *COMMANDS["predict"], "--allow-module", "evil"]
    home = str(Path(intarsia.__file__).parents[1])
    found = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": home}, capture_output=True, text=True, check=False
    )
    assert found.returncode == 2, found.stderr
    assert not (place / "imported").exists()


def test_an_allowed_module_that_is_installed_predicts(folders, place, capfd, monkeypatch):
    monkeypatch.syspath_prepend(place)
    copied(folders["flic"], place, as_module)
    assert main([*COMMANDS["predict"], "--allow-module", "evil"]) == 0
    assert capfd.readouterr().out.startswith("id,score,label")
    assert (place / "imported").exists()


def test_names_are_found_wherever_they_stand():
    tree = {"a": "m:f", "b": {"c": ["n:g", ("o:h",)]}, "device": "cuda:1", "d": 3}
    assert list(functions_in(tree)) == ["m:f", "n:g", "o:h"]


@pytest.mark.parametrize("value", ["evil:Network", "evil:0", ["evil:Network"], {"x": "evil:f"}])
def test_what_is_called_a_device_is_a_name_unless_torch_has_such_a_device(value):
    """A block or a client may be called so, and its module was imported at sites, unlisted."""
    (name,) = functions_in({"name": "hyfem", "extractors": {"device": value}})
    assert name.startswith("evil:")
    assert list(functions_in({"flic": {"device": "mps:0"}})) == []


def test_nothing_is_imported_for_what_names_nothing(place):
    with pytest.raises(ExperimentError, match="'evil:0' names nothing"):
        named_modules.named("evil:0")
    assert not (place / "imported").exists()
