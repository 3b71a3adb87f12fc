"""What a network or CKKS would make of the choices: exchanges and bytes turned into seconds."""

from __future__ import annotations

import argparse
from typing import Any

from problems import problem
from solvers import Mark, federated, optimum
from tables import number, show, write

from intarsia.algorithms.hyfdca.state import HyFDCA

__all__ = ["measure_all"]

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
