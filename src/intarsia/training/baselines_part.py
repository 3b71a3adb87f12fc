"""What is no federation, through the same interface: to compare an algorithm with.

centralised
    All tables pooled; dual coordinate ascent with its certificate. A round is a pass over the rows.
liblinear
    All tables pooled; scikit-learn's LinearSVC, LogisticRegression or Ridge as an independent
    check: the same objective, whose intercept is the weight of a constant feature.
standalone
    Each party with labels alone, on its own columns.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from intarsia.core.algorithm import Conclusion, Info
from intarsia.core.block import Array, targets
from intarsia.engines.simulation import InProcess
from intarsia.errors import ExperimentError, FederationError
from intarsia.experiment.config import Experiment
from intarsia.maths.linear import losses, sdca
from intarsia.maths.linear.products import scores
from intarsia.training import baselines
from intarsia.training.outcome import Outcome

__all__ = ["BASELINES", "Baseline", "Centralised", "Liblinear", "Standalone"]

Part = Literal["train", "test"]

_POOLED = "No federation: all tables were pooled in one place."
_ALONE = "No federation: each client with labels was trained alone, on its own columns."


def _check(options: Centralised | Liblinear | Standalone) -> None:
    losses.loss_code(options.loss)
    if not (options.regularisation > 0 and math.isfinite(options.regularisation)):
        raise ExperimentError(
            f"algorithm.regularisation is {options.regularisation}; it must be positive and "
            "finite, for example 1e-3."
        )


@dataclass(frozen=True, kw_only=True)
class Centralised:
    """Hyperparameters of all tables pooled."""

    loss: str = "hinge"  # hinge, squared_hinge, logistic, squared
    regularisation: float = 1e-3  # λ

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True, kw_only=True)
class Liblinear:
    """Hyperparameters of scikit-learn's solvers on all tables pooled."""

    loss: str = "hinge"  # hinge, squared_hinge, logistic, squared
    regularisation: float = 1e-3  # λ; C = 1/(λN), and alpha = λN for the squared loss
    precision: float = 1e-6  # the solver's own measure of convergence
    iterations: int = 10_000  # at most

    def __post_init__(self) -> None:
        _check(self)
        if not self.precision > 0:
            raise ExperimentError(
                f"algorithm.precision is {self.precision}; it must be positive, for example 1e-6."
            )
        if self.iterations < 1:
            raise ExperimentError(
                f"algorithm.iterations is {self.iterations}; choose a whole number from 1 up."
            )


@dataclass(frozen=True, kw_only=True)
class Standalone:
    """Hyperparameters of each party alone."""

    loss: str = "hinge"  # hinge, squared_hinge, logistic, squared
    regularisation: float = 1e-3  # λ

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True)
class Baseline:
    """A name, hyperparameters, and what trains and grades."""

    name: str
    hyperparameters: type
    train: Callable[[InProcess, Experiment, Any, Part], Outcome]


def _centralised(
    engine: InProcess, description: Experiment, options: Centralised, part: Part
) -> Outcome:
    table = baselines.pooled(engine)
    found = sdca.fit(
        table.x,
        targets(table, engine.schema("train").labels.outputs),
        loss=losses.loss_code(options.loss),
        regularisation=options.regularisation,
        tolerance=description.tolerance,
        epochs=description.rounds,
        rng=np.random.default_rng(description.seed),
    )
    del table
    info = Info(primal=found.primal, dual=found.dual, gap_relative=found.gap)
    every, own = baselines.graded(engine, found.w, options.loss, part)
    return Outcome(
        found.epochs,
        "tolerance" if found.converged else "rounds",
        Conclusion(info, found.w),
        every,
        own,
        (_POOLED,),
        centralised=every,
    )


def _liblinear(
    engine: InProcess, description: Experiment, options: Liblinear, part: Part
) -> Outcome:
    table = baselines.pooled(engine)
    y = targets(table, engine.schema("train").labels.outputs)
    solved = [_solved(table.x, own, options, description.seed) for own in y]
    w = np.stack([one.w for one in solved])
    info = _bounds(table.x, y, w, options)
    del table
    every, own = baselines.graded(engine, w, options.loss, part)
    said = dict.fromkeys(one.warning for one in solved if one.warning)
    objective = f"The objective is {info.primal:.10g}."
    return Outcome(
        max(one.iterations for one in solved),
        "algorithm",
        Conclusion(info, w),
        every,
        own,
        (_POOLED, objective, *said),
    )


@dataclass(frozen=True, eq=False)
class _Solved:
    """One output's weights."""

    w: Array  # (features,)
    iterations: int
    warning: str


def _solved(x: Any, y: Array, options: Liblinear, seed: int) -> _Solved:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.svm import LinearSVC

    strength = options.regularisation * len(y)
    known = {"fit_intercept": False, "tol": options.precision, "max_iter": options.iterations}
    if options.loss == "squared":
        solver = Ridge(alpha=strength, **known)
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
        solver.fit(x, y)
    said = [one for one in caught if issubclass(one.category, ConvergenceWarning)]
    iterations = 1 if solver.n_iter_ is None else int(np.max(solver.n_iter_))
    warning = f"liblinear stopped after {iterations} iterations without convergence: "
    return _Solved(
        np.ravel(solver.coef_),
        iterations,
        f"{warning}raise algorithm.iterations." if said else "",
    )


def _bounds(x: Any, y: Array, w: Array, options: Liblinear) -> Info:
    """Return the objective, with a dual point for the losses where the scores give one."""
    loss, z = losses.loss_code(options.loss), scores(x, w)
    weight = options.regularisation
    primal = sdca.primal_objective(z, y, w, regularisation=weight, loss=loss)
    if loss == losses.HINGE:  # where a score of 1 tells nothing about its dual
        return Info(primal=primal)
    alpha = losses.dual_from_scores(loss, z, y)
    dual = sdca.dual_objective(
        alpha, y, sdca.weights_from_duals(x, alpha, weight), regularisation=weight, loss=loss
    )
    gap = (primal - dual) / max(abs(primal), float(np.finfo(float).tiny))
    return Info(primal=primal, dual=dual, gap_relative=gap)


def _standalone(
    engine: InProcess, description: Experiment, options: Standalone, part: Part
) -> Outcome:
    grades, notes = baselines.alone(
        engine,
        part,
        loss=options.loss,
        regularisation=options.regularisation,
        seed=description.seed,
    )
    return Outcome(
        1, "algorithm", Conclusion(Info()), None, grades, (_ALONE, *notes), standalone=grades
    )


BASELINES: Mapping[str, Baseline] = MappingProxyType(
    {
        one.name: one
        for one in (
            Baseline("centralised", Centralised, _centralised),
            Baseline("liblinear", Liblinear, _liblinear),
            Baseline("standalone", Standalone, _standalone),
        )
    }
)
