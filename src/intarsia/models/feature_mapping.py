"""Find a model's features in a table that lacks some, has others, or has another order."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse

from intarsia.core.block import RARE, Block, Labels
from intarsia.data.encoding import Encoding, encode
from intarsia.data.parsing import numbered
from intarsia.data.table import Table as DataTable
from intarsia.data.table import other_kind
from intarsia.errors import TableError, listed
from intarsia.privacy.entity_matching.normalisation import look

Table = Any  # array, sparse array, DataFrame (anything with .columns) or Block
# categorical column -> its levels, of which the features are "column=level"; None where a model
# does not say: then the names of its features do
Levels = Mapping[str, tuple[str, ...]] | None


# of a category of many levels its columns, and the rows that have none of them
Gaps = list[tuple[NDArray[np.intp], NDArray[np.bool_]]]


def known_columns(
    table: Table, features: list[str], recorded: Levels = None
) -> tuple[NDArray[np.intp], Any, Gaps]:
    """Return which features a table has, their values (samples, those features), and its gaps.

    A DataFrame is read as `intarsia predict` reads a file: a column of categories has the features
    of its levels ("city=oslo"), a level that the model does not know is NaN in all of them, and "?"
    and "" are missing; what else was missing in training must be NaN. An array without names has
    all features, in their order; that is said in a warning unless the names are mere numbers in
    ascending order, as those of columns that never had names.

    Raises
    ------
    TableError
        If it has none of them, or one twice, an array without names has another shape, or a value
        is infinite or no number.
    """
    gaps: Gaps = []
    if (other := other_kind(table)) is not None:
        kind, advice = other
        raise TableError(f"The table is a {kind}; expected a DataFrame or an array: pass {advice}.")
    if isinstance(table, Block):
        table = table.written()
        names, values, gaps = list(table.features), table.x, table.without_level()
    elif hasattr(type(table), "columns"):
        block = _read(table, features, recorded)
        names, values, gaps = list(block.features), block.x, block.without_level()
    else:
        names, values = features, table if issparse(table) else np.asarray(table)
        if values.ndim != 2 or values.shape[1] != len(features):
            raise TableError(
                f"The array has shape {values.shape}; without column names it must be (samples, "
                f"{len(features)}) in the order of feature_names_in_: pass that or a DataFrame."
            )
        number = numbered(features)
        if number is None or list(number.values()) != sorted(number.values()):
            warnings.warn(
                f"The array has no column names: its columns are taken for {listed(features, 4)}, "
                "in the order of feature_names_in_; pass a DataFrame, whose names say it.",
                UserWarning,
                stacklevel=4,
            )
    place = {name: number for number, name in enumerate(names)}
    known = np.array([i for i, name in enumerate(features) if name in place], np.intp)
    if features and not len(known):
        named = table.features if isinstance(table, Block) else getattr(table, "columns", ())
        first = next((str(name) for name in named), None)
        raise TableError(
            f"The table has none of the model's {len(features)} features (its first column is "
            f"{first!r}, the model's first {features[0]!r}); "
            "name its columns as in training."
        )
    chosen = [place[features[i]] for i in known]
    if issparse(values):
        x: Any = csr_array(values)[:, chosen].astype(np.float64)
    else:
        try:
            x = np.asarray(values, np.float64)[:, chosen]
        except (TypeError, ValueError) as error:
            raise TableError(
                f"The array is not numeric ({error}); encode its columns as in training."
            ) from error
    entries = x.data if issparse(x) else x
    if np.isinf(entries).any() or (issparse(table) and np.isnan(entries).any()):
        raise TableError(
            "The table has an infinite value, or NaN in a sparse array; replace it by a number, or "
            "leave it out (NaN in a dense table counts as the mean)."
        )
    kept = ((np.flatnonzero(np.isin(chosen, columns)), rows) for columns, rows in gaps)
    return known, x, [(columns, rows) for columns, rows in kept if len(columns) and rows.any()]


def _read(frame: Any, features: list[str], recorded: Levels) -> Block:
    """Return those features of a model that a DataFrame's columns say."""
    names = [str(name) for name in frame.columns]
    known, levels = known_columns_of(features, names, recorded)
    check_names("The table", names, features, recorded)
    twice = next((name for name, count in Counter(known).items() if count > 1), None)
    if twice is not None:
        raise TableError(f"The column {twice!r} appears more than once; leave one of them out.")
    if not known or not len(frame):
        own = [f"{one}={level}" for one in levels for level in levels[one]]
        own += [one for one in known if one not in levels]
        return Block(np.arange(len(frame)), tuple(own), np.zeros((len(frame), len(own))))
    from intarsia.data.reader import table_from  # here: it imports pyarrow

    place = {name: at for at, name in enumerate(names)}
    part = frame[[frame.columns[place[name]] for name in known]]
    try:
        read = table_from(part, client="table", categorical=tuple(levels))
    except TableError as problem:
        advice = "correct it, or replace it by NaN, which counts as missing"
        if "has dates or times" in problem.problem:
            advice = "pass the days since 1970-01-01, as numbers, where training had dates"
        elif "which are text" in problem.problem or "has limits" in problem.problem:
            advice = problem.without_settings
        raise problem.retold(where="The table", advice=advice) from problem
    return encode_known(read, levels, "The column ")


def encode_known(
    table: DataTable, levels: Mapping[str, tuple[str, ...]], before: str, after: str = ""
) -> Block:
    """Return a table as a model's features; a level that it does not know is missing.

    Raises
    ------
    TableError
        If a column has text and was numeric in training; `before` and `after` are around its name.
    """
    text = next((name for name in table.categorical if name not in levels), None)
    if text is not None:
        example = table.categorical[text].levels[0]
        raise TableError(
            f"{before}{text!r}{after} has text (such as {example!r}) but was numeric in training; "
            "correct it, or leave the column out."
        )
    return encode(table, Encoding(levels, Labels("regression")))


def known_columns_of(
    features: Sequence[str], names: Sequence[str], recorded: Levels = None
) -> tuple[list[str], dict[str, tuple[str, ...]]]:
    """Return the columns that the model knows, and the levels of the categorical ones.

    Where a table has columns of the levels too, these are known, and not what they came from.
    """
    numeric, there = set(features), set(names)
    levels: dict[str, list[str]] = {}
    if recorded is None:
        for feature in features:
            parts = feature.split("=")
            for cut in range(1, len(parts)):  # a name and a level may both hold "="
                levels.setdefault("=".join(parts[:cut]), []).append("=".join(parts[cut:]))
    known_levels = levels if recorded is None else recorded
    levels = {
        name: list(own)
        for name, own in known_levels.items()
        if name in there and there.isdisjoint(f"{name}={level}" for level in own)
    }
    known = [name for name in names if name in numeric or name in levels]
    return known, {name: tuple(levels[name]) for name in known if name not in numeric}


MISSING = ("?", "")  # text that stands for a missing value


def counts_as(
    levels: Sequence[str], trained: Collection[str] | None = None
) -> tuple[list[int], int]:
    """Return as which of its levels each of a category counts, and a new one; -1: a missing value.

    `trained` are those that training had; None: all.
    """
    trained = levels if trained is None else trained
    rest = levels.index(RARE) if RARE in levels and RARE in trained else -1
    return [at if level in trained else rest for at, level in enumerate(levels)], rest


def check_names(
    where: str, names: Sequence[str], features: Sequence[str], recorded: Levels = None
) -> None:
    """Refuse columns whose names look like those of the model's that a table lacks, and are not.

    They would be left aside, as in training they would have been other features.

    Raises
    ------
    TableError
        If there is one; `where` begins the sentence.
    """
    raw = RawColumns.of(features, recorded)
    known, _ = known_columns_of(features, names, recorded)
    covered = {*known, *(name.partition("=")[0] for name in known)}
    lacking = {look(name): name for name in (*raw.numbers, *raw.categories) if name not in covered}
    others = (own for own in names if own not in known)
    pairs = [(own, lacking[look(own)]) for own in others if look(own) in lacking]
    if pairs:
        told = ", ".join(f"{own!r} for {name!r}" for own, name in pairs[:6])
        more = f" and {len(pairs) - 6} more" if len(pairs) > 6 else ""
        raise TableError(
            f"{where} has columns whose names look like the model's and are not ({told}{more}: "
            "case, blanks or letters of another alphabet); write them as in training, or leave "
            "them out of the table."
        )


@dataclass(frozen=True)
class RawColumns:
    """The columns of a table from which a model's features come, in the order of the features."""

    numbers: tuple[str, ...]
    categories: Mapping[str, tuple[str, ...]]  # column → its levels

    @classmethod
    def of(cls, features: Sequence[str], recorded: Levels = None) -> RawColumns:
        """Return those of features, of which "city=oslo" is the level oslo of the column city."""
        if recorded is not None:
            coded = {f"{name}={level}" for name, own in recorded.items() for level in own}
            numeric = tuple(feature for feature in features if feature not in coded)
            return cls(numeric, dict(recorded))
        numbers: list[str] = []
        levels: dict[str, list[str]] = {}
        every = set(features)
        for feature in features:
            name, equals, level = feature.partition("=")
            if equals and name and name not in every:
                levels.setdefault(name, []).append(level)
            else:
                numbers.append(feature)
        return cls(tuple(numbers), {name: tuple(own) for name, own in levels.items()})

    @property
    def features(self) -> tuple[str, ...]:
        """Return the features: first the numbers, then the levels of each category."""
        own = [f"{name}={level}" for name in self.categories for level in self.categories[name]]
        return (*self.numbers, *own)

    def order(self, features: Sequence[str]) -> NDArray[np.intp]:
        """Return where each of `self.features` stands among a model's features."""
        place = {name: at for at, name in enumerate(features)}
        return np.array([place[name] for name in self.features], np.intp)
