"""A client that claims rows by pseudonyms of an earlier run: it reads their labels, which is open.

All clients see the public index sets, and pseudonyms under one key are the same in each run. So a
client may say that it has rows whose ids it does not know, with columns of its own making. It owns
these rows then like any other owner, and HyFDCA's owners of a row open its dual, whose sign is the
label. docs/explanations/privacy/keys.md says so.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from federations import BINARY, started, table
from intarsia.algorithms.hyfdca.newton import client
from intarsia.core.block import Block
from intarsia.core.schema import Schema
from intarsia.privacy.entity_matching.pseudonyms import drawn_key, pseudonyms
from intarsia.training.registry import ALGORITHMS

HYFDCA = ALGORITHMS["hyfdca"]
KEY = drawn_key()  # of both clients, for their ids


def test_a_client_reads_labels_of_rows_that_it_claims_by_pseudonyms(monkeypatch):
    x, y = table(60, 4)
    ids = pseudonyms(np.array([f"person {place}" for place in range(60)]), KEY)
    bank = Block(ids, ("a", "b", "c", "d"), x, y)
    other = pseudonyms(np.array([f"customer {place}" for place in range(20)]), KEY)
    shop = Block(other, ("e",), np.random.default_rng(1).normal(size=(20, 1)))
    # an earlier run, in which they have no row in common, and what each client is told
    seen = Schema.of({"bank": bank, "shop": shop}, BINARY).holdings["bank"].samples
    claimed = Block(seen, ("e",), np.random.default_rng(2).normal(size=(60, 1)))
    opened, gather = {}, client.gather_point.call

    def gathered(point, block, message, key):
        if block.features == claimed.features:
            opened.update(zip(block.samples.tolist(), message.alpha[0].tolist(), strict=True))
        return gather(point, block, message, key)

    fn = replace(client.gather_point, call=gathered)
    monkeypatch.setattr("intarsia.algorithms.hyfdca.newton.server.gather_point", fn)
    options = HYFDCA.hyperparameters(loss="logistic", regularisation=0.1)
    engine, server = started(HYFDCA, options, {"bank": bank, "shop": claimed})
    engine.begin_round(1)
    HYFDCA.round(server, engine, engine.key())
    told = np.array([np.sign(opened[one]) for one in ids.tolist()])
    np.testing.assert_array_equal(told, y)
