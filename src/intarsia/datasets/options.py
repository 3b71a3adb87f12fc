"""Apply the options of a named data set: labels, classes, feature blocks, the size of images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.data.dataset import Dataset
from intarsia.datasets.pixels import CUTS, image_blocks, pixels, resized
from intarsia.errors import ExperimentError, nearest


def relabelled(dataset: Dataset, labels: Any) -> Dataset:
    """Return a set of digits with its digits as labels, or with "even" and "odd".

    Raises
    ------
    ExperimentError
        If the labels are neither "digits" nor "parity".
    """
    if labels == "digits":
        return dataset
    if labels == "parity":
        return replace(dataset, y=np.where(dataset.y % 2 == 0, "even", "odd"))
    raise ExperimentError(
        f"The data set {dataset.name!r} has labels = {labels!r}; "
        f"{nearest(str(labels), ('digits', 'parity'))}."
    )


def of_classes(dataset: Dataset, key: str, options: Mapping[str, Any]) -> NDArray[np.bool_]:
    """Return which samples are of the classes that an option names, (samples,).

    Raises
    ------
    ExperimentError
        If the set has no such class.
    """
    given = options[key]
    wanted = [str(one) for one in (given if isinstance(given, (list, tuple)) else [given])]
    text = dataset.y.astype(str)
    known = np.unique(text).tolist()
    for name in wanted:
        if name not in known:
            raise ExperimentError(
                f"The data set {dataset.name!r} has no class {name!r} ({key} = {given!r}); "
                f"{nearest(name, known)}."
            )
    return np.isin(text, wanted)


def with_side(dataset: Dataset, side: Any) -> Dataset:
    """Return a set of square images with another height and width.

    Raises
    ------
    ExperimentError
        If the side is no whole number of pixels.
    """
    if isinstance(side, bool) or not isinstance(side, int) or not 1 <= side <= 256:
        raise ExperimentError(
            f"The data set {dataset.name!r} has side = {side!r}; expected a whole number of pixels "
            "from 1 to 256, for example 28."
        )
    channels = 1 if dataset.image is None else dataset.image[0]
    return replace(
        dataset,
        features=pixels(side, side, channels),
        x=resized(dataset.x, side, channels),
        image=(channels, side, side),
    )


def in_blocks(dataset: Dataset, cut: Any) -> Dataset:
    """Return a set of images with parts of these as feature blocks.

    Raises
    ------
    ExperimentError
        If they cannot be cut so.
    """
    if cut not in CUTS:
        raise ExperimentError(
            f"The data set {dataset.name!r} has blocks = {cut!r}; {nearest(str(cut), CUTS)}."
        )
    image = dataset.image or (1, 1, 1)
    if "colours" in cut and image[0] != 3:
        raise ExperimentError(
            f"The data set {dataset.name!r} has blocks = {cut!r} but its images have no colours; "
            'set blocks = "quadrants".'
        )
    groups, shapes = image_blocks(dataset.features, image, cut)
    return replace(dataset, groups=groups, shapes=shapes)


def in_groups(dataset: Dataset, groups: Any) -> Dataset:
    """Return a set with named feature blocks, each of the features that its patterns match.

    Raises
    ------
    ExperimentError
        If a pattern matches nothing, or two blocks have a feature in common.
    """
    where = f"The data set {dataset.name!r}"
    if not isinstance(groups, Mapping) or not groups:
        raise ExperimentError(
            f"{where} has groups = {groups!r}; expected names of feature blocks with lists of "
            'features, such as {bills = ["BILL_*"]}.'
        )
    found: dict[str, tuple[str, ...]] = {}
    owner: dict[str, str] = {}
    for name, given in groups.items():
        patterns = [str(one) for one in (given if isinstance(given, (list, tuple)) else [given])]
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


def fewer(dataset: Dataset, options: Mapping[str, Any]) -> Dataset:
    """Return a set with at most so many training and test samples of each class.

    They are drawn, always the same, and stay in their order.

    Raises
    ------
    ExperimentError
        If a number is no whole number of at least 1.
    """
    test = np.zeros(len(dataset.y), bool) if dataset.test is None else dataset.test
    kept = np.ones(len(dataset.y), bool)
    for key, part in (("train_per_class", ~test), ("test_per_class", test)):
        most = options.get(key)
        if most is None:
            continue
        if isinstance(most, bool) or not isinstance(most, int) or most < 1:
            raise ExperimentError(
                f"The data set {dataset.name!r} has {key} = {most!r}; expected a whole number of "
                "samples, at least 1."
            )
        draw = np.random.default_rng([0, key == "test_per_class"])
        for value in np.unique(dataset.y):
            rows = np.flatnonzero(part & (dataset.y == value))
            kept[draw.permutation(rows)[most:]] = False
    return dataset if kept.all() else dataset.take(kept)


def in_both_parts(dataset: Dataset) -> Dataset:
    """Leave out those who have nothing in the train or in the test part."""
    if dataset.clients is None or dataset.test is None:
        return dataset
    kept = np.isin(dataset.clients, dataset.clients[dataset.test])
    kept &= np.isin(dataset.clients, dataset.clients[~dataset.test])
    return dataset if kept.all() else dataset.take(kept)
