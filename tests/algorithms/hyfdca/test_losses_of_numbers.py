"""Huber, quantile, Poisson and Gamma losses over a federation, against scipy and scikit-learn.

Their fits and closed forms are those of statsmodels, which no test needs to have installed:
benchmarks/RESULTS.md has a comparison with statsmodels itself.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize
from scipy.sparse import csr_array
from scipy.special import huber
from scipy.stats import binomtest, norm, t
from sklearn.linear_model import (
    GammaRegressor,
    HuberRegressor,
    PoissonRegressor,
    QuantileRegressor,
)
from sklearn.metrics import (
    d2_tweedie_score,
    mean_absolute_error,
    mean_pinball_loss,
    mean_tweedie_deviance,
    r2_score,
)

import intarsia
from federations import by_name, rectangles, solved, started, train
from intarsia.algorithms.hyfdca.algorithm import HYFDCA
from intarsia.algorithms.hyfdca.state import HyFDCA
from intarsia.algorithms.linear.cocoa import COCOA, CoCoA
from intarsia.algorithms.linear.fedavg import FEDAVG, FedAvg
from intarsia.core.block import Labels
from intarsia.errors import ExperimentError, TableError
from intarsia.inference.predict import predict
from intarsia.maths.linear import losses
from intarsia.models.serialization import read_model, write_model

NUMBERS = Labels("regression")
RIDGE = 0.02
CASES = [("huber", 1.35), ("huber", 0.1), ("quantile", 0.5), ("quantile", 0.9)]
CASES += [("poisson", 0.0), ("gamma", 0.0)]
EVERY = pytest.mark.parametrize(("loss", "shape"), CASES)


def option(loss, shape):
    return {losses.SHAPES[loss]: shape} if loss in losses.SHAPES else {}


def table(loss, *, samples=60, features=5, scale=1.0, seed=0):
    """Return rows, of which the last column is constant, and labels that the loss is for."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(samples, features))
    x[:, -1] = 1.0
    z = x @ rng.normal(size=features) * 0.5
    if loss == "poisson":
        return x, rng.poisson(scale * np.exp(z)).astype(float)
    if loss == "gamma":
        return x, rng.gamma(2.0, scale * np.exp(z) / 2)
    return x, scale * (z + rng.standard_t(2, size=samples))


def best_objective(loss, shape, x, y, weights=None, ridge=RIDGE):
    """Return the least objective, by solvers that know nothing of this project."""
    count, weights = len(y), np.ones(len(y)) if weights is None else weights
    if loss in ("poisson", "gamma"):
        power = 1 if loss == "poisson" else 2

        def parts(w):  # the loss is half the deviance, and the slope in z is (m - y)/m^(p - 1)
            m = np.exp(np.minimum(x @ w, 300))
            slope, bend = (m - y, m) if power == 1 else (1 - y / m, y / m)
            deviance = mean_tweedie_deviance(y, m, sample_weight=weights, power=power)
            gradient = x.T @ (weights * slope) / count + ridge * w
            hessian = (x.T * (weights * bend)) @ x / count + ridge * np.eye(len(w))
            return deviance / 2 + ridge / 2 * w @ w, gradient, hessian

        start = np.linalg.lstsq(x, np.log(y + 0.3 * y.mean()), rcond=1e-3)[0]
        calls = [lambda w, at=at: parts(w)[at] for at in (1, 2)]
        known = {"jac": calls[0], "hess": calls[1], "options": {"gtol": 1e-11}}
        return minimize(lambda w: parts(w)[0], start, method="trust-exact", **known).fun
    if loss == "huber":

        def primal(w):
            r = x @ w - y
            slope = weights * np.clip(r, -shape, shape)
            return (
                (weights * huber(shape, r)).mean() + ridge / 2 * w @ w,
                x.T @ slope / count + ridge * w,
            )

        start, box, least = np.zeros(x.shape[1]), None, primal
    else:  # its dual is a quadratic in a box

        def least(alpha):
            w = x.T @ alpha / (ridge * count)
            return ridge / 2 * w @ w - alpha @ y / count, (x @ w - y) / count

        start = np.zeros(count)
        box = [((shape - 1) * one, shape * one) for one in weights]
    known = {"maxiter": 200_000, "maxfun": 200_000, "ftol": 1e-16, "gtol": 1e-11, "maxcor": 50}
    found = minimize(least, start, jac=True, bounds=box, method="L-BFGS-B", options=known)
    return found.fun if loss == "huber" else -found.fun


def primal_at(loss, shape, x, y, w, weights=None, ridge=RIDGE):
    code = losses.loss_code(loss)
    each = losses.value(code, x @ w, y, weights, shape=shape)
    return float(each.mean() + ridge / 2 * w @ w)


def check(loss, shape, conclusion, x, y, *, weights=None, close=1e-6, ridge=RIDGE):
    """Check that P is the best within `close`, and that the gap bounds its distance."""
    best, info = best_objective(loss, shape, x, y, weights, ridge), conclusion.info
    assert abs(info.primal - best) <= close * best
    assert info.primal - best <= info.primal - info.dual + 1e-9 * best
    assert info.dual <= best * (1 + 1e-7)


def ordered(found, features):
    return np.array([found[f"f{at:04d}"][0] for at in range(features)])


@pytest.mark.parametrize("frame", [True, False])
@EVERY
def test_newtons_method_reaches_the_optimum_on_overlapping_rectangles(loss, shape, frame):
    x, y = table(loss)
    options = HyFDCA(loss=loss, regularisation=RIDGE, frame=frame, **option(loss, shape))
    blocks = rectangles(x, y, 2, 2, shared_rows=7, shared_columns=1)
    conclusion, found = solved(HYFDCA, options, blocks, NUMBERS, tolerance=1e-8)
    check(loss, shape, conclusion, x, y)
    w = ordered(found, 5)
    assert primal_at(loss, shape, x, y, w) == pytest.approx(conclusion.info.primal, rel=1e-9)


@pytest.mark.parametrize(
    ("loss", "theirs"), [("poisson", PoissonRegressor), ("gamma", GammaRegressor)]
)
def test_the_weights_are_those_of_scikit_learn(loss, theirs):
    x, y = table(loss)
    blocks = rectangles(x, y, 2, 2, shared_rows=7, shared_columns=1)
    options = HyFDCA(loss=loss, regularisation=RIDGE)
    _, found = solved(HYFDCA, options, blocks, NUMBERS, tolerance=1e-11)
    solver = theirs(alpha=RIDGE, fit_intercept=False, tol=1e-10, max_iter=10_000)
    assert ordered(found, 5) == pytest.approx(solver.fit(x, y).coef_, abs=1e-5)


@EVERY
def test_weights_of_rows_multiply_the_losses(loss, shape):
    x, y = table(loss, seed=1)
    weights = np.random.default_rng(2).uniform(0.2, 3.0, len(y))
    weights /= weights.mean()
    blocks = rectangles(x, y, 2, 2, shared_rows=7, shared_columns=1)
    blocks = {name: replace(one, weights=weights[one.samples]) for name, one in blocks.items()}
    options = HyFDCA(loss=loss, regularisation=RIDGE, **option(loss, shape))
    weighted = replace(NUMBERS, weighted=True)
    conclusion, _ = solved(HYFDCA, options, blocks, weighted, tolerance=1e-8)
    check(loss, shape, conclusion, x, y, weights=weights)


@EVERY
def test_dual_ascent_certifies_the_optimum(loss, shape):
    x, y = table(loss, seed=2)
    options = HyFDCA(loss=loss, regularisation=0.2, method="ascent", **option(loss, shape))
    blocks = rectangles(x, y, 2, 2, shared_rows=7)
    conclusion, _ = solved(HYFDCA, options, blocks, NUMBERS, tolerance=5e-4, rounds=200)
    assert conclusion.info.gap_relative <= 2e-3
    check(loss, shape, conclusion, x, y, close=2e-3, ridge=0.2)


@EVERY
def test_rounds_with_clients_away_certify_the_optimum(loss, shape):
    x, y = table(loss, seed=3)
    options = HyFDCA(loss=loss, regularisation=0.2, **option(loss, shape))
    blocks = rectangles(x, y, 3, 2)
    engine, server = started(HYFDCA, options, blocks, NUMBERS)
    names = list(blocks)

    def present(number):
        return [one for one in names if one != names[number % len(names)]]

    conclusion = train(HYFDCA, engine, server, 120, present=present)
    check(loss, shape, conclusion, x, y, close=0.05, ridge=0.2)


@EVERY
def test_sparse_tables_with_more_columns_than_rows_reach_the_optimum(loss, shape):
    x, y = table(loss, samples=40, features=90, seed=4)
    x = x * (abs(x) > 1.2)
    options = HyFDCA(loss=loss, regularisation=0.3, **option(loss, shape))
    blocks = rectangles(csr_array(x), y, 2, 2)
    conclusion, _ = solved(HYFDCA, options, blocks, NUMBERS, tolerance=1e-7, rounds=150)
    check(loss, shape, conclusion, x, y, ridge=0.3)


@pytest.mark.parametrize(("loss", "scale"), [("poisson", 1e3), ("gamma", 1e5), ("gamma", 1e-5)])
@pytest.mark.parametrize("constant", [True, False])
def test_large_and_small_means_are_reached_from_zero_weights(loss, scale, constant):
    x, y = table(loss, scale=scale)
    x = x if constant else x[:, :-1]
    options = HyFDCA(loss=loss, regularisation=RIDGE)
    blocks = rectangles(x, y, 2, 2, shared_rows=7)
    conclusion, _ = solved(HYFDCA, options, blocks, NUMBERS, tolerance=1e-8, rounds=30)
    check(loss, 0.0, conclusion, x, y)


@pytest.mark.parametrize(("scale", "shift"), [(1e4, 0.0), (1e-4, 0.0), (1.0, 300.0)])
def test_the_quantile_loss_is_smoothed_in_the_unit_of_the_labels(scale, shift):
    x, y = table("quantile", scale=scale)
    options = HyFDCA(loss="quantile", regularisation=RIDGE / scale, quantile=0.8)
    blocks = rectangles(x, y + shift, 2, 2, shared_rows=7)
    conclusion, _ = solved(HYFDCA, options, blocks, NUMBERS, tolerance=1e-7, rounds=25)
    assert conclusion.info.gap_relative <= 1e-7
    best = scale * best_objective("quantile", 0.8, x, (y + shift) / scale)
    assert conclusion.info.primal == pytest.approx(best, rel=1e-6)


def test_without_a_penalty_the_quantile_loss_is_that_of_linear_programming():
    x, y = table("quantile", seed=5)
    options = HyFDCA(loss="quantile", regularisation=1e-6, quantile=0.3)
    blocks = rectangles(x, y, 2, 2, shared_rows=7)
    _, found = solved(HYFDCA, options, blocks, NUMBERS, tolerance=1e-7, rounds=150)
    w = ordered(found, 5)
    theirs = QuantileRegressor(quantile=0.3, alpha=0, fit_intercept=False).fit(x, y)
    best = mean_pinball_loss(y, theirs.predict(x), alpha=0.3)
    ours = mean_pinball_loss(y, x @ w, alpha=0.3)
    assert best <= ours * (1 + 1e-12)
    assert ours <= best + 1e-6 / 2 * theirs.coef_ @ theirs.coef_ + 1e-7


@EVERY
def test_cocoa_reaches_the_optimum_and_fedavg_comes_close(loss, shape):
    x, y = table(loss, seed=6)
    blocks = rectangles(x, y, 3, 1)
    options = CoCoA(loss=loss, regularisation=0.2, **option(loss, shape))
    engine, server = started(COCOA, options, blocks, NUMBERS)
    conclusion = train(COCOA, engine, server, 200)
    check(loss, shape, conclusion, x, y, close=2e-3, ridge=0.2)
    slow = FedAvg(loss=loss, regularisation=0.2, a=0.05, b=1, **option(loss, shape))
    engine, server = started(FEDAVG, slow, rectangles(x, y, 1, 1), NUMBERS)
    conclusion = train(FEDAVG, engine, server, 60)
    w = ordered(by_name(engine.schema("train"), conclusion.weights), 5)
    best = best_objective(loss, shape, x, y, ridge=0.2)
    assert conclusion.info.primal == pytest.approx(primal_at(loss, shape, x, y, w, ridge=0.2))
    assert best - 1e-9 <= conclusion.info.primal <= 1.03 * best


def frames(x, y, overlap=9):
    """Return four tables of two regions and two kinds of columns; 2 × overlap rows are in both."""
    data = pd.DataFrame(x, columns=list("abcd")).assign(id=range(len(y)), y=y)
    half = len(y) // 2
    north, south = data.iloc[: half + overlap], data.iloc[half - overlap :]
    left, right = ["id", "a", "b", "y"], ["id", "c", "d"]
    return {
        "north left": north[left],
        "north right": north[right],
        "south left": south[left],
        "south right": south[right],
    }


@pytest.mark.parametrize(
    "mode", ["masked", *(pytest.param(one, marks=pytest.mark.slow) for one in ("plain", "ckks"))]
)
@pytest.mark.parametrize(("loss", "shape"), [("huber", 0.8), ("quantile", 0.7), ("poisson", 0)])
def test_a_run_finds_and_predicts_what_one_table_would(loss, shape, mode):
    check_run(loss, shape, mode)


@pytest.mark.parametrize(
    "mode", ["masked", *(pytest.param(one, marks=pytest.mark.slow) for one in ("plain", "ckks"))]
)
def test_a_run_with_gamma_finds_and_predicts_what_one_table_would(mode):
    check_run("gamma", 0.0, mode)


def check_run(loss, shape, mode):
    x, y = table(loss, samples=90, features=5, seed=7)
    x = x[:, :4]
    result = intarsia.run(
        tables=frames(x, y),
        id="id",
        label="y",
        loss=loss,
        regularisation=RIDGE,
        task="regression",
        test=0,
        privacy=mode,
        tolerance=1e-7,
        **option(loss, shape),
    )
    z = np.column_stack([(x - x.mean(axis=0)) / x.std(axis=0), np.ones(len(y))])
    best = best_objective(loss, shape, z, y)
    assert result.certificate.primal == pytest.approx(best, rel=1e-6)
    said = result.model.predict(pd.DataFrame(x, columns=list("abcd")))
    w = np.append(result.model.coef_ * x.std(axis=0), 0)
    w[-1] = result.model.intercept_ + result.model.coef_ @ x.mean(axis=0)
    code = losses.loss_code(loss)
    assert said == pytest.approx(losses.mean_of(code, z @ w))
    assert primal_at(loss, shape, z, y, w) == pytest.approx(best, rel=1e-6)
    score = result.metrics.server
    assert score.loss == pytest.approx(losses.value(code, z @ w, y, shape=shape).mean(), rel=1e-5)
    assert score.r2 == pytest.approx(r2_score(y, said), rel=1e-5)
    assert score.figures.mae == pytest.approx(mean_absolute_error(y, said), rel=1e-5)
    if loss in ("poisson", "gamma"):
        power = 1 if loss == "poisson" else 2
        assert score.figures.deviance == pytest.approx(2 * score.loss)
        assert score.figures.d2 == pytest.approx(d2_tweedie_score(y, said, power=power), rel=1e-5)
    if loss == "quantile":
        assert score.figures.coverage == pytest.approx(np.mean(y <= said), abs=0.03)
        below = round(score.figures.coverage * score.samples)
        reach = binomtest(below, score.samples).proportion_ci(method="wilson")
        assert score.figures.intervals["coverage"] == pytest.approx((reach.low, reach.high))
    pooled = result.metrics.centralised
    assert pooled.loss == pytest.approx(score.loss, rel=1e-2)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"loss": "quantile", "quantile": 1.0},
            "algorithm.quantile is 1.0; it must be above 0 and",
        ),
        (
            {"loss": "huber", "huber_delta": 0.0},
            "algorithm.huber_delta is 0.0; it must be positive",
        ),
        ({"loss": "poisson", "algorithm": "liblinear", "quantile": 0.5}, "quantile"),
        ({"loss": "huber", "algorithm": "liblinear"}, "no solver of scikit-learn has"),
        ({"loss": "huber", "errors": True}, "standard errors of the loss 'huber'"),
        ({"loss": "quantile", "errors": True}, "standard errors of the loss 'quantile'"),
        (
            {"loss": "poisson", "task": "multiclass"},
            "classes but the loss 'poisson' is for numbers to predict; set labels.task = "
            r'"regression" \(from Python task="regression"\), or another loss',
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, said):
    x, y = table("poisson")
    with pytest.raises(ExperimentError, match=said):
        intarsia.run(
            **{"tables": frames(x[:, :4], y), "id": "id", "label": "y", "test": 0} | settings
        )


@pytest.mark.parametrize("algorithm", ["hyfdca", "centralised"])
@pytest.mark.parametrize(
    ("loss", "wrong", "said"), [("poisson", -1.0, "below 0"), ("gamma", 0.0, "0 or below")]
)
def test_labels_that_the_log_link_has_no_mean_for_are_refused(loss, wrong, said, algorithm):
    x, y = table("gamma")
    y[0] = wrong
    with pytest.raises(TableError, match=f"1 of 39 labels of client 'north left' is {said}"):
        intarsia.run(
            tables=frames(x[:, :4], y),
            id="id",
            label="y",
            loss=loss,
            algorithm=algorithm,
            task="regression",
            test=0,
        )


@pytest.mark.parametrize("mode", [pytest.param("plain", marks=pytest.mark.slow), "masked"])
@pytest.mark.parametrize(
    ("loss", "theirs"), [("poisson", PoissonRegressor), ("gamma", GammaRegressor)]
)
def test_standard_errors_are_those_of_maximum_likelihood(loss, theirs, mode):
    x, y = table(loss, samples=300, seed=8)
    x = x[:, :4]
    result = intarsia.run(
        tables=frames(x, y, overlap=30),  # standard errors need ten rows in common a column
        id="id",
        label="y",
        loss=loss,
        regularisation=1e-9,
        errors=True,
        task="regression",
        test=0,
        privacy=mode,
        tolerance=1e-11,
        yardsticks=False,
    )
    fit = theirs(alpha=0, tol=1e-10, max_iter=10_000).fit(x, y)
    mean, design = fit.predict(x), np.column_stack([x, np.ones(len(y))])
    weights, dispersion = mean, 1.0
    if loss == "gamma":  # the observed information; Pearson's estimate of the dispersion
        weights = y / mean
        dispersion = np.sum((y / mean - 1) ** 2) / (len(y) - 5)
    errors = np.sqrt(dispersion * np.diag(np.linalg.inv(design.T @ (weights[:, None] * design))))
    order = [list(result.model.feature_names_in_).index(name) for name in "abcd"]
    assert result.model.coef_[order] == pytest.approx(fit.coef_, abs=1e-5)
    assert result.model.errors_[0][order] == pytest.approx(errors[:4], rel=1e-4)
    rows = {row.feature: row for row in result.model.summary().rows}
    reach = {"poisson": norm, "gamma": t(len(y) - 5)}[loss].ppf(0.975)
    assert rows["a"].high - rows["a"].low == pytest.approx(2 * reach * errors[0], rel=1e-4)


def test_a_model_is_written_and_read_with_its_loss(tmp_path):
    x, _ = table("poisson")
    known = {"weights": dict.fromkeys("ab", 0.3), "means": {"a": 1.0, "b": 0.0}, "intercept": 0.5}
    for loss, shape in CASES:
        model = intarsia.LinearRegressor.from_weights(
            **known, scales=dict.fromkeys("ab", 2.0), loss=loss, **option(loss, shape)
        )
        write_model(model, tmp_path / loss)
        found = read_model(tmp_path / loss)
        frame = pd.DataFrame(x[:, :2], columns=["a", "b"])
        assert (found.loss, losses.shape_of(found)) == (loss, shape)
        assert found.predict(frame).tolist() == model.predict(frame).tolist()
        z = 0.15 * (x[:, 0] - 1) + 0.15 * x[:, 1] + 0.5
        mean = np.exp(z) if loss in ("poisson", "gamma") else z
        assert found.predict(frame) == pytest.approx(mean)


@EVERY
def test_a_regressor_reaches_the_optimum_in_one_place(loss, shape):
    x, y = table(loss, seed=9)
    known = {"regularisation": RIDGE, "tolerance": 1e-7, "max_epochs": 20_000}
    model = intarsia.LinearRegressor(loss=loss, fit_intercept=False, **option(loss, shape), **known)
    model.fit(x, y)
    best = best_objective(loss, shape, x, y)
    assert primal_at(loss, shape, x, y, model.coef_) == pytest.approx(best, rel=1e-6)


def test_models_refuse_a_loss_that_is_not_for_them():
    x, y = table("poisson")
    with pytest.raises(ExperimentError, match="'poisson' is for numbers to predict"):
        intarsia.LinearClassifier(loss="poisson").fit(x, y > 1)
    for wrong in ({"loss": "hinge"}, {"quantile": 1.0}, {"huber_delta": 0.0}):
        with pytest.raises(ExperimentError, match="a regressor takes squared, huber, quantile"):
            intarsia.LinearRegressor(**wrong).fit(x, y)
    with pytest.raises(TableError, match="60 labels of the table are 0 or below") as refused:
        intarsia.LinearRegressor(loss="gamma").fit(x, y)
    assert str(refused.value).endswith('or set algorithm.loss = "poisson".')
    with pytest.raises(TableError, match=r'"squared"\.$'):
        intarsia.LinearRegressor(loss="gamma").fit(x, y - 1)


def test_a_co_owner_without_labels_reads_counts_from_duals_and_curvatures():
    # privacy/newton.md says so: rows are shared with those only who may know the label
    x, y = table("poisson", seed=10)
    blocks = rectangles(x, y, 1, 2, labels="first")
    assert blocks["r0c1"].y is None
    options = HyFDCA(loss="poisson", regularisation=RIDGE, frame=False)
    engine, server = started(HYFDCA, options, blocks, NUMBERS)
    for number in range(1, 4):
        engine.begin_round(number)
        server, _ = HYFDCA.round(server, engine, engine.key())
    state = engine.get_states()["r0c1"]
    assert state.selected.tolist() == list(range(60))
    assert state.alpha[0] + state.curvature[0] == pytest.approx(y[blocks["r0c1"].samples])


@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_steps_that_are_too_far_put_no_exponential_into_a_sealed_sum(scale):
    # the slope of a step of 4 is e to the power of thousands: beyond what is sealed, and float64
    x, y = table("poisson", scale=scale, seed=11)
    given = {"regularisation": RIDGE, "task": "regression", "test": 0, "yardsticks": False}
    tables = frames(x[:, :4], y)
    result = intarsia.run(
        tables=tables, id="id", label="y", loss="poisson", privacy="masked", tolerance=1e-6, **given
    )
    z = np.column_stack([(x - x.mean(axis=0))[:, :4] / x.std(axis=0)[:4], np.ones(len(y))])
    assert result.certificate.primal == pytest.approx(best_objective("poisson", 0, z, y), rel=1e-6)


def test_a_table_is_predicted_and_scored_on_the_scale_of_the_means(tmp_path):
    x, y = table("poisson", seed=12)
    data = pd.DataFrame(x[:, :4], columns=list("abcd")).assign(id=range(len(y)), y=y)
    path = tmp_path / "all.csv"
    data.to_csv(path, index=False)
    given = {"regularisation": RIDGE, "task": "regression", "test": 0, "yardsticks": False}
    run = {"tables": frames(x[:, :4], y), "id": "id", "label": "y", "out": tmp_path / "out"}
    result = intarsia.run(**run, loss="poisson", tolerance=1e-7, **given)
    found = predict(tmp_path / "out", path, "id")
    assert found.scores == pytest.approx(result.model.predict(data), rel=1e-9)
    assert found.score.figures.mae == pytest.approx(mean_absolute_error(y, found.scores))
    assert found.score.figures.deviance == pytest.approx(
        mean_tweedie_deviance(y, found.scores, power=1)
    )
    data.assign(y=-1.0).to_csv(path, index=False)
    found = predict(tmp_path / "out", path, "id")
    assert found.score is None
    assert any("60 of 60 labels of the evaluated rows are below 0" in note for note in found.notes)


def huber_run(x, y, mode, **options):
    """Return R² on the table of a run with Huber's loss, and the notes that name `huber_delta`."""
    given = {"regularisation": 1e-3, "task": "regression", "test": 0, "yardsticks": False}
    run = {"tables": frames(x, y), "id": "id", "label": "y", "privacy": mode} | given | options
    result = intarsia.run(loss="huber", tolerance=1e-6, **run)
    data = pd.DataFrame(x, columns=list("abcd"))
    notes = [note for note in result.notes if "huber_delta" in note]
    return r2_score(y, result.model.predict(data)), notes


# with masked sums Newton's method alone; else it hands over where labels are nearer to 0
@pytest.mark.parametrize("mode", [pytest.param("plain", marks=pytest.mark.slow), "masked"])
@pytest.mark.parametrize("shift", [2000.0, 6000.0])
def test_a_note_tells_a_delta_far_below_the_errors_and_the_one_to_set(shift, mode):
    rng = np.random.default_rng(13)
    x = rng.normal(size=(200, 4))
    y = shift + 400 * (x @ [1.0, -0.5, 0.8, 0.3] + 0.3 * rng.normal(size=200))
    found, notes = huber_run(x, y, mode)
    assert found < 0
    (note,) = notes
    assert "algorithm.huber_delta = 1.35" in note
    told = re.search("set huber_delta = ([0-9]+),", note)
    found, notes = huber_run(x, y, mode, huber_delta=float(told[1]))
    assert notes == []
    truth = HuberRegressor(alpha=0.0, max_iter=1000).fit(x, y).score(x, y)
    assert found == pytest.approx(truth, abs=0.005)
    assert found > 0.9


# the penalty takes 0.97 and 0.02 of what the losses fall by, and with the elastic net all of it
@pytest.mark.parametrize(
    ("options", "held"),
    [
        ({"regularisation": 1e-3}, True),
        ({"regularisation": 1e-5}, False),
        ({"regularisation": 100.0, "l1_ratio": 0.9}, True),
    ],
)
def test_a_delta_far_below_the_errors_has_a_note_where_the_penalty_holds_the_weights(options, held):
    rng = np.random.default_rng(13)
    x = rng.normal(size=(200, 4))
    y = 2000 + 400 * (x @ [1.0, -0.5, 0.8, 0.3] + 0.3 * rng.normal(size=200))
    found, notes = huber_run(x, y, "plain", **options)
    assert bool(notes) == held
    assert (found < 0.9) == held


@pytest.mark.parametrize("mode", [pytest.param("plain", marks=pytest.mark.slow), "masked"])
@pytest.mark.parametrize("outliers", [0, 40])
def test_labels_that_vary_by_one_have_no_note_of_delta_with_gross_errors_among_them(outliers, mode):
    rng = np.random.default_rng(14)
    x = rng.normal(size=(200, 4))
    y = x @ [1.0, -0.5, 0.8, 0.3] + 0.3 * rng.normal(size=200)
    y[:outliers] += 1000 * rng.normal(size=outliers)  # the mean error is 100 times delta
    _, notes = huber_run(x, y, mode)
    assert notes == []


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("loss", ["huber", "quantile", "squared"])
def test_labels_in_other_units_take_the_same_rounds(loss, weighted):
    """Labels, Huber's δ and the weights times 2^k; of the quantile loss λ is over 2^k then."""
    rng = np.random.default_rng(0)
    x = np.hstack([rng.normal(size=(150, 8)), np.eye(30)[rng.integers(0, 30, 150)]])
    score = x @ rng.normal(size=38)
    y = score / np.abs(score).mean() + rng.logistic(size=150)
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    weights = 10 ** rng.uniform(0, 4, 150)
    weights /= weights.mean()
    found, shape = set(), {"huber": 1.35, "quantile": 0.5, "squared": 0.0}[loss]
    for unit in (1.0, 2.0**20, 2.0**-30):
        scaled = shape * unit if loss == "huber" else shape
        ridge = 3e-7 / unit if loss == "quantile" else 3e-7
        options = HyFDCA(loss=loss, regularisation=ridge, **option(loss, scaled))
        blocks = rectangles(x, unit * y, 2, 2, shared_rows=3, shared_columns=1)
        if weighted:
            blocks = {k: replace(one, weights=weights[one.samples]) for k, one in blocks.items()}
        engine, server = started(HYFDCA, options, blocks, replace(NUMBERS, weighted=weighted))
        rounds = 0
        while rounds < 100:
            rounds += 1
            server, info = HYFDCA.round(server, engine, engine.key())
            if info.gap_relative <= 1e-6:
                break
        info = HYFDCA.conclude(server, engine, engine.key("end")).info
        assert info.gap_relative <= 1e-6
        size = unit if loss == "quantile" else unit**2
        found.add((rounds, info.primal / size))
    assert len({rounds for rounds, _ in found}) == 1
    primals = [primal for _, primal in found]
    assert max(primals) == pytest.approx(min(primals), rel=1e-6)
    if loss == "huber":  # of the size 1, against another solver
        best = best_objective(loss, shape, x, y, weights if weighted else None, 3e-7)
        assert max(primals) == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize(("size", "noted"), [(1e10, True), (1e6, False)])
def test_counts_of_ten_billion_have_a_note_that_helps(size, noted):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(100, 5))
    means = np.exp(0.5 * x @ rng.normal(size=5))
    y = rng.poisson(size * means).astype(float)

    def run(y, ridge):
        return intarsia.run(
            tables={"a": (x[:, :3], y), "b": x[:, 3:]},
            id="row",
            task="regression",
            loss="poisson",
            regularisation=ridge,
            test=0,
            yardsticks=False,
            rounds=30,
        )

    found = run(y, 1e-6)
    notes = [one for one in found.notes if one.startswith("Counts are of the order")]
    assert bool(notes) == noted
    if noted:
        divided = run(y / 1e6, 1e-6)
        assert divided.finished == "tolerance"
        assert divided.model.coef_ == pytest.approx(found.model.coef_, abs=1e-6)
