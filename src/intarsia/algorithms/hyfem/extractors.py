"""Extractors: what takes the values of one feature block to features, by the kind of block.

    perceptron        linear layers with ReLU after each; for vectors
    linear            one linear layer
    identity          the values themselves, such as embeddings that were made before
    convolutional     two layers of 3 × 3 patches with ReLU and pooling, a linear one with ReLU; for
                      images, (channels, height, width)
    convolutional-1d  the same with patches of 5 in a row; for series, (channels, length)
    resnet18          He et al. (2016) with group normalisation, which remembers no batch, and a
                      first layer for small images; then a linear layer with ReLU
    module:name       a function of the user's, (shape, width) -> nn.Module, which gives features,
                      (rows, width), for rows of values

A block has the same extractor at every client that holds it. The first three take several learners
stacked, and any number of values: one structure serves blocks of different widths.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from intarsia.algorithms.networks import named_modules
from intarsia.errors import ExperimentError, FederationError, nearest
from intarsia.maths.training.layers import StackedLinear
from intarsia.maths.training.torch_import import Tensor, nn

KINDS = ("perceptron", "linear", "identity", "convolutional", "convolutional-1d", "resnet18")
_PLAIN = KINDS[:3]  # of vectors, stacked
_AXES = {"convolutional": 3, "convolutional-1d": 2, "resnet18": 3}  # of a sample's values
_FITTING = {1: "perceptron", 2: "convolutional-1d", 3: "convolutional"}  # by the axes
_CHANNELS = (16, 32)
_STAGES = (64, 128, 256, 512)  # channels of a ResNet-18
_GROUPS = 32  # of channels, in a normalisation


@dataclass(frozen=True)
class Extractor:
    """What the extractor of a block is made of."""

    kind: str
    shape: tuple[int, ...]  # of a sample's values
    width: int  # features that it gives
    hidden: tuple[int, ...] = ()  # units of a perceptron's hidden layers

    @property
    def stacked(self) -> bool:
        """Return whether it takes several learners, stacked in front of all axes."""
        return self.kind in _PLAIN

    @property
    def structure(self) -> Extractor:
        """Return the extractor whose module serves this one, whatever the width of its values."""
        return replace(self, shape=(1,)) if self.kind in ("perceptron", "linear") else self

    def ragged(self, slot: int) -> Mapping[str, int]:
        """Return the axes along which extractors in one slot of networks may differ."""
        if self.kind not in ("perceptron", "linear"):
            return {}
        return {f"x{slot}": 1, f"extractors.{slot}.0.weight": 1}


def check_kind(kind: str, key: str) -> None:
    """Raise ExperimentError unless there is such an extractor."""
    if ":" in kind:
        named_modules.named(kind)
    elif kind not in (*KINDS, "auto"):
        raise ExperimentError(
            f"algorithm.{key} is {kind!r}; {nearest(kind, (*KINDS, 'auto'))}, or name a function "
            'of your own, such as "networks:Scans".'
        )


def extractor(
    name: str, kind: str, shape: tuple[int, ...], width: int, hidden: tuple[int, ...]
) -> Extractor:
    """Return what the extractor of the block of this name is made of; "auto" goes by its shape.

    Raises
    ------
    FederationError
        If the kind does not fit the block's values.
    """
    kind = _FITTING.get(len(shape), "perceptron") if kind == "auto" else kind
    if ":" in kind:
        return Extractor(kind, shape, width)
    size = math.prod(shape)
    axes = _AXES.get(kind, 1)
    if axes > 1 and len(shape) != axes:
        raise FederationError(
            f"The feature block {name!r} has values of shape {shape}, and its extractor is "
            f"{kind!r}, which needs {('channels, height, width', 'channels, length')[axes == 2]}: "
            'say the block\'s shape, or set algorithm.extractors for it to "perceptron".'
        )
    if axes > 1 and min(shape[1:]) < 4:
        raise FederationError(
            f"The feature block {name!r} has values of shape {shape}, and its extractor {kind!r} "
            'needs at least 4 along each side: set algorithm.extractors for it to "perceptron".'
        )
    if kind in _PLAIN:
        shape = (size,)
    if kind == "identity":
        width = size
    return Extractor(kind, shape, width, hidden if kind == "perceptron" else ())


def module_of(made_of: Extractor) -> nn.Module:
    """Return a new extractor.

    Raises
    ------
    ExperimentError
        If a function of the user's gives no module, or one that keeps buffers.
    """
    size, kind = math.prod(made_of.shape), made_of.kind
    if kind == "perceptron":
        layers: list[nn.Module] = []
        for width in (*made_of.hidden, made_of.width):
            layers += [StackedLinear(size, width), nn.ReLU()]
            size = width
        return nn.Sequential(*layers)
    if kind == "linear":
        return nn.Sequential(StackedLinear(size, made_of.width))
    if kind == "identity":
        return nn.Identity()
    if kind in ("convolutional", "convolutional-1d"):
        return _Convolutional(made_of)
    if kind == "resnet18":
        return _ResNet18(made_of)
    what = "a function of the shape of a sample's values and the number of features, (shape, width)"
    given = (made_of.shape, made_of.width)
    values = (math.prod(made_of.shape), "values")
    return named_modules.averaged(kind, given, values, made_of.width, f"{what} -> torch.nn.Module")


class _Convolutional(nn.Module):
    """Patches, pooling, patches, pooling, a linear layer."""

    def __init__(self, made_of: Extractor) -> None:
        super().__init__()
        self._shape = made_of.shape
        first, second = _CHANNELS
        self._flat = len(made_of.shape) == 2
        convolution, patch = (nn.Conv1d, 5) if self._flat else (nn.Conv2d, 3)
        self.first = convolution(made_of.shape[0], first, patch, padding=patch // 2)
        self.second = convolution(first, second, patch, padding=patch // 2)
        left = math.prod(side // 2 // 2 for side in made_of.shape[1:])
        self.last = nn.Linear(second * left, made_of.width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the features of rows of values, (rows, width)."""
        pool = nn.functional.max_pool1d if self._flat else nn.functional.max_pool2d
        values = x.reshape(-1, *self._shape)
        for layer in (self.first, self.second):
            values = pool(layer(values).relu(), 2)
        found: Tensor = self.last(values.flatten(1)).relu()
        return found


class _Residual(nn.Module):
    """Two layers of patches beside the identity, or beside a map to other channels."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.GroupNorm(_GROUPS, out) for _ in range(2)])
        self.beside: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.beside = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride, bias=False), nn.GroupNorm(_GROUPS, out)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Return images of other channels."""
        inner = self.norms[0](self.first(x)).relu()
        found: Tensor = (self.norms[1](self.second(inner)) + self.beside(x)).relu()
        return found


class _ResNet18(nn.Module):
    """A ResNet-18 for small images: 3 × 3 patches first, and no pooling after them."""

    def __init__(self, made_of: Extractor) -> None:
        super().__init__()
        self._shape = made_of.shape
        self.first = nn.Conv2d(made_of.shape[0], _STAGES[0], 3, 1, 1, bias=False)
        self.norm = nn.GroupNorm(_GROUPS, _STAGES[0])
        parts: list[nn.Module] = []
        before = _STAGES[0]
        for place, channels in enumerate(_STAGES):
            parts += [
                _Residual(before, channels, 1 if place == 0 else 2),
                _Residual(channels, channels, 1),
            ]
            before = channels
        self.stages = nn.Sequential(*parts)
        self.last = nn.Linear(before, made_of.width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the features of rows of values, (rows, width)."""
        values = self.norm(self.first(x.reshape(-1, *self._shape))).relu()
        found: Tensor = self.last(self.stages(values).mean((-2, -1))).relu()
        return found
