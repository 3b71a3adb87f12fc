"""The small residual network of FeMAM's code, as an embedding of images.

A ResNet with one block at each of four widths, 8 to 64 channels: 83,852 parameters with a
classifier of 100 classes and images of three colours. Group normalisation takes the place of batch
normalisation: as many parameters, and nothing that remembers other clients' batches.
"""

from __future__ import annotations

import math

from intarsia.errors import FederationError
from intarsia.maths.tensors import Tensor, nn

__all__ = ["WIDTH", "Residual"]

_WIDTHS = (8, 16, 32, 64)
_TOGETHER = 4  # channels of a group in a normalisation
_LEAST = 8  # pixels of a side: one is left after the last block
WIDTH = _WIDTHS[-1]  # of the latent space


class _Block(nn.Module):
    """Two layers of patches beside the identity, or beside a map to other channels."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.first_norm = nn.GroupNorm(out // _TOGETHER, out)
        self.second = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.second_norm = nn.GroupNorm(out // _TOGETHER, out)
        self.beside: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.beside = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride, bias=False),
                nn.GroupNorm(out // _TOGETHER, out),
            )

    def forward(self, images: Tensor) -> Tensor:
        """Return images of other channels."""
        inner = self.first_norm(self.first(images)).relu()
        found: Tensor = (self.second_norm(self.second(inner)) + self.beside(images)).relu()
        return found


class Residual(nn.Module):
    """Patches, four blocks, and the mean over what is left of the image."""

    def __init__(self, features: int) -> None:
        super().__init__()
        channels, side = _shape(features)
        if side < _LEAST:
            raise FederationError(
                f"A client has {features} columns, and algorithm.embedding is 'residual', which "
                f"needs square images of at least {_LEAST} × {_LEAST} pixels of one or three "
                "colours as rows, and no column beside them: set preprocessing.intercept = false, "
                "resize the images (dataset.side), or set embedding to 'perceptron'."
            )
        self.first = nn.Conv2d(channels, _WIDTHS[0], 3, 1, 1, bias=False)
        self.norm = nn.GroupNorm(_WIDTHS[0] // _TOGETHER, _WIDTHS[0])
        before = (_WIDTHS[0], *_WIDTHS[:-1])
        self.blocks = nn.Sequential(
            *(
                _Block(width, out, 1 if place == 0 else 2)
                for place, (width, out) in enumerate(zip(before, _WIDTHS, strict=True))
            )
        )

    def forward(self, x: Tensor, drawn: Tensor | None = None) -> Tensor:
        """Return the points of images, (images, 64), from rows of pixels, colour by colour."""
        channels, side = _shape(x.shape[-1])
        images = self.norm(self.first(x.reshape(-1, channels, side, side))).relu()
        found: Tensor = self.blocks(images).mean((-2, -1))
        return found


def _shape(features: int) -> tuple[int, int]:
    """Return colours and pixels of a side of square images; no number of columns fits both."""
    for channels in (1, 3):
        side = math.isqrt(features // channels)
        if channels * side * side == features:
            return channels, side
    return 1, 0
