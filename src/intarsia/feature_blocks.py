"""The named feature blocks of a federation: which there are, who holds them, and of what shape.

A party's table is made of blocks (a device, a view, a modality); a block of one name has the same
features in the same order at all who hold it. What is here is public, but for `block_classes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from intarsia.data import Block, ClientId, Labels, Schema
from intarsia.errors import FederationError
from intarsia.spelling import listed

__all__ = ["BlockClasses", "FeatureBlock", "block_classes", "feature_blocks", "group_columns"]


@dataclass(frozen=True)
class FeatureBlock:
    """One named feature block of a federation."""

    name: str
    features: tuple[str, ...]  # in the block's own order, row-major over its shape
    shape: tuple[int, ...]  # of one sample's values: (features,), (channels, height, width), …
    holders: tuple[ClientId, ...]  # in the clients' order


@dataclass(frozen=True, eq=False)
class BlockClasses:
    """How many clients hold samples of each class with each feature block."""

    blocks: tuple[str, ...]
    classes: tuple[str, ...]
    clients: NDArray[np.int64]  # (blocks, classes)

    @property
    def unused(self) -> float:
        """Return the fraction of (block, class) pairs that nobody holds."""
        return float((self.clients == 0).mean())


def feature_blocks(schema: Schema) -> dict[str, FeatureBlock]:
    """Return the feature blocks of a federation by name, in the order in which clients list them.

    Raises
    ------
    FederationError
        If clients mean different features or shapes by one name, or a feature of one is in several
        blocks.
    """
    found: dict[str, FeatureBlock] = {}
    for client, held in schema.holdings.items():
        owner: dict[str, str] = {}
        for name, features in held.groups.items():
            shape = tuple(held.shapes.get(name, (len(features),)))
            known = found.get(name)
            if known is None:
                known = FeatureBlock(name, features, shape, ())
            elif (known.features, known.shape) != (features, shape):
                raise FederationError(
                    f"Feature block {name!r} has {len(known.features)} features of shape "
                    f"{known.shape} at client {known.holders[0]!r} but {len(features)} of shape "
                    f"{shape} at client {client!r}, or others or in another order; a block is the "
                    "same wherever it is: rename one of them, or correct its features."
                )
            found[name] = FeatureBlock(name, features, shape, (*known.holders, client))
            for feature in features:
                if owner.setdefault(feature, name) != name:
                    raise FederationError(
                        f"Client {client!r}: the feature {feature!r} is in the blocks "
                        f"{owner[feature]!r} and {name!r}; leave it in one of them."
                    )
    return found


def group_columns(block: Block, name: str) -> NDArray[np.intp]:
    """Return the positions of a feature block's features in a table, in the block's own order.

    Raises
    ------
    FederationError
        If the table has no such block.
    """
    if name not in block.groups:
        raise FederationError(
            f"There is no feature block {name!r}; the table has {listed(block.groups)}."
        )
    place = {feature: at for at, feature in enumerate(block.features)}
    return np.array([place[feature] for feature in block.groups[name]], np.intp)


def block_classes(blocks: Mapping[ClientId, Block], labels: Labels) -> BlockClasses | None:
    """Return how many clients hold each block of each class; None without classes or blocks.

    It reads labels, and is for those who see all tables anyway.
    """
    names = list(dict.fromkeys(name for block in blocks.values() for name in block.groups))
    codes = [-1.0, 1.0] if labels.task == "binary" else np.arange(len(labels.classes)).tolist()
    if labels.task == "regression" or not names:
        return None
    counts = np.zeros((len(names), len(codes)), np.int64)
    for block in blocks.values():
        if block.y is None:
            continue
        for name in block.groups:
            known = _complete(block, name)
            counts[names.index(name)] += np.isin(codes, block.y[known])
    return BlockClasses(tuple(names), labels.classes, counts)


def _complete(block: Block, name: str) -> NDArray[np.bool_]:
    """Return which samples have a value in a block, (samples,)."""
    if block.sparse:
        return np.ones(block.shape[0], bool)
    return np.asarray(~np.isnan(block.x[:, group_columns(block, name)]).all(axis=1))
