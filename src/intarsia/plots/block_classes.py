"""Draw how many clients hold each feature block of each class.

The one of Zhang, Yin, Chen and Hong (2024), Figures 11 and 12: what nobody holds is black.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.colors import LinearSegmentedColormap

from intarsia.inspection.overlap import BlockClasses
from intarsia.plots.style import INK, new_figure, rgb, save, write, write_heading

_NOBODY = "#16181d"
_FEW_TO_MANY = LinearSegmentedColormap.from_list("holders", ["#e7eef7", "#3b6fb6"])
_CELL = 0.34  # inches of a cell's side, where there is room
_WIDEST, _HIGHEST = 15.0, 12.0  # inches of all cells
_LEAST_FOR_NUMBERS = 0.13  # inches of a cell that a number fits into
_LETTER = 0.085  # inches of a letter of a name
_UPRIGHT = 6.4  # inches of all cells that are widened for upright names of classes
_LONGEST = 24  # characters of a name


def blocks_picture(held: BlockClasses, path: str | Path, *, title: str | None = None) -> Path:
    """Draw how many clients hold each feature block of each class as a PNG; return its path."""
    rows, columns = held.clients.shape
    names = [_short(name) for name in held.blocks]
    classes = [_short(name) for name in held.classes]
    longest = max(map(len, classes))
    side = (min(_CELL, _WIDEST / columns), min(_CELL, _HIGHEST / rows))
    upright = max(_CELL, 0.12 + _LETTER * longest)
    turned = longest > 2 and upright * columns > _UPRIGHT
    if upright * columns <= _UPRIGHT:
        side = (upright, side[1])
    left = 0.5 + _LETTER * max(map(len, names))
    below = 0.55 + 0.08 * longest * turned
    width, height = side[0] * columns, side[1] * rows
    above, right = 0.85, 0.35
    whole = (max(left + width + right, 7.2), above + height + below)
    figure = new_figure(whole)
    axes = figure.add_axes((left / whole[0], below / whole[1], width / whole[0], height / whole[1]))
    most = max(int(held.clients.max()), 1)
    colours = _FEW_TO_MANY(np.maximum(held.clients - 1, 0) / max(most - 1, 1))
    colours[held.clients == 0] = (*rgb(_NOBODY), 1)
    axes.imshow(colours, aspect="auto", interpolation="nearest")
    axes.spines[:].set_visible(False)
    axes.set_xticks(np.arange(-0.5, columns), minor=True)
    axes.set_yticks(np.arange(-0.5, rows), minor=True)
    axes.grid(which="minor", color="white", linewidth=1.2 if min(side) > 0.2 else 0.5)
    axes.tick_params(which="both", length=0)
    size = min(9.0, 60 * side[1])
    axes.set_yticks(np.arange(rows), names, fontsize=size, color=INK, parse_math=False)
    axes.set_xticks(
        np.arange(columns),
        classes,
        fontsize=min(9.0, 60 * side[0]),
        rotation=90 * turned,
        color=INK,
        parse_math=False,
    )
    axes.set_xlabel("class", fontsize=10, color=INK)
    if min(side) >= _LEAST_FOR_NUMBERS:
        for (row, column), count in np.ndenumerate(held.clients):
            dark = count == 0 or count > 1 + 0.55 * (most - 1)
            shade = "white" if dark else INK
            write(axes, column, row, str(count), min(9.0, 40 * min(side)), color=shade)
    heading = title or "How many clients hold each feature block of each class"
    write_heading(figure, 0.2 / whole[0], 1 - 0.3 / whole[1], heading, 12)
    nobody = int((held.clients == 0).sum())
    said = (
        f"{nobody:,} of {held.clients.size:,} pairs ({100 * held.unused:.2f} %) are with nobody "
        "(black)"
        if nobody
        else f"all {held.clients.size:,} pairs are with somebody"
    )
    figure.text(0.2 / whole[0], 1 - 0.58 / whole[1], said, size=9.5, color=INK)
    return save(figure, path)


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
