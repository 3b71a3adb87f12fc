"""The objective of FLIC's clients, for classes and for numbers, and how its parts train.

For classes it is the terms of (3), see `flic`.
Where classes have an anchor together, the second term takes their rows together, and the third one
asks for the meta-class: the loss of a point of µ_c is -log of the sum of the chances of all classes
that have µ_c. `meta` is the number of each class's anchor; () = each class has its own.

Where labels are numbers the anchors lie along a line:

    µ_y = N(m(y), e·I),   m(y) = y a + (1-y) b

with y in units of the federation (`label_scaling`), so that b is at the labels' mean and a one
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
from dataclasses import dataclass
from functools import lru_cache

from intarsia.algorithms.flic.hyperparameters import Flic
from intarsia.algorithms.networks import targets
from intarsia.algorithms.networks.architecture import named_width
from intarsia.algorithms.networks.client_network import training_of
from intarsia.algorithms.networks.parameter_sharing import Client
from intarsia.core.block import Block
from intarsia.maths.matching import distribution_distances as distances
from intarsia.maths.matching.distribution_distances import Anchors, Classed
from intarsia.maths.training.local_training import Batch, LocalTraining, Loss
from intarsia.maths.training.torch_import import Tensor, nn, torch

Meta = tuple[int, ...]


def draws_noise(options: Flic, *, pretraining: bool) -> bool:
    """Return whether the objective draws points of the anchors."""
    sampled = options.alignment != "gaussian"
    if pretraining:
        return sampled
    return options.calibration_weight > 0 or (sampled and options.alignment_weight > 0)


@lru_cache(maxsize=16)
def misalignment(options: Flic, meta: Meta, *, line: bool) -> Loss:
    """Return the second term alone, which embeddings train on before the first round."""

    def loss(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        latent = model.embedding(batch["x"], batch.get("dropped"))
        if line:
            away = _away(options, latent, _centres(model, batch), batch)
        else:
            anchors = _anchors(options, model)
            away = distance(options, latent, _rows(batch, anchors, meta), anchors, batch)
        return torch.zeros_like(batch["weight"]), away

    return loss


@lru_cache(maxsize=16)
def calibration(options: Flic, meta: Meta, *, line: bool) -> Loss:
    """Return the third term alone, by which a classifier learns the anchors."""

    def loss(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        if line:
            unsure = _unsure(options, model, _centres(model, batch), batch)
        else:
            anchors = _anchors(options, model)
            rows = _rows(batch, anchors, meta)
            points = anchors.sample(rows, batch["noise"])
            each = _meta_entropy(model.scores(points), batch["y"], meta)
            unsure = (rows.own * each).sum(-1)
        return torch.zeros_like(batch["weight"]), unsure

    return loss


def objective(options: Flic, meta: Meta = (), *, every: bool = False) -> Loss:
    """Return F_i of a batch; with `every`, its third term runs over all anchors."""
    aligned, calibrated = options.alignment_weight > 0, options.calibration_weight > 0
    smoothing = options.label_smoothing

    def loss(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        y, weight = batch["y"], batch["weight"]
        latent = model.embedding(batch["x"], batch.get("dropped"))
        if not aligned and not calibrated:
            each = targets.cross_entropy(model.scores(latent), y, smoothing)
            return each, torch.zeros_like(weight[..., 0])
        anchors = _anchors(options, model)
        rows = _rows(batch, anchors, meta)
        penalty = torch.zeros_like(weight[..., 0])
        if calibrated and not every:
            # both go through α and β at once; of a class as many as the batch has rows of it
            points = anchors.sample(rows, batch["noise"])
            both = model.scores(torch.cat([latent, points], -2))
            if meta or smoothing:  # of the rows' labels; points of an anchor are of its class
                own, drawn = both.chunk(2, -2)
                each = targets.cross_entropy(own, y, smoothing)
                unsure = _meta_entropy(drawn, y, meta)
            else:
                each, unsure = targets.cross_entropy(both, torch.cat([y, y], -1)).chunk(2, -1)
            penalty = penalty + options.calibration_weight * (rows.own * unsure).sum(-1)
        else:
            each = targets.cross_entropy(model.scores(latent), y, smoothing)
        if calibrated and every:
            unsure = _unsure_of_all(model, anchors, batch, meta)
            penalty = penalty + options.calibration_weight * unsure
        if aligned:
            away = distance(options, latent, rows, anchors, batch)
            penalty = penalty + options.alignment_weight * away
        return each, penalty

    return loss


def _anchors(options: Flic, model: nn.Module) -> Anchors:
    factors = model.anchors.factors.tril() if hasattr(model.anchors, "factors") else None
    return Anchors(model.anchors.means, math.sqrt(options.anchor_variance), factors)


def _rows(batch: Batch, anchors: Anchors, meta: Meta) -> Classed:
    """Return the rows by their anchors."""
    y = batch["y"]
    if meta:
        y = torch.tensor(meta, device=y.device)[y]
    weight = batch["weight"]
    with torch.autocast(weight.device.type, enabled=False):
        return distances.classed(y, weight, anchors.means.shape[-2])


def _meta_entropy(scores: Tensor, y: Tensor, meta: Meta) -> Tensor:
    """Return -log of the chance of each row's meta-class, (..., rows)."""
    if not meta:
        return targets.cross_entropy(scores, y)
    anchor = torch.tensor(meta, device=y.device)
    others = anchor[y][..., None] != anchor  # (..., rows, classes)
    return -scores.log_softmax(-1).masked_fill(others, -math.inf).logsumexp(-1)


def distance(
    options: Flic, latent: Tensor, rows: Classed, anchors: Anchors, batch: Batch
) -> Tensor:
    """Return the second term: the distance to the anchors, over the classes in a batch."""
    kind = batch["weight"].dtype
    with torch.autocast(latent.device.type, enabled=False):  # moments want more than bfloat16
        latent = latent.to(kind)
        if options.alignment == "gaussian":
            return distances.to_gaussians(latent, rows, anchors)
        samples = anchors.sample(rows, batch["noise"])
        if options.alignment == "transport":
            return distances.by_transport(latent, rows, samples)
        if options.alignment == "energy":
            return distances.by_energy(latent, rows, samples)
        return distances.to_samples(latent, rows, samples)


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


def line_objective(options: Flic) -> Loss:
    """Return F_i of a batch."""

    def loss(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        latent, weight = model.embedding(batch["x"], batch.get("dropped")), batch["weight"]
        each = targets.row_losses(model.scores(latent), batch["y"])
        penalty = torch.zeros_like(weight[..., 0])
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


def _unsure(options: Flic, model: nn.Module, centres: Tensor, batch: Batch) -> Tensor:
    points = centres + math.sqrt(options.anchor_variance) * batch["noise"]
    return _mean(targets.row_losses(model.scores(points), batch["y"]), batch)


def _mean(each: Tensor, batch: Batch) -> Tensor:
    """Return the mean over the rows that count."""
    weight = batch["weight"]
    return (weight * each).sum(-1) / weight.sum(-1)


def _away(options: Flic, latent: Tensor, centres: Tensor, batch: Batch) -> Tensor:
    """Return the second term."""
    y = batch["y"]
    away = latent - centres
    if not options.label_bins:
        spread = options.anchor_variance * latent.shape[-1]
        return _mean(away.square().sum(-1), batch) + spread
    level = torch.special.ndtr(y) * options.label_bins
    rows = distances.classed(
        level.long().clamp(max=options.label_bins - 1), batch["weight"], options.label_bins
    )
    origin = latent.new_zeros(options.label_bins, latent.shape[-1])
    anchors = Anchors(origin, math.sqrt(options.anchor_variance))
    return distance(options, away, rows, anchors, batch)


@dataclass(frozen=True, eq=False)
class Trainings:
    """How the parts of a client's network train; kept, as compiled functions belong to them."""

    pretraining: LocalTraining
    realignment: LocalTraining
    calibration: LocalTraining  # of β, at a new client
    local: LocalTraining
    final: LocalTraining
    alone: LocalTraining  # of a network of the client's own: in a round, and at the end
    alone_at_last: LocalTraining
    shared: LocalTraining | None  # α, if it moves apart, and the anchors, if they are read
    anchors: LocalTraining | None


@lru_cache(maxsize=16)
def _trainings(options: Flic, outputs: int, meta: Meta, features: int) -> Trainings:
    line, plain = outputs == 1, targets.smoothed(options.label_smoothing)
    before, alone = misalignment(options, meta, line=line), calibration(options, meta, line=line)
    if line:
        during = after = line_objective(options)
    else:
        during = objective(options, meta)
        after = objective(options, meta, every=options.anchor_classes == "all")

    def over(loss: Loss, *parts: str, epochs: int) -> LocalTraining:
        first = loss is before
        noisy = loss is alone or (loss is not plain and draws_noise(options, pretraining=first))
        return training_of(
            options,
            outputs,
            loss,
            tuple(f"{part}.*" for part in parts),
            epochs=epochs,
            batch=options.pretraining_batch if first else options.batch,
            noise=options.latent if noisy else 0,
            features=features,
        )

    drawn_to = options.calibration_weight > 0 or options.alignment_weight > 0
    anchors = ("anchors",) if drawn_to else ()
    head = ("classifier", "shared") if options.variant == "hl" else ("classifier",)
    own, layer = {
        "fedrep": (head[:1], head[1:]),
        "fedavg-ft": (head, ()),
        "l2gd": (head, ("common",)),
    }[options.scheme]
    own, epochs = ("embedding", *own), options.shared_epochs
    every = ("embedding", *head, *(("common",) if options.scheme == "l2gd" else ()))
    return Trainings(
        pretraining=over(before, "embedding", epochs=options.pretraining_epochs),
        realignment=over(before, "embedding", epochs=options.alignment_epochs),
        calibration=over(alone, "classifier", epochs=options.pretraining_epochs),
        local=over(during, *own, epochs=options.local_epochs),
        final=over(during, *own, epochs=options.final_epochs),
        alone=over(plain, *every, epochs=options.local_epochs),
        alone_at_last=over(plain, *every, epochs=options.final_epochs),
        shared=over(after, *layer, *anchors, epochs=epochs) if layer or anchors else None,
        anchors=over(after, *anchors, epochs=epochs) if anchors else None,
    )


def trainings_of(client: Client, block: Block) -> Trainings:
    """Return how the parts of a client's network train."""
    width = named_width(client.options.architecture, block)
    return _trainings(client.options, client.outputs, client.anchors, width)
