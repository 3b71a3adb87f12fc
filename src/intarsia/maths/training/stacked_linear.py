"""A linear layer that may be those of several learners, stacked in front of all axes."""

from __future__ import annotations

from intarsia.maths.training.torch_import import Tensor, nn

__all__ = ["StackedLinear", "affine"]


def affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return x Wᵀ + b, (..., rows, units)."""
    found: Tensor = x @ weight.mT + bias.unsqueeze(-2)
    return found


class StackedLinear(nn.Linear):
    """x Wᵀ + b with W (..., units, features) and b (..., units); drawn as torch's own layer is."""

    def forward(self, x: Tensor) -> Tensor:
        """Return (..., rows, units) for rows (..., rows, features)."""
        return affine(x, self.weight, self.bias)
