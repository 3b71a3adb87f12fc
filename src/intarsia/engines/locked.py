"""Totals of sealed contributions: clients seal and open, the server adds what it cannot read.

Each client seals its contribution cell by cell (see `intarsia.privacy.sealing`). What the server
can do with totals is a combination with public factors; the owners of a cell open its pieces and
combine them. A combination of many totals would be costly to open, so that an owner seals its value
anew from time to time.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from intarsia.algorithm import ClientFunction, Layout, evolve
from intarsia.data import Array, ClientId
from intarsia.engines import codec
from intarsia.engines.sealed import SealedField, SealedTotal, counts_of, layouts
from intarsia.engines.totals import EVERYONE, Collector, Geometry
from intarsia.errors import RangeError
from intarsia.maths.fixed_point_words import joined_digits, split_digits
from intarsia.privacy.sealing import Piece, Sealing, Stream

__all__ = ["Combination", "CombinationRecord", "LockedTotals", "PieceRecord"]

_MOST = 2.0**50  # of the low digit's room, in the high one: below it stands -inf
_TERMS = 4  # of a combination, above which an owner seals its value anew


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


class LockedTotals:
    """Lets clients seal what they contribute, and open what is theirs.

    Parameters
    ----------
    geometry
        Where each client's entries lie.
    sealing
        Each client's sealer, and the server's adder.
    """

    def __init__(self, geometry: Geometry, sealing: Sealing) -> None:
        self.mode = sealing.mode
        self._geometry = geometry
        self._sealing = sealing
        self._session = secrets.token_hex(8)
        self._sequence = 0

    def stream(self, round: int, function: str, field: str = "", cell: int = 0) -> Stream:
        """Return the name of a total of the present exchange."""
        return Stream(self._session, self._sequence, round, function, field, cell)

    def collector(self, fn: ClientFunction, round: int) -> Collector:
        """Return a collector for one sum."""
        self._sequence += 1
        return _LockedCollector(self._geometry, self._sealing, fn, self.stream(round, fn.name))

    def own(self, client: ClientId, field: SealedField) -> tuple[Any, int]:
        """Return a client's own entries of a total."""
        total: Combination = field._value
        if field._layout is None:
            return self._opened(client, total, EVERYONE)
        selected = field._layout is Layout.SELECTED
        layout = Layout.SAMPLES if selected else field._layout
        found: list[Array] = []
        extra = 0
        lead = total.terms[0][1].lead
        for cell, start, stop in self._geometry.runs(client, field._part, layout, None):
            value, more = self._opened(client, total, cell)
            if value is None:  # no owner of these entries contributed
                value = np.zeros((*lead, 0 if selected else stop - start))
            extra += more
            found.append(value)
        if not found:
            return np.zeros((*lead, 0)), extra
        return (found[0] if len(found) == 1 else np.concatenate(found, axis=-1)), extra

    def reveal(self, field: SealedField) -> tuple[Any, int]:
        """Ask one contributor of each cell to open it to the server."""
        total: Combination = field._value
        if field._layout is None:
            return self._opened_by_any(total, EVERYONE)
        if field._layout is Layout.SELECTED:
            found = {cell: self._opened_by_any(total, cell) for cell in _cells(total)}
            return {cell: value for cell, (value, _) in found.items()}, sum(
                size for _, size in found.values()
            )
        index = self._geometry.indices[field._part, field._layout]
        whole = np.zeros((*total.terms[0][1].lead, len(index)))
        size = 0
        for cell in _cells(total):
            value, more = self._opened_by_any(total, cell)
            size += more
            whole[..., index.cells[cell].start : index.cells[cell].stop] = value
        return whole, size

    def refreshed(self, field: SealedField, round: int) -> tuple[SealedField, int]:
        """Let an owner of each cell seal a total anew that has many terms.

        The field itself stays as it is: what else holds it, or does no longer since a run was
        resumed, must not show in the bits.
        """
        total: Combination = field._value
        if len(total.terms) <= _TERMS:
            return field, 0
        size = 0
        if total.sealed_anew is None:
            total.sealed_anew, size = self._sealed_anew(total, field._name, round)
        return SealedField(total.sealed_anew, field._layout, field._part, field._name), size

    def _sealed_anew(self, total: Combination, name: str, round: int) -> tuple[Combination, int]:
        self._sequence += 1
        pieces: dict[int, Piece] = {}
        size = 0
        for cell in _cells(total):
            owner = total.pieces(cell)[0][1].contributors[0]
            value, more = self._opened(owner, total, cell)
            stream = self.stream(round, "refresh", name, cell)
            pieces[cell] = _sealed(self._sealing, owner, stream, _array(value))
            size += more + self._sealing.size(pieces[cell])
        first = total.terms[0][1]
        key = (self._session, self._sequence, "refresh", name)
        return Combination(((1.0, LockedCells(key, pieces, first.number, first.lead)),)), size

    def held(self, field: SealedField) -> Any:
        """Return the factors and the bytes of the pieces that the server holds."""
        return tuple(
            (weight, {str(cell): self._sealing.to_bytes(p) for cell, p in one.pieces.items()})
            for weight, one in field._value.terms
        )

    def record(self, value: Any) -> Any:
        """Return a combination as something that the codec writes."""
        terms: list[tuple[PieceRecord, ...]] = []
        for _, cells in value.terms:
            terms.append(tuple(self._record(piece) for piece in cells.pieces.values()))
        return CombinationRecord(
            tuple(weight for weight, _ in value.terms),
            tuple(cells.name for _, cells in value.terms),
            tuple(cells.number for _, cells in value.terms),
            tuple(cells.lead for _, cells in value.terms),
            tuple(terms),
        )

    def restored(self, record: Any) -> Any:
        """Return the combination that `record` was given."""
        found: list[tuple[float, LockedCells]] = []
        for weight, name, number, lead, cells in zip(
            record.weights, record.names, record.numbers, record.leads, record.cells, strict=True
        ):
            pieces = {one.numbers[2]: self._piece(one) for one in cells}
            found.append((weight, LockedCells(name, pieces, number, lead)))
        return Combination(tuple(found))

    def _opened(self, client: ClientId, total: Combination, cell: int) -> tuple[Any, int]:
        """Return a client's view of one cell (None: nobody contributed) and its bytes beside it."""
        value: Any = None
        extra = 0
        for weight, piece in total.pieces(cell):
            opened = _opened(self._sealing, client, piece)
            extra += self._sealing.size(piece) - opened.nbytes
            part = opened if weight == 1.0 else opened * weight
            value = part if value is None else value + part
        if value is not None and total.terms[0][1].number:
            return float(value), extra
        return value, extra

    def _opened_by_any(self, total: Combination, cell: int) -> tuple[Any, int]:
        opener = total.pieces(cell)[0][1].contributors[0]
        value, extra = self._opened(opener, total, cell)
        return value, extra + 2 * int(np.size(value)) * 8

    def _record(self, piece: Piece) -> PieceRecord:
        stream = piece.stream
        return PieceRecord(
            stream.session,
            (stream.sequence, stream.round, stream.cell),
            (stream.function, stream.field),
            piece.shape,
            piece.contributors,
            piece.digits,
            self._sealing.to_bytes(piece),
        )

    def _piece(self, record: PieceRecord) -> Piece:
        sequence, round, cell = record.numbers
        function, field = record.texts
        stream = Stream(record.session, sequence, round, function, field, cell)
        empty = Piece(stream, record.shape, record.contributors, None, record.digits)
        return self._sealing.from_bytes(empty, record.content)


class _LockedCollector:
    def __init__(
        self, geometry: Geometry, sealing: Sealing, fn: ClientFunction, stream: Stream
    ) -> None:
        self._geometry, self._sealing, self._fn, self._stream = geometry, sealing, fn, stream
        self._kind: Any = type(None)
        self._pieces: dict[str, dict[int, Piece]] = {}
        self._numbers: dict[str, bool] = {}
        self._leads: dict[str, tuple[int, ...]] = {}
        self._last: dict[str, Any] = {}
        self._streams: dict[tuple[str, int], Stream] = {}

    def seen(self) -> dict[str, Any]:
        to_bytes = self._sealing.to_bytes
        return {
            name: {str(cell): to_bytes(piece) for cell, piece in value.items()}
            if isinstance(value, dict)
            else value
            for name, value in self._last.items()
        }

    def add(self, client: ClientId, reply: Any) -> int:
        self._kind = type(reply)
        size = 0
        own = reply.__dict__
        self._last = {}
        for name, layout in layouts(self._kind):
            value = own[name]
            if value is None:  # nothing from this client
                self._pieces.setdefault(name, {})
                continue
            if layout is Layout.COUNTS:
                self._last[name] = value
                size += codec.size(value)
                continue
            counts = None
            if layout is Layout.SELECTED:
                counts = own[counts_of(self._kind)].tolist()
            pieces = self._pieces.setdefault(name, {})
            self._numbers[name] = not isinstance(value, np.ndarray)
            self._leads[name] = () if layout is None else value.shape[:-1]
            for cell, start, stop in self._geometry.runs(client, self._fn.part, layout, counts):
                part = _array(value if layout is None else value[..., start:stop])
                piece = self._seal(client, name, cell, part)
                self._last.setdefault(name, {})[cell] = piece
                size += self._sealing.size(piece)
                if cell in pieces:
                    piece = self._sealing.adder.add(pieces[cell], piece)
                pieces[cell] = piece
        return size

    def _seal(self, client: ClientId, field: str, cell: int, values: Array) -> Piece:
        named = self._streams.get((field, cell))
        if named is None:
            named = self._streams[field, cell] = replace(self._stream, field=field, cell=cell)
        return _sealed(self._sealing, client, named, values)

    def total(self) -> SealedTotal:
        kind, part = self._kind, self._fn.part
        fields: dict[str, SealedField] = {}
        for name, layout in layouts(kind):
            value: Any = None
            if layout is not Layout.COUNTS:
                stream = self._stream
                cells = LockedCells(
                    (stream.session, stream.sequence, stream.function, name),
                    self._pieces[name],
                    self._numbers.get(name, False),
                    self._leads.get(name, ()),
                )
                value = Combination(((1.0, cells),))
            fields[name] = SealedField(value, layout, part, f"{kind.__name__}.{name}")
        return SealedTotal(kind, fields)


def _sealed(sealing: Sealing, client: ClientId, stream: Stream, values: Array) -> Piece:
    """Seal a client's contribution to a cell.

    Sums entry by entry (norms, objectives, products of columns) and short arrays may have any size,
    so that each number is sealed exactly as two digits: together they reach beyond the 60th power
    of 2. A bound that says nothing, -inf, passes as a number that no total of others comes near.

    Raises
    ------
    RangeError
        If a value is larger than that, or not a number.
    """
    if stream.cell != EVERYONE and values.size >= sealing.long:
        return sealing.bulk[client].seal(client, stream, values)
    room = sealing.digit * _MOST / (2 * len(sealing.exact))
    digits = np.empty((2, *values.shape))
    flat = digits.reshape(2, -1)
    if not split_digits(values.reshape(-1), sealing.digit, sealing.unit, room, flat):  # nor for nan
        bounded = _with_bounds(values, room, -sealing.digit * _MOST, stream)
        split_digits(bounded.reshape(-1), sealing.digit, sealing.unit, room, flat)
    return evolve(sealing.exact[client].seal(client, stream, digits), digits=2)


def _opened(sealing: Sealing, client: ClientId, piece: Piece) -> Array:
    """Return what a client opens of a piece."""
    if piece.digits == 1:
        return sealing.bulk[client].open(piece)
    digits = sealing.exact[client].open(piece)
    found = np.empty(digits.shape[1:])
    factor, least = sealing.digit / sealing.unit, -sealing.digit * _MOST / 2
    joined_digits(digits.reshape(2, -1), factor, least, found.reshape(-1))
    return found


def _with_bounds(values: Array, room: float, bound: float, stream: Stream) -> Array:
    """Return values with `bound` in place of -inf; refuse others that have no room."""
    odd = values[~((np.abs(values) < room) | np.isneginf(values))]
    if len(odd):
        raise RangeError(
            f"The value {odd[0]:.6g} cannot be sealed in {stream.function}.{stream.field}: it must "
            f"be a number within ±{room:.3g}; check the table for huge values and whether training "
            "diverged, or raise privacy.range."
        )
    return np.where(np.isneginf(values), bound, values)


def _array(value: Any) -> Array:
    return np.asarray(value, np.float64, order="C")


def _cells(total: Combination) -> list[int]:
    return sorted({cell for _, one in total.terms for cell in one.pieces})
