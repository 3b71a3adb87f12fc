"""Who is handed a result, or its report, reads a row off a bin of calibration that has it alone.

The bin had the row's probability to all digits, and its label. Where columns are categories few
rows have that probability by the model: 24 made-up runs had 15 such bins, and they told 15 rows
with all columns and labels. Bins of fewer than five rows now go together with the next, and the
mean error over the bins is of these, too: that of the others less theirs would tell the same.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from federations import BINARY, rectangles
from intarsia.core.schema import Schema
from intarsia.engines.simulation import Simulation
from intarsia.maths import figures
from intarsia.maths.linear import losses
from intarsia.protocols.evaluation import evaluate
from intarsia.protocols.evaluation_rows import LEAST_ROWS
from intarsia.protocols.figures import ScoredRows, own_figures

LEVELS = (2, 5, 6, 4)  # of four columns: 240 rows that there may be
ROWS = 60


def runs():
    """Yield rows of categories as levels, weights, their scores and labels."""
    for seed in range(24):
        rng = np.random.default_rng(seed)
        levels = np.stack([rng.integers(0, many, ROWS) for many in LEVELS], axis=1)
        w = rng.normal(size=sum(LEVELS))
        yield levels, w, np.where(rng.random(ROWS) < 0.5, -1.0, 1.0)


def one_hot(levels):
    return np.concatenate([np.eye(many)[levels[:, at]] for at, many in enumerate(LEVELS)], axis=1)


def evaluated(levels, w, y):
    """Return the figures over all samples of two clients with labels."""
    x = one_hot(levels)
    blocks = rectangles(x, y, 2, 1)
    schema = Schema.of(blocks, BINARY)
    engine = Simulation({"train": (schema, blocks)}, 0)
    engine.set_states({name: w[None, schema.features.own(name)] for name in engine.ids})
    given = engine, schema, lambda own, block: own @ block.x.T, losses.LOGISTIC
    return evaluate(*given, part="train", with_figures=True)[0].figures


def told(found, levels, w, y):
    """Return how many bins had one row, and of how many of these its columns and label are told."""
    every = np.array(list(itertools.product(*map(range, LEVELS))))
    chance = 1 / (1 + np.exp(-one_hot(every) @ w))
    single = [one for one in found.calibration if round(one.samples) == 1]
    right = 0
    for one in single:
        guess = every[np.abs(chance - one.probability).argmin()]
        mine = (levels == guess).all(axis=1)
        right += bool(mine.any() and (y[mine] == (1.0 if one.share > 0.5 else -1.0)).all())
    return len(single), right


def test_no_bin_of_a_result_has_few_rows():
    for given in runs():
        found = evaluated(*given)
        assert all(one.samples > LEAST_ROWS - 1e-6 for one in found.calibration)
        assert sum(one.samples for one in found.calibration) == pytest.approx(ROWS)
        gaps = [one.samples * abs(one.share - one.probability) for one in found.calibration]
        assert found.calibration_error == pytest.approx(sum(gaps) / ROWS)


def test_without_that_rule_bins_tell_rows_with_their_labels(monkeypatch):
    monkeypatch.setattr(figures, "merged_bins", lambda sums, least: sums)
    single, right = np.sum([told(evaluated(*given), *given) for given in runs()], axis=0)
    assert (single, right) == (15, 15)


def between(found):
    """Return how many samples lie between any two places that a result cuts, and the positives."""
    true, false = np.array(found.curves[0]).T
    bins = np.array([(one.samples, one.samples * one.share) for one in found.calibration[::-1]])
    cuts = np.vstack([[0, 0], np.transpose([true + false, true]).cumsum(axis=0)])
    said = np.array(found.confusion)[:, 1]
    every = np.vstack([cuts, bins.cumsum(axis=0), [said.sum(), said[1]]])
    return np.diff(np.unique(np.round(every), axis=0), axis=0).T


def test_no_table_of_a_result_less_another_is_of_few_rows():
    """But for a side of the threshold with few rows, which the confusion alone counts."""
    for given in runs():
        found = evaluated(*given)
        sides = np.array(found.confusion).sum(axis=0)
        few = sides[(sides > 0) & (sides < LEAST_ROWS)]
        counts, _ = between(found)
        assert sorted(counts[counts < LEAST_ROWS]) == sorted(few)
        assert counts.sum() == pytest.approx(ROWS)


def test_without_cuts_in_common_tables_tell_labels_by_the_rank_of_a_row(monkeypatch):
    """Of 24 runs with 60 rows each 47 labels: a curve's range less a bin was one row."""
    monkeypatch.setattr(figures, "cuts_of", lambda confusion, calibration: ())
    monkeypatch.setattr(
        figures, "merged_calibration", lambda sums, least, classes: figures.merged_bins(sums, least)
    )
    single = right = 0
    for levels, w, y in runs():
        ranked = y[np.argsort(-(one_hot(levels) @ w), kind="stable")]
        counts, positive = between(evaluated(levels, w, y))
        ends = counts.cumsum().astype(int)
        single += int((counts == 1).sum())
        right += int(((ranked[ends - 1] > 0) == (positive == 1))[counts == 1].sum())
    assert (single, right) == (47, 47)


def test_what_one_client_tells_of_its_own_rows_is_of_such_bins():
    """The mean error is one number at full precision: of a bin with one row it has that row."""
    levels, w, y = next(runs())
    scores = (one_hot(levels) @ w)[None]
    scored = ScoredRows(scores, y, np.ones(ROWS), BINARY, losses.LOGISTIC, LEAST_ROWS, False, None)
    sums = scored.calibration()[0]
    assert ((sums[0] > 0) & (sums[0] < LEAST_ROWS)).any()
    merged = figures.calibration_table(figures.merged_bins(sums, LEAST_ROWS))
    for counts in (False, True):
        assert own_figures(scored, counts=counts).calibration_error == merged[1]
    assert own_figures(scored).calibration == merged[0]
