"""All samples, and all features, in the order of the picture of who holds what.

Nothing here draws, so that what only blocks know can be found out where they are, and be drawn
later, or in another process, without them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from intarsia.core.block import Array, Block, ClientId
from intarsia.core.schema import Holding, Index, Schema
from intarsia.inspection.holdings import MOST_CLIENTS
from intarsia.inspection.overlap import (
    Parties,
    feature_index,
    holdings_of,
    missing_percent,
    neighbours,
    owners_of,
    sample_parts,
)

Counts = NDArray[np.int64]
Mask = NDArray[np.bool_]

WIDTH: Final = 1120  # painted pixels
HEIGHT: Final = 820


@dataclass(frozen=True, eq=False)
class Side:
    """All samples (or features) in the order of the picture, and the pixels that show them."""

    ids: NDArray[Any]  # (entries,) in the picture's order
    cell_of: NDArray[np.intp]  # (entries,)
    owners: Mask  # (cells, clients)
    labels: Mask  # (cells, clients) who holds the labels; all False for features
    cell_at: NDArray[np.intp]  # (pixels,)
    entry_at: NDArray[np.intp]  # (pixels,)

    @property
    def entries(self) -> int:
        """Return how many samples (or features) there are."""
        return len(self.ids)

    def find(self, some: NDArray[Any]) -> NDArray[np.intp]:
        """Return the positions of some ids, (some,)."""
        order = np.argsort(self.ids, kind="stable")
        return order[np.searchsorted(self.ids[order], some)]


def drawn_holdings(parties: Parties) -> dict[ClientId, Holding]:
    """Return what the clients hold that are drawn: of very many the first."""
    if isinstance(parties, Schema):
        return dict(islice(parties.holdings.items(), MOST_CLIENTS))
    return dict(holdings_of(dict(islice(parties.items(), MOST_CLIENTS))))


def sample_side(holdings: Mapping[ClientId, Holding]) -> Side:
    """Return all samples of clients, those with the same owners together."""
    return _side(*sample_parts(holdings), HEIGHT)


def feature_side(holdings: Mapping[ClientId, Holding]) -> Side:
    """Return all features of clients, those with the same owners together."""
    index = feature_index(holdings)
    owners = owners_of(index, tuple(holdings))
    # in a cell as the tables have them, not by name
    tables = [name for holding in holdings.values() for name in holding.features]
    place = {name: at for at, name in enumerate(dict.fromkeys(tables))}
    at = np.array([place[name] for name in index.ids.tolist()], np.intp)
    order = np.lexsort((at, index.cell_of))
    return _side(replace(index, ids=index.ids[order]), owners, np.zeros_like(owners), WIDTH)


def _side(index: Index, owners: Mask, labels: Mask, pixels: int) -> Side:
    order = neighbours(owners, labels)
    cells = [index.cells[place] for place in order]
    sizes = np.array([cell.stop - cell.start for cell in cells], np.int64)
    ids = np.concatenate([index.ids[cell.start : cell.stop] for cell in cells] or [index.ids])
    cell_at, entry_at = _pixels(sizes, pixels)
    cell_of = np.repeat(np.arange(len(cells)), sizes)
    return Side(ids, cell_of, owners[order], labels[order], cell_at, entry_at)


def _pixels(sizes: Counts, pixels: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the cell and the entry that each pixel shows."""
    if not sizes.sum():
        nothing = np.empty(0, np.intp)
        return nothing, nothing
    share = sizes / sizes.sum() * pixels
    if 8 * len(sizes) <= pixels:
        share = np.maximum(share, 3.0)
    edges = np.concatenate([[0.0], np.cumsum(share)])
    centres = (np.arange(pixels) + 0.5) / pixels * edges[-1]
    cell = np.clip(np.searchsorted(edges, centres, "right") - 1, 0, len(sizes) - 1)
    inside = (centres - edges[cell]) / share[cell]
    starts = np.cumsum(sizes) - sizes
    entry = starts[cell] + np.minimum((inside * sizes[cell]).astype(np.intp), sizes[cell] - 1)
    return cell.astype(np.intp), entry.astype(np.intp)


def missing_fractions(blocks: Mapping[ClientId, Block], least: int = 1) -> dict[ClientId, Array]:
    """Return of each client with missing values which fraction of each part of its rows lacks what.

    (parts of all samples, features) as in the picture; of the clients that are drawn. Of a part
    with fewer than `least` rows, of which it would tell single cells, nothing is said.
    """
    some = islice(blocks.items(), MOST_CLIENTS)
    known = {name: block for name, block in some if missing_percent(block)}
    if not known:
        return {}
    holdings = drawn_holdings(blocks)
    rows, columns = sample_side(holdings), feature_side(holdings)
    found: dict[ClientId, Array] = {}
    for name, block in known.items():
        cell = rows.cell_of[rows.find(block.samples)]
        place = columns.find(np.array(block.features, np.str_))
        found[name] = np.zeros((len(rows.owners), columns.entries))
        for one in np.flatnonzero(np.bincount(cell) >= least):
            found[name][one, place] = _missing(block, cell == one)
    return found


def _missing(block: Block, rows: NDArray[np.bool_]) -> Array:
    """Return the fraction of some rows that lacks each feature, (features,)."""
    return np.asarray(block.take(np.flatnonzero(rows)).missing() / rows.sum(), np.float64)
