"""Count what clients hold: each one alone, each pair in common, each class with each feature block.

The first two read a `Schema` (public) or the blocks themselves; only blocks can say how many values
are missing. The third reads labels, and is for those who see all tables anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.core.block import Array, Block, ClientId, Labels, distinct_of
from intarsia.core.feature_blocks import group_columns
from intarsia.core.schema import Holding, Index, Schema
from intarsia.errors import FederationError

Parties = Schema | Mapping[ClientId, Block]
Counts = NDArray[np.int64]
Mask = NDArray[np.bool_]

_MOST_CELLS_IN_ORDER = 600  # the greedy order costs the square of it
_MOST_COMPARED = 10_000_000  # entries of all tables, of which copies are compared
_ROUNDING = 2.0**-30  # relative, by which copies of a value may differ
_MOST_NAMED = 5  # columns with copies that differ


@dataclass(frozen=True)
class HoldingsRow:
    """What one client holds, in counts."""

    client: ClientId
    samples: int
    features: int
    labelled: int
    shared_samples: int  # held by at least one other client too
    shared_features: int
    missing: float | None  # percentage of its entries; None: a schema does not say


@dataclass(frozen=True, eq=False)
class OverlapCounts:
    """How many samples and features each pair of clients has in common."""

    clients: tuple[ClientId, ...]
    samples: Counts  # (clients, clients), on the diagonal a client's own
    features: Counts  # (clients, clients)

    @property
    def entries(self) -> Counts:
        """Return how many entries (of a sample and a feature) each pair has in common."""
        return self.samples * self.features


def notes_on_copies(blocks: Mapping[ClientId, Block], schema: Schema) -> tuple[str, ...]:
    """Return a note that names the columns in which clients have other values of a sample.

    Only who has all tables can tell: a run compares copies by sums over all columns of a set.
    """
    rows, columns = len(schema.samples), len(schema.features)
    dense = [name for name, block in blocks.items() if isinstance(block.x, np.ndarray)]
    if len(dense) < 2 or rows * columns > _MOST_COMPARED:
        return ()
    first = np.full((columns, rows), np.nan)
    odd: dict[str, Mask] = {}  # column -> (samples,)
    order = np.argsort(schema.samples.ids, kind="stable")
    place = {str(name): at for at, name in enumerate(schema.features.ids)}
    for name in dense:
        block = blocks[name]
        samples = order[np.searchsorted(schema.samples.ids, block.samples, sorter=order)]
        origin = {f"{of}={level}": of for of, own in block.levels.items() for level in own}
        values = np.asarray(block.x, float)
        if block.indicators is not None:  # what lacks a level of a category has 0 in all of them
            values = np.where(block.observed(), values, np.nan)
        for feature, own in zip(block.features, values.T, strict=True):
            at = place[feature]
            before = first[at, samples]
            apart = abs(own - before) > _ROUNDING * np.fmax(1.0, abs(before))
            if apart.any():
                odd.setdefault(origin.get(feature, feature), np.zeros(rows, bool))[samples] |= apart
            first[at, samples] = np.where(np.isnan(before), own, before)
    if not odd:
        return ()
    many = {name: int(found.sum()) for name, found in odd.items()}
    most = sorted(many, key=lambda name: -many[name])
    told = ", ".join(f"{name!r} ({many[name]:,})" for name in most[:_MOST_NAMED])
    more = f" and {len(most) - _MOST_NAMED} more columns" if len(most) > _MOST_NAMED else ""
    return (
        f"Clients have different values of the same samples in {told}{more} (in brackets how many "
        "samples). A run takes their average: compare these tables, and rename a column that is "
        "another quantity there.",
    )


def holdings_table(parties: Parties, schema: Schema | None = None) -> list[HoldingsRow]:
    """Return one row of counts per client, in the clients' order.

    `schema` is that of the parties, where it is there already.

    Raises
    ------
    FederationError
        If there is no client, or ids are text at one client and numbers at another.
    """
    holdings = holdings_of(parties)
    samples, features = _indices(parties if schema is None else schema)
    return [
        HoldingsRow(
            client=name,
            samples=len(held.samples),
            features=len(held.features),
            labelled=int(held.labelled.sum()),
            shared_samples=int((samples.holders[samples.own(name)] > 1).sum()),
            shared_features=int((features.holders[features.own(name)] > 1).sum()),
            missing=None if isinstance(parties, Schema) else missing_percent(parties[name]),
        )
        for name, held in holdings.items()
    ]


def class_counts(blocks: Mapping[ClientId, Block], labels: Labels) -> dict[str, int]:
    """Return how many samples have each class, each sample once; nothing of numbers to predict.

    It reads labels, and is for those who see all tables anyway.
    """
    if labels.task == "regression":
        return {}
    held: list[tuple[NDArray[Any], Array]] = []
    for block in blocks.values():
        if block.y is not None:
            known = ~np.isnan(block.y)
            held.append((block.samples[known], block.y[known]))
    ids, which = distinct_of([own for own, _ in held])
    found = np.empty(len(ids))
    for places, (_, values) in reversed(list(zip(which, held, strict=True))):
        found[places] = values  # the first client's last
    codes = [-1.0, 1.0] if labels.task == "binary" else range(len(labels.classes))
    return {
        name: int((found == code).sum()) for name, code in zip(labels.classes, codes, strict=True)
    }


def overlap_counts(parties: Parties) -> OverlapCounts:
    """Return how many samples and features each pair of clients has in common.

    Raises
    ------
    FederationError
        If there is no client, or ids are text at one client and numbers at another.
    """
    holdings = holdings_of(parties)
    common = []
    for index in _indices(parties):
        owners = owners_of(index, tuple(holdings)).astype(np.float64)
        sizes = np.array([cell.stop - cell.start for cell in index.cells], np.float64)
        common.append(np.rint((owners.T * sizes) @ owners).astype(np.int64))
    return OverlapCounts(tuple(holdings), common[0], common[1])


def holdings_of(parties: Parties) -> Mapping[ClientId, Holding]:
    """Return what is public about each client.

    Raises
    ------
    FederationError
        If there is no client, or ids are text at one client and numbers at another.
    """
    if isinstance(parties, Schema):
        return parties.holdings
    if not parties:
        raise FederationError("There is no client; describe at least one table.")
    holdings = {name: Holding.of(block) for name, block in parties.items()}
    whole = {name for name, held in holdings.items() if held.samples.dtype.kind in "iu"}
    if whole and len(whole) < len(holdings):
        raise FederationError(
            f"Client {min(whole)!r} has whole numbers as sample ids but client "
            f"{min(set(holdings) - whole)!r} has text; ids must have one type: "
            "set id_type for both."
        )
    return holdings


def _indices(parties: Parties) -> tuple[Index, Index]:
    """Return the index of all samples and that of all features."""
    if isinstance(parties, Schema):
        return parties.samples, parties.features
    holdings = holdings_of(parties)
    samples = Index.of({name: held.samples for name, held in holdings.items()})
    return samples, feature_index(holdings)


def feature_index(holdings: Mapping[ClientId, Holding]) -> Index:
    """Return the index of all features."""
    return Index.of({name: np.array(held.features, np.str_) for name, held in holdings.items()})


def owners_of(index: Index, names: tuple[str, ...]) -> Mask:
    """Return which of the named owners each cell has, (cells, names)."""
    number = {name: place for place, name in enumerate(names)}
    owners = np.zeros((len(index.cells), len(names)), bool)
    for row, cell in zip(owners, index.cells, strict=True):
        row[[number[name] for name in cell.owners if name in number]] = True
    return owners


def sample_parts(holdings: Mapping[ClientId, Holding]) -> tuple[Index, Mask, Mask]:
    """Return the index of all samples, and of each cell its owners and who has its labels.

    Both are (cells, clients); a cell is labelled as a whole, so that cells are smaller than those
    of the schema's index.
    """
    names = tuple(holdings)
    marks = tuple(f"{name}\0labels" for name in names)
    held = {name: holding.samples for name, holding in holdings.items()}
    # the label holders as owners too, so that a cell is labelled as a whole
    labelled = {
        mark: (name, holding.labelled)
        for mark, (name, holding) in zip(marks, holdings.items(), strict=True)
    }
    index = Index.of(held, labelled)
    return index, owners_of(index, names), owners_of(index, marks)


def neighbours(owners: Mask, labels: Mask) -> list[int]:
    """Return an order of cells in which neighbours differ in few owners, so that runs are long."""
    cells = len(owners)
    if cells > _MOST_CELLS_IN_ORDER:
        return [int(place) for place in np.lexsort(~owners.T[::-1])]
    marks = np.concatenate([owners, 0.1 * labels], axis=1, dtype=np.float64)
    left = sorted(range(cells), key=lambda cell: np.flatnonzero(owners[cell]).tolist())
    order: list[int] = []
    while left:
        if order:
            distance = np.abs(marks[left] - marks[order[-1]]).sum(axis=1)
            chosen = int(np.argmin(distance))
        else:
            first = owners[left[0]].argmax()  # begin where the first client is most alone
            chosen = int(np.argmin(owners[left].sum(axis=1) + owners.size * ~owners[left, first]))
        order.append(left.pop(chosen))
    return order


def missing_percent(block: Block) -> float:
    """Return the percentage of a block's entries that are missing."""
    rows, columns = block.shape
    if not rows * columns:
        return 0.0
    return float(100 * (block.missing() / rows).mean())


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
        whole = block.written()
        for name in named[client]:
            known = _has_values(whole, name)
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


def _has_values(block: Block, name: str) -> NDArray[np.bool_]:
    """Return which samples have a value in a block, (samples,)."""
    if block.sparse and block.indicators is None:
        return np.ones(block.shape[0], bool)
    return np.asarray(block.observed(group_columns(block, name)).any(axis=1))
