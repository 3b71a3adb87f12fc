"""Tables that are read some rows at a time, in memory or on disk, are those read as a whole."""

from __future__ import annotations

import errno
import gzip
import sqlite3
import tempfile
import tracemalloc
from contextlib import closing
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.testing import assert_array_equal
from pyarrow import csv as arrow_csv

from intarsia.data import reader
from intarsia.data.column import column_of
from intarsia.data.formats import csv, pieces
from intarsia.data.formats.pieces import gathered, stored
from intarsia.data.reader import columns_of, read
from intarsia.data.source import Source
from intarsia.errors import ExperimentError, TableError

FIRST = [f"{row}" for row in range(400)]  # of which the first piece has some
PIECE = 512


def columns(source: Source, folder: Path | None = None) -> pa.Table:
    found = columns_of(source, folder)
    assert isinstance(found, pa.Table)
    return found


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (csv, pieces, reader):
        monkeypatch.setattr(module, "PIECE", PIECE)


@pytest.fixture(params=["in memory", "on disk"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    kept = tmp_path / "kept"
    kept.mkdir()
    return kept if request.param == "on disk" else None


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize(
    "column",
    [
        FIRST,
        [*FIRST, "1.5"],
        ["", *[""] * 400, "7"],  # the first piece has no value
        ["", *[""] * 400, "2020-01-31"],
        ["", *[""] * 400, "east"],
        [""] * 401,
        ["0", *["1"] * 400, "true"],
        ["true", *["false"] * 400, "perhaps"],
        ["2020-01-31", *["2021-01-31"] * 400, "2021-01-31 10:00:00"],
        ["2020-01-31 10:00:00", *["2021-01-31 10:00:00"] * 400, "2021-01-31 10:00:00.25"],
        ["2020-01-31", *["2021-01-31"] * 400, "31.1.2021"],
        [*FIRST, "five"],
        ["0.5", *FIRST, "five"],
        [*FIRST, ' "quoted", and with a comma'.replace('"', '""')],
        [*FIRST, "9007199254740993", "18446744073709551615"],
        [*FIRST, "36893488147419103233"],
        ["10:00", *["11:30"] * 400, "12:00:01"],
    ],
)
def test_a_column_has_the_type_that_arrow_finds_in_all_of_it(
    tmp_path: Path, folder: Path | None, column: list[str]
) -> None:
    rows = [
        f'{at},"{text}",x' if "," in text else f"{at},{text},x" for at, text in enumerate(column)
    ]
    content = "id,c,d\n" + "\n".join(rows) + "\n"
    (tmp_path / "t.csv").write_text(content)
    assert len(content) > 3 * PIECE
    found = columns(Source(name="a", path=str(tmp_path / "t.csv")), folder)
    options = arrow_csv.ConvertOptions(
        null_values=["?", "", "NaN", "nan", "null", "NULL"], strings_can_be_null=False
    )
    whole = arrow_csv.read_csv(BytesIO(content.encode()), convert_options=options)
    inexact = pa.types.is_floating(whole["c"].type) and max(map(len, column)) > 19
    if inexact or pa.types.is_time(whole["c"].type):  # which digits it has, only the text says
        assert found["c"].to_pylist() == column
    else:
        assert found["c"].type == whole["c"].type
        assert found["c"].to_pylist() == whole["c"].to_pylist()
    assert found["d"].to_pylist() == ["x"] * len(column)
    assert not folder or not list(folder.iterdir())


@pytest.mark.usefixtures("_small")
def test_many_columns_of_other_values_further_down_take_a_few_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    width, begun = 60, []
    usual = arrow_csv.open_csv
    monkeypatch.setattr(arrow_csv, "open_csv", lambda *given: begun.append(0) or usual(*given))
    monkeypatch.setattr(csv, "PIECE", 2**13)
    rows = [[row + at for at in range(width)] for row in range(400)]
    rows += [
        [row + 0.5 if row - 400 >= at else row for at in range(width)] for row in range(400, 470)
    ]
    rows += [["a" if at == 7 else at for at in range(width)]]
    names = [f"x{at}" for at in range(width)]
    lines = [names, *rows]
    (tmp_path / "t.csv").write_text("".join(",".join(map(str, one)) + "\n" for one in lines))
    found = columns(Source(name="a", path=str(tmp_path / "t.csv")), tmp_path)
    whole = arrow_csv.read_csv(tmp_path / "t.csv")
    assert found.schema == whole.schema
    assert found.to_pydict() == whole.to_pydict()
    assert len(begun) <= 4  # the first piece, as numbers, as text, and as what that tells


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-8-sig", "cp1252", "utf-32"])
@pytest.mark.parametrize("packed", [False, True])
def test_letters_at_the_end_of_a_piece_are_whole(
    tmp_path: Path, folder: Path | None, encoding: str, packed: bool
) -> None:
    names = [f"Zürich{'ß' * (row % 7)}" for row in range(300)]
    text = "id,town\n" + "".join(f"{row},{name}\n" for row, name in enumerate(names))
    content, path = text.encode(encoding), tmp_path / ("t.csv" + ".gz" * packed)
    path.write_bytes(gzip.compress(content) if packed else content)
    source = Source(
        name="a", path=str(path), encoding=None if encoding == "utf-8" else encoding, id="id",
        categorical=("town",),
    )  # fmt: skip
    own = read(source, folder).categorical["town"]
    assert [own.levels[code] for code in own.codes] == names
    path.write_bytes(gzip.compress(content[:-1]) if packed else content[:-1] + b"\n\xff\0")
    if encoding == "utf-8" and not packed:
        with pytest.raises(TableError, match=r"line 302 has the bytes .*, which are not UTF-8"):
            read(source, folder)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_rows_behind_a_quote_that_is_not_closed_are_not_lost(
    tmp_path: Path, folder: Path | None, end: str
) -> None:
    """With the line ends of old Macs all rows but three were lost, without a word."""
    rows = [f"{row},x" for row in range(300)]
    rows[3] = '3,"x'
    (tmp_path / "t.csv").write_text(end.join(["id,c", *rows, ""]), newline="")
    with pytest.raises(TableError, match="that begins in line 5 is not closed"):
        columns_of(Source(name="a", path=str(tmp_path / "t.csv")), folder)


@pytest.mark.usefixtures("_small")
def test_entries_of_libsvm_are_those_of_all_pieces(tmp_path: Path, folder: Path | None) -> None:
    rng = np.random.default_rng(0)
    dense = np.where(rng.random((200, 30)) < 0.3, rng.normal(size=(200, 30)).round(3), 0.0)
    dense[:, 29] = 1.0
    y = rng.integers(0, 2, 200)
    lines = [
        f"{y[row]} " + " ".join(f"{at + 1}:{dense[row, at]!r}" for at in dense[row].nonzero()[0])
        for row in range(200)
    ]
    lines = [line.replace("np.float64(", "").replace(")", "") for line in lines]
    path = tmp_path / "t.svm"
    path.write_text("# who wrote it\n" + "\n".join(lines))
    found = read(Source(name="a", path=str(path)), folder)
    assert_array_equal(found.values.toarray(), dense)
    assert found.labels is not None
    assert (found.columns[0], found.columns[-1]) == ("1", "30")
    path.write_text("\n\n".join([*lines, "1 3:0.5 2:0.5"]))  # pieces end in an empty line, too
    with pytest.raises(TableError, match=r"line 401 .*the index 2 follows 3"):
        read(Source(name="a", path=str(path)), folder)


@pytest.mark.parametrize("sizes", [(1,), (2, 3), (1, 1, 4)])
@pytest.mark.parametrize(
    "values",
    [
        [1, 2, 3, 4, 5, 6, 7],
        [1, 2, 3, 4, 2.5, 6, None],
        [None, None, None, 4, 5, 6, 7],
        [None, None, None, "a", "b", None, "c"],
        [1, 2, 3, "a", 2.5, None, 7],
        [0.5, 2.5, 3, "a", 2.5, None, 7],
        [0.5, 2**60 + 1, 3, 4, 5, 6, 7],
        [None] * 7,
        ["a", "b", "c", "d", 5, 6.5, None],
        [*map(Decimal, ("1.5", "22.75", "3", "0", "1000000.125", "-6.5")), None],
        [b"a", b"b", None, b"c", b"d", b"e", b"f"],
        ["a", None, "b", "c", b"d", "e", b"f"],
        [1, None, 2, "a", 3.5, b"b", 4],
    ],
)
def test_rows_of_a_query_have_the_type_of_all_of_them(
    folder: Path | None, values: list[Any], sizes: tuple[int, ...]
) -> None:
    from intarsia.data.formats import sql

    begun = []

    class Cursor:
        description = (("id", None), ("c", None))

        def __init__(self) -> None:
            begun.append(self)
            self.rows = list(enumerate(values))
            self.sizes = [*sizes, *[2] * 7]

        def __enter__(self) -> Cursor:
            return self

        def __exit__(self, *_: object) -> None:
            self.rows = []

        def fetchmany(self, _: int) -> list[Any]:
            size = self.sizes.pop(0)
            some, self.rows = self.rows[:size], self.rows[size:]
            return some

    found = sql._table(Cursor, folder)
    whole = column_of(values)
    assert found["c"].type == whole.type
    assert found["c"].to_pylist() == whole.to_pylist()
    assert found["id"].to_pylist() == list(range(7))
    assert len(begun) <= 3


def test_bytes_beside_other_values_are_no_text(folder: Path | None, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "bank.sqlite")) as bank, bank:
        bank.execute("create table t (customer, x)")
        bank.executemany("insert into t values (?, ?)", [(1001, 0.5), (b"1002", 1.5)])
    url = f"sqlite:///{tmp_path / 'bank.sqlite'}"
    source = Source(name="bank", url=url, query="select * from t", id="customer")
    with pytest.raises(TableError, match=r"'customer' has bytes .*; save the column as text"):
        read(source, folder)


def test_a_large_query_is_never_in_memory_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from intarsia.data.formats import sql

    monkeypatch.setattr(sql, "_BATCH", 2**12)
    rows, width = 20_000, 16
    names = [f"x{at}" for at in range(width)]
    with closing(sqlite3.connect(tmp_path / "bank.sqlite")) as bank, bank:
        bank.execute(f"create table t ({', '.join(names)})")
        bank.executemany(
            f"insert into t values ({', '.join('?' * width)})",
            ([row + 0.5] * width for row in range(rows)),
        )
    url = f"sqlite:///{tmp_path / 'bank.sqlite'}"
    columns(Source(name="bank", url=url, query="select * from t limit 9"))  # imports
    tracemalloc.start()
    try:
        found = columns(Source(name="bank", url=url, query="select * from t"), tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found["x15"].to_pylist() == [row + 0.5 for row in range(rows)]
    assert peak < rows * width * 8 / 4  # as rows of Python's it takes ten times that


class _Full(BytesIO):
    """A file on a disk that has no room."""

    def write(self, _: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: _Full())
    sentence = r"cannot be kept in .* \(No space left on device\); free disk space there"
    with pytest.raises(ExperimentError, match=sentence):
        stored([b"a"], tmp_path)
    rows = pa.record_batch({"a": [1.5] * 10_000})
    with pytest.raises(ExperimentError, match=sentence):
        gathered(rows.schema, [rows] * 3, tmp_path)
    monkeypatch.undo()
    with pytest.raises(ExperimentError, match=r"\(No such file or directory\)"):
        stored([b"a"], tmp_path / "gone")


def test_what_was_kept_stays_when_its_folder_is_emptied(tmp_path: Path) -> None:
    rows = pa.record_batch({"a": np.arange(1000.0), "b": [f"t{row}" for row in range(1000)]})
    kept, opened = gathered(rows.schema, [rows] * 5, tmp_path), stored([b"ab", b"c"], tmp_path)
    assert not list(tmp_path.iterdir())
    assert kept.to_pydict() == pa.Table.from_batches([rows] * 5).to_pydict()
    assert [opened().read(), opened().read()] == [b"abc", b"abc"]
    empty = gathered(rows.schema, [], tmp_path)
    assert (empty.num_rows, empty.schema) == (0, rows.schema)
    assert stored([], tmp_path)().read() == b""
