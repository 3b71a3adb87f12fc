"""The hyperparameters of `flic`, and what they say of its network."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from intarsia.algorithms.networks.architecture import Architecture
from intarsia.algorithms.networks.embeddings import COMMON_WIDTH, IMAGES
from intarsia.algorithms.networks.options import NetworkOptions, Weights
from intarsia.core.settings import (
    Between,
    Count,
    CountOrZero,
    FractionBelowOne,
    NotNegative,
    PositiveFraction,
)
from intarsia.errors import ExperimentError

_OF_EMBEDDING: Any = None  # a default that the embedding says
_DEFAULTS: dict[str, tuple[Any, Any]] = {  # of images' embeddings, of others
    "pretraining_epochs": (100, 10),
    "anchor_scale": (1.0, 3.0),
}


@dataclass(frozen=True, kw_only=True)
class Flic(NetworkOptions):
    """Hyperparameters, with the paper's meaning.

    Defaults are those of the paper, but for the decays and, where the embedding is none of images,
    alignment before the first round and the anchors' scale: these keep clients with few rows from
    overfitting them.
    """

    known_embeddings: ClassVar[tuple[str, ...]] = COMMON_WIDTH

    variant: Literal["class", "hl"] = "class"  # hl: with a hidden layer α that all share
    weight_decay: NotNegative = 1e-2
    embedding_decay: NotNegative = 3e-3
    scheme: Literal["fedrep", "fedavg-ft", "l2gd"] = "fedrep"  # which of α and β all share
    mixing: PositiveFraction = 0.5  # ω of the scheme l2gd
    alignment_weight: NotNegative = 1e-3  # λ1
    calibration_weight: NotNegative = 1e-3  # λ2
    local_epochs: Count = 10  # M
    # of φ, before the first round: 10; of images' embeddings, which learn slowly, 100
    pretraining_epochs: CountOrZero = _OF_EMBEDDING
    shared_epochs: CountOrZero = 0  # of α and the anchors after local training; 0: one step
    shared_from: Count = 1  # the round in which α starts to train
    weights: Weights = "clients"  # ω_i of the average: 1/b, or by labelled rows
    final_epochs: CountOrZero = 10  # of φ and β at all clients after the last round
    pretraining_batch: Count = 100
    dropout: FractionBelowOne = 0.0  # chance that a unit of the embedding is left out in training
    # standard deviation that the v_c are drawn with: 3; for images' embeddings 1
    anchor_scale: NotNegative = _OF_EMBEDDING
    anchor_variance: NotNegative = 1.0  # e
    anchor_classes: Literal["held", "all"] = "held"  # those of step 2's third term
    anchor_covariance: Literal["fixed", "learned"] = "fixed"  # e·I, or from e·I on
    anchor_average: Literal["factors", "barycentre"] = "factors"  # of learned covariances
    barycentre_steps: Count = 5  # of its iteration in a round, each of which is an exchange
    # the distance of the second term
    alignment: Literal["gaussian", "sample", "transport", "energy"] = "gaussian"
    meta_classes: tuple[tuple[str | int, ...], ...] = ()  # groups of classes that have one anchor
    label_bins: CountOrZero = 0  # of numbers that the second term takes together; 0: each row alone
    alignment_epochs: CountOrZero = 0  # on the second term after each round, also of absent clients
    # whether a client may keep a network that it trained alone, where that does better on its rows
    keep_own: bool = False
    # share of a client's labelled rows for that choice, which train nothing before it
    validation: Between = 0.1

    def __post_init__(self) -> None:
        for name, (images, others) in _DEFAULTS.items():
            if getattr(self, name) is _OF_EMBEDDING:
                object.__setattr__(self, name, images if self.embedding in IMAGES else others)
        super().__post_init__()
        if self.anchor_average == "barycentre" and self.anchor_covariance != "learned":
            raise ExperimentError(
                'algorithm.anchor_average is "barycentre" with covariances that are fixed, and '
                'alike at all clients; set anchor_covariance = "learned", or leave it out.'
            )
        if self.anchor_covariance == "learned" and self.alignment == "sample":
            raise ExperimentError(
                'algorithm.anchor_covariance is "learned" with alignment = "sample", whose slopes '
                'reach the means of the anchors only; set alignment = "gaussian".'
            )

        if self.keep_own and not self.final_epochs:
            raise ExperimentError(
                "algorithm.keep_own is true with final_epochs = 0, and only the last epochs are on "
                "the rows for validation, too; set final_epochs to 1 or more, or keep_own = false."
            )

    @property
    def architecture(self) -> Architecture:
        """Return what a client's network is made of."""
        return replace(
            super().architecture,
            layer=self.layer,
            anchors=True,
            covariances=self.anchor_covariance == "learned",
            mixing=self.mixing if self.scheme == "l2gd" else 0.0,
        )

    @property
    def layer(self) -> bool:
        """Return whether there is a hidden layer α."""
        return self.variant == "hl"

    @property
    def shared_parts(self) -> tuple[str, ...]:
        """Return which parameters all clients share: those of the anchors, and the scheme's."""
        own = {
            "fedrep": ("shared.*",),
            "fedavg-ft": ("shared.*", "classifier.*"),
            "l2gd": ("common.*",),
        }
        return ("anchors.*", *own[self.scheme])
