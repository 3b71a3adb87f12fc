"""A client's folder of keys: its identity, and the keys that it shares with the other clients.

`identity.key`, `shared.key` and `ckks.key` lie in it, each readable by its owner only, and in
`cards.json` the cards of all clients. What is forwarded between clients (cards, bundles) holds
nothing that the forwarder can open. A bundle is the shared key of one generation wrapped for one
client, with the cards of all and with the CKKS secret key where there is one (see
`intarsia.privacy.keys.key_exchange` for how, and for what the ceremony protects from).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from intarsia.core.files.atomic_files import write_atomically
from intarsia.core.files.json_text import parse_json
from intarsia.errors import KeyMaterialError, lacks
from intarsia.privacy.keys import key_exchange
from intarsia.privacy.keys.key_exchange import Card, Identity
from intarsia.privacy.keys.secret_file import read_private, write_private
from intarsia.privacy.keys.shared_key import SharedKey, fingerprint

if TYPE_CHECKING:  # else in the functions: keys do without the library for ciphertexts
    from intarsia.privacy.secure_aggregation.ckks_parameters import CkksParameters

CKKS_KEY: Final = "CKKS key"  # the kind of the file
_BUNDLE: Final = "intarsia wrapped keys"
_VERSION: Final = 2  # 1 had no cards
_PURPOSE: Final = "ckks"
_CARDS: Final = "cards"


@dataclass(frozen=True)
class CkksSecret:
    """The secret key of the mode "ckks", which goes with a generation of the shared key."""

    secret: bytes = field(repr=False)
    federation: str
    generation: int

    @property
    def fingerprint(self) -> str:
        """Return what clients read to one another to see that they have the same key."""
        return fingerprint(CKKS_KEY, self.federation, self.secret)

    @property
    def range(self) -> float:
        """Return the largest |total| that the key was made for."""
        return self._parameters().range

    @property
    def error(self) -> float:
        """Return how far a total of as many clients as the key was made for may be off."""
        found = self._parameters()
        return found.error(found.addends)

    def _parameters(self) -> CkksParameters:
        from intarsia.privacy.secure_aggregation.ckks import CkksKeys

        return CkksKeys.from_secret_bytes(self.secret).parameters

    @classmethod
    def load(cls, path: Path) -> CkksSecret:
        """Return the key in a file; KeyMaterialError if others may read it, or it changed."""
        public, secret = read_private(path, CKKS_KEY)
        return cls(secret, public["federation"], public.get("generation", 0))

    def store(self, path: Path) -> None:
        """Write the key to a file of its owner's alone; KeyMaterialError if it cannot be."""
        public = {"federation": self.federation, "generation": self.generation}
        write_private(path, CKKS_KEY, public, self.secret)


@dataclass(frozen=True)
class Drawn:
    """Keys that were drawn and wrapped, but are not in use before the keeper keeps them."""

    shared: SharedKey
    ckks: CkksSecret | None
    cards: tuple[Card, ...]  # of all clients
    bundles: dict[str, bytes] = field(repr=False)  # by the name of the client


@dataclass(frozen=True)
class KeyFolder:
    """A client's folder of keys."""

    path: Path

    @property
    def identity_file(self) -> Path:
        """Return where the client's own key pair is."""
        return self.path / "identity.key"

    @property
    def shared_file(self) -> Path:
        """Return where the shared key is."""
        return self.path / "shared.key"

    @property
    def ckks_file(self) -> Path:
        """Return where the CKKS secret key is."""
        return self.path / "ckks.key"

    @property
    def cards_file(self) -> Path:
        """Return where the cards of all clients are."""
        return self.path / "cards.json"

    def create(self, name: str, federation: str, *, replace: bool = False) -> Identity:
        """Make the client's identity.

        Raises
        ------
        KeyMaterialError
            If there is one and `replace` is not set, a name is wrong, or nothing can be written.
        """
        if self.identity_file.exists() and not replace:
            raise KeyMaterialError(
                f"{self.path} holds an identity already; name another folder with --folder, or "
                "replace it with --replace: then all clients confirm the new card."
            )
        for text in (name, federation):
            if text != text.strip() or not text.isprintable():
                raise KeyMaterialError(
                    f"The name {text!r} has spaces at an end or characters that do not print; "
                    "people compare it, so give one that can be read out."
                )
        made = Identity.create(name, federation)
        _ = made.card  # refuses empty names
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise KeyMaterialError(
                f"The folder {self.path} cannot be made ({error.strerror}); name another one."
            ) from error
        made.store(self.identity_file)
        return made

    def identity(self) -> Identity:
        """Return the client's identity.

        Raises
        ------
        KeyMaterialError
            If there is none, or its file is not sound.
        """
        if not self.identity_file.exists():
            raise KeyMaterialError(
                f"{lacks(self.path, 'holds no identity')}; make an identity with `intarsia keys "
                "create NAME --federation NAME`, or name the folder that holds it."
            )
        return Identity.load(self.identity_file)

    def shared(self) -> SharedKey | None:
        """Return the shared key in use, None before there is one."""
        return SharedKey.load(self.shared_file) if self.shared_file.exists() else None

    def ckks(self) -> CkksSecret | None:
        """Return the CKKS secret key in use, None if there is none."""
        return CkksSecret.load(self.ckks_file) if self.ckks_file.exists() else None

    def cards(self) -> tuple[Card, ...] | None:
        """Return the cards of all clients that have the shared key, None before there are some.

        Raises
        ------
        KeyMaterialError
            If the file was altered.
        """
        if not self.cards_file.exists():
            return None
        return _read_cards(self.cards_file.read_bytes(), str(self.cards_file))

    def others(self, clients: Sequence[str]) -> tuple[Identity, dict[str, Card]]:
        """Return the client's identity, and the cards of some clients but its own.

        Raises
        ------
        KeyMaterialError
            If there is no identity, or no card of one of them.
        """
        me, known = self.identity(), {card.name: card for card in self.cards() or ()}
        missing = sorted({*clients, me.name} - known.keys())
        if missing or me.name not in clients or known[me.name] != me.card:
            raise KeyMaterialError(
                f"{self.path} has the identity of {me.name!r} and the cards of {sorted(known)}, "
                f'but the run is of {sorted(clients)} with privacy.trust = "pairs", for which '
                "each needs the cards of all; exchange the keys again with these clients "
                '(intarsia keys rotate), or set privacy.trust = "clients".'
            )
        return me, {name: known[name] for name in clients if name != me.name}

    def draw(
        self,
        cards: Sequence[Card],
        *,
        rotate: bool = False,
        range: float | None = None,
        error: float | None = None,
    ) -> Drawn:
        """Draw the shared key (or its next generation) and wrap it for each card but one's own.

        Nothing is kept before `keep`, so that a key which could not be handed out is not in use.

        Parameters
        ----------
        cards
            The confirmed cards of the other clients; one's own may be among them.
        rotate
            Draw the next generation of the key in use.
        range
            Draw CKKS keys as well, for totals up to it. A rotation always replaces CKKS keys, and
            keeps their range where none is given.
        error
            Of a total under the CKKS keys, at most; None: as little as the range allows, also
            where the keys before were made for a larger one.

        Raises
        ------
        KeyMaterialError
            If there is a key and it is not to be rotated, or the other way round; if the cards do
            not fit together; or if another client comes first by name.
        ExperimentError
            If CKKS cannot have the range within the error.
        """
        me, present = self.identity(), self.shared()
        others = [card for card in cards if card != me.card]
        if not others:
            raise KeyMaterialError(
                f"{me.name!r} has nobody to share a key with; give the cards of the other clients."
            )
        if rotate and present is None:
            raise KeyMaterialError(
                f"{self.path} holds no shared key that could be rotated; draw the first one with "
                "`intarsia keys share`."
            )
        if present is not None and not rotate:
            raise KeyMaterialError(
                f"{self.path} holds generation {present.generation} of the shared key already; "
                "draw the next one with --rotate."
            )
        shared = SharedKey.draw(me.federation) if present is None else present.rotate()
        wrapped = key_exchange.wrap(shared, me, others)
        former = self.ckks() if range is None else None
        if former is not None:
            range = former.range
        ckks = None if range is None else _ckks(shared, range, len(others) + 1, error)
        all_cards = tuple(sorted((me.card, *others), key=lambda card: card.name))
        bundles = {
            card.name: _bundle(me, card, wrapped[card.name], shared, ckks, all_cards)
            for card in others
        }
        return Drawn(shared, ckks, all_cards, bundles)

    def keep(self, drawn: Drawn) -> None:
        """Take keys into use in place of older ones."""
        # The shared key last: if the process ends between, the same keys can be accepted again.
        if drawn.ckks is None:
            self.ckks_file.unlink(missing_ok=True)  # of the generation before
        else:
            drawn.ckks.store(self.ckks_file)
        write_atomically(self.cards_file, _written_cards(drawn.cards))
        drawn.shared.store(self.shared_file)

    def accept(self, bundle: bytes, sender: Card) -> Drawn:
        """Open a bundle that the sender, a keeper, made for this client; take its keys into use.

        Raises
        ------
        TamperedError
            If the keys were altered, or are not from this sender to this client.
        KeyMaterialError
            If this is no bundle, one for or from another, or of a generation that is not newer.
        """
        me, present = self.identity(), self.shared()
        content = _opened(bundle)
        for key, expected, whose in (
            ("receiver", me.name, "this identity is"),
            ("sender", sender.name, "the card is that of"),
            ("federation", me.federation, "this identity is of"),
        ):
            if content[key] != expected:
                raise KeyMaterialError(
                    f"The {key} of these wrapped keys is {content[key]!r}, but {whose} "
                    f"{expected!r}; take the file and the card that belong together."
                )
        newer_than = 0 if present is None else present.generation
        shared = key_exchange.unwrap(content["shared"], me, sender, newer_than=newer_than)
        ckks = None
        if content["ckks"] is not None:
            secret = key_exchange.unwrap_secret(
                content["ckks"], _PURPOSE, shared.generation, me, sender
            )
            ckks = CkksSecret(secret, me.federation, shared.generation)
        raw = key_exchange.unwrap_secret(content["cards"], _CARDS, shared.generation, me, sender)
        cards = _read_cards(raw, "the wrapped keys")
        if me.card not in cards or sender not in cards:
            raise KeyMaterialError(
                f"The cards with the wrapped keys, of {[card.name for card in cards]}, lack this "
                f"client's card or that of {sender.name!r} as it is here; the keeper has another "
                "one: compare the fingerprints of both, and let it wrap the keys again."
            )
        found = Drawn(shared, ckks, cards, {})
        self.keep(found)
        return found


def _ckks(shared: SharedKey, range: float, clients: int, error: float | None) -> CkksSecret:
    from intarsia.privacy.secure_aggregation.ckks import CkksKeys
    from intarsia.privacy.secure_aggregation.ckks_parameters import parameters

    secret = CkksKeys.create(parameters(range, clients, error=error)).secret_bytes()
    return CkksSecret(secret, shared.federation, shared.generation)


def _bundle(
    me: Identity,
    card: Card,
    wrapped: bytes,
    shared: SharedKey,
    ckks: CkksSecret | None,
    cards: Sequence[Card],
) -> bytes:
    generation, second = shared.generation, None
    if ckks is not None:
        second = key_exchange.wrap_secret(ckks.secret, _PURPOSE, generation, me, card)
    third = key_exchange.wrap_secret(_written_cards(cards), _CARDS, generation, me, card)
    content = {
        "kind": _BUNDLE,
        "version": _VERSION,
        "federation": me.federation,
        "sender": me.name,
        "receiver": card.name,
        "generation": generation,
        "shared": base64.b64encode(wrapped).decode(),
        "ckks": None if second is None else base64.b64encode(second).decode(),
        "cards": base64.b64encode(third).decode(),
    }
    return (json.dumps(content, ensure_ascii=False, indent=1) + "\n").encode()


def _written_cards(cards: Sequence[Card]) -> bytes:
    return (json.dumps([card.text() for card in cards], ensure_ascii=False) + "\n").encode()


def _read_cards(data: bytes, place: str) -> tuple[Card, ...]:
    try:
        return tuple(Card.read(text) for text in parse_json(data))
    except (ValueError, TypeError, AttributeError, KeyMaterialError) as error:
        raise KeyMaterialError(
            f"{place} should hold the cards of all clients, and {len(data)} bytes cannot be read "
            f"as such ({error}); exchange the keys again (intarsia keys rotate)."
        ) from error


def _opened(bundle: bytes) -> dict[str, Any]:
    """Return the parts of a bundle; what is beside the wrapped keys is checked in them again."""
    try:
        content = parse_json(bundle)
        if (content["kind"], content["version"]) != (_BUNDLE, _VERSION):
            raise ValueError("another kind or version")
        found = {key: content[key] for key in ("federation", "sender", "receiver")}
        for key in ("shared", "ckks", "cards"):
            value = content[key]
            found[key] = None if value is None else base64.b64decode(value, validate=True)
        if found["shared"] is None or found["cards"] is None:
            raise ValueError("no shared key, or no cards")
    except (ValueError, KeyError, TypeError) as error:
        raise KeyMaterialError(
            f"{len(bundle)} bytes are no wrapped keys of version {_VERSION} ({error}); they were "
            "cut or altered on their way, or are another file: ask the keeper for them again."
        ) from error
    return found
