"""Tables from files, databases, frames and arrays become the blocks that a hand would make."""

from __future__ import annotations

import ctypes
import gzip
import hashlib
import re
import sqlite3
import subprocess
import sys
import threading
import tomllib
import tracemalloc
import uuid
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from scipy.sparse import csr_array, random_array, save_npz
from sklearn.datasets import dump_svmlight_file, load_svmlight_file

from intarsia.cli.main import main
from intarsia.core.block import Block, Labels
from intarsia.core.schema import Schema
from intarsia.data import column_roles, reader
from intarsia.data import table as tables
from intarsia.data.encoding import assemble, encode, encoding_of
from intarsia.data.formats import csv
from intarsia.data.formats.libsvm import parse_libsvm
from intarsia.data.formats.pieces import stored
from intarsia.data.labels import LabelSettings, notes_on_label_maps, notes_on_marked
from intarsia.data.reader import located, read, table_from
from intarsia.data.source import Source
from intarsia.data.table import Hashes, Table, split
from intarsia.errors import FederationError, TableError
from intarsia.privacy.entity_matching.pseudonyms import pseudonyms
from stopped_query import check_stopped

HOSPITALS = Path(__file__).parents[2] / "examples" / "data" / "heart"
NAN = np.nan
CSV = "id,age,sex,y\n1,20,F,no\n2,?,M,yes\n3,40,,no\n4,50,M,\n"
X = [[20, 1, 0], [NAN, 0, 1], [40, NAN, NAN], [50, 0, 1]]


def csv_table(folder: Path, content: str, client: str = "bank", **settings: Any) -> Table:
    path = folder / f"{client}.csv"
    path.write_text(content)
    # so few rows that every level is one of few
    return read(Source(name=client, path=str(path), **{"least_rows": 1, **settings}))


@pytest.mark.parametrize(
    "ids", [["P7", "P10", "P123"], ["P7", "é", "日本"], ["x" * 200, "y", "z 1"]], ids=len
)
def test_ids_of_any_letters_and_lengths_are_read_as_they_are(
    tmp_path: Path, ids: list[str]
) -> None:
    content = "id,x\n" + "".join(f"{one},1\n" for one in ids)
    found = csv_table(tmp_path, content, id="id").samples
    assert found.tolist() == ids
    assert found.dtype == np.array(ids).dtype


def test_the_same_file_is_read_with_quotes_and_without(tmp_path: Path) -> None:
    plain = csv_table(tmp_path, "id,c,x\n1,a,2\n2,b,3\n", id="id")
    quoted = csv_table(tmp_path, 'id,c,x\n1,"a",2\n2,"b",3\n', id="id")
    broken = csv_table(tmp_path, 'id,c,x\n1,"a\na",2\n2,"b",3\n', id="id")
    assert plain.categorical["c"].levels == quoted.categorical["c"].levels == ("a", "b")
    assert broken.categorical["c"].levels == ("a\na", "b")
    assert_array_equal(plain.values, broken.values)


def only(table: Table, settings: LabelSettings | None = None) -> tuple[Block, Labels]:
    blocks, labels = assemble({table.client: table}, settings)
    return blocks[table.client], labels


def check_people(table: Table) -> None:
    block, labels = only(table)
    assert labels == Labels("binary", ("no", "yes"), "y")
    assert block.features == ("age", "sex=F", "sex=M")
    assert_array_equal(block.samples, [1, 2, 3, 4])
    assert_array_equal(block.x, X)
    assert_array_equal(block.y, [-1, 1, -1, NAN])


def test_a_csv_file_becomes_the_block_that_a_hand_would_make(tmp_path: Path) -> None:
    check_people(csv_table(tmp_path, CSV, id="id", label="y"))


def test_blanks_a_byte_order_mark_and_windows_lines_change_nothing(tmp_path: Path) -> None:
    content = "\ufeff" + CSV.replace("F", " F ").replace("?", " ? ").replace("\n", "\r\n")
    check_people(csv_table(tmp_path, content, id="id", label="y"))


def test_a_large_csv_file_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    path, rows, width = tmp_path / "large.csv", 80_000, 16
    lines = [",".join(f"x{at}" for at in range(width))]
    lines += [",".join([f"{row}.00000000000000000000"] * width) for row in range(rows)]
    path.write_text("\n".join(lines) + "\n")
    size, columns = path.stat().st_size, rows * width * 8
    assert size > 3 * columns
    source, usual = Source(name="bank", path=str(path)), pa.default_memory_pool()
    pool = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        table = read(source)
        python = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(usual)
    assert (table.values == np.arange(rows)[:, None]).all()
    # the columns and what Arrow works on at once; the values, and columns on their way there
    assert pool.max_memory() < columns + 2e7 < size
    assert python < 2 * columns + 2e6 < size


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        ("5", "0.5", 0.5),
        ("0.5", "5", 5.0),
        ("", "7", 7.0),
        ("5", "", NAN),
        ("0.5", "90071992547409920", 2.0**53 * 10),  # beyond 2^53, and a float64 holds it
        ("true", "5", "column 'x' mixes numbers and text"),
        ("5", "36893488147419103233", r"36893488147419103233 in row 101, beyond the whole numbers"),
        ("5", "five", "column 'x' mixes numbers and text: 'five' in row 101"),
        ("red", "5", "column 'x' mixes numbers and text: '5' in row 101"),
    ],
)
def test_a_column_has_the_type_of_all_its_rows_and_not_of_the_first(
    tmp_path: Path, monkeypatch: Any, first: str, last: str, expected: Any
) -> None:
    monkeypatch.setattr(csv, "PIECE", 256)
    content = "id,x\n" + "".join(f"{row},{first}\n" for row in range(100)) + f"100,{last}\n"
    if isinstance(expected, str):
        with pytest.raises(TableError, match=expected):
            csv_table(tmp_path, content, id="id")
        return
    values = csv_table(tmp_path, content, id="id").values[:, 0]
    assert_array_equal(values, [float(first or "nan")] * 100 + [expected])


def test_what_is_far_behind_in_a_csv_file_counts(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(csv, "PIECE", 64)
    start = "id,c,x\n" + "".join(f"{row},plain,{row}\n" for row in range(100))
    table = csv_table(tmp_path, start + '100,"two\nlines",1\n', id="id", categorical=("c",))
    assert table.categorical["c"].levels == ("plain", "two\nlines")
    table = csv_table(tmp_path, start + "100,Zürich,1\n", id="id", categorical=("c",))
    assert table.categorical["c"].levels == ("Zürich", "plain")
    with pytest.raises(TableError, match="line 102 has a NUL character"):
        csv_table(tmp_path, start + "100,a\0,1\n")
    (tmp_path / "latin.csv").write_bytes(start.encode() + "100,Zürich,1\n".encode("cp1252"))
    with pytest.raises(TableError, match=r"line 102 has the bytes .*, which are not UTF-8"):
        read(Source(name="bank", path=str(tmp_path / "latin.csv")))


@pytest.mark.parametrize("change", ["grows", "is replaced", "goes", "is half written"])
def test_a_file_that_is_changed_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    path, other = tmp_path / "people.csv", tmp_path / "other.csv"
    text = "id,age\na,1\nb,2\n"
    path.write_text(text)
    other.write_text(text)
    make = reader.table_of_columns

    def changing(*given: Any) -> Table:
        if change == "grows":
            with path.open("a") as file:
                file.write("c,3\n")
        elif change == "is replaced":  # by one of the same size
            other.rename(path)
        elif change == "goes":
            path.unlink()
        else:
            path.write_text(text + "c")
            raise TableError("line 4 has 1 value, and the header 2")
        return make(*given)

    source = Source(name="bank", path=str(path), id="id")
    assert read(source).samples.tolist() == ["a", "b"]
    monkeypatch.setattr(reader, "table_of_columns", changing)
    with pytest.raises(TableError, match="the file was changed while it was read; read it when"):
        read(source)


def test_a_database_is_read_while_files_are_written_into_the_folder_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a job's process does whenever its log begins."""
    with closing(sqlite3.connect(tmp_path / "people.db")) as database:
        database.executescript("create table t (id text, age); insert into t values ('a', 1)")
    make = reader.table_of_columns

    def writing(*given: Any) -> Table:
        Path("log.txt").touch()
        return make(*given)

    (tmp_path / "job").mkdir()
    monkeypatch.chdir(tmp_path / "job")
    monkeypatch.setattr(reader, "table_of_columns", writing)
    url = f"sqlite:///{tmp_path / 'people.db'}"
    source = Source(name="bank", url=url, query="select * from t", id="id")
    assert read(source).samples.tolist() == ["a"]


def test_a_gzip_file_is_read_by_its_content(tmp_path: Path) -> None:
    for name in ("people.csv.gz", "people.csv"):
        path = tmp_path / name
        path.write_bytes(gzip.compress(CSV.encode()))
        check_people(read(Source(name="bank", path=str(path), id="id", label="y", least_rows=1)))


def test_tabs_and_a_named_separator_are_read(tmp_path: Path) -> None:
    path = tmp_path / "people.tsv"
    path.write_text(CSV.replace(",", "\t"))
    check_people(read(Source(name="bank", path=str(path), id="id", label="y", least_rows=1)))
    check_people(csv_table(tmp_path, CSV.replace(",", ";"), id="id", label="y", separator=";"))


@pytest.mark.parametrize("mark", ";\t|")
def test_a_separator_that_nobody_named_is_that_of_the_header(tmp_path: Path, mark: str) -> None:
    check_people(csv_table(tmp_path, CSV.replace(",", mark), id="id", label="y"))


@pytest.mark.parametrize(
    ("content", "separator", "features"),
    [
        ("id\tincome;net\tx\n1\t5\t2\n", None, ("id", "income;net", "x")),
        ('id\t"a;b;c;d"\tx\n1\t5\t2\n', None, ("id", "a;b;c;d", "x")),
        ("id\tk|p|c\tk|p|d\n1\t5\t2\n", None, ("id", "k|p|c", "k|p|d")),
        ("id,k|p|c,k|p|d\n1,5,2\n", None, ("id", "k|p|c", "k|p|d")),
        ("income,net;x;z\n1;5;2\n", None, ("income,net", "x", "z")),
        ("id,lat;lon;up\n1,5\n", None, ("id", "lat;lon;up")),
        ('"a;b"\n5\n', None, ("a;b",)),
        ('"a;b"\n5\n', ",", ("a;b",)),
        ('"a,b"\n5\n', ";", ("a,b",)),
    ],
)
def test_the_separator_is_what_divides_the_header_and_the_values_alike(
    tmp_path: Path, content: str, separator: str | None, features: tuple[str, ...]
) -> None:
    assert csv_table(tmp_path, content, separator=separator).columns == features


def test_a_header_may_be_longer_than_a_value_may_be(tmp_path: Path) -> None:
    names = tuple(f"column{number}" + 200 * "x" for number in range(700))  # 145 kB
    content = f"{','.join(names)}\n{','.join('1' for _ in names)}\n"
    assert csv_table(tmp_path, content).columns == names


def test_values_with_another_mark_are_levels_of_a_table_of_one_column(tmp_path: Path) -> None:
    for separator in (None, ","):
        found = csv_table(tmp_path, '"a;b"\np;q\nr;s\n', separator=separator, categorical=("a;b",))
        assert found.categorical["a;b"].levels == ("p;q", "r;s")


def test_a_line_that_the_separator_of_the_header_does_not_fit_names_separator(
    tmp_path: Path,
) -> None:
    ragged = "a;b\n5\n"
    with pytest.raises(TableError, match=r"in quotes, or set separator if it is not ';'\.$"):
        csv_table(tmp_path, ragged)
    with pytest.raises(TableError, match=r"put a value with a separator in quotes\.$"):
        csv_table(tmp_path, ragged, separator=";")
    assert csv_table(tmp_path, '"a;b"\n5\n').columns == ("a;b",)


@pytest.mark.parametrize(
    ("row", "others"),
    [  # each would make one text of several rows
        ('3,"n3,3', '"n{0}"'),  # up to the next quote, where the count of values is as it should be
        ('3,"n3,3', "n{0}"),  # up to the end
        ('3,n3,"3', "n{0}"),
        ('3,"n3","3', '"n{0}"'),
        ('3,"two\nlines","3', "n{0}"),  # a text of two lines before it is whole
    ],
)
def test_a_quote_that_is_not_closed_is_named_by_its_line(
    tmp_path: Path, row: str, others: str
) -> None:
    rows = [f"{one},{others.format(one)},{one}" for one in range(10)]
    whole = "\n".join(["id,name,x", *rows[:3], row, *rows[4:], ""])
    line = 6 if "two" in row else 5
    said = rf"quote \(\"\) that begins in line {line} is not closed; close it where its text ends"
    with pytest.raises(TableError, match=said):
        csv_table(tmp_path, whole, categorical=("name",), exclude=("id",))


def test_quotes_within_a_text_and_texts_of_several_lines_are_read(tmp_path: Path) -> None:
    found = csv_table(
        tmp_path, 'x,name\n1,a 5" b\n2,"c\nd"\n3,"say ""so"""\n', categorical=("name",)
    )
    assert set(found.categorical["name"].levels) == {'a 5" b', "c\nd", 'say "so"'}


@pytest.mark.parametrize("kind", ["parquet", "sqlite", "duckdb", "pandas", "polars"])
def test_every_kind_of_source_gives_the_same_block(tmp_path: Path, kind: str) -> None:
    frame = pd.DataFrame(
        {
            "id": [1, 2, 3, 4],
            "age": [20, NAN, 40, 50],
            "sex": ["F", "M", None, "M"],
            "y": ["no", "yes", "no", None],
        }
    )
    roles: dict[str, Any] = {"id": "id", "label": "y", "least_rows": 1}
    if kind == "pandas":
        return check_people(table_from(frame, **roles))
    if kind == "polars":
        return check_people(table_from(pl.from_pandas(frame), **roles))
    if kind == "parquet":
        path = str(tmp_path / "t.parquet")
        pq.write_table(pa.Table.from_pandas(frame), path)
        return check_people(read(Source(name="bank", path=path, **roles)))
    path = str(tmp_path / f"t.{kind}")
    if kind == "sqlite":
        connection = sqlite3.connect(path)
        frame.to_sql("people", connection, index=False)
        connection.close()
    else:
        with duckdb.connect(path) as database:
            database.execute("create table people as select * from frame")
    source = Source(name="bank", url=f"{kind}:///t.{kind}", query="select * from people", **roles)
    return check_people(read(located(source, tmp_path)))


@pytest.mark.parametrize(
    ("url", "extra"),
    [
        ("sqlite:///t.db", "sqlite"),
        ("duckdb:///t.db", "duckdb"),
        ("postgresql+psycopg://reader@host/t", "postgresql"),
        ("$BANK", "sqlite"),
    ],
)
def test_a_database_without_its_library_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, extra: str
) -> None:
    monkeypatch.delitem(sys.modules, "intarsia.data.formats.sql", raising=False)
    monkeypatch.delattr("intarsia.data.formats.sql", raising=False)
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    source = Source(name="bank", url=url, query="select 1 as a")
    for step in (read, lambda one: located(one, tmp_path)):
        with pytest.raises(TableError, match=rf'run pip install "intarsia\[{extra}\]"'):
            step(source)


def test_a_password_in_a_url_comes_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with duckdb.connect(str(tmp_path / "t.duckdb")) as database:
        database.execute("create table t as select 1 as a")
    monkeypatch.setenv("PLACE", str(tmp_path))
    source = Source(name="bank", url="duckdb:///$PLACE/t.duckdb", query="select * from t")
    assert located(source, tmp_path) == source
    assert_array_equal(read(source).values, [[1]])


@pytest.mark.parametrize("kind", ["duckdb", "sqlite"])
def test_a_database_file_named_by_a_variable_is_relative_to_the_experiment_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    (tmp_path / "data").mkdir()
    path = str(tmp_path / "data" / "t.db")
    if kind == "sqlite":
        connection = sqlite3.connect(path)
        connection.execute("create table t as select 1 as a")
        connection.commit()
        connection.close()
    else:
        with duckdb.connect(path) as database:
            database.execute("create table t as select 1 as a")
    monkeypatch.setenv("PLACE", "data")
    source = Source(name="bank", url=f"{kind}:///${{PLACE}}/t.db", query="select * from t")
    placed = located(source, tmp_path)
    assert placed.url == f"{kind}:///{tmp_path}/${{PLACE}}/t.db"
    assert_array_equal(read(placed).values, [[1]])


def _write_long(path: str, kind: str) -> None:
    """Write a table of 999 long rows into a database."""
    numbers = "with recursive r(i) as (select 1 union all select i + 1 from r where i < 999)"
    words = f"create table t as {numbers} select i as a, '{'x' * 500}' as b from r"
    if kind == "sqlite":
        with closing(sqlite3.connect(path)) as database:
            database.execute(words)
            database.commit()
    else:
        with duckdb.connect(path) as database:
            database.execute(words)


OPENED = (
    "import {kind}, os, sys; c = {kind}.connect(sys.argv[1], isolation_level=None); {what}; "
    "print('done', flush=True); sys.stdin.read(); os._exit(0)"
)
HALF = (
    "c.execute('pragma cache_size = 1'); c.execute('begin'); "
    "c.execute('insert into t select a + 1, b from t')"
)
OPENED_BY = {
    "a lock": ("sqlite", "c.execute('begin exclusive')", False, "try again when that is done"),
    "a killed writer": ("sqlite", HALF, True, "takes back what was half written"),
    "one to write": ("duckdb", "", False, "close it there, or read a copy"),
}


@pytest.mark.parametrize(("kind", "what", "ends", "told"), OPENED_BY.values(), ids=OPENED_BY)
def test_a_database_that_another_program_writes_to_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, what: str, ends: bool, told: str
) -> None:
    path = str(tmp_path / "t.db")
    _write_long(path, kind)
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, timeout=0.0))
    text = OPENED.format(kind=f"{kind}3" if kind == "sqlite" else kind, what=what or "0")
    text = text if kind == "sqlite" else text.replace(", isolation_level=None", "")
    other = subprocess.Popen(
        [sys.executable, "-c", text, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"done\n"
        if ends:
            other.kill()
            other.wait()
        with pytest.raises(TableError, match=told):
            read(Source(name="bank", url=f"{kind}:///{path}", query="select a from t"))
        other.kill()


@pytest.mark.parametrize("kind", ["duckdb", "sqlite"])
def test_a_database_file_that_was_cut_or_is_none_says_what_to_do(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "t.db"
    source = Source(name="bank", url=f"{kind}:///{path}", query="select a from t")
    path.write_bytes(b"a,b\n" * 2000)
    with pytest.raises(TableError, match="correct url, or put back a copy"):
        read(source)
    path.unlink()
    _write_long(str(path), kind)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    with pytest.raises(TableError, match="put back a copy"):
        read(source)


@pytest.mark.parametrize(
    "kind", ["date", "timestamp", "timestamptz", "timestamp_s", "timestamp_ns"]
)
def test_an_infinite_day_is_refused_and_is_not_its_largest_number(
    tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "t.duckdb"
    with duckdb.connect(str(path)) as database:
        days = ["2020-01-02", "infinity", "-infinity", "1969-12-31"]
        database.execute(f"create table t as select unnest({days})::{kind} as v")
    source = Source(name="bank", url=f"duckdb:///{path}", query="select * from t", dates="days")
    with pytest.raises(TableError, match=r"column 'v' has 'infinity' in row 2, which is no day"):
        read(source)
    marked = replace(source, missing=("infinity",))
    with pytest.raises(TableError, match=r"has '-infinity' in row 3, .* add \"-infinity\" to miss"):
        read(marked)
    marked = replace(source, missing=("infinity", "-infinity"))
    assert_array_equal(read(marked).values, [[18263], [np.nan], [np.nan], [-1]])
    finite = replace(source, query="select * from t where isfinite(v)")
    assert_array_equal(read(finite).values, [[18263], [-1]])


@pytest.mark.parametrize("rows", [9, 900])
def test_columns_that_are_no_features_of_a_database_are_looked_at_and_left_out(
    tmp_path: Path, rows: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    odd = {
        "wait": "to_days(range::int)",
        "hour": "time '10:00' + to_minutes(range % 60)",
        "codes": "[range, 2]",
        "fields": "{'a': range}",
        "raw": "'ab'::blob",
        "none": "null",
        "until": "if(range % 2 = 0, 'infinity'::date, date '2020-01-01' + range::int)",
    }
    monkeypatch.chdir(tmp_path)
    with duckdb.connect("t.duckdb") as database:
        columns = ", ".join(f"{value} as {name}" for name, value in odd.items())
        database.execute(
            f'create table t as select range as customer, range % 5 / 4 as "Größe in cm", '
            f"(['a', 'b'])[range % 2 + 1]::enum('a', 'b') as kind, range % 5 > 2 as late, "
            f"{columns} from range({rows})"
        )
    assert main(["init", "t.duckdb", "--label", "late"]) == 0
    [client] = tomllib.loads(Path("mine.toml").read_text())["client"]
    assert sorted(client["exclude"]) == sorted(odd)
    assert main(["inspect", "mine.toml"]) == 0
    assert " 3 " in capfd.readouterr().out  # the numbers, and a column for each of two levels


@pytest.mark.parametrize("kind", ["duckdb", "sqlite"])
def test_ctrl_c_ends_a_query_that_takes_long(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write_long(str(tmp_path / "t.db"), kind)
    few = 8 if kind == "sqlite" else 60  # ten seconds or more, if nothing ends it
    query = (
        "select sum(a.a * 1e0 * b.a * c.a * d.a) as s from t as a, t as b, "
        f"(select * from t limit {few}) as c, (select * from t limit {few}) as d"
    )
    source = Source(name="bank", url=f"{kind}:///{tmp_path}/t.db", query=query)
    check_stopped(source, monkeypatch)


READ_ONLY = """
import sys
from intarsia.data.reader import read
from intarsia.data.source import Source
from intarsia.errors import TableError
try:
    open(sys.argv[1] + "-other", "w")
except OSError:
    pass
else:
    sys.exit("may write")
try:
    found = read(Source(name="a", url="sqlite:///" + sys.argv[1], query="select * from t"))
    print(len(found.values))
except TableError as problem:
    print(problem)
"""


def _may_override_no_mode() -> None:
    """Take from a process of root what lets it write where modes forbid it (Linux)."""
    for capability in (1, 2):  # DAC_OVERRIDE, DAC_READ_SEARCH
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="root gives up what Linux has")
@pytest.mark.parametrize("closed", [True, False], ids=["closed", "open"])
def test_sqlite_with_a_log_is_read_in_a_folder_that_is_only_read(
    tmp_path: Path, closed: bool
) -> None:
    path = tmp_path / "data" / "t.db"
    path.parent.mkdir()
    database = sqlite3.connect(path)
    database.execute("pragma journal_mode = wal")
    database.execute("create table t as select 1 as a union all select 2")
    database.commit()
    if closed:
        database.close()
    for one in path.parent.iterdir():
        one.chmod(0o444)
    path.parent.chmod(0o555)
    try:
        done = subprocess.run(
            [sys.executable, "-c", READ_ONLY, path],
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=_may_override_no_mode,  # it starts no thread
        )
    finally:
        path.parent.chmod(0o755)
        database.close()
    if "may write" in done.stderr:
        pytest.skip("modes of files do not hold for this user")
    told = done.stdout.strip()
    assert told == "2" or (not closed and "let this user write into its folder" in told)


def test_a_column_of_sqlite_that_is_not_utf_8_does_not_keep_the_others_from_being_read(
    tmp_path: Path,
) -> None:
    path = tmp_path / "t.db"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("create table t as select 1 as a, 'K\u00f6ln' as town union all "
                         "select 2, cast(x'4bf66c6e' as text)")  # fmt: skip
    source = Source(name="bank", url=f"sqlite:///{path}", query="select * from t")
    with pytest.raises(TableError, match=r"column 'town' has bytes .* save the column as text in"):
        read(source)
    assert_array_equal(read(replace(source, exclude=("town",))).values, [[1], [2]])


def test_a_variable_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SECRET", raising=False)
    source = Source(name="bank", url="postgresql://me:$SECRET@here/bank", query="select 1")
    assert located(source, Path("/nowhere")) == source
    with pytest.raises(TableError, match=r"variable SECRET, which is not set; set it, or write"):
        read(source)


def test_a_pandas_index_serves_as_id() -> None:
    frame = pd.DataFrame({"a": [1.0, 2.0]}, index=pd.Index(["x", "y"], name="customer"))
    assert_array_equal(table_from(frame, id="customer").samples, ["x", "y"])


def test_a_table_in_pieces_of_a_row_is_read_many_rows_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = np.random.default_rng(0).normal(size=(300, 7))
    pieces = [pa.table({f"f{at}": row[at : at + 1] for at in range(7)}) for row in x]
    found: list[int] = []
    whole = column_roles.numbers_of
    monkeypatch.setattr(
        column_roles, "numbers_of", lambda *given: (found.append(len(given[0])), whole(*given))[1]
    )
    monkeypatch.setattr(column_roles, "_BATCH", 7 * 128)
    table = column_roles.table_of_columns(pa.concat_tables(pieces), Source(name="a"))
    assert_array_equal(table.values, x)
    assert found == [128] * 7 + [128] * 7 + [44] * 7


def test_arrays_keep_their_values_without_a_copy() -> None:
    x = np.arange(6.0).reshape(3, 2)
    block, labels = only(table_from(x, [True, False, True], samples=["a", "b", "c"]))
    assert block.x is x
    assert block.features == ("x0", "x1")
    assert labels.classes == ("false", "true")
    assert_array_equal(block.y, [1, -1, 1])


def test_labels_and_ids_as_arrays_join_a_frame() -> None:
    frame = pd.DataFrame({"label": [1.0, 2.0]})
    table = table_from(frame, [5, 6], samples=[8, 9])
    assert table.columns == ("label",)
    assert_array_equal(table.samples, [8, 9])


@pytest.mark.parametrize("zero_based", [True, False])
def test_libsvm_agrees_with_scikit_learn(tmp_path: Path, zero_based: bool) -> None:
    x = random_array((40, 12), density=0.3, format="csr", rng=np.random.default_rng(0))
    assert set(x.indices) >= {0, 11}
    y = np.arange(40) % 3
    path = tmp_path / "t.libsvm"
    dump_svmlight_file(x, y, str(path), zero_based=zero_based, comment="made by hand")
    expected, labels = load_svmlight_file(str(path), zero_based=zero_based)
    block, meaning = only(read(Source(name="a", path=str(path))))
    assert block.sparse
    assert block.features == tuple(str(at + (not zero_based)) for at in range(12))
    assert meaning == Labels("multiclass", ("0", "1", "2"))
    assert_array_equal(block.x.toarray(), expected.toarray())
    assert_array_equal(block.y, labels)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.floats(allow_nan=False, allow_infinity=False),
            st.dictionaries(st.integers(1, 50), st.floats(-1e6, 1e6), max_size=8),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_libsvm_text_round_trips(rows: list[tuple[float, dict[int, float]]]) -> None:
    text = "\n".join(
        " ".join([repr(label), *(f"{index}:{row[index]!r}" for index in sorted(row))])
        for label, row in rows
    )
    x, y, names = parse_libsvm(stored([text.encode()], None), "here")
    assert_array_equal(y, [label for label, _ in rows])
    dense = x.toarray()
    for at, (_, row) in enumerate(rows):
        assert_array_equal(dense[at], [row.get(int(name), 0.0) for name in names])


def test_npz_reads_dense_and_sparse_with_ids_names_and_labels(tmp_path: Path) -> None:
    dense = np.array([[1.0, 0.0], [0.0, 2.0]])
    path = tmp_path / "t.npz"
    np.savez(path, x=dense, y=["a", "b"], samples=[7, 8], features=["u", "v"])
    block, labels = only(read(Source(name="a", path=str(path))))
    assert (block.features, labels.classes) == (("u", "v"), ("a", "b"))
    assert_array_equal(block.samples, [7, 8])
    assert_array_equal(block.x, dense)
    save_npz(path, csr_array(dense))
    table = read(Source(name="a", path=str(path), id="row"))
    assert table.labels is None
    assert_array_equal(table.samples, [0, 1])
    assert_array_equal(table.values.toarray(), dense)


@pytest.mark.parametrize("text", ["csr", np.array(b"csr")])
def test_the_format_of_a_sparse_npz_may_be_text_or_bytes(tmp_path: Path, text: object) -> None:
    x, path = csr_array(np.eye(3)), tmp_path / "t.npz"
    parts = {"data": x.data, "indices": x.indices, "indptr": x.indptr, "shape": x.shape}
    np.savez(path, format=text, **parts)
    assert_array_equal(read(Source(name="a", path=str(path))).values.toarray(), np.eye(3))


@pytest.mark.parametrize("kind", ["coo", 3, ["csr", "csr"]])
def test_a_sparse_npz_of_another_format_is_refused_in_a_sentence(
    tmp_path: Path, kind: object
) -> None:
    x, path = csr_array(np.eye(3)), tmp_path / "t.npz"
    parts = {"data": x.data, "indices": x.indices, "indptr": x.indptr, "shape": x.shape}
    np.savez(path, format=kind, **parts)
    with pytest.raises(TableError, match=r"its format is .*save it with scipy"):
        read(Source(name="a", path=str(path)))


def test_file_labels_can_be_left_out_and_features_chosen(tmp_path: Path) -> None:
    path = tmp_path / "t.svm"
    path.write_text("1 1:2 3:4\n0 2:5\n")
    table = read(Source(name="a", path=str(path), exclude=("label", "2")))
    assert table.labels is None
    assert table.columns == ("1", "3")
    assert_array_equal(table.values.toarray(), [[2, 4], [0, 0]])


def test_a_table_without_id_has_rows_of_its_own(tmp_path: Path) -> None:
    table = csv_table(tmp_path, "a\n1\n2\n", client="shop")
    assert_array_equal(table.samples, ["shop:0", "shop:1"])
    other = csv_table(tmp_path, "id,a,y\n1,5,0\n2,6,1\n", id="id", label="y")
    blocks, labels = assemble({"shop": table, "bank": other})
    assert_array_equal(blocks["bank"].samples, ["1", "2"])
    assert len(Schema.of(blocks, labels).samples) == 4


def test_generated_ids_never_meet_the_ids_of_another_party(tmp_path: Path) -> None:
    table = csv_table(tmp_path, "a\n1\n2\n", client="shop")
    other = csv_table(tmp_path, "id,a,y\nshop:0,5,0\nx,6,1\n", id="id", label="y")
    with pytest.raises(FederationError, match="shop:0"):
        assemble({"shop": table, "bank": other})


@pytest.mark.parametrize(
    ("ids", "id_type", "expected"),
    [
        (("1", "20"), None, [1, 20]),
        (("1", "a2"), None, ["1", "a2"]),
        (("007", "8"), None, ["007", "8"]),  # zeros that may matter keep ids text
        (("007", "8"), "integer", [7, 8]),
        (("1", "2"), "text", ["1", "2"]),
        ((" a ", "b"), None, ["a", "b"]),
        (("9" * 20, "1"), None, ["9" * 20, "1"]),  # beyond 64 bits
        ((str(2**63), "1"), None, [str(2**63), "1"]),
        ((str(-(2**63)), str(2**63 - 1)), None, [-(2**63), 2**63 - 1]),
        (("7.0", "-0"), None, [7, 0]),
        (("-5.00", "10"), None, [-5, 10]),
        (("7.", "8"), None, ["7.", "8"]),
        (("+7", "8"), None, ["+7", "8"]),
        (("+7.0", "-0012"), "integer", [7, -12]),
        (("000", "\u00a01\u2003"), "integer", [0, 1]),  # blanks of any kind around an id
    ],
)
def test_ids_are_whole_numbers_if_every_one_is(
    tmp_path: Path, ids: tuple[str, ...], id_type: Any, expected: list[Any]
) -> None:
    rows = "".join(f"{one},1\n" for one in ids)
    table = csv_table(tmp_path, "id,a\n" + rows, id="id", id_type=id_type)
    assert table.samples.tolist() == expected


@pytest.mark.parametrize(
    ("ids", "id_type", "told"),
    [
        (("1", "x7", "y"), "integer", "has 'x7' in row 2, which is not a whole number of 64 bits"),
        (("1", str(2**63)), "integer", f"has '{2**63}' in row 2, which is not a whole number"),
        (("1", "2", "1E+05"), None, "has '1E+05', a number of which digits may be lost"),
        (("1", " nAn ", "?"), None, "has no id in 2 rows (first: row 2)"),
        (("1", "(-9)", "-9"), "text", "has no id in 1 row (first: row 2)"),
        (("7", "a", "7.0"), "integer", "has 'a' in row 2"),
        (("7", "3", "7.0"), None, "has 7 in 2 rows (first: rows 1 and 3"),
    ],
)
def test_wrong_ids_are_told_with_their_row(
    tmp_path: Path, ids: tuple[str, ...], id_type: Any, told: str
) -> None:
    rows = "".join(f"{one},1\n" for one in ids)
    with pytest.raises(TableError, match=re.escape(told)):
        csv_table(tmp_path, "id,a\n" + rows, id="id", id_type=id_type, missing=("?", " (-9) "))


def test_ids_mean_the_same_in_a_float_column() -> None:
    table = table_from(pd.DataFrame({"id": [3.0, 4.0], "a": [1, 2]}), id="id")
    assert table.samples.dtype == np.int64
    assert table.samples.tolist() == [3, 4]


def test_ids_of_a_uuid_type_are_text() -> None:
    one, two = uuid.UUID(int=1), uuid.UUID(int=2)
    table = table_from(pd.DataFrame({"id": [one, two], "a": [1, 2]}), id="id")
    assert table.samples.tolist() == [str(one), str(two)]
    ids = np.array([one, two], object)
    assert table_from(np.eye(2), samples=ids).samples.tolist() == [str(one), str(two)]


def test_booleans_are_zero_and_one(tmp_path: Path) -> None:
    table = csv_table(tmp_path, "a,b\ntrue,yes\n False ,yes\n?,no\n")
    assert_array_equal(table.values, [[1], [0], [NAN]])
    assert_array_equal(table_from(pd.DataFrame({"a": [True, False]})).values, [[1], [0]])


@pytest.mark.parametrize("code", ["0x14", "0X1F"])
def test_hexadecimal_codes_are_text_and_no_numbers(
    tmp_path: Path, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = csv_table(tmp_path, f"a,b\n1,{code}\n2,0x15\n")
    assert table.numeric == ("a",)
    assert table.categorical["b"].levels == tuple(sorted((code, "0x15")))
    assert_array_equal(table.values, [[1], [2]])
    start = "a\n" + "1\n" * 100
    monkeypatch.setattr(csv, "PIECE", len(start) + 1)  # it ends between 0 and x
    with pytest.raises(TableError, match=f"mixes numbers and text: '{code}' in row 101"):
        csv_table(tmp_path, f"{start}{code}\n")


def test_an_all_missing_and_a_constant_column_are_kept(tmp_path: Path) -> None:
    table = csv_table(tmp_path, "a,b\n?,7\n,7\n")
    assert table.columns == ("a", "b")
    assert_array_equal(table.values, [[NAN, 7], [NAN, 7]])


def test_sentinels_are_missing_in_every_format(tmp_path: Path) -> None:
    expected = [[NAN], [2.0]]
    missing = ("-999", "?")
    assert_array_equal(csv_table(tmp_path, "a\n-999\n2\n", missing=missing).values, expected)
    frame = pd.DataFrame({"a": [-999.0, 2.0]})
    assert_array_equal(table_from(frame, missing=missing).values, expected)
    assert_array_equal(table_from(frame.to_numpy(), missing=missing).values, expected)


def test_numbers_that_stand_for_a_missing_value_do_so_in_features_alone(tmp_path: Path) -> None:
    columns = {"id": [1, 9, 3], "days": [9, 5, 9], "a": [9, 2, 3]}
    own: dict[str, Any] = {"id": "id", "label": "days", "missing": ("?", "9", "-999")}
    frame = pd.DataFrame(columns)
    frame.to_parquet(tmp_path / "t.parquet")
    parquet = read(Source(name="a", path=str(tmp_path / "t.parquet"), **own))
    for table in (
        csv_table(tmp_path, frame.to_csv(index=False), **own),
        table_from(frame, **own),
        table_from(frame.astype(float), **own),
        parquet,
    ):
        assert table.samples.tolist() == [1, 9, 3]
        assert table.labels is not None
        assert_array_equal(table.labels.values, [9, 5, 9])
        assert_array_equal(table.values, [[NAN], [2], [3]])
        assert table.labels.marked == 0


def test_a_label_that_is_none_is_said_by_label_map_or_a_word_and_counted(tmp_path: Path) -> None:
    text = "days,a\n9,9\n5,2\n?,3\n,4\nNULL,5\n9.0,6\n"
    table = csv_table(tmp_path, text, label="days", label_map={"9": ""})
    assert table.labels is not None
    assert_array_equal(table.labels.values, [NAN, 5, NAN, NAN, NAN, NAN])
    assert table.labels.marked == 3  # 9, 9.0 and ?, not what is empty in every table
    (note,) = notes_on_marked({"bank": table.labels})
    assert note.startswith("Labels that are written count as none: 3 of 'days' at bank. ")


def test_few_times_of_day_are_a_category_of_a_file_as_of_a_frame(tmp_path: Path) -> None:
    shifts = ["06:00", "14:00", "22:00", "06:00", ""]
    frame = pd.DataFrame({"shift": shifts, "a": range(5)})
    for table in (csv_table(tmp_path, frame.to_csv(index=False)), table_from(frame)):
        assert table.categorical["shift"].levels == ("06:00", "14:00", "22:00")
    calls = [f"{at % 24:02}:{at % 60:02}" for at in range(120)]
    many = pd.DataFrame({"call": calls, "a": 1.0})
    said = r"has times of day \(such as '00:00'\); write minutes"
    with pytest.raises(TableError, match=said):
        csv_table(tmp_path, many.to_csv(index=False))
    with pytest.raises(TableError, match=said):
        table_from(many)


def test_what_label_map_names_and_no_client_has_is_said(tmp_path: Path) -> None:
    named = {"NO": 0, "yes": 1, "?": "", "-9.0": ""}

    def noted(**texts: str) -> tuple[str, ...]:
        tables = {
            name: csv_table(tmp_path, f"ill,a\n{text}", label="ill", label_map=named)
            for name, text in texts.items()
        }
        return notes_on_label_maps({name: one.labels for name, one in tables.items() if one.labels})

    assert noted(bank="no,1\nyes,2\nyes,3\n") == (
        "label_map does nothing where it names a label that no row has: 'NO' of 'bank'; '-9.0' of "
        "'bank'. Write it as the table has it, or take it out.",
    )
    # what one client has may stand at all; "?" is missing anyway
    assert noted(bank="NO,1\nyes,2\n", shop="yes,1\n-9,2\n") == ()


def test_an_id_that_a_word_of_missing_takes_away_is_named(tmp_path: Path) -> None:
    said = r"has no id in 1 row \(first: row 2\), where 'x' counts as missing; every row"
    with pytest.raises(TableError, match=said):
        csv_table(tmp_path, "id,a\n1,1\nx,2\n", id="id", missing=("x",))


def test_a_category_is_spelled_alike_in_every_number_format(tmp_path: Path) -> None:
    one = csv_table(tmp_path, "c,y\n1.0,0\n2.0,1\n", client="one", label="y", categorical=("c",))
    two = table_from(pd.DataFrame({"c": [2, 3]}), client="two", categorical=["c"])
    blocks, _ = assemble({"one": one, "two": two})
    assert blocks["one"].features == blocks["two"].features == ("c=1", "c=2", "c=3")
    assert_array_equal(blocks["two"].x, [[0, 1, 0], [0, 0, 1]])


def test_a_party_holds_every_level_that_any_party_has(tmp_path: Path) -> None:
    one = csv_table(tmp_path, "sex,y\nF,0\nF,1\n", client="one", label="y")
    two = csv_table(tmp_path, "sex\nM\n?\n", client="two")
    three = csv_table(tmp_path, "sex,a\n?,1\n,2\n", client="three")
    blocks, _ = assemble({"one": one, "two": two, "three": three})
    assert blocks["one"].features == ("sex=F", "sex=M")
    assert_array_equal(blocks["one"].x, [[1, 0], [1, 0]])
    assert_array_equal(blocks["two"].x, [[0, 1], [NAN, NAN]])
    assert_array_equal(blocks["three"].x, [[NAN, NAN, 1], [NAN, NAN, 2]])


def test_groups_name_one_hot_features_and_the_rest_is_the_clients(tmp_path: Path) -> None:
    table = csv_table(tmp_path, CSV, id="id", label="y", groups={"person": ("sex",)})
    block, _ = only(table)
    assert block.groups == {"person": ("sex=F", "sex=M"), "bank": ("age",)}


WIDE = "id,lab_a,lab_b,lab[1],age,y\n1,1,2,3,4,no\n2,4,3,2,1,yes\n"


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ({"lab": ("lab_*",)}, {"lab": ("lab_a", "lab_b"), "bank": ("lab[1]", "age")}),
        (
            {"lab": ("lab_b", "lab_*"), "a": ("a?e",)},
            {"lab": ("lab_b", "lab_a"), "a": ("age",), "bank": ("lab[1]",)},
        ),
        # a column of this very name is no pattern, and a pattern never means id or label
        ({"one": ("lab[1]",)}, {"one": ("lab[1]",), "bank": ("lab_a", "lab_b", "age")}),
        ({"all": ("*",)}, {"all": ("lab_a", "lab_b", "lab[1]", "age")}),
    ],
)
def test_groups_may_name_columns_by_patterns(tmp_path: Path, groups, expected) -> None:
    block, _ = only(csv_table(tmp_path, WIDE, id="id", label="y", groups=groups))
    assert block.groups == expected


@pytest.mark.parametrize(
    ("groups", "sentence"),
    [
        ({"lab": ("labs_*",)}, r"the pattern 'labs_\*' of groups.lab fits none of the features"),
        ({"y": ("y*",)}, r"the pattern 'y\*' of groups.y fits none"),
        (
            {"lab": ("lab_*",), "b": ("*_b",)},
            r"'lab_b' is in the groups 'lab' \('lab_\*'\) and 'b'",
        ),
        ({"lab": ("lab_*",), "a": ("lab_a",)}, "'lab_a' is in the groups 'lab'"),
        ({"lab": ("lab_c",)}, "groups.lab names the column 'lab_c'"),
    ],
)
def test_groups_that_cannot_be_are_refused(tmp_path: Path, groups, sentence) -> None:
    with pytest.raises(TableError, match=sentence):
        csv_table(tmp_path, WIDE, id="id", label="y", groups=groups)


def test_a_new_table_is_encoded_as_the_old_ones_and_unseen_levels_are_missing(
    tmp_path: Path,
) -> None:
    encoding = encoding_of({"a": csv_table(tmp_path, CSV, id="id", label="y")})
    block = encode(csv_table(tmp_path, "sex,age\nX,1\nM,2\n"), encoding)
    assert block.features == ("sex=F", "sex=M", "age")
    assert_array_equal(block.x, [[NAN, NAN, 1], [0, 1, 2]])
    for content in ("sex\n0\n1\n", "age\nold\nyoung\n"):
        with pytest.raises(TableError, match="elsewhere"):
            encode(csv_table(tmp_path, content), encoding)


@pytest.mark.parametrize(
    ("values", "given_settings", "task", "classes", "y"),
    [
        ([0, 1, 0], {}, "binary", ("0", "1"), [-1, 1, -1]),
        ([2, 1, NAN], {}, "binary", ("1", "2"), [1, -1, NAN]),
        (["b", "a", None], {}, "binary", ("a", "b"), [1, -1, NAN]),
        ([10, 9, 2], {}, "multiclass", ("2", "9", "10"), [2, 1, 0]),
        (["x", "y", "z"], {}, "multiclass", ("x", "y", "z"), [0, 1, 2]),
        ([0.5, 1.5, 2.25], {}, "regression", (), [0.5, 1.5, 2.25]),
        ([0, 1, 2], {"positive": "1"}, "binary", ("other", "1"), [-1, 1, -1]),
        ([0, 1, 2], {"positive": (1, 2)}, "binary", ("0", "1 or 2"), [-1, 1, 1]),
        (["u", "v", "u"], {"positive": "u"}, "binary", ("v", "u"), [1, -1, 1]),
        ([0, 1, 0], {"task": "multiclass"}, "multiclass", ("0", "1"), [0, 1, 0]),
        ([0, 1, 0], {"task": "regression"}, "regression", (), [0, 1, 0]),
        ([1, 0, 1], {"classes": ("1", "0")}, "binary", ("1", "0"), [-1, 1, -1]),
        ([1, 0, 1], {"classes": (0, 1, 2)}, "multiclass", ("0", "1", "2"), [1, 0, 1]),
    ],
)
def test_labels_mean_what_the_settings_and_values_say(
    values: list[Any],
    given_settings: dict[str, Any],
    task: str,
    classes: tuple[str, ...],
    y: list[float],
) -> None:
    table = table_from(pd.DataFrame({"a": [1, 2, 3], "y": values}), label="y")
    block, labels = only(table, LabelSettings(**given_settings))
    assert (labels.task, labels.classes) == (task, classes)
    assert_array_equal(block.y, y)


def test_more_than_twenty_whole_numbers_are_a_regression_target() -> None:
    for count, task in ((20, "multiclass"), (21, "regression")):
        _, labels = only(table_from(np.eye(count), np.arange(count)))
        assert labels.task == task


def test_a_party_whose_labels_are_all_missing_has_none_of_use(tmp_path: Path) -> None:
    one = csv_table(tmp_path, "a,y\n1,0\n2,1\n", client="one", label="y")
    two = csv_table(tmp_path, "a,y\n1,?\n2,\n", client="two", label="y")
    blocks, labels = assemble({"two": two, "one": one})
    assert labels.task == "binary"
    assert_array_equal(blocks["two"].y, [NAN, NAN])


def test_every_party_splits_alike_and_near_the_asked_fraction() -> None:
    ids = np.arange(4000)
    one, _ = only(table_from(np.ones((4000, 1)), ids % 2, samples=ids))
    two, _ = only(table_from(np.ones((2000, 1)), ids[:2000] % 2, samples=ids[1999::-1]))
    train, test = split(one, 0.25, "salt")
    assert_array_equal(np.sort(np.concatenate([train.samples, test.samples])), ids)
    assert abs(len(test.samples) - 1000) < 4 * np.sqrt(4000 * 0.25 * 0.75)
    assert set(split(two, 0.25, "salt")[1].samples) == {s for s in test.samples if s < 2000}
    assert set(split(one, 0.1, "salt")[1].samples) < set(test.samples)  # parts are nested
    assert set(split(one, 0.25, "other")[1].samples) != set(test.samples)
    assert split(one, 0.0)[0] is one


@pytest.mark.parametrize(
    "samples",
    [
        np.arange(-50, 50),
        np.array([f"Å{one}" for one in range(100)]),
        pseudonyms(np.arange(100), bytes(32)),
    ],
    ids=["numbers", "text", "pseudonyms"],
)
def test_test_rows_are_those_of_which_the_keyed_hash_is_a_small_fraction(samples: Any) -> None:
    key = hashlib.blake2b(b"salt").digest()
    texts = [one if isinstance(one, bytes) else str(one).encode() for one in samples.tolist()]
    hashed = [hashlib.blake2b(text, key=key, digest_size=7).hexdigest() for text in texts]
    part = [2**52 * 16 * 0.1 <= int(one, 16) < 2**52 * 16 * 0.4 for one in hashed]
    _, test = split(Block(samples, ("a",), np.ones((100, 1))), 0.4, "salt", start=0.1)
    assert_array_equal(test.samples, np.sort(samples[part]))
    assert 0 < len(test.samples) < 100


def test_clients_with_the_same_ids_are_split_by_hashes_that_are_made_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []
    fractions = tables._fractions
    monkeypatch.setattr(
        tables, "_fractions", lambda ids, key: made.append(len(ids)) or fractions(ids, key)
    )
    one = Block(np.arange(90), ("a",), np.ones((90, 1)))
    other = Block(np.arange(90)[::-1], ("b",), np.ones((90, 1)))
    third = Block(np.arange(60), ("a",), np.ones((60, 1)))
    hashes = Hashes()
    for block in (one, third, other):
        found, alone = split(block, 0.3, hashes=hashes), split(block, 0.3)
        for part, expected in zip(found, alone, strict=True):
            assert_array_equal(part.samples, expected.samples)
    assert made == [90, 90, 60, 60, 90]  # with and without, and the last without alone
    split(one, 0.3, "another salt", hashes=hashes)
    assert made[5:] == [90]


def test_an_official_split_is_by_its_ids() -> None:
    block, _ = only(table_from(np.eye(4), [0, 1, 0, 1], samples=list("1234"), id_type="text"))
    train, test = split(block, 0.5, ids=np.array([2, 4, 9]))
    assert_array_equal(train.samples, ["1", "3"])
    assert_array_equal(test.samples, ["2", "4"])


def test_the_four_hospitals_read_as_published() -> None:
    tables = {
        name: read(Source(name=name, path=str(HOSPITALS / f"{name}.csv"), label="target"))
        for name in ("cleveland", "hungarian", "switzerland", "va")
    }
    blocks, labels = assemble(tables, LabelSettings(positive=("1", "2", "3", "4")))
    assert [block.shape for block in blocks.values()] == [
        (303, 13),
        (294, 13),
        (123, 13),
        (200, 13),
    ]
    assert labels.outputs == 1
    missing = np.isnan(blocks["hungarian"].x[:, 11]).mean()  # column ca
    assert blocks["hungarian"].features[11] == "ca"
    assert 0.98 < missing < 1
    assert np.sum(blocks["cleveland"].y == 1) == 139  # the published count of disease


@pytest.mark.parametrize("matrix", ["x", "images"])
def test_an_array_of_an_npz_file_that_nothing_reads_is_refused(matrix: str, tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    np.savez(path, **{matrix: np.eye(3)}, labels=[0, 1, 0], ids=[7, 5, 3])  # y and samples
    source = Source(name="bank", path=str(path))
    with pytest.raises(
        TableError, match=r"from 2 arrays of the file: 'labels'.*ids.*call labels y"
    ):
        read(source)
    table = read(replace(source, exclude=("labels", "ids")))
    assert (table.labels, len(table.columns)) == (None, 3)


def test_the_arrays_of_an_npz_file_are_views_with_shapes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    scan, age = rng.random((4, 1, 2, 3)), rng.random((4, 1))
    np.savez(tmp_path / "t.npz", scan=scan, age=age, y=[0, 1, 0, 1], samples=[7, 5, 3, 1])
    source = Source(name="clinic", path=str(tmp_path / "t.npz"), id="samples")
    block = assemble({"clinic": read(source)})[0]["clinic"]
    assert block.groups == {"scan": tuple(f"scan{n}" for n in range(6)), "age": ("age0",)}
    assert block.shapes == {"scan": (1, 2, 3)}
    np.testing.assert_array_equal(block.x, np.hstack([scan.reshape(4, 6), age]))
    assert block.samples.tolist() == [7, 5, 3, 1]
    part = assemble({"clinic": read(replace(source, exclude=("scan2",)))})[0]["clinic"]
    assert (len(part.groups["scan"]), part.shapes) == (5, {})


def odd_tables(tmp_path: Path) -> dict[str, tuple[str, Any]]:
    """Return where a NUL is, and a function that reads the table: by the way it comes."""

    def frame(**more: Any) -> pd.DataFrame:
        return pd.DataFrame({"id": [1, 2], "income": [3.0, 4.0], **more})

    def parquet(**more: Any) -> Table:
        pq.write_table(pa.Table.from_pandas(frame(**more)), tmp_path / "own.parquet")
        return read(Source(name="bank", path=str(tmp_path / "own.parquet"), id="id"))

    def npz(**more: Any) -> Table:
        np.savez(tmp_path / "own.npz", x=np.eye(2), **more)
        own = "samples" if "samples" in more else None
        return read(Source(name="bank", path=str(tmp_path / "own.npz"), id=own))

    def sql() -> Table:
        with sqlite3.connect(tmp_path / "own.db") as database:
            database.execute("create table t (id, city)")
            database.executemany("insert into t values (?, ?)", [(1, "Bern"), (2, "Bern\0")])
        url = f"sqlite:///{tmp_path / 'own.db'}"
        return read(Source(name="bank", url=url, query="select * from t", id="id"))

    return {
        "column of a frame": ("column 3 is 'a\\x00'", lambda: table_from(frame(**{"a\0": 1.0}))),
        "level": ("row 2, is 'b\\x00'", lambda: table_from(frame(c=["b", "b\0"]))),
        "category": (
            "row 1, is 'b\\x00'",
            lambda: table_from(frame(c=pd.Categorical(["b\0", "b"]))),
        ),
        "class": ("row 2, is 'no\\x00'", lambda: table_from(frame(y=["no", "no\0"]), label="y")),
        "class that is mapped to": (
            "row 1, is 'no\\x00'",
            lambda: table_from(frame(y=["a", "b"]), label="y", label_map={"a": "no\0"}),
        ),
        "id": ("row 1, is 'k\\x00'", lambda: table_from(frame(k=["k\0", "k"]), id="k")),
        "column of Parquet": ("column 3 is 'a\\x00'", lambda: parquet(**{"a\0": 1.0})),
        "level of Parquet": ("row 2, is 'b\\x00'", lambda: parquet(c=["b", "b\0"])),
        "column of npz": (
            "column 1 is 'a\\x00b'",
            lambda: npz(features=np.array(["a\0b", "c"])),
        ),
        "id of npz": ("row 1, is 'a\\x00b'", lambda: npz(samples=np.array(["a\0b", "c"]))),
        "level of a database": ("row 2, is 'Bern\\x00'", sql),
    }


def test_a_nul_in_a_text_is_refused_wherever_a_table_comes_from(tmp_path: Path) -> None:
    """Arrays of text lose it at the end: a run ended in a KeyError once it was trained."""
    for what, (place, reads) in odd_tables(tmp_path).items():
        with pytest.raises(TableError) as problem:
            reads()
        assert place in str(problem.value), what
        assert "NUL" in str(problem.value), what


def test_half_a_surrogate_pair_in_a_frame_is_refused() -> None:
    frame = pd.DataFrame({"a": np.array(["\ud800", "b"], object)}, dtype=object)
    with pytest.raises(TableError, match="half a surrogate pair"):
        table_from(frame)
    with pytest.raises(TableError, match="half a surrogate pair"):
        table_from(np.eye(2), names=["a", "b\udc00"])


def test_an_index_of_pandas_is_a_column_of_a_parquet_file_only_if_it_has_a_name(tmp_path):
    path = tmp_path / "own.parquet"
    frame = pd.DataFrame({"x": np.arange(6.0)})
    frame[frame["x"] != 2].to_parquet(path)  # whose index is 0, 1, 3, 4, 5
    assert "__index_level_0__" in pq.read_schema(path).names
    assert read(Source(name="bank", path=str(path))).columns == ("x",)
    chosen = Source(name="bank", path=str(path), id="__index_level_0__")
    assert read(chosen).samples.tolist() == [0, 1, 3, 4, 5]
    frame.rename_axis("id")[frame["x"] != 2].to_parquet(path)
    assert read(Source(name="bank", path=str(path), id="id")).samples.tolist() == [0, 1, 3, 4, 5]
    frame.rename_axis("id").to_parquet(path)  # a range, of which no column is written
    with pytest.raises(TableError, match=r"no column of the file.*frame.reset_index\(\)"):
        read(Source(name="bank", path=str(path), id="id"))
    frame.rename_axis("id").reset_index().to_parquet(path)
    assert read(Source(name="bank", path=str(path), id="id")).samples.tolist() == [*range(6)]


def test_settings_may_name_an_index_of_pandas_without_a_name(tmp_path):
    path, unnamed = tmp_path / "own.parquet", "__index_level_0__"
    frame = pd.DataFrame({"x": np.arange(20.0)})
    frame[frame["x"] != 2].to_parquet(path)
    given = {"name": "bank", "path": str(path)}
    assert read(Source(**given, exclude=(unnamed,))).columns == ("x",)
    assert set(read(Source(**given, groups={"row": (unnamed,)})).columns) == {unnamed, "x"}


@pytest.mark.parametrize("told", ["{", "[1]", '{"index_columns": 3}', '{"index_columns": null}'])
def test_a_parquet_file_is_read_whatever_stands_in_it_of_an_index(told, tmp_path):
    path = tmp_path / "own.parquet"
    table = pa.table({"x": [0.0, 1.0]})
    pq.write_table(table.replace_schema_metadata({"pandas": told}), path)
    assert read(Source(name="bank", path=str(path))).columns == ("x",)


def test_a_parquet_file_may_lack_the_index_that_it_names(tmp_path):
    path = tmp_path / "own.parquet"
    written = pa.Table.from_pandas(pd.DataFrame({"x": [0.0, 1.0]}, index=[3, 5]))
    pq.write_table(written.select(["x"]), path)  # what pandas says of the table stays
    assert read(Source(name="bank", path=str(path))).columns == ("x",)


def test_levels_and_labels_are_the_same_whatever_the_decimal_mark(tmp_path):
    rows = ["0;0,5;1,0", "1;1,0;0,0", "2;2,5;1,0"]
    (tmp_path / "comma.csv").write_text("\n".join(["id;dose;y", *rows]) + "\n")
    text = (tmp_path / "comma.csv").read_text().replace(",", ".").replace(";", ",")
    (tmp_path / "point.csv").write_text(text)
    for name, decimal in (("comma", ","), ("point", ".")):
        own = {"path": str(tmp_path / f"{name}.csv"), "decimal": decimal, "categorical": ("dose",)}
        own |= {"name": name, "id": "id", "label": "y"}
        assert read(Source(**own)).categorical["dose"].levels == ("0.5", "1", "2.5")
        mapped = read(Source(**own, label_map={"0": "no", "1": "yes"})).labels
        assert mapped is not None
        assert mapped.values.tolist() == ["yes", "no", "yes"]


@pytest.mark.parametrize("unit", [" days", "cm", " °C", " mmol/l", " Jahre", " kg/m²", " µg"])
def test_numbers_with_a_unit_behind_them_are_no_category(unit, tmp_path):
    path = tmp_path / "own.csv"

    def of(texts: list[str]) -> Table:
        path.write_text("\n".join(["t", *texts]) + "\n")
        return read(Source(name="bank", path=str(path)))

    said = rf"numbers with '{unit.strip()}' \(such as '0{unit}'\), which are text; set units = "
    with pytest.raises(TableError, match=said):
        of([f"{number % 12}{unit}" for number in range(400)])
    # doses, rooms and the like: a few, and words before the number
    assert of([f"{number % 4 * 5}{unit}" for number in range(400)]).categorical
    assert of([f"{unit.strip()} {number % 12}" for number in range(400)]).categorical


@pytest.mark.parametrize(
    ("unit", "texts", "values"),
    [
        ("%", ["12.5 %", "-3%", "7"], [12.5, -3, 7]),
        ("€", ["€ 1.234,50", "-€2", "3,5 €"], [1234.5, -2, 3.5]),
        ("m2", ["55 m2", "1e3m2", ""], [55, 1000, np.nan]),
        ("mg/l", ["< 0.5 mg/l", ">=200 mg/l", "5"], [0.5, 200, 5]),
        ("", ["<5", "≤ 7", "6"], [5, 7, 6]),
    ],
)
@pytest.mark.parametrize("label", [False, True])
def test_numbers_are_read_without_the_unit_and_the_limit_that_are_named(
    unit, texts, values, label, tmp_path
):
    path, column = tmp_path / "own.csv", "y" if label else "t"
    path.write_text("\n".join([f"x|{column}", *(f"1|{text}" for text in texts)]) + "\n")
    comma = any("," in one for one in texts)
    limits = (column,) if any(one[:1] in ("<", ">", "≤") for one in texts) else ()
    units = {column: unit} if unit else {}
    found = read(
        Source(
            name="bank",
            path=str(path),
            separator="|",
            label="y" if label else None,
            units=units,
            limits=limits,
            decimal="," if comma else ".",
            thousands="." if comma else None,
        )
    )
    read_as = found.labels.values if label else found.values[:, 1]
    np.testing.assert_array_equal(read_as, values)


def test_a_category_of_a_dataframe_is_read_by_its_unit_and_another_unit_is_told():
    texts = pd.Series([f"{number} %" for number in range(20)], dtype="category")
    frame = pd.DataFrame({"rate": texts, "x": 1.0})
    read_as = table_from(frame, client="bank", units={"rate": "%"})
    assert read_as.values[:, 0].tolist() == list(range(20))
    for units in ({}, {"rate": "€"}):
        with pytest.raises(TableError, match=r"with '%' .*; set units = \{ \"rate\" = \"%\" \}"):
            table_from(frame, client="bank", units=units)


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (
            ["60%", "53", "7%"],
            r"and without: '60%' .* '53'; if all are in '%', set units = \{ \"t\"",
        ),
        (["(1,200)", "697", "2,500"], r"in front: '\(1,200\)' in row 1; write them .* '-1,200'"),
        (["16-", "25"], r"without a minus in front: '16-' in row 1"),
        (["($1,200)", "$697", "$25"], r"in front: '\(\$1,200\)' in row 1; write .* '-\$1,200'"),
        (["0.7", "<0.5", "<0.5"], r"limits beside numbers: '<0.5' in row 2"),
        (["<0.5", "0.7"], r"limits beside numbers: '<0.5' in row 1; set limits = \[\"t\"\], so"),
        ([f"{n} mg" for n in range(9)] + [f"{n} g" for n in range(9)], "several units: '8 mg'"),
    ],
)
def test_numbers_with_signs_that_no_setting_says_are_refused_with_what_to_do(texts, said, tmp_path):
    path = tmp_path / "own.csv"
    path.write_text("\n".join(["x|t", *(f"1|{text}" for text in texts)]) + "\n")
    with pytest.raises(TableError, match=said):
        read(Source(name="bank", path=str(path), separator="|"))


def test_a_limit_beside_numbers_whose_unit_is_set_is_named_as_one():
    frame = pd.DataFrame({"lab": ["<5 mg", *(f"{number} mg" for number in range(20))], "x": 1.0})
    with pytest.raises(TableError, match="has limits beside numbers: '<5 mg' in row 1; set limits"):
        table_from(frame, client="bank", units={"lab": "mg"})


def test_amounts_with_a_space_between_thousands_have_a_unit():
    frame = pd.DataFrame({"rent": [f"1\u202f{200 + number},50\u00a0€" for number in range(20)]})
    with pytest.raises(TableError, match="has numbers with '€'"):
        table_from(frame, client="bank")
    own = table_from(frame, client="bank", units={"rent": "€"}, decimal=",", thousands=" ")
    assert own.values[:2, 0].tolist() == [1200.5, 1201.5]


def test_numbers_too_large_for_a_float64_are_refused_whatever_their_unit():
    frame = pd.DataFrame({"t": [f"{2**53 + 1} pieces", *(f"{n} pieces" for n in range(20))]})
    with pytest.raises(TableError, match="beyond the whole numbers that a float64 holds"):
        table_from(frame, client="bank", units={"t": "pieces"})


@pytest.mark.parametrize("written", ["{}%", "€{}", "{} kg"])
def test_labels_that_are_numbers_with_a_unit_are_no_classes(written, tmp_path):
    path = tmp_path / "own.csv"

    def of(numbers: range) -> Table:
        texts = [f"1,{written.format(number)}" for number in numbers]
        path.write_text("\n".join(["x,y", *texts]) + "\n")
        return read(Source(name="bank", path=str(path), label="y"))

    with pytest.raises(TableError, match=r"label column 'y' has numbers with .*; set units = "):
        of(range(100))
    labels = of(range(5)).labels  # a few are classes
    assert labels is not None
    assert labels.values.dtype.kind == "U"


def test_ids_of_which_many_repeat_are_told_how_visits_are_split():
    frame = pd.DataFrame({"patient": [1, 1, 2, 2, 3], "x": range(5), "y": [0, 1, 0, 1, 0]})
    with pytest.raises(TableError, match=r"set split_by = 'patient' and, as id, what tells them"):
        table_from(frame, client="ward", id="patient", label="y")


def test_moments_are_the_same_ids_in_every_unit_and_zone_and_in_a_csv_file(tmp_path):
    moments = pd.date_range("2024-03-30 22:00", periods=3, freq="90min", tz="UTC")
    written = ["2024-03-30 22:00:00", "2024-03-30 23:30:00", "2024-03-31 01:00:00"]
    plain = moments.tz_localize(None)
    for number, own in enumerate(
        plain.astype(f"datetime64[{unit}]") for unit in ("s", "ms", "us", "ns")
    ):
        frame = pd.DataFrame({"at": own, "x": range(3)})
        frame.to_parquet(tmp_path / f"{number}.parquet", index=False)
        frame.to_csv(tmp_path / f"{number}.csv", index=False)
        for ending in ("parquet", "csv"):
            source = Source(name="a", path=str(tmp_path / f"{number}.{ending}"), id="at")
            assert read(source).samples.tolist() == written
        assert table_from(frame, client="a", id="at").samples.tolist() == written
    there = pd.DataFrame({"at": moments.tz_convert("Europe/Berlin"), "x": range(3)})
    there.to_parquet(tmp_path / "zone.parquet", index=False)
    source = Source(name="a", path=str(tmp_path / "zone.parquet"), id="at")
    assert read(source).samples.tolist() == written
    assert table_from(there, client="a", id="at").samples.tolist() == written
    half = pd.DataFrame({"at": plain + pd.Timedelta("250ms"), "x": range(3)})
    assert table_from(half, client="a", id="at").samples[0] == "2024-03-30 22:00:00.25"


@pytest.mark.parametrize(("spare", "readers"), [(0, None), (1, 1), (3, 3), (100, 8)])
def test_arrow_takes_no_more_threads_than_the_system_gives(spare, readers, tmp_path, monkeypatch):
    """Where one is refused to it, it ends the process."""
    (tmp_path / "a.csv").write_text("id,x\n1,2\n")
    source = Source(name="bank", path=str(tmp_path / "a.csv"), id="id", least_rows=1)
    left = iter(range(csv.cores() + spare))

    class Thread(threading.Thread):
        def start(self) -> None:
            if next(left, None) is None:
                raise RuntimeError("can't start new thread")
            super().start()

    before, limit = pa.io_thread_count(), 8
    pa.set_io_thread_count(limit)
    csv._take_threads_that_there_are.cache_clear()
    monkeypatch.setattr(csv.threading, "Thread", Thread)
    try:
        if readers is None:
            with pytest.raises(RuntimeError, match="can't start new thread"):
                read(source)
        else:
            assert read(source).samples.tolist() == [1]
            assert pa.io_thread_count() == readers
    finally:
        csv._take_threads_that_there_are.cache_clear()
        pa.set_io_thread_count(before)
