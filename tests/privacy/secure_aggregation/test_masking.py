from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from intarsia.errors import (
    ExperimentError,
    KeyMaterialError,
    RangeError,
    ReplayError,
    SealedError,
    TamperedError,
)
from intarsia.privacy.keys.shared_key import SharedKey
from intarsia.privacy.secure_aggregation.fixed_point import FixedPoint
from intarsia.privacy.secure_aggregation.masking import MaskedAdder, MaskedSealer, StreamLedger
from intarsia.privacy.secure_aggregation.protocol import Digits, Piece, Stream

KEY = bytes(range(32))
STREAM = Stream("5e", 4, 2, "local_duals", "weights", 1)
ADDER = MaskedAdder()
NAMES = ("bank", "clinic", "hospital", "insurer")


def sealer(clients=4, key=KEY, range=2.0**22):
    return MaskedSealer(key, FixedPoint(range=range, addends=clients), clients)


def total(pieces):
    first, *others = pieces
    for other in others:
        first = ADDER.add(first, other)
    return first


def sealed(values, names=NAMES, stream=STREAM, **options):
    return total(sealer(**options).seal(name, stream, values) for name in names)


def altered(piece, place, by):
    content = piece.content.copy()
    content[place] = (int(content[place]) + by) % 2**64
    return replace(piece, content=content)


def test_a_total_is_the_sum_of_what_was_sealed():
    at_clients = sealer()
    pieces = [at_clients.seal(name, STREAM, np.array([[1.5, -k]])) for k, name in enumerate(NAMES)]
    np.testing.assert_array_equal(sealer().open(total(pieces)), [[6.0, -6.0]])


@given(data=st.data(), clients=st.integers(1, 7), range=st.sampled_from([1e-3, 1.0, 2.0**22]))
def test_a_sum_of_whoever_is_left_is_exact_to_the_stated_error(data, clients, range):
    names = [f"client {k}" for k in np.arange(clients)]
    left = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    width = data.draw(st.integers(0, 4))
    fixed = FixedPoint(range=range, addends=clients)
    parts = {
        name: data.draw(st.lists(st.floats(-1.1, 1.1), min_size=width, max_size=width))
        for name in left
    }
    at_client, pieces = MaskedSealer(KEY, fixed, clients), []
    for name in left:
        values = np.array(parts[name], float) * fixed.limit
        if np.any(np.abs(values) > fixed.limit):
            with pytest.raises(RangeError):
                at_client.seal(name, STREAM, values)
        else:
            pieces.append(at_client.seal(name, STREAM, values))
    while len(pieces) > 1:  # any order, any bracketing
        one = pieces.pop(data.draw(st.integers(0, len(pieces) - 1)))
        other = pieces.pop(data.draw(st.integers(0, len(pieces) - 1)))
        pieces.append(ADDER.add(one, other))
    if not pieces:
        return
    (piece,) = pieces
    opened = MaskedSealer(KEY, fixed, clients).open(piece)
    assert opened.shape == (width,)
    for k, found in enumerate(opened.tolist()):
        exact = sum((Fraction(parts[n][k] * fixed.limit) for n in piece.contributors), Fraction(0))
        bound = fixed.error(len(piece.contributors), float(exact))
        assert abs(Fraction(found) - exact) <= Fraction(bound)


@pytest.mark.parametrize("count", [3, 2000, 9000, 40_000])  # the masks of all, of a few, of one
def test_long_totals_of_many_open_to_their_sum(count):
    names = [f"client {k:02}" for k in range(11)]
    values = np.arange(count, dtype=float)
    opened = sealer(clients=11).open(sealed(values, names, clients=11))
    np.testing.assert_array_equal(opened, 11 * values)


DIGITS = Digits(size=2.0**20, unit=2.0**-40, room=2.0**67, bound=-(2.0**70))


def test_digits_hold_what_a_word_does_not():
    values = np.array([[2.0**60 + 2.0**8, -1e-9, -np.inf], [-(2.0**66), 0.0, 1.5]])
    at_clients = sealer()
    pieces = [at_clients.seal_digits(name, STREAM, values, DIGITS) for name in NAMES]
    found = sealer().open_digits(total(pieces), DIGITS)
    np.testing.assert_allclose(found, 4 * values, rtol=1e-15, atol=4 * 2.0**-41)
    assert np.isneginf(found[0, 2])


@pytest.mark.parametrize("value", [np.nan, np.inf, 2.0**67])
def test_digits_without_room_are_refused_and_leave_the_stream_unused(value):
    at_client = sealer()
    assert at_client.seal_digits("bank", STREAM, np.array([1.0, value]), DIGITS) is None
    assert at_client.seal_digits("bank", STREAM, np.array([1.0, 2.0]), DIGITS) is not None
    with pytest.raises(ReplayError, match="again"):
        at_client.seal_digits("bank", STREAM, np.array([1.0, 2.0]), DIGITS)


def test_altered_digits_are_found_out():
    piece = sealer().seal_digits("bank", STREAM, np.array([1.0, -2.0, 0.0]), DIGITS)
    for place in range(len(piece.content)):
        with pytest.raises(TamperedError, match="not the sum of what"):
            sealer().open_digits(altered(piece, place, 1), DIGITS)
    for shape in ((6,), (1, 6), (3, 2), ()):
        with pytest.raises(TamperedError, match="first axis of 2"):
            sealer().open_digits(replace(piece, shape=shape), DIGITS)


def test_words_come_back_bit_by_bit_and_are_not_added_up():
    values = np.array([[0, 1, 2**63], [2**64 - 1, 2**53 + 1, 7]], np.uint64)
    piece = sealer().seal_words("bank", STREAM, values)
    found = sealer().open_words(piece)
    assert found.dtype == np.uint64
    np.testing.assert_array_equal(found, values)
    assert not np.isin(values, piece.content).any()
    for place in range(len(piece.content)):
        with pytest.raises(TamperedError, match="not the sum of what"):
            sealer().open_words(altered(piece, place, 1))
    other = sealer().seal_words(NAMES[1], STREAM, values)
    with pytest.raises(SealedError, match="let one client alone send"):
        MaskedAdder().add(piece, other)


def test_words_of_32_bits_add_up():
    values = np.array([[0, 1, 2**31], [2**32 - 1, 7, 2**32 - 1]], np.uint32)
    at_client = sealer()
    piece = total(at_client.seal_words(name, STREAM, values) for name in NAMES)
    np.testing.assert_array_equal(sealer().open_words(piece), 4 * values.astype(np.uint64))
    for place in range(len(piece.content)):
        with pytest.raises(TamperedError, match="not the sum of what"):
            sealer().open_words(altered(piece, place, 1))


def test_a_total_of_one_kind_is_not_opened_as_another():
    """Of the same words numbers, words and parts of numbers would be very different things."""
    whole = np.array([[1, 2, 3], [4, 5, 6]], np.uint32)
    at_client, opener = sealer(), sealer()
    pieces = [
        at_client.seal("bank", replace(STREAM, cell=5), np.ones((2, 3))),
        at_client.seal_digits("bank", replace(STREAM, cell=6), np.ones(3), DIGITS),
        at_client.seal_words("bank", replace(STREAM, cell=7), whole.astype(np.uint64)),
        at_client.seal_words("bank", replace(STREAM, cell=8), whole),
    ]
    ways = {
        1: opener.open,
        2: lambda piece: opener.open_digits(piece, DIGITS),
        0: opener.open_words,
        3: opener.open_words,
    }
    for piece in pieces:
        for digits, way in ways.items():
            named = replace(piece, digits=digits)
            if digits == piece.digits:
                way(named)
                continue
            with pytest.raises(TamperedError):
                way(named)
        for digits in (-1, 4, 10**9):
            with pytest.raises(TamperedError):
                opener.open(replace(piece, digits=digits))


def test_every_altered_bit_is_found_out():
    piece = sealed(np.array([1.0, -2.0, 0.0]))
    opener = sealer()
    for place in range(len(piece.content)):
        for bit in range(64):
            with pytest.raises(TamperedError, match="not the sum of what"):
                opener.open(altered(piece, place, 2**bit))


@given(
    changes=st.dictionaries(
        st.integers(0, 3), st.integers(1, 2**64 - 1) | st.just(2**64 - 59)
    ).filter(lambda changes: min(changes, default=3) < 3)  # a value, not its check alone
)
def test_every_altered_total_is_found_out(changes):
    piece = sealed(np.array([1.0, -2.0, 0.0]))
    for place, by in changes.items():
        piece = altered(piece, place, by)
    with pytest.raises(TamperedError):
        sealer().open(piece)


@pytest.mark.parametrize(
    "change",
    [
        {"session": "5f"},
        {"sequence": 5},
        {"round": 3},
        {"function": "local_dual"},
        {"field": "weightss"},
        {"cell": 2},
    ],
)
def test_a_total_under_another_name_is_found_out(change):
    piece = sealed(np.zeros(3))
    with pytest.raises(TamperedError):
        sealer().open(replace(piece, stream=replace(STREAM, **change)))


@pytest.mark.parametrize("names", [(), NAMES[:3], (*NAMES[:3], "shop"), (*NAMES, "bank")])
def test_a_total_of_other_contributors_is_found_out(names):
    piece = sealed(np.zeros(3))
    with pytest.raises(TamperedError):
        sealer(clients=6).open(replace(piece, contributors=names))


def test_a_piece_added_twice_behind_the_back_is_found_out():
    piece = sealed(np.zeros(2), NAMES[:1])
    with pytest.raises(TamperedError):
        sealer().open(replace(piece, content=piece.content + piece.content))
    doubled = replace(piece, content=piece.content * np.uint64(2), contributors=("bank", "bank"))
    with pytest.raises(TamperedError, match="different clients"):
        sealer().open(doubled)


@pytest.mark.parametrize("values", [np.zeros(3), np.zeros(0)])
def test_another_key_opens_nothing(values):
    with pytest.raises(TamperedError, match="fingerprints"):
        sealer(key=bytes(32)).open(sealed(values))


def test_a_rotated_key_opens_nothing_of_before():
    key = SharedKey.draw("care")
    piece = sealed(np.ones(3), key=key)
    np.testing.assert_array_equal(sealer(key=key).open(piece), [4.0, 4.0, 4.0])
    with pytest.raises(TamperedError):
        sealer(key=key.rotate()).open(piece)


@pytest.mark.parametrize(
    "content", [None, b"words", np.zeros(5, np.uint64), np.zeros(4), np.zeros((4, 1), np.uint64)]
)
def test_content_of_another_form_is_refused(content):
    piece = sealed(np.zeros(3), NAMES[:2])
    broken = replace(piece, content=content)
    other = replace(sealed(np.zeros(3), NAMES[2:]))
    for read in (sealer().open, lambda p: ADDER.add(p, other), lambda p: ADDER.add(other, p)):
        with pytest.raises(TamperedError, match="must hold 4 words of uint64"):
            read(broken)


def test_the_server_keeps_all_that_a_piece_says_of_itself():
    one, other = (replace(sealed(np.zeros((2, 3)), (name,)), digits=2) for name in NAMES[:2])
    assert ADDER.add(one, other).digits == 2


def test_the_server_refuses_a_client_twice_and_another_total():
    piece = sealed(np.zeros(3), NAMES[:2])
    for other in (
        sealed(np.zeros(3), NAMES[1:]),
        sealed(np.zeros(3), NAMES[2:], replace(STREAM, cell=2)),
        sealed(np.zeros((3, 1)), NAMES[2:]),
    ):
        with pytest.raises(SealedError):
            ADDER.add(piece, other)


@pytest.mark.parametrize("value", [np.nan, np.inf, 2.0**20 + 1, -(2.0**21)])
def test_a_value_that_cannot_be_sealed_leaves_the_stream_unused(value):
    at_client = sealer()
    with pytest.raises(RangeError):
        at_client.seal("bank", STREAM, np.array([0.0, value]))
    assert at_client.seal("bank", STREAM, np.zeros(2)).contributors == ("bank",)


def test_a_stream_is_used_once():
    at_client = sealer()
    at_client.seal("bank", STREAM, np.zeros(2))
    at_client.seal("clinic", STREAM, np.zeros(2))
    at_client.seal("bank", replace(STREAM, cell=2), np.zeros(2))
    for again in (STREAM, replace(STREAM, round=9), replace(STREAM, sequence=3)):
        with pytest.raises(ReplayError, match="again"):
            at_client.seal("bank", again, np.zeros(2))
    at_client.seal("bank", replace(STREAM, sequence=5), np.zeros(2))
    at_client.seal("bank", replace(STREAM, session="60", sequence=0), np.zeros(2))
    with pytest.raises(ReplayError, match="has left session 5e"):
        at_client.seal("bank", replace(STREAM, sequence=6), np.zeros(2))


def test_the_ledger_keeps_the_present_exchange_only():
    ledger = StreamLedger()
    for sequence in range(1000):
        stream = replace(STREAM, sequence=sequence)
        ledger.refuse_used("bank", stream)
        ledger.enter("bank", stream)
    (present,) = ledger._present.values()
    assert len(present.names) == 1


def test_equal_values_look_different_in_every_stream_and_at_every_client():
    streams = [STREAM] + [
        replace(STREAM, **change)
        for change in (
            {"session": "5f"},
            {"sequence": 5},
            {"round": 3},
            {"function": "local_dualsw", "field": "eights"},
            {"function": "local_dual", "field": "sweights"},
            {"cell": 2},
        )
    ]
    words = [
        tuple(sealer().seal(name, stream, np.zeros(8)).content)
        for stream in streams
        for name in ("bank", "ban")
    ]
    assert len({word for piece in words for word in piece}) == len(words) * 9


def test_masked_words_of_equal_values_are_uniform():
    for name in NAMES:
        content = sealer().seal(name, STREAM, np.full(2**15, 3.25)).content
        counts = np.bincount(content.view(np.uint8), minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-4
        differences = np.bincount(np.diff(content).view(np.uint8), minlength=256)
        assert stats.chisquare(differences).pvalue > 1e-4


def test_the_first_words_of_many_streams_are_uniform():
    at_client = sealer()
    first = [
        at_client.seal("bank", replace(STREAM, sequence=k), np.zeros(1)).content[0]
        for k in range(10, 4010)
    ]
    counts = np.bincount(np.array(first).view(np.uint8), minlength=256)
    assert stats.chisquare(counts).pvalue > 1e-4


def test_the_server_sees_no_key():
    key = SharedKey(KEY, "care")
    at_client = sealer(key=key)
    pieces = [at_client.seal(name, STREAM, np.zeros(100)) for name in NAMES]
    seen = b"".join(p.content.tobytes() + repr((p, ADDER.__dict__)).encode() for p in pieces)
    for secret in (KEY, key.derive("masks")):
        assert secret not in seen
        assert secret.hex().encode() not in seen
    assert isinstance(pieces[0], Piece)


def test_what_cannot_be_set_up_is_refused():
    with pytest.raises(KeyMaterialError, match="has 5 bytes"):
        sealer(key=b"short")
    for clients in (0, 5):
        with pytest.raises(ExperimentError, match=f"over {clients} clients"):
            MaskedSealer(KEY, FixedPoint(addends=4), clients)


def test_arrays_of_growing_and_shrinking_lengths_share_a_sealer():
    at_client = sealer()
    for sequence, length in enumerate((2, 1000, 0, 5, 3000)):
        stream = replace(STREAM, sequence=sequence)
        values = np.linspace(-1, 1, length)
        piece = at_client.seal("bank", stream, values)
        for opener in (at_client, sealer()):
            np.testing.assert_allclose(opener.open(piece), values, rtol=0, atol=2.0**-41)


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)


def test_the_package_does_not_import_the_library_by_itself():
    imports = "intarsia, intarsia.privacy.secure_aggregation.protocol"
    code = f"import sys, {imports}; print('cryptography' in sys.modules)"
    assert run(code).stdout.split() == ["False"]
