"""The descent kernel against the same steps in NumPy."""

import numpy as np
import pytest
from scipy.sparse import csr_array

from federations import ON_SIGNS
from intarsia.maths.linear import losses
from intarsia.maths.linear.sgd import descend

LAYOUTS = pytest.mark.parametrize("layout", [np.ascontiguousarray, csr_array], ids=["dense", "csr"])


def table(samples=30, features=6, outputs=2, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(samples, features)) * (rng.random((samples, features)) < 0.7)
    return x, np.sign(rng.normal(size=(outputs, samples)))


@LAYOUTS
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("loss", ON_SIGNS.values(), ids=ON_SIGNS)
def test_steps_are_those_of_the_formula(layout, batch, loss):
    x, y = table()
    order = np.random.default_rng(1).permutation(30)
    start = np.random.default_rng(2).normal(size=(2, 6))
    expected = start.copy()
    for first in range(0, 30, batch):
        rows = order[first : first + batch]
        slope = losses.derivative(loss, expected @ x[rows].T, y[:, rows])
        gradient = 0.3 * expected + slope @ x[rows] / len(rows)
        expected = expected - 0.2 * gradient
    given = start.copy()
    w = descend(layout(x), y, given, order, rate=0.2, regularisation=0.3, loss=loss, batch=batch)
    np.testing.assert_allclose(w, expected, atol=1e-12)
    np.testing.assert_array_equal(given, start)


@LAYOUTS
def test_a_long_run_of_shrinking_steps_stays_exact(layout):
    x = np.array([[1.0, 0.0]])
    order = np.zeros(3000, np.int64)
    keys = {"rate": 0.5, "regularisation": 1.0, "loss": losses.SQUARED}
    w = descend(layout(x), np.array([[1.0]]), np.array([[0.0, 5.0]]), order, **keys)
    np.testing.assert_allclose(w, [[0.5, 0.0]], atol=1e-15)  # the optimum of λ/2 w² + ½(w-1)²


@LAYOUTS
def test_a_rate_beyond_the_ridge_sets_the_weights_to_zero_first(layout):
    x = np.array([[1.0, 0.0]])
    keys = {"rate": 2.0, "regularisation": 1.0, "loss": losses.HINGE}
    w = descend(layout(x), np.array([[1.0]]), np.array([[9.0, 9.0]]), np.array([0]), **keys)
    np.testing.assert_array_equal(w, [[0.0, 0.0]])
