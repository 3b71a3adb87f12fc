from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intarsia.data.parsing import date_orders
from intarsia.errors import FederationError, TableError
from intarsia.privacy.entity_matching.normalisation import (
    checked,
    normalised,
    of_one_type,
    rules_that_match,
    whole_numbers,
)


def after(ids, *rules):
    return normalised(np.array(ids), rules, "Client 'bank'").tolist()


@pytest.mark.parametrize(
    ("rule", "raw", "expected"),
    [
        ("strip", [" a b ", "c\t"], ["a b", "c"]),
        ("spaces", ["DE 12 34", " 5 6"], ["DE1234", "56"]),
        ("spaces", [" a", "b"], ["a", "b"]),
        ("spaces", ["a", "b "], ["a", "b"]),
        ("case", ["Ab", "STRASSE", "x"], ["ab", "strasse", "x"]),
        ("zeros", ["007", "A07", "000", "70"], ["7", "A07", "0", "70"]),
        ("punctuation", ["123-45.6", "A/7_b", "+4"], ["123456", "A7b", "+4"]),
        ("width", ["Ａ１", "e\u0301", "b\u00a0c"], ["A1", "\u00e9", "b c"]),
    ],
)
def test_a_rule_does_what_its_name_says(rule, raw, expected):
    assert after(raw, rule) == expected


def test_rules_are_applied_in_their_order():
    assert after(["０７", "x"], "width", "zeros") == ["7", "x"]
    assert after(["０７", "x"], "zeros", "width") == ["07", "x"]


@pytest.mark.parametrize(
    ("own", "others", "expected"),
    [
        (["12.345.678-9", "1-11"], ["12345678-9", "111"], (("punctuation",), 2)),
        (["01.02.2020", "31.12.2020"], ["01-02-2020", "31-12-2020"], (("punctuation",), 2)),
        (["001-11", "001-12"], ["1-11", "1-12"], (("punctuation", "zeros"), 2)),
        (["1-11", "1-12", "KD"], ["11-1", "11-2", "kd"], (("case",), 1)),
        (["001-11"], ["11-1"], ((), 0)),
        (["01.02.2020", "31.12.2020"], ["01/02/2020", "12/31/2020"], ((), 0)),
    ],
)
def test_punctuation_is_no_rule_where_it_alone_tells_ids_apart(own, others, expected):
    assert rules_that_match(np.array(own), np.array(others), date_orders) == expected


@given(st.integers(0, 10**9), st.integers(0, 4), st.sampled_from(["kd", "KD", " Kd ", "K D "]))
def test_every_way_to_write_a_customer_is_one_id(number, zeros, prefix):
    written = f"{'0' * zeros}{number}"
    assert after([written], "zeros") == [str(number)]
    assert after([f"{prefix}{number}"], "spaces", "case") == [f"kd{number}"]


def test_whole_numbers_stay():
    ids = np.array([7, -3])
    assert normalised(ids, ("zeros", "case"), "x") is ids


def test_two_ids_that_become_one_are_named_with_the_rule():
    with pytest.raises(
        TableError,
        match=r"Client 'bank': the ids 'a7' \(row 1\) and 'A 7' \(row 3\) both become 'a7' by "
        r"the rule 'case'",
    ):
        after(["a7", "b", "A 7"], "spaces", "case")
    with pytest.raises(TableError, match=r"'07' .* and '7' .* by the rule 'zeros'"):
        after(["07", "7"], "zeros")


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["a", "b", "a"], r"'a' is in the rows 1 and 3 \(1 row repeats"),
        ([7, 8, 7], r"the id 7 is in the rows 1 and 3"),
        (["a", ""], "the id '' in row 2 is empty after normalising"),
        (["a", "  "], "the id '  ' in row 2 is empty"),
        (["a", "b\x07"], r"row 2 has the character U\+0007"),
        (["a\u200bb"], r"U\+200B, which nobody sees"),
        (["a\u00a0b"], r"U\+00A0.*add \"width\""),
        (["a\ud800"], r"U\+D800"),
        ([1.0, np.nan], "the id in row 2 is NaN"),
        ([1.5], r"type float64 \(first: np.float64\(1.5\)\)"),
        ([True], "type bool"),
    ],
)
def test_what_is_no_id_is_one_sentence(ids, message):
    for attempt in (checked, lambda ids, where: normalised(ids, ("strip",), where)):
        with pytest.raises(TableError, match="^Client 'bank': .*" + message):
            attempt(np.array(ids), "Client 'bank'")


def test_sound_ids_pass():
    for ids in (["a", "b c", "é", "名前"], [1, 2], []):
        own = np.array(ids) if ids else np.array([], np.str_)
        assert checked(own, "x") is own


def test_texts_that_became_numbers_meet_numbers():
    found = of_one_type({"a": np.array([7, 8]), "b": np.array(["7", "9"])})
    assert found["b"].dtype == np.int64
    assert found["b"].tolist() == [7, 9]
    text = {"a": np.array(["7"]), "b": np.array(["9"])}
    assert of_one_type(text)["a"].tolist() == ["7"]


@pytest.mark.parametrize("ids", [["A7", "8"], ["07"], ["-0"], ["9" * 19], ["1" * 25], ["٣"]])
def test_numbers_never_meet_text_and_no_id_is_shown(ids):
    assert whole_numbers(np.array(ids)) is None
    with pytest.raises(FederationError, match=r"'a' has whole numbers .* client 'b' has text") as e:
        of_one_type({"a": np.array([123456]), "b": np.array(ids)})
    assert "123456" not in str(e.value)
    assert ids[0] not in str(e.value)


def test_the_largest_number_of_64_bits_is_one():
    assert whole_numbers(np.array([str(2**63 - 1), str(-(2**63))])).tolist() == [
        2**63 - 1,
        -(2**63),
    ]
