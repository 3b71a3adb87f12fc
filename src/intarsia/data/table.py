"""One client's table as its source says it, and its split into a training and a test part.

It becomes a block of numbers by `encoding`, once all clients agree.
"""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from intarsia.core.block import RARE, Array, Block, ClientId, Values, sort_keys, taken
from intarsia.data.labels import LabelColumn
from intarsia.data.parsing import ascending
from intarsia.errors import ExperimentError, TableError

_HASHED_AT_ONCE = 1 << 16  # ids whose hashes are in memory as objects


@dataclass(frozen=True, eq=False)
class Category:
    """A column of text with few different values."""

    codes: NDArray[np.int32]  # (samples,) position in levels, -1 where missing
    levels: tuple[str, ...]  # ascending
    least_rows: int = 0  # that a level has which others may know

    @property
    def public_levels(self) -> tuple[str, ...]:
        """Return the levels that others may know; those of few rows are one, `RARE`."""
        rows = np.bincount(self.codes[self.codes >= 0], minlength=len(self.levels))
        known = {one for one, n in zip(self.levels, rows, strict=True) if n >= self.least_rows}
        return ascending(known if len(known) == len(self.levels) else {*known, RARE})


@dataclass(frozen=True, eq=False)
class Table:
    """One client's table as its source says it, before the clients agree on an `Encoding`."""

    client: ClientId
    samples: NDArray[Any]  # (samples,) int64 or str
    columns: tuple[str, ...]  # feature columns before one-hot, in order
    values: Values  # (samples, numeric columns): those of `columns` not in `categorical`
    categorical: Mapping[str, Category] = field(default_factory=dict[str, Category])
    labels: LabelColumn | None = None
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    generated: bool = False  # the ids were made from the client's name and the row
    # of a sample's values in the groups that are arrays, as a `Block` has them
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    weights: Array | None = None  # (samples,) of their losses, where a column says them
    # (samples,) what rows are split by, text or pseudonyms; None: each by its own id
    split_by: NDArray[Any] | None = None
    # that have another number than most, so that it trains; 0: any
    least_rows: int = 0
    # column -> its unit, where the source or a dictionary says it
    units: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def numeric(self) -> tuple[str, ...]:
        """Return the names of the columns of `values`."""
        return tuple(name for name in self.columns if name not in self.categorical)

    def take(self, rows: NDArray[np.intp]) -> Table:
        """Return the table of some rows, by position, in their order."""
        own = {name: replace(one, codes=one.codes[rows]) for name, one in self.categorical.items()}
        labels, weights, by = self.labels, self.weights, self.split_by
        return replace(
            self,
            samples=self.samples[rows],
            values=taken(self.values, rows, None),
            categorical=own,
            labels=None if labels is None else replace(labels, values=labels.values[rows]),
            weights=None if weights is None else weights[rows],
            split_by=None if by is None else by[rows],
        )


# tables that are neither a DataFrame nor a matrix -> how they become one
_OTHER_KINDS = {
    "polars.LazyFrame": "what its collect() returns",
    "pyarrow.Table": "what its to_pandas() returns",
    "pyarrow.RecordBatch": "what its to_pandas() returns",
    "numpy.recarray": "pandas.DataFrame(...) of it",
    "builtins.dict": "pandas.DataFrame(...) of it",
    "pandas.Series": "what its to_frame() returns, of a row to_frame().T",
    "polars.Series": "what its to_frame() returns",
}


def other_kind(table: Any) -> tuple[str, str] | None:
    """Return of a table that is neither a DataFrame nor a matrix its kind, and what to pass."""
    kind = f"{type(table).__module__.split('.')[0]}.{type(table).__name__}"
    named = kind.removeprefix("builtins.")
    return (named, _OTHER_KINDS[kind]) if kind in _OTHER_KINDS else None


Held = TypeVar("Held", Block, Table)


def split(
    block: Held,
    test: float = 0.2,
    salt: str = "",
    ids: NDArray[Any] | None = None,
    *,
    start: float = 0.0,
    by: NDArray[Any] | None = None,
    hashes: Hashes | None = None,
) -> tuple[Held, Held]:
    """Return the train and the test part of a block, or of a table that one will be made of.

    All clients decide alike without talking.

    A sample is in the test part if the keyed hash of its id, as a fraction of all hashes, is at
    least `start` and below `test`. With `ids`, the test part is exactly the samples with these ids.
    `by` says for each row what is hashed instead of its id: rows of one value stay together.
    `hashes` are those that were made for other clients. Rows of the parts are in the order of their
    ids, so that later steps find ids faster.

    Raises
    ------
    ExperimentError
        If `test` is not in [0, 1).
    TableError
        If no row is left to train on.
    """
    if not 0 <= test - start < 1:
        raise ExperimentError(
            f"[split] test is {test}; expected a fraction of at least 0 and below 1: set e.g. 0.2."
        )
    if ids is None and test == 0:
        return block, block.take(np.zeros(0, np.intp))
    order = np.argsort(sort_keys(block.samples), kind="stable")
    if ids is not None:
        ids = np.asarray(ids)
        if ids.dtype.kind in "iu" and block.samples.dtype.kind not in "iu":
            ids = ids.astype(np.str_)  # whole numbers become text beside generated ids
        chosen = np.isin(block.samples, ids)[order]
    else:
        key = hashlib.blake2b(salt.encode()).digest()
        hashed = (block.samples if by is None else by)[order]
        at = (Hashes() if hashes is None else hashes).of(hashed, key)
        chosen = (start <= at) & (at < test)
    if len(chosen) and chosen.all():
        groups = "" if by is None else f" ({len(np.unique(by))} groups of split_by)"
        raise TableError(
            f"All {len(chosen)} rows of a block{groups} fall into the test part; no row is left to "
            "train on: set test lower or change salt in [split]."
        )
    if not chosen.any():
        return block, block.take(np.flatnonzero(chosen))
    return block.take(order[~chosen]), block.take(order[chosen])


class Hashes:
    """Hashes of clients' ids: those of several clients with the same ids are made once."""

    _KEPT = 2  # of clients side by side: ids are large

    def __init__(self) -> None:
        self._known: deque[tuple[bytes, NDArray[Any], Array]] = deque(maxlen=self._KEPT)
        self._lock = threading.Lock()  # who asks meanwhile may ask for the same ids

    def of(self, ids: NDArray[Any], key: bytes) -> Array:
        """Return the keyed hash of each id as a fraction of all hashes, (ids,)."""
        with self._lock:
            for by, known, found in self._known:
                if by == key and known.dtype == ids.dtype and np.array_equal(known, ids):
                    return found
            found = _fractions(ids, key)
            self._known.append((key, ids, found))
            return found


def _fractions(samples: NDArray[Any], key: bytes) -> Array:
    """Return the keyed hash of each id as a fraction of all hashes, (samples,)."""
    begun = hashlib.blake2b(key=key, digest_size=7).copy  # the key is hashed once
    whole = np.zeros((len(samples), 8), np.uint8)
    for start in range(0, len(samples), _HASHED_AT_ONCE):
        some: list[Any] = samples[start : start + _HASHED_AT_ONCE].tolist()
        digests = []
        for text in some if samples.dtype.kind == "S" else map(str.encode, map(str, some)):
            hashed = begun()
            hashed.update(text)  # bytes are pseudonyms
            digests.append(hashed.digest())
        found = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 7)
        whole[start : start + len(some), 1:] = found
    return whole.view(">u8")[:, 0] / 2**56
