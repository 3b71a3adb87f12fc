"""The query of a table dropped it on SQLite, and wrote a file on DuckDB.

A query may come with an experiment that somebody else wrote. PostgreSQL: data/test_postgresql.py.
"""

from __future__ import annotations

import contextlib
import sqlite3

import pytest

from intarsia.data.reader import located, read
from intarsia.data.source import Source
from intarsia.errors import TableError

duckdb = pytest.importorskip("duckdb")

ATTACKS = {
    "drop": "drop table t",
    "drop after a select": "select * from t; drop table t",
    "select after a drop": "drop table t; select 1 as a",
    "hidden by a comment": "/* select */ delete from t -- select",
    "delete": "delete from t",
    "delete that returns": "delete from t returning a",
    "update that returns": "update t set a = 7 returning a",
    "insert of a select": "insert into t select 9",
    "expression that writes": "with gone as (delete from t returning a) select * from gone",
    "expression before a delete": "with x as (select 1) delete from t",
    "expression before an insert": "with x as (select 8 as a) insert into t select a from x",
    "new table": "create table u as select 1 as a",
    "temporary table": "create temporary table u as select 1 as a",
    "view": "create view u as select 1",
    "transaction": "begin; delete from t; commit",
    "attach": "attach '{file}' as other",
    "attach and write": "attach '{file}' as other; create table other.u as select 1 as a",
    "pragma": "pragma table_info(t)",
    "pragma that writes": "pragma user_version = 7",
    "vacuum": "vacuum into '{file}'",
    "copy": "copy t to '{file}'",
    "copy of a query": "copy (select 1) to '{file}' (format csv)",
    "export": "export database '{file}'",
    "settings": "set enable_external_access = true",
    "load": "load '{file}'",
    "install": "install httpfs",
    "explain": "explain analyze delete from t",
    "call": "call pragma_version()",
    "extension": "select load_extension('{file}')",
    "write function": "select writefile('{file}', 'x')",
    "file": "select size from read_text('{secret}')",
    "file by its name": "select count(*) as n from '{secret}'",
    "names of files": "select count(*) as n from glob('{folder}/*')",
    "nothing": "",
    "comment": "-- select 1",
}


@pytest.fixture(params=["sqlite", "duckdb"])
def bank(request, tmp_path):
    """Return the kind of a database and its file, which has one table of three rows."""
    path = tmp_path / "bank.db"
    connect = sqlite3.connect if request.param == "sqlite" else duckdb.connect
    with contextlib.closing(connect(str(path))) as database:
        database.execute("create table t (a integer)")
        database.execute("insert into t values (1), (2), (3)")
        database.commit()
    return request.param, path


def rows(kind, path, query):
    source = Source(name="bank", url=f"{kind}:///{path}", query=query)
    return read(source).values.tolist()


@pytest.mark.parametrize("name", ATTACKS)
def test_a_query_only_reads_and_only_its_own_database(bank, tmp_path, name):
    kind, path = bank
    before, names = path.read_bytes(), sorted(one.name for one in tmp_path.iterdir())
    (tmp_path / "secret.csv").write_text("mine\n1\n")
    places = {"file": tmp_path / "made", "secret": tmp_path / "secret.csv", "folder": tmp_path}
    query = ATTACKS[name].format(**places)
    with pytest.raises(TableError) as refused:
        rows(kind, path, query)
    assert len(str(refused.value).splitlines()) == 1
    assert "mine" not in str(refused.value)
    assert path.read_bytes() == before
    assert sorted(one.name for one in tmp_path.iterdir() if one.name != "secret.csv") == names


@pytest.mark.parametrize("query", [
    "select a from t", "SELECT a FROM t;", "select a from t -- all; of them",
    "values (1), (2), (3)", "with x as (select a from t) select a from x",
    "select 'drop table t; --' is not null as a from t",
    "select max(a) over (order by a) as a from t",
    "with recursive n(a) as (select 1 union all select a + 1 from n where a < 3) select a from n",
])  # fmt: skip
def test_selects_are_read(bank, query):
    kind, path = bank
    assert len(rows(kind, path, query)) == 3


def test_a_file_that_nobody_may_write_is_read(bank):
    kind, path = bank
    path.chmod(0o400)
    path.parent.chmod(0o500)
    try:
        assert rows(kind, path, "select a from t") == [[1], [2], [3]]
    finally:
        path.parent.chmod(0o700)


def test_a_name_that_says_more_of_an_sqlite_file_is_a_name(tmp_path):
    """In a url of SQLite `?mode=rwc` opens a file for writing; here it is part of a name."""
    path = tmp_path / "a?mode=rwc#%41"
    with contextlib.closing(sqlite3.connect(str(path))) as database:
        database.execute("create table t as select 1 as a")
        database.commit()
    from intarsia.data.formats import sql

    url = sql.make_url("sqlite:///").set(database=str(path))
    found = sql._from_sqlite(url, "select a from t", Source(name="bank"), None, True)
    assert found.to_pydict() == {"a": [1]}


@pytest.mark.parametrize(
    "url", ["mysql://me:$PASSWORD@host/bank", "oracle://h/x", "mssql+odbc://h/x"]
)
def test_databases_whose_queries_cannot_be_held_to_reading_are_refused(url, monkeypatch):
    monkeypatch.setenv("PASSWORD", "hidden")
    with pytest.raises(TableError, match=r"of the kind '\w+'.*Parquet or CSV") as refused:
        read(Source(name="bank", url=url, query="select 1"))
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize("url", [
    "postgresql://me:$API_TOKEN@127.0.0.1:1/x?sslmode=disable", "postgresql://$HOME@127.0.0.1:1/x",
    "postgresql://me@127.0.0.1:1/${AWS_SECRET_ACCESS_KEY}", "postgresql://me@$PASSWORDS_KEY:1/x",
])  # fmt: skip
def test_a_file_of_somebody_else_sends_no_variable_but_a_database_s(url, monkeypatch, tmp_path):
    for name in ("API_TOKEN", "AWS_SECRET_ACCESS_KEY", "PASSWORDS_KEY"):
        monkeypatch.setenv(name, "s3cret")
    with pytest.raises(TableError, match=r"sends the environment variable \w+ to a server") as no:
        read(Source(name="bank", url=url, query="select 1"))
    assert "s3cret" not in str(no.value)


@pytest.mark.parametrize("name", ["BANK_PASSWORD", "PGUSER", "USER", "db_password_2", "INTARSIA_X"])
def test_variables_of_a_database_s_settings_are_sent(name, monkeypatch):
    monkeypatch.setenv(name, "reader")
    with pytest.raises(TableError) as told:
        read(Source(name="bank", url=f"mysql://me:${name}@host/bank", query="select 1"))
    assert "of the kind 'mysql', of which no query can be held to reading" in str(told.value)


@pytest.mark.parametrize("url", [
    "postgresql://me:s3cret@host/bank", "mysql+pymysql://me:s3cret@host/bank",
    "mariadb://me:s3cret@host/bank", "oracle://me:s3cret@host/x", "sqlite://me:s3cret@/x.db",
    "mysql://host/bank?password=s3cret", "mysql://host/bank?passwd=s3cret",
    "mssql://host/bank?PWD=s3cret", "duckdb:///x.db?motherduck_token=s3cret",
    "postgresql://host/bank?sslpassword=s3cret", "mysql://me:s3cret$WORD@host/bank",
])  # fmt: skip
def test_a_password_is_never_written_out(url, monkeypatch, tmp_path):
    monkeypatch.setenv("WORD", "more")
    source = Source(name="bank", url=url, query="select 1")
    for use in (read, lambda one: located(one, tmp_path)):
        with pytest.raises(TableError, match=r"url holds a password.*environment variable") as no:
            use(source)
        assert "s3cret" not in str(no.value)


# a variable, what it holds, and a url with it
HALVES = {
    "url": ("BANK_DATABASE", "postgresql://me:x@s3cret@127.0.0.1:1/bank", "$BANK_DATABASE"),
    "login": ("BANK_LOGIN", "me:x@s3cret", "postgresql://$BANK_LOGIN@127.0.0.1:1/bank"),
    "host": ("BANK_HOST", "me:x@s3cret@127.0.0.1:1", "postgresql://$BANK_HOST/bank"),
    "parameter": ("BANK_PASSWORD", "x@s3cret", "postgresql://127.0.0.1:1/b?password=$BANK_PASSWORD"),
    "more": ("BANK_PASSWORD", "x&host=s3cret", "postgresql://127.0.0.1:1/b?password=$BANK_PASSWORD"),
}  # fmt: skip


@pytest.mark.parametrize("place", HALVES)
def test_no_part_of_a_password_is_taken_for_a_host(place, monkeypatch):
    """Behind an @ in a password the rest was looked up as a name, and stood in the error."""
    pytest.importorskip("psycopg")
    name, value, url = HALVES[place]
    monkeypatch.setenv(name, value)
    with pytest.raises(TableError, match=r"port 1 failed|%40 for each @") as told:
        read(Source(name="bank", url=url, query="select 1"))
    assert "s3cret" not in str(told.value)
