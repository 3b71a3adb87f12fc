"""Time HyFDCA on wide and ill-conditioned tables against scikit-learn on the pooled rows.

    python benchmarks/wide.py --shape 70000x2300 --loss logistic --weights 1e-3,1e-6
    python benchmarks/wide.py --table crossed_credit --weights 1e-1,1e-4,1e-7

Each problem runs with a sample of the rows in the Hessian, as it is, and with all of them, beside
lbfgs, as LogisticRegression runs it, and liblinear for the hinge. `--masked` seals sums by masks.
`--write` puts the table into RESULTS.md beside this file.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
from problems import Problem, crossed_credit, ill_conditioned, one_hot
from scipy.optimize import minimize
from solvers import Run, federated, liblinear, sealing
from tables import number, show, write
from threadpoolctl import threadpool_limits

from intarsia.algorithms.hyfdca.newton import server as newton
from intarsia.algorithms.hyfdca.state import HyFDCA
from intarsia.maths.linear import losses
from intarsia.maths.linear.products import gather, scores
from intarsia.privacy.secure_aggregation.protocol import Sealing
from intarsia.privacy.settings import Privacy

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
    "solver",
    "its s",
    "its gap",
)
_TABLES = {
    "one_hot": "Wide one-hot tables",
    "crossed_credit": "Credit with crossed categories",
    "ill_conditioned": "Ill-conditioned tables",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", choices=_TABLES, default="one_hot")
    parser.add_argument("--shape", default="6000x800", help="samples x features; not of credit")
    parser.add_argument("--grid", default="2x2")
    parser.add_argument("--loss", default="logistic,squared_hinge,hinge")
    parser.add_argument("--weights", default="1e-3,1e-6", help="λ, separated by commas")
    parser.add_argument("--sparse", action="store_true", help="do not standardise")
    parser.add_argument("--masked", action="store_true", help="seal sums by masks")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=60.0, help="CPU seconds for one solver")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    rows: list[list[str]] = []
    with threadpool_limits(1):
        table = _table(given)
        for loss in given.loss.split(","):
            for weight in given.weights.split(","):
                one = replace(table, loss=loss, regularisation=float(weight))
                rows += _measure(one, given.limit, masked=given.masked)
                print(*rows[-2:], sep="\n", flush=True)
    shape = "x".join(str(size) for size in table.x.shape)
    how = "not standardised" if given.sparse else "standardised"
    how += ", masked sums" if given.masked else ""
    title = f"{_TABLES[given.table]}, {how}, {shape}, clients {given.grid}"
    show(title, _COLUMNS, rows)
    if given.write:
        write(title, _COLUMNS, rows, seed=given.seed, notes=f"To a certified gap of {LEVEL:g}.")


def _table(given: argparse.Namespace) -> Problem:
    """Return the table, with a loss and λ that are replaced."""
    shape, grid = ([int(size) for size in one.split("x")] for one in (given.shape, given.grid))
    how: dict[str, Any] = {
        "loss": "logistic",
        "regularisation": 1e-3,
        "grid": (grid[0], grid[1]),
        "seed": given.seed,
        "standardise": not given.sparse,
    }
    if given.table == "crossed_credit":
        return crossed_credit(**how)
    made = one_hot if given.table == "one_hot" else ill_conditioned
    return made(shape[0], shape[1], **how)


def _measure(one: Problem, limit: float, *, masked: bool) -> list[list[str]]:
    """Return a row with a sample in the Hessian and one with all samples in it."""
    options = HyFDCA(loss=one.loss, regularisation=one.regularisation)
    whole = patch.object(newton, "_first_budget", lambda samples, *_, **__: samples)
    given: dict[str, Any] = {"levels": (LEVEL,), "best": None, "limit": limit, "rounds": 200}

    def seal() -> Sealing | None:
        return sealing(one, Privacy(mode="masked")) if masked else None

    sampled = federated(one, options, **given, sealed=seal())
    with whole:
        every = federated(one, options, **given, sealed=seal())
    best = max(sampled.dual, every.dual)
    if one.loss == "hinge":
        theirs = liblinear(one, levels=(LEVEL,), best=best, limit=limit)
        assert theirs is not None
        solver, seconds, primal = "liblinear", theirs.seconds, theirs.primal
    else:
        solver, (seconds, primal) = "lbfgs", _lbfgs(one, limit)
    beside = [solver, number(seconds), f"{(primal - best) / primal:.0e}"]
    return [_row(one, name, run) + beside for name, run in (("sample", sampled), ("all", every))]


def _row(one: Problem, name: str, run: Run) -> list[str]:
    mark = run.marks.get(LEVEL)
    cells = [one.loss, f"{one.regularisation:g}", name, f"{run.gap:.0e}", number(run.rounds)]
    cells += [number(run.exchanges, 6), number(mark.bytes / 1e6) if mark else "–"]
    return [*cells, number(run.seconds)]


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
