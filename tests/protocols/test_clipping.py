from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from federations import BINARY, rectangles, table
from intarsia.core.schema import Schema
from intarsia.engines.simulation import Simulation
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.settings import Privacy
from intarsia.protocols import preprocessing
from intarsia.protocols.differential_privacy import SLACK, clip_rows, clipped


def clip_all(blocks, clip, *, mode="plain"):
    """Return the pooled table before and after clipping, and the engine."""
    schema = Schema.of(blocks, BINARY)
    settings = Privacy(mode=mode)
    keys = modes.keys(settings, schema.clients, None, "test")
    sealing = None if keys is None else modes.sealing(settings, schema.clients, keys)
    engine = Simulation({"train": (schema, blocks)}, 0, sealing)
    engine.set_states(
        {name: preprocessing.initial(name, engine.block(name)) for name in engine.ids}
    )
    preprocessing.prepare(engine, {"train": schema}, standardise=False)
    states = engine.get_states()
    engine.transform(lambda name, part, one: preprocessing.prepared(states[name], part, one))
    before = pooled(engine)
    clip_rows(engine, clip)
    after = engine.get_states()
    engine.transform(lambda name, part, one: clipped(after[name], part, one))
    return before, pooled(engine), engine


def pooled(engine):
    schema = engine.schema("train")
    total = np.zeros((len(schema.samples), len(schema.features)))
    for name in schema.clients:
        once = engine.block(name).counted_once().x
        values = once if isinstance(once, np.ndarray) else once.toarray()
        total[np.ix_(schema.samples.own(name), schema.features.own(name))] += values
    return total


@given(
    rows=st.integers(1, 3),
    columns=st.integers(1, 3),
    more=st.integers(0, 4),
    wider=st.integers(0, 2),
    gaps=st.booleans(),
    sparse=st.booleans(),
    clip=st.sampled_from([0.01, 1.0, 2.5, 100.0]),
)
def test_rows_are_within_the_bound_and_keep_their_direction(
    rows, columns, more, wider, gaps, sparse, clip
):
    x, y = table(30)
    if sparse:
        x = csr_array(np.where(abs(x) > 0.5, x, 0.0))
    elif gaps:
        x[np.random.default_rng(1).random(x.shape) < 0.2] = np.nan
    blocks = rectangles(x, y, rows, columns, shared_rows=more, shared_columns=wider)
    before, after, _ = clip_all(blocks, clip)
    norms = np.linalg.norm(before, axis=1)
    assert np.linalg.norm(after, axis=1).max() <= clip
    expected = before * np.minimum(1, clip / np.maximum(norms, 1e-12))[:, None]
    assert after == pytest.approx(expected, rel=SLACK, abs=1e-12)


def test_rows_within_the_bound_stay_as_they_are():
    x, y = table(30)
    before, after, _ = clip_all(rectangles(x, y, 2, 2), 1e3)
    assert (before == after).all()


def test_different_copies_stay_within_the_bound():
    x, y = table(20)
    blocks = rectangles(x, y, 1, 2, shared_columns=2)
    other = blocks["r0c1"]
    blocks["r0c1"] = type(other)(other.samples, other.features, other.x + 3.0, other.y)
    _, after, _ = clip_all(blocks, 0.5)
    assert np.linalg.norm(after, axis=1).max() <= 0.5


@pytest.mark.parametrize("mode", ["masked", "ckks"])
def test_sealed_norms_do_not_let_a_row_out_of_the_bound(mode):
    x, y = table(40)
    before, after, _ = clip_all(rectangles(x, y, 2, 2, shared_rows=3), 1.0, mode=mode)
    norms = np.linalg.norm(after, axis=1)
    assert norms.max() <= 1.0
    assert norms[np.linalg.norm(before, axis=1) > 1].min() > 1 - 2 * SLACK
