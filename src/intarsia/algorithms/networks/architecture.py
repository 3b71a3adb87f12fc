"""What a client's network is made of: φ, α, β and the anchors, as a module.

Its parameters' names say which part they are of, "embedding.*", "shared.*" (α), "classifier.*" (β),
"common.*" (an α and a β of all clients beside the own ones) and "anchors.*". All but convolutions
take several learners, stacked in front of all axes.

A client may have several such networks, whose scores add up: one of each level. The names of their
parameters begin with "levels.1.", "levels.2.", ….
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from numpy.typing import NDArray

from intarsia.algorithms.networks.embeddings import AnyKind, embedding, latent_width
from intarsia.maths.training.layers import StackedLinear, affine
from intarsia.maths.training.torch_import import Tensor, nn, torch


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
