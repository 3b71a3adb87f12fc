"""A client that FLIC would harm keeps a network that it trained alone (`keep_own`).

A share of each client's labelled rows (`validation`) trains nothing until the last round is over.

1. `train_own`: each client trains a network of the same layers from the start, as long as it
   trained with the others and by its own rows alone; the classifier's loss is all of its objective.
   It sends by how much fewer of its rows for validation this one names wrongly, as sums.
2. `keep_better`: a client takes its own network where that is worth something to it, by a standard
   error, see `maths.shrinkage`: by the rows of all clients, and by its own as far as clients
   differ. It says which one it takes, and trains it once more, on all of its rows.

Where labels are numbers, squared errors stand for rows that are named wrongly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from intarsia import core as fl
from intarsia.algorithms.flic.hyperparameters import Flic
from intarsia.algorithms.flic.objective import trainings_of
from intarsia.algorithms.networks import client_network as networks
from intarsia.algorithms.networks import label_scaling
from intarsia.algorithms.networks import parameter_sharing as sharing
from intarsia.algorithms.networks.architecture import Arrays
from intarsia.algorithms.networks.parameter_sharing import Client, ClientTask, Server, Shared
from intarsia.algorithms.networks.training_rows import is_labelled
from intarsia.core.block import Array, Block, ClientId
from intarsia.errors import listed
from intarsia.maths.shrinkage import pooled, summary, worth_of

_SHOWN = 20  # clients that a note names


@fl.describe("sums of errors that the own network mends")
class OwnWorth:
    """A client's part of what the own networks are worth (see `maths.shrinkage`)."""

    at: Array  # (6,)


@dataclass(frozen=True)
class OwnCompared:
    """What the own networks are worth to all clients together."""

    at: Any  # (6,) those of `OwnWorth`, added up


@fl.describe("whether the client keeps its own network")
class OwnKept:
    """Which network a client takes."""

    own: bool


@fl.told_the_same
@fl.vectorised_function
def train_own(calls: Sequence[fl.ClientCall[Shared]]) -> list[tuple[Client, OwnWorth]]:
    """Train a network of each client's own; send what it is worth on the rows for validation."""
    options, trainings = calls[0][0].options, trainings_of(*calls[0][:2])
    tasks = [_begun(task) for task in sharing.open_messages(calls)]
    for number in range(1, calls[0][2].round + 1):
        tasks = [task._replace(round=number) for task in tasks]
        tasks = sharing.train(trainings.alone, tasks, f"own {number}")
    tasks = sharing.train(trainings.alone_at_last, tasks, "own at last")
    found = []
    for (client, block, _, _), task in zip(calls, tasks, strict=True):
        own = task.client.parameters
        fallen = _fallen(options, client, own, block)
        found.append((fl.evolve(client, own=own), OwnWorth(summary(fallen))))
    return found


def _begun(task: ClientTask) -> ClientTask:
    """Return a client with a new network; what it has of the anchors stays, which nothing reads."""
    client, options = task.client, task.client.options
    features, rng = networks.features_of(options, task.block), task.rng.fold_in("own")
    drawn = networks.drawn(features, client.outputs, options, rng)
    new = {name: one for name, one in drawn.items() if not name.startswith("anchors.")}
    return task._replace(client=fl.evolve(client, parameters={**client.parameters, **new}))


def _fallen(options: Flic, client: Client, own: Arrays, block: Block) -> Array:
    """Return by how much the error of each row for validation falls by the own network, (rows,)."""
    assert client.held_out is not None
    rows = np.flatnonzero(is_labelled(block))[client.held_out]
    tested = label_scaling.on_scale(client, block).take(rows)
    assert tested.y is not None
    before, after = (
        _errors(options.architecture.outputs(one, tested)[1], tested.y)
        for one in (client.parameters, own)
    )
    return before - after


def _errors(scores: Array, y: Array) -> Array:
    """Return each row's error, (rows,): 1 for a wrong class, or the square of numbers."""
    if scores.shape[1] == 1:
        return np.asarray((scores[:, 0] - y) ** 2, np.float64)
    return np.asarray(scores.argmax(axis=1) != np.maximum(y, 0.0), np.float64)


@fl.vectorised_function
def keep_better(calls: Sequence[fl.ClientCall[OwnCompared]]) -> list[tuple[Client, OwnKept]]:
    """Take a network; train it once more, on all rows."""
    options, trainings = calls[0][0].options, trainings_of(*calls[0][:2])
    chosen: list[bool] = []
    tasks: list[ClientTask] = []
    for client, block, message, rng in calls:
        fallen = _fallen(options, client, client.own, block)
        worth, error = worth_of(fallen, pooled(np.asarray(message.at)))
        own = worth > math.sqrt(error)
        parameters = client.own if own else client.parameters
        kept = fl.evolve(client, parameters=parameters, own={}, held_out=None)
        chosen.append(own)
        tasks.append(ClientTask(kept, label_scaling.on_scale(kept, block), rng))
    for own, training in ((True, trainings.alone_at_last), (False, trainings.final)):
        places = [place for place, one in enumerate(chosen) if one is own]
        some = sharing.train(training, [tasks[place] for place in places], "all rows")
        for place, task in zip(places, some, strict=True):
            tasks[place] = task
    return [(task.client, OwnKept(own)) for task, own in zip(tasks, chosen, strict=True)]


def settled(server: Server, clients: fl.Clients) -> tuple[str, ...]:
    """Let each client take the network that is better for it; return a note that names who."""
    total = clients.sum(train_own, sharing.broadcast(server, clients))
    # discloses which clients keep a network of their own
    replies = clients.ask(keep_better, OwnCompared(total.at))
    return (_note([name for name, one in replies.items() if one.own], len(replies)),)


def _note(own: Sequence[ClientId], count: int) -> str:
    if not own:
        return (
            f"All {count} clients keep flic's network: none that they trained alone "
            "errs less on rows for validation, by a standard error."
        )
    kept = "keeps the network that it" if len(own) == 1 else "keep the network that they"
    return (
        f"{len(own)} of {count} clients {kept} trained alone, which errs less "
        f"on rows for validation: {listed(own, _SHOWN)}."
    )


def _wanted(options: Flic) -> bool:
    return options.keep_own


SENDS = fl.each(
    fl.opening(
        {"OwnCompared.at": "OwnWorth.at"},  # as it is: a factor would have clients answer otherwise
        (*fl.sums(train_own, pooled=_wanted), *fl.asks(keep_better)),
    ),
    needed=_wanted,
)
