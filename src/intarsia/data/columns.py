"""Named columns or a matrix as a `Table`: ids, labels, numbers and categories told apart.

Rules: a column is numeric if all its values are numbers, categorical if none is (a mixture is an
error, unless the column is listed as categorical); booleans are 0 and 1; dates are an error; blanks
around a text do not count; an empty text, "nan", "null" and NaN are missing everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse

from intarsia.core.block import Array
from intarsia.data.column_types import (
    column_of,
    feature_values,
    generated_ids,
    infinite_value,
    label_column,
    sample_ids,
)
from intarsia.data.parsing import number
from intarsia.data.source import Source, check_names, feature_columns, feature_groups
from intarsia.data.table import Category, Table
from intarsia.errors import TableError

__all__ = ["table_of_columns", "table_of_matrix"]


def table_of_columns(columns: pa.Table, source: Source) -> Table:
    """Return the table that named columns make.

    Raises
    ------
    TableError
        If there is no row, a column is unknown, or a value is not what its column needs.
    """
    names = columns.column_names
    check_names(names, source)
    if not columns.num_rows:
        raise TableError(
            f"{source.where}: the table has {len(names)} columns but 0 rows; a party needs at "
            "least one row: check the file or the query, or leave this client out."
        )
    chosen = feature_columns(names, source)
    column = {name: columns.column(position) for position, name in enumerate(names)}
    samples = (
        sample_ids(column[source.id], source)
        if source.id is not None
        else generated_ids(columns.num_rows, source)
    )
    numbers: dict[str, Array] = {}
    categorical: dict[str, Category] = {}
    for name in chosen:
        read = feature_values(column[name], name, source)
        if isinstance(read, Category):
            categorical[name] = read
        else:
            numbers[name] = read
    values = np.empty((columns.num_rows, len(numbers)))
    for position, name in enumerate(list(numbers)):
        values[:, position] = numbers.pop(name)  # free each column when it has been copied
    return Table(
        source.name,
        samples,
        chosen,
        values,
        categorical,
        None if source.label is None else label_column(column[source.label], source),
        feature_groups(chosen, source),
        generated=source.id is None,
    )


def table_of_matrix(
    x: Any,
    source: Source,
    *,
    names: Sequence[str],
    y: NDArray[Any] | None = None,
    samples: NDArray[Any] | None = None,
) -> Table:
    """Return the table that a matrix (samples, features), dense or sparse, makes.

    Raises
    ------
    TableError
        If shapes disagree or a value is not a number.
    """
    if len(x.shape) != 2:
        raise TableError(
            f"{source.where}: x has the shape {tuple(x.shape)}; expected (samples, features): "
            "reshape it to two axes."
        )
    if x.dtype.kind in "cMm":
        raise TableError(
            f"{source.where}: x has the type {x.dtype}, which is not a real number; convert it to "
            "float64."
        )
    rows, width = x.shape
    if len(names) != width:
        raise TableError(
            f"{source.where}: x has {width} columns but there are {len(names)} feature names; "
            "give every column one name."
        )
    for what, given in (("labels", y), ("sample ids", samples)):
        if given is not None and given.shape != (rows,):
            raise TableError(
                f"{source.where}: x has {rows} rows but the {what} have the shape {given.shape}; "
                f"give one of the {what} for every row, on one axis."
            )
    if not rows:
        raise TableError(
            f"{source.where}: the table has {width} columns but 0 rows; a party needs at least one "
            "row: check the file, or leave this client out."
        )
    check_names(names, source)
    # ids and labels of a matrix are no columns of it
    beside = replace(source, id=None, label=None)
    chosen = feature_columns(names, beside, labelled=y is not None)
    if list(chosen) != list(names):
        place = {name: position for position, name in enumerate(names)}
        x = x[:, [place[name] for name in chosen]]
    categorical: dict[str, Category] = {}
    listed_here = [name for name in chosen if name in source.categorical]
    if issparse(x):
        if listed_here:
            raise TableError(
                f"{source.where}: column {listed_here[0]!r} is listed as categorical but the "
                "matrix is sparse; store its one-hot columns, or remove it from categorical."
            )
        x = _csr(x)
        if not np.isfinite(x.data).all():
            at = int(np.flatnonzero(~np.isfinite(x.data))[0])
            row = int(np.searchsorted(x.indptr, at, side="right"))
            raise TableError(
                f"{source.where}: feature {chosen[x.indices[at]]!r} is {x.data[at]} in row {row}; "
                "a sparse matrix needs finite numbers: replace it, or leave the entry out (zero)."
            )
    else:
        x = _dense(x, chosen, source)
        for name in listed_here:
            own = pa.chunked_array([pa.array(x[:, chosen.index(name)], from_pandas=True)])
            read = feature_values(own, name, source)
            if isinstance(read, Category):
                categorical[name] = read
        if categorical:
            x = x[:, [at for at, name in enumerate(chosen) if name not in categorical]]
    return Table(
        source.name,
        generated_ids(rows, source) if samples is None else sample_ids(_chunked(samples), source),
        chosen,
        x,
        categorical,
        None if y is None else label_column(_chunked(y), source),
        feature_groups(chosen, source),
        generated=samples is None,
    )


def _chunked(values: NDArray[Any]) -> pa.ChunkedArray:
    if values.dtype.kind == "S":
        values = np.char.decode(values, "utf-8", "replace")
    return column_of(values.tolist()) if values.dtype.kind in "OU" else column_of(values)


def _csr(x: Any) -> csr_array:
    """Return a sparse matrix as CSR, with column numbers of 32 bits where they fit.

    So the kernels read them: 12 bytes an entry, where 64 bits would take 16.
    """
    rows = csr_array(x, dtype=np.float64)
    if not rows.has_canonical_format:
        rows = rows.copy()  # the caller's table stays as it is
        rows.sum_duplicates()
    if max(rows.nnz, *rows.shape) > np.iinfo(np.int32).max:
        return rows
    indices, indptr = (one.astype(np.int32, copy=False) for one in (rows.indices, rows.indptr))
    return csr_array((rows.data, indices, indptr), shape=rows.shape)


def _dense(x: Any, names: Sequence[str], source: Source) -> Array:
    try:
        values = np.asarray(x, np.float64)
    except (TypeError, ValueError):
        for row, line in enumerate(np.asarray(x, object)):
            for name, value in zip(names, line, strict=True):
                if not isinstance(value, int | float | np.number) and value is not None:
                    raise TableError(
                        f"{source.where}: x has {value!r} at column {name!r}, row {row + 1}; a "
                        "matrix needs numbers: pass a DataFrame for a table with text."
                    ) from None
        raise TableError(
            f"{source.where}: x has the type {np.asarray(x).dtype}, which is not a number; "
            "convert it to float64."
        ) from None
    sentinels = [v for v in map(number, source.missing) if v is not None]
    if sentinels:
        values = np.where(np.isin(values, sentinels), np.nan, values)
    if np.isinf(values).any():
        row, column = np.argwhere(np.isinf(values))[0]
        raise infinite_value(values[row, column], int(row), names[column], source)
    return values
