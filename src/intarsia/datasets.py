"""Named data sets as arrays: read from files in one folder, never downloaded.

The folder is the argument `folder`, else the setting INTARSIA_DATA, else `shared/data` beside a
source checkout. `breast_cancer` and `digits` come with scikit-learn, `gaussians` is drawn.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack

from intarsia import generated, image_sets
from intarsia.data import Labels
from intarsia.dataset import Dataset
from intarsia.dataset_options import (
    fewer,
    in_blocks,
    in_both_parts,
    in_groups,
    of_classes,
    relabelled,
    with_side,
)
from intarsia.description import Source
from intarsia.errors import ExperimentError
from intarsia.herigraph import herigraph
from intarsia.images import idx, pixels
from intarsia.labels import LabelColumn, LabelSettings, encode_labels, meaning
from intarsia.set_files import file_in, home_of, number_columns, whole_numbers
from intarsia.sources import read
from intarsia.spelling import nearest
from intarsia.tables import encode, encoding_of

__all__ = ["Dataset", "apart", "dataset_names", "encoded", "encoded_alike", "load", "of_file"]


def dataset_names() -> tuple[str, ...]:
    """Return the names that `load` knows."""
    return tuple(sorted({*_LOADERS, *_DRAWN}))


def load(
    name: str, *, folder: str | Path | None = None, drawn_from: int = 0, **options: Any
) -> Dataset:
    """Return a named data set.

    Parameters
    ----------
    name
        One of `dataset_names()`.
    folder
        Where the files lie, one sub-folder per set; None: the setting INTARSIA_DATA.
    drawn_from
        Seed of what is drawn, unless the options have a `seed`.
    options
        For every set `only`, a list of classes: all other samples are left out; `positive`, a
        class or a list of classes: the labels become 1 for these and 0 for all others;
        `train_per_class` and `test_per_class`: at most so many samples of each; and `groups`,
        named feature blocks with lists of features. For sets in files `path`, their folder. For the
        sets of digits (mnist, usps, mfeat, digits) `labels`: "digits" (default) or "parity", which
        makes them the text "even" and "odd". For those of images (cifar10, cifar100,
        digits, eurosat, femnist, mnist, tiny_imagenet32, usps) `side`: their height and width in
        pixels; and `blocks`: the feature blocks that they are cut into, one of `images.CUTS`.
        Others are the keyword arguments of what reads or draws a set (modelnet40, gaussians).

    Raises
    ------
    ExperimentError
        If the name or an option is unknown, or the folder or a file is missing.
    """
    if name not in _LOADERS and name not in _DRAWN:
        raise ExperimentError(f"There is no data set {name!r}; {nearest(name, dataset_names())}.")
    own = _own_options(name)
    for key in options:
        if key not in own | _COMMON:
            raise ExperimentError(
                f"The data set {name!r} has no option {key!r}; {nearest(key, own | _COMMON)}."
            )
    given = {key: value for key, value in options.items() if key in _arguments(name)}
    if name in _DRAWN:
        dataset = _drawn(name, **{"seed": drawn_from, **given})
    else:
        dataset = _LOADERS[name](_home(name, folder, options.get("path")), **given)
    if "side" in options and name in _IMAGES:
        dataset = with_side(dataset, options["side"])
    if name in _DIGITS:
        dataset = relabelled(dataset, options.get("labels", "digits"))
    if "only" in options:
        dataset = dataset.take(of_classes(dataset, "only", options))
    dataset = fewer(dataset, options)
    if "positive" in options:
        y = of_classes(dataset, "positive", options).astype(np.int64)
        dataset = replace(dataset, y=y)
    if "blocks" in options:
        dataset = in_blocks(dataset, options["blocks"])
    if "groups" in options:
        dataset = in_groups(dataset, options["groups"])
    return in_both_parts(dataset)


def _own_options(name: str) -> set[str]:
    """Return the options that not every set has."""
    own = set(_arguments(name))
    if name in _DIGITS:
        own.add("labels")
    if name in _IMAGES:
        own |= {"side", "blocks"}
    if name not in _DRAWN and name not in _BUNDLED:
        own.add("path")
    return own


def _arguments(name: str) -> tuple[str, ...]:
    """Return the options that what reads or draws a set takes itself."""
    made = _DRAWN[name] if name in _DRAWN else _LOADERS[name]
    parameters = inspect.signature(made).parameters.values()
    return tuple(one.name for one in parameters if one.kind is one.KEYWORD_ONLY)


def _home(name: str, folder: str | Path | None, path: Any) -> Path:
    """Return the folder of a set's files."""
    if name in _BUNDLED:
        return Path()
    if path is None:
        return home_of(name, folder)
    if not Path(str(path)).is_dir():
        raise ExperimentError(
            f"The data set {name!r} has path = {str(path)!r}, which is no folder; name the folder "
            "that holds the set's files."
        )
    return Path(str(path))


def of_file(source: Source, settings: LabelSettings | None = None) -> tuple[Dataset, Labels]:
    """Return the data set in a file or a database, with encoded labels, and what they mean.

    Raises
    ------
    TableError
        If the source cannot be read, or its columns are not what the settings say.
    FederationError
        If it has no labels, or they do not fit the settings.
    """
    table = read(source)
    encoding = encoding_of({table.client: table}, settings)
    block = encode(table, encoding)
    # the group of a party without groups is its own name; here the table is no party
    groups = {name: some for name, some in block.groups.items() if name != source.name}
    shapes = {name: shape for name, shape in block.shapes.items() if name in groups}
    dataset = Dataset(
        source.name,
        block.samples,
        block.features,
        block.x,
        np.asarray(block.y),
        groups=groups,
        shapes=shapes,
        classes=tuple(sorted(set(encoding.codes.values()))),
        class_names=encoding.labels.classes,
    )
    return dataset, encoding.labels


def encoded(dataset: Dataset, settings: LabelSettings | None = None) -> tuple[Dataset, Labels]:
    """Return the data set with labels as a block stores them, and what they mean.

    Raises
    ------
    FederationError
        If the labels do not fit the settings.
    """
    (found,), labels = encoded_alike([dataset], settings)
    return found, labels


def encoded_alike(
    sets: Sequence[Dataset], settings: LabelSettings | None = None
) -> tuple[list[Dataset], Labels]:
    """Return data sets with labels that mean the same in all, and what they mean.

    Raises
    ------
    FederationError
        If the labels do not fit the settings.
    """
    columns = {
        one.name: LabelColumn("label", one.y if one.y.dtype.kind in "UT" else one.y.astype(float))
        for one in sets
    }
    labels, codes = meaning(columns, settings or LabelSettings(), list(columns))
    known = tuple(sorted(set(codes.values())))
    return [
        replace(
            one,
            y=encode_labels(columns[one.name], one.name, labels, codes),
            classes=known,
            class_names=labels.classes,
        )
        for one in sets
    ], labels


def apart(sets: Sequence[Dataset]) -> list[Dataset]:
    """Return data sets whose samples have ids of their own.

    Sets with the same columns share them; else each one's columns get its name in front.
    """
    if len(sets) == 1:
        return list(sets)
    alike = len({one.features for one in sets}) == 1
    return [
        replace(
            one,
            samples=np.array([f"{one.name}:{sample}" for sample in one.samples.tolist()]),
            features=one.features if alike else tuple(f"{one.name}:{f}" for f in one.features),
            groups={},
            shapes={},
        )
        for one in sets
    ]


def _drawn(name: str, **options: Any) -> Dataset:
    found = _DRAWN[name](**options)
    return Dataset(
        name,
        np.arange(len(found.y), dtype=np.int64),
        tuple(f"x{number}" for number in range(found.x.shape[1])),
        found.x,
        found.y,
        test=found.test if found.test.any() else None,
    )


def _bci(home: Path) -> Dataset:
    with np.load(file_in(home, "bci_common.npz"), allow_pickle=False) as file:
        x, y, test = file["features"], file["label"].astype(np.int64), file["is_test"]
        clients = np.array([f"subject{number:02d}" for number in file["client"]])
    return Dataset(
        "bci",
        np.arange(len(y), dtype=np.int64),
        tuple(f"tangent{number}" for number in range(x.shape[1])),
        x,
        y,
        test=test,
        departures="FLIC's BCI-common, whose features were fitted on train and test part together",
        clients=clients,
    )


def _covtype15k(home: Path) -> Dataset:
    table = number_columns(file_in(home, "covtype15k.csv.gz"))
    samples = table.pop("Id").astype(np.int64)
    y = table.pop("Cover_Type").astype(np.int64)
    return Dataset(
        "covtype15k",
        samples,
        tuple(table),
        whole_numbers(table, np.int16),
        y,
        departures="the balanced subset of 15,120 rows (2,160 per class), not the 581,012 rows",
    )


def _credit_default(home: Path) -> Dataset:
    table = number_columns(file_in(home, "credit_default.csv.gz"))
    samples = table.pop("ID").astype(np.int64)
    y = table.pop("default.payment.next.month").astype(np.int64)
    return Dataset("credit_default", samples, tuple(table), whole_numbers(table, np.int32), y)


def _femnist(home: Path) -> Dataset:
    with np.load(file_in(home, "femnist.npz"), allow_pickle=False) as file:
        x, y, test = file["x"], file["y"].astype(np.int64), file["split"] == "test"
        clients = file["user"].astype(np.str_)
    return Dataset(
        "femnist",
        np.arange(len(y), dtype=np.int64),
        pixels(28, 28),
        x,
        y,
        test=test,
        scale=1 / 255,
        departures="a part of LEAF's FEMNIST: those of 198 writers with both train and test images",
        clients=clients,
        image=(1, 28, 28),
    )


def _heart(home: Path) -> Dataset:
    names: list[str] = []
    parts: list[NDArray[np.float64]] = []
    columns: tuple[str, ...] = ()
    for hospital in ("cleveland", "hungarian", "switzerland", "va"):
        table = number_columns(file_in(home, f"{hospital}.csv"), missing=("?",))
        columns = tuple(table)
        part = np.column_stack(list(table.values()))
        parts.append(part)
        names += [f"{hospital}:{row}" for row in range(len(part))]
    x = np.concatenate(parts)
    target = columns.index("target")
    kept = [place for place in range(len(columns)) if place != target]
    features = tuple(columns[place] for place in kept)
    return Dataset("heart", np.array(names), features, x[:, kept], x[:, target].astype(np.int64))


def _a9a(home: Path) -> Dataset:
    from sklearn.datasets import load_svmlight_file  # here: it takes a second to import

    x, y = load_svmlight_file(str(file_in(home, "a9a.libsvm.gz")), n_features=123)
    return Dataset(
        "a9a",
        np.arange(len(y), dtype=np.int64),
        tuple(f"f{number}" for number in range(1, 124)),
        csr_array(x),
        y.astype(np.int64),
        departures="the train part (32,561 rows)",
    )


def _mnist(home: Path) -> Dataset:
    images = [idx(file_in(home, f"{part}-images-idx3-ubyte.gz")) for part in ("train", "t10k")]
    labels = [idx(file_in(home, f"{part}-labels-idx1-ubyte.gz")) for part in ("train", "t10k")]
    x = np.concatenate(images)
    return Dataset(
        "mnist",
        np.arange(len(x), dtype=np.int64),
        pixels(28, 28),
        x.reshape(len(x), -1),
        np.concatenate(labels).astype(np.int64),
        test=np.arange(len(x)) >= len(images[0]),
        scale=1 / 255,
        image=(1, 28, 28),
    )


def _usps(home: Path) -> Dataset:
    try:
        import h5py  # only this set needs it
    except ImportError as error:
        raise ExperimentError(
            "The data set 'usps' is an HDF5 file and the library h5py is not installed; "
            "install it with `pip install h5py`."
        ) from error
    with h5py.File(file_in(home, "usps.h5")) as file:
        parts = {
            part: (file[part]["data"][:], file[part]["target"][:]) for part in ("train", "test")
        }
    x = np.concatenate([data for data, _ in parts.values()])
    return Dataset(
        "usps",
        np.arange(len(x), dtype=np.int64),
        pixels(16, 16),
        x,
        np.concatenate([target for _, target in parts.values()]).astype(np.int64),
        test=np.arange(len(x)) >= len(parts["train"][0]),
        image=(1, 16, 16),
    )


def _mfeat(home: Path) -> Dataset:
    with np.load(file_in(home, "mfeat.npz"), allow_pickle=False) as file:
        views = {name: file[name] for name in file.files if name != "label"}
        y = file["label"].astype(np.int64)
    groups = {
        name: tuple(f"{name}{number:03d}" for number in range(view.shape[1]))
        for name, view in views.items()
    }
    return Dataset(
        "mfeat",
        np.arange(len(y), dtype=np.int64),
        tuple(feature for names in groups.values() for feature in names),
        np.concatenate(list(views.values()), axis=1),
        y,
        groups=groups,
    )


def _news(home: Path) -> Dataset:
    """Read 20 newsgroups as two classes of tf-idf rows.

    The classes are those of news20.binary: "technical" is comp.*, sci.* and misc.forsale (ten
    newsgroups), "other" the remaining ten. The vocabulary and the inverse document frequencies
    are those of the train part, with the defaults of scikit-learn's TfidfVectorizer; columns are
    in alphabetical order.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer  # here: it takes a second

    table = pyarrow.parquet.read_table(file_in(home, "20news.parquet")).to_pydict()
    test = np.array([part == "test" for part in table["split"]])
    documents = table["text"]
    vectoriser = TfidfVectorizer()
    train, held_out = np.flatnonzero(~test), np.flatnonzero(test)
    train_rows = vectoriser.fit_transform([documents[row] for row in train])
    test_rows = vectoriser.transform([documents[row] for row in held_out])
    order = np.concatenate([train, held_out])
    technical = [name.startswith(("comp.", "sci.", "misc.")) for name in table["label"]]
    return Dataset(
        "20news",
        order.astype(np.int64),
        tuple(vectoriser.get_feature_names_out().tolist()),
        csr_array(vstack([train_rows, test_rows], format="csr")),
        np.where(technical, "technical", "other")[order],
        test=test[order],
        departures="two-class tf-idf of 20 newsgroups by date; stands in for news20.binary",
    )


def _breast_cancer(_: Path) -> Dataset:
    from sklearn.datasets import load_breast_cancer  # here: it takes a second to import

    table = load_breast_cancer()
    return Dataset(
        "breast_cancer",
        np.arange(len(table.target), dtype=np.int64),
        tuple(str(name) for name in table.feature_names),
        table.data,
        table.target_names[table.target],
    )


def _digits(_: Path) -> Dataset:
    from sklearn.datasets import load_digits  # here: it takes a second to import

    table = load_digits()
    return Dataset(
        "digits",
        np.arange(len(table.target), dtype=np.int64),
        pixels(8, 8),
        table.data.astype(np.uint8),
        table.target.astype(np.int64),
        scale=1 / 16,
        image=(1, 8, 8),
    )


_LOADERS: Mapping[str, Callable[..., Dataset]] = {
    "20news": _news,
    "a9a": _a9a,
    "bci": _bci,
    "breast_cancer": _breast_cancer,
    "cifar10": image_sets.cifar10,
    "cifar100": image_sets.cifar100,
    "covtype15k": _covtype15k,
    "credit_default": _credit_default,
    "digits": _digits,
    "eurosat": image_sets.eurosat,
    "femnist": _femnist,
    "heart": _heart,
    "herigraph": herigraph,
    "mfeat": _mfeat,
    "mnist": _mnist,
    "modelnet40": image_sets.modelnet40,
    "tiny_imagenet32": image_sets.tiny_imagenet32,
    "usps": _usps,
}
_DRAWN: Mapping[str, Callable[..., generated.Drawn]] = {"gaussians": generated.gaussians}
_COMMON = frozenset({"groups", "only", "positive", "test_per_class", "train_per_class"})
_DIGITS = frozenset({"digits", "mfeat", "mnist", "usps"})
_IMAGES = frozenset(
    {"cifar10", "cifar100", "digits", "eurosat", "femnist", "mnist", "tiny_imagenet32", "usps"}
)
_BUNDLED = frozenset({"breast_cancer", "digits"})  # with scikit-learn
