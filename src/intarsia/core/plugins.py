"""Code of the user's own: functions that an experiment names, and what installed packages add.

A function is named "package.module:name". A package adds algorithms, data sets and partitions by
entry points, of the groups `intarsia.` with "algorithms", "datasets" or "partitions" behind it:
each is a name and the "package.module:name" that it stands for.

Whoever names one has its module imported, which runs the module's code. So a folder that somebody
else may have written names only modules that the user allows, and a site runs only what its owner
lists. An entry point that is looked up is not imported: `Plugin.load` does that.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import inspect
import logging
import re
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from intarsia.errors import AlgorithmError, CheckpointError, ExperimentError, first_line

_LOG: Final = logging.getLogger(__name__)
T = TypeVar("T")
Kind = Literal["algorithm", "data set", "partition"]
_GROUPS: Final[Mapping[Kind, str]] = {
    "algorithm": "algorithms",
    "data set": "datasets",
    "partition": "partitions",
}


@dataclass(frozen=True)
class Plugin:
    """What an installed package adds under a name."""

    kind: Kind
    name: str
    function: str  # "package.module:name"
    package: str  # that is installed, with its version

    @property
    def said(self) -> str:
        """Return what it is, as a sentence begins."""
        return f"The {self.kind} {self.name!r} is that of the installed package {self.package}"

    def load(self) -> Any:
        """Import and return it.

        Raises
        ------
        ExperimentError
            If that fails, with the package.
        """
        try:
            return importlib.metadata.EntryPoint(self.name, self.function, "").load()
        except KeyboardInterrupt:
            raise
        except BaseException as problem:  # whatever the package's own code raises
            own = isinstance(problem, AlgorithmError)
            said = str(problem).rstrip(".") if own else first_line(problem)
            frames = traceback.extract_tb(problem.__traceback__)
            lines = [f"{Path(a).name}:{b}" for a, b, where, _ in frames if where == "<module>"]
            raise ExperimentError(
                f"{self.said}, which cannot be imported from {self.function} "
                f"({': '.join([*lines[-1:], type(problem).__name__, said])}); mend or uninstall "
                "the package."
            ) from problem

    def checked(self, found: Any, cls: type[T]) -> T:
        """Return what came of it, if it is of a class; ExperimentError if not."""
        if not isinstance(found, cls):
            raise ExperimentError(
                f"{self.said}, and gives {type(found).__name__}; it must give {cls.__name__}."
            )
        return found


def keywords(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the arguments that a function takes by keyword alone."""
    parameters = inspect.signature(function).parameters.values()
    return tuple(one.name for one in parameters if one.kind is one.KEYWORD_ONLY)


def needed(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return those of a function's keywords that have no default."""
    parameters = inspect.signature(function).parameters
    return tuple(
        key for key in keywords(function) if parameters[key].default is inspect.Parameter.empty
    )


def installed(kind: Kind) -> tuple[Plugin, ...]:
    """Return what installed packages add of a kind, in the order of their names.

    The packages are read again where a folder of Python's path has changed, as by an installation.
    """
    return tuple(one for one in _installed(_folders())[0] if one.kind == kind)


def unreadable() -> tuple[str, ...]:
    """Return what is wrong with packages whose entry points cannot be read, a sentence of each."""
    return _installed(_folders())[1]


def _folders() -> tuple[tuple[str, int | None], ...]:
    return tuple((one, _changed(one)) for one in sys.path)


def _changed(folder: str) -> int | None:
    """Return when the names in a folder last changed, in ns; None: there is no such folder."""
    try:
        return Path(folder).stat().st_mtime_ns
    except OSError:
        return None


@functools.lru_cache(maxsize=1)
def _installed(
    folders: tuple[tuple[str, int | None], ...],
) -> tuple[tuple[Plugin, ...], tuple[str, ...]]:
    """Return what all packages in these folders add, and which are broken.

    A package whose entry points cannot be read adds nothing: it may have no part in this one.
    """
    kinds = {f"intarsia.{group}": kind for kind, group in _GROUPS.items()}
    packages = list(importlib.metadata.distributions())
    with contextlib.suppress(Exception):  # what cannot be read is told of below
        if not any(one.group in kinds for package in packages for one in package.entry_points):
            return (), ()  # names take ten times as long to read as entry points
    found: dict[str, list[Plugin]] = {}
    broken: list[str] = []
    for package in packages:
        try:
            name = package.name.lower().replace("-", "_")
            own = [one for one in package.entry_points if one.group in kinds]
            version = package.version if own else ""
        except Exception as problem:  # whatever reading another's files raises
            where = getattr(package, "_path", "an installed package")
            broken.append(f"the entry points of {where} cannot be read ({first_line(problem)})")
            _LOG.warning("%s", broken[-1])
            continue
        found.setdefault(  # of two of a name, the first on the path is what is imported
            name,
            [
                Plugin(
                    kinds[one.group],
                    one.name,
                    one.value.partition("[")[0].replace(" ", ""),
                    f"{package.name} {version}",
                )
                for one in own
            ],
        )
    plugins = sorted(chain(*found.values()), key=lambda one: (one.name, one.package))
    return tuple(plugins), tuple(broken)


def names(kind: Kind, own: Collection[str]) -> list[str]:
    """Return the names of a kind: `own` are those of this package."""
    return sorted({*own, *(one.name for one in installed(kind))})


def named(kind: Kind, name: str, own: Collection[str]) -> Plugin | None:
    """Return what an installed package adds under a name; None: no package does.

    Raises
    ------
    ExperimentError
        If the name is among `own`, those of this package, or several packages have it.
    """
    found = [one for one in installed(kind) if one.name == name]
    if found and name in own:
        raise ExperimentError(
            f"The installed package {found[0].package} adds the {kind} {name!r}, which is the name "
            "of one of intarsia; rename it in the package's entry points, or uninstall the package."
        )
    if len(found) > 1:
        raise ExperimentError(
            f"The installed packages {found[0].package} and {found[1].package} both have a {kind} "
            f"{name!r}; uninstall one of them."
        )
    return found[0] if found else None


def package_of(kind: Kind, name: str) -> str:
    """Return the installed package that adds a name; "": none, it is of this package or nobody."""
    return next((one.package for one in installed(kind) if one.name == name), "")


# as torch names one of several devices; a digit names no function
_DEVICE = re.compile(r"(cpu|cuda|hip|mps|xpu):[0-9]+")


def functions_in(value: Any) -> Iterator[str]:
    """Yield what may name a function anywhere in an algorithm's keys; a device is none.

    What lies below a key `device` is no device by that: `extractors` and `models` have keys that
    whoever writes the experiment chooses.
    """
    if isinstance(value, str) and ":" in value:
        yield value
    elif isinstance(value, Mapping):
        for key, one in value.items():
            if not (key == "device" and isinstance(one, str) and _DEVICE.fullmatch(one)):
                yield from functions_in(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from functions_in(one)


def check_allowed(value: Any, allowed: Collection[str], folder: Path) -> None:
    """Raise where a folder's settings or model name a module that is not among those allowed.

    Raises
    ------
    CheckpointError
        With the module and how it is allowed.
    """
    for name in functions_in(value):
        module = name.partition(":")[0]
        if module not in allowed:
            raise CheckpointError(
                f"{folder} names {name[:80]!r}, and the code of a module that a folder names is "
                f"run only if you allow it; add --allow-module {module[:80]} (from Python "
                "allow_modules) if you know what it does."
            )
