from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_array

from intarsia.core.block import INTERCEPT, Block, Labels
from intarsia.core.schema import Schema
from intarsia.data.source import Source
from intarsia.experiment.config import Experiment, Preprocessing
from intarsia.training import setup

LABELS = Labels("binary", ("no", "yes"))


def blocks():
    x, y = np.array([[1.0, 2.0], [3.0, 6.0]]), np.array([-1.0, 1.0])
    return {
        "bank": Block(np.array([1, 2]), ("age", "income"), x, y),
        "shop": Block(np.array([2, 1]), ("price", "age"), x[::-1, ::-1].copy()),
    }


class Recorder(setup.LocalParties):
    """Takes down the steps that the clients are asked for."""

    steps: tuple[str, ...] = ()

    def settle(self, schemas):
        self.steps += ("settle",)
        return super().settle(schemas)

    def transform(self, step):
        self.steps += (step,)
        super().transform(step)


@pytest.mark.parametrize(
    ("how", "expected", "ages"),
    [
        ({}, ("settle", "prepared"), [1.0, 3.0]),
        ({"additive": True}, ("settle", "prepared", "counted once"), [0.5, 1.5]),
        # rows of 1, 2, 2 and the intercept, and of 3, 6, 6 and it: norms of √10 and √82
        (
            {"clip": 1.0, "additive": True},
            ("settle", "prepared", "clipped", "counted once"),
            [0.5 / 10**0.5, 1.5 / 82**0.5],
        ),
    ],
)
def test_the_set_up_is_a_list_of_steps(how, expected, ages):
    sources = (Source(name="bank", path="bank.csv"), Source(name="shop", path="shop.csv"))
    parties = Recorder(
        Experiment(name="e", algorithm="hyfdca", clients=sources), {"train": blocks()}
    )
    schemas = {"train": Schema.of(blocks(), LABELS)}
    settings = Preprocessing(standardise=False)
    engine, _ = setup.set_up(parties, settings, schemas, **how)
    assert parties.steps == expected
    bank = engine.block("bank")
    assert bank.x[:, bank.features.index("age")] == pytest.approx(ages, rel=1e-4)


def test_a_schema_without_its_intercept_is_that_from_before():
    before = Schema.of(blocks(), LABELS)
    samples, features = before.samples, before.features
    after = setup.with_intercept(before)
    assert after.samples is samples  # millions of ids are put in order once
    assert set(after.features.ids) == {*features.ids, INTERCEPT}
    assert all(one.features[-1] == INTERCEPT for one in after.holdings.values())
    again = setup.without_intercept(after)
    names = {name: one.features for name, one in before.holdings.items()}
    assert {name: one.features for name, one in again.holdings.items()} == names


def test_a_block_with_an_intercept_fits_the_schema_with_one():
    given = blocks()
    with_it = setup.with_intercept(Schema.of(given, LABELS))
    block = setup.settle_block(given["shop"], "shop", with_it, Preprocessing())
    assert set(block.features) == {"price", "age", INTERCEPT}
    assert block.samples.tolist() == [1, 2]
    assert block.x[:, block.features.index(INTERCEPT)].tolist() == [1.0, 1.0]
    assert block.x[:, block.features.index("age")].tolist() == [1.0, 3.0]


def test_only_training_values_count_once():
    shared = Schema.of(blocks(), LABELS).align("bank", blocks()["bank"])
    assert setup.transform_block("counted once", None, "test", shared) is shared
    once = setup.transform_block("counted once", None, "train", shared)
    assert once.x[:, shared.features.index("age")].tolist() == [0.5, 1.5]
    assert once.x[:, shared.features.index("income")].tolist() == [2.0, 6.0]


@pytest.mark.parametrize("intercept", [True, False])
def test_values_are_prepared_where_they_lie_if_nobody_else_has_them(intercept):
    x = np.array([[1.0, 2.0], [3.0, 6.0]])
    given = {"bank": Block(np.array([1, 2]), ("age", "income"), x, np.array([-1.0, 1.0]))}
    source = Source(name="bank", path="bank.csv")
    experiment = Experiment(
        name="e",
        algorithm="hyfdca",
        clients=(source,),
        preprocessing=Preprocessing(intercept=intercept),
    )
    schemas, settled = {"train": Schema.of(given, LABELS)}, []

    class Watched(setup.LocalParties):
        def transform(self, step):
            settled.append(self.engine.block("bank").x)
            super().transform(step)

    parties = Watched(experiment, {"train": dict(given)})
    engine, _ = setup.set_up(parties, experiment.preprocessing, schemas)
    block = engine.block("bank")
    # with the intercept the rows were copied; else they are the caller's
    assert (settled[0] is x) is not intercept
    assert np.shares_memory(block.x, settled[0]) is intercept
    assert x.tolist() == [[1.0, 2.0], [3.0, 6.0]]
    assert block.x[:, block.features.index("age")].tolist() == [-1.0, 1.0]
    assert block.x[:, block.features.index("income")].tolist() == [-1.0, 1.0]


@pytest.mark.parametrize("standardise", [True, False])
@pytest.mark.parametrize("sparse", [True, False])
def test_values_that_count_once_as_they_are_prepared_have_the_same_bits(standardise, sparse):
    sources = (Source(name="bank", path="bank.csv"), Source(name="shop", path="shop.csv"))
    experiment = Experiment(name="e", algorithm="hyfdca", clients=sources)
    settings, found = Preprocessing(standardise=standardise), {}
    for at_once in (True, False):
        given = {
            name: replace(one, x=csr_array(one.x) if sparse else one.x)
            for name, one in blocks().items()
        }
        schemas = {"train": Schema.of(given, LABELS), "test": Schema.of(blocks(), LABELS)}
        parts = {"train": given, "test": blocks()}
        parties = setup.LocalParties(experiment, parts, at_once=at_once)
        engine, _ = setup.set_up(parties, settings, schemas, additive=True)
        for name in sources:
            for part in ("train", "test"):
                found[at_once, name.name, part] = block = engine.block(name.name, part)
                assert (block.copies is None) == (part == "train")
    for (at_once, name, part), block in found.items():
        other = found[not at_once, name, part]
        own, expected = (one.x.toarray() if one.sparse else one.x for one in (block, other))
        np.testing.assert_array_equal(own, expected)


@pytest.mark.parametrize("how", [{}, {"additive": True}, {"clip": 1.0, "additive": True}])
@pytest.mark.parametrize("sparse", [True, False])
def test_clients_get_ready_to_the_same_bits_in_any_number_of_threads(how, sparse, in_threads):
    rng, found = np.random.default_rng(5), {}
    drawn = {
        f"c{number}": Block(
            rng.permutation(30) + 10 * (number // 2),
            tuple(f"f{one}" for one in rng.permutation(4 + number % 3)),
            number + rng.random((30, 4 + number % 3)),
        )
        for number in range(6)
    }
    given = {
        name: replace(one, x=csr_array(one.x) if sparse else one.x) for name, one in drawn.items()
    }
    for workers in (1, 2, 0):
        experiment = Experiment(
            name="e",
            algorithm="hyfdca",
            clients=tuple(Source(name=name, path="a.csv") for name in given),
            workers=workers,
        )
        parts = {"train": dict(given), "test": dict(given)}
        schemas = {part: Schema.of(blocks, LABELS) for part, blocks in parts.items()}
        parties = setup.LocalParties(experiment, parts, keep=not how.get("clip"))
        engine, _ = setup.set_up(parties, experiment.preprocessing, schemas, **how)
        found[workers] = [
            (one.samples.tolist(), one.features, one.places.tolist(), np.asarray(values).tobytes())
            for part in parts
            for name in given
            for one in (engine.block(name, part), engine.whole_block(name, part))
            for values in [one.x.toarray() if one.sparse else one.x]
        ]
    assert found[2] == found[0] == found[1]
