"""The state of FeMAM's server (its levels, and each client's group of each), and the messages."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from intarsia import core as fl
from intarsia.algorithms.femam.hyperparameters import FeMAM, LevelKind
from intarsia.core.block import Array, ClientId


@fl.holds_model("own")
@dataclass(frozen=True)
class Begin:
    """Begins a level."""

    level: int
    absolute: bool  # whether models are told as they are, not by how they differ from the start
    own: Array | None = None  # (parameters,) what a personal model starts from


@fl.holds_model("model")
@dataclass(frozen=True)
class Latest:
    """The model of the latest level that a client has; None: the one that it starts from."""

    model: Array | None  # (parameters,)


@dataclass(frozen=True)
class Weigh(Latest):
    """The model of the latest level, of which clients send what it is worth."""

    level: int = 0


@dataclass(frozen=True)
class Ask:
    """Asks for what the message's function sends."""


@dataclass(frozen=True)
class Turn:
    """Asks for a round of training, where steps are scheduled."""

    round: int  # of the run


@dataclass(frozen=True)
class Again:
    """Names a level that trains once more, with the rows for validation."""

    level: int


@dataclass(frozen=True)
class Trained(Latest):
    """What a level came to that has trained once more; None: the client's own network."""

    level: int = 0


@fl.holds_model("model")
@dataclass(frozen=True)
class Candidate:
    """One of the latest level's models, for a client to try."""

    model: Array  # (parameters,)
    number: int


@fl.describe("which shared model fits the client best")
class Choice:
    """Which of the latest level's models a client has the least loss with."""

    number: int


@dataclass(frozen=True)
class Share:
    """Who shares a model, of which a client sends its part."""

    members: tuple[ClientId, ...]


@fl.describe("network parameters or their changes")
class Model:
    """A client's model of the latest level, weighed if it is for a sum."""

    model: Array  # (parameters,)


@fl.describe("numbers of validation rows and of right predictions")
class Right:
    """How many rows for validation a client names rightly, and how many there are."""

    at: Array  # (2,)


@dataclass(frozen=True)
class Candidates:
    """Models of the latest level, one for each number of clusters that is tried."""

    models: Array  # (trials, parameters)
    level: int  # the latest


@fl.describe("counts and summed losses of validation rows")
class Compared:
    """A client's part of how models compare (see `clustering.fewest`)."""

    at: Array  # (1 + trials + trials²,)


@dataclass(frozen=True)
class Groupings:
    """What a client would have of the others' networks with each of some groupings of clients."""

    models: Array  # (groupings, parameters) the average of the others of its group
    alone: Array  # (groupings,) 1 where its group is itself, and the model counts for nothing
    # which look for groups it is: 2 l - 1 is the first one of level l, 2 l the other, or how much
    # the groups of the first have in common
    look: int


@fl.describe("numbers of rows and of wrong predictions by grouping")
class Grouped:
    """A client's part of how groupings compare (see `clustering.clearest`)."""

    at: Array  # (2 + 2 groupings,)


@fl.describe("counts and summed losses of validation rows")
class Weight:
    """A client's part of what a level is worth (see `maths.shrinkage`)."""

    # (6,), or (13,): of the level alone, of its mean with those that are kept, and its errors
    at: Array


@fl.describe("counts and summed losses of validation rows")
class Tried:
    """A client's part of the losses with each of some factors, or weights, and its rows."""

    at: Array  # (1 + factors,)


@dataclass(frozen=True)
class Scale:
    """What the scores of the levels so far are multiplied by."""

    factor: float


@fl.describe("numbers of rows of each class")
class Counted:
    """How many rows of each class a client trains on, for a sum over clients."""

    at: Array  # (outputs,)


@dataclass(frozen=True)
class Common:
    """How many rows of each class all clients train on, as their sum is sealed."""

    counts: Array  # (outputs,)


@fl.describe("sums that tell how much clients' class proportions differ")
class Differences:
    """A client's part of how much clients' shares differ (see `class_priors.differences`)."""

    at: Array  # (4,)


@dataclass(frozen=True)
class Prior(Common):
    """How the classes are spread over all clients."""

    compared: Array  # (4,) the sum of `Differences`


@dataclass(frozen=True)
class Weighed(Prior):
    """How much a client's own shares of the classes move its scores, beside those of all."""

    weight: float


@fl.holds_model("model")
@dataclass(frozen=True)
class Closing:
    """Closes the latest level, with the model that a client has there; None: the one it has."""

    model: Array | None  # (parameters,)
    level: int
    # of all clients' falls, where `prune` asks for it: (6,), or (13,) with the adaptive schedule
    summary: Array | None = None


@fl.describe("whether a level of models is kept")
class Kept:
    """Whether a client keeps the level, and with the adaptive schedule which ones it keeps.

    Of a personal level also the one that it began as.
    """

    kept: bool
    levels: tuple[int, ...] = ()


@dataclass(frozen=True)
class Offset:
    """What the server knows of a level of shares, and the sealed sums that it tells clients."""

    shares: Array  # (outputs,) of the classes over all clients
    correlation: float  # of two rows of one client
    weight: float
    prior: Prior | None = None  # None: the run was begun by an earlier version


@dataclass(frozen=True)
class Level:
    """A level of models, as the server has it."""

    kind: LevelKind
    absolute: bool  # whether models are told as they are, not by how they differ from a start
    # of each group (parameters,), sealed where the server does not read it; None: the start
    models: tuple[Any, ...]
    groups: Mapping[ClientId, int]  # C_l, as far as it is known
    kept: Mapping[ClientId, int]  # the same of those that closed the level and kept it
    rounds: int = 0
    accuracies: tuple[float, ...] = ()  # in percent, of the last rounds
    trials: tuple[float, ...] = ()  # mean loss with each of the numbers of clusters that were tried
    looked: bool = False  # whether groups were looked for again, once one model gained no more
    clear: float | None = None  # mean silhouette of the groups, with the adaptive schedule
    common: float = 0.0  # which part of a group's model is the average of all, with the same
    worth: Array | None = None  # what the level is worth to those that closed it first
    factor: float | None = None  # of the scores up to it, once the next level begins
    offset: Offset | None = None  # of a level of shares, once it is found


@dataclass(frozen=True)
class Server:
    """The server's state."""

    options: FeMAM
    # of the options: a run that began before there were two has none here, and does not go on
    level_schedule: str
    clients: tuple[ClientId, ...]
    shares: Mapping[ClientId, float]
    features: int
    outputs: int
    seed: int  # of the models that levels start from
    levels: tuple[Level, ...]
    begun: Mapping[ClientId, int]  # the latest level of each client
    closed: Mapping[ClientId, int]  # the last level that it has closed
    rounds: int = 0


def group_of(level: Level, client: ClientId) -> int:
    """Return a client's group; one that was never there belongs to the largest."""
    if client in level.groups or not level.groups:
        return level.groups.get(client, 0)
    return Counter(level.groups.values()).most_common(1)[0][0]


def apart(options: FeMAM, number: int, level: Level) -> bool:
    """Return whether each client has a model of its own, and the server none."""
    if level.kind != "clusters" or options.clustering == "loss" or len(level.models) == 1:
        return level.kind in ("personal", "shares")
    return level.rounds < min(options.alone_until, options.rounds(number))


def reached_of(server: Server) -> int:
    """Return the latest level that clients can be at: one of shares begins in its round."""
    last = server.levels[-1]
    return len(server.levels) - (last.kind == "shares" and last.offset is None)


def words_of(server: Server) -> tuple[str, ...]:
    """Return what each level is, such as "global", "5 clusters" or "personal"."""
    return tuple(
        f"{len(level.models)} cluster{'' if len(level.models) == 1 else 's'}"
        if level.kind == "clusters"
        else str(word)
        for level, word in zip(server.levels, server.options.levels, strict=False)
    )


def notes_of(server: Server) -> tuple[str, ...]:
    """Return what was chosen by rows for validation, and what of the levels came to nothing."""
    said = []
    named = server.options.levels
    for given in server.options.groups:
        if given not in named:
            said.append(
                f"No level names {given!r}, which algorithm.groups has; put it into "
                "algorithm.levels if it is to count."
            )
    for number, (level, word) in enumerate(zip(server.levels, named, strict=False), 1):
        if isinstance(word, int) and word > len(level.models):
            said.append(
                f"Level {number} was to have {word} clusters and has {len(level.models)}, one for "
                "each client: it groups nobody."
            )
        if level.trials:
            tried = zip(server.options.candidates, level.trials, strict=False)
            losses = ", ".join(f"{count}: {loss:.3g}" for count, loss in tried)
            said.append(
                f"Level {number} has {words_of(server)[number - 1]}, "
                + (
                    "the fewest of algorithm.candidates, as none of the clients that were there "
                    "when they were compared has a row for validation."
                    if math.isnan(level.trials[0])
                    else "the fewest that do as well as the best on the rows for validation (loss "
                    f"by number of clusters: {losses})."
                )
            )
        if level.clear is not None and word == "auto":
            said.append(
                f"Level {number} has {words_of(server)[number - 1]}: "
                + (
                    "no groups of clients have fewer errors than all together by a share of "
                    f"{server.options.separation:g}."
                    if len(level.models) == 1
                    else "one for each client, as what the others have in common names most rows "
                    "wrongly."
                    if len(level.models) == len(server.clients)
                    else f"their mean silhouette is {level.clear:.2g}."
                )
            )
        if level.offset is not None:
            said.append(
                f"Level {number} moves scores by {level.offset.weight:g} times the log-odds of "
                "each client's own shares of the classes (two rows of one client correlate by "
                f"{level.offset.correlation:.3g})."
            )
    wanted, reached = len(server.options.levels), reached_of(server)
    if reached < wanted:
        every = sum(server.options.rounds(number) for number in range(1, wanted + 1))
        said.append(
            f"Of {wanted} levels {reached} began: the run ended after {server.rounds} rounds, and "
            f"all levels take {every} at most; set experiment.rounds = {every}."
        )
    return tuple(said)
