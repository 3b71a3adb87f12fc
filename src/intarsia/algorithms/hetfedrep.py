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

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from intarsia.algorithm import (
    Algorithm,
    Clients,
    Conclusion,
    Info,
    RandomKey,
    Visit,
    client_function,
    cohort_function,
    evolve,
)
from intarsia.algorithms.client_network import (
    RAGGED,
    Arrays,
    Network,
    changed,
    check_clients,
    check_sizes,
    class_count,
    drawn,
    log_odds,
    loss_sum,
    parameters_in,
    plain_loss,
    shared_vector,
    train_networks,
    with_shared,
)
from intarsia.data import Array, Block, ClientId, Schema
from intarsia.errors import ConvergenceError
from intarsia.maths.local_training import LocalTraining
from intarsia.maths.optimisers import Adam

__all__ = ["HETFEDREP", "LOCAL", "HetFedRep", "Local"]


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
    hidden: int = 64  # units of φ's two hidden layers
    latent: int = 64  # k, the width of the latent space
    precision: Literal["single", "double"] = "single"
    engine: Literal["auto", "loop", "vmap", "compiled"] = "auto"

    def __post_init__(self) -> None:
        check_sizes(
            self,
            counts=("local_epochs", "shared_from", "batch", "hidden", "latent"),
            not_negative=("shared_epochs", "final_epochs", "weight_decay"),
        )

    @property
    def loss(self) -> str:
        """Return the loss that the scores are graded by: they are log-odds."""
        return "logistic"


@dataclass(frozen=True, kw_only=True)
class Local:
    """Hyperparameters, with the defaults of FLIC's paper for real data."""

    local_epochs: int = 10
    final_epochs: int = 10  # at all clients after the last round
    rate: float = 1e-3  # of Adam, fresh in each round
    weight_decay: float = 0.0  # on β
    batch: int = 100
    hidden: int = 64
    latent: int = 64
    precision: Literal["single", "double"] = "single"
    engine: Literal["auto", "loop", "vmap", "compiled"] = "auto"

    def __post_init__(self) -> None:
        check_sizes(
            self,
            counts=("local_epochs", "batch", "hidden", "latent"),
            not_negative=("final_epochs", "weight_decay"),
        )

    @property
    def loss(self) -> str:
        """Return the loss that the scores are graded by: they are log-odds."""
        return "logistic"


Options = HetFedRep | Local


@dataclass(frozen=True)
class Server:
    """The server's state."""

    options: Any  # HetFedRep or Local
    start: Start  # what it drew, which is no secret
    shared: Any = None  # sealed (parameters of α,); None in Local
    rounds: int = 0


@dataclass(frozen=True)
class Client:
    """A client's state."""

    options: Any  # HetFedRep or Local
    outputs: int
    parameters: Arrays


@dataclass(frozen=True)
class Start:
    """What training starts from, told to one client; the others get none of it."""

    shared: Array | None = None


@dataclass(frozen=True)
class Layer:
    """α, or one client's part of the total."""

    shared: Array  # (parameters of α,)


@dataclass(frozen=True)
class Round:
    """What a client is told in a round."""

    shared: Array | None  # α
    move_shared: bool  # whether α trains in this round


@dataclass(frozen=True)
class Ready:
    """Says that the client is done."""


@dataclass(frozen=True)
class Loss:
    """A client's part of the loss."""

    at: Array  # (2,) Σ l, labelled samples


@dataclass(frozen=True, eq=False)
class _Trainings:
    """How the parts of a client's network train; kept, as compiled functions belong to them."""

    local: LocalTraining
    final: LocalTraining
    shared: LocalTraining | None  # None in Local


@lru_cache(maxsize=16)
def _trainings(options: Options, outputs: int) -> _Trainings:
    model = Network(1, outputs, **_sizes(options))

    def over(*parts: str, epochs: int) -> LocalTraining:
        return LocalTraining(
            model=model,
            loss=plain_loss,
            optimiser=Adam(rate=options.rate),
            epochs=max(1, epochs),
            steps=1 if epochs == 0 else None,
            batch_size=options.batch,
            train=tuple(f"{part}.*" for part in parts),
            decay={"embedding.*": 0.0, "*": options.weight_decay},
            ragged=RAGGED,
        )

    return _Trainings(
        local=over("embedding", "classifier", epochs=options.local_epochs),
        final=over("embedding", "classifier", epochs=max(1, options.final_epochs)),
        shared=over("shared", epochs=options.shared_epochs)
        if isinstance(options, HetFedRep)
        else None,
    )


def _sizes(options: Options) -> dict[str, Any]:
    return {
        "hidden": options.hidden,
        "latent": options.latent,
        "shared": isinstance(options, HetFedRep),
        "anchors": False,
    }


# ---- at the clients


def init_client(
    options: Options, schema: Schema, client: ClientId, block: Block, rng: RandomKey
) -> Client:
    """Return a client's state: a network that is drawn from the client's own key."""
    outputs = class_count(schema)
    parameters = drawn(block.shape[1], outputs, rng, **_sizes(options))
    return Client(options, outputs, parameters_in(parameters, options.precision))


@client_function
def send_start(
    client: Client, block: Block, message: Start, rng: RandomKey
) -> tuple[Client, Start]:
    """Send what the total starts from."""
    return client, message


@cohort_function
def local_training(visits: Sequence[Visit]) -> list[tuple[Client, Layer]]:
    """Train φ and β, then take the step on α; send its change."""
    trainings = _trainings(visits[0][0].options, visits[0][0].outputs)
    opened = _opened(visits)
    # step 1: local training
    local = _trained(trainings.local, opened, "local")
    # step 2: shared step
    shared = trainings.shared if visits[0][2].move_shared else None
    after = [(client, block, rng) for client, (_, block, rng) in zip(local, opened, strict=True)]
    moved = _trained(shared, after, "shared")
    return [
        (before, Layer(shared_vector(changed(before.parameters, client.parameters))))
        for before, client in zip(local, moved, strict=True)
    ]


@cohort_function
def train_alone(visits: Sequence[Visit]) -> list[tuple[Client, Ready]]:
    """Train φ and β; there is nothing to send."""
    training = _trainings(visits[0][0].options, visits[0][0].outputs).local
    return [(client, Ready()) for client in _trained(training, _opened(visits), "local")]


# under the other's name it draws the other's batches, so that the two can be compared
train_alone = replace(train_alone, name=local_training.name)


@cohort_function
def personalise(visits: Sequence[Visit]) -> list[tuple[Client, Ready]]:
    """Train φ and β after the last round."""
    training = _trainings(visits[0][0].options, visits[0][0].outputs).final
    return [(client, Ready()) for client in _trained(training, _opened(visits), "local")]


@client_function
def part_of_loss(
    client: Client, block: Block, message: Round, rng: RandomKey
) -> tuple[Client, Loss]:
    """Keep α; send this client's part of the loss."""
    client = _opened([(client, block, message, rng)])[0][0]
    return client, Loss(loss_sum(client.parameters, block))


def _opened(visits: Sequence[Visit]) -> list[tuple[Client, Block, RandomKey]]:
    """Return the clients with the α of their messages."""
    return [
        (
            client
            if message.shared is None
            else evolve(client, parameters=with_shared(client.parameters, message.shared)),
            block,
            rng,
        )
        for client, block, message, rng in visits
    ]


def _trained(
    training: LocalTraining | None,
    clients: Sequence[tuple[Client, Block, RandomKey]],
    stream: str,
) -> list[Client]:
    """Return the clients after a training, or as they are without one."""
    if training is None:
        return [client for client, _, _ in clients]
    parameters = train_networks(
        training,
        [(client.parameters, block, rng.fold_in(stream)) for client, block, rng in clients],
        [{}] * len(clients),
        clients[0][0].options.engine,
    )
    return [
        evolve(client, parameters=own)
        for (client, _, _), own in zip(clients, parameters, strict=True)
    ]


def predict(client: Client, block: Block) -> Array:
    """Return the log-odds of the classes, (outputs, samples)."""
    return log_odds(client.parameters, block)


# ---- at the server


def init_server(options: Options, schema: Schema, rng: RandomKey) -> Server:
    """Return the server's state before the set-up.

    Raises
    ------
    FederationError
        If clients have samples in common, or one has no labels.
    """
    check_clients(schema, "hetfedrep" if isinstance(options, HetFedRep) else "local")
    if isinstance(options, Local):
        return Server(options, Start())
    parameters = drawn(1, class_count(schema), rng.fold_in("shared"), **_sizes(options))
    return Server(options, Start(shared_vector(parameters)))


def setup(server: Server, clients: Clients, rng: RandomKey) -> Server:
    """Start from the α that the server drew."""
    if server.start.shared is None:
        return server
    messages = dict.fromkeys(clients.ids, Start())
    messages[next(iter(clients.ids))] = server.start
    return evolve(server, shared=clients.sum(send_start, messages).shared)


def round(server: Server, clients: Clients, rng: RandomKey) -> tuple[Server, Info]:
    """Let the clients that are there train; average the changes of α."""
    server = evolve(server, rounds=server.rounds + 1)
    # steps 1 and 2: local training, shared step
    change = clients.sum(local_training, _told(server, clients))
    # step 3: averages
    shared = server.shared + change.shared * (1 / len(clients.ids))
    return evolve(server, shared=shared), Info(phase="averaging")


def round_alone(server: Server, clients: Clients, rng: RandomKey) -> tuple[Server, Info]:
    """Let each client that is there train for itself."""
    server = evolve(server, rounds=server.rounds + 1)
    clients.ask(train_alone, _told(server, clients))
    return server, Info(phase="local")


def certify(server: Server, clients: Clients, rng: RandomKey) -> tuple[Server, Info]:
    """Return the cross-entropy over all clients' samples with the α of now."""
    parts = clients.sum(part_of_loss, _told(server, clients))
    # discloses the sum of the cross-entropies and the number of labelled samples
    total, count = clients.reveal(parts.at).tolist()
    if not math.isfinite(total):
        raise ConvergenceError(
            f"The loss is {total} after {server.rounds} rounds; lower algorithm.rate, or "
            "standardise the features."
        )
    return server, Info(loss=total / count)


def conclude(server: Server, clients: Clients, rng: RandomKey) -> Conclusion:
    """Let every client train a last time; the networks stay at the clients."""
    if server.options.final_epochs:
        clients.ask(personalise, _told(server, clients))
    _, info = certify(server, clients, rng)
    return Conclusion(info)


def _told(server: Server, clients: Clients) -> dict[ClientId, Round]:
    move: bool = server.shared is not None and server.rounds >= server.options.shared_from
    return dict.fromkeys(clients.ids, Round(shared=server.shared, move_shared=move))


HETFEDREP = Algorithm(
    name="hetfedrep",
    hyperparameters=HetFedRep,
    init_server=init_server,
    init_client=init_client,
    setup=setup,
    round=round,
    certify=certify,
    conclude=conclude,
    predict=predict,
    additive=False,
    linear=False,
    client_functions=(send_start, local_training, personalise, part_of_loss),
    states=(Server, Client, HetFedRep, Start),
)

LOCAL = replace(
    HETFEDREP,
    name="local",
    hyperparameters=Local,
    round=round_alone,
    client_functions=(train_alone, personalise, part_of_loss),
    states=(Server, Client, Local, Start),
)
