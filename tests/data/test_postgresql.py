"""A client's table in PostgreSQL, read from a server that the tests start."""

from __future__ import annotations

import logging
import shutil
import socket
import threading
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from tests.data.test_reader import check_people

pytest.importorskip("psycopg", reason="psycopg is not installed")
pytest.importorskip("cryptography", reason="cryptography is not installed")

import intarsia
from intarsia.data.reader import columns_of, located, read, relative_url
from intarsia.data.source import Source
from intarsia.errors import TableError
from intarsia.inspection.named_tables import sources_named
from postgresql_server import PASSWORD, PROGRAMS, Server, running
from stopped_query import check_stopped

NAN = np.nan
MISSING = [name for name in PROGRAMS if shutil.which(name) is None]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    if MISSING:
        pytest.skip(f"the programs of a PostgreSQL server are not on the path: {MISSING}")
    with running() as started:
        yield started


@pytest.fixture(autouse=True)
def _password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BANK_PASSWORD", PASSWORD)
    for name in ("PGPASSWORD", "PGPASSFILE", "PGSSLMODE", "PGSSLROOTCERT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PGPASSFILE", "/nowhere")


def bank(url: str, query: str = "select id, age, sex, y from people", **settings: object) -> Source:
    return Source(name="bank", url=url, query=query, **{"least_rows": 1, **settings})


def refusal(source: Source) -> str:
    """Return the sentence of a refusal, and check that no traceback of it has the password."""
    with pytest.raises(TableError) as caught:
        read(source)
    whole = "".join(traceback.format_exception(caught.value))
    for secret in (PASSWORD, "wr0ng", "p%40ss"):
        assert secret not in whole
    return str(caught.value)


def test_a_postgresql_table_gives_the_same_block_as_a_file(server: Server) -> None:
    check_people(read(bank(server.url(), id="id", label="y")))


def test_the_connection_is_encrypted_and_its_transaction_read_only(server: Server) -> None:
    query = (
        "select ssl::integer as ssl, current_setting('transaction_read_only') as fixed from "
        "pg_stat_ssl where pid = pg_backend_pid()"
    )
    table = read(bank(server.url(), query, categorical=("fixed",)))
    assert_array_equal(table.values, [[1]])
    assert table.categorical["fixed"].levels == ("on",)


def test_types_of_postgresql_become_numbers_categories_or_missing(server: Server) -> None:
    query = """
        select 1.50::numeric as price, true as member, 'a: b %s'::text as word,
               7::bigint as count, 'b'::char(3) as letter, null::real as none
        union all
        select null, null, null, null, null, 2.5
        union all
        select 'NaN'::numeric, false, ' c ', 9, 'd', 'NaN'::real
    """
    table = read(bank(server.url(), query))
    numbers = list(table.numeric)
    assert numbers == ["price", "member", "count", "none"]
    assert_array_equal(table.values, [[1.5, 1, 7, NAN], [NAN, NAN, NAN, 2.5], [NAN, 0, 9, NAN]])
    assert table.categorical["word"].levels == ("a: b %s", "c")
    assert_array_equal(table.categorical["letter"].codes, [0, -1, 1])


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("select id, born from people", "dates or times"),
        ("select now() as seen", "dates or times"),
        ("select interval '1 day' as wait", "dates or times"),
        ("select 'infinity'::float8 as size", "is inf in row 1"),
        ("select 'infinity'::numeric as size", "is Infinity in row 1"),
        ("select array[1, 2] as pair", "one number or text"),
        ("select '\\x00ff'::bytea as raw", "bytes"),
        ("select 1 as a, 2 as a", "two columns have the name 'a'"),
    ],
)
def test_a_type_that_is_no_feature_is_refused(server: Server, query: str, told: str) -> None:
    assert told in refusal(bank(server.url(), query))


DAYS = "(values (1, '2020-01-02'::{0}), (2, '{1}'), (3, '1969-12-31')) as t(n, v)"


@pytest.mark.parametrize(
    ("kind", "day"),
    [
        ("date", "infinity"),
        ("timestamp", "-infinity"),
        ("timestamptz", "infinity"),
        ("date", "4000-01-01 BC"),
        ("timestamp", "12020-01-01"),
        ("interval", "150000000 years"),
        ("time", "24:00"),
    ],
)
def test_days_that_python_has_not_are_read_with_the_others(
    server: Server, kind: str, day: str
) -> None:
    good = "'01:00'" if kind in ("interval", "time") else "'1969-12-31'"
    days = DAYS.format(kind, day).replace("'2020-01-02'", good).replace("'1969-12-31'", good)
    found = columns_of(bank(server.url(), f"select * from {days}"))
    assert found.num_rows == 3
    assert day in found.column("v").to_pylist()[1] or "years" in day or "24:00" in day
    known = bank(server.url(), f"select n, v from {days} where n <> 2", exclude=("v",))
    assert_array_equal(read(replace(known, query=f"select * from {days}")).values, [[1], [2], [3]])


def test_an_infinite_day_of_a_server_is_refused_or_missing(server: Server) -> None:
    query = f"select * from {DAYS.format('date', 'infinity')}"
    source = bank(server.url(), query, dates="days", features=("v",))
    assert "column 'v' has 'infinity' in row 2, which is no day; replace it" in refusal(source)
    found = read(replace(source, missing=("infinity",)))
    assert_array_equal(found.values, [[18263], [NAN], [-1]])


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("select * from persons", "no such table"),
        ("select height from people", "no such column"),
        ("select * from secrets", "grant it select"),
        ("selec * from people", "write a select"),
        ("delete from people", "changes nothing"),
        ("delete from people returning id", "changes nothing"),
        ("select 1; delete from people", "changes nothing"),
        ("select 1; commit; delete from people", "changes nothing"),
        ("with gone as (delete from people returning id) select * from gone", "changes nothing"),
        ("select forget()", "changes nothing"),
        ("select * into others from people", "changes nothing"),
        ("copy people to stdout", "changes nothing"),
        ("set transaction read write", "changes nothing"),
        ("select set_config('transaction_read_only', 'off', false), forget()", "changes nothing"),
        ("select 1/0 as share", "converted"),
        ("select * from people where id > 9", "no rows"),
        ("select pg_terminate_backend(pg_backend_pid())", "connection was lost"),
        (
            "select i, case when i = 9999 then pg_terminate_backend(pg_backend_pid()) end "
            "from generate_series(1, 20000) as i",
            "connection was lost",
        ),
    ],
)
def test_a_query_that_fails_or_writes_is_refused(
    server: Server, query: str, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert told in refusal(bank(server.url(), query))
    assert server.people() == 4
    assert not caplog.records  # as a library's of a connection that was lost


def test_ctrl_c_ends_a_query_that_takes_long(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_stopped(bank(server.url(), "select pg_sleep(30)::text as x"), monkeypatch)


def test_a_table_that_is_locked_says_to_try_again(server: Server) -> None:
    with server.admin() as other:
        other.execute("lock table people in access exclusive mode")
        # as an administrator may have set it for the role
        assert "locks it: try again" in refusal(bank(server.url(options="-clock_timeout=1")))


def test_a_user_who_may_not_log_in_or_has_no_connection_left_is_told(server: Server) -> None:
    for change, told in (
        ("nologin", "may not log in"),
        ("login connection limit 0", "are in use: try again"),
    ):
        try:
            with server.admin() as administrator:
                administrator.execute(f"alter role reader {change}")
            assert told in refusal(bank(server.url()))
        finally:
            with server.admin() as administrator:
                administrator.execute("alter role reader login connection limit -1")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"login": "reader"}, "no password was found"),
        ({"login": "reader:$WRONG_PASSWORD"}, "user name or password is wrong"),
        ({"login": "nobody:$WRONG_PASSWORD"}, "user name or password is wrong"),
        ({"host": "nowhere.invalid"}, "host is unknown"),
        ({"host": "127.0.0.1"}, "certificate for another name"),
        ({"sslrootcert": "/nowhere/authority.pem"}, "vouches for the server is missing"),
        ({"sslrootcert": "{folder}/stranger.pem"}, "do not connect"),
        ({"login": "reader:$BANK_PASSWORD", "dbname": "shop"}, "correct the names of database"),
        ({"host": "closed"}, "no server listens"),
    ],
)
def test_a_connection_that_cannot_be_made_says_why(
    server: Server, change: dict[str, str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WRONG_PASSWORD", "wr0ng")
    (server.folder / "stranger.pem").chmod(0o644)
    change = {key: value.format(folder=server.folder) for key, value in change.items()}
    if change.get("host") == "closed":
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        return _check(server.url().replace(str(server.port), str(port)), told)
    return _check(server.url(**change), told)


def _check(url: str, told: str) -> None:
    sentence = refusal(bank(url))
    assert told in sentence
    assert sentence.startswith("Client 'bank' (")


def test_a_server_without_tls_is_refused_unless_the_url_allows_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as plain:
        plain.settimeout(10)
        thread = threading.Thread(target=_without_tls, args=(plain,))
        thread.start()
        url = f"postgresql://reader:$BANK_PASSWORD@localhost:{plain.getsockname()[1]}/bank"
        sentence = refusal(bank(url + "?sslrootcert=system"))
        thread.join()
    assert "offers no TLS" in sentence


def _without_tls(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(8)  # asks whether there is TLS
        connection.sendall(b"N")
        connection.recv(1)


def test_a_url_may_weaken_tls_in_so_many_words(server: Server) -> None:
    url = server.url(host="127.0.0.1", sslmode="require")
    assert_array_equal(read(bank(url, "select 1 as a")).values, [[1]])


def test_a_password_file_beside_the_experiment_is_read(server: Server, tmp_path: Path) -> None:
    secret = PASSWORD.replace("\\", "\\\\").replace(":", "\\:")
    (tmp_path / "pass").write_text(f"*:*:*:reader:{secret}\n")
    (tmp_path / "pass").chmod(0o600)
    (tmp_path / "ca.pem").write_bytes((server.folder / "authority.pem").read_bytes())
    url = server.url(login="reader", passfile="pass", sslrootcert="ca.pem")
    source = located(bank(url, id="id", label="y"), tmp_path)
    assert f"passfile={tmp_path}/pass" in (source.url or "")
    check_people(read(source))


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://reader:p%40ss@localhost/bank",
        "postgresql://reader@localhost/bank?password=p%40ss",
        "postgresql+psycopg2://reader:$BANK_PASSWORD@localhost/bank",
        "postgresql://reader:p%40ss@localhost:port/bank",
    ],
)
def test_a_password_that_is_written_out_or_another_driver_is_refused(url: str) -> None:
    assert "write" in refusal(bank(url)) or "name an environment variable" in refusal(bank(url))


def test_a_whole_url_may_come_from_the_environment(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "".join(f"%{one:02x}" for one in PASSWORD.encode())
    monkeypatch.setenv("BANK_URL", server.url(login=f"reader:{secret}"))
    source = bank("$BANK_URL", id="id", label="y")
    assert located(source, Path("/nowhere")) == source
    check_people(read(source))


def test_the_kind_of_a_server_may_be_called_postgres_and_a_socket_without_a_server_is_told(
    server: Server,
) -> None:
    url = server.url().replace("postgresql:", "postgres:")
    check_people(read(bank(url, id="id", label="y")))
    assert "no server listens at this socket" in refusal(bank("postgresql:///bank?host=/nowhere"))


def test_no_file_of_a_run_and_no_log_has_the_password(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = server.url(sslrootcert="ca.pem")
    (tmp_path / "ca.pem").write_bytes((server.folder / "authority.pem").read_bytes())
    (tmp_path / "shop.csv").write_text("id,spent\n1,2.5\n2,3.5\n3,1.0\n4,7.0\n")
    (tmp_path / "e.toml").write_text(
        f"""
        algorithm = {{ name = "hyfdca" }}
        experiment = {{ rounds = 2 }}
        [[client]]
        name = "bank"
        url = "{url}"
        query = "select i as id, i * 7 % 13 as age, i % 2 = 0 as y from generate_series(1, 40) as i"
        id = "id"
        label = "y"
        [[client]]
        name = "shop"
        path = "shop.csv"
        id = "id"
        """
    )
    caplog.set_level(logging.DEBUG)
    result = intarsia.run(tmp_path / "e.toml", out=tmp_path / "out")
    assert result.rounds == 2
    written = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert any(path.name == "result.json" for path in written)
    for form in (PASSWORD, quote(PASSWORD), quote(PASSWORD, safe="")):
        assert form not in caplog.text
        assert not [path for path in written if form.encode() in path.read_bytes()]


def test_init_finds_the_tables_of_a_server_and_sends_no_password_into_the_file(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TableError, match=r"the database has no table 'peple'; use 'people'"):
        sources_named([f"{server.url()}#peple"])
    [found] = sources_named([f"{server.url()}#people"])
    columns = {"id": "id", "label": "y", "features": ("age", "sex"), "least_rows": 1}
    check_people(read(replace(found, **columns)))
    assert found.query == 'select * from "people"'
    assert PASSWORD not in f"{found.url}"
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "ca.pem").write_bytes((server.folder / "authority.pem").read_bytes())
    [found] = sources_named([f"{server.url(sslrootcert='keys/ca.pem')}#people"])
    assert f"sslrootcert={tmp_path}/keys/ca.pem" in (found.url or "")
    url = relative_url(found, tmp_path / "files")
    assert url == server.url(sslrootcert="../keys/ca.pem")
    check_people(read(replace(located(replace(found, url=url), tmp_path / "files"), **columns)))


def test_a_run_is_trained_and_predicted_on_tables_of_a_server(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server.admin() as connection:
        connection.execute(
            "create schema loans; grant usage on schema loans to reader; create table loans.old as "
            "select n as customer, n * 37 % 101 as income, n * 37 % 101 > 50 as late "
            "from generate_series(1, 90) as n; grant select on loans.old to reader"
        )
    try:
        [found] = sources_named([f"{server.url()}#loans.old"])
        experiment = tmp_path / "mine.toml"
        experiment.write_text(
            'algorithm = { name = "hyfdca", loss = "logistic" }\n[[client]]\nname = "bank"\n'
            f'url = "{found.url}"\nquery = \'{found.query}\'\nid = "customer"\nlabel = "late"\n'
        )
        intarsia.run(experiment, out=tmp_path / "run", yardsticks=False)
        monkeypatch.setenv("LOANS_URL", server.url().replace("$BANK_PASSWORD", quote(PASSWORD, "")))
        for named in (f"{server.url()}#loans.old", "$LOANS_URL#loans.old"):
            found_again = intarsia.predict(tmp_path / "run", named)
            assert list(found_again.ids) == list(range(1, 91))
            assert found_again.score is not None
            assert found_again.score.accuracy > 0.9
            assert PASSWORD not in f"{found_again.notes}"
        told = "is the table of 'bank' in this run"
        assert told in intarsia.predict(tmp_path / "run", f"{server.url()}#loans.old").notes[0]
        new = f"{server.url()}#select income, customer + 100 as customer from loans.old limit 5"
        assert len(intarsia.predict(tmp_path / "run", new).scores) == 5
        with pytest.raises(TableError, match=r"^localhost:\d+/bank: the query .* no such column"):
            intarsia.predict(tmp_path / "run", f"{server.url()}#select incme from loans.old")
    finally:
        with server.admin() as connection:
            connection.execute("drop schema loans cascade")


_OTHERS = """
create schema main; create schema reader; create schema bank; create schema "Größe.x";
create table main.a as select 1 as id; create table reader.people as select 1 as id;
create table bank.c as select 1 as id; create table "Größe.x"."order" as select 1 as id;
create materialized view seen as select * from people; create table bare ();
grant usage on schema main, reader, bank, "Größe.x" to reader;
grant select on all tables in schema main, reader, bank, "Größe.x" to reader;
grant select on seen, bare to reader;
"""
_NOT_THESE = """
drop materialized view seen; drop table bare; drop schema main, reader, bank, "Größe.x" cascade;
"""


def test_init_finds_tables_of_all_schemas_and_materialised_views(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with server.admin() as connection:
        connection.execute(_OTHERS)
    try:
        rows = {
            **{"people": 1, "public.people": 4, "seen": 4},  # its own schema comes first
            **{"main.a": 1, "bank.c": 1, "Größe.x.order": 1},
        }
        for name, many in rows.items():
            [found] = sources_named([f"{server.url()}#{name}"])
            assert columns_of(found).num_rows == many
        [found] = sources_named([f"{server.url()}#bare"])
        with pytest.raises(TableError, match="gives no column"):
            columns_of(found)
        with pytest.raises(TableError, match="has no table 'secrets'"):  # this user may not read it
            sources_named([f"{server.url()}#secrets"])
    finally:
        with server.admin() as connection:
            connection.execute(_NOT_THESE)
