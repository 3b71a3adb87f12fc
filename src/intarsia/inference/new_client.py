"""A new client joins a finished federation: it learns its own parts of a network, and nobody else.

FLIC's paper, S1.4: the client gets what all share, the hidden layer α and the anchors, and learns
an embedding φ of its own columns and a classifier β; α and the anchors stay as they are (how:
`algorithms.flic.algorithm`). Of a run of hetfedrep it takes α. Beside it a network of the same
embedding and classifier (no α, as in `local`) trains for the same epochs and has nothing from the
federation. With anchors the joined one has had more passes over its rows: those of its alignment
before, which a note of the result counts. Of a run of hyfem it takes the server's network of its
blocks (`block_joining`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from intarsia.core.algorithm import Algorithm, Conclusion, Info, evolve
from intarsia.core.block import Array, ClientId
from intarsia.core.settings import hyperparameters
from intarsia.data import dataframe
from intarsia.data.labels import OTHER, LabelSettings
from intarsia.data.source import Source
from intarsia.engines.client_states import States
from intarsia.engines.simulation import InProcess
from intarsia.errors import CheckpointError, ExperimentError, FederationError, listed
from intarsia.experiment.config import Alignment, Experiment
from intarsia.experiment.federation import Tables, build
from intarsia.inference.new_client_hyfem import JoinedBlocks, join_blocks
from intarsia.inference.new_table import check_table, column_names, separator_of, table_settings
from intarsia.models.build import client_networks
from intarsia.privacy.settings import Privacy
from intarsia.protocols.evaluation import Grades, evaluate_own, grading_loss
from intarsia.results import run_folder
from intarsia.results.result import Result, better_alone
from intarsia.training import outputs, timing
from intarsia.training.outcome import Outcome, result_of
from intarsia.training.registry import algorithm_named
from intarsia.training.run import load
from intarsia.training.setup import Prepared, SealedSums, prepared_engine
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
) -> Result:
    """Train a new client's network on what a finished federation shares.

    Parameters
    ----------
    folder
        The output folder of a run of flic, hetfedrep or hyfem; nothing in it changes.
    source
        The new client and its table.
    tables
        The table, where it is in memory.
    epochs
        Of φ and β; None: as many as a client of the federation had on the average. Of hyfem those
        that the client goes on for, None: it takes what the server has.
    seed
        Of the client's own numbers; None: the run's.
    out
        The new client's output folder: its model and how good it is; None: nothing is written.
    overwrite
        Replace what a run before left in the output folder, once the table was found good.

    Raises
    ------
    UserError
        If the run shares nothing to join by, its model knows a client of this name, the table or
        its labels do not fit, or the output folder holds a result or is that of the run.
    """
    clock, started = Clock(), datetime.now(UTC)
    with clock.part("tables"):
        run, described = load(folder), run_folder.describe(folder)
        model = _joinable(run, folder)
        if source.name in model:
            raise FederationError(
                f"The run in {folder} has a client {source.name!r} already; give the new one "
                "another name."
            )
        rounds = run.rounds * described.participation
        by_blocks = run.algorithm == "hyfem"
        if by_blocks:
            options = _with_blocks(run.hyperparameters)
        else:
            options = _options(
                _joined_algorithm(run.algorithm), run.hyperparameters, epochs, rounds
            )
        experiment = _experiment(described, model, source, options, seed, out)
        found = build(experiment, tables)
        if out is not None:
            _check_output(out, folder, overwrite)
    if by_blocks:
        with timing.limited(described.threads), clock.part("training"):
            taken = join_blocks(
                model,
                found,
                options,
                epochs=epochs or 0,
                rounds=run.rounds,
                seed=experiment.seed,
            )
        result = _of_blocks(experiment, options, taken, found.notes, clock, started, out)
        result = replace(result, notes=(*result.notes, *better_alone(result.metrics)))
        if out is not None:
            outputs.write_whole(out, experiment, found.fingerprint(), result)
        return result
    with timing.limited(described.threads):
        with clock.part("preprocessing"):
            parts = {"train": dict(found.train), "test": dict(found.test)}
            prepared = prepared_engine(
                experiment, parts, model.labels, SealedSums(), None, States()
            )
        joined = _joined(prepared, options, model, source.name, clock)
    networks = client_networks(
        run.algorithm,
        prepared.engine.schema("train"),
        lambda _: options.architecture,
        {source.name: joined.parameters},
        prepared.scaling,
    )
    result = result_of(
        experiment,
        options,
        Outcome(
            rounds=0,
            finished="algorithm",
            conclusion=Conclusion(Info()),
            every=None,
            own=joined.grades,
            notes=(*found.notes, *prepared.notes, *_notes(prepared, options)),
            standalone=joined.alone,
        ),
        model=networks,
        seconds=clock.seconds,
        traffic=joined.traffic,
        exchanges=joined.exchanges,
        started=started,
        folder=out,
    )
    result = replace(result, notes=(*result.notes, *better_alone(result.metrics)))
    if out is not None:
        outputs.write_whole(out, experiment, found.fingerprint(), result)
    return result


def described(
    folder: Path, table: Any, name: ClientId | None, settings: Mapping[str, Any]
) -> tuple[Source, Tables | None]:
    """Return the description of a new client's table, and the table where it is in memory.

    Label and id column are those of the run's clients, if the table has them and no other is named.

    Raises
    ------
    UserError
        If it is no table, or a setting is wrong.
    """
    known = table_settings(folder)
    in_memory = not isinstance(table, str | Path)
    if in_memory:
        name = "new" if name is None else name
        names = [str(column) for column in getattr(table, "columns", ())]
    else:
        path = Path(table)
        kind = check_table(path)
        name = path.name.split(".")[0] if name is None else name
        names = column_names(path, known, kind)
    found = {
        "label": next((column for column in known.labels if column in names), None),
        "id": next((column for column in known.ids if column in names), None),
        **settings,
    }
    if "/" in name or name in (".", ".."):
        raise ExperimentError(f"The client's name is {name!r}; give it one without a slash.")
    if in_memory:
        given = {name: table}
        sources = dataframe.sources_of(given, found)
        return sources[0], lambda: dataframe.tables_of(given, sources)
    if isinstance(found.get("missing"), list | tuple):
        found["missing"] = (*known.missing, *found["missing"])
    files = {
        "path": str(path.resolve()),
        "missing": known.missing,
        "separator": separator_of(path, known, kind),
    }
    chosen = {key: value for key, value in {**files, **found}.items() if value is not None}
    return hyperparameters(Source, {"name": name, **chosen}, f"Table {name!r}"), None


def _with_blocks(known: Mapping[str, Any]) -> Any:
    """Return the hyperparameters of a run of hyfem."""
    from intarsia.algorithms.hyfem.hyperparameters import HyFEM  # here: it imports torch

    return hyperparameters(HyFEM, known)


def _of_blocks(
    experiment: Experiment,
    options: Any,
    joined: JoinedBlocks,
    notes: tuple[str, ...],
    clock: Clock,
    started: datetime,
    out: Path | None,
) -> Result:
    """Return the result of a client that joined by its blocks."""
    [name] = joined.scaling
    networks = client_networks(
        "hyfem",
        joined.schema,
        lambda _: joined.made_of,
        {name: joined.parameters},
        joined.scaling,
    )
    return result_of(
        experiment,
        options,
        Outcome(
            rounds=0,
            finished="algorithm",
            conclusion=Conclusion(Info()),
            every=None,
            own=joined.grades,
            notes=(*notes, *joined.notes),
            standalone=joined.alone,
        ),
        model=networks,
        seconds=clock.seconds,
        traffic={"up": 0, "down": 0, "by_message": {}},
        exchanges=0,
        started=started,
        folder=out,
    )


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


def _joined_algorithm(name: str) -> Algorithm:
    algorithm = algorithm_named(name)
    assert algorithm.federated
    return algorithm


def _options(
    algorithm: Algorithm, known: Mapping[str, Any], epochs: int | None, rounds: float
) -> Any:
    """Return the run's hyperparameters with the epochs that the new client trains for."""
    options: Any = hyperparameters(algorithm.hyperparameters, known)
    if epochs is None:
        epochs = round(rounds * options.local_epochs) + options.final_epochs
    if epochs < 1:
        raise ExperimentError(f"epochs is {epochs}; a new client learns in at least 1.")
    return replace(options, final_epochs=epochs)


def _experiment(
    described: Experiment,
    model: Networks,
    source: Source,
    options: Any,
    seed: int | None,
    out: Path | None,
) -> Experiment:
    """Return the experiment of the new client alone, with the federation's labels and split."""
    return replace(
        described,
        name=f"{source.name} joins {described.name}",
        hyperparameters=asdict(options),
        seed=described.seed if seed is None else seed,
        participation=1.0,
        yardsticks=False,
        labels=_labels(described.labels, model),
        alignment=Alignment(),
        privacy=Privacy(),
        dataset=None,
        partition=None,
        clients=(source,),
        out="" if out is None else str(out),
    )


def _labels(known: LabelSettings, model: Networks) -> LabelSettings:
    """Return the federation's classes, of which the new client need not have more than one."""
    classes = model.labels.classes
    if known.positive is None:
        return LabelSettings(task=model.labels.task, classes=classes)
    if known.classes or classes[0] == OTHER:  # the names of the others: given, or not kept
        return known
    return replace(known, classes=(classes[0], *known.positives))


@dataclass(frozen=True, eq=False)
class _Joined:
    """What the new client came to, beside what it comes to alone."""

    parameters: Mapping[str, Any]
    grades: Mapping[ClientId, Grades]
    alone: Mapping[ClientId, Grades]
    traffic: Mapping[str, Any]
    exchanges: int


def _joined(
    prepared: Prepared, options: Any, model: Networks, name: ClientId, clock: Clock
) -> _Joined:
    from intarsia.algorithms.networks.parameter_sharing import Shared, network
    from intarsia.algorithms.personalised import fedrep  # here: it imports torch

    engine, algorithm = prepared.engine, _joined_algorithm(model.algorithm)
    assert algorithm.model.join is not None
    with clock.part("training"):
        _start(engine, algorithm, options)
        drawn = engine.get_states()[name].parameters
        _set_scale(engine, name, model)
        shared = _shared(model, options.shared_parts, drawn)
        algorithm.model.join(engine, options, shared)
        grades = _grades(prepared, algorithm, options)
    state = engine.get_states()[name]
    traffic, exchanges = engine.books.traffic.summary(), engine.books.traffic.exchanges
    known = [one.name for one in fields(fedrep.Local) if hasattr(options, one.name)]
    alike = {name: getattr(options, name) for name in known}
    with clock.part("yardsticks"), engine.books.unmetered():
        local = fedrep.Local(**alike)
        _start(engine, fedrep.LOCAL, local)
        _set_scale(engine, name, model)
        told = dict.fromkeys(engine.ids, Shared(shared=None, round=0))
        engine.ask(fedrep.personalise, told)
        alone = _grades(prepared, fedrep.LOCAL, local)
    return _Joined(network(state), grades, alone, traffic, exchanges)


def _set_scale(engine: InProcess, name: ClientId, model: Networks) -> None:
    """Let the client know the scale of labels that are numbers, as the run's clients had it."""
    first = next(iter(model.values())).parameters
    scale = {key: float(first[f"labels.{key}"]) for key in _SCALE if f"labels.{key}" in first}
    if scale:
        engine.set_states({name: evolve(engine.get_states()[name], **scale)})


def _shared(model: Networks, parts: Sequence[str], names: Iterable[str]) -> Array:
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


def _start(engine: InProcess, algorithm: Algorithm, options: Any) -> None:
    """Give the client a new state."""
    schema = engine.schema("train")
    engine.begin_round(1)
    engine.set_states(
        {
            name: algorithm.init_client(
                options, schema, name, engine.block(name), engine.client_key(name)
            )
            for name in engine.ids
        }
    )


def _grades(prepared: Prepared, algorithm: Algorithm, options: Any) -> dict[ClientId, Grades]:
    """Return how good the client is on its test part, or on its rows where there is none."""
    engine = prepared.engine
    part: Literal["train", "test"] = "test" if prepared.tested else "train"
    with engine.books.unmetered():
        loss = grading_loss(options.loss)
        predict = algorithm.model.predict
        return evaluate_own(engine, engine.schema(part), predict, loss, part=part)[1]


def _notes(prepared: Prepared, options: Any) -> tuple[str, ...]:
    notes = []
    epochs, after = getattr(options, "pretraining_epochs", 0), options.final_epochs
    if epochs:
        notes.append(
            f"Before its {after:,} epochs the new client's embedding had {epochs:,} of alignment "
            f"with the anchors on its own rows, and the stand-alone network had {after:,} in all; "
            f"to compare at as many passes over the rows, join with epochs = {epochs + after:,} "
            "and take what stand-alone comes to there."
        )
    if not prepared.tested:
        notes.append(
            "There is no test part: both models are graded on the rows that they learned from."
        )
    return tuple(notes)
