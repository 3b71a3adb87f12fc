"""A client of `hyfem`: its state, its messages, how it trains, what it sends."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia import core as fl
from intarsia.algorithms.hyfem import network as nets
from intarsia.algorithms.hyfem.hyperparameters import (
    HyFEM,
    composition,
    share_of,
    used_blocks,
)
from intarsia.algorithms.hyfem.matching import OwnClassifier
from intarsia.algorithms.hyfem.network import Composition, Parts
from intarsia.algorithms.networks import targets
from intarsia.algorithms.networks.architecture import Arrays, as_tensors
from intarsia.algorithms.networks.client_network import own_cost, train_learners
from intarsia.algorithms.networks.options import device_of
from intarsia.algorithms.networks.parameter_sharing import Loss
from intarsia.algorithms.networks.training_rows import check_whole, is_labelled
from intarsia.core.block import Array, Block, ClientId
from intarsia.core.schema import Schema
from intarsia.maths.training.local_training import Batch, Learner, LocalTraining
from intarsia.maths.training.optimisers import SGD
from intarsia.maths.training.torch_import import Tensor, nn, torch

_LEFT_OUT = -1e4  # beside a score: its exponential is 0 in every precision
_CHANCE = 0.5  # of a class that a row's blocks say nothing of, in 1/K
_ALMOST = 1 - 1e-3  # of the blocks that a row keeps: all of them, rounded


@fl.describe("network parameters or their changes")
class Whole:
    """The server's network, sealed: what it starts from, or what it has come to."""

    extractors: fl.PerBlock | None = None  # block → (parameters,)
    columns: fl.PerBlock | None = None  # block → (units, features), of the first layer
    rest: Array | None = None  # β_1, W_2, β_2, …


@dataclass(frozen=True)
class Client:
    """A client's state."""

    options: HyFEM
    made_of: Composition
    parameters: Arrays  # by slot
    classes: NDArray[np.bool_]  # (outputs,) that it has rows of
    name: ClientId = ""
    shares: Mapping[ClientId, float] = field(default_factory=dict[str, float])  # p of all
    # of each of its blocks
    owners: Mapping[str, tuple[ClientId, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    @property
    def own_cost(self) -> float:
        """Return what a step of its network costs, beside what it costs whoever trains."""
        return own_cost(self.options.engine, self.options.batch, self.parameters)


@dataclass(frozen=True)
class Weight:
    """Ask for the classes that the client has."""


@fl.describe("the client's weight in each class that it has")
class Seen:
    """The client's p_m for each class that it has rows of, else 0."""

    classes: Array  # (outputs,)
    # block → (outputs,), for a balanced softmax and where the first layer is the last
    by_block: fl.PerBlock | None


@fl.holds_model("extractors", "columns", "rest")
@dataclass(frozen=True)
class Told:
    """The server's network, and what a client needs to weigh how it changes it.

    What a client counts for it tells from the schema: a server that chose it could let one count
    alone.
    """

    extractors: Any  # those of `Whole`, of the client's blocks
    columns: Any
    rest: Any
    classes: Any = None  # those of `Seen`, added up over the clients that are there
    by_block: Any = None
    present: tuple[ClientId, ...] = ()  # who is there
    number: int = 0  # rounds so far, which say how long steps are
    hidden: tuple[int, ...] = ()  # units of the classifier's hidden layers; (): as set


@fl.describe("network parameters or their changes")
class Change:
    """A client's part of the server's change, weighed."""

    extractors: fl.PerBlock | None
    columns: fl.PerBlock | None
    rest: Array | None


@lru_cache(maxsize=256)
def _training(
    made_of: Composition,
    pulls: tuple[float, float],
    steps: int,
    batch: int,
    dropout: float,
    how: tuple[float, float, float, str, bool],
) -> LocalTraining:
    """Return how clients train whose networks have one structure; it keeps compiled functions."""
    module = nets.structure(made_of)
    momentum, clip, smoothing, class_weights, bf16 = how
    names = [name for name, _ in module.named_parameters()]
    proximal = {
        f"{part}.*": pull
        for part, pull in zip(("extractors", "classifier"), pulls, strict=True)
        if any(name.startswith(f"{part}.") for name in names)
    }
    return LocalTraining(
        model=module,
        loss=targets.weighed(partial(_loss, dropout, smoothing), class_weights),
        optimiser=SGD(rate=1.0, momentum=momentum),  # each round has its own
        gradient_clip=clip,
        steps=steps,
        batch_size=batch,
        bf16=bf16,
        proximal=proximal,
        ragged=made_of.ragged,
        stacked=made_of.stacked,
        noise={"drawn": (len(made_of.blocks),)} if dropout else {},
    )


def _loss(dropout: float, smoothing: float, model: nn.Module, batch: Batch) -> Tensor:
    """Return the cross-entropies of a batch; how classes count goes by the blocks a row keeps.

    Beside a score comes the mean of what it gets by these. A class that is unknown of some of them
    is left out, for no row could train it up again. One that is unknown of all of them they cannot
    exclude: of K classes it has a chance of 1/(2 K), and the row's own class has the rest.
    """
    slots = sum(name[0] == "x" for name in batch)
    factors = _factors(batch["drawn"], dropout) if dropout else None
    found = model([batch[f"x{slot}"] for slot in range(slots)], factors)
    if "beside" not in batch:
        return targets.cross_entropy(found, batch["y"], smoothing)
    beside, unknown = batch["beside"], batch.get("unknown")  # (..., slots, outputs)
    kept = torch.ones_like(beside[..., None, :, 0]) if factors is None else factors.sign()
    kept = (kept / kept.sum(-1, keepdim=True)).to(beside.dtype)  # (..., rows or 1, slots)
    more = kept @ beside
    if unknown is None:
        each = targets.cross_entropy(found + more, batch["y"])
    else:
        each = _with_unknown(found, more, kept @ unknown, batch["y"])
    if not smoothing:
        return each
    return (1 - smoothing) * each - smoothing * found.log_softmax(-1).mean(-1)


def _with_unknown(scores: Tensor, beside: Tensor, unknown: Tensor, y: Tensor) -> Tensor:
    """Return the cross-entropies where each class is unknown of some of a row's blocks.

    `unknown` is the share of these, (..., rows or 1, outputs).
    """
    of_all = unknown > _ALMOST
    of_some = (unknown > 0) & ~of_all
    chances = (scores + beside.masked_fill(of_some, _LEFT_OUT)).log_softmax(-1)
    free = (_CHANCE / scores.shape[-1] * of_all.to(beside.dtype)).expand_as(scores)
    target = free.scatter_add(-1, y[..., None], 1 - free.sum(-1, keepdim=True))
    return -(target * chances).sum(-1)


def _factors(drawn: Tensor, dropout: float) -> Tensor:
    """Return what each slot counts for, (..., rows, slots), from standard normal numbers.

    A block is left out with this probability, all but the one of the largest number; the others
    make up for it.
    """
    there = (torch.special.ndtr(drawn) >= dropout) | (drawn >= drawn.amax(-1, keepdim=True))
    found: Tensor = there * (drawn.shape[-1] / there.sum(-1, keepdim=True))
    return found


def _by_block(client: Client, holders: Mapping[str, Array] | None) -> dict[str, Array]:
    """Return what a row's scores get beside them by a block that it keeps, and what is unknown.

    Each is (slots, outputs); none where the softmax is a plain one. `holders` are Σ p of those that
    hold a block of a class, by block. Their logs make the balanced softmax of Ren et al. (2020),
    here over who has a class, not over its rows.
    """
    options, made_of = client.options, client.made_of
    lacking = np.tile(~client.classes, (len(made_of.blocks), 1))
    if options.softmax == "held":
        return {"beside": np.where(lacking, _LEFT_OUT, 0.0), "unknown": np.zeros(lacking.shape)}
    if options.softmax == "all" or holders is None:
        return {}
    each = np.stack([holders[name] for name in made_of.blocks])
    # encrypted totals of nothing may be a little off
    known = each > min(client.shares.values()) / 2
    mean = np.mean(each, axis=1, where=known, keepdims=True)
    return {"beside": np.log(np.where(known, each / mean, 1.0)), "unknown": 1.0 - known}


def _learner(
    client: Client, block: Block, rng: fl.RandomKey, counted: Mapping[str, Array]
) -> Learner:
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
    tensors = as_tensors(client.parameters)
    like = tensors["classifier.0.bias"]
    labels = targets.label_tensor(own.y, like, made_of.outputs)
    kind = client.parameters["classifier.0.bias"].dtype
    values = {f"x{slot}": x for slot, x in enumerate(nets.values_of(made_of, own, kind))}
    return Learner(
        parameters=tensors,
        rows={
            **values,
            "y": labels,
            **targets.importance(labels, like, made_of.outputs, options.class_weights),
        },
        key=rng.integer(),
        constants={key: torch.from_numpy(values).to(like.dtype) for key, values in counted.items()},
    )


def _trained(calls: Sequence[fl.ClientCall[Told]]) -> list[Client]:
    """Return the clients after the steps of a round, those of one structure at once."""
    trainings, known, number = [], calls[0][0].options, calls[0][2].number
    rate = known.rate * known.decay ** max(0, number - 1) * known.rate_factor(number)
    for client, _, _, _ in calls:
        options, made_of = client.options, client.made_of.structure
        dropout = options.block_dropout if len(made_of.blocks) > 1 else 0.0
        how = (
            *(options.momentum, options.clip, options.label_smoothing, options.class_weights),
            options.precision == "bf16",
        )
        given = (options.pulls, options.steps, options.batch, dropout, how)
        trainings.append(_training(made_of, *given))
    counted = [_by_block(client, message.by_block) for client, _, message, _ in calls]
    if not any(own.any() for one in counted for own in one.values()):  # zeros change nothing
        counted = [{} for _ in calls]
    elif not any(one["unknown"].any() for one in counted):
        counted = [{"beside": one["beside"]} for one in counted]
    learners = [
        _learner(client, block, rng, own)
        for (client, block, _, rng), own in zip(calls, counted, strict=True)
    ]
    found = train_learners(trainings, learners, known.engine, rate, device_of(known))
    return [fl.evolve(call[0], parameters=own) for call, own in zip(calls, found, strict=True)]


def init_client(
    options: HyFEM, schema: Schema, client: ClientId, block: Block, rng: fl.RandomKey
) -> Client:
    """Return a client's state: a network that is drawn from the client's own key."""
    made_of = composition(options, schema, client)
    check_whole(block)  # a missing value is said before anything trains
    classes, blocks = held_classes(block, made_of.outputs), used_blocks(options, schema)
    return Client(
        *(options, made_of, nets.drawn(made_of, options.number_type, rng), classes),
        *(client, share_of(options, schema)),
        {name: one.owners for name, one in blocks.items() if client in one.owners},
    )


def held_classes(block: Block, outputs: int) -> NDArray[np.bool_]:
    """Return of which classes a client has labels, (outputs,)."""
    held = np.zeros(0) if block.y is None else block.y[is_labelled(block)]
    # of two classes, the first is stored as -1
    return np.isin(np.arange(outputs), np.maximum(held, 0.0))


@fl.client_function
def send_start(client: Client, block: Block, message: Whole) -> tuple[Client, Whole]:
    """Send what the total starts from."""
    return client, message


send_start = fl.one_sender(send_start, "extractors", "columns", "rest")


@fl.client_function
def weigh_classes(client: Client, block: Block, message: Weight) -> tuple[Client, Seen]:
    """Send the client's weight for each class that it has."""
    own: Array = np.where(client.classes, client.shares[client.name], 0.0)
    wanted = client.options.softmax == "balanced" or not client.made_of.hidden
    return client, Seen(own, dict.fromkeys(client.made_of.blocks, own) if wanted else None)


def _opened(client: Client, message: Told) -> Client:
    """Return the client with the server's network, as far as it is shared."""
    if message.extractors is None:
        return client
    made_of, parameters = client.made_of, client.parameters
    own = nets.parts_of(made_of, parameters)
    given = Parts(message.extractors, own.columns, own.rest)
    if message.columns is not None and message.rest is not None:
        made_of = replace(made_of, hidden=message.hidden or client.options.hidden)
        given = Parts(message.extractors, message.columns, message.rest)
    parameters = nets.assembled(made_of, given, parameters)
    return fl.evolve(client, made_of=made_of, parameters=parameters)


@fl.vectorised_function
def local_training(calls: Sequence[fl.ClientCall[Told]]) -> list[tuple[Client, Change]]:
    """Train from the server's network; send the client's part of its change."""
    before = [_opened(client, message) for client, _, message, _ in calls]
    after = _trained([(own, *call[1:]) for own, call in zip(before, calls, strict=True)])
    return [
        (new, _change(old, new, call[2]))
        for old, new, call in zip(before, after, calls, strict=True)
    ]


# where the server matches neurons it has the classifiers, and tells each its own columns
local_training = fl.told_the_same(local_training, "columns")


@fl.vectorised_function
def train_alone(calls: Sequence[fl.ClientCall[Told]]) -> list[tuple[Client, fl.Ready]]:
    """Train the client's own network; there is nothing to send."""
    return [(client, fl.Ready()) for client in _trained(calls)]


# it draws the other's batches, so that the two can be compared
train_alone = replace(train_alone, stream=local_training.name)


@fl.client_function
def send_classifier(
    client: Client, block: Block, message: fl.Ready
) -> tuple[Client, OwnClassifier]:
    """Send the classifier as it is, and which of its rows count."""
    own = nets.parts_of(client.made_of, client.parameters)
    rows = client.classes | (client.options.unseen_rows == "averaged")
    kind = client.parameters["classifier.0.bias"].dtype
    return client, OwnClassifier(
        nets.rounded(own.columns, kind), nets.rounded(own.rest, kind), rows
    )


def _change(before: Client, after: Client, message: Told) -> Change:
    """Return by how much a client moves the server's network, in the network's precision.

    A row of the last layer counts for those that have its class, unless all rows do.
    """
    made_of, there = before.made_of, set(message.present)
    old, new = (nets.parts_of(made_of, before.parameters), nets.parts_of(made_of, after.parameters))
    share, kind = _share(before, there), before.parameters["classifier.0.bias"].dtype
    shares = {name: _share(before, there & {*before.owners[name]}) for name in made_of.blocks}
    extractors = {
        name: shares[name] * (new.extractors[name] - old.extractors[name])
        for name in made_of.blocks
    }
    if message.rest is None or before.options.matching == "rounds":  # it is asked for
        return Change(nets.rounded(extractors, kind), None, None)
    moved = {name: new.columns[name] - old.columns[name] for name in made_of.blocks}
    if made_of.hidden:
        columns = {name: shares[name] * one for name, one in moved.items()}
    else:
        columns = {
            name: _of_classes(before, shares[name], (message.by_block or {}).get(name))[:, None]
            * one
            for name, one in moved.items()
        }
    rest = share * (new.rest - old.rest)
    rows = _of_classes(before, share, message.classes)
    biases, weights = nets.split_rest(rest, (*made_of.hidden, made_of.outputs))  # views of `rest`
    biases[-1] *= rows / share
    if weights:
        weights[-1] *= rows[:, None] / share
    return Change(*(nets.rounded(one, kind) for one in (extractors, columns, rest)))


def _share(client: Client, there: AbstractSet[ClientId]) -> float:
    """Return p_m over Σ p of some clients."""
    return client.shares[client.name] / math.fsum(client.shares[one] for one in there)


def _of_classes(client: Client, share: float, total: Array | None) -> Array:
    """Return the weights of the client's rows of the last layer, (outputs,)."""
    if client.options.unseen_rows == "averaged" or total is None:
        return np.full(client.made_of.outputs, share)
    found: Array = np.where(
        client.classes, client.shares[client.name] / np.where(client.classes, total, 1.0), 0.0
    )
    return found


@fl.client_function
def part_of_loss(client: Client, block: Block, message: Told) -> tuple[Client, Loss]:
    """Keep the server's network; send the client's part of the loss."""
    client = _opened(client, message)
    found = _scores(client, block)
    return client, Loss(targets.loss_of_scores(found, block))


part_of_loss = fl.told_the_same(part_of_loss, "columns")


def predict(client: Client, block: Block) -> Array:
    """Return the log-odds of the classes, (outputs, samples)."""
    return targets.odds(_scores(client, block))


def _scores(client: Client, block: Block) -> Array:
    return nets.scores(client.made_of, client.parameters, block, device_of(client.options))


def network(client: Client) -> Arrays:
    """Return the parameters of a client's network, by block."""
    return nets.named_by_block(client.made_of, client.parameters)


def _part_of_scores(client: Client, block: Block) -> dict[str, Array]:
    """Return what each block gives to the server's first layer, (units, samples)."""
    parts = nets.parts_of(client.made_of, client.parameters)
    device = device_of(client.options)
    return nets.first_layer(client.made_of, client.parameters, parts.columns, block, device)


def _scores_of_sum(client: Client, total: Array) -> Array:
    """Return the log-odds by the server's network from what all blocks give, (units, samples)."""
    made_of = client.made_of
    rest = nets.parts_of(made_of, client.parameters).rest
    return targets.odds(nets.from_first_layer(rest, (*made_of.hidden, made_of.outputs), total))


SERVER_MODEL = fl.ServerModel(_part_of_scores, _scores_of_sum)
