"""Make a `Table` of columns or of a matrix: find ids, labels, weights, features and their groups.

What a column holds, `column_types` reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse

from intarsia.core.block import Array
from intarsia.core.memory import new_array, slices
from intarsia.data.column import (
    FINITE,
    LARGEST,
    SMALLER,
    check_text,
    column_of,
    is_number,
    missing_numbers,
)
from intarsia.data.column_types import (
    features_of,
    ids_of,
    labels_of,
    numbers_of,
    split_keys_of,
    weights_of,
)
from intarsia.data.source import Source
from intarsia.data.table import Category, Table
from intarsia.errors import listed, nearest_column, several


class Columns(Protocol):
    """Named columns, which are read when they are asked for."""

    schema: pa.Schema
    num_rows: int

    def column(self, name: str) -> pa.ChunkedArray:
        """Return one column."""
        ...

    def batches(self, names: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """Return so many rows of some columns at a time."""
        ...


class _Read:
    """Columns that are in memory."""

    def __init__(self, table: pa.Table) -> None:
        self._table, self.schema, self.num_rows = table, table.schema, table.num_rows
        self.column = table.column

    def batches(self, names: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        chosen = self._table.select(list(names))
        for start in range(0, self.num_rows, rows):
            # as one: a reader leaves a wide table in pieces of few rows
            yield from chosen.slice(start, rows).combine_chunks().to_batches()


def table_of_columns(
    columns: pa.Table | Columns, source: Source, folder: Path | None = None
) -> Table:
    """Return the table that named columns make, its values on the disk of a folder if there is one.

    What kind of column one of text is, all its rows tell, so that it is read by itself; those of
    numbers are read some rows at a time.
    """
    columns = _Read(columns) if isinstance(columns, pa.Table) else columns
    names: list[str] = columns.schema.names
    check_names(names, source)
    if not columns.num_rows:
        raise source.error(
            f"the table has {several(len(names), 'column')} but 0 rows",
            "a client needs one row at least: check the file or the query, or leave the client out",
            "check that its rows were written",
        )
    chosen = _feature_columns(names, source)
    ids = None if source.id is None else columns.column(source.id)
    samples = ids_of(ids, columns.num_rows, source)
    del ids
    if source.label_map and source.label is None:
        raise source.error("label_map is given but there is no label", "set label to the column")
    plain = [name for name in chosen if is_number(columns.schema.field(name).type, name, source)]
    numbers = set(plain)
    others = (name for name in chosen if name not in numbers)
    read = features_of(((name, columns.column(name)) for name in others), source)
    categorical = {name: one for name, one in read.items() if isinstance(one, Category)}
    place = {name: at for at, name in enumerate(n for n in chosen if n not in categorical)}
    values = new_array((columns.num_rows, len(place)), folder)
    for name in [name for name in read if name in place]:
        values[:, place[name]] = read.pop(name)  # free each column when it has been copied
    start = 0
    for batch in columns.batches(plain, max(1, _BATCH // max(len(plain), 1))) if plain else ():
        rows = slice(start, start + batch.num_rows)
        for name in plain:
            values[rows, place[name]] = numbers_of(batch.column(name), name, source, start)
        start = rows.stop
    labels = None if source.label is None else labels_of(columns.column(source.label), source)
    groups = _feature_groups(chosen, source)
    weights = None
    if source.weights is not None:
        weights = weights_of(columns.column(source.weights), labels, source)
    together = None
    if source.split_by is not None:
        together = split_keys_of(columns.column(source.split_by), source)
    own = source.id is None
    return Table(
        *(source.name, samples, chosen, values, categorical, labels, groups, own),
        weights=weights,
        split_by=together,
        least_rows=source.least_of_numbers,
    )


_BATCH = 2**20  # values of columns of numbers that are read at once


def table_of_matrix(
    x: Any,
    source: Source,
    *,
    names: Sequence[str],
    y: NDArray[Any] | None = None,
    samples: NDArray[Any] | None = None,
) -> Table:
    """Return the table that a matrix (samples, features), dense or sparse, makes."""
    _check_shapes(x, source, names, {"labels": y, "sample ids": samples})
    check_names(names, source)
    # ids and labels of a matrix are no columns of it
    for key, column in {"weights": source.weights, "split_by": source.split_by}.items():
        if column is not None:
            raise source.error(
                f"{key} is {column!r} but a matrix has no such column",
                "give the table as a DataFrame, a csv or a parquet file",
            )
    beside = replace(source, id=None, label=None)
    chosen = _feature_columns(names, beside, labelled=y is not None)
    if list(chosen) != list(names):
        place = {name: position for position, name in enumerate(names)}
        x = x[:, [place[name] for name in chosen]]
    categorical: dict[str, Category] = {}
    listed_here = [name for name in chosen if name in source.categorical]
    if issparse(x):
        x = _csr(x, chosen, listed_here, source)
    else:
        x = _dense(x, chosen, source)
        own = {
            name: pa.chunked_array([pa.array(x[:, chosen.index(name)], from_pandas=True)])
            for name in listed_here
        }
        read = features_of(own.items(), source)
        categorical = {name: one for name, one in read.items() if isinstance(one, Category)}
        if categorical:
            x = x[:, [at for at, name in enumerate(chosen) if name not in categorical]]
    ids = ids_of(None if samples is None else column_of(samples), x.shape[0], source)
    labels = None if y is None else labels_of(column_of(y), source)
    groups = _feature_groups(chosen, source)
    return Table(
        *(source.name, ids, chosen, x, categorical, labels, groups, samples is None),
        least_rows=source.least_of_numbers,
    )


def check_names(names: Sequence[str], source: Source) -> None:
    """Raise if two columns have one name, or one has none, or one that is not text."""
    seen: set[str] = set()
    for position, name in enumerate(names):
        check_text(name, f"the name of column {position + 1}", source)
        if not name.strip():
            said = f"the name of column {position + 1} is {name!r}"
            advice = "give every column a name in the header line"
            if position and not any(map(str.strip, names[position:])):  # as spreadsheets end lines
                empty = "it is empty, remove the separator"
                if position < len(names) - 1:
                    said = f"columns {position + 1} to {len(names):,} have no name"
                    empty = "they are empty, remove the separators"
                advice += f", or, if {empty} at the end of every line"
                if position == 1 < len(names) - 1:
                    advice += f"; if {names[0]!r} is a title, remove the lines above the names"
            raise source.error(said, advice)
        if name in seen:
            raise source.error(f"two columns have the name {name!r}", "rename one of them")
        seen.add(name)


def _feature_columns(
    names: Sequence[str], source: Source, *, labelled: bool = False
) -> tuple[str, ...]:
    """Return the feature columns among a table's; `labelled`: its labels are beside them."""
    asked = {
        "id": () if source.id is None else (source.id,),
        "label": () if source.label is None else (source.label,),
        "weights": () if source.weights is None else (source.weights,),
        "split_by": () if source.split_by is None else (source.split_by,),
        "features": source.features or (),
        "exclude": source.exclude,
        "categorical": source.categorical,
        **{
            f"groups.{group}": [name for name in some if not _is_pattern(name, names)]
            for group, some in source.groups.items()
        },
        "units": tuple(source.units),
        "limits": source.limits,
    }
    known = set(names)
    for key, some in asked.items():
        for name in some:
            if name not in known:
                raise source.error(
                    f"{key} names the column {name!r}, which the table does not have",
                    f"{nearest_column(name, names)}",
                )
            roles = {
                source.split_by: "split_by",
                source.id: "id",
                source.label: "label",
                source.weights: "weights",
            }
            of_label = key in ("units", "limits") and roles.get(name) == "label"
            mixes = key not in ("id", "label", "weights", "split_by", "exclude") and name in roles
            if mixes and not of_label:
                raise source.error(
                    f"{key} names the {roles[name]} column {name!r}",
                    f"a feature is neither id nor label nor weight, nor what rows are split by: "
                    f"remove it from {key}",
                )
    left_out = {*source.exclude, source.id, source.label, source.weights, source.split_by}
    wanted: Sequence[str] = names if source.features is None else source.features
    chosen = tuple(name for name in wanted if name not in left_out)
    if len(set(chosen)) < len(chosen):
        twice = next(name for name in chosen if chosen.count(name) > 1)
        raise source.error(f"features lists {twice!r} more than once", "remove the repeated entry")
    if not chosen and source.label is None and not labelled:
        raise source.error(
            f"no feature column is left (columns: {listed(names)})",
            "a client without labels needs at least one: add a column to features, or name its "
            "label column",
        )
    return chosen


def _feature_groups(chosen: Sequence[str], source: Source) -> dict[str, tuple[str, ...]]:
    """Return the feature blocks; columns that no group names are in one named after the client."""
    groups: dict[str, tuple[str, ...]] = {}
    owner: dict[str, str] = {}
    for group, names in source.groups.items():
        found = [name for given in names for name in _meant(given, group, chosen, source)]
        groups[group] = tuple(dict.fromkeys(found))
        for name in groups[group]:
            if owner.setdefault(name, group) != group:
                raise source.error(
                    f"the column {name!r} is in the groups {owner[name]!r} "
                    f"({listed(source.groups[owner[name]])}) and {group!r} ({listed(names)})",
                    "a column is in one group: narrow a pattern, or name the columns",
                )
    rest = tuple(name for name in chosen if name not in owner)
    if rest:
        groups[source.name] = (*groups.get(source.name, ()), *rest)
    return groups


def _is_pattern(name: str, names: Sequence[str]) -> bool:
    """Return whether a group's entry is a pattern; a column of this very name is that column."""
    return any(sign in name for sign in "*?[") and name not in names


def _meant(given: str, group: str, chosen: Sequence[str], source: Source) -> Sequence[str]:
    """Return the features that an entry of a group means."""
    if not _is_pattern(given, chosen):
        if given not in chosen:
            raise source.error(
                f"groups.{group} names the column {given!r}, which is not among the features",
                f"{nearest_column(given, chosen)}",
            )
        return (given,)
    found = [name for name in chosen if fnmatchcase(name, given)]
    if not found:
        raise source.error(
            f"the pattern {given!r} of groups.{group} fits none of the features "
            f"({listed(chosen, 6)})",
            "correct it, or leave it out",
        )
    return found


def _check_shapes(
    x: Any, source: Source, names: Sequence[str], beside: Mapping[str, NDArray[Any] | None]
) -> None:
    """Refuse a matrix, or arrays beside it, of another shape than (samples, features)."""
    if len(x.shape) != 2:
        raise source.error(
            f"x has the shape {tuple(x.shape)}",
            "expected (samples, features): reshape it to two axes",
        )
    if x.dtype.kind in "cMm":
        raise source.error(
            f"x has the type {x.dtype}, which is not a real number", "convert it to float64"
        )
    rows, width = x.shape
    if len(names) != width:
        raise source.error(
            f"x has {width} columns but there are {len(names)} feature names",
            "give every column one name",
        )
    for what, given in beside.items():
        if given is not None and given.shape != (rows,):
            raise source.error(
                f"x has {rows} rows but the {what} have the shape {given.shape}",
                f"give one of the {what} for every row, on one axis",
            )
    if not rows:
        raise source.error(
            f"the table has {width} columns but 0 rows",
            "a client needs at least one row: check the file, or leave this client out",
        )


def _csr(x: Any, names: Sequence[str], categorical: Sequence[str], source: Source) -> csr_array:
    """Return a sparse matrix as CSR, with column numbers of 32 bits where they fit.

    So the kernels read them: 12 bytes an entry, where 64 bits would take 16.
    """
    if categorical:
        raise source.error(
            f"column {categorical[0]!r} is listed as categorical but the matrix is sparse",
            "store its one-hot columns, or remove it from categorical",
        )
    rows = csr_array(x, dtype=np.float64)
    if not rows.has_canonical_format:
        rows = rows.copy()  # the caller's table stays as it is
        rows.sum_duplicates()
    for some in slices(rows.nnz, rows.nnz):
        wrong = ~(np.abs(rows.data[some]) <= LARGEST)
        if not wrong.any():
            continue
        at = some.start + int(wrong.argmax())
        row = int(np.searchsorted(rows.indptr, at, side="right"))
        finite = "a sparse matrix needs finite numbers: replace it, or leave the entry out (zero)"
        raise source.error(
            f"feature {names[rows.indices[at]]!r} is {rows.data[at]} in row {row}",
            SMALLER if np.isfinite(rows.data[at]) else finite,
        )
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
                    raise source.error(
                        f"x has {value!r} at column {name!r}, row {row + 1}",
                        "a matrix needs numbers: pass a DataFrame for a table with text",
                    ) from None
        raise source.error(
            f"x has the type {np.asarray(x).dtype}, which is not a number", "convert it to float64"
        ) from None
    sentinels = missing_numbers(source)
    if sentinels:
        values = np.where(np.isin(values, sentinels), np.nan, values)
    beyond = np.abs(values) > LARGEST
    if beyond.any():
        row, column = np.argwhere(beyond)[0]
        value = values[row, column]
        raise source.error(
            f"column {names[column]!r} is {value} in row {row + 1}",
            FINITE if np.isinf(value) else SMALLER,
        )
    return values
