"""How soon a new client learns that joins a finished federation, against learning alone.

    python benchmarks/joining.py [--seeds 0,1,2] [--write]

A toy like FLIC's "linear mapping": samples of ten Gaussian classes in 5 dimensions, which every
client sees through a linear map of its own into 5 to 50. Three clients with 200 rows each train;
then clients with 80 rows join, with numbers of columns that the federation has not seen.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import tables

import intarsia

CLASSES, INNER, TEST = 10, 5, 0.7
CLIENTS, ROWS = 3, 200
JOINING, OWN_ROWS = 4, 80
PRETRAINING = 100
EPOCHS = (20, 60, 120, 160)


def parties(seed: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the tables of all clients; those that join later come last."""
    rng = np.random.default_rng(seed)
    centres = 1.6 * rng.normal(size=(CLASSES, INNER))
    widths = rng.permutation(np.arange(5, 51))[: CLIENTS + JOINING]
    found = {}
    for number, width in enumerate(widths):
        rows = round((ROWS if number < CLIENTS else OWN_ROWS) / (1 - TEST))
        y = rng.permutation(np.arange(rows) % CLASSES)
        x = (centres[y] + rng.normal(size=(rows, INNER))) @ rng.normal(size=(INNER, width))
        found[f"client{number}"] = (x / x.std(0), y)
    return found


def accuracies(seed: int) -> dict[int, tuple[list[float], list[float]]]:
    """Return the joining clients' accuracies by epochs: joined, and alone."""
    every = parties(seed)
    names = list(every)
    found: dict[int, tuple[list[float], list[float]]] = {epochs: ([], []) for epochs in EPOCHS}
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        intarsia.run(
            tables={name: every[name] for name in names[:CLIENTS]},
            classes=[str(number) for number in range(CLASSES)],
            out=run,
            algorithm="flic",
            pretraining_epochs=PRETRAINING,
            variant="hl",
            anchor_scale=1.0,
            weight_decay=0.0,
            embedding_decay=0.0,
            local_epochs=5,
            rounds=4,
            evaluate_every=0,
            yardsticks=False,
            intercept=False,
            test=TEST,
            seed=seed,
        )
        for name in names[CLIENTS:]:
            for epochs in EPOCHS:
                one = intarsia.join(run, every[name], name=name, epochs=epochs, out=None).metrics
                found[epochs][0].append(one.clients[name].accuracy)
                found[epochs][1].append(one.standalone[name].accuracy)
    return found


def main() -> None:
    """Measure, show, and write the table if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    seeds = [int(word) for word in given.seeds.split(",")]
    found = [accuracies(seed) for seed in seeds]

    def mean(epochs: int, which: int) -> str:
        if epochs not in EPOCHS:
            return "–"
        return f"{100 * np.mean([value for one in found for value in one[epochs][which]]):.1f}"

    columns = ("epochs", "joined", "alone", f"alone, {PRETRAINING} epochs more")
    rows = [
        (str(epochs), mean(epochs, 0), mean(epochs, 1), mean(epochs + PRETRAINING, 1))
        for epochs in EPOCHS
    ]
    title = "A new client joins a federation"
    tables.show(title, columns, rows)
    if given.write:
        tables.write(
            title,
            columns,
            rows,
            seed=seeds[0],
            notes=f"Accuracy in %, mean over {JOINING} clients and seeds {given.seeds}, on a toy "
            "(see the script). Before these epochs a joining client aligns its embedding with the "
            f"anchors for {PRETRAINING} epochs, and as many train its classifier on them.",
        )


if __name__ == "__main__":
    main()
