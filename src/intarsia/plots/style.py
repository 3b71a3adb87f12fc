"""The style of all pictures: ink, colours, figure, heading and legend, and the PNG file."""

from __future__ import annotations

import colorsys
import io
import warnings
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from intarsia.core.files.atomic_files import write_over

DPI: Final = 140
INK: Final = "#222222"
COLOURS: Final = (
    *("#3b6fb6", "#e08a2b", "#4b9e5f", "#b8487a"),
    *("#7a5ea8", "#3fa3ad", "#c9b037", "#8c5a3c"),
)

Colour = tuple[float, float, float]


def new_figure(size: tuple[float, float]) -> Figure:
    """Return an empty figure of a size in inches."""
    figure = Figure(figsize=size, dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def write_heading(figure: Figure, x: float, y: float, text: str, size: int = 14) -> None:
    """Write a heading whose names are no mathematics."""
    figure.text(x, y, text, size=size, weight="bold", color=INK, parse_math=False)


def write(axes: Any, x: float, y: float, text: str, size: float, **settings: Any) -> None:
    """Write text into axes, centred unless the settings say otherwise; it is no mathematics."""
    placed = {"ha": "center", "va": "center", "color": INK} | settings
    axes.text(x, y, text, size=size, parse_math=False, **placed)


def add_legend(place: Any, **settings: Any) -> None:
    """Add a legend without a frame, whose names are no mathematics, to a figure or axes."""
    legend = place.legend(frameon=False, labelcolor=INK, **settings)
    for text in legend.get_texts():
        text.set_parse_math(False)


def tick_text(value: float, position: object = None) -> str:
    """Return a value as an axis has it: 20,000 and not 2e+04."""
    return f"{value:,.10g}" if 1000 <= abs(value) < 1e7 else f"{value:.4g}"


def tidy(axes: Any, grid: str) -> None:
    """Draw a grid behind the data, and no frame above and at the right."""
    axes.grid(color=grid, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def warm_up() -> None:
    """Draw a little of each kind: what draws it first looks for its fonts, and loads the rest."""
    figure = new_figure((1.0, 1.0))
    axes = figure.add_axes((0.2, 0.2, 0.6, 0.6))
    axes.imshow(np.zeros((2, 2, 3), np.uint8))
    axes.plot([0, 1], label="a")
    write(axes, 0.5, 0.5, "a", 9)
    write_heading(figure, 0.1, 0.9, "a")
    add_legend(axes, title="a")
    png_of(figure)


def png_of(figure: Figure) -> bytes:
    """Return a figure as a PNG."""
    data = io.BytesIO()
    with warnings.catch_warnings():
        # a name in a script that the font lacks is drawn as boxes
        warnings.filterwarnings("ignore", "Glyph", UserWarning)
        figure.savefig(data, format="png")
    return data.getvalue()


def save(figure: Figure, path: str | Path) -> Path:
    """Write a figure as a PNG, whole or not at all, and the folders above it; return its path."""
    target, picture = Path(path), png_of(figure)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_over(target, picture)
    return target


def rgb(code: str) -> Colour:
    """Return a colour such as "#222222" as fractions."""
    red, green, blue = (int(code[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return red, green, blue


def distinct_colours(number: int, lightness: Colour = (0.47, 0.62, 0.55)) -> list[Colour]:
    """Return so many colours; neighbours in number differ most, beyond `COLOURS` in lightness."""
    if number <= len(COLOURS):
        return [rgb(code) for code in COLOURS[:number]]
    golden = 0.61803398875
    return [
        colorsys.hls_to_rgb((0.6 + at * golden) % 1, lightness[at % 3], 0.45)
        for at in range(number)
    ]
