"""New tables that lie in databases: the commands and functions that take a file take them too."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy", reason="sqlalchemy is not installed")

import intarsia
from command_line import finished, one_error, said
from intarsia.cli.main import main
from intarsia.errors import TableError
from intarsia.inference.new_client import described
from intarsia.models.linear import LinearClassifier
from intarsia.models.serialization import write_model

QUERY = 'select * from "customers"'


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """score = 2·(age - 40)/10 + 1·[sex=F] - 3·[sex=M] + 0.5, means 40, 0.25 and 0.75."""
    monkeypatch.chdir(tmp_path)
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
    url = f"sqlite:///{tmp_path / 'loans.db'}"
    bank = {"name": "bank", "url": url, "query": f"{QUERY};", "id": "customer", "label": "y"}
    (folder / "experiment.json").write_text(json.dumps({"client": [bank, {"name": "shop"}]}))
    with closing(sqlite3.connect("loans.db")) as database, database:
        database.execute("create table customers (customer, age, sex, y)")
        rows = [("a7", 50, "M", "no"), ("a8", 30, "F", "yes"), ("a9", None, "M", "no")]
        database.executemany("insert into customers values (?, ?, ?, ?)", rows)
        database.execute('create view "Neue Kunden" as select customer, sex, age from customers')
    return folder


# 2·1 - 0.25 - 3·0.25 + 0.5; -2 + 0.75 + 3·0.75 + 0.5; -0.25 - 3·0.25 + 0.5
SCORES = {"a7": 1.5, "a8": 1.5, "a9": -0.5}


def predicted(capfd, *arguments: str) -> tuple[dict[str, float], str]:
    assert main(["predict", "run", *arguments]) == 0
    out, err = said(capfd)
    return {row["id"]: float(row["score"]) for row in csv.DictReader(io.StringIO(out))}, err


@pytest.mark.parametrize(
    "named",
    [
        "loans.db#customers",
        "loans.db#Neue Kunden",
        "sqlite:///loans.db#customers",
        "loans.db#select sex, customer, age from customers",
        "$LOANS_URL#customers",
        "${LOANS_URL}#customers",
    ],
)
@pytest.mark.usefixtures("run")
def test_a_table_of_a_database_is_predicted_with_its_ids(named, capfd, monkeypatch):
    monkeypatch.setenv("LOANS_URL", "sqlite:///loans.db")
    scores, err = predicted(capfd, named)
    assert scores == pytest.approx(SCORES)
    assert "count as the mean: age (1)" in err


def test_python_and_duckdb_give_the_same(run):
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    with closing(duckdb.connect("new.duckdb")) as database:
        database.execute(
            "create table customers as from (values ('a7', 50.0::decimal(9, 2), 'M'), "
            "('a8', 30, 'F'), ('a9', null, 'M')) as t(customer, age, sex)"
        )
    found = intarsia.predict(run, "new.duckdb")
    assert dict(zip(found.ids, found.scores, strict=True)) == pytest.approx(SCORES)
    found = intarsia.predict(run, Path("new.duckdb#customers"), "customer", "bank")
    assert list(found.ids) == list(SCORES)


@pytest.mark.usefixtures("run")
def test_that_the_model_was_trained_on_a_table_of_a_database_is_told(capfd):
    _, err = predicted(capfd, "loans.db#customers")
    assert "loans.db is the table of 'bank' in this run. The model was trained on rows of it" in err
    _, err = predicted(capfd, "loans.db#select * from customers where age > 40")
    assert "loans.db is the database of 'bank' in this run. If these are rows that" in err
    _, err = predicted(capfd, "loans.db#Neue Kunden")  # without a label nothing is judged
    assert "judge" not in err
    Path("loans.db").rename("others.db")
    _, err = predicted(capfd, "others.db#customers")
    assert "judge" not in err


def test_a_table_of_a_clients_database_is_read_as_the_clients_was(run, capfd):
    tree = json.loads((run / "experiment.json").read_text())
    tree["client"][0]["missing"] = ["30"]
    tree["client"][0]["label_map"] = {"no": "yes"}
    (run / "experiment.json").write_text(json.dumps(tree))
    scores, err = predicted(capfd, "loans.db#Neue Kunden")
    assert scores["a8"] == pytest.approx(0.75 + 3 * 0.75 + 0.5)  # as without an age
    assert "is taken for one of 'bank' by its database" in err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["loans.db"], "loans.db: the database has 2 tables"),
        (["loans.db#custmers"], "has no table 'custmers'; use 'customers'"),
        (["none.db#a"], "there is no database file"),
        (["$NO_SUCH_URL#a"], "names the environment variable NO_SUCH_URL, which is not set"),
        (["loans.db#delete from customers"], "has no table"),
        (["loans.db#with a as (select 1) delete from customers"], "only one select is run"),
        (["loans.db#select agee from customers"], "no such column"),
        (["loans.db#customers", "--out", "loans.db"], "predictions are written as CSV"),
        (["loans.db#customers", "--out", "other.sqlite3"], "predictions are written as CSV"),
        (["sqlite:///loans.x#customers", "--out", "loans.x"], "--out loans.x is the table itself"),
        (["$LOANS_URL#customers", "--out", "loans.x"], "--out loans.x is the table itself"),
        (["https://me:secret@a.org/b.csv"], "https://a.org/b.csv"),
    ],
)
@pytest.mark.usefixtures("run")
def test_what_cannot_be_predicted_is_one_sentence_without_a_client(
    arguments, told, capfd, monkeypatch
):
    monkeypatch.setenv("LOANS_URL", "sqlite:///loans.x")
    Path("loans.x").write_bytes(Path("loans.db").read_bytes())
    assert main(["predict", "run", *arguments]) == 2
    problem = one_error(said(capfd)[1])
    assert told in problem
    assert "Client" not in problem
    assert "secret" not in problem
    assert Path("loans.x").read_bytes() == Path("loans.db").read_bytes()


def test_a_file_whose_format_the_run_states_is_no_database(run):
    (Path("old.db")).write_text("customer,age,sex\na7,50,M\n")
    tree = {"client": [{"name": "bank", "path": "then.db", "format": "csv", "id": "customer"}]}
    (run / "experiment.json").write_text(json.dumps(tree))
    assert list(intarsia.predict(run, "old.db").scores) == pytest.approx([1.5])


def test_a_new_client_has_its_table_in_a_database(run):
    source, read = described(run, "loans.db#customers", None, {})
    assert (source.name, source.query, source.path, read) == ("loans", QUERY, None, None)
    assert (source.id, source.label) == ("customer", "y")
    with pytest.raises(TableError, match="the database has no table 'none'"):
        described(run, "loans.db#none", None, {})


def test_columns_that_are_spread_over_databases_are_predicted(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    with closing(sqlite3.connect("all.db")) as database, database:
        database.execute("create table bank (customer, income, y)")
        database.execute("create table shop (customer, visits)")
        rows = [(n, n * 37 % 101, int(n * 37 % 101 > 50)) for n in range(120)]
        database.executemany("insert into bank values (?, ?, ?)", rows)
        database.executemany("insert into shop values (?, ?)", [(n, n % 7) for n in range(120)])
    assert main(["init", "all.db#bank", "all.db#shop"]) == 0
    assert main(["run", "mine.toml", "--no-yardsticks", "--out", "run"]) == 0
    for name in ("bank", "shop"):
        with closing(sqlite3.connect("all.db")) as database:
            table = database.execute(f"select * from {name} where customer < 9").fetchall()
        names = "customer,income,y" if name == "bank" else "customer,visits"
        lines = [names, *(",".join(map(str, row)) for row in table)]
        Path(f"{name}.csv").write_text("\n".join(lines))
    said(capfd)
    files = ["all-bank=bank.csv", "all-shop=shop.csv"]
    assert main(["predict", "run", *files, "--federated"]) == 0
    of_files = said(capfd)[0]
    assert len(of_files.splitlines()) == 10
    queries = [f"all-{one}=all.db#select * from {one} where customer < 9" for one in
               ("bank", "shop")]  # fmt: skip
    assert main(["predict", "run", *queries, "--federated"]) == 0
    assert said(capfd)[0] == of_files
