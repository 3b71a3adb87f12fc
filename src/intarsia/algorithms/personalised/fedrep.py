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
    Nothing, and there is no α without `layer`: a client trains in the rounds that it is there for,
    as the others do, and no client sends anything.
fedavg-ft
    All of the network. There is no step 1, and at the end all clients train all of it once more,
    each for itself: the fine-tuning. With `final_epochs` = 0 it is federated averaging (McMahan,
    Moore, Ramage, Hampson and Agüera y Arcas, "Communication-Efficient Learning of Deep Networks
    from Decentralized Data", AISTATS 2017).
fedprox
    The same without the fine-tuning. With `proximal` = μ local training is of F_i + μ/2 ‖w - w_t‖²,
    pulled to what all share (Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith, "Federated
    Optimization in Heterogeneous Networks", MLSys 2020).

Changes are averaged as each paper has it (`weights`): over clients alike in fedrep and hetfedrep,
by labelled rows in fedavg-ft and fedprox, whose objective is Σ n_i/n F_i.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from intarsia import core as fl
from intarsia.algorithms.networks import parameter_sharing as sharing
from intarsia.algorithms.networks.architecture import Architecture, named_width
from intarsia.algorithms.networks.client_network import training_of
from intarsia.algorithms.networks.embeddings import COMMON_WIDTH, layers
from intarsia.algorithms.networks.options import NetworkOptions, Weights
from intarsia.algorithms.networks.parameter_sharing import Change, Client, Server, Shared
from intarsia.algorithms.networks.targets import smoothed
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
    weights: Weights = "clients"  # in the average
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
    known_embeddings: ClassVar[tuple[str, ...]] = COMMON_WIDTH

    local_epochs: Count = 10  # M
    shared_epochs: CountOrZero = 0  # of α after local training; 0: one step
    shared_from: Count = 1  # the round in which α starts to train
    weights: Weights = "clients"  # in the average
    final_epochs: CountOrZero = 10  # of φ and β at all clients after the last round
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

    local_epochs: Count = 10
    final_epochs: CountOrZero = 10  # at all clients after the last round
    optimiser: Literal["adam", "sgd"] = "adam"  # fresh in each round
    dropout: FractionBelowOne = 0.0  # chance that a unit of the embedding is left out in training
    layer: bool = False  # a hidden layer between embedding and classifier

    @property
    def architecture(self) -> Architecture:
        """Return what a client's network is made of."""
        return replace(super().architecture, layer=self.layer)

    @property
    def own_parts(self) -> tuple[str, ...]:
        """Return which parameters each client has for itself: all."""
        return ("*",)

    @property
    def shared_parts(self) -> tuple[str, ...]:
        """Return which parameters all clients share: none."""
        return ()


@dataclass(frozen=True, kw_only=True)
class FedAvgFT(NetworkOptions):
    """Hyperparameters, with the defaults of FLIC's paper for real data."""

    local_epochs: Count = 10
    weights: Weights = "samples"  # of clients in the average
    proximal: NotNegative = 0.0  # μ, of FedProx
    final_epochs: CountOrZero = 10  # of fine-tuning, at all clients after the last round
    optimiser: Literal["adam", "sgd"] = "adam"  # fresh in each round
    dropout: FractionBelowOne = 0.0  # chance that a unit of the embedding is left out in training


@dataclass(frozen=True, kw_only=True)
class FedProx(NetworkOptions):
    """Hyperparameters; those of local training as of FedAvg-FT."""

    final_epochs: ClassVar[int] = 0  # of fine-tuning: none

    local_epochs: Count = 10
    weights: Weights = "samples"  # of clients in the average
    proximal: NotNegative = 0.1  # μ
    optimiser: Literal["adam", "sgd"] = "adam"  # fresh in each round


def _training(
    call: fl.ClientCall[Shared], epochs: int, parts: tuple[str, ...], proximal: float = 0.0
) -> LocalTraining | None:
    """Return how parts train of a client like that of a call, None without a part."""
    if not parts:
        return None
    client, block = call[:2]
    width = named_width(client.options.architecture, block)
    known = {"epochs": epochs, "proximal": proximal, "features": width}
    loss = smoothed(client.options.label_smoothing)
    return training_of(client.options, client.outputs, loss, parts, **known)


@fl.told_the_same
@fl.vectorised_function
def local_training(calls: Sequence[fl.ClientCall[Shared]]) -> list[tuple[Client, Change]]:
    """Train the client's own parts, then those that are shared; send the change of these."""
    first, options = calls[0], calls[0][0].options
    # step 1: local training
    own = _training(first, options.local_epochs, options.own_parts)
    local = sharing.train(own, sharing.open_messages(calls), "local")
    # step 2: shared step
    parts = options.shared_parts if calls[0][2].round >= options.shared_from else ()
    shared = _training(first, options.shared_epochs, parts)
    moved = sharing.train(shared, local, "shared")
    return [
        (one.client, sharing.change(one, after)) for one, after in zip(local, moved, strict=True)
    ]


@fl.vectorised_function
def train_alone(calls: Sequence[fl.ClientCall[Shared]]) -> list[tuple[Client, fl.Ready]]:
    """Train the client's own parts, which are all; there is nothing to send."""
    return _own_parts(calls, calls[0][0].options.local_epochs)


# it draws the other's batches, so that the two can be compared
train_alone = replace(train_alone, stream=local_training.name)


@fl.vectorised_function
def personalise(calls: Sequence[fl.ClientCall[Shared]]) -> list[tuple[Client, fl.Ready]]:
    """Train the client's own parts after the last round."""
    return _own_parts(calls, calls[0][0].options.final_epochs)


def _own_parts(
    calls: Sequence[fl.ClientCall[Shared]], epochs: int
) -> list[tuple[Client, fl.Ready]]:
    training = _training(calls[0], epochs, calls[0][0].options.own_parts)
    return sharing.train_and_keep(training, calls)


@fl.told_the_same
@fl.vectorised_function
def whole_training(calls: Sequence[fl.ClientCall[Shared]]) -> list[tuple[Client, Change]]:
    """Train all of the network; send its change."""
    first, options = calls[0], calls[0][0].options
    before = sharing.open_messages(calls)
    training = _training(first, options.local_epochs, options.shared_parts, options.proximal)
    moved = sharing.train(training, before, "local")
    return [
        (one.client, sharing.change(one, after)) for one, after in zip(before, moved, strict=True)
    ]


@fl.vectorised_function
def fine_tune(calls: Sequence[fl.ClientCall[Shared]]) -> list[tuple[Client, fl.Ready]]:
    """Train all of the network from what is shared at the end, and keep it."""
    first, options = calls[0], calls[0][0].options
    training = _training(first, options.final_epochs, options.shared_parts)
    return sharing.train_and_keep(training, calls)


def conclude_tuned(server: Server, clients: fl.Clients, rng: fl.RandomKey) -> fl.FinalResult:
    """Let every client tune the network to its own rows; the networks stay at the clients."""
    if server.options.final_epochs:
        clients.ask(fine_tune, sharing.broadcast(server, clients))
        server = fl.evolve(server, shared=None)  # from here on each client's network is its own
    _, info = sharing.certify(server, clients)
    return fl.FinalResult(info)


def join(clients: fl.Clients, options: HetFedRep, shared: Array) -> None:
    """Let new clients learn φ and β to the α of a finished federation, in `final_epochs`."""
    message = sharing.Shared(shared=shared, round=0)
    clients.ask(personalise, message)


FEDREP = sharing.network_algorithm(
    "fedrep", FedRep, training=local_training, alone=train_alone, personalise=personalise
)
HETFEDREP = sharing.network_algorithm(
    "hetfedrep",
    HetFedRep,
    training=local_training,
    personalise=personalise,
    own_feature_space=True,
    join=join,
)
LOCAL = sharing.network_algorithm(
    "local", Local, alone=train_alone, personalise=personalise, own_feature_space=True
)
FEDAVG_FT = sharing.network_algorithm(
    "fedavg-ft",
    FedAvgFT,
    training=whole_training,
    sends=fl.asks(fine_tune),
    conclude=conclude_tuned,
)
FEDPROX = sharing.network_algorithm(
    "fedprox", FedProx, training=whole_training, conclude=conclude_tuned
)
