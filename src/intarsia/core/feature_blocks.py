"""The feature blocks of a federation: columns that are measured together, and who holds them.

A block is a group of columns that clients name alike (a view, a device, a part of an image).
Columns that nobody names are blocks by who holds them. A client holds a block whole or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.core.block import INTERCEPT, Block, ClientId
from intarsia.core.schema import Schema
from intarsia.errors import FederationError, listed


@dataclass(frozen=True)
class FeatureBlock:
    """Columns that are held together; public."""

    name: str
    features: tuple[str, ...]  # in the block's own order
    owners: tuple[ClientId, ...]
    shape: tuple[int, ...] = ()  # of a sample's values: (channels, height, width); (): a vector


def feature_blocks(schema: Schema) -> Mapping[str, FeatureBlock]:
    """Return the feature blocks of a federation by name, in the order of their names.

    A group that has a client's own name holds the columns that this client named no group for
    (see `data.column_roles`): they count as not named. FederationError if a block has other columns
    or another shape at one client than at another.
    """
    found: dict[str, tuple[ClientId, tuple[str, ...]]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    owners: dict[str, list[ClientId]] = {}
    named: set[str] = set()
    for client, held in schema.holdings.items():
        for name, columns in held.groups.items():
            if name == client:
                continue
            first, known = found.setdefault(name, (client, columns))
            odd = {*known} ^ {*columns}
            if odd:
                raise FederationError(
                    f"The feature block {name!r} has {len(known)} columns at {first!r} and "
                    f"{len(columns)} at {client!r}, which differ in {listed(sorted(odd), 3)}, and "
                    "a client holds a block whole or not at all: deal the columns by kind = "
                    '"blocks", or name the blocks alike.'
                )
            shape = tuple(held.shapes.get(name, ()))
            if shapes.setdefault(name, shape) != shape:
                raise FederationError(
                    f"The feature block {name!r} has the shape {shapes[name] or 'of a vector'} at "
                    f"{first!r} and {shape or 'that of a vector'} at {client!r}; give it the same "
                    "shape at both, or name one of them otherwise."
                )
            owners.setdefault(name, []).append(client)
            named.update(columns)
    made = {
        name: FeatureBlock(name, columns, tuple(owners[name]), shapes[name])
        for name, (_, columns) in found.items()
    }
    for cell in schema.features.cells:
        ids = schema.features.ids[cell.start : cell.stop].tolist()
        rest = [name for name in ids if name not in named and name != INTERCEPT]
        if rest:
            everyone = len(cell.owners) == len(schema.clients)
            name = "features" if everyone else "+".join(cell.owners[:3])
            while name in made:
                name += "'"
            made[name] = FeatureBlock(name, _in_order(rest), cell.owners)
    return {name: made[name] for name in _in_order(made)}


def doubled(schema: Schema) -> tuple[str, ...]:
    """Return a sentence for columns that two clients name as blocks of different names, or one not.

    What one of them calls a block is none for the other: they share nothing of it.
    """
    named: dict[str, dict[str, ClientId]] = {}  # column -> block -> the first to call it so
    for client, held in schema.holdings.items():
        for name, columns in held.groups.items():
            for column in columns:
                # a block of the client's own name is of columns that it named no block for
                named.setdefault(column, {}).setdefault("" if name == client else name, client)
    found: dict[tuple[tuple[str, ClientId], ...], list[str]] = {}
    for column, blocks in named.items():
        if len(blocks) > 1:
            found.setdefault(tuple(sorted(blocks.items(), reverse=True)), []).append(column)
    notes = []
    for places, some in found.items():
        shown = " and ".join(
            f"of the feature block {name!r} at {client!r}" if name else f"in no block at {client!r}"
            for name, client in places
        )
        are = "columns {} are" if len(some) > 1 else "column {} is"
        notes.append(
            f"The {are.format(listed(_in_order(some), 4))} {shown}: networks over blocks share "
            "by the names of blocks, so name what is one block alike."
        )
    return tuple(notes)


def group_columns(block: Block, name: str) -> NDArray[np.intp]:
    """Return where a named block's columns are in a table, in the block's own order."""
    if name not in block.groups:
        raise FederationError(
            f"There is no feature block {name!r}; use one of {listed(block.groups)}."
        )
    place = {feature: at for at, feature in enumerate(block.features)}
    return np.array([place[feature] for feature in block.groups[name]], np.intp)


def _in_order(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(names, key=split_numbers))


def split_numbers(name: str) -> list[Any]:
    """Return a name as what it is sorted by: numbers in it by their size, x2 before x10."""
    return [int(part) if k % 2 else part for k, part in enumerate(re.split(r"(\d+)", name))]
