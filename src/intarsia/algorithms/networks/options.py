"""The hyperparameters that algorithms on networks have in common, and their checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints

from intarsia.algorithms.networks.architecture import Architecture
from intarsia.algorithms.networks.embeddings import AnyKind
from intarsia.errors import ExperimentError
from intarsia.maths.training.torch_import import torch


@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """Hyperparameters of local training, with the defaults of FLIC's paper for real data."""

    counts: ClassVar[tuple[str, ...]] = ()  # fields of an algorithm's own that are 1 or more
    not_negative: ClassVar[tuple[str, ...]] = ()  # and those that are 0 or more

    rate: float = 1e-3
    weight_decay: float = 0.0  # on the layers behind the embedding
    batch: int = 100
    embedding: AnyKind = "perceptron"  # what the embedding is; "convolutional" for images
    hidden: int = 64  # units of a perceptron's two hidden layers
    latent: int = 64  # k, the width of the latent space
    precision: Literal["single", "double"] = "single"
    engine: Literal["auto", "loop", "vmap", "compiled"] = "auto"

    def __post_init__(self) -> None:
        check_options(
            self,
            counts=(*self.counts, "batch", "hidden", "latent"),
            not_negative=(*self.not_negative, "weight_decay"),
        )

    @property
    def loss(self) -> str:
        """Return the loss that the scores are graded by."""
        return "cross_entropy"

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


def check_options(options: Any, *, counts: Sequence[str], not_negative: Sequence[str]) -> None:
    """Raise where a hyperparameter is too small, or none of the words that it may be.

    Raises
    ------
    ExperimentError
        With its value and what serves.
    """
    for names, least in ((counts, 1), (not_negative, 0)):
        for name in names:
            value = getattr(options, name)
            if not value >= least or value == float("inf"):
                raise ExperimentError(
                    f"algorithm.{name} is {value}; it must be finite and at least {least}."
                )
    dropout = getattr(options, "dropout", 0.0)
    if not 0.0 <= dropout < 1.0:
        raise ExperimentError(
            f"algorithm.dropout is {dropout}; it must be at least 0 and below 1, for example 0.5."
        )
    if not 0 < options.rate < float("inf"):
        raise ExperimentError(
            f"algorithm.rate is {options.rate}; it must be positive and finite, for example 1e-3."
        )
    for name, kind in get_type_hints(type(options)).items():
        known = get_args(kind)
        if get_origin(kind) is Literal and getattr(options, name) not in known:
            raise ExperimentError(
                f"algorithm.{name} is {getattr(options, name)!r}; choose from {', '.join(known)}."
            )


def check_device(name: str) -> None:
    """Raise where torch cannot compute on a device here.

    Raises
    ------
    ExperimentError
        With what torch says.
    """
    try:
        torch.empty(0, device=torch.device(name))
    except (RuntimeError, AssertionError) as error:  # what torch raises where there is none
        said = str(error).partition("\n")[0].rstrip(".")
        raise ExperimentError(
            f'algorithm.device is {name!r}, which torch cannot use here ({said}); set "cpu".'
        ) from None
