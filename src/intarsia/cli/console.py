"""Where the command line speaks: standard error; results go to standard output.

What commands take alike: an output folder, and how much is shown.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console


OUTPUT = "standard output"


def console() -> Console:
    """Return what tables are drawn on."""
    from rich.console import Console

    # A file or a pipe has no width: wide enough then that no table is folded.
    return Console(stderr=True, width=None if sys.stderr.isatty() else 120)


def say(text: str) -> None:
    """Say something to who sits there."""
    typer.echo(text, err=True)


def put(text: str, *, line: bool = True) -> None:
    """Write a result to standard output.

    Raises
    ------
    OSError
        If it cannot be written; its `filename` is `OUTPUT`.
    """
    try:
        typer.echo(text, nl=line)
    except OSError as problem:
        # what is left in the buffer must not fail once more when the process ends
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        problem.filename = OUTPUT
        raise


Folder = Annotated[Path, typer.Argument(metavar="DIR")]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print the result as one line of JSON on standard output.")
]
Missing = Annotated[
    list[str] | None,
    typer.Option(
        "--missing",
        metavar="TEXT",
        help="Counts as a missing value too, beside what did in training; once for each.",
    ),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace a result in the output folder.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress and no tables.")]
