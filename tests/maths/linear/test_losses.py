"""Losses against their definitions: numeric derivatives, Fenchel-Young, one-dimensional search."""

import decimal
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize_scalar

from federations import ON_SIGNS
from intarsia.errors import ExperimentError
from intarsia.maths.linear import losses
from intarsia.maths.linear.losses import HINGE, LOGISTIC, SQUARED, SQUARED_HINGE

ALL = pytest.mark.parametrize("loss", ON_SIGNS.values(), ids=ON_SIGNS)
SMOOTH = pytest.mark.parametrize("loss", [SQUARED_HINGE, LOGISTIC, SQUARED])
SCORES = np.array([-30.0, -2.5, -1.3, -0.4, 0.1, 0.6, 1.7, 3.1, 25.0])

labels = st.sampled_from([-1.0, 1.0])
scores = st.floats(-20.0, 20.0)
curvatures = st.one_of(st.just(0.0), st.floats(1e-6, 1e4))
betas = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0.0, 1.0))


def targets(loss: int) -> np.ndarray:
    return np.array([-3.2, 0.0, 1.7]) if loss == SQUARED else np.array([-1.0, 1.0])


@pytest.mark.parametrize(
    ("loss", "expected"),
    [(HINGE, 1.5), (SQUARED_HINGE, 2.25), (LOGISTIC, math.log1p(math.exp(0.5))), (SQUARED, 1.125)],
)
def test_each_loss_has_its_value_at_a_score_of_minus_half(loss, expected):
    assert losses.value(loss, np.array([-0.5]), np.array([1.0])) == pytest.approx(expected)


@ALL
def test_the_derivative_is_the_slope_of_the_value(loss):
    h = 1e-6
    for y in targets(loss):
        slope = (losses.value(loss, SCORES + h, y) - losses.value(loss, SCORES - h, y)) / (2 * h)
        assert losses.derivative(loss, SCORES, y) == pytest.approx(slope, rel=1e-6, abs=1e-8)


@ALL
def test_the_curvature_is_the_slope_of_the_derivative(loss):
    h = 1e-6
    for y in targets(loss):
        up, down = losses.derivative(loss, SCORES + h, y), losses.derivative(loss, SCORES - h, y)
        slope = (up - down) / (2 * h)
        assert losses.curvature(loss, SCORES, y) == pytest.approx(slope, rel=1e-5, abs=1e-8)


@ALL
def test_the_duals_of_the_scores_meet_fenchel_and_young_with_equality(loss):
    for y in targets(loss):
        alpha = losses.dual_from_scores(loss, SCORES, y)
        gap = losses.value(loss, SCORES, y) - losses.minus_conjugate(loss, alpha, y)
        assert gap + alpha * SCORES == pytest.approx(np.zeros(len(SCORES)), abs=1e-10)


@ALL
@given(y=labels, z=scores, beta=st.floats(0.0, 1.0))
def test_no_dual_in_the_box_exceeds_fenchel_and_young(loss, y, z, beta):
    z, alpha, y = np.array([z]), np.array([y * beta]), np.array([y])
    slack = losses.value(loss, z, y) - losses.minus_conjugate(loss, alpha, y) + alpha * z
    assert slack[0] >= -1e-12


@ALL
def test_the_conjugate_is_the_numeric_supremum(loss):
    # -l*(-α) = min over z of l(z) + αz
    for y in targets(loss):
        for beta in [0.1, 0.5, 0.9]:
            alpha = y * beta if loss != SQUARED else beta
            found = minimize_scalar(
                lambda z, y=y, alpha=alpha: (
                    losses.value(loss, np.array(z), np.array(y)) + alpha * z
                ),
                bounds=(-60.0, 60.0),
                method="bounded",
                options={"xatol": 1e-12},
            )
            stated = losses.minus_conjugate(loss, np.array([alpha]), np.array([y]))[0]
            assert stated == pytest.approx(float(found.fun), abs=1e-8)


@pytest.mark.parametrize("loss", [HINGE, SQUARED_HINGE, LOGISTIC])
def test_a_dual_outside_its_box_has_no_dual_value(loss):
    y = np.array([1.0, -1.0])
    assert np.all(losses.minus_conjugate(loss, -0.01 * y, y) == -np.inf)
    if loss != SQUARED_HINGE:
        assert np.all(losses.minus_conjugate(loss, 1.01 * y, y) == -np.inf)


@ALL
def test_projection_lands_in_the_box_and_moves_nothing_inside(loss):
    y = np.array([1.0, -1.0, 1.0, -1.0])
    alpha = y * np.array([-0.5, 0.3, 1.0, 1.5])
    moved = losses.project(loss, alpha, y)
    expected = {
        HINGE: [0.0, 0.3, 1.0, 1.0],
        LOGISTIC: [0.0, 0.3, 1.0, 1.0],
        SQUARED_HINGE: [0.0, 0.3, 1.0, 1.5],
        SQUARED: [-0.5, 0.3, 1.0, 1.5],
    }[loss]
    assert y * moved == pytest.approx(np.array(expected))
    assert np.all(np.isfinite(losses.minus_conjugate(loss, moved, y)))


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_the_logistic_conjugate_keeps_the_digits_of_small_duals(sign):
    beta = np.array([1e-17, 3e-14, 1e-11, 2e-7, 1e-3, 0.4, 0.999])
    with decimal.localcontext(prec=60):
        exact = [decimal.Decimal(one) for one in beta.tolist()]
        known = [float(-one * one.ln() - (1 - one) * (1 - one).ln()) for one in exact]
    labels = np.full(len(beta), sign)
    found = losses.minus_conjugate(LOGISTIC, sign * beta, labels)
    np.testing.assert_allclose(found, known, rtol=2e-15)
    edges = losses.minus_conjugate(LOGISTIC, np.array([0.0, 1.0, -1e-3, 1.001]), np.ones(4))
    np.testing.assert_array_equal(edges, [0.0, 0.0, -np.inf, -np.inf])


def test_the_logistic_loss_does_not_overflow():
    z, y = np.array([-1e6, 1e6]), np.array([1.0, 1.0])
    assert losses.value(LOGISTIC, z, y).tolist() == [1e6, 0.0]
    assert losses.derivative(LOGISTIC, z, y).tolist() == [-1.0, 0.0]
    assert losses.curvature(LOGISTIC, z, y).tolist() == [0.0, 0.0]
    steps = [losses.dual_step(LOGISTIC, 0.0, 1.0, score, 1.0) for score in z]
    assert steps == [1.0, 0.0]


@ALL
@settings(max_examples=60)
@given(y=labels, z=scores, q=curvatures, beta=betas)
def test_the_dual_step_maximises_the_one_dimensional_dual(loss, y, z, q, beta):
    alpha = y * beta

    def minus_dual(new: float) -> float:
        step = new - alpha
        conjugate = losses.minus_conjugate(loss, np.array([new]), np.array([y]))[0]
        return -(conjugate - z * step - 0.5 * q * step**2)

    reach = (0.0, y) if loss in (HINGE, LOGISTIC) else (0.0, 200.0 * y)
    bounds = (-200.0, 200.0) if loss == SQUARED else (min(reach), max(reach))
    best = minimize_scalar(minus_dual, bounds=bounds, method="bounded", options={"xatol": 1e-11})
    ends = [minus_dual(end) for end in bounds]
    ours = minus_dual(alpha + losses.dual_step(loss, alpha, y, z, q))
    tolerance = 1e-9 * max(1.0, q, abs(z))
    assert ours <= min(float(best.fun), *ends) + tolerance


@settings(max_examples=200)
@given(z=scores, q=curvatures, beta=betas)
def test_the_logistic_step_is_exact_to_1e_14(z, q, beta):
    new = beta + losses.dual_step(LOGISTIC, beta, 1.0, z, q)

    def optimality(u: float) -> float:
        return u + z + q * (1.0 / (1.0 + math.exp(-u)) - beta)

    low, high = -z - q - 1.0, -z + q + 1.0
    root = brentq(optimality, max(low, -700.0), min(high, 700.0), xtol=1e-15, rtol=1e-15)
    assert new == pytest.approx(1.0 / (1.0 + math.exp(-root)), rel=0, abs=1e-14)


@ALL
@given(y=labels, z=scores, q=curvatures, beta=betas)
def test_a_step_from_the_optimum_does_not_move(loss, y, z, q, beta):
    first = losses.dual_step(loss, y * beta, y, z, q)
    again = losses.dual_step(loss, y * beta + first, y, z + q * first, q)
    assert again == pytest.approx(0.0, abs=1e-8 * max(1.0, q))


@pytest.mark.parametrize(
    ("loss", "optimum"), [(HINGE, 1.0), (SQUARED_HINGE, 2.0), (LOGISTIC, 0.5), (SQUARED, 1.0)]
)
def test_a_row_of_zeros_goes_to_its_own_optimum_in_one_step(loss, optimum):
    for start in [0.0, 0.25]:
        assert start + losses.dual_step(loss, start, 1.0, 0.0, 0.0) == pytest.approx(optimum)


def test_an_unknown_loss_is_an_error_that_names_the_nearest():
    with pytest.raises(ExperimentError, match="use 'logistic'"):
        losses.loss_code("logistik")
    with pytest.raises(ExperimentError, match="loss code is 9"):
        losses.value(9, SCORES, SCORES)
    assert math.isnan(losses.dual_step(9, 0.0, 1.0, 0.0, 1.0))
    assert losses.loss_code("squared_hinge") == SQUARED_HINGE
