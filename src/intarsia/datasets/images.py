"""Read sets of images in their public file formats: CIFAR, EuroSAT, Tiny ImageNet, ModelNet40.

cifar10, cifar100, tiny_imagenet32
    `train.parquet` and `test.parquet`: `image` (encoded bytes) and `label` (0 to 9, or to 199),
    of cifar100 `fine_label` (0 to 99).
eurosat
    The RGB edition: `<class>/<class>_<number>.jpg`, in the folder itself or in its `2750`
    (Helber et al., 2019).
modelnet40
    Twelve rendered views of each object: `<class>/<train|test>/<object>.obj.shaded_v<NNN>.png`, as
    in the archive modelnet40_images_new_12x (Su et al., 2018), or `<object>_<NNN>.jpg` as in
    modelnet40v1 (Su et al., 2015).

Images are decoded once, as the 60,000 of CIFAR-10 take 15 seconds of one core. The arrays lie in
the user's own cache folder (INTARSIA_CACHE, else `intarsia` in XDG_CACHE_HOME or ~/.cache), which
only the user can read: a set in a folder of the user's may be private.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow.parquet
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from intarsia.data.dataset import Dataset
from intarsia.datasets.files import file_in
from intarsia.datasets.pixels import image_set, pixels
from intarsia.errors import ExperimentError, TableError, first_line, listed

_ROWS = 256  # images of one task
_THREADS = 2  # Pillow decodes outside Python's lock


def decode_images(
    sources: Sequence[bytes] | Sequence[Path],
    where: object = "",
    side: int | None = None,
    mode: str = "RGB",
) -> NDArray[np.uint8]:
    """Return encoded images, or those in files, (images, channels height width), all of one size.

    They are scaled to `side` × `side` pixels, or all have the first one's size; `mode` is "RGB",
    colour by colour, or "L" (grey). An error names by `where` what bytes are from.
    """

    def name(at: int) -> str:
        source = sources[at]
        return f"image {at} of {where}" if isinstance(source, bytes) else str(source)

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


_CIFAR10 = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
_VIEW = re.compile(r"(?P<object>.+?)(?:\.obj\.shaded_v|_)(?P<view>\d{3})\.(?:png|jpe?g)")


def cifar10(home: Path) -> Dataset:
    """Read CIFAR-10, with the names of its classes as labels."""
    found = _encoded(
        "cifar10", home, "label", "CIFAR-10 as WebP of quality 92 (mean error about 3 of 255)"
    )
    return replace(found, y=np.array(_CIFAR10)[found.y])


def cifar100(home: Path) -> Dataset:
    """Read CIFAR-100, with the numbers of its fine classes as labels."""
    return _encoded(
        "cifar100",
        home,
        "fine_label",
        "CIFAR-100 as WebP of quality 92, split anew into 500 and 100 images of each class",
    )


def tiny_imagenet32(home: Path) -> Dataset:
    """Read Tiny ImageNet, with the numbers of its classes as labels."""
    return _encoded("tiny_imagenet32", home, "label", "Tiny ImageNet, downsized to 32 × 32 pixels")


def _encoded(name: str, home: Path, label: str, departures: str) -> Dataset:
    """Read images of 32 × 32 pixels as encoded bytes, beside the numbers of their classes."""
    files = [file_in(home, f"{part}.parquet") for part in ("train", "test")]
    labels = [pyarrow.parquet.read_table(file, columns=[label])[label] for file in files]
    y = np.concatenate([column.to_numpy() for column in labels]).astype(np.int64)

    def decode() -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
        parts = []
        for file in files:
            images = pyarrow.parquet.read_table(file, columns=["image"])["image"].to_pylist()
            parts.append(decode_images(images, file))
        return np.concatenate(parts)

    return image_set(
        name,
        (3, 32, 32),
        kept((file.read_bytes() for file in files), decode),
        y,
        test=np.arange(len(y)) >= len(labels[0]),
        scale=1 / 255,
        departures=departures,
    )


def eurosat(home: Path) -> Dataset:
    """Read the RGB images of EuroSAT; it has no test part of its own."""
    inner = home / "2750"
    root = inner if inner.is_dir() else home
    files = sorted(root.glob("*/*.jpg"))
    if not files:
        raise ExperimentError(
            f"{root} holds no <class>/<class>_<number>.jpg; name the folder of the RGB edition of "
            "EuroSAT."
        )
    x = kept(_key("eurosat", root, files), lambda: decode_images(files))
    _, height, width = _pixels(files[0], str(files[0]), None, "L").shape
    return image_set(
        "eurosat",
        (3, height, width),
        x,
        np.array([file.parent.name for file in files]),
        samples=np.array([file.stem for file in files]),
        scale=1 / 255,
    )


def modelnet40(home: Path, *, views: int = 12, side: int = 32) -> Dataset:
    """Read rendered views of the objects of ModelNet40, each as a feature block.

    Parameters
    ----------
    views
        How many of an object's views are taken, evenly spaced.
    side
        Height and width in pixels that the (grey) images are scaled to.
    """
    for key, value, most in (("views", views, 12), ("side", side, 256)):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise ExperimentError(
                f"The data set 'modelnet40' has {key} = {value!r}; expected a whole number from 1 "
                f"to {most}."
            )
    objects = _objects(home)
    (known,) = {len(found) for found in objects.values()}
    if known % views:
        raise ExperimentError(
            f"The data set 'modelnet40' has views = {views}, but {known} views cannot be taken "
            f"evenly so; expected a divisor of {known}."
        )
    taken = range(0, known, known // views)
    files = [sorted(found.items())[at][1] for found in objects.values() for at in taken]
    own = _key(f"modelnet40 {side}", home, files)
    x = kept(own, lambda: decode_images(files, side=side, mode="L")).reshape(len(objects), -1)
    names = [f"view{at + 1:02d}" for at in taken]
    groups = {name: tuple(f"{name}:{pixel}" for pixel in pixels(side, side)) for name in names}
    return Dataset(
        "modelnet40",
        np.array([name for _, _, name in objects]),
        tuple(feature for some in groups.values() for feature in some),
        x,
        np.array([kind for kind, _, _ in objects]),
        test=np.array([part == "test" for _, part, _ in objects]),
        scale=1 / 255,
        groups=groups,
        shapes=dict.fromkeys(groups, (1, side, side)),
    )


def _objects(home: Path) -> dict[tuple[str, str, str], dict[str, Path]]:
    """Return the views of each object: class, part and name → number of a view → file."""
    found: dict[tuple[str, str, str], dict[str, Path]] = defaultdict(dict)
    for file in sorted(home.glob("*/*/*")):
        fits = _VIEW.fullmatch(file.name)
        if fits and file.parent.name in ("train", "test"):
            key = (file.parent.parent.name, file.parent.name, fits["object"])
            if fits["view"] in found[key]:
                raise ExperimentError(
                    f"{file} and {found[key][fits['view']].name} beside it are one view of one "
                    "object; take one of them away."
                )
            found[key][fits["view"]] = file
    if not found:
        raise ExperimentError(
            f"{home} holds no <class>/<train|test>/<object>.obj.shaded_v<NNN>.png; name the folder "
            "of the rendered views of ModelNet40."
        )
    every = sorted(set().union(*found.values()))
    for (kind, part, name), views in found.items():
        missing = [view for view in every if view not in views]
        if missing:
            raise ExperimentError(
                f"The object {name!r} in {home / kind / part} has {len(views)} views and others "
                f"have {len(every)}: {listed(missing)} is missing; put the files there, or take "
                "the object away."
            )
    return dict(found)


def _key(what: str, home: Path, files: Sequence[Path]) -> list[bytes]:
    """Return what says whether the files are those of before: their names, sizes and times."""
    lines = [what, str(home.resolve())]
    for file in files:
        status = file.stat()
        lines.append(f"{file.relative_to(home)} {status.st_size} {status.st_mtime_ns}")
    return ["\n".join(lines).encode()]
