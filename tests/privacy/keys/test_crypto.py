from __future__ import annotations

import hashlib
import hmac

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intarsia.errors import KeyMaterialError, TamperedError
from intarsia.privacy.keys import crypto


def test_the_keystream_is_that_of_the_standard():
    # NIST SP 800-38A, F.5.5: AES-256 in counter mode
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    start = bytes.fromhex("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff")
    clear = bytes.fromhex("6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51")
    expected = bytes.fromhex("601ec313775789a5b7a7f504bbf3d228f443e3ca4d62b59aca84e990cacaf5c5")
    stream = np.empty(32, np.uint8)
    keystream = crypto.Keystream(key)
    for _ in range(2):  # the same place gives the same stream again
        keystream.write(start, np.zeros(32, np.uint8), stream)
        assert (stream ^ np.frombuffer(clear, np.uint8)).tobytes() == expected


def test_the_agreement_is_that_of_the_standard():
    # RFC 7748, section 6.1
    bob_private = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
    bob_public = bytes.fromhex("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f")
    alice_public = bytes.fromhex("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a")
    secret = bytes.fromhex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")
    assert crypto.public_key(bob_private) == bob_public
    assert crypto.agree(bob_private, alice_public) == secret


def test_derived_keys_are_those_of_hkdf():
    info = crypto.joined_texts("intarsia", "masks")
    extracted = hmac.digest(bytes(32), b"secret", hashlib.sha256)
    assert crypto.derive(b"secret", "masks") == hmac.digest(extracted, info + b"\x01", "sha256")


@given(st.lists(st.text(max_size=4), max_size=4), st.lists(st.text(max_size=4), max_size=4))
def test_joined_texts_are_unambiguous(one, other):
    assert (crypto.joined_texts(*one) == crypto.joined_texts(*other)) == (one == other)


def test_a_public_key_that_gives_everyone_the_same_secret_is_refused():
    with pytest.raises(KeyMaterialError, match="no usable X25519 key"):
        crypto.agree(crypto.new_private_key(), bytes(32))


def test_a_message_is_bound_to_its_addresses():
    key = crypto.new_secret()
    sealed = crypto.encrypt(key, b"x", b"from a to b")
    assert crypto.decrypt(key, sealed, b"from a to b") == b"x"
    with pytest.raises(TamperedError, match="meant for another link"):
        crypto.decrypt(key, sealed, b"from a to c")


@pytest.mark.parametrize("length", range(29))
def test_a_cut_message_is_refused(length):
    key = crypto.new_secret()
    sealed = crypto.encrypt(key, b"x", b"")
    with pytest.raises(TamperedError):
        crypto.decrypt(key, sealed[:length], b"")
    assert crypto.decrypt(key, sealed, b"") == b"x"
