"""Keys that are no secret, numbers that repeat, senders that nobody holds against a key.

Each of these was taken out of the code without a test that noticed.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from intarsia.errors import TamperedError
from intarsia.privacy.entity_matching import psi
from intarsia.privacy.entity_matching.pseudonyms import pseudonyms
from intarsia.privacy.keys import crypto, key_exchange
from intarsia.privacy.keys.crypto import Keystream, pseudorandom
from intarsia.privacy.keys.key_exchange import Identity, unwrap_secret, wrap_secret
from intarsia.privacy.keys.shared_key import SharedKey
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.secure_aggregation.fixed_point import PRIME
from intarsia.privacy.secure_aggregation.protocol import Stream
from intarsia.privacy.settings import Privacy

STREAM = Stream("5e", 1, 1, "f", "x", 0)
BANK, CLINIC, SERVER = (Identity.create(name, "care") for name in ("bank", "clinic", "server"))


def sealing(mode):
    settings = Privacy(mode=mode, trust="clients")
    keys = modes.keys(settings, ("a", "b"), None, "test")
    return modes.sealing(settings, ("a", "b"), keys)


def factors(key, count=5):
    """Return the factors of the check that a key gives, as the code of the masks makes them."""
    stream = np.empty(8 * count, np.uint8)
    Keystream(pseudorandom(key, "check", "5e")).write(bytes(16), np.zeros_like(stream), stream)
    return stream.view(np.uint64)


def forged(piece, known):
    """Return a piece with one step more in its first word, and the check that factors give."""
    words = piece.content.copy()
    words[0] += np.uint64(1)
    words[-1] = (int(words[-1]) + int(known[0])) % PRIME
    return replace(piece, content=words)


@pytest.mark.parametrize("mode", ["masked", "ckks"])
def test_a_check_under_masks_cannot_be_made_from_a_key_that_is_known(mode):
    if mode == "ckks":
        pytest.importorskip("tenseal")
    made = sealing(mode)
    piece = made.exact["a"].seal("a", STREAM, np.zeros(3))
    sealer = made.exact["a"]
    known = [bytes(32), b"", b"test", SharedKey(bytes(32), "test").derive("masks")]
    for key in known:
        with pytest.raises(TamperedError):
            sealer.open(forged(piece, factors(key)[1:]))
    # with the clients' own key the forgery is one: so it is the key that refuses it
    opened = sealer.open(forged(piece, factors(sealer._masks._key)[1:]))
    assert opened[0] == sealer._fixed.step


def test_tokens_under_ckks_cannot_be_made_from_a_key_that_is_known():
    pytest.importorskip("tenseal")
    one, other = sealing("ckks"), sealing("ckks")
    tokens = []
    for made in (one, other):
        ckks = made.bulk["a"].ckks
        tokens.append(ckks._tokens("a", STREAM, (3,)))
        shared = SharedKey(bytes(32), "test").derive("tokens")
        for key in (bytes(32), bytes(16), shared):
            assert ckks._token_key != key
    assert (tokens[0] != tokens[1]).all()
    assert len({made.bulk["a"].ckks._token_key for made in (one, other)}) == 2
    assert not np.array_equal(
        one.bulk["a"].ckks._factors_of("5e"), other.bulk["a"].ckks._factors_of("5e")
    )


def test_two_texts_are_never_under_one_nonce():
    key = crypto.new_secret()
    sealed = [crypto.encrypt(key, b"clear", b"link") for _ in range(8)]
    assert len({one[:12] for one in sealed}) == 8
    assert len({one[12:] for one in sealed}) == 8
    assert bytes(12) not in {one[:12] for one in sealed}
    assert {crypto.decrypt(key, one, b"link") for one in sealed} == {b"clear"}


def test_each_wrapped_secret_has_an_ephemeral_key_of_its_own():
    wrapped = [wrap_secret(bytes(32), "x", 1, BANK, CLINIC.card) for _ in range(4)]
    found = {key_exchange._parts(one)[1] for one in wrapped}
    assert len(found) == 4
    assert not found & {BANK.card.public, CLINIC.card.public, crypto.public_key(bytes(32))}


def test_nobody_wraps_a_secret_in_the_name_of_another():
    """The server knows all cards, and no private key: it writes what the bank would."""
    posing = replace(SERVER, name="bank")
    wrapped = wrap_secret(bytes(32), "x", 1, posing, CLINIC.card)
    with pytest.raises(TamperedError):
        unwrap_secret(wrapped, "x", 1, CLINIC, BANK.card)
    assert unwrap_secret(wrap_secret(b"k", "x", 1, BANK, CLINIC.card), "x", 1, CLINIC, BANK.card)


def test_without_the_sender_s_private_key_no_secret_is_wrapped_in_its_name():
    """As the code does, with all that is public and an ephemeral key of the server's own."""
    header = key_exchange.json.dumps(
        {
            **{"federation": "care", "generation": 1, "purpose": "x", "receiver": "clinic"},
            **{"sender": "bank", "version": key_exchange._VERSION},
        }
    ).encode()
    ephemeral = crypto.new_private_key()
    public = crypto.public_key(ephemeral)
    first = crypto.agree(ephemeral, CLINIC.card.public)
    for second in (b"", first, bytes(32), crypto.agree(ephemeral, BANK.card.public)):
        for publics in ((public, BANK.card.public, CLINIC.card.public), (public,)):
            key = crypto.derive(first + second, "wrap", header, *publics)
            wrapped = crypto.joined_texts(header) + public + crypto.encrypt(key, b"k", header)
            with pytest.raises(TamperedError):
                unwrap_secret(wrapped, "x", 1, CLINIC, BANK.card)


def test_rows_of_one_client_alone_have_no_name_that_the_other_can_make():
    """Whoever has the key of both and guesses an id would find out whether the other has it."""
    link, own = bytes(range(32)), psi.drawn_key()
    ids = np.array([f"a{number}" for number in range(6)])
    names = psi.row_names(ids, np.array([0, 1]), link, own)
    other = psi.row_names(ids, np.arange(6), link, psi.drawn_key())
    assert (names[:2] == other[:2]).all()
    assert not set(names[2:]) & set(other)
    for key in (link, bytes(32)):
        assert not set(names[2:]) & set(pseudonyms(ids, key))
