"""The command `intarsia join`: a new client in a finished run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from intarsia.cli.console import AsJson, Folder, Missing, Overwrite, Quiet, console, put


def join(
    folder: Folder,
    table: Annotated[Path, typer.Argument(metavar="TABLE")],
    label: Annotated[
        str | None, typer.Option("--label", metavar="COLUMN", help="The column with the labels.")
    ] = None,
    id: Annotated[
        str | None,
        typer.Option("--id", metavar="COLUMN", help="The column with the ids of the rows."),
    ] = None,
    categorical: Annotated[
        list[str] | None,
        typer.Option("--categorical", metavar="COLUMN", help="A column of levels, not of numbers."),
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option("--exclude", metavar="COLUMN", help="Leave a column out.")
    ] = None,
    missing: Missing = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="What the new client is called.")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option("--epochs", metavar="N", help="How long it learns.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", help="Of its random numbers.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FOLDER", help="Where its model goes."),
    ] = None,
    as_json: AsJson = False,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Let a new client join a finished run: by columns of its own (flic), by blocks (hyfem).

    DIR is the output folder of the run, which stays as it is; TABLE is the new client's CSV or
    Parquet file. Its model, beside what it learns alone, goes to DIR/joined/NAME.
    """
    from intarsia import api
    from intarsia.cli import tables as display

    result = api.join(
        folder,
        table,
        name=name,
        id=id,
        label=label,
        categorical=categorical or (),
        exclude=exclude or (),
        missing=missing,
        epochs=epochs,
        seed=seed,
        out="" if out is None else out,
        overwrite=overwrite,
    )
    if not quiet:
        display.show_joined(console(), result)
    if as_json:
        put(json.dumps(result.to_dict(), ensure_ascii=False, allow_nan=False))
