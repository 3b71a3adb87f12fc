"""What one client reads of the others' rows that sends a network of its own making: open.

Each client opens the average of what all share, and adds to it what it likes. One that breaks its
site's rules sends, as its change, what makes the average a network of its choice: units of the
first layer that each take in the rows beyond another threshold. Neighbouring units then move by
what the rows between two thresholds are, and where that is one row, its values are the ratio of two
changes. No site can see that another's change is none of training: sums hide who sent what.
docs/explanations/privacy/site-refusals.md says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtri

from intarsia.core.block import Block
from intarsia.core.schema import Schema
from intarsia.engines.simulation import Simulation
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.settings import Privacy
from intarsia.testing.toy_federations import BINARY, initialise, secrets_of
from intarsia.training.registry import algorithm_named

pytest.importorskip("torch")

from intarsia.algorithms.networks import client_network as networks
from intarsia.algorithms.networks import parameter_sharing as sharing
from intarsia.algorithms.personalised import fedrep

NAMES, ROWS, COLUMNS, ROUNDS = ["a", "b", "c", "d"], 30, 8, 8
ATTACKER = "d"
SIZE = 1e-2  # of the first layer's weights, against which a step is small
NEAR = 0.02  # deviations by which a row that is rebuilt is off, at most


@dataclass
class Attack:
    """What the attacker does in a round, and what it had of the others' changes."""

    parts: tuple[str, ...]
    departs: bool
    opened: list[Any] = field(default_factory=list)  # networks that the others trained on
    changes: list[Any] = field(default_factory=list)  # what they came to together
    before: Any = None  # what it opened, and what it sent, as vectors

    def turn(self, client, block, message, honest):
        """Return what it sends in the place of an honest change."""
        told = np.asarray(message.shared)
        now = networks.with_parts(client.parameters, self.parts, told)
        if self.before is not None:
            opened, sent = self.before
            others = len(NAMES) * (told - opened) - sent
            self.changes.append(networks.with_parts(now, self.parts, others))
        self.opened.append(now)
        if self.departs:
            made = networks.part_vector(self.made(now), self.parts)
            honest = replace(honest, shared=len(NAMES) * (made - told))
        self.before = told, np.asarray(honest.shared)
        return honest

    def made(self, like):
        """Return a network whose first layer sorts rows along a line, another in each round."""
        line = np.random.default_rng(len(self.opened)).normal(size=COLUMNS)
        found = {name: np.zeros_like(values) for name, values in like.items()}
        units = len(found["embedding.0.bias"])
        found["embedding.0.weight"][:] = SIZE * line / np.linalg.norm(line)
        found["embedding.0.bias"][:] = -SIZE * ndtri((np.arange(units) + 0.5) / units)
        found["embedding.2.weight"][0] = 0.2
        found["embedding.2.bias"][0] = 1.0
        found["embedding.4.weight"][0, 0] = 0.1
        found["classifier.weight"][:, 0] = 0.1, -0.1
        return found

    def rows(self):
        """Return what rows of others would be, (guesses, columns)."""
        found = []
        for told, moved in zip(self.opened, self.changes, strict=False):
            order = np.argsort(told["embedding.0.bias"])  # the farthest threshold first
            changes = [
                np.diff(moved[f"embedding.0.{name}"][order].astype(np.float64), axis=0, prepend=0)
                for name in ("weight", "bias")
            ]
            some = np.abs(changes[1]) > 1e-9
            found.append(changes[0][some] / changes[1][some, None])
        return np.concatenate(found)


def rebuilt(*, departs):
    """Return how many of the others' rows a client has after all rounds, and of how many."""
    rng, held = np.random.default_rng(0), tuple(f"f{place}" for place in range(COLUMNS))
    blocks = {}
    for number, name in enumerate(NAMES):
        x = rng.normal(size=(ROWS, COLUMNS))
        y = np.where(x[:, 0] + 0.5 * rng.normal(size=ROWS) > 0, 1.0, -1.0)
        blocks[name] = Block(100 * number + np.arange(ROWS), held, x, y)
    algorithm = algorithm_named("fedprox")
    options = algorithm.hyperparameters(engine="loop", optimiser="sgd", rate=0.01)
    settings, own = Privacy(mode="masked"), blocks[ATTACKER].samples[0]
    sealing = modes.sealing(settings, NAMES, modes.keys(settings, NAMES, None, "test"))
    schema = Schema.of(blocks, BINARY)
    engine = Simulation({"train": (schema, blocks)}, 0, sealing, secrets=secrets_of(blocks))
    server = initialise(algorithm, options, engine)
    attack, honest = Attack(options.shared_parts, departs), fedrep.whole_training

    def together(calls):
        return [
            (new, attack.turn(*call[:3], reply) if call[1].samples[0] == own else reply)
            for call, (new, reply) in zip(calls, honest.together(calls), strict=True)
        ]

    training = replace(honest, together=together, call=lambda *call: together([call])[0])
    for number in range(1, ROUNDS + 1):
        engine.begin_round(number)
        server, _ = sharing.train_and_average(server, engine, engine.key(), training=training)
    others = np.concatenate([blocks[name].x for name in NAMES if name != ATTACKER])
    off = np.abs(others[:, None] - attack.rows()).max(axis=2).min(axis=1)
    return int((off < NEAR).sum()), len(others)


def test_a_client_that_sends_a_network_of_its_making_reads_rows_of_others():
    found, count = rebuilt(departs=True)
    assert count == 90
    assert found >= 45


def test_a_client_that_follows_the_algorithm_reads_none_that_way():
    assert rebuilt(departs=False) == (0, 90)
