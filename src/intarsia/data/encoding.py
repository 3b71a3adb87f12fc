"""Encode tables as numbers: one-hot columns of text and codes of labels, as all clients agree.

What all clients must agree on before numbers can be compared (which levels a categorical column
has, which class is +1) is an `Encoding`; it is public.

Rules: a level that few rows of a client have is "other", so that nobody else learns its name; a
categorical value that is missing is missing in all its one-hot columns, and of a category of many
levels it is none of them; a column that is
missing in every row is kept, of the kind that it has at the other clients; a constant column is
kept; a label that is missing makes a sample without a label; where one client's ids were generated
(its rows belong to it alone), all ids become text.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import combinations, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from intarsia.core.block import INTERCEPT, RARE, Array, Block, ClientId, Labels, taken
from intarsia.core.memory import Entries, made_like, pieces, slices
from intarsia.core.schema import Schema
from intarsia.data.labels import (
    LabelSettings,
    are_no_and_yes,
    encode_labels,
    meaning,
    no_and_yes,
    spelled_apart,
    with_weights,
)
from intarsia.data.parsing import ascending, same_unit
from intarsia.data.table import Table
from intarsia.errors import FederationError, TableError, listed
from intarsia.maths.one_hot import write_entries, write_rows

# A category of more levels is wide: its columns are scaled and not centred, as those of a sparse
# table, since centring would give every row a value for each level.
MOST_CENTRED = 20
# Numbers of a table, times the clients, up to which it is dense: kernels for sparse tables take a
# second more to compile at the first run.
_SMALL = 1_000_000
_MOST_WAYS = 4  # in which clients write the levels of a column, in a note
_MOST_COMPARED = 1000  # pairs of clients' levels, in a column
_MOST_READ = 500_000  # levels of these pairs: of wide categories fewer pairs are compared


@dataclass(frozen=True)
class Encoding:
    """What all clients agree on before their tables become numbers; public."""

    levels: Mapping[str, tuple[str, ...]]  # categorical column -> its levels at any client
    labels: Labels
    codes: Mapping[str, float] = field(default_factory=dict[str, float])  # class -> stored value
    # categorical column -> of each of its levels, that a client sent it; over sites with keys alone
    proofs: Mapping[str, tuple[bytes, ...]] = field(default_factory=dict[str, tuple[bytes, ...]])
    clients: int = 1  # how many there are
    text_ids: bool = False  # over sites: whole numbers as ids are text, beside generated ones


def encoding_of(
    tables: Mapping[ClientId, Table], settings: LabelSettings | None = None
) -> Encoding:
    """Return what the clients agree on: the union of levels, and what the labels mean.

    Raises
    ------
    FederationError
        If a column is categorical at one client and numeric at another, a column or the label is in
        other units at two clients (who says none has the others'), a column has the name of a
        level or of the constant, nobody has a label, or the labels do not fit the task.
    """
    if not tables:
        raise FederationError("There is no client; describe at least one table.")
    holders: dict[str, ClientId] = {}
    levels: dict[str, set[str]] = {}
    for client, table in tables.items():
        for column, category in table.categorical.items():
            levels.setdefault(column, set()).update(category.public_levels)
            holders.setdefault(column, client)
    for client, table in tables.items():
        for column in _clashing(table, levels):
            owner = holders[column]
            said = no_and_yes(tables[owner].categorical[column].public_levels)
            advice = "list it in categorical at both, or correct the values of one"
            if said is not None:
                advice = (
                    f"where 0 and 1 mean {said[0]!r} and {said[1]!r}, write them so in the table "
                    f"of {owner!r}, else list the column in categorical at both"
                )
            raise FederationError(
                f"Column {column!r} is categorical at client {owner!r} (first level: "
                f"{min(levels[column], default='')!r}) but numeric at client {client!r}; {advice}."
            )
    _check_features(tables, levels)
    _check_units(tables)
    labelled = {name: table.labels for name, table in tables.items() if table.labels is not None}
    settings = settings or LabelSettings()
    labels, codes = meaning(labelled, settings, tables)
    weighted = any(table.weights is not None for table in tables.values())
    labels = with_weights(labels, settings, weighted=weighted)
    ordered = {name: ascending(some) for name, some in levels.items()}
    return Encoding(ordered, labels, codes, clients=len(tables))


def _check_features(tables: Mapping[ClientId, Table], levels: Mapping[str, set[str]]) -> None:
    """Refuse columns of the name that a level of another one, or the constant, has in the model.

    Two clients with both would learn one weight for two things.
    """
    taken = {INTERCEPT: "the constant"}
    for column, own in levels.items():
        for level in own:
            called = f"the level {level!r} of the column {column!r}"
            if taken.setdefault(f"{column}={level}", called) != called:
                raise FederationError(
                    f"{called[0].upper()}{called[1:]} and {taken[f'{column}={level}']} are both "
                    f"called {f'{column}={level}'!r} in the model; rename one of the columns."
                )
    for client, table in tables.items():
        for column in table.columns:
            if column in taken and column not in levels:
                raise FederationError(
                    f"Column {column!r} of client {client!r} has the name of {taken[column]} in "
                    "the model, and both would have one weight; rename the column."
                )


def _check_units(tables: Mapping[ClientId, Table]) -> None:
    """Refuse a column, or labels, in other units at two clients."""
    seen: dict[str, tuple[ClientId, str]] = {}
    for client, table in tables.items():
        for column in table.columns:
            if (unit := table.units.get(column)) is None:
                continue
            other, first = seen.setdefault(column, (client, unit))
            if same_unit(first) != same_unit(unit):
                raise FederationError(
                    f"Feature {column!r} is in {first!r} at client {other!r} but in {unit!r} at "
                    f"client {client!r}; convert one of them, write one unit alike, or give the "
                    "feature a unit and a factor in a dictionary ([alignment] dictionary)."
                )
    labels: dict[str, str] = {}
    for client, table in tables.items():
        if table.labels is not None and table.labels.unit:
            stated = f"{table.labels.unit!r} at client {client!r}"
            labels.setdefault(same_unit(table.labels.unit), stated)
    if len(labels) > 1:
        raise FederationError(
            f"The label is in {' but in '.join(labels.values())}; write all labels in one unit in "
            "the tables."
        )


def encode(table: Table, encoding: Encoding, *, later: bool = False) -> Block:
    """Return a client's block; a level that the encoding lacks is "other" if it has that level.

    Where it has not, the level counts as missing. With `later` sparse values are `OneHotRows`,
    which are written once, when it is known in which order.

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
    for column in _clashing(table, expanded):
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
    x = _one_hot(table, features, expanded, encoding.clients) if expanded else table.values
    block = Block(
        table.samples,
        tuple(name for names in features.values() for name in names),
        x,
        stored_labels(table, encoding),
        groups,
        shapes=table.shapes,
        weights=table.weights,
        indicators=_indicators(table, features, expanded),
        levels=expanded,
        least_rows=_least_rows(table, features),
        # who read the numbers refused what is infinite
        checked=(x if isinstance(x, OneHotRows) else None, None),
    )
    return block if later else block.written()


def stored_labels(table: Table, encoding: Encoding) -> Array | None:
    """Return a client's labels as a `Block` has them, (samples,); None: it has none.

    TableError if one is not one of the classes.
    """
    if table.labels is None:
        return None
    return encode_labels(table.labels, table.client, encoding.labels, encoding.codes)


def _clashing(table: Table, categorical: Container[str]) -> Iterator[str]:
    """Yield the columns with numbers that are categorical elsewhere."""
    for position, column in enumerate(table.numeric):
        dense = isinstance(table.values, np.ndarray)
        if column in categorical and not (dense and np.isnan(table.values[:, position]).all()):
            yield column


def _indicators(
    table: Table, features: Mapping[str, tuple[str, ...]], expanded: Mapping[str, tuple[str, ...]]
) -> NDArray[np.intp] | None:
    """Return which wide category each feature is a level of, as a `Block` has it."""
    wide = [name for name in expanded if len(expanded[name]) > MOST_CENTRED]
    if not wide:
        return None
    number = {name: at for at, name in enumerate(wide, 1)}
    kinds = [number.get(name, 0) for name in table.columns]
    return np.repeat(kinds, [len(features[name]) for name in table.columns]).astype(np.intp)


def _least_rows(table: Table, features: Mapping[str, tuple[str, ...]]) -> NDArray[np.intp] | None:
    """Return how many rows must have what a feature says, as a `Block` has it."""
    own = [
        table.categorical[name].least_rows if name in table.categorical else table.least_rows
        for name in table.columns
    ]
    each = np.repeat(own, [len(features[name]) for name in table.columns]).astype(np.intp)
    return each if (each > 1).any() else None


def _one_hot(
    table: Table,
    features: Mapping[str, tuple[str, ...]],
    expanded: Mapping[str, tuple[str, ...]],
    clients: int,
) -> Array | OneHotRows:
    """Return the values with a column for each level: sparse if they are many and it is smaller."""
    rows, width = len(table.samples), sum(map(len, features.values()))
    wide = np.array([len(expanded.get(name, ())) > MOST_CENTRED for name in table.columns])
    sizes = np.array([len(features[name]) for name in table.columns])
    numeric = {name: position for position, name in enumerate(table.numeric)}
    place = {name: -1 - number for number, name in enumerate(expanded)}
    source = np.array([place.get(name, numeric.get(name, 0)) for name in table.columns])
    levels = np.stack([_levels(table, name, own) for name, own in expanded.items()])
    values, stored = np.ascontiguousarray(table.values), int(np.where(wide, 1, sizes).sum())
    dense = rows * width * max(clients, 1) <= _SMALL or stored * (8 + 4) >= width * 8
    if dense or rows * stored > np.iinfo(np.int32).max:
        x = made_like(table.values, (rows, width))
        write_rows(values, levels, source, np.cumsum(sizes), wide, x)
        return x
    return OneHotRows(values, levels, source, sizes, wide)


@dataclass(frozen=True, eq=False)
class OneHotRows:
    """The rows of a sparse table with a column for each level, before they are written as CSR.

    They take a fraction of the memory. A row has its level of a wide category, if there is one, and
    all of its other values.
    """

    values: Array  # (rows, numeric columns)
    levels: NDArray[np.int32]  # (categories, rows), -1 where there is none
    source: NDArray[np.intp]  # (columns,) the column of `values`, or -1 less the category
    sizes: NDArray[np.intp]  # (columns,) how many features each has
    wide: NDArray[np.bool_]  # (columns,) whether a row has its own level alone

    @property
    def shape(self) -> tuple[int, int]:
        """Return (rows, features)."""
        return len(self.values), int(self.sizes.sum())

    @cached_property
    def indptr(self) -> NDArray[Any]:
        """Return where the entries of each row begin and end, (rows + 1,)."""
        own = self.levels[-1 - self.source[self.wide]] >= 0
        return _summed(self.sizes[~self.wide].sum() + own.sum(axis=0))

    def take(self, rows: NDArray[np.intp]) -> OneHotRows:
        """Return some rows, by position."""
        levels = self.levels.take(rows, axis=1)
        return replace(self, values=taken(self.values, rows, None), levels=levels)

    def pieces(self) -> Iterator[tuple[slice, Entries]]:
        """Return all rows some at a time, each where the ones before were."""
        data, columns = np.zeros(0), np.zeros(0, np.int32)
        every, ends = np.arange(self.shape[1]), self.indptr
        for rows in slices(len(self.values), int(ends[-1])):
            size = ends[rows.stop] - ends[rows.start]
            if size > len(data):
                data, columns = np.empty(size), np.empty(size, np.int32)
            stops = self._write(every, (rows.start, rows.stop), data, columns)
            yield rows, Entries(data[:size], columns[:size], stops.astype(ends.dtype))

    def missing(self) -> NDArray[np.intp]:
        """Return how many rows lack a value of each feature, (features,)."""
        numbers = np.zeros(self.values.shape[1], np.intp)
        for _, own in pieces(self.values):
            numbers += np.isnan(own).sum(axis=0)
        levels = (self.levels < 0).sum(axis=1)
        # a category of the number -1 is the last one from the end
        return np.repeat(np.concatenate([numbers, levels[::-1]])[self.source], self.sizes)

    def written(self, columns: NDArray[np.intp] | None = None, *, ones: bool = False) -> csr_array:
        """Return all rows, with the features of some positions in their order (None: all).

        With `ones` there is a last feature, a constant 1, before they are chosen.
        """
        rows, width = self.shape
        kept = np.arange(width + ones) if columns is None else np.arange(width + ones)[columns]
        room = int(self.indptr[-1]) + ones * rows
        data, where = (made_like(self.values, (room,), kind) for kind in (np.float64, np.int32))
        ends = _summed(np.diff(self._write(kept, (0, rows), data, where)))
        return csr_array((data[: ends[-1]], where[: ends[-1]], ends), shape=(rows, len(kept)))

    def _write(
        self,
        kept: NDArray[np.intp],
        some: tuple[int, int],
        data: Array,
        columns: NDArray[np.int32],
    ) -> NDArray[np.int64]:
        """Write the entries of rows in an order of features; return where each row ends."""
        place = np.full(self.shape[1] + 1, -1, np.int32)
        place[kept] = np.arange(len(kept))
        starts = np.cumsum(self.sizes) - self.sizes
        own = np.repeat(self.source, self.sizes), np.repeat(starts, self.sizes)
        # last the constant: below all categories
        origins = np.append(own[0], -1 - len(self.levels))
        numbers = np.append(np.arange(self.shape[1]) - own[1], 0)
        there = (place >= 0) & ~np.append(np.repeat(self.wide, self.sizes), False)
        order = np.flatnonzero(there)[np.argsort(place[there])]
        fixed = origins[order], numbers[order], place[order]
        wide = -1 - self.source[self.wide], starts[self.wide]
        own_values = self.values, self.levels
        ends: NDArray[np.int64] = write_entries(
            *own_values, some, fixed, wide, place, data, columns
        )
        return ends


def _summed(sizes: NDArray[np.intp]) -> NDArray[Any]:
    """Return where rows of so many entries end, (rows + 1,), of 32 bits where they fit."""
    ends = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    return ends.astype(np.int32 if ends[-1] <= np.iinfo(np.int32).max else np.int64)


def _levels(table: Table, column: str, levels: Sequence[str]) -> NDArray[np.int32]:
    """Return which of the levels each row has, -1 where it has none, (samples,)."""
    if column not in table.categorical:  # missing in every row
        return np.full(len(table.samples), -1, np.int32)
    category = table.categorical[column]
    place = {level: at for at, level in enumerate(levels)}
    rest = place.get(RARE, -1)
    target = np.array([place.get(level, rest) for level in category.levels] + [-1], np.int32)
    return np.asarray(target[category.codes], np.int32)


def notes_on_levels(schema: Schema) -> tuple[str, ...]:
    """Return a note that names text columns whose levels are all too rare to be known."""
    levels = {
        column: own for held in schema.holdings.values() for column, own in held.levels.items()
    }
    lost = sorted(column for column, own in levels.items() if own == (RARE,))
    if not lost:
        return ()
    return (
        f"Every level of {listed(lost)} has fewer rows than least_rows, so that all are "
        f"{RARE!r} and nothing is learned from it; set least_rows lower, or leave the column out.",
    )


def notes_on_words(levels: Mapping[ClientId, Mapping[str, Collection[str]]]) -> tuple[str, ...]:
    """Return notes of categories that two clients seem to write in other words, or another case.

    `levels` are those of each client's categorical columns, as others may know them.
    """
    first: dict[str, dict[frozenset[str], ClientId]] = {}  # column -> levels -> who has them first
    for client, columns in levels.items():
        for column, some in columns.items():
            first.setdefault(column, {}).setdefault(frozenset({*some} - {RARE}), client)
    notes = []
    scales: dict[tuple[frozenset[str], ...], list[str]] = {}
    for column, clients in first.items():
        most = min(_MOST_COMPARED, max(1, _MOST_READ // max(1, *map(len, clients))))
        pairs = [*islice(combinations(filter(None, clients), 2), most)]
        pair = next((pair for pair in pairs if _in_other_words(*pair, clients)), None)
        if pair is None:
            for one, other in pairs:
                if len(one) == len(other) > 2 and one.isdisjoint(other):
                    scales.setdefault((one, other), []).append(column)
            continue
        apart = [own for own in islice(clients, most) if own and own not in pair]
        apart = [own for own in apart if all(_in_other_words(one, own, clients) for one in pair)]
        every = (*pair, *apart[: _MOST_WAYS - 2])
        told = [f"{listed(ascending(some), 3)} at {clients[some]!r}" for some in every]
        how = "where they differ in case alone, ignore_case"
        if all(map(are_no_and_yes, every)):
            how = "where they are no and yes, no_and_yes"
        notes.append(
            f"{column!r} has {', '.join(told[:-1])} and {told[-1]}, which count as different "
            f"levels. Where they mean the same, write them alike in these tables; {how} in the "
            "dictionary of [alignment] does so."
        )
    for both, asked in scales.items():
        if len(asked) > 1:  # one may have towns; two have the answers to one kind of question
            told = [f"{listed(ascending(some), 5)} at {first[asked[0]][some]!r}" for some in both]
            notes.append(
                f"{listed(asked, 5)} have {' and '.join(told)}, which count as different levels. "
                "Where they mean the same, write them alike in these tables."
            )
    return tuple(notes)


def _in_other_words(
    one: frozenset[str], other: frozenset[str], every_client: Collection[frozenset[str]]
) -> bool:
    """Return whether levels of two clients seem to be the same, written otherwise.

    Two of each are not where some client, of all, has one of both: it tells them apart.
    """
    if any(spelled_apart({"one": one, "other": other})):
        return True
    if len(one) == len(other) == 2 and one.isdisjoint(other):
        return not any(own & one and own & other for own in every_client)
    small = [{_plain(level) for level in some} for some in (one, other, one & other)]
    every = len(small[0]) == len(one) and len(small[1]) == len(other)  # else case tells apart
    return every and small[0] & small[1] != small[2]


@lru_cache(maxsize=1 << 16)
def _plain(level: str) -> str:
    """Return a level in small letters; of one with letters, as I21.0, neither marks nor blanks."""
    small = level.casefold()
    some = any(map(str.isalpha, small))
    return "".join(filter(str.isalnum, small)) or small if some else small


def notes_on_other(tables: Mapping[ClientId, Table], encoding: Encoding) -> tuple[str, ...]:
    """Return a note of how many levels and rows of each text column are known as "other"."""
    found = []
    for client, table in tables.items():
        for column, category in table.categorical.items():
            if RARE in (known := {*encoding.levels[column]}):
                count = np.bincount(
                    category.codes[category.codes >= 0], minlength=len(category.levels)
                )
                pairs = zip(category.levels, count.tolist(), strict=True)
                rare = [rows for level, rows in pairs if rows and level not in known]
                if rare:
                    levels = "1 level" if len(rare) == 1 else f"{len(rare):,} levels"
                    found.append(f"{column!r} of {client} ({levels}, {sum(rare):,} rows)")
    if not found:
        return ()
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    return (
        f"Levels of {', '.join(found[:5])}{more} have fewer rows than least_rows, and count as "
        f"{RARE!r}. Set least_rows = 1 if others may know their names. Rows of levels that fewer "
        "training rows of a client have count as missing.",
    )


def agreed(
    tables: Mapping[ClientId, Table], settings: LabelSettings | None = None
) -> tuple[dict[ClientId, Table], Encoding]:
    """Return the tables with ids of one type, and what their clients agree on.

    FederationError if the tables do not fit together: kinds of a column, kinds of ids, labels.
    """
    found = _same_ids(tables)
    return found, encoding_of(found, settings)


def assemble(
    tables: Mapping[ClientId, Table], settings: LabelSettings | None = None
) -> tuple[dict[ClientId, Block], Labels]:
    """Return every client's block, and what the labels mean; FederationError as of `agreed`."""
    found, encoding = agreed(tables, settings)
    return {client: encode(table, encoding) for client, table in found.items()}, encoding.labels


def _same_ids(tables: Mapping[ClientId, Table]) -> dict[ClientId, Table]:
    """Return tables whose ids have one type.

    Ids that were generated are text and belong to one client alone, so the other clients' whole
    numbers become text beside them.
    """
    own = {client: table for client, table in tables.items() if not table.generated}
    whole = {client: table.samples.dtype.kind in "iu" for client, table in own.items()}
    if len(set(whole.values())) > 1:
        numbers = next(client for client, yes in whole.items() if yes)
        texts = next(client for client, yes in whole.items() if not yes)
        named: list[str] = own[texts].samples.tolist()
        first = next((one for one in named if not one.isdecimal()), named[0])
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
