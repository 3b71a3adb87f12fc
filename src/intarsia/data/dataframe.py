"""Take DataFrames, arrays and sparse matrices in memory as the clients' tables.

A client's table is a pandas or polars DataFrame; a matrix x (samples, features), dense or sparse;
or a pair (x, y) of either and its labels. Settings for all clients apply where they fit: a
DataFrame without the label column is a client without labels. A client's own settings go before
them; they are those of `Source`, and for a matrix `labels`, `samples` (ids) and `names` (of the
features).

Rows of a matrix belong to its client alone, unless it has `samples`, or `id="row"` says that row i
is the same sample at all clients. A matrix without `names` has the features x0, x1, …: the same at
all clients where the rows are its own, and its own ("bank:x0") where they are shared.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np
from scipy.sparse import issparse

from intarsia.core.block import ClientId
from intarsia.core.settings import hyperparameters
from intarsia.data.reader import table_from
from intarsia.data.source import Source
from intarsia.data.table import Table, other_kind
from intarsia.errors import ExperimentError, listed, nearest, nearest_column, shown

Settings = Mapping[str, Any]

_ARRAYS = ("labels", "names", "samples")  # settings that are arrays, of a matrix or a DataFrame
# settings for all tables that functions of `api` take among the others
FOR_ALL = (
    *("dates", "decimal", "label_map", "least_rows"),
    *("split_by", "split_by_pattern", "thousands"),
)
_OF_A_SOURCE = (
    *("categorical", "exclude", "features", "groups", "id"),
    *("id_type", "label", "limits", "missing", "units", "weights", *FOR_ALL),
)


def sources_of(
    tables: Mapping[ClientId, Any],
    shared: Settings | None = None,
    own: Mapping[ClientId, Settings] | None = None,
) -> tuple[Source, ...]:
    """Return the description of every client's table, without the values.

    `shared` are settings for all clients: id, id_type, label, weights, categorical, exclude,
    missing, and those of `FOR_ALL`; `own` those of each.
    """
    if not isinstance(tables, Mapping) or not tables:
        raise ExperimentError(
            f"tables is {type(tables).__name__} with "
            f"{len(tables) if isinstance(tables, Mapping) else 'no names'}; pass a mapping such as "
            '{"bank": bank, "shop": shop} with at least one table.'
        )
    tables, own = _unpaired(tables, own)
    shared = shared or {}
    _check_columns(tables, shared, own)
    return tuple(_source(name, table, shared, own.get(name, {})) for name, table in tables.items())


def tables_of(
    tables: Mapping[ClientId, Any],
    sources: Sequence[Source],
    own: Mapping[ClientId, Settings] | None = None,
) -> dict[ClientId, Table]:
    """Return every client's table as its description says."""
    tables, own = _unpaired(tables, own)
    names = [source.name for source in sources]
    if sorted(names) != sorted(tables):
        raise ExperimentError(
            f"The tables are {listed(tables)} but the run's clients are {listed(names)}; pass the "
            "same tables."
        )
    return {
        source.name: _table(tables[source.name], source, (own or {}).get(source.name, {}))
        for source in sources
    }


def _check_given(tables: Mapping[ClientId, Any], own: Any) -> None:
    """Refuse tables and settings of single tables that are of another kind than is expected."""
    for name, table in tables.items():
        frames = isinstance(table, list) and table and _columns(table[0]) is not None
        if frames or table is None or isinstance(table, Mapping | str | bytes | PathLike):
            raise ExperimentError(
                f"Table {name!r} is a {type(table).__name__}, {shown(table, 40)}; expected a "
                "DataFrame, a matrix x, or a pair (x, y) of either and its labels. Files are named "
                "in an experiment file."
            )
        if (other := other_kind(table)) is not None:
            kind, advice = other
            raise ExperimentError(
                f"Table {name!r} is a {kind}; expected a DataFrame or a matrix: pass {advice}."
            )
    if own is None:
        return
    if not (isinstance(own, Mapping) and all(isinstance(one, Mapping) for one in own.values())):
        name = next(iter(tables))
        raise ExperimentError(
            f"table_settings is {shown(own)}; expected a mapping from the names of tables to "
            f'mappings of settings, such as {{"{name}": {{"label": "default"}}}}.'
        )
    for name in own:
        if name not in tables:
            raise ExperimentError(
                f"table_settings names the table {name!r}; {nearest(str(name), tables)}."
            )


def _unpaired(
    tables: Mapping[ClientId, Any], own: Mapping[ClientId, Settings] | None
) -> tuple[dict[ClientId, Any], dict[ClientId, Settings]]:
    """Return tables and settings of each, in which y of a pair (x, y) is a setting."""
    _check_given(tables, own)
    alone, settings = dict(tables), dict(own or {})
    for name, table in tables.items():
        if not isinstance(table, tuple):
            continue
        if len(table) != 2 or settings.get(name, {}).get("labels") is not None:
            raise ExperimentError(
                f"Table {name!r} is a tuple of {len(table)}"
                + (" and has labels in its settings" if len(table) == 2 else "")
                + "; expected a DataFrame, a matrix x, or a pair (x, y)."
            )
        alone[name] = table[0]
        settings[name] = {**settings.get(name, {}), "labels": table[1]}
    return alone, settings


def _columns(table: Any) -> list[str] | None:
    """Return a DataFrame's column names, None for a matrix."""
    if isinstance(table, Table) or issparse(table) or not hasattr(table, "columns"):
        return None
    return [str(name) for name in table.columns]


def _check_columns(
    tables: Mapping[ClientId, Any], shared: Settings, own: Mapping[ClientId, Settings]
) -> None:
    known = list(dict.fromkeys(n for table in tables.values() for n in _columns(table) or ()))
    labelled = any({"label", "labels"} & own.get(name, {}).keys() for name in tables)
    asked = [("label", shared.get("label"))] if not labelled else []
    asked += [(key, shared.get(key)) for key in ("weights", "split_by")]
    for key in ("categorical", "exclude"):
        some = shared.get(key) or ()
        asked += [(key, name) for name in ((some,) if isinstance(some, str) else some)]
    for key, column in asked:
        if column is not None and known and column not in known:
            raise ExperimentError(
                f"{key} names the column {column!r}, which no table has; "
                f"{nearest_column(column, known)}."
            )


def _source(name: ClientId, table: Any, shared: Settings, own: Settings) -> Source:
    columns = _columns(table)
    _check_names(name, columns or (), own)
    kept = _fitting(shared, columns, own)
    kept |= {key: value for key, value in own.items() if key not in _ARRAYS}
    if "samples" in own:
        kept.pop("id", None)
    if columns is None and kept.get("id") not in (None, "row"):
        raise ExperimentError(
            f"Table {name!r} is a matrix and has no column {kept['id']!r}; pass its ids as samples "
            'in table_settings, or id="row" where row i is the same sample at all clients.'
        )
    if kept.get("id") is None and "samples" not in own:
        kept.pop("id_type", None)
    given = {key: value for key, value in kept.items() if value is not None}
    if isinstance(given.get("label_map"), Mapping):  # a label may be a number
        given["label_map"] = {str(label): to for label, to in given["label_map"].items()}
    return hyperparameters(Source, {"name": name, **given}, f"Table {name!r}")


def _check_names(name: ClientId, columns: Sequence[str], own: Settings) -> None:
    """Refuse names that are no text, and unknown settings."""
    if not isinstance(name, str) or not name:
        raise ExperimentError(f"A table's name is {name!r}; give every table a text as its name.")
    for key in own:
        if key not in (*_OF_A_SOURCE, *_ARRAYS):
            raise ExperimentError(
                f"table_settings of {name!r} has the unknown key {key!r}; "
                f"{nearest(str(key), (*_OF_A_SOURCE, *_ARRAYS))}."
            )
    for text in (name, *columns):
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            raise ExperimentError(
                f"The name {text!r} is not valid Unicode (it has half a surrogate pair); rename it."
            )


def _fitting(shared: Settings, columns: list[str] | None, own: Settings) -> dict[str, Any]:
    """Return the settings for all tables that fit one with these columns; None: a matrix."""
    kept = {key: value for key, value in shared.items() if value is not None}
    if columns is None:
        fits = ("id", "missing", "label_map", "least_rows")
        return {key: kept[key] for key in fits if key in kept}
    if kept.get("label") not in columns or "labels" in own:
        kept.pop("label", None)
    if kept.get("weights") not in columns or not ({"label", "labels"} & {*kept, *own}):
        kept.pop("weights", None)
    if kept.get("split_by") not in columns:
        kept.pop("split_by", None)
        kept.pop("split_by_pattern", None)
    if not ("label" in kept or {"label", "labels"} & own.keys()):
        kept.pop("label_map", None)
    for key in ("categorical", "exclude"):
        if key in kept:
            some = (kept[key],) if isinstance(kept[key], str) else kept[key]
            kept[key] = tuple(one for one in some if one in columns)
    return kept


def _table(table: Any, source: Source, own: Settings) -> Table:
    if isinstance(table, Table):
        return dataclasses.replace(table, client=source.name)
    arrays = {key: own[key] for key in _ARRAYS if own.get(key) is not None}
    given = {key: getattr(source, key) for key in _OF_A_SOURCE}
    settings = {key: value for key, value in given.items() if value not in (None, (), {})}
    if _columns(table) is None:
        table = table if issparse(table) else np.asarray(table)
        if len(table.shape) == 2:
            if settings.pop("id", None) == "row":
                arrays["samples"] = np.arange(table.shape[0])
            if "samples" in arrays and "names" not in arrays:
                arrays["names"] = [f"{source.name}:x{at}" for at in range(table.shape[1])]
    return table_from(table, client=source.name, **arrays, **settings)
