"""What one client reads of the others' rows that sends a network of its own making: open.

Each client opens the average of what all share, and adds to it what it likes. One that breaks its
site's rules sends, as its change, what makes the average a network of its choice: units of the
first layer that each take in the rows beyond another threshold. Neighbouring units then move by
what the rows between two thresholds are, and where that is one row, its values are the ratio of two
changes. By Adam, the default, all entries move as far: what is left of a unit that one row alone
reaches are the signs of its values, which are all of it where columns say yes or no. No site can
see that another's change is none of training: sums hide who sent what.
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
ANSWERS = 12  # columns that say yes or no
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


class Signs(Attack):
    """The attack where others train by Adam: each unit takes in the rows at a line's end alone."""

    def made(self, like):
        """Return a network of new lines, each of which a row or so of the others reaches."""
        found = {name: np.zeros_like(values) for name, values in like.items()}
        lines = np.random.default_rng(len(self.opened)).normal(
            size=like["embedding.0.weight"].shape
        )
        found["embedding.0.weight"][:] = lines
        found["embedding.0.bias"][:] = -2 * np.linalg.norm(lines, axis=1)
        found["embedding.2.weight"][:] = 0.5 + np.eye(*like["embedding.2.weight"].shape)
        found["embedding.2.bias"][:] = 1.0
        found["embedding.4.weight"][:] = 0.01
        found["classifier.weight"][:] = [[0.02], [-0.02]]
        return found

    def rows(self):
        """Return what rows of others would be: where all entries of a unit moved as far."""
        found = []
        for moved in self.changes:
            weights, bias = (moved[f"embedding.0.{name}"] for name in ("weight", "bias"))
            ratios = weights / np.where(np.abs(bias) > 1e-4, bias, np.inf)[:, None]
            one = (np.abs(np.abs(ratios) - 1) < NEAR).all(axis=1)
            found.append(np.sign(ratios[one]))
        return np.concatenate(found)


def rebuilt(kind=Attack, *, departs, optimiser="sgd", columns=COLUMNS, answers=False):
    """Return how many of the others' rows a client has after all rounds, and of how many.

    The third is how many different rows it takes for theirs.
    """
    rng, held = np.random.default_rng(0), tuple(f"f{place:02}" for place in range(columns))
    blocks = {}
    for number, name in enumerate(NAMES):
        x = rng.normal(size=(ROWS, columns))
        x = np.where(x > 0, 1.0, -1.0) if answers else x
        y = np.where(x[:, 0] + 0.5 * rng.normal(size=ROWS) > 0, 1.0, -1.0)
        blocks[name] = Block(100 * number + np.arange(ROWS), held, x, y)
    algorithm = algorithm_named("fedprox")
    rate = {"rate": 0.01} if optimiser == "sgd" else {}
    options = algorithm.hyperparameters(engine="loop", optimiser=optimiser, **rate)
    settings, own = Privacy(mode="masked"), blocks[ATTACKER].samples[0]
    sealing = modes.sealing(settings, NAMES, modes.keys(settings, NAMES, None, "test"))
    schema = Schema.of(blocks, BINARY)
    engine = Simulation({"train": (schema, blocks)}, 0, sealing, secrets=secrets_of(blocks))
    server = initialise(algorithm, options, engine)
    attack, honest = kind(options.shared_parts, departs), fedrep.whole_training

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
    guesses = np.unique(attack.rows(), axis=0)
    off = np.abs(others[:, None] - guesses).max(axis=2).min(axis=1, initial=np.inf)
    return int((off < NEAR).sum()), len(others), len(guesses)


def test_a_client_that_sends_a_network_of_its_making_reads_rows_of_others():
    found, count, _ = rebuilt(departs=True)
    assert count == 90
    assert found >= 45


def test_a_client_that_follows_the_algorithm_reads_none_that_way():
    assert rebuilt(departs=False)[:2] == (0, 90)


def test_by_adam_it_reads_rows_of_columns_that_say_yes_or_no():
    given = {"optimiser": "adam", "columns": ANSWERS, "answers": True}
    found, count, guesses = rebuilt(Signs, departs=True, **given)
    assert count == 90
    assert found >= 45
    assert guesses <= found + 3  # of 4,096 that there could be
    assert rebuilt(Signs, departs=False, **given)[0] <= 3
