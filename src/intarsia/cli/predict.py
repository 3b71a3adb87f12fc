"""The command `intarsia predict`: a finished run's scores and labels of a table, or of several."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from intarsia.cli.console import Folder, Missing, put, say
from intarsia.errors import ExperimentError

_OTHERS = (".parquet", ".pq", ".gz", ".bz2", ".xz", ".zst", ".zip", ".xlsx", ".json")


def predict(
    folder: Folder,
    tables: Annotated[list[str], typer.Argument(metavar="TABLE")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Write here, not to standard output."),
    ] = None,
    id: Annotated[
        str | None,
        typer.Option("--id", metavar="COLUMN", help="The column with the ids of the rows."),
    ] = None,
    client: Annotated[
        str | None,
        typer.Option(
            "--client",
            metavar="NAME",
            help="Whose table it is, where each client has a network of its own.",
        ),
    ] = None,
    federated: Annotated[
        bool,
        typer.Option("--federated", help="The columns are spread: each TABLE is NAME=FILE."),
    ] = False,
    absent: Annotated[
        str | None,
        typer.Option(
            "--absent",
            metavar="RULE",
            help="What stands for columns that no client has of a row: refuse, mean or own.",
        ),
    ] = None,
    missing: Missing = None,
) -> None:
    """Write the score and the label of every row of a table.

    DIR is the output folder of a finished run; TABLE is a CSV, Parquet, libsvm or npz file with a
    client's own columns, or with all of them. The output is CSV: id, score, label, and for networks
    and the logistic loss the probability of the second of two classes, or of the label.

    With --federated each TABLE is that of one client (NAME=FILE), rows with one id are one sample,
    and what the clients add to its score leaves them in a sum, sealed as in the run. The output has
    a further column, basis: all, means, or the client whose own network speaks.
    """
    import io

    named = _prediction_tables(tables, out, federated, id or client, absent)
    if federated:
        from intarsia.inference.federated_predict import predict_federated

        found = predict_federated(folder, named, absent or "refuse", missing or ())
    else:
        from intarsia.inference.predict import predict as applied

        found = applied(folder, named[""], id, client, missing or ())
    for note in found.notes:
        say(f"note: {note}")
    text = io.StringIO()
    found.write(text)
    if out is None:
        put(text.getvalue(), line=False)
    else:
        from intarsia.core.atomic_files import write_over

        write_over(out, text.getvalue().encode())
        say(f"{len(found.scores):,} predictions: {out}")


def _prediction_tables(
    tables: list[str], out: Path | None, federated: bool, alone: str | None, absent: str | None
) -> dict[str, Path]:
    """Return the files by the name of their client; the one file without --federated by ""."""
    if federated and alone is not None:
        raise ExperimentError("--id and --client are for one table, and --federated for several.")
    if not federated and (len(tables) > 1 or absent is not None):
        raise ExperimentError(
            "Several tables, and --absent, are for samples spread over clients: add --federated."
        )
    named: dict[str, Path] = {}
    for one in tables:
        name, _, file = one.partition("=") if federated else ("", "", one)
        if not file or (federated and (not name or name in named)):
            raise ExperimentError(f"{one!r} is no NAME=FILE; give each client's table once.")
        named[name] = Path(file)
        if out is not None:
            _check_output(out, Path(file))
    return named


def _check_output(out: Path, table: Path) -> None:
    """Refuse a file that cannot be written, or that is the table itself."""
    import shlex

    problem = None
    if out.suffix.lower() in _OTHERS and not (out.exists() and not out.is_file()):
        problem = f"ends in {out.suffix}, and predictions are written as CSV; name it .csv"
    elif not out.name or out.is_dir():
        problem = "is a folder; name a file in it"
    elif not out.parent.is_dir():
        problem = f"is in {out.parent}, which is no folder; make it first, or name another file"
    elif out.exists() and table.exists() and out.samefile(table):
        problem = "is the table itself; name another file"
    if problem is not None:
        raise ExperimentError(f"--out {shlex.quote(str(out))} {problem}.")
