from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from federations import BINARY, block, names, rectangles, table
from intarsia.core.block import INTERCEPT, Block
from intarsia.core.schema import Schema
from intarsia.engines.simulation import Simulation
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.settings import Privacy
from intarsia.protocols import preprocessing

CONSTANT = "Constant over all training rows, or all but fewer than least_rows at each client"


def prepared(blocks, test=None, *, standardise=True, sealing=None, known=False):
    """Return the engine over the prepared blocks, and the notes.

    `known` says that clients know the schema, and tell nothing of few values.
    """
    parts = {"train": (Schema.of(blocks, BINARY), blocks)}
    if test is not None:
        parts["test"] = (Schema.of(test, BINARY), test)
    engine = Simulation(parts, 0, sealing)
    schema = parts["train"][0] if known else None
    engine.set_states(
        {name: preprocessing.initial(name, engine.block(name), schema) for name in engine.ids}
    )
    schemas = {part: schema for part, (schema, _) in parts.items()}
    notes = preprocessing.prepare(engine, schemas, standardise=standardise)
    states = engine.get_states()
    engine.transform(lambda name, part, one: preprocessing.prepared(states[name], part, one))
    return engine, notes


def pooled(engine, part="train"):
    """Return the sum of the blocks' values, each divided by its holders, in the ids' order."""
    schema = engine.schema(part)
    total = np.zeros((len(schema.samples), len(schema.features)))
    for name in schema.clients:
        once = engine.block(name, part).counted_once()
        values = once.x.toarray() if once.sparse else once.x
        total[np.ix_(schema.samples.own(name), schema.features.own(name))] += values
    rows, columns = np.argsort(schema.samples.ids), np.argsort(schema.features.ids)
    return total[np.ix_(rows, columns)]


def standardised(x):
    """Return what pooled standardisation makes of a table: missing values become the mean."""
    return np.nan_to_num((x - np.nanmean(x, axis=0)) / np.nanstd(x, axis=0))


def skewed(samples=40, features=6, seed=0):
    """Return features of very different means and deviations."""
    x, y = table(samples, features, seed)
    return x * 10.0 ** np.arange(-2, features - 2) + np.arange(features) * 100, y


@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 4), st.integers(0, 2), st.booleans())
def test_federated_standardisation_is_that_of_the_pooled_table(rows, columns, more, wider, gaps):
    x, y = skewed()
    if gaps:
        x[np.random.default_rng(1).random(x.shape) < 0.2] = np.nan
    blocks = rectangles(x, y, rows, columns, shared_rows=more, shared_columns=wider)
    engine, notes = prepared(blocks)
    assert notes == ()
    np.testing.assert_allclose(pooled(engine), standardised(x), rtol=0, atol=1e-12)


def test_a_value_that_one_of_two_holders_lacks_counts_once():
    # both hold samples 0-5 and feature 0; each lacks other values of it
    x, y = skewed(8, 3)
    first, second = block(x, y, range(6), [0, 1]), block(x, y, range(8), [0, 2])
    own, other = first.x.copy(), second.x.copy()
    own[[0, 3], 0] = np.nan
    other[[1, 3], 0] = np.nan
    known = x.copy()
    known[3, 0] = np.nan  # neither has it
    known[6:, 1] = 0.0  # held by nobody: a sum of nothing
    engine, notes = prepared(
        {
            "a": Block(first.samples, first.features, own, first.y),
            "b": Block(second.samples, second.features, other, second.y),
        }
    )
    assert notes == ()
    expected = standardised(known)
    expected[:6, 1] = standardised(known[:6, 1:2])[:, 0]
    expected[6:, 1] = 0.0
    np.testing.assert_allclose(pooled(engine), expected, atol=1e-12)


@pytest.mark.parametrize("mode", ["plain", "masked", "ckks"])
def test_a_client_that_shares_no_row_may_lack_values_of_a_shared_column(mode):
    x, y = skewed(60, 3)
    x[[3, 25, 50], [0, 1, 1]] = np.nan  # of a alone, of a and b, of c
    rows = {"a": range(30), "b": range(20, 40), "c": range(40, 60)}
    blocks = {name: block(x, y, own, range(3)) for name, own in rows.items()}
    schema, sealing = Schema.of(blocks, BINARY), None
    if mode != "plain":
        settings = Privacy(mode=mode)
        sealing = modes.sealing(
            settings, schema.clients, modes.keys(settings, schema.clients, None, "copies")
        )
    engine, notes = prepared(blocks, sealing=sealing)
    assert notes == ()
    error = 1e-12 if mode == "plain" else 1e-5
    np.testing.assert_allclose(pooled(engine), standardised(x), rtol=0, atol=error)


def test_every_part_is_prepared_with_the_moments_of_training():
    x, y = skewed(60)
    train = rectangles(x[:40], y[:40], 2, 2, shared_rows=3, shared_columns=1)
    late = x[40:].copy()
    late[3, 2] = np.nan
    test = rectangles(late, y[40:], 2, 2, shared_rows=3, shared_columns=1)
    engine, _ = prepared(train, test)
    mean, deviation = x[:40].mean(axis=0), x[:40].std(axis=0)
    expected = np.nan_to_num((late - mean) / deviation)
    np.testing.assert_allclose(pooled(engine, "test"), expected, atol=1e-12)


def test_a_duplicated_party_changes_no_value():
    x, y = skewed()
    x[3, 1] = np.nan
    blocks = rectangles(x, y, 2, 2)
    once, _ = prepared(blocks)
    twice, notes = prepared({**blocks, "copy of r0c0": blocks["r0c0"]})
    assert notes == ()
    np.testing.assert_allclose(pooled(twice), pooled(once), rtol=0, atol=1e-12)


def test_a_sparse_table_is_scaled_and_never_filled():
    x, y = table(40, 6)
    x = x * (np.random.default_rng(2).random(x.shape) < 0.3) + 0.0
    blocks = rectangles(csr_array(x), y, 2, 2, shared_rows=5, shared_columns=1)
    engine, notes = prepared(blocks)
    assert notes == ()
    scale = np.sqrt((x**2).mean(axis=0))  # around 0: a mean would fill every entry
    np.testing.assert_allclose(pooled(engine), x / scale, rtol=0, atol=1e-12)
    for name in engine.ids:
        assert engine.block(name).x.nnz == blocks[name].x.nnz


def test_a_constant_feature_becomes_zero_and_is_named():
    x, y = table(20, 3)
    x[:, 1] = 0.1  # not exact in binary: the deviation is tiny, not 0
    engine, notes = prepared(rectangles(x, y, 2, 1))
    assert not pooled(engine)[:, 1].any()
    assert notes == (f"{CONSTANT}, so that nothing is learned of it: 'f0001'.",)


@pytest.mark.parametrize("mode", ["plain", "masked", "ckks"])
def test_columns_of_small_and_of_large_numbers_are_standardised_in_every_mode(mode):
    x, y = table(200, 5, 3)
    x[:, 4] = 0.1
    sizes = 10.0 ** np.array([3, -4, -12, -19, 0])
    blocks = rectangles(x * sizes, y, 2, 2, shared_rows=9, shared_columns=1)
    sealing = None
    if mode != "plain":
        settings, owners = Privacy(mode=mode), list(blocks)
        keys = modes.keys(settings, owners, None, "small")
        sealing = modes.sealing(settings, owners, keys)
    engine, notes = prepared(blocks, sealing=sealing)
    assert notes == (f"{CONSTANT}, so that nothing is learned of it: 'f0004'.",)
    expected = standardised(x * sizes)
    expected[:, 4] = 0.0
    np.testing.assert_allclose(pooled(engine), expected, rtol=0, atol=1e-9)


def test_a_feature_that_is_constant_at_each_party_alone_stays():
    x, y = table(20, 2)
    x[:10, 0], x[10:, 0] = -3.0, 5.0
    engine, notes = prepared(rectangles(x, y, 2, 1))
    assert notes == ()
    np.testing.assert_allclose(pooled(engine)[:, 0], np.repeat([-1.0, 1.0], 10), atol=1e-13)


def test_a_feature_without_any_value_becomes_zero():
    x, y = table(20, 2)
    x[:, 1] = np.nan
    engine, notes = prepared(rectangles(x, y, 2, 1))
    assert not pooled(engine)[:, 1].any()
    assert notes == (f"{FEW}, so that nothing is learned of it: 'f0001'.",)


FEW = "Fewer than 5 training rows of each client have a value of one of these"


def copied(alone, common):
    """Return two clients' blocks of a column, its values, and which of these are told to nobody.

    Each has some rows alone, beside those that both have.
    """
    x = np.random.default_rng(5).normal(7.0, 3.0, size=(common + sum(alone), 1))
    rows = np.arange(len(x))
    first, last = common + alone[0], len(x) - alone[1]
    own = {"a": rows[:first], "b": np.r_[rows[:common], rows[last:]]}
    y = np.where(x[:, 0] > 7.0, 1.0, -1.0)
    blocks = {n: Block(at, ("age",), x[at], y[at]) for n, at in own.items()}
    left_out = [own[n][common:] for n, k in zip("ab", alone, strict=True) if k < 5]
    return blocks, x, np.concatenate([rows[:0], *left_out])


@pytest.mark.parametrize("mode", ["plain", "masked", "ckks"])
@pytest.mark.parametrize("alone", [(3, 3), (3, 0), (1, 9), (0, 0)])
def test_a_column_is_scaled_by_the_rows_that_both_have_where_each_has_few_more(alone, mode):
    blocks, x, untold = copied(alone, 40)
    told = np.delete(x, untold)
    sealing = None
    if mode != "plain":
        settings, owners = Privacy(mode=mode), list(blocks)
        sealing = modes.sealing(settings, owners, modes.keys(settings, owners, None, "few"))
    engine, notes = prepared(blocks, sealing=sealing, known=True)
    assert notes == ()
    expected = (x - told.mean()) / told.std()
    expected[untold] = 0.0  # they do not train either
    np.testing.assert_allclose(
        pooled(engine), expected, rtol=0, atol=1e-12 if mode == "plain" else 1e-5
    )


@pytest.mark.parametrize("alone", [(3, 3), (3, 0), (1, 9)])
def test_beside_a_category_of_many_levels_few_values_are_told_to_nobody_either(alone):
    blocks, x, untold = copied(alone, 40)
    lab = np.random.default_rng(1).normal(5.0, 2.0, size=len(x))
    lab[4:] = np.nan  # four rows have one, which both clients hold
    levels = [f"code={number:02}" for number in range(21)]
    for name, one in blocks.items():
        codes = np.eye(21)[one.samples % 21]
        whole = csr_array(np.column_stack([one.x, codes, lab[one.samples]]))
        features, kinds = ("age", *levels, "lab"), np.r_[0, np.ones(21, int), 0]
        blocks[name] = Block(one.samples, features, whole, one.y, indicators=kinds)
    engine, notes = prepared(blocks, known=True)
    assert notes == (f"{FEW}, so that nothing is learned of it: 'lab'.",)
    told = np.delete(x, untold)
    expected = (x[:, 0] - told.mean()) / told.std()
    expected[untold] = 0.0
    found = pooled(engine)
    np.testing.assert_allclose(found[:, 0], expected, rtol=0, atol=1e-12)
    assert not found[:, -1].any()
    codes = np.eye(21)[np.arange(len(x)) % 21]  # whose absent entries are values
    scale = np.sqrt(np.maximum((codes**2).mean(axis=0), 0.05))
    np.testing.assert_allclose(found[:, 1:-1], codes / scale, atol=1e-12)


@pytest.mark.parametrize("sparse", [True, False])
def test_a_rare_level_of_many_is_scaled_as_one_of_a_twentieth_of_the_rows(sparse):
    of = np.r_[np.zeros(72, int), np.repeat(np.arange(1, 29), 1)]  # a level in 72 rows, 28 in one
    codes = np.eye(30)[of]  # and one in none
    levels = tuple(f"shop={number:02}" for number in range(30))
    blocks = {
        name: Block(
            np.arange(start, start + 50),
            levels,
            csr_array(codes[start : start + 50]) if sparse else codes[start : start + 50],
            np.where(np.arange(50) % 2, 1.0, -1.0),
            indicators=np.ones(30, int),
        )
        for name, start in (("north", 0), ("south", 50))
    }
    engine, _ = prepared(blocks, known=True)
    found = pooled(engine)
    np.testing.assert_allclose(found[:, 0], codes[:, 0] / np.sqrt(0.72), atol=1e-12)
    np.testing.assert_allclose(found[:, 1:29], codes[:, 1:29] * np.sqrt(20), atol=1e-12)
    assert not found[:, 29].any()


@pytest.mark.parametrize("mode", ["plain", "masked", "ckks"])
def test_a_column_of_few_values_everywhere_is_left_out_and_not_called_constant(mode):
    blocks = {}
    for number, name in enumerate("ab"):
        x = np.random.default_rng(number).normal(9.0, 4.0, size=(30, 2))
        x[4:, 1] = np.nan
        blocks[name] = Block(100 * number + np.arange(30), ("age", "lab"), x, np.sign(x[:, 0] - 9))
    sealing = None
    if mode != "plain":
        settings, owners = Privacy(mode=mode), list(blocks)
        sealing = modes.sealing(settings, owners, modes.keys(settings, owners, None, "few"))
    engine, notes = prepared(blocks, sealing=sealing, known=True)
    assert notes == (f"{FEW}, so that nothing is learned of it: 'lab'.",)
    assert not pooled(engine)[:, 1].any()


@pytest.mark.parametrize("layout", [np.array, csr_array])
def test_conflicting_copies_are_averaged_and_reported(layout):
    x, y = table(10, 3)
    other = x.copy()
    other[2, 1] += 1.0
    other[4, 1] -= 2.0
    blocks = {
        "bank": block(layout(x), y, range(6), [0, 1]),
        "shop": block(layout(other), y, range(2, 10), [1, 2]),
    }
    engine, notes = prepared(blocks, standardise=False)
    assert notes == (
        "2 train samples have different copies at bank, shop in the feature f0001; their "
        "average is used: compare these tables. Where all tables are in one place, intarsia "
        "inspect names the columns.",
    )
    mean = x[:, 1].copy()
    mean[[2, 4]] = (x[[2, 4], 1] + other[[2, 4], 1]) / 2
    np.testing.assert_allclose(pooled(engine)[:, 1], mean, atol=1e-13)


def test_a_note_of_copies_that_differ_says_that_no_one_learns_in_which_column():
    x, y = table(10, 3)
    other = x.copy()
    other[1, 0] = 9.0
    every = range(10), range(3)
    _, (note,) = prepared({"a": block(x, y, *every), "b": block(other, y, *every)})
    assert (
        "in one or more of the features 'f0000', 'f0001', 'f0002' (no one learns in which" in note
    )


def test_conflicts_in_the_test_part_are_reported_too():
    x, y = table(10, 2)
    other = x.copy()
    other[1, 0] = 9.0
    blocks = {"a": block(x, y, range(10), [0]), "b": block(x, y, range(10), [0, 1])}
    test = {"a": block(x, y, range(10), [0]), "b": block(other, y, range(10), [0, 1])}
    _, notes = prepared(blocks, test)
    assert len(notes) == 1
    assert notes[0].startswith("1 test sample has different copies at a, b")


def test_rounding_is_no_conflict():
    x, y = skewed(30, 4)
    blocks = {
        "a": block(x, y, range(30), range(4)),
        "b": block(x * (1 + 1e-13), y, range(30), range(4)),
    }
    assert prepared(blocks)[1] == ()


def test_without_standardisation_only_missing_values_change():
    x, y = skewed(20, 3)
    x[4, 1] = np.nan
    engine, notes = prepared(rectangles(x, y, 2, 2, shared_columns=1), standardise=False)
    assert notes == ()
    np.testing.assert_allclose(pooled(engine), np.nan_to_num(x), rtol=1e-14)


@pytest.mark.parametrize("layout", [np.array, csr_array])
def test_the_intercept_counts_once_and_is_left_alone(layout):
    x, y = skewed(20, 4)
    blocks = rectangles(layout(x), y, 2, 2)
    engine, _ = prepared({name: one.take(None, intercept=True) for name, one in blocks.items()})
    total = pooled(engine)  # the intercept's name sorts before the others
    assert sorted([INTERCEPT, *names(range(4))])[0] == INTERCEPT
    np.testing.assert_allclose(total[:, 0], 1.0, atol=1e-14)
    for one in blocks.values():
        assert INTERCEPT not in one.features


def test_a_permuted_table_is_prepared_to_the_same_bits():
    x, y = skewed()
    x[3, 1] = np.nan
    blocks = rectangles(x, y, 2, 2, shared_rows=4, shared_columns=1)
    rng = np.random.default_rng(0)
    mixed = {
        name: one.take(rng.permutation(one.shape[0]), rng.permutation(one.shape[1]))
        for name, one in blocks.items()
    }
    np.testing.assert_array_equal(pooled(prepared(blocks)[0]), pooled(prepared(mixed)[0]))


def test_the_server_learns_counts_of_conflicts_and_constant_features_only():
    x, y = skewed()
    blocks = rectangles(x, y, 2, 2, shared_rows=4, shared_columns=1)
    schema = Schema.of(blocks, BINARY)
    engine = Simulation({"train": (schema, blocks)}, 0)
    engine.set_states(
        {name: preprocessing.initial(name, engine.block(name)) for name in engine.ids}
    )
    opened = []

    class Watched:
        ids = engine.ids
        sum = staticmethod(engine.sum)
        rounding = staticmethod(engine.rounding)

        @staticmethod
        def ask(fn, messages):
            found = engine.ask(fn, messages)
            opened.extend(found.values())
            return found

        @staticmethod
        def reveal(total):
            found = engine.reveal(total)
            opened.append(found)
            return found

    preprocessing.prepare(Watched(), {"train": schema}, standardise=True)
    kinds = [type(one).__name__ for one in opened]
    assert set(kinds) == {"HiddenLabels", "HiddenCopies", "Constant"}
    assert kinds.count("Constant") == 1
    labels = [one.numbers for one in opened if type(one).__name__ == "HiddenLabels"]
    assert len(labels) == len(blocks)
    # each pair of clients with labels of the same samples adds up to 0
    assert sum(one.astype(np.uint64).sum() for one in labels) % (2**31 - 1) == 0
    assert set(np.unique(opened[-1].features)) <= {0.0, 1.0}
