"""Clients with networks of their own, in plain PyTorch: six clinics with two kinds of scanner.

    python examples/own_networks.py

Three clinics have pictures of 8 x 8 pixels, three of 12 x 12, few of each: no feature is common to
the two kinds. Each kind has its module; the parameters of both have the same shapes, so that all
clinics share them through sums (which no server could read with privacy="masked"). Beside it: the
same modules, each trained alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import intarsia

HIDDEN, DROPPED = 32, 0.2


class Scans(nn.Module):
    """Scores of pictures, (rows, classes), that come as rows of pixels."""

    def __init__(self, side: int, classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Unflatten(1, (1, side, side)),
            nn.Conv2d(1, 8, 3),
            nn.GroupNorm(2, 8),  # BatchNorm would mix what a batch is filled up with
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.ReLU(),
        )
        self.head = nn.Linear(HIDDEN, classes)

    def forward(self, x: torch.Tensor, kept: torch.Tensor | None = None) -> torch.Tensor:
        """Return the scores, with dropout where it says what is kept."""
        latent = self.body(x)
        return self.head(latent if kept is None else latent * kept / (1 - DROPPED))


def small(features: int, classes: int) -> nn.Module:
    return Scans(8, classes)


def large(features: int, classes: int) -> nn.Module:
    return Scans(12, classes)


def objective(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return each row's cross-entropy, with dropout."""
    # nn.Dropout draws from one stream for all clients; these normal numbers are the client's own
    kept = (torch.special.ndtr(batch["drawn"]) > DROPPED).to(batch["x"].dtype)
    return functional.cross_entropy(model(batch["x"], kept), batch["y"], reduction="none")


def scans(side: int, rows: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return made-up pictures with stripes in one of three directions, and the directions."""
    y = rng.integers(0, 3, rows)
    across, down = np.meshgrid(np.arange(side), np.arange(side))
    steps = np.stack([across, down, across + down])[y]
    shift = rng.uniform(0, 2 * np.pi, (rows, 1, 1))
    clean = np.sin(1.5 * steps + shift)
    return (clean + 2 * rng.normal(size=clean.shape)).reshape(rows, -1), y


def main(**settings: Any) -> dict[str, tuple[float, float]]:
    rng = np.random.default_rng(0)
    tables = {f"small {k}": scans(8, 80, rng) for k in range(3)}
    tables |= {f"large {k}": scans(12, 80, rng) for k in range(3)}
    here = __spec__.name if __spec__ is not None else "__main__"
    described = {
        "tables": tables,
        "algorithm": "own-networks",
        "model": f"{here}:small",
        "models": {f"large {k}": f"{here}:large" for k in range(3)},
        "objective": f"{here}:objective",
        "noise": {"drawn": [HIDDEN]},
        "rate": 0.01,
        "batch": 20,
        "rounds": 30,
        "test": 0.4,
        "yardsticks": False,
        **settings,
    }
    together = intarsia.run(**described, shared=["*"]).metrics.clients
    alone = intarsia.run(**described).metrics.clients
    for name, score in together.items():
        print(f"{name}: accuracy {score.accuracy:.2f}, alone {alone[name].accuracy:.2f}")
    return {name: (score.accuracy, alone[name].accuracy) for name, score in together.items()}


if __name__ == "__main__":
    main()
