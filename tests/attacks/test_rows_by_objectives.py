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
from intarsia.algorithms.linear import fedavg
from intarsia.errors import RefusedError
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.settings import Privacy
from intarsia.training.registry import ALGORITHMS, algorithm_named, algorithm_names

FEDAVG = ALGORITHMS["fedavg"]
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
            least_squares(off, rng.uniform(0, 2, ROWS), **close, max_nfev=2000) for _ in range(60)
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


@pytest.mark.parametrize("name", algorithm_names())
def test_objectives_are_declared_to_be_of_rounds(name):
    """HyFDCA's are of steps and of points of line searches, which no rounds count."""
    pytest.importorskip("torch")
    sends = algorithm_named(name).disclosure.sends
    told = [one for one in sends if one.function.name.startswith(("part_of_", "objectives"))]
    read = [one for one in told if one.reveals and name != "hyfdca"]
    assert [one.function.name for one in read if not one.each_round] == []
