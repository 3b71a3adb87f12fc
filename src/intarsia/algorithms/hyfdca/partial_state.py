"""What the proximal rounds of HyFDCA keep, at the server and at the clients, and their messages."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from intarsia.core.algorithm import PerFeature, PerSample
from intarsia.core.block import Array, ClientId

__all__ = [
    "AscendThere",
    "Candidate",
    "Counted",
    "Draw",
    "Drawn",
    "Evaluated",
    "Keep",
    "KeepTrial",
    "LossThere",
    "Missed",
    "Model",
    "ModelObjectives",
    "ModelTotals",
    "Partial",
    "Place",
    "Pulled",
    "StepsThere",
    "Trial",
    "TrialScores",
]


# ---- states


@dataclass(frozen=True)
class Partial:
    """The server's state of the phase."""

    loss: int
    regularisation: float  # λ
    metric: float  # ρ_j = metric · r_j^1.5
    ascents: int  # at most
    samples: int  # N
    alpha: Any  # sealed (outputs, samples)
    w: Any  # sealed (outputs, features), what the clients have counted of w(α)
    z: Any  # sealed (outputs, samples), what they have counted of Xu
    u: Any  # sealed (outputs, features), the model
    alpha_mean: Any  # sealed, averages over the rounds
    u_mean: Any
    labellers: tuple[tuple[ClientId, tuple[ClientId, ...]], ...]
    # for each client, the clients with labels among the owners of its samples
    best: Any = None  # sealed (outputs, features), the model of the lowest certified P
    lowest: float = math.inf  # that P
    rounds: int = 0
    entered: tuple[ClientId, ...] = ()  # clients with a Place
    present: tuple[ClientId, ...] = ()  # in the round before


@dataclass(frozen=True)
class Place:
    """A client's state of the phase, in the order of its aligned block."""

    before: Any  # the client's state of dual ascent
    alpha: Array  # (outputs, samples) duals that its part of w counts
    u: Array  # (outputs, features) model that its part of z counts
    alpha_trial: Array  # the same after the current trial
    u_trial: Array
    model: Array  # (outputs, features) weights to predict with
    pull: Array  # (features,) λ/(λ + ρ_j)
    norms: Array  # (samples,) Σ_j x_{k,ij}²/(λ + ρ_j)

    @property
    def w(self) -> Array:
        """Return the weights to predict with."""
        return self.model


# ---- messages


@dataclass(frozen=True)
class Missed:
    """The duals as they are now."""

    alpha: PerSample


@dataclass(frozen=True)
class Counted:
    """What a client's part of w changed by."""

    w: PerFeature


@dataclass(frozen=True)
class Draw:
    """The model, and the counted weights that it is drawn to."""

    u: PerFeature
    w: PerFeature
    present: tuple[ClientId, ...]


@dataclass(frozen=True)
class Drawn:
    """What the model moved by, each feature once; what a client's part of z changed by."""

    u: PerFeature
    z: PerSample


@dataclass(frozen=True)
class AscendThere:
    """Duals and scores to step from."""

    alpha: PerSample
    z: PerSample
    taken: float  # the share of the last trial that the search took
    draw: int  # decides which owner steps on a shared sample
    present: tuple[ClientId, ...]


@dataclass(frozen=True)
class StepsThere:
    """A client's dual steps."""

    alpha: PerSample
    along: Array  # (points,) Σ -l*(-α_i) - Δα_i z_i on the way, the samples stepped on


@dataclass(frozen=True)
class Trial:
    """Duals to count into the weights."""

    alpha: PerSample


@dataclass(frozen=True)
class Pulled:
    """What a client's part of w changes by on trial, and the model with it."""

    w: PerFeature
    u: PerFeature


@dataclass(frozen=True)
class Model:
    """A model to count into the scores."""

    u: PerFeature
    present: tuple[ClientId, ...]


@dataclass(frozen=True)
class TrialScores:
    """What a client's part of z changes by on trial."""

    z: PerSample
    square: Array  # (1,) Σ_j (λ + ρ_j) Δu_j², each feature once


@dataclass(frozen=True)
class KeepTrial:
    """The share of the last trial that the search took; the scores after it."""

    taken: float
    z: PerSample
    present: tuple[ClientId, ...]


@dataclass(frozen=True)
class LossThere:
    """A client's part of the loss of the samples that are there."""

    at: Array  # (2,) Σ l(z_i) and the number of these samples, each once


@dataclass(frozen=True)
class Candidate:
    """A model and duals to evaluate."""

    u: PerFeature
    alpha: PerSample


@dataclass(frozen=True)
class Evaluated:
    """A client's part of w(α), of Xu, and of the dual's data term."""

    w: PerFeature
    z: PerSample
    conjugates: Array  # (points,) Σ -l*(-sα_i) for s from 0 to 1


@dataclass(frozen=True)
class ModelTotals:
    """A model, its scores, and the weights of the duals."""

    u: PerFeature
    w: PerFeature
    z: PerSample


@dataclass(frozen=True)
class ModelObjectives:
    """A client's part of the objectives, each sample and each feature once."""

    at: Array  # (4,) Σ l(z_i), Σ l(0), ‖u‖², ‖w(α)‖²


@dataclass(frozen=True)
class Keep:
    """The model to predict with."""

    u: PerFeature
