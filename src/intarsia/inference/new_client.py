"""Let a new client join a finished run: it learns its own parts of a network, and nobody else.

FLIC's paper, S1.4: the client gets what all share, the hidden layer α and the anchors, and learns
an embedding φ of its own columns and a classifier β; α and the anchors stay as they are (how:
`algorithms.flic.algorithm`). Of a run of hetfedrep it takes α. Beside it a network of the same
embedding and classifier (no α, as in `local`) trains for the same epochs and has nothing from the
federation. With anchors the joined one has had more passes over its rows: those of its alignment
before, which a note of the result counts. Of a run of hyfem it takes the server's network of its
blocks (`new_client_hyfem`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intarsia.core.algorithm import Algorithm, FinalResult, LocalBaseline, RoundMetrics
from intarsia.core.block import Array, ClientId
from intarsia.core.client_functions import evolve
from intarsia.core.plugins import check_allowed
from intarsia.core.settings import hyperparameters
from intarsia.data import dataframe
from intarsia.data.labels import OTHER, LabelSettings
from intarsia.data.source import Source
from intarsia.engines.simulation import Simulation
from intarsia.errors import CheckpointError, ExperimentError, FederationError, listed
from intarsia.experiment.config import Alignment, Experiment
from intarsia.experiment.federation import Federation, Tables, build
from intarsia.inference import new_table
from intarsia.inference.new_client_hyfem import join_blocks
from intarsia.models.build import client_networks
from intarsia.privacy.settings import Privacy
from intarsia.results import run_folder
from intarsia.results.result import Result, better_alone
from intarsia.training import outcome as outcomes
from intarsia.training import timing
from intarsia.training.loop import Part, evaluate_clients
from intarsia.training.registry import algorithm_named
from intarsia.training.run import load
from intarsia.training.setup import LocalParties, set_up
from intarsia.training.timing import Clock

if TYPE_CHECKING:
    from intarsia.models.networks import Networks


_JOINABLE = ("flic", "hetfedrep", "hyfem")
_SCALE = ("centre", "spread")  # what a network that predicts numbers says of the labels


def join(
    folder: Path,
    source: Source,
    *,
    tables: Tables | None = None,
    epochs: int | None = None,
    seed: int | None = None,
    out: Path | None = None,
    overwrite: bool = False,
    allow_modules: Collection[str] = (),
) -> Result:
    """Train a new client's network on what a finished federation shares.

    Parameters and errors are those of `intarsia.join`; `source` is the new client and its table,
    which is in `tables` where it is in memory. `epochs` are of φ and β.
    """
    clock, started = Clock(), datetime.now(UTC)
    with clock.part("tables"):
        run = load(folder, allow_modules)
        described = run_folder.describe(folder, allow_modules)
        check_allowed(run.hyperparameters, allow_modules, folder)
        model = _joinable(run, folder)
        if source.name in model:
            raise FederationError(
                f"The run in {folder} has a client {source.name!r} already; give the new one "
                "another name."
            )
        kind = algorithm_named(run.algorithm).hyperparameters
        options: Any = hyperparameters(kind, run.hyperparameters)
        if run.algorithm != "hyfem":
            options = _with_epochs(options, epochs, run.rounds * described.participation)
        experiment = _experiment(
            *(described, model, source),
            hyperparameters=asdict(options),
            seed=described.seed if seed is None else seed,
            out="" if out is None else str(out),
        )
        server = model.server if run.algorithm == "hyfem" else None
        levels = None if server is None else server.levels_
        found = build(experiment, tables, some=True, levels=levels)
        if out is not None:
            _check_output(out, folder, overwrite)
    with timing.limited(described.threads):
        if run.algorithm == "hyfem":
            with clock.part("training"):
                outcome, networks = join_blocks(
                    *(model, found, options, experiment.seed), epochs=epochs or 0, rounds=run.rounds
                )
            traffic: dict[str, Any] = {}
        else:
            outcome, networks, traffic = _join_layers(model, found, experiment, options, clock)
    result = outcomes.result_of(
        *(experiment, options, replace(outcome, notes=(*found.notes, *outcome.notes))),
        outcomes.Cost(started, clock.seconds, **traffic),
        networks.labels,
        trained=networks,
        folder=out,
    )
    result = replace(result, notes=(*result.notes, *better_alone(result.metrics)))
    return outcomes.finish_run(result, whole=(experiment, found.fingerprint()))


def described(
    folder: Path, table: Any, name: ClientId | None, settings: Mapping[str, Any]
) -> tuple[Source, Tables | None]:
    """Return the description of a new client's table, and the table where it is in memory.

    Label and id column are those of the run's clients, if the table has them and no other is named;
    so is the column that rows are split by.

    Raises
    ------
    UserError
        If it is no table, or a setting is wrong.
    """
    known = new_table.table_settings(folder)
    in_memory = not isinstance(table, str | Path)
    if in_memory:
        name = "new" if name is None else name
        names = [str(column) for column in getattr(table, "columns", ())]
    else:
        place = new_table.place_of(folder, table)
        kind = new_table.check_table(place)
        if name is None:
            name = place.name if place.path is None else Path(place.path).name.split(".")[0]
        names = new_table.column_names(place, known, kind)
    by = next((column for column in known.splits if column in names), None)
    split: dict[str, Any] = {}
    if by is not None and "split_by" not in settings:
        split = {"split_by": by, "split_by_pattern": known.splits[by]}
    found = {
        "label": next((column for column in known.labels if column in names), None),
        "id": next((column for column in known.ids if column in names), None),
        **split,
        **settings,
        "least_rows": 1,  # nothing of the table leaves the new client
    }
    found = {**known.reading, **known.amounts(names), **found}
    if "/" in name or name in (".", ".."):
        raise ExperimentError(f"The client's name is {name!r}; give it one without a slash.")
    if in_memory:
        given = {name: table}
        sources = dataframe.sources_of(given, found)
        return sources[0], lambda: dataframe.tables_of(given, sources)
    if isinstance(found.get("missing"), list | tuple):
        found["missing"] = (*known.missing, *found["missing"])
    files = {
        "path": None if place.path is None else str(Path(place.path).resolve()),
        "url": place.url,
        "query": place.query,
        "missing": known.missing,
        "separator": new_table.separator_of(place, known, kind),
    }
    chosen = {key: value for key, value in {**files, **found}.items() if value is not None}
    return hyperparameters(Source, {"name": name, **chosen}, f"Table {name!r}"), None


def _joinable(run: Result, folder: Path) -> Networks:
    """Return the model of a run that a new client can join."""
    if run.algorithm not in _JOINABLE or run.model is None:
        raise ExperimentError(
            f"The run in {folder} is of {run.algorithm}, and a new client joins by layers or "
            "anchors behind an embedding of its own columns, or by feature blocks; join a run of "
            f"{' or '.join(_JOINABLE)}."
        )
    model: Networks = run.model
    return model


def _check_output(out: Path, folder: Path, overwrite: bool) -> None:
    """Raise where the new client's result would replace one that is to stay."""
    if out.resolve() == folder.resolve():
        raise CheckpointError(
            f"{out} is the folder of the run that the new client joins, which stays as it is; "
            "choose another one with --out or --name."
        )
    if not overwrite:
        run_folder.claim(out, "--out or --name")


def _with_epochs(options: Any, epochs: int | None, rounds: float) -> Any:
    """Return the run's hyperparameters with the epochs that the new client trains for."""
    if epochs is None:
        epochs = round(rounds * options.local_epochs) + options.final_epochs
    if epochs < 1:
        raise ExperimentError(f"epochs is {epochs}; a new client learns in at least 1.")
    return replace(options, final_epochs=epochs)


def _experiment(described: Experiment, model: Networks, source: Source, **own: Any) -> Experiment:
    """Return the experiment of the new client alone, with the federation's labels and split."""
    return replace(
        described,
        name=f"{source.name} joins {described.name}",
        participation=1.0,
        yardsticks=False,
        labels=_labels(described.labels, model),
        alignment=Alignment(dictionary=_dictionary(described)),
        privacy=Privacy(),
        dataset=None,
        partition=None,
        clients=(source,),
        **own,
    )


def _dictionary(described: Experiment) -> str | None:
    """Return the dictionary of a run's columns, which may have the new client's; None: none."""
    path = described.alignment.dictionary
    return path if path and Path(path).is_file() else None


def _labels(known: LabelSettings, model: Networks) -> LabelSettings:
    """Return the federation's classes, of which the new client need not have more than one."""
    classes = model.labels.classes
    if known.positive is None:
        return LabelSettings(task=model.labels.task, classes=classes)
    if known.classes or classes[0] == OTHER:  # the names of the others: given, or not kept
        return known
    return replace(known, classes=(classes[0], *known.positives))


def _join_layers(
    model: Networks, found: Federation, experiment: Experiment, options: Any, clock: Clock
) -> tuple[outcomes.Outcome, Networks, dict[str, Any]]:
    """Let the one client learn behind what all share, and alone; return the traffic too."""
    from intarsia.algorithms.networks.parameter_sharing import Shared, network
    from intarsia.algorithms.personalised import fedrep  # here: they import torch

    algorithm = algorithm_named(model.algorithm)
    assert algorithm.federated
    assert algorithm.model.join is not None
    part: Part = "test" if found.tested else "train"
    with clock.part("preprocessing"):
        parties = LocalParties(experiment, found.parts, alone=True)
        engine, notes = set_up(parties, experiment.preprocessing, found.schemas)
    assert isinstance(engine, Simulation)
    [name] = engine.ids
    with clock.part("training"):
        _start(engine, algorithm, options, model)
        drawn = engine.get_states()[name].parameters
        algorithm.model.join(engine, options, _shared_vector(model, options.shared_parts, drawn))
        with engine.books.unmetered():
            metrics = evaluate_clients(engine, algorithm, options, part)
    state, books = engine.get_states()[name], engine.books
    traffic = {"bytes": books.traffic.summary(), "exchanges": books.traffic.exchanges}
    local = LocalBaseline("local").options(fedrep.Local, options)
    with clock.part("yardsticks"), books.unmetered():
        _start(engine, fedrep.LOCAL, local, model)
        engine.ask(fedrep.personalise, {name: Shared(shared=None, round=0)})
        alone = evaluate_clients(engine, fedrep.LOCAL, local, part)
    networks = client_networks(
        *(model.algorithm, engine.schema("train"), lambda _: options.architecture),
        *({name: network(state)}, parties.scaling),
    )
    said, final = (*notes, *_notes(options, tested=found.tested)), FinalResult(RoundMetrics())
    outcome = outcomes.Outcome(0, "algorithm", final, None, metrics, said, standalone=alone)
    return outcome, networks, traffic


def _start(engine: Simulation, algorithm: Algorithm, options: Any, model: Networks) -> None:
    """Give the client a new state, with the scale of labels that are numbers as in the run."""
    engine.begin_round(1)
    engine.begin(algorithm, options)
    [name] = engine.ids
    first = next(iter(model.values())).parameters
    scale = {key: float(first[f"labels.{key}"]) for key in _SCALE if f"labels.{key}" in first}
    if scale:
        engine.set_states({name: evolve(engine.get_states()[name], **scale)})


def _shared_vector(model: Networks, parts: Sequence[str], names: Iterable[str]) -> Array:
    """Return what all clients of a run share, as they were told it.

    `names` are those of the new client's parameters, of which it takes what `parts` name.
    """
    from intarsia.algorithms.networks.client_network import part_vector  # here: it imports torch

    shared = model.shared
    needed = [name for name in names if any(fnmatchcase(name, part) for part in parts)]
    lacking = [name for name in needed if name not in shared]
    if lacking and len(model) == 1:
        raise ExperimentError(
            f"The run has one client, {next(iter(model))!r}, and all of its network "
            f"({listed(lacking, 3)}) is its own; join a run of several clients."
        )
    if lacking:
        raise ExperimentError(
            f"The run's model/shared.npz lacks {listed(lacking, 3)}, as clients that train these "
            "each for itself at the end leave nothing of them for a new one to take; join a run "
            'with algorithm.final_epochs = 0, or with the scheme "fedrep".'
        )
    return part_vector({name: shared[name] for name in needed}, parts)


def _notes(options: Any, *, tested: bool) -> tuple[str, ...]:
    notes = []
    epochs, after = getattr(options, "pretraining_epochs", 0), options.final_epochs
    if epochs:
        notes.append(
            f"Before its {after:,} epochs the new client's embedding had {epochs:,} of alignment "
            f"with the anchors on its own rows, and the stand-alone network had {after:,} in all; "
            f"to compare at as many passes over the rows, join with epochs = {epochs + after:,} "
            "and take what stand-alone comes to there."
        )
    if not tested:
        notes.append(
            "There is no test part: both models are evaluated on the rows that they learned from."
        )
    return tuple(notes)
