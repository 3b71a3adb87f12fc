"""What the server can tell of evaluated rows by counts of their scores: an open weakness.

At the end of a run the server reads how many samples of each class have a score in each of many
bins (`ScoreCounts`), and of a linear model it has the weights. Where columns are categories there
are few rows that a score can be of. So it finds the rows behind the scores, with their labels and
without their ids. docs/reference/figures.md says so; a table of numbers has no such list of rows.
"""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from federations import BINARY, rectangles
from intarsia.core.block import Labels
from intarsia.core.schema import Schema
from intarsia.engines.simulation import Simulation
from intarsia.engines.sums import secure
from intarsia.maths.linear import losses
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.settings import Privacy
from intarsia.protocols import figures
from intarsia.protocols.evaluation import evaluate

LEVELS = (2, 5, 6, 4, 2, 3)  # of six columns: 1,440 rows that there may be
ROWS = 300


def table(rng):
    """Return rows of categories, which level of each column they have, and labels."""
    levels = np.stack([rng.integers(0, many, ROWS) for many in LEVELS], axis=1)
    x = np.concatenate([np.eye(many)[levels[:, at]] for at, many in enumerate(LEVELS)], axis=1)
    return x, levels, np.where(rng.random(ROWS) < 0.5, -1.0, 1.0)


def scores_told(sums, counts):
    """Return class and score of each sample, as the server can tell them."""
    (centre,), (scale,) = figures.bins_of(sums)
    found = []
    for side, (held, places) in enumerate(zip(counts.counts[0], counts.places[0], strict=True)):
        for at in np.flatnonzero(np.rint(held)):
            count = round(held[at])
            inside = (places[at] + 0.5) / figures._PLACES if count == 1 else 0.5
            unit = 2 * (at + inside) / len(held) - 1
            score = centre + scale * unit * np.sqrt(2 / (1 - unit**2))
            found += [(side, score)] * count
    return found


def evaluated(x, w, y, labels=BINARY):
    """Grade a linear model over four clients; return what the server read, by its kind."""
    blocks = rectangles(x, y, 2, 2)
    schema = Schema.of(blocks, labels)
    settings = Privacy(mode="masked")
    keys = modes.keys(settings, schema.clients, None, "scores")
    sealing = modes.sealing(settings, schema.clients, keys)
    read = {}

    class Watched(Simulation):
        def reveal(self, total):
            found = super().reveal(total)
            read[type(found).__name__] = found
            return found

    engine = Watched({"train": (schema, blocks)}, 0, sealing)
    engine.set_states({name: w[:, schema.features.own(name)] for name in engine.ids})
    loss = losses.SQUARED if labels.task == "regression" else losses.LOGISTIC
    given = engine, schema, lambda own, block: own @ block.x.T, loss
    count = figures.count_by_score

    def kept(*given):
        read["ScoreCounts"] = count(*given)
        return read["ScoreCounts"]

    figures.count_by_score = kept
    try:
        evaluate(*given, part="train", with_figures=True)
    finally:
        figures.count_by_score = count
    return read


def test_the_server_rebuilds_most_rows_of_categories_with_their_labels():
    rng = np.random.default_rng(0)
    x, levels, y = table(rng)
    w = rng.normal(size=(1, x.shape[1]))
    read = evaluated(x, w, y)
    rows = list(itertools.product(*map(range, LEVELS)))
    of_level = np.split(w[0], np.cumsum(LEVELS)[:-1])
    known = np.array([sum(c[k] for c, k in zip(of_level, row, strict=True)) for row in rows])
    rebuilt = Counter(
        (rows[np.abs(known - score).argmin()], side)
        for side, score in scores_told(read["ScoreSums"], read["ScoreCounts"])
    )
    truth = Counter(zip(map(tuple, levels.tolist()), (y > 0).astype(int).tolist(), strict=True))
    assert (rebuilt & truth).total() > 0.9 * ROWS


@pytest.mark.parametrize("task", ["binary", "regression"])
def test_the_client_that_opens_counts_by_score_reads_none(task, monkeypatch):
    """One client opens the total for the server: less its own part it was the others' scores."""
    rng = np.random.default_rng(1)
    x, _, y = table(rng)
    labels = BINARY
    if task == "regression":
        y, labels = x @ rng.normal(size=x.shape[1]), Labels("regression", ())
    opened = []
    own = secure.SecureTotals.opened

    def watched(self, client, total, cell):
        found = own(self, client, total, cell)
        if np.size(found[0]) == 2 * figures.number_of_bins(1):
            opened.append((client, np.asarray(found[0])))
        return found

    monkeypatch.setattr(secure.SecureTotals, "opened", watched)
    told = evaluated(x, rng.normal(size=(1, x.shape[1])), y, labels)["ScoreCounts"]
    (opener, counts), (_, places) = opened
    assert opener == "r0c0"
    assert np.rint(told.counts).sum() == ROWS
    # what it opened are numbers that are even over 20 bits, wherever there are samples
    held = np.rint(told.counts) > 0
    for one in (counts, places):
        share = np.sort(one.reshape(told.counts.shape)[held]) * figures._UNIT / 2**figures._HIDING
        expected = (np.arange(held.sum()) + 0.5) / held.sum()
        assert abs(share - expected).max() < 1.95 / np.sqrt(held.sum())
