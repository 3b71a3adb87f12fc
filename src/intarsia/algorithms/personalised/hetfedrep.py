"""HetFedRep and Local: the baselines of FLIC, without anchors.

HetFedRep is FedRep (Collins, Hassani, Mokhtari and Shakkottai, "Exploiting Shared Representations
for Personalized Federated Learning", ICML 2021) with an embedding φ_i of a client's own features
in front, as FLIC's paper compares it (see `flic`): nothing aligns the embeddings.

    F_i = 1/n_i Σ_j l(y_j, β_i∘α∘φ_i(x_j))

A round of HetFedRep, at the clients that are there:

1. local training: open α; some epochs on (φ_i, β_i) with α fixed
2. shared step: one step (or some epochs) on α, all else fixed; send its change
3. the server averages the changes, which it never reads

Local is the same network without α, so that nothing is shared: a client trains in the rounds that
it is there for, as the others do, and no client sends anything.

At the end all clients train φ_i and β_i once more, in HetFedRep with the last α.

The authors' HetFedRep still aligns φ after every round; this one is truly unaligned, and is FLIC
with λ1 = λ2 = 0 and no pretraining. `weight_decay`, `shared_from` and `shared_epochs` are theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from intarsia.algorithms.networks import label_scaling
from intarsia.algorithms.networks.architecture import Architecture
from intarsia.algorithms.networks.client_network import check_clients, check_options, training_of
from intarsia.algorithms.networks.embeddings import AnyKind, Kind
from intarsia.algorithms.networks.parameter_sharing import (
    LOSS,
    Change,
    Client,
    Server,
    Shared,
    Start,
    averaged,
    certify,
    change,
    concluded,
    init_client,
    network,
    opened,
    predict,
    send_start,
    setup,
    shares,
    start,
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
    cohort_function,
    evolve,
    sums,
)
from intarsia.core.block import Array
from intarsia.core.schema import Schema
from intarsia.maths.training.local_training import LocalTraining


@dataclass(frozen=True, kw_only=True)
class HetFedRep:
    """Hyperparameters, with the defaults of FLIC's paper for real data."""

    local_epochs: int = 10  # M
    shared_epochs: int = 0  # of α after local training; 0: one step
    shared_from: int = 1  # the round in which α starts to train
    final_epochs: int = 10  # of φ and β at all clients after the last round
    rate: float = 1e-3  # of Adam, fresh in each round
    weight_decay: float = 0.0  # on α and β
    batch: int = 100
    embedding: Kind = "perceptron"  # what φ is; "convolutional" for images
    hidden: int = 64  # units of a perceptron's two hidden layers
    latent: int = 64  # k, the width of the latent space
    dropout: float = 0.0  # chance that a unit of the embedding is left out in training
    precision: Literal["single", "double"] = "single"
    engine: Literal["auto", "loop", "vmap", "compiled"] = "auto"

    def __post_init__(self) -> None:
        check_options(
            self,
            counts=("local_epochs", "shared_from", "batch", "hidden", "latent"),
            not_negative=("shared_epochs", "final_epochs", "weight_decay"),
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
            layer=True,
        )

    @property
    def shared_parts(self) -> tuple[str, ...]:
        """Return which parameters all clients share: α."""
        return ("shared.*",)


@dataclass(frozen=True, kw_only=True)
class Local:
    """Hyperparameters, with the defaults of FLIC's paper for real data."""

    local_epochs: int = 10
    final_epochs: int = 10  # at all clients after the last round
    rate: float = 1e-3
    optimiser: Literal["adam", "sgd"] = "adam"  # fresh in each round
    weight_decay: float = 0.0  # on β
    batch: int = 100
    embedding: AnyKind = "perceptron"
    hidden: int = 64
    latent: int = 64
    dropout: float = 0.0  # chance that a unit of the embedding is left out in training
    precision: Literal["single", "double"] = "single"
    engine: Literal["auto", "loop", "vmap", "compiled"] = "auto"

    def __post_init__(self) -> None:
        check_options(
            self,
            counts=("local_epochs", "batch", "hidden", "latent"),
            not_negative=("final_epochs", "weight_decay"),
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
        """Return which parameters all clients share: none."""
        return ()


@lru_cache(maxsize=32)
def _training(options: HetFedRep | Local, outputs: int, epochs: int, *parts: str) -> LocalTraining:
    """Return how parts train; kept, as compiled functions belong to it."""
    return training_of(options, outputs, plain_loss, parts, epochs=epochs)


_OWN = ("embedding.*", "classifier.*")


# ---- at the clients


@cohort_function
def local_training(visits: Sequence[Visit[Shared]]) -> list[tuple[Client, Change]]:
    """Train φ and β, then take the step on α; send its change."""
    options, outputs, told_round = visits[0][0].options, visits[0][0].outputs, visits[0][2].round
    # step 1: local training
    training = _training(options, outputs, options.local_epochs, *_OWN)
    local = trained(training, opened(visits), "local")
    # step 2: shared step
    moves = told_round >= options.shared_from
    shared = _training(options, outputs, options.shared_epochs, "shared.*") if moves else None
    moved = trained(shared, local, "shared")
    return [(one.client, change(one, after)) for one, after in zip(local, moved, strict=True)]


@cohort_function
def train_alone(visits: Sequence[Visit[Shared]]) -> list[tuple[Client, Ready]]:
    """Train φ and β; there is nothing to send."""
    options = visits[0][0].options
    training = _training(options, visits[0][0].outputs, options.local_epochs, *_OWN)
    return [(one.client, Ready()) for one in trained(training, opened(visits), "local")]


# it draws the other's batches, so that the two can be compared
train_alone = replace(train_alone, stream=local_training.name)


@cohort_function
def personalise(visits: Sequence[Visit[Shared]]) -> list[tuple[Client, Ready]]:
    """Train φ and β after the last round."""
    options = visits[0][0].options
    training = _training(options, visits[0][0].outputs, options.final_epochs, *_OWN)
    return [(one.client, Ready()) for one in trained(training, opened(visits), "local")]


# ---- at the server


def init_server(options: HetFedRep | Local, schema: Schema, rng: RandomKey) -> Server:
    """Return the server's state before the set-up.

    Raises
    ------
    FederationError
        If clients have samples in common, or one has no labels.
    """
    check_clients(schema, "hetfedrep" if isinstance(options, HetFedRep) else "local")
    return start(options, schema, rng)


def round(server: Server, clients: Clients, rng: RandomKey) -> tuple[Server, Info]:
    """Let the clients that are there train; average the changes of α."""
    server = evolve(server, rounds=server.rounds + 1)
    # steps 1 and 2: local training, shared step
    total = clients.sum(local_training, told(server, clients))
    # step 3: averages
    return averaged(server, total, clients), Info(phase="averaging")


def round_alone(server: Server, clients: Clients, rng: RandomKey) -> tuple[Server, Info]:
    """Let each client that is there train for itself."""
    server = evolve(server, rounds=server.rounds + 1)
    clients.ask(train_alone, told(server, clients))
    return server, Info(phase="local")


def conclude(server: Server, clients: Clients, rng: RandomKey) -> Conclusion:
    """Let every client train a last time; the networks stay at the clients."""
    return concluded(server, clients, personalise)


def join(clients: Clients, options: HetFedRep, shared: Array) -> None:
    """Let new clients learn φ and β to the α of a finished federation, in `final_epochs`."""
    clients.ask(personalise, dict.fromkeys(clients.ids, Shared(shared=shared, round=0)))


HETFEDREP = Algorithm(
    name="hetfedrep",
    hyperparameters=HetFedRep,
    init_server=init_server,
    init_client=init_client,
    setup=setup,
    round=round,
    certify=certify,
    conclude=conclude,
    states=(Server, Client, HetFedRep, Start),
    model=Model(predict=predict, own_feature_space=True, network=network, join=join),
    disclosure=Disclosure(
        sends=(
            *sums(send_start),
            *sums(local_training, pooled=shares),
            *asks(personalise),
            *LOSS,
            *label_scaling.SENDS,
        )
    ),
)

LOCAL = replace(
    HETFEDREP,
    name="local",
    hyperparameters=Local,
    round=round_alone,
    states=(Server, Client, Local, Start),
    model=replace(HETFEDREP.model, join=None),
    disclosure=Disclosure(
        sends=(
            *asks(train_alone, personalise),
            *LOSS,
            *label_scaling.SENDS,
        )
    ),
)
