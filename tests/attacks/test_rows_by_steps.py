"""What a client that follows the algorithm has of another's few rows by the steps: open.

The owners of a column open its mean and its scale, and at each step sums over rows of their duals
times their values. Of two clients each takes its own part off. The other's part is a function of
its rows that everybody knows, at weights that both know. Each step tells one sum for each column.
So a few steps tell as many numbers as a few rows have, and a fit finds these rows, to all digits.
docs/explanations/privacy/sums.md says so.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import least_squares
from scipy.special import expit

from intarsia.algorithms.hyfdca.newton import server as newton
from intarsia.core.block import INTERCEPT, Block
from intarsia.core.schema import Schema
from intarsia.engines.simulation import Simulation
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.settings import Privacy
from intarsia.testing.toy_federations import BINARY, initialise, secrets_of
from intarsia.training.registry import algorithm_named

ROWS, COLUMNS, STARTS = 200, 4, 10


def opened(rows, monkeypatch):
    """Return the weights at each step, what the other's rows came to there, and these rows."""
    rng, blocks = np.random.default_rng(0), {}
    held, slope = (INTERCEPT, *(f"f{place}" for place in range(COLUMNS))), rng.normal(size=COLUMNS)
    for number, (name, count) in enumerate({"bank": ROWS, "clinic": rows}.items()):
        x = rng.normal(size=(count, COLUMNS))
        y = np.where(x @ slope + rng.normal(size=count) > 0, 1.0, -1.0)
        own = np.column_stack([np.ones(count), x])
        blocks[name] = Block(1000 * number + np.arange(count), held, own, y)
    weights, sums, measure = [], [], newton.measure_point

    def looked(point, block, message, key):
        if block.samples[0] < 1000:
            total = point.options.ridge * point.samples * np.asarray(message.w)
            weights.append(point.w[0])
            sums.append((total - point.alpha @ block.x)[0])
        return measure.call(point, block, message, key)

    monkeypatch.setattr(newton, "measure_point", replace(measure, call=looked))
    algorithm = algorithm_named("hyfdca")
    options = algorithm.hyperparameters(loss="logistic", method="newton")
    settings, schema = Privacy(mode="masked"), Schema.of(blocks, BINARY)
    keys = modes.keys(settings, schema.clients, None, "test")
    sealing = modes.sealing(settings, schema.clients, keys)
    engine = Simulation({"train": (schema, blocks)}, 0, sealing, secrets=secrets_of(blocks))
    server = initialise(algorithm, options, engine)
    for number in range(1, 13):
        engine.begin_round(number)
        server, info = algorithm.round(server, engine, engine.key())
        if info.gap_relative < 1e-9:
            break
    moved = np.append(True, np.linalg.norm(np.diff(weights, axis=0), axis=1) > 1e-9)
    clinic = blocks["clinic"]
    return np.array(weights)[moved], np.array(sums)[moved], clinic.x[:, 1:], clinic.y


def fitted(weights, sums, total, squares, rows):
    """Return rows whose sums at each step are as told, as are those of values and of squares."""
    positive = round(sums[0, 0] + rows / 2)  # at weights of zero each row adds half of its label
    y = np.repeat([1.0, -1.0], [positive, rows - positive])
    far = np.append(1.0, np.linalg.norm(np.diff(weights, axis=0), axis=1))[:, None]

    def off(values):
        x = values.reshape(rows, COLUMNS)
        dual = y * expit(-y * (weights[:, :1] + weights[:, 1:] @ x.T))
        found = np.column_stack([dual.sum(axis=1), dual @ x])
        steps = np.diff(found - sums, axis=0, prepend=0.0) / far  # the last ones are short
        return np.concatenate([steps.ravel(), x.sum(axis=0) - total, (x**2).sum(axis=0) - squares])

    rng = np.random.default_rng(1)
    tried = (
        least_squares(off, rng.normal(size=rows * COLUMNS), xtol=1e-15, ftol=1e-15, gtol=1e-15)
        for _ in range(STARTS)
    )
    best = min(tried, key=lambda one: one.cost)
    return best.x.reshape(rows, COLUMNS)


@pytest.mark.parametrize(("rows", "rebuilt"), [(5, 5), (20, 0)])
def test_few_rows_of_the_other_of_two_clients_are_found_by_a_fit_to_the_steps(
    rows, rebuilt, monkeypatch
):
    weights, sums, x, _ = opened(rows, monkeypatch)
    found = fitted(weights, sums, x.sum(axis=0), (x**2).sum(axis=0), rows)
    off = np.abs(x[:, None] - found).max(axis=2).min(axis=1)
    assert (off < 0.01).sum() == rebuilt
