"""A server that reads how many rows of an overlap group have curvature: of one row, whether it has.

The server deals words for the rows of Newton's system that have curvature, group by group. With the
hinge these are rows near the margin. So of a group of one row it was told in each step on which
side of a bound the row's score lies, and it chooses the smoothing, which sets the bound. Groups of
fewer than five rows are counted whole now.
"""

from __future__ import annotations

import numpy as np
import pytest

from federations import BINARY, block, table
from intarsia.algorithms.hyfdca.newton import client, direction, shares
from intarsia.core.schema import Schema
from intarsia.engines.simulation import Simulation
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.settings import Privacy
from intarsia.testing.toy_federations import initialise, secrets_of
from intarsia.training.registry import ALGORITHMS

HYFDCA = ALGORITHMS["hyfdca"]
NAMES, ROWS, ROUNDS = ["a", "b", "c", "d"], 100, 6
# the owners of one row each, beside the first client, which has all labels
FEW = {3: "b", 4: "c", 5: "d", 6: "bc", 7: "bd", 8: "cd"}


def trained(**settings):
    """Train with the hinge under masks; return the numbers of the groups of one row."""
    x, y = table(ROWS, 8, seed=1)
    blocks = {
        name: block(x, y, rows, [2 * k, 2 * k + 1], labels=name == "a")
        for k, name in enumerate(NAMES)
        for rows in [[row for row in range(ROWS) if name in "a" + FEW.get(row, "bcd")]]
    }
    schema = Schema.of(blocks, BINARY)
    keys = modes.keys(Privacy(mode="masked"), NAMES, None, "test")
    sealing = modes.sealing(Privacy(mode="masked"), NAMES, keys)
    engine = Simulation({"train": (schema, blocks)}, 0, sealing, secrets=secrets_of(blocks))
    options = HYFDCA.hyperparameters(loss="hinge", regularisation=0.01, **settings)
    server = initialise(HYFDCA, options, engine)
    for number in range(1, ROUNDS + 1):
        engine.begin_round(number)
        server, _ = HYFDCA.round(server, engine, engine.key())
    sizes = np.array([cell.stop - cell.start for cell in schema.samples.cells])
    assert (sizes == 1).sum() == len(FEW)
    return np.flatnonzero(sizes == 1)


@pytest.mark.parametrize("works", [False, True])
def test_a_server_is_not_told_which_rows_of_small_groups_have_curvature(works, monkeypatch):
    if works:
        monkeypatch.setattr(client, "_FEW", 0)
    read, curved = [], []
    deal, weigh = shares._deal_products, shares.weights_of_rows

    def dealt(dealer, bound, counts, *given):
        read.append(counts.copy())
        return deal(dealer, bound, counts, *given)

    def weighed(point):
        found = weigh(point)
        if len(point.overlap.cells) == len(FEW) + 1:  # the client that has all rows
            curved.append(dict.fromkeys(range(len(point.overlap.cells)), 0))
            for _, cell, start, stop in shares.cells_of(point):
                curved[-1][cell] = int((found[:, start:stop] > 0).any(axis=0).sum())
        return found

    monkeypatch.setattr(shares, "_deal_products", dealt)
    monkeypatch.setattr(shares, "weights_of_rows", weighed)
    small = trained()
    steps = np.array(read)[:, small]
    true = np.array([[one[cell] for cell in small] for one in curved[:: len(curved) // len(read)]])
    assert len(read) >= ROUNDS
    assert 0 < true.sum() < true.size  # rows are near the margin in some steps
    if works:
        np.testing.assert_array_equal(steps, true)
    else:
        assert (steps == 1).all()


@pytest.mark.parametrize("works", [False, True])
def test_nor_where_the_step_is_found_by_conjugate_gradients(works, monkeypatch):
    if works:
        monkeypatch.setattr(client, "_FEW", 0)
    read, count = [], direction.counts_by_cell

    def counted(point, selected):
        found = count(point, selected)
        if len(found) == len(FEW) + 1:  # the client that has all rows
            read.append(found.copy())
        return found

    monkeypatch.setattr(direction, "counts_by_cell", counted)  # in what the server reads, too
    small = trained(frame=False)
    told = np.array(read)[:, small]
    assert len(told) >= ROUNDS
    assert (told == 1).all() is not works
