"""Read a new table as a finished run read its own: format, separator, ids, missing values."""

from __future__ import annotations

import codecs
import csv
import gzip
import math
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from intarsia.core.block import ClientId
from intarsia.core.files.json_text import check_kind, parse_json
from intarsia.data.formats.csv import header_of
from intarsia.data.parsing import canonical, number, same_unit
from intarsia.data.reader import ENDINGS, WORKBOOKS, ending_of, query_names, read
from intarsia.data.source import Format, Source
from intarsia.data.table import Table
from intarsia.errors import (
    CheckpointError,
    ExperimentError,
    FederationError,
    TableError,
    listed,
    nearest,
)
from intarsia.experiment import feature_dictionary
from intarsia.experiment.feature_dictionary import Dictionary
from intarsia.inspection.named_tables import database_named
from intarsia.models.feature_mapping import RawColumns

_READING = ("decimal", "encoding", "thousands")
# of values, beside the encoding
WRITTEN_BY = ("decimal", "thousands", "missing", "label_map", "dates")
# what is read here of how a table was read
_TABLE: Mapping[str, Any] = {
    **dict.fromkeys((*_READING, "path", "format", "id", "label", "separator", "dates"), str),
    **dict.fromkeys(("url", "query", "split_by", "split_by_pattern"), str),
    "missing": list[str],
    "exclude": list[str],
    "label_map": dict[str, Any],
}
# of a client's alone: a data set may have keys of its own of these names
_CLIENT: Mapping[str, Any] = {
    "features": list[str],
    "units": dict[str, str],
    "limits": list[str],
}
NAMED = ("csv", "parquet", "sql")  # formats whose columns have names of their own


def place_of(folder: Path, table: str | Path) -> Source:
    """Return where a new table is, of a run in a folder: in a file, or in a database.

    A file is a database by its ending, unless the run's clients stated another format for it.

    Raises
    ------
    UserError
        If a database is named, and it cannot be read or has no such table.
    """
    stated = table_settings(folder).formats
    found = None if ending_of(table) in stated else database_named(str(table))
    return Source(name="table", path=str(Path(table))) if found is None else found


def check_table(table: Source, settings: TableSettings | None = None) -> Format:
    """Return a table's format; refuse what is no file, or of no format that can be read.

    That of a file is by its name's ending, before which goes what the clients stated for such
    files. Without settings it is to be CSV or Parquet.
    """
    if table.url is not None:
        return "sql"
    path = Path(table.path or "")
    known = {} if settings is None else settings.formats
    endings = {**ENDINGS, **known}
    if settings is None:
        endings = {ending: kind for ending, kind in endings.items() if kind in NAMED}
    kinds = "CSV or Parquet" if settings is None else "CSV, Parquet, libsvm or npz"
    kinds += " file"
    if path.is_dir():
        raise TableError(f"{path} is a folder; name a {kinds} in it.")
    if not path.exists():
        raise TableError(
            f"There is no file {path}; give the path of a {kinds}, or a database and its table, "
            "as in loans.db#customers."
        )
    if not path.is_file():
        raise TableError(f"{path} is a device or a pipe, not a file; name a {kinds}.")
    if ending_of(path) in WORKBOOKS and ending_of(path) not in endings:
        raise TableError(
            f"{path} is a workbook or an archive, which is not read; save the sheet as CSV "
            "(UTF-8), or unpack the archive, and name that file."
        )
    stated = set(known.values())
    kind = endings.get(ending_of(path)) or (stated.pop() if len(stated) == 1 else None)
    if kind is None:
        what = "neither CSV nor Parquet" if settings is None else "no format that is read"
        raise TableError(
            f"{path} ends in {path.suffix!r}, which is {what}; give the file one of the endings "
            f"{listed(endings)}."
        )
    return kind


def read_table(source: Source) -> Table:
    """Return a table; an error names its place alone, as there is no client here."""
    with _told_of(source):
        return read(source)


@contextmanager
def _told_of(source: Source) -> Iterator[None]:
    try:
        yield
    except TableError as problem:
        advice = problem.without_settings
        raise problem.retold(where=source.place, advice=advice) from problem


def written_with(settings: TableSettings, decimal: str | None) -> TableSettings:
    """Return how tables were read, for one that has another decimal mark; None: it has the same.

    A mark between thousands that was the decimal's in training, or is it now, is left out.

    Raises
    ------
    ExperimentError
        If it is neither "." nor ",".
    """
    if decimal is None:
        return settings
    if decimal not in (".", ","):
        raise ExperimentError(f'The decimal mark is {decimal!r}; it is "." or ",".')
    kept = {key: one for key, one in settings.reading.items() if key != "decimal"}
    if kept.get("thousands") == decimal:
        del kept["thousands"]
    return replace(settings, reading={**kept, "decimal": decimal})


def check_levels(model: Any, settings: TableSettings) -> None:
    """Refuse a model with levels as earlier versions read them where tables have decimal commas.

    None of the rows of a table would have one.

    Raises
    ------
    ExperimentError
        If it has one.
    """
    if settings.reading.get("decimal") != ",":
        return
    features = [str(name) for name in model.feature_names_in_]
    for column, own in RawColumns.of(features, model.levels_).categories.items():
        for level in own:
            if "," in level and (now := canonical(level, number(level, ","))) != level:
                raise ExperimentError(
                    f"The model has the level {level!r} of column {column!r}, which an earlier "
                    f"version wrote so; it is {now!r} now: run the experiment again."
                )


def other_decimals(problem: TableError) -> str:
    """Return the advice of an error by numbers that are written otherwise than is read."""
    mark = _decimal_of(problem)
    said = f'; or say by --decimal "{mark}" how they are written' if mark else ""
    return f"{problem.advice}{said}"


def _decimal_of(problem: TableError) -> str:
    """Return the decimal mark that an error finds in a table; "": it is of something else."""
    marks = {"comma": ",", "point": "."}
    return next((marks[one] for one in marks if f"a decimal {one}" in problem.problem), "")


def clients_like(folder: Path, problem: TableError) -> tuple[str, ...]:
    """Return the clients whose tables have the decimal mark that an error finds in another."""
    mark = _decimal_of(problem)
    tables = _experiment(folder).get("client", ())
    return tuple(str(one.get("name")) for one in tables if (one.get("decimal") or ".") == mark)


def marks_of_some(folder: Path) -> dict[float, list[str]]:
    """Return the numbers that stand for a missing value at some clients alone, and at which."""
    tables = _experiment(folder).get("client", ())
    found: dict[float, list[str]] = {}
    for one in tables:
        for text in filter(_is_number, dict.fromkeys(one.get("missing") or ())):
            found.setdefault(float(text.replace(",", ".")), []).append(str(one.get("name")))
    return {mark: some for mark, some in found.items() if len({*some}) < len(tables)}


@contextmanager
def advice_for_new_tables() -> Iterator[None]:
    """Let the errors of reading a table advise what a command that is given one can do."""
    try:
        yield
    except (TableError, FederationError) as problem:
        told = problem.retold(where=problem.where, advice=problem.without_settings)
        advice = other_decimals(told) if isinstance(told, TableError) else told.advice
        raise told.retold(where=told.where, advice=advice) from problem


@dataclass(frozen=True)
class TableSettings:
    """How the clients' tables were read, or that of one of them."""

    ids: tuple[str, ...]
    labels: tuple[str, ...]
    missing: tuple[str, ...]
    separators: tuple[str, ...]  # that any of them states
    formats: Mapping[str, Format] = field(default_factory=dict[str, Format])  # stated, by ending
    # how texts are read (`_READING`), as all of the clients do
    reading: Mapping[str, Any] = field(default_factory=dict[str, Any])
    positives: tuple[str, ...] = ()  # labels that are of the second of two classes
    # what labels mean, as all of the clients that have some say it
    label_map: Mapping[str, Any] = field(default_factory=dict[str, Any])
    exclude: tuple[str, ...] = ()  # columns that all of them left out
    # the columns that rows were split by, and of each the pattern of what counts; None: all of it
    splits: Mapping[str, str | None] = field(default_factory=dict[str, str | None])
    # the columns that the one client learnt from; None: all others
    features: tuple[str, ...] | None = None
    # the units of columns, where no two clients have others, and the columns with limits
    units: Mapping[str, str] = field(default_factory=dict[str, str])
    limits: tuple[str, ...] = ()

    def amounts(self, names: Collection[str]) -> dict[str, Any]:
        """Return the settings of how numbers are written in some columns."""
        return {
            "units": {name: unit for name, unit in self.units.items() if name in names},
            "limits": tuple(name for name in self.limits if name in names),
        }

    def leaves_out(self, column: str) -> bool:
        """Return whether a column was no feature, though others may have had one of its name."""
        listed_others = self.features is not None and column not in self.features
        return listed_others or column in self.exclude


def dictionary_of(folder: Path, client: ClientId | None) -> tuple[Dictionary, Mapping[str, str]]:
    """Return the dictionary by which a client's table was read in training, and its units.

    The columns in it are those of the client, as of the party "". It says nothing where no client
    is named, or its file is not where it was.
    """
    tree = _experiment(folder)
    path = tree.get("alignment", {}).get("dictionary")
    own = next((one for one in tree.get("client") or () if one.get("name") == client), None)
    if client is None or own is None or not path or not Path(path).is_file():
        return Dictionary("", {}, {}), {}
    known = feature_dictionary.load(path)
    return replace(known, columns={"": known.columns.get(client, {})}), own.get("units") or {}


def notes_on_dictionary(folder: Path) -> tuple[str, ...]:
    """Return a note where the dictionary of a run is not where it was, so that it says nothing."""
    path = _experiment(folder).get("alignment", {}).get("dictionary")
    if not path or Path(path).is_file():
        return ()
    return (
        f"The dictionary of the run, {path}, is not there, so that columns count by their own "
        "names, units and words; put it back if the table is written as its client's was.",
    )


def translated(table: Table, dictionary: Dictionary, units: Mapping[str, str]) -> Table:
    """Return a table with the features' names and units, by what `dictionary_of` returned."""
    if not dictionary.place:
        return table
    own = {name: one for name, one in dictionary.columns[""].items() if name in table.columns}
    known = replace(dictionary, columns={table.client: own})
    return feature_dictionary.translated(table, known, units)


def table_settings(folder: Path, client: ClientId | None = None) -> TableSettings:
    """Return how the tables of a run in a folder were read; nothing where it does not say.

    With a client, how that client's was; without, or where the run knows none of this name, all.
    """
    tree = _experiment(folder)
    clients = tree.get("client") or ()
    named = [table for table in clients if client and table.get("name") == client]
    tables = named or clients or [tree.get("dataset", {})]

    def every(key: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(table[key] for table in tables if table.get(key)))

    marks = [tuple(table.get("missing") or ()) for table in tables]
    # a number is a value at the clients that do not name it; a text is none in a column of numbers
    missing = [
        text
        for own in marks
        for text in own
        if not _is_number(text) or all(text in other for other in marks)
    ]
    stated = [table for table in tables if table.get("path") and table.get("format")]
    formats = {ending_of(table["path"]): table["format"] for table in stated}
    texts = tuple(dict.fromkeys(missing or ("?", "")))
    reading = {
        key: tables[0][key]
        for key in _READING
        if tables[0].get(key) and all(table.get(key) == tables[0][key] for table in tables)
    }
    if orders := every("dates"):  # others have none; with the year first they are read anyway
        marked = [one for one in orders if one != "days"]
        reading["dates"] = marked[0] if len(marked) == 1 else "days"
    stated_positive = tree.get("labels", {}).get("positive") or ()
    positives = [stated_positive] if isinstance(stated_positive, str) else [*stated_positive]
    meant = [table.get("label_map") or {} for table in tables if table.get("label")]
    data = tree.get("dataset", {})
    own_tables: Sequence[Mapping[str, Any]] = named or clients or [{} if "name" in data else data]
    units = dict[str, set[str]]()
    for name, unit in (pair for one in own_tables for pair in (one.get("units") or {}).items()):
        units.setdefault(name, set()).add(unit)
    return TableSettings(
        *(every("id"), every("label"), texts, every("separator"), formats, reading),
        tuple(map(str, positives)),
        label_map=meant[0] if meant and all(one == meant[0] for one in meant) else {},
        exclude=tuple(
            name
            for name in tables[0].get("exclude") or ()
            if all(name in (table.get("exclude") or ()) for table in tables)
        ),
        splits={
            one: table.get("split_by_pattern") for table in tables if (one := table.get("split_by"))
        },
        features=tuple(own) if named and (own := named[0].get("features")) is not None else None,
        units={name: some.pop() for name, some in units.items() if len(some) == 1},
        limits=tuple({name: None for one in own_tables for name in one.get("limits") or ()}),
    )


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text.replace(",", ".")))
    except ValueError:
        return False


def advice_on_left_out(folder: Path, names: Sequence[str], problem: TableError) -> TableError:
    """Return an error by names of columns, which leads to a client that left such a column out."""
    for one in _experiment(folder).get("client", ()):
        left = [name for name in one.get("exclude") or () if name in names]
        if left and f"{left[0]!r} for" in str(problem):
            client = one.get("name")
            return TableError(
                f"{str(problem).rstrip('.')}; or say that the table is one of {client!r}, which "
                f"left {left[0]!r} out in training: --client {client}."
            )
    return problem


def columns_differ(
    folder: Path, client: ClientId, columns: Sequence[str], learned: Collection[str]
) -> bool:
    """Return whether some of a client's columns are not the model's of the same name.

    Such are those that it left out, and those that the run's dictionary gives a name or a unit.
    """
    settings = table_settings(folder, client)
    dictionary, units = dictionary_of(folder, client)
    named = {*units, *dictionary.columns.get("", {})}
    return any(name in named or (name in learned and settings.leaves_out(name)) for name in columns)


def notes_on_units(folder: Path, features: Sequence[str]) -> Iterator[str]:
    """Yield notes on features that some clients of a run have in a unit that is not the model's."""
    for feature in features:
        for one in _experiment(folder).get("client", ()):
            client = str(one.get("name"))
            known, units = dictionary_of(folder, client)
            unit = known.feature(feature).unit
            columns = {*known.columns.get("", {}), *units, feature}
            own = {known.column("", name, units) for name in columns}
            other = next((one.unit for one in own if one.feature == feature), None)
            if unit and other and same_unit(other) != same_unit(unit):
                yield (
                    f"{feature} is taken to be in {unit!r}, as in the model; at {client!r} it is "
                    f"in {other!r}: if so here, say that the table is one of {client!r} (--client "
                    f"{client})."
                )


def check_client(folder: Path, client: ClientId) -> None:
    """Raise if a run does not say how a client's table was read."""
    known = [str(table.get("name")) for table in _experiment(folder).get("client", ())]
    if not known:
        raise ExperimentError(
            f"The client {client!r} is named, but {folder} does not say how clients' tables were "
            "read, and its model is one for all; leave the name out."
        )
    if client not in known:
        raise ExperimentError(f"The run has no client {client!r}; {nearest(client, known)}.")


def reading_differs(folder: Path, keys: Sequence[str]) -> bool:
    """Return whether the clients' tables differ in some keys that say how texts are read."""
    tables = _experiment(folder).get("client", ())
    return len({tuple(str(table.get(key)) for key in keys) for table in tables}) > 1


def owner_of(folder: Path, table: Source) -> ClientId | None:
    """Return the client with whose table a run was trained; None: it is new.

    It is this very file, or the same query to the same database.
    """
    for one in _experiment(folder).get("client", ()):
        with suppress(OSError):
            if table.path and one.get("path") and Path(table.path).samefile(one["path"]):
                return str(one.get("name"))
        if _in_database_of(one, table) and _bare(one.get("query")) == _bare(table.query):
            return str(one.get("name"))
    return None


def _in_database_of(client: Mapping[str, Any], table: Source) -> bool:
    """Return whether a table is in the database of a client's."""
    url = client.get("url")
    return table.url is not None and bool(url) and Source(name="_", url=url).place == table.place


def _bare(query: str | None) -> str:
    return " ".join((query or "").rstrip("; \n").split())


def like_of(folder: Path, table: Source) -> ClientId | None:
    """Return the one client that a table is like in a run.

    Its table has the file's name or is in the same database, or its own name is that of the file
    or the database.
    """
    file = Path(table.path or "").name
    bare = Path(file.removesuffix(".gz")).stem if table.url is None else table.name
    found = [
        str(one.get("name"))
        for one in _experiment(folder).get("client", ())
        if (file and Path(one.get("path") or "").name == file)
        or _in_database_of(one, table)
        or one.get("name") == bare
    ]
    return found[0] if len(found) == 1 else None


def read_as_utf8(table: Source, settings: TableSettings, kind: Format) -> TableSettings:
    """Return the settings without an encoding where a file is UTF-8, which few others look like."""
    if kind != "csv" or "encoding" not in settings.reading:
        return settings
    path = Path(table.path or "")
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            while piece := file.read(2**20):
                decoder.decode(piece)
            decoder.decode(b"", final=True)
    except (OSError, EOFError, UnicodeDecodeError):
        return settings
    kept = {key: one for key, one in settings.reading.items() if key != "encoding"}
    return replace(settings, reading=kept)


def trained_on(
    folder: Path, table: Source, owner: ClientId | None, *, scored: bool = False
) -> tuple[str, ...]:
    """Return a note where a run was trained with a table, that of its owner.

    One that is `scored` gets a note where its database is a client's: training may have had rows.
    """
    judge = "judge it by the scores in result.json where rows were held out, or by new rows."
    more = "is right about them more often than about new ones"
    if owner is not None:
        return (
            f"{table.place} is the table of {owner!r} in this run. The model was trained on rows "
            f"of it, and {more}; {judge}",
        )
    clients = _experiment(folder).get("client", ())
    of_database = [str(one.get("name")) for one in clients if _in_database_of(one, table)]
    if not of_database or not scored:
        return ()
    return (
        f"{table.place} is the database of {listed(of_database)} in this run. If these are rows "
        f"that the model was trained on, it {more}; {judge}",
    )


def labels_mapped(folder: Path) -> bool:
    """Return whether some client says by label_map what its labels mean."""
    return any(table.get("label_map") for table in _experiment(folder).get("client", ()))


def _experiment(folder: Path) -> dict[str, Any]:
    """Return the experiment of the run in a folder; nothing where it does not say."""
    path = folder / "experiment.json"
    try:
        tree = parse_json(path.read_text(encoding="utf-8")) if path.is_file() else {}
        check_kind(tree, dict[str, Any], "the experiment")
        check_kind(tree.get("labels", {}), dict[str, Any], "labels")
        check_kind(tree.get("dataset", {}), dict[str, Any], "dataset")
        check_kind(tree.get("client") or [], list[dict[str, Any]], "client")
        check_kind(tree.get("labels", {}).get("positive") or (), str | list[Any], "positive")
        data = tree.get("dataset", {})
        for table in tree.get("client") or [data]:
            for key, hint in {
                **_TABLE,
                **({} if "name" in data and not tree.get("client") else _CLIENT),
            }.items():
                check_kind(table.get(key), hint | None, key)
    except ValueError as problem:
        raise CheckpointError(
            f"{path} is damaged ({problem}); put back a copy, or run the experiment again."
        ) from None
    found: dict[str, Any] = tree
    return found


def separator_of(table: Source, settings: TableSettings, kind: Format) -> str | None:
    """Return which of the clients' separators divides a table's header; None: the usual one."""
    return _header(table, settings, kind)[1] if kind == "csv" else None


def column_names(table: Source, settings: TableSettings, kind: Format) -> list[str]:
    """Return the names of a table's columns; reading it whole says what is wrong with it."""
    header, separator = _header(table, settings, kind) if kind in NAMED else ([], None)
    if len(header) > 1:
        return header
    how: dict[str, Any] = {"format": kind, "separator": separator, **settings.reading}
    how["exclude"] = _arrays_left_out(table, settings) if kind == "npz" else ()
    whole = read_table(replace(table, **how, **settings.amounts(header)))
    return header or list(whole.columns)


def left_out(table: Source, settings: TableSettings, kind: Format) -> tuple[str, ...]:
    """Return what is not read of a new npz file: labels beside the columns, which may be text.

    And the arrays that training left out.
    """
    return ("label", *_arrays_left_out(table, settings)) if kind == "npz" else ()


def _arrays_left_out(table: Source, settings: TableSettings) -> tuple[str, ...]:
    try:
        with np.load(table.path or "", allow_pickle=False) as file:
            return tuple(name for name in settings.exclude if name in file)
    except (OSError, EOFError, ValueError, TypeError, zipfile.BadZipFile):
        return ()  # reading it says what is wrong


def id_of(
    table: Source, kind: Format, id: str | None, names: Sequence[str], own: Sequence[str]
) -> str | None:
    """Return the column with the ids, `id` or one of the clients' `own`; None: there is none.

    Files without names have "row" instead, and npz may have an array "samples".
    """
    if id is not None:
        return id
    if kind == "npz":
        with zipfile.ZipFile(table.path or "") as file:
            names = ("samples", "row") if "samples.npy" in file.namelist() else ("row",)
    elif kind not in NAMED:
        names = ("row",)
    return next((name for name in own if name in names), None)


def _header(table: Source, settings: TableSettings, kind: Format) -> tuple[list[str], str | None]:
    """Return the names of a table's columns, none where they cannot be read, and the separator.

    A new table may have another separator than those of training: it is the one of the clients'
    that gives the most names, if it gives more than the usual one.
    """
    if kind == "sql":
        with _told_of(table):
            return query_names(table), None
    path = Path(table.path or "")
    if kind == "parquet":
        from pyarrow import ArrowException, parquet

        try:
            return list(parquet.read_schema(path).names), None
        except ArrowException:
            return [], None
    opened = gzip.open if path.suffix == ".gz" else open

    def names(separator: str | None) -> list[str]:
        def rows(mark: str) -> Iterator[list[str]]:
            encoding = settings.reading.get("encoding", "utf-8-sig")
            with opened(path, "rt", encoding=encoding, newline="") as file:
                yield from csv.reader(file, delimiter=mark)

        return header_of(rows, replace(table, format=kind, separator=separator))[0]

    try:
        best, found = None, names(None)
        for separator in settings.separators:
            by_it = names(separator)
            if len(by_it) > len(found):
                best, found = separator, by_it
    except (OSError, EOFError, UnicodeDecodeError, csv.Error):
        return [], None
    return [name.strip() for name in found], best
