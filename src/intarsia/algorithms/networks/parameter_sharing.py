"""The parts of the clients' networks that all share, as one vector: told, trained, averaged.

What algorithms on networks have in common: states, messages, and the steps that their rounds are
made of. A client function of theirs opens what it is told (`opened`), trains some parts
(`trained`) and sends by how much those that are shared moved (`change`); the server averages
(`averaged`) what it never reads. Which parts are shared is the options' `shared_parts`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

from intarsia.algorithms.networks import label_scaling
from intarsia.algorithms.networks.architecture import Arrays
from intarsia.algorithms.networks.client_network import (
    changed,
    check_clients,
    check_same_features,
    drawn,
    part_vector,
    scores,
    train_networks,
    with_parts,
)
from intarsia.algorithms.networks.embeddings import width_of_structure
from intarsia.algorithms.networks.options import NetworkOptions
from intarsia.algorithms.networks.targets import loss_of_scores, output_count, said
from intarsia.algorithms.networks.training_rows import dense
from intarsia.core.algorithm import (
    Algorithm,
    ClientCall,
    ClientFunction,
    Clients,
    Disclosure,
    FinalResult,
    Model,
    RandomKey,
    Ready,
    Release,
    RoundMetrics,
    Sends,
    asks,
    client_function,
    evolve,
    sums,
)
from intarsia.core.block import Array, Block, ClientId
from intarsia.core.schema import Schema
from intarsia.errors import ConvergenceError
from intarsia.maths.training.local_training import LocalTraining
from intarsia.maths.training.torch_import import Tensor
from intarsia.protocols.differential_privacy import NoiseShare, draw_share, spend


@dataclass(frozen=True)
class Server:
    """The server's state."""

    options: Any  # `NetworkOptions`
    start: Start  # what it drew, which is no secret
    shared: Any = None  # sealed (parameters that are shared,); None: nothing is
    rounds: int = 0
    numbers: bool = False  # whether the labels are numbers, of which clients need the scale


@dataclass(frozen=True)
class Client:
    """A client's state."""

    options: Any  # `NetworkOptions`
    outputs: int
    parameters: Arrays
    centre: float = 0.0  # of labels that are numbers, over all clients: their mean
    spread: float = 1.0  # and their deviation
    anchors: tuple[int, ...] = ()  # of each class, where some have one together
    barycentre: tuple[Array, ...] = ()  # own and common covariances, while one is being found
    aligned: int = 0  # rounds that its embedding was aligned after, where an algorithm does that
    clip: float = math.inf  # largest norm of the change that it sends
    noise: NoiseShare | None = None


@dataclass(frozen=True)
class Start:
    """What training starts from, told to one client; the others get none of it."""

    shared: Array | None = None  # (parameters that are shared,)


@dataclass(frozen=True)
class Shared:
    """What all share in a round."""

    shared: Array | None  # (parameters that are shared,)
    round: int
    clients: int = 1  # that are there


@dataclass(frozen=True)
class Change:
    """By how much one client moved what all share, or the total."""

    shared: Array | None  # (parameters that are shared,)


@dataclass(frozen=True)
class Loss:
    """A client's part of the loss."""

    at: Array  # (2,) Σ l, labelled samples


class ClientTask(NamedTuple):
    """A client in the middle of a client function."""

    client: Client
    block: Block  # with the labels that its network learns
    rng: RandomKey


def init_client(
    options: NetworkOptions,
    schema: Schema,
    client: ClientId,
    block: Block,
    rng: RandomKey,
    *,
    release: Release | None = None,
) -> Client:
    """Return a client's state: a network that is drawn from the client's own key.

    Raises
    ------
    TableError
        If a value is missing.
    """
    outputs = output_count(schema)
    dense(block)  # a missing value is said before anything trains
    made = Client(options, outputs, drawn(block.shape[1], outputs, options, rng))
    if release is None:
        return made
    noise = draw_share(release.deviation, release.releases)
    return evolve(made, clip=release.clip, noise=noise)


@client_function
def send_start(
    client: Client, block: Block, message: Start, rng: RandomKey
) -> tuple[Client, Start]:
    """Send what the total starts from."""
    return client, message


def opened(visits: Sequence[ClientCall[Shared]]) -> list[ClientTask]:
    """Return the clients with what all share, as their messages have it."""
    seats: list[ClientTask] = []
    for client, block, message, rng in visits:
        if message.shared is not None:
            parts = client.options.shared_parts
            parameters = with_parts(client.parameters, parts, message.shared)
            client = evolve(client, parameters=parameters)
        seats.append(ClientTask(client, label_scaling.on_scale(client, block), rng))
    return seats


def trained(
    training: LocalTraining | None,
    seats: Sequence[ClientTask],
    stream: str,
    constants: Callable[[Client], Mapping[str, Tensor]] = lambda client: {},
    references: Sequence[Arrays] | None = None,
) -> list[ClientTask]:
    """Return the clients after a training, or as they are without one.

    Parameters
    ----------
    stream
        Names the stream of a client's random numbers that this training draws from.
    constants
        What a client's batches hold beside its rows.
    references
        What proximal terms pull each client to; None: where it starts.
    """
    if training is None or not seats:
        return list(seats)
    found = train_networks(
        training,
        [(client.parameters, block, rng.fold_in(stream)) for client, block, rng in seats],
        [constants(seat.client) for seat in seats],
        seats[0].client.options.engine,
        references,
    )
    return [
        seat._replace(client=evolve(seat.client, parameters=own))
        for seat, own in zip(seats, found, strict=True)
    ]


def change(before: ClientTask, after: ClientTask) -> Change:
    """Return by how much a client moved what all share."""
    moved = changed(before.client.parameters, after.client.parameters)
    return Change(part_vector(moved, before.client.options.shared_parts))


def protected(client: Client, moved: Change, clients: int) -> tuple[Client, Change]:
    """Return the change clipped and with this client's share of the noise, where there is any.

    A client knows its own share: the others' alone must do, so that they split the variance.
    """
    if client.noise is None or moved.shared is None:
        return client, moved
    noise, normal = spend(client.noise, moved.shared.shape)
    clipped = moved.shared * min(
        1.0, client.clip / max(float(np.linalg.norm(moved.shared)), 1e-300)
    )
    share = noise.deviation / math.sqrt(max(clients - 1, 1))
    return evolve(client, noise=noise), Change(clipped + share * normal)


@client_function
def take_start(
    client: Client, block: Block, message: Shared, rng: RandomKey
) -> tuple[Client, Ready]:
    """Start from the network that all start from."""
    return opened([(client, block, message, rng)])[0].client, Ready()


@client_function
def part_of_loss(
    client: Client, block: Block, message: Shared, rng: RandomKey
) -> tuple[Client, Loss]:
    """Keep what all share; send this client's part of the loss."""
    client = opened([(client, block, message, rng)])[0].client
    found = scores(client.parameters, client.options, block)
    return client, Loss(loss_of_scores(found, block, client.centre, client.spread))


def predict(client: Client, block: Block) -> Array:
    """Return the log-odds of the classes, or the numbers, (outputs, samples)."""
    return said(scores(client.parameters, client.options, block), client.centre, client.spread)


def network(client: Client) -> Arrays:
    """Return the parameters of a client's network, those that all share among them.

    What it must know of the labels is there too: the scale of numbers, the anchors of meta-classes.
    """
    known = {"labels.centre": client.centre, "labels.spread": client.spread}
    labels = {name: np.array(value) for name, value in known.items() if client.outputs == 1}
    if client.anchors:
        labels["labels.anchors"] = np.array(client.anchors)
    return {**client.parameters, **labels}


def start(
    options: NetworkOptions,
    schema: Schema,
    rng: RandomKey,
    features: int | None = None,
    given: Mapping[str, Array] | None = None,
) -> Server:
    """Return the server's state before the set-up: it draws what all share.

    Parameters
    ----------
    features
        Columns of every client's table, where the embedding is shared too.
    given
        Parameters that take the place of the drawn ones.
    """
    outputs = output_count(schema)
    if not options.shared_parts:
        return Server(options, Start(), numbers=outputs == 1)
    width = features or width_of_structure(options.architecture.embedding)
    parameters = drawn(width, outputs, options, rng.fold_in("shared"))
    parameters = {**parameters, **(given or {})}
    begin = Start(part_vector(parameters, options.shared_parts))
    return Server(options, begin, numbers=outputs == 1)


def setup(server: Server, clients: Clients, rng: RandomKey) -> Server:
    """Start from what the server drew, as a total that it cannot read from then on.

    Labels that are numbers are brought to one scale before.
    """
    if server.numbers:
        label_scaling.settle(clients)
    if server.start.shared is None:
        return server
    messages = dict.fromkeys(clients.ids, Start())
    messages[next(iter(clients.ids))] = server.start
    return evolve(server, shared=clients.sum(send_start, messages).shared)


def shares(options: NetworkOptions) -> bool:
    """Return whether clients share parameters, which a round averages."""
    return bool(options.shared_parts)


def started_alike(server: Server, clients: Clients, rng: RandomKey) -> Server:
    """Set up, and let all clients' own networks start from the one that the server drew."""
    server = setup(server, clients, rng)
    if server.shared is not None:
        clients.ask(take_start, told(server, clients))
    return server


def told(server: Server, clients: Clients) -> dict[ClientId, Shared]:
    """Return the message of what all share, for each client that is there."""
    message = Shared(shared=server.shared, round=server.rounds, clients=len(clients.ids))
    return dict.fromkeys(clients.ids, message)


def averaged(server: Server, total: Any, clients: Clients) -> Server:
    """Return the server with the average of the changes added, of which `total` is the sum."""
    return evolve(server, shared=server.shared + total.shared * (1 / len(clients.ids)))


def mean_loss(
    clients: Clients, part: ClientFunction, messages: Mapping[ClientId, Any], rounds: int
) -> float:
    """Return the loss over all clients' labelled samples, from what `part` sends of it: a `Loss`.

    Raises
    ------
    ConvergenceError
        If it is not finite; the sentence names how many rounds there were.
    """
    parts = clients.sum(part, messages)
    # discloses the sum of the losses and the number of labelled samples
    total, count = clients.reveal(parts.at).tolist()
    if not math.isfinite(total):
        raise ConvergenceError(
            f"The loss is {total} after {rounds} rounds; lower algorithm.rate, or standardise the "
            "features."
        )
    return float(total / count)


def certify(
    server: Server,
    clients: Clients,
    rng: RandomKey,
    *,
    part_of_loss: ClientFunction = part_of_loss,
) -> tuple[Server, RoundMetrics]:
    """Return the loss over all clients' samples with what all share now."""
    messages = told(server, clients)
    return server, RoundMetrics(loss=mean_loss(clients, part_of_loss, messages, server.rounds))


def conclude(
    server: Server,
    clients: Clients,
    rng: RandomKey,
    *,
    personalise: ClientFunction,
    part_of_loss: ClientFunction = part_of_loss,
) -> FinalResult:
    """Let every client train a last time if it is to; the networks stay at the clients."""
    if server.options.final_epochs:
        clients.ask(personalise, told(server, clients))
    _, info = certify(server, clients, rng, part_of_loss=part_of_loss)
    return FinalResult(info)


def init_server(
    options: NetworkOptions, schema: Schema, rng: RandomKey, *, name: str, own_feature_space: bool
) -> Server:
    """Return the server's state before the set-up.

    Raises
    ------
    FederationError
        If clients have samples in common, or one has no labels, or what is shared reads features
        that not all have.
    """
    check_clients(schema, name)
    alike = not own_feature_space and options.shared_parts
    return start(options, schema, rng, check_same_features(schema, name) if alike else None)


def network_algorithm(
    name: str,
    options: type,
    round: Callable[[Any, Clients, RandomKey], tuple[Any, RoundMetrics]],
    *,
    sends: Sequence[Sends],
    personalise: ClientFunction | None = None,
    part_of_loss: ClientFunction = part_of_loss,
    own_feature_space: bool = False,
    join: Callable[[Clients, Any, Array], None] | None = None,
    dp_unit: Literal["sample", "client"] = "sample",
    states: Sequence[type] = (),
    **steps: Any,
) -> Algorithm:
    """Return an algorithm whose clients share parts of their networks.

    Parameters
    ----------
    sends
        What crosses in the steps beside the last training, the loss and the scale of labels.
    personalise
        How clients train a last time; None: `steps` has another `conclude`.
    states
        Beside those of this module.
    steps
        Those of `Algorithm` that are not as here.
    """
    last = () if personalise is None else asks(personalise)
    if personalise is not None:
        steps = {"conclude": partial(conclude, personalise=personalise), **steps}
    loss = sums(part_of_loss, reveals=("at",))
    return Algorithm(
        **{
            "init_server": partial(init_server, name=name, own_feature_space=own_feature_space),
            "init_client": init_client,
            "setup": setup,
            "certify": partial(certify, part_of_loss=part_of_loss),
            **steps,
        },
        name=name,
        hyperparameters=options,
        round=round,
        states=(Server, Client, options, Start, *states),
        model=Model(
            predict=predict, network=network, own_feature_space=own_feature_space, join=join
        ),
        disclosure=Disclosure(sends=(*sends, *last, *loss, *label_scaling.SENDS), dp_unit=dp_unit),
    )
