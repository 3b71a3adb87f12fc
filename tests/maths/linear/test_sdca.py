"""The dual ascent kernels against closed forms, scikit-learn and each other."""

import numpy as np
import pytest
from scipy.sparse import csr_array, random_array
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.svm import LinearSVC

from federations import ON_SIGNS
from intarsia.errors import ExperimentError, TableError
from intarsia.maths.linear import sdca
from intarsia.maths.linear.losses import (
    HINGE,
    LOGISTIC,
    SQUARED,
    SQUARED_HINGE,
    dual_step,
    minus_conjugate,
    value,
)
from intarsia.maths.linear.products import row_norms

ALL = pytest.mark.parametrize("loss", ON_SIGNS.values(), ids=ON_SIGNS)
LAYOUTS = pytest.mark.parametrize("layout", [np.ascontiguousarray, csr_array], ids=["dense", "csr"])
REGULARISATION = 0.01


def table(samples=120, features=7, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(samples, features)) * (rng.random((samples, features)) < 0.6)
    y = np.where(x @ rng.normal(size=features) + 0.5 * rng.normal(size=samples) > 0, 1.0, -1.0)
    return x, y


def targets(loss, y):
    return y * 1.5 + np.linspace(-1, 1, len(y)) if loss == SQUARED else y


def optimum(x, y, loss, tolerance=1e-9):
    return sdca.fit(
        x,
        y,
        loss=loss,
        regularisation=REGULARISATION,
        tolerance=tolerance,
        epochs=20_000,
        rng=np.random.default_rng(1),
    )


def primal(x, y, w, loss):
    return value(loss, x @ w, y).mean() + 0.5 * REGULARISATION * w @ w


@ALL
def test_the_optimum_is_that_of_scikit_learn(loss):
    x, y = table()
    y = targets(loss, y)
    c = 1.0 / (REGULARISATION * len(y))
    # LinearSVC and LogisticRegression: ½‖w‖² + C Σ l; Ridge: Σ (z-y)² + a‖w‖²
    model = {
        HINGE: LinearSVC(loss="hinge", C=c, fit_intercept=False, tol=1e-10, max_iter=10**6),
        SQUARED_HINGE: LinearSVC(C=c, fit_intercept=False, tol=1e-10, max_iter=10**6),
        LOGISTIC: LogisticRegression(C=c, fit_intercept=False, tol=1e-10, max_iter=10**4),
        SQUARED: Ridge(alpha=REGULARISATION * len(y), fit_intercept=False, tol=1e-12),
    }[loss].fit(x, y)
    found = optimum(x, y, loss)
    theirs = primal(x, y, model.coef_.ravel(), loss)
    assert found.converged
    assert found.primal == pytest.approx(primal(x, y, found.w[0], loss), rel=1e-12)
    assert found.primal == pytest.approx(theirs, rel=1e-6)
    assert found.dual <= theirs * (1 + 1e-12)


@pytest.mark.parametrize("loss", [HINGE, SQUARED_HINGE, LOGISTIC])
def test_an_ill_conditioned_table_does_not_stall(loss):
    # breast_cancer: about 1,300 passes for the hinge
    x, y = load_breast_cancer(return_X_y=True)
    x, y = (x - x.mean(axis=0)) / x.std(axis=0), 2.0 * y - 1.0
    rng = np.random.default_rng(5)
    found = sdca.fit(x, y, loss=loss, regularisation=1e-3, tolerance=1e-6, epochs=3000, rng=rng)
    assert found.converged
    assert found.gap <= 1e-6


def test_the_squared_loss_reaches_the_normal_equations():
    x, y = table()
    y = targets(SQUARED, y)
    gram = x.T @ x / len(y) + REGULARISATION * np.eye(x.shape[1])
    found = optimum(x, y, SQUARED, tolerance=1e-13)
    assert found.w[0] == pytest.approx(np.linalg.solve(gram, x.T @ y / len(y)), abs=1e-6)


@ALL
@LAYOUTS
def test_a_pass_takes_the_steps_that_a_plain_loop_takes(loss, layout):
    x, y = table(samples=30)
    y = targets(loss, y)
    order = np.random.default_rng(2).integers(0, 30, size=50)
    alpha, w = np.zeros(30), np.zeros(7)
    norms = row_norms(x)
    rows = sdca.as_rows(layout(x))
    sdca.ascend(rows, y, norms, alpha, w, order, regularisation=REGULARISATION, loss=loss)
    plain, direction = np.zeros(30), np.zeros(7)
    scale = 1 / (REGULARISATION * 30)
    for i in order:
        step = dual_step(loss, plain[i], y[i], float(x[i] @ direction), norms[i] * scale)
        plain[i] += step
        direction += step * scale * x[i]
    assert alpha == pytest.approx(plain, abs=1e-12)
    assert w == pytest.approx(direction, abs=1e-12)
    assert w == pytest.approx(sdca.weights_from_duals(rows, alpha, REGULARISATION)[0], abs=1e-12)


@ALL
def test_every_step_raises_the_dual(loss):
    x, y = table(samples=40)
    y = targets(loss, y)
    alpha, w, norms = np.zeros(40), np.zeros(7), row_norms(x)
    before = -np.inf
    for i in np.random.default_rng(3).integers(0, 40, size=120):
        sdca.ascend(x, y, norms, alpha, w, np.array([i]), regularisation=REGULARISATION, loss=loss)
        after = sdca.dual_objective(alpha, y, w, regularisation=REGULARISATION, loss=loss)
        assert after >= before - 1e-13
        before = after


@ALL
@LAYOUTS
def test_one_client_with_the_whole_rows_takes_the_centralised_pass(loss, layout):
    x, y = table()
    y = targets(loss, y)
    rng = np.random.default_rng(4)
    rows, norms = sdca.as_rows(layout(x)), row_norms(x)
    alpha, w = np.zeros(len(y)), np.zeros(7)
    order = rng.permutation(len(y))
    sdca.ascend(rows, y, norms, alpha, w, order, regularisation=REGULARISATION, loss=loss)
    start, scores = alpha.copy(), rows @ w
    order = rng.permutation(len(y))
    sdca.ascend(rows, y, norms, alpha, w, order, regularisation=REGULARISATION, loss=loss)
    regularised_samples = REGULARISATION * len(y)
    steps = sdca.ascend_slice(
        rows,
        y,
        start,
        scores,
        norms / regularised_samples,
        np.ones(len(y)),
        order,
        sigma=1.0,
        regularised_samples=regularised_samples,
        loss=loss,
    )
    assert steps.shape == (1, len(y))
    assert start + steps[0] == pytest.approx(alpha, abs=1e-12)


def test_a_slice_follows_its_own_steps_with_scaled_rows_and_sigma():
    # two squared-loss rows by hand: λN = 2, σ = 2, scales 2 and 1
    x, y = np.array([[1.0], [3.0]]), np.array([1.0, 2.0])
    curvature, scale = np.array([4.0, 9.0]) / 2, np.array([2.0, 1.0])
    steps = sdca.ascend_slice(
        x,
        y,
        np.array([0.5, 0.0]),
        np.array([0.25, -1.0]),
        curvature,
        scale,
        np.array([0, 1]),
        sigma=2.0,
        regularised_samples=2.0,
        loss=SQUARED,
    )
    first = (1.0 - 0.5 - 0.25) / (1 + 2 * 2.0)
    followed = -1.0 + 2.0 * 1.0 * 3.0 * (first * 2.0 * 1.0) / 2.0
    assert steps[0] == pytest.approx([first, (2.0 - followed) / (1 + 2 * 4.5)], rel=1e-14)


@pytest.mark.parametrize(
    ("loss", "beta"), [(HINGE, 1.0), (SQUARED_HINGE, 2.0), (LOGISTIC, 0.5), (SQUARED, 1.0)]
)
def test_a_row_of_zeros_has_its_own_optimum_and_leaves_w_alone(loss, beta):
    x, y = table(samples=30)
    y = np.ones(30) if loss == SQUARED else y
    x[4] = 0.0
    found = optimum(x, y, loss)
    assert found.alpha[0, 4] * y[4] == pytest.approx(beta)
    assert found.converged
    without = sdca.weights_from_duals(x[:4], found.alpha[:, :4], 1.0) * 4
    without += sdca.weights_from_duals(x[5:], found.alpha[:, 5:], 1.0) * 25
    assert found.w == pytest.approx(without / (REGULARISATION * 30), abs=1e-12)


@ALL
def test_outputs_trained_together_reach_the_optima_of_each_alone(loss):
    x, y = table()
    both = np.stack([targets(loss, y), targets(loss, -y[::-1])])
    together = optimum(x, both, loss)
    alone = [optimum(x, row, loss) for row in both]
    assert together.w.shape == (2, 7)
    assert together.alpha.shape == (2, len(y))
    assert together.primal == pytest.approx(sum(one.primal for one in alone), rel=1e-8)
    assert together.w == pytest.approx(np.concatenate([one.w for one in alone]), abs=1e-3)


@ALL
def test_dense_and_sparse_tables_give_the_same_fit(loss):
    x, y = table()
    y = targets(loss, y)
    dense, sparse = optimum(x, y, loss), optimum(csr_array(x), y, loss)
    assert dense.epochs == sparse.epochs
    assert dense.w == pytest.approx(sparse.w, abs=1e-9)


@ALL
def test_the_certificate_bounds_the_distance_from_the_optimum(loss):
    x, y = table()
    y = targets(loss, y)
    best, rough = optimum(x, y, loss), optimum(x, y, loss, tolerance=1e-2)
    assert rough.epochs < best.epochs
    assert best.primal - rough.primal <= 1e-9
    assert rough.primal - best.primal <= rough.primal - rough.dual <= 1e-2 * rough.primal
    assert np.isfinite(minus_conjugate(loss, best.alpha, y)).all()


def test_a_fit_that_ran_out_of_epochs_says_so_with_its_true_gap():
    x, y = table()
    found = sdca.fit(x, y, loss=HINGE, regularisation=1e-4, epochs=2, rng=np.random.default_rng(0))
    assert found.epochs == 2
    assert not found.converged
    assert found.gap == pytest.approx((found.primal - found.dual) / found.primal)


def test_the_same_seed_gives_the_same_bits():
    x, y = table()
    first, second = optimum(x, y, LOGISTIC), optimum(x, y, LOGISTIC)
    assert np.array_equal(first.w, second.w)
    assert np.array_equal(first.alpha, second.alpha)


def test_a_perfect_fit_stops_although_its_primal_is_zero():
    found = optimum(np.ones((3, 2)), np.zeros(3), SQUARED)
    assert found.primal == 0.0
    assert found.converged


def test_as_rows_copies_only_what_the_kernels_cannot_read():
    dense = np.zeros((3, 2))
    assert sdca.as_rows(dense) is dense
    assert sdca.as_rows(np.asfortranarray(np.ones((3, 2)))).flags.c_contiguous
    assert sdca.as_rows(np.ones((3, 2), np.float32)).dtype == np.float64
    sparse = random_array((20, 9), density=0.3, format="csr", rng=np.random.default_rng(0))
    rows = sdca.as_rows(sparse)
    assert np.shares_memory(rows.data, sparse.data)
    assert rows.indices.dtype == rows.indptr.dtype == np.int32
    assert np.array_equal(sdca.as_rows(sparse.tocsc()).toarray(), sparse.toarray())


def test_repeated_sparse_entries_are_added_without_touching_the_table():
    twice = csr_array((np.array([1.0, 2.0]), np.array([1, 1]), np.array([0, 2])), shape=(1, 3))
    rows = sdca.as_rows(twice)
    assert rows.toarray().tolist() == [[0.0, 3.0, 0.0]]
    assert row_norms(rows).tolist() == [9.0]
    assert twice.data.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("wrong", [0.0, -1.0, np.nan, np.inf])
def test_a_regularisation_that_is_not_positive_is_an_error(wrong):
    with pytest.raises(ExperimentError, match="must be a positive finite number"):
        sdca.fit(
            np.ones((2, 1)),
            np.ones(2),
            loss=HINGE,
            regularisation=wrong,
            rng=np.random.default_rng(0),
        )


def test_a_table_without_rows_is_an_error():
    with pytest.raises(TableError, match="0 rows"):
        optimum(np.zeros((0, 3)), np.zeros(0), HINGE)
