"""A site that lost its run's folder, or was put back to an older one, hides no two values alike.

Under masks a piece is a value plus a stream of the key. Whoever has two pieces under one stream has
their difference. The server names the session and the exchange, so that it can ask for the same
ones again from a site that does not remember.
"""

from __future__ import annotations

import numpy as np
import pytest

import sites
from federations import BINARY, rectangles, table
from intarsia.engines import codec
from intarsia.engines.communication_log import RECORDS
from intarsia.engines.remote.wire import Answer, Call, SealedReply
from intarsia.privacy.secure_aggregation import masking
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.settings import Privacy
from intarsia.training.registry import ALGORITHMS

FEDAVG = ALGORITHMS["fedavg"]
OPTIONS = FEDAVG.hyperparameters(loss="logistic", regularisation=0.1)
KEYS = modes.keys(Privacy(mode="masked"), ("a",), None, "test")
VICTIM = "r0c0"


@pytest.fixture(params=["drawn", "the same for all"])
def works(request, monkeypatch):
    """Let sites draw their nonces, or have one that is known; return whether attacks work."""
    if request.param == "drawn":
        return False
    monkeypatch.setattr(masking.os, "urandom", bytes)
    return True


def heard(trust):
    """Return a federation, and the calls of the victim with the shelf before each."""
    x, y = table(40, 6)
    blocks = rectangles(x, y, 2, 2, shared_rows=2, shared_columns=1)
    calls = []

    def shelf():
        return made.shelves[VICTIM].setdefault(made.caller.run, sites.Memory())

    def line(client, number, data, deliver):
        before = dict(shelf().files)
        answer = deliver(data)
        if client == VICTIM and data:
            calls.append((data, before, answer))
        return answer

    made = sites.federation(
        *(FEDAVG, OPTIONS, blocks, BINARY),
        sealing=lambda: sealing_of(blocks, trust),
        fault=line,
    )
    server = sites.begun(made, FEDAVG, OPTIONS)
    made.engine.begin_round(1)
    FEDAVG.round(server, made.engine, made.engine.key())
    return made, calls


def sealing_of(clients, trust):
    return modes.sealing(Privacy(mode="masked", trust=trust), list(clients), KEYS)


def words(answer):
    """Return the words of the pieces of a sealed reply."""
    found = codec.decode(answer, Answer)
    assert found.error == ""
    reply = codec.decode(found.body, SealedReply, *RECORDS)
    (weights,) = reply.fields.values()
    return np.concatenate(
        [np.frombuffer(one.content, np.uint64, offset=8) for one in weights.value.cells[0]]
    )


@pytest.mark.parametrize("trust", ["pairs", "clients"])
@pytest.mark.parametrize("lost", ["rolled back", "gone"])
def test_a_site_without_its_state_seals_under_another_stream(works, lost, trust):
    made, calls = heard(trust)
    kinds = [codec.decode(data, Call).function for data, *_ in calls]
    at = kinds.index("fedavg.local_descent" if lost == "rolled back" else "fedavg.send_zeros")
    data, before, answer = calls[at]
    first = words(answer)
    shelf = made.shelves[VICTIM][made.caller.run]
    shelf.files = dict(before)
    if lost == "gone":  # and the server begins the same run anew
        shelf.files = {}
        site = made.site(VICTIM)
        for earlier, *_ in calls[:at]:
            assert codec.decode(site.handle(earlier), Answer).error == ""
    else:
        site = made.site(VICTIM)
    second = words(site.handle(data))
    # what is hidden is the same, so that the difference of the words is that of the streams
    assert (first == second).all() if works else (first != second).all()


def test_what_a_site_sealed_before_it_lost_its_state_opens_as_what_it_seals_after(works):
    """Others need nothing but the piece: a run goes on."""
    made, calls = heard("clients")
    kinds = [codec.decode(data, Call).function for data, *_ in calls]
    data, before, _ = calls[kinds.index("fedavg.local_descent")]
    found = []
    for _ in range(2):
        made.shelves[VICTIM][made.caller.run].files = dict(before)
        answer = codec.decode(made.site(VICTIM).handle(data), Answer)
        record = codec.decode(answer.body, SealedReply, *RECORDS).fields["w"]
        sealing = sealing_of(made.desks, "clients")
        totals = made.engine._locked.__class__(made.engine._locked._geometry, sealing)
        total = totals.restored(record.value)
        cells = sorted(total.terms[0][1].pieces)
        found.append([totals.opened("r1c1", total, cell)[0] for cell in cells])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
