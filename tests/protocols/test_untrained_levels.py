"""A level of a category that training did not have counts as "other", or as a missing value."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array

import intarsia
from intarsia.algorithms.personalised.fedrep import Local
from intarsia.core.block import Block
from intarsia.data.encoding import MOST_CENTRED
from intarsia.data.table import Hashes
from intarsia.experiment.config import Split
from intarsia.inference.predict import predict
from intarsia.protocols.untrained_levels import (
    as_learnt_alone,
    with_levels,
    without_untrained,
)

pytestmark = pytest.mark.usefixtures("sparse_tables")

ALONE = {
    "flic": {},
    "hetfedrep": {},
    "local": {},
    "fedhenn": {},
    "hyfem": {"shares": "nothing"},
    "femam-flic": {},
}


def party(levels, rows=120, seed=0):
    """Return a table whose label is what the levels at even places, and x, say."""
    rng = np.random.default_rng(seed)
    town, x = rng.choice(len(levels), rows), rng.normal(size=rows)
    score = x + np.where(town % 2 == 0, 1, -1) + rng.normal(size=rows) / 2
    return pd.DataFrame(
        {
            "id": np.arange(rows) + 1000 * seed,
            "town": np.array(levels)[town],
            "x": x,
            "y": np.where(score > 0, "yes", "no"),
        }
    )


def ran(tables, algorithm, **more):
    how = {"categorical": ["town"], "rounds": 2, "yardsticks": False, **more}
    return intarsia.run(tables=tables, id="id", label="y", algorithm=algorithm, **how)


@pytest.mark.parametrize("algorithm", ALONE)
@pytest.mark.parametrize("many", [False, True])
def test_a_network_takes_a_level_of_others_alone_for_a_missing_one(algorithm, many):
    own = [f"t{at}" for at in range(MOST_CENTRED if many else 2)]
    tables = {"bank": party(own, 300), "shop": party(["c", "d"], seed=1)}
    network = ran(tables, algorithm, test=0.0, **ALONE[algorithm]).model["bank"]
    new = pd.DataFrame({"town": ["t0", "t1", "c", "d", "zz", None], "x": 0.0})
    scores = network.decision_function(new)
    # what the others' rows say of "c" is in no weight of this network: it began at random
    assert scores[2] == scores[3] == scores[4] == scores[5]
    assert scores[0] != scores[1]
    # with each number: the weights of the columns of such levels count for nothing
    wild = {name: one.copy() for name, one in network.parameters.items()}
    lost = [at for at, name in enumerate(network.features) if name in ("town=c", "town=d")]
    wide = [name for name, one in wild.items() if one.ndim == 2 and one.shape[1] == len(scores)]
    for name in wide:
        wild[name][:, lost] = 1e3
    other = type(network)(**{**vars(network), "parameters": wild})
    assert np.array_equal(other.decision_function(new), scores)


@pytest.mark.parametrize("algorithm", ["hyfem", "fedavg-ft", "fedprox", "ditto"])
def test_a_network_that_others_train_too_knows_their_levels(algorithm):
    tables = {"bank": party(["a", "b"], 300), "shop": party(["c", "d"], 300, seed=1)}
    network = ran(tables, algorithm, test=0.0, rounds=5).model["bank"]
    new = pd.DataFrame({"town": ["c", "d"], "x": 0.0})
    assert list(network.predict(new)) == ["yes", "no"]


@pytest.mark.parametrize("algorithm", ["flic", "hyfem", "femam", "local", "hyfdca"])
@pytest.mark.parametrize("many", [False, True])
def test_test_rows_are_evaluated_as_predict_reads_them(algorithm, many, tmp_path):
    own = [f"t{at}" for at in range(MOST_CENTRED + 2 if many else 4)]
    tables = {"bank": party(own, 600), "shop": party([*own[:-1], "sea"], 600, seed=1)}
    evaluated = {}
    for name, table in tables.items():
        tested = Hashes().of(table["id"].to_numpy(), hashlib.blake2b(b"").digest()) < 0.3
        evaluated[name] = rows = table[tested].copy()
        few = rows.index[:40]  # of a level that is in no training row
        for one in (table, rows):
            one.loc[few, "town"] = f"{name} alone"
    found = ran(tables, algorithm, rounds=3, test=0.3, out=str(tmp_path / "run"))
    [said] = [note for note in found.notes if "no training row" in note]
    assert "town (40 at 'bank', 40 at 'shop')" in said or "of the client" in said

    def score(rows, client):
        rows.to_csv(tmp_path / "new.csv", index=False)
        again = predict(tmp_path / "run", tmp_path / "new.csv", client=client)
        assert sum("count as" in note and "town" in note for note in again.notes) == 1
        return again.score

    if algorithm == "hyfdca":
        again = score(pd.concat(evaluated.values()), None)
        assert again.loss == pytest.approx(found.metrics.server.loss, rel=1e-9)
        return
    for name, rows in evaluated.items():
        again, before = score(rows, name), found.metrics.clients[name]
        assert again.samples == before.samples
        assert again.accuracy == pytest.approx(before.accuracy, abs=1e-12)
        assert again.loss == pytest.approx(before.loss, rel=1e-5)


@pytest.mark.parametrize("wide_table", [False, True])
def test_test_rows_that_lack_a_wide_category_are_evaluated_by_its_mean(wide_table, tmp_path):
    towns = 300 if wide_table else 30  # sparse, or dense
    rng = np.random.default_rng(2)
    whole = party([f"t{at}" for at in range(towns)], 3000)
    whole["age"] = rng.normal(size=3000)
    tested = Hashes().of(whole["id"].to_numpy(), hashlib.blake2b(b"").digest()) < 0.3
    bank, shop = whole.drop(columns="age"), whole.drop(columns=["x", "y"])[500:2500]
    rows = np.flatnonzero(tested)
    for lacking, tables in ((rows[::4], [bank]), (rows[1::4], [shop]), (rows[2::4], [bank, shop])):
        for table in tables:
            table.loc[table.index.intersection(lacking), "town"] = None
    found = ran(
        {"bank": bank, "shop": shop}, "hyfdca", test=0.3, out=str(tmp_path / "run"), rounds=100
    )
    assert ("town" in str(found.notes)) is False
    # what anyone has of a row is in the whole table, and what nobody has is missing
    merged = bank.merge(shop, on="id", how="outer", suffixes=("", "2"))[tested]
    merged["town"] = merged["town"].fillna(merged["town2"])
    assert 100 < merged["town"].isna().sum() < 500
    merged.drop(columns="town2").to_csv(tmp_path / "new.csv", index=False)
    again = predict(tmp_path / "run", tmp_path / "new.csv").score
    assert again.loss == pytest.approx(found.metrics.server.loss, rel=1e-9)


FEATURES = ("town=a", "town=b", "town=other", "x")


def block(x, wide=False):
    kinds = np.array([1, 1, 1, 0]) * wide
    return Block(
        *(np.arange(x.shape[0]), FEATURES, x),
        indicators=kinds,
        levels={"town": ("a", "b", "other")},
    )


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("rare", [False, True])
def test_rows_of_a_level_become_other_or_lack_one(wide, sparse, rare):
    x = np.array([[1, 0, 0, 5.0], [0, 1, 0, 6], [0, 0, 1, 7], [0, 1, 0, 8]])
    stored = csr_array(x)
    if sparse and not wide:  # zeros are written there
        stored = csr_array((x.ravel(), np.tile(np.arange(4), 4), np.arange(0, 17, 4)), shape=(4, 4))
    before = stored.copy()
    found = without_untrained(
        block(stored if sparse else x.copy(), wide), np.array([True, False, rare, True])
    )
    gap = 0.0 if wide else np.nan
    told = [0, 0, 1] if rare else [gap] * 3
    expected = x.copy()
    expected[1, :3] = expected[3, :3] = told
    if not rare:
        expected[2, :3] = gap
    assert np.array_equal(found.x.toarray() if sparse else found.x, expected, equal_nan=True)
    assert (stored != before).nnz == 0  # what was given stays as it is


def test_what_is_learnt_alone_knows_nothing_of_others_levels():
    # standardised: absent, present and missing are three numbers of each level
    train = np.array([[2, -0.5, -0.1, 1.0], [-1, -0.5, 3, 2], [0, 0, 0, 3]])
    test = np.array([[-1, 4, -0.1, 1.0], [2, -0.5, -0.1, 1]])
    found = as_learnt_alone(block(train), block(test))
    assert np.array_equal(found.x, [[-1, 0, 3, 1], [2, 0, -0.1, 1]])
    assert np.array_equal(as_learnt_alone(block(train), block(train)).x[:, 1], np.zeros(3))


@pytest.mark.parametrize("many", [False, True])
def test_a_note_names_levels_that_too_few_training_rows_have(many):
    own = [f"t{at}" for at in range(MOST_CENTRED + 2 if many else 3)]
    tables = {"bank": party(own, 600), "shop": party(own, 600, seed=1)}
    for table in tables.values():
        tested = Hashes().of(table["id"].to_numpy(), hashlib.blake2b(b"").digest()) < 0.3
        rows = [*table.index[~tested][:4], *table.index[tested][:4]]
        table.loc[rows, "town"] = "sea"  # of eight rows, of which four train
        table["country"] = "one"
    notes = ran(tables, "hyfdca", test=0.3, categorical=[]).notes
    [said] = [note for note in notes if "least_rows training rows" in note]
    assert said.endswith("so left at 0: 'town=sea'.")
    [said] = [note for note in notes if note.startswith("Constant")]
    assert said.endswith("so left at 0: 'country=one'.")
    [said] = [note for note in notes if "no training row" in note]
    assert "town (4 at 'bank', 4 at 'shop')" in said


def test_rows_of_both_parts_that_are_evaluated_are_one_number_of_a_client():
    tables = {"bank": party(["a", "b"], 600), "shop": party(["a", "b"], 600, seed=1)}
    split = Split(test=0.3, stopping=0.2)
    for table in tables.values():
        ids = table["id"].to_numpy()
        tested, held_out = (
            Hashes().of(ids, hashlib.blake2b(salt.encode()).digest()) < share
            for salt, share in [("", split.test), (split.stopping_salt, split.stopping)]
        )
        rows = [*table.index[tested][:4], *table.index[held_out & ~tested][:3]]
        table.loc[rows, "town"] = "sea"
    how = {"test": split.test, "stopping": split.stopping, "early_stopping": 2}
    notes = ran(tables, "hyfem", evaluate_every=1, **how).notes
    [said] = [note for note in notes if "no training row" in note]
    assert "town (7 at 'bank', 7 at 'shop')" in said


def test_a_note_on_a_listed_column_says_that_no_row_has_the_level():
    tables = {"bank": party([f"t{at}" for at in range(MOST_CENTRED + 2)], 600)}
    ids = tables["bank"]["id"].to_numpy()
    tested = Hashes().of(ids, hashlib.blake2b(b"").digest()) < 0.3
    tables["bank"].loc[tables["bank"].index[tested][:4], "town"] = "sea"
    notes = ran(tables, "hyfdca", test=0.3, categorical=["town"]).notes
    [said] = [note for note in notes if "'town=sea'" in note]
    assert "set least_rows = 1 if the model may tell of few rows" in said


def test_a_network_beside_a_federation_learns_from_its_own_levels_alone():
    own = ["a", "b"]
    tables = {"bank": party([*own, "c"], 400), "shop": party([*own, "d"], 400, seed=1)}
    tested = Hashes().of(tables["bank"]["id"].to_numpy(), hashlib.blake2b(b"").digest()) < 0.3
    few = np.flatnonzero(tested)[:20]
    tables["bank"].loc[few, "town"] = "d"  # which no training row of its own has
    how = {"test": 0.3, "rounds": 3}
    beside = ran(tables, "femam", **how, yardsticks=True)
    known = {one.name for one in dataclasses.fields(Local) if one.init}
    options = {key: value for key, value in beside.hyperparameters.items() if key in known}
    alone = ran(tables, "local", **how, **options)
    for name, score in alone.metrics.clients.items():
        assert beside.metrics.standalone[name].loss == pytest.approx(score.loss, rel=1e-6)


@pytest.mark.parametrize("sparse", [False, True])
def test_a_wide_level_of_others_has_the_mean_of_the_own_rows(sparse):
    train = np.array([[2.0, 0, 0, 1], [2, 0, 0, 1], [0, 0, 5, 1]])
    test = np.array([[0.0, 4, 0, 1], [2, 0, 0, 1], [0, 0, 0, 1]])

    def made(x):
        return block(csr_array(x) if sparse else x, True)

    def learnt(one, other):
        found = as_learnt_alone(made(one), made(other)).x
        return found.toarray() if sparse else found

    # without "other" among the own rows, which a new level is else
    one = train[:2] * [1, 1, 0, 1]
    np.testing.assert_allclose(learnt(one, test)[0], [2, 0, 0, 1])
    np.testing.assert_allclose(learnt(train, test), [[0, 0, 5, 1], [2, 0, 0, 1], [0, 0, 0, 1]])
    lacking = np.vstack([one, [[0, 0, 0, 1]]])  # where training has rows without one it is none
    np.testing.assert_allclose(learnt(lacking, test)[0], [0, 0, 0, 1])


@pytest.mark.parametrize("seed", range(40))
def test_rows_without_a_level_get_a_share_of_the_means_of_all(seed):
    """A sparse table's as a dense one's, where the absent levels are stored as 0 and where not."""
    rng = np.random.default_rng(seed)
    rows, width = int(rng.integers(1, 30)), int(rng.integers(2, 20))
    levels = rng.permutation(width)[: rng.integers(1, width)]
    lacking = np.flatnonzero(rng.random(rows) < 0.4)
    x = csr_array(rng.random((rows, width)) * (rng.random((rows, width)) < 0.5))
    row = np.repeat(np.arange(rows), np.diff(x.indptr))
    x.data[np.isin(row, lacking) & np.isin(x.indices, levels)] = 0.0
    expected = x.toarray()
    if seed % 2:
        x.eliminate_zeros()
    block = Block(np.arange(rows), tuple(map(str, range(width))), x, None)
    means = rng.normal(size=len(levels)) * (rng.random(len(levels)) < 0.7)
    share = rng.random(len(lacking))
    expected[np.ix_(lacking, levels)] = np.outer(share, means)
    found = with_levels(block, lacking, levels, means, share)
    np.testing.assert_array_equal(found.x.toarray(), expected)
    found.x.check_format(full_check=True)
    assert found.x.has_canonical_format
    dense = replace(block, x=block.x.toarray())
    np.testing.assert_array_equal(with_levels(dense, lacking, levels, means, share).x, expected)
