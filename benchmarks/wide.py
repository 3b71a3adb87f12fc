"""Time HyFDCA on wide one-hot tables against scikit-learn's lbfgs on the same rows in one place.

    python benchmarks/wide.py --shape 70000x2300 --loss logistic --weights 1e-3,1e-6

Each problem runs with a sample of the rows in the Hessian, as it is, and with all of them.
`--write` puts the table into RESULTS.md beside this file.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from unittest.mock import patch

import numpy as np
from problems import Problem, one_hot
from scipy.optimize import minimize
from solvers import Run, federated
from tables import number, show, write
from threadpoolctl import threadpool_limits

from intarsia.algorithms.hyfdca import newton
from intarsia.algorithms.hyfdca.state import HyFDCA
from intarsia.maths.linear import losses
from intarsia.maths.linear.products import gather, scores

LEVEL = 1e-6
_COLUMNS = (
    "loss",
    "λ",
    "Hessian",
    "gap",
    "rounds",
    "exchanges",
    "MB",
    "s",
    "lbfgs s",
    "its gap",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="6000x800", help="samples x features")
    parser.add_argument("--grid", default="2x2")
    parser.add_argument("--loss", default="logistic,squared_hinge,hinge")
    parser.add_argument("--weights", default="1e-3,1e-6", help="λ, separated by commas")
    parser.add_argument("--sparse", action="store_true", help="do not standardise")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=60.0, help="CPU seconds for one solver")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    (samples, features), grid = (
        [int(size) for size in shape.split("x")] for shape in (given.shape, given.grid)
    )
    rows: list[list[str]] = []
    with threadpool_limits(1):
        table = one_hot(
            samples,
            features,
            loss="logistic",
            regularisation=1e-3,
            grid=(grid[0], grid[1]),
            seed=given.seed,
            standardise=not given.sparse,
        )
        for loss in given.loss.split(","):
            for weight in given.weights.split(","):
                one = replace(table, loss=loss, regularisation=float(weight))
                rows += _measure(one, given.limit)
    title = f"Wide one-hot tables, {'sparse' if given.sparse else 'standardised'}, {given.shape}"
    show(title, _COLUMNS, rows)
    if given.write:
        write(title, _COLUMNS, rows, seed=given.seed, notes=f"To a certified gap of {LEVEL:g}.")


def _measure(one: Problem, limit: float) -> list[list[str]]:
    """Return a row with a sample in the Hessian and one with all samples in it."""
    options = HyFDCA(loss=one.loss, regularisation=one.regularisation)
    whole = patch.object(newton, "_first_budget", lambda samples, *_, **__: samples)
    given = {"levels": (LEVEL,), "best": None, "limit": limit, "rounds": 200}
    sampled = federated(one, options, **given)
    with whole:
        every = federated(one, options, **given)
    seconds, primal = _lbfgs(one, limit) if one.loss != "hinge" else (np.nan, np.nan)
    best = sampled.dual
    their_gap = (primal - best) / primal
    found: list[list[str]] = []
    for name, run in (("sample", sampled), ("all", every)):
        found.append(_row(one, name, run, seconds, their_gap))
    return found


def _row(one: Problem, name: str, run: Run, seconds: float, gap: float) -> list[str]:
    mark = run.marks.get(LEVEL)
    cells = [one.loss, f"{one.regularisation:g}", name, f"{run.gap:.0e}", number(run.rounds)]
    cells += [number(run.exchanges, 6), number(mark.bytes / 1e6) if mark else "–"]
    cells += [number(run.seconds)]
    return cells + (["–", "–"] if np.isnan(seconds) else [number(seconds), f"{gap:.0e}"])


def _lbfgs(one: Problem, limit: float) -> tuple[float, float]:
    """Return the CPU seconds and the primal objective of scikit-learn's way, without intercept."""
    y, rate, start = one.y[None], one.regularisation, time.process_time()

    def value(w: np.ndarray) -> tuple[float, np.ndarray]:
        z = scores(one.x, w[None])
        total = losses.value(one.code, z, y).mean() + 0.5 * rate * w @ w
        slope = gather(one.x, losses.derivative(one.code, z, y))[0] / len(one.y) + rate * w
        return float(total), slope

    def stop(_: np.ndarray) -> None:
        if time.process_time() - start > limit:
            raise StopIteration

    # the settings that LogisticRegression(solver="lbfgs") gives SciPy
    options = {"maxiter": 20_000, "maxls": 50, "ftol": 64 * np.finfo(float).eps, "gtol": 1e-6}
    found = minimize(
        value,
        np.zeros(one.x.shape[1]),
        jac=True,
        method="L-BFGS-B",
        callback=stop,
        options=options,
    )
    return time.process_time() - start, one.primal(found.x[None])


if __name__ == "__main__":
    main()
