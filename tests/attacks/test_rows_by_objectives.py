"""A server that asks for the objective of models of its own factors: it had the margins of rows.

The objective on training rows is a sum over them, which the server reads after a round and at the
end. Asked for as often as it liked, it told the margins of a few rows. So a site answers about as
often as there are rounds: those that it counted itself, of a job that may say a thousand.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest
from scipy.optimize import least_squares

import sites
from federations import BINARY, block, table
from intarsia.algorithms.hyfdca import dual_ascent
from intarsia.algorithms.linear import fedavg
from intarsia.core.block import Labels
from intarsia.engines.remote.caller import Caller
from intarsia.engines.remote.declared import NO_SUMS, Declared
from intarsia.engines.remote.round_count import Rounds
from intarsia.engines.remote.wire import Call
from intarsia.errors import ExperimentError, RefusedError
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.settings import Privacy
from intarsia.training.registry import ALGORITHMS, algorithm_named, algorithm_names

FEDAVG, HYFDCA = ALGORITHMS["fedavg"], ALGORITHMS["hyfdca"]
OPTIONS = FEDAVG.hyperparameters(
    loss="logistic", regularisation=0.1, local_steps=20, batch=5, b=0.0
)
NAMES, ROWS, ROUNDS = ["bank", "shop"], 5, 3
X, Y = table(ROWS, 4)
KEYS_OF_THREE = modes.keys(Privacy(mode="masked"), ("bank", "shop", "store"), None, "test")
KEYS = modes.keys(Privacy(mode="masked"), ("bank",), None, "test")
FACTORS = np.linspace(0.25, 4.0, 12)


class Departing:
    """A server that trains once, and then asks for the loss of what it likes."""

    def __init__(self, rounds=ROUNDS, algorithm=FEDAVG):
        self.made = sites.federation(
            *(algorithm, OPTIONS, self.blocks(), BINARY),
            complete=True,
            rounds=rounds,
            sealing=lambda: modes.sealing(Privacy(mode="masked"), NAMES, KEYS),
        )
        self.engine, server = self.made.engine, sites.begun(self.made, algorithm, OPTIONS)
        self.w = server.w
        self.train(1)

    def train(self, number):
        """Train in a round."""
        self.engine.begin_round(number)
        told = fedavg.Descend(self.w, number, tuple(NAMES))
        self.change = self.engine.sum(fedavg.local_descent, told).w

    @staticmethod
    def blocks():
        return {
            "bank": block(X, Y, range(ROWS), [0, 1]),
            "shop": block(X, Y, range(ROWS), [2, 3], labels=False),
        }

    def loss(self, factor):
        """Return the sum of the losses of the bank's rows by the change times a factor."""
        told = fedavg.Weights(self.change * float(factor))
        z = self.engine.sum(fedavg.part_of_scores, told).z
        return self.engine.reveal(self.engine.sum(fedavg.part_of_objective, fedavg.Scores(z)).at)[0]

    def margins(self):
        """Return the sizes of the margins in ascending order."""
        # log(1 + e^-a) + log(1 + e^a) = 2 log 2 + 2 log cosh(a/2), whatever the label
        pairs = [[self.loss(sign * t) for sign in (1, -1)] for t in FACTORS]
        even = np.sum(pairs, axis=1) / 2 - ROWS * np.log(2.0)

        def off(sizes):
            return (np.log(np.cosh(np.outer(FACTORS, sizes) / 2)).sum(axis=1) - even) * 1e6

        rng, close = np.random.default_rng(0), dict.fromkeys(["xtol", "ftol", "gtol"], 1e-15)
        found = [
            least_squares(off, rng.uniform(0, 2, ROWS), **close, max_nfev=100) for _ in range(20)
        ]
        return np.sort(np.abs(min(found, key=lambda one: one.cost).x))


def test_margins_are_not_read_by_objectives_of_many_models():
    departing = Departing()
    with pytest.raises(RefusedError, match=r"fedavg\.part_of_objective: The site refused"):
        departing.margins()
    departing = Departing(rounds=0)  # as sites that do not count them
    found = departing.margins()
    w = np.asarray(departing.engine.reveal(departing.change)).ravel()
    np.testing.assert_allclose(found, np.sort(np.abs(X @ w)), atol=1e-3)


def test_objectives_of_a_run_as_it_is_are_told():
    """After each of its rounds, and at its end, and again where rounding tells two apart."""
    departing = Departing()
    for number in range(ROUNDS):
        if number:
            departing.train(number + 1)
        departing.loss(1 + number)
        departing.loss(1 + number)  # the same tells nothing new
    for number in (ROUNDS, ROUNDS + 1):
        departing.loss(1 + number)
    with pytest.raises(RefusedError):
        departing.loss(9.0)


class OfHyFDCA(Departing):
    """A server of HyFDCA that asks for the loss of scores times factors of its own."""

    def __init__(self, rounds=ROUNDS):
        options = HYFDCA.hyperparameters(loss="logistic", regularisation=0.1, method="ascent")
        self.made = sites.federation(
            *(HYFDCA, options, self.blocks(), BINARY),
            complete=True,
            rounds=rounds,
            sealing=lambda: modes.sealing(Privacy(mode="masked"), NAMES, KEYS),
        )
        self.engine, server = self.made.engine, sites.begun(self.made, HYFDCA, options)
        for number in range(1, min(rounds or ROUNDS, ROUNDS) + 1):
            self.engine.begin_round(number)
            server, _ = HYFDCA.round(server, self.engine, self.engine.key())
        self.server = dual_ascent.count(server, self.engine)

    def loss(self, factor):
        """Return the sum of the losses of the bank's rows by the scores times a factor."""
        z = self.server.z * float(factor)
        told = dual_ascent.Scores(alpha=self.server.alpha, z=z, w=None, taken=1.0)
        total = self.engine.sum(dual_ascent.objectives, told)
        return self.engine.reveal(total.at)[0]


@pytest.mark.parametrize("rounds", [ROUNDS, 1000])
def test_margins_are_not_read_by_objectives_of_hyfdca(rounds):
    departing = OfHyFDCA(rounds)
    with pytest.raises(RefusedError, match=r"hyfdca\.objectives: The site refused"):
        departing.margins()
    if rounds > ROUNDS:
        return
    departing = OfHyFDCA(rounds=0)  # as sites that do not count them
    found = departing.margins()
    w = HYFDCA.conclude(departing.server, departing.engine, None).weights
    np.testing.assert_allclose(found, np.sort(np.abs(X @ w[0])), atol=1e-3)


def test_rounds_without_a_number_are_no_other_rounds(monkeypatch):
    """The owner's count of a day takes both for one."""
    departing = OfHyFDCA(1000)
    monkeypatch.setattr(Caller, "anchor", lambda self: None)
    numbers, loss = cycle((0, 1)), departing.loss

    def told(factor):
        departing.engine.begin_round(next(numbers))
        return loss(factor)

    monkeypatch.setattr(departing, "loss", told)
    with pytest.raises(RefusedError, match=r"hyfdca\.objectives: The site refused"):
        departing.margins()


def test_ascents_count_for_as_many_as_a_round_has():
    """A round calls it as often; one that begins again has as many more."""
    one = next(s for s in HYFDCA.disclosure.sends if s.function.name == "ascend_locally")
    options = HYFDCA.hyperparameters(ascents=3)
    for complete, counted, most in (
        *((True, ROUNDS, 3 * ROUNDS + 2), (False, ROUNDS, 6 * ROUNDS + 2)),
        *((True, 1, 3 + 2), (True, 0, 3 + 2), (True, 9, 3 * ROUNDS + 2)),
    ):
        site = Declared("bank", None, NAMES, [one], "hyfdca", options, complete=complete, rounds=3)
        sums, call = (
            replace(NO_SUMS, rounds=Rounds(counted)),
            Call("", 0, 0, 0, 0, 0, "", "", "", tuple(NAMES), b""),
        )
        for number in range(most):
            sums = site.check_number(one, number, None, call, sums)
        with pytest.raises(RefusedError, match=f"{most} of a run are answered"):
            site.check_number(one, most, None, call, sums)


def test_ascents_are_twenty_at_most():
    with pytest.raises(ExperimentError, match="ascents is 21"):
        HYFDCA.hyperparameters(ascents=21)


# as losses, methods and presence have it: each tells other sums
HONEST = {
    "shared system": {"loss": "logistic"},
    "duals of the hinge": {"loss": "hinge"},
    "conjugate gradients": {"loss": "squared_hinge", "frame": False},
    "ascent": {"loss": "logistic", "method": "ascent"},
    "the log link": {"loss": "poisson"},
    "elastic net": {"loss": "logistic", "l1_ratio": 0.5},
    "some are away": {"loss": "logistic"},
}


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(one, marks=[pytest.mark.slow] * (one in ("elastic net", "the log link")))
        for one in HONEST
    ],
)
def test_honest_rounds_tell_no_more_than_those_that_a_site_has_counted(kind, monkeypatch):
    """The job says as many rounds as it likes: after each, the bound is of those that were."""
    options = HYFDCA.hyperparameters(regularisation=1e-3, **HONEST[kind])
    away, seen = kind == "some are away", []
    check = Declared.check_number

    def noted(self, one, reply, model, call, sums):
        found = check(self, one, reply, model, call, sums)
        if one.each_round:
            seen.append((call.round, sums.rounds.count))
        return found

    monkeypatch.setattr(Declared, "check_number", noted)
    labels = Labels("regression") if kind == "the log link" else BINARY
    x, y = table(40, 5)
    y = np.abs(np.round(3 * x[:, 0])) if kind == "the log link" else y
    blocks = {
        "bank": block(x, y, range(30), [0, 1]),
        "shop": block(x, y, range(5, 40), [2, 3]),
        "store": block(x, y, range(40), [4], labels=False),
    }
    made = sites.federation(
        *(HYFDCA, options, blocks, labels),
        complete=not away,
        rounds=1000,
        sealing=lambda: modes.sealing(Privacy(mode="masked"), [*blocks], KEYS_OF_THREE),
    )
    engine, server = made.engine, sites.begun(made, HYFDCA, options)
    for number in range(1, 13):
        engine.begin_round(number, ("bank", "shop") if away and number in (3, 4) else None)
        server, info = HYFDCA.round(server, engine, engine.key())
        if info.finished:
            break
    engine.begin_round(number + 1)
    HYFDCA.conclude(server, engine, engine.key("conclude"))
    assert all(round <= max(1, count) for round, count in seen) or away
    assert max(count for _, count in seen) <= number + 1


# of HyFDCA: lengths of weights and directions, the system and its solution, counts, the model, and
# what of the rows a phase begins with
NOT_COUNTED = {
    *("advance_search", "curve", "start_residual", "start_search", "sweep", "multiply_sum"),
    *("count_trial", "depart", "draw_model", "inner_products", "mask_rows", "measure_duals"),
    *("measure_inside", "measure_norms", "measure_point", "multiply", "multiply_direction"),
    *("multiply_rows", "multiply_second", "multiply_trial", "own_variances", "report_weights"),
    *("score_direction", "send_zeros", "settle_down", "share_products", "share_weights"),
    *("slope_of_penalty", "sum_rows", "zero_deviation"),
}


@pytest.mark.parametrize("name", algorithm_names())
def test_objectives_are_declared_to_be_of_rounds(name):
    pytest.importorskip("torch")
    read = [one for one in algorithm_named(name).disclosure.sends if one.reveals]
    if name != "hyfdca":
        read = [one for one in read if one.function.name.startswith(("part_of_", "objectives"))]
    assert {one.function.name for one in read if not one.each_round} == (
        NOT_COUNTED if name == "hyfdca" else set()
    )
