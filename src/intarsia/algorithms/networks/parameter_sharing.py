"""The parts of the clients' networks that all share, as one vector: broadcast, trained, averaged.

What algorithms on networks have in common: states, messages, and the steps that their rounds are
made of. A client function of theirs opens its message (`open_messages`), trains some parts
(`train`) and sends by how much those that are shared moved (`change`); the server averages
(`average`) what it never reads. Which parts are shared is the options' `shared_parts`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from intarsia import core as fl
from intarsia.algorithms.networks import client_network as networks
from intarsia.algorithms.networks import label_scaling, targets
from intarsia.algorithms.networks.architecture import Arrays, as_tensors, order_read
from intarsia.algorithms.networks.embeddings import is_named, width_of_structure
from intarsia.algorithms.networks.options import (
    NetworkOptions,
    check_labels,
    device_of,
    relative_weight,
    relative_weights,
)
from intarsia.algorithms.networks.training_rows import check_whole, is_labelled, labelled_rows
from intarsia.core.block import Array, Block, ClientId
from intarsia.core.schema import Schema
from intarsia.errors import ConvergenceError
from intarsia.maths.training.local_training import Learner, LocalTraining
from intarsia.maths.training.torch_import import Tensor
from intarsia.protocols.differential_privacy import clip_change, draw_noise, noise_of


@dataclass(frozen=True)
class Server:
    """The server's state."""

    options: Any  # `NetworkOptions`
    start: Start  # what it drew, which is no secret
    shared: Any = None  # sealed (parameters that are shared,); None: nothing is
    rounds: int = 0
    numbers: bool = False  # whether the labels are numbers, of which clients need the scale
    # what each client counts for in an average, at most 1; none: all alike
    weights: Mapping[ClientId, float] = field(default_factory=dict[str, float])


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
    noise: fl.Release | None = None  # of what this change is released with
    weight: float = 1.0  # that it counts for in an average, at most 1
    # (labelled rows,) those for validation, which train nothing yet; None: all train
    held_out: NDArray[np.bool_] | None = None
    own: Arrays = field(default_factory=dict[str, Array])  # a network beside, to choose from

    @property
    def own_cost(self) -> float:
        """Return what a step of its network costs, beside what it costs whoever trains."""
        return networks.own_cost(self.options.engine, self.options.batch, self.parameters)


@fl.holds_model("shared")
@fl.describe("network parameters or their changes")
class Start:
    """What training starts from, told to one client; the others get none of it."""

    shared: Array | None = None  # (parameters that are shared,)


@fl.holds_model("shared")
@dataclass(frozen=True)
class Shared:
    """What all share in a round."""

    shared: Array | None  # (parameters that are shared,)
    round: int
    clients: int = 1  # that are there


@fl.describe("network parameters or their changes")
class Change:
    """By how much one client moved what all share, or the total."""

    shared: Array | None  # (parameters that are shared,)


@fl.describe("counts and summed losses of training rows")
class Loss:
    """A client's part of the loss."""

    at: Array  # (2,) Σ l, labelled samples


class ClientTask(NamedTuple):
    """A client in the middle of a client function."""

    client: Client
    block: Block  # with the labels that its network learns
    rng: fl.RandomKey
    round: int = 1  # which says how long steps are, where they are scheduled


def init_client(
    options: NetworkOptions,
    schema: Schema,
    client: ClientId,
    block: Block,
    rng: fl.RandomKey,
    *,
    release: fl.Release | None = None,
) -> Client:
    """Return a client's state: a network that is drawn from the client's own key."""
    outputs = targets.output_count(schema)
    check_whole(block)  # a missing value is said before anything trains
    made = Client(
        options,
        outputs,
        networks.drawn(networks.features_of(options, block), outputs, options, rng),
        weight=relative_weight(options, schema, client),
    )
    return made if release is None else fl.evolve(made, clip=release.clip, noise=release)


@fl.client_function
def send_start(client: Client, block: Block, message: Start) -> tuple[Client, Start]:
    """Send what the total starts from."""
    return client, message


send_start = fl.one_sender(send_start, "shared")


def open_messages(calls: Sequence[fl.ClientCall[Shared]]) -> list[ClientTask]:
    """Return the clients with what all share, as their messages have it."""
    tasks: list[ClientTask] = []
    for client, block, message, rng in calls:
        if message.shared is not None:
            parts = client.options.shared_parts
            parameters = networks.with_parts(client.parameters, parts, message.shared)
            client = fl.evolve(client, parameters=parameters)
        own = label_scaling.on_scale(client, block)
        if client.held_out is not None:
            own = own.take(np.flatnonzero(is_labelled(own))[~client.held_out])
        tasks.append(ClientTask(client, own, rng, message.round))
    return tasks


def train(
    training: LocalTraining | None,
    tasks: Sequence[ClientTask],
    stream: str,
    constants: Sequence[Mapping[str, Tensor]] | None = None,
    references: Sequence[Arrays] | None = None,
) -> list[ClientTask]:
    """Return the clients after a training, or as they are without one.

    It draws from the stream of each client's random numbers that `stream` names. `constants` are
    what its batches hold beside its rows, `references` what proximal terms pull it to, None:
    where it starts.
    """
    if training is None or not tasks:
        return list(tasks)
    learners = []
    for place, (client, block, rng, _) in enumerate(tasks):
        tensors = as_tensors(client.parameters)
        like = tensors["classifier.weight"]
        kind = client.parameters["classifier.weight"].dtype
        x, y = labelled_rows(block, kind, order_read(training.model, block))
        labels, classes = (
            targets.label_tensor(y, like, client.outputs),
            client.options.class_weights,
        )
        rows = {
            "x": x,
            "y": labels,
            **targets.importance(labels, like, client.outputs, classes),
        }
        learners.append(
            Learner(
                parameters=tensors,
                rows=rows,
                key=rng.fold_in(stream).integer(),
                constants={} if constants is None else constants[place],
                references=None if references is None else as_tensors(references[place]),
            )
        )
    options = tasks[0].client.options
    found = networks.train_learners(
        [training] * len(tasks),
        learners,
        options.engine,
        networks.rate_of(options, tasks[0].round),
        device_of(options),
    )
    return [
        task._replace(client=fl.evolve(task.client, parameters=own))
        for task, own in zip(tasks, found, strict=True)
    ]


def train_and_keep(
    training: LocalTraining | None, calls: Sequence[fl.ClientCall[Shared]]
) -> list[tuple[Client, fl.Ready]]:
    """Return the clients after a training of which there is nothing to send."""
    return [(one.client, fl.Ready()) for one in train(training, open_messages(calls), "local")]


def change(before: ClientTask, after: ClientTask) -> Change:
    """Return by how much a client moved what all share, weighed for the average."""
    moved = networks.changed(before.client.parameters, after.client.parameters)
    own = networks.part_vector(moved, before.client.options.shared_parts)
    return Change(before.client.weight * own)


def protect(client: Client, moved: Change, clients: int, key: fl.NoiseKey) -> Change:
    """Return the weighed change clipped and with this client's share of the noise.

    A client knows its own share: the others' alone must do, so that they split the variance.
    """
    if moved.shared is None:
        return moved
    noise = noise_of(client.noise)
    share = noise.deviation / math.sqrt(max(clients - 1, 1))
    normal = draw_noise(noise, key, moved.shared.shape)
    return Change(clip_change(moved.shared, client.clip) + share * normal)


@fl.told_the_same
@fl.client_function
def take_start(
    client: Client, block: Block, message: Shared, rng: fl.RandomKey
) -> tuple[Client, fl.Ready]:
    """Start from the network that all start from."""
    return open_messages([(client, block, message, rng)])[0].client, fl.Ready()


@fl.told_the_same
@fl.client_function
def part_of_loss(
    client: Client, block: Block, message: Shared, rng: fl.RandomKey
) -> tuple[Client, Loss]:
    """Keep what all share; send this client's part of the loss."""
    client = open_messages([(client, block, message, rng)])[0].client
    found = _scores(client, block)
    return client, Loss(targets.loss_of_scores(found, block, client.centre, client.spread))


def predict(client: Client, block: Block) -> Array:
    """Return the log-odds of the classes, or the numbers, (outputs, samples)."""
    return targets.predict(_scores(client, block), client.centre, client.spread)


def _scores(client: Client, block: Block) -> Array:
    made_of, device = client.options.architecture, device_of(client.options)
    found: Array = made_of.outputs(client.parameters, block, device)[1]
    return found


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
    rng: fl.RandomKey,
    features: int | None = None,
    given: Mapping[str, Array] | None = None,
) -> Server:
    """Return the server's state before the set-up: it draws what all share.

    `features` is the number of columns where the embedding is shared too; parameters that are
    `given` take the place of the drawn ones.
    """
    check_labels(options, schema)
    outputs, weights = targets.output_count(schema), relative_weights(options, schema)
    if not options.shared_parts:
        return Server(options, Start(), numbers=outputs == 1, weights=weights)
    kind = options.architecture.embedding
    if features is None and is_named(kind):  # none of the embedding is shared: any that it takes
        features = networks.features_in(options, schema, schema.clients[0])
    width = features or width_of_structure(kind)
    parameters = networks.drawn(width, outputs, options, rng.fold_in("shared"))
    parameters = {**parameters, **(given or {})}
    begin = Start(networks.part_vector(parameters, options.shared_parts))
    return Server(options, begin, numbers=outputs == 1, weights=weights)


def allowed(server: Server, client: ClientId) -> Mapping[str, Sequence[Any]]:
    """Return what the server may tell in the clear: what it drew, and nothing else."""
    return {"Start.shared": (None, server.start.shared)}


def setup(server: Server, clients: fl.Clients) -> Server:
    """Start from what the server drew, as a total that it cannot read from then on.

    Labels that are numbers are brought to one scale before.
    """
    if server.numbers:
        label_scaling.settle(clients)
    if server.start.shared is None:
        return server
    messages = dict.fromkeys(clients.ids, Start())
    messages[next(iter(clients.ids))] = server.start
    return fl.evolve(server, shared=clients.sum(send_start, messages).shared)


def shares(options: NetworkOptions) -> bool:
    """Return whether clients share parameters, which a round averages."""
    return bool(options.shared_parts)


def start_alike(server: Server, clients: fl.Clients, rng: fl.RandomKey) -> Server:
    """Set up, and let all clients' own networks start from the one that the server drew."""
    server = setup(server, clients)
    if server.shared is not None:
        clients.ask(take_start, broadcast(server, clients))
    return server


def broadcast(server: Server, clients: fl.Clients) -> Shared:
    """Return the message of what all share."""
    return Shared(shared=server.shared, round=server.rounds, clients=len(clients.ids))


def weight_of_sum(server: Server, clients: fl.Clients) -> float:
    """Return what a sum over the clients that are there is divided by for their average."""
    return math.fsum(server.weights.get(client, 1.0) for client in clients.ids)


def average(server: Server, total: Any, clients: fl.Clients) -> Server:
    """Return the server with the average of the changes added, of which `total` is the sum."""
    part = 1 / weight_of_sum(server, clients)
    return fl.evolve(server, shared=server.shared + total.shared * part)


def train_and_average(
    server: Server,
    clients: fl.Clients,
    rng: fl.RandomKey,
    *,
    training: fl.ClientFunction,
    alone: fl.ClientFunction | None = None,
) -> tuple[Server, fl.RoundMetrics]:
    """Let the clients that are there train; average the changes of what all share.

    Where nothing is shared, each trains by `alone`.
    """
    server = fl.evolve(server, rounds=server.rounds + 1)
    if alone is not None and not server.options.shared_parts:
        clients.ask(alone, broadcast(server, clients))
        return server, fl.RoundMetrics(phase="local")
    total = clients.sum(training, broadcast(server, clients))
    return average(server, total, clients), fl.RoundMetrics(phase="averaging")


def mean_loss(
    clients: fl.Clients, part: fl.ClientFunction, messages: fl.Messages, rounds: int
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
    clients: fl.Clients,
    *,
    part_of_loss: fl.ClientFunction = part_of_loss,
) -> tuple[Server, fl.RoundMetrics]:
    """Return the loss over all clients' samples with what all share now."""
    messages = broadcast(server, clients)
    return server, fl.RoundMetrics(loss=mean_loss(clients, part_of_loss, messages, server.rounds))


def conclude(
    server: Server,
    clients: fl.Clients,
    rng: fl.RandomKey,
    *,
    personalise: fl.ClientFunction,
    part_of_loss: fl.ClientFunction = part_of_loss,
) -> fl.FinalResult:
    """Let every client train a last time if it is to; the networks stay at the clients."""
    if server.options.final_epochs:
        clients.ask(personalise, broadcast(server, clients))
    _, info = certify(server, clients, part_of_loss=part_of_loss)
    return fl.FinalResult(info)


def init_server(
    options: NetworkOptions,
    schema: Schema,
    rng: fl.RandomKey,
    *,
    name: str,
    own_feature_space: bool,
) -> Server:
    """Return the server's state before the set-up.

    Raises
    ------
    FederationError
        If clients have samples in common, or one has no labels, or what is shared reads features
        that not all have.
    """
    networks.check_clients(schema, name)
    alike = not own_feature_space and options.shared_parts
    return start(
        options, schema, rng, networks.check_same_features(schema, name, options) if alike else None
    )


def opening_shared(sends: Iterable[fl.Sends]) -> tuple[fl.Sends, ...]:
    """Declare that messages hold what all share: its start, and the changes of each round."""
    found = fl.opening({"Shared.shared": ("Change.shared", "Start.shared")}, sends)
    return tuple(
        replace(one, present="clients") if one.function.message is Shared else one for one in found
    )


def network_algorithm(
    name: str,
    options: type,
    *,
    training: fl.ClientFunction | None = None,
    alone: fl.ClientFunction | None = None,
    sends: Sequence[fl.Sends] = (),
    personalise: fl.ClientFunction | None = None,
    part_of_loss: fl.ClientFunction = part_of_loss,
    own_feature_space: bool = False,
    join: Callable[[fl.Clients, Any, Array], None] | None = None,
    local_baseline: fl.LocalBaseline | None = None,
    dp_unit: Literal["sample", "client"] = "sample",
    states: Sequence[type] = (),
    **steps: Any,
) -> fl.Algorithm:
    """Return an algorithm whose clients share parts of their networks.

    Parameters
    ----------
    training, alone
        How clients train in a round: for the average of what all share, or without one.
    sends
        What crosses in further steps.
    personalise
        How clients train a last time; None: `steps` has another `conclude`.
    states
        Beside those of this module.
    steps
        Those of `Algorithm` that are not as here.
    """
    if training is not None:
        sends = (*fl.sums(send_start), *fl.sums(training, pooled=shares), *sends)
    sends = (*sends, *fl.asks(*(one for one in (alone, personalise) if one is not None)))
    loss = fl.each(fl.sums(part_of_loss, reveals=("at",)), each_round=1)
    in_a_round: dict[str, Any] = {"training": training, "alone": alone}
    last: dict[str, Any] = {"personalise": personalise}
    return fl.Algorithm(
        **{
            "init_server": partial(init_server, name=name, own_feature_space=own_feature_space),
            "init_client": init_client,
            "setup": setup,
            "round": partial(train_and_average, **in_a_round),
            "conclude": partial(conclude, **last),
            "certify": partial(certify, part_of_loss=part_of_loss),
            **steps,
        },
        name=name,
        hyperparameters=options,
        absences=True,
        states=(Server, Client, options, Start, *states),
        model=fl.Model(
            predict=predict,
            network=network,
            own_feature_space=own_feature_space,
            local_baseline=local_baseline,
            join=join,
        ),
        disclosure=fl.Disclosure(
            sends=(*opening_shared((*sends, *loss)), *label_scaling.SENDS),
            dp_unit=dp_unit,
            allowed=allowed,
        ),
    )
