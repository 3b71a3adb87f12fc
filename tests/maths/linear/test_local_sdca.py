"""Dual ascent in a metric against dual ascent on rows that are scaled by it."""

import numpy as np
import pytest
from scipy.sparse import csr_array

from federations import ON_SIGNS
from intarsia.maths.linear import sdca
from intarsia.maths.linear.local_sdca import ascend_weighted, feature_squares, weighted_norms
from intarsia.maths.linear.products import row_norms

LAYOUTS = pytest.mark.parametrize("layout", [np.ascontiguousarray, csr_array], ids=["dense", "csr"])
SIGMA = 1.5


def table(samples=40, features=7):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(samples, features)) * (rng.random((samples, features)) < 0.6)
    y = np.sign(rng.normal(size=(2, samples)))
    return x, y, rng.uniform(0.1, 5.0, features)


@LAYOUTS
@pytest.mark.parametrize("loss", ON_SIGNS.values(), ids=ON_SIGNS)
def test_the_steps_are_those_on_rows_scaled_by_the_root_of_the_weights(loss, layout):
    x, y, weights = table()
    rng = np.random.default_rng(4)
    alpha, z = y * rng.uniform(size=y.shape), rng.normal(size=y.shape)
    scale, order = rng.uniform(1.0, 2.0, len(x)), rng.permutation(len(x))[:30]
    steps = ascend_weighted(
        layout(x),
        y,
        alpha,
        z,
        weighted_norms(layout(x), weights),
        scale,
        order,
        weights=weights,
        sigma=SIGMA,
        samples=len(x),
        loss=loss,
    )
    # the slices' own rows, scaled for the co-owners: `norms` there are those of all owners
    scaled = x * np.sqrt(weights)
    expected = sdca.ascend_slice(
        scaled,
        y,
        alpha,
        z,
        row_norms(scaled) * scale**2 / len(x),
        scale,
        order,
        sigma=SIGMA,
        regularised_samples=float(len(x)),
        loss=loss,
    )
    assert np.abs(steps[:, order]).max() > 0.1
    assert not np.delete(steps, order, axis=1).any()
    np.testing.assert_allclose(steps, expected, rtol=1e-9, atol=1e-12)


@LAYOUTS
def test_norms_and_squares_are_the_sums_of_their_definition(layout):
    x, _, weights = table()
    x[3], x[:, 2] = 0.0, 0.0
    np.testing.assert_allclose(weighted_norms(layout(x), weights), (x**2) @ weights, rtol=1e-14)
    np.testing.assert_allclose(feature_squares(layout(x)), (x**2).sum(axis=0), rtol=1e-14)
