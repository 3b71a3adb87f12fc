"""Translate columns by a shared dictionary: which is which feature, in which unit and type.

All parties agree on one file, TOML or CSV. In TOML:

    [feature.age]
    type = "number"                # or "category"; left out: as the tables have it
    unit = "years"
    factors = { months = 0.0833 }  # a value in months × 0.0833 is in years

    [feature.sex]
    ignore_case = true             # of a category: F and f are one value, in small letters

    [feature.smoker]
    no_and_yes = true              # of a category: ja, oui, 1 are "yes", and nein, non, 0 "no"

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
from scipy.sparse import issparse

from intarsia.core.block import ClientId, stored, with_data
from intarsia.core.memory import made_like, pieces
from intarsia.core.settings import hyperparameters, read_text, read_toml, toml_text, wrong_value
from intarsia.data.labels import says_yes
from intarsia.data.parsing import same_unit
from intarsia.data.source import Source
from intarsia.data.table import Category, Table
from intarsia.errors import (
    ExperimentError,
    TableError,
    listed,
    nearest,
    nearest_column,
)

_FILE = "the dictionary of [alignment]"
_CSV = ("party", "column", "feature", "unit", "type", "factor")


@dataclass(frozen=True, kw_only=True)
class Feature:
    """What all parties mean by a feature."""

    type: Literal["number", "category"] | None = None  # None: as the tables have it
    unit: str | None = None
    factors: Mapping[str, float] = field(default_factory=dict[str, float])  # other unit -> factor
    ignore_case: bool = False  # of a category: levels that differ in case alone are one
    no_and_yes: bool = False  # of a category: levels that say yes, or no, in any language are one


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
            if feature.ignore_case and feature.type == "number":
                raise ExperimentError(
                    f"{where} is a number with ignore_case, and numbers have no case; remove it, "
                    'or set type = "category".'
                )
            if feature.no_and_yes and feature.type == "number":
                raise ExperimentError(
                    f"{where} is a number with no_and_yes, which is for words; remove it, or set "
                    'type = "category".'
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

    def column(self, client: ClientId, name: str, units: Mapping[str, str]) -> Column:
        """Return which feature a party's column is; `units` are those that the party says."""
        known = self.columns.get(client, {}).get(name) or Column(feature=name)
        return replace(known, unit=units.get(name, known.unit))

    def feature(self, name: str) -> Feature:
        """Return what is agreed on a feature."""
        return self.features.get(name) or Feature()


def load(path: str | Path | None) -> Dictionary:
    """Return the dictionary in a TOML or a CSV file; None: one that names no column."""
    if path is None:
        return Dictionary("", {}, {})
    path = Path(path)
    if path.suffix.lower() == ".csv":
        return _of_csv(read_text(path, _FILE), str(path))
    if path.suffix.lower() == ".toml" or not path.is_file():
        return _of_toml(read_toml(path, _FILE, ("feature", "client")), str(path))
    raise ExperimentError(
        f"{path}: the ending {path.suffix!r} tells no format; name the dictionary .toml or .csv."
    )


def with_categories(source: Source, dictionary: Dictionary) -> Source:
    """Return a party's description with the columns that the dictionary calls categories."""
    known = dictionary.columns.get(source.name, {})
    wanted = [
        name
        for name, column in known.items()
        if dictionary.feature(column.feature).type == "category"
    ]
    return replace(source, categorical=tuple(dict.fromkeys((*source.categorical, *wanted))))


def translate(
    tables: Mapping[ClientId, Table], sources: Mapping[ClientId, Source], dictionary: Dictionary
) -> dict[ClientId, Table]:
    """Return the parties' tables with the features' names and units."""
    units = {name: sources[name].units if name in sources else {} for name in tables}
    for client in dictionary.columns:
        if client not in tables:
            raise ExperimentError(
                f"The dictionary {dictionary.place} has columns of the client {client!r}, which is "
                f"not in the experiment; {nearest(client, tables)}."
            )
    return {name: translated(table, dictionary, units[name]) for name, table in tables.items()}


def translated(table: Table, dictionary: Dictionary, units: Mapping[str, str]) -> Table:
    """Return a party's table with the features' names, and its numbers in their units.

    `units` are those of the party's columns, as its description has them. TableError if the table
    lacks a column, two columns get one name, or a type or a unit is another.
    """
    where = f"Client {table.client!r}"
    for name in dictionary.columns.get(table.client, {}):
        if name not in table.columns:
            raise TableError(
                f"{where}: the dictionary {dictionary.place} has the column {name!r}, which is not "
                f"among the features; {nearest_column(name, table.columns)}."
            )
    columns = {name: dictionary.column(table.client, name, units) for name in table.columns}
    names = {name: column.feature for name, column in columns.items()}
    owner: dict[str, str] = {}
    for name, feature in names.items():
        first = owner.setdefault(feature, name)
        if first != name:
            raise TableError(
                f"{where}: the columns {first!r} and {name!r} are both the feature {feature!r} by "
                f"the dictionary {dictionary.place}; list one of them in exclude."
            )
    factors, agreed = dict[str, float](), dict[str, str]()
    for name, column in columns.items():
        _check_type(table, name, column.feature, dictionary)
        factors[name] = _factor(f"{where}: column {name!r}", column, dictionary)
        unit = dictionary.feature(column.feature).unit or column.unit
        if unit:  # "" says no more than none
            agreed[column.feature] = unit
    return replace(
        table,
        columns=tuple(names.values()),
        values=_scaled(table.values, [factors[name] for name in table.numeric]),
        categorical={
            names[name]: _rewritten(category, dictionary.feature(names[name]))
            for name, category in table.categorical.items()
        },
        groups={group: tuple(names[name] for name in some) for group, some in table.groups.items()},
        units=agreed,
    )


def _rewritten(category: Category, feature: Feature) -> Category:
    """Return a category whose levels are written as all clients have them; alike ones are one."""
    if not (feature.ignore_case or feature.no_and_yes):
        return category

    def rewritten(level: str) -> str:
        yes = says_yes(level) if feature.no_and_yes else None
        if yes is not None:
            return "yes" if yes else "no"
        return level.casefold() if feature.ignore_case else level

    written = [*map(rewritten, category.levels)]
    levels = tuple(sorted(set(written)))
    place = np.array([*(levels.index(level) for level in written), -1], np.int32)
    return replace(category, codes=place[category.codes], levels=levels)


def _check_type(table: Table, name: str, feature: str, dictionary: Dictionary) -> None:
    meant, place = dictionary.feature(feature).type, dictionary.place
    where = f"Client {table.client!r}: column {name!r} (feature {feature!r})"
    if meant == "number" and name in table.categorical:
        raise TableError(
            f"{where} has text (such as {table.categorical[name].levels[0]!r}) but the dictionary "
            f"{place} says that it is a number; correct the values or the dictionary."
        )
    if meant == "category" and name not in table.categorical:
        example = "sparse numbers"
        if not issparse(table.values):
            present = table.values[:, table.numeric.index(name)]
            present = present[~np.isnan(present)]
            if not len(present):
                return
            example = f"numbers (such as {present[0]:g})"
        raise TableError(
            f"{where} has {example} but the dictionary {place} says that it is a category; "
            "list the column in categorical, or correct the dictionary."
        )


def _factor(where: str, column: Column, dictionary: Dictionary) -> float:
    """Return what makes a column's values those of the feature's unit."""
    own, meant = column.unit, dictionary.feature(column.feature)
    if not own or (meant.unit is None and meant.type != "category"):
        return 1.0
    if same_unit(own) == same_unit(meant.unit or ""):
        return 1.0
    for unit, factor in meant.factors.items():
        if same_unit(own) == same_unit(unit):
            return factor
    start = f"{where} is in {own!r} but the feature {column.feature!r} is"
    if meant.type == "category":
        raise TableError(
            f"{start} a category in the dictionary {dictionary.place}; remove the unit, or correct "
            "the dictionary."
        )
    others = f"factors for {listed(meant.factors)} only" if meant.factors else "no factor for it"
    raise TableError(
        f"{start} in {meant.unit!r} in the dictionary {dictionary.place}, which has {others}; add "
        f"the factor for {own!r}, or convert the column."
    )


def _scaled(values: Any, factors: list[float]) -> Any:
    if all(factor == 1.0 for factor in factors):
        return values
    scale = np.array(factors)
    found = with_data(values, made_like(values, stored(values).shape))
    for (_, own), (_, part) in zip(pieces(values), pieces(found), strict=True):
        factor = scale[own.indices] if issparse(values) else scale
        np.multiply(stored(own), factor, out=stored(part))
    return found


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
        raise ExperimentError(
            f"{where}: there are more cells than names in the header; quote a cell with a comma."
        )
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
