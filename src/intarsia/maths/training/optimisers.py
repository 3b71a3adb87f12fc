"""The optimisers of local training as records, and what carries them out: torch's functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from intarsia.errors import ExperimentError
from intarsia.maths.training.torch_import import Tensor, adam, sgd, torch


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


def optimiser_over(
    choice: Adam | SGD, moving: Iterable[Moving], rate: float | None
) -> Callable[[], None]:
    """Return what takes a step: it moves values by their gradients, which stand in their `grad`.

    The rate is the optimiser's, or another: one that falls from round to round needs no new
    `LocalTraining`, nor what belongs to it. Every value moves by itself, so that `values` may be
    the parameters of many clients, stacked.
    """
    choice = choice if rate is None else replace(choice, rate=rate)
    groups: dict[float, list[Moving]] = {}
    for one in moving:
        groups.setdefault(one.decay, []).append(one)
    # torch's functions, not its classes: these import its compiler, which takes 2 s
    if isinstance(choice, SGD):
        return lambda: _step_sgd(choice, groups)
    steps = {
        decay: [torch.tensor(float(one.steps), device=one.values.device) for one in group]
        for decay, group in groups.items()
    }
    return lambda: _step_adam(choice, groups, steps)


def _step_adam(
    choice: Adam, groups: Mapping[float, list[Moving]], steps: Mapping[float, list[Tensor]]
) -> None:
    for decay, group in groups.items():
        adam(
            [one.values for one in group],
            [one.values.grad for one in group],
            [one.moments[0] for one in group],
            [one.moments[1] for one in group],
            [],
            steps[decay],
            fused=True,  # on a CPU it wants gradients in the parameters' own layout
            amsgrad=False,
            lr=choice.rate,
            beta1=choice.betas[0],
            beta2=choice.betas[1],
            eps=choice.epsilon,
            weight_decay=decay,
            maximize=False,
        )


def _step_sgd(choice: SGD, groups: Mapping[float, list[Moving]]) -> None:
    for decay, group in groups.items():
        sgd(
            [one.values for one in group],
            [one.values.grad for one in group],
            [one.moments[0] if one.moments else None for one in group],
            weight_decay=decay,
            momentum=choice.momentum,
            lr=choice.rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            foreach=False,
        )
