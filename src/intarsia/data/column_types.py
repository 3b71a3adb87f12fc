"""One column's values: numbers or a category, ids, labels.

Named columns or a matrix as a `Table`: ids, labels, numbers and categories told apart.

Rules: a column is numeric if all its values are numbers, categorical if none is (a mixture is an
error, unless the column is listed as categorical); booleans are 0 and 1; dates are an error; blanks
around a text do not count; an empty text, "nan", "null" and NaN are missing everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse

from intarsia.core.block import Array
from intarsia.data.labels import LabelColumn
from intarsia.data.parsing import canonical, number
from intarsia.data.source import Source, check_names, feature_columns, feature_groups
from intarsia.data.table import Category, Table
from intarsia.errors import TableError

MOST_LEVELS = 200  # a text column with more levels is refused unless it is listed as categorical

_ALWAYS_MISSING = frozenset({"", "nan", "null"})
_WHOLE = re.compile(r"-?(0|[1-9]\d*)")
_DATE = re.compile(r"\d{4}-\d\d?-\d\d?([T ].*)?|\d\d?[./]\d\d?[./]\d{4}.*")
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")

# what pyarrow raises for values that have no common type
_NO_COLUMN = (
    pa.ArrowInvalid,
    pa.ArrowNotImplementedError,
    OverflowError,
    TypeError,  # such as for an infinite decimal
    UnicodeDecodeError,
)


def column_of(values: Sequence[Any] | NDArray[Any]) -> pa.ChunkedArray:
    """Return Python values as a column; values of different or unusual types become text."""
    try:
        own = pa.array(values, from_pandas=True)
        usual = not isinstance(own.type, pa.BaseExtensionType)  # such as a UUID
    except _NO_COLUMN:
        usual = False
    if not usual:
        own = pa.array([None if _absent(one) else str(one) for one in values], pa.string())
    return pa.chunked_array([own])


def _absent(value: Any) -> bool:
    return value is None or (isinstance(value, float) and value != value)


def infinite_value(value: float, row: int, name: str, source: Source) -> TableError:
    """Return the error that a feature is infinite in a row, counted from 0."""
    return TableError(
        f"{source.where}: column {name!r} is {value} in row {row + 1}; expected a finite number: "
        "replace it by a number or by an empty cell (missing)."
    )


def generated_ids(rows: int, source: Source) -> NDArray[np.str_]:
    """Return the ids of rows that belong to one party alone, "<client>:<row>" from 0."""
    if source.id_type is not None:
        raise TableError(
            f"{source.where}: id_type is {source.id_type!r} but there is no id; set id or remove "
            "id_type."
        )
    return np.array([f"{source.name}:{row}" for row in range(rows)], np.str_)


def _texts(column: pa.ChunkedArray, source: Source) -> tuple[NDArray[np.intp], list[str | None]]:
    """Return a column as codes (samples,), -1 where null, and the text of each code."""
    encoded = column.cast(pa.string()).combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.intp)
    missing = {*(text.strip() for text in source.missing), *_ALWAYS_MISSING}
    texts: list[str | None] = []
    for raw in encoded.dictionary.to_pylist():
        text = raw.strip()
        texts.append(None if text in missing or text.lower() in _ALWAYS_MISSING else text)
    return codes, texts


def _row(codes: NDArray[np.intp], texts: list[str | None], text: str) -> int:
    """Return the first row, from 1, that has a text."""
    return int(np.flatnonzero(codes == texts.index(text))[0]) + 1


def _plain(column: pa.ChunkedArray, name: str, source: Source) -> tuple[pa.ChunkedArray, bool]:
    """Return a column without dictionary encoding, and whether it was a category column."""
    kind = column.type
    category = pa.types.is_dictionary(kind)
    if category:
        column = column.cast(kind.value_type)
        kind = column.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        value = next((one for one in column.to_pylist() if one is not None), b"")
        raise TableError(
            f"{source.where}: column {name!r} has the bytes {value[:20]!r}, which are not UTF-8 "
            "text; save the table as UTF-8, or list the column in exclude."
        )
    known = pa.types.is_null(kind) or pa.types.is_boolean(kind) or _is_text(kind)
    known |= pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    if not known and not pa.types.is_temporal(kind):
        value = next((one for one in column.to_pylist() if one is not None), None)
        raise TableError(
            f"{source.where}: column {name!r} has values of type {str(kind)[:40]} (first: "
            f"{str(value)[:40]!r}); a cell holds one number or text: convert the column, or list "
            "it in exclude."
        )
    return column, category


def feature_values(column: pa.ChunkedArray, name: str, source: Source) -> Array | Category:
    """Return a feature column as float64 (samples,) with NaN, or as a category.

    Raises
    ------
    TableError
        If the column is neither numeric nor categorical, or a value is infinite.
    """
    column, category = _plain(column, name, source)
    kind = column.type
    categorical = category or name in source.categorical
    if pa.types.is_null(kind):
        return np.full(len(column), np.nan)
    if pa.types.is_temporal(kind) and not categorical:
        value = next((one for one in column.to_pylist() if one is not None), None)
        raise _date(str(value), name, source)
    if categorical:
        encoded = _category(*_texts(column, source))
        if encoded.levels:
            return encoded
        return np.full(len(column), np.nan)  # the other parties say what kind it is
    if not _is_text(kind):
        values = _floats(column)
        sentinels = [v for v in map(number, source.missing) if v is not None]
        if sentinels:
            values[np.isin(values, sentinels)] = np.nan
    else:
        codes, texts = _texts(column, source)
        given = [text for text in texts if text is not None]
        figures = [text for text in given if number(text) is not None]
        if len(figures) < len(given):
            if given and all(text.lower() in ("true", "false") for text in given):
                lookup = [np.nan if t is None else float(t.lower() == "true") for t in texts]
                return np.array([*lookup, np.nan])[codes]
            _refuse_text(codes, texts, given, figures, name, source)
            return _category(codes, texts)
        lookup = [np.nan if t is None else number(t) or 0.0 for t in texts]
        values = np.array([*lookup, np.nan])[codes]
    if np.isinf(values).any():
        row = int(np.flatnonzero(np.isinf(values))[0])
        raise infinite_value(values[row], row, name, source)
    return values


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def _floats(column: pa.ChunkedArray) -> Array:
    values = column.cast(pa.float64(), safe=False).to_numpy()
    return np.array(values, np.float64)  # a copy: Arrow's memory is read-only


def _category(codes: NDArray[np.intp], texts: list[str | None]) -> Category:
    names = [None if text is None else canonical(text) for text in texts]
    levels = tuple(sorted({name for name in names if name is not None}))
    place = {level: position for position, level in enumerate(levels)}
    target = np.array([-1 if name is None else place[name] for name in names] + [-1], np.int32)
    return Category(target[codes], levels)


def _date(value: str, name: str, source: Source) -> TableError:
    return TableError(
        f"{source.where}: column {name!r} has dates or times (first: {value!r}); a feature is a "
        "number or a category: convert it to a number such as days since a fixed day, or list it "
        "in exclude."
    )


def _refuse_text(
    codes: NDArray[np.intp],
    texts: list[str | None],
    given: list[str],
    figures: list[str],
    name: str,
    source: Source,
) -> None:
    """Raise if a text column that is not listed as categorical is not plainly a category."""
    if figures:
        words = [one for one in given if number(one) is None]
        often = dict(zip(texts, np.bincount(codes[codes >= 0], minlength=len(texts)), strict=True))
        rare, usual = words, figures
        if sum(often[one] for one in figures) < sum(often[one] for one in words):
            rare, usual = figures, words
        raise TableError(
            f"{source.where}: column {name!r} mixes numbers and text: {rare[0]!r} in row "
            f"{_row(codes, texts, rare[0])} beside values such as {usual[0]!r}; correct it, add "
            f"{rare[0]!r} to missing, or list the column in categorical."
        )
    if all(_DATE.fullmatch(one) for one in given):
        raise _date(given[0], name, source)
    if all(_DECIMAL_COMMA.fullmatch(one) for one in given):
        raise TableError(
            f"{source.where}: column {name!r} has numbers with a decimal comma (first: "
            f"{given[0]!r}); write them with a point."
        )
    if len(given) > MOST_LEVELS:
        raise TableError(
            f"{source.where}: column {name!r} has {len(given)} different texts (first: "
            f"{given[0]!r}); list it in exclude, or in categorical to have one feature for each."
        )


def sample_ids(column: pa.ChunkedArray, source: Source) -> NDArray[Any]:
    """Return a column's ids as int64 if every one is a whole number, else as text.

    Raises
    ------
    TableError
        If an id is missing, repeats, or is not of the type that the source asks for.
    """
    name = source.id or "samples"
    column, _ = _plain(column, name, source)
    kind = column.type
    if pa.types.is_boolean(kind):
        raise TableError(
            f"{source.where}: id column {name!r} has true and false; an id tells all rows apart: "
            "name the column that does."
        )
    plain = pa.types.is_integer(kind) and kind != pa.uint64() and not column.null_count
    if plain and source.id_type != "text":
        return _unique(column.to_numpy().astype(np.int64), name, source)
    codes, texts = _texts(column, source)
    if pa.types.is_floating(kind):
        texts = [None if text is None else canonical(text) for text in texts]
    absent = np.flatnonzero(np.array([*(text is None for text in texts), True])[codes])
    if len(absent):
        raise TableError(
            f"{source.where}: id column {name!r} has no id in {len(absent)} rows (first: row "
            f"{absent[0] + 1}); every row needs an id: fill it in or drop the row."
        )
    whole = [_whole(text or "", strict=source.id_type is None) for text in texts]
    if source.id_type == "integer" and None in whole:
        text = next(t for t, value in zip(texts, whole, strict=True) if value is None) or ""
        raise TableError(
            f"{source.where}: id column {name!r} has {text!r} in row {_row(codes, texts, text)}, "
            'which is not a whole number of 64 bits; correct it or set id_type = "text".'
        )
    if source.id_type != "text" and None not in whole:
        return _unique(np.array(whole, np.int64)[codes], name, source)
    return _unique(np.array(texts, np.str_)[codes], name, source)


def _whole(text: str, strict: bool) -> int | None:
    """Return a whole number of 64 bits; strictly, "007" is none since its zeros may matter."""
    if not (_WHOLE.fullmatch(text) if strict else re.fullmatch(r"[+-]?\d+", text)):
        return None
    value = int(text) if len(text) < 25 else 2**63
    return value if -(2**63) <= value < 2**63 else None


def _unique(samples: NDArray[Any], name: str, source: Source) -> NDArray[Any]:
    ids, counts = np.unique(samples, return_counts=True)
    if len(ids) < len(samples):
        twice = ids[counts > 1][0]
        rows = np.flatnonzero(samples == twice)[:2] + 1
        raise TableError(
            f"{source.where}: id column {name!r} has {twice.item()!r} in {counts[counts > 1][0]} "
            f"rows (first: rows {rows[0]} and {rows[1]}; {int((counts > 1).sum())} ids repeat); "
            "every sample needs one row: aggregate or drop the repeated rows."
        )
    return samples


def label_column(column: pa.ChunkedArray, source: Source) -> LabelColumn:
    """Return labels: float64 with NaN if all are numbers, else canonical text.

    Raises
    ------
    TableError
        If the labels are dates, or one is infinite.
    """
    name = source.label or "label"
    column, _ = _plain(column, name, source)
    kind = column.type
    if pa.types.is_null(kind):
        return LabelColumn(name, np.full(len(column), np.nan))
    if pa.types.is_temporal(kind):
        value = next((one for one in column.to_pylist() if one is not None), None)
        raise TableError(
            f"{source.where}: label column {name!r} has dates or times (first: {str(value)!r}); a "
            "label is a number or a class: convert it, or name another column."
        )
    if _is_text(kind) or pa.types.is_boolean(kind):
        codes, texts = _texts(column, source)
        figures = [None if text is None else number(text) for text in texts]
        if any(f is None and t is not None for f, t in zip(figures, texts, strict=True)):
            names = ["" if text is None else canonical(text) for text in texts]
            return LabelColumn(name, np.array([*names, ""], np.str_)[codes])
        lookup = [np.nan if figure is None else figure for figure in figures]
        values = np.array([*lookup, np.nan])[codes]
    else:
        values = _floats(column)
        sentinels = [v for v in map(number, source.missing) if v is not None]
        values[np.isin(values, sentinels)] = np.nan
    if np.isinf(values).any():
        row = int(np.flatnonzero(np.isinf(values))[0])
        raise TableError(
            f"{source.where}: label column {name!r} is {values[row]} in row {row + 1}; expected a "
            "finite number or a class: correct it or leave the cell empty (no label)."
        )
    return LabelColumn(name, values)


def table_of_columns(columns: pa.Table, source: Source) -> Table:
    """Return the table that named columns make.

    Raises
    ------
    TableError
        If there is no row, a column is unknown, or a value is not what its column needs.
    """
    names = columns.column_names
    check_names(names, source)
    if not columns.num_rows:
        raise TableError(
            f"{source.where}: the table has {len(names)} columns but 0 rows; a party needs at "
            "least one row: check the file or the query, or leave this client out."
        )
    chosen = feature_columns(names, source)
    column = {name: columns.column(position) for position, name in enumerate(names)}
    samples = (
        sample_ids(column[source.id], source)
        if source.id is not None
        else generated_ids(columns.num_rows, source)
    )
    numbers: dict[str, Array] = {}
    categorical: dict[str, Category] = {}
    for name in chosen:
        read = feature_values(column[name], name, source)
        if isinstance(read, Category):
            categorical[name] = read
        else:
            numbers[name] = read
    values = np.empty((columns.num_rows, len(numbers)))
    for position, name in enumerate(list(numbers)):
        values[:, position] = numbers.pop(name)  # free each column when it has been copied
    return Table(
        source.name,
        samples,
        chosen,
        values,
        categorical,
        None if source.label is None else label_column(column[source.label], source),
        feature_groups(chosen, source),
        generated=source.id is None,
    )


def table_of_matrix(
    x: Any,
    source: Source,
    *,
    names: Sequence[str],
    y: NDArray[Any] | None = None,
    samples: NDArray[Any] | None = None,
) -> Table:
    """Return the table that a matrix (samples, features), dense or sparse, makes.

    Raises
    ------
    TableError
        If shapes disagree or a value is not a number.
    """
    if len(x.shape) != 2:
        raise TableError(
            f"{source.where}: x has the shape {tuple(x.shape)}; expected (samples, features): "
            "reshape it to two axes."
        )
    if x.dtype.kind in "cMm":
        raise TableError(
            f"{source.where}: x has the type {x.dtype}, which is not a real number; convert it to "
            "float64."
        )
    rows, width = x.shape
    if len(names) != width:
        raise TableError(
            f"{source.where}: x has {width} columns but there are {len(names)} feature names; "
            "give every column one name."
        )
    for what, given in (("labels", y), ("sample ids", samples)):
        if given is not None and given.shape != (rows,):
            raise TableError(
                f"{source.where}: x has {rows} rows but the {what} have the shape {given.shape}; "
                f"give one of the {what} for every row, on one axis."
            )
    if not rows:
        raise TableError(
            f"{source.where}: the table has {width} columns but 0 rows; a party needs at least one "
            "row: check the file, or leave this client out."
        )
    check_names(names, source)
    # ids and labels of a matrix are no columns of it
    beside = replace(source, id=None, label=None)
    chosen = feature_columns(names, beside, labelled=y is not None)
    if list(chosen) != list(names):
        place = {name: position for position, name in enumerate(names)}
        x = x[:, [place[name] for name in chosen]]
    categorical: dict[str, Category] = {}
    listed_here = [name for name in chosen if name in source.categorical]
    if issparse(x):
        if listed_here:
            raise TableError(
                f"{source.where}: column {listed_here[0]!r} is listed as categorical but the "
                "matrix is sparse; store its one-hot columns, or remove it from categorical."
            )
        x = _csr(x)
        if not np.isfinite(x.data).all():
            at = int(np.flatnonzero(~np.isfinite(x.data))[0])
            row = int(np.searchsorted(x.indptr, at, side="right"))
            raise TableError(
                f"{source.where}: feature {chosen[x.indices[at]]!r} is {x.data[at]} in row {row}; "
                "a sparse matrix needs finite numbers: replace it, or leave the entry out (zero)."
            )
    else:
        x = _dense(x, chosen, source)
        for name in listed_here:
            own = pa.chunked_array([pa.array(x[:, chosen.index(name)], from_pandas=True)])
            read = feature_values(own, name, source)
            if isinstance(read, Category):
                categorical[name] = read
        if categorical:
            x = x[:, [at for at, name in enumerate(chosen) if name not in categorical]]
    return Table(
        source.name,
        generated_ids(rows, source) if samples is None else sample_ids(_chunked(samples), source),
        chosen,
        x,
        categorical,
        None if y is None else label_column(_chunked(y), source),
        feature_groups(chosen, source),
        generated=samples is None,
    )


def _chunked(values: NDArray[Any]) -> pa.ChunkedArray:
    if values.dtype.kind == "S":
        values = np.char.decode(values, "utf-8", "replace")
    return column_of(values.tolist()) if values.dtype.kind in "OU" else column_of(values)


def _csr(x: Any) -> csr_array:
    """Return a sparse matrix as CSR, with column numbers of 32 bits where they fit.

    So the kernels read them: 12 bytes an entry, where 64 bits would take 16.
    """
    rows = csr_array(x, dtype=np.float64)
    if not rows.has_canonical_format:
        rows = rows.copy()  # the caller's table stays as it is
        rows.sum_duplicates()
    if max(rows.nnz, *rows.shape) > np.iinfo(np.int32).max:
        return rows
    indices, indptr = (one.astype(np.int32, copy=False) for one in (rows.indices, rows.indptr))
    return csr_array((rows.data, indices, indptr), shape=rows.shape)


def _dense(x: Any, names: Sequence[str], source: Source) -> Array:
    try:
        values = np.asarray(x, np.float64)
    except (TypeError, ValueError):
        for row, line in enumerate(np.asarray(x, object)):
            for name, value in zip(names, line, strict=True):
                if not isinstance(value, int | float | np.number) and value is not None:
                    raise TableError(
                        f"{source.where}: x has {value!r} at column {name!r}, row {row + 1}; a "
                        "matrix needs numbers: pass a DataFrame for a table with text."
                    ) from None
        raise TableError(
            f"{source.where}: x has the type {np.asarray(x).dtype}, which is not a number; "
            "convert it to float64."
        ) from None
    sentinels = [v for v in map(number, source.missing) if v is not None]
    if sentinels:
        values = np.where(np.isin(values, sentinels), np.nan, values)
    if np.isinf(values).any():
        row, column = np.argwhere(np.isinf(values))[0]
        raise infinite_value(values[row, column], int(row), names[column], source)
    return values
