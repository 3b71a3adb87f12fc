"""What a client finds of another's row where layers that read columns stay at each client: open.

These layers are drawn from the seed, which all know, and so are the batches. Who has a change of
what all share tries rows until one comes to that change: one that says yes or no in each column.
Of two clients each has the other's change. In the total of many a step by signs, as Adam's first
one, leaves enough of each client's. Pretraining, as in flic, leaves less: there it is hidden.
docs/explanations/privacy/few-rows.md says so.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from intarsia.core.block import Block
from intarsia.core.schema import Schema
from intarsia.engines.simulation import Simulation
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.settings import Privacy
from intarsia.testing.toy_federations import BINARY, initialise, secrets_of
from intarsia.training.registry import algorithm_named

pytest.importorskip("torch")

from intarsia.algorithms.flic import algorithm as flic
from intarsia.algorithms.networks import parameter_sharing as sharing
from intarsia.algorithms.personalised import fedrep

TRAININGS = {"flic": flic.local_training, "hetfedrep": fedrep.local_training}
FEW, READER = "few", "reader"


def found(name, columns, seed, *others):
    """Return whether the reader has the other's row, after a masked round with `others` there."""
    rng = np.random.default_rng(seed)
    names, held, blocks = (FEW, READER, *others), tuple(f"f{n}" for n in range(columns)), {}
    for number, client in enumerate(names):
        count = 1 if client == FEW else 40
        x, y = (rng.choice([-1.0, 1.0], size=size) for size in ((count, columns), count))
        blocks[client] = Block(100 * number + np.arange(count), held, x, y)
    algorithm, settings = algorithm_named(name), Privacy(mode="masked")
    sealing = modes.sealing(settings, names, modes.keys(settings, names, None, "test"))
    schema = Schema.of(blocks, BINARY)
    engine = Simulation({"train": (schema, blocks)}, seed, sealing, secrets=secrets_of(blocks))
    calls, opened, sent = {}, [], []  # what the seed tells of the other's calls; the reader's own

    def watched(honest):
        def together(given):
            replies = honest.together(given)
            for (client, block, message, rng), (_, reply) in zip(given, replies, strict=True):
                if len(block.samples) == 1:
                    calls.setdefault(honest.name, (honest, client, message, rng))
                elif block.samples[0] == 100 and isinstance(reply, sharing.Change):
                    opened.append(np.asarray(message.shared))
                    sent.append(np.asarray(reply.shared))
            return replies

        return replace(honest, together=together, call=lambda *call: together([call])[0])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flic, "pretrain", watched(flic.pretrain))
        server = initialise(algorithm, algorithm.hyperparameters(), engine)
    for number in (1, 2):  # the second opens what the first came to
        engine.begin_round(number)
        training = watched(TRAININGS[name])
        server, _ = sharing.train_and_average(server, engine, engine.key(), training=training)
    change = sharing.weight_of_sum(server, engine) * (opened[1] - opened[0]) - sent[0]
    guesses = [(np.array([x]), np.array([y])) for *x, y in product((-1.0, 1.0), repeat=columns + 1)]
    states = [None] * len(guesses)
    for training, client, message, key in calls.values():
        replies = training.together(
            [
                (state or client, replace(blocks[FEW], x=x, y=y), message, key)
                for state, (x, y) in zip(states, guesses, strict=True)
            ]
        )
        states = [state for state, _ in replies]
    off = [np.abs(np.asarray(reply.shared) - change).mean() for _, reply in replies]
    x, y = guesses[int(np.argmin(off))]
    return bool((x == blocks[FEW].x).all() and (y == blocks[FEW].y).all())


@pytest.mark.parametrize("name", ["flic", "hetfedrep"])
def test_the_other_of_two_clients_finds_a_row_of_yes_and_no_by_trying(name):
    assert sum(found(name, 5, seed) for seed in range(3)) == 3


def test_of_hetfedrep_it_is_found_in_the_total_of_many():
    others = [f"other{number}" for number in range(10)]
    assert sum(found("hetfedrep", 5, seed, *others) for seed in range(3)) == 3


def test_of_flic_a_third_client_s_change_hides_it():
    assert sum(found("flic", 5, seed, "third") for seed in range(6)) <= 1
