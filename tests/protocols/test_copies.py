"""Which copies of a value count as different: the same ones in the clear and under each seal."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_array

from federations import BINARY, block
from intarsia.core.schema import Schema
from intarsia.engines.simulation import Simulation
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.settings import Privacy
from intarsia.protocols import preprocessing

ROWS = 100
SCALES = np.array([1e-300, 1e-7, 0.1, 1.0, 1e6, 1e12, 1e300])
MODES = ["plain", "masked", "ckks"]


def noted(blocks, mode):
    """Return what the preparation says of the copies."""
    if mode == "ckks":
        pytest.importorskip("tenseal")
    schema, sealing = Schema.of(blocks, BINARY), None
    if mode != "plain":
        settings = Privacy(mode=mode)
        keys = modes.keys(settings, schema.clients, None, "copies")
        # as if there were thousands of rows: short arrays are sealed exactly in each mode
        sealing = replace(modes.sealing(settings, schema.clients, keys), long=1)
    engine = Simulation({"train": (schema, blocks)}, 0, sealing)
    engine.set_states(
        {name: preprocessing.initial(name, engine.block(name)) for name in engine.ids}
    )
    return preprocessing.prepare(engine, {"train": schema}, standardise=False)


def wide():
    """Return a table whose columns have very different scales, and labels."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, len(SCALES))) * SCALES
    x[rng.random(x.shape) < 0.1] = 0.0
    return x, np.sign(rng.normal(size=ROWS))


def held(tables, y):
    """Return clients that hold the same samples and features, as many as tables."""
    return {
        f"c{number:03d}": block(x, y, range(ROWS), range(x.shape[1]), labels=not number)
        for number, x in enumerate(tables)
    }


@pytest.mark.parametrize("layout", [np.array, csr_array])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("column", [*range(len(SCALES)), slice(None)])
def test_equal_copies_are_not_reported_at_any_scale(mode, column, layout):
    x, y = wide()
    x = x[:, column].reshape(ROWS, -1)
    assert noted(held([layout(x)] * 3, y), mode) == ()


@pytest.mark.parametrize("mode", MODES)
def test_equal_copies_of_many_holders_are_not_reported(mode):
    x, y = wide()
    x[:, 0] = 0.1
    x[:, 1] = 3e9  # a large count
    assert noted(held([x] * 40, y), mode) == ()


@pytest.mark.parametrize("mode", MODES)
def test_copies_that_were_computed_in_another_order_are_not_reported(mode):
    x, y = wide()
    x[:, -1] = 0.0
    assert noted(held([x, x * (1 + 1e-13), x * (1 - 1e-13)], y), mode) == ()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("holders", [2, 3, 12])
@pytest.mark.parametrize("column", range(1, len(SCALES)))
def test_a_value_that_differs_is_reported_whatever_the_scale_of_its_column(mode, holders, column):
    x, y = wide()
    other = x.copy()
    other[17, column] = 0.25 * SCALES[column]  # beside values that are far larger
    other[30, column] = x[30, column] * (1 + 1e-6) + 1e-6 * SCALES[column]
    (note,) = noted(held([*[x] * (holders - 1), other], y), mode)
    assert note.startswith("2 train samples have different copies")
