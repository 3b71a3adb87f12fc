"""A whole data set in one place, before it is dealt to clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from intarsia.core.block import Values


@dataclass(frozen=True, eq=False)
class Dataset:
    """A whole table in one place, in the smallest type that holds it, with raw labels.

    The value of a dense entry is `x * scale`; `scale` is 1 for a sparse table.
    """

    name: str
    samples: NDArray[Any]  # (samples,) unique ids
    features: tuple[str, ...]
    x: Values  # (samples, features) dense of any real type, NaN where missing; or csr_array
    y: NDArray[Any]  # (samples,) raw labels: text, whole numbers or numbers
    test: NDArray[np.bool_] | None = None  # (samples,) the official test part; None: there is none
    scale: float = 1.0
    # named feature blocks, and the shapes of those that are arrays, as a `Block` has them
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    image: tuple[int, int, int] | None = None  # (channels, height, width) of a row of pixels
    departures: str = ""  # from the usual set of this name; "" = none
    clients: NDArray[np.str_] | None = None  # (samples,) whose each is by nature; None: nobody's
    classes: tuple[float, ...] = ()  # all values of encoded labels, whatever rows are taken
    class_names: tuple[str, ...] = ()  # what these mean
    indicators: NDArray[np.intp] | None = None  # (features,) as a `Block` has them
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    split_by: NDArray[np.str_] | None = None  # (samples,) as a `Table` has it

    @property
    def shape(self) -> tuple[int, int]:
        """Return (samples, features)."""
        return len(self.samples), len(self.features)

    @property
    def sparse(self) -> bool:
        """Return whether the values are stored as CSR."""
        return bool(issparse(self.x))

    def take(self, rows: NDArray[Any]) -> Dataset:
        """Return the data set of the given rows (positions or a mask), in their order."""
        return replace(
            self,
            samples=self.samples[rows],
            x=self.x[rows],
            y=self.y[rows],
            test=None if self.test is None else self.test[rows],
            clients=None if self.clients is None else self.clients[rows],
            split_by=None if self.split_by is None else self.split_by[rows],
        )

    def split(self) -> tuple[Dataset, Dataset | None]:
        """Return the official train and test parts (no test part: the whole and None)."""
        if self.test is None:
            return self, None
        return self.take(~self.test), self.take(self.test)
