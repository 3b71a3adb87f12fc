"""Secure aggregation: clients seal contributions and open totals, the server adds without reading.

Each client seals its contribution cell by cell (see
`intarsia.privacy.secure_aggregation.protocol`). What the server can do with totals is a combination
with public factors; the owners of a cell open its pieces and combine them. A combination of many
totals would be costly to open, so that an owner seals its value anew from time to time. They are
written into checkpoints, and on the way to a site, as records of bytes by cell.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from intarsia.core.block import Array, ClientId
from intarsia.core.client_functions import ClientFunction, Layout, Rounding, evolve
from intarsia.engines import codec
from intarsia.engines.sums.plain import EVERYONE, Geometry
from intarsia.engines.sums.sealed import (
    SealedField,
    SealedRecord,
    SealedTotal,
    counts_of,
    layouts,
    origins,
)
from intarsia.errors import RangeError, ReplayError, TamperedError
from intarsia.privacy.secure_aggregation.protocol import (
    Aggregator,
    Parties,
    Piece,
    Sealing,
    Stream,
)

REFRESH = "refresh"  # in the place of a function: an owner sealed a combination anew
_WAITING = 16  # pieces that are added at a time
_WORDS = (np.dtype(np.uint64), np.dtype(np.uint32))
_GROUPS = 256  # sets of clients whose cells' contributors are kept
_TERMS = 4  # of a combination, above which an owner seals its value anew


@dataclass(frozen=True, eq=False)
class SecureCells:
    """A sealed total: its pieces by cell."""

    name: tuple[str, int, str, str]  # session, sequence, function, field: no other total has it
    pieces: Mapping[int, Piece]
    number: bool  # a single number, not an array
    lead: tuple[int, ...]  # the axes before the last, where the last is laid out by an index


class Combination:
    """A sum of sealed totals with public factors: all that a server can compute of them."""

    __slots__ = ("sealed_anew", "terms")

    def __init__(self, terms: tuple[tuple[float, SecureCells], ...]) -> None:
        self.terms = terms
        self.sealed_anew: Combination | None = None  # the same values in one term, once asked for

    def __add__(self, other: Combination) -> Combination:
        # One term for each total: a mean that moves would else double its terms in each round.
        found: dict[tuple[str, int, str, str], tuple[float, SecureCells]] = {}
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
    texts: tuple[str, ...]  # function, field, and `Stream.told` unless that is ""
    shape: tuple[int, ...]
    contributors: tuple[str, ...]
    digits: int
    nonces: tuple[bytes, ...]
    owners: tuple[str, ...]
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

    def opened_cells(
        self, openers: Mapping[int, ClientId], total: Combination
    ) -> Mapping[int, tuple[Any, int]]:
        """Return each cell as its opener opens it, and its bytes beside it."""

    def sealed_anew(
        self, owners: Mapping[int, ClientId], total: Combination, streams: Mapping[int, Stream]
    ) -> Mapping[int, tuple[Piece, int]]:
        """Return each cell as its owner seals it under another name, and the bytes of it."""


class _Plan:
    """What a collector has of one field."""

    __slots__ = ("lead", "number", "pieces", "shape", "streams")

    def __init__(
        self, number: bool, lead: tuple[int, ...], shape: tuple[int, ...] | None = None
    ) -> None:
        self.number, self.lead = number, lead
        self.shape = shape  # of each client's, where it is added up entry by entry
        self.streams: dict[int, Stream] = {}
        self.pieces: dict[int, list[Piece]] = {}  # by cell, to be added

    def put(self, cell: int, piece: Piece, adder: Aggregator) -> None:
        """Take a piece of a cell; add up those that wait where they are many."""
        waiting = self.pieces.setdefault(cell, [])
        waiting.append(piece)
        if len(waiting) == _WAITING:
            waiting[:] = [adder.add(*waiting)]


class SecureCollector:
    """Takes the replies to one sum: seals them, or takes what sites have sealed."""

    def __init__(
        self,
        geometry: Geometry,
        sealing: Sealing,
        fn: ClientFunction,
        stream: Stream,
        groups: Groups,
    ) -> None:
        self._geometry, self._sealing, self._fn, self._stream = geometry, sealing, fn, stream
        self._groups = groups
        # the server does not count what clients were told before: the first says it, for all
        self._unknown = True
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

    def add(self, client: ClientId, reply: Any, *, own: bool = False) -> int:
        """Seal a client's reply and take it; return the bytes that it had on the way."""
        kind: Any = type(reply)
        self._kind = kind
        size_of = self._sealing.size
        size = 0
        sent = reply.__dict__
        last = self._last = {}
        for name, layout in layouts(kind):
            value = sent[name]
            if value is None:  # nothing from this client
                continue
            if layout is Layout.COUNTS:
                last[name] = value
                size += codec.size(value)
                continue
            plan, shape = self._plans.get(name), getattr(value, "shape", ())
            if plan is None:
                by_index = layout not in (None, Layout.BLOCKS)
                plan = self._plans[name] = _Plan(
                    not isinstance(value, np.ndarray | Mapping),
                    shape[:-1] if by_index else (),
                    shape,
                )
            self._check_shape(client, name, layout, shape, plan)
            own_cells = last[name] = {}
            for cell, values in self._pieces(client, layout, value, sent):
                stream = plan.streams.get(cell)
                if stream is None:
                    stream = plan.streams[cell] = evolve(self._stream, field=name, cell=cell)
                parties = self._parties(client, name, layout, cell)
                parts = self._geometry.parts(self._fn.part, layout, cell)
                piece = own_cells[cell] = sealed(
                    self._sealing, client, stream, values, parties, parts
                )
                size += size_of(piece)
                plan.put(cell, piece, self._sealing.adder)
        return size

    def _check_shape(
        self,
        client: ClientId,
        name: str,
        layout: Layout | None,
        shape: tuple[int, ...],
        plan: _Plan,
    ) -> None:
        """Refuse a field whose cells would not be those of other clients; see `Geometry`."""
        if layout is Layout.BLOCKS or (layout is not None and layout.is_selected):
            return
        geometry, part, wanted = self._geometry, self._fn.part, plan.shape
        if layout is not None:
            runs = geometry.runs(client, part, layout, None)
            wanted = (*plan.lead, max((stop for *_, stop in runs), default=0))
        if wanted is not None and shape != wanted:
            place = f"{self._kind.__name__}.{name}"
            raise geometry.unlike(client, part, place, layout, shape, wanted)

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
                if self._unknown:
                    self._stream = evolve(self._stream, told=piece.stream.told)
                    self._unknown = False
                stream = evolve(self._stream, field=name, cell=cell)
                owners = self._parties(client, name, layout, cell).owners
                if (
                    piece.stream != stream
                    or piece.contributors != (client,)
                    or piece.owners != (owners if self._sealing.pairs else ())
                ):
                    raise TamperedError(
                        f"A piece of {piece.stream} by {list(piece.contributors)} for "
                        f"{list(piece.owners)} came where {client!r} was asked for {stream}; it "
                        "was altered: resume the run."
                    )
                plan.put(cell, piece, self._sealing.adder)

    def _pieces(
        self, client: ClientId, layout: Layout | None, value: Any, own: Mapping[str, Any]
    ) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yield what a client contributes to each of its cells; `own` are all fields."""
        if layout is Layout.BLOCKS:
            cells = self._geometry.own_blocks(client, self._fn.part)
            yield from ((cells[name], array_of(values)) for name, values in value.items())
            return
        by_counts = layout is not None and layout.is_selected
        counts = own[counts_of(self._kind)].tolist() if by_counts else None
        runs = self._geometry.runs(client, self._fn.part, layout, counts)
        scores = layout is not None and layout.is_whole_scores
        order = self._geometry.order(client, self._fn.part) if scores else None
        value = value if order is None else value[..., order]
        for cell, start, stop in runs:
            yield cell, array_of(value if len(runs) == 1 else value[..., start:stop])

    def _parties(self, client: ClientId, field: str, layout: Layout | None, cell: int) -> Parties:
        """Return whose contributions are added to a client's, and who owns the cell."""
        found = self._groups.parties(layout, cell)
        if field in self._fn.alone and len(found.contributors) > 1:
            return Parties((client,), found.owners)
        return found

    def total(self) -> SealedTotal:
        """Return the sealed total of the replies so far."""
        kind, part = self._kind, self._fn.part
        fields: dict[str, SealedField] = {}
        for name, origin, layout in origins(kind):
            value: Any = None
            if layout is not Layout.COUNTS:
                stream, plan = self._stream, self._plans.get(name)
                key = (stream.session, stream.sequence, stream.function, name)
                cells = SecureCells(key, {}, False, ())
                if plan is not None:
                    added = {
                        cell: waiting[0] if len(waiting) == 1 else self._sealing.adder.add(*waiting)
                        for cell, waiting in plan.pieces.items()
                    }
                    cells = SecureCells(key, added, plan.number, plan.lead)
                value = Combination(((1.0, cells),))
            fields[name] = SealedField(value, layout, part, origin)
        return SealedTotal(kind, fields)


class Groups:
    """Who contributes to each cell of one part in an exchange of some clients, and who owns it."""

    def __init__(self, geometry: Geometry, part: str, asked: Collection[ClientId]) -> None:
        self._geometry, self._part, self._asked = geometry, part, frozenset(asked)
        self._known: dict[tuple[Layout | None, int], Parties] = {}

    def parties(self, layout: Layout | None, cell: int) -> Parties:
        """Return the contributors and the owners of a cell, each sorted."""
        found = self._known.get((layout, cell))
        if found is None:
            owners = self._geometry.owners(self._part, layout, cell)
            contributors = tuple(sorted(self._asked.intersection(owners)))
            found = self._known[layout, cell] = Parties(contributors, tuple(sorted(owners)))
        return found


def sealed(
    sealing: Sealing,
    client: ClientId,
    stream: Stream,
    values: NDArray[Any],
    parties: Parties,
    parts: int = 1,
) -> Piece:
    """Seal a client's contribution to a cell.

    A cell of scores is one of some `parts` that readers divide: short where they are together.
    None of them fills a ciphertext, so that they are masked as if they were of one client.

    Sums entry by entry or by block (norms, objectives, products of columns, networks) and short
    arrays may have any size, so that each number is sealed exactly as two digits: together they
    reach beyond the 60th power of 2. A bound that says nothing, -inf, passes as a number that no
    total of others comes near. Words are sealed as they are, and those of 32 bits add up.

    Raises
    ------
    RangeError
        If a value is larger than that, or not a number.
    """
    if values.dtype in _WORDS:
        return sealing.exact[client].seal_words(client, stream, values, parties)
    if stream.cell > EVERYONE and values.size * parts >= sealing.long:
        alone = parts > 1 or len(parties.contributors) == 1
        sealer = (sealing.exact if alone else sealing.bulk)[client]
        return sealer.seal(client, stream, values, parties)
    piece = sealing.exact[client].seal_digits(client, stream, values, sealing.digits, parties)
    if piece is None:
        room = sealing.digits.room
        odd = values[~((np.abs(values) < room) | np.isneginf(values))]
        raise RangeError(
            f"The value {odd[0]:.6g} cannot be sealed in {stream.function}.{stream.field}: it must "
            f"be a number within ±{room:.3g}; set preprocessing.standardise = true, divide the "
            "columns of the largest values, or raise algorithm.regularisation or privacy.range."
        )
    return piece


def told_alike(fn: ClientFunction, fields: Mapping[str, Any], before: Any = None) -> str:
    """Return what tells what a message holds from anything else; "" where clients are told apart.

    Of totals it takes the factors and the names: a client gets its own cells of them. `before` is
    what the client was told in calls before this one, where that is to be the same for all.
    """
    if not fn.alike and before is None:
        return ""
    digest = hashlib.blake2b(digest_size=16)
    if before is not None:
        digest.update(codec.encode(before))
    for name, value in sorted(fields.items()) if fn.alike else ():
        if isinstance(value, SealedField):
            told: Any = ["total", [(weight, *one.name) for weight, one in value.content.terms]]
        elif isinstance(value, SealedRecord):
            of = value.value
            told = ["total", [(w, *one) for w, one in zip(of.weights, of.names, strict=True)]]
        elif name in fn.apart:
            continue
        else:
            told = hashlib.blake2b(codec.encode(value)).hexdigest()
        digest.update(json.dumps([name, told]).encode())
    return digest.hexdigest()


def array_of(value: Any) -> NDArray[Any]:
    """Return a value as an array of numbers, or of words."""
    if isinstance(value, np.ndarray) and value.dtype in _WORDS:
        return np.ascontiguousarray(value)
    return np.asarray(value, np.float64, order="C")


class SecureTotals:
    """Lets clients seal what they contribute, and open what is theirs."""

    def __init__(
        self,
        geometry: Geometry,
        sealing: Sealing,
        session: str | None = None,  # the name under which streams are drawn; None: drawn afresh
        owners: Owners | None = None,  # None: they are in this process, `sealing` has their keys
        number: Callable[[], int] | None = None,  # of the present exchange; None: counted here
    ) -> None:
        self.mode, self.adder = sealing.mode, sealing.adder
        self._geometry, self._sealing = geometry, sealing
        self._session = secrets.token_hex(8) if session is None else session
        self._sequence = 0
        self._owners: Owners = self if owners is None else owners
        self._number = number
        self._groups: dict[tuple[str, tuple[ClientId, ...]], Groups] = {}

    def rounding(self, entries: int) -> Rounding:
        """Return how exact a total of so many entries is, which all clients contribute to."""
        return self._sealing.rounding(entries, len(self._geometry.clients))

    def _begin_exchange(self) -> None:
        self._sequence = self._sequence + 1 if self._number is None else self._number()

    def stream(self, round: int, function: str, field: str = "", cell: int = 0) -> Stream:
        """Return the name of a total of the present exchange."""
        return Stream(self._session, self._sequence, round, function, field, cell)

    def collector(
        self, fn: ClientFunction, round: int, asked: Collection[ClientId], told: str = ""
    ) -> SecureCollector:
        """Return a collector for one sum over the clients that are asked.

        `told` is `told_alike` of their message; parts of clients that were told another do not add
        up with theirs.
        """
        self._begin_exchange()
        stream = replace(self.stream(round, fn.name), told=told)
        key = fn.part, tuple(asked)
        groups = self._groups.get(key)
        if groups is None:
            if len(self._groups) >= _GROUPS:
                self._groups.clear()
            groups = self._groups[key] = Groups(self._geometry, *key)
        return SecureCollector(self._geometry, self._sealing, fn, stream, groups)

    def own(
        self, client: ClientId, field: SealedField, asked: Collection[ClientId]
    ) -> tuple[Any, int]:
        """Return a client's own entries of a total."""
        total: Combination = field.content
        if field.layout is None:
            return self.opened(client, total, EVERYONE)
        if field.layout is Layout.BLOCKS:
            mine = self._geometry.own_blocks(client, field.part).items()
            return _known({name: self.opened(client, total, cell) for name, cell in mine})
        geometry, part, layout = self._geometry, field.part, field.layout
        selected = layout.is_selected
        whole = layout
        if selected:
            whole = Layout.SCORES if layout.is_scores else Layout.SAMPLES
        read = {cell for cell, *_ in geometry.own_cells(client, part, layout, asked)}
        found: list[Array] = []
        extra = 0
        lead = total.terms[0][1].lead
        for cell, start, stop in geometry.runs(client, part, whole, None):
            value, more = self.opened(client, total, cell) if cell in read else (None, 0)
            extra += more
            if value is not None:
                found.append(value)
            elif not selected:  # no owner of these entries contributed, or another reads them
                found.append(np.zeros((*lead, stop - start)))
        if not found:
            return np.zeros((*lead, 0)), extra
        opened = found[0] if len(found) == 1 else np.concatenate(found, axis=-1)
        order = geometry.order(client, part) if layout.is_whole_scores else None
        if order is not None:
            opened, kept = np.empty_like(opened), opened
            opened[..., order] = kept
        return opened, extra

    def reveal(self, field: SealedField) -> tuple[Any, int]:
        """Ask one contributor of each cell to open it to the server."""
        total: Combination = field.content
        if field.layout is None:
            return self._opened_by_any(total, [EVERYONE])[EVERYONE]
        if field.layout is Layout.BLOCKS:
            there, blocks = set(_cells(total)), self._geometry.blocks(field.part).items()
            opened = self._opened_by_any(total, [cell for _, (cell, _) in blocks if cell in there])
            return _known({name: opened[cell] for name, (cell, _) in blocks if cell in there})
        opened = self._opened_by_any(total, _cells(total))
        size = sum(one for _, one in opened.values())
        if field.layout.is_selected:
            return {cell: value for cell, (value, _) in opened.items()}, size
        index = self._geometry.index(field.part, field.layout)
        whole = np.zeros((*total.terms[0][1].lead, len(index)))
        for cell, (value, _) in opened.items():
            whole[..., index.cells[cell].start : index.cells[cell].stop] = value
        return whole, size

    def refreshed(
        self, field: SealedField, round: int, asked: Collection[ClientId] | None = None
    ) -> tuple[SealedField, int]:
        """Let an owner of each cell seal a total anew that has many terms.

        The field itself stays as it is: what else holds it, or does no longer since a run was
        resumed, must not show in the bits. Scores that nobody reads are left out.
        """
        total: Combination = field.content
        if len(total.terms) <= _TERMS:
            return field, 0
        size = 0
        if total.sealed_anew is None:
            openers = {cell: self._opener(total, cell) for cell in _cells(total)}
            if field.layout is not None and field.layout.is_scores:
                openers = self._readers(field.part, openers, asked)
            owners = {cell: one for cell, one in openers.items() if one is not None}
            if len(owners) < len(openers):
                return field, 0  # some cells are those of clients that are away alone
            total.sealed_anew, size = self._sealed_anew(total, field.name, round, owners)
        return field.with_content(total.sealed_anew), size

    def _opener(self, total: Combination, cell: int) -> ClientId | None:
        """Return who is to open a cell: the first contributor that is there."""
        known = (one for _, piece in total.pieces(cell) for one in piece.contributors)
        return next((one for one in known if self._owners.is_there(one)), None)

    def _readers(
        self, part: str, cells: Collection[int], asked: Collection[ClientId] | None
    ) -> dict[int, ClientId | None]:
        """Return who reads cells of scores, of clients that are asked (None: of all) and there."""
        geometry, found = self._geometry, dict[int, ClientId | None]()
        names = geometry.clients if asked is None else asked
        there = frozenset(name for name in names if self._owners.is_there(name))
        for cell in cells:
            if geometry.reader(part, cell) is not None:
                found[cell] = geometry.reader(part, cell, there)
        return found

    def is_there(self, client: ClientId) -> bool:
        """Return whether a client can be asked: here all are."""
        return True

    def _sealed_anew(
        self, total: Combination, name: str, round: int, owners: Mapping[int, ClientId]
    ) -> tuple[Combination, int]:
        self._begin_exchange()
        streams = {cell: self.stream(round, REFRESH, name, cell) for cell in owners}
        found = self._owners.sealed_anew(owners, total, streams)
        pieces = {cell: piece for cell, (piece, _) in found.items()}
        size = sum(more for _, more in found.values())
        first = total.terms[0][1]
        key = (self._session, self._sequence, REFRESH, name)
        return Combination(((1.0, SecureCells(key, pieces, first.number, first.lead)),)), size

    def opened_cells(
        self, openers: Mapping[int, ClientId], total: Combination
    ) -> dict[int, tuple[Any, int]]:
        """Return each cell as its opener opens it, and its bytes beside it."""
        return {cell: self.opened(client, total, cell) for cell, client in openers.items()}

    def sealed_anew(
        self, owners: Mapping[int, ClientId], total: Combination, streams: Mapping[int, Stream]
    ) -> dict[int, tuple[Piece, int]]:
        """Return each cell as its owner seals it under another name, and the bytes of it."""
        found: dict[int, tuple[Piece, int]] = {}
        for cell, client in owners.items():
            value, more = self.opened(client, total, cell)
            parties = Parties((client,), total.pieces(cell)[0][1].owners)
            piece = sealed(self._sealing, client, streams[cell], array_of(value), parties)
            found[cell] = piece, more + self._sealing.size(piece)
        return found

    def held(self, field: SealedField) -> Any:
        """Return the factors and the bytes of the pieces that the server holds."""
        return tuple(
            (weight, {str(cell): self._sealing.to_bytes(p) for cell, p in one.pieces.items()})
            for weight, one in field.content.terms
        )

    def record(self, value: Any) -> Any:
        """Return a combination as something that the codec writes."""
        terms: list[tuple[PieceRecord, ...]] = []
        for _, cells in value.terms:
            terms.append(tuple(self.piece_record(piece) for piece in cells.pieces.values()))
        return CombinationRecord(
            tuple(weight for weight, _ in value.terms),
            tuple(cells.name for _, cells in value.terms),
            tuple(cells.number for _, cells in value.terms),
            tuple(cells.lead for _, cells in value.terms),
            tuple(terms),
        )

    def restored(self, record: Any) -> Any:
        """Return the combination that `record` was given."""
        found: list[tuple[float, SecureCells]] = []
        for weight, name, number, lead, cells in zip(
            record.weights, record.names, record.numbers, record.leads, record.cells, strict=True
        ):
            pieces = {one.numbers[2]: self.piece(one) for one in cells}
            found.append((weight, SecureCells(name, pieces, number, lead)))
        return Combination(tuple(found))

    def share(
        self, client: ClientId, field: SealedField, asked: Collection[ClientId]
    ) -> SealedField:
        """Return a total with the cells alone that a client is to open: what is sent to it."""
        total: Combination = field.content
        cells = self._geometry.own_cells(client, field.part, field.layout, asked)
        mine = {cell for cell, _, _ in cells}
        return field.with_content(total.restricted(mine))

    def opened(self, client: ClientId, total: Combination, cell: int) -> tuple[Any, int]:
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

    def _opened_by_any(
        self, total: Combination, cells: Sequence[int]
    ) -> dict[int, tuple[Any, int]]:
        """Return cells as one contributor of each opens them, and the bytes that cross."""
        openers = {
            cell: self._opener(total, cell) or total.pieces(cell)[0][1].contributors[0]
            for cell in cells
        }
        opened = self._owners.opened_cells(openers, total).items() if openers else ()
        return {
            cell: (value, extra + 2 * int(np.size(value)) * 8) for cell, (value, extra) in opened
        }

    def piece_record(self, piece: Piece) -> PieceRecord:
        """Return a piece as something that the codec writes."""
        stream = piece.stream
        return PieceRecord(
            stream.session,
            (stream.sequence, stream.round, stream.cell),
            (stream.function, stream.field, *filter(None, (stream.told,))),
            piece.shape,
            piece.contributors,
            piece.digits,
            piece.nonces,
            piece.owners,
            self._sealing.to_bytes(piece),
        )

    def piece(self, record: PieceRecord) -> Piece:
        """Return the piece that a record was made of."""
        sequence, round, cell = record.numbers
        function, field, *told = record.texts
        stream = Stream(record.session, sequence, round, function, field, cell, *told)
        head = stream, record.shape, record.contributors, None, record.digits
        empty = Piece(*head, record.nonces, record.owners)
        return self._sealing.from_bytes(empty, record.content)


def _opened(sealing: Sealing, client: ClientId, piece: Piece) -> NDArray[Any]:
    """Return what a client opens of a piece."""
    if piece.digits in (0, 3):
        words = sealing.exact[client].open_words(piece)
        return words.astype(np.float64) if piece.digits else words
    if piece.digits == 1:
        return sealing.bulk[client].open(piece)
    return sealing.exact[client].open_digits(piece, sealing.digits)


def _check_name(stream: Stream, name: tuple[str, int, str, str], cell: int) -> None:
    """Refuse the piece of one total in the place of another: a replay, or cells in other places."""
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


def _known(opened: Mapping[str, tuple[Any, int]]) -> tuple[dict[str, Any], int]:
    """Return the values of the blocks that anybody contributed to, and the bytes of all."""
    values = {name: value for name, (value, _) in opened.items() if value is not None}
    return values, sum(size for _, size in opened.values())


def _cells(total: Combination) -> list[int]:
    return sorted({cell for _, one in total.terms for cell in one.pieces})
