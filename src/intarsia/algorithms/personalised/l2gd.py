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
- with `weights` = "samples" w̄ is the mean by labelled rows
- m = αλ/np is one hyperparameter, `mixing`; with m = 0 nothing is shared, everybody starts from a
  network of its own, and this is `local` of `fedrep`
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from intarsia import core as fl
from intarsia.algorithms.networks import parameter_sharing as sharing
from intarsia.algorithms.networks.architecture import named_width
from intarsia.algorithms.networks.client_network import part_vector, training_of, with_parts
from intarsia.algorithms.networks.options import NetworkOptions, Weights
from intarsia.algorithms.networks.parameter_sharing import Client, Server, Shared
from intarsia.algorithms.networks.targets import smoothed
from intarsia.core.block import Array, Block
from intarsia.core.settings import Count, CountOrZero, Fraction, FractionBelowOne


@dataclass(frozen=True, kw_only=True)
class L2gd(NetworkOptions):
    """Hyperparameters, with the defaults of FLIC's paper for real data."""

    mixing: Fraction = 0.1  # m, how far a client goes towards the mean; 1: all the way
    aggregation: Fraction = 1.0  # p, the share of the rounds in which clients do
    local_epochs: Count = 10
    weights: Weights = "clients"  # of clients in the mean
    final_epochs: CountOrZero = 10  # at all clients after the last round
    dropout: FractionBelowOne = 0.0  # chance that a unit of the embedding is left out in training

    @property
    def shared_parts(self) -> tuple[str, ...]:
        """Return which parameters start alike at all clients and are drawn to their mean."""
        return ("*",) if self.mixing > 0 else ()


@dataclass(frozen=True)
class Average:
    """Asks for a client's part of the mean network."""


@fl.describe("network parameters or their changes")
class Parameters:
    """All parameters of a client's network, or their total or mean."""

    at: Array  # (parameters,)


@fl.vectorised_function
def local_training(calls: Sequence[fl.ClientCall[Shared]]) -> list[tuple[Client, fl.Ready]]:
    """Train the client's network; there is nothing to send."""
    return _trained(calls, calls[0][0].options.local_epochs)


@fl.vectorised_function
def personalise(calls: Sequence[fl.ClientCall[Shared]]) -> list[tuple[Client, fl.Ready]]:
    """Train the client's network after the last round."""
    return _trained(calls, calls[0][0].options.final_epochs)


def _trained(calls: Sequence[fl.ClientCall[Shared]], epochs: int) -> list[tuple[Client, fl.Ready]]:
    first, parts = calls[0][0], ("embedding.*", "classifier.*")
    loss = smoothed(first.options.label_smoothing)
    width = named_width(first.options.architecture, calls[0][1])
    training = training_of(first.options, first.outputs, loss, parts, epochs=epochs, features=width)
    return sharing.train_and_keep(training, calls)


@fl.client_function
def send_network(client: Client, block: Block, message: Average) -> tuple[Client, Parameters]:
    """Send the client's network, for a sum that the server does not read."""
    own = part_vector(client.parameters, client.options.shared_parts)
    return client, Parameters(client.weight * own)


@fl.told_the_same
@fl.client_function
def mix(client: Client, block: Block, message: Parameters) -> tuple[Client, fl.Ready]:
    """Step towards the mean network."""
    parts = client.options.shared_parts
    own = part_vector(client.parameters, parts)
    moved = own - client.options.mixing * (own - message.at)
    return fl.evolve(client, parameters=with_parts(client.parameters, parts, moved)), fl.Ready()


def setup(server: Server, clients: fl.Clients, rng: fl.RandomKey) -> Server:
    """Let all clients start from the network that the server drew."""
    server = sharing.start_alike(server, clients, rng)
    return fl.evolve(server, shared=None)  # from here on each client's network is its own


def round(server: Server, clients: fl.Clients, rng: fl.RandomKey) -> tuple[Server, fl.RoundMetrics]:
    """Let the clients that are there train, and in some rounds step to their mean."""
    server = fl.evolve(server, rounds=server.rounds + 1)
    options = server.options
    # step 1: local training
    clients.ask(local_training, sharing.broadcast(server, clients))
    # step 2: a step towards the mean
    drawn = rng.fold_in("aggregation").generator().random()
    if not options.shared_parts or drawn >= options.aggregation:
        return server, fl.RoundMetrics(phase="local")
    total = clients.sum(send_network, Average())
    mean = Parameters(at=total.at * (1 / sharing.weight_of_sum(server, clients)))
    clients.ask(mix, mean)
    return server, fl.RoundMetrics(phase="averaging")


L2GD = sharing.network_algorithm(
    "l2gd",
    L2gd,
    round=round,
    sends=fl.opening(
        {"Parameters.at": ("Parameters.at",)},
        (
            *fl.sums(sharing.send_start),
            *fl.asks(sharing.take_start, local_training, mix),
            *fl.sums(send_network, pooled=sharing.shares),
        ),
    ),
    personalise=personalise,
    setup=setup,
)
