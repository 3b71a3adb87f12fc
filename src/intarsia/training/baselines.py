"""Baselines that an algorithm is compared with: all data pooled, and each client alone.

They need the pooled data, so that they exist for simulations and tests only. Beside a federated
model they are the centralised and the stand-alone baseline of its result: linear models on the
prepared features, trained to a certified gap by centralised dual coordinate ascent, and by
one-client HyFDCA where that is too slow. An algorithm on networks that says how a client learns
alone has both by its own steps.

Three of them are run as an algorithm is:

centralised
    All tables pooled; dual coordinate ascent with its certificate. A round is a pass over the rows.
liblinear
    All tables pooled; scikit-learn's LinearSVC, LogisticRegression or Ridge as an independent
    check: the same objective, whose intercept is the weight of a constant feature.
standalone
    Each client with labels alone, on its own columns.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Gt
from scipy.sparse import csr_array

from intarsia import core as fl
from intarsia.algorithms.hyfdca.algorithm import HYFDCA
from intarsia.core.block import Array, Block, ClientId, Labels, Values, row_weights, targets
from intarsia.core.feature_blocks import feature_blocks
from intarsia.core.memory import made_like, pieces
from intarsia.core.schema import Schema
from intarsia.core.settings import Between, Count, Penalty, Positive, check_ranges
from intarsia.engines.simulation import Simulation
from intarsia.errors import ConvergenceError, ExperimentError, FederationError, several
from intarsia.experiment.config import Experiment
from intarsia.maths.linear import losses, sdca
from intarsia.maths.linear.products import scores
from intarsia.protocols.evaluation import Evaluation, evaluate, evaluate_scores
from intarsia.protocols.evaluation_rows import whole_samples
from intarsia.protocols.untrained_levels import as_learnt_alone
from intarsia.results.result import Finished
from intarsia.training.loop import Part, evaluate_clients, simulate
from intarsia.training.outcome import Outcome

_TOLERANCE = 1e-5  # relative gap: far below what a score shows
_ALONE = 1e-4  # the same for each of many small models
_EPOCHS = 50  # passes of dual coordinate ascent before Newton's method takes over
_STEPS = 300  # of Newton's method

Teller = Callable[
    [str, int, int], object
]  # is told what is counted, how many are done, of how many


def _silent(step: str, done: int, most: int) -> None:
    """Tell nobody."""


@dataclass(frozen=True, eq=False)
class Optimum:
    """A centralised solution with the bounds of its objective."""

    w: Array  # (outputs, features)
    primal: float
    dual: float

    @property
    def gap(self) -> float:
        """Return the relative duality gap."""
        return (self.primal - self.dual) / max(abs(self.primal), float(np.finfo(float).tiny))


def optimum(
    block: Block,
    labels: Labels,
    *,
    loss: str,
    shape: float = 0.0,
    regularisation: float,
    l1_ratio: float = 0.0,
    seed: int,
    tolerance: float = _TOLERANCE,
    epochs: int = _EPOCHS,
    told: Teller = _silent,
) -> Optimum:
    """Return the best model of one table, every sample of which has a label.

    `shape` is that of the loss, as `losses.shape_of` gives it.

    The result is as good as its gap says, which may be above the tolerance.
    """
    given = (block, labels, loss, shape, regularisation, l1_ratio, seed, tolerance, told)
    if l1_ratio:
        return _by_newton(*given)
    found = sdca.fit(
        block.x,
        targets(block, labels.outputs),
        loss=losses.loss_code(loss),
        shape=shape,
        regularisation=regularisation,
        tolerance=tolerance,
        epochs=epochs,
        rng=np.random.default_rng(seed),
        weights=block.weights,
        watch=lambda done: told("pass", done, epochs),
    )
    first = Optimum(found.w, found.primal, found.dual)
    if found.converged:
        return first
    try:
        second = _by_newton(*given)
    except ConvergenceError:
        return first
    return min(first, second, key=lambda one: one.gap)


def _by_newton(
    block: Block,
    labels: Labels,
    loss: str,
    shape: float,
    regularisation: float,
    l1_ratio: float,
    seed: int,
    tolerance: float,
    told: Teller,
) -> Optimum:
    # numbered features are in their index's order already, so that no value is copied
    names = tuple(f"{number:09d}" for number in range(block.shape[1]))
    samples = np.arange(block.shape[0])
    block = replace(block, samples=samples, features=names, groups={}, copies=None)
    # in one place there is nobody to hide from, and two runs are to come to the same bits
    known = {"all": fl.SecretKey(bytes(fl.SecretKey.SIZE))}
    shaped = {losses.SHAPES[loss]: shape} if loss in losses.SHAPES else {}
    penalty = {"regularisation": regularisation, "l1_ratio": l1_ratio}
    options = HYFDCA.hyperparameters(loss=loss, **penalty, **shaped)
    done = simulate(
        *(HYFDCA, options, {"train": {"all": block}}, labels),
        rounds=_STEPS,
        seed=seed,
        tolerance=tolerance,
        secrets=known,
        watch=lambda done: told("round", done, _STEPS),
    )
    found = done.conclusion
    if found.weights is None or found.info.primal is None or found.info.dual is None:
        raise ConvergenceError(
            "Newton's method on the pooled table ended without a certificate; standardise, raise "
            "regularisation, or leave reference models out (--no-yardsticks)."
        )
    return Optimum(found.weights, found.info.primal, found.info.dual)


def pooled(engine: Simulation, part: Part = "train") -> Block:
    """Return the samples of all clients as one table, in the schema's order."""
    schema = engine.schema(part)
    shape = (len(schema.samples), len(schema.features))
    y = np.full(shape[0], np.nan)
    weights = np.ones(shape[0]) if schema.labels.weighted else None
    blocks = [engine.block(name, part) for name in schema.clients]
    sparse = any(block.sparse for block in blocks)
    x: Values = np.zeros((0, 0)) if sparse else made_like(blocks[0].x, shape)
    for name, held in zip(schema.clients, blocks, strict=True):
        block = held.counted_once()
        own, features = schema.samples.own(name), schema.features.own(name)
        if block.y is not None:
            known = ~np.isnan(block.y)
            y[own[known]] = block.y[known]
            if weights is not None:
                weights[own[known]] = row_weights(block)[known]
        if not sparse:
            for rows, values in pieces(block.x):
                x[np.ix_(own[rows], features)] += values
    if sparse:
        x = sdca.as_rows(_stacked(schema, blocks))
    names = tuple(map(str, schema.features.ids))
    return Block(schema.samples.ids, names, x, y, weights=weights)


def _stacked(schema: Schema, blocks: Sequence[Block]) -> csr_array:
    """Return the entries of all clients' tables as one; entries of several holders are added."""
    tables = [csr_array(block.counted_once().x) for block in blocks]
    own = [schema.samples.own(name) for name in schema.clients]
    held = np.zeros(len(schema.samples) + 1, np.int64)
    for rows, table in zip(own, tables, strict=True):
        held[rows + 1] += np.diff(table.indptr)
    stops = held.cumsum()
    data, columns, at = np.empty(stops[-1]), np.empty(stops[-1], np.int32), stops[:-1].copy()
    for name, rows, table in zip(schema.clients, own, tables, strict=True):
        stored = np.diff(table.indptr)
        places = np.repeat(at[rows] - table.indptr[:-1], stored)
        places += np.arange(len(places))
        data[places] = table.data
        columns[places] = schema.features.own(name).astype(np.int32)[table.indices]
        at[rows] += stored
    shape = len(schema.samples), len(schema.features)
    found = csr_array((data, columns, stops), shape=shape)
    found.sum_duplicates()
    return found


@dataclass(frozen=True)
class _Weights:
    """A client's part of a given model."""

    w: Array  # (outputs, features)


def evaluated(
    engine: Simulation, w: Array, loss: str, part: Part, *, shape: float = 0.0
) -> tuple[Evaluation | None, dict[ClientId, Evaluation]]:
    """Return the metrics of a given model, over all samples and over each client's own."""
    schema, code = engine.schema("train"), losses.loss_code(loss)
    kept = engine.get_states()
    engine.set_states({name: _Weights(w[:, schema.features.own(name)]) for name in schema.clients})
    engine.begin_round(engine.books.round)
    try:
        with engine.books.unmetered():
            tested = engine.schema(part)
            how: dict[str, Any] = {"part": part, "shape": shape, "with_figures": True}
            return evaluate(engine, tested, _LINEAR.predict, code, **how)
    finally:
        engine.set_states(kept)


def centralised(
    engine: Simulation,
    part: Part,
    *,
    loss: str,
    shape: float = 0.0,
    regularisation: float,
    l1_ratio: float = 0.0,
    seed: int,
    told: Teller = _silent,
) -> tuple[Evaluation | None, tuple[str, ...]]:
    """Return the metrics of the model of all data pooled, and notes."""
    labels = engine.schema("train").labels
    given: dict[str, Any] = {"loss": loss, "regularisation": regularisation, "seed": seed}
    given |= {"shape": shape, "l1_ratio": l1_ratio}
    found = optimum(pooled(engine), labels, **given, told=told)
    notes: tuple[str, ...] = ()
    if found.gap > _TOLERANCE:
        notes = (
            f"The centralised baseline did not converge: its relative gap is {found.gap:.1e} "
            f"(aim: {_TOLERANCE:.0e}), so that its scores are approximate.",
        )
    return evaluated(engine, found.w, loss, part, shape=shape)[0], notes


def alone(
    engine: Simulation,
    part: Part,
    *,
    loss: str,
    shape: float = 0.0,
    regularisation: float,
    l1_ratio: float = 0.0,
    seed: int,
    told: Teller = _silent,
) -> tuple[dict[ClientId, Evaluation], tuple[str, ...]]:
    """Return the metrics of each labelled client's own model on its own samples, and notes."""
    labels = engine.schema("train").labels
    given: dict[str, Any] = {"loss": loss, "regularisation": regularisation, "seed": seed}
    given |= {"shape": shape, "l1_ratio": l1_ratio}
    metrics: dict[ClientId, Evaluation] = {}
    gaps: dict[ClientId, float] = {}
    clients = engine.schema("train").clients
    for number, name in enumerate(clients):
        told("client", number, len(clients))
        own, tested = engine.whole_block(name, "train"), engine.whole_block(name, part)
        known = np.zeros(0, bool) if own.y is None else ~np.isnan(own.y)
        if not known.any():
            continue
        own = own if known.all() else own.take(np.flatnonzero(known))
        found = optimum(own, labels, **given, tolerance=_ALONE)
        if found.gap > _ALONE:
            gaps[name] = found.gap
        z, code = scores(tested.x, found.w), losses.loss_code(loss)
        result = evaluate_scores(tested, z, code, labels, shape=shape)
        if result is not None:
            metrics[name] = result
    if not gaps:
        return metrics, ()
    worst = max(gaps, key=lambda name: gaps[name])
    return metrics, (
        f"The stand-alone models of {several(len(gaps), 'client')} did not converge (largest "
        f"relative gap: {gaps[worst]:.1e} at {worst}; aim: {_ALONE:.0e}), so that their scores are "
        "approximate.",
    )


def network_of_all(
    engine: Simulation,
    algorithm: fl.Algorithm,
    options: Any,
    part: Part,
    *,
    blocks: Sequence[str],
    rounds: int,
    seed: int,
    told: Teller = _silent,
) -> Evaluation | None:
    """Return the metrics of a network that learns in one place from all clients' samples.

    A block that no client has of a sample counts as its mean there. It is evaluated on the samples
    that a server's network of `blocks` is: those that somebody has each of them of; all, if
    there is no such sample or no such network (no blocks).
    """
    known = feature_blocks(engine.schema("train")).values()
    groups = {one.name: one.features for one in known}
    shapes = {one.name: one.shape for one in known if one.shape}
    learnt = tested = replace(pooled(engine), groups=groups, shapes=shapes)
    if part == "test":
        tested = replace(pooled(engine, part), groups=groups, shapes=shapes)
    whole = whole_samples(engine.schema(part), blocks)
    if tested.y is not None and not np.isnan(tested.y[whole]).all():
        tested = replace(tested, y=np.where(whole, tested.y, np.nan))
    parts = {"train": {"all": learnt}, "test": {"all": tested}}
    labels = engine.schema("train").labels
    done = simulate(
        *(algorithm, options, parts, labels),
        rounds=rounds,
        seed=seed,
        watch=lambda number: told("round", number, rounds),
    )
    return evaluate_clients(done.engine, algorithm, options, "test").get("all")


def networks_alone(
    engine: Simulation,
    algorithm: fl.Algorithm,
    options: Any,
    part: Part,
    *,
    rounds: int,
    seed: int,
    told: Teller = _silent,
) -> dict[ClientId, Evaluation]:
    """Return the metrics of each client's network that learns from its own samples."""
    names = engine.schema("train").clients
    own: dict[str, dict[ClientId, Block]] = {str(one): {} for one in ("train", part)}
    for name in names:
        learnt = engine.block(name)
        for one, blocks in own.items():
            blocks[name] = as_learnt_alone(learnt, engine.block(name, one))
    labels = engine.schema("train").labels
    done = simulate(
        *(algorithm, options, own, labels),
        rounds=rounds,
        seed=seed,
        watch=lambda number: told("round", number, rounds),
    )
    return evaluate_clients(done.engine, algorithm, options, part)


_POOLED = "No federation: all tables were pooled in one place."
_ALONE_NOTE = "No federation: each client with labels was trained alone, on its own columns."


@dataclass(frozen=True, kw_only=True)
class LinearOptions:
    """Hyperparameters of the linear models of all tables pooled, or of each client alone."""

    # hinge, squared_hinge, logistic; for numbers squared, huber, quantile, poisson, gamma
    loss: str = "hinge"
    huber_delta: Positive = 1.35  # δ of the Huber loss, in the unit of the labels
    quantile: Between = 0.5  # τ of the quantile loss
    regularisation: Penalty = 1e-3  # λ

    def __post_init__(self) -> None:
        losses.loss_code(self.loss)
        check_ranges(self)


@dataclass(frozen=True, kw_only=True)
class Liblinear:
    """Hyperparameters of scikit-learn's solvers on all tables pooled."""

    loss: str = "hinge"  # hinge, squared_hinge, logistic; for numbers squared, poisson, gamma
    # λ; C = 1/(λN), alpha = λN for the squared loss, and alpha = λ for Poisson and Gamma
    regularisation: Penalty = 1e-3
    precision: Annotated[float, Gt(0)] = 1e-6  # the solver's own measure of convergence
    iterations: Count = 10_000  # at most

    def __post_init__(self) -> None:
        losses.loss_code(self.loss)
        if self.loss in losses.SHAPES:
            raise ExperimentError(
                f"algorithm.loss is {self.loss!r}, whose regularised problem no solver of "
                'scikit-learn has; set algorithm.name = "centralised", or loss = "squared".'
            )
        check_ranges(self)


_LINEAR = fl.Model(kind="linear", row_weights=True)
_NOTHING = fl.Disclosure()  # crosses: the data is in one place


@dataclass(frozen=True)
class Baseline:
    """What an algorithm is compared with, with its face: it trains and evaluates in one place."""

    name: str
    hyperparameters: type
    train: Callable[[Simulation, Experiment, Any, Part], Outcome]
    model: fl.Model = _LINEAR
    disclosure: fl.Disclosure = _NOTHING
    private: None = None
    federated: ClassVar[Literal[False]] = False


def _check_labels(engine: Simulation, loss: str) -> None:
    for name in engine.schema("train").clients:
        losses.check_labels(losses.loss_code(loss), engine.block(name).y, f"client {name!r}")


def _centralised(
    engine: Simulation, description: Experiment, options: LinearOptions, part: Part
) -> Outcome:
    _check_labels(engine, options.loss)
    table = pooled(engine)
    found = sdca.fit(
        table.x,
        targets(table, engine.schema("train").labels.outputs),
        loss=losses.loss_code(options.loss),
        shape=losses.shape_of(options),
        regularisation=options.regularisation,
        tolerance=description.tolerance,
        epochs=description.rounds,
        rng=np.random.default_rng(description.seed),
        weights=table.weights,
    )
    del table
    info = fl.RoundMetrics(primal=found.primal, dual=found.dual, gap_relative=found.gap)
    every, own = evaluated(engine, found.w, options.loss, part, shape=losses.shape_of(options))
    ended: Finished = "tolerance" if found.converged else "rounds"
    final = fl.FinalResult(info, found.w)
    return Outcome(found.epochs, ended, final, every, own, (_POOLED,), centralised=every)


def _liblinear(
    engine: Simulation, description: Experiment, options: Liblinear, part: Part
) -> Outcome:
    _check_labels(engine, options.loss)
    table = pooled(engine)
    y = targets(table, engine.schema("train").labels.outputs)
    solved = [_solve(table.x, own, table.weights, options, description.seed) for own in y]
    w = np.stack([one.w for one in solved])
    info = _bounds(table.x, y, w, table.weights, options)
    del table
    every, own = evaluated(engine, w, options.loss, part)
    said = dict.fromkeys(one.warning for one in solved if one.warning)
    notes = (_POOLED, f"The objective is {info.primal:.10g}.", *said)
    rounds = max(one.iterations for one in solved)
    return Outcome(rounds, "algorithm", fl.FinalResult(info, w), every, own, notes)


@dataclass(frozen=True, eq=False)
class _Solved:
    """One output's weights."""

    w: Array  # (features,)
    iterations: int
    warning: str


def _solve(x: Any, y: Array, weights: Array | None, options: Liblinear, seed: int) -> _Solved:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import GammaRegressor, LogisticRegression, PoissonRegressor, Ridge
    from sklearn.svm import LinearSVC

    strength = options.regularisation * len(y)
    known = {"fit_intercept": False, "tol": options.precision, "max_iter": options.iterations}
    if options.loss == "squared":
        solver = Ridge(alpha=strength, **known)
    elif options.loss in ("poisson", "gamma"):
        kind = PoissonRegressor if options.loss == "poisson" else GammaRegressor
        solver = kind(alpha=options.regularisation, **known)
    elif len(np.unique(y)) < 2:
        raise FederationError(
            f"All {len(y)} training labels are of one class (or one of the classes has none); "
            "liblinear needs samples of both: lower test in [split], or leave that class out."
        )
    elif options.loss == "logistic":
        solver = LogisticRegression(C=1 / strength, solver="liblinear", random_state=seed, **known)
    else:
        dual = True if options.loss == "hinge" else "auto"
        solver = LinearSVC(C=1 / strength, loss=options.loss, dual=dual, random_state=seed, **known)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        solver.fit(x, y, weights)
    said = [one for one in caught if issubclass(one.category, ConvergenceWarning)]
    iterations = 1 if solver.n_iter_ is None else int(np.max(solver.n_iter_))
    warning = (
        f"liblinear stopped after {iterations} iterations without convergence: "
        "raise algorithm.iterations."
    )
    return _Solved(np.ravel(solver.coef_), iterations, warning if said else "")


def _bounds(
    x: Any, y: Array, w: Array, weights: Array | None, options: Liblinear
) -> fl.RoundMetrics:
    """Return the objective, with a dual point for the losses where the scores give one."""
    loss, z = losses.loss_code(options.loss), scores(x, w)
    weight = options.regularisation
    known: dict[str, Any] = {"regularisation": weight, "loss": loss, "weights": weights}
    primal = sdca.primal_objective(z, y, w, **known)
    if loss == losses.HINGE:  # where a score of 1 tells nothing about its dual
        return fl.RoundMetrics(primal=primal)
    alpha = losses.dual_from_scores(loss, z, y, weights)
    dual = sdca.dual_objective(alpha, y, sdca.weights_from_duals(x, alpha, weight), **known)
    gap = Optimum(w, primal, dual).gap
    return fl.RoundMetrics(primal=primal, dual=dual, gap_relative=gap)


def _standalone(
    engine: Simulation, description: Experiment, options: LinearOptions, part: Part
) -> Outcome:
    linear: dict[str, Any] = {"loss": options.loss, "regularisation": options.regularisation}
    linear["shape"] = losses.shape_of(options)
    _check_labels(engine, options.loss)
    metrics, notes = alone(engine, part, **linear, seed=description.seed)
    final, said = fl.FinalResult(fl.RoundMetrics()), (_ALONE_NOTE, *notes)
    return Outcome(1, "algorithm", final, None, metrics, said, standalone=metrics)


_ALL = (
    Baseline("centralised", LinearOptions, _centralised),
    Baseline("liblinear", Liblinear, _liblinear),
    Baseline("standalone", LinearOptions, _standalone),
)
BASELINES: Mapping[str, Baseline] = MappingProxyType({one.name: one for one in _ALL})
