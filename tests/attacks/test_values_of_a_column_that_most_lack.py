"""A column of which a client has few values, as of a rare test: means and scales told these.

All that have a column open how many values it has over the federation, their sum, and that of their
squares. A client that follows the algorithm takes its own off: of one value of the others' it had
that, and of two both.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from federations import BINARY
from intarsia.core.block import Block
from intarsia.core.schema import Schema
from intarsia.engines.simulation import Simulation
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.settings import Privacy
from intarsia.protocols import preprocessing
from intarsia.protocols.preprocessing import standardisation
from intarsia.testing.toy_federations import secrets_of

ROWS = 40


def opened(values, monkeypatch):
    """Return what the bank opens of the clinic's column beside its own: count, sum, squares.

    The clinic has the given values of it, of 40 rows.
    """
    rng, blocks = np.random.default_rng(0), {}
    for number, name in enumerate(("bank", "clinic")):
        x = rng.normal(10.0, 3.0, size=(ROWS, 2))
        if name == "clinic":
            x[:, 1] = np.nan
            x[: len(values), 1] = values
        y = np.where(rng.random(ROWS) < 0.5, 1.0, -1.0)
        blocks[name] = Block(100 * number + np.arange(ROWS), ("age", "lab"), x, y)
    schema, settings, found = Schema.of(blocks, BINARY), Privacy(mode="masked"), {}
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
    sealing = modes.sealing(
        settings, schema.clients, modes.keys(settings, schema.clients, None, "t")
    )
    engine = Simulation({"train": (schema, blocks)}, 0, sealing, secrets=secrets_of(blocks))
    engine.make_states(lambda name: preprocessing.initial(name, engine.block(name), schema))
    preprocessing.prepare(engine, {"train": schema}, standardise=True)
    own = blocks["bank"].x[:, 1]
    return found["count"] - ROWS, found["sum"] - own.sum(), found["squares"] - (own**2).sum()


@pytest.mark.parametrize("values", [[7.25], [7.25, 31.5], [7.25, 31.5, 4.0, 9.0]])
def test_moments_tell_no_value_of_a_column_that_most_rows_lack(values, monkeypatch):
    np.testing.assert_allclose(opened(values, monkeypatch), 0.0, atol=1e-6)


def test_moments_are_of_five_values_and_more(monkeypatch):
    values = np.array([7.25, 31.5, 4.0, 9.0, 1.0])
    found = opened(values, monkeypatch)
    np.testing.assert_allclose(found, [5, values.sum(), (values**2).sum()], atol=1e-6)
