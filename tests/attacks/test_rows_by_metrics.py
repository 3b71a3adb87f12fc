"""A server that evaluates models of its own factors, as often as it likes, had margins of rows.

A loss is a sum over the rows. By the losses of a model times many factors the margins of five rows
came out, and by some such models their values and labels. So each client tells its own metrics by
one model, and the metrics over all samples are told by one model for each two rows. These are of
all clients, of one model that all were told: else they were one client's.
"""

from __future__ import annotations

import contextlib
import dataclasses

import numpy as np
import pytest
from scipy.optimize import least_squares

import sites
from intarsia.algorithms.linear import fedavg
from intarsia.core.block import Block, Labels
from intarsia.core.feature_blocks import feature_blocks
from intarsia.core.schema import Schema
from intarsia.engines import codec
from intarsia.engines.remote.declared import Declared, Sums
from intarsia.engines.remote.wire import Answer, Call
from intarsia.errors import RefusedError, TableError, TamperedError
from intarsia.maths.figures import CROSS_ENTROPY
from intarsia.maths.linear import losses
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.settings import Privacy
from intarsia.protocols import early_stopping, evaluation, evaluation_rows, figures
from intarsia.training import setup
from intarsia.training.registry import ALGORITHMS
from intarsia.training.setup import declare_exchanges

FEDAVG = ALGORITHMS["fedavg"]
OPTIONS = FEDAVG.hyperparameters(
    loss="logistic", regularisation=0.1, local_steps=5, batch=20, b=0.0
)
TESTED = {"bank": 5, "shop": 20, "market": 20}
KEYS = modes.keys(Privacy(mode="masked"), ("bank",), None, "test")
FACTORS = np.linspace(0.25, 4.0, 12)


def block(first, rows, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 4)) * [1, 1, 1, 0] + [1, -1, 0.5, 1]
    y = np.where(x[:, 0] + x[:, 1] + rng.normal(size=rows) > 0, 1.0, -1.0)
    return Block(first + np.arange(rows), ("f0", "f1", "f2", "one"), x, y)


def parts(rows):
    return {name: block(10_000 * k, rows[name], k) for k, name in enumerate(rows)}


class Departing:
    """A server that trains once, and then metrics what it likes."""

    def __init__(self, tested=TESTED, *, complete=True, algorithm=FEDAVG):
        train = {n: block(10_000 * k + 5_000, 60, 10 + k) for k, n in enumerate(tested)}
        self.tested = parts(tested)
        self.made = made = sites.federation(
            *(algorithm, OPTIONS, train, Labels("binary", ("a", "b"))),
            complete=complete,
            least=min(3, len(tested)),
            tested=self.tested,
            sealing=lambda: modes.sealing(Privacy(mode="masked"), [*tested], KEYS),
            more=lambda schemas: declare_exchanges(algorithm, OPTIONS, schemas)[
                len(algorithm.disclosure.sends) :
            ],
        )
        self.engine, server = made.engine, sites.begun(made, algorithm, OPTIONS)
        server = getattr(server, "now", server)
        self.engine.begin_round(1)
        told = fedavg.Descend(server.w, 1, tuple(tested))
        self.change = self.engine.sum(fedavg.local_descent, dict.fromkeys(tested, told)).w

    def tell(self, factor, others=None):
        """Tell all the change times a factor; `others` than the bank, times another."""
        told = {
            name: fedavg.Weights(
                self.change * float(factor if others is None or name == "bank" else others)
            )
            for name in self.engine.ids
        }
        with contextlib.suppress(TamperedError):  # what they seal does not add up: none needs it
            return self.engine.sum(fedavg.part_of_scores, told)

    def evaluated(self, factor, others=None, **how):
        """Return the metrics of such models."""
        self.tell(factor, others)
        return self.metric(**how)

    def metric(self, **how):
        """Return the metrics of the models that the clients have."""
        return evaluation.evaluate(
            *(self.engine, self.engine.schema("test"), FEDAVG.model.predict, losses.LOGISTIC),
            part="test",
            **how,
        )

    def total(self, name, clients=("bank",), factor=1.0):
        """Return a total of some clients."""
        schema = self.engine.schema("test")
        wanted = evaluation_rows.rows_to_evaluate(schema)
        given = evaluation._given_scores, losses.LOGISTIC, schema, wanted, "test", ""
        own, score = evaluation._functions(*given), evaluation._partial_scores
        self.tell(factor)
        asked = score(FEDAVG.model.predict, schema, "test")
        message = evaluation.Totals(
            self.engine.sum(asked, dict.fromkeys(clients, evaluation.Ask())).z
        )
        if name == "count_scores":
            message = evaluation.Binned(message.z, np.zeros(1), np.ones(1))
        return self.engine.reveal(
            self.engine.sum(getattr(own, name), dict.fromkeys(clients, message))
        )

    def send(self, clients, function, message):
        """Call a function at some clients, and tell these that all are asked"""
        caller, found = self.made.caller, {}
        caller.sequence += 1
        for name in clients:
            base, anchor = caller.versions[name], caller._anchors[name]
            call = Call(
                *(caller.run, caller.sequence, base, anchor, 1, 1, "ask", function, "train"),
                *(tuple(self.tested), codec.encode(message)),
            )
            answer = self.made.lines.sites[name].handle(codec.encode(call))
            found[name] = codec.decode(answer, Answer).error
            caller.versions[name] = caller.sequence
        return found

    def go_back(self, clients):
        """Let some clients go on from where the round began."""
        self.made.caller.versions |= {name: self.made.caller._anchors[name] for name in clients}

    def losses(self, factor):
        """Return the sum of the losses of each client's rows by a model."""
        w = factor * np.asarray(self.engine.reveal(self.change)).ravel()
        return {n: np.logaddexp(0, -one.y * (one.x @ w)).sum() for n, one in self.tested.items()}

    def margins(self):
        """Return the sizes of the bank's margins in ascending order, by its losses alone."""
        pairs = [[self.evaluated(sign * t)[1]["bank"] for sign in (1, -1)] for t in FACTORS]
        rows = pairs[0][0].samples
        # log(1 + e^-a) + log(1 + e^a) = 2 log 2 + 2 log cosh(a/2), whatever the label
        even = [(one.loss + other.loss) * rows / 2 - rows * np.log(2.0) for one, other in pairs]

        def off(sizes):
            return (np.log(np.cosh(np.outer(FACTORS, sizes) / 2)).sum(axis=1) - even) * 1e6

        rng, best = np.random.default_rng(0), None
        for _ in range(20):
            close = dict.fromkeys(["xtol", "ftol", "gtol"], 1e-15)
            found = least_squares(off, rng.uniform(0, 2, rows), **close, max_nfev=100)
            best = found if best is None or found.cost < best.cost else best
        return np.sort(np.abs(best.x))


def test_margins_are_not_read_by_metrics_of_many_models(monkeypatch):
    departing = Departing()
    with pytest.raises(RefusedError, match=r"evaluation\.send_metrics: The site refused"):
        departing.margins()
    monkeypatch.setattr(Declared, "check_number", lambda *given: given[-1])
    departing = Departing()
    found = departing.margins()
    w = np.asarray(departing.engine.reveal(departing.change)).ravel()
    truth = np.sort(np.abs(departing.tested["bank"].x @ w))
    assert found == pytest.approx(truth, abs=1e-3)


def test_the_same_metrics_tell_nothing_new():
    departing = Departing()
    first = departing.evaluated(1.0)
    assert departing.evaluated(1.0) == first
    with pytest.raises(RefusedError):
        departing.evaluated(2.0)


def test_metrics_come_again_once_some_are_away(monkeypatch):
    departing = Departing(complete=False)
    departing.evaluated(1.0)
    monkeypatch.setattr(type(departing.engine), "ids", ("bank", "shop"))
    _, own = departing.evaluated(2.0)
    assert own.keys() == {"bank", "shop"}
    with pytest.raises(RefusedError):
        departing.evaluated(3.0)
    monkeypatch.setattr(type(departing.engine), "ids", ("bank",))
    with pytest.raises(RefusedError):  # and not for each set that is smaller
        departing.evaluated(3.0)


@pytest.mark.parametrize(
    ("tested", "most"),
    [
        # without the 20 of one that works with the server
        (TESTED, 12),
        ({"bank": 9}, 4),
        ({"bank": 5, "shop": 1000}, 2),
    ],
)
def test_totals_are_told_by_fewer_models_than_rows(tested, most):
    departing = Departing(tested)
    for factor in range(1, most + 1):
        every, own = departing.evaluated(factor / most, totals_only=True)
        assert every.samples == sum(tested.values())
        assert not own
    with pytest.raises(RefusedError, match=r"evaluation\.sum_metrics: The site refused"):
        departing.evaluated(2.0, totals_only=True)


def counted_by_class(departing, models):
    """Read the counts by class of so many models, of which no loss is told."""
    for factor in range(1, models + 1):
        departing.total("count_classes", TESTED, factor / 100)


def test_counts_by_class_are_of_the_models_whose_losses_are_told(monkeypatch):
    """Else the server reads them of as many others, and has twice as many sums over the rows."""
    departing = Departing()
    for factor in range(12):
        departing.evaluated(1 + factor / 12, totals_only=True)
    departing.total("count_classes", TESTED, 1 + 11 / 12)
    counted_by_class(departing, 1)  # as at the end of a run
    with pytest.raises(RefusedError, match=r"evaluation\.count_classes: The site refused"):
        departing.total("count_classes", TESTED, 3.0)
    assert "a metric of test" in str(departing.made.errors[-1])
    declared = setup.each
    monkeypatch.setattr(setup, "each", lambda sends, models: declared(sends, models=0))
    departing = Departing()
    for factor in range(12):
        departing.evaluated(1 + factor / 12, totals_only=True)
    counted_by_class(departing, 13)


@pytest.mark.parametrize("complete", [True, False])
def test_a_total_is_not_of_clients_that_were_told_other_models(monkeypatch, complete):
    """Where the others' model stands still, the total tells the bank's own loss."""
    departing = Departing(complete=complete)
    with pytest.raises(TamperedError):
        departing.evaluated(1.0, others=0.0, totals_only=True)
    if not complete:
        departing.evaluated(1.0, totals_only=True)  # all have the same model again
    monkeypatch.setattr(Declared, "with_told", lambda self, one, message, call, sums: sums)
    departing = Departing(complete=complete)
    total, _ = departing.evaluated(1.0, others=0.0, totals_only=True)
    w = np.asarray(departing.engine.reveal(departing.change)).ravel()
    bank = departing.tested["bank"]
    truth = np.logaddexp(0, -bank.y * (bank.x @ w)).sum()
    assert total.loss * 45 - 40 * np.log(2.0) == pytest.approx(truth, abs=1e-6)


def test_where_some_may_be_away_a_total_is_not_of_one_that_went_on_alone():
    departing = Departing(complete=False)
    z = departing.tell(1.0).z
    departing.metric(totals_only=True)
    departing.engine.begin_round(2)
    told = fedavg.Descend(departing.change, 2, ("bank",))
    departing.engine.sum(fedavg.local_descent, {"bank": told})
    with pytest.raises(TamperedError):
        departing.metric(totals_only=True)
    with contextlib.suppress(TamperedError):  # what all are told, and no model
        departing.engine.sum(fedavg.part_of_objective, fedavg.Scores(z))
    with pytest.raises(TamperedError):
        departing.metric(totals_only=True)
    departing.evaluated(1.0, totals_only=True)


def read_by_going_back():
    """Return the total where all but the bank went back to another model, and what it is then."""
    departing = Departing(complete=False)
    departing.evaluated(1.0, totals_only=True)
    departing.engine.begin_round(2)
    departing.tell(2.0)
    departing.go_back(("shop", "market"))
    total, _ = departing.metric(totals_only=True)
    return total, departing.losses(2.0)["bank"] + sum_of_others(departing.losses(1.0))


def sum_of_others(losses):
    return losses["shop"] + losses["market"]


def test_where_some_may_be_away_a_total_is_of_clients_that_went_back_together(monkeypatch):
    """Else it is of two models, and less the total of one of them it tells the bank's loss."""
    with pytest.raises(TamperedError):
        read_by_going_back()
    back = Sums.back_to

    def telling(self, sequence):
        return dataclasses.replace(back(self, sequence), told=self.told)

    monkeypatch.setattr(Sums, "back_to", telling)
    total, mixed = read_by_going_back()
    assert total.loss * 45 == pytest.approx(mixed, abs=1e-6)


def test_clients_that_went_back_together_are_evaluated_together():
    departing = Departing(complete=False)
    before, _ = departing.evaluated(1.0, totals_only=True)
    departing.engine.begin_round(2)
    departing.tell(2.0)
    departing.go_back(departing.tested)
    assert departing.metric(totals_only=True)[0] == before


@pytest.mark.parametrize("total", ["sum_metrics", "count_classes", "sum_scores", "count_scores"])
def test_where_some_may_be_away_no_total_is_of_one_client(monkeypatch, total):
    departing = Departing(complete=False)
    with pytest.raises(RefusedError):
        departing.total(total)
    assert "['bank', 'market', 'shop'] together" in str(departing.made.errors[-1])
    monkeypatch.setattr(Declared, "check_asked", lambda *given: None)
    departing = Departing(complete=False)
    found = departing.total(total)
    w = np.asarray(departing.engine.reveal(departing.change)).ravel()
    bank = departing.tested["bank"]
    if total == "sum_metrics":
        loss = np.logaddexp(0, -bank.y * (bank.x @ w)).sum() / sum(TESTED.values())
        assert found.means == pytest.approx([loss], abs=1e-6)
    elif total == "count_scores":  # its labels, in the order of the scores
        _, told = np.nonzero(np.asarray(found.counts)[0].T > 0.5)
        np.testing.assert_array_equal(2.0 * told - 1, bank.y[np.argsort(bank.x @ w)])


def test_a_total_is_of_no_others():
    """Else it were told once more without these."""
    departing = Departing({"bank": 9, "kiosk": 2}, complete=False)
    with pytest.raises(RefusedError):
        departing.total("sum_metrics", ("bank", "kiosk"))
    assert any("['bank'] together" in str(one) for one in departing.made.errors)


@pytest.mark.parametrize("name", ["sum_metrics", "count_classes", "count_scores"])
def test_metrics_of_all_are_not_by_the_scores_of_one(name):
    """The others would metric zeros, and what they add be known."""
    departing = Departing(complete=False)
    schema = departing.engine.schema("test")
    wanted = evaluation_rows.rows_to_evaluate(schema)
    given = evaluation._given_scores, losses.LOGISTIC, schema, wanted, "test", ""
    score = evaluation._partial_scores(FEDAVG.model.predict, schema, "test")
    departing.tell(1.0)
    z = departing.engine.sum(score, {"bank": evaluation.Ask()}).z
    message = evaluation.Totals(z)
    if name == "count_scores":
        message = figures.Binned(z, np.zeros(1), np.ones(1))
    function = getattr(evaluation._functions(*given), name)
    with pytest.raises(RefusedError):
        departing.engine.sum(function, dict.fromkeys(departing.tested, message))
    assert any("was not asked" in str(one) for one in departing.made.errors)


def returned_alone(complete):
    """Return the total where all but the bank went back to the best round, and what it is then."""
    departing = Departing(algorithm=early_stopping.keeping_best(FEDAVG), complete=complete)
    departing.evaluated(1.0, totals_only=True)
    departing.engine.ask(early_stopping.keep_best, early_stopping.Keep())
    departing.tell(2.0)
    others = ("shop", "market")
    back = departing.send(others, "early_stopping.return_to_best", early_stopping.Return())
    assert back == {"shop": "", "market": ""}
    total, _ = departing.metric(totals_only=True)
    return total, departing.losses(2.0)["bank"] + sum_of_others(departing.losses(1.0))


@pytest.mark.parametrize("complete", [True, False])
def test_a_total_is_of_no_clients_that_went_back_to_the_best_round_alone(monkeypatch, complete):
    with pytest.raises(TamperedError):
        returned_alone(complete)
    monkeypatch.setattr(Declared, "told_before", lambda self, fn, call, sums: "")
    total, mixed = returned_alone(complete)
    assert total.loss * 45 == pytest.approx(mixed, abs=1e-6)


@pytest.mark.parametrize("complete", [True, False])
def test_a_total_is_of_no_clients_that_kept_other_models_as_the_best(complete):
    departing = Departing(algorithm=early_stopping.keeping_best(FEDAVG), complete=complete)
    departing.tell(1.0)
    departing.send(("bank",), "early_stopping.keep_best", early_stopping.Keep())
    departing.tell(2.0)
    departing.send(("shop", "market"), "early_stopping.keep_best", early_stopping.Keep())
    departing.engine.ask(early_stopping.return_to_best, early_stopping.Return())
    with pytest.raises(TamperedError):
        departing.metric(totals_only=True)


def test_a_site_that_keeps_many_rounds_knows_what_it_was_told_at_each_it_goes_back_to():
    departing = Departing(algorithm=early_stopping.keeping_best(FEDAVG), complete=False)
    keep = "early_stopping.keep_best", early_stopping.Keep()
    departing.tell(1.0, others=2.0)
    departing.send(TESTED, *keep)
    departing.tell(3.0)
    departing.engine.begin_round(2)
    for _ in range(12):
        departing.send(TESTED, *keep)
        departing.tell(3.0)
    departing.go_back(TESTED)
    departing.engine.ask(early_stopping.return_to_best, early_stopping.Return())
    with pytest.raises(TamperedError):
        departing.metric(totals_only=True)


@pytest.mark.parametrize("complete", [True, False])
def test_clients_that_went_back_to_the_best_round_together_are_evaluated_together(complete):
    departing = Departing(algorithm=early_stopping.keeping_best(FEDAVG), complete=complete)
    best, _ = departing.evaluated(1.0, totals_only=True)
    departing.engine.ask(early_stopping.keep_best, early_stopping.Keep())
    departing.tell(2.0)
    departing.engine.ask(early_stopping.return_to_best, early_stopping.Return())
    assert departing.metric(totals_only=True)[0] == best


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (early_stopping.keep_best, early_stopping.Keep()),
        (early_stopping.return_to_best, early_stopping.Return()),
    ],
)
def test_all_are_asked_together_to_keep_the_best_round_and_to_go_back(complete, function, message):
    departing = Departing(algorithm=early_stopping.keeping_best(FEDAVG), complete=complete)
    with pytest.raises(RefusedError):
        departing.engine.ask(function, dict.fromkeys(("shop", "market"), message))
    assert any(f"{function.name} was asked of" in str(one) for one in departing.made.errors)


def test_errors_are_told_in_few_ranges_of_predictions():
    """Ranges of one row would tell its label."""
    rng = np.random.default_rng(0)
    y = rng.normal(size=40)
    evaluated = figures.ScoredRows(
        y[None], y, np.ones(40), Labels("regression"), losses.SQUARED, 5, alone=False
    )
    edges = np.linspace(1, 30_000, 200)
    told = figures.Ranges(None, np.zeros(1), np.ones(1), 40.0, edges)
    with pytest.raises(TableError, match="201 ranges"):
        figures.errors_summed(evaluated, told, 40, 40)
    few = dataclasses.replace(told, edges=edges[:9])
    assert figures.errors_summed(evaluated, few, 40, 40).bins.shape == (4, 10)


def test_no_client_alone_goes_on_from_another_model():
    departing = Departing()
    told = fedavg.Descend(departing.change, 2, tuple(TESTED))
    departing.engine.begin_round(2)
    with pytest.raises(RefusedError):
        departing.engine.sum(fedavg.local_descent, {"bank": told})


def test_totals_are_those_of_the_clients_metrics():
    departing = Departing()
    total, _ = departing.evaluated(0.5, totals_only=True)
    every, _ = departing.evaluated(0.5)
    assert total.loss == pytest.approx(every.loss, abs=1e-9)
    assert (total.accuracy, total.samples) == (every.accuracy, every.samples)


def test_labels_that_all_have_are_counted_once_by_rows():
    """Who has the labels of all samples learns nothing by the total: all of them count."""
    same = {name: block(0, 12, 0) for name in ("bank", "shop")}
    schema = Schema.of(same, Labels("binary", ("a", "b")))
    assert evaluation_rows.times_evaluated(schema, None) == 6


def test_beside_a_server_s_network_totals_of_clients_own_are_told_at_the_end_alone():
    """Both would be sums over the same rows, of twice as many models."""
    schema = Schema.of(parts({"bank": 9, "shop": 9}), Labels("binary", ("a", "b")))

    def told(server):
        how = {"part": "test", "additive": False, "server": server}
        found = evaluation.sends(lambda *_: None, CROSS_ENTROPY, schema, **how)
        return {one.function.name: one.most for one in found}

    assert (told(None)["sum_metrics_own"], told(None)["count_classes_own"]) == (4, 5)
    beside = told(tuple(feature_blocks(schema)))
    assert "sum_metrics_own" not in beside
    assert beside["count_classes_own"] == 1


def test_metrics_are_asked_for_ever_more_seldom():
    turns = [turn for turn in range(1, 200) if evaluation_rows.is_due(turn, 8)]
    assert turns == [1, 2, 3, 4, 6, 8, 12, 20]
    assert not any(evaluation_rows.is_due(turn, 0) for turn in range(1, 50))
    assert all(evaluation_rows.is_due(turn, 100) for turn in range(1, 51))
