"""Which client holds which feature blocks and classes: the papers' assignments, and random ones.

Assignments are positions: of a block among the data set's blocks, of a class among its classes.

    table2-modelnet40-1   4 blocks, 40 classes: 4 clients, 3 blocks and 20 classes each
    table2-modelnet40-2   12 blocks, 40 classes: 8 clients, 6 blocks and 15 classes each
    table2-cifar10        12 blocks, 10 classes: 9 clients, 6 to 8 blocks and 5 classes each
    table3                4 blocks, 40 classes: 6 clients, 2 or 3 blocks (two common) and 25 classes
    table4                4 blocks, 10 classes: 6 clients, 2 or 3 blocks (two common) and 5 classes
    c3-herigraph          4 blocks, 9 classes: 6 clients, 2 blocks and 6 classes each
    workshop-4            4 blocks, 40 classes: 4 clients, 3 blocks and 30 classes each
    workshop-8            table2-modelnet40-2, under the workshop paper's name

Tables 2 to 4 and C.3 are those of Zhang, Yin, Hong and Chen (TMLR 2024), the others of their
workshop paper (2020). Table 4 gives its assignment whole, and table2-modelnet40-2 is that of the
authors' code, in which 58 of the 480 pairs of a block and a class (12.08 %) are with nobody, as the
papers say. Of the others the text gives the numbers above only, and which pairs are with nobody (in
Table 3 11 of 160, else none): they are filled in here so that these hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

__all__ = ["PATTERNS", "Held", "Pattern", "drawn"]

Positions = tuple[int, ...]


@dataclass(frozen=True)
class Held:
    """What one client holds, by position."""

    blocks: Positions
    classes: Positions


@dataclass(frozen=True)
class Pattern:
    """An assignment, and what a data set must have for it."""

    blocks: int
    classes: int
    clients: tuple[Held, ...]


def drawn(
    blocks: int,
    classes: int,
    *,
    clients: int,
    blocks_each: Sequence[int],
    classes_each: Sequence[int],
    common: Positions,
    seed: int,
) -> Pattern:
    """Return a random assignment in which no block and no class has many more holders than another.

    Parameters
    ----------
    blocks_each, classes_each
        Fewest and most that a client holds.
    common
        Blocks that all clients hold.
    """
    rng = np.random.default_rng([seed, 0])
    holders = [np.zeros(blocks, np.intp), np.zeros(classes, np.intp)]
    holders[0][list(common)] = -clients - 1  # taken first by all
    found = []
    for _ in range(clients):
        chosen = []
        for counts, (fewest, most) in zip(holders, (blocks_each, classes_each), strict=True):
            number = int(rng.integers(fewest, most + 1))
            # those with fewest holders so far, in random order
            taken = np.lexsort((rng.random(len(counts)), counts))[:number]
            counts[taken] += 1
            chosen.append(tuple(sorted(taken.tolist())))
        found.append(Held(*chosen))
    return Pattern(blocks, classes, tuple(found))


def _of(blocks: Sequence[str], classes: Sequence[Sequence[int]]) -> tuple[Held, ...]:
    """Return what clients hold; their blocks are written as base-12 digits."""
    return tuple(
        Held(tuple(int(one, 12) for one in some), tuple(own))
        for some, own in zip(blocks, classes, strict=True)
    )


def _modelnet40_1() -> Pattern:
    # each class is at two clients, which together have all blocks: the pairs take turns
    pairs = ((0, 1), (2, 3), (0, 2), (1, 3), (0, 3), (1, 2))
    classes = [[k for k in range(40) if client in pairs[k % 6]] for client in range(4)]
    return Pattern(4, 40, _of(["123", "023", "013", "012"], classes))


def _modelnet40_2() -> Pattern:
    classes = (
        (1, 2, 3, 4, 11, 15, 18, 21, 24, 26, 27, 30, 31, 37, 38),
        (0, 5, 12, 13, 17, 20, 21, 24, 25, 28, 29, 31, 33, 34, 35),
        (0, 3, 6, 10, 11, 15, 18, 22, 25, 26, 29, 30, 31, 32, 34),
        (6, 7, 8, 13, 14, 19, 20, 23, 25, 28, 29, 30, 31, 35, 36),
        (2, 7, 9, 11, 17, 18, 19, 22, 27, 28, 32, 33, 36, 38, 39),
        (1, 4, 8, 10, 13, 14, 15, 16, 18, 19, 23, 29, 31, 36, 38),
        (1, 4, 6, 7, 8, 9, 11, 17, 18, 20, 21, 24, 29, 33, 36),
        (2, 6, 7, 8, 9, 13, 14, 23, 25, 29, 30, 31, 34, 35, 39),
    )
    blocks = ("012345", "345678", "6789ab", "0129ab", "012678", "3459ab", "02468a", "13579b")
    return Pattern(12, 40, _of(blocks, classes))


def _cifar10() -> Pattern:
    classes = (
        *((1, 2, 4, 7, 8), (0, 3, 5, 6, 9), (0, 1, 3, 4, 8)),
        *((2, 5, 6, 7, 9), (0, 3, 5, 6, 7), (1, 2, 4, 8, 9)),
        *((0, 3, 6, 7, 8), (1, 2, 4, 5, 9), (2, 3, 4, 7, 8)),
    )
    blocks = (
        *("03589b", "124567a", "013467ab", "25689b", "013479a"),
        *("0123458a", "26789b", "03478ab", "01235689"),
    )
    return Pattern(12, 10, _of(blocks, classes))


def _table3() -> Pattern:
    # the second block misses classes 34 to 39, the fourth 0 to 4: 11 of 160 pairs
    starts = (0, 9, 15, 5, 25, 10)
    classes = [sorted(k % 40 for k in range(start, start + 25)) for start in starts]
    return Pattern(4, 40, _of(["012", "012", "023", "023", "02", "02"], classes))


def _table4() -> Pattern:
    classes = [range(5), range(5, 10)] * 3
    return Pattern(4, 10, _of(["012", "012", "023", "023", "02", "02"], classes))


def _herigraph() -> Pattern:
    # clients m and m + 3 have different blocks and lack the same classes
    classes = [[k for k in range(9) if k // 3 != client % 3] for client in range(6)]
    return Pattern(4, 9, _of(["01", "02", "03", "23", "13", "12"], classes))


def _workshop_4() -> Pattern:
    classes = [[k for k in range(40) if k % 4 != client] for client in range(4)]
    return Pattern(4, 40, _of(["123", "023", "013", "012"], classes))


PATTERNS: Mapping[str, Pattern] = MappingProxyType(
    {
        "c3-herigraph": _herigraph(),
        "table2-cifar10": _cifar10(),
        "table2-modelnet40-1": _modelnet40_1(),
        "table2-modelnet40-2": _modelnet40_2(),
        "table3": _table3(),
        "table4": _table4(),
        "workshop-4": _workshop_4(),
        "workshop-8": _modelnet40_2(),
    }
)
