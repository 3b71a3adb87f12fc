"""How well and how fast clients' neurons are matched.

    python benchmarks/matching.py [--widths 50,200,800] [--noise 0,0.1,0.3] [--seeds N] [--write]

Four clients hold 3 of 4 views each of one planted classifier (32 features a view, 10 classes), with
their hidden neurons in orders of their own and noise on every weight. Pair agreement: of all pairs
of clients' neurons that are one planted neuron, the part that the matching has as one. The
reference is the published procedure with its cost matrices row by row: distances to the mean of the
others on common columns, the same solver of assignments, as many turns.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Sequence

import numpy as np
from scipy.optimize import linear_sum_assignment
from tables import number, show, write
from threadpoolctl import threadpool_limits

from intarsia.maths.matching.matched_classifiers import Classifier, Matching, project
from intarsia.maths.matching.neuron_assignment import BetaBernoulli, Cost, SquaredDistance
from intarsia.maths.matching.neuron_matching import match

COLUMNS = (
    "cost",
    "hidden",
    "weights",
    "noise",
    "pair agreement",
    "least",
    "server width",
    "CPU s",
    "reference s",
    "ratio",
)
_VIEWS, _PER, _CLASSES = 4, 32, 10


def main() -> None:
    arguments = _arguments()
    rows = []
    with threadpool_limits(limits=1):
        _timed(planted(50, 0.0, 0, 1.0)[0], SquaredDistance())  # what is loaded at the first call
        for width, noise in itertools.product(arguments.widths, arguments.noise):
            rows.append(_row("squared", width, noise, 1.0, arguments.seeds))
            print(*rows[-1])
        for name, scale in itertools.product(("PFNM", "marginal"), (1.0, 0.05)):
            for width, noise in itertools.product(arguments.widths, arguments.noise):
                rows.append(_row(name, width, noise, scale, arguments.seeds))
                print(*rows[-1])
    title = "Matching of neurons"
    show(title, COLUMNS, rows)
    if arguments.write:
        write(
            title,
            COLUMNS,
            rows,
            seed=0,
            notes="Four clients with 3 of 4 views each of one planted classifier, a hidden layer; "
            f"means over {arguments.seeds} seeds, least: the worst of them. weights: their "
            "standard deviation; noise: part of it. squared: price 4, width up to the largest "
            "client's; PFNM: σ0² the weights' variance, σ² a tenth of it, γ = 1, any width; "
            "marginal: the same with the server's weights integrated out. Clients join, then one "
            "pass that changes nothing. Reference: distances to the others' mean on common "
            "columns, row by row, the same turns and solver, same run (squared only). The authors' "
            "research code took 4.6 s for 800 units and four clients on one core.",
        )


def _arguments() -> argparse.Namespace:
    def numbers(text: str) -> list[float]:
        return [float(part) for part in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--widths", type=lambda t: [int(n) for n in numbers(t)], default="50,200,800"
    )
    parser.add_argument("--noise", type=numbers, default="0,0.1,0.3")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="write a section of RESULTS.md")
    return parser.parse_args()


def planted(
    width: int, noise: float, seed: int, scale: float
) -> tuple[list[Classifier], list[np.ndarray]]:
    """Return four clients of one classifier, and the planted neuron of each of their neurons."""
    rng = np.random.default_rng((seed, width))
    columns = np.arange(_VIEWS * _PER)
    server = Classifier(
        (
            scale * rng.normal(size=(width, len(columns))),
            scale * rng.normal(size=(_CLASSES, width)),
        ),
        (scale * rng.normal(size=width), scale * rng.normal(size=_CLASSES)),
        columns,
        np.ones(_CLASSES, bool),
    )
    clients, orders = [], []
    for missing in range(_VIEWS):
        order = rng.permutation(width)
        part = project(server, [order], columns[columns // _PER != missing])
        clients.append(
            Classifier(
                tuple(w + noise * scale * rng.normal(size=w.shape) for w in part.weights),
                tuple(b + noise * scale * rng.normal(size=b.shape) for b in part.biases),
                part.inputs,
                part.outputs,
            )
        )
        orders.append(order)
    return clients, orders


def _row(name: str, width: int, noise: float, scale: float, seeds: int) -> list[str]:
    found, taken, references, widths = [], [], [], []
    for seed in range(seeds):
        clients, orders = planted(width, noise, seed, scale)
        cost: Cost = SquaredDistance()
        if name != "squared":
            cost = BetaBernoulli(
                sigma2=0.1 * scale**2, sigma02=scale**2, gamma=1.0, marginal=name == "marginal"
            )
        matching, seconds = _timed(clients, cost)
        found.append(_agreement([n[0] for n in matching.neurons], orders))
        widths.append(matching.widths[0])
        taken.append(seconds)
        if name == "squared":
            start = time.process_time()
            reference(clients, turns=2)
            references.append(time.process_time() - start)
    slow = float(np.median(references)) if references else None
    quick = float(np.median(taken))
    return [
        name,
        str(width),
        number(scale),
        number(noise),
        f"{np.mean(found):.4f}",
        f"{min(found):.4f}",
        "/".join(map(str, sorted(set(widths)))),
        number(quick),
        number(slow),
        "–" if slow is None else number(slow / quick),
    ]


def _timed(clients: Sequence[Classifier], cost: Cost) -> tuple[Matching, float]:
    widths = math.inf if isinstance(cost, BetaBernoulli) else None
    start = time.process_time()
    matching = match(clients, cost=cost, widths=widths)
    return matching, time.process_time() - start


def _agreement(places: Sequence[np.ndarray], orders: Sequence[np.ndarray]) -> float:
    sorted_places = [p[np.argsort(o)] for p, o in zip(places, orders, strict=True)]
    return float(np.mean([np.mean(a == b) for a, b in itertools.combinations(sorted_places, 2)]))


def reference(clients: Sequence[Classifier], turns: int) -> list[np.ndarray]:
    """Return server neurons as the published procedure finds them, all clients of one width."""
    width = clients[0].hidden[0]
    full = np.full((len(clients), width, _VIEWS * _PER + 1 + _CLASSES), np.nan)
    for rows, one in zip(full, clients, strict=True):
        rows[:, one.inputs] = one.weights[0]
        rows[:, _VIEWS * _PER] = one.biases[0]
        rows[:, _VIEWS * _PER + 1 :] = one.weights[1].T
    held = ~np.isnan(full[:, 0])
    full = np.nan_to_num(full)
    places = [np.arange(width)] + [None] * (len(clients) - 1)
    for _, client in itertools.product(range(turns), range(len(clients))):
        others = [k for k in range(len(clients)) if k != client and places[k] is not None]
        if not others:
            continue
        total = np.zeros_like(full[0])
        for k in others:
            total[places[k]] += full[k]
        mass = held[others].sum(axis=0)
        mean, common = total / np.maximum(mass, 1), held[client] & (mass > 0)
        cost = [((mean[:, common] - row[common]) ** 2).sum(axis=1) for row in full[client]]
        places[client] = linear_sum_assignment(np.array(cost))[1]
    return places


if __name__ == "__main__":
    main()
