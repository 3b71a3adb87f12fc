"""The embedding φ of a client's own features: what takes them to the latent space.

    perceptron     linear layers with ReLU between them, of any number of features
    convolutional  two layers of 5 × 5 patches, each with pooling and a sigmoid, then a linear one:
                   for square images of at least 16 × 16 pixels, which come as rows of pixels

Their widths follow from the parameters and the rows that they are given, so that one structure
serves clients with different numbers of features.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, get_args

from intarsia.errors import FederationError
from intarsia.maths.stacked_linear import StackedLinear
from intarsia.maths.tensors import Tensor, nn

__all__ = ["Convolutional", "Kind", "embedding", "layers", "ragged", "width_of_structure"]

Kind = Literal["perceptron", "convolutional"]
_PATCH = 5  # pixels
_CHANNELS = (32, 20)
_LEAST = 16  # pixels of a side: one is left after both layers


def embedding(kind: Kind, features: int, hidden: int, latent: int) -> nn.Module:
    """Return a new φ; `hidden` is the width of the perceptron's two hidden layers.

    Raises
    ------
    FederationError
        If the features are no square image that is large enough for patches.
    """
    if kind == "convolutional":
        return Convolutional(features, latent)
    return nn.Sequential(
        StackedLinear(features, hidden),
        nn.ReLU(),
        StackedLinear(hidden, hidden),
        nn.ReLU(),
        StackedLinear(hidden, latent),
    )


def ragged(kind: Kind) -> Mapping[str, int]:
    """Return the axes along which clients that train at once may differ."""
    return {"x": 1, "embedding.0.weight": 1} if kind == "perceptron" else {}


def layers(kind: Kind) -> tuple[str, ...]:
    """Return patterns of the parameters of each layer, from the features on."""
    names = ("first", "second", "last") if kind == "convolutional" else ("0", "2", "4")
    return tuple(f"embedding.{name}.*" for name in names)


def width_of_structure(kind: Kind) -> int:
    """Return a number of features with which a structure can be made."""
    return _LEAST**2 if kind == "convolutional" else 1


class Convolutional(nn.Module):
    """The network of Rakotomamonjy et al. (2024), section S3.3, for digits.

    They name a last ReLU too; it is left out, as their code leaves it out: anchors lie anywhere in
    the latent space, and a ReLU keeps to its positive corner.
    """

    def __init__(self, features: int, latent: int) -> None:
        super().__init__()
        side = math.isqrt(features)
        if side * side != features or side < _LEAST:
            raise FederationError(
                f"A client has {features} columns, and algorithm.embedding is 'convolutional', "
                f"which needs square images of at least {_LEAST} × {_LEAST} pixels as rows, and no "
                "column beside them: set preprocessing.intercept = false, resize the images "
                f"(dataset.side), or set embedding to {get_args(Kind)[0]!r}."
            )
        first, second = _CHANNELS
        left = _pooled(_pooled(side))
        self.first = nn.Conv2d(1, first, _PATCH)
        self.second = nn.Conv2d(first, second, _PATCH)
        self.last = nn.Linear(second * left * left, latent)

    def forward(self, x: Tensor) -> Tensor:
        """Return the points of images, (images, latent), from rows of pixels, (images, pixels)."""
        side = math.isqrt(x.shape[-1])
        # with these strides torch computes with channels last: 0.6 times the time on a CPU
        images = x.reshape(-1, side, side, 1).permute(0, 3, 1, 2)
        for layer in (self.first, self.second):
            images = nn.functional.max_pool2d(layer(images), 2).sigmoid()
        found: Tensor = self.last(images.flatten(1))
        return found


def _pooled(side: int) -> int:
    """Return the side that a layer and its pooling leave."""
    return (side - _PATCH + 1) // 2
