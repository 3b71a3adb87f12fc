"""Images as rows of pixels: the idx format, names of pixels, another size."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import TableError

__all__ = ["idx", "pixels", "resized"]


def idx(path: Path) -> NDArray[np.uint8]:
    """Read a gzipped idx file of unsigned bytes (yann.lecun.com/exdb/mnist).

    Raises
    ------
    TableError
        If the file is not one.
    """
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


def pixels(height: int, width: int) -> tuple[str, ...]:
    """Return the names of an image's pixels, row by row."""
    return tuple(f"pixel{row:02d}_{column:02d}" for row in range(height) for column in range(width))


def resized(x: NDArray[Any], side: int) -> NDArray[Any]:
    """Return square images of another size, (images, side²), bilinear and of the same type.

    Made smaller, each pixel is a mean over as many as it stands for (a triangle of weights), so
    that nothing is skipped.
    """
    before = round(x.shape[1] ** 0.5)
    if before == side:
        return x
    weights = _triangle(before, side)
    found = np.empty((len(x), side * side), x.dtype)
    for start in range(0, len(x), 4096):
        part = x[start : start + 4096].reshape(-1, before, before).astype(np.float32)
        values = (weights @ part @ weights.T).reshape(-1, side * side)
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
