"""Train the reference models beside a finished run, each of which is kept as soon as it is there.

The run's own result and model are written before the first begins, so that nothing of it is lost
where somebody stops them: `Result.yardsticks_left` names those that are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from intarsia.core.algorithm import Algorithm
from intarsia.core.block import ClientId
from intarsia.engines import codec
from intarsia.engines.forks import Errand
from intarsia.engines.simulation import Simulation
from intarsia.errors import WorkerError
from intarsia.experiment.config import Experiment
from intarsia.inspection import recommend
from intarsia.maths.linear import losses, sdca
from intarsia.protocols import evaluation
from intarsia.results import result as results
from intarsia.results.result import Result, Score, Yardstick
from intarsia.training import baselines, checks
from intarsia.training.baselines import Baseline
from intarsia.training.loop import Part
from intarsia.training.registry import algorithm_named
from intarsia.training.timing import Clock

_OF: Final[dict[Yardstick, str]] = {
    "centralised": "all tables pooled",
    "standalone": "each client alone",
}


@dataclass(frozen=True)
class YardstickProgress:
    """How far a reference model is."""

    name: Yardstick
    step: str = ""  # what is counted: "pass", "round", "client"; "": it begins
    done: int = 0
    most: int = 0  # there may be fewer passes and rounds

    @property
    def trained_on(self) -> str:
        """Return what the model learns from."""
        return _OF[self.name]


Watcher = Callable[[YardstickProgress], None]


def left_of(
    found: Result, description: Experiment, algorithm: Algorithm | Baseline
) -> tuple[Yardstick, ...]:
    """Return those that an experiment asks for and a result lacks.

    A reference model that is what was trained is there already. Beside a network of each client's
    own there is none of all tables, unless the server has one, too.
    """
    if not description.yardsticks or checks.unmeasured(description, algorithm):
        return ()
    missing: list[Yardstick] = []
    model = algorithm.model
    whole = model.kind == "linear" or model.server_model is not None
    if whole and found.metrics.centralised is None:
        missing.append("centralised")
    if not found.metrics.standalone:
        missing.append("standalone")
    return tuple(missing)


def complete(
    found: Result,
    engine: Simulation,
    algorithm: Algorithm | Baseline,
    options: Any,
    part: Part,
    clock: Clock,
    watch: Watcher | None = None,
) -> Result:
    """Train those that are left, and keep each in the result's folder when it is there.

    After a long training two are trained at the same time, one of them in a process of its own.

    Parameters
    ----------
    engine
        Over the prepared blocks of all clients.
    options
        The hyperparameters of the algorithm.
    part
        What models are evaluated on.
    clock
        Has the seconds of the run so far.
    watch
        Called when a model begins, and as it goes on.
    """
    names, done = found.yardsticks_left, dict[Yardstick, Scored]()
    make = partial(_score, found, engine, algorithm, options, part)
    said = partial(_say, watch)
    remedies = _remedies(algorithm, options, engine)
    errand = None
    if len(names) > 1 and engine.spreads and clock.seconds["training"] > _LONG:
        first = names[0]
        classes = codec.classes_in(Scored)
        errand = Errand("trained a reference model", partial(make, first), classes)
        said(first, "", 0, 0)
    ended = found
    try:
        for name in names if errand is None else names[1:]:
            said(name, "", 0, 0)
            with clock.part("yardsticks"):
                done[name] = make(name, partial(said, name))
            ended = _kept(found, done, clock, remedies)
        if errand is not None:
            with clock.part("yardsticks"):
                done[first] = errand.result(partial(said, first))
            ended = _kept(found, done, clock, remedies)
    finally:
        if errand is not None:
            errand.close()
    return ended


def compiled_beside(
    description: Experiment, algorithm: Algorithm | Baseline, options: Any, engine: Any
) -> AbstractContextManager[Callable[[], None]]:
    """Let another process compile what linear reference models run, while this one trains.

    At a first run both take seconds to compile, each other kernels. What it yields waits for the
    end; a process that is gone leaves the rest to this one. It does not hold the engine.
    """
    errand = None
    linear = algorithm.federated and algorithm.model.kind == "linear"
    if (
        description.yardsticks
        and linear
        and not getattr(options, "l1_ratio", 0.0)
        and isinstance(engine, Simulation)
        and engine.spreads
        and sdca.lacks_kernels()
    ):
        blocks = [engine.block(name) for name in engine.ids]
        sparse = any(block.sparse for block in blocks)
        weighted = any(block.weights is not None for block in blocks)
        task = partial(_compile, sparse=sparse, weighted=weighted)
        errand = Errand("compiled reference models", task)
    return _waited_for(errand)


@contextmanager
def _waited_for(errand: Errand | None) -> Iterator[Callable[[], None]]:
    """Yield what waits for an errand; in the end it is closed."""

    def wait() -> None:
        if errand is not None:
            with suppress(WorkerError):
                errand.result(_hear)

    try:
        yield wait
    finally:
        if errand is not None:
            errand.close()


def _compile(_: Callable[..., None], *, sparse: bool, weighted: bool) -> None:
    sdca.compile_kernels(sparse=sparse, weighted=weighted)


def _hear(*_: object) -> None:
    """Take no note of what an errand tells."""


_LONG = 2.0  # seconds of training after which both reference models are trained at the same time


@dataclass(frozen=True)
class Scored:
    """What a reference model comes to."""

    notes: tuple[str, ...]
    centralised: Score | None = None
    standalone: Mapping[ClientId, Score] | None = None


def _kept(
    found: Result, done: Mapping[Yardstick, Scored], clock: Clock, remedies: Sequence[str]
) -> Result:
    """Return a result with the reference models that are done, kept in its folder."""
    left = found.yardsticks_left
    ended = found
    for name in left:
        if name not in done:
            continue
        scored = done[name]
        metrics, notes = ended.metrics, scored.notes
        if name == "centralised":
            metrics = replace(metrics, centralised=scored.centralised)
        else:
            metrics = metrics.beside(scored.standalone or {})
            notes = (*notes, *results.worse_by_joining(metrics, remedies))
        ended = replace(ended, metrics=metrics, notes=(*ended.notes, *notes))
    left = tuple(one for one in left if one not in done)
    ended = replace(ended, yardsticks_left=left, seconds=results.with_total(clock.seconds))
    if ended.folder is not None:
        ended.write(ended.folder)
    return ended


def _remedies(algorithm: Algorithm | Baseline, options: Any, engine: Simulation) -> tuple[str, ...]:
    """Return what may serve the clients that the federation makes worse, in sentences."""
    found: list[str] = []
    if getattr(options, "weights", "samples") in ("clients", "equal"):
        found.append(
            'Clients with few rows count as much as those with many here: try weights = "samples".'
        )
    if not getattr(options, "keep_own", True):
        found.append(
            "With keep_own = true a client keeps a network of its own where that errs less on its "
            "rows for validation."
        )
    if getattr(options, "adaptive", False) and "personal" in options.levels:
        found.append(
            "With validation = 0.3 more rows say which levels a client keeps, and with "
            "personal_pull = 0 a level of its own is not held near the others'."
        )
    personal = recommend.personal(engine.schema("train"))
    if personal and algorithm.model.kind == "linear":
        found.append(
            "Where the clients' rows follow different rules, one model for all fits none: then "
            f"{personal} may serve, which trains one for each client."
        )
    return tuple(found)


def _say(watch: Watcher | None, name: Yardstick, step: str, done: int, most: int) -> None:
    if watch is not None:
        watch(YardstickProgress(name, step, done, most))


def _score(
    found: Result,
    engine: Simulation,
    algorithm: Algorithm | Baseline,
    options: Any,
    part: Part,
    name: Yardstick,
    told: baselines.Teller,
) -> Scored:
    made = _networks if algorithm.federated and algorithm.model.local_baseline else _linear
    return made(name, found, engine, algorithm, options, part, told)


def _linear(
    name: Yardstick,
    found: Result,
    engine: Simulation,
    algorithm: Algorithm | Baseline,
    options: Any,
    part: Part,
    told: baselines.Teller,
) -> Scored:
    given = {"loss": options.loss, "regularisation": options.regularisation, "seed": found.seed}
    given["shape"] = losses.shape_of(options)
    given["l1_ratio"] = getattr(options, "l1_ratio", 0.0)
    if name == "centralised":
        metrics, notes = baselines.centralised(engine, part, **given, told=told)
        return Scored(notes, centralised=Score.of(metrics))
    own, notes = baselines.alone(engine, part, **given, told=told)
    return Scored(notes, standalone={name: Score(**vars(one)) for name, one in own.items()})


def _networks(
    name: Yardstick,
    found: Result,
    engine: Simulation,
    algorithm: Algorithm | Baseline,
    options: Any,
    part: Part,
    told: baselines.Teller,
) -> Scored:
    assert algorithm.federated
    assert algorithm.model.local_baseline is not None
    # as long as the model of the run was trained: later rounds of it count for nothing
    rounds = found.best_round or found.rounds
    given: dict[str, Any] = {"rounds": rounds, "seed": found.seed, "told": told}
    baseline = algorithm.model.local_baseline
    learner = algorithm_named(baseline.algorithm)
    assert isinstance(learner, Algorithm)
    trained = engine, learner, baseline.options(learner.hyperparameters, options), part
    if name == "centralised":
        blocks = evaluation.server_blocks(algorithm.model, options, engine.schema("train")) or ()
        every = baselines.network_of_all(*trained, blocks=blocks, **given)
        return Scored((), centralised=Score.of(every))
    own = baselines.networks_alone(*trained, **given)
    scores = {name: Score(**vars(one)) for name, one in own.items()}
    chosen = found.best_round is not None
    notes = () if chosen else results.worse_probabilities(found.metrics.beside(scores))
    return Scored(notes, standalone=scores)
