"""An embedding of your own: `embedding = "own_embedding:Strokes"` of an algorithm on networks."""

from __future__ import annotations

import math

import torch
from torch import nn


class Strokes(nn.Module):
    """Points of pictures, (rows, latent), that come as rows of pixels."""

    def __init__(self, features: int, latent: int) -> None:
        super().__init__()
        side = math.isqrt(features)
        self.picture = nn.Unflatten(1, (1, side, side))
        self.patches = nn.Conv2d(1, 16, 3, padding=1)
        self.norm = nn.GroupNorm(4, 16)  # BatchNorm keeps buffers, which no average carries
        self.last = nn.Linear(16 * (side // 2) ** 2, latent)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the points of rows."""
        found = torch.relu(self.norm(self.patches(self.picture(x))))
        return self.last(nn.functional.max_pool2d(found, 2).flatten(1))
