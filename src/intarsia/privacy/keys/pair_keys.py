"""A key for each pair of clients, and one for the owners of each cell: agreed on for each run.

`trust = "pairs"` rests on them: what two clients have in common no third one has.

How sites come to them
----------------------
1. Every client has confirmed the cards of all others (`intarsia.privacy.keys.key_exchange`). X25519
   of the own private key and another's card gives both the same secret, and nobody else.
2. In the set-up of a run each site draws a secret and sends every other a greeting under that
   secret, over the server: a nonce, and a key for each set of owners that it comes first in and
   both are of. What all must have seen alike (the schemas) enters as associated data, and so does
   what these two alone know (the ids behind the names of rows that both have).
3. A site that has read the greetings of all others has the keys of the run. One is missing, altered
   or from a site that was told of other schemas, or lacks what both must know: it refuses the run.

So the server can choose no owners, and tell no two clients of different ones. The nonces of both
enter the key of a pair: a site that has lost its folder and is asked for the same run again has
other masks. What a site drew goes into its own state, so that one that is started again has the
same keys (but for what it hides by a nonce of its own, see `pairwise`).

In a simulation all clients are in one process: the private keys come from the key of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from intarsia.errors import GreetingError, KeyMaterialError, TamperedError
from intarsia.privacy.keys import crypto
from intarsia.privacy.keys.crypto import KEY_BYTES, pseudorandom
from intarsia.privacy.keys.key_exchange import Card, Identity
from intarsia.privacy.keys.shared_key import SharedKey

_VERSION: Final = b"1"


@dataclass(frozen=True, eq=False)
class PairKeys:
    """What a client has of a run, or in a simulation all of them.

    Both raise KeyMaterialError for what is not theirs.
    """

    pair: Callable[[str, str], bytes]  # of two clients, in any order
    owners: Callable[[tuple[str, ...]], bytes]  # of sorted names


def drawn_secret() -> bytes:
    """Return what a site draws for one run."""
    return crypto.new_secret()


def greetings(
    me: Identity,
    cards: Mapping[str, Card],
    secret: bytes,
    owner_sets: Iterable[tuple[str, ...]],
    agreed: bytes,
    known: Mapping[str, bytes],
) -> dict[str, bytes]:
    """Return what a site sends each other one, by name.

    Parameters
    ----------
    cards
        Those of all other clients of the run, confirmed.
    secret
        What was drawn for the run.
    owner_sets
        All that own a cell together, each sorted.
    agreed
        Names what all must have seen alike.
    known
        Names, for each of the others, what that one and this client must both know.

    Raises
    ------
    KeyMaterialError
        If a card is none that a key comes of.
    """
    led, mine = _led(me.name, owner_sets), me.card
    found: dict[str, bytes] = {}
    for name, card in cards.items():
        own = [_owners_key(secret, some) for some in led if name in some]
        clear = b"".join((_nonce(secret), *own))
        base = _agreed_secret(me, mine, card)
        key, seen = _greeting_of(base, me.name, name, agreed, known[name])
        found[name] = crypto.encrypt(key, clear, seen)
    return found


def met(
    me: Identity,
    cards: Mapping[str, Card],
    secret: bytes,
    owner_sets: Sequence[tuple[str, ...]],
    agreed: bytes,
    known: Mapping[str, bytes],
    received: Mapping[str, bytes],
) -> PairKeys:
    """Return the keys of a run, from the greetings of all others; else as for `greetings`.

    Raises
    ------
    KeyMaterialError
        If somebody's greeting is missing.
    TamperedError
        If one was altered, is not from who it says, or its site has seen something else.
    """
    missing = sorted(cards.keys() - received.keys())
    if missing:
        raise KeyMaterialError(
            f"The keys of pairs need the greetings of all other clients, and those of {missing} "
            "did not come; begin the run anew when all are there."
        )
    pairs, mine = dict[str, bytes](), me.card
    owned = {some: _owners_key(secret, some) for some in _led(me.name, owner_sets)}
    for name, card in cards.items():
        base = _agreed_secret(me, mine, card)
        key, seen = _greeting_of(base, name, me.name, agreed, known[name])
        try:
            clear = crypto.decrypt(key, received[name], seen)
        except TamperedError as error:
            raise GreetingError(
                f"The greeting of {name!r} was altered, is under another card than that which was "
                f"confirmed here, or {name!r} was told of other samples, features or settings, or "
                "has not the ids of rows that both are to have; compare the fingerprints of the "
                "cards (intarsia keys show), then begin anew.",
                name,
            ) from error
        sent = [some for some in _led(name, owner_sets) if me.name in some]
        if len(clear) != KEY_BYTES * (1 + len(sent)):
            raise GreetingError(
                f"The greeting of {name!r} has {len(clear)} bytes and must have "
                f"{KEY_BYTES * (1 + len(sent))}; install the same version of intarsia there.",
                name,
            )
        nonce, *given = (clear[at : at + KEY_BYTES] for at in range(0, len(clear), KEY_BYTES))
        owned.update(zip(sent, given, strict=True))
        ordered = sorted(((me.name, _nonce(secret)), (name, nonce)))
        pairs[name] = pseudorandom(base, "run", *(part for one in ordered for part in one))

    def pair(one: str, other: str) -> bytes:
        if me.name not in (one, other):
            raise _unknown((one, other))
        return _known(pairs, other if one == me.name else one)

    return PairKeys(pair, lambda owners: _known(owned, owners))


def simulated(shared: SharedKey) -> PairKeys:
    """Return the keys of all clients, which are in this process."""

    @cache
    def identity(name: str) -> Identity:
        return Identity(name, shared.federation, shared.derive(f"simulated client {name}"))

    @cache
    def card(name: str) -> Card:
        return identity(name).card

    def pair(one: str, other: str) -> bytes:
        return _agreed_secret(identity(one), card(one), card(other))

    return PairKeys(pair, lambda owners: _owners_key(identity(min(owners)).private, owners))


def _led(name: str, owner_sets: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return the owner sets that a client comes first in, in an order that all have."""
    return sorted({some for some in owner_sets if some[0] == name})


def _greeting_of(
    base: bytes, name: str, other: str, agreed: bytes, known: bytes
) -> tuple[bytes, bytes]:
    """Return the key of a greeting of one client to another, and its associated data."""
    key = pseudorandom(base, "greeting", name, other)
    return key, pseudorandom(key, "seen", agreed, known)


def _nonce(secret: bytes) -> bytes:
    return pseudorandom(secret, "nonce", _VERSION)


def _owners_key(secret: bytes, owners: tuple[str, ...]) -> bytes:
    return pseudorandom(secret, "owners", _VERSION, *owners)


def _agreed_secret(me: Identity, own: Card, card: Card) -> bytes:
    """Return what two clients have in common: names, federation and both cards enter it."""
    both = sorted((own, card), key=lambda one: one.name)
    words = [part for one in both for part in (one.name, one.public)]
    secret = crypto.agree(me.private, card.public)
    return crypto.derive(secret, "pair", _VERSION, me.federation, card.federation, *words)


def _known(keys: Mapping[Any, bytes], name: object) -> bytes:
    if name not in keys:
        raise _unknown(name)
    return keys[name]


def _unknown(name: object) -> KeyMaterialError:
    return KeyMaterialError(
        f"This client has no key in common with {name!r} in this run; run the algorithm as it is "
        "at the server."
    )
