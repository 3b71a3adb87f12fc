"""Whether it helps that HyFEM's server opens neurons which all clients download.

    python benchmarks/growth.py [--units 3,8] [--seeds N] [--rounds N] [--write]

mfeat in its six views, dealt as experiments/hyfem-mfeat.toml says: six clients hold three views and
five or six classes each. A seed is that of the deal and of all that is drawn in training. Scores
are those of the validation rows. Beside each width that was grown, a common start at that width.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tables import show, write

from intarsia.experiment import config as experiment
from intarsia.training import run as running

COLUMNS = ("units", "rule", "server width", "server %", "clients %", "worst client %")
_DESCRIBED = Path(__file__).parent.parent / "experiments" / "hyfem-mfeat.toml"
_PRICES = (0.8, 0.4)


def main() -> None:
    arguments = _arguments()
    rows = []
    for units in arguments.units:
        for name, settings in _rules(units):
            found = [_run(settings, seed, arguments.rounds) for seed in range(arguments.seeds)]
            rows.append(_row(units, name, found))
            print(*rows[-1], flush=True)
            if "growth" in settings:
                wide = [
                    _run({"hidden": (one[2],)}, seed, arguments.rounds)
                    for seed, one in enumerate(found)
                ]
                rows.append(_row(units, f"common start, as wide as by {name}", wide))
                print(*rows[-1], flush=True)
    title = "Growth of HyFEM's server"
    show(title, COLUMNS, rows)
    if arguments.write:
        write(
            title,
            COLUMNS,
            rows,
            seed=0,
            notes=f"Accuracy on validation rows, mean (of each seed) over {arguments.seeds} seeds, "
            "which are also those of the deal, on mfeat: six clients with 3 of 6 views and 5 or 6 "
            f"of 10 classes each; {arguments.rounds} rounds of 32 steps, the defaults of hyfem. "
            "units: hidden units of a client's own classifier. Matched: classifiers start on their "
            "own and are matched after the first round; at a price, neurons are opened where that "
            'is cheaper, and all download them (growth = "everybody").',
        )


def _arguments() -> argparse.Namespace:
    def counts(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--units", type=counts, default="3,8")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=32)
    parser.add_argument("--write", action="store_true", help="write a section of RESULTS.md")
    return parser.parse_args()


def _rules(units: int) -> list[tuple[str, dict[str, Any]]]:
    """Return the names of the rules, and what they set."""
    matched = {"hidden": (units,), "start": "matched"}
    return [
        ("common start", {"hidden": (units,)}),
        ("matched", matched),
        *(
            (f"price {price}", {**matched, "growth": "everybody", "price": price})
            for price in _PRICES
        ),
    ]


def _run(settings: Mapping[str, Any], seed: int, rounds: int) -> tuple[float, list[float], int]:
    """Return the server's accuracy, the clients', and the server's width."""
    keys = {
        "experiment.seed": seed,
        "experiment.rounds": rounds,
        "partition.seed": seed,
        "split.validation": 0.1,
        **{f"algorithm.{key}": value for key, value in settings.items()},
    }
    overrides = [f"{key}={_text(value)}" for key, value in keys.items()]
    result = running.run(experiment.load(_DESCRIBED, overrides), out=None)
    metrics = result.metrics
    return (
        100 * metrics.server.accuracy,
        [100 * one.accuracy for one in metrics.clients.values()],
        result.model.server.architecture.hidden[0],
    )


def _text(value: Any) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value)


def _row(units: int, rule: str, found: Sequence[tuple[float, list[float], int]]) -> list[str]:
    return [
        str(units),
        rule,
        "/".join(str(one[2]) for one in found),
        _cell([one[0] for one in found]),
        _cell([float(np.mean(one[1])) for one in found]),
        _cell([min(one[1]) for one in found]),
    ]


def _cell(values: Sequence[float]) -> str:
    return f"{np.mean(values):.1f} ({' '.join(f'{value:.1f}' for value in values)})"


if __name__ == "__main__":
    main()
