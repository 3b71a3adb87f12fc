"""A folder that somebody prepared ended `predict`, `export`, `report` and others with a traceback.

Values of other kinds than a run writes, layers of sizes that the parameters do not have: each is
refused in one sentence, with status 2, before memory is taken for it.
"""

from __future__ import annotations

import json
import shutil
import zlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import intarsia
from intarsia.cli.main import main
from intarsia.core.files.json_text import check_kind
from intarsia.engines import codec
from intarsia.errors import CheckpointError
from intarsia.models.serialization import _arrays, _read_arrays, read_model
from intarsia.results.history import history_of


def tables():
    found = {}
    for name in ("north", "south"):
        x = np.random.default_rng(len(found)).normal(size=(40, 2))
        frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1]}, np.arange(40) + 40 * len(found))
        found[name] = frame.assign(kind=np.where(x[:, 0] > 0, "p", "q"))
    return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return the folder of a finished run of a linear model, and a table."""
    folder = tmp_path_factory.mktemp("linear")
    text = '[experiment]\nname = "small"\nrounds = 2\nyardsticks = false\n'
    text += '[algorithm]\nname = "fedavg"\nloss = "logistic"\n'
    for name, table in tables().items():
        table.to_csv(folder / f"{name}.csv", index_label="row")
        text += f'[[client]]\nname = "{name}"\npath = "{name}.csv"\nid = "row"\nlabel = "kind"\n'
    (folder / "small.toml").write_text(text)
    assert main(["run", str(folder / "small.toml"), "-q", "-o", str(folder / "run")]) == 0
    return folder


@pytest.fixture(scope="module")
def networks(tmp_path_factory):
    """Return the model folder of a small run of flic."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("flic")
    own = {"hidden": 4, "latent": 3, "pretraining_epochs": 1, "engine": "loop"}
    how = {"algorithm": "flic", "rounds": 1, "yardsticks": False, "label": "kind", **own}
    intarsia.run(tables=tables(), out=folder, **how)
    return folder / "model"


def altered(tree, place, value):
    """Return a tree with another value at a place; ...: without it."""
    key, *rest = place
    if rest:
        return {**tree, key: altered(tree[key], rest, value)}
    return {k: v for k, v in {**tree, key: value}.items() if v is not ...}


PREDICT, REPORT = ("predict", "{run}", "{table}"), ("report", "{run}")
COEFFICIENTS, EXPORT = ("coefficients", "{run}"), ("export", "{run}", "-f", "onnx")
ROUNDS, COMPARE, AUDIT = ("rounds", "{run}"), ("compare", "{run}"), ("audit", "{run}")
MODEL, RESULT = "model/linear.json", "result.json"
FORMS = [
    (PREDICT, MODEL, ["loss"], []), (PREDICT, MODEL, ["classes"], None),
    (PREDICT, MODEL, ["classes"], ["p", "p"]), (PREDICT, MODEL, ["classes"], ["p"]),
    (PREDICT, MODEL, ["intercept"], [[]]), (PREDICT, MODEL, ["means"], [10**400, 0]),
    (PREDICT, MODEL, ["coef"], [[float("nan"), 0.0]]), (PREDICT, MODEL, ["kind"], "other"),
    (PREDICT, MODEL, ["loss"], "other"), (COEFFICIENTS, MODEL, ["regularisation"], None),
    (EXPORT, MODEL, ["loss"], {"a": 1}), (EXPORT, MODEL, ["features"], [1, 2]),
    (REPORT, RESULT, ["bytes", "by_message"], {"Change": {"up": 1}}),
    (REPORT, RESULT, ["bytes"], "../x"), (REPORT, RESULT, ["seconds", "training"], [None]),
    (REPORT, RESULT, ["metrics", "server", "loss"], {}),
    (REPORT, RESULT, ["metrics", "server", "samples"], "x"),
    (REPORT, RESULT, ["metrics", "server", "figures", "calibration"], [{"samples": 1}]),
    (REPORT, RESULT, ["privacy"], {"epsilon": 1.0}), (REPORT, RESULT, ["finished"], 10**400),
    (COMPARE, RESULT, ["rounds"], 10**400), (COMPARE, RESULT, ["algorithm"], 7),
    (COMPARE, RESULT, ["metrics", "server", "figures", "intervals"], {"auc": [[], 1]}),
    (PREDICT, "experiment.json", ["labels"], -1), (PREDICT, "experiment.json", ["client"], 10**12),
    (PREDICT, "experiment.json", ["client"], [7]),
    (PREDICT, "experiment.json", ["client"], [{"name": "north", "missing": [[]]}]),
    (AUDIT, "audit.json", ["crossings", "clients"], [["north"]]),
    (AUDIT, "audit.json", ["mode"], 3),
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS, ids=lambda form: f"{form[0][0]} {form[2]} {form[3]}"[:60])
def test_a_prepared_folder_is_refused_in_one_sentence(finished, tmp_path, capsys, form):
    command, file, place, value = form
    run = Path(shutil.copytree(finished / "run", tmp_path / "run"))
    path = run / file
    path.write_text(json.dumps(altered(json.loads(path.read_text()), place, value)))
    given = {"run": str(run), "table": str(finished / "north.csv")}
    assert main([one.format(**given) for one in command]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert len(said) < 600


def test_a_line_of_a_history_that_is_of_no_round_counts_for_nothing(finished, tmp_path):
    run = Path(shutil.copytree(finished / "run", tmp_path / "run"))
    before = history_of(run)
    odd = [
        {"round": 10**400, "loss": 1.0}, {"round": 3, "loss": "x", "phase": [[]]},
        {"round": 4, "accuracy": 10**400}, {"round": [5], "loss": 1.0},
    ]  # fmt: skip
    with (run / "history.jsonl").open("a") as file:
        file.writelines(f"{json.dumps(one)}\n" for one in odd)
    assert history_of(run) == before


BESIDE = {
    "traffic": (["traffic", "up"], []), "bytes": (["traffic", "down"], {"Move": {}}),
    "an exchange": (["crossings", "exchanges"], {"sum f ()": {"kind": "sum"}}),
    "no exchange": (["crossings", "exchanges"], [1]),
    "reveals": (["crossings", "reveals"], {"a": 1}),
    "seconds": (["seconds"], None), "a round": (["standing", "round"], "../x"),
    "nothing": (["standing"], ...), "clients": (["crossings", "clients"], [[1]]),
}  # fmt: skip


def checkpoint_of(run):
    """Return what stands beside the states of the only checkpoint of a run that goes on."""
    (run / "result.json").unlink()
    *others, last = sorted((run / "checkpoints").iterdir())
    for one in others:
        shutil.rmtree(one)
    return last


@pytest.mark.parametrize("form", BESIDE.values(), ids=BESIDE)
def test_a_prepared_checkpoint_is_refused_in_one_sentence(finished, tmp_path, capsys, form):
    run = Path(shutil.copytree(finished / "run", tmp_path / "run"))
    path, (place, value) = checkpoint_of(run) / "extra.json", form
    content = json.loads(path.read_text().split("\n", 1)[1])
    text = json.dumps({**content, "extra": altered(content["extra"], place, value)})
    path.write_text(f"{zlib.crc32(text.encode()):08x}\n{text}\n")
    assert main(["resume", str(run), "-q"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith("error: ")
    assert "checkpoint" in said[0]


def test_a_checkpoint_of_another_kind_of_state_is_refused(finished, tmp_path, capsys):
    run = Path(shutil.copytree(finished / "run", tmp_path / "run"))
    (checkpoint_of(run) / "server.state").write_bytes(codec.encode(("no", "state")))
    assert main(["resume", str(run), "-q"]) == 2
    assert "the server's state is a tuple" in capsys.readouterr().err


LAYERS = {
    "units": {"hidden": 50_000}, "all bits": {"hidden": 2**62}, "text": {"latent": "3"},
    "fewer": {"latent": 2}, "another kind": {"embedding": "residual"}, "a layer": {"layer": True},
    "levels": {"additive": "sum"}, "mixing": {"mixing": 0.5}, "dropout": {"dropout": [1]},
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_networks_with_other_layers_than_their_parameters_are_refused(networks, tmp_path, name):
    folder = Path(shutil.copytree(networks, tmp_path / "model"))
    path = folder / "networks.json"
    known = json.loads(path.read_text())
    assert known["architecture"]["embedding"] == "perceptron"
    changed = {**known["architecture"], **LAYERS[name]}
    if changed == known["architecture"]:
        pytest.skip("it is made so")
    path.write_text(json.dumps({**known, "architecture": changed}))
    with pytest.raises(CheckpointError, match="is not a model that this version wrote"):
        read_model(folder)


ARRAYS = {
    "no numbers": lambda one: one.astype(str),
    "truth values": lambda one: np.zeros(one.shape, bool) if one.ndim else one,
    "nan": lambda one: np.full(one.shape, np.nan),
    "cut": lambda one: one[..., :-1],
    "one axis more": lambda one: one[None],
    "left out": lambda one: None,
}


CHANGES = [
    pytest.param(key, change, id=f"{key}: {name}")
    for key in ("means", "scales", "embedding.0.weight", "classifier.bias")
    for name, change in ARRAYS.items()
]


@pytest.mark.parametrize(
    ("key", "change"),
    [*CHANGES, pytest.param("features", lambda one: np.zeros(len(one)), id="features: numbers")],
)
def test_networks_with_other_arrays_are_refused(networks, tmp_path, key, change):
    folder = Path(shutil.copytree(networks, tmp_path / "model"))
    for path in folder.glob("**/*.npz"):
        arrays = _read_arrays(path)
        if key in arrays:
            arrays[key] = change(arrays[key])
            path.write_bytes(_arrays({k: one for k, one in arrays.items() if one is not None}))
    with pytest.raises(CheckpointError, match="is not a model that this version wrote"):
        read_model(folder)


@pytest.mark.parametrize(("place", "value"), [(4, 77), (6, 1), (6, 32), (8, 99)])
def test_networks_in_an_archive_of_no_known_kind_are_refused(networks, tmp_path, place, value):
    """The version, flags or compression that a member of the archive says."""
    folder = Path(shutil.copytree(networks, tmp_path / "model"))
    for path in folder.glob("clients/*.npz"):
        data = bytearray(path.read_bytes())
        for head, more in (b"PK\x03\x04", 0), (b"PK\x01\x02", 2):
            data[data.index(head) + place + more] = value
        path.write_bytes(data)
    with pytest.raises(CheckpointError, match="is not a model that this version wrote"):
        read_model(folder)


@pytest.mark.parametrize(("value", "hint", "right"), [
    (1, float, True), (True, int, False), (10**400, float, False), (2**64, int, False),
    (float("nan"), float, True), (float("inf"), float, False), (None, float | None, True),
    ("x", str | int, True), ([1, 2], tuple[int, ...], True), ([1, "x"], list[int], False),
    ({"a": 1}, dict[str, int], True), ({1: 1}, dict[str, int], False),
    ([1], tuple[int, int], False),
])  # fmt: skip
def test_a_value_is_of_the_kind_that_an_annotation_says(value, hint, right):
    if right:
        check_kind(value, hint)
        return
    with pytest.raises(ValueError, match=r"^it|^a name of it"):
        check_kind(value, hint)
