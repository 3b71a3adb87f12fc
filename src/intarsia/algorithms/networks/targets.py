"""What a network learns to say of a row: its class, or a number.

For classes it gives a score of each, (rows, classes), and its loss is the cross-entropy. For
numbers it has one output, (rows, 1), in units of the federation: a label y is (y - centre)/spread
there, with mean and deviation of all clients' labels (`label_scaling`). The loss is half the
squared error, in these units while it trains, and in the label's own where it is told.
"""

from __future__ import annotations

from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from intarsia.algorithms.networks.training_rows import is_labelled
from intarsia.core.block import Array, Block
from intarsia.core.schema import Schema
from intarsia.maths.training.local_training import Batch, Loss
from intarsia.maths.training.torch_import import Tensor, nn, torch


def output_count(schema: Schema) -> int:
    """Return how many outputs a network has: 1 for numbers, else one for each class, at least 2."""
    return 1 if schema.labels.task == "regression" else max(2, len(schema.labels.classes))


def label_tensor(y: Array, like: Tensor, outputs: int) -> Tensor:
    """Return labels as a network takes them: numbers of classes, or numbers of `like`'s kind.

    Of two classes, the first is stored as -1.
    """
    if outputs == 1:
        return torch.from_numpy(y).to(like.dtype)
    return torch.from_numpy(_classes(y))


def _classes(y: Array) -> NDArray[np.int64]:
    return np.maximum(y, 0.0).astype(np.int64)


def cross_entropy(scores: Tensor, y: Tensor, smoothing: float = 0.0) -> Tensor:
    """Return each row's cross-entropy, (..., rows), of its scores, (..., rows, outputs).

    `smoothing` is the share of a label that all classes have alike.
    """
    if not smoothing:
        return -scores.log_softmax(-1).gather(-1, y[..., None])[..., 0]
    chances = scores.log_softmax(-1)
    own = chances.gather(-1, y[..., None])[..., 0]
    return -(1 - smoothing) * own - smoothing * chances.mean(-1)


def balanced(y: Tensor, outputs: int) -> Tensor:
    """Return what each row's loss is multiplied by so that classes count alike, (rows,).

    Of K classes that are there one with n_c of the n rows has n/(K n_c), which is 1 in the mean.
    """
    counts = torch.bincount(y, minlength=outputs).double()
    found: Tensor = len(y) / ((counts > 0).sum() * counts[y])
    return found


def row_losses(scores: Tensor, y: Tensor, smoothing: float = 0.0) -> Tensor:
    """Return each row's loss, (..., rows), of its scores, (..., rows, outputs)."""
    if scores.shape[-1] > 1:
        return cross_entropy(scores, y, smoothing)
    return (scores[..., 0] - y).square() / 2


def plain_loss(model: nn.Module, batch: Batch, smoothing: float = 0.0) -> Tensor:
    """Return the losses of a batch."""
    return row_losses(model(batch["x"], batch.get("dropped"))[1], batch["y"], smoothing)


class _Weighed:
    """A loss whose rows are multiplied by what the batch says that they count for."""

    def __init__(self, loss: Loss) -> None:
        self._loss = loss

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor | tuple[Tensor, Tensor]:
        found = self._loss(model, batch)
        if isinstance(found, tuple):
            each, penalty = found
            return each * batch["importance"], penalty
        return found * batch["importance"]


@lru_cache(maxsize=64)  # a training is kept by its objective
def weighed(loss: Loss, class_weights: str) -> Loss:
    """Return a loss by the classes' weights; as it is where there are none."""
    return loss if class_weights == "none" else _Weighed(loss)


def importance(y: Tensor, like: Tensor, outputs: int, class_weights: str) -> dict[str, Tensor]:
    """Return what rows count for by their classes, as further rows of a learner; or none."""
    if class_weights == "none":
        return {}
    return {"importance": balanced(y, outputs).to(like.dtype)}


@lru_cache(maxsize=64)
def smoothed(smoothing: float) -> Loss:
    """Return `plain_loss` with some smoothing."""
    return partial(plain_loss, smoothing=smoothing) if smoothing else plain_loss


def predict(scores: Array, centre: float, spread: float) -> Array:
    """Return log p/(1-p) of the classes, or the numbers, (outputs, samples), from scores.

    `scores` are (samples, outputs of the network); for two classes the odds are of the second.
    """
    return centre + spread * scores.T if scores.shape[1] == 1 else odds(scores)


def odds(scores: Array) -> Array:
    """Return log p/(1-p) of the classes from scores, (samples, classes).

    The largest is the class that a network names, and the logistic loss takes each as it is.
    """
    scores = scores.T
    if len(scores) == 2:
        return scores[1:] - scores[:1]
    first = (scores.argmax(axis=0), np.arange(scores.shape[1]))  # each sample's largest
    weights = np.exp(scores - scores[first])
    # of any but the largest at most half of the sum is taken off, which costs no precision
    others = weights.sum(axis=0) - weights
    others[first] = 1.0
    rest = scores[first] + np.log(others)
    without = scores.copy()
    without[first] = -np.inf
    rest[first] = logsumexp(without, axis=0)
    found: Array = scores - rest
    return found


def loss_of_scores(scores: Array, block: Block, centre: float = 0.0, spread: float = 1.0) -> Array:
    """Return Σ of the losses over a block's labelled rows, and their number, (2,).

    `scores` are of all rows, (rows, outputs of the network).
    """
    held = is_labelled(block)
    y = np.zeros(0) if block.y is None else block.y[held]
    scores = scores[held]
    if scores.shape[1] == 1:
        each = (centre + spread * scores[:, 0] - y) ** 2 / 2
    else:
        each = logsumexp(scores, axis=1) - scores[np.arange(len(y)), _classes(y)]
    return np.array([each.sum(), float(len(y))])
