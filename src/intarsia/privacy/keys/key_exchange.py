"""How clients come to share a key over a server that forwards messages and must not learn it.

The ceremony
------------
1. Every client makes an `Identity` once, keeps its private file (mode 0600), and announces its
   card: the public key with its name and the federation's. The server forwards the cards.
2. People compare: each client reads its fingerprint to the others by telephone or letter, and each
   confirms the cards it received (`Card.confirm`). A server that replaces a card is found out here
   and nowhere else; a client that skips this step trusts the server with everything.
3. The first client by name draws the `SharedKey` and wraps it for every other card (`wrap`). The
   server forwards what it cannot read. Each client unwraps its own (`unwrap`).
   With it go the cards of all, so that each two clients have a secret of their own
   (`intarsia.privacy.keys.pair_keys`), also those that did not hear each other's fingerprint.
4. The clients compare the fingerprints of the shared key and of all cards in the same way. A keeper
   that gave two of them another's card is found out here.
5. Rotation is step 3 with the next generation, for example when a client leaves: it gets none. A
   generation that is not newer than the one in use is refused.

How a secret is wrapped
-----------------------
As HPKE does in its authenticated mode (RFC 9180, section 5.1.3), with the sender's ephemeral key E
and the static keys S and R: X25519(E, R) and X25519(S, R) → HKDF-SHA256 → AES-256-GCM. All three
public keys, the federation, both names, the purpose and the generation enter the derivation, and
the header is associated data. So:

* outsiders and the server, also with all messages ever sent, learn the length of the secret only;
* a message opens only at its receiver, and only if its sender had the private key of the card;
* whoever steals a receiver's private file reads what was wrapped for it, earlier messages included,
  and can write to this receiver in any name: then all make new identities and rotate the key.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from intarsia.core.files.json_text import parse_json
from intarsia.errors import KeyMaterialError, TamperedError
from intarsia.privacy.keys import crypto
from intarsia.privacy.keys.crypto import KEY_BYTES, agree
from intarsia.privacy.keys.secret_file import read_private, write_private
from intarsia.privacy.keys.shared_key import SharedKey, fingerprint

_KIND: Final = "identity"
_CARD: Final = "intarsia card"
_VERSION: Final = 1
_SHARED_KEY: Final = "shared key"


@dataclass(frozen=True)
class Card:
    """What a client shows of its identity."""

    name: str
    federation: str
    public: bytes  # X25519, 32

    def __post_init__(self) -> None:
        if not self.name or not self.federation:
            raise KeyMaterialError(
                f"The identity {self.name!r} of the federation {self.federation!r} lacks a name; "
                "name both."
            )
        if len(self.public) != KEY_BYTES:
            raise KeyMaterialError(
                f"The public key of {self.name!r} has {len(self.public)} bytes; it must have "
                f"{KEY_BYTES}: ask for the card again."
            )

    @classmethod
    def read(cls, text: str) -> Self:
        """Return the card in a text, which nobody has confirmed yet.

        Raises
        ------
        KeyMaterialError
            If the text is not a card.
        """
        try:
            content = parse_json(text)
            if (content["kind"], content["version"]) != (_CARD, _VERSION):
                raise ValueError("another kind or version")
            name, federation = content["name"], content["federation"]
            if not isinstance(name, str) or not isinstance(federation, str):
                raise ValueError("no names")
            return cls(name, federation, bytes.fromhex(content["public"]))
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, KeyMaterialError):
                raise
            raise KeyMaterialError(
                f"A text of {len(text)} characters is not a card of version {_VERSION} ({error}); "
                "ask the client to announce itself again."
            ) from error

    def text(self) -> str:
        """Return the card as text for the server to forward."""
        content = {
            "kind": _CARD,
            "version": _VERSION,
            "name": self.name,
            "federation": self.federation,
            "public": self.public.hex(),
        }
        return json.dumps(content, ensure_ascii=False)

    @property
    def fingerprint(self) -> str:
        """Return what the client reads to the others."""
        return fingerprint("card", self.federation, self.name, self.public)

    def confirm(self, heard: str) -> Self:
        """Return the card if its fingerprint is the one that its client was heard to read.

        Raises
        ------
        KeyMaterialError
            If it is not; spaces and case do not matter.
        """
        if "".join(heard.split()).lower() != "".join(self.fingerprint.split()):
            raise KeyMaterialError(
                f"The card of {self.name!r} has another fingerprint than {heard!r}; the card was "
                "replaced on its way, or the fingerprint misread: let somebody at the client read "
                "it again, and do not go on with this card if it differs."
            )
        return self


@dataclass(frozen=True)
class Identity:
    """A client's own key pair."""

    name: str
    federation: str
    private: bytes = field(repr=False)  # X25519, 32

    def __post_init__(self) -> None:
        if len(self.private) != KEY_BYTES:
            raise KeyMaterialError(
                f"The private key of {self.name!r} has {len(self.private)} bytes; it must have "
                f"{KEY_BYTES}."
            )

    @classmethod
    def create(cls, name: str, federation: str) -> Self:
        """Return a fresh identity."""
        return cls(name, federation, crypto.new_private_key())

    @property
    def card(self) -> Card:
        """Return the public half."""
        return Card(self.name, self.federation, crypto.public_key(self.private))

    @property
    def fingerprint(self) -> str:
        """Return what to read to the other clients."""
        return self.card.fingerprint

    def announce(self) -> str:
        """Return the card as text for the server to forward."""
        return self.card.text()

    def store(self, path: Path) -> None:
        """Write the identity to a file of its owner's alone; KeyMaterialError if it cannot be."""
        write_private(path, _KIND, {"name": self.name, "federation": self.federation}, self.private)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Return the identity in a file; KeyMaterialError if others may read it, or it changed."""
        public, private = read_private(path, _KIND)
        return cls(public["name"], public["federation"], private)


def cards_fingerprint(cards: Iterable[Card]) -> str:
    """Return what clients read to one another to see that they have the same cards of all."""
    ordered = sorted(cards, key=lambda card: card.name)
    return fingerprint("cards", *(part for one in ordered for part in (one.text(), one.public)))


def keeper(names: Iterable[str]) -> str:
    """Return which of the clients draws the shared key: the first by name."""
    return min(names)


def wrap(shared: SharedKey, me: Identity, cards: Iterable[Card]) -> dict[str, bytes]:
    """Return the keeper's shared key wrapped for each card but its own, by name.

    `cards` are the confirmed ones of the clients; the keeper's may be among them.

    Raises
    ------
    KeyMaterialError
        If the cards are of another federation, two bear one name or one key, or one of them and
        not `me` is the keeper.
    """
    others = [card for card in cards if card != me.card]
    _refuse_strangers(shared.federation, me, others)
    first = keeper([me.name, *(card.name for card in others)])
    if first != me.name:
        raise KeyMaterialError(
            f"{me.name!r} wants to send the shared key, but {first!r} comes first by name; leave "
            "it to that client, so that there is one key only."
        )
    return {
        card.name: wrap_secret(shared.secret, _SHARED_KEY, shared.generation, me, card)
        for card in others
    }


def unwrap(wrapped: bytes, me: Identity, sender: Card, *, newer_than: int = 0) -> SharedKey:
    """Return the shared key that the sender, whose card is confirmed, wrapped for `me`.

    `newer_than` is the generation in use, 0 if there is none.

    Raises
    ------
    TamperedError
        If the message was altered, or is not from this sender to `me`.
    KeyMaterialError
        If its generation is not newer than the one in use.
    """
    secret, generation = _unwrapped(wrapped, _SHARED_KEY, me, sender)
    if generation <= newer_than:
        raise KeyMaterialError(
            f"{sender.name!r} sent generation {generation} of the shared key, but generation "
            f"{newer_than} is in use; an old message was sent again, or the key must be rotated."
        )
    return SharedKey(secret, me.federation, generation)


def wrap_secret(
    secret: bytes, purpose: str, generation: int, me: Identity, receiver: Card
) -> bytes:
    """Return any secret, such as a CKKS context with its secret key, wrapped for one card.

    Raises
    ------
    KeyMaterialError
        If the receiver is of another federation, or `me`.
    """
    _refuse_strangers(me.federation, me, [receiver])
    header = {
        "federation": me.federation,
        "generation": generation,
        "purpose": purpose,
        "receiver": receiver.name,
        "sender": me.name,
        "version": _VERSION,
    }
    ephemeral = crypto.new_private_key()
    raw = json.dumps(header, ensure_ascii=False).encode()
    first, second = agree(ephemeral, receiver.public), agree(me.private, receiver.public)
    publics = (crypto.public_key(ephemeral), me.card.public, receiver.public)
    key = crypto.derive(first + second, "wrap", raw, *publics)
    return crypto.joined_texts(raw) + publics[0] + crypto.encrypt(key, secret, raw)


def unwrap_secret(
    wrapped: bytes, purpose: str, generation: int, me: Identity, sender: Card
) -> bytes:
    """Return a secret that the sender wrapped for `me`, for a purpose and a generation.

    Raises
    ------
    TamperedError
        If the message was altered, is not from this sender to `me`, or for another purpose.
    KeyMaterialError
        If it is of another generation.
    """
    secret, sent = _unwrapped(wrapped, purpose, me, sender)
    if sent != generation:
        raise KeyMaterialError(
            f"{sender.name!r} sent generation {sent} of the secret for {purpose!r}, but generation "
            f"{generation} is in use; ask for the message that belongs to it."
        )
    return secret


def _unwrapped(wrapped: bytes, purpose: str, me: Identity, sender: Card) -> tuple[bytes, int]:
    raw, ephemeral, sealed = _parts(wrapped)
    try:
        first = agree(me.private, ephemeral)
    except KeyMaterialError as error:
        raise TamperedError(
            f"A wrapped secret from {sender.name!r} was altered on its way ({error}); ask for it "
            "again."
        ) from error
    second = agree(me.private, sender.public)
    key = crypto.derive(first + second, "wrap", raw, ephemeral, sender.public, me.card.public)
    secret = crypto.decrypt(key, sealed, raw)
    # From here on the header is the sender's, as wrap_secret made it, if perhaps for another use.
    header: Mapping[str, Any] = parse_json(raw)
    expected = {
        "federation": me.federation,
        "purpose": purpose,
        "receiver": me.name,
        "sender": sender.name,
        "version": _VERSION,
    }
    wrong = [name for name, value in expected.items() if header.get(name) != value]
    if wrong:
        name = wrong[0]
        raise TamperedError(
            f"A wrapped secret from {sender.name!r} has the {name} {header.get(name)!r}; expected "
            f"{expected[name]!r}: it was sent in place of another, ask for the right one."
        )
    return secret, header["generation"]


def _parts(wrapped: bytes) -> tuple[bytes, bytes, bytes]:
    end = 4 + int.from_bytes(wrapped[:4], "little")
    if len(wrapped) < end + KEY_BYTES:
        raise TamperedError(
            f"A wrapped secret has {len(wrapped)} bytes, fewer than its header announces; it was "
            "altered or cut on its way, ask for it again."
        )
    return wrapped[4:end], wrapped[end : end + KEY_BYTES], wrapped[end + KEY_BYTES :]


def _refuse_strangers(federation: str, me: Identity, others: list[Card]) -> None:
    cards = [me.card, *others]
    strangers = [card.name for card in cards if card.federation != federation]
    if strangers:
        raise KeyMaterialError(
            f"{strangers} belong to another federation than {federation!r}; exchange keys within "
            "one federation."
        )
    if len({card.name for card in cards}) < len(cards):
        raise KeyMaterialError(
            f"Two cards bear one name among {sorted(card.name for card in cards)}; a client has "
            "one card: find out which one is its own."
        )
    if len({card.public for card in cards}) < len(cards):
        raise KeyMaterialError(
            f"Two of the clients {sorted(card.name for card in cards)} show one public key; every "
            "client makes an identity of its own."
        )
