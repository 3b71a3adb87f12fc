"""What a site says of its table before the clients agree on an encoding, and after: public things.

These are the columns' names, kinds and units, the levels of categorical columns that enough rows
have, and the classes of the labels. No value of a numeric column is in it, and of labels that are
numbers to predict only that they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from hmac import compare_digest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.core.block import ClientId
from intarsia.core.schema import Holding
from intarsia.data.encoding import Encoding, encoding_of
from intarsia.data.labels import LabelColumn, LabelSettings
from intarsia.data.table import Category, Table
from intarsia.engines.remote.wire import PROTOCOL
from intarsia.errors import TableError, TamperedError, listed

_MANY = tuple(str(number + 0.5) for number in range(3))  # stand for labels that are many numbers


@dataclass(frozen=True)
class TableMetadata:
    """A table without its rows."""

    columns: tuple[str, ...]
    empty: tuple[str, ...]  # numeric columns without a value
    levels: Mapping[str, tuple[str, ...]]  # of the categorical ones
    label: str | None  # name of the label column
    numbers: bool  # whether labels are numbers
    classes: tuple[str, ...]  # labels that occur, as text
    whole_ids: bool
    generated: bool  # the ids were made from the client's name and the row
    sparse: bool  # whether an absent entry is 0, and not missing
    id: str | None  # the name of the column with the ids
    protocol: int  # of the site's version; another is refused
    weighted: bool = False  # whether rows have weights
    split_by: str | None = None  # the name of the column by which rows are held out; None: by ids
    # of each level, under a key that the server lacks; {}: the run has no keys
    proofs: Mapping[str, tuple[bytes, ...]] = field(default_factory=dict[str, tuple[bytes, ...]])
    key: bytes = b""  # the same where the shared key is; b"": the run has none
    # column -> its unit, where the site says one
    units: Mapping[str, str] = field(default_factory=dict[str, str])
    label_unit: str = ""


@dataclass(frozen=True)
class Held:
    """What a client holds, to train and to test on."""

    train: Holding
    test: Holding
    validation: Holding | None = None  # for early stopping; None: nothing is held out for it


def describe(
    table: Table,
    levels: Mapping[str, tuple[str, ...]],
    id: str | None,
    settings: LabelSettings,
    prove: Callable[[str, str], bytes] | None = None,
    split_by: str | None = None,
    key: bytes = b"",
) -> TableMetadata:
    """Return what is public about a table whose ids are in a column of some name.

    `levels` are those of its categorical columns that others may know. `prove` gives what shows to
    other clients that one of them sent a level of a column, and `key` shows whether they have one
    key. `split_by` is the name of the column that rows are split by.

    Raises
    ------
    TableError
        If the labels may tell single rows, as notes or names do, and are not the listed classes.
    """
    labels = table.labels
    numbers = False
    classes: tuple[str, ...] = ()
    if labels is not None:
        numbers = labels.values.dtype.kind == "f"
        if labels.telling and not set(_present(labels).tolist()) <= set(settings.named):
            raise TableError(
                f"label column {labels.name!r} {labels.telling}, and the server comes to know the "
                "classes",
                "name the column that has the labels, or list all classes in [labels]",
                where=f"Client {table.client!r}",
            )
        classes = _MANY if numbers and labels.to_predict else classes_of(labels)
    empty = [
        name
        for at, name in enumerate(table.numeric)
        if isinstance(table.values, np.ndarray) and bool(np.isnan(table.values[:, at]).all())
    ]
    return TableMetadata(
        table.columns,
        tuple(empty),
        levels,
        None if labels is None else labels.name,
        numbers,
        classes,
        table.samples.dtype.kind in "iu",
        table.generated,
        not isinstance(table.values, np.ndarray),
        id,
        PROTOCOL,
        table.weights is not None,
        split_by,
        {} if prove is None else _proofs(levels, prove),
        key,
        table.units,
        "" if labels is None else labels.unit,
    )


def classes_of(labels: LabelColumn) -> tuple[str, ...]:
    """Return the classes that a site tells of its labels, as text; none of numbers to predict."""
    if labels.values.dtype.kind == "f" and labels.to_predict:
        return ()
    return tuple(str(one) for one in _present(labels).tolist())


def _present(labels: LabelColumn) -> NDArray[Any]:
    """Return the labels that occur, each once, in ascending order."""
    own = labels.values
    return np.unique(own[~np.isnan(own) if own.dtype.kind == "f" else own != ""])


def agree(tables: Mapping[ClientId, TableMetadata], settings: LabelSettings) -> Encoding:
    """Return what the clients agree on; FederationError where their tables do not fit together."""
    found = encoding_of({client: _table(client, one) for client, one in tables.items()}, settings)
    known = {
        (column, level): proof
        for one in tables.values()
        for column, some in one.proofs.items()
        for level, proof in zip(one.levels.get(column, ()), some, strict=False)
    }
    # ids that were generated are text, and so are others beside them
    made = any(one.generated for one in tables.values())
    text_ids = made and any(one.whole_ids for one in tables.values())
    proofs = _proofs(found.levels, lambda *one: known.get(one, b""))
    return replace(found, proofs=proofs, text_ids=text_ids)


def check_keys(tables: Mapping[ClientId, TableMetadata]) -> None:
    """Raise where some clients have another shared key: their rows would be no others' rows.

    TamperedError, as where sums come that are sealed with another key.
    """
    having: dict[bytes, list[ClientId]] = {}
    for client, one in tables.items():
        if one.key:  # else it is of an earlier version
            having.setdefault(one.key, []).append(client)
    if len(having) > 1:
        most = max(having.values(), key=len)
        others = [client for some in having.values() if some is not most for client in some]
        raise TamperedError(
            f"Another shared key than at {listed(most)} is at {listed(others)}, whose rows have "
            "other pseudonyms and whose sums would be sealed with another key; let all compare "
            "what intarsia keys show prints, accept the newest key everywhere, and begin the run "
            "anew."
        )


def check_levels(encoding: Encoding, prove: Callable[[str, str], bytes]) -> None:
    """Refuse levels that no client sent: a site's rare ones would have columns of their own.

    TamperedError, with the column alone: a site's own level is no other than a server's guess.
    """
    for column, right in _proofs(encoding.levels, prove).items():
        told = encoding.proofs.get(column, ())
        if len(told) != len(right) or not all(map(compare_digest, told, right)):
            raise TamperedError(
                f"Column {column[:80]!r} has a level that no client with this site's shared key "
                "sent in this run; compare the fingerprints of the keys at all sites (intarsia "
                "keys show), or see who runs the server."
            )


def _proofs(
    levels: Mapping[str, tuple[str, ...]], prove: Callable[[str, str], bytes]
) -> dict[str, tuple[bytes, ...]]:
    return {column: tuple(prove(column, one) for one in some) for column, some in levels.items()}


def _table(client: ClientId, one: TableMetadata) -> Table:
    """Return a table of one row with the same columns."""
    numeric = [name for name in one.columns if name not in one.levels]
    values = np.array([[np.nan if name in one.empty else 0.0 for name in numeric]])
    none = np.array([-1], np.int32)
    labels = None
    if one.label is not None:
        kind = np.float64 if one.numbers else np.str_
        labels = LabelColumn(one.label, np.array(one.classes, kind), unit=one.label_unit)
    return Table(
        client,
        np.array([0]),
        one.columns,
        values,
        {name: Category(none, levels) for name, levels in one.levels.items()},
        labels,
        weights=np.ones(1) if one.weighted else None,
        units=one.units,
    )
