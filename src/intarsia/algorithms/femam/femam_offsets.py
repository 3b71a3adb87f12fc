"""The round of a level "shares" of `femam`: what clients and server do for it (see `femam_shares`).

1. `count_rows`: the shares of the classes over all clients
2. `compare_shares`: how much clients' own differ
3. `try_offsets`: how much of them the rows for validation of all clients bear out
4. `take_offset`: each client takes the bias that is its own
"""

from __future__ import annotations

import numpy as np

from intarsia.algorithms.femam.class_priors import (
    best_weight,
    correlation,
    counted,
    differences,
    losses_by_weight,
    offsets,
    shares_of,
)
from intarsia.algorithms.femam.client import Client, combined, labelled
from intarsia.algorithms.femam.femam_state import Level
from intarsia.algorithms.femam.state import Ask, Common, Counted, Differences, Offset, Prior, Tried
from intarsia.core.algorithm import Clients, RandomKey, Ready, client_function, evolve
from intarsia.core.block import Array, Block

__all__ = ["compare_shares", "count_rows", "take_offset", "try_offsets", "with_offset"]


@client_function
def count_rows(
    client: Client, block: Block, message: Ask, rng: RandomKey
) -> tuple[Client, Counted]:
    """Send how many rows of each class models are trained on, for a sum over clients."""
    return client, Counted(_rows(client, block))


@client_function
def compare_shares(
    client: Client, block: Block, message: Common, rng: RandomKey
) -> tuple[Client, Differences]:
    """Send how much the client's shares of the classes differ, for a sum over clients."""
    return client, Differences(differences(_rows(client, block), message.shares))


@client_function
def try_offsets(
    client: Client, block: Block, message: Prior, rng: RandomKey
) -> tuple[Client, Tried]:
    """Send the losses of the rows for validation with each weight of the client's shares."""
    _, y = labelled(block)
    rows = client.held_out
    scores = combined(client, client.base[rows], client.count + 1)
    return client, Tried(losses_by_weight(scores, _offsets(client, block, message), y[rows]))


@client_function
def take_offset(
    client: Client, block: Block, message: Offset, rng: RandomKey
) -> tuple[Client, Ready]:
    """Take for the latest level a network of which only the bias counts."""
    weight, bias = client.start["classifier.weight"], client.start["classifier.bias"]
    moved = message.weight * _offsets(client, block, message)
    moved /= combined(client, np.ones(1), client.count + 1)  # a mean of levels takes part of it
    own = {
        "classifier.weight": np.zeros_like(weight),
        "classifier.bias": moved.astype(bias.dtype).reshape(bias.shape),
    }
    return evolve(client, latest={**client.start, **own}), Ready()


def _rows(client: Client, block: Block) -> Array:
    """Return how many rows of each class the client's models are trained on, (outputs,)."""
    _, y = labelled(block)
    return counted(y[~client.held_out], client.outputs)


def _offsets(client: Client, block: Block, prior: Prior) -> Array:
    """Return what the client's scores get at a weight of 1, (outputs,)."""
    return offsets(_rows(client, block), prior.shares, prior.correlation)


# ---- at the server


def with_offset(level: Level, clients: Clients) -> Level:
    """Return the level of shares, which the clients that are there have found and taken."""
    everybody = clients.ids
    # discloses how many rows of each class all clients together train on
    counts = clients.sum(count_rows, dict.fromkeys(everybody, Ask()))
    shares = shares_of(clients.reveal(counts.at))
    # discloses how much clients' shares differ, in two whole numbers over all classes and clients
    differ = clients.sum(compare_shares, dict.fromkeys(everybody, Common(shares)))
    prior = Prior(shares, correlation(clients.reveal(differ.at), shares))
    # discloses the losses of all rows for validation with each weight
    graded = clients.sum(try_offsets, dict.fromkeys(everybody, prior))
    weight = best_weight(clients.reveal(graded.at))
    offset = Offset(prior.shares, prior.correlation, weight)
    clients.ask(take_offset, dict.fromkeys(everybody, offset))
    return evolve(level, rounds=level.rounds + 1, offset=offset)
