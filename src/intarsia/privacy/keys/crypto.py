"""The ciphers and key derivations that sealed sums and keys are built of.

AES, X25519, HKDF and HMAC are those of the library `cryptography` or Python's own; nothing is
invented here. `core.algorithm.SecretKey.words`, in a package below this one, imports the library
too.
"""

from __future__ import annotations

import hmac
import os
import struct
from typing import Any, Final

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from intarsia.errors import KeyMaterialError, TamperedError

KEY_BYTES: Final = 32
BLOCK_BYTES: Final = 16
_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16


def new_secret() -> bytes:
    """Return 32 random bytes from the operating system."""
    return os.urandom(KEY_BYTES)


def joined_texts(*texts: str | bytes) -> bytes:
    """Return bytes that no other sequence of texts gives."""
    raws = [text.encode() if isinstance(text, str) else text for text in texts]
    return b"".join(struct.pack("<I", len(raw)) + raw for raw in raws)


def derive(secret: bytes, *purpose: str | bytes) -> bytes:
    """Return a key of 32 bytes for one purpose, by HKDF (RFC 5869) with SHA-256."""
    info = joined_texts("intarsia", *purpose)
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=info).derive(secret)


def pseudorandom(key: bytes, *texts: str | bytes) -> bytes:
    """Return the 32 bytes that a key gives to texts, by HMAC with SHA-256."""
    return hmac.digest(key, joined_texts(*texts), "sha256")


class BlockCipher:
    """AES-256 of blocks that never repeat: with counters, counter mode at places of one's own."""

    def __init__(self, key: bytes) -> None:
        self._encryptor: Any = Cipher(algorithms.AES256(key), modes.ECB()).encryptor()

    def write(self, blocks: NDArray[np.uint8], encrypted: NDArray[np.uint8]) -> None:
        """Write the encrypted blocks over `encrypted`, which is longer by 16 bytes."""
        self._encryptor.update_into(blocks, encrypted)


class Keystream:
    """Pseudorandom bytes of AES-256 in counter mode, from any place of the counter.

    Setting up the cipher costs more than a short stream, so that one is kept for each key.
    """

    def __init__(self, key: bytes) -> None:
        self._encryptor: Any = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()

    def write(self, start: bytes, zeros: NDArray[np.uint8], stream: NDArray[np.uint8]) -> None:
        """Write the bytes that follow the counter `start` (16 bytes) over `stream`.

        `zeros` is as long as `stream`: it is what is encrypted.
        """
        self._encryptor.reset_nonce(start)
        self._encryptor.update_into(zeros, stream)


def encrypt(key: bytes, clear: bytes, associated: bytes) -> bytes:
    """Return a nonce and AES-256-GCM's ciphertext and tag, which bind the associated bytes."""
    # Random, so that a state restored from a backup does not use a nonce twice.
    nonce = os.urandom(_NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, clear, associated)


def decrypt(key: bytes, sealed: bytes, associated: bytes) -> bytes:
    """Return what was encrypted.

    Raises
    ------
    TamperedError
        If the key, the bytes or the associated bytes are not those of the encryption.
    """
    if len(sealed) < _NONCE_BYTES + _TAG_BYTES:
        raise TamperedError(
            f"A sealed message has {len(sealed)} bytes, fewer than the {_NONCE_BYTES + _TAG_BYTES} "
            "of an empty one; it was cut on its way, send it again."
        )
    nonce, ciphertext = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
    try:
        return AESGCM(key).decrypt(nonce, ciphertext, associated)
    except InvalidTag as error:
        raise TamperedError(
            f"A sealed message of {len(sealed)} bytes does not match its key and its addresses; "
            "it was altered or meant for another link: compare the fingerprints of the keys, then "
            "send it again."
        ) from error


def new_private_key() -> bytes:
    """Return a fresh X25519 private key, 32 bytes."""
    return X25519PrivateKey.generate().private_bytes_raw()


def public_key(private: bytes) -> bytes:
    """Return the public key of an X25519 private key, 32 bytes."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agree(private: bytes, public: bytes) -> bytes:
    """Return the secret that X25519 (RFC 7748) gives both owners of two key pairs.

    Raises
    ------
    KeyMaterialError
        If the public key is one of the few that give everyone the same secret.
    """
    try:
        other = X25519PublicKey.from_public_bytes(public)
        return X25519PrivateKey.from_private_bytes(private).exchange(other)
    except ValueError as error:
        raise KeyMaterialError(
            f"The public key {public.hex()} is no usable X25519 key; ask its owner for the card "
            "again and compare the fingerprint."
        ) from error
