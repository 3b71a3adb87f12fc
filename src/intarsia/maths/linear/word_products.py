"""Products of matrices in fixed point modulo 2^64, which two parties share between them.

A real number x is the word round(x·2ᶠ) modulo 2^64 (f = BITS), negative ones in two's complement.
Sums and products of words are those of the integers, as long as the results stay within 63 bits: a
word that is too large on the way does no harm. So each of two parties can hold a part of a product
that looks random, and the two parts add up to it exactly (Beaver 1991,
https://doi.org/10.1007/3-540-46766-1_34):

    G = A - U for random words U; H = B - V likewise; AᵀB = Aᵀ H + Gᵀ V + UᵀV

The party with A computes the first term from H, the party with B the second from G, and whoever
drew U and V adds the third. Of G and H alone nothing can be told.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from intarsia.core.block import Array
from intarsia.maths.jit import compiled

Words = NDArray[np.uint64]

BITS = 26  # after the point, of a factor; a product has twice as many
ROOM = 10  # bits before the point that a product may have: 2 · 26 + 10 of 63


@compiled
def write_words(values: Array, factors: Array, words: Words) -> None:
    """Write values times the factor of their row, as words.

    Parameters
    ----------
    values, words : (rows, columns)
    factors : (rows,)
    """
    scale = float(1 << BITS)
    for i in range(values.shape[0]):
        factor = factors[i] * scale
        for j in range(values.shape[1]):
            words[i, j] = np.uint64(np.int64(np.rint(values[i, j] * factor)))


def product_words(values: Array) -> Words:
    """Return numbers as the words that products of words are."""
    return np.asarray(np.rint(values * 2.0 ** (2 * BITS)).astype(np.int64).view(np.uint64))


def product_values(words: Words) -> Array:
    """Return the numbers that products of words stand for."""
    return np.asarray(words.view(np.int64) * 2.0 ** (-2 * BITS))


@compiled
def multiply_words(one: Words, other: Words) -> Words:
    """Return oneᵀ other modulo 2^64, (columns of one, columns of other).

    Eight rows at a time: what is added up then stays in registers. Rows of `other` are copied to
    where they end with a vector instruction: what is left over would take longer than the rest.
    """
    rows, width = one.shape
    across = other.shape[1]
    padded = (across + 7) // 8 * 8
    found = np.zeros((width, padded), np.uint64)
    near = np.zeros((8, padded), np.uint64)
    for i in range(0, rows, 8):
        last = min(8, rows - i)
        for r in range(8):
            for q in range(across):
                near[r, q] = other[i + r, q] if r < last else np.uint64(0)
        for p in range(width):
            zero = np.uint64(0)
            a, b = one[i, p], one[i + 1, p] if last > 1 else zero
            c, d = one[i + 2, p] if last > 2 else zero, one[i + 3, p] if last > 3 else zero
            e, f = one[i + 4, p] if last > 4 else zero, one[i + 5, p] if last > 5 else zero
            g, h = one[i + 6, p] if last > 6 else zero, one[i + 7, p] if last > 7 else zero
            for q in range(padded):
                found[p, q] += (
                    (a * near[0, q] + b * near[1, q]) + (c * near[2, q] + d * near[3, q])
                ) + ((e * near[4, q] + f * near[5, q]) + (g * near[6, q] + h * near[7, q]))
    return found[:, :across]


@compiled
def add_block(
    total: Words, size: int, block: Words, rows: NDArray[np.int64], columns: NDArray[np.int64]
) -> None:
    """Add a block K and its transpose to a symmetric matrix, of which one half is kept.

    Parameters
    ----------
    total : (size · (size + 1) / 2 or more,)
        The entries (j, k) with j <= k, row by row: at j · size - j (j - 1) / 2 + k - j.
    block : (rows, columns)
    rows, columns
        Where the block's rows and columns lie in the matrix. Where the two are the same entry, it
        counts twice, as K + Kᵀ has it.
    """
    for p in range(len(rows)):
        for q in range(len(columns)):
            j, k = min(rows[p], columns[q]), max(rows[p], columns[q])
            place = j * size - j * (j - 1) // 2 + k - j
            total[place] += block[p, q]
            if j == k:
                total[place] += block[p, q]


@compiled
def add_own(total: Words, size: int, part: Words, places: NDArray[np.int64]) -> None:
    """Add half a symmetric matrix of some rows and columns, and a vector, to those of all.

    Parameters
    ----------
    total : (size · (size + 3) / 2,)
        Half a symmetric matrix as in `add_block`, then a vector.
    part
        The same of fewer rows and columns.
    places
        Where these lie among all, ascending.
    """
    at = 0
    for p in range(len(places)):
        j = places[p]
        row = j * size - j * (j - 1) // 2 - j
        for q in range(p, len(places)):
            total[row + places[q]] += part[at]
            at += 1
    for p in range(len(places)):
        total[size * (size + 1) // 2 + places[p]] += part[at]
        at += 1


@compiled
def pack(whole: Array, vector: Array) -> Array:
    """Return half a symmetric matrix, the entries (j, k) with j <= k row by row, then a vector."""
    size = len(vector)
    packed = np.empty(size * (size + 3) // 2)
    at = 0
    for j in range(size):
        for k in range(j, size):
            packed[at] = whole[j, k]
            at += 1
    packed[at:] = vector
    return packed


@compiled
def unpack(packed: Array, size: int) -> tuple[Array, Array]:
    """Return the symmetric matrix and the vector that `pack` was given."""
    whole = np.empty((size, size))
    at = 0
    for j in range(size):
        for k in range(j, size):
            whole[j, k] = whole[k, j] = packed[at]
            at += 1
    return whole, packed[at:]


def split_words(words: Words) -> NDArray[np.uint32]:
    """Return the high and the low halves of words, (2, ...)."""
    return np.stack([words >> np.uint64(32), words & np.uint64(0xFFFFFFFF)]).astype(np.uint32)


def joined_words(halves: Array) -> Words:
    """Return the words of sums of halves, modulo 2^64."""
    high, low = np.rint(halves).astype(np.uint64)
    return np.asarray((high << np.uint64(32)) + low)
