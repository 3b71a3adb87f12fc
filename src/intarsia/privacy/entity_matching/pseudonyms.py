"""Keyed pseudonyms for sample ids: the server matches them and cannot test a guess.

A pseudonym is the first 128 bits of HMAC-SHA256 (RFC 2104) of the normalised id under a key that
the clients share and the server does not have. 64 bits would sort twice as fast, but five million
ids then coincide with a probability of 7e-7, and a coincidence between two clients joins two
strangers without a sign; with 128 bits it is 4e-26. It is an array of 16 bytes (`S16`), which NumPy
sorts and compares as it does numbers; hexadecimal text would take eight times the room.

Who learns what
---------------
server
    Which pseudonymous rows each client holds, hence how many, and which of them several clients
    hold. It cannot test whether a person is among them: that needs the key. Whether a row is held
    out for testing is decided by the pseudonym, so that this says nothing of the id either.
client
    Its own rows. Whoever has the key and sees other clients' pseudonyms (all clients see the public
    index sets) can test guesses: hash the id of a person and look for it. Clients that must not
    learn each other's rows use `psi` where they are two.
server and a client together
    The same as that client: the key is as safe as the least careful of the clients.
outsider
    Nothing without the key; rows in two runs can be linked if both use one key.

Rows of a client without ids are its own: they have pseudonyms under a key of the client.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import KeyMaterialError, TableError

WIDTH = 16  # bytes of a pseudonym
KEY_BYTES = 32

_BLOCK = 64  # bytes that SHA-256 takes in at a time
_DOMAIN = b"intarsia sample id v1\0"
_SUBKEY = b"intarsia alignment key v1\0"


def drawn_key() -> bytes:
    """Return a fresh key, from the operating system's random numbers."""
    return secrets.token_bytes(KEY_BYTES)


def subkey(key: bytes, purpose: str) -> bytes:
    """Return the key for one purpose, from which neither `key` nor another's can be told.

    Raises
    ------
    KeyMaterialError
        If the key is not of 32 bytes.
    """
    return hmac.digest(_sound(key), _SUBKEY + purpose.encode(), "sha256")


def pseudonyms(ids: NDArray[Any], key: bytes) -> NDArray[np.bytes_]:
    """Return the pseudonyms (samples,) of text ids or whole numbers, in their order.

    Whole numbers and text never match, as in plain ids: the type is part of what is hashed.

    Raises
    ------
    TableError
        If the ids are neither text nor whole numbers.
    KeyMaterialError
        If the key is not of 32 bytes.
    """
    if ids.dtype.kind not in "iuU":
        raise TableError(
            f"Ids of type {ids.dtype} have no pseudonyms; expected text or whole numbers."
        )
    # HMAC with the two keyed halves computed once, which takes half the time of hmac.digest
    padded = _sound(key).ljust(_BLOCK, b"\0")
    inner = hashlib.sha256(bytes(one ^ 0x36 for one in padded))
    inner.update(_DOMAIN + (b"text\0" if ids.dtype.kind == "U" else b"number\0"))
    outer = hashlib.sha256(bytes(one ^ 0x5C for one in padded))

    def digest(text: str) -> bytes:
        half, whole = inner.copy(), outer.copy()
        half.update(text.encode())
        whole.update(half.digest())
        return whole.digest()[:WIDTH]

    texts = ids.tolist() if ids.dtype.kind == "U" else map(str, ids.tolist())
    return np.frombuffer(b"".join(map(digest, texts)), f"S{WIDTH}")


def shown(ids: NDArray[Any], key: bytes) -> bytes:
    """Return what shows that a client has the ids of rows, in an order that others know, too.

    Two clients that have the ids come to the same. Who saw the names alone, as all do in every run
    under one key, does not: `key` is for this purpose. Of no row there is nothing.
    """
    if not len(ids):
        return b""
    texts = list(map(str, ids.tolist()))
    letters = np.fromiter(map(len, texts), "<u4", len(texts)).tobytes()  # where each ends
    return hmac.digest(_sound(key), letters + "".join(texts).encode(), "sha256")


def _sound(key: bytes) -> bytes:
    if len(key) != KEY_BYTES:
        raise KeyMaterialError(
            f"The key for pseudonyms has {len(key)} bytes; expected {KEY_BYTES}: make a key file "
            "anew."
        )
    return key
