"""The command line: arguments → run → progress on standard error, answers on standard output.

Exit status 0; 1 if training diverged or stalled; 2 for what the user can mend, with one sentence;
130 after Ctrl-C, or SIGTERM in a run, with the command that goes on. What is slow to import is
imported by the command that needs it, so that `--help` answers at once.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import logging
import os
import re
import shlex
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from inspect import cleandoc
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from intarsia import __version__
from intarsia.cli import federation as federation_commands
from intarsia.cli import finished_runs
from intarsia.cli import keys as key_commands
from intarsia.cli.console import (
    OUTPUT,
    AllowedModules,
    AsJson,
    Folder,
    IdColumn,
    Missing,
    Output,
    answer,
    console,
    put,
    require_command,
    say,
)
from intarsia.core.files.atomic_files import FULL, LONGER
from intarsia.errors import ExperimentError, IntarsiaError, UserError, nearest

if TYPE_CHECKING:
    from intarsia.results.result import Result


app = typer.Typer(
    help="Train models across clients whose tables overlap only in part. No row leaves a client.",
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    suggest_commands=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(finished_runs.app)  # among the commands of this module
app.add_typer(key_commands.app, name="keys")
app.add_typer(federation_commands.app, name="federation")

File = Annotated[Path, typer.Argument(metavar="FILE")]
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

_DISK = (*FULL, errno.EIO, errno.EROFS)  # errors that have nothing to do with a path
# containers after which Python looks for cycles: importing libraries makes many, and no cycles
_COLLECTED_AFTER = 50_000
_INTERRUPTED = 130  # the exit status after Ctrl-C, and after SIGTERM in a run


_NO_MEMORY = (
    "The memory does not suffice{}; set [experiment] memory lower than what this process may take "
    '(as -c experiment.memory="2GB"), so that values of tables lie on the disk, or take a machine '
    "with more. A run that had begun goes on with intarsia resume."
)


# what the system gives no more of, by the error that says so
_LIMITS = {
    errno.EAGAIN: "threads and processes (ulimit -u, or the pids that a container may have)",
    errno.EMFILE: "open files (ulimit -n)",
    errno.ENFILE: "open files",
}
_NO_THREAD = "can't start new thread"  # says Python, as a RuntimeError

# before training, or in a command that is short; what was kept until then is as it was
_STOPPED = "stopped; give the same command again"


class _StoppedError(Exception):
    """Ctrl-C or SIGTERM, with the sentence that says how to go on."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    handlers = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    if arguments is None:
        gc.set_threshold(_COLLECTED_AFTER)
        if os.environ.get("MPLBACKEND", "").startswith("module://"):
            # a notebook's own, which is not to be had where this is installed apart from it
            del os.environ["MPLBACKEND"]
    try:
        return _main(arguments)
    finally:
        if arguments is not None:
            _handle(handlers)
        else:  # the process ends now, and what libraries do at its end is not to be broken
            _end_undisturbed()
            if "duckdb" not in sys.modules:  # which lists on the terminal what is not collected
                gc.freeze()  # all goes now: to look for cycles once more takes as long as training


def _main(arguments: Sequence[str] | None) -> int:
    # without a home it would tell everyone where it keeps its fonts
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    try:
        _refuse_empty(sys.argv[1:] if arguments is None else arguments)
        with _warnings_in_a_line():
            status = _command().main(
                args=None if arguments is None else list(arguments),
                prog_name="intarsia",
                standalone_mode=False,
            )
    except _StoppedError as stopped:
        say(str(stopped))
        return _INTERRUPTED
    except (typer.Abort, KeyboardInterrupt):
        _end_undisturbed()
        say(_STOPPED)
        return _INTERRUPTED
    except _USAGE_ERROR as problem:
        say(f"error: {_line(_unknown_command(problem) or problem.format_message())}")
        return 2
    except IntarsiaError as problem:
        say(f"error: {_line(str(problem))}")
        return 2 if isinstance(problem, UserError) else 1
    except BrokenPipeError as problem:
        if problem.filename != OUTPUT:
            raise
        return 1  # whoever reads the results has seen enough
    except OSError as problem:
        if problem.errno in _LIMITS:
            return _lacking(problem.errno)
        if problem.filename is None and problem.errno not in _DISK:
            raise
        say(f"error: {_refused(problem)}.")
        return 2
    except RuntimeError as problem:
        if str(problem) != _NO_THREAD:
            raise
        return _lacking(errno.EAGAIN)
    except MemoryError as problem:
        say(f"error: {_NO_MEMORY.format(f' ({problem})' if str(problem) else '')}")
        return 2
    if status == _INTERRUPTED:  # before training began: the library caught it
        _end_undisturbed()
        say(_STOPPED)
    return status if isinstance(status, int) else 0


def _lacking(number: int) -> int:
    """Say what the system gives no more of; return the exit status."""
    say(
        f"error: The system gives this process no more {_LIMITS[number]}; let it have more. A run "
        "that had begun goes on with intarsia resume."
    )
    return 2


@cache
def _command() -> Any:
    """Return the command line of all commands: making it takes a tenth of a second."""
    made = typer.main.get_command(app)
    _unwrap(made)
    return made


def _unwrap(command: Any) -> None:
    """Let the paragraphs of help be as wide as the terminal, not as the lines of the source."""
    command.help = re.sub(r"(?<!\n)\n(?!\n)", " ", cleandoc(command.help or ""))
    for one in getattr(command, "commands", {}).values():
        _unwrap(one)


def _unknown_command(problem: Any) -> str:
    """Return the error about a command that there is none of, with the nearest; "": it is none."""
    found = re.match(r"No such command '(.*?)'", problem.format_message())
    if found is None or problem.ctx is None:
        return ""
    known = problem.ctx.command.list_commands(problem.ctx)
    return f"No such command {found[1]!r}; {nearest(found[1], known)}."


def _refuse_empty(arguments: Sequence[str]) -> None:
    """Refuse an argument that is empty: as a path it would be the working folder."""
    for before, one in pairwise(["intarsia", *arguments]):
        joined = one.startswith("--") and one.endswith("=")
        name = one[:-1] if joined else before
        if (joined or not one) and name != "--missing":  # whose text may be empty
            raise ExperimentError(
                f"The argument after {name!r} is empty; write what it is to be, or leave it out "
                "('.' is the folder that you are in)."
            )


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
    tables: Annotated[list[str] | None, typer.Argument(metavar="TABLE...")] = None,
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
    algorithm: Annotated[
        str | None,
        typer.Option("--algorithm", metavar="NAME", help="It is to have; default: what fits."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a file that is there.")
    ] = False,
) -> None:
    """Write an experiment file for tables: one for each client, a file or a database's table.

    Files are CSV, Parquet, libsvm or npz. A table of a database stands behind its file or url, as
    in loans.db#customers or 'postgresql://reader:$BANK_PASSWORD@host/loans#customers'.

    It proposes which column has the ids, which is to be predicted, which are categories, and what
    to leave out and why. The file has comments and runs as it is.
    """
    from intarsia.cli import first_steps

    if example is not None:
        if tables or id or label or algorithm:
            raise ExperimentError(
                "--example brings its own tables; leave out TABLE, --id, --label, --algorithm."
            )
        first_steps.write_example(example, out, overwrite=overwrite)
    else:
        first_steps.write_proposal(
            tables or [], out, id or (), label or (), algorithm, overwrite=overwrite
        )


@app.command()
def schema(out: Output = None) -> None:
    """Print the JSON schema of the experiment file, by which editors complete and check it."""
    from intarsia.training.experiment_schema import experiment_schema

    text = json.dumps(experiment_schema(), ensure_ascii=False, indent=1, allow_nan=False) + "\n"
    if out is None:
        put(text, line=False)
    else:
        from intarsia.core.files.atomic_files import write_over

        write_over(out, text.encode())
        say(f"schema: {out}; an editor reads it with #:schema {out.name} in the first line")


@app.command()
def doctor(
    kit: Annotated[
        Path | None,
        typer.Argument(metavar="KIT", help="A kit of a federation, looked at too."),
    ] = None,
    load_plugins: Annotated[
        bool,
        typer.Option("--load-plugins", help="Run the code of packages that add algorithms, too."),
    ] = False,
    warm: Annotated[
        bool,
        typer.Option("--warm", help="Compile what runs would compile when they first need it."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Look whether this installation, and a KIT, are as they should be: a line for each thing.

    What other packages add is listed by their names, and none of their code is run. The exit
    status is 1 where there is a problem; its line ends with what to do. --warm trains small
    federations, a minute in all, so that the first run of yours compiles nothing.
    """
    from intarsia.cli.doctor import of_installation, of_kit, warmed

    own = of_installation(load_plugins=load_plugins)
    if warm:
        own.append(warmed(lambda name: say(f"compiling: {name}")))
    findings = [*([] if kit is None else of_kit(kit.resolve())), *own]
    answer(*map(str, findings), as_json=as_json)
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

    experiment = _load(file, override)
    found = api.inspect(experiment, picture=Path(experiment.out) / "holdings.png")
    advice, overlaps = found.advice, found.overlaps
    answer(*found.parts(), as_json=as_json)
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
    from intarsia.plots.runs.artist import SMALL_FILES, artist_ahead

    with artist_ahead() as draw_here:  # what else is imported takes as long as what draws
        experiment = _load(file, override)
        if out is not None:
            experiment = replace(experiment, out=str(out.resolve()))
        if yardsticks is not None:
            experiment = replace(experiment, yardsticks=yardsticks)
        if experiment.workers == 1 or _file_sizes(experiment) > SMALL_FILES:
            draw_here()
        from intarsia.callbacks import trackers
        from intarsia.training.run import run as train

        folder = Path(experiment.out)
        before = _written(folder)
        how: dict[str, Any] = {"overwrite": overwrite}
        how["callbacks"] = trackers.named(experiment.trackers)

        def start(show: Any, beside: Any) -> Result:
            return train(experiment, progress=show, yardstick_progress=beside, **how)

        _train(start, folder, as_json, quiet, before)


@app.command()
def resume(
    folder: Folder,
    override: Annotated[
        list[str] | None,
        typer.Option(
            "-c",
            metavar="KEY=VALUE",
            help="Set experiment.yardsticks, workers, ray or memory, which a run may change.",
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
    from intarsia.callbacks import trackers
    from intarsia.experiment.config import WHERE, changed_settings
    from intarsia.training.run import resume as go_on

    changed = changed_settings(override or ())
    wanted = changed.get("yardsticks") if yardsticks is None else yardsticks
    how: dict[str, Any] = {"wanted": wanted, "allow_modules": allow_module or ()}
    how |= {key: changed.get(key) for key in WHERE}
    how["callbacks"] = trackers.of_run(folder)

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

    FILE is the experiment file (TOML); its tune table says which keys vary. The same command goes
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
def contribution(
    file: File,
    override: Overrides = None,
    measure: Annotated[
        str | None,
        typer.Option("--measure", metavar="NAME", help="auc, accuracy, r2 or mae, on test rows."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="DIR",
            help="Output folder; default: that of a run, -contribution.",
        ),
    ] = None,
    as_json: AsJson = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace what is in the output folder.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Tell what each party is worth to each other: leave one out, and Shapley values.

    FILE is the experiment file (TOML). It trains without some of the parties, up to five of them in
    every combination, and judges the models by each party's own test rows. The same command goes on
    with what was stopped.
    """
    from intarsia.cli import tables as display
    from intarsia.core.text_tables import show as show_parts
    from intarsia.valuation import study

    experiment, screen = _load(file, override), console()
    place: Any = "" if out is None else out
    how: dict[str, Any] = {"measure": measure, "overwrite": overwrite}
    shown = contextlib.nullcontext() if quiet else display.Watch(screen)
    try:
        _handle({signal.SIGTERM: signal.default_int_handler})
        with shown as show:
            found = study.contribution(experiment, out=place, progress=show, **how)
    except KeyboardInterrupt:
        _end_undisturbed()
        folder = study.output_folder(experiment, place)
        kept = 0 if folder is None else study.kept_coalitions(folder)
        said = "before the first coalition was trained; the same command begins again"
        if kept:
            said = f"and {kept} coalition{'s are' if kept > 1 else ' is'} kept in {folder}; the "
            said += "same command, without --overwrite, goes on with the others"
        raise _StoppedError(f"stopped {said}") from None
    if not quiet:
        show_parts(screen, *found.parts())
    if found.folder is not None:
        say(f"picture: {found.folder / 'contribution.png'}")
    if as_json:
        put(json.dumps(found.to_dict(), ensure_ascii=False, allow_nan=False))


@app.command()
def join(
    folder: Folder,
    table: Annotated[str, typer.Argument(metavar="TABLE")],
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
    """Let a new client join a finished run: by own columns (flic, hetfedrep) or blocks (hyfem).

    DIR is the output folder of the run, which stays as it is; TABLE is the new client's CSV or
    Parquet file, or a database and its table, 'loans.db#customers'. Its model, beside what it
    learns alone, goes to DIR/joined/NAME.
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


def _file_sizes(experiment: Any) -> int:
    """Return how many bytes the files of an experiment's tables have; 0 of those that are not."""
    found = 0
    for source in experiment.clients:
        with contextlib.suppress(OSError):
            found += Path(source.path).stat().st_size if source.path else 0
    return found


def _load(file: Path, overrides: list[str] | None) -> Any:
    from intarsia.experiment import config as experiment
    from intarsia.training.registry import keys_of

    return experiment.load(file, overrides or (), keys_of=keys_of)


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
    if not rounds[-1]:
        return (
            f"stopped with no round kept; this begins with the first one: intarsia resume {place}"
        )
    return f"stopped; this goes on from round {rounds[-1]}: intarsia resume {place}"


def _refused(problem: OSError) -> str:
    """Return what the file system refused, and what is to be done about it."""
    if problem.filename == OUTPUT:
        remedy = "send the results elsewhere"
    elif problem.errno == errno.EFBIG:
        remedy = LONGER
    elif problem.errno in FULL:
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
