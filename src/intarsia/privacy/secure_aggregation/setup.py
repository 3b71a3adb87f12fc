"""A mode of sealed sums, set up for the clients of a federation in one process."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from intarsia.errors import ExperimentError, KeyMaterialError
from intarsia.privacy.secure_aggregation.ckks_parameters import CkksParameters, parameters
from intarsia.privacy.secure_aggregation.protocol import Digits, ExactSealer, Sealer, Sealing
from intarsia.privacy.settings import Privacy

if TYPE_CHECKING:  # else in the functions: the mode "plain" does without the library for keys
    from intarsia.privacy.keys.pair_keys import PairKeys
    from intarsia.privacy.keys.shared_key import SharedKey
    from intarsia.privacy.secure_aggregation.fixed_point import FixedPoint
    from intarsia.privacy.secure_aggregation.pairwise import PairMasks


_MOST = 2.0**50  # of the low digit's room, in the high one: below it stands -inf
_LONG = 4096  # a ciphertext costs the same however few values are in it


@dataclass(frozen=True)
class Keys:
    """What the clients have and the server never has."""

    shared: SharedKey  # by all
    ckks: bytes = b""  # secret key of the mode "ckks", by all
    pairs: PairKeys | None = None  # by each two, and by the owners of a cell; None: nobody asks


def in_one_process(shared: SharedKey, ckks: bytes = b"") -> Keys:
    """Return the keys of clients that are all in this process: those of pairs are derived."""
    from intarsia.privacy.keys.pair_keys import simulated

    return Keys(shared, ckks, simulated(shared))


def keys(
    settings: Privacy,
    clients: Sequence[str],
    folder: Path | None,
    name: str,
    pairs: PairKeys | None = None,
) -> Keys | None:
    """Return the clients' keys for a run; None for the mode "plain".

    They come from the file that the settings name and, for CKKS, from `ckks.key` beside it, else
    from `folder`, where they are drawn once and kept for resuming (None: not kept). In one process
    all clients draw them together; across organisations they are exchanged as
    `intarsia.privacy.keys.key_exchange` says. `pairs` are a site's; None: all clients are in this
    process, or the run asks for none.

    Raises
    ------
    KeyMaterialError
        If a key file is not sound, others may read it, or two are not of one exchange.
    """
    if settings.mode == "plain":
        return None
    shared = _shared(settings, folder, name)
    if settings.mode == "masked":
        return _of(settings, shared, pairs)
    from intarsia.privacy.keys.keyring import CkksSecret, KeyFolder
    from intarsia.privacy.secure_aggregation.ckks import CkksKeys

    kept = None if folder is None else KeyFolder(folder).ckks()
    if kept is not None:
        return _of(settings, shared, pairs, kept.secret)
    beside = KeyFolder(Path(settings.key).parent)
    found = beside.ckks() if settings.key else None
    if found is not None:
        if (found.federation, found.generation) != (shared.federation, shared.generation):
            raise KeyMaterialError(
                f"The CKKS keys in {beside.ckks_file} are of generation {found.generation} in "
                f"{found.federation!r}, but the shared key beside them of generation "
                f"{shared.generation} in {shared.federation!r}; accept the keys of one exchange, "
                "or remove the older file."
            )
        return _of(settings, shared, pairs, found.secret)
    fitting = parameters(settings.range, len(clients), error=settings.error or None)
    secret = CkksKeys.create(fitting).secret_bytes()
    if folder is not None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        CkksSecret(secret, name, shared.generation).store(KeyFolder(folder).ckks_file)
    return _of(settings, shared, pairs, secret)


def _of(settings: Privacy, shared: SharedKey, pairs: PairKeys | None, ckks: bytes = b"") -> Keys:
    if settings.trust == "pairs" and pairs is None:
        return in_one_process(shared, ckks)
    return Keys(shared, ckks, pairs)


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


def sealing(
    settings: Privacy, clients: Sequence[str], secrets: Keys | None, *, fresh: bool = False
) -> Sealing:
    """Return the clients' sealers and the server's adder; None: the adder alone.

    `fresh` says that nothing was sealed with these keys in the sessions to come; else contributions
    carry a nonce.

    Raises
    ------
    ExperimentError
        If the range cannot be had.
    """
    from intarsia.privacy.secure_aggregation.masking import MaskedAdder, MaskedSealer

    fixed, digits = _formats(settings, len(clients))
    exact: dict[str, ExactSealer] = {}
    pairs = settings.trust == "pairs"
    if secrets is not None:
        # One for all clients: they hold the same keys, and a ledger remembers each client's
        # streams. With one for each, every client would find the caches filled with another's
        # tables.
        masks = _pair_masks(settings, secrets, fresh) if pairs else secrets.shared
        exact = dict.fromkeys(clients, MaskedSealer(masks, fixed, len(clients)))
    if settings.mode == "masked":
        return Sealing("masked", digits, MaskedAdder(), exact, exact, _LONG, pairs)
    from intarsia.privacy.secure_aggregation import ckks

    bulk: dict[str, Sealer] = {}
    if secrets is None:
        known = parameters(settings.range, len(clients), error=settings.error or None)
    else:
        found = ckks.CkksKeys.from_secret_bytes(secrets.ckks)
        known = found.parameters
        _check_parameters(settings, known, len(clients))
        token = secrets.shared.derive("tokens")
        hidden = _pair_masks(settings, secrets, fresh, residues=True) if pairs else None
        sealer = ckks.CkksSealer(found, clients=clients, token_key=token, masks=hidden)
        bulk = {name: ckks.CkksOrMasks(sealer, words) for name, words in exact.items()}
    adder = ckks.CkksAdder(known.to_bytes())
    either = ckks.CkksOrMasksAdder(adder, MaskedAdder())
    return Sealing("ckks", digits, either, exact, bulk, _LONG, pairs, adder, known.grid)


def _pair_masks(
    settings: Privacy, secrets: Keys, fresh: bool, *, residues: bool = False
) -> PairMasks:
    from intarsia.privacy.secure_aggregation.masking import NONCE_BYTES
    from intarsia.privacy.secure_aggregation.pairwise import PairMasks

    if secrets.pairs is None:
        raise KeyMaterialError(
            'privacy.trust is "pairs", and there are no keys of pairs; begin the run anew, so that '
            "the sites agree on some."
        )
    nonce = b"" if fresh else os.urandom(NONCE_BYTES)
    return PairMasks(secrets.pairs, settings.colluders, nonce=nonce, residues=residues)


def _check_parameters(settings: Privacy, known: CkksParameters, clients: int) -> None:
    if known.range != settings.range:
        raise ExperimentError(
            f"privacy.range is {settings.range:g} but the CKKS keys were made for "
            f"{known.range:g}; set privacy.range to that, or make new keys."
        )
    wanted = settings.error
    if settings.epsilon > 0 and not wanted:  # what the guarantee was computed with
        wanted = parameters(settings.range, clients).error(clients)
    if 0 < wanted < known.error(clients):
        raise ExperimentError(
            f"privacy.error is {wanted:g} but with the CKKS keys a total over {clients} clients "
            f"may be off by {known.error(clients):.2g}; set privacy.error to at least that, or "
            "make new keys."
        )


def adding(settings: Privacy, clients: Sequence[str]) -> Sealing | None:
    """Return what the server has of a mode, without a key: an adder; None for the mode "plain".

    Raises
    ------
    ExperimentError
        If the range cannot be had.
    """
    return None if settings.mode == "plain" else sealing(settings, clients, None)


def _formats(settings: Privacy, clients: int) -> tuple[FixedPoint, Digits]:
    """Return how values become words, and how those that must be exact become two of them."""
    from intarsia.privacy.secure_aggregation.fixed_point import FixedPoint

    given = FixedPoint(range=settings.range, addends=clients)
    size = 2.0 ** math.floor(math.log2(given.limit))
    # whether a value is beyond the range is told: by that of many runs to half its size, not to
    # the last digit, since words have room up to the next power of 2
    fixed = replace(given, range=2.0 ** math.ceil(math.log2(settings.range)))
    digits = Digits(
        size=size, unit=fixed.step, room=size * _MOST / (2 * clients), bound=-size * _MOST
    )
    return fixed, digits
