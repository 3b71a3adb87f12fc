"""Tables of databases, as `intarsia init` is given them."""

from __future__ import annotations

import sqlite3
import tomllib
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy", reason="sqlalchemy is not installed")

from command_line import one_error, said
from intarsia.cli.main import main
from intarsia.data.reader import columns_of
from intarsia.errors import ExperimentError, TableError
from intarsia.inspection.named_tables import sources_named
from intarsia.results.result import load


def customers(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute('create table customers (customer, age, "Income", defaulted)')
        rows = [(n, 20 + n % 50, n * 37 % 101, int(n * 37 % 101 > 60)) for n in range(300)]
        database.executemany("insert into customers values (?, ?, ?, ?)", rows)


def orders(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute('create table "order" (customer, visits)')
        database.executemany(
            'insert into "order" values (?, ?)', [(n, n * 13 % 47) for n in range(100, 400)]
        )
        database.execute('create view "Frequent" as select * from "order" where visits > 9')


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refusal(*named: str) -> str:
    with pytest.raises((TableError, ExperimentError)) as caught:
        sources_named(named)
    return str(caught.value)


def test_the_file_that_is_written_for_databases_runs_from_another_folder(here, capfd):
    customers(here / "bank.db")
    orders(here / "shop.sqlite")
    (here / "sub").mkdir()
    file = here / "sub/mine.toml"
    assert main(["init", "bank.db", "shop.sqlite#order", "--out", str(file)]) == 0
    bank, shop = tomllib.loads(file.read_text())["client"]
    assert (bank["name"], bank["url"]) == ("bank", "sqlite:///../bank.db")
    assert bank["query"] == 'select * from "customers"'
    assert (bank["id"], bank["label"]) == ("customer", "defaulted")
    assert (shop["name"], shop["url"]) == ("shop", "sqlite:///../shop.sqlite")
    assert shop["query"] == 'select * from "order"'
    assert main(["run", str(file), "--out", "run", "--no-yardsticks"]) == 0
    assert load(here / "run").metrics.server.accuracy > 0.9


def test_tables_and_queries_of_one_database_are_clients_with_names_of_their_own(here):
    customers(here / "all.db")
    orders(here / "all.db")
    query = 'select customer, visits from "order" where visits > 3'
    found = sources_named(["all.db#customers", "sqlite:///all.db#Frequent", f"all.db#{query}"])
    assert [one.name for one in found] == ["all-customers", "all-Frequent", "all-query"]
    queries = ['select * from "customers"', 'select * from "Frequent"', query]
    assert [one.query for one in found] == queries
    assert {one.url for one in found} == {f"sqlite:///{here / 'all.db'}"}


def test_a_file_with_the_mark_in_its_name_is_that_file(here):
    (here / "a.db#b.csv").write_text("id,x\n1,2\n")
    [found] = sources_named(["a.db#b.csv"])
    assert (found.path, found.url) == (str(here / "a.db#b.csv"), None)


def test_which_tables_a_database_has_is_told_where_none_or_another_is_named(here):
    customers(here / "all.db")
    orders(here / "all.db")
    told = refusal("all.db")
    assert "the database has 3 tables ('Frequent', 'customers', 'order')" in told
    assert "as in 'all.db#Frequent'" in told
    told = refusal("all.db#custmers")
    assert "has no table 'custmers'; use 'customers'" in told
    with closing(sqlite3.connect("none.db")) as database, database:
        database.execute("create table gone (a)")
        database.execute("drop table gone")
    assert "the database has no table; name another one" in refusal("none.db")
    assert "is named 2 times" in refusal("all.db#order", "sqlite:///all.db#order")


def test_what_no_query_can_be_sent_to_is_refused_without_a_setting_of_a_file(here, capfd):
    assert "there is no database file" in refusal("nowhere.db#a")
    assert "files are not fetched; download the file and name it." in refusal("https://a.org/b.csv")
    assert "write the table to a Parquet or CSV file, and name that" in refusal("mysql://a@b/c#d")
    told = refusal("postgresql://reader:secret@host/loans#people")
    assert "in single quotes so that the shell leaves it" in told
    assert "secret" not in told
    Path("shop.sqlite").write_bytes(b"this is no database at all" * 99)
    assert main(["init", "shop.sqlite"]) == 2
    assert "put back a copy" in one_error(said(capfd)[1])
    assert not Path("mine.toml").exists()


def test_a_table_is_only_read(here):
    customers(here / "bank.db")
    before = (here / "bank.db").read_bytes()
    [found] = sources_named(["bank.db#select 1; drop table customers"])
    with pytest.raises(TableError, match="only one select is run"):
        columns_of(found)
    assert (here / "bank.db").read_bytes() == before


ODD = ("a#b.db", "a?b.db", "a%20b.db", "$HOME.db", "a$b.db", "a:b@c.db", "größe 'x\".db", "~t.db")


@pytest.mark.parametrize("name", ODD)
def test_a_database_has_any_name_that_a_file_can_have(here, name, capfd):
    customers(here / name)
    customers(here / "a b.db")  # what a name with an escape must not be taken for
    (here / "sub").mkdir()
    for written in (name, f"{here / name}#customers", f"{name}#select * from customers"):
        [found] = sources_named([written])
        assert found.name == Path(name).stem
        assert columns_of(found).num_rows == 300
    with closing(sqlite3.connect("a b.db")) as database, database:
        database.execute("delete from customers")
    assert main(["init", name, "--out", "sub/mine.toml"]) == 0
    assert main(["inspect", "sub/mine.toml"]) == 0


def test_a_query_may_be_longer_than_a_name_and_begin_with_a_comment(here):
    customers(here / "a.db")
    numbers = ", ".join(map(str, range(1000, 3000)))
    for query in (
        f"select * from customers where age not in ({numbers})",
        "-- of all\nselect * from customers",
        "/* of all */ with t as (select '#' as m, * from customers) select * from t;",
        "select*from customers",
        "values(1)",
    ):
        [found] = sources_named([f"a.db#{query}"])
        assert found.query == query
        assert columns_of(found).num_rows > 0


def test_how_a_query_begins_is_looked_at_once(here):
    customers(here / "a.db")
    for begins in ("(" * 40, "/**/" * 40, " " * 4000, "-- \n" * 40, "/* " * 40):
        assert "has no table" in refusal(f"a.db#{begins}x")


@pytest.mark.parametrize(
    "named",
    [
        "postgresql://reader:secret@host#people",
        "postgresql://reader:secret?@host/loans#people",
        "postgresql://reader:secret#1@host/loans#people",
        "postgresql://reader@host/loans?password=secret#people",
        "https://reader:secret@host/people.csv",
    ],
)
def test_no_part_of_a_url_that_may_be_a_password_is_told(named):
    assert "secret" not in refusal(named)


def test_names_are_quoted_so_that_no_word_of_the_language_is_read_for_one(here):
    words = ("nothing", "returning", "order", "%s", "a.b", 'a"b', "a'b", "Größe", "")
    with closing(sqlite3.connect("words.db")) as database, database:
        for word in words:
            quoted = word.replace('"', '""')
            database.execute(f'create table "{quoted}" as select 1 as id')
    for word in filter(None, words):
        [found] = sources_named([f"words.db#{word}"])
        assert columns_of(found).num_rows == 1


def test_duckdb_names_are_quoted_where_they_need_it(here):
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    with duckdb.connect("shop.duckdb") as database:
        database.execute('create schema "Big"')
        database.execute('create table "Big"."order" as select range as id from range(9)')
        database.execute("create view plain as select 1 as id")
        database.execute("create schema shop")  # as the database itself
        database.execute("create schema public")
        for name in ("system", "Temp"):  # as other databases that DuckDB has open
            database.execute(f'create schema shop."{name}"')
            database.execute(f'create table shop."{name}".c as select 1 as id')
        for name in ("shop.shop.a", "public.b", '"qualify"', '"semi"', '"%s"'):
            database.execute(f"create table {name} as select 1 as id")
    found = sources_named(["shop.duckdb#Big.order", "duckdb:///shop.duckdb#plain"])
    queries = ['select * from "Big"."order"', 'select * from "plain"']
    assert [one.query for one in found] == queries
    for name in ("shop.a", "public.b", "system.c", "Temp.c", "qualify", "semi", "%s"):
        [found] = sources_named([f"shop.duckdb#{name}"])
        assert columns_of(found).num_rows == 1


def test_no_table_of_duckdb_hides_another_whose_name_has_a_point(here):
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    with duckdb.connect("shop.duckdb") as database:
        database.execute("create schema x")
        for many, name in enumerate(('"x.y"', "x.y", '"a.b"'), 1):
            database.execute(f"create table {name} as select range as id from range({many})")
    for many, name in enumerate(('"x.y"', '"x"."y"', "a.b"), 1):
        [found] = sources_named([f"shop.duckdb#{name}"])
        assert columns_of(found).num_rows == many
    told = refusal("shop.duckdb#x.y")
    assert "has no table 'x.y'; use" in told
    assert """'"x.y"', '"x"."y"'""" in told


def test_a_whole_url_may_be_in_an_environment_variable(here, monkeypatch, capfd):
    customers(here / "bank.db")
    monkeypatch.setenv("LOANS_URL", f"sqlite:///{here / 'bank.db'}")
    for named in ("$LOANS_URL", "${LOANS_URL}#customers", "$LOANS_URL#select * from customers"):
        [found] = sources_named([named])
        assert (found.name, found.path) == ("LOANS_URL", None)
        assert columns_of(found).num_rows == 300
    assert main(["init", "$LOANS_URL#customers"]) == 0
    [client] = tomllib.loads(Path("mine.toml").read_text())["client"]
    assert client["url"] == "$LOANS_URL"
    assert main(["inspect", "mine.toml"]) == 0
    said(capfd)
    monkeypatch.setenv("LOANS_URL", "postgresql://reader:p@secret/1@host/loans")
    assert "secret" not in refusal("$LOANS_URL#customers")
    monkeypatch.setenv("LOANS_URL", "reader:secret")
    assert "$LOANS_URL: url is '$LOANS_URL', which is not" in refusal("$LOANS_URL#customers")
    monkeypatch.delenv("LOANS_URL")
    assert "names the environment variable LOANS_URL" in refusal("$LOANS_URL#customers")
    Path("$LOANS_URL").write_text("a,b\n1,2\n")
    [found] = sources_named(["$LOANS_URL"])
    assert found.path == str(here / "$LOANS_URL")
