"""Read delimited text (CSV, TSV) as columns.

The separator is the one that the source states, else "," (tab where the name ends in .tsv), if it
gives the header and the line after it as many values, at least two. If not, it is the one of ; tab
| and , that does, or else the one that gives the most names.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as arrow
import pyarrow.csv as arrow_csv

from intarsia.core.side_by_side import cores
from intarsia.data.formats.pieces import PIECE, Opened, gathered, parts_of, stored
from intarsia.data.source import Source
from intarsia.errors import first_line, several

MARKS = ";\t|,"  # what separates values where the usual separator does not
_WORKBOOKS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")  # how files of Excel, or zip archives, begin
_OTHERS = {  # how files of other kinds begin, and what to do with them
    b"%PDF": ("a PDF file", "save the table as CSV (UTF-8)"),
    b"PAR1": ("a Parquet file", 'rename it to .parquet, or state format = "parquet"'),
    b"ARROW1": ("an Arrow file", "save the table as Parquet or CSV"),
    b"SQLite": ("a database of SQLite", "set url and query instead of path"),
    b"BZh": ("a bzip2 archive", "unpack it, or compress the file with gzip"),
    b"\xfd7zXZ": ("an xz archive", "unpack it, or compress the file with gzip"),
    b"\x28\xb5\x2f\xfd": ("a zstd archive", "unpack it, or compress the file with gzip"),
}
_MARKUP = re.compile(rb"\s*(?:(<!doctype|<html|<\?xml|<table)|\[\s*[\[{]|\{\s*\")", re.IGNORECASE)
_SEPARATOR_LINE = re.compile(rb"\A(?:\xef\xbb\xbf)?sep=[^\r\n](?=[\r\n])")  # Excel's own
_TURN = threading.Lock()  # to look how many threads there are
_WRONG = re.compile(r"In CSV column #(\d+): .*conversion error")  # as Arrow says it
_SETTLED = (pa.int64(), pa.float64(), pa.string())  # types that the first piece mostly tells
_UTF_8 = ("utf-8", "ascii")  # encodings whose bytes are those of UTF-8, as Python calls them
_LARGE = 2.0**63  # whole numbers from here on are no integers of Arrow


def delimited_text(
    opened: Opened, source: Source, folder: Path | None = None, *, as_text: bool = False
) -> pa.Table:
    """Return the columns of a CSV file; ids, labels and listed categories stay text, or all do.

    Blanks around a name do not count. Arrow reads what `opened` opens some at a time: a file as a
    whole in memory would cost as much as reading it does. With a folder, what it read lies on its
    disk.
    """
    _take_threads_that_there_are()
    opened, quoted, hexadecimal = _utf_8(opened, source, folder)
    header, separator = _header(opened, source)
    named = {name for name in (source.id, source.label, *source.categorical) if name}
    named = {name.strip() for name in header} if as_text else named
    # what a number or a text stands for, a column's role says
    missing = {*source.missing_words, "", "NaN", "nan", "null", "NULL"}
    reader = _Reader(
        # several threads take a third more of the processor: files are read side by side
        arrow_csv.ReadOptions(use_threads=False, block_size=PIECE),
        arrow_csv.ParseOptions(delimiter=separator, newlines_in_values=quoted),
        partial(
            arrow_csv.ConvertOptions,
            null_values=sorted(missing),
            strings_can_be_null=False,
            decimal_point=source.decimal,
        ),
        folder,
    )

    def read(texts: set[str]) -> pa.Table:
        return reader.table(opened, [name for name in header if name.strip() in texts])

    try:
        found = read(named)
        # which digits they have, only the text says
        if unclear := _unclear(found, hexadecimal=hexadecimal):
            found = read(named | unclear)
    except pa.ArrowInvalid as error:
        _check_quotes(opened, separator, source)
        values = several(len(header), "value")
        advice = f"give every line {values}, and put a value with a separator in quotes"
        if len(header) == 1:
            advice = f"if {header[0][:40]!r} is no header, remove this line; else {advice}"
        other = "" if source.separator else f", or set separator if it is not {separator!r}"
        raise source.error(
            _ragged(opened, separator, len(header)) or first_line(error), advice + other, advice
        ) from error
    if quoted and any(map(_of_several_lines, found.columns)):
        _check_quotes(opened, separator, source)
    return found.rename_columns([name.strip() for name in found.column_names])


@cache
def _take_threads_that_there_are() -> None:
    """Let Arrow read files in as many threads as the system gives this process.

    It ends the process where it is refused one.

    Raises
    ------
    RuntimeError
        If there is none, as Python says it.
    """
    limit, others, done = pa.io_thread_count(), cores(), threading.Event()
    begun: list[threading.Thread] = []
    with _TURN:
        try:
            for _ in range(limit + others):
                one = threading.Thread(target=done.wait, daemon=True)
                one.start()
                begun.append(one)
        except RuntimeError:
            if len(begun) <= others:
                raise
            pa.set_io_thread_count(len(begun) - others)
        finally:
            done.set()
            for one in begun:
                one.join()


@dataclass(frozen=True)
class _Reader:
    """What reads a file with a table: as a whole if it is small, else some rows at a time."""

    read_options: arrow_csv.ReadOptions
    parse_options: arrow_csv.ParseOptions
    convert: Callable[..., arrow_csv.ConvertOptions]
    folder: Path | None

    def table(self, opened: Opened, texts: Sequence[str]) -> pa.Table:
        """Return a file's columns, some of them as text, the others of the type of all values.

        Of columns whose type it has to find out, Arrow keeps all that it read until the end. So the
        first piece tells the types that it mostly tells.
        """
        text = dict.fromkeys(texts, pa.string())
        kinds = self._kinds_at_first(opened)
        if len(kinds) > 0 and self.folder is not None:
            return self._in_pieces(opened, kinds, text)
        settled = {name: kind for name, kind in kinds.items() if kind in _SETTLED}
        if settled:
            with suppress(pa.ArrowInvalid):  # further down a column has another type
                return self._whole(opened, {**settled, **text})
        return self._whole(opened, text)

    def _in_pieces(
        self, opened: Opened, kinds: Mapping[str, pa.DataType], text: Mapping[str, pa.DataType]
    ) -> pa.Table:
        """Return a file's columns, on disk, by the types of the first piece where they hold.

        A column that has no value there is read as text, which tells its type, and the file again.
        So are the columns of a type of which one has another value further down: to try each would
        take as many times.
        """
        unclear = {name for name, kind in kinds.items() if pa.types.is_null(kind)} - {*text}
        clear: set[str] = set()
        while not unclear & clear:
            try:
                types = {**kinds, **dict.fromkeys(unclear, pa.string()), **text}
                with self._opened(opened(), types) as batches:
                    found = gathered(batches.schema, batches, self.folder)
            except pa.ArrowInvalid as error:
                wrong = _WRONG.search(str(error))
                if wrong is None or (name := list(kinds)[int(wrong[1])]) in unclear:
                    raise
                alike = {one for one in kinds if kinds[one] == kinds[name]}
                unclear |= {name} | alike - clear - {*text}
                continue
            told = {name: self._kind_of(found.column(name)) for name in unclear}
            if all(pa.types.is_string(kind) for kind in told.values()):
                return found
            kinds, clear, unclear = {**kinds, **told}, clear | unclear, set()
        return self._whole(opened, text)

    def _kinds_at_first(self, opened: Opened) -> dict[str, pa.DataType]:
        """Return the columns' types in the first piece; none of a small file, or a name twice."""
        with opened() as file:
            if file.size() <= PIECE:
                return {}
            # what is behind the first piece is read ahead, and not looked at
            some = pa.BufferReader(file.read_buffer(2 * PIECE))
        with self._opened(some, {}) as beginning:
            schema = beginning.schema
        twice = len(set(schema.names)) < len(schema.names)
        return {} if twice else dict(zip(schema.names, schema.types, strict=True))

    def _kind_of(self, texts: pa.ChunkedArray) -> pa.DataType:
        """Return the type of a column that was read as text."""
        sink = pa.BufferOutputStream()
        arrow_csv.write_csv(pa.Table.from_arrays([texts.unique()], ["texts"]), sink)
        options = arrow_csv.ParseOptions(newlines_in_values=True)
        own = replace(self, parse_options=options)
        return own._whole(partial(pa.BufferReader, sink.getvalue()), {}).schema.types[0]

    def _whole(self, opened: Opened, types: Mapping[str, pa.DataType]) -> pa.Table:
        return arrow_csv.read_csv(
            opened(), self.read_options, self.parse_options, self.convert(column_types=types)
        )

    def _opened(self, file: Any, types: Mapping[str, pa.DataType]) -> arrow_csv.CSVStreamingReader:
        options = self.convert(column_types=types)
        return arrow_csv.open_csv(file, self.read_options, self.parse_options, options)


def _of_several_lines(column: pa.ChunkedArray) -> bool:
    """Return whether a text has several lines, as one has whose quote is not closed."""
    if not pa.types.is_string(column.type):
        return False
    letters = (np.frombuffer(one.buffers()[2] or b"", np.uint8) for one in column.chunks)
    # the least letter is found in a twentieth of the time, and few texts have one so low
    return any(own.min(initial=255) < 14 and re.search(rb"[\r\n]", own.data) for own in letters)


def _check_quotes(opened: Opened, separator: str, source: Source) -> None:
    """Raise where a quote begins that is not closed: rows until the next one would be one text."""
    rows = _rows(opened, separator, strict=True)
    while True:
        first = rows.line_num + 1
        try:
            if next(rows, None) is None:
                return
        except csv.Error as error:
            odd = sum(some.count(b'"') for some in parts_of(opened)) % 2 == 1
            if "field larger" in str(error) and not odd:  # a long text, it seems
                return
            at_end = "unexpected end" in str(error)
            if rows.line_num > first or at_end:  # within a line it is read as it stands
                # a text is open where the line of the error begins, or at the end of the file
                some = islice(_lines(opened), first - 1, rows.line_num - (not at_end))
                raise source.error(
                    f'the quote (") that begins in line {_last_opening(some, first)} is not closed',
                    "close it where its text ends, or write it twice where it belongs to the text",
                ) from None


def _last_opening(lines: Iterable[str], first: int) -> int:
    """Return in which line, from `first` on, the last quote is that begins a text."""
    found, inside = first, False
    for at, line in enumerate(lines, first):
        for _ in range(line.replace('""', "").count('"')):
            inside = not inside
            found = at if inside else found
    return found


def _unclear(found: pa.Table, *, hexadecimal: bool) -> set[str]:
    """Return the columns that have numbers beyond 64-bit whole numbers, by name without blanks.

    And those of times of day, which Arrow has no text of: a few, as of shifts, are a category. With
    `hexadecimal` also those of whole numbers: Arrow takes codes such as 0x1F for such.
    """
    names: set[str] = set()
    for name, column in zip(found.column_names, found.columns, strict=True):
        if hexadecimal and pa.types.is_integer(column.type):
            names.add(name.strip())
        if pa.types.is_time(column.type):
            names.add(name.strip())
        if pa.types.is_floating(column.type):
            span = arrow.min_max(column).as_py()
            if max(abs(span["min"] or 0.0), abs(span["max"] or 0.0)) >= _LARGE:
                names.add(name.strip())
    return names


def _utf_8(opened: Opened, source: Source, folder: Path | None) -> tuple[Opened, bool, bool]:
    """Return what opens a file's text as UTF-8, whether it has quotes, and whether 0x.

    The line in which Excel names a separator is left out.
    """
    with opened() as file:
        first = file.read(PIECE)
    _check_kind(first, source)
    if first[:4] in _WORKBOOKS:
        raise source.error(
            "this is a workbook or a zip archive, and no text",
            "save the sheet as CSV (UTF-8), or unpack the archive",
        )
    if first[:2] in (b"\xff\xfe", b"\xfe\xff") and source.encoding is None:
        wide = first[:4] == b"\xff\xfe\0\0"
        raise source.error(
            f"the file starts with {first[: 4 if wide else 2]!r}, which is "
            f"UTF-{32 if wide else 16}",
            f'set encoding = "utf-{32 if wide else 16}", or save it as UTF-8',
            "save it as UTF-8",
        )
    plain, quoted, hexadecimal = _looked_through(opened)
    alike = source.encoding is None or codecs.lookup(source.encoding).name in _UTF_8
    if alike and not _SEPARATOR_LINE.match(first):
        if not plain:
            for _ in _decoded(opened, source):
                pass
        return opened, quoted, hexadecimal
    opened = stored(_decoded(opened, source), folder)
    return opened, *_looked_through(opened)[1:]


def _looked_through(opened: Opened) -> tuple[bool, bool, bool]:
    """Return whether a file is all ASCII, without a NUL, whether it has quotes, and whether 0x."""
    plain, quoted, hexadecimal, some = True, False, False, np.zeros(PIECE + 1, np.uint8)
    with opened() as file:
        while size := file.readinto(some[1:]):
            own = some[1 : size + 1]
            plain = plain and bool(own.min() > 0 and own.max() < 128)
            quoted = quoted or bool((own == ord('"')).any())
            if not hexadecimal:
                text = some[: size + 1].tobytes()  # with the last letter of the piece before
                hexadecimal = any(one in text and b"0" + one in text for one in (b"x", b"X"))
            some[0] = own[-1]
    return plain, quoted, hexadecimal


def _decoded(opened: Opened, source: Source) -> Iterator[bytes]:
    """Yield a file's text as UTF-8, some at a time, without the line that names a separator."""
    named = "UTF-8" if source.encoding is None else source.encoding
    decoder, lines, place = codecs.getincrementaldecoder(named)(), 1, 0
    for some in chain(parts_of(opened), [b""]):
        try:
            text = decoder.decode(some, final=not some)
        except UnicodeError as error:
            content = error.object if isinstance(error, UnicodeDecodeError) else some
            start = error.start if isinstance(error, UnicodeDecodeError) else 0
            line = lines + content.count(b"\n", 0, start)
            around = content[max(0, start - 5) : start + 5]
            raise source.error(
                f"line {line} has the bytes {around!r}, which are not {named}",
                'set encoding to what it is, such as "cp1252", or save the file as UTF-8',
                "save the file as UTF-8",
            ) from None
        if (at := text.find("\0")) >= 0:
            line = lines + text.count("\n", 0, at)
            raise source.error(
                f"line {line} has a NUL character ({text[max(0, at - 11) : at + 1]!r}), which is "
                "not text",
                "set format or encoding to what it is, or save it as UTF-8 text",
                "save it as UTF-8 text",
            )
        lines += text.count("\n")
        own = text.encode()
        yield own if place else _SEPARATOR_LINE.sub(b"", own)
        place += len(own)


def _check_kind(content: bytes, source: Source) -> None:
    """Raise if a file is plainly of another kind than text with a separator."""
    for start, (what, advice) in _OTHERS.items():
        if content.startswith(start):
            own = "rename it to .parquet" if start == b"PAR1" else "save it as CSV (UTF-8)"
            raise source.error(f"this is {what}, and no text", advice, own)
    found = _MARKUP.match(content.removeprefix(b"\xef\xbb\xbf"))
    if found:
        raise source.error(
            f"the file starts with {content[:20]!r}, as {'HTML or XML' if found[1] else 'JSON'} "
            "does",
            "save the table as CSV (UTF-8)",
        )


def header_of(rows: Callable[[str], Iterator[list[str]]], source: Source) -> tuple[list[str], str]:
    """Return the names in the first line of a file, and what separates them.

    `rows` reads the file with a separator.
    """
    tabs = (source.path or "").lower().removesuffix(".gz").endswith(".tsv")
    separator = source.separator or _dividing(rows, "\t" if tabs else ",")
    return next(_written(rows(separator), separator), []), separator


def _written(rows: Iterator[list[str]], separator: str) -> Iterator[list[str]]:
    """Yield the rows that are not empty, but not the line in which Excel names a separator."""
    for place, row in enumerate(filter(None, rows)):
        if place or not re.fullmatch("sep=.", separator.join(row)):
            yield row


def _dividing(rows: Callable[[str], Iterator[list[str]]], usual: str) -> str:
    """Return what divides the header: of the usual separator and the other marks."""

    def rank(mark: str) -> tuple[bool, bool, int]:
        names, alike = _division(_written(rows(mark), mark))
        return alike, alike and mark == usual, names

    marks: list[str] = [usual, *MARKS]
    return max(marks, key=rank)  # the first of equal ones


def _division(rows: Iterator[list[str]]) -> tuple[int, bool]:
    """Return the number of names, and whether they are several and the next line has as many."""
    names = 0
    try:
        names = len(next(rows, []))
        return names, 1 < names == len(next(rows, []))
    except csv.Error:  # a whole line may be too long for one value, which it is for a wrong mark
        return names, False


def _lines(opened: Opened) -> io.TextIOWrapper:
    return io.TextIOWrapper(opened(), "utf-8-sig")


def _rows(
    opened: Opened, separator: str, *, strict: bool = False
) -> Any:  # csv.reader has no public type
    return csv.reader(_lines(opened), delimiter=separator, strict=strict)


def _header(opened: Opened, source: Source) -> tuple[list[str], str]:
    try:
        header, separator = header_of(lambda mark: _rows(opened, mark), source)
    except csv.Error as error:
        raise source.error(
            f"the header line cannot be read ({error})", "check quotes and separator"
        ) from None
    if not header:
        raise source.error("the file has 0 column names", "write them in the first line")
    if len(header) == 1 and source.separator:
        other = _dividing(lambda mark: _rows(opened, mark), separator)
        if other != separator:
            raise source.error(
                f"the header {header[0][:60]!r} has no {separator!r} but {other!r}",
                f"set separator to {other!r}, leave it out, or put a name with {other!r} in quotes",
            )
    if all(_measured(name) for name in header):
        raise source.error(
            f"the first line ({', '.join(header)[:60]!r}) has numbers only",
            "the first line must have the names of the columns: add it",
        )
    return header, separator


def _measured(name: str) -> bool:
    """Return whether a name is a number with a decimal point, which no column is called."""
    try:
        float(name)
    except ValueError:
        return False
    return True


def _ragged(opened: Opened, separator: str, width: int) -> str | None:
    """Return where a CSV file has a line with another number of values."""
    rows = _rows(opened, separator)
    try:
        for row in rows:
            if row and len(row) != width:
                return (
                    f"line {rows.line_num} has {several(len(row), 'value')} "
                    f"({separator.join(row)[:40]!r}) but the header has {width}"
                )
    except csv.Error as error:
        return f"line {rows.line_num} cannot be read ({error})"
    return None
