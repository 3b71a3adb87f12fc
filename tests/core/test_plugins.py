"""What installed packages add is found by name, refused by name, and imported when it is used."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import sys
from dataclasses import dataclass, replace

import numpy as np
import pytest

import intarsia
import own_algorithm
from intarsia import core as fl
from intarsia.cli import doctor
from intarsia.cli.main import main
from intarsia.core import plugins
from intarsia.datasets.registry import dataset_names, load
from intarsia.deployment.policy import Policy
from intarsia.errors import (
    AlgorithmError,
    CheckpointError,
    ConvergenceError,
    ExperimentError,
    FederationError,
)
from intarsia.partition.registry import partition, partition_kinds
from intarsia.testing.toy_federations import table
from intarsia.training.registry import algorithm_named, algorithm_names

MODULE = """
import pathlib
pathlib.Path({mark!r}).touch()
import numpy as np
from intarsia.core.block import Block
from intarsia.data.dataset import Dataset

def waves(*, rows, seed=0, factor=1.0):
    x = np.random.default_rng(seed).normal(size=(rows, 3))
    return Dataset("waves", np.arange(rows), ("a", "b", "c"), x, factor * x @ [1.0, 2.0, 3.0])

def wrong(*, rows=3):
    return rows

def alternating(dataset, *, clients, seed=0):
    places = [np.arange(number, len(dataset.samples), clients) for number in range(clients)]
    return {{
        f"p{{n}}": Block(dataset.samples[at], dataset.features, dataset.x[at], dataset.y[at])
        for n, at in enumerate(places)
    }}

NUMBER = 3
"""
OWN = {
    "intarsia.algorithms": ["ridge = intarsia_ridge:RIDGE"],
    "intarsia.datasets": ["waves = own_waves:waves", "wrong = own_waves:wrong"],
    "intarsia.partitions": ["alternating = own_waves:alternating"],
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Return a folder on Python's path, in which packages may be put."""
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("intarsia_ridge", "own_waves", "own_broken"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


@pytest.fixture
def installed(place):
    """Return the folder with a package in it; `imported` is there once one of its modules is."""
    text = (own_algorithm.EXAMPLE / "intarsia_ridge.py").read_text()
    modules = {
        "own_waves": MODULE.format(mark=str(place / "imported")),
        "intarsia_ridge": text + f"\nopen({str(place / 'imported')!r}, 'w').close()\n",
    }
    own_algorithm.add_package(place, "own-things", OWN, modules, "2.1")
    return place


def test_names_are_listed_without_an_import(installed):
    assert "ridge" in algorithm_names()
    assert {"waves", "wrong"} <= set(dataset_names())
    assert "alternating" in partition_kinds()
    assert Policy(algorithms=("ridge",)).algorithms == ("ridge",)
    (found,) = (one for one in plugins.installed("algorithm") if one.name == "ridge")
    assert found.package == "own-things 2.1"
    assert found.function == "intarsia_ridge:RIDGE"
    with pytest.raises(ExperimentError, match="use 'ridge'"):
        algorithm_named("rigde")
    assert not (installed / "imported").exists()


def test_a_package_that_comes_or_goes_while_the_process_runs_is_noticed(place):
    assert "waves" not in dataset_names()
    own_algorithm.add_package(place, "own-things", OWN, {})
    assert "waves" in dataset_names()
    shutil.rmtree(place / "own_things-1.0.dist-info")
    assert "waves" not in dataset_names()


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("entry_points.txt", b"[intarsia.algorithms]\nmine\n[[[\n"),
        ("entry_points.txt", b"[intarsia.algorithms]\nmin\xff = a:b\n"),
        ("METADATA", None),
        ("METADATA", b""),
    ],
)
def test_a_package_that_cannot_be_read_stands_in_nobodys_way(installed, caplog, file, content):
    own_algorithm.add_package(installed, "broken", {"intarsia.algorithms": ["mine = a:b"]}, {})
    where = installed / "broken-1.0.dist-info" / file
    where.unlink()
    if content is not None:
        where.write_bytes(content)
    assert "ridge" in algorithm_names()
    assert "mine" not in algorithm_names()
    assert "broken-1.0.dist-info cannot be read" in caplog.text


def test_packages_are_read_once_for_many_questions(installed, monkeypatch):
    read, there = [], importlib.metadata.distributions
    monkeypatch.setattr(importlib.metadata, "distributions", lambda: read.append(1) or there())
    for _ in range(3):
        assert "ridge" in algorithm_names()
        assert "waves" in dataset_names()
    assert len(read) == 1


def test_names_of_packages_are_not_read_where_none_adds_anything(monkeypatch):
    class Other(importlib.metadata.Distribution):
        entry_points = importlib.metadata.EntryPoints()

        def read_text(self, filename):
            raise AssertionError(filename)  # the name would be read from it

        def locate_file(self, path):
            raise AssertionError(path)

    monkeypatch.setattr(importlib.metadata, "distributions", lambda: [Other()])
    plugins._installed.cache_clear()
    assert plugins.installed("algorithm") == plugins.unreadable() == ()
    plugins._installed.cache_clear()


def test_a_file_runs_an_algorithm_a_data_set_and_a_partition_by_their_names(installed, capfd):
    (installed / "mine.toml").write_text(
        '[algorithm]\nname = "ridge"\nregularisation = 0.01\n[labels]\ntask = "regression"\n'
        '[dataset]\nname = "waves"\nrows = 60\nfactor = 2.0\n'
        '[partition]\nkind = "alternating"\nclients = 3\n'
        "[preprocessing]\nstandardise = false\nintercept = false\n"
        "[split]\ntest = 0.0\n[experiment]\nyardsticks = false\ntolerance = 1e-10\n"
    )
    assert main(["run", str(installed / "mine.toml"), "--quiet"]) == 0
    found = intarsia.load(installed / "runs" / "mine")
    drawn = load("waves", rows=60, factor=2.0, drawn_from=0)
    x, y = drawn.x, drawn.y
    expected = np.linalg.solve(x.T @ x / 60 + 0.01 * np.eye(3), x.T @ y / 60)
    np.testing.assert_allclose(found.model.coef_, expected, rtol=1e-8)
    assert set(found.metrics.clients) == {"p0", "p1", "p2"}
    assert found.environment["package"] == "own-things 2.1"


def test_the_schema_and_the_doctor_show_them(installed, capfd):
    assert main(["schema"]) == 0
    tree = json.loads(capfd.readouterr().out)["properties"]
    assert "ridge" in tree["algorithm"]["properties"]["name"]["enum"]
    (keys,) = (one for one in tree["algorithm"]["anyOf"] if one["title"] == "ridge")
    assert keys["properties"]["regularisation"]["exclusiveMinimum"] == 0
    assert "alternating" in tree["partition"]["properties"]["kind"]["enum"]
    assert "waves" in json.dumps(tree["dataset"])
    for used in (False, True):
        said = [str(one) for one in doctor._plugins(load=used)]
        assert "the algorithm ridge of own-things 2.1" in said[0]
        assert "the partition alternating of own-things 2.1" in said[0]


@pytest.mark.parametrize("option", [[], ["--load-plugins"]])
def test_the_doctor_runs_the_code_of_a_package_only_if_it_is_told_to(place, capfd, option):
    lines = {"intarsia.algorithms": ["theirs = own_broken:MINE"]}
    text = f"open({str(place / 'imported')!r}, 'w').close()"
    own_algorithm.add_package(place, "broken", lines, {"own_broken": text})
    assert main(["doctor", *option]) == (1 if option else 0)
    assert (place / "imported").exists() == bool(option)
    said = "cannot be imported from own_broken:MINE" if option else "algorithm theirs of broken 1.0"
    assert said in capfd.readouterr().out


def test_a_name_of_this_package_is_refused_by_name(place, capfd):
    lines = {
        "intarsia.algorithms": ["hyfdca = a:A"],
        "intarsia.datasets": ["digits = a:A"],
        "intarsia.partitions": ["grid = a:A"],
    }
    own_algorithm.add_package(place, "clashing", lines, {})
    said = "installed package clashing 1.0 adds the"
    with pytest.raises(ExperimentError, match=f"{said} algorithm 'hyfdca', which is the name"):
        algorithm_named("hyfdca")
    with pytest.raises(ExperimentError, match=f"{said} data set 'digits', which is the name"):
        load("digits")
    with pytest.raises(ExperimentError, match=f"{said} partition 'grid', which is the name"):
        partition("grid", load("breast_cancer"), rows=2, columns=2)
    assert algorithm_names().count("hyfdca") == 1
    assert sum("clashing 1.0" in str(one) for one in doctor._plugins()) == 3


def test_two_packages_with_one_name_are_refused_by_name(place):
    for name in ("one", "two"):
        own_algorithm.add_package(place, name, {"intarsia.algorithms": ["mine = a:A"]}, {})
    with pytest.raises(ExperimentError, match=r"one 1\.0 and two 1\.0 both have .* 'mine'"):
        algorithm_named("mine")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "ModuleNotFoundError: No module named 'own_broken'"),
        ("raise RuntimeError('no licence')", "RuntimeError: no licence"),
        ("x = 1", "AttributeError"),
        ("RIDGE = 3", "and is int; it must be an intarsia.core.Algorithm"),
        ("from intarsia_ridge import RIDGE", "and calls itself 'ridge'; give both the same name"),
        (
            "from intarsia.algorithms.linear.fedavg import FEDAVG\nimport dataclasses\n"
            "@dataclasses.dataclass(frozen=True, kw_only=True)\nclass Options:\n    step: int = 1\n"
            "RIDGE = dataclasses.replace(FEDAVG, name='broken', hyperparameters=Options)",
            "and has hyperparameters without 'loss', 'regularisation'",
        ),
    ],
)
def test_a_package_that_cannot_be_used_is_named(place, monkeypatch, text, said, capfd):
    monkeypatch.syspath_prepend(own_algorithm.EXAMPLE)
    lines = {"intarsia.algorithms": ["broken = own_broken:RIDGE"]}
    own_algorithm.add_package(
        place, "own-broken", lines, {} if text is None else {"own_broken": text}
    )
    with pytest.raises(ExperimentError) as caught:
        algorithm_named("broken")
    sentence = str(caught.value)
    assert sentence.startswith("The algorithm 'broken' is that of the installed package own-broken")
    assert said in sentence
    (place / "mine.toml").write_text(
        '[algorithm]\nname = "broken"\n[[client]]\nname="a"\npath="a.csv"'
    )
    assert main(["run", str(place / "mine.toml")]) == 2
    err = capfd.readouterr().err
    assert "own-broken 1.0" in err
    assert "Traceback" not in err
    assert main(["schema"]) == 0  # the others are there


def test_what_a_data_set_of_a_package_lacks_is_said(installed):
    with pytest.raises(ExperimentError, match="needs the option 'rows'"):
        load("waves")
    with pytest.raises(ExperimentError, match="'waves' has no option 'row'; use 'rows'"):
        load("waves", row=3)
    with pytest.raises(ExperimentError, match=r"own-things 2\.1, and gives int; it must give Data"):
        load("wrong")
    with pytest.raises(ExperimentError, match="'alternating' lacks the key 'clients'"):
        partition("alternating", load("waves", rows=9))


# -- an algorithm itself


def tables():
    x, y = table(60, 4)
    import pandas as pd

    frame = pd.DataFrame(x, columns=list("abcd")).assign(row=np.arange(60), y=y)
    return {"one": frame[["row", "a", "b", "y"]], "two": frame[["row", "c", "d"]]}


SETTINGS = {"id": "row", "label": "y", "task": "regression", "yardsticks": False}


def test_an_algorithm_itself_runs_and_goes_on_without_a_name(tmp_path):
    ridge = own_algorithm.ridge().RIDGE
    how = {"tables": tables(), **SETTINGS, "tolerance": 0.0}
    whole = intarsia.run(algorithm=ridge, regularisation=0.1, **how)
    assert whole.algorithm == "ridge"
    assert whole.hyperparameters["regularisation"] == 0.1

    class Stopped(Exception):  # noqa: N818 - not an error of anybody
        pass

    def stop(progress):
        if progress.round == 2:
            raise Stopped

    with pytest.raises(Stopped):
        intarsia.run(
            algorithm={"name": ridge, "regularisation": 0.1},
            out=tmp_path,
            progress=stop,
            checkpoint_seconds=0.0,
            **how,
        )
    with pytest.raises(ExperimentError, match="name is 'ridge'"):
        intarsia.resume(tmp_path, tables=tables())
    with pytest.raises(CheckpointError, match="is of 'ridge', and 'other' is given"):
        intarsia.resume(tmp_path, tables=tables(), algorithm=replace(ridge, name="other"))
    found = intarsia.resume(tmp_path, tables=tables(), algorithm=ridge)
    assert found.certificate == whole.certificate
    assert found.metrics == whole.metrics
    np.testing.assert_array_equal(found.model.coef_, whole.model.coef_)


def test_what_its_code_raises_in_a_run_is_told_with_its_place(monkeypatch):
    module = own_algorithm.ridge()
    how = {"tables": tables(), **SETTINGS, "algorithm": module.RIDGE}
    monkeypatch.setattr(module, "multiply", lambda options, clients, v, labels: clients.blocks)
    with pytest.raises(AlgorithmError, match=r"py:\d+, in setup: AttributeError: clients h"):
        intarsia.run(**how)

    @fl.describe("each row's score")
    class Scores:
        z: fl.Array  # with entries for rows

    def score(own, block, told):
        return own, Scores(block.x @ told.v)

    score.__annotations__ = {"told": module.Vector, "return": tuple[fl.LinearClient, Scores]}
    function = fl.client_function(score)
    sends = fl.opening({"Vector.v": (fl.PUBLIC,)}, fl.sums(function))
    clear = tables()
    clear["two"] = clear["two"][:-5]

    def multiply(options, clients, v, labels):
        return clients.reveal(clients.sum(function, module.Vector(v, labels)))

    monkeypatch.setattr(module, "multiply", multiply)
    mine = replace(module.RIDGE, disclosure=fl.Disclosure(sends=sends))
    how = {**how, "tables": clear, "algorithm": mine}
    done = "server", fl.RoundMetrics(finished=True)
    for mode in ("plain", "masked"):
        with pytest.raises(AlgorithmError, match=r"Scores\.z of client 'two' .* fl\.PerSample"):
            intarsia.run(**how, privacy=mode)
    with pytest.raises(ExperimentError, match="There is no loss 'sqared'; use 'squared'"):
        intarsia.run(**how, loss="sqared")
    mine = replace(mine, conclude=lambda *_: fl.FinalResult(fl.RoundMetrics(), np.full(5, np.inf)))
    mine = replace(mine, setup=lambda options, clients: options, round=lambda server, _: done)
    with pytest.raises(ConvergenceError, match="5 of the model's 5 weights are no finite numbers"):
        intarsia.run(**{**how, "algorithm": mine})


def test_an_algorithm_itself_goes_before_that_of_the_file_which_may_name_none(tmp_path):
    ridge = own_algorithm.ridge().RIDGE
    for name, frame in tables().items():
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    clients = "".join(
        f'[[client]]\nname = "{name}"\npath = "{name}.csv"\nid = "row"\n' for name in tables()
    ).replace('name = "one"', 'name = "one"\nlabel = "y"')
    rest = f'[labels]\ntask = "regression"\n[experiment]\nyardsticks = false\n{clients}'
    file, known = tmp_path / "mine.toml", {"loss": "squared", "regularisation": 0.2}
    for keys in ("", "[algorithm]\n", '[algorithm]\nname = "ridge"\n'):
        file.write_text(f"{keys}regularisation = 0.2\n{rest}" if keys else rest)
        more = {} if keys else {"regularisation": 0.2}
        found = intarsia.run(file, algorithm=ridge, out=None, **more)
        assert (found.algorithm, dict(found.hyperparameters)) == ("ridge", known)
    file.write_text(f'[algorithm]\nname = "other"\nregularisation = 0.2\n{rest}')
    found = intarsia.run(file, algorithm=ridge, out=None)
    assert (found.algorithm, dict(found.hyperparameters)) == ("ridge", known)

    @dataclass(frozen=True, kw_only=True)
    class Own:
        loss: str = "squared"
        regularisation: float = 0.1
        step: float = 1.0

    mine = replace(ridge, hyperparameters=Own)
    file.write_text(f'[algorithm]\nname = "other"\nstep = 0.5\n{rest}')
    with pytest.warns(UserWarning, match="'ridge' is given, .* before 'other' .* 'step' is left"):
        found = intarsia.run(file, algorithm=mine, out=None)
    assert found.hyperparameters["step"] == 1.0


def test_an_algorithm_with_a_name_of_this_package_is_refused():
    mine = replace(own_algorithm.ridge().RIDGE, name="fedavg")
    with pytest.raises(ExperimentError, match="has the name 'fedavg', which is that of one of"):
        intarsia.run(tables=tables(), algorithm=mine, **SETTINGS)
    with pytest.raises(ExperimentError, match=r"name is 3\.0; give a name"):
        intarsia.run(tables=tables(), algorithm=3.0, **SETTINGS)


def test_rounds_with_some_of_the_clients_are_refused_where_an_algorithm_needs_all():
    ridge = own_algorithm.ridge().RIDGE
    with pytest.raises(FederationError, match="1 of 2 clients take part in a round, and ridge"):
        intarsia.run(algorithm=ridge, tables=tables(), participation=0.5, **SETTINGS)


def test_a_search_takes_an_algorithm_itself(tmp_path):
    pytest.importorskip("optuna")
    ridge = own_algorithm.ridge().RIDGE
    search = {"trials": 2, "folds": 2, "ranges": {"algorithm.regularisation": [0.1, 10.0]}}
    own = {key: one for key, one in SETTINGS.items() if key != "yardsticks"}
    found = intarsia.tune(
        tables=tables(), algorithm=ridge, search=search, out=tmp_path / "tuned", **own
    )
    assert found.chosen.values["algorithm.regularisation"] == 0.1


def test_a_package_that_raises_what_is_no_exception_is_told_in_a_sentence(tmp_path, monkeypatch):
    (tmp_path / "raises_at_import.py").write_text(
        "class Own(BaseException): ...\nraise Own('no')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ExperimentError, match=r"raises_at_import.py:2: Own: no"):
        plugins.Plugin("algorithm", "own", "raises_at_import:f", "own 1.0").load()
    (tmp_path / "stopped_at_import.py").write_text("raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        plugins.Plugin("algorithm", "own", "stopped_at_import:f", "own 1.0").load()


def test_doctor_names_broken_packages_and_says_no_ok_beside_them(monkeypatch):
    shadow = plugins.Plugin("algorithm", "hyfdca", "own:f", "own 1.0")
    monkeypatch.setattr(plugins, "_installed", lambda _: ((shadow,), ("the entry points of x",)))
    found = doctor._plugins()
    assert [one.state for one in found] == ["problem", "problem"]
    assert "own 1.0" in found[0].said
    assert found[1].said == "the entry points of x"
