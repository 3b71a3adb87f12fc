"""What the server and the clients of `femam` say to each other."""

from __future__ import annotations

from dataclasses import dataclass

from intarsia.core.block import Array

__all__ = [
    "Ask",
    "Begin",
    "Candidate",
    "Candidates",
    "Choice",
    "Closing",
    "Common",
    "Compared",
    "Counted",
    "Differences",
    "Kept",
    "Latest",
    "Model",
    "Offset",
    "Prior",
    "Right",
    "Scale",
    "Share",
    "Tried",
    "Weight",
]


@dataclass(frozen=True)
class Begin:
    """Begins a level."""

    level: int
    absolute: bool  # whether models are told as they are, not by how they differ from the start
    own: Array | None = None  # (parameters,) what a personal model starts from


@dataclass(frozen=True)
class Latest:
    """The model of the latest level that a client has; None: the one that it starts from."""

    model: Array | None  # (parameters,)


@dataclass(frozen=True)
class Ask:
    """Asks for what the message's function sends."""


@dataclass(frozen=True)
class Candidate:
    """One of the latest level's models, for a client to try."""

    model: Array  # (parameters,)
    number: int


@dataclass(frozen=True)
class Choice:
    """Which of the latest level's models a client has the least loss with."""

    number: int


@dataclass(frozen=True)
class Share:
    """A client's weight in the average of those that share a model."""

    share: float


@dataclass(frozen=True)
class Model:
    """A client's model of the latest level, weighed if it is for a sum."""

    model: Array  # (parameters,)


@dataclass(frozen=True)
class Right:
    """How many rows for validation a client names rightly, and how many there are."""

    at: Array  # (2,)


@dataclass(frozen=True)
class Candidates:
    """Models of the latest level, one for each number of clusters that is tried."""

    models: Array  # (trials, parameters)


@dataclass(frozen=True)
class Compared:
    """A client's part of how models compare (see `femam_clusters.fewest`)."""

    at: Array  # (1 + trials + trials²,)


@dataclass(frozen=True)
class Weight:
    """A client's part of what a level is worth (see `femam_pruning.pooled`)."""

    at: Array  # (6,)


@dataclass(frozen=True)
class Tried:
    """A client's part of the losses with each of some factors, or weights, and its rows."""

    at: Array  # (1 + factors,)


@dataclass(frozen=True)
class Scale:
    """What the scores of the levels so far are multiplied by."""

    factor: float


@dataclass(frozen=True)
class Counted:
    """How many rows of each class a client trains on, for a sum over clients."""

    at: Array  # (outputs,)


@dataclass(frozen=True)
class Common:
    """The shares of the classes over all clients."""

    shares: Array  # (outputs,)


@dataclass(frozen=True)
class Differences:
    """A client's part of how much clients' shares differ (see `femam_shares.differences`)."""

    at: Array  # (4,)


@dataclass(frozen=True)
class Prior(Common):
    """How the classes are spread over all clients."""

    correlation: float  # of two rows of one client


@dataclass(frozen=True)
class Offset(Prior):
    """How much a client's own shares of the classes move its scores, beside those of all."""

    weight: float


@dataclass(frozen=True)
class Closing:
    """Closes the latest level, with the model that a client has there; None: the one it has."""

    model: Array | None  # (parameters,)
    summary: Array | None = None  # (6,) of all clients' falls, where `prune` asks for it


@dataclass(frozen=True)
class Kept:
    """Whether a client keeps the level."""

    kept: bool
