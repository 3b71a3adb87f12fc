"""Who holds which samples, or which features: public index sets, ordered cell by cell."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Cell", "ClientId", "Index"]

ClientId = str


@dataclass(frozen=True)
class Cell:
    """Entries with the same owners: positions `start` to `stop` of an Index."""

    owners: tuple[ClientId, ...]
    start: int
    stop: int


@dataclass(frozen=True, eq=False)
class Index:
    """All samples (or all features) of a federation, ordered cell by cell, by id in a cell.

    A client's own entries are in ascending position, so that `total[..., positions[client]]`
    are the client's values in the client's order.
    """

    ids: NDArray[Any]  # (entries,)
    cells: tuple[Cell, ...]
    positions: Mapping[ClientId, slice | NDArray[np.intp]]

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def holders(self) -> NDArray[np.intp]:
        """Return how many clients hold each entry, (entries,)."""
        counts = np.empty(len(self.ids), np.intp)
        for cell in self.cells:
            counts[cell.start : cell.stop] = len(cell.owners)
        return counts

    @cached_property
    def cell_of(self) -> NDArray[np.intp]:
        """Return the cell number of each entry, (entries,)."""
        sizes = [cell.stop - cell.start for cell in self.cells]
        return np.repeat(np.arange(len(self.cells)), sizes)

    def own(self, client: ClientId) -> NDArray[np.intp]:
        """Return a client's positions as an array, (own entries,)."""
        where = self.positions[client]
        if isinstance(where, slice):
            return np.arange(where.start, where.stop)
        return where

    @cached_property
    def owners(self) -> tuple[ClientId, ...]:
        """Return the clients that hold an entry, in their order."""
        found = {name for cell in self.cells for name in cell.owners}
        return tuple(name for name in self.positions if name in found)

    @cached_property
    def cells_of(self) -> Mapping[ClientId, Mapping[int, int]]:
        """Return the numbers of each client's cells, with its place among their owners.

        For all clients at once: each by itself would go through the cells of all.
        """
        found: dict[ClientId, dict[int, int]] = {name: {} for name in self.positions}
        for number, cell in enumerate(self.cells):
            for place, name in enumerate(cell.owners):
                found[name][number] = place
        return found

    @cached_property
    def owner_sets(self) -> tuple[frozenset[ClientId], ...]:
        """Return the owners of each cell as a set."""
        return tuple(frozenset(cell.owners) for cell in self.cells)

    def rank(self, client: ClientId, positions: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the client's place among the owners of some of its entries."""
        places = np.zeros(len(self.cells), np.intp)
        for number, place in self.cells_of[client].items():
            places[number] = place
        return places[self.cell_of[positions]]

    def own_cells(self, client: ClientId) -> tuple[tuple[int, int, int, int], ...]:
        """Return start, stop (in the client's order), holders and own rank of each of its cells."""
        found: list[tuple[int, int, int, int]] = []
        start = 0
        for number, place in self.cells_of[client].items():
            cell = self.cells[number]
            stop = start + cell.stop - cell.start
            found.append((start, stop, len(cell.owners), place))
            start = stop
        return tuple(found)

    @classmethod
    def of(cls, held: Mapping[ClientId, NDArray[Any]]) -> Index:
        """Return the index of the given clients' entries.

        Cells are found by a 64-bit signature of the set of owners (a sum of one random word per
        client), so that the cost is one sort of all entries.
        """
        clients = list(held)
        ids, inverse = np.unique(np.concatenate(list(held.values())), return_inverse=True)
        word = np.array([_word(name) for name in clients], np.uint64)
        signature = np.zeros(len(ids), np.uint64)
        first = np.full(len(ids), len(clients), np.intp)
        starts = np.cumsum([0, *(len(v) for v in held.values())])
        local = {}
        for number, name in enumerate(clients):
            own = inverse[starts[number] : starts[number + 1]]
            local[name] = own
            signature[own] += word[number]
            np.minimum.at(first, own, number)
        order = np.lexsort((np.arange(len(ids)), signature, first))
        place = np.empty(len(ids), np.intp)
        place[order] = np.arange(len(ids))
        sorted_signature = signature[order]
        edges = np.flatnonzero(np.diff(sorted_signature, prepend=sorted_signature[:1] + 1))
        owners: list[list[ClientId]] = [[] for _ in edges]
        number_of = np.zeros(len(ids), np.intp)
        number_of[edges[1:]] = 1
        number_of = np.cumsum(number_of)
        positions: dict[ClientId, slice | NDArray[np.intp]] = {}
        for name in clients:
            own = np.sort(place[local[name]])
            for cell in np.flatnonzero(np.bincount(number_of[own])):
                owners[cell].append(name)
            positions[name] = _compact(own)
        stops = [*edges[1:].tolist(), len(ids)][: len(edges)]  # none at all without entries
        cells = tuple(
            Cell(tuple(names), int(start), int(stop))
            for names, start, stop in zip(owners, edges, stops, strict=True)
        )
        return cls(ids[order], cells, positions)


def _word(name: ClientId) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def _compact(positions: NDArray[np.intp]) -> slice | NDArray[np.intp]:
    if len(positions) and positions[-1] - positions[0] + 1 == len(positions):
        return slice(int(positions[0]), int(positions[-1]) + 1)
    return positions
