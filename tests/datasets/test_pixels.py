from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from intarsia.core.feature_blocks import group_columns
from intarsia.datasets.pixels import colours, image_blocks, pixels, resized
from intarsia.datasets.registry import load
from intarsia.errors import ExperimentError
from intarsia.partition.registry import partition


@pytest.mark.parametrize(("before", "after"), [(16, 28), (28, 16), (8, 8), (28, 9)])
def test_images_are_resized_as_another_library_does(before, after):
    x = np.random.default_rng(0).random((5, before * before)).astype(np.float32)
    found = resized(x, after)
    assert found.dtype == x.dtype
    for mine, image in zip(found, x, strict=True):
        theirs = Image.fromarray(image.reshape(before, before)).resize(
            (after, after), Image.Resampling.BILINEAR
        )
        np.testing.assert_allclose(mine.reshape(after, after), np.asarray(theirs), atol=1e-6)


def test_whole_numbers_stay_whole():
    x = np.random.default_rng(0).integers(0, 256, (3, 64)).astype(np.uint8)
    assert resized(x, 12).dtype == np.uint8
    assert resized(np.full((1, 64), 255, np.uint8), 28).min() == 255


def test_a_set_of_images_takes_another_side():
    found = load("digits", side=12)
    assert found.features == pixels(12, 12)
    assert found.x.shape == (1797, 144)
    for side in (0, 2.0, True):
        with pytest.raises(ExperimentError, match="expected a whole number of pixels"):
            load("digits", side=side)
    with pytest.raises(ExperimentError, match="no option 'side'"):
        load("breast_cancer", side=3)


def test_channels_are_resized_apart():
    x = np.random.default_rng(0).random((2, 3 * 64)).astype(np.float32)
    found = resized(x, 5, channels=3)
    for channel in range(3):
        own = resized(x[:, channel * 64 : (channel + 1) * 64], 5)
        np.testing.assert_array_equal(found[:, channel * 25 : (channel + 1) * 25], own)


def test_an_image_is_cut_into_quadrants_by_colours():
    features = pixels(4, 6, 3)
    groups, shapes = image_blocks(features, (3, 4, 6), "quadrants-colours")
    corners = ("top-left", "top-right", "bottom-left", "bottom-right")
    assert list(groups) == [f"{corner} {colour}" for corner in corners for colour in colours(3)]
    assert set(shapes.values()) == {(1, 2, 3)}
    assert groups["bottom-left green"][:2] == ("green02_00", "green02_01")
    assert sorted(f for names in groups.values() for f in names) == sorted(features)
    groups, shapes = image_blocks(features, (3, 4, 6), "quadrants")
    assert (list(groups), set(shapes.values())) == (list(corners), {(3, 2, 3)})
    assert groups["top-right"][6] == "green00_03"
    groups, shapes = image_blocks(features, (3, 4, 6), "colours")
    assert (list(groups), set(shapes.values())) == (list(colours(3)), {(1, 4, 6)})


def test_an_odd_image_has_larger_quadrants_first():
    groups, shapes = image_blocks(pixels(5, 3), (1, 5, 3), "quadrants")
    assert list(shapes.values()) == [(1, 3, 2), (1, 3, 1), (1, 2, 2), (1, 2, 1)]
    assert sum(map(len, groups.values())) == 15


def test_clients_hold_quadrants_whose_pixels_are_those_of_the_image():
    dataset = load("digits", blocks="quadrants")
    found = partition("blocks", dataset, pattern="table4")
    block = found["client3"]  # top left, bottom left and bottom right of 5 to 9
    assert set(block.groups) == {"top-left", "bottom-left", "bottom-right"}
    image = (dataset.x[block.samples] / 16).reshape(-1, 8, 8)
    own = block.x[:, group_columns(block, "bottom-left")].reshape(-1, *block.shapes["bottom-left"])
    np.testing.assert_array_equal(own[:, 0], image[:, 4:, :4])
