"""`intarsia predict --federated`: samples whose columns are spread, against the pooled table."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import intarsia
from command_line import finished, one_error, said
from intarsia.cli.main import main
from intarsia.errors import ExperimentError, IntarsiaError, TableError
from intarsia.inference.federated_predict import predict_federated
from intarsia.models.linear import LinearClassifier, LinearRegressor
from intarsia.models.serialization import write_model

FEATURES = ("age", "income", "sex=F", "sex=M", "visits", "spent")
PEOPLE = pd.DataFrame(
    {
        "id": [1, 2, 3, 4, 5, 6],
        "age": [20.0, np.nan, 40.5, 50.0, 61.0, 33.0],
        "income": [1.5, 2.5, np.nan, 0.5, 3.0, 2.0],
        "sex": ["F", "M", "M", "X", None, "F"],
        "visits": [3, 1, 4, 1, 5, 9],
        "spent": [0.1, -0.2, 0.3, 0.7, -0.4, 0.9],
    }
)


def fitted(classes: int, loss: str = "logistic"):
    """Return a linear model with weights of any kind."""
    rng = np.random.default_rng(classes)
    outputs = {0: 1, 2: 1}.get(classes, classes)
    weights = {name: rng.normal(size=outputs) for name in FEATURES}
    means = {name: rng.normal() for name in FEATURES}
    scales = {name: rng.uniform(0.5, 2) for name in FEATURES}
    intercept = rng.normal(size=outputs)
    given = {"means": means, "scales": scales, "intercept": intercept}
    if not classes:
        return LinearRegressor.from_weights(weights, **given)
    names = tuple("pqrs"[:classes])
    return LinearClassifier.from_weights(weights, classes=names, loss=loss, **given)


def run(folder: Path, model, *, mode: str = "plain", clients: tuple[str, ...] = ("bank", "shop")):
    """Write what a finished run of two clients leaves."""
    made = finished(folder / "run", 0, 0.8)
    write_model(model, made / "model")
    told = [
        {"name": name, "path": f"{name}.csv", "id": "id", "label": "y", "exclude": ["row"]}
        for name in clients
    ]
    content = {"client": told, "algorithm": {"name": "hyfdca"}, "privacy": {"mode": mode}}
    (made / "experiment.json").write_text(json.dumps(content))
    return made


def pooled(model, table: pd.DataFrame = PEOPLE):
    """Return the model's scores (rows, outputs) of the whole table, one-hot by hand."""
    sex = table["sex"] if "sex" in table else pd.Series([None] * len(table))
    known = sex.isin(["F", "M"])
    table = table.assign(
        **{f"sex={one}": np.where(known, sex == one, np.nan).astype(float) for one in "FM"}
    )
    if isinstance(model, LinearRegressor):
        return model.predict(table)[:, None]
    return model.decision_function(table).reshape(len(table), -1)


def resting(table: pd.DataFrame = PEOPLE) -> list[str]:
    """Return what each row of the joined table rests on: means, where a value is missing."""
    lacking = table[["age", "income", "visits", "spent"]].isna().any(axis=1)
    return np.where(lacking | ~table["sex"].isin(["F", "M"]), "means", "all").tolist()


def test_columns_are_the_features_that_the_dictionary_says_and_need_not_all_be_there(tmp_path):
    """The shop calls `sex` SEX and writes it otherwise, and its table lacks a column of it."""
    model = fitted(2)
    folder = run(tmp_path, model)
    dictionary = tmp_path / "columns.toml"
    dictionary.write_text(
        '[client.shop]\nSEX = "sex"\nGONE = "far"\n[client.other]\na = "b"\n', encoding="utf-8"
    )
    told = json.loads((folder / "experiment.json").read_text())
    told["alignment"] = {"dictionary": str(dictionary)}
    (folder / "experiment.json").write_text(json.dumps(told))
    PEOPLE[["id", "age", "income", "visits"]].to_csv(tmp_path / "bank.csv", index=False)
    own = PEOPLE[["id", "sex", "spent"]].rename(columns={"sex": "SEX"})
    own.to_csv(tmp_path / "shop.csv", index=False)
    found = predict_federated(folder, {n: tmp_path / f"{n}.csv" for n in ("bank", "shop")})
    np.testing.assert_allclose(found.scores, pooled(model)[:, 0], atol=1e-6)
    assert list(found.basis) == resting()


def spread(folder: Path, parts: dict[str, pd.DataFrame]) -> dict[str, Path]:
    for name, part in parts.items():
        part.to_csv(folder / f"{name}.csv", index=False)
    return {name: folder / f"{name}.csv" for name in parts}


def columns(*names: str, rows=slice(None)) -> pd.DataFrame:
    return PEOPLE.loc[rows, ["id", *names]]


VERTICAL = {
    "bank": columns("age", "sex"),
    "shop": columns("income", "visits", "spent").sample(frac=1, random_state=0),
}
# of two columns both have, each lacks a value that the other has
HYBRID = {
    "bank": columns("age", "income", "sex", "visits", rows=slice(0, 2)).assign(
        income=[np.nan, 2.5, np.nan], visits=[3, np.nan, 4]
    ),
    "shop": columns("income", "visits", "spent", rows=slice(0, 1)).assign(income=[1.5, np.nan]),
}


@pytest.mark.parametrize("classes", [0, 2, 3])
@pytest.mark.parametrize("mode", ["plain", "masked"])
def test_spread_columns_give_the_scores_of_the_pooled_table(
    tmp_path: Path, classes: int, mode: str
) -> None:
    model = fitted(classes)
    found = predict_federated(run(tmp_path, model, mode=mode), spread(tmp_path, VERTICAL))
    expected = pooled(model)
    assert list(found.ids) == [1, 2, 3, 4, 5, 6]
    # masks are added to whole numbers: to the nearest of a fixed grid
    close = 1e-12 if mode == "plain" else 1e-6
    np.testing.assert_allclose(found.scores, expected.max(axis=1), rtol=0, atol=close)
    assert found.basis == resting()
    assert {*found.basis} == {"all", "means"}
    if classes:
        best = (expected[:, 0] > 0).astype(int) if classes == 2 else expected.argmax(axis=1)
        assert found.labels.tolist() == [model.classes_[at] for at in best]
        table = pd.DataFrame({"z": found.scores})
        assert found.probabilities == pytest.approx(_probability(expected), abs=close), table
    else:
        assert found.labels is None
        assert found.probabilities is None


def _probability(scores: np.ndarray) -> np.ndarray:
    each = 1 / (1 + np.exp(-scores))
    return each[:, 0] if scores.shape[1] == 1 else each.max(axis=1) / each.sum(axis=1)


@pytest.mark.parametrize("mode", ["plain", "masked"])
def test_a_value_that_several_parties_hold_counts_once_even_where_one_lacks_it(
    tmp_path: Path, mode: str
) -> None:
    model = fitted(2)
    folder = run(tmp_path, model, mode=mode)
    found = predict_federated(folder, spread(tmp_path, HYBRID), absent="mean")
    whole = PEOPLE.iloc[:3].copy()
    whole.loc[2, "spent"] = np.nan
    expected = pooled(model, whole)[:, 0]
    np.testing.assert_allclose(
        found.scores, expected, rtol=0, atol=1e-12 if mode == "plain" else 1e-6
    )
    assert found.basis == resting(whole)


def test_each_partys_table_has_its_own_separator_and_what_is_missing(tmp_path: Path) -> None:
    model = fitted(2)
    folder = run(tmp_path, model)
    content = json.loads((folder / "experiment.json").read_text())
    content["client"][1]["separator"] = ";"
    (folder / "experiment.json").write_text(json.dumps(content))
    bank, shop = columns("age", "income", "sex"), columns("visits", "spent")
    expected = pooled(model)[:, 0]
    paths = {"bank": tmp_path / "bank.csv", "shop": tmp_path / "shop.csv"}
    bank.to_csv(paths["bank"], index=False, na_rep="n/a")
    for mark in (";", ","):  # as in training, and otherwise
        shop.to_csv(paths["shop"], index=False, sep=mark)
        found = predict_federated(folder, paths, "mean", ["n/a"])
        np.testing.assert_allclose(found.scores, expected, atol=1e-12)
    with pytest.raises(TableError, match="or let it count as missing: --missing 'n/a'"):
        predict_federated(folder, paths, "mean")


def test_ids_are_written_as_the_first_table_that_has_them_writes_them(tmp_path: Path) -> None:
    model = fitted(2)
    folder = run(tmp_path, model)
    content = json.loads((folder / "experiment.json").read_text())
    content["alignment"] = {"normalise": ["zeros", "case"]}
    (folder / "experiment.json").write_text(json.dumps(content))
    bank, shop = (VERTICAL[name].iloc[:3].reset_index(drop=True) for name in ("bank", "shop"))
    bank["id"], shop["id"] = ["022249", "a7", "3"], ["22249", "A7", "003"]
    shop.loc[3] = ["0004", 1.5, 1, 0.5]  # that the bank does not have
    found = predict_federated(folder, spread(tmp_path, {"bank": bank, "shop": shop}), "mean")
    assert found.ids == ["022249", "3", "0004", "a7"]
    tables = spread(tmp_path, {"shop": shop, "bank": bank})
    turned = predict_federated(folder, tables, "mean")
    assert turned.ids == ["22249", "003", "0004", "A7"]
    np.testing.assert_allclose(found.scores, turned.scores, atol=1e-12)


def test_new_tables_need_no_weights_of_rows_nor_what_rows_were_split_by(tmp_path: Path) -> None:
    rows = np.arange(80)
    table = pd.DataFrame({"id": rows, "age": rows % 7.0, "ill": rows % 2, "w": 1 + rows % 3})
    tables = {
        "ward": table.assign(person=rows // 4),
        "lab": pd.DataFrame({"id": rows, "sodium": rows % 5.0, "person": rows // 4}),
    }
    how = {"id": "id", "label": "ill", "weights": "w", "split_by": "person", "yardsticks": False}
    found = intarsia.run(tables=tables, out=tmp_path / "run", **how)
    new = {
        "ward": tables["ward"][["id", "age"]],
        "lab": tables["lab"][["id", "sodium"]],
    }
    whole = new["ward"].merge(new["lab"])
    scores = predict_federated(tmp_path / "run", spread(tmp_path, new)).scores
    wanted = found.model.decision_function(whole[[*found.model.feature_names_in_]])
    np.testing.assert_allclose(scores, wanted, atol=1e-12)


def test_tables_may_have_decimal_commas_where_training_had_points(tmp_path: Path) -> None:
    model = fitted(2)
    folder, tables = run(tmp_path, model), {}
    for name, part in VERTICAL.items():
        tables[name] = tmp_path / f"{name}.csv"
        part.to_csv(tables[name], index=False, sep=";", decimal=",")
    found = predict_federated(folder, tables, decimal=",")
    np.testing.assert_allclose(found.scores, pooled(model)[:, 0], atol=1e-12)
    with pytest.raises(TableError, match='--decimal "," how they are written'):
        predict_federated(folder, tables)


def test_samples_without_a_party_are_refused_or_scored_by_means(tmp_path: Path) -> None:
    model = fitted(2)
    folder = run(tmp_path, model)
    tables = spread(tmp_path, {**VERTICAL, "shop": VERTICAL["shop"].query("id < 5")})
    with pytest.raises(TableError, match=r"Of 2 of 6 samples .* 'spent'.*--absent mean"):
        predict_federated(folder, tables)
    found = predict_federated(folder, tables, absent="mean")
    table = PEOPLE.copy()
    table.loc[4:, ["income", "visits", "spent"]] = np.nan
    np.testing.assert_allclose(found.scores, pooled(model, table)[:, 0], rtol=0, atol=1e-12)
    assert found.basis == resting(table)
    told = f"all {found.basis.count('all')}, means {found.basis.count('means')}"
    assert any(told in note for note in found.notes)
    # one client alone: all of its rows lack the same
    alone = predict_federated(folder, {"bank": tables["bank"]}, absent="mean")
    np.testing.assert_allclose(
        alone.scores, pooled(model, PEOPLE[["age", "sex"]])[:, 0], rtol=0, atol=1e-12
    )
    assert set(alone.basis) == {"means"}


@pytest.mark.parametrize(
    ("tables", "settings", "told"),
    [
        ({"shoe": "bank.csv"}, {}, "no client 'shoe'"),
        ({"bank": "none.csv"}, {}, "none.csv"),
        ({}, {}, "No client has a table"),
        ({"bank": "bank.csv", "shop": "shop.csv"}, {"absent": "mine"}, "absent is 'mine'"),
        ({"bank": "bank.csv", "shop": "shop.csv"}, {"absent": "own"}, "one linear model"),
        ({"bank": "other.csv"}, {}, "the model knows none"),
        ({"bank": "words.csv"}, {}, "numeric in training"),
        ({"bank": "bank.csv", "shop": "noid.csv"}, {}, "'id'"),
        ({"bank": "bank.csv", "shop": "text.csv"}, {}, "one type: write them alike"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(tmp_path: Path, tables, settings, told) -> None:
    folder = run(tmp_path, fitted(2))
    spread(tmp_path, VERTICAL)
    (tmp_path / "other.csv").write_text("id,shoe\n1,2\n")
    (tmp_path / "words.csv").write_text("id,age\n1,old\n2,young\n")
    (tmp_path / "noid.csv").write_text("income,visits,spent\n1,2,3\n")
    (tmp_path / "text.csv").write_text("id,income,visits,spent\na,1,2,3\n")
    with pytest.raises(IntarsiaError, match=told):
        predict_federated(
            folder, {name: tmp_path / file for name, file in tables.items()}, **settings
        )


def test_the_command_writes_what_each_row_rests_on(tmp_path: Path, capfd) -> None:
    model = fitted(2)
    folder = run(tmp_path, model)
    paths = spread(tmp_path, {**VERTICAL, "shop": VERTICAL["shop"].query("id < 6")})
    named = [f"{name}={path}" for name, path in paths.items()]
    assert main(["predict", str(folder), *named, "--federated", "--absent", "mean"]) == 0
    out, err = said(capfd)
    rows = list(csv.DictReader(io.StringIO(out)))
    assert list(rows[0]) == ["id", "score", "label", "probability", "basis"]
    assert [row["basis"] for row in rows] == [*resting()[:5], "means"]
    assert "rest on: all" in err
    assert main(["predict", str(folder), *named, "--federated"]) == 2
    assert "--absent mean" in one_error(said(capfd)[1])


@pytest.mark.parametrize(
    "options",
    [["--federated"], ["--absent", "mean"], ["more.csv"], ["--federated", "--id", "id"]],
)
def test_options_that_do_not_fit_are_refused(tmp_path: Path, capfd, options: list[str]) -> None:
    folder = run(tmp_path, fitted(2))
    paths = spread(tmp_path, VERTICAL)
    assert main(["predict", str(folder), str(paths["bank"]), *options]) == 2
    assert "error" in said(capfd)[1].lower()


# ---- a network of feature blocks

VIEWS = {"left": ("l1", "l2"), "middle": ("m1", "m2", "m3"), "right": ("r1", "r2")}
HELD = {"north": ("left", "middle"), "south": ("middle", "right"), "east": ("left", "right")}


@pytest.fixture(scope="module")
def hyfem(tmp_path_factory):
    """Return a run of hyfem over three views, in double precision, and a table of new samples."""
    pytest.importorskip("torch")
    from intarsia.training import run as running

    home = tmp_path_factory.mktemp("hyfem")
    rng = np.random.default_rng(0)
    y = np.arange(90) % 3
    names = [name for some in VIEWS.values() for name in some]
    x = 2 * rng.normal(size=(3, len(names)))[y] + rng.normal(size=(90, len(names)))
    table = pd.DataFrame(5 + 3 * x, columns=names).assign(
        kind=np.array(["p", "q", "r"])[y], row=np.arange(90)
    )
    lines = ["experiment.rounds = 3", "[algorithm]", 'name = "hyfem"', 'precision = "double"']
    lines += ["features = 4", "extractor_hidden = [8]", "hidden = [12, 6]", "steps = 4"]
    for client, views in HELD.items():
        own = [*(name for view in views for name in VIEWS[view]), "kind", "row"]
        table[own].to_csv(home / f"{client}.csv", index=False)
        groups = ", ".join(f"{view} = {json.dumps(VIEWS[view])}" for view in views)
        lines += ["[[client]]", f'name = "{client}"', f'path = "{client}.csv"']
        lines += ['id = "row"', 'label = "kind"', f"groups = {{ {groups} }}"]
    (home / "run.toml").write_text("\n".join(lines))
    result = running.run(home / "run.toml", out=home / "run")
    new = table.drop(columns="kind").iloc[:20].copy()
    new.loc[3, "m2"] = np.nan
    return home / "run", result.model, new


def views(table: pd.DataFrame, *held: str) -> pd.DataFrame:
    return table[["row", *(name for view in held for name in VIEWS[view])]]


def test_blocks_that_are_spread_give_the_scores_of_the_servers_network(hyfem, tmp_path) -> None:
    folder, model, table = hyfem
    parts = {name: views(table, *held) for name, held in HELD.items()}
    found = predict_federated(folder, spread(tmp_path, parts))
    expected = model.server.decision_function(table)
    np.testing.assert_allclose(found.scores, expected.max(axis=1), rtol=0, atol=1e-12)
    assert found.labels.tolist() == model.server.predict(table).tolist()
    np.testing.assert_allclose(
        found.probabilities, model.server.predict_proba(table).max(axis=1), rtol=0, atol=1e-12
    )
    assert found.basis == ["means" if row == 3 else "all" for row in range(20)]


def test_blocks_that_nobody_has_count_as_means_or_a_partys_own_network_speaks(
    hyfem, tmp_path
) -> None:
    folder, model, table = hyfem
    some, rest = table.iloc[:8], table.iloc[8:]
    parts = {"north": views(table, *HELD["north"]), "south": views(some, *HELD["south"])}
    tables = spread(tmp_path, parts)
    with pytest.raises(TableError, match=r"Of 12 of 20 samples .* 'right'"):
        predict_federated(folder, tables)
    of_all = model.server.decision_function(some)
    means = model.server.decision_function(views(rest, "left", "middle"))
    own = model["north"].decision_function(views(rest, "left", "middle"))
    for absent, alone, name in (("mean", means, "means"), ("own", own, "north")):
        found = predict_federated(folder, tables, absent=absent)
        expected = np.concatenate([of_all, alone]).max(axis=1)
        np.testing.assert_allclose(found.scores, expected, rtol=0, atol=1e-12)
        assert found.basis == [*("means" if row == 3 else "all" for row in range(8)), *[name] * 12]


def test_a_run_without_a_model_of_all_is_refused(hyfem, tmp_path) -> None:
    from intarsia.algorithms.networks.architecture import Architecture
    from intarsia.models.networks import Networks

    folder, model, table = hyfem
    made = run(tmp_path, fitted(2), clients=tuple(HELD))
    for file in (made / "model").iterdir():
        file.unlink()
    write_model(Networks("hetfedrep", dict(model)), made / "model")
    with pytest.raises(ExperimentError, match="a model of its own"):
        predict_federated(made, spread(tmp_path, {"north": views(table, "left", "middle")}))
    with pytest.raises(ExperimentError, match="adds up no feature blocks"):
        replace(model.server, architecture=Architecture(hidden=2, latent=2)).scores_of(
            np.zeros((1, 1))
        )
    assert folder


@pytest.mark.parametrize("centred", [False, True], ids=["sparse in training", "dense in training"])
@pytest.mark.parametrize("mode", ["plain", "masked"])
def test_sparse_tables_of_parties_give_the_scores_of_the_pooled_table(tmp_path, mode, centred):
    rng = np.random.default_rng(5)
    names = [str(at) for at in range(1, 13)]
    fitted = LinearRegressor.from_weights(
        dict(zip(names, rng.normal(size=12).tolist(), strict=True)),
        means=dict(zip(names, (rng.normal(size=12) * centred).tolist(), strict=True)),
        scales=dict(zip(names, rng.uniform(1, 2, 12).tolist(), strict=True)),
        intercept=0.5,
    )
    folder = run(tmp_path, fitted, mode=mode)
    told = [{"name": name, "path": f"{name}.svm", "id": "row"} for name in ("bank", "shop")]
    content = json.loads((folder / "experiment.json").read_text()) | {"client": told}
    (folder / "experiment.json").write_text(json.dumps(content))
    x = rng.integers(-2, 3, size=(6, 12)) * (rng.random((6, 12)) < 0.5)
    x[:, 7] = x[:, 11] = 1  # both files go to their last column
    # both have the columns up to 8, and count once
    tables = {}
    for name, width in (("bank", 8), ("shop", 12)):
        lines = [
            " ".join(["0", *(f"{at + 1}:{row[at]}" for at in np.flatnonzero(row[:width]))])
            for row in x
        ]
        tables[name] = tmp_path / f"{name}.svm"
        tables[name].write_text("\n".join(lines))
    found = predict_federated(folder, tables)
    assert list(found.ids) == list(range(6))
    assert found.scores == pytest.approx(x @ fitted.coef_ + fitted.intercept_, abs=1e-6)
