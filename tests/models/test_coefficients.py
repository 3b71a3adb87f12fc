"""The table of coefficients: on the tables' scale, as an independent fit of the pooled table.

Standard errors and p-values are compared with the inverse of the Fisher information at
scikit-learn's unpenalised fit, to 1e-6: the very numbers that statsmodels tells, which no test
needs to have installed. benchmarks/RESULTS.md has a comparison with statsmodels itself.
"""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

import intarsia
from intarsia.cli.main import main
from intarsia.errors import ExperimentError
from intarsia.models.coefficients import Coefficient, Scorecard, Summary
from intarsia.models.linear import LinearClassifier, LinearRegressor
from intarsia.models.serialization import read_model, write_model

FILE = """
[experiment]
name = "risk"
rounds = 60
tolerance = 1e-13
checkpoint_seconds = 0
yardsticks = false

[split]
test = 0.0

[algorithm]
name = "hyfdca"
loss = "logistic"
regularisation = 1e-9
{errors}
[[client]]
name = "bank"
path = "bank.csv"
id = "id"
label = "default"
units = {{ income = "EUR" }}

[[client]]
name = "shop"
path = "shop.csv"
id = "id"
"""


@pytest.fixture
def folder(tmp_path, monkeypatch, capfd):
    """Return a folder with tables of two clients, and the pooled rows and labels."""
    rng = np.random.default_rng(0)
    x = rng.normal([40, 3000, 2], [10, 500, 3], size=(300, 3))
    score = (x - [40, 3000, 2]) / [10, 500, 3] @ [1.0, -0.5, 0.8] + 0.4
    y = (score + rng.logistic(size=300) > 0).astype(int)
    bank = [f"{k},{a},{b},{c}" for k, ((a, b, _), c) in enumerate(zip(x, y, strict=True))]
    shop = [f"{k},{c}" for k, (_, _, c) in enumerate(x)]
    (tmp_path / "bank.csv").write_text("\n".join(["id,age,income,default", *bank]) + "\n")
    (tmp_path / "shop.csv").write_text("\n".join(["id,orders", *shop]) + "\n")
    (tmp_path / "risk.toml").write_text(FILE.format(errors="errors = true"))
    monkeypatch.chdir(tmp_path)
    return tmp_path, x, y


def table_of(capfd, *options):
    capfd.readouterr()
    assert main(["coefficients", "runs/risk", "--json", *options]) == 0
    found = json.loads(capfd.readouterr().out)
    return {row["feature"]: row for row in found["rows"]}, found


@pytest.mark.parametrize("mode", ["plain", "masked"])
def test_coefficients_errors_and_intervals_are_those_of_an_unpenalised_fit(folder, capfd, mode):
    _, x, y = folder
    assert main(["run", "risk.toml", "--quiet", "-c", f"privacy.mode={mode}"]) == 0
    rows, found = table_of(capfd)
    centred = x - x.mean(axis=0)
    fit = LogisticRegression(C=np.inf, tol=1e-12, max_iter=1000, solver="newton-cholesky")
    fit.fit(centred / centred.std(axis=0), y)
    coef = fit.coef_[0] / centred.std(axis=0)
    p = fit.predict_proba(centred / centred.std(axis=0))[:, 1]
    design = np.column_stack([centred, np.ones(len(x))])
    information = design.T @ ((p * (1 - p))[:, None] * design)
    errors = np.sqrt(np.diag(np.linalg.inv(information)))
    for j, name in enumerate(["age", "income", "orders"]):
        row = rows[name]
        assert row["estimate"] == pytest.approx(coef[j], rel=1e-6)
        assert row["error"] == pytest.approx(errors[j], rel=1e-6)
        assert row["odds_ratio"] == pytest.approx(math.exp(coef[j]), rel=1e-6)
        assert row["high"] - row["low"] == pytest.approx(2 * 1.959964 * errors[j], rel=1e-6)
        z = abs(coef[j]) / errors[j]
        assert row["p"] == pytest.approx(math.erfc(z / math.sqrt(2)), rel=1e-4)
    at_means = fit.intercept_[0]
    assert rows["intercept"]["estimate"] == pytest.approx(
        at_means - coef @ x.mean(axis=0), rel=1e-6
    )
    raw = np.column_stack([x, np.ones(len(x))]) / [10, 1000, 1, 1]  # well conditioned
    spread = np.linalg.inv(raw.T @ ((p * (1 - p))[:, None] * raw))
    assert rows["intercept"]["error"] == pytest.approx(np.sqrt(spread[3, 3]), rel=1e-6)
    assert rows["intercept at the means"]["estimate"] == pytest.approx(at_means, rel=1e-6)
    assert rows["intercept at the means"]["error"] == pytest.approx(errors[3], rel=1e-6)
    assert [rows[name]["unit"] for name in ("age", "income", "orders")] == [None, "EUR", None]
    assert any("Fisher information plus" in note for note in found["notes"])
    assert any("draws them towards 0, the intercept too" in note for note in found["notes"])


def test_numeric_columns_with_an_equals_sign_are_no_levels_of_a_column(folder, capfd):
    place, x, _ = folder
    for name, columns in (("bank", {"age": "rate=1"}), ("shop", {"orders": "rate=2"})):
        table = pd.read_csv(place / f"{name}.csv").rename(columns=columns)
        if name == "shop":
            table["town"] = [("oslo", "rome")[row % 2] for row in range(len(table))]
        table.to_csv(place / f"{name}.csv", index=False)
    assert main(["run", "risk.toml", "--quiet", "-c", "algorithm.regularisation=1e-3"]) == 0
    rows, found = table_of(capfd)
    assert {"rate=1", "rate=2", "town=oslo", "town=rome"} <= {*rows}
    errors = {name: rows[name].get("error") for name in rows}
    assert errors["rate=1"] > 0
    assert errors["rate=2"] > 0
    assert errors["town=oslo"] is errors["town=rome"] is None
    assert any("all levels of town stand" in note for note in found["notes"])
    model = read_model(Path("runs/risk/model"))
    assert model.levels_ == {"town": ("oslo", "rome")}

    pd.DataFrame({"rate=1": x[:3, 0], "town": ["oslo", "rome", "paris"]}).to_csv(
        "new.csv", index=False
    )
    assert main(["predict", "runs/risk", "new.csv"]) == 0
    said = capfd.readouterr()
    assert "lacks 2 of the model's 4 columns; each counts as its mean: income, rate=2" in said.err
    scores = [float(line.split(",")[1]) for line in said.out.splitlines()[1:]]
    coef = {name: rows[name]["estimate"] for name in rows}
    means = dict(zip(map(str, model.feature_names_in_), model.means_, strict=True))
    rest = sum(coef[name] * means[name] for name in ("income", "rate=2"))
    for row, town in enumerate(("town=oslo", "town=rome")):
        own = coef["intercept"] + rest + coef["rate=1"] * x[row, 0] + coef[town]
        assert scores[row] == pytest.approx(own, rel=1e-9)


def test_a_run_that_goes_on_comes_to_the_same_errors(folder, capfd):
    assert main(["run", "risk.toml", "--quiet"]) == 0
    made = Path("runs/risk/model/linear.json").read_bytes()
    Path("runs/risk/result.json").unlink()  # as before the run had ended
    shutil.rmtree("runs/risk/model")
    assert main(["resume", "runs/risk", "--quiet"]) == 0
    assert Path("runs/risk/model/linear.json").read_bytes() == made


def test_a_model_of_before_has_no_error_of_the_intercept_at_zero(tmp_path):
    model = LinearRegressor.from_weights(
        {"age": 1.0}, means={"age": 40.0}, scales={"age": 10.0}, intercept=2.0
    )
    model.errors_, model.intercept_errors_ = np.array([[0.05]]), np.array([0.5])
    model.zero_errors_, model.degrees_of_freedom_ = np.array([0.7]), np.array([8.0])
    write_model(model, tmp_path)
    path = tmp_path / "linear.json"
    written = json.loads(path.read_text())
    del written["zero_errors"]
    path.write_text(json.dumps(written))
    rows = {row.feature: row for row in read_model(tmp_path).summary().rows}
    assert rows["intercept"].error is None
    assert rows["intercept at the means"].error == 0.5
    assert rows["age"].error == 0.05


def test_without_stored_errors_coefficients_are_told_alone(folder, capfd):
    (folder[0] / "risk.toml").write_text(FILE.format(errors=""))
    assert main(["run", "risk.toml", "--quiet"]) == 0
    rows, found = table_of(capfd)
    assert rows["age"]["error"] is None
    assert rows["age"]["odds_ratio"] is not None
    assert "intercept at the means" not in rows
    assert any("errors = true" in note for note in found["notes"])


def test_a_run_that_withholds_errors_says_why_and_not_to_ask_for_them(folder, capfd):
    path = folder[0] / "bank.csv"
    lines = path.read_text().splitlines()
    weighted = [f"{lines[0]},weight", *(f"{line},{1 + k % 2}" for k, line in enumerate(lines[1:]))]
    path.write_text("\n".join(weighted) + "\n")
    file = folder[0] / "risk.toml"
    file.write_text(file.read_text().replace('"default"', '"default"\nweights = "weight"'))
    assert main(["run", "risk.toml", "--quiet", "-c", "algorithm.regularisation=1e-3"]) == 0
    rows, found = table_of(capfd)
    assert rows["age"]["error"] is None
    assert any("rows or classes have weights" in note for note in found["notes"])
    assert not any("errors = true" in note for note in found["notes"])


def test_points_of_a_scorecard_add_up_to_the_base_score_at_the_base_odds(folder, capfd):
    assert main(["run", "risk.toml", "--quiet"]) == 0
    card = ("--scorecard", "--points", "40", "--base-score", "500", "--base-odds", "4")
    rows, _ = table_of(capfd, *card, "--out", "card.csv")

    def total(row):
        return rows["intercept"]["points"] + sum(
            rows[name]["points"] * value for name, value in row.items()
        )

    row = {"age": 41.0, "income": 2900.0, "orders": 1.0}
    log_odds = rows["intercept"]["estimate"] + sum(
        rows[name]["estimate"] * value for name, value in row.items()
    )
    assert total(row) == pytest.approx(500 + 40 * (log_odds - math.log(4)) / math.log(2))
    lines = Path("card.csv").read_text(encoding="utf-8").splitlines()
    written = {line["feature"]: line for line in csv.DictReader(lines)}
    assert float(written["age"]["points"]) == rows["age"]["points"]


def test_a_model_that_is_written_and_read_has_the_same_table(tmp_path):
    model = LinearRegressor.from_weights(
        {"age": 1.0, "flat": 0.0},
        means={"age": 40.0, "flat": 1.0},
        scales={"age": 10.0, "flat": 1.0},
        intercept=2.0,
    )
    model.errors_, model.intercept_errors_ = np.array([[0.05, np.nan]]), np.array([0.5])
    model.zero_errors_, model.degrees_of_freedom_ = np.array([2.5]), np.array([8.0])
    write_model(model, tmp_path)
    again = read_model(tmp_path)
    assert again.summary() == model.summary()
    text = io.StringIO()
    again.summary().write(text)
    row = again.summary().rows[2]
    # 2.306004 is the 97.5 % quantile of Student's t with 8 degrees of freedom
    assert row.high == pytest.approx(0.1 + 2.306004 * 0.05, rel=1e-6)
    assert again.summary().rows[3].error is None
    assert text.getvalue().startswith("feature,estimate,error,low,high,p\nintercept,-2.0,2.5,")


def test_a_spreadsheet_takes_no_name_of_a_column_for_a_formula(tmp_path):
    names = ["=cmd|' /C calc'!A0", "+1+cmd", "-A1", "@SUM(A1)", "age", "-1"]
    rows = tuple(Coefficient(name, None, None, -1.5) for name in names)
    with (tmp_path / "c.csv").open("w+", newline="") as file:
        Summary(rows, "logistic", 1.0).write(file)
        file.seek(0)
        _, *written = csv.reader(file)
    assert [row[0] for row in written] == [*(f"'{name}" for name in names[:4]), "age", "-1"]
    assert {row[1] for row in written} == {"-1.5"}  # a number is none


def test_an_odds_ratio_near_1_is_told_from_1():
    """One euro more of an income multiplies the odds by little, and still by something."""
    small = {"a": 4e-4, "b": -4e-4, "c": 3.21e-7, "d": 0.0, "e": 0.5, "f": 0.0123}
    rows = [Coefficient(one, None, None, w, odds_ratio=math.exp(w)) for one, w in small.items()]
    lines = str(Summary(tuple(rows), "logistic", 1e-3)).splitlines()
    shown = {line.split()[0]: line.split()[-1] for line in lines if line.split()[:1] and line}
    expected = {"a": "1.00040", "b": "0.99960", "c": "1.00000032", "d": "1", "e": "1.649"}
    assert {one: shown[one] for one in expected} == expected
    assert shown["f"] == "1.012"


def test_a_scorecard_of_no_log_odds_is_refused():
    x = np.random.default_rng(0).normal(size=(40, 2))
    with pytest.raises(ExperimentError, match="log-odds of two classes"):
        LinearRegressor().fit(x, x[:, 0]).summary(scorecard=Scorecard())
    model = LinearClassifier(loss="hinge").fit(x, x[:, 0] > 0)
    with pytest.raises(ExperimentError, match="'hinge'"):
        model.summary(scorecard=Scorecard())


@pytest.mark.parametrize("wrong", [{"points": 0}, {"base_odds": 0}, {"base_score": math.inf}])
def test_a_scorecard_of_wrong_numbers_is_refused(wrong):
    with pytest.raises(ExperimentError, match="scorecard's"):
        Scorecard(**wrong)


def test_levels_beside_an_intercept_have_no_errors_of_the_penalty():
    rng = np.random.default_rng(0)
    sex = rng.integers(0, 2, 400)
    table = pd.DataFrame(
        {"id": range(400), "sex": np.array(["F", "M"])[sex], "a": rng.normal(size=400)}
    )
    table["y"] = (sex + table.a + rng.logistic(size=400) > 0.5).astype(int)
    given = {"id": "id", "label": "y", "test": 0, "yardsticks": False, "tolerance": 1e-9}
    result = intarsia.run(
        tables={"one": table[["id", "sex", "y"]], "two": table[["id", "a"]]},
        loss="logistic",
        regularisation=1e-6,
        errors=True,
        **given,
    )
    found = result.model.summary()
    error = {row.feature: row.error for row in found.rows}
    assert error["a"] == pytest.approx(0.139, abs=0.001)
    assert [error[name] for name in ("sex=F", "sex=M", "intercept")] == [None, None, None]
    assert "all levels of sex stand beside the intercept" in str(found)
