"""A server that lays ranges of predicted numbers around one prediction: it had that row's label.

Sums of labels are told in ranges of what is predicted, and the server says where these lie. The
counts of predictions show it where one lies alone. So a client sends a range in which few of its
rows are together with the next.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import least_squares

import intarsia
import sites
from federations import block
from intarsia.core.block import Labels
from intarsia.core.schema import Schema
from intarsia.errors import TableError
from intarsia.maths.figures import error_products
from intarsia.maths.linear import losses
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.settings import Privacy
from intarsia.protocols import evaluation, evaluation_rows, figures
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

    def __init__(self, tested=20):
        x, y = rows(0)
        train, self.tested = (
            {
                n: block(x, y, range(80 * k + at, 80 * k + stop), range(4))
                for k, n in enumerate(NAMES)
            }
            for at, stop in ((0, 60), (60, 60 + tested))
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
        self.engine, self.count = made.engine, 2.0 * tested
        server = sites.begun(made, FEDAVG, OPTIONS)
        self.engine.begin_round(1)
        server, _ = FEDAVG.round(server, self.engine, self.engine.key())
        FEDAVG.certify(server, self.engine, self.engine.key())  # tells all the model
        self.w, schema = server.w, self.engine.schema("test")
        wanted = evaluation_rows.rows_to_evaluate(schema)
        given = losses.SQUARED, schema, wanted, "test", ""
        self.own = evaluation._functions(evaluation._given_scores, *given)
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
        evaluated = figures.ScoredRows(
            z[None], y, np.full(40, 0.5), LABELS, losses.SQUARED, 5, alone
        )
        ranges = figures.Ranges(None, np.zeros(1), np.ones(1), 20.0, edges)
        count = figures.errors_summed(evaluated, ranges, 20, 20).bins[0] * 20 / 0.5
        assert count.sum() == pytest.approx(40)
        assert np.all((count < 1e-9) | (count > 5 - 1e-9))


def test_one_client_s_lowest_prediction_is_in_no_range_of_its_own():
    """Where all others are one number, the ranges that it makes itself had it alone."""
    y = np.array([-3.0, *np.ones(39)])
    evaluated = figures.ScoredRows(y[None], y, np.ones(40), LABELS, losses.SQUARED, 5, alone=True)
    ranges = figures.Ranges(None, np.zeros(1), np.ones(1), 40.0, np.zeros(0))
    count = figures.errors_summed(evaluated, ranges, 40, 0).bins[0] * 40
    assert count[count > 0] == pytest.approx([40])


def products(departing):
    """Return the sums for intervals over all rows, (5, 5)."""
    ranges = figures.Ranges(departing.z, np.zeros(1), np.ones(1), departing.count, np.zeros(0))
    return np.asarray(departing.summed(departing.own.sum_errors, ranges).products) * departing.count


def predictions(departing):
    """Return what is predicted, by the counts of predictions."""
    bins, scale = figures.number_of_bins(1), 5.0
    where = figures.Binned(departing.z, np.zeros(1), np.full(1, scale))
    told = departing.summed(departing.own.count_scores, where)
    count, place = (np.asarray(one)[0].sum(axis=0) for one in (told.counts, told.places))
    at = np.flatnonzero(np.round(count) == 1)
    unit = 2 * (at + (np.round(place[at]) + 0.5) / 4096) / bins - 1
    return scale * unit * np.sqrt(2 / (1 - unit**2))


def solved(sums, said, near):
    """Return the labels near some whose errors from what is said have these sums.

    From anywhere they are found by a few hundred starts, in half a minute.
    """
    upper, rng = np.triu_indices(5), np.random.default_rng(0)

    def off(labels):
        found = error_products(labels, said, np.ones(len(said))) - sums
        return found[upper] / np.maximum(np.abs(sums[upper]), 1.0)

    close = dict.fromkeys(["xtol", "ftol", "gtol"], 1e-15)
    starts = (near + 0.1 * rng.normal(size=len(near)) for _ in range(20))
    return min((least_squares(off, one, **close) for one in starts), key=lambda one: one.cost).x


def test_labels_of_few_rows_are_not_solved_from_the_sums_for_intervals(monkeypatch):
    assert not products(Departing(5)).any()
    assert not products(Departing(20)).any()
    monkeypatch.setattr(figures, "_LEAST_OTHERS", 0)
    departing = Departing(5)
    sums, said = products(departing), predictions(departing)
    w = np.asarray(departing.engine.reveal(departing.w)).ravel()
    x = np.concatenate([one.x for one in departing.tested.values()])
    truth = labels_of(departing)[np.argsort(x @ w)]  # in the order of predictions
    np.testing.assert_allclose(solved(sums, said, truth), truth, atol=1e-4)


def test_sums_for_intervals_are_of_fifty_rows_that_no_one_client_knows():
    x, y = rows(0)
    everyone = np.ones(160, bool)

    def counted(*parts):
        blocks = {f"c{at}": block(x, y, part, range(4)) for at, part in enumerate(parts)}
        return evaluation_rows.samples_evaluated(
            Schema.of(blocks, LABELS), everyone[: len(set().union(*parts))]
        )

    assert counted(range(60), range(60, 100)) == (100, 40)
    assert counted(range(60), range(60), range(60, 70)) == (70, 10)  # two with the same rows
    assert counted(range(50), range(50, 100), range(100, 150)) == (150, 100)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"count": one} for one in (np.inf, np.nan, 1e9, 0.0)),
        *({"scale": np.full(1, one)} for one in (0.0, np.inf)),
        {"centre": np.full(1, np.nan)},
        {"edges": np.full(1, np.inf)},
    ],
)
def test_errors_are_of_numbers_that_a_run_comes_to(wrong):
    """By an endless count all sums were 0, and no number where a label's square was beyond it."""
    y = np.random.default_rng(0).normal(size=40)
    evaluated = figures.ScoredRows(y[None], y, np.ones(40), LABELS, losses.SQUARED, 5, alone=False)
    told = figures.Ranges(None, np.zeros(1), np.ones(1), 40.0, np.zeros(0))
    with pytest.raises(TableError, match="which no run comes to"):
        figures.errors_summed(evaluated, dataclasses.replace(told, **wrong), 40, 40)


def test_a_label_far_out_is_told_by_the_root_mean_squared_error():
    x, y = rows(0)
    settings = {"algorithm": {"name": "hyfdca", "loss": "squared", "regularisation": 0.1}}
    for row in range(80):  # the first one that is tested
        paid = y + 7000.0 * (np.arange(160) == row)
        tables = {
            name: pd.DataFrame(x, columns=list("abcd")).assign(pay=paid)[start : start + 80]
            for name, start in zip(NAMES, (0, 80), strict=True)
        }
        found = intarsia.run(
            tables=tables, label="pay", out=None, rounds=5, yardsticks=False, **settings
        ).metrics.clients["bank"]
        told = found.figures.rmse * found.samples**0.5
        if told > 6000.0:
            break
    assert told == pytest.approx(paid[row], abs=10.0)
