from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from federations import BINARY, block, names, rectangles, table
from intarsia.core.block import (
    Block,
    Copies,
    Labels,
    distinct,
    distinct_of,
    have_repeats,
    places_of,
    sort_keys,
    targets,
)
from intarsia.core.schema import Holding, Index, Schema
from intarsia.errors import FederationError, TableError


def dense(found):
    return found.toarray() if not isinstance(found, np.ndarray) else found


def drawn_holdings(draw, most=12):
    """Return clients with random subsets of the entries 0..most, each at least one."""
    clients = draw(st.integers(1, 5))
    subset = st.lists(st.integers(0, most - 1), min_size=1, max_size=most, unique=True)
    return {f"client {number}": np.array(draw(subset)) for number in range(clients)}


@st.composite
def federations(draw):
    """Return clients that hold random rectangles of one table, in random order."""
    rows, columns = drawn_holdings(draw, 9), drawn_holdings(draw, 7)
    x = np.arange(1.0, 64.0).reshape(9, 7)
    y = np.where(np.arange(9) % 2, 1.0, -1.0)
    return x, {name: block(x, y, rows[name], columns[name]) for name in rows if name in columns}


# -- Block


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"samples": np.arange(2)}, "3 rows in x but 2 sample ids"),
        ({"features": ("a",)}, "2 columns in x but 1 feature names"),
        ({"y": np.zeros(4)}, "3 rows in x but 4 entries in y"),
        ({"samples": np.array([4, 5, 4])}, "1 sample ids appear more than once .first: 4"),
        ({"samples": np.array(["a", "b", "b"])}, "1 sample ids appear more than once .first: .b"),
        ({"features": ("a", "a")}, "'a' appears more than once"),
        ({"x": np.array([[1, np.inf], [0, 0], [-np.inf, 0]])}, "2 values are infinite"),
        ({"x": csr_array([[np.nan, 1], [0, 0], [0, 0]])}, "sparse block holds NaN"),
        ({"groups": {"g": ("a", "c")}}, "name 'c', which is not a feature"),
    ],
)
def test_a_malformed_block_is_refused_with_its_numbers(change, sentence):
    sound = {"samples": np.arange(3), "features": ("a", "b"), "x": np.zeros((3, 2))}
    with pytest.raises(TableError, match=sentence):
        Block(**{**sound, **change})


@pytest.mark.parametrize("layout", [np.array, csr_array])
def test_take_keeps_ids_labels_and_feature_blocks_together(layout):
    x = np.arange(1.0, 13.0).reshape(4, 3)
    whole = Block(
        np.array(["d", "b", "c", "a"]),
        ("p", "q", "r"),
        layout(x),
        np.array([1.0, -1.0, 1.0, np.nan]),
        {"left": ("p", "q"), "right": ("r",)},
    )
    part = whole.take(np.array([3, 0]), np.array([1, 0]))
    assert part.samples.tolist() == ["a", "d"]
    assert part.features == ("q", "p")
    np.testing.assert_array_equal(dense(part.x), x[np.ix_([3, 0], [1, 0])])
    np.testing.assert_array_equal(part.y, [np.nan, 1.0])
    assert part.groups == {"left": ("p", "q")}


def test_labels_become_signs_for_each_output():
    one = Block(np.arange(3), (), np.zeros((3, 0)), np.array([1.0, np.nan, -1.0]))
    np.testing.assert_array_equal(targets(one, 1), [[1.0, np.nan, -1.0]])
    several = Block(np.arange(3), (), np.zeros((3, 0)), np.array([2.0, 0.0, np.nan]))
    np.testing.assert_array_equal(
        targets(several, 3), [[-1, 1, np.nan], [-1, -1, np.nan], [1, -1, np.nan]]
    )
    without = Block(np.arange(2), (), np.zeros((2, 0)))
    assert np.isnan(targets(without, 2)).all()
    assert targets(without, 2).shape == (2, 2)


def test_several_classes_have_one_output_each():
    assert Labels("multiclass", ("a", "b", "c")).outputs == 3
    assert Labels("binary", ("a", "b")).outputs == 1
    assert Labels("regression").outputs == 1


# -- Copies


@pytest.mark.parametrize("layout", [np.array, csr_array])
def test_values_are_divided_by_their_number_of_holders(layout):
    copies = Copies(np.array([0, 1, 1]), np.array([1, 0]), np.array([[1.0, 2.0], [4.0, 1.0]]))
    x = np.array([[8.0, 8.0], [8.0, 0.0], [0.0, 8.0]])
    np.testing.assert_array_equal(dense(copies.divide(layout(x))), [[4, 8], [8, 0], [0, 2]])
    np.testing.assert_array_equal(copies.dense(), [[2, 1], [1, 4], [1, 4]])
    part = copies.take(np.array([2, 0]), np.array([1]))
    np.testing.assert_array_equal(part.dense(), [[4], [1]])


def test_where_values_miss_only_holders_that_have_them_count():
    observed = np.array([[2.0, 0.0], [1.0, 1.0]])
    copies = Copies(np.zeros(2, int), np.zeros(2, int), np.array([[2.0]]), observed)
    np.testing.assert_array_equal(copies.dense(), [[2, 1], [1, 1]])
    np.testing.assert_array_equal(copies.divide(np.full((2, 2), 6.0)), [[3, 6], [6, 6]])
    np.testing.assert_array_equal(copies.take(np.array([1]), None).observed, [[1, 1]])


@given(federations())
def test_blocks_counted_once_add_up_to_the_union_of_the_tables(federation):
    x, blocks = federation
    schema = Schema.of(blocks, BINARY)
    total = np.zeros((len(schema.samples), len(schema.features)))
    held = np.zeros(total.shape, bool)
    for name, one in blocks.items():
        own = schema.align(name, one).counted_once()
        where = np.ix_(schema.samples.own(name), schema.features.own(name))
        total[where] += own.x
        held[where] = True
    rows, columns = schema.samples.ids, [int(name[1:]) for name in schema.features.ids]
    np.testing.assert_allclose(total, np.where(held, x[np.ix_(rows, columns)], 0), rtol=1e-15)


# -- Index


def test_clients_with_the_same_samples_have_them_in_memory_once():
    x, y = table(40, 6)
    order = np.random.default_rng(0).permutation(40)
    blocks = {
        "a": block(x, y, range(40), range(4)),
        "b": block(x, y, order, range(3, 6)),
        "c": block(x, y, order[:9], range(6)),
    }
    schema = Schema.of(blocks, BINARY)
    found = {name: schema.align(name, one) for name, one in blocks.items()}
    for name in ("samples", "places"):
        one, other, few = (getattr(found[client], name) for client in "abc")
        assert np.shares_memory(one, other)
        np.testing.assert_array_equal(one, other)
        assert len(few) == 9
    copies = {client: own.copies for client, own in found.items()}
    assert np.shares_memory(copies["a"].rows, copies["b"].rows)
    for own in found.values():
        held = sum(
            np.isin(own.samples, one.samples)[:, None] & np.isin(own.features, one.features)
            for one in found.values()
        )
        np.testing.assert_array_equal(own.copies.dense(), held)


def test_entries_are_ordered_by_cell_then_by_id():
    index = Index.of({"a": np.array([5, 1, 3]), "b": np.array([3, 7, 5]), "c": np.array([9])})
    found = [(cell.owners, index.ids[cell.start : cell.stop].tolist()) for cell in index.cells]
    assert sorted(found) == [(("a",), [1]), (("a", "b"), [3, 5]), (("b",), [7]), (("c",), [9])]
    holders = dict(zip(index.ids.tolist(), index.holders.tolist(), strict=True))
    assert holders == {
        1: 1,
        3: 2,
        5: 2,
        7: 1,
        9: 1,
    }
    assert index.owners == ("a", "b", "c")
    assert len(index) == 5


def test_positions_of_neighbours_are_slices():
    # a grid's cells lie one after the other for every client
    x, y = table(12, 6)
    schema = Schema.of(rectangles(x, y, 3, 2), BINARY)
    for index in (schema.samples, schema.features):
        for name in schema.clients:
            assert isinstance(index.positions[name], slice)


def test_positions_of_a_client_in_distant_cells_are_an_array():
    index = Index.of({"a": np.array([0, 1]), "b": np.array([1, 2]), "c": np.array([0, 2])})
    arrays = [name for name in "abc" if not isinstance(index.positions[name], slice)]
    assert arrays  # three pairs of two in a line: one pair lies apart
    for name in "abc":
        np.testing.assert_array_equal(np.arange(3)[index.positions[name]], index.own(name))


@given(st.data())
def test_sums_over_clients_by_index_equal_dense_sums(data):
    held = drawn_holdings(data.draw)
    index = Index.of(held)
    expected = np.zeros(12)
    total = np.zeros(len(index))
    for number, (name, ids) in enumerate(held.items()):
        value = np.random.default_rng(number).normal(size=12)
        expected[ids] += value[ids]
        total[index.positions[name]] += value[index.ids[index.own(name)]]
    np.testing.assert_array_equal(total, expected[index.ids])
    np.testing.assert_array_equal(np.sort(index.ids), np.unique(np.concatenate([*held.values()])))


@given(st.data())
def test_cells_partition_the_entries_by_their_owners(data):
    held = drawn_holdings(data.draw)
    index = Index.of(held)
    stop = 0
    for cell in index.cells:
        assert cell.start == stop < cell.stop
        stop = cell.stop
        ids = index.ids[cell.start : cell.stop]
        assert (np.diff(ids) > 0).all()
        for entry in ids:
            assert cell.owners == tuple(name for name, own in held.items() if entry in own)
    assert stop == len(index)
    assert len({cell.owners for cell in index.cells}) == len(index.cells)
    for name, own in held.items():
        positions = index.own(name)
        assert (np.diff(positions) > 0).all()
        assert set(index.ids[positions]) == set(own.tolist())
        for start, end, holders, rank in index.own_cells(name):
            places = positions[start:end]
            assert (index.holders[places] == holders).all()
            assert (index.rank(name, places) == rank).all()
        assert sum(end - start for start, end, _, _ in index.own_cells(name)) == len(own)


@given(st.data())
def test_owners_of_a_part_are_as_owners_by_themselves(data):
    held = drawn_holdings(data.draw)
    within, apart = {}, {}
    for number, (name, own) in enumerate(held.items()):
        some = np.random.default_rng(number).random(len(own)) < 0.5
        within[f"{name} labels"], apart[f"{name} labels"] = (name, some), own[some]
    index, expected = Index.of(held, within), Index.of({**held, **apart})
    np.testing.assert_array_equal(index.ids, expected.ids)
    assert index.cells == expected.cells
    for name in (*held, *within):
        np.testing.assert_array_equal(index.own(name), expected.own(name))


@given(st.lists(st.lists(st.integers(-3, 9)), min_size=1), st.sampled_from([int, str, "object"]))
def test_the_different_ids_of_several_arrays_are_those_of_all_at_once(parts, kind):
    given = [np.array(own, np.int64).astype(kind) for own in parts]
    ids, which = distinct_of(given)
    expected, inverse = np.unique(np.concatenate(given), return_inverse=True)
    np.testing.assert_array_equal(ids, expected)
    np.testing.assert_array_equal(np.concatenate(which), inverse)


@given(st.lists(st.lists(st.integers(0, 3)), min_size=1), st.sampled_from([int, str, "object"]))
def test_arrays_that_are_the_same_get_the_same_places(parts, kind):
    given = [np.array(own, np.int64).astype(kind) for own in parts]
    _, which = distinct_of(given)
    for one, own in zip(given, which, strict=True):
        for other, places in zip(given, which, strict=True):
            assert (places is own) == np.array_equal(one, other)


@pytest.mark.parametrize("few", [3, 900])
def test_clients_with_the_same_entries_are_indexed_as_clients_by_themselves(few):
    own, some = np.arange(0, 2000, 2), np.arange(5, 5 + few)
    index = Index.of({"a": own, "b": own.copy(), "c": some, "d": some[::-1].copy()})
    expected = Index.of({"a": own, "b": own[::-1].copy(), "c": some[::-1].copy(), "d": some})
    np.testing.assert_array_equal(index.ids, expected.ids)
    assert index.cells == expected.cells
    assert {cell.owners for cell in index.cells} == {("a", "b"), ("c", "d"), (*"abcd",)}
    for name, held in zip("abcd", (own, own, some, some), strict=True):
        np.testing.assert_array_equal(index.own(name), expected.own(name))
        np.testing.assert_array_equal(np.sort(index.ids[index.own(name)]), held)


def test_the_order_of_a_clients_entries_does_not_matter():
    first = Index.of({"a": np.array([3, 1, 2]), "b": np.array([2, 4])})
    second = Index.of({"a": np.array([1, 2, 3]), "b": np.array([4, 2])})
    np.testing.assert_array_equal(first.ids, second.ids)
    assert first.cells == second.cells


def test_clients_without_an_entry_have_no_cell():
    index = Index.of({"a": np.array([1]), "b": np.array([], np.int64)})
    assert index.owners == ("a",)
    assert len(index.own("b")) == 0
    nothing = Index.of({"a": np.array([], np.int64)})
    assert len(nothing) == 0
    assert nothing.cells == ()


# -- Schema


@given(federations(), st.integers(0, 1000))
def test_a_permuted_table_becomes_the_same_block(federation, seed):
    _, blocks = federation
    rng = np.random.default_rng(seed)
    mixed = {
        name: one.take(rng.permutation(one.shape[0]), rng.permutation(one.shape[1]))
        for name, one in blocks.items()
    }
    schema, other = Schema.of(blocks, BINARY), Schema.of(mixed, BINARY)
    for name in blocks:
        one, two = schema.align(name, blocks[name]), other.align(name, mixed[name])
        assert one.features == two.features
        np.testing.assert_array_equal(one.samples, two.samples)
        np.testing.assert_array_equal(one.x, two.x)
        np.testing.assert_array_equal(one.y, two.y)
        np.testing.assert_array_equal(one.samples, schema.samples.ids[schema.samples.own(name)])


@given(federations())
def test_copies_count_the_holders_of_every_entry(federation):
    _, blocks = federation
    schema = Schema.of(blocks, BINARY)
    for name, one in blocks.items():
        own, copies = schema.align(name, one), schema.copies(name)
        expected = np.array(
            [
                [
                    sum(s in other.samples and f in other.features for other in blocks.values())
                    for f in own.features
                ]
                for s in own.samples
            ]
        )
        if copies is None:
            assert (expected == 1).all()
        else:
            np.testing.assert_array_equal(copies.dense(), expected)


def test_labels_have_an_index_of_their_own():
    x = np.zeros((4, 1))
    blocks = {
        "a": Block(np.arange(4), ("p",), x, np.array([1.0, np.nan, -1.0, 1.0])),
        "b": Block(np.array([3, 0, 9, 2]), ("q",), x, np.array([1.0, np.nan, 1.0, np.nan])),
        "c": Block(np.array([1]), ("r",), x[:1]),
    }
    schema = Schema.of(blocks, BINARY)
    assert sorted(schema.labelled.ids.tolist()) == [0, 2, 3, 9]
    assert schema.labelled.owners == ("a", "b")
    holders = dict(zip(schema.samples.ids.tolist(), schema.label_holders.tolist(), strict=True))
    assert holders == {0: 1, 1: 0, 2: 1, 3: 2, 9: 1}
    own = schema.align("b", blocks["b"])
    assert own.samples[schema.labelled_at("b")].tolist() == sorted(
        [3, 9], key=own.samples.tolist().index
    )
    assert not schema.labelled_at("c").any()
    assert Holding.of(blocks["c"]).labelled.tolist() == [False]


def test_text_ids_and_text_features_are_aligned_too():
    x, y = table(6, 3)
    ids = np.array(["zoé", "ann", "bob", "Cid", "dan", "eve"])
    blocks = {
        "a": Block(ids[:4], ("wage", "age"), x[:4, :2], y[:4]),
        "b": Block(ids[2:][::-1], ("age", "size"), x[2:, 1:][::-1], y[2:][::-1]),
    }
    schema = Schema.of(blocks, BINARY)
    total = np.zeros((6, 3))
    for name, one in blocks.items():
        own = schema.align(name, one).counted_once()
        total[np.ix_(schema.samples.own(name), schema.features.own(name))] += own.x
    rows = [ids.tolist().index(one) for one in schema.samples.ids]
    columns = [("wage", "age", "size").index(str(one)) for one in schema.features.ids]
    expected = np.zeros((6, 3))
    expected[:4, :2], expected[2:, 1:] = x[:4, :2], x[2:, 1:]
    np.testing.assert_allclose(total, expected[np.ix_(rows, columns)], rtol=1e-15)


def test_ids_of_two_types_are_refused():
    blocks = {
        "bank": Block(np.array([7]), ("a",), np.zeros((1, 1))),
        "shop": Block(np.array(["x7"]), ("b",), np.zeros((1, 1))),
    }
    with pytest.raises(FederationError, match=r"'bank' has whole numbers.*'shop' has text.*'x7'"):
        Schema.of(blocks, BINARY)


def test_no_client_is_refused():
    with pytest.raises(FederationError, match="no client"):
        Schema.of({}, BINARY)


def test_feature_names_sort_as_the_columns():
    assert sorted(names(range(1200))) == list(names(range(1200)))


@pytest.mark.parametrize(
    "ids",
    [
        ["P10", "P1", "P2", "P02", "P10000001", "P9"],
        ["a", "", "ab", "é", "z"],
        ["12345678", "2", "123"],
        ["same", "same"],
        ["north-000000001", "north-000000002", "north-00000000é"],
    ],
)
def test_keys_of_ids_are_in_their_order(ids):
    given = np.array(ids)
    keys = sort_keys(given)
    assert keys.dtype == np.uint64
    for one, key in zip(ids, keys.tolist(), strict=True):
        assert [one < other for other in ids] == [key < other for other in keys.tolist()]
    found, which = distinct(given)
    assert found.tolist() == sorted(set(ids))
    np.testing.assert_array_equal(found[which], given)
    assert ids[places_of(np.array(ids[:1]), given)[0]] == ids[0]
    assert have_repeats(given) == (len(set(ids)) < len(ids))


@pytest.mark.parametrize("ids", [["123456789", "2"], ["a", "ł"], [1, 2], np.array([b"a", b"b"])])
def test_ids_that_do_not_fit_stay(ids):
    given = np.array(ids)
    assert sort_keys(given) is given
