"""Load a named data set as arrays, from files in one folder; nothing is downloaded.

The folder is the argument `folder`, else the setting INTARSIA_DATA, else `shared/data` beside a
source checkout. `breast_cancer` and `digits` come with scikit-learn, `gaussians` is drawn. An
installed package adds sets of its own: functions of keyword arguments that return a `Dataset`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from intarsia.core import plugins
from intarsia.core.block import Labels
from intarsia.core.settings import hyperparameters
from intarsia.data.dataset import Dataset
from intarsia.data.encoding import encode, encoding_of
from intarsia.data.labels import LabelColumn, LabelSettings, encode_labels, meaning
from intarsia.data.reader import read
from intarsia.data.source import Source
from intarsia.datasets import digits, images, synthetic, tabular
from intarsia.datasets.files import home_of
from intarsia.datasets.herigraph import herigraph
from intarsia.datasets.options import apply_options
from intarsia.errors import ExperimentError, nearest


def dataset_names() -> tuple[str, ...]:
    """Return the names that `load` knows."""
    return tuple(plugins.names("data set", BUILT_IN))


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
        Others are the keyword arguments of what reads or draws a set (modelnet40, gaussians, those
        of other packages).

    Raises
    ------
    ExperimentError
        If the name or an option is unknown, the folder or a file is missing, or a package's set
        cannot be used.
    """
    made, plugin = maker_of(name)
    keys = plugins.keywords(made)
    own = {*keys} if plugin is not None else _own_options(name, keys)
    for key in options:
        if key not in own | _COMMON:
            raise ExperimentError(
                f"The data set {name!r} has no option {key!r}; {nearest(key, own | _COMMON)}."
            )
    given = {key: options.pop(key) for key in keys if key in options}
    if "seed" in keys and name not in _LOADERS:
        given = {"seed": drawn_from, **given}
    if plugin is not None:
        if lacking := [key for key in plugins.needed(made) if key not in given]:
            raise ExperimentError(
                f"The data set {name!r} needs the option {lacking[0]!r}; set it in [dataset]."
            )
        dataset = plugin.checked(made(**given), Dataset)
    elif name in _DRAWN:
        dataset = hyperparameters(_DRAWN[name], given, f"The data set {name!r}:").draw()
    else:
        home = Path() if name in _BUNDLED else home_of(name, folder, options.get("path"))
        dataset = _LOADERS[name](home, **given)
    return apply_options(dataset, options)


def maker_of(name: str) -> tuple[Any, plugins.Plugin | None]:
    """Return what reads or draws a data set, and whose it is; None: of this package.

    ExperimentError if there is none of that name, or a package's cannot be used.
    """
    plugin = plugins.named("data set", name, BUILT_IN)
    if plugin is not None:
        return plugin.load(), plugin
    if name not in BUILT_IN:
        raise ExperimentError(f"There is no data set {name!r}; {nearest(name, dataset_names())}.")
    return _LOADERS.get(name, _DRAWN.get(name)), None


def _own_options(name: str, keys: Sequence[str]) -> set[str]:
    """Return the options that not every set has; `keys` are those of what reads or draws it."""
    own = {*keys}
    if name in _DIGITS:
        own.add("labels")
    if name in _IMAGES:
        own |= {"side", "blocks"}
    if name not in _DRAWN and name not in _BUNDLED:
        own.add("path")
    return own


def of_file(source: Source, settings: LabelSettings | None = None) -> tuple[Dataset, Labels]:
    """Return the data set in a file or a database, with encoded labels, and what they mean."""
    if source.weights is not None:
        raise source.error(
            f"weights is {source.weights!r}, which a data set that is dealt to clients has not",
            "remove it, or describe each client by a [[client]] table with weights",
        )
    table = read(source)
    encoding = encoding_of({table.client: table}, settings)
    block = encode(table, encoding)
    # the group of a client without groups is its own name; here the table is no client
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
        indicators=block.indicators,
        levels=block.levels,
        split_by=table.split_by,
    )
    return dataset, encoding.labels


def encoded(dataset: Dataset, settings: LabelSettings | None = None) -> tuple[Dataset, Labels]:
    """Return the data set with labels as a block stores them, and what they mean."""
    (found,), labels = encoded_alike([dataset], settings)
    return found, labels


def encoded_alike(
    sets: Sequence[Dataset], settings: LabelSettings | None = None
) -> tuple[list[Dataset], Labels]:
    """Return data sets with labels that mean the same in all, and what they mean."""
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


_LOADERS: Mapping[str, Callable[..., Dataset]] = {
    "20news": tabular.news,
    "a9a": tabular.a9a,
    "bci": tabular.bci,
    "breast_cancer": tabular.breast_cancer,
    "cifar10": images.cifar10,
    "cifar100": images.cifar100,
    "covtype15k": tabular.covtype15k,
    "credit_default": tabular.credit_default,
    "digits": digits.digits,
    "eurosat": images.eurosat,
    "femnist": digits.femnist,
    "heart": tabular.heart,
    "herigraph": herigraph,
    "mfeat": tabular.mfeat,
    "mnist": digits.mnist,
    "modelnet40": images.modelnet40,
    "tiny_imagenet32": images.tiny_imagenet32,
    "usps": digits.usps,
}
_DRAWN = {"gaussians": synthetic.Gaussians}
BUILT_IN = frozenset({*_LOADERS, *_DRAWN})
_COMMON = frozenset({"groups", "only", "positive", "test_per_class", "train_per_class"})
_DIGITS = frozenset({"digits", "mfeat", "mnist", "usps"})
_IMAGES = frozenset(
    {"cifar10", "cifar100", "digits", "eurosat", "femnist", "mnist", "tiny_imagenet32", "usps"}
)
_BUNDLED = frozenset({"breast_cancer", "digits"})  # with scikit-learn
