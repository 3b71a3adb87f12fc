"""`intarsia predict`: a finished run's model on a new table."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import parquet
from scipy.sparse import csr_array
from sklearn.metrics import roc_auc_score

import intarsia
from command_line import finished, one_error, said
from intarsia.cli.main import main
from intarsia.errors import TableError
from intarsia.inference.new_table import TableSettings, table_settings
from intarsia.inference.predict import predict
from intarsia.models.linear import LinearClassifier, LinearRegressor
from intarsia.models.serialization import LinearModels, read_model, write_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """score = 2·(age - 40)/10 + 1·[sex=F] - 3·[sex=M] + 0.5, means 40, 0.25 and 0.75."""
    folder = finished(tmp_path / "run", 0, 0.8)
    fitted = LinearClassifier.from_weights(
        {"age": 2.0, "sex=F": 1.0, "sex=M": -3.0},
        means={"age": 40.0, "sex=F": 0.25, "sex=M": 0.75},
        scales={"age": 10.0, "sex=F": 1.0, "sex=M": 1.0},
        intercept=0.5,
        classes=("no", "yes"),
        loss="logistic",
    )
    write_model(fitted, folder / "model")
    client = {"name": "bank", "id": "customer", "label": "default", "missing": ["?", "-"]}
    (folder / "experiment.json").write_text(json.dumps({"client": [client]}))
    return folder


def predicted(folder: Path, text: str, capfd, *options: str) -> tuple[list[dict[str, str]], str]:
    table = folder.parent / "table.csv"
    table.write_text(text)
    assert main(["predict", str(folder), str(table), *options]) == 0
    out, err = said(capfd)
    return list(csv.DictReader(io.StringIO(out))), err


def test_predict_scores_the_full_columns(model, capfd):
    text = "customer,age,sex\n7,50,F\n8,30,M\n"
    rows, err = predicted(model, text, capfd)
    assert err == ""
    # 2·1 + (1 - 0.25) - 3·(0 - 0.75) + 0.5 = 5.5; 2·(-1) + (0 - 0.25) - 3·(1 - 0.75) + 0.5 = -2.5
    assert [row["id"] for row in rows] == ["7", "8"]
    assert [float(row["score"]) for row in rows] == pytest.approx([5.5, -2.5])
    assert [row["label"] for row in rows] == ["yes", "no"]
    assert [float(row["probability"]) for row in rows] == pytest.approx(
        [1 / (1 + np.exp(-5.5)), 1 / (1 + np.exp(2.5))]
    )


def test_a_column_in_another_unit_is_told(model, capfd):
    ages = "".join(
        f"{at},{age},F\n" for at, age in enumerate([480, 500, 520, 600, 700, 30])
    )  # months
    _, err = predicted(model, f"customer,age,sex\n{ages}", capfd)
    assert "age is far from what training had: its median is 510 here, and its mean was 40" in err
    ages = "".join(f"{at},{age},F\n" for at, age in enumerate([48, 50, 52, 60, 70, 480]))
    _, err = predicted(model, f"customer,age,sex\n{ages}", capfd)
    assert err == ""


@pytest.mark.usefixtures("sparse_tables")
def test_a_column_in_another_unit_is_told_beside_a_category_of_many_levels(tmp_path, capfd):
    folder = tmp_path / "run"
    rng, rows = np.random.default_rng(0), np.arange(400)
    age = rng.normal(50, 10, 400)
    table = pl.DataFrame({"age": age, "ward": rows % 40, "ill": (age > 50).astype(int)})
    intarsia.run(
        tables={"clinic": table},
        label="ill",
        loss="logistic",
        categorical=["ward"],
        yardsticks=False,
        out=folder,
    )
    lines = "".join(f"{12 * one:.0f},{ward}\n" for one, ward in zip(age, rows % 40, strict=True))
    _, err = predicted(folder, f"age,ward\n{lines}", capfd)
    assert "age is far from what training had" in err


def test_predict_takes_means_for_what_is_missing_and_names_it(model, capfd):
    rows, err = predicted(model, "age,shoe\n50,1\n-,2\n", capfd)
    assert [row["id"] for row in rows] == ["1", "2"]
    assert [float(row["score"]) for row in rows] == pytest.approx([2.5, 0.5])
    assert "lacks 1 of the model's 2 columns; each counts as its mean: sex" in err
    assert "count as the mean: age (1)" in err
    assert "left aside: shoe" in err


def test_an_unknown_level_counts_as_missing(model, capfd):
    rows, err = predicted(model, "customer,age,sex,default\n1,40,X,\n", capfd)
    assert float(rows[0]["score"]) == pytest.approx(0.5)
    assert "count as the mean: sex (1)" in err
    assert "default" not in err


def test_predict_reads_parquet_and_writes_a_file(model, capfd, tmp_path):
    import polars

    polars.DataFrame({"who": ["a", "b"], "age": [50.0, None]}).write_parquet(tmp_path / "t.parquet")
    out = tmp_path / "out.csv"
    arguments = ["predict", str(model), str(tmp_path / "t.parquet"), "--out", str(out)]
    assert main([*arguments, "--id", "who"]) == 0
    assert said(capfd)[0] == ""
    rows = list(csv.DictReader(io.StringIO(out.read_text())))
    assert [row["id"] for row in rows] == ["a", "b"]
    assert [float(row["score"]) for row in rows] == pytest.approx([2.5, 0.5])


def test_columns_of_the_levels_go_before_what_they_came_from(model, capfd):
    rows, err = predicted(model, "age,sex,sex=F,sex=M\n40,M,1,0\n", capfd)
    assert [float(row["score"]) for row in rows] == pytest.approx([0.75 + 3 * 0.75 + 0.5])
    assert "left aside: sex." in err


def test_what_counts_as_0_is_not_called_a_mean(model, capfd):
    plain = LinearRegressor.from_weights(
        {"age": 2.0, "shoe": 1.0},
        means={"age": 0.0, "shoe": 0.0},
        scales={"age": 1.0, "shoe": 1.0},
        intercept=1.0,
    )
    write_model(plain, model / "model")
    rows, err = predicted(model, "customer,age\n1,\n2,3\n", capfd)
    assert [float(row["score"]) for row in rows] == [1.0, 7.0]
    assert "lacks 1 of the model's 2 columns; each counts as 0, as in training: shoe." in err
    gaps = "Missing values and unknown levels count as 0, as in training: age (1)."
    assert gaps in err


def test_texts_that_are_named_count_as_missing(model, capfd):
    rows, err = predicted(
        model, 'age,sex\nn/a,F\n-,"none"\n', capfd, "--missing", "n/a", "--missing", "none"
    )
    assert [float(row["score"]) for row in rows] == pytest.approx([3.5, 0.5])
    assert "count as the mean: age (2), sex (1)" in err


@pytest.mark.parametrize("mark", [",", ";", "\t", "^"])
def test_a_new_table_has_a_separator_of_its_own(model, mark, capfd):
    path = model / "experiment.json"
    client = json.loads(path.read_text())["client"][0]
    others = [{"name": "shop", "separator": ";"}, {"name": "east", "separator": "^"}]
    path.write_text(json.dumps({"client": [client, *others]}))
    text = "customer,age,sex\n7,50,F\n8,30,M\n"
    rows, _ = predicted(model, text.replace(",", mark), capfd)
    assert [row["id"] for row in rows] == ["7", "8"]
    assert [float(row["score"]) for row in rows] == pytest.approx([5.5, -2.5])


def test_a_number_that_is_missing_at_some_clients_alone_is_a_value_in_anyones_table(tmp_path):
    told = [
        {"name": "a", "missing": ["?", "-1", "-9,5", "999"]},
        {"name": "b", "missing": ["n/a", "999"]},
        {"name": "c", "missing": ["999", "-1"]},
    ]
    (tmp_path / "experiment.json").write_text(json.dumps({"client": told}))
    assert table_settings(tmp_path).missing == ("?", "999", "n/a")
    assert table_settings(tmp_path, "a").missing == ("?", "-1", "-9,5", "999")


def test_a_number_that_is_missing_at_some_clients_alone_is_told_with_the_client(model, capfd):
    told = [{"name": "bank", "missing": ["?", "-1"]}, {"name": "shop", "missing": ["?"]}]
    (model / "experiment.json").write_text(json.dumps({"client": told}))
    text = "customer;age\n1;-1\n2;30\n"
    rows, err = predicted(model, text, capfd)
    assert float(rows[0]["score"]) == pytest.approx(-7.7)  # 2·(-1 - 40)/10 + 0.5
    assert "-1 is taken for a value: age (1)" in err
    assert "(--client bank), or say --missing=-1" in err
    for options in (("--client", "bank"), ("--missing=-1",)):
        rows, err = predicted(model, text, capfd, *options)
        assert float(rows[0]["score"]) == pytest.approx(0.5)  # the mean
        assert "is taken for a value" not in err
    rows, err = predicted(model, text, capfd, "--client", "shop")
    assert float(rows[0]["score"]) == pytest.approx(-7.7)
    assert "is taken for a value" not in err


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        (
            "new.csv",
            b"customer,age\n",
            "the table has 2 columns but 0 rows; check that its rows were written",
        ),
        ("new.csv", None, "this is a Parquet file, and no text; rename it to .parquet"),
        (
            "new.parquet",
            b"customer,age\n1,30\n",
            "this is no Parquet file; rename it to what it is, such as .csv",
        ),
    ],
    ids=["a header alone", "Parquet as CSV", "CSV as Parquet"],
)
def test_what_no_client_can_mend_in_a_table_advises_to_name_none(
    model, capfd, name, content, sentence
):
    told = [{"name": "bank", "decimal": ","}, {"name": "shop"}]
    (model / "experiment.json").write_text(json.dumps({"client": told}))
    table = model.parent / name
    if content is None:
        parquet.write_table(pa.table({"customer": [1], "age": [30]}), table)
    else:
        table.write_bytes(content)
    assert main(["predict", str(model), str(table)]) == 2
    assert said(capfd)[1].strip().endswith(f"{table}: {sentence}.")


def test_the_table_of_a_client_is_read_as_that_clients_was(tmp_path):
    told = [
        {"name": "a", "id": "no", "missing": ["?"], "separator": ";"},
        {"name": "b", "id": "who", "missing": ["-"]},
    ]
    (tmp_path / "experiment.json").write_text(json.dumps({"client": told}))
    assert table_settings(tmp_path, "b") == TableSettings(("who",), (), ("-",), ())
    for name in (None, "somebody who joined"):
        both = TableSettings(("no", "who"), (), ("?", "-"), (";",))
        assert table_settings(tmp_path, name) == both


@pytest.mark.parametrize("federated", [False, True])
def test_a_model_with_levels_as_they_were_read_by_earlier_versions_is_refused(
    federated, model, capfd
):
    levels = {"dose=0,5": 1.0, "dose=1": -3.0, "town=a,b": 1.0}
    fitted = LinearClassifier.from_weights(
        levels,
        means=dict.fromkeys(levels, 0.0),
        scales=dict.fromkeys(levels, 1.0),
        intercept=0.0,
        classes=("no", "yes"),
        loss="hinge",
    )
    write_model(fitted, model / "model")
    client = {"name": "bank", "id": "customer", "path": "bank.csv", "separator": ";"}
    (model / "experiment.json").write_text(json.dumps({"client": [client]}))
    rows, _ = predicted(model, "customer;dose\n7;0,5\n8;1\n", capfd)  # text, with decimal points
    assert [row["label"] for row in rows] == ["yes", "no"]
    told = {"experiment": {"name": "of before"}, "algorithm": {"name": "hyfdca"}}
    told |= {"client": [{**client, "label": "y", "decimal": ","}]}
    (model / "experiment.json").write_text(json.dumps(told))
    table = str(model.parent / "table.csv")
    given = ["--federated", f"bank={table}"] if federated else [table, "--client", "bank"]
    assert main(["predict", str(model), *given]) == 2
    sentence = one_error(said(capfd)[1])
    assert "the level '0,5' of column 'dose'" in sentence
    assert "it is '0.5' now: run the experiment again" in sentence


def test_the_table_of_a_client_that_its_columns_tell_is_read_as_that_clients_was(tmp_path, capfd):
    folder = finished(tmp_path / "run", 0, 0.8, "flic-linear")
    models = {
        name: LinearRegressor.from_weights(
            {column: 2.0}, means={column: 40.0}, scales={column: 10.0}, intercept=5.0
        )
        for name, column in (("a", "age"), ("b", "size"))
    }
    write_model(LinearModels("flic-linear", models), folder / "model")
    told = [
        {"name": "a", "id": "no", "missing": ["?"]},
        {"name": "b", "id": "no", "missing": ["0"], "separator": ";"},
    ]
    (folder / "experiment.json").write_text(json.dumps({"client": told}))
    # of a: 0 is a number and an id; 2·(0 - 40)/10 + 5 = -3
    rows, err = predicted(folder, "no;age\n0;0\n1;?\n", capfd)
    assert rows == [{"id": "0", "score": "-3.0"}, {"id": "1", "score": "5.0"}]
    assert "taken for one of 'a'" in err
    assert "count as the mean: age (1)" in err
    rows, _ = predicted(folder, "no;size\n1;0\n", capfd)  # of b it is missing
    assert rows == [{"id": "1", "score": "5.0"}]


def test_a_table_is_read_as_the_named_clients_was_where_one_model_is_for_all(model, capfd):
    told = [
        {"name": "bank", "id": "customer", "decimal": ","},
        {"name": "shop", "id": "customer"},
    ]
    (model / "experiment.json").write_text(json.dumps({"client": told}))
    rows, _ = predicted(model, "customer;age\n1;50,5\n", capfd, "--client", "bank")
    # 2·(50.5 - 40)/10 + 0.5, and the means of sex
    assert float(rows[0]["score"]) == pytest.approx(2.6)
    rows, _ = predicted(model, "customer;age\n1;50.5\n", capfd, "--client", "shop")
    assert float(rows[0]["score"]) == pytest.approx(2.6)
    (model.parent / "table.csv").write_text("customer;age\n1;50,5\n")
    assert main(["predict", str(model), str(model.parent / "table.csv")]) == 2
    sentence = one_error(said(capfd)[1])
    assert "name the client whose tables are written like this one (--client bank), or" in sentence
    empty = model.parent / "empty.csv"
    empty.write_bytes(b"")
    assert main(["predict", str(model), str(empty)]) == 2
    assert "--client" not in one_error(said(capfd)[1])  # no client's table is written like it
    assert main(["predict", str(model), str(model.parent / "table.csv"), "--client", "bnk"]) == 2
    assert "The run has no client 'bnk'; use 'bank'" in one_error(said(capfd)[1])


def test_a_client_is_checked_before_its_table_is_looked_at(model, capfd):
    (model / "experiment.json").write_text(json.dumps({"client": [{"name": "bank"}]}))
    assert main(["predict", str(model), str(model.parent / "none.csv"), "--client", "bnk"]) == 2
    assert "The run has no client 'bnk'; use 'bank'" in one_error(said(capfd)[1])


def test_a_table_with_the_name_of_a_clients_is_read_as_that_was(model, capfd):
    told = [
        {"name": "bank", "id": "customer", "decimal": ",", "path": "/none/data.csv"},
        {"name": "shop", "id": "customer", "encoding": "cp1252", "path": "/none/märz.csv"},
    ]
    (model / "experiment.json").write_text(json.dumps({"client": told}))
    folder = model.parent
    for name in ("data.csv", "bank.csv"):  # as its file is named, or as it is
        (folder / name).write_text("customer;age\n1;50,5\n")
        assert main(["predict", str(model), str(folder / name)]) == 0
        out, err = said(capfd)
        assert float(next(csv.DictReader(io.StringIO(out)))["score"]) == pytest.approx(2.6)
        assert "taken for one of 'bank' by its file's name; name another client if" in err


def test_numbers_of_another_country_are_told_what_training_had(model, capfd):
    told = {"name": "bank", "id": "customer", "decimal": ",", "thousands": "."}
    (model / "experiment.json").write_text(json.dumps({"client": [told]}))
    table = model.parent / "table.csv"
    table.write_text("customer;age\n1;50.5\n2;1.5\n")
    assert main(["predict", str(model), str(table)]) == 2
    found = one_error(said(capfd)[1])
    assert "numbers with a decimal point (such as '50.5'); write them with a decimal comma" in found
    assert "'.' between thousands, as the other tables have them" in found
    assert found.endswith('or say by --decimal "." how they are written.')
    assert main(["predict", str(model), str(table), "--decimal", "."]) == 0
    rows = list(csv.DictReader(io.StringIO(said(capfd)[0])))
    assert float(rows[0]["score"]) == pytest.approx(2.6)  # 2 · (50.5 - 40) / 10 + 0.5


def test_a_table_may_have_decimal_commas_where_training_had_points(model, capfd):
    text = "customer;age;sex\n7;50,0;F\n8;30,0;M\n"
    rows, _ = predicted(model, text, capfd, "--decimal", ",")
    assert [float(row["score"]) for row in rows] == pytest.approx([5.5, -2.5])
    table = model.parent / "table.csv"
    assert main(["predict", str(model), str(table)]) == 2
    assert '--decimal "," how they are written' in one_error(said(capfd)[1])
    assert main(["predict", str(model), str(table), "--decimal", "comma"]) == 2
    assert 'The decimal mark is \'comma\'; it is "." or ",".' in one_error(said(capfd)[1])


def test_a_table_in_utf8_is_read_so_whatever_training_had(model, capfd):
    fitted = LinearRegressor.from_weights(
        {"größe": 2.0}, means={"größe": 1.0}, scales={"größe": 1.0}, intercept=0.0
    )
    write_model(fitted, model / "model")
    client = {"name": "bank", "id": "n", "encoding": "cp1252"}
    (model / "experiment.json").write_text(json.dumps({"client": [client]}))
    table = model.parent / "table.csv"
    for encoding in ("utf-8", "utf-8-sig", "cp1252"):
        table.write_text("n,größe\n1,3\n", encoding=encoding)
        assert main(["predict", str(model), str(table)]) == 0
        out, err = said(capfd)
        assert (out.splitlines()[1], err) == ("1,4.0", "")


def test_columns_that_differ_from_the_models_by_case_are_refused(model, capfd):
    table = model.parent / "table.csv"
    for header, pair in (
        ("Age,sex", "'Age' for 'age'"),
        ("age,SEX ", "'SEX' for 'sex'"),
        ("AGE,SEX", "'AGE' for 'age', 'SEX' for 'sex'"),
    ):
        table.write_text(f"{header}\n50,F\n")
        assert main(["predict", str(model), str(table)]) == 2
        assert f"look like the model's and are not ({pair}: case," in one_error(said(capfd)[1])
    frame = pytest.importorskip("pandas").DataFrame({"Age": [50.0], "sex": ["F"]})
    with pytest.raises(TableError, match="'Age' for 'age'"):
        read_model(model / "model").predict(frame)
    # both are there: these are two columns, as in training
    rows, err = predicted(model, "age,Age,sex\n50,1,F\n", capfd)
    assert float(rows[0]["score"]) == pytest.approx(5.5)
    assert "left aside: Age" in err


def test_a_column_that_a_client_left_out_in_training_is_left_aside(model, capfd):
    """The shop's `Age` is something else than the model's `age`, and `memo` is no feature."""
    table = model.parent / "shop.csv"
    table.write_text("Age,sex,memo,more\n50,F,x,1\n")
    told = [
        {"name": "bank", "id": "n"},
        {"name": "shop", "id": "n", "exclude": ["Age", "memo"]},
    ]
    (model / "experiment.json").write_text(json.dumps({"client": told}))
    assert main(["predict", str(model), str(table)]) == 2
    error = one_error(said(capfd)[1])
    assert "look like the model's and are not ('Age' for 'age'" in error
    assert "is one of 'shop', which left 'Age' out in training: --client shop." in error
    assert main(["predict", str(model), str(table), "--client", "shop"]) == 0
    out, err = said(capfd)
    assert float(next(csv.DictReader(out.splitlines()))["score"]) == pytest.approx(3.5)
    assert "Left aside, as in training: Age, memo." in err
    assert "Columns that the model does not know are left aside: more." in err


def test_the_column_that_rows_were_held_out_by_is_not_unknown(model, capfd):
    told = [{"name": "bank", "id": "customer", "split_by": "family"}]
    (model / "experiment.json").write_text(json.dumps({"client": told}))
    rows, err = predicted(model, "customer,family,age,sex\n7,1,50,F\n", capfd)
    assert [row["id"] for row in rows] == ["7"]
    assert err == ""


@pytest.mark.parametrize("how", [{"exclude": ["age"]}, {"features": ["sex"]}])
@pytest.mark.parametrize("place", ["trained", "same name", "named"])
def test_a_column_that_others_have_of_the_same_name_is_left_aside_too(model, capfd, how, place):
    """The shop's `age` is that of its account; its rows have the mean of the bank's."""
    folder = model.parent / "old"
    folder.mkdir()
    table = folder / ("other.csv" if place == "named" else "shop.csv")
    table.write_text("n,age,sex\n1,50,F\n")
    path = table if place == "trained" else model.parent / "shop.csv"
    told = [{"name": "bank", "id": "n"}, {"name": "shop", "id": "n", "path": str(path), **how}]
    (model / "experiment.json").write_text(json.dumps({"client": told}))
    options = ["--client", "shop"] if place == "named" else []
    assert main(["predict", str(model), str(table), *options]) == 0
    out, err = said(capfd)
    # (1 - 0.25) - 3·(0 - 0.75) + 0.5, and 2·1 more with the age
    assert float(next(csv.DictReader(out.splitlines()))["score"]) == pytest.approx(3.5)
    assert "Left aside, as in training: age." in err
    assert ("taken for one of 'shop' by its file's name" in err) == (place == "same name")
    if place == "named":  # it may be of the bank
        assert main(["predict", str(model), str(table)]) == 0
        found = next(csv.DictReader(said(capfd)[0].splitlines()))
        assert float(found["score"]) == pytest.approx(5.5)


def test_a_table_with_a_clients_name_has_its_units_and_others_are_told_of_them(model, capfd):
    dictionary = model.parent / "columns.toml"
    dictionary.write_text('[feature.age]\nunit = "years"\nfactors = { months = 0.0833 }\n')
    told = {
        "client": [{"name": "bank", "id": "n"}, {"name": "shop", "units": {"age": "months"}}],
        "alignment": {"dictionary": str(dictionary)},
    }
    (model / "experiment.json").write_text(json.dumps(told))
    scores = {}
    for name, age in (("shop", 600), ("new", 49.98)):
        table = model.parent / f"{name}.csv"
        table.write_text(f"n,sex,age\n1,F,{age}\n")
        assert main(["predict", str(model), str(table)]) == 0
        out, err = said(capfd)
        scores[name] = float(next(csv.DictReader(out.splitlines()))["score"])
        assert ("taken for one of 'shop' by its file's name" in err) == (name == "shop")
        told_unit = "age is taken to be in 'years', as in the model; at 'shop' it is in 'months'"
        assert (told_unit in err) == (name == "new")
        assert "The dictionary of the run" not in err
    assert scores["shop"] == pytest.approx(scores["new"], rel=1e-12)
    dictionary.unlink()  # months counted as years then, without a word
    assert main(["predict", str(model), str(model.parent / "shop.csv")]) == 0
    assert f"The dictionary of the run, {dictionary}, is not there" in said(capfd)[1]


def test_a_clients_columns_have_the_names_and_units_of_training(model, capfd):
    table, dictionary = model.parent / "table.csv", model.parent / "columns.toml"
    dictionary.write_text(
        '[feature.age]\nunit = "years"\nfactors = { months = 0.0833 }\n'
        '[client.bank]\nMonths = { feature = "age", unit = "months" }\nSEX = "sex"\nb = "z"\n'
    )
    told = {"client": [{"name": "bank", "id": "n"}, {"name": "shop", "id": "n"}]}
    told["alignment"] = {"dictionary": str(dictionary)}
    (model / "experiment.json").write_text(json.dumps(told))
    scores = {}
    for client, header, age in (("bank", "SEX,n,Months", 600), ("shop", "sex,n,age", 49.98)):
        table.write_text(f"{header}\nF,1,{age}\n")
        assert main(["predict", str(model), str(table), "--client", client]) == 0
        scores[client] = float(next(csv.DictReader(said(capfd)[0].splitlines()))["score"])
    assert scores["bank"] == pytest.approx(scores["shop"], rel=1e-12)
    assert scores["bank"] == pytest.approx(5.496)
    dictionary.unlink()
    table.write_text("SEX,n,Months\nF,1,600\n")
    assert main(["predict", str(model), str(table), "--client", "bank"]) == 2
    assert "'SEX' for 'sex'" in one_error(said(capfd)[1])


def test_several_tables_are_told_how_to_name_their_clients(model, capfd):
    assert main(["predict", str(model), "x/bank.csv", "shop.csv"]) == 2
    found = one_error(said(capfd)[1])
    assert "intarsia predict DIR --federated bank=x/bank.csv shop=shop.csv;" in found


def test_the_very_table_of_a_client_is_read_as_it_was_and_known_to_have_trained(model, capfd):
    table = model.parent / "table.csv"
    told = [
        {"name": "shop", "id": "customer"},
        {"name": "bank", "id": "customer", "decimal": ",", "path": str(table)},
    ]
    (model / "experiment.json").write_text(json.dumps({"client": told}))
    rows, err = predicted(model, "customer;age\n1;50,5\n", capfd)
    assert float(rows[0]["score"]) == pytest.approx(2.6)
    assert "is the table of 'bank' in this run. The model was trained on rows of it" in err
    other = table.rename(table.with_name("new.csv"))
    assert main(["predict", str(model), str(other), "--client", "bank"]) == 0
    assert "trained on" not in said(capfd)[1]


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("shoe,hat\n1,2\n", [], "the model knows 'age', 'sex'"),
        ("age,sex\n1,F\n", ["--id", "customer"], "no column 'customer'"),
        (
            "age,sex,customer,b,c,d,e,f,g\n1,F,1,1,1,1,1,1,1\n",
            ["--id", "custmer"],
            "no column 'custmer'; use 'customer' (the nearest of 9 columns)",
        ),
        (
            "age,sex\n1\n",
            [],
            "line 2 has 1 value ('1') but the header has 2; give every line 2 "
            "values, and put a value with a separator in quotes.",
        ),
        ("age,sex\n1,F\nn/a,M\n", [], "correct it, or let it count as missing: --missing 'n/a'."),
        ("age\n1\0\n", [], "which is not text; save it as UTF-8 text."),
        ("customer,age\n1,2020-01-02\n", [], "leave it out of the table."),
        ("", [], "empty"),
        ("age,sex\n", [], "2 columns but 0 rows; check that its rows were written."),
        ("age\n1e400\n", [], "column 'age' is 1e400 in row 1; expected a finite number"),
        ("customer,age\n1,2\n1,3\n", [], "repeat"),
        ("age,sex\nold,F\nyoung,M\n", [], "column 'age' has text (such as 'old')"),
    ],
)
def test_a_wrong_table_is_one_sentence(model, text, options, expected, capfd):
    table = model.parent / "table.csv"
    table.write_text(text)
    assert main(["predict", str(model), str(table), *options]) == 2
    assert expected in one_error(said(capfd)[1])


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("none.csv", "There is no file none.csv; give the path"),
        ("run", "run is a folder; name a CSV, Parquet, libsvm or npz file"),
        ("table.toml", "ends in '.toml', which is no format that is read; give"),
        ("table.xlsx", "table.xlsx is a workbook or an archive, which is not read; save the sheet"),
        ("table.csv", "table.csv: column 'age' mixes numbers and text"),
    ],
)
def test_what_is_no_table_is_named_as_it_was_given(model, table, expected, capfd, monkeypatch):
    monkeypatch.chdir(model.parent)
    for name in ("table.toml", "table.csv", "table.xlsx"):
        Path(name).write_text("age\n1\nx\n")
    assert main(["predict", "run", table]) == 2
    found = one_error(said(capfd)[1])
    assert found.startswith(f"error: {expected}") or expected in found
    assert "Client" not in found


@pytest.mark.parametrize(
    ("out", "expected"),
    [
        ("", "argument after '--out' is empty"),
        (".", "--out . is a folder; name a file in it"),
        ("run", "--out run is a folder"),
        ("none/x.csv", "is in none, which is no folder; make it first"),
        ("table.csv/x", "is in table.csv, which is no folder"),
        ("run/../table.csv", "is the table itself"),
    ],
)
def test_predictions_go_to_a_file_of_their_own(model, out, expected, capfd, monkeypatch):
    monkeypatch.chdir(model.parent)
    Path("table.csv").write_text("age\n1\n")
    assert main(["predict", "run", "table.csv", "--out", out]) == 2
    assert expected in one_error(said(capfd)[1])
    assert Path("table.csv").read_text() == "age\n1\n"


def test_a_regression_predicts_numbers(tmp_path, capfd):
    folder = finished(tmp_path / "run", 0, 0.8)
    fitted = LinearRegressor.from_weights(
        {"age": 2.0}, means={"age": 40.0}, scales={"age": 10.0}, intercept=5.0
    )
    write_model(fitted, folder / "model")
    rows, _ = predicted(folder, "id,age\n1,50\n2,\n", capfd, "--id", "id")
    assert rows == [{"id": "1", "score": "7.0"}, {"id": "2", "score": "5.0"}]


def test_more_classes_give_the_best_one(tmp_path, capfd):
    folder = finished(tmp_path / "run", 0, 0.8)
    fitted = LinearClassifier.from_weights(
        {"x": np.array([1.0, 0.0, -1.0])},
        means={"x": 0.0},
        scales={"x": 1.0},
        intercept=np.array([0.0, 0.5, 0.0]),
        classes=("a", "b", "c"),
        loss="hinge",
    )
    write_model(fitted, folder / "model")
    rows, _ = predicted(folder, "x,y\n2,0\n0,0\n-2,0\n", capfd)
    assert [row["label"] for row in rows] == ["a", "b", "c"]
    assert [float(row["score"]) for row in rows] == [2.0, 0.5, 2.0]
    assert list(rows[0]) == ["id", "score", "label"]


# -- files whose columns have no names


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    """score = 1·x1 + 2·x2 + … + 12·x12 - 3; the client "web" had a file without an ending."""
    names = [str(at) for at in range(1, 13)]
    fitted = LinearRegressor.from_weights(
        {name: float(name) for name in names},
        means=dict.fromkeys(names, 0.0),
        scales=dict.fromkeys(names, 1.0),
        intercept=-3.0,
    )
    folder = finished(tmp_path / "run", 0, 0.8)
    write_model(fitted, folder / "model")
    clients = [
        {"name": "web", "path": "web", "format": "libsvm"},
        {"name": "lab", "path": "lab.npz", "id": "samples"},
    ]
    (folder / "experiment.json").write_text(json.dumps({"client": clients}))
    return folder


LINES = "1 2:1 12:0.5\n-1\n1 1:4 3:-1 # the last\n"
SAID = [2 + 6 - 3, -3.0, 4 - 3 - 3]


@pytest.mark.parametrize("name", ["new.svm", "new.libsvm.gz", "new.t", "new"])
def test_predict_reads_libsvm(numbers, name, capfd):
    path = numbers.parent / name
    path.write_bytes(gzip.compress(LINES.encode()) if name.endswith(".gz") else LINES.encode())
    assert main(["predict", str(numbers), str(path)]) == 0
    out, err = said(capfd)
    rows = list(csv.DictReader(io.StringIO(out)))
    assert err == ""
    assert [row["id"] for row in rows] == ["1", "2", "3"]
    assert [float(row["score"]) for row in rows] == pytest.approx(SAID)


def test_a_libsvm_file_may_have_fewer_or_more_columns(numbers, capfd):
    path = numbers.parent / "new.svm"
    path.write_text("0 2:1\n0 14:1 15:2\n")
    assert main(["predict", str(numbers), str(path), "--id", "row"]) == 0
    out, err = said(capfd)
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [(row["id"], float(row["score"])) for row in rows] == [("0", -1.0), ("1", -3.0)]
    assert "left aside: 13, 14, 15" in err


def test_columns_that_a_libsvm_file_lacks_are_named_by_what_they_count_as(numbers, capfd):
    names = [str(at) for at in range(1, 13)]
    model = LinearRegressor.from_weights(
        {name: float(name) for name in names},
        means={name: 5.0 * (name in ("11", "12")) for name in names},  # these were dense
        scales=dict.fromkeys(names, 1.0),
        intercept=0.0,
    )
    write_model(model, numbers / "model")
    path = numbers.parent / "new.svm"
    path.write_text("0 2:1\n0 9:2\n")
    assert main(["predict", str(numbers), str(path)]) == 0
    out, err = said(capfd)
    assert [float(row["score"]) for row in csv.DictReader(io.StringIO(out))] == [2.0, 18.0]
    assert "lacks 2 of the model's 12 columns; each counts as its mean: 11, 12." in err
    assert "10" not in err  # it was sparse: what is not written is 0


@pytest.mark.parametrize("layout", [np.asarray, csr_array], ids=["dense", "csr"])
def test_predict_reads_npz(numbers, layout, capfd):
    x = np.zeros((3, 12))
    x[0, [1, 11]], x[2, [0, 2]] = [1, 0.5], [4, -1]
    parts = {"samples": ["p", "q", "r"], "features": [str(at) for at in range(1, 13)], "y": "abc"}
    values = {"x": x} if layout is np.asarray else parts_of(csr_array(x))
    path = numbers.parent / "new.npz"
    arrays = {name: np.array(list(value)) for name, value in parts.items()}
    np.savez(path, **values, **arrays)
    assert main(["predict", str(numbers), str(path)]) == 0
    rows = list(csv.DictReader(io.StringIO(said(capfd)[0])))
    assert [row["id"] for row in rows] == ["p", "q", "r"]
    assert [float(row["score"]) for row in rows] == pytest.approx(SAID)
    del arrays["samples"]
    np.savez(path, **values, **arrays)
    assert main(["predict", str(numbers), str(path), "--id", "samples"]) == 2
    assert "no array of this name; save it, or number the rows: --id row" in said(capfd)[1]
    assert main(["predict", str(numbers), str(path)]) == 0
    assert [row.split(",")[0] for row in said(capfd)[0].split()] == ["id", "1", "2", "3"]
    assert main(["predict", str(numbers), str(path), "--id", "row"]) == 0
    assert [row.split(",")[0] for row in said(capfd)[0].split()] == ["id", "0", "1", "2"]


def test_predict_leaves_out_the_arrays_that_training_did(tmp_path, capfd):
    rng, clients = np.random.default_rng(0), []
    for name, start in (("a", 0), ("b", 100)):
        x = rng.normal(size=(100, 3))
        ids = np.arange(start, start + 100)
        np.savez(tmp_path / f"{name}.npz", x=x, y=x[:, 0] > 0, samples=ids, note=ids)
        clients.append(f'[[client]]\nname = "{name}"\npath = "{name}.npz"\nexclude = ["note"]\n')
    file = tmp_path / "e.toml"
    file.write_text('algorithm = { name = "hyfdca" }\n' + "".join(clients))
    run, table = str(tmp_path / "run"), str(tmp_path / "a.npz")
    assert main(["run", str(file), "--no-yardsticks", "--out", run]) == 0
    assert main(["predict", run, table]) == 0
    alone = said(capfd)[0].split()
    assert len(alone) == 101
    assert main(["predict", run, "--federated", f"a={table}"]) == 0
    assert len(said(capfd)[0].split()) == 101
    with np.load(table) as arrays:
        np.savez(table, **arrays, labels=arrays["y"])
    assert main(["predict", run, table]) == 2
    assert "nothing is read from 1 array of the file: 'labels'" in said(capfd)[1]


def parts_of(x):
    names = ("data", "indices", "indptr", "shape")
    return {name: np.array(getattr(x, name)) for name in names}


def test_a_wrong_libsvm_table_is_one_sentence(numbers, capfd):
    path = numbers.parent / "new.svm"
    path.write_text("0 2:1\n0 x:1\n")
    assert main(["predict", str(numbers), str(path)]) == 2
    found = one_error(said(capfd)[1])
    assert "new.svm: line 2 ('0 x:1'): the index 'x' is not a whole number" in found
    assert "Client" not in found
    for name in ("who", "samples"):
        path.write_text("0 2:1\n")
        assert main(["predict", str(numbers), str(path), "--id", name]) == 2
        found = one_error(said(capfd)[1])
        assert (
            f"id is {name!r} but a libsvm file has no id column; number the rows by --id" in found
        )


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("t.npz", b"neither numbers nor zip", "plain arrays (it is no zip archive); write numbers"),
        (
            "t.npz.gz",
            gzip.compress(b"x", mtime=0),
            "ends in '.gz', which is no format that is read",
        ),
        (
            "t.parquet.gz",
            gzip.compress(b"x", mtime=0),
            "ends in '.gz', which is no format that is read",
        ),
        ("t.svm", b"1 1e3:1\n", "the index '1e3' is not a whole number"),
    ],
)
def test_a_wrong_file_without_names_is_one_sentence(numbers, name, content, expected, capfd):
    path = numbers.parent / name
    path.write_bytes(content)
    clients = json.loads((numbers / "experiment.json").read_text())["client"]
    (numbers / "experiment.json").write_text(json.dumps({"client": clients[1:]}))
    assert main(["predict", str(numbers), str(path)]) == 2
    assert expected in one_error(said(capfd)[1])


def test_an_array_of_python_objects_is_refused_without_advice_to_load_it(numbers, capfd):
    path = numbers.parent / "t.npz"
    np.savez(path, x=np.array([[1, "a", None]], object))
    assert main(["predict", str(numbers), str(path)]) == 2
    found = one_error(said(capfd)[1])
    assert "an array holds Python objects" in found
    assert "pickle" not in found


def test_rows_count_as_in_the_run_where_that_had_them_by_number(numbers, capfd):
    clients = [{"name": "web", "path": "web.svm", "id": "row"}]
    (numbers / "experiment.json").write_text(json.dumps({"client": clients}))
    path = numbers.parent / "new.svm"
    path.write_text(LINES)
    assert main(["predict", str(numbers), str(path)]) == 0
    assert [row.split(",")[0] for row in said(capfd)[0].split()[1:]] == ["0", "1", "2"]


def test_a_table_with_labels_is_scored(model, capfd):
    text = "customer,age,sex,default\n7,50,F,yes\n8,30,M,no\n9,50,M,no\n10,20,F,yes\n11,45,F,\n"
    rows, err = predicted(model, text, capfd)
    assert len(rows) == 5
    # scores 5.5, -2.5, 1.5, -0.5: two of four are said right, and of four pairs one is out of order
    lines = {words[0]: words for line in err.splitlines() if (words := line.split("│")) if words}
    shown = {name.strip(): cells[1].strip() for name, cells in lines.items() if len(cells) > 1}
    assert "figures of the class 'yes' on 4 rows with a label" in err
    assert shown["accuracy"] == "0.5"
    assert shown["AUC"] == "0.75"
    assert shown["base rate"] == "0.5"
    assert "1 true positives, 1 false positives, 1 false negatives, 1 true negatives" in err


def test_curves_of_a_table_with_labels_are_drawn(model, tmp_path, capfd):
    text = "customer,age,sex,default\n" + "".join(
        f"{n},{30 + n % 21},{'FM'[n % 2]},{'yes' if n % 3 else 'no'}\n" for n in range(60)
    )
    path = tmp_path / "curves.png"
    predicted(model, text, capfd, "--picture", str(path))
    assert path.is_file()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("age,sex\n50,F\n", "no row of the table has a label that the model knows"),
        ("age,sex,default\n50,F,\n", "no row of the table has a label that the model knows"),
    ],
)
def test_rows_are_predicted_where_there_is_no_picture_to_draw(model, text, expected, capfd):
    table, out, picture = (model.parent / name for name in ("plain.csv", "s.csv", "c.png"))
    table.write_text(text)
    asked = ["predict", str(model), str(table), "--out", str(out), "--picture", str(picture)]
    assert main(asked) == 2
    told = said(capfd)[1]
    assert expected in told
    assert "the predictions are written" in told
    assert len(out.read_text().splitlines()) == 2
    assert not picture.exists()


def test_a_picture_is_for_one_table_with_labels(model, capfd):
    asked = ["predict", str(model), "bank=bank.csv", "--federated", "--picture", "c.png"]
    assert main(asked) == 2
    assert "--federated reads none" in one_error(said(capfd)[1])


def test_the_figures_of_several_classes_are_of_the_probabilities(tmp_path, capfd):
    rng = np.random.default_rng(3)
    table = rng.normal(size=(80, 2))
    weights = {"a": np.array([3.0, 0, -1]), "b": np.array([0, -2.0, 1])}
    fitted = LinearClassifier.from_weights(
        weights,
        means=dict.fromkeys("ab", 0.0),
        scales=dict.fromkeys("ab", 1.0),
        intercept=np.array([1.0, -2, 0]),
        classes=("x", "y", "z"),
        loss="logistic",
    )
    truth = fitted.classes_[(table @ np.stack([*weights.values()]) + rng.normal(size=3)).argmax(1)]
    folder = finished(tmp_path / "run", 0, 0.8)
    write_model(fitted, folder / "model")
    (folder / "experiment.json").write_text(json.dumps({"client": [{"name": "c", "label": "y"}]}))
    rows = [f"{a!r},{b!r},{y}" for (a, b), y in zip(table.tolist(), truth, strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["a,b,y", *rows]))
    score = predict(folder, tmp_path / "t.csv").score
    named = pl.DataFrame({"a": table[:, 0], "b": table[:, 1]})
    chance = fitted.predict_proba(named)
    exact = roc_auc_score(truth, chance, multi_class="ovr")
    assert score.figures.auc == pytest.approx(exact, abs=1e-12)
    raw = fitted.decision_function(named)
    classes = enumerate(fitted.classes_)
    other = np.mean([roc_auc_score(truth == name, raw[:, k]) for k, name in classes])
    assert abs(other - exact) > 1e-3  # what docs/reference/figures.md says they differ by


def test_labels_that_the_model_does_not_know_are_no_error(model, capfd):
    rows, err = predicted(model, "customer,age,sex,default\n7,50,F,perhaps\n8,30,M,no\n", capfd)
    assert len(rows) == 2
    assert "The rows are not scored by the column 'default'" in err
    assert "'perhaps'" in err


def test_labels_are_read_as_the_named_client_writes_them(model, capfd):
    mine = {"name": "mine", "id": "kid", "label": "bad", "label_map": {"1": "yes", "0": "no"}}
    tree = json.loads((model / "experiment.json").read_text())
    other = {"name": "other", "id": "kid", "label": "bad"}
    tree["client"] = [mine, other]
    (model / "experiment.json").write_text(json.dumps(tree))
    text = "kid,age,sex,bad\n7,50,F,1\n8,30,M,0\n9,50,M,0\n"
    _, err = predicted(model, text, capfd, "--client", "mine")
    assert "1 true positives, 1 false positives, 0 false negatives, 1 true negatives" in err
    aside = "not scored: the label column 'bad' has '0', '1', and the model's classes are 'no', 'y"
    for options, advice in (((), "(--client)."), (("--client", "other"), "'yes'.")):
        _, err = predicted(model, text, capfd, *options)
        assert aside in err
        assert advice in err
        assert "figures on" not in err


def test_labels_that_positive_names_are_of_the_second_class(model, capfd):
    tree = json.loads((model / "experiment.json").read_text())
    tree["labels"] = {"positive": ["severe", "mild"]}
    (model / "experiment.json").write_text(json.dumps(tree))
    text = "customer,age,sex,default\n7,50,F,mild\n8,30,M,no\n9,50,F,severe\n"
    _, err = predicted(model, text, capfd)
    assert "2 true positives, 0 false positives, 0 false negatives, 1 true negatives" in err


def test_new_tables_are_read_by_the_units_and_limits_of_a_data_set_s_file(tmp_path, capfd):
    rng = np.random.default_rng(0)
    rate = rng.normal(50, 10, 80).round(1)
    texts = ["<40 %" if one < 40 else f"{one} %" for one in rate]
    labels = np.where(rate + rng.normal(0, 5, 80) > 50, "yes", "no")
    lines = ["rate,y", *(f"{text},{label}" for text, label in zip(texts, labels, strict=True))]
    (tmp_path / "all.csv").write_text("\n".join(lines))
    file = tmp_path / "mine.toml"
    file.write_text(
        """
        algorithm = { name = "hyfdca", loss = "logistic" }
        experiment = { yardsticks = false }
        dataset = { path = "all.csv", label = "y", units = { rate = "%" }, limits = ["rate"] }
        partition = { kind = "iid", clients = 2 }
        """
    )
    assert main(["run", str(file)]) == 0
    said(capfd)
    rows, _ = predicted(tmp_path / "runs" / "mine", "rate\n<40 %\n40\n80 %\n", capfd)
    first, second, third = (row["score"] for row in rows)
    assert first == second != third
