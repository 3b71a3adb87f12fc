"""A linear layer that may be those of several learners, stacked in front of all axes."""

from __future__ import annotations

from intarsia.maths.tensors import Tensor, nn

__all__ = ["StackedLinear"]


class StackedLinear(nn.Linear):
    """x Wᵀ + b with W (..., units, features) and b (..., units); drawn as torch's own layer is."""

    def forward(self, x: Tensor) -> Tensor:
        """Return (..., rows, units) for rows (..., rows, features)."""
        found: Tensor = x @ self.weight.mT + self.bias.unsqueeze(-2)
        return found
