"""Two clients are evaluated, and one is away at the end: totals over "all" were the other's alone.

The server read how many of its rows are of each class, though few are of one, and bins of
calibration with a single row: how probable the model has it, and whether it is right.
"""

from __future__ import annotations

import numpy as np
import pytest

from federations import BINARY, block, table
from intarsia.core.block import Labels
from intarsia.core.schema import Schema
from intarsia.engines.simulation import Simulation
from intarsia.maths.linear import losses
from intarsia.protocols import evaluation
from intarsia.protocols.evaluation_rows import LEAST_ROWS

X, _ = table(60, 4)
Y = np.where(np.arange(60) % 20 == 7, -1.0, 1.0)  # one of a's rows is of the first class


def last_metrics(there, labels=BINARY, loss=losses.LOGISTIC, **how):
    """Return the metrics over those that are there, and the totals that the server opened."""
    blocks = {
        name: block(X, Y, rows, range(4)) for name, rows in (("a", range(20)), ("b", range(20, 60)))
    }
    schema = Schema.of(blocks, labels)
    engine = Simulation({"train": (schema, blocks)}, 0)
    engine.make_states(lambda name: None)
    engine.begin_round(1, there)
    opened, reveal = [], engine.reveal

    def listening(total):
        opened.append(reveal(total))
        return opened[-1]

    engine.reveal = listening
    found, _ = evaluation.evaluate(
        *(engine, schema, lambda _, one: X[0][None] @ one.x.T, loss),
        part="train",
        **(how or {"with_figures": True}),
    )
    return found, opened


def test_no_total_is_of_the_one_that_is_left():
    found, opened = last_metrics(["a"])
    assert not opened
    assert found.samples == 20
    assert found.figures.confusion is None
    assert found.figures.calibration is None
    assert found.figures.brier is not None  # as the client tells it


def test_of_both_counts_are_told():
    found, opened = last_metrics(["a", "b"])
    assert len(opened) == 3
    assert np.sum(found.figures.confusion) == 60


def test_in_training_no_total_is_told_where_one_is_away():
    found, opened = last_metrics(["a"], totals_only=True)
    assert found is None
    assert not opened


def test_of_numbers_it_is_so_too():
    found, opened = last_metrics(["a"], Labels("regression"), losses.SQUARED)
    assert not opened
    assert found.figures.rmse == pytest.approx(np.sqrt(np.mean((Y - X @ X[0])[:20] ** 2)))


def test_what_one_sends_in_company_tells_of_few_rows():
    """So no total may be of that alone."""
    blocks = {"a": block(X, Y, range(20), range(4)), "b": block(X, Y, range(20, 60), range(4))}
    schema = Schema.of(blocks, BINARY)
    sends = evaluation.sends(lambda *_: None, losses.LOGISTIC, schema, part="train", additive=True)
    named = {one.function.name: one.function for one in sends}
    message = evaluation.Totals(X[0][None] @ X[:20].T)
    own = schema.align("a", blocks["a"])
    assert named["count_classes"].call(None, own, message, None)[1].counts[0].sum() == 1
    bins = named["sum_scores"].call(None, own, message, None)[1].calibration[0]
    assert ((bins > 0) & (bins < LEAST_ROWS)).any()
