"""Tables and lines of text: one content for the terminal, for `str` and for a notebook or a page.

Each is a table of the library rich, or one line. HTML is escaped: names of columns, levels and
clients come from other parties.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, TextIO, TypeAlias

from rich.console import Console
from rich.table import Table
from rich.text import Text

from intarsia.errors import printable

Part: TypeAlias = Table | str

# what begins a formula in a spreadsheet; some take full-width signs for the plain ones
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")

MOST_LINES = 20  # of a table of many clients, or of much else
_WIDTH = 120  # letters
_CELL = "padding:.15em .7em;vertical-align:top;text-align:"


def without_formula(cell: Any) -> Any:
    """Return a cell of a CSV file; text that a spreadsheet takes for a formula has an apostrophe.

    Names, levels and classes come from other parties. Text that is a number is none.
    """
    if not isinstance(cell, str) or not cell.startswith(_FORMULA):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def csv_writer(file: TextIO) -> Any:
    """Return what writes rows as CSV with line feeds; a cell with an end of line is in quotes.

    By itself `csv` leaves a carriage return alone where lines end otherwise, and many readers take
    it for an end.
    """

    class Lines:
        def write(self, line: str) -> int:
            return file.write(line.removesuffix("\r\n") + "\n")

    return csv.writer(Lines(), lineterminator="\r\n")


def new_table(title: str, *columns: str) -> Table:
    """Return an empty table: text at the left in the first column, numbers in the others."""
    table = Table(title=title, title_justify="left", title_style="bold", show_edge=False)
    for position, name in enumerate(columns):
        table.add_column(name, justify="left" if position == 0 else "right", overflow="fold")
    return table


def add_more(table: Table, lines: int, most: int = MOST_LINES) -> None:
    """Say how many lines of so many a table leaves out that has `most`."""
    if lines > most:
        table.add_row(f"… {lines - most} more")


def show(console: Console, *parts: Part) -> None:
    """Show tables and lines on a terminal."""
    for part in parts:
        if isinstance(part, str):
            # not wrapped at the width of a pipe: a path or a sentence must stay whole for who
            # reads it
            console.print(Text(part), soft_wrap=True)
        else:
            console.print(part)


def as_text(parts: Iterable[Part]) -> str:
    """Return tables and lines as they are on the terminal, without colours."""
    file = io.StringIO()
    console = Console(
        file=file,
        width=_WIDTH,
        markup=False,
        emoji=False,
        highlight=False,
        # a notebook would show it at once and leave the text empty, and asks for colours
        force_jupyter=False,
        force_terminal=False,
        color_system=None,
    )
    show(console, *parts)
    lines = printable(file.getvalue()).splitlines()
    return "\n".join(line.rstrip() for line in lines)


def as_html(parts: Iterable[Part]) -> str:
    """Return tables and lines as HTML that needs no style sheet."""
    found = [
        f"<p>{escape(printable(part))}</p>" if isinstance(part, str) else html_table(part)
        for part in parts
    ]
    return f"<div>{''.join(found)}</div>"


def html_table(table: Table) -> str:
    """Return a table as HTML; its title is the caption."""
    aligned = [column.justify for column in table.columns]
    heads = [  # a corner without a name heads nothing
        _cell(*(("th", one.header, one.justify, "col") if one.header else ("td", "", "left", "")))
        for one in table.columns
    ]
    columns = [list(column.cells) for column in table.columns]
    parts, rows = ["<tbody>"], list(zip(*columns, strict=True))
    for place, row in enumerate(rows):
        cells = [
            _cell("td" if at else "th", cell, justify, "" if at else "row")
            for at, (cell, justify) in enumerate(zip(row, aligned, strict=True))
        ]
        parts.append(f"<tr>{''.join(cells)}</tr>")
        if table.rows[place].end_section and place + 1 < len(rows):
            parts.append("</tbody><tbody>")
    head = "" if not any(str(one.header) for one in table.columns) else f"<tr>{''.join(heads)}</tr>"
    caption = f'<caption style="text-align:left;font-weight:bold">{_text(table.title)}</caption>'
    below = f"<p>{_text(table.caption)}</p>" if table.caption else ""
    return (
        f'<table style="border-collapse:collapse">{caption if table.title else ""}'
        f"<thead>{head}</thead>{''.join(parts)}</tbody></table>{below}"
    )


def _cell(kind: str, content: object, justify: str, scope: str) -> str:
    scoped = f' scope="{scope}"' if scope else ""
    weight = ";font-weight:normal" if scope == "row" else ""
    side = "right;white-space:pre" if justify == "right" else "left"
    return f'<{kind}{scoped} style="{_CELL}{side}{weight}">{_text(content)}</{kind}>'


def _text(content: object) -> str:
    lines: Sequence[str] = printable(str(content)).split("\n")
    return "<br>".join(map(escape, lines))
