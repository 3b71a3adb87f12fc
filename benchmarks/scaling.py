"""How HyFDCA's cost grows with samples, features and clients, on synthetic tables."""

from __future__ import annotations

import argparse

import numpy as np
from problems import synthetic
from solvers import centralised, federated
from tables import number, show, write

from intarsia.algorithms.hyfdca.state import HyFDCA

__all__ = ["measure_all"]

_LEVELS = (1e-3, 1e-6)
_BASE = (8000, 64, (4, 4))  # samples, features, grid
_SAMPLES = (2000, 8000, 32000)
_FEATURES = (16, 64, 128, 256, 512)
_GRIDS = ((1, 1), (2, 2), (4, 4), (8, 8), (16, 4), (4, 16))
_COLUMNS = (
    "samples",
    "features",
    "grid",
    "s to 1e-3",
    "s to 1e-6",
    "exchanges",
    "MB",
    "µs per exchange and client",
    "SDCA s to 1e-3",
    "SDCA s to 1e-6",
)
_NOTES = (
    "Dense rows with correlated columns, λ = 1e-4; levels are those of the certified relative gap "
    "(SDCA: of the suboptimality). Exchanges and MB to 1e-6."
)


def measure_all(arguments: argparse.Namespace) -> None:
    loss = arguments.loss[0]
    samples, features, grid = _BASE
    cases = [(n, features, grid) for n in _SAMPLES]
    cases += [(samples, m, grid) for m in _FEATURES if m != features]
    cases += [(samples, features, g) for g in _GRIDS if g != grid]
    rows: list[list[str]] = []
    for n, m, shape in cases:
        one = synthetic(n, m, loss=loss, regularisation=1e-4, grid=shape, seed=arguments.seed)
        options = HyFDCA(loss=loss, regularisation=one.regularisation)
        runs = [
            federated(one, options, levels=_LEVELS, best=None, limit=10.0)
            for _ in range(min(arguments.repeats, 3))
        ]
        run = sorted(runs, key=lambda run: run.seconds)[len(runs) // 2]
        # the lowest value of a run that is certified to 1e-6 serves as optimum here
        other = centralised(one, levels=_LEVELS, best=run.dual, limit=5.0)
        end = run.marks.get(1e-6)
        clients = shape[0] * shape[1]
        rows.append(
            [
                str(n),
                str(m),
                f"{shape[0]}x{shape[1]}",
                *(number(run.marks[v].seconds if v in run.marks else None) for v in _LEVELS),
                str(end.exchanges) if end else "–",
                number(end.bytes / 1e6) if end else "–",
                number(run.seconds / run.exchanges / clients * 1e6),
                *(number(other.marks[v].seconds if v in other.marks else None) for v in _LEVELS),
            ]
        )
        show(f"scaling, {loss}", _COLUMNS, rows[-1:])
    title = f"HyFDCA, scaling, {loss}"
    rows.append(_slope(rows, "samples", 0, range(len(_SAMPLES))))
    show(title, _COLUMNS, rows)
    if arguments.write:
        write(title, _COLUMNS, rows, seed=arguments.seed, notes=_NOTES)


def _slope(rows: list[list[str]], what: str, column: int, which: range) -> list[str]:
    """Return a row with the exponent of the seconds over one column."""
    exponents: list[str] = []
    for seconds in (3, 4):
        pairs = [(rows[k][column], rows[k][seconds]) for k in which]
        known = [(float(a), float(b)) for a, b in pairs if b != "–"]
        if len(known) < 2:
            exponents.append("–")
            continue
        x, y = np.log(np.array(known)).T
        exponents.append(f"{np.polyfit(x, y, 1)[0]:.2f}")
    return [f"exponent in {what}", "", "", *exponents, *[""] * 5]
