"""How far the points of each class in a batch are from the class's anchor.

Distances are sums over the classes in the batch, and all take several learners at once, in front of
the axes that are named. m_c and S_c are the mean and the covariance (1/n) of the points of class c.

    to_gaussians   W₂² between N(m_c, S_c) and the anchor N(v_c, L_c L_cᵀ), in closed form
    to_samples     W₂² between the Gaussians with the moments of the points and of a sample, whose
                   covariances are the unbiased ones: of n points of a class, 1/(n - 1) Σ (z - m)²
    by_transport   W₂² between the points and a sample, for the best assignment of one to the other
    by_energy      the energy distance between the points and a sample: the maximum mean discrepancy
                   of the kernel -‖x - y‖ (Sejdinovic et al., "Equivalence of distance-based and
                   RKHS-based statistics in hypothesis testing", Annals of Statistics 2013), which
                   has no bandwidth to choose, and slopes also far away

The closed form is that of Gelbrich, "On a Formula for the L² Wasserstein Metric between Measures on
Euclidean and Hilbert Spaces", Mathematische Nachrichten 1990, for every factor B = L Lᵀ:

    W₂²(N(m, A), N(v, B)) = ‖m - v‖² + tr A + tr B - 2 tr (LᵀAL)^½

whose last three terms are the squared Bures distance B²(A, B).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from intarsia.errors import ConvergenceError
from intarsia.maths.matching.covariance_roots import diverging, root_trace
from intarsia.maths.matching.inverse_roots import distances_of_classes
from intarsia.maths.matching.learner_operations import define_operation, stack_of
from intarsia.maths.training.torch_import import Tensor, torch

_SMOOTHING = 1e-4  # ε: √(λ + ε) - √ε stands for a root, whose slope is infinite at 0


@dataclass(frozen=True, eq=False)
class Classed:
    """Rows by class: what their distances are computed from."""

    y: Tensor  # (rows,) the row's class, the number of classes for rows that do not count
    mine: Tensor  # (rows, classes) 1 in the column of the row's class; 0 in rows that do not count
    own: Tensor  # (rows,) the row's share in its class, 0 in rows that do not count
    present: Tensor  # (classes,) 1 where the batch has the class, else 0

    @property
    def unbiased(self) -> Tensor:
        """Return the row's share in an unbiased covariance, 1/(n - 1), (rows,); n = 1: 1."""
        return self.own / torch.where(self.own < 1, 1 - self.own, 1.0)

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

    def times(self, points: Tensor, matrices: Tensor) -> Tensor:
        """Return each row times the matrix of its class, (rows, k); matrices (classes, k, k)."""
        everywhere = points[..., None, :, :] @ matrices
        return (self.mine.mT[..., None] * everywhere).sum(-3)


def classed(y: Tensor, weight: Tensor, classes: int) -> Classed:
    """Return rows by their classes, (rows,); weights, (rows,), are 1, or 0 if one stays out."""
    numbers = torch.arange(classes, device=y.device)
    mine = (y[..., None] == numbers) * weight[..., None]
    total = mine.sum(-2)
    own = (mine @ total.clamp(min=1.0).reciprocal()[..., None])[..., 0]
    return Classed(torch.where(weight > 0, y, classes), mine, own, total.clamp(max=1.0))


@dataclass(frozen=True, eq=False)
class Anchors:
    """N(v_c, L_c L_cᵀ), with L_c = √e·I where there are no factors."""

    means: Tensor  # (classes, k)
    deviation: float = 1.0  # √e
    factors: Tensor | None = None  # (classes, k, k)

    def sample(self, rows: Classed, noise: Tensor) -> Tensor:
        """Return a point of each row's anchor, (rows, k), from standard normal numbers."""
        if self.factors is None:
            return rows.mine @ self.means + self.deviation * noise
        return rows.mine @ self.means + rows.times(noise, self.factors.mT)


def to_gaussians(
    points: Tensor, rows: Classed, anchors: Anchors, smoothing: float = _SMOOTHING
) -> Tensor:
    """Return Σ_c W₂² to the anchors, (...,), of points (rows, k); see `covariance_roots`."""
    if anchors.factors is None:
        fixed, means = points.detach(), anchors.means.detach()
        distance, slopes, shifts = _distances(fixed, rows.y, means, anchors.deviation, smoothing)
        # both sums are 0, and their derivatives are the slopes
        moved = (slopes * (points - fixed)).sum((-2, -1))
        return distance + moved + (shifts * (anchors.means - means)).sum((-2, -1))
    trace = (rows.present * anchors.factors.square().sum((-2, -1))).sum(-1)
    scaled = rows.times(points, anchors.factors)
    return rows.away(points, anchors.means) + trace - 2 * _roots(scaled, rows, smoothing)


def to_samples(
    points: Tensor, rows: Classed, samples: Tensor, smoothing: float = _SMOOTHING
) -> Tensor:
    """Return Σ_c W₂² to the moments of samples of the rows' classes, (rows, k).

    Covariances are 1/(n - 1) Σ (z - m)² of a class's n rows, as the authors of FLIC have them in
    their code; that of one row is 0. Slopes reach the samples through their means only, as a shift
    of the anchors does.
    """
    theirs, own = rows.means(samples), rows.means(points)
    fixed, shares = samples.detach(), rows.unbiased
    shift = (own - theirs).square().sum((-2, -1))
    spread = (shares * (points - rows.mine @ own).square().sum(-1)).sum(-1)
    sampled = (shares * (fixed - rows.mine @ theirs.detach()).square().sum(-1)).sum(-1)
    return shift + spread + sampled - 2 * _roots(points, rows, smoothing, fixed, shares)


def _roots(
    points: Tensor,
    rows: Classed,
    smoothing: float,
    others: Tensor | None = None,
    shares: Tensor | None = None,
) -> Tensor:
    """Return the smoothed Σ_c tr (B^½ S_c B^½)^½; B is the others' covariance, or the identity.

    `shares` are the rows' in these covariances, None: 1/n.
    """
    fixed, root = points.detach(), (rows.own if shares is None else shares).sqrt()[..., None]

    def centred(values: Tensor) -> Tensor:
        return root * (values - rows.mine @ rows.means(values))

    trace, slopes = root_trace(
        centred(fixed), rows.y, rows.classes, smoothing, None if others is None else centred(others)
    )
    # The sum is 0, and its derivative are the slopes. These have no mean, as X has none: how the
    # points' means change has no part in it.
    return trace + (root * slopes * (points - fixed)).sum((-2, -1))


def by_transport(points: Tensor, rows: Classed, samples: Tensor) -> Tensor:
    """Return Σ_c W₂² between points and samples of the rows' classes, (rows, k) both."""
    # the best assignment stays the best nearby: it has no slopes of its own
    partner = assigned(points.detach(), samples.detach(), rows.y, rows.classes)
    theirs = samples.gather(-2, partner[..., None].expand(samples.shape))
    return (rows.own * (points - theirs).square().sum(-1)).sum(-1)


def assigned(points: Tensor, others: Tensor, y: Tensor, classes: int) -> Tensor:
    """Return which other each point is assigned to, (rows,): a permutation in each class.

    It minimises Σ ‖x - y‖². A row of no class (`y` = `classes`) is assigned to itself. Several
    learners may stand in front of all axes.

    Parameters
    ----------
    points, others
        (rows, k), without gradients.
    y
        The class of both, (rows,).

    Raises
    ------
    ConvergenceError
        If a distance is not finite.
    """
    found: Tensor = _assigned(points, others, y, classes)
    return found


def _solve_assignment(points: Tensor, others: Tensor, y: Tensor, classes: int) -> Tensor:
    rows, width = points.shape[-2:]
    costs = torch.cdist(points.reshape(-1, rows, width), others.reshape(-1, rows, width)).square()
    label = y.reshape(-1, rows).cpu().numpy()
    found = np.tile(np.arange(rows), (len(label), 1))
    for learner, cost in enumerate(costs.cpu().numpy()):
        for number in range(classes):
            own = np.flatnonzero(label[learner] == number)
            among = cost[np.ix_(own, own)]
            if not np.isfinite(among).all():
                raise ConvergenceError(
                    "A distance between embedded rows and samples of an anchor is not finite: "
                    "training diverges; lower algorithm.rate, or standardise the features."
                )
            if len(own):
                found[learner, own] = own[linear_sum_assignment(among)[1]]
    return torch.from_numpy(found).to(points.device).view(y.shape)


def _shape_assignment(points: Tensor, others: Tensor, y: Tensor, classes: int) -> Tensor:
    return torch.empty_like(y, memory_format=torch.contiguous_format)


_assigned, _ASSIGNMENT = define_operation(
    "intarsia_assignment",
    "assigned(Tensor points, Tensor others, Tensor y, int classes) -> Tensor",
    _solve_assignment,
    _shape_assignment,
)


def by_energy(points: Tensor, rows: Classed, samples: Tensor) -> Tensor:
    """Return Σ_c 2E‖z - a‖ - E‖z - z'‖ - E‖a - a'‖ of points and samples, (rows, k) both."""
    shares = rows.mine * rows.own[..., None]
    together = shares @ shares.mT  # (rows, rows) of each pair in its class
    apart = 2 * _lengths(points, samples) - _lengths(points, points) - _lengths(samples, samples)
    return (together * apart).sum((-2, -1))


def _lengths(points: Tensor, others: Tensor) -> Tensor:
    """Return ‖x - y‖ of all pairs, (rows, rows), with finite slopes where it is 0."""
    squares = points.square().sum(-1)[..., :, None] + others.square().sum(-1)[..., None, :]
    away = (squares - 2 * points @ others.mT).clamp(min=0.0)
    return (away + _SMOOTHING).sqrt() - _SMOOTHING**0.5


def _in_torch(
    points: Tensor, y: Tensor, means: Tensor, deviation: float, smoothing: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return Σ_c W₂² to N(v_c, e I), (...,), and its slopes along points and means.

    It is an operation of its own, as in `covariance_roots`.
    """
    classes = means.shape[-2]
    rows = classed(y, (y < classes).to(points.dtype), classes)
    centres, root = rows.means(points), rows.own.sqrt()[..., None]
    scaled = deviation * root * (points - rows.mine @ centres)
    trace, slopes = root_trace(scaled, rows.y, classes, smoothing)
    spread = deviation**2 * points.shape[-1] * rows.present.sum(-1)
    towards = rows.own[..., None] * (points - rows.mine @ means) - deviation * root * slopes
    shifts = rows.present[..., None] * (means - centres)
    return rows.away(points, means) + spread - 2 * trace, 2 * towards, 2 * shifts


def _on_cpu(
    points: Tensor, y: Tensor, means: Tensor, deviation: float, smoothing: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the same by a compiled function."""
    everyone = means.expand(*y.shape[:-1], *means.shape[-2:])
    arrays = (stack_of(points, 2), stack_of(y, 1), stack_of(everyone, 2))
    distance, slopes, shifts, found = distances_of_classes(*arrays, deviation, smoothing)
    if not found:
        raise diverging()
    return (
        torch.from_numpy(distance).view(y.shape[:-1]),
        torch.from_numpy(slopes).view(points.shape),
        torch.from_numpy(shifts).view(everyone.shape),
    )


def _shaped(
    points: Tensor, y: Tensor, means: Tensor, deviation: float, smoothing: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return tensors of the shapes of the result, for the compiler."""
    return (
        points.new_empty(y.shape[:-1]),
        torch.empty_like(points, memory_format=torch.contiguous_format),
        points.new_empty(*y.shape[:-1], *means.shape[-2:]),
    )


_distances, _LIBRARY = define_operation(
    "intarsia_alignment",
    "distances(Tensor points, Tensor y, Tensor means, float deviation, float smoothing)"
    " -> (Tensor, Tensor, Tensor)",
    _in_torch,
    _shaped,
    _on_cpu,
)
