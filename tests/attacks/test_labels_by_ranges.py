"""A server that lays ranges of predicted numbers around one prediction: it had that row's label.

Sums of labels are told in ranges of what is predicted, and the server says where these lie. The
counts of predictions show it where one lies alone. So a client sends a range in which few of its
rows are together with the next.
"""

from __future__ import annotations

import numpy as np
import pytest

import sites
from federations import block
from intarsia.core.block import Labels
from intarsia.maths.linear import losses
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.settings import Privacy
from intarsia.protocols import evaluation, figures
from intarsia.training.registry import ALGORITHMS
from intarsia.training.setup import declare_exchanges

FEDAVG = ALGORITHMS["fedavg"]
OPTIONS = FEDAVG.hyperparameters(loss="squared", regularisation=0.1)
NAMES = ["bank", "shop"]
KEYS = modes.keys(Privacy(mode="masked"), ("bank",), None, "test")
LABELS = Labels("regression")


def rows(seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(160, 4))
    return x, x @ [3.0, -1.0, 0.5, 0.0] + rng.normal(size=160)


class Departing:
    """A server that trains once, and then asks for errors in ranges that it likes."""

    def __init__(self):
        x, y = rows(0)
        train, self.tested = (
            {
                n: block(x, y, range(80 * k + at, 80 * k + stop), range(4))
                for k, n in enumerate(NAMES)
            }
            for at, stop in ((0, 60), (60, 80))
        )
        made = sites.federation(
            *(FEDAVG, OPTIONS, train, LABELS),
            complete=True,
            tested=self.tested,
            sealing=lambda: modes.sealing(Privacy(mode="masked"), NAMES, KEYS),
            more=lambda schemas: declare_exchanges(FEDAVG, OPTIONS, schemas)[
                len(FEDAVG.disclosure.sends) :
            ],
        )
        self.engine = made.engine
        server = sites.begun(made, FEDAVG, OPTIONS)
        self.engine.begin_round(1)
        server, _ = FEDAVG.round(server, self.engine, self.engine.key())
        FEDAVG.certify(server, self.engine, self.engine.key())  # tells all the model
        schema = self.engine.schema("test")
        wanted = evaluation.rows_to_grade(schema)
        given = losses.SQUARED, schema, wanted, "test", ""
        self.own = evaluation._grading(evaluation._given_scores, *given)
        score = evaluation._partial_scores(FEDAVG.model.predict, schema, "test")
        self.z = self.engine.sum(score, dict.fromkeys(NAMES, evaluation.Ask())).z

    def summed(self, function, message):
        return self.engine.reveal(self.engine.sum(function, dict.fromkeys(NAMES, message)))

    def bins(self):
        """Return the bin of each prediction, (bins,) in ascending order."""
        where = figures.Binned(self.z, np.zeros(1), np.ones(1))
        told = np.asarray(self.summed(self.own.count_scores, where).counts)[0].sum(axis=0)
        return np.flatnonzero(np.round(told) == 1)

    def errors(self, edges):
        """Return how many rows, and which mean of the labels, each range has."""
        ranges = figures.Ranges(self.z, np.zeros(1), np.ones(1), 40.0, edges)
        found = np.asarray(self.summed(self.own.sum_errors, ranges).bins) * 40
        count = np.round(found[0])
        return count, found[2] / np.maximum(count, 1)


def labels_of(departing):
    return np.concatenate([one.y for one in departing.tested.values()])


def read_labels(departing):
    """Return the labels of the rows with the nine lowest predictions, by ranges of one each."""
    count, labels = departing.errors(departing.bins()[:9] + 1.0)
    return labels[:9][count[:9] == 1]


def test_no_label_is_read_by_a_range_of_one_prediction(monkeypatch):
    departing = Departing()
    assert len(read_labels(departing)) == 0
    monkeypatch.setattr(figures.figures, "merged_bins", lambda sums, least: sums)
    departing = Departing()
    found = read_labels(departing)
    assert len(found) == 9
    off = np.abs(found[:, None] - labels_of(departing)).min(axis=1)
    np.testing.assert_allclose(off, 0.0, atol=1e-5)


@pytest.mark.parametrize("seed", range(8))
def test_each_range_is_of_none_or_of_five_rows_of_each_client(seed):
    """Else a client that works with the server takes its own rows away from it."""
    rng = np.random.default_rng(seed)
    y = rng.normal(size=40)
    many = rng.integers(1, 10)
    edges = np.sort(rng.integers(1, 32_768, many)).astype(float)
    for alone in (False, True):
        z = np.round(y, 1) if alone else y  # ties, where it makes its own ranges
        graded = figures.Graded(z[None], y, np.full(40, 0.5), LABELS, losses.SQUARED, 5, alone)
        ranges = figures.Ranges(None, np.zeros(1), np.ones(1), 20.0, edges)
        count = figures.errors_summed(graded, ranges).bins[0] * 20 / 0.5
        assert count.sum() == pytest.approx(40)
        assert np.all((count < 1e-9) | (count > 5 - 1e-9))


def test_one_client_s_lowest_prediction_is_in_no_range_of_its_own():
    """Where all others are one number, the ranges that it makes itself had it alone."""
    y = np.array([-3.0, *np.ones(39)])
    graded = figures.Graded(y[None], y, np.ones(40), LABELS, losses.SQUARED, 5, alone=True)
    ranges = figures.Ranges(None, np.zeros(1), np.ones(1), 40.0, np.zeros(0))
    count = figures.errors_summed(graded, ranges).bins[0] * 40
    assert count[count > 0] == pytest.approx([40])
