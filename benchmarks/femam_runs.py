"""One training of a method, and what it comes to with each of several last trainings.

FedAvg and FedAvg+, or FeSEM and FeSEM+, differ by what each client does after the last round
(`final_epochs`), so that one training tells of all of them, to the bits of runs of their own.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from intarsia.core.algorithm import Algorithm, FinalResult
from intarsia.engines.client_states import States
from intarsia.errors import ConvergenceError
from intarsia.experiment.config import Experiment
from intarsia.experiment.federation import build
from intarsia.partition.client_clusters import Structure, Structures, of_models
from intarsia.results.result import Score, mean, worst
from intarsia.training import loop as training
from intarsia.training.registry import choose
from intarsia.training.setup import prepared_engine, sealed_sums
from intarsia.training.timing import Clock

__all__ = ["runs"]


def runs(description: Experiment, finals: Iterable[int] = ()) -> dict[int | None, dict[str, Any]]:
    """Return what an experiment comes to, for each number of last epochs; None: as it says."""
    algorithm, options = choose(description)
    assert isinstance(algorithm, Algorithm)
    started = time.process_time()
    found = build(description, None, None)
    parts = {"train": dict(found.train), "test": dict(found.test)}
    sealed = sealed_sums(description, found.schema.clients, None)
    engine = prepared_engine(description, parts, found.labels, sealed, None, States()).engine
    task = training.Task(description, algorithm, options, engine, "test", None, Clock())
    wanted = list(finals) or [None]
    try:
        server, standing = training.train(task, *training.start(task))
    except ConvergenceError as problem:
        return dict.fromkeys(wanted, _diverged(problem))
    before = engine.get_states()
    trained = time.process_time() - started
    each: dict[int | None, dict[str, Any]] = {}
    for final in wanted:
        started = time.process_time()
        if final is not None:
            engine.set_states({name: _tuned(state, final) for name, state in before.items()})
            server = _tuned(server, final)
        engine.begin_round(standing.round + 1)
        try:
            conclusion = algorithm.conclude(server, engine, engine.key("conclude"))
            came = _came(task, conclusion, found.structure)
        except ConvergenceError as problem:
            came = _diverged(problem)
        seconds = trained + time.process_time() - started
        each[final] = {**came, "rounds": standing.round, "seconds": seconds}
    return each


def _came(task: training.Task, conclusion: FinalResult, truth: Structure | None) -> dict[str, Any]:
    """Return how the clients' models do, and what structure was found."""
    _, own = training.evaluate(task)
    scores = {
        name: Score(loss=one.loss, accuracy=one.accuracy, macro_f1=one.macro_f1)
        for name, one in own.items()
    }
    learned = of_models(tuple(task.engine.ids), conclusion.structure)
    middle, least = mean(scores), worst(scores)
    assert middle is not None
    assert least is not None
    return {
        "accuracy": middle.accuracy,
        "macro_f1": middle.macro_f1,
        "loss": middle.loss,
        "worst": least.accuracy,
        "kept": [
            sum(group is not None for group in groups)
            for groups in (learned.levels if learned else {}).values()
        ],
        "agreement": Structures(truth, learned).agreement,
        "notes": list(conclusion.notes),
    }


def _diverged(problem: ConvergenceError) -> dict[str, Any]:
    """Return what stands for a run whose loss or parameters became no number."""
    return {
        "accuracy": 0.0,
        "macro_f1": 0.0,
        "loss": sys.float_info.max,
        "worst": 0.0,
        "kept": [],
        "agreement": {},
        "notes": [str(problem)],
    }


def _tuned(state: Any, final: int) -> Any:
    """Return a client's or the server's state with another number of last epochs."""
    return replace(state, options=replace(state.options, final_epochs=final))
