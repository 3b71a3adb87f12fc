"""Newton's system with nobody to deal words: what colluders have of two honest clients.

The server and all other clients pool what they have. Where the server deals, that is the words that
hide rows, and the rows. Where products are found under encryption, it is ciphertexts under keys of
the two. And each of the two has the other's ciphertexts, and the noise in what it decrypts.

Each attack is seen to succeed where the protection is taken out.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from federations import BINARY, block, table
from intarsia import core as fl
from intarsia.algorithms.hyfdca.algorithm import HYFDCA
from intarsia.algorithms.hyfdca.newton import shares as newton_shares
from intarsia.algorithms.hyfdca.newton.encrypted import Encrypt, encrypt_rows
from intarsia.core.client_functions import SecretKey
from intarsia.core.schema import Schema
from intarsia.maths import encrypted_products as ep
from intarsia.maths.encrypted_products import KEPT, PRIMES, ROWS, SIZE
from intarsia.maths.linear.word_products import ROOM
from intarsia.privacy.keys.shared_key import SharedKey
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.settings import Privacy
from tests.attacks.test_shared_system import Watched, left
from tests.maths.test_encrypted_products import KEY, drawn, encrypted, in_blocks

OPTIONS = HYFDCA.hyperparameters(loss="logistic", regularisation=1e-2, method="newton")
SAMPLES = 300
FEATURES = {"bank": range(6), "shop": range(6, 12), "travel": range(12, 16)}


# ---- the server and a co-owner, with what they have of a run


def trained(system):
    """Return the rows, and the engine of a round of three clients with the same samples."""
    x, y = table(SAMPLES, 16)
    blocks = {
        name: block(x, y, range(SAMPLES), own, labels=name == "bank")
        for name, own in FEATURES.items()
    }
    schema = Schema.of(blocks, BINARY)
    keys = modes.in_one_process(SharedKey(bytes(range(32)), "test"), b"")
    sealing = modes.sealing(Privacy(mode="masked"), list(blocks), keys)
    engine = Watched({"train": (schema, blocks)}, 7, sealing)
    engine.count_once()
    options = replace(OPTIONS, system=system)
    engine.begin(HYFDCA, options)
    key = engine.key("init")
    server = HYFDCA.setup(HYFDCA.init_server(options, schema, key), engine, key)
    engine.begin_round(1)
    server, _ = HYFDCA.round(server, engine, engine.key())
    return x, engine, server


def words_of_the_server(engine, server):
    """Return the words that the server dealt to a client in its last step, as it can make them."""
    secret = SecretKey(server.dealer.secret).fold_in(*engine.key().words)
    seed = secret.fold_in("rows", "bank").to_file()
    ((state, message),) = engine.of("mask_rows", "bank")
    assert message.seed == seed  # the server sent it
    # the nonce is announced to the server
    nonce = engine.of("multiply_rows", "bank")[0][0].nonce
    (cell,) = state.overlap.cells
    return newton_shares._row_words(
        *(newton_shares._bound(seed, nonce), int(cell), 1, len(state.selected), state.overlap)
    )


def test_the_server_and_a_co_owner_have_rows_where_the_server_deals_and_none_under_encryption():
    for system in ("shares", "encrypted"):
        x, engine, server = trained(system)
        theirs = engine.schema("train").features.own("bank")
        if system == "shares":
            state, message = engine.of("multiply_rows", "shop")[0]
            found = getattr(message, newton_shares.TURNS[0]).reshape(len(state.point.selected), -1)
            found = (found + words_of_the_server(engine, server)[0]).view(np.int64).astype(float)
        else:
            # all that was opened to the other two, word by word: none is a combination of rows
            opened = [
                getattr(message, field)
                for name in ("multiply_encrypted", "share_products")
                for client in ("shop", "travel")
                for _, message in engine.of(name, client)
                for field in newton_shares.TURNS
            ]
            state = engine.of("multiply_encrypted", "shop")[0][0]
            words = np.concatenate([one.ravel() for one in opened if one is not None])
            found = words[: 60 * SAMPLES].reshape(SAMPLES, 60).view(np.int64).astype(float)
        weights = np.sqrt(state.point.curvature[0])
        error = left(found / weights[:, None], x[state.point.selected][:, theirs])
        assert error.max() < 1e-4 if system == "shares" else np.median(error) > 0.9


def test_the_server_cannot_go_back_to_words_of_its_own():
    """A run under encryption does not declare what clients do where the server deals."""
    encrypting = {one.function.name for one in HYFDCA.disclosure.needed(_with("encrypted"))}
    dealing = {one.function.name for one in HYFDCA.disclosure.needed(_with("shares"))}
    assert encrypting & {"mask_rows", "multiply_rows"} == set()
    assert dealing & {"encrypt_rows", "multiply_encrypted", "share_products"} == set()
    assert {"encrypt_rows", "multiply_encrypted", "share_products"} <= encrypting


def _with(system):
    return replace(OPTIONS, system=system)


# ---- what others have of who encrypts


@pytest.mark.parametrize("shift", [24, 0])
def test_ciphertexts_of_swapped_rows_look_alike(shift):
    """Under fresh keys: c₀ is uniform, whatever the rows, and so is what is sent back."""
    seen = []
    for rows in (np.ones((ROWS, 2), np.uint64), drawn((ROWS, 2), 3)):
        residues = []
        for number in range(4):
            key = ep.draw_key(KEY.fold_in(number, int(rows[0, 0] == 1)))
            one = encrypted(rows, key, number)
            residues.append(one.factors[0, 0, 0, 0])
            ((replies, _),) = ep.multiply([one], in_blocks(rows % np.uint64(2**30)))
            whole = np.empty((KEPT, SIZE), np.uint32)
            assert ep._unpack(replies[0, : ep._SENT_ONE], whole, ep._PRIMES[:KEPT])
            residues.append(whole[0])
        digits = (np.concatenate(residues) >> np.uint32(shift)) & np.uint32(15)
        counts = np.bincount(digits, minlength=16)
        assert stats.chisquare(counts).pvalue > 1e-4
        seen.append(counts)
    assert stats.chi2_contingency(seen).pvalue > 1e-4


@pytest.mark.parametrize("bound", [True, False], ids=["bound", "not bound"])
def test_a_round_begun_again_encrypts_other_rows_by_other_noise(bound, monkeypatch):
    """The difference of two ciphertexts under one key and noise is that of the rows, in the clear.

    A site may be brought back to where a round began, with other curvatures.
    """
    if not bound:
        monkeypatch.setattr(
            "intarsia.algorithms.hyfdca.newton.encrypted.digest_of", lambda *hidden: ""
        )
    _, engine, _ = trained("encrypted")
    state = engine.get_states()["bank"]
    point = getattr(state, "point", state)
    message = Encrypt(np.array([[1.0, 2**ROOM / 3]]))
    sent = []
    for factor in (1.0, 0.25):
        again = fl.evolve(point, curvature=point.curvature * factor)
        found, reply = encrypt_rows.call(again, engine.block("bank"), message, KEY)
        columns = next(one for one in vars(reply).values() if one is not None and one.ndim == 2)
        sent.append((found.own.reshape(len(point.selected), -1), ep.expand(columns[1:].T)))
    (one, first), (other, second) = sent
    same = (first[:, 1] == second[:, 1]).all()
    assert same == (not bound)
    primes = ep._PRIMES[:, None].astype(np.uint32)
    differences = (first[1, 0].astype(np.int64) - second[1, 0]) % primes
    plain = ep._restored(differences.astype(np.uint32))
    words, _ = ep._decode(plain, ep._PRIMES, ep._ALL_INVERSES)
    count = one.shape[1]
    found = words[: ROWS * count].reshape(count, ROWS).T
    truth = (one - other)[:ROWS]
    assert (found == truth).all() == (not bound)


# ---- what who encrypts has of who multiplies


def test_the_multiplier_cannot_be_divided_out_of_the_ciphertext(monkeypatch):
    """c₁ is known numbers times the other's rows, but for an encryption of zero."""
    key, other = ep.draw_key(KEY), drawn((ROWS, 2), 1, 30)
    one = encrypted(drawn((ROWS, 3)), key)

    def guessed():
        ((replies, _),) = ep.multiply([one], in_blocks(other))
        whole = np.zeros((len(PRIMES), SIZE), np.uint32)
        assert ep._unpack(replies[0, : ep._SENT_ONE], whole[:KEPT], ep._PRIMES[:KEPT])
        known = one.factors[0, 0, 1]
        inverse = np.stack(
            [
                np.array([pow(int(v), -1, p) if v else 0 for v in row], np.uint32)
                for row, p in zip(known[:KEPT], PRIMES[:KEPT], strict=True)
            ]
        )
        quotient = ep._transformed(whole)[:KEPT]
        quotient = (quotient.astype(np.uint64) * inverse) % ep._PRIMES[:KEPT, None]
        padded = np.zeros((len(PRIMES), SIZE), np.uint32)
        padded[:KEPT] = quotient
        p = PRIMES[0]
        found = ep._restored(padded)[0].astype(np.int64)
        return np.where(found > p // 2, found - p, found)

    truth = other.view(np.int64)[::-1, 0] % PRIMES[0]
    assert (guessed()[:ROWS] % PRIMES[0] != truth).mean() > 0.99
    monkeypatch.setattr(ep, "_ternary", lambda words: np.zeros(len(words), np.int64))
    monkeypatch.setattr(ep, "_binomial", lambda words: np.zeros(len(words), np.int64))
    monkeypatch.setattr(ep, "_shortened", lambda whole, primes: whole[:KEPT])
    assert (guessed()[:ROWS] % PRIMES[0] == truth).all()


def noise_of(key, one, other, monkeypatch):
    """Return the noise that who has the key finds where it decrypts, in units of q / 2^64.

    Before it is rounded to fewer primes: then little is left of it anyway.
    """
    taken = []

    def watched(whole, primes):
        taken.append(whole.copy())
        return shortened(whole, primes)

    shortened = ep._shortened
    with monkeypatch.context() as patch:
        patch.setattr(ep, "_shortened", watched)
        ep.multiply([one], in_blocks(other))
    found = []
    for whole, wanted in zip(taken[::2], taken[1::2], strict=True):
        product = ep._transformed(whole)
        ep._multiply_by(product, key.secret, ep._PRIMES, ep._PARTS)
        summed = wanted + ep._restored(product)[:, ep._PLACES]
        summed %= ep._PRIMES[:, None].astype(np.uint32)
        found.append(_fractions(summed))
    return np.concatenate(found)


def _fractions(numbers):
    """Return how far numbers are from round ones, in units of q / 2^64, exactly."""
    q, found = 1, []
    for p in PRIMES:
        q *= p
    for column in numbers.T:
        value = sum(
            int(x) * (q // p) * pow(q // p, -1, p) for x, p in zip(column, PRIMES, strict=True)
        )
        rest = value * 2**64 % q
        found.append((rest if rest <= q // 2 else rest - q) / q)
    return np.array(found)


@pytest.mark.parametrize("hidden", [True, False], ids=["hidden", "words alone"])
def test_the_noise_that_is_decrypted_does_not_tell_the_multiplier(hidden, monkeypatch):
    """Who has the key made the noise of its ciphertexts: times the right rows, it is what it reads.

    Two candidates for the other's rows, of which one is right.
    """
    key = ep.draw_key(KEY)
    rows, number = drawn((ROWS, 32)), 5
    one = encrypted(rows, key, number)
    if not hidden:  # a random word at each place, and no more
        draw = ep._draw_hiding

        def bare(random):
            _, share = draw(random)
            found = np.zeros((len(PRIMES), len(share)), np.uint32)
            ep._add_scaled(found, np.uint64(0) - share, ep._REST, ep._SCALES, ep._PRIMES)
            return found, share

        monkeypatch.setattr(ep, "_draw_hiding", bare)
    candidates = [drawn((ROWS, 2), seed, 31) for seed in (1, 2)]
    read = noise_of(key, one, candidates[0], monkeypatch)
    # the noise of the one ciphertext, as its sender knows it: c₀ + c₁ s less the words
    phase = ep._transformed(np.zeros((len(PRIMES), SIZE), np.uint32))
    phase[:] = one.factors[0, 0, 1]
    ep._multiply_by(phase, key.secret, ep._PRIMES, ep._PARTS)
    phase = (phase + one.factors[0, 0, 0]) % ep._PRIMES[:, None].astype(np.uint32)
    own = _fractions(ep._restored(phase))
    # coefficients of its product with the other's polynomial, modulo X^N + 1
    places = np.arange(2)[:, None] * (SIZE // 2) + ROWS - 1 - np.arange(ROWS)
    back = ep._PLACES[:, None, None] - places
    turned = np.where(back < 0, -1, 1) * own[back % SIZE]  # (places, columns, rows)
    fits = []
    for other in candidates:
        expected = np.einsum("pcr,rc->p", turned, other.view(np.int64).astype(float))
        fits.append(abs(np.corrcoef(read, expected)[0, 1]))
    if hidden:
        assert max(fits) < 0.5
        # uniform over all that rounds to one word
        assert stats.kstest(read, "uniform", args=(-0.5, 1.0)).pvalue > 1e-4
    else:
        assert fits[0] > 0.99 > 0.5 > fits[1]
