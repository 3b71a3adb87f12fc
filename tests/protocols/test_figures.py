"""Figures over clients are those of scikit-learn on the joined table, in each mode of the sums."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from scipy.special import expit, softmax
from scipy.stats import ks_2samp
from sklearn.calibration import calibration_curve
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import (
    average_precision_score,
    brier_score_loss,
    confusion_matrix,
    f1_score,
    mean_absolute_error,
    r2_score,
    roc_auc_score,
    root_mean_squared_error,
)

from federations import BINARY, block, rectangles, table
from intarsia.core.block import Labels
from intarsia.core.schema import Schema
from intarsia.engines.simulation import Simulation
from intarsia.maths import figures
from intarsia.maths.linear import losses
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.settings import Privacy
from intarsia.protocols import evaluation
from intarsia.protocols.evaluation import CROSS_ENTROPY, evaluate, evaluate_own
from intarsia.protocols.evaluation_rows import LEAST_ROWS
from intarsia.results import audit

MODES = ["plain", "masked", "ckks"]
THREE = Labels("multiclass", ("a", "b", "c"))
X, Y = table(300, 6)
W = np.linalg.lstsq(X, Y, rcond=None)[0][None] + 0.3


def federation(blocks, labels=BINARY, mode="plain", w=W):
    """Return an engine over clients that have their parts of pooled weights, (outputs, columns)."""
    schema, sealing = Schema.of(blocks, labels), None
    if mode != "plain":
        if mode == "ckks":
            pytest.importorskip("tenseal")
        settings = Privacy(mode=mode)
        keys = modes.keys(settings, schema.clients, None, "figures")
        sealing = modes.sealing(settings, schema.clients, keys)
    engine = Simulation({"train": (schema, blocks)}, 0, sealing)
    own = {n: [int(f[1:]) for f in engine.block(n).features] for n in engine.ids}
    engine.set_states({name: SimpleNamespace(w=w[:, own[name]]) for name in engine.ids})
    return engine


def predict(state, one):
    return state.w @ one.x.T


def evaluated(blocks, labels=BINARY, mode="plain", w=W, loss=losses.LOGISTIC):
    engine = federation(blocks, labels, mode, w)
    schema = engine.schema("train")
    return evaluate(engine, schema, predict, loss, part="train", with_figures=True)


def hospitals(y=Y, x=X):
    """Return clients with rows of their own."""
    return rectangles(x, y, 4, 1)


def joined(bins):
    """Return lists of bins with five rows or more in each."""
    found = [[]]
    for one in bins:
        found[-1].append(one)
        if sum(count for count, *_ in found[-1]) >= 5:
            found.append([])
    found[-2:] = [found[-2] + found[-1]] if len(found) > 1 else found
    return [one for one in found if one]


def bins_of_five(right, p, *, sides=True):
    """Return counts, shares and means of scikit-learn's bins, those of few rows with the next.

    With `sides` none goes across 1/2, of which each side has five rows or more.
    """
    share, mean = calibration_curve(right, p, n_bins=10)
    counts = np.histogram(p, 10, (0, 1))[0]
    every = list(zip(counts[counts > 0], share, mean, strict=True))
    low = [one for one in every if one[2] <= 0.5]
    found = [*joined(low), *joined(every[len(low) :])] if sides else joined(every)
    return np.transpose(
        [(n.sum(), n @ s / n.sum(), n @ m / n.sum()) for n, s, m in map(np.transpose, found)]
    )


def check_pair(found, y, z):
    """Hold figures against those of scikit-learn."""
    p = expit(z)
    truth = {
        "auc": roc_auc_score(y, z),
        "gini": 2 * roc_auc_score(y, z) - 1,
        "average_precision": average_precision_score(y, z),
        "ks": ks_2samp(z[y > 0], z[y < 0]).statistic,
        "brier": brier_score_loss(y, p, pos_label=1),
    }
    for name, value in truth.items():
        # of bins: positives of one bin count as tied
        near = 1e-4 if found.bounds and name == "average_precision" else 1e-6
        assert getattr(found, name) == pytest.approx(value, abs=near), name
    if found.bounds:
        low, high = found.bounds["average_precision"]
        assert low <= truth["average_precision"] <= high
    line = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(z[:, None], y)
    assert found.calibration_slope == pytest.approx(line.coef_[0, 0], abs=1e-6)
    assert found.calibration_intercept == pytest.approx(line.intercept_[0], abs=1e-6)
    counts, share, mean = bins_of_five(y > 0, p)
    error = counts @ np.abs(share - mean) / len(y)
    assert found.calibration_error == pytest.approx(error, abs=1e-6)
    if found.calibration is not None:
        np.testing.assert_allclose([one.share for one in found.calibration], share, atol=1e-6)
        probable = [one.probability for one in found.calibration]
        np.testing.assert_allclose(probable, mean, atol=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_figures_over_all_samples_are_those_of_the_joined_table(mode):
    z = (W @ X.T)[0]
    every, own = evaluated(hospitals(), mode=mode)
    check_pair(every.figures, Y, z)
    counts = confusion_matrix(Y, np.where(z > 0, 1.0, -1.0))
    assert np.array(every.figures.confusion).tolist() == counts.tolist()
    assert every.figures.base_rate == np.mean(Y > 0)
    assert every.figures.sensitivity == np.mean(z[Y > 0] > 0)
    assert every.figures.specificity == np.mean(z[Y < 0] <= 0)
    assert every.macro_f1 == pytest.approx(f1_score(Y, np.sign(z), average="macro"), abs=1e-12)
    for name, (low, high) in every.figures.bounds.items():
        exact = getattr(every.figures, name)
        assert low - 1e-12 <= exact <= high + 1e-12
        assert high - low < 1e-2
    for name, one in hospitals().items():
        rows = one.samples
        check_pair(own[name].figures, Y[rows], z[rows])


def test_figures_are_the_same_in_each_mode():
    pytest.importorskip("tenseal")
    plain, masked, ckks = (evaluated(hospitals(), mode=mode)[0].figures for mode in MODES)
    for other in (masked, ckks):
        assert other.confusion == plain.confusion
        for name in ("auc", "average_precision", "ks", "sensitivity"):
            assert getattr(other, name) == pytest.approx(getattr(plain, name), abs=1e-12), name
        for name, ends in plain.intervals.items():
            assert other.intervals[name] == pytest.approx(ends, abs=1e-6), name


def test_samples_with_labels_at_several_clients_count_once():
    blocks = rectangles(X, Y, 2, 2, shared_rows=30)
    z = (W @ X.T)[0]
    every, _ = evaluated(blocks)
    check_pair(every.figures, Y, z)
    assert np.array(every.figures.confusion).sum() == 300


@pytest.mark.parametrize("rows", [6_000])
def test_with_many_samples_the_exact_figure_is_in_the_bounds(rows):
    x, y = table(rows, 6)
    y = np.where(np.random.default_rng(3).random(rows) < 0.2, -y, y)
    z = (W @ x.T)[0]
    every, _ = evaluated(hospitals(y, x))
    low, high = every.figures.bounds["auc"]
    exact = roc_auc_score(y, z)
    assert low <= exact <= high
    assert high - low < 2e-4
    assert every.figures.auc == pytest.approx(exact, abs=5e-6)
    low, high = every.figures.bounds["average_precision"]
    assert low <= average_precision_score(y, z) <= high


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_bins_lie_where_the_scores_are(scale):
    every, _ = evaluated(hospitals(), w=scale * W, loss=losses.HINGE)
    assert every.figures.auc == pytest.approx(roc_auc_score(Y, (W @ X.T)[0]), abs=1e-6)
    assert every.figures.brier is None
    assert every.figures.calibration is None


@pytest.mark.parametrize("mode", ["plain", "masked"])
@pytest.mark.parametrize("loss", [losses.LOGISTIC, CROSS_ENTROPY])
def test_figures_of_several_classes_are_those_of_the_joined_table(loss, mode):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(240, 3)), rng.integers(0, 3, 240) * 1.0
    x[np.arange(240), y.astype(int)] += 1.0
    w = np.eye(3)
    every, own = evaluated(hospitals(y, x), THREE, w=w, loss=loss, mode=mode)
    chance = expit(x.T)
    if loss == losses.LOGISTIC:
        chance = chance / chance.sum(axis=0)
        truth = roc_auc_score(y, chance.T, multi_class="ovr")
        assert own["r1c0"].figures.auc == pytest.approx(
            roc_auc_score(y[60:120], chance.T[60:120], multi_class="ovr"), abs=1e-12
        )
    else:  # these log-odds are of no network: they do not add up to 1
        truth = np.mean([roc_auc_score(y == k, x[:, k]) for k in range(3)])
    held = y == np.arange(3)[:, None]
    assert every.figures.auc == pytest.approx(truth, abs=1e-6)
    precise = np.mean([average_precision_score(held[k], chance[k]) for k in range(3)])
    assert every.figures.average_precision == pytest.approx(precise, abs=1e-3)
    low, high = every.figures.bounds["average_precision"]
    assert low <= precise <= high
    assert every.figures.brier == pytest.approx(((chance - held) ** 2).sum(0).mean(), abs=1e-6)
    said = x.argmax(axis=1)
    assert np.array(every.figures.confusion).tolist() == confusion_matrix(y, said).tolist()
    assert every.macro_f1 == pytest.approx(f1_score(y, said, average="macro"), abs=1e-12)
    assert every.figures.majority == pytest.approx(held.mean(axis=1).max())
    _, right, mean = bins_of_five(said == y, chance.max(axis=0), sides=False)
    np.testing.assert_allclose([one.share for one in every.figures.calibration], right, atol=1e-6)
    probable = [one.probability for one in every.figures.calibration]
    np.testing.assert_allclose(probable, mean, atol=1e-6)
    assert every.figures.ks is None


@pytest.mark.parametrize("mode", ["plain", "masked"])
@pytest.mark.parametrize("constant", [-1.3, 0.7])
def test_scores_that_are_equal_up_to_rounding_are_ties(constant, mode):
    rng = np.random.default_rng(0)
    a = rng.normal(size=240)
    # expit(a) + expit(-a) = 1: the third class has one probability, whose last digit differs
    x, y = np.stack([a, -a, np.full(240, constant)], axis=1), rng.integers(0, 3, 240) * 1.0
    every, own = evaluated(hospitals(y, x), THREE, w=np.eye(3), mode=mode)
    for found, rows in (every, slice(None)), (own["r1c0"], slice(60, 120)):
        sides = (y[rows] == 0, a[rows]), (y[rows] == 1, -a[rows])
        areas = [roc_auc_score(*one) for one in sides]
        assert found.figures.auc == pytest.approx((sum(areas) + 0.5) / 3, abs=1e-6)
    # each class has a curve, that of the third with all samples in its one step
    counts = [(y == 2).sum(), (y != 2).sum()]
    assert np.array(every.figures.curves[2]).round(6).tolist() == [counts]


@pytest.mark.parametrize("mode", ["plain", "masked"])
def test_errors_of_numbers_are_those_of_the_joined_table(mode):
    y = X @ np.arange(6.0) + np.random.default_rng(0).normal(size=300)
    w = np.arange(6.0)[None] * 0.9
    every, own = evaluated(hospitals(y), Labels("regression"), mode, w, losses.SQUARED)
    z = (w @ X.T)[0]
    assert every.figures.mae == pytest.approx(mean_absolute_error(y, z), abs=1e-9)
    assert every.figures.rmse == pytest.approx(root_mean_squared_error(y, z), abs=1e-9)
    rows = hospitals(y)["r1c0"].samples
    found = own["r1c0"].figures
    assert found.mae == pytest.approx(mean_absolute_error(y[rows], z[rows]), abs=1e-12)
    assert set(found.intervals) == {"mae", "rmse", "r2"}
    assert all(low < high for low, high in found.intervals.values())


@pytest.mark.parametrize(
    "mode", [pytest.param(one, marks=[pytest.mark.slow] * (one != "masked")) for one in MODES]
)
def test_intervals_of_numbers_over_all_samples_are_those_of_a_bootstrap_of_the_joined_table(mode):
    noise = np.random.default_rng(0).standard_t(5, size=300)
    y = 50_000 + 2_000 * (X @ np.arange(6.0) + noise)  # as prices are
    fit = np.linalg.lstsq(np.column_stack([X, np.ones(300)]), y, rcond=None)[0]
    x = np.column_stack([X, np.full(300, fit[-1])])
    w = np.append(0.9 * fit[:-1], 1.0)[None]
    every, _ = evaluated(hospitals(y, x), Labels("regression"), mode, w, losses.SQUARED)
    z = (w @ x.T)[0]
    rng = np.random.default_rng(5)
    drawn = {"mae": [], "rmse": [], "r2": []}
    for _ in range(1000):
        rows = rng.integers(0, 300, 300)
        drawn["mae"].append(mean_absolute_error(y[rows], z[rows]))
        drawn["rmse"].append(root_mean_squared_error(y[rows], z[rows]))
        drawn["r2"].append(r2_score(y[rows], z[rows]))
    for name, some in drawn.items():
        low, high = np.quantile(some, (0.025, 0.975))
        found = every.figures.intervals[name]
        assert found == pytest.approx((low, high), abs=0.15 * (high - low)), name
    order = np.argsort(z)
    counts = [round(one.samples) for one in every.figures.predictions]
    assert sum(counts) == 300
    assert min(counts) >= LEAST_ROWS
    for one, rows in zip(
        every.figures.predictions, np.split(order, np.cumsum(counts)[:-1]), strict=True
    ):
        assert one.predicted == pytest.approx(z[rows].mean(), rel=1e-6)
        assert one.actual == pytest.approx(y[rows].mean(), rel=1e-6)
        assert one.deviation == pytest.approx(y[rows].std(), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["plain", "masked"])
def test_intervals_of_several_classes_hold_those_of_a_bootstrap_of_the_joined_table(mode):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(300, 3)), rng.integers(0, 3, 300) * 1.0
    x[np.arange(300), y.astype(int)] += 1.0
    every, own = evaluated(hospitals(y, x), THREE, w=np.eye(3), loss=CROSS_ENTROPY, mode=mode)

    def bootstrap(rows):
        held = y[rows] == np.arange(3)[:, None]
        drawn = {"auc": [], "average_precision": [], "brier": []}
        for _ in range(400):
            some = rng.integers(0, len(rows), len(rows))
            z, truth = x[rows][some].T, held[:, some]
            drawn["auc"].append(
                np.mean([roc_auc_score(*one) for one in zip(truth, z, strict=True)])
            )
            precise = [average_precision_score(*one) for one in zip(truth, z, strict=True)]
            drawn["average_precision"].append(np.mean(precise))
            drawn["brier"].append(((expit(z) - truth) ** 2).sum(0).mean())
        return {name: np.quantile(some, (0.025, 0.975)) for name, some in drawn.items()}

    for name, (low, high) in bootstrap(np.arange(300)).items():
        found, slack = every.figures.intervals[name], 0.15 * (high - low)
        assert found[0] < low + slack, name
        assert found[1] > high - slack, name
        assert found[1] - found[0] < 2.5 * (high - low), name
    for name, (low, high) in bootstrap(hospitals()["r1c0"].samples).items():
        found = own["r1c0"].figures.intervals[name]
        # of 75 samples the bootstrap is not symmetric
        assert found == pytest.approx((low, high), abs=0.25 * (high - low)), name
    assert np.subtract(*every.figures.intervals["gini"]) == pytest.approx(
        2 * np.subtract(*every.figures.intervals["auc"])
    )


def test_every_figure_over_all_samples_has_an_interval():
    every, own = evaluated(hospitals())
    wanted = {"auc", "gini", "average_precision", "ks", "brier", "calibration_error"}
    wanted |= {"calibration_slope", "calibration_intercept", "accuracy", "macro_f1"}
    assert set(every.figures.intervals) == wanted | {"sensitivity", "specificity"}
    for one in own.values():
        assert set(one.figures.intervals) == wanted


def test_figures_of_own_models_are_of_what_each_says():
    """A sample that two clients have counts half by what each model says of it."""
    blocks = {"a": block(X, Y, range(200), [0, 1]), "b": block(X, Y, range(100, 300), [2, 3])}
    engine = federation(blocks)
    schema = engine.schema("train")
    every, own = evaluate_own(
        engine, schema, predict, losses.LOGISTIC, part="train", with_figures=True
    )
    z = {name: (W[:, cols] @ X[rows][:, cols].T)[0] for name, rows, cols in (
        ("a", np.arange(200), [0, 1]), ("b", np.arange(100, 300), [2, 3])
    )}  # fmt: skip
    scores, truth = np.concatenate([z["a"], z["b"]]), np.concatenate([Y[:200], Y[100:]])
    weights = np.concatenate([np.repeat([1, 0.5], 100), np.repeat([0.5, 1], 100)])
    assert every.figures.auc == pytest.approx(
        roc_auc_score(truth, scores, sample_weight=weights), abs=1e-6
    )
    assert own["a"].figures.auc == pytest.approx(roc_auc_score(Y[:200], z["a"]), abs=1e-12)


def test_without_figures_nothing_more_crosses():
    engine = federation(hospitals())
    every, _ = evaluate(engine, engine.schema("train"), predict, losses.LOGISTIC, part="train")
    assert every.figures is None
    crossed = audit.list_crossings(engine.books.crossings.summary())
    assert not {one for one in crossed if "ScoreCounts" in one or "ClientFigures" in one}


# -- what is told of few rows


def with_positives(count):
    """Return labels of which so many of the first client's 75 are of the second class."""
    y = Y.copy()
    y[:75] = -1.0
    y[:count] = 1.0
    return y


@pytest.mark.parametrize("positives", [0, 1, LEAST_ROWS - 1, LEAST_ROWS])
def test_figures_of_a_class_with_few_rows_are_not_told(positives):
    _, own = evaluated(hospitals(with_positives(positives)))
    told = positives == LEAST_ROWS
    for name in ("auc", "average_precision", "ks", "calibration_slope"):
        assert (getattr(own["r0c0"].figures, name) is not None) is told, name
    assert own["r0c0"].figures.brier is not None
    assert own["r1c0"].figures.auc is not None


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("positives", [0, LEAST_ROWS - 1, LEAST_ROWS])
def test_a_client_with_few_rows_of_a_class_tells_no_macro_f1(positives, mode):
    _, own = evaluated(hospitals(with_positives(positives)), mode=mode)
    few, enough = own["r0c0"], own["r1c0"]
    told = positives == LEAST_ROWS
    assert (few.macro_f1 is not None) is told
    assert ("macro_f1" in few.figures.intervals) is told
    assert enough.macro_f1 is not None
    assert "macro_f1" in enough.figures.intervals
    # of accuracy the interval is a function of what is told beside it
    assert few.figures.intervals["accuracy"] == pytest.approx(
        figures.share_interval(few.accuracy, few.samples), abs=1e-9
    )


def test_no_client_tells_how_many_rows_of_a_class_it_has():
    _, own = evaluated(hospitals())
    for one in own.values():
        for name in ("confusion", "base_rate", "majority", "sensitivity", "specificity"):
            assert getattr(one.figures, name) is None, name
        assert one.figures.calibration is None


def the_one(y):
    return {
        "bank": block(X, y, range(300), [0, 1, 2]),
        "shop": block(X, y, range(300), [3, 4, 5], labels=False),
    }


@pytest.mark.parametrize("mode", ["plain", "masked"])
def test_the_one_client_with_labels_tells_its_counts_and_no_order(mode):
    engine = federation(the_one(Y), mode=mode)
    every, own = evaluate(
        *(engine, engine.schema("train"), predict, losses.LOGISTIC), part="train", with_figures=True
    )
    z = (W @ X.T)[0]
    check_pair(own["bank"].figures, Y, z)
    assert every.figures.auc == own["bank"].figures.auc
    assert every.figures.bounds == {}
    counts = confusion_matrix(Y, np.where(z > 0, 1.0, -1.0))
    assert np.array(every.figures.confusion).tolist() == counts.tolist()
    assert all(one.samples >= LEAST_ROWS for one in every.figures.calibration)
    crossed = audit.list_crossings(engine.books.crossings.summary())
    assert not {one for one in crossed if "ScoreCounts" in one}


def test_the_one_client_with_labels_counts_no_class_of_few_rows():
    y = np.where(np.arange(300) < LEAST_ROWS - 1, 1.0, -1.0)
    every, _ = evaluated(the_one(y))
    for name in ("confusion", "calibration", "auc", "base_rate"):
        assert getattr(every.figures, name) is None, name


def test_the_one_client_with_labels_sends_no_order_when_it_is_asked():
    engine = federation(the_one(Y))
    schema = engine.schema("train")
    sends = evaluation.sends(predict, losses.LOGISTIC, schema, part="train", additive=True)
    count = next(one.function for one in sends if one.function.name == "count_scores")
    message = evaluation.Binned((W @ X.T), np.zeros(1), np.ones(1))
    _, found = count.call(None, engine.block("bank"), message, None)
    assert not found.counts.any()


def test_given_scores_have_all_figures():
    one = block(X, Y, range(300), range(6))
    z = W @ X.T
    found = evaluation.evaluate_scores(one, z, losses.LOGISTIC, BINARY).figures
    check_pair(found, Y, z[0])
    assert found.sensitivity == np.mean(z[0][Y > 0] > 0)
    assert found.threshold == figures.THRESHOLD
    assert {"auc", "sensitivity", "accuracy", "macro_f1", "brier"} <= set(found.intervals)


def test_softmax_log_odds_have_their_probabilities():
    logits = np.random.default_rng(0).normal(size=(3, 20))
    chance = softmax(logits, axis=0)
    z = np.log(chance / (1 - chance))
    np.testing.assert_allclose(figures.probabilities(z, CROSS_ENTROPY), chance, atol=1e-12)
