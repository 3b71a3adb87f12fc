"""Sealed sums under additive masks: a contribution is hidden by a pseudorandom stream modulo 2^64.

A client writes its values as fixed-point words, appends their check, and adds the words of a stream
of AES-256 in counter mode. The server adds such pieces modulo 2^64. Whoever holds the shared key
makes the streams of all contributors again and takes them off the total.

What protects whom
------------------
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
import os
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from intarsia import errors
from intarsia.errors import ReplayError, SealedError, TamperedError
from intarsia.privacy.keys import crypto
from intarsia.privacy.keys.crypto import BLOCK_BYTES, BlockCipher, Keystream, pseudorandom
from intarsia.privacy.keys.shared_key import SharedKey
from intarsia.privacy.secure_aggregation import fixed_point, protocol
from intarsia.privacy.secure_aggregation.fixed_point import FixedPoint
from intarsia.privacy.secure_aggregation.protocol import Digits, Piece, Stream, Values

Words = NDArray[np.uint64]
_Bytes = NDArray[np.uint8]
_Room = tuple[Words, _Bytes, _Bytes, Words]

_BLOCK_WORDS = 2  # of the cipher
_CHECK_WORDS = 2  # the halves of the check, so that 2^32 of them add up without wrapping
_LONG = 2**15  # words
_STARTS = 64  # totals whose places in the counter are kept
_PLACES = 4096  # sets of contributors whose places are kept
_NONCE_BYTES = 16
_ROOMS = 256  # lengths and numbers of contributors for which views are kept


class MaskedSealer:
    """A client's side of masked sums, with the shared key or what it derives for masks.

    An instance keeps ciphers and room for their output: it serves one thread.

    Raises
    ------
    KeyMaterialError
        If bytes are given and they are not 32.
    ExperimentError
        If `fixed` is set up for fewer addends than there are clients.
    """

    def __init__(self, key: SharedKey | bytes, fixed: FixedPoint, clients: int) -> None:
        masks = key if isinstance(key, bytes) else key.derive("masks")
        if len(masks) != crypto.KEY_BYTES:
            raise errors.KeyMaterialError(
                f"The key for masks has {len(masks)} bytes; it must have {crypto.KEY_BYTES}."
            )
        if not 1 <= clients <= fixed.addends:
            raise errors.ExperimentError(
                f"Sums over {clients} clients were asked of a fixed-point format for "
                f"{fixed.addends} addends; make it for the number of clients, at least one."
            )
        self._key = masks
        self._fixed = fixed
        self._scale = 1.0 / fixed.step
        self._clients = clients
        self._ledger = StreamLedger()
        self._nonce = (os.urandom(_NONCE_BYTES),)
        self._session: _Session | None = None

    def seal(self, client: str, stream: Stream, values: Values) -> Piece:
        """Return the words of a client's values under its masks; see `Sealer.seal`."""
        values = np.asarray(values, np.float64, order="C")
        flat, fixed = values.reshape(-1), self._fixed
        words, factors, masks = self._masked(client, stream, len(flat))
        if not fixed_point.seal_values(flat, self._scale, fixed.limit, factors, masks, words):
            raise errors.RangeError(protocol.complaint(flat, fixed.range, fixed.addends))
        self._ledger.enter(client, stream)
        return Piece(stream, values.shape, (client,), words, nonces=self._nonce)

    def seal_digits(
        self, client: str, stream: Stream, values: Values, digits: Digits
    ) -> Piece | None:
        """Return the words of values as two digits each, under masks; None if one has no room."""
        flat = values.reshape(-1)
        words, factors, masks = self._masked(client, stream, 2 * len(flat))
        given = (digits.size, digits.unit, digits.room, digits.bound, self._scale)
        if not fixed_point.seal_digits(flat, *given, factors, masks, words):
            return None
        self._ledger.enter(client, stream)
        return Piece.made(stream, (2, *values.shape), (client,), words, 2, self._nonce)

    def seal_words(self, client: str, stream: Stream, values: Words) -> Piece:
        """Return a client's words as they are under its masks; nobody else's are added to them."""
        flat = values.reshape(-1)
        words, factors, masks = self._masked(client, stream, len(flat))
        fixed_point.seal_words(flat, factors, masks, words)
        self._ledger.enter(client, stream)
        return Piece.made(stream, values.shape, (client,), words, 0, self._nonce)

    def open(self, piece: Piece) -> Values:
        """Return the total of the piece's contributors; TamperedError if it was altered."""
        words, factors, masks = self._unmasked(piece)
        values = np.empty(piece.shape)
        if not fixed_point.open_values(words, masks, factors, self._fixed.step, values.reshape(-1)):
            raise _altered(piece)
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
            raise _altered(piece)
        return values

    def open_words(self, piece: Piece) -> Words:
        """Return what `seal_words` sealed; TamperedError if it was altered."""
        words, factors, masks = self._unmasked(piece)
        values = np.empty(piece.shape, np.uint64)
        if not fixed_point.open_words(words, masks, factors, values.reshape(-1)):
            raise _altered(piece)
        return values

    def _masked(self, client: str, stream: Stream, count: int) -> tuple[Words, Words, Words]:
        """Return room for words of a stream that was not used, factors, and the mask."""
        self._ledger.refuse_used(client, stream)
        session = self._session
        if session is None or session.name != stream.session:
            session = self._session = _Session(self._key, stream.session)
        start = session.start(stream)
        masks = session.masks(start, (client,), self._nonce, count + _CHECK_WORDS)
        return np.empty(count + _CHECK_WORDS, np.uint64), session.factors(count), masks

    def _unmasked(self, piece: Piece) -> tuple[Words, Words, Words]:
        """Return words from which all but the last masks were taken, factors, and those masks."""
        names, stream = piece.contributors, piece.stream
        if not 1 <= len(names) <= self._clients or (
            len(names) > 1 and len(set(names)) != len(names)
        ):
            raise TamperedError(
                f"A total of {stream} names the contributors {list(names)}; it must name 1 "
                f"to {self._clients} different clients."
            )
        nonces = piece.nonces
        if len(nonces) != len(names) or any(type(one) is not bytes for one in nonces):
            raise TamperedError(
                f"A total of {stream} by {list(names)} has {len(nonces)} nonces; it must have one "
                "of each contributor: it was altered, resume the run."
            )
        words = _words_of(piece)
        count = len(words)
        session = self._session
        if session is None or session.name != stream.session:
            session = self._session = _Session(self._key, stream.session)
        start = session.start(stream)
        most = max(1, _LONG // count)  # contributors at a time: masks stay in cache
        if len(names) > most:
            words = words.copy()
        while len(names) > most:
            for masks in session.masks(start, names[:most], nonces[:most], count):
                words -= masks[:count]
            names, nonces = names[most:], nonces[most:]
        return words, session.factors(count), session.masks(start, names, nonces, count)


def _altered(piece: Piece) -> TamperedError:
    return TamperedError(
        f"The total of {piece.stream} is not the sum of what {list(piece.contributors)} sealed: it "
        "was altered, has other contributors, or was sealed with another key; compare the "
        "fingerprints of the clients' keys, then resume the run."
    )


class MaskedAdder:
    """The server's side of masked sums: it has no key."""

    def add(self, *pieces: Piece) -> Piece:
        """Return the sum of pieces of the same total; see `Aggregator.add`."""
        total = _words_of(pieces[0]).copy()
        found = protocol.joined(pieces, total)
        if found.digits == 0 and len(pieces) > 1:
            raise SealedError(
                f"Words of {list(found.contributors)} were to be added up in {found.stream}; they "
                "are no numbers: let one client alone send those of a cell."
            )
        for piece in pieces[1:]:
            total += _words_of(piece)
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


class _Session:
    """What the key for masks gives to one session; derived once."""

    def __init__(self, key: bytes, name: str) -> None:
        self.name = name
        self._key = key
        self._start_hash = blake2b(key=pseudorandom(key, "start", name), digest_size=BLOCK_BYTES)
        self._cipher = BlockCipher(pseudorandom(key, "streams", name))
        self._starts: dict[int, tuple[Stream, Words]] = {}
        self._places: dict[tuple[tuple[str, ...], tuple[bytes, ...]], Words] = {}
        self._rooms: dict[tuple[int, int], _Room] = {}
        self._factors = np.zeros(0, np.uint64)
        self._counters = np.zeros((0, 2), np.uint64)
        self._stream = np.zeros(BLOCK_BYTES, np.uint8)

    def start(self, stream: Stream) -> Words:
        """Return what the place of a total in the counter is for all clients, (2,)."""
        # the same object at all who seal and open the total: hashed for the first of them
        kept = self._starts.get(id(stream))
        if kept is not None and kept[0] is stream:
            return kept[1]
        digest = self._start_hash.copy()
        digest.update(stream.label(""))
        found = np.frombuffer(digest.digest(), np.uint64)
        if len(self._starts) >= _STARTS:
            self._starts.clear()
        self._starts[id(stream)] = stream, found
        return found

    def masks(
        self, start: Words, clients: tuple[str, ...], nonces: tuple[bytes, ...], count: int
    ) -> Words:
        """Return the masks of clients, (clients, count or more), until it is called again."""
        places = self._places.get((clients, nonces))
        if places is None:
            if len(self._places) >= _PLACES:
                self._places.clear()
            places = self._places[clients, nonces] = self._placed(clients, nonces)
        blocks = (count + 1) // _BLOCK_WORDS
        room = self._rooms.get((len(clients), blocks))
        if room is None:
            room = self._rooms[len(clients), blocks] = self._room(len(clients), blocks)
        here, clear, encrypted, words = room
        fixed_point.counters(start, places, blocks, here)
        self._cipher.write(clear, encrypted)
        return words

    def _room(self, clients: int, blocks: int) -> _Room:
        """Return where the masks of clients are made: views of arrays that all masks share."""
        total = blocks * clients
        if len(self._counters) < total:
            self._counters = np.zeros((total, _BLOCK_WORDS), np.uint64)
            self._stream = np.zeros((total + 1) * BLOCK_BYTES, np.uint8)
            self._rooms.clear()
        if len(self._rooms) >= _ROOMS:
            self._rooms.clear()
        here, end = self._counters[:total], total * BLOCK_BYTES
        words = self._stream[:end].view(np.uint64).reshape(clients, -1)
        encrypted = self._stream[: end + BLOCK_BYTES]
        return here, here.view(np.uint8).reshape(-1), encrypted, words

    def factors(self, count: int) -> Words:
        """Return the secret factors of the check, at least `count` of them."""
        if len(self._factors) < count:
            stream = np.empty(8 * count, np.uint8)
            cipher = Keystream(pseudorandom(self._key, "check", self.name))
            cipher.write(bytes(16), np.zeros_like(stream), stream)
            self._factors = stream.view(np.uint64)
        return self._factors

    def _placed(self, clients: tuple[str, ...], nonces: tuple[bytes, ...]) -> Words:
        """Return how far the places of clients are from that, (clients, 2)."""
        found = [
            pseudorandom(self._key, "place", self.name, name, nonce)[:16]
            for name, nonce in zip(clients, nonces, strict=True)
        ]
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
