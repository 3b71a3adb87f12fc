"""Deal feature blocks and classes to clients: as in the papers, at random, or as listed.

Assignments are positions: of a block among the data set's blocks, of a class among its classes.

    table2-modelnet40-1   4 blocks, 40 classes: 4 clients, 3 blocks and 20 classes each
    table2-modelnet40-2   12 blocks, 40 classes: 8 clients, 6 blocks and 15 classes each
    table2-cifar10        12 blocks, 10 classes: 9 clients, 6 to 8 blocks and 5 classes each
    table3                4 blocks, 40 classes: 6 clients, 2 or 3 blocks (two common) and 25 classes
    table4                4 blocks, 10 classes: 6 clients, 2 or 3 blocks (two common) and 5 classes
    c3-herigraph          4 blocks, 9 classes: 6 clients, 2 blocks and 6 classes each
    workshop-4            4 blocks, 40 classes: 4 clients, 3 blocks and 30 classes each
    workshop-8            table2-modelnet40-2, under the workshop paper's name

Tables 2 to 4 and C.3 are those of Zhang, Yin, Chen and Hong (TMLR 2024), the others of their
workshop paper (2020). Table 4 gives its assignment whole, and table2-modelnet40-2 is that of the
authors' code, in which 58 of the 480 pairs of a block and a class (12.08 %) are with nobody, as the
papers say. Of the others the text gives the numbers above only, and which pairs are with nobody (in
Table 3 11 of 160, else none): they are filled in here so that these hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal, get_args

import numpy as np

from intarsia.core.block import Array, Block, ClientId
from intarsia.data.dataset import Dataset
from intarsia.errors import ExperimentError, listed, nearest
from intarsia.partition import checks

Numbers = tuple[int, ...]


@dataclass(frozen=True)
class Held:
    """What one client holds, by position."""

    blocks: Numbers
    classes: Numbers


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
    common: Numbers,
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
            taken = checks.fewest_first(counts, rng)[:number]
            counts[taken] += 1
            chosen.append(tuple(sorted(taken.tolist())))
        found.append(Held(*chosen))
    return Pattern(blocks, classes, tuple(found))


def _pattern(
    blocks: int, classes: int, blocks_held: Sequence[str], classes_held: Sequence[Sequence[int]]
) -> Pattern:
    """Return an assignment; the clients' blocks are written as base-12 digits."""
    held = zip(blocks_held, classes_held, strict=True)
    clients = (Held(tuple(int(one, 12) for one in some), tuple(own)) for some, own in held)
    return Pattern(blocks, classes, tuple(clients))


_LACK_ONE = ("123", "023", "013", "012")  # of four blocks each client lacks its own
_TWO_COMMON = ("012", "012", "023", "023", "02", "02")
# each class is at two clients, which together have all blocks: the pairs take turns
_PAIRS = ((0, 1), (2, 3), (0, 2), (1, 3), (0, 3), (1, 2))
_MODELNET40_2 = _pattern(
    12,
    40,
    ("012345", "345678", "6789ab", "0129ab", "012678", "3459ab", "02468a", "13579b"),
    (
        (1, 2, 3, 4, 11, 15, 18, 21, 24, 26, 27, 30, 31, 37, 38),
        (0, 5, 12, 13, 17, 20, 21, 24, 25, 28, 29, 31, 33, 34, 35),
        (0, 3, 6, 10, 11, 15, 18, 22, 25, 26, 29, 30, 31, 32, 34),
        (6, 7, 8, 13, 14, 19, 20, 23, 25, 28, 29, 30, 31, 35, 36),
        (2, 7, 9, 11, 17, 18, 19, 22, 27, 28, 32, 33, 36, 38, 39),
        (1, 4, 8, 10, 13, 14, 15, 16, 18, 19, 23, 29, 31, 36, 38),
        (1, 4, 6, 7, 8, 9, 11, 17, 18, 20, 21, 24, 29, 33, 36),
        (2, 6, 7, 8, 9, 13, 14, 23, 25, 29, 30, 31, 34, 35, 39),
    ),
)
PATTERNS: Mapping[str, Pattern] = MappingProxyType(
    {
        # clients m and m + 3 have different blocks and lack the same classes
        "c3-herigraph": _pattern(
            4,
            9,
            ("01", "02", "03", "23", "13", "12"),
            [[k for k in range(9) if k // 3 != client % 3] for client in range(6)],
        ),
        "table2-cifar10": _pattern(
            12,
            10,
            (
                *("03589b", "124567a", "013467ab", "25689b", "013479a"),
                *("0123458a", "26789b", "03478ab", "01235689"),
            ),
            (
                *((1, 2, 4, 7, 8), (0, 3, 5, 6, 9), (0, 1, 3, 4, 8)),
                *((2, 5, 6, 7, 9), (0, 3, 5, 6, 7), (1, 2, 4, 8, 9)),
                *((0, 3, 6, 7, 8), (1, 2, 4, 5, 9), (2, 3, 4, 7, 8)),
            ),
        ),
        "table2-modelnet40-1": _pattern(
            4, 40, _LACK_ONE, [[k for k in range(40) if m in _PAIRS[k % 6]] for m in range(4)]
        ),
        "table2-modelnet40-2": _MODELNET40_2,
        # the second block misses classes 34 to 39, the fourth 0 to 4: 11 of 160 pairs
        "table3": _pattern(
            4,
            40,
            _TWO_COMMON,
            [sorted(k % 40 for k in range(at, at + 25)) for at in (0, 9, 15, 5, 25, 10)],
        ),
        "table4": _pattern(4, 10, _TWO_COMMON, [range(5), range(5, 10)] * 3),
        "workshop-4": _pattern(
            4, 40, _LACK_ONE, [[k for k in range(40) if k % 4 != client] for client in range(4)]
        ),
        "workshop-8": _MODELNET40_2,
    }
)


SamplesAt = Literal["shared", "disjoint"]


def blocks(
    dataset: Dataset,
    *,
    pattern: str | None = None,
    clients: int | None = None,
    blocks: int | Sequence[int] | None = None,
    classes: int | Sequence[int] | None = None,
    common: Sequence[str] = (),
    client: Sequence[Mapping[str, Any]] = (),
    samples: SamplesAt = "shared",
    seed: int = 0,
) -> dict[ClientId, Block]:
    """Deal feature blocks and classes: each client has some of both.

    Which ones is said by a named `pattern`; or drawn, by `clients`, `blocks` and `classes`; or
    listed, a table for each `client`. A sample without any value in a block that a client holds is
    not at this client. Features in no block are at nobody. A test part goes to all clients whole,
    all classes of it, each with its own blocks.

    Parameters
    ----------
    pattern
        One of `PATTERNS`, or "centralised": one client with all, to compare with.
    clients, blocks, classes
        How many clients, and how many blocks and classes each of them holds: a number, or the
        fewest and the most.
    common
        Names of blocks that every client holds, where they are drawn.
    client
        Tables with `blocks` and `classes` (names), and optionally `name`.
    samples
        "shared": every client has all samples of its classes; "disjoint": those who hold a class
        share its samples equally.

    Notes
    -----
    Zhang, Yin, Chen and Hong (2024), section 4 and appendix C, whose clients share samples.

    Raises
    ------
    ExperimentError
        If the data set has no such blocks or classes, a client would have nothing, or a class is
        with nobody.
    """
    names = tuple(dataset.groups)
    if not names:
        raise ExperimentError(
            f"The data set {dataset.name!r} has no named feature blocks; set groups in [dataset] "
            '(or blocks = "quadrants", for images).'
        )
    checks.check_word("samples", samples, get_args(SamplesAt))
    y, codes, meaning = checks.classes_of(dataset)
    if (pattern is not None) + (clients is not None) + bool(client) != 1:
        raise ExperimentError(
            f"The partition of kind 'blocks' has pattern = {pattern!r}, clients = {clients!r} and "
            f"{len(client)} [[partition.client]]; expected exactly one of the three."
        )
    if clients is None and (blocks is not None or classes is not None or common):
        raise ExperimentError(
            f"The partition has blocks = {blocks!r}, classes = {classes!r} and common = "
            f"{common!r}, which are for clients that are drawn; set clients, or remove them."
        )
    if pattern is not None:
        holders = _by_pattern(dataset, pattern, names, meaning)
    elif clients is not None:
        holders = _by_draw(clients, blocks, classes, common, names, meaning, seed)
    else:
        holders = _by_list(client, names, meaning)
    _check_classes(holders, meaning)
    tests = checks.is_test(dataset)
    rows = _rows(dataset, y, codes, holders, meaning, samples, seed, tests=tests)
    return {
        name: _block(dataset, name, y, rows[name], [names[at] for at in held.blocks], tests=tests)
        for name, held in holders.items()
    }


def _by_pattern(
    dataset: Dataset, name: str, blocks: Sequence[str], classes: Sequence[str]
) -> dict[ClientId, Held]:
    if name == "centralised":
        return {"all": Held(tuple(range(len(blocks))), tuple(range(len(classes))))}
    if not isinstance(name, str) or name not in PATTERNS:
        known = ("centralised", *PATTERNS)
        raise ExperimentError(f"The partition has pattern = {name!r}; {nearest(str(name), known)}.")
    pattern = PATTERNS[name]
    if (pattern.blocks, pattern.classes) != (len(blocks), len(classes)):
        raise ExperimentError(
            f"The pattern {name!r} deals {pattern.blocks} blocks of {pattern.classes} classes, and "
            f"{dataset.name!r} has {len(blocks)} blocks ({listed(blocks)}) of {len(classes)} "
            "classes; set another pattern, or other blocks or classes (only) in [dataset]."
        )
    return _named(pattern.clients)


def _by_draw(
    clients: int,
    blocks: int | Sequence[int] | None,
    classes: int | Sequence[int] | None,
    common: Sequence[str],
    names: Sequence[str],
    meaning: Sequence[str],
    seed: int,
) -> dict[ClientId, Held]:
    checks.check_count("clients", clients, 10**6, "clients that can be simulated")
    if not isinstance(common, Sequence):
        raise ExperimentError(
            f"The partition has common = {common!r}; expected names of blocks, of {listed(names)}."
        )
    fixed = (common,) if isinstance(common, str) else tuple(common)
    places = tuple(_place(str(one), names, "common", "block") for one in fixed)
    pattern = drawn(
        len(names),
        len(meaning),
        clients=clients,
        blocks_each=_each("blocks", blocks, max(1, len(places)), len(names)),
        classes_each=_each("classes", classes, 1, len(meaning)),
        common=places,
        seed=seed,
    )
    return _named(pattern.clients)


def _each(key: str, value: int | Sequence[int] | None, least: int, most: int) -> tuple[int, int]:
    """Return the fewest and the most that each client holds."""
    if value is None:
        raise ExperimentError(
            f"The partition has clients but no {key}; set how many {key} each holds, from {least} "
            f"to {most}: a number, or the fewest and the most."
        )
    if isinstance(value, Sequence):
        checks.check_range(key, value, least, most)
        return value[0], value[1]
    checks.check_count(key, value, most, key)
    if value < least:
        raise ExperimentError(
            f"The partition has {key} = {value}; expected at least {least}, as many as all clients "
            "have in common."
        )
    return value, value


def _named(clients: Sequence[Held]) -> dict[ClientId, Held]:
    return dict(zip(checks.client_names(len(clients)), clients, strict=True))


def _by_list(
    clients: Sequence[Mapping[str, Any]], blocks: Sequence[str], classes: Sequence[str]
) -> dict[ClientId, Held]:
    found: dict[ClientId, Held] = {}
    known = ("name", "blocks", "classes")
    for number, (table, usual) in enumerate(
        zip(clients, checks.client_names(len(clients)), strict=True)
    ):
        if not isinstance(table, Mapping):
            raise ExperimentError(
                f"The partition has client = {clients!r}; expected tables [[partition.client]]."
            )
        for key in table:
            if key not in known:
                raise ExperimentError(
                    f"[[partition.client]] {number} has no key {key!r}; {nearest(key, known)}."
                )
        name = str(table.get("name", usual))
        if name in found:
            raise ExperimentError(
                f"Two [[partition.client]] have the name {name!r}; rename one of them."
            )
        held = []
        for key, what, names in (("blocks", "block", blocks), ("classes", "class", classes)):
            given = table.get(key, ())
            given = (given,) if isinstance(given, str) or not isinstance(given, Sequence) else given
            where = f"[[partition.client]] {name!r}"
            if not given:
                raise ExperimentError(
                    f"{where} has no {key}, so that it would hold nothing; give it some of "
                    f"{listed(names)}, or remove it."
                )
            places = {_place(str(one), names, f"{where} {key}", what) for one in given}
            held.append(tuple(sorted(places)))
        found[name] = Held(*held)
    return found


def _place(name: str, known: Sequence[str], where: str, what: str) -> int:
    """Return the position of a block or a class by its name."""
    if name not in known:
        raise ExperimentError(
            f"{where} names the {what} {name!r}, which the data set does not have; "
            f"{nearest(name, known)}."
        )
    return known.index(name)


def _check_classes(holders: Mapping[ClientId, Held], classes: Sequence[str]) -> None:
    held = {one for some in holders.values() for one in some.classes}
    nobody = [name for at, name in enumerate(classes) if at not in held]
    if nobody:
        raise ExperimentError(
            f"Nobody of {len(holders)} clients holds the class {listed(nobody)}, so that nothing "
            "could be learnt of it; give it to a client (deal more classes to each), or leave its "
            "samples out by only in [dataset]."
        )


def _rows(
    dataset: Dataset,
    y: Array,
    codes: Array,
    holders: Mapping[ClientId, Held],
    classes: Sequence[str],
    samples: SamplesAt,
    seed: int,
    *,
    tests: bool,
) -> dict[ClientId, checks.Positions]:
    """Return every client's rows; of a test part all."""
    if tests:
        return dict.fromkeys(holders, np.arange(len(y)))
    shuffle = np.random.default_rng([seed, 1])
    parts: dict[ClientId, list[checks.Positions]] = {name: [] for name in holders}
    for at, code in enumerate(codes.tolist()):
        rows = np.flatnonzero(y == code)
        some = [name for name, held in holders.items() if at in held.classes]
        if samples == "disjoint" and len(rows) < len(some):
            raise ExperimentError(
                f"The class {classes[at]!r} of {dataset.name!r} has {len(rows)} training samples "
                f'and {len(some)} clients that would share them; set samples = "shared", or give '
                "the class to fewer."
            )
        dealt = [rows] * len(some)
        if samples == "disjoint":
            dealt = np.array_split(shuffle.permutation(rows), len(some))
        for name, part in zip(some, dealt, strict=True):
            parts[name].append(part)
    return {name: np.sort(np.concatenate(some)) for name, some in parts.items()}


def _block(
    dataset: Dataset,
    name: ClientId,
    y: Array,
    rows: checks.Positions,
    held: list[str],
    *,
    tests: bool,
) -> Block:
    """Return a client's block: its rows that have values in all its feature blocks."""
    place = {feature: at for at, feature in enumerate(dataset.features)}
    own = [np.array([place[one] for one in dataset.groups[some]], np.intp) for some in held]
    columns = np.sort(np.concatenate(own))
    if dataset.x.dtype.kind == "f" and not (dataset.sparse and dataset.indicators is None):
        for some in own:  # one at a time: a block may be most of the data set
            x = dataset.x[rows][:, some] if dataset.sparse else dataset.x[np.ix_(rows, some)]
            rows = rows[~np.isnan(x.toarray() if dataset.sparse else x).all(axis=1)]
    if not len(rows) and not tests:
        raise ExperimentError(
            f"Client {name!r} would have no training sample: {dataset.name!r} has none of its "
            f"classes with values in {listed(held)}; give it other classes or blocks."
        )
    block = checks.block_of(dataset, rows, y[rows], columns)
    return replace(
        block, groups={some: block.groups[some] for some in block.groups if some in held}
    )
