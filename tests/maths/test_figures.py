"""Figures of scores are those of scikit-learn and scipy, and lie in the bounds of bins."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import binomtest, ks_2samp
from sklearn.calibration import calibration_curve
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import (
    average_precision_score,
    brier_score_loss,
    confusion_matrix,
    f1_score,
    r2_score,
    roc_auc_score,
    roc_curve,
)

from intarsia.maths import figures
from intarsia.maths.figures import Ranked
from intarsia.maths.linear import losses


def scored(count=400, *, ties=False, seed=0, lean=0.0):
    """Return labels and log-odds that tell something of them."""
    rng = np.random.default_rng(seed)
    y = rng.random(count) < 0.4
    z = rng.normal(size=count) + 1.2 * y + lean
    return y, np.round(z, 1) if ties else z


def ranked(y, z, weights=None):
    return Ranked.of(z, y, np.ones(len(y)) if weights is None else weights)


@pytest.mark.parametrize("ties", [False, True])
def test_ranking_figures_are_those_of_scikit_learn_and_scipy(ties):
    y, z = scored(ties=ties)
    found = figures.ranking([ranked(y, z)])
    assert found["auc"] == pytest.approx(roc_auc_score(y, z), abs=1e-12)
    assert found["gini"] == pytest.approx(2 * roc_auc_score(y, z) - 1, abs=1e-12)
    assert found["average_precision"] == pytest.approx(average_precision_score(y, z), abs=1e-12)
    assert found["ks"] == pytest.approx(ks_2samp(z[y], z[~y]).statistic, abs=1e-12)


def test_scores_that_differ_by_rounding_are_equal():
    near = 1.0 + np.finfo(float).eps
    z = np.array([near, -2.0, 1.0, np.inf, np.nan, 3.0, -np.inf, near, np.inf])
    found = figures.tied(z)
    np.testing.assert_array_equal(found, [1, -2, 1, np.inf, np.nan, 3, -np.inf, 1, np.inf])
    close = np.linspace(0, 1e-10, 10_000)  # of a model that says nearly the same of all
    np.testing.assert_array_equal(figures.tied(close), close)
    assert figures.tied(np.zeros(0)).shape == (0,)


@pytest.mark.parametrize("far", [1e12, 1e300, -1e300, np.inf])
def test_a_score_far_out_makes_no_ties_of_the_others(far):
    _, z = scored()
    z[0] = far
    np.testing.assert_array_equal(figures.tied(z), z)


def test_log_odds_of_one_class_of_several_have_digits_where_it_is_nearly_certain():
    z = np.array([[20.0, 30.0, 40.0], [-20.0, -30.0, -300.0], [-40.0, -50.0, -700.0]])
    found = figures.ranked_scores(z, losses.LOGISTIC)
    np.testing.assert_allclose(found[0], [20, 30, 300], atol=1e-8)


def test_weighted_samples_are_those_of_scikit_learn():
    y, z = scored(ties=True)
    w = np.random.default_rng(1).integers(1, 4, len(y)) / 2
    own = ranked(y, z, w)
    assert figures.auc(own) == pytest.approx(roc_auc_score(y, z, sample_weight=w), abs=1e-12)
    truth = average_precision_score(y, z, sample_weight=w)
    assert figures.average_precision(own) == pytest.approx(truth, abs=1e-12)


@pytest.mark.parametrize("bins", [3, 10, 100, 5000])
@pytest.mark.parametrize("seed", range(5))
def test_exact_figures_lie_in_the_bounds_of_bins(bins, seed):
    y, z = scored(300, seed=seed)
    edges = np.quantile(z, np.linspace(0, 1, bins + 1)[1:-1])
    binned = ranked(y, np.searchsorted(edges, z) * 1.0)
    exact = figures.ranking([ranked(y, z)])
    for name, (low, high) in figures.bounds_of_bins(binned).items():
        assert low - 1e-12 <= exact[name] <= high + 1e-12, name
    if bins == 5000:  # a bin each
        assert figures.auc(binned) == pytest.approx(exact["auc"], abs=1e-12)
        low, high = figures.bounds_of_bins(binned)["auc"]
        assert high - low < 1e-12


def test_bins_that_no_two_classes_share_are_exact():
    y, z = scored(50)
    order = np.argsort(z)
    runs = np.cumsum(np.diff(y[order].astype(int), prepend=0) != 0)  # neighbours of one class
    at = np.empty(50)
    at[order] = runs
    found = ranked(y, at)
    assert figures.auc(found) == pytest.approx(roc_auc_score(y, z), abs=1e-12)
    low, high = figures.bounds_of_bins(found)["ks"]
    assert low == high == pytest.approx(ks_2samp(z[y], z[~y]).statistic, abs=1e-12)


def test_the_line_of_calibration_is_scikit_learns_logistic_regression():
    y, z = scored(2000, lean=0.7)
    (slope, intercept), _ = figures.calibration_line(ranked(y, z))
    model = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(z[:, None], y)
    assert slope == pytest.approx(model.coef_[0, 0], abs=1e-6)
    assert intercept == pytest.approx(model.intercept_[0], abs=1e-6)


def test_scores_that_separate_the_classes_have_no_line():
    y = np.arange(20) >= 12
    assert figures.calibration_line(ranked(y, np.arange(20.0))) is None
    assert figures.calibration_line(ranked(y, -np.arange(20.0))) is None
    assert figures.calibration_line(ranked(y, np.zeros(20))) is None


def test_calibration_bins_are_those_of_scikit_learn():
    y, z = scored(900)
    p = expit(z)
    bins, error = figures.calibration_table(figures.calibration_sums(p, y, np.ones(900)))
    share, mean = calibration_curve(y, p, n_bins=figures.CALIBRATION_BINS)
    np.testing.assert_allclose([one.share for one in bins], share, atol=1e-12)
    np.testing.assert_allclose([one.probability for one in bins], mean, atol=1e-12)
    counts = np.array([one.samples for one in bins])
    assert counts.sum() == 900
    assert error == pytest.approx(counts @ np.abs(share - mean) / 900, abs=1e-12)
    brier = figures.brier_sums(p[None], y[None] * 1.0, np.ones(900))[0] / 900
    assert brier == pytest.approx(brier_score_loss(y, p), abs=1e-12)


def test_bins_of_few_samples_are_taken_together():
    sums = np.stack([[2.0, 9, 1, 1, 7, 0, 0, 3, 0, 0]] * 3)
    found = figures.merged_bins(sums, 5)
    assert found[0].tolist() == [11, 0, 12, 0, 0, 0, 0, 0, 0, 0]
    assert figures.merged_bins(sums, 100)[0].tolist() == [23] + [0] * 9


def test_a_confusion_matrix_says_rates_and_macro_f1():
    y, z = scored(300)
    counts = confusion_matrix(y, z > 0) * 1.0
    found = figures.of_confusion(counts)
    assert found["sensitivity"] == pytest.approx(np.mean(z[y] > 0))
    assert found["specificity"] == pytest.approx(np.mean(z[~y] <= 0))
    assert found["base_rate"] == pytest.approx(y.mean())
    assert found["majority"] == pytest.approx(max(y.mean(), 1 - y.mean()))
    assert figures.macro_f1(counts) == pytest.approx(f1_score(y, z > 0, average="macro"))


def test_intervals_hold_the_true_figure_about_as_often_as_they_say():
    truth = 0.80193  # Φ(1.2 / √2): of scores that are normal with means 1.2 apart
    held = 0
    for seed in range(100):
        y, z = scored(300, seed=seed)
        own = ranked(y, z)
        low, high = figures.intervals(own, figures.ranking([own]), chances=True)["auc"]
        assert low < roc_auc_score(y, z) < high
        held += low <= truth <= high
    assert 90 <= held <= 99


def test_intervals_of_many_scores_are_about_those_of_each(monkeypatch):
    y, z = scored(3000)
    own = ranked(y, z)
    few = figures.intervals(own, figures.ranking([own]), chances=False)
    monkeypatch.setattr(figures, "GROUPS", 10_000)
    grouped = Ranked.grouped
    monkeypatch.setattr(Ranked, "grouped", lambda self: grouped(self, 10_000))
    for name, (low, high) in figures.intervals(own, figures.ranking([own]), chances=False).items():
        assert few[name] == pytest.approx((low, high), abs=0.004), name


def test_intervals_of_errors_are_as_wide_as_their_standard_errors_say():
    rng = np.random.default_rng(0)
    truth = rng.normal(size=4000)
    said = truth + rng.normal(size=4000)
    found = figures.error_intervals(figures.error_products(truth, said, np.ones(4000)))
    for name, each in (("mae", np.abs(truth - said)), ("rmse", (truth - said) ** 2)):
        low, high = found[name]
        middle, deviation = each.mean(), each.std() / np.sqrt(4000)
        if name == "rmse":
            middle, deviation = np.sqrt(middle), deviation / (2 * np.sqrt(middle))
        assert low < middle < high
        assert high - low == pytest.approx(2 * 1.96 * deviation, rel=0.15)
    low, high = found["r2"]
    assert low < r2_score(truth, said) < high


def test_figures_are_read_as_they_were_written():
    bins = (figures.CalibrationBin(4.0, 0.25, 0.5),)
    made = figures.Figures(
        auc=0.75, confusion=((1.0, 2.0), (3.0, 4.0)), calibration=bins, intervals={"auc": (0.5, 1)}
    )
    assert figures.figures_from(json.loads(json.dumps(asdict(made)))) == made


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(
    ("name", "figure"), [("auc", roc_auc_score), ("average_precision", average_precision_score)]
)
def test_influence_is_the_derivative_of_scikit_learns_figure_by_a_samples_weight(
    ties, name, figure
):
    y, z = scored(60, ties=ties)
    own = ranked(y, z)
    of_class, of_others = figures.influence(own)[name]
    place = np.searchsorted(-own.scores, -z)
    found = np.where(y, of_class[place], of_others[place])
    for sample in range(60):
        more, less = np.ones(60), np.ones(60)
        more[sample], less[sample] = 1 + 1e-5, 1 - 1e-5
        slope = (figure(y, z, sample_weight=more) - figure(y, z, sample_weight=less)) / 2e-5
        assert found[sample] == pytest.approx(slope, abs=1e-8)
    assert found.sum() == pytest.approx(0.0, abs=1e-12)


def test_the_standard_error_of_auc_is_delongs():
    y, z = scored(200, ties=True)
    pairs = np.sign(z[y][:, None] - z[~y]) / 2 + 0.5
    p, n = pairs.shape
    variance = pairs.mean(axis=1).var() / p + pairs.mean(axis=0).var() / n
    for found in (
        figures.errors_of_samples(z[None], y[None]),
        figures.errors_of_counts([ranked(y, z)]),
    ):
        assert found["auc"] == pytest.approx(np.sqrt(variance), rel=1e-9)


def resampled(figure, count, seed=11, times=500):
    """Return the interval of `figure(rows)` by a bootstrap of its own."""
    rng = np.random.default_rng(seed)
    found = [figure(rng.integers(0, count, count)) for _ in range(times)]
    return np.quantile(found, (0.025, 0.975))


def near(found, truth, share=0.15):
    """Return whether both ends are as near as a share of the width of the truth."""
    return np.abs(np.subtract(found, truth)).max() < share * (truth[1] - truth[0])


def test_intervals_of_ks_and_calibration_are_those_of_a_bootstrap():
    y, z = scored(500, lean=0.4)
    sums = figures.calibration_sums(expit(z), y, np.ones(500))

    def error(rows):
        share, mean = calibration_curve(y[rows], expit(z[rows]), n_bins=10)
        counts = np.histogram(expit(z[rows]), 10, (0, 1))[0]
        return counts[counts > 0] @ np.abs(share - mean) / 500

    assert near(figures.calibration_interval(sums), resampled(error, 500))
    found = figures.intervals(ranked(y, z), figures.ranking([ranked(y, z)]), chances=True)
    truth = resampled(lambda rows: ks_2samp(z[rows][y[rows]], z[rows][~y[rows]]).statistic, 500)
    assert near(found["ks"], truth)


def test_errors_of_the_line_of_calibration_are_those_of_its_fisher_information():
    y, z = scored(800, lean=0.5)
    line, errors = figures.calibration_line(ranked(y, z))
    design = np.column_stack([z, np.ones(800)])
    p = expit(design @ line)
    information = design.T @ ((p * (1 - p))[:, None] * design)
    np.testing.assert_allclose(errors, np.sqrt(np.diag(np.linalg.inv(information))), rtol=1e-6)


@pytest.mark.parametrize(("share", "count"), [(0.0, 7), (0.3, 10), (0.9, 200), (1.0, 5)])
def test_the_interval_of_a_share_is_wilsons(share, count):
    truth = binomtest(round(share * count), count).proportion_ci(method="wilson")
    assert figures.share_interval(share, count) == pytest.approx((truth.low, truth.high), abs=1e-12)


@pytest.mark.parametrize("counts", [[[50, 12], [7, 31]], [[90, 0], [9, 0]], [[0, 3], [0, 4]]])
def test_intervals_of_shares_are_wilsons_also_where_a_model_says_one_class(counts):
    found = figures.confusion_intervals(np.array(counts, np.float64))
    (tn, fp), (fn, tp) = counts
    truths = {
        "accuracy": (tn + tp, tn + fp + fn + tp),
        "specificity": (tn, tn + fp),
        "sensitivity": (tp, fn + tp),
    }
    for name, (right, every) in truths.items():
        truth = binomtest(right, every).proportion_ci(method="wilson")
        assert found[name] == pytest.approx((truth.low, truth.high), abs=1e-12), name
        assert found[name][1] - found[name][0] > 0.03


def test_points_of_a_curve_are_those_of_scikit_learn_with_enough_samples_between():
    y, z = scored(400, ties=True)
    counts = np.array(figures.curve(ranked(y, z), 5))
    assert counts.sum(axis=1).min() >= 5
    assert counts.sum() == 400
    above = np.cumsum(counts, axis=0)
    assert len(above) <= figures.CURVE_POINTS
    false, true, _ = roc_curve(y, z, drop_intermediate=False)
    known = {(round(p * y.sum()), round(n * (~y).sum())) for p, n in zip(true, false, strict=True)}
    assert {(int(p), int(n)) for p, n in above} <= known


def test_numbers_that_are_said_right_have_intervals_without_width():
    y = np.arange(10.0)
    found = figures.error_intervals(figures.error_products(y - 4.5, y - 4.5, np.ones(10)))
    assert found["mae"] == (0.0, 0.0)
    assert found["r2"] == (1.0, 1.0)
