"""The three solvers that are timed, each to levels of relative suboptimality (P(w) - P*)/P*.

Times are CPU seconds of this process without the evaluations of P(w).
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from problems import Optimum, Problem, cached, store
from scipy.sparse import issparse
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from intarsia.algorithms.hyfdca import algorithm as hyfdca
from intarsia.core.algorithm import RoundMetrics
from intarsia.core.block import Array
from intarsia.core.client_functions import RandomKey, SecretKey
from intarsia.core.schema import Schema
from intarsia.engines.simulation import Simulation
from intarsia.maths.jit import reassociated
from intarsia.maths.linear import losses, sdca
from intarsia.maths.linear.products import row_norms
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.secure_aggregation.protocol import Sealing
from intarsia.privacy.settings import Privacy

__all__ = ["Mark", "Run", "centralised", "federated", "liblinear", "optimum", "sealing"]

_LOOK = 8  # epochs of the centralised solver that are evaluated at once
_QUIET = 300  # rounds without a smaller gap after which a run is given up


@dataclass(frozen=True)
class Mark:
    """Where a solver first was at or below a level."""

    seconds: float
    exchanges: int = 0
    bytes: int = 0
    rounds: int = 0  # or epochs
    note: str = ""


@dataclass
class Run:
    """What a solver reached, and what it ended with."""

    marks: dict[float, Mark] = field(default_factory=dict[float, Mark])
    seconds: float = 0.0
    rounds: int = 0
    exchanges: int = 0
    gap: float = np.inf  # relative, as certified
    primal: float = np.inf  # lowest seen
    dual: float = -np.inf  # of the last duals
    by_phase: dict[str, float] = field(default_factory=dict[str, float])  # seconds


def federated(
    one: Problem,
    options: hyfdca.HyFDCA,
    *,
    levels: tuple[float, ...],
    best: float | None,
    seed: int = 0,
    limit: float = 60.0,
    rounds: int = 20_000,
    sealed: Sealing | None = None,
    secrets: Mapping[str, SecretKey] | None = None,
) -> Run:
    """Run HyFDCA on the in-process engine until every level is reached.

    `best` is P*; without it, levels are those of the certified relative gap. `sealed` says how sums
    are sealed; None = not at all. `secrets` are the clients' own; None = drawn anew.
    """
    algorithm = hyfdca.HYFDCA
    schema = one.schema()
    engine = Simulation({"train": (schema, one.blocks)}, seed, sealed, secrets=secrets)
    engine.count_once()
    order = _order(schema.features.ids, one.features)
    run, smallest, since = Run(), np.inf, 0
    start = time.process_time()
    engine.set_states(
        {
            name: algorithm.init_client(
                options, schema, name, engine.block(name), engine.client_key(name)
            )
            for name in engine.ids
        }
    )
    server = algorithm.init_server(options, schema, RandomKey((seed,)))
    server = algorithm.setup(server, engine, engine.key("setup"))
    run.seconds = time.process_time() - start
    while run.rounds < rounds and run.seconds < limit:
        run.rounds += 1
        engine.begin_round(run.rounds)
        start = time.process_time()
        server, info = algorithm.round(server, engine, engine.key())
        spent = time.process_time() - start
        run.seconds += spent
        run.by_phase[info.phase] = run.by_phase.get(info.phase, 0.0) + spent
        run.exchanges = engine.books.traffic.exchanges
        gap = info.gap_relative if info.gap_relative is not None else np.inf
        reached = gap
        if best is not None:
            reached = np.inf
            if _worth_a_look(run, info, best, levels):
                run.primal = min(run.primal, one.primal(_weights(server, engine, order)))
                reached = run.primal / best - 1
        for level in levels:
            if level not in run.marks and reached <= level:
                run.marks[level] = Mark(
                    run.seconds, run.exchanges, _bytes(engine), run.rounds, info.phase
                )
        since += 1
        if gap < 0.99 * smallest:
            smallest, since = gap, 0
        run.gap = min(run.gap, gap)
        if len(run.marks) == len(levels) or info.finished or since > _QUIET:
            break
    run.primal = min(run.primal, one.primal(_weights(server, engine, order)))
    run.dual = one.dual(_duals(one, schema, engine))
    return run


def sealing(one: Problem, settings: Privacy) -> Sealing:
    """Return new keys for a problem's clients, and how these seal sums."""
    clients = tuple(one.blocks)
    secrets = modes.keys(settings, clients, None, "benchmark")
    assert secrets is not None
    return modes.sealing(settings, clients, secrets, fresh=True)


def _worth_a_look(run: Run, info: RoundMetrics, best: float, levels: tuple[float, ...]) -> bool:
    """Return whether P(w) may be at the next level, which only an evaluation can tell.

    The objective that a round reports is exact, or that of the round before.
    """
    following = max((level for level in levels if level not in run.marks), default=0.0)
    if info.primal is not None and info.primal / best - 1 > 30 * following:
        return False
    # a look at every twentieth of the way puts a mark at most 5 % too late
    return info.phase == "newton" or run.rounds % max(1, run.rounds // 20) == 0


def _order(have: Any, want: Any) -> Any:
    """Return the positions in `have` of the entries of `want`."""
    place = {name: number for number, name in enumerate(np.asarray(have).tolist())}
    return np.array([place[name] for name in np.asarray(want).tolist()])


def _weights(server: Any, engine: Simulation, order: Any) -> Array:
    """Return the model that the run would end with now; leave no trace of having looked."""
    states = engine.get_states()
    with engine.books.unmetered():
        conclusion = hyfdca.HYFDCA.conclude(server, engine, engine.key("look"))
    engine.set_states(states)
    assert conclusion.weights is not None
    return np.ascontiguousarray(conclusion.weights[:, order])


def _duals(one: Problem, schema: Schema, engine: Simulation) -> Array:
    alpha = np.zeros((1, len(schema.samples)))
    for name, state in engine.get_states().items():
        alpha[:, schema.samples.own(name)] = state.alpha
    return np.ascontiguousarray(alpha[:, _order(schema.samples.ids, one.samples)])


def _bytes(engine: Simulation) -> int:
    return sum(engine.books.traffic.up.values()) + sum(engine.books.traffic.down.values())


def centralised(
    one: Problem,
    *,
    levels: tuple[float, ...],
    best: float,
    seed: int = 0,
    limit: float = 60.0,
    textbook: bool = False,
) -> Run:
    """Run centralised SDCA, one random permutation of the rows an epoch.

    `textbook` leaves out what makes the package's kernel fast on sparse rows.
    """
    rng = np.random.default_rng(seed)
    run = Run()
    begin = time.process_time()
    norms = row_norms(one.x)
    y = one.y[None]
    alpha, w = np.zeros(y.shape), np.zeros((1, one.x.shape[1]))
    run.seconds = time.process_time() - begin
    kept: list[Array] = []
    spent: list[float] = []
    while len(run.marks) < len(levels) and run.seconds < limit:
        begin = time.process_time()
        order = rng.permutation(len(one.y))
        if textbook and issparse(one.x):
            scale = 1.0 / (one.regularisation * y.shape[1])
            given = (one.x.data, one.x.indices, one.x.indptr, y[0], norms, alpha[0], w[0])
            _textbook_epoch(*given, order, scale, one.code)
        else:
            rate = one.regularisation
            sdca.ascend(one.x, y, norms, alpha, w, order, regularisation=rate, loss=one.code)
        run.seconds += time.process_time() - begin
        run.rounds += 1
        kept.append(w[0].copy())
        spent.append(run.seconds)
        if len(kept) < _LOOK and run.seconds < limit:
            continue
        for number, primal in enumerate(_primals(one, np.array(kept))):
            run.primal = min(run.primal, primal)
            epoch = run.rounds - len(kept) + number + 1
            for level in levels:
                if level not in run.marks and run.primal / best - 1 <= level:
                    run.marks[level] = Mark(spent[number], rounds=epoch)
        kept, spent = [], []
    run.dual = one.dual(alpha)
    run.gap = (run.primal - run.dual) / run.primal
    return run


@reassociated
def _textbook_epoch(
    data: Array,
    indices: Any,
    indptr: Any,
    y: Array,
    norms: Array,
    alpha: Array,
    w: Array,
    order: Any,
    scale: float,
    loss: int,
) -> None:
    """Step on each row in turn, as SDCA is written down: the kernel that the goals were set by."""
    for i in order:
        z = 0.0
        for k in range(indptr[i], indptr[i + 1]):
            z += data[k] * w[indices[k]]
        step = losses.dual_step(loss, alpha[i], y[i], z, norms[i] * scale)
        if step != 0.0:
            alpha[i] += step
            for k in range(indptr[i], indptr[i + 1]):
                w[indices[k]] += step * scale * data[k]


def _primals(one: Problem, w: Array) -> list[float]:
    z = np.asarray(one.x @ w.T).T
    return [
        sdca.primal_objective(
            z[k : k + 1],
            one.y[None],
            w[k : k + 1],
            regularisation=one.regularisation,
            loss=one.code,
        )
        for k in range(len(w))
    ]


_TOLERANCES = (1e-1, 1e-2, 3e-3, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8)


def liblinear(
    one: Problem, *, levels: tuple[float, ...], best: float, seed: int = 0, limit: float = 30.0
) -> Run | None:
    """Fit scikit-learn's liblinear at one tolerance after the other; None: it lacks the loss.

    Each fit starts afresh; a level's time is that of the first fit that is below it.
    """
    if one.loss == "squared":
        return None
    run = Run()
    pace = 0.0  # seconds an iteration
    for tolerance in _TOLERANCES:
        most = 1000 if not pace else int(np.clip(limit / pace, 100, 10_000_000))
        model = _model(one, tolerance, most, seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            begin = time.process_time()
            model.fit(one.x, one.y)
            spent = time.process_time() - begin
        count = int(np.max(model.n_iter_))
        pace = max(spent / max(count, 1), 1e-7)
        run.seconds, run.rounds = spent, count
        run.primal = min(run.primal, one.primal(np.ascontiguousarray(model.coef_)))
        for level in levels:
            if level not in run.marks and run.primal / best - 1 <= level:
                run.marks[level] = Mark(spent, rounds=count, note=f"tol {tolerance:g}")
        if len(run.marks) == len(levels) or spent > 0.8 * limit:
            break
    return run


def _model(one: Problem, tolerance: float, most: int, seed: int) -> Any:
    weight = 1 / (one.regularisation * len(one.y))  # C
    shared = {
        "C": weight,
        "fit_intercept": False,
        "tol": tolerance,
        "max_iter": most,
        "random_state": seed,
    }
    if one.loss == "logistic":
        return LogisticRegression(solver="liblinear", **shared)
    # liblinear's own advice: the dual solver where features outnumber samples
    dual = one.loss == "hinge" or one.x.shape[1] > one.x.shape[0]
    return LinearSVC(loss=one.loss, dual=dual, **shared)


def optimum(one: Problem, *, limit: float = 120.0) -> Optimum:
    """Return P* from the lowest of three solvers, with the best of their dual values.

    They are SDCA with shrinking, HyFDCA, and liblinear at its strictest.
    """
    known = cached(one)
    if known is not None:
        return known
    run = _shrinking(one, tolerance=1e-10, limit=limit)
    found, dual = {"sdca": run.primal}, run.dual
    options = hyfdca.HyFDCA(loss=one.loss, regularisation=one.regularisation)
    other = federated(one, options, levels=(1e-10,), best=None, limit=limit / 4)
    found["federated"], dual = other.primal, max(dual, other.dual)
    third = liblinear(one, levels=(-2.0,), best=run.primal, limit=limit / 10)
    if third is not None:
        found["liblinear"] = third.primal
    result = Optimum(min(found.values()), dual, found)
    store(one, result)
    return result


def _shrinking(one: Problem, *, tolerance: float, limit: float) -> Run:
    """Run centralised SDCA; nineteen epochs of twenty leave out duals that stay at a bound."""
    rng = np.random.default_rng(5)
    y = one.y[None]
    alpha, w = np.zeros(y.shape), np.zeros((1, one.x.shape[1]))
    every = active = np.arange(len(one.y))
    run, begin = Run(), time.process_time()
    while run.seconds < limit and run.gap > tolerance:
        whole = run.rounds % 20 == 0
        before = alpha.copy()
        order = rng.permutation(every if whole else active)
        rate = one.regularisation
        sdca.ascend(one.x, y, one.norms, alpha, w, order, regularisation=rate, loss=one.code)
        if whole and one.loss in ("hinge", "squared_hinge"):
            beta = (alpha * y)[0]
            inside = (beta > 0) & (beta < 1) if one.loss == "hinge" else beta > 0
            active = np.flatnonzero(inside | (alpha != before)[0])
        if run.rounds % 100 == 0:
            w = sdca.weights_from_duals(one.x, alpha, rate)
            run.primal, run.dual = min(run.primal, one.primal(w)), max(run.dual, one.dual(alpha))
            run.gap = (run.primal - run.dual) / run.primal
        run.rounds += 1
        run.seconds = time.process_time() - begin
    return run
