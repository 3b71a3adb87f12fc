"""FLIC where labels are numbers to predict, beside its baselines.

    python benchmarks/regression.py [--seeds 0,1,2] [--write]

A toy: a number is a curved function of three hidden ones, the same for all 20 clients, and each
client sees the hidden ones through curves of its own, in 4 to 11 columns. Half of its rows train.
"""

from __future__ import annotations

import argparse

import numpy as np
import tables

import intarsia

CLIENTS, HIDDEN, TEST = 20, 3, 0.5
ROWS = (25, 50, 100)  # of a client, training and test
PAPER = {
    "variant": "hl",
    "pretraining_epochs": 100,
    "anchor_scale": 1.0,
    "weight_decay": 0.0,
    "embedding_decay": 0.0,
}
METHODS = {
    "local": {},
    "hetfedrep": {},
    "fedhenn": {},
    "flic, a row alone": {"algorithm": "flic", **PAPER},
    "flic, label_bins = 3": {"algorithm": "flic", **PAPER, "label_bins": 3},
    "flic, λ1 = λ2 = 0.1": {
        "algorithm": "flic",
        **PAPER,
        "alignment_weight": 0.1,
        "calibration_weight": 0.1,
    },
}


def parties(seed: int, rows: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the clients' tables."""
    rng = np.random.default_rng(seed)
    slope, found = rng.normal(size=HIDDEN), {}
    for number in range(CLIENTS):
        width = int(rng.integers(4, 12))
        hidden = rng.normal(size=(rows, HIDDEN))
        curved = np.tanh(hidden @ slope) + 0.5 * np.sin(2 * hidden[:, 0])
        y = 100 + 20 * (curved + 0.1 * rng.normal(size=rows))
        x = np.tanh(hidden @ rng.normal(size=(HIDDEN, width)))
        found[f"client{number}"] = (x + 0.1 * rng.normal(size=x.shape), y)
    return found


def fit(method: str, rows: int, seed: int) -> float:
    """Return R² of a method, the mean over clients."""
    result = intarsia.run(
        tables=parties(seed, rows),
        hidden=16,
        latent=8,
        rate=5e-3,
        batch=20,
        local_epochs=3,
        rounds=20,
        test=TEST,
        evaluate_every=0,
        yardsticks=False,
        seed=seed,
        **{"algorithm": method, **METHODS[method]},
    )
    return result.metrics.clients_mean.r2


def main() -> None:
    """Measure, show, and write the table if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    seeds = [int(word) for word in given.seeds.split(",")]
    rows = []
    for method in METHODS:
        found = np.array([[fit(method, count, seed) for seed in seeds] for count in ROWS])
        rows.append((method, *(f"{one.mean():.3f} ± {one.std(ddof=1):.3f}" for one in found)))
        print(rows[-1], flush=True)
    columns = ("method", *(f"{count} rows" for count in ROWS))
    title = "Numbers to predict, at clients with columns of their own"
    tables.show(title, columns, rows)
    if given.write:
        tables.write(
            title,
            columns,
            rows,
            seed=seeds[0],
            notes=f"R² on held-out rows, the mean over {CLIENTS} clients, mean and deviation over "
            f"seeds {given.seeds}, on a toy (see the script). Rows of a client, half of them for "
            "training; the same epochs and widths for all methods.",
        )


if __name__ == "__main__":
    main()
