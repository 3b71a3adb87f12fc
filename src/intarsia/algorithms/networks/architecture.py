"""What a client's network is made of: φ, α, β and the anchors, as a module.

Its parameters' names say which part they are of, "embedding.*", "shared.*" (α), "classifier.*" (β),
"common.*" (an α and a β of all clients beside the own ones) and "anchors.*". All but convolutions
take several learners, stacked in front of all axes.

A client may have several such networks, whose scores add up: one of each level. The names of their
parameters begin with "levels.1.", "levels.2.", ….
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from intarsia.algorithms.networks.embeddings import (
    AnyKind,
    Convolutional,
    embedding,
    latent_width,
    width_of_structure,
)
from intarsia.algorithms.networks.resnet import Residual
from intarsia.algorithms.networks.targets import said
from intarsia.algorithms.networks.training_rows import columns, dense
from intarsia.core.block import Array, Block, Labels
from intarsia.errors import ExperimentError
from intarsia.maths.training.layers import StackedLinear, affine
from intarsia.maths.training.locks import applied
from intarsia.maths.training.torch_import import Tensor, nn, torch

Arrays = Mapping[str, NDArray[Any]]  # a network's parameters by their dotted names


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """What a network is made of, apart from the client's own features."""

    hidden: int  # units of φ's two hidden layers, if it is a perceptron
    latent: int  # k, the width of the latent space
    embedding: AnyKind = "perceptron"  # what φ is
    dropout: float = 0.0  # chance that a unit of φ is left out in training
    layer: bool = False  # whether there is an α
    anchors: bool = False  # whether it holds the anchors' means
    covariances: bool = False  # and triangular factors of their covariances
    mixing: float = (
        0.0  # ω, of common α and β in the client's: ω common + (1-ω) own; 0: there are none
    )
    # what is made of the scores of several levels of such networks; "": there is one network
    additive: Literal["", "sum", "mean"] = ""

    def outputs(self, parameters: Arrays, block: Block) -> tuple[Array, Array]:
        """Return the embedded samples, (samples, k), and their scores, (samples, outputs).

        Of a network of several levels the embedding is that of the first, and levels that have none
        of their own read its points.
        """
        if self.additive:
            first, *others = levels_of(parameters).values()
            common = {name: own for name, own in first.items() if name.startswith("embedding.")}
            each = [outputs_of({**common, **own}, self, block) for own in (first, *others)]
            scores = np.add.reduce([own for _, own in each])
            return each[0][0], scores / (len(each) if self.additive == "mean" else 1)
        return outputs_of(parameters, self, block)

    def predict(self, parameters: Arrays, block: Block, labels: Labels) -> Array:
        """Return the log-odds of the classes, or the numbers, (outputs, samples)."""
        centre, spread = (
            float(parameters.get(f"labels.{name}", other))
            for name, other in (("centre", 0.0), ("spread", 1.0))
        )
        return said(self.outputs(_weights(parameters), block)[1], centre, spread)

    def embed(self, parameters: Arrays, block: Block) -> Array:
        """Return the points of the common latent space, (samples, k)."""
        return self.outputs(_weights(parameters), block)[0]

    def first_layer(
        self, parameters: Arrays, blocks: Sequence[str], block: Block
    ) -> dict[str, Array]:
        """Refuse: there are no feature blocks."""
        raise no_blocks()

    def scores_of(self, parameters: Arrays, total: Array) -> Array:
        """Refuse: there are no feature blocks."""
        raise no_blocks()

    def grown(self, parameters: Arrays) -> Architecture:
        """Return the network as it came out of training."""
        return self

    def reordered(
        self, parameters: Arrays, constant: NDArray[np.bool_], order: NDArray[np.intp]
    ) -> Arrays:
        """Return the parameters for features in another order, without those always 1."""
        return in_order(without_constant(parameters, constant), order)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return what stands in a network's own file."""
        return {}

    def to_dict(self) -> dict[str, Any] | None:
        """Return what stands once for all networks of a run."""
        return asdict(self)


class TrainedArchitecture(Protocol):
    """What a trained network is made of, and what it makes of samples."""

    def predict(self, parameters: Arrays, block: Block, labels: Labels) -> Array:
        """Return the log-odds of the classes, or the numbers, (outputs, samples)."""
        ...

    def embed(self, parameters: Arrays, block: Block) -> Array:
        """Return the points of the common latent space, (samples, k), if there is one."""
        ...

    def first_layer(
        self, parameters: Arrays, blocks: Sequence[str], block: Block
    ) -> dict[str, Array]:
        """Return what feature blocks add to the first layer, each (units, samples)."""
        ...

    def scores_of(self, parameters: Arrays, total: Array) -> Array:
        """Return the log-odds, (outputs, samples), from the sum over all blocks."""
        ...

    def grown(self, parameters: Arrays) -> TrainedArchitecture:
        """Return what the network is made of after training."""
        ...

    def reordered(
        self, parameters: Arrays, constant: NDArray[np.bool_], order: NDArray[np.intp]
    ) -> Arrays:
        """Return the parameters for features in another order, without those always 1."""
        ...

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return what stands in a network's own file."""
        ...

    def to_dict(self) -> dict[str, Any] | None:
        """Return what stands once for all networks of a run; None: each has its own."""
        ...


def no_blocks() -> ExperimentError:
    """Return the error that a network adds up no feature blocks."""
    return ExperimentError(
        "The network reads all its columns at once and adds up no feature blocks; predict "
        "a table that has them all."
    )


def _weights(parameters: Arrays) -> Arrays:
    """Return the parameters without what they say of the labels."""
    return {name: own for name, own in parameters.items() if not name.startswith("labels.")}


class _Anchors(nn.Module):
    """The anchors, as parameters."""

    def __init__(self, outputs: int, latent: int, *, covariances: bool) -> None:
        super().__init__()
        self.means = nn.Parameter(torch.zeros(outputs, latent))
        if covariances:
            self.factors = nn.Parameter(torch.zeros(outputs, latent, latent))


class _Head(nn.Module):
    """α if there is one, and β, as all clients have them."""

    def __init__(self, outputs: int, made_of: Architecture) -> None:
        super().__init__()
        latent = made_of.latent
        self.classifier = StackedLinear(latent, outputs)
        if made_of.layer:
            self.shared = nn.Sequential(StackedLinear(latent, latent), nn.LeakyReLU())


class Network(nn.Module):
    """φ, α if there is one, β, and the anchors and the common α and β if it holds them."""

    def __init__(self, features: int, outputs: int, made_of: Architecture) -> None:
        super().__init__()
        latent = latent_width(made_of.embedding, features, made_of.latent)
        self.embedding = embedding(
            made_of.embedding, features, made_of.hidden, latent, made_of.dropout
        )
        self.classifier = StackedLinear(latent, outputs)
        if made_of.layer:
            self.shared = nn.Sequential(StackedLinear(latent, latent), nn.LeakyReLU())
        if made_of.anchors:
            self.anchors = _Anchors(outputs, latent, covariances=made_of.covariances)
        if made_of.mixing:
            self.common = _Head(outputs, made_of)
        self._mixing = made_of.mixing

    def scores(self, latent: Tensor) -> Tensor:
        """Return the classes' scores of points of the latent space, (..., rows, outputs)."""
        if hasattr(self, "shared"):
            common = self.common.shared[0] if self._mixing else None
            latent = self.shared[1](self._through(self.shared[0], common, latent))
        return self._through(
            self.classifier, self.common.classifier if self._mixing else None, latent
        )

    def _through(self, own: nn.Module, common: nn.Module | None, points: Tensor) -> Tensor:
        """Return what a layer makes of points, or the mixture of a common one and the own."""
        if common is None:
            found: Tensor = own(points)
            return found
        weight = self._mixing * common.weight + (1 - self._mixing) * own.weight
        bias = self._mixing * common.bias + (1 - self._mixing) * own.bias
        return affine(points, weight, bias)

    def forward(self, x: Tensor, drawn: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the points that samples are taken to, (..., rows, k), and their scores.

        `drawn` are the numbers of dropout, in training; see `embeddings`.
        """
        latent = self.embedding(x, drawn)
        return latent, self.scores(latent)


def levels_of(parameters: Mapping[str, NDArray[Any]]) -> dict[int, dict[str, NDArray[Any]]]:
    """Return the networks of an additive network by their levels, from the first on."""
    found: dict[int, dict[str, NDArray[Any]]] = {}
    for name, values in parameters.items():
        _, level, own = name.split(".", 2)
        found.setdefault(int(level), {})[own] = values
    return {level: found[level] for level in sorted(found)}


def as_level(level: int, parameters: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the parameters of a network as those of one level of an additive network."""
    return {f"levels.{level}.{name}": values for name, values in parameters.items()}


@lru_cache(maxsize=32)
def _judging(outputs: int, made_of: Architecture) -> Network:
    """Return a network for predictions: statistics of batches are those that training kept."""
    network = Network(width_of_structure(made_of.embedding), outputs, made_of)
    network.eval()
    return network


def outputs_of(parameters: Arrays, made_of: Architecture, block: Block) -> tuple[Array, Array]:
    """Return the embedded samples and their scores by one network."""
    tensors = {name: torch.from_numpy(values) for name, values in parameters.items()}
    structure = _judging(len(parameters["classifier.bias"]), made_of)
    x = torch.from_numpy(pictures(structure, dense(block), block))
    x = x.to(tensors["classifier.bias"].dtype)
    with torch.no_grad():
        latent, scores = applied(structure, tensors, x)
    return latent.double().numpy(), scores.double().numpy()


def pictures(network: nn.Module, x: Array, block: Block) -> Array:
    """Return a block's rows as pictures, if the network reads such: pixels by their names."""
    if not isinstance(network.embedding, Convolutional | Residual):
        return x
    order = columns(block.features)
    return x if np.array_equal(order, np.arange(len(order))) else x[:, order]


def without_constant(parameters: Arrays, constant: NDArray[np.bool_]) -> Arrays:
    """Return a network that has the weights of features that are always 1 in its first bias."""
    if not constant.any():
        return parameters
    found = dict(parameters)
    for first in _first_layers(parameters):
        weight = parameters[f"{first}.weight"]
        found[f"{first}.weight"] = np.ascontiguousarray(weight[:, ~constant])
        found[f"{first}.bias"] = parameters[f"{first}.bias"] + weight[:, constant].sum(axis=1)
    return found


def in_order(parameters: Arrays, order: NDArray[np.intp]) -> Arrays:
    """Return a network that reads its features in another order: first that of `order[0]`, ….

    One that reads pictures knows its pixels by their names, and stays as it is.
    """
    firsts = {f"{first}.weight" for first in _first_layers(parameters)}
    return {
        name: np.ascontiguousarray(values[:, order]) if name in firsts else values
        for name, values in parameters.items()
    }


def _first_layers(parameters: Arrays) -> list[str]:
    """Return the names of the layers that read the features, one for each level that does."""
    found: list[str] = []
    inner = any(re.match(r"(levels\.\d+\.)?embedding\.", name) for name in parameters)
    for name in parameters:
        whole = re.fullmatch(r"(levels\.\d+\.)?classifier\.bias", name)
        if whole is None:
            continue
        front = whole[1] or ""  # of one level of several
        # behind an embedding, that of level 1 too; else from the layer on, if there is one
        layers = ("embedding.0",) if inner else ("shared.0", "classifier")
        first = next(
            (f"{front}{one}" for one in layers if f"{front}{one}.weight" in parameters), ""
        )
        if first:
            found.append(first)
    return found
