"""A category that a new table lacks counts as its mean in training, whatever its levels.

The truth is a pooled model of scikit-learn on a table whose gaps have the means of training.
"""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

import intarsia
from command_line import said
from intarsia.cli.main import main
from intarsia.core.block import Block
from intarsia.data import encoding
from intarsia.inference.predict import predict
from intarsia.models.scikit_model import scikit_pipeline
from intarsia.models.serialization import read_model

pytestmark = pytest.mark.usefixtures("sparse_tables")

ROWS, LEVELS, LAMBDA = 900, 30, 1e-3
TOWNS = [f"t{at:02d}" for at in range(LEVELS)]


def tables():
    """Return two parties' tables of the same rows, and all of it; no row lacks a value."""
    rng = np.random.default_rng(5)
    town = rng.permutation(np.resize(TOWNS, ROWS))
    colour = np.array(["red", "blue", "green"])[rng.integers(0, 3, ROWS)]
    whole = pd.DataFrame({"id": np.arange(ROWS), "size": rng.normal(50, 9, ROWS), "town": town})
    whole = whole.assign(colour=colour, age=rng.normal(size=ROWS))
    # one row in six or so is "yes", so that a level's weight is far from 0
    z = whole["age"] - 2.2 + 0.6 * (colour == "red") + 0.03 * (whole["size"] - 50)
    whole["y"] = np.where(rng.random(ROWS) < expit(z), "yes", "no")
    return whole[["id", "town", "colour", "y"]], whole[["id", "size", "age"]], whole


def written(folder):
    """Write both tables; return all of it."""
    bank, shop, whole = tables()
    bank.to_csv(folder / "bank.csv", index=False)
    shop.to_csv(folder / "shop.csv", index=False)
    return whole


def trained(folder, privacy="plain", memory="", more=""):
    """Return the folder of a finished run."""
    clients = "".join(
        f'[[client]]\nname = "{one}"\npath = "{one}.csv"\nid = "id"\n{label}'
        for one, label in (("bank", f'label = "y"\ncategorical = ["town"]\n{more}'), ("shop", ""))
    )
    (folder / "e.toml").write_text(
        f"[experiment]\nrounds = 60\ntolerance = 1e-10\nyardsticks = false\n{memory}\n"
        f'[split]\ntest = 0.0\n[algorithm]\nname = "hyfdca"\nloss = "logistic"\n'
        f'regularisation = {LAMBDA}\n[privacy]\nmode = "{privacy}"\n{clients}'
    )
    out = folder / "run"
    assert main(["run", str(folder / "e.toml"), "-q", "--out", str(out)]) == 0
    return out


def stored(folder, *, dense=False, **given):
    """Return the folder of a finished run whose levels are stored dense, or as sparse rows."""
    one_hot, sparse = encoding._one_hot, []

    def noted(table, *given):
        x = one_hot(table, *given)
        if len(table.samples):  # no table of a part without rows
            sparse.append(isinstance(x, encoding.OneHotRows))
        return x

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding, "_SMALL", 10**9 if dense else 0)
        patch.setattr(encoding, "_one_hot", noted)
        out = trained(folder, **given)
    assert sparse
    assert {*sparse} == {not dense}
    return out


def pooled(whole, gaps=""):
    """Return the probabilities of "yes" by scikit-learn of a table's rows with NaN for gaps.

    Gaps of the column `gaps` are all zeros, in training and in new rows, and means of all others.
    """

    def features(table):
        found = table[["size", "age"]].astype(float)
        for column in ("town", "colour"):
            for level in sorted(whole[column].dropna().unique()):
                own = (table[column] == level).astype(float)
                known = table[column].isin(whole[column].dropna())
                found[f"{column}={level}"] = own if column == gaps else own.where(known)
        return found

    train = features(whole)
    means, towns = train.mean(), train.columns.str.startswith("town=")
    centres = means.where(~towns, 0.0)  # these are scaled only, as if 5 % of the rows had them
    scales = np.sqrt(((train - centres) ** 2).mean())
    scales[towns] = scales[towns].clip(lower=np.sqrt(0.05))

    def prepared(table):
        x = (features(table).fillna(means) - centres) / scales
        return x.assign(one=1.0)  # the intercept is regularised as other weights are

    model = LogisticRegression(C=1 / (LAMBDA * ROWS), fit_intercept=False, tol=1e-10, max_iter=9999)
    model.fit(prepared(whole), whole["y"] == "yes")
    return lambda table: model.predict_proba(prepared(table))[:, 1]


def new_rows(whole):
    """Return rows with a gap each: a missing town, an unknown one, a missing colour, a number."""
    rows = whole.head(8).drop(columns="y").astype({"town": object, "colour": object}).copy()
    rows.loc[1, "town"], rows.loc[2, "town"], rows.loc[3, "colour"] = np.nan, "nowhere", np.nan
    rows.loc[4, "size"] = np.nan
    return rows


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return all rows, and the folder of a run with them."""
    folder = tmp_path_factory.mktemp("plain")
    return written(folder), stored(folder)


@pytest.mark.parametrize(
    "how",
    [
        "sparse",
        "masked",
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("dense", "on disk")),
    ],
)
def test_gaps_count_as_the_mean_as_in_a_pooled_model(how, run, tmp_path):
    whole, folder = run
    if how != "sparse":
        written(tmp_path)
        given = {"masked": {"privacy": "masked"}, "on disk": {"memory": 'memory = "10MB"'}}
        folder = stored(tmp_path, dense=how == "dense", **given.get(how, {}))
    new_rows(whole).to_csv(tmp_path / "new.csv", index=False)
    whole[["id", "size", "age", "colour"]].to_csv(tmp_path / "short.csv", index=False)
    truth = pooled(whole)
    found = predict(folder, tmp_path / "new.csv")
    np.testing.assert_allclose(found.probabilities, truth(new_rows(whole)), rtol=0, atol=1e-5)
    assert "count as the mean: size (1), town (2), colour (1)" in " ".join(found.notes)
    found = predict(folder, tmp_path / "short.csv")
    without = truth(whole.assign(town=np.nan))
    np.testing.assert_allclose(found.probabilities, without, rtol=0, atol=1e-5)
    assert found.probabilities.mean() == pytest.approx((whole["y"] == "yes").mean(), abs=0.03)
    assert "lacks 1 of the model's 4 columns; each counts as its mean: town" in found.notes[0]


def test_gaps_count_as_none_where_training_rows_had_none(tmp_path):
    written(tmp_path)
    bank, _, whole = tables()
    lacking = np.random.default_rng(1).random(ROWS) < 0.1
    bank, whole = (one.assign(town=one["town"].where(~lacking)) for one in (bank, whole))
    bank.to_csv(tmp_path / "bank.csv", index=False)
    folder = trained(tmp_path)
    rows = new_rows(whole)
    rows.to_csv(tmp_path / "new.csv", index=False)
    found = predict(folder, tmp_path / "new.csv")
    np.testing.assert_allclose(found.probabilities, pooled(whole, "town")(rows), rtol=0, atol=1e-5)
    gaps = int(rows["town"].isna().sum()) + 1  # and the unknown one
    assert f"count as 0, as in training: town ({gaps})" in " ".join(found.notes)


def test_gaps_count_as_the_mean_where_columns_are_spread_over_parties(run, tmp_path, capfd):
    whole, folder = run
    rows = new_rows(whole)
    rows[["id", "town", "colour"]].to_csv(tmp_path / "bank.csv", index=False)
    rows[["id", "size", "age"]].to_csv(tmp_path / "shop.csv", index=False)
    tables = (f"{name}={tmp_path / name}.csv" for name in ("bank", "shop"))
    assert main(["predict", str(folder), *tables, "--federated"]) == 0
    found = list(csv.DictReader(io.StringIO(said(capfd)[0])))
    said_by = [float(one["probability"]) for one in found]
    np.testing.assert_allclose(said_by, pooled(whole)(rows), rtol=0, atol=1e-5)


def test_a_pipeline_of_scikit_learn_counts_gaps_so_too(run):
    whole, folder = run
    model, rows = read_model(folder / "model"), new_rows(whole)
    pipeline = scikit_pipeline(model)
    own = model.predict_proba(rows)
    np.testing.assert_allclose(pipeline.predict_proba(rows), own, rtol=0, atol=1e-12)
    np.testing.assert_allclose(own[:, 1], pooled(whole)(rows), rtol=0, atol=1e-5)


def test_a_model_of_before_has_no_mean_of_what_was_not_centred(run, tmp_path):
    whole, folder = run
    path = folder / "model" / "linear.json"
    now = path.read_text()
    content = json.loads(now)
    content["means"] = content.pop("centres")
    rows = new_rows(whole)
    rows.to_csv(tmp_path / "new.csv", index=False)
    try:
        path.write_text(json.dumps(content))
        found = predict(folder, tmp_path / "new.csv")
    finally:
        path.write_text(now)
    assert "count as 0, as in training: town (2)" in " ".join(found.notes)
    ours = predict(folder, tmp_path / "new.csv").probabilities
    same = [at for at in range(len(rows)) if at not in (1, 2)]
    np.testing.assert_array_equal(found.probabilities[same], ours[same])
    assert (np.abs(found.probabilities - ours)[[1, 2]] > 0.05).all()


def test_a_network_takes_means_for_the_gaps(tmp_path):
    pytest.importorskip("torch")
    whole = written(tmp_path)
    rows = whole.drop(columns="y").head(6).astype({"town": object})
    rows.loc[1, "town"] = np.nan
    left = whole[["town", "colour", "y"]]
    right = whole[["size", "age", "y"]]
    result = intarsia.run(
        tables={"bank": left, "shop": right},
        algorithm="flic",
        hidden=8,
        latent=4,
        pretraining_epochs=2,
        label="y",
        test=0.0,
        rounds=1,
        yardsticks=False,
        out=tmp_path / "run",
    )
    network = result.model["bank"]
    again = read_model(tmp_path / "run" / "model")["bank"]
    share = whole["town"].value_counts(normalize=True)
    means = dict(zip(network.features, network.means, strict=True))
    for level in TOWNS:
        assert means[f"town={level}"] == pytest.approx(share[level], abs=1e-12)
    # what is said of a row with the shares in its columns is said of one that lacks the town
    explicit = pd.DataFrame({name: [means[name]] for name in network.features})
    for level in ("red", "blue", "green"):
        explicit[f"colour={level}"] = float(rows.loc[1, "colour"] == level)
    block = Block(np.arange(1), network.features, explicit.to_numpy(float))
    wanted = network.decision_function(block)
    for model in (network, again):
        for lacking in (rows, rows.drop(columns="town"), rows.assign(town="nowhere")):
            found = model.decision_function(lacking)[1]
            np.testing.assert_allclose(found, wanted[0], rtol=0, atol=1e-5)  # 32 bits


def test_levels_without_a_feature_of_their_own_are_named(tmp_path):
    written(tmp_path)
    bank, *_ = tables()
    # three rows of each, and five are the least: of both together there are more
    rare = bank["town"].where(bank["id"] % 300 != 7, "lone").where(bank["id"] % 300 != 8, "only")
    bank.assign(town=rare).to_csv(tmp_path / "bank.csv", index=False)
    folder = trained(tmp_path, more="least_rows = 5\n")
    rows = bank.head(9).assign(town=["lone", "nowhere", *["t01"] * 7]).drop(columns="y")
    rows.to_csv(tmp_path / "new.csv", index=False)
    found = predict(folder, tmp_path / "new.csv")
    wanted = "Levels of which training had few rows or none count as 'other': town (2)."
    assert wanted in found.notes
    assert found.scores[0] != found.scores[2]
