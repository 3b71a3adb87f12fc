"""What it takes to find out which samples the parties share.

    python benchmarks/alignment.py [--ids N] [--parties N] [--each N] [--write]

CPU seconds of one thread, all parties in one process: keyed pseudonyms of 5 × 1,000,000 ids up to
the public index of who holds which, and a private set intersection of 100,000 ids a side.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from tables import number, show, write
from threadpoolctl import threadpool_limits

from intarsia.core.block import Block, Labels
from intarsia.core.schema import Schema
from intarsia.experiment import entity_alignment
from intarsia.experiment.config import Alignment
from intarsia.privacy.entity_matching import psi
from intarsia.privacy.entity_matching.pseudonyms import drawn_key

COLUMNS = ("step", "ids a party", "parties", "CPU s", "µs an id", "limit s", "within")
_RULES = ("spaces", "case", "zeros")


def main() -> None:
    arguments = _arguments()
    with threadpool_limits(limits=1):
        rows = [
            *_keyed(arguments.parties, arguments.each, arguments.seed),
            *_intersected(arguments.ids, arguments.seed),
        ]
    title = "Sample alignment"
    show(title, COLUMNS, rows)
    if arguments.write:
        write(
            title,
            COLUMNS,
            rows,
            seed=arguments.seed,
            notes="CPU seconds, all parties in one process. Pseudonyms: text ids of 12 characters, "
            "each party has half of them in common with the next; the steps together are what the "
            "limit is for. Intersection: half of the ids are shared; raw set, exact; each message "
            "is the work of one party, and the limit is for both together.",
        )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ids", type=int, default=100_000, help="of an intersection, a side")
    parser.add_argument("--parties", type=int, default=5)
    parser.add_argument("--each", type=int, default=1_000_000, help="ids of a party")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="write a section of RESULTS.md")
    return parser.parse_args()


class _Steps:
    """Times steps and keeps a row for each."""

    def __init__(self, size: int, parties: int) -> None:
        self.size, self.parties, self.total = size, parties, 0.0
        self.rows: list[list[str]] = []

    def time(self, name: str, step: Callable[[], Any]) -> Any:
        start = time.process_time()
        made = step()
        seconds = time.process_time() - start
        self.total += seconds
        self._add(name, seconds, "–", "–")
        return made

    def close(self, name: str, limit: float) -> list[list[str]]:
        self._add(name, self.total, number(limit), "yes" if self.total <= limit else "no")
        return self.rows

    def _add(self, name: str, seconds: float, limit: str, within: str) -> None:
        each = seconds / (self.size * self.parties) * 1e6
        cells = (f"{self.size:,}", str(self.parties), number(seconds), number(each))
        self.rows.append([name, *cells, limit, within])


def _ids(start: int, size: int, seed: int) -> np.ndarray:
    """Return text ids in a random order, those of a run of customers."""
    order = np.random.default_rng((seed, start)).permutation(size) + start
    return np.array([f"ID{customer:010d}" for customer in order.tolist()])


def _keyed(parties: int, size: int, seed: int) -> list[list[str]]:
    ids = {f"p{at}": _ids(at * size // 2, size, seed) for at in range(parties)}
    x = np.zeros((size, 1))
    steps = _Steps(size, parties)
    for title, rules in (("without rules", ()), (f"rules {', '.join(_RULES)}", _RULES)):
        settings = Alignment(ids="pseudonyms", normalise=rules)
        plain = steps.time(
            f"check and normalise, {title}", lambda s=settings: entity_alignment.normalised(s, ids)
        )
        if not rules:  # the whole is with the rules
            steps.total = 0.0
    names = steps.time(
        "pseudonyms", lambda: entity_alignment.public_names(settings, plain, drawn_key())
    )
    blocks = steps.time(
        "blocks",
        lambda: {name: Block(own, (name,), x) for name, own in names.public.items()},
    )
    schema = steps.time("schema", lambda: Schema.of(blocks, Labels("binary", ("no", "yes"))))
    index = steps.time("index of all samples", lambda: schema.samples)
    shared = sum(cell.stop - cell.start for cell in index.cells if len(cell.owners) == 2)
    if shared != (parties - 1) * (size - size // 2):
        raise SystemExit(f"{shared} samples are shared; expected half of each neighbour's.")
    return steps.close("keyed alignment in all", 20.0)


def _intersected(size: int, seed: int) -> list[list[str]]:
    first, second = _ids(0, size, seed), _ids(size // 2, size, seed)
    link, key, other = drawn_key(), psi.drawn_key(), psi.drawn_key()
    steps = _Steps(size, 2)
    request = steps.time("request", lambda: psi.request(first, key, link))
    setup = steps.time("setup", lambda: psi.setup(second, other, request, link))
    response = steps.time("response", lambda: psi.response(request, other, link))
    found = steps.time(
        "intersection",
        lambda: psi.shared(first, key, request, setup, response, link),
    )
    told = steps.time("announcement", lambda: psi.announcement(first[found], request, link))
    mine = steps.time("shared rows", lambda: psi.announced(second, request, told, link))
    if sorted(first[found]) != sorted(second[mine]) or len(found) != size - size // 2:
        raise SystemExit(f"{len(found)} ids are shared; expected {size - size // 2}.")
    megabytes = (len(request) + len(setup) + len(response) + len(told)) / 1e6
    return steps.close(f"intersection in all, {megabytes:.1f} MB", 60.0)


if __name__ == "__main__":
    main()
