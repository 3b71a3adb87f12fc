"""The batches that a client trains on, and the numbers that it draws: by its own key alone.

No engine, chunk or other client has a part in them, so that all engines train on the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.maths.training.torch_import import Tensor, torch

__all__ = ["NoiseStream", "batch_order", "step_count"]

_BLOCK = 8  # steps whose numbers are drawn at once; another number gives other streams


def step_count(samples: int, batch_size: int, epochs: int, steps: int | None) -> int:
    """Return the steps of a training: `steps` if given, else those of the epochs."""
    return steps if steps is not None else epochs * -(-samples // batch_size)


def batch_order(key: int, samples: int, batch_size: int, steps: int) -> NDArray[np.int64]:
    """Return the rows of each step, (steps, batch size), -1 where a batch is not full.

    Each epoch takes every row once, in an order of its own; its last batch may be smaller.
    """
    generator = np.random.Generator(np.random.Philox(key=key))
    each = step_count(samples, batch_size, 1, None)
    epochs = -(-steps // each)
    order = np.full((epochs, each * batch_size), -1, np.int64)
    for epoch in order:
        epoch[:samples] = generator.permutation(samples)
    return order.reshape(-1, batch_size)[:steps]


class NoiseStream:
    """A client's standard normal numbers, step by step."""

    def __init__(
        self, key: int, shapes: Mapping[str, tuple[int, ...]], batch_size: int, dtype: Any
    ) -> None:
        self._shapes = {name: (_BLOCK, batch_size, *shape) for name, shape in shapes.items()}
        self._dtype = dtype
        # torch draws these twice as fast as NumPy does, from the key's lower 32 bits
        self._generator = torch.Generator().manual_seed(key)
        self._block: dict[str, Tensor] = {}
        self._step = 0

    def step(self) -> dict[str, Tensor]:
        """Return the next step's numbers by name, each (batch size, ...), on the CPU."""
        if self._step % _BLOCK == 0:
            self._block = {
                name: torch.randn(shape, generator=self._generator, dtype=self._dtype)
                for name, shape in self._shapes.items()
            }
        drawn = {name: values[self._step % _BLOCK] for name, values in self._block.items()}
        self._step += 1
        return drawn
