"""Write a figure as a PNG."""

from __future__ import annotations

import io
import warnings
from pathlib import Path

from matplotlib.figure import Figure

from intarsia.core.atomic_files import write_over


def write_picture(figure: Figure, path: str | Path) -> Path:
    """Write a figure, whole or not at all, into a folder that is made where there is none."""
    target, data = Path(path), io.BytesIO()
    with warnings.catch_warnings():
        # a name in a script that the font lacks is drawn as boxes
        warnings.filterwarnings("ignore", "Glyph", UserWarning)
        figure.savefig(data, format="png")
    target.parent.mkdir(parents=True, exist_ok=True)
    write_over(target, data.getvalue())
    return target
