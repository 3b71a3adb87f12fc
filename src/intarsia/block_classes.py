"""How many clients hold samples of each class with each feature block.

It reads labels, and is for those who see all tables anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from intarsia.data import Block, ClientId, Labels
from intarsia.feature_blocks import group_columns

__all__ = ["BlockClasses", "block_classes"]


@dataclass(frozen=True, eq=False)
class BlockClasses:
    """How many clients hold samples of each class with each feature block."""

    blocks: tuple[str, ...]
    classes: tuple[str, ...]
    clients: NDArray[np.int64]  # (blocks, classes)

    @property
    def unused(self) -> float:
        """Return the fraction of (block, class) pairs that nobody holds."""
        return float((self.clients == 0).mean())


def block_classes(blocks: Mapping[ClientId, Block], labels: Labels) -> BlockClasses | None:
    """Return how many clients hold each block of each class; None without classes or blocks."""
    names = list(dict.fromkeys(name for block in blocks.values() for name in block.groups))
    codes = [-1.0, 1.0] if labels.task == "binary" else np.arange(len(labels.classes)).tolist()
    if labels.task == "regression" or not names:
        return None
    counts = np.zeros((len(names), len(codes)), np.int64)
    for block in blocks.values():
        if block.y is None:
            continue
        for name in block.groups:
            known = _complete(block, name)
            counts[names.index(name)] += np.isin(codes, block.y[known])
    return BlockClasses(tuple(names), labels.classes, counts)


def _complete(block: Block, name: str) -> NDArray[np.bool_]:
    """Return which samples have a value in a block, (samples,)."""
    if block.sparse:
        return np.ones(block.shape[0], bool)
    return np.asarray(~np.isnan(block.x[:, group_columns(block, name)]).all(axis=1))
