"""Read a client's data as a `Table`: files, databases, DataFrames and arrays.

Formats
-------
csv
    One header line, UTF-8 or `encoding`, optionally gzip; separator "," (tab where the name ends in
    .tsv), or what the header has instead.
parquet
    One file.
libsvm
    `label index:value …`, optionally gzip; a feature is named by its index as written.
npz
    `x` (samples, features), or CSR as `data`, `indices`, `indptr`, `shape`; optionally `y`,
    `samples`, `features`. Or several views, each an array (samples, …) of any other name, which
    become feature blocks of these names and shapes. Another array is refused, unless `exclude`
    names it. No pickled objects.
sql
    One select that only reads, from `sqlite:///`, `duckdb:///` or `postgresql://` (over verified
    TLS), with the extra of that name. `$NAME` in a url is taken from the environment, as a
    password must be.

libsvm and npz carry labels in the file: they are used unless `label` is in `exclude`. Their rows
belong to the client alone unless npz has `samples`, or `id = "row"` says that row i is the same
sample at all clients.
"""

from __future__ import annotations

import contextlib
import gzip
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, is_zipfile

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array, issparse

from intarsia.core.block import ClientId
from intarsia.core.files.npz import check_npz, unpacked_limit
from intarsia.core.memory import folder_of, kept
from intarsia.core.settings import absolute_path, hyperparameters
from intarsia.data.column import check_text, column_of
from intarsia.data.column_roles import table_of_columns, table_of_matrix
from intarsia.data.formats import parquet
from intarsia.data.formats.csv import delimited_text
from intarsia.data.formats.libsvm import parse_libsvm
from intarsia.data.formats.parquet import ParquetColumns
from intarsia.data.formats.pieces import PIECE, Opened, parts_of, stored
from intarsia.data.source import Format, Source
from intarsia.data.table import Table
from intarsia.errors import TableError, first_line, listed, several

ENDINGS: Mapping[str, Format] = {
    ".csv": "csv",
    ".tsv": "csv",
    ".txt": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".libsvm": "libsvm",
    ".svm": "libsvm",
    ".npz": "npz",
}


WORKBOOKS = (".xlsx", ".xls", ".xlsm", ".ods", ".zip", ".7z", ".tar")

# what numpy and zipfile raise for a file that is not what it seems
_NO_ARCHIVE = (OSError, EOFError, KeyError, RuntimeError, ValueError, BadZipFile, zlib.error)


def ending_of(path: str | Path) -> str:
    """Return the ending of a file's name that tells its format, in small letters."""
    name = str(path).lower()
    whole, inner = Path(name).suffix, Path(name.removesuffix(".gz")).suffix
    return whole if ENDINGS.get(inner) in ("npz", "parquet") else inner  # these are not unpacked


def located(source: Source, folder: Path) -> Source:
    """Return the source with its path, or the file in its url, made absolute from a folder."""
    if source.path is not None:
        if "://" in source.path:
            raise source.error(
                "path is a web address, and files are not fetched",
                "download the file and name it, or set url and query for a database",
                "download the file and name it",
            )
        source = replace(source, path=absolute_path(source.path, folder))
    if source.url is not None:
        source = replace(source, url=_databases(source).absolute_url(source, folder))
    return source


def read(source: Source, folder: Path | None = None) -> Table:
    """Return one client's table, its values on the disk of a folder; None: in memory.

    Raises
    ------
    TableError
        If the source cannot be read, or its columns are not what the settings say.
    ExperimentError
        If the folder's disk has no room for the values.
    """
    source = replace(source, format=_checked_format(source))
    with _unchanged(source):
        return _read(source, folder)


def _read(source: Source, folder: Path | None) -> Table:
    path, columns = Path(source.path or ""), columns_of(source, folder)
    if columns is not None:
        return table_of_columns(columns, source, folder)
    if source.format == "npz":
        found = _npz(path, source)
    else:
        x, y, names = parse_libsvm(_opened(path, source, folder), source.where, folder)
        found = _matrix(x, source, names, y, None)
    if folder is None or folder_of(found.values) is not None:
        return found
    return replace(found, values=kept(found.values, folder))


@contextlib.contextmanager
def _unchanged(source: Source) -> Iterator[None]:
    """Refuse a file that another process writes, or puts in its place, while it is read."""

    def state() -> tuple[int, int, int] | None:
        if source.path is None:  # a database gives a query its rows as of one moment
            return None
        with contextlib.suppress(OSError):
            found = Path(source.path).stat()
            return found.st_ino, found.st_size, found.st_mtime_ns
        return None

    before = state()
    try:
        yield
    except TableError:  # what is half written is wrong in many ways
        if state() == before:
            raise
    if state() != before:
        raise source.error(
            "the file was changed while it was read",
            "read it when it is whole: write it under another name first, and then rename it",
        )


def values_size(source: Source) -> float:
    """Return about how many bytes a source's values will take in memory; infinite: who knows."""
    if source.url is not None:
        found: float = _databases(source).values_size(source)
        return found
    path = Path(source.path or "")
    if not path.is_file():
        return 0
    ending = ending_of(path)
    if (source.format or ENDINGS.get(ending)) == "parquet":
        return parquet.values_size(path)
    packed = path.suffix == ".gz" or ending == ".npz"
    return path.stat().st_size * (_UNPACKED if packed else 1)


_UNPACKED = 4  # times the size of a packed file


def columns_of(
    source: Source, folder: Path | None = None, *, as_text: bool = False
) -> pa.Table | ParquetColumns | None:
    """Return a table's columns before anything is made of them; None: the file has a matrix.

    With a folder, they lie on its disk; those of a Parquet file are read when they are asked for.
    With `as_text` all columns of a CSV file stay text.
    TableError if the source cannot be read.
    """
    kind, path = _checked_format(source), Path(source.path or "")
    if kind == "sql":
        found: pa.Table = _databases(source).query_columns(source, folder)
        return found
    if kind == "parquet":
        return ParquetColumns(path, source)
    if kind != "csv":
        return None
    return delimited_text(_opened(path, source, folder), source, folder, as_text=as_text)


def query_names(source: Source) -> list[str]:
    """Return the names of the columns that a source's query gives, without its rows."""
    found: list[str] = _databases(source).query_names(source)
    return found


def table_queries(source: Source) -> dict[str, str]:
    """Return the query of all rows of each table of a source's database, by the table's name."""
    found: dict[str, str] = _databases(source).table_queries(source)
    return found


def relative_url(source: Source, folder: Path) -> str:
    """Return the url of a source with the file in it as it is named from a folder."""
    found: str = _databases(source).relative_url(source.url, folder)
    return found


def _databases(source: Source) -> Any:
    """Return the module that reads databases, whose library is of extras and takes 0.25 s."""
    try:
        from intarsia.data.formats import sql
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "sqlalchemy":
            raise
        scheme = (source.url or "").partition(":")[0].partition("+")[0]
        extra = scheme if scheme in ("duckdb", "postgresql") else "sqlite"
        raise source.error(
            "url names a database but the package sqlalchemy is not installed",
            f'run pip install "intarsia[{extra}]"',
        ) from error
    return sql


def _checked_format(source: Source) -> Format:
    """Return the format of a source; TableError if it names no file."""
    path = Path(source.path or "")
    if source.path is not None and path.is_dir():
        raise source.error("this is a folder, not a file", "name a file in it")
    if source.path is not None and path.exists() and not path.is_file():
        raise source.error("this is a device or a pipe, not a file", "name a file")
    if source.path is not None and not path.exists():
        advice = "correct path (it is relative to the experiment file)"
        raise source.error("there is no such file", advice, "correct its path")
    return _format(source)


def table_from(
    values: Any,
    labels: ArrayLike | None = None,
    *,
    client: ClientId = "client",
    samples: ArrayLike | None = None,
    names: Sequence[str] | None = None,
    **settings: Any,
) -> Table:
    """Return the table of a pandas or polars DataFrame, or of a dense or sparse matrix.

    Parameters
    ----------
    values
        DataFrame, or (samples, features).
    labels
        (samples,); for a DataFrame, `label="column"` names them instead.
    samples
        (samples,) ids; for a DataFrame, `id="column"` names them instead.
    names
        Feature names of a matrix; default "x0", "x1", …
    settings
        The other settings of `Source`: id_type, features, exclude, categorical, least_rows,
        missing, groups, label_map, decimal, thousands, dates.

    Raises
    ------
    TableError
        If shapes disagree or a value is not what its column needs.
    """
    source = hyperparameters(Source, {"name": client, **settings}, f"Client {client!r}")
    y = None if labels is None else np.asarray(labels)
    ids = None if samples is None else np.asarray(samples)
    if hasattr(values, "columns") and not issparse(values):
        try:
            frame = _frame(values, source)
        except UnicodeEncodeError as error:  # of a text that Arrow does not take
            check_text(error.object, "one of its texts", source)
            raise
        if ids is not None:
            frame, name = _joined(frame, "id", source.id, ids, source)
            source = replace(source, id=name)
        if y is not None:
            frame, name = _joined(frame, "label", source.label, y, source)
            source = replace(source, label=name)
        return table_of_columns(frame, source)
    if source.id is not None or source.label is not None:
        raise source.error(
            f"id is {source.id!r} and label is {source.label!r} but a matrix has no such columns",
            "pass the arrays samples and labels",
        )
    try:
        x = values if issparse(values) else np.asarray(values)
    except ValueError as error:
        raise source.error(
            f"the values are not a matrix ({first_line(error)})",
            "give every row the same number of values",
        ) from None
    width = x.shape[1] if len(x.shape) == 2 else 0
    # the same text of all clients, of whom there may be very many
    own = [sys.intern(f"x{number}") for number in range(width)] if names is None else names
    return table_of_matrix(x, source, names=own, y=y, samples=ids)


def _joined(
    frame: pa.Table, key: str, column: str | None, given: NDArray[Any], source: Source
) -> tuple[pa.Table, str]:
    """Return a frame with an array as a further column, and the column's name."""
    if column is not None:
        raise source.error(f"{key} is {column!r} but an array is passed too", "pass one of the two")
    if given.shape != (frame.num_rows,):
        raise source.error(
            f"the DataFrame has {frame.num_rows} rows but the array for {key} has the shape "
            f"{given.shape}",
            f"give one {key} for every row",
        )
    name = key if key not in frame.column_names else f"{source.name}:{key}"
    return frame.append_column(name, column_of(given.tolist())), name


def _format(source: Source) -> Format:
    if source.format is not None and source.format != "sql":
        if source.path is None:
            raise source.error(f"format is {source.format!r} but there is no path", "set path")
        return source.format
    if source.url is not None and source.path is not None:
        raise source.error(f"path is {source.path!r} and url is set too", "remove one of the two")
    if source.url is not None:
        if source.query is None or not source.query.strip():
            raise source.error("a url needs a query", "set query to a select")
        return "sql"
    if source.format == "sql" or source.path is None:
        raise source.error(
            f"path is {source.path!r} and url is {source.url!r}",
            "set path for a file, or url and query for a database, and not both",
        )
    ending = ending_of(source.path)
    if ending in WORKBOOKS:
        raise source.error(
            f"the ending {ending!r} is that of a workbook or an archive, which is not read",
            "save the sheet as CSV (UTF-8), or unpack the archive, and name that file",
        )
    if ending not in ENDINGS:
        raise source.error(
            f"the ending {ending!r} tells no format",
            f"set format to one of {listed(['csv', 'parquet', 'libsvm', 'npz'])}, or url and "
            "query for a database",
            "write the rows as CSV or Parquet, and name that file",
        )
    return ENDINGS[ending]


def _opened(path: Path, source: Source, folder: Path | None) -> Opened:
    """Return what opens a file for Arrow, unpacked in memory or on the disk of a folder."""
    try:
        with path.open("rb") as file:
            first = file.read(2)
    except OSError as error:
        raise source.error(
            f"cannot read the file ({error.strerror})", "check its permissions"
        ) from error
    opened: Opened = partial(pa.OSFile, str(path))
    if first == b"\x1f\x8b" or path.suffix == ".gz":
        opened = stored(_unpacked(path, source), folder)
    if all(some.isspace() for some in parts_of(opened)):
        raise source.error("the file is empty (0 lines with text)", "check that it was written")
    return opened


def _unpacked(path: Path, source: Source) -> Iterator[bytes]:
    """Yield what is in a gzip file, some at a time."""
    packed, size = path.stat().st_size, 0
    most = unpacked_limit(packed)
    try:
        with gzip.open(path) as file:
            while some := file.read(PIECE):
                if (size := size + len(some)) > most:
                    raise source.error(
                        f"the file has {packed:,} bytes and would unpack to more than {most:,}",
                        "unpack it yourself if it is a table",
                    )
                yield some
    except (OSError, EOFError, zlib.error) as error:
        raise source.error(
            f"not a whole gzip file ({first_line(error)})", "copy or compress it again"
        ) from error


def _npz(path: Path, source: Source) -> Table:
    try:
        check_npz(path, packed=True)
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise source.error(
                    "the file has one array without a name", "save it with numpy.savez(path, x=...)"
                )
            parts = {name: file[name] for name in file.files}
    except _NO_ARCHIVE as error:
        if isinstance(error, TableError):
            raise
        # numpy would advise to load it with pickle
        why = first_line(error) if is_zipfile(path) else "it is no zip archive"
        why = "an array holds Python objects" if "pickle" in why else why
        raise source.error(
            f"not an npz file of plain arrays ({why})", "write numbers and text with numpy.savez"
        ) from error
    views = {
        name: array
        for name, array in parts.items()
        if name not in ("y", "samples", "features") and array.ndim > 1
    }
    source = _all_read(parts, views, source)
    if "x" in parts:
        x: Any = parts["x"]
    elif views:
        return _views(views, parts, source)
    elif set(_CSR) <= set(parts):
        x = _csr(parts, source)
    else:
        raise source.error(
            f"the file has the arrays {listed(parts)}",
            "expected x, or the CSR parts data, indices, indptr and shape, or views (samples, "
            "…): save it with these names",
        )
    if x.ndim != 2:
        raise source.error(
            f"x has the shape {x.shape}",
            "expected (samples, features): reshape it to two axes, or save images by another "
            "name, such as images, which keeps their shape",
        )
    if "features" in parts:
        names = [str(one) for one in parts["features"].tolist()]
    else:
        names = [f"x{at}" for at in range(x.shape[1])]
    return _matrix(x, source, names, parts.get("y"), parts.get("samples"))


_CSR = ("data", "indices", "indptr", "shape")


def _all_read(
    parts: Mapping[str, NDArray[Any]], views: Mapping[str, NDArray[Any]], source: Source
) -> Source:
    """Return the source without the arrays of its `exclude`; raise if another is not read.

    Of labels by another name than y the client would have none, without a word.
    """
    if "x" not in parts and not views and not set(_CSR) <= set(parts):
        return source  # nothing is read, which has an error of its own
    matrix = ("x",) if "x" in parts else (*views,) if views else (*_CSR, "format", "_is_array")
    left = [name for name in parts if name not in (*matrix, "y", "samples", "features")]
    unread = [name for name in left if name not in source.exclude]
    if unread:
        raise source.error(
            f"nothing is read from {several(len(unread), 'array')} of the file: {listed(unread)}",
            "call labels y and ids samples, as the rows' numbers or names; name in exclude what is "
            "to be left out",
            "call labels y and ids samples, and save the file without what is to be left out",
        )
    return replace(source, exclude=tuple(one for one in source.exclude if one not in left))


def _views(
    views: Mapping[str, NDArray[Any]], parts: Mapping[str, NDArray[Any]], source: Source
) -> Table:
    """Return the table of arrays of several axes, each a feature block with the array's name."""
    rows = {name: len(array) for name, array in views.items()}
    if len(set(rows.values())) > 1:
        first, *others = rows
        odd = next(name for name in others if rows[name] != rows[first])
        raise source.error(
            f"the view {first!r} has {rows[first]} samples and {odd!r} has {rows[odd]}",
            "give all views the same samples in the same order",
        )
    flat = {name: array.reshape(len(array), -1) for name, array in views.items()}
    names = {name: tuple(f"{name}{at}" for at in range(x.shape[1])) for name, x in flat.items()}
    every = [feature for some in names.values() for feature in some]
    wanted = set(every if source.features is None else source.features) - set(source.exclude)
    own = {name: tuple(one for one in some if one in wanted) for name, some in names.items()}
    if not source.groups:
        source = replace(source, groups={name: some for name, some in own.items() if some})
    x = np.hstack(list(flat.values()))
    table = _matrix(x, source, every, parts.get("y"), parts.get("samples"))
    shapes = {
        name: array.shape[1:]
        for name, array in views.items()
        if array.ndim > 2 and table.groups.get(name) == names[name]
    }
    return replace(table, shapes=shapes)


def _csr(parts: Mapping[str, NDArray[Any]], source: Source) -> Any:
    kind = np.asarray(parts.get("format", b"csr")).tolist()  # scipy writes bytes, others text
    try:
        if kind not in (b"csr", "csr"):
            raise ValueError(f"its format is {kind!r}")
        x = csr_array(
            (parts["data"], parts["indices"], parts["indptr"]),
            shape=tuple(int(size) for size in parts["shape"]),
        )
        x.check_format(full_check=True)
    except (ValueError, TypeError, IndexError) as error:
        raise source.error(
            f"data, indices, indptr and shape are not a CSR matrix ({first_line(error)})",
            "save it with scipy.sparse.save_npz",
        ) from error
    return x


def _matrix(
    x: Any,
    source: Source,
    names: Sequence[str],
    y: NDArray[Any] | None,
    samples: NDArray[Any] | None,
) -> Table:
    """Return the table of a file format that carries its labels and ids outside the columns."""
    if source.id not in (None, "row", "samples" if source.format == "npz" else "row"):
        raise source.error(
            f"id is {source.id!r} but a {source.format} file has no id column",
            'set id = "row" where row i is the same sample at all clients, or remove id',
            "number the rows by --id row, or leave --id out",
        )
    if source.id == "samples" and samples is None:
        raise source.error(
            "id is 'samples' but the file has no array of this name",
            'save it, set id = "row" or remove id',
            "save it, or number the rows: --id row",
        )
    if source.id == "row":
        samples = np.arange(x.shape[0])
    own = source.label or "label"
    if "label" in source.exclude or own in source.exclude:
        y = None
        source = replace(
            source, label=None, exclude=tuple(n for n in source.exclude if n not in ("label", own))
        )
    elif source.label is not None and (y is None or source.label not in ("label", "y")):
        has = "the file has no labels" if y is None else "the file's labels are called 'label'"
        raise source.error(f"label is {source.label!r} but {has}", "remove label")
    return table_of_matrix(x, source, names=names, y=y, samples=samples)


def _frame(frame: Any, source: Source) -> pa.Table:
    """Return a DataFrame's columns; the index is a column only if `id` names it."""
    if hasattr(frame, "to_arrow"):  # polars
        return frame.to_arrow()
    if source.id is not None and source.id == frame.index.name and source.id not in frame.columns:
        frame = frame.reset_index()
    names = [str(name) for name in frame.columns]
    return _arrow(names, [_series(frame.iloc[:, position]) for position in range(len(names))])


def _series(series: Any) -> Any:
    if series.dtype == object:
        return series.tolist()
    if getattr(series.dtype, "tz", None) is not None:
        series = series.dt.tz_convert(None)  # to UTC
    try:
        found = pa.Array.from_pandas(series)
    except (pa.ArrowException, OverflowError):
        return series.tolist()
    if pa.types.is_dictionary(found.type):  # the categories of pandas.cut are no values of Arrow
        return series.tolist() if isinstance(found.type.value_type, pa.BaseExtensionType) else found
    return found


def _arrow(names: Sequence[str], columns: Iterable[Any]) -> pa.Table:
    return pa.Table.from_arrays([column_of(values) for values in columns], names=names)
