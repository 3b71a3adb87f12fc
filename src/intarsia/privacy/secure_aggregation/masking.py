"""Sealed sums under additive masks: a contribution is hidden by pseudorandom streams modulo 2^64.

A client writes its values as fixed-point words, appends their check, and adds the words of streams
of AES-256 in counter mode. The server adds such pieces: words modulo 2^64, checks modulo the prime.
Where the streams come from, and which of them are left in a total, is a `Masks`: here `SharedMasks`
(`trust = "clients"`), in `intarsia.privacy.secure_aggregation.pairwise` those of pairs.

What protects whom, with one key
--------------------------------
* The server and outsiders see words that are indistinguishable from random ones without the shared
  key, which only clients have. The key of the streams belongs to a session. The place of one in the
  counter, 128 bits, is the sum of two keyed hashes: of session, sequence, round, function, field
  and cell, and of session, client and nonce. Two of 2^30 streams of 2^13 blocks overlap with
  probability 2^-56. A ledger refuses a stream that the client has used. The nonce is drawn from the
  system for each sealer and goes with the piece: a server that names an old session or an old
  exchange to a client that lost its state, or went back to an old one, sees no two values under one
  mask.
* A server that alters totals is found out: a contribution carries Σ rⱼ xⱼ modulo a prime of 64
  bits, with factors r known to clients only, under masks
  (`intarsia.privacy.secure_aggregation.fixed_point`).
  These checks add up as the values do. Another total, another stream or other contributors pass
  with probability about 2^-64. Not found out: leaving a client out and saying so in the
  contributors, or forwarding the genuine total of another exchange, so that a client compares
  `Piece.stream` and `Piece.contributors` with what it asked for.
* Clients are not protected from one another: one that sees the piece of another opens it. One that
  gives its key to the server opens every contribution of all.

A total opens with the names of those who are in it, whoever they are: each makes a mask of its own,
and every client can make it again.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from intarsia import errors
from intarsia.errors import ReplayError, SealedError, TamperedError
from intarsia.privacy.keys import crypto
from intarsia.privacy.keys.crypto import BLOCK_BYTES, BlockCipher, Keystream, pseudorandom
from intarsia.privacy.keys.shared_key import SharedKey
from intarsia.privacy.secure_aggregation import fixed_point, protocol
from intarsia.privacy.secure_aggregation.fixed_point import FixedPoint
from intarsia.privacy.secure_aggregation.protocol import (
    NOT_NAMED,
    Digits,
    Parties,
    Piece,
    Stream,
    Values,
)

Words = NDArray[np.uint64]
_Bytes = NDArray[np.uint8]
Views = tuple[Words, _Bytes, _Bytes, Words]
Rows = tuple[Words, _Bytes, list[_Bytes], Words]

BLOCK_WORDS = 2  # of the cipher
_KINDS = 3  # of pieces, which begin at other factors: the largest number of digits
CHECK_WORDS = 1  # added up modulo the prime of the check
_LONG = 2**15  # words
_STARTS = 64  # totals whose places in the counter are kept
_PLACES = 4096  # sets of contributors whose places are kept
NONCE_BYTES = 16
_ROOMS = 256  # lengths and numbers of contributors for which views are kept


class Masks(Protocol):
    """Where the masks of contributions come from, and which of them are left in a total.

    What it returns is overwritten when it is called again.
    """

    def of_contribution(
        self, client: str, stream: Stream, parties: Parties, count: int
    ) -> tuple[Words, int, Words]:
        """Return the masks of a contribution of some words, how many are added, and factors.

        Masks are (masks, at least `count`): those after the added ones are taken off. Factors are
        those of the check, some more than `count`.
        """

    def of_total(self, piece: Piece, count: int) -> Iterator[tuple[Words, bool]]:
        """Yield the masks that are in a total, a few at a time, and whether these are the last."""

    def factors(self, piece: Piece, count: int) -> Words:
        """Return the factors of the check of a total, some more than `count`."""

    def nonce(self, client: str) -> bytes:
        """Return what goes with a client's piece, for those who open it."""

    def owners(self, parties: Parties) -> tuple[str, ...]:
        """Return whom a piece names as those who open it; (): all clients."""


class MaskedSealer:
    """A client's side of masked sums: with a key that all share, or what it derives for masks.

    `masks` may also be where other masks come from. An instance keeps ciphers and room for their
    output: it serves one thread.

    Raises
    ------
    KeyMaterialError
        If bytes are given and they are not 32.
    ExperimentError
        If `fixed` is set up for fewer addends than there are clients.
    """

    def __init__(self, masks: SharedKey | bytes | Masks, fixed: FixedPoint, clients: int) -> None:
        if not 1 <= clients <= fixed.addends:
            raise errors.ExperimentError(
                f"Sums over {clients} clients were asked of a fixed-point format for "
                f"{fixed.addends} addends; make it for the number of clients, at least one."
            )
        self._masks: Masks = SharedMasks(masks) if isinstance(masks, SharedKey | bytes) else masks
        self._fixed = fixed
        self._scale = 1.0 / fixed.step
        self._clients = clients
        self._ledger = StreamLedger()

    def seal(
        self, client: str, stream: Stream, values: Values, parties: Parties = NOT_NAMED
    ) -> Piece:
        """Return the words of a client's values under its masks; see `Sealer.seal`."""
        values = np.asarray(values, np.float64, order="C")
        flat, fixed = values.reshape(-1), self._fixed
        words, factors, masks, added = self._masked(client, stream, parties, len(flat), 1)
        given = self._scale, fixed.limit, factors, masks, added
        if not fixed_point.seal_values(flat, *given, words):
            raise errors.RangeError(protocol.complaint(flat, fixed.range, fixed.addends))
        return self._entered(client, stream, parties, values.shape, words, 1)

    def seal_digits(
        self,
        client: str,
        stream: Stream,
        values: Values,
        digits: Digits,
        parties: Parties = NOT_NAMED,
    ) -> Piece | None:
        """Return the words of values as two digits each, under masks; None if one has no room."""
        flat = values.reshape(-1)
        words, factors, masks, added = self._masked(client, stream, parties, 2 * len(flat), 2)
        given = (digits.size, digits.unit, digits.room, digits.bound, self._scale)
        if not fixed_point.seal_digits(flat, *given, factors, masks, added, words):
            return None
        return self._entered(client, stream, parties, (2, *values.shape), words, 2)

    def seal_words(
        self,
        client: str,
        stream: Stream,
        values: Words | NDArray[np.uint32],
        parties: Parties = NOT_NAMED,
    ) -> Piece:
        """Return a client's words as they are under its masks; those of 32 bits add up."""
        flat = values.reshape(-1).astype(np.uint64)
        digits = 0 if values.dtype == np.uint64 else 3
        words, factors, masks, added = self._masked(client, stream, parties, len(flat), digits)
        fixed_point.seal_words(flat, factors, masks, added, words)
        return self._entered(client, stream, parties, values.shape, words, digits)

    def open(self, piece: Piece) -> Values:
        """Return the total of the piece's contributors; TamperedError if it was altered."""
        words, factors, masks = self._unmasked(piece)
        values = np.empty(piece.shape)
        if not fixed_point.open_values(words, masks, factors, self._fixed.step, values.reshape(-1)):
            raise altered_total(piece)
        return values

    def open_digits(self, piece: Piece, digits: Digits) -> Values:
        """Return the total of what `seal_digits` sealed; TamperedError if it was altered."""
        if piece.shape[:1] != (2,):
            raise TamperedError(
                f"A piece of {piece.stream} with shape {piece.shape} was to be opened as two "
                "digits, which a first axis of 2 holds; it was altered."
            )
        words, factors, masks = self._unmasked(piece)
        values = np.empty(piece.shape[1:])
        factor, least = digits.size / digits.unit, digits.bound / 2
        flat = values.reshape(-1)
        if not fixed_point.open_digits(
            words, masks, factors, self._fixed.step, factor, least, flat
        ):
            raise altered_total(piece)
        return values

    def open_words(self, piece: Piece) -> Words:
        """Return what `seal_words` sealed; TamperedError if it was altered."""
        words, factors, masks = self._unmasked(piece)
        values = np.empty(piece.shape, np.uint64)
        if not fixed_point.open_words(words, masks, factors, values.reshape(-1)):
            raise altered_total(piece)
        return values

    def _masked(
        self, client: str, stream: Stream, parties: Parties, count: int, digits: int
    ) -> tuple[Words, Words, Words, int]:
        """Return room for words of a stream that was not used, factors, masks, and how many add."""
        self._ledger.refuse_used(client, stream)
        count += CHECK_WORDS
        masks, added, factors = self._masks.of_contribution(client, stream, parties, count)
        return np.empty(count, np.uint64), factors[digits:], masks, added

    def _entered(
        self,
        client: str,
        stream: Stream,
        parties: Parties,
        shape: tuple[int, ...],
        words: Words,
        digits: int,
    ) -> Piece:
        """Return the piece of words that were sealed; the stream is used from here on."""
        self._ledger.enter(client, stream)
        masks = self._masks
        nonces, owners = (masks.nonce(client),), masks.owners(parties)
        return Piece.made(stream, shape, (client,), words, digits, nonces, owners)

    def _unmasked(self, piece: Piece) -> tuple[Words, Words, Words]:
        """Return words from which all but the last masks were taken, factors, and those masks."""
        check_names(piece, self._clients)
        if piece.digits not in range(_KINDS + 1):
            raise altered_total(piece)
        words = words_of(piece)
        count = len(words)
        # those of another kind of piece are others: what is opened is what was sealed
        factors = self._masks.factors(piece, count)[piece.digits :]
        for masks, last in self._masks.of_total(piece, count):
            if last:
                break
            words = words.copy()
            fixed_point.take_off(words, masks)
        return words, factors, masks


def check_names(piece: Piece, clients: int) -> None:
    """Raise TamperedError if a piece's contributors are no names, or not each with a nonce."""
    names, nonces = piece.contributors, piece.nonces
    if not 1 <= len(names) <= clients or (len(names) > 1 and len(set(names)) != len(names)):
        raise TamperedError(
            f"A total of {piece.stream} names the contributors {list(names)}; it must name 1 "
            f"to {clients} different clients."
        )
    if len(nonces) != len(names) or any(type(one) is not bytes for one in nonces):
        raise TamperedError(
            f"A total of {piece.stream} by {list(names)} has {len(nonces)} nonces; it must have "
            "one of each contributor: it was altered, resume the run."
        )


class SharedMasks:
    """Masks from a key that all clients have: each contribution has its own, under a nonce."""

    def __init__(self, key: SharedKey | bytes) -> None:
        self._key = key if isinstance(key, bytes) else key.derive("masks")
        if len(self._key) != crypto.KEY_BYTES:
            raise errors.KeyMaterialError(
                f"The key for masks has {len(self._key)} bytes; it must have {crypto.KEY_BYTES}."
            )
        self._nonce = os.urandom(NONCE_BYTES)
        self._room = Room()
        self._session: Session | None = None

    def of_contribution(
        self, client: str, stream: Stream, parties: Parties, count: int
    ) -> tuple[Words, int, Words]:
        """Return the client's mask, and the factors of the check."""
        session = self._session_of(stream)
        masks = session.masks(session.start(stream), (client,), (self._nonce,), count)
        return masks, 1, session.factors(count)

    def of_total(self, piece: Piece, count: int) -> Iterator[tuple[Words, bool]]:
        """Yield the masks of all contributors."""
        session = self._session_of(piece.stream)
        start = session.start(piece.stream)
        names, nonces = piece.contributors, piece.nonces
        most = max(1, _LONG // count)  # contributors at a time: masks stay in cache
        for first in range(0, len(names), most):
            some = slice(first, first + most)
            masks = session.masks(start, names[some], nonces[some], count)
            yield masks, first + most >= len(names)

    def factors(self, piece: Piece, count: int) -> Words:
        """Return the factors of the session."""
        return self._session_of(piece.stream).factors(count)

    def nonce(self, client: str) -> bytes:
        """Return what was drawn for this sealer."""
        return self._nonce

    def owners(self, parties: Parties) -> tuple[str, ...]:
        """Return (): whoever has the key opens."""
        return ()

    def _session_of(self, stream: Stream) -> Session:
        session = self._session
        if session is None or session.name != stream.session:
            session = self._session = Session(self._key, stream.session, self._room)
        return session


def altered_total(piece: Piece) -> TamperedError:
    """Return the error about a total whose check is not right."""
    return TamperedError(
        f"The total of {piece.stream} is not the sum of what {list(piece.contributors)} sealed: it "
        "was altered, has other contributors, or was sealed with another key; compare the "
        "fingerprints of the clients' keys, then resume the run."
    )


class MaskedAdder:
    """The server's side of masked sums: it has no key."""

    def add(self, *pieces: Piece) -> Piece:
        """Return the sum of pieces of the same total; see `Aggregator.add`."""
        total = words_of(pieces[0]).copy()
        found = protocol.joined(pieces, total)
        if found.digits == 0 and len(pieces) > 1:
            raise SealedError(
                f"Words of {list(found.contributors)} were to be added up in {found.stream}; they "
                "are no numbers: let one client alone send those of a cell."
            )
        for piece in pieces[1:]:
            fixed_point.add_words(total, words_of(piece))
        return found


class StreamLedger:
    """Remembers the streams that clients have used, in bounded room.

    Sequence numbers only grow within a session, so that the names used under the present one are
    all that must be kept, and a session that was left is not entered again.
    """

    def __init__(self) -> None:
        self._present: dict[str, _Sequence] = {}
        self._left: set[tuple[str, str]] = set()

    def refuse_used(self, client: str, stream: Stream) -> None:
        """Raise ReplayError if the client has used the stream, or has gone past it."""
        present = self._present.get(client)
        if (
            present is not None
            and present.number < stream.sequence
            and present.session == stream.session
        ):
            return
        if (client, stream.session) in self._left:
            raise ReplayError(
                f"Client {client!r} has left session {stream.session}; draw a fresh session "
                "whenever a run is started or resumed."
            )
        if present is None or present.session != stream.session:
            return
        used = (stream.function, stream.field, stream.cell) in present.names
        if stream.sequence < present.number or (stream.sequence == present.number and used):
            raise ReplayError(
                f"Client {client!r} was asked to seal {stream} again, after exchange "
                f"{present.number}; a stream hides one contribution only, so that every exchange "
                "needs a higher sequence number."
            )

    def enter(self, client: str, stream: Stream) -> None:
        """Remember that the client has used the stream."""
        present = self._present.get(client)
        if present is None or present.session != stream.session:
            if present is not None:
                self._left.add((client, present.session))
            present = self._present[client] = _Sequence(stream.session, stream.sequence)
        elif present.number != stream.sequence:
            present.number = stream.sequence
            present.names.clear()
        present.names.add((stream.function, stream.field, stream.cell))


@dataclass
class _Sequence:
    session: str
    number: int
    names: set[tuple[str, str, int]] = field(default_factory=set)


class Room:
    """Where masks are made: views of arrays that all masks of a sealer share."""

    def __init__(self) -> None:
        self._views: dict[tuple[int, int], Views] = {}
        self._rows: dict[tuple[int, int], Rows] = {}
        self._counters = np.zeros((0, BLOCK_WORDS), np.uint64)
        self._stream = np.zeros(BLOCK_BYTES, np.uint8)

    def views(self, masks: int, blocks: int) -> Views:
        """Return counters, the bytes of these, room for as many bytes, and this as words."""
        found = self._views.get((masks, blocks))
        if found is None:
            found = self._views[masks, blocks] = self._made(masks, blocks)
        return found

    def rows(self, masks: int, blocks: int) -> Rows:
        """Return counters of one mask, their bytes, room for each mask, and all of it as words.

        What is written reaches into the next row: masks are written in their order.
        """
        found = self._rows.get((masks, blocks))
        if found is None:
            here, clear, encrypted, words = self.views(masks, blocks)
            size = blocks * BLOCK_BYTES
            starts = range(0, masks * size, size)
            rows = [encrypted[start : start + size + BLOCK_BYTES] for start in starts]
            found = self._rows[masks, blocks] = here[:blocks], clear[:size], rows, words
        return found

    def _made(self, masks: int, blocks: int) -> Views:
        total = blocks * masks
        if len(self._counters) < total:
            self._counters = np.zeros((total, BLOCK_WORDS), np.uint64)
            self._stream = np.zeros((total + 1) * BLOCK_BYTES, np.uint8)
            self._views.clear()
            self._rows.clear()
        if len(self._views) >= _ROOMS:
            self._views.clear()
            self._rows.clear()
        here, end = self._counters[:total], total * BLOCK_BYTES
        words = self._stream[:end].view(np.uint64).reshape(masks, -1)
        encrypted = self._stream[: end + BLOCK_BYTES]
        return here, here.view(np.uint8).reshape(-1), encrypted, words


class Session:
    """What a key for masks gives to one session; derived once."""

    def __init__(self, key: bytes, name: str, room: Room) -> None:
        self.name = name
        self._key, self._room = key, room
        self._start_hash = blake2b(key=pseudorandom(key, "start", name), digest_size=BLOCK_BYTES)
        self.cipher = BlockCipher(pseudorandom(key, "streams", name))
        self._starts: dict[int, tuple[Stream, tuple[str, ...], Words]] = {}
        self._places: dict[tuple[tuple[str, ...], tuple[bytes, ...]], Words] = {}
        self._factors = np.zeros(0, np.uint64)

    def start(self, stream: Stream, contributors: tuple[str, ...] = ()) -> Words:
        """Return what the place of a total in the counter is for all clients, (2,).

        `contributors` are named where a mask is theirs together.
        """
        # the same object at all who seal and open the total: hashed for the first of them
        kept = self._starts.get(id(stream))
        if kept is not None and kept[0] is stream and kept[1] == contributors:
            return kept[2]
        digest = self._start_hash.copy()
        digest.update(stream.label(""))
        if contributors:
            digest.update(crypto.joined_texts(*contributors))
        found = np.frombuffer(digest.digest(), np.uint64)
        if len(self._starts) >= _STARTS:
            self._starts.clear()
        self._starts[id(stream)] = stream, contributors, found
        return found

    def masks(
        self, start: Words, clients: tuple[str, ...], nonces: tuple[bytes, ...], count: int
    ) -> Words:
        """Return the masks of clients, (clients, count or more), until it is called again."""
        places = self.places(clients, nonces)
        blocks = (count + 1) // BLOCK_WORDS
        here, clear, encrypted, words = self._room.views(len(clients), blocks)
        fixed_point.counters(start, places, blocks, here)
        self.cipher.write(clear, encrypted)
        return words

    def factors(self, count: int) -> Words:
        """Return the secret factors of the check, at least `count` of them for each kind."""
        if len(self._factors) < count + _KINDS:
            stream = np.empty(8 * (count + _KINDS), np.uint8)
            cipher = Keystream(pseudorandom(self._key, "check", self.name))
            cipher.write(bytes(16), np.zeros_like(stream), stream)
            self._factors = stream.view(np.uint64)
        return self._factors

    def places(self, clients: tuple[str, ...], nonces: tuple[bytes, ...]) -> Words:
        """Return how far the places of clients are from the start, (clients, 2).

        Without a nonce a mask is at the start.
        """
        places = self._places.get((clients, nonces))
        if places is None:
            if len(self._places) >= _PLACES:
                self._places.clear()
            found = b"".join(
                pseudorandom(self._key, "place", self.name, name, nonce)[:BLOCK_BYTES]
                if nonce
                else bytes(BLOCK_BYTES)
                for name, nonce in zip(clients, nonces, strict=True)
            )
            places = np.frombuffer(found, np.uint64).reshape(-1, BLOCK_WORDS)
            self._places[clients, nonces] = places
        return places


def words_of(piece: Piece) -> Words:
    """Return the words of a piece that came from elsewhere."""
    words = piece.content
    expected = math.prod(piece.shape) + CHECK_WORDS
    if not isinstance(words, np.ndarray) or words.dtype != np.uint64 or words.shape != (expected,):
        found = (
            f"{words.dtype} of shape {words.shape}"
            if isinstance(words, np.ndarray)
            else type(words).__name__
        )
        raise TamperedError(
            f"A piece of {piece.stream} with shape {piece.shape} holds {found}; it must hold "
            f"{expected} words of uint64."
        )
    return words
