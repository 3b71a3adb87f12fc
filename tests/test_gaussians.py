"""Distances and barycentres of Gaussians against closed forms, sampling and quadrature."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad
from scipy.linalg import sqrtm
from scipy.optimize import linear_sum_assignment

torch = pytest.importorskip("torch")

from intarsia.errors import ConvergenceError, ExperimentError  # noqa: E402  after the skip
from intarsia.maths.gaussians import (  # noqa: E402
    barycentre,
    bures_squared,
    factored_bures_squared,
    wasserstein_squared,
)

WIDTH = 4


def covariance(seed, width=WIDTH, rank=None):
    factor = np.random.default_rng(seed).normal(size=(width, rank or width + 2))
    return torch.from_numpy(factor @ factor.T / factor.shape[1])


def gaussians(count, seed=0):
    means = torch.from_numpy(np.random.default_rng(seed).normal(size=(count, WIDTH)))
    return means, torch.stack([covariance(10 + number) for number in range(count)])


def test_in_one_dimension_it_is_the_integral_of_the_quantiles():
    means, deviations = (0.3, -1.2), (0.7, 2.5)

    def squared(level):
        first, second = (
            stats.norm.ppf(level, m, s) for m, s in zip(means, deviations, strict=True)
        )
        return (first - second) ** 2

    expected, _ = quad(squared, 0, 1, limit=500)
    parts = [
        torch.tensor(one, dtype=torch.float64)
        for pair in zip(means, deviations, strict=True)
        for one in ([pair[0]], [[pair[1] ** 2]])
    ]
    assert float(wasserstein_squared(*parts)) == pytest.approx(expected, rel=1e-7)


def test_it_is_what_the_best_pairing_of_many_samples_costs():
    rng = np.random.default_rng(0)
    A, B = covariance(1, 2).numpy(), covariance(2, 2).numpy()
    x = rng.multivariate_normal([0, 0], A, 500)
    z = rng.multivariate_normal([1, 2], B, 500)
    costs = ((x[:, None] - z[None]) ** 2).sum(-1)
    paired = costs[linear_sum_assignment(costs)].mean()
    parts = [torch.tensor(one, dtype=torch.float64) for one in ([0.0, 0.0], A, [1.0, 2.0], B)]
    assert float(wasserstein_squared(*parts)) == pytest.approx(paired, rel=0.05)


@pytest.mark.parametrize("rank", [None, 2])
def test_the_bures_distance_is_that_of_the_matrix_roots_for_every_factor(rank):
    A, B = covariance(1), covariance(2, rank=rank)
    root = np.real(sqrtm(B.numpy()))
    expected = np.trace(A) + np.trace(B) - 2 * np.trace(np.real(sqrtm(root @ A.numpy() @ root)))
    turned, _ = np.linalg.qr(np.random.default_rng(3).normal(size=(WIDTH, WIDTH)))
    assert float(bures_squared(A, B)) == pytest.approx(expected, abs=1e-6)
    assert float(bures_squared(B, A)) == pytest.approx(expected, abs=1e-6)
    factor = torch.from_numpy(root @ turned)
    assert float(factored_bures_squared(A, factor)) == pytest.approx(expected, abs=1e-6)


def test_matrices_that_commute_are_as_far_apart_as_their_roots():
    A, B = torch.tensor([1.0, 4.0, 0.0]).double(), torch.tensor([9.0, 1.0, 0.25]).double()
    expected = (1 - 3) ** 2 + (2 - 1) ** 2 + 0.5**2
    assert float(bures_squared(A.diag(), B.diag())) == pytest.approx(expected, abs=1e-12)
    assert float(bures_squared(A.diag(), A.diag())) == pytest.approx(0.0, abs=1e-12)


def test_the_barycentre_of_commuting_gaussians_averages_the_roots():
    means, _ = gaussians(3)
    roots = torch.tensor([[1.0, 2.0, 3.0, 1.5], [2.0, 1.0, 0.5, 4.0], [3.0, 3.0, 1.0, 0.2]])
    weights = torch.tensor([1.0, 2.0, 5.0]).double()
    found = barycentre(means, torch.diag_embed(roots.double() ** 2), weights)
    share = weights / 8
    np.testing.assert_allclose(found[0], share @ means, atol=1e-12)
    np.testing.assert_allclose(found[1], torch.diag((share @ roots.double()) ** 2), atol=1e-9)


def test_no_gaussian_nearby_is_closer_to_all_than_the_barycentre():
    means, covariances = gaussians(4)
    weights = torch.tensor([0.4, 0.3, 0.2, 0.1]).double()
    mean, found = barycentre(means, covariances, weights)

    def cost(m, S):
        return float(weights @ wasserstein_squared(m, S, means, covariances))

    least, rng = cost(mean, found), np.random.default_rng(0)
    for _ in range(20):
        turn = torch.from_numpy(np.eye(WIDTH) + 1e-2 * rng.normal(size=(WIDTH, WIDTH)))
        shift = torch.from_numpy(1e-2 * rng.normal(size=WIDTH))
        assert cost(mean + shift, found) > least
        assert cost(mean, turn @ found @ turn.mT) > least


def test_a_barycentre_says_what_it_cannot_do():
    means, covariances = gaussians(2)
    with pytest.raises(ExperimentError, match="eigenvalue"):
        barycentre(means, torch.stack([covariances[0], torch.zeros(WIDTH, WIDTH).double()]))
    with pytest.raises(ExperimentError, match="weights"):
        barycentre(means, covariances, torch.tensor([1.0, -1.0]).double())
    with pytest.raises(ConvergenceError, match="tolerance"):
        barycentre(means, covariances, tolerance=-1.0)


def test_the_distance_agrees_with_pot():
    ot = pytest.importorskip("ot")
    means, covariances = gaussians(2)
    expected = ot.gaussian.bures_wasserstein_distance(*means, *covariances)
    found = wasserstein_squared(means[0], covariances[0], means[1], covariances[1])
    assert float(found) ** 0.5 == pytest.approx(float(expected), rel=1e-8)
