"""Commands on what runs left: pictures, tables, reports, predictions, and what was sent."""

from __future__ import annotations

import io
import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from intarsia.cli.console import (
    AllowedModules,
    AsJson,
    Folder,
    IdColumn,
    Missing,
    Output,
    answer,
    console,
    put,
    say,
)
from intarsia.errors import ExperimentError, nearest

if TYPE_CHECKING:
    from intarsia.inference.predict import Predictions

app = typer.Typer()

Folders = Annotated[list[Path], typer.Argument(metavar="DIR...")]
Picture = Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The PNG to write.")]

# of files that are no CSV, those of a run among them
_OTHERS = (
    *(".parquet", ".pq", ".gz", ".bz2", ".xz", ".zst", ".zip", ".xlsx", ".json", ".jsonl", ".toml"),
    *(
        ".html",
        ".md",
        ".png",
        ".npz",
        ".db",
        ".sqlite",
        ".sqlite3",
        ".duckdb",
        ".lock",
        ".state",
        ".onnx",
        ".skops",
        ".safetensors",
    ),
)


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
    """Compare finished runs over seeds and test rows, against both baselines and published figures.

    Each DIR is the output folder of a run; those of one experiment, algorithm and setting are shown
    as mean ± standard deviation.
    """
    from intarsia.results import comparison
    from intarsia.results.result import load

    groups = comparison.compare([load(folder) for folder in folders])
    answer(*groups.parts(), as_json=as_json)
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
    tables: Annotated[list[str], typer.Argument(metavar="TABLE...")],
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
    decimal: Annotated[
        str | None,
        typer.Option(
            "--decimal",
            metavar="MARK",
            help='The decimal mark of numbers in a text file, "." or ","; default: as in training.',
        ),
    ] = None,
    allow_module: AllowedModules = None,
) -> None:
    """Write the score and the label of every row of a table.

    DIR is the output folder of a finished run; TABLE is a CSV, Parquet, libsvm or npz file with a
    client's own columns, or with all of them; or a database and its table, 'loans.db#customers', or
    a query behind #. The output is CSV: id, score, label, and for networks
    and the logistic loss the probability of the second of two classes, or of the label.

    With --federated each TABLE is that of one client (NAME=FILE), rows with one id are one sample,
    and what the clients add to its score leaves them in a sum, sealed as in the run. The output has
    a further column, basis: all, means, or the client whose own network speaks.
    """
    named = _prediction_tables(tables, out, federated, id or client, absent)
    if federated and picture is not None:
        raise ExperimentError(
            "--picture is for one table with labels, and --federated reads none; leave out the one "
            "or the other."
        )
    how: dict[str, Any] = {"decimal": decimal, "allow_modules": allow_module or ()}
    if federated:
        from intarsia.inference.federated_predict import predict_federated

        rule = absent or "refuse"
        found = predict_federated(folder, named, rule, missing or (), **how)
    else:
        from intarsia.inference.predict import predict as applied

        found = applied(folder, named[""], id, client, missing or (), **how)
    for note in found.notes:
        say(f"note: {note}")
    if found.score is not None:
        from intarsia.core.text_tables import show
        from intarsia.results.tables import score_parts

        show(console(), *score_parts(found.score, found.positive))
    text = io.StringIO()
    found.write(text)
    if out is None:
        put(text.getvalue(), line=False)
    else:
        from intarsia.core.files.atomic_files import write_over

        write_over(out, text.getvalue().encode())
        say(f"{len(found.scores):,} predictions: {out}")
    if picture is not None:  # last: where there is none to draw, the predictions are there
        say(f"picture: {_draw_scores(found, folder, picture)}")


def _draw_scores(found: Predictions, folder: Path, path: Path) -> Path:
    """Draw how good predictions are into a file; return its path."""
    from intarsia.maths.figures import has_curves
    from intarsia.plots.score_curves import scores_picture

    score = found.score
    if score is None:
        raise ExperimentError(
            "There is no picture, and the predictions are written: no row of the table has a label "
            "that the model knows; give a CSV or Parquet file with the run's label column (the "
            "labels of libsvm and npz files are not read here), or leave out --picture."
        )
    if score.figures is None or not has_curves(score.figures):
        raise ExperimentError(
            f"There is no picture, and the predictions are written: the {score.samples:,} rows "
            "with a label are all of one class, which has no curve; give a table with rows of "
            "another class too, or leave out --picture."
        )
    whose = f"{score.samples:,} rows with a label"
    how: dict[str, Any] = {"title": folder.resolve().name, "classes": found.classes}
    return scores_picture(score.figures, path, whose=whose, **how)


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
    from intarsia.inference.coefficients import coefficients as listed_of
    from intarsia.models.coefficients import Scorecard

    card = None
    if scorecard:
        card = Scorecard(points=points, base_score=base_score, base_odds=base_odds)
    if out is not None:
        _check_output(out, "coefficients")
    found = listed_of(folder, card)
    answer(*found.parts(), as_json=as_json)
    if out is not None:
        from intarsia.core.files.atomic_files import write_over

        text = io.StringIO()
        found.write(text)
        write_over(out, text.getvalue().encode())
        say(f"{len(found.rows):,} coefficients: {out}")
    if as_json:
        put(json.dumps(found.to_dict(), ensure_ascii=False, allow_nan=False))


@app.command()
def export(
    folder: Folder,
    format: Annotated[
        str, typer.Option("--format", "-f", metavar="NAME", help="onnx, skops or safetensors.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="The file; default: model.NAME in DIR."),
    ] = None,
    client: Annotated[
        str | None,
        typer.Option("--client", metavar="NAME", help="Whose model, where each has its own."),
    ] = None,
    allow_module: AllowedModules = None,
    as_json: AsJson = False,
) -> None:
    """Write the model of a finished run for use elsewhere: ONNX, scikit-learn, or plain arrays.

    DIR is the output folder of the run. What is written takes a table's columns as they are. It is
    run at once, and compared with the model.
    """
    from intarsia.inference.export import export as write

    how: dict[str, Any] = {"out": out, "client": client, "allow_modules": allow_module or ()}
    found = write(folder, format, **how)  # type: ignore[arg-type]  # it refuses others
    say(f"{found.format}: {found.path}")
    say(found.sentence)
    if as_json:
        told = {name: one for name, one in asdict(found).items() if one is not None}
        put(json.dumps(told, default=str, ensure_ascii=False))


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
    job: Annotated[
        str, typer.Option("--job", metavar="NAME", help="Of a site's log: what is of this job.")
    ] = "",
    fields: Annotated[
        bool, typer.Option("--fields", help="Of a run: name each field as the code does.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what the server and the clients of a run could read, and how often.

    DIR is the output folder of the run; one that was stopped is shown up to its last checkpoint. Or
    DIR is a site's kit: its log is checked and shown, and several sites' logs are compared; the
    exit status is 1 where an entry was altered or is missing, or the logs do not agree.
    """
    from intarsia.deployment.site_log import site_of
    from intarsia.results import audit
    from intarsia.results.tables import audit_parts

    sites = [one for folder in folders if (one := site_of(folder)) is not None]
    if len(sites) == len(folders):
        _audit_sites(sites, client, noted, job, as_json)
        return
    if len(folders) > 1 or noted or job:
        raise ExperimentError(
            f"{len(folders) - len(sites)} of {len(folders)} folders are no sites' kits; give one "
            "output folder of a run, or kits of sites, and --noted with one kit alone, --job with "
            "kits."
        )
    found = audit.load(folders[0])
    if client is not None and client not in found.clients:
        raise ExperimentError(
            f"--client {client!r} took no part in the run; {nearest(client, found.clients)}."
        )
    answer(*audit_parts(found, client, fields=fields), as_json=as_json)
    if as_json:
        put(json.dumps(found.to_dict(), ensure_ascii=False))


def _audit_sites(
    sites: list[Path], client: str | None, noted: str, job: str, as_json: bool
) -> None:
    """Check and show the logs of sites, and compare them."""
    from intarsia.cli import tables as display
    from intarsia.deployment import site_log

    if client is not None or (noted and len(sites) > 1):
        raise ExperimentError(
            "--client is for a run's folder, and --noted for one site's kit; leave it out, or give "
            "that folder alone."
        )
    logs = site_log.each_once([site_log.load(site, noted, job) for site in sites])
    apart = site_log.differences(logs)
    parts = [part for log in logs for part in display.log_parts(log, site_log.sentences(log))]
    if len(logs) > 1:
        names = ", ".join(log.name for log in logs)
        parts += apart or [f"The logs of {names} agree."]
    answer(*parts, as_json=as_json)
    if as_json:
        found = [log.to_dict() for log in logs]
        put(json.dumps({"sites": found, "differences": apart}, ensure_ascii=False))
    if apart or not all(log.whole for log in logs):
        raise typer.Exit(1)


def _prediction_tables(
    tables: list[str], out: Path | None, federated: bool, alone: str | None, absent: str | None
) -> dict[str, str]:
    """Return the tables by the name of their client; the one without --federated by ""."""
    from intarsia.inspection.named_tables import file_named

    if federated and alone is not None:
        raise ExperimentError(
            "--id and --client are for one table, and --federated for several; leave out the one "
            "or the other."
        )
    if not federated and (len(tables) > 1 or absent is not None):
        several = "--absent is" if len(tables) < 2 else f"{len(tables)} tables are"
        told = (one if "=" in one else f"{Path(one).stem}={one}" for one in tables[:3])
        how = " ".join(map(shlex.quote, told))
        raise ExperimentError(
            f"{several} for rows whose columns are spread over clients: name the client of each "
            f"table, as in intarsia predict DIR --federated {how}; predict tables of rows of their "
            "own one by one."
        )
    named: dict[str, str] = {}
    for one in tables:
        name, _, file = one.partition("=") if federated else ("", "", one)
        if not file or (federated and (not name or name in named)):
            raise ExperimentError(f"{one!r} is no NAME=FILE; give each client's table once.")
        named[name] = file
        if out is not None:
            _check_output(out, "predictions", file_named(file))
    return named


def _check_output(out: Path, what: str, table: Path | None = None) -> None:
    """Refuse a file that cannot be written, or that is the table itself."""
    problem = None
    if out.suffix.lower() in _OTHERS and not (out.exists() and not out.is_file()):
        problem = f"ends in {out.suffix}, and {what} are written as CSV; name it .csv"
    elif not out.name or out.is_dir():
        problem = "is a folder; name a file in it"
    elif not out.parent.is_dir():
        problem = f"is in {out.parent}, which is no folder; make it first, or name another file"
    elif table is not None and out.exists() and table.exists() and out.samefile(table):
        problem = "is the table itself; name another file"
    if problem is not None:
        raise ExperimentError(f"--out {shlex.quote(str(out))} {problem}.")
