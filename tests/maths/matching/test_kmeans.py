"""K-means: against scikit-learn, and by what it must not depend on."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from intarsia.maths.matching.kmeans import inertia, k_means, nearest, renumbered


@pytest.mark.parametrize("seed", range(5))
def test_it_is_as_tight_as_scikit_learns(seed):
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(25, 3))
    found = k_means(points, 4, rng, starts=30)
    other = KMeans(4, n_init=30, random_state=seed).fit(points)
    assert inertia(points, found) <= other.inertia_ * (1 + 1e-9)


def test_clusters_of_four_do_not_depend_on_what_is_drawn():
    """Lloyd's steps alone end early where each point is a quarter of its mean."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        points = 0.8 * rng.normal(size=(5, 8))[np.arange(20) % 5] + 0.6 * rng.normal(size=(20, 8))
        found = [inertia(points, k_means(points, 5, np.random.default_rng(n))) for n in range(4)]
        np.testing.assert_allclose(found, found[0], rtol=1e-9)


def test_planted_clusters_of_many_dimensions_are_found():
    rng = np.random.default_rng(0)
    planted = rng.permutation(np.arange(30) % 5)
    # far from the origin, as networks that start alike are
    points = 100 + rng.normal(size=(5, 2000))[planted] + 0.1 * rng.normal(size=(30, 2000))
    assert adjusted_rand_score(planted, k_means(points, 5, rng)) == 1.0


def test_equal_points_make_one_cluster():
    assert k_means(np.ones((6, 4)), 3, np.random.default_rng(0)).tolist() == [0] * 6


def test_no_cluster_is_empty_where_points_differ():
    rng = np.random.default_rng(1)
    points = rng.normal(size=(6, 40))
    assert sorted(k_means(points, 6, rng).tolist()) == list(range(6))
    assert k_means(points, 9, rng).max() == 5


def test_clusters_are_numbered_in_the_order_in_which_they_come_up():
    points = np.array([[5.0], [0.0], [5.1], [9.0]])
    assert k_means(points, 3, np.random.default_rng(0)).tolist() == [0, 1, 0, 2]


def test_clusters_keep_the_numbers_of_those_before():
    former = np.array([2, 2, 0, 0, 1, -1])
    assert renumbered(np.array([0, 0, 1, 1, 2, 2]), former).tolist() == [2, 2, 0, 0, 1, 1]
    # a cluster in two: the larger part keeps the number
    assert renumbered(np.array([0, 1, 1, 2]), np.array([1, 1, 1, 0])).tolist() == [2, 1, 1, 0]
    assert renumbered(np.array([0, 1]), np.array([-1, -1])).tolist() == [0, 1]


def test_the_nearest_centre_is_by_the_square_of_the_distance():
    points = np.array([[0.0, 0.0], [3.0, 0.0], [2.0, 0.0]])
    assert nearest(points, np.array([[0.0, 1.0], [3.0, 1.0]])).tolist() == [0, 1, 1]


@pytest.mark.parametrize("shape", [(300, 2000), (40, 20000)])
def test_many_clusters_take_little_memory_beside_the_points(shape):
    """A difference of each point to each of 12 means at once took 12 times what the points do."""
    points = np.random.default_rng(0).normal(size=shape)
    tracemalloc.start()
    try:
        k_means(points, 12, np.random.default_rng(0), starts=1)
        nearest(points, points[:12])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * points.nbytes


def test_the_same_point_several_times_is_in_one_cluster():
    points = np.random.default_rng(0).normal(size=(4, 3000))[np.arange(40) % 4]
    found = k_means(points, 12, np.random.default_rng(0))
    assert found.tolist() == (np.arange(40) % 4).tolist()
