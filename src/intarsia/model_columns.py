"""A model's features in a table that may lack some, have others, or have them in another order."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse

from intarsia.canonical import numbered
from intarsia.data import Array, Block
from intarsia.errors import TableError
from intarsia.spelling import listed

__all__ = ["Table", "known_columns"]

Table = Any  # array, sparse array, DataFrame (anything with .columns) or Block


def known_columns(table: Table, features: list[str]) -> tuple[NDArray[np.intp], Any]:
    """Return which features a table has, and their values (samples, those features).

    An array without names has all features, in their order; that is said in a warning unless the
    names are mere numbers, as those of columns which never had names.

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
    else:
        names, values = features, table if issparse(table) else np.asarray(table)
        if values.ndim != 2 or values.shape[1] != len(features):
            raise TableError(
                f"The array has shape {values.shape}; without column names it must be (samples, "
                f"{len(features)}) in the order of feature_names_in_: pass that or a DataFrame."
            )
        if numbered(features) is None:
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
        columns = [_numbers(table[table.columns[c]], names[c]) for c in chosen]
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


def _numbers(values: Any, name: str) -> Array:
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        raise TableError(
            f"The column {name!r} is not numeric ({error}); encode it as in training."
        ) from error
