"""Deal one data set to simulated clients, by the kind of partition: grids, overlap, label skew.

Rows are dealt after a shuffle by the seed; columns stay in the data set's order, in contiguous
runs, unless `shuffle_columns`. A client is named by its row group and column group: "r0c0"; where
whole samples are dealt by their classes, by a number. An installed package adds kinds of its own:
functions as `grid`, of a data set and keyword arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, get_args

import numpy as np

from intarsia.core import plugins
from intarsia.core.block import Block, ClientId
from intarsia.data.dataset import Dataset
from intarsia.errors import ExperimentError, nearest
from intarsia.partition import checks
from intarsia.partition.by_feature_block import blocks
from intarsia.partition.client_clusters import Structure
from intarsia.partition.flower import FlowerDeal, flower
from intarsia.partition.label_skew import ClassShares, clusters, dirichlet, iid, levels
from intarsia.partition.prior_shift import prior_shift

LabelsAt = Literal["all", "first"]


def grid(
    dataset: Dataset,
    *,
    rows: int,
    columns: int,
    seed: int = 0,
    labels: LabelsAt = "all",
    shuffle_columns: bool = False,
) -> dict[ClientId, Block]:
    """Deal the data set to rows × columns clients that share no entry.

    Clients of one row group hold the same samples, clients of one column group the same features.
    Sizes differ by at most one. `labels` says who holds labels: "all" clients, or those of the
    "first" column group only.

    Raises
    ------
    ExperimentError
        If a number is out of range, or the labels are text.
    """
    return _grid(dataset, (rows, columns), (0.0, 0.0), seed, labels, shuffle_columns)


def horizontal(dataset: Dataset, *, clients: int, seed: int = 0) -> dict[ClientId, Block]:
    """Deal whole rows to clients: all features at each, no shared sample."""
    checks.check_count("clients", clients, dataset.shape[0], "samples")
    return _grid(dataset, (clients, 1), (0.0, 0.0), seed, "all", False)


def vertical(
    dataset: Dataset,
    *,
    clients: int,
    seed: int = 0,
    labels: LabelsAt = "all",
    shuffle_columns: bool = False,
) -> dict[ClientId, Block]:
    """Deal whole columns to clients: all samples at each, no shared feature.

    `labels="first"` is vertical federated learning with one label holder.
    """
    checks.check_count("clients", clients, dataset.shape[1], "features")
    return _grid(dataset, (1, clients), (0.0, 0.0), seed, labels, shuffle_columns)


def natural(
    dataset: Dataset, *, clients: int | None = None, seed: int = 0
) -> dict[ClientId, Block]:
    """Deal each sample to the client whose it is by nature.

    `clients` is how many take part, drawn from all; None: all, and nothing is drawn.

    Raises
    ------
    ExperimentError
        If the data set does not say whose its samples are, there are fewer clients than asked for,
        or the labels are text.
    """
    if dataset.clients is None:
        raise ExperimentError(
            f"The data set {dataset.name!r} does not say whose its samples are; deal them by "
            'kind = "horizontal".'
        )
    names = np.unique(dataset.clients)
    if clients is not None:
        checks.check_count("clients", clients, len(names), "those whose the samples are")
        names = np.sort(np.random.default_rng([seed, 0]).permutation(names)[:clients])
    y = checks.numbers(dataset)
    found: dict[ClientId, Block] = {}
    for name in names.tolist():
        rows = np.flatnonzero(dataset.clients == name)
        found[name] = checks.block_of(dataset, rows, y[rows])
    return found


def overlap(
    dataset: Dataset,
    *,
    rows: int,
    columns: int,
    shared_rows: float,
    shared_columns: float,
    seed: int = 0,
    labels: LabelsAt = "all",
    shuffle_columns: bool = False,
) -> dict[ClientId, Block]:
    """Deal the data set to a grid of clients whose neighbours share samples and features.

    The grid comes first: row group g owns a run of n_g shuffled rows. Then every row group also
    gets the first round(shared_rows · n_{g+1}) rows of the next group; the last group's next one
    is the first. So each pair of neighbours shares these rows, a row is held by at most two row
    groups, and 1.0 gives every row to exactly two. Columns likewise with `shared_columns`. With a
    single row (column) group there is no neighbour and nothing more is shared.

    The entries that two clients share are their common rows × their common columns:

    - same row group, neighbouring column groups: all its rows × the shared columns;
    - same column group, neighbouring row groups: the shared rows × all its columns;
    - diagonal neighbours: the shared rows × the shared columns.

    Both hold identical copies. With two row groups each is next to the other, so that they share
    the first part of both runs.

    Raises
    ------
    ExperimentError
        If a number is out of range, or the labels are text.
    """
    shared = (shared_rows, shared_columns)
    return _grid(dataset, (rows, columns), shared, seed, labels, shuffle_columns)


def _grid(
    dataset: Dataset,
    groups: tuple[int, int],  # of rows and of columns; the fractions that are shared likewise
    shared: tuple[float, float],
    seed: int,
    labels: LabelsAt,
    shuffle_columns: bool,
) -> dict[ClientId, Block]:
    samples, features = dataset.shape
    checks.check_count("rows", groups[0], samples, "samples")
    checks.check_count("columns", groups[1], features, "features")
    checks.check_fraction("shared_rows", shared[0])
    checks.check_fraction("shared_columns", shared[1])
    checks.check_word("labels", labels, get_args(LabelsAt))
    y = checks.numbers(dataset)
    # rows and columns have a stream each, so that a train and a test part get the same columns
    row_order = np.random.default_rng([seed, 0]).permutation(samples)
    column_order = np.arange(features)
    if shuffle_columns:
        column_order = np.random.default_rng([seed, 1]).permutation(features)
    column_groups = _groups(column_order, groups[1], shared[1])
    found: dict[ClientId, Block] = {}
    for r, rows in enumerate(_groups(row_order, groups[0], shared[0])):
        ids, targets = dataset.samples[rows], y[rows]  # once for all clients of the row group
        for c, columns in enumerate(column_groups):
            own = targets if labels == "all" or c == 0 else None
            found[f"r{r}c{c}"] = checks.block_of(dataset, rows, own, columns, ids)
    return found


def _groups(order: checks.Positions, number: int, shared: float) -> list[checks.Positions]:
    if number == 1:
        return [np.sort(order)]
    runs = np.array_split(order, number)
    groups = []
    for run, following in zip(runs, [*runs[1:], runs[0]], strict=True):
        # ascending, so that reading the table is sequential and column runs stay slices
        groups.append(np.sort(np.concatenate([run, following[: round(shared * len(following))]])))
    return groups


Parts = Dataset | Sequence[Dataset]


@dataclass(frozen=True)
class Deal:
    """How a data set is dealt: both its parts alike."""

    to_clients: Callable[[Parts], dict[ClientId, Block]]
    structure: Structure | None = None  # who is dealt alike; None: the kind says nothing of it


# kind -> (function, its keys in [partition]); `seed` comes from [experiment] unless given
KINDS: Mapping[str, tuple[Callable[..., Any], frozenset[str]]] = MappingProxyType(
    {
        function.__name__: (
            function,
            frozenset(plugins.keywords(function)),
        )
        for function in (
            *(blocks, clusters, dirichlet, flower, grid, horizontal, iid),
            *(levels, natural, overlap, prior_shift, vertical),
        )
    }
)
_PLANNED = frozenset({"clusters", "dirichlet", "flower", "iid", "levels"})


def partition_kinds() -> list[str]:
    """Return the kinds that `partition` knows, those of installed packages too."""
    return plugins.names("partition", KINDS)


def partition(kind: str, dataset: Parts, **keys: Any) -> dict[ClientId, Block]:
    """Deal a data set by the split of the given kind.

    Parameters
    ----------
    kind
        One of `partition_kinds()`.
    dataset
        With labels as numbers: encoded as in `Labels`, or a regression's targets. Several are for
        "prior_shift" only.
    keys
        The arguments of the function of that name.

    Raises
    ------
    ExperimentError
        If the kind or a key is unknown, a key is missing, or a value is out of range.
    """
    return deal(kind, dataset, **keys).to_clients(dataset)


def deal(kind: str, training: Parts, **keys: Any) -> Deal:
    """Return how to deal the training part of a data set, and the test part like it.

    Parameters
    ----------
    kind, keys
        As in `partition`.
    training
        The training part: its sizes decide what is possible.

    Raises
    ------
    ExperimentError
        If the kind or a key is unknown, a key is missing, a value is out of range, or a package's
        kind cannot be used.
    """
    function, plugin = function_of(kind)
    allowed = frozenset(plugins.keywords(function))
    if plugin is not None and "seed" not in allowed:
        keys.pop("seed", None)
    for key in keys:
        if key not in allowed:
            raise ExperimentError(
                f"[partition] of kind {kind!r} has no key {key!r}; {nearest(key, allowed)}."
            )
    for key in plugins.needed(function):
        if key not in keys:
            raise ExperimentError(
                f"[partition] of kind {kind!r} lacks the key {key!r}; "
                f"expected {', '.join(sorted(allowed))}."
            )
    if kind in _PLANNED:
        plan: ClassShares | FlowerDeal = function(_only(kind, training), **keys)
        return Deal(lambda part: plan.deal(_only(kind, part)), plan.structure)
    if function is prior_shift:
        return Deal(lambda part: prior_shift(part, **keys))
    if plugin is not None:
        return Deal(lambda part: plugin.checked(function(_only(kind, part), **keys), dict))
    return Deal(lambda part: function(_only(kind, part), **keys))


def function_of(kind: str) -> tuple[Callable[..., Any], plugins.Plugin | None]:
    """Return the function of a kind, and whose it is; None: of this package.

    ExperimentError if there is none of that name, or a package's cannot be used.
    """
    plugin = plugins.named("partition", kind, KINDS)
    if plugin is not None:
        found: Callable[..., Any] = plugin.load()
        return found, plugin
    if kind not in KINDS:
        known = partition_kinds()
        raise ExperimentError(f"[partition] has kind = {kind!r}; {nearest(kind, known)}.")
    return KINDS[kind][0], None


def _only(kind: str, dataset: Parts) -> Dataset:
    """Return the one data set that all kinds but one deal."""
    if isinstance(dataset, Dataset):
        return dataset
    if len(dataset) > 1:
        raise ExperimentError(
            f"[dataset] names {len(dataset)} data sets ({', '.join(one.name for one in dataset)}), "
            f'and [partition] of kind {kind!r} deals one; set kind = "prior_shift".'
        )
    return dataset[0]
