"""How far the points of each class in a batch are from the class's anchor, a Gaussian.

The anchor of class c is N(v_c, A_c). Distances are sums over the classes in the batch, and all take
several learners at once, in front of the axes that are named.
"""

from __future__ import annotations

from dataclasses import dataclass

from intarsia.maths.covariance_roots import root_trace
from intarsia.maths.tensors import Tensor, torch

__all__ = ["Classed", "classed", "to_gaussians", "to_samples"]


@dataclass(frozen=True, eq=False)
class Classed:
    """Rows by class: what their distances are computed from."""

    y: Tensor  # (rows,) the row's class, the number of classes for rows that do not count
    mine: Tensor  # (rows, classes) 1 in the column of the row's class; 0 in rows that do not count
    own: Tensor  # (rows,) the row's share in its class, 0 in rows that do not count
    present: Tensor  # (classes,) 1 where the batch has the class, else 0

    @property
    def classes(self) -> int:
        """Return the number of classes."""
        return int(self.mine.shape[-1])

    def means(self, points: Tensor) -> Tensor:
        """Return the classes' means, (classes, k)."""
        return self.mine.mT @ (self.own[..., None] * points)

    def away(self, points: Tensor, means: Tensor) -> Tensor:
        """Return Σ_c of the mean of ‖z - v_c‖², which is ‖m_c - v_c‖² + tr S_c."""
        return (self.own * (points - self.mine @ means).square().sum(-1)).sum(-1)


def classed(y: Tensor, weight: Tensor, classes: int) -> Classed:
    """Return rows by their classes, (rows,); weights, (rows,), are 1, or 0 if one stays out."""
    numbers = torch.arange(classes, device=y.device)
    mine = (y[..., None] == numbers) * weight[..., None]
    total = mine.sum(-2)
    own = (mine @ total.clamp(min=1.0).reciprocal()[..., None])[..., 0]
    return Classed(torch.where(weight > 0, y, classes), mine, own, total.clamp(max=1.0))


def to_gaussians(
    points: Tensor, rows: Classed, means: Tensor, deviation: float, smoothing: float
) -> Tensor:
    """Return Σ_c W₂²(N(m_c, S_c), N(v_c, e·I)) of the points' means and covariances.

    Parameters
    ----------
    points
        (rows, k)
    means
        v_c, (classes, k)
    deviation
        √e
    smoothing
        See `covariance_roots`.
    """
    trace = deviation**2 * points.shape[-1] * rows.present.sum(-1)
    scaled = points if deviation == 1.0 else deviation * points
    return rows.away(points, means) + trace - 2 * _roots(scaled, rows, smoothing)


def to_samples(points: Tensor, rows: Classed, samples: Tensor, smoothing: float) -> Tensor:
    """Return Σ_c W₂² between Gaussians with the moments of the points and of the samples.

    `samples` are (rows, k), of the rows' classes; slopes reach them through their means only.
    """
    means = rows.means(samples)
    # a shift of the anchors does not change the samples' covariance
    fixed = samples.detach()
    trace = rows.away(fixed, means.detach())
    return rows.away(points, means) + trace - 2 * _roots(points, rows, smoothing, fixed)


def _roots(points: Tensor, rows: Classed, smoothing: float, others: Tensor | None = None) -> Tensor:
    """Return the smoothed Σ_c tr (B^½ S_c B^½)^½; B is the others' covariance, or the identity."""
    fixed, root = points.detach(), rows.own.sqrt()[..., None]

    def centred(values: Tensor) -> Tensor:
        return root * (values - rows.mine @ rows.means(values))

    trace, slopes = root_trace(
        centred(fixed),
        rows.y,
        rows.classes,
        smoothing,
        None if others is None else centred(others),
    )
    # The sum is 0, and its derivative are the slopes. These have no mean, as X has none: how the
    # points' means change has no part in it.
    return trace + (root * slopes * (points - fixed)).sum((-2, -1))
