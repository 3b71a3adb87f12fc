"""A server that goes back, or deals a seed twice, makes no words hide two things.

What a client sends is its rows with the square roots of their curvatures, less the dealer's words.
Of two such under the same words the difference is that of the rows, whose curvatures all owners
know. Each attack is seen to succeed where words are not bound to what they hide.
"""

from __future__ import annotations

import numpy as np
import pytest

from intarsia import core as fl
from intarsia.algorithms.hyfdca.newton import shares as newton_shares
from intarsia.algorithms.hyfdca.newton.shares import Factors, Mask, mask_rows, multiply_rows
from intarsia.core.client_functions import SecretKey
from intarsia.maths.linear.word_products import BITS, ROOM, joined_words
from tests.attacks.test_shared_system import left, trained

SEED, KEY = bytes(range(32)), SecretKey(bytes(32))


@pytest.fixture(params=["bound", "not bound"])
def works(request, monkeypatch):
    """Let words be bound to what they hide, or not; return whether attacks work."""
    if request.param != "bound":
        monkeypatch.setattr(newton_shares, "_nonce", lambda key, *hidden: bytes(16))
    return request.param != "bound"


@pytest.fixture(scope="module")
def sharing():
    x, engine, _, server = trained(rounds=2)
    (point, _) = engine.of("multiply", "bank")[-1]
    point = getattr(point, "point", point)
    return x, engine, server, point


def bounds(scale):
    """Return the total that gives a Hessian this scale, where samples have two owners."""
    return np.array([[1.0, scale * 2**ROOM / 2]])


def sent(engine, point, scale):
    """Return the words that a client sends, (samples, features), and what their rows weigh."""
    mask = Mask(SEED, bounds(scale))
    _, reply = mask_rows.call(point, engine.block("bank"), mask, KEY)
    field = next(one for one in newton_shares.TURNS if getattr(reply, one) is not None)
    words = getattr(reply, field).reshape(len(point.selected), -1)
    return words, np.sqrt(point.curvature[0] / (point.samples * scale)), reply


def goes_back(point):
    """Return the state of a round that is begun again, from other duals."""
    factors = np.random.default_rng(1).uniform(0.3, 0.9, point.curvature.shape)
    return fl.evolve(point, curvature=point.curvature * factors)


@pytest.mark.parametrize("other", ["curvatures", "scale"])
def test_the_difference_of_what_is_sent_twice_tells_no_row(works, sharing, other):
    x, engine, _, point = sharing
    first, one, _ = sent(engine, point, 1.0)
    again = goes_back(point) if other == "curvatures" else point
    second, two, _ = sent(engine, again, 1.0 if other == "curvatures" else 4.0)
    difference = (first - second).view(np.int64) * 2.0**-BITS / (one - two)[:, None]
    theirs = engine.schema("train").features.own("bank")
    error = left(difference, x[point.selected][:, theirs])
    assert error.max() < 1e-4 if works else np.median(error) > 0.9


def test_the_same_rows_have_the_same_words_so_that_a_step_can_be_done_again(sharing):
    _, engine, _, point = sharing
    np.testing.assert_array_equal(sent(engine, point, 1.0)[0], sent(engine, point, 1.0)[0])


def test_nonces_follow_from_secrets_and_from_what_they_hide(sharing):
    _, engine, _, point = sharing
    cells, number = point.overlap.all_cells, point.overlap.number
    mask, block = Mask(SEED, bounds(1.0)), engine.block("bank")
    found = set()
    for state, key in (
        (point, KEY),
        (goes_back(point), KEY),
        (point, SecretKey(bytes(range(32)))),
        (fl.evolve(point, measured=point.measured + 1), KEY),  # another basis
    ):
        _, reply = mask_rows.call(state, block, mask, key)
        nonces = reply.announced[cells:].reshape(-1, 4)
        assert not np.delete(nonces, number, axis=0).any()
        found.add(tuple(nonces[number]))
    assert len(found) == 4


def test_the_client_that_opens_the_system_cannot_subtract_two_attempts(works, sharing):
    _, engine, _, point = sharing
    found = []
    for state in (point, goes_back(point)):
        message = Factors(99, np.array([[2.0**10, 64 * 2**ROOM / 2]]), SEED, {})
        _, reply = multiply_rows.call(state, engine.block("bank"), message, KEY)
        found.append(joined_words(reply.system))
    own = np.flatnonzero(found[0])[: -2 if not works else None]
    difference = abs((found[0] - found[1])[own].view(np.int64).astype(float))
    # what is subtracted is within its room; random words are as large as words are
    assert (difference < 2.0**62).all() if works else np.median(difference) > 2.0**61


def test_words_over_a_pair_s_product_are_others_where_either_nonce_is(works, monkeypatch):
    """The later of two gets UᵀV plus words: of two products under the same words it has U."""
    _, engine, _, server = trained(rounds=1)
    found, deal = [], newton_shares._deal_products

    def watched(dealer, seeds, counts, *given):
        found.append(deal(dealer, seeds, 0 * counts, *given)[0]["bank", "shop"])  # no products
        return deal(dealer, seeds, counts, *given)

    monkeypatch.setattr(newton_shares, "_deal_products", watched)
    states = engine.get_states()
    for change in (False, True):  # the same round, begun again
        engine.set_states({n: goes_back(one) if change else one for n, one in states.items()})
        engine.begin_round(2)
        phase = server.phase
        given = engine, phase.dealer, phase.bounds, 1, engine.key(), newton_shares.share_by_dealer
        newton_shares.solve_shared(*given, smoothed=False)
    assert (found[0] == found[1]).all() if works else (found[0] != found[1]).all()
