"""Sums of client contributions: where entries lie, what every mode does, and sums in the clear.

`PlainTotals` adds the numbers themselves; it is there for simulation and tests. The modes in which
the server cannot read what it adds are in `intarsia.engines.sums.secure`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from intarsia.core.block import ClientId
from intarsia.core.client_functions import ClientFunction, Layout, Rounding
from intarsia.core.feature_blocks import feature_blocks
from intarsia.core.schema import Index, Schema, compact
from intarsia.engines import codec
from intarsia.engines.sums.sealed import (
    SealedField,
    SealedRecord,
    SealedTotal,
    counts_of,
    layouts,
    origins,
)
from intarsia.errors import AlgorithmError

EVERYONE = -1  # the cell of what is summed entry by entry
FIRST_BLOCK = -2  # that of the first feature block; those of the others follow below it
_ALL = ((EVERYONE, 0, 0),)
_WORD = np.dtype(np.uint32)


class Geometry:
    """Where each client's entries lie in the indices of the federation."""

    def __init__(self, schemas: Mapping[str, Schema]) -> None:
        self.indices: dict[tuple[str, Layout], Index] = {}
        self.schemas = schemas
        everyone = {name: None for schema in schemas.values() for name in schema.clients}
        self.clients = tuple(everyone)
        self._runs: dict[tuple[ClientId, str, Layout], tuple[tuple[int, int, int], ...]] = {}
        self._cells: dict[tuple[ClientId, str], tuple[int, ...]] = {}
        for part, schema in schemas.items():
            self.indices[part, Layout.SAMPLES] = schema.samples
            self.indices[part, Layout.FEATURES] = schema.features
        alike: dict[Any, Any] = {}  # clients with the same columns have the same runs
        for (part, layout), index in self.indices.items():
            for client in index.positions:
                runs = _runs(index, client)
                self._runs[client, part, layout] = runs = alike.setdefault(runs, runs)
                if layout is Layout.SAMPLES:
                    self._cells[client, part] = tuple(cell for cell, *_ in runs)
        self._orders: dict[tuple[ClientId, str], NDArray[np.int64] | None] = {}
        self._read: dict[tuple[Any, ...], tuple[tuple[tuple[int, int, int], ...], Any]] = {}

    def index(self, part: str, layout: Layout) -> Index:
        """Return the index that entries run over."""
        return self.indices[part, Layout.SAMPLES if layout.is_scores else layout]

    def order(self, client: ClientId, part: str) -> NDArray[np.int64] | None:
        """Return a client's samples in the order of its cells of scores; None: in its own."""
        self.runs(client, part, Layout.SCORES, None)
        return self._orders[client, part]

    def entries(self, client: ClientId, part: str) -> int:
        """Return how many numbers at most are sent of one of a client's samples."""
        schema = self.schemas[part]
        return max(1, len(schema.features.own(client)) * schema.labels.outputs)

    def unlike(
        self,
        client: ClientId,
        part: str,
        place: str,
        layout: Layout | None,
        found: tuple[int, ...],
        wanted: tuple[int, ...],
    ) -> AlgorithmError:
        """Return the error about a field ("Reply.field") that does not add up by its shape.

        It says how the field may be declared.
        """
        schema = self.schemas[part]
        sizes = [
            ("fl.PerSample", "rows", len(schema.samples.own(client))),
            ("fl.PerFeature", "columns", len(schema.features.own(client))),
        ]
        fits = [f"{name} (an entry for each of its {of})" for name, of, n in sizes if found == (n,)]
        if layout is None:
            why = "as of the others, since what has no layout is added up entry by entry"
            remedy = "send one shape, or declare it fl.PerSample, fl.PerFeature or fl.PerBlock"
        else:
            why = f"since it is declared to run over the client's {layout.value}"
            remedy = "send an entry for each of these"
        remedy = f"declare it {' or '.join(fits)}" if fits else remedy
        return AlgorithmError(
            f"{place} of client {client!r} has the shape {found}, and {wanted} is expected, {why}; "
            f"{remedy}."
        )

    def owners(self, part: str, layout: Layout | None, cell: int) -> tuple[ClientId, ...]:
        """Return who holds a cell; selected samples are of the samples' cells."""
        if layout is None:
            return self.clients
        if layout is Layout.BLOCKS:
            return tuple(self.blocks(part).values())[FIRST_BLOCK - cell][1]
        if layout.is_scores:
            return self.schemas[part].score_cells[cell].owners
        whole = Layout.SAMPLES if layout is Layout.SELECTED else layout
        return self.indices[part, whole].cells[cell].owners

    def parts(self, part: str, layout: Layout | None, cell: int) -> int:
        """Return by how many readers the samples were divided that a cell is a part of.

        1 where all that hold the label read them.
        """
        if layout is None or layout is Layout.LABELLED or not layout.is_scores:
            return 1
        return max(1, len(self.schemas[part].score_cells[cell].readers))

    def reader(
        self, part: str, cell: int, asked: Collection[ClientId] | None = None
    ) -> ClientId | None:
        """Return who opens a cell of scores, of some clients (None: of all)."""
        return self.schemas[part].score_cells[cell].reader(asked)

    @cache  # noqa: B019 - there is one for each engine, and it goes with it
    def blocks(self, part: str) -> Mapping[str, tuple[int, tuple[ClientId, ...]]]:
        """Return the cell and the owners of each feature block."""
        found = feature_blocks(self.schemas[part]).values()
        return {one.name: (FIRST_BLOCK - at, one.owners) for at, one in enumerate(found)}

    def owner_sets(self) -> set[tuple[ClientId, ...]]:
        """Return all who own a cell together, in any part and layout, each sorted."""
        found = [self.clients]
        for (part, _), index in self.indices.items():
            found += [cell.owners for cell in index.cells]
            found += [owners for _, owners in self.blocks(part).values()]
        return {tuple(sorted(owners)) for owners in found}

    def own_blocks(self, client: ClientId, part: str) -> Mapping[str, int]:
        """Return the cells of the feature blocks that a client holds."""
        return {
            name: cell for name, (cell, owners) in self.blocks(part).items() if client in owners
        }

    def cells(
        self, client: ClientId, part: str, layout: Layout = Layout.SELECTED
    ) -> tuple[int, ...]:
        """Return the numbers of a client's cells of samples, or of scores."""
        if layout.is_scores:
            return self.schemas[part].score_cells_of[client]
        return self._cells[client, part]

    def runs(
        self, client: ClientId, part: str, layout: Layout | None, counts: Sequence[int] | None
    ) -> tuple[tuple[int, int, int], ...]:
        """Return cell, start and stop of each of a client's cells, in the client's order.

        `counts` are the numbers of selected samples by cell, for the layout of those.
        """
        if layout is None:
            return _ALL
        if layout is Layout.LABELLED:
            layout = Layout.SCORES
        if layout is Layout.SCORES and (client, part, layout) not in self._runs:
            order, stops = self.schemas[part].score_order(client)
            same = bool((np.diff(order, prepend=-1) == 1).all())
            self._orders[client, part] = None if same else order
            edges = [0, *stops.tolist()]
            cells = self.cells(client, part, layout)
            self._runs[client, part, layout] = tuple(zip(cells, edges[:-1], edges[1:], strict=True))
        if not layout.is_selected:
            return self._runs[client, part, layout]
        assert counts is not None
        found: list[tuple[int, int, int]] = []
        start = 0
        for cell, count in zip(self.cells(client, part, layout), counts, strict=True):
            found.append((cell, start, start + count))
            start += count
        return tuple(found)

    def own_cells(
        self,
        client: ClientId,
        part: str,
        layout: Layout | None,
        asked: Collection[ClientId] | None = None,
    ) -> Sequence[tuple[int, int, int]]:
        """Return the cells of which a client may open totals, with start and stop.

        `asked` are the clients of the exchange (None: all), of which one opens each score, or all
        do that hold its label.
        """
        if layout is Layout.BLOCKS:
            return [(cell, 0, 0) for cell in self.own_blocks(client, part).values()]
        if layout is not None and layout.is_scores:
            return self._scores(client, part, layout, asked)[0]
        # of selected samples a client opens all: the total's cells are those of the samples
        whole = Layout.SAMPLES if layout is Layout.SELECTED else layout
        return self.runs(client, part, whole, None)

    def hidden(
        self, client: ClientId, part: str, layout: Layout, asked: Collection[ClientId] | None
    ) -> Any:
        """Return the places of a client's samples whose scores it does not open; None: of none."""
        return self._scores(client, part, layout, asked)[1]

    def _scores(
        self, client: ClientId, part: str, layout: Layout, asked: Collection[ClientId] | None
    ) -> tuple[tuple[tuple[int, int, int], ...], Any]:
        """Return the cells of scores that a client opens, and the places of all others."""
        every = layout is Layout.LABELLED  # whoever is asked beside it
        key = client, part, every, None if every or asked is None else frozenset(asked)
        found = self._read.get(key)
        if found is None:
            if len(self._read) > _CACHED:
                self._read.clear()
            runs, order = self.runs(client, part, Layout.SCORES, None), self.order(client, part)
            cells, there = self.schemas[part].score_cells, [client] if every else key[3]
            own = tuple(run for run in runs if cells[run[0]].reader(there) == client)
            others = [np.arange(start, stop) for _, start, stop in {*runs}.difference(own)]
            places: Any = None
            if others:
                joined = np.concatenate(others)
                closed = np.zeros(runs[-1][2], bool)
                closed[joined if order is None else order[joined]] = True
                places = compact(np.flatnonzero(closed))
            found = self._read[key] = own, places
        return found


_CACHED = 1 << 12


def _runs(index: Index, client: ClientId) -> tuple[tuple[int, int, int], ...]:
    found: list[tuple[int, int, int]] = []
    start = 0
    for number in index.cells_of[client].tolist():
        stop = start + index.cells[number].stop - index.cells[number].start
        found.append((number, start, stop))
        start = stop
    return tuple(found)


class Collector(Protocol):
    """Takes the replies to one sum."""

    def add(self, client: ClientId, reply: Any, *, own: bool = False) -> int:
        """Take a client's reply; return the bytes that it had on the way.

        Its arrays may be changed if they are the collector's `own`.
        """

    def seen(self) -> dict[str, Any]:
        """Return the fields of the last reply as the server got them."""

    def total(self) -> SealedTotal:
        """Return the sealed total of the replies so far."""


class Totals(Protocol):
    """A mode of adding up."""

    mode: str

    def rounding(self, entries: int) -> Rounding:
        """Return how exact a total of so many entries is."""

    def collector(
        self, fn: ClientFunction, round: int, asked: Collection[ClientId], told: str = ""
    ) -> Collector:
        """Return a collector for one sum over the clients that are asked."""

    def own(
        self, client: ClientId, field: SealedField, asked: Collection[ClientId]
    ) -> tuple[Any, int]:
        """Return a client's own entries of a total, as the client opens them, and the bytes sent.

        `asked` are the clients of the exchange. The bytes are those of the field beside what an
        open array would take.
        """

    def reveal(self, field: SealedField) -> tuple[Any, int]:
        """Return a total opened to the server, and the bytes that crossed for it."""

    def refreshed(
        self, field: SealedField, round: int, asked: Collection[ClientId] | None = None
    ) -> tuple[SealedField, int]:
        """Return a total that owners sealed anew where it was costly to open, and the bytes.

        `asked` are the clients that are to open it (None: any).
        """

    def held(self, field: SealedField) -> Any:
        """Return what the server holds of a total: numbers in the clear, else bytes by cell."""

    def record(self, value: Any) -> Any:
        """Return what stands behind a field as something that the codec writes."""

    def restored(self, record: Any) -> Any:
        """Return what `record` was given."""


def to_record(totals: Totals, field: SealedField) -> SealedRecord:
    """Return a sealed field as a record that the codec writes."""
    layout = "" if field.layout is None else field.layout.value
    return SealedRecord(totals.record(field.content), layout, field.part, field.name)


def from_record(totals: Totals, record: SealedRecord) -> SealedField:
    """Return the sealed field that a record was made of."""
    layout = Layout(record.layout) if record.layout else None
    return SealedField(totals.restored(record.value), layout, record.part, record.name)


class PlainTotals:
    """Adds the numbers themselves."""

    mode = "plain"

    def __init__(self, geometry: Geometry) -> None:
        self._geometry = geometry

    def rounding(self, entries: int) -> Rounding:
        """Return that nothing is rounded."""
        return Rounding(0.0, 0.0)

    def collector(
        self, fn: ClientFunction, round: int, asked: Collection[ClientId], told: str = ""
    ) -> Collector:
        """Return a collector for one sum over the clients that are asked."""
        return _PlainCollector(self._geometry, fn.part)

    def own(
        self, client: ClientId, field: SealedField, asked: Collection[ClientId]
    ) -> tuple[Any, int]:
        """Return a client's own entries of a total."""
        layout, value = field.layout, field.content
        if layout is None:
            return value, 0
        if layout is Layout.BLOCKS:
            mine = self._geometry.own_blocks(client, field.part)
            return {name: value[name] for name in mine if name in value}, 0
        geometry, part = self._geometry, field.part
        if layout.is_selected:
            # of some cells nobody may have selected any
            cells = geometry.own_cells(client, part, layout, asked)
            found = [value[cell] for cell, *_ in cells if cell in (value or {})] or [np.zeros(0)]
            value = found[0] if len(found) == 1 else np.concatenate(found, axis=-1)
        else:
            value = value[..., geometry.index(part, layout).positions[client]]
            scores = layout.is_whole_scores
            hidden = geometry.hidden(client, part, layout, asked) if scores else None
            if hidden is not None:
                value = value.copy()
                value[..., hidden] = 0
        # as it would come from a wire: the order in memory decides how sums round
        return np.ascontiguousarray(value), 0

    def reveal(self, field: SealedField) -> tuple[Any, int]:
        """Return the total itself."""
        return field.content, 0

    def refreshed(
        self, field: SealedField, round: int, asked: Collection[ClientId] | None = None
    ) -> tuple[SealedField, int]:
        """Return the total as it is."""
        return field, 0

    def held(self, field: SealedField) -> Any:
        """Return the numbers themselves."""
        value = field.content
        return {str(cell): one for cell, one in value.items()} if isinstance(value, dict) else value

    def record(self, value: Any) -> Any:
        """Return the array itself."""
        return value

    def restored(self, record: Any) -> Any:
        """Return the array itself."""
        return _ByBlock(record) if isinstance(record, dict) else record


class _ByBlock(dict[str, Any]):
    """A total by block, with the arithmetic of arrays: a block that one lacks counts as 0 there."""

    def __add__(self, other: Mapping[str, Any]) -> _ByBlock:
        both = {name: one + other[name] if name in other else one for name, one in self.items()}
        return _ByBlock({**other, **both})

    def __sub__(self, other: Mapping[str, Any]) -> _ByBlock:
        return self + {name: -one for name, one in other.items()}

    def __mul__(self, factor: float) -> _ByBlock:
        return _ByBlock({name: one * factor for name, one in self.items()})


class _PlainCollector:
    def __init__(self, geometry: Geometry, part: str) -> None:
        self._geometry, self._part = geometry, part
        self._kind: Any = type(None)
        self._plan: tuple[tuple[str, Layout | None], ...] = ()
        self._totals: dict[str, Any] = {}
        self._summed: set[tuple[str, int]] = set()  # fields and cells whose total may be changed
        self._last: Any = None

    def seen(self) -> dict[str, Any]:
        sent = self._last.__dict__.items()
        return {name: value for name, value in sent if value is not None}

    def add(self, client: ClientId, reply: Any, *, own: bool = False) -> int:
        totals, geometry, part = self._totals, self._geometry, self._part
        if self._last is None:
            self._kind = type(reply)
            self._plan = layouts(self._kind)
        self._last = reply
        sent = reply.__dict__
        for name, layout in self._plan:
            value = sent[name]
            if value is None:  # nothing from this client
                continue
            if isinstance(value, np.ndarray) and value.dtype == _WORD:
                value = value.astype(np.float64)
            first = name not in totals
            if layout is None:
                if first:
                    totals[name] = value.copy() if isinstance(value, np.ndarray) else value
                else:
                    if getattr(value, "shape", ()) != getattr(totals[name], "shape", ()):
                        raise self._unlike(client, name, layout, value, totals[name])
                    totals[name] += value
            elif layout is Layout.COUNTS:
                totals[name] = None
            elif layout is Layout.BLOCKS:
                totals[name] = totals.get(name, _ByBlock()) + value
            elif layout.is_selected:
                counts = sent[counts_of(self._kind)].tolist()
                cells = totals.setdefault(name, {})
                for cell, start, stop in geometry.runs(client, part, layout, counts):
                    self._add_piece(name, cells, cell, value[..., start:stop], own=own)
            else:
                index = geometry.index(part, layout)
                if first:
                    lead = getattr(value, "shape", ())[:-1]
                    totals[name] = np.zeros((*lead, len(index)))
                total, where = totals[name], index.positions[client]
                own_part = total[..., where]
                if getattr(value, "shape", ()) != own_part.shape:  # or numpy would repeat it
                    raise self._unlike(client, name, layout, value, own_part)
                own_part += value
                if not isinstance(where, slice):  # of which it is a view
                    total[..., where] = own_part
        return codec.size(reply)

    def _add_piece(
        self, name: str, cells: dict[int, Any], cell: int, piece: Any, *, own: bool
    ) -> None:
        """Add to the total of a cell, in place where one of both may be changed."""
        total, into = cells.get(cell), None
        if total is None:
            cells[cell] = piece
        else:
            if total.shape == piece.shape and total.dtype == piece.dtype:
                into = total if (name, cell) in self._summed else piece if own else None
            cells[cell] = np.add(total, piece, out=into)
        if own or total is not None:
            self._summed.add((name, cell))

    def _unlike(
        self, client: ClientId, name: str, layout: Layout | None, value: Any, wanted: Any
    ) -> AlgorithmError:
        shapes = getattr(value, "shape", ()), getattr(wanted, "shape", ())
        place = f"{self._kind.__name__}.{name}"
        return self._geometry.unlike(client, self._part, place, layout, *shapes)

    def total(self) -> SealedTotal:
        kind, totals, part = self._kind, self._totals, self._part
        fields = {
            name: SealedField(totals.get(name), layout, part, origin)
            for name, origin, layout in origins(kind)
        }
        return SealedTotal(kind, fields)
