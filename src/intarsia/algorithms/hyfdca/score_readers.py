"""Which samples a client steps on and counts: those whose scores it reads.

Of the holders of a sample's label one opens its score, the same in every round in which it is
there. Several holders divide an overlap group; where one is away, the next stands in for it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.core.block import ClientId
from intarsia.errors import CheckpointError


def find_read(client: Any, there: Collection[ClientId] | None = None) -> NDArray[np.int64]:
    """Return the samples whose scores a client reads, of those that are there (None: of all).

    Raises
    ------
    CheckpointError
        If the state is of an earlier version, which did not say who reads what.
    """
    if client.readers is None:
        raise earlier_version()
    starts = [0, *client.score_stops[:-1]]
    found = [
        client.score_order[start:stop]
        for start, stop, names in zip(starts, client.score_stops, client.readers, strict=True)
        if next((name for name in names if there is None or name in there), None) == client.name
    ]
    return np.sort(np.concatenate([np.zeros(0, np.int64), *found]))


def earlier_version() -> CheckpointError:
    """Return the error about a run that showed scores to all that hold a label."""
    return CheckpointError(
        "The run was begun by an earlier version, in which all that hold the label of a sample "
        "open its score, and in this one a single client does; start it anew with --overwrite."
    )


def present_share(
    cell: NDArray[np.int64],
    owners: tuple[tuple[ClientId, ...], ...],
    present: tuple[ClientId, ...],
) -> NDArray[np.float64]:
    """Return 1 / owners that are there for each entry, 0 where `cell` is -1."""
    there = set(present)
    shares = [1 / max(len(there.intersection(names)), 1) for names in owners]
    return np.array([*shares, 0.0])[cell]
