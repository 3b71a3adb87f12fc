"""Labels of one sample at several clients: agreement found by sums, and conflicts refused."""

from __future__ import annotations

import numpy as np
import pytest

from intarsia.core.block import Block, Labels
from intarsia.core.schema import Schema
from intarsia.engines.communication_log import addressed
from intarsia.engines.simulation import Simulation
from intarsia.errors import FederationError
from intarsia.privacy.keys.shared_key import SharedKey
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.settings import Privacy
from intarsia.protocols import preprocessing

NUMBERS = Labels("regression", ())
CLASSES = Labels("multiclass", ("a", "b", "c"))


def blocks_of(labels, samples):
    """Return a client for each of some labels by sample (None: it has none at all)."""
    return {
        f"c{number}": Block(
            np.asarray(own),
            (f"x{number}",),
            np.ones((len(own), 1)),
            None if given is None else np.array([given.get(one, np.nan) for one in own], float),
        )
        for number, (given, own) in enumerate(zip(labels, samples, strict=True))
    }


def checked(blocks, labels, mode="plain"):
    """Check the labels; return what the server could read of them."""
    schema = Schema.of(blocks, labels)
    sealing = None
    if mode == "masked":
        keys = modes.in_one_process(SharedKey(bytes(range(32)), "tests"))
        sealing = modes.sealing(Privacy(mode=mode), list(blocks), keys)
    engine = Simulation({"train": (schema, blocks)}, 0, sealing)
    engine.set_states(
        {name: preprocessing.initial(name, engine.block(name)) for name in engine.ids}
    )
    preprocessing.check_agreement(engine, schema)
    return engine.books.crossings.summary(), engine.books.traffic.exchanges


@pytest.mark.parametrize("mode", ["plain", "masked"])
def test_labels_that_agree_are_found_to_whatever_their_size(mode):
    rng = np.random.default_rng(0)
    values = dict(enumerate((rng.standard_normal(300) * 10.0 ** rng.integers(-9, 9, 300)).tolist()))
    order = [rng.permutation(300)[:200] for _ in range(4)]
    _, exchanges = checked(blocks_of([values, values, None, values], order), NUMBERS, mode)
    assert exchanges >= 1


@pytest.mark.parametrize("mode", ["plain", "masked"])
@pytest.mark.parametrize(("labels", "wrong"), [(CLASSES, 2.0), (NUMBERS, 1.0 + 2.0**-30)])
def test_one_label_that_differs_is_refused_and_both_clients_are_named(labels, wrong, mode):
    values = dict.fromkeys(range(50), 1.0)
    other = {**values, 37: wrong}
    samples = [range(50), range(50), range(20, 50)]
    # a client without labels, and one that differs where the other has none, do not count
    own = {one: value for one, value in values.items() if one != 37}
    checked(blocks_of([own, None, other], samples), labels, mode)
    with pytest.raises(FederationError, match=r"'c0' and 'c2' have .*of the 30 samples.*correct"):
        checked(blocks_of([values, None, other], samples), labels, mode)
    # of three in a row the odd one is compared with the one before it and the one after
    with pytest.raises(FederationError, match=r"'c0' and 'c1'.*50 samples.*1 more pairs"):
        checked(blocks_of([values, other, values], samples), labels, mode)
    # and where the one between has no label of the sample, the two others are compared
    with pytest.raises(FederationError, match=r"'c0' and 'c2' have .*the 1 samples"):
        checked(blocks_of([values, own, other], samples), labels, mode)


def test_nothing_crosses_where_no_two_clients_label_a_sample():
    values = dict.fromkeys(range(50), 1.0)
    blocks = blocks_of([values, values, None], [[1, 2], [3], [1, 3]])
    crossed, exchanges = checked(blocks, CLASSES)
    assert exchanges == 0
    assert not crossed["exchanges"]
    assert not crossed["reveals"]


def test_no_client_learns_a_label_and_the_server_reads_differences_only():
    values = {number: float(number % 3) for number in range(50)}
    blocks = blocks_of([values, values], [range(50), range(25, 50)])
    schema = Schema.of(blocks, CLASSES)
    opened, sent = [], []

    class Watched(Simulation):
        def sum(self, fn, messages):
            sent.extend(addressed(self, fn, messages).values())
            return super().sum(fn, messages)

        def reveal(self, total):
            opened.append(super().reveal(total))
            return opened[-1]

    engine = Watched({"train": (schema, blocks)}, 0)
    engine.set_states(
        {name: preprocessing.initial(name, engine.block(name)) for name in engine.ids}
    )
    preprocessing.check_agreement(engine, schema)
    (found,) = opened
    np.testing.assert_array_equal(found.totals, [0.0])
    # which samples are compared each client tells from the public schema
    assert sent == [preprocessing.CompareLabels()] * len(blocks)
