"""Fixed-point words: real numbers as integers modulo 2^64, and a check of them that adds up.

A value x is the word round(x·2ᶠ) modulo 2^64, negative numbers in two's complement, so that words
add as the numbers do as long as no total leaves the signed 64-bit integers.

The check of signed integers x₁ … xₙ is Σ rⱼ xⱼ modulo the prime P = 2^64 - 59, with secret factors
r. It is linear: the checks of several contributions add up, modulo P, to the check of their sum.
No carry is left that would tell of a single contribution. Whoever does not know r meets the check
of another vector (differences below P) with probability about 2^-64 (universal hashing: Carter and
Wegman 1979, https://doi.org/10.1016/0022-0000(79)90044-8).

So that no total of the clients' values can wrap, with the range R (largest |total|) a word has
f = 62 - ⌈log₂ R⌉ bits after the point: a total within the range is an integer of at most 62 bits.
Each of n addends may be at most R/n. Rounding adds half a unit for each addend: a total is off by
at most n·2^-(f+1), and by the rounding of float64 to 53 bits where it is written out. With the
default range that is n·2^-41.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import RangeError
from intarsia.maths.jit import compiled
from intarsia.privacy.secure_aggregation.protocol import check_range, complaint

Reals = NDArray[np.float64]
Words = NDArray[np.uint64]

PRIME = 2**64 - 59  # the largest below 2^64
_EXCESS = 59


def check(words: Words, factors: Words) -> int:
    """Return Σ rⱼ xⱼ modulo the prime, for words read as signed integers.

    There are 2^29 words at most, since partial sums are kept in 64 bits, and as many factors or
    more.
    """
    return int(_check(words, factors))


@compiled
def counters(start: Words, places: Words, blocks: int, out: Words) -> None:
    """Write the counters start + place + 0, 1, … modulo 2^128, `blocks` for each place.

    `start` is (2,), low and high half, `places` (places, 2) and `out` (places · blocks, 2).
    """
    for c in range(len(places)):
        low = start[0] + places[c, 0]
        high = start[1] + places[c, 1] + np.uint64(low < start[0])
        here = out[c * blocks : (c + 1) * blocks]
        for j in range(blocks):
            here[j, 0] = low + np.uint64(j)
            here[j, 1] = high
        before = np.uint64(0) - low  # blocks before the low half wraps; 0 stands for 2^64
        if before != 0 and before < np.uint64(blocks):
            for j in range(np.int64(before), blocks):
                here[j, 1] = high + np.uint64(1)


@compiled
def add_words(total: Words, words: Words) -> None:
    """Add words and their check to a total."""
    last = len(total) - 1
    for j in range(last):
        total[j] += words[j]
    total[last] = _sum(total[last] % np.uint64(PRIME), words[last] % np.uint64(PRIME))


@compiled
def seal_values(
    values: Reals,
    scale: float,
    limit: float,
    factors: Words,
    masks: Words,
    added: int,
    words: Words,
) -> bool:
    """Write the words of values and their check under masks.

    Return whether all values are within ±limit; where one is not, the words are of no use. They
    are one more than the values. `masks` is (masks, at least as many words): the first `added` are
    added, the others taken off.
    """
    within = encode_words(values, scale, limit, words)
    _seal(factors, masks, added, words)
    return within


@compiled
def seal_digits(
    values: Reals,
    digit: float,
    unit: float,
    room: float,
    bound: float,
    scale: float,
    factors: Words,
    masks: Words,
    added: int,
    words: Words,
) -> bool:
    """Write values as `seal_values`, each as a high digit, in units, and a low one.

    A value is high / unit · digit + low exactly; all high digits come before the low ones. Return
    whether all values are within ±room, or -inf, for which `bound` stands; `digit` is a power of 2.
    """
    within, count, reciprocal = True, len(values), 1.0 / digit
    for j in range(count):
        value = values[j] if values[j] != -np.inf else bound
        inside = abs(value) < room or value == bound
        within &= inside
        value = value if inside else 0.0
        high = np.rint(value * reciprocal)
        words[j] = np.uint64(np.int64(np.rint(high * unit * scale)))
        words[count + j] = np.uint64(np.int64(np.rint((value - high * digit) * scale)))
    _seal(factors, masks, added, words)
    return within


@compiled
def seal_words(values: Words, factors: Words, masks: Words, added: int, words: Words) -> None:
    """Write words as they are and their check, under masks as in `seal_values`."""
    words[: len(values)] = values
    _seal(factors, masks, added, words)


@compiled
def open_words(words: Words, masks: Words, factors: Words, values: Words) -> bool:
    """Write what `seal_words` sealed; return whether its check is right."""
    right, clear = _open(words, masks, factors)
    values[:] = clear
    return right


@compiled
def open_values(words: Words, masks: Words, factors: Words, step: float, values: Reals) -> bool:
    """Write the values of a total that `seal_values` sealed; return whether its check is right.

    `masks`, (masks, at least as many words), are those that do not cancel; they are overwritten.
    """
    right, clear = _open(words, masks, factors)
    decode_words(clear, step, values)
    return right


@compiled
def open_digits(
    words: Words,
    masks: Words,
    factors: Words,
    step: float,
    factor: float,
    least: float,
    values: Reals,
) -> bool:
    """Write the values of a total that `seal_digits` sealed; return whether its check is right.

    A value is high · factor + low; what is not above `least` becomes -inf.
    """
    right, clear = _open(words, masks, factors)
    count = len(values)
    for j in range(count):
        high = np.float64(np.int64(clear[j])) * step
        value = high * factor + np.float64(np.int64(clear[count + j])) * step
        values[j] = value if value > least else -np.inf
    return right


@compiled
def take_off(words: Words, masks: Words) -> None:
    """Take masks, (masks, at least as many words), off words and their check."""
    last = len(words) - 1
    for c in range(len(masks)):
        for j in range(last):
            words[j] -= masks[c, j]
    words[last] = _less(words[last], masks, 0, last)


@compiled
def fold(total: Words, mask: Words, sign: int, count: int) -> None:
    """Add a mask (sign 1) to the sum of others of `count` words, or take it off (-1)."""
    last = count - 1
    residue = mask[last] % np.uint64(PRIME)
    if sign < 0 and residue:
        residue = np.uint64(PRIME) - residue
    total[last] = _sum(total[last] % np.uint64(PRIME), residue)
    if sign > 0:
        for j in range(last):
            total[j] += mask[j]
    else:
        for j in range(last):
            total[j] -= mask[j]


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
def _seal(factors: Words, masks: Words, added: int, words: Words) -> None:
    """Write the check of words after them, then add and take off the masks."""
    last = len(words) - 1
    found = _check(words[:last], factors)
    for c in range(len(masks)):
        if c < added:
            found = _sum(found, masks[c, last] % np.uint64(PRIME))
            for j in range(last):
                words[j] += masks[c, j]
        else:
            for j in range(last):
                words[j] -= masks[c, j]
    words[last] = _less(found, masks, added, last)


@compiled
def _less(check: np.uint64, masks: Words, first: int, last: int) -> np.uint64:
    """Return a check less what the masks from the first on have at its place."""
    found = check % np.uint64(PRIME)
    for c in range(first, len(masks)):
        mask = masks[c, last] % np.uint64(PRIME)
        found = _sum(found, np.uint64(PRIME) - mask if mask else mask)
    return found


@compiled
def _open(words: Words, masks: Words, factors: Words) -> tuple[bool, Words]:
    """Return whether the check of a total is right, and its words without masks and check.

    The words are written over the first mask.
    """
    last = len(words) - 1
    expected = _less(words[last], masks, 0, last)
    clear = masks[0, :last]
    _take_off(words[:last], masks, clear)
    return _check(clear, factors) == expected, clear


@compiled
def _take_off(words: Words, masks: Words, clear: Words) -> None:
    """Write words less all masks over the first of these."""
    count, taken = len(masks), 1
    if count >= 4:  # in one pass over memory
        taken = 4
        for j in range(len(words)):
            clear[j] = words[j] - (masks[0, j] + masks[1, j] + masks[2, j] + masks[3, j])
    else:
        for j in range(len(words)):
            clear[j] = words[j] - clear[j]
    for c in range(taken, count):
        for j in range(len(words)):
            clear[j] -= masks[c, j]


@compiled
def _check(words: Words, factors: Words) -> np.uint64:
    first, second, third, fourth = _limb_sums(words, factors)
    total = _sum(_shifted(_residue(fourth)), _residue(third))
    total = _sum(_shifted(total), _residue(second))
    return _sum(_shifted(total), _residue(first))


@compiled
def _residue(word: np.uint64) -> np.uint64:
    """Return a word, read as a signed integer, modulo the prime."""
    if word >> np.uint64(63):
        return np.uint64(PRIME) - (np.uint64(0) - word)
    return word


@compiled
def _sum(one: np.uint64, other: np.uint64) -> np.uint64:
    """Return the sum of two residues modulo the prime."""
    total = one + other
    if total < one:  # 2^64 is 59 modulo the prime
        return total + np.uint64(_EXCESS)
    return total - np.uint64(PRIME) if total >= np.uint64(PRIME) else total


@compiled
def _shifted(residue: np.uint64) -> np.uint64:
    """Return a residue times 2^32 modulo the prime."""
    half = np.uint64(32)
    low = residue << half
    if low >= np.uint64(PRIME):
        low -= np.uint64(PRIME)
    return _sum((residue >> half) * np.uint64(_EXCESS), low)


@compiled
def _limb_sums(words: Words, factors: Words) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
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
    return first, second, third, fourth


_TOTAL_BITS = 62  # of 63: rounding and the sign need room
_SMALLEST = 2.0**-64  # range


@dataclass(frozen=True, kw_only=True)
class FixedPoint:
    """How values become words.

    Raises
    ------
    ExperimentError
        If the range is not between 2^-64 and 2^61, or there is no addend.
    """

    range: float = 2.0**22  # the largest absolute value of a total
    addends: int  # the number of values of a total, each at most range / addends

    def __post_init__(self) -> None:
        check_range(self.range, self.addends, _SMALLEST)

    @cached_property
    def fractional_bits(self) -> int:
        """Return the number of bits after the point."""
        mantissa, exponent = math.frexp(self.range)
        return _TOTAL_BITS - (exponent - 1 if mantissa == 0.5 else exponent)

    @cached_property
    def limit(self) -> float:
        """Return the largest absolute value of an addend."""
        return self.range / self.addends

    @cached_property
    def step(self) -> float:
        """Return the distance between neighbouring words."""
        return math.ldexp(1.0, -self.fractional_bits)

    def error(self, contributors: int, total: float = 0.0) -> float:
        """Return how far a decoded total can be from the exact sum of its addends."""
        return contributors * self.step / 2 + abs(total) * 2.0**-53

    def encode(self, values: NDArray[np.float64]) -> NDArray[np.uint64]:
        """Return the words of values, in their shape.

        Raises
        ------
        RangeError
            If a value is not finite, or beyond the limit of an addend.
        """
        whole = np.asarray(values, np.float64, order="C")
        words, flat = np.empty(whole.shape, np.uint64), whole.reshape(-1)
        if not encode_words(flat, 1.0 / self.step, self.limit, words.reshape(-1)):
            raise RangeError(complaint(flat, self.range, self.addends))
        return words

    def decode(self, words: NDArray[np.uint64]) -> NDArray[np.float64]:
        """Return the values of words or of their totals modulo 2^64, in their shape."""
        flat = np.asarray(words, np.uint64, order="C")
        values = np.empty(flat.shape)
        decode_words(flat.reshape(-1), self.step, values.reshape(-1))
        return values
