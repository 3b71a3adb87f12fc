"""Time a round of FeMAM in its authors' setting, beside a plain loop written as their code is.

    python benchmarks/femam.py --clients 10

A client has 900 images of 32 × 32 pixels and three colours (CIFAR-100's; here drawn, which costs
the same), and trains the network of 83,852 parameters for 2 epochs on batches of 32 by SGD; there
are 50 clients. The plain loop is PyTorch's own modules with batch normalisation, batches picked
from one tensor, and nothing of a federation. Both take the same images, on one thread, alternating.
`--write` puts the tables into RESULTS.md beside this file.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tables import number, show, write
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from intarsia.algorithms.femam.algorithm import FEMAM
from intarsia.algorithms.femam.hyperparameters import FeMAM
from intarsia.core.block import Block, Labels
from intarsia.core.client_functions import evolve
from intarsia.core.schema import Schema
from intarsia.engines.simulation import Simulation

CLIENTS, IMAGES, CLASSES, SIDE, EPOCHS, BATCH = 50, 900, 100, 32, 2, 32
STEPS = CLIENTS * EPOCHS * -(-IMAGES // BATCH)
AUTHORS_SECONDS = 88.0  # of the authors' code, one thread of another run
_COLUMNS = (
    "network",
    "clients timed",
    "ms of a step",
    "plain ms",
    "ratio to plain",
    "goal",
    "s of a round of 50",
    "plain s",
    "goal s",
    "least s",
)
_LEVELS = ("level", "kind", "clients timed", "s of a round", "ratio to level 1", "goal")


class PlainBlock(nn.Module):
    """A basic block as the authors' code has it."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.shortcut = nn.Sequential()
        if stride != 1:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return images of other channels."""
        out = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class Plain(nn.Module):
    """The network of torch's own layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8))
        sizes = ((8, 8, 1), (8, 16, 2), (16, 32, 2), (32, 64, 2))
        self.blocks = nn.Sequential(*(PlainBlock(*size) for size in sizes))
        self.last = nn.Linear(64, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the classes' scores of images."""
        found = self.blocks(torch.relu(self.first(x)))
        return self.last(nn.functional.avg_pool2d(found, 4).flatten(1))


def plain_round(blocks: dict[str, Block]) -> None:
    """Train each client's network as the authors' code does."""
    for block in blocks.values():
        images = torch.from_numpy(block.x).reshape(-1, 3, SIDE, SIDE)
        labels = torch.from_numpy(block.y).long()
        network = Plain()
        optimiser = torch.optim.SGD(network.parameters(), lr=0.01)
        for _ in range(EPOCHS):
            for places in torch.randperm(len(labels)).split(BATCH):
                optimiser.zero_grad()
                found = network(images[places])
                nn.functional.cross_entropy(found, labels[places]).backward()
                optimiser.step()


def problem(clients: int, images: int, seed: int) -> dict[str, Block]:
    rng = np.random.default_rng(seed)
    pixels = tuple(f"p{place:04d}" for place in range(3 * SIDE * SIDE))
    return {
        f"c{at}": Block(
            images * at + np.arange(images),
            pixels,
            rng.random((images, len(pixels)), np.float32),
            rng.integers(CLASSES, size=images).astype(float),
        )
        for at in range(clients)
    }


class Rounds:
    """FeMAM at its latest level, a round at each call."""

    def __init__(self, blocks: dict[str, Block], options: FeMAM) -> None:
        labels = Labels("multiclass", tuple(str(one) for one in range(CLASSES)))
        schema = Schema.of(blocks, labels)
        self._engine = Simulation({"train": (schema, blocks)}, 0)
        self._engine.make_states(
            lambda name: FEMAM.init_client(
                options, schema, name, self._engine.block(name), self._engine.client_key(name)
            )
        )
        first = self._engine.key("init")
        server = FEMAM.init_server(options, schema, first)
        self._server: Any = FEMAM.setup(server, self._engine, first)
        self._number = 0

    def __call__(self) -> None:
        """Take a round."""
        self._number += 1
        self._engine.begin_round(self._number)
        self._server, _ = FEMAM.round(self._server, self._engine, self._engine.key())

    @property
    def level(self) -> int:
        """Return the level that the next round trains."""
        return len(self._server.levels)


def seconds(call: Callable[[], Any]) -> float:
    begin = time.process_time()
    call()
    return time.process_time() - begin


def options_of(network: str, **others: Any) -> FeMAM:
    return FeMAM(
        level_schedule="paper", local_epochs=EPOCHS, batch=BATCH, embedding=network, **others
    )


def least_seconds() -> float:
    """Return the time of a round's multiplications alone, at the rate of large matrix products."""
    network, images = Plain(), torch.randn(BATCH, 3, SIDE, SIDE)
    with FlopCounterMode(display=False) as count:
        network(images).sum().backward()
    work = count.get_total_flops() / BATCH * CLIENTS * EPOCHS * IMAGES
    one = torch.randn(1024, 1024)
    spent = [seconds(lambda: one @ one) for _ in range(20)]
    return work / (2 * 1024**3 / min(spent))


def time_networks(arguments: argparse.Namespace) -> list[list[str]]:
    """Time rounds of level 1 and of the plain loop, in turns."""
    blocks = problem(arguments.clients, arguments.images, arguments.seed)
    steps = arguments.clients * EPOCHS * -(-arguments.images // BATCH)
    names = ("residual", "residual-batch")
    # all rows train, as in the authors' count of 900
    everything = {"validation": 0.0, "prune": "never", "first_rounds": 10_000}
    made = {name: Rounds(blocks, options_of(name, **everything)) for name in names}
    for call in made.values():  # compiles what is compiled
        call()
    spent: dict[str, list[float]] = {name: [] for name in ("plain", *made)}
    for _ in range(arguments.repeats):
        spent["plain"].append(seconds(lambda: plain_round(blocks)))
        for name, call in made.items():
            spent[name].append(seconds(call))
    plain = statistics.median(spent["plain"])
    rows = []
    for name in made:
        own = statistics.median(spent[name])
        ratios = [a / b for a, b in zip(spent[name], spent["plain"], strict=True)]
        rows.append(
            [
                name,
                str(arguments.clients),
                number(1e3 * own / steps),
                number(1e3 * plain / steps),
                number(statistics.median(ratios)),
                number(1 / 3),
                number(own / steps * STEPS),
                number(plain / steps * STEPS),
                number(AUTHORS_SECONDS / 3),
                number(least_seconds()),
            ]
        )
    return rows


def time_levels(arguments: argparse.Namespace) -> list[list[str]]:
    """Time rounds of level 1 and of the last of five, in turns, with rows for validation."""
    blocks = problem(arguments.clients, arguments.images, arguments.seed)
    rows = []
    for kind in ("personal", "clusters"):
        last = 5 if kind == "clusters" else "personal"
        options = options_of(
            "residual", levels=("global", 5, 5, 5, last), first_rounds=1, level_rounds=1
        )
        late = Rounds(blocks, options)
        while late.level < 5:
            late()
        late()  # begins the level
        first = Rounds(blocks, evolve(options, first_rounds=10_000))
        first()
        pairs = [(seconds(first), seconds(late)) for _ in range(arguments.repeats)]
        rows.append(
            [
                "5",
                kind,
                str(arguments.clients),
                number(statistics.median(pair[1] for pair in pairs)),
                number(statistics.median(b / a for a, b in pairs)),
                number(1.15),
            ]
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=10, help="that are timed, of 50")
    parser.add_argument("--images", type=int, default=IMAGES, help="of a client")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--part", choices=("networks", "levels", "both"), default="both")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="write into RESULTS.md")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    title = "A round of FeMAM, the authors' setting"
    notes = (
        "CPU seconds of one process, medians of rounds in turns; a round of 50 is scaled from the "
        f"clients timed ({STEPS} steps). Plain: PyTorch's modules with batch normalisation, one "
        "step after the other; the authors' code took 88 s in another run. Ratios are within one "
        f"process; {arguments.images} images of a client. Least: the multiplications of the "
        "network's convolutions, forwards and backwards, at the rate of products of large "
        "matrices (single precision, the best of twenty), with nothing else."
    )
    parts: list[tuple[str, tuple[str, ...], list[list[str]]]] = []
    if arguments.part != "levels":
        parts.append((title, _COLUMNS, time_networks(arguments)))
    if arguments.part != "networks":
        parts.append((f"{title}: its levels", _LEVELS, time_levels(arguments)))
    for name, columns, rows in parts:
        show(name, columns, rows)
        if arguments.write:
            write(name, columns, rows, seed=arguments.seed, notes=notes)


if __name__ == "__main__":
    main()
