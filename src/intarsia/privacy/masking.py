"""Sealed sums under additive masks: a contribution is hidden by a pseudorandom stream modulo 2^64.

A client writes its values as fixed-point words, appends their check, and adds the words of a stream
of AES-256 in counter mode. The server adds such pieces modulo 2^64. Whoever holds the shared key
makes the streams of all contributors again and takes them off the total.

What protects whom
------------------
* The server and outsiders see words that are indistinguishable from random ones without the shared
  key, which only clients have. The key of a stream belongs to a session and a client, its place in
  the counter to a keyed hash of session, sequence, round, function, field and cell: 128 bits, so
  that two of 2^30 streams of 2^13 blocks overlap with probability 2^-56. A ledger refuses a stream
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

from intarsia.errors import ExperimentError, KeyMaterialError, SealedError, TamperedError
from intarsia.maths.fixed_point_words import PRIME, check
from intarsia.privacy.ciphers import KEY_BYTES, Keystream, pseudorandom
from intarsia.privacy.fixed_point import FixedPoint
from intarsia.privacy.keys import SharedKey
from intarsia.privacy.sealing import Piece, Stream, Values, joined

__all__ = ["MaskedAdder", "MaskedSealer", "StreamLedger"]

Words = NDArray[np.uint64]

_CHECK_WORDS = 2  # the halves of the check, so that 2^32 of them add up without wrapping
_HALF = 32


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
        self._zeros = np.zeros(0, np.uint8)

    def seal(self, client: str, stream: Stream, values: Values) -> Piece:
        """Return the words of a client's values under its masks.

        Raises
        ------
        RangeError
            If a value is not finite, or so large that a total could leave the range.
        SealedError
            If the client has used the stream before.
        """
        self._ledger.refuse_used(client, stream)
        values = np.asarray(values, np.float64)
        count = values.size
        words = np.empty(count + _CHECK_WORDS, np.uint64)
        self._fixed.encode_into(np.ascontiguousarray(values).reshape(-1), words[:count])
        session = self._keys_of(stream.session)
        total = check(words[:count], session.factors(self._room(words)))
        words[count] = total & (2**_HALF - 1)
        words[count + 1] = total >> _HALF
        masks = np.empty_like(words)
        start, zeros = session.start(stream), self._room(words)
        session.stream_of(client).write(start, zeros, masks.view(np.uint8))
        self._ledger.enter(client, stream)
        words += masks
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
        start, zeros, masks = session.start(piece.stream), self._room(words), np.empty_like(words)
        stream = masks.view(np.uint8)
        for name in names:
            session.stream_of(name).write(start, zeros, stream)
            np.subtract(words, masks, out=words)
        low, high = int(words[count]), int(words[count + 1])
        sent = (low + (high << _HALF)) % PRIME
        if sent != check(words[:count], session.factors(zeros)):
            raise TamperedError(
                f"The total of {piece.stream} is not the sum of what {list(names)} sealed: it was "
                "altered, has other contributors, or was sealed with another key; compare the "
                "fingerprints of the clients' keys, then resume the run."
            )
        return self._fixed.decode(words[:count]).reshape(piece.shape)

    def _keys_of(self, session: str) -> _Session:
        if self._session is None or self._session.name != session:
            self._session = _Session(self._key, session)
        return self._session

    def _room(self, words: Words) -> NDArray[np.uint8]:
        """Return zeros as long as words, which become a stream when they are encrypted."""
        if len(self._zeros) < words.nbytes:
            self._zeros = np.zeros(words.nbytes, np.uint8)
        return self._zeros[: words.nbytes]


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
        """Raise SealedError if the client has used the stream, or has gone past it."""
        present = self._present.get(client)
        if (client, stream.session) in self._left:
            raise SealedError(
                f"Client {client!r} has left session {stream.session}; draw a fresh session "
                "whenever a run is started or resumed."
            )
        if present is None or present.session != stream.session:
            return
        used = (stream.function, stream.field, stream.cell) in present.names
        if stream.sequence < present.number or (stream.sequence == present.number and used):
            raise SealedError(
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
        self._streams: dict[str, Keystream] = {}
        self._factors = np.zeros(0, np.uint64)

    def stream_of(self, client: str) -> Keystream:
        """Return the cipher of a client's streams."""
        stream = self._streams.get(client)
        if stream is None:
            stream = self._streams[client] = Keystream(
                pseudorandom(self._key, "stream", self.name, client)
            )
        return stream

    def start(self, stream: Stream) -> bytes:
        """Return the place in the counter where the stream begins, the same for all clients."""
        return blake2b(stream.label(""), key=self._start_key, digest_size=16).digest()

    def factors(self, zeros: NDArray[np.uint8]) -> Words:
        """Return the secret factors of the check: at least as many as make the room of zeros."""
        if self._factors.nbytes < len(zeros):
            stream = np.empty_like(zeros)
            cipher = Keystream(pseudorandom(self._key, "check", self.name))
            cipher.write(bytes(16), zeros, stream)
            self._factors = stream.view(np.uint64)
        return self._factors


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
