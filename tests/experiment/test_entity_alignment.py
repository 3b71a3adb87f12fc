from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import intarsia
from intarsia.data.reader import table_from
from intarsia.errors import ExperimentError, FederationError, TableError
from intarsia.experiment import entity_alignment, federation
from intarsia.experiment.config import Alignment, from_dict, load, to_dict
from intarsia.experiment.entity_alignment import same_numbers
from intarsia.privacy.entity_matching.pseudonyms import WIDTH
from intarsia.privacy.keys.shared_key import SharedKey
from intarsia.training.run import run

RNG = np.random.default_rng(0)
CUSTOMERS = [f"Kunde-{number:05d}" for number in RNG.choice(90000, 300, replace=False)]
LABELS = RNG.choice([0.0, 1.0], 300)


def described(*names, test=0.25, **settings):
    return from_dict(
        {
            "algorithm": {"name": "hyfdca"},
            "split": {"test": test},
            "alignment": settings,
            "client": [{"name": name} for name in names],
        }
    )


def table(client, ids, labels=None):
    x = np.arange(float(len(ids)))[:, None]
    return table_from(x, labels, client=client, samples=np.array(ids), names=[client])


def tables(**changed):
    made = {
        "bank": table("bank", CUSTOMERS[:200], LABELS[:200]),
        "shop": table("shop", CUSTOMERS[100:]),
        "phone": table("phone", CUSTOMERS[50:150], LABELS[50:150]),
    }
    return {**made, **changed}


def pair():
    made = tables()
    return {"bank": made["bank"], "shop": made["shop"]}


def sizes(schema):
    return {cell.owners: cell.stop - cell.start for cell in schema.samples.cells}


def raw_bytes(texts):
    return [form for text in texts for form in (text.encode(), text.encode("utf-32-le"))]


@pytest.mark.parametrize("ids", ["pseudonyms", "psi"])
def test_the_parties_share_the_same_rows_as_with_plain_ids(ids):
    given = pair()
    plain = federation.build(described(*given, test=0.0), given)
    found = federation.build(described(*given, test=0.0, ids=ids), given)
    assert sizes(found.schema) == sizes(plain.schema)
    assert found.schema.holdings["bank"].samples.dtype == f"S{WIDTH}"
    for name, block in plain.train.items():
        # the rows of a client stay in its order: the numbers and the labels are those of the ids
        np.testing.assert_array_equal(found.train[name].x, block.x)
    place = {one: row for row, one in enumerate(found.train["bank"].samples.tolist())}
    for name, row in zip(
        found.train["shop"].samples.tolist(), found.train["shop"].x[:, 0], strict=True
    ):
        if name in place:
            assert plain.train["bank"].samples[place[name]] == given["shop"].samples[int(row)]


@pytest.mark.parametrize("ids", ["pseudonyms", "psi"])
def test_nothing_public_holds_an_id(ids, tmp_path):
    given = pair()
    found = federation.build(described(*given, ids=ids), given)
    for schema in (found.schema, found.test_schema):
        arrays = [held.samples for held in schema.holdings.values()]
        arrays += [schema.samples.ids, schema.labelled.ids]
        content = b"".join(array.tobytes() for array in arrays)
        assert not any(one in content for one in raw_bytes(CUSTOMERS))
    plain = federation.build(described(*given), given).schema.samples.ids.tobytes()
    assert any(one in plain for one in raw_bytes(CUSTOMERS))  # the search finds what is there
    out = tmp_path / "run"
    run(described(*given, ids=ids), tables=given, out=out)
    files = [path for path in out.rglob("*") if path.is_file()]
    assert {"server.state", "result.json", "history.jsonl"} <= {path.name for path in files}
    for path in files:
        content = path.read_bytes()
        assert not any(one in content for one in raw_bytes(CUSTOMERS)), path


@pytest.mark.parametrize("ids", ["pseudonyms", "psi"])
def test_all_parties_hold_out_the_same_samples(ids):
    given = pair()
    found = federation.build(described(*given, ids=ids), given, bytes(32))
    train = {one for block in found.train.values() for one in block.samples.tolist()}
    test = {one for block in found.test.values() for one in block.samples.tolist()}
    assert not train & test
    assert 0.2 < len(test) / len(CUSTOMERS) < 0.3


@pytest.mark.parametrize("ids", ["pseudonyms", "psi"])
def test_a_run_that_goes_on_finds_the_same_parties_from_the_secret(ids):
    given = pair()
    first = federation.build(described(*given, ids=ids), given)
    again = federation.build(described(*given, ids=ids), given, first.secret)
    fresh = federation.build(described(*given, ids=ids), given)
    assert again.fingerprint() == first.fingerprint()
    assert fresh.fingerprint() != first.fingerprint()
    assert len(first.secret) == 32
    assert str(first.secret) not in repr(first)
    assert federation.build(described(*given), given).secret is None


def test_the_key_file_of_the_clients_makes_the_pseudonyms(tmp_path):
    given = tables()
    keys = [tmp_path / name for name in ("one.key", "other.key")]
    for path in keys:
        SharedKey.draw("test").store(path)
    found = [
        federation.build(described(*given, ids="pseudonyms", key=str(path)), given)
        for path in (keys[0], keys[0], keys[1])
    ]
    assert found[0].fingerprint() == found[1].fingerprint() != found[2].fingerprint()
    assert sizes(found[0].schema) != {}


def test_the_key_for_sums_makes_the_pseudonyms_where_no_other_is_named(tmp_path):
    tree = {
        "algorithm": {"name": "hyfdca"},
        "privacy": {"mode": "masked", "key": "our.key"},
        "client": [{"name": "a", "path": "a.csv"}],
    }
    for ids, expected in (("pseudonyms", str(tmp_path / "our.key")), ("plain", None)):
        found = from_dict({**tree, "alignment": {"ids": ids}}, tmp_path)
        assert found.alignment.key == expected
    own = from_dict({**tree, "alignment": {"ids": "psi", "key": "ids.key"}}, tmp_path)
    assert own.alignment.key == str(tmp_path / "ids.key")


def test_each_party_without_ids_has_rows_of_its_own():
    given = tables(
        shop=table_from(np.zeros((9, 1)), np.arange(9.0) % 2, client="shop", names=["x"])
    )
    settings = Alignment(ids="pseudonyms")
    ids = {name: one.samples for name, one in given.items()}
    names = entity_alignment.public_names(settings, ids, bytes(32), ["shop"])
    twin = {**ids, "phone": ids["shop"]}  # text that is equal, but somebody's ids
    assert not np.isin(
        names.public["shop"],
        entity_alignment.public_names(settings, twin, bytes(32)).public["phone"],
    ).any()
    found = federation.build(described(*given, ids="pseudonyms"), given)
    assert ("shop",) in sizes(found.schema)


def test_whole_numbers_stand_beside_parties_without_ids():
    given = {
        "a": table("a", range(20), np.arange(20.0) % 2),
        "b": table_from(np.zeros((9, 1)), np.arange(9.0) % 2, client="b", names=["x"]),
    }
    found = federation.build(described("a", "b", test=0.0, ids="pseudonyms"), given)
    assert sizes(found.schema) == {("a",): 20, ("b",): 9}


@pytest.mark.parametrize("ids", ["plain", "pseudonyms", "psi"])
def test_ids_that_are_written_differently_meet_by_declared_rules(ids):
    given = {
        "bank": table("bank", ["kd0 1", "KD02", "kd03"], [0.0, 1.0, 0.0]),
        "shop": table("shop", ["KD 01", "kd02", "KD04"], [0.0, 1.0, 1.0]),
    }
    rules = ["spaces", "case"]
    found = federation.build(described(*given, test=0.0, ids=ids, normalise=rules), given)
    assert sizes(found.schema)[("bank", "shop")] == 2
    held, *_ = federation.parties(described(*given, ids=ids, normalise=rules), given)
    assert held["shop"].samples.tolist() == ["kd01", "kd02", "kd04"]


def test_texts_that_became_whole_numbers_meet_those_of_others():
    given = {
        "bank": table("bank", ["007", "008"], [0.0, 1.0]),
        "shop": table("shop", [7, 9], [0.0, 1.0]),
    }
    found = federation.build(described(*given, test=0.0, normalise=["zeros"]), given)
    assert sizes(found.schema)[("bank", "shop")] == 1
    with pytest.raises(FederationError, match="one type"):
        federation.build(described(*given, test=0.0), given)


def test_psi_is_for_two_parties_with_ids():
    given = tables()
    with pytest.raises(ExperimentError, match='there are 3 clients; set ids = "pseudonyms"'):
        federation.build(described(*given, ids="psi"), given)
    own = table_from(np.zeros((9, 1)), np.arange(9.0) % 2, client="shop", names=["x"])
    given = {"bank": given["bank"], "shop": own}
    with pytest.raises(ExperimentError, match="client 'shop' has no ids to intersect"):
        federation.build(described(*given, ids="psi"), given)


def test_an_error_about_a_sample_names_the_partys_own_id():
    other = 1 - LABELS
    given = {"bank": tables()["bank"], "phone": table("phone", CUSTOMERS[:9], other[:9])}
    with pytest.raises(FederationError, match=r"first: sample 'Kunde-[0-9]{5}' at 'bank'"):
        federation.build(described(*given, ids="pseudonyms"), given)
    twice = tables(shop=table("shop", ["A7", "a7"], [0.0, 1.0]))
    with pytest.raises(TableError, match=r"Client 'shop': the ids 'A7' .* and 'a7'"):
        federation.build(described(*twice, ids="pseudonyms", normalise=["case"]), twice)
    bad = tables(shop=table("shop", ["a\u200b7", "a7"], [0.0, 1.0]))
    with pytest.raises(TableError, match=r"Client 'shop': .*U\+200B"):
        federation.build(described(*bad, ids="pseudonyms"), bad)


@pytest.mark.parametrize("ids", ["pseudonyms", "psi"])
def test_a_simulation_is_aligned_as_real_parties_are(ids):
    tree = {
        "algorithm": {"name": "hyfdca"},
        "dataset": {"name": "breast_cancer"},
        "partition": {
            "kind": "overlap",
            "rows": 2,
            "columns": 1,
            "shared_rows": 0.3,
            "shared_columns": 0.0,
        },
        "split": {"test": 0.25},
    }
    plain = federation.build(from_dict(tree))
    found = federation.build(from_dict({**tree, "alignment": {"ids": ids}}))
    assert sizes(found.schema) == sizes(plain.schema)
    assert sizes(found.test_schema) == sizes(plain.test_schema)
    for name, block in plain.train.items():
        np.testing.assert_array_equal(found.train[name].x, block.x)
        assert found.test[name].samples.dtype == f"S{WIDTH}"


def test_training_comes_to_the_same_model_with_and_without_pseudonyms():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(len(CUSTOMERS), 4))
    y = (x @ [1.0, -1.0, 0.5, 0.0] > 0).astype(float)
    given = {
        "bank": table_from(x[:200, :2], y[:200], client="bank", samples=CUSTOMERS[:200]),
        "shop": table_from(
            x[100:, 2:], y[100:], client="shop", samples=CUSTOMERS[100:], names=["x2", "x3"]
        ),
    }
    weights = []
    for ids in ("plain", "pseudonyms", "psi"):
        result = run(described(*given, test=0.0, ids=ids), tables=given, out=None)
        weights.append(result.model.coef_.ravel())
    np.testing.assert_allclose(weights[1], weights[0], atol=2e-3)
    np.testing.assert_allclose(weights[2], weights[0], atol=2e-3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ids": "hashes"}, r'\[alignment\] ids is "hashes"'),
        ({"normalise": ["lower"]}, r"\[alignment\] normalise is"),
        ({"normalize": []}, "unknown key 'normalize'.*'normalise'"),
        ({"key": "k"}, 'ids is "plain", which uses none'),
    ],
)
def test_a_wrong_setting_is_one_sentence(settings, message):
    with pytest.raises(ExperimentError, match=message):
        described("bank", **settings)


def test_the_settings_survive_being_written_down(tmp_path):
    tree = {
        "algorithm": {"name": "hyfdca"},
        "alignment": {
            "ids": "pseudonyms",
            "normalise": ["strip", "case"],
            "key": "k.key",
            "dictionary": "d.toml",
        },
        "client": [{"name": "a", "units": {"age": "months"}}],
    }
    made = from_dict(tree, tmp_path)
    assert made.alignment.key == str(tmp_path / "k.key")
    assert made.alignment.dictionary == str(tmp_path / "d.toml")
    again = from_dict(to_dict(made), tmp_path)
    assert again.alignment == made.alignment
    assert again.clients == made.clients


def test_the_example_in_the_documentation_runs(tmp_path):
    page = Path(__file__).parents[2] / "docs/explanations/alignment.md"
    text = page.read_text(encoding="utf-8")
    experiment, shared = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "study.toml").write_text(experiment, encoding="utf-8")
    (tmp_path / "features.toml").write_text(shared, encoding="utf-8")
    for name, header in (("clinic", "patient,AGE_M,SEX,ill"), ("hospital", "no,age,sex,weight")):
        rows = [f"{'KD ' if name == 'clinic' else 'kd'}0{n},{n},{n % 2},{n % 3}" for n in range(90)]
        (tmp_path / f"{name}.csv").write_text("\n".join([header, *rows]), encoding="utf-8")
    SharedKey.draw("study").store(tmp_path / "clients.key")
    found = federation.build(load(tmp_path / "study.toml"))
    assert sizes(found.schema).keys() == {("clinic", "hospital")}
    assert found.train["clinic"].features == ("age", "sex=0", "sex=1")
    np.testing.assert_allclose(
        np.sort(found.train["clinic"].x[:, 0]) * 12, np.sort(found.train["hospital"].x[:, 0])
    )


def test_ids_that_are_one_number_in_two_ways_are_told_where_some_others_match():
    rows = np.arange(80)
    frames = {
        "lab": pd.DataFrame({"id": [f"{one / 4:.2f}" for one in rows], "x": rows % 7.0}),
        "ward": pd.DataFrame({"id": rows / 4, "z": rows % 5.0}),
    }
    for one in frames.values():
        one["y"] = rows // 4 % 2
    how = {"id": "id", "label": "y", "yardsticks": False}
    # .25 and .75 are written alike; .50 is .5 and 1.00 is 1
    shown = " ".join(str(intarsia.inspect(tables=frames, **how)).split())
    assert "40 ids of 'lab' and 'ward' are the same number in two ways" in shown
    found = intarsia.run(tables=frames, rounds=1, **how)
    assert any("40 ids of 'lab' and 'ward'" in one for one in found.notes)
    frames["lab"] = frames["lab"].drop(columns="y")
    frames["ward"] = frames["ward"][rows % 4 == 2]
    frames["lab"] = frames["lab"][rows % 4 == 2]
    with pytest.raises(FederationError, match=r"written as 1[.]50 is for 1[.]5: write"):
        intarsia.run(tables=frames, rounds=1, **how)


def test_codes_of_which_two_would_be_one_number_are_other_ids():
    one, two = np.array(["1.1", "1.10", "2.50"]), np.array(["1.1", "2.5"])
    assert same_numbers(one, two) == 0
    assert same_numbers(one[1:], two) == 2
    assert same_numbers(np.array(["2,50", "x"]), two) == 1
    assert same_numbers(two, two) == 0
    assert same_numbers(two, np.arange(3)) == 0


def test_clients_with_no_id_in_common_but_by_a_rule_are_told():
    rows = np.arange(40)
    frames = {
        "lab": pd.DataFrame({"id": [f"a{one}" for one in rows], "x": rows % 7.0, "y": rows % 2}),
        "ward": pd.DataFrame({"id": [f"A{one}" for one in rows], "x": rows % 7.0, "y": rows % 2}),
    }
    found = intarsia.run(tables=frames, id="id", label="y", rounds=1, yardsticks=False)
    (note,) = (one for one in found.notes if "no id in common" in one)
    assert 'set normalise = ["case"]' in note
    assert "40 that a rule makes the same" in note
    frames["ward"]["id"] = [f"B{one}" for one in rows]
    found = intarsia.run(tables=frames, id="id", label="y", rounds=1, yardsticks=False)
    assert not [one for one in found.notes if "no id in common" in one]
