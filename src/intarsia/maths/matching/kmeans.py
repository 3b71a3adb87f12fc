"""K-means of few points in very many dimensions, such as the parameters of clients' networks.

Distances between points depend on their inner products alone: these are found once, and all starts
and steps cost what these cost.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

Array = NDArray[np.float64]
Labels = NDArray[np.int64]


_STEPS = 300  # of one start; Lloyd's steps end by themselves long before
_ROUNDING = 1e-12  # share of the largest square of a length within which points are equal


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
    return clusters_of(inner_products(points), clusters, rng, starts=starts)


def inner_products(points: Array) -> Array:
    """Return the inner products of points, less their mean, (points, points)."""
    moved: Array = np.asarray(points, np.float64) - points.mean(axis=0)
    found: Array = moved @ moved.T
    return found


def clusters_of(
    products: Array, clusters: int, rng: np.random.Generator, *, starts: int = 10
) -> Labels:
    """Return what `k_means` does, of points with these inner products."""
    best: Labels | None = None
    least = np.inf
    for _ in range(starts):
        labels = _settled(products, _spread(products, min(clusters, len(products)), rng))
        labels = _moved(products, labels)
        cost = _inertia(products, labels)
        if cost < least:
            best, least = labels, cost
    assert best is not None
    return _in_order(best)


def inertia(points: Array, labels: Labels) -> float:
    """Return Σ ‖x - c‖² of points and the means c of their clusters."""
    return _inertia(inner_products(points), labels)


def _inertia(products: Array, labels: Labels) -> float:
    sums, count = _sums(products, labels, int(labels.max()) + 1)
    own = np.take_along_axis(sums, labels[:, None], axis=1)[:, 0] / count[labels]
    return float(np.trace(products) - own.sum())


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


def _spread(products: Array, clusters: int, rng: np.random.Generator) -> list[int]:
    """Return points to start from by k-means++: far from each other, by chance."""
    norms = np.diag(products)

    def squares(point: int) -> Array:
        found = norms + norms[point] - 2 * products[point]
        return np.where(found > _ROUNDING * norms.max(), found, 0.0)

    chosen = [int(rng.integers(len(products)))]
    away = squares(chosen[0])
    while len(chosen) < clusters and away.max() > 0:
        chosen.append(int(rng.choice(len(products), p=away / away.sum())))
        away = np.minimum(away, squares(chosen[-1]))
    return chosen


def _settled(products: Array, chosen: list[int]) -> Labels:
    """Return the clusters that Lloyd's steps come to."""
    norms, clusters = np.diag(products), len(chosen)
    labels: Labels = (norms[chosen] - 2 * products[:, chosen]).argmin(axis=1).astype(np.int64)
    for _ in range(_STEPS):
        squares = _to_means(norms, labels, *_sums(products, labels, clusters))
        moved: Labels = squares.argmin(axis=1).astype(np.int64)
        for empty in np.setdiff1d(np.arange(clusters), moved):
            alone = np.bincount(moved, minlength=clusters)[moved] == 1
            worst = np.where(alone, -1.0, squares[np.arange(len(norms)), moved]).argmax()
            moved[worst] = empty
        if (moved == labels).all():
            break
        labels = moved
    return labels


def _moved(products: Array, labels: Labels) -> Labels:
    """Return the clusters that moves of one point at a time come to, the best move first."""
    labels, clusters = labels.copy(), int(labels.max()) + 1
    norms, at = np.diag(products), np.arange(len(products))
    least = 1e-9 * norms.sum()  # what rounding may have a move gain
    sums, count = _sums(products, labels, clusters)
    for _ in range(_STEPS):
        squares = _to_means(norms, labels, sums, count)
        own = count[labels]
        # a point alone in its cluster stays there
        saved = np.where(own > 1, own / np.maximum(own - 1, 1) * squares[at, labels], -np.inf)
        gain = saved[:, None] - count / (count + 1) * squares
        gain[at, labels] = -np.inf
        point, cluster = np.unravel_index(gain.argmax(), gain.shape)
        if gain[point, cluster] <= least:
            break
        former, labels[point] = labels[point], cluster
        for group, sign in ((former, -1), (cluster, 1)):
            sums[:, group] += sign * products[point]
            count[group] += sign
    return labels


def _sums(products: Array, labels: Labels, clusters: int) -> tuple[Array, Labels]:
    """Return each point's inner products with the sums of clusters, and how many points these have.

    (points, clusters) and (clusters,).
    """
    member = np.zeros((len(labels), clusters))
    member[np.arange(len(labels)), labels] = 1.0
    return products @ member, np.bincount(labels, minlength=clusters)


def _to_means(norms: Array, labels: Labels, sums: Array, count: Labels) -> Array:
    """Return the squares of the distances to the means of clusters; to one without a point: inf."""
    own = np.take_along_axis(sums, labels[:, None], axis=1)[:, 0]
    lengths = np.bincount(labels, weights=own, minlength=len(count))  # of the sums, squared
    some = np.maximum(count, 1)
    found: Array = norms[:, None] - 2 * sums / some + np.where(count > 0, lengths / some**2, np.inf)
    return found


def _squares(points: Array, centres: Array) -> Array:
    # one centre at a time: points of very many dimensions are large
    return np.stack([np.square(points - one).sum(axis=1) for one in centres], axis=1)


def _in_order(labels: Labels) -> Labels:
    _, first, own = np.unique(labels, return_index=True, return_inverse=True)
    found: Labels = np.argsort(np.argsort(first))[own].astype(np.int64)
    return found
