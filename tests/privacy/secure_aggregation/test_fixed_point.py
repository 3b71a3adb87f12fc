from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intarsia.errors import ExperimentError, RangeError
from intarsia.privacy.secure_aggregation.fixed_point import PRIME, FixedPoint, check, counters

WORDS = st.integers(0, 2**64 - 1)


def test_the_bits_after_the_point_follow_from_the_range():
    assert FixedPoint(addends=1).fractional_bits == 40
    assert FixedPoint(range=2.0**22 + 1, addends=1).fractional_bits == 39
    assert FixedPoint(range=0.75, addends=1).fractional_bits == 62
    assert FixedPoint(range=2.0**61, addends=1).fractional_bits == 1


def test_negative_numbers_are_in_twos_complement():
    fixed = FixedPoint(range=2.0**60, addends=1)
    words = fixed.encode(np.array([1.0, -1.0, 0.25]))
    assert words.tolist() == [4, 2**64 - 4, 1]
    np.testing.assert_array_equal(fixed.decode(words), [1.0, -1.0, 0.25])


@given(
    range=st.floats(2.0**-64, 2.0**61),
    parts=st.lists(st.floats(-1, 1), min_size=1, max_size=9),
    spare=st.integers(0, 3),
)
def test_a_total_of_any_addends_within_the_limit_is_exact_to_the_stated_error(range, parts, spare):
    fixed = FixedPoint(range=range, addends=len(parts) + spare)
    values = [part * fixed.limit for part in parts]
    words = np.zeros(1, np.uint64)
    for value in values:
        words = words + fixed.encode(np.array([value]))
    exact = sum(map(Fraction, values), Fraction(0))
    error = abs(Fraction(float(fixed.decode(words)[0])) - exact)
    assert error <= Fraction(fixed.error(len(values), float(exact)))


@pytest.mark.parametrize("addends", [1, 3, 1000])
@pytest.mark.parametrize("range", [2.0**61, 2.0**22, 0.3])
def test_the_largest_addends_do_not_wrap(range, addends):
    fixed = FixedPoint(range=range, addends=addends)
    for sign in (-1, 1):
        words = fixed.encode(np.full(1, sign * fixed.limit)) * np.uint64(addends)
        assert fixed.decode(words)[0] == pytest.approx(sign * range, rel=1e-9)


@pytest.mark.parametrize("value", [np.nextafter(512.0, 1000), -600.0, 1e300])
def test_a_value_beyond_the_limit_is_refused_with_what_to_set(value):
    fixed = FixedPoint(range=2048.0, addends=4)
    with pytest.raises(RangeError, match=r"within ±512; set privacy\.range to at least") as caught:
        fixed.encode(np.array([[1.0, 2.0], [value, -512.0]]))
    assert f"{value:.6g}" in str(caught.value)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(RangeError, match="1 of 3 values to be sealed are not finite"):
        FixedPoint(addends=2).encode(np.array([1.0, value, 2.0]))


@pytest.mark.parametrize("range", [np.nan, np.inf, 0.0, -1.0, 2.0**62])
def test_a_range_without_room_is_refused(range):
    with pytest.raises(ExperimentError, match=r"privacy\.range"):
        FixedPoint(range=range, addends=1)


def test_a_sum_without_addends_is_refused():
    with pytest.raises(ExperimentError, match="over 0 clients"):
        FixedPoint(addends=0)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (2, 3)])
def test_shapes_are_kept(shape):
    fixed = FixedPoint(addends=2)
    values = np.asarray(np.arange(float(np.prod(shape))).reshape(shape))
    words = fixed.encode(values)
    assert words.shape == shape
    np.testing.assert_array_equal(fixed.decode(words), values)


def test_a_transposed_array_is_read_in_its_own_order():
    values = np.arange(6.0).reshape(2, 3).T
    fixed = FixedPoint(addends=1)
    np.testing.assert_array_equal(fixed.decode(fixed.encode(values)), values)


def test_the_prime_is_prime():
    # Miller and Rabin's test with these bases is exact below 2^64.
    odd, twos = PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37):
        powers = [pow(base, odd << k, PRIME) for k in range(twos)]
        assert powers[0] == 1 or PRIME - 1 in powers


@given(st.lists(st.tuples(WORDS, WORDS), max_size=20))
def test_the_check_is_the_inner_product_modulo_the_prime(pairs):
    words = np.array([word for word, _ in pairs], np.uint64)
    factors = np.array([factor for _, factor in pairs], np.uint64)
    exact = sum((w - 2**64 if w >= 2**63 else w) * f for w, f in pairs)
    assert check(words, factors) == exact % PRIME


def test_the_check_of_many_extreme_words_does_not_wrap():
    count = 100_000
    factors = np.full(count, 2**64 - 1, np.uint64)
    for word in (2**63, 2**63 - 1, 2**64 - 1):
        signed = word - 2**64 if word >= 2**63 else word
        exact = count * signed * (2**64 - 1)
        assert check(np.full(count, word, np.uint64), factors) == exact % PRIME


@given(start=st.integers(0, 2**128 - 1), places=st.lists(st.integers(0, 2**128 - 1), min_size=1))
def test_counters_go_on_beyond_each_half(start, places):
    def halves(number):
        return [number % 2**64, number >> 64]

    out = np.empty((3 * len(places), 2), np.uint64)
    words = np.array([halves(place) for place in places], np.uint64)
    counters(np.array(halves(start), np.uint64), words, 3, out)
    expected = [halves((start + place + j) % 2**128) for place in places for j in range(3)]
    assert out.tolist() == expected


def test_counters_carry():
    out = np.empty((2, 2), np.uint64)
    last = np.array([2**64 - 1, 2**64 - 1], np.uint64)
    counters(last, np.zeros((1, 2), np.uint64), 2, out)
    assert out.tolist() == [[2**64 - 1, 2**64 - 1], [0, 0]]
