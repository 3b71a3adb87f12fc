"""A client of `femam`: its levels, how the latest one trains, and whether it stays."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.algorithms.femam import state, validation
from intarsia.algorithms.femam.hyperparameters import FeMAM
from intarsia.algorithms.networks import client_network as networks
from intarsia.algorithms.networks import targets
from intarsia.algorithms.networks.architecture import Arrays, as_level, levels_of, pictures
from intarsia.algorithms.networks.client_network import network_scores
from intarsia.algorithms.networks.options import device_of
from intarsia.algorithms.networks.parameter_sharing import Loss as PartOfLoss
from intarsia.algorithms.networks.training_rows import dense, is_labelled, labelled_rows
from intarsia.core import algorithm as fl
from intarsia.core.block import Array, Block, ClientId
from intarsia.core.schema import Schema
from intarsia.maths.training.local_training import Batch, Learner, LocalTraining, Loss
from intarsia.maths.training.torch_import import Tensor, nn, torch


@dataclass(frozen=True)
class Client:
    """A client's state."""

    options: FeMAM
    outputs: int
    start: Arrays  # what the latest level's models are told relative to
    latest: Arrays  # the network of the latest level; empty when it is closed
    held_out: NDArray[np.bool_]  # (labelled rows,) those for validation
    base: Array  # (labelled rows, outputs) Σ of the scores of the levels that are kept
    kept: Arrays  # their networks, which are frozen: "levels.1.classifier.bias", …
    best: Array | None = None  # the model that is best for its rows, of those tried so far
    choice: int = 0  # which of them it is
    least: float = math.inf  # its loss
    count: int = 0  # of levels that are kept
    level: int = 0  # the latest, counted from 1
    name: ClientId = ""
    weights: Mapping[ClientId, float] = field(default_factory=dict[str, float])  # of all


def init_client(
    options: FeMAM, schema: Schema, client: ClientId, block: Block, rng: fl.RandomKey
) -> Client:
    """Return a client's state before the first level."""
    outputs = targets.output_count(schema)
    dense(block)  # a missing value is said before anything trains
    made = networks.drawn(block.shape[1], outputs, options, rng)
    rows = int(is_labelled(block).sum())
    held_out = np.zeros(rows, bool)
    if options.validation and rows > 1:
        count = min(max(round(options.validation * rows), 1), rows - 1)
        held_out[rng.fold_in("validation").generator().permutation(rows)[:count]] = True
    return Client(
        options=options,
        outputs=outputs,
        start={name: np.zeros_like(values) for name, values in made.items()},
        latest={},
        held_out=held_out,
        base=np.zeros((rows, outputs), next(iter(made.values())).dtype),
        kept={},
        name=client,
        weights=weights_of(options, schema),
    )


def weights_of(options: FeMAM, schema: Schema) -> dict[ClientId, float]:
    """Return what each client counts for in an average."""
    return {
        name: float(held.labelled.sum()) if options.weights == "samples" else 1.0
        for name, held in schema.holdings.items()
    }


def _opened(client: Client, model: Array | None) -> Client:
    """Return the client with a model of the latest level."""
    if model is None:
        return client if client.latest else fl.evolve(client, latest=client.start)
    own = networks.part_vector(client.start, ("*",)) + model
    return fl.evolve(client, latest=networks.with_parts(client.start, ("*",), own))


def _told(client: Client) -> Array:
    """Return the client's model of the latest level, as models are told."""
    return networks.part_vector(client.latest, ("*",)) - networks.part_vector(client.start, ("*",))


def _latest_scores(client: Client, block: Block) -> Array:
    """Return the scores of the latest level on a block's rows, (rows, outputs)."""
    return network_scores(client.latest, client.options.architecture, block)


def combined(client: Client, total: Array, levels: int) -> Array:
    """Return the scores that a sum of the scores of some levels stands for."""
    return total / max(levels, 1) if client.options.combination == "mean" else total


def labelled(block: Block) -> tuple[Block, Array]:
    """Return the labelled rows of a block, and their labels."""
    own = block.take(np.flatnonzero(is_labelled(block)))
    assert own.y is not None
    return own, own.y


def _level_loss(model: nn.Module, batch: Batch, smoothing: float = 0.0) -> Tensor:
    """Return the cross-entropies of a batch, with the scores of the frozen levels."""
    found = (batch["base"] + model(batch["x"])[1]) * batch["scale"]
    return targets.row_losses(found, batch["y"], smoothing)


@lru_cache(maxsize=64)  # a training is kept by its objective
def _smoothed(smoothing: float) -> Loss:
    return partial(_level_loss, smoothing=smoothing) if smoothing else _level_loss


def _learner(training: LocalTraining, client: Client, block: Block, rng: fl.RandomKey) -> Learner:
    parameters = {name: torch.from_numpy(values) for name, values in client.latest.items()}
    kind = parameters["classifier.bias"].dtype
    x, y = labelled_rows(block)
    x, rows = pictures(training.model, x, block), ~client.held_out
    scale = combined(client, np.ones((1, 1)), client.count + 1)
    like, classes = parameters["classifier.bias"], client.options.class_weights
    labels = targets.label_tensor(y[rows], like, client.outputs)
    return Learner(
        parameters=parameters,
        rows={
            "x": torch.from_numpy(x[rows]).to(kind),
            "y": labels,
            "base": torch.from_numpy(client.base[rows]),
            **targets.importance(labels, like, client.outputs, classes),
        },
        key=rng.fold_in("local").integer(),
        constants={"scale": torch.from_numpy(scale).to(kind)},
    )


@fl.client_function
def begin_level(
    client: Client, block: Block, message: state.Begin, rng: fl.RandomKey
) -> tuple[Client, fl.Ready]:
    """Make what the level starts from."""
    start = {name: np.zeros_like(values) for name, values in client.start.items()}
    if not message.absolute:
        start = dict(levels_of(client.kept)[1])
        if client.options.start == "zero-output":
            for name in ("classifier.weight", "classifier.bias"):
                start[name] = np.zeros_like(start[name])
    client = fl.evolve(client, start=start, latest={}, level=message.level)
    return _opened(client, message.own), fl.Ready()


@fl.client_function
def open_level(
    client: Client, block: Block, message: state.Latest, rng: fl.RandomKey
) -> tuple[Client, state.Right]:
    """Open the model of the latest level; send how it does on the rows for validation."""
    client = _opened(client, message.model)
    if not client.held_out.any():
        return client, state.Right(np.zeros(2))
    own, y = labelled(block)
    rows = np.flatnonzero(client.held_out)
    scores = client.base[rows] + _latest_scores(client, own.take(rows))
    right = scores.argmax(axis=1) == np.maximum(y[rows], 0.0)
    return client, state.Right(np.array([right.sum(), len(right)], np.float64))


@fl.client_function
def try_model(
    client: Client, block: Block, message: state.Candidate, rng: fl.RandomKey
) -> tuple[Client, fl.Ready]:
    """Keep a model of the latest level if its loss is less than that of those before."""
    trial = _opened(client, message.model)
    own, y = labelled(block)
    total = client.base + _latest_scores(trial, own)
    mean = float(
        validation.losses(combined(client, total, client.count + 1), y)[~client.held_out].mean()
    )
    if message.number == 0 or mean < client.least:
        client = fl.evolve(client, best=message.model, choice=message.number, least=mean)
    return client, fl.Ready()


@fl.client_function
def choose_model(
    client: Client, block: Block, message: state.Ask, rng: fl.RandomKey
) -> tuple[Client, state.Choice]:
    """Take the best model of the latest level; say which it is."""
    return fl.evolve(_opened(client, client.best), best=None), state.Choice(client.choice)


@fl.vectorised_function
def train_level(calls: Sequence[fl.ClientCall[state.Ask]]) -> list[tuple[Client, fl.Ready]]:
    """Train the latest level; the levels before it are frozen, and their scores known."""
    return _level_trained(calls, 1)


@fl.vectorised_function
def train_level_on_schedule(
    calls: Sequence[fl.ClientCall[state.Turn]],
) -> list[tuple[Client, fl.Ready]]:
    """Train the latest level by steps of the length that the round has."""
    return _level_trained(calls, calls[0][2].round)


# it draws the other's batches, so that the two can be compared
train_level_on_schedule = replace(train_level_on_schedule, stream=train_level.name)


def _level_trained(calls: Sequence[Any], number: int) -> list[tuple[Client, fl.Ready]]:
    options = calls[0][0].options
    kinds = ("clusters", "given")
    pulled = options.proximal_levels == "all" or options.kind(calls[0][0].level) in kinds
    return _trained(calls, options.local_epochs, options.proximal if pulled else 0.0, number)


@fl.vectorised_function
def fine_tune(calls: Sequence[fl.ClientCall[state.Ask]]) -> list[tuple[Client, fl.Ready]]:
    """Train the latest level, each client for itself."""
    return _trained(calls, calls[0][0].options.final_epochs, 0.0)


def _trained(
    calls: Sequence[fl.ClientCall[Any]], epochs: int, pull: float, number: int = 1
) -> list[tuple[Client, fl.Ready]]:
    first, options = calls[0][0], calls[0][0].options
    training = networks.training_of(
        options,
        first.outputs,
        _smoothed(options.label_smoothing),
        ("*",),
        epochs=epochs,
        proximal=pull,
        squared=options.proximal_norm == "squared",
    )
    learners = [_learner(training, client, block, rng) for client, block, _, rng in calls]
    rate, device = networks.rate_of(options, number), device_of(options)
    found = networks.train_learners([training] * len(calls), learners, options.engine, rate, device)
    return [
        (fl.evolve(call[0], latest=own), fl.Ready()) for call, own in zip(calls, found, strict=True)
    ]


@fl.client_function
def send_part(
    client: Client, block: Block, message: state.Share, rng: fl.RandomKey
) -> tuple[Client, state.Model]:
    """Send the client's part of an average, for a sum that the server does not read."""
    weights = client.weights
    share = weights[client.name] / math.fsum(weights[one] for one in message.members)
    return client, state.Model(share * _told(client))


@fl.client_function
def send_model(
    client: Client, block: Block, message: state.Ask, rng: fl.RandomKey
) -> tuple[Client, state.Model]:
    """Send the client's model of the latest level, which the server reads to find clusters."""
    return client, state.Model(_told(client))


@fl.client_function
def compare_models(
    client: Client, block: Block, message: state.Candidates, rng: fl.RandomKey
) -> tuple[Client, state.Compared]:
    """Send the losses of the rows for validation with each model, and their products."""
    rows = np.flatnonzero(client.held_out)
    trials = len(message.models)
    if not len(rows):
        return client, state.Compared(np.zeros(1 + trials + trials**2))
    own, y = labelled(block)
    own = own.take(rows)
    each = []
    for model in message.models:
        total = client.base[rows] + _latest_scores(_opened(client, model), own)
        each.append(validation.losses(combined(client, total, client.count + 1), y[rows]))
    found = np.array(each, np.float64)
    parts = (np.array([len(rows)]), found.sum(axis=1), (found @ found.T).ravel())
    return client, state.Compared(np.concatenate(parts))


@fl.client_function
def weigh_level(
    client: Client, block: Block, message: state.Latest, rng: fl.RandomKey
) -> tuple[Client, state.Weight]:
    """Send what the latest level is worth on the rows for validation, for a sum over clients."""
    client = _opened(client, message.model)
    own, y = labelled(block)
    return client, state.Weight(
        validation.summary(_falls(client, client.base + _latest_scores(client, own), y))
    )


def _falls(client: Client, total: Array, y: Array) -> Array:
    """Return what rows for validation gain by the latest level, (rows for validation,)."""
    rows = client.held_out
    before = combined(client, client.base[rows], client.count)
    after = combined(client, total[rows], client.count + 1)
    options = client.options
    if options.kind(client.level) == "shares":  # a bias that makes likelier what is likely anyway
        options = replace(options, criterion="loss")
    return validation.falls(options, before, after, y[rows])


@fl.client_function
def close_level(
    client: Client, block: Block, message: state.Closing, rng: fl.RandomKey
) -> tuple[Client, state.Kept]:
    """Keep the level, frozen, if the rows for validation say that it helps, or drop it."""
    client = _opened(client, message.model)
    own, y = labelled(block)
    total = client.base + _latest_scores(client, own)
    level = None if message.summary is None else validation.pooled(message.summary)
    kept = client.level == 1 or validation.helps(client.options, _falls(client, total, y), level)
    if kept:
        client = fl.evolve(
            client,
            base=total.astype(client.base.dtype),
            kept={**client.kept, **as_level(client.level, client.latest)},
            count=client.count + 1,
        )
    return fl.evolve(client, latest={}), state.Kept(kept)


@fl.client_function
def calibrate(
    client: Client, block: Block, message: state.Ask, rng: fl.RandomKey
) -> tuple[Client, state.Tried]:
    """Send the losses of the rows for validation with each factor of the levels' scores."""
    _, y = labelled(block)
    rows = client.held_out
    scores = combined(client, client.base[rows], client.count)
    return client, state.Tried(validation.losses_by_factor(scores, y[rows]))


@fl.client_function
def scale_levels(
    client: Client, block: Block, message: state.Scale, rng: fl.RandomKey
) -> tuple[Client, fl.Ready]:
    """Multiply the scores of all levels that are kept, by their last layers."""
    kept = {
        name: (values * message.factor).astype(values.dtype) if ".classifier." in name else values
        for name, values in client.kept.items()
    }
    base = (client.base * message.factor).astype(client.base.dtype)
    return fl.evolve(client, kept=kept, base=base), fl.Ready()


@fl.client_function
def part_of_loss(
    client: Client, block: Block, message: state.Ask, rng: fl.RandomKey
) -> tuple[Client, PartOfLoss]:
    """Send this client's part of the loss, over all of its labelled rows."""
    return client, PartOfLoss(targets.loss_of_scores(_scores(client, block), block))


def _scores(client: Client, block: Block) -> Array:
    """Return the scores of a block's rows with the levels that the client has, (rows, outputs)."""
    made_of = client.options.architecture
    each: list[Any] = [
        network_scores(own, made_of, block) for own in levels_of(client.kept).values()
    ]
    if client.latest:
        each.append(_latest_scores(client, block))
    if not each:
        return np.zeros((block.shape[0], client.outputs))
    return combined(client, np.add.reduce(each), len(each))


def predict(client: Client, block: Block) -> Array:
    """Return the log-odds of the classes, (outputs, samples)."""
    return targets.odds(_scores(client, block))


def network(client: Client) -> Arrays:
    """Return the networks of the levels that a client keeps."""
    return client.kept
