"""How a client's own shares of the classes move its scores: the level "shares" of `femam`.

A client of which the classes are known that it mostly has errs less if told so. Its scores get

    w log(π_ik / p_k),   π_i = (ρ n_i + (1 - ρ) p) / (ρ Σ_k n_ik + 1 - ρ)

with n_i its rows of each class that models are trained on, and p the shares of all clients' rows:
log-odds move so where classes are commoner at a client than among those a model was trained on, and
nothing else differs (Saerens, Latinne and Decaestecker, Neural Computation 2002). π_i is the mean
of what is known of a client's shares, where those of clients scatter about p so that two rows of
one client correlate by ρ (Dirichlet; ρ by its moments, and 0 where clients differ by no more than
chance has it once in a hundred). Levels may know some of it by heart already, so that the weight w
is the one of least loss on the rows for validation of all clients; at w = 0 the level is no change.
"""

from __future__ import annotations

import numpy as np
from scipy.special import chdtri

from intarsia.algorithms.femam_pruning import CHANCE, losses
from intarsia.data import Array

__all__ = ["WEIGHTS", "best_weight", "counted", "losses_by_weight", "offsets", "spread"]

WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0)


def counted(y: Array, outputs: int) -> Array:
    """Return a client's part of the sums that `spread` takes, (2 outputs + 1,).

    Parameters
    ----------
    y
        (rows,) labels.
    """
    rows = np.bincount(np.maximum(y, 0.0).astype(np.intp), minlength=outputs).astype(np.float64)
    return np.concatenate([rows, rows**2 / max(len(y), 1), [float(len(y) > 0)]])


def spread(total: Array) -> tuple[Array, float]:
    """Return the shares of the classes over all clients, (outputs,), and how two rows correlate.

    `total` is the sum of `counted`. A client's Σ_k n_ik² / n_i is 1 + (n_i - 1) (S + ρ (1 - S)) in
    the mean, where S = Σ_k p_k². That clients do not differ is Pearson's χ² test of homogeneity.
    """
    rows, squares, clients = np.split(total, [len(total) // 2, len(total) - 1])
    number, holders = float(rows.sum()), float(clients[0])
    shares = rows / max(number, 1.0)
    known = shares > 0
    freedom = (holders - 1) * (known.sum() - 1)
    if freedom < 1 or number <= holders:
        return shares, 0.0
    differ = (squares[known] / shares[known]).sum() - number
    if differ <= chdtri(freedom, CHANCE):
        return shares, 0.0
    by_chance = float((shares**2).sum())
    alike = (float(squares.sum()) - holders) / (number - holders)
    correlation = (alike - by_chance) / (1 - by_chance)
    # of a class that a client has none of it may have some, in as many rows as all have
    return shares, min(max(correlation, 0.0), 1 - 1 / (number + 1))


def offsets(rows: Array, shares: Array, correlation: float) -> Array:
    """Return what a client's scores get at w = 1, (outputs,); 0 for classes that nobody has.

    Parameters
    ----------
    rows
        (outputs,) of the client, of each class.
    """
    known = shares > 0
    own = correlation * rows + (1 - correlation) * shares
    found = np.zeros(len(shares))
    found[known] = np.log(own[known] / own.sum() / shares[known])
    return found


def losses_by_weight(scores: Array, moved: Array, y: Array) -> Array:
    """Return how many rows there are, and the sum of their losses with each weight.

    Parameters
    ----------
    scores
        (rows, outputs).
    moved
        (outputs,), `offsets`.
    y
        (rows,) labels.
    """
    if not len(y):
        return np.zeros(1 + len(WEIGHTS))
    of_weights = [float(losses(scores + weight * moved, y).sum()) for weight in WEIGHTS]
    return np.array([len(y), *of_weights], np.float64)


def best_weight(total: Array) -> float:
    """Return the weight of the least loss, from the sum of `losses_by_weight`; 0 without rows."""
    return WEIGHTS[int(np.argmin(total[1:]))] if total[0] else 0.0
