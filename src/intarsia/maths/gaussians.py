"""The 2-Wasserstein distance between Gaussians, and their barycentre, in closed form.

    W₂²(N(m, A), N(v, B)) = ‖m - v‖² + B²(A, B)
    B²(A, B) = tr A + tr B - 2 tr (B^½ A B^½)^½        (squared Bures distance)

Gelbrich, "On a Formula for the L² Wasserstein Metric between Measures on Euclidean and Hilbert
Spaces", Mathematische Nachrichten 1990. With B = L Lᵀ the last trace is the sum of the roots of the
eigenvalues of LᵀAL, for every such factor L: a Cholesky factor does, and B need not be regular.
`class_alignment` has the distances of the classes in a batch, which training takes slopes of.
"""

from __future__ import annotations

from intarsia.errors import ConvergenceError, ExperimentError
from intarsia.maths.tensors import Tensor, torch

__all__ = [
    "barycentre",
    "bures_squared",
    "factored_bures_squared",
    "symmetric_root",
    "wasserstein_squared",
]

_MOST = 1000  # steps of the fixed-point iteration; it takes some 10


def bures_squared(first: Tensor, second: Tensor) -> Tensor:
    """Return the squared Bures distance between covariance matrices, (..., k, k) each."""
    return factored_bures_squared(first, symmetric_root(second))


def factored_bures_squared(covariance: Tensor, factor: Tensor) -> Tensor:
    """Return the squared Bures distance between A and L Lᵀ, both (..., k, k)."""
    values = torch.linalg.eigvalsh(factor.mT @ covariance @ factor).clamp(min=0.0)
    traces = _trace(covariance) + factor.square().sum((-2, -1))
    return traces - 2 * values.sqrt().sum(-1)


def wasserstein_squared(
    mean: Tensor, covariance: Tensor, other_mean: Tensor, other_covariance: Tensor
) -> Tensor:
    """Return W₂² between Gaussians; means (..., k), covariances (..., k, k)."""
    away = (mean - other_mean).square().sum(-1)
    return away + bures_squared(covariance, other_covariance)


def barycentre(
    means: Tensor, covariances: Tensor, weights: Tensor | None = None, *, tolerance: float = 1e-12
) -> tuple[Tensor, Tensor]:
    """Return the mean and the covariance of the 2-Wasserstein barycentre of Gaussians.

    The mean is the means' average. The covariance S solves S = Σ w_i (S^½ A_i S^½)^½, by the
    iteration of Álvarez-Esteban et al., "A fixed-point approach to barycenters in Wasserstein
    space", Journal of Mathematical Analysis and Applications 2016:

        S ← S^-½ (Σ w_i (S^½ A_i S^½)^½)² S^-½

    Parameters
    ----------
    means
        (Gaussians, k)
    covariances
        (Gaussians, k, k), regular
    weights
        (Gaussians,), not negative; they are divided by their sum. None: equal ones.
    tolerance
        Largest change of an entry, as a part of the largest entry.

    Raises
    ------
    ExperimentError
        If a covariance is singular, or the weights are none.
    ConvergenceError
        If the iteration does not settle, as for a tolerance below the rounding.
    """
    if weights is None:
        weights = torch.ones(len(means), dtype=means.dtype, device=means.device)
    if not bool((weights >= 0).all() and weights.sum() > 0):
        raise ExperimentError(
            f"The weights of a barycentre are {weights.tolist()}; none may be negative, and their "
            "sum must be above 0."
        )
    least = float(torch.linalg.eigvalsh(covariances).min())
    if not least > 0.0:
        raise ExperimentError(
            f"A covariance has the eigenvalue {least:g}; all must be above 0 for a barycentre: add "
            "a small multiple of the identity."
        )
    weights = weights / weights.sum()
    covariance = _average(weights, covariances)
    change = torch.inf
    for _ in range(_MOST):
        values, vectors = torch.linalg.eigh(covariance)
        root = (vectors * values.sqrt()) @ vectors.mT
        inverse = (vectors / values.sqrt()) @ vectors.mT
        middle = _average(weights, symmetric_root(root @ covariances @ root))
        new = inverse @ middle @ middle @ inverse
        new = (new + new.mT) / 2
        change = float((new - covariance).abs().max() / new.abs().max())
        covariance = new
        if change <= tolerance:
            return weights @ means, covariance
    raise ConvergenceError(
        f"The barycentre's covariance still changes by {change:.1e} after {_MOST} steps; the "
        f"tolerance {tolerance:.1e} is below what the covariances allow: raise it."
    )


def _average(weights: Tensor, matrices: Tensor) -> Tensor:
    return torch.einsum("i,ijk->jk", weights, matrices)


def _trace(matrices: Tensor) -> Tensor:
    return matrices.diagonal(dim1=-2, dim2=-1).sum(-1)


def symmetric_root(matrices: Tensor) -> Tensor:
    """Return the symmetric square roots of symmetric matrices without negative eigenvalues."""
    values, vectors = torch.linalg.eigh(matrices)
    return (vectors * values.clamp(min=0.0).sqrt()[..., None, :]) @ vectors.mT
