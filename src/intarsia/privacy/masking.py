"""Sealed sums under additive masks: a contribution is hidden by a pseudorandom stream modulo 2^64.

A client writes its values as fixed-point words, appends their check, and adds the words of a stream
of AES-256 in counter mode. The server adds such pieces modulo 2^64. Whoever holds the shared key
makes the streams of all contributors again and takes them off the total.

What protects whom
------------------
* The server and outsiders see words that are indistinguishable from random ones without the shared
  key, which only clients have. The key of the streams belongs to a session. The place of one in the
  counter, 128 bits, is the sum of two keyed hashes: of session, sequence, round, function, field
  and cell, and of session and client. Two of 2^30 streams of 2^13 blocks overlap with probability
  2^-56. A ledger refuses a stream
  that the client has used. The session must be drawn afresh for each start of a run, by a client:
  a server that could bring back an old session after a restart would see two values under one mask.
* A server that alters totals is found out: a contribution carries Σ rⱼ xⱼ modulo a prime of 64
  bits, with factors r known to clients only, under masks (`intarsia.maths.fixed_point_words`).
  These checks add up as the values do. Another total, another stream or other contributors pass
  with probability about 2^-64. Not found out: leaving a client out and saying so in the
  contributors, or forwarding the genuine total of another exchange, so that a client compares
  `Piece.stream` and `Piece.contributors` with what it asked for.
* Clients are not protected from one another: one that sees the piece of another opens it.

Clients that drop out
---------------------
A total opens with the names of those who are in it, whoever they are: masks need not cancel, since
every client can make the mask of every other. This is why no shares of seeds are dealt out as in
Bonawitz et al. 2017 (https://doi.org/10.1145/3133956.3133982), whose masks cancel in pairs, and why
a drop-out costs no further exchange. What is paid: there, a client that colludes with the server
learns nothing of a single contribution while enough others are honest; here, it opens every one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import ExperimentError, KeyMaterialError, ReplayError, TamperedError
from intarsia.maths.fixed_point_words import PRIME, counters, unmask_with_check
from intarsia.privacy.ciphers import (
    BLOCK_BYTES,
    KEY_BYTES,
    BlockCipher,
    Keystream,
    pseudorandom,
)
from intarsia.privacy.fixed_point import FixedPoint
from intarsia.privacy.keys import SharedKey
from intarsia.privacy.sealing import Piece, Stream, Values, joined

__all__ = ["MaskedAdder", "MaskedSealer", "StreamLedger"]

Words = NDArray[np.uint64]
_Bytes = NDArray[np.uint8]
_Room = tuple[Words, int, Words, _Bytes, _Bytes, Words]

_BLOCK_WORDS = 2  # of the cipher
_CHECK_WORDS = 2  # the halves of the check, so that 2^32 of them add up without wrapping
_HALF = 32
_LONG = 2**14  # words
_ROOMS = 256  # lengths and contributors for which views are kept


class MaskedSealer:
    """A client's side of masked sums, with the shared key.

    Parameters
    ----------
    key
        The key that all clients share, or the 32 bytes that it derives for masks.
    fixed
        How values become words, the same at all clients.
    clients
        The number of clients in the federation.

    Raises
    ------
    KeyMaterialError
        If bytes are given and they are not 32.
    ExperimentError
        If `fixed` is set up for fewer addends than there are clients.

    Notes
    -----
    An instance keeps ciphers and room for their output: it serves one thread.
    """

    def __init__(self, key: SharedKey | bytes, fixed: FixedPoint, clients: int) -> None:
        masks = key if isinstance(key, bytes) else key.derive("masks")
        if len(masks) != KEY_BYTES:
            raise KeyMaterialError(
                f"The key for masks has {len(masks)} bytes; it must have {KEY_BYTES}."
            )
        if not 1 <= clients <= fixed.addends:
            raise ExperimentError(
                f"Sums over {clients} clients were asked of a fixed-point format for "
                f"{fixed.addends} addends; make it for the number of clients, at least one."
            )
        self._key = masks
        self._fixed = fixed
        self._clients = clients
        self._ledger = StreamLedger()
        self._session: _Session | None = None

    def seal(self, client: str, stream: Stream, values: Values) -> Piece:
        """Return the words of a client's values under its masks.

        Raises
        ------
        RangeError
            If a value is not finite, or so large that a total could leave the range.
        ReplayError
            If the client has used the stream before.
        """
        self._ledger.refuse_used(client, stream)
        values = np.asarray(values, np.float64)
        count = values.size
        words = np.empty(count + _CHECK_WORDS, np.uint64)
        session = self._keys_of(stream.session)
        flat = np.ascontiguousarray(values).reshape(-1)
        total = self._fixed.encode_with_check(flat, session.factors(count), words)
        words[count] = total & (2**_HALF - 1)
        words[count + 1] = total >> _HALF
        masks = session.masks(stream, (client,), len(words))
        self._ledger.enter(client, stream)
        words += masks[0]
        return Piece(stream, values.shape, (client,), words)

    def open(self, piece: Piece) -> Values:
        """Return the total of the piece's contributors.

        Raises
        ------
        TamperedError
            If the piece is not the sum of what they sealed.
        """
        names = piece.contributors
        if not 1 <= len(names) <= self._clients or len(set(names)) != len(names):
            raise TamperedError(
                f"A total of {piece.stream} names the contributors {list(names)}; it must name 1 "
                f"to {self._clients} different clients."
            )
        words = _words_of(piece).copy()
        count = len(words) - _CHECK_WORDS
        session = self._keys_of(piece.stream.session)
        factors, values = session.factors(count), np.empty(count)
        most = max(1, _LONG // len(words))  # contributors at a time, so that masks stay in cache
        for first in range(0, len(names) - most, most):
            for masks in session.masks(piece.stream, names[first : first + most], len(words)):
                words -= masks
        last = names[(len(names) - 1) // most * most :]
        masks = session.masks(piece.stream, last, len(words))
        found, low, high = unmask_with_check(words, masks, factors, self._fixed.step, values)
        if (low + (high << _HALF)) % PRIME != found:
            raise TamperedError(
                f"The total of {piece.stream} is not the sum of what {list(names)} sealed: it was "
                "altered, has other contributors, or was sealed with another key; compare the "
                "fingerprints of the clients' keys, then resume the run."
            )
        return values.reshape(piece.shape)

    def _keys_of(self, session: str) -> _Session:
        if self._session is None or self._session.name != session:
            self._session = _Session(self._key, session)
        return self._session


class MaskedAdder:
    """The server's side of masked sums: it has no key."""

    def add(self, one: Piece, other: Piece) -> Piece:
        """Return the sum of two pieces of the same total.

        Raises
        ------
        SealedError
            If the pieces belong to different totals, or a client is in both.
        TamperedError
            If the content of a piece does not fit its shape.
        """
        both = joined(one, other, None)
        words = _words_of(one) + _words_of(other)
        return Piece(both.stream, both.shape, both.contributors, words, both.digits)


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
        if present is None or (present.session, present.number) != (
            stream.session,
            stream.sequence,
        ):
            if present is not None and present.session != stream.session:
                self._left.add((client, present.session))
            present = self._present[client] = _Sequence(stream.session, stream.sequence)
        present.names.add((stream.function, stream.field, stream.cell))


@dataclass
class _Sequence:
    session: str
    number: int
    names: set[tuple[str, str, int]] = field(default_factory=set)


class _Session:
    """What the key for masks gives to one session; derived once."""

    def __init__(self, key: bytes, name: str) -> None:
        self.name = name
        self._key = key
        self._start_key = pseudorandom(key, "start", name)
        self._cipher = BlockCipher(pseudorandom(key, "streams", name))
        self._places: dict[tuple[str, ...], Words] = {}
        self._rooms: dict[tuple[tuple[str, ...], int], _Room] = {}
        self._factors = np.zeros(0, np.uint64)
        self._counters = np.zeros((0, 2), np.uint64)
        self._stream = np.zeros(BLOCK_BYTES, np.uint8)

    def masks(self, stream: Stream, clients: tuple[str, ...], count: int) -> Words:
        """Return the masks of clients, (clients, count), until it is called again."""
        room = self._rooms.get((clients, count))
        if room is None:
            room = self._rooms[clients, count] = self._room(clients, count)
        places, blocks, here, clear, encrypted, words = room
        counters(self._start(stream), places, blocks, here)
        self._cipher.write(clear, encrypted)
        return words

    def _room(self, clients: tuple[str, ...], count: int) -> _Room:
        """Return where the masks of clients are made: views of arrays that all masks share."""
        places = self._places.get(clients)
        if places is None:
            places = self._places[clients] = self._placed(clients)
        blocks = -(-count // _BLOCK_WORDS)
        total = blocks * len(places)
        if len(self._counters) < total:
            self._counters = np.zeros((total, _BLOCK_WORDS), np.uint64)
            self._stream = np.zeros((total + 1) * BLOCK_BYTES, np.uint8)
            self._rooms.clear()
        if len(self._rooms) >= _ROOMS:
            self._rooms.clear()
        here, end = self._counters[:total], total * BLOCK_BYTES
        words = self._stream[:end].view(np.uint64).reshape(len(places), -1)[:, :count]
        encrypted = self._stream[: end + BLOCK_BYTES]
        return places, blocks, here, here.view(np.uint8).reshape(-1), encrypted, words

    def factors(self, count: int) -> Words:
        """Return the secret factors of the check, at least `count` of them."""
        if len(self._factors) < count:
            stream = np.empty(8 * count, np.uint8)
            cipher = Keystream(pseudorandom(self._key, "check", self.name))
            cipher.write(bytes(16), np.zeros_like(stream), stream)
            self._factors = stream.view(np.uint64)
        return self._factors

    def _start(self, stream: Stream) -> Words:
        """Return what the place of a total in the counter is for all clients, (2,)."""
        found = blake2b(stream.label(""), key=self._start_key, digest_size=16).digest()
        return np.frombuffer(found, np.uint64)

    def _placed(self, clients: tuple[str, ...]) -> Words:
        """Return how far the places of clients are from that, (clients, 2)."""
        found = [pseudorandom(self._key, "place", self.name, name)[:16] for name in clients]
        return np.frombuffer(b"".join(found), np.uint64).reshape(-1, 2)


def _words_of(piece: Piece) -> Words:
    """Return the words of a piece that came from elsewhere."""
    words = piece.content
    expected = math.prod(piece.shape) + _CHECK_WORDS
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
