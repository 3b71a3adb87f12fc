"""Products of two clients' words under encryption: each comes to a share of them, nobody deals.

One client encrypts its words A (rows, columns) under a key that it alone has; the other, with words
B, multiplies the ciphertexts by its B in the clear, hides what they then say by random numbers, and
sends them back. The two have shares that add up to AᵀB modulo 2^64, exactly; each share alone is
random.

A ciphertext is one of ring-LWE (Lyubashevsky, Peikert, Regev 2010,
https://doi.org/10.1007/978-3-642-13190-5_1) with the messages of Fan and Vercauteren
(https://eprint.iacr.org/2012/144): two polynomials c₀, c₁ modulo Xᴺ + 1 and q with
c₀ + c₁ s = round(q m / 2^64) + e, s the key, m the words, e small. N is `SIZE` and q the product of
`PRIMES`, 168 bits: for 128 bits of security, with a key of -1, 0 and 1, the table of
homomorphicencryption.org allows 218. Arithmetic is by the residues of each prime.

The product of two polynomials has inner products among its coefficients (Huang et al. 2022,
https://eprint.iacr.org/2022/207): a polynomial holds `ROWS` rows of `COLUMNS` columns of A, column
after column, and one of B as many rows of two columns, from the last to the first, each in a half.
Coefficient p · ROWS + ROWS - 1 of a half is the inner product with column p. No other coefficient
of c₀ is sent back.

What the client that multiplies hides, from one that has the key and so reads the noise, too:

1. c₁ after the product is a known combination of B. An encryption of zero that this client makes
   by the other's public key is added: c₁ then is random to all (ring-LWE with secrets that this
   client alone has).
2. To each coefficient of c₀ that is sent back it adds a number ρ that is uniform modulo q, so that
   the coefficient says nothing, whatever the noise, and whatever the other sent for a ciphertext.
   Its share is -round(ρ 2^64 / q). ρ is drawn again where it is within 2^-33 of where rounding
   changes: this is farther than all errors reach, so that shares are exact, and it is all that the
   coefficient is short of uniform by.
3. What is sent back is rounded to four of the six primes: shorter, and known from the rest.

Errors, in units of q / 2^64 = 2^104: those of A's ciphertexts times B at most 21.5 Σ|b| with
Σ|b| <= `LARGEST`, 2^-56; of the encryption of zero 2^-85; of rounding to four primes
(1 + Σ|s|) / 2 in units of 2^48, 2^-36.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from intarsia.maths.jit import compiled, inlined

Words = NDArray[np.uint64]
Residues = NDArray[np.uint32]  # (..., primes, SIZE)

SIZE = 8192  # N
ROWS, COLUMNS = 128, 32  # of words in a ciphertext
TOGETHER = 2  # columns that it is multiplied by at once
PRIMES = (268369921, 268271617, 268238849, 268189697, 268091393, 268042241)  # 1 modulo 2N
KEPT = 4  # primes of what is sent back
LARGEST = 1 << 43  # most that the sizes of a column's words add up to

_BITS = 28  # of a residue: 16 of them are 7 words
_SEED = 4  # words
CIPHERTEXT = _SEED + len(PRIMES) * SIZE * _BITS // 64  # words
_SENT_ONE = KEPT * SIZE * _BITS // 64
REPLY = _SENT_ONE + KEPT * TOGETHER * COLUMNS * _BITS // 64  # words

_PRIMES = np.array(PRIMES, np.uint64)
_PLACES = (
    np.arange(TOGETHER * COLUMNS) * ROWS + ROWS - 1
)  # of inner products among the coefficients
_UNSURE = 2.0**-33  # in units of q / 2^64


def _product(primes: tuple[int, ...]) -> int:
    found = 1
    for p in primes:
        found *= p
    return found


def _inverses(primes: tuple[int, ...]) -> Words:
    """Return the inverse of the other primes' product modulo each."""
    return np.array([pow(_product(primes) // p, -1, p) for p in primes], np.uint64)


_ALL_INVERSES, _KEPT_INVERSES = _inverses(PRIMES), _inverses(PRIMES[:KEPT])
# 2^-64 modulo each prime; q modulo 2^64
_SCALES = np.array([pow(2**64, -1, p) for p in PRIMES], np.uint64)
_REST = np.uint64(_product(PRIMES) % 2**64)
# of each prime: floor(2^32 / p); 2^32 modulo p, and floor(that 2^32 / p)
_PARTS = np.array([[2**32 // p, 2**32 % p, 2**32 % p * 2**32 // p] for p in PRIMES], np.uint64)


class Secret(Protocol):
    """Random numbers that nobody else can tell, as a `SecretKey` gives them."""

    def fold_in(self, *words: int | str) -> Secret:
        """Return a stream of its own, which does not tell this one."""
        ...

    def words(self, count: int) -> Words:
        """Return random words."""
        ...

    def stream(self, size: int) -> bytes:
        """Return random bytes of another stream."""
        ...


class Key(NamedTuple):
    """The secret s of a client that encrypts, as `_transformed`."""

    secret: Residues  # (primes, SIZE)


def draw_key(random: Secret) -> Key:
    """Return a key, s of -1, 0 and 1."""
    return Key(_transformed(_spread(_ternary(random.words(SIZE)), _PRIMES)))


def layout(rows: int, columns: int) -> tuple[int, int]:
    """Return how many blocks of rows, and groups of columns, the ciphertexts of words are."""
    return -(-rows // ROWS), -(-columns // COLUMNS)


def encrypt(key: Key, rows: Words, random: Secret) -> Words:
    """Return ciphertexts of words, (1 + outputs * blocks * groups, `CIPHERTEXT`), in this order.

    The first is of zeros: the public key.

    Parameters
    ----------
    rows : (outputs, rows, columns)
    random
        Another one for other words: the same noise twice would tell their difference.
    """
    outputs, count, columns = rows.shape
    blocks, groups = layout(count, columns)
    padded = np.zeros((outputs, blocks, ROWS, groups, COLUMNS), np.uint64)
    padded.reshape(outputs, blocks * ROWS, -1)[:, :count, :columns] = rows
    plain = padded.transpose(0, 1, 3, 4, 2).reshape(-1, ROWS * COLUMNS)
    found = np.empty((1 + len(plain), CIPHERTEXT), np.uint64)
    for number, to in enumerate(found):
        drawn = random.fold_in(number)
        noise = _spread(_binomial(drawn.fold_in("noise").words(SIZE)), _PRIMES)
        if number:
            _add_scaled(noise, plain[number - 1], _REST, _SCALES, _PRIMES)
        seed = drawn.fold_in("seed").stream(8 * _SEED)  # it is public: c₁ is drawn from it
        hidden = _transformed(noise)
        _take_product(hidden, _uniform(seed), key.secret, _PRIMES, _PARTS)
        to[:_SEED] = np.frombuffer(seed, np.uint64)
        _pack(hidden.ravel(), to[_SEED:])
    return found


def expand(ciphertexts: Words) -> Residues | None:
    """Return c₀ and c₁ of each, (ciphertexts, 2, primes, SIZE); None: they are malformed."""
    found = np.empty((len(ciphertexts), 2, len(PRIMES), SIZE), np.uint32)
    for one, to in zip(np.ascontiguousarray(ciphertexts), found, strict=True):
        if not _unpack(one[_SEED:], to[0], _PRIMES):
            return None
        to[1] = _uniform(one[:_SEED].tobytes())
    return found


class Encrypted(NamedTuple):
    """What another client encrypted, to be multiplied by some blocks of rows."""

    public: Residues  # (2, primes, SIZE) its public key
    factors: Residues  # (blocks, groups, 2, primes, SIZE) as `expand`
    places: NDArray[np.int64]  # (blocks,) which of the rows' blocks
    random: Secret  # another one for other ciphertexts or words


def multiply(theirs: Sequence[Encrypted], rows: Words) -> list[tuple[Words, Words]]:
    """Multiply what other clients encrypted by rows in the clear, and hide it.

    Parameters
    ----------
    rows : (blocks, ROWS, columns)
        Words of this client, which stand for signed numbers; their sizes add up to `LARGEST` in
        each column, at most.

    Returns
    -------
    For each of them

    replies : (`replies_of` its columns and this client's, `REPLY`)
        What it decrypts.
    share : (groups * COLUMNS, columns)
        This client's share of AᵀB.
    """
    columns, found = rows.shape[2], []
    # each group's ciphertexts side by side: else the products take many times as long
    theirs = [one._replace(factors=one.factors.swapaxes(0, 1).copy()) for one in theirs]
    for one in theirs:
        groups = len(one.factors)
        count = replies_of(groups * COLUMNS, columns)
        share = np.empty((groups, COLUMNS, count // groups * TOGETHER), np.uint64)
        found.append((np.empty((count, REPLY), np.uint64), share))
    for q in range(-(-columns // TOGETHER)):
        some = np.zeros((len(rows), ROWS, TOGETHER), np.int64)
        taken = rows[:, :, q * TOGETHER : (q + 1) * TOGETHER]
        some[:, :, : taken.shape[2]] = taken.view(np.int64)
        factors = _transformed_short(some)
        for one, (replies, share) in zip(theirs, found, strict=True):
            own = factors if len(one.places) == len(factors) else factors[one.places]
            groups = len(one.factors)
            for g in range(groups):
                drawn = one.random.fold_in(q, g)
                to = replies[q * groups + g]
                part = _multiply_one(one.factors[g], own, one.public, drawn, to)
                share[g, :, q * TOGETHER : (q + 1) * TOGETHER] = part.reshape(TOGETHER, -1).T
    return [(replies, share.reshape(-1, share.shape[2])[:, :columns]) for replies, share in found]


def replies_of(one: int, other: int) -> int:
    """Return how many replies a product of so many columns with so many others takes."""
    return layout(0, one)[1] * -(-other // TOGETHER)


def _multiply_one(
    encrypted: Residues, factors: Residues, public: Residues, random: Secret, reply: Words
) -> Words:
    """Write what is sent back of one column and group; return the share."""
    secret = _transformed(_spread(_ternary(random.fold_in("secret").words(SIZE)), _PRIMES))
    found = _restored(_products(encrypted, factors, public, secret, _PRIMES, _PARTS))
    _add(found[1], _binomial(random.fold_in("noise").words(SIZE)), _PRIMES)
    hiding, share = _draw_hiding(random)
    wanted = (found[0][:, _PLACES] + hiding) % _PRIMES[:, None].astype(np.uint32)
    _pack(_shortened(found[1], _PRIMES).ravel(), reply[:_SENT_ONE])
    _pack(_shortened(wanted, _PRIMES).ravel(), reply[_SENT_ONE:])
    return share


def _draw_hiding(random: Secret) -> tuple[Residues, Words]:
    """Return numbers ρ that are uniform modulo q, (primes, places), and -round(ρ 2^64 / q)."""
    count = len(_PLACES)
    found = np.empty((len(PRIMES), count), np.uint32)
    share, sure = np.empty(count, np.uint64), np.zeros(count, bool)
    attempt = 0
    while not sure.all():
        drawn = _uniform(random.fold_in("hiding", attempt).stream(8 * _SEED), count)
        words, distance = _decode(drawn, _PRIMES, _ALL_INVERSES)
        found[:, ~sure], share[~sure] = drawn[:, ~sure], np.uint64(0) - words[~sure]
        sure |= distance > _UNSURE
        attempt += 1
    return found, share


def decrypt(key: Key, replies: Words, columns: int, others: int) -> Words | None:
    """Return the share of AᵀB of the client that encrypted A, (columns of A, columns of B).

    None: the replies are malformed.
    """
    groups = layout(0, columns)[1]
    found = np.empty((groups, COLUMNS, len(replies) // groups * TOGETHER), np.uint64)
    whole, wanted = np.empty((KEPT, SIZE), np.uint32), np.empty((KEPT, len(_PLACES)), np.uint32)
    primes = _PRIMES[:KEPT]
    for at, one in enumerate(np.ascontiguousarray(replies)):
        q, g = divmod(at, groups)
        if not _unpack(one[:_SENT_ONE], whole, primes):
            return None
        if not _unpack(one[_SENT_ONE:], wanted, primes):
            return None
        product = _transformed(whole)
        _multiply_by(product, key.secret, primes, _PARTS)
        summed = wanted + _restored(product)[:, _PLACES]
        words, _ = _decode(summed % primes[:, None].astype(np.uint32), primes, _KEPT_INVERSES)
        found[g, :, q * TOGETHER : (q + 1) * TOGETHER] = words.reshape(TOGETHER, -1).T
    return found.reshape(-1, found.shape[2])[:columns, :others]


def _uniform(seed: bytes, count: int = SIZE) -> Residues:
    """Return numbers that are uniform modulo each prime, (primes, count)."""
    found = np.empty((len(PRIMES), count), np.uint32)
    for number, (row, p) in enumerate(zip(found, PRIMES, strict=True)):
        tried, done = count + count // 64 + 64, 0
        while done < count:  # once, but for a chance below 2^-60: of 28 bits few are not below
            stream = hashlib.shake_256(bytes([number]) + seed).digest(4 * tried)
            done = _take_below(np.frombuffer(stream, np.uint32), np.uint32(p), row)
            tried *= 2
    return found


@compiled
def _take_below(drawn: Residues, p: np.uint32, found: Residues) -> int:
    """Fill in those of the numbers, of 28 bits, that are below the prime; return how many."""
    done = 0
    for one in drawn:
        if one >> np.uint32(4) < p and done < len(found):
            found[done] = one >> np.uint32(4)
            done += 1
    return done


@compiled
def _ternary(words: Words) -> NDArray[np.int64]:
    """Return -1, 0 or 1 for each random word, within 2^-64 of equally often."""
    found = np.empty(len(words), np.int64)
    for j in range(len(words)):
        found[j] = np.int64(words[j] % np.uint64(3)) - 1
    return found


@compiled
def _binomial(words: Words) -> NDArray[np.int64]:
    """Return noise for each random word: 21 bits less 21 others, of standard deviation 3.24."""
    found = np.empty(len(words), np.int64)
    for j in range(len(words)):
        left, total = words[j], np.int64(0)
        for bit in range(42):
            total += np.int64(left & np.uint64(1)) * (1 if bit < 21 else -1)
            left >>= np.uint64(1)
        found[j] = total
    return found


# ---- residues


_LOW = np.uint64((1 << 32) - 1)


@inlined
def _times(value: np.uint64, by: np.uint64, over: np.uint64, p: np.uint64) -> np.uint64:
    """Return value · by modulo p, or p more; the value is below 2^32, over = floor(by 2^32 / p)."""
    quotient = ((value & _LOW) * (over & _LOW)) >> np.uint64(32)
    return (value & _LOW) * (by & _LOW) - quotient * (p & _LOW)


@inlined
def _least(value: np.uint64, p: np.uint64) -> np.uint64:
    """Return a number below 4p modulo p."""
    value -= p + p if value >= p + p else np.uint64(0)
    return value - (p if value >= p else np.uint64(0))


@inlined
def _modulo(value: np.uint64, p: np.uint64, parts: Words) -> np.uint64:
    """Return a word modulo p: by its halves, without a division."""
    high = _times(value >> np.uint64(32), parts[1], parts[2], p)
    return _least(high + _times(value & _LOW, np.uint64(1), parts[0], p), p)


@inlined
def _residue(value: np.int64, p: np.uint64) -> np.uint64:
    """Return a signed number modulo a prime."""
    if value >= 0:
        return np.uint64(value) % p
    rest = (np.uint64(0) - np.uint64(value)) % p
    return p - rest if rest else rest


@compiled
def _spread(small: NDArray[np.int64], primes: Words) -> Residues:
    """Return small numbers modulo each prime, (primes, SIZE)."""
    found = np.empty((len(primes), len(small)), np.uint32)
    for i in range(len(primes)):
        p = np.int64(primes[i])
        for j in range(len(small)):
            found[i, j] = np.uint32(small[j] + (p if small[j] < 0 else np.int64(0)))
    return found


@compiled
def _add(to: Residues, small: NDArray[np.int64], primes: Words) -> None:
    """Add small numbers."""
    for i in range(len(primes)):
        p = np.int64(primes[i])
        for j in range(len(small)):
            value = np.int64(to[i, j]) + small[j]
            value += p if value < 0 else np.int64(0)
            to[i, j] = np.uint32(value - (p if value >= p else np.int64(0)))


@compiled
def _add_scaled(to: Residues, plain: Words, rest: np.uint64, scales: Words, primes: Words) -> None:
    """Add round(q m / 2^64): (q m + 2^63 - r) 2^-64 with r = q m + 2^63 modulo 2^64; q is 0."""
    half = np.uint64(1) << np.uint64(63)
    for i in range(len(primes)):
        p = primes[i]
        for j in range(len(plain)):
            r = (rest * plain[j] + half) % p
            found = (half % p + p - r) * scales[i] % p + np.uint64(to[i, j])
            to[i, j] = np.uint32(found - (p if found >= p else np.uint64(0)))


@compiled
def _take_product(
    to: Residues, one: Residues, other: Residues, primes: Words, parts: Words
) -> None:
    """Take products off, place by place."""
    for i in range(len(primes)):
        p = primes[i]
        for j in range(to.shape[1]):
            product = np.uint64(one[i, j]) * np.uint64(other[i, j])
            found = np.uint64(to[i, j]) + p - _modulo(product, p, parts[i])
            to[i, j] = np.uint32(_least(found, p))


@compiled
def _multiply_by(to: Residues, other: Residues, primes: Words, parts: Words) -> None:
    """Multiply place by place."""
    for i in range(len(primes)):
        for j in range(to.shape[1]):
            product = np.uint64(to[i, j]) * np.uint64(other[i, j])
            to[i, j] = np.uint32(_modulo(product, primes[i], parts[i]))


@compiled
def _products(
    encrypted: Residues,
    factors: Residues,
    public: Residues,
    own: Residues,
    primes: Words,
    parts: Words,
) -> Residues:
    """Return ciphertexts times factors, and the public key times a secret, added up.

    Parameters
    ----------
    encrypted : (blocks, 2, primes, SIZE)
    factors : (blocks, primes, SIZE)
    public : (2, primes, SIZE)
    own : (primes, SIZE)
    """
    found = np.empty((2, len(primes), SIZE), np.uint32)
    total = np.empty(SIZE, np.uint64)
    for c in range(2):
        for i in range(len(primes)):
            p = primes[i]
            for j in range(SIZE):
                total[j] = np.uint64(public[c, i, j]) * np.uint64(own[i, j])
            for k in range(len(factors)):
                if k % 250 == 249:  # each product has up to 56 bits
                    for j in range(SIZE):
                        total[j] = _modulo(total[j], p, parts[i])
                for j in range(SIZE):
                    total[j] += np.uint64(encrypted[k, c, i, j]) * np.uint64(factors[k, i, j])
            for j in range(SIZE):
                found[c, i, j] = np.uint32(_modulo(total[j], p, parts[i]))
    return found


@compiled
def _shortened(whole: Residues, primes: Words) -> Residues:
    """Return numbers over the product of the primes that are not kept, rounded."""
    left = whole.astype(np.uint64)
    for last in range(len(primes) - 1, KEPT - 1, -1):
        top = primes[last]
        for i in range(last):
            p = primes[i]
            inverse, base, power = np.uint64(1), top % p, p - np.uint64(2)
            while power:
                if power & np.uint64(1):
                    inverse = inverse * base % p
                base, power = base * base % p, power >> np.uint64(1)
            over = (inverse << np.uint64(32)) // p
            for j in range(left.shape[1]):
                rest = left[last, j]  # above half of the prime it stands for less than nothing
                less = p + p - rest + (top if rest > top >> np.uint64(1) else np.uint64(0))
                left[i, j] = _least(_times(left[i, j] + less, inverse, over, p), p)
    return left[:KEPT].astype(np.uint32)


@compiled
def _decode(numbers: Residues, primes: Words, inverses: Words) -> tuple[Words, NDArray[np.float64]]:
    """Return round(x 2^64 / q) modulo 2^64, q the primes' product, of each number x.

    x / q is the sum of y / p with y = x (q/p)^-1 modulo p. And how far each is from where rounding
    changes.
    """
    count = numbers.shape[1]
    words, distance = np.empty(count, np.uint64), np.empty(count)
    for j in range(count):
        whole, rest = np.uint64(0), 0.0
        for i in range(len(primes)):
            p = primes[i]
            y = np.uint64(numbers[i, j]) * inverses[i] % p
            high = y << np.uint64(32)
            low = high % p << np.uint64(32)
            whole += (high // p << np.uint64(32)) + low // p
            rest += np.float64(low % p) / np.float64(p)
        nearest = np.floor(rest + 0.5)
        words[j] = whole + np.uint64(np.int64(nearest))
        distance[j] = 0.5 - abs(rest - nearest)
    return words, distance


@compiled
def _pack(residues: Residues, words: Words) -> None:
    """Write residues of 28 bits, 16 of them into 7 words."""
    at, have, word = 0, np.uint64(0), np.uint64(0)
    for one in residues:
        value = np.uint64(one)
        word |= value << have
        have += np.uint64(28)
        if have >= np.uint64(64):
            words[at] = word
            at += 1
            have -= np.uint64(64)
            word = value >> (np.uint64(28) - have)


@compiled
def _unpack(words: Words, residues: Residues, primes: Words) -> bool:
    """Read residues, (primes, count); return whether each is below its prime."""
    at, have, word = 0, np.uint64(0), np.uint64(0)
    mask = (np.uint64(1) << np.uint64(28)) - np.uint64(1)
    for i in range(residues.shape[0]):
        for j in range(residues.shape[1]):
            value = word
            if have < np.uint64(28):
                value |= words[at] << have
                word = words[at] >> (np.uint64(28) - have)
                at += 1
                have += np.uint64(36)
            else:
                word >>= np.uint64(28)
                have -= np.uint64(28)
            value &= mask
            if value >= primes[i]:
                return False
            residues[i, j] = np.uint32(value)
    return True


# ---- the transform: polynomials modulo X^N + 1 at N points, where products are place by place
#
# Decimation in the order of Longa and Naehrig (https://eprint.iacr.org/2016/504), with Harvey's
# products by constants (https://arxiv.org/abs/1205.2926). The coefficients are 64 runs of 128. Six
# stages go over whole runs; for the other seven the runs are turned, so that all loops are long.

_RUNS, _RUN = 64, SIZE // 64


class _Roots(NamedTuple):
    """Powers of a 2N-th root of 1 modulo each prime, each with floor(its 2^32 / p)."""

    far: Words  # (primes, 2, runs) of the stages over runs
    near: Words  # (primes, 2, run * runs) of the others: by stage and place in a run, then the run


@cache
def _roots() -> tuple[_Roots, _Roots, Words]:
    """Return roots, their inverses, and 1 / N modulo each prime."""
    order = np.array([int(f"{j:013b}"[::-1], 2) for j in range(SIZE)])
    tables: list[_Roots] = []
    found: list[list[Words]] = [[], []]
    for p in PRIMES:
        root = next(
            power
            for base in range(2, p)
            if pow(power := pow(base, (p - 1) // (2 * SIZE), p), SIZE, p) == p - 1
        )
        for one, place in ((root, 0), (pow(root, -1, p), 1)):
            one_by_one = [1]
            for _ in range(SIZE - 1):
                one_by_one.append(one_by_one[-1] * one % p)
            found[place].append(np.array(one_by_one, np.uint64)[order])
    for kind in found:
        powers = np.stack(kind)
        both = np.stack([powers, (powers << np.uint64(32)) // _PRIMES[:, None]], axis=1)
        near = [
            both[:, :, stage * _RUNS : 2 * stage * _RUNS]
            .reshape(len(PRIMES), 2, _RUNS, stage)
            .transpose(0, 1, 3, 2)
            .reshape(len(PRIMES), 2, -1)
            for stage in (1, 2, 4, 8, 16, 32, 64)
        ]
        tables.append(_Roots(both[:, :, :_RUNS].copy(), np.concatenate(near, axis=2)))
    scale = np.array([pow(SIZE, -1, p) for p in PRIMES], np.uint64)
    scale = np.stack([scale, (scale << np.uint64(32)) // _PRIMES], axis=1)
    return tables[0], tables[1], scale


def _transformed(numbers: Residues) -> Residues:
    """Return polynomials, (primes, SIZE), at the points of the transform."""
    found = np.empty_like(numbers)
    _transform(numbers, found, *_roots()[0], _PRIMES)
    return found


def _transformed_short(rows: NDArray[np.int64]) -> Residues:
    """Return the polynomial of each block of two columns, (blocks, primes, SIZE), transformed."""
    found = np.empty((len(rows), len(PRIMES), SIZE), np.uint32)
    _transform_short(rows, found, *_roots()[0], _PRIMES)
    return found


def _restored(points: Residues) -> Residues:
    """Return the polynomials that have these values at the points, (..., primes, SIZE)."""
    found = np.empty_like(points)
    _, (far, near), scale = _roots()
    for one, to in zip(
        points.reshape(-1, *points.shape[-2:]), found.reshape(-1, *points.shape[-2:]), strict=True
    ):
        _restore(one, to, far, near, scale, _PRIMES)
    return found


@inlined
def _turn(one: Words, other: Words, rows: int, columns: int) -> None:
    """Turn a matrix, by blocks that stay in the nearest memory."""
    for first in range(0, rows, 8):
        for start in range(0, columns, 8):
            for j in range(start, start + 8):
                for k in range(first, first + 8):
                    other[j * rows + k] = one[k * columns + j]


@compiled
def _transform(numbers: Residues, found: Residues, far: Words, near: Words, primes: Words) -> None:
    x, y = np.empty(SIZE, np.uint64), np.empty(SIZE, np.uint64)
    for i in range(numbers.shape[0]):
        for j in range(SIZE):
            x[j] = np.uint64(numbers[i, j])
        _forward(x, y, 1, far[i], near[i], primes[i])
        for j in range(SIZE):
            found[i, j] = np.uint32(y[j])


@compiled
def _transform_short(
    rows: NDArray[np.int64], found: Residues, far: Words, near: Words, primes: Words
) -> None:
    """Transform what has ROWS coefficients in each half: most first stages repeat them."""
    x, y = np.empty(SIZE, np.uint64), np.empty(SIZE, np.uint64)
    for i in range(len(primes)):
        p, half = primes[i], SIZE // 2
        for k in range(len(rows)):
            for j in range(ROWS):
                low = _residue(rows[k, ROWS - 1 - j, 0], p)
                high = _residue(rows[k, ROWS - 1 - j, 1], p)
                high = _least(_times(high, far[i, 0, 1], far[i, 1, 1], p), p)
                x[j], x[half + j] = _least(low + high, p), _least(low + p - high, p)
            for j in range(ROWS, half):
                x[j], x[half + j] = x[j - ROWS], x[half + j - ROWS]
            _forward(x, y, SIZE // ROWS, far[i], near[i], p)
            for j in range(SIZE):
                found[k, i, j] = np.uint32(y[j])


@compiled
def _forward(x: Words, y: Words, first: int, far: Words, near: Words, p: np.uint64) -> None:
    """Transform what is below p, from the stage of some parts on; x is overwritten."""
    twice = p + p
    parts = first
    while parts < _RUNS:
        half = SIZE // (2 * parts)
        for k in range(parts):
            root, over = far[0, parts + k], far[1, parts + k]
            low, high = x[2 * k * half :][:half], x[(2 * k + 1) * half :][:half]
            for j in range(half):
                u, v = low[j], _times(high[j], root, over, p)
                u -= twice if u >= twice else np.uint64(0)
                low[j], high[j] = u + v, u + twice - v
        parts *= 2
    _turn(x, y, _RUNS, _RUN)
    half, at = _RUN // 2, 0
    while half:
        for k in range(_RUN // (2 * half)):
            roots, overs = near[0, at:][:_RUNS], near[1, at:][:_RUNS]
            at += _RUNS
            for j in range(2 * k * half, (2 * k + 1) * half):
                low, high = y[j * _RUNS :][:_RUNS], y[(j + half) * _RUNS :][:_RUNS]
                for r in range(_RUNS):
                    u, v = low[r], _times(high[r], roots[r], overs[r], p)
                    u -= twice if u >= twice else np.uint64(0)
                    low[r], high[r] = u + v, u + twice - v
        half //= 2
    for j in range(SIZE):
        y[j] = _least(y[j], p)


@compiled
def _restore(
    points: Residues, found: Residues, far: Words, near: Words, scale: Words, primes: Words
) -> None:
    x, y = np.empty(SIZE, np.uint64), np.empty(SIZE, np.uint64)
    for i in range(points.shape[0]):
        p = primes[i]
        twice = p + p
        for j in range(SIZE):
            y[j] = np.uint64(points[i, j])
        half, end = 1, near.shape[2]
        while half < _RUN:
            count = _RUN // (2 * half)
            for k in range(count):
                at = end - (count - k) * _RUNS
                roots, overs = near[i, 0, at:][:_RUNS], near[i, 1, at:][:_RUNS]
                for j in range(2 * k * half, (2 * k + 1) * half):
                    low, high = y[j * _RUNS :][:_RUNS], y[(j + half) * _RUNS :][:_RUNS]
                    for r in range(_RUNS):
                        u, v = low[r] + high[r], low[r] + twice - high[r]
                        low[r] = u - (twice if u >= twice else np.uint64(0))
                        high[r] = _times(v, roots[r], overs[r], p)
            end -= count * _RUNS
            half *= 2
        _turn(y, x, _RUN, _RUNS)
        parts = _RUNS // 2
        while parts:
            half = SIZE // (2 * parts)
            for k in range(parts):
                root, over = far[i, 0, parts + k], far[i, 1, parts + k]
                low, high = x[2 * k * half :][:half], x[(2 * k + 1) * half :][:half]
                for j in range(half):
                    u, v = low[j] + high[j], low[j] + twice - high[j]
                    low[j] = u - (twice if u >= twice else np.uint64(0))
                    high[j] = _times(v, root, over, p)
            parts //= 2
        for j in range(SIZE):
            found[i, j] = np.uint32(_least(_times(x[j], scale[i, 0], scale[i, 1], p), p))
