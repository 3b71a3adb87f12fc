"""Train the reference models beside a finished run, each of which is kept as soon as it is there.

The run's own result and model are written before the first begins, so that nothing of it is lost
where somebody stops them: `Result.yardsticks_left` names those that are missing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from intarsia.core.algorithm import Algorithm
from intarsia.engines.simulation import Simulation
from intarsia.experiment.config import Experiment
from intarsia.maths.linear import losses
from intarsia.protocols import evaluation
from intarsia.results import result as results
from intarsia.results.result import Result, Score, Yardstick
from intarsia.training import baselines, checks
from intarsia.training.baselines import Baseline
from intarsia.training.loop import Part
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

    A reference model that is what was trained is there already.
    """
    if not description.yardsticks or checks.unmeasured(description, algorithm):
        return ()
    missing: list[Yardstick] = []
    if found.metrics.centralised is None:
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

    Parameters
    ----------
    engine
        Over the prepared blocks of all clients.
    options
        The hyperparameters of the algorithm.
    part
        What models are graded on.
    clock
        Has the seconds of the run so far.
    watch
        Called when a model begins, and as it goes on.
    """
    for name in found.yardsticks_left:
        told = _teller(name, watch)
        told("", 0, 0)
        with clock.part("yardsticks"):
            made = _networks if algorithm.federated and algorithm.model.local_baseline else _linear
            found = made(name, found, engine, algorithm, options, part, told)
            left = tuple(one for one in found.yardsticks_left if one != name)
            if name == "standalone":
                worse = results.worse_by_joining(found.metrics)
                found = replace(found, notes=(*found.notes, *worse))
            found = replace(found, yardsticks_left=left, seconds=results.with_total(clock.seconds))
        if found.folder is not None:
            found.write(found.folder)
    return found


def _teller(name: Yardstick, watch: Watcher | None) -> baselines.Teller:
    def told(step: str, done: int, most: int) -> None:
        if watch is not None:
            watch(YardstickProgress(name, step, done, most))

    return told


def _linear(
    name: Yardstick,
    found: Result,
    engine: Simulation,
    algorithm: Algorithm | Baseline,
    options: Any,
    part: Part,
    told: baselines.Teller,
) -> Result:
    given = {"loss": options.loss, "regularisation": options.regularisation, "seed": found.seed}
    given["shape"] = losses.shape_of(options)
    given["l1_ratio"] = getattr(options, "l1_ratio", 0.0)
    if name == "centralised":
        grades, notes = baselines.centralised(engine, part, **given, told=told)
        metrics = replace(found.metrics, centralised=Score.of(grades))
    else:
        own, notes = baselines.alone(engine, part, **given, told=told)
        metrics = found.metrics.beside({client: Score(**vars(one)) for client, one in own.items()})
    return replace(found, metrics=metrics, notes=(*found.notes, *notes))


def _networks(
    name: Yardstick,
    found: Result,
    engine: Simulation,
    algorithm: Algorithm | Baseline,
    options: Any,
    part: Part,
    told: baselines.Teller,
) -> Result:
    assert algorithm.federated
    assert algorithm.model.local_baseline is not None
    given: dict[str, Any] = {"rounds": found.rounds, "seed": found.seed, "told": told}
    trained = engine, algorithm, algorithm.model.local_baseline(options), part
    if name == "centralised":
        blocks = evaluation.server_blocks(algorithm.model, options, engine.schema("train")) or ()
        every = baselines.network_of_all(*trained, blocks=blocks, **given)
        metrics = replace(found.metrics, centralised=Score.of(every))
    else:
        own = baselines.networks_alone(*trained, **given)
        metrics = found.metrics.beside({client: Score(**vars(one)) for client, one in own.items()})
    return replace(found, metrics=metrics)
