"""An experiment → parties, training, yardsticks, a folder of results → a `Result`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from intarsia.core.algorithm import Algorithm, SecretKey
from intarsia.core.block import Block, ClientId, Labels
from intarsia.core.feature_blocks import doubled
from intarsia.core.schema import Schema
from intarsia.engines.client_states import States
from intarsia.engines.simulation import InProcess
from intarsia.errors import CheckpointError
from intarsia.experiment import config as experiment
from intarsia.experiment.config import Experiment
from intarsia.experiment.federation import Tables, build
from intarsia.models.build import architecture_of, client_models, client_networks, linear_model
from intarsia.partition.client_clusters import Structures, of_models
from intarsia.protocols.preprocessing import Preparation
from intarsia.results import audit, result, run_folder
from intarsia.results.checkpoint import Checkpoints
from intarsia.results.result import Result
from intarsia.training import baselines, outputs, privacy_guarantee, timing
from intarsia.training import checks as caveats
from intarsia.training import loop as training
from intarsia.training.baselines import Baseline
from intarsia.training.checks import check_fit
from intarsia.training.loop import Progress
from intarsia.training.outcome import Outcome, result_of
from intarsia.training.registry import choose
from intarsia.training.setup import (
    SealedSums,
    client_secrets,
    declare_exchanges,
    prepared_engine,
    sealed_sums,
)
from intarsia.training.timing import Clock

if TYPE_CHECKING:
    from intarsia.models.serialization import Model


Watcher = Callable[[Progress], None]


def run(
    description: Experiment | str | Path,
    *,
    tables: Tables | None = None,
    progress: Watcher | None = None,
    out: str | Path | None = "",
    overwrite: bool = False,
    secrets: Mapping[ClientId, SecretKey] | None = None,
) -> Result:
    """Train what an experiment describes, beside its two yardsticks.

    Parameters
    ----------
    description
        An experiment or the path of its file.
    tables
        The parties' tables, or a function that makes them, instead of the sources that the
        experiment names.
    progress
        Called after every round.
    out
        Output folder; "" = the experiment's, None = nothing is written.
    overwrite
        Replace what a run before left in the folder, once the new tables were found good.
    secrets
        Each client's own, such as those of sites whose run is to be followed to the bit; None:
        they come from the user's own, see `client_secrets`.

    Raises
    ------
    UserError
        If the experiment, a table or the output folder is wrong.
    BusyError
        If another process works on a run in the output folder.
    ConvergenceError
        If training diverges.
    """
    if not isinstance(description, Experiment):
        description = experiment.load(description)
    if out != "" and out is not None:
        description = replace(description, out=str(Path(out).resolve()))
    folder = None if out is None else Path(description.out)
    if folder is not None and not overwrite:
        run_folder.claim(folder)
    return _run(
        *(description, tables, folder, progress),
        fresh=True,
        overwrite=overwrite,
        secrets=secrets,
    )


def resume(
    folder: str | Path, *, tables: Tables | None = None, progress: Watcher | None = None
) -> Result:
    """Go on with a run that was stopped, to the same bits; a finished one is returned as it is.

    Raises
    ------
    CheckpointError
        If the folder holds no run, or the tables changed since it was started.
    BusyError
        If another process works on the run.
    """
    folder = Path(folder)
    if (folder / "result.json").is_file():
        return load(folder)
    description = run_folder.describe(folder)
    given = [source for source in description.clients if source.path or source.url]
    if tables is None and description.dataset is None and not given:
        raise CheckpointError(
            f"The run in {folder} was started with tables in memory; pass the same tables to "
            "intarsia.resume."
        )
    with run_folder.alone_in(folder):
        if (folder / "result.json").is_file():  # another process came to the end of it
            return load(folder)
        return _run(description, tables, folder, progress, fresh=False)


def load(folder: str | Path) -> Result:
    """Return the result in an output folder, with its model.

    Raises
    ------
    CheckpointError
        If the folder holds no result, or one that cannot be read.
    """
    from intarsia.models.serialization import read_model

    found = result.load(folder)
    model = Path(folder) / "model"
    return replace(found, model=read_model(model)) if model.is_dir() else found


def _run(
    description: Experiment,
    tables: Tables | None,
    folder: Path | None,
    progress: Watcher | None,
    *,
    fresh: bool,
    overwrite: bool = False,
    secrets: Mapping[ClientId, SecretKey] | None = None,
) -> Result:
    choose(description)  # imports torch, if the algorithm needs it
    with timing.limited(description.threads), ExitStack() as held:
        return _run_all(
            *(description, tables, folder, progress, held),
            fresh=fresh,
            overwrite=overwrite,
            secrets=secrets,
        )


def _run_all(
    description: Experiment,
    tables: Tables | None,
    folder: Path | None,
    progress: Watcher | None,
    held: ExitStack,
    *,
    fresh: bool,
    overwrite: bool,
    secrets: Mapping[ClientId, SecretKey] | None,
) -> Result:
    """Run, and let `held` keep other processes from the output folder once that is touched."""
    clock, started = Clock(), datetime.now(UTC)
    algorithm, options = choose(description)
    if folder is not None and not fresh:
        run_folder.check_fingerprints(folder, description)
    with clock.part("tables"):
        stored = None if fresh or folder is None else run_folder.read_secret(folder)
        found = build(description, tables, stored)
        del tables
        # what the algorithm has against these parties it says before an old result goes
        check_fit(description, algorithm, options, found.schema)
        release, promise = privacy_guarantee.guarantee(
            description, algorithm, options, found.schema
        )
        fingerprint = "" if folder is None else found.fingerprint()
    store, drawn = None, False
    if folder is not None:
        if fresh:
            held.enter_context(run_folder.alone_in(folder))
        with clock.part("checkpoints"):
            store = (
                run_folder.start(folder, description, fingerprint, overwrite=overwrite)
                if fresh
                else run_folder.reopen(folder, fingerprint)
            )
            if fresh:
                run_folder.keep_secret(folder, found.secret)
            drawn = outputs.draw_missing(folder, found.train)
    parts = {"train": dict(found.train), "test": dict(found.test)}
    schema, labels, truth = found.schema, found.labels, found.structure
    notes = (
        *found.notes,
        *(doubled(schema) if algorithm.model.server_model is not None else ()),
        *caveats.unsealed(description, algorithm),
        *caveats.read_all_the_same(description, algorithm, options),
        *caveats.unmeasured(description, algorithm),
        *caveats.named_alike(description, algorithm, schema),
        *privacy_guarantee.notes(promise, options, len(schema.samples), len(schema.clients)),
    )
    clip = None
    if release is not None and algorithm.private is not None:
        clip = release.clip if algorithm.disclosure.dp_unit == "sample" else None
        algorithm = algorithm.private(release)
    del found  # each block is to be there once
    sealed = replace(
        sealed_sums(description, schema.clients, folder),
        secrets=client_secrets(algorithm, schema.clients, folder, secrets),
    )
    if folder is not None and fresh:
        run_folder.keep_fingerprints(folder, description)
    fitted = _fit(
        description, algorithm, options, parts, labels, sealed, clip, store, clock, progress
    )
    # late, when the blocks are gone: the libraries for models and pictures take 200 MB
    outcome = replace(fitted.outcome, notes=(*notes, *fitted.outcome.notes))
    ended = outcome.conclusion
    model: Model | None
    if fitted.networks:
        model = client_networks(
            description.algorithm,
            fitted.schema,
            architecture_of(algorithm, options, fitted.schema),
            fitted.networks,
            fitted.scaling,
            ended.network,
        )
    elif fitted.own_weights:
        model = client_models(
            description.algorithm, fitted.schema, fitted.own_weights, fitted.scaling
        )
    else:
        model = linear_model(fitted.schema, ended, fitted.scaling, options)
    made = result_of(
        description,
        options,
        outcome,
        model=model,
        seconds=clock.seconds,
        traffic=fitted.traffic,
        exchanges=fitted.exchanges,
        started=started,
        folder=folder,
        privacy=promise,
        structure=Structures(truth, of_models(schema.clients, ended.structure, ended.level_words)),
    )
    if folder is not None:
        if not drawn:
            outputs.draw(folder, schema)
        declared = declare_exchanges(algorithm, options, {"train": fitted.schema})
        audit.write(folder, fitted.mode, fitted.crossings, declared)
        outputs.finish(folder, made)
    return made


@dataclass(frozen=True, eq=False)
class _Fitted:
    """What is left of a run when the parties' values are gone."""

    outcome: Outcome
    schema: Schema
    scaling: Mapping[ClientId, Preparation]
    networks: Mapping[ClientId, Mapping[str, Any]]  # their parameters by name
    own_weights: Mapping[ClientId, Any]  # and intercept, of linear models of the clients' own
    traffic: Mapping[str, Any]
    exchanges: int
    mode: str
    crossings: Mapping[str, Any]


def _fit(
    description: Experiment,
    algorithm: Algorithm | Baseline,
    options: Any,
    parts: dict[str, dict[ClientId, Block]],
    labels: Labels,
    sealed: SealedSums,
    clip: float | None,
    store: Checkpoints | None,
    clock: Clock,
    progress: Watcher | None,
) -> _Fitted:
    """Prepare, train, grade and measure; `parts` is emptied."""
    with clock.part("preprocessing"):
        states = States(
            description.state_megabytes * 1_000_000, None if store is None else store.folder
        )
        prepared = prepared_engine(description, parts, labels, sealed, clip, states)
    engine = prepared.engine
    part: Literal["train", "test"] = "test" if prepared.tested else "train"
    traffic: Mapping[str, Any] = {"up": 0, "down": 0, "by_message": {}}
    exchanges = 0
    if not algorithm.federated:
        with clock.part("training"):
            outcome = algorithm.train(engine, description, options, part)
    else:
        if algorithm.model.additive:
            _count_once(engine, keep=description.yardsticks)
        task = training.Task(description, algorithm, options, engine, part, store, clock, progress)
        outcome = trained(task)
        traffic, exchanges = engine.books.traffic.summary(), engine.books.traffic.exchanges
    if description.yardsticks and not caveats.unmeasured(description, algorithm):
        with clock.part("yardsticks"):
            if algorithm.federated and algorithm.model.local_baseline is not None:
                outcome = _measured_alone(description, algorithm, options, engine, part, outcome)
            else:
                outcome = _measured(description, options, engine, part, outcome)
    outcome = replace(outcome, notes=(*prepared.notes, *outcome.notes))
    return _Fitted(
        outcome,
        engine.schema("train"),
        prepared.scaling,
        _networks(algorithm, engine),
        _own_weights(algorithm, engine),
        traffic,
        exchanges,
        engine.books.mode,
        engine.books.crossings.summary(),
    )


def _count_once(engine: InProcess, *, keep: bool) -> None:
    """Let each training value count once; keep the whole ones for the yardsticks only."""
    if keep:
        engine.count_once()
    else:
        engine.transform(
            lambda name, part, block: block.counted_once() if part == "train" else block
        )


def trained(task: training.Task) -> Outcome:
    """Return what the rounds came to."""
    engine, clock = task.engine, task.clock
    server, standing = training.train(task, *training.start(task))
    with clock.part("training"):
        engine.return_of(wait=True)
        engine.begin_round(standing.round + 1)
        conclusion = task.algorithm.conclude(server, engine, engine.key("conclude"))
    with clock.part("evaluation"):
        every, own = training.grade(task)
    notes: tuple[str, ...] = ()
    gap, tolerance = conclusion.info.gap_relative, task.description.tolerance
    if standing.finished == "algorithm" and gap is not None and gap > tolerance > 0:
        notes = (
            f"The relative gap {gap:.1e} is as far as float64 goes here; the tolerance "
            f"{tolerance:.0e} is below it.",
        )
    if standing.finished == "stalled":
        notes = (training.stall(task.description, standing),)
    if (
        every is None
        and task.algorithm.model.server_model is not None
        and conclusion.network is not None
    ):
        notes += (
            "The server's network has no score: at no test sample do the clients together hold all "
            "blocks; score a table that has all of them by intarsia predict --client server.",
        )
    labelled = int((engine.schema(task.part).label_holders > 0).sum())
    if every is not None and every.samples < labelled:
        part = "test" if task.part == "test" else "training"
        notes += (
            f'"All samples" are {every.samples:,} of the {labelled:,} {part} samples with a label: '
            "those of which the clients together hold all blocks of the server's network. A "
            "client's scores are of all its own.",
        )
    return Outcome(standing.round, standing.finished or "rounds", conclusion, every, own, notes)


def _networks(
    algorithm: Algorithm | Baseline, engine: InProcess
) -> dict[ClientId, Mapping[str, Any]]:
    """Return the parameters of the clients' networks, none for a linear model."""
    if algorithm.model.kind != "networks":
        return {}
    return {name: algorithm.model.network(state) for name, state in engine.get_states().items()}


def _own_weights(algorithm: Algorithm | Baseline, engine: InProcess) -> dict[ClientId, Any]:
    """Return weights and intercepts of linear models of the clients' own, where they have such."""
    if algorithm.model.kind != "client_linear":
        return {}
    return {name: algorithm.model.own_weights(state) for name, state in engine.get_states().items()}


def _measured_alone(
    description: Experiment,
    algorithm: Algorithm,
    options: Any,
    engine: InProcess,
    part: Literal["train", "test"],
    outcome: Outcome,
) -> Outcome:
    """Return the outcome with what the algorithm's networks come to without a federation."""
    assert algorithm.model.local_baseline is not None
    own, known = (
        algorithm.model.local_baseline(options),
        {"rounds": outcome.rounds, "seed": description.seed},
    )
    blocks = training.server_blocks(algorithm, options, engine.schema("train"))
    return replace(
        outcome,
        centralised=baselines.network_of_all(
            engine, algorithm, own, part, blocks=blocks or (), **known
        ),
        standalone=baselines.networks_alone(engine, algorithm, own, part, **known),
    )


def _measured(
    description: Experiment,
    options: Any,
    engine: InProcess,
    part: Literal["train", "test"],
    outcome: Outcome,
) -> Outcome:
    """Return the outcome with those yardsticks beside it that it is not itself."""
    known = {
        "loss": options.loss,
        "regularisation": options.regularisation,
        "seed": description.seed,
    }
    if outcome.centralised is None:
        grades, notes = baselines.centralised(engine, part, **known)
        outcome = replace(outcome, centralised=grades, notes=(*outcome.notes, *notes))
    if not outcome.standalone:
        alone, notes = baselines.alone(engine, part, **known)
        outcome = replace(outcome, standalone=alone, notes=(*outcome.notes, *notes))
    return outcome
