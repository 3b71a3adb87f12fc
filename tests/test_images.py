from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from intarsia.datasets import load
from intarsia.errors import ExperimentError
from intarsia.images import pixels, resized


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
