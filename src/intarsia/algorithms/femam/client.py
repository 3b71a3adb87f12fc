"""A client of `femam`: its levels, how the latest one trains, and whether it stays."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia import core as fl
from intarsia.algorithms.femam import state, validation
from intarsia.algorithms.femam.hyperparameters import FeMAM
from intarsia.algorithms.networks import client_network as networks
from intarsia.algorithms.networks import targets
from intarsia.algorithms.networks.architecture import (
    Arrays,
    as_level,
    levels_of,
    named_width,
    order_read,
)
from intarsia.algorithms.networks.client_network import network_scores
from intarsia.algorithms.networks.options import device_of
from intarsia.algorithms.networks.parameter_sharing import Loss as PartOfLoss
from intarsia.algorithms.networks.training_rows import (
    check_whole,
    held_out_rows,
    is_labelled,
    labelled_rows,
)
from intarsia.core.block import Array, Block, ClientId
from intarsia.core.schema import Schema
from intarsia.errors import RefusedError
from intarsia.maths import shrinkage
from intarsia.maths.training.local_training import Batch, Learner, LocalTraining, Loss
from intarsia.maths.training.torch_import import Tensor, nn, torch
from intarsia.protocols.evaluation_rows import LEAST_ROWS

_OF_SOME = ("clusters", "given")  # levels whose models are of some clients each


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
    # with the adaptive schedule `kept` has all levels until the last is closed, `base` and `count`
    # are of those that are chosen, and a personal level starts from the best one
    chosen: tuple[int, ...] = ()
    parent: int = 1
    origin: int = 0  # the level that the personal one began as
    level: int = 0  # the latest, counted from 1
    closed: int = 0  # the last that was closed
    scaled: int = 0  # the last with which scores were multiplied
    again: int = 0  # the level that trains once more; 0: none
    members: tuple[ClientId, ...] = ()  # with whom the latest model was averaged since it trained
    name: ClientId = ""
    weights: Mapping[ClientId, float] = field(default_factory=dict[str, float])  # of all
    # what tells the model that it was told last at each level from others; "": the start
    told: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def own_cost(self) -> float:
        """Return what a step of its network costs, beside what it costs whoever trains."""
        return networks.own_cost(self.options.engine, self.options.batch, self.start)


def init_client(
    options: FeMAM, schema: Schema, client: ClientId, block: Block, rng: fl.RandomKey
) -> Client:
    """Return a client's state before the first level."""
    outputs = targets.output_count(schema)
    options = _decayed(options, schema)
    check_whole(block)  # a missing value is said before anything trains
    made = networks.drawn(networks.features_of(options, block), outputs, options, rng)
    # of fewer rows nothing is sent where the server reads models (`rows_told_of`)
    least = LEAST_ROWS if options.adaptive and options.read_of_clients else 1
    held_out = held_out_rows(block, options.validation, rng, least=least)
    return Client(
        options=options,
        outputs=outputs,
        start={name: np.zeros_like(values) for name, values in made.items()},
        latest={},
        held_out=held_out,
        base=np.zeros((len(held_out), outputs), next(iter(made.values())).dtype),
        kept={},
        name=client,
        weights=weights_of(options, schema),
    )


def _decayed(options: FeMAM, schema: Schema) -> FeMAM:
    """Return the options with the decays that fit all clients and their labelled rows.

    A decay stands beside a mean over rows: what is known without any counts the less, the more rows
    there are. And what one client's rows have by chance, an average over many clients takes away.
    """
    rows = sum(int(held.labelled.sum()) for held in schema.holdings.values())
    part = min(options.decay_rows / max(rows, 1), options.decay_clients / len(schema.holdings), 1.0)
    if not options.adaptive or part == 1:
        return options
    return replace(
        options,
        weight_decay=part * options.weight_decay,
        embedding_decay=part * options.embedding_decay,
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
    level, told = client.again or client.level, "-"
    if client.options.kind(level) not in _OF_SOME:
        # in the precision that it trains in: what rounding hides tells nothing
        seen = model.astype(next(iter(client.start.values())).dtype)
        told = hashlib.sha256(seen.data).hexdigest()
    return fl.evolve(
        client,
        latest=networks.with_parts(client.start, ("*",), own),
        told={**client.told, str(level): told},
    )


def _told_before(client: Client, block: Block) -> dict[str, str]:
    """Return what all clients were told alike: the models of levels that are of all of them."""
    kind = client.options.kind
    return {
        level: told
        for level, told in client.told.items()
        if int(level) and kind(int(level)) not in _OF_SOME
    }


def _told(client: Client) -> Array:
    """Return the client's model of the latest level, as models are told."""
    return networks.part_vector(client.latest, ("*",)) - networks.part_vector(client.start, ("*",))


def _latest_scores(client: Client, block: Block) -> Array:
    """Return the scores of the latest level on a block's rows, (rows, outputs)."""
    options = client.options
    return network_scores(client.latest, options.architecture, block, device_of(options))


def combined(client: Client, total: Array, levels: int) -> Array:
    """Return the scores that a sum of the scores of some levels stands for."""
    options = client.options
    return total / max(levels, 1) if options.adaptive or options.combination == "mean" else total


def _with_latest(client: Client, before: Array, latest: Array) -> Array:
    """Return the scores that the latest level trains for, of rows with those before it."""
    return latest if client.options.adaptive else before + latest


def labelled(block: Block) -> tuple[Block, Array]:
    """Return the labelled rows of a block, and their labels."""
    held = is_labelled(block)
    own = block if held.all() else block.take(np.flatnonzero(held))
    assert own.y is not None
    return own, own.y


def _level_loss(model: nn.Module, batch: Batch, smoothing: float = 0.0) -> Tensor:
    """Return the cross-entropies of a batch, with the scores of the frozen levels."""
    found = (batch["base"] + model(batch["x"])[1]) * batch["scale"]
    return targets.row_losses(found, batch["y"], smoothing)


@lru_cache(maxsize=64)  # a training is kept by its objective
def _smoothed(smoothing: float) -> Loss:
    return partial(_level_loss, smoothing=smoothing) if smoothing else _level_loss


def _learner(
    training: LocalTraining, client: Client, block: Block, rng: fl.RandomKey, *, whole: bool
) -> Learner:
    """Return what trains the latest level, on all rows or without those for validation."""
    parameters = {name: torch.from_numpy(values) for name, values in client.latest.items()}
    kind = parameters["classifier.bias"].dtype
    rows = ~client.held_out
    if whole:
        rows = np.ones_like(rows)
    block = block.take(np.flatnonzero(is_labelled(block))[rows])
    order = order_read(training.model, block)
    x, y = labelled_rows(block, client.latest["classifier.bias"].dtype, order)
    base, scale = client.base[rows], np.ones((1, 1))
    if client.options.adaptive:
        base = np.zeros_like(base)
    else:
        scale = combined(client, scale, client.count + 1)
    like, classes = parameters["classifier.bias"], client.options.class_weights
    labels = targets.label_tensor(y, like, client.outputs)
    return Learner(
        parameters=parameters,
        rows={
            "x": x,
            "y": labels,
            "base": torch.from_numpy(base),
            **targets.importance(labels, like, client.outputs, classes),
        },
        key=rng.fold_in("local").integer(),
        constants={"scale": torch.from_numpy(scale).to(kind)},
        references=_parent(client),
    )


def _parent(client: Client) -> dict[str, Tensor] | None:
    """Return what a personal level of the adaptive schedule is pulled to; None: where it starts."""
    number = client.again or client.level
    if not client.options.adaptive or client.options.kind(number) != "personal":
        return None
    parent = levels_of(client.kept)[client.origin]
    return {name: torch.from_numpy(values) for name, values in parent.items()}


def _pull(options: FeMAM, number: int) -> float:
    """Return the weight of the proximal term at a level."""
    if options.adaptive and options.kind(number) == "personal":
        return options.personal_pull
    pulled = options.proximal_levels == "all" or options.kind(number) in ("clusters", "given")
    return options.proximal if pulled else 0.0


@fl.client_function
def begin_level(client: Client, block: Block, message: state.Begin) -> tuple[Client, fl.Ready]:
    """Make what the level starts from.

    Raises
    ------
    RefusedError
        If it is not the next one of the run: each level has a client answer once more.
    """
    if message.level != client.level + 1 or message.level > len(client.options.levels):
        raise RefusedError(
            f"Level {message.level} was to begin at a client at level {client.level} of "
            f"{len(client.options.levels)}, and levels begin one after the other; run the "
            "algorithm as it is at the server."
        )
    start = {name: np.zeros_like(values) for name, values in client.start.items()}
    if not message.absolute:
        options = client.options
        own = options.adaptive and options.kind(message.level) == "personal"
        start = dict(levels_of(client.kept)[client.parent if own else 1])
        if own:
            client = fl.evolve(client, origin=client.parent)
        if options.start == "zero-output" and not options.adaptive:
            for name in ("classifier.weight", "classifier.bias"):
                start[name] = np.zeros_like(start[name])
    client = fl.evolve(
        client,
        start=start,
        latest={},
        level=message.level,
        told={**client.told, str(message.level): ""},
    )
    return _opened(client, message.own), fl.Ready()


def _with_told_models(fn: fl.ClientFunction) -> fl.ClientFunction:
    """Return a function as one whose parts add up only where clients were told the same models.

    Of two totals with one client at another model the difference is that client's part.
    """
    return fl.told_before(fn, _told_before)


def rows_told_of(client: Client) -> NDArray[np.bool_]:
    """Return the rows for validation by which a client answers, (labelled rows,).

    Where the server makes models there are none of fewer than five: answers on these would tell
    each of them.
    """
    few = client.options.read_of_clients and client.held_out.sum() < LEAST_ROWS
    return np.zeros_like(client.held_out) if few else client.held_out


@_with_told_models
@fl.client_function
def open_level(client: Client, block: Block, message: state.Latest) -> tuple[Client, state.Right]:
    """Open the model of the latest level; send how it does on the rows for validation.

    Where the server reads models, a client of fewer than five such rows sends zeros.
    """
    client = _opened(client, message.model)
    rows = np.flatnonzero(rows_told_of(client))
    if not len(rows):
        return client, state.Right(np.zeros(2))
    own, y = labelled(block)
    scores = _with_latest(client, client.base[rows], _latest_scores(client, own.take(rows)))
    right = scores.argmax(axis=1) == np.maximum(y[rows], 0.0)
    return client, state.Right(np.array([right.sum(), len(right)], np.float64))


@fl.client_function
def try_model(client: Client, block: Block, message: state.Candidate) -> tuple[Client, fl.Ready]:
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
def choose_model(client: Client, block: Block, message: state.Ask) -> tuple[Client, state.Choice]:
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
    return _trained(calls, options.local_epochs, _pull(options, calls[0][0].level), number)


@fl.vectorised_function
def fine_tune(calls: Sequence[fl.ClientCall[state.Ask]]) -> list[tuple[Client, fl.Ready]]:
    """Train the latest level, each client for itself."""
    options = calls[0][0].options
    pull = _pull(options, calls[0][0].level) if options.adaptive else 0.0
    return _trained(calls, options.final_epochs or options.local_epochs, pull)


def _looked_at(client: Client) -> bool:
    """Return whether a client trains for groups to be found by what it learns.

    So it does at level 1 before a level of clusters, and there until it is told a model. Decays
    would keep it, in so few rounds, from learning what tells clients apart.
    """
    options, level = client.options, client.level
    if not options.adaptive or client.again:
        return False
    if level == 1:
        return len(options.levels) > 1 and options.kind(2) == "clusters"
    return options.kind(level) == "clusters" and not client.told.get(str(level))


def _trained(
    calls: Sequence[fl.ClientCall[Any]],
    epochs: int,
    pull: float,
    number: int = 1,
    *,
    whole: bool = False,
) -> list[tuple[Client, fl.Ready]]:
    first, options = calls[0][0], calls[0][0].options
    kinds = [
        networks.training_of(
            one,
            first.outputs,
            _smoothed(options.label_smoothing),
            ("*",),
            epochs=epochs,
            proximal=pull,
            squared=options.proximal_norm == "squared",
            features=named_width(options.architecture, calls[0][1]),
        )
        for one in (options, replace(options, weight_decay=0.0, embedding_decay=0.0))
    ]
    trainings = [kinds[_looked_at(client)] for client, *_ in calls]
    learners = [
        _learner(training, client, block, rng, whole=whole)
        for training, (client, block, _, rng) in zip(trainings, calls, strict=True)
    ]
    rate, device = networks.rate_of(options, number), device_of(options)
    found = networks.train_learners(trainings, learners, options.engine, rate, device)
    return [
        (fl.evolve(call[0], latest=own, members=()), fl.Ready())
        for call, own in zip(calls, found, strict=True)
    ]


@fl.vectorised_function
def train_again(calls: Sequence[fl.ClientCall[state.Again]]) -> list[tuple[Client, fl.Ready]]:
    """Train a level that was closed for another round, with the rows for validation too."""
    opened = []
    for client, block, message, rng in calls:
        own = dict(levels_of(client.kept)[message.level])
        client = fl.evolve(client, start=own, latest=own, again=message.level)
        opened.append((client, block, message, rng))
    options, level = calls[0][0].options, calls[0][2].level
    return _trained(opened, options.local_epochs, _pull(options, level), whole=True)


@fl.client_function
def keep_again(client: Client, block: Block, message: state.Trained) -> tuple[Client, fl.Ready]:
    """Keep what a level came to: the average of a group, or the client's own network."""
    client = _opened(client, message.model)
    kept = {**client.kept, **as_level(message.level, client.latest)}
    return fl.evolve(client, kept=kept, latest={}, again=0), fl.Ready()


@_with_told_models
@fl.told_the_same
@fl.client_function
def send_part(client: Client, block: Block, message: state.Share) -> tuple[Client, state.Model]:
    """Send the client's part of an average, for a sum that the server does not read.

    Raises
    ------
    RefusedError
        If it sent the same model for a sum over others: one that opens both has the difference.
    """
    if client.members not in ((), message.members):
        raise RefusedError(
            f"A model that was added up over {', '.join(client.members)[:200]} was asked for again "
            f"over {', '.join(message.members)[:200]}, and a client has one group; run the "
            "algorithm as it is at the server."
        )
    client = fl.evolve(client, members=message.members)
    weights = client.weights
    share = weights[client.name] / math.fsum(weights[one] for one in message.members)
    return client, state.Model(share * _told(client))


@fl.client_function
def send_model(client: Client, block: Block, message: state.Ask) -> tuple[Client, state.Model]:
    """Send the client's model of the latest level, which the server reads to find clusters.

    Raises
    ------
    RefusedError
        If the level is not one of clusters.
    """
    level = client.again or client.level
    if client.options.kind(level) != "clusters":
        raise RefusedError(
            f"The model of level {level} was to be sent, which is "
            f"{client.options.kind(level)!r}, and the server reads models of clusters alone; run "
            "the algorithm as it is at the server."
        )
    return client, state.Model(_told(client))


@fl.client_function
def compare_models(
    client: Client, block: Block, message: state.Candidates
) -> tuple[Client, state.Compared]:
    """Send the losses of the rows for validation with each model, and their products.

    A client of fewer than five such rows sends zeros: losses with models that a server made for it
    would tell a row. For each level a site answers once (`once_for`).

    Raises
    ------
    RefusedError
        If it is not at a level "auto", or there are more models than numbers of clusters that the
        algorithm tries.
    """
    _check_looked_for(client, message.level)
    rows = np.flatnonzero(rows_told_of(client))
    trials = len(message.models)
    if trials > max(1, len(client.options.candidates)):
        raise RefusedError(
            f"{trials} models were to be compared, and the algorithm tries "
            f"{len(client.options.candidates)} numbers of clusters at most; run the algorithm as "
            "it is at the server."
        )
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
def compare_groups(
    client: Client, block: Block, message: state.Groupings
) -> tuple[Client, state.Grouped]:
    """Send how many rows the averages of others name wrongly, and its own network new rows.

    A client of fewer than five labelled rows counts none for the averages, and of fewer than five
    for validation none of them. For each look a site answers once (`once_for`), and there are two
    for a level.

    Raises
    ------
    RefusedError
        If it is not at a level "auto", or there are more groupings than the algorithm tries.
    """
    _check_looked_for(client, (message.look + 1) // 2)
    models, alone = np.asarray(message.models), np.asarray(message.alone)
    most = 1 + 2 * len(client.options.candidates)
    if models.ndim != 2 or alone.shape != (len(models),) or len(models) > most:
        raise RefusedError(
            f"Groupings of shape {models.shape} were told, alone {alone.shape}; there are at most "
            f"{most}, each with one model. Run the algorithm as it is at the server."
        )
    own, y = labelled(block)
    held = rows_told_of(client)
    wrong = validation.errors(_latest_scores(client, own.take(np.flatnonzero(held))), y[held]).sum()
    counted, errors = np.zeros(len(models)), np.zeros(len(models))
    for place in np.flatnonzero(alone == 0).tolist() if len(y) >= LEAST_ROWS else ():
        scores = _latest_scores(_opened(client, models[place]), own)
        counted[place], errors[place] = len(y), validation.errors(scores, y).sum()
    return client, state.Grouped(np.array([held.sum(), wrong, *counted, *errors], np.float64))


def _check_looked_for(client: Client, level: int) -> None:
    """Refuse to compare models for another level than the latest, or one that is not "auto"."""
    if level != client.level or level < 1 or client.options.levels[level - 1] != "auto":
        raise RefusedError(
            f"Models were to be compared at level {level}, by a client at level {client.level} of "
            f"{', '.join(map(str, client.options.levels))}, and the server looks for groups at the "
            'latest level, where it is "auto"; run the algorithm as it is at the server.'
        )


@_with_told_models
@fl.client_function
def weigh_level(client: Client, block: Block, message: state.Weigh) -> tuple[Client, state.Weight]:
    """Send what the latest level is worth on the rows for validation, for a sum over clients.

    Where the server reads models, a client of fewer than five such rows sends zeros. For each level
    a site answers once (`once_for`).

    Raises
    ------
    RefusedError
        If it is another level than the client's latest.
    """
    if message.level != client.level:
        raise RefusedError(
            f"Level {message.level} was to be weighed by a client at level {client.level}, and "
            "the latest level is; run the algorithm as it is at the server."
        )
    client = _opened(client, message.model)
    own, y = labelled(block)
    latest = _latest_scores(client, own)
    if client.options.adaptive:
        both = [shrinkage.summary(one) for one in _falls_of_both(client, latest, y)]
        rows = rows_told_of(client)
        wrong = validation.errors(latest[rows], y[rows]).sum()
        return client, state.Weight(np.array([*both[0], *both[1], wrong]))
    return client, state.Weight(shrinkage.summary(_falls(client, client.base + latest, y)))


def _falls(client: Client, total: Array, y: Array) -> Array:
    """Return what rows for validation gain by the latest level, (rows for validation,)."""
    rows = rows_told_of(client)
    before = combined(client, client.base[rows], client.count)
    after = combined(client, total[rows], client.count + 1)
    options = client.options
    if options.kind(client.level) == "shares":  # a bias that makes likelier what is likely anyway
        options = replace(options, criterion="loss")
    return validation.falls(options, before, after, y[rows])


def _falls_of_both(client: Client, latest: Array, y: Array) -> tuple[Array, Array]:
    """Return what rows for validation gain by the latest level alone, and joined to those kept."""
    rows, options = rows_told_of(client), client.options
    before = combined(client, client.base[rows], client.count)
    joined = combined(client, (client.base + latest)[rows], client.count + 1)
    return (
        validation.falls(options, before, latest[rows], y[rows]),
        validation.falls(options, before, joined, y[rows]),
    )


def _checked(summary: Array | None) -> Array | None:
    """Return what a level is worth to all clients; RefusedError if it is none that sums come to."""
    if summary is None:
        return None
    fits = np.shape(summary) == (13,) and np.asarray(summary).dtype.kind == "f"
    counts = [0, 1, 2, 5, 6, 7, 8, 11, 12]
    if not fits or not np.isfinite(summary).all() or (summary[counts] < 0).any():
        raise RefusedError(
            f"A summary of shape {np.shape(summary)} was told of what a level is worth; it must be "
            "13 sums over clients' rows. Run the algorithm as it is at the server."
        )
    return summary


def _chosen(client: Client, latest: Array, y: Array, message: state.Closing) -> Client:
    """Return the client with the level alone, joined to those it keeps, or as it was."""
    level, summary = client.level, _checked(message.summary)
    kept: Arrays = {**client.kept, **as_level(level, client.latest)}
    decision: validation.Decision = "alone" if level == 1 else "neither"
    if level > 1 and summary is not None:
        both = zip(_falls_of_both(client, latest, y), np.split(summary[:12], 2), strict=True)
        worth = [shrinkage.worth_of(one, shrinkage.pooled(part)) for one, part in both]
        evidence, kind = client.options.evidence, client.options.kind
        in_group = any(kind(number) == "clusters" for number in client.chosen)
        after_groups = kind(level) == "global" and in_group
        good = validation.stands_alone(
            *worth[0], evidence, clusters=kind(level) == "clusters", after_groups=after_groups
        )
        decision = validation.decided(worth[0][0], *worth[1], evidence, good=good)
        if decision != "alone" and _left_out(client, latest, y, summary):
            decision = "alone"
        if good or decision == "alone":
            client = fl.evolve(client, parent=level)
    latest = latest.astype(client.base.dtype)
    if decision == "alone":
        client = fl.evolve(client, chosen=(level,), base=latest, count=1)
    elif decision == "joined":
        chosen = (*client.chosen, level)
        client = fl.evolve(client, chosen=chosen, base=client.base + latest, count=len(chosen))
    return fl.evolve(client, kept=kept, latest={})


def _left_out(client: Client, latest: Array, y: Array, summary: Array) -> bool:
    """Return whether what a client keeps fails on rows that it was trained on.

    It names more of the client's own rows wrongly than the latest level does of all clients' rows
    for validation, though trained on the former and the latter are new: a group that the client
    does not belong to. Its own few rows for validation would not say so.
    """
    rows = ~client.held_out
    if not summary[1] or not rows.any():
        return False
    before = combined(client, client.base[rows], client.count)
    wrong = float(validation.errors(before, y[rows]).mean())
    return validation.worse_than(wrong, float(summary[12] / summary[1]), int(rows.sum())) and (
        float(validation.errors(latest[rows], y[rows]).mean()) < wrong
    )


def _lineage(client: Client) -> tuple[int, ...]:
    """Return the levels that a client keeps, and the one that its personal one began as."""
    personal = any(client.options.kind(number) == "personal" for number in client.chosen)
    return tuple(sorted({*client.chosen, *((client.origin,) if personal else ())}))


def _those_chosen(kept: Arrays, chosen: Sequence[int]) -> Arrays:
    """Return the networks of the levels that are chosen."""
    own = levels_of(kept)
    found: dict[str, Any] = {}
    for number in chosen:
        found |= as_level(number, own[number])
    return found


@fl.client_function
def close_level(client: Client, block: Block, message: state.Closing) -> tuple[Client, state.Kept]:
    """Keep the level, frozen, if the rows for validation say that it helps, or drop it.

    Where the server reads models, a client of fewer than five such rows goes by all clients' rows.

    Raises
    ------
    RefusedError
        If it is another level than the latest, or closed: each answer tells of these rows.
    """
    if message.level != client.level or client.closed >= client.level:
        raise RefusedError(
            f"Level {message.level} was to be closed by a client at level {client.level} that has "
            f"closed {client.closed}, and each level is closed once; run the algorithm as it is at "
            "the server."
        )
    client = fl.evolve(_opened(client, message.model), closed=client.level)
    own, y = labelled(block)
    if client.options.adaptive:
        client = _chosen(client, _latest_scores(client, own), y, message)
        return client, state.Kept(client.level in client.chosen, _lineage(client))
    total = client.base + _latest_scores(client, own)
    level = None if message.summary is None else shrinkage.pooled(message.summary)
    kept = client.level == 1 or validation.helps(client.options, _falls(client, total, y), level)
    if kept:
        client = fl.evolve(
            client,
            base=total.astype(client.base.dtype),
            kept={**client.kept, **as_level(client.level, client.latest)},
            count=client.count + 1,
        )
    return fl.evolve(client, latest={}), state.Kept(kept)


@_with_told_models
@fl.told_the_same
@fl.client_function
def calibrate(client: Client, block: Block, message: state.Ask) -> tuple[Client, state.Tried]:
    """Send the losses of the rows for validation with each factor of the levels' scores.

    Where the server reads models, a client of fewer than five such rows sends zeros.
    """
    _, y = labelled(block)
    rows = rows_told_of(client)
    scores = combined(client, client.base[rows], client.count)
    return client, state.Tried(validation.losses_by_factor(scores, y[rows]))


@fl.client_function
def scale_levels(client: Client, block: Block, message: state.Scale) -> tuple[Client, fl.Ready]:
    """Multiply the scores of all levels that are kept, by their last layers.

    Raises
    ------
    RefusedError
        If the factor is none that was tried, or they were multiplied since the level was closed:
        metrics of a client with many factors would tell each row's scores.
    """
    if message.factor not in validation.FACTORS or client.scaled >= client.level:
        raise RefusedError(
            f"The scores of level {client.level} were to be multiplied by {message.factor:g} after "
            f"those of level {client.scaled}, and the algorithm does so once after each level, by "
            f"one of {', '.join(map(str, validation.FACTORS))}; run it as it is at the server."
        )
    kept = {
        name: (values * message.factor).astype(values.dtype) if ".classifier." in name else values
        for name, values in client.kept.items()
    }
    base = (client.base * message.factor).astype(client.base.dtype)
    return fl.evolve(client, kept=kept, base=base, scaled=client.level), fl.Ready()


@_with_told_models
@fl.told_the_same
@fl.client_function
def part_of_loss(client: Client, block: Block, message: state.Ask) -> tuple[Client, PartOfLoss]:
    """Send this client's part of the loss, over all of its labelled rows."""
    return client, PartOfLoss(targets.loss_of_scores(_scores(client, block), block))


def _scores(client: Client, block: Block) -> Array:
    """Return the scores of a block's rows with the levels that the client has, (rows, outputs)."""
    made_of, device = client.options.architecture, device_of(client.options)
    adaptive = client.options.adaptive
    each: list[Any] = [
        network_scores(own, made_of, block, device)
        for number, own in levels_of(client.kept).items()
        if not adaptive or number in client.chosen
    ]
    if client.latest and not (adaptive and each):
        each.append(_latest_scores(client, block))
    if not each:
        return np.zeros((block.shape[0], client.outputs))
    return combined(client, np.add.reduce(each), len(each))


def predict(client: Client, block: Block) -> Array:
    """Return the log-odds of the classes, (outputs, samples)."""
    return targets.odds(_scores(client, block))


def network(client: Client) -> Arrays:
    """Return the networks of the levels that a client keeps."""
    if client.options.adaptive:
        return _those_chosen(client.kept, client.chosen)
    return client.kept
