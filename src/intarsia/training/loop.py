"""Run the rounds: who takes part, when to certify, evaluate and save, and when to stop."""

from __future__ import annotations

import dataclasses
import logging
import math
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from intarsia import core as fl
from intarsia.core.block import Array, Block, ClientId, Labels
from intarsia.core.schema import Schema
from intarsia.engines.communication_log import RECORDS
from intarsia.engines.remote.server import Remote
from intarsia.engines.simulation import Simulation
from intarsia.errors import (
    AbsentError,
    AlgorithmError,
    CheckpointError,
    ConvergenceError,
    first_line,
)
from intarsia.experiment.config import Experiment
from intarsia.maths.linear import losses
from intarsia.protocols import early_stopping, evaluation, evaluation_rows
from intarsia.protocols.evaluation import Evaluation
from intarsia.results.checkpoint import Checkpoints
from intarsia.results.result import SUM_ROUNDING, Finished, Result
from intarsia.training.timing import Clock

Part = fl.Part
_LOG = logging.getLogger("intarsia")

PATIENCE = 300  # rounds without a smaller gap after which training has stalled
_SEALED_PATIENCE = 30  # the same where sums are sealed and the gap is below `_ENDS`
_ROUNDING = 1e-12  # a relative gap that float64 cannot tell from 0
_ENDS = 1e-6  # one at which an algorithm may end by itself: sums in fixed point show no smaller one
_WRITING = 0.1  # share of the time that checkpoints may take
_DISK = 5e8  # bytes of them that are written in a second
_STOPPING = 2.0  # seconds that a stop may take to come to the end of a round
_STEADY = (2, 1.0)  # rounds and seconds after the first round that tell how long one takes


@dataclass(frozen=True)
class Progress:
    """How far a run is, after a round."""

    round: int
    rounds: int
    seconds: float  # of training
    loss: float | None
    gap_relative: float | None
    accuracy: float | None
    bytes: int
    exchanges: int
    phase: str
    seconds_left: float | None  # None: not known yet


@dataclass(frozen=True, eq=False)
class Listeners:
    """Who hears how a run goes: functions whose errors end it, and callbacks, whose do not."""

    progress: Callable[[Progress], object] | None = None  # after each round
    yardsticks: Callable[[Any], None] | None = None  # as the reference models are trained
    callbacks: Sequence[Any] = ()  # with methods of `callbacks.Callback`

    def start(self, description: Experiment, folder: Path | None) -> None:
        """Tell that training begins, or goes on."""
        number, name = len(description.clients), description.name
        over = f" over {number} clients" if number else ""
        _LOG.info(
            "%s: %s%s, %d rounds at most", name, description.algorithm, over, description.rounds
        )
        self._tell("on_start", replace(description, out="" if folder is None else str(folder)))

    def round(self, now: Progress) -> None:
        """Tell how far the run is."""
        _LOG.debug(
            "round %d of %d: loss %s, gap %s", now.round, now.rounds, now.loss, now.gap_relative
        )
        self._tell("on_round", now)
        if self.progress is not None:
            self.progress(now)

    @contextmanager
    def until_end(self) -> Iterator[Callable[[Result], Result]]:
        """Tell of an error that ends the run; what is given tells the result, and returns it."""
        try:
            yield self._end
        except BaseException as error:
            _LOG.info("stopped: %s", type(error).__name__)
            self._tell("on_stop", error)
            raise

    def _end(self, result: Result) -> Result:
        _LOG.info("%s: %d rounds, ended by %s", result.experiment, result.rounds, result.finished)
        self._tell("on_end", result)
        return result

    def _tell(self, method: str, given: Any) -> None:
        for one in self.callbacks:
            heard = getattr(one, method, None)
            if heard is None:
                continue
            try:
                heard(given)
            except Exception as problem:  # weeks of training must not die of a tracker
                said = first_line(problem)
                after = "" if method in ("on_end", "on_stop") else "; training goes on"
                warnings.warn(
                    f"The callback {type(one).__name__} failed in {method} "
                    f"({type(problem).__name__}: {said}){after}.",
                    RuntimeWarning,
                    stacklevel=2,
                )


@dataclass(frozen=True, eq=False)
class Task:
    """What a run trains, and with what."""

    description: Experiment
    algorithm: fl.Algorithm
    options: Any  # the algorithm's hyperparameters
    engine: Simulation | Remote
    part: Part  # what the model is evaluated on
    store: Checkpoints | None
    clock: Clock
    progress: Callable[[Progress], object] | None = None
    release: fl.Release | None = None  # with how much noise; None: without


@dataclass(frozen=True)
class TrainingState:
    """Where training stands after a round, apart from the states."""

    round: int = 0
    finished: Finished | None = None
    scores: Mapping[str, float] = field(default_factory=dict[str, float])  # of the last evaluation
    scored: int = 0  # the round of that evaluation; 0: there was none, or it is not known
    best: float = math.inf  # smallest gap
    best_round: int = 0
    halved: float = math.inf  # the gap where it was last half of what it was there before
    halved_round: int = 0
    first: float = math.inf  # the first gap
    chosen: int = 0  # the best round for early stopping; 0: none was evaluated
    chosen_by: float | None = None  # its figure


@dataclass(frozen=True, eq=False)
class Simulated:
    """Clients in this process after their last round, and what the algorithm concludes."""

    engine: Simulation
    rounds: int
    conclusion: fl.FinalResult


def simulate(
    algorithm: fl.Algorithm,
    options: Any,
    parts: Mapping[str, Mapping[ClientId, Block]],
    labels: Labels,
    *,
    rounds: int,
    seed: int,
    tolerance: float = -math.inf,
    secrets: Mapping[ClientId, fl.SecretKey] | None = None,
    watch: Callable[[int], object] | None = None,
) -> Simulated:
    """Run an algorithm in this process, and nothing beside it: no folder, history or scores.

    `parts` are the clients' prepared blocks. The rounds end before their number at a relative gap
    of `tolerance`. `secrets` are the clients' own; None: they are drawn from the system.
    `watch` is called after each round with its number.
    """
    known = {part: (Schema.of(blocks, labels), blocks) for part, blocks in parts.items()}
    engine = Simulation(known, seed, secrets=secrets)
    key = engine.key("init")
    server = algorithm.begin(options, engine.schema("train"), key)
    engine.begin(algorithm, options)
    server = algorithm.prepare(server, engine, key)
    number = 0
    while number < rounds:
        number += 1
        engine.begin_round(number)
        server, info = algorithm.round(server, engine, engine.key())
        if watch is not None:
            watch(number)
        if info.gap_relative is not None and is_met(info.gap_relative, tolerance):
            break
    engine.begin_round(number + 1)
    return Simulated(engine, number, algorithm.conclude(server, engine, engine.key("conclude")))


def start(task: Task) -> tuple[Any, TrainingState]:
    """Return the server's state and where training stands: new, or as a checkpoint has it."""
    algorithm, options, engine, store = task.algorithm, task.options, task.engine, task.store
    schema = engine.schema("train")
    found = None if store is None else store.latest((*algorithm.states, *RECORDS))
    if store is not None and found is not None:
        try:
            engine.set_states(found.clients)
            engine.expect(algorithm)
            engine.books.restore_traffic(found.extra["traffic"])
            engine.books.crossings.restore(found.extra["crossings"])
            engine.books.releases.update(found.extra.get("releases", {}))
            task.clock.add(found.extra["seconds"])
            standing = TrainingState(**found.extra["standing"])
            if not isinstance(found.server, algorithm.states):
                raise TypeError(f"the server's state is a {type(found.server).__name__}")
        except (LookupError, TypeError) as problem:
            raise CheckpointError(
                f"The checkpoint of round {found.round} in {store.folder} is none of this run's "
                f"({problem}); run the experiment again with --overwrite."
            ) from None
        store.truncate_history(found.round)
        return engine.books.unseal(found.server), standing
    if store is not None:
        store.truncate_history(0)
    began = time.perf_counter()
    with task.clock.part("training"):
        key = engine.key("init")
        server = algorithm.begin(options, schema, key)
        engine.begin(algorithm, options)
        server = algorithm.prepare(server, engine, key)
    if task.store is not None and _due(task, task.store, time.perf_counter() - began, ended=True):
        _save(task, server, TrainingState())
    return server, TrainingState()


def train(task: Task, server: Any, state: TrainingState) -> tuple[Any, TrainingState]:
    """Run rounds until the tolerance is met, the algorithm is done, or the limit is reached.

    It also ends where the gap stays as it is, where early stopping finds no better round, and where
    rounds began again so often that the noise is used up that was measured for; what it has come to
    by then is kept.

    Raises
    ------
    ConvergenceError
        If training diverges.
    KeyboardInterrupt
        After Ctrl-C: at the end of the round, which is saved first, where rounds are short.
    """
    # what sites answered since a checkpoint is in the journal: nothing is lost there
    with _stops_at_rounds(wait=isinstance(task.engine, Simulation)) as stop:
        return _train(task, server, state, stop)


@dataclass(eq=False)
class _Stop:
    """Whether training is to stop, and whether that waits for the end of the round."""

    round_seconds: float = math.inf  # of the round before
    asked: float | None = None  # when Ctrl-C was pressed first

    def __call__(self, *_: object) -> None:
        now = time.perf_counter()
        if self.asked is None and self.round_seconds < _STOPPING:
            self.asked = now
        elif self.asked is None or now - self.asked > _STOPPING:
            raise KeyboardInterrupt


@contextmanager
def _stops_at_rounds(*, wait: bool) -> Iterator[_Stop]:
    """Let signals that would raise KeyboardInterrupt wait for the end of a round.

    Clients that were stopped within a round are at different states, which nobody can save.
    """
    stop, before = _Stop(), []
    if wait and threading.current_thread() is threading.main_thread():  # others may not
        signals = (signal.SIGINT, signal.SIGTERM)
        before = [one for one in signals if signal.getsignal(one) is signal.default_int_handler]
    for one in before:
        signal.signal(one, stop)
    try:
        yield stop
    finally:
        for one in before:
            signal.signal(one, signal.default_int_handler)
    if stop.asked is not None:
        raise KeyboardInterrupt


def _train(task: Task, server: Any, state: TrainingState, stop: _Stop) -> tuple[Any, TrainingState]:
    description, engine, clock = task.description, task.engine, task.clock
    clients = tuple(engine.ids)
    saved, written = time.perf_counter(), state.round
    warm: tuple[int, float] | None = None  # this process's first round, and the seconds after it
    while state.finished is None:
        number, began = state.round + 1, time.perf_counter()
        with clock.part("training"):
            engine.return_of(wait=False)
            engine.begin_round(number, present(description, clients, number))
            after = _round(task, server)
        if after is None:
            state = replace(state, finished="rounds")
            _save(task, server, state)
            break
        server, info = after
        _check_finite(number, info)
        due = description.evaluate_every > 0 and number % description.evaluate_every == 0
        due = due or (description.early_stopping > 0 and number >= description.rounds)
        before = replace(state, round=number)
        server, info, state, certified = _judged(task, server, info, before, clients, due)
        server, state = _scored(task, server, state, clients, due, certified)
        evaluated = state.scored == number
        seconds = clock.seconds["training"]
        warm = warm or (number, seconds)
        pace = _pace(number - warm[0], seconds - warm[1])
        traffic = engine.books.traffic
        now = Progress(
            round=number,
            rounds=description.rounds,
            seconds=seconds,
            loss=info.primal if info.loss is None else info.loss,
            gap_relative=info.gap_relative,
            accuracy=state.scores.get("accuracy"),
            bytes=sum(traffic.up.values()) + sum(traffic.down.values()),
            exchanges=traffic.exchanges,
            phase=info.phase,
            seconds_left=_seconds_left(description, state, pace),
        )
        if task.store is not None:
            with clock.part("checkpoints"):
                task.store.append_history(_line(now, info, state.scores if evaluated else {}))
            since = time.perf_counter() - saved
            if _due(task, task.store, since, ended=state.finished is not None):
                _save(task, server, state)
                saved, written = time.perf_counter(), number
        stop.round_seconds = time.perf_counter() - began  # whoever reads of it may stop the run
        if task.progress is not None:
            task.progress(now)
        if stop.asked is not None:
            if written != number:
                _save(task, server, state)
            break
    return server, state


def _judged(
    task: Task,
    server: Any,
    info: fl.RoundMetrics,
    before: TrainingState,
    clients: Sequence[ClientId],
    due: bool,
) -> tuple[Any, fl.RoundMetrics, TrainingState, bool]:
    """Return a round's metrics, where training stands by them, and whether they are a certificate.

    `due`: whether the round asks for one; the state `before` has the round's number.
    """
    engine, number = task.engine, before.round
    absent = len(engine.ids) < len(clients)
    phase, certified = info.phase, due and (absent or info.primal is None)
    if certified and not engine.away:
        # a gap counts only where all clients are up to date
        server, info = _certify(task, server, number, clients)
        info = replace(info, phase=info.phase or phase)
    elif absent:
        # these are sums over the clients that were there
        info = replace(info, primal=None, dual=None, gap_relative=None)
    state = _judge(task.description, before, info)
    if (state.finished == "tolerance" or is_false(info)) and not certified:
        # a round may report the gap where it started, and end at a wider one
        server, info = _certify(task, server, number, clients)
        state = _judge(task.description, before, info)
    return server, info, state, certified


def _scored(
    task: Task,
    server: Any,
    state: TrainingState,
    clients: Sequence[ClientId],
    due: bool,
    certified: bool,
) -> tuple[Any, TrainingState]:
    """Return the state with the scores of a round that is evaluated, and kept if it is the best."""
    compares, number = task.description.early_stopping > 0, state.round
    evaluated = compares
    if state.finished is None:
        evaluated = due and _is_evaluated(task, number)
    if not evaluated or task.engine.away:
        waited = compares and state.chosen_by is not None and _has_waited(task, state)
        if waited and not _is_compared_later(task, number):
            state = replace(state, finished="early_stopping")
        return server, state
    if compares:
        if not certified:  # the last round: who was away has what is evaluated now
            server, _ = _certify(task, server, number, clients)
        server, state, found = _compared(task, server, state)
    else:
        with task.clock.part("evaluation"):
            found = _metrics(task, task.part, totals_only=True)[0]
    scores = {} if found is None else dataclasses.asdict(found)
    scores = {name: value for name, value in scores.items() if value is not None}
    return server, replace(state, scores=scores, scored=number)


def present(
    description: Experiment, clients: Sequence[ClientId], number: int
) -> tuple[ClientId, ...] | None:
    """Return the clients that take part in a round, in the federation's order; None: all.

    There is always at least one.
    """
    share, count = description.participation, len(clients)
    if share == 1.0:
        return None
    if description.participation_pattern == "cyclic":
        turns = _turns(description, count)
        chosen = tuple(clients[k] for k in range(count) if k % turns == (number - 1) % turns)
    else:
        key = fl.RandomKey((description.seed, number, "participation"))
        drawn = key.generator().permutation(count)[: max(1, round(share * count))]
        chosen = tuple(clients[k] for k in sorted(drawn.tolist()))
    return None if len(chosen) == count else chosen


def fewest(description: Experiment, clients: Sequence[ClientId]) -> int:
    """Return how many clients a round has at least."""
    cyclic = description.participation_pattern == "cyclic"
    # drawn clients are as many in each round
    rounds = _turns(description, len(clients)) if cyclic else 1
    numbers = range(1, min(rounds, description.rounds) + 1)
    return min(len(present(description, clients, number) or clients) for number in numbers)


def _turns(description: Experiment, count: int) -> int:
    """Return after how many rounds every client was there, in the cyclic pattern."""
    return min(count, max(1, round(1 / description.participation)))


def _round(task: Task, server: Any) -> tuple[Any, fl.RoundMetrics] | None:
    """Return the server's state after a round: one without those that do not answer, if it may.

    None: a client that is there has released with noise as often as that was measured for.
    """
    engine = task.engine
    while not _noise_used_up(task):
        task.algorithm.check_present(len(engine.ids), len(engine.schema("train").clients))
        try:
            found = task.algorithm.round(server, engine, engine.key())
            after, info = _state_and_metrics(task, "round", found)
            return engine.books.settle(after), info
        except AbsentError as absent:
            if not engine.without(absent):
                raise
    return None


def _state_and_metrics(task: Task, name: str, found: Any) -> tuple[Any, fl.RoundMetrics]:
    """Return what a function of an algorithm came to; AlgorithmError if it is something else."""
    what = f"a {type(found).__name__}"
    if isinstance(found, tuple) and len(found) == 2:
        server, info = found
        if server is not None and isinstance(info, fl.RoundMetrics):
            return server, info
        what = f"a {type(server).__name__} and a {type(info).__name__}"
    raise AlgorithmError(
        f"{name} of {task.algorithm.name} returns {what}; return the server's new state and what "
        "the round came to: server, fl.RoundMetrics(...)."
    )


def _noise_used_up(task: Task) -> bool:
    if task.release is None:
        return False
    most, made = task.release.releases, task.engine.books.releases
    return any(made[name] >= most for name in task.engine.ids)


def _due(task: Task, store: Checkpoints, since: float, *, ended: bool) -> bool:
    """Return whether to write a checkpoint, `since` seconds after the one before.

    It takes a tenth of that time at most: a run that dies makes these seconds again. `ended`: the
    set-up, or training, has ended. Then there is one unless states are large, and always of sites,
    which do not answer twice.
    """
    least, engine = task.description.checkpoint_seconds, task.engine
    if not least:
        return True  # after every round, whatever it takes
    if ended and not isinstance(engine, Simulation):
        return True
    taken = engine.states_size / _DISK if isinstance(engine, Simulation) else 0.0
    if not ended:
        taken = max(taken, store.seconds, least * _WRITING)
    return since >= taken / _WRITING


def _certify(
    task: Task, server: Any, number: int, clients: Sequence[ClientId]
) -> tuple[Any, fl.RoundMetrics]:
    """Return the objectives over all clients at the state after a round."""
    engine = task.engine
    with task.clock.part("evaluation"):
        engine.begin_round(number, clients)
        found = task.algorithm.certify(server, engine, engine.key("certify"))
        server, info = _state_and_metrics(task, "certify", found)
    _check_finite(number, info)
    return server, info


def _compared(
    task: Task, server: Any, state: TrainingState
) -> tuple[Any, TrainingState, Evaluation | None]:
    """Return where training stands once a round was compared with the best before it, and metrics.

    Without a network of the server the metrics are those of clients' own.
    """
    description = task.description
    with task.clock.part("evaluation"):
        every = _metrics(task, "validation", totals_only=True)[0]
        figure = None
        if every is not None and description.stop_by == "loss":
            figure = every.loss
        elif every is not None:
            figure = every.r2 if every.accuracy is None else every.accuracy
        if figure is not None:
            before, sign = state.chosen_by, -1.0 if description.stop_by == "loss" else 1.0
            if before is None or sign * figure > sign * before:
                server = early_stopping.keep(server, task.engine)
                state = replace(state, chosen=state.round, chosen_by=figure)
    if _has_waited(task, state):
        state = replace(state, finished="early_stopping")
    return server, state, every


def _has_waited(task: Task, state: TrainingState) -> bool:
    """Return whether training goes on, and the best round is as long ago as is waited for."""
    waited = state.round - state.chosen
    return state.finished is None and waited >= task.description.early_stopping


def evaluate(task: Task) -> tuple[Evaluation | None, dict[ClientId, Evaluation]]:
    """Return the metrics over all samples and over each client's, with figures, when a run ends.

    They are not exchanges of training. Scores of a sample are added up where the algorithm says
    that they are. Of clients' own models each says its client's samples by itself, and all samples
    are said by the server's network, if the algorithm has one.
    """
    return _metrics(task, task.part, with_figures=True)


def _metrics(
    task: Task, part: Part, **how: bool
) -> tuple[Evaluation | None, dict[ClientId, Evaluation]]:
    """Return metrics as `evaluate` does; `how` is told to `protocols.evaluation`."""
    engine, model = task.engine, task.algorithm.model
    engine.begin_round(engine.books.round)
    given: Any = {"part": part, **how}
    schema, loss = engine.schema(part), evaluation.evaluation_loss(task.options.loss)
    with engine.books.unmetered():
        if model.additive:
            shape = losses.shape_of(task.options)
            return evaluation.evaluate(engine, schema, model.predict, loss, shape=shape, **given)
        server, blocks = model.server_model, _server_blocks(task)
        evaluated = (engine, schema, model.predict, loss)
        given["trained"] = model.trained_classes
        every: Evaluation | None = None
        own: dict[ClientId, Evaluation] = {}
        if server is not None and blocks is not None:
            every = evaluation.evaluate_server(engine, schema, server, blocks, loss, **given)
        if every is None or not how.get("totals_only"):
            of_own, own = evaluation.evaluate_own(*evaluated, server=blocks, **given)
            # at the end a server without a network has no score
            every = of_own if server is None or how.get("totals_only") else every
        return every, own


def _server_blocks(task: Task) -> tuple[str, ...] | None:
    return evaluation.server_blocks(task.algorithm.model, task.options, task.engine.schema("train"))


def _is_evaluated(task: Task, number: int) -> bool:
    """Return whether to evaluate after a round: a site answers for so many models alone."""
    turn = number // task.description.evaluate_every
    return evaluation_rows.is_due(turn, times_evaluated(task))


def _is_compared_later(task: Task, number: int) -> bool:
    """Return whether a round after this one, but for the last, may be compared with the best."""
    every, most = task.description.evaluate_every, times_evaluated(task)
    turns = range(number // every + 1, task.description.rounds // every + 1)
    return any(evaluation_rows.is_due(turn, most) for turn in turns)


def times_evaluated(task: Task) -> int:
    """Return by how many models metrics are told in training."""
    compares = task.description.early_stopping > 0
    schema = task.engine.schema("validation" if compares else task.part)
    most = evaluation_rows.times_evaluated(schema, _server_blocks(task))
    return most - compares  # rounds are compared at the end, too


def evaluate_clients(
    engine: Simulation, algorithm: fl.Algorithm, options: Any, part: Part
) -> dict[ClientId, Evaluation]:
    """Return the metrics of each client's own model, with figures."""
    schema, loss = engine.schema(part), evaluation.evaluation_loss(options.loss)
    given = engine, schema, algorithm.model.predict, loss
    how: Any = {"with_figures": True, "trained": algorithm.model.trained_classes}
    return evaluation.evaluate_own(*given, part=part, **how)[1]


def _check_finite(number: int, info: fl.RoundMetrics) -> None:
    """Refuse an objective or a gap that is no number; a dual of -∞ is a bound."""
    for name, value in (
        ("objective", info.primal),
        ("loss", info.loss),
        ("gap", info.gap_relative),
    ):
        if value is not None and (math.isnan(value) or (name != "gap" and math.isinf(value))):
            raise _diverged(f"The {name} is {value} in round {number}")


def check_weights(weights: Array | None) -> None:
    """Refuse a model of weights that are no numbers; ConvergenceError names the likely cause."""
    odd = 0 if weights is None else int((~np.isfinite(weights)).sum())
    if weights is not None and odd:
        raise _diverged(f"{odd} of the model's {weights.size} weights are no finite numbers")


def check_scores(every: Evaluation | None, own: Mapping[ClientId, Evaluation]) -> None:
    """Refuse models whose loss is no finite number; ConvergenceError as of weights."""
    for whose, one in (("all samples", every), *((repr(name), one) for name, one in own.items())):
        if one is not None and not math.isfinite(one.loss):
            raise _diverged(f"The loss of the model on the evaluated rows of {whose} is {one.loss}")


def _diverged(what: str) -> ConvergenceError:
    return ConvergenceError(
        f"{what}: the steps are too long for features of this size, or the regularisation is too "
        "weak; set preprocessing.standardise = true, raise algorithm.regularisation, or shorten "
        "the algorithm's steps."
    )


def is_met(gap: float, tolerance: float) -> bool:
    """Return whether a relative gap is within the tolerance.

    Below 0 by more than float64 rounds, it is of a certificate that is wrong, and says nothing.
    """
    return -min(max(tolerance, _ROUNDING), SUM_ROUNDING) <= gap <= tolerance


def _judge(description: Experiment, state: TrainingState, info: fl.RoundMetrics) -> TrainingState:
    """Decide whether training is done or has stalled."""
    tolerance = description.tolerance
    if info.gap_relative is not None:
        gap = abs(info.gap_relative)  # below 0 it tells how wrong the certificate is
        if math.isinf(state.first):
            state = replace(state, first=gap)
        if gap < 0.99 * state.best:
            state = replace(state, best=gap, best_round=state.round)
        if gap <= 0.5 * state.halved:
            state = replace(state, halved=gap, halved_round=state.round)
        if tolerance > 0 and is_met(info.gap_relative, tolerance):
            return replace(state, finished="tolerance")
        # what sums are rounded by takes the gap up and down, or hides it
        least = SUM_ROUNDING if description.privacy.mode == "plain" else _ENDS
        least = max(least, 2 * info.rounding)
        patience = PATIENCE if description.privacy.mode == "plain" else _SEALED_PATIENCE
        ends = state.best <= least and state.round - state.best_round >= patience
        ends = ends and info.gap_relative >= -least
        # in float64 there is no more to come: sealed sums have finer and coarser rounds
        ends = ends or (description.privacy.mode == "plain" and gap <= 2 * info.rounding)
        if gap <= _ROUNDING or ends:
            return replace(state, finished="algorithm")
        if state.round - state.best_round >= PATIENCE:
            return replace(state, finished="stalled")
    if info.finished:
        known = info.gap_relative
        hidden = max(_ENDS, 2 * info.rounding)
        below = SUM_ROUNDING if description.privacy.mode == "plain" else hidden
        reached = known is None or -below <= known <= hidden
        ended: Finished = "algorithm" if reached else "stalled"
        return replace(state, finished=ended)
    if state.round >= description.rounds:
        return replace(state, finished="rounds")
    return state


def is_false(info: fl.RoundMetrics) -> bool:
    """Return whether a certificate's dual is above its primal by more than rounding."""
    return info.gap_relative is not None and info.gap_relative < -SUM_ROUNDING


def _line(now: Progress, info: fl.RoundMetrics, scores: Mapping[str, float]) -> dict[str, Any]:
    """Return a round's line of the history; `scores` are those of its evaluation, if it had one."""
    return {
        "round": now.round,
        "phase": now.phase,
        "primal": info.primal,
        "dual": info.dual,
        "gap_relative": info.gap_relative,
        "loss": now.loss,
        "accuracy": scores.get("accuracy"),
        "macro_f1": scores.get("macro_f1"),
        "bytes": now.bytes,
        "exchanges": now.exchanges,
        "seconds": now.seconds,
    }


def _pace(rounds: int, seconds: float) -> float | None:
    """Return the seconds that a round takes, None before that is known.

    The rounds are those after the first, which compiles functions and fills caches.
    """
    known = rounds >= _STEADY[0] and seconds >= _STEADY[1]
    return seconds / rounds if known else None


def _seconds_left(
    description: Experiment, state: TrainingState, pace: float | None
) -> float | None:
    """Return the time to the round limit, or to the tolerance if the gap falls on as it did.

    None before the pace is known, and where the first evaluation may tell the gap.
    """
    if state.finished is not None:
        return 0.0
    if pace is None:
        return None
    end: float = description.rounds
    if description.tolerance > 0:
        if math.isinf(state.first) and state.round < description.evaluate_every:
            return None
        if 0 < state.best < state.first < math.inf:
            fallen = math.log(state.first / state.best)
            asked = math.log(state.first / description.tolerance)
            end = min(end, max(state.best_round * asked / fallen, state.round + 1))
    return pace * (end - state.round)


def _save(task: Task, server: Any, state: TrainingState) -> None:
    if task.store is None:
        return
    engine, clock, description = task.engine, task.clock, task.description
    extra = {
        "traffic": dataclasses.asdict(engine.books.traffic),
        "mode": engine.books.mode,
        "crossings": engine.books.crossings.summary(),
        "releases": engine.books.releases,
        "seconds": clock.seconds,
        "standing": dataclasses.asdict(state),
    }
    with clock.part("checkpoints"):
        # where one is asked for after every round, a kill loses no round that ended
        how = {"wait": not description.checkpoint_seconds, "ahead": description.side_by_side > 1}
        task.store.save(state.round, engine.books.seal(server), engine.states, extra, **how)
        engine.saved()
