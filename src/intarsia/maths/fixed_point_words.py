"""Fixed-point words: real numbers as integers modulo 2^64, and a check of them that adds up.

A value x is the word round(x·2ᶠ) modulo 2^64, negative numbers in two's complement, so that words
add as the numbers do as long as no total leaves the signed 64-bit integers.

The check of signed integers x₁ … xₙ is Σ rⱼ xⱼ modulo the prime P = 2^64 - 59, with secret factors
r. It is linear: the checks of several contributions add up to the check of their sum. Whoever does
not know r meets the check of another vector (differences below P) with probability about 2^-64
(universal hashing: Carter and Wegman 1979, https://doi.org/10.1016/0022-0000(79)90044-8).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from intarsia.maths.losses import compiled

__all__ = [
    "PRIME",
    "check",
    "counters",
    "decode_words",
    "encode_with_check",
    "encode_words",
    "joined_digits",
    "split_digits",
    "unmask_with_check",
]

Reals = NDArray[np.float64]
Words = NDArray[np.uint64]

PRIME = 2**64 - 59  # the largest below 2^64


def check(words: Words, factors: Words) -> int:
    """Return Σ rⱼ xⱼ modulo the prime, for words read as signed integers.

    Parameters
    ----------
    words
        At most 2^29 of them, since partial sums are kept in 64 bits.
    factors
        One for each word, and perhaps more.
    """
    return _residue(*_limb_sums(words, factors))


def encode_with_check(
    values: Reals, scale: float, limit: float, factors: Words, words: Words
) -> tuple[bool, int]:
    """Write words as `encode_words`; return whether all values are within, and their check."""
    within, *sums = _encode_and_sum(values, scale, limit, factors, words)
    return within, _residue(*sums)


def unmask_with_check(
    words: Words, masks: Words, factors: Words, step: float, values: Reals
) -> tuple[int, int, int]:
    """Take masks off a total; write its values, return their check and the last two words.

    Parameters
    ----------
    words
        Those of the values and two more, overwritten.
    masks
        (contributors, at least as many words)
    factors
        As for `check`.
    step, values
        As for `decode_words`.
    """
    low, high, *sums = _unmask_and_sum(words, masks, factors, step, values)
    return _residue(*sums), int(low), int(high)


def _residue(first: int, second: int, third: int, fourth: int) -> int:
    return (first + (second << 32) + (third << 64) + (fourth << 96)) % PRIME


@compiled
def counters(start: Words, places: Words, blocks: int, out: Words) -> None:
    """Write the counters start + place + 0, 1, … modulo 2^128, `blocks` for each place.

    Parameters
    ----------
    start
        (2,) low and high half.
    places
        (places, 2) low and high halves.
    out
        (places · blocks, 2), overwritten.
    """
    k = 0
    for c in range(len(places)):
        low = start[0] + places[c, 0]
        high = start[1] + places[c, 1] + np.uint64(low < start[0])
        for j in range(blocks):
            here = low + np.uint64(j)
            out[k, 0] = here
            out[k, 1] = high + np.uint64(here < low)
            k += 1


@compiled
def split_digits(values: Reals, digit: float, unit: float, room: float, digits: Reals) -> bool:
    """Write values as a high digit, in units, and a low one; return whether all are within ±room.

    `digits` is (2, values); a value is high / unit · digit + low exactly.
    """
    within = True
    for j in range(len(values)):
        within &= abs(values[j]) < room
        high = np.rint(values[j] / digit)
        digits[0, j] = high * unit
        digits[1, j] = values[j] - high * digit
    return within


@compiled
def joined_digits(digits: Reals, factor: float, least: float, values: Reals) -> None:
    """Write high · factor + low; what is not above `least` becomes -inf."""
    for j in range(len(values)):
        value = digits[0, j] * factor + digits[1, j]
        values[j] = value if value > least else -np.inf


@compiled
def encode_words(values: Reals, scale: float, limit: float, words: Words) -> bool:
    """Write the words of values times `scale`; return whether all values are within ±limit.

    Where a value is not (a NaN never is), its word is 0.
    """
    within = True
    for j in range(len(values)):
        inside = abs(values[j]) <= limit
        within &= inside
        words[j] = np.uint64(np.int64(np.rint(values[j] * scale if inside else 0.0)))
    return within


@compiled
def decode_words(words: Words, step: float, values: Reals) -> None:
    """Write the numbers that words stand for, each `step` times a signed integer."""
    for j in range(len(words)):
        values[j] = np.float64(np.int64(words[j])) * step


@compiled
def _encode_and_sum(
    values: Reals, scale: float, limit: float, factors: Words, words: Words
) -> tuple[bool, int, int, int, int]:
    within = encode_words(values, scale, limit, words)
    first, second, third, fourth = _limb_sums(words[: len(values)], factors)
    return within, first, second, third, fourth


@compiled
def _unmask_and_sum(
    words: Words, masks: Words, factors: Words, step: float, values: Reals
) -> tuple[np.uint64, np.uint64, int, int, int, int]:
    for c in range(len(masks)):
        for j in range(len(words)):
            words[j] -= masks[c, j]
    count = len(values)
    first, second, third, fourth = _limb_sums(words[:count], factors)
    decode_words(words[:count], step, values)
    return words[count], words[count + 1], first, second, third, fourth


@compiled
def _limb_sums(words: Words, factors: Words) -> tuple[int, int, int, int]:
    """Return the four sums, weighted by powers of 2^32, that make up Σ rⱼ xⱼ."""
    half = np.uint64(32)
    low_half = np.uint64(0xFFFFFFFF)
    first = second = third = fourth = np.uint64(0)
    below = above = np.uint64(0)
    for j in range(len(words)):
        x, r = words[j], factors[j]
        x_low, x_high, r_low, r_high = x & low_half, x >> half, r & low_half, r >> half
        one, two, three, four = x_low * r_low, x_low * r_high, x_high * r_low, x_high * r_high
        first += one & low_half
        second += (one >> half) + (two & low_half) + (three & low_half)
        third += (two >> half) + (three >> half) + (four & low_half)
        fourth += four >> half
        # A negative integer is its word less 2^64.
        sign = np.uint64(0) - (x >> np.uint64(63))
        below += r_low & sign
        above += r_high & sign
    third -= below
    fourth -= above
    # Numba hands them to Python as signed integers, which are as long as needed.
    return np.int64(first), np.int64(second), np.int64(third), np.int64(fourth)  # type: ignore[return-value]
