import math
import sys

import dp_accounting
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize
from scipy.special import expit
from scipy.stats import norm

from intarsia.errors import ExperimentError
from intarsia.privacy.accounting import (
    largest_gap,
    largest_slope,
    minimiser_sensitivity,
    noise_multiplier,
)
from intarsia.privacy.settings import DELTA, EPSILONS, Privacy

# ---- the Gaussian mechanism


def delta_of(epsilon, multiplier):
    """Return the least δ at an ε, by Balle and Wang 2018, Theorem 8."""
    half = 1 / (2 * multiplier)
    upper = norm.logcdf(half - epsilon * multiplier)
    lower = epsilon + norm.logcdf(-half - epsilon * multiplier)
    return math.exp(upper) - math.exp(lower)


def epsilon_by_theorem(multiplier, delta):
    return brentq(lambda epsilon: delta_of(epsilon, multiplier) - delta, 0.0, 1e3, xtol=1e-13)


@pytest.mark.parametrize("epsilon", [0.05, 0.5, 1.0, 3.0, 10.0, 40.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9])
def test_the_noise_is_that_of_the_analytic_gaussian_mechanism(epsilon, delta):
    found = noise_multiplier(epsilon, delta)
    exact = epsilon_by_theorem(found, delta)
    assert exact <= epsilon
    assert exact == pytest.approx(epsilon, rel=1e-6)
    assert dp_accounting.get_epsilon_gaussian(found, delta) == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("epsilon", [*EPSILONS, 1e-3, 100.0, 1e4])
@pytest.mark.parametrize("delta", [DELTA, 1e-30, 0.999])
def test_the_noise_is_enough_wherever_it_may_be_asked_for(epsilon, delta):
    mpmath = pytest.importorskip("mpmath")
    multiplier = noise_multiplier(epsilon, delta)
    with mpmath.workdps(150):
        half, e = 1 / (2 * mpmath.mpf(multiplier)), mpmath.mpf(epsilon)
        upper, lower = (mpmath.ncdf(s * half - e * multiplier) for s in (1, -1))
        assert upper - mpmath.exp(e) * lower <= delta * (1 + 1e-4)


@pytest.mark.parametrize("key", ["epsilon", "delta"])
@pytest.mark.parametrize("value", [5e-324, 1e-200, 1e15, 1e300])
def test_no_noise_is_measured_for_what_float64_cannot_tell(key, value):
    """Noise for epsilon = 1e15 keeps it with δ = 1, and for δ = 1e-300 at 1e-323 with 1e-16."""
    with pytest.raises(ExperimentError, match=rf"\[privacy\] {key} is .*from 1e-"):
        Privacy(mode="masked", **{key: value})


@pytest.mark.parametrize("releases", [1, 7, 200])
def test_several_releases_cost_what_renyi_and_loss_distributions_say_or_less(releases):
    multiplier, delta = 20.0, 1e-5
    found = epsilon_by_theorem(multiplier / math.sqrt(releases), delta)
    assert noise_multiplier(found, delta, releases) == pytest.approx(multiplier, rel=1e-6)
    # Rényi DP of a Gaussian is a/(2z²) at order a; Mironov 2017, Propositions 1, 3 and 7
    orders = np.linspace(1.01, 5000, 400_000)
    renyi = releases * orders / (2 * multiplier**2) + math.log(1 / delta) / (orders - 1)
    assert found <= renyi.min()
    # the library's own composition, by privacy loss distributions, which are bounds from above
    event = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(multiplier), releases)
    accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-4)
    composed = accountant.compose(event).get_epsilon(delta)
    assert found == pytest.approx(composed, rel=2e-2)
    assert found <= composed + 1e-9


def test_noise_for_several_releases_spends_epsilon_exactly():
    found = noise_multiplier(2.0, 1e-6, releases=50)
    assert epsilon_by_theorem(found / math.sqrt(50), 1e-6) == pytest.approx(2.0, rel=1e-6)
    assert found == pytest.approx(math.sqrt(50) * noise_multiplier(2.0, 1e-6))


def test_a_missing_library_is_one_sentence_that_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ExperimentError, match=r"dp-accounting.*intarsia\[privacy\]"):
        noise_multiplier(1.0, 1e-5)


# ---- the sensitivity


def minimiser(loss, x, y, weight):
    """Solve min λ/2 ‖w‖² + 1/N Σ l to 1e-10, without the package's solvers."""
    return box_problem(x, y, weight) if loss == "hinge" else newton(loss, x, y, weight)


def box_problem(x, y, weight):
    """Solve the hinge's dual by L-BFGS-B, then its optimality conditions on the samples between."""
    samples = len(y)
    signed = x * y[:, None]
    gram = signed @ signed.T / (weight * samples)

    def dual(beta):
        return 0.5 * beta @ gram @ beta - beta.sum(), gram @ beta - 1

    options = {"ftol": 1e-16, "gtol": 1e-13, "maxiter": 20_000, "maxfun": 10**6}
    start, box = np.full(samples, 0.5), [(0, 1)] * samples
    beta = minimize(dual, start, jac=True, bounds=box, method="L-BFGS-B", options=options).x
    between = (beta > 1e-6) & (beta < 1 - 1e-6)
    beta[~between] = np.round(beta[~between])
    if between.any():
        rest = (
            1
            - gram[between][:, ~between] @ beta[~between]
            - gram[between][:, between] @ beta[between]
        )
        beta[between] += np.linalg.lstsq(gram[between][:, between], rest, rcond=1e-12)[0]
    margin = gram @ beta - 1  # at least 0 at β = 0, at most 0 at β = 1, 0 between
    wrong = np.where(beta <= 0, -margin, np.where(beta >= 1, margin, abs(margin)))
    assert wrong.max() < 1e-10
    assert beta.min() > -1e-10
    assert beta.max() < 1 + 1e-10
    return signed.T @ beta / (weight * samples)


def newton(loss, x, y, weight):
    samples, w = len(y), np.zeros(x.shape[1])
    for _ in range(200):
        z = x @ w
        if loss == "logistic":
            slope, bend = -y * expit(-y * z), expit(z) * expit(-z)
        elif loss == "squared_hinge":
            short = np.maximum(1 - y * z, 0)
            slope, bend = -2 * y * short, 2.0 * (short > 0)
        else:
            slope, bend = z - y, np.ones(samples)
        gradient = weight * w + x.T @ slope / samples
        if np.linalg.norm(gradient) < 1e-12 * weight:  # w is within 1e-12 of the minimiser
            return w
        w = w - np.linalg.solve(weight * np.eye(len(w)) + (x.T * bend) @ x / samples, gradient)
    raise AssertionError(f"Newton's method ended with a gradient of {np.linalg.norm(gradient)}.")


def in_ball(rng, samples, features, clip):
    x = rng.normal(size=(samples, features)) * rng.exponential(size=(samples, 1))
    return x * np.minimum(1, clip / np.linalg.norm(x, axis=1, keepdims=True))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    loss=st.sampled_from(["hinge", "logistic", "squared_hinge", "squared"]),
    samples=st.integers(2, 12),
    features=st.integers(1, 4),
    clip=st.sampled_from([0.3, 1.0, 4.0]),
    weight=st.sampled_from([0.02, 0.3, 2.0]),
)
def test_one_sample_moves_the_minimiser_by_no_more_than_the_sensitivity(
    seed, loss, samples, features, clip, weight
):
    rng = np.random.default_rng(seed)
    x, y = in_ball(rng, samples, features, clip), rng.choice([-1.0, 1.0], samples)
    other_x, other_y = x.copy(), y.copy()
    other_x[0] = -x[0] if seed % 2 else in_ball(rng, 1, features, clip)[0]
    other_y[0] = rng.choice([-1.0, 1.0])
    slope = largest_slope(loss, clip=clip, regularisation=weight, task="binary")
    bound = minimiser_sensitivity(slope, clip=clip, regularisation=weight, samples=samples)
    apart = minimiser(loss, x, y, weight) - minimiser(loss, other_x, other_y, weight)
    assert np.linalg.norm(apart) <= bound + 1e-8


def test_the_sensitivity_of_the_hinge_is_reached():
    # strong regularisation: every sample is inside its margin, so that w = Σ y x / (λN)
    clip, weight, samples = 1.0, 4.0, 5
    x, y = np.full((samples, 1), clip), np.ones(samples)
    other = y.copy()
    other[0] = -1.0
    apart = abs(minimiser("hinge", x, y, weight) - minimiser("hinge", x, other, weight))[0]
    bound = minimiser_sensitivity(1.0, clip=clip, regularisation=weight, samples=samples)
    assert apart == pytest.approx(bound, rel=1e-6)


@pytest.mark.parametrize(("loss", "factor"), [("logistic", 2.05), ("squared_hinge", 1.25)])
def test_the_sensitivity_of_smooth_losses_is_loose_by_a_small_factor(loss, factor):
    # λ so large that w stays near 0, where the slope is -½ of the logistic and -2 of the other
    clip, weight, samples = 1.0, 400.0, 3
    x, y = np.full((samples, 1), clip), np.ones(samples)
    other = y.copy()
    other[0] = -1.0
    apart = abs(minimiser(loss, x, y, weight) - minimiser(loss, x, other, weight))[0]
    slope = largest_slope(loss, clip=clip, regularisation=weight, task="binary")
    bound = minimiser_sensitivity(slope, clip=clip, regularisation=weight, samples=samples)
    assert apart <= bound <= factor * apart


def test_outputs_of_one_vs_rest_move_together_by_the_root_of_their_number():
    # replacing x by -x turns the term of every output around: each moves by 2c/(λN)
    clip, weight, samples, outputs = 1.0, 4.0, 4, 3
    x = np.full((samples, 1), clip)
    other = x.copy()
    other[0] = -x[0]
    y = np.array([0, 1, 2, 0])
    apart = [
        minimiser("hinge", x, np.where(y == c, 1.0, -1.0), weight)
        - minimiser("hinge", other, np.where(y == c, 1.0, -1.0), weight)
        for c in range(outputs)
    ]
    bound = minimiser_sensitivity(
        1.0, clip=clip, regularisation=weight, samples=samples, outputs=outputs
    )
    assert np.linalg.norm(apart) == pytest.approx(bound, rel=1e-6)


def test_models_short_of_the_optimum_are_covered_by_their_gap():
    # P = λ/2 w² + const near its minimum: a gap of G is reached at a distance of √(2G/λ)
    weight, gap = 0.5, 1e-3
    distance = math.sqrt(2 * gap / weight)
    exact = minimiser_sensitivity(1.0, clip=1.0, regularisation=weight, samples=10)
    found = minimiser_sensitivity(1.0, clip=1.0, regularisation=weight, samples=10, gap=gap)
    assert found == pytest.approx(exact + 2 * distance)


@pytest.mark.parametrize("outputs", [1, 3])
def test_a_relative_gap_within_the_tolerance_is_an_absolute_gap_within_the_bound(outputs):
    # the widest: P ends a gap above the objective of zeros, which is the optimum (all rows zero)
    tolerance, at_zero = 0.2, outputs * math.log(2)
    primal = at_zero / (1 - tolerance)
    found = largest_gap("logistic", tolerance=tolerance, outputs=outputs)
    assert found == pytest.approx(primal - at_zero)
    assert (primal - at_zero) / primal == pytest.approx(tolerance)


def test_the_squared_loss_on_numbers_is_refused():
    with pytest.raises(ExperimentError, match=r"squared.*\"hinge\" or \"logistic\""):
        largest_slope("squared", clip=1.0, regularisation=0.1, task="regression")
