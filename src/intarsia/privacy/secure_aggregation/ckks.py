"""Sealed sums by CKKS: the server adds ciphertexts that only the clients can open.

One client makes the keys (`CkksKeys.create`) and brings the secret to the others; the server gets
the parameters, with which ciphertexts can be added and nothing else. A ciphertext holds 8,191
values and a check: a number derived from the clients' token key and the contribution's name, plus
the sum of the values times factors that only the clients know. The checks add up as the values do,
and the opener expects what the names and the opened values give.

What it does and does not protect
---------------------------------
* The server learns nothing of sealed values: Ring-LWE with 128-bit security.
* A total of other clients than it names, of another stream, or under another key is found out.
* A server that adds an amount d to a value is found out, but with probability
  4 · 8191 · noise / d at most where d is a multiple of the grid: the check is a CKKS value, too,
  with noise of its own. Small multiples pass, and make a total wrong by as much. With the range
  2^14 that is 1 in 30,000 for d = 1; where more is asked, use masks.
* A client is not held to true values. One that gives its key to the server opens every contribution
  (`trust = "clients"`), or totals of its own cells: then masks of pairs are over the ciphertexts
  (`ckks_masks`).

Values are rounded to a grid that is wider than the noise before they are sealed, up or down with
the chances that keep the mean (see ckks_parameters). A total is the sum of these exactly. The noise
of a ciphertext is drawn from the system, so that two seals of the same values differ; they open to
the same bits.

Pieces of ciphertexts and keys as bytes: magic, SHA-256 of the rest, the rest.

The checksum shows damage, and keeps garbage from the library that reads ciphertexts. It is no
signature: whoever alters bytes on purpose makes another checksum. Messages are authenticated, where
they are, by what carries them.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import reduce
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.core.files.json_text import parse_json
from intarsia.errors import KeyMaterialError, RangeError, SealedError, TamperedError
from intarsia.privacy.keys.crypto import Keystream, pseudorandom
from intarsia.privacy.secure_aggregation import ckks_ciphertexts, protocol
from intarsia.privacy.secure_aggregation.ckks_ciphertexts import Arithmetic, Ciphertexts
from intarsia.privacy.secure_aggregation.ckks_masks import CiphertextMasks
from intarsia.privacy.secure_aggregation.ckks_parameters import CkksParameters
from intarsia.privacy.secure_aggregation.masking import StreamLedger, check_names
from intarsia.privacy.secure_aggregation.pairwise import PairMasks
from intarsia.privacy.secure_aggregation.protocol import (
    NOT_NAMED,
    Aggregator,
    Parties,
    Piece,
    Sealer,
    Stream,
)

_MAGIC = b"INTC\x01"
_DIGEST = hashlib.sha256().digest_size


def checked(magic: bytes, body: bytes) -> bytes:
    """Return magic, checksum and body."""
    return magic + hashlib.sha256(body).digest() + body


def unchecked(magic: bytes, data: bytes) -> bytes:
    """Return the body that `checked` was given.

    Raises
    ------
    TamperedError
        If the bytes were cut or altered, or are something else.
    """
    start = len(magic) + _DIGEST
    body = data[start:]
    if data[: len(magic)] != magic or hashlib.sha256(body).digest() != data[len(magic) : start]:
        raise TamperedError(
            f"The checksum of {len(data)} bytes of ciphertexts does not match, or they are "
            "something else; they were cut or altered: repeat the exchange."
        )
    return body


def ciphertext_parts(piece: Piece, parameters: CkksParameters) -> tuple[Any, ...]:
    """Return a piece's ciphertexts.

    Raises
    ------
    TamperedError
        If it holds something else, or not as many as its shape needs.
    """
    if not isinstance(piece.content, Ciphertexts):
        raise TamperedError(
            f"A piece of {piece.stream} holds {type(piece.content).__name__}, not ciphertexts; "
            "the clients run different settings of privacy."
        )
    found, count = piece.content.parts, parameters.ciphertexts(prod(piece.shape))
    if len(found) != count:
        raise TamperedError(
            f"A piece of {piece.stream} with shape {piece.shape} has {len(found)} ciphertexts and "
            f"needs {count}; it was cut or altered: repeat the exchange."
        )
    return found


def to_bytes(arithmetic: Arithmetic, piece: Piece) -> bytes:
    """Return a piece as bytes."""
    written = [arithmetic.to_bytes(part) for part in ciphertext_parts(piece, arithmetic.parameters)]
    head = _head(piece, [len(part) for part in written])
    return checked(_MAGIC, b"".join((_LENGTH.pack(len(head)), head, *written)))


def size(arithmetic: Arithmetic, piece: Piece) -> int:
    """Return the length of a piece's bytes, within one in a hundred, without making them."""
    found = ciphertext_parts(piece, arithmetic.parameters)
    one = arithmetic.size(found[0])
    head = _head(piece, [one] * len(found))
    return len(_MAGIC) + _DIGEST + _LENGTH.size + len(head) + one * len(found)


def from_bytes(arithmetic: Arithmetic, data: bytes) -> Piece:
    """Return the piece that `to_bytes` wrote.

    Raises
    ------
    TamperedError
        If the bytes were cut or altered, or are something else.
    """
    body = unchecked(_MAGIC, data)
    try:
        end = _LENGTH.size + _LENGTH.unpack_from(body)[0]
        stream, shape, contributors, lengths = parse_json(body[_LENGTH.size : end])
        ends = list(accumulate(lengths, initial=end))
        _demand(ends[-1] == len(body) and all(length > 0 for length in lengths), "lengths")
        _demand(all(type(axis) is int and axis >= 0 for axis in shape), "shape")
        _demand(all(type(name) is str for name in contributors), "contributors")
        kinds = (str, int, int, str, str, int, str)[: len(stream)]
        _demand(len(stream) > 5 and [type(one) for one in stream] == list(kinds), "stream")
    except (TypeError, ValueError, RecursionError, struct.error) as error:
        raise TamperedError(
            f"The head of {len(data)} bytes of ciphertexts cannot be read ({error}); they were "
            "altered, or another version wrote them: repeat the exchange."
        ) from error
    read = tuple(arithmetic.from_bytes(body[start:stop]) for start, stop in pairwise(ends))
    piece = Piece(Stream(*stream), tuple(shape), tuple(contributors), Ciphertexts(read))
    ciphertext_parts(piece, arithmetic.parameters)
    return piece


def _head(piece: Piece, lengths: Sequence[int]) -> bytes:
    named = [astuple(piece.stream), piece.shape, piece.contributors, lengths]
    return json.dumps(named, separators=(",", ":")).encode()


def _demand(fulfilled: bool, what: str) -> None:
    if not fulfilled:
        raise ValueError(f"its {what} are not as they are written")


Values = NDArray[np.float64]

_KEY_MAGIC = b"INTK\x02"
_FORMER_MAGIC = b"INTK\x01"  # of keys whose totals were not exact
_LENGTH = struct.Struct("<I")
_LEAST_TOKEN_KEY = 16  # bytes
_ROUNDING = bytes(32)  # in the place of a key: which way values are rounded is no secret


@dataclass(frozen=True, eq=False)
class CkksKeys:
    """The parameters and the secret key that the clients share."""

    parameters: CkksParameters
    secret: bytes = field(repr=False)

    @classmethod
    def create(cls, parameters: CkksParameters) -> CkksKeys:
        """Make keys, at one client."""
        return cls(parameters, ckks_ciphertexts.new_secret(parameters))

    def secret_bytes(self) -> bytes:
        """Return what the other clients need; whoever has it opens every total."""
        public = self.public_bytes()
        body = _LENGTH.pack(len(public)) + public + self.secret
        return checked(_KEY_MAGIC, body)

    @classmethod
    def from_secret_bytes(cls, data: bytes) -> CkksKeys:
        """Return the keys that `secret_bytes` wrote.

        Raises
        ------
        KeyMaterialError
            If the bytes were cut or altered, are something else, or of an earlier version.
        """
        if data.startswith(_FORMER_MAGIC):
            raise KeyMaterialError(
                "The CKKS keys were made by an earlier version, whose totals were not exact; draw "
                "new ones with the cards of all clients: intarsia keys rotate --ckks CARD..."
            )
        try:
            body = unchecked(_KEY_MAGIC, data)
            end = _LENGTH.size + _LENGTH.unpack_from(body)[0]
        except (TamperedError, struct.error) as error:
            raise KeyMaterialError(
                f"{len(data)} bytes are no CKKS keys, or were cut or altered; take them again from "
                "the client that made them."
            ) from error
        return cls(CkksParameters.from_bytes(body[_LENGTH.size : end]), body[end:])

    def public_bytes(self) -> bytes:
        """Return what the server needs to add: the parameters, and no key of any kind."""
        return self.parameters.to_bytes()


class CkksSealer:
    """A client's side: seals its contributions and opens totals.

    `clients` are all of them, and `token_key` 16 secret bytes or more that they share, for the
    checks. `masks` hide contributions from the other clients; None: they are not hidden from them.

    Raises
    ------
    KeyMaterialError
        If the keys were made for fewer clients, or totals could not be told from their noise, or
        the token key is short.
    """

    def __init__(
        self,
        keys: CkksKeys,
        *,
        clients: Sequence[str],
        token_key: bytes,
        masks: PairMasks | None = None,
    ) -> None:
        if len(clients) > keys.parameters.addends:
            raise KeyMaterialError(
                f"The CKKS keys were made for sums over {keys.parameters.addends} clients, but "
                f"there are {len(clients)}; draw new ones with the cards of all clients: "
                "intarsia keys rotate --ckks CARD..."
            )
        if not keys.parameters.covers():
            raise KeyMaterialError(
                f"The grid of the CKKS keys, 2^-{keys.parameters.grid_bits}, does not cover the "
                "noise; draw new ones with the cards of all clients: intarsia keys rotate --ckks "
                "CARD..."
            )
        if len(token_key) < _LEAST_TOKEN_KEY:
            raise KeyMaterialError(
                f"The token key has {len(token_key)} bytes; it needs at least {_LEAST_TOKEN_KEY}."
            )
        self.parameters = keys.parameters
        self._clients = frozenset(clients)
        self._token_key = token_key
        self._arithmetic = Arithmetic(keys.parameters)
        self._secret = ckks_ciphertexts.Secret(self._arithmetic, keys.secret)
        self._masks = None if masks is None else CiphertextMasks(masks, self._arithmetic)
        self._ledger = StreamLedger()
        self._factors: tuple[str | None, Values] = (None, np.zeros(0))

    def seal(
        self, client: str, stream: Stream, values: Values, parties: Parties = NOT_NAMED
    ) -> Piece:
        """Seal a client's contribution; see `Sealer.seal`."""
        array = np.asarray(values, np.float64)
        flat = array.reshape(-1)
        known = self.parameters
        if flat.size and not max(flat.max(), -flat.min()) <= known.limit:  # nor for nan
            raise RangeError(protocol.complaint(flat, known.range, known.addends))
        if client not in self._clients:
            raise SealedError(
                f"Client {client!r} is not among the {len(self._clients)} clients of these sealed "
                "sums; name it when the sealer is made."
            )
        self._ledger.refuse_used(client, stream)
        tokens = self._tokens(client, stream, array.shape)
        flat = self._rounded(flat, client, stream)
        factors, capacity = self._factors_of(stream.session), self.parameters.capacity
        parts: list[Any] = []
        for k, token in enumerate(tokens):
            part = flat[k * capacity : (k + 1) * capacity]
            check = float(token + factors[: len(part)] @ part)
            parts.append(self._secret.encrypted(_slots(part, check)))
        sealed = Piece(stream, array.shape, (client,), Ciphertexts(tuple(parts)))
        if self._masks is not None:
            masks = self._masks.masks
            hidden = Ciphertexts(self._masks.hide(client, stream, parties, parts))
            nonces, owners = (masks.nonce(client),), masks.owners(parties)
            sealed = replace(sealed, content=hidden, nonces=nonces, owners=owners)
        self._ledger.enter(client, stream)
        return sealed

    def open(self, piece: Piece) -> Values:
        """Return the total of what the contributors rounded; TamperedError if it is another."""
        self._check_contributors(piece)
        parts = ciphertext_parts(piece, self.parameters)
        if self._masks is not None:
            check_names(piece, len(self._clients))
            parts = self._masks.uncover(piece, parts)
        tokens = [self._tokens(name, piece.stream, piece.shape) for name in piece.contributors]
        factors, capacity = self._factors_of(piece.stream.session), self.parameters.capacity
        total = np.empty(prod(piece.shape))
        for k, (part, token) in enumerate(zip(parts, np.sum(tokens, axis=0), strict=True)):
            place = total[k * capacity : (k + 1) * capacity]
            slots = self._secret.decrypted(part)
            found = slots[: len(place)]
            steps = np.rint(found * (1.0 / self.parameters.grid)) + 0.0  # a zero without a sign
            place[:] = steps * self.parameters.grid
            off = float(np.abs(found - place).max(initial=0.0))
            expected = token + factors[: len(place)] @ place
            self._refuse_altered(piece, off, float(slots[len(place)] - expected))
        return total.reshape(piece.shape)

    def to_bytes(self, piece: Piece) -> bytes:
        """Return a piece as bytes, with a checksum."""
        return to_bytes(self._arithmetic, piece)

    def from_bytes(self, data: bytes) -> Piece:
        """Return the piece that `to_bytes` wrote; TamperedError if the bytes are not whole."""
        return from_bytes(self._arithmetic, data)

    def size(self, piece: Piece) -> int:
        """Return the length of a piece's bytes, within one in a hundred, without making them."""
        return size(self._arithmetic, piece)

    def _check_contributors(self, piece: Piece) -> None:
        known = len(set(piece.contributors)) == len(piece.contributors) > 0
        if not known or not self._clients.issuperset(piece.contributors):
            raise TamperedError(
                f"A total of {piece.stream} names the contributors {list(piece.contributors)}, but "
                f"the clients are {sorted(self._clients)}, each once; repeat the exchange."
            )

    def _refuse_altered(self, piece: Piece, off: float, difference: float) -> None:
        """Raise where a value is farther from the grid than noise takes it, or the check is off.

        A server that moves values by less than a step of the grid, to learn from the rounding where
        their noise lies, is found out by the first. The sentence does not say by how much: to a
        server that reads it, that is a secret factor.
        """
        bound = self.parameters.noise(len(piece.contributors))
        if not (off <= bound and abs(difference) <= 2 * bound):  # nor for nan
            raise TamperedError(
                f"A total of {piece.stream} is not the sum of what {list(piece.contributors)} "
                "sealed: its check is off by more than noise explains; repeat the exchange, and "
                "compare the clients' key fingerprints."
            )

    def _tokens(self, client: str, stream: Stream, shape: tuple[int, ...]) -> Values:
        """Return the secret part of each ciphertext's check, in [0, limit / 2)."""
        axes = ",".join(map(str, shape))
        keyed = (
            pseudorandom(self._token_key, "token", str(k), axes, stream.label(client))
            for k in range(self.parameters.ciphertexts(prod(shape)))
        )
        words = np.array([int.from_bytes(raw[:7], "little") >> 3 for raw in keyed], np.float64)
        return np.multiply(words, 2.0**-54 * self.parameters.limit)

    def _factors_of(self, session: str) -> Values:
        """Return the factors of a session's checks, so small that a check is within the limit."""
        if self._factors[0] != session:
            key = pseudorandom(self._token_key, "factors", session)
            capacity = self.parameters.capacity
            self._factors = session, (_uniform(key, capacity) - 0.5) / capacity
        return self._factors[1]

    def _rounded(self, values: Values, client: str, stream: Stream) -> Values:
        """Round to the grid, up with the chance that keeps the mean.

        The place of the values and their bits say which way, and neither the key nor the session,
        so that a run that is started again, or is resumed, rounds as before.
        """
        place = replace(stream, session="", sequence=0, told="")
        bits = int(values.view(np.uint64).sum(dtype=np.uint64))  # of another exchange: others
        key = pseudorandom(_ROUNDING, "rounding", str(bits), place.label(client))
        exact = values * (1.0 / self.parameters.grid)
        whole = np.floor(exact)
        steps = whole + (_uniform(key, values.size) < exact - whole)
        return np.multiply(steps + 0.0, self.parameters.grid)


class CkksAdder:
    """The server's side: adds ciphertexts, and has no key to open them."""

    def __init__(self, public_bytes: bytes) -> None:  # what `CkksKeys.public_bytes` returned
        self.parameters = CkksParameters.from_bytes(public_bytes)
        self._arithmetic = Arithmetic(self.parameters)

    def add(self, *pieces: Piece) -> Piece:
        """Return the sum of pieces of the same total; see `Aggregator.add`."""
        piece = protocol.joined(pieces, None)
        contents = (Ciphertexts(ciphertext_parts(p, self.parameters)) for p in pieces)
        return replace(piece, content=reduce(self._arithmetic.added, contents))

    def to_bytes(self, piece: Piece) -> bytes:
        """Return a piece as bytes, with a checksum."""
        return to_bytes(self._arithmetic, piece)

    def from_bytes(self, data: bytes) -> Piece:
        """Return the piece that `to_bytes` wrote; TamperedError if the bytes are not whole."""
        return from_bytes(self._arithmetic, data)

    def size(self, piece: Piece) -> int:
        """Return the length of a piece's bytes, within one in a hundred, without making them."""
        return size(self._arithmetic, piece)


class CkksOrMasks:
    """Seal by CKKS, and open also what masks keep: short arrays, and those of one client alone.

    A ciphertext takes a millisecond to make and 128 KiB however few values are in it, and that it
    can be added to is worth nothing where nobody adds to it. Both schemes have the same trust
    model.
    """

    def __init__(self, ckks: CkksSealer, masks: Sealer) -> None:
        self.ckks, self.masks = ckks, masks

    def seal(
        self, client: str, stream: Stream, values: Values, parties: Parties = NOT_NAMED
    ) -> Piece:
        """Seal a client's contribution by CKKS; see `CkksSealer.seal`."""
        return self.ckks.seal(client, stream, values, parties)

    def open(self, piece: Piece) -> Values:
        """Return the total of a piece by the scheme that sealed it; TamperedError if altered."""
        by_ckks = isinstance(piece.content, Ciphertexts)
        return self.ckks.open(piece) if by_ckks else self.masks.open(piece)


class CkksOrMasksAdder:
    """The server's side of `CkksOrMasks`."""

    def __init__(self, ckks: CkksAdder, masks: Aggregator) -> None:
        self.ckks, self.masks = ckks, masks

    def add(self, *pieces: Piece) -> Piece:
        """Return the sum of pieces of the same total, by the scheme that sealed them."""
        first = pieces[0]
        by_ckks = isinstance(first.content, Ciphertexts)
        for other in pieces[1:]:
            if isinstance(other.content, Ciphertexts) != by_ckks:
                raise TamperedError(
                    f"Of two contributions to {first.stream} only one is in ciphertexts; the "
                    f"clients {list(first.contributors)} and {list(other.contributors)} run "
                    "different settings."
                )
        return self.ckks.add(*pieces) if by_ckks else self.masks.add(*pieces)


def _slots(values: Values, check: float) -> Values:
    """Return values and check, filled up to an even number."""
    slots = np.zeros(len(values) + 1 + (len(values) + 1) % 2)
    slots[: len(values)] = values
    slots[len(values)] = check
    return slots


def _uniform(key: bytes, count: int) -> Values:
    """Return numbers in [0, 1), multiples of 2^-32, from a keyed stream."""
    stream = np.empty(4 * count, np.uint8)
    Keystream(key).write(bytes(16), np.zeros(4 * count, np.uint8), stream)
    draws: Values = np.multiply(stream.view("<u4"), 2.0**-32, dtype=np.float64)
    return draws
