"""What every mode of sealed sums provides: clients seal and open, the server only adds.

A contribution is what one client seals of one cell of one field of a reply. The server adds the
contributions of the cell's owners to a `Piece` that it cannot read, and forwards it; a client opens
it with the keys that the clients share.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import SealedError

Values = NDArray[np.float64]


_NUMBERS = struct.Struct("<qqq")


@lru_cache(maxsize=4096)
def _texts(*texts: str) -> bytes:
    return b"".join(struct.pack("<I", len(raw)) + raw for raw in (text.encode() for text in texts))


@dataclass(frozen=True)
class Stream:
    """Names one total; together with a client's name, one contribution."""

    session: str  # hex digits, drawn afresh whenever a run is started or resumed
    sequence: int  # of the exchange, within the session
    round: int
    function: str
    field: str
    cell: int

    def label(self, client: str) -> bytes:
        """Return bytes that no other contribution has, to derive keys from."""
        numbers = _NUMBERS.pack(self.sequence, self.round, self.cell)
        return numbers + _texts(self.session, self.function, self.field, client)


@dataclass(frozen=True, eq=False)
class Piece:
    """A sealed contribution, or a sealed total of several."""

    stream: Stream
    shape: tuple[int, ...]
    contributors: tuple[str, ...]  # sorted
    content: Any  # the scheme's own: words under masks, or ciphertexts
    digits: int = 1  # 2: the first axis holds a high and a low part of each value

    @classmethod
    def made(
        cls,
        stream: Stream,
        shape: tuple[int, ...],
        contributors: tuple[str, ...],
        content: Any,
        digits: int,
    ) -> Piece:
        """Return a piece, without the checks of `__init__`: short ones are made by the thousand."""
        piece = object.__new__(cls)
        piece.__dict__.update(
            stream=stream, shape=shape, contributors=contributors, content=content, digits=digits
        )
        return piece


class Sealer(Protocol):
    """A client's side of a scheme, with the secret keys."""

    def seal(self, client: str, stream: Stream, values: Values) -> Piece:
        """Seal a client's contribution.

        Raises
        ------
        RangeError
            If a value is not finite, or so large that a total could leave the range.
        SealedError
            If the client has used the stream before.
        """
        ...

    def open(self, piece: Piece) -> Values:
        """Return the total of the piece's contributors.

        Raises
        ------
        TamperedError
            If the piece is not the sum of what they sealed.
        """
        ...


@dataclass(frozen=True)
class Digits:
    """How a number becomes two that a fixed-point format holds exactly: high / unit · size + low.

    Together they reach beyond the 60th power of 2.
    """

    size: float  # a power of 2 that every client's value may reach
    unit: float  # least difference of totals, a power of 2
    room: float  # every client's number must be within ±room, or -inf
    bound: float  # stands for -inf: no total of others comes near


class ExactSealer(Sealer, Protocol):
    """A sealer whose totals are exact sums of fixed-point numbers."""

    def seal_digits(
        self, client: str, stream: Stream, values: Values, digits: Digits
    ) -> Piece | None:
        """Seal each value as two digits; None if one has no room.

        Raises
        ------
        SealedError
            If the client has used the stream before.
        """
        ...

    def open_digits(self, piece: Piece, digits: Digits) -> Values:
        """Return the total of what `seal_digits` sealed.

        Raises
        ------
        TamperedError
            If the piece is not the sum of what the contributors sealed.
        """
        ...


class Aggregator(Protocol):
    """The server's side of a scheme, without secrets."""

    def add(self, *pieces: Piece) -> Piece:
        """Return the sum of pieces of the same total.

        Raises
        ------
        SealedError
            If the pieces belong to different totals, or a client is in two.
        """
        ...


@dataclass(frozen=True, eq=False)
class Sealing:
    """A mode of sealed sums, set up for a federation in one process."""

    mode: str
    digits: Digits  # of the exact sealers
    adder: Aggregator  # the server's
    exact: Mapping[str, ExactSealer]  # by client, for what is short or must be exact
    bulk: Mapping[str, Sealer]  # for long arrays, within an error; opens what `alone` seals too
    alone: Mapping[str, Sealer]  # for long arrays that no other client's are added to
    long: int  # values of a client's cell from which it is a long array
    to_bytes: Callable[[Piece], bytes]  # the content of a piece, for a wire or a checkpoint
    from_bytes: Callable[[Piece, bytes], Piece]  # a piece with the content that was written
    size: Callable[[Piece], int]  # about len(to_bytes(piece)), without writing


def joined(pieces: Sequence[Piece], content: Any) -> Piece:
    """Return the piece of all contributors of some, with the content that a scheme made of theirs.

    Raises
    ------
    SealedError
        If the pieces belong to different totals, or a client is in two.
    """
    first = pieces[0]
    for other in pieces[1:]:
        same = first.stream is other.stream or first.stream == other.stream
        if not same or first.shape != other.shape or first.digits != other.digits:
            raise SealedError(
                f"A piece of {first.stream} with shape {first.shape} cannot be added to one of "
                f"{other.stream} with shape {other.shape}; add pieces of one total only."
            )
    contributors, twice = _all(*(piece.contributors for piece in pieces))
    if twice:
        raise SealedError(
            f"The contribution of {list(twice)} to {first.stream} was added twice; add each "
            "client's contribution once."
        )
    return Piece.made(first.stream, first.shape, contributors, content, first.digits)


@lru_cache(maxsize=4096)
def _all(*contributors: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the contributors of some pieces in order, and those that are in two."""
    names = sorted(name for some in contributors for name in some)
    return tuple(names), tuple(a for a, b in pairwise(names) if a == b)
