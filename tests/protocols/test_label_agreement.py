"""Labels of one sample at several clients: agreement found by sums, and conflicts refused."""

from __future__ import annotations

import numpy as np
import pytest

from federations import secrets_of
from intarsia.core.block import Block, Labels
from intarsia.core.schema import Schema
from intarsia.engines import client_host, codec
from intarsia.engines.communication_log import addressed
from intarsia.engines.simulation import Simulation
from intarsia.errors import FederationError
from intarsia.privacy.keys.shared_key import SharedKey
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.settings import Privacy
from intarsia.protocols import preprocessing
from intarsia.protocols.preprocessing import agreement

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
    engine = Simulation({"train": (schema, blocks)}, 0, sealing, secrets=secrets_of(blocks))
    engine.set_states(
        {name: preprocessing.initial(name, engine.block(name)) for name in engine.ids}
    )
    agreement.check_agreement(engine, schema)
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


@pytest.mark.parametrize("mode", ["plain", "masked"])
def test_a_client_without_a_row_takes_part_in_the_comparison(mode):
    values = dict.fromkeys(range(50), 1.0)
    other = {**values, 37: 2.0}
    samples = [range(50), np.zeros(0, int), range(50)]
    checked(blocks_of([values, values, values], samples), CLASSES, mode)
    with pytest.raises(FederationError, match=r"'c0' and 'c2' have .*of the 50 samples"):
        checked(blocks_of([values, values, other], samples), CLASSES, mode)


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

        def ask(self, fn, messages):
            found = super().ask(fn, messages)
            opened.append([one.numbers.astype(np.uint64) for one in found.values()])
            return found

        def reveal(self, total):
            raise AssertionError("nothing is opened to the server")

    engine = Watched({"train": (schema, blocks)}, 0)
    engine.set_states(
        {name: preprocessing.initial(name, engine.block(name)) for name in engine.ids}
    )
    agreement.check_agreement(engine, schema)
    ((one, other),) = opened
    assert one.shape == (6, 25)  # three numbers of each label, rounded in two ways
    np.testing.assert_array_equal((one + other) % (2**31 - 1), 0)
    assert len(np.unique(one)) == one.size  # of labels of which there are three
    # which samples are compared each client tells from the public schema
    assert sent == [agreement.AskWords()] * len(blocks)


@pytest.mark.parametrize("mode", ["plain", "masked"])
@pytest.mark.parametrize("labels", [CLASSES, NUMBERS])
def test_what_clients_open_is_the_same_whatever_the_labels_of_another_are(
    mode, labels, monkeypatch
):
    """A client that made up labels of 0 used to open a combination of the other's."""
    made_up, seen = dict.fromkeys(range(12), 0.0), []
    replies = client_host.Host.replies

    def watched(self, fn, messages, *given):
        seen[-1] += [(name, codec.encode(one)) for name, one in messages.items()]
        return replies(self, fn, messages, *given)

    monkeypatch.setattr(client_host.Host, "replies", watched)
    for seed in (1, 2):
        values = np.random.default_rng(seed).integers(0, 3, 50).astype(float)
        seen.append([])
        blocks = blocks_of([made_up, dict(enumerate(values))], [range(12), range(50)])
        with pytest.raises(FederationError, match="of the 12 samples"):
            checked(blocks, labels, mode)
    assert len(seen[0]) == 4  # two exchanges of two clients; no other is opened
    assert seen[0] == seen[1]


def test_whole_numbers_are_those_of_values_that_were_rounded_in_two_ways():
    values = np.array([0.0, 1.0, -1.0, 1 + 2.0**-52, 1e300, -1e-300, 2.0**31 - 1, 5e-324])
    found = agreement._whole_numbers(values)
    assert found.max() < 2**22
    places = np.array([1, 2**22, 2**44], np.uint64)
    ways = agreement.rounded_labels(values)
    for way, rounded in zip((found[:3], found[3:]), ways, strict=True):
        np.testing.assert_array_equal((places[:, None] * way).sum(axis=0), rounded.view(np.uint64))
        np.testing.assert_allclose(rounded, values, rtol=2.0**-38)
    np.testing.assert_array_equal(agreement._whole_numbers(np.array([-0.0])), 0)


def test_labels_agree_in_as_many_digits_as_the_error_says():
    rng = np.random.default_rng(0)
    values = 10.0 ** rng.uniform(-300, 300, 20_000) * rng.choice([-1, 1], 20_000)
    values[:3] = 1 + 4e-12, 1000.0000000049, 1023.9999999951
    agree = {}
    for digits in (12, 13):
        written = np.array([float(f"{one:.{digits}g}") for one in values])
        both = [agreement.rounded_labels(one) for one in (values, written)]
        agree[digits] = (both[0] == both[1]).any(axis=0)
    assert agree[13].all()
    assert not agree[12][:3].any()
    assert "must agree in thirteen digits" in agreement.correct_labels(NUMBERS)


@pytest.mark.parametrize("mode", ["plain", "masked"])
def test_labels_agree_that_differ_by_how_they_were_written(mode):
    rng = np.random.default_rng(1)
    sizes = 10.0 ** rng.integers(-9, 9, 3000)
    values = rng.standard_normal(3000) * sizes
    # beside powers of two and of where one of the ways of rounding steps
    values[:1000] = np.repeat([1.0, -2.0, 3.0 * 2**-40, 1 + 2.0**-38], 250) * 2.0 ** rng.integers(
        -30, 30, 1000
    )
    values[1000:2000] *= 1 + rng.uniform(-1, 1, 1000) * 2.0**-40
    written = np.array([float(f"{one:.13g}") for one in values])
    assert (written != values).sum() > 1500
    nudged = values * (1 + rng.choice([-1, 1], 3000) * 4e-13)
    every = [dict(enumerate(one)) for one in (values, written, nudged)]
    checked(blocks_of([every[0], every[1], every[0], every[2]], [range(3000)] * 4), NUMBERS, mode)
    for one in range(0, 3000, 300):  # each alone
        other = {**every[0], one: values[one] * (1 + 1e-11)}
        with pytest.raises(FederationError, match="must agree in thirteen digits"):
            checked(blocks_of([every[0], other], [range(3000)] * 2), NUMBERS, mode)
