"""Ditto: a network of each client's own, pulled to the one that all train together.

Li, Hu, Beirami and Smith, "Ditto: Fair and Robust Federated Learning Through Personalization",
ICML 2021 (Algorithm 1), with federated averaging for the network w of all. Client i has v_i:

    min_{v_i} F_i(v_i) + λ/2 ‖v_i - w*‖²,   w* in argmin 1/n Σ_i F_i(w)

A round, at the clients that are there:

1. the network of all: open w; some epochs on F_i; send the change
2. the own network: some epochs on F_i(v_i) + λ/2 ‖v_i - w‖², with the w that was opened
3. the server averages the changes, which it never reads

All v_i start from the w that the server drew. Changes are averaged with equal weights, as in
Algorithm 1, or by labelled rows (`weights` = "samples").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from intarsia import core as fl
from intarsia.algorithms.networks import parameter_sharing as sharing
from intarsia.algorithms.networks.architecture import named_width
from intarsia.algorithms.networks.client_network import training_of
from intarsia.algorithms.networks.options import NetworkOptions, Weights
from intarsia.algorithms.networks.parameter_sharing import Change, Client, Loss, Server, Shared
from intarsia.algorithms.networks.targets import smoothed
from intarsia.core.block import Block
from intarsia.core.settings import Count, NotNegative


@dataclass(frozen=True, kw_only=True)
class Ditto(NetworkOptions):
    """Hyperparameters."""

    pull: NotNegative = 0.1  # λ
    local_epochs: Count = 10  # of the network of all
    own_epochs: Count = 10  # of the client's own
    weights: Weights = "clients"  # of clients in the average
    optimiser: Literal["adam", "sgd"] = "adam"  # fresh in each round


@fl.told_the_same
@fl.vectorised_function
def train_both(calls: Sequence[fl.ClientCall[Shared]]) -> list[tuple[Client, Change]]:
    """Train the network of all, then the client's own; send the change of the first."""
    options = calls[0][0].options
    loss = smoothed(options.label_smoothing)
    known: Any = (options, calls[0][0].outputs, loss, ("*",))
    both = partial(
        training_of,
        *known,
        features=named_width(options.architecture, calls[0][1]),
    )
    # step 1: the network of all
    before = sharing.open_messages(calls)
    common = both(epochs=options.local_epochs)
    after = sharing.train(common, before, "local")
    # step 2: the own network
    tasks = [
        task._replace(client=fl.evolve(task.client, parameters=call[0].parameters))
        for task, call in zip(before, calls, strict=True)
    ]
    training = both(epochs=options.own_epochs, proximal=options.pull)
    references = [task.client.parameters for task in before]
    own = sharing.train(training, tasks, "own", references=references)
    return [
        (mine.client, sharing.change(old, new))
        for mine, old, new in zip(own, before, after, strict=True)
    ]


@fl.told_the_same
@fl.client_function
def part_of_own_loss(
    client: Client, block: Block, message: Shared, rng: fl.RandomKey
) -> tuple[Client, Loss]:
    """Send this client's part of the loss of the clients' own networks."""
    alone = fl.evolve(message, shared=None)  # the own network stays
    return client, sharing.part_of_loss.call(client, block, alone, rng)[1]


certify = partial(sharing.certify, part_of_loss=part_of_own_loss)


def conclude(server: Server, clients: fl.Clients, rng: fl.RandomKey) -> fl.FinalResult:
    """Return how good the clients' own networks are, which stay with them."""
    return fl.FinalResult(certify(server, clients)[1])


DITTO = sharing.network_algorithm(
    "ditto",
    Ditto,
    training=train_both,
    sends=fl.asks(sharing.take_start),
    part_of_loss=part_of_own_loss,
    setup=sharing.start_alike,
    conclude=conclude,
)
