"""What one client reads of the others' rows that sends weights of its own making: open.

The owners of a column open its weights, and what they all come to there is a sum over rows. One
that breaks its site's rules sends, as its part, what puts the weights of all where it likes: along
a line, far out, with another threshold in each round. A row then counts whole, or not at all, by
the side that it lies on. So the sums of two rounds differ by the rows between two thresholds, and
the constant column says how many these are: one row alone is told exactly. No site can see
that another's part is none of training: sums hide who sent what.
docs/explanations/privacy/site-refusals.md says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from scipy.special import ndtri

from intarsia.algorithms.hyfdca.newton import direction
from intarsia.algorithms.hyfdca.newton import server as newton
from intarsia.algorithms.linear import cocoa
from intarsia.core.block import INTERCEPT, Block
from intarsia.core.schema import Schema
from intarsia.engines.simulation import Simulation
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.settings import Privacy
from intarsia.testing.toy_federations import BINARY, initialise, secrets_of
from intarsia.training.registry import algorithm_named

NAMES, ROWS, COLUMNS, ROUNDS = ["a", "b", "c", "d"], 30, 8, 100
ATTACKER, FAR, WEIGHT = "d", 1e5, 1e-2  # how long its weights are, and λ


@dataclass
class Attack:
    """What the attacker sends, and what it opened of the totals; the constant column is first."""

    departs: bool
    own: int  # its first row
    opened: list[np.ndarray] = field(default_factory=list)
    sent: list[np.ndarray] = field(default_factory=list)

    def is_at(self, block):
        """Return whether a client is the attacker."""
        return int(block.samples[0]) == self.own

    def weights(self):
        """Return the weights of its choice for the next round, (1, features)."""
        line = np.random.default_rng(1).normal(size=COLUMNS)
        threshold = ndtri((len(self.sent) % ROUNDS + 0.5) / ROUNDS)
        return FAR * np.append(-threshold, line / np.linalg.norm(line))[None]

    def ascend(self, state, block, message, rng):
        """CoCoA: send what takes the weights there from where they are."""
        after, reply = ASCEND.call(state, block, message, rng)
        if self.is_at(block):
            self.opened.append(np.asarray(message.w)[0])
            if self.departs:
                reply = replace(reply, w=self.weights() - message.w)
            self.sent.append(np.asarray(reply.w)[0])
        return after, reply

    def gather(self, state, block, message, rng):
        """HyFDCA: send a part of w(α) that the next step leads to."""
        after, reply = GATHER.call(state, block, message, rng)
        if self.is_at(block):
            if self.departs:
                reply = replace(reply, w=self.weights())
            self.sent.append(np.asarray(reply.w)[0])
        return after, reply

    def measure(self, state, block, message, rng):
        """HyFDCA: open w(α)."""
        if self.is_at(block):
            self.opened.append(np.asarray(message.w)[0])
        return MEASURE.call(state, block, message, rng)

    def slope(self, state, block, message, rng):
        """HyFDCA: have the search along a line take a step of one."""
        after, reply = SLOPE.call(state, block, message, rng)
        if self.departs and self.is_at(block):
            reply = replace(
                reply, slopes=reply.slopes + 1e3 * WEIGHT * FAR**2 * (1 - message.steps)
            )
        return after, reply

    def sums(self, name):
        """Return what the others' rows came to, (sums, features): Σ αx, or what that moved by."""
        if name == "cocoa":  # the total that it opens has all sums of before
            return (np.diff(self.opened, axis=0) - self.sent[:-1])[1:]
        return np.diff(np.array(self.opened) - self.sent, axis=0)


ASCEND, GATHER, MEASURE = cocoa.local_dual_ascent, newton.gather_point, newton.measure_point
SLOPE = direction.slope_along


def rebuilt(monkeypatch, name, *, departs):
    """Return how many of the others' rows the client has, of how many, and of how many guesses."""
    rng, blocks = np.random.default_rng(0), {}
    held = INTERCEPT, *(f"f{place}" for place in range(COLUMNS))
    for number, client in enumerate(NAMES):
        x = rng.normal(size=(ROWS, COLUMNS))
        y = np.where(x[:, 0] + 0.5 * rng.normal(size=ROWS) > 0, 1.0, -1.0)
        own = np.column_stack([np.ones(ROWS), x])
        blocks[client] = Block(100 * number + np.arange(ROWS), held, own, y)
    attack = Attack(departs, int(blocks[ATTACKER].samples[0]))
    for module, function, call in (
        (cocoa, ASCEND, attack.ascend),
        (newton, GATHER, attack.gather),
        (newton, MEASURE, attack.measure),
        (direction, SLOPE, attack.slope),
    ):
        monkeypatch.setattr(module, function.name, replace(function, call=call))
    algorithm = algorithm_named(name)
    loss = {"loss": "hinge"} if name == "cocoa" else {"loss": "logistic", "method": "newton"}
    options = algorithm.hyperparameters(regularisation=WEIGHT, **loss)
    settings, schema = Privacy(mode="masked"), Schema.of(blocks, BINARY)
    sealing = modes.sealing(settings, NAMES, modes.keys(settings, NAMES, None, "test"))
    engine = Simulation({"train": (schema, blocks)}, 0, sealing, secrets=secrets_of(blocks))
    server = initialise(algorithm, options, engine)
    train = cocoa.round if name == "cocoa" else algorithm.round
    for number in range(1, ROUNDS + 2):
        engine.begin_round(number)
        server, _ = train(server, engine, *([] if name == "cocoa" else [engine.key()]))
    sums = WEIGHT * len(NAMES) * ROWS * attack.sums(name)
    sums = sums[np.abs(np.abs(sums[:, 0]) - 1) < 1e-3]  # of one row
    guesses = sums[:, 1:] / sums[:, :1]
    others = np.concatenate([blocks[one].x[:, 1:] for one in NAMES if one != ATTACKER])
    off = np.abs(others[:, None] - guesses).max(axis=2).min(axis=1, initial=np.inf)
    return int((off < 1e-3).sum()), len(others), len(guesses)


@pytest.mark.parametrize("name", ["hyfdca", "cocoa"])
def test_a_client_that_sends_weights_of_its_making_reads_rows_of_others(monkeypatch, name):
    found, count, guesses = rebuilt(monkeypatch, name, departs=True)
    assert count == 90
    assert 20 <= found <= ROUNDS
    assert guesses <= found + 3


@pytest.mark.parametrize("name", ["hyfdca", "cocoa"])
def test_a_client_that_follows_the_algorithm_reads_none_that_way(monkeypatch, name):
    assert rebuilt(monkeypatch, name, departs=False)[:2] == (0, 90)
