"""How many clients hold samples of each class with each feature block.

It reads labels, and is for those who see all tables anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from intarsia.core.block import Block, ClientId, Labels
from intarsia.core.feature_blocks import group_columns

__all__ = ["BlockClasses", "block_classes"]


@dataclass(frozen=True, eq=False)
class BlockClasses:
    """How many clients hold samples of each class with each feature block."""

    blocks: tuple[str, ...]
    classes: tuple[str, ...]
    clients: NDArray[np.int64]  # (blocks, classes)

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """Return the numbers of clients by block and class."""
        return {
            name: dict(zip(self.classes, row, strict=True))
            for name, row in zip(self.blocks, self.clients.tolist(), strict=True)
        }

    @property
    def unused(self) -> float:
        """Return the fraction of (block, class) pairs that nobody holds."""
        return float((self.clients == 0).mean())


def block_classes(blocks: Mapping[ClientId, Block], labels: Labels) -> BlockClasses | None:
    """Return how many clients hold each block of each class; None without classes or blocks."""
    # a group with a client's own name holds what this client named no group for
    named = {client: [n for n in block.groups if n != client] for client, block in blocks.items()}
    names = _merged(list(named.values()))
    codes = [-1.0, 1.0] if labels.task == "binary" else np.arange(len(labels.classes)).tolist()
    if labels.task == "regression" or not names:
        return None
    counts = np.zeros((len(names), len(codes)), np.int64)
    for client, block in blocks.items():
        if block.y is None:
            continue
        for name in named[client]:
            known = _complete(block, name)
            counts[names.index(name)] += np.isin(codes, block.y[known])
    return BlockClasses(tuple(names), labels.classes, counts)


def _merged(lists: list[list[str]]) -> list[str]:
    """Return all names in an order that agrees with every list, or else as they first come."""
    before: dict[str, set[str]] = {}
    for names in lists:
        for first, name in pairwise([None, *names]):
            before.setdefault(str(name), set()).update(() if first is None else (first,))
    try:
        return list(TopologicalSorter(before).static_order())
    except CycleError:
        return list(before)


def _complete(block: Block, name: str) -> NDArray[np.bool_]:
    """Return which samples have a value in a block, (samples,)."""
    if block.sparse:
        return np.ones(block.shape[0], bool)
    return np.asarray(~np.isnan(block.x[:, group_columns(block, name)]).all(axis=1))
