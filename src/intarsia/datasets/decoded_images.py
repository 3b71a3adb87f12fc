"""Images decoded once: from encoded bytes or files to an array, which is kept for the next time.

Decoding the 60,000 images of CIFAR-10 takes 15 seconds of one core. What was decoded lies in the
user's own cache folder (INTARSIA_CACHE, else `intarsia` in XDG_CACHE_HOME or ~/.cache), which only
the user can read: a set in a folder of the user's may be private.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from intarsia.errors import TableError
from intarsia.spelling import first_line

__all__ = ["decoded_bytes", "decoded_files", "kept", "size_of"]

_ROWS = 256  # images of one task
_THREADS = 2  # Pillow decodes outside Python's lock


def decoded_bytes(encoded: Sequence[bytes], where: str) -> NDArray[np.uint8]:
    """Return images from their encoded bytes, (images, channels height width), colour by colour.

    Raises
    ------
    TableError
        If one is no image, or of another size than the first; `where` names the file.
    """
    return _stacked(encoded, lambda at: f"image {at} of {where}", None, "RGB")


def decoded_files(files: Sequence[Path], side: int | None, mode: str = "RGB") -> NDArray[np.uint8]:
    """Return images in files, (images, channels height width), scaled to a side in pixels.

    `mode` is "RGB" or "L" (grey); `side` None: as they are, all of the first one's size.

    Raises
    ------
    TableError
        If one is no image, or of another size than the first.
    """
    return _stacked(files, lambda at: str(files[at]), side, mode)


def size_of(file: Path) -> tuple[int, int]:
    """Return the height and the width of an image, in pixels.

    Raises
    ------
    TableError
        If it is none.
    """
    _, height, width = _pixels(file, str(file), None, "L").shape
    return height, width


def _stacked(
    sources: Sequence[bytes] | Sequence[Path],
    name: Callable[[int], str],
    side: int | None,
    mode: str,
) -> NDArray[np.uint8]:
    first = _pixels(sources[0], name(0), side, mode)
    found = np.empty((len(sources), *first.shape), np.uint8)

    def fill(start: int) -> None:
        for at in range(start, min(start + _ROWS, len(sources))):
            one = _pixels(sources[at], name(at), side, mode)
            if one.shape != first.shape:
                raise TableError(
                    f"{name(at)} has {one.shape[1]} × {one.shape[2]} pixels and {name(0)} has "
                    f"{first.shape[1]} × {first.shape[2]}; all images of a set have one size."
                )
            found[at] = one

    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(fill, range(0, len(sources), _ROWS)))
    return found.reshape(len(sources), -1)


def _pixels(source: bytes | Path, name: str, side: int | None, mode: str) -> NDArray[np.uint8]:
    """Return one image, (channels, height, width)."""
    try:
        with Image.open(BytesIO(source) if isinstance(source, bytes) else source) as image:
            plain = image.convert(mode)
            if side is not None and plain.size != (side, side):
                plain = plain.resize((side, side), Image.Resampling.BOX)
            values = np.asarray(plain, np.uint8)
    except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise TableError(
            f"{name} is no image that can be read ({first_line(error)}); put the set's own file "
            "there."
        ) from error
    return values[None] if values.ndim == 2 else np.ascontiguousarray(values.transpose(2, 0, 1))


def kept(key: Iterable[bytes], make: Callable[[], NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Return what was made before from the same key, or make and keep it.

    Where the cache folder cannot be written to, it is made each time.
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in key:
        digest.update(hashlib.blake2b(part).digest())
    path = _folder() / f"images-{digest.hexdigest()}.npy"
    try:
        found: NDArray[np.uint8] = np.load(path, allow_pickle=False)
        return found
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):
        found = make()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")  # only the user reads it
        try:
            with os.fdopen(handle, "wb") as stream:
                np.save(stream, found, allow_pickle=False)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError:
        pass
    return found


def _folder() -> Path:
    own = os.environ.get("INTARSIA_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "intarsia"
