"""The hyperparameters that algorithms on networks have in common, and their checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from intarsia.algorithms.networks.architecture import Architecture
from intarsia.algorithms.networks.embeddings import AnyKind
from intarsia.core.block import ClientId
from intarsia.core.schema import Schema
from intarsia.core.settings import Count, NotNegative, Positive, check_ranges
from intarsia.errors import ExperimentError
from intarsia.maths.training.torch_import import torch

Weights = Literal["samples", "clients"]  # of clients in an average: by labelled rows, or all alike


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


def relative_weights(options: Any, schema: Schema) -> dict[ClientId, float]:
    """Return what each client counts for in an average, as a part of the one that counts most.

    Who has how many labelled rows is public: each client knows its own weight, and no server can
    choose it.
    """
    counts = {client: float(held.labelled.sum()) for client, held in schema.holdings.items()}
    if getattr(options, "weights", "clients") != "samples":
        return dict.fromkeys(counts, 1.0)
    most = max(counts.values())
    return {client: count / most for client, count in counts.items()}


def check_device(name: str) -> None:
    """Raise ExperimentError where torch cannot compute on a device here, with what it says."""
    try:
        torch.empty(0, device=torch.device(name))
    except (RuntimeError, AssertionError) as error:  # what torch raises where there is none
        said = str(error).partition("\n")[0].rstrip(".")
        raise ExperimentError(
            f'algorithm.device is {name!r}, which torch cannot use here ({said}); set "cpu".'
        ) from None
