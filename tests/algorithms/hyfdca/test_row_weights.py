"""Weights of rows in HyFDCA: optimum and certificate of the weighted objective."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array
from sklearn.linear_model import LogisticRegression

import intarsia
from federations import (
    BINARY,
    ON_SIGNS,
    in_order,
    optimum,
    rectangles,
    solved,
    started,
    table,
    train,
)
from intarsia.algorithms.hyfdca.algorithm import HYFDCA
from intarsia.algorithms.hyfdca.state import HyFDCA
from intarsia.core.block import Block, Labels
from intarsia.core.schema import Schema
from intarsia.engines.simulation import Simulation
from intarsia.errors import ExperimentError, FederationError, TableError
from intarsia.maths.linear import losses, sdca
from intarsia.protocols import preprocessing
from intarsia.protocols.preprocessing import agreement

WEIGHTED = replace(BINARY, weighted=True)


def weighted(blocks, weights):
    """Return the blocks with the weights of their samples in a pooled table."""
    return {name: replace(one, weights=weights[one.samples]) for name, one in blocks.items()}


@pytest.mark.parametrize("frame", [True, False])
@pytest.mark.parametrize("loss", ON_SIGNS)
def test_rows_of_weight_two_count_as_two_rows(loss, frame):
    x, y = table(40, 5)
    twice = np.arange(40) % 3 == 0
    rows = np.repeat(np.arange(40), 1 + twice)
    best = optimum(x[rows], y[rows], loss=losses.loss_code(loss), regularisation=1e-2)
    weights = (1.0 + twice) / (1.0 + twice).mean()
    blocks = weighted(rectangles(x, y, 2, 2, shared_rows=4, shared_columns=1), weights)
    options = HyFDCA(loss=loss, regularisation=1e-2, frame=frame)
    conclusion, found = solved(HYFDCA, options, blocks, WEIGHTED, tolerance=1e-10)
    w = np.array([found[f"f{at:04d}"][0] for at in range(5)])
    assert w == pytest.approx(best, abs=2e-4)
    each = losses.value(losses.loss_code(loss), x @ w, y) * weights
    primal = each.mean() + 0.5 * 1e-2 * w @ w
    assert conclusion.info.primal == pytest.approx(primal, rel=1e-9)
    assert 0 <= conclusion.info.gap_relative + 1e-12 <= 1e-7


def check_bounds(loss, x, y, train_weighted, *, regularisation, close):
    """Check that P and D of a federation enclose the optimum of pooled rows with weights."""
    count = len(y)
    weights = np.random.default_rng(1).uniform(0.2, 3.0, count)
    weights /= weights.mean()
    best = sdca.fit(
        *(x, y),
        loss=losses.loss_code(loss),
        regularisation=regularisation,
        tolerance=1e-8,
        epochs=20_000,
        rng=np.random.default_rng(0),
        weights=weights,
    )
    assert best.converged
    info = train_weighted(weights)
    assert info.dual <= best.primal * (1 + 1e-9)
    assert best.dual * (1 - 1e-9) <= info.primal <= best.primal * (1 + close)
    assert info.gap_relative <= 2 * close


@pytest.mark.parametrize("loss", ON_SIGNS)
def test_dual_ascent_certifies_the_weighted_optimum(loss):
    x, y = table(60, 4)

    def train_weighted(weights):
        options = HyFDCA(loss=loss, regularisation=0.1, method="ascent")
        blocks = weighted(rectangles(x, y, 3, 1), weights)
        return solved(HYFDCA, options, blocks, WEIGHTED, tolerance=1e-3, rounds=60)[0].info

    check_bounds(loss, x, y, train_weighted, regularisation=0.1, close=0.01)


@pytest.mark.parametrize(
    "loss",
    [pytest.param(one, marks=[pytest.mark.slow] * (one != "logistic")) for one in ON_SIGNS],
)
def test_rounds_with_clients_away_certify_the_weighted_optimum(loss):
    x, y = table(60, 4)

    def train_weighted(weights):
        options = HyFDCA(loss=loss, regularisation=0.1)
        blocks = weighted(rectangles(x, y, 3, 2), weights)
        engine, server = started(HYFDCA, options, blocks, WEIGHTED)
        names = list(blocks)

        def present(number):
            return [one for one in names if one != names[number % len(names)]]

        return train(HYFDCA, engine, server, 120, present=present).info

    check_bounds(loss, x, y, train_weighted, regularisation=0.1, close=0.05)


@pytest.mark.parametrize("loss", ON_SIGNS)
def test_sparse_tables_with_more_columns_than_rows_reach_the_weighted_optimum(loss):
    x, y = table(60, 90)
    x = csr_array(x * (abs(x) > 1.0))

    def train_weighted(weights):
        options = HyFDCA(loss=loss, regularisation=0.3)
        blocks = weighted(rectangles(x, y, 2, 2), weights)
        return solved(HYFDCA, options, blocks, WEIGHTED, tolerance=1e-7, rounds=150)[0].info

    check_bounds(loss, x, y, train_weighted, regularisation=0.3, close=1e-6)


@pytest.mark.parametrize("mode", ["plain", "masked", "ckks"])
@pytest.mark.parametrize("class_weight", [None, "balanced", {"1": 3.0}])
def test_a_run_finds_the_weights_of_scikit_learn(mode, class_weight):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 4))
    y = (x @ rng.normal(size=4) + rng.normal(size=120) > 1).astype(int)
    own = rng.uniform(0.1, 4.0, 120)
    first = pd.DataFrame(x[:, :2], columns=["a", "b"]).assign(id=range(120), y=y, s=own)
    second = pd.DataFrame(x[:, 2:], columns=["c", "d"]).assign(id=range(120))
    result = intarsia.run(
        tables={"first": first, "second": second},
        id="id",
        label="y",
        weights="s",
        loss="logistic",
        regularisation=1e-2,
        test=0,
        privacy=mode,
        tolerance=1e-9,
        yardsticks=False,
        **({} if class_weight is None else {"class_weight": class_weight}),
    )
    totals = np.bincount(y, own)
    factors = {"balanced": totals.sum() / (2 * totals)}.get(str(class_weight), np.ones(2))
    weights = own * (np.array([1.0, 3.0]) if isinstance(class_weight, dict) else factors)[y]
    z = (x - x.mean(axis=0)) / x.std(axis=0)
    theirs = LogisticRegression(
        C=1 / (1e-2 * 120), fit_intercept=False, tol=1e-10, max_iter=1000
    ).fit(np.column_stack([z, np.ones(120)]), y, weights / weights.mean())
    expected = theirs.coef_[0, :4] / x.std(axis=0)
    assert result.model.coef_[0] == pytest.approx(expected, abs=1e-4)


def test_weights_of_one_sample_that_differ_are_refused():
    x, y = np.ones((4, 1)), np.array([1.0, -1.0, 1.0, -1.0])
    blocks = {
        name: Block(np.arange(4), (name,), x, y, weights=np.array([1.0, 2.0, 3.0, last]))
        for name, last in (("a", 1.0), ("b", 1.5))
    }
    schema = Schema.of(blocks, WEIGHTED)
    engine = Simulation({"train": (schema, blocks)}, 0)
    engine.make_states(lambda name: preprocessing.initial(name, engine.block(name)))
    with pytest.raises(FederationError, match="'a' and 'b' have different weights"):
        agreement.check_agreement(engine, schema)


@pytest.mark.parametrize(("wrong", "said"), [(0.0, "0"), (np.nan, "empty"), (-1.0, "-1")])
def test_a_weight_that_is_not_above_0_is_refused_with_its_row(wrong, said):
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "y": [0, 1, 0], "s": [1.0, wrong, 2.0]})
    with pytest.raises(TableError, match=f"weights column 's' is {said} in row 2"):
        intarsia.run(tables={"one": frame}, label="y", weights="s", test=0)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"class_weight": {"2": 3.0}}, "class_weight names '2'"),
        ({"class_weight": {"1": 0.0}}, "class_weight of '1' is 0"),
        ({"class_weight": "balanced", "algorithm": "fedavg"}, "which fedavg does not know"),
        (
            {"class_weight": "balanced", "algorithm": "ditto"},
            'or remove them; all classes alike are algorithm.class_weights = "balanced"',
        ),
        ({"class_weight": "balanced", "task": "regression"}, "has no classes"),
    ],
)
def test_weights_that_cannot_be_are_refused(settings, said):
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0, 0.5], "y": [0, 1, 0, 1]})
    with pytest.raises(ExperimentError, match=said):
        intarsia.run(tables={"one": frame}, label="y", test=0, **settings)


@pytest.mark.parametrize(
    ("loss", "seed"),
    [
        ("hinge", 0),
        ("squared_hinge", 1),
        ("huber", 2),
        ("quantile", 3),
        ("hinge", 4),
        ("quantile", 12),
    ],
)
def test_weights_of_one_to_a_hundred_million_do_not_stand_still(loss, seed):
    """Rows that hardly count are as far from the edges of their box as those that do."""
    rng = np.random.default_rng(seed)
    x = np.hstack([rng.normal(size=(120, 8)), np.eye(20)[rng.integers(0, 20, 120)]])
    score = x @ rng.normal(size=28)
    y = score / np.abs(score).mean() + rng.logistic(size=120)
    weights = 10 ** rng.uniform(0, 8, 120)
    weights /= weights.mean()
    labels, shape, ridge = WEIGHTED, 0.0, 1e-6
    if loss in losses.SHAPES:
        shape = 0.9
        labels = Labels("regression", weighted=True)
    else:
        y = np.where(y > np.quantile(y, 0.6), 1.0, -1.0)
    given = {losses.SHAPES[loss]: shape} if shape else {}
    options = HyFDCA(loss=loss, regularisation=ridge, **given)
    blocks = weighted(rectangles(x, y, 2, 2), weights)
    engine, server = started(HYFDCA, options, blocks, labels)
    conclusion = train(HYFDCA, engine, server, 60, tolerance=1e-6)
    schema = engine.schema("train")
    w, alpha = in_order(schema, conclusion.weights)[0], np.zeros(len(y))
    for name, state in engine.get_states().items():
        alpha[schema.samples.own(name)] = state.alpha[0]
    alpha = alpha[np.argsort(schema.samples.ids)]
    code, known = losses.loss_code(loss), {"weights": weights, "shape": shape}
    primal = losses.value(code, x @ w, y, **known).mean() + ridge / 2 * w @ w
    implied = x.T @ alpha / (ridge * len(y))
    dual = losses.minus_conjugate(code, alpha, y, **known).mean() - ridge / 2 * implied @ implied
    assert primal - dual <= 1.1e-6 * primal  # so it is the optimum, whatever the certificate says
    assert conclusion.info.primal == pytest.approx(primal, rel=1e-9)
    assert conclusion.info.dual == pytest.approx(dual, rel=1e-8)
