"""A server that follows the protocol and chooses what is trained on: final weights tell rows.

Of one training row the weights of a linear model are that row, times a number that the intercept
tells. The split and its salt are the experiment's, so that one run told a row of every party.

With as many jobs as there are rows, each with one row less to train on, the server reads the final
weights of each, and nothing else. Leaving row i out moves them by H⁻¹ x_i r_i / N, up
to terms of the second order. Over all rows these differences have the second moments
H⁻¹ (Σ r² x xᵀ) H⁻¹ / N², which is H⁻¹ up to a factor. With it the rows are read up to their length.
Where all rows stay, jobs with other penalties do: each is as many equations as there are columns.
privacy/few-rows.md says so: `jobs_a_day`, `approve` and noise are what there is against it.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import least_squares
from scipy.special import expit

import four_sites
import sites
from intarsia.core.block import INTERCEPT, Labels
from intarsia.core.schema import Holding, Schema
from intarsia.deployment import run as remote_running
from intarsia.deployment.client_setup import site_in
from intarsia.engines import codec
from intarsia.errors import PolicyError
from intarsia.experiment import config
from intarsia.models.linear import LinearClassifier, LinearRegressor
from intarsia.results import run_folder


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


def test_models_of_the_same_rows_with_other_penalties_tell_all_of_few():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(5, 3)), np.array([1.0, 1.0, 1.0, -1.0, -1.0])
    jobs = [*zip(np.logspace(-3, 0.5, 12), np.tile([1.0, 3.0, 10.0], 4), strict=True)]
    weights = []
    for penalty, constant in jobs:  # [preprocessing] intercept
        wide = np.column_stack([np.full(5, constant), x])
        model = LinearClassifier(
            loss="logistic", regularisation=penalty, fit_intercept=False, tolerance=1e-9
        )
        weights.append(model.fit(wide, y).coef_.ravel())
    # each row times its label, the constant first: at the minimum they add up to the weights
    told = np.array([[*(w[:1] * c), *w[1:]] for w, (_, c) in zip(weights, jobs, strict=True)])
    factors = np.array([[p / c**2, *[p] * 3] for p, c in jobs])

    def off(values):
        rows = np.column_stack([y, values.reshape(5, 3)])
        return ((expit(-told @ rows.T) @ rows / 5 - factors * told) / (factors * abs(told))).ravel()

    tried = (least_squares(off, rng.normal(size=15), method="lm") for _ in range(20))
    found = min(tried, key=lambda one: one.cost).x.reshape(5, 3)
    apart = np.abs(found[:, None] - x * y[:, None]).max(axis=2)
    assert apart.min(axis=0).max() < 0.01


@pytest.mark.parametrize("least", ["", "least_rows = 1\n"])
def test_no_run_trains_on_a_single_row_unless_its_owner_says_so(tmp_path, least):
    described = four_sites.write_tables("hyfdca", tmp_path)
    for name, text in described.items():
        (tmp_path / name).mkdir()
        toml = four_sites.site_toml(name, text, tmp_path)
        (tmp_path / name / "site.toml").write_text(toml.replace("[policy]\n", f"[policy]\n{least}"))
    tree = four_sites.tree("hyfdca", described, tmp_path, tolerance=1e-9)
    # a salt by which one of the rows is trained on, which a server finds by trying
    tree |= {"split": {"test": 0.985, "salt": "0"}, "preprocessing": {"standardise": False}}
    tree["experiment"]["rounds"] = 50
    found = {name: site_in(tmp_path / name) for name in described}
    given = config.from_dict(tree, tmp_path), sites.Lines(found), four_sites.NAMES
    server = tmp_path / "server"
    if not least:
        with pytest.raises(PolicyError, match=r"\[policy\] least_rows"):
            remote_running.run_over(*given, server, patience=sites.HASTY)
        return
    kept = {}  # by the server, while the run goes on
    remote_running.run_over(
        *(*given, server),
        patience=sites.HASTY,
        progress=lambda _: kept.update(set_up=(server / run_folder.SET_UP).read_bytes()),
    )
    weights = codec.decode((server / run_folder.CONCLUSION).read_bytes())["weights"]
    setup = codec.decode(kept["set_up"], remote_running.SetUp, Schema, Holding, Labels)
    names = setup.schemas["train"].features.ids.tolist()
    [row] = setup.schemas["train"].samples.ids
    columns = [name for name in names if name != INTERCEPT]
    told = weights[:, [names.index(name) for name in columns]]
    told = told / weights[:, [names.index(INTERCEPT)]]
    truth = four_sites.whole().set_index("row").loc[row, columns].to_numpy(float)
    np.testing.assert_allclose(told, np.tile(truth, (len(told), 1)), rtol=1e-5)


def test_strongly_regularised_weights_are_a_class_of_one_row():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 4))
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    y = np.arange(200) == 17
    made = LinearClassifier(regularisation=1e4, fit_intercept=False, tolerance=1e-12).fit(x, y)
    assert directions(made.coef_, x[[17]]) > 0.999
