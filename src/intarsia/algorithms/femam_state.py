"""The state of `femam`'s server: its levels, and which group of each a client is in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from intarsia.algorithms.femam_messages import Offset
from intarsia.algorithms.femam_options import FeMAM, LevelKind
from intarsia.data import Array, ClientId

__all__ = ["Level", "Server", "apart", "group_of"]


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
    worth: Array | None = None  # (6,) what the level is worth to those that closed it first
    factor: float | None = None  # of the scores up to it, once the next level begins
    offset: Offset | None = None  # of a level of shares, once it is found


@dataclass(frozen=True)
class Server:
    """The server's state."""

    options: FeMAM
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
    return level.rounds < min(options.first_clustering, options.rounds(number))
