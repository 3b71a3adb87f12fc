"""Clients that have exchanged keys: a folder of keys each."""

from __future__ import annotations

from intarsia.privacy.keys.keyring import CkksSecret, Drawn, KeyFolder
from intarsia.privacy.keys.shared_key import SharedKey


def exchanged(folder, names, federation, ckks=b"", secret=bytes(range(32))):
    """Let clients exchange keys; return each one's folder, below `folder`/keys.

    The shared key is of this secret, and lies in `folder`/shared.key too, for all in one process.
    Identities that are there already stay: sites that run may have read them.
    """
    shared = SharedKey(secret, federation)
    shared.store(folder / "shared.key")
    places = {name: KeyFolder(folder / "keys" / name) for name in names}
    for name, place in places.items():
        if not place.identity_file.exists():
            place.create(name, federation)
    cards = tuple(places[name].identity().card for name in sorted(names))
    cipher = CkksSecret(ckks, federation, shared.generation) if ckks else None
    for place in places.values():
        place.keep(Drawn(shared, cipher, cards, {}))
    return places
