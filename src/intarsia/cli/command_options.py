"""What commands take alike: an output folder, and how much is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["AsJson", "Folder", "Missing", "Overwrite", "Quiet"]

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
