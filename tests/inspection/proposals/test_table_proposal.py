"""What columns look like, found by whole columns at once: the same as text by text."""

from __future__ import annotations

import re
from array import array

import numpy as np
import pyarrow as pa
import pytest

from intarsia.data.parsing import _SPELLINGS, are_numbers, canonical, number
from intarsia.data.source import Source
from intarsia.data.texts import Texts
from intarsia.inspection.proposals.id_choice import _most_shared, _shared
from intarsia.inspection.proposals.table_proposal import Column, Matched, TableProposal
from intarsia.privacy.entity_matching.normalisation import RULES_TRIED, by_rules

PIECES = ["0", "00", "1", "7", "12", "345", "9" * 15, "9" * 17, ".", ",", "-", "+", "e", " ", "a"]
WHOLE = [["1", "20", "-3"], ["0", "10"], ["-0", "1"], ["007", "12"], ["1.0", "2"], ["1e3", "4"]]
WORDS = [["Town", "a 1b", "x-Y"], ["True", "no"], ["NaN"], ["A7", "a7", "B"], ["é", "a\u00a0"]]
OTHERS = [["01.10", "02.11"], ["01.01.26"] * 1, ["inf", "1"], ["x", "01"], [], ["9" * 16, "1"]]


def column(texts, name="c"):
    """Return a column with a row for each text."""
    found = [number(one) for one in texts]
    figures = None if None in found else array("d", found)
    return Column(name, np.arange(len(texts), dtype=np.int32), texts_of(texts), figures)


def drawn(seed):
    """Return some different texts of digits and marks."""
    rng = np.random.default_rng(seed)
    pieces = PIECES[: 8 if seed % 2 else None]
    return [*{"".join(rng.choice(pieces, rng.integers(1, 4))) for _ in range(4)}]


def texts_of(given):
    return Texts(pa.array(given, pa.string()))


@pytest.mark.parametrize("given", [*WHOLE, *WORDS, *OTHERS, *map(drawn, range(400))])
def test_what_a_column_looks_like_is_what_each_of_its_texts_says(given):
    own = column(given)
    whole = own.figures is not None and all(one.is_integer() for one in own.figures)
    assert own.whole == whole
    grouped = all(re.fullmatch(r"\d\d(\.\d{1,2})+", one) for one in given)
    zeros = any(re.fullmatch(r"0\d+(\.\d+)*", one) for one in given)
    assert own.coded == ((whole or grouped) and zeros)
    assert [*own.written] == [canonical(one, number(one)) for one in given]
    rows = np.array([-1, *range(len(given)), -1, *range(len(given))], np.int32)
    repeated = Column("c", rows, own.texts, own.figures)
    there = [*own.written]
    assert repeated.canonical().tolist() == ["", *there, "", *there]
    assert repeated.canonical(np.arange(1, len(rows), 2)).tolist() == ["", *there, "", *there][1::2]
    assert {*own.values_there} == {*there}
    if own.coded or not own.whole:  # numbers as ids no rule changes
        ruled = by_rules(np.array(there, np.str_), RULES_TRIED[-1])
        assert sorted(own.under_all_rules) == sorted({*ruled.tolist()})
    for decimal, mark in _SPELLINGS:
        each = all(number(one, decimal, mark) is not None for one in given)
        assert are_numbers(texts_of(given), decimal, mark) == each


def test_twenty_days_of_two_digits_a_year_are_no_codes():
    days = [f"{day:02d}.01.26" for day in range(1, 21)]
    assert column(days[:-1]).coded
    assert not column(days).coded


@pytest.mark.parametrize(
    ("one", "other", "most"),
    [
        (["1", "2", "3"], ["2", "3", "4"], 2),
        (["007", "12"], ["7", "12"], 2),  # without zeros in front
        (["a 1", "B2"], ["A1", "b2"], 1),  # by one rule, and both by all of them
        (["x", "y"], ["z"], 0),
    ],
)
def test_as_many_values_are_shared_as_by_the_best_of_all_rules(one, other, most):
    first, second = column(one), column(other)
    every = [_shared([first, second], rules) for rules in RULES_TRIED]
    assert _most_shared(first, second) == max(every) >= most


@pytest.mark.parametrize(
    "kind", [str, "{:.1f}".format, "k{}".format, "12345678901234567{:02}".format]
)
def test_rows_of_one_id_are_found_however_ids_are_read(kind):
    rng = np.random.default_rng(1)
    own = {"a": rng.permutation(50), "b": rng.permutation(90)[:60] + 20}
    tables = [
        TableProposal(
            Source(name=name, path=f"{name}.csv", id="id"),
            {"id": column([kind(one) for one in ids.tolist()], "id")},
            *(len(ids), 1),
        )
        for name, ids in own.items()
    ]
    matched = Matched(tables, ())
    first, second = matched.rows("a", "b")
    assert len(first) == len({*own["a"].tolist()} & {*own["b"].tolist()}) > 10
    np.testing.assert_array_equal(own["a"][first], own["b"][second])
    back = matched.rows("b", "a")
    np.testing.assert_array_equal(own["b"][back[0]], own["a"][back[1]])
    assert not len(matched.rows("a", "nobody")[0])


@pytest.mark.parametrize("texts", [["a", "b"], ["1", "2"]])
def test_rows_without_an_id_are_none_of_anothers(texts):
    tables = []
    for name in ("bank", "shop"):
        own = column(texts, "id")
        own = Column("id", np.array([0, -1, 1], np.int32), own.texts, own.figures)
        source = Source(name=name, path=f"{name}.csv", id="id")
        tables.append(TableProposal(source, {"id": own}, 3, 1))
    matched = Matched(tables, ())
    assert [one.tolist() for one in matched.rows("bank", "shop")] == [[0, 2], [0, 2]]
    matched.keep({"bank"})
    assert not len(matched.rows("bank", "shop")[0])
