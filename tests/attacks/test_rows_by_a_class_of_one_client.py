"""A client of `hyfem` that alone has a class, and a client that has a list of rows: open.

The output weights of a class are averaged over the clients that have it (`unseen_rows = "kept"`,
the default). All clients open them in each round, so that of a class at one client they have that
client's own. All of its training but the rows comes of the seed: sets of rows are tried until one
comes to these weights. Sums are sealed, and each block is held by three clients: neither helps.
With `unseen_rows = "averaged"` the total is of all clients.
docs/explanations/privacy/few-rows.md says so.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")

from intarsia.algorithms.hyfem import algorithm as hyfem
from intarsia.algorithms.hyfem import client as at_client
from intarsia.algorithms.hyfem import network as nets
from intarsia.core.block import Block
from tests.algorithms.hyfem.test_hyfem import started
from tests.attacks.test_rows_among_candidates import CANDIDATES, COLUMNS, ROWS, nearest

RARE = 2
NAMES = tuple(f"u{place}" for place in range(COLUMNS))


def of_class(rest, made_of):
    """Return the output weights and the bias of the rare class."""
    sizes = (*made_of.hidden, made_of.outputs)
    biases, weights = nets.split_rest(np.array(rest, float), sizes)
    return np.append(weights[-1][RARE], biases[-1][RARE])


def opened(x, y, mine, monkeypatch, **given):
    """Return how another client sees the class move, and what the seed tells of the training."""
    blocks = {"few": Block(np.arange(ROWS), NAMES, x[mine], y[mine], {"u": NAMES})}
    for number in (1, 2):  # neither has the class
        own = np.random.default_rng(number).normal(size=(30, COLUMNS))
        labels = np.arange(30) % 2 + 0.0
        blocks[f"o{number}"] = Block(100 * number + np.arange(30), NAMES, own, labels, {"u": NAMES})
    calls, honest = [], at_client.local_training

    def together(asked):
        calls.extend(asked)
        return honest.together(asked)

    watched = replace(honest, together=together, call=lambda *call: together([call])[0])
    monkeypatch.setattr(at_client, "local_training", watched)
    options = hyfem.HYFEM.hyperparameters(**given)
    engine, server = started(options, blocks, "masked")
    for number in (1, 2):
        engine.begin_round(number)
        server, _ = hyfem.HYFEM.round(server, engine, engine.key())
    first = next(call for call in calls if len(call[1].samples) == ROWS)
    others = [call for call in calls if call[0].name == "o1"]
    before, after = (of_class(call[2].rest, server.made_of) for call in others)
    return after - before, first, honest, server.made_of


@pytest.mark.parametrize("rows", ["kept", "averaged"])
def test_rows_are_found_where_one_client_alone_has_a_class(monkeypatch, rows):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(CANDIDATES, COLUMNS)), rng.integers(0, 2, CANDIDATES) + 0.0
    y[:8] = RARE
    mine = np.append(rng.choice(8, 1), 8 + rng.choice(CANDIDATES - 8, ROWS - 1, replace=False))
    moved, (client, block, *more), honest, made_of = opened(
        *(x, y, mine, monkeypatch), unseen_rows=rows
    )

    def off(sets):
        tried = [replace(block, x=x[some], y=y[some]) for some in sets]
        found = honest.together([(client, one, *more) for one in tried])
        return [np.abs(of_class(change.rest, made_of) - moved).mean() for _, change in found]

    (right,) = off([mine])
    assert (right < 1e-5 * np.abs(moved).mean()) == (rows == "kept")
    starts = 8 if rows == "kept" else 1
    found, _ = nearest(off, rng, starts=starts, among=lambda some: RARE in y[some])
    assert (set(found) == set(mine.tolist())) == (rows == "kept")
