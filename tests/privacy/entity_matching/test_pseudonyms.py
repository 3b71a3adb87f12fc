from __future__ import annotations

import hmac

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intarsia.core.schema import Index
from intarsia.errors import KeyMaterialError, TableError
from intarsia.privacy.entity_matching.pseudonyms import WIDTH, drawn_key, pseudonyms, subkey

KEY = bytes(range(32))


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), max_size=5))
def test_a_pseudonym_is_hmac_sha256_cut_to_128_bits(texts):
    texts = [text.rstrip("\0") for text in texts]  # NumPy's text ends before them
    found = pseudonyms(np.array(texts, np.str_), KEY)
    expected = [
        hmac.digest(KEY, b"intarsia sample id v1\0text\0" + text.encode(), "sha256")[:16]
        for text in texts
    ]
    assert found.dtype == f"S{WIDTH}"
    assert found.tobytes() == b"".join(expected)


def test_whole_numbers_and_text_never_match():
    number = pseudonyms(np.array([7]), KEY)
    assert (
        number.tobytes() == hmac.digest(KEY, b"intarsia sample id v1\0number\x007", "sha256")[:16]
    )
    assert number != pseudonyms(np.array(["7"]), KEY)
    assert number == pseudonyms(np.array([7], np.uint8), KEY)


def test_pseudonyms_match_as_the_ids_do():
    rng = np.random.default_rng(0)
    ids = {name: np.sort(rng.choice(5000, 1500, replace=False)) for name in "abc"}
    plain = Index.of(ids)
    hidden = Index.of({name: pseudonyms(own, KEY) for name, own in ids.items()})
    sizes = [{c.owners: c.stop - c.start for c in index.cells} for index in (plain, hidden)]
    assert sizes[0] == sizes[1]
    known = dict(zip(pseudonyms(np.arange(5000), KEY).tolist(), range(5000), strict=True))
    assert len(known) == 5000
    for cell in hidden.cells:
        for name in hidden.ids[cell.start : cell.stop].tolist():
            assert all((known[name] in ids[owner]) == (owner in cell.owners) for owner in ids)


def test_zero_bytes_inside_and_at_the_end_are_told_apart():
    raw = [b"a" * 14 + end for end in (b"\0\0", b"a\0", b"\0a", b"\0b")]
    names = np.frombuffer(b"".join(raw), f"S{WIDTH}")
    assert len(np.unique(names)) == 4
    assert np.unique(names, return_counts=True)[1].tolist() == [1, 1, 1, 1]


def test_another_key_gives_other_pseudonyms():
    ids = np.arange(1000)
    one, other = pseudonyms(ids, drawn_key()), pseudonyms(ids, drawn_key())
    assert not np.isin(one, other).any()
    purposes = {subkey(KEY, purpose) for purpose in ("shared", "rows of a", "rows of b")}
    assert len(purposes) == 3
    assert KEY not in purposes


@pytest.mark.parametrize("key", [b"", b"short", bytes(33)])
def test_a_key_of_another_length_is_refused(key):
    for attempt in (lambda: pseudonyms(np.arange(3), key), lambda: subkey(key, "shared")):
        with pytest.raises(KeyMaterialError, match=f"has {len(key)} bytes; expected 32"):
            attempt()


def test_ids_that_are_neither_text_nor_whole_numbers_are_refused():
    with pytest.raises(TableError, match="type float64"):
        pseudonyms(np.array([1.0]), KEY)


def test_no_ids_have_no_pseudonyms():
    assert pseudonyms(np.array([], np.str_), KEY).shape == (0,)
