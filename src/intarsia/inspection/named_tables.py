"""Tables as they are named: files, or tables of databases; each is a client's source."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote, unquote

from intarsia.data.reader import ENDINGS, ending_of, located, table_queries
from intarsia.data.source import Source
from intarsia.errors import ExperimentError, TableError, listed, nearest

_MOST_NAMED = 5  # tables of a folder
_DATABASES = {".db": "sqlite", ".sqlite": "sqlite", ".sqlite3": "sqlite", ".duckdb": "duckdb"}
_WEB = ("http", "https", "ftp", "sftp", "s3", "gs", "file")
_QUERY = re.compile(  # how a query begins, behind comments, each of which is read in one way alone
    r"(?>\s|\(|--[^\n]*\n|/\*.*?\*/)*+(select|with|from|values)[\s*(\"'`\[/]",
    re.IGNORECASE | re.DOTALL,
)
_LOGIN = re.compile(r"[^:/#]*://[^\s/@]*@")  # of a url; a password may have the mark


@dataclass(frozen=True)
class _Named:
    """A table as it was named."""

    bare: str  # a client's name, if it is that of no other
    wider: str  # and else
    place: str  # what tells it from other tables
    source: Source  # without the client's name


def sources_named(tables: Sequence[str | Path]) -> list[Source]:
    """Return a source for each table, with its file's or database's name, or a longer one.

    Parameters
    ----------
    tables
        Files; or databases, as a url or a file, each with `#` and a table, or a query, behind it.
        A database that has a single table needs no more.

    Raises
    ------
    UserError
        If none is named, one is named twice, or a database cannot be read or has no such table.
    """
    if not tables:
        raise ExperimentError(
            "No table is named; name one file for each client, as in intarsia init bank.csv "
            "shop.csv, or see an example: intarsia init --example credit."
        )
    found = [_named(str(one)) for one in tables]
    places = [one.place for one in found]
    for one in found:
        if places.count(one.place) > 1:
            raise ExperimentError(
                f"{Path(one.place).name} is named {places.count(one.place)} times; name each "
                "client's table once."
            )
    bare = [one.bare for one in found]
    names = [one.bare if bare.count(one.bare) == 1 else one.wider for one in found]
    if len(set(names)) < len(names):
        names = [f"{one}-{number}" for number, one in enumerate(names, 1)]
    return [replace(one.source, name=name) for one, name in zip(found, names, strict=True)]


def database_named(written: str) -> Source | None:
    """Return the source of a table of a database, with the database's name; None: it is a file.

    Parameters
    ----------
    written
        As `sources_named` takes a table.

    Raises
    ------
    UserError
        If it is a web address, or the database cannot be read or has no such table.
    """
    found = _named_in_database(written)
    return None if found is None else replace(found.source, name=found.bare)


def file_named(written: str) -> Path | None:
    """Return the file of a table, or of the database that it is in; None: that is on a server."""
    database, _ = _parted(written)
    if "://" not in database and not _is_variable(database):
        return Path(database)
    scheme, _, rest = os.path.expandvars(database).partition("://")
    if scheme.partition("+")[0] not in _DATABASES.values():
        return None
    return Path(unquote(rest.partition("?")[0].removeprefix("/")))


def _named(written: str) -> _Named:
    if any("\udc80" <= letter <= "\udcff" for letter in written):
        raise ExperimentError(
            f"The name of the file {written!a} is not UTF-8, and an experiment file cannot have "
            "it; rename the file."
        )
    if (found := _named_in_database(written)) is not None:
        return found
    path = Path(written)
    if path.is_dir():
        raise _folder_named(path)
    place = path.resolve()
    bare = re.sub(r"(\.\w{1,7})?(\.gz)?$", "", place.name) or place.name
    source = Source(name=bare, path=str(place))
    return _Named(bare, f"{place.parent.name}-{bare}", str(place), source)


def _named_in_database(written: str) -> _Named | None:
    database, table = _parted(written)
    scheme, mark, rest = database.partition("://")
    kind, url = _kind(database), database
    if scheme.lower() in _WEB and mark:
        web = Source(name="web", path=f"{scheme}://{rest.rpartition('@')[2]}")  # without a login
        with _told_of(web):
            located(web, Path.cwd())  # it raises
    if not mark and kind is not None and (database == written or not _is_file(written)):
        url = f"{kind}:///{quote(database)}"
    elif not mark and (not _is_variable(database) or _is_file(written) or _is_file(database)):
        return None
    with _told_of(Source(name="database", url=url)):
        return _of_database(url, table, database)


@contextmanager
def _told_of(source: Source) -> Iterator[None]:
    """Let errors name a place alone: there is neither a client yet nor a file with settings."""
    try:
        yield
    except TableError as problem:
        advice = problem.without_settings
        raise problem.retold(where=source.place, advice=advice) from problem


def _is_variable(database: str) -> bool:
    """Return whether an environment variable is named, which holds a whole url."""
    return re.fullmatch(r"\$(\w+|\{\w+\})", database, re.ASCII) is not None


def _parted(written: str) -> tuple[str, str]:
    """Return the file or url, and what stands behind it; a file's name may have the mark, too."""
    login = _LOGIN.match(written)
    start = login.end() if login else 0
    marks = [at for at, letter in enumerate(written) if letter == "#" and at >= start]
    ends = [*marks, len(written)]
    files = (at for at in ends if _kind(written[:at]) and _is_file(written[:at]))
    end = next(files, ends[0])
    return written[:end], written[end + 1 :]


def _is_file(name: str) -> bool:
    return os.path.isfile(name)  # noqa: PTH113  # Path raises where a query is too long for a name


def _kind(file: str) -> str | None:
    """Return the kind of database that a file is by its ending; None: it is another file."""
    return _DATABASES.get(Path(file).suffix.lower())


def _of_database(url: str, table: str, database: str) -> _Named:
    """Return a table of a database, which was named as `database`, or what a query there gives."""
    # until the url is known to be one without a password, no part of it is a name
    source = located(Source(name="database", url=url, query=table), Path.cwd())
    bare = Path(unquote(str(source.url).partition("?")[0])).stem
    if _is_variable(url):
        bare = url.strip("${}")  # nothing of what is in it
    source = replace(source, name=bare)
    query, own = table, "query"
    if not _QUERY.match(table):
        own, query = _table_of(source, table, database)
    found = replace(source, query=query)
    return _Named(bare, f"{bare}-{own}", f"{found.url}#{query}", found)


def _table_of(source: Source, table: str, database: str) -> tuple[str, str]:
    """Return the name of a table of a database, and the query of its rows."""
    queries = table_queries(source)
    if not queries:
        raise source.error("the database has no table", "name another one")
    if not table and len(queries) == 1:
        return next(iter(queries.items()))
    if table in queries:
        return table, queries[table]
    if table:
        raise source.error(f"the database has no table {table!r}", nearest(table, queries))
    example = shlex.quote(f"{database}#{next(iter(queries))}")
    raise source.error(
        f"the database has {len(queries)} tables ({listed(queries)})",
        f"name one behind it, as in {example}, or a query in its place",
    )


def _folder_named(folder: Path) -> ExperimentError:
    """Return the error that a folder is named where a table is to be."""
    known = {*ENDINGS, *_DATABASES}
    tables = sorted(str(one) for one in folder.iterdir() if ending_of(one) in known)
    more = "" if len(tables) <= _MOST_NAMED else " ..."
    said = f"name the tables in it, one for each client: {shlex.join(tables[:_MOST_NAMED])}{more}"
    if not tables:
        said = (
            "it has no table (CSV, Parquet, libsvm, npz or a database); name one file for each "
            "client"
        )
    return ExperimentError(f"{folder} is a folder; {said}.")
