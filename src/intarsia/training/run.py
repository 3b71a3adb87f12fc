"""Train what an experiment describes: build, check, set up, train, evaluate, write, compare.

`run_at` is the way of every run, wherever its clients are (`Place`): in this process, or at sites
on other machines (`intarsia.deployment.run`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from intarsia.core.algorithm import Algorithm, FinalResult
from intarsia.core.block import Array, ClientId
from intarsia.core.client_functions import SecretKey
from intarsia.core.disclosure import Release
from intarsia.core.feature_blocks import doubled
from intarsia.core.memory import give_back, keep_freed
from intarsia.core.schema import Schema
from intarsia.engines.client_states import States
from intarsia.engines.simulation import Simulation
from intarsia.engines.workers import Cluster
from intarsia.errors import CheckpointError, ExperimentError, Stopped
from intarsia.experiment import config as experiment
from intarsia.experiment.config import Experiment
from intarsia.experiment.federation import Federation, Tables, build
from intarsia.inspection.proposals.id_choice import notes_on_ids_as_features
from intarsia.inspection.tails import notes_on_stand_ins, notes_on_units
from intarsia.models import build as models
from intarsia.partition.client_clusters import Structure, Structures, of_models
from intarsia.plots.runs.artist import artist_beside
from intarsia.plots.runs.pictures import Held
from intarsia.plots.sides import missing_fractions
from intarsia.protocols import early_stopping, evaluation_rows
from intarsia.protocols.preprocessing.preparation import Preparation
from intarsia.results import audit, result, run_folder
from intarsia.results.checkpoint import Checkpoints
from intarsia.results.result import Finished, Guarantee, Result
from intarsia.training import checks as caveats
from intarsia.training import loop as training
from intarsia.training import outcome as outcomes
from intarsia.training import privacy_guarantee, setup, timing, yardsticks
from intarsia.training.baselines import Baseline
from intarsia.training.loop import Listeners, Part, Progress
from intarsia.training.notes import ending
from intarsia.training.notes.scores import notes_on_scores
from intarsia.training.outcome import Outcome
from intarsia.training.registry import checked_algorithm, choose, errors_placed
from intarsia.training.timing import Clock

if TYPE_CHECKING:
    from intarsia.models.serialization import Trained


Watcher = Callable[[Progress], None]


def run(
    description: Experiment | str | Path,
    *,
    tables: Tables | None = None,
    progress: Watcher | None = None,
    yardstick_progress: yardsticks.Watcher | None = None,
    callbacks: Sequence[Any] = (),
    out: str | Path | None = "",
    overwrite: bool = False,
    secrets: Mapping[ClientId, SecretKey] | None = None,
    secret: bytes | None = None,
) -> Result:
    """Train what an experiment, or its file, describes; parameters and errors as `intarsia.run`.

    `tables`, or what a function makes, stand instead of the sources that the experiment names.
    `callbacks` have methods of `Callback` in callbacks/callback.py.
    `secrets` are each client's own, such as those of sites whose run is to be followed to the bit;
    None: they come from the user's own, see `client_secrets`. `secret` is what pseudonyms come
    from, as in `federation.build`. BusyError: another process works on a run in the output folder.
    """
    if not isinstance(description, Experiment):
        description = experiment.load(description)
    if out != "" and out is not None:
        description = replace(description, out=str(Path(out).resolve()))
    folder = None if out is None else Path(description.out)
    if folder is not None and not overwrite:
        choose(description)  # first: what is wrong with a setting is not hidden by a result
        run_folder.claim(folder)
    how: dict[str, Any] = {"fresh": True, "overwrite": overwrite, "secrets": secrets}
    how["secret"] = secret
    listeners = Listeners(progress, yardstick_progress, callbacks)
    return _run(description, tables, folder, listeners, **how)


def resume(
    folder: str | Path,
    *,
    tables: Tables | None = None,
    progress: Watcher | None = None,
    yardstick_progress: yardsticks.Watcher | None = None,
    callbacks: Sequence[Any] = (),
    wanted: bool | None = None,
    workers: int | None = None,
    ray: str | None = None,
    memory: str | None = None,
    algorithm: Algorithm | None = None,
    allow_modules: Collection[str] = (),
) -> Result:
    """Go on with a run that was stopped, to the same bits; a finished one is returned as it is.

    `wanted` says from here on whether it gets reference models; None: as its experiment says.
    So do `workers` and `ray` of the processes that compute, and `memory`, which change nothing of
    what comes out. A Ray cluster that the folder names is taken where whoever goes on names it.
    `algorithm` is that of the run, where it was given and not named.
    `allow_modules` are those that its networks may be made of, where the folder names some.

    Raises
    ------
    CheckpointError
        If the folder holds no run, one of another algorithm, or names another module, or the
        tables changed since it was started.
    ExperimentError
        If reference models are wanted of a run over sites, or the folder names a Ray cluster.
    BusyError
        If another process works on the run.
    """
    folder = Path(folder)
    if _is_done(folder, wanted):
        return load(folder, allow_modules)
    description = run_folder.describe(folder, allow_modules)
    if algorithm is not None:
        found = checked_algorithm(algorithm, "The algorithm")
        if found.name != description.algorithm:
            raise CheckpointError(
                f"The run in {folder} is of {description.algorithm!r}, and {found.name!r} is "
                "given; give the algorithm that it began with."
            )
        description = replace(description, own_algorithm=found)
    if wanted is not None:
        description = replace(description, yardsticks=wanted)
    if ray is None:
        experiment.check_own_cluster(
            description.ray,
            f"The folder {folder}",
            "say where the run goes on: -c experiment.ray=HOST:PORT, or -c experiment.ray= for "
            "this machine (from Python ray=)",
        )
    where = {"workers": workers, "ray": ray, "memory": memory}
    changed: dict[str, Any] = {key: one for key, one in where.items() if one is not None}
    description = replace(description, **changed)
    if wanted and run_folder.is_over_sites(folder):
        raise ExperimentError(
            f"The run in {folder} is over sites, whose tables nobody pools: it has no reference "
            "models; leave experiment.yardsticks out."
        )
    if tables is None and not _reads_tables(description):
        raise CheckpointError(
            f"The run in {folder} was started with tables in memory; pass the same tables to "
            "intarsia.resume."
        )
    with run_folder.alone_in(folder):
        if _is_done(folder, wanted):  # another process came to the end of it
            return load(folder, allow_modules)
        if wanted is not None or changed:
            run_folder.change_description(folder, description)
        trained = load(folder, allow_modules) if (folder / "result.json").is_file() else None
        if trained is not None and not description.yardsticks:
            trained = replace(trained, yardsticks_left=())
            trained.write(folder)
            return trained
        listeners = Listeners(progress, yardstick_progress, callbacks)
        return _run(description, tables, folder, listeners, fresh=False, trained=trained)


def _is_done(folder: Path, wanted: bool | None) -> bool:
    """Return whether a folder holds a result to which nothing is to be added."""
    if not (folder / "result.json").is_file():
        return False
    found = result.load(folder)
    lacks_some = found.metrics.centralised is None or not found.metrics.standalone
    return not (lacks_some if wanted else found.yardsticks_left)


def load(folder: str | Path, allow_modules: Collection[str] = ()) -> Result:
    """Return the result in an output folder, with its model, of no module but those allowed.

    Raises
    ------
    CheckpointError
        If the folder holds no result, one that cannot be read, or one of another module.
    """
    from intarsia.models.serialization import read_model

    found = result.load(folder)
    model = Path(folder) / "model"
    return replace(found, trained=read_model(model, allow_modules)) if model.is_dir() else found


def _run(
    description: Experiment,
    tables: Tables | None,
    folder: Path | None,
    listeners: Listeners,
    *,
    trained: Result | None = None,
    **how: Any,
) -> Result:
    choose(description)  # imports torch, if the algorithm needs it
    with timing.limited(description.threads), errors_placed(description), ExitStack() as held:
        place = InThisProcess(tables, folder, held, **how)
        if trained is not None:
            return _compare(place, description, trained, listeners)
        return run_at(place, description, folder, listeners)


@dataclass(frozen=True, eq=False)
class Plan:
    """What a run trains, once it is known who holds what."""

    description: Experiment
    algorithm: Algorithm | Baseline
    options: Any  # its hyperparameters
    schema: Schema  # of the training part, without an intercept
    release: Release | None = None  # with how much noise; None: without
    promise: Guarantee = field(default_factory=Guarantee)

    @property
    def clip(self) -> float | None:
        """Return the largest norm of a training row, None where rows stay as they are."""
        noisy = self.algorithm.federated and self.algorithm.disclosure.dp_unit == "sample"
        return self.release.clip if self.release is not None and noisy else None

    @property
    def additive(self) -> bool:
        """Return whether each training value is to count once."""
        return self.algorithm.federated and self.algorithm.model.additive


@dataclass(frozen=True, eq=False)
class Ready:
    """What a set-up comes to."""

    engine: setup.Engine
    part: Part  # what the model is evaluated on
    notes: tuple[str, ...] = ()


class Place(Protocol):
    """Where the clients of a run are: in this process, or at sites on other machines."""

    sites: bool
    notes: tuple[str, ...]  # about the clients' tables
    truth: Structure | None  # which clients belong together, in a simulation that says so
    missing: Mapping[ClientId, Array]  # fractions for the picture of who holds what, where known

    def build(self, description: Experiment) -> Schema:
        """Let the clients read their tables; return who holds what of the training part."""
        ...

    def check(self, plan: Plan) -> None:
        """Refuse what the algorithm has against these clients, before anything is computed."""
        ...

    def open(self, plan: Plan) -> Checkpoints | None:
        """Return where checkpoints go; from here on nobody else works on the run."""
        ...

    def set_up(self, plan: Plan) -> Ready:
        """Let the clients get ready to train."""
        ...

    def keep(self, plan: Plan, engine: setup.Engine) -> None:
        """Keep what the clients' models are made of, where it is here; their values go."""
        ...

    def model(
        self, plan: Plan, schema: Schema, outcome: Outcome
    ) -> tuple[Trained | None, tuple[str, ...]]:
        """Return the model that stays here, and a note where something of it is lacking."""
        ...


def run_at(
    place: Place, description: Experiment, folder: Path | None, listeners: Listeners
) -> Result:
    """Build, check, set up, train, evaluate, write: the way of every run, wherever it is.

    What it came to is written before the reference models beside it are trained.
    """
    clock, started = Clock(), datetime.now(UTC)
    keep_freed()  # before there are threads
    plan = prepare(place, description, clock)
    held = Held(plan.schema, place.missing)
    alone = folder is None or place.sites or description.ray
    with ExitStack() as stack:
        drawing = artist_beside(held, 1 if alone else description.workers)
        artist = stack.enter_context(drawing)
        store, ready = set_up(place, plan, clock)
        give_back()
        listeners.start(description, folder)
        options = plan.options
        stack.enter_context(_tells_how_to_go_on(description, None if place.sites else folder))
        end = stack.enter_context(listeners.until_end())
        beside = yardsticks.compiled_beside(description, plan.algorithm, options, ready.engine)
        compiled = stack.enter_context(beside)
        outcome, traffic = _train(plan, ready, store, clock, listeners)
        place.keep(plan, ready.engine)
        books, schemas, part = ready.engine.books, ready.engine.schemas, ready.part
        schema = schemas["train"]
        crossed = books.mode, books.crossings.summary()
        notes = (*place.notes, *_notes(plan, part, sites=place.sites), *ready.notes, *outcome.notes)
        pooled = ready.engine if description.yardsticks and not place.sites else None
        if isinstance(pooled, Simulation):
            # reference models need the blocks alone
            pooled.set_states(dict.fromkeys(schema.clients))
        del ready, books
        give_back()
        # late, when the blocks are gone that no reference model needs: the libraries for models and
        # pictures take 200 MB
        with clock.part("model"):
            model, lacking = place.model(plan, schema, outcome)
        ended = outcome.conclusion
        declared = setup.declare_exchanges(plan.algorithm, options, schemas)
        if plan.algorithm.federated:
            notes = (*notes, *audit.notes_on_undeclared(crossed[1], declared))
        made = outcomes.result_of(
            *(description, options, replace(outcome, notes=(*notes, *lacking))),
            outcomes.Cost(started, clock.seconds, **traffic),
            schema.labels,
            trained=model,
            privacy=plan.promise,
            structure=Structures(
                place.truth, of_models(plan.schema.clients, ended.structure, ended.level_words)
            ),
            folder=folder,
        )
        if isinstance(pooled, Simulation):
            left = yardsticks.left_of(made, description, plan.algorithm)
            made = replace(made, yardsticks_left=left)
        audited = (*crossed, declared)
        if store is not None:
            store.check_place()
        made = outcomes.finish_run(made, held=held, audited=audited, artist=artist)
        if not made.yardsticks_left:
            return end(made)
        assert isinstance(pooled, Simulation)
        give_back()
        with clock.part("yardsticks"):
            compiled()
        trained = pooled, plan.algorithm, options, part, clock
        return end(yardsticks.complete(made, *trained, listeners.yardsticks))


@contextmanager
def _tells_how_to_go_on(description: Experiment, folder: Path | None) -> Iterator[None]:
    """Say after Ctrl-C how a run goes on that has kept a round in its folder."""
    try:
        yield
    except KeyboardInterrupt:
        if folder is None or not Checkpoints(folder).rounds:
            raise
        given = "" if _reads_tables(description) else ", tables=tables"
        raise Stopped(
            f"stopped; this goes on with the run: intarsia.resume({str(folder)!r}{given})"
        ) from None


def _reads_tables(description: Experiment) -> bool:
    """Return whether the experiment says where its tables are."""
    given = any(source.path or source.url for source in description.clients)
    return given or description.dataset is not None


def prepare(place: Place, description: Experiment, clock: Clock) -> Plan:
    """Build and check; return what is trained."""
    algorithm, options = choose(description)
    with clock.part("tables"):
        plan = Plan(description, algorithm, options, place.build(description))
        place.check(plan)
        return _with_noise(plan)


def set_up(place: Place, plan: Plan, clock: Clock) -> tuple[Checkpoints | None, Ready]:
    """Let the clients get ready to train; return where checkpoints go, and what it comes to."""
    with clock.part("checkpoints"):
        store = place.open(plan)
    with clock.part("preprocessing"):
        return store, place.set_up(plan)


def _compare(
    place: InThisProcess, description: Experiment, found: Result, listeners: Listeners
) -> Result:
    """Train the reference models that a finished run lacks; nothing else of it changes."""
    spent = {name: seconds for name, seconds in found.seconds.items() if name != "total"}
    # what is done again to have the blocks is in the transcript and in the audit
    private = replace(description.privacy, transcript=False)
    # and there is nothing left to compute for clients
    described = replace(description, privacy=private, ray="")
    plan = prepare(place, described, clock := Clock(spent))
    _, ready = set_up(place, plan, clock)
    assert isinstance(ready.engine, Simulation)
    left = found.yardsticks_left or yardsticks.left_of(found, description, plan.algorithm)
    beside = caveats.unmeasured(description, plan.algorithm)
    notes = dict.fromkeys((*found.notes, *beside))
    found = replace(found, yardsticks_left=left, privacy=plan.promise, notes=tuple(notes))
    assert found.folder is not None
    found.write(found.folder)
    trained = ready.engine, plan.algorithm, plan.options, ready.part, clock
    listeners.start(description, found.folder)
    with listeners.until_end() as end:
        return end(yardsticks.complete(found, *trained, listeners.yardsticks))


def _with_noise(plan: Plan) -> Plan:
    """Return the plan with the algorithm's private form, where the experiment asks for noise."""
    release, promise = privacy_guarantee.guarantee(
        plan.description, plan.algorithm, plan.options, plan.schema
    )
    algorithm = plan.algorithm
    if release is None or not algorithm.federated or algorithm.private is None:
        return replace(plan, promise=promise)
    return replace(plan, algorithm=algorithm.private(release), release=release, promise=promise)


def _on_accelerator(options: Any) -> bool:
    """Return whether clients' networks train on an accelerator."""
    if getattr(options, "device", "cpu") == "cpu":
        return False
    from intarsia.algorithms.networks.options import device_of  # imports torch

    return device_of(options) != "cpu"


def _notes(plan: Plan, part: str, *, sites: bool) -> tuple[str, ...]:
    """Return what a reader of the result must know beside its numbers."""
    description, algorithm, schema = plan.description, plan.algorithm, plan.schema
    units = len(schema.samples), len(schema.clients)
    return (
        *(doubled(schema) if algorithm.model.server_model is not None else ()),
        *caveats.unsealed(description, algorithm, sites=sites),
        *caveats.sealed_by_one_key(description, algorithm),
        *caveats.read_all_the_same(description, algorithm, plan.options),
        *caveats.slowed_by_constant(description, algorithm, plan.options),
        *caveats.unmeasured(description, algorithm),
        *caveats.evaluated_in_training(description, part),
        *caveats.untracked(description, sites=sites),
        *caveats.named_alike(description, algorithm, schema),
        *privacy_guarantee.notes(plan.promise, plan.options, *units),
    )


def _train(
    plan: Plan, ready: Ready, store: Checkpoints | None, clock: Clock, listeners: Listeners
) -> tuple[Outcome, dict[str, Any]]:
    """Train and evaluate; return the bytes and exchanges too."""
    description, algorithm, options = plan.description, plan.algorithm, plan.options
    engine, part = ready.engine, ready.part
    traffic: dict[str, Any] = {}  # of a baseline: none
    if not algorithm.federated:
        assert isinstance(engine, Simulation)
        with clock.part("training"):
            outcome = algorithm.train(engine, description, options, part)
    else:
        task = training.Task(
            *(description, algorithm, options, engine, part, store, clock),
            *(listeners.round, plan.release),
        )
        outcome = train_to_end(task)
        counted = engine.books.traffic
        traffic = {"bytes": counted.summary(), "exchanges": counted.exchanges}
    return outcome, traffic


def conclude(task: training.Task, server: Any, state: training.TrainingState) -> FinalResult:
    """Return what the algorithm concludes after the last round, with all clients."""
    engine = task.engine
    with task.clock.part("training"):
        engine.return_of(wait=True)
        engine.begin_round(state.round + 1)
        if task.description.early_stopping:
            server = early_stopping.go_back(server, engine)
        found = task.algorithm.conclude(server, engine, engine.key("conclude"))
    training.check_weights(found.weights)
    return found


def train_to_end(task: training.Task) -> Outcome:
    """Run the rounds that are left; return what they came to, with its scores."""
    clock = task.clock
    try:
        server, state = training.train(task, *training.start(task))
        conclusion = conclude(task, server, state)
        with clock.part("evaluation"):
            every, own = training.evaluate(task)
        training.check_scores(every, own)
    finally:
        if task.store is not None:
            with clock.part("checkpoints"):
                task.store.settle()
    description, ended = task.description, _ending(task, state, conclusion)
    accuracy = None if every is None else every.accuracy
    notes = ending.notes_on_training(task, state, conclusion, ended, accuracy)
    notes += notes_on_scores(task, conclusion, every, ended)
    slow = description.participation == 1 and ending.barely_moved(state)
    return Outcome(
        *(state.round, ended, conclusion, every, own, notes),
        best_round=state.chosen if description.early_stopping else None,
        helps=ending.remedies(description) if slow else "",
    )


def _ending(
    task: training.Task, state: training.TrainingState, conclusion: FinalResult
) -> Finished:
    """Return why training ended, as `result.json` has it."""
    gap, tolerance = conclusion.info.gap_relative, task.description.tolerance
    ended = state.finished or "rounds"
    met = gap is not None and tolerance > 0 and training.is_met(gap, tolerance)
    # rounds carry scores on, whose rounding hides a gap that a count from new ones shows
    return "tolerance" if met and ended != "early_stopping" else ended


@dataclass(eq=False)
class InThisProcess:
    """The clients of a run in this process, with their tables."""

    tables: Tables | None  # until they are read
    folder: Path | None
    held: ExitStack  # keeps other processes from the output folder once that is touched
    _: KW_ONLY
    fresh: bool  # whether the run begins; else it goes on
    overwrite: bool = False  # what a run before left in the folder
    secrets: Mapping[ClientId, SecretKey] | None = None
    secret: bytes | None = None  # what pseudonyms come from; None: drawn, or kept in the folder
    only: Collection[ClientId] | None = None  # the clients that take part; None: all

    sites = False
    notes: tuple[str, ...] = ()
    truth: Structure | None = None
    missing: Mapping[ClientId, Array] = field(default_factory=dict[ClientId, Array])
    found: Federation | None = None  # until its blocks are prepared
    cluster: Cluster | None = None  # computes for the clients; None: this machine does
    scaling: Mapping[ClientId, Preparation] = field(default_factory=dict[ClientId, Preparation])
    parameters: Mapping[ClientId, Any] = field(default_factory=dict[ClientId, Any])

    def build(self, description: Experiment) -> Schema:
        """Read the tables, and let the clients find out what they hold together."""
        secret = self.secret
        if self.folder is not None and not self.fresh:
            run_folder.check_fingerprints(self.folder, description)
            secret = run_folder.read_secret(self.folder)
        found = build(description, self.tables, secret, only=self.only)
        self.tables, self.found = None, found
        self.notes, self.truth = found.notes, found.structure
        if description.dataset is None:
            marks = {one.name: one.missing for one in description.clients}
            self.notes += notes_on_stand_ins(found.train, marks, "training rows")
            self.notes += notes_on_units(found.train, found.labels)
            self.notes += notes_on_ids_as_features(found.train)
            self.notes += caveats.seen_in_training(found.train, found.test)
        if self.folder is not None:
            # only the blocks know; who is handed the picture is told no single cell
            self.missing = missing_fractions(found.train, least=evaluation_rows.LEAST_ROWS)
        return found.schema

    def check(self, plan: Plan) -> None:
        """Refuse before an old result goes what the algorithm has against these clients."""
        assert self.found is not None
        caveats.check_fit(plan.description, plan.algorithm, plan.options, plan.schema)
        caveats.check_stopping(plan.description, self.found.schemas)
        if plan.algorithm.model.server_model is not None:
            self.notes += caveats.unheld(self.found.train, plan.schema.labels)

    def open(self, plan: Plan) -> Checkpoints | None:
        """Begin the run in its folder, or go on there."""
        folder, found = self.folder, self.found
        how = plan.description, plan.algorithm, plan.release
        self.cluster = self.held.enter_context(setup.cluster_of(*how))
        if folder is None:
            return None
        assert found is not None
        if self.fresh:
            self.held.enter_context(run_folder.alone_in(folder))
            store = run_folder.start(
                folder, plan.description, found.fingerprint(), overwrite=self.overwrite
            )
            run_folder.keep_secret(folder, found.secret)
        else:
            store = run_folder.reopen(folder, found.fingerprint())
        return store

    def set_up(self, plan: Plan) -> Ready:
        """Prepare the blocks, each of which is there once."""
        description, folder, found = plan.description, self.folder, self.found
        assert found is not None
        schemas, parts, tested = found.schemas, found.parts, found.tested
        self.found = found = None
        clients = plan.schema.clients
        sealed = setup.sealed_sums(description, clients, folder)
        secrets = setup.client_secrets(plan.algorithm, clients, folder, self.secrets)
        ledger = None if folder is None else run_folder.release_ledger(folder)
        if folder is not None and self.fresh:
            run_folder.keep_fingerprints(folder, description)
        states = States(description.states_bytes, folder)
        parties = setup.LocalParties(
            *(description, parts, *sealed, secrets, states, ledger),
            keep=description.yardsticks,
            at_once=plan.additive and plan.clip is None and not description.yardsticks,
            cluster=self.cluster,
            accelerated=_on_accelerator(plan.options),
            alone=setup.reads_alone(plan.algorithm, plan.options),
            constant=setup.constant_of(plan.algorithm, description.preprocessing),
        )
        engine, notes = setup.set_up(
            *(parties, description.preprocessing, schemas), clip=plan.clip, additive=plan.additive
        )
        self.scaling = parties.scaling
        return Ready(engine, "test" if tested else "train", (*notes, *parties.notes))

    def keep(self, plan: Plan, engine: setup.Engine) -> None:
        """Keep the parameters of the clients' networks, or of their linear models."""
        model = plan.algorithm.model
        if not isinstance(engine, Simulation) or model.kind == "linear":
            return
        extract = model.network if model.kind == "networks" else model.own_weights
        states = engine.last_states()
        own = models.OnDemand(states, lambda name: extract(states[name]))
        self.parameters = own if states.mapped else dict(own)

    def model(
        self, plan: Plan, schema: Schema, outcome: Outcome
    ) -> tuple[Trained | None, tuple[str, ...]]:
        """Return the clients' models, or that of all."""
        name, ended, scaling = plan.description.algorithm, outcome.conclusion, self.scaling
        if not self.parameters:
            return models.linear_model(schema, ended, scaling, plan.options), ()
        if plan.algorithm.model.kind != "networks":
            return models.client_models(name, schema, self.parameters, scaling), ()
        made_of = partial(plan.algorithm.model.architecture, plan.options, schema)
        return models.client_networks(
            name, schema, made_of, self.parameters, scaling, ended.network
        ), ()
