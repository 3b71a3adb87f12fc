"""Encode the clients' tables as blocks: one-hot levels and labels that all of them agree on.

A `Table` is what one party's source says. What all parties must agree on before numbers can be
compared (which levels a categorical column has, which class is +1) is an `Encoding`; it is public.

Rules: a categorical value that is missing is missing in all its one-hot columns; a column that is
missing in every row is kept, of the kind that it has at the other parties; a constant column is
kept; a label that is missing makes a sample without a label; where one party's ids were generated
(its rows belong to it alone), all ids become text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.core.block import Array, Block, ClientId, Labels, Values
from intarsia.data.labels import LabelColumn, LabelSettings, encode_labels, meaning
from intarsia.data.parsing import ascending
from intarsia.errors import ExperimentError, FederationError, TableError


@dataclass(frozen=True, eq=False)
class Category:
    """A column of text with few different values."""

    codes: NDArray[np.int32]  # (samples,) position in levels, -1 where missing
    levels: tuple[str, ...]  # ascending


@dataclass(frozen=True, eq=False)
class Table:
    """One party's table as its source says it, before the parties agree on an `Encoding`."""

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

    @property
    def numeric(self) -> tuple[str, ...]:
        """Return the names of the columns of `values`."""
        return tuple(name for name in self.columns if name not in self.categorical)


@dataclass(frozen=True)
class Encoding:
    """What all parties agree on before their tables become numbers; public."""

    levels: Mapping[str, tuple[str, ...]]  # categorical column -> its levels at any party
    labels: Labels
    codes: Mapping[str, float] = field(default_factory=dict[str, float])  # class -> stored value


def encoding_of(
    tables: Mapping[ClientId, Table], settings: LabelSettings | None = None
) -> Encoding:
    """Return what the parties agree on: the union of levels, and what the labels mean.

    Raises
    ------
    FederationError
        If a column is categorical at one party and numeric at another, nobody has a label, or the
        labels do not fit the task.
    """
    if not tables:
        raise FederationError("There is no client; describe at least one table.")
    holders: dict[str, ClientId] = {}
    levels: dict[str, set[str]] = {}
    for client, table in tables.items():
        for column, category in table.categorical.items():
            levels.setdefault(column, set()).update(category.levels)
            holders.setdefault(column, client)
    for client, table in tables.items():
        for position, column in enumerate(table.numeric):
            if column in levels and not _empty(table, position):
                raise FederationError(
                    f"Column {column!r} is categorical at client {holders[column]!r} (first level: "
                    f"{min(levels[column], default='')!r}) but numeric at client {client!r}; list "
                    "it in categorical at both, or correct the values of one."
                )
    labelled = {name: table.labels for name, table in tables.items() if table.labels is not None}
    labels, codes = meaning(labelled, settings or LabelSettings(), tables)
    return Encoding({name: ascending(some) for name, some in levels.items()}, labels, codes)


def encode(table: Table, encoding: Encoding) -> Block:
    """Return a party's block; a level that the encoding does not know counts as missing.

    Raises
    ------
    TableError
        If a label is not one of the classes, or two columns get the same name.
    """
    expanded = {c: encoding.levels[c] for c in table.columns if c in encoding.levels}
    for column, category in table.categorical.items():
        if column not in expanded:
            raise TableError(
                f"Client {table.client!r}: column {column!r} is categorical (first level: "
                f"{category.levels[0]!r}) but numeric elsewhere; correct its values or leave it "
                "out."
            )
    for position, column in enumerate(table.numeric):
        if column in expanded and not _empty(table, position):
            raise TableError(
                f"Client {table.client!r}: column {column!r} is numeric but categorical elsewhere "
                f"(first level: {expanded[column][0]!r}); list it in categorical or correct its "
                "values."
            )
    features: dict[str, tuple[str, ...]] = {
        column: tuple(f"{column}={level}" for level in expanded[column])
        if column in expanded
        else (column,)
        for column in table.columns
    }
    groups = {
        name: tuple(feature for column in columns for feature in features[column])
        for name, columns in table.groups.items()
    }
    return Block(
        table.samples,
        tuple(name for names in features.values() for name in names),
        _one_hot(table, features, expanded) if expanded else table.values,
        None
        if table.labels is None
        else encode_labels(table.labels, table.client, encoding.labels, encoding.codes),
        groups,
        shapes=table.shapes,
    )


def assemble(
    tables: Mapping[ClientId, Table], settings: LabelSettings | None = None
) -> tuple[dict[ClientId, Block], Labels]:
    """Return every party's block, and what the labels mean.

    Raises
    ------
    FederationError
        If the tables do not fit together: kinds of a column, kinds of ids, labels.
    """
    tables = _same_ids(tables)
    encoding = encoding_of(tables, settings)
    return {client: encode(table, encoding) for client, table in tables.items()}, encoding.labels


def split(
    block: Block, test: float = 0.2, salt: str = "", ids: NDArray[Any] | None = None
) -> tuple[Block, Block]:
    """Return the train and the test part of a block; all parties decide alike without talking.

    A sample is in the test part if the keyed hash of its id, as a fraction of all hashes, is below
    `test`. With `ids`, the test part is exactly the samples with these ids.

    Raises
    ------
    ExperimentError
        If `test` is not in [0, 1).
    TableError
        If no row is left to train on.
    """
    if not 0 <= test < 1:
        raise ExperimentError(
            f"[split] test is {test}; expected a fraction of at least 0 and below 1: set e.g. 0.2."
        )
    if ids is not None:
        ids = np.asarray(ids)
        if ids.dtype.kind in "iu" and block.samples.dtype.kind not in "iu":
            ids = ids.astype(np.str_)  # whole numbers become text beside generated ids
        chosen = np.isin(block.samples, ids)
    elif test > 0:
        key = hashlib.blake2b(salt.encode()).digest()
        chosen = np.array([_fraction(one, key) < test for one in block.samples.tolist()], bool)
    else:
        chosen = np.zeros(len(block.samples), bool)
    if len(chosen) and chosen.all():
        raise TableError(
            f"All {len(chosen)} rows of a block fall into the test part; no row is left to train "
            "on: set test lower or change salt in [split]."
        )
    if not chosen.any():
        return block, block.take(np.flatnonzero(chosen))
    return block.take(np.flatnonzero(~chosen)), block.take(np.flatnonzero(chosen))


def _fraction(sample: Any, key: bytes) -> float:
    content = sample if isinstance(sample, bytes) else str(sample).encode()  # bytes: a pseudonym
    digest = hashlib.blake2b(content, key=key, digest_size=7).digest()  # exact in a float
    return int.from_bytes(digest, "big") / 2**56


def _empty(table: Table, position: int) -> bool:
    if not isinstance(table.values, np.ndarray):
        return False
    return bool(np.isnan(table.values[:, position]).all())


def _one_hot(
    table: Table,
    features: Mapping[str, tuple[str, ...]],
    expanded: Mapping[str, tuple[str, ...]],
) -> Array:
    x = np.zeros((len(table.samples), sum(map(len, features.values()))))
    numeric = {name: position for position, name in enumerate(table.numeric)}
    start = 0
    for column in table.columns:
        stop = start + len(features[column])
        if column not in expanded:
            x[:, start] = table.values[:, numeric[column]]
        elif column not in table.categorical:  # missing in every row
            x[:, start:stop] = np.nan
        else:
            category = table.categorical[column]
            place = {level: start + at for at, level in enumerate(expanded[column])}
            target = np.array([place.get(level, -1) for level in category.levels] + [-1], np.intp)
            where = target[category.codes]
            known = np.flatnonzero(where >= 0)
            x[known, where[known]] = 1.0
            x[where < 0, start:stop] = np.nan
        start = stop
    return x


def _same_ids(tables: Mapping[ClientId, Table]) -> dict[ClientId, Table]:
    """Return tables whose ids have one type.

    Ids that were generated are text and belong to one party alone, so the other parties' whole
    numbers become text beside them.
    """
    own = {client: table for client, table in tables.items() if not table.generated}
    whole = {client: table.samples.dtype.kind in "iu" for client, table in own.items()}
    if len(set(whole.values())) > 1:
        numbers = next(client for client, yes in whole.items() if yes)
        texts = next(client for client, yes in whole.items() if not yes)
        first = str(own[texts].samples[0])
        figures = all(one.isdecimal() for one in own[texts].samples.tolist())
        advice = f'set id_type = "text" at {numbers!r}, or write them alike in both tables'
        if figures and np.char.startswith(own[texts].samples, "0").any():
            advice = (
                'where zeros in front do not count, set normalise = ["zeros"] in [alignment] or '
                'id_type = "integer" at every client, else write them in both tables'
            )
        raise FederationError(
            f"Client {numbers!r} has whole numbers as sample ids (first: "
            f"{own[numbers].samples[0]}) but client {texts!r} has text (first: {first!r})",
            f"ids must have one type: {advice}",
            without_settings="ids must have one type: write them alike in all tables",
        )
    generated = [table.samples for table in tables.values() if table.generated]
    for client, table in own.items():
        if generated and not whole[client]:
            both = np.intersect1d(table.samples, np.concatenate(generated))
            if len(both):
                raise FederationError(
                    f"Client {client!r} has the sample id {str(both[0])!r}, which is also an id "
                    "that was generated for a client without an id column; rename that client."
                )
    if len(own) == len(tables) or not any(whole.values()):
        return dict(tables)
    return {
        client: replace(table, samples=table.samples.astype(np.str_)) if client in own else table
        for client, table in tables.items()
    }
