"""Time local training: the engines against the plain loop, end to end, one thread, one process.

    python benchmarks/local_training.py --batch 10,100

The problem is the toy linear mapping of the FLIC paper (section S3.1.1): 20 classes, 3 on a client,
features of 3 to 100 columns, an embedding of 64 hidden units and 64 latent ones, a linear
classifier; the objective with alignment to anchors, whose samples are drawn in each step.
`--write` puts the table into RESULTS.md beside this file.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import tempfile
import time
from typing import Any

import numpy as np
import torch
from tables import number, show, write
from torch import nn
from torch.nn import functional

from intarsia.maths.training.local_training import Learner, LocalTraining, initial_parameters
from intarsia.maths.training.optimisers import Adam
from intarsia.maths.training.vectorised import train

CLASSES, HIDDEN, LATENT = 20, 64, 64
ENGINES = ("vmap", "compiled")
GOALS = {("vmap", 10): 5.0, ("compiled", 10): 8.0, ("vmap", 100): 2.5, ("compiled", 100): 4.0}
_COLUMNS = (
    "batch",
    "engine",
    "chunk",
    "learners' steps",
    "µs each",
    "loop µs each",
    "ratio",
    "lowest",
    "goal",
    "compiling s",
    "largest difference",
)
_NOTES = (
    "CPU microseconds for each learner's step, all of a call included: stacking, shuffles, noise, "
    "optimiser, results. The loop is a module, fused Adam and one step after the other, over the "
    "same learners. Ratio: the median over repetitions that alternate in one process (lowest: the "
    "worst of them). Compiling: seconds by the clock of the first call (its "
    "training included), with torch's cache on disk empty; not in the others. "
    "Difference: between a parameter after the training and the loop's, float32."
)


class Network(nn.Module):
    """A client's own embedding, and a classifier."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.embedding = nn.Sequential(
            nn.Linear(features, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, LATENT),
        )
        self.classifier = nn.Linear(LATENT, CLASSES)


def loss(model: Any, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return FLIC's loss of each row, and its alignment of the class means; λ1 = λ2 = 1e-3."""
    latent, y = model.embedding(batch["x"]), batch["y"]
    each = functional.cross_entropy(model.classifier(latent), y, reduction="none")
    anchors = model.classifier(batch["anchors"][y] + batch["noise"])
    each = each + 1e-3 * functional.cross_entropy(anchors, y, reduction="none")
    share = (y[:, None] == torch.arange(CLASSES)) * batch["weight"][:, None]
    counts = share.sum(0)
    means = share.T @ latent / counts.clamp(min=1.0)[:, None]
    away = (means - batch["anchors"]).square().sum(1) * (counts > 0)
    return each, 1e-3 * away.sum() / (counts > 0).sum()


def problem(clients: int, seed: int) -> list[Learner]:
    """Deal the toy linear mapping to clients."""
    rng = np.random.default_rng(seed)
    means = rng.normal(scale=np.sqrt(0.5), size=(CLASSES, 5))
    anchors = torch.from_numpy(rng.normal(scale=3.0, size=(CLASSES, LATENT)).astype(np.float32))
    held = [rng.choice(CLASSES, 3, replace=False) for _ in range(clients)]
    share = 2000 * CLASSES // (3 * clients)
    learners = []
    for name, classes in enumerate(held):
        y = np.repeat(classes, share)
        kept = rng.permutation(len(y))[: max(1, int(rng.uniform(0.05, 1.0) * len(y)))]
        features = int(rng.integers(3, 101))
        x = (means[y] + rng.normal(size=(len(y), 5))) @ rng.normal(size=(5, features))
        torch.manual_seed(name)
        learners.append(
            Learner(
                parameters=initial_parameters(Network(features)),
                rows={
                    "x": torch.from_numpy(x[kept].astype(np.float32)),
                    "y": torch.from_numpy(y[kept]),
                },
                key=name,
                constants={"anchors": anchors},
            )
        )
    return learners


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", default="10,100", help="batch sizes, separated by commas")
    parser.add_argument("--engine", default=",".join(ENGINES))
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--steps", type=int, default=60, help="of a learner, on average")
    parser.add_argument("--chunk", type=int, default=None)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="write into RESULTS.md")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder  # what was compiled before is not used
        for batch in (int(one) for one in arguments.batch.split(",")):
            rows += time_batch(batch, arguments)
    title = f"Local training, toy linear mapping, {arguments.clients} clients"
    show(title, _COLUMNS, rows)
    if arguments.write:
        write(title, _COLUMNS, rows, seed=arguments.seed, notes=_NOTES)


def time_batch(batch: int, arguments: argparse.Namespace) -> list[list[str]]:
    learners = problem(arguments.clients, arguments.seed)
    once = sum(-(-one.samples // batch) for one in learners) / len(learners)
    training = LocalTraining(
        model=Network(3),
        loss=loss,
        optimiser=Adam(rate=1e-3),
        epochs=max(1, round(arguments.steps / once)),
        batch_size=batch,
        decay={"classifier.*": 1e-3},
        noise={"noise": (LATENT,)},
        ragged={"x": 1, "embedding.0.weight": 1},
    )
    steps = sum(training.steps_of(one) for one in learners)
    engines = arguments.engine.split(",")
    compiling: dict[str, float] = {}
    difference: dict[str, float] = {}
    expected = train(training, learners, engine="loop")
    for engine in engines:  # the first call, which compiles
        begin = time.perf_counter()
        found = train(training, learners, engine=engine, chunk=arguments.chunk)
        compiling[engine] = time.perf_counter() - begin
        difference[engine] = max(
            float((mine.parameters[name] - values).abs().max())
            for mine, other in zip(found, expected, strict=True)
            for name, values in other.parameters.items()
        )
    spent: dict[str, list[float]] = {engine: [] for engine in ("loop", *engines)}
    for _ in range(arguments.repeats):
        for engine, seconds in spent.items():
            gc.collect()
            begin = time.process_time()
            train(training, learners, engine=engine, chunk=arguments.chunk)
            seconds.append(time.process_time() - begin)
    rows = []
    for engine in engines:
        ratios = [a / b for a, b in zip(spent["loop"], spent[engine], strict=True)]
        rows.append(
            [
                str(batch),
                engine,
                str(arguments.chunk or "default"),
                str(steps),
                number(1e6 * statistics.median(spent[engine]) / steps),
                number(1e6 * statistics.median(spent["loop"]) / steps),
                number(statistics.median(ratios)),
                number(min(ratios)),
                number(GOALS.get((engine, batch))),
                number(compiling[engine]) if engine == "compiled" else "–",
                number(difference[engine]),
            ]
        )
    return rows


if __name__ == "__main__":
    main()
