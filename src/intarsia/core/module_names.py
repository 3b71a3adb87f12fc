"""Functions of the user's own that an experiment or a model names, "package.module:name".

Whoever names one has its module imported, which runs the module's code. So a folder that somebody
else may have written names only modules that the user allows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from intarsia.errors import CheckpointError


def functions_in(value: Any) -> Iterator[str]:
    """Yield what may name a function anywhere in an algorithm's keys; a device is none."""
    if isinstance(value, str) and ":" in value:
        yield value
    elif isinstance(value, Mapping):
        for key, one in value.items():
            if key != "device":  # such as "cuda:1", which torch reads
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
