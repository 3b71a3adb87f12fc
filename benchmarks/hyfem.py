"""What a round of HyFEM costs beside its clients' local training.

    python benchmarks/hyfem.py [--hidden N] [--clients N] [--rounds N] [--write]

CPU seconds of one thread, all parties in one process, in every round: `cohort.train` (the gradient
steps, and no more) and the whole round. Matching is no part of a round from a common start; here it
is done beside it on the classifiers that the clients have come to, from the last round's matching,
with the average and each client's download.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
from tables import number, show, write
from threadpoolctl import threadpool_limits

from intarsia.algorithms.hyfem.algorithm import HYFEM
from intarsia.algorithms.hyfem.hyperparameters import HyFEM
from intarsia.algorithms.hyfem.matching import classifier_of
from intarsia.algorithms.hyfem.network import Composition, parts_of
from intarsia.core.block import Block, Labels
from intarsia.core.schema import Schema
from intarsia.engines.simulation import Simulation
from intarsia.maths.matching.matched_classifiers import aggregate, project
from intarsia.maths.matching.neuron_matching import match
from intarsia.maths.training import vectorised
from intarsia.maths.training.torch_import import torch

COLUMNS = (
    "hidden",
    "clients",
    "training s",
    "round s",
    "ratio",
    "matching s",
    "average s",
    "ratio with both",
    "limit",
    "within",
)
_BLOCKS, _CLASSES, _LIMIT = 12, 10, 1.2


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(1)
    with threadpool_limits(limits=1):
        rows = [_row(hidden, arguments) for hidden in arguments.hidden]
    title = "Cost of a round of HyFEM"
    show(title, COLUMNS, rows)
    if arguments.write:
        write(
            title,
            COLUMNS,
            rows,
            seed=arguments.seed,
            notes="CPU seconds, medians over the rounds after the first. Clients hold 6 to 8 of 12 "
            f"blocks of {arguments.features} features and 5 of 10 classes; extractors are "
            "perceptrons (64 units, 32 features), one hidden layer in the classifier, Q = 32 steps "
            "of 32 rows. training: the gradient steps alone; round: all of it, the sums of the "
            "changes too. matching and average: one pass from the last round's matching on the "
            "classifiers after training, the server's mean and each client's part of it; from a "
            "common start a round has no need of them. Costlier extractors make the ratio smaller.",
        )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--hidden", type=lambda text: [int(n) for n in text.split(",")], default="128,512"
    )
    parser.add_argument("--clients", type=int, default=9)
    parser.add_argument("--features", type=int, default=256, help="of a block")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="write a section of RESULTS.md")
    return parser.parse_args()


def _row(hidden: int, arguments: argparse.Namespace) -> list[str]:
    blocks = _federation(arguments.clients, arguments.features, arguments.seed)
    options = HyFEM(hidden=(hidden,))
    schema = Schema.of(blocks, Labels("multiclass", tuple(map(str, range(_CLASSES)))))
    engine = Simulation({"train": (schema, blocks)}, arguments.seed)
    server = HYFEM.init_server(options, schema, engine.key("init"))
    engine.make_states(
        lambda name: HYFEM.init_client(
            options, schema, name, engine.block(name), engine.client_key(name)
        )
    )
    server = HYFEM.setup(server, engine, engine.key("init"))
    training = _Timed(vectorised.train)
    vectorised.train = training
    alones, rounds, matchings, averages = [], [], [], []
    matching = None
    for number_ in range(1, arguments.rounds + 1):
        engine.begin_round(number_)
        training.seconds = 0.0
        start = time.process_time()
        server, _ = HYFEM.round(server, engine, engine.key())
        rounds.append(time.process_time() - start)
        alones.append(training.seconds)
        whole = HYFEM.model.architecture(options, schema, None)
        classifiers = [_classifier(engine, whole, name) for name in schema.clients]
        start = time.process_time()
        matching = match(classifiers, start=matching, passes=1)
        middle = time.process_time()
        mean = aggregate(classifiers, matching, inputs=_BLOCKS * options.features)
        for one, neurons in zip(classifiers, matching.neurons, strict=True):
            project(mean, neurons, one.inputs)
        matchings.append(middle - start)
        averages.append(time.process_time() - middle)
    vectorised.train = training.function
    parts = [np.array(some[1:]) for some in (alones, rounds, matchings, averages)]
    alone, round_, matched, averaged = (float(np.median(some)) for some in parts)
    both = float(np.median((parts[1] + parts[2] + parts[3]) / parts[0]))
    ratio = float(np.median(parts[1] / parts[0]))
    numbers = (alone, round_, ratio, matched, averaged, both, _LIMIT)
    cells = [number(value) for value in numbers]
    return [str(hidden), str(arguments.clients), *cells, "yes" if both <= _LIMIT else "no"]


class _Timed:
    """A function whose CPU seconds are added up."""

    def __init__(self, function: Any) -> None:
        self.function, self.seconds = function, 0.0

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        start = time.process_time()
        found = self.function(*arguments, **named)
        self.seconds += time.process_time() - start
        return found


def _classifier(engine: Simulation, whole: Composition, name: str) -> Any:
    state = engine.states[name]
    return classifier_of(whole, parts_of(state.made_of, state.parameters), state.classes)


def _federation(clients: int, features: int, seed: int) -> dict[str, Block]:
    """Return clients with 6 to 8 of 12 blocks and 5 of 10 classes, 1000 rows each."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(_CLASSES, _BLOCKS * features))
    found = {}
    for client in range(clients):
        held = np.sort(rng.permutation(_BLOCKS)[: 6 + client % 3])
        classes = rng.permutation(_CLASSES)[:5]
        y = rng.choice(classes, 1000)
        columns = (held[:, None] * features + np.arange(features)).ravel()
        x = centres[y][:, columns] + 3 * rng.normal(size=(1000, len(columns)))
        names = {f"b{b}": tuple(f"b{b}f{k:04d}" for k in range(features)) for b in held}
        flat = tuple(name for group in names.values() for name in group)
        rows = np.arange(client * 1000, (client + 1) * 1000)
        found[f"c{client}"] = Block(rows, flat, x, y.astype(float), names)
    return found


if __name__ == "__main__":
    main()
