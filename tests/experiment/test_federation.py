from __future__ import annotations

import gc
import re
import threading
import weakref
import zlib
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array

import intarsia
from intarsia.data import reader
from intarsia.data.reader import table_from
from intarsia.datasets import registry as datasets
from intarsia.deployment.earlier_jobs import hashed
from intarsia.engines import codec
from intarsia.errors import ExperimentError, FederationError, TableError
from intarsia.experiment import checksums, federation
from intarsia.experiment.config import from_dict


def simulated(kind="grid", share=0.2, name="breast_cancer", **keys):
    return from_dict(
        {
            "algorithm": {"name": "hyfdca"},
            "dataset": {"name": name},
            "partition": {"kind": kind, **keys},
            "split": {"test": share},
        }
    )


def parties(**tables):
    described = from_dict(
        {
            "algorithm": {"name": "hyfdca"},
            "split": {"test": 0.0},
            "client": [{"name": name} for name in tables],
        }
    )
    return described, {
        name: table_from(
            np.arange(float(len(ids)))[:, None], labels, client=name, samples=ids, names=[name]
        )
        for name, (ids, labels) in tables.items()
    }


def rows(blocks):
    return {one for block in blocks.values() for one in block.samples.tolist()}


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("grid", {"rows": 2, "columns": 3}),
        ("horizontal", {"clients": 3}),
        ("vertical", {"clients": 2}),
        ("overlap", {"rows": 2, "columns": 2, "shared_rows": 0.2, "shared_columns": 0.5}),
    ],
)
def test_a_simulation_deals_every_sample_to_one_part(kind, keys):
    found = federation.build(simulated(kind, **keys))
    whole = datasets.load("breast_cancer")
    train, test = rows(found.train), rows(found.test)
    assert not train & test
    assert train | test == set(whole.samples.tolist())
    assert 0.1 < len(test) / len(whole.samples) < 0.3
    assert list(found.train) == list(found.test)
    for name, block in found.train.items():
        assert block.features == found.test[name].features
        place = [whole.features.index(feature) for feature in block.features]
        np.testing.assert_array_equal(block.x, whole.x[np.ix_(block.samples, place)])


def test_the_parts_do_not_depend_on_how_they_are_dealt():
    found = [federation.build(simulated(rows=rows, columns=2)) for rows in (1, 4)]
    assert rows(found[0].test) == rows(found[1].test)


def test_the_official_test_part_is_used(data_folder):
    found = federation.build(simulated("horizontal", name="mnist", clients=3))
    assert len(rows(found.train)) == 60000
    assert rows(found.test) == set(range(60000, 70000))


@pytest.mark.parametrize("name", ["breast_cancer", "usps"])
def test_a_validation_part_is_of_the_training_samples(name, data_folder, monkeypatch):
    monkeypatch.setenv("INTARSIA_DATA", str(data_folder))
    usual = simulated("horizontal", name=name, clients=2)
    chosen = replace(usual, split=replace(usual.split, validation=0.25))
    before, found = federation.build(usual), federation.build(chosen)
    train, validation = rows(found.train), rows(found.test)
    assert not train & validation
    assert train | validation == rows(before.train)
    assert len(validation) == pytest.approx(0.25 * len(rows(before.train)), rel=0.2)
    assert "25 % of the training samples" in found.notes[-1]
    blocks, *_ = federation.parties(chosen)  # what is shown is the whole
    assert rows(blocks) == rows(before.train) | rows(before.test)


def test_clients_of_a_few_samples_may_have_all_of_them_in_one_part(data_folder, monkeypatch):
    monkeypatch.setenv("INTARSIA_DATA", str(data_folder))
    usual = simulated("natural", name="femnist", clients=50)
    chosen = replace(usual, split=replace(usual.split, validation=0.2))
    found = federation.build(chosen)
    assert list(found.train) == list(found.test)
    assert any("have no training sample" in note for note in found.notes)
    assert any(not len(block.samples) for block in found.test.values())


def test_a_validation_part_of_tables_is_of_the_training_rows():
    described, tables = parties(one=(np.arange(200), np.arange(200) % 2))
    described = replace(described, split=replace(described.split, test=0.3, validation=0.2))
    found = federation.build(described, tables)
    without = federation.build(
        replace(described, split=replace(described.split, validation=0)), tables
    )
    assert rows(found.train) | rows(found.test) == rows(without.train)


def test_without_a_test_part_its_blocks_are_empty():
    found = federation.build(simulated(share=0.0, rows=2, columns=2))
    assert len(rows(found.train)) == 569
    assert {block.shape for block in found.test.values()} == {(0, 15)}
    held, *_ = federation.parties(simulated(share=0.5, rows=2, columns=2))
    assert len(rows(held)) == 569


def test_a_test_part_that_is_too_small_to_deal_is_one_sentence():
    with pytest.raises(
        ExperimentError, match=r"test part has 9 samples .* raise test in \[split\]"
    ):
        federation.build(simulated(share=0.01, rows=64, columns=1))


def test_samples_without_a_label_anywhere_are_left_out():
    described, tables = parties(
        bank=([1, 2, 3, 4], [0.0, 1.0, np.nan, 1.0]), shop=([3, 4, 5], None)
    )
    found = federation.build(described, tables)
    assert found.train["bank"].samples.tolist() == [1, 2, 4]
    assert found.train["shop"].samples.tolist() == [4]
    assert found.notes == ("2 training samples have a label at no client; they are left out.",)
    held, *_ = federation.parties(described, tables)
    assert len(rows(held)) == 5


def test_a_client_of_no_use_is_one_sentence():
    described, tables = parties(bank=([1, 2], [0.0, 1.0]), shop=([3, 4], None))
    with pytest.raises(FederationError, match="Client 'shop' has 2 training samples, none of"):
        federation.build(described, tables)


def written(folder, **tables):
    """Return the experiment of clients with CSV files and an id column where it is not None."""
    clients = []
    for name, (text, settings) in tables.items():
        (folder / f"{name}.csv").write_text(text)
        clients.append({"name": name, "path": f"{name}.csv", **settings})
    tree = {"algorithm": {"name": "hyfdca"}, "split": {"test": 0.0}, "client": clients}
    return from_dict(tree, folder)


def test_an_id_that_a_party_forgot_is_named(tmp_path):
    a, b = "no,x,y\n1,5,0\n2,6,1\n", "no,z\n1,7\n2,8\n"
    described = written(tmp_path, a=(a, {"label": "y"}), b=(b, {"id": "no"}))
    with pytest.raises(FederationError, match=r"'a' has no id, .* column 'no', .* client 'b'; set"):
        federation.build(described)
    # rows that belong to one client alone: no column of the others' id, or it is left out
    labels = (a, {"label": "y", "exclude": ["no"]})
    described = written(tmp_path, a=labels, b=(b.replace("z", "y"), {"id": "no", "label": "y"}))
    assert len(rows(federation.build(described).train)) == 4
    every = {"label": "y"}
    described = written(tmp_path, a=(a, every), b=(a, every))
    assert len(rows(federation.build(described).train)) == 4


def test_sparse_and_dense_values_of_the_same_samples_are_refused():
    x = np.eye(9, 2)
    ids = np.arange(9)
    given = {
        "a": table_from(csr_array(x), ids % 2, client="a", samples=ids),
        "b": table_from(x, client="b", samples=ids),
    }
    described = from_dict(
        {
            "algorithm": {"name": "hyfdca"},
            "split": {"test": 0.0},
            "preprocessing": {"standardise": False},
            "client": [{"name": name} for name in given],
        }
    )
    with pytest.raises(FederationError, match=r"'x0' is in a sparse .* 'a' .* 'b', which hold the"):
        federation.build(described, given)
    apart = given | {"b": table_from(x, ids % 2, client="b", samples=ids + 50)}
    assert not federation.build(described, apart).train["b"].sparse
    # the samples that both have are of the test part
    halved = replace(described, split=replace(described.split, test=0.5))
    many = np.arange(100)
    alone = {"a": table_from(np.eye(100, 2), many % 2, client="a", samples=many)}
    tested = federation.build(halved, alone).test["a"].samples
    others = np.r_[tested, 200:260]
    both = {
        "a": table_from(csr_array(np.eye(100, 2)), many % 2, client="a", samples=many),
        "b": table_from(np.eye(len(others), 2), others % 2, client="b", samples=others),
    }
    with pytest.raises(FederationError, match="which hold the same samples"):
        federation.build(halved, both)


def test_rows_without_ids_and_labels_are_told_to_have_one_of_them(tmp_path):
    a, b = "no,x,y\n1,5,0\n2,6,1\n", "customer,z\n1,7\n2,8\n"
    described = written(tmp_path, a=(a, {"label": "y", "id": "no"}), b=(b, {}))
    with pytest.raises(
        FederationError, match=r"'b' has 2 .* no ids that others know: set id to.*take the"
    ):
        federation.build(described)
    found = federation.build(written(tmp_path, a=(a, {"label": "y", "id": "no"}),
                                     b=(b, {"id": "customer"})))  # fmt: skip
    assert rows(found.train) == {1, 2}


def test_ids_with_and_without_zeros_in_front_are_told_how_to_meet(tmp_path):
    a, b = "no,x,y\n07,5,0\n08,6,1\n", "no,z\n7,7\n8,8\n"
    own = {"id": "no", "label": "y"}
    with pytest.raises(
        FederationError, match=r'set normalise = \["zeros"\] in \[alignment\] or id_t'
    ):
        federation.build(written(tmp_path, a=(a, own), b=(b, {"id": "no"})))
    text = written(tmp_path, a=(a, own), b=(b, {"id": "no", "id_type": "text"}))
    with pytest.raises(
        FederationError, match=r"without zeros in front 2 .* normalise = \[\"zeros\"\]"
    ):
        federation.build(text)
    # what they are told brings them together
    alike = replace(text, alignment=replace(text.alignment, normalise=("zeros",)))
    assert rows(federation.build(alike).train) in ({"7", "8"}, {7, 8})
    whole = {"id_type": "integer", "id": "no"}
    found = federation.build(written(tmp_path, a=(a, own | whole), b=(b, whole)))
    assert rows(found.train) == {7, 8}
    # others are told to write them as text
    named = written(tmp_path, a=(a.replace("07", "A7"), own), b=(b, {"id": "no"}))
    with pytest.raises(FederationError, match=r"set id_type = \"text\" at 'b'"):
        federation.build(named)


def test_labels_that_differ_are_one_sentence():
    described, tables = parties(bank=([1, 2], [0.0, 1.0]), shop=([2, 3], [0.0, 1.0]))
    with pytest.raises(FederationError, match="first: sample 2 at 'bank' and 'shop'"):
        federation.build(described, tables)


def test_a_party_whose_rows_are_all_held_out_is_named():
    described, tables = parties(bank=(list(range(50)), [0.0, 1.0] * 25), shop=([7], None))
    for salt in map(str, range(20)):
        split = {"test": 0.5, "salt": salt}
        tree = {"algorithm": {"name": "hyfdca"}, "split": split}
        described = from_dict({**tree, "client": [{"name": "bank"}, {"name": "shop"}]})
        try:
            federation.build(described, tables)
        except TableError as problem:
            assert str(problem).startswith("Client 'shop': All 1 rows")  # noqa: PT017
            break
    else:
        pytest.fail("20 salts never held out sample 7")


def test_tables_that_a_function_makes_are_not_kept():
    described, tables = parties(bank=([1, 2, 3], [0.0, 1.0, 1.0]))
    alive = []

    def read():
        made = dict(tables)
        tables.clear()
        alive.append(weakref.ref(made["bank"]))
        return made

    found = federation.build(described, read)
    gc.collect()
    assert alive[0]() is None
    assert found.train["bank"].shape == (3, 1)


def test_a_simulation_keeps_who_is_dealt_alike(tmp_path):
    tree = {
        "algorithm": {"name": "standalone"},
        "dataset": {"name": "digits", "train_per_class": 20},
        "partition": {"kind": "clusters", "clients": 4, "clusters": 2, "classes": 5},
    }
    found = federation.build(from_dict(tree, tmp_path))
    assert found.structure.clients == found.schema.clients
    assert found.structure.levels == {"clusters": (0, 0, 1, 1)}
    for train, test in zip(found.train.values(), found.test.values(), strict=True):
        assert set(test.y.tolist()) <= set(train.y.tolist())
        assert len(set(train.y.tolist())) == 5
    tree["partition"] = {"kind": "horizontal", "clients": 4}
    assert federation.build(from_dict(tree, tmp_path)).structure is None


def test_tables_are_read_side_by_side_and_the_first_client_s_error_is_told(tmp_path, monkeypatch):
    described = written(tmp_path, a=("x,y\n1,0\n", {}), b=("x,y\n1,0\n", {}))
    both = threading.Barrier(2, timeout=20)

    def failing(source, folder=None):
        both.wait()  # the one is read while the other is
        raise TableError(f"{source.name} cannot be read.")

    monkeypatch.setattr(federation, "read", failing)
    with pytest.raises(TableError, match="a cannot be read"):
        federation.build(described)
    # with little memory there is one at a time
    alone = threading.Lock()

    def counted(source, folder=None):
        assert alone.acquire(blocking=False)
        try:
            return reader.read(source, folder)
        finally:
            alone.release()

    monkeypatch.setattr(federation, "read", counted)
    little = replace(described, memory="1MB", out=str(tmp_path))
    assert list(federation.read_tables(little)) == ["a", "b"]


def many_clients(folder, **keys):
    """Return an experiment of six clients: pairs have the same rows, in an order of their own."""
    rng, clients = np.random.default_rng(3), []
    for number in range(6):
        ids = rng.permutation(np.arange(80) + 60 * (number // 2))
        lines = [
            f"p{one},{one * (number + 1)},{'abc'[one % (2 + number % 2)]},{one % 3 // 2}"
            for one in ids
        ]
        head = f"id,x{number % 2},kind{number % 2},y\n"
        (folder / f"{number}.csv").write_text(head + "\n".join(lines) + "\n")
        clients.append({"name": f"c{number}", "path": f"{number}.csv", "id": "id", "label": "y"})
    tree = {"experiment": keys, "algorithm": {"name": "hyfdca"}, "client": clients}
    return from_dict(tree, folder)


def contents(blocks):
    """Return all that blocks hold, each by its client's name."""
    return {
        name: [
            block.samples.tolist(),
            block.features,
            (block.x.written().toarray() if block.sparse else block.x).tolist(),
            block.y.tolist(),
        ]
        for name, block in blocks.items()
    }


def test_the_blocks_of_clients_are_the_same_however_many_threads_make_them(tmp_path, in_threads):
    found = {
        threads: federation.build(many_clients(tmp_path, workers=threads)) for threads in (1, 3, 0)
    }
    assert [one.side_by_side for one in found.values()] == [1, 3, 4]
    alone = found.pop(1)
    assert [*alone.train] == [*alone.test] == [f"c{number}" for number in range(6)]
    for one in found.values():
        for part in ("train", "test"):
            own, expected = getattr(one, part), getattr(alone, part)
            assert [*own] == [*expected]
            assert contents(own) == contents(expected)
        assert one.fingerprint() == alone.fingerprint()
    values = contents(alone.train)["c3"]
    assert all(  # the first column is a number of the client's times that of the id
        4.0 * int(name[1:]) in row for name, row in zip(values[0], values[2], strict=True)
    )


def test_a_checksum_is_that_of_all_bytes_in_order(tmp_path, in_threads):
    blocks = {
        name: federation.Block(np.arange(at, at + 40), ("a", "b"), np.full((40, 2), float(at)))
        for at, name in enumerate(("one", "two", "three"))
    }
    said = b"".join(
        f"{name} ('a', 'b')".encode() + block.samples.tobytes() + block.x.tobytes()
        for name, block in blocks.items()
    )
    for threads in (1, 2, 5):
        assert checksums.checksum(blocks, 7, threads) == zlib.crc32(said, 7)
    # the order counts: with two clients exchanged it is another one
    exchanged = {name: blocks[name] for name in ("two", "one", "three")}
    assert checksums.checksum(exchanged, 7, 5) != zlib.crc32(said, 7)


@pytest.mark.usefixtures("sparse_tables")
def test_rows_that_are_not_written_yet_have_the_checksum_of_their_values(tmp_path, monkeypatch):
    monkeypatch.setattr("intarsia.core.memory._PIECE", 1000)  # values that are worked on at once
    lines = [f"{one},{one / 7},t{one * one % 83},{one % 2}" for one in range(400)]
    text = "id,x,town,y\n" + "\n".join(lines)
    described = written(tmp_path, a=(text, {"id": "id", "label": "y"}))
    block = federation.build(described).train["a"]
    assert not isinstance(block.x, csr_array)
    x = block.x.written()
    assert x.shape[1] > 40
    assert x.nnz < 3 * 400
    said = f"a {block.features}".encode() + b"".join(
        one.tobytes()
        for one in (block.samples, x.data, x.indices, x.indptr, block.y, block.indicators)
    )
    for one in (block, replace(block, x=x)):
        assert checksums.checksum({"a": one}, 3) == zlib.crc32(said, 3)


@pytest.mark.parametrize("size", [0, 1, 8, 1000, 70_001])
def test_checksums_of_two_texts_join_to_that_of_both(size):
    first, second = b"what comes first", np.random.default_rng(size).bytes(size)
    found = checksums.joined_checksum(zlib.crc32(first), zlib.crc32(second), size)
    assert found == zlib.crc32(first + second)


def test_of_clients_in_threads_the_first_one_s_error_is_told(tmp_path, in_threads, monkeypatch):
    described, later = many_clients(tmp_path), threading.Event()

    def failing(table, settings, hashes):
        if table.client == "c0":
            return federation.split(table)
        if table.client == "c1":
            assert later.wait(20)  # c2 fails sooner
        else:
            later.set()
        raise TableError(f"{table.client} cannot be split.")

    monkeypatch.setattr(federation, "held_out", failing)
    with pytest.raises(TableError, match="Client 'c1': c1 cannot be split"):
        federation.build(described)


def test_libraries_with_threads_and_workers_of_one_leave_no_other_threads(tmp_path, in_threads):
    how = ({"threads": 2}, {"workers": 1}, {"workers": 2}, {"workers": 9}, {})
    assert [many_clients(tmp_path, **keys).side_by_side for keys in how] == [1, 1, 2, 4, 4]


def test_labels_that_are_numbers_agree_whatever_their_digits():
    rng = np.random.default_rng(0)
    x, rows = rng.normal(size=(300, 2)), np.arange(300)
    y = x @ [1.0, 2.0] + rng.normal(size=300)
    one = pd.DataFrame({"id": rows, "a": x[:, 0], "y": [float(f"{own:.15g}") for own in y]})
    other = pd.DataFrame({"id": rows, "b": x[:, 1], "y": y})
    assert (one["y"] != y).sum() > 100
    how = {"id": "id", "label": "y", "loss": "squared", "regularisation": 1e-3, "test": 0.0}
    how |= {"yardsticks": False, "tolerance": 1e-12}
    model = intarsia.run(tables={"one": one, "other": other}, **how).model
    own = np.column_stack([(x - x.mean(axis=0)) / x.std(axis=0), np.ones(300)])
    truth = own @ np.linalg.solve(own.T @ own + 0.3 * np.eye(3), own.T @ y)
    np.testing.assert_allclose(model.predict(pd.DataFrame(x, columns=["a", "b"])), truth, rtol=1e-9)
    said = r"different labels.*agree in thirteen digits \(single"
    with pytest.raises(FederationError, match=said):
        intarsia.run(tables={"one": one, "other": other.astype({"y": np.float32})}, **how)


def test_labels_that_differ_are_counted_in_all_parts_of_the_rows_at_once():
    rows = np.arange(100)
    one = pd.DataFrame({"id": rows, "a": np.sin(rows), "y": rows % 2})
    other = pd.DataFrame({"id": rows, "b": np.cos(rows), "y": np.where(rows < 40, 1, rows) % 2})
    tables = {"one": one, "other": other}
    with pytest.raises(FederationError, match=r"^20 samples have different labels"):
        intarsia.run(tables=tables, id="id", label="y", test=0.5)
    tables["other"] = tables["other"].assign(y=np.where(rows == 40, 1, rows) % 2)
    with pytest.raises(FederationError, match=r"^1 sample has different labels"):
        intarsia.run(tables=tables, id="id", label="y", test=0.5)


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        ("<5", "list the column in limits at 'one', so that the limit itself counts"),
        ("(5.5)", "write them with a minus in front, as in '-5.5'"),
        ("5 %", "if all are in '%', name it in units at 'one'; else convert them"),
        ("many", "label_map which class 'many' is"),
    ],
)
def test_amounts_to_predict_of_which_some_are_text_are_told_as_amounts(odd, said):
    y = [odd, *(f"{row}.5" for row in range(59))]
    one = pd.DataFrame({"id": range(60), "a": np.sin(range(60)), "y": y})
    other = pd.DataFrame({"id": range(60), "b": np.cos(range(60))})
    with pytest.raises(FederationError, match=re.escape(said)):
        intarsia.run(tables={"one": one, "other": other}, id="id", label="y", loss="squared")


def labelled_twice():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 2))
    whole = pd.DataFrame(x, columns=["a", "b"]).assign(id=range(200))
    whole["paid"] = np.where(x[:, 0] > 0, "yes", "no")
    whole["left"] = np.where(x[:, 1] > 0, "yes", "no")
    return whole


@pytest.mark.parametrize("name", ["left", "Paid "])
def test_label_columns_of_different_names_are_told(name):
    whole = labelled_twice()
    bank = whole[:100][["id", "a", "paid"]]
    shop = whole[100:][["id", "b", "left"]].rename(columns={"left": name})
    own = {"bank": {"label": "paid"}, "shop": {"label": name}}
    run = intarsia.run(
        tables={"bank": bank, "shop": shop}, id="id", table_settings=own, yardsticks=False
    )
    said = [note for note in run.notes if note.startswith("The labels are the column ")]
    if name == "left":
        assert "the column 'paid' at 'bank', 'left' at 'shop'; one model" in said[0]
    else:
        assert not said


def test_labels_that_are_a_feature_elsewhere_are_told_whatever_the_case():
    whole = labelled_twice()
    shop = whole[["id", "b", "paid"]].rename(columns={"paid": "PAID"})
    own = {"bank": {"label": "paid"}, "shop": {}}
    tables = {"bank": whole[["id", "a", "paid"]], "shop": shop}
    run = intarsia.run(tables=tables, id="id", table_settings=own, yardsticks=False)
    [said] = [note for note in run.notes if "predicts the label from itself" in note]
    assert "'paid' has the labels of 'bank' and 'PAID' is a feature at 'shop'" in said
    assert "set label to 'PAID' at 'shop'" in said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda table: table, []),
        (lambda table: table.iloc[::-1], []),
        (lambda table: table.replace({"age": 31}, 32), ["other values are in column 'age'"]),
        (
            lambda table: table.assign(town=table.town[::-1].to_list(), paid="no"),
            ["other values are in columns 'town', 'paid'"],
        ),
        (
            lambda table: table.assign(age=table.age.iloc[[1, 0, *range(2, 40)]].to_list()),
            ["other values are in column 'age'"],
        ),
        (lambda table: table[:-1], ["it has 39 rows and had 40"]),
        (lambda table: table.assign(id=table.id + 1), ["some of its rows have other ids"]),
        (
            lambda table: table.rename(columns={"age": "years"}),
            ["column 'age' went away", "column 'years' came anew"],
        ),
        (
            lambda table: table[["id", "income", "age", "town", "paid"]],
            ["its columns are in another order"],
        ),
    ],
)
def test_what_a_table_has_otherwise_is_told_by_column(change, said):
    given = pd.DataFrame(
        {
            "id": range(40),
            "age": range(20, 60),
            "income": [1.5 * one for one in range(40)],
            "town": ["Ulm", "Bonn", "Kiel", "Trier"] * 10,
            "paid": ["yes", "no"] * 20,
        }
    )

    def sums(table):
        read = table_from(table, client="bank", id="id", label="paid", categorical=("town",))
        return checksums.TableSums.of(read, hashed(read.samples))

    before = codec.decode(codec.encode(sums(given)), checksums.TableSums)
    assert before.changes(sums(change(given))) == tuple(said)
