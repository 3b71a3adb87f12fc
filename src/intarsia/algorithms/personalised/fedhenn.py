"""FedHeNN: each client has a network of its own, and what they say of the same points is alike.

Makhija, Han, Ho and Ghosh, "Architecture Agnostic Federated Learning for Neural Networks", ICML
2022, as FLIC's paper compares it (see `flic`): every client has features of its own, an embedding
φ_i of them and a classifier β_i; nothing of a network is shared. The clients' embeddings of some
points, X_i, give kernels K_i = φ_i(X_i) φ_i(X_i)ᵀ, and a client learns from

    F_i = 1/n_i Σ_j l(y_j, β_i∘φ_i(x_j)) + η (1 - CKA(K_i, K̄))
    CKA(K, L) = <HKH, HLH> / (‖HKH‖ ‖HLH‖),   H = I - 11ᵀ/R

with K̄ the mean of the kernels. A round, at the clients that are there:

1. kernels: embed the round's points; the server adds the kernels up and does not read them
2. local training: some epochs on (φ_i, β_i) with the mean kernel as it was at step 1

At the end all clients go through both steps once more.

The points are R standard normal numbers for each feature, drawn anew in each round from a key that
all know. A client takes as many as it has features, or the corner of the images that is as large
as its own: points of the largest space that are cut to the smaller ones, as FLIC's authors do it.

Departures from FLIC's authors' code (github.com/arakotom/flic)
- the similarity is to grow; there the term has the other sign, so that kernels are driven apart
- K̄ is the mean over the clients that are there, not over all: in a round nobody else can be asked
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Ge

from intarsia import core as fl
from intarsia.algorithms.networks import parameter_sharing as sharing
from intarsia.algorithms.networks.architecture import named_width
from intarsia.algorithms.networks.client_network import features_of, training_of
from intarsia.algorithms.networks.embeddings import COMMON_WIDTH
from intarsia.algorithms.networks.label_scaling import on_scale
from intarsia.algorithms.networks.options import NetworkOptions, Weights, device_of
from intarsia.algorithms.networks.parameter_sharing import Client, Server
from intarsia.algorithms.networks.targets import row_losses
from intarsia.core.block import Array, Block
from intarsia.core.settings import Count, CountOrZero, FractionBelowOne, NotNegative
from intarsia.maths.training.local_training import Batch
from intarsia.maths.training.torch_import import Tensor, nn, torch


@dataclass(frozen=True, kw_only=True)
class FedHeNN(NetworkOptions):
    """Hyperparameters, with the defaults of FLIC's paper for real data."""

    known_embeddings: ClassVar[tuple[str, ...]] = COMMON_WIDTH

    similarity_weight: NotNegative = 0.1  # η
    points: Annotated[int, Ge(2), "centred kernels have nothing of one point"] = 100  # R
    local_epochs: Count = 10
    weights: Weights = "clients"  # in the mean of the kernels
    final_epochs: CountOrZero = 10  # at all clients after the last round
    dropout: FractionBelowOne = 0.0  # chance that a unit of the embedding is left out in training

    @property
    def shared_parts(self) -> tuple[str, ...]:
        """Return which parameters all clients share: none."""
        return ()


@dataclass(frozen=True)
class Points:
    """Names the points that all embed."""

    key: int  # of the stream that they come from


@fl.describe("similarities of random points as a network sees them")
class Kernel:
    """The inner products of the embedded points at one client, or their total."""

    at: Array  # (R, R)


@dataclass(frozen=True)
class Similar:
    """The points, and the kernel that a client's is to be like; None: any."""

    key: int
    kernel: Array | None  # (R, R)
    round: int = 1


def _unlikeness(model: nn.Module, batch: Batch) -> Tensor:
    """Return 1 - CKA of the client's kernel with the mean one, which has mean 0 and norm 1."""
    kernel = batch["kernel"]
    latent = model.embedding(batch["points"]).to(kernel.dtype)
    centred = latent - latent.mean(-2, keepdim=True)
    with torch.autocast(kernel.device.type, enabled=False):  # a small difference from 1
        inner = ((kernel @ centred) * centred).sum((-2, -1))  # <HKH, HLH> with HLH given
        squares = (centred.mT @ centred).square().sum((-2, -1))  # of HKH: the same eigenvalues
    # points that all have one embedding are like no others, and the root has no slope at 0
    found: Tensor = 1 - inner / torch.where(squares > 0, squares, 1.0).sqrt()
    return found


@lru_cache(maxsize=32)  # a training is kept by its objective
def _objective(options: FedHeNN) -> Callable[[nn.Module, Batch], Any]:
    """Return F_i of a batch."""

    def complete(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor] | Tensor:
        scores = model(batch["x"], batch.get("dropped"))[1]
        each = row_losses(scores, batch["y"], options.label_smoothing)
        if options.similarity_weight == 0:
            return each
        return each, options.similarity_weight * _unlikeness(model, batch)

    return complete


@fl.told_the_same
@fl.client_function
def send_kernel(client: Client, block: Block, message: Points) -> tuple[Client, Kernel]:
    """Embed the points; send their inner products."""
    x = _points(client.options, features_of(client.options, block), message.key)
    names = tuple(map(str, range(x.shape[1])))
    points = Block(np.arange(len(x)), names, x)
    made_of, device = client.options.architecture, device_of(client.options)
    latent, _ = made_of.outputs(client.parameters, points, device)
    return client, Kernel(client.weight * (latent @ latent.T))


@fl.vectorised_function
def local_training(calls: Sequence[fl.ClientCall[Similar]]) -> list[tuple[Client, fl.Ready]]:
    """Train φ and β; there is nothing to send."""
    return _similar(calls, calls[0][0].options.local_epochs)


@fl.vectorised_function
def personalise(calls: Sequence[fl.ClientCall[Similar]]) -> list[tuple[Client, fl.Ready]]:
    """Train φ and β after the last round."""
    return _similar(calls, calls[0][0].options.final_epochs)


def _similar(calls: Sequence[fl.ClientCall[Similar]], epochs: int) -> list[tuple[Client, fl.Ready]]:
    options, message = calls[0][0].options, calls[0][2]  # the same for all
    kernel = None if message.kernel is None else _normed(message.kernel)
    ragged = "points" if kernel is not None and options.embedding == "perceptron" else ""
    what = (calls[0][0].outputs, _objective(options), ("embedding.*", "classifier.*"))
    named = named_width(options.architecture, calls[0][1])
    given = {"epochs": epochs, "also_ragged": ragged, "features": named}
    training = training_of(options, *what, **given)

    def constants(client: Client, block: Block) -> Mapping[str, Tensor]:
        if kernel is None:
            return {}
        points = _points(options, features_of(options, block), message.key)
        kind = client.parameters["classifier.bias"].dtype
        known = {"points": points, "kernel": kernel}
        return {name: torch.from_numpy(values.astype(kind)) for name, values in known.items()}

    tasks = [
        sharing.ClientTask(one, on_scale(one, block), rng, message.round)
        for one, block, _, rng in calls
    ]
    known = [constants(one.client, one.block) for one in tasks]
    found = sharing.train(training, tasks, "local", known)
    return [(one.client, fl.Ready()) for one in found]


def _points(options: FedHeNN, features: int, key: int) -> Array:
    """Return the points in a client's own space, (R, features)."""
    normal = fl.RandomKey((key,)).generator().normal(size=(features, options.points)).T
    if options.embedding != "convolutional":
        return np.ascontiguousarray(normal)
    # the first s² numbers are those of the corner of s × s pixels, for each s
    row, column = np.divmod(np.arange(features), math.isqrt(features))
    order = np.lexsort((column, row, np.maximum(row, column)))
    points = np.empty_like(normal, order="C")
    points[:, order] = normal
    return points


def _normed(kernel: Array) -> Array:
    """Return HKH / ‖HKH‖; zeros for a kernel that is the same everywhere."""
    centred = kernel - kernel.mean(0) - kernel.mean(1)[:, None] + kernel.mean()
    found: Array = centred / max(float(np.linalg.norm(centred)), np.finfo(np.float64).tiny)
    return found


def round(server: Server, clients: fl.Clients, rng: fl.RandomKey) -> tuple[Server, fl.RoundMetrics]:
    """Let the clients that are there train towards the mean of their kernels."""
    server = fl.evolve(server, rounds=server.rounds + 1)
    clients.ask(local_training, _mean_kernel(server, clients, rng))
    return server, fl.RoundMetrics(phase="local")


def conclude(server: Server, clients: fl.Clients, rng: fl.RandomKey) -> fl.FinalResult:
    """Let every client train a last time; the networks stay at the clients."""
    if server.options.final_epochs:
        clients.ask(personalise, _mean_kernel(server, clients, rng))
    _, info = sharing.certify(server, clients)
    return fl.FinalResult(info)


def _mean_kernel(server: Server, clients: fl.Clients, rng: fl.RandomKey) -> Similar:
    """Return the mean of the clients' kernels of new points, which the server does not read."""
    if server.options.similarity_weight == 0:
        return Similar(key=0, kernel=None, round=server.rounds)
    key = rng.fold_in("points").integer()
    total = clients.sum(send_kernel, Points(key))
    part = 1 / sharing.weight_of_sum(server, clients)
    return Similar(key=key, kernel=total.at * part, round=server.rounds)


FEDHENN = sharing.network_algorithm(
    "fedhenn",
    FedHeNN,
    round=round,
    sends=fl.opening(
        {"Similar.kernel": ("Kernel.at",)},
        (
            *fl.sums(send_kernel, pooled=lambda options: options.similarity_weight > 0),
            *fl.asks(local_training, personalise),
        ),
    ),
    own_feature_space=True,
    conclude=conclude,
)
