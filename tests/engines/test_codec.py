from __future__ import annotations

import contextlib
import itertools
import struct
import zlib
from dataclasses import dataclass, make_dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from intarsia.engines import codec
from intarsia.errors import CodecError


@dataclass(frozen=True)
class Inner:
    values: Any
    note: str


@dataclass(frozen=True)
class Outer:
    inner: Any
    count: int


@dataclass(frozen=True)
class Empty:
    pass


CLASSES = (Inner, Outer, Empty)
HEADER = 9

any_array = arrays.arrays(
    st.one_of(
        arrays.floating_dtypes(),
        arrays.integer_dtypes(),
        arrays.unsigned_integer_dtypes(),
        arrays.boolean_dtypes(),
        arrays.unicode_string_dtypes(),
        arrays.byte_string_dtypes(),
        arrays.complex_number_dtypes(),
    ),
    arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(st.characters(exclude_categories=["Cs"])),
    st.binary(),
    any_array,
)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(text, inner, max_size=3),
        st.builds(Inner, inner, text),
        st.builds(Outer, inner, st.integers(0, 9)),
        st.just(Empty()),
    ),
    max_leaves=6,
)


def same(one, two):
    """Return whether two values are equal to the bit, and of one type."""
    if type(one) is not type(two):
        return False
    if isinstance(one, np.ndarray):
        alike = one.dtype == two.dtype and one.shape == two.shape
        return alike and one.tobytes() == two.tobytes()
    if isinstance(one, float):
        return struct.pack("<d", one) == struct.pack("<d", two)
    if isinstance(one, tuple):
        return len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, dict):
        return list(one) == list(two) and all(same(one[key], two[key]) for key in one)
    if type(one) in CLASSES:
        return all(same(getattr(one, key), getattr(two, key)) for key in one.__dict__)
    return one == two


def signed(body: bytes) -> bytes:
    """Return bytes with a checksum that fits, so that only what they say can be wrong."""
    return b"INTA\x01" + struct.pack("<I", zlib.crc32(body)) + body


@given(values)
def test_what_was_written_comes_back_to_the_bit(value):
    assert same(value, codec.decode(codec.encode(value), *CLASSES))


@given(values)
def test_size_is_the_length_of_the_bytes(value):
    assert codec.size(value) == len(codec.encode(value))


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12.0).reshape(3, 4)[:, ::2],
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(3, dtype=">i4"),
        np.array(["é", ""], "<U3"),
        np.array([np.nan, -0.0, np.inf, 5e-324]),
        np.zeros((0, 3)),
        np.array(2.5),
    ],
)
def test_any_layout_comes_back_as_a_whole_array_of_its_own(array):
    back = codec.decode(codec.encode(array))
    assert same(array, back)
    by_column = array.flags.f_contiguous and not array.flags.c_contiguous
    assert back.flags.f_contiguous if by_column else back.flags.c_contiguous
    assert back.flags.writeable
    assert codec.size(array) == len(codec.encode(array))


def test_what_was_written_before_is_written_as_the_value_is():
    value = {"a": np.arange(3.0), "b": ("text", 1)}
    own = memoryview(b"".join(codec.unchecked_pieces(value)))
    assert codec.encode((1, codec.Written(own))) == codec.encode((1, value))
    assert codec.size((1, codec.Written(own))) == len(codec.encode((1, value)))


def test_pieces_are_the_bytes_and_hold_arrays_as_they_lie():
    value = {"rows": np.arange(6.0).reshape(2, 3), "columns": np.ones((2, 3), order="F")}
    pieces = codec.pieces(value)
    assert b"".join(pieces) == codec.encode(value)
    lying = [np.frombuffer(one) for one in pieces if isinstance(one, memoryview)]
    for array, own in zip(value.values(), lying, strict=True):
        assert np.shares_memory(array, own)


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_large_array_may_keep_the_bytes_that_are_there_for_it_alone(order, monkeypatch):
    monkeypatch.setattr(codec, "_KEPT", 1000)
    value = {"small": np.arange(3.0), "large": np.asarray(np.ones((20, 30)) * 0.1, order=order)}
    data = b"".join(codec.unchecked_pieces(value))
    start = data.index(value["large"].tobytes(order="A"))
    for keep, shift in itertools.product((False, True), range(8)):
        bytes_ = np.empty(len(data) + 16, np.uint8)
        even = (-bytes_.ctypes.data - start) % 8 + shift  # where the array begins, up to the shift
        own = bytes_.data[even : even + len(data)]
        own[:] = data
        back = codec.decode_unchecked(own, keep=keep)
        assert same(back, value)
        assert np.shares_memory(back["large"], bytes_) == (keep and shift == 0)
        assert not np.shares_memory(back["small"], bytes_)
        assert back["large"].flags.aligned
        assert back["large"].flags.writeable
        other = codec.decode_unchecked(own.toreadonly(), keep=keep)
        assert not np.shares_memory(other["large"], bytes_)


def test_numpy_scalars_become_python_numbers():
    for value, plain in ((np.float64(0.5), 0.5), (np.int32(3), 3), (np.bool_(True), True)):
        back = codec.decode(codec.encode(value))
        assert type(back) is type(plain)
        assert back == plain
        assert codec.size(value) == len(codec.encode(value))


@pytest.mark.parametrize(
    "value",
    [object(), [1, 2], {1: "number as a key"}, np.array([object()]), {1, 2}, 2**63, print, Inner],
    ids=["object", "list", "key", "object array", "set", "large number", "function", "class"],
)
def test_what_has_no_form_is_refused(value):
    with pytest.raises(CodecError):
        codec.encode(value)
    with pytest.raises(CodecError):
        codec.encode(Outer((value,), 1))


def test_only_the_classes_that_the_reader_names_come_out():
    data = codec.encode(Outer(Inner(1, "x"), 2))
    with pytest.raises(CodecError, match=r"'Inner' was found where one of \['Outer'\]"):
        codec.decode(data, Outer)


def test_an_error_names_a_few_of_many_classes():
    many = [make_dataclass(f"Record{number}", []) for number in range(20)]
    with pytest.raises(CodecError, match=r"one of \['Empty', .*'Record14'\] and 13 more was"):
        codec.decode(codec.encode(Outer(1, 2)), *many, Empty)


def test_a_record_of_another_version_is_refused():
    @dataclass(frozen=True)
    class Newer:
        inner: int
        more: int

    data = codec.encode(Outer(1, 2))
    Newer.__name__ = "Outer"
    with pytest.raises(CodecError, match="written by another version"):
        codec.decode(data, Newer)


@given(values, st.data())
def test_cut_bytes_are_refused(value, data):
    whole = codec.encode(value)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(CodecError):
        codec.decode(whole[:cut], *CLASSES)


@given(values, st.data())
def test_an_altered_bit_is_refused(value, data):
    whole = bytearray(codec.encode(value))
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CodecError):
        codec.decode(bytes(whole), *CLASSES)


@given(st.binary(max_size=60))
def test_any_bytes_with_a_fitting_checksum_are_read_or_refused(body):
    with contextlib.suppress(CodecError):
        codec.decode(signed(body), *CLASSES)


@given(values, st.data())
def test_forged_contents_are_read_or_refused(value, data):
    body = bytearray(codec.encode(value)[HEADER:])
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CodecError):
        codec.decode(signed(bytes(body)), *CLASSES)


@pytest.mark.parametrize(
    "body",
    [
        b"a" + struct.pack("<Q", 2) + b"|O" + struct.pack("<QQ", 1, 1) + bytes(8),
        b"a" + struct.pack("<Q", 3) + b"abc" + struct.pack("<QQ", 1, 1) + bytes(8),
        b"a" + struct.pack("<Q", 3) + b"<f8" + struct.pack("<Q", 2**60),
        b"a" + struct.pack("<Q", 3) + b"<f8" + struct.pack("<QQ", 1, 2**62),
        b"a" + struct.pack("<Q", 3) + b"<U0" + struct.pack("<QQ", 1, 2**62),
        b"s" + struct.pack("<Q", 2) + b"\xff\xfe",
        b"t" + struct.pack("<Q", 1) * 1,
        (b"t" + struct.pack("<Q", 1)) * 5000 + b"N",
        b"?",
        b"",
        b"NN",
    ],
    ids=range(11),
)
def test_forged_bytes_are_refused_in_our_words(body):
    with pytest.raises(CodecError):
        codec.decode(signed(body), *CLASSES)


@dataclass(frozen=True)
class Grown:
    """A record that has had a field more since."""

    first: int
    second: int = 7


def test_a_record_of_before_a_field_with_a_default_is_read():
    @dataclass(frozen=True)
    class Before:
        first: int

    Before.__name__ = "Grown"
    assert codec.decode(codec.encode(Before(3)), Grown) == Grown(3, 7)
    Before.__name__ = "Point"  # one whose fields have none
    with pytest.raises(CodecError):
        codec.decode(codec.encode(Before(3)), Grown)


@pytest.mark.parametrize("value", [np.array([1], "M8[s]"), np.zeros(2, [("a", "f8")])])
def test_arrays_of_kinds_that_are_never_written_are_not_read(value, monkeypatch):
    """Records may hold objects; a reader that took them would rely on numpy to refuse those."""
    known = codec._KINDS
    monkeypatch.setattr(codec, "_KINDS", known + value.dtype.kind)
    data = codec.encode(value)
    monkeypatch.setattr(codec, "_KINDS", known)
    with pytest.raises(CodecError, match=r"may hold objects|no dtype"):
        codec.decode(data)
