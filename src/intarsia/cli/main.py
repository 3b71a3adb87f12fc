"""The command line: arguments → run → tables on standard error, results on standard output.

Exit status 0; 1 if training diverged or stalled; 2 for what the user can mend, with one sentence;
130 after Ctrl-C, or SIGTERM in a run, with the command that goes on. What is slow to import is
imported by the command that needs it, so that `--help` answers at once.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import logging
import shlex
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from intarsia import __version__
from intarsia.cli import federation as federation_commands
from intarsia.cli import keys as key_commands
from intarsia.cli.console import OUTPUT, AsJson, Folder, Output, console, put, require_command, say
from intarsia.errors import ExperimentError, IntarsiaError, UserError, nearest

if TYPE_CHECKING:
    from intarsia.inference.predict import Predictions
    from intarsia.results.result import Result


app = typer.Typer(
    help="Train models across clients whose tables overlap only in part. No row leaves a client.",
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    suggest_commands=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(key_commands.app, name="keys")
app.add_typer(federation_commands.app, name="federation")

File = Annotated[Path, typer.Argument(metavar="FILE")]
Folders = Annotated[list[Path], typer.Argument(metavar="DIR...")]
Picture = Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The PNG to write.")]
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
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace a result in the output folder.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress and no tables.")]
Yardsticks = Annotated[
    bool | None,
    typer.Option(
        "--yardsticks/--no-yardsticks",
        help="Train the reference models too, or leave them out: experiment.yardsticks.",
        show_default=False,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "-c",
        metavar="KEY=VALUE",
        help="Set a key of the file, such as experiment.seed=3 or algorithm.loss=logistic.",
    ),
]

# What typer raises for wrong arguments. It is click's, or of the copy of click that newer releases
# of typer bring along.
_USAGE_ERROR: Any = typer.BadParameter.__base__

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # no room for what is written
_OTHERS = (".parquet", ".pq", ".gz", ".bz2", ".xz", ".zst", ".zip", ".xlsx", ".json")  # no CSV
_DISK = (*_FULL, errno.EIO, errno.EROFS)  # errors that have nothing to do with a path
_INTERRUPTED = 130  # the exit status after Ctrl-C, and after SIGTERM in a run


class _StoppedError(Exception):
    """Ctrl-C or SIGTERM, with the sentence that says how to go on."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    handlers = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        return _main(arguments)
    finally:
        if arguments is not None:
            _handle(handlers)
        else:  # the process ends now, and what libraries do at its end is not to be broken
            _end_undisturbed()


def _main(arguments: Sequence[str] | None) -> int:
    command = typer.main.get_command(app)
    # without a home it would tell everyone where it keeps its fonts
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    try:
        with _warnings_in_a_line():
            status = command.main(
                args=None if arguments is None else list(arguments),
                prog_name="intarsia",
                standalone_mode=False,
            )
    except _StoppedError as stopped:
        say(str(stopped))
        return _INTERRUPTED
    except (typer.Abort, KeyboardInterrupt):
        _end_undisturbed()
        say("stopped")
        return _INTERRUPTED
    except _USAGE_ERROR as problem:
        say(f"error: {_line(problem.format_message())}")
        return 2
    except IntarsiaError as problem:
        say(f"error: {_line(str(problem))}")
        return 2 if isinstance(problem, UserError) else 1
    except BrokenPipeError as problem:
        if problem.filename != OUTPUT:
            raise
        return 1  # whoever reads the results has seen enough
    except OSError as problem:
        if problem.filename is None and problem.errno not in _DISK:
            raise
        say(f"error: {_refused(problem)}.")
        return 2
    if status == _INTERRUPTED:  # before training began: the library caught it
        _end_undisturbed()
        say("stopped")
    return status if isinstance(status, int) else 0


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", is_eager=True)
    ] = False,
) -> None:
    if version:
        put(f"intarsia {__version__}")
        raise typer.Exit
    require_command(context)


@app.command()
def init(
    tables: Annotated[list[Path] | None, typer.Argument(metavar="TABLE...")] = None,
    example: Annotated[
        str | None,
        typer.Option(
            "--example", metavar="NAME", help="Write an example with its data: credit or heart."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="The file to write; default: mine.toml."),
    ] = None,
    id: Annotated[
        list[str] | None,
        typer.Option("--id", metavar="COLUMN", help="Tells rows apart; once for each name it has."),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="COLUMN", help="Is to be predicted; once for each name."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a file that is there.")
    ] = False,
) -> None:
    """Write an experiment file for tables: one for each client, CSV, Parquet, libsvm or npz.

    It proposes which column has the ids, which is to be predicted, which are categories, and what
    to leave out and why. The file has comments and runs as it is.
    """
    from intarsia.cli import first_steps

    if example is not None:
        if tables or id or label:
            raise ExperimentError(
                "--example brings its own tables; leave out TABLE, --id, --label."
            )
        first_steps.write_example(example, out, overwrite=overwrite)
    else:
        first_steps.write_proposal(tables or [], out, id or (), label or (), overwrite=overwrite)


@app.command()
def schema(out: Output = None) -> None:
    """Print the JSON schema of the experiment file, by which editors complete and check it."""
    from intarsia.training.experiment_schema import experiment_schema

    text = json.dumps(experiment_schema(), ensure_ascii=False, indent=1, allow_nan=False) + "\n"
    if out is None:
        put(text, line=False)
    else:
        from intarsia.core.atomic_files import write_over

        write_over(out, text.encode())
        say(f"schema: {out}; an editor reads it with #:schema {out.name} in the first line")


@app.command()
def doctor(
    kit: Annotated[
        Path | None,
        typer.Argument(metavar="KIT", help="A kit of a federation, looked at too."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Look whether this installation, and a KIT, are as they should be: a line for each thing.

    The exit status is 1 where there is a problem; its line ends with what to do.
    """
    from intarsia.cli.doctor import of_installation, of_kit

    findings = [*([] if kit is None else of_kit(kit.resolve())), *of_installation()]
    for one in findings:
        say(str(one))
    if as_json:
        put(json.dumps([asdict(one) for one in findings], ensure_ascii=False))
    if any(one.state == "problem" for one in findings):
        raise typer.Exit(1)


@app.command()
def inspect(file: File, override: Overrides = None, as_json: AsJson = False) -> None:
    """Show who holds what, and which algorithm fits and why.

    FILE is the experiment file (TOML). The picture goes to its output folder.
    """
    from intarsia import api
    from intarsia.core.text_tables import show

    experiment = _load(file, override)
    found = api.inspect(experiment, picture=Path(experiment.out) / "holdings.png")
    advice, overlaps = found.advice, found.overlaps
    show(console(), *found.parts())
    if as_json:
        content = {
            "clients": [asdict(row) for row in found.clients],
            "classes": dict(found.classes),
            "common_samples": overlaps.samples.tolist(),
            "common_features": overlaps.features.tolist(),
            "algorithm": advice.algorithm,
            "why": advice.why,
            "obstacle": advice.obstacle,
            "picture": str(found.picture),
            "notes": list(advice.remarks),
            "blocks": {} if found.blocks is None else found.blocks.counts,
        }
        put(json.dumps(content, ensure_ascii=False))


@app.command()
def run(
    file: File,
    override: Overrides = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="DIR", help="The output folder: experiment.out."),
    ] = None,
    yardsticks: Yardsticks = None,
    as_json: AsJson = False,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Train; then train two reference models beside the result: of all tables pooled, and alone.

    FILE is the experiment file (TOML). The model and its result are written before the reference
    models begin, which may be stopped.
    """
    from intarsia.training.run import run as train

    experiment = _load(file, override)
    if out is not None:
        experiment = replace(experiment, out=str(out.resolve()))
    if yardsticks is not None:
        experiment = replace(experiment, yardsticks=yardsticks)
    folder = Path(experiment.out)
    before = _written(folder)

    def start(show: Any, beside: Any) -> Result:
        return train(experiment, progress=show, yardstick_progress=beside, overwrite=overwrite)

    _train(start, folder, as_json, quiet, before)


@app.command()
def resume(
    folder: Folder,
    override: Annotated[
        list[str] | None,
        typer.Option(
            "-c",
            metavar="KEY=VALUE",
            help="Set experiment.yardsticks, the key that a run may change.",
        ),
    ] = None,
    yardsticks: Yardsticks = None,
    allow_module: AllowedModules = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Go on with a run that was stopped, to the same result.

    DIR is the output folder of the run. Of a run that was trained the reference models are made
    that are missing.
    """
    from intarsia.experiment.config import changed_yardsticks
    from intarsia.training.run import resume as go_on

    wanted = changed_yardsticks(override or ()) if yardsticks is None else yardsticks
    how: dict[str, Any] = {"wanted": wanted, "allow_modules": allow_module or ()}

    def start(show: Any, beside: Any) -> Result:
        return go_on(folder, progress=show, yardstick_progress=beside, **how)

    _train(start, folder, as_json, quiet)


@app.command()
def tune(
    file: File,
    override: Overrides = None,
    objective: Annotated[
        list[str] | None,
        typer.Option(
            "--objective",
            metavar="NAME",
            help="What is to be best, such as loss, accuracy or rounds; once for each.",
        ),
    ] = None,
    trials: Annotated[
        int | None, typer.Option("--trials", metavar="N", min=1, help="How many values are tried.")
    ] = None,
    path: Annotated[
        bool,
        typer.Option("--path", help="Try even steps from the largest value to the smallest."),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="DIR", help="Output folder; default: that of a run, -tuning."
        ),
    ] = None,
    as_json: AsJson = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a search in the output folder.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Look for hyperparameters on held-out training samples; best.toml has the best.

    FILE is the experiment file (TOML); its table [tune] says which keys vary. The same command goes
    on with a search that was stopped.
    """
    from intarsia.cli import tables as display
    from intarsia.tuning.study import tune as search

    experiment, screen = _load(file, override), console()
    shown = contextlib.nullcontext() if quiet else display.Watch(screen)
    try:
        _handle({signal.SIGTERM: signal.default_int_handler})
        with shown as show:
            found = search(
                experiment,
                objective=objective or (),
                trials=trials,
                path=path,
                out=out,
                overwrite=overwrite,
                progress=show,
            )
    except KeyboardInterrupt:
        _end_undisturbed()
        raise _StoppedError("stopped; the same command, without --overwrite, goes on") from None
    if not quiet:
        display.show_tuned(screen, found)
    say(f"picture: {found.folder / 'tuning.png'}")
    say(f"run the best: intarsia run {shlex.quote(str(found.folder / 'best.toml'))}")
    if as_json:
        put(json.dumps(found.to_dict(), ensure_ascii=False, allow_nan=False))


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
    """Compare finished runs over seeds, against both baselines and published figures.

    Each DIR is the output folder of a run; those of one experiment, algorithm and setting are shown
    as mean ± standard deviation.
    """
    from intarsia.core.text_tables import show
    from intarsia.results import comparison
    from intarsia.results.result import load

    groups = comparison.compare([load(folder) for folder in folders])
    show(console(), *groups.parts())
    if picture is not None:
        from intarsia.plots.comparison import curves_picture

        say(f"picture: {curves_picture(groups, picture)}")
    if as_json:
        put(json.dumps([asdict(group) for group in groups], ensure_ascii=False))


@app.command()
def embeddings(
    folders: Folders,
    out: Picture = Path("embeddings.png"),
    client: Annotated[
        list[str] | None,
        typer.Option("--client", metavar="NAME", help="Whose samples; default: the first three."),
    ] = None,
    allow_module: AllowedModules = None,
) -> None:
    """Draw where clients' samples lie in the latent space that they are embedded in.

    Each DIR is the output folder of a finished run of flic or another algorithm on networks, and a
    panel of the picture. It reads the clients' tables: for simulations, or where all are in one
    place.
    """
    from intarsia.inference.latent_space import latent_of
    from intarsia.plots.latent_space import latent_picture

    panels = [
        latent_of(folder, clients=client or (), allow_modules=allow_module or ())
        for folder in folders
    ]
    say(f"picture: {latent_picture(panels, out)}")


@app.command()
def rounds(
    folders: Folders,
    out: Picture = Path("rounds.png"),
) -> None:
    """Draw the accuracy of runs round by round, or the loss of those that predict numbers.

    Each DIR is the output folder of a run, finished or not, and a line of the picture; a finished
    one ends with its result. Where a run has phases, such as the levels of femam, a line stands
    where one began.
    """
    from intarsia.plots.learning_curves import rounds_picture
    from intarsia.results.history import course_of

    say(f"picture: {rounds_picture([course_of(folder) for folder in folders], out)}")


@app.command()
def report(
    folders: Folders,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="The page; default: report.html in DIR, or here where there are several.",
        ),
    ] = None,
    card: Annotated[
        Path | None,
        typer.Option("--card", metavar="FILE", help="Write a model card too, as Markdown."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write one HTML page of a finished run, or of several beside each other, to hand on.

    Each DIR is the output folder of a finished run. The page loads nothing: it can be mailed,
    printed, and read by keyboard. It has counts, scores and sentences of the folder, and no row.
    """
    from intarsia.reports.model_card import write_card
    from intarsia.reports.page import write_report

    if card is not None and len(folders) > 1:
        raise ExperimentError(
            f"--card is for one model, and there are {len(folders)} folders; give one of them."
        )
    written = {"out": write_report(folders, out)}
    if card is not None:
        written["card"] = write_card(folders[0], card)
    for name, path in written.items():
        say(f"{'report' if name == 'out' else 'model card'}: {path}")
    if as_json:
        put(json.dumps({name: str(path) for name, path in written.items()}, ensure_ascii=False))


@app.command()
def predict(
    folder: Folder,
    tables: Annotated[list[str], typer.Argument(metavar="TABLE")],
    out: Output = None,
    id: IdColumn = None,
    client: Annotated[
        str | None,
        typer.Option(
            "--client",
            metavar="NAME",
            help="Whose table it is: whose network predicts, and how the table is read.",
        ),
    ] = None,
    federated: Annotated[
        bool, typer.Option("--federated", help="The columns are spread: each TABLE is NAME=FILE.")
    ] = False,
    absent: Annotated[
        str | None,
        typer.Option(
            "--absent",
            metavar="RULE",
            help="What stands for columns that no client has of a row: refuse, mean or own.",
        ),
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(
            "--picture",
            metavar="FILE",
            help="Draw ROC, precision-recall and reliability curves of the rows with a label, or "
            "their numbers, as a PNG.",
        ),
    ] = None,
    missing: Missing = None,
    allow_module: AllowedModules = None,
) -> None:
    """Write the score and the label of every row of a table.

    DIR is the output folder of a finished run; TABLE is a CSV, Parquet, libsvm or npz file with a
    client's own columns, or with all of them. The output is CSV: id, score, label, and for networks
    and the logistic loss the probability of the second of two classes, or of the label.

    With --federated each TABLE is that of one client (NAME=FILE), rows with one id are one sample,
    and what the clients add to its score leaves them in a sum, sealed as in the run. The output has
    a further column, basis: all, means, or the client whose own network speaks.
    """
    named = _prediction_tables(tables, out, federated, id or client, absent)
    if federated:
        from intarsia.inference.federated_predict import predict_federated

        rule, allowed = absent or "refuse", allow_module or ()
        found = predict_federated(folder, named, rule, missing or (), allow_modules=allowed)
    else:
        from intarsia.inference.predict import predict as applied

        allowed, table = allow_module or (), named[""]
        found = applied(folder, table, id, client, missing or (), allow_modules=allowed)
    for note in found.notes:
        say(f"note: {note}")
    if found.score is not None:
        from intarsia.core.text_tables import show
        from intarsia.results.tables import score_parts

        show(console(), *score_parts(found.score))
    if picture is not None:
        say(f"picture: {_draw_scores(found, folder, picture)}")
    text = io.StringIO()
    found.write(text)
    if out is None:
        put(text.getvalue(), line=False)
    else:
        from intarsia.core.atomic_files import write_over

        write_over(out, text.getvalue().encode())
        say(f"{len(found.scores):,} predictions: {out}")


def _draw_scores(found: Predictions, folder: Path, path: Path) -> Path:
    """Draw how good predictions are into a file; return its path."""
    from intarsia.maths.figures import has_curves
    from intarsia.plots.score_curves import scores_picture

    score = found.score
    if score is None or score.figures is None or not has_curves(score.figures):
        raise ExperimentError(
            "No row has a label of the model's classes, or rows of one class only, and there is "
            "no curve to draw; give a table with the label column of the run, or leave out "
            "--picture."
        )
    whose = f"{score.samples:,} rows with a label"
    return scores_picture(score.figures, path, title=folder.resolve().name, whose=whose)


@app.command()
def coefficients(
    folder: Folder,
    out: Output = None,
    scorecard: Annotated[
        bool, typer.Option("--scorecard", help="Show points, of log-odds of two classes.")
    ] = False,
    points: Annotated[
        float, typer.Option("--points", metavar="N", help="Points that double the odds.")
    ] = 20.0,
    base_score: Annotated[
        float, typer.Option("--base-score", metavar="N", help="Points at the base odds.")
    ] = 600.0,
    base_odds: Annotated[
        float, typer.Option("--base-odds", metavar="N", help="Odds of the second class.")
    ] = 50.0,
    as_json: AsJson = False,
) -> None:
    """Show the coefficients of a linear model per unit of each column, with their errors.

    DIR is the output folder of a finished run, or a site's own model. Errors, intervals and
    p-values are there where the run stored them (algorithm.errors = true); --out writes CSV.
    """
    from intarsia.core.text_tables import show
    from intarsia.inference.coefficients import coefficients as listed_of
    from intarsia.models.coefficients import Scorecard

    card = None
    if scorecard:
        card = Scorecard(points=points, base_score=base_score, base_odds=base_odds)
    found = listed_of(folder, card)
    show(console(), *found.parts())
    if out is not None:
        from intarsia.core.atomic_files import write_over

        text = io.StringIO()
        found.write(text)
        write_over(out, text.getvalue().encode())
        say(f"{len(found.rows):,} coefficients: {out}")
    if as_json:
        put(json.dumps(found.to_dict(), ensure_ascii=False, allow_nan=False))


@app.command()
def join(
    folder: Folder,
    table: Annotated[Path, typer.Argument(metavar="TABLE")],
    label: Annotated[
        str | None, typer.Option("--label", metavar="COLUMN", help="The column with the labels.")
    ] = None,
    id: IdColumn = None,
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
        Path | None, typer.Option("--out", "-o", metavar="FOLDER", help="Where its model goes.")
    ] = None,
    allow_module: AllowedModules = None,
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
        allow_modules=allow_module or (),
    )
    if not quiet:
        display.show_joined(console(), result)
    if as_json:
        put(json.dumps(result.to_dict(), ensure_ascii=False, allow_nan=False))


@app.command()
def audit(
    folders: Folders,
    client: Annotated[
        str | None,
        typer.Option("--client", metavar="NAME", help="Show what this client could read."),
    ] = None,
    noted: Annotated[
        str,
        typer.Option("--noted", metavar="HEAD", help="The head of a site's log, as noted before."),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Show what the server and the clients of a run could read, and how often.

    DIR is the output folder of the run; one that was stopped is shown up to its last checkpoint. Or
    DIR is a site's kit: its log is checked and shown, and several sites' logs are compared; the
    exit status is 1 where an entry was altered or is missing, or the logs do not agree.
    """
    from intarsia.core.text_tables import show
    from intarsia.deployment.site_log import site_of
    from intarsia.results import audit
    from intarsia.results.tables import audit_parts

    sites = [one for folder in folders if (one := site_of(folder)) is not None]
    if len(sites) == len(folders):
        _audit_sites(sites, client, noted, as_json)
        return
    if len(folders) > 1 or noted:
        raise ExperimentError(
            f"{len(folders) - len(sites)} of {len(folders)} folders are no sites' kits; give one "
            "output folder of a run, or kits of sites, and --noted with one kit alone."
        )
    found = audit.load(folders[0])
    if client is not None and client not in found.clients:
        raise ExperimentError(
            f"--client {client!r} took no part in the run; {nearest(client, found.clients)}."
        )
    show(console(), *audit_parts(found, client))
    if as_json:
        put(json.dumps(found.to_dict(), ensure_ascii=False))


def _audit_sites(sites: list[Path], client: str | None, noted: str, as_json: bool) -> None:
    """Check and show the logs of sites, and compare them."""
    from intarsia.cli import tables as display
    from intarsia.deployment import site_log

    if client is not None or (noted and len(sites) > 1):
        raise ExperimentError("--client is for a run's folder, and --noted for one site's kit.")
    logs = site_log.each_once([site_log.load(site, noted) for site in sites])
    apart = site_log.differences(logs)
    for log in logs:
        display.show_site_log(console(), log, site_log.sentences(log))
    if len(logs) > 1:
        names = ", ".join(log.name for log in logs)
        say("\n".join(apart) if apart else f"The logs of {names} agree.")
    if as_json:
        found = [log.to_dict() for log in logs]
        put(json.dumps({"sites": found, "differences": apart}, ensure_ascii=False))
    if apart or not all(log.whole for log in logs):
        raise typer.Exit(1)


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


def _load(file: Path, overrides: list[str] | None) -> Any:
    from intarsia.experiment import config as experiment

    return experiment.load(file, overrides or ())


def _train(
    train: Any, folder: Path, as_json: bool, quiet: bool, before: tuple[int, int] | None = None
) -> None:
    from intarsia.cli import tables as display

    screen = console()
    shown = contextlib.nullcontext() if quiet else display.Watch(screen)
    try:
        # SIGTERM, by which batch systems end a run, stops it as Ctrl-C does. `main` gives it back:
        # were it done here, a second one would end the process before it says how to go on
        _handle({signal.SIGTERM: signal.default_int_handler})
        with shown as show:
            result: Result = train(show, None if show is None else show.beside)
    except KeyboardInterrupt:
        _end_undisturbed()
        raise _StoppedError(_how_to_go_on(folder, before)) from None
    except OSError as problem:
        if problem.errno not in _DISK:
            raise
        said = f"{_refused(problem)}: nothing that was written before is lost"
        raise ExperimentError(f"{said}; {_how_to_go_on(folder, before)}") from None
    if not quiet:
        display.show_result(screen, result, folder)
    if as_json:
        put(json.dumps(result.to_dict(), ensure_ascii=False, allow_nan=False))
    if result.finished == "stalled":
        say(
            f"stalled after round {result.rounds}, above the tolerance: the model and the reason "
            f"are in {folder}"
        )
        raise typer.Exit(1)


def _end_undisturbed() -> None:
    """Let no further Ctrl-C, which is easily pressed twice, break the last words."""
    _handle(dict.fromkeys((signal.SIGINT, signal.SIGTERM), signal.SIG_IGN))


def _handle(handlers: Mapping[signal.Signals, Any]) -> None:
    if threading.current_thread() is threading.main_thread():  # others may not
        for one, handler in handlers.items():
            if handler is not None:  # one that was not set from Python
                signal.signal(one, handler)


def _written(folder: Path) -> tuple[int, int] | None:
    """Return what tells the experiment.json of one run in a folder from that of another."""
    try:
        found = (folder / "experiment.json").stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _how_to_go_on(folder: Path, before: tuple[int, int] | None) -> str:
    """Return what to do after a stop; `before`: what a run that a new one replaces had written."""
    from intarsia.results.checkpoint import Checkpoints
    from intarsia.results.result import load

    now, place = _written(folder), shlex.quote(str(folder))
    if now is not None and now == before:
        return f"stopped before it began; the run before is in {place} as it was"
    if (folder / "result.json").is_file():
        if load(folder).yardsticks_left:
            return (
                f"stopped; the model and its result are in {place}, and this goes on with the "
                f"reference models: intarsia resume {place}"
            )
        return f"stopped; the run in {place} is done"
    rounds = Checkpoints(folder).rounds
    if now is None or not rounds:
        return "stopped before the first checkpoint; the same command begins again"
    return f"stopped; this goes on from round {rounds[-1]}: intarsia resume {place}"


def _refused(problem: OSError) -> str:
    """Return what the file system refused, and what is to be done about it."""
    if problem.filename == OUTPUT:
        remedy = "send the results elsewhere"
    elif problem.errno in _FULL:
        remedy = "make room there"
    elif problem.errno in _DISK:
        remedy = "see to the disk"
    else:
        remedy = "check the path and its permissions"
    return f"{problem.filename or 'a file'}: {problem.strerror}; {remedy}"


def _line(text: str) -> str:
    return " ".join(text.split())


@contextlib.contextmanager
def _warnings_in_a_line() -> Iterator[None]:
    """Say warnings in one line on standard error, without the place in the code."""

    def shown(message: Warning | str, *_: object, **__: object) -> None:
        say(f"warning: {_line(str(message))}")

    with warnings.catch_warnings():
        warnings.showwarning = shown
        yield


if __name__ == "__main__":
    sys.exit(main())
