from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

import intarsia
from intarsia.experiment.config import from_dict
from intarsia.inspection.overlap import BlockClasses
from intarsia.plots.block_classes import blocks_picture

SETTINGS = {
    "algorithm": {"name": "hyfdca"},
    "dataset": {"name": "digits", "blocks": "quadrants"},
    "partition": {"kind": "blocks", "pattern": "table4"},
}


def counts(rows, columns, seed=0):
    held = np.random.default_rng(seed).integers(0, 4, (rows, columns))
    names = [tuple(f"{what}{n}" for n in range(k)) for what, k in (("b", rows), ("c", columns))]
    return BlockClasses(*names, held)


@pytest.mark.parametrize(
    ("rows", "columns"),
    [(1, 2), (4, 10), (12, 40), (4, 300), pytest.param(40, 300, marks=pytest.mark.slow)],
)
def test_a_cell_is_black_where_nobody_holds_it(tmp_path, rows, columns):
    held = counts(rows, columns)
    image = np.asarray(Image.open(blocks_picture(held, tmp_path / "new" / "a.png")).convert("RGB"))
    black = (np.abs(image.astype(int) - [22, 24, 29]) <= 2).all(axis=2)
    inside = black[image.shape[0] // 8 :]  # below the heading
    found, wanted = inside.sum(), (held.clients == 0).sum()
    cell = (1 if rows * columns > 1000 else 0.34 * 140) ** 2
    if rows * columns <= 480:
        assert 0.75 * wanted * cell <= found <= 1.05 * wanted * cell
    assert max(image.shape) < 2600


def test_names_of_few_classes_are_upright(tmp_path):
    sizes = {}
    for columns in (3, 40):  # of 40 names there is no room for upright ones
        classes = tuple(f"stage {number:02}" for number in range(columns))
        held = BlockClasses(("lab", "scan"), classes, np.ones((2, columns), np.int64))
        image = np.asarray(Image.open(blocks_picture(held, tmp_path / "a.png")).convert("L"))
        sizes[columns] = image.shape[0]
    assert sizes[40] - sizes[3] == pytest.approx(0.08 * len("stage 00") * 140, abs=2)


def test_long_names_and_signs_of_mathematics_are_drawn_as_they_are(tmp_path):
    held = BlockClasses(("$x_1$" * 9, "plain"), ("a$", "$b"), np.array([[1, 0], [2, 9]]))
    assert blocks_picture(held, tmp_path / "a.png", title="of $ many").is_file()


def test_inspect_counts_and_draws_the_blocks(tmp_path):
    found = intarsia.inspect(from_dict(SETTINGS), picture=tmp_path / "who.png")
    assert found.blocks_picture == tmp_path / "who-blocks.png"
    assert found.blocks_picture.is_file()
    assert found.blocks.blocks == ("top-left", "top-right", "bottom-left", "bottom-right")
    np.testing.assert_array_equal(found.blocks.clients[:, 0], [3, 1, 3, 1])
    without = {**SETTINGS, "partition": {"kind": "horizontal", "clients": 2}}
    without["dataset"] = {"name": "breast_cancer"}
    found = intarsia.inspect(from_dict(without), picture=tmp_path / "b.png")
    assert (found.blocks, found.blocks_picture) == (None, None)
