"""Sums that the server cannot read: totals, their fields, and how the fields are laid out.

Reading one raises in every mode, the plain one too, so that a leak fails the fastest test. What
stands behind a field is the business of `intarsia.engines.sums.plain`.
"""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass
from functools import cache
from typing import Any, SupportsFloat

import numpy as np

from intarsia.core.client_functions import Layout
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

    def __truediv__(self, _: object) -> Any:
        raise _unreadable("divided; multiply it by 1 / n for its n-th part")

    def _refused(self, *_: object) -> Any:
        raise _unreadable("in arithmetic other than sums of totals and factors that are numbers")

    __radd__ = __rsub__ = __rtruediv__ = __matmul__ = __rmatmul__ = __pow__ = __neg__ = _refused

    def __repr__(self) -> str:
        return "<sealed total>"


def _beside(own: object, other: object) -> None:
    """Refuse what is no total of the same kind beside one."""
    if type(other) is not type(own):
        raise _unreadable(f"added to a {type(other).__name__}, which is no sealed total like it")


def _number(factor: object) -> float:
    """Return what a total may be multiplied by."""
    if isinstance(factor, np.ndarray) or not isinstance(factor, SupportsFloat):
        raise _unreadable(f"multiplied by a {type(factor).__name__}, which is no number")
    return float(factor)


class SealedField(_Unreadable):
    """One field of a total: an array laid out by an index, or summed entry by entry.

    `content` is for the engines alone: the numbers in the clear, or a combination of pieces.
    """

    __slots__ = ("content", "layout", "name", "part")

    def __init__(self, content: Any, layout: Layout | None, part: str, name: str = "") -> None:
        self.content = content
        self.layout = layout
        self.part = part
        self.name = name  # "Reply.field", several with " and "; for transcript and audit

    def with_content(self, content: Any, name: str | None = None) -> SealedField:
        """Return a field laid out as this one."""
        return SealedField(content, self.layout, self.part, self.name if name is None else name)

    def _name_with(self, other: SealedField) -> str:
        _beside(self, other)
        if other.layout is not self.layout or other.part != self.part:
            raise SealedError(
                f"A total over {other.part} {other.layout} cannot be added to one over "
                f"{self.part} {self.layout}; add totals with one index only."
            )
        return self.name if self.name == other.name else both(self.name, other.name)

    def __add__(self, other: SealedField) -> SealedField:
        name = self._name_with(other)
        return self.with_content(self.content + other.content, name)

    def __sub__(self, other: SealedField) -> SealedField:
        name = self._name_with(other)
        return self.with_content(self.content - other.content, name)

    def __mul__(self, factor: float) -> SealedField:
        return self.with_content(self.content * _number(factor))

    __rmul__ = __mul__


class SealedTotal(_Unreadable):
    """A total over replies of one type: each field is sealed too, and an attribute."""

    __slots__ = ("by_field", "reply_class")

    def __init__(self, reply_class: type, by_field: dict[str, SealedField]) -> None:
        self.reply_class = reply_class
        self.by_field = by_field

    def __getattr__(self, name: str) -> SealedField:
        try:
            return self.by_field[name]
        except KeyError:
            raise AttributeError(
                f"a total of {self.reply_class.__name__} has the fields {sorted(self.by_field)}, "
                f"not {name!r}"
            ) from None

    def __add__(self, other: SealedTotal) -> SealedTotal:
        _beside(self, other)
        added = {name: one + other.by_field[name] for name, one in self.by_field.items()}
        return SealedTotal(self.reply_class, added)

    def __mul__(self, factor: float) -> SealedTotal:
        scaled = {name: one * factor for name, one in self.by_field.items()}
        return SealedTotal(self.reply_class, scaled)

    __rmul__ = __mul__


@dataclass(frozen=True)
class SealedRecord:
    """How a sealed field is written into a server checkpoint: still not for the server's eyes."""

    value: Any
    layout: str
    part: str
    name: str


@cache
def both(one: str, other: str) -> str:
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
def origins(kind: type) -> tuple[tuple[str, str, Layout | None], ...]:
    """Return each field of a reply type with its name in transcripts, and its layout."""
    return tuple((name, f"{kind.__name__}.{name}", layout) for name, layout in layouts(kind))


@cache
def counted_cells(kind: type) -> Layout:
    """Return of which cells the counts in a reply are: those of samples, or of scores."""
    scores = any(layout is Layout.SELECTED_SCORES for _, layout in layouts(kind))
    return Layout.SCORES if scores else Layout.SAMPLES


@cache
def counts_of(kind: type) -> str:
    """Return the field of a reply that counts the selected samples by cell."""
    return next(name for name, layout in layouts(kind) if layout is Layout.COUNTS)
