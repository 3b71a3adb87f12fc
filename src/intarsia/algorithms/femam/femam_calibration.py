"""How sure the levels of `femam` are, set right by rows that no model was trained on.

A level that has learned its rows by heart is far surer on them than on others: what it leaves to be
learned there is nothing, though it errs elsewhere, and a mistake that it is sure of is for later
levels to outweigh. Before the next level begins, the sum of the scores is multiplied by the factor
with which the rows for validation of all clients have the least loss (a temperature, as by Guo,
Pleiss, Sun and Weinberger, ICML 2017). No prediction of a class changes by that.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from intarsia.algorithms.femam.validation import losses
from intarsia.core.block import Array

__all__ = ["FACTORS", "best_factor", "losses_by_factor", "losses_with"]

# so fine that the loss between two of them hardly differs
FACTORS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.85, 1.0, 1.25, 1.5)


def losses_by_factor(scores: Array, y: Array) -> Array:
    """Return how many rows there are, and the sum of their losses with each factor.

    Parameters
    ----------
    scores
        (rows, outputs).
    y
        (rows,) labels.
    """
    return losses_with([scores * factor for factor in FACTORS], y)


def losses_with(choices: Sequence[Array], y: Array) -> Array:
    """Return how many rows there are, and the sum of their losses with each of some scores.

    Parameters
    ----------
    choices
        (rows, outputs) each.
    y
        (rows,) labels.
    """
    if not len(y):
        return np.zeros(1 + len(choices))
    return np.array([len(y), *(float(losses(one, y).sum()) for one in choices)], np.float64)


def best_factor(total: Array) -> float:
    """Return the factor of the least loss, from the sum of `losses_by_factor`; 1 without rows."""
    return FACTORS[int(np.argmin(total[1:]))] if total[0] else 1.0
