"""A client's mean over few rows, shrunk towards the mean over all clients' rows.

A client's rows for validation are few: ten cannot tell a model that is worth five points of
accuracy from one that is worth none, but those of all clients together can. What a model is worth
differs less among clients than ten rows have it differ by chance. So a client takes the mean over
all clients for its own, unless they differ by more than chance has it once in a hundred; then its
own rows count as far as they are worth more than the mean (shrinkage as by Efron and Morris, JASA
1973, with the variance between groups of DerSimonian and Laird, 1986, less what may be chance).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtri

Array = NDArray[np.float64]

CHANCE = 0.01  # clients differ where chance alone would have them differ so much this rarely


@dataclass(frozen=True)
class Pooled:
    """What a model is worth to the clients: by how much their rows' losses or errors fall."""

    mean: float  # over all rows of all clients
    uncertainty: float  # variance of that mean
    between: float  # variance of the clients' means, beyond what is chance
    within: float  # variance of a client's rows


def summary(fallen: Array) -> Array:
    """Return a client's part of the sums that `pooled` takes, (6,)."""
    rows, total = len(fallen), float(fallen.sum())
    if not rows:
        return np.zeros(6)
    return np.array([1, rows, rows**2, total, total**2 / rows, float(fallen @ fallen)])


def pooled(total: Array) -> Pooled:
    """Return what a model is worth to the clients, from the sum of their summaries, (6,)."""
    clients, rows, squared_rows, fallen, of_clients, squares = (float(one) for one in total)
    if rows < 2:
        return Pooled(0.0, 0.0, 0.0, 0.0)
    mean = fallen / rows
    among = max(of_clients - rows * mean**2, 0.0)  # Σ n_i (f_i - f)²
    inner = max(squares - of_clients, 0.0)
    freedom = rows - clients
    if freedom < 1:  # of one row each: how they differ tells nothing about clients
        return Pooled(mean, (among + inner) / (rows - 1) / rows, 0.0, 0.0)
    within, between = inner / freedom, 0.0
    if clients > 1:
        chance = float(chdtri(clients - 1, CHANCE)) * within
        between = max((among - chance) / (rows - squared_rows / rows), 0.0)
    error = within / rows + between * squared_rows / rows**2
    return Pooled(mean, error, between, within)


def worth_of(fallen: Array, level: Pooled) -> tuple[float, float]:
    """Return what a model is worth to a client, shrunk towards all clients' mean; its variance."""
    if not len(fallen) or level.between == 0:
        return level.mean, level.uncertainty + level.between
    own = level.within / len(fallen)
    weight = level.between / (level.between + own)
    worth = level.mean + weight * (float(fallen.mean()) - level.mean)
    return worth, (1 - weight) * level.between + (1 - weight) ** 2 * level.uncertainty
