"""Read a query's rows as columns: any database through SQLAlchemy, DuckDB through its own package.

PostgreSQL has a file of its own: `postgresql`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
from sqlalchemy import create_engine, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from intarsia.data.column_types import column_of
from intarsia.data.postgresql import check_no_password, located_files, postgresql_columns
from intarsia.data.source import Source
from intarsia.errors import TableError, first_line, shortened

_VARIABLE = re.compile(r"\$(?:\{([^}]*)\}|(\w+))", re.ASCII)


def absolute_url(source: Source, folder: Path) -> str | None:
    """Return the url of a source with the file of its database made absolute from a folder.

    `$NAME` stays as it is, so that no password comes to stand in a file. Where a variable is not
    set, or holds the whole url, the url is returned as it is.

    Raises
    ------
    TableError
        If it is not a database url.
    """
    written = source.url or ""
    if "$" in written and (_unset(written) or "://" not in written):
        return source.url
    url = _database_url(source)
    if url.get_backend_name() == "postgresql":
        return located_files(written, folder)
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
    named = [one or other for one, other in _VARIABLE.findall(url)]
    return [name for name in named if name not in os.environ]


def _database_url(source: Source) -> URL:
    """Return the url of a source, with `$NAME` taken from the environment.

    Raises
    ------
    TableError
        If it is not a database url, or a variable is not set.
    """
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
    if url.get_backend_name() == "postgresql":
        check_no_password(written, url, source)
    return url


def _expanded(written: str) -> str:
    """Return a url with the values of its variables; a password may have any characters."""
    scheme, colon, rest = written.partition("://")
    login, at, place = rest.rpartition("@")
    user, mark, password = login.partition(":")
    if not (colon and at and mark):
        return os.path.expandvars(written)
    secret = _VARIABLE.sub(lambda one: quote(os.environ[one[1] or one[2]], safe=""), password)
    user, place = os.path.expandvars(user), os.path.expandvars(place)
    return f"{scheme}://{user}:{secret}@{place}"


def query_table(source: Source) -> pa.Table:
    """Return the rows that the query of a source selects.

    Raises
    ------
    TableError
        If there is no such database, it refuses the query, or there are no rows.
    """
    url = _database_url(source)
    place = url.database
    if _in_a_file(url) and not (place and Path(place).is_file()):
        raise source.error(
            f"there is no database file {place!r}",
            "correct url (its file is relative to the experiment file)",
        )
    own = {"duckdb": _from_duckdb, "postgresql": postgresql_columns}
    run = own.get(url.get_backend_name(), _from_sqlalchemy)
    names, columns = run(url, source.query or "", source)
    if not columns or not len(columns[0]):
        raise source.error(
            f"the query {shortened(source.query)} returned no rows",
            "a party needs at least one row: check its conditions",
        )
    return pa.Table.from_arrays(columns, names=names)


def _from_duckdb(url: URL, query: str, source: Source) -> tuple[list[str], list[Any]]:
    try:
        import duckdb
    except ImportError as error:
        raise source.error(
            f"url is {source.url!r} but the duckdb package is not installed",
            'run pip install "intarsia[duckdb]"',
        ) from error
    try:
        with duckdb.connect(str(url.database), read_only=True) as connection:
            relation: Any = connection.sql(query)
            found = None if relation is None else relation.to_arrow_table()
    except duckdb.Error as error:
        raise _refused(error, source) from error
    if found is None:
        raise _no_table(source)
    return list(found.column_names), list(found.columns)


def _from_sqlalchemy(url: URL, query: str, source: Source) -> tuple[list[str], list[Any]]:
    try:
        engine = create_engine(url)
    except (NoSuchModuleError, ImportError) as error:
        raise source.error(
            f"there is no driver for {url.drivername!r} ({first_line(error)})",
            "install its Python package",
        ) from error
    try:
        with engine.connect() as connection:
            result = connection.execute(text(query))
            if not result.returns_rows:
                raise _no_table(source)
            names, rows = list(result.keys()), result.fetchall()
    except SQLAlchemyError as error:
        raise _refused(getattr(error, "orig", None) or error, source) from error
    finally:
        engine.dispose()
    return names, [column_of([row[at] for row in rows]) for at in range(len(names))]


def _no_table(source: Source) -> TableError:
    return source.error(f"the query {shortened(source.query)} returns no table", "write a select")


def _refused(error: BaseException, source: Source) -> TableError:
    return source.error(
        f"the database refused the query {shortened(source.query)} ({first_line(error)})",
        "correct url or query",
    )
