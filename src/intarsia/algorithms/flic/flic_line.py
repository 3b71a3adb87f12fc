"""What a client of FLIC minimises where labels are numbers: anchors along a line, see `flic`.

    µ_y = N(m(y), e·I),   m(y) = y a + (1-y) b

with y in units of the federation (`label_scale`), so that b is at the labels' mean and a one
deviation above it; both are learned. A batch has every label once as a rule, so that its second
term is what W₂² to the anchor of a single point is, averaged over the rows:

    1/n Σ_j ‖φ(x_j) - m(y_j)‖² + ek

With `label_bins` = B rows are taken together whose labels lie between the same of B+1 quantiles of
a normal distribution: within a bin the points less m(y) are aligned to N(0, e·I), by any of the
distances, so that they keep a spread; the second term is the sum over the bins. The third term is
the loss on one point of the anchor of each row's label.
"""

from __future__ import annotations

import math
from typing import Protocol

from intarsia.algorithms.flic import objective as flic_objective
from intarsia.algorithms.flic.objective import distance
from intarsia.algorithms.networks.targets import row_losses
from intarsia.maths.matching.distribution_distances import Anchors, classed
from intarsia.maths.training.local_training import Batch, Loss
from intarsia.maths.training.torch_import import Tensor, nn, torch

__all__ = ["Terms", "calibration", "misalignment", "objective"]


class Terms(flic_objective.Terms, Protocol):
    """What FLIC's hyperparameters say of its objective for numbers."""

    @property
    def label_bins(self) -> int:
        """Return B, 0 for each row alone."""
        ...


def misalignment(options: Terms) -> Loss:
    """Return the second term alone."""

    def loss(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        latent = model.embedding(batch["x"], batch.get("dropped"))
        away = _away(options, latent, _centres(model, batch), batch)
        return torch.zeros_like(batch["weight"]), away

    return loss


def calibration(options: Terms) -> Loss:
    """Return the third term alone."""

    def loss(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        unsure = _unsure(options, model, _centres(model, batch), batch)
        return torch.zeros_like(batch["weight"]), unsure

    return loss


def objective(options: Terms) -> Loss:
    """Return F_i of a batch."""

    def loss(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        latent, weight = model.embedding(batch["x"], batch.get("dropped")), batch["weight"]
        each, penalty = (
            row_losses(model.scores(latent), batch["y"]),
            torch.zeros_like(weight[..., 0]),
        )
        if options.calibration_weight > 0 or options.alignment_weight > 0:
            centres = _centres(model, batch)
        if options.calibration_weight > 0:
            unsure = _unsure(options, model, centres, batch)
            penalty = penalty + options.calibration_weight * unsure
        if options.alignment_weight > 0:
            away = _away(options, latent, centres, batch)
            penalty = penalty + options.alignment_weight * away
        return each, penalty

    return loss


def _centres(model: nn.Module, batch: Batch) -> Tensor:
    """Return m(y) of each row, (rows, k)."""
    y, ends = batch["y"][..., None], model.anchors.means  # a, then b
    return y * ends[..., :1, :] + (1 - y) * ends[..., 1:, :]


def _unsure(options: Terms, model: nn.Module, centres: Tensor, batch: Batch) -> Tensor:
    points = centres + math.sqrt(options.anchor_variance) * batch["noise"]
    return _mean(row_losses(model.scores(points), batch["y"]), batch)


def _mean(each: Tensor, batch: Batch) -> Tensor:
    """Return the mean over the rows that count."""
    weight = batch["weight"]
    return (weight * each).sum(-1) / weight.sum(-1)


def _away(options: Terms, latent: Tensor, centres: Tensor, batch: Batch) -> Tensor:
    """Return the second term."""
    y = batch["y"]
    away = latent - centres
    if not options.label_bins:
        spread = options.anchor_variance * latent.shape[-1]
        return _mean(away.square().sum(-1), batch) + spread
    level = torch.special.ndtr(y) * options.label_bins
    rows = classed(
        level.long().clamp(max=options.label_bins - 1), batch["weight"], options.label_bins
    )
    origin = latent.new_zeros(options.label_bins, latent.shape[-1])
    anchors = Anchors(origin, math.sqrt(options.anchor_variance))
    return distance(options, away, rows, anchors, batch)
