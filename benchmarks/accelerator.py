"""Published settings on an accelerator, each for a share of the time; a later call goes on.

    python benchmarks/accelerator.py [--minutes N] [--cell NAME...] [--device NAME]
                                     [--alone] [--show] [--write]

A cell is a run of a file in experiments/ as `intarsia run` does it, with all of its clients, images
and its full network. It has its part of the minutes (`share`), is stopped as by Ctrl-C when they
are over, and is resumed by a later call until its rounds are done: `--minutes 40` three times is
as good as `--minutes 120` once. Run folders are in runs/accelerator beside this file.

The table says how far each came: rounds, seconds of a round, accuracy at the last evaluation beside
the published one, and how many times longer a round takes on this machine's processor, with all of
its cores (two rounds of the same run, once). `make gpu` runs this for 40 minutes.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tables import number, show, write

from intarsia.experiment import config as experiment
from intarsia.experiment.published import matching
from intarsia.maths.training.torch_import import torch

RUNS = Path(__file__).parent / "runs" / "accelerator"
EXPERIMENTS = Path(__file__).parent.parent / "experiments"
TITLE = "Published settings on an accelerator"
_GRACE = 90  # seconds to finish a round and save it


@dataclass(frozen=True)
class Cell:
    """A run: an experiment file, what is set beside it, its rounds and its part of the time."""

    file: str
    keys: tuple[str, ...]
    rounds: int
    share: float
    every: int  # rounds between evaluations


def _clusters(name: str, algorithm: str, *keys: str) -> Cell:
    """Return FeMAM's table of clusters: 50 clients, the residual network of the authors' code."""
    given = (f"algorithm.name={algorithm}", 'algorithm.embedding="residual"', *keys)
    return Cell(name, given, 700, 2.0, 25)


# the authors' descent: two epochs of batches of 32 at 0.01
_AUTHORS = (
    *('algorithm.optimiser="sgd"', "algorithm.rate=0.01"),
    *("algorithm.local_epochs=2", "algorithm.batch=32"),
)
_RESNET = (
    *("dataset.train_per_class=5000", "dataset.test_per_class=1000"),
    *('algorithm.extractor="resnet18"', "algorithm.features=512", "algorithm.rate=0.02"),
)
_WRITERS = ("partition.clients=100",)
_AS_PUBLISHED = (
    *('algorithm.variant="class"', "algorithm.pretraining_epochs=100"),
    *("algorithm.anchor_scale=1", "algorithm.weight_decay=0", "algorithm.embedding_decay=0"),
)
CELLS = {
    "hyfem-resnet18": Cell("hyfem-cifar10-blocks", _RESNET, 128, 3.0, 16),
    "hyfem-resnet18-bf16": Cell(
        "hyfem-cifar10-blocks", (*_RESNET, 'algorithm.precision="bf16"'), 128, 3.0, 16
    ),
    "femam-cifar100": _clusters("femam-cifar100-cluster", "femam"),
    "fesem-cifar100": _clusters("femam-cifar100-cluster", "fesem", *_AUTHORS),
    "fedavg-ft-cifar100": _clusters("femam-cifar100-cluster", "fedavg-ft", *_AUTHORS),
    "femam-tiny": _clusters("femam-tiny-cluster", "femam"),
    "fedavg-ft-tiny": _clusters("femam-tiny-cluster", "fedavg-ft", *_AUTHORS),
    "flic-femnist": Cell("flic-femnist", (*_WRITERS, *_AS_PUBLISHED), 1000, 1.0, 100),
    "flic-femnist-defaults": Cell(
        "flic-femnist", (*_WRITERS, 'algorithm.variant="class"'), 1000, 1.0, 100
    ),
    "local-femnist": Cell("flic-femnist", (*_WRITERS, 'algorithm.name="local"'), 1000, 0.5, 100),
}


def main() -> None:
    arguments = _arguments()
    asked = {name: CELLS[name] for name in arguments.cell}
    if not arguments.show:
        whole = sum(cell.share for cell in asked.values())
        for name, cell in asked.items():
            limit = 60 * arguments.minutes * cell.share / whole
            _go_on(name, cell, arguments, limit)
    columns = ["run", "rounds", "s a round", "on the processor", "accuracy", "clients", "published"]
    rows = [_row(name, cell) for name, cell in asked.items() if _history(RUNS / name)]
    show(TITLE, columns, rows)
    if arguments.write:
        write(TITLE, columns, rows, seed=0, notes=_notes())


def _go_on(name: str, cell: Cell, arguments: argparse.Namespace, limit: float) -> None:
    """Run a cell, or go on with it, for some seconds."""
    folder, begun = RUNS / name, time.monotonic()
    if (folder / "result.json").is_file():
        return
    if not (folder / "history.jsonl").is_file() and not arguments.alone:
        _call(_begin(cell, RUNS / f"{name}-processor", "cpu", 2), limit / 4)
    if (folder / "checkpoints").is_dir():
        command = ["resume", str(folder)]
    else:
        command = _begin(cell, folder, arguments.device, cell.rounds)
    print(f"{name}: {limit / 60:.1f} minutes", flush=True)
    _call(command, limit - (time.monotonic() - begun))


def _begin(cell: Cell, folder: Path, device: str, rounds: int) -> list[str]:
    set_keys = (
        *(f"experiment.rounds={rounds}", f"experiment.evaluate_every={cell.every}"),
        *(f'algorithm.device="{device}"', *cell.keys),
    )
    file = EXPERIMENTS / f"{cell.file}.toml"
    return ["run", str(file), "--out", str(folder), "--overwrite", *_options(set_keys)]


def _options(keys: Iterable[str]) -> list[str]:
    return [part for key in keys for part in ("-c", key)]


def _call(arguments: Sequence[str], limit: float) -> None:
    """Call the command line, and stop it after some seconds; what it says is in a file."""
    RUNS.mkdir(parents=True, exist_ok=True)
    with (RUNS / "said.txt").open("a") as said:
        command = [sys.executable, "-m", "intarsia", *arguments]
        with subprocess.Popen(command, stdout=said, stderr=said) as running:
            try:
                running.wait(max(limit, 1.0))
            except subprocess.TimeoutExpired:
                running.send_signal(signal.SIGINT)
                try:
                    running.wait(_GRACE)
                except subprocess.TimeoutExpired:
                    running.kill()


def _history(folder: Path) -> list[dict[str, Any]]:
    file = folder / "history.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []


def _row(name: str, cell: Cell) -> list[str]:
    rounds, there = _history(RUNS / name), _history(RUNS / f"{name}-processor")
    spent = _seconds(rounds)
    slower = _seconds(there) / spent if there and spent else None
    overall = next((one["accuracy"] for one in reversed(rounds) if one["accuracy"]), None)
    each = None
    result = RUNS / name / "result.json"
    if result.is_file():
        metrics = json.loads(result.read_text())["metrics"]
        overall, each = metrics["server"]["accuracy"], metrics["clients_mean"]["accuracy"]
    return [
        name,
        f"{len(rounds)} of {cell.rounds}",
        number(spent),
        "–" if slower is None else f"{slower:.3g} ×",
        *("–" if one is None else f"{100 * one:.1f}" for one in (overall, each)),
        _published(cell),
    ]


def _seconds(rounds: Sequence[dict[str, Any]]) -> float:
    """Return the seconds of a round: those after the first, where there are any."""
    if len(rounds) < 2:
        return float(rounds[0]["seconds"]) if rounds else 0.0
    return float(rounds[-1]["seconds"] - rounds[0]["seconds"]) / (len(rounds) - 1)


def _published(cell: Cell) -> str:
    """Return the accuracy that the paper has for these clients and this network."""
    known = experiment.load(EXPERIMENTS / f"{cell.file}.toml", list(cell.keys))
    found = matching(known.published, known.algorithm, experiment.to_dict(known))
    return "–" if found is None else f"{100 * found.accuracy:.1f}"


def _notes() -> str:
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "no accelerator"
    return (
        f"On {name}, torch {torch.__version__}. Accuracy in per cent over all test samples, and as "
        "the mean over clients where the run is done. Published: the mean over clients. Rounds "
        "that are missing are for a later call."
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=40.0, help="of this call, all cells")
    parser.add_argument("--cell", nargs="+", choices=list(CELLS), default=list(CELLS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--alone", action="store_true", help="not on the processor too")
    parser.add_argument("--show", action="store_true", help="run nothing")
    parser.add_argument("--write", action="store_true", help="write the table into RESULTS.md")
    return parser.parse_args()


if __name__ == "__main__":
    main()
