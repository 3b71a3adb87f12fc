"""Feature blocks that are arrays keep their shapes and the order of their values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from intarsia.core.block import Block, Labels
from intarsia.core.feature_blocks import feature_blocks, group_columns
from intarsia.core.schema import Holding, Schema
from intarsia.errors import FederationError, TableError

LABELS = Labels("binary", ("a", "b"))
IMAGE = ("p1", "p0", "p3", "p2")  # the block's own order is not that of the columns


def block(first=0, **changes) -> Block:
    settings = {
        "samples": np.arange(first, first + 3),
        "features": ("p0", "p1", "p2", "p3", "age"),
        "x": np.arange(15.0).reshape(3, 5),
        "y": np.array([1.0, -1.0, 1.0]),
        "groups": {"image": IMAGE, "person": ("age",)},
        "shapes": {"image": (1, 2, 2)},
    }
    return Block(**{**settings, **changes})


def test_blocks_are_public_with_their_shapes_and_holders():
    other = block(9).take(None, np.array([4]))
    assert (other.groups, other.shapes) == ({"person": ("age",)}, {})
    found = feature_blocks(Schema.of({"one": block(), "two": other}, LABELS))
    assert list(found) == ["image", "person"]
    assert (found["image"].shape, found["image"].owners) == ((1, 2, 2), ("one",))
    assert found["image"].features == IMAGE
    assert (found["person"].shape, found["person"].owners) == ((), ("one", "two"))
    assert Holding.of(block()).shapes == {"image": (1, 2, 2)}


def test_columns_come_in_the_blocks_own_order_after_the_schema_moved_them():
    mixed = block().take(None, np.array([2, 4, 0, 3, 1]))
    aligned = Schema.of({"one": mixed}, LABELS).align("one", mixed)
    for some in (mixed, aligned):
        np.testing.assert_array_equal(
            some.x[:, group_columns(some, "image")], block().x[:, [1, 0, 3, 2]]
        )
    with pytest.raises(FederationError, match="no feature block 'sound'"):
        group_columns(mixed, "sound")


def test_a_part_of_a_block_has_no_shape():
    part = block().take(None, np.array([0, 1, 2]))
    assert part.groups == {"image": ("p1", "p0", "p2")}
    assert part.shapes == {}


def test_a_shape_must_fit_its_features():
    with pytest.raises(TableError, match=r"'image' has the shape \(3, 2, 2\) but 4 features"):
        block(shapes={"image": (3, 2, 2)})
    with pytest.raises(TableError, match="'sound' has the shape"):
        block(shapes={"sound": (2,)})


def test_a_block_with_another_shape_elsewhere_is_refused():
    for shapes in ({"image": (4, 1, 1)}, {}):
        second = replace(block(9), shapes=shapes)
        with pytest.raises(FederationError, match=r"'image' has the shape \(1, 2, 2\) at 'one'"):
            feature_blocks(Schema.of({"one": block(), "two": second}, LABELS))
