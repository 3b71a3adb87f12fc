"""Apply the options of a named data set: labels, classes, feature blocks, the size of images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.data.dataset import Dataset
from intarsia.datasets.pixels import CUTS, image_blocks, pixels, resized
from intarsia.errors import ExperimentError, nearest


def apply_options(dataset: Dataset, options: Mapping[str, Any]) -> Dataset:
    """Return a set as its options have it, in the order in which `_CHANGES` names them.

    Of those whose the samples are by nature, who has nothing in the train or in the test part is
    left out.
    """
    for key, change in _CHANGES.items():
        if key in options:
            dataset = change(dataset, key, options[key])
    if dataset.clients is None or dataset.test is None:
        return dataset
    kept = np.isin(dataset.clients, dataset.clients[dataset.test])
    kept &= np.isin(dataset.clients, dataset.clients[~dataset.test])
    return dataset if kept.all() else dataset.take(kept)


def _wrong(dataset: Dataset, key: str, value: Any, advice: str) -> ExperimentError:
    return ExperimentError(f"The data set {dataset.name!r} has {key} = {value!r}{advice}.")


def _relabel(dataset: Dataset, key: str, labels: Any) -> Dataset:
    """Return a set of digits with its digits as labels, or with "even" and "odd"."""
    if labels not in ("digits", "parity"):
        raise _wrong(dataset, key, labels, f"; {nearest(str(labels), ('digits', 'parity'))}")
    if labels == "digits":
        return dataset
    return replace(dataset, y=np.where(dataset.y % 2 == 0, "even", "odd"))


def _of_classes(dataset: Dataset, key: str, given: Any) -> NDArray[np.bool_]:
    """Return which samples are of the classes that an option names, (samples,)."""
    wanted = _texts(given)
    text = dataset.y.astype(str)
    known = np.unique(text).tolist()
    for name in wanted:
        if name not in known:
            raise ExperimentError(
                f"The data set {dataset.name!r} has no class {name!r} ({key} = {given!r}); "
                f"{nearest(name, known)}."
            )
    return np.isin(text, wanted)


def _texts(given: Any) -> list[str]:
    return [str(one) for one in (given if isinstance(given, (list, tuple)) else [given])]


def _resize(dataset: Dataset, key: str, side: Any) -> Dataset:
    """Return a set of square images with another height and width."""
    if isinstance(side, bool) or not isinstance(side, int) or not 1 <= side <= 256:
        advice = "; expected a whole number of pixels from 1 to 256, for example 28"
        raise _wrong(dataset, key, side, advice)
    channels = 1 if dataset.image is None else dataset.image[0]
    return replace(
        dataset,
        features=pixels(side, side, channels),
        x=resized(dataset.x, side, channels),
        image=(channels, side, side),
    )


def _cut(dataset: Dataset, key: str, cut: Any) -> Dataset:
    """Return a set of images with parts of these as feature blocks."""
    if cut not in CUTS:
        raise _wrong(dataset, key, cut, f"; {nearest(str(cut), CUTS)}")
    image = dataset.image or (1, 1, 1)
    if "colours" in cut and image[0] != 3:
        advice = ' but its images have no colours; set blocks = "quadrants"'
        raise _wrong(dataset, key, cut, advice)
    groups, shapes = image_blocks(dataset.features, image, cut)
    return replace(dataset, groups=groups, shapes=shapes)


def _group(dataset: Dataset, key: str, groups: Any) -> Dataset:
    """Return a set with named feature blocks, each of the features that its patterns match."""
    if not isinstance(groups, Mapping) or not groups:
        advice = (
            "; expected names of feature blocks with lists of features, such as "
            '{bills = ["BILL_*"]}'
        )
        raise _wrong(dataset, key, groups, advice)
    where = f"The data set {dataset.name!r}"
    found: dict[str, tuple[str, ...]] = {}
    owner: dict[str, str] = {}
    for name, given in groups.items():
        patterns = _texts(given)
        for pattern in patterns:
            if not any(fnmatchcase(feature, pattern) for feature in dataset.features):
                raise ExperimentError(
                    f"{where} has no feature {pattern!r} (groups.{name}); "
                    f"{nearest(pattern, dataset.features)}."
                )
        found[name] = tuple(
            feature
            for feature in dataset.features
            if any(fnmatchcase(feature, pattern) for pattern in patterns)
        )
        for feature in found[name]:
            if owner.setdefault(feature, name) != name:
                raise ExperimentError(
                    f"{where}: the feature {feature!r} is in the groups {owner[feature]!r} and "
                    f"{name!r}; leave it in one of them."
                )
    return replace(dataset, groups=found, shapes={})


def _draw_fewer(dataset: Dataset, key: str, most: Any) -> Dataset:
    """Return a set with at most so many training or test samples of each class.

    They are drawn, always the same, and stay in their order.
    """
    if most is None:
        return dataset
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise _wrong(dataset, key, most, "; expected a whole number of samples, at least 1")
    test = np.zeros(len(dataset.y), bool) if dataset.test is None else dataset.test
    part = test if key == "test_per_class" else ~test
    kept = np.ones(len(dataset.y), bool)
    draw = np.random.default_rng([0, key == "test_per_class"])
    for value in np.unique(dataset.y):
        rows = np.flatnonzero(part & (dataset.y == value))
        kept[draw.permutation(rows)[most:]] = False
    return dataset if kept.all() else dataset.take(kept)


# option → what it does to a set: (set, option, its value) → set
_CHANGES: Mapping[str, Callable[[Dataset, str, Any], Dataset]] = {
    "side": _resize,
    "labels": _relabel,
    "only": lambda one, key, given: one.take(_of_classes(one, key, given)),
    "train_per_class": _draw_fewer,
    "test_per_class": _draw_fewer,
    "positive": lambda one, key, given: replace(one, y=_of_classes(one, key, given).astype(int)),
    "blocks": _cut,
    "groups": _group,
}
