"""Check that the clients' tables fit together before training.

The same for clients in one place and, as far as it is public, for sites.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.core.block import Array, Block, ClientId, Labels, sort_keys
from intarsia.core.schema import Schema
from intarsia.data.column import LARGEST
from intarsia.errors import ExperimentError, FederationError, TableError, listed, several
from intarsia.experiment.config import Experiment, Split
from intarsia.experiment.entity_alignment import Names
from intarsia.maths.linear import losses
from intarsia.privacy.entity_matching.normalisation import look
from intarsia.protocols.preprocessing.agreement import correct_labels, rounded_labels


def check_features(blocks: Mapping[ClientId, Block]) -> None:
    """Refuse clients that hold labels only, all of them."""
    if not any(block.features for block in blocks.values()):
        raise FederationError(
            f"No client has a feature column (clients: {listed(blocks)}); a model needs at least "
            "one: add a client with columns, or a column to features."
        )


def check_kinds(schema: Schema, sparse: Mapping[ClientId, bool], *, standardise: bool) -> None:
    """Refuse a feature that is sparse at one client and dense at another, where that matters.

    An absent entry is 0 in the one and missing in the other: only the dense one can be centred, and
    of rows that both hold they would not mean the same. `sparse` says whose tables are sparse.
    """
    for cell in schema.features.cells:
        dense = [name for name in cell.owners if not sparse[name]]
        if len(dense) in (0, len(cell.owners)):
            continue
        feature = str(schema.features.ids[cell.start])
        first = next(name for name in cell.owners if sparse[name])
        if standardise:
            raise FederationError(
                f"Feature {feature!r} is in a sparse table at client {first!r} and in a dense one "
                f"at client {dense[0]!r}, so that it cannot be standardised alike; give both one "
                "kind, or set standardise = false in [preprocessing]."
            )
        for owners in schema.samples.owner_sets:
            pair = next((name for name in dense if name in owners), None)
            other = next((name for name in cell.owners if sparse[name] and name in owners), None)
            if pair is not None and other is not None:
                raise FederationError(
                    f"Feature {feature!r} is in a sparse table at client {other!r} and in a dense "
                    f"one at client {pair!r}, which hold the same samples: an absent value is 0 in "
                    "the one and missing in the other; give both one kind."
                )


def check_forgotten_ids(parties: Mapping[ClientId, tuple[Sequence[str], str | None, bool]]) -> None:
    """Refuse a client without an id whose table has the others' id column, as a feature.

    `clients` are each one's feature columns, the column of its ids, and whether it has ids of its
    own making instead.
    """
    stated = {own: name for name, (_, own, _) in parties.items() if own is not None}
    for name, (columns, _, generated) in parties.items():
        column = next((one for one in columns if one in stated), None)
        if generated and column is not None:
            raise FederationError(
                f"Client {name!r} has no id, but its table has the column {column!r}, which is the "
                f"id of client {stated[column]!r}; set id to {column!r} at {name!r} too, or, if it "
                "is something else there, list it in exclude or rename it."
            )


def check_split_columns(
    columns: Mapping[ClientId, Sequence[str]], split_by: Mapping[ClientId, str | None]
) -> None:
    """Refuse a client that learns from the column by which another's rows are split.

    `columns` are each one's features.
    """
    stated = {column: name for name, column in split_by.items() if column is not None}
    for name, own in columns.items():
        column = next((one for one in own if one in stated), None)
        if column is not None and split_by.get(name) is None:
            raise FederationError(
                f"Client {name!r} has the feature {column!r}, by which the rows of client "
                f"{stated[column]!r} are split; set split_by to {column!r} at {name!r} too, or, if "
                "it is something else there, rename it."
            )


def check_evaluated(split: Split, rows: int) -> None:
    """Refuse a fold or a validation part without a row, at all clients together."""
    if rows or not split.evaluated[1]:
        return
    of = (
        f"fold {split.fold} of {split.folds}" if split.folds else f"validation {split.validation:g}"
    )
    raise ExperimentError(
        f"No training sample is in {of} of [split], of few rows or of few groups of split_by; set "
        f"{'folds lower' if split.folds else 'validation higher'}, or another salt."
    )


def check_parts(by: Collection[ClientId], parts: Sequence[Mapping[ClientId, NDArray[Any]]]) -> None:
    """Refuse rows that are in one part at a client and in another at a second one.

    `by` are the clients whose rows are split by groups; `parts` are the samples of each client, to
    train on, for early stopping and to test on.
    """
    clients = list(dict.fromkeys(name for part in parts for name in part))
    if not any(name in by for name in clients):
        return
    held = {n: np.concatenate([part[n] for part in parts if n in part]) for n in clients}
    grouped = np.concatenate([held[name] for name in clients if name in by])
    for name in clients:
        rows = 0 if name in by else int(np.isin(held[name], grouped).sum())
        if rows:
            raise FederationError(
                f"Client {name!r} has no split_by, and has {several(rows, 'row')} in common with "
                "clients whose rows are split by groups "
                f"({listed(one for one in clients if one in by)}), of which it cannot tell what is "
                "held out; set split_by there too, to a column with the same groups (add it to the "
                "table by the ids, where it lacks one), or to that of the ids, with a "
                "split_by_pattern that finds the group in them."
            )
    for one, other in combinations([part for part in parts if part], 2):
        first, second = (np.concatenate([*part.values()]) for part in (one, other))
        both = np.intersect1d(first, second)
        if len(both):
            a, b = (
                next(name for name, own in part.items() if np.isin(both[0], own))
                for part in (one, other)
            )
            raise FederationError(
                f"{several(len(both), 'row is', 'rows are')} in different parts of the split at "
                f"two clients, such as {a!r} and {b!r}: what rows are split by (split_by) is not "
                "the same there; write it alike, or declare how to by normalise in [alignment]."
            )


def check_names(columns: Mapping[ClientId, Sequence[str]]) -> None:
    """Refuse columns of two clients whose names look the same and are not.

    They would be two features. A client that has both tells them apart on purpose.
    """
    holders: dict[str, ClientId] = {}
    for client, own in columns.items():
        for name in own:
            holders.setdefault(name, client)
    alike: dict[str, list[str]] = {}
    for name in holders:
        alike.setdefault(look(name), []).append(name)
    several = [names for names in alike.values() if len(names) > 1]
    sets = [set(own) for own in columns.values()] if several else []
    wrong = [some for some in several if all(len(own.intersection(some)) < 2 for own in sets)]
    if wrong:
        pairs = [
            f"{one!r} at client {holders[one]!r} and {other!r} at client {holders[other]!r}"
            for one, other, *_ in wrong[:6]
        ]
        more = f" and {len(wrong) - 6} more" if len(wrong) > 6 else ""
        raise FederationError(
            f"Columns have names that look the same and are not ({', '.join(pairs)}{more}: case, "
            "blanks or letters of another alphabet), and would be two features; write them alike "
            "in the tables or by a dictionary ([alignment] dictionary), or rename one of two that "
            "are different."
        )


def check_label_values(
    experiment: Experiment, labels: Labels, client: ClientId, y: Array | None, *, rows: bool = True
) -> None:
    """Refuse numbers to predict that the loss is not for; see `losses.check_labels`.

    All may be too small: nothing is left of their squares.
    """
    size = 0.0 if y is None or labels.task != "regression" else np.nanmax(np.abs(y), initial=0.0)
    if size > LARGEST or 0 < size < 1 / LARGEST:
        raise TableError(
            f"The largest label {labels.name!r} of client {client!r} is {size:g} in size; expected "
            f"one from {1 / LARGEST:g} to {LARGEST:g}: multiply or divide the labels by a power of "
            "ten at every client."
        )
    loss = losses.LOSSES.get(str(experiment.hyperparameters.get("loss")))
    if loss is not None and labels.task == "regression":
        losses.check_labels(loss, y, f"client {client!r}", rows=rows)


def check_labels(parts: Iterable[Mapping[ClientId, Block]], own: Names, meaning: Labels) -> None:
    """Refuse labels of one sample that differ between clients, in any part of the rows."""
    held = [pair for blocks in parts for pair in blocks.items() if pair[1].y is not None]
    names = [name for name, _ in held]
    ids = np.concatenate([block.samples for _, block in held])
    labels = np.concatenate([np.asarray(block.y) for _, block in held])
    client = np.repeat(np.arange(len(held)), [len(block.samples) for _, block in held])
    known = ~np.isnan(labels)
    ids, labels, client = ids[known], labels[known], client[known]
    order = np.argsort(sort_keys(ids), kind="stable")
    ids, labels, client = ids[order], labels[order], client[order]
    rounded = rounded_labels(labels)
    unlike = (rounded[:, 1:] != rounded[:, :-1]).all(axis=0)
    wrong = np.flatnonzero((ids[1:] == ids[:-1]) & unlike)
    if len(wrong):
        first = wrong[0]
        holder = names[client[first]]
        raise FederationError(
            f"{several(len(wrong), 'sample has', 'samples have')} different labels at two clients "
            f"(first: sample "
            f"{own.id_of(holder, ids[first])!r} at {holder!r} and {names[client[first + 1]]!r}); "
            f"{correct_labels(meaning)}."
        )
