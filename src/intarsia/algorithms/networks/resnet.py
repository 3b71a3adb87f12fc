"""The small residual network of FeMAM's code, as an embedding of images.

A ResNet with one block at each of four widths, 8 to 64 channels: 83,852 parameters with a
classifier of 100 classes and images of three colours. By default group normalisation takes the
place of the code's batch normalisation: as many parameters, and nothing that remembers batches.
With the code's own the means and variances of batches run along in training, are averaged with the
weights, and stand in for a batch's own where the network predicts.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from intarsia.errors import FederationError
from intarsia.maths.training.layers import EPSILON, normalised, normalised_alike
from intarsia.maths.training.torch_import import Tensor, nn, torch

_WIDTHS = (8, 16, 32, 64)
_TOGETHER = 4  # channels of a group in a normalisation
_MOMENTUM = 0.1  # weight of a batch in the running statistics
_LEAST = 8  # pixels of a side: one is left after the last block
WIDTH = _WIDTHS[-1]  # of the latent space


class _GroupNorm(nn.Module):
    """Group normalisation, with what is added and the ReLU."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, images: Tensor, beside: Tensor | None = None, relu: bool = True) -> Tensor:
        """Return the images normalised, with `beside` added and without what is negative."""
        return normalised(images, self.weight, self.bias, _TOGETHER, beside=beside, relu=relu)


class _BatchNorm(nn.Module):
    """Batch normalisation, likewise."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, images: Tensor, beside: Tensor | None = None, relu: bool = True) -> Tensor:
        """Return the same; in training the statistics of the batch are added to those before."""
        if self.training:
            found, means, variances = normalised_alike(
                images, self.weight, self.bias, beside=beside, relu=relu
            )
            count = images.shape[0] * images.shape[2] * images.shape[3]
            with torch.no_grad():
                self.running_mean.lerp_(means, _MOMENTUM)
                self.running_var.lerp_(variances * (count / max(count - 1, 1)), _MOMENTUM)
            return found
        found = nn.functional.batch_norm(
            images, self.running_mean, self.running_var, self.weight, self.bias, eps=EPSILON
        )
        found = found if beside is None else found + beside
        return found.relu() if relu else found


class _Map(nn.Sequential):
    """The map to other channels."""

    def forward(self, images: Tensor) -> Tensor:
        """Return images of other channels, each an image's normalised sum of channels."""
        found: Tensor = self[1](self[0](images), relu=False)
        return found


class _Block(nn.Module):
    """Two layers of patches beside the identity, or beside a map to other channels."""

    def __init__(
        self, channels: int, out: int, stride: int, norm: Callable[[int], nn.Module]
    ) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.first_norm = norm(out)
        self.second = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.second_norm = norm(out)
        self.beside: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.beside = _Map(nn.Conv2d(channels, out, 1, stride, bias=False), norm(out))

    def forward(self, images: Tensor) -> Tensor:
        """Return images of other channels."""
        inner = self.first_norm(self.first(images))
        found: Tensor = self.second_norm(self.second(inner), self.beside(images))
        return found


class Residual(nn.Module):
    """Patches, four blocks, and the mean over what is left of the image."""

    def __init__(self, features: int, *, batch_norm: bool = False) -> None:
        super().__init__()
        norm = _BatchNorm if batch_norm else _GroupNorm
        channels, side = _shape(features)
        if side < _LEAST:
            raise FederationError(
                f"A client has {features} columns, and algorithm.embedding is 'residual', which "
                f"needs square images of at least {_LEAST} × {_LEAST} pixels of one or three "
                "colours as rows, and no column beside them: set preprocessing.intercept = false, "
                "resize the images (dataset.side), or set embedding to 'perceptron'."
            )
        self.first = nn.Conv2d(channels, _WIDTHS[0], 3, 1, 1, bias=False)
        self.norm = norm(_WIDTHS[0])
        before = (_WIDTHS[0], *_WIDTHS[:-1])
        self.blocks = nn.Sequential(
            *(
                _Block(width, out, 1 if place == 0 else 2, norm)
                for place, (width, out) in enumerate(zip(before, _WIDTHS, strict=True))
            )
        )

    def forward(self, x: Tensor, drawn: Tensor | None = None) -> Tensor:
        """Return the points of images, (images, 64), from rows of pixels, colour by colour."""
        channels, side = _shape(x.shape[-1])
        # channels last, which on a CPU takes convolutions 0.6 times the time
        images = x.reshape(-1, channels, side, side).permute(0, 2, 3, 1).contiguous()
        images = self.norm(self.first(images.permute(0, 3, 1, 2)))
        found: Tensor = self.blocks(images).mean((-2, -1))
        return found


def _shape(features: int) -> tuple[int, int]:
    """Return colours and pixels of a side of square images; no number of columns fits both."""
    for channels in (1, 3):
        side = math.isqrt(features // channels)
        if channels * side * side == features:
            return channels, side
    return 1, 0
