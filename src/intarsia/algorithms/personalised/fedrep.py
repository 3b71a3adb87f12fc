"""FedRep, FedAvg-FT and FedProx: clients with the same features share layers, or a whole network.

Collins, Hassani, Mokhtari and Shakkottai, "Exploiting Shared Representations for Personalized
Federated Learning", ICML 2021; McMahan, Moore, Ramage, Hampson and Agüera y Arcas,
"Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017, with
fine-tuning. The network is an embedding φ and a classifier β; client i has

    F_i = 1/n_i Σ_j l(y_j, β_i∘φ(x_j))

A round of FedRep, at the clients that are there:

1. local training: open φ; some epochs on β_i, with φ fixed
2. shared step: some epochs on φ, with β_i fixed; send its change
3. the server averages the changes, which it never reads

At the end all clients train β_i once more. Of φ's three layers the first `shared_layers` are
shared, and the others are the client's own as β_i is; with none this is Local of `hetfedrep`.

In a round of FedAvg-FT there is no step 1: all of the network is shared and trains. At the end all
clients train all of it once more, each for itself: the fine-tuning. With `final_epochs` = 0 it is
federated averaging. With `proximal` = μ local training is of F_i + μ/2 ‖w - w_t‖², pulled to what
all share: FedProx (Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith, "Federated Optimization in
Heterogeneous Networks", MLSys 2020), which goes by that name without the fine-tuning.

Changes are averaged with equal weights, as in all algorithms on networks here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from intarsia.algorithms.networks import label_scaling
from intarsia.algorithms.networks.architecture import Architecture
from intarsia.algorithms.networks.client_network import (
    check_clients,
    check_options,
    check_same_features,
    training_of,
)
from intarsia.algorithms.networks.embeddings import AnyKind, layers
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
from intarsia.core.schema import Schema
from intarsia.errors import ExperimentError
from intarsia.maths.training.local_training import LocalTraining


@dataclass(frozen=True, kw_only=True)
class FedRep:
    """Hyperparameters, with the defaults of FLIC's paper for real data."""

    shared_layers: int = 3  # of φ's three
    local_epochs: int = 10  # of what is the client's own
    shared_epochs: int = 1  # of what is shared, after local training; 0: one step
    final_epochs: int = 10  # of the client's own at all clients after the last round
    rate: float = 1e-3
    optimiser: Literal["adam", "sgd"] = "adam"  # fresh in each round
    weight_decay: float = 0.0  # on β
    batch: int = 100
    embedding: AnyKind = "perceptron"  # what φ is; "convolutional" for images
    hidden: int = 64  # units of a perceptron's two hidden layers
    latent: int = 64  # k, the width of the latent space
    dropout: float = 0.0  # chance that a unit of the embedding is left out in training
    precision: Literal["single", "double"] = "single"
    engine: Literal["auto", "loop", "vmap", "compiled"] = "auto"

    def __post_init__(self) -> None:
        check_options(
            self,
            counts=("local_epochs", "batch", "hidden", "latent"),
            not_negative=("shared_layers", "shared_epochs", "final_epochs", "weight_decay"),
        )
        most = len(layers(self.embedding))
        if self.shared_layers > most:
            raise ExperimentError(
                f"algorithm.shared_layers is {self.shared_layers}; the embedding "
                f"{self.embedding!r} has {most} {'layer' if most == 1 else 'layers'}, of which "
                f"all are shared with shared_layers = {most}."
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
        """Return which parameters all clients share: the embedding's first layers."""
        return layers(self.embedding)[: self.shared_layers]

    @property
    def own_parts(self) -> tuple[str, ...]:
        """Return which parameters each client has for itself."""
        return (*layers(self.embedding)[self.shared_layers :], "classifier.*")


@dataclass(frozen=True, kw_only=True)
class FedAvgFT:
    """Hyperparameters, with the defaults of FLIC's paper for real data."""

    local_epochs: int = 10
    proximal: float = 0.0  # μ, of FedProx
    final_epochs: int = 10  # of fine-tuning, at all clients after the last round
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
            not_negative=("proximal", "final_epochs", "weight_decay"),
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
        """Return which parameters all clients share: all."""
        return ("*",)


@dataclass(frozen=True, kw_only=True)
class FedProx:
    """Hyperparameters; those of local training as of FedAvg-FT."""

    local_epochs: int = 10
    proximal: float = 0.1  # μ
    rate: float = 1e-3
    optimiser: Literal["adam", "sgd"] = "adam"  # fresh in each round
    weight_decay: float = 0.0  # on β
    batch: int = 100
    embedding: AnyKind = "perceptron"
    hidden: int = 64
    latent: int = 64
    precision: Literal["single", "double"] = "single"
    engine: Literal["auto", "loop", "vmap", "compiled"] = "auto"

    def __post_init__(self) -> None:
        check_options(
            self,
            counts=("local_epochs", "batch", "hidden", "latent"),
            not_negative=("proximal", "weight_decay"),
        )

    @property
    def final_epochs(self) -> int:
        """Return the epochs of fine-tuning: none."""
        return 0

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
        """Return which parameters all clients share: all."""
        return ("*",)


@lru_cache(maxsize=32)
def _training(
    options: FedRep | FedAvgFT | FedProx,
    outputs: int,
    epochs: int,
    *parts: str,
    proximal: float = 0.0,
) -> LocalTraining | None:
    """Return how parts train, None without a part; kept, as compiled functions belong to it."""
    if not parts:
        return None
    return training_of(options, outputs, plain_loss, parts, epochs=epochs, proximal=proximal)


# ---- at the clients


@cohort_function
def local_training(visits: Sequence[Visit[Shared]]) -> list[tuple[Client, Change]]:
    """Train the client's own parts, then those that are shared; send the change of these."""
    options, outputs = visits[0][0].options, visits[0][0].outputs
    # step 1: local training
    own = _training(options, outputs, options.local_epochs, *options.own_parts)
    local = trained(own, opened(visits), "local")
    # step 2: shared step
    shared = _training(options, outputs, options.shared_epochs, *options.shared_parts)
    moved = trained(shared, local, "shared")
    return [(one.client, change(one, after)) for one, after in zip(local, moved, strict=True)]


@cohort_function
def train_alone(visits: Sequence[Visit[Shared]]) -> list[tuple[Client, Ready]]:
    """Train the client's own parts, which are all; there is nothing to send."""
    return _own_parts(visits, visits[0][0].options.local_epochs)


# it draws the other's batches, so that the two can be compared
train_alone = replace(train_alone, stream=local_training.name)


@cohort_function
def personalise(visits: Sequence[Visit[Shared]]) -> list[tuple[Client, Ready]]:
    """Train the client's own parts after the last round."""
    return _own_parts(visits, visits[0][0].options.final_epochs)


def _own_parts(visits: Sequence[Visit[Shared]], epochs: int) -> list[tuple[Client, Ready]]:
    options, outputs = visits[0][0].options, visits[0][0].outputs
    training = _training(options, outputs, epochs, *options.own_parts)
    return [(one.client, Ready()) for one in trained(training, opened(visits), "local")]


@cohort_function
def whole_training(visits: Sequence[Visit[Shared]]) -> list[tuple[Client, Change]]:
    """Train all of the network; send its change."""
    options, outputs = visits[0][0].options, visits[0][0].outputs
    before = opened(visits)
    training = _training(
        options, outputs, options.local_epochs, *options.shared_parts, proximal=options.proximal
    )
    moved = trained(training, before, "local")
    return [(one.client, change(one, after)) for one, after in zip(before, moved, strict=True)]


@cohort_function
def fine_tune(visits: Sequence[Visit[Shared]]) -> list[tuple[Client, Ready]]:
    """Train all of the network from what is shared at the end, and keep it."""
    options, outputs = visits[0][0].options, visits[0][0].outputs
    training = _training(options, outputs, options.final_epochs, *options.shared_parts)
    return [(one.client, Ready()) for one in trained(training, opened(visits), "local")]


# ---- at the server


def init_server(options: FedRep | FedAvgFT | FedProx, schema: Schema, rng: RandomKey) -> Server:
    """Return the server's state before the set-up.

    Raises
    ------
    FederationError
        If clients have samples in common, or different features, or one has no labels.
    """
    name = {FedRep: "fedrep", FedProx: "fedprox"}.get(type(options), "fedavg-ft")
    check_clients(schema, name)
    features = check_same_features(schema, name) if options.shared_parts else None
    return start(options, schema, rng, features)


def round(server: Server, clients: Clients, rng: RandomKey) -> tuple[Server, Info]:
    """Let the clients that are there train; average the changes of what is shared."""
    server = evolve(server, rounds=server.rounds + 1)
    if not server.options.shared_parts:
        clients.ask(train_alone, told(server, clients))
        return server, Info(phase="local")
    # steps 1 and 2: local training, shared step
    total = clients.sum(local_training, told(server, clients))
    # step 3: averages
    return averaged(server, total, clients), Info(phase="averaging")


def round_whole(server: Server, clients: Clients, rng: RandomKey) -> tuple[Server, Info]:
    """Let the clients that are there train all of the network; average its changes."""
    server = evolve(server, rounds=server.rounds + 1)
    total = clients.sum(whole_training, told(server, clients))
    return averaged(server, total, clients), Info(phase="averaging")


def conclude(server: Server, clients: Clients, rng: RandomKey) -> Conclusion:
    """Let every client train its own parts a last time; the networks stay at the clients."""
    return concluded(server, clients, personalise)


def conclude_tuned(server: Server, clients: Clients, rng: RandomKey) -> Conclusion:
    """Let every client tune the network to its own rows; the networks stay at the clients."""
    if server.options.final_epochs:
        clients.ask(fine_tune, told(server, clients))
        server = evolve(server, shared=None)  # from here on each client's network is its own
    _, info = certify(server, clients, rng)
    return Conclusion(info)


FEDREP = Algorithm(
    name="fedrep",
    hyperparameters=FedRep,
    init_server=init_server,
    init_client=init_client,
    setup=setup,
    round=round,
    certify=certify,
    conclude=conclude,
    states=(Server, Client, FedRep, Start),
    model=Model(predict=predict, network=network),
    disclosure=Disclosure(
        sends=(
            *sums(send_start),
            *sums(local_training, pooled=shares),
            *asks(train_alone, personalise),
            *LOSS,
            *label_scaling.SENDS,
        )
    ),
)

FEDAVG_FT = replace(
    FEDREP,
    name="fedavg-ft",
    hyperparameters=FedAvgFT,
    round=round_whole,
    conclude=conclude_tuned,
    states=(Server, Client, FedAvgFT, Start),
    disclosure=Disclosure(
        sends=(
            *sums(send_start),
            *sums(whole_training, pooled=shares),
            *asks(fine_tune),
            *LOSS,
            *label_scaling.SENDS,
        )
    ),
)

FEDPROX = replace(
    FEDAVG_FT,
    name="fedprox",
    hyperparameters=FedProx,
    states=(Server, Client, FedProx, Start),
    disclosure=Disclosure(
        sends=(
            *sums(send_start),
            *sums(whole_training, pooled=shares),
            *LOSS,
            *label_scaling.SENDS,
        )
    ),
)
