"""Which rule for the growth of HyFEM's server helps, and which harms.

    python benchmarks/growth.py [--units 3,8] [--seeds N] [--rounds N] [--write]

mfeat in its six views: six clients hold three views and five or six classes each, all samples of
their classes; every view and every class is at three clients or more. Clients begin with
classifiers of their own, of few hidden units, train for a round and are matched; then rounds of
HyFEM-Avg in plain NumPy. The rules differ in who has a neuron that is opened.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tables import show, write
from threadpoolctl import threadpool_limits

from intarsia import datasets
from intarsia.maths.matched_classifiers import (
    Classifier,
    Matching,
    aggregate,
    project,
    same_order,
)
from intarsia.maths.matching_cost import SquaredDistance
from intarsia.maths.neuron_matching import match

COLUMNS = ("units", "rule", "server width", "server %", "clients %", "worst client %")
_CLASSES, _CLIENTS, _FEATURES, _UNITS = 10, 6, 32, 64
_STEPS, _BATCH, _RATE, _DECAY = 32, 32, 0.2, 0.97


@dataclass(frozen=True)
class Rule:
    """Where classifiers start, what a neuron costs, and who has the server's neurons."""

    name: str
    price: float | None = None  # None: a common start
    grows: bool = False
    adopted: bool = False


RULES = (
    Rule("common start, fixed width"),
    Rule("matched, fixed width", 4.0),
    Rule("price 0.8, its opener's alone", 0.8, grows=True),
    Rule("price 0.8, everybody's", 0.8, grows=True, adopted=True),
    Rule("price 0.4, everybody's", 0.4, grows=True, adopted=True),
)


def main() -> None:
    arguments = _arguments()
    rows = []
    with threadpool_limits(limits=1):
        for units in arguments.units:
            for rule in RULES:
                rows.append(_row(units, rule, arguments.seeds, arguments.rounds))
                print(*rows[-1], flush=True)
    title = "Growth of HyFEM's server"
    show(title, COLUMNS, rows)
    if arguments.write:
        write(
            title,
            COLUMNS,
            rows,
            seed=0,
            notes=f"Test accuracy, mean (of each seed) over {arguments.seeds} seeds, on mfeat: six "
            "clients with 3 of 6 views and 5 or 6 of 10 classes each; "
            f"{arguments.rounds} rounds of {_STEPS} steps. units: hidden units of a client's own "
            "classifier. Classifiers start on their own but for the first rule and are matched "
            "after the first round; a neuron is opened if that is cheaper. Its opener's alone: "
            "as published, nobody else downloads it; everybody's: all download all neurons from "
            "then on, with zeros for the weights that no owner had.",
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


def _row(units: int, rule: Rule, seeds: int, rounds: int) -> list[str]:
    found = [_run(units, rule, seed, rounds) for seed in range(seeds)]
    server = [one[0] for one in found]
    clients = [float(np.mean(one[1])) for one in found]
    return [
        str(units),
        rule.name,
        "/".join(str(one[2]) for one in found),
        _cell(server),
        _cell(clients),
        _cell([min(one[1]) for one in found]),
    ]


def _cell(values: Sequence[float]) -> str:
    return f"{np.mean(values):.1f} ({' '.join(f'{value:.1f}' for value in values)})"


# ---- the federation


def _dealt(seed: int) -> tuple[list[np.ndarray], np.ndarray, np.ndarray, list, list]:
    """Return the views, labels, test rows, and each client's views and classes."""
    data = datasets.load("mfeat")
    y, rng = np.asarray(data.y).astype(int), np.random.default_rng(seed)
    test = np.zeros(len(y), bool)
    for label in range(_CLASSES):
        test[rng.permutation(np.flatnonzero(y == label))[:60]] = True
    place = {name: column for column, name in enumerate(data.features)}
    views = []
    for names in data.groups.values():
        x = np.asarray(data.x)[:, [place[name] for name in names]]
        spread = x[~test].std(axis=0) + 1e-9
        views.append(((x - x[~test].mean(axis=0)) / spread).astype(np.float32))

    def drawn(whole: int, sizes: Sequence[int]) -> list[np.ndarray]:
        while True:
            parts = [np.sort(rng.permutation(whole)[:size]) for size in sizes]
            if np.bincount(np.concatenate(parts), minlength=whole).min() >= 3:
                return parts

    held = drawn(len(views), [3] * _CLIENTS)
    classes = drawn(_CLASSES, [5, 6] * (_CLIENTS // 2))
    return views, y, test, held, classes


# ---- a network: extractors x → relu(A2 relu(A1 x)), one hidden layer in the classifier


def _layer(rng: np.random.Generator, out: int, into: int) -> list[np.ndarray]:
    bound = 1 / math.sqrt(into)
    shapes = ((out, into), (out,))
    return [rng.uniform(-bound, bound, shape).astype(np.float32) for shape in shapes]


def _new_classifier(rng: np.random.Generator, units: int, views: np.ndarray) -> Classifier:
    inputs = (views[:, None] * _FEATURES + np.arange(_FEATURES)).ravel()
    (first, bias), (last, end) = (
        _layer(rng, units, len(inputs)),
        _layer(rng, _CLASSES, units),
    )
    return Classifier((first, last), (bias, end), inputs, np.ones(_CLASSES, bool))


def _forward(extractors: list, one: Classifier, xs: list, scale: float) -> tuple:
    between = [np.maximum(x @ e[0].T + e[1], 0) for e, x in zip(extractors, xs, strict=True)]
    features = [np.maximum(h @ e[2].T + e[3], 0) for e, h in zip(extractors, between, strict=True)]
    joined = np.concatenate(features, axis=1)
    hidden = np.maximum(scale * (joined @ one.weights[0].T) + one.biases[0], 0)
    return between, joined, hidden, hidden @ one.weights[1].T + one.biases[1]


def _step(
    extractors: list, one: Classifier, xs: list, y: np.ndarray, rate: float, scale: float
) -> None:
    """Take a step of descent on the cross-entropy, in place."""
    between, joined, hidden, scores = _forward(extractors, one, xs, scale)
    slope = np.exp(scores - scores.max(axis=1, keepdims=True))
    slope /= slope.sum(axis=1, keepdims=True)
    slope[np.arange(len(y)), y] -= 1
    slope /= len(y)
    at_hidden = (slope @ one.weights[1]) * (hidden > 0)
    at_features = scale * (at_hidden @ one.weights[0]) * (joined > 0)
    moves = [(one.weights[1], slope.T @ hidden), (one.biases[1], slope.sum(axis=0))]
    moves += [(one.weights[0], scale * (at_hidden.T @ joined)), (one.biases[0], at_hidden.sum(0))]
    for k, (parts, x) in enumerate(zip(extractors, xs, strict=True)):
        part = at_features[:, k * _FEATURES : (k + 1) * _FEATURES]
        inner = (part @ parts[2]) * (between[k] > 0)
        slopes = (inner.T @ x, inner.sum(axis=0), part.T @ between[k], part.sum(axis=0))
        moves += zip(parts, slopes, strict=True)
    for values, by in moves:
        values -= rate * by


# ---- rounds


def _run(units: int, rule: Rule, seed: int, rounds: int) -> tuple[float, list[float], int]:
    """Return the server's accuracy, the clients', and the server's width."""
    views, y, test, held, classes = _dealt(seed)
    rng = np.random.default_rng((seed, 1))
    shapes = [x.shape[1] for x in views]
    whole = [_layer(rng, _UNITS, n) + _layer(rng, _FEATURES, _UNITS) for n in shapes]
    every = np.arange(len(views))
    server = _new_classifier(rng, units, every)
    inputs = [_new_classifier(rng, units, own).inputs for own in held]
    seen = [np.isin(np.arange(_CLASSES), own) for own in classes]
    rows = [np.flatnonzero(~test & np.isin(y, own)) for own in classes]
    places = [np.arange(units)] * _CLIENTS
    scales = [len(views) / len(own) for own in held]
    for number in range(rounds):
        trained, extractors = [], []
        for client, own in enumerate(held):
            parts = [[values.copy() for values in whole[view]] for view in own]
            one = project(server, [places[client]], inputs[client])
            if number == 0 and rule.price is not None:
                one = _new_classifier(rng, units, own)
            for _ in range(_STEPS):
                batch = rng.choice(rows[client], _BATCH)
                xs = [views[view][batch] for view in own]
                _step(parts, one, xs, y[batch], _RATE * _DECAY**number, scales[client])
            trained.append(Classifier(one.weights, one.biases, inputs[client], seen[client]))
            extractors.append(dict(zip(own.tolist(), parts, strict=True)))
        whole = [
            [
                np.mean([mine[view][k] for mine in extractors if view in mine], axis=0)
                for k in range(4)
            ]
            for view in every
        ]
        matching = Matching(tuple((own,) for own in places), server.hidden)
        otherwise: Classifier | None = server
        if number == 0 and rule.price is not None:
            widths = math.inf if rule.grows else None
            matching = match(trained, cost=SquaredDistance(price=rule.price), widths=widths)
            otherwise = None
        elif number == 0:
            matching = same_order(trained)
        server = aggregate(trained, matching, inputs=_FEATURES * len(views), otherwise=otherwise)
        places = [neurons[0] for neurons in matching.neurons]
        if rule.adopted:
            places = [np.arange(server.hidden[0])] * _CLIENTS
    xs, right = [x[test] for x in views], y[test]
    accuracy = _accuracy(whole, server, xs, right, 1.0)
    clients = [
        _accuracy(
            [whole[view] for view in own],
            project(server, [places[client]], inputs[client]),
            [xs[view] for view in own],
            right,
            scales[client],
        )
        for client, own in enumerate(held)
    ]
    return accuracy, clients, server.hidden[0]


def _accuracy(extractors: list, one: Classifier, xs: list, y: np.ndarray, scale: float) -> float:
    found = _forward(extractors, one, xs, scale)[3].argmax(axis=1)
    return 100 * float((found == y).mean())


if __name__ == "__main__":
    main()
