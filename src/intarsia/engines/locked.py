"""Totals of sealed contributions: clients seal and open, the server adds what it cannot read.

Each client seals its contribution cell by cell (see `intarsia.privacy.sealing`). What the server
can do with totals is a combination with public factors; the owners of a cell open its pieces and
combine them. A combination of many totals would be costly to open, so that an owner seals its value
anew from time to time.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from intarsia.algorithm import ClientFunction, Layout, evolve
from intarsia.data import Array, ClientId
from intarsia.engines import codec
from intarsia.engines.sealed import SealedField, SealedTotal, counts_of, layouts
from intarsia.engines.totals import EVERYONE, Collector, Geometry
from intarsia.errors import RangeError, ReplayError
from intarsia.privacy.sealing import Piece, Sealing, Stream

__all__ = ["Combination", "CombinationRecord", "LockedTotals", "PieceRecord"]

_WAITING = 16  # pieces that are added at a time
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

    def collector(self, fn: ClientFunction, round: int, asked: Collection[ClientId]) -> Collector:
        """Return a collector for one sum over the clients that are asked."""
        self._sequence += 1
        stream = self.stream(round, fn.name)
        return _LockedCollector(self._geometry, self._sealing, fn, stream, asked)

    def own(self, client: ClientId, field: SealedField) -> tuple[Any, int]:
        """Return a client's own entries of a total."""
        total: Combination = field._value
        if field._layout is None:
            return self._opened(client, total, EVERYONE)
        if field._layout is Layout.BLOCKS:
            mine = self._geometry.own_blocks(client, field._part).items()
            return _known({name: self._opened(client, total, cell) for name, cell in mine})
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
        if field._layout is Layout.BLOCKS:
            there, blocks = _cells(total), self._geometry.blocks(field._part).items()
            return _known({k: self._opened_by_any(total, c) for k, (c, _) in blocks if c in there})
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
            pieces[cell] = _sealed(self._sealing, owner, stream, _array(value), alone=True)
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
        for weight, one in total.terms:
            piece = one.pieces.get(cell)
            if piece is None:
                continue
            _check_name(piece.stream, one.name, cell)
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


class _Plan:
    """What a collector has of one field."""

    __slots__ = ("lead", "number", "pieces", "streams")

    def __init__(self, value: Any, layout: Layout | None) -> None:
        self.number = not isinstance(value, np.ndarray | Mapping)
        by_index = layout not in (None, Layout.BLOCKS)
        self.lead: tuple[int, ...] = value.shape[:-1] if by_index else ()
        self.streams: dict[int, Stream] = {}
        self.pieces: dict[int, list[Piece]] = {}  # by cell, to be added


class _LockedCollector:
    def __init__(
        self,
        geometry: Geometry,
        sealing: Sealing,
        fn: ClientFunction,
        stream: Stream,
        asked: Collection[ClientId],
    ) -> None:
        self._geometry, self._sealing, self._fn, self._stream = geometry, sealing, fn, stream
        self._asked = asked
        self._kind: Any = type(None)
        self._plans: dict[str, _Plan] = {}
        self._last: dict[str, Any] = {}

    def seen(self) -> dict[str, Any]:
        to_bytes = self._sealing.to_bytes
        return {
            name: {str(cell): to_bytes(piece) for cell, piece in value.items()}
            if isinstance(value, dict)
            else value
            for name, value in self._last.items()
        }

    def add(self, client: ClientId, reply: Any) -> int:
        kind: Any = type(reply)
        self._kind = kind
        adder, size_of = self._sealing.adder, self._sealing.size
        size = 0
        own = reply.__dict__
        last = self._last = {}
        for name, layout in layouts(kind):
            value = own[name]
            if value is None:  # nothing from this client
                continue
            if layout is Layout.COUNTS:
                last[name] = value
                size += codec.size(value)
                continue
            plan = self._plans.get(name)
            if plan is None:
                plan = self._plans[name] = _Plan(value, layout)
            sealed = last[name] = {}
            for cell, values in self._pieces(client, layout, value, own):
                stream = plan.streams.get(cell)
                if stream is None:
                    stream = plan.streams[cell] = evolve(self._stream, field=name, cell=cell)
                alone = values.size >= self._sealing.long and self._is_alone(layout, cell)
                piece = sealed[cell] = _sealed(self._sealing, client, stream, values, alone=alone)
                size += size_of(piece)
                waiting = plan.pieces.setdefault(cell, [])
                waiting.append(piece)
                if len(waiting) == _WAITING:
                    waiting[:] = [adder.add(*waiting)]
        return size

    def _pieces(
        self, client: ClientId, layout: Layout | None, value: Any, own: Mapping[str, Any]
    ) -> Iterator[tuple[int, Array]]:
        """Yield what a client contributes to each of its cells; `own` are all fields."""
        if layout is Layout.BLOCKS:
            cells = self._geometry.own_blocks(client, self._fn.part)
            yield from ((cells[name], _array(values)) for name, values in value.items())
            return
        counts = own[counts_of(self._kind)].tolist() if layout is Layout.SELECTED else None
        runs = self._geometry.runs(client, self._fn.part, layout, counts)
        for cell, start, stop in runs:
            yield cell, _array(value if len(runs) == 1 else value[..., start:stop])

    def _is_alone(self, layout: Layout | None, cell: int) -> bool:
        """Return whether one client alone is asked for a cell."""
        if layout is None:
            return len(self._asked) == 1
        owners = self._geometry.owners(self._fn.part, layout, cell)
        return sum(client in self._asked for client in owners) == 1

    def total(self) -> SealedTotal:
        kind, part = self._kind, self._fn.part
        fields: dict[str, SealedField] = {}
        for name, layout in layouts(kind):
            value: Any = None
            if layout is not Layout.COUNTS:
                stream, plan = self._stream, self._plans.get(name)
                key = (stream.session, stream.sequence, stream.function, name)
                cells = LockedCells(key, {}, False, ())
                if plan is not None:
                    added = {
                        cell: waiting[0] if len(waiting) == 1 else self._sealing.adder.add(*waiting)
                        for cell, waiting in plan.pieces.items()
                    }
                    cells = LockedCells(key, added, plan.number, plan.lead)
                value = Combination(((1.0, cells),))
            fields[name] = SealedField(value, layout, part, f"{kind.__name__}.{name}")
        return SealedTotal(kind, fields)


def _sealed(
    sealing: Sealing, client: ClientId, stream: Stream, values: Array, *, alone: bool
) -> Piece:
    """Seal a client's contribution to a cell, to which it is `alone` in contributing.

    Sums entry by entry or by block (norms, objectives, products of columns, networks) and short
    arrays may have any size, so that each number is sealed exactly as two digits: together they
    reach beyond the 60th power of 2. A bound that says nothing, -inf, passes as a number that no
    total of others comes near.

    Raises
    ------
    RangeError
        If a value is larger than that, or not a number.
    """
    if stream.cell > EVERYONE and values.size >= sealing.long:
        sealer = (sealing.alone if alone else sealing.bulk)[client]
        return sealer.seal(client, stream, values)
    piece = sealing.exact[client].seal_digits(client, stream, values, sealing.digits)
    if piece is None:
        raise RangeError(_complaint(values, sealing.digits.room, stream))
    return piece


def _opened(sealing: Sealing, client: ClientId, piece: Piece) -> Array:
    """Return what a client opens of a piece."""
    if piece.digits == 1:
        return sealing.bulk[client].open(piece)
    return sealing.exact[client].open_digits(piece, sealing.digits)


def _check_name(stream: Stream, name: tuple[str, int, str, str], cell: int) -> None:
    """Refuse the piece of one total in the place of another: a replay, or cells in other places.

    Raises
    ------
    ReplayError
        If the piece was sealed under another name.
    """
    session, sequence, function, field = name
    if (
        stream.sequence != sequence
        or stream.cell != cell
        or stream.field != field
        or stream.function != function
        or stream.session != session
    ):
        raise ReplayError(
            f"A piece of {stream} came in place of cell {cell} of {function}.{field} of exchange "
            f"{sequence}; pieces were replayed or changed places: resume the run."
        )


def _complaint(values: Array, room: float, stream: Stream) -> str:
    """Return what is to be said of values of which some have no room."""
    odd = values[~((np.abs(values) < room) | np.isneginf(values))]
    return (
        f"The value {odd[0]:.6g} cannot be sealed in {stream.function}.{stream.field}: it must "
        f"be a number within ±{room:.3g}; check the table for huge values and whether training "
        "diverged, or raise privacy.range."
    )


def _array(value: Any) -> Array:
    return np.asarray(value, np.float64, order="C")


def _known(opened: Mapping[str, tuple[Any, int]]) -> tuple[dict[str, Any], int]:
    """Return the values of the blocks that anybody contributed to, and the bytes of all."""
    values = {name: value for name, (value, _) in opened.items() if value is not None}
    return values, sum(size for _, size in opened.values())


def _cells(total: Combination) -> list[int]:
    return sorted({cell for _, one in total.terms for cell in one.pieces})
