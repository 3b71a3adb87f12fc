"""Where the command line speaks: answers go to standard output, all else to standard error.

An answer is what a command was called for: a table of coefficients, predictions, JSON. Progress,
notes and errors are no answers, nor are the tables at the end of a run, whose folder has them.

What commands take alike: an output folder, and how much is shown.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from intarsia.errors import printable

if TYPE_CHECKING:
    from rich.console import Console

    from intarsia.core.text_tables import Part


OUTPUT = "standard output"


def console(*, answer: bool = False) -> Console:
    """Return what tables are drawn on; no name in them is markup or controls the terminal."""
    from rich.console import Console
    from rich.segment import Segment

    class Plain(Console):
        def render(self, *given: Any, **how: Any) -> Iterator[Segment]:
            for one in super().render(*given, **how):
                yield one if one.control else Segment(printable(one.text), one.style)

    # A file or a pipe has no width: wide enough then that no table is folded.
    width = None if (sys.stdout if answer else sys.stderr).isatty() else 120
    how: Any = {"markup": False, "emoji": False, "highlight": False, "force_jupyter": False}
    return Plain(stderr=not answer, width=width, **how)


def say(text: str) -> None:
    """Say something to who sits there."""
    typer.echo(printable(text), err=True)


def answer(*parts: Part, as_json: bool) -> None:
    """Show a command's answer on standard output, or on standard error where JSON is asked for.

    Raises
    ------
    OSError
        If it cannot be written; its `filename` is `OUTPUT`.
    """
    from intarsia.core.text_tables import as_text, show

    if as_json:
        show(console(), *parts)
    elif sys.stdout.isatty():
        show(console(answer=True), *parts)
    else:
        put(as_text(parts))


def put(text: str, *, line: bool = True) -> None:
    """Write a result to standard output: as it is into a file or a pipe, printable on a terminal.

    Raises
    ------
    OSError
        If it cannot be written; its `filename` is `OUTPUT`.
    """
    try:
        typer.echo(printable(text) if sys.stdout.isatty() else text, nl=line)
    except OSError as problem:
        # what is left in the buffer must not fail once more when the process ends
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        problem.filename = OUTPUT
        raise


def require_command(context: typer.Context) -> None:
    """Show the help, and end with status 2, where no command is given."""
    if context.invoked_subcommand is None:
        with contextlib.redirect_stdout(sys.stderr):
            typer.echo(context.get_help())
        raise typer.Exit(2)


Folder = Annotated[Path, typer.Argument(metavar="DIR")]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print the result as one line of JSON on standard output.")
]
Output = Annotated[
    Path | None,
    typer.Option("--out", "-o", metavar="FILE", help="Write here, not to standard output."),
]
IdColumn = Annotated[
    str | None, typer.Option("--id", metavar="COLUMN", help="The column with the ids of the rows.")
]
Missing = Annotated[
    list[str] | None,
    typer.Option(
        "--missing",
        metavar="TEXT",
        help="Counts as a missing value too, beside what did in training; once for each.",
    ),
]
AllowedModules = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-module",
        metavar="NAME",
        help="A module that DIR may name and whose code may run here; once for each.",
    ),
]
