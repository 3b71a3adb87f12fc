"""Pieces of ciphertexts and keys as bytes: magic, SHA-256 of the rest, the rest.

The checksum shows damage, and keeps garbage from the library that reads ciphertexts. It is no
signature: whoever alters bytes on purpose makes another checksum. Messages are authenticated, where
they are, by what carries them.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Sequence
from dataclasses import astuple
from itertools import accumulate, pairwise
from math import prod
from typing import Any

from intarsia.errors import TamperedError
from intarsia.privacy.secure_aggregation.ckks_ciphertexts import Arithmetic, Ciphertexts
from intarsia.privacy.secure_aggregation.ckks_parameters import CkksParameters
from intarsia.privacy.secure_aggregation.protocol import Piece, Stream

__all__ = ["checked", "from_bytes", "parts", "size", "to_bytes", "unchecked"]

_MAGIC = b"INTC\x01"
_DIGEST = hashlib.sha256().digest_size
_LENGTH = struct.Struct("<I")


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


def parts(piece: Piece, parameters: CkksParameters) -> tuple[Any, ...]:
    """Return a piece's ciphertexts.

    Raises
    ------
    TamperedError
        If it holds something else, or not as many as its shape needs.
    """
    if not isinstance(piece.content, Ciphertexts):
        raise TamperedError(
            f"A piece of {piece.stream} holds {type(piece.content).__name__}, not ciphertexts; "
            "the parties run different settings of privacy."
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
    written = [arithmetic.to_bytes(part) for part in parts(piece, arithmetic.parameters)]
    head = _head(piece, [len(part) for part in written])
    return checked(_MAGIC, b"".join((_LENGTH.pack(len(head)), head, *written)))


def size(arithmetic: Arithmetic, piece: Piece) -> int:
    """Return the length of a piece's bytes, within one in a hundred, without making them."""
    found = parts(piece, arithmetic.parameters)
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
        stream, shape, contributors, lengths = json.loads(body[_LENGTH.size : end])
        ends = list(accumulate(lengths, initial=end))
        _demand(ends[-1] == len(body) and all(length > 0 for length in lengths), "lengths")
        _demand(all(type(axis) is int and axis >= 0 for axis in shape), "shape")
        _demand(all(type(name) is str for name in contributors), "contributors")
        kinds = (str, int, int, str, str, int)
        _demand([type(value) for value in stream] == list(kinds), "stream")
    except (TypeError, ValueError, RecursionError, struct.error) as error:
        raise TamperedError(
            f"The head of {len(data)} bytes of ciphertexts cannot be read ({error}); they were "
            "altered, or another version wrote them: repeat the exchange."
        ) from error
    read = tuple(arithmetic.from_bytes(body[start:stop]) for start, stop in pairwise(ends))
    piece = Piece(Stream(*stream), tuple(shape), tuple(contributors), Ciphertexts(read))
    parts(piece, arithmetic.parameters)
    return piece


def _head(piece: Piece, lengths: Sequence[int]) -> bytes:
    named = [astuple(piece.stream), piece.shape, piece.contributors, lengths]
    return json.dumps(named, separators=(",", ":")).encode()


def _demand(fulfilled: bool, what: str) -> None:
    if not fulfilled:
        raise ValueError(f"its {what} are not as they are written")
