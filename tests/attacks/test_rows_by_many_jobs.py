"""A server that has as many jobs let in as there are rows, each with one row less to train on.

It reads the final weights of each, and nothing else. At the optimum leaving row i out moves them by
H⁻¹ x_i r_i / N, up to terms of the second order. Over all rows these differences have the second
moments H⁻¹ (Σ r² x xᵀ) H⁻¹ / N², which is H⁻¹ up to a factor. With it the rows are read up to their
length. privacy/site-refusals.md says so: `jobs_a_day`, `approve` and noise are what there is against
it.
"""

from __future__ import annotations

import numpy as np

from intarsia.models.linear import LinearRegressor


def directions(found, rows):
    """Return the cosine of the angle between each row and what was made of it."""
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(rows, axis=1)
    return abs((found * rows).sum(axis=1)) / lengths


def test_differences_of_models_tell_rows_but_for_their_length():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 4)) @ rng.normal(size=(4, 4))
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    y = x @ rng.normal(size=4) + rng.normal(size=200)

    def trained(left_out=None):
        kept = np.arange(200) != (-1 if left_out is None else left_out)
        made = LinearRegressor(regularisation=0.01, fit_intercept=False, tolerance=1e-10)
        return made.fit(x[kept], y[kept]).coef_.ravel()

    whole = trained()
    moved = np.array([whole - trained(row) for row in range(200)])
    found = moved @ np.linalg.inv(moved.T @ moved)
    assert np.median(directions(found, x)) > 0.98
    noise = rng.normal(size=moved.shape) * np.linalg.norm(whole)  # of a model with noise
    hidden = (moved + noise) @ np.linalg.inv((moved + noise).T @ (moved + noise))
    assert np.median(directions(hidden, x)) < 0.7
