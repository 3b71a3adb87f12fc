"""Settings from a mapping, and checks of their ranges; each error is one sentence.

A settings class is a frozen dataclass. The range of a field stands in its annotation
(`rate: Positive = 0.01`), and `check_ranges` in `__post_init__` refuses what is outside.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import os
import sys
import tomllib
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, TypeVar

from annotated_types import BaseMetadata, Ge, Gt, Le, Lt
from pydantic import ConfigDict, TypeAdapter, ValidationError

from intarsia.errors import ExperimentError, listed, nearest

T = TypeVar("T")

Positive = Annotated[float, Gt(0), Lt(math.inf)]
NotNegative = Annotated[float, Ge(0), Lt(math.inf)]
Penalty = Annotated[float, Ge(1e-30), Le(1e30)]  # λ; duals are over λN, and are squared
Fraction = Annotated[float, Ge(0), Le(1)]
FractionBelowOne = Annotated[float, Ge(0), Lt(1)]
Between = Annotated[float, Gt(0), Lt(1)]
PositiveFraction = Annotated[float, Gt(0), Le(1)]
Count = Annotated[int, Ge(1)]
CountOrZero = Annotated[int, Ge(0)]


@dataclasses.dataclass(frozen=True)
class _Range:
    """What a field's annotation says of its values."""

    limits: Mapping[type, Any]  # of Gt, Ge, Le, Lt
    whole: bool
    advice: str  # how the error ends

    def holds(self, value: Any) -> bool:
        return all(_LIMITS[kind][0](value, limit) for kind, limit in self.limits.items())

    def __str__(self) -> str:
        finite = self.limits.get(Lt) == math.inf
        if Ge in self.limits and Le in self.limits:
            words = f"from {self.limits[Ge]} to {self.limits[Le]}"
        else:
            shown = [kind for kind in _LIMITS if self.limits.get(kind, math.inf) != math.inf]
            words = " and ".join(f"{_LIMITS[kind][1]} {self.limits[kind]}" for kind in shown)
        if self.whole:
            return f"a whole number {words if words[0] == 'f' else f'of {words}'}"
        if finite:
            return "positive and finite" if self.limits.get(Gt) == 0 else f"finite and {words}"
        return words


_LIMITS: Mapping[type, tuple[Callable[[Any, Any], bool], str]] = {
    Gt: (operator.gt, "above"),
    Ge: (operator.ge, "at least"),
    Le: (operator.le, "at most"),
    Lt: (operator.lt, "below"),
}


def check_ranges(settings: Any, table: str = "algorithm.") -> None:
    """Raise where a field is outside the range, or none of the words, in its annotation.

    Limits hold for each number of a list; None is in every range. A text in the annotation is the
    advice in the error, which else shows the default: `Annotated[float, Gt(0), "1 is safe"]`.
    `table` stands before the key in the error: "algorithm." or "[experiment] ".

    Raises
    ------
    ExperimentError
        With the key, the value and its range.
    """
    for key, (allowed, words) in _ranges(type(settings)).items():  # type: ignore[arg-type]  # a class can be hashed
        value = getattr(settings, key)
        for one in value if isinstance(value, tuple) else (value,):
            if one is None:
                continue
            if words and isinstance(one, str) and one not in words:
                raise _OutsideError(key, f"is {one!r}; choose from {', '.join(words)}.", table)
            if allowed and not isinstance(one, str) and not allowed.holds(one):
                each = "each must" if isinstance(value, tuple) else "it must"
                says = f"is {toml_text(value)}; {each} be {allowed}{allowed.advice}."
                raise _OutsideError(key, says, table)


class _OutsideError(ExperimentError):
    """A setting is outside its range; a table that holds the settings' table names it in full."""

    def __init__(self, key: str, says: str, table: str) -> None:
        super().__init__(f"{table}{key} {says}")
        self.key, self.says = key, says


@cache
def _ranges(cls: type) -> dict[str, tuple[_Range | None, tuple[str, ...]]]:
    """Return the limits of each field that has some, and the words that it may be."""
    hints = typing.get_type_hints(cls, include_extras=True)
    found = {}
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        words = tuple(one for one in _literals(hint) if isinstance(one, str))
        said = next(_annotations(hint), None)
        allowed = None
        if said is not None:
            base, *extras = typing.get_args(said)
            advice = next((f": {one}" for one in extras if isinstance(one, str)), "")
            if not advice and isinstance(field.default, int | float):
                advice = f": set e.g. {field.default}"
            limits = [one for one in extras if isinstance(one, BaseMetadata)]
            for one in limits:
                if type(one) not in _LIMITS:
                    raise TypeError(f"{one} is no limit that is checked; use Gt, Ge, Lt or Le.")
            bounds = {type(one): getattr(one, type(one).__name__.lower()) for one in limits}
            allowed = _Range(bounds, base is int, advice)
        if allowed or words:
            found[field.name] = (allowed, words)
    return found


def _annotations(hint: Any) -> Iterator[Any]:
    """Yield the annotated types in a type."""
    if typing.get_origin(hint) is Annotated:
        yield hint
    else:
        for inner in typing.get_args(hint):
            yield from _annotations(inner)


def hyperparameters(
    cls: type[T],
    mapping: Mapping[str, Any],
    where: str = "[algorithm]",
    keys: Sequence[str] | None = None,
    elsewhere: Mapping[str, str] = MappingProxyType({}),
) -> T:
    """Return a frozen keyword-only dataclass made from a mapping.

    Lists become tuples; a whole number serves as a float; a table serves where a field is such a
    dataclass itself; nothing else is converted. `keys` are the keys that an error offers (default:
    the fields), `elsewhere` the tables to which other keys belong. Errors of the class's own checks
    pass through.

    Raises
    ------
    ExperimentError
        If a key is unknown or missing, or a value has the wrong type.
    """
    return cls(**_fields(cls, mapping, where, keys, elsewhere))


# other libraries' words for keys, in small letters -> what they may be called here
_ALIASES: Final[Mapping[str, Sequence[str]]] = {
    **dict.fromkeys(
        ("lambda", "lam", "alpha", "l2", "reg", "penalty", "weight_decay"), ("regularisation",)
    ),
    # λ is the inverse of C times the samples
    "c": ("regularisation",),
    **dict.fromkeys(
        ("lr", "learning_rate", "eta", "eta0", "step_size", "stepsize"), ("rate", "step")
    ),
    **dict.fromkeys(("epochs", "n_epochs", "num_epochs"), ("local_epochs", "epochs")),
    **dict.fromkeys(("batch_size", "minibatch", "minibatch_size"), ("batch",)),
    **dict.fromkeys(("max_iter", "n_iter", "iterations", "num_rounds", "n_rounds"), ("rounds",)),
    **dict.fromkeys(("tol", "eps"), ("tolerance",)),
    "random_state": ("seed",),
    "l1": ("l1_ratio",),
}


def _fields(
    cls: Any,
    mapping: Mapping[str, Any],
    where: str,
    keys: Sequence[str] | None = None,
    elsewhere: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return what a dataclass is made from; refuse what is unknown, missing or of another type."""
    fields = {one.name: one for one in dataclasses.fields(cls) if one.init}
    valid = list(keys if keys is not None else fields)
    hints = _hints(cls)
    given: dict[str, Any] = {}
    for key, value in mapping.items():
        if key not in fields:
            names = (key, *_ALIASES.get(key.lower(), ()))
            here = next((one for one in names if one in valid), None)
            other = next((one for one in names if one in elsewhere), None)
            advice = nearest(key, valid)
            if here is not None:
                advice = f"use {here!r}, as it is called here"
            elif other is not None:
                advice = f"{other!r} is a key of {elsewhere[other]}"
            raise ExperimentError(f"{where} has the unknown key {key!r}; {advice}.")
        if dataclasses.is_dataclass(hints[key]) and not dataclasses.is_dataclass(value):
            given[key] = _inner(hints[key], value, where, key)
            continue
        given[key] = _checked(hints[key], frozen(value), where, key)
    for key, one in fields.items():
        required = one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING
        if required and key not in given:
            raise ExperimentError(
                f"{where} has no {key!r} (keys: {listed(mapping) or 'none'}); give it "
                f"{key} = …, which is {_wording(hints[key])}."
            )
    return given


def absolute_path(path: str, folder: Path) -> str:
    """Return a path in a settings file as an absolute one; `folder` is where the file lies.

    "~/" at its beginning is the user's home, "./~/" a folder of that name.
    """
    try:
        return str((folder / os.path.expanduser(path)).resolve())  # noqa: PTH111  # Path drops "./"
    except (ValueError, RuntimeError) as problem:  # a NUL; a circle of links
        told = isinstance(problem, UnicodeEncodeError) and problem.encoding != "utf-8"
        advice = "set LC_ALL=C.UTF-8 in the environment" if told else "correct it"
        raise ExperimentError(
            f"The path {path!r} is none that a file can have ({problem}); {advice}."
        ) from None


_NO_TEXT = {  # how files begin that are taken for one of settings
    b"PK\x03\x04": "a workbook or a zip archive",
    b"\xd0\xcf\x11\xe0": "an old workbook or document",
    b"\x1f\x8b": "compressed (gzip)",
    b"PAR1": "a Parquet table",
    b"%PDF": "a PDF",
    b"\xff\xfe": "text in UTF-16",
    b"\xfe\xff": "text in UTF-16",
}


def read_text(path: Path, what: str) -> str:
    """Return a settings file's text; errors call it `what`, such as "the experiment file"."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise ExperimentError(f"{path} is a device or a pipe; name {what}, which is a file.")
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        byte = error.object[error.start : error.start + 1]
        kind = next((kind for mark, kind in _NO_TEXT.items() if error.object.startswith(mark)), "")
        if not kind and b"\0" in error.object:
            kind = "no text but bytes of a program"
        if kind:
            raise ExperimentError(
                f"{path} is {kind}; name {what}, which is plain text in UTF-8."
            ) from None
        raise ExperimentError(
            f"{path}: byte {error.start} is {byte!r}, which is not UTF-8; save the file as UTF-8."
        ) from None
    except OSError as error:
        raise ExperimentError(
            f"{path}: cannot read {what} ({error.strerror}); correct its path."
        ) from error


def read_toml(
    path: Path, what: str, tables: Sequence[str] = (), lists: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the tables of a TOML file, which an error calls `what`.

    `tables` are those that it may have (none: they are not checked here), `lists` those of them
    that may be a list of tables, or a text.
    """
    tree = toml_tree(read_text(path, what), path)
    if tables:
        check_tables(tree, what, tables, lists, f"{path}: ")
    return tree


def toml_tree(text: str, path: Path) -> dict[str, Any]:
    """Return the tables of a TOML text; an error names the file, the line and what it has there."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        said, _, place = error.args[0].rstrip(")").partition(" (at ")
        lines = text.splitlines()
        known = place.startswith("line ")
        line, column = map(int, place[5:].split(", column ")) if known else (len(lines), 1)
        shown = lines[line - 1].strip()[:60] if 0 < line <= len(lines) else ""
        raise ExperimentError(
            f"{path}: not valid TOML: {said} at line {line}, column {column} ({shown!r}); correct "
            "this line."
        ) from None
    except RecursionError:
        raise ExperimentError(
            f"{path}: not valid TOML: its values lie too deep in each other; write them flat."
        ) from None
    except ValueError:  # int() reads no longer ones
        raise ExperimentError(
            f"{path}: a whole number has more than {sys.get_int_max_str_digits():,} digits; write "
            "a shorter one."
        ) from None


def check_tables(
    tree: Mapping[str, Any],
    what: str,
    tables: Sequence[str],
    lists: Sequence[str] = (),
    where: str = "",
) -> None:
    """Refuse what is none of the tables of a file, or no table; arguments as in `read_toml`."""
    for key, value in tree.items():
        if key not in tables:
            raise ExperimentError(
                f"{where}[{key}] is not a table of {what}; {nearest(key, tables)}."
            )
        if key not in lists and not isinstance(value, Mapping):
            raise wrong_value(where or "The file's", key, value, f"a table [{key}]")


def table_list(key: str, tables: Any) -> Sequence[Mapping[str, Any]]:
    """Return the tables of a list in a file; refuse what is none."""
    if isinstance(tables, Sequence) and all(isinstance(one, Mapping) for one in tables):
        return tables
    raise wrong_value("The file's", key, tables, f"tables [[{key}]], with two brackets")


def _inner(cls: Any, table: Any, where: str, key: str) -> Any:
    """Return a dataclass from a table inside of another, which errors name too."""
    if not isinstance(table, Mapping):
        raise wrong_value(where, key, table, "a table")
    place = f"{where.strip('[]')}.{key}"
    given = _fields(cls, table, f"[{place}]")
    try:
        return cls(**given)
    except _OutsideError as error:
        raise _OutsideError(error.key, error.says, f"{place}.") from None
    except ExperimentError as error:
        raise ExperimentError(f"[{place}]: {error}") from None


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
        several = {"text": "texts", "a whole number": "whole numbers", "a number": "numbers"}
        return f"a list of {several.get(inner, f'values ({inner})')}"
    if origin in (Mapping, dict):
        return "a table"
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    return names.get(hint, f"a {getattr(hint, '__name__', hint)}")


def wrong_value(
    where: str, key: str, value: Any, expected: str, hint: Any = None
) -> ExperimentError:
    """Return the error that a key has a value of the wrong type."""
    options = list(dict.fromkeys(one for one in _literals(hint) if isinstance(one, str)))
    advice = f"expected {expected}"
    if isinstance(value, str) and options and typing.get_origin(hint) is tuple:
        advice = f"expected a list of {listed(options)}"
        if value in options:
            advice = f"expected a list: write [{toml_text(value)}]"
    elif isinstance(value, str) and options:
        advice = nearest(value, options)
        if any(typing.get_args(one)[1:] == (float,) for one in typing.get_args(hint)):
            advice += ", or a table of numbers such as { ill = 3.0 }"
    elif expected == "a whole number" and isinstance(value, float) and value.is_integer():
        advice += f": write {int(value)}"
    elif expected == "a list of texts" and isinstance(value, str):
        advice += f", such as [{toml_text(value)}]"
    elif expected == "text" and isinstance(value, Mapping | list | tuple):
        held = value.values() if isinstance(value, Mapping) else value
        advice += "".join(f", such as {toml_text(one)}" for one in [*held][:1])
    return ExperimentError(f"{where.strip()} {key} is {toml_text(value)}; {advice}.")


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
        end = ", …]" if len(value) > 6 else "]"
        return "[" + ", ".join(toml_text(one) for one in value[:6]) + end
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k} = {toml_text(v)}" for k, v in list(value.items())[:4]) + "}"
    return str(value)
