"""A mode of sealed sums, set up for the clients of a federation in one process."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from intarsia.errors import CodecError, ExperimentError, KeyMaterialError
from intarsia.privacy.secure_aggregation.protocol import Digits, ExactSealer, Piece, Sealing
from intarsia.privacy.settings import Privacy

if TYPE_CHECKING:  # else in the functions: the mode "plain" does without the library for keys
    from intarsia.privacy.keys.shared_key import SharedKey
    from intarsia.privacy.secure_aggregation.ckks import CkksAdder
    from intarsia.privacy.secure_aggregation.fixed_point import FixedPoint


_WORDS = b"w"  # first byte of a piece under masks
_CIPHERTEXTS = b"c"  # of one in ciphertexts
_MOST = 2.0**50  # of the low digit's room, in the high one: below it stands -inf
_LONG = 4096  # a ciphertext costs the same however few values are in it


@dataclass(frozen=True)
class Keys:
    """What the clients share and the server never has."""

    shared: SharedKey
    ckks: bytes = b""  # secret key of the mode "ckks"


def keys(settings: Privacy, clients: Sequence[str], folder: Path | None, name: str) -> Keys | None:
    """Return the clients' keys for a run; None for the mode "plain".

    They come from the file that the settings name and, for CKKS, from `ckks.key` beside it, else
    from `folder`, where they are drawn once and kept for resuming (None: not kept). In one process
    all clients draw them together; across organisations they are exchanged as
    `intarsia.privacy.keys.key_exchange` says.

    Raises
    ------
    KeyMaterialError
        If a key file is not sound, others may read it, or two are not of one exchange.
    """
    if settings.mode == "plain":
        return None
    shared = _shared(settings, folder, name)
    if settings.mode == "masked":
        return Keys(shared)
    from intarsia.privacy.keys.keyring import CkksSecret
    from intarsia.privacy.secure_aggregation.ckks import CkksKeys
    from intarsia.privacy.secure_aggregation.ckks_parameters import parameters

    path = None if folder is None else folder / "ckks.key"
    if path is not None and path.exists():
        return Keys(shared, CkksSecret.load(path).secret)
    exchanged = Path(settings.key).with_name("ckks.key") if settings.key else None
    if exchanged is not None and exchanged.exists():
        return Keys(shared, _exchanged(exchanged, shared))
    fitting = parameters(settings.range, len(clients), error=settings.error or None)
    secret = CkksKeys.create(fitting).secret_bytes()
    if path is not None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        CkksSecret(secret, name, shared.generation).store(path)
    return Keys(shared, secret)


def _exchanged(path: Path, shared: SharedKey) -> bytes:
    """Return the CKKS secret key that was exchanged with the shared key."""
    from intarsia.privacy.keys.keyring import CkksSecret

    found = CkksSecret.load(path)
    if (found.federation, found.generation) != (shared.federation, shared.generation):
        raise KeyMaterialError(
            f"The CKKS keys in {path} are of generation {found.generation} in {found.federation!r},"
            f" but the shared key beside them of generation {shared.generation} in "
            f"{shared.federation!r}; accept the keys of one exchange, or remove the older file."
        )
    return found.secret


def check_key(settings: Privacy) -> None:
    """Raise where the shared key that the settings name cannot be used.

    Raises
    ------
    KeyMaterialError
        If its file is not there, can be read by others, or holds no key.
    """
    if settings.mode != "plain" and settings.key:
        _shared(settings, None, "")


def _shared(settings: Privacy, folder: Path | None, name: str) -> SharedKey:
    from intarsia.privacy.keys.shared_key import SharedKey

    if settings.key:
        return SharedKey.load(Path(settings.key))
    if folder is None:
        return SharedKey.draw(name)
    path = folder / "shared.key"
    if path.exists():
        return SharedKey.load(path)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    drawn = SharedKey.draw(name)
    drawn.store(path)
    return drawn


def sealing(settings: Privacy, clients: Sequence[str], secrets: Keys) -> Sealing:
    """Return the clients' sealers and the server's adder.

    Raises
    ------
    ExperimentError
        If the range cannot be had.
    """
    from intarsia.privacy.secure_aggregation.masking import MaskedAdder, MaskedSealer

    fixed, digits = _formats(settings, len(clients))
    # One for all clients: they hold the same keys, and a ledger remembers each client's streams.
    # With one for each, every client would find the caches filled with another's tables.
    exact: ExactSealer = MaskedSealer(secrets.shared, fixed, len(clients))
    masked = dict.fromkeys(clients, exact)
    if settings.mode == "masked":
        return Sealing(
            mode="masked",
            digits=digits,
            adder=MaskedAdder(),
            exact=masked,
            bulk=masked,
            alone=masked,
            long=_LONG,
            to_bytes=_words_to_bytes,
            from_bytes=_from_words,
            size=_words_size,
        )
    from intarsia.privacy.secure_aggregation.ckks import (
        CkksAdder,
        CkksKeys,
        CkksOrMasks,
        CkksOrMasksAdder,
        CkksSealer,
    )
    from intarsia.privacy.secure_aggregation.ckks_parameters import parameters

    found = CkksKeys.from_secret_bytes(secrets.ckks)
    if found.parameters.range != settings.range:
        raise ExperimentError(
            f"privacy.range is {settings.range:g} but the CKKS keys were made for "
            f"{found.parameters.range:g}; set privacy.range to that, or make new keys."
        )
    wanted = settings.error
    if settings.epsilon > 0 and not wanted:  # what the guarantee was computed with
        wanted = parameters(settings.range, len(clients)).error(len(clients))
    if 0 < wanted < found.parameters.error(len(clients)):
        raise ExperimentError(
            f"privacy.error is {wanted:g} but with the CKKS keys a total over "
            f"{len(clients)} clients may be off by {found.parameters.error(len(clients)):.2g}; set "
            "privacy.error to at least that, or make new keys."
        )
    token = secrets.shared.derive("tokens")
    adder = CkksAdder(found.public_bytes())
    sealer = CkksSealer(found, clients=clients, token_key=token)
    to_bytes, from_bytes, size_of = _forms(adder)
    return Sealing(
        mode="ckks",
        digits=digits,
        adder=CkksOrMasksAdder(adder, MaskedAdder()),
        exact=masked,
        bulk=dict.fromkeys(clients, CkksOrMasks(sealer, exact)),
        alone=masked,
        long=_LONG,
        to_bytes=to_bytes,
        from_bytes=from_bytes,
        size=size_of,
    )


def adding(settings: Privacy, clients: Sequence[str]) -> Sealing | None:
    """Return what the server has of a mode, without a key: an adder; None for the mode "plain".

    Raises
    ------
    ExperimentError
        If the range cannot be had.
    """
    if settings.mode == "plain":
        return None
    from intarsia.privacy.secure_aggregation.masking import MaskedAdder

    _, digits = _formats(settings, len(clients))
    masked = MaskedAdder()
    if settings.mode == "masked":
        return Sealing(
            "masked", digits, masked, {}, {}, {}, _LONG, _words_to_bytes, _from_words, _words_size
        )
    from intarsia.privacy.secure_aggregation.ckks import CkksAdder, CkksOrMasksAdder
    from intarsia.privacy.secure_aggregation.ckks_parameters import parameters

    fitting = parameters(settings.range, len(clients), error=settings.error or None)
    adder = CkksAdder(fitting.to_bytes())
    either = CkksOrMasksAdder(adder, masked)
    return Sealing("ckks", digits, either, {}, {}, {}, _LONG, *_forms(adder))


def _formats(settings: Privacy, clients: int) -> tuple[FixedPoint, Digits]:
    """Return how values become words, and how those that must be exact become two of them."""
    from intarsia.privacy.secure_aggregation.fixed_point import FixedPoint

    fixed = FixedPoint(range=settings.range, addends=clients)
    size = 2.0 ** math.floor(math.log2(fixed.limit))
    digits = Digits(
        size=size,
        unit=fixed.step,
        room=size * _MOST / (2 * clients),
        bound=-size * _MOST,
    )
    return fixed, digits


def _forms(
    adder: CkksAdder,
) -> tuple[Callable[[Piece], bytes], Callable[[Piece, bytes], Piece], Callable[[Piece], int]]:
    """Return how pieces are written, read and measured that are ciphertexts, or words."""

    def to_bytes(piece: Piece) -> bytes:
        if isinstance(piece.content, np.ndarray):
            return _WORDS + _words_to_bytes(piece)
        return _CIPHERTEXTS + adder.to_bytes(piece)

    def from_bytes(piece: Piece, data: bytes) -> Piece:
        if data[:1] == _WORDS:
            return _from_words(piece, data[1:])
        return adder.from_bytes(data[1:])

    def bytes_of(piece: Piece) -> int:
        words = isinstance(piece.content, np.ndarray)
        return _words_size(piece) if words else adder.size(piece)

    return to_bytes, from_bytes, bytes_of


def _words_to_bytes(piece: Piece) -> bytes:
    return struct.pack("<Q", len(piece.content)) + bytes(piece.content.tobytes())


def _from_words(piece: Piece, data: bytes) -> Piece:
    words = np.frombuffer(data, np.uint64, offset=8).copy()
    if len(data) < 8 or struct.unpack_from("<Q", data)[0] != len(words):
        raise CodecError(f"{len(data)} bytes are no piece under masks; take an intact copy.")
    return replace(piece, content=words)


def _words_size(piece: Piece) -> int:
    return 8 + int(piece.content.nbytes)
