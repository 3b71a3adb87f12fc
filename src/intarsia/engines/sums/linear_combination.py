"""Linear combinations of sealed totals with public factors: all that a server can compute of them.

They are written into checkpoints, and on the way to a site, as records of bytes by cell.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from intarsia.core.block import ClientId
from intarsia.privacy.secure_aggregation.protocol import Piece, Stream


@dataclass(frozen=True, eq=False)
class LockedCells:
    """A sealed total: its pieces by cell."""

    name: tuple[str, int, str, str]  # session, sequence, function, field: no other total has it
    pieces: Mapping[int, Piece]
    number: bool  # a single number, not an array
    lead: tuple[int, ...]  # the axes before the last, where the last is laid out by an index


class Combination:
    """A sum of sealed totals with public factors: all that the server can do with them."""

    __slots__ = ("sealed_anew", "terms")

    def __init__(self, terms: tuple[tuple[float, LockedCells], ...]) -> None:
        self.terms = terms
        self.sealed_anew: Combination | None = None  # the same values in one term, once asked for

    def __add__(self, other: Combination) -> Combination:
        # One term for each total: a mean that moves would else double its terms in each round.
        found: dict[tuple[str, int, str, str], tuple[float, LockedCells]] = {}
        for weight, cells in (*self.terms, *other.terms):
            before = found.get(cells.name)
            found[cells.name] = (weight if before is None else before[0] + weight, cells)
        kept = tuple(term for term in found.values() if term[0] != 0.0)
        return Combination(kept or ((0.0, self.terms[0][1]),))

    def __sub__(self, other: Combination) -> Combination:
        return self + other * -1.0

    def __mul__(self, factor: float) -> Combination:
        return Combination(tuple((weight * float(factor), cells) for weight, cells in self.terms))

    def pieces(self, cell: int) -> list[tuple[float, Piece]]:
        """Return the factors and pieces of a cell."""
        return [(weight, one.pieces[cell]) for weight, one in self.terms if cell in one.pieces]

    def restricted(self, cells: Collection[int]) -> Combination:
        """Return the same with the pieces of some cells alone."""
        return Combination(
            tuple(
                (weight, replace(one, pieces={k: p for k, p in one.pieces.items() if k in cells}))
                for weight, one in self.terms
            )
        )


@dataclass(frozen=True)
class PieceRecord:
    """A sealed piece in a checkpoint."""

    session: str
    numbers: tuple[int, ...]  # sequence, round, cell
    texts: tuple[str, ...]  # function, field
    shape: tuple[int, ...]
    contributors: tuple[str, ...]
    digits: int
    content: bytes


@dataclass(frozen=True)
class CombinationRecord:
    """A combination in a checkpoint."""

    weights: tuple[float, ...]
    names: tuple[tuple[str, int, str, str], ...]
    numbers: tuple[bool, ...]
    leads: tuple[tuple[int, ...], ...]
    cells: tuple[tuple[PieceRecord, ...], ...]


class Owners(Protocol):
    """Who opens the cells of totals: clients, which have the keys."""

    def is_there(self, client: ClientId) -> bool:
        """Return whether a client can be asked."""
        ...

    def opened_cells(
        self, openers: Mapping[int, ClientId], total: Combination
    ) -> Mapping[int, tuple[Any, int]]:
        """Return each cell as its opener opens it, and its bytes beside it."""
        ...

    def sealed_anew(
        self, owners: Mapping[int, ClientId], total: Combination, streams: Mapping[int, Stream]
    ) -> Mapping[int, tuple[Piece, int]]:
        """Return each cell as its owner seals it under another name, and the bytes of it."""
        ...
