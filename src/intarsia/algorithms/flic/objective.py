"""What a client of FLIC minimises on a batch of classes: the terms of (3), see `flic`.

Where classes have an anchor together, the second term takes their rows together, and the third one
asks for the meta-class: the loss of a point of µ_c is -log of the sum of the chances of all classes
that have µ_c. `meta` is the number of each class's anchor; () = each class has its own.
"""

from __future__ import annotations

import math
from typing import Literal, Protocol

from intarsia.algorithms.networks.targets import cross_entropy
from intarsia.maths.matching.distribution_distances import (
    Anchors,
    Classed,
    by_energy,
    by_transport,
    classed,
    to_gaussians,
    to_samples,
)
from intarsia.maths.training.local_training import Batch, Loss
from intarsia.maths.training.torch_import import Tensor, nn, torch

__all__ = [
    "Alignment",
    "Meta",
    "Terms",
    "calibration",
    "distance",
    "draws_noise",
    "misalignment",
    "objective",
]

Alignment = Literal["gaussian", "sample", "transport", "energy"]
Meta = tuple[int, ...]


class Terms(Protocol):
    """What FLIC's hyperparameters say of its objective."""

    @property
    def alignment_weight(self) -> float:
        """Return λ1."""
        ...

    @property
    def calibration_weight(self) -> float:
        """Return λ2."""
        ...

    @property
    def alignment(self) -> Alignment:
        """Return which distance the second term takes."""
        ...

    @property
    def anchor_variance(self) -> float:
        """Return e."""
        ...


def draws_noise(options: Terms, *, pretraining: bool) -> bool:
    """Return whether the objective draws points of the anchors."""
    sampled = options.alignment != "gaussian"
    if pretraining:
        return sampled
    return options.calibration_weight > 0 or (sampled and options.alignment_weight > 0)


def misalignment(options: Terms, meta: Meta = ()) -> Loss:
    """Return the second term alone, which embeddings train on before the first round."""

    def loss(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        anchors = _anchors(options, model)
        rows = _rows(batch, anchors, meta)
        latent = model.embedding(batch["x"], batch.get("dropped"))
        away = distance(options, latent, rows, anchors, batch)
        return torch.zeros_like(batch["weight"]), away

    return loss


def calibration(options: Terms, meta: Meta = ()) -> Loss:
    """Return the third term alone, by which a classifier learns the anchors."""

    def loss(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        anchors = _anchors(options, model)
        rows = _rows(batch, anchors, meta)
        points = anchors.sample(rows, batch["noise"])
        unsure = _meta_entropy(model.scores(points), batch["y"], meta)
        return torch.zeros_like(batch["weight"]), (rows.own * unsure).sum(-1)

    return loss


def objective(options: Terms, meta: Meta = (), *, every: bool = False) -> Loss:
    """Return F_i of a batch; with `every`, its third term runs over all anchors."""
    aligned, calibrated = options.alignment_weight > 0, options.calibration_weight > 0

    def loss(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        y, weight = batch["y"], batch["weight"]
        latent = model.embedding(batch["x"], batch.get("dropped"))
        if not aligned and not calibrated:
            return cross_entropy(model.scores(latent), y), torch.zeros_like(weight[..., 0])
        anchors = _anchors(options, model)
        rows = _rows(batch, anchors, meta)
        penalty = torch.zeros_like(weight[..., 0])
        if calibrated and not every:
            # both go through α and β at once; of a class as many as the batch has rows of it
            points = anchors.sample(rows, batch["noise"])
            both = model.scores(torch.cat([latent, points], -2))
            if meta:
                own, drawn = both.chunk(2, -2)
                each, unsure = cross_entropy(own, y), _meta_entropy(drawn, y, meta)
            else:
                each, unsure = cross_entropy(both, torch.cat([y, y], -1)).chunk(2, -1)
            penalty = penalty + options.calibration_weight * (rows.own * unsure).sum(-1)
        else:
            each = cross_entropy(model.scores(latent), y)
        if calibrated and every:
            unsure = _unsure_of_all(model, anchors, batch, meta)
            penalty = penalty + options.calibration_weight * unsure
        if aligned:
            away = distance(options, latent, rows, anchors, batch)
            penalty = penalty + options.alignment_weight * away
        return each, penalty

    return loss


def _anchors(options: Terms, model: nn.Module) -> Anchors:
    factors = model.anchors.factors.tril() if hasattr(model.anchors, "factors") else None
    return Anchors(model.anchors.means, math.sqrt(options.anchor_variance), factors)


def _rows(batch: Batch, anchors: Anchors, meta: Meta) -> Classed:
    """Return the rows by their anchors."""
    y = batch["y"]
    if meta:
        y = torch.tensor(meta, device=y.device)[y]
    return classed(y, batch["weight"], anchors.means.shape[-2])


def _meta_entropy(scores: Tensor, y: Tensor, meta: Meta) -> Tensor:
    """Return -log of the chance of each row's meta-class, (..., rows)."""
    if not meta:
        return cross_entropy(scores, y)
    anchor = torch.tensor(meta, device=y.device)
    others = anchor[y][..., None] != anchor  # (..., rows, classes)
    return -scores.log_softmax(-1).masked_fill(others, -math.inf).logsumexp(-1)


def distance(
    options: Terms, latent: Tensor, rows: Classed, anchors: Anchors, batch: Batch
) -> Tensor:
    """Return the second term: the distance to the anchors, over the classes in a batch."""
    kind = rows.own.dtype
    with torch.autocast(latent.device.type, enabled=False):  # moments want more than bfloat16
        latent = latent.to(kind)
        if options.alignment == "gaussian":
            return to_gaussians(latent, rows, anchors)
        samples = anchors.sample(rows, batch["noise"])
        if options.alignment == "transport":
            return by_transport(latent, rows, samples)
        if options.alignment == "energy":
            return by_energy(latent, rows, samples)
        return to_samples(latent, rows, samples)


def _unsure_of_all(model: nn.Module, anchors: Anchors, batch: Batch, meta: Meta) -> Tensor:
    """Return the third term over all anchors, each with as many samples as the batch has rows."""
    noise, weight = batch["noise"][..., None, :, :], batch["weight"]
    spread = anchors.deviation * noise if anchors.factors is None else noise @ anchors.factors.mT
    points = anchors.means[..., :, None, :] + spread  # (anchors, rows, k)
    scores = model.scores(points.flatten(-3, -2)).unflatten(-2, points.shape[-3:-1])
    chances = scores.log_softmax(-1)  # (anchors, rows, classes)
    if meta:
        anchor = torch.tensor(meta, device=scores.device)
        others = torch.arange(scores.shape[-3], device=scores.device)[:, None] != anchor
        chances = chances.masked_fill(others[:, None, :], -math.inf).logsumexp(-1).mT
    else:
        chances = chances.diagonal(dim1=-3, dim2=-1)  # (rows, anchors)
    known = (weight[..., None] * chances).sum(-2) / weight.sum(-1, keepdim=True)
    return -known.sum(-1)
