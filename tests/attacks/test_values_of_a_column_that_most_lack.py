"""A column of which a client has few values, as of a rare test: means and scales told these.

All that have a column open how many values it has over the federation, their sum, and that of their
squares. A client that follows the algorithm takes its own off: of one value of the others' it had
that, and of two both. So do the weights of the first step of training: at weights of zero each row
adds half of itself, by the side of its label.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from federations import BINARY
from intarsia.algorithms.hyfdca.newton import server as newton
from intarsia.core.block import Block
from intarsia.core.schema import Schema
from intarsia.engines.simulation import Simulation
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.settings import Privacy
from intarsia.protocols import preprocessing
from intarsia.protocols.preprocessing import standardisation
from intarsia.testing.toy_federations import initialise, secrets_of
from intarsia.training.registry import algorithm_named

ROWS = 40


def tables(values):
    """Return the blocks of the bank and the clinic, which has values of the second column."""
    rng, blocks = np.random.default_rng(0), {}
    for number, name in enumerate(("bank", "clinic")):
        x = rng.normal(10.0, 3.0, size=(ROWS, 2))
        if name == "clinic":
            x[:, 1] = np.nan
            x[: len(values), 1] = values
        y = np.where(rng.random(ROWS) < 0.5, 1.0, -1.0)
        blocks[name] = Block(100 * number + np.arange(ROWS), ("age", "lab"), x, y)
    return blocks


def engine_of(blocks):
    """Return an engine over blocks whose sums are masked."""
    schema, settings = Schema.of(blocks, BINARY), Privacy(mode="masked")
    keys = modes.keys(settings, schema.clients, None, "t")
    sealing = modes.sealing(settings, schema.clients, keys)
    return Simulation({"train": (schema, blocks)}, 0, sealing, secrets=secrets_of(blocks))


def prepared(blocks, *, standardise=True):
    """Return the blocks that train."""
    engine = engine_of(blocks)
    schema = engine.schema("train")
    engine.make_states(lambda name: preprocessing.initial(name, engine.block(name), schema))
    preprocessing.prepare(engine, {"train": schema}, standardise=standardise)
    states = engine.get_states()
    return {
        name: preprocessing.prepared(states[name], "train", engine.block(name)) for name in blocks
    }


def trained(blocks, monkeypatch):
    """Return what the bank opens beside its own of λN times the weights of the first step."""
    found, measure = [], newton.measure_point

    def looked(point, block, message, rng):
        if block.samples[0] == 0:
            total = point.options.ridge * point.samples * np.asarray(message.w)
            found.append((total - point.alpha @ block.x)[0])
        return measure.call(point, block, message, rng)

    monkeypatch.setattr(newton, "measure_point", replace(measure, call=looked))
    algorithm = algorithm_named("hyfdca")
    options = algorithm.hyperparameters(loss="logistic", method="newton")
    engine = engine_of(blocks)
    engine.begin_round(1)
    algorithm.round(initialise(algorithm, options, engine), engine, engine.key())
    return found[0]


def opened(values, monkeypatch):
    """Return what the bank opens of the clinic's column beside its own: count, sum, squares.

    The clinic has the given values of it, of 40 rows.
    """
    blocks, found = tables(values), {}
    settle = standardisation.settle_scale.call

    def looked(state, block, message, rng):
        if block.samples[0] < 100:
            mean = state.mean[1]
            sums = standardisation._of_units(message.squares)[1]
            found["count"] = message.count[0, 1]
            found["sum"] = found["count"] * mean
            found["squares"] = sums + found["count"] * mean**2
        return settle(state, block, message, rng)

    fn = replace(standardisation.settle_scale, call=looked)
    monkeypatch.setattr(standardisation, "settle_scale", fn)
    prepared(blocks)
    own = blocks["bank"].x[:, 1]
    return found["count"] - ROWS, found["sum"] - own.sum(), found["squares"] - (own**2).sum()


@pytest.mark.parametrize("values", [[7.25], [7.25, 31.5], [7.25, 31.5, 4.0, 9.0]])
def test_moments_tell_no_value_of_a_column_that_most_rows_lack(values, monkeypatch):
    np.testing.assert_allclose(opened(values, monkeypatch), 0.0, atol=1e-6)


def test_moments_are_of_five_values_and_more(monkeypatch):
    values = np.array([7.25, 31.5, 4.0, 9.0, 1.0])
    found = opened(values, monkeypatch)
    np.testing.assert_allclose(found, [5, values.sum(), (values**2).sum()], atol=1e-6)


@pytest.mark.parametrize("standardise", [True, False])
@pytest.mark.parametrize("values", [[7.25], [7.25, 31.5, 4.0, 9.0], [7.25, 31.5, 4.0, 9.0, 1.0]])
def test_weights_tell_no_value_of_a_column_that_most_rows_lack(values, standardise, monkeypatch):
    blocks = tables(values)
    ready = prepared(blocks, standardise=standardise)
    _, told = trained(ready, monkeypatch)
    count, y = len(values), blocks["clinic"].y
    own = np.zeros(count)
    if count == 5:  # with the other's each has a mean and a deviation
        lab = blocks["bank"].x[:, 1]
        every = np.append(lab, values)
        own = (values - every.mean()) / every.std() if standardise else np.array(values)
    np.testing.assert_allclose(told, own @ y[:count] / 2, atol=1e-6)


@pytest.mark.parametrize("alone", [1, 4, 5])
def test_weights_tell_no_few_rows_that_one_has_beside_those_of_both(alone, monkeypatch):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(ROWS + alone, 2)), np.where(rng.random(ROWS + alone) < 0.5, 1.0, -1.0)
    rows = np.arange(ROWS + alone)
    blocks = {
        "bank": Block(rows[:ROWS], ("age", "lab"), x[:ROWS], y[:ROWS]),
        "clinic": Block(rows, ("age", "lab"), x, y),
    }
    told = trained(prepared(blocks, standardise=False), monkeypatch)
    told = told - (y[:ROWS] / 2) @ (x[:ROWS] / 2)  # of what both have each adds a half
    np.testing.assert_allclose(told, y[ROWS:] @ x[ROWS:] / 2 * (alone == 5), atol=1e-6)
