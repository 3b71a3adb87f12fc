"""Distances of classes to their anchors in a batch, against the closed form of each class."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad
from scipy.optimize import linear_sum_assignment
from scipy.stats import energy_distance

torch = pytest.importorskip("torch")

from intarsia.maths.matching.covariance_roots import _decomposed, root_trace  # noqa: E402
from intarsia.maths.matching.distribution_distances import (  # noqa: E402
    Anchors,
    _in_torch,
    by_energy,
    by_transport,
    classed,
    to_gaussians,
    to_samples,
)

DOUBLE = torch.float64
TINY = 1e-18


def batch(rows=37, width=6, classes=4, seed=0):
    """Return points, classes of which one has no row and one has one, weights, anchors, samples."""
    make = torch.Generator().manual_seed(seed)
    points = torch.randn(rows, width, generator=make, dtype=DOUBLE)
    points = points @ torch.randn(width, width, generator=make, dtype=DOUBLE)
    y = torch.randint(0, 2, (rows,), generator=make)
    y[3] = 3
    weight = torch.ones(rows, dtype=DOUBLE)
    weight[-4:] = 0.0
    means = torch.randn(classes, width, generator=make, dtype=DOUBLE)
    samples = means[y] + torch.randn(rows, width, generator=make, dtype=DOUBLE)
    return points, y, weight, means, samples


def moments(points):
    centred = points - points.mean(0)
    return points.mean(0), centred.T @ centred / len(points)


def bures_squared(A, B):
    """Return tr A + tr B - 2 tr (B^½ A B^½)^½."""
    values, vectors = torch.linalg.eigh(B)
    root = vectors * values.clamp(min=0.0).sqrt() @ vectors.T
    middle = torch.linalg.eigvalsh(root @ A @ root).clamp(min=0.0)
    return A.trace() + B.trace() - 2 * middle.sqrt().sum()


def wasserstein_squared(mean, covariance, other_mean, other_covariance):
    return (mean - other_mean).square().sum() + bures_squared(covariance, other_covariance)


def one_class(rows, width, seed=0):
    """Return points of one class, and an anchor that has a covariance."""
    make = torch.Generator().manual_seed(seed)
    points = torch.randn(rows, width, generator=make, dtype=DOUBLE)
    points = points @ torch.randn(width, width, generator=make, dtype=DOUBLE)
    means = torch.randn(1, width, generator=make, dtype=DOUBLE)
    return points, means, torch.randn(1, width, width, generator=make, dtype=DOUBLE)


def distance_of_one(points, means, factors):
    rows = classed(torch.zeros(len(points), dtype=torch.int64), torch.ones(len(points)).double(), 1)
    return float(to_gaussians(points, rows, Anchors(means, factors=factors), TINY))


def test_in_one_dimension_it_is_the_integral_of_the_quantiles():
    points, means, factors = one_class(9, 1)
    mean, variance = (float(one) for one in moments(points))
    given = ((mean, variance**0.5), (float(means), abs(float(factors))))

    def squared(level):
        first, second = (stats.norm.ppf(level, m, s) for m, s in given)
        return (first - second) ** 2

    expected, _ = quad(squared, 0, 1, limit=500)
    assert distance_of_one(points, means, factors) == pytest.approx(expected, rel=1e-7)


def test_it_is_what_the_best_pairing_of_many_samples_costs():
    _, means, factors = one_class(1, 2)
    A, B = np.array([[2.0, 0.5], [0.5, 1.0]]), (factors[0] @ factors[0].T).numpy()
    rng = np.random.default_rng(0)
    x = rng.multivariate_normal([1, 2], A, 500)
    z = rng.multivariate_normal(means[0].numpy(), B, 500)
    costs = ((x[:, None] - z[None]) ** 2).sum(-1)
    paired = costs[linear_sum_assignment(costs)].mean()
    assert distance_of_one(torch.from_numpy(x), means, factors) == pytest.approx(paired, rel=0.05)


def test_every_factor_of_a_covariance_gives_the_same_distance():
    points, means, factors = one_class(30, 4)
    turned = torch.linalg.qr(one_class(4, 4, seed=1)[0])[0]
    known = distance_of_one(points, means, factors)
    assert distance_of_one(points, means, factors @ turned) == pytest.approx(known, rel=1e-10)


def test_matrices_that_commute_are_as_far_apart_as_their_roots():
    """The points' covariance is four times the identity, and their mean the anchor's."""
    points = 2 * 3**0.5 * torch.cat([torch.eye(3), -torch.eye(3)]).double()
    sizes = torch.tensor([3.0, 1.0, 0.5]).double()
    found = distance_of_one(points, torch.zeros(1, 3).double(), sizes.diag()[None])
    assert found == pytest.approx((2 - 3) ** 2 + (2 - 1) ** 2 + (2 - 0.5) ** 2, rel=1e-8)


def test_the_distance_agrees_with_pot():
    ot = pytest.importorskip("ot")
    points, means, factors = one_class(30, 4)
    mean, covariance = moments(points)
    B = factors[0] @ factors[0].T
    expected = ot.gaussian.bures_wasserstein_distance(mean, means[0], covariance, B)
    found = distance_of_one(points, means, factors)
    assert found**0.5 == pytest.approx(float(expected), rel=1e-8)


@pytest.mark.parametrize("width", [3, 6, 50])
def test_the_distance_to_gaussians_is_the_sum_over_the_classes_that_are_there(width):
    points, y, weight, means, _ = batch(width=width)
    found = to_gaussians(points, classed(y, weight, 4), Anchors(means, 1.5), TINY)
    expected = sum(
        wasserstein_squared(
            *moments(points[(y == c) & (weight > 0)]),
            means[c],
            1.5**2 * torch.eye(width, dtype=DOUBLE),
        )
        for c in (0, 1, 3)
    )
    assert float(found) == pytest.approx(float(expected), rel=1e-8)


@pytest.mark.parametrize("width", [3, 6, 50])
def test_the_distance_to_samples_is_that_of_their_moments(width):
    points, y, weight, _, samples = batch(width=width)
    found = to_samples(points, classed(y, weight, 4), samples, TINY)
    expected = 0.0
    for c in (0, 1, 3):
        own = (y == c) & (weight > 0)
        (m, S), (v, A) = moments(points[own]), moments(samples[own])
        unbiased = int(own.sum()) / max(int(own.sum()) - 1, 1)  # n/(n - 1)
        expected += float((m - v).square().sum() + bures_squared(unbiased * S, unbiased * A))
    assert float(found) == pytest.approx(expected, rel=1e-6)


def test_one_row_of_a_class_has_no_covariance_and_a_finite_slope():
    points, _, _, _, samples = batch(width=2)
    rows = classed(torch.tensor([0, 1, 1]), torch.ones(3, dtype=DOUBLE), 4)
    points = points[:3].clone().requires_grad_()
    found = to_samples(points, rows, samples[:3], TINY)
    (slope,) = torch.autograd.grad(found, points)
    torch.testing.assert_close(slope[0], 2 * (points[0] - samples[0]).detach())


def test_the_distance_to_anchors_with_covariances_is_that_of_the_closed_form():
    points, y, weight, means, _ = batch(width=5)
    factors = torch.randn(4, 5, 5, generator=torch.Generator().manual_seed(1), dtype=DOUBLE).tril()
    found = to_gaussians(points, classed(y, weight, 4), Anchors(means, factors=factors), TINY)
    expected = sum(
        wasserstein_squared(
            *moments(points[(y == c) & (weight > 0)]), means[c], factors[c] @ factors[c].T
        )
        for c in (0, 1, 3)
    )
    assert float(found) == pytest.approx(float(expected), rel=1e-6)


def test_samples_of_anchors_have_their_means_and_covariances():
    make = torch.Generator().manual_seed(2)
    factors = torch.randn(2, 3, 3, generator=make, dtype=DOUBLE).tril()
    means = torch.randn(2, 3, generator=make, dtype=DOUBLE)
    y = torch.arange(200_000) % 2
    rows = classed(y, torch.ones(len(y), dtype=DOUBLE), 2)
    noise = torch.randn(len(y), 3, generator=make, dtype=DOUBLE)
    sample = Anchors(means, factors=factors).sample(rows, noise)
    for c in (0, 1):
        mean, covariance = moments(sample[y == c])
        torch.testing.assert_close(mean, means[c], atol=0.02, rtol=0)
        torch.testing.assert_close(covariance, factors[c] @ factors[c].T, atol=0.06, rtol=0.02)


def test_transport_takes_the_best_of_all_assignments():
    points, y, weight, _, samples = batch(rows=14, width=2)
    found = by_transport(points, classed(y, weight, 4), samples)
    expected = 0.0
    for c in (0, 1, 3):
        own = torch.nonzero((y == c) & (weight > 0))[:, 0].tolist()
        expected += min(
            float((points[own] - samples[list(turned)]).square().sum()) / len(own)
            for turned in itertools.permutations(own)
        )
    assert float(found) == pytest.approx(expected, rel=1e-12)


def test_the_energy_distance_is_that_of_scipy_along_a_line():
    points, y, weight, _, samples = batch(width=1)
    found = by_energy(points, classed(y, weight, 4), samples)
    expected = 0.0
    for c in (0, 1, 3):
        own = (y == c) & (weight > 0)
        # SciPy's is the root of half of it, along a line: √2 times Cramér's
        expected += energy_distance(points[own, 0].numpy(), samples[own, 0].numpy()) ** 2
    assert float(found) == pytest.approx(expected, rel=0.02)  # the root of 0 is smoothed


def test_slopes_are_those_of_finite_differences():
    points, y, weight, means, samples = batch(rows=14, width=5)
    rows = classed(y, weight, 4)
    points.requires_grad_()
    means.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda points, means: to_gaussians(points, rows, Anchors(means, 0.7), 1e-2), (points, means)
    )
    factors = torch.randn(4, 5, 5, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
    assert torch.autograd.gradcheck(
        lambda points, factors: to_gaussians(points, rows, Anchors(means, factors=factors), 1e-2),
        (points, factors.requires_grad_()),
    )
    assert torch.autograd.gradcheck(lambda points: to_samples(points, rows, samples, 1e-2), points)
    samples.requires_grad_()
    for distance in (by_transport, by_energy):
        assert torch.autograd.gradcheck(
            functools.partial(_swapped, distance, rows), (points, samples)
        )


def _swapped(distance, rows, points, samples):
    return distance(points, rows, samples)


def test_slopes_of_few_samples_in_a_wide_space_are_finite():
    points, y, weight, means, _ = batch(rows=20, width=64)
    points = (1e-9 * points).float().requires_grad_()
    away = to_gaussians(points, classed(y, weight.float(), 4), Anchors(means.float()))
    (slope,) = torch.autograd.grad(away, points)
    assert bool(slope.isfinite().all())


@pytest.mark.parametrize("way", ["stacked", "vmap"])
def test_learners_at_once_get_what_each_gets_alone(way):
    given = [batch(seed=seed) for seed in range(5)]

    def both(points, y, weight, means, samples):
        rows = classed(y, weight, 4)
        anchors = Anchors(means, factors=means[..., None, :] * means[..., :, None])
        near = to_gaussians(points, rows, anchors) + by_transport(points, rows, samples)
        return near + to_samples(points, rows, samples) + by_energy(points, rows, samples)

    def slopes(function, parts):
        points = parts[0].clone().requires_grad_()
        value = function(points, *parts[1:])
        return value.detach(), torch.autograd.grad(value.sum(), points)[0]

    stacked = [torch.stack(parts) for parts in zip(*given, strict=True)]
    together = slopes(both if way == "stacked" else torch.func.vmap(both), stacked)
    for number, parts in enumerate(given):
        for found, expected in zip(together, slopes(both, parts), strict=True):
            torch.testing.assert_close(found[number], expected, rtol=1e-12, atol=1e-12)


def test_traces_of_a_batch_without_rows_that_count_are_zero():
    rows = torch.randn(2, 5, 3, dtype=DOUBLE)
    trace, slopes = root_trace(rows, torch.full((2, 5), 4), 4, 1e-4)
    assert trace.tolist() == [0.0, 0.0]
    assert not slopes.any()


@pytest.mark.parametrize("against_samples", [False, True])
def test_the_operation_of_accelerators_agrees_with_the_compiled_one(against_samples):
    generator = torch.Generator().manual_seed(3)
    rows, others = torch.randn(2, 4, 60, 16, generator=generator, dtype=DOUBLE)
    others = others if against_samples else rows[..., :0]
    y = torch.randint(0, 6, (4, 60), generator=generator)
    y[0, :30] = 0  # more rows than columns
    found = torch.ops.intarsia.covariance_roots(rows, y, others, 5, 1e-4)
    expected = _decomposed(rows, y, others, 5, 1e-4)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_the_distance_of_accelerators_agrees_with_the_compiled_one():
    given = [batch(rows=60, width=9, seed=seed) for seed in range(3)]
    points, y, weight, means = (torch.stack(parts) for parts in list(zip(*given, strict=True))[:4])
    y = torch.where(weight > 0, y, 4)
    for anchors in (means, means[0]):
        found = torch.ops.intarsia_alignment.distances(points, y, anchors, 1.5, 1e-4)
        expected = _in_torch(points, y, anchors, 1.5, 1e-4)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
