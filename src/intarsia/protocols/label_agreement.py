"""Whether the clients that have a label of the same sample have the same one.

The clients that label a sample are compared in a row, each with the next. Two of them add up the
labels that they both have, each times a random whole number, and the server reads by how much the
two sums differ (`add_labels`). It is 0 where the labels agree; where one differs it never is, and
where several do with a chance of one in 60,000. The sums are rounded once, so that neither the
order of samples nor the processor matters.

What crosses: the server learns which two clients differ and one random combination of what they
differ by; no client learns a label.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.core.algorithm import Clients, RandomKey, client_function
from intarsia.core.block import Array, Block, ClientId
from intarsia.core.schema import Schema
from intarsia.errors import FederationError, TableError

__all__ = ["FUNCTIONS", "check_agreement"]

_MOST = 2**16  # of the factors
_LARGEST = 1e200  # label


@dataclass(frozen=True)
class LabelPairs:
    """The samples that a client and another one label, of each pair that it is in."""

    pairs: int  # in all
    own: tuple[int, ...]  # the numbers of those that the client is in
    signs: tuple[int, ...]  # 1 at the first of two, -1 at the second
    samples: tuple[NDArray[np.int64], ...]  # of each, in the client's order
    seed: int  # of the factors, the same at both


@dataclass(frozen=True)
class LabelDifferences:
    """A client's part of what the labels of two differ by."""

    totals: Array  # (pairs,)


def check_agreement(clients: Clients, schema: Schema, rng: RandomKey) -> None:
    """Refuse labels of one sample that differ between clients.

    Raises
    ------
    FederationError
        If the labels of two clients do; it names both.
    TableError
        If a label is too large to be added up.
    """
    pairs = _pairs(schema)
    if not pairs:
        return
    parts: dict[ClientId, list[tuple[int, int, NDArray[np.int64]]]] = {}
    for number, (first, second, shared) in enumerate(pairs):
        for name, sign in ((first, 1), (second, -1)):
            places = np.searchsorted(schema.samples.own(name), shared).astype(np.int64)
            parts.setdefault(name, []).append((number, sign, places))
    messages = {
        name: LabelPairs(
            pairs=len(pairs),
            own=tuple(number for number, _, _ in parts[name]),
            signs=tuple(sign for _, sign, _ in parts[name]),
            samples=tuple(places for _, _, places in parts[name]),
            seed=rng.integer(),
        )
        for name in clients.ids
        if name in parts
    }
    # discloses which two clients have labels that differ, and a random combination by how much
    totals = clients.reveal(clients.sum(add_labels, messages)).totals
    wrong = [pairs[number] for number in np.flatnonzero(totals).tolist()]
    if wrong:
        first, second, shared = wrong[0]
        more = f", and so do {len(wrong) - 1} more pairs of clients" if len(wrong) > 1 else ""
        raise FederationError(
            f"{first!r} and {second!r} have different labels of one or more of the {len(shared)} "
            f"samples that both label{more}; correct one of the tables."
        )


def _pairs(schema: Schema) -> Sequence[tuple[ClientId, ClientId, NDArray[np.intp]]]:
    """Return clients that label the same samples, the first, the next and which (positions)."""
    latest = np.full(len(schema.samples), -1, np.intp)  # who labelled a sample before
    found: list[tuple[ClientId, ClientId, NDArray[np.intp]]] = []
    for number, name in enumerate(schema.clients):
        labelled = schema.samples.own(name)[schema.labelled_at(name)]
        before = latest[labelled]
        for other in np.unique(before[before >= 0]):
            found.append((schema.clients[other], name, labelled[before == other]))
        latest[labelled] = number
    return found


@client_function
def add_labels(
    state: Any, block: Block, message: LabelPairs, rng: RandomKey
) -> tuple[Any, LabelDifferences]:
    """Add up the labels of the samples that another client labels too."""
    totals = np.zeros(message.pairs)
    assert block.y is not None
    if np.nanmax(np.abs(block.y)) > _LARGEST:
        raise TableError(
            f"A label is beyond {_LARGEST:g}, too large to be added up; divide labels by a power "
            "of ten at every client."
        )
    for number, sign, samples in zip(message.own, message.signs, message.samples, strict=True):
        factors = RandomKey((message.seed, number)).generator().integers(1, _MOST, len(samples))
        totals[number] = sign * math.fsum((factors * block.y[samples]).tolist())
    return state, LabelDifferences(totals)


FUNCTIONS = (add_labels,)
