"""Whole runs: every kind of federation, beside what scikit-learn makes of the pooled table."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import (
    brier_score_loss,
    confusion_matrix,
    f1_score,
    log_loss,
    roc_auc_score,
)
from sklearn.multiclass import OneVsRestClassifier

import intarsia
from intarsia.errors import CheckpointError, ConvergenceError, ExperimentError, TableError
from intarsia.experiment.config import Preprocessing, from_dict
from intarsia.experiment.federation import build
from intarsia.reports.contents import Contents
from intarsia.reports.sentences import summary
from intarsia.training.run import load, run

SAMPLES, FEATURES = 150, 6


def pooled(kind="binary", seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(SAMPLES, FEATURES)) * [1, 2, 5, 0.1, 10, 1] + [0, 1, -3, 2, 0, 100]
    z = (x - x.mean(axis=0)) / x.std(axis=0) @ rng.normal(size=FEATURES)
    z += 0.5 * rng.normal(size=SAMPLES)
    if kind == "regression":
        return x, np.round(3 * z + 7, 4).astype(str)
    if kind == "multiclass":
        return x, np.array(["low", "middle", "top"])[np.digitize(z, [-1, 1])]
    return x, np.where(z > 0, "1", "0")


def write(folder, name, x, y, rows, columns, ids=str):
    """Write a client's table; y None: without labels."""
    label = [] if y is None else ["y"]
    lines = [",".join(["id", *(f"f{c}" for c in columns), *label])]
    for i in rows:
        own = [] if y is None else [str(y[i])]
        lines.append(",".join([ids(i), *(repr(float(x[i, c])) for c in columns), *own]))
    (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")


def experiment(folder, clients, *, loss="logistic", **settings):
    """Return an experiment over written tables; each client says whether it has labels."""
    return from_dict(
        {
            "experiment": {
                "name": "whole",
                "tolerance": 1e-10,
                "checkpoint_seconds": 60,
                **settings,
            },
            "split": {"test": 0.0},
            "algorithm": {"name": "hyfdca", "loss": loss, "regularisation": 0.05},
            "client": [
                {"name": name, "path": f"{name}.csv", "id": "id"}
                | ({"label": "y"} if labelled else {})
                for name, labelled in clients.items()
            ],
        },
        folder,
    )


def standardised(x):
    """Return what the clients train on: standardised features and a regularised intercept."""
    return np.hstack([(x - x.mean(axis=0)) / x.std(axis=0), np.ones((len(x), 1))])


def scores_of(model, x):
    """Return the model's scores of the pooled table, (outputs, samples)."""
    columns = [int(str(name)[1:]) for name in model.feature_names_in_]
    return np.atleast_2d(model.coef_) @ x[:, columns].T + np.atleast_1d(model.intercept_)[:, None]


def history_of(folder):
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


def logistic_scores(x, y):
    """Return what scikit-learn makes of the pooled table."""
    machine = LogisticRegression(C=1 / (0.05 * SAMPLES), fit_intercept=False, tol=1e-10)
    return (
        machine.set_params(max_iter=10_000)
        .fit(standardised(x), y)
        .decision_function(standardised(x))
    )


LAYOUTS = {
    "horizontal": {"a": (range(70), range(6), True), "b": (range(70, 150), range(6), True)},
    "vertical": {"a": (range(150), [0, 1], True), "b": (range(150), [2, 3, 4, 5], True)},
    "one with labels": {"a": (range(150), [0, 1], True), "b": (range(150), [2, 3, 4, 5], False)},
    "overlapping": {
        "a": (range(90), [0, 1, 2, 3, 4, 5], True),
        "b": (range(60, 150), [0, 1, 2], True),
        "c": (range(60, 150), [2, 3, 4, 5], False),
    },
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("ids", [str, "customer {}".format], ids=["numbers", "text"])
def test_any_federation_finds_the_model_of_the_pooled_table(tmp_path, layout, ids):
    x, y = pooled()
    for name, (rows, columns, labelled) in layout.items():
        write(tmp_path, name, x, y if labelled else None, rows, columns, ids)
    clients = {name: labelled for name, (_, _, labelled) in layout.items()}
    found = run(experiment(tmp_path, clients))
    assert found.finished == "tolerance"
    assert found.certificate.gap_relative <= 1e-10
    np.testing.assert_allclose(scores_of(found.model, x)[0], logistic_scores(x, y), atol=1e-4)
    assert found.metrics.server.accuracy == found.metrics.centralised.accuracy
    assert found.metrics.server.loss == pytest.approx(found.metrics.centralised.loss, rel=1e-3)
    assert set(found.metrics.standalone) == {name for name, has in clients.items() if has}


def test_more_classes_are_told_apart(tmp_path):
    x, y = pooled("multiclass")
    for name, columns in (("a", [0, 1, 2]), ("b", [3, 4, 5])):
        write(tmp_path, name, x, y, range(150), columns)
    found = run(experiment(tmp_path, {"a": True, "b": True}))
    machine = LogisticRegression(C=1 / (0.05 * SAMPLES), fit_intercept=False, tol=1e-10)
    theirs = OneVsRestClassifier(machine.set_params(max_iter=10_000)).fit(standardised(x), y)
    expected = theirs.decision_function(standardised(x)).T
    assert [str(name) for name in found.model.classes_] == [str(c) for c in theirs.classes_]
    np.testing.assert_allclose(scores_of(found.model, x), expected, atol=1e-4)
    assert found.metrics.server.accuracy == found.metrics.centralised.accuracy


def test_numbers_are_predicted(tmp_path):
    x, y = pooled("regression")
    write(tmp_path, "a", x, y, range(150), [0, 1, 2])
    write(tmp_path, "b", x, None, range(150), [3, 4, 5])
    found = run(experiment(tmp_path, {"a": True, "b": False}, loss="squared"))
    ridge = Ridge(alpha=0.05 * SAMPLES, fit_intercept=False).fit(standardised(x), y.astype(float))
    np.testing.assert_allclose(
        scores_of(found.model, x)[0], ridge.predict(standardised(x)), rtol=1e-6, atol=1e-6
    )
    assert found.metrics.server.accuracy is None
    assert found.metrics.server.r2 == pytest.approx(found.metrics.centralised.r2, rel=1e-4)


def test_numbers_need_the_squared_loss(tmp_path):
    x, y = pooled("regression")
    write(tmp_path, "a", x, y, range(150), range(6))
    with pytest.raises(ExperimentError, match=r'set algorithm\.loss = "squared"'):
        run(experiment(tmp_path, {"a": True}))
    assert not (tmp_path / "runs/whole/result.json").exists()


def test_a_missing_value_is_the_mean(tmp_path):
    x, y = pooled()
    gaps = x.copy()
    gaps[3, 1] = gaps[80, 4] = np.nan
    lines = {}
    for name, columns in (("a", [0, 1, 2]), ("b", [3, 4, 5])):
        write(tmp_path, name, gaps, y, range(150), columns)
        lines[name] = (tmp_path / f"{name}.csv").read_text().replace("nan", "?")
        (tmp_path / f"{name}.csv").write_text(lines[name])
    found = run(experiment(tmp_path, {"a": True, "b": True}))
    mean, deviation = np.nanmean(gaps, axis=0), np.nanstd(gaps, axis=0)
    full = np.hstack([np.nan_to_num((gaps - mean) / deviation), np.ones((150, 1))])
    machine = LogisticRegression(C=1 / (0.05 * SAMPLES), fit_intercept=False, tol=1e-10)
    theirs = machine.set_params(max_iter=10_000).fit(full, y).decision_function(full)
    filled = np.where(np.isnan(gaps), mean, gaps)
    np.testing.assert_allclose(scores_of(found.model, filled)[0], theirs, atol=1e-4)


def test_conflicting_copies_are_in_the_notes(tmp_path):
    x, y = pooled()
    other = x.copy()
    other[5, 2] += 1.0
    write(tmp_path, "a", x, y, range(150), [0, 1, 2])
    write(tmp_path, "b", other, y, range(150), [2, 3, 4, 5])
    found = run(experiment(tmp_path, {"a": True, "b": True}))
    assert any("1 train sample has different copies at a, b" in note for note in found.notes)


@pytest.mark.parametrize("pattern", ["random", "cyclic"])
def test_clients_that_come_and_go_come_near(tmp_path, pattern):
    x, y = pooled()
    for name, columns in (("a", [0, 1, 2]), ("b", [3, 4, 5])):
        write(tmp_path, name, x, y, range(150), columns)
    described = experiment(
        tmp_path,
        {"a": True, "b": True},
        rounds=200,
        participation=0.5,
        participation_pattern=pattern,
    )
    found = run(replace(described, tolerance=1e-3))
    assert found.certificate.gap_relative <= 1e-3
    assert found.finished == "tolerance"
    phases = {line["phase"] for line in history_of(found.folder)}
    assert phases == {"proximal ascent"}


@pytest.mark.parametrize("size", [1e-60, 1e60])
def test_labels_of_any_unit_come_to_the_same_model_in_that_unit(tmp_path, size):
    """The squared loss and its penalty are homogeneous; warnings are errors."""
    x, y = pooled("regression")
    found = []
    for unit in (1.0, size):
        write(tmp_path, "a", x, [repr(float(one) * unit) for one in y], range(150), range(3))
        write(tmp_path, "b", x, None, range(150), range(3, 6))
        described = experiment(tmp_path, {"a": True, "b": False}, loss="squared", yardsticks=False)
        found.append(run(replace(described, split=replace(described.split, test=0.3)), out=None))
    one, other = found
    np.testing.assert_allclose(other.model.coef_ / size, one.model.coef_, rtol=1e-6)
    assert other.metrics.server.r2 == pytest.approx(one.metrics.server.r2, rel=1e-9)
    mine, theirs = (each.metrics.server.figures.intervals for each in (one, other))
    np.testing.assert_allclose(theirs["r2"], mine["r2"], rtol=1e-6)
    np.testing.assert_allclose(np.array(theirs["mae"]) / size, mine["mae"], rtol=1e-6)


def test_the_ends_of_the_penalty_come_to_no_model_and_to_one_without_it(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(SAMPLES, 2))
    y = np.where(x[:, 0] + 2 * rng.normal(size=SAMPLES) > 0, "1", "0")
    write(tmp_path, "a", x, y, range(SAMPLES), [0])
    write(tmp_path, "b", x, None, range(SAMPLES), [1])
    described = experiment(tmp_path, {"a": True, "b": False}, yardsticks=False)
    losses = []
    for penalty in (1e30, 1e-30):
        options = {"loss": "logistic", "regularisation": penalty}
        found = run(replace(described, hyperparameters=options), out=None)
        losses.append(found.metrics.server.loss)
    free = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(x, y)
    assert losses[0] == pytest.approx(np.log(2), abs=1e-12)
    assert losses[1] == pytest.approx(log_loss(y, free.predict_proba(x)), abs=1e-9)
    for algorithm in ("hyfdca", "fedavg", "cocoa", "centralised", "liblinear"):
        options = {"regularisation": 1e-300}
        with pytest.raises(ExperimentError, match=r"is 1e-300; it must be from 1e-30 to 1e\+30"):
            run(replace(described, algorithm=algorithm, hyperparameters=options), out=None)


def test_a_run_is_reproducible_and_depends_on_its_seed_alone(tmp_path):
    x, y = pooled()
    for name, columns in (("a", [0, 1, 2]), ("b", [3, 4, 5])):
        write(tmp_path, name, x, y, range(150), columns)
    described = experiment(tmp_path, {"a": True, "b": True}, rounds=4, yardsticks=False)
    one, two = run(described, out=tmp_path / "one"), run(described, out=tmp_path / "two")
    np.testing.assert_array_equal(one.model.coef_, two.model.coef_)
    assert one.bytes == two.bytes
    assert one.exchanges == two.exchanges


def test_the_folder_holds_what_was_found(tmp_path):
    x, y = pooled()
    write(tmp_path, "a", x, y, range(150), range(6))
    rounds = []
    found = run(experiment(tmp_path, {"a": True}), progress=lambda one: rounds.append(one.round))
    assert rounds == [*range(1, found.rounds + 1)]
    assert found.folder == tmp_path / "runs/whole"
    again = load(found.folder)
    assert again.to_dict() == found.to_dict()
    np.testing.assert_array_equal(again.model.coef_, found.model.coef_)
    history = history_of(found.folder)
    assert [line["round"] for line in history] == rounds
    assert history[-1]["gap_relative"] <= 1e-10
    assert (found.folder / "holdings.png").exists()
    assert (found.folder / "figures.png").exists()
    parts = {key: value for key, value in found.seconds.items() if key != "total"}
    assert found.seconds["total"] == pytest.approx(sum(parts.values()), rel=0.05)
    with pytest.raises(CheckpointError, match="--overwrite"):
        run(experiment(tmp_path, {"a": True}))


def test_nothing_is_written_without_a_folder(tmp_path):
    x, y = pooled()
    write(tmp_path, "a", x, y, range(150), range(6))
    found = run(experiment(tmp_path, {"a": True}), out=None)
    assert found.folder is None
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


def test_an_unknown_algorithm_is_refused_with_the_nearest(tmp_path):
    x, y = pooled()
    write(tmp_path, "a", x, y, range(150), range(6))
    with pytest.raises(ExperimentError, match="hyfdca"):
        run(replace(experiment(tmp_path, {"a": True}), algorithm="hyfdac"))


def test_a_run_that_diverges_says_so(tmp_path):
    x, y = pooled("regression")
    for number in range(6):
        write(tmp_path, f"p{number}", x, y, range(150), [number])
    described = experiment(tmp_path, {f"p{n}": True for n in range(6)}, loss="squared", rounds=200)
    options = {
        **described.hyperparameters,
        "method": "ascent",
        "step": "fixed",
        "gamma": 1.0,
        "sigma": 1e-3,
        "regularisation": 1e-6,
    }
    with (
        np.errstate(over="ignore", invalid="ignore"),
        pytest.raises(ConvergenceError, match=r"algorithm\.gamma"),
    ):
        run(replace(described, hyperparameters=options))


# -- figures


@pytest.mark.parametrize("mode", [pytest.param("plain", marks=pytest.mark.slow), "masked"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_figures_of_a_run_are_those_of_the_joined_table(tmp_path, layout, mode):
    x, y = pooled()
    parts = LAYOUTS[layout]
    for name, (rows, columns, labelled) in parts.items():
        write(tmp_path, name, x, y if labelled else None, rows, columns)
    clients = {name: labelled for name, (_, _, labelled) in parts.items()}
    described = experiment(tmp_path, clients)
    described = replace(described, privacy=replace(described.privacy, mode=mode))
    found = run(described, out=tmp_path / "out")
    z = scores_of(found.model, x)[0]
    figures = found.metrics.server.figures
    assert figures.auc == pytest.approx(roc_auc_score(y, z), abs=1e-6)
    assert figures.brier == pytest.approx(brier_score_loss(y == "1", expit(z)), abs=1e-6)
    assert found.metrics.server.macro_f1 == pytest.approx(
        f1_score(y, np.where(z > 0, "1", "0"), average="macro"), abs=1e-12
    )
    counts = confusion_matrix(y, np.where(z > 0, "1", "0"))
    assert np.array(figures.confusion).tolist() == counts.tolist()
    assert set(figures.intervals) >= {"auc", "average_precision", "brier", "sensitivity"}
    for name, (rows, _, labelled) in parts.items():
        if labelled:
            own = roc_auc_score(y[list(rows)], z[list(rows)])
            assert found.metrics.clients[name].figures.auc == pytest.approx(own, abs=1e-9)
    assert json.loads((tmp_path / "out" / "audit.json").read_text())["undeclared"] == []
    assert found.metrics.centralised.figures.auc == pytest.approx(figures.auc, abs=1e-2)


@pytest.mark.parametrize("signal", [0.0, 1.0])
def test_scores_that_are_no_better_than_chance_are_noted(signal):
    rng = np.random.default_rng(4)
    x = rng.normal(size=(600, 30))
    y = signal * x[:, 0] + 0.3 * rng.normal(size=600) > 0
    tables = {"a": pd.DataFrame(x).rename(columns=str).assign(y=y.astype(int))}
    how = {"label": "y", "yardsticks": False, "regularisation": 1e-4}
    told = [one for one in intarsia.run(tables=tables, **how).notes if "chance" in one]
    assert len(told) == (signal == 0)
    if told:
        assert re.search(r"the AUC is 0\.\d+, 95 % interval 0\.\d+ to 0\.\d+, and", told[0])
        assert "See whether 'y' is the column to predict" in told[0]


@pytest.mark.parametrize(("penalty", "told"), [(0.05, True), (1e-3, False)])
def test_probabilities_that_the_penalty_draws_together_are_noted(penalty, told):
    """A class of 3 % of the rows had a probability of 10 % on the average, without a word."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(1500, 6))
    y = np.where(rng.random(1500) < 0.03, "ill", "healthy")
    tables = {"a": pd.DataFrame(x).rename(columns=str).assign(y=y)}
    how = {"label": "y", "loss": "logistic", "yardsticks": False, "regularisation": penalty}
    notes = [one for one in intarsia.run(tables=tables, **how).notes if "Probabilities" in one]
    assert len(notes) == told
    if told:
        said = r"Probabilities of 'ill' are 0\.1\d+ on the average, and 0\.0\d+ of the rows have it"
        assert re.match(said, notes[0])
        assert "Set preprocessing.intercept = 10, of which it holds for a hundredth" in notes[0]
        assert not [
            one
            for one in intarsia.run(tables=tables, **how, intercept=10).notes
            if "Probabilities" in one
        ]


@pytest.mark.parametrize(("penalty", "told"), [(0.05, True), (1e-4, False)])
def test_probabilities_of_several_classes_that_are_too_low_are_noted(penalty, told):
    """Ten classes that were said right 95 of 100 times had probabilities of a half."""
    rng = np.random.default_rng(6)
    y = rng.integers(0, 10, 1200)
    x = 4 * np.eye(10)[y] + rng.normal(size=(1200, 10))
    tables = {"a": pd.DataFrame(x).rename(columns=str).assign(y=[f"c{one}" for one in y])}
    how = {"label": "y", "loss": "logistic", "yardsticks": False, "regularisation": penalty}
    notes = [one for one in intarsia.run(tables=tables, **how).notes if "Probabilities" in one]
    assert len(notes) == told
    assert all("of the classes that the model says are 0." in one for one in notes)


@pytest.mark.parametrize("signal", [0.0, 1.0])
def test_a_model_that_errs_more_than_the_mean_is_noted(signal):
    rng = np.random.default_rng(4)
    x = rng.normal(size=(120, 60))
    tables = {"a": pd.DataFrame(x).rename(columns=str)}
    tables["a"]["y"] = signal * x[:, 0] + 0.1 * rng.normal(size=120)
    how = {"label": "y", "loss": "squared", "regularisation": 1e-4, "yardsticks": False}
    result = intarsia.run(tables=tables, **how)
    r2 = result.metrics.server.r2
    assert (r2 < -0.05) == (signal == 0)
    said = f"R² is {r2:.3g}: the mean of the labels would err less than the model."
    told = [one for one in result.notes if one.startswith(said)]
    assert len(told) == (signal == 0)
    assert all("such as huber" in one and "regularisation than 0.0001" in one for one in told)


@pytest.mark.parametrize(
    ("algorithm", "advice"),
    [
        ({"name": "hyfdca", "loss": "huber", "regularisation": 1e-4}, "A higher algorithm.regul"),
        ({"name": "fedprox"}, "early_stopping in [experiment]"),
    ],
)
def test_a_model_worse_than_the_mean_is_told_of_settings_that_it_has(algorithm, advice):
    if algorithm["name"] == "fedprox":
        pytest.importorskip("torch")
    rng = np.random.default_rng(4)
    tables = {
        name: pd.DataFrame(rng.normal(size=(60, 60))).rename(columns=str) for name in ("a", "b")
    }
    for table in tables.values():
        table["y"] = rng.normal(size=60)
    result = intarsia.run(
        tables=tables, label="y", algorithm=algorithm, rounds=60, yardsticks=False
    )
    r2 = result.metrics.server.r2
    said = f"R² is {r2:.3g}: the mean of the labels would err less than the model. {advice}"
    (told,) = [one for one in result.notes if one.startswith(said)]
    huber = "huber does not follow their mean, by which R² judges"
    assert (huber in told) == (algorithm.get("loss") == "huber")


def test_a_model_that_says_one_class_is_noted(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(SAMPLES, FEATURES))
    y = np.where(np.arange(SAMPLES) % 5 == 0, "ill", "well")  # nothing tells them apart
    for name, rows in (("a", range(75)), ("b", range(75, 150))):
        write(tmp_path, name, x, y, rows, range(6))
    described = experiment(tmp_path, {"a": True, "b": True}, rounds=60)
    options = {**described.hyperparameters, "regularisation": 10.0}
    found = run(replace(described, hyperparameters=options))
    (note,) = [one for one in found.notes if one.startswith("The model says")]
    assert "'well' of all 150 training samples" in note


@pytest.mark.parametrize(("regularisation", "noted"), [(1e-6, True), (1.0, False)])
def test_probabilities_too_near_to_0_and_1_are_noted(tmp_path, regularisation, noted):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 60))
    y = np.where(x[:, 0] + 2 * rng.normal(size=400) > 0, "ill", "well")
    for name, rows in (("a", range(200)), ("b", range(200, 400))):
        write(tmp_path, name, x, y, rows, range(60))
    described = experiment(tmp_path, {"a": True, "b": True}, rounds=60)
    options = {**described.hyperparameters, "regularisation": regularisation}
    found = run(
        replace(described, hyperparameters=options, split=replace(described.split, test=0.5))
    )
    figures = found.metrics.server.figures
    assert (figures.calibration_slope < 0.5) == noted
    notes = [one for one in found.notes if one.startswith("Probabilities are too near")]
    assert len(notes) == noted
    if noted:
        assert f"{figures.calibration_slope:.3g}" in notes[0]
        assert "A higher algorithm.regularisation than 1e-06" in notes[0]


@pytest.mark.parametrize(
    ("regularisation", "constant", "share"),
    [(0.004, 1, 0.498), (0.004, 10, 0.896), pytest.param(1e-6, 1, 0.9, marks=pytest.mark.slow)],
)
def test_a_quantile_that_the_penalty_pulls_away_is_noted(tmp_path, regularisation, constant, share):
    # labels are even on 100 to 101 and columns say nothing of them: b is 100 + q at the quantile q,
    # where q = 0.9 - λb/c², which is 0.5 / 1.004 for λ = 0.004 and c = 1
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2000, 2)), (100 + rng.random(2000)).astype(str)
    write(tmp_path, "a", x, y, range(2000), [0])
    write(tmp_path, "b", x, None, range(2000), [1])
    described = experiment(tmp_path, {"a": True, "b": False}, loss="quantile", tolerance=1e-4)
    options = {"loss": "quantile", "quantile": 0.9, "regularisation": regularisation}
    described = replace(described, hyperparameters=options, yardsticks=False)
    described = replace(described, preprocessing=Preprocessing(intercept=constant))
    found = run(replace(described, split=replace(described.split, test=0.5)))
    figures = found.metrics.server.figures
    low, high = figures.intervals["coverage"]
    assert low < share < high
    notes = [one for one in found.notes if "test labels are up to the prediction" in one]
    assert len(notes) == (share == 0.498)
    if notes:
        assert notes[0].startswith(f"{100 * figures.coverage:.3g} % of the test labels")
        assert f"{100 * low:.3g} to {100 * high:.3g} %, where 90 % are right" in notes[0]
        # λ(100 + q) = 40.2 points
        assert "for 40 points. Set preprocessing.intercept = 10, of which it holds" in notes[0]


def test_a_quantile_of_more_columns_than_rows_bear_is_noted(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 60))
    y = (x[:, 0] + rng.normal(size=200)).astype(str)
    write(tmp_path, "a", x, y, range(200), range(60))
    described = experiment(tmp_path, {"a": True}, loss="quantile", yardsticks=False)
    options = {"loss": "quantile", "quantile": 0.9, "regularisation": 1e-5}
    described = replace(described, hyperparameters=options)
    found = run(replace(described, split=replace(described.split, test=0.5)))
    assert found.metrics.server.figures.intervals["coverage"][1] < 0.9
    (note,) = [one for one in found.notes if "test labels are up to the prediction" in one]
    assert "a higher algorithm.regularisation than 1e-05 mostly helps" in note


@pytest.mark.parametrize(
    ("positives", "rare"), [(15, True), pytest.param(24, True, marks=pytest.mark.slow), (45, False)]
)
def test_a_rare_class_is_judged_by_the_auc(tmp_path, positives, rare):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(SAMPLES, FEATURES))
    ill = np.argsort(x[:, 0] + rng.normal(size=SAMPLES))[-positives:]
    y = np.where(np.isin(np.arange(SAMPLES), ill), "ill", "well")
    for name, rows in (("a", range(75)), ("b", range(75, 150))):
        write(tmp_path, name, x, y, rows, range(6))
    described = experiment(tmp_path, {"a": True, "b": True}, rounds=60)
    found = run(described, out=tmp_path / "out")
    auc, accuracy = found.metrics.server.figures.auc, found.metrics.server.accuracy
    table = str(found)
    assert (f"{auc:.4f}  {found.metrics.server.loss:.4f}" in table) == rare
    said = summary(Contents.of(tmp_path / "out"))
    if rare:
        assert f"the federated model has an AUC of {auc:.4g}" in said
        share = f"{100 * positives / SAMPLES:.2f} % of the rows are “ill”"
        assert f"{share}, and {100 * accuracy:.2f} % are said right" in said
        assert f"the commonest class has {100 - 100 * positives / SAMPLES:.2f} % of the" in table
    else:
        assert f"names the right class in {100 * accuracy:.2f} % of cases" in said
    few = [
        one for one in found.notes if f"{positives} of the 150 training samples are 'ill'" in one
    ]
    assert len(few) == (positives < 20)
    assert all("split.test" in one for one in few)


@pytest.mark.parametrize(
    ("loss", "bad", "said"),
    [("poisson", -3, "is below 0"), ("gamma", 0, "is 0 or below")],
)
@pytest.mark.parametrize("part", ["train", "test"])
def test_numbers_that_the_loss_is_not_for_are_refused_before_anything_is_written(
    loss, bad, said, part, tmp_path
):
    tree = experiment(tmp_path, {"a": True}, loss=loss)
    described = replace(tree, split=replace(tree.split, test=0.5), out=str(tmp_path / "out"))
    described = replace(described, labels=replace(described.labels, task="regression"))
    x, y = pooled()[0][:40], np.arange(1.0, 41.0)
    write(tmp_path, "a", x, y, range(40), [0, 1])
    row = int(getattr(build(described), part)["a"].samples[0])
    y[row] = bad
    write(tmp_path, "a", x, y, range(40), [0, 1])
    with pytest.raises(TableError, match="1 of 40 labels of client 'a' is") as problem:
        run(described)
    assert f"{said} (the first: {bad} in row {row + 1}), and the" in str(problem.value)
    assert not (tmp_path / "out").exists()
