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

from intarsia.algorithms.networks import label_scaling, parameter_sharing
from intarsia.algorithms.networks.architecture import Architecture
from intarsia.algorithms.networks.client_network import (
    check_clients,
    check_options,
    check_same_features,
    training_of,
)
from intarsia.algorithms.networks.embeddings import AnyKind
from intarsia.algorithms.networks.parameter_sharing import (
    Change,
    Client,
    Loss,
    Server,
    Shared,
    Start,
    averaged,
    change,
    init_client,
    network,
    opened,
    predict,
    send_start,
    shares,
    start,
    started_alike,
    take_start,
    told,
    trained,
)
from intarsia.algorithms.networks.targets import plain_loss
from intarsia.core.algorithm import (
    Algorithm,
    Clients,
    Conclusion,
    Disclosure,
    Info,
    Model,
    RandomKey,
    Visit,
    asks,
    client_function,
    cohort_function,
    evolve,
    sums,
)
from intarsia.core.block import Block
from intarsia.core.schema import Schema
from intarsia.maths.training.local_training import LocalTraining


@dataclass(frozen=True, kw_only=True)
class Ditto:
    """Hyperparameters."""

    pull: float = 0.1  # λ
    local_epochs: int = 10  # of the network of all
    own_epochs: int = 10  # of the client's own
    rate: float = 1e-3
    optimiser: Literal["adam", "sgd"] = "adam"  # fresh in each round
    weight_decay: float = 0.0  # on the classifier
    batch: int = 100
    embedding: AnyKind = "perceptron"
    hidden: int = 64
    latent: int = 64
    precision: Literal["single", "double"] = "single"
    engine: Literal["auto", "loop", "vmap", "compiled"] = "auto"

    def __post_init__(self) -> None:
        check_options(
            self,
            counts=("local_epochs", "own_epochs", "batch", "hidden", "latent"),
            not_negative=("pull", "weight_decay"),
        )

    @property
    def loss(self) -> str:
        """Return the loss that the scores are graded by."""
        return "cross_entropy"

    @property
    def architecture(self) -> Architecture:
        """Return what a client's network is made of."""
        return Architecture(embedding=self.embedding, hidden=self.hidden, latent=self.latent)

    @property
    def shared_parts(self) -> tuple[str, ...]:
        """Return which parameters all clients share: those of w, all."""
        return ("*",)


@lru_cache(maxsize=32)
def _training(options: Ditto, outputs: int, epochs: int, pull: float) -> LocalTraining:
    """Return how a network trains; kept, as compiled functions belong to it."""
    return training_of(options, outputs, plain_loss, ("*",), epochs=epochs, proximal=pull)


# ---- at the clients


@cohort_function
def train_both(visits: Sequence[Visit[Shared]]) -> list[tuple[Client, Change]]:
    """Train the network of all, then the client's own; send the change of the first."""
    options, outputs = visits[0][0].options, visits[0][0].outputs
    # step 1: the network of all
    before = opened(visits)
    common = _training(options, outputs, options.local_epochs, 0.0)
    after = trained(common, before, "local")
    # step 2: the own network
    seats = [
        seat._replace(client=evolve(seat.client, parameters=visit[0].parameters))
        for seat, visit in zip(before, visits, strict=True)
    ]
    own = trained(
        _training(options, outputs, options.own_epochs, options.pull),
        seats,
        "own",
        references=[seat.client.parameters for seat in before],
    )
    return [
        (mine.client, change(old, new)) for mine, old, new in zip(own, before, after, strict=True)
    ]


@client_function
def part_of_own_loss(
    client: Client, block: Block, message: Shared, rng: RandomKey
) -> tuple[Client, Loss]:
    """Send this client's part of the loss of the clients' own networks."""
    alone = evolve(message, shared=None)  # the own network stays
    return client, parameter_sharing.part_of_loss.call(client, block, alone, rng)[1]


# ---- at the server


def init_server(options: Ditto, schema: Schema, rng: RandomKey) -> Server:
    """Return the server's state before the set-up.

    Raises
    ------
    FederationError
        If clients have samples in common, or different features, or one has no labels.
    """
    check_clients(schema, "ditto")
    return start(options, schema, rng, check_same_features(schema, "ditto"))


def round(server: Server, clients: Clients, rng: RandomKey) -> tuple[Server, Info]:
    """Let the clients that are there train both networks; average the changes of the first."""
    server = evolve(server, rounds=server.rounds + 1)
    # steps 1 and 2: both networks
    total = clients.sum(train_both, told(server, clients))
    # step 3: averages
    return averaged(server, total, clients), Info(phase="averaging")


certify = partial(parameter_sharing.certify, part_of_loss=part_of_own_loss)


def conclude(server: Server, clients: Clients, rng: RandomKey) -> Conclusion:
    """Return how good the clients' own networks are, which stay with them."""
    return Conclusion(certify(server, clients, rng)[1])


DITTO = Algorithm(
    name="ditto",
    hyperparameters=Ditto,
    init_server=init_server,
    init_client=init_client,
    setup=started_alike,
    round=round,
    certify=certify,
    conclude=conclude,
    states=(Server, Client, Ditto, Start),
    model=Model(predict=predict, network=network),
    disclosure=Disclosure(
        sends=(
            *sums(send_start),
            *asks(take_start),
            *sums(train_both, pooled=shares),
            *sums(part_of_own_loss, reveals=("at",)),
            *label_scaling.SENDS,
        )
    ),
)
