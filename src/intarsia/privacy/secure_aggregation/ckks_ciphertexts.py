"""Ciphertexts of CKKS, made, added, opened, and written as bytes.

The one place that imports the library `tenseal`, which the extra `intarsia[privacy]` installs. Its
module `sealapi` binds Microsoft SEAL itself: complex slots hold twice the values of TenSEAL's own
vectors, at the same cost for a ciphertext.
"""

from __future__ import annotations

import contextlib
import os
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import ExperimentError, KeyMaterialError, TamperedError
from intarsia.privacy.secure_aggregation.ckks_parameters import CkksParameters

# How SEAL writes a polynomial that is not compressed: a head, which ends with a size; id of the
# parameters, number of residues and scale; the head and the number once more, then the residues. In
# the head the sixth byte says how what follows is compressed.
_PLAIN = struct.Struct("<8sQ 4QQd 8sQ Q")
_HEAD_BYTES = 16
_COMPRESSION = 5
_REFUSED = (RuntimeError, ValueError)  # what SEAL raises on bytes that are no ciphertext of ours


@dataclass(frozen=True, eq=False)
class Ciphertexts:
    """The content of a Piece: one ciphertext after the other."""

    parts: tuple[Any, ...]


class Arithmetic:
    """What needs no secret: adding ciphertexts, and reading and writing them."""

    def __init__(self, parameters: CkksParameters) -> None:
        self._library = _library()
        self.parameters = parameters
        self.context = _context(self._library, parameters)
        self._evaluator = self._library.Evaluator(self.context)
        first = self.context.first_context_data().parms()
        head = bytearray(_written(self._library.Plaintext())[:8])
        head[_COMPRESSION] = 0
        self._head = bytes(head)  # of the library's version
        self.primes = tuple(prime.value() for prime in first.coeff_modulus())
        self._size: int | None = None

    def added(self, one: Ciphertexts, other: Ciphertexts) -> Ciphertexts:
        """Return the sums; both have equally many ciphertexts.

        Raises
        ------
        TamperedError
            If they do not fit together.
        """
        if len(one.parts) != len(other.parts):
            raise TamperedError(
                f"{len(one.parts)} ciphertexts cannot be added to {len(other.parts)} of the same "
                "total; one of them was cut or altered: repeat the exchange."
            )
        return Ciphertexts(tuple(map(self._sum, one.parts, other.parts)))

    def moved(self, ciphertext: Any, residues: NDArray[np.uint64]) -> Any:
        """Return a ciphertext with residues, (primes · degree,), added to its first polynomial."""
        count, found = len(residues), self._library.Plaintext()
        head = _PLAIN.pack(
            *(self._head, _PLAIN.size + 8 * count, *ciphertext.parms_id(), count),
            *(ciphertext.scale, self._head, _HEAD_BYTES + 8 + 8 * count, count),
        )
        _read(found, self.context, head + residues.tobytes())
        total = self._library.Ciphertext()
        self._evaluator.add_plain(ciphertext, found, total)
        return total

    def to_bytes(self, ciphertext: Any) -> bytes:
        """Return a ciphertext as bytes."""
        return _written(ciphertext)

    def from_bytes(self, data: bytes) -> Any:
        """Return the ciphertext that `to_bytes` wrote.

        SEAL checks that every number is within the modulus; garbage that passes for that opens to
        garbage, which the check in each ciphertext shows.

        Raises
        ------
        TamperedError
            If the bytes are no ciphertext with these parameters.
        """
        ciphertext = self._library.Ciphertext()
        try:
            _read(ciphertext, self.context, data)
        except _REFUSED as error:
            raise _unreadable(len(data), str(error)) from error
        if ciphertext.size() != 2 or ciphertext.scale != self.parameters.scale:
            raise _unreadable(len(data), "another scale or number of polynomials")
        return ciphertext

    def size(self, ciphertext: Any) -> int:
        """Return the bytes that a ciphertext takes, measured once: they differ by less than 1 %."""
        if self._size is None:
            self._size = len(self.to_bytes(ciphertext))
        return self._size

    def _sum(self, one: Any, other: Any) -> Any:
        total = self._library.Ciphertext()
        try:
            self._evaluator.add(one, other, total)
        except _REFUSED as error:
            raise TamperedError(
                f"Two ciphertexts of one total do not fit together ({error}); one was altered or "
                "made with other parameters: compare the clients' key fingerprints."
            ) from error
        return total


class Secret:
    """What needs the secret key: making ciphertexts and opening them."""

    def __init__(self, arithmetic: Arithmetic, secret: bytes) -> None:
        self._library = _library()
        key = self._library.SecretKey()
        try:
            _read(key, arithmetic.context, secret)
        except _REFUSED as error:
            raise KeyMaterialError(
                f"{len(secret)} bytes are no secret key for these CKKS parameters ({error}); take "
                "the bytes that CkksKeys.secret_bytes returned."
            ) from error
        self._scale = arithmetic.parameters.scale
        self._encoder = self._library.CKKSEncoder(arithmetic.context)
        self._encryptor = self._library.Encryptor(arithmetic.context, key)
        self._decryptor = self._library.Decryptor(arithmetic.context, key)

    def encrypted(self, values: NDArray[np.float64]) -> Any:
        """Return the ciphertext of an even number of values."""
        plain, ciphertext = self._library.Plaintext(), self._library.Ciphertext()
        self._encoder.encode(values.view(np.complex128).tolist(), self._scale, plain)
        # with the secret key instead of a public one: half the work, a tenth of the noise
        self._encryptor.encrypt_symmetric(plain, ciphertext)
        return ciphertext

    def decrypted(self, ciphertext: Any) -> NDArray[np.float64]:
        """Return all the values that a ciphertext has room for.

        Raises
        ------
        TamperedError
            If it is no ciphertext with these parameters.
        """
        plain = self._library.Plaintext()
        try:
            self._decryptor.decrypt(ciphertext, plain)
            slots = self._encoder.decode_complex(plain)
        except (*_REFUSED, TypeError) as error:
            raise TamperedError(
                f"A ciphertext cannot be opened ({error}); it was altered or made with other "
                "parameters: repeat the exchange, and compare the clients' key fingerprints."
            ) from error
        return np.array(slots, np.complex128).view(np.float64)


def new_secret(parameters: CkksParameters) -> bytes:
    """Return a fresh secret key as bytes, from the system's random numbers."""
    library = _library()
    generator = library.KeyGenerator(_context(library, parameters))
    return _written(generator.secret_key())


def _library() -> Any:
    try:
        import tenseal.sealapi
    except ModuleNotFoundError as error:
        raise ExperimentError(
            "privacy = 'ckks' needs the library tenseal, which is not installed; run "
            'pip install "intarsia[privacy]".'
        ) from error
    return tenseal.sealapi


def _context(library: Any, parameters: CkksParameters) -> Any:
    degree, sizes = parameters.poly_modulus_degree, parameters.coeff_mod_bit_sizes
    settings = library.EncryptionParameters(library.SCHEME_TYPE.CKKS)
    try:
        settings.set_poly_modulus_degree(degree)
        settings.set_coeff_modulus(library.CoeffModulus.Create(degree, list(sizes)))
        context = library.SEALContext(settings, True, library.SEC_LEVEL_TYPE.TC128)
        reason = None if context.parameters_set() else context.parameters_error_name()
    except (*_REFUSED, TypeError) as error:
        reason = str(error)
    if reason is not None:
        raise KeyMaterialError(
            f"CKKS with degree {degree} and a modulus of {list(sizes)} bits is not possible with "
            f"128-bit security ({reason}); take the parameters that parameters() returns."
        )
    return context


def _unreadable(length: int, reason: str) -> TamperedError:
    return TamperedError(
        f"{length} bytes are no ciphertext with these parameters ({reason}); they were cut or "
        "altered: repeat the exchange."
    )


def _written(thing: Any) -> bytes:
    with _file() as (path, descriptor):
        thing.save(path)
        os.lseek(descriptor, 0, os.SEEK_SET)
        with os.fdopen(os.dup(descriptor), "rb") as file:
            return file.read()


def _read(thing: Any, context: Any, data: bytes) -> None:
    with _file() as (path, descriptor):
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(data)
        thing.load(context, path)


@contextlib.contextmanager
def _file() -> Iterator[tuple[str, int]]:
    """Yield path and descriptor of an empty file that only this process can read.

    sealapi reads and writes paths only. Where the system has files in memory, keys touch no disk.
    """
    if hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir():
        descriptor = os.memfd_create("intarsia")
        path, kept = f"/proc/self/fd/{descriptor}", False
    else:
        descriptor, path = tempfile.mkstemp(prefix="intarsia-")  # mode 600
        kept = True
    try:
        yield path, descriptor
    finally:
        os.close(descriptor)
        if kept:
            Path(path).unlink(missing_ok=True)
