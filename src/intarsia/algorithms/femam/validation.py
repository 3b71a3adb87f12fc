"""Which levels of `femam` stay at which clients, and by which evidence (Eq. 9).

What a level is worth to a client is judged by the rows of all clients, and by its own as far as
clients differ: see `maths.shrinkage`.

The scores are calibrated by temperature scaling on the same rows.
A level that overfits its rows is far surer on them than on others: what it leaves to be
learned there is nothing, though it errs elsewhere, and a mistake that it is sure of is for later
levels to outweigh. Before the next level begins, the sum of the scores is multiplied by the factor
with which the rows for validation of all clients have the least loss (a temperature, as by Guo,
Pleiss, Sun and Weinberger, ICML 2017). No prediction of a class changes by that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from intarsia.algorithms.femam.hyperparameters import FeMAM
from intarsia.algorithms.networks.targets import label_tensor, row_losses
from intarsia.core.block import Array
from intarsia.maths.shrinkage import Pooled, worth_of
from intarsia.maths.training.torch_import import torch

_ONE_SIDED = 1.64  # standard errors that a fall exceeds by chance in a case of 20


def falls(options: FeMAM, before: Array, after: Array, y: Array) -> Array:
    """Return by how much each row's loss, or error, falls from some scores to others, (rows,)."""
    judged = losses if options.criterion == "loss" else errors
    found: Array = judged(before, y) - judged(after, y)
    return found


def losses(scores: Array, y: Array) -> Array:
    """Return each row's cross-entropy, (rows,)."""
    known = torch.from_numpy(scores)
    found: Array = row_losses(known, label_tensor(y, known, scores.shape[1])).numpy()
    return found


def errors(scores: Array, y: Array) -> Array:
    """Return 1 for each row that is taken for a wrong class, else 0, (rows,)."""
    found: Array = (scores.argmax(axis=1) != np.maximum(y, 0.0)).astype(np.float64)
    return found


def helps(options: FeMAM, fallen: Array, level: Pooled | None) -> bool:
    """Return whether a level stays at a client with these falls on its rows for validation.

    `level` is what it is worth to all clients, where `prune` asks for it.
    """
    if options.prune == "never":
        return True
    if options.prune == "pooled":
        assert level is not None
        worth, error = worth_of(fallen, level)
        return worth > options.evidence * math.sqrt(error)
    if not len(fallen):
        return False
    if options.prune == "margin":
        return bool(fallen.mean() > options.margin)
    if len(fallen) < 2:
        return False
    deviation = fallen.std(ddof=1) / math.sqrt(len(fallen))
    return bool(fallen.mean() > _ONE_SIDED * deviation and fallen.mean() > 0)


def worse_than(share: float, expected: float, rows: int) -> bool:
    """Return whether a share of errors is above what is expected, by more than is chance.

    Chance: two and a half standard errors of a share of so many rows, with one error and one hit
    added, so that no expected share is certain.
    """
    expected = (expected * rows + 1) / (rows + 2)
    return share > expected + 2.5 * math.sqrt(expected * (1 - expected) / rows)


Decision = Literal["alone", "joined", "neither"]


def stands_alone(
    worth: float, error: float, evidence: float, *, clusters: bool, after_groups: bool
) -> bool:
    """Return whether a whole network may take the place of those that a client keeps.

    A level of clusters may unless it is worse beyond doubt, which few rows seldom say: rows of all
    clients spoke for its groups when they were found. One model of all must be better beyond doubt
    where the client has a group (`after_groups`).

    Parameters
    ----------
    worth, error
        What it is worth in their place, and the variance of that.
    evidence
        Standard errors that are beyond doubt.
    """
    doubt = evidence * math.sqrt(error)
    if clusters:
        return worth >= -doubt
    return worth > (doubt if after_groups else 0.0)


def decided(alone: float, joined: float, error: float, evidence: float, *, good: bool) -> Decision:
    """Return how a client of the adaptive schedule takes a whole network beside those it keeps.

    Parameters
    ----------
    alone, joined
        What it is worth in their place, and what the mean of all is, against those that are kept.
    error
        Variance of `joined`, by whose root times `evidence` a mean must be better than what is
        simpler.
    good
        Whether it may stand alone (`stands_alone`).
    """
    if joined > max(alone, 0.0) + evidence * math.sqrt(error):
        return "joined"
    return "alone" if good else "neither"


# so fine that the loss between two of them hardly differs
FACTORS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.85, 1.0, 1.25, 1.5)


def losses_by_factor(scores: Array, y: Array) -> Array:
    """Return how many rows there are, and the sum of their losses with each factor.

    `scores` are (rows, outputs), the labels `y` (rows,).
    """
    return losses_with([scores * factor for factor in FACTORS], y)


def losses_with(choices: Sequence[Array], y: Array) -> Array:
    """Return how many rows there are, and the sum of their losses with each of some scores.

    `choices` are (rows, outputs) each, the labels `y` (rows,).
    """
    if not len(y):
        return np.zeros(1 + len(choices))
    return np.array([len(y), *(float(losses(one, y).sum()) for one in choices)], np.float64)


def best_factor(total: Array) -> float:
    """Return the factor of the least loss, from the sum of `losses_by_factor`; 1 without rows."""
    return FACTORS[int(np.argmin(total[1:]))] if total[0] else 1.0
