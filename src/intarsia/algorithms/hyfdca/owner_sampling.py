"""Draw which owner of a shared sample steps on it: anew each time, the same at every owner."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.core.block import ClientId


def mix(key: NDArray[np.uint64], draw: int) -> NDArray[np.uint64]:
    """Return well-mixed words (the finaliser of splitmix64), the same at every co-owner."""
    word = key + np.uint64(draw)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


def choose_owned(client: Any, present: tuple[ClientId, ...], draw: int) -> NDArray[np.intp]:
    """Return the samples that fall to a client, of which it knows labels and owners."""
    key, cell, owners = client.label_key, client.label_cell, client.label_owners
    there = set(present)
    count = np.ones(len(owners) + 1, np.uint64)
    rank = np.zeros(len(owners) + 1, np.uint64)
    for number, names in enumerate(owners):
        left = [one for one in names if one in there]
        count[number] = max(len(left), 1)
        rank[number] = left.index(client.name) if client.name in left else 0
    return np.flatnonzero((cell >= 0) & (mix(key, draw) % count[cell] == rank[cell]))


def present_share(
    cell: NDArray[np.int64],
    owners: tuple[tuple[ClientId, ...], ...],
    present: tuple[ClientId, ...],
) -> NDArray[np.float64]:
    """Return 1 / owners that are there for each entry, 0 where `cell` is -1."""
    there = set(present)
    shares = [1 / max(len(there.intersection(names)), 1) for names in owners]
    return np.array([*shares, 0.0])[cell]
