"""Choose among trials with several objectives: Pareto front, then grey relational analysis.

Source: the HyFDCA paper chooses its hyperparameters so, after Wang and Rangaiah (2017),
"Application and analysis of methods for selecting an optimal solution from the Pareto-optimal front
obtained by multiobjective optimization", Ind. Eng. Chem. Res. 56(2).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray


def pareto_front(values: ArrayLike, better: Sequence[bool]) -> NDArray[np.bool_]:
    """Return which rows no other row dominates, (rows,).

    Parameters
    ----------
    values
        What each trial came to in each objective, (rows, objectives).
    better
        For each objective whether more of it is better.

    A row dominates another if it is nowhere worse and somewhere better.
    """
    worse = _to_minimise(values, better)
    no_worse = (worse[:, None, :] <= worse[None, :, :]).all(axis=2)
    less = (worse[:, None, :] < worse[None, :, :]).any(axis=2)
    dominated: NDArray[np.bool_] = np.any(no_worse & less, axis=0)
    return np.logical_not(dominated)


def grey_relational(values: ArrayLike, better: Sequence[bool]) -> NDArray[np.float64]:
    """Return the grey relational coefficient of each row, (rows,); the largest is the best.

    Each objective is scaled to 0 (worst of the rows) and 1 (best); Δ is the distance to 1. With the
    smallest and the largest Δ over all rows and objectives, a row's coefficient is the mean over
    the objectives of (Δmin + Δmax) / (Δ + Δmax). Objectives that are the same in all rows count as
    best everywhere. No weight is to be chosen.
    """
    worse = _to_minimise(values, better)
    low, high = worse.min(axis=0), worse.max(axis=0)
    delta = np.divide(worse - low, high - low, out=np.zeros_like(worse), where=high > low)
    if delta.max() == 0:
        return np.ones(len(worse))
    grey: NDArray[np.float64] = ((delta.min() + delta.max()) / (delta + delta.max())).mean(axis=1)
    return grey


def chosen(values: ArrayLike, better: Sequence[bool]) -> int:
    """Return the row to take: of the Pareto front the one with the largest coefficient.

    With one objective it is the best row. Of equals the first is taken.
    """
    rows = np.asarray(values, np.float64)
    front = np.flatnonzero(pareto_front(rows, better))
    return int(front[np.argmax(grey_relational(rows[front], better))])


def _to_minimise(values: ArrayLike, better: Sequence[bool]) -> NDArray[np.float64]:
    rows = np.asarray(values, np.float64)
    return np.where(np.asarray(better), -rows, rows)
