"""What one honest client of two reads of the other's few rows from one update: open.

Both open the average: the total of both less its own part is the other's change. A unit of the
first layer that one row alone reaches moves by that row, times what its bias moves by. Of a wide
layer each row has such units. So where plain steps of SGD are asked for, the rows of a client with
five are told all, of twenty one in ten, and of fifty none. By Adam, the default, all entries move
about as far. A single row's numbers are fitted all the same: what else its client trains with comes
of the seed.
docs/explanations/privacy/few-rows.md says so.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import least_squares

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
from intarsia.algorithms.personalised import ditto, fedrep

NAMES = "few", "reader"
COLUMNS = 8
FEDPROX = algorithm_named("fedprox")


def watched(server, engine, training, together):
    """Train two rounds by other `together` calls: the second opens what the first came to."""
    training = replace(training, together=together, call=lambda *call: together([call])[0])
    for number in (1, 2):
        engine.begin_round(number)
        server, _ = sharing.train_and_average(server, engine, engine.key(), training=training)
    return server


def rebuilt(rows, width, seed, **more):
    """Return how many of a client's rows the other has to 0.02 deviations after a masked round."""
    rng, held = np.random.default_rng(seed), tuple(f"f{place}" for place in range(COLUMNS))
    blocks = {}
    for number, (name, count) in enumerate(zip(NAMES, (rows, 40), strict=True)):
        y = np.where(np.arange(count) % 2, 1.0, -1.0)
        x = rng.normal(size=(count, COLUMNS))
        blocks[name] = Block(100 * number + np.arange(count), held, x, y)
    options = FEDPROX.hyperparameters(engine="loop", hidden=width, **more)
    settings = Privacy(mode="masked")
    sealing = modes.sealing(settings, NAMES, modes.keys(settings, NAMES, None, "test"))
    schema = Schema.of(blocks, BINARY)
    engine = Simulation({"train": (schema, blocks)}, seed, sealing, secrets=secrets_of(blocks))
    server = initialise(FEDPROX, options, engine)
    opened, sent, honest = [], [], fedrep.whole_training

    def together(calls):
        found = honest.together(calls)
        for (client, block, message, *_), (_, reply) in zip(calls, found, strict=True):
            if len(block.samples) == 40:  # the reader's own
                opened.append((client.parameters, np.asarray(message.shared)))
                sent.append(np.asarray(reply.shared))
        return found

    server = watched(server, engine, honest, together)
    (like, before), (_, after) = opened
    change = sharing.weight_of_sum(server, engine) * (after - before) - sent[0]
    moved = networks.with_parts(like, options.shared_parts, change)
    weights, bias = (moved[f"embedding.0.{name}"].astype(float) for name in ("weight", "bias"))
    some = np.abs(bias) > 1e-6  # of an update that is rounded
    guesses = weights[some] / bias[some, None]
    off = np.abs(blocks["few"].x[:, None] - guesses).max(axis=2).min(axis=1, initial=np.inf)
    return int((off < 0.02).sum())


def test_of_a_wide_first_layer_steps_of_sgd_tell_five_rows_to_the_other_client():
    sgd = {"optimiser": "sgd", "rate": 0.01}
    assert sum(rebuilt(5, 512, seed, **sgd) for seed in range(4)) >= 19  # of 20
    assert sum(rebuilt(50, 512, seed, **sgd) for seed in range(2)) == 0


def test_steps_of_adam_tell_none_that_way():
    assert sum(rebuilt(5, 512, seed) for seed in range(4)) == 0


def test_the_other_of_two_clients_fits_the_numbers_of_a_single_row_by_adam_too():
    """What the row's client trains on, and draws, comes of the seed: another row can be tried."""
    rng, held = np.random.default_rng(0), ("a", "b", "c")
    blocks = {}
    for number, (name, count) in enumerate(zip(NAMES, (1, 40), strict=True)):
        y = np.where(np.arange(count) % 2, 1.0, -1.0)
        blocks[name] = Block(
            100 * number + np.arange(count), held, rng.normal(size=(count, len(held))), y
        )
    algorithm, settings = algorithm_named("ditto"), Privacy(mode="masked")
    sealing = modes.sealing(settings, NAMES, modes.keys(settings, NAMES, None, "test"))
    schema = Schema.of(blocks, BINARY)
    engine = Simulation({"train": (schema, blocks)}, 0, sealing, secrets=secrets_of(blocks))
    server = initialise(algorithm, algorithm.hyperparameters(engine="loop"), engine)
    honest, calls, opened, sent = ditto.train_both, [], [], []

    def together(given):
        found = honest.together(given)
        for call, (_, reply) in zip(given, found, strict=True):
            if len(call[1].samples) == 1:
                calls.append(call)  # all of it but the row is known to who has the seed
            else:
                opened.append(np.asarray(call[2].shared))
                sent.append(np.asarray(reply.shared))
        return found

    server = watched(server, engine, honest, together)
    change = sharing.weight_of_sum(server, engine) * (opened[1] - opened[0]) - sent[0]
    client, block, *more = calls[0]

    def off(values):
        tried = replace(block, x=values[None])
        ((_, reply),) = honest.together([(client, tried, *more)])
        return (np.asarray(reply.shared, float) - change) / np.abs(change).mean()

    starts = np.random.default_rng(1).normal(size=(20, len(held)))
    for begin in starts:  # with the label that is right; of two classes there is one more
        found = least_squares(off, begin, diff_step=1e-3, max_nfev=30)
        if found.cost < 1e-3:
            break
    np.testing.assert_allclose(found.x, block.x[0], atol=0.01)
