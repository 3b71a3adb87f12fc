"""A client of `hyfem`: its state, what it is told, how it trains, what it sends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.algorithms.hyfem.hyperparameters import HyFEM, composition
from intarsia.algorithms.hyfem.matching import OwnClassifier
from intarsia.algorithms.hyfem.network import (
    Arrays,
    Composition,
    Parts,
    assembled,
    drawn,
    first_layer,
    from_first_layer,
    named_by_block,
    parts_of,
    scores,
    split_rest,
    structure,
    values_of,
)
from intarsia.algorithms.networks.client_network import finite
from intarsia.algorithms.networks.parameter_sharing import Loss
from intarsia.algorithms.networks.targets import cross_entropy, label_tensor, loss_of_scores, odds
from intarsia.algorithms.networks.training_rows import is_labelled
from intarsia.core.algorithm import (
    ClientCall,
    PerBlock,
    RandomKey,
    Ready,
    ServerModel,
    client_function,
    evolve,
    vectorised_function,
)
from intarsia.core.block import Array, Block, ClientId
from intarsia.core.schema import Schema
from intarsia.maths.training import vectorised
from intarsia.maths.training.local_training import Batch, Learner, LocalTraining
from intarsia.maths.training.optimisers import SGD
from intarsia.maths.training.torch_import import Tensor, nn, torch


@dataclass(frozen=True)
class Whole:
    """The server's network, sealed: what it starts from, or what it has come to."""

    extractors: PerBlock | None = None  # block → (parameters,)
    columns: PerBlock | None = None  # block → (units, features), of the first layer
    rest: Array | None = None  # β_1, W_2, β_2, …


@dataclass(frozen=True)
class Client:
    """A client's state."""

    options: HyFEM
    made_of: Composition
    parameters: Arrays  # by slot
    classes: NDArray[np.bool_]  # (outputs,) that it has rows of


@dataclass(frozen=True)
class Weight:
    """The client's p_m."""

    share: float


@dataclass(frozen=True)
class Seen:
    """The client's p_m for each class that it has rows of, else 0."""

    classes: Array  # (outputs,)
    by_block: PerBlock | None  # block → (outputs,), where the first layer is the last


@dataclass(frozen=True)
class Told:
    """The server's network, and what a client needs to weigh how it changes it."""

    extractors: Any  # those of `Whole`, of the client's blocks
    columns: Any
    rest: Any
    classes: Any = None  # those of `Seen`, added up over the clients that are there
    by_block: Any = None
    share: float = 0.0  # p_m over Σ p of those that are there
    block_shares: Mapping[str, float] | None = None  # p_m over Σ p of those that hold the block
    weight: float = 0.0  # p_m
    rate: float = 0.0
    asked: bool = False  # the server asks for the classifier: its change is not sent
    hidden: tuple[int, ...] = ()  # units of the classifier's hidden layers; (): as set


@dataclass(frozen=True)
class Change:
    """A client's part of the server's change, weighed."""

    extractors: PerBlock | None
    columns: PerBlock | None
    rest: Array | None


@lru_cache(maxsize=64)
def _training(
    made_of: Composition,
    pulls: tuple[float, float],
    steps: int,
    batch: int,
    dropout: float,
) -> LocalTraining:
    """Return how clients train whose networks have one structure; it keeps compiled functions."""
    module = structure(made_of)
    names = [name for name, _ in module.named_parameters()]
    proximal = {
        f"{part}.*": pull
        for part, pull in zip(("extractors", "classifier"), pulls, strict=True)
        if any(name.startswith(f"{part}.") for name in names)
    }
    return LocalTraining(
        model=module,
        loss=partial(_loss, dropout),
        optimiser=SGD(rate=1.0),  # each round has its own
        steps=steps,
        batch_size=batch,
        proximal=proximal,
        ragged=made_of.ragged,
        stacked=made_of.stacked,
        noise={"drawn": (len(made_of.blocks),)} if dropout else {},
    )


def _loss(dropout: float, model: nn.Module, batch: Batch) -> Tensor:
    """Return the cross-entropies of a batch over the classes that count."""
    slots = sum(name[0] == "x" for name in batch)
    factors = _factors(batch["drawn"], dropout) if dropout else None
    found = model([batch[f"x{slot}"] for slot in range(slots)], factors)
    return cross_entropy(found + batch["counting"].unsqueeze(-2), batch["y"])


def _factors(drawn: Tensor, dropout: float) -> Tensor:
    """Return what each slot counts for, (..., rows, slots), from standard normal numbers.

    A block is left out with this probability, all but the one of the largest number; the others
    make up for it.
    """
    there = (torch.special.ndtr(drawn) >= dropout) | (drawn >= drawn.amax(-1, keepdim=True))
    found: Tensor = there * (drawn.shape[-1] / there.sum(-1, keepdim=True))
    return found


def _learner(client: Client, block: Block, rng: RandomKey) -> Learner:
    """Return a client's side of a round: the rows of its steps, drawn without repeating any.

    Rows are repeated where there are fewer than its steps take.
    """
    options, made_of = client.options, client.made_of
    rows = np.flatnonzero(is_labelled(block))
    needed = options.steps * options.batch
    if needed < len(rows):
        rows = np.sort(rng.fold_in("rows").generator().permutation(rows)[:needed])
    own = block.take(rows)
    assert own.y is not None
    parameters = {
        name: torch.from_numpy(values).to(options.device)
        for name, values in client.parameters.items()
    }
    like = parameters["classifier.0.bias"]
    counting = np.where(client.classes | (options.softmax == "all"), 0.0, -np.inf)
    values = {
        f"x{slot}": torch.from_numpy(x).to(options.device, like.dtype)
        for slot, x in enumerate(values_of(made_of, own))
    }
    return Learner(
        parameters=parameters,
        rows={**values, "y": label_tensor(own.y, like, made_of.outputs).to(options.device)},
        key=rng.integer(),
        constants={"counting": torch.from_numpy(counting).to(options.device, like.dtype)},
    )


def _trained(seats: Sequence[tuple[Client, Block, RandomKey]], rate: float) -> list[Client]:
    """Return the clients after the steps of a round, those of one structure at once."""
    groups: dict[Composition, list[int]] = {}
    for place, (client, _, _) in enumerate(seats):
        groups.setdefault(client.made_of.structure, []).append(place)
    after: dict[int, Client] = {}
    for made_of, places in groups.items():
        options = seats[places[0]][0].options
        dropout = options.block_dropout if len(made_of.blocks) > 1 else 0.0
        training = _training(made_of, options.pulls, options.steps, options.batch, dropout)
        learners = [_learner(*seats[place]) for place in places]
        found = vectorised.train(training, learners, engine=options.engine, rate=rate)
        for place, one in zip(places, found, strict=True):
            arrays = {name: values.cpu().numpy() for name, values in one.parameters.items()}
            after[place] = evolve(seats[place][0], parameters=finite(training, arrays))
    return [after[place] for place in range(len(seats))]


def init_client(
    options: HyFEM, schema: Schema, client: ClientId, block: Block, rng: RandomKey
) -> Client:
    """Return a client's state: a network that is drawn from the client's own key.

    Raises
    ------
    TableError
        If a value is missing.
    """
    made_of = composition(options, schema, client)
    values_of(made_of, block)  # a missing value is said before anything trains
    kind = np.float64 if options.precision == "double" else np.float32
    classes = held_classes(block, made_of.outputs)
    return Client(options, made_of, drawn(made_of, kind, rng), classes)


def held_classes(block: Block, outputs: int) -> NDArray[np.bool_]:
    """Return of which classes a client has labels, (outputs,)."""
    held = np.zeros(0) if block.y is None else block.y[is_labelled(block)]
    # of two classes, the first is stored as -1
    return np.isin(np.arange(outputs), np.maximum(held, 0.0))


@client_function
def send_start(
    client: Client, block: Block, message: Whole, rng: RandomKey
) -> tuple[Client, Whole]:
    """Send what the total starts from."""
    return client, message


@client_function
def weigh_classes(
    client: Client, block: Block, message: Weight, rng: RandomKey
) -> tuple[Client, Seen]:
    """Send the client's weight for each class that it has."""
    own: Array = np.where(client.classes, message.share, 0.0)
    by_block = None if client.made_of.hidden else dict.fromkeys(client.made_of.blocks, own)
    return client, Seen(own, by_block)


def _opened(client: Client, message: Told) -> Client:
    """Return the client with the server's network, as far as it is shared."""
    if message.extractors is None:
        return client
    own = parts_of(client.made_of, client.parameters)
    if message.columns is None or message.rest is None:
        given = Parts(message.extractors, own.columns, own.rest)
        return evolve(client, parameters=assembled(client.made_of, given, client.parameters))
    hidden = message.hidden or client.options.hidden
    made_of = replace(client.made_of, hidden=hidden)
    given = Parts(message.extractors, message.columns, message.rest)
    parameters = assembled(made_of, given, client.parameters)
    return evolve(client, made_of=made_of, parameters=parameters)


@vectorised_function
def local_training(visits: Sequence[ClientCall[Told]]) -> list[tuple[Client, Change]]:
    """Train from the server's network; send the client's part of its change."""
    before = [_opened(client, message) for client, _, message, _ in visits]
    seats = [
        (client, block, rng) for client, (_, block, _, rng) in zip(before, visits, strict=True)
    ]
    after = _trained(seats, visits[0][2].rate)
    return [
        (new, _change(old, new, visit[2]))
        for old, new, visit in zip(before, after, visits, strict=True)
    ]


@vectorised_function
def train_alone(visits: Sequence[ClientCall[Told]]) -> list[tuple[Client, Ready]]:
    """Train the client's own network; there is nothing to send."""
    seats = [(client, block, rng) for client, block, _, rng in visits]
    return [(client, Ready()) for client in _trained(seats, visits[0][2].rate)]


# it draws the other's batches, so that the two can be compared
train_alone = replace(train_alone, stream=local_training.name)


@client_function
def send_classifier(
    client: Client, block: Block, message: Ready, rng: RandomKey
) -> tuple[Client, OwnClassifier]:
    """Send the classifier as it is, and which of its rows count."""
    own = parts_of(client.made_of, client.parameters)
    rows = client.classes | (client.options.unseen_rows == "averaged")
    return client, OwnClassifier(own.columns, own.rest, rows)


def _change(before: Client, after: Client, message: Told) -> Change:
    """Return by how much a client moves the server's network.

    A row of the last layer counts for those that have its class, unless all rows do.
    """
    made_of = before.made_of
    old, new = parts_of(made_of, before.parameters), parts_of(made_of, after.parameters)
    shares = message.block_shares
    assert shares is not None
    extractors = {
        name: shares[name] * (new.extractors[name] - old.extractors[name])
        for name in made_of.blocks
    }
    if message.rest is None or message.asked:
        return Change(extractors, None, None)
    moved = {name: new.columns[name] - old.columns[name] for name in made_of.blocks}
    if made_of.hidden:
        columns = {name: shares[name] * one for name, one in moved.items()}
    else:
        columns = {
            name: _of_classes(before, message, shares[name], (message.by_block or {}).get(name))[
                :, None
            ]
            * one
            for name, one in moved.items()
        }
    rest = message.share * (new.rest - old.rest)
    rows = _of_classes(before, message, message.share, message.classes)
    biases, weights = split_rest(rest, (*made_of.hidden, made_of.outputs))  # views of `rest`
    biases[-1] *= rows / message.share
    if weights:
        weights[-1] *= rows[:, None] / message.share
    return Change(extractors, columns, rest)


def _of_classes(client: Client, message: Told, share: float, total: Array | None) -> Array:
    """Return the weights of the client's rows of the last layer, (outputs,)."""
    if client.options.unseen_rows == "averaged" or total is None:
        return np.full(client.made_of.outputs, share)
    found: Array = np.where(
        client.classes, message.weight / np.where(client.classes, total, 1.0), 0.0
    )
    return found


@client_function
def part_of_loss(
    client: Client, block: Block, message: Told, rng: RandomKey
) -> tuple[Client, Loss]:
    """Keep the server's network; send the client's part of the loss."""
    client = _opened(client, message)
    found = scores(client.made_of, client.parameters, block)
    return client, Loss(loss_of_scores(found, block))


def predict(client: Client, block: Block) -> Array:
    """Return the log-odds of the classes, (outputs, samples)."""
    return odds(scores(client.made_of, client.parameters, block))


def network(client: Client) -> Arrays:
    """Return the parameters of a client's network, by block."""
    return named_by_block(client.made_of, client.parameters)


def _part_of_scores(client: Client, block: Block) -> dict[str, Array]:
    """Return what each block gives to the server's first layer, (units, samples)."""
    parts = parts_of(client.made_of, client.parameters)
    return first_layer(client.made_of, client.parameters, parts.columns, block)


def _scores_of_sum(client: Client, total: Array) -> Array:
    """Return the log-odds by the server's network from what all blocks give, (units, samples)."""
    made_of = client.made_of
    rest = parts_of(made_of, client.parameters).rest
    return odds(from_first_layer(rest, (*made_of.hidden, made_of.outputs), total))


SERVER_MODEL = ServerModel(_part_of_scores, _scores_of_sum)
