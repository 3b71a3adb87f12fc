"""Which copies of a value count as different: the same ones in the clear and under each seal."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_array

from federations import BINARY, block
from intarsia.core.client_functions import SecretKey
from intarsia.core.schema import Schema
from intarsia.engines.simulation import Simulation
from intarsia.errors import RefusedError
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.settings import Privacy
from intarsia.protocols import preprocessing
from intarsia.protocols.preprocessing import agreement

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


@pytest.mark.parametrize("owners", [2, 3, 16, 400])
def test_digits_of_totals_are_how_many_lack_each_value(owners):
    rng = np.random.default_rng(0)
    marks = rng.random((owners, 23, 50)) < 0.5
    marks[:, 0] = True  # the largest digit
    total = sum(agreement._packed(each, owners) for each in marks)
    assert len(total) < 23
    assert total.max() <= 2.0 ** (agreement._BITS - 1) * owners  # as those of words
    found = agreement._unpacked(total, 23, owners)
    np.testing.assert_array_equal(found, marks.sum(axis=0))


def test_columns_lack_a_value_where_it_is_of_a_shared_row():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2 * ROWS, 7)), np.ones(2 * ROWS)
    x[3, 4] = x[ROWS + 5, 2] = np.nan  # of a row of a and b, of one of c alone
    columns, first, second = range(7), range(ROWS), range(ROWS, 2 * ROWS)
    blocks = {
        "a": block(x, y, first, columns),
        "b": block(x, y, first, columns, labels=False),
        "c": block(x, y, second, columns),
    }
    schema = Schema.of(blocks, BINARY)
    find_lacking, count_copies, *_ = agreement._copies(schema, "train")
    engine = Simulation({"train": (schema, blocks)}, 0)
    states = {name: preprocessing.initial(name, engine.block(name)) for name in engine.ids}
    asked, key = agreement.AskLacking(), SecretKey(bytes(32))
    found = [find_lacking.call(states[n], engine.block(n), asked, key)[1] for n in engine.ids]
    total = sum(each.columns for each in found)
    assert total.tolist() == [[0, 0, 0, 0, 2, 0, 0]]
    told = agreement.SharedFeatures(0, total)
    for name in engine.ids:
        _, marks = count_copies.call(states[name], engine.block(name), told, None)
        assert marks.lacking.shape == (1, ROWS)
        assert np.flatnonzero(marks.lacking[0]).tolist() == ([3] if name in "ab" else [])


@pytest.mark.parametrize("mode", MODES)
def test_an_owner_without_a_row_of_a_part_compares_nothing(mode):
    x, y = wide()
    x[3, 4] = np.nan
    blocks = held([x, x], y)
    blocks["empty"] = block(x, y, [], range(x.shape[1]))
    assert noted(blocks, mode) == ()


def test_copies_are_compared_once_and_by_the_marks_of_their_own_columns():
    x, y = wide()
    x[3, 4] = np.nan
    y = np.ones(ROWS)
    blocks = held([x, x], y)
    schema = Schema.of(blocks, BINARY)
    engine = Simulation({"train": (schema, blocks)}, 0)
    name, own = "c000", engine.block("c000")
    _, count_copies, compare_copies = agreement._copies(schema, "train")
    lacking = np.zeros((1, x.shape[1]))
    lacking[0, 4] = 2.0
    state = preprocessing.initial(name, own)
    marks = np.zeros((1, ROWS))
    marks[0, 3] = 2.0
    message = agreement.CopiedTotals(0, lacking, marks, np.zeros((2, x.shape[1])))
    with pytest.raises(RefusedError, match="by the marks of another"):
        compare_copies.call(state, own, message, None)
    state, _ = count_copies.call(state, own, agreement.SharedFeatures(0, lacking), None)
    once, _ = compare_copies.call(state, own, message, None)
    twice, _ = compare_copies.call(once, own, message, None)
    assert once.observed["train"][3, 4] == 0
    np.testing.assert_array_equal(once.observed["train"], twice.observed["train"])
