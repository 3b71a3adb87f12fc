"""Results as a table on the terminal and as a section of RESULTS.md."""

from __future__ import annotations

import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

__all__ = ["RESULTS", "number", "show", "write", "written"]

RESULTS = Path(__file__).with_name("RESULTS.md")
_HEAD = "# Benchmark results\n\nWritten by the scripts beside this file; each section says how.\n"


def number(value: float | None, digits: int = 3) -> str:
    """Return a number in few characters; a dash for none."""
    if value is None or value != value:
        return "–"
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        text = f"{value:.{digits}g}"
        return f"{value:.0f}" if "e" in text else text
    return f"{value:.1e}"


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table."""
    table = Table(title=title, title_justify="left")
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place == 0 else "right")
    for row in rows:
        table.add_row(*row)
    width = None if sys.stdout.isatty() else 200
    Console(width=width).print(table)


def written(title: str, columns: Sequence[str]) -> list[list[str]]:
    """Return the rows of a section of RESULTS.md; none where it has other columns."""
    text = RESULTS.read_text(encoding="utf-8") if RESULTS.is_file() else ""
    section = next(
        (part for part in re.split(r"(?m)^(?=## )", text) if part.startswith(f"## {title}\n")), ""
    )
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    rows = [line[2:-2].split(" | ") for line in lines]
    return rows[1:] if rows and rows[0] == list(columns) else []


def write(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    seed: int,
    notes: str = "",
) -> None:
    """Write a section of RESULTS.md, in the place of the section with the same title."""
    lines = [
        f"## {title}",
        "",
        f"`{_command()}` · commit {_commit()} · {datetime.now(UTC):%Y-%m-%d} · {_machine()} · "
        f"one thread · seed {seed}",
        "",
    ]
    if notes:
        lines += [notes, ""]
    lines.append("| " + " | ".join(columns) + " |")
    lines.append("|" + "|".join(["---", *["---:"] * (len(columns) - 1)]) + "|")
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    section = "\n".join(lines) + "\n"
    text = RESULTS.read_text(encoding="utf-8") if RESULTS.is_file() else _HEAD
    parts = re.split(r"(?m)^(?=## )", text)
    place = next((k for k, part in enumerate(parts) if part.startswith(f"## {title}\n")), None)
    if place is None:
        parts[-1] = parts[-1].rstrip("\n") + "\n\n"
        parts.append(section)
    else:
        parts[place] = section + ("\n" if place + 1 < len(parts) else "")
    RESULTS.write_text("".join(parts), encoding="utf-8")


def _command() -> str:
    script = Path(sys.argv[0])
    return shlex.join(["python", f"benchmarks/{script.name}", *sys.argv[1:]])


def _commit() -> str:
    folder = str(Path(__file__).parent)

    def git(*words: str) -> str:
        run = subprocess.run(
            ["git", "-C", folder, *words], capture_output=True, text=True, check=False
        )
        return run.stdout.strip()

    changed = " with changes" if git("status", "--porcelain", "--", "../src") else ""
    return (git("rev-parse", "--short", "HEAD") or "unknown") + changed


def _machine() -> str:
    model = platform.machine()
    cpu = Path("/proc/cpuinfo")
    if cpu.is_file():
        found = re.search(r"model name\s*:\s*(.+)", cpu.read_text())
        model = found.group(1).strip() if found else model
    return f"{platform.system()}, {model}, Python {platform.python_version()}"
