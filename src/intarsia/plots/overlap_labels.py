"""Write names of clients, feature blocks and classes into the picture of who holds what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray

from intarsia.core.block import Block, ClientId
from intarsia.core.schema import Holding
from intarsia.plots.style import DPI, INK

_LEAST = 9  # pixels of a bracket that has a name
_LETTER = 8.5  # pixels of a letter
_LONGEST = 14  # letters of a name
_MOST_CLASSES = 8  # that are named in one place


def blocks_of(holdings: Mapping[ClientId, Holding]) -> dict[str, str]:
    """Return the named feature block of each feature that is in one; the first name counts."""
    found: dict[str, str] = {}
    for client, held in holdings.items():
        for name, columns in held.groups.items():
            for column in columns if name != client else ():
                found.setdefault(str(column), name)
    return found


def classes_of(
    blocks: Mapping[ClientId, Block],
    classes: Sequence[str],
    samples: NDArray[np.generic],  # (samples,) in the picture's order
    cell_of: NDArray[np.intp],  # (samples,)
) -> dict[int, str]:
    """Return the classes of each cell of samples, where no class is in two cells; else nothing."""
    order = np.argsort(samples, kind="stable")
    held: dict[int, set[int]] = {}
    for block in blocks.values():
        if block.y is None or not classes:
            continue
        known = ~np.isnan(block.y)
        cells = cell_of[order[np.searchsorted(samples[order], block.samples[known])]]
        # of two classes, the first is stored as -1
        codes = np.maximum(block.y[known], 0).astype(int)
        for cell, code in np.unique(np.stack([cells, codes]), axis=1).T.tolist():
            held.setdefault(cell, set()).add(code)
    every = [code for some in held.values() for code in some]
    if len(every) > len(set(every)) or len(held) < 2:
        return {}
    return {
        cell: _together([classes[code] for code in sorted(some)]) for cell, some in held.items()
    }


def name_below(axes: Axes, names: Sequence[str | None]) -> float:
    """Write what each run of pixels is under it, None: nothing; return the depth in points."""
    depth = 0.0
    for name, start, stop in _runs(names):
        for edge in (start, stop):
            axes.plot(
                [edge - 0.5] * 2,
                [0, -0.012],
                color=INK,
                lw=0.8,
                clip_on=False,
                transform=axes.get_xaxis_transform(),
            )
        short = _short(name)
        upright = _LETTER * len(short) > stop - start
        depth = max(depth, 5.5 * len(short) if upright else 11.0)
        axes.text(
            (start + stop) / 2,
            -0.016,
            short,
            size=9,
            color=INK,
            ha="center",
            va="top",
            rotation=90 * upright,
            parse_math=False,
            transform=axes.get_xaxis_transform(),
        )
    return depth


def name_left(axes: Axes, names: Sequence[str | None]) -> None:
    """Write what each run of pixels is at the left of it; None: nothing."""
    for name, start, stop in _runs(names):
        axes.text(
            -0.006, (start + stop) / 2, name, size=9, color=INK, ha="right", va="center",
            parse_math=False, transform=axes.get_yaxis_transform(),
        )  # fmt: skip


def _runs(names: Sequence[str | None]) -> Iterator[tuple[str, int, int]]:
    at = 0
    for name, some in groupby(names):
        start, at = at, at + len(list(some))
        if name is not None and at - start >= _LEAST:
            yield name, start, at


def _together(names: Sequence[str]) -> str:
    shown = ", ".join(_short(name) for name in names[:_MOST_CLASSES])
    return shown if len(names) <= _MOST_CLASSES else f"{shown}, …"


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"


def write(axes: Axes, row: float, column: float, lines: Sequence[str], size: float) -> None:
    """Write lines that can be read on any colour, at a pixel."""
    axes.text(
        column,
        row,
        "\n".join(lines),
        size=size,
        color="white",
        ha="center",
        va="center",
        parse_math=False,
        path_effects=[withStroke(linewidth=0.18 * size, foreground=INK)],
    )


def font_size(lines: Sequence[str], width: int, height: int) -> float:
    """Return the size of letters, in points, at which lines fit into so many pixels."""
    pixels_per_point = DPI / 72
    across = 0.9 * width / (0.62 * pixels_per_point * max(map(len, lines)))
    down = height / (1.25 * pixels_per_point * len(lines))
    return min(11.0, across, down)
