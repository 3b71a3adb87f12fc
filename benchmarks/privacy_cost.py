"""What sealing the sums adds to the time of training, mode by mode, in one process.

    python benchmarks/privacy_cost.py [--data NAME ...] [--repetitions N] [--write]

Each mode runs the same rounds as the plain one does, with the same hyperparameters.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field

import numpy as np
from problems import PROBLEMS, Problem, problem
from solvers import Mark, federated, optimum, sealing
from tables import number, show, write
from threadpoolctl import threadpool_limits

from intarsia.algorithms.hyfdca.state import HyFDCA
from intarsia.privacy.settings import Mode, Privacy, Trust

__all__ = ["measure_all"]

_LEVELS = {"a9a": 1e-6}  # relative suboptimality to reach, by problem
_LEVEL = 1e-3  # of others
_COLUMNS = (
    "problem",
    "level",
    "mode",
    "s",
    "rounds",
    "exchanges",
    "µs added per exchange and client",
    "MB",
    "adds, × plain",
    "limit",
    "within",
)
_NOTES = (
    "CPU seconds (the modes in turn) to a relative suboptimality (P(w) − P\\*)/P\\* of the level, "
    "all clients and the server in one process: set-up and rounds, without the keys, and without "
    "the evaluations of P(w). Three seeds deal the table out; of each the least time of its runs "
    "counts, as other work on the machine only adds to it, and of the three the median. A mode "
    "adds the median over the seeds of its least time over that of the plain runs, less 1. Runs "
    "have the same hyperparameters and range 2^22. "
    "Exchanges count each opening to the server too, which takes none in the mode plain."
)
# mode, trust, privacy.error, how much of the plain time it may add (None: shown for comparison)
_MODES: tuple[tuple[Mode, Trust, float, float | None], ...] = (
    ("masked", "clients", 0.0, 0.15),
    ("masked", "pairs", 0.0, 0.5),
    ("ckks", "clients", 2e-5, 1.0),
    ("ckks", "pairs", 2e-5, None),
    ("ckks", "clients", 0.0, None),
)
_SEEDS = 3  # of the dealing out, in turn: a run may just reach the level, or take a round more


@dataclass
class Cost:
    """What the runs of a mode took."""

    marks: list[Mark] = field(default_factory=list[Mark])  # the seeds in turn

    @property
    def seconds(self) -> np.ndarray:
        """Return the least CPU seconds by seed."""
        return np.array([mark.seconds for mark in self.marks]).reshape(-1, _SEEDS).min(axis=0)

    @property
    def exchanges(self) -> np.ndarray:
        """Return the exchanges by seed."""
        return np.array([mark.exchanges for mark in self.marks[:_SEEDS]])


def measure_all(arguments: argparse.Namespace) -> None:
    """Measure every mode on every problem and show the table."""
    rows: list[list[str]] = []
    for name in arguments.data:
        seeds = range(arguments.seed, arguments.seed + _SEEDS)
        dealt = [problem(name, loss=arguments.loss, grid=(4, 4), seed=seed) for seed in seeds]
        best = [optimum(one).primal for one in dealt]
        plain, costs = Cost(), [Cost() for _ in _MODES]
        for run in range(_SEEDS * (arguments.repetitions + 1)):
            turn = run % _SEEDS
            one = dealt[turn]
            marks = [_run(one, best[turn], None)]
            marks += [_run(one, best[turn], mode[:3]) for mode in _MODES]
            if run >= _SEEDS:  # after one with all kernels loaded
                for cost, mark in zip((plain, *costs), marks, strict=True):
                    cost.marks.append(mark)
        rows.append(_row(name, "plain", plain, plain, None, len(dealt[0].blocks)))
        for (mode, trust, error, limit), cost in zip(_MODES, costs, strict=True):
            key = "keys of pairs" if trust == "pairs" else "one key"
            label = f"{mode}, {key}, error {error:g}" if error else f"{mode}, {key}"
            rows.append(_row(name, label, cost, plain, limit, len(dealt[0].blocks)))
    title = f"Sealed sums in training, {arguments.loss}, 4x4"
    show(title, _COLUMNS, rows)
    if arguments.write:
        write(title, _COLUMNS, rows, seed=arguments.seed, notes=_NOTES)


def _run(one: Problem, best: float, sealed: tuple[Mode, Trust, float] | None) -> Mark:
    options = HyFDCA(loss=one.loss, regularisation=one.regularisation)
    given = None
    if sealed is not None:
        mode, trust, error = sealed
        given = sealing(one, Privacy(mode=mode, trust=trust, error=error))
    level = _LEVELS.get(one.name, _LEVEL)
    run = federated(one, options, levels=(level,), best=best, sealed=given)
    if level not in run.marks:
        raise SystemExit(f"{one.name} did not reach {level:g} (mode {sealed}).")
    return run.marks[level]


def _row(
    name: str, label: str, cost: Cost, plain: Cost, limit: float | None, clients: int
) -> list[str]:
    def median(of: str) -> float:
        return float(np.median([getattr(mark, of) for mark in cost.marks]))

    level = f"{_LEVELS.get(name, _LEVEL):g}"
    cells = [name, level, label, number(float(np.median(cost.seconds))), f"{median('rounds'):.0f}"]
    cells.append(f"{median('exchanges'):.0f}")
    if cost is plain:
        return [*cells, "–", number(median("bytes") / 1e6), "–", "–", "–"]
    # openings are no exchanges of all clients
    each = 1e6 * float(np.median((cost.seconds - plain.seconds) / (plain.exchanges * clients)))
    added = float(np.median(cost.seconds / plain.seconds)) - 1
    verdict = "–" if limit is None else "yes" if added <= limit else "**no**"
    allowed = "–" if limit is None else number(limit)
    return [*cells, number(each), number(median("bytes") / 1e6), number(added), allowed, verdict]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="+", choices=sorted(PROBLEMS), default=["mnist", "a9a"])
    parser.add_argument("--loss", default="hinge")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="write a section of RESULTS.md")
    return parser.parse_args()


if __name__ == "__main__":
    with threadpool_limits(1):
        measure_all(_arguments())
