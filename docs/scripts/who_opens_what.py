"""Write the table "Who opens what" of privacy/who-opens-what.md from what the algorithms declare.

python docs/scripts/who_opens_what.py          # print it
python docs/scripts/who_opens_what.py --write  # put it into the page
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from intarsia.core.block import Block, Labels
from intarsia.core.client_functions import Layout
from intarsia.core.disclosure import Release, Sends
from intarsia.core.schema import Schema
from intarsia.engines.sums.sealed import layouts
from intarsia.maths.linear import losses
from intarsia.protocols import differential_privacy, evaluation, inference, preprocessing
from intarsia.training.registry import _PERSONAL, ALGORITHMS, algorithm_named

PAGE = Path(__file__).parents[1] / "explanations" / "privacy" / "who-opens-what.md"
BEGIN, END = "<!-- who opens what: begin -->\n", "<!-- who opens what: end -->\n"
SHARED = "every run"
PREDICT = "`predict` over clients"
NAMES = tuple(sorted({*ALGORITHMS, *_PERSONAL}))
_HEAD = (
    "| | server, of each client | server, as totals | owners of the samples "
    "| one holder of the label | all holders of the label | owners of the columns or blocks "
    "| all that take part |\n"
    "|---|---|---|---|---|---|---|---|\n"
)


@dataclass
class Opened:
    """Who opens which fields, as "Reply.field"."""

    replies: set[str] = field(default_factory=set[str])  # the server, of each client
    totals: set[str] = field(default_factory=set[str])  # the server
    samples: set[str] = field(default_factory=set[str])  # owners of samples, their own
    scores: set[str] = field(default_factory=set[str])  # one holder of a sample's label
    labelled: set[str] = field(default_factory=set[str])  # all holders of a sample's label
    parts: set[str] = field(default_factory=set[str])  # owners of columns or blocks, their own
    everybody: set[str] = field(default_factory=set[str])

    @property
    def clients(self) -> set[str]:
        """Return what clients open."""
        return self.samples | self.scores | self.labelled | self.parts | self.everybody

    @property
    def added(self) -> set[str]:
        """Return what is added up: in the mode plain the server reads each client's part of it."""
        return self.totals | self.clients


def opened(sends: Iterable[Sends]) -> Opened:
    """Return who opens what."""
    found = Opened()
    for one in sends:
        for name, layout in layouts(one.reply):
            what = f"{one.reply.__name__}.{name}"
            if one.call == "ask" or layout is Layout.COUNTS:
                found.replies.add(what)
                continue
            if name in one.reveals:
                found.totals.add(what)
            if name in one.opens:
                _of(found, layout).add(what)
    return found


def _of(found: Opened, layout: Layout | None) -> set[str]:
    if layout in (Layout.SAMPLES, Layout.SELECTED):
        return found.samples
    if layout in (Layout.SCORES, Layout.SELECTED_SCORES):
        return found.scores
    if layout is Layout.LABELLED:
        return found.labelled
    return found.everybody if layout is None else found.parts


def shared_sends() -> tuple[Sends, ...]:
    """Return what crosses in the steps that all runs share, whatever they train."""
    x, y = np.arange(8.0).reshape(4, 2), np.array([1.0, -1.0, 1.0, -1.0])
    block = Block(np.arange(4), ("f", "g"), x, y)
    schema = Schema.of({"a": block, "b": block}, Labels("binary", ("no", "yes"), weighted=True))

    def predict(state: Any, block: Block) -> Any:
        return np.zeros((1, block.shape[0]))

    own = evaluation.sends(predict, losses.LOGISTIC, schema, part="test", additive=True)
    schemas = {"train": schema, "test": schema}
    return (*preprocessing.sends(schemas), *differential_privacy.SENDS, *own)


def by_algorithm() -> Mapping[str, Opened]:
    """Return who opens what in a run of each algorithm, beside what every run shares."""
    found = {SHARED: opened(shared_sends())}
    for name in NAMES:
        algorithm = algorithm_named(name)
        sends = [*algorithm.disclosure.sends]
        if name in ALGORITHMS and algorithm.private is not None:
            sends += algorithm.private(Release(1.0, 1.0)).disclosure.sends
        found[name] = opened(sends)
    return {**found, PREDICT: opened(inference.SENDS)}


def table() -> str:
    """Return the table as it stands in the page."""
    return _HEAD + "".join(_lines(by_algorithm()))


def _lines(found: Mapping[str, Opened]) -> Iterator[str]:
    for name, one in found.items():
        title = name if name in (SHARED, PREDICT) else f"`{name}`"
        opening = (one.samples, one.scores, one.labelled, one.parts, one.everybody)
        cells = (one.replies, one.totals, *opening)
        yield f"| {title} | {' | '.join(map(_cell, cells))} |\n"


def _cell(names: set[str]) -> str:
    """Return names by type: `Moments`: count, total."""
    kinds: dict[str, list[str]] = {}
    for name in sorted(names):
        kind, _, own = name.partition(".")
        kinds.setdefault(kind, []).append(own)
    return "; ".join(f"{kind}: {', '.join(own)}" for kind, own in kinds.items()) or "–"


def read(text: str) -> Mapping[str, Opened]:
    """Return what a table says."""
    found: dict[str, Opened] = {}
    for line in text[len(_HEAD) :].splitlines():
        title, *cells = (one.strip() for one in line.strip("|").split("|"))
        columns = [
            {f"{kind}.{own}" for kind, own in _names(cell)} if cell != "–" else set[str]()
            for cell in cells
        ]
        found[title if title == PREDICT else title.strip("`")] = Opened(*columns)
    return found


def _names(cell: str) -> Iterator[tuple[str, str]]:
    for part in cell.split("; "):
        kind, _, names = part.partition(": ")
        yield from ((kind, own) for own in names.split(", "))


def section(page: str) -> str:
    """Return the table that a page has."""
    return page[page.index(BEGIN) + len(BEGIN) : page.index(END)]


def main() -> None:
    """Print the table, or put it into the page."""
    made = table()
    if "--write" not in sys.argv:
        sys.stdout.write(made)
        return
    page = PAGE.read_text(encoding="utf-8")
    whole = page.replace(f"{BEGIN}{section(page)}{END}", f"{BEGIN}{made}{END}")
    PAGE.write_text(whole, encoding="utf-8")


if __name__ == "__main__":
    main()
