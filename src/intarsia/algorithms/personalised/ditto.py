"""Ditto: a network of each client's own, pulled to the one that all train together.

Li, Hu, Beirami and Smith, "Ditto: Fair and Robust Federated Learning Through Personalization",
ICML 2021 (Algorithm 1), with federated averaging for the network w of all. Client i has v_i:

    min_{v_i} F_i(v_i) + λ/2 ‖v_i - w*‖²,   w* in argmin 1/n Σ_i F_i(w)

A round, at the clients that are there:

1. the network of all: open w; some epochs on F_i; send the change
2. the own network: some epochs on F_i(v_i) + λ/2 ‖v_i - w‖², with the w that was opened
3. the server averages the changes, which it never reads

All v_i start from the w that the server drew. Changes are averaged with equal weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Literal

from intarsia.algorithms.networks import parameter_sharing as sharing
from intarsia.algorithms.networks.client_network import training_of
from intarsia.algorithms.networks.options import NetworkOptions
from intarsia.algorithms.networks.parameter_sharing import Change, Client, Loss, Server, Shared
from intarsia.algorithms.networks.targets import plain_loss
from intarsia.core.algorithm import (
    ClientCall,
    Clients,
    FinalResult,
    RandomKey,
    RoundMetrics,
    asks,
    client_function,
    evolve,
    sums,
    vectorised_function,
)
from intarsia.core.block import Block
from intarsia.core.settings import Count, NotNegative
from intarsia.maths.training.local_training import LocalTraining


@dataclass(frozen=True, kw_only=True)
class Ditto(NetworkOptions):
    """Hyperparameters."""

    pull: NotNegative = 0.1  # λ
    local_epochs: Count = 10  # of the network of all
    own_epochs: Count = 10  # of the client's own
    optimiser: Literal["adam", "sgd"] = "adam"  # fresh in each round


@lru_cache(maxsize=32)
def _training(options: Ditto, outputs: int, epochs: int, pull: float) -> LocalTraining:
    """Return how a network trains; kept, as compiled functions belong to it."""
    return training_of(options, outputs, plain_loss, ("*",), epochs=epochs, proximal=pull)


@vectorised_function
def train_both(visits: Sequence[ClientCall[Shared]]) -> list[tuple[Client, Change]]:
    """Train the network of all, then the client's own; send the change of the first."""
    options, outputs = visits[0][0].options, visits[0][0].outputs
    # step 1: the network of all
    before = sharing.opened(visits)
    common = _training(options, outputs, options.local_epochs, 0.0)
    after = sharing.trained(common, before, "local")
    # step 2: the own network
    seats = [
        seat._replace(client=evolve(seat.client, parameters=visit[0].parameters))
        for seat, visit in zip(before, visits, strict=True)
    ]
    own = sharing.trained(
        _training(options, outputs, options.own_epochs, options.pull),
        seats,
        "own",
        references=[seat.client.parameters for seat in before],
    )
    return [
        (mine.client, sharing.change(old, new))
        for mine, old, new in zip(own, before, after, strict=True)
    ]


@client_function
def part_of_own_loss(
    client: Client, block: Block, message: Shared, rng: RandomKey
) -> tuple[Client, Loss]:
    """Send this client's part of the loss of the clients' own networks."""
    alone = evolve(message, shared=None)  # the own network stays
    return client, sharing.part_of_loss.call(client, block, alone, rng)[1]


def round(server: Server, clients: Clients, rng: RandomKey) -> tuple[Server, RoundMetrics]:
    """Let the clients that are there train both networks; average the changes of the first."""
    server = evolve(server, rounds=server.rounds + 1)
    # steps 1 and 2: both networks
    total = clients.sum(train_both, sharing.told(server, clients))
    # step 3: averages
    return sharing.averaged(server, total, clients), RoundMetrics(phase="averaging")


certify = partial(sharing.certify, part_of_loss=part_of_own_loss)


def conclude(server: Server, clients: Clients, rng: RandomKey) -> FinalResult:
    """Return how good the clients' own networks are, which stay with them."""
    return FinalResult(certify(server, clients, rng)[1])


DITTO = sharing.network_algorithm(
    "ditto",
    Ditto,
    round,
    sends=(
        *sums(sharing.send_start),
        *asks(sharing.take_start),
        *sums(train_both, pooled=sharing.shares),
    ),
    part_of_loss=part_of_own_loss,
    setup=sharing.started_alike,
    conclude=conclude,
)
