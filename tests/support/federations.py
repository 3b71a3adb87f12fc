"""Small federations to test on: a pooled table dealt to clients, and an engine over it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.optimize import minimize
from scipy.sparse import issparse
from scipy.special import expit
from sklearn.svm import LinearSVC

from intarsia.core.algorithm import Algorithm
from intarsia.core.schema import Schema
from intarsia.engines import codec
from intarsia.engines.simulation import Simulation
from intarsia.maths.linear import losses
from intarsia.testing.toy_federations import (  # noqa: F401  # tests have them from here, too
    BINARY,
    block,
    by_name,
    initialise,
    names,
    rectangles,
    secret_of,
    secrets_of,
    table,
    train,
)

# the losses whose labels may be -1 and +1; `test_losses_of_numbers.py` has the others
ON_SIGNS = {name: code for name, code in losses.LOSSES.items() if code not in losses.NUMBERS}


def ill_conditioned(samples, features, *, seed):
    """Return nearly dependent columns of size 1, outlying rows, and labels, some of them false."""
    rng = np.random.default_rng([seed, samples, features])
    x = np.cumsum(rng.standard_t(2, (samples, features)), axis=1)
    score = np.sign(x) * np.log1p(np.abs(x)) @ rng.standard_normal(features)
    score = score / score.std() + 0.3 * rng.logistic(size=samples)
    y = np.where(score > np.quantile(score, 0.7), 1.0, -1.0)
    far = rng.random(samples) < 0.01
    x[far] *= 30
    y[far] *= rng.choice([-1.0, 1.0], far.sum())
    return (x - x.mean(axis=0)) / x.std(axis=0), y


def heavy_tailed(samples=60, features=7, seed=5):
    """Return heavy-tailed columns of sizes 0.01 to 100, and numbers far from 0 with outliers."""
    rng = np.random.default_rng(seed)
    x = rng.standard_t(1.5, (samples, features))
    y = 20 + x @ rng.normal(size=features) + rng.standard_t(1.2, samples)
    return x * 10 ** np.linspace(-2, 2, features), y


def started(algorithm: Algorithm, options, blocks, labels=BINARY, seed=0):
    """Return an engine over the clients and the server's state after the set-up."""
    schema = Schema.of(blocks, labels)
    engine = Simulation({"train": (schema, blocks)}, seed, secrets=secrets_of(blocks))
    return engine, initialise(algorithm, options, engine)


class ThroughBytes:
    """The clients of an engine, each message and reply of which becomes bytes and comes back."""

    def __init__(self, engine: Simulation) -> None:
        self._engine, self.ids, self.reveal = engine, engine.ids, engine.reveal
        self.called: set[str] = set()  # names of client functions

    def ask(self, fn, messages):
        return self._engine.ask(self._through(fn), messages)

    def sum(self, fn, messages):
        return self._engine.sum(self._through(fn), messages)

    def _through(self, fn):
        def call(state, own, message, rng):
            self.called.add(fn.name)
            message = codec.decode(codec.encode(message), type(message))
            state, reply = fn.call(state, own, message, rng)
            return state, codec.decode(codec.encode(reply), type(reply))

        return replace(fn, call=call, together=None)


def solved(algorithm, options, blocks, labels=BINARY, *, seed=0, tolerance=1e-10, rounds=100):
    """Return the conclusion of a whole training, and the weights by feature name."""
    engine, server = started(algorithm, options, blocks, labels, seed)
    conclusion = train(algorithm, engine, server, rounds, tolerance=tolerance)
    return conclusion, by_name(engine.schema("train"), conclusion.weights)


def columns_of(schema: Schema):
    """Return the pooled table's column of each feature in the schema's order."""
    return np.array([int(str(name)[1:]) for name in schema.features.ids])


def in_order(schema: Schema, weights):
    """Return weights, (outputs, features), in the order of the pooled table's columns."""
    ordered = np.empty_like(weights)
    ordered[:, columns_of(schema)] = weights
    return ordered


def objective(x, y, w, *, loss: int, regularisation: float) -> float:
    """Return P(w) on the pooled table, written out."""
    margins = x @ w
    each = {
        losses.HINGE: lambda: np.maximum(0, 1 - y * margins),
        losses.SQUARED_HINGE: lambda: np.maximum(0, 1 - y * margins) ** 2,
        losses.LOGISTIC: lambda: np.logaddexp(0, -y * margins),
        losses.SQUARED: lambda: 0.5 * (margins - y) ** 2,
    }[loss]()
    return float(each.mean() + 0.5 * regularisation * w @ w)


def optimum(x, y, *, loss: int, regularisation: float):
    """Return the weights that minimise P, by libraries that know nothing of this one.

    The squared loss is solved by its normal equations, the hinge by liblinear, the others by
    L-BFGS.
    """
    samples, features = x.shape
    if loss == losses.SQUARED:
        gram = x.T @ x
        gram = gram.toarray() if issparse(gram) else gram
        return np.linalg.solve(
            gram / samples + regularisation * np.eye(features), x.T @ y / samples
        )
    if loss == losses.HINGE:
        machine = LinearSVC(
            loss="hinge",
            C=1 / (regularisation * samples),
            fit_intercept=False,
            tol=1e-7,
            max_iter=10_000_000,
            random_state=0,
        )
        return machine.fit(x, y).coef_[0]

    def value_and_slope(w):
        margins = x @ w
        if loss == losses.SQUARED_HINGE:
            slack = np.maximum(0, 1 - y * margins)
            value, slope = slack**2, -2 * y * slack
        else:
            value, slope = np.logaddexp(0, -y * margins), -y * expit(-y * margins)
        return (
            value.mean() + 0.5 * regularisation * w @ w,
            x.T @ slope / samples + regularisation * w,
        )

    found = minimize(
        value_and_slope,
        np.zeros(features),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 100_000, "maxfun": 100_000, "ftol": 1e-15, "gtol": 1e-9, "maxcor": 50},
    )
    return found.x
