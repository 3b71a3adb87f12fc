"""Who holds which samples, or which features: public index sets, ordered cell by cell."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.core.block import (
    INTERCEPT,
    Array,
    Block,
    ClientId,
    Copies,
    Labels,
    distinct_of,
    places_of,
)
from intarsia.errors import FederationError


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
        if not isinstance(where, slice):
            return where
        span = where.start, where.stop
        if span not in self._spans:  # of clients with the same entries, one array
            self._spans[span] = np.arange(*span)
        return self._spans[span]

    @cached_property
    def _spans(self) -> dict[tuple[int, int], NDArray[np.intp]]:
        return {}

    def kinds(self, client: ClientId) -> NDArray[np.intp]:
        """Return which of the client's cells each of its entries is in, (own entries,)."""
        numbers = tuple(self.cells_of[client].tolist())
        if numbers not in self._kinds:  # of clients with the same entries, one array
            sizes = [self.cells[one].stop - self.cells[one].start for one in numbers]
            self._kinds[numbers] = np.repeat(np.arange(len(numbers)), sizes)
        return self._kinds[numbers]

    @cached_property
    def _kinds(self) -> dict[tuple[int, ...], NDArray[np.intp]]:
        return {}

    @cached_property
    def owners(self) -> tuple[ClientId, ...]:
        """Return the clients that hold an entry, in their order."""
        found = {name for cell in self.cells for name in cell.owners}
        return tuple(name for name in self.positions if name in found)

    @cached_property
    def cells_of(self) -> Mapping[ClientId, NDArray[np.int32]]:
        """Return the numbers of each client's cells, ascending."""
        return {name: own[0] for name, own in self._cells_and_ranks.items()}

    @cached_property
    def _cells_and_ranks(self) -> Mapping[ClientId, NDArray[np.int32]]:
        """Return each client's cells, and its place among the owners of each, (2, own cells).

        For all clients at once: each by itself would go through the cells of all.
        """
        numbers = {name: number for number, name in enumerate(self.positions)}
        sizes = [len(cell.owners) for cell in self.cells]
        owners = np.array([numbers[name] for cell in self.cells for name in cell.owners], np.int32)
        order = np.argsort(owners, kind="stable")
        cells = np.repeat(np.arange(len(self.cells), dtype=np.int32), sizes)
        starts = np.repeat(np.cumsum([0, *sizes])[:-1], sizes)
        both = np.stack([cells, np.arange(len(owners)) - starts]).astype(np.int32)[:, order]
        stops = np.cumsum(np.bincount(owners, minlength=len(numbers)))
        return dict(zip(numbers, np.split(both, stops[:-1], axis=1), strict=True))

    @cached_property
    def owner_sets(self) -> tuple[frozenset[ClientId], ...]:
        """Return the owners of each cell as a set."""
        return tuple(frozenset(cell.owners) for cell in self.cells)

    @cached_property
    def keepers(self) -> tuple[ClientId, ...]:
        """Return the owner that each cell falls to: owners take turns by its number."""
        return tuple(cell.owners[at % len(cell.owners)] for at, cell in enumerate(self.cells))

    @cached_property
    def counting(self) -> Collection[ClientId]:
        """Return the clients that a cell falls to, in their order: each entry is at one of them."""
        names = set(self.keepers)
        return {name: None for name in self.owners if name in names}.keys()  # quick to look up

    def rank(self, client: ClientId, positions: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the client's place among the owners of some of its entries."""
        numbers, ranks = self._cells_and_ranks[client]
        places = np.zeros(len(self.cells), np.intp)
        places[numbers] = ranks
        return places[self.cell_of[positions]]

    def own_cells(self, client: ClientId) -> tuple[tuple[int, int, int, int], ...]:
        """Return start, stop (in the client's order), holders and own rank of each of its cells."""
        found: list[tuple[int, int, int, int]] = []
        start = 0
        for number, place in self._cells_and_ranks[client].T.tolist():
            cell = self.cells[number]
            stop = start + cell.stop - cell.start
            found.append((start, stop, len(cell.owners), place))
            start = stop
        return tuple(found)

    @classmethod
    def of(
        cls,
        held: Mapping[ClientId, NDArray[Any]],
        within: Mapping[str, tuple[ClientId, NDArray[np.bool_]]] | None = None,
    ) -> Index:
        """Return the index of the given clients' entries.

        `within` adds owners that hold a part of a client's entries: the client, and which of them.

        Cells are found by a 64-bit signature of the set of owners (a sum of one random word per
        owner), so that the cost is one sort of all entries.
        """
        ids, which = distinct_of(list(held.values()))
        local = dict(zip(held, which, strict=True))
        for name, (client, some) in (within or {}).items():
            local[name] = local[client][some]
        signature = np.zeros(len(ids), np.uint64)
        first = np.full(len(ids), len(local), np.int32)
        for number, (name, own) in reversed([*enumerate(local.items())]):
            digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
            signature[own] += np.uint64(int.from_bytes(digest, "little"))
            first[own] = number  # the first owner's stays
        order = np.lexsort((signature, first))  # ids are in order, and stay so in a cell
        del first  # of millions of ids each array counts
        signature = signature[order]
        edges = np.flatnonzero(np.append(True, signature[1:] != signature[:-1])[: len(ids)])
        del signature
        place = np.empty(len(ids), np.int32 if len(ids) < 2**31 else np.intp)
        place[order] = np.arange(len(ids), dtype=place.dtype)
        owners: list[list[ClientId]] = [[] for _ in edges]
        positions: dict[ClientId, slice | NDArray[np.intp]] = {}
        ends = np.append(edges[1:], len(ids))[: len(edges)]  # none at all without entries
        # of clients with the same entries once: `found` is then the same object
        known: dict[int, tuple[slice | NDArray[np.intp], list[int]]] = {}
        for name, found in local.items():
            if id(found) not in known:
                own = _ascending(place[found], len(ids))
                known[id(found)] = compact(own), _cells_with(own, ends)
            positions[name], cells_held = known[id(found)]
            for cell in cells_held:
                owners[cell].append(name)
        stops = ends.tolist()
        cells = tuple(
            Cell(tuple(names), int(start), int(stop))
            for names, start, stop in zip(owners, edges, stops, strict=True)
        )
        return cls(ids[order], cells, positions)


def _ascending(positions: NDArray[Any], total: int) -> NDArray[np.intp]:
    """Return some of so many positions in order, each of which is there once at most."""
    if _FEW * len(positions) < total:
        return np.sort(positions).astype(np.intp)
    held = np.zeros(total, bool)  # many are marked in a tenth of the time of sorting
    held[positions] = True
    return np.flatnonzero(held)


_FEW = 16  # times as many entries, beyond which sorting is faster than marking


def _cells_with(positions: NDArray[np.intp], ends: NDArray[np.intp]) -> list[int]:
    """Return the numbers of the cells, by where they end, with one of some ascending positions."""
    if len(ends) > len(positions):
        found: list[int] = np.unique(np.searchsorted(ends, positions, side="right")).tolist()
        return found
    counts = np.diff(np.searchsorted(positions, ends), prepend=0)
    return list(np.flatnonzero(counts).tolist())


def compact(positions: NDArray[np.intp]) -> slice | NDArray[np.intp]:
    """Return ascending positions as a slice, where they follow one another."""
    if len(positions) and positions[-1] - positions[0] + 1 == len(positions):
        return slice(int(positions[0]), int(positions[-1]) + 1)
    return positions


@dataclass(frozen=True, eq=False)
class ScoreCell:
    """Samples with the same owners, whose scores one client opens."""

    owners: tuple[ClientId, ...]
    # that hold the labels: the first that is there opens the scores; none where nobody has labels
    readers: tuple[ClientId, ...]
    positions: NDArray[np.int64]  # in the index of samples, ascending

    def reader(self, there: Collection[ClientId] | None = None) -> ClientId | None:
        """Return who opens the scores, of those that are there (None: of all)."""
        return next((name for name in self.readers if there is None or name in there), None)


@dataclass(frozen=True)
class Learners:
    """Some clients of a federation, in a few words."""

    names: tuple[ClientId, ...]
    others: bool  # whether these are all clients but those

    def among(self, there: Collection[ClientId]) -> int:
        """Return how many of them are there."""
        named = sum(name in there for name in self.names)
        return len(there) - named if self.others else named


@dataclass(frozen=True, eq=False)
class Holding:
    """What is public about one client: its samples, features and feature blocks, which labels."""

    samples: NDArray[Any]  # (samples,) ids
    features: tuple[str, ...]
    labelled: NDArray[np.bool_]  # (samples,)
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    # categorical column -> its levels, as a `Block` has them
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    @classmethod
    def of(cls, block: Block) -> Holding:
        """Return what a block makes public."""
        labelled = np.zeros(len(block.samples), bool) if block.y is None else ~np.isnan(block.y)
        return cls(
            *(block.samples, block.features, labelled, block.groups, block.shapes), block.levels
        )


@dataclass(frozen=True, eq=False)
class Schema:
    """What is public about a federation: index sets only, and what the labels mean."""

    holdings: Mapping[ClientId, Holding]
    labels: Labels

    @classmethod
    def of(cls, blocks: Mapping[ClientId, Block], labels: Labels) -> Schema:
        """Return the schema of the given clients.

        Raises
        ------
        FederationError
            If there is no client, or ids are text at one client and numbers at another.
        """
        if not blocks:
            raise FederationError("There is no client; a federation needs at least one.")
        kinds = {name: block.samples.dtype.kind in "iu" for name, block in blocks.items()}
        if len(set(kinds.values())) > 1:
            number = next(name for name, whole in kinds.items() if whole)
            text = next(name for name, whole in kinds.items() if not whole)
            raise FederationError(
                f"Client {number!r} has whole numbers as sample ids "
                f"(first: {blocks[number].samples[0]}) but client {text!r} has text (first: "
                f"{str(blocks[text].samples[0])!r})",
                'ids must have one type: set id_type = "text" or "integer" for both if the same '
                "id then reads the same, and else write the ids alike",
                without_settings="ids must have one type: write them alike in all tables",
            )
        return cls({name: Holding.of(block) for name, block in blocks.items()}, labels)

    def with_features(self, features: Mapping[ClientId, tuple[str, ...]]) -> Schema:
        """Return the schema of the same samples and labels, of which no index is made anew."""
        held = self.holdings.items()
        found = Schema(
            {name: replace(one, features=features[name]) for name, one in held}, self.labels
        )
        kept = ("samples", "labelled", "label_holders", "turns")
        vars(found).update({name: own for name, own in vars(self).items() if name in kept})
        return found

    @cached_property
    def clients(self) -> tuple[ClientId, ...]:
        """Return the names of the clients, in the order given."""
        return tuple(self.holdings)

    @cached_property
    def samples(self) -> Index:
        """Return the index of all samples."""
        return Index.of({name: holding.samples for name, holding in self.holdings.items()})

    @cached_property
    def features(self) -> Index:
        """Return the index of all features.

        Names are Python objects: an array of fixed-width text takes the longest name's room for
        each (2 GB for 130,000 words of a text).
        """
        return Index.of(
            {name: np.array(holding.features, object) for name, holding in self.holdings.items()}
        )

    @cached_property
    def turns(self) -> Mapping[ClientId, int]:
        """Return the turn of each client, another one than those of its co-owners of samples."""
        met: dict[ClientId, set[ClientId]] = {name: set() for name in self.clients}
        for cell in self.samples.cells:
            for name in cell.owners:
                met[name].update(cell.owners)
        turns: dict[ClientId, int] = {}
        for name in self.clients:
            taken = {turns[other] for other in met[name] if other in turns}
            turns[name] = next(turn for turn in range(len(taken) + 1) if turn not in taken)
        return turns

    @cached_property
    def learners(self) -> tuple[Learners, ...]:
        """Return by feature cell which of its owners have labels."""
        able = {name for name, holding in self.holdings.items() if holding.labelled.any()}
        found: list[Learners] = []
        for cell in self.features.cells:
            inside = [name for name in cell.owners if name in able]
            others = len(inside) > len(self.holdings) / 2
            if others:  # of all clients of a large federation nobody lists all others in its state
                known = frozenset(inside)
                inside = [name for name in self.holdings if name not in known]
            found.append(Learners(tuple(inside), others))
        return tuple(found)

    @cached_property
    def labelled(self) -> Index:
        """Return the index of the samples with a label, by who holds the label."""
        if self._all_labelled:
            return self.samples
        return Index.of(
            {name: holding.samples[holding.labelled] for name, holding in self.holdings.items()}
        )

    @cached_property
    def score_cells(self) -> tuple[ScoreCell, ...]:
        """Return the cells of samples by who opens their scores, in the order of sample cells.

        Several clients with the same labels divide each cell into stretches. Each of them comes
        first at one, and stands in for the others in turn.
        """
        found: list[ScoreCell] = []
        labelled = self.labelled
        label_cell = np.full(len(self.samples), -1)
        if labelled is self.samples:
            label_cell = np.asarray(labelled.cell_of)
        elif len(labelled):
            at = places_of(labelled.ids, self.samples.ids)
            label_cell[at] = labelled.cell_of
        for cell in self.samples.cells:
            here = label_cell[cell.start : cell.stop]
            for number in np.unique(here):
                places = cell.start + np.flatnonzero(here == number)
                names = labelled.cells[number].owners if number >= 0 else ()
                for turn, part in enumerate(np.array_split(places, max(len(names), 1))):
                    first = (number + turn) % len(names) if names else 0
                    readers = (*names[first:], *names[:first])
                    if len(part):
                        found.append(ScoreCell(cell.owners, readers, part.astype(np.int64)))
        return tuple(found)

    @cached_property
    def score_cells_of(self) -> Mapping[ClientId, tuple[int, ...]]:
        """Return the numbers of each client's cells of scores, ascending."""
        found: dict[ClientId, list[int]] = {name: [] for name in self.holdings}
        for number, cell in enumerate(self.score_cells):
            for name in cell.owners:
                found[name].append(number)
        return {name: tuple(numbers) for name, numbers in found.items()}

    def score_order(self, client: ClientId) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return a client's samples in the order of its cells of scores, and where these end.

        Both count from the first sample of its aligned block.
        """
        places = [self.score_cells[number].positions for number in self.score_cells_of[client]]
        own = self.samples.positions[client]
        order = np.concatenate([np.zeros(0, np.int64), *places])
        stops = np.cumsum([len(one) for one in places], dtype=np.int64)
        if isinstance(own, slice):
            return order - own.start, stops
        return np.searchsorted(own, order), stops

    @cached_property
    def _all_labelled(self) -> bool:
        """Return whether every client holds the labels of all its samples."""
        return all(bool(holding.labelled.all()) for holding in self.holdings.values())

    @cached_property
    def label_holders(self) -> NDArray[np.intp]:
        """Return how many clients hold the label of each sample, (samples,)."""
        if self._all_labelled:
            return self.samples.holders
        counts = np.zeros(len(self.samples), np.intp)
        for name, holding in self.holdings.items():
            counts[self._aligned(name)[holding.labelled]] += 1
        return counts

    @cached_property
    def label_shares(self) -> Mapping[ClientId, float]:
        """Return how many labels each client has, as a part of the one that has most."""
        counts = {client: float(held.labelled.sum()) for client, held in self.holdings.items()}
        most = max(counts.values())
        return {client: count / most for client, count in counts.items()}

    def part_of_labels(self, client: ClientId, block: Block) -> Array:
        """Return a client's part of the labels, (samples,): they add up to those of all samples.

        A label that several clients have is shared out evenly; 0 stands where there is none.
        """
        own = np.zeros(block.shape[0]) if block.y is None else np.nan_to_num(block.y)
        found: Array = own / np.maximum(self.label_holders[self.samples.own(client)], 1)
        return found

    def labelled_at(self, client: ClientId) -> NDArray[np.bool_]:
        """Return which samples of an aligned block have a label at the client, (samples,)."""
        return self.holdings[client].labelled[np.argsort(self._aligned(client))]

    def _aligned(self, client: ClientId) -> NDArray[np.intp]:
        """Return the position of each row of a client's holding, in the holding's order."""
        own = self.samples.own(client)
        return own[places_of(self.holdings[client].samples, self.samples.ids[own])]

    def find_cells(self) -> None:
        """Find what aligning a block asks for, so that several can be aligned side by side."""
        for index in (self.samples, self.features):
            _ = index.cell_of, index.cells_of

    def align(self, client: ClientId, block: Block, *, intercept: bool = False) -> Block:
        """Return a client's block with rows and columns in the order of the schema's indices.

        The order depends on ids and names alone, so a permuted table gives the same block.
        `intercept` adds the constant feature, which the schema has.
        """
        samples = self.samples.ids[self.samples.positions[client]]
        rows = _order(block.samples, samples)
        names = np.array([*block.features, INTERCEPT][: len(block.features) + intercept], object)
        columns = _order(names, self.features.ids[self.features.own(client)])
        if rows is not None or columns is not None or intercept:
            block = block.take(rows, columns, intercept=intercept)
        block = block.written()
        return replace(
            block,
            samples=samples,  # those of the index, which are there once for all clients
            checked=(block.x, samples),
            copies=self.copies(client),
            places=self.samples.own(client),
        )

    def copies(self, client: ClientId) -> Copies | None:
        """Return how many clients hold each value of an aligned block, None if it is always one."""
        samples, features = self.samples, self.features
        cells = samples.cells_of[client], features.cells_of[client]
        counts = _count_holders(samples, cells[0], features, cells[1])
        if (counts <= 1).all():
            return None
        return Copies(samples.kinds(client), features.kinds(client), counts)


def _count_holders(
    rows: Index, own_rows: NDArray[np.int32], columns: Index, own_columns: NDArray[np.int32]
) -> Array:
    """Return how many clients hold each pair of a client's cells, (own rows, own columns).

    It goes through the owners of the side that has fewer: among very many clients one of rows is
    often one client's, and one of columns all clients'.
    """
    owners = [rows.cells[row].owners for row in own_rows.tolist()]
    others = [columns.cells[column].owners for column in own_columns.tolist()]
    if sum(map(len, others)) < sum(map(len, owners)):
        return _count_holders(columns, own_columns, rows, own_rows).T
    counts = np.ones((len(own_rows), len(own_columns)))  # alone, the client holds all its columns
    for count, names in zip(counts, owners, strict=True):
        if len(names) > 1:
            held = np.concatenate([columns.cells_of[name] for name in names])
            places = np.minimum(np.searchsorted(own_columns, held), len(own_columns) - 1)
            found = places[own_columns[places] == held]
            count[:] = np.bincount(found, minlength=len(own_columns))
    return counts


def _order(have: NDArray[Any], want: NDArray[Any]) -> NDArray[np.intp] | None:
    """Return where the wanted entries are; None: there and in this order."""
    if np.array_equal(have, want):
        return None
    found = places_of(want, have)
    return None if np.array_equal(found, np.arange(len(found))) else found
