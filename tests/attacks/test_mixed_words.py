"""A server that deals words for Newton's system and reads what they hide.

Two owners of samples compute shares of X_Aᵀ X_B from G_A = X_A - U_A, G_B = X_B - U_B and words
that the server dealt. In the sum of both shares the words cancel. The share of the second alone is
G_Aᵀ U_B: of words that the server knows, times rows, so that each call gives as many equations of
each of the other's columns as the second has columns, and a few calls give the rows in the secret
basis. So it is where the two shares come of words that were not dealt together: of two masks, or of
a state that a site went back to.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from departures import Departing, unguarded
from federations import block, table
from intarsia.algorithms.hyfdca.newton import shares as newton_shares
from intarsia.engines import codec
from intarsia.engines.communication_log import RECORDS
from intarsia.engines.remote import wire
from intarsia.engines.sums.plain import EVERYONE
from intarsia.maths.linear.word_products import joined_words, multiply_words
from intarsia.training.registry import ALGORITHMS

HYFDCA = ALGORITHMS["hyfdca"]
OPTIONS = HYFDCA.hyperparameters(loss="logistic", regularisation=0.1)
FIRST, VICTIM = "bank", "shop"  # the victim of the call is whose share tells the bank's rows
ROWS = 12


def departing(**more):
    x, y = table(ROWS, 5)
    parts = {
        FIRST: block(x, y, range(ROWS), range(2)),
        VICTIM: block(x, y, range(ROWS), range(2, 5), labels=False),
    }
    return Departing(HYFDCA, OPTIONS, VICTIM, blocks=parts, **more)


def sharing(made, function="multiply_rows"):
    """Run a round; stop where the function is to be called, with rows masked."""
    real = made.made.engine.sum

    def stop(fn, messages):
        if fn.name == function:
            raise StopIteration
        return real(fn, messages)

    made.made.engine.sum = stop
    with pytest.raises(StopIteration):
        made.rounds(1)
    return made


def asked_for_a_share(made, **changes):
    """Ask the victim for its share of the system; return the answer, and the message."""
    call = made.of("hyfdca.mask_rows")[-1]
    states = made.made.states()
    own, other = states[VICTIM].point.overlap, states[FIRST].point.overlap
    assert (other.turn, own.turn) == (0, 1)
    sealed = made.sealed("hyfdca.mask_rows", FIRST)
    outputs = 1
    words = np.zeros((outputs, len(other.features), len(own.features)), np.uint64)
    message = newton_shares.Factors(
        *(0, made.message(call).bounds, None, {FIRST: words}),
        first=sealed.fields["first"],
    )
    return made.ask(call, function="hyfdca.multiply_rows", body=codec.encode(message), **changes)


@pytest.mark.parametrize("case", ["all take part", "not held against anything"])
def test_a_share_of_one_client_alone_is_not_sent(case, monkeypatch):
    works = case != "all take part"
    if works:
        unguarded(monkeypatch)
    made = sharing(departing(complete=not works))
    states = made.made.states()
    answer = asked_for_a_share(made, asked=(VICTIM,))
    if not works:
        assert answer.error == "RefusedError"
        return
    assert answer.error == ""
    made.made.caller.sequence += 1
    made.made.caller.versions[VICTIM] = made.made.caller.sequence
    record = codec.decode(answer.body, wire.SealedReply, *RECORDS).fields["system"].value
    opened = codec.decode(made.open(record, (EVERYONE,)).body, wire.Opened)
    found = joined_words(opened.values[0])
    bank, shop = states[FIRST], states[VICTIM]
    shape = ROWS, 2
    masked = (bank.own - bank.drawn).reshape(shape)
    share = multiply_words(masked, shop.drawn.reshape(ROWS, 3))  # (2, 3) G_Aᵀ U_B
    # the server knows U_A and U_B: what is left is known words times the bank's rows
    assert np.isin(share.ravel(), found).all()
    rest = share + multiply_words(bank.drawn.reshape(shape), shop.drawn.reshape(ROWS, 3))
    np.testing.assert_array_equal(
        rest, multiply_words(bank.own.reshape(shape), shop.drawn.reshape(ROWS, 3))
    )


def test_rows_are_masked_once_in_a_step():
    made = sharing(departing())
    call = made.of("hyfdca.mask_rows")[-1]
    other = dataclasses.replace(made.message(call), seed=b"\1" * 32)
    answer = made.ask(call, body=codec.encode(other))
    assert answer.error == "RefusedError"


@pytest.mark.parametrize("complete", [True, False])
def test_a_site_goes_back_to_where_its_round_began_and_nowhere_else(complete):
    made = sharing(departing(complete=complete))
    call, caller = made.of("hyfdca.mask_rows")[-1], made.made.caller
    began, now = call.anchor, caller.versions[VICTIM]
    site = made.made.lines.sites[VICTIM]

    def ask(base, anchor, call=call):
        changed = dataclasses.replace(call, sequence=caller.sequence + 1, base=base, anchor=anchor)
        return codec.decode(site.handle(codec.encode(changed)), wire.Answer).error

    assert began < call.base < now
    assert ask(call.base, call.base) == "StaleError"  # before the last call, in the round
    assert ask(now, call.base) == "StaleError"  # to be able to go back there next time
    first = next(c for name, c, _ in made.calls if name == VICTIM and c.base == began)
    refused = ask(began, began, first) in ("StaleError", "RefusedError")
    assert refused is complete  # where all take part a round does not begin again


def test_masked_rows_of_an_earlier_exchange_are_not_multiplied():
    made = sharing(departing())
    old = made.sealed("hyfdca.mask_rows", FIRST)
    call = made.of("hyfdca.mask_rows")[-1]
    summed = {one.sequence for one in made.made.lines.sites[VICTIM]._run._sums.known["mask_rows"]}
    assert summed == {call.sequence}
    record = dataclasses.replace(
        old.fields["first"].value,
        names=((made.made.caller.run, call.sequence - 1, "mask_rows", "first"),),
    )
    message = newton_shares.Factors(
        *(0, made.message(call).bounds, None, {FIRST: np.zeros((1, 2, 3), np.uint64)}),
        first=dataclasses.replace(old.fields["first"], value=record),
    )
    answer = made.ask(call, function="hyfdca.multiply_rows", body=codec.encode(message))
    assert answer.error == "RefusedError"
