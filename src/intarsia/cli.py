"""The command line: arguments → run → tables on standard error, results on standard output.

Exit status 0; 1 if training diverged or stalled; 2 for what the user can mend, with one sentence;
130 after Ctrl-C, with the command that goes on. What is slow to import is imported by the command
that needs it, so that `--help` answers at once.
"""

from __future__ import annotations

import contextlib
import json
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer

from intarsia import __version__, federation_commands, key_commands
from intarsia.errors import IntarsiaError, UserError

if TYPE_CHECKING:
    from rich.console import Console

    from intarsia.result import Result

__all__ = ["app", "main"]

app = typer.Typer(
    help="Train models across parties whose tables overlap only in part. No row leaves a party.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    suggest_commands=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(key_commands.app, name="keys")
app.add_typer(federation_commands.app, name="federation")

File = Annotated[Path, typer.Argument(metavar="FILE")]
Folder = Annotated[Path, typer.Argument(metavar="DIR")]
Folders = Annotated[list[Path], typer.Argument(metavar="DIR...")]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "-c",
        metavar="KEY=VALUE",
        help="Set a key of the file, such as experiment.seed=3 or algorithm.loss=logistic.",
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print the result as one line of JSON on standard output.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress and no tables.")]


_INTERRUPTED = 130  # the exit status after Ctrl-C


class _StoppedError(Exception):
    """Ctrl-C, with the sentence that says how to go on."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    command = typer.main.get_command(app)
    try:
        with _warnings_in_a_line():
            status = command.main(
                args=None if arguments is None else list(arguments),
                prog_name="intarsia",
                standalone_mode=False,
            )
    except _StoppedError as stopped:
        _say(str(stopped))
        return _INTERRUPTED
    except (click.Abort, KeyboardInterrupt):
        _say("stopped")
        return _INTERRUPTED
    except click.ClickException as problem:
        _say(f"error: {_line(problem.format_message())}")
        return 2
    except IntarsiaError as problem:
        _say(f"error: {_line(str(problem))}")
        return 2 if isinstance(problem, UserError) else 1
    except OSError as problem:
        if problem.filename is None:
            raise
        _say(f"error: {problem.filename}: {problem.strerror}; check the path and its permissions.")
        return 2
    if status == _INTERRUPTED:  # before training began: the library caught it
        _say("stopped")
    return status if isinstance(status, int) else 0


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", is_eager=True)
    ] = False,
) -> None:
    if version:
        typer.echo(f"intarsia {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        with contextlib.redirect_stdout(sys.stderr):
            typer.echo(context.get_help())
        raise typer.Exit(2)


@app.command()
def inspect(file: File, override: Overrides = None, as_json: AsJson = False) -> None:
    """Show who holds what, and which algorithm fits and why.

    FILE is the experiment file (TOML). The picture goes to its output folder.
    """
    from dataclasses import asdict

    from intarsia import api, display

    experiment = _load(file, override)
    found = api.inspect(experiment, picture=Path(experiment.out) / "holdings.png")
    advice, overlaps = found.advice, found.overlaps
    display.show_holdings(_console(), found.schema, found.clients, overlaps, advice)
    _say(f"picture: {found.picture}")
    if found.blocks is not None:
        display.show_blocks(_console(), found.blocks)
        _say(f"picture: {found.blocks_picture}")
    if as_json:
        content = {
            "clients": [asdict(row) for row in found.clients],
            "common_samples": overlaps.samples.tolist(),
            "common_features": overlaps.features.tolist(),
            "algorithm": advice.algorithm,
            "why": advice.why,
            "picture": str(found.picture),
            "notes": list(advice.remarks),
            "blocks": {} if found.blocks is None else found.blocks.counts,
        }
        typer.echo(json.dumps(content, ensure_ascii=False))


@app.command()
def run(
    file: File,
    override: Overrides = None,
    as_json: AsJson = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a result in the output folder.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Train, with the two yardsticks beside the result.

    FILE is the experiment file (TOML); it names the output folder.
    """
    from intarsia.running import run as train

    experiment = _load(file, override)
    _train(
        lambda show: train(experiment, progress=show, overwrite=overwrite),
        Path(experiment.out),
        as_json,
        quiet,
    )


@app.command()
def resume(folder: Folder, as_json: AsJson = False, quiet: Quiet = False) -> None:
    """Go on with a run that was stopped, to the same result.

    DIR is the output folder of the run.
    """
    from intarsia.running import resume as go_on

    _train(lambda show: go_on(folder, progress=show), folder, as_json, quiet)


@app.command()
def compare(
    folders: Folders,
    as_json: AsJson = False,
    picture: Annotated[
        Path | None,
        typer.Option(
            "--picture",
            metavar="FILE",
            help="Draw the score against the number in which the runs differ, as a PNG.",
        ),
    ] = None,
) -> None:
    """Compare finished runs over seeds, against both yardsticks and published figures.

    Each DIR is the output folder of a run; those of one experiment, algorithm and setting are shown
    as mean ± standard deviation.
    """
    from dataclasses import asdict

    from intarsia import display, report
    from intarsia.result import load

    groups = report.compare([load(folder) for folder in folders])
    display.show_comparison(_console(), groups)
    if picture is not None:
        from intarsia.curves import curves_picture

        _say(f"picture: {curves_picture(groups, picture)}")
    if as_json:
        typer.echo(json.dumps([asdict(group) for group in groups], ensure_ascii=False))


@app.command()
def embeddings(
    folders: Folders,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="The PNG to write.")
    ] = Path("embeddings.png"),
    client: Annotated[
        list[str] | None,
        typer.Option("--client", metavar="NAME", help="Whose samples; default: the first three."),
    ] = None,
) -> None:
    """Draw where clients' samples lie in the latent space that they are embedded in.

    Each DIR is the output folder of a finished run of flic or another algorithm on networks, and a
    panel of the picture. It reads the parties' tables: for simulations, or where all are in one
    place.
    """
    from intarsia.latent_picture import latent_of, latent_picture

    panels = [latent_of(folder, clients=client or ()) for folder in folders]
    _say(f"picture: {latent_picture(panels, out)}")


@app.command()
def rounds(
    folders: Folders,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="The PNG to write.")
    ] = Path("rounds.png"),
) -> None:
    """Draw the accuracy of runs round by round.

    Each DIR is the output folder of a run, finished or not, and a line of the picture. Where a run
    has phases, such as the levels of femam, a line stands where one began.
    """
    from intarsia.rounds_picture import course_of, rounds_picture

    _say(f"picture: {rounds_picture([course_of(folder) for folder in folders], out)}")


@app.command()
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
            help="What stands for columns that no party has of a row: refuse, mean or own.",
        ),
    ] = None,
) -> None:
    """Write the score and the label of every row of a table.

    DIR is the output folder of a finished run; TABLE is a CSV or Parquet file with a party's own
    columns, or with all of them. The output is CSV: id, score, label, and for networks and the
    logistic loss the probability of the second of two classes, or of the label.

    With --federated each TABLE is that of one party (NAME=FILE), rows with one id are one sample,
    and what the parties add to its score leaves them in a sum, sealed as in the run. The output has
    a further column, basis: all, means, or the party whose own network speaks.
    """
    import io

    from intarsia.checkpoint import write_atomically

    named = _prediction_tables(tables, out, federated, id or client, absent)
    if federated:
        from intarsia.federated_predictions import predict_federated

        found = predict_federated(folder, named, absent or "refuse")
    else:
        from intarsia.predictions import predict as applied

        found = applied(folder, named[""], id, client)
    for note in found.notes:
        _say(f"note: {note}")
    text = io.StringIO()
    found.write(text)
    if out is None:
        typer.echo(text.getvalue(), nl=False)
    else:
        write_atomically(out, text.getvalue().encode())
        _say(f"{len(found.scores):,} predictions: {out}")


def _prediction_tables(
    tables: list[str], out: Path | None, federated: bool, alone: str | None, absent: str | None
) -> dict[str, Path]:
    """Return the files by the name of their party; the one file without --federated by ""."""
    if federated and alone is not None:
        raise click.UsageError("--id and --client are for one table, and --federated for several.")
    if not federated and (len(tables) > 1 or absent is not None):
        raise click.UsageError("Several tables, and --absent, are for parties: add --federated.")
    named: dict[str, Path] = {}
    for one in tables:
        name, _, file = one.partition("=") if federated else ("", "", one)
        if not file or (federated and (not name or name in named)):
            raise click.UsageError(f"{one!r} is no NAME=FILE; give each party's table once.")
        named[name] = Path(file)
        if out is not None:
            _check_output(out, Path(file))
    return named


@app.command()
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
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a result in the output folder.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Let a new client join a finished run: by columns of its own (flic), by blocks (hyfem).

    DIR is the output folder of the run, which stays as it is; TABLE is the new client's CSV or
    Parquet file. Its model, beside what it learns alone, goes to DIR/joined/NAME.
    """
    from intarsia import api, display

    result = api.join(
        folder,
        table,
        name=name,
        id=id,
        label=label,
        categorical=categorical or (),
        exclude=exclude or (),
        epochs=epochs,
        seed=seed,
        out="" if out is None else out,
        overwrite=overwrite,
    )
    if not quiet:
        display.show_joined(_console(), result)
    if as_json:
        typer.echo(json.dumps(result.to_dict(), ensure_ascii=False, allow_nan=False))


@app.command()
def audit(
    folder: Folder,
    client: Annotated[
        str | None,
        typer.Option("--client", metavar="NAME", help="Show what this client could read."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what the server and the clients of a run could read, and how often.

    DIR is the output folder of the run; one that was stopped is shown up to its last checkpoint.
    """
    from intarsia import audit, display
    from intarsia.spelling import nearest

    found = audit.load(folder)
    if client is not None and client not in found.clients:
        raise click.UsageError(
            f"--client {client!r} took no part in the run; {nearest(client, found.clients)}."
        )
    display.show_audit(_console(), found, client)
    if as_json:
        typer.echo(json.dumps(found.to_dict(), ensure_ascii=False))


def _check_output(out: Path, table: Path) -> None:
    """Refuse a file that cannot be written, or that is the table itself."""
    problem = None
    if not out.name or out.is_dir():
        problem = "is a folder; name a file in it"
    elif not out.parent.is_dir():
        problem = f"is in {out.parent}, which is no folder; make it first, or name another file"
    elif out.exists() and table.exists() and out.samefile(table):
        problem = "is the table itself; name another file"
    if problem is not None:
        raise click.UsageError(f"--out {_quoted(out)} {problem}.")


def _load(file: Path, overrides: list[str] | None) -> Any:
    from intarsia import experiment

    return experiment.load(file, overrides or ())


def _train(train: Any, folder: Path, as_json: bool, quiet: bool) -> None:
    from intarsia import display, watch

    console = _console()
    shown = contextlib.nullcontext() if quiet else watch.Watch(console)
    try:
        with shown as show:
            result: Result = train(show)
    except KeyboardInterrupt:
        raise _StoppedError(_how_to_go_on(folder)) from None
    if not quiet:
        display.show_result(console, result, folder)
    if as_json:
        typer.echo(json.dumps(result.to_dict(), ensure_ascii=False, allow_nan=False))


def _how_to_go_on(folder: Path) -> str:
    from intarsia.checkpoint import Checkpoints

    rounds = Checkpoints(folder).rounds
    if not rounds:
        return "stopped before the first checkpoint; start again with --overwrite"
    return f"stopped; this goes on from round {rounds[-1]}: intarsia resume {_quoted(folder)}"


def _console() -> Console:
    from rich.console import Console

    # A file or a pipe has no width: wide enough then that no table is folded.
    return Console(stderr=True, width=None if sys.stderr.isatty() else 120)


def _say(text: str) -> None:
    typer.echo(text, err=True)


def _line(text: str) -> str:
    return " ".join(text.split())


def _quoted(path: Path) -> str:
    import shlex

    return shlex.quote(str(path))


@contextlib.contextmanager
def _warnings_in_a_line() -> Iterator[None]:
    """Say warnings in one line on standard error, without the place in the code."""

    def say(message: Warning | str, *_: object, **__: object) -> None:
        _say(f"warning: {_line(str(message))}")

    with warnings.catch_warnings():
        warnings.showwarning = say
        yield


if __name__ == "__main__":
    sys.exit(main())
