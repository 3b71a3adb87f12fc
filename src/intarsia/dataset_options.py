"""What the options of a named data set make of it: labels, classes, the size of images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import ExperimentError
from intarsia.images import pixels, resized
from intarsia.spelling import nearest

if TYPE_CHECKING:
    from intarsia.datasets import Dataset

__all__ = ["in_both_parts", "of_classes", "relabelled", "with_side"]


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
    return replace(dataset, features=pixels(side, side), x=resized(dataset.x, side))


def in_both_parts(dataset: Dataset) -> Dataset:
    """Leave out those who have nothing in the train or in the test part."""
    if dataset.clients is None or dataset.test is None:
        return dataset
    kept = np.isin(dataset.clients, dataset.clients[dataset.test])
    kept &= np.isin(dataset.clients, dataset.clients[~dataset.test])
    return dataset if kept.all() else dataset.take(kept)
