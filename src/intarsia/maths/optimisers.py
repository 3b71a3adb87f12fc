"""The optimisers of local training as records, and torch's own that carry them out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from intarsia.errors import ExperimentError
from intarsia.maths.tensors import Tensor, torch

__all__ = ["SGD", "Adam", "Moving", "OptimiserState", "optimiser_over"]


@dataclass(frozen=True, kw_only=True)
class Adam:
    """Adam as torch.optim has it; `rate` is the size of a step."""

    rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        """Check what is given."""
        if not (self.rate > 0.0 and self.epsilon > 0.0):
            raise ExperimentError(
                f"Adam has rate {self.rate} and epsilon {self.epsilon}; both must be above 0."
            )
        if not all(0.0 <= beta < 1.0 for beta in self.betas):
            raise ExperimentError(f"Adam has betas {self.betas}; both must be in [0, 1).")

    @property
    def moments(self) -> tuple[str, ...]:
        """Return what torch calls the moments that are kept for each value."""
        return ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, kw_only=True)
class SGD:
    """Gradient descent on batches, b ← µb + g, w ← w - rate · b, with the `momentum` µ."""

    rate: float
    momentum: float = 0.0

    def __post_init__(self) -> None:
        """Check what is given."""
        if not self.rate > 0.0:
            raise ExperimentError(f"SGD has rate {self.rate}; it must be above 0.")
        if not 0.0 <= self.momentum < 1.0:
            raise ExperimentError(f"SGD has momentum {self.momentum}; it must be in [0, 1).")

    @property
    def moments(self) -> tuple[str, ...]:
        """Return what torch calls the moments that are kept for each value."""
        return ("momentum_buffer",) if self.momentum > 0.0 else ()


@dataclass(frozen=True, kw_only=True)
class OptimiserState:
    """What an optimiser carries from step to step: Adam's two moments, the momentum of SGD."""

    steps: int
    moments: tuple[dict[str, Tensor], ...]  # each by the names of the trained parameters


@dataclass(frozen=True, kw_only=True)
class Moving:
    """Values that an optimiser moves, and the moments that it keeps up; both change in place."""

    values: Tensor
    moments: tuple[Tensor, ...]  # each of the shape of `values`
    steps: int  # that went before
    decay: float  # × values, added to the gradient


def optimiser_over(choice: Adam | SGD, moving: Iterable[Moving]) -> Any:
    """Return a torch optimiser over the values.

    Every value moves by itself, so that `values` may be the parameters of many clients, stacked.
    """
    moving = list(moving)
    optimiser: Any
    if isinstance(choice, Adam):
        # fused on a CPU wants gradients in the parameters' own layout: see `cohort`
        optimiser = torch.optim.Adam(
            _grouped(moving), lr=choice.rate, betas=choice.betas, eps=choice.epsilon, fused=True
        )
    else:
        optimiser = torch.optim.SGD(_grouped(moving), lr=choice.rate, momentum=choice.momentum)
    for one in moving:
        slot = optimiser.state[one.values]
        if isinstance(choice, Adam):
            slot["step"] = torch.tensor(float(one.steps), device=one.values.device)
        slot.update(zip(choice.moments, one.moments, strict=True))
    return optimiser


def _grouped(moving: list[Moving]) -> list[dict[str, Any]]:
    """Return a parameter group for each decay."""
    groups: dict[float, list[Tensor]] = {}
    for one in moving:
        groups.setdefault(one.decay, []).append(one.values)
    return [{"params": values, "weight_decay": decay} for decay, values in groups.items()]
