"""What a network or CKKS would make of the choices: exchanges and bytes turned into seconds."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from problems import Problem, problem, synthetic
from solvers import Mark, federated, optimum, sealing
from tables import number, show, write

from intarsia.algorithms.hyfdca.state import HyFDCA, choose_by_network, init_server
from intarsia.core.client_functions import RandomKey
from intarsia.privacy.settings import Privacy

__all__ = ["measure_all", "measure_methods"]

_CHOICES: dict[str, dict[str, Any]] = {
    "default": {},
    "ascent, H = 100 %": {"method": "ascent", "local_samples": 1.0},
    "ascent, H = 30 %": {"method": "ascent", "local_samples": 0.3},
    "ascent, H = 10 %": {"method": "ascent", "local_samples": 0.1},
}
# name -> seconds for an exchange there and back, bytes a second of one client's line
_LINES = {
    "LAN": (1e-3, 125e6),
    "WAN": (40e-3, 12.5e6),
    "overseas": (150e-3, 2.5e6),
}
# As benchmarks/encryption.py and privacy_cost.py measure them: CKKS at the range 2^14, seconds to
# seal, add and open a value of a full ciphertext; masks of what is short, for an exchange
_CKKS_VALUE, _SHORT = 0.38e-6, 170e-6
_CKKS_BYTES = 17.5 / 8  # a value's bytes, over those in the clear
_COLUMNS = (
    "problem",
    "to",
    "choice",
    "exchanges",
    "MB",
    "in process s",
    "LAN s",
    "WAN s",
    "overseas s",
    "CKKS + WAN s",
)
_NOTES = (
    "Estimates: CPU seconds over the clients (they work at the same time) + exchanges × latency + "
    "one client's bytes / bandwidth; LAN 1 ms, 1 Gbit/s; WAN 40 ms, 100 Mbit/s; overseas 150 ms, "
    "20 Mbit/s. CKKS at the range 2^14: 0.38 µs a value, 170 µs an exchange for what is "
    "short and goes under masks, 2.2 times the bytes. In bold: the choice with the least time."
)


def measure_all(arguments: argparse.Namespace) -> None:
    loss = arguments.loss[0]
    rows: list[list[str]] = []
    for name in arguments.data:
        one = problem(name, loss=loss, grid=arguments.grid[0], seed=arguments.seed)
        best = optimum(one).primal
        clients = len(one.blocks)
        runs = {}
        for choice, keys in _CHOICES.items():
            options = HyFDCA(loss=loss, regularisation=one.regularisation, **keys)
            levels = (1e-2, 1e-3) if keys else (1e-2, 1e-3, 1e-6)
            runs[choice] = federated(
                one, options, levels=levels, best=best, limit=min(arguments.limit, 6.0)
            )
        for level in (1e-2, 1e-3, 1e-6):
            marks = {c: run.marks[level] for c, run in runs.items() if level in run.marks}
            costs = {c: _costs(mark, clients) for c, mark in marks.items()}
            for choice, run in runs.items():
                if choice not in marks:
                    if level > 1e-6:
                        row = [name, f"{level:g}", choice, f"> {run.exchanges}"]
                        rows.append(row + ["–"] * (len(_COLUMNS) - len(row)))
                    continue
                mark = marks[choice]
                cells = []
                for place, cost in enumerate(costs[choice]):
                    least = min(other[place] for other in costs.values())
                    text = number(cost)
                    cells.append(f"**{text}**" if cost == least and len(costs) > 1 else text)
                rows.append(
                    [
                        name,
                        f"{level:g}",
                        choice,
                        str(mark.exchanges),
                        number(mark.bytes / 1e6),
                        *cells,
                    ]
                )
    title = f"HyFDCA over a network, {loss}"
    show(title, _COLUMNS, rows)
    if arguments.write:
        write(title, _COLUMNS, rows, seed=arguments.seed, notes=_NOTES)


_METHODS: dict[str, dict[str, Any]] = {
    "exact": {"method": "newton"},
    "conjugate gradients": {"method": "newton", "frame": False},
    "ascent": {"method": "ascent"},
}
_NETWORKS = {**_LINES, "1 Mbyte/s": (20e-3, 1e6), "thin": (5e-3, 0.25e6)}
_METHOD_COLUMNS = ("rows × columns, loss, λ", "sums", "to", "exchanges", "MB", *_NETWORKS)
_METHOD_NOTES = (
    "Seconds to a certified relative gap of 1e-6 of 2 × 2 clients with dense tables, as above; "
    "of a client: CPU seconds and bytes over the clients. 1 Mbyte/s: 20 ms; thin: 5 ms, 0.25 "
    "Mbyte/s. In bold: what latency_seconds and megabytes_per_second choose. A dash: not done in "
    "150 rounds. The estimates were fitted to other sizes (400 × 16, 400 × 120, 1500 × 400, 3000 × "
    "120)."
)


def measure_methods(arguments: argparse.Namespace) -> None:
    """Measure each method, and which of them a network chooses."""
    rows: list[list[str]] = []
    worst = 1.0
    for samples, features in ((800, 40), (1000, 200), (4000, 250)):
        for loss, rate in (("logistic", 1e-3), ("squared_hinge", 1e-2), ("logistic", 3.0)):
            one = synthetic(
                samples, features, loss=loss, regularisation=rate, grid=(2, 2), seed=arguments.seed
            )
            for mode in ("plain", "masked"):
                costs = _methods_of(one, mode)
                chosen = [_chosen(one, mode, *line) for line in _NETWORKS.values()]
                for at, name in enumerate(chosen):
                    least = min(cost[2][at] for cost in costs.values())
                    worst = max(worst, costs[name][2][at] / least if name in costs else np.inf)
                for name in _METHODS:
                    cells = ["–"] * (2 + len(_NETWORKS))
                    if name in costs:
                        exchanges, moved, seconds = costs[name]
                        shown = [
                            f"**{number(spent)}**" if chosen[at] == name else number(spent)
                            for at, spent in enumerate(seconds)
                        ]
                        cells = [str(exchanges), number(moved / 1e6), *shown]
                    told = f"{samples} × {features}, {loss}, {rate:g}"
                    rows.append([told, mode, name, *cells])
    title = "HyFDCA by method over networks"
    show(title, _METHOD_COLUMNS, rows)
    notes = f"{_METHOD_NOTES} The choice takes at most {number(worst)} times the least."
    print(notes)
    if arguments.write:
        write(title, _METHOD_COLUMNS, rows, seed=arguments.seed, notes=notes)


def _methods_of(one: Problem, mode: Any) -> dict[str, tuple[int, float, list[float]]]:
    """Return what methods came to: exchanges, a client's bytes, seconds over each network."""
    found, clients = {}, len(one.blocks)
    for name, keys in _METHODS.items():
        options = HyFDCA(loss=one.loss, regularisation=one.regularisation, **keys)
        sealed = None if mode == "plain" else sealing(one, Privacy(mode=mode, trust="clients"))
        given = {"levels": (1e-6,), "best": None, "limit": 10.0, "rounds": 150, "sealed": sealed}
        mark = federated(one, options, **given).marks.get(1e-6)
        if mark is not None:
            moved, work = mark.bytes / clients, mark.seconds / clients
            spent = [
                work + mark.exchanges * latency + moved / rate
                for latency, rate in _NETWORKS.values()
            ]
            found[name] = mark.exchanges, moved, spent
    return found


def _chosen(one: Problem, mode: str, latency: float, rate: float) -> str:
    """Return the method that a network chooses."""
    told = {"latency_seconds": latency, "megabytes_per_second": rate / 1e6}
    options = HyFDCA(loss=one.loss, regularisation=one.regularisation, **told)
    server = init_server(options, one.schema(), RandomKey((0,)))
    square = float(one.norms.mean())
    found = choose_by_network(server, square, sealed=mode != "plain")
    if found.method == "ascent":
        return "ascent"
    return "exact" if found.frame else "conjugate gradients"


def _costs(mark: Mark, clients: int) -> list[float]:
    """Return estimated seconds in process, over each line, and encrypted over the WAN."""
    own = mark.bytes / clients
    work = mark.seconds / clients
    found = [mark.seconds]
    for latency, rate in _LINES.values():
        found.append(work + mark.exchanges * latency + own / rate)
    latency, rate = _LINES["WAN"]
    values = own / 8
    encryption = values * _CKKS_VALUE + mark.exchanges * _SHORT
    found.append(work + encryption + mark.exchanges * latency + _CKKS_BYTES * own / rate)
    return found
