"""Read handwritten digits and characters: MNIST, USPS, FEMNIST, and scikit-learn's digits."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from intarsia.data.dataset import Dataset
from intarsia.datasets.files import file_in
from intarsia.datasets.pixels import idx, image_set
from intarsia.errors import ExperimentError


def femnist(home: Path) -> Dataset:
    """Read handwritten characters, with writers as clients."""
    with np.load(file_in(home, "femnist.npz"), allow_pickle=False) as file:
        x, y, test = file["x"], file["y"].astype(np.int64), file["split"] == "test"
        clients = file["user"].astype(np.str_)
    return image_set(
        "femnist",
        (1, 28, 28),
        x,
        y,
        test=test,
        scale=1 / 255,
        departures="a part of LEAF's FEMNIST: those of 198 writers with both train and test images",
        clients=clients,
    )


def mnist(home: Path) -> Dataset:
    """Read MNIST, train part first."""
    images = [idx(file_in(home, f"{part}-images-idx3-ubyte.gz")) for part in ("train", "t10k")]
    labels = [idx(file_in(home, f"{part}-labels-idx1-ubyte.gz")) for part in ("train", "t10k")]
    x = np.concatenate(images)
    x, y = x.reshape(len(x), -1), np.concatenate(labels).astype(np.int64)
    test = np.arange(len(x)) >= len(images[0])
    return image_set("mnist", (1, 28, 28), x, y, test=test, scale=1 / 255)


def usps(home: Path) -> Dataset:
    """Read USPS, train part first."""
    try:
        import h5py  # only this set needs it
    except ImportError as error:
        raise ExperimentError(
            "The data set 'usps' is an HDF5 file and the library h5py is not installed; "
            'run pip install "intarsia[hdf5]".'
        ) from error
    with h5py.File(file_in(home, "usps.h5")) as file:
        parts = {
            part: (file[part]["data"][:], file[part]["target"][:]) for part in ("train", "test")
        }
    x = np.concatenate([data for data, _ in parts.values()])
    y = np.concatenate([target for _, target in parts.values()]).astype(np.int64)
    test = np.arange(len(x)) >= len(parts["train"][0])
    return image_set("usps", (1, 16, 16), x, y, test=test)


def digits(_: Path) -> Dataset:
    """Return the digits of scikit-learn."""
    from sklearn.datasets import load_digits  # here: it takes a second to import

    table = load_digits()
    x, y = table.data.astype(np.uint8), table.target.astype(np.int64)
    return image_set("digits", (1, 8, 8), x, y, scale=1 / 16)
