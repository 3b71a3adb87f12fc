"""The Python interface: what the command line does, on files or on tables in memory."""

from __future__ import annotations

import dataclasses
import json
import os
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from intarsia.callbacks import trackers
from intarsia.callbacks.callback import checked
from intarsia.core.algorithm import Algorithm
from intarsia.core.block import ClientId
from intarsia.core.schema import Schema
from intarsia.core.text_tables import Part, as_html, as_text
from intarsia.data import dataframe
from intarsia.data.labels import classes_at, notes_on_codes
from intarsia.errors import ExperimentError, UserError, listed, nearest, shown
from intarsia.experiment import config as description
from intarsia.experiment import federation
from intarsia.experiment.config import Experiment, Preprocessing, Split
from intarsia.experiment.search import of_table, to_table
from intarsia.inference import new_client
from intarsia.inspection import overlap
from intarsia.inspection.holdings import Holdings
from intarsia.inspection.overlap import BlockClasses, HoldingsRow, OverlapCounts
from intarsia.inspection.proposals.id_choice import notes_on_ids_as_features
from intarsia.inspection.recommend import Advice, advise
from intarsia.inspection.tables import blocks_table, classes_line, holdings_parts
from intarsia.inspection.tails import (
    notes_on_label,
    notes_on_stand_ins,
    notes_on_tails,
    notes_on_units,
)
from intarsia.plots.block_classes import blocks_picture
from intarsia.plots.overlap import holdings_figure, holdings_picture
from intarsia.reports.holdings import holdings_drawing
from intarsia.results.result import Result
from intarsia.results.run_folder import describe
from intarsia.training import checks
from intarsia.training import registry as catalogue
from intarsia.training import run as running
from intarsia.training.loop import Progress
from intarsia.training.yardsticks import YardstickProgress
from intarsia.tuning import study
from intarsia.tuning.study import Tuned
from intarsia.valuation import study as valuation
from intarsia.valuation.study import Contribution

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LABELS = ("task", "positive", "classes", "class_weight")
_PREPROCESSING = tuple(one.name for one in dataclasses.fields(Preprocessing))
_SPLIT = tuple(one.name for one in dataclasses.fields(Split))
_EXPERIMENT = (
    "checkpoint_seconds",
    "early_stopping",
    "evaluate_every",
    "memory",
    "name",
    "participation",
    "participation_pattern",
    "ray",
    "rounds",
    "seed",
    "state_megabytes",
    "stop_by",
    "tolerance",
    "trackers",
    "workers",
    "yardsticks",
)
# settings for all tables, as one table may have them
_EXAMPLES: dict[str, Any] = {
    "id": "customer",
    "label": "default",
    "weights": "weight",
    "split_by": "patient",
    "id_type": "text",
    "categorical": ["town"],
    "exclude": ["town"],
    "missing": ["NA"],
}
_WHOLE = ("alignment", "privacy")  # given as tables of their own
# whose keys are given by themselves, and one with a value
_APART = {
    "split": (_SPLIT, "test=0.2"),
    "labels": (_LABELS, 'positive="yes"'),
    "preprocessing": (_PREPROCESSING, "standardise=True"),
}
# keys of [tune], which `search` takes
_OF_SEARCH = {
    "trials": "50",
    "objective": '["auc"]',
    "path": "True",
    "ranges": '{"algorithm.rate": {"low": 1e-4, "high": 0.1, "log": True}}',
}
_TABLE_OF = {
    **dict.fromkeys(_LABELS, "labels"),
    **dict.fromkeys(_PREPROCESSING, "preprocessing"),
    **dict.fromkeys(_SPLIT, "split"),
    **dict.fromkeys(_EXPERIMENT, "experiment"),
}


@dataclass(frozen=True, eq=False)
class Inspection:
    """Who holds what, what overlaps, and which algorithm fits."""

    schema: Schema
    clients: tuple[HoldingsRow, ...]
    overlaps: OverlapCounts
    advice: Advice
    picture: Path | None  # where the picture was drawn
    blocks: BlockClasses | None = None  # of named feature blocks; None: there are none
    blocks_picture: Path | None = None
    # class → samples that have it at any client; of numbers to predict: none
    classes: Mapping[str, int] = field(default_factory=dict[str, int])

    def parts(self) -> list[Part]:
        """Return the tables and lines that show it."""
        found = holdings_parts(self.schema, self.clients, self.overlaps, self.advice)
        found.append(classes_line(self.schema.labels, self.classes))
        found += [f"picture: {self.picture}"] if self.picture else []
        if self.blocks is not None:
            found.append(blocks_table(self.blocks))
            found += [f"picture: {self.blocks_picture}"] if self.blocks_picture else []
        return found

    def figure(self) -> Figure:
        """Return the figure of who holds what (matplotlib); what is missing it does not show."""
        return holdings_figure(self.schema, which="all rows")

    def __str__(self) -> str:
        return as_text(self.parts())

    def _repr_html_(self) -> str:
        drawn = holdings_drawing(Holdings.of(self.schema))
        return f"<div>{drawn}</div>{as_html(self.parts())}"


def run(
    experiment: Experiment | str | Path | None = None,
    *,
    tables: Mapping[ClientId, Any] | None = None,
    id: str | None = None,
    label: str | None = None,
    weights: str | None = None,
    id_type: Literal["integer", "text"] | None = None,
    categorical: Sequence[str] = (),
    exclude: Sequence[str] = (),
    missing: Sequence[str] | None = None,
    table_settings: Mapping[ClientId, Mapping[str, Any]] | None = None,
    algorithm: str | Algorithm | Mapping[str, Any] | None = None,
    out: str | Path | None = "",
    overwrite: bool = False,
    progress: Callable[[Progress], None] | None = None,
    yardstick_progress: Callable[[YardstickProgress], None] | None = None,
    callbacks: Sequence[Any] = (),
    **settings: Any,
) -> Result:
    """Train across clients; then train two reference models beside the result.

    Parameters
    ----------
    experiment
        An experiment, or the path of its TOML file.
    tables
        The clients' tables by name, instead: pandas or polars DataFrames, matrices x, or pairs
        (x, y); see `intarsia.data.dataframe` for what their rows and columns mean.
    id
        The column with the ids that clients share; None: the rows belong to each client alone;
        "row" for matrices: row i is the same sample at all clients.
    label
        The column with the labels; a DataFrame without it is a client without labels.
    weights
        The column with the weight of each row's loss, where labels are; None: all count alike.
    id_type, categorical, exclude, missing
        As in an experiment file, for all tables that have these columns.
    table_settings
        Settings of single tables, by name; they go before those for all.
    algorithm
        "hyfdca" (for `tables` the default), "fedavg", "cocoa", "flic-linear", "centralised",
        "liblinear" or "standalone"; with the library torch "flic", "hyfem", "femam", "femam-flic",
        "fesem", "ifca", "hetfedrep", "local", "fedhenn", "fedrep", "fedavg-ft", "fedprox",
        "ditto", "pfedme", "l2gd" or "own-networks" (your own modules); the name of one that an
        installed package adds; or an `intarsia.core.Algorithm` of your own, which `resume` needs
        again. It goes before that of an experiment, whose file need not name one: of its keys
        loss (with its shape) and regularisation stay if the algorithm has them; all do where the
        names are the same. A mapping has the keys of the file's table [algorithm]: the name (or an
        Algorithm) and hyperparameters, also those that have the name of another setting, such as
        the `alignment` of flic.
    out
        Output folder; "" = the experiment's (with `tables`: nothing is written), None = nothing
        is written.
    overwrite
        Replace a result in the folder, once the tables were read and found good.
    progress
        Called after every round.
    yardstick_progress
        Called as the reference models are trained, after the run's own result was written.
    callbacks
        Objects with methods of `intarsia.callbacks.Callback`, such as `intarsia.callbacks.MLflow`
        makes. Their errors are told in warnings, and training goes on.
    settings
        Keys of the file's tables [experiment], [split], [preprocessing] and [labels] (seed, rounds,
        tolerance, yardsticks, test, standardise, positive, …), and the algorithm's hyperparameters
        (loss, regularisation, …). `privacy` is a mode ("plain", "masked", "ckks") or the keys of
        [privacy] as a mapping, `alignment` those of [alignment]. They go before those of
        `experiment`. For `tables` also decimal, thousands, dates, label_map, least_rows, split_by
        and split_by_pattern, as in an experiment file.

    Raises
    ------
    UserError
        If a setting, a table or the output folder is wrong.
    ConvergenceError
        If training diverges.

    Examples
    --------
    >>> intarsia.run("mine.toml", seed=3)
    >>> intarsia.run(tables={"bank": bank, "shop": shop}, id="customer", label="default")
    >>> intarsia.run("mine.toml", privacy={"mode": "masked", "epsilon": 1.0})
    >>> intarsia.run("mine.toml", algorithm={"name": "flic", "alignment": "transport"})
    >>> intarsia.run("mine.toml", algorithm=MINE, regularisation=0.1)
    """
    _check_output(out)
    names = {"id": id, "label": label, "categorical": categorical, "exclude": exclude}
    shared = _shared(**names, weights=weights, id_type=id_type, missing=missing)
    described, read = _described(experiment, tables, shared, table_settings, algorithm, settings)
    if out == "" and tables is not None:
        out = None
    watchers: dict[str, Any] = _called(progress=progress, yardstick_progress=yardstick_progress)
    watchers["callbacks"] = [*trackers.named(described.trackers), *checked(callbacks)]
    return running.run(described, tables=read, out=out, overwrite=overwrite, **watchers)


def resume(
    folder: str | Path,
    *,
    tables: Mapping[ClientId, Any] | None = None,
    table_settings: Mapping[ClientId, Mapping[str, Any]] | None = None,
    algorithm: Algorithm | None = None,
    progress: Callable[[Progress], None] | None = None,
    yardstick_progress: Callable[[YardstickProgress], None] | None = None,
    callbacks: Sequence[Any] = (),
    yardsticks: bool | None = None,
    workers: int | None = None,
    ray: str | None = None,
    allow_modules: Collection[str] = (),
) -> Result:
    """Go on with a run that was stopped, to the same bits; a finished one is returned as it is.

    Of a run that was trained the reference models are made that are missing.

    Parameters
    ----------
    folder
        The output folder of the run.
    tables, table_settings
        The same tables again, where the run was given tables; of the settings only the arrays
        (labels, names, samples) are needed again.
    algorithm
        The same one again, where the run was given an Algorithm and not its name.
    progress
        Called after every round.
    yardstick_progress
        Called as the reference models are trained.
    callbacks
        As for `run`, beside the trackers that the experiment names.
    yardsticks
        Whether the run gets reference models from here on; None: as it was begun.
    workers
        How many processes compute from here on, to the same bits; None: as it was begun.
    ray
        Address of the Ray cluster that has these; "": this machine; None: as it was begun, unless
        that was with an address.
    allow_modules
        Those that its networks may be made of, where the folder names some.

    Raises
    ------
    CheckpointError
        If the folder holds no run, one of another algorithm, or names another module, or the
        tables changed since it was started.
    ExperimentError
        If the folder names a Ray cluster, and `ray` does not say whether it is taken.
    """
    how: dict[str, Any] = {
        **_called(progress=progress, yardstick_progress=yardstick_progress),
        "callbacks": [*trackers.of_run(folder), *checked(callbacks)],
        "wanted": yardsticks,
        "workers": workers,
        "ray": ray,
        "algorithm": algorithm,
        "allow_modules": allow_modules,
    }
    if tables is None:
        return running.resume(folder, **how)
    given, own, sources = tables, table_settings, describe(Path(folder), None).clients
    return running.resume(folder, tables=lambda: dataframe.tables_of(given, sources, own), **how)


def tune(
    experiment: Experiment | str | Path | None = None,
    *,
    tables: Mapping[ClientId, Any] | None = None,
    id: str | None = None,
    label: str | None = None,
    weights: str | None = None,
    id_type: Literal["integer", "text"] | None = None,
    categorical: Sequence[str] = (),
    exclude: Sequence[str] = (),
    missing: Sequence[str] | None = None,
    table_settings: Mapping[ClientId, Mapping[str, Any]] | None = None,
    algorithm: str | Algorithm | Mapping[str, Any] | None = None,
    search: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    progress: Callable[[Progress], None] | None = None,
    **settings: Any,
) -> Tuned:
    """Look for hyperparameters on held-out training samples; the test part is not used.

    The same call goes on with a search that was stopped.

    Parameters
    ----------
    search
        Keys of the file's table [tune] (trials, folds, objective, path, ranges), before those of
        `experiment`.
    out
        The output folder; None: that of the experiment with "-tuning" behind its name. With
        `tables` it is needed.
    experiment, tables, id, label, weights, id_type, categorical, exclude, missing, \
    table_settings, algorithm, overwrite, progress, settings
        As for `run`.

    Raises
    ------
    UserError
        If a setting or a table is wrong, optuna is not installed, or the folder has the search of
        another experiment.
    ConvergenceError
        If training diverges in every trial.

    Examples
    --------
    >>> found = intarsia.tune("mine.toml", search={"trials": 50})
    >>> found.chosen.values
    {'algorithm.regularisation': 0.0096}
    """
    for key, example in _OF_SEARCH.items():
        if key in settings:
            raise ExperimentError(
                f"{key} is {shown(settings[key])}; it is a key of [tune], given in search, such as "
                f"search={{{key!r}: {example}}}."
            )
    _check_output(out)
    names = {"id": id, "label": label, "categorical": categorical, "exclude": exclude}
    shared = _shared(**names, weights=weights, id_type=id_type, missing=missing)
    described, read = _described(experiment, tables, shared, table_settings, algorithm, settings)
    if search is not None:
        known = {} if described.tune is None else to_table(described.tune)
        described = dataclasses.replace(described, tune=of_table({**known, **_plain(search)}))
    out = out or None
    if out is None and tables is not None:
        raise ExperimentError("A search over tables in memory has no output folder; give out.")
    how: dict[str, Any] = {"out": out, "overwrite": overwrite, **_called(progress=progress)}
    return study.tune(described, tables=read, **how)


def contribution(
    experiment: Experiment | str | Path | None = None,
    *,
    tables: Mapping[ClientId, Any] | None = None,
    id: str | None = None,
    label: str | None = None,
    weights: str | None = None,
    id_type: Literal["integer", "text"] | None = None,
    categorical: Sequence[str] = (),
    exclude: Sequence[str] = (),
    missing: Sequence[str] | None = None,
    table_settings: Mapping[ClientId, Mapping[str, Any]] | None = None,
    algorithm: str | Mapping[str, Any] | None = None,
    measure: Literal["auc", "accuracy", "r2", "mae"] | None = None,
    out: str | Path | None = "",
    overwrite: bool = False,
    progress: Callable[[Progress], None] | None = None,
    **settings: Any,
) -> Contribution:
    """Return what each party is worth to each other: leave one out, and Shapley values.

    It trains without some of the parties, up to five of them in every combination. The same call
    goes on with what was stopped.

    Parameters
    ----------
    measure
        On a party's own test rows; None: AUC of two classes, accuracy of more, R² of numbers.
    out
        The output folder; "" = that of the experiment with "-contribution" behind its name (with
        `tables`: nothing is written), None = nothing is written.
    progress
        Called after every round of every run.
    experiment, tables, id, label, weights, id_type, categorical, exclude, missing, \
    table_settings, algorithm, overwrite, settings
        As for `run`.

    Raises
    ------
    UserError
        If a setting or a table is wrong, a party's table is not here, or the folder holds something
        else.
    ConvergenceError
        If training with all parties diverges.

    Examples
    --------
    >>> found = intarsia.contribution("mine.toml")
    >>> found.shapley["bank"]["shop"].value  # of the shop, to the bank
    0.0135
    """
    _check_output(out)
    names = {"id": id, "label": label, "categorical": categorical, "exclude": exclude}
    shared = _shared(**names, weights=weights, id_type=id_type, missing=missing)
    described, read = _described(experiment, tables, shared, table_settings, algorithm, settings)
    if out == "" and tables is not None:
        out = None
    how: dict[str, Any] = {"out": out, "overwrite": overwrite, **_called(progress=progress)}
    return valuation.contribution(described, tables=read, measure=measure, **how)


def inspect(
    experiment: Experiment | str | Path | None = None,
    *,
    tables: Mapping[ClientId, Any] | None = None,
    id: str | None = None,
    label: str | None = None,
    weights: str | None = None,
    id_type: Literal["integer", "text"] | None = None,
    categorical: Sequence[str] = (),
    exclude: Sequence[str] = (),
    missing: Sequence[str] | None = None,
    table_settings: Mapping[ClientId, Mapping[str, Any]] | None = None,
    picture: str | Path | None = None,
    **settings: Any,
) -> Inspection:
    """Return who holds what, what overlaps, and which algorithm fits and why.

    Parameters
    ----------
    picture
        Draw it as a PNG with this path; and beside it, with `-blocks` in its name, how many clients
        hold each named feature block of each class.
    experiment, tables, id, label, weights, id_type, categorical, exclude, missing
        As for `run`.
    table_settings, settings
        As for `run`.

    Raises
    ------
    UserError
        If a setting or a table is wrong.
    """
    names = {"id": id, "label": label, "categorical": categorical, "exclude": exclude}
    shared = _shared(**names, weights=weights, id_type=id_type, missing=missing)
    described, read = _described(experiment, tables, shared, table_settings, None, settings)
    if read is None and described.dataset is None:
        once = federation.read_tables(described)
        read = once.copy  # for both that look at them
    chosen = described.algorithm if tables is None else None
    return inspection_of(described, read, chosen, picture)


def inspection_of(
    described: Experiment,
    read: federation.Tables | None,
    chosen: str | None,
    picture: str | Path | None = None,
) -> Inspection:
    """Return what `inspect` does, of tables that were read already; None: of a data set.

    `chosen` is the algorithm that remarks are about; None: the one that fits.
    """
    obstacle = _obstacle(described, read)  # first, as each block is to be there once
    blocks, labels, rare = federation.parties(described, read)
    schema = Schema.of(blocks, labels)
    advice = advise(schema, chosen, described.labels)
    coded: tuple[str, ...] = ()
    if read is not None:
        coded = notes_on_codes(classes_at(blocks, labels), labels, described.labels)
        if described.hyperparameters.get("loss", "squared") == "squared":
            coded += notes_on_label(blocks, labels)
        marks = {one.name: one.missing for one in described.clients}
        coded += (*notes_on_stand_ins(blocks, marks), *notes_on_units(blocks, labels))
        coded += (*notes_on_ids_as_features(blocks), *notes_on_tails(blocks))
        coded += (*rare, *overlap.notes_on_copies(blocks, schema))
    held = overlap.block_classes(blocks, labels)
    drawn = beside = None
    if picture is not None:
        drawn = holdings_picture(blocks, picture, classes=labels.classes, which="all rows")
    if picture is not None and held is not None:
        beside = Path(picture).with_name(f"{Path(picture).stem}-blocks.png")
        beside = blocks_picture(held, beside)
    return Inspection(
        schema,
        tuple(overlap.holdings_table(blocks, schema)),
        overlap.overlap_counts(schema),
        dataclasses.replace(advice, obstacle=obstacle, remarks=(*coded, *advice.remarks)),
        drawn,
        held,
        beside,
        overlap.class_counts(blocks, labels),
    )


def join(
    folder: str | Path,
    table: Any,
    *,
    name: ClientId | None = None,
    id: str | None = None,
    label: str | None = None,
    id_type: Literal["integer", "text"] | None = None,
    categorical: Sequence[str] = (),
    exclude: Sequence[str] = (),
    missing: Sequence[str] | None = None,
    epochs: int | None = None,
    seed: int | None = None,
    out: str | Path | None = "",
    overwrite: bool = False,
    allow_modules: Collection[str] = (),
    **reading: Any,
) -> Result:
    """Let a new client join a finished run of flic, hetfedrep or hyfem.

    It gets what all share, and learns an embedding of its own columns and a classifier; of hyfem it
    takes the server's network of the feature blocks that it has, and goes on with it for `epochs`.
    In the federation nothing changes. The result has its scores beside those of a network of its
    own rows alone (as many epochs, but none for those of alignment before, which a note counts; of
    hyfem as many rounds as the run), and its model.

    Parameters
    ----------
    folder
        The output folder of the run.
    table
        The new client's table: the path of a file, a DataFrame, or a pair (x, y); or a table of a
        database, as `intarsia init` takes it.
    name
        The new client's; None: the file's name without its ending, or "new".
    id, label
        Its columns with ids and labels; None: the label column of the federation, and the column
        that all its clients have their ids in, where the table has it.
    id_type, categorical, exclude, missing
        As in an experiment file; of a file, what was missing in training is missing too.
    epochs
        Of embedding and classifier; None: as many as a client of the run had on the average, and
        of hyfem none: the network stays as the server has it.
    seed
        Of the client's own random numbers; None: the run's.
    out
        The client's output folder; "" = joined/NAME in the run's, None = nothing is written.
    overwrite
        Replace a result in the output folder, once the table was found good.
    allow_modules
        Those that networks may be made of, where the run's folder names some.
    reading
        decimal, thousands, encoding, dates and label_map, as in an experiment file; not given: what
        all the run's clients have alike.

    Raises
    ------
    UserError
        If the run shares nothing to join by, the table or its labels do not fit, or the output
        folder holds a result.

    Examples
    --------
    >>> intarsia.join("runs/clinics", "new.csv", label="diagnosis").metrics.clients
    """
    folder = Path(folder)
    _check_output(out)
    names = {"id": id, "label": label, "categorical": categorical, "exclude": exclude}
    shared = _shared(**names, **reading, id_type=id_type, missing=missing)
    source, read = new_client.described(folder, table, name, shared)
    if out == "":
        out = folder / "joined" / source.name
    target = None if out is None else Path(out).resolve()
    how: dict[str, Any] = {"epochs": epochs, "seed": seed, "overwrite": overwrite}
    return new_client.join(
        folder, source, tables=read, out=target, allow_modules=allow_modules, **how
    )


def _check_output(out: Any) -> None:
    """Raise ExperimentError if no folder can be made at a place; "" and None name none."""
    if out is None or out == "":
        return
    if not isinstance(out, str | os.PathLike) or "\0" in str(out):
        raise ExperimentError(
            f"out is {shown(out)}; give the path of a folder, as a text or a Path."
        )
    place = Path(out)
    try:
        above = next((one for one in (place, *place.absolute().parents) if one.exists()), place)
    except OSError as problem:  # such as of a name that is too long
        raise ExperimentError(
            f"out is {shown(out)}, which no folder can be called ({problem.strerror}); choose "
            "another one."
        ) from None
    if above != place and not above.is_dir():
        raise ExperimentError(f"out is {shown(out)}, and {above} is no folder; choose another one.")
    if above.is_dir() and not os.access(above, os.W_OK):
        raise ExperimentError(
            f"out is {shown(out)}, and this user may not write into {above}; choose another one."
        )


def _obstacle(described: Experiment, tables: federation.Tables | None) -> str:
    """Return what a run would refuse, of the training part as of the whole; "": nothing."""
    try:
        schema = federation.build(described, tables).schema
        checks.check_fit(described, *catalogue.choose(described), schema)
    except UserError as problem:
        return str(problem)
    return ""


def _called(**given: Any) -> dict[str, Any]:
    """Return functions that are called as work goes on; ExperimentError if one is none."""
    for key, value in given.items():
        if value is not None and not callable(value):
            raise ExperimentError(
                f"{key} is {shown(value)}; expected a function that is called as work goes on, "
                "such as print, or None: then nothing is shown."
            )
    return given


def _shared(**given: Any) -> dict[str, Any]:
    """Return the settings that are given for all tables; an empty list of names is none.

    ExperimentError if one is a mapping, such as from tables to columns, or id, label, weights or
    split_by is no text.
    """
    for key, value in given.items():
        column = key in ("id", "label", "weights", "split_by")
        if key not in _EXAMPLES or isinstance(value, str | None):
            continue
        if not (column or isinstance(value, Mapping)):
            continue
        told = value if isinstance(value, Mapping) and value else {}
        name, own = next(iter(told.items()), ("bank", _EXAMPLES[key]))
        wanted = "the name of one column" if column else "one setting for all tables"
        raise ExperimentError(
            f"{key} is {shown(value)}; expected {wanted}: where tables have different ones, set it "
            "for each in table_settings, as in table_settings="
            f'{{"{name}": {{"{key}": {json.dumps(own, default=shown)}}}}}.'
        )
    return {
        key: value
        for key, value in given.items()
        if value is not None and (key not in ("categorical", "exclude") or value)
    }


def _described(
    experiment: Experiment | str | Path | None,
    tables: Mapping[ClientId, Any] | None,
    shared: Mapping[str, Any],
    own: Mapping[ClientId, Mapping[str, Any]] | None,
    algorithm: str | Algorithm | Mapping[str, Any] | None,
    settings: Mapping[str, Any],
) -> tuple[Experiment, federation.Tables | None]:
    """Return the experiment, and what makes the tables that are in memory."""
    if (experiment is None) == (tables is None):
        there = "is neither an experiment nor" if tables is None else "are both an experiment and"
        raise ExperimentError(
            f"There {there} tables; pass the path of an experiment file, or "
            'tables={"bank": bank, "shop": shop}.'
        )
    more = {key: settings[key] for key in dataframe.FOR_ALL if key in settings}
    shared = {**shared, **_shared(**more)}
    settings = {key: value for key, value in settings.items() if key not in dataframe.FOR_ALL}
    if tables is None:
        if shared or own:
            key = next(iter(shared), "table_settings")
            raise ExperimentError(
                f"{key} is given, but the clients' tables are described in the experiment; set it "
                "there, or pass tables."
            )
        if not isinstance(experiment, Experiment):
            name = algorithm.get("name") if isinstance(algorithm, Mapping) else algorithm
            named = name.name if isinstance(name, Algorithm) else name
            known = named if isinstance(named, str) else ""
            experiment = description.load(experiment or "", algorithm=known)
        return _changed(experiment, algorithm, settings), None
    given = dict(tables) if isinstance(tables, Mapping) else tables
    sources = dataframe.sources_of(given, shared, own)
    first = Experiment(name="tables", algorithm="hyfdca", clients=sources)
    made = _changed(first, algorithm, settings)
    return made, lambda: dataframe.tables_of(given, sources, own)


def _check_apart(settings: Mapping[str, Any]) -> None:
    """Refuse a table of the file that is given as one, or by client."""
    for table, (keys, example) in _APART.items():
        if table not in settings:
            continue
        given = settings[table]
        told = given if isinstance(given, Mapping) else {}
        if told and all(key in keys for key in told):
            example = ", ".join(f"{key}={shown(value)}" for key, value in told.items())
        by_table = ""
        if table == "labels":
            by_table = (
                " Labels of a single table are a column that label names, y of a pair (x, y), or "
                'labels in table_settings, such as {"bank": {"labels": y}}.'
            )
        raise ExperimentError(
            f"{table} is {shown(given)}; expected the keys of [{table}] by themselves, for all "
            f"clients alike, such as {example}.{by_table}"
        )


def _changed(
    experiment: Experiment,
    algorithm: str | Algorithm | Mapping[str, Any] | None,
    settings: Mapping[str, Any],
) -> Experiment:
    """Return an experiment with other settings."""
    if algorithm is None and not settings:
        return experiment
    settings = _plain(settings)
    _check_apart(settings)
    tree, own = description.to_dict(experiment), experiment.own_algorithm
    given = _plain(algorithm) if isinstance(algorithm, Mapping) else {}
    if algorithm is not None and not isinstance(algorithm, Mapping):
        given = {"name": algorithm}
    name = given.get("name")
    if name is not None:
        own = None
    if name is not None and not isinstance(name, str | Algorithm):
        raise ExperimentError(
            f"The algorithm's name is {repr(name)[:80]}; give a name, such as 'hyfdca', or an "
            "intarsia.core.Algorithm of your own."
        )
    if name is not None and not isinstance(name, str):
        own = catalogue.checked_algorithm(name, "The algorithm")
        name = given["name"] = own.name
    if isinstance(name, str) and name != experiment.algorithm:
        other = own or catalogue.algorithm_named(name)
        known = {one.name for one in dataclasses.fields(other.hyperparameters)}
        stays = known & {"loss", "huber_delta", "quantile", "regularisation"}
        left = sorted((known - stays - given.keys() - settings.keys()) & tree["algorithm"].keys())
        if left:
            warnings.warn(
                f"The algorithm {name!r} is given, which goes before {experiment.algorithm!r} of "
                f"the experiment: its {listed(left)} is left out; give it beside the algorithm, or "
                "write the name into the experiment.",
                stacklevel=4,
            )
        tree["algorithm"] = {key: one for key, one in tree["algorithm"].items() if key in stays}
    tree["algorithm"] = {**tree["algorithm"], **given}
    for key, value in settings.items():
        if key in _WHOLE:
            table = {"mode": value} if key == "privacy" and isinstance(value, str) else value
            if key == "alignment" and isinstance(value, str):
                raise ExperimentError(
                    f"alignment is {value!r}; here it is the table [alignment] of the file, as a "
                    "mapping. For the hyperparameter give it with the algorithm: "
                    f"algorithm={{'name': 'flic', 'alignment': {value!r}}}."
                )
            tree[key] = {**tree[key], **table} if isinstance(table, Mapping) else table
        else:
            if key == "class_weight" and isinstance(value, Mapping):
                value = {str(name): one for name, one in value.items()}  # a class may be a number
            home = _TABLE_OF.get(key, "algorithm")
            tree[home] = {**tree[home], key: value}
    changed = description.from_dict(tree, ".", experiment.name)
    changed = dataclasses.replace(changed, own_algorithm=own)
    _check_keys(changed, settings)
    return changed


def _plain(given: Any) -> Any:
    """Return a setting as a file has it: what NumPy and pandas have as Python's own values."""
    if isinstance(given, Mapping):
        return {key: _plain(one) for key, one in given.items()}
    if type(given) in (list, tuple):
        return type(given)(map(_plain, given))
    return given.tolist() if callable(getattr(given, "tolist", None)) else given


def _check_keys(experiment: Experiment, settings: Mapping[str, Any]) -> None:
    """Refuse a setting that neither the experiment nor the algorithm knows."""
    kind = catalogue.kind_of(experiment).hyperparameters
    known = [*(one.name for one in dataclasses.fields(kind)), *_TABLE_OF, *_WHOLE]
    for key in settings:
        if key not in known:
            raise ExperimentError(
                f"There is no setting {key!r} for the algorithm {experiment.algorithm!r}; "
                f"{nearest(key, known)}."
            )
