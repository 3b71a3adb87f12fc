"""A frozen dataclass of settings from a mapping, with one clear sentence for what does not fit."""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from intarsia.errors import ExperimentError, listed, nearest

T = TypeVar("T")


def hyperparameters(
    cls: type[T],
    mapping: Mapping[str, Any],
    where: str = "[algorithm]",
    keys: Sequence[str] | None = None,
) -> T:
    """Return a frozen keyword-only dataclass made from a mapping.

    Lists become tuples; a whole number serves as a float; a table serves where a field is such a
    dataclass itself; nothing else is converted. `keys` are the keys that an error offers (default:
    the fields). Errors of the class's own checks pass through.

    Raises
    ------
    ExperimentError
        If a key is unknown or missing, or a value has the wrong type.
    """
    fields = {one.name: one for one in dataclasses.fields(cls) if one.init}  # type: ignore[arg-type]  # T is a dataclass
    valid = list(keys if keys is not None else fields)
    hints = _hints(cls)  # type: ignore[arg-type]  # a class can be hashed
    given: dict[str, Any] = {}
    for key, value in mapping.items():
        if key not in fields:
            raise ExperimentError(f"{where} has the unknown key {key!r}; {nearest(key, valid)}.")
        if dataclasses.is_dataclass(hints[key]) and not dataclasses.is_dataclass(value):
            given[key] = _inner(hints[key], value, where, key)
            continue
        given[key] = _checked(hints[key], frozen(value), where, key)
    for key, one in fields.items():
        required = one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING
        if required and key not in given:
            raise ExperimentError(
                f"{where} has no {key!r} (keys: {listed(mapping) or 'none'}); set it to "
                f"{_wording(hints[key])}."
            )
    return cls(**given)


def _inner(cls: Any, table: Any, where: str, key: str) -> Any:
    """Return a dataclass from a table inside of another, which errors name too."""
    if not isinstance(table, Mapping):
        raise wrong_value(where, key, table, "a table")
    outer = where.strip("[]")
    try:
        return hyperparameters(cls, table, f"[{outer}.{key}]")
    except ExperimentError as error:
        # a class's own checks name its keys as if it had the outer table to itself
        raise ExperimentError(
            re.sub(rf"\b{outer}\.(?!{key}\b)", f"{outer}.{key}.", str(error))
        ) from None


def _checked(hint: Any, value: Any, where: str, key: str) -> Any:
    if dataclasses.is_dataclass(value):  # made and checked by the caller
        return value
    try:
        return _adapter(hint).validate_python(value)
    except ValidationError:
        raise wrong_value(where, key, value, _wording(hint), hint) from None


# kept: a federation has a source for each of its clients, and thousands of these
@cache
def _hints(cls: type) -> Mapping[str, Any]:
    return typing.get_type_hints(cls)


@cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint, config=ConfigDict(strict=True, arbitrary_types_allowed=True))


def frozen(value: Any) -> Any:
    """Return a value with tuples in place of lists."""
    if isinstance(value, list | tuple):
        return tuple(frozen(one) for one in value)
    if isinstance(value, Mapping):
        return {key: frozen(one) for key, one in value.items()}
    return value


def _wording(hint: Any) -> str:
    """Return a type in words."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(toml_text(one) for one in arguments)
    if origin in (typing.Union, types.UnionType):
        words = dict.fromkeys(_wording(one) for one in arguments if one is not type(None))
        return " or ".join(words)
    if origin is tuple:
        inner = _wording(arguments[0])
        return "a list of " + {
            "text": "texts",
            "a whole number": "whole numbers",
            "a number": "numbers",
        }.get(inner, f"values ({inner})")
    if origin in (Mapping, dict):
        return "a table"
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    return names.get(hint, f"a {getattr(hint, '__name__', hint)}")


def wrong_value(
    where: str, key: str, value: Any, expected: str, hint: Any = None
) -> ExperimentError:
    """Return the error that a key has a value of the wrong type."""
    options = [one for one in _literals(hint) if isinstance(one, str)]
    advice = f"expected {expected}"
    if isinstance(value, str) and options:
        advice = nearest(value, options)
    return ExperimentError(f"{where} {key} is {toml_text(value)}; {advice}.")


def _literals(hint: Any) -> list[Any]:
    if typing.get_origin(hint) is Literal:
        return list(typing.get_args(hint))
    return [one for inner in typing.get_args(hint) for one in _literals(inner)]


def toml_text(value: Any) -> str:
    """Return a value as a TOML file writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{" ".join(value.split())[:80]}"'
    if value is None:
        return "not set"
    if isinstance(value, list | tuple):
        return (
            "["
            + ", ".join(toml_text(one) for one in value[:6])
            + (", …]" if len(value) > 6 else "]")
        )
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k} = {toml_text(v)}" for k, v in list(value.items())[:4]) + "}"
    return str(value)
