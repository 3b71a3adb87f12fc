"""Where the command line speaks: standard error; results go to standard output."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["console", "say"]


def console() -> Console:
    """Return what tables are drawn on."""
    from rich.console import Console

    # A file or a pipe has no width: wide enough then that no table is folded.
    return Console(stderr=True, width=None if sys.stderr.isatty() else 120)


def say(text: str) -> None:
    """Say something to who sits there."""
    typer.echo(text, err=True)
