from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.errors import (
    ExperimentError,
    FederationError,
    KeyMaterialError,
    TableError,
    TamperedError,
)
from intarsia.privacy.entity_matching import psi
from intarsia.privacy.entity_matching.pseudonyms import WIDTH, pseudonyms

LINK = bytes(range(32))
KEY, OTHER = psi.drawn_key(), psi.drawn_key()
FIRST = np.array([f"a{number}" for number in range(20)])
SECOND = np.array([f"a{number}" for number in range(29, 11, -1)])


@pytest.fixture(scope="module")
def messages():
    request = psi.request(FIRST, KEY, LINK)
    return {
        "request": request,
        "setup": psi.setup(SECOND, OTHER, request, LINK),
        "response": psi.response(request, OTHER, LINK),
    }


def shared(messages, **changed):
    return psi.shared(FIRST, KEY, link=LINK, **{**messages, **changed})


sets = st.sets(st.integers(0, 40), max_size=12)


@settings(max_examples=30, deadline=None)
@given(sets, sets, st.booleans())
def test_both_parties_find_the_intersection_of_the_sets(first, second, text):
    kind = np.str_ if text else np.int64
    one, other = (np.array(list(own), np.int64).astype(kind) for own in (first, second))
    mine, theirs = psi.shared_rows(one, other, LINK)
    expected = {str(element) for element in first & second}
    assert set(map(str, one[mine].tolist())) == expected
    assert set(map(str, other[theirs].tolist())) == expected
    assert sorted(mine.tolist()) == mine.tolist()


def test_numbers_and_text_never_match():
    mine, theirs = psi.shared_rows(np.array([7, 8]), np.array(["7", "8"]), LINK)
    assert (len(mine), len(theirs)) == (0, 0)


def test_the_compressed_set_is_smaller_and_finds_the_same(messages):
    setup = psi.setup(
        SECOND, OTHER, messages["request"], LINK, structure="gcs", false_positives=1e-6
    )
    assert len(setup) < len(messages["setup"]) / 3
    assert shared(messages, setup=setup).tolist() == shared(messages).tolist() == [*range(12, 20)]


def test_no_message_holds_an_id_or_a_hash_that_can_be_guessed():
    first = np.array([f"customer {number:06d}" for number in range(20)])
    second = first[::-1][:15]
    asked = psi.request(first, KEY, LINK)
    told = psi.announcement(first[5:], asked, LINK)
    setup = psi.setup(second, OTHER, asked, LINK)
    for message in (asked, setup, psi.response(asked, OTHER, LINK), told):
        assert not any(one.encode() in message for one in first.tolist())
    # without the key the same ids give other entries, of which no eight bytes are alike
    other = psi.request(first, psi.drawn_key(), LINK)
    windows = [{one[at : at + 8] for at in range(len(one) - 7)} for one in (asked, other)]
    assert not windows[0] & windows[1]


def test_the_order_of_rows_does_not_show_in_what_the_other_party_reads(messages):
    request = messages["request"]
    assert psi.setup(SECOND[::-1], OTHER, request, LINK) == messages["setup"]
    told = [psi.announcement(some, request, LINK) for some in (FIRST, FIRST[::-1])]
    assert told[0] == told[1]


@pytest.mark.parametrize("name", ["request", "setup", "response"])
def test_what_was_altered_or_cut_is_refused(messages, name):
    whole = messages[name]
    for place in (0, 33, len(whole) // 2, len(whole) - 1):
        bad = whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]
        with pytest.raises(TamperedError, match=f"The {name} of {len(bad)} bytes is not what"):
            _deliver(messages, name, bad)
    for bad in (b"", whole[:20], whole[:-35], whole + b"\0"):
        with pytest.raises(TamperedError, match=f"The {name}"):
            _deliver(messages, name, bad)


def _deliver(messages, name, bad):
    if name == "request":
        psi.setup(SECOND, OTHER, bad, LINK)
        psi.response(bad, OTHER, LINK)
    else:
        shared(messages, **{name: bad})


def test_messages_of_another_exchange_or_in_another_order_are_refused(messages):
    again = psi.request(FIRST, KEY, LINK)
    later = psi.request(FIRST[:-1], KEY, LINK)
    assert again == messages["request"]  # nothing is drawn but the keys
    replayed = {
        "setup": psi.setup(SECOND, OTHER, later, LINK),
        "response": psi.response(later, OTHER, LINK),
    }
    for name, message in replayed.items():
        with pytest.raises(TamperedError, match="belongs to another exchange"):
            shared(messages, **{name: message})
    with pytest.raises(TamperedError):
        shared(messages, setup=messages["response"], response=messages["setup"])
    told = psi.announcement(FIRST[12:], later, LINK)
    with pytest.raises(TamperedError, match="The announcement"):
        psi.announced(SECOND, messages["request"], told, LINK)


def test_another_shared_key_is_refused(messages):
    with pytest.raises(TamperedError, match="keys that the clients share differ"):
        psi.response(messages["request"], OTHER, bytes(32))


def test_a_response_to_fewer_ids_is_refused(messages):
    with pytest.raises(TamperedError, match="20 entries for 19 ids"):
        psi.shared(FIRST[1:], KEY, link=LINK, **messages)


def test_announced_rows_that_the_party_lacks_are_one_sentence(messages):
    told = psi.announcement(FIRST[10:14], messages["request"], LINK)
    with pytest.raises(
        FederationError, match="announces 4 shared rows, of which this client has 2"
    ):
        psi.announced(SECOND, messages["request"], told, LINK)


@pytest.mark.parametrize("ids", [["a", "b", "a"], [1, 2, 1]])
def test_an_id_that_repeats_is_refused(messages, ids):
    for attempt in (
        lambda: psi.request(np.array(ids), KEY, LINK),
        lambda: psi.setup(np.array(ids), KEY, messages["request"], LINK),
    ):
        with pytest.raises(TableError, match=f"The id {ids[0]!r} is there 2 times"):
            attempt()


def test_settings_of_no_use_are_refused(messages):
    request = messages["request"]
    with pytest.raises(ExperimentError, match="structure is 'bloom'"):
        psi.setup(SECOND, OTHER, request, LINK, structure="bloom")
    with pytest.raises(ExperimentError, match=r"false_positives is 1\.5"):
        psi.setup(SECOND, OTHER, request, LINK, false_positives=1.5)
    with pytest.raises(KeyMaterialError, match="has 1 bytes; expected 32"):
        psi.request(FIRST, b"x", LINK)
    with pytest.raises(TableError, match="type float64"):
        psi.request(np.array([1.0]), KEY, LINK)


def test_own_rows_have_names_that_the_other_party_cannot_test():
    own = [bytes([number]) * 32 for number in (1, 2)]
    mine, theirs = psi.shared_rows(FIRST, SECOND, LINK)
    one = psi.row_names(FIRST, mine, LINK, own[0])
    other = psi.row_names(SECOND, theirs, LINK, own[1])
    assert one.dtype == other.dtype == f"S{WIDTH}"
    common = np.intersect1d(one, other)
    assert len(common) == 8
    assert sorted(FIRST[np.isin(one, common)]) == sorted(SECOND[np.isin(other, common)])
    assert len(np.unique(np.concatenate([one, other]))) == 20 + 18 - 8
    # whatever the second client can compute of the first's other ids, their names are not among it
    alone = np.delete(one, mine)
    for key in (LINK, own[1]):
        assert not np.isin(alone, pseudonyms(FIRST, key)).any()
    guess = psi.row_names(FIRST, np.arange(20), LINK, own[1])
    assert not np.isin(alone, guess).any()
