"""Read JSON that somebody else may have written."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal

_MOST = 2.0**63  # of a number that counts something
_LARGEST = 1e100  # of any number: pictures square them


def parse_json(text: str | bytes) -> Any:
    """Return what a JSON text says.

    Raises
    ------
    ValueError
        If it is none, or its values lie deeper in each other than can be read, or one of its texts
        has half a surrogate pair, which no file or library takes.
    """
    try:
        found = json.loads(text)
        escaped = "\\u" in text if isinstance(text, str) else b"\\u" in text
        if escaped:
            json.dumps(found, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("its values lie too deep in each other") from None
    except UnicodeEncodeError:
        raise ValueError("a text in it has half a surrogate pair") from None
    return found


def check_kind(value: Any, hint: Any, place: str = "it") -> None:
    """Raise unless a value, and what lies in it, is of the kind that an annotation says.

    A float may be a whole number, and NaN.

    Raises
    ------
    ValueError
        It names the first place that is not.
    """
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return
    if origin in (typing.Union, types.UnionType):
        kinds = [one for one in inner if one is not types.NoneType]
        if value is None and len(kinds) < len(inner):
            return
        if len(kinds) == 1:
            check_kind(value, kinds[0], place)
            return
        wrong = not any(_is_of(value, one) for one in kinds)
    elif origin is Literal:
        wrong = not (isinstance(value, str) and value in inner)
    elif isinstance(hint, type) and dataclasses.is_dataclass(hint):
        wrong = not isinstance(value, hint)
        hints = {} if wrong else typing.get_type_hints(hint)
        for one in () if wrong else dataclasses.fields(hint):
            check_kind(getattr(value, one.name), hints[one.name], f"{place}.{one.name}")
    elif isinstance(origin, type) and issubclass(origin, Mapping):
        wrong = not isinstance(value, Mapping)
        for key, one in () if wrong else value.items():
            check_kind(key, inner[0], f"a name of {place}")
            check_kind(one, inner[1], f"{place}.{str(key)[:40]}")
    elif origin in (tuple, list):
        wrong = not isinstance(value, tuple | list)
        kinds = [] if wrong else list(inner)
        if not wrong and (kinds[1:] == [...] or origin is list):
            kinds = kinds[:1] * len(value)
        wrong = wrong or len(kinds) != len(value)
        for number, (one, kind) in enumerate(() if wrong else zip(value, kinds, strict=True)):
            check_kind(one, kind, f"{place}[{number}]")
    elif hint in (int, float):
        right = type(value) is int or (hint is float and isinstance(value, float))
        most = _MOST if hint is int else _LARGEST
        wrong = not right or not (abs(value) <= most or value != value)  # or NaN
    else:
        wrong = not isinstance(value, origin or hint)
    if wrong:
        raise ValueError(f"{place} is {repr(value)[:80]}")


def _is_of(value: Any, hint: Any) -> bool:
    try:
        check_kind(value, hint)
    except ValueError:
        return False
    return True
