"""A model's features in a table that may lack some, have others, or have them in another order."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse

from intarsia.canonical import numbered
from intarsia.data import Array, Block, Labels
from intarsia.errors import TableError
from intarsia.spelling import listed
from intarsia.tables import Encoding, encode

__all__ = ["Table", "known_columns", "known_columns_of"]

Table = Any  # array, sparse array, DataFrame (anything with .columns) or Block


def known_columns(table: Table, features: list[str]) -> tuple[NDArray[np.intp], Any]:
    """Return which features a table has, and their values (samples, those features).

    A column of categories has the features of its levels ("city=oslo"); a level that the model does
    not know is NaN in all of them. An array without names has all features, in their order; that is
    said in a warning unless the names are mere numbers in ascending order, as those of columns that
    never had names.

    Raises
    ------
    TableError
        If it has none of them, an array without names has another shape, or a value is infinite or
        no number.
    """
    if isinstance(table, Block):
        names, values = list(table.features), table.x
    elif hasattr(table, "columns"):
        names, values = [str(name) for name in table.columns], None
        coded = _coded(table, names, features)
        names += coded
    else:
        names, values = features, table if issparse(table) else np.asarray(table)
        if values.ndim != 2 or values.shape[1] != len(features):
            raise TableError(
                f"The array has shape {values.shape}; without column names it must be (samples, "
                f"{len(features)}) in the order of feature_names_in_: pass that or a DataFrame."
            )
        if not _ascending(features):
            warnings.warn(
                f"The array has no column names: its columns are taken for {listed(features, 4)}, "
                "in the order of feature_names_in_; pass a DataFrame, whose names say it.",
                UserWarning,
                stacklevel=4,
            )
    place = {name: number for number, name in enumerate(names)}
    known = np.array([i for i, name in enumerate(features) if name in place], np.intp)
    if features and not len(known):
        raise TableError(
            f"The table has none of the model's {len(features)} features (its first column is "
            f"{names[0] if names else None!r}, the model's first {features[0]!r}); "
            "name its columns as in training."
        )
    chosen = [place[features[i]] for i in known]
    if values is None:
        columns = [
            coded[names[c]] if names[c] in coded else _numbers(table[table.columns[c]], names[c])
            for c in chosen
        ]
        x: Any = np.stack(columns, axis=1) if columns else np.zeros((len(table), 0))
    elif issparse(values):
        x = csr_array(values)[:, chosen].astype(np.float64)
    else:
        x = _numbers(values, "x")[:, chosen]
    entries = x.data if issparse(x) else x
    if np.isinf(entries).any() or (issparse(x) and np.isnan(entries).any()):
        raise TableError(
            "The table has an infinite value, or NaN in a sparse array; replace it by a number, or "
            "leave it out (NaN in a dense table counts as the mean)."
        )
    return known, x


def _ascending(features: list[str]) -> bool:
    """Return whether names are mere numbers, in ascending order."""
    number = numbered(features)
    return number is not None and list(number.values()) == sorted(number.values())


def _coded(table: Any, names: list[str], features: list[str]) -> dict[str, Array]:
    """Return the features of a DataFrame's columns of categories, each (samples,)."""
    found = {
        column: levels
        for column, levels in known_columns_of(features, names)[1].items()
        if not any(f"{column}={level}" in names for level in levels)
    }
    if not found:
        return {}
    if not len(table):
        return {f"{column}={level}": np.zeros(0) for column in found for level in found[column]}
    from intarsia.sources import table_from  # here: it imports pyarrow

    own = table[[table.columns[names.index(column)] for column in found]]
    read = table_from(own, client="table", categorical=tuple(found))
    block = encode(read, Encoding(found, Labels("regression")))
    return dict(zip(block.features, np.asarray(block.x).T, strict=True))


def known_columns_of(
    features: Sequence[str], names: Sequence[str]
) -> tuple[list[str], dict[str, tuple[str, ...]]]:
    """Return the columns that the model knows, and the levels of the categorical ones."""
    numeric = set(features)
    levels: dict[str, list[str]] = {}
    for feature in features:
        parts = feature.split("=")
        for cut in range(1, len(parts)):  # a name and a level may both hold "="
            levels.setdefault("=".join(parts[:cut]), []).append("=".join(parts[cut:]))
    known = [name for name in names if name in numeric or name in levels]
    return known, {
        name: tuple(levels[name]) for name in known if name not in numeric and name in levels
    }


def _numbers(values: Any, name: str) -> Array:
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        raise TableError(
            f"The column {name!r} is not numeric ({error}); encode it as in training."
        ) from error
