"""Take images as rows of pixels: the idx format, names of pixels, another size, named parts."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.data.dataset import Dataset
from intarsia.errors import TableError

_QUADRANTS = ("top-left", "top-right", "bottom-left", "bottom-right")
# how an image is cut into feature blocks: into quadrants, by colour channel
CUTS = {"colours": (False, True), "quadrants": (True, False), "quadrants-colours": (True, True)}


def idx(path: Path) -> NDArray[np.uint8]:
    """Read a gzipped idx file of unsigned bytes (yann.lecun.com/exdb/mnist)."""
    raw = gzip.decompress(path.read_bytes())
    dimensions = raw[3] if len(raw) >= 4 else 0
    start = 4 + 4 * dimensions
    shape = tuple(np.frombuffer(raw[4:start], ">u4").tolist())
    if raw[:3] != b"\x00\x00\x08" or len(raw) - start != int(np.prod(shape, dtype=np.int64)):
        raise TableError(
            f"The file {path} is not an idx file of bytes (starts with {raw[:4].hex()}, "
            f"{len(raw)} bytes); expected 0000 08 and the number of dimensions: "
            "replace it by the official file."
        )
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


def colours(channels: int) -> tuple[str, ...]:
    """Return the names of an image's channels; a grey one has none."""
    return ("red", "green", "blue") if channels == 3 else ("",) * channels


def pixels(height: int, width: int, channels: int = 1) -> tuple[str, ...]:
    """Return the names of an image's pixels, row by row, one channel after the other."""
    return tuple(
        f"{colour or 'pixel'}{row:02d}_{column:02d}"
        for colour in colours(channels)
        for row in range(height)
        for column in range(width)
    )


def image_set(
    name: str, image: tuple[int, int, int], x: NDArray[Any], y: NDArray[Any], **more: Any
) -> Dataset:
    """Return a set of images, (channels, height, width), with numbers as ids unless more says."""
    channels, height, width = image
    samples = more.pop("samples", np.arange(len(y), dtype=np.int64))
    return Dataset(name, samples, pixels(height, width, channels), x, y, image=image, **more)


def image_blocks(
    features: tuple[str, ...], image: tuple[int, int, int], cut: str
) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[int, ...]]]:
    """Return the feature blocks that an image is cut into, and their shapes.

    Quadrants come in reading order, and the channels of each one after the other. `features` are
    the names of the pixels, `image` is (channels, height, width), `cut` one of `CUTS`.
    """
    quarters, apart = CUTS[cut]
    channels, height, width = image
    place = np.arange(len(features)).reshape(image)
    groups: dict[str, tuple[str, ...]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    rows, columns = (
        (slice(0, -(-size // 2)), slice(-(-size // 2), size)) for size in (height, width)
    )
    areas = [(r, c) for r in rows for c in columns] if quarters else [(slice(None), slice(None))]
    for name, (r, c) in zip(_QUADRANTS if quarters else ("",), areas, strict=True):
        for channel in range(channels) if apart else (slice(None),):
            part = place[channel, r, c]
            part = part[None] if part.ndim == 2 else part
            colour = colours(channels)[channel] if isinstance(channel, int) else ""
            own = " ".join(word for word in (name, colour) if word)
            groups[own] = tuple(features[at] for at in part.ravel().tolist())
            shapes[own] = part.shape
    return groups, shapes


def resized(x: NDArray[Any], side: int, channels: int = 1) -> NDArray[Any]:
    """Return square images of another size, (images, channels side²), bilinear, of the same type.

    Made smaller, each pixel is a mean over as many as it stands for (a triangle of weights), so
    that nothing is skipped.
    """
    before = round((x.shape[1] // channels) ** 0.5)
    if before == side:
        return x
    weights = _triangle(before, side)
    found = np.empty((len(x), channels * side * side), x.dtype)
    for start in range(0, len(x), 4096):
        part = x[start : start + 4096].reshape(-1, before, before).astype(np.float32)
        values = (weights @ part @ weights.T).reshape(-1, channels * side * side)
        found[start : start + 4096] = np.rint(values) if x.dtype.kind in "iu" else values
    return found


def _triangle(before: int, after: int) -> NDArray[np.float32]:
    """Return the weights of the old pixels in the new ones, (after, before); rows add up to 1."""
    step = before / after
    width = max(step, 1.0)
    centres = (np.arange(after) + 0.5) * step
    away = np.abs(np.arange(before) + 0.5 - centres[:, None])
    weights = np.maximum(0.0, 1.0 - away / width)
    found: NDArray[np.float32] = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
    return found
