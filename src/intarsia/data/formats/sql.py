"""Read a query's rows as columns, from SQLite, DuckDB or PostgreSQL; a query changes nothing.

One select is run, and nothing else, on a connection that can only read. SQLite opens its file
read-only and asks for each step of a query whether it may: it may read and call functions. DuckDB
opens its file read-only, and the query may touch no other file. PostgreSQL is read over verified
TLS: unless the url says otherwise, the server's certificate and name are verified (sslmode
verify-full). The query is opened as a cursor, which the server grants to a single select only, and
in a read-only transaction, so that a function that it calls cannot write either. Other databases
are refused: nothing here could hold their queries to reading.

A password comes from an environment variable or a password file, never from the experiment file.
Who wrote that file also wrote where the password goes. So only variables whose names are those of
databases' settings go to a server, and no key of another service.
"""

from __future__ import annotations

import math
import os
import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

import pyarrow as pa
from sqlalchemy import create_engine
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from intarsia.core.settings import absolute_path
from intarsia.core.side_by_side import interruptible
from intarsia.data.column import as_text, column_of
from intarsia.data.formats.pieces import gathered
from intarsia.data.source import Source
from intarsia.errors import TableError, first_line, listed, shortened

# what SQLite or DuckDB says of a file -> what to do
_NO_FILE = {
    "locked": "another program writes to it: try again when that is done, or read a copy",
    "set lock on file": "another program has it open to write: close it there, or read a copy",
    "readonly database": "a program was stopped while it wrote to it, or has it open: open it once "
    "with one that may write, which takes back what was half written, or let this user write into "
    "its folder",
    "malformed": "the file is damaged: put back a copy",
    "not a database": "the file is another one, or damaged: correct url, or put back a copy",
    "not a valid DuckDB": "the file is another one, or damaged: correct url, or put back a copy",
    "external extensions": "the file is another database's, such as one of SQLite's, or the query "
    "calls a function of an extension, which is not loaded: correct url or query",
    "enough bytes": "the file was cut: put back a copy",
    "unable to open": "let this user read the file, and write into its folder where a file that "
    "ends in -wal lies beside it",
}

_Row = tuple[Any, ...]
_BATCH = 2**18  # values that are read at once
_TO_CANCEL = 5.0  # seconds that a server has to hear that a query is to end

_FILES = ("passfile", "sslcert", "sslcrl", "sslkey", "sslrootcert")  # parameters that name a file
_SECRET = re.compile(r"pass(?!file)|pwd|secret|token|credential", re.IGNORECASE)  # in their names

# what a step of SQLite's may be; what writes, or opens another file, is none of these
_READS = (
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
)

# of the connection, unless the url sets them; a lost network is noticed within a minute
_DEFAULTS = {
    "sslmode": "verify-full",
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "application_name": "intarsia",
}

# what libpq or the server says when there is no connection -> what to do
_NO_CONNECTION = {
    "no password supplied": "no password was found: name an environment variable in url "
    '("postgresql://reader:$BANK_PASSWORD@..."), or a password file that only you can read '
    "(?passfile=...)",
    "password authentication failed": "the user name or password is wrong: correct the environment "
    "variable or the password file",
    "translate host name": "this host is unknown: correct the host in url",
    "resolve host": "this host is unknown: correct the host in url",
    "server does not support SSL": "the server offers no TLS, and none but verified TLS is the "
    'default: ask for TLS to be switched on there, or add "?sslmode=disable" to url if nobody can '
    "listen on the way",
    "root certificate file": "the certificate of the authority that vouches for the server is "
    'missing: add "?sslrootcert=FILE" to url, or "?sslrootcert=system" for those that this machine '
    "trusts",
    "certificate verify failed": "no authority that sslrootcert names vouches for the server: "
    "correct sslrootcert, and do not connect if it is correct",
    "does not match host name": "the server has a certificate for another name: write in url the "
    "name that is in its certificate",
    "no pg_hba.conf entry": "the server lets this user in neither from here nor this way: ask its "
    "administrator",
    "does not exist": "correct the names of database and user in url",
    "on socket": "no server listens at this socket: name its host in url, or start it",
    "Connection refused": "no server listens there: start it, or correct host and port in url",
    "the database system is": "it starts or stops just now: try again in a minute",
    "too many": "all connections that it grants are in use: try again, or have more granted",
    "not permitted to log in": "this user may not log in: ask its administrator",
    "timeout expired": "no answer within connect_timeout: check host, port and the network",
}

_SELECT_ONLY = "only one select is run, which may only read: write a select that changes nothing"
# SQLSTATE, or the class that its first two characters are -> what to do
_NO_ROWS = {
    **dict.fromkeys(("25", "42601", "42P11", "0A000"), _SELECT_ONLY),
    "42P01": "there is no such table for this user: correct its name, with its schema if needed",
    "42703": "there is no such column: correct its name",
    "42501": "the user may not read this: grant it select",
    "55P03": "something else changes the table and locks it: try again when that is done",
    "57014": "the server took too long: simplify the query, or raise statement_timeout",
    "08": "the connection was lost before all rows had come: try again",
    "57P": "the connection was lost before all rows had come: try again",
    "22": "a value cannot be converted: correct the query",
}


def _with_files(url: str, placed: Callable[[str], str]) -> str:
    """Return a url with other names of the files that its parameters name."""
    start, mark, rest = url.partition("?")
    if not mark:
        return url
    given = parse_qsl(rest, keep_blank_values=True)
    for at, (key, value) in enumerate(given):
        if key in _FILES and value not in ("", "system") and not value.startswith("$"):
            given[at] = key, placed(value)
    return f"{start}?{urlencode(given, safe='/$:{}', quote_via=quote)}"


def _check_no_password(written: str, url: URL, source: Source) -> None:
    """Raise if a url holds a password as it was written, and not as a variable."""
    login = written.partition("://")[2].rpartition("@")[0]
    given = parse_qsl(written.partition("?")[2], keep_blank_values=True)
    secrets = [login.partition(":")[2], *(value for key, value in given if _SECRET.search(key))]
    if any(secret and not _VARIABLE.fullmatch(secret) for secret in secrets):
        kind, user = url.get_backend_name(), url.username or "reader"
        file = ", or a password file (?passfile=...)" if kind == "postgresql" else ""
        raise source.error(
            "url holds a password, which would stand in files and be passed on",
            f'name an environment variable ("{kind}://{user}:$BANK_PASSWORD@..."){file}',
            f"name an environment variable, in single quotes so that the shell leaves it "
            f"('{kind}://{user}:$BANK_PASSWORD@...'){file}",
        )


def _from_postgresql(
    url: URL, query: str, source: Source, folder: Path | None, rows: bool
) -> pa.Table:
    if url.drivername not in ("postgresql", "postgresql+psycopg"):
        raise source.error(
            f"url names the driver {url.drivername!r}, whose TLS is not checked here",
            'write "postgresql://..."',
        )
    url = url.set(drivername="postgresql+psycopg")
    missing = {key: value for key, value in _DEFAULTS.items() if key not in url.query}
    try:
        # a connection that was lost takes no rollback: the library would log a traceback
        engine = create_engine(url.update_query_dict(missing), pool_reset_on_return=None)
    except ImportError as error:
        raise source.error(
            "url names a PostgreSQL server but the package psycopg is not installed",
            'run pip install "intarsia[postgresql]"',
        ) from error
    try:
        with closing(engine.raw_connection()) as pooled:
            connection: Any = pooled.driver_connection
            connection.read_only = True

            @contextmanager
            def asked() -> Iterator[Any]:
                with connection.cursor("rows") as cursor:  # by its name, a cursor at the server
                    cursor.execute(query)
                    if not cursor.description:
                        raise source.error(
                            f"the query {shortened(source.query)} gives no column",
                            "name those to read",
                        )
                    yield cursor

            def found() -> pa.Table:
                try:
                    return _table(asked, folder, rows)
                except engine.dialect.loaded_dbapi.DataError as error:
                    if error.sqlstate is not None:  # the server's, and not of a value that it sent
                        raise
                    _load_all_days(connection)
                    return _table(asked, folder, rows)

            return interruptible(found, partial(connection.cancel_safe, timeout=_TO_CANCEL))
    except (SQLAlchemyError, engine.dialect.loaded_dbapi.Error) as error:
        raise _sentence(getattr(error, "orig", None) or error, source) from None
    finally:
        engine.dispose()


def _load_all_days(connection: Any) -> None:
    """Let a connection give a day or time that Python has not, such as infinity, as a text.

    The loaders take four times as long as the usual ones.
    """
    from psycopg import DataError
    from psycopg.types import datetime

    def with_texts(usual: type[Any]) -> type[Any]:
        class Loader(usual):  # type: ignore[misc]
            def load(self, data: Any) -> Any:
                try:
                    return super().load(data)
                except DataError:
                    return bytes(data).decode()

        return Loader

    for name, usual in {
        "date": datetime.DateLoader,
        "interval": datetime.IntervalLoader,
        "time": datetime.TimeLoader,
        "timestamp": datetime.TimestampLoader,
        "timestamptz": datetime.TimestamptzLoader,
        "timetz": datetime.TimetzLoader,
    }.items():
        connection.adapters.register_loader(name, with_texts(usual))


def _table(
    asked: Callable[[], AbstractContextManager[Any]], folder: Path | None, rows: bool = True
) -> pa.Table:
    """Return the rows of a query, which `asked` begins, of the types that all of them have.

    Where rows further down are of another type than those before them, the query is asked again.
    Without `rows` the names of its columns alone are.
    """
    schema: pa.Schema | None = None
    while True:
        with asked() as cursor:
            names = [one[0] for one in cursor.description]
            if not rows:
                return _without_rows(names)
            some = partial(cursor.fetchmany, max(1, _BATCH // len(names)))
            first = some()
            own = _batch(names, first).schema if schema is None else schema
            try:
                every = chain([first], iter(some, []))
                return gathered(own, (_batch(names, one, own) for one in every), folder)
            except _OtherTypesError as others:
                schema = others.schema


def _without_rows(names: Sequence[str]) -> pa.Table:
    return pa.Table.from_arrays([pa.nulls(0)] * len(names), names=names)


class _OtherTypesError(Exception):
    """Rows are of other types than those before them; `schema` is that of all so far."""

    def __init__(self, schema: pa.Schema) -> None:
        super().__init__()
        self.schema = schema


def _batch(
    names: Sequence[str], rows: Sequence[_Row], schema: pa.Schema | None = None
) -> pa.RecordBatch:
    """Return some rows, of the types of a schema; None: of their own."""
    columns = list(zip(*rows, strict=True)) or [()] * len(names)
    kinds = [None] * len(names) if schema is None else schema.types
    arrays = [_array(values, kind) for values, kind in zip(columns, kinds, strict=True)]
    own = [one.type for one in arrays]
    if schema is not None and own != kinds:
        both = map(_of_both, kinds, own)
        raise _OtherTypesError(pa.schema(list(zip(names, both, strict=True))))
    return pa.RecordBatch.from_arrays(arrays, names=names)


def _array(values: Sequence[Any], kind: pa.DataType | None) -> pa.Array:
    """Return values as they are of a type if they can be, else of their own."""
    if kind is not None and (pa.types.is_string(kind) or pa.types.is_binary(kind)):
        return as_text(values, kind)
    found = column_of(values).combine_chunks()
    if kind is not None and _wider(kind, found.type) == kind:
        with suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return found.cast(kind)
    return found


def _of_both(kind: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return the type of values of a type and of others, which are not of it; text at the last."""
    if kind == other:
        return kind
    wider = _wider(kind, other)
    return pa.string() if wider in (None, kind) else wider


def _wider(kind: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the type that Arrow has for values of two types; None: there is none."""
    schemas = [pa.schema([("values", one)]) for one in (kind, other)]
    with suppress(pa.ArrowException):
        return pa.unify_schemas(schemas, promote_options="permissive").types[0]
    return None


def _sentence(error: BaseException, source: Source) -> TableError:
    """Return what went wrong and what to do, with the server's own words."""
    state, words = getattr(error, "sqlstate", None), first_line(error)
    if state is None:
        for part, advice in _NO_CONNECTION.items():
            if part in str(error):
                return source.error(words, advice)
    known = (_NO_ROWS.get((state or "08")[:length]) for length in (5, 3, 2))
    advice = next(filter(None, known), "correct the query")
    return source.error(f"the query {shortened(source.query)} failed ({words})", advice)


_VARIABLE = re.compile(r"\$(?:\{([^}]*)\}|(\w+))", re.ASCII)
# names of variables that a server is sent: of libpq, or with a word of a database's settings
_OF_DATABASES = re.compile(
    r"(PG|INTARSIA_)\w+|(\w+_)?(PASSWORD|PASSWD|PASS|PWD|PW|USER|USERNAME|LOGIN|HOST|PORT|DB|DBNAME"
    r"|DATABASE)(_\w+)?",
    re.ASCII | re.IGNORECASE,
)


def absolute_url(source: Source, folder: Path) -> str | None:
    """Return the url of a source with the file of its database made absolute from a folder.

    `$NAME` stays as it is, so that no password comes to stand in a file. Where a variable is not
    set, or holds the whole url, the url is returned as it is.
    """
    written = source.url or ""
    if "$" in written and (_unset(written) or "://" not in written):
        return source.url
    url = _database_url(source)
    if url.get_backend_name() == "postgresql":
        return _with_files(written, lambda file: absolute_path(file, folder))
    place = url.database
    if not _in_a_file(url) or place in (None, "", ":memory:"):
        return source.url
    if "$" not in written:
        place = str((folder / str(place)).resolve())
        return url.set(database=place).render_as_string(hide_password=False)
    if Path(str(place)).is_absolute():
        return source.url
    driver, _, rest = written.partition("://")
    login, _, file = rest.partition("/")
    return f"{driver}://{login}/{folder.resolve()}/{file}"


def _in_a_file(url: URL) -> bool:
    return url.get_backend_name() in ("sqlite", "duckdb")


def _unset(url: str) -> list[str]:
    """Return the names of the variables in a url that the environment lacks."""
    return [name for name in _named(url) if name not in os.environ]


def _named(url: str) -> list[str]:
    return [one or other for one, other in _VARIABLE.findall(url)]


def _database_url(source: Source) -> URL:
    """Return the url of a source, with `$NAME` taken from the environment."""
    unset = _unset(source.url or "")
    if unset:
        raise source.error(
            f"url names the environment variable {unset[0]}, which is not set",
            "set it, or write %24 for a dollar sign in a password",
        )
    written = source.url or ""
    try:
        url = make_url(_expanded(written))
    except (ArgumentError, ValueError):
        shown = "…@" * ("@" in written) + written.split("@")[-1].split("?")[0]
        raise source.error(
            f"url is {shown!r}, which is not a database url",
            'write e.g. "sqlite:///bank.sqlite", "duckdb:///bank.duckdb" or '
            '"postgresql://reader@host/bank"',
        ) from None  # the library's words may repeat a password
    if url.drivername == "postgres":  # as others call it, too
        url = url.set(drivername="postgresql")
    _check_no_password(written, url, source)
    _, _, behind = os.path.expandvars(written).partition("://")[2].partition(":")[2].partition("@")
    whole = "://" not in written and "@" in behind and not _in_a_file(url)
    if whole or "@" in (url.host or ""):
        raise source.error(  # else a part of the password would be taken for the host, and told
            "url has an @ in its password",
            "write %40 for each @, and %25 for %, %2F for /, %3F for ? and %23 for #",
        )
    other = [name for name in _named(written) if not _OF_DATABASES.fullmatch(name)]
    if other and "://" in written and not _in_a_file(url):
        raise source.error(
            f"url sends the environment variable {other[0]} to a server, and its name is none of a "
            "database's settings",
            "name it such as BANK_PASSWORD or BANK_USER if it is one",
        )
    return url


def _expanded(written: str) -> str:
    """Return a url with the values of its variables; a login or parameter has any characters."""
    scheme, colon, rest = written.partition("://")
    if not colon:
        return os.path.expandvars(written)
    rest, mark, parameters = rest.partition("?")
    login, at, place = rest.rpartition("@")
    # a variable may hold both parts of a login
    user, divider, password = login.partition(":")
    login = _with_values(user, safe="" if divider else ":") + divider + _with_values(password)
    return f"{scheme}://{login}{at}{os.path.expandvars(place)}{mark}{_with_values(parameters)}"


def _with_values(written: str, safe: str = "") -> str:
    """Return a part of a url with the values of its variables, none of which ends the part."""
    return _VARIABLE.sub(lambda one: quote(os.environ[one[1] or one[2]], safe=safe), written)


def query_columns(source: Source, folder: Path | None = None) -> pa.Table:
    """Return the columns that the query of a source selects, on the disk of a folder if given."""
    found = _rows(source, source.query or "", folder)
    if not found.num_rows:
        raise source.error(
            f"the query {shortened(source.query)} returned no rows",
            "a client needs at least one row: check its conditions",
        )
    return found


def query_names(source: Source) -> list[str]:
    """Return the names of the columns that the query of a source selects."""
    found = _rows(source, source.query or "", None, rows=False)
    return list(found.column_names)


def table_queries(source: Source) -> dict[str, str]:
    """Return the query of all rows of each table and view of a source's database, by its name.

    The name has the schema before it, unless that is the usual one. Of several that would be the
    same, such as of `"x"."y"` and `"x.y"`, each is quoted.
    """
    kind = _database_url(source).get_backend_name()
    found = _rows(source, _TABLES.get(kind, ""), None).to_pylist()
    paths = [[part for part in (one["place"], one["name"]) if part] for one in found]
    plain = Counter(map(".".join, paths))
    queries = {}
    for one, path in zip(found, paths, strict=True):
        name = ".".join(path)
        whole = [one["whole"]] * bool(one["whole"])
        queries[name if plain[name] == 1 else _quoted(path)] = (
            f"select * from {_quoted([*whole, *path])}"
        )
    return queries


def _quoted(path: Sequence[str]) -> str:
    return ".".join('"' + part.replace('"', '""') + '"' for part in path)


# the tables that a query may name: the schema of each ("": the usual one), and the database's name
# where a schema of the same name could be meant
_TABLES = {
    "sqlite": "select '' as whole, '' as place, name from sqlite_master "
    "where type in ('table', 'view') and substr(name, 1, 7) <> 'sqlite_' order by name",
    "duckdb": "select case when lower(table_schema) in (lower(table_catalog), 'system', 'temp') "
    "then table_catalog else '' end as whole, "
    "case when table_schema = 'main' then '' else table_schema end as place, "
    "table_name as name from information_schema.tables "
    "where table_schema <> 'information_schema' order by place, name",
    # materialised views, too, which the standard's list of tables lacks
    "postgresql": "select '' as whole, case when pg_table_is_visible(pg_class.oid) then '' "
    "else nspname::text end as place, relname::text as name "
    "from pg_class join pg_namespace on pg_namespace.oid = relnamespace "
    "where relkind in ('r', 'p', 'v', 'm', 'f') and nspname <> 'information_schema' "
    "and nspname !~ '^pg_' and has_schema_privilege(pg_namespace.oid, 'usage') "
    "and has_any_column_privilege(pg_class.oid, 'select') order by place, name",
}


def _rows(source: Source, query: str, folder: Path | None, *, rows: bool = True) -> pa.Table:
    """Return the rows of a query to a source's database; without `rows` its columns alone."""
    url = _database_url(source)
    place = url.database
    if _in_a_file(url) and not (place and Path(place).is_file()):
        raise source.error(
            f"there is no database file {place or ''!r}",
            "correct url (its file is relative to the experiment file)",
            "correct its name",
        )
    known = {"sqlite": _from_sqlite, "duckdb": _from_duckdb, "postgresql": _from_postgresql}
    run = known.get(url.get_backend_name())
    if run is None:
        raise source.error(
            f"url names a database of the kind {url.get_backend_name()!r}, of which no query can "
            f"be held to reading ({listed(known)} can)",
            "write the table to a Parquet or CSV file, and set path in place of url and query",
            "write the table to a Parquet or CSV file, and name that",
        )
    return run(url, query, source, folder, rows)


def relative_url(url: str, folder: Path) -> str:
    """Return a url with the files in it as they are named from a folder."""

    def placed(file: str) -> str:
        return Path(os.path.relpath(file, folder)).as_posix()

    if "://" in url and not _in_a_file(make_url(url)):
        return _with_files(url, placed)
    if "$" in url:
        return url
    found = make_url(url)
    place = placed(found.database or "")
    return found.set(database=place).render_as_string(hide_password=False)


def values_size(source: Source) -> float:
    """Return at most how many bytes the values of a query take; infinite: who knows."""
    url = _database_url(source)
    if not _in_a_file(url):
        return math.inf
    packed = _UNPACKED if url.get_backend_name() == "duckdb" else 1
    place = Path(str(url.database))
    return place.stat().st_size * packed if place.is_file() else 0


_UNPACKED = 4  # times the size of a file of DuckDB, which packs columns


def _from_duckdb(url: URL, query: str, source: Source, folder: Path | None, rows: bool) -> pa.Table:
    try:
        import duckdb
    except ImportError as error:
        raise source.error(
            f"url is {source.url!r} but the duckdb package is not installed",
            'run pip install "intarsia[duckdb]"',
        ) from error
    alone: dict[str, Any] = {"enable_external_access": False, "lock_configuration": True}
    try:
        with duckdb.connect(str(url.database), read_only=True, config=alone) as connection:
            statements = connection.extract_statements(query)
            if [one.type for one in statements] != [duckdb.StatementType.SELECT]:
                raise _no_select(source)
            asked = connection.sql(query)
            if not rows:
                return _without_rows(asked.columns)
            # as it is called now, and in older versions
            reader = getattr(asked, "to_arrow_reader", None) or asked.fetch_arrow_reader

            def found() -> pa.Table:
                batches = reader(max(1, _BATCH // len(asked.columns)))
                return gathered(batches.schema, batches, folder)

            return interruptible(found, connection.interrupt)
    except (duckdb.Error, OSError) as error:  # Arrow passes errors among the rows on as the latter
        raise _refused(error, source) from error


def _from_sqlite(url: URL, query: str, source: Source, folder: Path | None, rows: bool) -> pa.Table:
    if url.drivername not in ("sqlite", "sqlite+pysqlite"):
        raise source.error(
            f"url names the driver {url.drivername!r}, which is not Python's own",
            'write "sqlite:///..."',
        )
    file = Path(str(url.database)).resolve()
    before = file.stat() if _in_no_hands(file) else None
    how = "mode=ro" if before is None else "immutable=1"
    try:
        opened = sqlite3.connect(f"{file.as_uri()}?{how}", uri=True, check_same_thread=False)
        with closing(opened) as connection:
            connection.set_authorizer(_allow_reading)

            def asked() -> AbstractContextManager[Any]:
                cursor = connection.execute(query)
                if cursor.description is None:
                    raise _no_select(source)
                return closing(cursor)

            def read() -> pa.Table:
                try:
                    return _table(asked, folder, rows)
                except sqlite3.OperationalError as error:
                    if "Could not decode" not in str(error):
                        raise
                    connection.text_factory = _text_or_bytes  # slower than the usual one
                    return _table(asked, folder, rows)

            found = interruptible(read, connection.interrupt)
    except (sqlite3.Error, sqlite3.Warning) as error:
        refused = "not authorized" in str(error) or "one statement" in str(error)
        raise (_no_select(source) if refused else _refused(error, source)) from error
    if before is not None and file.stat().st_mtime_ns != before.st_mtime_ns:
        raise source.error("the file was changed while it was read", "try again")
    return found


def _in_no_hands(file: Path) -> bool:
    """Return whether SQLite could not read a file, for want of one that it would write beside it.

    So it is with a write-ahead log in a folder that this user may only read. Where no program has
    the file open, or left a log, the file is whole without one.
    """
    beside = (file.with_name(f"{file.name}-{end}") for end in ("wal", "journal"))
    if os.access(file.parent, os.W_OK) or any(one.exists() for one in beside):
        return False
    with suppress(OSError), file.open("rb") as opened:
        return opened.read(20)[18:] == b"\2\2"  # read and written with such a log
    return False


def _text_or_bytes(written: bytes) -> str | bytes:
    """Return what SQLite takes for a text, as bytes where it is not UTF-8."""
    try:
        return written.decode()
    except UnicodeDecodeError:
        return written


def _allow_reading(action: int, *_: str | None) -> int:
    return sqlite3.SQLITE_OK if action in _READS else sqlite3.SQLITE_DENY


def _no_select(source: Source) -> TableError:
    return source.error(
        f"the query {shortened(source.query)} is not one select that only reads", _SELECT_ONLY
    )


def _refused(error: BaseException, source: Source) -> TableError:
    known = (advice for words, advice in _NO_FILE.items() if words in str(error))
    return source.error(
        f"the database refused the query {shortened(source.query)} ({first_line(error)})",
        next(known, "correct url or query"),
    )
