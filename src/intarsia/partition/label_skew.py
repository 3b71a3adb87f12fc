"""Deal samples with label skew: iid, Dirichlet shares of classes, clusters, levels of groups.

All features go to every client. A client gets a share of each of its classes, and the same share of
the training and of the test part, so that both have one distribution. With the shares comes the
true structure: who is dealt alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from intarsia.core.block import Array, Block, ClientId
from intarsia.data.dataset import Dataset
from intarsia.errors import ExperimentError
from intarsia.partition import checks
from intarsia.partition.client_clusters import Structure

Relabel = Literal["none", "pair", "all"]
Mask = NDArray[np.bool_]

_MOST_DRAWS = 1000
# Table C.1 of the paper: (number of classes, clusters of each level) -> classes of each cluster
_CLASSES: Final[Mapping[tuple[int, tuple[int, ...]], tuple[int, ...]]] = {
    (100, (2, 5, 9)): (19, 7, 3),
    (100, (3, 6, 11)): (14, 6, 2),
    (200, (4, 13, 21)): (20, 6, 2),
    (200, (9, 15, 22)): (9, 5, 2),
}


@dataclass(frozen=True, eq=False)
class ClassShares:
    """What share of each class each client gets, and what its samples are labelled as there."""

    structure: Structure  # its clients are those of the shares
    classes: Array  # (classes,) their labels in a data set
    shares: Array  # (clients, classes) columns add up to 1
    labels: Array  # (clients, classes) what each client calls them
    most: checks.Counts | None  # (clients,) most training samples; None: as many as there are
    seed: int

    def deal(self, dataset: Dataset) -> dict[ClientId, Block]:
        """Deal the training or the test part of a data set.

        Raises
        ------
        ExperimentError
            If the labels are text or no classes, or one is not among those of the shares.
        """
        y, _ = _labelled(dataset)
        unknown = y[~np.isin(y, self.classes)]
        if len(unknown):
            raise ExperimentError(
                f"{dataset.name!r} has samples of class {unknown[0]:g}, of which there were none "
                "when the shares were drawn; give both parts the same classes."
            )
        place = np.searchsorted(self.classes, y)
        tests = checks.is_test(dataset)
        shuffle = np.random.default_rng([self.seed, 10, tests])
        found: dict[ClientId, Block] = {}
        rows = checks.draw_rows(self.shares, place, shuffle)
        for at, (name, kept) in enumerate(zip(self.structure.clients, rows, strict=True)):
            if self.most is not None and not tests:
                kept = shuffle.permutation(kept)[: self.most[at]]
            kept = np.sort(kept)
            found[name] = checks.block_of(dataset, kept, self.labels[at][place[kept]])
        return found


def iid(
    dataset: Dataset, *, clients: int, samples: int | Sequence[int] | None = None, seed: int = 0
) -> ClassShares:
    """Give each client the same share of each class.

    Parameters
    ----------
    samples
        Most training samples of a client; or fewest and most, from which each draws its own.

    Raises
    ------
    ExperimentError
        If a value is out of range, or the labels are text or no classes.
    """
    structure = Structure(_names(dataset, clients), {"all": (0,) * clients})
    return _draw_shares(dataset, structure, None, math.inf, 1, samples, seed)


def dirichlet(
    dataset: Dataset,
    *,
    clients: int,
    alpha: float,
    minimum: int = 10,
    samples: int | Sequence[int] | None = None,
    seed: int = 0,
) -> ClassShares:
    """Draw the clients' shares of each class from a symmetric Dirichlet distribution.

    Parameters
    ----------
    alpha
        Its concentration, above 0: the smaller, the more a class is at few clients; `math.inf`:
        shares are equal.
    minimum
        Fewest training samples of a client: shares are drawn until all have as many.
    samples
        Most training samples of a client; or fewest and most, from which each draws its own.

    Notes
    -----
    Hsu, Qi and Brown (2019); Yurochkin et al. (2019). Each client is a group of its own.

    Raises
    ------
    ExperimentError
        If a value is out of range, no draw gives every client the minimum, or the labels are text
        or no classes.
    """
    structure = Structure(_names(dataset, clients), {"personal": tuple(range(clients))})
    return _draw_shares(dataset, structure, None, alpha, minimum, samples, seed)


def clusters(
    dataset: Dataset,
    *,
    clients: int,
    clusters: int,
    classes: int | None = None,
    relabel: Relabel = "none",
    alpha: float = 10.0,
    minimum: int = 1,
    samples: int | Sequence[int] | None = None,
    seed: int = 0,
) -> ClassShares:
    """Form clusters of clients that have the same classes, or the same names for them.

    Clusters are runs of clients, of one size up to one. Each class has as many clusters as any
    other, up to one, and all their clients share it.

    Parameters
    ----------
    classes
        How many of the classes each cluster has; None: all of them.
    relabel
        What each cluster calls its samples: "none", all the same; "pair", each confuses two classes
        of its own; "all", each has its own permutation of the classes.
    alpha, minimum, samples
        As in `dirichlet`.

    Notes
    -----
    "Multi-Level Additive Modeling for Structured Non-IID Federated Learning" (2024), section 5.1
    and appendix C, whose clusters have random sizes.

    Raises
    ------
    ExperimentError
        If a value is out of range, a class would be with nobody, clusters cannot have different
        names for the classes, no draw gives every client the minimum, or the labels are text or no
        classes.
    """
    names = _names(dataset, clients)
    _, codes, _ = checks.classes_of(dataset)
    checks.check_count("clusters", clusters, clients, "clients")
    group = checks.runs(clients, clusters)
    structure = Structure(names, {"clusters": tuple(group.tolist())})
    rng = np.random.default_rng([seed, 0])
    own = np.ones((clusters, len(codes)), bool)
    if classes is not None:
        checks.check_count("classes", classes, len(codes), "classes")
        if classes * clusters < len(codes):
            raise ExperimentError(
                f"The partition has {clusters} clusters with {classes} classes each, and "
                f"{dataset.name!r} has {len(codes)}, so that some would be with nobody; give more "
                "classes to each, or leave classes out by only in [dataset]."
            )
        own = checks.draw_classes(clusters, len(codes), classes, rng)
    labels = _relabel(relabel, clusters, codes, classes, rng)[group]
    return _draw_shares(dataset, structure, own[group], alpha, minimum, samples, seed, labels)


def levels(
    dataset: Dataset,
    *,
    clients: int,
    groups: Sequence[int],
    classes: Sequence[int] | None = None,
    alpha: float = 10.0,
    minimum: int = 1,
    samples: int | Sequence[int] | None = None,
    seed: int = 0,
) -> ClassShares:
    """Form groups of clients at several levels; each group of each level has classes of its own.

    A client has the classes of its group of every level. Groups are runs of clients, and a group of
    a level with fewer groups is a run of groups of the next one.

    Parameters
    ----------
    groups
        How many there are at each level, such as [3, 6, 11].
    classes
        How many classes each group of a level has; with the groups of the paper, None: those of its
        Table C.1.
    alpha, minimum, samples
        As in `dirichlet`.

    Notes
    -----
    "Multi-Level Additive Modeling for Structured Non-IID Federated Learning" (2024), section 5.1
    and Table C.1, whose groups have random sizes.

    Raises
    ------
    ExperimentError
        If a value is out of range, the classes do not add up to those of the data set, no draw
        gives every client the minimum, or the labels are text or no classes.
    """
    names = _names(dataset, clients)
    _, codes, _ = checks.classes_of(dataset)
    if not isinstance(groups, Sequence) or isinstance(groups, str) or not groups:
        raise ExperimentError(
            f"The partition has groups = {groups!r}; expected how many groups each level has, such "
            "as [3, 6, 11]."
        )
    for number in groups:
        checks.check_count("groups", number, clients, "clients")
    each = _classes_each(dataset, len(codes), tuple(groups), classes)
    member = _nested(clients, groups)
    order = np.random.default_rng([seed, 0]).permutation(len(codes))
    holders = np.zeros((clients, len(codes)), bool)
    start = 0
    for number, own, group in zip(groups, each, member, strict=True):
        for one in range(number):
            holders[np.ix_(group == one, order[start : start + own])] = True
            start += own
    structure = Structure(
        names, {f"level {at + 1}": tuple(group.tolist()) for at, group in enumerate(member)}
    )
    return _draw_shares(dataset, structure, holders, alpha, minimum, samples, seed)


def _names(dataset: Dataset, clients: int) -> tuple[ClientId, ...]:
    checks.check_count("clients", clients, dataset.shape[0], "samples")
    return tuple(checks.client_names(clients))


def _labelled(dataset: Dataset) -> tuple[Array, Array]:
    """Return the labels and the values of the classes, where every sample has a label."""
    y, codes, _ = checks.classes_of(dataset)
    unknown = int(np.isnan(y).sum())
    if unknown:
        raise ExperimentError(
            f"{unknown} samples of {dataset.name!r} have no label, and the partition deals "
            "classes; leave them out of the file."
        )
    return y, codes


def _nested(clients: int, groups: Sequence[int]) -> list[NDArray[np.intp]]:
    """Return each client's group at each level, (levels, clients)."""
    order = sorted(range(len(groups)), key=lambda level: -groups[level])
    found = {order[0]: checks.runs(clients, groups[order[0]])}
    for finer, coarser in pairwise(order):
        found[coarser] = checks.runs(groups[finer], groups[coarser])[found[finer]]
    return [found[level] for level in range(len(groups))]


def _classes_each(
    dataset: Dataset, known: int, groups: tuple[int, ...], classes: Sequence[int] | None
) -> tuple[int, ...]:
    """Return how many classes a group of each level has."""
    each = _CLASSES.get((known, groups)) if classes is None else tuple(classes)
    if each is None:
        raise ExperimentError(
            f"The partition has groups = {list(groups)}, whose classes the paper does not say for "
            f"{known}; set classes, how many each group of a level has: the products of the two "
            f"add up to {known}."
        )
    sound = all(isinstance(one, int) and not isinstance(one, bool) and one >= 1 for one in each)
    if not sound or len(each) != len(groups):
        raise ExperimentError(
            f"The partition has classes = {list(each)} and groups = {list(groups)}; expected a "
            "whole number of classes for each level, at least 1."
        )
    total = sum(number * own for number, own in zip(groups, each, strict=True))
    if total != known:
        raise ExperimentError(
            f"The partition has groups = {list(groups)} with classes = {list(each)}, which are "
            f"{total} classes, and {dataset.name!r} has {known}; the products add up to {known}."
        )
    return each


def _relabel(
    relabel: str, clusters: int, codes: Array, classes: int | None, rng: np.random.Generator
) -> Array:
    """Return what each cluster calls each class, (clusters, classes)."""
    checks.check_word("relabel", relabel, get_args(Relabel))
    found = np.tile(codes, (clusters, 1))
    if relabel == "none":
        return found
    if classes is not None:
        raise ExperimentError(
            f"The partition has relabel = {relabel!r} and classes = {classes}; clusters that call "
            "the classes differently have all of them: remove one of the two."
        )
    most = len(codes) // 2 if relabel == "pair" else math.factorial(min(len(codes), 20))
    if clusters > most:
        raise ExperimentError(
            f"The partition has {clusters} clusters with relabel = {relabel!r}, and {len(codes)} "
            f"classes have {most} different {'pairs' if relabel == 'pair' else 'permutations'}; "
            "use fewer clusters."
        )
    if relabel == "pair":
        pairs = rng.permutation(len(codes))[: 2 * clusters].reshape(-1, 2)
        for own, pair in zip(found, pairs, strict=True):
            own[pair] = own[pair[::-1]]
        return found
    taken: set[tuple[int, ...]] = set()
    for own in found:
        order = rng.permutation(len(codes))
        while tuple(order.tolist()) in taken:
            order = rng.permutation(len(codes))
        taken.add(tuple(order.tolist()))
        own[:] = codes[order]
    return found


def _draw_shares(
    dataset: Dataset,
    structure: Structure,
    holders: Mask | None,  # (clients, classes); None: all
    alpha: float,
    minimum: int,
    samples: int | Sequence[int] | None,
    seed: int,
    labels: Array | None = None,  # (clients, classes); None: as in the data set
) -> ClassShares:
    """Draw the shares of the classes among their holders."""
    number = isinstance(alpha, int | float | np.number) and not isinstance(alpha, bool)
    if not number or not alpha > 0:
        raise ExperimentError(
            f"The partition has alpha = {alpha!r}; expected a number above 0, such as 0.1, or inf "
            "for equal shares."
        )
    clients, total = len(structure.clients), len(dataset.samples)
    most = _most(samples, clients, total, seed)
    checks.check_count(
        "minimum", minimum, total // clients, f"samples for each of {clients} clients"
    )
    y, codes = _labelled(dataset)
    holders = np.ones((clients, len(codes)), bool) if holders is None else holders
    sizes = np.bincount(np.searchsorted(codes, y), minlength=len(codes))
    rng = np.random.default_rng([seed, 1])
    equal = math.isinf(alpha)
    least, draws = 0, 1 if equal else _MOST_DRAWS
    for _ in range(draws):
        shares = np.zeros(holders.shape)
        for at, some in enumerate(holders.T):
            own = int(some.sum())
            shares[some, at] = 1 / own if equal else rng.dirichlet(np.full(own, float(alpha)))
        least = max(least, int(checks.apportioned(shares, sizes).sum(axis=1).min()))
        if least >= minimum:
            named = np.tile(codes, (clients, 1)) if labels is None else labels
            return ClassShares(structure, codes, shares, named, most, seed)
    raise ExperimentError(
        f"Of {dataset.name!r} some client gets {least} training samples at best in {draws} "
        f"draws of the shares, and minimum = {minimum}; lower it, raise alpha, or deal to fewer "
        f"clients than {clients}."
    )


def _most(samples: Any, clients: int, total: int, seed: int) -> checks.Counts | None:
    """Return the most training samples of each client."""
    if samples is None:
        return None
    if isinstance(samples, Sequence) and not isinstance(samples, str):
        checks.check_range("samples", samples, 1, total)
        low, high = samples
        return np.random.default_rng([seed, 2]).integers(low, high + 1, clients)
    checks.check_count("samples", samples, total, "samples")
    return np.full(clients, samples, np.int64)
