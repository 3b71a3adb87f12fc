"""Draw which client holds which samples and features.

It is drawn from a `Schema` (public) or from the blocks themselves; only blocks can say which
values are missing, and nothing but fractions of them is shown.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray
from scipy import ndimage

from intarsia.core.block import Array, Block, ClientId
from intarsia.core.schema import Holding, Schema
from intarsia.inspection.overlap import Parties, holdings_of
from intarsia.plots.sides import (
    HEIGHT,
    WIDTH,
    Mask,
    Side,
    drawn_holdings,
    feature_side,
    missing_fractions,
    sample_side,
)
from intarsia.plots.style import (
    DPI,
    INK,
    add_legend,
    distinct_colours,
    new_figure,
    save,
    write,
    write_heading,
)

_SIZE = (12.5, 7.8)  # inches
_STRIP = 24  # painted pixels
_STRIPE = 8  # pixels
_AT_ONCE = 64  # rows of pixels that are coloured: more would take memory
_LEAST_JOINED = 6  # pixels of a band that has a white joint, which would cover a thinner one
_NOBODY = (0.935, 0.935, 0.93)
_MOST_IN_LEGEND = 16  # clients; beyond, the legend summarises
_LEGEND_LETTERS = 40  # beside the picture
_MOST_FEATURE_NAMES = 100
_MOST_PARTS = 150  # that each say whose they are
_LEAST_NAMED = 9  # pixels of a bracket that has a name
_LETTER = 8.5  # pixels of a letter
_LONGEST = 14  # letters of a name
_MOST_CLASSES = 8  # that are named in one place


def holdings_figure(
    parties: Parties,
    *,
    title: str | None = None,
    classes: Sequence[str] = (),
    which: str = "",
    missing: Mapping[ClientId, Array] | None = None,
) -> Figure:
    """Return the figure of who holds what.

    Rows are all samples, columns all features, ordered so that entries with the same owners lie
    together. Every client has a colour; entries of several clients are striped in theirs, missing
    values are pale, what nobody holds is grey. The strip beside it says who holds the labels.
    Parts too thin to be seen are drawn a little wider than to scale; of very many clients the
    first are drawn. Named feature blocks are written below, and of tables with values the `classes`
    at the left, where the same clients hold all of a class; then each part says whose it is.
    Title and legend say `which` samples these are, such as "training rows". `missing` is what
    `missing_fractions` found, where the blocks are not here; None: it is asked.

    Raises
    ------
    FederationError
        If there is no client, or ids are text at one client and numbers at another.
    """
    everyone, holdings = holdings_of(parties), drawn_holdings(parties)
    blocks = {} if isinstance(parties, Schema) else parties
    rows, columns = sample_side(holdings), feature_side(holdings)
    lacking = missing_fractions(blocks) if missing is None else missing
    pale = {number: lacking[name] for number, name in enumerate(holdings) if name in lacking}
    colours = np.array(distinct_colours(len(holdings)))
    # bytes, rounded as matplotlib does: of fractions it would copy eight times as much, and draw
    # in three times the time
    image, strip = (
        np.multiply(one, 255, out=one).astype(np.uint8)
        for one in _paint(rows, columns, colours, pale)
    )

    figure = new_figure(_SIZE)
    left, bottom = 0.055, 0.17
    width, height = WIDTH / DPI / _SIZE[0], HEIGHT / DPI / _SIZE[1]
    main = figure.add_axes((left, bottom, width, height))
    beside = figure.add_axes((left + width + 0.006, bottom, _STRIP / DPI / _SIZE[0], height))
    for axes, pixels in ((main, image), (beside, strip)):
        axes.imshow(pixels, aspect="auto", interpolation="nearest")
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
    beside.set_title("labels", fontsize=9, color=INK)
    in_rows = classes_of(blocks, classes, rows.ids, rows.cell_of)
    _name_left(main, [in_rows.get(cell) for cell in rows.cell_at.tolist()])
    in_blocks = blocks_of(holdings)
    main.set_ylabel(
        "class" if in_rows else f"{rows.entries:,} samples", fontsize=11, color=INK,
        labelpad=8 + 4.6 * max(map(len, in_rows.values()), default=0),
    )  # fmt: skip
    _name_features(main, columns, in_blocks)
    if in_rows and len(in_rows) * len(columns.owners) <= _MOST_PARTS:
        _name_parts(main, rows, columns, tuple(holdings))
    else:
        _name_clients(main, rows, columns, holdings)
    drawn = "" if len(holdings) == len(everyone) else f"the first {len(holdings)} of "
    heading = title or (
        f"Who holds what: {drawn}{_plural(len(everyone), 'client')}, "
        f"{_plural(rows.entries, 'sample')} × "
        f"{_plural(columns.entries, 'feature')}" + f" ({which})" * bool(which)
    )
    write_heading(figure, left, 0.955, heading, 14)
    _legend(figure, left + width + 0.035, holdings, colours, rows, columns, bool(pale), which)
    return figure


def holdings_picture(
    parties: Parties,
    path: str | Path,
    *,
    title: str | None = None,
    classes: Sequence[str] = (),
    which: str = "",
    missing: Mapping[ClientId, Array] | None = None,
) -> Path:
    """Draw who holds what (`holdings_figure`) as a PNG; return its path."""
    figure = holdings_figure(parties, title=title, classes=classes, which=which, missing=missing)
    return save(figure, path)


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _paint(
    rows: Side, columns: Side, colours: Array, missing: Mapping[int, Array]
) -> tuple[Array, Array]:
    """Return the picture (height, width, 3) and the strip of labels (height, strip, 3)."""
    image = np.tile(_NOBODY, (HEIGHT, WIDTH, 1))
    strip = np.tile(_NOBODY, (HEIGHT, _STRIP, 1))
    if not rows.entries or not columns.entries:
        return image, strip
    column_owners = columns.owners[columns.cell_at]  # (width, clients)
    wide = 8 * max(len(rows.owners), len(columns.owners)) <= HEIGHT
    thick = np.bincount(columns.cell_at)[columns.cell_at] >= _LEAST_JOINED  # (width,)
    above: tuple[Mask, int] | None = None
    for cell in np.unique(rows.cell_at):
        band = np.flatnonzero(rows.cell_at == cell)
        owners = column_owners & rows.owners[cell]
        pale = np.zeros((WIDTH, len(colours)))
        for client, fraction in missing.items():
            pale[:, client] = fraction[cell][columns.entry_at]
        for some in np.array_split(band, 1 + len(band) // _AT_ONCE):
            image[some] = _stripes(owners, colours, some, pale)
        labels = np.tile(rows.labels[cell], (_STRIP, 1))
        strip[band] = _stripes(labels, colours, band, np.zeros(labels.shape))
        if wide:  # white joints, where the owners change
            parted = (owners[1:] != owners[:-1]).any(axis=1) & thick[1:] & thick[:-1]
            joints = np.flatnonzero(parted)
            image[np.ix_(band, np.concatenate([joints, joints + 1]))] = 1.0
            if above is not None and min(len(band), above[1]) >= _LEAST_JOINED:
                image[band[0] - 1 : band[0] + 1, (owners != above[0]).any(axis=1)] = 1.0
            above = owners, len(band)
    return image, strip


def _stripes(owners: Mask, colours: Array, band: NDArray[np.intp], pale: Array) -> Array:
    """Return the pixels of a band, (band, width, 3): one colour, or the owners' in turn."""
    width = len(owners)
    count = owners.sum(axis=1)
    ranked = np.argsort(~owners, axis=1, kind="stable")  # owners first
    # rows that are so far apart are alike
    alike = _STRIPE * math.lcm(*np.unique(count[count > 1]).tolist())
    kinds, kind_of = np.unique(band % alike, return_inverse=True)
    turn = (kinds[:, None] + np.arange(width)) // _STRIPE % np.maximum(count, 1)
    owner = ranked[np.arange(width), turn]  # (kinds, width)
    pixels = colours[owner] * np.where(count > 1, 0.9, 1.0)[:, None]
    faded = 0.85 * pale[np.arange(width), owner][..., None]
    pixels = pixels * (1 - faded) + 0.98 * faded
    pixels[:, count == 0] = _NOBODY
    return np.asarray(pixels[kind_of], np.float64)


def _name_features(axes: Axes, columns: Side, blocks: Mapping[str, str]) -> None:
    """Write the features below, or their blocks where they are many."""
    few = 0 < columns.entries <= _MOST_FEATURE_NAMES
    what, depth = _plural(columns.entries, "feature"), 0.0
    if blocks and not few:
        ids = columns.ids.tolist()
        depth = _name_below(axes, [blocks.get(str(ids[at])) for at in columns.entry_at.tolist()])
        what = f"feature block ({what})"
    axes.set_xlabel(what, fontsize=11, color=INK, labelpad=4 + depth)
    if not few:
        return
    centres = [
        float(np.flatnonzero(columns.entry_at == at).mean()) for at in range(columns.entries)
    ]
    names = [name if len(name) <= 16 else f"{name[:15]}…" for name in columns.ids.tolist()]
    size = min(8.0, 0.85 * WIDTH / columns.entries * 72 / DPI)
    axes.set_xticks(centres, names, rotation=90, fontsize=size, color=INK, parse_math=False)
    axes.tick_params(length=0, pad=2)


def _name_clients(
    axes: Axes, rows: Side, columns: Side, holdings: Mapping[ClientId, Holding]
) -> None:
    """Write each client's name where it alone holds most, or else where it holds most."""
    if not rows.entries or not columns.entries:
        return
    step = 4  # coarser pixels are enough to place a word
    by_row = rows.owners[rows.cell_at[::step]]
    by_column = columns.owners[columns.cell_at[::step]]
    holders = by_row.astype(np.float32) @ by_column.T.astype(np.float32)
    free = np.ones(holders.shape, bool)
    for number, (name, held) in enumerate(holdings.items()):
        whole = np.outer(by_row[:, number], by_column[:, number]) & free
        alone = whole & (holders == 1)
        area = alone if alone.any() else whole
        if not area.any():
            continue
        row, column = _middle(area)
        width = step * _run_length(area[row], column)
        height = step * _run_length(area[:, column], row)
        # beside a size, a part of it that is no more than half would be taken for the whole
        sized = 2 * alone.sum() > np.outer(by_row[:, number], by_column[:, number]).sum()
        lines = [name, *([f"{len(held.samples):,} × {len(held.features):,}"] * bool(sized))]
        size = _font_size(lines, width, height)
        if size < 7:
            lines = lines[:1]
            size = _font_size(lines, width, height)
        if size < 4.5:
            continue
        _write_lines(axes, step * row, step * column, lines, size)
        half = round(size * DPI / 72 / step)
        box = np.s_[
            max(0, row - half) : row + half + 1, max(0, column - 3 * half) : column + 3 * half
        ]
        free[box] &= ~whole[box]  # another client of the same area writes beside it


def _name_parts(axes: Axes, rows: Side, columns: Side, names: Sequence[ClientId]) -> None:
    """Write into each part, of samples and features with the same owners, who these are."""
    for row, column in np.ndindex(len(rows.owners), len(columns.owners)):
        owners = np.flatnonzero(rows.owners[row] & columns.owners[column])
        high, wide = (np.flatnonzero(side.cell_at == at) for side, at in
                      ((rows, row), (columns, column)))  # fmt: skip
        lines = [names[owner] for owner in owners.tolist()]
        size = min(9.0, _font_size(lines, len(wide), len(high))) if lines and len(wide) else 0.0
        if size >= 4.5:
            _write_lines(axes, float(high.mean()), float(wide.mean()), lines, size)


def _middle(area: Mask) -> tuple[int, int]:
    """Return the pixel of an area that is farthest from its edge, the middle one of several."""
    padded = np.pad(area, 1)
    depth = ndimage.distance_transform_edt(padded, sampling=(2.5, 1.0))[1:-1, 1:-1]
    ridge, _ = ndimage.label(depth >= 0.98 * depth.max(), np.ones((3, 3)))
    place = np.argwhere(ridge == ridge[np.unravel_index(np.argmax(depth), depth.shape)])
    row, column = np.rint(place.mean(axis=0)).astype(int)
    if not area[row, column]:
        row, column = place[len(place) // 2]
    return int(row), int(column)


def _run_length(line: Mask, at: int) -> int:
    """Return the length of the longest run that is centred on a position."""
    gaps = np.flatnonzero(~line)
    place = int(np.searchsorted(gaps, at))
    before = at - (int(gaps[place - 1]) if place else -1)
    after = (int(gaps[place]) if place < len(gaps) else len(line)) - at
    return 2 * min(before, after) - 1


def _legend(
    figure: Figure,
    left: float,
    holdings: Mapping[ClientId, Holding],
    colours: Array,
    rows: Side,
    columns: Side,
    missing: bool,
    which: str,
) -> None:
    entries: list[Patch] = []
    if len(holdings) <= _MOST_IN_LEGEND:
        apart = "\n" if len(holdings) <= 8 else ": "
        for colour, (name, held) in zip(colours, holdings.items(), strict=True):
            labels = f", {int(held.labelled.sum()):,} labels" if held.labelled.any() else ""
            size = f"{len(held.samples):,} × {len(held.features):,}{labels}"
            room = _LEGEND_LETTERS - (0 if apart == "\n" else len(apart + size))
            said = f"{_short(name, room)}{apart}{size}"
            entries.append(Patch(color=tuple(colour.tolist()), label=said))
    else:
        for what, counts in (
            ("samples", [len(held.samples) for held in holdings.values()]),
            ("features", [len(held.features) for held in holdings.values()]),
            ("labels", [int(held.labelled.sum()) for held in holdings.values()]),
        ):
            low, high = min(counts), max(counts)
            span = f"{low:,}" if low == high else f"{low:,} to {high:,}"
            entries.append(Patch(alpha=0, label=f"{span} {what} per client"))
    holders = rows.owners.astype(np.float32) @ columns.owners.T.astype(np.float32)
    if (holders > 1).any():
        entries.append(
            Patch(facecolor="#8f8f8f", edgecolor="#d8d8d8", hatch="////", label="held by several")
        )
    if missing:
        entries.append(Patch(facecolor="#f7f7f7", edgecolor="#cccccc", label="pale: missing"))
    if (holders == 0).any():
        entries.append(Patch(color=_NOBODY, label="held by nobody"))
    add_legend(
        figure,
        handles=entries,
        title=f"{which} × columns" if which and len(holdings) <= _MOST_IN_LEGEND else None,
        title_fontsize=9.5,
        alignment="left",
        loc="upper left",
        bbox_to_anchor=(left, 0.925),
        fontsize=9.5,
        labelspacing=0.9,
    )


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
        pairs = np.flatnonzero(np.bincount(cells * len(classes) + codes))
        for pair in pairs.tolist():
            held.setdefault(pair // len(classes), set()).add(pair % len(classes))
    every = [code for some in held.values() for code in some]
    if len(every) > len(set(every)) or len(held) < 2:
        return {}
    return {
        cell: _together([classes[code] for code in sorted(some)]) for cell, some in held.items()
    }


def _name_below(axes: Axes, names: Sequence[str | None]) -> float:
    """Write what each run of pixels is under it, None: nothing; return the depth in points."""
    depth = 0.0
    across: dict[str, Any] = {"transform": axes.get_xaxis_transform()}
    for name, start, stop in _runs(names):
        for edge in (start, stop):
            axes.plot([edge - 0.5] * 2, [0, -0.012], color=INK, lw=0.8, clip_on=False, **across)
        short = _short(name)
        upright = _LETTER * len(short) > stop - start
        depth = max(depth, 5.5 * len(short) if upright else 11.0)
        middle = (start + stop) / 2
        write(axes, middle, -0.016, short, 9, va="top", rotation=90 * upright, **across)
    return depth


def _name_left(axes: Axes, names: Sequence[str | None]) -> None:
    """Write what each run of pixels is at the left of it; None: nothing."""
    for name, start, stop in _runs(names):
        middle, across = (start + stop) / 2, axes.get_yaxis_transform()
        write(axes, -0.006, middle, name, 9, ha="right", transform=across)


def _runs(names: Sequence[str | None]) -> Iterator[tuple[str, int, int]]:
    at = 0
    for name, some in groupby(names):
        start, at = at, at + len(list(some))
        if name is not None and at - start >= _LEAST_NAMED:
            yield name, start, at


def _together(names: Sequence[str]) -> str:
    shown = ", ".join(_short(name) for name in names[:_MOST_CLASSES])
    return shown if len(names) <= _MOST_CLASSES else f"{shown}, …"


def _short(name: str, most: int = _LONGEST) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _write_lines(axes: Axes, row: float, column: float, lines: Sequence[str], size: float) -> None:
    """Write lines that can be read on any colour, at a pixel."""
    edge = [withStroke(linewidth=0.18 * size, foreground=INK)]
    write(axes, column, row, "\n".join(lines), size, color="white", path_effects=edge)


def _font_size(lines: Sequence[str], width: int, height: int) -> float:
    """Return the size of letters, in points, at which lines fit into so many pixels."""
    pixels_per_point = DPI / 72
    across = 0.9 * width / (0.62 * pixels_per_point * max(map(len, lines)))
    down = height / (1.25 * pixels_per_point * len(lines))
    return min(11.0, across, down)
