"""Translate columns by a shared dictionary: which is which feature, in which unit and type.

All parties agree on one file, TOML or CSV. In TOML:

    [feature.age]
    type = "number"                # or "category"; left out: as the tables have it
    unit = "years"
    factors = { months = 0.0833 }  # a value in months × 0.0833 is in years

    [client.clinic]
    AGE_M = "age"                            # a column of the party, and the feature that it is
    SEX = { feature = "sex" }                # the same
    WEIGHT = { feature = "weight", unit = "lb" }  # in a unit of its own

In CSV a line is a column of a party; the columns are party, column, feature, unit, type, factor.
Without a party it says the unit and the type of a feature; with a factor, unit × factor is in the
feature's unit.

A column that the file does not name is the feature of its own name. A column is in the unit that
the party's `units` in the experiment say, else in that of the dictionary, else in the feature's.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy.sparse import csr_array, issparse

from intarsia.core.block import ClientId
from intarsia.core.settings import hyperparameters, read_text, read_toml, toml_text, wrong_value
from intarsia.data.source import Source
from intarsia.data.table import Table
from intarsia.errors import ExperimentError, FederationError, TableError, listed, nearest

_FILE = "the dictionary of [alignment]"
_CSV = ("party", "column", "feature", "unit", "type", "factor")


@dataclass(frozen=True, kw_only=True)
class Feature:
    """What all parties mean by a feature."""

    type: Literal["number", "category"] | None = None  # None: as the tables have it
    unit: str | None = None
    factors: Mapping[str, float] = field(default_factory=dict[str, float])  # other unit -> factor


@dataclass(frozen=True, kw_only=True)
class Column:
    """Which feature a party's column is."""

    feature: str
    unit: str | None = None  # None: the feature's


@dataclass(frozen=True)
class Dictionary:
    """What the parties agreed on.

    Raises
    ------
    ExperimentError
        If two columns of a party are one feature, or a factor or a unit is of no use.
    """

    place: str  # how an error names it
    features: Mapping[str, Feature]
    columns: Mapping[ClientId, Mapping[str, Column]]

    def __post_init__(self) -> None:
        for name, feature in self.features.items():
            where = f"{self.place}: feature {name!r}"
            for unit, factor in feature.factors.items():
                if not (math.isfinite(factor) and factor > 0):
                    raise ExperimentError(
                        f"{where} has the factor {factor} for {unit!r}; expected a number above 0: "
                        "correct it."
                    )
                if feature.unit is None:
                    raise ExperimentError(
                        f"{where} has a factor for {unit!r} but no unit; say the unit that a value "
                        "times the factor is in."
                    )
            if feature.type == "category" and (feature.unit is not None or feature.factors):
                raise ExperimentError(
                    f"{where} is a category with the unit {feature.unit!r}; remove the unit, or "
                    'set type = "number".'
                )
        for client, columns in self.columns.items():
            owner: dict[str, str] = {}
            for name, column in columns.items():
                first = owner.setdefault(column.feature, name)
                if first != name:
                    raise ExperimentError(
                        f"{self.place}: the columns {first!r} and {name!r} of client {client!r} "
                        f"are both the feature {column.feature!r}; leave one of them out."
                    )


def load(path: str | Path) -> Dictionary:
    """Return the dictionary in a TOML or a CSV file.

    Raises
    ------
    ExperimentError
        If the file cannot be read, or something in it is wrong.
    """
    path = Path(path)
    if path.suffix.lower() == ".csv":
        return _of_csv(read_text(path, _FILE), str(path))
    if path.suffix.lower() == ".toml" or not path.is_file():
        return _of_toml(read_toml(path, _FILE, ("feature", "client")), str(path))
    raise ExperimentError(
        f"{path}: the ending {path.suffix!r} tells no format; name the dictionary .toml or .csv."
    )


def described(source: Source, dictionary: Dictionary | None) -> Source:
    """Return a party's description with the columns that the dictionary calls categories."""
    if dictionary is None:
        return source
    known = dictionary.columns.get(source.name, {})
    wanted = [
        name
        for name, column in known.items()
        if dictionary.features.get(column.feature, Feature()).type == "category"
    ]
    return replace(source, categorical=tuple(dict.fromkeys((*source.categorical, *wanted))))


def translate(
    tables: Mapping[ClientId, Table],
    sources: Mapping[ClientId, Source],
    dictionary: Dictionary | None,
) -> dict[ClientId, Table]:
    """Return the parties' tables with the features' names and units.

    Raises
    ------
    FederationError
        If a feature is in different units at two parties.
    TableError
        If a table is not what the dictionary says.
    ExperimentError
        If the dictionary names a party that is not there.
    """
    check_units(sources, tables, dictionary)
    if dictionary is None:
        return dict(tables)
    for client in dictionary.columns:
        if client not in tables:
            raise ExperimentError(
                f"The dictionary {dictionary.place} has columns of the client {client!r}, which is "
                f"not in the experiment; {nearest(client, tables)}."
            )
    return {
        name: translated(table, dictionary, sources[name].units if name in sources else {})
        for name, table in tables.items()
    }


def translated(table: Table, dictionary: Dictionary, units: Mapping[str, str]) -> Table:
    """Return a party's table with the features' names, and its numbers in their units.

    `units` are those of the party's columns, as its description has them.

    Raises
    ------
    TableError
        If the table lacks a column, two columns get one name, or a type or a unit is another.
    """
    where = f"Client {table.client!r}"
    known = dictionary.columns.get(table.client, {})
    for name in known:
        if name not in table.columns:
            raise TableError(
                f"{where}: the dictionary {dictionary.place} has the column {name!r}, which is not "
                f"among the features; {nearest(name, table.columns)}."
            )
    names = {name: known[name].feature if name in known else name for name in table.columns}
    owner: dict[str, str] = {}
    for name, feature in names.items():
        first = owner.setdefault(feature, name)
        if first != name:
            raise TableError(
                f"{where}: the columns {first!r} and {name!r} are both the feature {feature!r} by "
                f"the dictionary {dictionary.place}; list one of them in exclude."
            )
    factors = {}
    for name, feature in names.items():
        meant = dictionary.features.get(feature, Feature())
        _check_type(table, name, feature, meant, dictionary.place)
        own = units.get(name)
        own = own if own is not None else (known[name].unit if name in known else None)
        factors[name] = _factor(where, name, own, feature, meant, dictionary.place)
    return replace(
        table,
        columns=tuple(names.values()),
        values=_scaled(table.values, [factors[name] for name in table.numeric]),
        categorical={names[name]: category for name, category in table.categorical.items()},
        groups={group: tuple(names[name] for name in some) for group, some in table.groups.items()},
    )


def check_units(
    sources: Mapping[ClientId, Source],
    tables: Mapping[ClientId, Table],
    dictionary: Dictionary | None = None,
) -> None:
    """Raise if two parties have a feature in different units that no dictionary relates.

    For tables before `translated`. A party that says no unit is taken to have the others'.

    Raises
    ------
    FederationError
        With the feature, both parties and both units.
    """
    known = {} if dictionary is None else dictionary.features
    seen: dict[str, tuple[ClientId, str]] = {}
    for client, table in tables.items():
        units = sources[client].units if client in sources else {}
        columns = {} if dictionary is None else dictionary.columns.get(client, {})
        for name in table.columns:
            column = columns.get(name, Column(feature=name))
            unit = units.get(name, column.unit)
            if unit is None or known.get(column.feature, Feature()).unit is not None:
                continue
            other, first = seen.setdefault(column.feature, (client, unit))
            if first != unit:
                raise FederationError(
                    f"Feature {column.feature!r} is in {first!r} at client {other!r} but in "
                    f"{unit!r} at client {client!r}; convert one of them, or give the feature a "
                    "unit and a factor in a dictionary ([alignment] dictionary)."
                )


def _check_type(table: Table, name: str, feature: str, meant: Feature, place: str) -> None:
    where = f"Client {table.client!r}: column {name!r} (feature {feature!r})"
    if meant.type == "number" and name in table.categorical:
        raise TableError(
            f"{where} has text (such as {table.categorical[name].levels[0]!r}) but the dictionary "
            f"{place} says that it is a number; correct the values or the dictionary."
        )
    if meant.type == "category" and name not in table.categorical:
        position = table.numeric.index(name)
        if issparse(table.values):
            example, empty = "sparse numbers", False
        else:
            present = table.values[:, position]
            present = present[~np.isnan(present)]
            empty = not len(present)
            example = "" if empty else f"numbers (such as {present[0]:g})"
        if not empty:
            raise TableError(
                f"{where} has {example} but the dictionary {place} says that it is a category; "
                "list the column in categorical, or correct the dictionary."
            )


def _factor(
    where: str, name: str, own: str | None, feature: str, meant: Feature, place: str
) -> float:
    """Return what makes a column's values those of the feature's unit."""
    if own is None or own == meant.unit or (meant.unit is None and meant.type != "category"):
        return 1.0
    if own in meant.factors:
        return meant.factors[own]
    if meant.type == "category":
        raise TableError(
            f"{where}: column {name!r} is in {own!r} but the feature {feature!r} is a category in "
            f"the dictionary {place}; remove the unit, or correct the dictionary."
        )
    raise TableError(
        f"{where}: column {name!r} is in {own!r} but the feature {feature!r} is in {meant.unit!r} "
        f"in the dictionary {place}, which has "
        + (f"factors for {listed(meant.factors)} only" if meant.factors else "no factor for it")
        + f"; add the factor for {own!r}, or convert the column."
    )


def _scaled(values: Any, factors: list[float]) -> Any:
    if all(factor == 1.0 for factor in factors):
        return values
    scale = np.array(factors)
    if issparse(values):
        data = values.data * scale[values.indices]
        return csr_array((data, values.indices, values.indptr), shape=values.shape)
    return values * scale


def _of_toml(tree: Mapping[str, Any], place: str) -> Dictionary:
    features, columns = tree.get("feature", {}), tree.get("client", {})
    for key, tables in (("feature", features), ("client", columns)):
        for name, table in tables.items():
            if not isinstance(table, Mapping):
                raise wrong_value(f"{place}: [{key}]", name, table, f"a table [{key}.{name}]")
    for name, table in features.items():
        factors = table.get("factors", {})
        for unit, factor in factors.items() if isinstance(factors, Mapping) else ():
            if isinstance(factor, bool) or not isinstance(factor, int | float):
                raise wrong_value(
                    f"{place}: feature {name!r}: the factor for", unit, factor, "a number above 0"
                )
    return Dictionary(
        place,
        {
            name: hyperparameters(Feature, table, f"{place}: [feature.{name}]")
            for name, table in features.items()
        },
        {
            client: {
                name: _column(column, f"{place}: [client.{client}]", name)
                for name, column in table.items()
            }
            for client, table in columns.items()
        },
    )


def _column(column: Any, where: str, name: str) -> Column:
    if isinstance(column, str) and column:
        return Column(feature=column)
    if not isinstance(column, Mapping):
        expected = 'the name of a feature, or a table such as { feature = "age", unit = "months" }'
        raise wrong_value(where, name, column, expected)
    return hyperparameters(Column, column, f"{where} {name}")


def _of_csv(text: str, place: str) -> Dictionary:
    reader = csv.DictReader(io.StringIO(text), restkey="", strict=True)
    header = tuple(name.strip() for name in reader.fieldnames or ())
    for name in header:
        if name not in _CSV:
            raise ExperimentError(f"{place}: there is a column {name!r}; {nearest(name, _CSV)}.")
    for name in ("party", "column", "feature"):
        if name not in header:
            raise ExperimentError(
                f"{place}: the header is {listed(header) or 'empty'} and lacks {name!r}; expected "
                f"{listed(_CSV)}."
            )
    reader.fieldnames = header
    features: dict[str, Feature] = {}
    columns: dict[ClientId, dict[str, Column]] = {}
    try:
        for line in reader:
            _add_line(line, features, columns, f"{place}, line {reader.line_num}")
    except csv.Error as problem:
        raise ExperimentError(
            f"{place}, line {reader.line_num}: not valid CSV ({problem}); correct this line."
        ) from None
    return Dictionary(place, features, columns)


def _add_line(
    line: Mapping[str, Any],
    features: dict[str, Feature],
    columns: dict[ClientId, dict[str, Column]],
    where: str,
) -> None:
    """Take one line of a CSV dictionary into the features and the columns."""
    if "" in line:
        raise ExperimentError(f"{where}: there are more cells than names in the header.")
    party, name, feature, unit, kind, factor = ((line.get(key) or "").strip() for key in _CSV)
    feature = feature or name
    if not feature or (party and not name) or (name and not party):
        raise ExperimentError(
            f"{where}: party is {party!r}, column is {name!r} and feature is {feature!r}; a line "
            "has a party and a column, or neither and a feature."
        )
    known = features.get(feature, Feature())
    if kind:
        if kind not in ("number", "category"):
            raise ExperimentError(
                f"{where}: type is {kind!r}; {nearest(kind, ('number', 'category'))}."
            )
        if known.type not in (None, kind):
            raise ExperimentError(
                f"{where}: feature {feature!r} is a {kind} but a {known.type} in a line above; "
                "correct one of them."
            )
        known = replace(known, type=kind)  # type: ignore[arg-type]  # checked above
    if factor:
        known = replace(known, factors=_with_factor(known, feature, unit, factor, where))
    elif unit:
        if known.unit not in (None, unit):
            raise ExperimentError(
                f"{where}: feature {feature!r} is in {unit!r} but in {known.unit!r} in a line "
                "above; add the factor that makes the one the other, or correct the unit."
            )
        known = replace(known, unit=unit)
    features[feature] = known
    if party:
        own = columns.setdefault(party, {})
        if name in own:
            raise ExperimentError(
                f"{where}: column {name!r} of party {party!r} is in a line above; remove one."
            )
        own[name] = Column(feature=feature, unit=unit or None)


def _with_factor(
    known: Feature, feature: str, unit: str, text: str, where: str
) -> Mapping[str, float]:
    try:
        factor = float(text)
    except ValueError:
        factor = math.nan
    if not unit or not (math.isfinite(factor) and factor > 0):
        raise ExperimentError(
            f"{where}: factor is {toml_text(text)} and unit is {unit!r}; expected a number above 0 "
            "and the unit that it converts."
        )
    if known.factors.get(unit, factor) != factor:
        raise ExperimentError(
            f"{where}: feature {feature!r} has the factor {factor:g} for {unit!r} but "
            f"{known.factors[unit]:g} in a line above; correct one of them."
        )
    return {**known.factors, unit: factor}
