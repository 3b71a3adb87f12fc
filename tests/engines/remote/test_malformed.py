"""Every malformed table or file gives one clear sentence, and nothing but a UserError."""

from __future__ import annotations

import gzip
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.sparse import csr_array

from intarsia.data.encoding import assemble
from intarsia.data.labels import LabelSettings
from intarsia.data.reader import read, table_from
from intarsia.data.source import Source
from intarsia.data.table import split
from intarsia.errors import UserError
from intarsia.experiment.config import load

GOOD = "id,age,sex,y\n1,20,F,0\n2,30,M,1\n3,40,F,0\n4,50,M,1\n"
Case = tuple[str, Callable[[Path], Any], str]

IMPERATIVES = re.compile(
    r"\b(add|aggregate|check|choose|convert|copy|correct|describe|drop|expected|fill|give|install|"
    r"leave|list|make|mend|name|pass|put|remove|rename|replace|reshape|run|save|say|set|shorten|"
    r"split|store|use|write)\b",
    re.IGNORECASE,
)


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def one(content: str | bytes, name: str = "t.csv", **settings: Any) -> Callable[[Path], Any]:
    """Return a step that reads one file with the usual id and label, and encodes it."""

    def step(folder: Path) -> Any:
        given = {"id": "id", "label": "y", **settings}
        source = Source(name="bank", path=str(write(folder, name, content)), **given)
        return assemble({"bank": read(source)})

    return step


def alone(content: str | bytes, name: str) -> Callable[[Path], Any]:
    """Return a step that reads one file without settings."""
    return one(content, name, id=None, label=None)


def several(
    *contents: str, settings: LabelSettings | None = None, **both: Any
) -> Callable[[Path], Any]:
    """Return a step that reads and assembles several clients."""

    def step(folder: Path) -> Any:
        tables = {}
        for name, content in zip(("bank", "shop", "telecom"), contents, strict=False):
            label = "y" if ",y\n" in content else None
            path = str(write(folder, f"{name}.csv", content))
            source = Source(**{"name": name, "path": path, "id": "id", "label": label, **both})
            tables[name] = read(source)
        return assemble(tables, settings)

    return step


def labelled(values: str, **settings: Any) -> Callable[[Path], Any]:
    """Return a step with one table of the given labels, one a letter or separated by blanks."""
    rows = "".join(f"{at},{at + 20},{value}\n" for at, value in enumerate(values.split(" ")))
    return several("id,age,y\n" + rows, settings=LabelSettings(**settings))


def npz(**arrays: Any) -> Callable[[Path], Any]:
    def step(folder: Path) -> Any:
        np.savez(folder / "t.npz", **arrays)
        return assemble({"bank": read(Source(name="bank", path=str(folder / "t.npz")))})

    return step


def parquet(**columns: Any) -> Callable[[Path], Any]:
    def step(folder: Path) -> Any:
        pq.write_table(pa.table(columns), folder / "t.parquet")
        return read(Source(name="bank", path=str(folder / "t.parquet")))

    return step


def sql(query: str, kind: str = "sqlite", **settings: Any) -> Callable[[Path], Any]:
    def step(folder: Path) -> Any:
        path = folder / f"t.{kind}"
        connect = sqlite3.connect if kind == "sqlite" else duckdb.connect
        connection = connect(str(path))
        connection.execute("create table people (id integer, age double, y integer)")
        connection.execute("insert into people values (1, 20.0, 0), (2, 30.0, 1)")
        connection.commit()
        connection.close()
        url = f"{kind}:///{path}"
        given = {"id": "id", "label": "y", "url": url, "query": query, **settings}
        return assemble({"bank": read(Source(name="bank", **given))})

    return step


def path_to(name: str, **settings: Any) -> Callable[[Path], Any]:
    return lambda folder: read(Source(name="bank", path=str(folder / name), **settings))


def url(url: str, query: str | None = "select 1") -> Callable[[Path], Any]:
    return lambda folder: read(Source(name="bank", url=url.format(folder=folder), query=query))


def toml(content: str | bytes, *overrides: str) -> Callable[[Path], Any]:
    return lambda folder: load(write(folder, "e.toml", content), overrides)


def frame(columns: Any, **settings: Any) -> Callable[[Path], Any]:
    return lambda _: table_from(pd.DataFrame(columns), client="bank", **settings)


def matrix(x: Any, labels: Any = None, **settings: Any) -> Callable[[Path], Any]:
    return lambda _: table_from(x, labels, client="bank", **settings)


HEAD = '[algorithm]\nname = "hyfdca"\n[dataset]\nname = "a9a"\n'
DAYS = "".join(f"{at},2026-01-{at:02d},{at % 2}\n" for at in range(1, 9))
NAMES = "".join(f"{at},person-{at},{at % 2}\n" for at in range(300))
CLIENT = HEAD.split("[dataset]")[0] + '[[client]]\nname = "bank"\npath = "t.csv"\n'

CASES: list[Case] = [
    # the file itself
    ("a missing file", path_to("none.csv"), "none.csv"),
    ("a folder", lambda f: path_to("")(f), "folder"),
    ("an ending that tells no format", one(GOOD, "t.dat"), "'.dat'"),
    ("an empty file", one(""), "empty"),
    ("a file of blank lines", one("\n\n  \n"), "empty"),
    ("a header without rows", one("id,age,y\n"), "0 rows"),
    ("latin-1 text", one("id,naïve,y\n1,2,0\n".encode("latin-1")), "line 1"),
    ("latin-1 text in a late row", one(GOOD.encode() + b"5,60,\xe9,1\n"), "line 6"),
    ("utf-16 text", one(GOOD.encode("utf-16")), "UTF-16"),
    ("a binary file called csv", one(b"\x89PNG\0\0\0\r\n\x1a"), "PNG"),
    ("a cut gzip file", one(gzip.compress(GOOD.encode())[:30], "t.csv.gz"), "gzip"),
    ("a plain file called gz", one(GOOD, "t.csv.gz"), "gzip"),
    ("a gzip file of nothing", one(gzip.compress(b""), "t.csv.gz"), "empty"),
    # lines
    ("a short line", one(GOOD + "5,60\n"), "line 6 has 2 values"),
    ("a long line", one(GOOD + "5,60,F,1,9\n"), "line 6 has 5 values"),
    ("an open quote", one(GOOD + '5,"60,F,1\n'), "line 6"),
    ("another separator than is said", one(GOOD, separator=";"), "set separator to ','"),
    ("a separator of two characters", one(GOOD, separator=";;"), "';;'"),
    ("no header", one("1.5,2,3.5\n2.5,3,4.5\n", id=None, label=None), "1.5"),
    ("two columns of one name", one(GOOD.replace("sex", "age")), "'age'"),
    ("a column without a name", one(GOOD.replace("sex", "")), "column 3"),
    # named columns
    ("an unknown id", one(GOOD, id="ids"), "'id'"),
    ("an unknown label", one(GOOD, label="Y2"), "'Y2'"),
    ("an unknown feature", one(GOOD, features=("agee",)), "'age'"),
    ("an unknown column left out", one(GOOD, exclude=("sexx",)), "'sex'"),
    ("an unknown category", one(GOOD, categorical=("sax",)), "'sex'"),
    ("an unknown column in a group", one(GOOD, groups={"d": ("ag",)}), "'age'"),
    ("a group of a column left out", one(GOOD, exclude=("sex",), groups={"d": ("sex",)}), "'sex'"),
    ("the label as a feature", one(GOOD, features=("age", "y")), "'y'"),
    ("the id as a category", one(GOOD, categorical=("id",)), "'id'"),
    ("id and label in one column", one(GOOD, label="id"), "'id'"),
    ("a feature twice", one(GOOD, features=("age", "age")), "'age'"),
    ("a column in two groups", one(GOOD, groups={"a": ("age",), "b": ("age",)}), "'age'"),
    ("used and left out", one(GOOD, features=("age",), exclude=("age",)), "'age'"),
    ("no feature", one(GOOD, label=None, exclude=("age", "sex", "y")), "'age'"),
    # ids
    ("an id twice", one(GOOD + "2,60,F,1\n"), "rows 2 and 5"),
    ("a type of no id", one(GOOD, id=None, id_type="text"), "'text'"),
    ("no id in a row", one(GOOD + ",60,F,1\n"), "row 5"),
    ("a text id among forced numbers", one(GOOD + "5a,60,F,1\n", id_type="integer"), "'5a'"),
    ("an id beyond 64 bits", one(GOOD + "9" * 20 + ",60,F,1\n", id_type="integer"), "9" * 20),
    ("ids of two types", several(GOOD, GOOD.replace("\n1,", "\na1,")), "a1"),
    ("true and false as ids", frame({"id": [True, False], "a": [1, 2]}, id="id"), "true"),
    # values
    ("text among numbers", one(GOOD + "5,sixty,F,1\n"), "'sixty'"),
    ("a number among texts", one(GOOD + "5,60,7,1\n"), "'7'"),
    ("an infinite value", one(GOOD + "5,inf,F,1\n"), "row 5"),
    ("a value beyond floats", one(GOOD + "5,1e999,F,1\n"), "1e999"),
    ("dates", one("id,day,y\n" + DAYS), "dates or times"),
    ("decimal commas", one('id,a,y\n1,"1,5",0\n2,"2,5",1\n'), "'1,5'"),
    ("names of people", one("id,name,y\n" + NAMES), "300 different texts"),
    ("numbers here, text there", several(GOOD, "id,sex\n1,0\n2,1\n"), "'sex'"),
    # labels
    ("no label column anywhere", several("id,a\n1,2\n", "id,b\n1,2\n"), "'bank'"),
    ("every label missing", several("id,a,y\n1,2,\n2,3,?\n"), "'y'"),
    ("one class", labelled("1 1 1"), "'1'"),
    ("three classes in a binary task", labelled("0 1 2", task="binary"), "'2'"),
    ("an unlisted class", labelled("0 1 2", classes=("0", "1")), "'2'"),
    ("no positive label", labelled("no no yes", positive="yess"), "'yes'"),
    ("nothing but positive labels", labelled("1 2 1", positive=("1", "2")), "'1'"),
    ("text in a regression target", labelled("1.5 2.5 x", task="regression"), "'x'"),
    ("text among number labels", labelled("0 1 oops"), "'oops'"),
    (
        "number labels at one, text at another",
        several("id,a,y\n1,2,0\n2,3,1\n", "id,b,y\n1,2,no\n2,3,yes\n"),
        "'no', 'yes' at",
    ),
    ("an infinite label", labelled("0.5 1.5 inf"), "inf"),
    ("dates as labels", parquet(a=[1.0], y=[pd.Timestamp("2026-01-01")]), "dates or times"),
    ("people as classes", labelled(" ".join(f"p{at}" for at in range(1100))), "1100"),
    # parquet
    ("no parquet file", alone("hello, I am text", "t.parquet"), "parquet"),
    ("a cut parquet file", alone(b"PAR1" + b"x" * 40, "t.parquet"), "parquet"),
    ("a list in a cell", parquet(a=[[1, 2], [3]]), "'a'"),
    ("bytes in a cell", parquet(a=[b"\xff\xfe", b"x"]), "xff"),
    ("a parquet file without rows", parquet(a=pa.array([], pa.float64())), "0 rows"),
    # libsvm
    ("a libsvm label of text", alone("1 1:2\nyes 1:3\n", "t.svm"), "'yes'"),
    ("a libsvm entry without colon", alone("1 1:2\n0 3\n", "t.svm"), "line 2"),
    ("a libsvm value of text", alone("1 1:2\n0 2:x\n", "t.svm"), "'x'"),
    ("a libsvm index of text", alone("1 1:2\n0 a:1\n", "t.svm"), "'a'"),
    ("a negative libsvm index", alone("1 1:2\n0 -1:1\n", "t.svm"), "'-1'"),
    ("a vast libsvm index", alone("1 1:2\n0 3000000000:1\n", "t.svm"), "above 2147483647"),
    (
        "a libsvm index that makes too many features",
        alone("1 1:2\n0 1:1 2000000000:1\n", "t.svm"),
        "index 2,000,000,000 in sample 2 would make as many features, in a file of 3 entries",
    ),
    ("a libsvm index twice", alone("1 1:2\n0 2:1 2:3\n", "t.svm"), "2 follows 2"),
    ("an infinite libsvm value", alone("1 1:2\n0 2:inf\n", "t.svm"), "'inf'"),
    ("a libsvm file of comments", alone("# nothing\n", "t.svm"), "0 samples"),
    ("a libsvm file with an id column", one("1 1:2\n0 1:3\n", "t.svm", label=None), "'id'"),
    # npz
    ("no npz file", alone("hello", "t.npz"), "npz"),
    ("a cut npz file", alone(b"PK\x03\x04" + b"\0" * 50, "t.npz"), "npz"),
    ("npz without x", npz(z=np.ones(3)), "'z'"),
    ("npz of views", npz(a=np.ones((3, 2)), b=np.ones((2, 2, 2)), y=np.ones(3)), "'b' has 2"),
    ("npz of images", npz(x=np.ones((2, 3, 4)), y=np.ones(2)), "(2, 3, 4)"),
    ("npz with objects", npz(x=np.array([[1, "a"]], object)), "npz"),
    ("npz with too few labels", npz(x=np.ones((3, 2)), y=np.ones(2)), "(2,)"),
    ("npz with too few names", npz(x=np.ones((3, 2)), features=np.array(["a"])), "1 feature"),
    (
        "a torn CSR matrix",
        npz(data=np.ones(2), indices=[0, 9], indptr=[0, 1, 2], shape=[2, 3]),
        "CSR",
    ),
    # databases
    ("a missing database", url("sqlite:///{folder}/none.sqlite"), "none.sqlite"),
    ("a missing duckdb file", url("duckdb:///{folder}/none.duckdb"), "none.duckdb"),
    ("a wrong url", url("not a url"), "not a url"),
    ("an unknown kind of database", url("nosuch://host/x"), "nosuch"),
    ("a url without a query", url("sqlite:///{folder}/t.sqlite", None), "query"),
    ("an unknown sqlite table", sql("select * from persons"), "persons"),
    ("an unknown duckdb table", sql("select * from persons", "duckdb"), "persons"),
    ("wrong SQL", sql("selec * from people"), "selec"),
    ("wrong SQL for duckdb", sql("selec * from people", "duckdb"), "selec"),
    ("a query without rows", sql("select * from people where id > 9"), "no rows"),
    ("a duckdb query without rows", sql("select * from people where id > 9", "duckdb"), "no rows"),
    ("a query that deletes", sql("delete from people"), "delete"),
    ("a duckdb query that deletes", sql("delete from people", "duckdb"), "delete"),
    ("a query without the id", sql("select age, y from people"), "'id'"),
    # arrays and frames
    ("text in a matrix", matrix(np.array([["1", "a"]], object)), "'1'"),
    ("complex numbers", matrix(np.eye(2) * 1j), "complex128"),
    ("rows of different lengths", matrix([[1, 2], [3]]), "inhomogeneous"),
    ("periods in a frame", frame({"a": pd.period_range("2026", periods=2)}), "period"),
    ("one axis", matrix(np.ones(3)), "(3,)"),
    ("too few labels", matrix(np.ones((3, 2)), [1, 0]), "(2,)"),
    ("too few ids", matrix(np.ones((3, 2)), samples=[1, 2]), "(2,)"),
    ("an infinite entry", matrix(np.array([[1.0, np.inf]])), "'x1'"),
    ("NaN in a sparse matrix", matrix(csr_array(np.array([[1.0, np.nan]]))), "'x1'"),
    ("a sparse category", matrix(csr_array(np.eye(2)), categorical=["x0"]), "'x0'"),
    ("a mixed frame column", frame({"a": [1, "x"], "b": [1, 2]}), "'x'"),
    ("times in a frame", frame({"a": pd.to_datetime(["2026-01-01"])}), "dates or times"),
    ("an unknown setting", frame({"a": [1, 2]}, categoricals=["a"]), "'categorical'"),
    # the split
    (
        "nothing left to train on",
        lambda _: split(assemble({"b": table_from(np.eye(2), [0, 1])})[0]["b"], 0.9999999),
        "2 rows",
    ),
    # the experiment file
    ("no experiment file", lambda f: load(f / "none.toml"), "none.toml"),
    ("wrong TOML", toml("[experiment]\nrounds = = 5\n"), "line 2, column 10"),
    ("an experiment in latin-1", toml('name = "é"'.encode("latin-1")), "UTF-8"),
    ("an unknown table", toml(HEAD + "[experimnt]\nseed = 1\n"), "'experiment'"),
    ("an unknown key", toml(HEAD + "[experiment]\nround = 5\n"), "'rounds'"),
    ("rounds of text", toml(HEAD + '[experiment]\nrounds = "many"\n'), '"many"'),
    ("no rounds", toml(HEAD + "[experiment]\nrounds = 0\n"), "0"),
    ("a wrong pattern", toml(HEAD, "experiment.participation_pattern=cyclical"), "'cyclic'"),
    ("no algorithm", toml('[dataset]\nname = "a9a"\n'), "name"),
    ("no data", toml('[algorithm]\nname = "hyfdca"\n'), "[dataset]"),
    ("a test part of everything", toml(HEAD + "[split]\ntest = 1.0\n"), "1.0"),
    ("an unknown client key", toml(CLIENT + 'lable = "y"\n'), "'label'"),
    ("client as a plain table", toml(CLIENT.replace("[[client]]", "[client]")), "[[client]]"),
    ("two clients of one name", toml(CLIENT + CLIENT.split("\n", 2)[2]), "'bank'"),
    ("a client without a name", toml(CLIENT.replace('name = "bank"\n', "")), "'name'"),
    ("an override without a value", toml(HEAD, "experiment.rounds"), "experiment.rounds"),
    ("an override of nobody", toml(CLIENT, "client.bnk.path=x"), "'bank'"),
]


def test_there_are_at_least_fifty_cases_and_none_twice() -> None:
    names = [name for name, _, _ in CASES]
    assert len(set(names)) == len(names) >= 50


@pytest.mark.parametrize(("step", "value"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_malformed_input_gives_one_clear_sentence(
    tmp_path: Path, step: Callable[[Path], Any], value: str
) -> None:
    with pytest.raises(UserError) as caught:
        step(tmp_path)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert sentence.endswith(".")
    assert value in sentence
    ending = re.split(r"[;:] ", sentence)[-1] if ";" in sentence else sentence
    assert IMPERATIVES.search(sentence.rsplit("; ", 1)[-1]), ending
    assert len(sentence) < 600
