"""Draw the clusters of clients at each level, as dealt and as learned.

The one of FeMAM (2024), Figures 4 and C.2: a row is a level and a cell a client; cells of one
colour in a row are one group, and a white cell has no part in the level. Black lines are where
neighbours are of different groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from numpy.typing import NDArray

from intarsia.errors import FederationError
from intarsia.partition.client_clusters import Structure, Structures
from intarsia.plots.style import (
    INK,
    Colour,
    distinct_colours,
    new_figure,
    rgb,
    save,
    write,
    write_heading,
)

Groups = tuple[int | None, ...]
Pixels = NDArray[np.float64]

_CELL = 0.26  # inches of a client's width, where there is room
_ROW = 0.42  # inches of a level's height
_WIDEST = 13.0  # inches of all cells
_MOST_NAMED = 60  # clients whose names are written
_LIGHTNESS = (0.47, 0.66, 0.57)  # of colours beyond the first
_ALL = "#c3cbd6"  # a group of all clients says nothing


def structure_picture(
    structures: Structures, path: str | Path, *, title: str | None = None
) -> Path:
    """Draw the true structure above the learned one as a PNG; return its path.

    A learned group has the colour of the true group with which it has most clients in common, at
    the true level that its level is most like. Beside each learned level stands how alike the two
    are (adjusted Rand index).

    Raises
    ------
    FederationError
        If there is neither a true nor a learned structure.
    """
    known = structures.truth or structures.learned
    if known is None or not known.clients:
        raise FederationError(
            "There is no structure to draw: the partition says nothing of who is dealt alike, and "
            "the algorithm finds no groups of clients."
        )
    truth = structures.truth
    learned = None if structures.learned is None else structures.learned.among(known.clients)
    panels = [(name, one) for name, one in (("as dealt", truth), ("as learned", learned)) if one]
    clients = len(known.clients)
    width = min(_CELL * clients, _WIDEST)
    named = clients <= _MOST_NAMED
    below = 0.25 + 0.075 * max(len(name) for name in known.clients) * named
    heights = [_ROW * max(len(one.levels), 1) for _, one in panels]
    found = structures.agreement
    matches = _matches(found)
    said = {
        (name, level): _said(groups, matches.get(level) if one is learned else None)
        for name, one in panels
        for level, groups in one.levels.items()
    }
    longest = max((len(one.said(level)) for _, one in panels for level in one.levels), default=0)
    left, above, between = max(1.15, 0.3 + 0.075 * longest), 0.95, 0.5
    right = 0.3 + 0.075 * max([len(text) for text in said.values()], default=0)
    whole = (
        left + max(width, 3.2) + right,
        above + sum(heights) + between * (len(panels) - 1) + below,
    )
    figure = new_figure(whole)
    top = whole[1] - above
    for (name, one), height in zip(panels, heights, strict=True):
        box = (left / whole[0], (top - height) / whole[1], width / whole[0], height / whole[1])
        axes = figure.add_axes(box)
        _draw(axes, one, truth, matches if one is learned else {})
        for row, level in enumerate(one.levels):
            beside = clients - 0.5 + 0.1 * clients / width
            write(axes, beside, row, said[name, level], 8.5, ha="left")
        axes.set_title(name, loc="left", fontsize=10, color=INK, pad=5)
        last = one is panels[-1][1]
        if last and named:
            axes.set_xticks(
                np.arange(clients),
                known.clients,
                rotation=90,
                fontsize=min(8.0, 55 * width / clients),
                color=INK,
                parse_math=False,
            )
        top -= height + between
    heading = title or f"Who belongs together: {clients} clients"
    write_heading(figure, 0.15 / whole[0], 1 - 0.34 / whole[1], heading, 13)
    return save(figure, path)


def _matches(found: Mapping[str, Mapping[str, float]]) -> dict[str, tuple[str, float]]:
    """Return the true level that each learned one is most like, and how much."""
    best: dict[str, tuple[str, float]] = {}
    for true_name, row in found.items():
        for name, index in row.items():
            if name not in best or index > best[name][1]:
                best[name] = (true_name, index)
    return best


def level_colours(
    structure: Structure, among: Structures | None = None
) -> dict[str, tuple[str | None, ...]]:
    """Return the colour of each client's group at each level, such as "#3b6fb6".

    `among` has the true structure, where groups are to have the colours of those that they are
    like. None: the client has no part in the level.
    """
    truth = None if among is None else among.truth
    matches = {} if among is None else _matches(among.agreement)
    return {
        name: tuple(None if one is None else to_hex(one) for one in colours)
        for name, colours in _colours(structure, truth, matches).items()
    }


def _colours(
    structure: Structure, truth: Structure | None, matches: Mapping[str, tuple[str, float]]
) -> dict[str, list[Colour | None]]:
    found: dict[str, list[Colour | None]] = {}
    for name, groups in structure.levels.items():
        colours = distinct_colours(len(set(groups) - {None}), _LIGHTNESS)
        number = _numbers(groups)
        if truth is not None and name in matches:
            model = truth.levels[matches[name][0]]
            number = _numbers_like(groups, model)
            colours = distinct_colours(
                max([*number.values(), *_numbers(model).values()], default=0) + 1, _LIGHTNESS
            )
        if len(set(groups)) == 1 and len(groups) > 1:
            colours = [rgb(_ALL)] * len(colours)
        found[name] = [None if one is None else colours[number[one]] for one in groups]
    return found


def _draw(
    axes: Axes,
    structure: Structure,
    truth: Structure | None,
    matches: Mapping[str, tuple[str, float]],
) -> None:
    clients, rows = len(structure.clients), len(structure.levels)
    pixels = np.ones((max(rows, 1), clients, 3))
    for row, colours in enumerate(_colours(structure, truth, matches).values()):
        for at, colour in enumerate(colours):
            if colour is not None:
                pixels[row, at] = colour
    axes.imshow(pixels, aspect="auto", interpolation="nearest")
    axes.set_xticks([])
    named = [structure.said(level) for level in structure.levels]
    axes.set_yticks(np.arange(rows), named, fontsize=9, color=INK, parse_math=False)
    axes.tick_params(length=0)
    for row, groups in enumerate(structure.levels.values()):
        for at in range(1, clients):
            if groups[at] != groups[at - 1]:
                axes.plot([at - 0.5] * 2, [row - 0.5, row + 0.5], color=INK, linewidth=1.3)
        if row:
            axes.plot([-0.5, clients - 0.5], [row - 0.5] * 2, color="white", linewidth=2.5)
    axes.set(xlim=(-0.5, clients - 0.5), ylim=(max(rows, 1) - 0.5, -0.5))
    if not rows:
        axes.text((clients - 1) / 2, 0, "no groups", ha="center", va="center", color=INK)


def _said(groups: Groups, match: tuple[str, float] | None) -> str:
    number = len(set(groups) - {None})
    if not number:
        return "nobody"
    said = f"{number} group{'' if number == 1 else 's'}"
    if None in groups:
        said += f", {groups.count(None)} without"
    if match is not None and len(set(groups)) > 1:
        said += f"; index {match[1]:.2f} with {match[0]}"
    return said


def _numbers(groups: Groups) -> dict[int, int]:
    """Return a colour's number for each group, in the order of the clients."""
    order = dict.fromkeys(group for group in groups if group is not None)
    return {group: at for at, group in enumerate(order)}


def _numbers_like(groups: Groups, model: Groups) -> dict[int, int]:
    """Return for each group the number of the group of a model that it has most in common with."""
    of_model = _numbers(model)
    common = Counter(
        (group, of_model[other])
        for group, other in zip(groups, model, strict=True)
        if group is not None and other is not None
    )
    found: dict[int, int] = {}
    for (group, number), _ in sorted(common.items(), key=lambda one: (-one[1], one[0])):
        if group not in found and number not in found.values():
            found[group] = number
    free = len(of_model)
    for group in _numbers(groups):
        if group not in found:
            found[group], free = free, free + 1
    return found
