"""L2GD: clients with the same features have networks of their own, drawn to the mean of all.

Hanzely and Richtárik, "Federated Learning of a Mixture of Global and Local Models", 2020 (loopless
local gradient descent), one of the local schemes of FLIC's paper (see `flic`). Client i has a
network w_i, an embedding and a classifier, and all together

    1/n Σ_i F_i(w_i) + λ/2n Σ_i ‖w_i - w̄‖²,   w̄ = 1/n Σ_i w_i

A round, at the clients that are there:

1. local training: some epochs on all of w_i
2. with probability p: w̄ is added up, which the server does not read, and every client steps
   towards it, w_i ← w_i - m (w_i - w̄)

At the end all clients train once more. All start from the same network.

Departures from the paper
- a round is local training, and in a share p of the rounds the step to the mean as well; there
  each of the two is an iteration of its own, chosen at random
- local training is by epochs of Adam, not one gradient step
- m = αλ/np is one hyperparameter, `mixing`; with m = 0 nothing is shared, everybody starts from a
  network of its own, and this is Local of `hetfedrep`
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from intarsia.algorithms.networks import label_scaling
from intarsia.algorithms.networks.architecture import Architecture
from intarsia.algorithms.networks.client_network import (
    check_clients,
    check_options,
    check_same_features,
    part_vector,
    training_of,
    with_parts,
)
from intarsia.algorithms.networks.embeddings import AnyKind
from intarsia.algorithms.networks.parameter_sharing import (
    LOSS,
    Client,
    Server,
    Shared,
    Start,
    certify,
    concluded,
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
    Ready,
    Visit,
    asks,
    client_function,
    cohort_function,
    evolve,
    sums,
)
from intarsia.core.block import Array, Block
from intarsia.core.schema import Schema
from intarsia.errors import ExperimentError
from intarsia.maths.training.local_training import LocalTraining


@dataclass(frozen=True, kw_only=True)
class L2gd:
    """Hyperparameters, with the defaults of FLIC's paper for real data."""

    mixing: float = 0.1  # m, how far a client goes towards the mean; 1: all the way
    aggregation: float = 1.0  # p, the share of the rounds in which clients do
    local_epochs: int = 10
    final_epochs: int = 10  # at all clients after the last round
    rate: float = 1e-3  # of Adam, fresh in each round
    weight_decay: float = 0.0  # on the classifier
    batch: int = 100
    embedding: AnyKind = "perceptron"  # what the embedding is; "convolutional" for images
    hidden: int = 64  # units of a perceptron's two hidden layers
    latent: int = 64  # width of the latent space
    dropout: float = 0.0  # chance that a unit of the embedding is left out in training
    precision: Literal["single", "double"] = "single"
    engine: Literal["auto", "loop", "vmap", "compiled"] = "auto"

    def __post_init__(self) -> None:
        check_options(
            self,
            counts=("local_epochs", "batch", "hidden", "latent"),
            not_negative=("mixing", "aggregation", "final_epochs", "weight_decay"),
        )
        for name in ("mixing", "aggregation"):
            if getattr(self, name) > 1:
                raise ExperimentError(
                    f"algorithm.{name} is {getattr(self, name)}; it must be between 0 and 1."
                )

    @property
    def loss(self) -> str:
        """Return the loss that the scores are graded by."""
        return "cross_entropy"

    @property
    def architecture(self) -> Architecture:
        """Return what a client's network is made of."""
        return Architecture(
            embedding=self.embedding,
            hidden=self.hidden,
            latent=self.latent,
            dropout=self.dropout,
        )

    @property
    def shared_parts(self) -> tuple[str, ...]:
        """Return which parameters start alike at all clients and are drawn to their mean."""
        return ("*",) if self.mixing > 0 else ()


@dataclass(frozen=True)
class Average:
    """Asks for a client's part of the mean network."""


@dataclass(frozen=True)
class Parameters:
    """All parameters of a client's network, or their total or mean."""

    at: Array  # (parameters,)


@lru_cache(maxsize=32)
def _training(options: L2gd, outputs: int, epochs: int) -> LocalTraining:
    """Return how a network trains; kept, as compiled functions belong to it."""
    parts = ("embedding.*", "classifier.*")
    return training_of(options, outputs, plain_loss, parts, epochs=epochs)


# ---- at the clients


@cohort_function
def local_training(visits: Sequence[Visit[Shared]]) -> list[tuple[Client, Ready]]:
    """Train the client's network; there is nothing to send."""
    return _trained(visits, visits[0][0].options.local_epochs)


@cohort_function
def personalise(visits: Sequence[Visit[Shared]]) -> list[tuple[Client, Ready]]:
    """Train the client's network after the last round."""
    return _trained(visits, visits[0][0].options.final_epochs)


def _trained(visits: Sequence[Visit[Shared]], epochs: int) -> list[tuple[Client, Ready]]:
    training = _training(visits[0][0].options, visits[0][0].outputs, epochs)
    return [(one.client, Ready()) for one in trained(training, opened(visits), "local")]


@client_function
def send_network(
    client: Client, block: Block, message: Average, rng: RandomKey
) -> tuple[Client, Parameters]:
    """Send the client's network, for a sum that the server does not read."""
    return client, Parameters(part_vector(client.parameters, client.options.shared_parts))


@client_function
def mix(client: Client, block: Block, message: Parameters, rng: RandomKey) -> tuple[Client, Ready]:
    """Step towards the mean network."""
    parts = client.options.shared_parts
    own = part_vector(client.parameters, parts)
    moved = own - client.options.mixing * (own - message.at)
    return evolve(client, parameters=with_parts(client.parameters, parts, moved)), Ready()


# ---- at the server


def init_server(options: L2gd, schema: Schema, rng: RandomKey) -> Server:
    """Return the server's state before the set-up.

    Raises
    ------
    FederationError
        If clients have samples in common, or different features, or one has no labels.
    """
    check_clients(schema, "l2gd")
    features = check_same_features(schema, "l2gd") if options.shared_parts else None
    return start(options, schema, rng, features)


def setup(server: Server, clients: Clients, rng: RandomKey) -> Server:
    """Let all clients start from the network that the server drew."""
    server = started_alike(server, clients, rng)
    return evolve(server, shared=None)  # from here on each client's network is its own


def round(server: Server, clients: Clients, rng: RandomKey) -> tuple[Server, Info]:
    """Let the clients that are there train, and in some rounds step to their mean."""
    server = evolve(server, rounds=server.rounds + 1)
    options = server.options
    # step 1: local training
    clients.ask(local_training, told(server, clients))
    # step 2: a step towards the mean
    drawn = rng.fold_in("aggregation").generator().random()
    if not options.shared_parts or drawn >= options.aggregation:
        return server, Info(phase="local")
    total = clients.sum(send_network, dict.fromkeys(clients.ids, Average()))
    mean = Parameters(at=total.at * (1 / len(clients.ids)))
    clients.ask(mix, dict.fromkeys(clients.ids, mean))
    return server, Info(phase="averaging")


def conclude(server: Server, clients: Clients, rng: RandomKey) -> Conclusion:
    """Let every client train a last time; the networks stay at the clients."""
    return concluded(server, clients, personalise)


L2GD = Algorithm(
    name="l2gd",
    hyperparameters=L2gd,
    init_server=init_server,
    init_client=init_client,
    setup=setup,
    round=round,
    certify=certify,
    conclude=conclude,
    states=(Server, Client, L2gd, Start),
    model=Model(predict=predict, network=network),
    disclosure=Disclosure(
        sends=(
            *sums(send_start),
            *asks(take_start, local_training, mix, personalise),
            *sums(send_network, pooled=shares),
            *LOSS,
            *label_scaling.SENDS,
        )
    ),
)
