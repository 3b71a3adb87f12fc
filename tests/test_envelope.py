from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intarsia.errors import KeyMaterialError, ReplayError, TamperedError
from intarsia.privacy.envelope import Envelope

KEY = bytes(range(32))


def end(sender="server", receiver="bank", key=KEY, **options):
    return Envelope(key, sender, receiver, **options)


@given(st.lists(st.binary(max_size=100), max_size=5))
def test_messages_arrive_in_their_order(messages):
    sender, receiver = end(), end()
    for message in messages:
        assert receiver.open(sender.seal(message)) == message
    assert sender.next_number == receiver.next_number == len(messages)


def test_every_altered_byte_is_found_out_and_the_message_still_opens():
    sealed, receiver = end().seal(b"weights"), end()
    for place in range(len(sealed)):
        for flip in (1, 128):
            altered = bytearray(sealed)
            altered[place] ^= flip
            with pytest.raises(TamperedError):
                receiver.open(bytes(altered))
    assert receiver.open(sealed) == b"weights"


def test_a_message_cut_anywhere_or_prolonged_is_found_out():
    sealed = end().seal(b"weights")
    for broken in [sealed[:length] for length in range(len(sealed))] + [sealed + b"\0"]:
        with pytest.raises(TamperedError):
            end().open(broken)


def test_a_message_opens_once():
    sender, receiver = end(), end()
    sealed = sender.seal(b"weights")
    receiver.open(sealed)
    with pytest.raises(ReplayError, match="Message 0 from 'server' to 'bank' came again"):
        receiver.open(sealed)
    assert receiver.open(sender.seal(b"more")) == b"more"


@given(st.permutations(range(4)))
def test_messages_in_another_order_are_refused(order):
    sender, receiver = end(), end()
    sealed = [sender.seal(bytes([number])) for number in range(4)]
    for place, number in enumerate(order):
        if number == place:
            assert receiver.open(sealed[number]) == bytes([number])
        else:
            with pytest.raises(ReplayError):
                receiver.open(sealed[number])
            break


@pytest.mark.parametrize(
    "options",
    [
        {"sender": "bank", "receiver": "server"},
        {"receiver": "clinic"},
        {"sender": "serverb", "receiver": "ank"},
        {"key": bytes(32)},
        {"session": "5e"},
    ],
)
def test_a_message_of_another_link_is_refused(options):
    with pytest.raises(TamperedError):
        end(**options).open(end().seal(b"weights"))


def test_a_link_goes_on_from_its_stored_number():
    sender, receiver = end(), end()
    first = sender.seal(b"one")
    receiver.open(first)
    sender = end(next_number=sender.next_number)
    receiver = end(next_number=receiver.next_number)
    with pytest.raises(ReplayError):
        receiver.open(first)
    assert receiver.open(sender.seal(b"two")) == b"two"


def test_an_end_that_went_back_to_an_old_state_is_found_out_and_repeats_no_ciphertext():
    sender, receiver = end(), end()
    first = sender.seal(b"same")
    receiver.open(first)
    again = end().seal(b"same")
    assert again[8:] != first[8:]
    with pytest.raises(ReplayError, match="went back to an old state"):
        receiver.open(again)


def test_the_message_is_hidden():
    sealed = end().seal(b"a secret that is long enough to look for")
    assert b"secret" not in sealed
    assert KEY not in sealed


def test_a_key_of_another_length_is_refused():
    with pytest.raises(KeyMaterialError, match="has 31 bytes"):
        end(key=bytes(31))
