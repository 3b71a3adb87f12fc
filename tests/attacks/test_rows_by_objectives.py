"""A server that asks for the objective of models of its own factors: it had the margins of rows.

The objective on training rows is a sum over them, which the server reads after a round and at the
end. Asked for as often as it liked, it told the margins of a few rows. So a site answers about as
often as there are rounds.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import least_squares

import sites
from federations import BINARY, block, table
from intarsia.algorithms.hyfdca import dual_ascent
from intarsia.algorithms.linear import fedavg
from intarsia.engines.remote.declared import NO_SUMS, Declared
from intarsia.engines.remote.wire import Call
from intarsia.errors import RefusedError
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.settings import Privacy
from intarsia.training.registry import ALGORITHMS, algorithm_named, algorithm_names

FEDAVG, HYFDCA = ALGORITHMS["fedavg"], ALGORITHMS["hyfdca"]
OPTIONS = FEDAVG.hyperparameters(
    loss="logistic", regularisation=0.1, local_steps=20, batch=5, b=0.0
)
NAMES, ROWS, ROUNDS = ["bank", "shop"], 5, 3
X, Y = table(ROWS, 4)
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
        self.engine.begin_round(1)
        told = fedavg.Descend(server.w, 1, tuple(NAMES))
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
    for number in range(ROUNDS + 2):
        departing.loss(1 + number)
        departing.loss(1 + number)  # the same tells nothing new
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
        for number in range(1, ROUNDS + 1):
            self.engine.begin_round(number)
            server, _ = HYFDCA.round(server, self.engine, self.engine.key())
        self.server = dual_ascent.count(server, self.engine)

    def loss(self, factor):
        """Return the sum of the losses of the bank's rows by the scores times a factor."""
        z = self.server.z * float(factor)
        told = dual_ascent.Scores(alpha=self.server.alpha, z=z, w=None, taken=1.0)
        total = self.engine.sum(dual_ascent.objectives, told)
        return self.engine.reveal(total.at)[0]


def test_margins_are_not_read_by_objectives_of_hyfdca():
    departing = OfHyFDCA()
    with pytest.raises(RefusedError, match=r"hyfdca\.objectives: The site refused"):
        departing.margins()
    departing = OfHyFDCA(rounds=0)  # as sites that do not count them
    found = departing.margins()
    w = HYFDCA.conclude(departing.server, departing.engine, None).weights
    np.testing.assert_allclose(found, np.sort(np.abs(X @ w[0])), atol=1e-3)


def test_ascents_count_for_as_many_as_a_round_has():
    """A round calls it as often; one that begins again has as many more."""
    one = next(s for s in HYFDCA.disclosure.sends if s.function.name == "ascend_locally")
    options = HYFDCA.hyperparameters(ascents=3)
    for complete, most in ((True, 3 * ROUNDS + 2), (False, 6 * ROUNDS + 2)):
        site = Declared("bank", None, NAMES, [one], "hyfdca", options, complete=complete, rounds=3)
        sums, call = NO_SUMS, Call("", 0, 0, 0, 0, 0, "", "", "", tuple(NAMES), b"")
        for number in range(most):
            sums = site.check_number(one, number, None, call, sums)
        with pytest.raises(RefusedError, match=f"{most} of a run are answered"):
            site.check_number(one, most, None, call, sums)


# of HyFDCA: lengths of weights and directions, the system and its solution, counts, the model, and
# what of the rows a phase begins with
NOT_COUNTED = {
    *("advance_search", "curve", "start_residual", "start_search", "sweep", "multiply_sum"),
    *("count_trial", "depart", "draw_model", "inner_products", "mask_rows", "measure_duals"),
    *("measure_inside", "measure_norms", "measure_point", "multiply", "multiply_direction"),
    *("multiply_rows", "multiply_trial", "own_variances", "report_weights", "score_direction"),
    *("send_zeros", "settle_down", "share_products", "share_weights", "slope_of_penalty"),
    *("sum_rows", "zero_deviation"),
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
