"""What every mode of sealed sums provides: clients seal and open, the server only adds.

A contribution is what one client seals of one cell of one field of a reply. The server adds the
contributions of the cell's owners to a `Piece` that it cannot read, and forwards it; an owner opens
it, with a key that the owners have (`trust = "pairs"`) or that all clients have ("clients").
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise, zip_longest
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from intarsia.core.client_functions import Rounding
from intarsia.errors import CodecError, ExperimentError, SealedError, shortened

if TYPE_CHECKING:
    from intarsia.privacy.secure_aggregation.ckks import CkksAdder

Values = NDArray[np.float64]
_LARGEST = 2.0**61  # range of a mode

_NUMBERS = struct.Struct("<qqq")
_WORDS = b"w"  # first byte of a piece under masks where there may be ciphertexts
_CIPHERTEXTS = b"c"  # of one in ciphertexts


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
    told: str = ""  # what tells what all clients were told from anything else; "": not bound to it

    def __str__(self) -> str:
        """Return it in words, for those who see to a run."""
        name = shortened(f"{self.function}.{self.field}")  # others may have written it
        session = shortened(self.session, 8)
        return (
            f"cell {self.cell} of {name} in round {self.round} (exchange {self.sequence} of "
            f"session {session}{f', told {shortened(self.told, 8)}' * bool(self.told)})"
        )

    def label(self, client: str) -> bytes:
        """Return bytes that no other contribution has, to derive keys from."""
        numbers = _NUMBERS.pack(self.sequence, self.round, self.cell)
        told = (self.told,) if self.told else ()
        return numbers + _texts(self.session, self.function, self.field, client, *told)


class Parties(NamedTuple):
    """Whose contributions a total has, and who opens it; each sorted, the first among the second.

    All contributors know all of them before they seal: masks that are to cancel must be those of
    the others that are there.
    """

    contributors: tuple[str, ...]
    owners: tuple[str, ...]


NOT_NAMED: Final = Parties((), ())  # where each contribution has a mask of its own


@dataclass(frozen=True, eq=False)
class Piece:
    """A sealed contribution, or a sealed total of several."""

    stream: Stream
    shape: tuple[int, ...]
    contributors: tuple[str, ...]  # sorted
    content: Any  # the scheme's own: words under masks, or ciphertexts
    # 2: the first axis holds a high and a low part of each value; 0: words in place of values; 3:
    # whole numbers below 2^32
    digits: int = 1
    # of each contributor, what its masks are drawn with beside the stream; none in ciphertexts
    nonces: tuple[bytes, ...] = ()
    owners: tuple[str, ...] = ()  # who opens it, sorted; (): all clients, which share a key

    @classmethod
    def made(
        cls,
        stream: Stream,
        shape: tuple[int, ...],
        contributors: tuple[str, ...],
        content: Any,
        digits: int,
        nonces: tuple[bytes, ...],
        owners: tuple[str, ...] = (),
    ) -> Piece:
        """Return a piece, without the checks of `__init__`: short ones are made by the thousand."""
        piece = object.__new__(cls)
        piece.__dict__.update(
            stream=stream,
            shape=shape,
            contributors=contributors,
            content=content,
            digits=digits,
            nonces=nonces,
            owners=owners,
        )
        return piece


class Sealer(Protocol):
    """A client's side of a scheme, with the secret keys."""

    def seal(self, client: str, stream: Stream, values: Values, parties: Parties) -> Piece:
        """Seal a client's contribution.

        Raises
        ------
        RangeError
            If a value is not finite, or so large that a total could leave the range.
        SealedError
            If the client is unknown.
        ReplayError
            If it has used the stream, or a later one, before.
        """

    def open(self, piece: Piece) -> Values:
        """Return the total of the piece's contributors.

        Raises
        ------
        TamperedError
            If the piece is not the sum of what they sealed.
        """


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
        self, client: str, stream: Stream, values: Values, digits: Digits, parties: Parties
    ) -> Piece | None:
        """Seal each value as two digits; None if one has no room.

        Raises
        ------
        SealedError
            If the client has used the stream before.
        """

    def open_digits(self, piece: Piece, digits: Digits) -> Values:
        """Return the total of what `seal_digits` sealed.

        Raises
        ------
        TamperedError
            If the piece is not the sum of what the contributors sealed.
        """

    def seal_words(
        self,
        client: str,
        stream: Stream,
        values: NDArray[np.uint64] | NDArray[np.uint32],
        parties: Parties,
    ) -> Piece:
        """Seal words as they are: no other client's may be added to those of 64 bits.

        Raises
        ------
        SealedError
            If the client has used the stream before.
        """
        ...

    def open_words(self, piece: Piece) -> NDArray[np.uint64]:
        """Return what `seal_words` sealed, or the total of that.

        Raises
        ------
        TamperedError
            If the piece is not what the contributor sealed.
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
        TamperedError
            If the content of a piece does not fit its shape, or was cut or altered.
        """


@dataclass(frozen=True, eq=False)
class Sealing:
    """A mode of sealed sums, set up for a federation in one process."""

    mode: str
    digits: Digits  # of the exact sealers
    adder: Aggregator  # the server's
    # By client, none at a server: for what is short, must be exact, or nobody else's is added to.
    exact: Mapping[str, ExactSealer]
    bulk: Mapping[str, Sealer]  # for long arrays, within an error; opens what `exact` seals too
    long: int  # values of a client's cell from which it is a long array
    pairs: bool = False  # whether pieces name the owners of their cells, who alone open them
    ckks: CkksAdder | None = None  # reads and writes ciphertexts, in the mode that has some
    grid: float = 0.0  # what values in ciphertexts are multiples of

    def rounding(self, entries: int, contributors: int) -> Rounding:
        """Return how exact a total of so many entries and contributions is."""
        if self.grid and entries >= self.long:
            return Rounding(self.grid, contributors * self.grid)
        return Rounding(self.digits.unit, contributors * self.digits.unit / 2)

    def to_bytes(self, piece: Piece) -> bytes:
        """Return the content of a piece, for a wire or a checkpoint."""
        if self.ckks is not None and not isinstance(piece.content, np.ndarray):
            return _CIPHERTEXTS + self.ckks.to_bytes(piece)
        head = b"" if self.ckks is None else _WORDS
        return head + struct.pack("<Q", len(piece.content)) + bytes(piece.content.tobytes())

    def from_bytes(self, piece: Piece, data: bytes) -> Piece:
        """Return a piece with the content that was written."""
        if self.ckks is not None:
            if data[:1] != _WORDS:
                found = self.ckks.from_bytes(data[1:])
                return replace(found, nonces=piece.nonces, owners=piece.owners)
            data = data[1:]
        words = np.frombuffer(data, np.uint64, offset=8).copy()
        if len(data) < 8 or struct.unpack_from("<Q", data)[0] != len(words):
            raise CodecError(f"{len(data)} bytes are no piece under masks; take an intact copy.")
        return replace(piece, content=words)

    def size(self, piece: Piece) -> int:
        """Return about len(to_bytes(piece)), without writing."""
        if self.ckks is not None and not isinstance(piece.content, np.ndarray):
            return self.ckks.size(piece)
        return 8 + int(piece.content.nbytes)


def complaint(values: Values, range: float, addends: int) -> str:
    """Return what is to be said of values of which some are beyond range / addends."""
    odd, limit = values[~np.isfinite(values)], range / addends
    if len(odd):
        return (
            f"{len(odd)} of {len(values)} values to be sealed are not finite (the first is "
            f"{odd[0]}), and must be within ±{limit:.6g} (privacy.range over the clients); check "
            "the table for huge values and whether training diverged."
        )
    worst = float(values[np.argmax(np.abs(values))])
    return (
        f"The value {worst:.6g} cannot be sealed: with privacy.range = {range:.6g} and {addends} "
        f"clients each value must be within ±{limit:.6g}; set privacy.range to at least "
        f"{abs(worst) * addends:.3g}."
    )


def check_range(range: float, addends: int, smallest: float) -> None:
    """Raise ExperimentError if sums of so many values up to a range cannot be had."""
    if not smallest <= range <= _LARGEST:
        raise ExperimentError(
            f"privacy.range is {range}; it is the largest absolute value that a sum over the "
            f"clients may have, and must be from {smallest:.3g} to {_LARGEST:.3g}."
        )
    if addends < 1:
        raise ExperimentError(
            f"A sealed sum over {addends} clients was asked for; it needs at least one."
        )


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
        if (
            not same
            or first.shape != other.shape
            or first.digits != other.digits
            or first.owners != other.owners
        ):
            raise SealedError(
                f"A piece of {first.stream} with shape {first.shape} cannot be added to one of "
                f"{other.stream} with shape {other.shape}; add pieces of one total only."
            )
    contributors, nonces, twice = _all(
        tuple(piece.contributors for piece in pieces), tuple(piece.nonces for piece in pieces)
    )
    if twice:
        raise SealedError(
            f"The contribution of {list(twice)} to {first.stream} was added twice; add each "
            "client's contribution once."
        )
    head = first.stream, first.shape, contributors, content, first.digits
    return Piece.made(*head, nonces, first.owners)


@lru_cache(maxsize=4096)
def _all(
    contributors: tuple[tuple[str, ...], ...], nonces: tuple[tuple[bytes, ...], ...]
) -> tuple[tuple[str, ...], tuple[bytes, ...], tuple[str, ...]]:
    """Return the contributors of some pieces in order, their nonces, and those that are in two."""
    found: list[tuple[str, bytes | None]] = []
    for some, own in zip(contributors, nonces, strict=True):
        found += zip_longest(some, own[: len(some)])
    found.sort(key=itemgetter(0))
    names = tuple(name for name, _ in found)
    drawn = tuple(nonce for _, nonce in found if nonce is not None)
    return names, drawn, tuple(a for a, b in pairwise(names) if a == b)
