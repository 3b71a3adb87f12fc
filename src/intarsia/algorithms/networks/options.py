"""The hyperparameters that algorithms on networks have in common, and their checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from intarsia.algorithms.networks.architecture import Architecture
from intarsia.algorithms.networks.embeddings import AnyKind
from intarsia.core.settings import Count, NotNegative, Positive, check_ranges
from intarsia.errors import ExperimentError
from intarsia.maths.training.torch_import import torch


@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """Hyperparameters of local training, with the defaults of FLIC's paper for real data."""

    loss: ClassVar[str] = "cross_entropy"  # that the scores are graded by

    rate: Positive = 1e-3
    weight_decay: NotNegative = 0.0  # on the layers behind the embedding
    batch: Count = 100
    embedding: AnyKind = "perceptron"  # what the embedding is; "convolutional" for images
    hidden: Count = 64  # units of a perceptron's two hidden layers
    latent: Count = 64  # k, the width of the latent space
    precision: Literal["single", "double"] = "single"
    engine: Literal["auto", "loop", "vmap", "compiled"] = "auto"

    def __post_init__(self) -> None:
        check_ranges(self)

    @property
    def architecture(self) -> Architecture:
        """Return what a client's network is made of."""
        return Architecture(
            embedding=self.embedding,
            hidden=self.hidden,
            latent=self.latent,
            dropout=getattr(self, "dropout", 0.0),
        )

    @property
    def shared_parts(self) -> tuple[str, ...]:
        """Return which parameters all clients share: all."""
        return ("*",)


def check_device(name: str) -> None:
    """Raise ExperimentError where torch cannot compute on a device here, with what it says."""
    try:
        torch.empty(0, device=torch.device(name))
    except (RuntimeError, AssertionError) as error:  # what torch raises where there is none
        said = str(error).partition("\n")[0].rstrip(".")
        raise ExperimentError(
            f'algorithm.device is {name!r}, which torch cannot use here ({said}); set "cpu".'
        ) from None
