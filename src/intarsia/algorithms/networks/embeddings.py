"""The embedding φ of a client's own features: what takes them to the latent space.

    linear         none: the latent space is that of the features, so that the network is linear
    perceptron     linear layers with ReLU between them, of any number of features
    convolutional  two layers of 5 × 5 patches, each with pooling and a sigmoid, then a linear one:
                   for square images of at least 16 × 16 pixels, which come as rows of pixels
    residual       the ResNet of FeMAM's code, see `resnet`; its latent space has a width
                   of its own
    residual-batch the same with batch normalisation, whose statistics are averaged with the weights
    module:name    a function of the user's, (features, latent) -> nn.Module, which gives points of
                   the latent space, (rows, latent), for rows of features by the order of names

Their widths follow from the parameters and the rows that they are given, so that one structure
serves clients with different numbers of features.

Dropout leaves out units of a perceptron's hidden layers, or channels of the second convolution, and
scales what is kept. Which ones say standard normal numbers that a client draws for each row from
its own stream; without them nothing is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from statistics import NormalDist

from intarsia.algorithms.networks import named_modules
from intarsia.algorithms.networks.resnet import WIDTH, Residual
from intarsia.errors import ExperimentError, FederationError, nearest
from intarsia.maths.training.layers import StackedLinear
from intarsia.maths.training.sparse_rows import Picked
from intarsia.maths.training.torch_import import Tensor, nn, torch

COMMON_WIDTH = ("perceptron", "convolutional")  # to a latent space of one width for all
KINDS = (*COMMON_WIDTH, "linear", "residual", "residual-batch")
_RESIDUAL = ("residual", "residual-batch")
IMAGES = ("convolutional", *_RESIDUAL)  # those of pictures
_PATCH = 5  # pixels
_CHANNELS = (32, 20)
_LEAST = 16  # pixels of a side: one is left after both layers


def is_named(kind: str) -> bool:
    """Return whether an embedding is what a function of the user's makes."""
    return ":" in kind


def check_kind(kind: str, kinds: Sequence[str]) -> None:
    """Raise ExperimentError unless an embedding is one of some kinds, or a function of the user's.

    Whoever names one has its module imported.
    """
    if is_named(kind):
        named_modules.named(kind)
    elif kind not in kinds:
        raise ExperimentError(
            f"algorithm.embedding is {kind!r}; {nearest(kind, kinds)}, or name a function of your "
            'own, such as "networks:Scans".'
        )


def embedding(
    kind: str, features: int, hidden: int, latent: int, dropout: float = 0.0
) -> nn.Module:
    """Return a new φ; `hidden` is the width of the perceptron's two hidden layers.

    `dropout` is the chance that a unit is left out where the numbers for it are given. Patches
    refuse features that are no square image which is large enough.
    """
    if kind == "convolutional":
        return Convolutional(features, latent, dropout)
    if kind == "linear":
        return NoEmbedding()
    if kind in _RESIDUAL:
        return Residual(features, batch_norm=kind == "residual-batch")
    if is_named(kind):
        return Named(kind, features, latent)
    return Perceptron(features, hidden, latent, dropout)


class Named(nn.Module):
    """What a function of the user's makes; of rows of another width, what it makes for these."""

    def __init__(self, name: str, features: int, latent: int) -> None:
        super().__init__()
        self._made_by, self._features = (name, latent), features
        self.made = named_modules.embedding(name, features, latent)

    def forward(self, x: Tensor, drawn: Tensor | None = None) -> Tensor:
        """Return the points of rows, (rows, latent)."""
        other = self.of_width(x.shape[-1])
        own = dict(self.made.named_parameters())
        found: Tensor = torch.func.functional_call(other, own, (x,), strict=True)
        return found

    def of_width(self, features: int) -> nn.Module:
        """Return what takes rows of a width: made before such come batched, as it is drawn."""
        if features == self._features:
            return self.made
        return _named(*self._made_by, features, training=self.training)


@lru_cache(maxsize=1024)
def _named(name: str, latent: int, features: int, *, training: bool) -> nn.Module:
    """Return a module whose own values are not read."""
    return named_modules.embedding(name, features, latent).train(training)


class NoEmbedding(nn.Module):
    """Points of the latent space that are the features themselves."""

    def forward(self, x: Picked, drawn: Tensor | None = None) -> Picked:
        """Return rows as they are."""
        return x


def latent_width(kind: str, features: int, latent: int) -> int:
    """Return the width of the latent space."""
    if kind in _RESIDUAL:
        return WIDTH
    return features if kind == "linear" else latent


def ragged(kind: str) -> Mapping[str, int]:
    """Return the axes along which clients that train at once may differ."""
    if not is_stacked(kind):
        return {}
    return {"x": 1, ("classifier" if kind == "linear" else "embedding.0") + ".weight": 1}


def is_stacked(kind: str) -> bool:
    """Return whether an embedding takes learners in front of all axes, and rows by some columns."""
    return kind not in IMAGES and not is_named(kind)


def numbers_of_dropout(kind: str, hidden: int) -> int:
    """Return how many numbers a row needs for the units that are left out."""
    return _CHANNELS[1] if kind == "convolutional" else 2 * hidden


def layers(kind: str) -> tuple[str, ...]:
    """Return patterns of the parameters of each layer, from the features on."""
    if kind == "linear":
        return ()
    if kind in _RESIDUAL or is_named(kind):
        return ("embedding.*",)
    names = ("first", "second", "last") if kind == "convolutional" else ("0", "2", "4")
    return tuple(f"embedding.{name}.*" for name in names)


def width_of_structure(kind: str) -> int:
    """Return a number of features with which a structure can be made; not of a user's function."""
    return _LEAST**2 if kind in IMAGES else 1


class _Dropout:
    """Which units are left out: those whose number, standard normal, is in the lowest part."""

    def __init__(self, chance: float) -> None:
        self._least = NormalDist().inv_cdf(chance) if chance > 0.0 else -math.inf
        self._scale = 1.0 / (1.0 - chance)

    def factors(self, drawn: Tensor) -> Tensor:
        """Return what the units are multiplied by: 0, or what makes up for those left out."""
        return (drawn > self._least).to(drawn.dtype) * self._scale


class Perceptron(nn.Sequential):
    """Linear layers with ReLU between them."""

    def __init__(self, features: int, hidden: int, latent: int, dropout: float) -> None:
        super().__init__(
            StackedLinear(features, hidden),
            nn.ReLU(),
            StackedLinear(hidden, hidden),
            nn.ReLU(),
            StackedLinear(hidden, latent),
        )
        self._dropout = _Dropout(dropout)

    def forward(self, x: Picked, drawn: Tensor | None = None) -> Tensor:
        """Return the points of rows, (..., rows, latent); `drawn` (..., rows, 2 hidden)."""
        if drawn is None:
            found: Tensor = super().forward(x)
            return found
        first, second = self._dropout.factors(drawn).chunk(2, -1)
        found = self[4](self[3](self[2](self[1](self[0](x)) * first)) * second)
        return found


class Convolutional(nn.Module):
    """The network of Rakotomamonjy et al. (2024), section S3.3, for digits.

    They name a last ReLU too; it is left out, as their code leaves it out: anchors lie anywhere in
    the latent space, and a ReLU keeps to its positive corner.
    """

    def __init__(self, features: int, latent: int, dropout: float = 0.0) -> None:
        super().__init__()
        self._dropout = _Dropout(dropout)
        side = math.isqrt(features)
        if side * side != features or side < _LEAST:
            raise FederationError(
                f"A client has {features} columns, and algorithm.embedding is 'convolutional', "
                f"which needs square images of at least {_LEAST} × {_LEAST} pixels as rows, and no "
                "column beside them: set preprocessing.intercept = false, resize the images "
                f"(dataset.side), or set embedding to {COMMON_WIDTH[0]!r}."
            )
        first, second = _CHANNELS
        left = _pooled(_pooled(side))
        self.first = nn.Conv2d(1, first, _PATCH)
        self.second = nn.Conv2d(first, second, _PATCH)
        self.last = nn.Linear(second * left * left, latent)

    def forward(self, x: Tensor, drawn: Tensor | None = None) -> Tensor:
        """Return the points of images, (images, latent), from rows of pixels, (images, pixels).

        `drawn` is (images, channels).
        """
        side = math.isqrt(x.shape[-1])
        # with these strides torch computes with channels last: 0.6 times the time on a CPU
        images = x.reshape(-1, side, side, 1).permute(0, 3, 1, 2)
        images = nn.functional.max_pool2d(self.first(images), 2).sigmoid()
        images = self.second(images)
        if drawn is not None:
            images = images * self._dropout.factors(drawn)[..., None, None]
        images = nn.functional.max_pool2d(images, 2).sigmoid()
        found: Tensor = self.last(images.flatten(1))
        return found


def _pooled(side: int) -> int:
    """Return the side that a layer and its pooling leave."""
    return (side - _PATCH + 1) // 2
