"""Write the tables and pictures of results.md from benchmarks/RESULTS.md.

python docs/scripts/plots.py --write
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "results.md"
IMAGES = ROOT / "docs" / "images"
RESULTS = ROOT / "benchmarks" / "RESULTS.md"
COLOURS = ("#0f766e", "#1d4ed8", "#b45309", "#6b7280")


@dataclass(frozen=True)
class Plot:
    """Bars of several methods over several problems."""

    name: str  # of the picture, and of the place in the page
    section: str  # of RESULTS.md
    rows: Mapping[str, str]  # the first cells of a row, joined by a blank → what the page calls it
    columns: Mapping[str, str]  # heading → what the page calls it
    scale: float = 1.0  # from what stands in the table to per cent


PLOTS = (
    Plot(
        "hyfdca",
        "Participation",
        {
            f"{data} {grid} 100%": f"{data} {grid}"
            for data in ("mnist", "covtype15k", "20news")
            for grid in ("2x2", "4x4", "8x8")
        },
        {"HyFDCA accuracy": "HyFDCA", "FedAvg accuracy, any setting": "FedAvg, best setting"},
        100,
    ),
    Plot(
        "hyfem",
        "HyFEM and its baselines (2026-11-22)",
        {"hyfem-mfeat": "mfeat", "hyfem-mnist-quadrants": "MNIST quadrants"},
        {
            "server": "server",
            "all data": "all data in one place",
            "clients": "clients",
            "each alone": "each client alone",
        },
    ),
)


def table(section: str) -> list[dict[str, str]]:
    """Return the first table of a section of RESULTS.md, row by row."""
    text = RESULTS.read_text(encoding="utf-8")
    body = text.split(f"\n## {section}\n")[1].split("\n## ")[0]
    lines = [line for line in body.splitlines() if line.startswith("|")]
    heading, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return [dict(zip(heading, row, strict=True)) for row in rows]


def numbers(plot: Plot) -> dict[str, list[float]]:
    """Return what is drawn: in per cent, by row, in the order of the columns."""
    found: dict[str, list[float]] = {}
    for row in table(plot.section):
        for count in (1, 2, 3):
            key = " ".join(list(row.values())[:count])
            if key in plot.rows and plot.rows[key] not in found:
                found[plot.rows[key]] = [plot.scale * float(row[one]) for one in plot.columns]
    return found


def as_markdown(plot: Plot) -> str:
    """Return the numbers as a table, below the picture of them."""
    titles = list(plot.columns.values())
    lines = [f"| | {' | '.join(titles)} |", f"|---|{'---:|' * len(titles)}"]
    for name, values in numbers(plot).items():
        lines.append(f"| {name} | {' | '.join(f'{value:.1f}' for value in values)} |")
    return "\n".join(lines) + "\n"


def filled(page: str) -> str:
    """Return the page with the tables that RESULTS.md gives."""
    for plot in PLOTS:
        begin, end = f"<!-- {plot.name}: begin -->\n", f"<!-- {plot.name}: end -->\n"
        found = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        page = found.sub(lambda _, b=begin, e=end, one=plot: b + as_markdown(one) + e, page)
    return page


def draw(plot: Plot) -> None:
    """Write the picture of a plot."""
    import matplotlib as mpl
    from matplotlib import pyplot

    mpl.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": plot.name, "font.family": "sans-serif"}
    found = numbers(plot)
    figure, axes = pyplot.subplots(figsize=(8, 0.42 * len(found) * len(plot.columns) + 1.2))
    _bars(axes, list(found), list(found.values()), list(plot.columns.values()))
    figure.tight_layout()
    figure.savefig(IMAGES / f"results-{plot.name}.svg", metadata={"Date": None})
    pyplot.close(figure)


def _bars(
    axes: object, names: Sequence[str], rows: Sequence[Sequence[float]], titles: Sequence[str]
) -> None:
    height = 0.8 / len(titles)
    for n, (title, colour) in enumerate(zip(titles, COLOURS, strict=False)):
        places = [row + n * height for row in range(len(names))]
        bars = axes.barh(places, [row[n] for row in rows], height, label=title, color=colour)
        axes.bar_label(bars, fmt="%.1f", padding=3, fontsize=9)
    axes.set_yticks([row + 0.4 - height / 2 for row in range(len(names))], names)
    axes.invert_yaxis()
    axes.set_xlim(0, 108)
    axes.set_xlabel("accuracy, %")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=len(titles), frameon=False)


def main() -> None:
    """Print the page, or write it and draw the pictures."""
    made = filled(PAGE.read_text(encoding="utf-8"))
    if "--write" not in sys.argv:
        sys.stdout.write(made)
        return
    PAGE.write_text(made, encoding="utf-8")
    for plot in PLOTS:
        draw(plot)


if __name__ == "__main__":
    main()
