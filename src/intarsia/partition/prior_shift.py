"""Deal samples with prior shift: some classes for each client, in feature spaces of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.core.block import Array, Block, ClientId
from intarsia.data.dataset import Dataset
from intarsia.errors import ExperimentError
from intarsia.partition import checks


def prior_shift(
    dataset: Dataset | Sequence[Dataset],
    *,
    clients: int,
    classes: int,
    seed: int = 0,
    keep: Sequence[Any] = (1.0, 1.0),
    noise: Sequence[int] = (0, 0),
    mapping: Sequence[int] = (),
) -> dict[ClientId, Block]:
    """Deal samples to clients that hold some of the classes each, and features of their own.

    Each class has as many holders as any other, up to one, and they share its samples equally.
    Several data sets are dealt to clients of their own, which are as many for each set, up to one.

    Parameters
    ----------
    clients, classes
        How many there are, and how many of the classes each holds.
    keep
        Smallest and largest fraction of its samples that a client keeps, drawn uniformly; or a
        list of such pairs, of which each client draws one. A test part is kept as it is.
    noise
        Fewest and most columns of standard normal noise that a client's samples get.
    mapping
        Fewest and most columns that a client's samples are mapped to, by a matrix of standard
        normal numbers; empty: they stay as they are.

    Notes
    -----
    Rakotomamonjy et al. (2024), sections 6 and S3.1. With `noise` or `mapping` a client's columns
    have names of their own: nobody else knows what they are.

    Raises
    ------
    ExperimentError
        If a value is out of range, a class has fewer samples than holders, or labels are text.
    """
    sets = [dataset] if isinstance(dataset, Dataset) else list(dataset)
    checks.check_count("clients", clients, sum(one.shape[0] for one in sets), "samples")
    several = isinstance(keep, Sequence) and any(isinstance(one, Sequence) for one in keep)
    ranges = list(keep) if several else [keep]
    for one in ranges:
        checks.check_range("keep", one, 0, 1, whole=False)
    checks.check_range("noise", noise, 0, 10**6)
    if len(mapping):
        checks.check_range("mapping", mapping, 1, 10**6)
    found: dict[ClientId, Block] = {}
    sizes = [len(part) for part in np.array_split(np.arange(clients), len(sets))]
    for place, (one, size) in enumerate(zip(sets, sizes, strict=True)):
        y = checks.numbers(one)
        known = np.array(one.classes or np.unique(y).tolist())
        checks.check_count("classes", classes, len(known), "classes")
        deal = _Deal(one, (seed, place), ranges, tuple(noise), tuple(mapping))
        names = checks.client_names(size, "client" if len(sets) == 1 else one.name)
        rows = _deal_classes(deal, y, known, size, classes)
        for number, (name, own) in enumerate(zip(names, rows, strict=True)):
            found[name] = _own_block(deal, name, number, y, own)
    return found


@dataclass(frozen=True, eq=False)
class _Deal:
    """How one data set is dealt out by classes."""

    dataset: Dataset
    key: tuple[int, ...]  # seed, place among several sets
    keep: Sequence[Sequence[float]]
    noise: tuple[int, ...]
    mapping: tuple[int, ...]

    @property
    def tests(self) -> bool:
        """Return whether this is a test part."""
        return checks.is_test(self.dataset)

    def stream(self, *numbers: int) -> np.random.Generator:
        """Return random numbers for one purpose."""
        return np.random.default_rng([*self.key, *numbers])


def _deal_classes(
    deal: _Deal, y: Array, known: NDArray[Any], clients: int, each: int
) -> list[checks.Positions]:
    """Return every client's rows; train and test part have the same classes at each."""
    draw, shuffle = deal.stream(0), deal.stream(1, deal.tests)
    holders = checks.draw_classes(clients, len(known), each, draw)
    rows: list[list[checks.Positions]] = [[] for _ in range(clients)]
    for value, held in zip(known, holders.T, strict=True):
        some = np.flatnonzero(held).tolist()
        own = shuffle.permutation(np.flatnonzero(y == value))
        if some and len(own) < len(some) and not deal.tests:
            raise ExperimentError(
                f"Class {value:g} of {deal.dataset.name!r} has {len(own)} training samples and "
                f"{len(some)} of {clients} clients would hold some; deal to fewer clients, or "
                "fewer classes to each."
            )
        for client, part in zip(some, np.array_split(own, max(1, len(some))), strict=False):
            rows[client].append(part)
    return [np.sort(np.concatenate(parts)) for parts in rows]


def _own_block(deal: _Deal, name: ClientId, client: int, y: Array, rows: checks.Positions) -> Block:
    """Return a client's block, with what is its own of the samples and of the features."""
    dataset, space = deal.dataset, deal.stream(2, client)
    low, high = deal.keep[int(space.integers(len(deal.keep)))]
    share = space.uniform(low, high)  # drawn for a test part too, whose space is to be the same
    kept = len(rows) if deal.tests else max(1, round(share * len(rows)))
    own = deal.stream(3, client, deal.tests)
    rows = np.sort(own.permutation(rows)[:kept])
    width = dataset.shape[1]
    if dataset.sparse:
        x = dataset.x[rows].toarray().astype(np.float64) * dataset.scale
    else:
        x = checks.floats(dataset.x, rows, slice(0, width), width, dataset.scale)
    features = dataset.features
    if deal.mapping:
        columns = int(space.integers(deal.mapping[0], deal.mapping[1] + 1))
        x = x @ space.normal(size=(width, columns))
    added = int(space.integers(deal.noise[0], deal.noise[1] + 1))
    if added:
        x = np.concatenate([x, own.normal(size=(len(rows), added))], axis=1)
    if added or deal.mapping:
        features = tuple(f"{name}:{number}" for number in range(x.shape[1]))
    return Block(dataset.samples[rows], features, x, y[rows])
