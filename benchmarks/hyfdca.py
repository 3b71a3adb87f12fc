"""Time HyFDCA against centralised SDCA and liblinear: one thread, no encryption, one process.

    python benchmarks/hyfdca.py time --data a9a,mnist --loss hinge,logistic --grid 4x4
    python benchmarks/hyfdca.py memory
    python benchmarks/hyfdca.py scaling
    python benchmarks/hyfdca.py network --data a9a
    python benchmarks/hyfdca.py methods

Without a part, all five run. `--write` puts the tables into RESULTS.md beside this file.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace
from typing import Any

import memory
import network
import numpy as np
import scaling
from problems import PROBLEMS, Problem, problem, synthetic
from scipy.sparse import issparse
from solvers import Mark, Run, centralised, federated, liblinear, optimum
from tables import number, show, write
from threadpoolctl import threadpool_limits

from intarsia.algorithms.hyfdca.state import HyFDCA
from intarsia.maths.linear.losses import LOSSES, NUMBERS
from intarsia.maths.linear.products import scores

LEVELS = (1e-3, 1e-6)
PARTS = ("time", "memory", "scaling", "network", "methods")
_ON_CLASSES = [name for name, code in LOSSES.items() if code not in NUMBERS]


def main() -> None:
    arguments = _arguments()
    with threadpool_limits(1):
        warm_up(arguments.loss)
        for part in arguments.part:
            if part == "time":
                time_all(arguments)
            elif part == "memory":
                memory.measure_all(arguments)
            elif part == "scaling":
                scaling.measure_all(arguments)
            elif part == "network":
                network.measure_all(arguments)
            else:
                network.measure_methods(arguments)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", nargs="*", help=f"{', '.join(PARTS)} (default: all)")
    parser.add_argument("--data", default=",".join(PROBLEMS), help="names, separated by commas")
    parser.add_argument("--loss", default="hinge", help=f"of {', '.join(_ON_CLASSES)}")
    parser.add_argument("--grid", default="", help="2x2, 4x4, 8x2 (default: the problem's own)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=60.0, help="CPU seconds for one solver")
    parser.add_argument("--method", default="auto", help="HyFDCA's method")
    parser.add_argument("--no-liblinear", action="store_true")
    parser.add_argument("--write", action="store_true", help="write into RESULTS.md")
    found = parser.parse_args()
    found.part = found.part or list(PARTS)
    for part in found.part:
        if part not in PARTS:
            parser.error(f"there is no part {part!r}; choose from {', '.join(PARTS)}")
    found.data = found.data.split(",")
    for name in found.data:
        if name not in PROBLEMS:
            parser.error(f"there is no problem {name!r}; choose from {', '.join(PROBLEMS)}")
    found.loss = found.loss.split(",")
    for loss in found.loss:
        if loss not in _ON_CLASSES:
            parser.error(f"there is no loss {loss!r}; choose from {', '.join(_ON_CLASSES)}")
    grids = found.grid.split(",") if found.grid else []
    found.grid = [(int(one.split("x")[0]), int(one.split("x")[1])) for one in grids] or [None]
    return found


def warm_up(losses: list[str]) -> None:
    """Compile every kernel on small problems, dense and sparse, few and many features."""
    from scipy.sparse import csr_array

    for features in (12, 140):
        dense = synthetic(300, features, loss="hinge", regularisation=1e-2, grid=(2, 2), seed=0)
        blocks = {name: replace(b, x=csr_array(b.x)) for name, b in dense.blocks.items()}
        for block in blocks.values():
            block.x.indices = block.x.indices.astype(np.int32)
            block.x.indptr = block.x.indptr.astype(np.int32)
        x = csr_array(dense.x)
        x.indices, x.indptr = x.indices.astype(np.int32), x.indptr.astype(np.int32)
        for one in (dense, replace(dense, blocks=blocks, x=x)):
            for loss in losses:
                this = replace(one, loss=loss)
                for method in ("auto", "ascent"):
                    options = HyFDCA(loss=loss, regularisation=1e-2, method=method)
                    federated(this, options, levels=LEVELS, best=None, rounds=30)
                for textbook in (True, False):
                    centralised(this, levels=(-2.0,), best=1.0, limit=0.01, textbook=textbook)


# ---- seconds to a level


def time_all(arguments: argparse.Namespace) -> None:
    for grid in arguments.grid:
        for loss in arguments.loss:
            rows: list[list[str]] = []
            for name in arguments.data:
                one = problem(name, loss=loss, grid=grid, seed=arguments.seed)
                rows += time_one(one, arguments)
                show(f"{name}, {loss}", _COLUMNS, rows[-len(LEVELS) :])
            shape = "each problem's own grid" if grid is None else f"{grid[0]}x{grid[1]}"
            title = f"HyFDCA, {loss}, {shape}"
            if arguments.method != "auto":
                title += f", method {arguments.method}"
            show(title, _COLUMNS, rows)
            if arguments.write:
                write(title, _COLUMNS, rows, seed=arguments.seed, notes=_NOTES)


_COLUMNS = (
    "problem",
    "λ",
    "grid",
    "to",
    "HyFDCA s",
    "SDCA s",
    "ratio",
    "own SDCA s",
    "ratio to it",
    "liblinear s",
    "rounds",
    "exchanges",
    "MB",
    "passes",
    "SDCA epochs",
)
_NOTES = (
    "CPU seconds to a relative suboptimality (P(w) − P\\*)/P\\*, medians of runs that alternate "
    "with SDCA in one process; ratio: the median of HyFDCA s / SDCA s pair by pair. SDCA: the "
    "textbook loop, as in the prototype that the goals come from; own SDCA: the package's kernel, "
    "which asks for sparse rows before their turn (for dense rows it is the same). liblinear: its "
    "time at the first tolerance that gets there, one fit. MB: all messages, both directions, all "
    "clients. passes: HyFDCA s over the time of one product Xw."
)


def time_one(one: Problem, arguments: argparse.Namespace) -> list[list[str]]:
    """Time the solvers on one problem; return a row for each level."""
    best = optimum(one)
    if best.gap > 1e-9:
        print(f"note: the optimum of {one.name}, {one.loss} is known to {best.gap:.1e} only")
    options = HyFDCA(loss=one.loss, regularisation=one.regularisation, method=arguments.method)
    given: dict[str, Any] = {"levels": LEVELS, "best": best.primal, "limit": arguments.limit}
    federated(one, options, **{**given, "limit": 0.2})
    runs: list[tuple[Run, Run, Run]] = []
    for repeat in range(arguments.repeats):
        given["seed"] = arguments.seed + repeat
        plain = centralised(one, textbook=True, **given)
        own = centralised(one, **given) if issparse(one.x) else plain
        runs.append((federated(one, options, **given), plain, own))
    given["seed"] = arguments.seed
    third = None if arguments.no_liblinear else liblinear(one, **{**given, "limit": 20.0})
    single = _pass_seconds(one)
    rows: list[list[str]] = []
    for level in LEVELS:
        ours, theirs, own = (
            [run.marks.get(level) for run in some] for some in zip(*runs, strict=True)
        )
        seconds = _median(ours, "seconds")
        other = None if third is None else third.marks.get(level)
        rows.append(
            [
                one.name,
                f"{one.regularisation:g}",
                f"{one.grid[0]}x{one.grid[1]}",
                f"{level:g}",
                _seconds(seconds, arguments.limit, runs[0][0]),
                _seconds(_median(theirs, "seconds"), arguments.limit, None),
                _ratio(ours, theirs),
                _seconds(_median(own, "seconds"), arguments.limit, None),
                _ratio(ours, own),
                number(other.seconds) if other else ("–" if third is None else "never"),
                number(_median(ours, "rounds")),
                number(_median(ours, "exchanges"), 6),
                number(_megabytes(ours, "bytes")),
                number(None if seconds is None else seconds / single),
                number(_median(theirs, "rounds")),
            ]
        )
    return rows


def _ratio(ours: list[Mark | None], theirs: list[Mark | None]) -> str:
    """Return the median of the seconds' ratios, pair by pair; none where a run fell short."""
    pairs = list(zip(ours, theirs, strict=True))
    ratios = [one.seconds / other.seconds for one, other in pairs if one and other]
    return number(statistics.median(ratios)) if len(ratios) == len(pairs) else "–"


def _median(marks: list[Mark | None], what: str) -> float | None:
    """Return the median of a field of the marks; None where a run did not get there."""
    known = [float(getattr(mark, what)) for mark in marks if mark is not None]
    return statistics.median(known) if len(known) == len(marks) else None


def _megabytes(marks: list[Mark | None], what: str) -> float | None:
    median = _median(marks, what)
    return None if median is None else median / 1e6


def _seconds(value: float | None, limit: float, run: Run | None) -> str:
    if value is not None:
        return number(value)
    if run is not None and run.seconds < limit:
        return f"stalls at gap {run.gap:.0e}"
    return f"> {limit:g}"


def _pass_seconds(one: Problem) -> float:
    """Return the CPU seconds of one product of the pooled data with a vector."""
    w = np.ones((1, one.x.shape[1]))
    scores(one.x, w)
    count, start = 0, time.process_time()
    while count < 3 or time.process_time() - start < 0.05:
        scores(one.x, w)
        count += 1
    return (time.process_time() - start) / count


if __name__ == "__main__":
    main()
