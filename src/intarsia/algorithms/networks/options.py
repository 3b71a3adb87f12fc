"""The hyperparameters that algorithms on networks have in common, and their checks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from intarsia.algorithms.networks import embeddings
from intarsia.algorithms.networks.architecture import Architecture
from intarsia.core.block import ClientId
from intarsia.core.schema import Schema
from intarsia.core.settings import (
    Count,
    FractionBelowOne,
    NotNegative,
    Positive,
    PositiveFraction,
    check_ranges,
)
from intarsia.errors import ExperimentError
from intarsia.maths.training.torch_import import torch

Weights = Literal["samples", "clients"]  # of clients in an average: by labelled rows, or all alike


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """How gradient steps are taken, in every algorithm on networks; by default as papers have it.

    `schedule` multiplies the rate from round to round: "cosine" takes it from 1 to
    `schedule_factor` in `schedule_rounds` rounds, where it stays; "step" multiplies it by
    `schedule_factor` after each `schedule_rounds` rounds. Nothing is kept of it, so that a run that
    is resumed has the same rates.
    """

    # "auto": an accelerator where torch has one; or as torch names it: "cuda", "cuda:1", "mps"
    device: str = "cpu"
    # "bf16": products in bfloat16; parameters, moments and sums over rows in single precision
    precision: Literal["single", "double", "bf16"] = "single"
    momentum: FractionBelowOne = 0.0  # µ of the optimiser "sgd"
    gradient_clip: NotNegative = 0.0  # largest norm of a step's gradient; 0: no limit
    label_smoothing: FractionBelowOne = 0.0  # share of a label that all classes have alike
    class_weights: Literal["none", "balanced"] = "none"  # of a client's rows: by its own classes
    schedule: Literal["constant", "cosine", "step"] = "constant"  # of the rate, over rounds
    schedule_rounds: Count = 100
    schedule_factor: PositiveFraction = 0.1

    @property
    def clip(self) -> float:
        """Return the largest norm of a step's gradient, inf: any."""
        return self.gradient_clip or math.inf

    @property
    def number_type(self) -> Any:
        """Return the numpy type of a network's parameters."""
        return np.float64 if self.precision == "double" else np.float32

    def rate_factor(self, number: int) -> float:
        """Return what the rate is multiplied by in a round, counted from 1."""
        done = max(number - 1, 0)
        if self.schedule == "step":
            return float(self.schedule_factor ** (done // self.schedule_rounds))
        if self.schedule == "cosine":
            part = min(done / self.schedule_rounds, 1.0)
            fall = (1 + math.cos(math.pi * part)) / 2
            return self.schedule_factor + (1 - self.schedule_factor) * fall
        return 1.0


@dataclass(frozen=True, kw_only=True)
class NetworkOptions(TrainingOptions):
    """Hyperparameters of local training, with the defaults of FLIC's paper for real data."""

    loss: ClassVar[str] = "cross_entropy"  # that the scores are evaluated by
    known_embeddings: ClassVar[tuple[str, ...]] = embeddings.KINDS  # that the algorithm knows

    rate: Positive = 1e-3
    weight_decay: NotNegative = 0.0  # on the layers behind the embedding
    embedding_decay: NotNegative = 0.0  # on the embedding
    batch: Count = 100
    # what the embedding is; "convolutional" for images, "module:name" for a function of your own
    embedding: str = "perceptron"
    hidden: Count = 64  # units of a perceptron's two hidden layers
    latent: Count = 64  # k, the width of the latent space
    engine: Literal["auto", "loop", "vmap", "compiled"] = "auto"

    def __post_init__(self) -> None:
        check_ranges(self)
        # Adam for algorithms that do not leave the choice
        check_training(self, getattr(self, "optimiser", "adam"))
        embeddings.check_kind(self.embedding, self.known_embeddings)
        dropout = getattr(self, "dropout", 0.0)
        if dropout and embeddings.is_named(self.embedding):
            raise ExperimentError(
                f"algorithm.dropout is {dropout:g} and the embedding {self.embedding!r} is your "
                "own; leave units out there (nn.Dropout), and dropout out here."
            )

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
    return {client: relative_weight(options, schema, client) for client in schema.clients}


def relative_weight(options: Any, schema: Schema, client: ClientId) -> float:
    """Return what a client counts for in an average, as a part of the one that counts most."""
    by_samples = getattr(options, "weights", "clients") == "samples"
    return schema.label_shares[client] if by_samples else 1.0


def check_training(options: TrainingOptions, optimiser: str) -> None:
    """Raise ExperimentError where options of training do not fit each other, or this machine."""
    if options.momentum and optimiser != "sgd":
        raise ExperimentError(
            f"algorithm.momentum is {options.momentum:g} and the optimiser {optimiser!r} has "
            'moments of its own; set optimiser = "sgd" where the algorithm has it, or momentum = 0.'
        )
    check_device(options.device)
    if options.device.partition(":")[0] == "mps" and options.precision == "double":
        raise ExperimentError(
            'algorithm.device is "mps", which has no double precision; set precision = "single".'
        )


def check_labels(options: Any, schema: Schema) -> None:
    """Raise ExperimentError where labels are numbers and options are of classes."""
    if schema.labels.task != "regression":
        return
    for key, off in (("label_smoothing", 0.0), ("class_weights", "none")):
        if getattr(options, key, off) != off:
            raise ExperimentError(
                f"algorithm.{key} is {getattr(options, key)!r} and the labels are numbers to "
                f"predict, which have no classes; leave {key} out."
            )


def device_of(options: Any) -> str:
    """Return where networks train: with "auto" an accelerator that has their precision."""
    if options.device != "auto":
        return str(options.device)
    if torch.cuda.is_available():
        return "cuda"
    mps = getattr(torch.backends, "mps", None)
    single = options.precision != "double"
    return "mps" if single and mps is not None and mps.is_available() else "cpu"


def check_device(name: str) -> None:
    """Raise ExperimentError where torch cannot compute on a device here, with what it says."""
    if name == "auto":
        return
    try:
        torch.empty(0, device=torch.device(name))
    except (RuntimeError, AssertionError) as error:  # what torch raises where there is none
        said = str(error).partition("\n")[0].partition(". ")[0].rstrip(".")
        raise ExperimentError(
            f'algorithm.device is {name!r}, which torch cannot use here ({said}); set "cpu".'
        ) from None
