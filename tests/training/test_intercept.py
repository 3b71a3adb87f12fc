"""With a larger constant column the penalty holds for less of the intercept, as peers have it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

import intarsia
from intarsia.errors import ExperimentError

ROWS, WIDTH = 300, 7
COLUMNS = [f"x{at}" for at in range(WIDTH)]
PENALTY = 0.02


def values(*, classes: bool) -> pd.DataFrame:
    rng = np.random.default_rng(4)
    x = rng.normal(size=(ROWS, WIDTH)) * [1, 2, 3, 1, 1, 5, 1] + rng.normal(size=WIDTH)
    score = x @ rng.normal(size=WIDTH) / 4 - 3
    own = np.where(score + rng.logistic(size=ROWS) > 0, "yes", "no") if classes else score + 20
    noise = 0 if classes else rng.normal(size=ROWS)
    return pd.DataFrame(x, columns=COLUMNS).assign(
        id=np.arange(ROWS), y=own if classes else own + noise
    )


def trained(table: pd.DataFrame, constant: float | bool, **how: object) -> intarsia.Result:
    """Train on three clients that share rows, columns or both."""
    half = ROWS // 2
    tables = {
        "west": table.iloc[:half][["id", *COLUMNS[:4], "y"]],
        "east": table.iloc[:half][["id", *COLUMNS[3:]]],
        "south": table.iloc[half:],
    }
    labelled = {name: {"label": "y"} for name in ("west", "south")}
    how = {"algorithm": "hyfdca", "regularisation": PENALTY, "tolerance": 1e-10, **how}
    return intarsia.run(
        tables=tables, table_settings=labelled, id="id", test=0.0, intercept=constant,
        yardsticks=False, out=None, **how,
    )  # fmt: skip


@pytest.mark.parametrize("constant", [1.0, 10.0, 50.0])
@pytest.mark.parametrize("mode", ["plain", "masked"])
def test_the_model_is_that_of_an_independent_solver(constant: float, mode: str) -> None:
    table = values(classes=True)
    model = trained(table, constant, loss="logistic", privacy=mode).model
    scaler = StandardScaler().fit(table[COLUMNS])
    peer = LogisticRegression(
        solver="liblinear", C=1 / (PENALTY * ROWS), intercept_scaling=constant, tol=1e-10,
        max_iter=10_000,
    ).fit(scaler.transform(table[COLUMNS]), table["y"])  # fmt: skip
    coef = peer.coef_[0] / scaler.scale_
    assert_allclose(model.coef_[0], coef, rtol=1e-4, atol=1e-6)
    assert_allclose(model.intercept_, peer.intercept_ - scaler.mean_ @ coef, rtol=1e-4)


@pytest.mark.parametrize("standardise", [True, False])
@pytest.mark.parametrize("constant", [1.0, 10.0])
def test_weights_and_their_errors_are_the_closed_form(constant: float, standardise: bool) -> None:
    table = values(classes=False)
    model = trained(table, constant, loss="squared", standardise=standardise, errors=True).model
    raw = table[COLUMNS].to_numpy()
    mean, scale = (raw.mean(axis=0), raw.std(axis=0)) if standardise else (0.0, 1.0)
    x = np.column_stack([(raw - mean) / scale, np.full(ROWS, constant)])
    hessian = x.T @ x / ROWS + PENALTY * np.eye(WIDTH + 1)
    weights = np.linalg.solve(hessian, x.T @ table["y"] / ROWS)
    coef = weights[:-1] / scale
    assert_allclose(model.coef_, coef, rtol=1e-5, atol=1e-8)
    intercept = weights[-1] * constant - np.sum(mean * coef)
    assert_allclose(model.intercept_, intercept, rtol=1e-5)
    assert_allclose(model.predict(table[COLUMNS]), raw @ coef + intercept, rtol=1e-6)
    inverse = np.linalg.inv(hessian)
    ratios = np.sqrt(np.diag(inverse))
    zero = np.append(-mean / scale if standardise else np.zeros(WIDTH), constant)
    # all are in units of one residual deviation
    unit = model.errors_.ravel()[0] / (ratios / np.append(np.ones(WIDTH) * scale, 1))[0]
    assert_allclose(model.errors_.ravel(), unit * ratios[:-1] / scale, rtol=1e-3)
    assert_allclose(model.intercept_errors_, unit * ratios[-1] * constant, rtol=1e-3)
    assert_allclose(model.zero_errors_, unit * np.sqrt(zero @ inverse @ zero), rtol=1e-3)


def test_networks_have_a_constant_of_one_whatever_is_set() -> None:
    table = values(classes=True)
    tables = {"a": table[:150], "b": table[150:]}
    how = {"id": "id", "label": "y", "rounds": 2, "algorithm": "local", "yardsticks": False}
    one, other = (
        intarsia.run(tables=tables, out=None, intercept=constant, **how) for constant in (True, 10)
    )
    assert one.metrics == other.metrics


@pytest.mark.parametrize("value", [0.5, 0.0, -1.0, 1001, float("nan"), float("inf")])
def test_another_value_is_one_sentence(value: float) -> None:
    with pytest.raises(ExperimentError, match=r"\[preprocessing\] intercept is .*; expected true"):
        trained(values(classes=True), value)


def test_with_noise_no_constant_but_one_is_taken() -> None:
    table = values(classes=True)
    tables = {name: table[at::4] for at, name in enumerate("abcd")}
    how = {"id": "id", "label": "y", "algorithm": "fedavg", "rounds": 1, "yardsticks": False}
    how["standardise"] = False
    private = {"privacy": {"mode": "masked", "epsilon": 5.0}}
    intarsia.run(tables=tables, out=None, **how, **private)
    with pytest.raises(ExperimentError, match=r"is 10 and .* epsilon 5: rows are clipped"):
        intarsia.run(tables=tables, out=None, intercept=10, **how, **private)


@pytest.mark.parametrize(
    "how",
    [
        {"algorithm": "fedavg"},
        {"algorithm": "cocoa"},
        {"method": "ascent"},
        {"participation": 0.5},
        {"method": "newton"},
        {},
    ],
)
def test_steps_along_gradients_are_noted_beside_a_larger_constant(how: dict[str, object]) -> None:
    """A run of dual ascent was noted to want 100 where 10 had made it 20 times worse than 1."""
    rng = np.random.default_rng(5)
    ill = np.where(rng.random(1500) < 0.03, "ill", "healthy")
    table = pd.DataFrame(rng.normal(size=(1500, 3))).rename(columns=str).assign(y=ill)
    slow = how not in ({}, {"method": "newton"})
    how = {"label": "y", "regularisation": 0.05, "rounds": 20, **how}
    tables = {"a": table[::2], "b": table[1::2]}
    for constant in (1, 10):
        notes = intarsia.run(
            tables=tables, out=None, intercept=constant, loss="logistic", yardsticks=False, **how
        ).notes
        assert any("steps along gradients here" in one for one in notes) == (
            slow and constant == 10
        )
        drawn = [one for one in notes if "the penalty holds for the intercept, too" in one]
        assert len(drawn) == (constant == 1)
        assert any("Set preprocessing.intercept = 10" in one for one in drawn) == (
            constant == 1 and not slow
        )


def test_a_constant_of_one_is_what_true_is() -> None:
    table = values(classes=True)
    one, other = (trained(table, constant, loss="logistic") for constant in (True, 1))
    assert_array_equal(one.model.coef_, other.model.coef_)
    assert one.certificate == other.certificate
