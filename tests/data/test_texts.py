from __future__ import annotations

import subprocess
import sys
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.testing import assert_array_equal

from intarsia.data.column import plain_figures
from intarsia.data.column_types import coded_texts, features_of
from intarsia.data.parsing import are_numbers, number
from intarsia.data.source import Source
from intarsia.data.texts import Texts

SOURCE = Source(name="bank", path="bank.csv", missing=("", "-999"))


@pytest.mark.parametrize(
    "text",
    ["0.1", "-0", "007", "1e5", "4.9e-99", "123456789.123456789", "2.2250738585072014", "1E+09"],
)
def test_a_plain_number_is_the_one_that_python_reads(text: str) -> None:
    texts = Texts(pa.array([text]))
    assert texts.plain
    assert texts.figures.tolist() == [number(text)] == [float(text)]


@pytest.mark.parametrize(
    "text", ["+1", "1.", ".5", "1,5", " 1", "1e400", "nan", "−1", "٣", "", "x"]
)
def test_what_else_is_a_number_is_looked_at_by_itself(text: str) -> None:
    assert not Texts(pa.array(["1", text])).plain
    assert are_numbers(Texts(pa.array(["1", text]))) is (number(text) is not None)


@pytest.mark.parametrize(
    ("texts", "decimal", "unit", "known", "figures"),
    [
        (["1", "-2.5"], ".", "", None, [1.0, -2.5]),
        (["1", "-2.5"], ".", "", [1.0, -2.5], [1.0, -2.5]),
        (["1", "x"], ".", "", None, None),
        (["1", "2"], ",", "", None, None),  # another row may have a comma
        (["1", "2"], ".", "kg", None, None),
        ([str(2**53 - 1)], ".", "", None, [2.0**53 - 1]),
        (["1", str(-(2**53))], ".", "", None, None),  # its digits are looked at
        (["1", str(-(2**53))], ".", "", [1.0, -(2.0**53)], None),
    ],
)
def test_plain_figures_are_taken_as_they_are(texts, decimal, unit, known, figures) -> None:
    source = replace(SOURCE, decimal=decimal)
    known = None if known is None else array("d", known)
    found = plain_figures(Texts(pa.array(texts)), source, unit, known)
    assert (None if found is None else found.tolist()) == figures


def test_no_text_at_all_is_plain() -> None:
    """An empty column has such, and nothing of it is to be looked at by itself."""
    assert Texts(pa.array([], pa.string())).plain


def test_texts_are_a_sequence_in_their_order() -> None:
    texts = Texts(pa.array([f"{one}" for one in range(10_000)]))
    assert [*texts] == [str(one) for one in range(10_000)]
    assert (texts[9_999], texts[-1], [*texts[2:4]]) == ("9999", "9999", ["2", "3"])


def test_texts_are_told_apart_by_patterns_in_their_order() -> None:
    texts = Texts.of(["b1", "no", "٣", "a2", ""])
    assert ([*texts.like(r"\p{Nd}")], [*texts.unlike(r"\p{Nd}")]) == (["b1", "٣", "a2"], ["no", ""])
    assert [*texts.at(np.array([3, 0], np.int32))] == ["a2", "b1"]


def test_texts_of_two_columns_are_compared_by_numbers() -> None:
    first, second = Texts.of(["x", "y", "z"]), Texts.of(["z", "w", "x", "é"])
    assert first.shared(second) == second.shared(first) == 2
    one, other = Texts.numbered([first, second])
    same = np.array([[a == b for b in second] for a in first])
    assert ((one[:, None] == other) == same).all()
    assert [len(own) for own in Texts.numbered([first, Texts.of([]), second])] == [3, 0, 4]


@pytest.mark.parametrize("text", ["1,5", "-0,25", "7", "1.5", "1.234,5", "1,2,3", ",5", "x", ""])
def test_numbers_with_a_decimal_comma_are_those_that_are_read(text: str) -> None:
    texts = Texts.of([text])
    assert are_numbers(texts, ",") is (number(text, ",") is not None)
    if texts.with_point.plain:
        assert texts.with_point.figures.tolist() == [number(text, ",")]


@pytest.mark.parametrize(
    "values",
    [
        ["a", " a", "b ", None, "", "NaN", "Null", "-999", " -999 ", "\u00a0c"],
        ["1", "2.5", " 1", "nan", "x", "nullify", "null "],
        [True, None, False],
        [3.0, 2.5, None],
    ],
)
def test_many_rows_have_the_texts_that_few_have(values: list[Any]) -> None:
    column = pa.chunked_array([values])
    codes, texts = coded_texts(column, "debt", SOURCE)
    many = pa.chunked_array([values] * 600)
    assert_array_equal(coded_texts(many, "debt", SOURCE)[0], np.tile(codes, 600))
    assert [*coded_texts(many, "debt", SOURCE)[1]] == [*texts]


def test_values_of_a_column_read_as_text_are_those_of_its_numbers() -> None:
    """Missing ones lose their place among the texts, and 2^53 and more are looked at one by one."""
    column = pa.chunked_array([["2.5", "", "-999"], ["1", "NaN", "2.5", None]])
    codes, texts = coded_texts(column, "debt", SOURCE)
    assert (codes.tolist(), [*texts]) == ([0, -1, -1, 1, -1, 0, -1], ["2.5", "1"])
    values = features_of([("debt", column)], SOURCE)["debt"]
    assert repr(values) == "array([2.5, nan, nan, 1. , nan, 2.5, nan])"
    large = pa.chunked_array([["9007199254740993", "1"]])
    with pytest.raises(Exception, match="beyond the whole numbers that a float64 holds"):
        features_of([("debt", large)], SOURCE)


def test_to_read_and_propose_large_tables_does_not_import_pandas(tmp_path: Path) -> None:
    """It takes a third of a second, which others wait for as they read beside it."""
    rows = "".join(f"P{row},{row % 7}.5,t{row % 9},{('no', '?')[row % 2]}\n" for row in range(9000))
    (tmp_path / "t.csv").write_text("id,a,town,ill\n" + rows)
    program = """
import sys
from pathlib import Path
from intarsia.data.reader import read
from intarsia.data.source import Source
from intarsia.inspection.proposals.proposal import propose
found = read(Source(name="a", path="t.csv", id="id", label="ill", categorical=("a",)))
assert len(found.categorical["town"].levels) == 9
propose([Path("t.csv")], labels=["ill"])
print("pandas" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr
