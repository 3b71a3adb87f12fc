"""A server that says that clients dropped out between the exchanges of a step of Newton's method.

Each client masks its rows, and multiplies those of its co-owners by words that the server dealt.
Only the sum of all such shares tells no row. With partial participation the server chooses whom it
asks: it had all mask their rows, and asked one alone to multiply. That one's share is known words
times the others' rows, in their basis.
"""

from __future__ import annotations

import dataclasses

import pytest

from departures import Departing
from federations import block, rectangles, table
from intarsia.engines import codec
from intarsia.engines.remote.wire import Answer, Call
from intarsia.training.registry import algorithm_named

VICTIM = "r0c0"


class Left(Departing):
    """Asks the victim first as if a client alone, or some, were left."""

    def __init__(self, left, **more):
        self.left, self.told, self.sentences = left, [], []
        algorithm = algorithm_named("hyfdca")
        options = algorithm.hyperparameters(loss="logistic", regularisation=0.1)
        super().__init__(algorithm, options, VICTIM, **more)
        site = self.made.lines.sites[VICTIM]
        site._report = lambda error: self.sentences.append(str(error))

    def _line(self, client, number, data, deliver):
        call = codec.decode(data, Call) if data and client == VICTIM else None
        if call is not None and call.function == "hyfdca.multiply_rows" and not self.told:
            alone = dataclasses.replace(call, asked=self.left)
            self.told.append(codec.decode(deliver(codec.encode(alone)), Answer).error)
        return super()._line(client, number, data, deliver)


@pytest.mark.parametrize("left", [(VICTIM,), (VICTIM, "r0c1"), (VICTIM, "r1c0", "r1c1")])
@pytest.mark.parametrize("complete", [True, False])
def test_no_client_multiplies_rows_of_others_than_those_who_are_asked(left, complete):
    server = Left(left, complete=complete)
    server.rounds()  # goes on as it is
    assert server.told == ["RefusedError"]
    (said,) = server.sentences
    assert ("together" if complete else "is asked without") in said


@pytest.mark.parametrize("complete", [True, False])
def test_a_client_that_shares_no_row_multiplies_none_and_the_others_go_on(complete):
    algorithm = algorithm_named("hyfdca")
    options = algorithm.hyperparameters(loss="logistic", regularisation=0.1)
    x, y = table(50, 6)
    blocks = rectangles(x[:40], y[:40], 2, 2, shared_rows=4, shared_columns=1)
    blocks["apart"] = block(x, y, range(40, 50), range(6))
    server = Departing(algorithm, options, VICTIM, blocks=blocks, complete=complete)
    server.rounds()
    (masked,), (multiplied,) = (
        {call.asked for call in server.of(f"hyfdca.{name}")}
        for name in ("mask_rows", "multiply_rows")
    )
    assert {*multiplied} - {*masked} == {"apart"}
