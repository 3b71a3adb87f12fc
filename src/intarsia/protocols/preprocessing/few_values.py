"""Leave out a client's copies of values that are too few to be told to who lacks them.

All that have a column open sums over its values, and take off what they know: their own copies. Of
fewer than `FEWEST` values of a client that one of them lacks, it would have the sum, whoever else
has them. Those that the client alone has are left out of sums, see `preparation.least_holders`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from intarsia.core.block import Block, ClientId, taken
from intarsia.core.schema import Schema
from intarsia.errors import listed, several
from intarsia.protocols.preprocessing.preparation import FEWEST, Positions


def without_few(block: Block, client: ClientId, schema: Schema) -> Block:
    """Return a client's training block, in which few copies that another client lacks are missing.

    Who else has them has them for itself.
    """
    if not _has_copies(schema, client):
        return block
    places = shared_columns(block, client, schema)
    own = schema.features.own(client)[[columns[0] for columns in places.values()]]
    copies = _Copies(schema, client, schema.features.cell_of[own])
    if block.shape[0] < FEWEST or not copies.any_lacked:
        return block
    there = observed(block, places)
    untold = copies.untold(np.array([copies.count(one) for one in there.values()]))
    out = {
        column: there[column] & some[copies.group_of]
        for column, some in zip(places, untold, strict=True)
    }
    return without_values(block, places, out) if any(map(np.any, out.values())) else block


def copied_rows(client: ClientId, schema: Schema, cell: int) -> NDArray[np.bool_]:
    """Return in which of a client's rows another one has the features of a cell, too."""
    if not _has_copies(schema, client):
        return np.zeros(len(schema.samples.own(client)), bool)
    copies = _Copies(schema, client, np.array([cell]))
    found: NDArray[np.bool_] = copies.copied[0, copies.group_of]
    return found


def lacked_by_others(
    client: ClientId, schema: Schema
) -> Iterator[tuple[NDArray[np.bool_], NDArray[np.bool_]]]:
    """Yield which of a client's rows another one lacks, which has some, and what columns it has.

    (rows,) and (features,). Others that lack the same rows come together.
    """
    if not _has_copies(schema, client):
        return
    cells, of = np.unique(schema.features.cell_of[schema.features.own(client)], return_inverse=True)
    copies = _Copies(schema, client, cells)
    lack = copies.without.any(axis=0) & ~copies.without.all(axis=0) & copies.held.any(axis=0)
    if not lack.any():
        return
    held = copies.held[:, lack]
    kinds, which = np.unique(copies.without[:, lack], axis=1, return_inverse=True)
    for number, without in enumerate(kinds.T):
        has = np.asarray(held[:, which.ravel() == number].any(axis=1))
        yield without[copies.group_of], has[of]


def few_everywhere(schema: Schema, cell: int) -> bool:
    """Return whether a client leaves out copies of a feature that has a value in every row.

    `cell` is the number of its feature cell.
    """
    owners = schema.features.cells[cell].owners
    return any(_few_if_whole(schema, client, np.array([cell])).any() for client in owners)


def notes_on_few(schema: Schema, sparse: Mapping[ClientId, bool]) -> tuple[str, ...]:
    """Return a note of the samples whose copies some client leaves out, whatever values it has.

    `sparse` says in whose tables an absent entry is 0.
    """
    who, samples = list[ClientId](), np.zeros(len(schema.samples), bool)
    columns = np.zeros(len(schema.features.cells), bool)
    for client in schema.clients:
        cells = schema.features.cells_of[client].astype(np.intp)
        few = _few_if_whole(schema, client, cells)
        if few.any() and not sparse.get(client, False):
            who.append(client)
            samples[schema.samples.own(client)[few.any(axis=0)]] = True
            columns[cells[few.any(axis=1)]] = True
    if not who:
        return ()
    names = schema.features.ids[columns[schema.features.cell_of]]
    return (
        f"Values of {several(samples.sum(), 'training sample')} at {listed(who, 6)} count as "
        f"missing there, in {listed(map(str, names), 6)}: another client has these columns and "
        f"lacks the samples, and would know sums over fewer than {FEWEST}.",
    )


def _few_if_whole(schema: Schema, client: ClientId, cells: Positions) -> NDArray[np.bool_]:
    """Return which copies of features that have all values a client leaves out, (cells, rows)."""
    rows = np.ones(len(schema.samples.own(client)), bool)
    none = np.zeros((len(cells), len(rows)), bool)
    if len(rows) < FEWEST or not _has_copies(schema, client):
        return none
    copies = _Copies(schema, client, cells)
    if not copies.any_lacked:
        return none
    return copies.untold(copies.count(rows))[:, copies.group_of]


def _has_copies(schema: Schema, client: ClientId) -> bool:
    """Return whether others have some of a client's samples: if not, it is compared with nobody.

    Each comparison takes as long as there are clients.
    """
    return bool((schema.samples.holders[schema.samples.own(client)] > 1).any())


class _Copies:
    """Which of a client's values others have, and lack, by feature cells and overlap groups."""

    def __init__(self, schema: Schema, client: ClientId, cells: Positions) -> None:
        rows = schema.samples.own(client)
        groups, self.group_of = np.unique(schema.samples.cell_of[rows], return_inverse=True)
        owner_sets = schema.samples.owner_sets
        # of the others: those that have the columns, and those that lack the rows; last all that
        # have none of the rows, of which there may be very many
        near = frozenset().union(*(owner_sets[cell] for cell in groups)) - {client}
        self.without = ~ownership(owner_sets, groups, near)
        self.held = ownership(schema.features.owner_sets, cells, near)
        self.copied = self.held @ ~self.without.T  # (columns, groups)
        self.any_lacked = bool((self.copied & (self.held @ self.without.T)).any())

    def count(self, rows: NDArray[np.bool_]) -> NDArray[np.intp]:
        """Return how many of some of the client's rows are in each overlap group."""
        return np.bincount(self.group_of[rows], minlength=len(self.without))

    def untold(self, counts: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Return which copies are left out, (columns, groups), by how many there are of them."""
        alone = np.where(self.copied, 0, counts).sum(axis=1)
        told = self.copied | (alone >= FEWEST)[:, None]
        while True:
            lacked = (counts * told) @ self.without  # values that each of the others lacks
            few = self.held & (lacked > 0) & (lacked < FEWEST)
            if not few.any():
                found: NDArray[np.bool_] = self.copied & ~told
                return found
            told &= ~(few @ self.without.T)


def ownership(
    owner_sets: Sequence[frozenset[ClientId]], some: Positions, clients: frozenset[ClientId]
) -> NDArray[np.bool_]:
    """Return which clients own each of some cells of a client, (cells, clients + 1).

    The last column: whether any other one does, beside itself.
    """
    place = {name: number for number, name in enumerate(sorted(clients))}
    kinds, of = np.unique(some, return_inverse=True)
    found = np.zeros((len(kinds), len(place) + 1), bool)
    for kind, cell in enumerate(kinds.tolist()):  # not all, which are as many as there are clients
        there = owner_sets[cell] & clients
        found[kind, [place[name] for name in there]] = True
        found[kind, -1] = len(owner_sets[cell]) > len(there) + 1
    own: NDArray[np.bool_] = found[of]
    return own


def shared_columns(
    block: Block, client: ClientId, schema: Schema, *, alone: bool = False
) -> Mapping[str, Sequence[int]]:
    """Return the columns of a table that others have, too, each with the places of its features.

    None of a block in which an absent entry is 0: all of its values are there. `alone`: those that
    the client alone has, too.
    """
    if block.sparse and block.indicators is None:
        return {}
    category = {f"{of}={level}": of for of, levels in block.levels.items() for level in levels}
    places: dict[str, list[int]] = {}  # all levels of a category are there, or are not
    least = 1 if alone else 2
    for one in np.flatnonzero(schema.features.holders[schema.features.own(client)] >= least):
        feature = str(block.features[one])
        places.setdefault(category.get(feature, feature), []).append(int(one))
    return places


def observed(block: Block, places: Mapping[str, Sequence[int]]) -> dict[str, NDArray[np.bool_]]:
    """Return which rows have a value of each of some columns, whose features are at these places.

    A category of many levels has none of them where a row lacks it, and other columns are NaN.
    """
    lacking = {int(one): rows for levels, rows in block.without_level() for one in levels}
    firsts = [own[0] for own in places.values() if own[0] not in lacking]
    if block.sparse:
        absent = np.flatnonzero(np.isnan(block.x.data))
        rows, features = _entries(block, absent)
        for one in firsts:
            lacking[one] = np.zeros(len(block.samples), bool)
            lacking[one][rows[features == one]] = True
    else:
        lacking |= {one: np.isnan(block.x[:, one]) for one in firsts}
    return {column: ~lacking[own[0]] for column, own in places.items()}


def without_values(
    block: Block, places: Mapping[str, Sequence[int]], out: Mapping[str, NDArray[np.bool_]]
) -> Block:
    """Return a block without the values of some columns in some rows."""
    many = np.zeros(block.shape[1]) if block.indicators is None else block.indicators
    none = np.where(many > 0, 0.0, np.nan)
    x = taken(block.x, None, None)
    if block.sparse:
        rows, features = _entries(block, np.arange(len(x.data)))
        wait = np.zeros(len(x.data), bool)
        for column, some in out.items():
            if some.any():
                wait |= np.isin(features, places[column]) & some[rows]
        x.data[wait] = none[features[wait]]
    else:
        for column, some in out.items():
            own = np.array(places[column])
            x[np.ix_(some, own)] = none[own]
    return replace(block, x=x)


def _entries(block: Block, some: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the row and the feature of some entries that a sparse block stores."""
    rows = np.searchsorted(block.x.indptr, some, side="right") - 1
    return rows, block.x.indices[some].astype(np.intp)
