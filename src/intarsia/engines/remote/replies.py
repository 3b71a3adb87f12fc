"""What the server takes of a site's answer: what the client function declares, and nothing else.

A site may be of another version, broken, or not honest. What it answers is held against the class
of the reply and the schema before it is used, so that the error names the site and the field.
"""

from __future__ import annotations

import math
import struct
import typing
from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from intarsia.core.block import ClientId
from intarsia.core.client_functions import ClientFunction, Layout
from intarsia.engines.remote.wire import Answer, SealedReply, Version, odd_field, shown
from intarsia.engines.sums.plain import Geometry
from intarsia.engines.sums.sealed import SealedRecord, counted_cells, layouts
from intarsia.engines.sums.secure import (
    Combination,
    CombinationRecord,
    PieceRecord,
    SecureCells,
    SecureTotals,
)
from intarsia.errors import ConvergenceError, IntarsiaError, RangeError, SiteError
from intarsia.privacy.secure_aggregation.protocol import Piece

_Record = TypeVar("_Record", Answer, Version)

_ODD = (IntarsiaError, TypeError, ValueError, AttributeError, LookupError, struct.error)


def malformed(client: ClientId, function: str, field: str, found: object) -> SiteError:
    """Return the error about a field of a site's answer."""
    return SiteError(
        f"{client!r} answers {function} with a malformed {field} ({shown(str(found))[:160]}); "
        "install the same version of intarsia there, or see who runs the site."
    )


def checked(record: type[_Record], client: ClientId, function: str, found: object) -> _Record:
    """Return what a site answers; refuse what is no such record, or has fields of other classes."""
    odd = odd_field(found, record)
    if odd or not isinstance(found, record):
        raise malformed(client, function, record.__name__.lower(), odd)
    return found


def checked_answer(client: ClientId, function: str, found: object) -> Answer:
    """Return an answer; refuse what is none, or has other fields or less than 0 bytes."""
    answer = checked(Answer, client, function, found)
    if min(answer.down, answer.up) < 0:
        raise malformed(client, function, "answer", f"{answer.down} and {answer.up} bytes")
    return answer


@cache
def _hints(kind: type) -> Mapping[str, Any]:
    return typing.get_type_hints(kind)


def is_optional(kind: type, field: str) -> bool:
    """Return whether a record may have nothing in a field."""
    hint = _hints(kind)[field]
    return hint is Any or type(None) in typing.get_args(hint)


class Replies:
    """Holds replies of clients against what their functions declare.

    `bounds` says whether what is summed entry by entry may be -inf, as a term of a dual objective
    that says nothing. Networks have no dual: all clients would come to no number by it.
    """

    def __init__(self, geometry: Geometry, *, bounds: bool = True) -> None:
        self._geometry, self._bounds = geometry, bounds
        # who sent the first number so large that others may come to none by it, and where
        self._huge: tuple[ClientId, str] | None = None
        self._largest = 0.0, ""  # the largest number so far, and who sent it where

    def check(self, client: ClientId, fn: ClientFunction, reply: Any, *, summed: bool) -> None:
        """Refuse a reply in the clear with fields of other classes or sizes; `summed`: to a sum.

        Raises
        ------
        SiteError
            With the client's name.
        RangeError
            If an algorithm's reply holds what is no number, with the client's name: a total of it
            would name nobody.
        """
        own = vars(reply)
        counts = next((own[k] for k, it in layouts(fn.reply) if it is Layout.COUNTS), None)
        for field, layout in layouts(fn.reply):
            value = own[field]
            if value is None and is_optional(fn.reply, field):
                continue
            problem = self._problem(client, fn, field, layout, value, counts)
            place = f"{fn.reply.__name__}.{field}"
            if problem:
                raise malformed(client, fn.name, place, problem)
            bound = layout is None and self._bounds
            withheld = fn.protocol == "evaluation" and not summed  # what a client does not tell
            odd = np.zeros(0) if withheld else _no_numbers(value, bound=bound)
            if len(odd):
                said = f"{client!r} sends {odd[0]:g} in {place} of {fn.name}, which is no number"
                first, before = self._huge or (client, "")
                if first != client:
                    said = f"{before} before {said}"
                raise RangeError(
                    f"{said}: where training diverges, lower algorithm.rate, standardise the "
                    f"features or divide their columns; else see who runs the site {first!r}."
                )
            if (largest := _largest(value)) > self._largest[0]:
                said = f"{client!r} sent {largest:g} in {place} of {fn.name}"
                self._largest = largest, said
                if self._huge is None and largest > (_HUGE if self._bounds else _LARGE):
                    self._huge = client, f"{said},"

    def diverged(self, problem: ConvergenceError) -> ConvergenceError:
        """Return the error of a site that came to no number, with who may have brought it there."""
        largest, said = self._largest
        if largest < _LARGE:
            return problem
        return ConvergenceError(
            f"{problem} Before that {said}, by which networks of others come to no number; see "
            "who runs that site."
        )

    def check_alike(self, fn: ClientFunction, found: Mapping[ClientId, Mapping[str, Any]]) -> None:
        """Refuse parts of a total that are not of one shape, but for the cells that each has.

        `found` are the fields of all clients, in the clear or sealed.
        """
        for field, layout in layouts(fn.reply):
            shapes: dict[object, dict[ClientId, tuple[int, ...]]] = {}
            for client, own in found.items():
                if own.get(field) is not None and layout is not Layout.COUNTS:
                    for place, shape in _shapes(own[field], layout).items():
                        shapes.setdefault(place, {})[client] = shape
            for those in shapes.values():
                usual = Counter(those.values()).most_common(1)[0][0]
                for client, shape in those.items():
                    if shape != usual:
                        what = f"the shape {shape}, where others have {usual}"
                        raise malformed(client, fn.name, f"{fn.reply.__name__}.{field}", what)

    def _problem(
        self,
        client: ClientId,
        fn: ClientFunction,
        field: str,
        layout: Layout | None,
        value: Any,
        counts: Any,
    ) -> str:
        """Return what is wrong with a field, "" if nothing is."""
        if layout is None:
            return _problem_of_class(_hints(fn.reply)[field], value)
        if layout is Layout.COUNTS:
            return self._problem_of_counts(client, fn, value)
        if layout is Layout.BLOCKS:
            if not isinstance(value, Mapping):
                return f"{type(value).__name__} in the place of arrays by block"
            known = self._geometry.own_blocks(client, fn.part)
            odd = [name for name in value if name not in known]
            if len(odd):
                return f"the feature block {odd[0]!r}, which it does not hold"
            return next(filter(None, (_problem_of_array(one) for one in value.values())), "")
        problem = _problem_of_array(value)
        if problem:
            return problem
        if layout.is_selected:
            if not isinstance(counts, np.ndarray) or self._problem_of_counts(client, fn, counts):
                return "selected samples without their counts"
            size = int(counts.sum())
        else:
            size = sum(
                stop - start
                for _, start, stop in self._geometry.runs(client, fn.part, layout, None)
            )
        if value.ndim == 0 or value.shape[-1] != size:
            return f"an array of shape {value.shape} where the last axis is of {size} entries"
        return ""

    def _problem_of_counts(self, client: ClientId, fn: ClientFunction, value: Any) -> str:
        runs = self._geometry.runs(client, fn.part, counted_cells(fn.reply), None)
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "iu":
            return f"{type(value).__name__} in the place of whole numbers"
        if value.shape != (len(runs),):
            return f"{value.shape} counts where the client has {len(runs)} cells"
        # what is sent of a sample may have an entry for each of its features and outputs
        most = self._geometry.entries(client, fn.part)
        for count, (_, start, stop) in zip(value.tolist(), runs, strict=True):
            if not 0 <= count <= (stop - start) * most + fn.beside:
                return f"{count} samples of a cell of {stop - start}"
        return ""

    def restored(
        self, client: ClientId, fn: ClientFunction, reply: SealedReply, totals: SecureTotals
    ) -> dict[str, Any]:
        """Return the fields of a sealed reply: combinations, and counts as they are.

        Raises
        ------
        SiteError
            If a field is missing or of no total, or has cells that the client does not own.
        """
        kind = fn.reply
        place = f"{kind.__name__}."
        if not isinstance(reply.fields, Mapping) or not isinstance(reply.counts, Mapping):
            raise malformed(client, fn.name, "reply", "its fields have no names")
        declared = dict(layouts(kind))
        counts = dict(reply.counts)
        sealed = dict(reply.fields)
        for field, counted in (*((k, False) for k in sealed), *((k, True) for k in counts)):
            if field not in declared or (declared[field] is Layout.COUNTS) is not counted:
                raise malformed(client, fn.name, place + str(field)[:40], "it is not declared so")
        found: dict[str, Any] = {}
        own_counts: Any = None
        for field, layout in sorted(declared.items(), key=lambda one: one[1] is not Layout.COUNTS):
            value = counts.get(field) if layout is Layout.COUNTS else sealed.get(field)
            if value is None:
                if is_optional(kind, field):
                    continue
                raise malformed(client, fn.name, place + field, "it was left out")
            if layout is Layout.COUNTS:
                problem = self._problem_of_counts(client, fn, value)
                if problem:
                    raise malformed(client, fn.name, place + field, problem)
                found[field] = own_counts = value
                continue
            try:
                combination = _restored(value, layout, fn, totals)
                ((_, cells),) = combination.terms
                problem = self._problem_of_cells(client, fn, field, layout, cells, own_counts)
                for piece in cells.pieces.values():
                    totals.adder.add(piece)  # its content is as long as its shape says
            except _ODD as odd:
                raise malformed(client, fn.name, place + field, odd) from None
            if problem:
                raise malformed(client, fn.name, place + field, problem)
            found[field] = combination
        return found

    def _problem_of_cells(
        self,
        client: ClientId,
        fn: ClientFunction,
        field: str,
        layout: Layout | None,
        cells: SecureCells,
        counts: Any,
    ) -> str:
        geometry, there = self._geometry, set(cells.pieces)
        if layout is Layout.BLOCKS:
            others = there - set(geometry.own_blocks(client, fn.part).values())
            return f"the cells {sorted(others)[:4]}, which it does not own" if others else ""
        selected = layout is not None and layout.is_selected
        if selected and counts is None:
            return "selected samples without their counts"
        given = counts.tolist() if selected else None
        runs = geometry.runs(client, fn.part, layout, given)
        own = {cell: stop - start for cell, start, stop in runs}
        if there - set(own):
            return f"the cells {sorted(there - set(own))[:4]}, which it does not own"
        if set(own) - there:
            return f"no piece of the cells {sorted(set(own) - there)[:4]}, which it owns"
        if cells.number is not (_hints(fn.reply)[field] is float) and layout is not None:
            return "one number in the place of an array"
        for cell, piece in cells.pieces.items():
            shape = shape_of(piece)
            if layout is not None and shape != (*cells.lead, own[cell]):
                wanted = (*cells.lead, own[cell])
                return f"a piece of shape {shape} where the cell {cell} has {wanted}"
        return ""


def shape_of(piece: Piece) -> tuple[int, ...]:
    """Return the shape of the values that a piece hides."""
    return piece.shape[1:] if piece.digits == 2 else piece.shape


def _restored(
    record: Any, layout: Layout | None, fn: ClientFunction, totals: SecureTotals
) -> Combination:
    """Return the combination of one term that a site sealed; ValueError where it is none."""
    if not isinstance(record, SealedRecord) or not isinstance(record.value, CombinationRecord):
        raise ValueError(f"{type(record).__name__} in the place of a sealed total")
    if record.layout != ("" if layout is None else layout.value) or record.part != fn.part:
        raise ValueError(f"it is laid out by {str(record.layout)[:20]!r} of {record.part!r}")
    value = record.value
    if value.weights != (1.0,) or len(value.cells) != 1:
        raise ValueError("it is no single total with the factor 1")
    lead, number = value.leads[0], value.numbers[0]
    if type(number) is not bool or not _are_sizes(lead):
        raise ValueError("its axes are no numbers")
    seen: set[int] = set()
    for one in value.cells[0]:
        check_piece(one)
        if one.numbers[2] in seen:
            raise ValueError(f"the cell {one.numbers[2]} is there twice")
        seen.add(one.numbers[2])
    found: Combination = totals.restored(value)
    return found


def check_piece(record: Any) -> None:
    """Raise ValueError if something is no record of a piece."""
    if not isinstance(record, PieceRecord):
        raise ValueError(f"{type(record).__name__} in the place of a piece")
    if not (
        type(record.session) is str
        and type(record.numbers) is tuple
        and len(record.numbers) == 3
        and all(type(one) is int for one in record.numbers)
        and type(record.texts) is tuple
        and len(record.texts) in (2, 3)
        and all(type(one) is str for one in (*record.texts, *record.contributors))
        and all(type(one) is bytes for one in record.nonces)
        and type(record.owners) is tuple
        and all(type(one) is str for one in record.owners)
        and record.digits in (0, 1, 2, 3)
        and type(record.content) is bytes
        and _are_sizes(record.shape)
        and (record.digits != 2 or record.shape[:1] == (2,))
    ):
        raise ValueError("a piece whose name, shape or content is of another kind")


def _are_sizes(value: Any) -> bool:
    return (
        type(value) is tuple
        and all(type(one) is int and one >= 0 for one in value)
        and math.prod(value) < _MOST
    )


_HUGE = 1e100  # the square of a larger number, times those of a table, may be none
# of a network's parameters: products of larger ones, of a few layers, are none in float32
_LARGE = 1e9
_MOST = 2**40  # values of a piece: no site has as many


def _no_numbers(value: Any, *, bound: bool) -> NDArray[Any]:
    """Return what of a reply's values does not add up; of a bound -inf does, which says nothing."""
    if isinstance(value, Mapping):
        parts = [_no_numbers(one, bound=bound) for one in value.values()]
        return np.concatenate([np.zeros(0), *parts])
    known = np.asarray(value) if isinstance(value, float | np.ndarray) else np.zeros(0)
    if known.dtype.kind != "f" or np.isfinite(known).all():
        return np.zeros(0)
    return known[~(np.isfinite(known) | (np.isneginf(known) & bound))]


def _largest(value: Any) -> float:
    """Return the size of the largest number in a reply; 0: there is none."""
    if isinstance(value, Mapping):
        return max(map(_largest, value.values()), default=0.0)
    known = np.asarray(value) if isinstance(value, float | np.ndarray) else np.zeros(0)
    if known.dtype.kind != "f" or not known.size:
        return 0.0
    least = known.min()
    if np.isneginf(least):  # of a bound, which says nothing
        least = known.min(where=np.isfinite(known), initial=0.0)
    return float(max(known.max(), -least))


def _shapes(value: Any, layout: Layout | None) -> dict[object, tuple[int, ...]]:
    """Return the shapes that all clients' parts of a field have alike, in the clear or sealed.

    Of feature blocks there is one for each, of others that of what is before the cells.
    """
    if isinstance(value, Combination):
        ((_, cells),) = value.terms
        pieces: dict[object, tuple[int, ...]]
        pieces = {cell: shape_of(piece) for cell, piece in cells.pieces.items()}
        if layout is Layout.BLOCKS:
            return pieces
        return {"": next(iter(pieces.values()), ()) if layout is None else tuple(cells.lead)}
    if layout is Layout.BLOCKS:
        return {name: np.shape(one) for name, one in value.items()}
    return {"": np.shape(value)[: None if layout is None else -1]}


def _problem_of_array(value: Any) -> str:
    if not isinstance(value, np.ndarray):
        return f"{type(value).__name__} in the place of an array"
    return "" if value.dtype.kind in "fiub" else f"an array of dtype {value.dtype}"


def _problem_of_class(hint: Any, value: Any) -> str:
    """Return what is wrong with a value by the class that its field is annotated with."""
    kinds = typing.get_args(hint) if type(None) in typing.get_args(hint) else (hint,)
    known = [one for one in kinds if one is not type(None)]
    kind = typing.get_origin(known[0]) or known[0]
    if len(known) != 1 or kind is Any or not isinstance(kind, type):
        return ""
    if kind is np.ndarray:
        return _problem_of_array(value)
    if kind is float and type(value) is int:
        return ""
    right = type(value) is kind if kind in (int, float, bool, str) else isinstance(value, kind)
    if not right:
        return f"{type(value).__name__} in the place of {kind.__name__}"
    inner = [one for one in typing.get_args(known[0]) if one is not Ellipsis]
    if isinstance(value, Mapping) and len(inner) == 2:
        return next(filter(None, (_problem_of_class(inner[1], one) for one in value.values())), "")
    if isinstance(value, tuple) and len(inner) == 1:
        return next(filter(None, (_problem_of_class(inner[0], one) for one in value)), "")
    return ""
