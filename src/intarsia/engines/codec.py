"""Write and read messages and states as bytes: frozen dataclasses of named arrays, no pickle.

Layout: magic, version, CRC-32 of the rest, then one value. A value is a tag byte and its content;
lengths are unsigned 64-bit little-endian. A dataclass is its name and its fields by name; only
the dataclasses that the reader names can come out. An array keeps its order of rows or columns:
the order decides how a library sums, so that a state read from disk goes on to the same bits.
"""

from __future__ import annotations

import dataclasses
import math
import re
import struct
import typing
import zlib
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import CodecError

_MAGIC = b"INTA\x01"
NOTHING = 1  # byte that a None takes, as a truth value does
_HEADER = len(_MAGIC) + 4
_LENGTH = struct.Struct("<Q")
_FLOAT = struct.Struct("<d")
_INTEGER = struct.Struct("<q")
_KINDS = "biufcSU"  # array kinds without Python objects
_DTYPE = re.compile(f"[<>|=][{_KINDS}][0-9]{{1,9}}")  # as `dtype.str` is
_DEEPEST = 64  # values within values
_MOST_AXES = 64  # of an array, as NumPy has them
_KEPT = 1 << 20
_NAMED = 8  # names in an error
_MOST_VALUES = 4_000_000  # in all: reading a small value takes a microsecond, whatever is sent


@dataclasses.dataclass(frozen=True, eq=False)
class Written:
    """A value as `unchecked_pieces` wrote it, in the place of the value in another one."""

    data: memoryview


def encode(value: Any) -> bytes:
    """Return the bytes of a message or a state.

    Raises
    ------
    CodecError
        If the value holds something other than dataclasses, arrays, scalars, text, tuples,
        and dictionaries with text keys.
    """
    return b"".join(pieces(value))


def pieces(value: Any) -> list[bytes | memoryview]:
    """Return what `encode` does in pieces, with the arrays as they lie in memory."""
    parts = unchecked_pieces(value)
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return [_MAGIC + struct.pack("<I", checksum), *parts]


def unchecked_pieces(value: Any) -> list[bytes | memoryview]:
    """Return the pieces of a value without its head, for what stays in this machine's memory."""
    parts: list[bytes | memoryview] = []
    _write(value, parts.append)
    return parts


def decode(data: bytes, *classes: type) -> Any:
    """Return the value that `encode` wrote; `classes` are the dataclasses that may be in it.

    Raises
    ------
    CodecError
        If the bytes are truncated, altered, of another version, or name another class.
    """
    if data[: len(_MAGIC)] != _MAGIC:
        raise CodecError(
            f"The bytes begin with {data[:5]!r}, not with {_MAGIC!r}: this was not written by "
            "this version of intarsia; write it again."
        )
    body = memoryview(data)[_HEADER:]
    if len(data) < _HEADER or struct.unpack_from("<I", data, len(_MAGIC))[0] != zlib.crc32(body):
        raise CodecError(
            f"The checksum of {len(data)} bytes does not match: they were cut or altered; "
            "take an intact copy."
        )
    return decode_unchecked(body, *classes)


def decode_unchecked(body: memoryview, *classes: type, keep: bool = False) -> Any:
    """Return the value that `unchecked_pieces` wrote; it holds nothing of the bytes.

    Unless they are there for it alone, and it may `keep` them: an array that has most of them.
    """
    reader = _Reader(body, {kind.__name__: kind for kind in classes}, keep=keep)
    value = reader.value()
    if reader.at != len(body):
        raise CodecError(f"{len(body) - reader.at} bytes are left over; take an intact copy.")
    return value


@cache
def classes_in(kind: type) -> tuple[type, ...]:
    """Return a dataclass, and those that its fields are annotated with."""
    found: dict[Any, None] = {}
    waiting: list[Any] = [kind]
    while waiting:
        hint = waiting.pop()
        waiting += typing.get_args(hint)
        if dataclasses.is_dataclass(hint) and hint not in found:
            found[hint] = None
            waiting += typing.get_type_hints(hint).values()
    return tuple(found)


def size(value: Any, left_out: type | None = None) -> int:
    """Return len(encode(value)) without encoding; with None for its fields of a type."""
    return _HEADER + size_within(value, left_out)


def replace_within(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """Return a message or a state with each value of a kind replaced; as it is if none is."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, Mapping):
        inner = value
    elif isinstance(value, tuple):
        inner = dict(enumerate(value))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        inner = {name: getattr(value, name) for name in _fields(type(value))[0]}
    else:
        return value
    new = {key: replace_within(one, kind, change) for key, one in inner.items()}
    if all(new[key] is one for key, one in inner.items()):
        return value
    if isinstance(value, Mapping):
        return new
    if isinstance(value, tuple):
        return tuple(new.values())
    made = object.__new__(type(value))
    made.__dict__.update(new)
    return made


@cache
def _fields(kind: type) -> tuple[tuple[str, ...], int]:
    """Return the field names of a dataclass and the bytes that names and tags take."""
    names = tuple(field.name for field in dataclasses.fields(kind))
    fixed = 1 + 8 + len(kind.__name__.encode()) + 8 + sum(8 + len(name.encode()) for name in names)
    return names, fixed


@cache
def _known(kind: type) -> frozenset[str]:
    """Return the fields of a dataclass, and those that an earlier version had (`retired`)."""
    return frozenset(_fields(kind)[0]).union(getattr(kind, "retired", ()))


@cache
def _defaults(kind: type) -> frozenset[str]:
    """Return the fields of a dataclass that have a default."""
    missing = dataclasses.MISSING
    return frozenset(
        one.name
        for one in dataclasses.fields(kind)
        if one.default is not missing or one.default_factory is not missing
    )


@cache
def _array_overhead(dtype: np.dtype[Any], axes: int) -> int:
    return 1 + 8 + len(dtype.str) + 8 + 8 * axes


def size_within(value: Any, left_out: type | None = None) -> int:
    """Return the bytes that a value takes in one that is encoded."""
    kind: Any = type(value)
    if kind is np.ndarray:
        return _array_overhead(value.dtype, value.ndim) + int(value.nbytes)
    if kind is float or kind is int:
        return 9
    if value is None or kind is bool:
        return NOTHING
    if kind is str:
        return 9 + len(value.encode())
    if kind is Written:
        return len(value.data)
    if hasattr(kind, "__dataclass_fields__"):
        names, total = _fields(kind)
        own = value.__dict__
        for name in names:
            one = own[name]
            if type(one) is np.ndarray:
                total += _array_overhead(one.dtype, one.ndim) + one.nbytes
            else:
                nothing = one is None or type(one) is left_out
                total += NOTHING if nothing else size_within(one)
        return total
    if kind is tuple:
        return 9 + sum(size_within(item) for item in value)
    if isinstance(value, Mapping):
        return 9 + sum(8 + len(key.encode()) + size_within(item) for key, item in value.items())
    if isinstance(value, np.generic):
        return size_within(value.item())
    if kind is bytes:
        return 9 + len(value)
    raise _unknown(value)


def _some(names: Iterable[str]) -> str:
    """Return a few names in order, and how many others there are."""
    found = sorted(names)
    return f"{found[:_NAMED]}" + (f" and {len(found) - _NAMED} more" if found[_NAMED:] else "")


def _unknown(value: Any) -> CodecError:
    return CodecError(
        f"A value of type {type(value).__name__} cannot be written; use dataclasses, arrays "
        "without objects, numbers, text, tuples, or dictionaries with text keys."
    )


def _text(text: str) -> bytes:
    raw = text.encode()
    return _LENGTH.pack(len(raw)) + raw


def _write(value: Any, put: Any) -> None:
    kind = type(value)
    writer = _WRITERS.get(kind)
    if writer is not None:
        writer(value, put)
    elif isinstance(value, np.generic):
        _write(value.item(), put)
    elif dataclasses.is_dataclass(kind):
        names, _ = _fields(kind)
        put(b"c" + _text(kind.__name__) + _LENGTH.pack(len(names)))
        for name in names:
            put(_text(name))
            _write(getattr(value, name), put)
    elif isinstance(value, Mapping):
        put(b"m" + _LENGTH.pack(len(value)))
        for key, item in value.items():
            if type(key) is not str:
                raise _unknown(value)
            put(_text(key))
            _write(item, put)
    else:
        raise _unknown(value)


def _write_integer(value: int, put: Any) -> None:
    if not -(2**63) <= value < 2**63:
        raise CodecError(f"The whole number {value} has more than 64 bits; write it as text.")
    put(b"i" + _INTEGER.pack(value))


def _write_array(value: NDArray[Any], put: Any) -> None:
    if value.dtype.kind not in _KINDS:
        raise _unknown(value)
    by_column = value.flags.f_contiguous and not value.flags.c_contiguous
    put((b"f" if by_column else b"a") + _text(value.dtype.str) + _LENGTH.pack(value.ndim))
    put(struct.pack(f"<{value.ndim}Q", *value.shape))
    flat = np.ravel(value, "F" if by_column else "C")
    put(flat.view(np.uint8).data if flat.nbytes else b"")


def _write_tuple(value: tuple[Any, ...], put: Any) -> None:
    put(b"t" + _LENGTH.pack(len(value)))
    for item in value:
        _write(item, put)


_WRITERS: Mapping[type, Callable[[Any, Any], None]] = MappingProxyType(
    {
        type(None): lambda _, put: put(b"N"),
        bool: lambda value, put: put(b"T" if value else b"F"),
        int: _write_integer,
        float: lambda value, put: put(b"d" + _FLOAT.pack(value)),
        str: lambda value, put: put(b"s" + _text(value)),
        bytes: lambda value, put: put(b"b" + _LENGTH.pack(len(value)) + value),
        np.ndarray: _write_array,
        tuple: _write_tuple,
        Written: lambda value, put: put(value.data),
    }
)


class _Reader:
    def __init__(self, body: memoryview, classes: Mapping[str, type], *, keep: bool) -> None:
        self.body, self.classes, self.at = body, classes, 0
        # bytes of an array that is not copied; those of a small one are soon used otherwise
        self.kept = max(len(body) // 2, _KEPT) if keep and not body.readonly else math.inf
        self.depth = self.values = 0

    def take(self, count: int) -> memoryview:
        left = len(self.body) - self.at
        if count > left:
            raise CodecError(
                f"{min(count, 2**63)} bytes were expected at {self.at} but {left} are left; take "
                "an intact copy."
            )
        piece = self.body[self.at : self.at + count]
        self.at += count
        return piece

    def length(self) -> int:
        return int(_LENGTH.unpack(self.take(8))[0])

    def count(self, each: int) -> int:
        """Return how many things follow, each of so many bytes at least: no more than there are."""
        count, left = self.length(), len(self.body) - self.at
        if count * each > left:
            raise CodecError(
                f"{count} things are announced and {left} bytes are left; take an intact copy."
            )
        return count

    def text(self) -> str:
        raw = bytes(self.take(self.length()))
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise CodecError(f"{raw[:20]!r} is not UTF-8 text; take an intact copy.") from None

    def value(self) -> Any:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise CodecError(f"Values lie more than {_DEEPEST} deep; take an intact copy.")
        self.values += 1
        if self.values > _MOST_VALUES:
            raise CodecError(f"There are more than {_MOST_VALUES} values; take an intact copy.")
        found = self.content(bytes(self.take(1)))
        self.depth -= 1
        return found

    def content(self, tag: bytes) -> Any:
        read = _READERS.get(tag)
        if read is None:
            raise CodecError(f"The tag {tag!r} is not known; take an intact copy.")
        return read(self)

    def array(self, order: Literal["C", "F"]) -> Any:
        name = self.text()
        try:
            if not _DTYPE.fullmatch(name):  # NumPy reads more, and long text for half a minute
                raise TypeError
            dtype = np.dtype(name)
        except (TypeError, ValueError):
            raise CodecError(
                f"There is no dtype {name[:20]!r} of numbers or text; take an intact copy."
            ) from None
        if not dtype.itemsize:
            raise CodecError(f"An array of dtype {dtype} is refused; its values have no bytes.")
        axes = self.length()
        if axes > _MOST_AXES:
            raise CodecError(f"An array has {axes} axes, more than {_MOST_AXES}.")
        shape = tuple(self.length() for _ in range(axes))
        raw = self.take(dtype.itemsize * math.prod(shape))
        try:
            found = np.frombuffer(raw, dtype).reshape(shape, order=order)
            return found if len(raw) > self.kept and found.flags.aligned else found.copy(order)
        except (ValueError, OverflowError) as problem:
            raise CodecError(f"No array has the shape {shape[:8]} ({problem}).") from None

    def record(self) -> Any:
        name = self.text()
        if name not in self.classes:
            raise CodecError(
                f"A record {name[:80]!r} was found where one of {_some(self.classes)} was "
                "expected: it is not of this run, or was written by another version."
            )
        kind = self.classes[name]
        names, known = _fields(kind)[0], _known(kind)
        values: dict[str, Any] = {}
        for _ in range(self.count(9)):
            field = self.text()
            if field not in known or field in values:
                raise CodecError(
                    f"The record {name!r} has the field {field[:80]!r} where one of "
                    f"{_some(names)} was expected, each once: it was written by another version."
                )
            values[field] = self.value()
        # an older version did not write what was added since, with a default
        if not set(names) - _defaults(kind) <= set(values):
            raise CodecError(
                f"The record {name!r} has the fields {sorted(values)} but {sorted(names)} were "
                "expected: it was written by another version."
            )
        return kind(**{key: value for key, value in values.items() if key in names})


_READERS: Mapping[bytes, Callable[[_Reader], Any]] = MappingProxyType(
    {
        b"N": lambda _: None,
        b"T": lambda _: True,
        b"F": lambda _: False,
        b"i": lambda reader: int(_INTEGER.unpack(reader.take(8))[0]),
        b"d": lambda reader: float(_FLOAT.unpack(reader.take(8))[0]),
        b"s": _Reader.text,
        b"b": lambda reader: bytes(reader.take(reader.length())),
        b"a": lambda reader: reader.array("C"),
        b"f": lambda reader: reader.array("F"),
        b"t": lambda reader: tuple(reader.value() for _ in range(reader.count(1))),
        b"m": lambda reader: {reader.text(): reader.value() for _ in range(reader.count(9))},
        b"c": _Reader.record,
    }
)
