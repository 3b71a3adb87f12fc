"""Products with some rows of a block, in place or copied together.

Rows that are multiplied often are packed first: their entries are copied together and the columns
that they use are renumbered, so that vectors over the features are read densely. Vectors carry a
leading axis of outputs, as in `intarsia.maths.linear.products`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from intarsia.core.block import Array, Values
from intarsia.maths.jit import ask_for_row, compiled, reassociated
from intarsia.maths.linear import products
from intarsia.maths.linear.products import Arrays, Csr, add_row, arrays, multiply_row

Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class PackedRows:
    """Some rows of a block; `places` are entries of `columns`. Dense rows have no columns."""

    values: Array  # (entries,), or dense (rows, features)
    places: NDArray[Any]  # (entries,) unsigned 16-bit where they fit, else 32-bit
    starts: NDArray[np.int32]  # (rows + 1,)
    columns: NDArray[np.int32]  # the columns in use
    features: int


def score_rows(x: Values, rows: Rows, w: Array) -> Array:
    """Return X w of some rows for each output, (outputs, rows)."""
    if isinstance(x, csr_array) or len(w) == 1:  # of several, a copy of the rows is read
        return _score(arrays(x), rows, np.ascontiguousarray(w))
    return np.ascontiguousarray(w @ x[rows].T)


def score_pairs(x: Values, rows: Rows, v: Array, w: Array) -> tuple[Array, Array]:
    """Return X v and X w of some rows, each (outputs, rows), reading the rows once."""
    if isinstance(x, csr_array):
        return _score_pairs(arrays(x), rows, np.ascontiguousarray(v), np.ascontiguousarray(w))
    return score_rows(x, rows, v), score_rows(x, rows, w)


def gather_rows(x: Values, rows: Rows, a: Array) -> Array:
    """Return Xᵀ a of some rows, (outputs, features); a is (outputs, rows)."""
    if isinstance(x, csr_array) or len(a) == 1:
        return _gather(arrays(x), rows, np.ascontiguousarray(a), x.shape[1])
    return np.ascontiguousarray(a @ x[rows])


def pack_rows(x: Values, rows: Rows) -> PackedRows:
    """Copy some rows together."""
    if not isinstance(x, csr_array):
        none = np.zeros(0, np.int32)
        return PackedRows(x[rows], none, none, none, x.shape[1])
    features = x.shape[1]
    starts = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(x.indptr[rows + 1] - x.indptr[rows], out=starts[1:])
    values = np.empty(starts[-1])
    places = np.empty(starts[-1], np.uint16 if features <= 2**16 else np.int32)
    columns = _pack(arrays(x), rows, starts, values, places, features)
    return PackedRows(values, places, starts, columns, features)


def score_packed(packed: PackedRows, w: Array) -> Array:
    """Return X w of packed rows, (outputs, rows)."""
    if packed.values.ndim == 2:
        return products.scores(packed.values, w)
    x = (packed.values, packed.places, packed.starts)
    return _score_packed(x, packed.columns, np.ascontiguousarray(w))


def gather_packed(packed: PackedRows, a: Array) -> Array:
    """Return Xᵀ a of packed rows, (outputs, features)."""
    if packed.values.ndim == 2:
        return products.gather(packed.values, a)
    x = (packed.values, packed.places, packed.starts)
    return _gather_packed(x, packed.columns, np.ascontiguousarray(a), packed.features)


@compiled
def _score(x: Arrays, rows: Rows, w: Array) -> Array:
    z = np.empty((w.shape[0], len(rows)))
    for c in range(w.shape[0]):
        for k in range(len(rows)):
            ask_for_row(x, rows, k)
            z[c, k] = multiply_row(x, rows[k], w[c])
    return z


@compiled
def _score_pairs(x: Csr, rows: Rows, v: Array, w: Array) -> tuple[Array, Array]:
    data, indices, indptr = x
    first, second = np.empty((v.shape[0], len(rows))), np.empty((v.shape[0], len(rows)))
    one, two = np.uint64(1), np.uint64(2)
    for c in range(v.shape[0]):
        for k in range(len(rows)):
            ask_for_row(x, rows, k)
            # two sums each at a time, as in `row_product`
            a, b, p, q = 0.0, 0.0, 0.0, 0.0
            j, end = np.uint64(indptr[rows[k]]), np.uint64(indptr[rows[k] + 1])
            while j + one < end:
                here, next = np.uint32(indices[j]), np.uint32(indices[j + one])
                a += data[j] * v[c, here]
                p += data[j] * w[c, here]
                b += data[j + one] * v[c, next]
                q += data[j + one] * w[c, next]
                j += two
            if j < end:
                here = np.uint32(indices[j])
                a += data[j] * v[c, here]
                p += data[j] * w[c, here]
            first[c, k], second[c, k] = a + b, p + q
    return first, second


@reassociated
def _gather(x: Arrays, rows: Rows, a: Array, features: int) -> Array:
    w = np.zeros((a.shape[0], features))
    for c in range(a.shape[0]):
        for k in range(len(rows)):
            ask_for_row(x, rows, k)
            if a[c, k] != 0.0:
                add_row(x, rows[k], a[c, k], w[c])
    return w


@compiled
def _pack(
    x: Csr,
    rows: Rows,
    starts: NDArray[np.int32],
    values: Array,
    places: NDArray[Any],
    features: int,
) -> NDArray[np.int32]:
    data, indices, indptr = x
    place = np.full(features, -1, np.int32)
    columns = np.empty(features, np.int32)
    used = 0
    for k in range(len(rows)):
        ask_for_row(x, rows, k)
        out = starts[k]
        for j in range(indptr[rows[k]], indptr[rows[k] + 1]):
            column = indices[j]
            if place[column] < 0:
                place[column] = used
                columns[used] = column
                used += 1
            values[out] = data[j]
            places[out] = place[column]
            out += 1
    return columns[:used].copy()


@compiled
def _score_packed(x: Csr, columns: NDArray[np.int32], w: Array) -> Array:
    rows = len(x[2]) - 1
    z = np.empty((w.shape[0], rows))
    own = np.empty(len(columns))
    for c in range(w.shape[0]):
        for k in range(len(columns)):
            own[k] = w[c, np.uint32(columns[k])]
        for i in range(rows):
            z[c, i] = multiply_row(x, i, own)
    return z


@reassociated
def _gather_packed(x: Csr, columns: NDArray[np.int32], a: Array, features: int) -> Array:
    values, places, starts = x
    w = np.zeros((a.shape[0], features))
    own = np.empty(len(columns))
    for c in range(a.shape[0]):
        own[:] = 0.0
        for i in range(len(starts) - 1):
            weight = a[c, i]
            if weight != 0.0:
                for j in range(starts[i], starts[i + 1]):
                    own[np.uint32(places[j])] += weight * values[j]
        for k in range(len(columns)):
            w[c, np.uint32(columns[k])] = own[k]
    return w
