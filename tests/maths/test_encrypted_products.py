"""Products under encryption: two shares that add up exactly, and each that says nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from intarsia.core.client_functions import SecretKey
from intarsia.maths import encrypted_products as ep
from intarsia.maths.encrypted_products import PRIMES, ROWS, SIZE, Encrypted

KEY = SecretKey(bytes(range(32)))


def drawn(shape, seed=0, bits=64):
    """Return random words, or signed ones of fewer bits."""
    rng = np.random.default_rng(seed)
    if bits == 64:
        return rng.integers(0, 2**64, shape, dtype=np.uint64)
    return rng.integers(-(2**bits), 2**bits, shape).astype(np.int64).view(np.uint64)


def in_blocks(words):
    """Return rows in whole blocks."""
    blocks = -(-len(words) // ROWS)
    found = np.zeros((blocks * ROWS, words.shape[1]), np.uint64)
    found[: len(words)] = words
    return found.reshape(blocks, ROWS, -1)


def encrypted(one, key, number=0):
    """Return words as they arrive at who multiplies them."""
    sent = ep.expand(ep.encrypt(key, one[None], KEY.fold_in("rows", number)))
    shape = *ep.layout(*one.shape), *sent.shape[1:]
    places = np.arange(shape[0])
    return Encrypted(sent[0], sent[1:].reshape(shape), places, KEY.fold_in("hidden", number))


def shares(one, other):
    """Return the shares of oneᵀ other of who encrypts and of who multiplies."""
    key = ep.draw_key(KEY.fold_in("key"))
    ((replies, second),) = ep.multiply([encrypted(one, key)], in_blocks(other))
    first = ep.decrypt(key, replies, one.shape[1], other.shape[1])
    return first, second[: one.shape[1]]


def modulo_product(one, other):
    """Return oneᵀ other modulo 2^64 by numpy's own words."""
    return one.T @ other


@pytest.mark.parametrize(
    ("rows", "columns", "others"),
    [(1, 1, 1), (5, 3, 2), (ROWS, 32, 2), (ROWS + 1, 33, 3), (700, 40, 5)],
)
def test_shares_add_up_to_the_product_modulo_2_64(rows, columns, others):
    one, other = drawn((rows, columns)), drawn((rows, others), 1, bits=31)
    first, second = shares(one, other)
    np.testing.assert_array_equal(first + second, modulo_product(one, other))


@pytest.mark.parametrize("sign", [1, -1])
def test_shares_are_exact_for_the_largest_rows(sign):
    """All that a column may add up to, of one sign, times words of any size."""
    rows = 2 * ROWS
    one = np.full((rows, 2), 2**64 - 1, np.uint64)
    one[:, 1] = 1 << 63
    other = np.full((rows, 1), sign * (ep.LARGEST // rows), np.int64).view(np.uint64)
    first, second = shares(one, other)
    np.testing.assert_array_equal(first + second, modulo_product(one, other))


def test_errors_reach_less_far_than_random_numbers_are_kept_from_where_rounding_changes():
    whole, kept = math.prod(PRIMES) / 2**64, math.prod(PRIMES[: ep.KEPT]) / 2**64
    noise = 21.5 * ep.LARGEST + 2 * SIZE * 21 + 21  # of ciphertexts, and of the zero
    rounding = (1 + SIZE) / 2 * (1 + 2**-27)  # by one prime, then by another
    assert noise / whole + rounding / kept < ep._UNSURE / 4
    assert noise / whole < 2.0**-55


def test_parameters_are_within_what_the_standard_allows():
    """128 bits of security: at most 218 bits for N = 8192 with secrets of -1, 0 and 1."""
    assert SIZE == 8192
    assert math.log2(math.prod(PRIMES)) < 218
    for p in PRIMES:
        assert p % (2 * SIZE) == 1
        assert p < 2**28
        assert all(p % q for q in range(2, math.isqrt(p) + 1))
    secret = ep._ternary(KEY.words(SIZE))
    assert set(np.unique(secret)) == {-1, 0, 1}
    assert stats.chisquare(np.bincount(secret + 1)).pvalue > 1e-4
    noise = ep._binomial(KEY.words(SIZE))
    assert abs(noise).max() <= 21
    assert noise.std() == pytest.approx(math.sqrt(10.5), rel=0.05)


def test_products_are_those_of_polynomials_modulo_x_n_plus_1():
    rng = np.random.default_rng(0)
    one = np.stack([rng.integers(0, p, SIZE) for p in PRIMES]).astype(np.uint32)
    places, values = [0, 1, 4097, SIZE - 1], [3, PRIMES[-1] - 1, 12345, 2**27]
    other, expected = np.zeros_like(one), np.zeros(one.shape, object)
    for place, value in zip(places, values, strict=True):
        other[:, place] = value
        turned = np.roll(one.astype(object), place, axis=1)
        turned[:, :place] *= -1
        expected += value * turned
    product = ep._transformed(one)
    np.testing.assert_array_equal(ep._restored(product), one)
    ep._multiply_by(product, ep._transformed(other), ep._PRIMES, ep._PARTS)
    expected %= np.array(PRIMES, object)[:, None]
    np.testing.assert_array_equal(ep._restored(product).astype(object), expected)


def test_words_that_are_packed_come_back():
    rng = np.random.default_rng(0)
    residues = np.stack([rng.integers(0, p, SIZE) for p in PRIMES]).astype(np.uint32)
    residues[:, 0], residues[:, -1] = np.array(PRIMES) - 1, 0
    words = np.empty(len(PRIMES) * SIZE * 7 // 16, np.uint64)
    ep._pack(residues.ravel(), words)
    found = np.empty_like(residues)
    assert ep._unpack(words, found, ep._PRIMES)
    np.testing.assert_array_equal(found, residues)


@pytest.mark.parametrize("place", [0, -1])
def test_what_is_no_residue_is_refused(place):
    key = ep.draw_key(KEY)
    sent = ep.encrypt(key, drawn((1, 4, 3)), KEY)
    assert ep.expand(sent) is not None
    broken = sent.copy()
    broken[1, ep._SEED if place == 0 else -1] = 2**64 - 1
    assert ep.expand(broken) is None
    ((replies, _),) = ep.multiply([encrypted(drawn((4, 3)), key)], in_blocks(drawn((4, 2), 1, 20)))
    assert ep.decrypt(key, replies, 3, 2) is not None
    replies[0, place] = 2**64 - 1
    assert ep.decrypt(key, replies, 3, 2) is None


def test_those_that_are_multiplied_at_once_get_what_each_would_alone():
    key, other = ep.draw_key(KEY), in_blocks(drawn((300, 3), 1, 30))
    some = [encrypted(drawn((300, 3), at), key, at) for at in range(2)]
    some[1] = some[1]._replace(factors=some[1].factors[1:], places=np.array([1, 2]))
    for one, found in zip(some, ep.multiply(some, other), strict=True):
        ((replies, share),) = ep.multiply([one], other)
        np.testing.assert_array_equal(found[0], replies)
        np.testing.assert_array_equal(found[1], share)


def test_a_share_alone_is_uniform():
    one, other = np.ones((3, 32), np.uint64), np.ones((3, 32), np.uint64)
    for found in shares(one, other):
        for shift in (60, 0):
            counts = np.bincount((found.ravel() >> np.uint64(shift)).astype(int) & 15, minlength=16)
            assert stats.chisquare(counts).pvalue > 1e-4


# ---- what each client adds, and draws anew


def phases(key, ciphertexts):
    """Return c₀ + c₁ s of each ciphertext, (ciphertexts, primes, SIZE)."""
    found = []
    for zero, one in ciphertexts:
        product = one.copy()
        ep._multiply_by(product, key.secret, ep._PRIMES, ep._PARTS)
        found.append(ep._restored((product + zero) % ep._PRIMES[:, None].astype(np.uint32)))
    return np.array(found)


def signed(residues):
    """Return small numbers from their residues modulo the first prime."""
    found = residues.astype(np.int64)
    return np.where(found > PRIMES[0] // 2, found - PRIMES[0], found)


def test_each_ciphertext_has_noise_and_a_public_half_of_its_own_under_a_key_that_is_drawn():
    key = ep.draw_key(KEY)
    secret = signed(ep._restored(key.secret)[0])
    assert stats.chisquare(np.bincount(secret + 1, minlength=3)).pvalue > 1e-4
    sent = ep.expand(ep.encrypt(key, np.zeros((1, 2 * ROWS, 40), np.uint64), KEY))
    assert len({one.tobytes() for one in sent[:, 1]}) == len(sent) == 5
    noise = signed(phases(key, sent)[:, 0])
    assert len({one.tobytes() for one in noise}) == len(sent)
    for one in noise:
        assert abs(one).max() <= 21
        assert one.std() == pytest.approx(math.sqrt(10.5), rel=0.05)
    # fresh keys have nothing in common
    other = ep.draw_key(KEY.fold_in(1))
    assert (ep._restored(other.secret)[0] != ep._restored(key.secret)[0]).mean() > 0.5


@pytest.mark.parametrize("what", ["c₁", "c₀"])
def test_products_of_nothing_are_hidden_as_any_others_are(what):
    """Of rows of zeros c₁ is a fresh encryption of zero each time, and c₀ uniform modulo q."""
    key, zeros = ep.draw_key(KEY), np.zeros((4, 6), np.uint64)
    one = encrypted(drawn((4, 3)), key)
    ((replies, share),) = ep.multiply([one], in_blocks(zeros))
    first = ep.decrypt(key, replies, 3, 6)
    np.testing.assert_array_equal(first + share[:3], 0)
    assert len(np.unique(share)) == share.size
    whole = np.empty((3, ep.KEPT, SIZE), np.uint32)
    wanted = np.empty((3, ep.KEPT, len(ep._PLACES)), np.uint32)
    for reply, to, few in zip(replies, whole, wanted, strict=True):
        assert ep._unpack(reply[: ep._SENT_ONE], to, ep._PRIMES[: ep.KEPT])
        assert ep._unpack(reply[ep._SENT_ONE :], few, ep._PRIMES[: ep.KEPT])
    found = whole if what == "c₁" else wanted
    assert len({some.tobytes() for some in found}) == 3
    for i in range(ep.KEPT):
        spread = found[:, i].ravel() / PRIMES[i]
        assert stats.kstest(spread, "uniform").pvalue > 1e-4


def test_the_encryption_of_zero_has_noise_in_both_halves(monkeypatch):
    """Without it c₁ is a public number times a secret, which division gives."""
    taken = []
    shortened = ep._shortened

    def watched(whole, primes):
        taken.append(whole.copy())
        return shortened(whole, primes)

    monkeypatch.setattr(ep, "_shortened", watched)
    key = ep.draw_key(KEY)
    one = encrypted(drawn((4, 3)), key)
    ep.multiply([one], in_blocks(np.zeros((4, 1), np.uint64)))
    known = one.public[1, 0].astype(object)
    quotient = np.zeros((len(PRIMES), SIZE), np.uint32)
    inverse = [pow(int(value), -1, PRIMES[0]) if value else 0 for value in known]
    product = ep._transformed(taken[0])[0].astype(object) * inverse % PRIMES[0]
    quotient[0] = product.astype(np.uint32)
    assert abs(signed(ep._restored(quotient)[0])).max() > 2**20  # no secret of -1, 0 and 1
