"""Totals that the server holds without being able to read them.

Reading one raises in every mode, the plain one too, so that a leak fails the fastest test. What
stands behind a field is the business of `intarsia.engines.sums.plain`.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from intarsia.core.algorithm import Layout, evolve
from intarsia.errors import SealedError


def _unreadable(action: str) -> SealedError:
    return SealedError(
        f"A sealed total was read ({action}); the server may add, scale and forward it, or open "
        "it to itself with clients.reveal(total), which says what it discloses."
    )


class _Unreadable:
    """Refuses every way of looking at a total."""

    __slots__ = ()

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise _unreadable("as an array")

    def __float__(self) -> float:
        raise _unreadable("as a number")

    def __bool__(self) -> bool:
        raise _unreadable("as a truth value")

    def __len__(self) -> int:
        raise _unreadable("its length")

    def __iter__(self) -> Any:
        raise _unreadable("entry by entry")

    def __getitem__(self, _: Any) -> Any:
        raise _unreadable("an entry")

    def __eq__(self, _: object) -> bool:
        raise _unreadable("compared")

    def __lt__(self, _: object) -> bool:
        raise _unreadable("compared")

    __gt__ = __le__ = __ge__ = __lt__
    __hash__ = None  # type: ignore[assignment]  # a total is no key: hashing would compare it

    def __repr__(self) -> str:
        return "<sealed total>"


class SealedField(_Unreadable):
    """One field of a total: an array laid out by an index, or summed entry by entry."""

    __slots__ = ("_layout", "_name", "_part", "_value")

    def __init__(self, value: Any, layout: Layout | None, part: str, name: str = "") -> None:
        self._value = value
        self._layout = layout
        self._part = part
        self._name = name  # "Reply.field", several with " and "; for transcript and audit

    def _like(self, other: SealedField) -> None:
        if other._layout is not self._layout or other._part != self._part:
            raise SealedError(
                f"A total over {other._part} {other._layout} cannot be added to one over "
                f"{self._part} {self._layout}; add totals with one index only."
            )

    def __add__(self, other: SealedField) -> SealedField:
        self._like(other)
        name = self._name if self._name == other._name else _both(self._name, other._name)
        return SealedField(self._value + other._value, self._layout, self._part, name)

    def __sub__(self, other: SealedField) -> SealedField:
        self._like(other)
        name = self._name if self._name == other._name else _both(self._name, other._name)
        return SealedField(self._value - other._value, self._layout, self._part, name)

    def __mul__(self, factor: float) -> SealedField:
        return SealedField(self._value * factor, self._layout, self._part, self._name)

    __rmul__ = __mul__


class SealedTotal(_Unreadable):
    """A total over replies of one type: each field is sealed too."""

    __slots__ = ("_fields", "_kind")

    def __init__(self, kind: type, fields: dict[str, SealedField]) -> None:
        self._kind = kind
        self._fields = fields

    def __getattr__(self, name: str) -> SealedField:
        try:
            return self._fields[name]
        except KeyError:
            raise AttributeError(
                f"a total of {self._kind.__name__} has the fields {sorted(self._fields)}, "
                f"not {name!r}"
            ) from None

    def __add__(self, other: SealedTotal) -> SealedTotal:
        return SealedTotal(
            self._kind, {name: one + other._fields[name] for name, one in self._fields.items()}
        )

    def __mul__(self, factor: float) -> SealedTotal:
        return SealedTotal(self._kind, {name: one * factor for name, one in self._fields.items()})

    __rmul__ = __mul__


@dataclass(frozen=True)
class SealedRecord:
    """How a sealed field is written into a server checkpoint: still not for the server's eyes."""

    value: Any
    layout: str
    part: str
    name: str


@cache
def _both(one: str, other: str) -> str:
    """Return the name of a combination of totals."""
    return " and ".join(sorted({*one.split(" and "), *other.split(" and ")} - {""}))


@cache
def layouts(kind: type) -> tuple[tuple[str, Layout | None], ...]:
    """Return each field of a reply type with the index that its last axis runs over."""
    hints = typing.get_type_hints(kind, include_extras=True)
    result: list[tuple[str, Layout | None]] = []
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        found = [
            extra
            for part in (hint, *typing.get_args(hint))
            for extra in getattr(part, "__metadata__", ())
            if isinstance(extra, Layout)
        ]
        result.append((field.name, found[0] if found else None))
    return tuple(result)


@cache
def counts_of(kind: type) -> str:
    """Return the field of a reply that counts the selected samples by cell."""
    return next(name for name, layout in layouts(kind) if layout is Layout.COUNTS)


def exchange_fields(state: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """Return a dataclass with each field of a kind replaced, those of tuples too."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(state):
        value = getattr(state, field.name)
        exchanged = _exchanged(value, kind, change)
        if exchanged is not value:
            found[field.name] = exchanged
    return evolve(state, **found)


def _exchanged(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, tuple):
        exchanged = tuple(_exchanged(one, kind, change) for one in value)
        same = all(new is one for new, one in zip(exchanged, value, strict=True))
        return value if same else exchanged
    if dataclasses.is_dataclass(value) and not isinstance(value, SealedRecord):
        return exchange_fields(value, kind, change)
    return value
