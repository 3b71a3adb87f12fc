"""Tables and settings as people have them: read by rule, or refused in one sentence.

The sentence says what was wrong with the actual values, what was expected and what to do. It is the
same from `intarsia run`, `intarsia inspect` and Python; the exit status is 2, without a traceback.
"""

from __future__ import annotations

import csv
import gzip
import io
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

import intarsia
from command_line import one_error, said
from intarsia.cli.main import main
from intarsia.data.reader import table_from
from intarsia.errors import ExperimentError, TableError, UserError
from intarsia.experiment import config as experiment
from intarsia.experiment import federation

TOP = """
[experiment]
rounds = 3
evaluate_every = 0
yardsticks = false

[split]
test = 0.0

[algorithm]
name = "hyfdca"
loss = "logistic"
regularisation = 0.1
"""
BANK, SHOP = 30, range(10, 40)
Change = Callable[[str], str | bytes]
Cell = Callable[[int, str], str]


@dataclass(frozen=True)
class Case:
    """What is other than in the clean tables, and what is said."""

    sentence: str = ""  # of the error, without "error: "; "…" stands for anything
    bank: Mapping[str, Cell] = field(default_factory=dict[str, Cell])  # column -> its cells
    shop: Mapping[str, Cell] = field(default_factory=dict[str, Cell])
    bank_file: Change = str
    shop_file: Change = str
    bank_keys: str = ""  # lines of the client's table of the experiment
    shop_keys: str = ""
    path: str = "bank.csv"
    more: str = ""  # lines of the experiment
    whole: Change | None = None  # of the experiment's file


def clean(name: str) -> pd.DataFrame:
    """Return a client's table as text, cell for cell."""
    rows = range(BANK) if name == "bank" else SHOP
    made: dict[str, list[str]] = {"customer": [str(i) for i in rows]}
    if name == "bank":
        made["age"] = [str(20 + i % 7) for i in rows]
        made["income"] = [f"{1000 * (1 + i % 9) + i}.5" for i in rows]
        made["debt"] = [str(5 - i) for i in rows]
        made["member"] = [str(i % 3 % 2) for i in rows]
        made["default"] = [str(i % 2) for i in rows]
    else:
        made["basket"] = [str(i * 13 % 11) for i in rows]
        made["town"] = [("Köln", "Rom")[i % 2] for i in rows]
    return pd.DataFrame(made)


def text_of(name: str, cells: Mapping[str, Cell]) -> str:
    table = clean(name)
    for column, change in cells.items():
        old = table[column] if column in table else [""] * len(table)
        table[column] = [
            change(int(i), one) for i, one in zip(clean(name)["customer"], old, strict=True)
        ]
    content = io.StringIO()
    table.to_csv(content, index=False, quoting=csv.QUOTE_MINIMAL, lineterminator="\n")
    return content.getvalue()


def write(case: Case, folder: Path) -> Path:
    """Write the tables and the experiment of a case; return the experiment's file."""
    changes = {"bank": (case.bank, case.bank_file), "shop": (case.shop, case.shop_file)}
    for name, (cells, change) in changes.items():
        content = change(text_of(name, cells))
        data = content if isinstance(content, bytes) else content.encode()
        (folder / f"{name}.csv").write_bytes(data)
    if case.path.endswith(".xlsx"):
        (folder / case.path).write_bytes(b"PK")
    text = (
        f'{case.more}{TOP}\n[[client]]\nname = "bank"\npath = "{case.path}"\nid = "customer"\n'
        f'label = "default"\n{case.bank_keys}\n'
        f'[[client]]\nname = "shop"\npath = "shop.csv"\nid = "customer"\n{case.shop_keys}\n'
    )
    whole = text if case.whole is None else case.whole(text)
    file = folder / "two.toml"
    file.write_bytes(whole if isinstance(whole, bytes) else whole.encode())
    return file


def at(row: int, value: str) -> Cell:
    return lambda i, old: value if i == row else old


def line(number: int, text: str) -> Change:
    """Put a line into a file, counted from 1."""

    def change(content: str) -> str:
        lines = content.split("\n")
        return "\n".join([*lines[: number - 1], text, *lines[number - 1 :]])

    return change


def grouped(text: str, mark: str, decimal: str = ".") -> str:
    return f"{float(text):,.1f}".replace(",", "m").replace(".", decimal).replace("m", mark)


# -- what is read by rule: as the clean tables, to the bit

READ: dict[str, Case] = {
    "ids that are 10.0 in one file and 10 in another": Case(
        shop={"customer": lambda i, old: f"{old}.0"}
    ),
    "ids with blanks around them": Case(shop={"customer": lambda i, old: f"  {old} "}),
    "an id that is minus zero": Case(bank={"customer": at(0, "-0")}),
    "names with blanks around them": Case(bank_file=lambda text: text.replace(",", " , ", 5)),
    "a byte order mark": Case(bank_file=lambda text: "\ufeff" + text),
    "lines of Windows among others": Case(
        bank_file=lambda text: text.replace("\n", "\r\n", 12), shop_file=lambda text: text
    ),
    "lines of an old Macintosh": Case(bank_file=lambda text: text.replace("\n", "\r")),
    "empty lines": Case(bank_file=lambda text: text.replace("\n", "\n\n")),
    "gzip under the name of a CSV file": Case(bank_file=lambda text: gzip.compress(text.encode())),
    "semicolons": Case(bank_file=lambda text: text.replace(",", ";")),
    "semicolons, which Excel names in a line of its own": Case(
        bank_file=lambda text: "\ufeffsep=;\r\n" + text.replace(",", ";").replace("\n", "\r\n")
    ),
    "that line beside the separator of the settings": Case(
        bank_file=lambda text: "sep=,\n" + text, bank_keys='separator = ","'
    ),
    "true and false in several spellings": Case(
        bank={"member": lambda i, old: (("FALSE", "true"), ("False", "TRUE"))[i % 2][int(old)]}
    ),
    "true and false among 1 and 0": Case(
        bank={"member": lambda i, old: (("False", "true"), ("0", "1"))[i % 2][int(old)]}
    ),
    "the sign of minus in mathematics": Case(
        bank={"debt": lambda i, old: old.replace("-", "\u2212")}
    ),
    "a comma between thousands": Case(
        bank={"income": lambda i, old: grouped(old, ",")}, bank_keys='thousands = ","'
    ),
    "a no-break space between thousands": Case(
        bank={"income": lambda i, old: grouped(old, "\u00a0")}, bank_keys='thousands = " "'
    ),
    "a decimal comma": Case(
        bank={"income": lambda i, old: old.replace(".", ",")}, bank_keys='decimal = ","'
    ),
    "a decimal comma and points between thousands": Case(
        bank={"income": lambda i, old: grouped(old, ".", ",")},
        bank_keys='decimal = ","\nthousands = "."',
    ),
    "an encoding of Windows": Case(
        shop_file=lambda text: text.encode("cp1252"), shop_keys='encoding = "cp1252"'
    ),
    "UTF-16": Case(shop_file=lambda text: text.encode("utf-16"), shop_keys='encoding = "utf-16"'),
    "labels in other words": Case(
        bank={"default": lambda i, old: ("no", "yes")[int(old)]},
        bank_keys="label_map = { no = 0, yes = 1 }",
    ),
}


@pytest.mark.parametrize("name", READ)
def test_a_table_is_read_as_the_clean_one(name: str, tmp_path: Path, capfd: Any) -> None:
    (tmp_path / "clean").mkdir()
    expected = federation.build(experiment.load(write(Case(), tmp_path / "clean")))
    file = write(READ[name], tmp_path)
    found = federation.build(experiment.load(file))
    assert found.labels == expected.labels
    for client, block in expected.train.items():
        assert found.train[client].features == block.features
        assert_array_equal(found.train[client].samples, block.samples)
        assert_array_equal(found.train[client].x, block.x)
        if block.y is not None:
            assert_array_equal(found.train[client].y, block.y)
    assert main(["inspect", str(file)]) == 0


def test_labels_of_two_clients_are_brought_together(tmp_path: Path) -> None:
    words = lambda i, old: ("no", "yes")[i % 2]  # noqa: E731  # beside the table's own lambdas
    keys = 'label = "default"\nlabel_map = { "no" = 0, "yes" = 1 }'
    found = federation.build(
        experiment.load(write(Case(shop={"default": words}, shop_keys=keys), tmp_path))
    )
    assert found.labels.classes == ("0", "1")
    assert_array_equal(found.train["shop"].y, [1.0 if i % 2 else -1.0 for i in SHOP])


def test_dates_are_days_since_1970_in_utc(tmp_path: Path) -> None:
    cells = ["1970-01-01", "1970-01-03 12:00", "2000/1/1", "1969-12-31T18:00:00-06:00", "?"]
    path = tmp_path / "t.csv"
    path.write_text("since,x\n" + "".join(f"{one},1\n" for one in cells))
    text = pd.read_csv(path)
    expected = [0.0, 2.5, 10957.0, 0.0, np.nan]  # 30 years and 7 leap days
    assert_array_equal(table_from(text, dates="days").values[:, 0], expected)
    stamps = [pd.Timestamp(one.replace("/1/1", "-01-01")).tz_localize(None) for one in cells[:3]]
    frame = pd.DataFrame({"since": [*stamps, pd.NaT]})
    assert_array_equal(table_from(frame, dates="days").values[:, 0], [0.0, 2.5, 10957.0, np.nan])
    aware = pd.DataFrame({"since": pd.to_datetime(["1969-12-31T18:00:00-06:00"])})
    assert_array_equal(table_from(aware, dates="days").values, [[0.0]])
    for arrow in ("1970-01-02\n1970-01-03\n", "1970-01-02 00:00:00\n1970-01-03 00:00:00\n"):
        path.write_text("since\n" + arrow)
        source = experiment.Source(name="t", path=str(path), dates="days")
        assert_array_equal(intarsia.data.read(source).values, [[1.0], [2.0]])


@pytest.mark.parametrize(
    ("order", "cells"),
    [
        ("day first", ["3.1.1970", "13/01/1970 12:00", "1970-02-01"]),  # with the year first too
        ("month first", ["1/3/1970", "01/13/1970 12:00", "1970-02-01"]),
    ],
)
def test_dates_are_read_in_the_order_that_is_named(tmp_path: Path, order: str, cells: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text("since,x\n" + "".join(f"{one},1\n" for one in cells))
    found = table_from(pd.read_csv(path), dates=order).values[:, 0]
    assert_array_equal(found, [2.0, 12.5, 31.0])
    other = "month first" if order == "day first" else "day first"
    with pytest.raises(TableError, match=f'set dates = "{order}"'):
        table_from(pd.read_csv(path), dates=other)


# -- what is refused

BANK_CSV = "Client 'bank' (bank.csv): "
NOT_ONE = "all clients come to know the texts of a category: list it in exclude, …"
REFUSED: dict[str, Case] = {
    "an empty file": Case(
        f"{BANK_CSV}the file is empty (0 lines with text); check that it was written.",
        bank_file=lambda text: " \n",
    ),
    "a header alone": Case(
        f"{BANK_CSV}the table has 6 columns but 0 rows; a client needs one row at least: …",
        bank_file=lambda text: text.split("\n")[0] + "\n",
    ),
    "no header": Case(
        f"{BANK_CSV}the first line ('0, 20, 1000.5, 5, 0, 0') has numbers only; the first line "
        "must have the names of the columns: add it.",
        bank_file=lambda text: text.split("\n", 1)[1],
    ),
    "two columns of one name": Case(
        f"{BANK_CSV}two columns have the name 'income'; rename one of them.",
        bank_file=lambda text: text.replace("age", " income"),
    ),
    "a column without a name": Case(
        f"{BANK_CSV}the name of column 7 is ''; give every column a name in the header line, "
        "or, if it is empty, remove the separator at the end of every line.",
        bank_file=lambda text: text.replace("\n", ",\n"),
    ),
    "columns without a name at the end": Case(
        f"{BANK_CSV}columns 7 to 1,006 have no name; give every column a name in the header line, "
        "or, if they are empty, remove the separators at the end of every line.",
        bank_file=lambda text: text.replace("\n", 1000 * "," + "\n"),
    ),
    "a title with separators": Case(
        f"{BANK_CSV}columns 2 to 6 have no name; give every column a name in the header line, …; "
        "if 'Customers of 2023' is a title, remove the lines above the names.",
        bank_file=lambda text: f"Customers of 2023,,,,,\n{text}",
    ),
    "an id twice": Case(
        f"{BANK_CSV}id column 'customer' has 3 in 2 rows (first: rows 4 and 8; 1 id repeats); "
        "every sample needs one row: aggregate or drop the repeated rows.",
        bank={"customer": at(7, "3.0")},
    ),
    "an id missing": Case(
        f"{BANK_CSV}id column 'customer' has no id in 1 row (first: row 8); every row needs an "
        "id: fill it in or drop the row.",
        bank={"customer": at(7, "")},
    ),
    "a line of totals": Case(
        "Client 'shop' has whole numbers as sample ids (first: 10) but client 'bank' has text "
        "(first: 'Total'); ids must have one type: …",
        bank={"customer": at(29, "Total")},
    ),
    "ids that a spreadsheet shortened": Case(
        f"{BANK_CSV}id column 'customer' has '4.92E+12', a number of which digits may be lost, so "
        "that two ids can be one (decimal numbers are exact up to 2^53 = 9007199254740992); write "
        "ids in full, as whole numbers or as text.",
        bank={"customer": at(29, "4.92E+12")},
    ),
    "ids in letters of another alphabet": Case(
        "Client 'shop' has 30 training samples, none of which has a label at any client; ids such "
        "as 'A…' look like those of samples with a label, in letters of another alphabet at one "
        "of the clients: write them in one alphabet.",
        bank={"customer": lambda i, old: f"\u0410{old}"},
        shop={"customer": lambda i, old: f"A{old}"},
    ),
    "ids in another case": Case(
        "Client 'shop' has 30 training samples, none of which has a label at any client; by a rule "
        '20 of their ids are those of samples with a label: set normalise = ["case"] in '
        "[alignment].",
        bank={"customer": lambda i, old: f"a{old}"},
        shop={"customer": lambda i, old: f"A{old}"},
    ),
    "ids with other blanks inside": Case(
        "Client 'shop' has 30 training samples, none of which has a label at any client; by a rule "
        '20 of their ids are those of samples with a label: set normalise = ["spaces"] in '
        "[alignment].",
        bank={"customer": lambda i, old: f"a {old}"},
        shop={"customer": lambda i, old: f"a  {old}"},
    ),
    "no row in common": Case(
        "Client 'shop' has 30 training samples, none of which has a label at any client; its ids "
        "(such as 910) and theirs (such as 0) have nothing in common: name the column with the ids "
        "that both know, give the client rows that others know, or labels.",
        shop={"customer": lambda i, old: str(i + 900)},
    ),
    "a NUL": Case(
        f"{BANK_CSV}line 32 has a NUL character ('5,-24,0,1\\n7\\x00'), which is not text; set "
        "format or encoding to what it is, or save it as UTF-8 text.",
        bank_file=lambda text: text + "7\0,1,2,3,0,1\n",
    ),
    "a line that is too long": Case(
        f"{BANK_CSV}line 3 has 7 values ('77,1,2,3,0,1,5') but the header has 6; give every line 6 "
        "values, and put a value with a separator in quotes, or set separator if it is not ','.",
        bank_file=line(3, "77,1,2,3,0,1,5"),
    ),
    "a line that is too short": Case(
        f"{BANK_CSV}line 3 has 2 values ('77,1') but the header has 6; …",
        bank_file=line(3, "77,1"),
    ),
    "a quote that does not end": Case(
        f'{BANK_CSV}the quote (") that begins in line 30 is not closed; close it where …',
        bank_file=line(30, '77,1,"2,3,0,1'),
    ),
    "a line break inside a value": Case(
        f"{BANK_CSV}column 'income' mixes numbers and text: '2\\n3' in row 2 beside values such as "
        "'1000.5'; correct it, …",
        bank_file=line(3, '77,1,"2\n3",3,0,1'),
    ),
    "another separator than is set": Case(
        f"{BANK_CSV}the header 'customer,age,income,debt,member,default' has no ';' but ','; set "
        "separator to ',', leave it out, or put a name with ',' in quotes.",
        bank_keys='separator = ";"',
    ),
    "an infinite value": Case(
        f"{BANK_CSV}column 'debt' is -inf in row 5; expected a finite number: replace it by a "
        'number or by an empty cell (missing), or add "-inf" to missing.',
        bank={"debt": at(4, "-inf")},
    ),
    "values that are too large to square": Case(
        f"{BANK_CSV}column 'debt' is 1e300 in row 2, and as large in 28 more; expected a number of "
        "at most 1e+70 in size: correct it, or divide the column by a power of ten at every "
        "client.",
        bank={"debt": lambda i, old: f"{i}e300"},
    ),
    "a value that is too large to square": Case(
        f"{BANK_CSV}column 'debt' is -1e300 in row 5; expected a number of at most 1e+70 in size: "
        'correct it, or divide the column by a power of ten at every client, or add "-1e300" to '
        "missing.",
        bank={"debt": at(4, "-1e300")},
    ),
    "labels that are too large to square": Case(
        f"{BANK_CSV}label column 'default' is 1e155 in row 2, and as large in 28 more; expected a "
        "number of at most 1e+70 in size: correct it, or divide the column by a power of ten at "
        "every client.",
        bank={"default": lambda i, old: f"{i}e155"},
    ),
    "labels of which no square is left": Case(
        "The largest label 'default' of client 'bank' is 2.9e-299 in size; expected one from "
        "1e-70 to 1e+70: multiply or divide the labels by a power of ten at every client.",
        bank={"default": lambda i, old: f"{i}e-300"},
        whole=lambda text: text.replace("logistic", "squared"),
    ),
    "whole numbers that a float64 does not hold": Case(
        f"{BANK_CSV}column 'debt' has 9007199254740993 in row 5, beyond the whole numbers that a "
        "float64 holds exactly (up to 2^53 = 9007199254740992); a feature of so many digits is "
        "mostly a code: list the column in exclude or in categorical, or divide it by a power of "
        "ten.",
        bank={"debt": at(4, "9007199254740993")},
    ),
    "labels that a float64 does not hold": Case(
        f"{BANK_CSV}label column 'default' has 9007199254740993 in row 5, beyond the whole numbers "
        "that a float64 holds exactly …",
        bank={"default": at(4, "9007199254740993")},
    ),
    "one row": Case(
        "All 1 labels are '0' (label column 'default'); training needs two classes: check the "
        "label column.",
        bank_file=lambda text: "\n".join(text.split("\n")[:2]),
    ),
    "a constant label": Case(
        "All 30 labels are '1' (label column 'default'); training needs two classes: …",
        bank={"default": lambda i, old: "1"},
    ),
    "no label at all": Case(
        "Every label is missing (label column 'default' of client 'bank' and 0 more); at least one "
        "sample needs a label: check label and missing.",
        bank={"default": lambda i, old: "?"},
    ),
    "labels in other words": Case(
        "Label column 'default' has '0', '1' at 'bank' but 'no', 'yes' at 'shop'; say at 'shop' "
        'which class each is, as in label_map = { "no" = "0", "yes" = "1" }, or list all classes '
        "in [labels] if they are different.",
        shop={"default": lambda i, old: ("no", "yes")[i % 2]},
        shop_keys='label = "default"',
    ),
    "an amount as the label of one client": Case(
        "Label column 'default' has '10', '11', '12' and 27 more at 'shop' but 'no', 'yes' at "
        "'bank'; name the same label at both: label = ... at 'shop' or 'bank'.",
        bank={"default": lambda i, old: ("no", "yes")[i % 2]},
        shop={"default": lambda i, old: str(i)},
        shop_keys='label = "default"',
    ),
    "yes and no in two languages of a spreadsheet": Case(
        "Label column 'default' has 'N', 'Y' at 'bank' but 'false', 'true' at 'shop'; say at "
        "'shop' which class each is, …",
        bank={"default": lambda i, old: ("N", "Y")[i % 2]},
        shop={"default": lambda i, old: ("FALSE", "TRUE")[i % 2]},
        shop_keys='label = "default"',
    ),
    "yes and no in two languages": Case(
        "Label column 'default' has 'no', 'yes' at 'bank' but 'J', 'N' at 'shop'; say at 'shop' "
        'which class each is, as in label_map = { "N" = "no", "J" = "yes" }, or list all classes '
        "in [labels] if they are different.",
        bank={"default": lambda i, old: ("no", "yes")[i % 2]},
        shop={"default": lambda i, old: ("N", "J")[i % 2]},
        shop_keys='label = "default"',
    ),
    "a label that is not in the map": Case(
        "Label column 'default' has numbers (such as '0' at 'bank') and text (such as 'yse' at "
        "'bank'); say at 'bank' by label_map which class 'yse' is, add it to missing, correct it, "
        "or list all classes in [labels].",
        bank={"default": lambda i, old: "yse" if i == 9 else ("no", "yes")[i % 2]},
        bank_keys="label_map = { no = 0, yes = 1 }",
    ),
    "a map of labels without labels": Case(
        "Client 'shop' (shop.csv): label_map is given but there is no label; set label to the "
        "column.",
        shop_keys="label_map = { no = 0 }",
    ),
    "names that differ in case": Case(
        "Columns have names that look the same and are not ('Basket' at client 'bank' and 'basket' "
        "at client 'shop': case, blanks or letters of another alphabet), and would be two "
        "features; write them alike in the tables or by a dictionary ([alignment] dictionary), or "
        "rename one of two that are different.",
        bank_file=lambda text: text.replace("age", "Basket"),
    ),
    "names in letters of another alphabet": Case(
        "Columns have names that look the same and are not ('b\u0430sket' at client 'bank' and …",
        bank_file=lambda text: text.replace("age", "b\u0430sket"),
    ),
    "an id column of another name": Case(
        "Client 'shop' (shop.csv): id names the column 'customer', which the table does not have; "
        "use 'Customer' (the nearest of 'Customer', 'basket', 'town').",
        shop_file=lambda text: text.replace("customer", "Customer"),
    ),
    "several columns of numbers and text": Case(
        f"{BANK_CSV}3 columns mix numbers and text: 'age' ('n/a' in row 4), 'income' ('low' in row "
        "6), 'debt' ('#N/A' in row 9); correct these values, add them to missing, or list the "
        "columns in categorical.",
        bank={"age": at(3, "n/a"), "income": at(5, "low"), "debt": at(8, "#N/A")},
    ),
    "a column of numbers and text": Case(
        f"{BANK_CSV}column 'age' mixes numbers and text: 'n/a' in row 4 beside values such as "
        "'20'; correct it, add 'n/a' to missing, or list the column in categorical.",
        bank={"age": at(3, "n/a")},
    ),
    "a comma that may be either": Case(
        f"{BANK_CSV}column 'debt' has numbers with a decimal comma or with ',' between thousands "
        '(such as \'2,500\'); set decimal = "," or thousands = ",", whichever it is.',
        bank={"debt": lambda i, old: f"{1 + i},500" if i % 2 else old},
    ),
    "decimal commas": Case(
        f"{BANK_CSV}2 columns have numbers with a decimal comma: 'age' ('20,5'), 'income' "
        "('1000,5'); set decimal = \",\".",
        bank={"age": lambda i, old: f"{old},5", "income": lambda i, old: old.replace(".", ",")},
    ),
    "both decimal marks": Case(
        f"{BANK_CSV}column 'income' has numbers with a decimal point and with a decimal comma "
        "('1000.5' in row 1, '2001,5' in row 2); no setting reads both: write all of them with "
        "the same mark in the table.",
        bank={"income": lambda i, old: old.replace(".", ",") if i % 2 else old},
    ),
    "decimal points where a comma is set": Case(
        f"{BANK_CSV}column 'income' has numbers with a decimal point (such as '1000.5'); set "
        'decimal = ".".',
        bank_keys='decimal = ","',
    ),
    "commas between thousands": Case(
        f"{BANK_CSV}column 'income' has numbers with ',' between thousands (such as '1,000.5'); "
        'set thousands = ",".',
        bank={"income": lambda i, old: grouped(old, ",")},
    ),
    "percent": Case(
        f"{BANK_CSV}column 'age' has numbers with '%' (such as '20%'), which are text; set units = "
        '{ "age" = "%" }, or list the column in exclude or in categorical.',
        bank={"age": lambda i, old: f"{old}%"},
    ),
    "a currency": Case(
        f"{BANK_CSV}column 'income' has numbers with '€' (such as '€ 1000.5'), which are text; …",
        bank={"income": lambda i, old: f"€ {old}"},
    ),
    "dates": Case(
        f"{BANK_CSV}2 columns have dates or times: 'age', 'debt'; a feature is a number or a "
        'category: set dates = "days" (since 1970-01-01), or list them in exclude.',
        bank={"age": lambda i, old: f"2026-01-{i + 1:02}", "debt": lambda i, old: "2026-01-02"},
    ),
    "dates of which the day may be the month": Case(
        f"{BANK_CSV}column 'age' has '01/03/2026' in row 1, which is no date with the year first: "
        'day and month could be taken for each other; set dates = "day first" or "month first", '
        "whichever it is, (days since 1970-01-01), or list the column in exclude.",
        bank={"age": lambda i, old: f"{i % 12 + 1:02}/03/2026"},
        bank_keys='dates = "days"',
    ),
    "a day that does not exist": Case(
        f"{BANK_CSV}column 'age' has '2024-02-30' in row 2, a day or a time that does not exist; "
        "correct it, or leave the cell empty (missing).",
        bank={"age": lambda i, old: "2024-02-30" if i == 1 else "2024-02-28"},
        bank_keys='dates = "days"',
    ),
    "a weight that is text": Case(
        f"{BANK_CSV}weights column 'age' is 'high' in row 2; a weight is a number above 0, from …",
        bank={"age": lambda i, old: "high" if i == 1 else "2"},
        bank_keys='weights = "age"',
    ),
    "times of day": Case(
        f"{BANK_CSV}column 'age' has times of day (such as '00:30:00'); write minutes since "
        "midnight, or list it in exclude.",
        bank={"age": lambda i, old: f"{i % 24:02}:30:00"},
        bank_keys='dates = "days"',
    ),
    "a column of names": Case(
        f"{BANK_CSV}column 'age' has 30 different texts in 30 rows; {NOT_ONE}",
        bank={"age": lambda i, old: f"name {i}"},
    ),
    "an encoding that nobody named": Case(
        "Client 'shop' (shop.csv): line 2 has the bytes b'0,9,K\\xf6ln\\n1', which are not UTF-8; "
        'set encoding to what it is, such as "cp1252", or save the file as UTF-8.',
        shop_file=lambda text: text.encode("latin-1"),
    ),
    "UTF-16": Case(
        f"{BANK_CSV}the file starts with b'\\xff\\xfe', which is UTF-16; set encoding = "
        '"utf-16", or save it as UTF-8.',
        bank_file=lambda text: text.encode("utf-16"),
    ),
    "another encoding than is set": Case(
        "Client 'shop' (shop.csv): line 2 has the bytes …, which are not ascii; set encoding …",
        shop_keys='encoding = "ascii"',
    ),
    "an encoding that is none": Case(
        "Client 'shop': encoding is 'klingon', which is none that Python knows; set one such as "
        '"utf-8", "cp1252" (Windows), "latin-1" or "utf-16".',
        shop_keys='encoding = "klingon"',
    ),
    "decimal and thousands alike": Case(
        "Client 'bank': decimal and thousands are both '.', so that '1.234' could be two numbers; "
        "set decimal = ',', or another character for one.",
        bank_keys='thousands = "."',
    ),
    "a folder": Case(
        "Client 'bank' (…): this is a folder, not a file; name a file in it.", path="."
    ),
    "no file": Case(
        "Client 'bank' (banc.csv): there is no such file; correct path (it is relative to the "
        "experiment file).",
        path="banc.csv",
    ),
    "a workbook": Case(
        "Client 'bank' (bank.xlsx): the ending '.xlsx' is that of a workbook or an archive, which "
        "is not read; save the sheet as CSV (UTF-8), or unpack the archive, and name that file.",
        path="bank.xlsx",
    ),
    "a workbook under the name of a CSV file": Case(
        f"{BANK_CSV}this is a workbook or a zip archive, and no text; "
        "save the sheet as CSV (UTF-8), or unpack the archive.",
        bank_file=lambda text: b"PK\x03\x04" + text.encode(),
    ),
    "a PDF file under the name of a CSV file": Case(
        f"{BANK_CSV}this is a PDF file, and no text; save the table as CSV (UTF-8).",
        bank_file=lambda text: b"%PDF-1.7\n" + text.encode(),
    ),
    "a Parquet file under the name of a CSV file": Case(
        f"{BANK_CSV}this is a Parquet file, and no text; rename it to .parquet, or state format = "
        '"parquet".',
        bank_file=lambda text: b"PAR1" + text.encode(),
    ),
    "JSON under the name of a CSV file": Case(
        f"{BANK_CSV}the file starts with …, as JSON does; save the table as CSV (UTF-8).",
        bank_file=lambda text: '[\n {"customer": 1, "age": 2, "default": 0}\n]\n',
    ),
    "a web page under the name of a CSV file": Case(
        f"{BANK_CSV}the file starts with …, as HTML or XML does; save the table as CSV (UTF-8).",
        bank_file=lambda text: f"\n<!DOCTYPE html>\n<html>{text}</html>\n",
    ),
    "UTF-32": Case(
        f"{BANK_CSV}the file starts with …, which is UTF-32; set encoding = "
        '"utf-32", or save it as UTF-8.',
        bank_file=lambda text: text.encode("utf-32"),
    ),
    "whole numbers of thirty digits": Case(
        f"{BANK_CSV}column 'debt' has {10**29 + 1} in row 1, beyond the whole numbers …",
        bank={"debt": lambda i, old: str(10**29 + 1 + i)},
    ),
    "a web address": Case(
        "Client 'bank' (https://bank.example/bank.csv): path is a web address, and files are not "
        "fetched; download the file and name it, or set url and query for a database.",
        path="https://bank.example/bank.csv",
    ),
    "a path with a NUL": Case(
        "The path 'bank\\x00.csv' is none that a file can have (embedded null byte); correct it.",
        path="bank\\u0000.csv",
    ),
    "the home of a user who is not there": Case(
        "Client 'bank' (~nobody-of-this-name/bank.csv): there is no such file; correct path (it "
        "is relative to the experiment file).",
        path="~nobody-of-this-name/bank.csv",
    ),
    "half a gzip file": Case(
        f"{BANK_CSV}not a whole gzip file (…); copy or compress it again.",
        bank_file=lambda text: gzip.compress(text.encode())[:-20],
    ),
    "a path and a url": Case(
        f"{BANK_CSV}path is 'bank.csv' and url is set too; remove one of the two.",
        bank_keys='url = "sqlite:///bank.db"\nquery = "select 1"',
    ),
    "a key that is nearly one": Case(
        "[[client]] 'bank' has the unknown key 'seperator'; use 'separator' (the nearest of …).",
        bank_keys='seperator = ";"',
    ),
    "a text for a list": Case(
        '[[client]] \'bank\' missing is "?"; expected a list of texts, such as ["?"].',
        bank_keys='missing = "?"',
    ),
    "a table for a text": Case(
        '[[client]] \'bank\' label is {bank = "balance"}; expected text, such as "balance".',
        whole=lambda text: text.replace('label = "default"', 'label = { bank = "balance" }'),
    ),
    "a word that is not one of those": Case(
        "[[client]] 'bank' dates is \"day\"; use 'days' (the nearest of 'days', 'day first', "
        "'month first').",
        bank_keys='dates = "day"',
    ),
    "a client that is not there": Case(
        "-c 'client.shopp.path=x.csv': there is no client 'shopp'; use 'shop' (the nearest of "
        "'bank', 'shop').",
        whole=str,
    ),
    "two clients of one name": Case(
        "2 [[client]] tables have the name 'bank'; rename all but one.",
        whole=lambda text: text.replace('name = "shop"', 'name = "bank"'),
    ),
    "no client": Case(
        "The experiment has no [dataset] and 0 [[client]] tables; describe a simulation ([dataset] "
        "and [partition]) or real clients ([[client]]).",
        whole=lambda text: text.split("[[client]]")[0],
    ),
}


def meant(sentence: str, text: str, folder: Path) -> bool:
    """Return whether a text is a sentence in which "…" stands for anything."""
    pattern = ".*".join(map(re.escape, " ".join(sentence.split()).split("…")))
    text = " ".join(text.replace(f"{folder}/", "").split())
    return re.fullmatch(pattern, text) is not None


@pytest.mark.parametrize("name", REFUSED)
def test_a_table_is_refused_in_one_sentence(name: str, tmp_path: Path, capfd: Any) -> None:
    case = REFUSED[name]
    file = write(case, tmp_path)
    more = ["-c", "client.shopp.path=x.csv"] if "shopp" in case.sentence else []
    assert main(["run", str(file), *more]) == 2
    out, err = said(capfd)
    assert out == ""
    assert err.startswith("error: ")
    assert "Traceback" not in err
    one_error(err)
    sentence = err.removeprefix("error: ")
    assert meant(case.sentence, sentence, tmp_path), err
    assert not (tmp_path / "runs" / "two" / "result.json").exists()
    if more:
        return
    # the same from Python
    with pytest.raises(UserError) as problem:
        intarsia.run(file, overwrite=True)
    assert meant(case.sentence, str(problem.value), tmp_path)
    if "squares" in case.sentence:
        return  # found when sums are made, which inspect does not
    # and from inspect, which tells what a run has against tables that it can count
    status = main(["inspect", str(file)])
    out, err = said(capfd)
    found = " ".join((out + err).replace(f"{tmp_path}/", "").split())
    start = "error: " if status else "a run would stop: "
    assert start + " ".join(case.sentence.split("…")[0].split()) in found


def test_a_file_that_may_not_be_read_is_refused(tmp_path: Path, capfd: Any) -> None:
    file = write(Case(), tmp_path)
    (tmp_path / "bank.csv").chmod(0)
    if os.access(tmp_path / "bank.csv", os.R_OK):
        pytest.skip("the administrator may read everything")
    assert main(["run", str(file)]) == 2
    sentence = one_error(said(capfd)[1])
    assert sentence.endswith("cannot read the file (Permission denied); check its permissions.")


def test_a_pipe_is_not_waited_for(tmp_path: Path, capfd: Any) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    assert main(["run", str(write(Case(path="pipe.csv"), tmp_path))]) == 2
    assert "this is a device or a pipe, not a file; name a file." in said(capfd)[1]


def test_a_column_that_is_wholly_missing_and_rows_without_a_label_are_no_error(
    tmp_path: Path,
) -> None:
    case = Case(bank={"age": lambda i, old: "", "default": at(4, "")})
    found = federation.build(experiment.load(write(case, tmp_path)))
    assert np.isnan(found.train["bank"].x[:, 0]).all()
    assert 4 not in found.train["bank"].samples.tolist()  # nobody has its label
    assert any("have a label at no client" in note for note in found.notes)


# -- in Python


def frames() -> dict[str, pd.DataFrame]:
    made = {name: clean(name) for name in ("bank", "shop")}
    return {name: one.astype({"customer": int}) for name, one in made.items()}


def test_a_label_for_each_table_is_set_in_its_settings() -> None:
    with pytest.raises(ExperimentError) as problem:
        intarsia.run(tables=frames(), id="customer", label={"bank": "balance"})  # type: ignore[arg-type]
    assert str(problem.value) == (
        "label is {'bank': 'balance'}; expected the name of one column: where tables have "
        "different ones, set it for each in table_settings, as in "
        'table_settings={"bank": {"label": "balance"}}.'
    )
    with pytest.raises(ExperimentError, match=r'table_settings=\{"shop": \{"id": "no"\}\}\.$'):
        intarsia.run(tables=frames(), id={"shop": "no"}, label="default")  # type: ignore[arg-type]


def test_frames_are_read_by_the_same_keys() -> None:
    tables = frames()
    plain = intarsia.inspect(tables=tables, id="customer", label="default")
    bank = tables["bank"]
    bank["income"] = [grouped(one, ".", ",") for one in bank["income"]]
    bank["default"] = [("no", "yes")[int(one)] for one in bank["default"]]
    keys: dict[str, Any] = {"decimal": ",", "thousands": ".", "label_map": {"no": 0, "yes": 1}}
    found = intarsia.inspect(tables=tables, id="customer", label="default", **keys)
    assert found.classes == plain.classes
    assert found.schema.features.ids.tolist() == plain.schema.features.ids.tolist()
    with pytest.raises(ExperimentError, match="decimal is given, but the clients' tables are"):
        intarsia.run("some.toml", decimal=",")
    with pytest.raises(ExperimentError, match=r"decimal is \";\""):
        intarsia.run(tables=tables, id="customer", label="default", decimal=";")
    with pytest.raises(TableError, match=r"'income' has numbers with a decimal comma and '.'"):
        intarsia.inspect(tables=tables, id="customer", label="default")


def test_ids_of_a_frame_that_lost_digits_are_refused() -> None:
    frame = pd.DataFrame({"id": [2.0**53 + 2, 4.0], "x": [1, 2]})
    with pytest.raises(TableError, match=r"has '9007199254740994.0', a number of which digits may"):
        table_from(frame, id="id")
    kept = table_from(frame, id="id", id_type="text").samples
    assert kept.dtype.kind == "U"


# -- predict


def predicted(folder: Path, table: Path, capfd: Any, *more: str) -> tuple[list[list[str]], str]:
    assert main(["predict", str(folder), str(table), *more]) == 0
    out, err = said(capfd)
    return list(csv.reader(io.StringIO(out))), err


def test_predict_reads_a_table_as_training_did(tmp_path: Path, capfd: Any) -> None:
    """The same model from clean tables, and from tables with commas, dates and an encoding."""
    since = lambda i, old: f"20{i:02}-01-01"  # noqa: E731
    days = [(pd.Timestamp(since(i, "")) - pd.Timestamp("1970-01-01")).days for i in range(BANK)]
    plain = Case(bank={"age": lambda i, old: str(days[i])})
    keys = 'decimal = ","\nthousands = "."\ndates = "days"\nencoding = "utf-16"'
    own = Case(
        bank={"age": since, "income": lambda i, old: grouped(old, ".", ",")},
        bank_file=lambda text: text.encode("utf-16"),
        shop_file=lambda text: text.encode("utf-16"),
        bank_keys=keys,
        shop_keys=keys.replace('dates = "days"\n', ""),
    )
    found = []
    for name, case in {"plain": plain, "own": own}.items():
        (tmp_path / name).mkdir()
        file = write(case, tmp_path / name)
        assert main(["run", "-q", str(file)]) == 0
        run = tmp_path / name / "runs" / "two"
        rows, err = predicted(run, tmp_path / name / "bank.csv", capfd)
        found.append((rows, err.partition("note: ")[2].replace(str(tmp_path / name), "")))
        both = [f"{one}={tmp_path / name / one}.csv" for one in ("bank", "shop")]
        rows, _ = predicted(run, Path(both[0]), capfd, both[1], "--federated", "--absent", "mean")
        found.append((rows, ""))
    assert found[0] == found[2]
    assert found[1] == found[3]
    assert len(found[0][0]) == BANK + 1


def test_predict_says_what_a_table_lacks_and_has_beside(tmp_path: Path, capfd: Any) -> None:
    file = write(Case(), tmp_path)
    assert main(["run", "-q", str(file)]) == 0
    run = tmp_path / "runs" / "two"
    table = clean("bank").drop(columns=["debt"]).assign(shoe=["42"] * BANK)
    table.to_csv(tmp_path / "new.csv", index=False)
    rows, err = predicted(run, tmp_path / "new.csv", capfd)
    assert len(rows) == BANK + 1
    assert "The table lacks" in err
    assert "debt" in err
    assert "Columns that the model does not know are left aside: shoe." in err
    clean("bank")[["customer", "default"]].to_csv(tmp_path / "new.csv", index=False)
    said(capfd)
    assert main(["predict", str(run), str(tmp_path / "new.csv")]) == 2
    assert "name the columns as in training" in one_error(said(capfd)[1])
    wrong = clean("bank")
    wrong["income"] = [one.replace(".", ",") for one in wrong["income"]]
    wrong.to_csv(tmp_path / "new.csv", index=False)
    assert main(["predict", str(run), str(tmp_path / "new.csv")]) == 2
    assert one_error(said(capfd)[1]).endswith(
        "column 'income' has numbers with a decimal comma (such as '1000,5'); write them with a "
        'decimal point, and nothing between thousands; or say by --decimal "," how they are '
        "written."
    )
