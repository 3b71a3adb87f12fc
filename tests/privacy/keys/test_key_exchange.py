from __future__ import annotations

import json
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intarsia.errors import KeyMaterialError, TamperedError
from intarsia.privacy.keys.key_exchange import (
    Card,
    Identity,
    keeper,
    unwrap,
    unwrap_secret,
    wrap,
    wrap_secret,
)
from intarsia.privacy.keys.shared_key import SharedKey

BANK, CLINIC, HOSPITAL = (Identity.create(name, "care") for name in ("bank", "clinic", "hospital"))
CARDS = [Card.read(party.announce()) for party in (BANK, CLINIC, HOSPITAL)]
SHARED = SharedKey.draw("care")


def test_the_ceremony_gives_every_client_the_same_key_and_the_server_none():
    parties = {name: Identity.create(name, "care") for name in ("bank", "clinic", "hospital")}
    seen = [party.announce().encode() for party in parties.values()]  # by the server
    cards = {}
    for name, party in parties.items():
        cards[name] = Card.read(party.announce()).confirm(party.fingerprint)
    first = keeper(cards)
    assert first == "bank"
    shared = SharedKey.draw("care")
    wrapped = wrap(shared, parties[first], cards.values())
    seen += wrapped.values()
    assert set(wrapped) == {"clinic", "hospital"}
    for name, message in wrapped.items():
        assert unwrap(message, parties[name], cards[first]) == shared
    for secret in (shared.secret, *(party.private for party in parties.values())):
        for message in seen:
            assert secret not in message
            assert secret.hex().encode() not in message
    # nobody opens what is another's, and least of all the server with an identity of its own
    server = Identity.create("clinic", "care")
    for stranger in (server, parties["hospital"], parties["bank"]):
        with pytest.raises(TamperedError):
            unwrap(wrapped["clinic"], stranger, cards[first])


@pytest.mark.parametrize("flip", [1, 128])
def test_every_altered_byte_of_a_wrapped_key_is_found_out(flip):
    wrapped = wrap(SHARED, BANK, CARDS)["clinic"]
    for place in range(len(wrapped)):
        altered = bytearray(wrapped)
        altered[place] ^= flip
        with pytest.raises(TamperedError):
            unwrap(bytes(altered), CLINIC, CARDS[0])


def test_a_wrapped_key_cut_anywhere_or_prolonged_is_found_out():
    wrapped = wrap(SHARED, BANK, CARDS)["clinic"]
    for broken in [wrapped[:length] for length in range(len(wrapped))] + [wrapped + b"\0"]:
        with pytest.raises(TamperedError):
            unwrap(broken, CLINIC, CARDS[0])


def test_an_ephemeral_key_that_everyone_knows_is_found_out():
    wrapped = wrap(SHARED, BANK, CARDS)["clinic"]
    end = 4 + int.from_bytes(wrapped[:4], "little")
    with pytest.raises(TamperedError, match="altered"):
        unwrap(wrapped[:end] + bytes(32) + wrapped[end + 32 :], CLINIC, CARDS[0])


def test_a_key_from_another_sender_is_found_out():
    forger = Identity.create("bank", "care")
    wrapped = wrap(SHARED, forger, [CARDS[1]])["clinic"]
    with pytest.raises(TamperedError):
        unwrap(wrapped, CLINIC, CARDS[0])


def test_a_key_of_another_federation_or_purpose_is_found_out():
    other = Identity("clinic", "trade", CLINIC.private)
    bank = Identity("bank", "trade", BANK.private)
    with pytest.raises(TamperedError, match="federation 'care'"):
        unwrap(wrap(SHARED, BANK, CARDS)["clinic"], other, bank.card)
    message = wrap_secret(bytes(32), "ckks", 1, BANK, CARDS[1])
    with pytest.raises(TamperedError, match="purpose 'ckks'"):
        unwrap(message, CLINIC, CARDS[0])


def test_a_rotation_is_taken_and_an_older_generation_refused():
    newer = SHARED.rotate()
    old, new = (wrap(shared, BANK, CARDS)["clinic"] for shared in (SHARED, newer))
    assert unwrap(new, CLINIC, CARDS[0], newer_than=1) == newer
    for message, used in ((old, 1), (old, 2), (new, 2)):
        with pytest.raises(KeyMaterialError, match=f"generation {used} is in use"):
            unwrap(message, CLINIC, CARDS[0], newer_than=used)


@given(st.binary(max_size=3000), st.text(max_size=9), st.integers(1, 2**40))
def test_any_secret_can_be_wrapped(secret, purpose, generation):
    message = wrap_secret(secret, purpose, generation, CLINIC, CARDS[2])
    assert unwrap_secret(message, purpose, generation, HOSPITAL, CARDS[1]) == secret


def test_a_large_secret_of_another_generation_is_refused():
    secret = bytes(400_000)
    message = wrap_secret(secret, "ckks", 2, BANK, CARDS[1])
    assert len(message) < 400_000 + 300
    assert unwrap_secret(message, "ckks", 2, CLINIC, CARDS[0]) == secret
    with pytest.raises(KeyMaterialError, match="sent generation 2"):
        unwrap_secret(message, "ckks", 1, CLINIC, CARDS[0])


def test_a_secret_is_wrapped_differently_each_time():
    one, other = (wrap_secret(b"same", "ckks", 1, BANK, CARDS[1]) for _ in range(2))
    assert one[-52:] != other[-52:]


def test_only_the_first_by_name_sends_the_key():
    with pytest.raises(KeyMaterialError, match="'bank' comes first"):
        wrap(SHARED, CLINIC, CARDS)


@pytest.mark.parametrize(
    ("stranger", "sentence"),
    [
        (Identity.create("shop", "trade").card, "another federation"),
        (Identity.create("clinic", "care").card, "one name"),
        (Identity.create("bank", "care").card, "one name"),
        (Card("shop", "care", CARDS[1].public), "one public key"),
    ],
)
def test_cards_that_do_not_fit_together_are_refused(stranger, sentence):
    with pytest.raises(KeyMaterialError, match=sentence):
        wrap(SHARED, BANK, [*CARDS, stranger])


def test_a_replaced_card_is_not_confirmed():
    forged = Card.read(Identity.create("clinic", "care").announce())
    with pytest.raises(KeyMaterialError, match="replaced on its way") as caught:
        forged.confirm(CLINIC.fingerprint)
    assert forged.fingerprint not in str(caught.value)
    heard = CLINIC.fingerprint.upper().replace(" ", "  ")
    assert CARDS[1].confirm(heard) == CLINIC.card


def test_a_card_renamed_on_its_way_has_another_fingerprint():
    content = json.loads(CLINIC.announce())
    prints = {
        Card.read(json.dumps({**content, **change})).fingerprint
        for change in ({}, {"name": "clinics"}, {"federation": "cares"}, {"public": "ab" * 32})
    }
    assert len(prints) == 4


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"kind": "card"},
        {"name": 3},
        {"name": ""},
        {"federation": None},
        {"public": "ab"},
        {"public": "xy" * 32},
        {"public": 7},
    ],
)
def test_what_is_no_card_is_refused(change):
    text = json.dumps({**json.loads(CLINIC.announce()), **change})
    with pytest.raises(KeyMaterialError):
        Card.read(text)


@pytest.mark.parametrize("text", ["", "[]", "{}", "7", "null", "{"])
def test_a_text_that_is_no_card_is_refused(text):
    with pytest.raises(KeyMaterialError, match="is not a card"):
        Card.read(text)


def test_an_identity_is_stored_for_its_owner_only(tmp_path):
    path = tmp_path / "identity.key"
    CLINIC.store(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Identity.load(path) == CLINIC
    path.chmod(0o644)
    with pytest.raises(KeyMaterialError, match=r"identity in .* has file mode 0644"):
        Identity.load(path)


def test_a_shared_key_is_no_identity(tmp_path):
    SHARED.store(tmp_path / "key")
    with pytest.raises(KeyMaterialError, match="holds 'shared key'"):
        Identity.load(tmp_path / "key")


def test_the_private_key_is_never_shown():
    assert str(CLINIC.private) not in repr(CLINIC)
    assert CLINIC.private.hex() not in CLINIC.announce()


def test_an_identity_needs_a_whole_private_key():
    with pytest.raises(KeyMaterialError, match="has 3 bytes"):
        Identity("bank", "care", b"abc")
