"""Draw the clients' samples in the common latent space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from intarsia.core.block import Array, ClientId
from intarsia.plots.style import COLOURS, INK, add_legend, new_figure, save

_COLOURS = (*COLOURS, "#5b5b5b", "#d1495b")
_MARKERS = "os^DvP<X"
_MOST_CLIENTS = len(_MARKERS)


@dataclass(frozen=True, eq=False)
class Latent:
    """Points of the latent space after one run."""

    title: str
    points: Array  # (samples, k)
    clients: NDArray[np.str_]  # (samples,) whose each is
    classes: NDArray[Any]  # (samples,)
    anchors: Mapping[Any, Array]  # the mean of each class's anchor, (k,); empty without anchors


def latent_picture(panels: Sequence[Latent], path: str | Path) -> Path:
    """Draw points of the latent space in two dimensions, a panel for each run; return the path.

    One t-SNE (van der Maaten and Hinton, 2008) of all panels, so that places mean the same in each:
    close points stay close, distances between far ones mean little. Colours are classes, markers
    clients, stars the means of the anchors.
    """
    places = _flattened(panels)
    classes = sorted({one for panel in panels for one in panel.classes.tolist()})
    clients = list(dict.fromkeys(one for panel in panels for one in panel.clients.tolist()))
    colour = {one: _COLOURS[k % len(_COLOURS)] for k, one in enumerate(classes)}
    marker = {one: _MARKERS[k % len(_MARKERS)] for k, one in enumerate(clients)}
    width = 4.6 * len(panels) + 1.9
    figure = new_figure((width, 5.2))
    every = np.concatenate([part for points, stars in places for part in (points, stars)])
    low, high = every.min(axis=0), every.max(axis=0)
    margin = 0.05 * (high - low) + 1e-9
    for number, (panel, (points, stars)) in enumerate(zip(panels, places, strict=True)):
        left = (0.2 + 4.6 * number) / width
        axes = figure.add_axes((left, 0.05, 4.4 / width, 0.84))
        axes.set(xticks=[], yticks=[])
        axes.set_xlim(low[0] - margin[0], high[0] + margin[0])
        axes.set_ylim(low[1] - margin[1], high[1] + margin[1])
        axes.spines[:].set_color("#cccccc")
        axes.set_title(panel.title, fontsize=11, color=INK, parse_math=False)
        _scatter(axes, panel, points, stars, colour, marker)
    _legend(figure, (4.6 * len(panels) + 0.2) / width, colour, marker, panels)
    return save(figure, path)


def _flattened(panels: Sequence[Latent]) -> list[tuple[Array, Array]]:
    """Return the points and the anchors of each panel in two dimensions."""
    from sklearn.manifold import TSNE  # here: it takes a second to import

    parts = [
        np.concatenate([panel.points, *(mean[None] for mean in panel.anchors.values())])
        for panel in panels
    ]
    whole = np.concatenate(parts)
    perplexity = min(30.0, (len(whole) - 1) / 3)
    flat = TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(whole)
    found: list[tuple[Array, Array]] = []
    start = 0
    for panel, part in zip(panels, parts, strict=True):
        own = np.asarray(flat[start : start + len(part)], np.float64)
        found.append((own[: len(panel.points)], own[len(panel.points) :]))
        start += len(part)
    return found


def _scatter(
    axes: Axes,
    panel: Latent,
    points: Array,
    stars: Array,
    colour: Mapping[Any, str],
    marker: Mapping[ClientId, str],
) -> None:
    for client in dict.fromkeys(panel.clients.tolist()):
        for label in dict.fromkeys(panel.classes.tolist()):
            some = (panel.clients == client) & (panel.classes == label)
            x, y = points[some].T
            axes.scatter(x, y, s=16, c=colour[label], marker=marker[client], alpha=0.65, lw=0)
    for label, (x, y) in zip(panel.anchors, stars, strict=True):
        axes.scatter(x, y, s=260, c=colour[label], marker="*", edgecolors="black", zorder=3)


def _legend(
    figure: Figure,
    left: float,
    colour: Mapping[Any, str],
    marker: Mapping[ClientId, str],
    panels: Sequence[Latent],
) -> None:
    def entry(label: str, kind: str, shade: str, size: float = 6, edge: str = "none") -> Line2D:
        style: dict[str, Any] = {"marker": kind, "markersize": size, "markeredgecolor": edge}
        return Line2D([], [], color=shade, label=label, linewidth=0, **style)

    entries = [entry(f"class {label}", "o", shade, 7) for label, shade in colour.items()]
    entries += [entry(name, kind, "#777777") for name, kind in marker.items()]
    if any(panel.anchors for panel in panels):
        entries.append(entry("anchor", "*", "#ffffff", 13, "black"))
    add_legend(figure, handles=entries, loc="upper left", bbox_to_anchor=(left, 0.92), fontsize=9)
