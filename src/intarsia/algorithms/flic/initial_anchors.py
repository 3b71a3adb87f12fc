"""The anchors of FLIC: how many there are, which class has which, and where they start.

A class has an anchor of its own, in the order of the classes. Meta-classes (S1.4 of the paper) are
groups of classes that have one together: first the groups as they are listed, then each class that
is in none. For numbers there are the two ends of a line (`objective`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from intarsia.algorithms.flic.hyperparameters import Flic
from intarsia.algorithms.networks.targets import output_count
from intarsia.core.block import Array, Labels
from intarsia.core.client_functions import RandomKey
from intarsia.core.schema import Schema
from intarsia.data.parsing import canonical
from intarsia.errors import ExperimentError, nearest


def meta_of(options: Flic, labels: Labels) -> tuple[int, ...]:
    """Return the number of each class's anchor; none where each class has one of its own.

    Raises
    ------
    ExperimentError
        If a class is in no label, or in two groups, or labels are numbers.
    """
    groups = [tuple(canonical(str(one)) for one in group) for group in options.meta_classes]
    if not groups:
        return ()
    if labels.task == "regression":
        raise ExperimentError(
            "algorithm.meta_classes lists classes, and the labels are numbers to predict "
            "(regression); remove it, or set labels.task (from Python task=) for classes."
        )
    listed = [one for group in groups for one in group]
    for name, count in Counter(listed).items():
        if name not in labels.classes:
            raise ExperimentError(
                f"algorithm.meta_classes has {name!r}, which is no class; "
                f"{nearest(name, labels.classes)}."
            )
        if count > 1:
            raise ExperimentError(
                f"algorithm.meta_classes has the class {name!r} {count} times; put each class into "
                "one group at most."
            )
    groups += [(one,) for one in labels.classes if one not in listed]
    number = {name: place for place, group in enumerate(groups) for name in group}
    return tuple(number[name] for name in labels.classes)


def _check_line(options: Flic) -> None:
    for name, only in (("anchor_covariance", "fixed"), ("anchor_classes", "held")):
        if getattr(options, name) != only:
            raise ExperimentError(
                f"algorithm.{name} is {getattr(options, name)!r}, and the labels are numbers to "
                f'predict (regression), for which it must be "{only}".'
            )
    if options.alignment != "gaussian" and not options.label_bins:
        raise ExperimentError(
            f"algorithm.alignment is {options.alignment!r}, which compares points in groups, and "
            "numbers to predict make groups by algorithm.label_bins: set it, for example to 5."
        )


def drawn(options: Flic, schema: Schema, rng: RandomKey) -> Mapping[str, Array]:
    """Return the parameters of the anchors as training starts."""
    shapes = _shapes(options, schema)
    normal = rng.generator().normal(size=shapes["anchors.means"])
    found = {"anchors.means": options.anchor_scale * normal}
    if "anchors.factors" in shapes:
        factor = math.sqrt(options.anchor_variance) * np.eye(options.latent)
        found["anchors.factors"] = np.broadcast_to(factor, shapes["anchors.factors"])
    return found


def blank(options: Flic, schema: Schema, kind: DTypeLike) -> Mapping[str, NDArray[Any]]:
    """Return room for the parameters of the anchors, which a client is told in every round."""
    return {name: np.zeros(shape, kind) for name, shape in _shapes(options, schema).items()}


def _shapes(options: Flic, schema: Schema) -> dict[str, tuple[int, ...]]:
    meta = meta_of(options, schema.labels)
    count = max(meta) + 1 if meta else output_count(schema)
    if schema.labels.task == "regression":
        _check_line(options)
        count = 2  # the ends of the line
    shapes: dict[str, tuple[int, ...]] = {"anchors.means": (count, options.latent)}
    if options.anchor_covariance == "learned":
        shapes["anchors.factors"] = (count, options.latent, options.latent)
    return shapes
