from __future__ import annotations

import json

import numpy as np

from intarsia.core.block import Block
from intarsia.inspection.holdings import Holdings, Part


def block(samples, features, y):
    x = np.zeros((len(samples), len(features)))
    return Block(np.array(samples), tuple(features), x, None if y is None else np.array(y, float))


def test_parts_have_the_same_holders_and_are_read_again():
    """Rows 0-2 are the bank's, 2-3 the shop's; of row 2 the bank alone has a label."""
    held = Holdings.of(
        {"bank": block([0, 1, 2], ["age", "sex"], [1, -1, 1]), "shop": block([2, 3], ["sex"], None)}
    )
    assert set(held.samples) == {
        Part(("bank",), 2, ("bank",)),
        Part(("bank", "shop"), 1, ("bank",)),
        Part(("shop",), 1),
    }
    assert set(held.features) == {
        Part(("bank",), 1, features=("age",)),
        Part(("bank", "shop"), 1, features=("sex",)),
    }
    assert held.counts() == [("bank", 3, 2, 3), ("shop", 2, 1, 0)]
    assert Holdings.from_dict(json.loads(json.dumps(held.to_dict()))) == held
