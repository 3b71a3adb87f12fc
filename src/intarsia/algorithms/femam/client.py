"""A client of `femam`: its levels, how the latest one trains, and whether it stays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.algorithms.femam.hyperparameters import FeMAM
from intarsia.algorithms.femam.state import (
    Ask,
    Begin,
    Candidate,
    Candidates,
    Choice,
    Closing,
    Compared,
    Kept,
    Latest,
    Model,
    Right,
    Scale,
    Share,
    Tried,
    Weight,
)
from intarsia.algorithms.femam.validation import (
    falls,
    helps,
    losses,
    losses_by_factor,
    pooled,
    summary,
)
from intarsia.algorithms.networks.architecture import Arrays, as_level, levels_of, pictures
from intarsia.algorithms.networks.client_network import (
    drawn,
    finite,
    network_scores,
    part_vector,
    training_of,
    with_parts,
)
from intarsia.algorithms.networks.parameter_sharing import Loss
from intarsia.algorithms.networks.targets import (
    label_tensor,
    loss_of_scores,
    odds,
    output_count,
    row_losses,
)
from intarsia.algorithms.networks.training_rows import dense, is_labelled, labelled_rows
from intarsia.core.algorithm import (
    ClientCall,
    RandomKey,
    Ready,
    client_function,
    evolve,
    vectorised_function,
)
from intarsia.core.block import Array, Block, ClientId
from intarsia.core.schema import Schema
from intarsia.maths.training import vectorised
from intarsia.maths.training.local_training import Batch, Learner, LocalTraining
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


def init_client(
    options: FeMAM, schema: Schema, client: ClientId, block: Block, rng: RandomKey
) -> Client:
    """Return a client's state before the first level.

    Raises
    ------
    TableError
        If a value is missing.
    """
    outputs = output_count(schema)
    dense(block)  # a missing value is said before anything trains
    made = drawn(block.shape[1], outputs, options, rng)
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
    )


def _opened(client: Client, model: Array | None) -> Client:
    """Return the client with a model of the latest level."""
    if model is None:
        return client if client.latest else evolve(client, latest=client.start)
    own = part_vector(client.start, ("*",)) + model
    return evolve(client, latest=with_parts(client.start, ("*",), own))


def _told(client: Client) -> Array:
    """Return the client's model of the latest level, as models are told."""
    return part_vector(client.latest, ("*",)) - part_vector(client.start, ("*",))


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


@lru_cache(maxsize=32)
def _training(options: FeMAM, outputs: int, epochs: int, pull: float) -> LocalTraining:
    """Return how a level trains; kept, as compiled functions belong to it."""
    return training_of(
        options,
        outputs,
        _level_loss,
        ("*",),
        epochs=epochs,
        proximal=pull,
        squared=options.proximal_norm == "squared",
    )


def _level_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Return the cross-entropies of a batch, with the scores of the frozen levels."""
    found = (batch["base"] + model(batch["x"])[1]) * batch["scale"]
    return row_losses(found, batch["y"])


def _learner(training: LocalTraining, client: Client, block: Block, rng: RandomKey) -> Learner:
    parameters = {name: torch.from_numpy(values) for name, values in client.latest.items()}
    kind = parameters["classifier.bias"].dtype
    x, y = labelled_rows(block)
    x, rows = pictures(training.model, x, block), ~client.held_out
    scale = combined(client, np.ones((1, 1)), client.count + 1)
    return Learner(
        parameters=parameters,
        rows={
            "x": torch.from_numpy(x[rows]).to(kind),
            "y": label_tensor(y[rows], parameters["classifier.bias"], client.outputs),
            "base": torch.from_numpy(client.base[rows]),
        },
        key=rng.fold_in("local").integer(),
        constants={"scale": torch.from_numpy(scale).to(kind)},
    )


@client_function
def begin_level(
    client: Client, block: Block, message: Begin, rng: RandomKey
) -> tuple[Client, Ready]:
    """Make what the level starts from."""
    start = {name: np.zeros_like(values) for name, values in client.start.items()}
    if not message.absolute:
        start = dict(levels_of(client.kept)[1])
        if client.options.start == "zero-output":
            for name in ("classifier.weight", "classifier.bias"):
                start[name] = np.zeros_like(start[name])
    client = evolve(client, start=start, latest={}, level=message.level)
    return _opened(client, message.own), Ready()


@client_function
def open_level(
    client: Client, block: Block, message: Latest, rng: RandomKey
) -> tuple[Client, Right]:
    """Open the model of the latest level; send how it does on the rows for validation."""
    client = _opened(client, message.model)
    if not client.held_out.any():
        return client, Right(np.zeros(2))
    own, y = labelled(block)
    rows = np.flatnonzero(client.held_out)
    scores = client.base[rows] + _latest_scores(client, own.take(rows))
    right = scores.argmax(axis=1) == np.maximum(y[rows], 0.0)
    return client, Right(np.array([right.sum(), len(right)], np.float64))


@client_function
def try_model(
    client: Client, block: Block, message: Candidate, rng: RandomKey
) -> tuple[Client, Ready]:
    """Keep a model of the latest level if its loss is less than that of those before."""
    trial = _opened(client, message.model)
    own, y = labelled(block)
    total = client.base + _latest_scores(trial, own)
    mean = float(losses(combined(client, total, client.count + 1), y)[~client.held_out].mean())
    if message.number == 0 or mean < client.least:
        client = evolve(client, best=message.model, choice=message.number, least=mean)
    return client, Ready()


@client_function
def choose_model(
    client: Client, block: Block, message: Ask, rng: RandomKey
) -> tuple[Client, Choice]:
    """Take the best model of the latest level; say which it is."""
    return evolve(_opened(client, client.best), best=None), Choice(client.choice)


@vectorised_function
def train_level(visits: Sequence[ClientCall[Ask]]) -> list[tuple[Client, Ready]]:
    """Train the latest level; the levels before it are frozen, and their scores known."""
    options = visits[0][0].options
    kinds = ("clusters", "given")
    pulled = options.proximal_levels == "all" or options.kind(visits[0][0].level) in kinds
    return _trained(visits, options.local_epochs, options.proximal if pulled else 0.0)


@vectorised_function
def fine_tune(visits: Sequence[ClientCall[Ask]]) -> list[tuple[Client, Ready]]:
    """Train the latest level, each client for itself."""
    return _trained(visits, visits[0][0].options.final_epochs, 0.0)


def _trained(
    visits: Sequence[ClientCall[Ask]], epochs: int, pull: float
) -> list[tuple[Client, Ready]]:
    options = visits[0][0].options
    training = _training(options, visits[0][0].outputs, epochs, pull)
    learners = [_learner(training, client, block, rng) for client, block, _, rng in visits]
    found: list[tuple[Client, Ready]] = []
    for visit, one in zip(
        visits, vectorised.train(training, learners, engine=options.engine), strict=True
    ):
        arrays = {name: values.detach().numpy() for name, values in one.parameters.items()}
        found.append((evolve(visit[0], latest=finite(training, arrays)), Ready()))
    return found


@client_function
def send_part(client: Client, block: Block, message: Share, rng: RandomKey) -> tuple[Client, Model]:
    """Send the client's part of an average, for a sum that the server does not read."""
    return client, Model(message.share * _told(client))


@client_function
def send_model(client: Client, block: Block, message: Ask, rng: RandomKey) -> tuple[Client, Model]:
    """Send the client's model of the latest level, which the server reads to find clusters."""
    return client, Model(_told(client))


@client_function
def compare_models(
    client: Client, block: Block, message: Candidates, rng: RandomKey
) -> tuple[Client, Compared]:
    """Send the losses of the rows for validation with each model, and their products."""
    rows = np.flatnonzero(client.held_out)
    trials = len(message.models)
    if not len(rows):
        return client, Compared(np.zeros(1 + trials + trials**2))
    own, y = labelled(block)
    own = own.take(rows)
    each = []
    for model in message.models:
        total = client.base[rows] + _latest_scores(_opened(client, model), own)
        each.append(losses(combined(client, total, client.count + 1), y[rows]))
    found = np.array(each, np.float64)
    parts = (np.array([len(rows)]), found.sum(axis=1), (found @ found.T).ravel())
    return client, Compared(np.concatenate(parts))


@client_function
def weigh_level(
    client: Client, block: Block, message: Latest, rng: RandomKey
) -> tuple[Client, Weight]:
    """Send what the latest level is worth on the rows for validation, for a sum over clients."""
    client = _opened(client, message.model)
    own, y = labelled(block)
    return client, Weight(summary(_falls(client, client.base + _latest_scores(client, own), y)))


def _falls(client: Client, total: Array, y: Array) -> Array:
    """Return what rows for validation gain by the latest level, (rows for validation,)."""
    rows = client.held_out
    before = combined(client, client.base[rows], client.count)
    after = combined(client, total[rows], client.count + 1)
    options = client.options
    if options.kind(client.level) == "shares":  # a bias that makes likelier what is likely anyway
        options = replace(options, criterion="loss")
    return falls(options, before, after, y[rows])


@client_function
def close_level(
    client: Client, block: Block, message: Closing, rng: RandomKey
) -> tuple[Client, Kept]:
    """Keep the level, frozen, if the rows for validation say that it helps, or drop it."""
    client = _opened(client, message.model)
    own, y = labelled(block)
    total = client.base + _latest_scores(client, own)
    level = None if message.summary is None else pooled(message.summary)
    kept = client.level == 1 or helps(client.options, _falls(client, total, y), level)
    if kept:
        client = evolve(
            client,
            base=total.astype(client.base.dtype),
            kept={**client.kept, **as_level(client.level, client.latest)},
            count=client.count + 1,
        )
    return evolve(client, latest={}), Kept(kept)


@client_function
def calibrate(client: Client, block: Block, message: Ask, rng: RandomKey) -> tuple[Client, Tried]:
    """Send the losses of the rows for validation with each factor of the levels' scores."""
    _, y = labelled(block)
    rows = client.held_out
    scores = combined(client, client.base[rows], client.count)
    return client, Tried(losses_by_factor(scores, y[rows]))


@client_function
def scale_levels(
    client: Client, block: Block, message: Scale, rng: RandomKey
) -> tuple[Client, Ready]:
    """Multiply the scores of all levels that are kept, by their last layers."""
    kept = {
        name: (values * message.factor).astype(values.dtype) if ".classifier." in name else values
        for name, values in client.kept.items()
    }
    base = (client.base * message.factor).astype(client.base.dtype)
    return evolve(client, kept=kept, base=base), Ready()


@client_function
def part_of_loss(client: Client, block: Block, message: Ask, rng: RandomKey) -> tuple[Client, Loss]:
    """Send this client's part of the loss, over all of its labelled rows."""
    return client, Loss(loss_of_scores(_scores(client, block), block))


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
    return odds(_scores(client, block))


def network(client: Client) -> Arrays:
    """Return the networks of the levels that a client keeps."""
    return client.kept
