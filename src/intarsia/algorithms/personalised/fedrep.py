"""FedRep and its relatives: clients share some layers, a whole network, or nothing.

Collins, Hassani, Mokhtari and Shakkottai, "Exploiting Shared Representations for Personalized
Federated Learning", ICML 2021. A client's network is an embedding φ, maybe a hidden layer α, and a
classifier β; some parts are shared, the others are the client's own:

    F_i = 1/n_i Σ_j l(y_j, β_i∘α∘φ_i(x_j))

A round, at the clients that are there:

1. local training: open what is shared; some epochs on the own parts, with the shared ones fixed
2. shared step: some epochs (or one step) on the shared parts, all else fixed; send their change
3. the server averages the changes, which it never reads

At the end all clients train their own parts once more. The algorithms differ in what is shared:

fedrep
    The first `shared_layers` of φ's three, of clients with the same features. With none it is
    `local`.
hetfedrep
    α alone, so that every client has features of its own, as FLIC's paper compares it (see `flic`):
    nothing aligns the embeddings. The authors' HetFedRep still aligns φ after every round; this one
    is FLIC with λ1 = λ2 = 0 and no pretraining. `weight_decay`, `shared_from` and `shared_epochs`
    are theirs.
local
    Nothing, and there is no α: a client trains in the rounds that it is there for, as the others
    do, and no client sends anything.
fedavg-ft
    All of the network. There is no step 1, and at the end all clients train all of it once more,
    each for itself: the fine-tuning. With `final_epochs` = 0 it is federated averaging (McMahan,
    Moore, Ramage, Hampson and Agüera y Arcas, "Communication-Efficient Learning of Deep Networks
    from Decentralized Data", AISTATS 2017).
fedprox
    The same without the fine-tuning. With `proximal` = μ local training is of F_i + μ/2 ‖w - w_t‖²,
    pulled to what all share (Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith, "Federated
    Optimization in Heterogeneous Networks", MLSys 2020).

Changes are averaged with equal weights, as in all algorithms on networks here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Literal

from intarsia.algorithms.networks import parameter_sharing as sharing
from intarsia.algorithms.networks.architecture import Architecture
from intarsia.algorithms.networks.client_network import training_of
from intarsia.algorithms.networks.embeddings import Kind, layers
from intarsia.algorithms.networks.options import NetworkOptions
from intarsia.algorithms.networks.parameter_sharing import Change, Client, Server, Shared
from intarsia.algorithms.networks.targets import plain_loss
from intarsia.core.algorithm import (
    ClientCall,
    Clients,
    FinalResult,
    RandomKey,
    Ready,
    RoundMetrics,
    asks,
    evolve,
    sums,
    vectorised_function,
)
from intarsia.core.block import Array
from intarsia.core.settings import Count, CountOrZero, FractionBelowOne, NotNegative
from intarsia.errors import ExperimentError
from intarsia.maths.training.local_training import LocalTraining


@dataclass(frozen=True, kw_only=True)
class FedRep(NetworkOptions):
    """Hyperparameters, with the defaults of FLIC's paper for real data."""

    shared_from: ClassVar[int] = 1  # the round in which what is shared starts to train

    shared_layers: CountOrZero = 3  # of φ's three
    local_epochs: Count = 10  # of what is the client's own
    shared_epochs: CountOrZero = 1  # of what is shared, after local training; 0: one step
    final_epochs: CountOrZero = 10  # of the client's own at all clients after the last round
    optimiser: Literal["adam", "sgd"] = "adam"  # fresh in each round
    dropout: FractionBelowOne = 0.0  # chance that a unit of the embedding is left out in training

    def __post_init__(self) -> None:
        super().__post_init__()
        most = len(layers(self.embedding))
        if self.shared_layers > most:
            raise ExperimentError(
                f"algorithm.shared_layers is {self.shared_layers}; the embedding "
                f"{self.embedding!r} has {most} {'layer' if most == 1 else 'layers'}, of which "
                f"all are shared with shared_layers = {most}."
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
class HetFedRep(NetworkOptions):
    """Hyperparameters, with the defaults of FLIC's paper for real data."""

    own_parts: ClassVar[tuple[str, ...]] = ("embedding.*", "classifier.*")

    local_epochs: Count = 10  # M
    shared_epochs: CountOrZero = 0  # of α after local training; 0: one step
    shared_from: Count = 1  # the round in which α starts to train
    final_epochs: CountOrZero = 10  # of φ and β at all clients after the last round
    embedding: Kind = "perceptron"
    dropout: FractionBelowOne = 0.0  # chance that a unit of the embedding is left out in training

    @property
    def architecture(self) -> Architecture:
        """Return what a client's network is made of."""
        return replace(super().architecture, layer=True)

    @property
    def shared_parts(self) -> tuple[str, ...]:
        """Return which parameters all clients share: α."""
        return ("shared.*",)


@dataclass(frozen=True, kw_only=True)
class Local(NetworkOptions):
    """Hyperparameters, with the defaults of FLIC's paper for real data."""

    own_parts: ClassVar[tuple[str, ...]] = ("embedding.*", "classifier.*")

    local_epochs: Count = 10
    final_epochs: CountOrZero = 10  # at all clients after the last round
    optimiser: Literal["adam", "sgd"] = "adam"  # fresh in each round
    dropout: FractionBelowOne = 0.0  # chance that a unit of the embedding is left out in training

    @property
    def shared_parts(self) -> tuple[str, ...]:
        """Return which parameters all clients share: none."""
        return ()


@dataclass(frozen=True, kw_only=True)
class FedAvgFT(NetworkOptions):
    """Hyperparameters, with the defaults of FLIC's paper for real data."""

    local_epochs: Count = 10
    proximal: NotNegative = 0.0  # μ, of FedProx
    final_epochs: CountOrZero = 10  # of fine-tuning, at all clients after the last round
    optimiser: Literal["adam", "sgd"] = "adam"  # fresh in each round
    dropout: FractionBelowOne = 0.0  # chance that a unit of the embedding is left out in training


@dataclass(frozen=True, kw_only=True)
class FedProx(NetworkOptions):
    """Hyperparameters; those of local training as of FedAvg-FT."""

    final_epochs: ClassVar[int] = 0  # of fine-tuning: none

    local_epochs: Count = 10
    proximal: NotNegative = 0.1  # μ
    optimiser: Literal["adam", "sgd"] = "adam"  # fresh in each round


@lru_cache(maxsize=32)
def _training(
    options: NetworkOptions, outputs: int, epochs: int, *parts: str, proximal: float = 0.0
) -> LocalTraining | None:
    """Return how parts train, None without a part; kept, as compiled functions belong to it."""
    if not parts:
        return None
    return training_of(options, outputs, plain_loss, parts, epochs=epochs, proximal=proximal)


@vectorised_function
def local_training(visits: Sequence[ClientCall[Shared]]) -> list[tuple[Client, Change]]:
    """Train the client's own parts, then those that are shared; send the change of these."""
    options, outputs = visits[0][0].options, visits[0][0].outputs
    # step 1: local training
    own = _training(options, outputs, options.local_epochs, *options.own_parts)
    local = sharing.trained(own, sharing.opened(visits), "local")
    # step 2: shared step
    parts = options.shared_parts if visits[0][2].round >= options.shared_from else ()
    shared = _training(options, outputs, options.shared_epochs, *parts)
    moved = sharing.trained(shared, local, "shared")
    return [
        (one.client, sharing.change(one, after)) for one, after in zip(local, moved, strict=True)
    ]


@vectorised_function
def train_alone(visits: Sequence[ClientCall[Shared]]) -> list[tuple[Client, Ready]]:
    """Train the client's own parts, which are all; there is nothing to send."""
    return _own_parts(visits, visits[0][0].options.local_epochs)


# it draws the other's batches, so that the two can be compared
train_alone = replace(train_alone, stream=local_training.name)


@vectorised_function
def personalise(visits: Sequence[ClientCall[Shared]]) -> list[tuple[Client, Ready]]:
    """Train the client's own parts after the last round."""
    return _own_parts(visits, visits[0][0].options.final_epochs)


def _own_parts(visits: Sequence[ClientCall[Shared]], epochs: int) -> list[tuple[Client, Ready]]:
    options, outputs = visits[0][0].options, visits[0][0].outputs
    training = _training(options, outputs, epochs, *options.own_parts)
    found = sharing.trained(training, sharing.opened(visits), "local")
    return [(one.client, Ready()) for one in found]


@vectorised_function
def whole_training(visits: Sequence[ClientCall[Shared]]) -> list[tuple[Client, Change]]:
    """Train all of the network; send its change."""
    options, outputs = visits[0][0].options, visits[0][0].outputs
    before = sharing.opened(visits)
    training = _training(
        options, outputs, options.local_epochs, *options.shared_parts, proximal=options.proximal
    )
    moved = sharing.trained(training, before, "local")
    return [
        (one.client, sharing.change(one, after)) for one, after in zip(before, moved, strict=True)
    ]


@vectorised_function
def fine_tune(visits: Sequence[ClientCall[Shared]]) -> list[tuple[Client, Ready]]:
    """Train all of the network from what is shared at the end, and keep it."""
    options, outputs = visits[0][0].options, visits[0][0].outputs
    training = _training(options, outputs, options.final_epochs, *options.shared_parts)
    found = sharing.trained(training, sharing.opened(visits), "local")
    return [(one.client, Ready()) for one in found]


def round(server: Server, clients: Clients, rng: RandomKey) -> tuple[Server, RoundMetrics]:
    """Let the clients that are there train; average the changes of what is shared."""
    server = evolve(server, rounds=server.rounds + 1)
    if not server.options.shared_parts:
        clients.ask(train_alone, sharing.told(server, clients))
        return server, RoundMetrics(phase="local")
    # steps 1 and 2: local training, shared step
    total = clients.sum(local_training, sharing.told(server, clients))
    # step 3: averages
    return sharing.averaged(server, total, clients), RoundMetrics(phase="averaging")


def round_whole(server: Server, clients: Clients, rng: RandomKey) -> tuple[Server, RoundMetrics]:
    """Let the clients that are there train all of the network; average its changes."""
    server = evolve(server, rounds=server.rounds + 1)
    total = clients.sum(whole_training, sharing.told(server, clients))
    return sharing.averaged(server, total, clients), RoundMetrics(phase="averaging")


def conclude_tuned(server: Server, clients: Clients, rng: RandomKey) -> FinalResult:
    """Let every client tune the network to its own rows; the networks stay at the clients."""
    if server.options.final_epochs:
        clients.ask(fine_tune, sharing.told(server, clients))
        server = evolve(server, shared=None)  # from here on each client's network is its own
    _, info = sharing.certify(server, clients, rng)
    return FinalResult(info)


def join(clients: Clients, options: HetFedRep, shared: Array) -> None:
    """Let new clients learn φ and β to the α of a finished federation, in `final_epochs`."""
    message = sharing.Shared(shared=shared, round=0)
    clients.ask(personalise, dict.fromkeys(clients.ids, message))


_PARTS = (*sums(sharing.send_start), *sums(local_training, pooled=sharing.shares))
_WHOLE = (*sums(sharing.send_start), *sums(whole_training, pooled=sharing.shares))

FEDREP = sharing.network_algorithm(
    "fedrep",
    FedRep,
    round,
    sends=(*_PARTS, *asks(train_alone)),
    personalise=personalise,
)
HETFEDREP = sharing.network_algorithm(
    "hetfedrep",
    HetFedRep,
    round,
    sends=_PARTS,
    personalise=personalise,
    own_feature_space=True,
    join=join,
)
LOCAL = sharing.network_algorithm(
    "local",
    Local,
    round,
    sends=asks(train_alone),
    personalise=personalise,
    own_feature_space=True,
)
FEDAVG_FT = sharing.network_algorithm(
    "fedavg-ft",
    FedAvgFT,
    round_whole,
    sends=(*_WHOLE, *asks(fine_tune)),
    conclude=conclude_tuned,
)
FEDPROX = sharing.network_algorithm(
    "fedprox", FedProx, round_whole, sends=_WHOLE, conclude=conclude_tuned
)
