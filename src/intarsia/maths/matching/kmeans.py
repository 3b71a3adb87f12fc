"""K-means of few points in very many dimensions, such as the parameters of clients' networks.

Distances between n points depend on their inner products alone: the points are turned into at most
n coordinates once, and all starts and steps cost what these cost.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

Array = NDArray[np.float64]
Labels = NDArray[np.int64]


_STEPS = 300  # of one start; Lloyd's steps end by themselves long before


def k_means(points: Array, clusters: int, rng: np.random.Generator, *, starts: int = 10) -> Labels:
    """Return the cluster of each point, (points,), numbered in the order in which they come up.

    The best of several starts by k-means++ (Arthur and Vassilvitskii, SODA 2007), Lloyd's steps and
    Hartigan's: a point moves where that lowers Σ ‖x - c‖² with the means moved too. In a cluster of
    few, each point holds the mean near itself, and Lloyd's steps alone end early (Telgarsky and
    Vattani, AISTATS 2010). There are fewer clusters than asked for where there are fewer different
    points.

    Parameters
    ----------
    points
        (points, dimensions).
    """
    small = _coordinates(points)
    best: Labels | None = None
    least = np.inf
    for _ in range(starts):
        labels = _settled(small, _spread(small, min(clusters, len(small)), rng))
        labels = _moved(small, labels)
        cost = inertia(small, labels)
        if cost < least:
            best, least = labels, cost
    assert best is not None
    return _in_order(best)


def inertia(points: Array, labels: Labels) -> float:
    """Return Σ ‖x - c‖² of points and the means c of their clusters."""
    means = _means(points, labels, int(labels.max()) + 1)
    return float(np.square(points - means[labels]).sum())


def nearest(points: Array, centres: Array) -> Labels:
    """Return the centre that each point is nearest to, (points,)."""
    found: Labels = _squares(points, centres).argmin(axis=1).astype(np.int64)
    return found


def renumbered(labels: Labels, former: Labels) -> Labels:
    """Return clusters by the numbers of those before that they have most points in common with.

    `former` is -1 for a point that had none.
    """
    count = int(max(labels.max(), former.max(initial=-1))) + 1
    common = np.zeros((count, count))
    np.add.at(common, (labels[former >= 0], former[former >= 0]), 1)
    # where nothing decides, a number stays
    places = linear_sum_assignment(-common - 1e-6 * np.eye(count))[1]
    found: Labels = places[labels].astype(np.int64)
    return found


def _coordinates(points: Array) -> Array:
    """Return points with the same distances, (points, at most as many)."""
    moved: Array = np.asarray(points, np.float64) - points.mean(axis=0)
    if moved.shape[1] <= len(moved):
        return moved
    values, vectors = np.linalg.eigh(moved @ moved.T)
    found: Array = vectors * np.sqrt(np.maximum(values, 0.0))
    return found


def _spread(points: Array, clusters: int, rng: np.random.Generator) -> Array:
    """Return starts by k-means++, (clusters, dimensions): far from each other, by chance."""
    chosen = [int(rng.integers(len(points)))]
    away = np.square(points - points[chosen[0]]).sum(axis=1)
    while len(chosen) < clusters and away.max() > 0:
        chosen.append(int(rng.choice(len(points), p=away / away.sum())))
        away = np.minimum(away, np.square(points - points[chosen[-1]]).sum(axis=1))
    found: Array = points[chosen]
    return found


def _settled(points: Array, centres: Array) -> Labels:
    """Return the clusters that Lloyd's steps come to."""
    labels = nearest(points, centres)
    for _ in range(_STEPS):
        centres = _means(points, labels, len(centres))
        squares = _squares(points, centres)
        moved: Labels = squares.argmin(axis=1).astype(np.int64)
        for empty in np.setdiff1d(np.arange(len(centres)), moved):
            alone = np.bincount(moved, minlength=len(centres))[moved] == 1
            worst = np.where(alone, -1.0, squares[np.arange(len(points)), moved]).argmax()
            moved[worst] = empty
        if (moved == labels).all():
            break
        labels = moved
    return labels


def _moved(points: Array, labels: Labels) -> Labels:
    """Return the clusters that moves of one point at a time come to, the best move first."""
    labels, clusters = labels.copy(), int(labels.max()) + 1
    norms, at = np.square(points).sum(axis=1), np.arange(len(points))
    least = 1e-9 * norms.sum()  # what rounding may have a move gain
    for _ in range(_STEPS):
        means = _means(points, labels, clusters)
        count = np.bincount(labels, minlength=clusters)
        squares = norms[:, None] - 2 * points @ means.T + np.square(means).sum(axis=1)
        own = count[labels]
        # a point alone in its cluster stays there
        saved = np.where(own > 1, own / np.maximum(own - 1, 1) * squares[at, labels], -np.inf)
        gain = saved[:, None] - count / (count + 1) * squares
        gain[at, labels] = -np.inf
        point, cluster = np.unravel_index(gain.argmax(), gain.shape)
        if gain[point, cluster] <= least:
            break
        labels[point] = cluster
    return labels


def _means(points: Array, labels: Labels, clusters: int) -> Array:
    """Return the mean of each cluster; one without a point lies where no point is nearest to it."""
    member = np.zeros((clusters, len(points)))
    member[labels, np.arange(len(points))] = 1.0
    count = member.sum(axis=1, keepdims=True)
    means: Array = np.where(count > 0, (member @ points) / np.maximum(count, 1.0), np.inf)
    return means


def _squares(points: Array, centres: Array) -> Array:
    found: Array = np.square(points[:, None] - centres[None]).sum(axis=2)
    return found


def _in_order(labels: Labels) -> Labels:
    _, first, own = np.unique(labels, return_index=True, return_inverse=True)
    found: Labels = np.argsort(np.argsort(first))[own].astype(np.int64)
    return found
