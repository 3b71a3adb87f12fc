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
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from intarsia.algorithms.networks import embeddings
from intarsia.algorithms.networks.resnet import Residual
from intarsia.algorithms.networks.targets import predict
from intarsia.algorithms.networks.training_rows import blocks_of_rows, check_whole, columns, rows_of
from intarsia.core.block import Array, Block, Labels
from intarsia.errors import ExperimentError
from intarsia.maths.training.layers import StackedLinear, affine
from intarsia.maths.training.locks import applied
from intarsia.maths.training.sparse_rows import Picked, in_full, parts_of_rows
from intarsia.maths.training.torch_import import Tensor, nn, torch

Arrays = Mapping[str, NDArray[Any]]  # a network's parameters by their dotted names


def _no_blocks() -> ExperimentError:
    return ExperimentError(
        "The network reads all its columns at once and adds up no feature blocks; predict a table "
        "that has them all."
    )


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
        """Return what feature blocks add to the first layer, each (units, samples), if any do."""
        raise _no_blocks()

    def scores_of(self, parameters: Arrays, total: Array) -> Array:
        """Return the log-odds, (outputs, samples), from the sum over all blocks."""
        raise _no_blocks()

    def as_module(self, parameters: Arrays, features: Sequence[str], outputs: int) -> nn.Module:
        """Return a module of torch that gives the scores of rows, (rows, outputs).

        It holds the parameters, and takes the rows standardised, (rows, features).
        """
        ...

    def grown(self, parameters: Arrays) -> Self:
        """Return what the network is made of after training."""
        return self

    def reordered(
        self, parameters: Arrays, constant: NDArray[np.bool_], order: NDArray[np.intp]
    ) -> Arrays:
        """Return the parameters for features in another order, without those always 1.

        A network that knows its columns by their names has no other order, and no constant.
        """
        return parameters

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return what stands in a network's own file."""
        ...

    def to_dict(self) -> dict[str, Any] | None:
        """Return what stands once for all networks of a run; None: each has its own."""
        return None


@dataclass(frozen=True, kw_only=True)
class Architecture(TrainedArchitecture):
    """What a network is made of, apart from the client's own features."""

    hidden: int  # units of φ's two hidden layers, if it is a perceptron
    latent: int  # k, the width of the latent space
    embedding: str = "perceptron"  # what φ is, one of `embeddings.KINDS` or "module:name"
    dropout: float = 0.0  # chance that a unit of φ is left out in training
    layer: bool = False  # whether there is an α
    anchors: bool = False  # whether it holds the anchors' means
    covariances: bool = False  # and triangular factors of their covariances
    mixing: float = (
        0.0  # ω, of common α and β in the client's: ω common + (1-ω) own; 0: there are none
    )
    # what is made of the scores of several levels of such networks; "": there is one network
    additive: Literal["", "sum", "mean"] = ""

    def outputs(self, parameters: Arrays, block: Block, device: str = "cpu") -> tuple[Array, Array]:
        """Return the embedded samples, (samples, k), and their scores, (samples, outputs).

        Of a network of several levels the embedding is that of the first, and levels that have none
        of their own read its points.
        """
        if self.additive:
            first, *others = levels_of(parameters).values()
            common = {name: own for name, own in first.items() if name.startswith("embedding.")}
            every = [{**common, **own} for own in (first, *others)]
            each = [outputs_of(own, self, block, device) for own in every]
            scores = np.add.reduce([own for _, own in each])
            return each[0][0], scores / (len(each) if self.additive == "mean" else 1)
        return outputs_of(parameters, self, block, device)

    def predict(self, parameters: Arrays, block: Block, labels: Labels) -> Array:
        """Return the log-odds of the classes, or the numbers, (outputs, samples)."""
        centre, spread = (
            float(parameters.get(f"labels.{name}", other))
            for name, other in (("centre", 0.0), ("spread", 1.0))
        )
        return predict(self.outputs(_weights(parameters), block)[1], centre, spread)

    def embed(self, parameters: Arrays, block: Block) -> Array:
        """Return the points of the common latent space, (samples, k)."""
        return self.outputs(_weights(parameters), block)[0]

    def as_module(self, parameters: Arrays, features: Sequence[str], outputs: int) -> nn.Module:
        """Return a module of torch that gives the scores of rows, (rows, outputs)."""
        parameters = _weights(parameters)
        levels = list(levels_of(parameters).values()) if self.additive else [parameters]
        levels = [_without_anchors(own) for own in levels]
        common = {name: one for name, one in levels[0].items() if name.startswith("embedding.")}
        made_of = replace(self, anchors=False)
        return _Levels(made_of, [{**common, **own} for own in levels], tuple(features), outputs)

    def reordered(
        self, parameters: Arrays, constant: NDArray[np.bool_], order: NDArray[np.intp]
    ) -> Arrays:
        """Return the parameters for features in another order, without those always 1."""
        return in_order(without_constant(parameters, constant), order)

    def check(self, parameters: Arrays, features: int, outputs: int) -> None:
        """Raise ValueError unless parameters are those of such a network; it takes no memory.

        Of an embedding that is the user's own it is not known.
        """
        if embeddings.is_named(self.embedding):
            return
        own = _weights(parameters)
        levels = [*levels_of(own).values()] if self.additive else [own]
        with torch.device("meta"):
            made = dict(Network(features, outputs, self).named_parameters())
        known = {name: one.shape for name, one in made.items() if not name.startswith("anchors.")}
        first = levels[0] if levels else {}
        common = {name: one for name, one in first.items() if name.startswith("embedding.")}
        for level in levels or [first]:
            whole = {**common, **level}
            for name, shape in known.items():
                if name not in whole or whole[name].shape != tuple(shape):
                    there = whole[name].shape if name in whole else "missing"
                    raise ValueError(f"{name!r} is {there}, where {tuple(shape)} was expected")
                if whole[name].dtype.kind != "f":
                    raise ValueError(f"{name!r} is an array of {whole[name].dtype}")

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return what stands in a network's own file."""
        return {}

    def to_dict(self) -> dict[str, Any] | None:
        """Return what stands once for all networks of a run."""
        return asdict(self)


def _weights(parameters: Arrays) -> Arrays:
    """Return the parameters without what they say of the labels."""
    return {name: own for name, own in parameters.items() if not name.startswith("labels.")}


def _without_anchors(parameters: Arrays) -> Arrays:
    """Return the parameters that scores are computed with."""
    return {name: own for name, own in parameters.items() if not name.startswith("anchors.")}


class _Anchors(nn.Module):
    """The anchors, as parameters."""

    def __init__(self, outputs: int, latent: int, *, covariances: bool) -> None:
        super().__init__()
        self.means = nn.Parameter(torch.zeros(outputs, latent))
        if covariances:
            self.factors = nn.Parameter(torch.zeros(outputs, latent, latent))


class Network(nn.Module):
    """φ, α if there is one, β, and the anchors and the common α and β if it holds them."""

    def __init__(self, features: int, outputs: int, made_of: Architecture) -> None:
        super().__init__()
        latent = embeddings.latent_width(made_of.embedding, features, made_of.latent)
        self.embedding = embeddings.embedding(
            made_of.embedding, features, made_of.hidden, latent, made_of.dropout
        )
        _add_head(self, latent, outputs, made_of)
        if made_of.anchors:
            self.anchors = _Anchors(outputs, latent, covariances=made_of.covariances)
        if made_of.mixing:
            self.common = nn.Module()
            _add_head(self.common, made_of.latent, outputs, made_of)
        self._mixing = made_of.mixing

    def scores(self, latent: Picked) -> Tensor:
        """Return the classes' scores of points of the latent space, (..., rows, outputs)."""
        if hasattr(self, "shared"):
            common = self.common.shared[0] if self._mixing else None
            latent = self.shared[1](self._through(self.shared[0], common, latent))
        return self._through(
            self.classifier, self.common.classifier if self._mixing else None, latent
        )

    def _through(self, own: nn.Module, common: nn.Module | None, points: Picked) -> Tensor:
        """Return what a layer makes of points, or the mixture of a common one and the own."""
        if common is None:
            found: Tensor = own(points)
            return found
        weight = self._mixing * common.weight + (1 - self._mixing) * own.weight
        bias = self._mixing * common.bias + (1 - self._mixing) * own.bias
        return affine(points, weight, bias)

    def forward(self, x: Picked, drawn: Tensor | None = None) -> tuple[Picked, Tensor]:
        """Return the points that samples are taken to, (..., rows, k), and their scores.

        `drawn` are the numbers of dropout, in training; see `embeddings`.
        """
        latent = self.embedding(x, drawn)
        return latent, self.scores(latent)


class _Levels(nn.Module):
    """A trained network, or those of all levels, with their parameters."""

    def __init__(
        self,
        made_of: Architecture,
        levels: Sequence[Arrays],
        features: tuple[str, ...],
        outputs: int,
    ) -> None:
        super().__init__()
        made = [Network(len(features), outputs, made_of).eval() for _ in levels]
        for network, own in zip(made, levels, strict=True):
            network.load_state_dict(as_tensors(own))
        self.networks = nn.ModuleList(made)
        self._order = read_in_order(made[0], features)
        self._mean = made_of.additive == "mean"

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of rows, (rows, outputs)."""
        found: Tensor = sum(network(x[:, self._order])[1] for network in self.networks)
        return found / len(self.networks) if self._mean else found


def _add_head(module: nn.Module, latent: int, outputs: int, made_of: Architecture) -> None:
    """Give a module β, and α if there is one."""
    module.classifier = StackedLinear(latent, outputs)
    if made_of.layer:
        module.shared = nn.Sequential(StackedLinear(latent, latent), nn.LeakyReLU())


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


@lru_cache(maxsize=64)
def structure(outputs: int, made_of: Architecture, features: int = 0, *, training: bool) -> Network:
    """Return a network whose own values are not read; its embedding takes any width.

    `features` is a width that a function of the user's takes; 0: there is no such.
    Where it predicts, statistics of batches are those that training kept.
    """
    width = features or embeddings.width_of_structure(made_of.embedding)
    network: Network = Network(width, outputs, made_of).train(training)
    return network


def as_tensors(parameters: Arrays, device: str = "cpu") -> dict[str, Tensor]:
    """Return a network's parameters as torch takes them; on a CPU they share their memory."""
    return {name: torch.from_numpy(values).to(device) for name, values in parameters.items()}


def outputs_of(
    parameters: Arrays, made_of: Architecture, block: Block, device: str = "cpu"
) -> tuple[Array, Array]:
    """Return the embedded samples and their scores by one network, computed on a device."""
    tensors = as_tensors(parameters, device)
    width = named_width(made_of, block)
    network = structure(len(parameters["classifier.bias"]), made_of, width, training=False)
    kind, order = parameters["classifier.bias"].dtype, order_read(network, block)
    check_whole(block)
    found: list[tuple[Array, Array]] = []
    with torch.no_grad():
        for some in blocks_of_rows(block):
            rows = rows_of(some.x, kind, order)
            if device != "cpu" or not embeddings.is_stacked(made_of.embedding):
                rows = in_full(rows).to(device)
            # of no row, too, a network says how wide its outputs are
            for (part,) in parts_of_rows([rows], len(rows)) if len(rows) else [[in_full(rows)]]:
                both = applied(network, tensors, part)
                found.append(tuple(in_full(one).cpu().double().numpy() for one in both))
    latent, scores = (np.concatenate(one) for one in zip(*found, strict=True))
    return latent, scores


def named_width(made_of: Architecture, block: Block) -> int:
    """Return how many features of a block a user's embedding takes; 0: it has no such."""
    return len(columns(block.features)) if embeddings.is_named(made_of.embedding) else 0


def order_read(network: nn.Module, block: Block) -> NDArray[np.intp]:
    """Return the columns that a network reads of a block's rows; it is ready for so many."""
    order = read_in_order(network, block.features)
    if isinstance(network.embedding, embeddings.Named):
        network.embedding.of_width(len(order))
    return order


def read_in_order(network: nn.Module, features: tuple[str, ...]) -> NDArray[np.intp]:
    """Return the columns in the order that a network reads them: of pictures by their names.

    A user's embedding takes features in that order, too, and no constant.
    """
    by_name = embeddings.Convolutional | Residual | embeddings.Named
    if isinstance(network.embedding, by_name):
        return columns(features)
    return np.arange(len(features))


def without_constant(parameters: Arrays, constant: NDArray[np.bool_]) -> Arrays:
    """Return a network that has the weights of features that are always 1 in its first bias."""
    if not constant.any():
        return parameters
    found: dict[str, Array] = dict(parameters)
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
    inner = any(re.match(r"(levels\.\d+\.)?embedding\.", name) for name in parameters)
    # behind an embedding, that of level 1 too; else from the layer on, if there is one
    layers = ("embedding.0",) if inner else ("shared.0", "classifier")
    found: list[str] = []
    for name in parameters:
        if re.fullmatch(r"(levels\.\d+\.)?classifier\.bias", name):
            of_level = [name.replace("classifier.bias", one) for one in layers]
            found += [one for one in of_level if f"{one}.weight" in parameters][:1]
    return found
