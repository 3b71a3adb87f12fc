"""How the contributions to one sum are collected: sealed cell by cell, and added up unread."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from intarsia.core.algorithm import ClientFunction, Layout, evolve
from intarsia.core.block import Array, ClientId
from intarsia.engines import codec
from intarsia.engines.sums.linear_combination import Combination, LockedCells
from intarsia.engines.sums.plain import EVERYONE, Geometry
from intarsia.engines.sums.sealed import SealedField, SealedTotal, counts_of, layouts
from intarsia.errors import RangeError, TamperedError
from intarsia.privacy.secure_aggregation.protocol import Piece, Sealing, Stream

__all__ = ["LockedCollector", "array_of", "sealed"]

_WAITING = 16  # pieces that are added at a time


class _Plan:
    """What a collector has of one field."""

    __slots__ = ("lead", "number", "pieces", "streams")

    def __init__(self, number: bool, lead: tuple[int, ...]) -> None:
        self.number, self.lead = number, lead
        self.streams: dict[int, Stream] = {}
        self.pieces: dict[int, list[Piece]] = {}  # by cell, to be added


class LockedCollector:
    """Takes the replies to one sum: seals them, or takes what sites have sealed."""

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
        """Return the fields of the last reply as the server got them."""
        to_bytes = self._sealing.to_bytes
        return {
            name: {str(cell): to_bytes(piece) for cell, piece in value.items()}
            if isinstance(value, dict)
            else value
            for name, value in self._last.items()
        }

    def add(self, client: ClientId, reply: Any) -> int:
        """Seal a client's reply and take it; return the bytes that it had on the way."""
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
                by_index = layout not in (None, Layout.BLOCKS)
                plan = self._plans[name] = _Plan(
                    not isinstance(value, np.ndarray | Mapping),
                    value.shape[:-1] if by_index else (),
                )
            own_cells = last[name] = {}
            for cell, values in self._pieces(client, layout, value, own):
                stream = plan.streams.get(cell)
                if stream is None:
                    stream = plan.streams[cell] = evolve(self._stream, field=name, cell=cell)
                alone = values.size >= self._sealing.long and self._is_alone(layout, cell)
                piece = own_cells[cell] = sealed(self._sealing, client, stream, values, alone=alone)
                size += size_of(piece)
                waiting = plan.pieces.setdefault(cell, [])
                waiting.append(piece)
                if len(waiting) == _WAITING:
                    waiting[:] = [adder.add(*waiting)]
        return size

    def take(self, client: ClientId, kind: type, fields: Mapping[str, Any]) -> None:
        """Take what a site has sealed of its reply: combinations by field, and counts.

        Raises
        ------
        TamperedError
            If a piece is of another total, or of another client.
        """
        self._kind = kind
        last = self._last = {}
        for name, layout in layouts(kind):
            value = fields.get(name)
            if value is None:  # nothing from this client
                continue
            if layout is Layout.COUNTS:
                last[name] = value
                continue
            (_, cells), *_ = value.terms
            plan = self._plans.get(name)
            if plan is None:
                plan = self._plans[name] = _Plan(cells.number, cells.lead)
            last[name] = dict(cells.pieces)
            for cell, piece in cells.pieces.items():
                stream = evolve(self._stream, field=name, cell=cell)
                if piece.stream != stream or piece.contributors != (client,):
                    raise TamperedError(
                        f"A piece of {piece.stream} by {list(piece.contributors)} came where "
                        f"{client!r} was asked for {stream}; it was altered: resume the run."
                    )
                waiting = plan.pieces.setdefault(cell, [])
                waiting.append(piece)
                if len(waiting) == _WAITING:
                    waiting[:] = [self._sealing.adder.add(*waiting)]

    def _pieces(
        self, client: ClientId, layout: Layout | None, value: Any, own: Mapping[str, Any]
    ) -> Iterator[tuple[int, Array]]:
        """Yield what a client contributes to each of its cells; `own` are all fields."""
        if layout is Layout.BLOCKS:
            cells = self._geometry.own_blocks(client, self._fn.part)
            yield from ((cells[name], array_of(values)) for name, values in value.items())
            return
        counts = own[counts_of(self._kind)].tolist() if layout is Layout.SELECTED else None
        runs = self._geometry.runs(client, self._fn.part, layout, counts)
        for cell, start, stop in runs:
            yield cell, array_of(value if len(runs) == 1 else value[..., start:stop])

    def _is_alone(self, layout: Layout | None, cell: int) -> bool:
        """Return whether one client alone is asked for a cell."""
        if layout is None:
            return len(self._asked) == 1
        owners = self._geometry.owners(self._fn.part, layout, cell)
        return sum(client in self._asked for client in owners) == 1

    def total(self) -> SealedTotal:
        """Return the sealed total of the replies so far."""
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


def sealed(
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


def _complaint(values: Array, room: float, stream: Stream) -> str:
    """Return what is to be said of values of which some have no room."""
    odd = values[~((np.abs(values) < room) | np.isneginf(values))]
    return (
        f"The value {odd[0]:.6g} cannot be sealed in {stream.function}.{stream.field}: it must "
        f"be a number within ±{room:.3g}; check the table for huge values and whether training "
        "diverged, or raise privacy.range."
    )


def array_of(value: Any) -> Array:
    """Return a value as an array of numbers."""
    return np.asarray(value, np.float64, order="C")
