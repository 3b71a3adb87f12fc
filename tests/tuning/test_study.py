"""A search is the best of its trials, and goes on after any stop to the same ones."""

from __future__ import annotations

import json
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import intarsia
from intarsia.cli.main import main
from intarsia.errors import CheckpointError, ConvergenceError, ExperimentError
from intarsia.experiment import config, federation
from intarsia.experiment.search import Range
from intarsia.maths.figures import Figures
from intarsia.results.result import Metrics, Score
from intarsia.training import run as running
from intarsia.tuning import study
from intarsia.tuning.study import tune

EXPERIMENT = """
[experiment]
name = "two"
seed = 3
rounds = 60
tolerance = 1e-8

[algorithm]
name = "hyfdca"
loss = "logistic"
regularisation = 0.9

[[client]]
name = "bank"
path = "bank.csv"
id = "customer"
label = "default"

[[client]]
name = "shop"
path = "shop.csv"
id = "customer"

[tune]
trials = 4
folds = 3

[tune.ranges]
regularisation = { low = 1e-5, high = 1.0, log = true }
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """240 customers, 180 of them at each of two clients; labels with noise."""
    place = tmp_path_factory.mktemp("two")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 8))
    label = (x @ np.r_[0.5, -0.5, 1.0, 0, 0, 0, 0.8, 0] + rng.normal(size=240) > 0).astype(int)
    bank = pd.DataFrame(x[:180, :4], columns=list("abcd")).assign(default=label[:180])
    bank.rename_axis("customer").to_csv(place / "bank.csv")
    shop = pd.DataFrame(x[60:, 4:], columns=list("efgh"), index=range(60, 240))
    shop.rename_axis("customer").to_csv(place / "shop.csv")
    (place / "two.toml").write_text(EXPERIMENT)
    return place


@pytest.fixture(scope="module")
def whole(folder):
    return tune(folder / "two.toml", out=folder / "whole")


def test_each_training_sample_is_evaluated_on_in_one_fold_and_no_test_sample_is(folder):
    described = config.load(folder / "two.toml", ["split.test=0.25"])
    apart = federation.build(described)
    tests, trains = [], []
    for fold in range(4):
        split = replace(described.split, folds=4, fold=fold)
        found = federation.build(replace(described, split=split))
        tests.append({name: block.samples.tolist() for name, block in found.test.items()})
        trains.append({name: block.samples.tolist() for name, block in found.train.items()})
    own = sorted(apart.train["bank"].samples.tolist())  # all have a label
    assert sorted(one for part in tests for one in part["bank"]) == own  # each once
    for held, kept in zip(tests, trains, strict=True):
        assert sorted(held["bank"] + kept["bank"]) == own
    shared = set(apart.train["bank"].samples) & set(apart.train["shop"].samples)
    for held in tests:  # both clients hold out the same
        assert set(held["bank"]) & shared == set(held["shop"]) & shared
        assert held["bank"]


def test_a_trial_comes_to_what_its_folds_come_to_one_by_one(folder, whole):
    described = config.load(folder / "two.toml", ["experiment.yardsticks=false"])
    one = whole.trials[2]
    hyper = {**described.hyperparameters, "regularisation": one.values["algorithm.regularisation"]}
    total = rows = 0.0
    for fold in range(3):
        split = replace(described.split, folds=3, fold=fold)
        made = replace(described, split=split, hyperparameters=hyper, tune=None)
        score = running.run(made, out=None).metrics.server
        total, rows = total + score.samples * score.loss, rows + score.samples
    assert one.scores["loss"] == pytest.approx(total / rows, abs=1e-15)


def test_the_best_trial_is_chosen_and_the_file_is_the_first(whole):
    losses = [one.scores["loss"] for one in whole.trials]
    assert whole.trials[0].values == {"algorithm.regularisation": 0.9}
    assert len({one.values["algorithm.regularisation"] for one in whole.trials}) == 4
    assert whole.best == int(np.argmin(losses))
    assert losses[whole.best] < losses[0]  # λ of the file is far too large
    assert whole.front == (whole.best,)


def test_the_best_values_are_a_file_that_runs(folder, whole):
    best = config.load(whole.folder / "best.toml")
    for name in ("best.toml", "study.db"):  # a URL in them may have a password
        assert (whole.folder / name).stat().st_mode & 0o077 == 0
    assert best.hyperparameters["regularisation"] == whole.chosen.values["algorithm.regularisation"]
    own = config.load(folder / "two.toml")
    kept = replace(own, hyperparameters=best.hyperparameters, out=best.out, tune=None)
    assert best == kept
    result = running.run(best)
    assert (whole.folder / "best" / "result.json").is_file()
    assert result.metrics.server is not None
    told = json.loads((whole.folder / "tuning.json").read_text())
    assert told["best"] == whole.best
    assert told["trials"][1]["scores"] == whole.trials[1].scores
    assert (whole.folder / "tuning.png").read_bytes().startswith(b"\x89PNG")


def test_a_stopped_search_goes_on_to_the_same_trials(folder, whole, monkeypatch):
    def stop(progress):
        if progress.phase == "trial 3/4, fold 2/3" and progress.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(folder / "two.toml", out=folder / "stopped", progress=stop)
    goes_on_to_the_same_trials(folder / "stopped", whole, monkeypatch)


KILLED = """
import os, signal, sys
from intarsia.tuning.study import tune
def shown(progress):
    if progress.phase == "trial 3/4, fold 2/3" and progress.round == 2:
        os.kill(os.getpid(), signal.SIGKILL)
tune(sys.argv[1], out=sys.argv[2], progress=shown)
"""


@pytest.mark.slow
def test_a_killed_search_goes_on_to_the_same_trials(folder, whole, monkeypatch):
    out = folder / "killed"
    script = [sys.executable, "-c", textwrap.dedent(KILLED), folder / "two.toml", out]
    assert subprocess.run(script, check=False, timeout=120).returncode == -signal.SIGKILL
    goes_on_to_the_same_trials(out, whole, monkeypatch)


def goes_on_to_the_same_trials(out, whole, monkeypatch):
    assert not (out / "tuning.json").exists()
    fresh = []
    begun = running.run
    monkeypatch.setattr(
        study.running, "run", lambda *given, **how: fresh.append(1) or begun(*given, **how)
    )
    found = tune(out.parent / "two.toml", out=out)
    assert len(fresh) == 5  # folds 2 and 3 of trial 3, and trial 4: no other is done twice
    assert found.trials == whole.trials
    assert found.best == whole.best


DRAWN = """
import os, signal, sys
from types import SimpleNamespace
import optuna
from intarsia.results.result import Metrics, Score
from intarsia.tuning import study
left = int(sys.argv[3])
draws = optuna.trial.Trial.suggest_float
def drawn(*given, **how):
    global left
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    return draws(*given, **how)
def scored(described, **_):
    values = described.hyperparameters
    score = Score(sum(values[key] for key in ("a", "b", "regularisation")), 0.5, samples=10)
    return SimpleNamespace(metrics=Metrics(server=score))
optuna.trial.Trial.suggest_float = drawn
study.running.run = scored
study.tune(sys.argv[1], out=sys.argv[2])
"""


def test_a_search_that_is_killed_between_draws_comes_to_the_same_values(folder):
    own, ranges = 'name = "fedavg"\na = 0.5', "low = 1e-3, high = 1.0, log = true }\n"
    text = EXPERIMENT.replace('name = "hyfdca"', own).replace("trials = 4", "trials = 13")
    text += f"a = {{ {ranges}b = {{ {ranges}"
    (folder / "three.toml").write_text(text)

    def searched(out, draws):
        script = [sys.executable, "-c", DRAWN, folder / "three.toml", folder / out, str(draws)]
        return subprocess.run(script, check=False, timeout=120).returncode

    assert searched("at-once", -1) == 0
    # three draws a trial: killed before the first one of a trial, and before the second
    ends = [searched("in-parts", draws) for draws in (3, 13, -1)]
    assert ends == [-signal.SIGKILL] * 2 + [0]
    once, parts = (
        json.loads((folder / out / "tuning.json").read_text())["trials"]
        for out in ("at-once", "in-parts")
    )
    assert parts == once


def test_more_trials_go_on_with_those_that_there_are(folder, whole):
    out = folder / "more"
    tune(folder / "two.toml", trials=2, out=out)
    assert tune(folder / "two.toml", trials=3, out=out).trials == whole.trials[:3]


def test_a_path_goes_from_the_largest_value_to_the_smallest_in_even_steps(folder, whole):
    described = config.load(folder / "two.toml")
    found = tune(described, path=True, trials=4, out=folder / "path")
    values = [one.values["algorithm.regularisation"] for one in found.trials]
    assert values[0] == 0.9  # the file's
    assert values[1:] == pytest.approx([1.0, 10**-2.5, 1e-5])
    losses = [one.scores["loss"] for one in found.trials]
    assert found.best == int(np.argmin(losses))
    assert losses[0] == whole.trials[0].scores["loss"]
    assert json.loads((folder / "path" / "tuning.json").read_text())["path"] is True
    assert (folder / "path" / "tuning.png").stat().st_size > 10_000
    # other steps would lie between those that were tried
    with pytest.raises(CheckpointError, match="another"):
        tune(described, path=True, trials=5, out=folder / "path")


def test_a_killed_path_goes_on_to_the_same_steps(folder, monkeypatch):
    described = config.load(folder / "two.toml")
    trains, calls = running.run, []

    def stopped(*given, **more):
        calls.append(given)
        if len(calls) == 5:  # in the second trial
            raise KeyboardInterrupt
        return trains(*given, **more)

    monkeypatch.setattr(running, "run", stopped)
    with pytest.raises(KeyboardInterrupt):
        tune(described, path=True, trials=3, out=folder / "killed-path")
    monkeypatch.setattr(running, "run", trains)
    found = tune(described, path=True, trials=3, out=folder / "killed-path")
    values = [one.values["algorithm.regularisation"] for one in found.trials]
    assert values == pytest.approx([0.9, 1.0, 1e-5])


def test_whole_steps_of_a_path_come_once_each():
    assert Range(low=1, high=3).steps(9) == (3, 2, 1)
    assert Range(low=1.0, high=100.0, log=True).steps(3) == pytest.approx((100.0, 10.0, 1.0))


def test_a_search_of_something_else_is_refused_and_replaced_on_request(folder):
    out = folder / "other"
    tune(folder / "two.toml", trials=1, out=out)
    changed = config.load(folder / "two.toml", ["algorithm.loss=squared_hinge"])
    with pytest.raises(CheckpointError, match=r"holds a search over another experiment; choose"):
        tune(changed, trials=1, out=out)
    with pytest.raises(CheckpointError, match=r"holds a search over another \[tune\]; choose"):
        tune(folder / "two.toml", objective=["accuracy"], trials=1, out=out)
    found = tune(changed, trials=1, out=out, overwrite=True)
    assert len(found.trials) == 1
    whole = (out / "study.db").read_bytes()
    for broken in (b"garbage", whole[:3000], whole.replace(b'"experiment"', b'"experiment\\')):
        (out / "study.db").write_bytes(broken)
        with pytest.raises(
            CheckpointError, match=r"study\.db cannot be read or written \(.*; make"
        ):
            tune(changed, trials=1, out=out)


def test_among_equals_the_largest_penalty_is_chosen_and_a_note_says_so(folder, monkeypatch, capsys):
    # by hand: differences of the folds to the best are 0, (0.1, 0, -0.05) and 0.125 in each
    folds = {
        1.0: (0.75, 0.5, 0.625),
        1e-5: (0.75, 0.5, 0.625),
        10**-2.5: (0.65, 0.5, 0.675),
        0.9: (0.625, 0.375, 0.5),
    }

    def scored(described, **_):
        penalty = described.hyperparameters["regularisation"]
        known = next(one for one in folds if abs(one - penalty) < 1e-9)
        score = Score(0.5, 0.5, samples=10, figures=Figures(auc=folds[known][described.split.fold]))
        return SimpleNamespace(metrics=Metrics(server=score))

    monkeypatch.setattr(study.running, "run", scored)
    command = ["tune", str(folder / "two.toml"), "--path", "--trials", "4", "--objective", "auc"]
    assert main([*command, "--out", str(folder / "equal"), "--json"]) == 0
    found, shown = capsys.readouterr()
    told = json.loads(found)
    assert told["trials"][told["best"]]["values"] == {"algorithm.regularisation": 1.0}
    assert told["notes"] == [
        "2 of 4 trials have the same auc; of them that with the largest regularisation is chosen.",
        "1 of 2 other trials differ from the chosen one by no more than one standard error of the "
        "difference over the folds: between them it may be chance.",
    ]
    text = " ".join(shown.split())
    assert all(" ".join(note.split()) in text for note in told["notes"])
    assert "│ 0.625 │ 0.072" in text  # 0.125 / √3


def test_several_objectives_end_in_a_choice_among_the_front(folder):
    objective = ["accuracy", "rounds", "bytes"]
    found = tune(folder / "two.toml", objective=objective, trials=2, out=folder / "o")
    assert set(found.chosen.scores) == {"accuracy", "rounds", "bytes"}
    assert found.best in found.front
    assert (found.folder / "tuning.png").is_file()


def test_the_auc_is_that_of_the_held_out_samples(folder):
    found = tune(folder / "two.toml", objective=["auc"], trials=1, out=folder / "auc")
    total = rows = 0.0
    for fold in range(found.folds):
        described = config.load(folder / "two.toml", ["experiment.yardsticks=false"])
        split = replace(described.split, folds=found.folds, fold=fold)
        score = running.run(replace(described, split=split, tune=None), out=None).metrics.server
        total, rows = total + score.samples * score.figures.auc, rows + score.samples
    assert found.chosen.scores["auc"] == pytest.approx(total / rows, abs=1e-12)


def test_folds_of_drawn_pseudonyms_are_those_of_one_search_that_goes_on(
    folder, tmp_path, monkeypatch
):
    described = config.load(folder / "two.toml", ["alignment.ids=pseudonyms"])
    begun, held = running.run, []

    def shown(one, **how):
        built = federation.build(one, secret=how["secret"])
        held.append((one.split.fold, built.test["bank"].samples.tolist()))
        return begun(one, **how)

    monkeypatch.setattr(study.running, "run", shown)
    tune(described, trials=1, out=tmp_path / "ps")
    (tmp_path / "ps" / ".best.toml.999999.tmp").touch()  # of a process that was killed
    found = tune(described, trials=2, out=tmp_path / "ps")
    assert not [*(tmp_path / "ps").rglob(".*.tmp")]
    first, second = dict(held[:3]), dict(held[3:])
    assert sorted(first) == [0, 1, 2]
    assert first == second
    every = [one for rows in first.values() for one in rows]
    assert len(every) == len(set(every)) > 100  # each training row once
    assert "has pseudonyms of its own, and so other test rows" in found.notes[-1]


@pytest.mark.parametrize("both", [False, True])
def test_a_fold_without_enough_rows_of_a_class_is_named_with_its_rows(folder, tmp_path, both):
    tables = {name: pd.read_csv(folder / f"{name}.csv", index_col=0) for name in ("bank", "shop")}
    ill = range(100, 102) if both else range(0, 180, 30)  # fold 1 has none, or fewer than 5
    for table in [tables["bank"], tables["shop"]][: 1 + both]:
        table["default"] = np.where(table.index.isin(ill), "ill", "well")
    for name, table in tables.items():
        table.to_csv(tmp_path / f"{name}.csv")
    text = (folder / "two.toml").read_text()
    if both:
        text = text.replace('"shop.csv"', '"shop.csv"\nlabel = "default"')
    (tmp_path / "two.toml").write_text(text)
    folds = 8 if both else 3
    own = config.load(tmp_path / "two.toml")
    built = federation.build(replace(own, split=replace(own.split, folds=folds)))
    rows = {}
    for name in ("bank", "shop")[: 1 + both]:
        labels = tables[name]["default"][built.test[name].samples].value_counts()
        each = [f"{labels[one]} of '{one}'" for one in built.labels.classes if one in labels]
        rows[name] = f"{' and '.join(each)} at '{name}'"
    with pytest.raises(ExperimentError) as told:
        intarsia.tune(
            tmp_path / "two.toml",
            search={"objective": "auc", "trials": 1, "folds": folds},
            out=tmp_path / "out",
        )
    needs = "rows of different classes" if both else "5 rows or more of each class"
    assert str(told.value) == (
        f"[tune] objective is 'auc', which takes {needs}, and fold 1 of {folds} has "
        f"{'; '.join(rows.values())}: set folds lower in [tune], or choose from loss, accuracy"
        f"{', macro_f1' * both}."
    )


def test_trials_that_diverge_are_told_and_left_out(folder, monkeypatch):
    begun = running.run

    def diverging(described, **how):
        if described.hyperparameters["regularisation"] == 0.9:
            raise ConvergenceError("The objective is no number any more.")
        return begun(described, **how)

    monkeypatch.setattr(study.running, "run", diverging)
    found = tune(folder / "two.toml", trials=2, out=folder / "diverged")
    assert found.trials[0].scores == {}
    assert found.trials[0].note == "The objective is no number any more."
    assert found.best == 1

    def always(described, **how):
        raise ConvergenceError("The objective is no number any more.")

    monkeypatch.setattr(study.running, "run", always)
    with pytest.raises(ConvergenceError, match="diverged in all 2 trials"):
        tune(folder / "two.toml", trials=2, out=folder / "always")


def test_choices_and_whole_numbers_are_tried(folder):
    ranges = {
        "method": ["auto", "ascent"],
        "preprocessing.standardise": [True, False],
        "experiment.rounds": {"low": 5, "high": 9},
    }
    found = intarsia.tune(
        folder / "two.toml",
        search={"ranges": ranges, "objective": "accuracy", "trials": 3},
        out=folder / "ch",
    )
    for one in found.trials:
        assert one.values["algorithm.method"] in ("auto", "ascent")
        assert isinstance(one.values["preprocessing.standardise"], bool)
        assert one.values["experiment.rounds"] in range(5, 10)
    assert found.trials[0].values["experiment.rounds"] == 9  # the nearest to the 60 of the file


def test_tables_in_memory_are_searched_with_the_default_range(tmp_path):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(120, 4))
    y = np.where(x.sum(1) > 0, 1, 0)
    a = pd.DataFrame({"id": range(90), "p": x[:90, 0], "q": x[:90, 1], "out": y[:90]})
    b = pd.DataFrame({"id": range(30, 120), "r": x[30:, 2], "s": x[30:, 3]})
    how = {"tables": {"a": a, "b": b}, "id": "id", "label": "out", "loss": "logistic"}
    with pytest.raises(ExperimentError, match="has no output folder; give out"):
        intarsia.tune(**how)
    found = intarsia.tune(**how, search={"trials": 2, "folds": 2}, out=tmp_path / "mem")
    assert list(found.chosen.values) == ["algorithm.regularisation"]
    assert found.trials[0].scores["loss"] > 0
    assert not (tmp_path / "mem" / "best.toml").exists()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"trials": 0}, "[tune] trials is 0; it must be a whole number of at least 1"),
        ({"folds": 1}, "[tune] folds is 1, which leaves nothing to train on"),
        ({"folds": 0}, "[tune] folds is 0 and [split] validation is 0"),
        ({"objective": "accurracy"}, "[tune] objective is 'accurracy'; use 'accuracy'"),
        ({"objective": ["loss", "loss"]}, 'objective is ["loss", "loss"]; name at least one of'),
        ({"objective": []}, "name at least one of"),
        ({"trails": 3}, "[tune] has the unknown key 'trails'; use 'trials'"),
        ({"ranges": 3}, "[tune] ranges is 3; expected a table"),
        ({"ranges": {"regularisation": 3}}, "regularisation is 3; expected { low = 1e-6"),
        ({"ranges": {"regularisation": {"low": 1.0}}}, "low is 1.0 and high is not set; give both"),
        ({"ranges": {"regularisation": {"low": 1.0, "high": 0.1}}}, "expected finite numbers"),
        (
            {"ranges": {"regularisation": {"low": 0.0, "high": 1.0, "log": True}}},
            "low is 0.0 with log = true, and there is no logarithm",
        ),
        ({"ranges": {"regularisation": {"choices": [1.0], "low": 1.0}}}, "give either the choices"),
        ({"ranges": {"regularisation": {"lo": 1.0}}}, "has the unknown key 'lo'"),
        (
            {"ranges": {"regularisation": {"low": 0.0, "high": 1.0}}},
            "[tune.ranges] algorithm.regularisation goes to 0.0, which is refused:",
        ),
        ({"ranges": {"regularization": [1e-3]}}, "has the unknown key 'regularization';"),
        (
            {"path": True, "ranges": {"regularisation": [1e-3, 1e-2]}},
            "path is true and the ranges are of algorithm.regularisation (choices); a path is over",
        ),
        ({"ranges": {"split.test": [0.1]}}, "has 'split.test', which cannot vary"),
        ({"ranges": {"algorithm.name": ["hyfdca"]}}, "has 'algorithm.name', which cannot vary"),
        ({"ranges": {"experiment.seed": [1]}}, "which does not make a model better"),
        ({"ranges": {"algorithm": {"rate": [1]}}}, 'write the key in quotation marks: "algorithm.'),
        ({"ranges": {"loss": ["hinge"]}}, "values of different losses cannot be compared"),
        (
            {"objective": "r2", "trials": 1},
            "objective is 'r2', which this experiment's scores lack",
        ),
    ],
)
def test_a_wrong_search_is_one_sentence(folder, tmp_path, settings, sentence):
    with pytest.raises(ExperimentError) as found:
        intarsia.tune(folder / "two.toml", search=settings, out=tmp_path / "out")
    assert sentence in str(found.value)
    assert str(found.value).count("\n") == 0


@pytest.mark.parametrize("key", ["trials", "objective", "path", "ranges"])
def test_a_key_of_the_search_is_not_taken_for_a_setting_of_the_run(folder, tmp_path, key):
    with pytest.raises(ExperimentError, match=r"is a key of \[tune\], given in search, such as"):
        intarsia.tune(folder / "two.toml", out=tmp_path / "out", **{key: 1})


def test_the_folds_of_the_split_are_those_of_a_search_that_names_none(folder, tmp_path):
    how = {"out": tmp_path / "out", "rounds": 2}
    found = intarsia.tune(folder / "two.toml", folds=3, search={"trials": 1}, **how)
    assert len(found.trials[0].folds) == 3


def test_a_search_that_would_spend_epsilon_each_time_is_refused(folder, tmp_path):
    described = config.load(folder / "two.toml", ["privacy.epsilon=1.0"])
    with pytest.raises(ExperimentError, match=r"epsilon is 1, which each fold of each trial would"):
        tune(described, out=tmp_path / "noisy")


def test_without_optuna_the_remedy_is_said(folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ExperimentError, match=r'run pip install "intarsia\[tune\]"'):
        tune(folder / "two.toml", out=tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            "update trial_params set param_name = 'privacy.mode', param_value = 0, "
            """distribution_json = '{"name": "CategoricalDistribution", "attributes": """
            """{"choices": ["plain"]}}' where trial_id = 2""",
            "trial 2 has privacy.mode = 'plain', which is not in [tune.ranges]",
        ),
        ("update trial_params set param_value = -5 where trial_id = 3", "which is not in"),
        ("delete from trial_params where trial_id = 3", "has no algorithm.regularisation"),
        ("update trial_values set value_type = 'INF_POS', value = null", "has no finite scores"),
        ("update trial_values set value = 'abc'", "is damaged"),
        ("update trials set state = 'EVIL'", "is damaged"),
        ("update trial_user_attributes set value_json = '5' where key = 'folds'", "is damaged"),
        ('update trial_params set distribution_json = \'{"name": "os.system"}\'', "is damaged"),
        ("update alembic_version set version_num = 'v9.9'", "is damaged"),
        (
            f"update study_user_attributes set value_json = '{'[' * 100_000}' where key = 'of'",
            "is damaged",
        ),
        (
            "create trigger t after insert on trials begin delete from trials; end",
            "it holds 't', which a search does not make",
        ),
        (
            "alter table trials rename to old; create view trials as with recursive n(a) as "
            "(select 1 union all select a + 1 from n) select a as trial_id from n",
            "it holds 'trials', which a search does not make",
        ),
    ],
)
def test_trials_that_no_search_wrote_are_refused(folder, whole, tmp_path, change, sentence):
    """A folder of somebody else could else say what best.toml has, such as sums in the clear."""
    copy = tmp_path / "copy"
    shutil.copytree(whole.folder, copy)
    with closing(sqlite3.connect(copy / "study.db")) as database:
        database.executescript(change)
        database.commit()
    before = (copy / "best.toml").read_bytes()
    with pytest.raises(CheckpointError, match=re.escape(sentence)) as told:
        tune(folder / "two.toml", out=copy, trials=5)
    assert "put back a copy, or begin the search anew with --overwrite" in str(told.value)
    assert (copy / "best.toml").read_bytes() == before


@pytest.mark.parametrize("name", ["why?mode=memory&uri=true", "br{x}$HOME", "p%2e%2e#a"])
def test_the_folder_of_a_search_has_any_name(folder, tmp_path, name):
    found = tune(folder / "two.toml", out=tmp_path / name, trials=1)
    assert [one.name for one in tmp_path.iterdir()] == [name]
    assert (tmp_path / name / "study.db").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / name / "study.db").stat().st_size > 0
    assert tune(folder / "two.toml", out=tmp_path / name, trials=1).trials == found.trials


def test_a_folder_of_a_run_is_left_alone(folder, whole, tmp_path):
    running.run(config.load(folder / "two.toml"), out=tmp_path / "run")
    with pytest.raises(CheckpointError, match="holds a run; choose another folder"):
        tune(folder / "two.toml", out=tmp_path / "run")
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="is a file, and a search's output is a folder"):
        tune(folder / "two.toml", out=tmp_path / "file")


def test_the_command_prints_the_choice_and_what_to_run(folder, whole, capfd):
    out = folder / "whole"  # done already
    assert main(["tune", str(folder / "two.toml"), "--out", str(out), "--json"]) == 0
    written, said = capfd.readouterr()
    assert json.loads(written)["best"] == whole.best
    assert f"run the best: intarsia run {out / 'best.toml'}" in said
    assert f"{whole.best + 1}, chosen" in said
    assert main(["tune", str(folder / "two.toml"), "-c", "tune.folds=1"]) == 2
    assert capfd.readouterr().err.startswith("error: [tune] folds is 1")


def test_ctrl_c_says_how_to_go_on(folder, tmp_path, monkeypatch, capfd):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(study.running, "run", stopped)
    out = tmp_path / "stopped"
    assert main(["tune", str(folder / "two.toml"), "--out", str(out), "--quiet"]) == 130
    assert "the same command, without --overwrite, goes on" in capfd.readouterr().err
